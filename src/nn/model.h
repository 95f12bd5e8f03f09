#ifndef FLUX__NN_MODEL_H
#define FLUX__NN_MODEL_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/profile.h"
#include "../schedule/looking.h"
#include "fields.h"
#include "walk.h"
#include "map.h"

/* ---------------------------------------------------------------------- nn/model.h
   Using a model: calling it (flux_call_layer), train and test mode, freezing,
   names, values carried from one iteration of a loop to the next
   (flux_carry_object), and dry runs, which find shapes (flux_outputsize) and the
   rows of a summary.

   Invariant: a layer is in train mode if it was set to it, or if gradients are
   recorded and it was not set to test mode. flux_train and flux_withgradient
   overrule test mode for as long as they run, without changing the layers
   (flux__training). The only tensor that a call leaves in the caller's scope is
   its result. A carried value is evaluated and has no graph behind it. A name is
   a part of a path, so it has no dot and is not all digits, and a layer that has
   a name cannot get another one. A dry run calls a copy in test mode on a
   placeholder: it computes nothing and uses up no random numbers. */

FLUX__BEGIN_LEAN

/* Train mode of a model for as long as a call lasts; the layers' own modes are not changed.
   `layers` has the layers that were in test mode on entry, with a reference to each; the value is
   NULL for those that were set to test mode since, which train mode does not overrule. */
typedef struct flux__training {
    flux__hashmap layers;
    struct flux__training *outer;         /* of the call around this one */
} flux__training;

static void flux__train_leave(flux__training *here);

/* ---------------- values carried from one iteration to the next */

/* x's value, evaluated, in a tensor without operands, so that no graph is kept alive. */
static flux_tensor *flux__settled(flux_tensor *x) {
    if (flux__is_number(x)) {
        if (x->nin == 0) return x;
        flux_tensor *y = flux_full_with(flux__dims(x), (FLUX__IS_VIEW(x) ? x->base : x)->arg.num,
                                         (flux_dtype)x->dtype);
        if (y && !y->buf) y->device = x->device;
        return y;
    }
    if (FLUX__IS_VIEW(x)) x = flux_copy(x);
    if (!x || !flux_eval(x)) return NULL;
    return x->nin == 0 && !(x->flags & FLUX__CONSUMED) ? x : flux__share(x);
}

/* The same for a tensor or a tuple. */
static flux_tensor *flux__settled_all(flux_tensor *x) {
    flux_tensor *part[255];
    if (x->op != FLUX__TUPLE) return flux__settled(x);
    if (flux_eval_all(1, &x) != 0) return NULL;
    for (int i = 0; i < x->nin; i++)
        if (!(part[i] = flux__settled_all(x->in[i]))) return NULL;    /* tuples in tuples, too */
    return flux_tuple_with(x->nin, part);
}

static flux_tensor *flux__settled_leaf(flux_tensor *x, const char *path, void *user) {
    (void)path, (void)user;
    return flux__settled(x);
}

/* Replaces the carried object `old` by the evaluated value of a tensor, or of a layer's tensors. */
FLUX_DEF void *flux_carry_object(const void *old, const void *value) {
    flux__head *was = (flux__head *)(intptr_t)old, *h = (flux__head *)(intptr_t)value;
    if (!h || FLUX__GONE("carry", h)) return flux__null("carry", "value", h);
    if (h->kind == FLUX__TENSOR) h = (flux__head *)flux__settled_all((flux_tensor *)h);
    else if (h->kind == FLUX__LAYER)
        h = (flux__head *)flux__map_layer(flux__settled_leaf, NULL, (flux_layer *)h, true);
    return h ? flux__succeed(was, h) : NULL;
}

/* ---------------- modes, freezing, names */

static void flux__set_train(flux_layer *m, void *user) { (void)user, m->mode = FLUX_MODE_TRAIN; }
static void flux__set_test(flux_layer *m, void *user) {
    flux__thread *t = (flux__thread *)user;
    m->mode = FLUX_MODE_TEST;
    for (flux__training *now = t ? t->training : NULL; now; now = now->outer)
        if (flux__hashmap_has(&now->layers, m)) flux__hashmap_find(&now->layers, m)->value = NULL;
}
static void flux__set_auto(flux_layer *m, void *user) { (void)user, m->mode = FLUX_MODE_AUTO; }
static void flux__set_frozen(flux_layer *m, void *user) { (void)user, m->frozen = true; }
static void flux__set_thawed(flux_layer *m, void *user) { (void)user, m->frozen = false; }

static void flux__set_all(const char *call, flux_layer *m, void (*set)(flux_layer *m, void *user)) {
    if (m) flux__walk_all(m, NULL, set, flux__self());
    else flux__null(call, "model", m);
}

FLUX_DEF void flux_testmode(flux_layer *m, bool on) {
    flux__set_all("testmode", m, on ? flux__set_test : flux__set_auto);
}
FLUX_DEF void flux_trainmode(flux_layer *m, bool on) {
    flux__set_all("trainmode", m, on ? flux__set_train : flux__set_auto);
}
FLUX_DEF void flux_freeze(flux_layer *m) { flux__set_all("freeze", m, flux__set_frozen); }
FLUX_DEF void flux_thaw(flux_layer *m) { flux__set_all("thaw", m, flux__set_thawed); }

typedef struct flux__tested { flux__training *here; bool ok; } flux__tested;

/* Walk callback of flux__train_enter: notes a layer that is in test mode. */
static void flux__train_note(flux_layer *m, void *user) {
    flux__tested *w = (flux__tested *)user;
    bool fresh = false;
    if (m->mode != FLUX_MODE_TEST || !w->ok) return;
    flux__pair *pair = flux__hashmap_at(&w->here->layers, m, &fresh);
    w->ok = pair != NULL;
    if (pair && fresh) pair->value = flux_retain(m);
}

/* Begins train mode for m; flux__train_leave must follow, unless this returns
   false, on an error. */
static bool flux__train_enter(flux__training *here, flux_layer *m) {
    flux__thread *t = flux__self();
    flux__tested w = { here, true };
    memset(here, 0, sizeof *here);
    if (!t) return false;
    here->outer = t->training;
    t->training = here;
    if (flux__walk_all(m, NULL, flux__train_note, &w) && w.ok) return true;
    flux__train_leave(here);
    return false;
}

static void flux__train_leave(flux__training *here) {
    flux__self()->training = here->outer;
    for (size_t i = 0; i < here->layers.capacity; i++) flux_release(here->layers.at[i].key);
    flux__hashmap_free(&here->layers);
}

/* Whether flux_train or flux_withgradient overrules the test mode of m. */
static bool flux__train_overrules(const flux__training *now, const flux_layer *m) {
    while (now && !flux__hashmap_get(&now->layers, m)) now = now->outer;
    return now != NULL;
}

FLUX_DEF bool flux_training(const flux_layer *m) {
    flux__thread *t = flux__self();
    if (!m || !t) return false;
    if (m->mode == FLUX_MODE_TRAIN) return true;
    return t->nograd == 0 && (m->mode == FLUX_MODE_AUTO || flux__train_overrules(t->training, m));
}

/* Whether a string can be a layer's name: it stands in paths in place of an index. */
static FLUX__COLD bool flux__check_name(const char *name) {
    size_t n = strlen(name), digits = strspn(name, "0123456789");
    bool good = n > 0 && n < 64 && digits < n && !strchr(name, '.');
    for (size_t i = 0; i < n && i < 64; i++)
        if ((unsigned char)name[i] < ' ') good = false;
    if (!good)
        flux__fail(
            "named: \"%.64s\" is no name: 1 to 63 characters, not only digits, without a dot",
            name);
    return good;
}

/* Names a layer that has no name yet, or has this one; returns the layer, or NULL on an error. */
FLUX_DEF FLUX__COLD flux_layer *flux_named(const char *name, flux_layer *m) {
    if (!name || !m) return (flux_layer *)flux__null("named", name ? "model" : "name", NULL);
    if (!flux__check_name(name)) return NULL;
    if (m->name && strcmp(m->name, name) == 0) return m;
    if (m->name)
        return (flux_layer *)flux__fail(
            "named: this %s is called \"%s\" already; \"%s\" would rename it wherever it is used",
            m->type->name, m->name, name);
    m->name = flux__copy_text(name);
    return m->name ? m : NULL;
}

/* ---------------- calls */

/* What flux_summary records while a model is called: a row for each layer in the order of calls. A
   layer that prints as one line has a row, layers within it have none (closed: a call is within
   such a layer). out: the shapes of the result; products: multiply-adds; bytes: of the result. */
typedef struct flux__watch_row {
    flux_layer *layer;
    int depth;
    char out[80];
    int64_t products, bytes, numbers;
    bool frozen;
} flux__watch_row;
struct flux__watch {
    flux__watch_row *row;
    int n, capacity, depth, closed;
};

/* Begins the row of a layer that is being called; its index, or -1 if it gets none. */
static FLUX__COLD int flux__watch_start(flux__watch *w, flux_layer *m, int64_t products) {
    if (w->closed) return -1;
    flux__watch_row *row = (flux__watch_row *)flux__one_more(&w->row, &w->capacity, w->n,
                                                             sizeof *row);
    if (!row) return -1;
    memset(row, 0, sizeof *row);
    row->layer = m;
    row->depth = w->depth++;
    row->products = products;
    w->closed = flux__one_line(m);
    return w->n++;
}

/* hook: flux__put_line, text/models.h */
static void flux__put_line(flux__sink *s, flux_layer *m);
/* Writes the layer whose call is in progress, for messages; false if no call is watched. */
static FLUX__COLD bool flux__watched_layer(char *out, size_t n) {
    const flux__thread *t = flux__self();
    const flux__watch *w = t ? t->watch : NULL;
    int i = w ? w->n - 1 : -1;
    while (i >= 0 && w->row[i].depth != w->depth - 1) i--; /* calls of deeper rows have ended */
    if (i < 0) return false;
    flux_layer *m = w->row[i].layer;
    flux__sink s = flux__sink_to(out, n);
    if (m->name) flux__put(&s, m->name), flux__put(&s, " = ");
    if (flux__one_line(m)) flux__put_line(&s, m);
    else flux__put(&s, m->type->name);
    flux__sink_end(&s);
    return true;
}

/* Completes row i when its layer's call has returned y. */
static FLUX__COLD void flux__watch_end(flux__watch *w, int i, flux_tensor *y, int64_t products) {
    flux__watch_row *row = &w->row[i];
    flux__sink out = flux__sink_to(row->out, sizeof row->out);
    w->closed = 0;
    w->depth = row->depth;
    row->products = products - row->products;
    for (int k = 0; k < flux_num_items(y); k++) {
        flux_tensor *x = y->op == FLUX__TUPLE ? y->in[k] : y;
        flux_shape s = flux__dims(x);
        flux__putf(&out, k ? ", %s" : "%s", flux__shape_text(&s).s);
        row->bytes += flux__size(x) * flux__dtypes[x->dtype].size;
    }
    flux__sink_end(&out);
}

/* The origin of what layer m records, which is called by the layer t->calling: the field in which
   that one holds it, see schedule/profile.h. */
static FLUX__COLD uint32_t flux__layer_origin(const flux__thread *t, const flux_layer *m) {
    FLUX__ZEROED(flux__trail, trail);
    const char *name = NULL;
    if (t->calling)
        FLUX__EACH_MEMBER(at, (flux_layer *)(intptr_t)t->calling)
            if (!name && !at.tensor && *at.layer == m && flux__trail_member(&trail, &at))
                name = trail.s;
    const bool function = flux__bare_function(m);
    flux__words words;
    if (function) words = flux__line_of((flux_layer *)(intptr_t)m);
    const uint32_t origin = flux__origin_of(t->origin, name ? name : "",
                                            function ? words.s : m->type->name);
    flux__free(trail.s);
    return origin;
}

/* Calls a layer; all tensors that the call makes are hidden but its result. Reports a call that
   gives NULL without an error, and fills in the row of a summary that watches. */
FLUX_DEF flux_tensor *flux_call_layer(flux_layer *m, flux_tensor *x) {
    if (!m || !x) return (flux_tensor *)flux__null("call", m ? "x" : "model", NULL);
    if (FLUX__GONE("call", m) || FLUX__GONE("call", x)) return NULL;
    int h = flux__hide();
    flux__thread *t = flux__self();
    int row = t && t->watch ? flux__watch_start(t->watch, m, t->products) : -1;
    int64_t failures = flux__failures();
    const bool profile = t && flux__profiling();
    const uint32_t origin = t ? t->origin : 0;
    const flux_layer *calling = t ? t->calling : NULL;
    if (profile) t->origin = flux__layer_origin(t, m), t->calling = m;
    flux_tensor *y = m->type->call(m, x);
    if (profile) t->origin = origin, t->calling = calling;
    if (!y && !flux__failed_since(failures)) flux__fail("%s: its call gave NULL", m->type->name);
    if (row >= 0 && y) flux__watch_end(t->watch, row, y, t->products);
    return flux__reveal(h, y);
}

FLUX_DEF flux_tensor *flux_call_with(flux_layer *m, int n, flux_tensor *const *xs) {
    if (!m || n < 1 || !xs) return (flux_tensor *)flux__null("call", m ? "x" : "model", NULL);
    if (n == 1) return flux_call_layer(m, xs[0]);
    for (int i = 0; i < n; i++)
        if (!xs[i]) return (flux_tensor *)flux__null("call", "x", NULL);
    int h = flux__hide();
    return flux__reveal(h, flux_call_layer(m, flux_tuple_with(n, xs)));
}

static void flux__first_tensor(flux_tensor **slot, const char *path, bool trained,
                               const flux_layer *owner, void *user) {
    flux_tensor **first = (flux_tensor **)user;
    (void)path, (void)trained, (void)owner;
    if (!*first) *first = *slot;
}

/* Whether the first layer, at any depth, takes indices. */
static FLUX__COLD bool flux__takes_indices(flux_layer *m) {
    bool indices = false;
    for (int depth = 0; m && depth < FLUX_MAX_LEVELS; m = flux_child(m, 0), depth++)
        indices = indices || (m->type->traits & FLUX_TAKES_INDICES);
    return indices;
}

/* An input of shape s for a dry run, on the model's device: int64 if the model takes indices, else
   of the dtype of its first tensor. */
static FLUX__COLD flux_tensor *flux__sample(flux_layer *m, flux_shape s) {
    flux_tensor *first = NULL;
    if (!flux__fields(m, flux__first_tensor, &first)) return NULL;
    flux_dtype t = flux__takes_indices(m) ? FLUX_I64
                   : first                ? (flux_dtype)first->dtype
                                          : FLUX_F32;
    /* FLUX_EAGER evaluates each operation at once, so it needs values: zeros */
    flux_tensor *x = flux__eager() ? flux_full_with(s, 0.0, t) : flux__placeholder(s, t);
    if (x && first && !x->buf) x->device = first->device;
    return x && first ? flux_to_tensor(first->device, x) : x;
}

/* The identity for maps: a clone of the layers that shares the tensors. */
static flux_tensor *flux__keep_leaf(flux_tensor *x, const char *path, void *user) {
    (void)path, (void)user;
    return x;
}

/* Calls a copy of m with an input of this shape, so that modes and what a layer's call changes stay
   as they are in m. It uses up no random numbers and evaluates nothing. The caller must have opened
   a scope for the copy and the tensors. */
static FLUX__COLD flux_tensor *flux__dry_run(const char *call, flux_layer *m, flux_shape in,
                                  flux__watch *watch) {
    flux__thread *t = flux__self();
    if (!m || !t) return (flux_tensor *)flux__null(call, "model", m);
    uint64_t draws = t->draws;
    flux_layer *copy = flux__map_layer(flux__keep_leaf, NULL, m, false);
    if (copy) flux_testmode(copy, true);
    const int b = flux__nograd_enter();
    flux_tensor *x = copy ? flux__sample(copy, in) : NULL;
    flux__watch *around = t->watch;       /* a layer's call may itself make a dry run */
    t->watch = watch;
    flux_tensor *y = x ? flux_call_layer(copy, x) : NULL;
    t->watch = around;
    flux__nograd_leave(b);
    t->draws = draws;
    return y;
}

/* The shape of m's result for an input of shape `in`, by a dry run; ndim is -1 on an error. */
FLUX_DEF FLUX__COLD flux_shape flux_outputsize_with(flux_layer *m, flux_shape in) {
    flux_shape none = flux__shape(NULL, -1);
    const int64_t failures = flux__failures();
    int h = flux__hide();
    FLUX__ZEROED(flux__watch, w);
    flux_tensor *y = flux__dry_run("outputsize", m, in, &w);
    flux__free(w.row);
    if (y && y->op == FLUX__TUPLE)
        y = (flux_tensor *)flux__fail("outputsize: %s gives a tuple of %d tensors", m->type->name,
                                      y->nin);
    if (y && !flux__failed_since(failures)) none = flux__dims(y);
    flux__reveal_object(h, NULL);
    return none;
}

FLUX__END_LEAN

#endif /* FLUX__NN_MODEL_H */
