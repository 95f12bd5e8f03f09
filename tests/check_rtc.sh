# Kernels as the suite makes them, given to the real run-time compilers for every architecture: NVRTC's own list, and those
# that hiprtc knows since version 5. The software GPU's compiler keeps the programs of a test for that; RTC_TESTS names others.
# What a product's kernel is made of depends on the chip, so that programs are made for some chips of each kind.
. tests/check.sh
gather() { # backend, chip
    mkdir "$tmp/$2"
    for test in ${RTC_TESTS:-mixed products}; do
        [ -x "$BUILD/gpu/test_$test" ] || return 1
        part=; [ $test = products ] && part="child kernels"
        FLUX_CACHE_DIR="$tmp/cache-$2-$test" SOFTGPU_ARCH=$2 SOFTGPU_SOURCES="$tmp/$2" sh tests/on_device.sh soft-${1}1 "$BUILD/gpu/test_$test" $part >"$tmp/log" 2>&1
    done
}
for chip in 75 80 gfx900 gfx90a; do
    case $chip in gfx*) backend=hip ;; *) backend=cuda ;; esac
    gather $backend $chip || { skip "real compilers: the programs whose kernels are wanted are not built"; finish; exit; }
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
"$tmp/rtc" cuda "$tmp/75" 75 79 >"$tmp/log" 2>&1
count "kernels under NVRTC before sm_80"
"$tmp/rtc" cuda "$tmp/80" 80 999 >"$tmp/log" 2>&1
count "kernels under NVRTC from sm_80 on"
for arch in gfx803 gfx900 gfx906 gfx90a gfx1010 gfx1030; do
    chip=gfx900; [ $arch = gfx90a ] && chip=gfx90a
    "$tmp/rtc" hip "$tmp/$chip" $arch >"$tmp/log" 2>&1
    count "kernels under hiprtc for $arch"
done
finish
