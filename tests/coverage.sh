# coverage.sh - which branches of flux.h the tests take: builds them by gcc with --coverage, runs
# them on the processor and on software GPUs, and prints a table by room of src/, with a
# sum.
#     make coverage                      everything; some minutes
#     make coverage TESTS='tests/test_ops.c tests/test_files.c'      those alone
#     make coverage MISSED=files/        and the lines of flux.h in such rooms of which a branch is
# never taken
# It needs gcc and the gcov that comes with it. A branch counts when it has been taken in one of the
# builds: those that bring their own implementation are built apart. Processes that end by _exit
# count as well. Left out are the kernels for processors that this one is not, which the
# preprocessor keeps away, and what the machine's own drivers alone could show.
cd "$(dirname "$0")/.." || exit 1
MAKE=${MAKE:-make} gcc=${GCC:-gcc} gcov=${GCOV:-gcov}
build=build/coverage jobs=$(nproc 2>/dev/null || echo 2)
for tool in "$gcc" "$gcov"; do
    command -v "$tool" >/dev/null 2>&1 && continue
    echo "coverage: no $tool on this machine; package: gcc"
    exit 1
done
tests=${TESTS:-$(echo tests/test_*.c)}
mkdir -p $build
cat >$build/exit.c <<'END'
void __gcov_dump(void);
void __real__exit(int status);
void __wrap__exit(int status);
void __wrap__exit(int status) { __gcov_dump(); __real__exit(status); }
END
$gcc -c $build/exit.c -o $build/exit.o || exit 1

# Each test on the processor; and on software devices those that show most of the GPU layer. "DEVICE
# PROGRAM" a line.
runs=$build/runs
for t in $tests; do
    name=${t##*/test_} name=${name%.c}
    echo "cpu $build/tests/test_$name"
    case $name in data | files | gpu | layers_seq | models | picking | products | schedule | tensors | trace) echo "soft-cuda1 $build/gpu/test_$name" ;; esac
    case $name in data | gpu | tensors) printf '%s\n' "soft-cuda3 $build/gpu/test_$name" "soft-hip2 $build/gpu/test_$name" ;; esac
done >$runs
programs=$(cut -d ' ' -f 2 $runs | sort -u)
# the software GPU is none of flux.h, and slow enough as it is
$MAKE --no-print-directory -s -j"$jobs" BUILD=$build CC="$gcc" softgpu || exit 1
$MAKE --no-print-directory -s -k -j"$jobs" BUILD=$build CC="$gcc" CFLAGS="-O0 -g --coverage" \
    LDLIBS="-lm $PWD/$build/exit.o -Wl,--wrap=_exit" $programs || exit 1
find $build -name '*.gcda' -exec rm -f {} +
cat >$build/run.sh <<'END'
log=$2-$1.log
# N: random calls, which take their time without optimisation; every allocation fails once, since
# half of the branches that are seldom taken answer that, for some quarter of an hour
export FLUX_NUM_THREADS=2 N=4000 FAULTS=all SOFTGPU_TIMEOUT=1200
case $1 in
cpu) timeout 3600 "$2" >"$log" 2>&1 ;;
*) SHORT=1 timeout 1200 sh tests/on_device.sh "$1" "$2" >"$log" 2>&1 ;;
esac
status=$?
echo "== ${2##*/} on $1: $(tail -n 1 "$log") (status $status)"
END
xargs -n 2 -P "$jobs" sh $build/run.sh <$runs

# gcov's text of all builds, put together.
find $build -name '*.gcda' | while read -r data; do
    $gcov -t -b -c -o "$data" "$data" 2>/dev/null
done | awk -f tests/coverage.awk missed="${MISSED:-}" flux.h -
