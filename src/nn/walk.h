#ifndef FLUX__NN_WALK_H
#define FLUX__NN_WALK_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "fields.h"

/* ---------------------------------------------------------------------- nn/walk.h
   The walk over a model's tensors: flux__walk_all calls a function for each
   tensor with its path ("layers.0.weight"), and one for each layer. Functions
   that only read a model, or set one tensor of it, are here: flux_visit,
   flux_params, flux_num_params, flux_param, flux_set_param, flux_weight,
   flux_bias, flux_child.

   Invariant: the walk is depth first, in the order of the fields. A path has the
   field's name and, for a field of several children, the child's name or else
   its index. flux__walk_all passes a tensor once for each field that holds it,
   flux_visit once; params and counts leave out views that are tied to another
   tensor of the model. Only floating tensors in parameter fields are trained.
   Nesting is bounded by FLUX_MAX_LEVELS: a deeper model can only be one that
   contains itself, and is an error. flux_set_param replaces the tensor in every
   field that holds it, and views of it by the same views of the new one. */

FLUX__BEGIN_LEAN

/* The path of a walk's present field, and how many layers deep it is. */
typedef struct flux__trail { char *s; int capacity, length, depth; } flux__trail;

/* Adds ".name" or, if name is NULL, ".index" to the path; flux__trail_back takes it off again.
   The digits are written by hand, as snprintf takes ten times as long and each training step
   walks the model. */
static bool flux__trail_add(flux__trail *t, const char *name, int index) {
    char number[16], *digit = number + sizeof number - 1;
    *digit = 0;
    do *--digit = (char)('0' + index % 10);
    while (index /= 10);
    const char *part = name ? name : digit;
    size_t n = strlen(part);
    char *s = (char *)flux__grow(t->s, &t->capacity, t->length + (int)n + 2, 1);
    if (!s) return false;
    t->s = s;
    if (t->length) s[t->length++] = '.';
    memcpy(s + t->length, part, n + 1);
    t->length += (int)n;
    return true;
}

/* Adds a member's name: that of its field and, for a field of several children, the child's own
   name or else its index. */
static bool flux__trail_member(flux__trail *t, const flux__member *at) {
    return flux__trail_add(t, at->field->name, 0) &&
           (at->field->kind != FLUX__CHILDREN_FIELD ||
            flux__trail_add(t, (*at->layer)->name, at->i));
}

static FLUX__INLINE void flux__trail_back(flux__trail *t, int length) {
    t->length = length;
    if (t->s) t->s[length] = 0;
}

/* Enters layer m; false, with an error, if the nesting is too deep. */
static bool flux__trail_down(flux__trail *t, const flux_layer *m) {
    if (++t->depth <= FLUX_MAX_LEVELS) return true;
    return FLUX__REFUSE("a %s has more than %d layers within layers; does it contain itself?",
                        m->type->name, (int)FLUX_MAX_LEVELS);
}

static FLUX__INLINE bool flux__is_trained(const flux_field *f, const flux_tensor *x) {
    return f->kind == FLUX__PARAM_FIELD && flux__dtypes[x->dtype].real;
}

typedef struct flux__walker {
    flux__field_fn field;                 /* called for each tensor, or NULL */
    void (*layer)(flux_layer *m, void *user); /* called for each layer before its fields, or NULL */
    void *user;
    flux__trail path;
} flux__walker;

static bool flux__walk_layer(flux__walker *w, flux_layer *m) {
    if (!flux__trail_down(&w->path, m)) return false;
    if (w->layer) w->layer(m, w->user);
    FLUX__EACH_MEMBER(at, m) {
        int length = w->path.length;
        if (!flux__trail_member(&w->path, &at)) return false;
        if (at.tensor && w->field)
            w->field(at.tensor, w->path.s, flux__is_trained(at.field, *at.tensor), m, w->user);
        if (!at.tensor && !flux__walk_layer(w, *at.layer)) return false;
        flux__trail_back(&w->path, length);
    }
    w->path.depth--;
    return true;
}

/* Calls `field` for each tensor of a model and `layer` for each layer; either may be NULL. False,
   with an error, if the walk did not come to its end. */
static bool flux__walk_all(const flux_layer *m, flux__field_fn field,
                           void (*layer)(flux_layer *m, void *user), void *user) {
    FLUX__ZEROED(flux__walker, w);
    if (FLUX__GONE("model", m)) return false;
    w.field = field;
    w.layer = layer;
    w.user = user;
    bool done = flux__walk_layer(&w, (flux_layer *)(intptr_t)m);
    flux__free(w.path.s);
    return done;
}

/* Calls f for each field of the model that holds a tensor, in order. False: as flux__walk_all. */
static bool flux__fields(flux_layer *m, flux__field_fn f, void *user) {
    return flux__walk_all(m, f, NULL, user);
}

typedef struct flux__visiting {
    void (*visit)(flux_tensor *x, const char *path, bool trained, void *user);
    void *user;
    flux__hashmap seen;
    bool done;
} flux__visiting;

/* Walk callback of flux__visit_all: passes on a tensor that was not seen before. */
static void flux__visit_once(flux_tensor **slot, const char *path, bool trained,
                             const flux_layer *owner, void *user) {
    flux__visiting *v = (flux__visiting *)user;
    bool fresh = false;
    (void)owner;
    if (!flux__hashmap_at(&v->seen, *slot, &fresh)) v->done = false;
    else if (fresh && v->visit) v->visit(*slot, path, trained, v->user);
}

/* Calls v->visit (or NULL) for each tensor once; afterwards v->seen has all tensors, and the caller
   frees it. False, with an error, if not all could be visited. */
static bool flux__visit_all(flux__visiting *v, const flux_layer *m) {
    memset(&v->seen, 0, sizeof v->seen);
    v->done = true;
    return flux__walk_all(m, flux__visit_once, NULL, v) && v->done;
}

/* Calls `visit` for each tensor once; `call` names the public call in messages. */
static bool flux__visit(const char *call, const flux_layer *m,
                        void (*visit)(flux_tensor *, const char *, bool, void *), void *user) {
    flux__visiting v;
    if (!m || !visit) return flux__null(call, m ? "visit" : "model", NULL), false;
    v.visit = visit;
    v.user = user;
    bool done = flux__visit_all(&v, m);
    flux__hashmap_free(&v.seen);
    return done;
}

FLUX_DEF void flux_visit(const flux_layer *m,
                         void (*visit)(flux_tensor *x, const char *path, bool trained, void *user),
                         void *user) {
    flux__visit("visit", m, visit, user);
}

/* Counts the trained tensors, and the numbers in them; the first `max` tensors go to out. */
typedef struct flux__tally {
    flux_tensor **out;
    int max, count;
    int64_t numbers;
    const flux__hashmap *there;           /* the model's tensors: views of one are not counted */
    bool ties;                            /* there is such a view */
} flux__tally;

/* Counts one tensor, if it is trained and not tied. */
static void flux__tally_one(flux_tensor *x, const char *path, bool trained, void *user) {
    flux__tally *t = (flux__tally *)user;
    (void)path;
    bool tied = flux__is_tie(x) && flux__hashmap_has(t->there, x->base);
    t->ties = t->ties || tied;
    if (!trained || tied) return;
    if (t->out && t->count < t->max) t->out[t->count] = x;
    t->count++;
    t->numbers += flux__size(x);
}

/* Fills in t for a model: a first visit finds all tensors, a second one counts. */
static bool flux__tally_all(const char *call, const flux_layer *m, flux__tally *t) {
    FLUX__ZEROED(flux__visiting, v);
    if (!m) flux__null(call, "model", m);
    bool done = m && flux__visit_all(&v, m);
    t->there = &v.seen;
    done = done && flux__visit(call, m, flux__tally_one, t);
    flux__hashmap_free(&v.seen);
    return done;
}

FLUX_DEF int flux_params(flux_layer *m, flux_tensor **out, int max) {
    flux__tally t = { out, max, 0, 0, NULL, false };
    return flux__tally_all("params", m, &t) ? t.count : -1;
}

FLUX_DEF int64_t flux_num_params(const flux_layer *m) {
    flux__tally t = { NULL, 0, 0, 0, NULL, false };
    return flux__tally_all("num_params", m, &t) ? t.numbers : -1;
}

/* ---------------- one tensor of a model */

/* The search for the tensor at a path. */
typedef struct flux__sought {
    const char *path;
    flux_tensor *found;                   /* the first tensor at that path, or NULL */
    flux_tensor *value;                   /* flux_set_param: the tensor that replaces it */
    char paths[400];                      /* the model's paths, for the message */
    flux__sink have;                      /* writes to .paths */
} flux__sought;

/* Walk callback: looks for a path, and lists the paths of the model for the message. */
static void flux__match_path(flux_tensor **slot, const char *path, bool trained,
                             const flux_layer *owner, void *user) {
    flux__sought *w = (flux__sought *)user;
    (void)trained, (void)owner;
    if (!w->found && strcmp(path, w->path) == 0) w->found = *slot;
    if (w->have.len < 300) flux__putf(&w->have, "%s%.80s", w->have.len ? ", " : "", path);
    else if (w->paths[w->have.len - 1] != '.') flux__put(&w->have, ", ...");
}

/* Finds the tensor at a path; false, with an error, if there is none. */
static bool flux__find_param(const char *call, flux_layer *m, const char *path, flux__sought *w) {
    memset(w, 0, sizeof *w);
    if (!m || !path) return flux__null(call, m ? "path" : "model", NULL), false;
    w->path = path;
    w->have = flux__sink_to(w->paths, sizeof w->paths);
    if (!flux__walk_all(m, flux__match_path, NULL, w)) return false;
    flux__sink_end(&w->have);
    if (!w->found)
        flux__fail("%s: %s has no \"%.80s\"; it has %s", call, m->type->name, path,
                   w->have.len ? w->paths : "no tensors");
    return w->found != NULL;
}

/* A model's tensor for its caller, whose innermost scope owns it too: it stays what it is when the
   model gets another in its place, as at the next flux_update. NULL gives NULL. */
static flux_tensor *flux__handed_out(flux_tensor *x) {
    return x ? (flux_tensor *)flux__own(flux_retain(x)) : NULL;
}

FLUX_DEF flux_tensor *flux_param(flux_layer *m, const char *path) {
    flux__sought w;
    return flux__find_param("param", m, path, &w) ? flux__handed_out(w.found) : NULL;
}

/* hook: flux__show_variable, nn/variables.h */
static void flux__show_variable(const flux_layer *owner);

/* Walk callback of flux_set_param: replaces the tensor found, or a view of it, by the new one. */
static void flux__replace(flux_tensor **slot, const char *path, bool trained,
                          const flux_layer *owner, void *user) {
    flux__sought *w = (flux__sought *)user;
    (void)path, (void)trained;
    flux_tensor *x = *slot, *y = w->value;
    if (x != w->found) y = flux__is_tie(x) && x->base == w->found ? flux__view_like(x, y) : NULL;
    if (y) flux_assign(slot, y);
    if (y) flux__show_variable(owner);
}

/* Replaces the tensor at a path, in every field that holds it, by `value`, which must have its
   shape and is converted to its dtype and device. 0, or -1 on an error. */
FLUX_DEF int flux_set_param(flux_layer *m, const char *path, flux_tensor *value) {
    flux__sought w;
    if (!value) flux__null("set_param", "value", value);
    if (!value || !flux__find_param("set_param", m, path, &w)) return -1;
    if (value->op == FLUX__TUPLE || !flux__same_dims(w.found, value))
        return flux__fail("set_param: %.80s is %s, the value is %s", path,
                          flux__describe(w.found).s,
                          value->op == FLUX__TUPLE ? "a tuple" : flux__describe(value).s), -1;
    const int64_t failures = flux__failures();
    int h = flux__hide();
    /* not flux_to_tensor, which makes float64 float32 on its way to a GPU */
    w.value = flux_to_dtype(value, (flux_dtype)w.found->dtype);
    w.value = w.value ? flux__move(w.value, w.found->device) : NULL;
    flux_retain(w.found);                 /* flux__replace compares with it during the whole walk */
    if (w.value) flux__fields(m, flux__replace, &w);
    flux_release(w.found);
    flux__reveal_object(h, NULL);
    return w.value && !flux__failed_since(failures) ? 0 : -1;
}

/* The tensor field of m called `which`, or NULL; *name is its name in the layer's type. */
static flux_tensor **flux__tensor_named(flux_layer *m, const char *which, const char **name) {
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++) {
        if (!flux__is_tensor_field(f) || strcmp(f->name, which) != 0) continue;
        if (name) *name = f->name;
        return flux__tensor_slot(m, f);
    }
    return NULL;
}

/* The first layer, depth first from m, whose type has a tensor field of this name; *slot is the
   field's address. */
static flux_layer *flux__declares(flux_layer *m, const char *name, flux_tensor ***slot, int depth) {
    flux_layer *found = NULL;
    if ((*slot = flux__tensor_named(m, name, NULL)) != NULL) return m;
    FLUX__EACH_MEMBER(at, m)
        if (!at.tensor && depth < FLUX_MAX_LEVELS && !found)
            found = flux__declares(*at.layer, name, slot, depth + 1);
    return found;
}

/* The first tensor of this field name in a model; the name is also that of the call. */
static flux_tensor *flux__first_of(const char *name, flux_layer *m) {
    flux_tensor **slot = NULL;
    if (!m) return (flux_tensor *)flux__null(name, "model", m);
    flux_layer *owner = flux__declares(m, name, &slot, 0);
    if (owner && *slot) return *slot;
    return (flux_tensor *)flux__fail("%s: %s has none", name, flux__line_of(owner ? owner : m).s);
}

FLUX_DEF flux_tensor *flux_weight(flux_layer *m) {
    return flux__handed_out(flux__first_of("weight", m));
}
FLUX_DEF flux_tensor *flux_bias(flux_layer *m) {
    return flux__handed_out(flux__first_of("bias", m));
}

FLUX_DEF flux_layer *flux_child(flux_layer *m, int i) {
    if (!m) return (flux_layer *)flux__null("child", "model", m);
    if (i < 0) return NULL;
    FLUX__EACH_MEMBER(at, m)
        if (!at.tensor && i-- == 0) return *at.layer;
    return NULL;
}

FLUX__END_LEAN

#endif /* FLUX__NN_WALK_H */
