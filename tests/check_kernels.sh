# Kernels that are watched: compiled so that two threads or blocks that meet at a byte, reads of shared memory that nobody wrote
# (tests/softgpu/race.c) and undefined behaviour are faults. Two tests of the suite; KERNELS="layers_seq ..." names others.
. tests/check.sh
check "software GPU" env MAKEFLAGS= make -s CC="$CC" softgpu || finish
unset FLUX_CUDA_LIBRARY FLUX_NVRTC
printf 'int main(void) { return 0; }\n' >"$tmp/empty.c"
cc -fsanitize=thread,undefined -fsanitize-undefined-trap-on-error -c "$tmp/empty.c" -o "$tmp/empty.o" 2>"$tmp/log" ||
    { skip "kernels that are watched: cc knows no -fsanitize=thread,undefined; package: gcc"; finish; }
export FLUX_CACHE_DIR="$(realpath "$tmp")/cache" SOFTGPU_RACES=1 SHORT=1
mkdir -m 700 "$FLUX_CACHE_DIR"
for name in ${KERNELS:-ops picking}; do
    check "test_$name compiles" env MAKEFLAGS= make -s CC="$CC" BUILD="$BUILD" "$BUILD/gpu/test_$name" || continue
    sh tests/on_device.sh soft-cuda1 "$BUILD/gpu/test_$name" >"$tmp/out" 2>&1 || { grep -av '^flux:' "$tmp/out" | head -n 30; fail "test_$name, watched"; }
    add "test_$name, watched" "$tmp/out"
done
finish
