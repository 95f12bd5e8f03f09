#ifndef FLUX__TEXT_MODELS_H
#define FLUX__TEXT_MODELS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "../nn/fields.h"
#include "../nn/walk.h"
#include "tensors.h"

/* ---------------------------------------------------------------------- text/models.h
   Models as text, as in Flux.jl: a layer is one line, a container is its
   children's lines between brackets, and a comment behind each line says how
   many numbers it holds. All of this comes from the description of a type's
   fields, so a user's own layer prints without further code: a layer whose type
   has a text function is one line, a layer without one is a container, and a
   tensor in a container is a line too. A type without a text function that
   holds only tensors is one line, Affine(5x2 f32, 5-element f32), and so is a
   container of plain functions, Chain(relu, +).

   Invariant: parameters that an earlier line has shown are called tied, and
   totals count them once. Bytes are the sizes of the tensors' memory, on
   whatever device; memory that several tensors share counts once. A line whose
   parameters are all zero, or hold a NaN or Inf, is flagged; this takes one
   reduction for each tensor, on its own device. */

FLUX__BEGIN_COLD

typedef struct flux__shown_model {        /* one printing of a model */
    flux__sink *sink;
    flux__hashmap seen;                   /* set of parameters in earlier lines, or of memory */
} flux__shown_model;

typedef struct flux__summary {            /* counts of one line, or of the whole model */
    flux__shown_model *shown;
    int64_t arrays, numbers, tied,        /* parameters: tensors, elements, tied elements */
        states, state_numbers, bytes;     /* tensors that are not trained, and their elements */
    int64_t frozen;                       /* of the arrays, those that flux_update leaves alone */
    bool zero, nan, inf;                  /* parameters: all are 0; some NaN; some infinite */
    bool total;                           /* of the whole model: has bytes, and no flags */
} flux__summary;

/* Adds p to the set of what has been seen; true if it was not there. */
static bool flux__first_sight(flux__shown_model *shown, const void *p) {
    bool fresh = true;
    (void)flux__hashmap_at(&shown->seen, p, &fresh);
    return fresh;
}

/* Updates the flags zero, nan and inf for a tensor, from max(abs(x)) alone: that is 0, NaN or Inf
   if the tensor is all zero, has a NaN, or else has an infinite element. */
static void flux__summary_flags(flux__summary *t, flux_tensor *x) {
    if (!flux__size(x)) return;
    double most = 1;                      /* stays 1, so sets no flag, if reading it fails */
    int h = flux__hide();
    flux_tensor *v = flux__dtypes[x->dtype].real ? flux_detach(x) : flux_to_dtype(x, FLUX_F32);
    v = flux_to_dtype((flux_max)(flux_abs(v)), FLUX_F64);
    if (v) flux_read(v, &most, sizeof most);
    flux__reveal(h, NULL);
    if (most != 0) t->zero = false;
    if (most != most) t->nan = true;
    if (most - most != 0 && most == most) t->inf = true;
}

/* Counts one tensor of the model: a visitor of flux_visit, which calls it once for each tensor. */
static void flux__summary_tensor(flux_tensor *x, const char *path, bool trained, void *user) {
    flux__summary *t = (flux__summary *)user;
    const flux_tensor *memory = x->base ? x->base : x;
    int64_t n = flux__size(x);
    (void)path;
    if (trained) t->arrays++, t->numbers += n;
    else t->states++, t->state_numbers += n;
    if (t->total) {
        if (flux__first_sight(t->shown, memory))
            t->bytes += flux__size(memory) * flux__dtypes[memory->dtype].size;
    } else if (trained) {
        if (!flux__first_sight(t->shown, x)) t->tied += n;
        flux__summary_flags(t, x);
    }
}

/* Counts the elements of a parameter whose memory has not been counted before. */
static void flux__summary_new(flux_tensor *x, const char *path, bool trained, void *user) {
    flux__summary *t = (flux__summary *)user;
    (void)path;
    if (trained && flux__first_sight(t->shown, x->base ? x->base : x)) t->numbers += flux__size(x);
}

/* Counts a parameter that belongs to a frozen layer. */
static void flux__summary_frozen(flux_tensor **slot, const char *path, bool trained,
                                 const flux_layer *owner, void *user) {
    (void)slot, (void)path;
    if (trained && owner->frozen) ((flux__summary *)user)->frozen++;
}

static flux__summary flux__summary_start(flux__shown_model *shown) {
    flux__summary t = { shown, 0, 0, 0, 0, 0, 0, 0, true, false, false, false };
    return t;
}

static void flux__put_number(flux__sink *s, const char *before, int64_t n, const char *after) {
    flux__put(s, before);
    flux__put_integer(s, n, true);
    flux__put(s, after);
}

/* Writes the comment behind a line whose text is `width` characters long, "# 6 parameters, plus 6".
   `alone` says that the line is a single tensor; a layer without parameters gets no comment. */
static void flux__put_summary(flux__sink *s, const flux__summary *t, int indent, int64_t width,
                              bool alone) {
    int64_t pad = (indent ? 39 - indent : 20) - width;
    if (!t->arrays && !alone) return;
    flux__put_pad(s, pad > 2 ? pad : 2);
    flux__put_colour(s, "90");
    if (t->arrays) flux__put_number(s, "# ", t->numbers, " parameters");
    else flux__put_number(s, "# ", t->state_numbers, " non-trainable");
    if (t->arrays && t->state_numbers)
        flux__put_number(s, ", plus ", t->state_numbers, indent ? "" : " non-trainable");
    if (t->tied) {
        if (t->tied < t->numbers) flux__put_number(s, ", ", t->tied, "");
        else flux__put(s, ",");
        flux__put(s, " tied");
    }
    if (t->frozen) flux__put(s, t->frozen < t->arrays ? ", partly frozen" : ", frozen");
    bool flag = t->numbers && (t->zero || t->nan || t->inf);
    if (flag) flux__put_colour(s, t->zero ? "36" : "31");
    if (flag) flux__put(s, t->zero ? "  (all zero)" : t->nan ? "  (some NaN)" : "  (some Inf)");
    flux__put_colour(s, "0");
}

/* ---- the fields of a layer, one by one */

/* Writes the text that the layer's own text function gives. */
static void flux__put_own_text(flux__sink *s, flux_layer *m) {
    char text[256], *all;
    size_t n = m->type->text(m, text, sizeof text);
    if (n < sizeof text) {
        flux__put(s, text);
        return;
    }
    /* a text function that asks for 64 KiB or more is wrong: its type's name is shown instead */
    all = n < 65536 ? (char *)flux__malloc(n + 1) : NULL;
    if (!all) {
        flux__put(s, m->type->name);
        return;
    }
    all[0] = 0;
    m->type->text(m, all, n + 1);
    all[n] = 0;
    flux__put(s, all);
    flux__free(all);
}

static void flux__put_kind(flux__sink *s, const flux_tensor *x) {      /* "5x2 f32" */
    flux__put_shape(s, x);
    flux__put(s, " ");
    flux__put(s, flux__dtypes[x->dtype].name);
}

/* Writes a layer as one line: its own text, or its type's name and what its fields hold. */
static void flux__put_line(flux__sink *s, flux_layer *m) {
    bool first = true;
    if (m->type->text) {
        flux__put_own_text(s, m);
        return;
    }
    flux__put(s, m->type->name);
    flux__put(s, "(");
    FLUX__EACH_MEMBER(at, m) {
        if (!first) flux__put(s, ", ");
        first = false;
        if (at.tensor) flux__put_kind(s, *at.tensor);
        else if ((*at.layer)->type->text) flux__put_own_text(s, *at.layer);
        else flux__put(s, (*at.layer)->type->name);
    }
    flux__put(s, ")");
}

/* ---- lines */

/* Begins a layer's line: indented and, within a model, with its name. */
static void flux__put_named(flux__sink *s, const flux_layer *m, int indent) {
    flux__put_pad(s, indent);
    if (!indent || !m->name) return;
    flux__put(s, m->name);
    flux__put(s, " = ");
}

/* Writes the line of a layer that is shown as one line, with its comment. */
static void flux__put_leaf(flux__shown_model *shown, flux_layer *m, int indent) {
    flux__sink *s = shown->sink;
    flux__summary t = flux__summary_start(shown);
    size_t start = s->chars;
    flux__put_named(s, m, indent);
    flux__put_line(s, m);
    int64_t width = (int64_t)(s->chars - start) - indent;
    if (indent) flux__put(s, ",");
    flux_visit(m, flux__summary_tensor, &t);
    flux__fields(m, flux__summary_frozen, &t);
    flux__put_summary(s, &t, indent, width, false);
}

/* Writes the line of a tensor that is a container's field, with its comment. */
static void flux__put_tensor_line(flux__shown_model *shown, const flux__member *at, int indent,
                                  bool frozen) {
    flux__sink *s = shown->sink;
    flux__summary t = flux__summary_start(shown);
    size_t start = s->chars;
    flux__put_pad(s, indent);
    flux__put_kind(s, *at->tensor);
    int64_t width = (int64_t)(s->chars - start) - indent;
    flux__put(s, ",");
    bool trained = at->field->kind == FLUX__PARAM_FIELD;
    flux__summary_tensor(*at->tensor, "", trained, &t);
    t.frozen = frozen && trained;
    flux__put_summary(s, &t, indent, width, true);
}

/* Writes the totals of the whole model behind its last bracket, as Flux.jl does; a model of at
   most two arrays has none. */
static void flux__put_totals(flux__shown_model *shown, flux_layer *m) {
    flux__sink *s = shown->sink;
    flux__summary t = flux__summary_start(shown);
    char bytes[32];
    flux__hashmap_free(&shown->seen);     /* from here on the set holds memory, not parameters */
    t.total = true;
    flux_visit(m, flux__summary_tensor, &t);
    flux_format_bytes(t.bytes, bytes, sizeof bytes);
    if (t.arrays <= 2) return;
    flux__put_pad(s, t.states ? 8 : 18);
    flux__put_colour(s, "90");
    flux__put_number(s, "# Total: ", t.arrays, t.states ? " trainable arrays, " : " arrays, ");
    flux__put_number(s, "", t.numbers, " parameters,");
    if (t.states) {
        flux__put_number(s, "\n          # plus ", t.states, " non-trainable, ");
        flux__put_number(s, "", t.state_numbers, " parameters, summarysize");
    }
    flux__put(s, " ");
    flux__put(s, bytes);
    flux__put(s, ".");
    flux__put_colour(s, "0");
}

/* Writes a layer and, if it is a container, its children on lines of their own, 2 characters
   further to the right. The outermost one (indent 0) ends with the totals. */
static void flux__put_model(flux__shown_model *shown, flux_layer *m, int indent) {
    flux__sink *s = shown->sink;
    if (flux__one_line(m) || indent > 400) {     /* below 200 levels children are not shown */
        flux__put_leaf(shown, m, indent);
        if (indent) flux__put(s, "\n");
        return;
    }
    flux__put_named(s, m, indent);
    flux__put(s, m->type->name);
    flux__put(s, "(\n");
    FLUX__EACH_MEMBER(at, m)
        if (!at.tensor) flux__put_model(shown, *at.layer, indent + 2);
        else {
            flux__put_tensor_line(shown, &at, indent + 2, m->frozen);
            flux__put(s, "\n");
        }
    flux__put_pad(s, indent);
    flux__put(s, indent ? "),\n" : ") ");
    if (!indent) flux__put_totals(shown, m);
}

/* Writes a model with its totals, without a line break at the end. */
static void flux__put_whole_model(flux__sink *s, flux_layer *m) {
    flux__shown_model shown = { s, { NULL, 0, 0 } };
    if (FLUX__GONE("print", m)) return;
    flux__put_model(&shown, m, 0);
    flux__hashmap_free(&shown.seen);
}

FLUX_DEF size_t flux_layer_text(flux_layer *m, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (!m) flux__null("layer_text", "m", m);
    else flux__put_whole_model(&s, m);
    return flux__sink_end(&s);
}

FLUX__END_COLD

#endif /* FLUX__TEXT_MODELS_H */
