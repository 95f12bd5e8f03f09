# Several processes: the programs of tests/dist under each MPI whose launcher is here (Debian's openmpi-bin and mpich, side by
# side), on 1, 2, 3, 4 and 7 ranks, by one and the same binary; our declarations against the mpi.h of each.
. tests/check.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 FLUX_NUM_THREADS=1

# declared NAME HEADER... : compares the declarations with the first header that is there, and the numbers
declared() {
    name=$1 package=$2; shift 2
    for header in "$@"; do
        [ -f "$header" ] || continue
        check "declarations of $name" "$CXX" -std=c++11 -w -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -I. -isystem "${header%/mpi.h}" \
            tests/dist/declarations.cc -o "$tmp/declarations" -lm && check "numbers of $name" "$tmp/declarations"
        return
    done
    skip "declarations of $name: no mpi.h on this machine; package: $package"
}
if have "$CXX"; then
    declared "Open MPI" libopenmpi-dev /usr/lib/*/openmpi/include/mpi.h
    declared MPICH libmpich-dev /usr/include/*/mpich/mpi.h /usr/lib/*/mpich/include/mpi.h
fi

for program in collectives training faults; do
    check "$program compiles" "$CC" -std=c11 -O1 -DFLUX_MPI -I. "tests/dist/$program.c" -o "$tmp/$program" -lm || finish
done

# on LAUNCHER N PROGRAM... : what the ranks say, sorted
on() {
    launcher=$1 n=$2; shift 2
    case $launcher in *openmpi) set -- --oversubscribe -np "$n" "$@" ;; *) set -- -n "$n" "$@" ;; esac
    timeout 120 "$launcher" "$@" 2>"$tmp/said" | sort
}
# each NAME: fails unless every one of the n ranks says ok; what the ranks say is in $tmp/out
each() {
    [ "$(grep -c "^rank [0-9]* of $n: ok" "$tmp/out")" = "$n" ] && pass ||
        { fail "$1 on $n ranks"; head -n 8 "$tmp/out" "$tmp/said" | cut -c 1-300; }
}
# told MODE RANK TEXT...: in this mode of faults.c, the rank says so, and can still save
told() {
    on "$launcher" 3 "$tmp/faults" "$1" >"$tmp/out"
    mode=$1; shift
    while [ $# -gt 0 ]; do
        grep -q "^rank $1: .*$2.*; saved" "$tmp/out" && pass ||
            { fail "$launcher: faults $mode: rank $1 is told \"$2\""; head -n 5 "$tmp/out" | cut -c 1-300; }
        shift 2
    done
}

n=1
for program in collectives training; do
    "$tmp/$program" >"$tmp/out" 2>"$tmp/said"; each "$program without a launcher"
done
hash=$(sed 's/.*ok, //' "$tmp/out")
for launcher in mpirun.openmpi mpiexec.mpich; do
    have $launcher || { skip "no $launcher on this machine; package: $([ $launcher = mpirun.openmpi ] && echo openmpi-bin || echo mpich)"; continue; }
    for n in 1 2 3 4 7; do
        on $launcher $n "$tmp/collectives" >"$tmp/out"; each "$launcher: collectives"
        on $launcher $n "$tmp/training" >"$tmp/out"; each "$launcher: training"
        # one result on all ranks; on one, that of no communicator; again, the same
        [ "$(sed -n 's/.*ok, //p' "$tmp/out" | sort -u | wc -l)" = 1 ] && pass || fail "$launcher: $n ranks end with different parameters"
        [ $n != 1 ] || { [ "$(sed 's/.*ok, //' "$tmp/out")" = "$hash" ] && pass || fail "$launcher: one rank differs from no launcher"; }
        [ $n != 3 ] || { cp "$tmp/out" "$tmp/first"; on $launcher 3 "$tmp/training" >"$tmp/out"
                         cmp -s "$tmp/out" "$tmp/first" && pass || fail "$launcher: two runs on 3 ranks differ"; }
    done
    told differ 0 'rank 1 on .* calls broadcast of 3 f32' 1 'rank 0 on .* calls allreduce sum of 10 f32' 2 'rank 1 on .* calls broadcast'
    told shape 0 'rank 1 on .* calls allreduce sum of 9 f32' 2 'where rank 2 calls allreduce sum of 10 f32'
    told rule 0 'rank 1 on .* calls allreduce sum of 9 f32'
    told fails 0 'rank 1 on .* calls distributed_end after an error' 1 'reshape: '
    told ends 0 'rank 1 on .* calls distributed_end (collective 1)' 2 'rank 1 on .* calls distributed_end'
    told late 0 'within 1 s there has not come rank 1 on' 1 'given up\|came too late' 2 'within 1 s there has not come rank 1 on'
done

# started by one MPI while FLUX_MPI_LIBRARY is the other's: every process finds itself alone
if have mpirun.openmpi && have mpiexec.mpich; then
    mpich=$(ls /usr/lib/*/libmpich.so.12 2>/dev/null | head -n 1)
    FLUX_MPI_LIBRARY=$mpich on mpirun.openmpi 2 "$tmp/training" >"$tmp/out"
    grep -q 'launcher of Open MPI has started 2 processes, but .*libmpich.* knows of one only: set FLUX_MPI_LIBRARY' "$tmp/said" && pass ||
        { fail "a stranger's launcher is not told"; head -n 5 "$tmp/said"; }
fi
finish
