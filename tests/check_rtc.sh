# Kernels as the suite makes them, given to the real run-time compilers for every architecture: NVRTC's own list, and those
# that hiprtc knows since version 5. The software GPU's compiler keeps the programs of a test for that; RTC_TESTS names others.
. tests/check.sh
for backend in cuda hip; do
    mkdir "$tmp/$backend"
    for test in ${RTC_TESTS:-mixed}; do
        [ -x "$BUILD/gpu/test_$test" ] || { skip "real compilers: $BUILD/gpu/test_$test is not built"; finish; exit; }
        FLUX_CACHE_DIR="$tmp/cache-$backend-$test" SOFTGPU_SOURCES="$tmp/$backend" sh tests/on_device.sh soft-${backend}1 "$BUILD/gpu/test_$test" >"$tmp/log" 2>&1
    done
done
$CC -std=c11 -O1 -w tests/rtc.c -o "$tmp/rtc" -lm || fail "tests/rtc.c does not compile"
unset FLUX_CUDA_LIBRARY FLUX_NVRTC FLUX_HIP_LIBRARY FLUX_HIPRTC
# Compilers may end the process over an architecture: each in its own.
count() {
    cat "$tmp/log"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$tmp/log" | tail -n 1)
    case $line in
    *" 0 failed, 0 skipped") for i in $(seq "${line%% *}"); do pass; done ;;
    *" 1 skipped") skip "$1: not on this machine" ;;
    *) fail "$1" ;;
    esac
}
"$tmp/rtc" cuda "$tmp/cuda" >"$tmp/log" 2>&1
count "kernels under NVRTC"
for arch in gfx803 gfx900 gfx906 gfx90a gfx1010 gfx1030; do
    "$tmp/rtc" hip "$tmp/hip" $arch >"$tmp/log" 2>&1
    count "kernels under hiprtc for $arch"
done
finish
