#ifndef FLUX__GRAPH_ATTENTION_H
#define FLUX__GRAPH_ATTENTION_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "nodes.h"
#include "elementwise.h"
#include "leaves.h"
#include "views.h"
#include "products.h"

/* ---------------------------------------------------------------------- graph/attention.h
   Attention, V softmax(K'Q), as one operation. The scores (keys x queries x
   heads x batch) need not be stored: the kernel has a tile of them at a time,
   and the kernel of the gradient computes them again from the maximum and the
   sum of each query's softmax. FLUX__ATTEND puts all results of a kernel into
   one vector; FLUX__ATTENTION shows one of them and carries the gradient.

   Invariant: q, k and v are features x steps x batch, contiguous along features
   (flux__packed), and float32, float64 or of a half format, whose products are
   summed in float32. Other dtypes are converted before. The vector has the dtype
   of q, k and v. Behind the result y it holds each query's maximum and the
   reciprocal of its sum, of half formats as float32, each in the place of two
   elements (flux__attend_behind). A mask broadcasts to keys x queries
   x heads x batch: bool says what may be seen, any other dtype is added to the
   scores. Dropout's mask broadcasts likewise, and is applied after the softmax,
   whose sum is of all weights. The plain formula (flux__attend_formula) is recorded
   beside the gradient and computed only if somebody asks for the gradient's
   gradient.

   Rejected: drawing dropout's random numbers inside the kernels, where the forward
   and both backward passes would draw them again. A byte for each score is stored
   instead, which costs less time than a draw; the scores themselves would be four. */

FLUX__BEGIN_COLD

/* Flags of a FLUX__ATTEND node: the kernel of the gradients; with a mask; with dropout's mask. */
enum { FLUX__ATTEND_BACK = 1, FLUX__ATTEND_MASKED = 2, FLUX__ATTEND_DROPS = 4 };
/* A kernel's operands, in this order, but for those it has not: the forward result and its
   gradient are operands of the gradients' kernel alone. */
enum { FLUX__ATTEND_Q, FLUX__ATTEND_K, FLUX__ATTEND_V, FLUX__ATTEND_MADE, FLUX__ATTEND_G,
       FLUX__ATTEND_MASK, FLUX__ATTEND_KEEP, FLUX__ATTEND_OPERANDS };

/* Which of these operand i of a kernel with such flags is. */
static int flux__attend_operand(int64_t flags, int i) {
    const int always = flags & FLUX__ATTEND_BACK ? 5 : 3;
    return i < always ? i : i == always && flags & FLUX__ATTEND_MASKED ? FLUX__ATTEND_MASK
                                                                       : FLUX__ATTEND_KEEP;
}

typedef struct flux__attend {
    flux_tensor *q, *k, *v;               /* features x steps x batch */
    flux_tensor *extra;                   /* the mask, or NULL. It broadcasts to the scores: bool
                                             says which may be seen, any other dtype is added */
    flux_tensor *keep;                    /* bool, broadcasts to the scores: the weights that
                                             dropout leaves; NULL: all. They are not scaled */
    int heads;                            /* the features of q, k and v are split into so many */
    bool causal;                          /* query i sees no key behind i + (keys - queries); needs
                                             at least as many keys as queries */
} flux__attend;

/* The shape of the scores: keys x queries x heads x batch. */
static flux_shape flux__score_shape(const flux__attend *a) {
    return FLUX_SHAPE(a->k->dim[1], a->q->dim[1], a->heads, a->q->dim[2]);
}

/* x, features x steps x N, as (features / heads) x steps x heads x N; flux__unheads is the
   inverse. */
static flux_tensor *flux__heads(flux_tensor *x, int n) {
    return flux_permute(flux_reshape(x, x->dim[0] / n, n, x->dim[1], flux_dim(x, 2)), 0, 2, 1, 3);
}

static flux_tensor *flux__unheads(flux_tensor *x) {
    return x ? flux_reshape(flux_permute(x, 0, 2, 1, 3), x->dim[0] * x->dim[2], x->dim[1],
                            x->dim[3]) : NULL;
}

static double flux__attend_scale(const flux__attend *a) {
    return sqrt((double)a->heads / (double)a->q->dim[0]);
}

/* Which keys a causal query may see, as bools of keys x queries: the last query sees all, each
   before it one less than the next. */
static flux_tensor *flux__attend_past(const flux__attend *a) {
    flux_tensor *query = flux__iota_on(a->q->device, a->q->dim[1], 1);
    return flux_le(flux__iota_on(a->q->device, a->k->dim[1], 0),
                   flux_add(query, (double)(a->k->dim[1] - a->q->dim[1])));
}

/* Which scores may be seen, as bools of keys x queries or more dims; NULL: all. */
static flux_tensor *flux__attend_seen(const flux__attend *a) {
    flux_tensor *seen = a->extra && a->extra->dtype != FLUX_BOOL ? flux_gt(a->extra, -HUGE_VAL)
                                                                 : a->extra;
    if (!a->causal) return seen;
    flux_tensor *past = flux__attend_past(a);
    return seen ? flux_and(seen, past) : past;
}

/* The softmax over the keys of k'q / sqrt(features per head), keys x queries x heads x batch,
   with 0 for what may not be seen, before dropout. In f16, q is scaled before the product, so
   that the product stays small. */
static flux_tensor *flux__attend_softmax(const flux__attend *a) {
    flux_tensor *q = flux__heads(a->q, a->heads), *k = flux__heads(a->k, a->heads);
    bool half = a->q->dtype == FLUX_F16;
    if (!q || !k) return NULL;
    flux_tensor *l = flux_matmul(flux_transpose(k), half ? flux_mul(q, flux__attend_scale(a)) : q);
    if (l && !half) l = flux_mul(l, flux__attend_scale(a));
    if (l && a->extra && a->extra->dtype != FLUX_BOOL) l = flux_add(l, a->extra);
    flux_tensor *seen = l && (a->extra || a->causal) ? flux__attend_seen(a) : NULL;
    if (seen) l = flux_where(seen, l, -HUGE_VAL);
    flux_tensor *p = l ? (flux_softmax)(l) : NULL;
    /* the softmax of a query that sees nothing has equal parts */
    return p && a->extra ? flux_where(seen, p, 0.0) : p;
}

/* x where dropout leaves it, else 0. */
static flux_tensor *flux__attend_dropped(const flux__attend *a, flux_tensor *x) {
    return x && a->keep ? flux_where(a->keep, x, 0.0) : x;
}

/* x, or a copy of it whose features (dim 0) are contiguous. */
static flux_tensor *flux__packed(flux_tensor *x) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    if (!x) return NULL;
    flux__layout(x, &offset, stride);
    return x->dim[0] > 1 && stride[0] != 1 ? flux_copy(x) : x;
}

/* Where the queries' maxima and sums begin behind n results in a forward vector, in elements. */
static int64_t flux__attend_behind(int64_t n, int dtype) {
    return flux__is_half(dtype) ? flux__plus(n, 1) / 2 * 2 : n;
}

/* The dtype in which the results of attention on q are computed. */
static flux_dtype flux__attend_wide(const flux_tensor *q) {
    return q->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32;
}

/* The kernel's node: a vector of `size` elements. made: the forward vector, of the gradients'
   kernel, whose y has the gradient g; both NULL for the forward kernel. */
static flux_tensor *flux__attend_node(const flux__attend *a, flux_tensor *made, flux_tensor *g,
                                      int64_t size) {
    flux_tensor *const all[FLUX__ATTEND_OPERANDS] = { a->q, a->k, a->v, made, g, a->extra,
                                                      a->keep };
    flux_tensor *in[FLUX__ATTEND_OPERANDS];
    int n = 0;
    for (int i = 0; i < FLUX__ATTEND_OPERANDS; i++)
        if (all[i]) in[n++] = all[i];
    flux_shape s = flux__shape(&size, 1);
    flux_tensor *y = flux__node_raw(FLUX__ATTEND, (flux_dtype)a->q->dtype, &s, a->q->device, n);
    for (int i = 0; y && i < n; i++) flux__edge(&y->in[i], in[i]);
    if (y)
        y->arg.i[0] = a->heads, y->arg.i[1] = a->causal,
        y->arg.i[2] = (made ? FLUX__ATTEND_BACK : 0) | (a->extra ? FLUX__ATTEND_MASKED : 0) |
                      (a->keep ? FLUX__ATTEND_DROPS : 0);
    return y ? flux__done(y) : NULL;
}

/* The part of the vector in[0] that starts at `offset`, contiguous in the shape of `like`, but
   with `first` as dim 0. It has n operands, by which its gradient goes; heads, causal and flags
   are copied from `from` unless that is NULL. */
static flux_tensor *flux__attend_view(int n, flux_tensor **in, int64_t offset,
                                      const flux_tensor *like, int64_t first,
                                      const flux_tensor *from) {
    int64_t contiguous[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(like);
    s.dim[0] = first;
    flux__contiguous_strides(&s, contiguous);
    flux_tensor *y = flux__node_raw(FLUX__ATTENTION, (flux_dtype)in[0]->dtype, &s, in[0]->device,
                                    n);
    if (!y) return NULL;
    for (int i = 0; i < n; i++) flux__edge(&y->in[i], in[i]);
    flux__edge(&y->base, in[0]);
    y->offset = offset;
    for (int i = 0; i < s.ndim; i++) y->stride[i] = contiguous[i];
    if (from) memcpy(y->arg.i, from->arg.i, 3 * sizeof y->arg.i[0]);
    return flux__done(y);
}

/* Attention: (v's features) x queries x batch, in the dtype at which q, k and v meet. The kernel
   computes in float32 or float64. A query that sees nothing has the maximum -inf; the reciprocal
   of its sum is 0 then, and so is all of its result. */
static flux_tensor *flux__attention(const flux__attend *what) {
    flux__attend a = *what;
    flux_dtype t = flux__promote(flux__promote((flux_dtype)a.q->dtype, (flux_dtype)a.k->dtype),
                                 (flux_dtype)a.v->dtype);
    const flux_dtype own_dtype =
        t == FLUX_F64 || flux__is_half((int)t) ? t : FLUX_F32;
    const flux_shape full = flux__score_shape(&a);
    flux_tensor **own[] = { &a.q, &a.k, &a.v }, **masks[] = { &a.extra, &a.keep };
    for (int i = 0; i < 3; i++)
        if (!(*own[i] = flux__packed(flux_to_dtype(*own[i], own_dtype)))) return NULL;
    if (a.extra && a.extra->dtype != FLUX_BOOL &&
        !(a.extra = flux_to_dtype(a.extra, flux__attend_wide(a.q)))) return NULL;
    for (int i = 0; i < 2; i++)
        if (*masks[i] && !(*masks[i] = flux_broadcast_to_with(*masks[i], full)))
            return NULL;
    const int64_t columns = full.dim[1] * full.dim[3],
                  stats = flux__attend_behind(flux__times(columns, a.v->dim[0]),
                                              (int)own_dtype),
                  wide = flux__is_half((int)own_dtype) ? 4 : 2,
                  size = flux__plus(stats, flux__times(columns, wide * a.heads));
    flux_tensor *in[6] = { flux__attend_node(&a, NULL, NULL, size), a.q, a.k, a.v };
    if (!in[0]) return NULL;
    int n = 4;
    if (a.extra) in[n++] = a.extra;
    if (a.keep) in[n++] = a.keep;
    flux__multiply_adds(flux__times(flux__times(columns, full.dim[0]), a.q->dim[0] + a.v->dim[0]));
    flux_tensor *y = flux__attend_view(n, in, 0, a.q, a.v->dim[0], in[0]);
    return y ? flux_to_dtype(y, t) : NULL;
}

FLUX__END_COLD

#endif /* FLUX__GRAPH_ATTENTION_H */
