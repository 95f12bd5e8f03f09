# gpu_day.sh - ten minutes of a GPU that is lent, spent on what is worth most first: each stage has seconds of its own, so that
# none takes what the next ones are to have. What it found is one table, in build/gpu-day/table.md; a card's goes to
# tests/bench/README.md too, under its name.
#     make gpu-day                      CUDA or HIP, whichever is there
#     make gpu-day DEVICE=soft-cuda1    a software GPU, to try this: small sizes, and times that say nothing
# PYTHON (python3) is the one whose PyTorch is measured beside us; ANCHORS a script of more figures, run last if there is time.
cd "$(dirname "$0")/.." || exit 1
make=${MAKE:-make} build=${BUILD:-build/release} python=${PYTHON:-python3} out=build/gpu-day jobs=$(nproc 2>/dev/null || echo 2)
device=$DEVICE
[ -n "$device" ] || { [ -e /dev/nvidia0 ] && device=cuda; } || { [ -e /dev/kfd ] && device=hip; } ||
    { echo "no card here (/dev/nvidia0, /dev/kfd); make gpu-day DEVICE=soft-cuda1 tries all this on a software GPU"; exit 1; }
case $device in soft-*) export SMALL=1 ;; esac
rm -rf "$out"
mkdir -p "$out"
began=$(date +%s)
figures="sh tests/on_device.sh $device $build/gpu/bench/gpu_figures"
unset MAKEFLAGS MAKELEVEL MFLAGS

# stage SECONDS NAME LOG COMMAND...: what became of it is a line of the table
stage() {
    seconds=$1 name=$2 log=$out/$3; shift 3
    start=$(date +%s)
    timeout -k 5 "$seconds" "$@" >"$log" 2>&1; status=$?
    took=$(($(date +%s) - start))
    case $status in
    0) became=done ;;
    124 | 137) became="cut off after $seconds s" ;;
    *) became="FAILED, status $status: see $log"; case $log in "$out"/peer*) ;; *) bad=1 ;; esac ;;
    esac
    echo "$name: $became ($took s)"
}
note() { printf '| %s | %s |\n' "$1" "$2" >>"$out/stages"; }
bad=0

stage 120 "programs built" build.log "$make" -s -j"$jobs" gpu-programs "DEVICES=$device"
chip=$($figures name 2>"$out/name.log") || { echo "no figures: ${chip:-$(tail -n 1 "$out/name.log")}"; exit 1; }
echo "== $chip"

# 1. Is it right? The tests that run on devices, one in so many of their random cases.
rm -rf "$build/short/$device"
stage 200 "suite" suite.log "$make" -k -j"$jobs" gpu-tests "DEVICES=$device"
ended=$(ls "$build/short/$device"/*.result)
note "suite, short" "$became, $took s; $(echo "$ended" | wc -l) programs: $(sh tests/verdict.sh $ended | tail -n 1)"
grep '^FAILED' "$out/suite.log" | head -n 20

# 2. Does it stray? Products in all four orders, a convolution, attention, forward and backward.
for place in "$(command -v compute-sanitizer)" "$CUDA_PATH/bin/compute-sanitizer" /usr/local/cuda/bin/compute-sanitizer; do [ -x "$place" ] && break; place=; done
case $device in *hip*|soft-*) place= ;; esac
stage 40 "results" check.log $figures check
note "products, convolution, attention beside the CPU's" "$became, $(grep -c ^good "$out/check.log") good, $(grep -c ^WRONG "$out/check.log") wrong"
for tool in memcheck racecheck; do
    [ -n "$place" ] || { note "compute-sanitizer $tool" "none here, or none for this device"; continue; }
    stage 45 "compute-sanitizer $tool" "$tool.log" sh tests/on_device.sh "$device" "$place" --tool $tool --error-exitcode 9 "$build/gpu/bench/gpu_figures" check
    note "compute-sanitizer $tool" "$became; $(grep 'SUMMARY' "$out/$tool.log" | tail -n 1 | sed 's/=//g')"
done

# 3. How fast is it? Ours, then PyTorch's, by parts, so that the first ones are whole if time runs out.
have_torch=$("$python" -c 'import torch; print(torch.__version__, "CUDA" if torch.cuda.is_available() else "CPU")' 2>/dev/null) || have_torch=
: >"$out/ours"; : >"$out/peer"
for part in "products add softmax" "convolution attention embedding" steps transfers; do
    file=$(echo "$part" | cut -d' ' -f1)
    stage 40 "$part" "ours-$file" $figures $part
    note "$part" "$became"
    cat "$out/ours-$file" >>"$out/ours"
    [ -n "$have_torch" ] || continue
    stage 40 "$part, PyTorch" "peer-$file" "$python" tests/bench/peer_gpu.py $part
    cat "$out/peer-$file" >>"$out/peer"
done

# 4. How soon does it begin? A process's first training step, with nothing in the cache, and again.
# start_of NAME FILE COMMAND...
start_of() {
    name=$1 file=$2; shift 2
    from=$(date +%s%N)
    timeout 30 "$@" >>"$out/start.log" 2>&1 && printf '%s\t%d\t0\t\n' "$name" "$((($(date +%s%N) - from) / 1000))" >>"$file"
}
for name in "start to first step, cold" "start to first step, warm"; do FLUX_CACHE_DIR=$PWD/$out/cache start_of "$name" "$out/ours" $figures start; done
[ -z "$have_torch" ] || start_of "start to first step, warm" "$out/peer" "$python" tests/bench/peer_gpu.py start

{
    echo "## ${chip#*: }"
    echo
    echo "$(date +%Y-%m-%d), flux.h $(git rev-parse --short HEAD 2>/dev/null), PyTorch ${have_torch:-was not there}."
    echo
    echo "| what | outcome |"; echo "|---|---|"
    cat "$out/stages"
    echo
    echo "| figure | ours, us | rate | PyTorch, us | times as fast | PyTorch's graph, us |"; echo "|---|---|---|---|---|---|"
    awk -F'\t' 'FILENAME ~ /peer$/ { peer[$1] = $2; next }
        NF >= 2 && $2 + 0 > 0 {
            rate = $3 + 0 == 0 ? "" : $4 != "B" ? sprintf("%.1f Tflop/s", $3 / $2 * 1e-6) : $3 / $2 < 1e5 ? sprintf("%.1f GB/s", $3 / $2 * 1e-3) : sprintf("%.2f TB/s", $3 / $2 * 1e-6)
            p = peer[$1]; g = peer[$1 " graph"]
            printf "| %s | %.1f | %s | %s | %s | %s |\n", $1, $2, rate, p == "" ? "" : sprintf("%.1f", p), p == "" ? "" : sprintf("%.2f", p / $2), g == "" ? "" : sprintf("%.1f", g)
        }' "$out/peer" "$out/ours"
} >"$out/table.md"
cat "$out/table.md"

# The newest figures of a chip take the place of its older ones.
if [ -z "$SMALL" ]; then
    awk -v title="$(head -n 1 "$out/table.md")" '/^## / { old = $0 == title } !old' tests/bench/README.md | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$out/readme" &&
        { cat "$out/readme"; echo; cat "$out/table.md"; } >tests/bench/README.md
fi
left=$((570 - $(date +%s) + began))
[ -z "$ANCHORS" ] || [ $left -lt 20 ] || { stage $left "$ANCHORS" anchors.log "$python" "$ANCHORS"; cat "$out/anchors.log"; }
echo "all took $(($(date +%s) - began)) s"
exit $bad
