#ifndef FLUX__GRAPH_VIEWS_H
#define FLUX__GRAPH_VIEWS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add */
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"

/* ---------------------------------------------------------------------- graph/views.h
   Views and other rearrangements. Reshape, permute, slice, flip, broadcast and
   detach show the elements of another tensor by offset and strides and copy
   nothing; flux__as_strided is as_strided, and flux__as_strided_scatter its reverse,
   as_strided_scatter. Concatenation, stacking, gather, scatter_add and tuples
   follow, and the queries of shape and dtype.

   Invariant: a view's base is never a view; its offset and strides are in the
   base's elements. A strided view also keeps rel and arg.i: its offset and
   strides in the operand as if that lay contiguously, which is what its
   gradient needs. A reshape that strides cannot express is a view of a copy. A
   stride along a dim of size 1 is never used, and is 0 where the step might
   overflow. Views of bare and full numbers stay numbers. */

FLUX__BEGIN_LEAN

/* A view of x in shape s: its elements are those of `base` from offset by stride. The caller
   calls flux__done. */
static flux_tensor *flux__view(int op, flux_tensor *x, const flux_shape *s, flux_tensor *base,
                               int64_t offset, const int64_t *stride) {
    flux_tensor *y = flux__node(op, (flux_dtype)x->dtype, s, x, NULL, NULL);
    if (!y) return NULL;
    FLUX__ASSERT(!FLUX__IS_VIEW(base) && offset >= 0);
    flux__edge(&y->base, base);
    y->offset = offset;
    for (int i = 0; i < s->ndim; i++) y->stride[i] = stride[i];
    return y;
}

/* The strides `want` by which a tensor of dims `from` and strides `have` is shown in dims `to`
   without copying: each run of old dims that are contiguous among themselves is divided anew.
   False: the reshape needs a copy. */
static bool flux__reshape_strides(const flux_shape *from, const int64_t *have, const flux_shape *to,
                                  int64_t *want) {
    int i = 0, j = 0;
    while (j < to->ndim || i < from->ndim) {
        int64_t a = 1, b = 1, step;
        while (i < from->ndim && from->dim[i] == 1) i++;
        while (j < to->ndim && to->dim[j] == 1) want[j++] = 1;
        if (i >= from->ndim || j >= to->ndim) return true;
        /* one run of old dims and one of new dims with equally many elements: a and b are their
           lengths so far, and the shorter one takes another dim */
        int j0 = j;
        step = have[i];
        a = from->dim[i++];
        b = to->dim[j++];
        while (a != b) {
            if (a < b) {
                while (i < from->ndim && from->dim[i] == 1) i++;
                if (i >= from->ndim || have[i] != step * a) return false;
                a *= from->dim[i++];
            } else {
                if (j >= to->ndim) return false;
                b *= to->dim[j++];
            }
        }
        for (int k = j0; k < j; k++) {
            want[k] = step;
            step *= to->dim[k];
        }
    }
    return true;
}

/* x in shape s, in which one dim may be -1: it is what the others leave. A view where strides can
   express it, else a view of a copy. */
FLUX_DEF flux_tensor *flux_reshape_with(flux_tensor *x, flux_shape s) {
    if (!flux__check_operands("reshape", 1, &x)) return NULL;
    int64_t n = flux__size(x), known = 1, offset, have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS];
    int open = -1, opens = 0;
    for (int i = 0; i < s.ndim && i < FLUX_MAX_DIMS; i++)
        if (s.dim[i] == -1) open = i, opens++;
        else known = flux__times(known, s.dim[i]);
    /* the one dim of -1 is what the others leave; a second one is refused as negative */
    if (opens == 1 && known > 0) s.dim[open] = n / known;
    if (!flux__check_shape("reshape", &s)) return NULL;
    if (flux__count(&s) != n)
        return (flux_tensor *)flux__fail("reshape: %s has %lld elements, %s has %lld",
                                         flux__describe(x).s, (long long)n, flux__shape_text(&s).s,
                                         (long long)flux__count(&s));
    flux_shape from = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, have);
    if (n == 0) flux__contiguous_strides(&s, want);
    else if (!flux__reshape_strides(&from, have, &s, want)) {
        int h = flux__hide();
        flux_tensor *same = flux__is_number(x)
                            ? flux__done(flux__renumber(x, &from, (flux_dtype)x->dtype, x->device))
                            : flux_copy(x);
        return flux__reveal(h, flux_reshape_with(same, s));
    }
    flux_tensor *y = flux__view(FLUX__RESHAPE, x, &s, base, offset, want);
    return y ? flux__done(y) : NULL;
}

/* x as a matrix: all dims but the last become one. */
FLUX_DEF flux_tensor *flux_flatten(flux_tensor *x) {
    if (!flux__check_operands("flatten", 1, &x)) return NULL;
    int64_t n = x->ndim ? x->dim[x->ndim - 1] : 1, dims[2] = { 1, n };
    for (int i = 0; i + 1 < x->ndim; i++) dims[0] *= x->dim[i];
    return flux_reshape_with(x, flux__shape(dims, 2));
}

/* A view of x whose dim i is x's dim order[i]; order must be a permutation. */
static flux_tensor *flux__permuted(flux_tensor *x, const int64_t *order) {
    int64_t offset, have[FLUX_MAX_DIMS];
    flux_shape s;
    flux_tensor *base = flux__layout(x, &offset, have);
    s.ndim = x->ndim;
    for (int i = 0; i < x->ndim; i++) s.dim[i] = x->dim[order[i]];
    flux_tensor *y = flux__node(FLUX__PERMUTE, (flux_dtype)x->dtype, &s, x, NULL, NULL);
    if (!y) return NULL;
    flux__edge(&y->base, base);
    y->offset = offset;
    for (int i = 0; i < x->ndim; i++) y->arg.i[i] = order[i], y->stride[i] = have[order[i]];
    return flux__done(y);
}

/* Permutes dims: order must name each dim of x once. */
FLUX_DEF flux_tensor *flux_permute_with(flux_tensor *x, flux_shape order) {
    if (!flux__check_operands("permute", 1, &x)) return NULL;
    unsigned seen = 0;
    for (int i = 0; i < order.ndim && i < FLUX_MAX_DIMS; i++)
        if (order.dim[i] >= 0 && order.dim[i] < x->ndim) seen |= 1u << order.dim[i];
    if (order.ndim != x->ndim || seen != (1u << x->ndim) - 1)
        return (flux_tensor *)flux__fail("permute: the order must name each of the %d dims of %s "
                                         "once",
                                         x->ndim, flux__describe(x).s);
    return flux__permuted(x, order.dim);
}

/* Swaps dims 0 and 1, for each matrix of a batch; a vector becomes a row. */
FLUX_DEF flux_tensor *flux_transpose(flux_tensor *x) {
    if (!flux__check_operands("transpose", 1, &x)) return NULL;
    static const int64_t order[FLUX_MAX_DIMS] = { 1, 0, 2, 3, 4, 5, 6, 7 };
    int64_t row[2] = { 1, x->ndim ? x->dim[0] : 1 };
    return x->ndim < 2 ? flux_reshape_with(x, flux__shape(row, 2)) : flux__permuted(x, order);
}

/* as_strided: the view of shape s whose elements lie in `base` from start_at by stride_at. rel
   and step say the same positions in x as if x were contiguous; the gradient, a
   FLUX__AS_STRIDED_SCATTER,
   needs them. */
static flux_tensor *flux__as_strided(flux_tensor *x, const flux_shape *s, int64_t rel,
                                  const int64_t *step, int64_t start_at, const int64_t *stride_at,
                                  flux_tensor *base) {
    flux_tensor *y = flux__view(FLUX__AS_STRIDED, x, s, base, start_at, stride_at);
    if (!y) return NULL;
    y->rel = rel;
    for (int i = 0; i < s->ndim; i++) y->arg.i[i] = step[i];
    return flux__done(y);
}

/* Checks that x has the dim. False: an error was told. */
static bool flux__check_dim(const char *call, const flux_tensor *x, int dim) {
    if (dim >= 0 && dim < x->ndim) return true;
    return FLUX__REFUSE("%s: %s has no dim %d", call, flux__describe(x).s, dim);
}

/* The view of shape s whose index i along dim d is x's index start[d] + i * step[d]. */
static flux_tensor *flux__walk_view(flux_tensor *x, const int64_t *start, const int64_t *step,
                                    const flux_shape *s) {
    int64_t contiguous[FLUX_MAX_DIMS], have[FLUX_MAX_DIMS], rel = 0, offset, rels[FLUX_MAX_DIMS],
        want[FLUX_MAX_DIMS];
    flux_shape from = flux__dims(x);
    flux__contiguous_strides(&from, contiguous);
    flux_tensor *base = flux__layout(x, &offset, have);
    for (int d = 0; d < x->ndim; d++) {
        rel += start[d] * contiguous[d];
        offset += start[d] * have[d];
        /* the step along a dim of size 1 may be huge: it is left 0 */
        const bool walks = s->dim[d] > 1;
        rels[d] = walks ? step[d] * contiguous[d] : 0;
        want[d] = walks ? step[d] * have[d] : 0;
    }
    return flux__as_strided(x, s, rel, rels, offset, want, base);
}

/* The view of indices start, start + step, ... below stop along dim. A slice of everything is x
   itself. */
FLUX_DEF flux_tensor *flux_slice_step(flux_tensor *x, int dim, int64_t start, int64_t stop,
                                      int64_t step) {
    if (!flux__check_operands("slice", 1, &x) || !flux__check_dim("slice", x, dim)) return NULL;
    int64_t starts[FLUX_MAX_DIMS] = { 0 }, steps[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    if (start < 0 || stop < start || stop > x->dim[dim] || step < 1)
        return (flux_tensor *)flux__fail("slice: %lld to %lld by %lld is not within dim %d of %s",
                                         (long long)start, (long long)stop, (long long)step, dim,
                                         flux__describe(x).s);
    if (start == 0 && stop == x->dim[dim] && step == 1) return x;
    for (int i = 0; i < x->ndim; i++) steps[i] = 1;
    starts[dim] = stop > start ? start : 0;
    steps[dim] = step;
    s.dim[dim] = flux__plus((stop - start) / step, (stop - start) % step != 0);
    return flux__walk_view(x, starts, steps, &s);
}

FLUX_DEF flux_tensor *flux_slice(flux_tensor *x, int dim, int64_t start, int64_t stop) {
    return flux_slice_step(x, dim, start, stop, 1);
}

/* The first n observations of x's last dim, or those after them. */
static flux_tensor *flux__split(const char *call, flux_tensor *x, int64_t n, bool first) {
    if (!flux__check_operands(call, 1, &x)) return NULL;
    int last = x->ndim - 1;
    if (last < 0 || n < 0 || n > x->dim[last])
        return (flux_tensor *)flux__fail("%s: %s does not have %lld observations in its last dim",
                                         call, flux__describe(x).s, (long long)n);
    return first ? flux_slice(x, last, 0, n) : flux_slice(x, last, n, x->dim[last]);
}

FLUX_DEF flux_tensor *flux_take(flux_tensor *x, int64_t n) {
    return flux__split("take", x, n, true);
}
FLUX_DEF flux_tensor *flux_drop(flux_tensor *x, int64_t n) {
    return flux__split("drop", x, n, false);
}

/* x at one index of dim, without that dim: a slice, reshaped. */
FLUX_DEF flux_tensor *flux_select(flux_tensor *x, int dim, int64_t index) {
    if (!flux__check_operands("select", 1, &x) || !flux__check_dim("select", x, dim)) return NULL;
    if (index < 0 || index >= x->dim[dim])
        return (flux_tensor *)flux__fail("select: index %lld is not within dim %d of %s",
                                         (long long)index, dim, flux__describe(x).s);
    flux_shape s = flux__dims(x);
    for (int i = dim; i + 1 < s.ndim; i++) s.dim[i] = s.dim[i + 1];
    s.ndim--;
    int h = flux__hide();
    return flux__reveal(h, flux_reshape_with(flux_slice(x, dim, index, index + 1), s));
}

/* x with a new dim of size 1 before dim `dim`, or after the last. */
FLUX_DEF flux_tensor *flux_unsqueeze(flux_tensor *x, int dim) {
    if (!flux__check_operands("unsqueeze", 1, &x)) return NULL;
    if (dim < 0 || dim > x->ndim || x->ndim == FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("unsqueeze: no new dim can stand before dim %d of %s", dim,
                                         flux__describe(x).s);
    flux_shape s = flux__dims(x);
    for (int i = s.ndim++; i > dim; i--) s.dim[i] = s.dim[i - 1];
    s.dim[dim] = 1;
    return flux_reshape_with(x, s);
}

/* x without its dims of size 1. */
FLUX_DEF flux_tensor *flux_squeeze(flux_tensor *x) {
    if (!flux__check_operands("squeeze", 1, &x)) return NULL;
    flux_shape s = flux__shape(NULL, 0);
    for (int i = 0; i < x->ndim; i++)
        if (x->dim[i] != 1) s.dim[s.ndim++] = x->dim[i];
    return flux_reshape_with(x, s);
}

/* x broadcast to shape s: dims of size 1, and dims that x lacks at its end, get stride 0. A
   number stays a number. */
FLUX_DEF flux_tensor *flux_broadcast_to_with(flux_tensor *x, flux_shape s) {
    if (!flux__check_operands("broadcast_to", 1, &x) || !flux__check_shape("broadcast_to", &s))
        return NULL;
    int64_t offset, have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS];
    flux_tensor *base = flux__layout(x, &offset, have);
    bool same = x->ndim == s.ndim;
    for (int i = 0; i < s.ndim; i++) {
        int64_t n = i < x->ndim ? x->dim[i] : 1;
        want[i] = n == 1 ? 0 : have[i];   /* each index of a broadcast dim shows the same element */
        if (n != s.dim[i]) same = false;
        if (n != s.dim[i] && n != 1)
            return (flux_tensor *)flux__fail("broadcast_to: %s does not stretch to %s",
                                             flux__describe(x).s, flux__shape_text(&s).s);
    }
    for (int i = s.ndim; i < x->ndim; i++)
        if (x->dim[i] != 1)
            return (flux_tensor *)flux__fail("broadcast_to: %s does not stretch to %s",
                                             flux__describe(x).s, flux__shape_text(&s).s);
    if (same) return x;
    flux_tensor *y = x->op == FLUX__NUMBER ? flux__renumber(x, &s, (flux_dtype)x->dtype, x->device)
                                           : flux__view(FLUX__BROADCAST, x, &s, base, offset, want);
    return y ? flux__done(y) : NULL;
}

/* The view of x with the named dims reversed. */
FLUX_DEF FLUX__COLD flux_tensor *flux_flip_with(flux_tensor *x, flux_shape dims) {
    if (!flux__check_operands("flip", 1, &x)) return NULL;
    int64_t start[FLUX_MAX_DIMS] = { 0 }, step[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    for (int i = 0; i < x->ndim; i++) step[i] = 1;
    if (dims.ndim < 0 || dims.ndim > FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("flip: %d dims", dims.ndim);
    for (int i = 0; i < dims.ndim; i++) {
        int d = dims.dim[i] < 0 || dims.dim[i] >= x->ndim ? -1 : (int)dims.dim[i];
        if (d < 0)
            return (flux_tensor *)flux__fail("flip: %s has no dim %lld", flux__describe(x).s,
                                             (long long)dims.dim[i]);
        start[d] = x->dim[d] ? x->dim[d] - 1 : 0;
        step[d] = -1;
    }
    return flux__walk_view(x, start, step, &s);
}

/* A leaf that shares the buffer of the finished tensor x and has no operands, so that what x was
   computed from can be freed. */
static flux_tensor *flux__share(flux_tensor *x) {
    flux_shape s = flux__dims(x);
    flux_tensor *y = flux__node_raw(FLUX__LEAF, (flux_dtype)x->dtype, &s, x->device, 0);
    if (!y) return NULL;
    flux__atomic_add(&x->buf->refs, 1);
    y->buf = x->buf;
    return (flux_tensor *)flux__own(y);
}

/* x's value without its gradient: of a finished tensor a leaf that shares its buffer, else a view
   through which no gradient passes. */
FLUX_DEF flux_tensor *flux_detach(flux_tensor *x) {
    if (!flux__check_operands("detach", 1, &x)) return NULL;
    if (x->op != FLUX__NUMBER && flux__see_buffer(&x->buf)) return flux__share(x);
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, stride);
    flux_tensor *y = flux__view(FLUX__DETACH, x, &s, base, offset, stride);
    return y ? flux__done(y) : NULL;
}

/* as_strided_scatter, the reverse of a strided view: a tensor of shape s filled with `fill`, in
   which x's elements stand at the positions that start at rel and go by step, both counted in the
   contiguous result. meet: positions may coincide, so elements are added up. */
static flux_tensor *flux__as_strided_scatter(flux_tensor *x, const flux_shape *s, int64_t rel,
                                 const int64_t *step, double fill, bool meet) {
    flux_tensor *y = flux__node(FLUX__AS_STRIDED_SCATTER, (flux_dtype)x->dtype, s, x, NULL, NULL);
    if (!y) return NULL;
    y->rel = rel;
    y->arg.num = fill;
    y->arg.i[1] = meet;
    for (int i = 0; i < FLUX_MAX_DIMS; i++) y->stride[i] = i < x->ndim ? step[i] : 0;
    return flux__done(y);
}

/* x with lo[d] elements of `value` before and hi[d] behind in each dim d; dims that are not named
   get none. */
FLUX_DEF FLUX__COLD flux_tensor *flux_pad_by(flux_tensor *x, double value, flux_shape lo,
                                             flux_shape hi) {
    if (!flux__check_operands("pad", 1, &x)) return NULL;
    flux_shape s = flux__dims(x);
    int64_t contiguous[FLUX_MAX_DIMS], rel = 0;
    bool none = true;
    if (lo.ndim < 0 || hi.ndim < 0 || lo.ndim > s.ndim || hi.ndim > s.ndim)
        return (flux_tensor *)flux__fail("pad: %d dims to pad, but x is %s",
                                         lo.ndim < 0 || lo.ndim > s.ndim ? lo.ndim : hi.ndim,
                                         flux__describe(x).s);
    for (int i = 0; i < s.ndim; i++) {
        int64_t l = i < lo.ndim ? lo.dim[i] : 0, r = i < hi.ndim ? hi.dim[i] : 0;
        if (l < 0 || r < 0)
            return (flux_tensor *)flux__fail("pad: negative padding (%lld, %lld) of dim %d",
                                             (long long)l, (long long)r, i);
        s.dim[i] = flux__plus(s.dim[i], flux__plus(l, r));
        if (l || r) none = false;
    }
    if (none) return x;
    if (!flux__check_shape("pad", &s)) return NULL;
    flux__contiguous_strides(&s, contiguous);
    for (int i = 0; i < lo.ndim; i++) rel += lo.dim[i] * contiguous[i];
    return flux__as_strided_scatter(x, &s, rel, contiguous, value, false);
}

/* flux_pad_by with both sides in one list: lo and hi of dim 0, of dim 1, ... */
FLUX_DEF FLUX__COLD flux_tensor *flux_pad_with(flux_tensor *x, double value, flux_shape lo_hi) {
    flux_shape lo = flux__shape(NULL, 0), hi = lo;
    if (lo_hi.ndim < 0 || lo_hi.ndim % 2 || lo_hi.ndim > FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("pad: %d numbers, but each of up to %d dims needs two",
                                         lo_hi.ndim, FLUX_MAX_DIMS / 2);
    for (int i = 0; i < lo_hi.ndim; i += 2) {
        lo.dim[lo.ndim++] = lo_hi.dim[i];
        hi.dim[hi.ndim++] = lo_hi.dim[i + 1];
    }
    return flux_pad_by(x, value, lo, hi);
}

/* Repeats x times[d] times along each dim d: x is reshaped so that a dim of size 1 stands behind
   dim d, broadcast along that and copied. */
FLUX_DEF FLUX__COLD flux_tensor *flux_repeat_with(flux_tensor *x, flux_shape times) {
    if (!flux__check_operands("repeat", 1, &x)) return NULL;
    int nd = x->ndim > times.ndim ? x->ndim : times.ndim;
    flux_shape out = flux__shape(NULL, nd);
    if (times.ndim < 0 || nd > FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("repeat: %d dims, at most %d", times.ndim, FLUX_MAX_DIMS);
    for (int d = 0; d < nd; d++) {
        int64_t by = d < times.ndim ? times.dim[d] : 1;
        if (by < 0) return (flux_tensor *)flux__fail("repeat: dim %d by %lld", d, (long long)by);
        out.dim[d] = flux__times(d < x->ndim ? x->dim[d] : 1, by);
    }
    if (!flux__check_shape("repeat", &out)) return NULL;
    int h = flux__hide_in("repeat");
    flux_tensor *y = x;
    for (int d = 0; d < nd && y; d++) {
        int64_t have = d < x->ndim ? x->dim[d] : 1, by = d < times.ndim ? times.dim[d] : 1,
            split[3] = { 1, 1, 1 }, rest = 1;
        for (int i = 0; i < d; i++) rest *= out.dim[i];
        if (by == 1) continue;
        /* y as [dims up to d, 1, dims after d]: the 1 is broadcast to `by` */
        split[0] = rest * have;
        split[2] = flux__size(y) / (split[0] > 0 ? split[0] : 1);
        y = flux_reshape_with(y, flux__shape(split, 3));
        split[1] = by;
        y = y ? flux_copy(flux_broadcast_to_with(y, flux__shape(split, 3))) : NULL;
    }
    return flux__reveal(h, y ? flux_reshape_with(y, out) : NULL);
}

/* Concatenates 1 to 255 tensors along dim, at the dtype at which they meet; `call` is named in
   messages. All other dims must be equal; a dim past a tensor's last counts as size 1. */
static flux_tensor *flux__cat(const char *call, int dim, int n, flux_tensor *const *xs) {
    if (n < 1 || n > 255) return (flux_tensor *)flux__fail("%s: %d tensors (1 to 255)", call, n);
    if (!flux__check_operands(call, n, xs)) return NULL;
    flux_shape s = flux__dims(xs[0]);
    int t = flux__meet(call, n, xs);
    if (t < 0) return NULL;
    if (dim < 0 || dim >= FLUX_MAX_DIMS) return (flux_tensor *)flux__fail("%s: dim %d", call, dim);
    for (; s.ndim <= dim; s.ndim++) s.dim[s.ndim] = 1;
    int64_t total = 0;
    for (int k = 0; k < n; k++) {
        for (int d = 0; d < s.ndim || d < xs[k]->ndim; d++) {
            int64_t a = d < s.ndim ? s.dim[d] : 1, b = d < xs[k]->ndim ? xs[k]->dim[d] : 1;
            if (d == dim) total += b;
            else if (a != b)
                return (flux_tensor *)flux__fail("%s: along dim %d, %s and %s differ in dim %d",
                                                 call, dim, flux__describe(xs[0]).s,
                                                 flux__describe(xs[k]).s, d);
        }
    }
    s.dim[dim] = total;
    if (!flux__check_shape(call, &s)) return NULL;
    int h = flux__hide();
    flux_device place = flux__place(n, xs);
    flux_tensor *y = flux__node_raw(FLUX__CAT, (flux_dtype)t, &s, place, n);
    for (int k = 0; y && k < n; k++) {
        flux_tensor *x = flux__taken(xs[k], place, (flux_dtype)t);
        if (x) flux__edge(&y->in[k], x);
        else {
            flux_release(y);
            y = NULL;
        }
    }
    if (y) y->arg.i[0] = dim;
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

FLUX_DEF flux_tensor *flux_cat_with(int dim, int n, flux_tensor *const *xs) {
    return flux__cat("cat", dim, n, xs);
}

/* Concatenates any number of tensors along dim, 128 at a time, since kernels' compilers have
   limits too. Overwrites the list xs. */
static flux_tensor *flux__cat_many(int dim, int n, flux_tensor **xs) {
    while (n > 1) {
        int groups = 0;
        for (int i = 0; i < n; i += 128)
            xs[groups++] = flux_cat_with(dim, n - i < 128 ? n - i : 128, xs + i);
        n = groups;
    }
    return n ? xs[0] : NULL;
}

/* Concatenates tensors of one shape along a new dim. */
FLUX_DEF flux_tensor *flux_stack_with(int dim, int n, flux_tensor *const *xs) {
    if (n < 1 || n > 255) return (flux_tensor *)flux__fail("stack: %d tensors (1 to 255)", n);
    if (!flux__check_operands("stack", n, xs)) return NULL;
    flux_tensor *rows[255];
    int h = flux__hide_in("stack");
    for (int i = 0; i < n; i++) {
        if (!flux__same_dims(xs[i], xs[0])) {
            flux__fail("stack: shapes differ: %s and %s", flux__describe(xs[0]).s,
                       flux__describe(xs[i]).s);
            return flux__reveal(h, NULL);
        }
        rows[i] = flux_unsqueeze(xs[i], dim);
        if (!rows[i]) return flux__reveal(h, NULL);
    }
    return flux__reveal(h, flux_cat_with(dim, n, rows));
}

/* Checks that indices are of an integer dtype. False: an error was told. */
static bool flux__check_index(const char *call, const flux_tensor *index) {
    if (!flux__dtypes[index->dtype].real && index->dtype != FLUX_BOOL) return true;
    return FLUX__REFUSE("%s: indices must be integers, not %s", call, flux__describe(index).s);
}

/* The shape of gather's result: x's dims with index's dims in place of dim. False: an error was
   told. */
static bool flux__gather_shape(const char *call, const flux_tensor *x, int dim,
                               const flux_tensor *index, flux_shape *s) {
    if (!flux__check_dim(call, x, dim) || !flux__check_index(call, index)) return false;
    *s = flux__shape(x->dim, dim);
    if (x->ndim - 1 + index->ndim > FLUX_MAX_DIMS)
        return FLUX__REFUSE("%s: the result would have %d dims", call, x->ndim - 1 + index->ndim);
    for (int i = 0; i < index->ndim; i++) s->dim[s->ndim++] = index->dim[i];
    for (int i = dim + 1; i < x->ndim; i++) s->dim[s->ndim++] = x->dim[i];
    return flux__check_shape(call, s);
}

/* x's elements at the indices along dim: that dim is replaced by the dims of index. */
FLUX_DEF flux_tensor *flux_gather(flux_tensor *x, int dim, flux_tensor *index) {
    flux_tensor *xs[2] = { x, index };
    flux_shape s;
    if (!flux__check_operands("gather", 2, xs) || !flux__gather_shape("gather", x, dim, index, &s))
        return NULL;
    int h = flux__hide();
    flux_device place = flux__place(2, xs);
    x = flux__taken(x, place, (flux_dtype)x->dtype);
    index = flux__taken(index, place, FLUX_I64);
    flux_tensor *y = x && index ? flux__node(FLUX__GATHER, (flux_dtype)x->dtype, &s, x, index, NULL)
                                : NULL;
    if (y) y->arg.i[0] = dim;
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

/* x with src's elements added at the indices along dim; src has the shape of gather's result.
   Repeated indices add up. */
FLUX_DEF flux_tensor *flux_scatter_add(flux_tensor *x, int dim, flux_tensor *index,
                                       flux_tensor *src) {
    flux_tensor *xs[3] = { x, index, src };
    flux_shape s, out;
    if (!flux__check_operands("scatter_add", 3, xs) ||
        !flux__gather_shape("scatter_add", x, dim, index, &s)) return NULL;
    flux_shape have = flux__dims(src);
    if (have.ndim != s.ndim || memcmp(have.dim, s.dim, (size_t)s.ndim * sizeof s.dim[0]) != 0)
        return (flux_tensor *)flux__fail("scatter_add: src must be %s, is %s",
                                         flux__shape_text(&s).s, flux__describe(src).s);
    int h = flux__hide();
    flux_device place = flux__place(3, xs);
    index = flux__taken(index, place, FLUX_I64);
    /* many halves may be added to one element: they are summed in float32 */
    const int given = x->dtype, t = flux__is_half(given) ? FLUX_F32 : given;
    out = flux__dims(x);
    x = flux__taken(x, place, (flux_dtype)given);
    if (t != given) x = flux__widened(x);
    src = flux__taken(src, place, (flux_dtype)t);
    flux_tensor *y = x && index && src
                   ? flux__node(FLUX__SCATTER, (flux_dtype)t, &out, x, index, src) : NULL;
    if (y) y->arg.i[0] = dim;
    return flux__reveal(h, y ? flux__narrow(flux__done(y), given) : NULL);
}

/* A tuple of 1 to 255 tensors or tuples, whose depth is kept in arg.i[0] and bounded. */
FLUX_DEF flux_tensor *flux_tuple_with(int n, flux_tensor *const *xs) {
    flux_shape none = flux__shape(NULL, 0);
    if (n < 1 || n > 255) return (flux_tensor *)flux__fail("tuple: %d tensors (1 to 255)", n);
    for (int i = 0; i < n; i++)
        if (!xs[i] || FLUX__GONE("tuple", xs[i]))
            return (flux_tensor *)flux__null("tuple", "of the list", xs[i]);
    int64_t levels = 1;
    for (int i = 0; i < n; i++)
        if (xs[i]->op == FLUX__TUPLE && xs[i]->arg.i[0] >= levels) levels = xs[i]->arg.i[0] + 1;
    if (levels > FLUX_MAX_LEVELS)
        return (flux_tensor *)flux__fail("tuple: more than %d tuples within tuples",
                                         (int)FLUX_MAX_LEVELS);
    flux_tensor *t = flux__node_raw(FLUX__TUPLE, FLUX_F32, &none, xs[0]->device, n);
    for (int i = 0; t && i < n; i++) flux__edge(&t->in[i], xs[i]);
    if (t) t->arg.i[0] = levels;
    return t ? flux__done(t) : NULL;
}

/* Member i of a tuple; a tensor that is no tuple counts as a tuple of itself. */
FLUX_DEF flux_tensor *flux_nth(flux_tensor *tuple, int i) {
    if (!tuple || FLUX__GONE("nth", tuple)) return (flux_tensor *)flux__null("nth", "tuple", tuple);
    int n = flux_num_items(tuple);
    if (i < 0 || i >= n) return (flux_tensor *)flux__fail("nth: no tensor %d among %d", i, n);
    if (tuple->op != FLUX__TUPLE) return tuple;
    return (flux_tensor *)flux__own(flux_retain(tuple->in[i]));
}

FLUX_DEF int flux_num_items(const flux_tensor *tuple) {
    return !tuple ? 0 : tuple->op == FLUX__TUPLE ? tuple->nin : 1;
}

/* ---------------- queries of shape and dtype */

FLUX_DEF int flux_ndim(const flux_tensor *x) { return x && !FLUX__GONE("ndim", x) ? x->ndim : -1; }
/* The size of a dim: 1 past the last, -1 for what is no tensor or a negative dim. */
FLUX_DEF int64_t flux_dim(const flux_tensor *x, int dim) {
    return !x || dim < 0 || FLUX__GONE("dim", x) ? -1 : dim < x->ndim ? x->dim[dim] : 1;
}
FLUX_DEF int64_t (flux_len)(const flux_tensor *x) {
    return x && !FLUX__GONE("len", x) ? flux__size(x) : -1;
}
FLUX_DEF flux_dtype flux_dtype_of(const flux_tensor *x) {
    return x && !FLUX__GONE("dtype_of", x) ? (flux_dtype)x->dtype : FLUX_F32;
}

FLUX_DEF flux_shape flux_shape_of(const flux_tensor *x) {
    flux_shape none = flux__shape(NULL, 0);
    if (x && !FLUX__GONE("shape_of", x)) return flux__dims(x);
    none.ndim = -1;
    return none;
}

FLUX__END_LEAN

#endif /* FLUX__GRAPH_VIEWS_H */
