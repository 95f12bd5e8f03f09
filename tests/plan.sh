# plan.sh GOAL... - what is run for `make test`, test-all, gpu-tests, test-NAME or check-NAME. Prints
# rules for Make, of which each run has one:
#     build/release/tests/test_ops.result: private PROGRAM := build/release/gpu/test_ops
#     build/release/tests/test_ops.result: build/release/gpu/impl.o | start
# A run is named by the file that gets what it says: in $BUILD, tests/test_ops.result and
# tests/check_laws.result are on the processor, short/soft-cuda1/test_ops.result is on a device with
# SHORT=1 in its environment, and long/soft-cuda1/test_ops.result is without; with AFTER=test it is
# what the short one has left out, where there was one (one.sh). The first line says
# what it executes; the second what is built beforehand, lest two runs build it at once, and after
# the bar the runs that must have ended.
# PROGRAM := PROGRAM PART is a run of which only a part is run, or nothing where the part is "-".
# From the Makefile: BUILD; TESTS, CHECKS and ON_DEVICES, files; OWN, those that bring their own
# implementation, and OPENED, those that look into a shared one; DEVICES; ASKED, devices that were named
# by the user; AFTER.

# names FILE...: tests/test_ops.c is test_ops
names() { for file; do file=${file##*/}; echo "${file%.*}"; done; }
# among LIST WORD..., without LIST WORD...: the words that are in the list, or that are not
among() { list=" $(echo $1) "; shift; for w; do case $list in *" $w "*) echo "$w" ;; esac; done; }
without() { list=" $(echo $1) "; shift; for w; do case $list in *" $w "*) ;; *) echo "$w" ;; esac; done; }

tests=$(names $TESTS) checks=$(names $CHECKS)
own=$(names $OWN) opened=$(names $OPENED) on_devices=$(names $ON_DEVICES)
# a test that has fewer cases with SHORT=1
shortened=$([ -z "$ON_DEVICES" ] || names $(grep -l test_left_out $ON_DEVICES))
# one that makes a false back end, for which there must be room
false_ones=$([ -z "$ON_DEVICES" ] || names $(grep -l flux__backend_set $ON_DEVICES))
# These are compiled once, with GPUs, and find none on the processor.
both=$(without "$false_ones" $(among "$on_devices" $own))
[ -n "$DEVICES" ] || both=

# `make test` leaves to `make test-all` what takes minutes: checks that compile much,
# the longest first, lest one be left alone at the end; check_rtc where devices' runs, for which
# it waits, have ended, since make comes back to what had to wait only after all others,
slow='check_ptx check_processors check_mpi check_nccl check_kernels check_compilers check_rtc
      check_windows check_warnings check_gpu_report check_uninitialised check_fuzz_files check_blas
      check_late check_python check_rooms_alone'
# what HIP does as CUDA does, what three devices do as one does, and the long form of tests. Of random
# graphs and shapes HIP does not do more there than CUDA does here.
hip='test_data test_gpu test_trace'
random='test_bits test_picking test_schedule'
several='test_data test_files test_tensors test_trace'
in_short() {
    case $1 in
    soft-hip*) among "$hip" $on_devices ;;
    soft-cuda3) among "$several" $on_devices ;;
    *) echo $on_devices ;;
    esac
}
in_all() {
    all=$on_devices
    case $1 in
    soft-cuda3) all=$(among "$several test_gpu" $on_devices) ;;
    soft-hip*) all=$(without "$random" $on_devices) ;;
    esac
    { among "$shortened" $all; without "$(in_short "$1")" $all; } | sort -u
}
# what `make test-all` runs in its short form alone
short_in_all() { case $1 in soft-hip*) among "$random" $on_devices ;; esac; }
# long_first: the runs of the test that takes longest come before the others, one a line
long_first() { awk '/\/test_gpu$/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'; }
on() { prefix=$1; shift; for w; do echo "$prefix/$w"; done; }
short=$(for d in $DEVICES; do on "short/$d" $(in_short "$d"); done | long_first)
long=$(for d in $DEVICES; do on "long/$d" $(in_all "$d"); on "short/$d" $(short_in_all "$d"); done | long_first)
# Without tcc it is cc that compiles the kernels of software GPUs, 20 ms of processor time each, and
# there are more than ten thousand. Then `make test` leaves to `make test-all` the tests that have
# most of them, but for a part (partly.sh), and what only repeats on HIP and three devices. It still
# runs kernels of every kind: products, convolutions, attention, reductions, sorts, elementwise ones,
# optimisers, and steps that are replayed as graphs.
costly='bits:- data:- expr:- graphs:- layers_conv:conv_gradients layers_seq:attention_gradients
        mixed:half_products_of_special ops:gradients_of_rows picking:sorting print:-
        products:products_of_views schedule:reductions_of_every'
partly= compiler=${SOFTGPU_CC:-tcc}
case " $* " in
*' test-all '*) ;;
*' test '*) command -v "${compiler%% *}" | grep -q tcc || partly=yes ;;
esac
# part_of RUN: what is run of it alone, if anything is left out
part_of() {
    case $partly,$1 in
    yes,short/soft-cuda1/*)
        for c in $costly; do [ "test_${c%:*}" != "${1##*/}" ] || echo "${c#*:}"; done ;;
    yes,short/soft-*/test_trace) ;;
    yes,short/soft-*) echo - ;;
    esac
}
# test_gpu has nothing to do on the processor
processor=$(without "test_softgpu test_softnccl ${DEVICES:+$(among test_gpu $on_devices)}" $tests)
# Without checks, as under sanitizers, the run that takes longest would be left alone at the end: it is the 20th, by when the
# implementation is compiled, for make comes last of all to what has to wait
longest=$([ -n "$checks" ] || echo "$short" | grep '/test_gpu$' | head -n 1)
quick=$(on tests $processor | head -n 19; echo $longest; on tests $processor | tail -n +20
        on tests $(without "$slow" $checks) $(among "test_softgpu test_softnccl" $tests); without "$longest" $short)

# one GOAL FOLDER EXTENSION PREFIX: the name of the test or check that the goal is to run
one() {
    name=$4$(echo "${1#*-}" | tr - _)
    [ -f "$2/$name.$3" ] && echo "$name" && return
    echo "\$(error $1: there is no $2/$name.$3; there are $(cd "$2" && echo $4*.$3))" >&3
}
runs_of() {
    case $1 in
    test) echo "$quick" ;;
    gpu-tests) echo "$short" ;;
    test-all)          # what a long form says, a short one need not; AFTER=test: `make test` has run
        if [ "$AFTER" = test ]; then skipped_before
        else without "$(echo "$long" | sed 's/^long/short/')" $quick
        fi
        echo "$long"
        on tests $(among "$checks" $slow) ;;
    check-*) on tests $(one "$1" tests sh check_) ;;
    test-*)
        name=$(one "$1" tests c test_)
        on tests $name
        for d in $ASKED; do on "long/$d" $name; done ;;
    esac
}
# program RUN, needs RUN: what it executes; what is built before
program() {
    name=${1##*/}
    case $1 in
    */check_*) echo "tests/$name.sh" ;;
    tests/*) [ -n "$(among "$both" "$name")" ] && echo "$BUILD/gpu/$name" || echo "$BUILD/tests/$name" ;;
    *) echo "$BUILD/gpu/$name" ;;
    esac
}
needs() {
    name=${1##*/}
    case $1 in
    */check_*)
        ! grep -qE '^(.*&& )?implementation( |;|$)' "tests/$name.sh" || echo "$BUILD/impl.o"
        ! grep -qE '^inside( \|\||$)' "tests/$name.sh" || echo "$BUILD/opened.o" build/opened/declared.h
        ! grep -qE '^inside gpu' "tests/$name.sh" || echo "$BUILD/gpu/opened.o" build/opened/declared.h ;;
    *)
        in=$(dirname "$(program "$1" | sed 's|/tests/|/|')")
        if [ -n "$(among "$opened" "$name")" ]; then echo "$in/opened.o" build/opened/declared.h
        elif [ -z "$(among "$own" "$name")" ]; then echo "$in/impl.o"
        fi ;;
    esac
    case $1 in */test_softgpu | */test_softnccl | */soft-*) echo softgpu ;; esac
}

# skipped_before: the short runs that `make test` has left out, of those that have no long form
skipped_before() {
    for r in $(without "$(echo "$long" | sed 's/^long/short/')" $short); do
        ! grep -q '^skipped .*; package: tcc$' "$BUILD/$r.result" 2>/dev/null || echo "$r"
    done
}
exec 3>&1
runs=
for goal; do
    of_goal=$(runs_of "$goal")
    echo "$goal:" $(for r in $of_goal; do echo "$BUILD/$r.result"; done)
    runs="$runs $(without "$runs" $of_goal)"
done
echo "RESULTS :=" $(for r in $runs; do echo "$BUILD/$r.result"; done)
# The processor's tests come first, beside the longest run; runs of one program come one after the
# other, for it is built once, and what it writes has the same names; check_rtc takes the kernels
# that devices left.
first=$(among "$(on tests $processor)" $runs)
echo "FIRST :=" $(for r in $first; do echo "$BUILD/$r.result"; done)
before=
for r in $runs; do
    name=${r##*/} wait=start
    [ -n "$(among "$first $longest" "$r")" ] || wait='start $(FIRST)'
    [ "$name" != check_rtc ] || wait='start $(FIRST) $(filter $(BUILD)/short/% $(BUILD)/long/%,$(RESULTS))'
    last=$(for b in $before; do case $b in */"$name") echo "$b" ;; esac; done | tail -n 1)
    before="$before $r"
    echo "$BUILD/$r.result: private PROGRAM := $(program "$r") $(part_of "$r")"
    echo "$BUILD/$r.result:" $(needs "$r") "| $wait" ${last:+"$BUILD/$last.result"}
done
