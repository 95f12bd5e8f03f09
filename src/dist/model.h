#ifndef FLUX__DIST_MODEL_H
#define FLUX__DIST_MODEL_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../schedule/looking.h"
#include "../nn/map.h"
#include "../nn/adjust.h"
#include "../nn/loops.h"
#include "comm.h"
#include "collectives.h"

/* ---------------------------------------------------------------------- dist/model.h
   flux_synchronize: gives every rank the numbers of one of them, for a tensor, a
   model or an optimiser's state. flux_distributed_save: one rank writes, all
   learn how it went.

   Invariant: the tensors are broadcast in the order of the walk, each computed at
   once, so that the new object holds plain values with memory of their own. Ties
   stay ties. If a broadcast fails, nothing of the new object is left. */

FLUX__BEGIN_COLD

typedef struct flux__sync { flux_comm *c; flux_root_opts o; bool failed; } flux__sync;

/* The root's numbers for x, in memory of their own. */
static flux_tensor *flux__sync_tensor(flux__sync *f, flux_tensor *x) {
    int h = flux__hide();
    flux_tensor *y = flux_broadcast_with(f->c, x, f->o);
    if (y && y != x && y->op != FLUX__TUPLE) y = flux_copy(y);
    y = flux__reveal(h, y);
    return y ? flux_eval(y) : NULL;
}

static flux_tensor *flux__sync_leaf(flux_tensor *x, const char *path, void *user) {
    (void)path;
    return flux__sync_tensor((flux__sync *)user, x);
}

static void flux__sync_slot(flux_tensor **slot, const char *path, bool trained,
                            const flux_layer *owner, void *user) {
    flux__sync *f = (flux__sync *)user;
    (void)path, (void)trained, (void)owner;
    if (f->failed) return;
    int h = flux__hide();
    flux_tensor *y = flux__sync_tensor(f, *slot);
    if (y) flux_assign(slot, y);
    else f->failed = true;
    flux__reveal_object(h, NULL);
}

FLUX_DEF flux_tensor *flux_synchronize_tensor(flux_comm *c, flux_tensor *x, flux_root_opts o) {
    flux__sync f = { c, o, false };
    if (!flux__check_collective("synchronize", c, x, FLUX_SUM, o.root)) return NULL;
    return flux__sync_tensor(&f, x);
}

FLUX_DEF flux_layer *flux_synchronize_layer(flux_comm *c, flux_layer *m, flux_root_opts o) {
    flux__sync f = { c, o, false };
    if (!m) return (flux_layer *)flux__null("synchronize", "model", m);
    if (!flux__check_root("synchronize", c, o.root)) return NULL;
    return c->size == 1 ? m : flux__map_layer(flux__sync_leaf, &f, m, true);
}

FLUX_DEF flux_state *flux_synchronize_state(flux_comm *c, flux_state *s, flux_root_opts o) {
    flux__sync f = { c, o, false };
    if (!s) return (flux_state *)flux__null("synchronize", "state", s);
    if (!flux__check_root("synchronize", c, o.root)) return NULL;
    if (c->size == 1) return s;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    flux_state *copy = flux__state_copy(s);
    if (copy) flux__state_fields(copy, flux__sync_slot, &f);
    flux__nograd_leave(b);
    return (flux_state *)flux__reveal_object(h, f.failed ? NULL : copy);
}

#define FLUX__DISTRIBUTED_SAVE(T, kind)                                                            \
    FLUX_DEF int flux_distributed_save_##kind(flux_comm *c, T *x, const char *path) {              \
        if (!flux__is_comm("distributed_save", c)) return -1;                                      \
        return flux__saved_by_root(c, c->rank == 0 ? flux_save_##kind(x, path) : 0);               \
    }
FLUX__DISTRIBUTED_SAVE(flux_tensor, tensor)
FLUX__DISTRIBUTED_SAVE(flux_layer, layer)
FLUX__DISTRIBUTED_SAVE(flux_state, state)

FLUX__END_COLD

#endif /* FLUX__DIST_MODEL_H */
