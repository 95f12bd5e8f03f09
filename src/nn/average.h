#ifndef FLUX__NN_AVERAGE_H
#define FLUX__NN_AVERAGE_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "fields.h"
#include "walk.h"
#include "map.h"
#include "variables.h"
#include "model.h"
#include "moves.h"

/* ---------------------------------------------------------------------- nn/average.h
   From one model into another of the same kind: flux_loadmodel copies, and an
   averaged model (flux_averaged) takes in a share. The averaged model is a layer
   with a copy of the model as its child, so it is called, moved, saved, loaded
   and printed as any other.

   Invariant: both models have the same paths and shapes, or nothing changes: all
   new tensors are recorded, computed together, and only then stored, as in an
   update. Ties of the changed model stay ties. The count of updates is a tensor,
   so that it is saved, and never looked at here: an update queues work on a
   device and waits for none. Averages of half formats are float32, in which a
   thousandth of a number is not lost. */

FLUX__BEGIN_COLD

/* What a field becomes: `to` is its tensor now, `from` that of the other model. */
typedef flux_tensor *(*flux__blend_fn)(flux_tensor *to, flux_tensor *from, bool trained,
                                       void *user);

typedef struct flux__two_fields {
    flux_tensor **slot, *from, *fresh;
    const flux_layer *owner;              /* whose field the slot is */
    uint64_t path;                        /* a hash of it */
    bool trained;
} flux__two_fields;

typedef struct flux__two_models {
    const char *call;
    flux__two_fields *at;
    int n, capacity, met;
    bool bad;
} flux__two_models;

static uint64_t flux__path_hash(const char *path) {
    uint64_t h = UINT64_C(14695981039346656037);               /* FNV-1a */
    for (; *path; path++) h = (h ^ (unsigned char)*path) * UINT64_C(1099511628211);
    return h;
}

/* Walk callback over the model that is changed: lists its fields. */
static void flux__two_open(flux_tensor **slot, const char *path, bool trained,
                            const flux_layer *owner, void *user) {
    flux__two_models *w = (flux__two_models *)user;
    flux__two_fields *at = w->bad ? NULL
        : (flux__two_fields *)flux__one_more(&w->at, &w->capacity, w->n, sizeof *at);
    w->bad = !at;
    if (!at) return;
    w->n++;
    at->slot = slot, at->owner = owner, at->from = at->fresh = NULL;
    at->path = flux__path_hash(path);
    at->trained = trained;
}

/* Walk callback over the other model: each field must be the next of the list. */
static void flux__two_meet(flux_tensor **slot, const char *path, bool trained,
                            const flux_layer *owner, void *user) {
    flux__two_models *w = (flux__two_models *)user;
    flux__two_fields *at = w->met < w->n ? &w->at[w->met] : NULL;
    (void)owner, (void)trained;
    if (w->bad) return;
    w->met++;
    if (!at || at->path != flux__path_hash(path))
        flux__fail("%s: the one model has %.100s, where the other has another field or none",
                   w->call, path);
    else if (!flux__same_dims(*at->slot, *slot))
        flux__fail("%s: %.100s is %s in the one model and %s in the other", w->call, path,
                   flux__describe(*at->slot).s, flux__describe(*slot).s);
    else {
        at->from = *slot;
        return;
    }
    w->bad = true;
}

/* What field number i gets, which holds the tensor of an earlier one, or a view of another's: the
   same, or the same view of the new one. NULL: there is none, as yet. *bad: an error. */
static flux_tensor *flux__two_tied(flux__two_models *w, flux__hashmap *first, int i, bool *bad) {
    flux_tensor *x = *w->at[i].slot;
    const int k = (int)(intptr_t)flux__hashmap_get(first, x) - 1;
    if (k < i) {
        *bad = w->at[k].from != w->at[i].from && !flux__is_tie(w->at[i].from);
        if (*bad) flux__fail("%s: tensors are tied in the one model and not in the other", w->call);
        return w->at[k].fresh;
    }
    flux_tensor *base = w->at[(int)(intptr_t)flux__hashmap_get(first, x->base) - 1].fresh;
    return base ? flux__view_like(x, base) : NULL;
}

/* Records all new tensors: those of their own first, then those that are tied to one. */
static bool flux__two_record(flux__two_models *w, flux__blend_fn blend, void *user) {
    FLUX__ZEROED(flux__hashmap, first);
    const int64_t failures = flux__failures();
    bool bad = false, fresh;
    for (int i = 0; i < w->n && !bad; i++) {
        flux__pair *p = flux__hashmap_at(&first, *w->at[i].slot, &fresh);
        if (!p) bad = true;
        else if (fresh) p->value = (void *)(intptr_t)(i + 1);
    }
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < w->n && !bad; i++) {
            flux__two_fields *at = &w->at[i];
            flux_tensor *x = *at->slot;
            const bool tied = (int)(intptr_t)flux__hashmap_get(&first, x) - 1 < i ||
                              (flux__is_tie(x) && flux__hashmap_has(&first, x->base));
            if (tied != (turn == 1)) continue;
            at->fresh = tied ? flux__two_tied(w, &first, i, &bad) : NULL;
            if (!at->fresh && !bad) at->fresh = blend(x, at->from, at->trained, user);
            bad = bad || !at->fresh || flux__failed_since(failures);
        }
    flux__hashmap_free(&first);
    return !bad;
}

/* Computes all new tensors, with `more` if that is not NULL, and stores them. */
static bool flux__two_store(flux__two_models *w, flux_tensor *more) {
    flux_tensor **all = (flux_tensor **)flux__malloc((size_t)(w->n + 1) * sizeof *all);
    int n = 0;
    for (int i = 0; i < w->n && all; i++) all[n++] = w->at[i].fresh;
    if (all && more) all[n++] = more;
    const bool good = all && flux_eval_all(n, all) == 0;
    for (int i = 0; i < w->n && good; i++) {
        flux_assign(w->at[i].slot, w->at[i].fresh);
        flux__show_variable(w->at[i].owner);
    }
    flux__free(all);
    return good;
}

/* Changes all tensors of `to` by those of `from`, or none. */
static bool flux__blend_models(const char *call, flux_layer *to, flux_layer *from,
                               flux__blend_fn blend, void *user, flux_tensor *more) {
    FLUX__ZEROED(flux__two_models, w);
    w.call = call;
    const int b = flux__nograd_enter();
    bool good = flux__walk_all(to, flux__two_open, NULL, &w) &&
                flux__walk_all(from, flux__two_meet, NULL, &w) && !w.bad;
    if (good && w.met < w.n)
        good = FLUX__REFUSE("%s: the one model has more tensors than the other: %d and %d", call,
                            w.n, w.met);
    good = good && flux__two_record(&w, blend, user) && flux__two_store(&w, more);
    flux__nograd_leave(b);
    flux__free(w.at);
    return good;
}

/* x in the dtype and on the device of `like`, in memory of its own. */
static flux_tensor *flux__copied_like(flux_tensor *x, const flux_tensor *like) {
    x = flux_to_dtype(flux_detach(x), (flux_dtype)like->dtype);
    return x ? flux_copy(flux_to_tensor(like->device, x)) : NULL;
}

static flux_tensor *flux__blend_copy(flux_tensor *to, flux_tensor *from, bool trained,
                                     void *user) {
    (void)trained, (void)user;
    return flux__copied_like(from, to);
}

FLUX_DEF int flux_loadmodel(flux_layer *dst, flux_layer *src) {
    if (!dst || !src) return flux__null("loadmodel", dst ? "src" : "dst", NULL), -1;
    if (FLUX__GONE("loadmodel", dst) || FLUX__GONE("loadmodel", src)) return -1;
    if (dst == src) return 0;
    int h = flux__hide();
    const bool good = flux__blend_models("loadmodel", dst, src, flux__blend_copy, NULL, NULL);
    flux__reveal_object(h, NULL);
    return good ? 0 : -1;
}

/* ---------------- averages */

typedef struct flux__averaged {
    flux_layer base;
    flux_layer *model;
    flux_tensor *count;                   /* updates so far, a float64 number */
    double decay;
    bool equal;
} flux__averaged;

static flux_tensor *flux__averaged_call(flux_layer *self, flux_tensor *x) {
    return flux_call_layer(((flux__averaged *)self)->model, x);
}
FLUX_LAYER(flux__averaged, "Averaged", flux__averaged_call, FLUX_CHILD(model), FLUX_STATE(count))

static flux_tensor *flux__average_leaf(flux_tensor *x, const char *path, bool trained,
                                       const flux_layer *owner, void *user) {
    (void)path, (void)owner, (void)user;
    return trained && flux__is_half(x->dtype) ? flux_to_dtype(x, FLUX_F32) : flux_copy(x);
}

FLUX_DEF flux_layer *flux_averaged_with(flux_averaged_opts o) {
    FLUX__ZEROED(flux__averaged, m);
    FLUX__ZEROED(flux__mapping, p);
    if (!o.model || FLUX__GONE("averaged", o.model))
        return (flux_layer *)flux__null("averaged", "model", o.model);
    m.equal = o.equal;
    m.decay = flux__given(o.decay, o.marked, 0.999);
    if (o.equal && flux__is_given(o.decay, o.marked))
        return (flux_layer *)flux__fail("averaged: .decay and .equal are two kinds of average");
    if (!(m.decay >= 0 && m.decay < 1))
        return (flux_layer *)flux__fail("averaged: .decay is %g, but must be from 0 to below 1",
                                        m.decay);
    int h = flux__hide();
    const int b = flux__nograd_enter();
    p.f = flux__average_leaf;
    m.model = flux__map_model(&p, o.model, false);
    const flux_device d = flux_device_of_layer(o.model);
    const bool placed = m.model && d.backend >= 0;
    m.count = placed ? flux__move(flux_full_with(flux__shape(NULL, 0), 0, FLUX_F64), d) : NULL;
    m.count = m.count ? flux_eval(flux_copy(m.count)) : NULL;
    flux_layer *y = m.count ? flux__layer_new(flux__averaged_type(), &m) : NULL;
    flux__nograd_leave(b);
    return (flux_layer *)flux__reveal_object(h, y);
}

/* a + (p - a) w of what is trained, and p at the first update; the rest is copied. */
static flux_tensor *flux__blend_average(flux_tensor *to, flux_tensor *from, bool trained,
                                        void *user) {
    const flux__averaged *m = (const flux__averaged *)user;
    if (!trained) return flux__copied_like(from, to);
    const flux_dtype t = (flux_dtype)to->dtype;
    flux_tensor *p = flux_to_dtype(flux_detach(from), t),
        *count = flux_to_tensor(to->device, m->count),
        *share = m->equal ? flux_to_dtype(flux_div(1.0, flux_add(count, 1.0)), t) : NULL;
    if (!p || !count) return NULL;
    flux_tensor *part = m->equal ? flux_mul(flux_sub(p, to), share)
                                 : flux_mul(flux_sub(p, to), 1 - m->decay);
    return flux_where(flux_eq(count, 0.0), p, flux_add(to, part));
}

FLUX_DEF int flux_update_average(flux_layer *averaged, flux_layer *model) {
    if (!averaged || !model)
        return flux__null("update_average", averaged ? "model" : "averaged", NULL), -1;
    if (FLUX__GONE("update_average", averaged) || FLUX__GONE("update_average", model)) return -1;
    if (averaged->type != flux__averaged_type())
        return flux__fail("update_average: %s is no averaged model; flux_averaged makes one",
                          averaged->type->name), -1;
    flux__averaged *m = (flux__averaged *)averaged;
    int h = flux__hide();
    flux_tensor *count = flux_detach(flux_add(m->count, 1.0));
    const bool good = count && flux__blend_models("update_average", m->model, model,
                                                  flux__blend_average, m, count);
    if (good) flux_assign(&m->count, count);
    flux__reveal_object(h, NULL);
    return good ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__NN_AVERAGE_H */
