# Collectives of GPUs: tests/dist/nccl.c and training.c by the software NCCL and RCCL on software GPUs, under each MPI whose
# launcher is here; our declarations against the makers' nccl.h and rccl.h.
. tests/check.sh
. tests/ranks.sh

# declared NAME HEADER PACKAGE DEFINE FOLDER...: compiles the comparison with the first folder that has the header
declared() {
    name=$1 header=$2 package=$3 define=$4; shift 4
    for folder in "$@"; do
        [ -f "$folder/$header" ] || continue
        check "$name: $folder" "$CXX" -std=c++17 -w -fsyntax-only -DFLUX_MPI -D"$define" -I. -isystem "$folder" $also tests/dist/nccl.cc
        return
    done
    skip "$name: no $header on this machine; package: $package"
}
if have "$CXX"; then
    also=$(for f in "$CUDA_PATH/include" "$CUDA_HOME/include" /usr/local/cuda/include /usr/local/cuda-*/include; do
               [ ! -f "$f/cuda_runtime.h" ] || echo "-isystem $f"; done | head -n 1)
    declared "NCCL's declarations" nccl.h libnccl-dev FLUX_CUDA "$CUDA_PATH/include" "$CUDA_HOME/include" /usr/local/cuda/include \
        /usr/local/cuda-*/include /usr/local/include /usr/include
    also=
    declared "RCCL's declarations" rccl/rccl.h librccl-dev FLUX_HIP "$ROCM_PATH/include" /opt/rocm/include /usr/include
fi

check "software GPUs" env MAKEFLAGS= make -s CC="$CC" softgpu || finish
soft=$PWD/build/softgpu
export FLUX_NCCL_LIBRARY="$soft/libnccl.so.2" FLUX_RCCL_LIBRARY="$soft/librccl.so.1" SOFTNCCL_TIMEOUT=3 SOFTNCCL_FOLDER
SOFTNCCL_FOLDER=$(cd "$tmp" && pwd)
# the implementation is compiled once, in nccl.c: with all back ends, optimised, and so the place where gcc is asked for its
# warnings of these (check_warnings.sh has it read them)
check "nccl compiles" "$CC" -std=c11 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef -Werror -DFLUX_MPI -DFLUX_CUDA -DFLUX_HIP -Dmain=nccl -I. -c tests/dist/nccl.c -o "$tmp/flux.o" || finish
echo 'int nccl(int n, char **v); int main(int n, char **v) { return nccl(n, v); }' >"$tmp/nccl.c"
check "nccl links" "$CC" "$tmp/nccl.c" "$tmp/flux.o" -o "$tmp/nccl" -lm
check "training compiles" "$CC" -std=c11 -O1 -I. tests/dist/training.c "$tmp/flux.o" -o "$tmp/training" -lm || finish
DIST_MEET=$SOFTNCCL_FOLDER/meet

# on LAUNCHER N DEVICES PROGRAM...: what the ranks say, sorted
on() {
    launcher=$1 n=$2 devices=$3; shift 3
    case $devices in *hip*) export FLUX_GPU_BACKEND=AMDGPU ;; *) export FLUX_GPU_BACKEND=CUDA ;; esac
    through="sh tests/on_device.sh $devices"
    ranks "$launcher" "$n" "$@" | grep -a '^rank' | sort
}
# told WHAT RANK TEXT...: the rank says so, and can still save
told() {
    what=$1; shift
    while [ $# -gt 0 ]; do
        grep -q "^rank $1: told .*$2.*; saved" "$tmp/out" && pass ||
            { fail "$launcher: $what: rank $1 is told \"$2\""; head -n 5 "$tmp/out" | cut -c 1-300; }
        shift 2
    done
}

# one rank, without a launcher
n=1
for devices in soft-cuda1 soft-hip2; do
    case $devices in *hip*) backend=AMDGPU ;; *) backend=CUDA ;; esac
    FLUX_GPU_BACKEND=$backend sh tests/on_device.sh $devices "$tmp/nccl" one >"$tmp/out" 2>"$tmp/said"; each "alone, $devices"
done

# What trains has no more to do with MPI: three ranks are Open MPI's, and what two do by MPICH is not done again where three by
# Open MPI follow.
threes=mpirun.openmpi
have $threes || threes=mpiexec.mpich
for launcher in mpirun.openmpi mpiexec.mpich; do
    have $launcher || { skip "no $launcher on this machine; package: $([ $launcher = mpirun.openmpi ] && echo openmpi-bin || echo mpich)"; continue; }
    n=2
    for devices in soft-cuda3 soft-hip2; do
        for mode in works overlap; do on $launcher 2 $devices "$tmp/nccl" $mode >"$tmp/out"; each "$launcher, $devices: $mode"; done
    done
    if [ $launcher = mpiexec.mpich ] || ! have mpiexec.mpich; then
        for devices in soft-cuda3 soft-hip2; do on $launcher 2 $devices "$tmp/nccl" replay >"$tmp/out"; each "$launcher, $devices: replay"; done
        on $launcher 2 soft-hip2 "$tmp/training" >"$tmp/out"; each "soft-hip2: training"
        [ "$(sed -n 's/.*ok, //p' "$tmp/out" | sort -u | wc -l)" = 1 ] && pass || fail "soft-hip2: ranks end with different parameters"
    fi
    [ $launcher != $threes ] || {
        n=3
        for mode in works replay; do on $launcher 3 soft-cuda3 "$tmp/nccl" $mode >"$tmp/out"; each "$launcher: $mode"; done
        on $launcher 3 soft-cuda3 "$tmp/training" >"$tmp/first"
        on $launcher 3 soft-cuda3 "$tmp/training" >"$tmp/out"; each "training"
        [ "$(sed -n 's/.*ok, //p' "$tmp/out" | sort -u | wc -l)" = 1 ] && pass || fail "soft-cuda3: ranks end with different parameters"
        cmp -s "$tmp/out" "$tmp/first" && pass || fail "two runs on 3 ranks differ"
    }
    # two ranks share a GPU: NCCL refuses, and MPI does it all; by name it is an error
    n=2
    on $launcher 2 soft-cuda1 "$tmp/nccl" shape >"$tmp/out"
    told "one GPU for two" 0 'distributed: ncclCommInitRankConfig: invalid usage' 1 'distributed: nccl'
    FLUX_NCCL_LIBRARY=none on $launcher 2 soft-cuda3 "$tmp/nccl" shape >"$tmp/out"
    told "no library" 0 'no NCCL: FLUX_NCCL_LIBRARY: none' 1 'no NCCL'

    on $launcher 2 soft-cuda3 "$tmp/nccl" differ >"$tmp/out"
    told differ 0 'rank 1 on .* calls allreduce sum of 10 f32 (collective 1).* calls allreduce sum of 10 f32 on a GPU' 1 'where rank 1 calls'
    on $launcher 2 soft-cuda3 "$tmp/nccl" shape >"$tmp/out"
    told shape 0 'rank 1 on .* calls allreduce sum of 9 f32 on a GPU' 1 'where rank 1 calls'
    SOFTNCCL_HANG=1:1 on $launcher 2 soft-cuda3 "$tmp/nccl" hangs >"$tmp/out"
    told hangs 0 'within 1 s no data came from any rank' 1 'within 1 s no data came from any rank'
    SOFTNCCL_HANG=1:14 on $launcher 2 soft-cuda3 "$tmp/nccl" late >"$tmp/out"        # with later steps behind it
    told late 0 'within 1 s no data came from any rank' 1 'within 1 s no data came from any rank'
    on $launcher 2 soft-cuda3 "$tmp/nccl" launch >"$tmp/out"
    told launch 0 'rank 1 on .* given up at collective [0-9]*, where its own part has failed' 1 'launching the graph of it: invalid argument'
done

# Each call of NCCL fails, three at a time, each with folders of its own, since most of that is waiting.
n=2 at=0
have mpiexec.mpich && launcher=mpiexec.mpich || launcher=mpirun.openmpi
if have $launcher; then
    calls=$("$tmp/nccl" fails list) whole=$SOFTNCCL_FOLDER
    for call in $calls; do
        mkdir "$tmp/$call"
        (tmp=$whole/$call SOFTNCCL_FOLDER=$whole/$call DIST_MEET=$whole/$call/meet
         on $launcher 2 soft-cuda3 "$whole/nccl" fails "$call" >"$tmp/out") &
        at=$((at + 1))
        [ $((at % 3)) != 0 ] || wait
    done
    wait
    for call in $calls; do
        cp "$tmp/$call/out" "$tmp/out"
        case $call in
        CommFinalize | CommDestroy) told "nccl$call fails" 0 nothing 1 nothing ;;
        Comm*) told "nccl$call fails" 0 'distributed: ' 1 'distributed: nccl.*internal error' ;;
        GetUniqueId) told "nccl$call fails" 0 'ncclGetUniqueId: internal error' 1 'ncclGetUniqueId: internal error' ;;
        *) told "nccl$call fails" 0 'rank 1 on .* given up at collective [0-9], where its own part has failed' 1 "collective [0-9]: nccl$call: internal error" ;;
        esac
    done
fi

# Under the thread sanitizer, with two threads a rank; see check_mpi.sh for what is let pass.
if ! sanitizing thread; then skip "NCCL under the thread sanitizer: it does not work here"
elif have $launcher && check "nccl, thread sanitizer" $sanitizer -std=c11 -O0 -g1 -w -fsanitize=thread -DFLUX_MPI -DFLUX_CUDA -I. \
        tests/dist/nccl.c -o "$tmp/tsan" -lm; then
    echo deadlock:mca_btl_tcp >"$tmp/suppressions"
    for mode in overlap replay; do
        UCX_MEM_EVENTS=no FLUX_NUM_THREADS=2 TSAN_OPTIONS="suppressions=$tmp/suppressions" on $launcher 2 soft-cuda3 "$tmp/tsan" $mode >"$tmp/out"
        each "$launcher: $mode, thread sanitizer"
        ! grep -q 'WARNING: ThreadSanitizer' "$tmp/said" && pass || { fail "$launcher: $mode has races"; grep -m 1 -A 12 WARNING "$tmp/said"; }
    done
fi
finish
