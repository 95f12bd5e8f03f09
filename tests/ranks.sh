# ranks.sh - what check_mpi.sh and check_nccl.sh have in common, which source it after check.sh: programs on ranks that wait for
# each other and let others on meanwhile, as there are more of them than processors, and other tests beside. Open MPI's do by a
# setting, MPICH's by tests/dist/idle.c.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 FLUX_NUM_THREADS=1 DIST_MEET
idle=$(cd "$tmp" && pwd)/idle.so through=
check "idle.c compiles" "$CC" -std=c11 -O1 -shared -fPIC tests/dist/idle.c -o "$idle" -ldl

# ranks LAUNCHER N PROGRAM...: what they say. $through: words that run a launcher otherwise. Open MPI's launchers that start at once and
# share a folder for their files can fail, so each has its own.
ranks() {
    launcher=$1 n=$2; shift 2
    rm -rf "$DIST_MEET" && mkdir "$DIST_MEET"
    case $launcher in *openmpi) set -- --oversubscribe -np "$n" "$@" ;; *) set -- -genv LD_PRELOAD "$idle" -n "$n" "$@" ;; esac
    TMPDIR=$DIST_MEET timeout 200 $through "$launcher" "$@" 2>"$tmp/said"
}
# each NAME: fails unless every one of the n ranks says ok; what the ranks say is in $tmp/out
each() {
    [ "$(grep -c "^rank [0-9]* of $n: ok" "$tmp/out")" = "$n" ] && pass ||
        { fail "$1 on $n ranks"; head -n 8 "$tmp/out" "$tmp/said" | cut -c 1-300; }
}
