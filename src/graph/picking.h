#ifndef FLUX__GRAPH_PICKING_H
#define FLUX__GRAPH_PICKING_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "leaves.h"
#include "views.h"
#include "reductions.h"

/* ---------------------------------------------------------------------- graph/picking.h
   Operations that pick elements by their place or by what they are: isnan,
   isfinite, masked_fill; the triangles and the diagonal of a matrix, its trace;
   take_along; split and chunk. All are composed of rows, views and gather,
   whose gradients are theirs.

   Invariant: a matrix is dims 0 (rows) and 1 (columns); diagonal k is where the
   column less the row is k, so that those above the main one are positive. */

FLUX__BEGIN_COLD

/* Bools in the shape of x; an integer is always finite. */
FLUX_DEF flux_tensor *flux_isnan(flux_tensor *x) {
    if (!flux__check_operands("isnan", 1, &x)) return NULL;
    return flux_ne(x, x);
}
FLUX_DEF flux_tensor *flux_isfinite(flux_tensor *x) {
    if (!flux__check_operands("isfinite", 1, &x)) return NULL;
    int h = flux__hide();
    flux_tensor *y = flux__dtypes[x->dtype].real ? flux_lt(flux_abs(x), (double)HUGE_VAL)
                                                 : flux_eq(x, x);
    return flux__reveal(h, y);
}

FLUX_DEF flux_tensor *flux_masked_fill(flux_tensor *x, flux_tensor *mask, double value) {
    flux_tensor *xs[2] = { x, mask };
    if (!flux__check_operands("masked_fill", 2, xs)) return NULL;
    int h = flux__hide_in("masked_fill");
    return flux__reveal(h, (flux_where)(mask, flux__number(value), x));
}

/* x where the column less the row is at most k (lower) or at least k, else 0. */
static flux_tensor *flux__band(const char *call, flux_tensor *x, bool lower, int k) {
    if (!flux__check_operands(call, 1, &x)) return NULL;
    if (x->ndim < 2)
        return (flux_tensor *)flux__fail("%s: takes a matrix or a batch of them, not %s", call,
                                         flux__describe(x).s);
    if (!flux__size(x)) return flux_copy(x);     /* rows may be as many as memory cannot number */
    int h = flux__hide();
    flux_tensor *row = flux__iota_on(x->device, x->dim[0], 0),
        *column = flux__iota_on(x->device, x->dim[1], 1), *off = flux_sub(column, row);
    flux_tensor *in = lower ? flux_le(off, k) : flux_ge(off, k);
    flux_tensor *y = x->dtype == FLUX_BOOL ? flux_and(x, in) : flux_where(in, x, 0.0);
    return flux__reveal(h, y);
}
FLUX_DEF flux_tensor *flux_tril_with(int n, flux_reduce_opts o) {
    return flux__band("tril", o.x, true, n ? o.d0 : 0);
}
FLUX_DEF flux_tensor *flux_triu_with(int n, flux_reduce_opts o) {
    return flux__band("triu", o.x, false, n ? o.d0 : 0);
}

/* Diagonal k of a matrix as a vector, or the square matrix that has the vector x there. */
FLUX_DEF flux_tensor *flux_diag_with(int n, flux_reduce_opts o) {
    flux_tensor *x = o.x;
    int64_t k = n ? o.d0 : 0, right = k > 0 ? k : 0, down = k < 0 ? -k : 0;
    if (!flux__check_operands("diag", 1, &x)) return NULL;
    if (x->ndim != 1 && x->ndim != 2)
        return (flux_tensor *)flux__fail("diag: takes a vector or a matrix, not %s",
                                         flux__describe(x).s);
    int h = flux__hide();
    if (x->ndim == 1) {
        int64_t size = flux__plus(x->dim[0], right + down), step = flux__plus(size, 1);
        flux_shape s = FLUX_SHAPE(size, size);
        if (!flux__check_shape("diag", &s)) return flux__reveal(h, NULL);
        return flux__reveal(h, flux__as_strided_scatter(x, &s, down + right * size, &step, 0,
                                                        false));
    }
    int64_t rows = x->dim[0], along = rows - down, across = x->dim[1] - right,
        count = along < across ? along : across,
        start = flux__plus(down, flux__times(right, rows));
    if (count <= 0) return flux__reveal(h, flux_slice(flux_reshape(x, -1), 0, 0, 0));
    return flux__reveal(h, flux_slice_step(flux_reshape(x, -1), 0, start,
                                           start + (count - 1) * (rows + 1) + 1, rows + 1));
}

/* The sum of the main diagonal of a square matrix. */
FLUX_DEF flux_tensor *flux_trace(flux_tensor *x) {
    if (!flux__check_operands("trace", 1, &x)) return NULL;
    if (x->ndim != 2 || x->dim[0] != x->dim[1])
        return (flux_tensor *)flux__fail("trace: takes a square matrix, not %s",
                                         flux__describe(x).s);
    int h = flux__hide();
    return flux__reveal(h, (flux_sum)(x->dim[0] ? (flux_diag)(x) : x));
}

/* The place in x, as it lies contiguously, that each element of index names: its own place, but
   along dim the index. Where that is out of range the place is -1, which gather refuses. */
static flux_tensor *flux__places_along(flux_tensor *x, int dim, flux_tensor *index) {
    int64_t stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    if (!flux__size(index)) return flux_to_dtype(index, FLUX_I64);
    flux__contiguous_strides(&s, stride);
    flux_tensor *wide = flux_to_dtype(index, FLUX_I64),
        *at = flux_mul(wide, (double)stride[dim]);
    flux_tensor *in = flux_and(flux_ge(wide, 0.0), flux_lt(wide, (double)x->dim[dim]));
    for (int d = 0; d < x->ndim; d++)
        if (d != dim && index->dim[d] > 1)
            at = flux_add(at, flux_mul(flux__iota_on(index->device, index->dim[d], d),
                                       (double)stride[d]));
    return flux_where(in, at, -1.0);
}

FLUX_DEF flux_tensor *flux_take_along(flux_tensor *x, int dim, flux_tensor *index) {
    flux_tensor *xs[2] = { x, index };
    if (!flux__check_operands("take_along", 2, xs) || !flux__check_dim("take_along", x, dim) ||
        !flux__check_index("take_along", index)) return NULL;
    bool fits = index->ndim == x->ndim;
    for (int d = 0; fits && d < x->ndim; d++) fits = d == dim || index->dim[d] <= x->dim[d];
    if (!fits)
        return (flux_tensor *)flux__fail("take_along: along dim %d, index %s is not within x %s",
                                         dim, flux__describe(index).s, flux__describe(x).s);
    int h = flux__hide();
    flux_tensor *at = flux__places_along(x, dim, index);
    return flux__reveal(h, flux_gather(flux_reshape(x, -1), 0, at));
}

/* A tuple of the pieces of `size` indices of x along dim; the last may be smaller. */
static flux_tensor *flux__pieces(const char *call, flux_tensor *x, int dim, int64_t size) {
    flux_tensor *piece[255];
    int64_t n = x->dim[dim], count = n ? n / size + (n % size != 0) : 1;
    if (count > 255)
        return (flux_tensor *)flux__fail("%s: more than 255 pieces of dim %d of %s", call, dim,
                                         flux__describe(x).s);
    int h = flux__hide();
    for (int64_t i = 0; i < count; i++)
        piece[i] = flux_slice(x, dim, i * size, i + 1 < count ? (i + 1) * size : n);
    return flux__reveal(h, flux_tuple_with((int)count, piece));
}

/* One size: pieces of it, of which the last may be smaller; several: they must be all of dim. */
FLUX_DEF flux_tensor *flux_split_with(flux_tensor *x, int dim, flux_shape sizes) {
    if (!flux__check_operands("split", 1, &x) || !flux__check_dim("split", x, dim)) return NULL;
    int64_t sum = 0;
    bool good = sizes.ndim >= 1 && sizes.ndim <= FLUX_MAX_DIMS;
    for (int i = 0; good && i < sizes.ndim; i++) {
        good = sizes.dim[i] > (sizes.ndim == 1 ? 0 : -1);
        sum = flux__plus(sum, good ? sizes.dim[i] : 0);
    }
    if (!good || (sizes.ndim > 1 && sum != x->dim[dim]))
        return (flux_tensor *)flux__fail("split: %d sizes, %lld in all, do not cut dim %d of %s",
                                         sizes.ndim, (long long)sum, dim, flux__describe(x).s);
    if (sizes.ndim == 1) return flux__pieces("split", x, dim, sizes.dim[0]);
    flux_tensor *piece[FLUX_MAX_DIMS];
    int64_t at = 0;
    int h = flux__hide();
    for (int i = 0; i < sizes.ndim; at += sizes.dim[i++])
        piece[i] = flux_slice(x, dim, at, at + sizes.dim[i]);
    return flux__reveal(h, flux_tuple_with(sizes.ndim, piece));
}

/* Pieces of size ceil(n / pieces): there may be fewer of them, as in PyTorch. */
FLUX_DEF flux_tensor *flux_chunk(flux_tensor *x, int dim, int64_t pieces) {
    if (!flux__check_operands("chunk", 1, &x) || !flux__check_dim("chunk", x, dim)) return NULL;
    if (pieces < 1) return (flux_tensor *)flux__fail("chunk: %lld pieces", (long long)pieces);
    int64_t size = x->dim[dim] / pieces + (x->dim[dim] % pieces != 0);
    if (size < 1) size = 1;
    return flux__pieces("chunk", x, dim, size);
}

/* The calls without a diagonal. */
FLUX__PUBLIC_RED(tril) FLUX__PUBLIC_RED(triu) FLUX__PUBLIC_RED(diag)

FLUX__END_COLD

#endif /* FLUX__GRAPH_PICKING_H */
