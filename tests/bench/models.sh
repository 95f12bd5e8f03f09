# Models of real size beside PyTorch's: row by row the two take turns, ROUNDS times (3 unless set), and the fastest of each counts. A
# ratio above 1 says that ours is faster, or takes less memory. FLUX_NUM_THREADS (1 unless set) goes for both. BF16=1: in bf16.
#     sh tests/bench/models.sh BENCH_MODELS [MODEL[,MODEL...] [WHAT[,WHAT...]]]      (see bench_models.c)
ours=$1; names=${2:-all}; what=$3
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
export FLUX_NUM_THREADS="${FLUX_NUM_THREADS:-1}"
export OMP_NUM_THREADS="$FLUX_NUM_THREADS"
python=${PYTHON:-python3}
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "PyTorch is not installed: ours alone"
    exec "$ours" "$names" ${what:+"$what"}
fi
[ "$names" != all ] || names=resnet18,resnet50,mobilenet,unet,vgg11,gpt2,vit,lstm,tcn,autoencoder
for name in $(echo "$names" | tr , ' '); do
    for round in $(seq "${ROUNDS:-3}"); do
        "$ours" -s "${SECONDS_EACH:-1}" ${BF16:+-b} "$name" ${what:+"$what"} >>"$tmp/ours" || exit 1
        "$python" tests/bench/peer_models.py -s "${SECONDS_EACH:-1}" ${BF16:+-b} "$name" ${what:+"$what"} >>"$tmp/torch" || exit 1
    done
done
awk -v threads="$FLUX_NUM_THREADS" '
    $1 == "model" && $5 == "ms" {
        k = $2 " " $3; who = FILENAME ~ /ours$/ ? 0 : 1
        if (!(k in seen)) { seen[k]; order[++n] = k }
        if (!((who, k) in ms) || $4 < ms[who, k]) ms[who, k] = $4
        if ($6 > mb[who, k]) mb[who, k] = $6
    }
    END {
        printf "%-22s %12s %12s %7s %10s %10s %7s   (threads: %d)\n", "", "ours", "PyTorch", "ratio", "MB", "PyTorch", "ratio", threads
        for (i = 1; i <= n; i++) {
            k = order[i]
            if (!((0, k) in ms) || !((1, k) in ms)) continue
            r = ms[1, k] / ms[0, k]; sum += log(r); all++
            if (all == 1 || r < worst) { worst = r; where = k }
            printf "%-22s %9.2f ms %9.2f ms %7.2f %10.1f %10.1f %7.2f\n", k, ms[0, k], ms[1, k], r, mb[0, k], mb[1, k], mb[1, k] / mb[0, k]
        }
        if (all) printf "geometric mean %.2f, worst %.2f (%s)\n", exp(sum / all), worst, where
    }' "$tmp/ours" "$tmp/torch"
