#ifndef FLUX__NN_FIELDS_H
#define FLUX__NN_FIELDS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/views.h"

/* ---------------------------------------------------------------------- nn/fields.h
   Layers and their fields. A layer is a struct that starts with a flux_layer,
   and a list that names its fields: parameters, state, children. Every operation
   on a model other than its call is a walk over those fields (nn/walk.h: visit,
   params, freeze, modes, save, count) or a map (nn/map.h), which clones each
   layer and puts other tensors into the clone's fields (fmap, gpu, f16, copy,
   restructure).

   Invariant: a layer owns one reference to each object that its fields hold, and
   it owns the memory of its arrays of children and of its name. Walk and map go
   depth first in the order of the fields, so a model's tensors have one order
   everywhere. A map handles each tensor and each layer once, by identity:
   objects that were shared stay shared. A view of another field's tensor, such
   as the transpose W' of W, is tied to it (flux__is_tie).

   Rejected: a virtual table of clone, walk and free functions for each layer
   (every user's layer would have to write them), and building a new model by
   calling constructors (fields that nobody named would be lost). */

FLUX__BEGIN_LEAN

typedef void (*flux__field_fn)(flux_tensor **slot, const char *path, bool trained,
                               const flux_layer *owner, void *user);

/* ---------------- one-line forms of layers */

/* A layer as one line of text, as it is printed; what is too long is cut off. */
typedef struct flux__words { char s[400]; } flux__words;

static flux__words flux__line_of(flux_layer *m) {
    flux__words l;
    if (m->type->text) m->type->text(m, l.s, sizeof l.s);
    else snprintf(l.s, sizeof l.s, "%s", m->type->name);
    l.s[sizeof l.s - 1] = 0;
    return l;
}

/* ---------------- fields */

static flux_tensor **flux__tensor_slot(flux_layer *m, const flux_field *f) {
    return (flux_tensor **)(void *)((char *)m + f->offset);
}

static bool flux__is_tensor_field(const flux_field *f) {
    return f->kind == FLUX__PARAM_FIELD || f->kind == FLUX__STATE_FIELD;
}

/* The array of layers that a field holds, and their number *n (0 if the field holds a tensor). */
static flux_layer **flux__kids(const flux_layer *m, const flux_field *f, int *n) {
    char *at = (char *)(intptr_t)m;
    *n = f->kind == FLUX__CHILD_FIELD      ? 1
         : f->kind == FLUX__CHILDREN_FIELD ? *(int *)(void *)(at + f->count)
                                           : 0;
    if (f->kind == FLUX__CHILDREN_FIELD) return *(flux_layer ***)(void *)(at + f->offset);
    return (flux_layer **)(void *)(at + f->offset);
}

/* A tensor or a child of a layer: where the layer's struct holds it. */
typedef struct flux__member {
    const flux_field *field;              /* NULL before the first member */
    int i;                                /* which of the field's children it is */
    flux_tensor **tensor;                 /* NULL if it is a child */
    flux_layer **layer;                   /* the child; meaningless if it is a tensor */
} flux__member;

/* Goes on to the next member that is not NULL, in the order of the fields; false after the last. */
static bool flux__next_member(flux_layer *m, flux__member *at) {
    if (at->field) at->i++;
    else at->field = m->type->fields;
    for (; at->field->kind != FLUX__END; at->field++, at->i = 0) {
        int n;
        flux_layer **kids = flux__kids(m, at->field, &n);
        at->tensor = flux__is_tensor_field(at->field) ? flux__tensor_slot(m, at->field) : NULL;
        if (at->tensor && at->i == 0 && *at->tensor) return true;
        for (; at->i < n; at->i++)
            if (*(at->layer = kids + at->i)) return true;
    }
    return false;
}
/* Runs what follows for each member of layer m. */
#define FLUX__EACH_MEMBER(at, m) \
    for (flux__member at = { NULL, 0, NULL, NULL }; flux__next_member(m, &at);)

/* Whether x is a view of another tensor's elements, such as the transpose W' of W: if a model holds
   both, they are tied. */
static bool flux__is_tie(const flux_tensor *x) {
    return FLUX__IS_VIEW(x) && x->op != FLUX__DETACH && x->op != FLUX__CONV &&
           x->op != FLUX__ATTENTION && x->op != FLUX__CUSTOM;
}

/* The view of `base` that x is of its own base, for a tensor `base` of the same shape; NULL if it
   is not of that shape or not contiguous. */
static flux_tensor *flux__view_like(flux_tensor *x, flux_tensor *base) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x), all = flux__dims(base);
    flux_tensor *root = flux__layout(base, &offset, stride);
    if (!flux__same_dims(base, x->base) || !flux__in_order(&all, stride)) return NULL;
    return flux__as_strided(base, &s, x->offset, x->stride, offset + x->offset, x->stride, root);
}

/* Frees a layer: releases what its fields hold, its arrays of children and its name. */
static void flux__layer_free(flux_layer *m) {
    int n;
    FLUX__EACH_MEMBER(at, m) flux_release(at.tensor ? (void *)*at.tensor : (void *)*at.layer);
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++)
        if (f->kind == FLUX__CHILDREN_FIELD) flux__free(flux__kids(m, f, &n));
    flux__free(m->name);
    flux__quarantine(m);
}

/* Makes m's levels at least one more than those of its child; false, with an error, above
   FLUX_MAX_LEVELS, which bounds the depth of every recursion over a model. */
static bool flux__take_levels(flux_layer *m, const flux_layer *kid) {
    if (kid && kid->levels >= m->levels) m->levels = (short)(kid->levels + 1);
    return m->levels <= FLUX_MAX_LEVELS || FLUX__REFUSE("%s: more than %d layers within layers",
                                                        m->type->name, (int)FLUX_MAX_LEVELS);
}

/* Copies one field of the struct `from` into m, with a reference to each object and an array of
   children of its own. The field of m must be NULL. */
static bool flux__take_field(flux_layer *m, const void *from, const flux_field *f) {
    int n;
    flux_layer **kids = flux__kids((const flux_layer *)from, f, &n);
    if (flux__is_tensor_field(f)) {
        flux_assign(flux__tensor_slot(m, f), *flux__tensor_slot((flux_layer *)(intptr_t)from, f));
        return true;
    }
    if (f->kind == FLUX__CHILD_FIELD) {
        memcpy((char *)m + f->offset, &kids[0], sizeof kids[0]);
        flux_retain(kids[0]);
        return flux__take_levels(m, kids[0]);
    }
    flux_layer **own = n > 0 ? (flux_layer **)flux__malloc((size_t)n * sizeof *own) : NULL;
    if (n > 0 && !own) return false;
    for (int i = 0; i < n; i++) own[i] = (flux_layer *)flux_retain(kids[i]);
    memcpy((char *)m + f->offset, &own, sizeof own);
    memcpy((char *)m + f->count, &n, sizeof n);
    for (int i = 0; i < n; i++)
        if (!flux__take_levels(m, own[i])) return false;
    return true;
}

/* A new layer with the fields of the struct `from`; the caller owns the one reference. */
static flux_layer *flux__layer_clone(const flux_layer_type *type, const void *from) {
    static const flux_layer blank = { { FLUX__LAYER, 0, 1 }, NULL, FLUX_MODE_AUTO, false, 1, NULL };
    flux_layer *m = (flux_layer *)flux__malloc(type->size);
    if (!m) return NULL;
    memcpy(m, from, type->size);
    *m = blank;
    m->type = type;
    for (const flux_field *f = type->fields; f->kind != FLUX__END; f++) {
        memset((char *)m + f->offset, 0, sizeof(void *));
        if (f->kind == FLUX__CHILDREN_FIELD) memset((char *)m + f->count, 0, sizeof(int));
    }
    for (const flux_field *f = type->fields; f->kind != FLUX__END; f++)
        if (!flux__take_field(m, from, f)) {
            flux__layer_free(m);
            return NULL;
        }
    return m;
}

/* The same, owned by the innermost scope; the fields have been checked. */
static flux_layer *flux__layer_new(const flux_layer_type *type, const void *fields) {
    flux_layer *m = flux__layer_clone(type, fields);
    return m ? (flux_layer *)flux__own(m) : NULL;
}

/* Checks one field of a struct that was given to flux_new_with. A NULL field is good if the user
   left it out, and bad if it is the result of a call that failed (flux__null_explained). */
static bool flux__check_field(const flux_layer_type *type, const void *fields,
                              const flux_field *f) {
    int n;
    flux_layer **kids = flux__kids((const flux_layer *)fields, f, &n);
    const void *one = *(void *const *)(const void *)((const char *)fields + f->offset);
    if (f->kind != FLUX__CHILDREN_FIELD) {
        int kind = flux__is_tensor_field(f) ? FLUX__TENSOR : FLUX__LAYER;
        if (!one) return !flux__null_explained();
        if (((const flux__head *)one)->kind == kind) return true;
        if (((const flux__head *)one)->kind == FLUX__FREED) return !flux__gone("new", one);
        return FLUX__REFUSE("new: the field %s of %s is not a %s", f->name, type->name,
                            kind == FLUX__TENSOR ? "tensor" : "layer");
    }
    if (n < 0 || (n > 0 && !kids))
        return FLUX__REFUSE("new: the field %s of %s says that it has %d layers, and %s", f->name,
                            type->name, n, kids ? "has some" : "has none");
    for (int i = 0; i < n; i++) {
        if (kids[i] && kids[i]->head.kind == FLUX__LAYER) continue;
        return (kids[i] || !flux__null_explained()) &&
               FLUX__REFUSE("new: %s[%d] of %s is %s", f->name, i, type->name,
                            kids[i] ? "not a layer" : "NULL");
    }
    return true;
}

FLUX_DEF flux_layer *flux_new_with(const flux_layer_type *type, const void *fields) {
    if (!type || !fields) return (flux_layer *)flux__null("new", type ? "fields" : "type", NULL);
    if (!type->call || !type->fields || !type->name || type->size < sizeof(flux_layer))
        return (flux_layer *)flux__fail(
            "new: the description of the layer lacks its name, call function, fields or size");
    for (const flux_field *f = type->fields; f->kind != FLUX__END; f++)
        if (!flux__check_field(type, fields, f)) return NULL;
    return flux__layer_new(type, fields);
}

/* Whether a layer is a function that prints as a bare name: softmax, + */
static bool flux__bare_function(const flux_layer *m) {
    char text[64];
    if (!m->type->text || m->type->fields->kind != FLUX__END) return false;
    size_t n = m->type->text((flux_layer *)(intptr_t)m, text, sizeof text);
    return n < sizeof text && !strchr(text, '(');
}

/* Whether a layer prints as one line: it has a text function, or all its children are functions. */
static bool flux__one_line(flux_layer *m) {
    if (m->type->text) return true;
    FLUX__EACH_MEMBER(at, m)
        if (!at.tensor && !flux__bare_function(*at.layer)) return false;
    return true;
}

FLUX__END_LEAN

#endif /* FLUX__NN_FIELDS_H */
