#ifndef FLUX__GRAPH_ELEMENTWISE_H
#define FLUX__GRAPH_ELEMENTWISE_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "table.h"
#include "nodes.h"

/* ---------------------------------------------------------------------- graph/elementwise.h
   Elementwise operations: broadcasting, dtype promotion, casts, and
   flux__elementwise, which makes the node of any row of graph/table.h. The
   public calls, the copy and the move to another device follow.

   Invariant: a node's operands are on one device and, but for bare numbers,
   have the dtype in which it computes: flux__taken converts what differs before
   the node is made. A bare number adapts to the other operands; one that their
   integer dtype cannot hold is an error, beside bools it makes an i32 or f32.
   Operations on bare numbers alone are computed at once, in double. A formula
   of several operations on a half format computes in float32: its operands are
   widened (flux__widened) and the result is rounded once (flux__narrow), so
   that no intermediate overflows and kernels load and store halves only. */

FLUX__BEGIN_HOT

static flux_tensor *flux__move(flux_tensor *x, flux_device d);

/* ---------------- elementwise operations */

/* The shape that operands broadcast to; false, with an error, if they don't. */
static bool flux__broadcast(const char *call, int n, flux_tensor *const *xs, flux_shape *out) {
    *out = flux__dims(xs[0]);
    for (int i = 1; i < n; i++) {
        const flux_tensor *x = xs[i];
        for (int d = 0; d < x->ndim; d++) {
            int64_t have = d < out->ndim ? out->dim[d] : 1;
            if (have != x->dim[d] && have != 1 && x->dim[d] != 1) {
                flux__text ta = flux__describe(xs[0]), tb = flux__describe(x);
                flux__fail("%s: shapes do not broadcast: %s with %s differ in dim %d "
                           "(%lld and %lld)", call, ta.s, tb.s, d, (long long)have,
                           (long long)x->dim[d]);
                return false;
            }
            if (d >= out->ndim || have == 1) out->dim[d] = x->dim[d];
        }
        if (x->ndim > out->ndim) out->ndim = x->ndim;
    }
    return true;
}

/* The dtype at which operands meet: that of the operands which are not bare numbers, promoted. A
   bare number must be representable in it; beside bools it makes an i32 or f32. -1: an error was
   told. */
static int flux__meet(const char *call, int n, flux_tensor *const *xs) {
    int t = -1;
    for (int i = 0; i < n; i++)
        if (!(xs[i]->flags & FLUX__WEAK))
            t = t < 0 ? xs[i]->dtype : (int)flux__promote((flux_dtype)t, (flux_dtype)xs[i]->dtype);
    if (t < 0) return FLUX_F32;
    for (int i = 0; i < n; i++) {
        double v = xs[i]->arg.num;
        if (!(xs[i]->flags & FLUX__WEAK) || flux__dtypes[t].real) continue;
        bool whole = v == floor(v) && v >= -9.2e18 && v <= 9.2e18;
        if (t == FLUX_BOOL) t = whole ? FLUX_I32 : FLUX_F32;
        else if (!whole || (t == FLUX_U8 && (v < 0 || v > 255)) ||
                 (t == FLUX_I32 && (v < -2147483648.0 || v > 2147483647.0))) {
            flux__fail("%s: the number %g has no place in a tensor of %s; "
                       "convert that with flux_to_dtype first", call, v, flux__dtypes[t].name);
            return -1;
        }
    }
    return t;
}

/* The dtype in which an elementwise operation computes, by its row's rule, and *result, the dtype
   that it gives. -1: an error was told. */
static int flux__compute_dtype(int op, int n, flux_tensor *const *xs, flux_dtype *result) {
    const char *call = flux__op_names[op];
    char rule = flux__rules[op];
    int t = rule == 'S' ? flux__meet(call, n - 1, xs + 1) : flux__meet(call, n, xs);
    if (t < 0) return t;
    if (rule == 'F' && !flux__dtypes[t].real) t = FLUX_F32;
    if (rule == 'N' && t == FLUX_BOOL) t = FLUX_I32;
    if (rule == 'B' && t != FLUX_BOOL) {
        flux__text text = flux__describe(xs[0]);
        flux__fail("%s: operands must be bool, not %s; compare first, as in flux_gt(x, 0)", call,
                   text.s);
        return -1;
    }
    *result = rule == 'C' ? FLUX_BOOL : (flux_dtype)t;
    return t;
}

/* x in dtype t; x itself if it is that already, or a bare number. A full number becomes a float64
   number without a cast, which loses nothing. */
static flux_tensor *flux__cast(flux_tensor *x, flux_dtype t) {
    if (!x || x->dtype == t || (x->flags & FLUX__WEAK)) return x;
    flux_shape s = flux__dims(x);
    bool exact = x->op == FLUX__NUMBER && t == FLUX_F64;
    flux_tensor *y = exact ? flux__renumber(x, &s, t, x->device)
                           : flux__node(FLUX__CAST, t, &s, x, NULL, NULL);
    return y ? flux__done(y) : NULL;
}

/* Formulas of several operations, and sums that are scaled, are computed in float32 where x is of
   a half format: flux__widened casts their operands to float32, and flux__narrow rounds the
   result once. So no intermediate overflows where the result would not, the gradient is computed
   in float32 too, and a kernel loads halves, works in float32 and stores halves. Integers are
   cast to float32 as well. */
static flux_tensor *flux__widened(flux_tensor *x) {
    if (!x || x->dtype == FLUX_F32 || x->dtype == FLUX_F64) return x;
    flux_tensor *y = flux__cast(x, FLUX_F32);
    if (y && flux__is_half(x->dtype)) y->flags |= FLUX__WIDENED;
    return y;
}

/* y in the dtype `given` of the formula's operand if that is a half format; else y as it is. */
static flux_tensor *flux__narrow(flux_tensor *y, int given) {
    return y && flux__is_half(given) ? flux__cast(y, (flux_dtype)given) : y;
}

/* x as an operand of dtype t on device d. All operands but numbers are on d already. */
static flux_tensor *flux__taken(flux_tensor *x, flux_device d, flux_dtype t) {
    bool apart = x && !flux__same_device(x->device, d) && !(x->flags & FLUX__WEAK);
    return flux__cast(apart ? flux__move(x, d) : x, t);
}

/* Checks operands and replaces each by itself on the device of the operation. */
static bool flux__together(const char *call, int n, flux_tensor **xs) {
    if (!flux__check_operands(call, n, xs)) return false;
    flux_device d = flux__place(n, xs);
    for (int i = 0; i < n; i++)
        if (!(xs[i] = flux__taken(xs[i], d, (flux_dtype)xs[i]->dtype))) return false;
    return true;
}

/* The first operand that is not a bare number, if it is floating and all others have its dtype,
   shape and device, bare numbers aside: then nothing is to be broadcast or converted. NULL: they
   differ or are to be converted. */
static const flux_tensor *flux__alike(int op, int n, flux_tensor *const *xs) {
    const flux_tensor *like = NULL;
    if (flux__rules[op] != 'N' && flux__rules[op] != 'F' && flux__rules[op] != 'C') return NULL;
    for (int i = 0; i < n; i++) {
        const flux_tensor *x = xs[i];
        if (x->flags & FLUX__WEAK || x == like) continue;
        if (!like && flux__dtypes[x->dtype].real) like = x;
        else if (!like || x->dtype != like->dtype || !flux__same_dims(x, like) ||
                 !flux__same_device(x->device, like->device)) return NULL;
    }
    return like;
}

/* hook: flux__formula_value, cpu/float64.h */
static double flux__formula_value(int op, const double *v);
/* The result of an operation on bare numbers alone, which is a bare number again (a comparison's
   is a bool). It is computed in double, as the numbers are held, so that the gradient of x^0.1 by
   a float64 x has 0.1 - 1 to its last bit. NULL: an operand is no bare number. */
static flux_tensor *flux__of_numbers(int op, int n, flux_tensor *const *xs) {
    double v[3] = { 0, 0, 0 };
    if (flux__rules[op] == 'B' || flux__rules[op] == 'S') return NULL;
    for (int i = 0; i < n; i++) {
        if (!(xs[i]->flags & FLUX__WEAK)) return NULL;
        v[i] = xs[i]->arg.num;
    }
    double y = flux__formula_value(op, v);
    return flux__rules[op] == 'C' ? flux_full_with(flux__shape(NULL, 0), y, FLUX_BOOL)
                                  : flux__number(y);
}

/* The node of elementwise operation `op` on its first 1, 2 or 3 operands, at the shape to which
   they broadcast. Operands that are alike take a short way; operands that are all bare numbers
   are computed at once; else they are converted to the row's compute dtype and moved to one
   device. NULL: an error was told, or an operand is NULL. */
static flux_tensor *flux__elementwise(int op, flux_tensor *a, flux_tensor *b, flux_tensor *c) {
    flux_tensor *xs[3] = { a, b, c };
    int n = flux__arity[op];
    flux_dtype result = FLUX_F32;
    flux_shape s;
    if (!flux__check_operands(flux__op_names[op], n, xs)) return NULL;
    const flux_tensor *like = flux__alike(op, n, xs);
    if (like) {
        s = flux__dims(like);
        flux_tensor *y = flux__node(op, flux__rules[op] == 'C' ? FLUX_BOOL
                                                               : (flux_dtype)like->dtype,
                                    &s, a, b, c);
        if (y) y->device = like->device;
        return y ? flux__done(y) : NULL;
    }
    flux_tensor *number = flux__of_numbers(op, n, xs);
    if (number) return number;
    int t = flux__compute_dtype(op, n, xs, &result);
    if (t < 0 || !flux__broadcast(flux__op_names[op], n, xs, &s)) return NULL;
    flux_device d = flux__place(n, xs);
    for (int i = 0; i < n; i++)
        if (!(xs[i] = flux__taken(xs[i], d,
                                  flux__rules[op] == 'S' && i == 0 ? FLUX_BOOL : (flux_dtype)t)))
            return NULL;
    flux_tensor *y = flux__node(op, result, &s, xs[0], n > 1 ? xs[1] : NULL, n > 2 ? xs[2] : NULL);
    if (!y) return NULL;
    y->device = d;
    return flux__done(y);
}

/* The public functions of the rows whose call is ROW. */
#define FLUX__DEFINE_1(NAME, f)                                      \
    FLUX_DEF flux_tensor *(f)(flux_tensor *x) {                      \
        return flux__elementwise(FLUX__OP_##NAME, x, NULL, NULL);    \
    }
#define FLUX__DEFINE_2(NAME, f)                                      \
    FLUX_DEF flux_tensor *(f)(flux_tensor *a, flux_tensor *b) {      \
        return flux__elementwise(FLUX__OP_##NAME, a, b, NULL);       \
    }
#define FLUX__DEFINE_3(NAME, f)                                                     \
    FLUX_DEF flux_tensor *(f)(flux_tensor *a, flux_tensor *b, flux_tensor *c) {     \
        return flux__elementwise(FLUX__OP_##NAME, a, b, c);                         \
    }
#define FLUX__DEFINE_ROW(...) __VA_ARGS__
#define FLUX__DEFINE_OWN(...)
#define FLUX__DEFINE_INNER(...)
#define FLUX__DEFINE_CALL(NAME, name, n, dt, call, ...) \
    FLUX__DEFINE_##call(FLUX__DEFINE_##n(NAME, flux_##name))
FLUX__ELEMENTWISE(FLUX__DEFINE_CALL)

/* Whether `number` holds the given neutral value, so that x op number is x itself and needs no
   node: gradients often multiply by 1. `number` must be a bare number or a seed of x's dtype, and
   must not change x's shape. */
static bool flux__neutral(const flux_tensor *x, const flux_tensor *number, double value) {
    if (x && number && FLUX__IS_VIEW(number) && flux__same_dims(x, number)) number = number->base;
    return x && number &&
           (number->flags & FLUX__WEAK ||
            (number->flags & FLUX__SEED && number->dtype == x->dtype)) &&
           number->arg.num == value && number->ndim == 0 && x->op != FLUX__TUPLE &&
           !(x->flags & FLUX__WEAK) && flux__dtypes[x->dtype].real;
}

/* The product a b; a factor that is the number 1, as gradients have it, makes no node. */
FLUX_DEF flux_tensor *(flux_mul)(flux_tensor *a, flux_tensor *b) {
    if (flux__neutral(a, b, 1)) return a;
    if (flux__neutral(b, a, 1)) return b;
    return flux__elementwise(FLUX__OP_MUL, a, b, NULL);
}

/* The linear interpolation a + t (b - a). */
static flux_tensor *flux__lerp(flux_tensor *a, flux_tensor *b, flux_tensor *t) {
    return flux__elementwise(FLUX__OP_LERP, a, b, t);
}
/* a b + c, one row of the table. */
static flux_tensor *flux__fma(flux_tensor *a, flux_tensor *b, flux_tensor *c) {
    return flux__elementwise(FLUX__OP_FMA, a, b, c);
}

FLUX_DEF flux_tensor *flux_clamp(flux_tensor *x, double lo, double hi) {
    if (!flux__check_operands("clamp", 1, &x)) return NULL;
    if (!(lo <= hi))
        return (flux_tensor *)flux__fail("clamp: the bounds %g and %g are not in order", lo, hi);
    int h = flux__hide_in("clamp");
    return flux__reveal(h, flux_min2(flux_max2(x, lo), hi));
}

FLUX_DEF flux_tensor *flux_to_dtype(flux_tensor *x, flux_dtype t) {
    if (!flux__check_operands("to_dtype", 1, &x)) return NULL;
    if ((unsigned)t >= FLUX_NUM_DTYPES)
        return (flux_tensor *)flux__fail("to_dtype: %d is not a dtype", (int)t);
    return flux__cast(x, t);
}

/* A contiguous copy of x, with a buffer of its own. */
FLUX_DEF flux_tensor *flux_copy(flux_tensor *x) {
    if (!flux__check_operands("copy", 1, &x)) return NULL;
    flux_shape s = flux__dims(x);
    flux_tensor *y = flux__node(FLUX__COPY, (flux_dtype)x->dtype, &s, x, NULL, NULL);
    return y ? flux__done(y) : NULL;
}

/* x on device d: x itself if it is there. A number is made there anew; a view that is not
   contiguous is copied first, so that one block of memory is moved. */
static flux_tensor *flux__move(flux_tensor *x, flux_device d) {
    if (!flux__check_operands("to", 1, &x)) return NULL;
    if (flux__same_device(x->device, d)) return x;
    flux_shape s = flux__dims(x);
    if (flux__is_number(x)) {             /* a number is made there anew, not copied */
        return flux__done(flux__renumber(x, &s, (flux_dtype)x->dtype, d));
    }
    int h = flux__hide();
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux__layout(x, &offset, stride);
    if (FLUX__IS_VIEW(x) && (!flux__in_order(&s, stride))) x = flux_copy(x);
    flux_tensor *y = x ? flux__node(FLUX__MOVE, (flux_dtype)x->dtype, &s, x, NULL, NULL) : NULL;
    if (y) y->device = d;
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

FLUX__END_HOT

#endif /* FLUX__GRAPH_ELEMENTWISE_H */
