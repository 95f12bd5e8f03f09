# Calls within calls cost what they say, no more: forty operands, moves, layers and values kept, each within the last, compile
# in every compiler without a warning, in little text. A number of any type keeps its value as an operand.
. tests/check.sh
ladder='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Werror'

# nested DEPTH: a program of such calls
nested() { awk -v depth="$1" 'BEGIN {
    split("add sub mul div pow max2 min2 eq lt", op); split("gpu cpu cu roc", move); x = t = m = l = k = p = "x"
    for (i = 0; i < depth; i++) {
        x = "flux_" op[i % 9 + 1] (i % 2 ? "(" x ", 2)" : "(0.5f, " x ")")
        p = i % 4 ? "flux_where(x, " p ", 1)" : "flux_sum(flux_mul(" p ", true), 0)"
        t = "flux_" move[i % 4 + 1] "(" t ")"
        m = i % 3 ? "flux_" move[i % 4 + 1] "(" m ")" : "flux_to(d, " m ")"
        l = i % 2 ? "flux_chain(" l ", flux_relu)" : i % 4 ? "flux_parallel(flux_add, flux_tanh, " l ")" : "flux_skipconnection(" l ", flux_add)"
        k = i % 2 ? "flux_keep(" k ")" : "flux_carry(x, " k ")"
    }
    print "#include \"flux.h\"\n#define CASE(T, name, call) T *name(flux_device d, T *x); T *name(flux_device d, T *x) { return (void)d, call; }"
    print "CASE(flux_tensor, operands, " x ")\nCASE(flux_tensor, reduced, " p ")\nCASE(flux_tensor, moved, " t ")"
    print "CASE(flux_layer, moved_layer, " m ")\nCASE(flux_layer, layers, " l ")\nCASE(flux_tensor, kept, " k ")"
}'; }
nested 6 >"$tmp/six.c"
nested 40 >"$tmp/nested.c"
printf '#include "flux.h"\n' >"$tmp/plain.c"
cat >"$tmp/numbers.c" <<'END'
#include "flux.h"
#include <stdio.h>
enum small { NONE, TWO = 2 };
struct bits { unsigned three : 2; };
static int bad;
static void is(const char *what, flux_tensor *x, double value) {
    if (!(flux_item(x) >= value && flux_item(x) <= value)) printf("%s: %.17g, not %.17g\n", what, flux_item(x), value), bad++;
}
int main(void) {
    struct bits b = { 3 };
    const float tenth = 0.1f;
    flux_tensor *zero = flux_to_dtype(flux_scalar(0), FLUX_F64), *const same = zero;
    is("int", flux_add(zero, -7), -7);
    is("zero", flux_add(0, zero), 0);
    is("unsigned", flux_add(4294967295u, zero), 4294967295.0);
    is("int64_t", flux_add(zero, INT64_C(9007199254740991)), 9007199254740991.0);
    is("rounded", flux_add(zero, INT64_C(9007199254740993)), 9007199254740992.0);
    is("uint64_t", flux_add(zero, UINT64_MAX), 18446744073709551616.0);
    is("size_t", flux_sub(sizeof(int64_t), zero), 8);
    is("float", flux_add(tenth, zero), (double)0.1f);
    is("double", flux_add(zero, 0.1), 0.1);
    is("long double", flux_add(zero, 0.25L), 0.25);
    is("bool", flux_add(zero, (bool)1), 1);
    is("char", flux_add((char)65, zero), 65);
    is("short", flux_add(zero, (short)-3), -3);
    is("enum", flux_where(flux_eq(zero, NONE), TWO, zero), 2);
    is("bit-field", flux_add(zero, b.three), 3);
    is("two tensors", flux_add(same, flux_add(zero, 1)), 1);
    is("nested", flux_mul(flux_add(flux_sub(1, zero), 2), flux_add(flux_add(zero, tenth > 1 ? 7 : 5), same)), 15);
    return bad;
}
END
implementation || finish

# size FILE: bytes of what the preprocessor makes of it
size() { $cc $flags -I. -E -P "$1" | wc -c; }
for cc in gcc clang tcc g++ clang++; do
    need $cc "nested calls with $cc" || continue
    flags="-std=c11 $ladder"
    case $cc in *++) flags="-std=c++11 $ladder -x c++" ;; tcc) flags='-Wall -Werror' ;; esac
    # text that doubled with each level would fill the disk at forty
    bytes=$(($(size "$tmp/six.c") - $(size "$tmp/plain.c")))
    [ "$bytes" -gt 1500 ] && [ "$bytes" -lt 25000 ] && pass || { fail "$cc: six calls within calls make $bytes bytes"; continue; }
    bytes=$(($(size "$tmp/nested.c") - $(size "$tmp/plain.c")))
    [ "$bytes" -gt 10000 ] && [ "$bytes" -lt 160000 ] && pass || fail "$cc: forty make $bytes bytes"
    check "$cc: forty calls within calls" $cc $flags -I. -c "$tmp/nested.c" -o "$tmp/nested.o"
    check "$cc: numbers" $cc $flags -I. -c "$tmp/numbers.c" -o "$tmp/numbers.o" &&
        check "$cc: numbers, the program" $CC "$tmp/numbers.o" "$impl" -o "$tmp/numbers" -lm && check "$cc: numbers as operands" "$tmp/numbers"
done
finish
