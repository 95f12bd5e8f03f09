#ifndef FLUX__NN_ATTENTION_H
#define FLUX__NN_ATTENTION_H
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
#include "../graph/products.h"
#include "../graph/attention.h"
#include "fields.h"
#include "initialisers.h" /* flux__finite */
#include "layers.h"
#include "model.h"
#include "dropout.h"
#include "transformer.h"
#include "walk.h"

/* ---------------------------------------------------------------------- nn/attention.h
   Attention as layers: dot_product_attention, its scores, causal masks, and
   MultiHeadAttention. This room checks the operands, joins mask and bias into
   one tensor, and calls flux__attention (graph/attention.h), which stores no
   scores.

   Invariant: q, k and v are features x steps (x batch); the features are split
   evenly among the heads; a mask (bool) or bias broadcasts to keys x queries x
   heads x batch. Dropout of the scores is a mask of the kernel. The plain formula
   with stored scores is used only where it must be: when another layer is applied
   to the scores, or an operand is empty. Scores that the caller asked for are
   recorded beside the fused result, with the same mask, and are computed only if
   they are evaluated. If there are a mask and a bias, the bias
   becomes minus infinity where the mask is false. Where there are more keys than
   queries, a causal query sees the keys before it as if the queries were the
   last steps. Multiply-adds are counted once, although scores may be
   recorded beside the fused result. */

FLUX__BEGIN_COLD

/* A bool mask of keys x queries for x, features x steps (x batch): true where key <= query. */
FLUX_DEF flux_tensor *flux_make_causal_mask(flux_tensor *x) {
    if (!flux__check_operands("make_causal_mask", 1, &x)) return NULL;
    if (x->ndim < 2)
        return (flux_tensor *)flux__fail(
            "make_causal_mask: x is features x steps (x batch), got %s", flux__describe(x).s);
    int h = flux__hide_in("make_causal_mask");
    flux_tensor *key = flux__iota_on(x->device, x->dim[1], 0),
                *query = flux__iota_on(x->device, x->dim[1], 1);
    return flux__reveal(h, flux_le(key, query));
}

/* features x steps becomes features x steps x 1. */
static flux_tensor *flux__three_dims(flux_tensor *x) {
    return x->ndim == 2 ? flux_unsqueeze(x, 2) : x;
}

/* Checks dtypes and shapes of q, k and v (of q and k for the scores alone), the number of heads and
   the mask's dtype: q is features x queries (x batch), k features x keys (x batch), v value
   features x keys (x batch). */
static bool flux__check_attention(const char *call, flux_attention_opts *o, bool scores) {
    flux_tensor *xs[3] = { o->q, o->k, o->v };
    int n = scores ? 2 : 3, heads = o->nheads;
    static const char *const names[] = { "q", "k", "v" };
    for (int i = 0; i < n; i++) {
        if (!xs[i]) return flux__null(call, names[i], NULL), false;
        if (xs[i]->op == FLUX__TUPLE || xs[i]->ndim < 2 || xs[i]->ndim > 3 ||
            !flux__dtypes[xs[i]->dtype].real)
            return FLUX__REFUSE("%s: %s is floating features x steps (x batch), got %s", call,
                                names[i],
                                xs[i]->op == FLUX__TUPLE ? "a tuple" : flux__describe(xs[i]).s);
    }
    if (!flux__check_operands(call, n, xs)) return false;
    flux__text a = flux__describe(xs[0]), b = flux__describe(xs[1]), c = flux__describe(xs[n - 1]);
    if (heads < 1 || xs[0]->dim[0] % heads || xs[n - 1]->dim[0] % heads)
        flux__fail("%s: %d heads can't share the features of %s and %s evenly", call, heads, a.s,
                   c.s);
    else if (xs[0]->dim[0] != xs[1]->dim[0] || flux_dim(xs[0], 2) != flux_dim(xs[1], 2))
        flux__fail("%s: q is %s, k is %s: their features and batch must be the same", call, a.s,
                   b.s);
    else if (xs[1]->dim[1] != xs[n - 1]->dim[1] || flux_dim(xs[1], 2) != flux_dim(xs[n - 1], 2))
        flux__fail("%s: k is %s, v is %s: their steps and batch must be the same", call, b.s, c.s);
    else if (o->mask && (o->mask->op == FLUX__TUPLE || o->mask->dtype != FLUX_BOOL))
        flux__fail(
            "%s: .mask must be bool, true where a key may be seen; .bias is added to the logits",
            call);
    else return true;
    return false;
}

/* Whether a mask or bias, x (NULL: none), broadcasts to keys x queries x heads x batch. */
static bool flux__check_fits(const char *call, const char *name, const flux_tensor *x,
                             const flux__attend *a) {
    const flux_shape s = flux__score_shape(a);
    bool fits = !x || (x->op != FLUX__TUPLE && x->ndim <= 4);
    for (int i = 0; fits && x && i < x->ndim; i++) fits = x->dim[i] == 1 || x->dim[i] == s.dim[i];
    if (fits) return true;
    return FLUX__REFUSE("%s: %s is %s, the scores (keys x queries x heads x batch) are %s %s", call,
                        name, flux__describe(x).s, flux__shape_text(&s).s,
                        flux__dtypes[a->q->dtype].name);
}

/* Fills in the operands of flux__attention, on one device: q, k, v as features x steps x batch (v
   NULL for the scores alone), and in `extra` the bias in q's dtype, or the bool mask, or the bias
   with minus infinity where the mask is false. False on an error. */
static bool flux__attend_for(const char *call, const flux_attention_opts *o, flux__attend *a) {
    flux_tensor *xs[5] = { o->q, o->k, o->v ? o->v : o->q, o->bias ? o->bias : o->q,
                           o->mask ? o->mask : o->q };
    memset(a, 0, sizeof *a);
    a->q = flux__three_dims(o->q), a->k = flux__three_dims(o->k), a->heads = o->nheads,
    a->causal = o->causal;
    if (!a->q || !a->k || !flux__check_fits(call, ".bias", o->bias, a) ||
        !flux__check_fits(call, ".mask", o->mask, a) || !flux__together(call, 5, xs))
        return false;
    a->q = flux__three_dims(xs[0]), a->k = flux__three_dims(xs[1]),
    a->v = o->v ? flux__three_dims(xs[2]) : NULL;
    a->extra = o->bias ? flux_to_dtype(xs[3], (flux_dtype)xs[0]->dtype) : o->mask ? xs[4] : NULL;
    if (o->bias && o->mask) a->extra = flux_where(xs[4], a->extra, -HUGE_VAL);
    if (a->causal && a->q && a->k && a->k->dim[1] < a->q->dim[1]) {   /* some queries see no key */
        flux_tensor *past = flux__attend_past(a), *extra = a->extra;
        a->extra = !past || !extra                ? past
                   : extra->dtype == FLUX_BOOL ? flux_and(extra, past)
                                               : flux_where(past, extra, -HUGE_VAL);
        a->causal = false;
        if (!a->extra) return false;
    }
    return a->q && a->k && (a->v || !o->v) && (a->extra || !(o->bias || o->mask));
}

/* The Dropout that applies to the scores; NULL if that is none or another layer. */
static flux__dropout *flux__attention_drop(const flux_attention_opts *o) {
    return o->drop && o->drop->type == flux__dropout_type() ? (flux__dropout *)o->drop : NULL;
}

/* Sets a->keep if a Dropout is active on the scores. False: an error was told. */
static bool flux__attend_drop(const flux_attention_opts *o, flux__attend *a) {
    flux__dropout *m = flux__attention_drop(o);
    if (!m || !(m->p > 0) || !flux_training(o->drop)) return true;
    return (a->keep = flux__dropout_mask(m, flux__score_shape(a), a->q->device)) != NULL;
}

/* The scores after the layer that is applied to them. */
static flux_tensor *flux__attention_scores(const flux_attention_opts *o, const flux__attend *a) {
    flux_tensor *p = flux__attend_dropped(a, flux__attend_softmax(a));
    if (a->keep) return flux__dropout_scaled(p, flux__attention_drop(o)->p);
    return o->drop && !flux__attention_drop(o) && p ? flux_call_layer(o->drop, p) : p;
}

FLUX_DEF flux_tensor *flux_dot_product_attention_scores_with(flux_attention_opts o) {
    const char *call = "dot_product_attention_scores";
    flux__attend a;
    o.nheads = (int)flux__given_int(o.nheads, o.marked, 1);
    if (!flux__check_attention(call, &o, true)) return NULL;
    int h = flux__hide_in(call);
    return flux__reveal(h, flux__attend_for(call, &o, &a) && flux__attend_drop(&o, &a)
                               ? flux__attention_scores(&o, &a) : NULL);
}

/* The result, value features x queries x batch, and in *scores, if `scores` is not NULL, the
   scores, keys x queries x heads x batch. A layer other than Dropout needs the scores themselves:
   the plain formula is used. */
static flux_tensor *flux__attention_pair(const char *call, const flux_attention_opts *o,
                                         flux_tensor **scores) {
    flux__attend a;
    if (!flux__attend_for(call, o, &a) || !flux__attend_drop(o, &a)) return NULL;
    bool plain = (o->drop && !flux__attention_drop(o)) || !flux__size(a.q) || !flux__size(a.k) ||
                 !flux__size(a.v);
    flux__thread *t = flux__self();
    const int64_t products = t ? t->products : 0;
    flux_tensor *p = plain || scores ? flux__attention_scores(o, &a) : NULL;
    if (scores) *scores = p;
    if (plain) return p ? flux__unheads(flux_matmul(flux__heads(a.v, a.heads), p)) : NULL;
    if (t) t->products = products;        /* flux__attention counts these multiply-adds */
    flux_tensor *y = flux__attention(&a);
    return a.keep ? flux__dropout_scaled(y, flux__attention_drop(o)->p) : y;
}

static flux_tensor *flux__attention_of(const char *call, flux_attention_opts o,
                                       flux_tensor **scores) {
    o.nheads = (int)flux__given_int(o.nheads, o.marked, 1);
    if (!flux__check_attention(call, &o, false)) return NULL;
    flux_tensor *y = flux__attention_pair(call, &o, scores);
    return y && o.q->ndim == 2 ? flux_reshape(y, y->dim[0], y->dim[1]) : y;
}

FLUX_DEF flux_tensor *flux_dot_product_attention_with(flux_attention_opts o) {
    flux_tensor *both[2] = { NULL, NULL };
    int h = flux__hide_in("dot_product_attention");
    both[0] = flux__attention_of("dot_product_attention", o, &both[1]);
    return flux__reveal(h, both[0] ? flux_tuple_with(2, both) : NULL);
}

/* q_proj, k_proj, v_proj and out_proj are Dense layers; alone: the call returns no scores. keys and
   values: NULL, or those of the steps before, features x capacity x batch (flux_cache). */
typedef struct flux__mha {
    flux_layer base, *q_proj, *k_proj, *v_proj, *attn_drop, *out_proj;
    flux_tensor *keys, *values;
    flux__steps at;
    int nheads, kv_heads;
    double rotary;
    bool causal, alone;
} flux__mha;

/* x, the features of kv heads x steps (x batch), with each head's repeated for `heads` / kv heads
   that stand side by side. */
static flux_tensor *flux__repeat_heads(flux_tensor *x, int kv, int heads) {
    if (!x || kv == heads) return x;
    const int64_t d = x->dim[0] / kv, steps = x->dim[1], batch = flux_dim(x, 2);
    const int64_t flat[3] = { flux__times(d, heads), steps, batch };
    flux_tensor *y = flux_reshape(x, d, 1, kv, steps, batch);
    y = y ? flux_broadcast_to(y, d, heads / kv, kv, steps, batch) : NULL;
    return y ? flux_reshape_with(y, flux__shape(flat, x->ndim)) : NULL;
}

/* The cache *kept with the n = x->dim[1] steps of x (features x n x batch) put in at step `count`,
   whose number is also the tensor `start`. One step is put where it belongs by a choice for each
   place, so that each step finds the same plan. */
static flux_tensor *flux__steps_keep(flux_layer *m, flux_tensor **kept, flux_tensor *x,
                                    const flux__steps *at, flux_tensor *start) {
    if (!x) return NULL;                  /* memory ran out */
    int64_t dims[3] = { x->dim[0], at->capacity, x->dim[2] };
    const int64_t n = x->dim[1], end = at->count + n;
    flux_tensor *old = *kept, *y;
    if (!old && at->count)
        return (flux_tensor *)flux__fail("%s: its cache is gone; flux_cache begins anew",
                                         flux__line_of(m).s);
    if (old && (old->dim[0] != dims[0] || old->dim[2] != dims[2] || old->dtype != x->dtype))
        return (flux_tensor *)flux__fail("%s: its cache is %s, and keys or values are %s now",
                                         flux__line_of(m).s, flux__describe(old).s,
                                         flux__describe(x).s);
    if (!old) old = flux__move(flux_full_with(flux__shape(dims, 3), 0, (flux_dtype)x->dtype),
                               x->device);
    if (n == 1) {
        flux_tensor *here = flux_eq(flux__iota_on(x->device, at->capacity, 1), start);
        y = flux_where(here, x, old);
    } else {
        flux_tensor *part[3] = { flux_slice(old, 1, 0, at->count), x,
                                 flux_slice(old, 1, end, at->capacity) };
        y = flux_cat_with(1, end < at->capacity ? 3 : 2, part);
    }
    if (y) flux_assign(kept, y);
    return y;
}

/* Puts the steps of o->k and o->v into the layer's cache, and makes o attend to all that is there:
   query i at step start + i sees the keys up to its own. */
static bool flux__mha_cached(flux__mha *m, flux_attention_opts *o, flux_tensor *start) {
    const int64_t n = o->k->dim[1];
    flux_device d = o->k->device;
    if (!flux__steps_check(&m->base, &m->at, n)) return false;
    o->k = flux__steps_keep(&m->base, &m->keys, flux__three_dims(o->k), &m->at, start);
    o->v = o->k ? flux__steps_keep(&m->base, &m->values, flux__three_dims(o->v), &m->at, start)
                : NULL;
    if (!o->v) return false;
    flux_tensor *query = flux_add(flux__iota_on(d, n, 1), start);
    o->mask = flux_le(flux__iota_on(d, m->at.capacity, 0), query);
    o->causal = false;
    m->at.count += n;
    return o->mask != NULL;
}

/* Turns queries and keys by their positions. Where there are more keys than causal queries, the
   queries are the last steps. */
static bool flux__mha_turn(const flux__mha *m, flux_attention_opts *o, flux_tensor *start) {
    const int64_t later = m->causal ? o->k->dim[1] - o->q->dim[1] : 0;
    flux_tensor *key = flux_add(flux__iota_on(o->k->device, o->k->dim[1], 0), start);
    flux_tensor *query = flux_add(flux__iota_on(o->q->device, o->q->dim[1], 0), start);
    query = later > 0 ? flux_add(query, (double)later) : query;
    if (!key || !query) return false;
    o->q = flux__rotary(o->q, m->nheads, query, m->rotary);
    o->k = flux__rotary(o->k, m->kv_heads, key, m->rotary);
    return o->q && o->k;
}

/* MultiHeadAttention of x, of (q, kv), (q, k, v) or (q, k, v, mask or bias), each features x steps
   (x batch): projects q, k and v, attends, and projects the result. Returns out features x queries
   (x batch) or, unless `alone`, a tuple of that and the scores. */
static flux_tensor *flux__mha_call(flux_layer *self, flux_tensor *x) {
    flux__mha *m = (flux__mha *)self;
    int n = flux_num_items(x);
    FLUX__ZEROED(flux_attention_opts, o);
    if (n > 4)
        return (flux_tensor *)flux__fail(
            "%s takes x, or q and kv, or q, k, v and perhaps a mask, got %d inputs",
            flux__line_of(self).s, n);
    flux_tensor *in[3] = { flux_nth(x, 0), flux_nth(x, n > 1 ? 1 : 0),
                           flux_nth(x, n > 2 ? 2 : n - 1) },
                *more = n > 3 ? flux_nth(x, 3) : NULL;
    if (!in[0] || !in[1] || !in[2] || (n > 3 && !more)) return NULL;
    for (int i = 0; i < 3; i++)
        if (in[i]->ndim < 2 || in[i]->ndim > 3)
            return (flux_tensor *)flux__fail("%s takes features x steps (x batch), got %s",
                                             flux__line_of(self).s, flux__describe(in[i]).s);
    if (!(o.q = flux_call_layer(m->q_proj, in[0])) || !(o.k = flux_call_layer(m->k_proj, in[1])) ||
        !(o.v = flux_call_layer(m->v_proj, in[2]))) return NULL;
    if (n > 3 && more->dtype != FLUX_BOOL) o.bias = more;
    else if (n > 3) o.mask = more;
    if (m->causal && o.q->dim[1] > o.k->dim[1])
        return (flux_tensor *)flux__fail(
            "%s: a causal mask needs at least as many keys as queries, got %s and %s",
            flux__line_of(self).s, flux__describe(o.k).s, flux__describe(o.q).s);
    o.causal = m->causal;
    o.nheads = m->nheads;
    o.drop = m->attn_drop;
    flux_tensor *out[2] = { NULL, NULL };
    int h = flux__hide();
    const flux__steps whole = { 0, 0 };
    flux_tensor *start = flux__steps_start(n == 1 ? &m->at : &whole, o.q->device);
    const bool good = start && (m->rotary == 0 || flux__mha_turn(m, &o, start)) &&
                      (n > 1 || !m->at.capacity || flux__mha_cached(m, &o, start)) &&
                      (o.k = flux__repeat_heads(o.k, m->kv_heads, m->nheads)) != NULL &&
                      (o.v = flux__repeat_heads(o.v, m->kv_heads, m->nheads)) != NULL;
    if (good) out[0] = flux__attention_of("dot_product_attention", o, m->alone ? NULL : &out[1]);
    out[0] = out[0] ? flux_call_layer(m->out_proj, out[0]) : NULL;
    return flux__reveal(h, !out[0] || m->alone ? out[0] : flux_tuple_with(2, out));
}

/* "MultiHeadAttention(in => qk => out; nheads=8)"; in may be (q, k, v), and qk may be (qk, v). */
static size_t flux__mha_text(flux_layer *self, char *out, size_t n) {
    const flux__mha *m = (const flux__mha *)self;
    const flux__dense_layer *q = (const flux__dense_layer *)m->q_proj,
                            *k = (const flux__dense_layer *)m->k_proj,
                            *v = (const flux__dense_layer *)m->v_proj,
                            *y = (const flux__dense_layer *)m->out_proj;
    long long in[3] = { q->weight->dim[1], k->weight->dim[1], v->weight->dim[1] };
    long long qk = q->weight->dim[0], vd = v->weight->dim[0] / m->kv_heads * m->nheads,
              o = y->weight->dim[0];
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s,
              in[0] == in[1] && in[0] == in[2] ? "MultiHeadAttention(%lld"
                                               : "MultiHeadAttention((%lld, %lld, %lld)",
              in[0], in[1], in[2]);
    if (in[0] != in[1] || in[0] != in[2] || qk != in[0] || vd != qk || o != qk) {
        flux__putf(&s, qk == vd ? " => %lld" : " => (%lld, %lld)", qk, vd);
        flux__putf(&s, " => %lld", o);
    }
    flux__putf(&s, "; nheads=%d", m->nheads);
    if (m->kv_heads != m->nheads) flux__putf(&s, ", kv_heads=%d", m->kv_heads);
    if (m->rotary > 0) flux__putf(&s, ", rotary=%.10g", m->rotary);
    if (q->bias) flux__putf(&s, ", bias=true");
    if (m->attn_drop && ((const flux__dropout *)m->attn_drop)->p > 0)
        flux__putf(&s, ", dropout_prob=%.10g", ((const flux__dropout *)m->attn_drop)->p);
    flux__putf(&s, m->causal ? ", causal=true)" : ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__mha, "MultiHeadAttention", flux__mha_call, flux__mha_text, FLUX_CHILD(q_proj),
                FLUX_CHILD(k_proj), FLUX_CHILD(v_proj), FLUX_CHILD(attn_drop), FLUX_CHILD(out_proj),
                FLUX_STATE(keys), FLUX_STATE(values))

/* size[]: the features of the input q; of q and k once projected; of v once projected; of the
   output; of the input k; of the input v. */
FLUX_DEF flux_layer *flux_multiheadattention_with(flux_multiheadattention_opts o) {
    FLUX__ZEROED(flux__mha, m);
    FLUX__ZEROED(flux_dense_opts, d);
    FLUX__ZEROED(flux_dropout_opts, drop);
    const char *call = "multiheadattention";
    int64_t in = o.in, qk = flux__given_int(o.qk, o.marked, in),
            v = flux__given_int(o.v, o.marked, qk);
    int64_t out = flux__given_int(o.out, o.marked, in);
    int64_t size[6] = {
        in, qk, v, out, flux__given_int(o.k_in, o.marked, in), flux__given_int(o.v_in, o.marked, in)
    };
    m.nheads = (int)flux__given_int(o.nheads, o.marked, 8);
    m.kv_heads = (int)flux__given_int(o.kv_heads, o.marked, m.nheads);
    m.rotary = o.rotary;
    m.causal = o.causal;
    m.alone = flux__given_switch(o.scores, o.marked) == FLUX_OFF;
    if (!flux__check_sizes(call, 6, size)) return NULL;
    if (m.nheads < 1 || qk % m.nheads || v % m.nheads)
        return (flux_layer *)flux__fail(
            "%s: %d heads can't share %lld query and %lld value features evenly", call, m.nheads,
            (long long)qk, (long long)v);
    if (m.kv_heads < 1 || m.nheads % m.kv_heads)
        return (flux_layer *)flux__fail("%s: %d heads of keys and values for %d heads of queries",
                                        call, m.kv_heads, m.nheads);
    if (m.rotary != 0 && (!(m.rotary > 1) || !flux__finite(m.rotary) || qk / m.nheads % 2))
        return (flux_layer *)flux__fail(
            "%s: .rotary is %g, with %lld features a head; it is a base above 1, such as 10000, "
            "and the features are an even number", call, m.rotary, (long long)(qk / m.nheads));
    if (!(o.dropout >= 0 && o.dropout <= 1))
        return (flux_layer *)flux__fail("%s: .dropout is %g, which is not within 0 to 1", call,
                                        (double)o.dropout);
    const int64_t kv_qk = qk / m.nheads * m.kv_heads, kv_v = v / m.nheads * m.kv_heads;
    int h = flux__hide();
    d.bias = o.bias ? FLUX_ON : FLUX_OFF;
    d.init = o.init;
    drop.p = o.dropout;
    bool good = (d.in = in, d.out = qk, m.q_proj = flux_dense_with(d)) != NULL &&
                (d.in = size[4], d.out = kv_qk, m.k_proj = flux_dense_with(d)) != NULL &&
                (d.in = size[5], d.out = kv_v, m.v_proj = flux_dense_with(d)) != NULL &&
                (d.in = v, d.out = out, m.out_proj = flux_dense_with(d)) != NULL &&
                (m.attn_drop = flux_dropout_with(drop)) != NULL;
    return flux__layer_made(h, good, flux__mha_type(), &m);
}

/* ---------------- caches */

/* What a walk over the layers of a model does to caches, or finds. */
typedef struct flux__caching {
    int64_t steps;                        /* of the caches that are set up; -1: only look */
    int64_t count;                        /* the most steps that a cache has */
    int layers;                           /* how many layers have a place in a text */
    flux_layer *wrong;                    /* an attention that cannot have a cache */
} flux__caching;

static void flux__cache_layer(flux_layer *m, void *user) {
    flux__caching *c = (flux__caching *)user;
    flux__mha *a = m->type == flux__mha_type() ? (flux__mha *)m : NULL;
    flux__steps *at = a ? &a->at : NULL;
    if (m->type == flux__position_embedding_type()) at = &((flux__position_embedding *)m)->at;
    if (!at) return;
    if (a && !a->causal) {
        c->wrong = m;
        return;
    }
    c->layers++;
    if (at->count > c->count) c->count = at->count;
    if (c->steps < 0) return;
    at->capacity = c->steps, at->count = 0;
    if (a) flux_assign(&a->keys, NULL), flux_assign(&a->values, NULL);
}

FLUX_DEF int flux_cache(flux_layer *model, int64_t steps) {
    flux__caching look = { -1, 0, 0, NULL }, set = { steps, 0, 0, NULL };
    if (!model) return flux__null("cache", "model", model), -1;
    if (FLUX__GONE("cache", model)) return -1;
    if (steps < 0 || steps > INT32_MAX)
        return flux__fail("cache: %lld steps", (long long)steps), -1;
    if (!flux__walk_all(model, NULL, flux__cache_layer, &look)) return -1;
    if (steps && look.wrong)
        return flux__fail("cache: %s is not causal: a later step changes what it gives for those "
                          "before", flux__line_of(look.wrong).s), -1;
    if (steps && !look.layers)
        return flux__fail("cache: the model has no MultiHeadAttention and no "
                          "PositionEmbedding"), -1;
    return flux__walk_all(model, NULL, flux__cache_layer, &set) ? 0 : -1;
}

FLUX_DEF int64_t flux_cached(flux_layer *model) {
    flux__caching look = { -1, 0, 0, NULL };
    if (!model) return flux__null("cached", "model", model), 0;
    if (FLUX__GONE("cached", model)) return 0;
    return flux__walk_all(model, NULL, flux__cache_layer, &look) ? look.count : 0;
}

FLUX__END_COLD

#endif /* FLUX__NN_ATTENTION_H */
