# one.sh RUN PROGRAM [PART] - one run of plan.sh's: builds the program, and has run.sh run it, or a
# part of it (partly.sh), where the run's name says. From the Makefile: MAKE, BUILD, TOTAL, CC, CXX,
# TIMEOUT, AFTER.
. tests/verdict.sh
run=$1 program=$2 part=$3 name=${1##*/} device=
shown=$run
case $run in
short/* | long/*) device=${run#*/} device=${device%/*} shown="tests/$name on $device" ;;
esac

# After `make test` a long form is what its short one, if that was run and passed, has left out.
rest= short=$BUILD/short/$device/$name.result
case $AFTER,$run,$(grep -qs '; package: tcc$' "$short" || counted 2>/dev/null <"$short") in
test,long/*,*\ 0\ *) rest=" $(echo $(sed -n 's/^short  *//p' "$short")) " ;;
esac

# A device's kernels are kept for check_rtc, one device of each kind. So that all of them are seen,
# the cache that has those of earlier runs is another one.
kernels=$(cd "$BUILD" && pwd)/gpu/kernels/$name-$device
case $device in
soft-cuda1 | soft-hip2)
    [ -n "$rest" ] || rm -rf "$kernels"
    mkdir -p "$kernels"
    export FLUX_CACHE_DIR="$kernels.cache" SOFTGPU_SOURCES="$kernels" ;;
esac

case $run in
*/check_*) set -- env CC="$CC" CXX="$CXX" BUILD="$BUILD" sh "$program" ;;
*)
    case $run in
    short/*)
        set -- sh tests/on_device.sh "$device" "$program"
        set -- env SHORT=1 ${part:+sh tests/partly.sh "$shown" "$part"} "$@" ;;
    long/*) set -- env REST="$rest" sh tests/on_device.sh "$device" "$program" ;;
    *) set -- env FLUX_CUDA_LIBRARY=none FLUX_HIP_LIBRARY=none "$program" ;;     # some are built with GPUs
    esac
    [ "$part" = - ] || set -- sh -c '"$MAKE" --no-print-directory -s "$0" && exec "$@"' "$program" "$@" ;;
esac
export MAKE
sh tests/run.sh "$BUILD/progress" "$TOTAL" "$shown" "$BUILD/$run.result" "$@"
rm -rf "$kernels.cache"
