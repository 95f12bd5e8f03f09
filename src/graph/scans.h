#ifndef FLUX__GRAPH_SCANS_H
#define FLUX__GRAPH_SCANS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"
#include "reductions.h"

/* ---------------------------------------------------------------------- graph/scans.h
   Running sums and products along a dim. The dim is cut into blocks; within
   all blocks at once, the element 1, 2, 4, ... places before is added
   (Hillis and Steele 1986), then the scan of the blocks' totals, shifted by one
   block (Blelloch 1990). All of it is composed of views and rows, so that
   gradients, also of a product with zeros, and back ends follow.

   Invariant: each pass touches the whole dim, so a level takes log2 of the
   block's size passes, and the next level is that much smaller: in all fewer
   than 7 passes over the elements, and as much memory as they, for any length.
   What stands before the first element is the neutral one, 0 or 1.

   Rejected: a product with a triangle of ones, which is O(n^2), and in which an
   infinite element makes NaN of those before it; a quotient of products as the
   gradient of a product, which fails at zeros. */

FLUX__BEGIN_COLD

enum { FLUX__SCAN_BLOCK = 16 };

/* x, whose dims are inner x n x rest, moved `by` places along dim 1: the neutral element comes in,
   the last `by` go. */
static flux_tensor *flux__shifted_by(flux_tensor *x, int64_t by, double neutral) {
    flux_shape lo = flux__shape(NULL, 2), hi = lo;
    lo.dim[0] = hi.dim[0] = hi.dim[1] = 0, lo.dim[1] = by;
    return flux_pad_by(flux_slice(x, 1, 0, x->dim[1] - by), neutral, lo, hi);
}

/* The scan of x, inner x n x rest, along dim 1. */
static flux_tensor *flux__scan(flux_tensor *x, bool product) {
    int64_t inner = x->dim[0], n = x->dim[1], rest = x->dim[2], block = FLUX__SCAN_BLOCK;
    double neutral = product ? 1 : 0;
    const int64_t blocks = n / block + (n % block != 0), full = flux__times(blocks, block);
    if (n > block) {                      /* as inner x block x (blocks rest) of each block */
        flux_shape lo = flux__shape(NULL, 2), hi = lo;
        lo.dim[0] = hi.dim[0] = lo.dim[1] = 0, hi.dim[1] = full - n;
        x = flux_pad_by(x, neutral, lo, hi);
        x = x ? flux_reshape(x, inner, block, blocks * rest) : NULL;
    }
    for (int64_t by = 1; x && by < x->dim[1]; by *= 2) {
        flux_tensor *before = flux__shifted_by(x, by, neutral);
        x = product ? flux_mul(x, before) : flux_add(x, before);
    }
    if (!x || n <= block) return x;
    flux_tensor *t = flux_reshape(flux_slice(x, 1, block - 1, block), inner, blocks, rest);
    t = t ? flux__scan(t, product) : NULL;
    t = t ? flux_reshape(flux__shifted_by(t, 1, neutral), inner, 1, blocks, rest) : NULL;
    x = t ? flux_reshape(x, inner, block, blocks, rest) : NULL;
    if (!x) return NULL;
    x = product ? flux_mul(x, t) : flux_add(x, t);
    return flux_slice(flux_reshape(x, inner, full, rest), 1, 0, n);
}

/* A public scan: along the dim named, or dim 0 of a vector. Sums of integers are int64, and half
   formats compute in float32. */
static flux_tensor *flux__scan_call(const char *call, bool product, int n, flux_reduce_opts *o) {
    flux_tensor *x = o->x;
    if (!flux__check_operands(call, 1, &x)) return NULL;
    if (n > 1 || (n == 0 && x->ndim > 1))
        return (flux_tensor *)flux__fail("%s: takes one dim, got %d for %s", call, n,
                                         flux__describe(x).s);
    int dim = n ? o->d0 : 0, given = x->dtype;
    const bool scalar = x->ndim == 0 && dim == 0;
    if (!scalar && !flux__check_dim(call, x, dim)) return NULL;
    flux_shape s = flux__dims(x);
    int64_t d3[3] = { 1, scalar ? 1 : s.dim[dim], 1 };
    for (int d = 0; d < s.ndim; d++)
        if (d != dim) d3[d < dim ? 0 : 2] *= s.dim[d];
    int h = flux__hide();
    x = flux__dtypes[given].real ? flux__widened(x) : flux__cast(x, FLUX_I64);
    if (x && flux__size(x)) {
        x = flux_reshape_with(x, flux__shape(d3, 3));
        x = x ? flux__scan(x, product) : NULL;
        x = x ? flux_reshape_with(x, s) : NULL;
    }
    return flux__reveal(h, x && flux__dtypes[given].real ? flux__narrow(x, given) : x);
}

FLUX_DEF flux_tensor *flux_cumsum_with(int n, flux_reduce_opts o) {
    return flux__scan_call("cumsum", false, n, &o);
}
FLUX_DEF flux_tensor *flux_cumprod_with(int n, flux_reduce_opts o) {
    return flux__scan_call("cumprod", true, n, &o);
}
FLUX__PUBLIC_RED(cumsum) FLUX__PUBLIC_RED(cumprod)

FLUX__END_COLD

#endif /* FLUX__GRAPH_SCANS_H */
