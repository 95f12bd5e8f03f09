# Several processes: the programs of tests/dist under each MPI whose launcher is here (Debian's openmpi-bin and mpich, side by
# side), on 1, 2, 3, 4 and 7 ranks, by one and the same binary; our declarations against the mpi.h of each.
. tests/check.sh
. tests/ranks.sh

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

# The implementation is compiled once, in failing.c; with -DFLUX_CUDA for the software GPUs below, NCCL being check_nccl.sh's.
export FLUX_NCCL_LIBRARY=none
check "failing compiles" "$CC" -std=c11 -O1 -DFLUX_MPI -DFLUX_CUDA -Dmain=failing -I. -c tests/dist/failing.c -o "$tmp/flux.o" || finish
echo 'int failing(int n, char **v); int main(int n, char **v) { return failing(n, v); }' >"$tmp/failing.c"
check "failing links" "$CC" "$tmp/failing.c" "$tmp/flux.o" -o "$tmp/failing" -lm
for program in collectives training faults; do
    check "$program compiles" "$CC" -std=c11 -O1 -I. "tests/dist/$program.c" "$tmp/flux.o" -o "$tmp/$program" -lm || finish
done
DIST_MEET=$(cd "$tmp" && pwd)/meet

# on LAUNCHER N PROGRAM... : what the ranks say, sorted
on() { launcher=$1 n=$2; ranks "$@" | sort; }
# meanwhile TRACE: whether some collective's data had come before a kernel began that ran before they were needed
meanwhile() {
    awk 'function number(name,  s) { s = $0; return sub(".*\"" name "\":", "", s) ? s + 0 : 0 }
         /"cat":"collective"/ { if (number("ts") + number("dur") < begun) early++; next }
         number("ts") > begun { begun = number("ts") }
         END { exit !early }' "$1" && pass
}
# in_turn TRACE: whether in some step three buckets start, each after products of the backward pass that the one before did not need
in_turn() {
    awk '/"cat":"wait"/ { turns = product = 0 }
         /"cat":"kernel","name":"backward: product/ { product = 1 }
         /"cat":"kernel","name":"allreduce/ { if (product && ++turns > most) most = turns; product = 0 }
         END { exit most < 3 }' "$1" && pass
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
        FLUX_TRACE=$tmp/trace on $launcher $n "$tmp/collectives" >"$tmp/out"; each "$launcher: collectives"
        [ $n != 2 ] || meanwhile "$tmp/trace" || fail "$launcher: no collective's data come while kernels run"
        on $launcher $n "$tmp/training" >"$tmp/out"; each "$launcher: training"
        # one result on all ranks; on one, that of no communicator; again, the same
        [ "$(sed -n 's/.*ok, //p' "$tmp/out" | sort -u | wc -l)" = 1 ] && pass || fail "$launcher: $n ranks end with different parameters"
        [ $n != 1 ] || { [ "$(sed 's/.*ok, //' "$tmp/out")" = "$hash" ] && pass || fail "$launcher: one rank differs from no launcher"; }
        [ $n != 3 ] || cp "$tmp/out" "$tmp/first"
        [ $n != 3 ] || { on $launcher 3 "$tmp/training" >"$tmp/out"
                         cmp -s "$tmp/out" "$tmp/first" && pass || fail "$launcher: two runs on 3 ranks differ"; }
    done
    n=3                                  # as if on machines of their own: data travel while kernels run
    DIST_APART=1 FLUX_TRACE=$tmp/trace on $launcher 3 "$tmp/training" >"$tmp/out"; each "$launcher: training, apart"
    in_turn "$tmp/trace" || fail "$launcher: buckets do not start while the backward pass goes on"
    for rank in 0 1 2; do                # each has a file of its own, of which each collective is an event
        trace=$tmp/trace; [ $rank = 0 ] || trace=$trace.$rank
        grep -q "\"pid\":$((rank + 1)),.*\"name\":\"allreduce sum of [0-9]* f32: [0-9]* us, hidden [0-9]* us\"" "$trace" && pass ||
            fail "$launcher: rank $rank's trace has no collectives"
    done
    cmp -s "$tmp/out" "$tmp/first" && pass || fail "$launcher: ranks that are apart end with other parameters than on one machine"
    for n in 4 3; do                     # begun by four, gone on with by three
        on $launcher $n "$tmp/training" "$([ $n = 4 ] && echo begin || echo go_on)" >"$tmp/out"; each "$launcher: a run goes on"
    done
    told differ 0 'rank 1 on .* calls broadcast of 3 f32' 1 'rank 0 on .* calls allreduce sum of 10 f32' 2 'rank 1 on .* calls broadcast'
    told shape 0 'rank 1 on .* calls allreduce sum of 9 f32' 2 'where rank 2 calls allreduce sum of 10 f32'
    told rule 0 'rank 1 on .* calls allreduce sum of 9 f32'
    told fails 0 'rank 1 on .* calls distributed_end after an error' 1 'reshape: '
    told ends 0 'rank 1 on .* calls distributed_end (collective 1)' 2 'rank 1 on .* calls distributed_end'
    told signal 0 'after step 7, ended with 0' 1 'after step 7, ended with 0' 2 'after step 7, ended with 0'
    told late 0 'within 1 s there has not come rank 1 on' 1 'given up\|came too late' 2 'within 1 s there has not come rank 1 on'
done

# Each call of MPI fails, three at a time, since most of that is waiting.
n=2
for launcher in mpiexec.mpich mpirun.openmpi; do
    have $launcher || continue
    calls=$("$tmp/failing" list | grep -v Comm_size) at=0           # without it the ranks do not know of each other
    for call in $calls; do
        mkdir -p "$tmp/$launcher/$call"
        (whole=$(cd "$tmp" && pwd) tmp=$tmp/$launcher/$call DIST_MEET=$whole/$launcher/$call/meet
         on $launcher 2 "$whole/failing" "$call" >"$tmp/out") &
        at=$((at + 1))
        [ $((at % 3)) != 0 ] || wait
    done
    wait
    for call in $calls; do
        out=$tmp/$launcher/$call/out
        [ "$(grep -ac '^rank [0-9] of [0-9]: ok' "$out")" = 2 ] && pass || { fail "$launcher: MPI_$call fails"; head -n 8 "$out" "${out%out}said"; }
    done
done

# A program that is linked with MPI and has started it.
n=4
for mpi in openmpi mpich; do
    launcher=mpirun.$mpi
    have mpicc.$mpi && have $launcher || { skip "a program linked with MPI: no mpicc.$mpi or no $launcher; packages: lib$mpi-dev, $mpi"; continue; }
    check "given.c compiles with mpicc.$mpi" mpicc.$mpi -std=c11 -O1 -w -I. tests/dist/given.c "$tmp/flux.o" -o "$tmp/given" -lm || continue
    on $launcher 4 "$tmp/given" >"$tmp/out"; each "$launcher: a communicator that is given"
done

# The standard interface of MPI 5, by a library that stands before the real one and knows no other numbers: opened by its name,
# and found in a program that has it already.
n=2
for mpi in openmpi mpich; do
    launcher=mpirun.$mpi library=$(cd "$tmp" && pwd)/$mpi/libmpi_abi.so.1
    have mpicc.$mpi && have $launcher || { skip "MPI 5: no mpicc.$mpi or no $launcher; packages: lib$mpi-dev, $mpi"; continue; }
    mkdir "$tmp/$mpi"
    check "mpi_abi.c with mpicc.$mpi" mpicc.$mpi -std=c11 -O1 -shared -fPIC tests/dist/mpi_abi.c -o "$library" || continue
    for program in collectives training; do
        FLUX_MPI_LIBRARY=$library on $launcher 2 "$tmp/$program" >"$tmp/out"; each "$launcher: $program by MPI 5"
    done
    on $launcher 2 env LD_PRELOAD="$library" "$tmp/collectives" >"$tmp/out"; each "$launcher: collectives by MPI 5, loaded before"
done

# Under the thread sanitizer, with two threads a rank. UCX, MPICH's transport, is kept from calling into threads that the sanitizer
# has ended; Open MPI's TCP takes two locks of its own in either order.
n=2
if ! sanitizing thread; then skip "ranks under the thread sanitizer: it does not work here"
elif check "failing, thread sanitizer" $sanitizer -std=c11 -O0 -g1 -w -fsanitize=thread -DFLUX_MPI -Dmain=failing -I. -c tests/dist/failing.c -o "$tmp/tsan.o"; then
    echo deadlock:mca_btl_tcp >"$tmp/suppressions"
    for program in collectives training; do
        check "$program, thread sanitizer" $sanitizer -std=c11 -O0 -fsanitize=thread -I. "tests/dist/$program.c" "$tmp/tsan.o" -o "$tmp/tsan" -lm || continue
        for launcher in mpirun.openmpi mpiexec.mpich; do
            have $launcher || continue
            UCX_MEM_EVENTS=no FLUX_NUM_THREADS=2 TSAN_OPTIONS="suppressions=$tmp/suppressions" on $launcher 2 "$tmp/tsan" >"$tmp/out"
            each "$launcher: $program, thread sanitizer"
            ! grep -q 'WARNING: ThreadSanitizer' "$tmp/said" && pass || { fail "$launcher: $program has races"; grep -m 1 -A 12 WARNING "$tmp/said"; }
        done
    done
fi

# On GPUs made of software, each rank on the one of its number: gradients travel by way of host memory.
n=2 launcher=mpiexec.mpich
if have $launcher && check "software GPUs" env MAKEFLAGS= make -s CC="$CC" softgpu; then
    through="sh tests/on_device.sh soft-cuda3"
    on $launcher 2 "$(cd "$tmp" && pwd)/training" >"$tmp/out"
    through=
    each "training on two GPUs"
fi

# "Machines": network namespaces with addresses and host names of their own. Training is Open MPI's, since MPICH 4.0 on UCX's
# TCP need not return from MPI_Finalize: a rank that has left no longer answers what another asks before it leaves. The last
# machine's cable is slow while they train, where the kernel can do that; it is cut under MPICH, which must not take them for one.
machines() {
    [ "$(id -u)" = 0 ] && have ip && have unshare && have mpirun.openmpi && have mpiexec.mpich || return 1
    ip link add flux-bridge type bridge 2>/dev/null || return 1
    ip link set flux-bridge up
    for i in 0 1 2; do
        ip netns add flux-$i && ip link add flux-v$i type veth peer name eth0 netns flux-$i && ip link set flux-v$i master flux-bridge up &&
            ip -n flux-$i addr add 10.77.0.$((i + 1))/24 dev eth0 && ip -n flux-$i link set eth0 up && ip -n flux-$i link set lo up || return 1
    done 2>/dev/null
}
no_machines() {
    for i in 0 1 2; do ip netns del flux-$i; ip link del flux-v$i; done
    ip link del flux-bridge
} 2>/dev/null
if machines; then
    trap no_machines EXIT
    # as ssh would, on the machine of this address
    printf 'i=$((${1##*.} - 1)); shift; exec ip netns exec flux-$i unshare --uts sh -c "hostname node$i; $*"\n' >"$tmp/ssh"
    ip netns exec flux-2 tc qdisc add dev eth0 root netem delay 2ms 2>/dev/null
    n=3
    rm -rf "$DIST_MEET" && mkdir "$DIST_MEET"
    TMPDIR=$DIST_MEET timeout 120 sh "$tmp/ssh" 10.77.0.1 exec mpirun.openmpi --mca plm_rsh_agent "'sh $(cd "$tmp" && pwd)/ssh'" --mca pml ob1 \
        --mca btl tcp,self -H 10.77.0.1,10.77.0.2,10.77.0.3 "$(cd "$tmp" && pwd)/training" 2>"$tmp/said" | sort >"$tmp/out"
    each "three machines: training"
    cmp -s "$tmp/out" "$tmp/first" && pass || fail "three machines end with other parameters than one"
    ip netns exec flux-2 tc qdisc del dev eth0 root 2>/dev/null
    launcher=mpiexec.mpich
    export MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self
    printf 'exec ip netns exec flux-$PMI_RANK unshare --uts sh -c "hostname node$PMI_RANK; exec \"\$@\"" sh "$@"\n' >"$tmp/machine"
    told_on() { on $launcher 3 sh "$tmp/machine" "$tmp/faults" "$@" >"$tmp/out"; }
    rm -f faults.go
    { while [ ! -f faults.go ]; do sleep 0.2; done; sleep 1; ip link set flux-v2 down; } & cutter=$!
    told_on cut
    kill $cutter 2>/dev/null; rm -f faults.go
    for rank in 0 1; do
        grep -q "^rank $rank: .*within 1 s \(there has not come\|no data came from\) rank 2 on node2; .*; saved" "$tmp/out" && pass ||
            { fail "rank $rank is told that rank 2 was cut off"; head -n 5 "$tmp/out" | cut -c 1-300; }
    done
    unset MPIR_CVAR_NOLOCAL UCX_TLS
else
    no_machines
    skip "no machines of network namespaces: needs root, the packages iproute2, openmpi-bin and mpich, and a kernel that has bridges"
fi

# started by one MPI while FLUX_MPI_LIBRARY is the other's: every process finds itself alone
if have mpirun.openmpi && have mpiexec.mpich; then
    mpich=$(ls /usr/lib/*/libmpich.so.12 2>/dev/null | head -n 1)
    FLUX_MPI_LIBRARY=$mpich on mpirun.openmpi 2 "$tmp/training" >"$tmp/out"
    grep -q 'launcher of Open MPI has started 2 processes, but .*libmpich.* knows of one only: set FLUX_MPI_LIBRARY' "$tmp/said" && pass ||
        { fail "a stranger's launcher is not told"; head -n 5 "$tmp/said"; }
fi
finish
