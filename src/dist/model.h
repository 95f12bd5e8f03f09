#ifndef FLUX__DIST_MODEL_H
#define FLUX__DIST_MODEL_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "../nn/map.h"
#include "../nn/state.h"
#include "../nn/adjust.h"
#include "../nn/loops.h"
#include "../files/tensors.h"
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

typedef struct flux__sync {
    flux_comm *c;
    flux_root_opts o;
    bool failed;
    const flux_state *state;              /* the copy of a state that is filled, or NULL */
} flux__sync;

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
    if (f->failed || flux__shared_leaf(f->state, slot) >= 0) return;
    int h = flux__hide();
    flux_tensor *y = flux__sync_tensor(f, *slot);
    if (y) flux_assign(slot, y);
    else f->failed = true;
    flux__reveal_object(h, NULL);
}

FLUX_DEF flux_tensor *flux_synchronize_tensor(flux_comm *c, flux_tensor *x, flux_root_opts o) {
    flux__sync f = { c, o, false, NULL };
    if (!flux__check_collective("synchronize", c, x, FLUX_SUM, o.root)) return NULL;
    return c->size == 1 ? x : flux__sync_tensor(&f, x);
}

FLUX_DEF flux_layer *flux_synchronize_layer(flux_comm *c, flux_layer *m, flux_root_opts o) {
    flux__sync f = { c, o, false, NULL };
    if (!m) return (flux_layer *)flux__null("synchronize", "model", m);
    if (!flux__check_root("synchronize", c, o.root)) return NULL;
    return c->size == 1 ? m : flux__map_layer(flux__sync_leaf, &f, m, true);
}

FLUX_DEF flux_state *flux_synchronize_state(flux_comm *c, flux_state *s, flux_root_opts o) {
    flux__sync f = { c, o, false, NULL };
    if (!s) return (flux_state *)flux__null("synchronize", "state", s);
    if (!flux__check_root("synchronize", c, o.root)) return NULL;
    if (c->size == 1) return s;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    flux_state *copy = flux__state_copy(s);
    f.state = copy;
    if (copy) flux__state_fields(copy, flux__sync_slot, &f);
    flux__nograd_leave(b);
    return (flux_state *)flux__reveal_object(h, f.failed ? NULL : copy);
}

/* The whole tensor of the leaf's whose share on this rank is x, in host memory; on other ranks than
   0 any tensor. NULL: an error was told. */
static flux_tensor *flux__gathered(flux_comm *c, const flux_state *s, int leaf, flux_tensor *x) {
    const flux_shape dims = flux__dims(s->leaf[leaf].p);
    int h = flux__hide();
    flux_tensor *all = flux_allgather(c, x);
    if (c->rank == 0 && all) {
        all = flux_reshape_with(flux_slice(all, 0, 0, flux__count(&dims)), dims);
        all = flux_cpu(flux_copy(all));
    }
    return flux__reveal(h, all ? flux_eval(all) : NULL);
}

/* See base/ranks.h. The whole tensors are there one at a time, but for rank 0. */
static flux_state *flux__whole_state(flux_state *s) {
    flux_comm *c = s->rule[s->cut].comm;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    flux_state *copy = c->rank == 0 ? flux__state_copy(s) : s;
    bool ok = copy != NULL;
    for (int i = 0; i < s->nleaves && ok; i++)
        for (int k = s->whole; k <= s->nstates && ok; k++) {
            flux_tensor **slot = k < s->nstates ? &copy->s[i * s->nstates + k]
                                                : &copy->leaf[i].master;
            if (!*slot) continue;
            int inner = flux__hide();
            flux_tensor *all = flux__gathered(c, s, i, *slot);
            ok = all != NULL;
            if (ok && c->rank == 0) flux_assign(slot, all);
            flux__reveal(inner, NULL);
        }
    if (ok && c->rank == 0) copy->ranks = 1;
    flux__nograd_leave(b);
    return (flux_state *)flux__reveal_object(h, ok ? copy : NULL);
}

#define FLUX__DISTRIBUTED_SAVE(T, kind)                                                            \
    FLUX_DEF int flux_distributed_save_##kind(flux_comm *c, T *x, const char *path) {              \
        if (!flux__is_comm("distributed_save", c)) return -1;                                      \
        return flux__saved_by_root(c, c->rank == 0 ? flux_save_##kind(x, path) : 0);               \
    }
FLUX__DISTRIBUTED_SAVE(flux_tensor, tensor)
FLUX__DISTRIBUTED_SAVE(flux_layer, layer)
FLUX_DEF int flux_distributed_save_state(flux_comm *c, flux_state *s, const char *path) {
    if (!flux__is_comm("distributed_save", c)) return -1;
    int h = flux__hide(), rc = -1;
    flux_state *all = s && s->ranks > 1 ? flux__whole_state(s) : s;
    if (all || !s) rc = c->rank == 0 ? flux_save_state(all, path) : 0;
    flux__reveal(h, NULL);
    return flux__saved_by_root(c, rc);
}

FLUX__END_COLD

#endif /* FLUX__DIST_MODEL_H */
