#ifndef FLUX__SCHEDULE_UPDATE_H
#define FLUX__SCHEDULE_UPDATE_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load */
#include "../base/object.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/backward.h"
#include "claims.h"
#include "key.h"
#include "looking.h"

/* ---------------------------------------------------------------------- schedule/update.h
   An optimiser's step. flux__update_eval computes the new weights, in the
   memory of the old ones where nobody can tell, and uses the loss's graph up.

   Invariant: a weight is overwritten only if nobody but the caller (who is
   about to drop it), the graph of this step and its gradients refers to it. All
   references from these are counted by a walk of the loss's whole history; if
   the sum is the reference count, the tensor is ours (flux__history_seen).
   Nodes that can be looked at later are stored on the way if that is cheap
   beside what updating in place saves; otherwise, and where a view of an old
   weight is left, no memory is taken over. Nothing has changed if the step
   fails before its kernels run. Afterwards what was stored is a plain value,
   and the rest of the graph is gone (flux__cut_history). */

FLUX__BEGIN_LEAN

/* All that the new tensors (news) and the loss were computed from, finished or not. */
typedef struct flux__history {
    flux__walk walk;                      /* walk.refs[k]: how many references to node k were
                                             found */
    bool *old;                            /* by node: whether it depends on a tensor to be
                                             replaced (olds) */
} flux__history;

static void flux__history_free(flux__history *h) {
    flux__walk_free(&h->walk);
    flux__free(h->old);
}

static void flux__history_count(flux__history *h, const flux_tensor *x, int by) {
    int k = x ? flux__walk_get(&h->walk, x) : -1;
    if (k >= 0) h->walk.refs[k] += by;
}

/* Walks all that the loss, the news and the tensors `also` were computed from. Counts in
   h->walk.refs the references to each node: from operands, from views to their bases, from the
   gradients, and the owners[i] that the caller is about to drop. Marks in h->old what depends on
   one of the olds. False: out of memory. */
static bool flux__history_find(flux__history *h, flux_grads *g, int n, flux_tensor *const *olds,
                               flux_tensor *const *news, const int *owners, int beside,
                               flux_tensor *const *also) {
    memset(h, 0, sizeof *h);
    if (!flux__walk_start(&h->walk)) return false;
    h->walk.whole = true;
    if (g && !flux__walk_collect(&h->walk, g->loss)) return false;
    for (int i = 0; i < n; i++)
        if (!flux__walk_collect(&h->walk, news[i])) return false;
    for (int i = 0; i < beside; i++)
        if (!flux__walk_collect(&h->walk, also[i])) return false;
    h->old = (bool *)flux__zalloc((size_t)h->walk.n);
    if (!h->old) return false;
    for (int i = 0; i < h->walk.n; i++)
        if (h->walk.node[i]->base) flux__history_count(h, h->walk.node[i]->base, 1);
    for (int i = 0; i < n; i++) {
        int k = flux__walk_get(&h->walk, olds[i]);
        if (k >= 0) h->old[k] = true;
        flux__history_count(h, olds[i], owners[i]);
    }
    for (int i = 0; g && i < g->n; i++) {
        flux__history_count(h, g->of[i], 1);
        flux__history_count(h, g->grad[i], 1);
    }
    bool *old = h->old;
    for (int i = 0, all = h->walk.n; i < all; i++) {
        const flux_tensor *t = h->walk.node[i];
        bool is = old[i];
        for (int k = 0, most = t->nin; k < most && !is; k++)
            is = old[flux__walk_get(&h->walk, t->in[k])];
        old[i] = is;
    }
    return true;
}

/* Whether somebody outside of the step can look at node number k: it has more references than were
   found. */
static bool flux__history_seen(const flux__history *h, int k) {
    return FLUX__REFS(flux__atomic_load(&h->walk.node[k]->head.refs)) > h->walk.refs[k];
}

/* Sees to the nodes that somebody can look at later. Those that this step computes become roots, so
   that they are stored, if the bytes that this costs are at most what updating in place saves.
   False: no memory may be taken over, because storing costs more, or because somebody can look at a
   view of an old tensor or at a node behind it that this step does not compute. */
static bool flux__keep_seen(flux__graph *g, const flux__history *h, int n,
                            flux_tensor *const *olds) {
    int64_t cost = 0, gain = 65536;
    bool possible = true;
    for (int i = 0; i < n; i++)
        gain += flux__size(olds[i]) * (int64_t)flux__dtypes[olds[i]->dtype].size * 2;
    for (int k = 0; k < h->walk.n; k++) {
        flux_tensor *t = h->walk.node[k], *b = flux__base(t);
        if (!flux__history_seen(h, k)) continue;
        if (flux__in_graph(g, b) && !flux__finished(b)) {
            g->flag[b->index] |= FLUX__SEEN;
            if (h->old[k] && !(g->flag[b->index] & FLUX__ROOT))
                cost += flux__size(b) * (int64_t)flux__dtypes[b->dtype].size;
        } else if (h->old[k] && !b->buf) possible = false;
        else if (h->old[k] && FLUX__IS_VIEW(t) && b->op == FLUX__LEAF) possible = false;
    }
    if (!possible || cost > gain) return false;
    for (int i = 0; i < g->nnode; i++)
        if (g->flag[i] & FLUX__SEEN) g->flag[i] |= FLUX__ROOT;
    return true;
}

/* Lets each new tensor take over the buffer of the old one where both have the same dtype, size and
   device, and nobody outside of the step refers to the old tensor or to its buffer. */
static void flux__set_donated(flux__graph *g, const flux__history *h, int n,
                             flux_tensor *const *olds, flux_tensor *const *news) {
    for (int i = 0; i < n; i++) {
        flux_tensor *old = olds[i], *fresh = news[i];
        int leaf = flux__leaf_number(g, old), k = flux__walk_get(&h->walk, old);
        if (leaf < 0 || k < 0 || !old->buf || old->buf->borrowed ||
            !flux__in_graph(g, fresh) || flux__finished(fresh))
            continue;
        bool alike = old->dtype == fresh->dtype && flux__size(old) == flux__size(fresh) &&
                     flux__same_device(old->device, fresh->device);
        bool sole = !flux__history_seen(h, k) && flux__atomic_load(&old->buf->refs) == 1;
        if (alike && sole) g->donated[fresh->index] = leaf;
    }
}

/* Drops the graph behind an update, which is of no use any more: nodes with a buffer become plain
   values, and the gradients are released with all the rest. */
static void flux__cut_history(flux__history *h, flux_grads *g) {
    flux_tensor **node = h->walk.node;
    int n = 0;
    flux__claims_lock();
    for (int k = 0, all = h->walk.n; k < all; k++)
        if (h->old[k]) node[n++] = (flux_tensor *)flux_retain(node[k]);
    for (int k = 0; k < n; k++) {
        flux_tensor *t = node[k];
        if (!flux__base(t)->buf) continue;
        if (t->nin) t->flags |= FLUX__CONSUMED;
        flux__cut(t);
    }
    flux__claims_unlock();
    for (int k = 0; k < n; k++) flux_release(node[k]);
    for (int i = 0; g && i < g->n; i++) {
        flux_release(g->of[i]);
        flux_release(g->grad[i]);
    }
    if (g) g->n = 0, g->used = true;
}

/* Computes the new tensors (news) of an update, in the memory of the old ones (olds) where nobody
   else can see those, and uses up the loss's graph. owners[i]: references to olds[i] that the
   caller is about to drop. also: `beside` more tensors to be computed, which replace nothing. If it
   fails before its kernels run, nothing has changed. */
static int flux__update_eval(flux_grads *grads, int n, flux_tensor *const *olds,
                             flux_tensor *const *news, const int *owners, int beside,
                             flux_tensor *const *also) {
    flux__graph g;
    flux__history h;
    do {
        flux__graph_start(&g);
        g.cut = true;
        if (grads && g.ok) flux__graph_visit(&g, grads->loss);
        for (int i = 0; i < n + beside && g.ok; i++)
            flux__graph_want(&g, flux__base(i < n ? news[i] : also[i - n]));
    } while (flux__graph_met(&g));
    bool walked = g.ok,
         ok = walked && flux__history_find(&h, grads, n, olds, news, owners, beside, also);
    flux_tensor *loss = grads ? flux__base(grads->loss) : NULL;
    if (ok && loss && flux__in_graph(&g, loss) && !flux__finished(loss))
        g.flag[loss->index] |= FLUX__ROOT;
    if (ok && flux__keep_seen(&g, &h, n, olds)) flux__set_donated(&g, &h, n, olds, news);
    flux__graph_claim(&g);
    int rc = ok ? flux__evaluate(&g) : -1;
    if (rc == 0) flux__cut_history(&h, grads);
    /* A running statistic depends on the one before it, and so on: the chain is cut. */
    flux__claims_lock();
    for (int i = 0; i < beside && rc == 0; i++) {
        flux_tensor *x = flux__base(also[i]);
        if ((x->flags & FLUX__FIXED) && x->buf) flux__cut(x);
    }
    flux__claims_unlock();
    if (walked) flux__history_free(&h);
    flux__graph_free(&g);
    return rc;
}

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_UPDATE_H */
