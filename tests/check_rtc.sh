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
# Compilers may end the process over an architecture: each in its own, one a processor. Vendor, chip, first architecture, last.
printf '%s\n' "cuda 80 80 99" "cuda 80 100 999" "hip gfx900 gfx803" "hip gfx900 gfx900" "hip gfx900 gfx906" "hip gfx90a gfx90a" \
    "hip gfx900 gfx1010" "hip gfx900 gfx1030" "cuda 75 75 79" |
    xargs -L 1 -P "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" sh -c '"$0/rtc" $1 "$0/$2" $3 $4 >"$0/$3.log" 2>&1' "$tmp"
# count LOG NAME
count() {
    cat "$1"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -n 1)
    case $line in
    *" 0 failed, 0 skipped") for i in $(seq "${line%% *}"); do pass; done ;;
    *" 1 skipped") skip "$2: not on this machine" ;;
    *) fail "$2" ;;
    esac
}
count "$tmp/75.log" "kernels under NVRTC before sm_80"
count "$tmp/80.log" "kernels under NVRTC from sm_80 to sm_99"
count "$tmp/100.log" "kernels under NVRTC from sm_100 on"
for arch in gfx803 gfx900 gfx906 gfx90a gfx1010 gfx1030; do count "$tmp/$arch.log" "kernels under hiprtc for $arch"; done
finish
