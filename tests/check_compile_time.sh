# What including flux.h costs: the declarations in each file, the implementation in one. The unit is
# what the same compiler takes at -O2 for the software GPU's files, some 3,000 lines that know nothing of
# flux.h, so that the bounds hold on any machine: a third above what is measured, as a machine that
# does other things gives times that differ by a fifth.
. tests/check.sh
printf '#include "flux.h"\nint main(void) { return 0; }\n' >"$tmp/user.c"
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"

# seconds COMMAND...: processor time of the command, its children included
seconds() {
    rm -f "$tmp/broken"
    ( "$@" >"$tmp/log" 2>&1 || echo broken >"$tmp/broken"; times ) | tail -n 1 |
        awk '{ n = 0; for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); n += 60 * t[1] + t[2] } print n }'
}
# within NAME SECONDS UNITS
within() {
    printf '%-34s %6.2f s, %s\n' "$1" "$2" "$(awk -v a="$2" -v u="$unit" 'BEGIN { printf "%.2f units", a / u }')"
    awk -v a="$2" -v u="$unit" -v b="$3" 'BEGIN { exit !(a <= u * b) }' && [ ! -e "$tmp/broken" ] && pass ||
        { fail "$1: $2 s, the bound is $3 times $unit s"; grep -m 5 error "$tmp/log" | cut -c 1-200; }
}
# others COMPILER: the unit
others() {
    for part in compiler device driver matrices prelude; do
        $1 -std=c11 -O2 -DSOFT_CUDA -c tests/softgpu/$part.c -o "$tmp/o" || return
    done
}
# bounds COMPILER DECLARATIONS -O0 -O2: one that does not optimise has no last bound, and takes the
# unit of $CC
bounds() {
    need "$1" "compile time of $1" || return
    [ -n "$4" ] && unit=$(seconds others "$1") || unit=$(seconds others "$CC")
    within "$1: declarations" "$(seconds "$1" -I. -c "$tmp/user.c" -o "$tmp/o")" "$2"
    within "$1: implementation, -O0" "$(seconds "$1" -I. -c "$tmp/impl.c" -o "$tmp/o")" "$3"
    [ -z "$4" ] || within "$1: implementation, -O2" "$(seconds "$1" -O2 -I. -c "$tmp/impl.c" -o "$tmp/o")" "$4"
}
bounds gcc 0.05 6.1 6.1
bounds clang 0.06 1.8 18
bounds tcc 0.02 0.08
finish
