#ifndef FLUX__GRAPH_LEAVES_H
#define FLUX__GRAPH_LEAVES_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"

/* ---------------------------------------------------------------------- graph/leaves.h
   Leaves: tensors that come from no other tensor. Data that is copied in
   (flux_from_with) or borrowed (flux_borrow_with), placeholders for finding out
   shapes, random numbers, ranges (flux_arange) and identity matrices
   (flux_eye).

   Invariant: flux__leaf has its buffer from the start; a placeholder never has
   one and may not be computed. Borrowed memory is the user's: it is never
   written and never freed. Random numbers are counter-based: a tensor's numbers
   depend on the thread's seed and on the number of the draw (flux__draw) alone,
   not on when, where or in how many threads they are computed. They are drawn
   as float32; a float64 is composed of several streams, a half format is
   rounded, and what would round to 1 is kept below it. */

FLUX__BEGIN_LEAN

/* A leaf with a buffer of its own, whose elements the caller fills. */
static flux_tensor *flux__leaf(flux_shape s, flux_dtype t, flux_device d) {
    flux_tensor *x = flux__node_raw(FLUX__LEAF, t, &s, d, 0);
    if (!x) return NULL;
    x->buf = flux__buffer_new(d, (size_t)flux__count(&s) * flux__dtypes[t].size, x);
    if (!x->buf) {
        flux_release(x);
        return NULL;
    }
    return (flux_tensor *)flux__own(x);
}

/* A leaf without a buffer, which is never computed: to find out the shapes of a model's results. */
static flux_tensor *flux__placeholder(flux_shape s, flux_dtype t) {
    flux_device cpu = { 0, 0 };
    if (!flux__check_shape("outputsize", &s)) return NULL;
    return (flux_tensor *)flux__own(flux__node_raw(FLUX__LEAF, t, &s, cpu, 0));
}

/* A tensor of a copy of data, on the default device. */
FLUX_DEF flux_tensor *flux_from_with(const void *data, flux_dtype t, flux_shape s) {
    flux_device cpu = { 0, 0 };
    if (!flux__check_make("from", &s, t)) return NULL;
    if (!data && flux__count(&s) > 0) return (flux_tensor *)flux__null("from", "ptr", data);
    flux_tensor *x = flux__leaf(s, t, cpu);
    if (x && flux__count(&s)) memcpy(x->buf->ptr, data, x->buf->bytes);
    return x ? flux__move(x, flux__home()) : NULL;
}

/* A leaf in memory of the user's on device d; done(user) is called at its end, if done is not
   NULL. */
static flux_tensor *flux__leaf_borrowed(flux_device d, const void *data, flux_dtype t, flux_shape s,
                                        void (*done)(void *user), void *user) {
    flux_tensor *x = flux__node_raw(FLUX__LEAF, t, &s, d, 0);
    flux__buffer *b = x ? (flux__buffer *)flux__zalloc(sizeof *b) : NULL;
    if (!b) {
        flux_release(x);
        return NULL;
    }
    b->refs = 1;
    b->device = d;
    b->bytes = (size_t)flux__count(&s) * flux__dtypes[t].size;
    b->ptr = (void *)(intptr_t)data;
    b->borrowed = true;
    x->buf = b;
    x = (flux_tensor *)flux__own(x);
    if (x) b->done = done, b->user = user;
    return x;
}

/* A tensor whose buffer is the user's memory itself if the default device is the CPU. */
FLUX_DEF flux_tensor *flux_borrow_with(const void *data, flux_dtype t, flux_shape s) {
    flux_device cpu = { 0, 0 };
    if (!flux__check_make("borrow", &s, t)) return NULL;
    if (!data) return (flux_tensor *)flux__null("borrow", "ptr", data);
    flux_tensor *x = flux__leaf_borrowed(cpu, data, t, s, NULL, NULL);
    return x ? flux__move(x, flux__home()) : NULL;
}

FLUX_DEF flux_tensor *flux_scalar(double value) {
    flux_shape s = flux__shape(NULL, 0);
    return flux_full_with(s, value, FLUX_F32);
}

FLUX_DEF flux_tensor *flux__same(flux_tensor *x) { return x; }

/* Sets this thread's seed and starts its count of draws anew. */
FLUX_DEF void flux_seed(uint64_t seed) {
    flux__thread *t = flux__self();
    if (!t) return;
    t->seed = seed;
    t->draws = 0;
}

/* The number of this thread's next random tensor: with the seed it names a stream of numbers. */
static uint64_t flux__draw(void) {
    flux__thread *t = flux__self();
    return t ? t->draws++ : 0;
}

/* Float32 random numbers of one stream under one key, FLUX__UNIFORM or FLUX__NORMAL. */
static flux_tensor *flux__random_node(const flux_shape *s, uint64_t key, uint64_t stream,
                                      int kind) {
    flux_tensor *x = flux__node(FLUX__RANDOM, FLUX_F32, s, NULL, NULL, NULL);
    if (!x) return NULL;
    x->arg.u[0] = key;
    x->arg.u[1] = stream;
    x->arg.u[2] = (uint64_t)kind;
    return flux__done(x);
}

/* Changes the key of what each of several processes draws for itself (dropout's masks), where all
   other draws of theirs are alike; 0 on rank 0. */
static uint64_t flux__rank_key;

/* Float32 numbers in [0, 1) from this thread's next draw, other ones on each rank. */
static flux_tensor *flux__rand_by_rank(const flux_shape *s) {
    const flux__thread *t = flux__self();
    return t ? flux__random_node(s, t->seed ^ flux__rank_key, flux__draw(), FLUX__UNIFORM) : NULL;
}

/* Uniform numbers in [0, 1) with 53 random bits: the 24 of a float32, the next 24 from a second
   key, and 5 from a third. */
static flux_tensor *flux__uniform_f64(const flux_shape *s, uint64_t key, uint64_t stream) {
    flux_tensor *a = flux__random_node(s, key, stream, FLUX__UNIFORM);
    flux_tensor *b = flux__random_node(s, key ^ UINT64_C(0x9e3779b97f4a7c15), stream,
                                       FLUX__UNIFORM);
    flux_tensor *c = flux__random_node(s, key ^ UINT64_C(0xbf58476d1ce4e5b9), stream,
                                       FLUX__UNIFORM);
    b = flux_mul(flux_to_dtype(b, FLUX_F64), 5.9604644775390625e-8);
    c = flux_mul(flux_to_dtype(flux_floor(flux_mul(c, 32)), FLUX_F64), 1.1102230246251565e-16);
    return flux_add(flux_add(flux_to_dtype(a, FLUX_F64), b), c);
}

/* Normal numbers by Box and Muller's formula, sqrt(-2 log(1 - u)) cos(2 pi v), each from two
   uniform ones. */
static flux_tensor *flux__normal_f64(const flux_shape *s, uint64_t key, uint64_t stream) {
    flux_tensor *u = flux__uniform_f64(s, key, stream), *v = flux__uniform_f64(s, ~key, stream);
    return flux_mul(flux_sqrt(flux_mul(flux_log1p(flux_neg(u)), -2)),
                    flux_cos(flux_mul(v, 6.283185307179586)));
}

/* flux_rand and flux_randn: a random tensor under the thread's seed and its next draw. */
static flux_tensor *flux__random(flux_shape s, flux_dtype t, int kind, const char *call) {
    flux__thread *self = flux__self();
    if (!self || !flux__check_make(call, &s, t)) return NULL;
    if (!flux__dtypes[t].real)
        return (flux_tensor *)flux__fail("%s: random numbers are floating, not %s", call,
                                         flux__dtypes[t].name);
    uint64_t key = self->seed, stream = flux__draw();
    int h = flux__hide();
    if (t == FLUX_F64)
        return flux__reveal(h, kind == FLUX__UNIFORM ? flux__uniform_f64(&s, key, stream)
                                                     : flux__normal_f64(&s, key, stream));
    flux_tensor *x = flux__random_node(&s, key, stream, kind);
    /* no uniform number may round to 1 */
    if (t != FLUX_F32 && kind == FLUX__UNIFORM) x = flux_min2(x, 1 - flux__dtypes[t].epsilon / 2);
    return flux__reveal(h, flux_to_dtype(x, t));
}

FLUX_DEF flux_tensor *flux_rand_with(flux_shape s, flux_dtype t) {
    return flux__random(s, t, FLUX__UNIFORM, "rand");
}
FLUX_DEF flux_tensor *flux_randn_with(flux_shape s, flux_dtype t) {
    return flux__random(s, t, FLUX__NORMAL, "randn");
}

/* An int64 tensor of dim + 1 dims: 0, 1, ... n - 1 along `dim`, and size 1 in the others. */
static flux_tensor *flux__iota_on(flux_device d, int64_t n, int dim) {
    flux_shape s = flux__shape(NULL, 0);
    for (s.ndim = 0; s.ndim <= dim; s.ndim++) s.dim[s.ndim] = s.ndim == dim ? n : 1;
    flux_tensor *x = flux__node_raw(FLUX__IOTA, FLUX_I64, &s, d, 0);
    return x ? flux__done(x) : NULL;
}

static flux_tensor *flux__iota(int64_t n, int dim) {
    return flux__iota_on(flux__home(), n, dim);
}

/* Computed as start + i * step in float64, then rounded to float32. */
FLUX_DEF flux_tensor *flux_arange(double start, double stop, double step) {
    double n = ceil((stop - start) / step);
    if (!(step < 0 || step > 0) || !(n <= FLUX__MOST_ELEMENTS))
        return (flux_tensor *)flux__fail("arange: from %g to %g by %g is not a range", start, stop,
                                         step);
    int h = flux__hide();
    flux_tensor *i = flux_to_dtype(flux__iota(n > 0 ? (int64_t)n : 0, 0), FLUX_F64);
    return flux__reveal(h, flux_to_dtype(flux_add(flux_mul(i, step), start), FLUX_F32));
}

/* n numbers from start to stop, each computed in float64 from the nearer end, so that both ends are
   exact. */
FLUX_DEF flux_tensor *flux_linspace(double start, double stop, int64_t n) {
    if (n < 0 || (double)n > FLUX__MOST_ELEMENTS || !(fabs(start) <= DBL_MAX) ||
        !(fabs(stop) <= DBL_MAX))
        return (flux_tensor *)flux__fail("linspace: %lld numbers from %g to %g are not a range",
                                         (long long)n, start, stop);
    int h = flux__hide();
    double step = n > 1 ? (stop - start) / (double)(n - 1) : 0;
    flux_tensor *i = flux_to_dtype(flux__iota(n, 0), FLUX_F64),
        *back = flux_sub((double)(n - 1), i);
    flux_tensor *y = flux_where(flux_le(i, back), flux_add(flux_mul(i, step), start),
                                flux_sub(stop, flux_mul(back, step)));
    return flux__reveal(h, flux_to_dtype(y, FLUX_F32));
}

/* The float32 vector of n numbers. */
FLUX_DEF flux_tensor *flux_values_with(int n, const double *values) {
    if (!values) return (flux_tensor *)flux__null("values", "values", values);
    if (n < 0) return (flux_tensor *)flux__fail("values: %d numbers", n);
    int64_t size = n;
    int h = flux__hide();
    flux_tensor *x = flux_from_with(values, FLUX_F64, flux__shape(&size, 1));
    return flux__reveal(h, x ? flux_to_dtype(x, FLUX_F32) : NULL);
}

/* The identity matrix: where the row's index equals the column's. */
FLUX_DEF flux_tensor *flux_eye(int64_t n) {
    flux_shape s = flux__shape(NULL, 2);
    s.dim[0] = s.dim[1] = n;
    if (n < 0) return (flux_tensor *)flux__fail("eye: %lld rows", (long long)n);
    if (!flux__check_shape("eye", &s)) return NULL;
    int h = flux__hide();
    flux_tensor *same = flux_eq(flux__iota(n, 0), flux__iota(n, 1));
    return flux__reveal(h, same ? flux_to_dtype(same, FLUX_F32) : NULL);
}

FLUX__END_LEAN

#endif /* FLUX__GRAPH_LEAVES_H */
