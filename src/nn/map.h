#ifndef FLUX__NN_MAP_H
#define FLUX__NN_MAP_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "fields.h"
#include "walk.h"

/* ---------------------------------------------------------------------- nn/map.h
   The map: flux__map_model makes a new model whose tensors are the results of a
   function of the old ones. fmap, copies, conversion to another dtype and
   restructure (the reverse of destructure, which makes one vector of all trained
   numbers) are maps; moves to a device use it too (nn/moves.h).

   Invariant: the function is called once for each tensor and each layer is
   cloned once, by identity, so tied tensors stay tied and shared layers shared;
   a view of another field's tensor becomes the same view of the new tensor. The
   old model is not changed, and on an error nothing of the new one is left. If
   `same` is set, a map that changes no tensor returns the very model it was
   given. Moves and conversions record no graph (flux__map_layer); fmap and
   restructure do, so gradients pass through them. Norm layers stay float32 when
   a model becomes f16 or bf16 (FLUX_KEEPS_F32): half formats lose too much of a
   variance. */

FLUX__BEGIN_COLD

typedef flux_tensor *(*flux__map_fn)(flux_tensor *x, const char *path, bool trained,
                                     const flux_layer *owner, void *user);

typedef struct flux__mapping {
    flux__map_fn f;
    void *user;
    bool (*exclude)(flux_layer *m, void *user); /* layers to take over as they are, or NULL */
    void *exclude_user;
    flux__hashmap tensors, layers;        /* maps from old to new */
    flux__visiting there;                 /* .seen: all tensors of the old model */
    flux__trail path;
    bool moves;                           /* the new model takes the old one's place */
    bool changed;                         /* f gave another tensor for some tensor */
} flux__mapping;

/* f's result for x; the first one for a tensor seen before. */
static flux_tensor *flux__map_apply(flux__mapping *p, flux_tensor *x, bool trained,
                                    const flux_layer *owner) {
    bool fresh = false;
    flux__pair *seen = flux__hashmap_at(&p->tensors, x, &fresh);
    if (!seen) return NULL;
    if (!fresh) return (flux_tensor *)seen->value;
    int64_t failures = flux__failures();
    flux_tensor *y = p->f(x, p->path.s, trained, owner, p->user);
    const bool tuple = y && y->op == FLUX__TUPLE;
    if (tuple || (!y && !flux__failed_since(failures)))
        flux__fail("fmap: the function gave %s for %s of %s", tuple ? "a tuple" : "NULL", p->path.s,
                   owner->type->name);
    if (tuple) y = NULL;
    if (y != x) p->changed = true;
    seen = flux__hashmap_at(&p->tensors, x, &fresh);
    if (seen) seen->value = y;
    return y;
}

/* For x, a view of another field's tensor: the same view of that tensor's result or, if that is not
   possible (flux__view_like), f's result for x. */
static flux_tensor *flux__map_view(flux__mapping *p, flux_tensor *x, bool trained,
                                   const flux_layer *owner) {
    flux_tensor *base = flux__map_apply(p, x->base, trained, owner);
    bool fresh = false;
    if (!base || base == x->base) return base ? x : NULL;
    flux__pair *seen = flux__hashmap_at(&p->tensors, x, &fresh);
    if (!seen || !fresh) return seen ? (flux_tensor *)seen->value : NULL;
    int64_t failures = flux__failures();
    flux_tensor *y = flux__view_like(x, base);
    if (!y && !flux__failed_since(failures)) y = p->f(x, p->path.s, trained, owner, p->user);
    return (flux_tensor *)(seen->value = y);
}

/* Puts the new tensor into a field of a clone. */
static bool flux__map_tensor(flux__mapping *p, flux_tensor **slot, bool trained,
                             const flux_layer *owner) {
    flux_tensor *x = *slot;
    bool tied = flux__is_tie(x) && flux__hashmap_has(&p->there.seen, x->base);
    flux_tensor *y =
        tied ? flux__map_view(p, x, trained, owner) : flux__map_apply(p, x, trained, owner);
    if (y) flux_assign(slot, y);
    return y != NULL;
}

static flux_layer *flux__map_one(flux__mapping *p, flux_layer *m);

/* Maps one member of a clone. */
static bool flux__map_member(flux__mapping *p, flux_layer *copy, const flux__member *at) {
    if (!flux__trail_member(&p->path, at)) return false;
    if (at->tensor)
        return flux__map_tensor(p, at->tensor, flux__is_trained(at->field, *at->tensor), copy);
    flux_layer *y = flux__map_one(p, *at->layer);
    if (!y) return false;
    flux_release(*at->layer);
    *at->layer = y;
    return true;
}

/* Copies mode, frozen and name. */
static bool flux__copy_base(flux_layer *to, const flux_layer *from) {
    to->mode = from->mode;
    to->frozen = from->frozen;
    if (from->name) to->name = flux__copy_text(from->name);
    return to->name || !from->name;
}

/* hook: flux__leave_variable, nn/variables.h */
static void flux__leave_variable(flux_layer *copy);

/* The new layer for an old one; the caller owns the reference. */
static flux_layer *flux__map_one(flux__mapping *p, flux_layer *m) {
    bool fresh = false;
    if (p->exclude && p->exclude(m, p->exclude_user)) return (flux_layer *)flux_retain(m);
    flux__pair *seen = flux__hashmap_at(&p->layers, m, &fresh);
    if (!seen || !flux__trail_down(&p->path, m)) return NULL;
    if (!fresh && seen->value) {
        p->path.depth--;
        return (flux_layer *)flux_retain(seen->value);
    }
    flux_layer *y = flux__layer_clone(m->type, m);
    if (y && !p->moves) flux__leave_variable(y);
    bool good = y && flux__copy_base(y, m);
    int length = p->path.length;
    for (flux__member at = { NULL, 0, NULL, NULL }; good && flux__next_member(y, &at);) {
        good = flux__map_member(p, y, &at);
        flux__trail_back(&p->path, length);
    }
    if (good && (seen = flux__hashmap_at(&p->layers, m, &fresh)) != NULL) {
        seen->value = y;
        p->path.depth--;
        return y;
    }
    flux_release(y);
    return NULL;
}

/* A new model with f's results in place of m's tensors, owned by the innermost scope; m itself if
   `same` is set and no tensor has changed. */
static flux_layer *flux__map_model(flux__mapping *p, flux_layer *m, bool same) {
    int h = flux__hide();
    flux_layer *y = NULL;
    p->moves = same;
    if (flux__visit_all(&p->there, m)) y = flux__map_one(p, m);
    flux__hashmap_free(&p->tensors);
    flux__hashmap_free(&p->layers);
    flux__hashmap_free(&p->there.seen);
    flux__free(p->path.s);
    flux_layer *out = (flux_layer *)flux__reveal_object(h, y && same && !p->changed ? NULL : y);
    if (y) flux_release(y);               /* flux__reveal_object holds a reference of its own */
    return y && same && !p->changed ? m : out;
}

typedef struct flux__fmap_args { flux_fn fn; flux_fmap_fn with; void *user; } flux__fmap_args;

static flux_tensor *flux__fmap_call(flux_tensor *x, const char *path, bool trained,
                                    const flux_layer *owner, void *user) {
    flux__fmap_args *a = (flux__fmap_args *)user;
    (void)trained, (void)owner;
    return a->fn ? a->fn(x) : a->with(x, path, a->user);
}

/* flux_fmap and flux_fmap_with: `a` has the function, of either type. */
static flux_layer *flux__fmap(flux__fmap_args a, flux_layer *m,
                              bool (*exclude)(flux_layer *, void *), bool same) {
    FLUX__ZEROED(flux__mapping, p);
    if (!m || (!a.fn && !a.with)) return (flux_layer *)flux__null("fmap", m ? "f" : "model", NULL);
    p.f = flux__fmap_call;
    p.user = &a;
    p.exclude = exclude;
    p.exclude_user = a.user;
    return flux__map_model(&p, m, same);
}

FLUX_DEF flux_layer *flux_fmap(flux_fn f, flux_layer *m) {
    flux__fmap_args a = { f, NULL, NULL };
    return flux__fmap(a, m, NULL, false);
}

FLUX_DEF flux_layer *flux_mapleaves(flux_fn f, flux_layer *m) { return flux_fmap(f, m); }

FLUX_DEF flux_layer *flux_fmap_with(flux_fmap_fn f, void *user, flux_layer *m,
                                    bool (*exclude)(flux_layer *, void *user)) {
    flux__fmap_args a = { NULL, f, user };
    return flux__fmap(a, m, exclude, false);
}

/* A map that records no graph, for moves and copies: the new tensors do not depend
   on the old ones. */
static flux_layer *flux__map_layer(flux_fmap_fn f, void *user, flux_layer *m,
                                   bool same_if_unchanged) {
    flux__fmap_args a = { NULL, f, user };
    const int b = flux__nograd_enter();
    flux_layer *y = flux__fmap(a, m, NULL, same_if_unchanged);
    flux__nograd_leave(b);
    return y;
}

static flux_tensor *flux__copy_leaf(flux_tensor *x, const char *path, void *user) {
    (void)path, (void)user;
    return flux_copy(x);
}

FLUX_DEF flux_layer *flux_copy_layer(flux_layer *m) {
    return m ? flux__map_layer(flux__copy_leaf, NULL, m, false)
             : (flux_layer *)flux__null("copy_layer", "model", m);
}

/* x in the dtype *user: floating tensors only, and layers that keep float32 get it instead of a
   half format. */
static flux_tensor *flux__convert_leaf(flux_tensor *x, const char *path, bool trained,
                                       const flux_layer *owner, void *user) {
    flux_dtype want = *(flux_dtype *)user;
    (void)path, (void)trained;
    if (!flux__dtypes[x->dtype].real) return x;
    if (flux__is_half((int)want) && (owner->type->traits & FLUX_KEEPS_F32)) want = FLUX_F32;
    return flux_to_dtype(x, want);
}

static flux_layer *flux__convert_layer(const char *call, flux_layer *m, flux_dtype t) {
    FLUX__ZEROED(flux__mapping, p);
    if (!m) return (flux_layer *)flux__null(call, "model", m);
    p.f = flux__convert_leaf;
    p.user = &t;
    const int b = flux__nograd_enter();
    flux_layer *y = flux__map_model(&p, m, false);
    flux__nograd_leave(b);
    return y;
}

FLUX_DEF flux_layer *flux_f16(flux_layer *m) { return flux__convert_layer("f16", m, FLUX_F16); }
FLUX_DEF flux_layer *flux_bf16(flux_layer *m) { return flux__convert_layer("bf16", m, FLUX_BF16); }
FLUX_DEF flux_layer *flux_f32(flux_layer *m) { return flux__convert_layer("f32", m, FLUX_F32); }
FLUX_DEF flux_layer *flux_f64(flux_layer *m) { return flux__convert_layer("f64", m, FLUX_F64); }

/* ---------------- all trained numbers as one vector */

/* All trained tensors of a model, for destructure and restructure. */
typedef struct flux__flat {
    flux_tensor **part;                   /* the trained tensors, later what replaces them */
    int count;
    int64_t total;
    flux_dtype dtype;
    bool ties;                            /* some tensor is a view of another one of the model */
    flux__hashmap where;                  /* a trained tensor's index + 1 */
} flux__flat;

static void flux__flat_free(flux__flat *f) {
    flux__free(f->part);
    flux__hashmap_free(&f->where);
}

/* Lists the trained tensors of m in the order of the walk; their common dtype is
   the promoted one. */
static bool flux__flat_make(flux__flat *f, flux_layer *m) {
    flux__tally t = { NULL, 0, 0, 0, NULL, false };
    memset(f, 0, sizeof *f);
    if (!flux__tally_all("destructure", m, &t)) return false;
    f->count = t.count;
    f->ties = t.ties;
    f->part = (flux_tensor **)flux__malloc((size_t)f->count * sizeof *f->part);
    if (!f->part || flux_params(m, f->part, f->count) != f->count) return false;
    for (int i = 0; i < f->count; i++) {
        bool fresh;
        flux__pair *p = flux__hashmap_at(&f->where, f->part[i], &fresh);
        if (!p) return false;
        p->value = (void *)(intptr_t)(i + 1);
        f->total += flux__size(f->part[i]);
        f->dtype = i ? flux__promote(f->dtype, (flux_dtype)f->part[i]->dtype)
                     : (flux_dtype)f->part[i]->dtype;
    }
    return true;
}

/* All trained numbers of m as one vector; gradients pass through it. */
FLUX_DEF flux_tensor *flux_destructure(flux_layer *m) {
    flux__flat f;
    if (!m) return (flux_tensor *)flux__null("destructure", "model", m);
    int h = flux__hide();
    flux_tensor *y = NULL;
    if (flux__flat_make(&f, m)) {
        for (int i = 0; i < f.count; i++) {
            int64_t n = flux__size(f.part[i]);
            f.part[i] = flux_reshape_with(flux_to_dtype(f.part[i], f.dtype), flux__shape(&n, 1));
        }
        y = f.count ? flux__cat_many(0, f.count, f.part)
                    : flux_full_with(flux__shape(&f.total, 1), 0.0, FLUX_F32);
    }
    flux__flat_free(&f);
    return flux__reveal(h, y);
}

/* The slice that replaces a trained tensor; any other tensor stays. */
static flux_tensor *flux__flat_piece(flux_tensor *x, const char *path, bool trained,
                                     const flux_layer *owner, void *user) {
    flux__flat *f = (flux__flat *)user;
    (void)path, (void)trained, (void)owner;
    intptr_t i = (intptr_t)flux__hashmap_get(&f->where, x);
    return i ? f->part[i - 1] : x;
}

/* A model like m whose trained tensors are slices of `flat`, in the order of destructure. */
FLUX_DEF flux_layer *flux_restructure(flux_layer *m, flux_tensor *flat) {
    flux__flat f;
    FLUX__ZEROED(flux__mapping, p);
    if (!m || !flat) return (flux_layer *)flux__null("restructure", m ? "flat" : "model", NULL);
    p.f = flux__flat_piece;
    p.user = &f;
    int h = flux__hide();
    bool good = flux__flat_make(&f, m);
    if (good && (flat->op == FLUX__TUPLE || flat->ndim != 1 || flat->dim[0] != f.total)) {
        flux__fail("restructure: the model has %lld trained numbers, flat is %s",
                   (long long)f.total,
                   flat->op == FLUX__TUPLE ? "a tuple" : flux__describe(flat).s);
        good = false;
    }
    int64_t at = 0;
    for (int i = 0; good && i < f.count; i++) {
        flux_shape s = flux__dims(f.part[i]);
        int64_t n = flux__size(f.part[i]);
        f.part[i] = flux_to_dtype(flux_reshape_with(flux_slice(flat, 0, at, at + n), s),
                                  (flux_dtype)f.part[i]->dtype);
        if (f.ties) f.part[i] = flux_copy(f.part[i]); /* tied views need a base that is no view */
        at += n;
        good = f.part[i] != NULL;
    }
    flux_layer *y = good ? flux__map_model(&p, m, false) : NULL;
    flux__flat_free(&f);
    return (flux_layer *)flux__reveal_object(h, y);
}

FLUX__END_COLD

#endif /* FLUX__NN_MAP_H */
