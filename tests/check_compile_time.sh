# What including flux.h costs: the declarations in each file, the implementation in one. The bounds are generous, for
# machines that are busy with other things; the figures are what to look at.
. tests/check.sh
printf '#include "flux.h"\nint main(void) { return 0; }\n' >"$tmp/user.c"
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"
printf 'int main(void) { return 0; }\n' >"$tmp/empty.c"

# seconds COMMAND...: processor time of the command, its children included
seconds() {
    rm -f "$tmp/broken"
    ( "$@" >"$tmp/log" 2>&1 || echo broken >"$tmp/broken"; times ) | tail -n 1 |
        awk '{ n = 0; for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); n += 60 * t[1] + t[2] } print n }'
}
# within NAME SECONDS BOUND
within() {
    printf '%-44s %6.2f s\n' "$1" "$2"
    awk -v a="$2" -v b="$3" 'BEGIN { exit !(a <= b) }' && [ ! -e "$tmp/broken" ] && pass ||
        { fail "$1: $2 s, the bound is $3 s"; grep -m 5 error "$tmp/log" | cut -c 1-200; }
}
for cc in gcc clang; do
    need $cc "compile time of $cc" || continue
    base=$(seconds $cc -c "$tmp/empty.c" -o "$tmp/o")
    user=$(seconds $cc -O2 -I. -c "$tmp/user.c" -o "$tmp/o")
    within "$cc: declarations" "$(awk -v a="$user" -v b="$base" 'BEGIN { print a - b < 0 ? 0 : a - b }')" 1
    within "$cc: implementation, -O0" "$(seconds $cc -I. -c "$tmp/impl.c" -o "$tmp/o")" 15
    within "$cc: implementation, -O2" "$(seconds $cc -O2 -I. -c "$tmp/impl.c" -o "$tmp/o")" 40
done
if need tcc "compile time of tcc"; then within "tcc: implementation" "$(seconds tcc -I. -c "$tmp/impl.c" -o "$tmp/o")" 5; fi
finish
