#ifndef FLUX__GRAPH_GRADIENTS_H
#define FLUX__GRAPH_GRADIENTS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "table.h"
#include "nodes.h"
#include "elementwise.h"
#include "leaves.h"
#include "views.h"
#include "reductions.h"
#include "products.h"
#include "windows.h"
#include "interpolation.h"
#include "attention.h"
#include "custom.h"

/* ---------------------------------------------------------------------- graph/gradients.h
   The gradient of each operation, by its operands (flux__gradient_of):
   elementwise rows by graph/table.h, all others by a function each. Gradients
   are written with operations, so a gradient is a graph like any other and has
   a gradient itself. graph/backward.h walks the graph and calls this.

   Invariant: out[i] has the shape and dtype of operand i, or is NULL where none
   is needed or there is none: dims that were broadcast are summed
   (flux__unbroadcast). A gradient of half formats computes in float32 and
   rounds once, after that sum, unless the row only hands g on or rounds once
   anyway (flux__rounds_once). An operand that was widened is widened anew for
   the gradient, so that the forward pass need not store it. Infinite slopes are
   never multiplied by 0: pow, prod and norm replace those operands first.

   Rejected: gelu's slope composed of rows, as what lies between would be
   stored, and takes longer to pass over than to compute. */

FLUX__BEGIN_LEAN

struct flux_grads {
    flux__head head;
    flux_tensor *loss;
    int n;                                /* how many tensors were asked for */
    bool used;                            /* flux_update has used the gradients up */
    flux_tensor **of, **grad;             /* the n tensors asked for; their gradients, NULL: none */
    flux__hashmap number;                 /* index of each tensor, from 1, if there are more than
                                             FLUX__FEW_ASKED */
    int nasked, nnames;
    void **asked;                         /* the nasked models and tensors that were given */
    char **name;                          /* of each gradient; NULL until one is asked for */
};
enum { FLUX__FEW_ASKED = 16 };            /* up to so many tensors are searched one by one */

/* Frees the names that flux_grad_name has made. */
static void flux__forget_names(flux_grads *g) {
    for (int i = 0; i < g->nnames; i++) flux__free(g->name[i]);
    flux__free(g->name);
    g->name = NULL, g->nnames = 0;
}

static void flux__grads_free(flux_grads *g) {
    for (int i = 0; i < g->n; i++) {
        flux_release(g->of[i]);
        if (g->grad) flux_release(g->grad[i]);
    }
    flux_release(g->loss);
    flux__free(g->of);
    flux__free(g->grad);
    flux__hashmap_free(&g->number);
    for (int i = 0; i < g->nasked; i++) flux_release(g->asked[i]);
    flux__free(g->asked);
    flux__forget_names(g);
    flux__quarantine(g);
}

/* A tensor of x's shape, dtype and device with v in every element. */
static flux_tensor *flux__filled_like(const flux_tensor *x, double v) {
    return flux__move(flux_full_with(flux__dims(x), v, (flux_dtype)x->dtype), x->device);
}

/* The gradient of a^b by a, g b a^(b-1). It is 0 where b is 0, also for a = 0, where the formula
   would multiply 0 by infinity. */
static FLUX__COLD flux_tensor *flux__grad_pow_a(flux_tensor *g, flux_tensor *a, flux_tensor *b) {
    bool number = (b->flags & FLUX__WEAK) != 0;
    if (number && b->arg.num == 0) return flux__filled_like(a, 0);
    if (number && b->arg.num == 1) return g;
    if (!number) a = flux_where(flux_and(flux_eq(a, 0.0), flux_eq(b, 0.0)), 1.0, a);
    return flux_mul(g, flux_mul(b, flux_pow(a, flux_sub(b, 1.0))));
}

/* The gradient of y = a^b by b, g y log a. It is 0 where a is 0 (NNlib's rule for 0^b); the log
   of 0 occurs neither here nor in this gradient's own gradient. */
static FLUX__COLD flux_tensor *flux__grad_pow_b(flux_tensor *g, flux_tensor *a, flux_tensor *y) {
    if (a->flags & FLUX__WEAK)
        return a->arg.num > 0 ? flux_mul(g, flux_mul(y, flux_log(a))) : flux__filled_like(g, 0);
    flux_tensor *some = flux_gt(a, 0.0);
    return flux_mul(g, flux_where(some, flux_mul(y, flux_log(flux_where(some, a, 1.0))), 0.0));
}

/* The gradient of gelu's slope by x. gelu and its slope are one row each because intermediate
   results would be stored, and take longer to pass over than to compute. gelu(x) is x y with y
   the sigmoid of c (0.0713... c^2 + 1.595...), c being x clamped to [-10, 10]; q is the
   derivative of the sigmoid's argument. */
static FLUX__COLD flux_tensor *flux__grad_gelu_slope(flux_tensor *g, flux_tensor *x) {
    flux_tensor *c = flux_clamp(x, -10, 10), *cc = flux_square(c);
    flux_tensor *y =
        flux_sigmoid(flux_mul(c, flux_add(flux_mul(cc, 0.07135481627260025), 1.5957691216057308)));
    flux_tensor *q = flux_add(flux_mul(cc, 3 * 0.07135481627260025), 1.5957691216057308),
        *rest = flux_sub(1, y);
    flux_tensor *bend = flux_add(flux_mul(flux_sub(rest, y), flux_square(q)),
                                 flux_mul(c, 6 * 0.07135481627260025));
    return flux_mul(g, flux_mul(flux_mul(y, rest), flux_add(flux_mul(q, 2), flux_mul(c, bend))));
}

/* The gradients of one row of the table by its operands a, b, c, at the result's shape: the bits
   of need say which of them. */
static void flux__row_gradient(int op, flux_tensor *y, flux_tensor *g, flux_tensor *const *in,
                               unsigned need, flux_tensor **out) {
    flux_tensor *a = in[0], *b = in[1], *c = in[2];
    (void)a, (void)b, (void)c;
    switch (op) {
#define FLUX__GRADIENT_CASE(NAME, name, n, dt, call, shown, formula, ga, gb, gc) \
    case FLUX__OP_##NAME:                                                        \
        if (n == 1 || need & 1) out[0] = ga;                                     \
        if (n > 1 && need & 2) out[1] = gb;                                      \
        if (n > 2 && need & 4) out[2] = gc;                                      \
        break;
        FLUX__ELEMENTWISE(FLUX__GRADIENT_CASE)
    default: break;
    }
}

/* Whether a row's gradient only hands g on, or rounds once (provided that no sum over broadcast
   dims follows): then a half format need not be widened for it. */
static bool flux__rounds_once(const flux_tensor *y) {
    switch (y->op) {
    case FLUX__OP_MUL: case FLUX__OP_FMA:
        for (int i = 0; i < y->nin; i++)
            if (!(y->in[i]->flags & FLUX__WEAK) && !flux__same_dims(y->in[i], y)) return false;
        return true;
    case FLUX__OP_ADD: case FLUX__OP_SUB: case FLUX__OP_SUBMAX: case FLUX__OP_NEG:
    case FLUX__OP_ABS: case FLUX__OP_MAX2: case FLUX__OP_MIN2: case FLUX__OP_WHERE:
    case FLUX__OP_RELU: case FLUX__OP_RELU_BACKWARD: case FLUX__OP_EXP: case FLUX__OP_LOG:
        return true;
    default: return false;
    }
}

/* Rows whose gradient has their own value y as a factor, and for half formats computes y again in
   float32, since y's rounding would add to the error. tanh and sigmoid use the stored half value
   instead, as it is often all that a layer keeps. */
static bool flux__value_again(int op) {
    return op == FLUX__OP_DIV || op == FLUX__OP_POW || op == FLUX__OP_SQRT || op == FLUX__OP_RSQRT;
}

/* How many operands of t a gradient may look at: none if FLUX_NOGRAD recorded t, whether t has
   been computed or not, since another thread that computes t releases them; none if t is detached,
   which it has no operand for if what it is detached from had been computed. */
static int flux__behind(const flux_tensor *t) {
    return t->flags & FLUX__FIXED || t->op == FLUX__DETACH ? 0 : t->nin;
}

/* An operand x as a gradient takes it: in float32 if wide and x is of a half format. An x that a
   formula widened is widened anew: kernels of the gradient then read the half format itself, else
   the forward pass would store for them what it has only widened. So it is if x has been stored,
   too: what is recorded depends on no look. */
static flux_tensor *flux__operand_again(flux_tensor *x, bool wide) {
    if (wide && flux__is_half(x->dtype)) {
        if (!(x->flags & FLUX__SEED)) return flux__widened(x);
        flux_shape s = flux__dims(x);
        flux_tensor *one = flux__renumber(x, &s, FLUX_F32, x->device);
        if (one) one->flags |= FLUX__SEED;
        return one ? flux__done(one) : NULL;
    }
    return x->flags & FLUX__WIDENED && flux__behind(x) ? flux__widened(x->in[0]) : x;
}

/* g summed over the dims along which x was broadcast to g's shape. */
static flux_tensor *flux__unbroadcast(flux_tensor *g, const flux_tensor *x) {
    unsigned mask = 0;
    if (!g) return NULL;
    for (int d = 0; d < g->ndim; d++)
        if ((d < x->ndim ? x->dim[d] : 1) != g->dim[d]) mask |= 1u << d;
    if (!mask && g->ndim == x->ndim) return g;
    if (!mask) return flux_reshape_with(g, flux__dims(x));
    return flux__reduce_node(g, FLUX__RED_SUM, mask, x->ndim);
}

/* x as a matrix, rows x cols, if it is a vector. */
static flux_tensor *flux__matrix_of(flux_tensor *x, int64_t rows, int64_t cols) {
    flux_shape s = flux__dims(x);
    if (s.ndim >= 2) return x;
    s.ndim = 2, s.dim[0] = rows, s.dim[1] = cols;
    return flux_reshape_with(x, s);
}

/* flux_transpose of x, which swaps dims 0 and 1; NULL for NULL. */
static flux_tensor *flux__swap01(flux_tensor *x) { return x ? flux_transpose(x) : NULL; }

/* The product of a and b as x's gradient: batch dims along which x was broadcast are summed in
   float32 with one rounding at the end, and a vector gets its shape back. */
static flux_tensor *flux__fit(flux_tensor *a, flux_tensor *b, const flux_tensor *x) {
    unsigned mask = 0;
    int nd = !a || !b ? 0 : a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int d = 2; d < nd; d++) {
        int64_t n = d < a->ndim ? a->dim[d] : 1, m = d < b->ndim ? b->dim[d] : 1;
        if ((d < x->ndim ? x->dim[d] : 1) != (n == 1 ? m : n)) mask |= 1u << d;
    }
    flux_tensor *g = a && b ? flux__matmul(a, b, mask != 0) : NULL;
    if (g && mask) g = flux__reduce_node(g, FLUX__RED_SUM, mask, g->ndim);
    if (g && !flux__same_dims(g, x)) g = flux_reshape_with(g, flux__dims(x));
    return flux__narrow(g, x->dtype);
}

/* Gradients of y = a b: g b' by a, a' g by b, for each matrix of a batch. */
static void flux__matmul_gradient(flux_tensor *y, flux_tensor *g, unsigned need,
                                  flux_tensor **out) {
    int64_t m = y->arg.i[0], n = y->arg.i[1], k = y->arg.i[2];
    flux_tensor *a = flux__matrix_of(y->in[0], m, k), *b = flux__matrix_of(y->in[1], k, n);
    g = flux__matrix_of(g, m, n);
    if (need & 1) out[0] = flux__fit(g, flux__swap01(b), y->in[0]);
    if (need & 2) out[1] = flux__fit(flux__swap01(a), g, y->in[1]);
}

/* Each element's index along the dims of mask taken together, counted as ARGREDUCE counts: dim 0
   fastest. It broadcasts to x's shape. */
static flux_tensor *flux__iota_over(const flux_tensor *x, unsigned mask) {
    flux_tensor *sum = NULL;
    int64_t step = 1;
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1)) continue;
        flux_tensor *i = flux__iota_on(x->device, x->dim[d], d);
        if (step != 1) i = flux_mul(i, (double)step);
        sum = sum ? flux_add(sum, i) : i;
        step *= x->dim[d];
    }
    return sum;
}

/* A reduction's result r with all of x's dims, size 1 for those that were reduced. */
static flux_tensor *flux__keepdims(flux_tensor *r, const flux_tensor *x, unsigned mask) {
    flux_shape s = flux__dims(x);
    for (int d = 0; d < s.ndim; d++)
        if (mask >> d & 1) s.dim[d] = 1;
    return r && r->ndim != s.ndim ? flux_reshape_with(r, s) : r;
}

/* The gradient by each factor of a product: g times the product of the other factors. Zeros are
   counted and kept apart, so that nothing is divided by 0: p is the product of all elements that
   are not 0. A single zero is a factor of the others' product for every other element, and of two
   zeros each is a factor of the other's. There the zeros stand as the sum of the zero elements,
   which is 0 but depends on them, so that the gradient's own gradient is right. With more zeros a
   constant 0 will do: any product of others still has a zero left. */
static FLUX__COLD flux_tensor *flux__prod_gradient(flux_tensor *x, flux_tensor *g, unsigned mask) {
    flux_tensor *zero = flux_eq(x, 0.0), *others = flux_where(zero, 1.0, x),
        *count = others ? flux_to_dtype(zero, (flux_dtype)x->dtype) : NULL;
    flux_tensor *zeroed = count ? flux_where(zero, x, 0.0) : NULL;
    if (!zeroed) return NULL;
    flux_tensor *p = flux__reduce_node(others, FLUX__RED_PROD, mask, x->ndim);
    flux_tensor *zeros = flux__reduce_node(count, FLUX__RED_SUM, mask, x->ndim);
    flux_tensor *sum = flux__reduce_node(zeroed, FLUX__RED_SUM, mask, x->ndim);
    flux_tensor *one = flux_eq(zeros, 1.0),
        *of_zero = flux_where(one, 1.0, flux_where(flux_eq(zeros, 2.0), flux_sub(sum, x), 0.0));
    flux_tensor *of_others = flux_where(flux_eq(zeros, 0.0), 1.0, flux_where(one, sum, 0.0));
    return flux_mul(g, flux_mul(p, flux_where(zero, of_zero, flux_div(of_others, others))));
}

/* The gradient of a sum, product, maximum or minimum by x. That of a maximum or minimum goes to
   the element which argmax or argmin names. */
static flux_tensor *flux__reduce_gradient(flux_tensor *y, flux_tensor *g) {
    flux_tensor *x = y->in[0];
    unsigned mask = (unsigned)y->arg.i[1];
    g = flux__keepdims(g, x, mask);
    if (!g) return NULL;
    if (y->arg.i[0] == FLUX__RED_SUM) return flux_broadcast_to_with(g, flux__dims(x));
    if (y->arg.i[0] == FLUX__RED_PROD)
        return flux__narrow(flux__prod_gradient(flux__widened(x), flux__widened(g), mask),
                            x->dtype);
    flux_tensor *win = flux__argreduce_node(x, y->arg.i[0] == FLUX__RED_MAX, mask, x->ndim);
    flux_tensor *i = mask ? flux__iota_over(x, mask) : NULL;
    return !i ? g : flux_where(flux_eq(i, win), g, 0.0);
}

/* Whether t is a result of `op` that no program can reach: then only its users need its
   gradient. */
static bool flux__hides(const flux_tensor *t, int op) {
    return t->op == op && flux__behind(t) && !flux__visible(t);
}
/* Whether t is a hidden sum of x that keeps its dims, over *mask if that is not 0. Sets *mask. */
static bool flux__hides_sum(const flux_tensor *t, const flux_tensor *x, unsigned *mask) {
    if (!flux__hides(t, FLUX__REDUCE) || t->arg.i[0] != FLUX__RED_SUM || t->in[0] != x ||
        t->ndim != x->ndim || (*mask && *mask != (unsigned)t->arg.i[1])) return false;
    *mask = (unsigned)t->arg.i[1];
    return true;
}
/* The number by which the hidden t divides such a sum, or NULL: t is no such quotient. */
static flux_tensor *flux__hides_mean(const flux_tensor *t, const flux_tensor *x, unsigned *mask) {
    return flux__hides(t, FLUX__OP_DIV) && t->in[1]->op == FLUX__NUMBER &&
           flux__hides_sum(t->in[0], x, mask) ? t->in[1] : NULL;
}

/* The sum of g y over mask, whose dims are kept, divided by n if that is not NULL. */
static flux_tensor *flux__sum_product(flux_tensor *g, flux_tensor *y, unsigned mask,
                                      flux_tensor *n) {
    flux_tensor *p = flux_mul(g, y),
        *s = p ? flux__reduce_node(p, FLUX__RED_SUM, mask, y->ndim) : NULL;
    return n && s ? flux_div(s, n) : s;
}

/* If y = x rsqrt(sum(x^2) / n + eps), sets *of to x and returns the gradient by it,
   (g - y sum(g y) / n) r with r the second factor; if x = z - mean(z) over the same dims, whose
   size is n, sets *of to z and returns (g - y mean(g y) - mean(g)) r. */
static flux_tensor *flux__normal_gradient(flux_tensor *y, flux_tensor *g, flux_tensor **of) {
    flux_tensor *x = y->in[0], *r = y->in[1], *n, *count = NULL;
    unsigned mask = 0;
    if (!flux__hides(r, FLUX__OP_RSQRT) || !flux__hides(r->in[0], FLUX__OP_ADD) ||
        r->in[0]->in[1]->op != FLUX__NUMBER) return NULL;
    const flux_tensor *var = r->in[0]->in[0], *sum = var->nin ? var->in[0] : NULL;
    if (!sum || sum->nin != 1 || !flux__hides(sum->in[0], FLUX__OP_SQUARE) ||
        sum->in[0]->in[0] != x || !(n = flux__hides_mean(var, sum->in[0], &mask))) return NULL;
    if (flux__hides(x, FLUX__OP_SUB)) count = flux__hides_mean(x->in[1], x->in[0], &mask);
    const bool centred = count && count->arg.num == n->arg.num &&
                         n->arg.num == (double)flux__reduced_count(y, mask);
    flux_tensor *part = flux_sub(g, flux_mul(y, flux__sum_product(g, y, mask, n)));
    if (centred)
        part = flux_sub(part, flux_div(flux__reduce_node(g, FLUX__RED_SUM, mask, y->ndim), n));
    *of = centred ? x->in[0] : x;
    return flux_mul(part, r);
}

/* Softmax and normalisation have a shorter gradient as a whole than by the chain rule, which goes
   through sums that cancel. If y ends one, sets *of to the tensor before it and returns the
   gradient by that, NULL after an error; otherwise *of is NULL. What lies between must be hidden:
   it gets no gradient. */
static flux_tensor *flux__rows_gradient(flux_tensor *y, flux_tensor *g, flux_tensor **of) {
    unsigned mask = 0;
    *of = NULL;
    if (y->nin != 2 || flux__is_half(y->dtype) || !flux__same_dims(y->in[0], y)) return NULL;
    if (y->op == FLUX__OP_MUL) return flux__normal_gradient(y, g, of);
    if (y->op != FLUX__OP_DIV || !flux__hides(y->in[0], FLUX__OP_EXP) ||
        !flux__hides_sum(y->in[1], y->in[0], &mask)) return NULL;
    *of = y->in[0]->in[0];
    return flux_mul(y, flux_sub(g, flux__sum_product(g, y, mask, NULL)));    /* of softmax */
}

/* The gradient of an as_strided view by its operand: an as_strided_scatter of g into zeros, with
   sums where positions may coincide. */
static FLUX__COLD flux_tensor *flux__as_strided_gradient(flux_tensor *y, flux_tensor *g) {
    flux_shape s = flux__dims(y->in[0]);
    int64_t step[FLUX_MAX_DIMS], reach[FLUX_MAX_DIMS];
    bool meet = false;
    int n = 0;
    for (int d = 0; d < y->ndim; d++) step[d] = y->arg.i[d];
    /* Two positions may coincide unless each dim's step is larger than all that the dims with
       smaller steps reach together. The dims are visited by increasing step. */
    int64_t covered = 0;
    for (int d = 0; d < y->ndim; d++) reach[d] = 0;
    for (; n < y->ndim; n++) {
        int least = -1;
        for (int d = 0; d < y->ndim; d++) {
            int64_t a = step[d] < 0 ? -step[d] : step[d];
            if (!reach[d] && (least < 0 || a < (step[least] < 0 ? -step[least] : step[least])))
                least = d;
        }
        int64_t a = step[least] < 0 ? -step[least] : step[least];
        if (y->dim[least] > 1 && a <= covered) meet = true;
        covered += (y->dim[least] - 1) * a;
        reach[least] = 1;
    }
    return flux__as_strided_scatter(g, &s, y->rel, step, 0, meet);
}

/* The gradient of an as_strided_scatter by the tensor that was put in: the strided view of g at
   its positions. g is copied if it is not contiguous. */
static FLUX__COLD flux_tensor *flux__as_strided_scatter_gradient(flux_tensor *y, flux_tensor *g) {
    flux_shape s = flux__dims(y->in[0]), order = flux__dims(y);
    int64_t offset, have[FLUX_MAX_DIMS];
    flux_tensor *base = flux__layout(g, &offset, have);
    if (!flux__in_order(&order, have) || offset != 0) {
        g = flux_copy(g);
        base = g;
    }
    return g ? flux__as_strided(g, &s, y->rel, y->stride, y->rel, y->stride, base) : NULL;
}

/* Into how many parts the sum over n samples is split, for a result of so many elements: the
   largest divisor of n up to 16 with which the partial sums stay small (65536 elements). Several
   parts are work for several threads. */
static int64_t flux__conv_parts(int64_t n, int64_t elements) {
    int64_t parts = 16;
    while (parts > 1 && (n % parts != 0 || parts * elements > 1 << 16)) parts--;
    return parts;
}

/* The window view of x: that of the forward product, or another one. */
static flux_tensor *flux__conv_windows(const flux_tensor *product, flux_tensor *x,
                                       const flux__window *w) {
    flux_tensor *win = product->op == FLUX__MATMUL && product->nin == 2 ? product->in[0] : NULL;
    while (win && flux__behind(win) &&
           (win->op == FLUX__RESHAPE || win->op == FLUX__COPY || win->op == FLUX__PERMUTE))
        win = win->in[0];
    return win && win->op == FLUX__AS_STRIDED ? win : flux__windows(flux__pad_window(x, w, 0), w);
}

/* The gradient by the weight as one batched product that also sums over samples, on operands that
   need no copy where their strides allow: windows [taps, positions x samples / parts, groups,
   parts] times g [positions x samples / parts, out, groups, parts], taps being window x channels
   per group; then the parts are summed. For a back end that is not better at long
   products, as a GPU, and where there would be too many dims, flux__conv_by_channels or
   flux__conv_by_sample multiplies instead. */
static flux_tensor *flux__conv_by_weight(const flux_tensor *product, flux_tensor *x,
                                         flux_tensor *weight, flux_tensor *g, const flux__window *w,
                                         int64_t groups) {
    int nd = w->nd, n = 0;
    int64_t in = weight->dim[nd], out = weight->dim[nd + 1] / groups, samples = x->dim[nd + 1],
        points = flux__product(w->out, nd);
    int64_t taps = flux__product(w->size, nd) * in,
        parts = flux__conv_parts(samples, taps * out * groups), order[FLUX_MAX_DIMS];
    flux_tensor *win = flux__conv_windows(product, x, w);
    flux_shape s = win ? flux__dims(win) : flux__shape(NULL, 0);
    s.ndim = 2 * nd;
    s.dim[s.ndim++] = in;
    if (groups > 1) s.dim[s.ndim++] = groups;
    s.dim[s.ndim++] = samples / parts, s.dim[s.ndim++] = parts;
    for (int i = 0; i < nd; i++) order[n++] = i;
    order[n++] = 2 * nd;
    for (int i = 0; i < nd; i++) order[n++] = nd + i;
    order[n++] = s.ndim - 2;
    if (groups > 1) order[n++] = 2 * nd + 1;
    order[n++] = s.ndim - 1;
    flux_tensor *a = win ? flux_reshape_with(win, s) : NULL;
    a = a ? flux_permute_with(a, flux__shape(order, n)) : NULL;
    flux_tensor *b = flux_permute(flux_reshape(g, points, out, groups, samples / parts, parts),
                                  0, 3, 1, 2, 4);
    a = a ? flux_reshape(a, taps, points * (samples / parts), groups, parts) : NULL;
    b = a && b ? flux_reshape(b, points * (samples / parts), out, groups, parts) : NULL;
    b = b ? flux__matmul(a, b, parts > 1) : NULL;
    if (b && nd == 2 && groups == 1) flux__mark_windows(b, w, false);
    return b && parts > 1 ? flux__reduce_node(b, FLUX__RED_SUM, 8, 3) : b;
}

/* The same where channels stand before the window (flux__channels_lead) and those of g lie side by
   side: one product [channels x window, positions x samples] times [positions x samples, out],
   whose inner dim the back end splits. */
static flux_tensor *flux__conv_by_channels(const flux_tensor *product, flux_tensor *x,
                                           flux_tensor *weight, flux_tensor *g,
                                           const flux__window *w) {
    const int nd = w->nd;
    const int64_t taps = flux__product(w->size, nd) * weight->dim[nd], out = weight->dim[nd + 1],
                  terms = flux__times(flux__product(w->out, nd), x->dim[nd + 1]);
    flux_tensor *a = flux__conv_windows(product, flux__side_channels(x, nd), w), *b;
    int64_t order[FLUX_MAX_DIMS];
    order[0] = 2 * nd;
    for (int i = 0; i < 2 * nd; i++) order[i + 1] = i;
    order[2 * nd + 1] = 2 * nd + 1;
    a = a ? flux_permute_with(a, flux__shape(order, 2 * nd + 2)) : NULL;
    a = a ? flux_reshape(a, taps, terms) : NULL;
    b = a ? flux__move_channels(g, nd, false) : NULL;
    b = b ? flux_reshape(b, out, terms) : NULL;
    return b ? flux_matmul(a, flux_transpose(b)) : NULL;
}

/* The same for each sample, then summed. */
static flux_tensor *flux__conv_by_sample(const flux_tensor *product, flux_tensor *x, flux_tensor *g,
                                         const flux__window *w, int64_t groups) {
    const int nd = w->nd;
    flux_tensor *cols = product->op == FLUX__MATMUL && product->nin == 2
                            ? product->in[0] : flux__conv_columns(x, w, groups);
    flux_tensor *each = cols ? flux_reshape(g, cols->dim[0], g->dim[nd] / groups, groups,
                                            x->dim[nd + 1]) : NULL;
    flux_tensor *d = each ? flux__matmul(flux__swap01(cols), each, true) : NULL;
    return d && d->ndim > 3 ? flux__reduce_node(d, FLUX__RED_SUM, 8, 3) : d;
}

/* The gradients of a FLUX__CONV node by x (out[1]) and by the weight (out[2]). stride, dilation
   and padding are unpacked from arg as flux__conv_node has packed them. */
static void flux__conv_slopes(flux_tensor *y, flux_tensor *g, const bool *need, flux_tensor **out) {
    flux_tensor *x = y->in[1], *weight = y->in[2], *product = y->base;
    int groups = (int)y->arg.i[3];
    bool flip = y->arg.i[4] != 0;
    flux__window w;
    memset(&w, 0, sizeof w);
    w.nd = weight->ndim - 2, w.flipped = flip;
    for (int i = 0; i < w.nd; i++) {
        w.stride[i] = y->arg.i[i] & 0xfffff, w.dilation[i] = y->arg.i[i] >> 20 & 0xfffff,
            w.lo[i] = y->arg.i[i] >> 40;
        w.size[i] = weight->dim[i], w.out[i] = y->dim[i];
        w.hi[i] = (w.out[i] - 1) * w.stride[i] + (w.size[i] - 1) * w.dilation[i] + 1 - x->dim[i] -
                  w.lo[i];
        if (w.hi[i] < 0) w.hi[i] = 0;
    }
    const bool lead = flux__channels_lead(x, &w, groups);
    const bool alone = lead && groups == 1 && need[2] && flux__channels_lead(g, &w, 1);
    if (alone) g = flux__side_channels(g, w.nd);
    if (need[1] && (out[1] = flux__conv_back(g, weight, x->dim, &w, groups, flip)) != NULL)
        out[1] = flux_to_dtype(out[1], (flux_dtype)x->dtype);
    if (!need[2]) return;
    if (flux__has_trait(x->device, FLUX__LONG_PRODUCTS) &&
        2 * w.nd + 3 + (groups > 1) <= FLUX_MAX_DIMS) {
        flux_tensor *d = flux__conv_by_weight(product, x, weight, g, &w, groups);
        d = d ? flux_reshape_with(d, flux__dims(weight)) : NULL;
        out[2] = d ? flux_to_dtype(d, (flux_dtype)weight->dtype) : NULL;
        return;
    }
    flux_shape s = flux__dims(weight);
    for (int i = 0; lead && i <= w.nd; i++) s.dim[i] = weight->dim[(i + w.nd) % (w.nd + 1)];
    flux_tensor *d = alone ? flux__conv_by_channels(product, x, weight, g, &w)
                           : flux__conv_by_sample(product, x, g, &w, groups);
    d = d ? flux_reshape_with(d, s) : NULL;
    if (lead) d = flux__move_channels(d, w.nd, true);
    out[2] = d ? flux_to_dtype(d, (flux_dtype)weight->dtype) : NULL;
}

/* flux__conv_slopes as one operation for FLUX_EAGER. */
static FLUX__COLD void flux__conv_gradient(flux_tensor *y, flux_tensor *g, const bool *need,
                                flux_tensor **out) {
    flux__as_one(1);
    flux__conv_slopes(y, g, need, out);
    flux__as_one(-1);
    for (int i = 1; i < 3; i++) out[i] = flux__if_eager(out[i]);
}

/* The gradients of attention in plain operations: d[0], d[1], d[2] by q, k and v, d[3] by the
   scores, before the softmax. False: an error was told. */
static FLUX__COLD bool flux__attend_formula(const flux__attend *a, flux_tensor *g,
                                            flux_tensor **d) {
    flux_tensor *all = flux__attend_softmax(a), *p = flux__attend_dropped(a, all),
        *q = flux__heads(a->q, a->heads), *k = flux__heads(a->k, a->heads),
        *v = flux__heads(a->v, a->heads), *gh = flux__heads(g, a->heads),
        *dp = gh && v ? flux__attend_dropped(a, flux_matmul(flux_transpose(v), gh)) : NULL;
    if (!p || !q || !k || !dp) return false;
    d[3] = flux_mul(all, flux_sub(dp, flux_sum(flux_mul(p, dp), 0)));
    flux_tensor *scaled = flux_mul(d[3], flux__attend_scale(a));
    d[0] = flux__unheads(flux_matmul(k, scaled));
    d[1] = flux__unheads(flux_matmul(q, flux__swap01(scaled)));
    d[2] = flux__unheads(flux_matmul(gh, flux__swap01(p)));
    return d[0] && d[1] && d[2];
}

/* The gradients of a FLUX__ATTENTION node. Those by q, k and v come from one kernel, whose result
   vector has the three one after the other; each also has its formula as in[1], through which its
   own gradient goes. The gradient by a mask that is added to the scores is the formula's. */
static FLUX__COLD void flux__attention_gradient(flux_tensor *y, flux_tensor *g, const bool *need,
                                     flux_tensor **out) {
    flux_tensor *d[4], *pair[2];
    /* y is itself a gradient of attention: in[1] is its formula */
    if (y->nin == 2) {
        out[1] = flux_to_dtype(g, (flux_dtype)y->in[1]->dtype);
        return;
    }
    const flux_dtype wide = flux__attend_wide(y);
    const bool masked = (y->arg.i[2] & FLUX__ATTEND_MASKED) != 0;
    flux__attend a = { y->in[1], y->in[2], y->in[3], masked ? y->in[4] : NULL,
                       y->arg.i[2] & FLUX__ATTEND_DROPS ? y->in[masked ? 5 : 4] : NULL,
                       (int)y->arg.i[0], y->arg.i[1] != 0 }, f = a;
    f.q = flux_to_dtype(a.q, wide), f.k = flux_to_dtype(a.k, wide), f.v = flux_to_dtype(a.v, wide);
    flux_tensor *slope = flux_to_dtype(g, wide);
    if (!f.q || !f.k || !f.v || !slope || !flux__attend_formula(&f, slope, d) ||
        !(g = flux__packed(g)))
        return;
    int64_t size[3], at = 0;
    for (int i = 0; i < 3; i++) size[i] = flux__size(y->in[i + 1]);
    pair[0] = flux__attend_node(&a, y->in[0], g, size[0] + size[1] + size[2]);
    for (int i = 0; i < 3 && pair[0]; at += size[i++]) {
        pair[1] = d[i];
        if (need[i + 1])
            out[i + 1] = flux__attend_view(2, pair, at, y->in[i + 1], y->in[i + 1]->dim[0], NULL);
    }
    if (masked && need[4]) out[4] = d[3];
}

/* The gradient of a concatenation by each operand: its slice of g. */
static void flux__cat_gradient(flux_tensor *y, flux_tensor *g, const bool *need,
                               flux_tensor **out) {
    int dim = (int)y->arg.i[0];
    int64_t at = 0;
    for (int k = 0; k < y->nin; k++) {
        flux_tensor *x = y->in[k];
        int64_t n = dim < x->ndim ? x->dim[dim] : 1;
        flux_tensor *part = need[k] ? flux_slice(g, dim, at, at + n) : NULL;
        out[k] = part && !flux__same_dims(part, x) ? flux_reshape_with(part, flux__dims(x)) : part;
        at += n;
    }
}

/* The transpose of a matrix; if x is itself recorded as a transpose, that is x's operand. */
static flux_tensor *flux__transposed(flux_tensor *x) {
    return x->op == FLUX__PERMUTE && flux__behind(x) && x->arg.i[0] == 1 ? x->in[0]
                                                                          : flux_transpose(x);
}

/* The gradient of a permutation: g in the inverse order. A product that is to be transposed, as
   where a layer shares the transpose of another one's weight, is one of the transposes: what comes
   next, and Adam's step with it, then takes its columns as they are made. */
static flux_tensor *flux__unpermute(flux_tensor *y, flux_tensor *g) {
    int64_t order[FLUX_MAX_DIMS];
    if (y->ndim == 2 && y->arg.i[0] == 1 && g && g->op == FLUX__MATMUL && flux__behind(g) == 2 &&
        g->ndim == 2 && g->in[0]->ndim == 2 && g->in[1]->ndim == 2)
        return flux_matmul(flux__transposed(g->in[1]), flux__transposed(g->in[0]));
    for (int i = 0; i < y->ndim; i++) order[y->arg.i[i]] = i;
    return flux_permute_with(g, flux__shape(order, y->ndim));
}

/* The gradients of scatter_add by x and src, or of gather by x. */
static void flux__index_gradient(flux_tensor *y, flux_tensor *g, const bool *need,
                                 flux_tensor **out) {
    int dim = (int)y->arg.i[0];
    flux_tensor *x = y->in[0];
    if (y->op == FLUX__SCATTER) {
        out[0] = g;
        out[2] = need[2] ? flux_gather(g, dim, y->in[1]) : NULL;
    } else {                              /* one zero, seen in x's shape, is not stored there */
        const int64_t step[FLUX_MAX_DIMS] = { 0 };
        const flux_shape s = flux__dims(x);
        flux_tensor *zero = flux_full_with(flux__shape(NULL, 0), 0, (flux_dtype)x->dtype);
        if (zero) zero = flux__as_strided(zero, &s, 0, step, 0, step, zero);
        out[0] = flux_scatter_add(zero, dim, y->in[1], g);
    }
}

/* g in the dtype of x, which was cast. If g was only widened from it by a formula that handed it
   through, that is g as it was before. What is broadcast to many elements, as the gradient of a
   mean of windows, is cast before, where it has fewer, if no formula would cast it by the way. */
static flux_tensor *flux__cast_gradient(flux_tensor *g, const flux_tensor *x) {
    const flux_dtype t = (flux_dtype)x->dtype;
    bool back = flux__is_half((int)t) && g->op == FLUX__CAST && g->dtype == FLUX_F32 && g->nin &&
                g->in[0]->dtype == t;
    const bool windows = x->op == FLUX__AS_STRIDED || x->op == FLUX__RESHAPE;
    if (windows && g->op == FLUX__BROADCAST && flux__behind(g) && flux__size(g) > 4096)
        return flux_broadcast_to_with(flux_to_dtype(g->in[0], t), flux__dims(g));
    return back ? g->in[0] : flux_to_dtype(g, t);
}

/* A row's gradients where the row computes in a half format (wide: gradients are then computed in
   float32), or has an operand that was widened. */
static void flux__wide_gradient(flux_tensor *y, flux_tensor *g, bool wide, unsigned need,
                                flux_tensor **out) {
    flux_tensor *in[3] = { NULL, NULL, NULL }, *value = y;
    for (int i = 0; i < y->nin; i++)
        if (!(in[i] = flux__operand_again(y->in[i], wide))) return;
    if (wide) g = flux__operand_again(g, true);
    if (wide)
        value = flux__value_again(y->op) ? flux__elementwise(y->op, in[0], in[1], in[2])
                                         : flux__widened(y);
    if (g && value) flux__row_gradient(y->op, value, g, in, need, out);
}

/* A row's gradients at the shape and dtype of its operands. A half format is rounded once, after
   the sum over broadcast dims. */
static void flux__elementwise_gradient(flux_tensor *y, flux_tensor *g, unsigned need,
                                       flux_tensor **out) {
    bool wide = flux__is_half(y->dtype) && !flux__rounds_once(y), again = wide;
    for (int i = 0; i < y->nin; i++) again = again || (y->in[i]->flags & FLUX__WIDENED) != 0;
    if (again) flux__wide_gradient(y, g, wide, need, out);
    else flux__row_gradient(y->op, y, g, y->in, need, out);
    for (int i = 0; i < y->nin; i++) out[i] = flux__unbroadcast(out[i], y->in[i]);
    for (int i = 0; i < y->nin && wide; i++) out[i] = flux__narrow(out[i], y->in[i]->dtype);
}

/* The gradients of y's operands, given y's own, g: out[i] for each i with need[i] set. out has
   room for all operands and starts as NULLs. */
static void flux__gradient_of(flux_tensor *y, flux_tensor *g, const bool *need, flux_tensor **out) {
    unsigned bits = (need[0] ? 1u : 0) | (y->nin > 1 && need[1] ? 2u : 0) |
                    (y->nin > 2 && need[2] ? 4u : 0);
    if (y->op < FLUX__ELEMENTWISE_COUNT) {
        flux__elementwise_gradient(y, g, bits, out);
        return;
    }
    switch (y->op) {
    case FLUX__CAST: out[0] = flux__cast_gradient(g, y->in[0]); break;
    case FLUX__COPY: out[0] = g; break;
    case FLUX__REDUCE: out[0] = flux__reduce_gradient(y, g); break;
    case FLUX__RESHAPE: out[0] = flux_reshape_with(g, flux__dims(y->in[0])); break;
    case FLUX__PERMUTE: out[0] = flux__unpermute(y, g); break;
    case FLUX__AS_STRIDED: out[0] = flux__as_strided_gradient(y, g); break;
    case FLUX__BROADCAST: out[0] = flux__unbroadcast(g, y->in[0]); break;
    case FLUX__MATMUL: flux__matmul_gradient(y, g, bits, out); break;
    case FLUX__GATHER:
    case FLUX__SCATTER: flux__index_gradient(y, g, need, out); break;
    case FLUX__AS_STRIDED_SCATTER: out[0] = flux__as_strided_scatter_gradient(y, g); break;
    case FLUX__CAT: flux__cat_gradient(y, g, need, out); break;
    case FLUX__INTERPOLATE:
        out[0] = flux__interpolated(g, flux__dims(y->in[0]), !y->arg.i[0]);
        break;
    case FLUX__CONV: flux__conv_gradient(y, g, need, out); break;
    case FLUX__ATTENTION: flux__attention_gradient(y, g, need, out); break;
    case FLUX__CUSTOM: flux__custom_gradient(y, g, need, out); break;
    case FLUX__MOVE: out[0] = flux__move(g, y->in[0]->device); break;
    case FLUX__NUMBER:                    /* a number made by flux__renumber from in[0] */
        g = flux_to_dtype(flux__unbroadcast(g, y->in[0]), (flux_dtype)y->in[0]->dtype);
        out[0] = g ? flux__move(g, y->in[0]->device) : NULL;
        break;
    default: break;                       /* detach, argmax, random, ...: no gradient */
    }
}

FLUX__END_LEAN

#endif /* FLUX__GRAPH_GRADIENTS_H */
