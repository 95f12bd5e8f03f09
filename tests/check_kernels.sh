# Kernels that are watched: compiled so that two threads or blocks that meet at a byte, reads of shared memory that nobody wrote
# (tests/softgpu/race.c) and undefined behaviour are faults. Those tests of test_ops whose kernels have threads that meet, or integers,
# and test_picking; KERNELS="layers_seq products:views ..." names others, whole or by a part of a test's name.
. tests/check.sh
check "software GPU" env MAKEFLAGS= make -s CC="$CC" softgpu || finish
unset FLUX_CUDA_LIBRARY FLUX_NVRTC
printf 'int main(void) { return 0; }\n' >"$tmp/empty.c"
cc -fsanitize=thread,undefined -fsanitize-undefined-trap-on-error -c "$tmp/empty.c" -o "$tmp/empty.o" 2>"$tmp/log" ||
    { skip "kernels that are watched: cc knows no -fsanitize=thread,undefined; package: gcc"; finish; }
export FLUX_CACHE_DIR="$(realpath "$tmp")/cache" SOFTGPU_RACES=1 SHORT=1
mkdir -m 700 "$FLUX_CACHE_DIR"
for name in ${KERNELS:-ops:rows ops:any_length ops:integers ops:pool ops:conv_gradients ops:of_structure picking}; do
    part=${name#*:} what=$name name=${name%:*}
    [ "$part" != "$name" ] || part=
    check "test_$name compiles" env MAKEFLAGS= make -s CC="$CC" BUILD="$BUILD" "$BUILD/gpu/test_$name" || continue
    sh tests/on_device.sh soft-cuda1 "$BUILD/gpu/test_$name" $part >"$tmp/out" 2>&1 || { grep -av '^flux:' "$tmp/out" | head -n 30; fail "test_$what, watched"; }
    add "test_$what, watched" "$tmp/out"
done
finish
