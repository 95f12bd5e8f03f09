# Mistakes that compilers are to tell of: a layer's description that does not fit its struct does not compile, with a message that
# one can read.
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

finish
