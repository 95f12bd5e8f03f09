#ifndef FLUX__NN_TRANSFORMER_H
#define FLUX__NN_TRANSFORMER_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "fields.h"
#include "initialisers.h" /* flux__finite */
#include "layers.h"
#include "model.h"

/* ---------------------------------------------------------------------- nn/transformer.h
   What language models have beside attention (nn/attention.h): positions, rotary
   or learnt, and SwiGLU. A layer that knows where in a text it is has
   a flux__steps, which flux_cache sets up: while it has a capacity, a call takes
   the steps that follow those of the calls before.

   Invariant: x is features x steps (x batch). The position of the first step of
   a call is a tensor, not a constant of the graph, so that writing on step by
   step finds the same plan each time. */

FLUX__BEGIN_COLD

/* ---------------- places in a text */

/* capacity: how many steps fit (0: each call begins a text); count: steps that were taken. */
typedef struct flux__steps { int64_t capacity, count; } flux__steps;

/* Checks that n steps more fit, and that nothing is recorded for gradients, for which steps of
   other calls are not there; false on an error. */
static bool flux__steps_check(flux_layer *m, const flux__steps *at, int64_t n) {
    const flux__thread *self = flux__self();
    if (!at->capacity) return true;
    if (!self || !self->nograd)
        return FLUX__REFUSE("%s has a cache, and is called under FLUX_INFER or FLUX_NOGRAD only; "
                            "flux_cache(model, 0) ends that", flux__line_of(m).s);
    return at->count + n <= at->capacity ||
           FLUX__REFUSE("%s: its cache of %lld steps has %lld, and %lld more do not fit",
                        flux__line_of(m).s, (long long)at->capacity, (long long)at->count,
                        (long long)n);
}

/* The position of a call's first step: a tensor of one int64, or the number 0. */
static flux_tensor *flux__steps_start(const flux__steps *at, flux_device d) {
    if (!at->capacity) return flux__number(0);
    return flux__move(flux_from_with(&at->count, FLUX_I64, flux__shape(NULL, 0)), d);
}

/* ---------------- rotary positions */

/* x with each head's features turned by the positions `at` (int64, steps). With features a in the
   first half of a head and b at the same places of the second, position p and the angle w = p
   base^(-2i/d): a cos w - b sin w, b cos w + a sin w. */
static flux_tensor *flux__rotary(flux_tensor *x, int heads, flux_tensor *at, double base) {
    const int given = x->dtype;
    const int64_t d = x->dim[0] / heads, half = d / 2, steps = x->dim[1], batch = flux_dim(x, 2);
    flux_tensor *wide = flux__widened(x);
    const flux_dtype t = wide ? (flux_dtype)wide->dtype : FLUX_F32;
    flux_tensor *i = flux_to_dtype(flux__iota_on(x->device, half, 0), t);
    flux_tensor *w = flux_exp(flux_mul(i, -2 * log(base) / (double)d));
    w = flux_mul(w, flux_reshape(flux_to_dtype(at, t), 1, 1, 1, steps));
    wide = flux_reshape(wide, half, 2, heads, steps, batch);
    flux_tensor *a = flux_slice(wide, 1, 0, 1), *b = flux_slice(wide, 1, 1, 2);
    flux_tensor *c = flux_cos(w), *s = flux_sin(w), *pair[2];
    pair[0] = flux_sub(flux_mul(a, c), flux_mul(b, s));
    pair[1] = flux_add(flux_mul(b, c), flux_mul(a, s));
    flux_tensor *y = pair[0] && pair[1] ? flux_cat_with(1, 2, pair) : NULL;
    return flux__narrow(y ? flux_reshape_with(y, flux__dims(x)) : NULL, given);
}

FLUX_DEF flux_tensor *flux_rotary_with(flux_rotary_opts o) {
    flux_tensor *x = o.x, *at = o.positions;
    const int heads = (int)flux__given_int(o.nheads, o.marked, 1);
    const double base = flux__given(o.base, o.marked, 10000);
    if (!flux__check_operands("rotary", 1, &x)) return NULL;
    if (x->ndim < 2 || x->ndim > 3 || !flux__dtypes[x->dtype].real)
        return (flux_tensor *)flux__fail("rotary: x is floating features x steps (x batch), got %s",
                                         flux__describe(x).s);
    if (heads < 1 || x->dim[0] % heads || x->dim[0] / heads % 2)
        return (flux_tensor *)flux__fail("rotary: %d heads of an even number of features cannot "
                                         "share those of %s", heads, flux__describe(x).s);
    if (!(base > 1) || !flux__finite(base))
        return (flux_tensor *)flux__fail("rotary: .base is %g", base);
    if (at && (at->op == FLUX__TUPLE || at->ndim != 1 || at->dim[0] != x->dim[1]))
        return (flux_tensor *)flux__fail("rotary: .positions is %s, x has %lld steps",
                                         flux__describe(at).s, (long long)x->dim[1]);
    int h = flux__hide_in("rotary");
    if (!at) at = flux__iota_on(x->device, x->dim[1], 0);
    return flux__reveal(h, at ? flux__rotary(x, heads, at, base) : NULL);
}

/* ---------------- learnt positions */

typedef struct flux__position_embedding {
    flux_layer base;
    flux_tensor *weight;                  /* features x steps */
    flux__steps at;
} flux__position_embedding;

/* x plus the columns of the weight that belong to its steps. */
static flux_tensor *flux__position_embedding_call(flux_layer *self, flux_tensor *x) {
    flux__position_embedding *m = (flux__position_embedding *)self;
    flux_tensor *in = flux__input(self, x, (flux_dtype)m->weight->dtype);
    if (!in || !flux__expect_dim(self, in, 0, m->weight->dim[0])) return NULL;
    if (in->ndim < 2 || in->dim[1] > m->weight->dim[1])
        return (flux_tensor *)flux__fail("%s takes features x steps (x batch), at most %lld steps; "
                                         "got %s", flux__line_of(self).s,
                                         (long long)m->weight->dim[1], flux__describe(x).s);
    if (!m->at.capacity) return flux_add(in, flux_slice(m->weight, 1, 0, in->dim[1]));
    if (!flux__steps_check(self, &m->at, in->dim[1])) return NULL;
    int h = flux__hide();
    flux_tensor *at = flux__iota_on(in->device, in->dim[1], 0);
    at = flux_add(at, flux__steps_start(&m->at, in->device));
    flux_tensor *y = at ? flux_add(in, flux_gather(m->weight, 1, at)) : NULL;
    m->at.count += y ? in->dim[1] : 0;
    return flux__reveal(h, y);
}

static size_t flux__position_embedding_text(flux_layer *self, char *out, size_t n) {
    const flux__position_embedding *m = (const flux__position_embedding *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__put_in_out(&s, self, m->weight);
    flux__put(&s, ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__position_embedding, "PositionEmbedding", flux__position_embedding_call,
                flux__position_embedding_text, FLUX_PARAM(weight))

FLUX_DEF flux_layer *flux_positionembedding_with(flux_positionembedding_opts o) {
    FLUX__ZEROED(flux__position_embedding, m);
    int64_t size[2] = { o.features, o.steps };
    if (!flux__check_sizes("positionembedding", 2, size)) return NULL;
    int h = flux__hide();
    m.weight = flux__make_weight("positionembedding", o.init ? o.init : flux_randn32,
                                 flux__shape(size, 2));
    return flux__layer_made(h, m.weight != NULL, flux__position_embedding_type(), &m);
}

/* ---------------- SwiGLU */

typedef struct flux__swiglu { flux_layer base, *gate, *up, *down; } flux__swiglu;

static flux_tensor *flux__swiglu_call(flux_layer *self, flux_tensor *x) {
    flux__swiglu *m = (flux__swiglu *)self;
    int h = flux__hide();
    flux_tensor *gate = flux_call_layer(m->gate, x);
    flux_tensor *up = gate ? flux_call_layer(m->up, x) : NULL;
    flux_tensor *y = up ? flux_mul(flux_swish(gate), up) : NULL;
    return flux__reveal(h, y ? flux_call_layer(m->down, y) : NULL);
}

static size_t flux__swiglu_text(flux_layer *self, char *out, size_t n) {
    const flux__swiglu *m = (const flux__swiglu *)self;
    const flux__dense_layer *gate = (const flux__dense_layer *)m->gate,
                            *down = (const flux__dense_layer *)m->down;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "SwiGLU(%lld => %lld => %lld%s)", (long long)gate->weight->dim[1],
               (long long)gate->weight->dim[0], (long long)down->weight->dim[0],
               gate->bias ? "; bias=true" : "");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__swiglu, "SwiGLU", flux__swiglu_call, flux__swiglu_text, FLUX_CHILD(gate),
                FLUX_CHILD(up), FLUX_CHILD(down))

FLUX_DEF flux_layer *flux_swiglu_with(flux_swiglu_opts o) {
    FLUX__ZEROED(flux__swiglu, m);
    FLUX__ZEROED(flux_dense_opts, d);
    const int64_t out = flux__given_int(o.out, o.marked, o.in);
    int64_t size[3] = { o.in, o.hidden, out };
    if (!flux__check_sizes("swiglu", 3, size)) return NULL;
    int h = flux__hide();
    d.bias = o.bias ? FLUX_ON : FLUX_OFF;
    d.init = o.init;
    d.in = o.in, d.out = o.hidden;
    bool good = (m.gate = flux_dense_with(d)) != NULL && (m.up = flux_dense_with(d)) != NULL;
    d.in = o.hidden, d.out = out;
    good = good && (m.down = flux_dense_with(d)) != NULL;
    return flux__layer_made(h, good, flux__swiglu_type(), &m);
}

FLUX__END_COLD

#endif /* FLUX__NN_TRANSFORMER_H */
