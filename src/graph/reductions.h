#ifndef FLUX__GRAPH_REDUCTIONS_H
#define FLUX__GRAPH_REDUCTIONS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"

/* ---------------------------------------------------------------------- graph/reductions.h
   Reductions over some dims or all: sum, prod, max, min, any, all, argmax,
   argmin as nodes (FLUX__REDUCE, FLUX__ARGREDUCE), and what is composed of
   them: mean, var, norm, logsumexp, softmax, logsoftmax.

   Invariant: dims are a bit mask; named dims stay as dims of size 1, and
   without names the result is a scalar. A dim past the last has size 1 and
   changes nothing. Sums and products of integers are int64; softmax and the
   like subtract the largest element first, which takes no part in the gradient
   since it cancels. Compositions on half formats compute in float32 and round
   once. The variance is the mean of d * d for d = x - mean(x), less the square
   of d's own mean, which corrects the rounding of mean(x). The slope of a root
   at 0 is taken as 0, where it would be infinite times 0
   (flux__root_of_sum). */

FLUX__BEGIN_LEAN

enum flux__red { FLUX__RED_SUM, FLUX__RED_PROD, FLUX__RED_MAX, FLUX__RED_MIN };

/* The dims named in a call's options as a bit mask; all of them when none is named. False: an
   error was told. */
static bool flux__mask(const char *call, int n, const flux_reduce_opts *o, unsigned *mask) {
    int d[8];
    d[0] = o->d0, d[1] = o->d1, d[2] = o->d2, d[3] = o->d3, d[4] = o->d4, d[5] = o->d5,
        d[6] = o->d6, d[7] = o->d7;
    flux_tensor *x = o->x;
    if (!flux__check_operands(call, 1, &x)) return false;
    if (n < 0 || n > FLUX_MAX_DIMS)
        return FLUX__REFUSE("%s: over %d dims, but a tensor has at most %d", call, n,
                            FLUX_MAX_DIMS);
    *mask = n > 0 ? 0 : (1u << x->ndim) - 1;
    for (int i = 0; i < n; i++) {
        if (d[i] < 0 || d[i] >= FLUX_MAX_DIMS) return flux__check_dim(call, x, d[i]);
        /* a dim past the last has size 1: reducing it changes nothing */
        if (d[i] < x->ndim) *mask |= 1u << d[i];
    }
    return true;
}

/* x reduced over the dims of mask, in out_ndim dims: those reduced, and those past x's last, have
   size 1. */
static flux_tensor *flux__reduce_node(flux_tensor *x, int red, unsigned mask, int out_ndim) {
    flux_shape s = flux__shape(NULL, out_ndim);
    for (int i = 0; i < out_ndim; i++) s.dim[i] = i >= x->ndim || (mask >> i & 1) ? 1 : x->dim[i];
    flux_tensor *y = flux__node(FLUX__REDUCE, (flux_dtype)x->dtype, &s, x, NULL, NULL);
    if (!y) return NULL;
    y->arg.i[0] = red;
    y->arg.i[1] = (int64_t)mask;
    return flux__done(y);
}

/* How many elements of x are reduced to one by mask. */
static int64_t flux__reduced_count(const flux_tensor *x, unsigned mask) {
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1) n *= x->dim[i];
    return n;
}

/* A public sum, prod, max or min over n named dims, or over all if n is 0. */
static flux_tensor *flux__reduce_call(const char *call, int red, int n, const flux_reduce_opts *o) {
    unsigned mask = 0;
    flux_tensor *x = o->x;
    if (!flux__mask(call, n, o, &mask)) return NULL;
    if (red >= FLUX__RED_MAX && flux__reduced_count(x, mask) == 0)
        return (flux_tensor *)flux__fail("%s: nothing to choose from in %s", call,
                                         flux__describe(x).s);
    int h = flux__hide();
    if (red < FLUX__RED_MAX && !flux__dtypes[x->dtype].real) x = flux__cast(x, FLUX_I64);
    return flux__reveal(h, x ? flux__reduce_node(x, red, mask, n ? x->ndim : 0) : NULL);
}

#define FLUX__REDUCE_OVER(name, by, red)                                                           \
    FLUX_DEF flux_tensor *flux_##name##_with(int n, flux_reduce_opts o) {                          \
        return by(#name, red, n, &o);                                                              \
    }
FLUX__REDUCE_OVER(sum, flux__reduce_call, FLUX__RED_SUM)
FLUX__REDUCE_OVER(prod, flux__reduce_call, FLUX__RED_PROD)
FLUX__REDUCE_OVER(max, flux__reduce_call, FLUX__RED_MAX)
FLUX__REDUCE_OVER(min, flux__reduce_call, FLUX__RED_MIN)

/* any and all: max and min of bools. */
static flux_tensor *flux__truth(const char *call, int red, int n, flux_reduce_opts *o) {
    unsigned mask;
    if (!flux__mask(call, n, o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__cast(o->x, FLUX_BOOL),
        *y = x ? flux__reduce_node(x, red, mask, n ? x->ndim : 0) : NULL;
    /* no elements: any is false */
    if (y && red == FLUX__RED_MAX && flux__reduced_count(x, mask) == 0) y = flux_ne(y, y);
    return flux__reveal(h, y);
}

FLUX__REDUCE_OVER(any, flux__truth, FLUX__RED_MAX)
FLUX__REDUCE_OVER(all, flux__truth, FLUX__RED_MIN)

/* x, or integers and bools as float32. */
static flux_tensor *flux__floating(flux_tensor *x) {
    return flux__dtypes[x->dtype].real ? x : flux__cast(x, FLUX_F32);
}

/* The mean: the sum, in float32 for integers and half formats, divided by the count. */
FLUX_DEF flux_tensor *flux_mean_with(int n, flux_reduce_opts o) {
    unsigned mask = 0;
    if (!flux__mask("mean", n, &o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__widened(o.x),
        *s = x ? flux__reduce_node(x, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL;
    return flux__reveal(h, s ? flux__narrow(flux_div(s, (double)flux__reduced_count(x, mask)),
                                            o.x->dtype) : NULL);
}

/* The mean of d^2 for d = x - mean(x), less the square of d's own mean, which is the rounding
   error of mean(x) and takes no part in the gradient. For a constant x the two terms are equal
   but for a rounding, so the latter is taken a little larger, and at most as large as the
   former. */
FLUX_DEF flux_tensor *flux_var_with(int n, flux_reduce_opts o) {
    unsigned mask = 0;
    if (!flux__mask("var", n, &o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__widened(o.x),
        *m = x ? flux__reduce_node(x, FLUX__RED_SUM, mask, x->ndim) : NULL;
    double count = x ? (double)flux__reduced_count(x, mask) : 0;
    flux_tensor *d = m ? flux_sub(x, flux_div(m, count)) : NULL, *e = d ? flux_square(d) : NULL;
    flux_tensor *s = e ? flux__reduce_node(e, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL,
        *var = s ? flux_div(s, count) : NULL;
    flux_tensor *flat = var ? flux_detach(d) : NULL,
        *sum = flat ? flux__reduce_node(flat, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL,
        *off = sum ? flux_div(sum, count) : NULL;
    if (off) var = flux_sub(var, flux_min2(flux_mul(flux_square(off), 1.000001), flux_detach(var)));
    return flux__reveal(h, off ? flux__narrow(var, o.x->dtype) : NULL);
}

/* s^power for s, a sum of terms that are not negative. Where s is 0 the slope of the root would
   be infinite and that of the terms 0, and their product NaN: there the gradient is taken as 0. */
static flux_tensor *flux__root_of_sum(flux_tensor *s, double power) {
    flux_tensor *none = s ? flux_eq(s, 0.0) : NULL, *some = none ? flux_where(none, 1.0, s) : NULL;
    some = !some ? NULL : power == 0.5 ? flux_sqrt(some) : flux_pow(some, power);
    return some ? flux_where(none, 0.0, some) : NULL;
}

/* The root of the variance. */
FLUX_DEF flux_tensor *flux_std_with(int n, flux_reduce_opts o) {
    int h = flux__hide();
    unsigned mask = 0;
    if (!flux__mask("std", n, &o, &mask)) return flux__reveal(h, NULL);
    int given = o.x->dtype;
    o.x = flux__widened(o.x);
    flux_tensor *var = o.x ? flux_var_with(n, o) : NULL;
    return flux__reveal(h, var ? flux__narrow(flux__root_of_sum(var, 0.5), given) : NULL);
}

/* The Euclidean norm, the root of the sum of squares. */
FLUX_DEF flux_tensor *flux_norm_with(int n, flux_reduce_opts o) {
    int h = flux__hide();
    unsigned mask = 0;
    if (!flux__mask("norm", n, &o, &mask)) return flux__reveal(h, NULL);
    int given = o.x->dtype;
    o.x = flux_square(flux__widened(o.x));
    return flux__reveal(h, o.x ? flux__narrow(flux__root_of_sum(flux_sum_with(n, o), 0.5), given)
                               : NULL);
}

/* x less its maximum over mask, and that maximum in *top. The maximum takes no part in the
   gradient: it cancels. */
static flux_tensor *flux__shifted(flux_tensor *x, unsigned mask, flux_tensor **top) {
    flux_tensor *m = flux__reduce_node(x, FLUX__RED_MAX, mask, x->ndim);
    *top = m ? flux_detach(m) : NULL;
    return *top ? flux__elementwise(FLUX__OP_SUBMAX, x, *top, NULL) : NULL;
}

/* log(sum(exp(x))), computed as max + log(sum(exp(x - max))) so that exp does not overflow. */
FLUX_DEF flux_tensor *flux_logsumexp_with(int n, flux_reduce_opts o) {
    unsigned mask = 0;
    flux_tensor *top;
    if (!flux__mask("logsumexp", n, &o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__widened(o.x), *s = x ? flux__shifted(x, mask, &top) : NULL;
    flux_tensor *e = s ? flux_exp(s) : NULL,
        *sum = e ? flux__reduce_node(e, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL;
    if (sum && !n) top = flux_reshape_with(top, flux__shape(NULL, 0));
    return flux__reveal(h, sum ? flux__narrow(flux_add(flux_log(sum), top), o.x->dtype) : NULL);
}

/* softmax or its logarithm over n named dims, over dim 0 if none is named. */
static flux_tensor *flux__softmax(const char *call, int n, flux_reduce_opts *o, bool logarithm) {
    unsigned mask = 0;
    flux_tensor *top;
    if (n == 0) o->d0 = 0;
    if (!flux__mask(call, n ? n : 1, o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__widened(o->x), *s = x ? flux__shifted(x, mask, &top) : NULL;
    flux_tensor *e = s ? flux_exp(s) : NULL,
        *sum = e ? flux__reduce_node(e, FLUX__RED_SUM, mask, x->ndim) : NULL;
    if (!sum) return flux__reveal(h, NULL);
    return flux__reveal(h, flux__narrow(logarithm ? flux_sub(s, flux_log(sum)) : flux_div(e, sum),
                                        o->x->dtype));
}

FLUX_DEF flux_tensor *flux_softmax_with(int n, flux_reduce_opts o) {
    return flux__softmax("softmax", n, &o, false);
}
FLUX_DEF flux_tensor *flux_logsoftmax_with(int n, flux_reduce_opts o) {
    return flux__softmax("logsoftmax", n, &o, true);
}

/* The int64 index of the largest (max) or smallest element over the dims of mask. */
static flux_tensor *flux__argreduce_node(flux_tensor *x, bool max, unsigned mask, int out_ndim) {
    flux_shape s = flux__shape(NULL, out_ndim);
    for (int i = 0; i < out_ndim; i++) s.dim[i] = mask >> i & 1 ? 1 : x->dim[i];
    flux_tensor *y = flux__node(FLUX__ARGREDUCE, FLUX_I64, &s, x, NULL, NULL);
    if (!y) return NULL;
    y->arg.i[0] = max;
    y->arg.i[1] = (int64_t)mask;
    return flux__done(y);
}

/* argmax or argmin over one named dim, or over all. */
static flux_tensor *flux__arg(const char *call, bool max, int n, flux_reduce_opts *o) {
    unsigned mask = 0;
    if (!flux__mask(call, n, o, &mask)) return NULL;
    if (n > 1) return (flux_tensor *)flux__fail("%s: over one dim or all, not %d", call, n);
    if (flux__reduced_count(o->x, mask) == 0)
        return (flux_tensor *)flux__fail("%s: nothing to choose from in %s", call,
                                         flux__describe(o->x).s);
    return flux__argreduce_node(o->x, max, mask, n ? o->x->ndim : 0);
}

FLUX__REDUCE_OVER(argmax, flux__arg, true)
FLUX__REDUCE_OVER(argmin, flux__arg, false)

/* The public reduction over all dims; softmax and logsoftmax take dim 0. */
#define FLUX__PUBLIC_RED(name)                                       \
    FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *x) {            \
        flux_reduce_opts o;                                          \
        memset((void *)&o, 0, sizeof o);                             \
        o.x = x;                                                     \
        return flux_##name##_with(0, o);                             \
    }

FLUX__PUBLIC_RED(sum) FLUX__PUBLIC_RED(mean) FLUX__PUBLIC_RED(var) FLUX__PUBLIC_RED(std)
FLUX__PUBLIC_RED(prod)
FLUX__PUBLIC_RED(max) FLUX__PUBLIC_RED(min) FLUX__PUBLIC_RED(any) FLUX__PUBLIC_RED(all)
FLUX__PUBLIC_RED(norm) FLUX__PUBLIC_RED(logsumexp) FLUX__PUBLIC_RED(argmax)
FLUX__PUBLIC_RED(argmin) FLUX__PUBLIC_RED(softmax) FLUX__PUBLIC_RED(logsoftmax)

FLUX__END_LEAN

#endif /* FLUX__GRAPH_REDUCTIONS_H */
