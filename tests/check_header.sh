# The header's own words are true: the contents list names the rooms as they stand, lines are no longer than they
# should be, and the examples in the manual and in README.md compile without a warning and do what they say.
. tests/check.sh
tmp=$(cd "$tmp" && pwd)

# Rooms: "/* ----...---- graph/views.h" and, in the manual after CONTENTS, "graph/ ... views ..."
grep -oE '^/\* -{60,} [a-z]+/[a-z0-9_]+\.h$' flux.h | sed -E 's/^\/\* -+ //; s/\.h$//' >"$tmp/rooms"
sed -n '/^ *CONTENTS$/,/^\*\//p' flux.h | awk '/^     [a-z ]/ { for (i = 1; i <= NF; i++) if ($i ~ /\/$/) folder = $i; else print folder $i }' >"$tmp/contents"
[ "$(wc -l <"$tmp/rooms")" -ge 110 ] && pass || fail "only $(wc -l <"$tmp/rooms") rooms"
check "the contents list names the rooms in their order" diff "$tmp/contents" "$tmp/rooms"

# no_more NAME COUNT: a list that should be empty stands in $tmp/list
no_more() { if [ -s "$tmp/list" ]; then fail "$1"; head -n 5 "$tmp/list"; else pass; fi; }
# Lines have at most 100 columns, but for rows of tables and macros (180).
awk '{ row = macro || /\\$/ || /^ *(X\(|FLUX__|[{#]|-?[0-9]+\.)/; most = row || FILENAME ~ /^src\/flux.h/ ? 180 : 100; macro = /\\$/ }
    length($0) > most { print FILENAME ":" FNR ": " length($0) " columns" }' src/flux.h src/*/*.h flux_cuda.h flux_hip.h >"$tmp/list"
no_more "lines that are too long"
grep -nE "$(printf '\t')| $" flux.h >"$tmp/list"
no_more "tabs or blanks at line ends"

# One rule for what stands behind a macro: behind flux_NAME it is flux_NAME_with.
cat src/api/*.h | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' | awk '/^#define flux_[a-z0-9_]+\(/ {
    name = $2; sub(/\(.*/, "", name); rest = $0
    while (match(rest, name "_[a-z0-9_]+\\(")) {
        if (substr(rest, RSTART, RLENGTH) != name "_with(") print name " calls " substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH) } }' >"$tmp/list"
no_more "macros whose functions do not end in _with"

# The manual names each variable of the environment that the code reads, and no other: under ENVIRONMENT, where lines of that
# list begin with names and two blanks end them. No other text lists them.
grep -ohE '(flux__env|getenv|flux__roc_find)\("[A-Z_]+"|"[A-Z]+_VISIBLE_DEVICES"|"GPU_DEVICE_ORDINAL"|\{ "[A-Z_]+", FLUX__MPI_' flux*.h |
    sed 's/, FLUX__MPI_//' | grep -oE '[A-Z][A-Z_]+' | sort -u >"$tmp/read"
sed -n '/^ *ENVIRONMENT$/,/^ *CONTENTS$/s/^       \([A-Z][A-Z_]\)/\1/p' flux.h | sed 's/  .*//; s/=[^,]*//g' |
    grep -oE '[A-Z][A-Z_]+' | sort -u >"$tmp/told"
[ "$(wc -l <"$tmp/read")" -ge 30 ] && pass || fail "only $(wc -l <"$tmp/read") environment variables are read"
check "the manual has the environment variables that are read" diff "$tmp/read" "$tmp/told"

# Options: each field of a type with a mark gets it from the macro beside its struct; a plain number's default is 0, or it must
# be given, so that 0 means the same whether it is written or not. One that is new here has to be thought about.
tr '\n' ' ' <flux.h | sed 's|/\*[^*]*\*/||g; s/typedef struct flux_/\n&/g' | grep '^typedef struct flux_[a-z_]*opts {' | sed 's/} .*//' |
    sed 's/FLUX__RENAMED(\([a-z_0-9]*\), \([a-z_]*\), [a-z_]*)/\1 \2/g; s/FLUX__[A-Z]*//g; s/typedef struct \([a-z_]*\) {/\1;/' >"$tmp/structs"
# fields TYPES: "struct field" for each field of these types
fields() {
    awk -F';' -v types="$1" '{ for (i = 2; i <= NF; i++) {
        if (match($i, "^ *(" types ") ") == 0) continue;
        n = split(substr($i, RLENGTH + 1), name, ",");
        for (k = 1; k <= n; k++) { gsub(/[ ]|\[.*/, "", name[k]); print $1, name[k] } } }' "$tmp/structs" | sort
}
fields 'flux__(double|double2|int|int64|uint64|switch)' >"$tmp/marked"
sed -n '/^#define FLUX__LEFT_OUT_/{:more
/\\$/{N;b more
};s/\n//g;p
}' flux.h | awk '{ name = substr($2, length("FLUX__LEFT_OUT_") + 1); while (match($0, /\.[a-z_0-9]+ =/)) {
    f = substr($0, RSTART + 1, RLENGTH - 3); $0 = substr($0, RSTART + RLENGTH); if (f != "marked") print name, f } }' | sort >"$tmp/marks"
[ "$(wc -l <"$tmp/marked")" -ge 60 ] && pass || fail "only $(wc -l <"$tmp/marked") options with a mark were found"
check "each option with a mark has it from its macro" diff "$tmp/marked" "$tmp/marks"
fields 'double|int|int64_t|uint64_t|flux_switch' | sed 's/ d[0-7]$/ d/' | uniq | tr '\n' ',' >"$tmp/plain"
plain='flux_bilinear_opts in1,flux_bilinear_opts in2,flux_bilinear_opts out,flux_conv_layer_opts in,flux_conv_layer_opts out'
plain="$plain,flux_distributed_opts *argc"
plain="$plain,flux_dropout_opts p,flux_embedding_opts in,flux_embedding_opts out,flux_embeddingbag_opts in,flux_embeddingbag_opts out"
plain="$plain,flux_get_device_opts id,flux_groupnorm_opts channels,flux_groupnorm_opts groups,flux_init_opts mean,flux_init_opts shift"
plain="$plain,flux_init_opts sparsity,flux_loader_opts rank,flux_loader_opts workers,flux_loss_opts dim"
plain="$plain,flux_multiheadattention_opts dropout,flux_multiheadattention_opts in,flux_multiheadattention_opts rotary,flux_norm_opts channels,flux_positionembedding_opts features"
plain="$plain,flux_positionembedding_opts steps,flux_recurrent_opts in,flux_recurrent_opts out,flux_reduce_opts d,flux_root_opts root,flux_sort_opts dim,flux_swiglu_opts hidden,flux_swiglu_opts in,flux_upsample_opts scale,"
[ "$(cat "$tmp/plain")" = "$plain" ] && pass || { fail "plain numbers among the options:"; cat "$tmp/plain"; echo; }

# Examples: the manual's as it stands, by clang where it is, to which -O0 is a fifth of gcc's work; from README.md every block of C and the third column of the table from PyTorch and Flux,
# beside the implementation that is there. What README.md says that its program prints is what it prints, but for the last
# digits on processors that have other sums.
implementation
sed -n '/A first program/,/^   HOW IT WORKS/p' flux.h | sed -n '/#define FLUX_IMPLEMENTATION/,/^       }$/p' | sed 's/^       //' >"$tmp/manual.c"
awk -v dir="$tmp" '/^```c$/ { file = dir "/readme" ++n ".c"; next } /^```$/ { file = file || said ? "" : dir "/readme.said"; said = said || file; next }
                   file { print > file }' README.md
{
    printf '#include "flux.h"\nint main(void) {\n    const int32_t digit[64] = { 0 };\n'
    printf '    flux_tensor *W = flux_randn(10, 784), *bias = flux_zeros(10), *y = flux_onehot(flux_from(digit, 64), 10);\n'
    sed -n '/^| PyTorch | Flux | flux.h |$/,/^$/p' README.md | sed -n 's/^|.*|.*| `\(.*\)` |$/    \1/p' | sed 's/)$/);/' | tee "$tmp/rows"
    printf '    return flux_failed();\n}\n'
} >"$tmp/readme.table.c"
[ "$(wc -l <"$tmp/rows")" = 12 ] && pass || fail "README.md's table from PyTorch and Flux has $(wc -l <"$tmp/rows") lines, not 12"
for source in "$tmp/manual.c" "$tmp"/readme*.c; do
    name=$(basename "$source")
    [ -s "$source" ] && grep -q 'int main' "$source" || { fail "$name: no program"; continue; }
    with= cc=$CC
    if [ "$name" != manual.c ]; then with=$impl; sed -i '/define FLUX_IMPLEMENTATION/d' "$source"
    elif have clang; then cc=clang
    fi
    check "$name: compiles without a warning" $cc -std=c11 -Wall -Wextra -Wpedantic -Werror -O0 -I. "$source" $with -o "$tmp/program" -lm || continue
    check "$name: runs" sh -c "cd '$tmp' && ./program >out 2>err" || { cat "$tmp/err"; continue; }
    [ -s "$tmp/out" ] && pass || fail "$name: prints nothing"
    case $name in manual.c | readme1.c) cat "$tmp/err" "$tmp/out" >"$tmp/${name%.c}.out" ;; esac
done
sed 's/\(0\.0[0-9]\)[0-9]*$/\1/' "$tmp/readme.said" >"$tmp/expected"
sed 's/\(0\.0[0-9]\)[0-9]*$/\1/' "$tmp/readme1.out" >"$tmp/printed"
check "README.md's program prints what is said" diff "$tmp/expected" "$tmp/printed"
[ "$(wc -l <README.md)" -le 140 ] && pass || fail "README.md has $(wc -l <README.md) lines"
# the manual's program learns XOR: the last line's four numbers round to 0 1 1 0
if [ -s "$tmp/manual.out" ]; then
    xor=$(tail -n 1 "$tmp/manual.out" | awk '{ for (i = 1; i <= NF; i++) printf "%d", $i + 0.5 }')
    [ "$xor" = 0110 ] && pass || { fail "the manual's program did not learn XOR: $xor"; cat "$tmp/manual.out"; }
fi
finish
