# fuzz.sh - what `make fuzz` does: random graphs against arithmetic in double, then random bytes for
# each reader, guided by which branches they reach. FUZZ_SECONDS (default 60) is how long each
# takes.
#     FUZZ_SECONDS=600 make fuzz
#     FUZZ_READERS='npy csv' make fuzz      these alone, and no graphs
#     FUZZ_KEEP=1 make fuzz      puts what was found worth it, the smallest first, into the corpus
# of tests/fixtures/fuzz
# What it finds lies in build/fuzz; a file that made a reader fail is named, and `build/fuzz/files
# FILE` runs it again.
test_graphs=$1 seconds=${FUZZ_SECONDS:-60} failed=0
cd "$(dirname "$0")/.." || exit 1
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1

if [ -z "$FUZZ_READERS" ]; then
    seed=$(date +%s)000 end=$(($(date +%s) + seconds))
    while [ "$(date +%s)" -lt "$end" ]; do
        GRAPH_SEED=$seed GRAPHS=500 "$test_graphs" || { failed=1; break; }
        seed=$((seed + 500))
    done
fi

readers=${FUZZ_READERS:-idx npy csv image table gzip npz safetensors torch state preferences formula cache}
mkdir -p build/fuzz
version=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
if ! clang -std=c11 -g -O1 -DFLUX_LIBFUZZER -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=all tests/fuzz_files.c -o build/fuzz/files -lm 2>build/fuzz/log; then
    head -n 3 build/fuzz/log
    echo "fuzz: the readers need clang with -fsanitize=fuzzer; packages: clang libclang-rt-${version:-14}-dev"
    exit 1
fi
for reader in $readers; do
    found=build/fuzz/$reader corpus=tests/fixtures/fuzz/$reader
    mkdir -p "$found" "$corpus"
    echo "== $reader"
    FLUX_FUZZ=$reader build/fuzz/files -max_total_time="$seconds" -max_len=2048 -timeout=20 \
        -rss_limit_mb=2500 -verbosity=0 -print_final_stats=1 -artifact_prefix="build/fuzz/$reader-" \
        "$found" "$corpus" >build/fuzz/log 2>&1 || { failed=1; tail -n 40 build/fuzz/log; }
    grep -E 'number_of_executed_units|new_units_added' build/fuzz/log
    [ -n "$FUZZ_KEEP" ] || continue
    rm -rf build/fuzz/merged && mkdir build/fuzz/merged
    FLUX_FUZZ=$reader build/fuzz/files -merge=1 build/fuzz/merged "$corpus" "$found" >/dev/null 2>&1
    kept=0
    for file in $(ls -Sr build/fuzz/merged); do
        kept=$((kept + $(wc -c <"build/fuzz/merged/$file")))
        [ "$kept" -gt 3000 ] && break
        cp "build/fuzz/merged/$file" "$corpus/$(echo "$file" | cut -c 1-12)"
    done
done
exit $failed
