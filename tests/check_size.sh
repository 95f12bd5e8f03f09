# What including flux.h costs, in counts that are the same on any machine: bytes of declarations that each file reads,
# system headers included; bytes of code and constants of the implementation. A bound is a fifth above what is
# measured, as compilers' versions differ. Times are in tests/bench/compile_time.sh.
. tests/check.sh
printf '#include "flux.h"\nint main(void) { return 0; }\n' >"$tmp/user.c"
printf 'int main(void) { return 0; }\n' >"$tmp/empty.c"
printf '#define FLUX_IMPLEMENTATION\n#include "flux.h"\n' >"$tmp/impl.c"

# within NAME NUMBER BOUND
within() {
    printf '%-34s %8s\n' "$1" "$2"
    [ "${2:-0}" -gt 0 ] && [ "$2" -le "$3" ] && pass || fail "$1: $2 bytes, the bound is $3"
}
# code OBJECT: bytes of code and constants, and of data that is not zero
code() { size "$1" 2>/dev/null | awk 'NR == 2 { print $1 + $2 }'; }
# compiled NAME COMPILER OPTION BOUND
compiled() {
    check "$1 compiles" "$2" $3 -I. -c "$tmp/impl.c" -o "$tmp/impl.o" && within "$1" "$(code "$tmp/impl.o")" "$4"
}
# sizes COMPILER DECLARATIONS -O0 -O2: a compiler that does not optimise has no last bound
sizes() {
    need "$1" "sizes by $1" || return
    within "$1: declarations" "$("$1" -I. -E -P "$tmp/user.c" | wc -c)" "$2"
    "$1" -I. -c "$tmp/user.c" -o "$tmp/user.o" && "$1" -c "$tmp/empty.c" -o "$tmp/empty.o"
    [ "$(code "$tmp/user.o")" = "$(code "$tmp/empty.o")" ] && pass || fail "$1: declarations alone leave code in the object"
    compiled "$1: implementation, -O0" "$1" -O0 "$3"
    [ -z "$4" ] || compiled "$1: implementation, -O2" "$1" -O2 "$4"
}
need size || finish
sizes gcc 78000 1450000 1440000
sizes clang 87000 2160000 1690000
sizes tcc 75000 1620000
finish
