# Mistakes that compilers are to tell of: a layer's description that does not fit its struct, an operand that is neither a tensor
# nor a number, more layers than a call takes. They do not compile, with a message that one can read.
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

# of CALL: a function that makes this call
of() { printf '#include "flux.h"\nvoid f(flux_tensor *x, const flux_tensor *c, flux_layer *m, flux_layer *a, flux_loader *l);\n'
       printf 'void f(flux_tensor *x, const flux_tensor *c, flux_layer *m, flux_layer *a, flux_loader *l) { (void)x, (void)c, (void)m, (void)a, (void)l; %s; }\n' "$1"; }
layers() { printf 'm = flux_chain(a'; i=1; while [ $((i += 1)) -le "$1" ]; do printf ', a'; done; printf ')'; }
for cc in gcc clang tcc g++ clang++; do
    have $cc || continue
    ext=c flags='-std=c11 -Wall -Wextra -Wpedantic' operand='an operand is a tensor (flux_tensor \*) or a real number'
    case $cc in *++) ext=cpp flags="-std=c++11" operand='error: ' ;; tcc) operand='error: ' ;; esac
    for call in 'flux_add(x, "2")' 'flux_add(m, x)' 'flux_mul(x, c)' 'flux_where(x, x, l)' 'flux_add(x, flux_add(m, 1))' 'flux_add(x, (void *)0)'; do
        # tcc takes any pointer for a number
        [ $cc = tcc ] && continue
        of "$call" >"$tmp/wrong.$ext"
        refused "$cc: $call" "$operand" $cc $flags -I. -c "$tmp/wrong.$ext" -o "$tmp/wrong.o"
    done
    for call in 'flux_gpu(1)' 'flux_chain(m, x)' 'flux_print(c)' 'flux_gradient(x, 3)' 'flux_load(x, "a")'; do
        of "$call" >"$tmp/wrong.$ext"
        refused "$cc: $call" "error" $cc $flags -I. -c "$tmp/wrong.$ext" -o "$tmp/wrong.o"
    done
    # tcc has no assertion within an expression
    dim='a dim is a number; of two tensors: flux_max2(a, b)'
    [ $cc = tcc ] || for call in 'flux_max(x, x)' 'flux_min(flux_abs(x), x)' 'flux_sum(x, x, 1)'; do
        of "$call" >"$tmp/wrong.$ext"
        refused "$cc: $call" "$dim" $cc $flags -I. -c "$tmp/wrong.$ext" -o "$tmp/wrong.o"
    done
    # what is one underscore apart is told apart by its first argument
    for call in 'm = flux_chain(flux_conv(FLUX_SHAPE(3, 3), 1, 8, flux_relu), flux_maxpool(FLUX_SHAPE(2, 2)), a)' \
                'm = flux_chain(flux_crosscor(FLUX_SHAPE(3), 1, 8), flux_conv_transpose(FLUX_SHAPE(3), 8, 1), flux_meanpool(FLUX_SHAPE(2)))' \
                'x = flux_conv(((x)), flux_conv(x, (x))), x = flux_maxpool((flux_abs)(x), FLUX_SHAPE(2))'; do
        of "$call" >"$tmp/fits.$ext"
        check "$cc: $call" $cc $flags -Werror -I. -c "$tmp/fits.$ext" -o "$tmp/fits.o"
    done
    case $cc in *++) ;; *)
        of 'x = flux_from(((float[]){1, 2, 3, 4}), 2, 2)' >"$tmp/fits.c"
        check "$cc: a literal array" $cc $flags -I. -c "$tmp/fits.c" -o "$tmp/fits.o" ;;
    esac
    # a shape in a variable is no window for the short name; tcc names its type alone
    hint='else_call_flux_conv_layer'
    case $cc in gcc) hint='SHAPE_IN_A_VARIABLE_NEEDS_THE_NAME_WITH_layer' ;; tcc) hint="struct flux_shape" ;; esac
    of 'flux_shape w = FLUX_SHAPE(3, 3); m = flux_conv(w, 1, 8)' >"$tmp/wrong.$ext"
    refused "$cc: a shape in a variable" "$hint" $cc $flags -I. -c "$tmp/wrong.$ext" -o "$tmp/wrong.o"
    of 'flux_shape w = FLUX_SHAPE(3, 3); m = flux_conv_layer(w, 1, 8); w.ndim = (int)(flux_len(c) + flux_len(l) + flux_length(x))' >"$tmp/fits.$ext"
    check "$cc: lengths, and a layer of a shape in a variable" $cc $flags -Werror -I. -c "$tmp/fits.$ext" -o "$tmp/fits.o"
    # an old name works, and the compiler says what the new one is
    of 'x = flux_add(flux_reshape_to(x, FLUX_SHAPE(1, 2)), 1)' >"$tmp/fits.$ext"
    check "$cc: an old name" $cc $flags -I. -c "$tmp/fits.$ext" -o "$tmp/fits.o"
    [ $cc = tcc ] || grep -q 'flux_reshape_with is its name now' "$tmp/log" && pass || fail "$cc says nothing of an old name"
    of "$(layers 32)" >"$tmp/fits.$ext"
    check "$cc: a chain of 32 layers" $cc $flags -I. -c "$tmp/fits.$ext" -o "$tmp/fits.o"
    for n in 33 64 96 97 200; do
        of "$(layers $n)" >"$tmp/wrong.$ext"
        refused "$cc: a chain of $n layers" AT_MOST_32 $cc $flags -I. -c "$tmp/wrong.$ext" -o "$tmp/wrong.o"
    done
done
for cc in gcc clang; do
    have $cc || continue
    of 'flux_add(x, 1 + (double _Complex)2)' >"$tmp/wrong.c"
    refused "$cc: a complex number" 'an operand is a tensor' $cc -std=c11 -I. -c "$tmp/wrong.c" -o "$tmp/wrong.o"
done

finish
