# Kernels as the suite made them on the software GPU, given to the real run-time compilers: NVRTC for all architectures that it
# knows, hiprtc for those that it knows since version 5, clang 19 for newer ones of AMD's (tests/rtc.c). This is a sample: one kernel
# of each kind is compiled for one of neighbours (of sm_80 to 89, of sm_100 to 121, of gfx900 to 942, ...), and others until each line is in one that
# was. RTC=each compiles the former for all, and every other kernel for one of a maker's, which takes ten times as long; RTC=all each
# for all, which takes hours. RTC_ARCHS="sm_90 gfx90a" names some.
. tests/check.sh
kernels=$BUILD/gpu/kernels
[ -d "$kernels" ] || { skip "real compilers: there are no kernels: the tests on soft-cuda1 and soft-hip2 leave them"; finish; }
unset FLUX_CUDA_LIBRARY FLUX_NVRTC FLUX_HIP_LIBRARY FLUX_HIPRTC
inside gpu || finish
if $CC -std=c11 -O1 -w $looks tests/rtc.c "$impl" -o "$tmp/rtc" -lm; then
    "$tmp/rtc" "$kernels" "${RTC:-some}" $RTC_ARCHS 2>&1 | tee "$tmp/log" | sed '$d'
    add rtc "$tmp/log"
else fail "tests/rtc.c does not compile"
fi
finish
