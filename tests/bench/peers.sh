# Our matrix products, convolutions and training steps beside those of whichever peers are installed: each library is a process of
# its own (but for products and convolutions), they take turns, and a ratio above 1 says that ours is faster. FLUX_NUM_THREADS (1
# unless set) goes for all of them; ROUNDS is the turns.
#     sh tests/bench/peers.sh CC OURS...   OURS: bench_steps and others, compiled
cc=$1; shift
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
export FLUX_NUM_THREADS="${FLUX_NUM_THREADS:-1}"
export OPENBLAS_NUM_THREADS="$FLUX_NUM_THREADS" OMP_NUM_THREADS="$FLUX_NUM_THREADS"
# an old OpenBLAS takes a processor that it does not know for one without AVX-512
[ -n "$OPENBLAS_CORETYPE" ] || ! grep -qs avx512dq /proc/cpuinfo || export OPENBLAS_CORETYPE=SkylakeX

peers=
blas=$(pkg-config --cflags --libs openblas 2>/dev/null) || blas=-lopenblas
if $cc -O3 -march=native -fno-math-errno tests/bench/peer_steps_openblas.c $blas -lm -o "$tmp/openblas" 2>/dev/null; then
    printf '%s\n' "$tmp/openblas" >"$tmp/OpenBLAS.run"
    peers="$peers OpenBLAS"
    $cc -std=c11 -O2 -DHAVE_CBLAS tests/bench/bench_matmul.c $blas -lm -o "$tmp/products" && "$tmp/products" || exit 1
else
    echo "OpenBLAS is not installed: no step by hand"
fi
if $cc -std=c11 -O2 -DHAVE_DNNL tests/bench/bench_conv.c -ldnnl -lm -o "$tmp/convolutions" 2>/dev/null; then
    "$tmp/convolutions" || exit 1
else
    echo "oneDNN is not installed (libdnnl-dev): no convolutions beside it"
fi
if python3 -c 'import torch' 2>/dev/null; then
    echo "python3 tests/bench/peer_steps.py" >"$tmp/PyTorch.run"
    peers="$peers PyTorch"
else
    echo "PyTorch is not installed"
fi
if ${CXX:-c++} -std=c++17 -O2 -w -I/usr/include/torch/csrc/api/include tests/bench/peer_cnn_libtorch.cc -ltorch -ltorch_cpu -lc10 -o "$tmp/cnn" 2>/dev/null; then
    printf '%s\n' "$tmp/cnn" >"$tmp/libtorch.run"
    peers="$peers libtorch"
else
    echo "libtorch is not installed (libtorch-dev): no CNN beside it"
fi
[ -n "$peers" ] || exit 0

for round in $(seq "${ROUNDS:-5}"); do
    for ours; do "$ours" >>"$tmp/ours.out" || exit 1; done
    for peer in $peers; do sh "$tmp/$peer.run" >>"$tmp/$peer.out" || exit 1; done
done
# of each library the middle of its medians, and the fastest step of all
for peer in $peers; do
    awk -v peer="$peer" '
        function middle(list, n,   a, i, j, t) {
            n = split(list, a, " ")
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
            return a[int((n + 1) / 2)]
        }
        /^step/ {
            us = $0; sub(/ us .*/, "", us); name = us; sub(/ +[0-9.]+$/, "", name); sub(/.* /, "", us)
            best = $0; sub(/.*fastest /, "", best); sub(/[^0-9.].*/, "", best)
            k = (FILENAME ~ /ours/) SUBSEP name
            median[k] = median[k] " " us
            if (!(k in fast) || best + 0 < fast[k]) fast[k] = best + 0
            if (FILENAME !~ /ours/ && !(name in seen)) { seen[name]; order[++n] = name }
        }
        END {
            for (i = 1; i <= n; i++) {
                name = order[i]; a = middle(median[1 SUBSEP name]); b = middle(median[0 SUBSEP name])
                printf "%-48s %-9s %9.1f us, ours %9.1f: %.2f   (fastest %.1f, %.1f: %.2f)\n", name, peer, b, a, b / a,
                       fast[0 SUBSEP name], fast[1 SUBSEP name], fast[0 SUBSEP name] / fast[1 SUBSEP name]
            }
        }' "$tmp/ours.out" "$tmp/$peer.out"
done
