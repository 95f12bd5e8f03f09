#ifndef FLUX__GRAPH_DRAWS_H
#define FLUX__GRAPH_DRAWS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/options.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "leaves.h"
#include "views.h"
#include "reductions.h"
#include "scans.h"
#include "sorting.h"

/* ---------------------------------------------------------------------- graph/draws.h
   Random integers, bools and classes, made of uniform numbers (graph/leaves.h):
   randint, bernoulli, categorical.

   Invariant: each takes one draw of the thread's stream, so that a seed gives
   the same numbers on every device, recorded or eager; those of categorical
   pass through logarithms, whose last bit is the device's. None has a gradient.

   Rejected: the remainder of random bits, which prefers small numbers. */

FLUX__BEGIN_COLD

/* floor(u n) of 53 random bits u is below n for every n up to 2^53. */
FLUX_DEF flux_tensor *flux_randint_with(int64_t lo, int64_t hi, flux_shape s) {
    const int64_t most = INT64_C(1) << 53;
    if (lo >= hi || lo < -most || hi > most || hi - lo > most)
        return (flux_tensor *)flux__fail("randint: no integers from %lld below %lld within 2^53",
                                         (long long)lo, (long long)hi);
    int h = flux__hide_in("randint");
    flux_tensor *u = flux_rand_with(s, FLUX_F64);
    u = u ? flux_to_dtype(flux_floor(flux_mul(u, (double)(hi - lo))), FLUX_I64) : NULL;
    return flux__reveal(h, u ? flux_add(u, (double)lo) : NULL);
}

/* 1 where a uniform number is below p, else 0, in p's dtype. */
FLUX_DEF flux_tensor *flux_bernoulli(flux_tensor *p) {
    if (!flux__check_operands("bernoulli", 1, &p)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__floating(p), *u = flux_rand_with(flux__dims(p), FLUX_F32);
    u = u && x ? flux__move(u, p->device) : NULL;
    return flux__reveal(h, u ? flux_to_dtype(flux_lt(u, x), (flux_dtype)x->dtype) : NULL);
}

/* Logits x (classes x rest) with -inf for all but the top_k largest and, of these, but the fewest
   whose probabilities add up to top_p: those before which less than top_p was gathered, in
   descending order. */
static flux_tensor *flux__likeliest(flux_tensor *x, int64_t top_k, double top_p) {
    FLUX__ZEROED(flux_sort_opts, descending);
    descending.x = x, descending.descending = true;
    flux_tensor *sorted = flux_sort_with(descending);
    if (sorted && top_k < x->dim[0])
        sorted = flux_where(flux_lt(flux__iota_on(x->device, x->dim[0], 0), (double)top_k), sorted,
                            -HUGE_VAL);
    FLUX__ZEROED(flux_reduce_opts, columns);
    columns.x = sorted;
    flux_tensor *p = columns.x ? flux_softmax_with(1, columns) : NULL;
    columns.x = p;
    flux_tensor *before = p ? flux_sub(flux_cumsum_with(1, columns), p) : NULL;
    flux_tensor *taken = before ? flux_lt(before, top_p) : NULL;
    taken = taken ? flux_or(taken, flux_eq(flux__iota_on(x->device, x->dim[0], 0), 0.0)) : NULL;
    columns.x = taken ? flux_where(taken, sorted, HUGE_VAL) : NULL;
    flux_tensor *least = columns.x ? flux_min_with(1, columns) : NULL;
    flux_shape one = flux__dims(x);
    one.dim[0] = 1;
    least = least ? flux_reshape_with(least, one) : NULL;
    return least ? flux_where(flux_ge(x, least), x, -HUGE_VAL) : NULL;
}

/* The class whose logit plus a number by Gumbel's law, -log(-log u), is the largest. */
FLUX_DEF flux_tensor *flux_categorical_with(flux_categorical_opts o) {
    flux_tensor *x = o.x;
    double temperature = flux__given(o.temperature, o.marked, 1);
    if (!flux__check_operands("categorical", 1, &x)) return NULL;
    if (x->ndim == 0 || x->dim[0] == 0)
        return (flux_tensor *)flux__fail("categorical: %s has no classes in dim 0",
                                         flux__describe(x).s);
    if (!(temperature >= 0) || temperature > (double)FLT_MAX)
        return (flux_tensor *)flux__fail("categorical: .temperature is %g", temperature);
    const int64_t top_k = flux__given_int(o.top_k, o.marked, INT64_MAX);
    const double top_p = flux__given(o.top_p, o.marked, 1);
    if (top_k < 1 || !(top_p >= 0 && top_p <= 1))
        return (flux_tensor *)flux__fail("categorical: .top_k is %lld, from 1 on, and .top_p %g, "
                                         "from 0 to 1", (long long)top_k, top_p);
    int h = flux__hide();
    flux_shape all = flux__dims(x), rest = flux__shape(all.dim + 1, all.ndim - 1);
    x = flux_to_dtype(x, FLUX_F32);
    x = x && temperature > 0 ? flux_div(x, temperature) : x;
    if (x && temperature > 0 && (top_k < all.dim[0] || top_p < 1))
        x = flux__likeliest(x, top_k, top_p);
    if (x && temperature > 0) {
        flux_tensor *u = flux_rand_with(all, FLUX_F32);
        u = u ? flux__move(u, x->device) : NULL;
        flux_tensor *noise = u ? flux_neg(flux_log(flux_neg(flux_log(u)))) : NULL;
        x = noise ? flux_add(x, noise) : NULL;
    }
    x = x ? flux__argreduce_node(x, true, 1, x->ndim) : NULL;
    return flux__reveal(h, x ? flux_reshape_with(x, rest) : NULL);
}

FLUX__END_COLD

#endif /* FLUX__GRAPH_DRAWS_H */
