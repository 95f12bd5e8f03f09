# Mistakes that compilers and the address sanitizer are to tell of: a layer's description that does not fit its struct does
# not compile, with a message that one can read; a handle, and memory of a tensor's, after its scope are found.
. tests/check.sh

fields() {
    cat <<'END'
#include "flux.h"
typedef struct { flux_layer base; flux_layer *parts[2], **list; int64_t count; float w; flux_tensor *t; } mine;
static flux_tensor *call(flux_layer *self, flux_tensor *x) { return (void)self, x; }
END
    echo "FLUX_LAYER(mine, \"Mine\", call $1)"
    echo "flux_layer *make(void) { return flux_new(mine); }"
}

# refused WHAT MESSAGE COMMAND...: must fail, saying so
refused() {
    what=$1 message=$2; shift 2
    if "$@" >"$tmp/log" 2>&1; then fail "$what compiles"
    elif grep -q "$message" "$tmp/log"; then pass
    else fail "$what: not a word of \"$message\""; head -n 10 "$tmp/log" | cut -c 1-200; fi
}

for cc in gcc clang tcc g++ clang++; do
    need $cc "layers' fields with $cc" || continue
    ext=c strict='-Wall -Wextra -Wpedantic -Wshadow -Werror' flags='-std=c11'
    message='must be declared as' part='FLUX_CHILDREN: the field '
    case $cc in
        *++) ext=cpp flags='-std=c++11' message='must be a flux_' part='' ;;
        tcc) message='does not match' part='' ;;
    esac
    fields '' >"$tmp/fits.$ext"
    check "$cc: a layer without fields" $cc $flags $strict -I. -c "$tmp/fits.$ext" -o "$tmp/fits.o"
    fields ', FLUX_PARAM(t), FLUX_STATE(t)' >"$tmp/fits.$ext"
    check "$cc: a layer with two" $cc $flags $strict -I. -c "$tmp/fits.$ext" -o "$tmp/fits.o"
    for wrong in 'CHILDREN(parts, count)' 'CHILDREN(list, count)' 'CHILD(parts)' 'CHILD(t)' 'PARAM(w)' 'PARAM(list)' 'STATE(w)'; do
        fields ", FLUX_$wrong" >"$tmp/wrong.$ext"
        refused "$cc: FLUX_$wrong" "$message" $cc $flags -I. -c "$tmp/wrong.$ext" -o "$tmp/wrong.o"
    done
    [ -z "$part" ] || { fields ', FLUX_CHILDREN(parts, count)' >"$tmp/wrong.c"; refused "$cc: an array" "${part}parts" $cc $flags -I. -c "$tmp/wrong.c" -o "$tmp/wrong.o"; }
done

cat >"$tmp/late.c" <<'END'
#define FLUX_IMPLEMENTATION
#include "flux.h"
int main(int argc, char **argv) {
    flux_tensor *x = NULL, *fine = flux_ones(1000);
    flux_layer *m = NULL;
    const float *v = NULL;
    flux_times (i, 2) {
        x = flux_add(fine, 1);
        m = flux_dense(2, 2);
        v = flux_floats(flux_eval(flux_add(fine, 2)));
    }
    for (int i = 0; i < 10000; i++) flux_add(fine, i);
    if (argc < 2) printf("%g\n", flux_item(flux_sum(fine)));
    else if (*argv[1] == 't') flux_print(x);
    else if (*argv[1] == 'l') flux_print(m);
    else printf("%g\n", (double)v[0]);
    return 0;
}
END
# detect_leaks needs ptrace, which containers may forbid
export ASAN_OPTIONS=detect_leaks=0
if $CC -std=c11 -O1 -g1 -fsanitize=address -I. "$tmp/late.c" -o "$tmp/late" -lm >"$tmp/log" 2>&1; then
    check "the address sanitizer: nothing is wrong" "$tmp/late"
    for kind in tensor layer; do refused "the address sanitizer: a $kind after its scope" heap-use-after-free "$tmp/late" $kind; done
    refused "the address sanitizer: a tensor's memory after its scope" use-after-poison "$tmp/late" memory
else
    skip "uses after a scope: $CC has no address sanitizer here"
fi
finish
