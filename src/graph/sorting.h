#ifndef FLUX__GRAPH_SORTING_H
#define FLUX__GRAPH_SORTING_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "leaves.h"
#include "views.h"
#include "picking.h"

/* ---------------------------------------------------------------------- graph/sorting.h
   argsort is a node (FLUX__SORT) with a kernel of its own on the CPU and on GPUs,
   cpu/sorting.h and gpu/sorting.h; sort and topk take along what it names, and so
   have their gradient; randperm is the order of uniform numbers.

   Invariant: the node's operand is a matrix of float64 or int64, n x rest, whose
   columns are sorted. Equal elements keep their order; NaN counts as the largest.

   Rejected: a bitonic network of views and rows, which runs anywhere but takes
   log2(n)^2 / 2 passes over all elements. */

FLUX__BEGIN_COLD

/* The order of x along dim, in the shape of x. An error bears the name of the call. */
static flux_tensor *flux__sorted_order(const char *call, flux_tensor *x, int dim,
                                       bool descending) {
    flux_shape swapped = flux__shape(NULL, x->ndim), s = flux__dims(x), moved = s;
    for (int d = 0; d < x->ndim; d++) swapped.dim[d] = d == 0 ? dim : d == dim ? 0 : d;
    if (x->ndim) moved.dim[0] = s.dim[dim], moved.dim[dim] = s.dim[0];
    int64_t n = x->ndim ? s.dim[dim] : 1, size = flux__size(x), d2[2] = { n, n ? size / n : 0 };
    flux_shape matrix = flux__shape(d2, 2);
    if (n > UINT32_MAX)
        return (flux_tensor *)flux__fail("%s: dim %d of %s has more than %lld elements", call, dim,
                                         flux__describe(x).s, (long long)UINT32_MAX);
    x = flux_to_dtype(flux_detach(x), flux__dtypes[x->dtype].real ? FLUX_F64 : FLUX_I64);
    x = x ? flux_permute_with(x, swapped) : NULL;
    x = x ? flux_reshape_with(x, matrix) : NULL;
    if (!x) return NULL;
    flux_tensor *y = flux__node(FLUX__SORT, FLUX_I64, &matrix, x, NULL, NULL);
    if (!y) return NULL;
    y->arg.i[0] = descending;
    y = flux__done(y);
    return y ? flux_permute_with(flux_reshape_with(y, moved), swapped) : NULL;
}

/* Checks a call's operand and dim; a scalar has dim 0. False: an error was told. */
static bool flux__check_sorted(const char *call, flux_tensor *x, int dim) {
    if (!flux__check_operands(call, 1, &x)) return false;
    return (x->ndim == 0 && dim == 0) || flux__check_dim(call, x, dim);
}

FLUX_DEF flux_tensor *flux_argsort_with(flux_sort_opts o) {
    if (!flux__check_sorted("argsort", o.x, o.dim)) return NULL;
    int h = flux__hide();
    return flux__reveal(h, flux__sorted_order("argsort", o.x, o.dim, o.descending));
}

FLUX_DEF flux_tensor *flux_sort_with(flux_sort_opts o) {
    if (!flux__check_sorted("sort", o.x, o.dim)) return NULL;
    if (o.x->ndim == 0) return o.x;
    int h = flux__hide();
    flux_tensor *order = flux__sorted_order("sort", o.x, o.dim, o.descending);
    return flux__reveal(h, order ? flux_take_along(o.x, o.dim, order) : NULL);
}

/* The tuple of the k largest elements along dim, the largest first, and their indices. */
FLUX_DEF flux_tensor *flux_topk(flux_tensor *x, int64_t k, int dim) {
    if (!flux__check_operands("topk", 1, &x) || !flux__check_dim("topk", x, dim)) return NULL;
    if (k < 0 || k > x->dim[dim])
        return (flux_tensor *)flux__fail("topk: %lld of dim %d of %s", (long long)k, dim,
                                         flux__describe(x).s);
    int h = flux__hide();
    flux_tensor *order = flux__sorted_order("topk", x, dim, true), *both[2];
    both[1] = order ? flux_slice(order, dim, 0, k) : NULL;
    both[0] = both[1] ? flux_take_along(x, dim, both[1]) : NULL;
    return flux__reveal(h, both[0] ? flux_tuple_with(2, both) : NULL);
}

/* The numbers below n in random order. */
FLUX_DEF flux_tensor *flux_randperm(int64_t n) {
    if (n < 0 || n > UINT32_MAX)
        return (flux_tensor *)flux__fail("randperm: %lld numbers, which is not within 0 to %lld",
                                         (long long)n, (long long)UINT32_MAX);
    int h = flux__hide_in("randperm");
    flux_tensor *u = flux_rand_with(flux__shape(&n, 1), FLUX_F64);
    return flux__reveal(h, u ? flux__sorted_order("randperm", u, 0, false) : NULL);
}

FLUX__END_COLD

#endif /* FLUX__GRAPH_SORTING_H */
