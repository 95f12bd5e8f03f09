/* graphs.h - random graphs, and a plain interpreter of them in double that shares nothing with
   flux.h's kernels.

   A graph is a list of steps, each an operation on earlier ones, drawn from a seed. It can be
     - built with flux (graph_build), with some nodes looked at as soon as they are there;
     - interpreted (graph_values): every element is a number with its derivatives along two
       directions and both, each beside a bound of what rounding in the graph's dtypes may do to
       it, so that what is compared has a tolerance of its own;
     - made smaller while something holds (graph_shrink), and printed as C (graph_print).
   Where a comparison, a rounding or the largest of several hangs on less than the bound, the bound
   becomes as large as the jump: kinks need no care. tests/test_graphs.c compares flux with the
   interpreter, tests/test_bits.c flux with itself. */
#ifndef FLUX_GRAPHS_H
#define FLUX_GRAPHS_H
#include "test.h"

/* ------------------------------------------------------------------ dice */

static uint64_t dice_state;
static inline uint64_t dice_word(void) {  /* splitmix64 */
    uint64_t z = dice_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
static inline int dice(int n) { return (int)(dice_word() % (uint64_t)n); }

/* ------------------------------------------------------------------ what a graph is */

/* Functions of one number: which numbers each takes (0 any, 1 positive, 2 between -1 and 1), and
   whether it is made of several. */
#define GRAPH_UNARY(X)                                                                            \
    X(neg, 0, 0) X(abs, 0, 0) X(sign, 0, 0) X(square, 0, 0) X(sqrt, 1, 0) X(rsqrt, 1, 0)          \
    X(exp, 2, 0) X(log, 1, 0) X(log1p, 1, 0) X(expm1, 2, 0) X(sin, 0, 0) X(cos, 0, 0)             \
    X(erf, 0, 0) X(floor, 0, 0) X(ceil, 0, 0) X(round, 0, 0) X(tanh, 0, 0) X(sigmoid, 0, 0)       \
    X(relu, 0, 0) X(gelu, 0, 1) X(gelu_erf, 0, 1) X(swish, 0, 1) X(softplus, 0, 1)                \
    X(logcosh, 0, 1) X(mish, 0, 1) X(selu, 0, 1) X(hardswish, 0, 1) X(softsign, 0, 1)             \
    X(leakyrelu, 0, 1) X(elu, 0, 1) X(logsigmoid, 0, 1) X(hardsigmoid, 0, 1) X(relu6, 0, 1)       \
    X(tanhshrink, 0, 1) X(softshrink, 0, 1) X(lisht, 0, 1)
#define GRAPH_REDUCTION(X)                                                                        \
    X(sum) X(mean) X(max) X(min) X(prod) X(var) X(norm) X(logsumexp) X(softmax) X(logsoftmax)     \
    X(argmax)
#define GRAPH_BINARY(X) X(add) X(sub) X(mul) X(div) X(max2) X(min2) X(gt) X(le)
#define GRAPH_OTHER(X)                                                                            \
    X(leaf) X(full) X(cast) X(add_number) X(mul_number) X(pow_number) X(clamp) X(where)           \
    X(reshape) X(permute) X(slice) X(flip) X(unsqueeze) X(squeeze) X(broadcast) X(repeat) X(pad)  \
    X(cat) X(gather) X(matmul) X(conv) X(maxpool) X(meanpool) X(glu) X(normalise)
#define GRAPH_ENUM_1(name, domain, composed) G_##name,
#define GRAPH_ENUM(name) G_##name,
typedef enum graph_op {
    GRAPH_UNARY(GRAPH_ENUM_1) G_UNARIES, G_before_reductions = G_UNARIES - 1,
    GRAPH_REDUCTION(GRAPH_ENUM) G_REDUCTIONS, G_before_binaries = G_REDUCTIONS - 1,
    GRAPH_BINARY(GRAPH_ENUM) G_BINARIES, G_before_others = G_BINARIES - 1,
    GRAPH_OTHER(GRAPH_ENUM) G_OPS
} graph_op;
#define GRAPH_NAME_1(name, domain, composed) #name,
#define GRAPH_NAME(name) #name,
static const char *const graph_names[] = {
    GRAPH_UNARY(GRAPH_NAME_1) GRAPH_REDUCTION(GRAPH_NAME) GRAPH_BINARY(GRAPH_NAME)
    GRAPH_OTHER(GRAPH_NAME) };

enum { GRAPH_MOST = 48, GRAPH_TARGETS = 3 };
typedef enum graph_fill { FILL_REAL, FILL_INTEGER, FILL_ONE, FILL_INDEX } graph_fill;
/* What the fields mean beyond their names: leaf: a: the scale, or of FILL_INDEX the bound; slice: s
   = start, stop, step; unsqueeze, cat, gather, glu: dim; pad: s and t = before and after, a = the
   value; conv: s = stride, t = pad, dim = groups, start = dilation, flip; pools: s = window, t =
   stride. */
typedef struct graph_step {
    graph_op op;
    int in[3], nin;
    flux_shape s, t;
    double a, b;
    int dim, start;
    bool flip;
    flux_dtype type;                      /* of leaf, full and cast; inferred of the others */
    uint32_t seed;
    graph_fill fill;
    flux_shape shape;                     /* inferred */
} graph_step;
typedef struct graph {
    uint64_t seed;
    /* loss: the step whose gradient is taken, -1: none */
    int n, loss, targets, target[GRAPH_TARGETS];
    /* a second gradient; all looked at at once; which are looked at */
    bool second, together, want[GRAPH_MOST];
    graph_step step[GRAPH_MOST];
} graph;

static inline int64_t shape_len(flux_shape s) {
    int64_t n = 1;
    for (int d = 0; d < s.ndim; d++) n *= s.dim[d];
    return n;
}
static inline int64_t shape_dim(flux_shape s, int d) { return d < s.ndim ? s.dim[d] : 1; }
static inline bool type_real(flux_dtype t) { return t <= FLUX_BF16; }
static inline bool type_half(flux_dtype t) { return t == FLUX_F16 || t == FLUX_BF16; }
static inline flux_shape shape_of_dims(int n, const int64_t *dims) {
    flux_shape s = { 0, { 0 } };
    for (s.ndim = 0; s.ndim < n; s.ndim++) s.dim[s.ndim] = dims[s.ndim];
    return s;
}
/* The dtype at which two meet: f64, f32, the halves, i64, i32, u8, bool, the earlier in this order;
   of the two halves f32. */
static inline flux_dtype type_meet(flux_dtype a, flux_dtype b) {
    static const int rank[] = { 6, 7, 5, 5, 3, 4, 2, 1 };
    if (a == b) return a;
    return rank[a] == rank[b] ? FLUX_F32 : rank[a] > rank[b] ? a : b;
}

/* ------------------------------------------------------------------ shapes and dtypes of a step */

static bool infer_broadcast(flux_shape *out, flux_shape a, flux_shape b) {
    for (int d = 0; d < (a.ndim > b.ndim ? a.ndim : b.ndim); d++) {
        int64_t p = shape_dim(a, d), q = shape_dim(b, d);
        if (p != q && p != 1 && q != 1) return false;
        out->dim[d] = p == 1 ? q : p;
    }
    out->ndim = a.ndim > b.ndim ? a.ndim : b.ndim;
    return true;
}
static unsigned reduce_mask(const graph_step *k, flux_shape x) {
    unsigned mask = 0;
    if (k->s.ndim == 0) return k->op == G_softmax || k->op == G_logsoftmax ? 1u
        : (1u << x.ndim) - 1;
    for (int i = 0; i < k->s.ndim; i++) mask |= 1u << k->s.dim[i];
    return mask;
}
static bool infer_reduction(graph_step *k, flux_shape x, flux_dtype t) {
    const unsigned mask = reduce_mask(k, x);
    int64_t count = 1;
    for (int i = 0; i < k->s.ndim; i++)
        if (k->s.dim[i] >= x.ndim) return false;
    for (int d = 0; d < x.ndim; d++) count *= mask >> d & 1 ? x.dim[d] : 1;
    if (count == 0 && k->op != G_sum && k->op != G_prod) return false;
    if (!type_real(t) && k->op != G_sum && k->op != G_max && k->op != G_min && k->op != G_argmax)
        return false;
    if (k->op == G_argmax && k->s.ndim > 1) return false;
    k->type = k->op == G_argmax || (k->op == G_sum && !type_real(t)) ? FLUX_I64 : t;
    k->shape = x;
    if (k->op == G_softmax || k->op == G_logsoftmax) return x.ndim > 0;
    for (int d = 0; d < x.ndim; d++)
        if (mask >> d & 1) k->shape.dim[d] = 1;
    if (k->s.ndim == 0) k->shape.ndim = 0;
    return true;
}
static bool infer_window(graph_step *k, flux_shape x, flux_shape w) {
    const int nd = x.ndim - 2;
    if (nd < 1 || nd > 3) return false;
    if (k->op == G_conv && (w.ndim != x.ndim || k->dim < 1 || x.dim[nd] % k->dim
        || w.dim[nd + 1] % k->dim || w.dim[nd] != x.dim[nd] / k->dim)) return false;
    if (k->s.ndim != nd || k->t.ndim != nd) return false;
    k->shape = x;
    for (int d = 0; d < nd; d++) {
        int64_t reach = k->op == G_conv ? (w.dim[d] - 1) * k->start + 1 : k->s.dim[d],
            step = k->op == G_conv ? k->s.dim[d] : k->t.dim[d];
        int64_t room = x.dim[d] + (k->op == G_conv ? 2 * k->t.dim[d] : 0) - reach;
        if (room < 0 || reach < 1) return false;
        k->shape.dim[d] = room / step + 1;
    }
    if (k->op == G_conv) k->shape.dim[nd] = w.dim[nd + 1];
    return true;
}
static bool infer_view(graph_step *k, flux_shape x) {
    const int64_t n = shape_len(x);
    flux_shape *o = &k->shape;
    int64_t count = 0;
    *o = x;
    switch (k->op) {
    case G_reshape: *o = k->s; return shape_len(k->s) == n;
    case G_permute:
        if (k->s.ndim != x.ndim) return false;
        for (int d = 0; d < x.ndim; d++) o->dim[d] = x.dim[k->s.dim[d]],
            count |= (int64_t)1 << k->s.dim[d];
        return count == ((int64_t)1 << x.ndim) - 1;
    case G_slice:
        if (k->dim >= x.ndim || k->s.dim[1] > x.dim[k->dim] || k->s.dim[0] > k->s.dim[1])
            return false;
        for (int64_t i = k->s.dim[0]; i < k->s.dim[1]; i += k->s.dim[2]) count++;
        o->dim[k->dim] = count;
        return true;
    case G_flip: return k->dim < x.ndim;
    case G_unsqueeze:
        if (x.ndim >= FLUX_MAX_DIMS || k->dim > x.ndim) return false;
        for (int d = o->ndim++; d > k->dim; d--) o->dim[d] = o->dim[d - 1];
        o->dim[k->dim] = 1;
        return true;
    case G_squeeze:
        o->ndim = 0;
        for (int d = 0; d < x.ndim; d++)
            if (x.dim[d] != 1) o->dim[o->ndim++] = x.dim[d];
        return true;
    case G_broadcast: {
        flux_shape both = { 0, { 0 } };
        *o = k->s;
        return infer_broadcast(&both, x, k->s) && both.ndim == k->s.ndim
            && !memcmp(both.dim, k->s.dim, (size_t)both.ndim * sizeof both.dim[0]);
    }
    case G_repeat:
        for (int d = 0; d < x.ndim; d++) o->dim[d] *= shape_dim(k->s, d);
        return k->s.ndim == x.ndim;
    case G_pad:
        for (int d = 0; d < x.ndim; d++) o->dim[d] += k->s.dim[d] + k->t.dim[d];
        return k->s.ndim == x.ndim && k->t.ndim == x.ndim;
    case G_glu:
        if (k->dim >= x.ndim || x.dim[k->dim] % 2) return false;
        o->dim[k->dim] /= 2;
        return true;
    default: return false;
    }
}
static bool infer_two(graph_step *k, const graph_step *a, const graph_step *b) {
    flux_shape x = a->shape, y = b->shape;
    k->type = type_meet(a->type, b->type);
    switch (k->op) {
    case G_matmul:
        if (!type_real(k->type) || x.ndim != y.ndim || x.ndim < 2 || x.ndim > 3
            || x.dim[1] != y.dim[0]) return false;
        if (x.ndim == 3 && x.dim[2] != y.dim[2]) return false;
        k->shape = x, k->shape.dim[1] = y.dim[1];
        return true;
    case G_cat:
        if (k->dim >= x.ndim || x.ndim != y.ndim) return false;
        for (int d = 0; d < x.ndim; d++)
            if (d != k->dim && x.dim[d] != y.dim[d]) return false;
        k->shape = x, k->shape.dim[k->dim] += y.dim[k->dim];
        return true;
    case G_gather:
        if (k->dim >= x.ndim || b->op != G_leaf || b->fill != FILL_INDEX
            || b->a > (double)x.dim[k->dim] || x.ndim - 1 + y.ndim > FLUX_MAX_DIMS) return false;
        k->type = a->type, k->shape = x, k->shape.ndim = k->dim;
        for (int d = 0; d < y.ndim; d++) k->shape.dim[k->shape.ndim++] = y.dim[d];
        for (int d = k->dim + 1; d < x.ndim; d++) k->shape.dim[k->shape.ndim++] = x.dim[d];
        return true;
    case G_conv: return type_real(k->type) && a->type == b->type && infer_window(k, x, y);
    default:
        if (k->type == FLUX_BOOL && k->op != G_gt && k->op != G_le) return false;
        if (k->op == G_div && !type_real(k->type)) k->type = FLUX_F32;
        if (k->op == G_gt || k->op == G_le) k->type = FLUX_BOOL;
        return infer_broadcast(&k->shape, x, y);
    }
}
static bool graph_infer(graph *g, int i) {
    graph_step *k = &g->step[i];
    const graph_step *a = k->nin > 0 ? &g->step[k->in[0]] : NULL, *b = k->nin > 1
        ? &g->step[k->in[1]] : NULL, *c = k->nin > 2 ? &g->step[k->in[2]] : NULL;
    for (int j = 0; j < k->nin; j++)
        if (k->in[j] >= i) return false;
    if (k->op == G_leaf || k->op == G_full) return k->shape = k->s, k->type != FLUX_U8 || k->a >= 0;
    if (k->op == G_where) {
        flux_shape part = { 0, { 0 } };
        k->type = type_meet(b->type, c->type);
        return a->type == FLUX_BOOL && infer_broadcast(&part, a->shape, b->shape)
            && infer_broadcast(&k->shape, part, c->shape);
    }
    if (b) return infer_two(k, a, b);
    if (k->op < G_UNARIES) {
        if (!type_real(a->type)) return false;
        return k->shape = a->shape, k->type = a->type, true;
    }
    if (k->op < G_REDUCTIONS) return infer_reduction(k, a->shape, a->type);
    if (k->op == G_cast) return k->shape = a->shape, true;
    k->type = a->type;
    switch (k->op) {
    /* a number that its dtype has no place for is an error */
    case G_add_number: case G_mul_number:
        return k->shape = a->shape, a->type != FLUX_BOOL
            && (type_real(a->type) || (k->a == floor(k->a) && (a->type != FLUX_U8 || k->a >= 0)));
    case G_pow_number: case G_clamp: return k->shape = a->shape, type_real(a->type);
    case G_normalise: return k->shape = a->shape, type_real(a->type) && a->shape.ndim > 0
        && shape_len(a->shape) > 0;
    case G_maxpool: case G_meanpool: return type_real(a->type)
        && infer_window(k, a->shape, a->shape);
    case G_glu: return type_real(a->type) && infer_view(k, a->shape);
    default: return infer_view(k, a->shape);
    }
}
static inline bool graph_infer_all(graph *g) {
    for (int i = 0; i < g->n; i++)
        if (!graph_infer(g, i) || shape_len(g->step[i].shape) > 400000) return false;
    return true;
}

/* ------------------------------------------------------------------ numbers of leaves */

static inline float leaf_draw(uint32_t seed, uint32_t i) {
    uint32_t h = seed + i * 2654435761u;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return (float)((h ^ h >> 16) >> 8) / 8388608.0f - 1.0f;
}
/* Element i, as float32: what the dtype makes of it is the same for all who read it. */
static inline float leaf_at(flux_dtype t, graph_fill fill, double a, uint32_t seed, uint32_t i) {
    const float u = leaf_draw(seed, i);
    switch (fill) {
    case FILL_ONE: return 1;
    case FILL_INDEX: return floorf((u + 1) / 2 * 0.999f * (float)a);
    case FILL_INTEGER: return t == FLUX_BOOL ? (float)(u > 0) : t == FLUX_U8 ? floorf((u + 1) * 5)
        : floorf(u * 7);
    default: return u * (float)a;
    }
}
/* A tensor with memory of its own: printed graphs call it too. */
static inline flux_tensor *graph_leaf(flux_dtype t, flux_shape s, graph_fill fill, double a,
    uint32_t seed) {
    const int64_t n = shape_len(s);
    float *data = (float *)malloc((size_t)n * sizeof *data + 1);
    for (int64_t i = 0; i < n; i++) data[i] = leaf_at(t, fill, a, seed, (uint32_t)i);
    flux_tensor *x = flux_to_dtype(flux_from_with(data, FLUX_F32, s), t);
    free(data);
    return flux_eval(x);
}

/* ------------------------------------------------------------------ building one with flux */

static flux_reduce_opts reduce_opts(flux_tensor *x, flux_shape dims) {
    flux_reduce_opts o;
    int *d[8] = { &o.d0, &o.d1, &o.d2, &o.d3, &o.d4, &o.d5, &o.d6, &o.d7 };
    memset(&o, 0, sizeof o);
    o.x = x;
    for (int i = 0; i < dims.ndim; i++) *d[i] = (int)dims.dim[i];
    return o;
}
static flux_tensor *build_window(const graph_step *k, flux_tensor *a, flux_tensor *w) {
    flux_pool_opts p;
    flux_conv_opts c;
    memset(&p, 0, sizeof p), memset(&c, 0, sizeof c);
    p.x = a, p.window = k->s, p.stride = k->t;
    if (k->op == G_maxpool) return flux_maxpool_with(p);
    if (k->op == G_meanpool) return flux_meanpool_with(p);
    c.x = a, c.weight = w, c.stride = k->s, c.pad = k->t, c.groups = k->dim,
        c.dilation = FLUX_SHAPE(k->start);
    return k->flip ? flux_conv_with(c) : flux_crosscor_with(c);
}
#define GRAPH_CALL_1(name, domain, composed) case G_##name: return flux_##name(a);
#define GRAPH_CALL_2(name) case G_##name: return flux_##name(a, b);
#define GRAPH_CALL_R(name) case G_##name: return flux_##name##_with(k->s.ndim, \
    reduce_opts(a, k->s));
static flux_tensor *build_step(const graph_step *k, flux_tensor *const *x) {
    flux_tensor *a = k->nin > 0 ? x[k->in[0]] : NULL, *b = k->nin > 1 ? x[k->in[1]] : NULL,
        *c = k->nin > 2 ? x[k->in[2]] : NULL;
    switch (k->op) {
    GRAPH_UNARY(GRAPH_CALL_1)
    GRAPH_REDUCTION(GRAPH_CALL_R)
    GRAPH_BINARY(GRAPH_CALL_2)
    case G_leaf: return graph_leaf(k->type, k->s, k->fill, k->a, k->seed);
    case G_full: return flux_full_with(k->s, k->a, k->type);
    case G_cast: return flux_to_dtype(a, k->type);
    case G_add_number: return flux_add(a, k->a);
    case G_mul_number: return flux_mul(a, k->a);
    case G_pow_number: return flux_pow(a, k->a);
    case G_clamp: return flux_clamp(a, k->a, k->b);
    case G_where: return flux_where(a, b, c);
    case G_reshape: return flux_reshape_with(a, k->s);
    case G_permute: return flux_permute_with(a, k->s);
    case G_slice: return flux_slice_step(a, k->dim, k->s.dim[0], k->s.dim[1], k->s.dim[2]);
    case G_flip: return flux_flip_with(a, FLUX_SHAPE(k->dim));
    case G_unsqueeze: return flux_unsqueeze(a, k->dim);
    case G_squeeze: return flux_squeeze(a);
    case G_broadcast: return flux_broadcast_to_with(a, k->s);
    case G_repeat: return flux_repeat_with(a, k->s);
    case G_pad: return flux_pad_by(a, k->a, k->s, k->t);
    case G_cat: return flux_cat(k->dim, a, b);
    case G_gather: return flux_gather(a, k->dim, b);
    case G_matmul: return flux_matmul(a, b);
    case G_glu: return flux_glu(a, k->dim);
    case G_normalise: return flux_normalise(a, FLUX_SHAPE(0), 1e-3);
    default: return build_window(k, a, b);
    }
}
/* look: from 0 to 1, how often a node is looked at as soon as it is there, as look_seed says.
   False: flux refused a step. */
static inline bool graph_build(const graph *g, flux_tensor **x, double look, uint64_t look_seed) {
    uint64_t looks = look_seed * UINT64_C(0xD1342543DE82EF95) + 1;
    for (int i = 0; i < g->n; i++) {
        x[i] = build_step(&g->step[i], x);
        if (!x[i]) return false;
        looks = looks * UINT64_C(6364136223846793005) + 1442695040888963407u;
        if ((double)(looks >> 33) < look * 2147483648.0) flux_eval(x[i]);
    }
    return true;
}

/* ------------------------------------------------------------------ numbers of the interpreter
   d[0] is the value, d[1] and d[2] its derivatives along two directions, d[3] the second derivative
   along both; m bounds the sum of the magnitudes that make d up, e what rounding may do to it. The
   bits of an index say which directions it is about. */

typedef struct num { double d[4], m[4], e[4]; } num;
/* what underflow in the dtypes of a graph's nodes may do to a gradient */
static double graph_slack;

static num num_of(double v) {
    num y;
    memset(&y, 0, sizeof y);
    y.d[0] = v, y.m[0] = fabs(v);
    return y;
}
static double type_eps(flux_dtype t) {
    return t == FLUX_F64 ? 1.2e-16 : t == FLUX_F32 ? 6e-8 : t == FLUX_F16 ? 4.9e-4 : t == FLUX_BF16
        ? 3.91e-3 : 0;
}
static double type_tiny(flux_dtype t) {
    return t == FLUX_F64 ? 1e-300 : t == FLUX_F16 ? 3e-8 : 1.2e-38;
}
static double type_most(flux_dtype t) {
    return t == FLUX_F64 ? 1e308 : t == FLUX_F16 ? 65504 : t == FLUX_I32 ? 2147483647.0
        : t == FLUX_I64 ? 9e15 : t == FLUX_U8 ? 255 : t == FLUX_BOOL ? 1 : 3e38;
}
/* in what sums and formulas are computed */
static flux_dtype type_wide(flux_dtype t) { return type_half(t) ? FLUX_F32 : t; }
/* y as its dtype holds it, after `times` roundings in the dtype that it was computed in. */
static num num_round(num y, flux_dtype t, double times) {
    const double last = type_eps(t), each = type_eps(type_wide(t));
    if (!type_real(t)) {
        const double v = y.d[0], e = y.e[0];
        y = num_of(v), y.e[0] = e;
        if (fabs(v) + e > type_most(t) || (t == FLUX_U8 && v - e < 0)) y.e[0] = HUGE_VAL;
        return y;
    }
    y.e[0] += (last + times * each) * y.m[0] + type_tiny(t);
    for (int s = 1; s < 4; s++) y.e[s] += (3 * last + 4 * (times + 1) * each) * y.m[s];
    graph_slack += 2 * type_tiny(t) * y.m[1];
    if (!(y.m[0] + y.e[0] < type_most(t) * 0.99)) y.e[0] = HUGE_VAL;
    return y;
}
static num num_add(num a, num b) {
    for (int s = 0; s < 4; s++) a.d[s] += b.d[s], a.m[s] += b.m[s], a.e[s] += b.e[s];
    a.m[0] = fabs(a.d[0]);
    return a;
}
static num num_neg(num a) {
    for (int s = 0; s < 4; s++) a.d[s] = -a.d[s];
    return a;
}
/* The rule for products, for every set of directions: a part of it goes to a, the rest to b. */
static num num_mul(num a, num b) {
    num y = num_of(0);
    for (int s = 0; s < 4; s++)
        for (int t = 0; t < 4; t++) {
            if (t & ~s) continue;
            const int r = s ^ t;
            y.d[s] += a.d[t] * b.d[r], y.m[s] += a.m[t] * b.m[r],
                y.e[s] += a.e[t] * b.m[r] + a.m[t] * b.e[r] + a.e[t] * b.e[r];
        }
    return y;
}
/* A value and its first two derivatives by the number it is a function of. */
typedef struct jet { double f, f1, f2; } jet;
typedef jet (*jet_fn)(double x, const double *p);
static double furthest(double a, double b, double c) { return fmax(fabs(a - b), fabs(a - c)); }
/* f(x): what x may be off by moves the value and both slopes, which kinks and steps move by their
   whole jump. slop: what rounding does to the slopes. */
static num num_apply(num x, jet_fn f, const double *p, double slop) {
    const double off = x.e[0] + 1e-13 * (fabs(x.d[0]) + 1);
    const jet y = f(x.d[0], p), up = f(x.d[0] + off, p), down = f(x.d[0] - off, p);
    const double off0 = x.e[0] > 0 ? fmax(fabs(y.f1) * x.e[0], furthest(y.f, up.f, down.f)) : 0;
    const double off1 = furthest(y.f1, up.f1, down.f1) + slop * (1 + fabs(y.f1)),
        off2 = furthest(y.f2, up.f2, down.f2) + slop * (1 + fabs(y.f2));
    const double s1 = fabs(y.f1), s2 = fabs(y.f2);
    num z = num_of(y.f);
    z.e[0] = off0;
    for (int s = 1; s < 4; s++) {
        z.d[s] = y.f1 * x.d[s], z.m[s] = s1 * x.m[s];
        z.e[s] = s1 * x.e[s] + off1 * x.m[s];
    }
    z.d[3] += y.f2 * x.d[1] * x.d[2], z.m[3] += s2 * x.m[1] * x.m[2];
    z.e[3] += s2 * (x.e[1] * x.m[2] + x.m[1] * x.e[2]) + off2 * x.m[1] * x.m[2];
    return z;
}
/* The one that is chosen of two, where the choice may have been the other. */
static num num_either(num chosen, num other, bool value_too) {
    for (int s = value_too ? 0 : 1; s < 4; s++) {
        chosen.e[s] = fmax(chosen.e[s], other.e[s])
            + (s ? chosen.m[s] + other.m[s] : fabs(chosen.d[0] - other.d[0]));
        chosen.m[s] = fmax(chosen.m[s], other.m[s]);
    }
    return chosen;
}
static num num_larger(num a, num b, double sign) {       /* sign -1: the smaller */
    const bool first = sign * a.d[0] >= sign * b.d[0],
        near_tie = fabs(a.d[0] - b.d[0]) <= a.e[0] + b.e[0] + 1e-12 * a.m[0];
    num y = first ? a : b;
    if (near_tie) y = num_either(y, first ? b : a, false), y.e[0] = fmax(a.e[0], b.e[0]);
    return y;
}

/* ---------------------------------------- functions of one number, with their slopes */

static jet jet_of(double f, double f1, double f2) {
    jet y;
    y.f = f, y.f1 = f1, y.f2 = f2;
    return y;
}
static jet jet_mul(jet a, jet b) {
    return jet_of(a.f * b.f, a.f1 * b.f + a.f * b.f1, a.f2 * b.f + 2 * a.f1 * b.f1 + a.f * b.f2);
}
static jet jet_add(jet a, jet b) { return jet_of(a.f + b.f, a.f1 + b.f1, a.f2 + b.f2); }
static jet jet_scale(jet a, double by) { return jet_of(a.f * by, a.f1 * by, a.f2 * by); }
static jet jet_plus(jet a, double c) { return jet_of(a.f + c, a.f1, a.f2); }
/* f(u) where u is itself a jet. */
static jet jet_chain(jet f, jet u) {
    return jet_of(f.f, f.f1 * u.f1, f.f2 * u.f1 * u.f1 + f.f1 * u.f2);
}
static jet jet_x(double x) { return jet_of(x, 1, 0); }
static jet jet_exp(double x) { return jet_of(exp(x), exp(x), exp(x)); }
static jet jet_log1p(double x) { return jet_of(log1p(x), 1 / (1 + x), -1 / ((1 + x) * (1 + x))); }
static jet jet_tanh(double x) {
    const double t = tanh(x), s = 1 / (cosh(x) * cosh(x));
    return jet_of(t, s, -2 * t * s);
}
static jet jet_erf(double x) {
    const double s = 1.1283791670955126 * exp(-x * x);
    return jet_of(erf(x), s, -2 * x * s);
}
static jet jet_sigmoid(double x) {
    const double s = 1 / (1 + exp(-x)), q = 1 / (1 + exp(x));
    return jet_of(s, s * q, s * q * (q - s));
}
static jet jet_softplus(double x) {
    jet s = jet_sigmoid(x);
    return jet_of(fmax(x, 0) + log1p(exp(-fabs(x))), s.f, s.f1);
}

#define JET(name, ...) static jet jet_of_##name(double x, const double *p) { \
    (void)p; return __VA_ARGS__; }
JET(neg, jet_of(-x, -1, 0))
JET(abs, jet_of(fabs(x), x > 0 ? 1 : x < 0 ? -1 : 0, 0))
JET(sign, jet_of(x > 0 ? 1 : x < 0 ? -1 : 0, 0, 0))
JET(square, jet_of(x * x, 2 * x, 2))
JET(sqrt, jet_of(sqrt(x), 0.5 / sqrt(x), -0.25 / (x * sqrt(x))))
JET(rsqrt, jet_of(1 / sqrt(x), -0.5 / (x * sqrt(x)), 0.75 / (x * x * sqrt(x))))
JET(exp, jet_exp(x))
JET(log, jet_of(log(x), 1 / x, -1 / (x * x)))
JET(log1p, jet_log1p(x))
JET(expm1, jet_of(expm1(x), exp(x), exp(x)))
JET(sin, jet_of(sin(x), cos(x), -sin(x)))
JET(cos, jet_of(cos(x), -sin(x), -cos(x)))
JET(erf, jet_erf(x))
JET(floor, jet_of(floor(x), 0, 0))
JET(ceil, jet_of(ceil(x), 0, 0))
JET(round, jet_of(nearbyint(x), 0, 0))
JET(trunc, jet_of(trunc(x), 0, 0))
JET(tanh, jet_tanh(x))
JET(sigmoid, jet_sigmoid(x))
JET(relu, jet_of(x > 0 ? x : 0, x > 0, 0))
JET(gelu, jet_mul(jet_scale(jet_x(x), 0.5),
    jet_plus(jet_chain(jet_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)),
    jet_scale(jet_of(x + 0.044715 * x * x * x, 1 + 0.134145 * x * x, 0.26829 * x),
        0.7978845608028654)), 1)))
JET(gelu_erf, jet_mul(jet_scale(jet_x(x), 0.5),
    jet_plus(jet_chain(jet_erf(x * 0.7071067811865476), jet_scale(jet_x(x), 0.7071067811865476)),
    1)))
JET(swish, jet_mul(jet_x(x), jet_sigmoid(x)))
JET(softplus, jet_softplus(x))
JET(logcosh, jet_of(fabs(x) + log1p(exp(-2 * fabs(x))) - 0.6931471805599453, tanh(x),
    jet_tanh(x).f1))
JET(mish, jet_mul(jet_x(x), jet_chain(jet_tanh(jet_softplus(x).f), jet_softplus(x))))
JET(selu, jet_scale(x > 0 ? jet_x(x) : jet_scale(jet_of(expm1(x), exp(x), exp(x)),
    1.6732632423543772), 1.0507009873554805))
JET(hardsigmoid, x < -3 ? jet_of(0, 0, 0) : x > 3 ? jet_of(1, 0, 0)
    : jet_of((x + 3) / 6, 1.0 / 6, 0))
JET(hardswish, jet_mul(jet_x(x), jet_of_hardsigmoid(x, p)))
JET(softsign, jet_of(x / (1 + fabs(x)), 1 / ((1 + fabs(x)) * (1 + fabs(x))),
    (x > 0 ? -2 : 2) / pow(1 + fabs(x), 3)))
JET(leakyrelu, jet_scale(jet_x(x), x > 0 ? 1 : 0.01))
JET(elu, x > 0 ? jet_x(x) : jet_of(expm1(x), exp(x), exp(x)))
JET(logsigmoid, jet_of(-jet_softplus(-x).f, jet_sigmoid(-x).f, -jet_sigmoid(-x).f1))
JET(relu6, x < 0 ? jet_of(0, 0, 0) : x > 6 ? jet_of(6, 0, 0) : jet_x(x))
JET(tanhshrink, jet_add(jet_x(x), jet_scale(jet_tanh(x), -1)))
JET(softshrink, x > 0.5 ? jet_of(x - 0.5, 1, 0) : x < -0.5 ? jet_of(x + 0.5, 1, 0)
    : jet_of(0, 0, 0))
JET(lisht, jet_mul(jet_x(x), jet_tanh(x)))
JET(reciprocal, jet_of(1 / x, -1 / (x * x), 2 / (x * x * x)))
JET(power, jet_of(pow(x, *p), *p * pow(x, *p - 1), *p * (*p - 1) * pow(x, *p - 2)))
JET(clamp, x < p[0] ? jet_of(p[0], 0, 0) : x > p[1] ? jet_of(p[1], 0, 0) : jet_x(x))
#define GRAPH_JET_1(name, domain, composed) jet_of_##name,
static const jet_fn unary_jets[] = { GRAPH_UNARY(GRAPH_JET_1) };
#define GRAPH_COMPOSED_1(name, domain, composed) composed,
static const int unary_composed[] = { GRAPH_UNARY(GRAPH_COMPOSED_1) };

static num num_function(num x, jet_fn f, const double *p, flux_dtype t, bool composed) {
    const double each = type_eps(type_wide(t));
    num y = num_apply(x, f, p, 16 * each + 4 * type_eps(t));
    if (composed) y.e[0] += 16 * each * (fabs(x.d[0]) + 1);
    return num_round(y, t, 8);
}
static num num_as(num x, flux_dtype from, flux_dtype to) {
    if (from == to) return x;
    if (to == FLUX_BOOL) return x.d[0] = x.d[0] != 0, num_round(num_of(x.d[0]), to, 0);
    if (!type_real(to) && type_real(from)) x = num_apply(x, jet_of_trunc, NULL, 0);
    return num_round(x, to, 0);
}

/* ------------------------------------------------------------------ interpreting a step */

/* the two directions, of each leaf; NULL: 0 */
typedef struct graph_way { const double *along[2][GRAPH_MOST]; } graph_way;

static double round_to(double v, flux_dtype t) {         /* to nearest, ties to even */
    int e, bits = t == FLUX_F16 ? 11 : t == FLUX_BF16 ? 8 : t == FLUX_F32 ? 24 : 53,
        least = t == FLUX_F16 ? -24 : -1074;
    if (!type_real(t)) return t == FLUX_BOOL ? v != 0 : trunc(v);
    if (v == 0 || t == FLUX_F64) return v;
    frexp(v, &e);
    e = e - bits > least ? e - bits : least;
    return ldexp(nearbyint(ldexp(v, -e)), e);
}
static void place_of(int64_t i, flux_shape s, int64_t *at) {
    for (int d = 0; d < s.ndim; d++) at[d] = i % s.dim[d], i /= s.dim[d];
}
static int64_t index_of(const int64_t *at, flux_shape s, bool stretch) {
    int64_t i = 0, stride = 1;
    for (int d = 0; d < s.ndim; d++) {
        i += (stretch && s.dim[d] == 1 ? 0 : at[d]) * stride;
        stride *= s.dim[d];
    }
    return i;
}
static void eval_leaf(const graph_step *k, int i, const graph_way *way, num *y) {
    for (int64_t j = 0; j < shape_len(k->shape); j++) {
        y[j] = num_of(k->op == G_full ? round_to(k->a, k->type)
            : round_to((double)leaf_at(k->type, k->fill, k->a, k->seed, (uint32_t)j), k->type));
        if (!way || k->op == G_full || !type_real(k->type)) continue;
        for (int w = 0; w < 2; w++)
            if (way->along[w][i]) y[j].d[1 << w] = way->along[w][i][j],
                y[j].m[1 << w] = fabs(y[j].d[1 << w]);
        y[j] = num_round(y[j], k->type, 0), y[j].e[0] = 0;
    }
}
static num eval_two(const graph_step *k, num a, num b) {
    const double apart = fabs(a.d[0] - b.d[0]), off = a.e[0] + b.e[0];
    const double slop = 16 * type_eps(k->type);
    num y;
    switch (k->op) {
    case G_add: return num_round(num_add(a, b), k->type, 1);
    case G_sub: return num_round(num_add(a, num_neg(b)), k->type, 1);
    case G_mul: return num_round(num_mul(a, b), k->type, 1);
    case G_div: return num_round(num_mul(a, num_apply(b, jet_of_reciprocal, NULL, slop)), k->type,
        2);
    case G_max2: return num_larger(a, b, 1);
    case G_min2: return num_larger(a, b, -1);
    default:
        y = num_of(k->op == G_gt ? a.d[0] > b.d[0] : a.d[0] <= b.d[0]);
        if (off > 0 && apart <= off) y.e[0] = 1;
        return y;
    }
}
static num eval_where(num c, num a, num b) {
    return c.e[0] > 0 ? num_either(c.d[0] != 0 ? a : b, c.d[0] != 0 ? b : a, true) : c.d[0] != 0
        ? a : b;
}
/* Elementwise, with broadcasting. */
static void eval_elementwise(const graph *g, const graph_step *k, num *const *v, num *y) {
    int64_t at[FLUX_MAX_DIMS];
    const flux_dtype meet = k->nin == 2 ? type_meet(g->step[k->in[0]].type, g->step[k->in[1]].type)
        : k->type;
    const flux_dtype both = k->op == G_div && !type_real(meet) ? FLUX_F32 : meet;
    for (int64_t i = 0; i < shape_len(k->shape); i++) {
        num x[3];
        place_of(i, k->shape, at);
        for (int j = 0; j < k->nin; j++) {
            const graph_step *from = &g->step[k->in[j]];
            x[j] = v[k->in[j]][index_of(at, from->shape, true)];
            if (k->nin == 2 || j > 0) x[j] = num_as(x[j], from->type, both);
        }
        y[i] = k->nin == 3 ? eval_where(x[0], x[1], x[2]) : eval_two(k, x[0], x[1]);
    }
}
static num eval_number(const graph_step *k, num x) {
    const double p[2] = { k->a, k->b };
    num c = num_of(k->a);
    c.e[0] = type_eps(k->type) * c.m[0];
    switch (k->op) {
    case G_add_number: return num_round(num_add(x, c), k->type, 1);
    case G_mul_number: return num_round(num_mul(x, c), k->type, 1);
    case G_clamp: return num_round(num_apply(x, jet_of_clamp, p, 0), k->type, 1);
    default: return num_function(x, jet_of_power, p, k->type, false);
    }
}

/* n numbers reduced to one, or (softmax) in their places. */
static num num_sum(const num *x, int64_t n, flux_dtype wide, double scale) {
    num y = num_of(0);
    double magnitude = 0;
    for (int64_t i = 0; i < n; i++) magnitude += x[i].m[0], y = num_add(y, x[i]);
    const double off = (17 + (wide == FLUX_F64 ? (double)n : 0)) * type_eps(wide);
    y.e[0] += off * magnitude;
    for (int s = 1; s < 4; s++) y.e[s] += off * y.m[s];
    return num_mul(y, num_of(scale));
}
static num num_constant(num x) {    /* the number itself, without its slopes */
    num y = num_of(x.d[0]);
    y.e[0] = x.e[0];
    return y;
}
static num num_largest(const num *x, int64_t n, double sign) {
    num y = x[0];
    for (int64_t i = 1; i < n; i++) y = num_larger(y, x[i], sign);
    return y;
}
static num num_variance(const num *x, int64_t n, flux_dtype wide, num *part) {
    const num mean = num_round(num_sum(x, n, wide, 1.0 / (double)n), wide, 2);
    for (int64_t i = 0; i < n; i++) {
        num d = num_round(num_add(x[i], num_neg(mean)), wide, 1);
        part[i] = num_round(num_mul(d, d), wide, 1);
    }
    return num_round(num_sum(part, n, wide, 1.0 / (double)n), wide, 3);
}
static void eval_softmax(const graph_step *k, const num *x, int64_t n, num *part, num *out) {
    const flux_dtype wide = type_wide(k->type);
    num top = num_constant(num_largest(x, n, 1)), sum;
    top.e[0] = 0;                         /* it cancels, whatever it is */
    for (int64_t i = 0; i < n; i++) {
        out[i] = num_round(num_add(x[i], num_neg(top)), wide, 1);
        part[i] = num_function(out[i], jet_of_exp, NULL, wide, false);
    }
    sum = num_round(num_sum(part, n, wide, 1), wide, 1);
    for (int64_t i = 0; i < n; i++) {
        if (k->op == G_softmax)
            out[i] = num_round(num_mul(part[i],
            num_apply(sum, jet_of_reciprocal, NULL, 16 * type_eps(wide))), k->type, 4);
        else out[i] = num_round(num_add(out[i],
            num_neg(num_function(sum, jet_of_log, NULL, wide, false))), k->type, 4);
    }
}
static num eval_reduced(const graph_step *k, const num *x, int64_t n, num *part) {
    const flux_dtype wide = type_wide(k->type);
    num y = num_of(0), top;
    switch (k->op) {
    case G_sum: return num_round(num_sum(x, n, wide, 1), k->type, 1);
    case G_mean: return num_round(num_sum(x, n, wide, 1.0 / (double)n), k->type, 2);
    case G_max: case G_min: return num_largest(x, n, k->op == G_max ? 1 : -1);
    case G_prod:
        y = num_of(1);
        for (int64_t i = 0; i < n; i++) y = num_round(num_mul(y, x[i]), wide, 2);
        return num_round(y, k->type, 1);
    case G_var: return num_round(num_variance(x, n, wide, part), k->type, 4);
    case G_norm:
        for (int64_t i = 0; i < n; i++) part[i] = num_round(num_mul(x[i], x[i]), wide, 1);
        return num_round(num_function(num_round(num_sum(part, n, wide, 1), wide, 1), jet_of_sqrt,
            NULL, wide, false), k->type, 1);
    case G_logsumexp:
        top = num_constant(num_largest(x, n, 1)), top.e[0] = 0;
        for (int64_t i = 0; i < n; i++) part[i] =
            num_function(num_round(num_add(x[i], num_neg(top)), wide, 1), jet_of_exp, NULL, wide,
            false);
        y = num_function(num_round(num_sum(part, n, wide, 1), wide, 1), jet_of_log, NULL, wide,
            true);
        return num_round(num_add(y, top), k->type, 2);
    default:                              /* argmax: the first of equals */
        for (int64_t i = 1; i < n; i++)
            if (x[i].d[0] > x[(int64_t)y.d[0]].d[0]) y = num_of((double)i);
        for (int64_t i = 0; i < n; i++)
            if (i != (int64_t)y.d[0] && x[i].e[0]
                + x[(int64_t)y.d[0]].e[0] >= x[(int64_t)y.d[0]].d[0] - x[i].d[0]
                && x[i].e[0] > 0) y.e[0] = HUGE_VAL;
        return y;
    }
}
/* Normalised over dim 0: by the root of the variance and a little more. */
static void eval_normalised(const graph_step *k, const num *x, int64_t n, num *part, num *out) {
    const flux_dtype wide = type_wide(k->type);
    const double p = -0.5;
    num more = num_round(num_add(num_variance(x, n, wide, part), num_of(1e-3)), wide, 1);
    const num by = num_function(more, jet_of_power, &p, wide, false),
        mean = num_round(num_sum(x, n, wide, 1.0 / (double)n), wide, 2);
    for (int64_t i = 0; i < n; i++) out[i] = num_round(num_mul(num_add(x[i], num_neg(mean)), by),
        k->type, 4);
}
static void eval_reduction(const graph_step *k, flux_shape s, const num *x, num *y) {
    const bool in_place = k->op == G_softmax || k->op == G_logsoftmax || k->op == G_normalise;
    const unsigned mask = k->op == G_normalise ? 1u : reduce_mask(k, s);
    flux_shape rest = s;
    int64_t count = 1, at[FLUX_MAX_DIMS];
    for (int d = 0; d < s.ndim; d++)
        if (mask >> d & 1) count *= s.dim[d], rest.dim[d] = 1;
    const int64_t groups = shape_len(rest), total = shape_len(s);
    num *list = (num *)calloc((size_t)(3 * count + 1), sizeof *list);
    int64_t *where = (int64_t *)calloc((size_t)count + 1, sizeof *where);
    for (int64_t o = 0; o < groups; o++) {
        int64_t n = 0;
        for (int64_t i = 0; i < total && n < count; i++) {
            place_of(i, s, at);
            if (index_of(at, rest, true) == o) list[n] = x[i], where[n++] = i;
        }
        if (!in_place) y[o] = eval_reduced(k, list, n, list + count);
        else if (k->op == G_normalise) eval_normalised(k, list, n, list + count, list + 2 * count);
        else eval_softmax(k, list, n, list + count, list + 2 * count);
        for (int64_t i = 0; in_place && i < n; i++) y[where[i]] = list[2 * count + i];
    }
    free(list), free(where);
}

/* Where element `at` of a view comes from in x; -1: from padding. */
static int64_t view_source(const graph_step *k, flux_shape s, const int64_t *at, int64_t i) {
    int64_t from[FLUX_MAX_DIMS] = { 0 };
    for (int d = 0; d < s.ndim; d++) from[d] = at[d];
    switch (k->op) {
    case G_reshape: case G_unsqueeze: case G_squeeze: return i;
    case G_permute:
        for (int d = 0; d < s.ndim; d++) from[k->s.dim[d]] = at[d];
        break;
    case G_slice: from[k->dim] = k->s.dim[0] + at[k->dim] * k->s.dim[2]; break;
    case G_flip: from[k->dim] = s.dim[k->dim] - 1 - at[k->dim]; break;
    case G_broadcast: break;
    case G_repeat:
        for (int d = 0; d < s.ndim; d++) from[d] = at[d] % s.dim[d];
        break;
    default:                              /* pad */
        for (int d = 0; d < s.ndim; d++) {
            from[d] = at[d] - k->s.dim[d];
            if (from[d] < 0 || from[d] >= s.dim[d]) return -1;
        }
    }
    return index_of(from, s, k->op == G_broadcast);
}
static void eval_view(const graph_step *k, flux_shape s, const num *x, num *y) {
    int64_t at[FLUX_MAX_DIMS];
    for (int64_t i = 0; i < shape_len(k->shape); i++) {
        place_of(i, k->shape, at);
        const int64_t from = view_source(k, s, at, i);
        y[i] = from < 0 ? num_round(num_of(k->a), k->type, 0) : x[from];
        if (type_half(k->type)) y[i] = num_round(y[i], k->type, 0), y[i].e[0] = from < 0
            ? y[i].e[0] : x[from].e[0];
    }
}
static void eval_glu(const graph_step *k, flux_shape s, const num *x, num *y) {
    int64_t at[FLUX_MAX_DIMS];
    for (int64_t i = 0; i < shape_len(k->shape); i++) {
        place_of(i, k->shape, at);
        const num a = x[index_of(at, s, false)];
        at[k->dim] += k->shape.dim[k->dim];
        y[i] = num_round(num_mul(a, num_function(x[index_of(at, s, false)], jet_of_sigmoid, NULL,
            type_wide(k->type), false)), k->type, 2);
    }
}
static void eval_joined(const graph_step *k, const graph_step *p, const graph_step *q,
    const num *a, const num *b, num *y) {
    int64_t at[FLUX_MAX_DIMS];
    for (int64_t i = 0; i < shape_len(k->shape); i++) {
        place_of(i, k->shape, at);
        const int64_t first = p->shape.dim[k->dim];
        if (at[k->dim] < first) y[i] = num_as(a[index_of(at, p->shape, false)], p->type, k->type);
        else at[k->dim] -= first, y[i] = num_as(b[index_of(at, q->shape, false)], q->type, k->type);
    }
}
static void eval_gather(const graph_step *k, flux_shape s, flux_shape picks, const num *x,
    const num *index, num *y) {
    int64_t at[FLUX_MAX_DIMS], from[FLUX_MAX_DIMS];
    for (int64_t i = 0; i < shape_len(k->shape); i++) {
        place_of(i, k->shape, at);
        for (int d = 0; d < s.ndim; d++) from[d] = d < k->dim ? at[d] : d == k->dim ? 0
            : at[d - 1 + picks.ndim];
        from[k->dim] = (int64_t)index[index_of(at + k->dim, picks, false)].d[0];
        y[i] = x[index_of(from, s, false)];
    }
}
/* A sum of n products, in the wide dtype, rounded once. */
static num eval_products(const num *a, const num *b, int64_t n, flux_dtype t) {
    num y = num_of(0);
    double magnitude = 0;
    const double off = (8 + (double)n) * type_eps(type_wide(t));
    for (int64_t i = 0; i < n; i++) magnitude += a[i].m[0] * b[i].m[0],
        y = num_add(y, num_mul(a[i], b[i]));
    y.e[0] += off * magnitude;
    for (int s = 1; s < 4; s++) y.e[s] += off * y.m[s];
    return num_round(y, t, 1);
}
static void eval_matmul(const graph_step *k, const graph_step *p, const graph_step *q,
    const num *a, const num *b, num *y) {
    const int64_t m = p->shape.dim[0], n = p->shape.dim[1], c = q->shape.dim[1],
        batch = shape_dim(p->shape, 2);
    num *row = (num *)calloc((size_t)(2 * n + 1), sizeof *row), *column = row + n;
    for (int64_t z = 0; z < batch; z++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < c; j++) {
                for (int64_t l = 0; l < n; l++)
                    row[l] = num_as(a[i + m * (l + n * z)], p->type, k->type),
                    column[l] = num_as(b[l + n * (j + c * z)], q->type, k->type);
                y[i + m * (j + c * z)] = eval_products(row, column, n, k->type);
            }
    free(row);
}
/* What a window at `at` of the result sees of x: its elements, and of a convolution the weights
   beside them. */
static int64_t window_of(const graph_step *k, flux_shape s, flux_shape w, const num *x,
    const num *weight, const int64_t *at, num *a, num *b) {
    const int nd = s.ndim - 2;
    const bool conv = k->op == G_conv;
    flux_shape reach = k->s;
    int64_t n = 0, in[FLUX_MAX_DIMS], tap[FLUX_MAX_DIMS], channels = conv ? w.dim[nd] : 1,
        group = conv ? at[nd] / (w.dim[nd + 1] / k->dim) : at[nd];
    for (int d = 0; d < nd; d++) reach.dim[d] = conv ? w.dim[d] : k->s.dim[d];
    in[nd + 1] = at[nd + 1];
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < shape_len(reach); i++) {
            bool inside = true;
            place_of(i, reach, tap);
            for (int d = 0; d < nd; d++) {
                in[d] = at[d] * (conv ? k->s.dim[d] : k->t.dim[d])
                    + tap[d] * (conv ? k->start : 1) - (conv ? k->t.dim[d] : 0);
                inside = inside && in[d] >= 0 && in[d] < s.dim[d];
                if (k->flip) tap[d] = reach.dim[d] - 1 - tap[d];
            }
            if (!inside) continue;
            in[nd] = conv ? group * channels + c : group, tap[nd] = c, tap[nd + 1] = at[nd];
            a[n] = x[index_of(in, s, false)];
            if (conv) b[n] = weight[index_of(tap, w, false)];
            n++;
        }
    return n;
}
static void eval_window(const graph_step *k, flux_shape s, flux_shape w, const num *x,
    const num *weight, num *y) {
    const int nd = s.ndim - 2;
    int64_t most = k->op == G_conv ? shape_len(w) : 1, at[FLUX_MAX_DIMS];
    for (int d = 0; d < nd && k->op != G_conv; d++) most *= k->s.dim[d];
    num *a = (num *)calloc((size_t)(2 * most + 1), sizeof *a), *b = a + most;
    for (int64_t i = 0; i < shape_len(k->shape); i++) {
        place_of(i, k->shape, at);
        const int64_t n = window_of(k, s, w, x, weight, at, a, b);
        if (k->op == G_conv) y[i] = eval_products(a, b, n, k->type);
        else if (k->op == G_maxpool) y[i] = num_largest(a, n, 1);
        else y[i] = num_round(num_sum(a, n, type_wide(k->type), 1.0 / (double)most), k->type, 2);
    }
    free(a);
}
/* The numbers of step i, whose inputs' are there; in memory that the caller frees. way: the two
   directions, or NULL. */
static num *graph_step_values(const graph *g, int i, num *const *v, const graph_way *way) {
    const graph_step *k = &g->step[i], *p = k->nin > 0 ? &g->step[k->in[0]] : NULL, *q = k->nin > 1
        ? &g->step[k->in[1]] : p;
    const num *a = p ? v[k->in[0]] : NULL, *b = q ? v[k->in[k->nin > 1 ? 1 : 0]] : NULL;
    const int64_t n = shape_len(k->shape);
    num *y = (num *)calloc((size_t)n + 1, sizeof *y);
    if (k->op == G_leaf || k->op == G_full) eval_leaf(k, i, way, y);
    else if (k->op < G_UNARIES)
        for (int64_t j = 0; j < n; j++) y[j] =
            num_function(a[j], unary_jets[k->op], NULL, k->type, unary_composed[k->op] != 0);
    else if (k->op < G_REDUCTIONS || k->op == G_normalise) eval_reduction(k, p->shape, a, y);
    else if (k->op < G_BINARIES || k->op == G_where) eval_elementwise(g, k, v, y);
    else if (k->op == G_cast)
        for (int64_t j = 0; j < n; j++) y[j] = num_as(a[j], p->type, k->type);
    else if (k->op <= G_clamp)
        for (int64_t j = 0; j < n; j++) y[j] = eval_number(k, a[j]);
    else if (k->op == G_cat) eval_joined(k, p, q, a, b, y);
    else if (k->op == G_gather) eval_gather(k, p->shape, q->shape, a, b, y);
    else if (k->op == G_matmul) eval_matmul(k, p, q, a, b, y);
    else if (k->op == G_glu) eval_glu(k, p->shape, a, y);
    else if (k->op == G_conv || k->op == G_maxpool || k->op == G_meanpool)
        eval_window(k, p->shape, q->shape, a, b, y);
    else eval_view(k, p->shape, a, y);
    return y;
}
static inline void graph_values(const graph *g, const graph_way *way, num **v) {
    graph_slack = 0;
    for (int i = 0; i < g->n; i++) v[i] = graph_step_values(g, i, v, way);
}
static inline void graph_forget(int n, num **v) {
    for (int i = 0; i < n; i++) free(v[i]), v[i] = NULL;
}

/* ------------------------------------------------------------------ drawing one */

/* A graph in the making. values: its numbers, so that what is too large or too uncertain for its
   dtype is not taken; or NULL. */
typedef struct graph_maker { graph *g; num **values; int64_t most; } graph_maker;

/* while -1 is an input that could not be made, nor what takes it */
enum { NO_INPUT = -2 };
static graph_step step_of(graph_op op, int a, int b) {
    graph_step k;
    memset(&k, 0, sizeof k);
    k.op = op, k.in[0] = a, k.in[1] = b, k.nin = b != NO_INPUT ? 2 : a != NO_INPUT ? 1 : 0;
    return k;
}
static bool values_are_good(const graph_step *k, const num *y) {
    const int64_t n = shape_len(k->shape);
    double mean = 0;
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(y[i].d[0]) <= (type_half(k->type) ? 300 : 1e4))) return false;
        mean += fabs(y[i].d[0]) / (double)n;
    }
    for (int64_t i = 0; i < n; i++) bad += y[i].e[0] > 0.05 * (mean + fabs(y[i].d[0])) + 1e-6;
    return bad * 5 <= n;
}
/* The step's number, or -1 where it can't be: wrong shapes, too large, too uncertain, no room. */
static int push(graph_maker *m, graph_step k) {
    graph *g = m->g;
    const int i = g->n;
    if (i >= GRAPH_MOST || (k.nin > 0 && k.in[0] < 0) || (k.nin > 1 && k.in[1] < 0)
        || (k.nin > 2 && k.in[2] < 0)) return -1;
    g->step[i] = k;
    if (!graph_infer(g, i) || shape_len(g->step[i].shape) > m->most) return -1;
    if (m->values) {
        m->values[i] = graph_step_values(g, i, m->values, NULL);
        if (!values_are_good(&g->step[i], m->values[i]))
            return free(m->values[i]), m->values[i] = NULL, -1;
    }
    return g->n++;
}
static int push_1(graph_maker *m, graph_op op, int a) { return push(m, step_of(op, a, NO_INPUT)); }
static int push_number(graph_maker *m, graph_op op, int a, double number) {
    graph_step k = step_of(op, a, NO_INPUT);
    k.a = number;
    return push(m, k);
}
static int push_cast(graph_maker *m, int a, flux_dtype t) {
    graph_step k = step_of(G_cast, a, NO_INPUT);
    k.type = t;
    return push(m, k);
}
static int push_leaf(graph_maker *m, flux_shape s, flux_dtype t, graph_fill fill, double a) {
    graph_step k = step_of(G_leaf, NO_INPUT, NO_INPUT);
    k.s = s, k.type = t, k.a = a, k.seed = (uint32_t)dice_word(), k.fill = !type_real(t)
        && fill == FILL_REAL ? FILL_INTEGER : fill;
    return push(m, k);
}
static const graph_step *step_at(const graph_maker *m, int i) { return &m->g->step[i]; }
static int any_step(const graph_maker *m) {
    return m->g->n - 1 - (dice(2) ? dice(m->g->n < 3 ? m->g->n : 3) : dice(m->g->n));
}
static flux_dtype random_type(void) {
    static const flux_dtype often[] = { FLUX_F32, FLUX_F32, FLUX_F32, FLUX_F64, FLUX_F64, FLUX_F16,
        FLUX_BF16, FLUX_I32, FLUX_U8, FLUX_I64 };
    return often[dice(10)];
}
static flux_shape random_shape(int64_t room, int most_dims) {
    static const int64_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 33, 40, 64, 65, 100, 130,
        257, 300, 1024, 1030, 2100, 5000, 70000, 140000 };
    flux_shape s = { 0, { 0 } };
    const int nd = dice(12) ? 1 + dice(most_dims < 4 ? most_dims : 4) : most_dims;
    for (s.ndim = 0; s.ndim < nd; s.ndim++) {
        int n = (int)(sizeof sizes / sizeof *sizes);
        while (n > 1 && sizes[n - 1] > room) n--;
        s.dim[s.ndim] = sizes[dice(n < 4 || nd < 6 ? n : 3)];
        room /= s.dim[s.ndim];
    }
    return s;
}
static int as_real(graph_maker *m, int x) {
    return type_real(step_at(m, x)->type) ? x : push_cast(m, x, FLUX_F32);
}

#define GRAPH_DOMAIN_1(name, domain, composed) domain,
static const int unary_domains[] = { GRAPH_UNARY(GRAPH_DOMAIN_1) };
static int random_unary(graph_maker *m, int x) {
    const int op = dice(G_UNARIES + 5);
    static const double powers[] = { 0.7, 2, 3, -1, 0.5, 1 };
    if ((x = as_real(m, x)) < 0) return -1;
    if (op < G_UNARIES) {
        if (unary_domains[op] == 1) x = push_number(m, G_add_number, push_1(m, G_abs, x), 0.25);
        if (unary_domains[op] == 2) x = push_1(m, G_tanh, x);
        return push_1(m, (graph_op)op, x);
    }
    if (op == G_UNARIES) return push_number(m, G_mul_number, x, dice(2) ? 0.3 : -2);
    if (op == G_UNARIES + 1) return push_number(m, G_add_number, x, 1.7);
    if (op == G_UNARIES + 2) return push_number(m, G_pow_number,
        push_number(m, G_add_number, push_1(m, G_abs, x), 0.25), powers[dice(6)]);
    if (op == G_UNARIES + 3) return push_1(m, G_round, push_number(m, G_mul_number, x, 4));
    graph_step k = step_of(G_clamp, x, NO_INPUT);
    k.a = -0.5, k.b = 0.75;
    return push(m, k);
}
static int random_binary(graph_maker *m, int a, int b) {
    graph_step k;
    switch (dice(9)) {
    case 0: return push(m, step_of(G_sub, a, b));
    case 1: return push(m, step_of(G_mul, a, b));
    case 2: return push(m, step_of(G_div, a, push_number(m, G_add_number,
        push_1(m, G_abs, as_real(m, b)), 1)));
    case 3: return push(m, step_of(G_max2, a, b));
    case 4: return push(m, step_of(G_min2, a, b));
    case 5:
        k = step_of(G_where, push(m, step_of(dice(2) ? G_gt : G_le, a, b)), a);
        k.in[2] = dice(2) ? push_number(m, G_mul_number, b, -1) : b, k.nin = 3;
        return push(m, k);
    case 6: return push(m, step_of(G_add, push_number(m, G_mul_number, a, 2), b));
    default: return push(m, step_of(G_add, a, b));
    }
}
static int random_reduction(graph_maker *m, int x) {
    const flux_shape s = step_at(m, x)->shape;
    const bool real = type_real(step_at(m, x)->type);
    static const graph_op of_integers[] = { G_sum, G_max, G_min, G_argmax };
    graph_step k = step_of(real ? (graph_op)(G_before_reductions + 1
        + dice(G_REDUCTIONS - G_before_reductions - 1)) : of_integers[dice(4)], x, NO_INPUT);
    for (int d = 0; d < s.ndim && dice(8); d++)
        if (dice(2) && (k.op != G_argmax || k.s.ndim == 0)) k.s.dim[k.s.ndim++] = d;
    if (k.op == G_prod) k.in[0] = push_number(m, G_add_number,
        push_number(m, G_mul_number, push_1(m, G_tanh, x), 0.05), 1);
    return push(m, k);
}
static int random_view(graph_maker *m, int x) {
    const flux_shape s = step_at(m, x)->shape;
    const int64_t n = shape_len(s);
    if (s.ndim == 0) return push_1(m, G_unsqueeze, x);
    static const graph_op ops[] = { G_reshape, G_permute, G_permute, G_slice, G_slice, G_flip,
        G_unsqueeze, G_squeeze, G_broadcast, G_repeat, G_pad };
    graph_step k = step_of(ops[dice(11)], x, NO_INPUT);
    k.s = s, k.dim = dice(s.ndim);
    switch (k.op) {
    case G_reshape:
        if (dice(2)) k.s = shape_of_dims(1, &n);
        else for (int d = 0; d < s.ndim; d++) k.s.dim[d] = s.dim[s.ndim - 1 - d];
        break;
    case G_permute:
        for (int d = 0; d < s.ndim; d++) k.s.dim[d] = k.dim ? s.ndim - 1 - d : (d + 1) % s.ndim;
        break;
    case G_slice:
        k.s.ndim = 3, k.s.dim[0] = s.dim[k.dim] > 2 ? 1 : 0,
            k.s.dim[1] = s.dim[k.dim] - (s.dim[k.dim] > 3 ? dice(2) : 0), k.s.dim[2] = 1 + dice(2);
        break;
    case G_broadcast:
        for (int d = 0; d < s.ndim; d++)
            if (s.dim[d] == 1 && dice(2)) k.s.dim[d] = 1 + dice(5);
        if (s.ndim < FLUX_MAX_DIMS && dice(2)) k.s.dim[k.s.ndim++] = 1 + dice(3);
        break;
    case G_repeat:
        for (int d = 0; d < s.ndim; d++) k.s.dim[d] = 1 + (dice(3) == 0);
        break;
    case G_pad:
        k.t = s, k.a = dice(2) ? 0 : 2;
        for (int d = 0; d < s.ndim; d++) k.s.dim[d] = dice(3) == 0, k.t.dim[d] = dice(3) == 0;
        break;
    default: break;
    }
    return push(m, k);
}
/* x as so many dims, the last of which takes what is left over. */
static int with_dims(graph_maker *m, int x, int nd) {
    graph_step k = step_of(G_reshape, x, NO_INPUT);
    const flux_shape s = step_at(m, x)->shape;
    if (s.ndim == nd) return x;
    k.s = s, k.s.ndim = nd;
    for (int d = s.ndim; d < nd; d++) k.s.dim[d] = 1;
    for (int d = nd; d < s.ndim; d++) k.s.dim[nd - 1] *= s.dim[d];
    return push(m, k);
}
static int random_product(graph_maker *m, int x) {
    if ((x = as_real(m, x)) < 0 || (x = with_dims(m, x, dice(4) ? 2 : 3)) < 0) return -1;
    const graph_step a = *step_at(m, x);
    int64_t n = 1 + dice(m->values ? 6 : 40);
    if (a.shape.dim[0] * a.shape.dim[1] > 70000
        || a.shape.dim[0] * a.shape.dim[1] * n > (m->values ? 6000 : 4000000)) return -1;
    const int w = push_leaf(m, a.shape.ndim == 2 ? FLUX_SHAPE(a.shape.dim[1], n)
        : FLUX_SHAPE(a.shape.dim[1], n, a.shape.dim[2]), dice(6) ? a.type : FLUX_F32, FILL_REAL,
        0.5);
    int y = push(m, step_of(G_matmul, x, w));
    if (y < 0) return -1;
    switch (dice(4)) {
    case 0: return push_1(m, G_relu, push(m, step_of(G_add, y,
        push_leaf(m, FLUX_SHAPE(a.shape.dim[0]), a.type, FILL_REAL, 1))));
    case 1: return push_1(m, G_tanh, y);
    case 2: {
        graph_step turn = step_of(G_permute, x, NO_INPUT);
        if (a.shape.ndim != 2) return y;
        turn.s = FLUX_SHAPE(1, 0);
        return push(m, step_of(G_matmul, push(m, turn), y));
    }
    default: return y;
    }
}
static int random_window(graph_maker *m, int x) {
    const int64_t n = shape_len(step_at(m, x)->shape);
    const int nd = 1 + dice(2), channels = 1 + dice(2);
    int64_t w = 1;
    if ((x = as_real(m, x)) < 0) return -1;
    while ((nd == 2 ? (w + 1) * (w + 1) : w + 1) * channels <= n && w < 30) w++;
    const int64_t image = (nd == 2 ? w * w : w) * channels;
    if (w < 4) return -1;
    graph_step flat = step_of(G_reshape, x, NO_INPUT), cut = step_of(G_slice, -1, NO_INPUT),
        shaped = step_of(G_reshape, -1, NO_INPUT);
    flat.s = FLUX_SHAPE(n);
    cut.in[0] = push(m, flat), cut.nin = 1, cut.s = FLUX_SHAPE(0, n / image * image, 1);
    shaped.in[0] = push(m, cut), shaped.nin = 1, shaped.s = nd == 2
        ? FLUX_SHAPE(w, w, channels, n / image) : FLUX_SHAPE(w, channels, n / image);
    if ((x = push(m, shaped)) < 0) return -1;
    graph_step k = step_of(dice(2) ? G_conv : dice(2) ? G_maxpool : G_meanpool, x, NO_INPUT);
    k.s.ndim = k.t.ndim = nd;
    for (int d = 0; d < nd; d++) k.s.dim[d] = k.op == G_conv ? 1 + (dice(3) == 0) : 2 + dice(2),
        k.t.dim[d] = k.op == G_conv ? dice(2) : 1 + dice(3);
    if (k.op != G_conv) return push(m, k);
    const int64_t reach = 2 + dice(2), outs = channels * (1 + dice(2));
    k.dim = channels > 1 && dice(3) == 0 ? channels : 1, k.start = 1 + (dice(5) == 0),
        k.flip = dice(2) == 0;
    flux_shape weight = nd == 2 ? FLUX_SHAPE(reach, reach, channels / k.dim, outs)
        : FLUX_SHAPE(reach, channels / k.dim, outs);
    k.in[1] = push_leaf(m, weight, step_at(m, x)->type, FILL_REAL, 0.5), k.nin = 2;
    return push(m, k);
}
static int random_other(graph_maker *m, int x) {
    const graph_step a = *step_at(m, x);
    graph_step k;
    if (a.shape.ndim == 0) return -1;
    switch (dice(4)) {
    case 0: return push_1(m, G_normalise, as_real(m, x));
    case 1:
        k = step_of(G_cat, x, dice(2) ? push_number(m, G_mul_number, x, 2) : any_step(m)),
            k.dim = dice(a.shape.ndim);
        return push(m, k);
    case 2:
        k = step_of(G_glu, as_real(m, x), NO_INPUT), k.dim = dice(a.shape.ndim);
        return push(m, k);
    default: {
        const int d = dice(a.shape.ndim);
        if (a.shape.dim[d] == 0) return -1;
        k = step_of(G_gather, x, push_leaf(m, dice(3) ? FLUX_SHAPE(1 + dice(5)) : FLUX_SHAPE(2, 2),
            FLUX_I64, FILL_INDEX, (double)a.shape.dim[d])), k.dim = d;
        return push(m, k);
    }
    }
}
static int random_step(graph_maker *m) {
    static const double numbers[] = { 0.1, 30, 2, -1.7, 1e-3 };
    const int x = any_step(m), y = any_step(m);
    graph_step k;
    switch (dice(15)) {
    case 0: case 1: case 2: return random_unary(m, x);
    case 3: case 4: return random_binary(m, x, y);
    case 5: case 6: case 7: return random_reduction(m, x);
    case 8: case 9: return random_view(m, x);
    case 10: return random_product(m, x);
    case 11: return dice(2) ? random_window(m, x) : random_other(m, x);
    case 12: return push_cast(m, x, random_type());
    case 13:
        k = step_of(G_full, NO_INPUT, NO_INPUT), k.s = step_at(m, x)->shape,
            k.a = numbers[dice(5)], k.type = random_type();
        return dice(2) ? push(m, step_of(G_add, x, push(m, k)))
            : push(m, step_of(G_mul, push(m, k), x));
    /* the whole less its mean, or something like it: what is chained */
    default: {
        const int r = random_reduction(m, x);
        return r >= 0 ? random_binary(m, x, r) : -1;
    }
    }
}
/* A loss of a number that all of the last floating step depends on, and the leaves by which its
   gradient is taken. */
static void random_loss(graph_maker *m) {
    graph *g = m->g;
    int last = g->n - 1, loss;
    while (last > 0 && !type_real(g->step[last].type)) last--;
    if (type_half(g->step[last].type)) last = push_cast(m, last, FLUX_F32);
    last = push_1(m, G_tanh, last);
    loss = last < 0 ? -1 : push_leaf(m, g->step[last].shape, FLUX_F32, FILL_REAL, 1);
    if ((loss = push_1(m, G_sum, push(m, step_of(G_mul, last, loss)))) < 0) return;
    g->second = true;
    for (int i = 0; i < g->n; i++) {
        const graph_step *k = &g->step[i];
        g->second = g->second && !type_half(k->type);
        if (k->op == G_leaf && type_real(k->type) && g->targets < GRAPH_TARGETS && i < loss - 3)
            g->target[g->targets++] = i;
    }
    g->loss = g->targets ? loss : -1;
    g->second = g->second && dice(2);
}
/* A graph of four leaves and `steps` more steps, or several for each of them. square: the dims of
   the first leaves have one size, so that an operation along another dim gives the same shape. */
static inline void graph_of_steps(graph *g, uint64_t seed, bool checked, bool square, int steps) {
    num *values[GRAPH_MOST] = { NULL };
    graph_maker m = { g, checked ? values : NULL, 400000 };
    memset(g, 0, sizeof *g);
    dice_state = seed * UINT64_C(0x2545F4914F6CDD1D) + 99;
    g->seed = seed, g->loss = -1;
    const int64_t room = checked ? dice(3) ? 60 : 200 : dice(6) ? dice(3) ? 400 : 6000 : 200000;
    m.most = checked ? 2 * room : 400000;
    flux_shape s = random_shape(room, checked || dice(4) == 0 ? 8 : 4);
    if (checked && dice(15) == 0) s.dim[dice(s.ndim)] = 0;
    if (square) {
        const int64_t n = 2 + dice(2);
        s = FLUX_SHAPE(n, n, n);
        s.ndim = 2 + dice(2);
    }
    for (int i = 0; i < 4; i++) {
        flux_shape part = s;
        for (int d = 0; i && d < part.ndim; d++)
            if (dice(3) == 0) part.dim[d] = 1;
        if (i == 3) part = random_shape(room, 4);
        const flux_dtype t = i == 0 ? dice(3) ? FLUX_F32 : FLUX_F64 : random_type();
        push_leaf(&m, part, t, FILL_REAL, dice(4) ? 1 : checked ? 5 : 100);
    }
    for (int i = 0; i < steps && g->n < GRAPH_MOST - 8; i++) random_step(&m);
    for (int i = 4; i < g->n; i++) g->want[i] = i >= g->n - 3 || dice(4) == 0;
    if (dice(3)) random_loss(&m);
    g->want[g->n - 1] = true;
    g->together = dice(2) != 0;
    graph_forget(g->n, values);
}
/* The graph of a seed. checked: only what the interpreter finds worth comparing; its leaves are
   small then, and some are empty. */
static inline void graph_random(graph *g, uint64_t seed, bool checked) {
    graph_of_steps(g, seed, checked, false, 3 + (int)(seed % 12));
}

/* ------------------------------------------------------------------ one that is almost the same */

/* Another operation that takes and gives what step k's does; G_OPS if there is none. */
static graph_op other_operation(const graph_step *k) {
    static const graph_op reductions[] = { G_sum, G_mean, G_max, G_min, G_var, G_norm, G_logsumexp },
        twos[] = { G_add, G_sub, G_mul, G_max2, G_min2 };
    static const graph_op pairs[][2] = { { G_softmax, G_logsoftmax }, { G_gt, G_le },
        { G_maxpool, G_meanpool }, { G_add_number, G_mul_number } };
    for (int i = 0; i < 4; i++)
        for (int side = 0; side < 2; side++)
            if (k->op == pairs[i][side]) return pairs[i][!side];
    for (int i = 0; i < 7; i++)
        if (k->op == reductions[i]) return reductions[dice(7)];
    for (int i = 0; i < 5; i++)
        if (k->op == twos[i]) return twos[dice(5)];
    return k->op < G_UNARIES ? (graph_op)dice(G_UNARIES) : G_OPS;
}
/* Changes one element of the step's lists of numbers, or lets two change places. */
static bool alter_list(graph_step *k) {
    flux_shape *s = &k->s;
    if (k->op == G_leaf || k->op == G_full || k->op == G_reshape || s->ndim == 0) return false;
    const int d = dice(s->ndim), e = dice(s->ndim);
    const int64_t at = s->dim[d];
    if (k->op == G_pad) s->dim[d] = k->t.dim[d], k->t.dim[d] = at;
    else if (k->op == G_permute) s->dim[d] = s->dim[e], s->dim[e] = at;
    else if (k->op == G_slice) s->dim[0] += dice(2) ? 1 : -1, s->dim[1] -= dice(2);
    else if (k->op > G_before_reductions && k->op < G_REDUCTIONS) {
        for (int i = 0; i < s->ndim; i++)
            if (s->dim[i] == at + 1) return false;
        s->dim[d]++;
    } else if (k->t.ndim == s->ndim && dice(2)) k->t.dim[d] += dice(2) ? 1 : -1;
    else s->dim[d] += dice(2) ? 1 : -1;
    if (k->op == G_conv) return s->dim[d] > 0 && k->t.dim[d] >= 0;
    if (k->op == G_maxpool || k->op == G_meanpool) return s->dim[d] > 0 && k->t.dim[d] > 0;
    return s->dim[0] >= 0;
}
/* Gives the step another input of the same shape and dtype. */
static bool alter_input(const graph *g, graph_step *k) {
    if (k->nin == 0) return false;
    int *in = &k->in[dice(k->nin)];
    const int to = dice((int)(k - g->step));
    const graph_step *a = &g->step[*in], *b = &g->step[to];
    if (to == *in || a->type != b->type || a->shape.ndim != b->shape.ndim || a->fill != b->fill
        || memcmp(a->shape.dim, b->shape.dim, sizeof a->shape.dim[0] * (size_t)a->shape.ndim))
        return false;
    *in = to;
    return true;
}
static bool alter_step(const graph *g, graph_step *k) {
    static const flux_dtype pairs[] = { FLUX_F64, FLUX_F32, FLUX_BF16, FLUX_F16, FLUX_I64,
        FLUX_I32 };
    const int first = k->in[0];
    const bool numbered = k->op == G_full || k->op == G_pad
        || (k->op >= G_add_number && k->op <= G_clamp);
    const bool along = k->op == G_slice || k->op == G_flip || k->op == G_unsqueeze
        || k->op == G_cat || k->op == G_gather || k->op == G_glu;
    switch (dice(7)) {
    case 0: return k->op = other_operation(k), k->op != G_OPS;
    case 1: return numbered && (k->a += dice(2) ? 1 : -1, true);
    case 2: return along && (k->dim += dice(2) ? 1 : -1, k->dim >= 0);
    case 3: return alter_list(k);
    case 4: return alter_input(g, k);
    case 5:
        if (k->op == G_conv) return k->flip = !k->flip, true;
        if (k->nin < 2) return false;
        return k->in[0] = k->in[1], k->in[1] = first, true;
    default:
        if ((k->op != G_cast && k->op != G_full && k->op != G_leaf) || k->type >= FLUX_U8)
            return false;
        return k->type = pairs[k->type], true;
    }
}
/* A graph that differs from g in one thing of one step: its operation, a number, an axis, the order
   of its inputs. Its plan must not be g's. False: what was drawn is no graph, or none that the
   interpreter finds worth comparing. */
static inline bool graph_neighbour(graph *near, const graph *g) {
    num *v[GRAPH_MOST] = { NULL };
    *near = *g;
    if (!alter_step(near, &near->step[dice(g->n)]) || !graph_infer_all(near)) return false;
    if (g->loss >= 0 && near->step[g->loss].shape.ndim != 0) return false;
    for (int i = 0; i < g->n; i++)
        if (shape_len(near->step[i].shape) > 2000) return false;
    bool good = true;
    for (int i = 0; i < g->n && good; i++) {
        v[i] = graph_step_values(near, i, v, NULL);
        good = values_are_good(&near->step[i], v[i]);
        if (near->second) good = good && !type_half(near->step[i].type);
    }
    graph_forget(g->n, v);
    return good;
}

/* ------------------------------------------------------------------ making one smaller */

typedef bool (*graph_holds)(const graph *g, void *user);
static bool graph_used(const graph *g, int i) {
    if (g->want[i] || g->loss == i) return true;
    for (int t = 0; t < g->targets; t++)
        if (g->target[t] == i) return true;
    for (int k = i + 1; k < g->n; k++)
        for (int j = 0; j < g->step[k].nin; j++)
            if (g->step[k].in[j] == i) return true;
    return false;
}
static void graph_remove(graph *g, int at) {
    memmove(&g->step[at], &g->step[at + 1], (size_t)(g->n - at - 1) * sizeof g->step[0]);
    memmove(&g->want[at], &g->want[at + 1], (size_t)(g->n - at - 1) * sizeof g->want[0]);
    g->n--;
    for (int i = 0; i < g->n; i++)
        for (int j = 0; j < 3; j++) g->step[i].in[j] -= g->step[i].in[j] > at;
    g->loss -= g->loss > at;
    for (int t = 0; t < g->targets; t++) g->target[t] -= g->target[t] > at;
}
static void graph_sweep(graph *g) {
    for (int i = g->n - 1; i >= 0; i--)
        if (!graph_used(g, i)) graph_remove(g, i);
}
/* Change number `what` of step i: false when there is no such change. */
static bool graph_change(graph *g, int i, int what) {
    graph_step *k = &g->step[i];
    const bool leaf = k->op == G_leaf;
    switch (what) {
    case 0: case 1: case 2:               /* its input in its place */
        if (what >= k->nin || g->loss == i) return false;
        for (int n = i + 1; n < g->n; n++)
            for (int j = 0; j < g->step[n].nin; j++)
                if (g->step[n].in[j] == i) g->step[n].in[j] = k->in[what];
        g->want[k->in[what]] |= g->want[i], g->want[i] = false;
        return true;
    case 3:                               /* a leaf in its place */
        if (leaf || g->loss == i || k->shape.ndim < 0) return false;
        k->s = k->shape, k->op = G_leaf, k->nin = 0, k->a = 1, k->seed = 1 + (uint32_t)i,
            k->fill = type_real(k->type) ? FILL_REAL : FILL_INTEGER;
        return true;
    case 4: return g->want[i] && (g->want[i] = false, true);
    case 5: return leaf && k->fill != FILL_ONE && k->fill != FILL_INDEX
        && (k->fill = FILL_ONE, true);
    case 6: return (leaf || k->op == G_full || k->op == G_cast) && k->type != FLUX_F32
        && type_real(k->type) && (k->type = FLUX_F32, true);
    case 7: return k->op == G_full && (k->op = G_leaf, k->fill = FILL_ONE, true);
    default:
        what -= 8;                        /* a leaf's dim: halved, one less */
        if ((!leaf && k->op != G_full && k->op != G_broadcast && k->op != G_reshape)
            || what >= 2 * k->s.ndim || k->s.dim[what / 2] < 2) return false;
        k->s.dim[what / 2] = what % 2 ? k->s.dim[what / 2] - 1 : k->s.dim[what / 2] / 2;
        return true;
    }
}
/* Leaves that share a size are made smaller together: dim d of size n in all of them. */
static bool graph_change_all(graph *g, int64_t from, int64_t to) {
    bool some = false;
    for (int i = 0; i < g->n; i++) {
        graph_step *k = &g->step[i];
        if (k->op != G_leaf && k->op != G_full && k->op != G_broadcast && k->op != G_reshape)
            continue;
        for (int d = 0; d < k->s.ndim; d++)
            if (k->s.dim[d] == from) k->s.dim[d] = to, some = true;
    }
    return some;
}
static bool graph_try(graph *g, const graph *changed, graph_holds holds, void *user) {
    graph part = *changed;
    graph_sweep(&part);
    if (part.n == 0 || !graph_infer_all(&part) || !holds(&part, user)) return false;
    *g = part;
    return true;
}
static bool graph_shrink_once(graph *g, graph_holds holds, void *user) {
    graph part;
    part = *g, part.loss = -1, part.targets = 0, part.second = false;
    if (g->loss >= 0 && graph_try(g, &part, holds, user)) return true;
    part = *g, part.second = false;
    if (g->second && graph_try(g, &part, holds, user)) return true;
    for (int t = 0; t < g->targets && g->targets > 1; t++) {
        part = *g, part.target[t] = part.target[--part.targets];
        if (graph_try(g, &part, holds, user)) return true;
    }
    part = *g, part.together = false;
    if (g->together && graph_try(g, &part, holds, user)) return true;
    for (int i = g->n - 1; i >= 0; i--)
        for (int what = 0; what < 8 + 2 * FLUX_MAX_DIMS; what++) {
            part = *g;
            if (graph_change(&part, i, what) && graph_try(g, &part, holds, user)) return true;
        }
    for (int64_t from = 2; from < 70; from++)
        for (int by = 2; by > 0; by--) {
            part = *g;
            if (graph_change_all(&part, from, by == 2 ? from / 2 : from - 1)
                && graph_try(g, &part, holds, user)) return true;
        }
    return false;
}
/* The smallest graph that is near and for which `holds` still is true. */
static inline void graph_shrink(graph *g, graph_holds holds, void *user) {
    for (int i = 0; i < 400 && graph_shrink_once(g, holds, user); i++) { }
}

/* ------------------------------------------------------------------ printing one, as C */

static void print_shape(FILE *f, flux_shape s) {
    if (s.ndim == 0) fprintf(f, "flux__shape(NULL, 0)");
    for (int d = 0; d < s.ndim; d++) fprintf(f, "%s%lld", d ? ", " : "FLUX_SHAPE(",
        (long long)s.dim[d]);
    if (s.ndim) fprintf(f, ")");
}
static const char *print_type(flux_dtype t) {
    static const char *const names[] = { "FLUX_F32", "FLUX_F64", "FLUX_F16", "FLUX_BF16",
        "FLUX_I32", "FLUX_I64", "FLUX_U8", "FLUX_BOOL" };
    return names[t];
}
static void print_call(FILE *f, const graph_step *k) {
    static const char *const longer[] = { "reshape_to", "permute_to", "slice_step", "flip_dims",
        "unsqueeze", "squeeze", "broadcast_to_shape", "repeat_by", "pad_by" };
    const char *name = k->op >= G_reshape && k->op <= G_pad ? longer[k->op - G_reshape]
        : graph_names[k->op];
    if (k->op == G_cast) name = "to_dtype";
    if (k->op == G_add_number || k->op == G_mul_number || k->op == G_pow_number)
        fprintf(f, "flux_%.3s(x%d, %.17g)", name, k->in[0], k->a);
    else if (k->op == G_cat) fprintf(f, "flux_cat(%d, x%d, x%d)", k->dim, k->in[0], k->in[1]);
    else if (k->op == G_gather) fprintf(f, "flux_gather(x%d, %d, x%d)", k->in[0], k->dim, k->in[1]);
    else if (k->op == G_conv) {
        fprintf(f, "flux_%s(x%d, x%d, .stride = ", k->flip ? "conv" : "crosscor", k->in[0],
            k->in[1]);
        print_shape(f, k->s), fprintf(f, ", .pad = "), print_shape(f, k->t);
        fprintf(f, ", .dilation = FLUX_SHAPE(%d), .groups = %d)", k->start, k->dim);
    } else {
        fprintf(f, "flux_%s(", name);
        for (int j = 0; j < k->nin; j++) fprintf(f, "%sx%d", j ? ", " : "", k->in[j]);
        if (k->op > G_before_reductions && k->op < G_REDUCTIONS)
            for (int d = 0; d < k->s.ndim; d++) fprintf(f, ", %d", (int)k->s.dim[d]);
        if (k->op == G_cast) fprintf(f, ", %s", print_type(k->type));
        if (k->op == G_clamp) fprintf(f, ", %.17g, %.17g", k->a, k->b);
        if (k->op == G_slice) fprintf(f, ", %d, %lld, %lld, %lld", k->dim, (long long)k->s.dim[0],
            (long long)k->s.dim[1], (long long)k->s.dim[2]);
        if (k->op == G_flip) fprintf(f, ", FLUX_SHAPE(%d)", k->dim);
        if (k->op == G_unsqueeze || k->op == G_glu) fprintf(f, ", %d", k->dim);
        if (k->op == G_pad) fprintf(f, ", %.17g", k->a);
        if (k->op == G_normalise) fprintf(f, ", FLUX_SHAPE(0), 1e-3");
        if (k->op == G_reshape || k->op == G_permute || k->op == G_broadcast || k->op == G_repeat
            || k->op == G_pad || k->op == G_maxpool || k->op == G_meanpool)
            fprintf(f, ", "), print_shape(f, k->s);
        if (k->op == G_pad || k->op == G_maxpool || k->op == G_meanpool)
            fprintf(f, ", "), print_shape(f, k->t);
        fprintf(f, ")");
    }
}
/* Statements that build it, for a function of a test that includes this header. */
static inline void graph_print(FILE *f, const graph *g) {
    static const char *const fills[] = { "FILL_REAL", "FILL_INTEGER", "FILL_ONE", "FILL_INDEX" };
    for (int i = 0; i < g->n; i++) {
        const graph_step *k = &g->step[i];
        fprintf(f, "    flux_tensor *x%d = ", i);
        if (k->op == G_leaf) {
            fprintf(f, "graph_leaf(%s, ", print_type(k->type)), print_shape(f, k->s);
            fprintf(f, ", %s, %.17g, %uu)", fills[k->fill], k->a, (unsigned)k->seed);
        } else if (k->op == G_full) {
            fprintf(f, "flux_full_with("), print_shape(f, k->s);
            fprintf(f, ", %.17g, %s)", k->a, print_type(k->type));
        } else print_call(f, k);
        fprintf(f, ";      // %s, ", flux_dtype_name(k->type)), print_shape(f, k->shape);
        fprintf(f, "%s\n", g->want[i] ? ", looked at" : "");
    }
    if (g->loss >= 0) {
        fprintf(f, "    flux_grads *g = flux_gradient(x%d", g->loss);
        for (int t = 0; t < g->targets; t++) fprintf(f, ", x%d", g->target[t]);
        fprintf(f, ");%s\n", g->second
            ? "      // and the gradient of the sum of its parts times numbers" : "");
    }
    if (g->together) fprintf(f, "    // what is looked at is so together, by flux_eval_all\n");
}
#endif
