#ifndef FLUX__NN_RECURRENT_H
#define FLUX__NN_RECURRENT_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/text.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../graph/products.h"
#include "fields.h"
#include "functions.h"
#include "layers.h"
#include "model.h"

/* ---------------------------------------------------------------------- nn/recurrent.h
   Recurrence: cells and layers of RNN, LSTM, GRU and GRUv3, and
   flux_recurrence, which runs any cell over a sequence. A cell makes one step,
   a layer makes all steps of a sequence.

   Invariant: sequences are features x steps (x batch), states out (x batch).
   The part of the gates that does not depend on the step before, Wi x + bias,
   is one product over the whole sequence, laid out step by step so that each
   step takes a contiguous slice; each step then computes only Wh h. A state
   that starts as zero is NULL, not a tensor, so the first step needs no product
   with it. Gates of half formats are computed in float32, and states are
   rounded once a step. A cell returns its output and its states as a tuple. A
   user's own cell is called as y, state... = cell(x) in the first step and
   cell(x, state...) in later ones, with the same number of states each time.
   While flux_export_c records a model, a built-in cell that is given no state
   starts from placeholders and notes where it ends (flux__streams), so that the
   written program can go on from call to call. */

FLUX__BEGIN_COLD

enum { FLUX__RNN, FLUX__LSTM, FLUX__GRU, FLUX__GRUV3, FLUX__CELLS };

typedef struct flux__rnn_cell {
    flux_layer base;
    /* Wi: gates*out x in; Wh: own_gates*out x out; bias: gates*out, or NULL;
       Wh_h: out x out, the candidate's matrix in GRUv3, else NULL */
    flux_tensor *Wi, *Wh, *bias, *Wh_h;
    flux_tensor *bias_h;                  /* GRU with .hidden_bias: out; else NULL */
    flux_fn activation;                   /* RNN only */
    int kind;                             /* FLUX__RNN ... FLUX__GRUV3 */
} flux__rnn_cell;

typedef struct flux__recurrent { flux_layer base, *cell; bool return_state; } flux__recurrent;

/* gates: how many of size `out` Wi has; own_gates: how many Wh has; states: how
   many the cell has. */
static const struct { const char *call; int gates, own_gates, states; }
    flux__cell_rows[FLUX__CELLS] = {
    { "rnn", 1, 1, 1 }, { "lstm", 4, 4, 2 }, { "gru", 3, 3, 1 }, { "gruv3", 3, 2, 1 }
};

/* Gate number `which` of g, gates*out x N: a slice of out x N. */
static flux_tensor *flux__gate(flux_tensor *g, int which, int64_t out) {
    return flux_slice(g, 0, which * out, (which + 1) * out);
}

/* The same gate, in float32 if g is of a half format, as its activation takes it. */
static flux_tensor *flux__wide_gate(flux_tensor *g, int which, int64_t out) {
    return flux__widened(flux__gate(g, which, out));
}

/* One step of a cell. x: the input's part of the gates, Wi x + bias, gates*out x N. s: the states
   before, each out x N or NULL for zero; on return the states after, s[0] being the output. In
   half formats the reset gate r, and what it multiplies, stay in the half format: then the
   gradient of the gate is rounded once for both of its summands, where rounding it for each would
   be one more kernel. */
static void flux__cell_step(const flux__rnn_cell *m, flux_tensor *x, flux_tensor **s) {
    int64_t out = m->Wh->dim[1];
    if (!x) {
        s[0] = s[1] = NULL;
        return;
    }
    int given = x->dtype;
    flux_tensor *h = s[0], *own = h ? flux_matmul(m->Wh, h) : NULL;
    if (m->kind == FLUX__RNN) s[0] = flux__activate(m->activation, own ? flux_add(own, x) : x);
    else if (m->kind == FLUX__LSTM) {     /* gates: input, forget, cell, output */
        flux_tensor *g = own ? flux_add(own, x) : x;
        flux_tensor *c = flux_mul(flux_sigmoid(flux__wide_gate(g, 0, out)),
                                  flux_tanh(flux__wide_gate(g, 2, out)));
        if (s[1]) c = flux__fma(flux_sigmoid(flux__wide_gate(g, 1, out)), flux__widened(s[1]), c);
        s[1] = flux__narrow(c, given);
        s[0] =
            flux__narrow(flux_mul(flux_sigmoid(flux__wide_gate(g, 3, out)), flux_tanh(c)), given);
    } else {                              /* gates of GRU, GRUv3: reset, update, candidate */
        flux_tensor *r = flux__gate(x, 0, out), *z = flux__gate(x, 1, out),
                    *n = flux__gate(x, 2, out);
        flux_tensor *back = m->bias_h;    /* GRU: Wh h + bias_h of the candidate, times r */
        if (own) {
            r = flux_add(r, flux__gate(own, 0, out));
            z = flux_add(z, flux__gate(own, 1, out));
            if (m->kind == FLUX__GRU)
                back = back ? flux_add(flux__gate(own, 2, out), back) : flux__gate(own, 2, out);
        }
        if (own || back) r = flux_sigmoid(r);
        if (back) n = flux__fma(r, back, n);
        else if (own) n = flux_add(flux_matmul(m->Wh_h, flux_mul(r, h)), n);
        z = flux_sigmoid(flux__widened(z));
        n = flux_tanh(flux__widened(n));
        s[0] = flux__narrow(h ? flux__lerp(n, flux__widened(h), z) : flux_mul(flux_sub(1.0, z), n),
                            given);
    }
}

/* Checks and converts the input of a call: x, or a tuple of x and the states. Returns x, which is
   in x N for a cell or in x steps x N for a layer (`sequence`); N may be missing. States that were
   given go into s as out x N, those that were not leave s as it is. NULL on an error. */
static flux_tensor *flux__cell_input(flux_layer *self, const flux__rnn_cell *m, flux_tensor *x,
                                     bool sequence, flux_tensor **s) {
    int given = flux_num_items(x) - 1, want = flux__cell_rows[m->kind].states;
    int batch = sequence ? 2 : 1;
    flux_tensor *in = flux_nth(x, 0);
    if (given != 0 && given != want)
        return (flux_tensor *)flux__fail("%s takes x, or x and %s, got %d inputs",
                                         flux__line_of(self).s, want == 2 ? "h and c" : "a state",
                                         given + 1);
    flux_dtype t = (flux_dtype)m->Wi->dtype;
    in = in ? flux__input(self, in, t) : NULL;
    if (!in || !flux__expect_dim(self, in, 0, m->Wi->dim[1])) return NULL;
    if (in->ndim < batch || in->ndim > batch + 1 || flux__size(in) == 0)
        return (flux_tensor *)flux__fail(
            "%s takes %s, got %s", flux__line_of(self).s,
            sequence ? "features x steps (x batch)" : "features (x batch)", flux__describe(in).s);
    const int64_t out = m->Wh->dim[1], n = flux_dim(in, batch);
    for (int i = 0; i < given; i++) {
        s[i] = flux__input(self, flux_nth(x, i + 1), t);
        if (!s[i]) return NULL;
        if (s[i]->ndim < 1 || s[i]->ndim > 2 || s[i]->dim[0] != out ||
            (flux_dim(s[i], 1) != n && flux_dim(s[i], 1) != 1))
            return (flux_tensor *)flux__fail("%s: its state is %lld x %lld for this input, got %s",
                                             flux__line_of(self).s, (long long)out, (long long)n,
                                             flux__describe(s[i]).s);
        s[i] = flux_broadcast_to(s[i], out, n);
    }
    return in;
}

/* Wi x + bias for all columns of x: in x n to gates*out x n. */
static flux_tensor *flux__cell_project(const flux__rnn_cell *m, flux_tensor *x) {
    return flux__add_bias(flux_matmul(m->Wi, x), m->bias, NULL);
}

/* The tuple of y and n states; `vectors`: states of one column become vectors. */
static flux_tensor *flux__with_states(flux_tensor *y, int n, flux_tensor **s, bool vectors) {
    flux_tensor *all[9] = { y };
    for (int i = 0; i < n; i++)
        all[i + 1] = vectors && s[i] && s[i]->ndim == 2 ? flux_reshape(s[i], s[i]->dim[0]) : s[i];
    for (int i = 0; i <= n; i++)
        if (!all[i]) return NULL;
    return flux_tuple_with(n + 1, all);
}

/* ---------------- states that a written program keeps */

/* The states with which the cells of a model start, placeholders, and those with which they end.
   Each is retained. */
typedef struct flux__streams {
    flux_tensor **before, **after;
    int n, before_room, after_room;
    bool ok;
} flux__streams;

/* If a model is being recorded with its states, and none were given, gives placeholders for them in
   s, out x n; false: states are as they were. */
static bool flux__streams_begin(const flux__rnn_cell *m, const flux_tensor *x, int64_t n,
                                flux_tensor **s) {
    flux__thread *t = flux__self();
    if (!x || s[0] || !t || !t->streams) return false;
    for (int i = 0; i < flux__cell_rows[m->kind].states; i++)
        s[i] = flux__placeholder(FLUX_SHAPE(m->Wh->dim[1], n), (flux_dtype)m->Wi->dtype);
    return true;
}

/* Notes the pairs of states before and after; false: no memory. */
static bool flux__streams_end(int n, flux_tensor **before, flux_tensor **after) {
    flux__streams *all = flux__self()->streams;
    for (int i = 0; i < n && all->ok; i++) {
        flux_tensor **b = (flux_tensor **)flux__one_more(&all->before, &all->before_room, all->n,
                                                         sizeof *b),
                    **a = (flux_tensor **)flux__one_more(&all->after, &all->after_room, all->n,
                                                         sizeof *a);
        all->ok = a && b && before[i] && after[i];
        if (!all->ok) return false;
        *b = (flux_tensor *)flux_retain(before[i]);
        *a = (flux_tensor *)flux_retain(after[i]), all->n++;
    }
    return all->ok;
}

static flux_tensor *flux__cell_call(flux_layer *self, flux_tensor *x) {
    flux__rnn_cell *m = (flux__rnn_cell *)self;
    flux_tensor *s[2] = { NULL, NULL }, *in = flux__cell_input(self, m, x, false, s);
    if (!in) return NULL;
    bool vector = in->ndim == 1, kept = flux__streams_begin(m, in, flux_dim(in, 1), s);
    flux_tensor *before[2] = { s[0], s[1] };
    flux__cell_step(m, flux__cell_project(m, vector ? flux_unsqueeze(in, 1) : in), s);
    if (kept && !flux__streams_end(flux__cell_rows[m->kind].states, before, s)) return NULL;
    return flux__with_states(vector && s[0] ? flux_reshape(s[0], s[0]->dim[0]) : s[0],
                             flux__cell_rows[m->kind].states, s, vector);
}

static const flux_layer_type *flux__cell_type(int kind);

/* Runs a built-in cell over x, in x T (x N): returns the outputs as out x T x N. s: the states
   before the first step; on return those after the last. */
static flux_tensor *flux__cell_sequence(const flux__rnn_cell *m, flux_tensor *x, flux_tensor **s) {
    const int64_t in = x->dim[0], steps = x->dim[1], n = flux_dim(x, 2), gates = m->Wi->dim[0];
    flux_tensor **y = (flux_tensor **)flux__malloc((size_t)steps * sizeof *y), *all = NULL;
    if (!y) return NULL;
    if (x->ndim == 2) x = flux_unsqueeze(x, 2);
    x = flux_reshape(flux_permute(x, 0, 2, 1), in, flux__times(n, steps));
    flux_tensor *g = flux_reshape(flux__cell_project(m, x), gates, n, steps);
    bool ok = g != NULL;
    for (int64_t t = 0; t < steps && ok; t++) {
        flux__cell_step(m, flux_reshape(flux_slice(g, 2, t, t + 1), gates, n), s);
        y[t] = flux_reshape(s[0], m->Wh->dim[1], n, 1);
        ok = y[t] != NULL;
    }
    if (ok && steps <= INT_MAX) all = flux_permute(flux__cat_many(2, (int)steps, y), 0, 2, 1);
    flux__free(y);
    return all;
}

/* Runs any cell over a sequence: y, state... = cell(x) in the first step if no states are given,
   then cell(x, state...). Returns the outputs, stacked along dim 1; s[1] ... s[*nstates] are the
   states after the last step. */
static flux_tensor *flux__recur(flux_layer *self, flux_layer *cell, flux_tensor *x, flux_tensor **s,
                                int *nstates) {
    int given = flux_num_items(x) - 1;
    flux_tensor *in = flux_nth(x, 0), *all = NULL;
    if (given > 7)
        return (flux_tensor *)flux__fail("%s takes at most 7 states, got %d", flux__line_of(self).s,
                                         given);
    if (in->ndim < 2 || in->dim[1] < 1)
        return (flux_tensor *)flux__fail("%s takes features x steps (x batch), got %s",
                                         flux__line_of(self).s, flux__describe(in).s);
    for (int i = 0; i < given; i++) s[i + 1] = flux_nth(x, i + 1);
    flux__thread *here = flux__self();
    flux_tensor **y =
        here ? (flux_tensor **)flux__malloc((size_t)in->dim[1] * sizeof *y) : NULL;
    if (!y) return NULL;
    flux__streams *streams = here->streams;
    /* a built-in cell within the user's is given its state in every step but the first */
    here->streams = NULL;
    bool ok = true;
    for (int64_t t = 0; t < in->dim[1] && ok; t++) {
        s[0] = flux_select(in, 1, t);
        flux_tensor *r = s[0] ? flux_call_with(cell, given + 1, s) : NULL;
        int n = flux_num_items(r);
        if (r && (n < 2 || n > 8 || (given && n != given + 1)))
            r = (flux_tensor *)flux__fail(
                "%s: its cell gave %d tensors; it is to give its output and its state%s",
                flux__line_of(self).s, n, given ? ", as many as it takes" : "");
        given = n - 1;
        for (int i = 0; i < n && r; i++) s[i] = flux_nth(r, i);
        y[t] = r ? flux_unsqueeze(s[0], 1) : NULL;
        ok = y[t] != NULL;
    }
    here->streams = streams;
    if (ok) all = flux__cat_many(1, (int)in->dim[1], y);
    flux__free(y);
    *nstates = given;
    return all;
}

/* Runs the layer's cell over x, features x steps (x batch), or over a tuple of x and
   states. Returns the outputs, out x steps (x batch), or with .return_state a tuple of them
   and the last states. */
static flux_tensor *flux__recurrent_call(flux_layer *self, flux_tensor *x) {
    flux__recurrent *m = (flux__recurrent *)self;
    const flux__rnn_cell *cell = (const flux__rnn_cell *)m->cell;
    flux_tensor *s[9] = { NULL }, *y, *in;
    int n = 0, kind = 0;
    while (kind < FLUX__CELLS && m->cell->type != flux__cell_type(kind)) kind++;
    if (kind == FLUX__CELLS) {
        y = flux__recur(self, m->cell, x, s, &n);
        return y && m->return_state ? flux__with_states(y, n, s + 1, false) : y;
    }
    in = flux__cell_input(self, cell, x, true, s);
    const bool kept = in && flux__streams_begin(cell, in, flux_dim(in, 2), s);
    flux_tensor *before[2] = { s[0], s[1] };
    y = in ? flux__cell_sequence(cell, in, s) : NULL;
    if (y && kept && !flux__streams_end(flux__cell_rows[kind].states, before, s)) return NULL;
    if (y && in->ndim == 2) y = flux_reshape(y, y->dim[0], y->dim[1]);
    return y && m->return_state
               ? flux__with_states(y, flux__cell_rows[kind].states, s, in->ndim == 2)
               : y;
}

static size_t flux__cell_text(flux_layer *self, char *out, size_t n) {
    bool whole = self->type->call == flux__recurrent_call;
    flux__rnn_cell *m =
        whole ? (flux__rnn_cell *)((flux__recurrent *)self)->cell : (flux__rnn_cell *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "%s(%lld => %lld", self->type->name, (long long)m->Wi->dim[1],
              (long long)m->Wh->dim[1]);
    if (m->kind == FLUX__RNN)
        flux__putf(&s, ", %s", m->activation ? flux__fn_name(m->activation) : "identity");
    flux__putf(&s, m->bias ? "%s)" : "; bias=false)", m->bias_h ? "; hidden_bias=true" : "");
    return flux__sink_end(&s);
}

static const flux_layer_type *flux__cell_type(int kind) {
    typedef flux__rnn_cell flux__t;
    static const flux_field fields[] = { FLUX_PARAM(Wi),     FLUX_PARAM(Wh),
                                         FLUX_PARAM(bias),   FLUX_PARAM(Wh_h),
                                         FLUX_PARAM(bias_h), { NULL, FLUX__END, 0, 0 } };
#define FLUX__CELL_TYPE(name)                                                                      \
    { name, flux__cell_call, sizeof(flux__rnn_cell), fields, flux__cell_text, 0 }
    static const flux_layer_type types[FLUX__CELLS] = { FLUX__CELL_TYPE("RNNCell"),
                                                        FLUX__CELL_TYPE("LSTMCell"),
                                                        FLUX__CELL_TYPE("GRUCell"),
                                                        FLUX__CELL_TYPE("GRUv3Cell") };
    return &types[kind];
}

/* The type of a layer over a built-in cell, or of flux_recurrence (kind FLUX__CELLS). */
static const flux_layer_type *flux__recurrent_type(int kind) {
    typedef flux__recurrent flux__t;
    static const flux_field fields[] = { FLUX_CHILD(cell), { NULL, FLUX__END, 0, 0 } };
#define FLUX__RECURRENT_TYPE(name, text)                                                           \
    { name, flux__recurrent_call, sizeof(flux__recurrent), fields, text, 0 }
    static const flux_layer_type types[FLUX__CELLS + 1] = {
        FLUX__RECURRENT_TYPE("RNN", flux__cell_text), FLUX__RECURRENT_TYPE("LSTM", flux__cell_text),
        FLUX__RECURRENT_TYPE("GRU", flux__cell_text),
        FLUX__RECURRENT_TYPE("GRUv3", flux__cell_text), FLUX__RECURRENT_TYPE("Recurrence", NULL)
    };
    return &types[kind];
}

/* Makes a cell of a kind or, with `whole`, a layer that runs it over sequences. */
static flux_layer *flux__cell_new(int kind, bool whole, flux_recurrent_opts o) {
    FLUX__ZEROED(flux__rnn_cell, m);
    FLUX__ZEROED(flux__recurrent, all);
    char call[16];
    snprintf(call, sizeof call, "%s%s", flux__cell_rows[kind].call, whole ? "" : "cell");
    int64_t size[2] = { o.in, o.out },
            wi[2] = { flux__times(flux__cell_rows[kind].gates, o.out), o.in },
            wh[2] = { flux__times(flux__cell_rows[kind].own_gates, o.out), o.out };
    m.kind = kind;
    o.bias = flux__given_switch(o.bias, o.marked);
    m.activation = o.activation || kind != FLUX__RNN ? o.activation : flux_tanh;
    if (!flux__check_sizes(call, 2, size) || !flux__check_activation(call, &m.activation))
        return NULL;
    if (o.activation && kind != FLUX__RNN)
        return (flux_layer *)flux__fail(
            "%s: .activation is for rnn; here they are sigmoid and tanh", call);
    if (o.hidden_bias && (kind != FLUX__GRU || o.bias == FLUX_OFF))
        return (flux_layer *)flux__fail(
            "%s: .hidden_bias is for gru, and for one whose .bias is not off", call);
    if (o.return_state && !whole)
        return (flux_layer *)flux__fail("%s: .return_state is for %s; a cell always gives it", call,
                                        flux__cell_rows[kind].call);
    int h = flux__hide();
    flux_init_fn init = o.init ? o.init : flux_glorot_uniform,
                 own = o.init_recurrent ? o.init_recurrent : flux_glorot_uniform;
    m.Wi = flux__make_weight(call, init, flux__shape(wi, 2));
    m.Wh = m.Wi ? flux__make_weight(call, own, flux__shape(wh, 2)) : NULL;
    if (kind == FLUX__GRUV3 && m.Wh)
        wh[0] = o.out, m.Wh_h = flux__make_weight(call, own, flux__shape(wh, 2));
    m.bias = flux__make_bias(o.bias, m.Wh, flux__shape(wi, 1));
    if (o.hidden_bias && m.bias) m.bias_h = flux__make_bias(o.bias, m.Wh, flux__shape(&o.out, 1));
    bool good = m.Wh && (m.Wh_h || kind != FLUX__GRUV3) && (m.bias || o.bias == FLUX_OFF) &&
                (m.bias_h || !o.hidden_bias);
    flux_layer *y = good ? flux__layer_new(flux__cell_type(kind), &m) : NULL;
    all.cell = y;
    all.return_state = o.return_state;
    if (y && whole) y = flux__layer_new(flux__recurrent_type(kind), &all);
    return (flux_layer *)flux__reveal_object(h, y);
}

#define FLUX__DEFINE_RECURRENT(name, kind)                               \
    FLUX_DEF flux_layer *flux_##name##_with(flux_recurrent_opts o) {     \
        return flux__cell_new(kind, true, o);                            \
    }                                                                    \
    FLUX_DEF flux_layer *flux_##name##cell_with(flux_recurrent_opts o) { \
        return flux__cell_new(kind, false, o);                           \
    }
FLUX__DEFINE_RECURRENT(rnn, FLUX__RNN)
FLUX__DEFINE_RECURRENT(lstm, FLUX__LSTM)
FLUX__DEFINE_RECURRENT(gru, FLUX__GRU)
FLUX__DEFINE_RECURRENT(gruv3, FLUX__GRUV3)

FLUX_DEF flux_layer *flux_recurrence_with(flux_recurrence_opts o) {
    FLUX__ZEROED(flux__recurrent, m);
    if (!o.cell) return (flux_layer *)flux__null("recurrence", "cell", NULL);
    m.cell = o.cell;
    m.return_state = o.return_state;
    return flux__layer_new(flux__recurrent_type(FLUX__CELLS), &m);
}

FLUX__END_COLD

#endif /* FLUX__NN_RECURRENT_H */
