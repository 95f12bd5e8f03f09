# What including flux.h costs in the compiler's processor time: the declarations in each file, the implementation in
# one. Run it in the project's root: sh tests/bench/compile_time.sh. The unit is what the same compiler takes at -O2
# for the software GPU's files, some 3,000 lines that know nothing of flux.h: units can be compared between machines,
# seconds between runs on one. tests/check_compilers.sh bounds what does not depend on the machine.
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT || exit 1
printf '#include "flux.h"\nint main(void) { return 0; }\n' >"$tmp/user.c"
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"

# seconds COMMAND...: processor time of the command, its children included; the fastest of three runs
seconds() {
    for turn in 1 2 3; do
        ( "$@" >"$tmp/log" 2>&1 || echo "failed: $*" >&2; times ) | tail -n 1 |
            awk '{ n = 0; for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); n += 60 * t[1] + t[2] } print n }'
    done | sort -n | head -n 1
}
# others COMPILER: the unit
others() {
    for part in compiler device driver matrices prelude; do
        $1 -std=c11 -O2 -DSOFT_CUDA -c tests/softgpu/$part.c -o "$tmp/o" || return
    done
}
# row COMPILER NAME OPTION FILE
row() { seconds "$1" $3 -I. -c "$tmp/$4" -o "$tmp/o" | awk -v n="$1: $2" -v u="$unit" '{ printf "%-34s %6.2f s, %.2f units\n", n, $1, $1 / u }'; }
for cc in gcc clang tcc; do
    command -v $cc >/dev/null 2>&1 || { echo "no $cc here"; continue; }
    [ $cc = tcc ] && unit=$(seconds others "${CC:-cc}") || unit=$(seconds others $cc)
    row $cc declarations "" user.c
    row $cc "implementation, -O0" -O0 impl.c
    [ $cc = tcc ] || row $cc "implementation, -O2" -O2 impl.c
done
