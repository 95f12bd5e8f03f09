#ifndef FLUX__DIST_OPTIMISER_H
#define FLUX__DIST_OPTIMISER_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/options.h"
#include "../base/ranks.h"
#include "../graph/nodes.h"
#include "../graph/views.h"
#include "../graph/elementwise.h"
#include "../nn/rules.h"
#include "../nn/state.h"
#include "../nn/update.h"
#include "comm.h"
#include "collectives.h"
#include "model.h"
#include "messages.h"

/* ---------------------------------------------------------------------- dist/optimiser.h
   flux_distributed_optimiser: a part of a chain of rules that replaces each
   gradient by its mean over all ranks. Gradients travel in buckets, each of them
   one collective (dist/collectives.h), from the last parameters to the first, as
   the backward pass makes them; the schedule starts a bucket as soon as its
   gradients are there.

   Invariant: before a step the ranks agree which parameters have a gradient on
   any of them; on the others it counts as 0. So all ranks make the same steps of
   the same parameters, and the parameters stay the same bits. A mean is a sum
   times 1 / n, which goes into the step's scale. Where ranks have batches of
   different sizes, each multiplies its gradient by its share first. Gradients
   that are accumulated are weighed before that, by a part of its own, and
   exchanged when they are complete.

   With .shard a rank has its share of each parameter's state (nn/state.h). The
   sums are scattered, so that it gets its share of each gradient, and the new
   parameters' shares are gathered: as much traffic as sums on all ranks are. */

FLUX__BEGIN_COLD

enum { FLUX__BUCKET_TENSORS = 250 };      /* most tensors of a bucket */

/* Puts a part Distributed into a rule as number `at`. bucket 0: it only weighs gradients; shard:
   each rank gets its share of them. */
static void flux__insert_distributed(flux_rule *rule, int at, flux_comm *c, int64_t bucket,
                                     bool shard) {
    for (int i = rule->n++; i > at; i--) rule->part[i] = rule->part[i - 1];
    memset((void *)&rule->part[at], 0, sizeof rule->part[at]);
    rule->part[at].kind = FLUX__RULE_ROWS - 1;
    rule->part[at].comm = c;
    rule->part[at].bucket = bucket;
    rule->part[at].rank = c->rank, rule->part[at].ranks = shard ? c->size : 0;
}

FLUX_DEF flux_rule flux_distributed_optimiser_with(flux_comm *c, flux_rule rule,
                                         flux_distributed_rule_opts o) {
    flux_rule r = flux__bad_rule();
    const int64_t bucket = flux__given_int(o.bucket, o.marked, 25000000);
    int at = 0;
    if (!flux__is_comm("distributed_optimiser", c)) return r;
    if (bucket < 1) return flux__fail("distributed_optimiser: .bucket is %lld bytes",
                                      (long long)bucket), r;
    rule = flux__chain_rules("distributed_optimiser", 1, &rule);
    if (!rule.made) return r;
    if (rule.n > FLUX_MAX_RULES - 2)
        return flux__fail("distributed_optimiser: a chain has at most %d rules",
                          (int)FLUX_MAX_RULES - 2), r;
    for (int i = 0; i < rule.n; i++)
        if (rule.part[i].ranks || (o.shard && rule.part[i].comm))
            return flux__fail("distributed_optimiser: the rule is distributed already, and .shard "
                              "can be in one place only"), r;
    for (int i = 0; i < rule.n; i++)      /* behind the last AccumGrad */
        if (flux__rule_rows[rule.part[i].kind].step == flux__step_accumgrad) at = i + 1;
    flux__insert_distributed(&rule, at, c, bucket, o.shard);
    if (at > 0) flux__insert_distributed(&rule, 0, c, 0, false);
    return rule;
}

#ifdef FLUX_MPI
/* Whether the gradients are still being accumulated: there is an AccumGrad before rule r, and it
   has passed no gradient on. */
static bool flux__accumulating(const flux_state *s, int r) {
    bool accumulates = false;
    for (int i = 0; i < r; i++)
        if (flux__rule_rows[s->rule[i].kind].step == flux__step_accumgrad) accumulates = true;
    for (int i = 0; i < s->nleaves && accumulates; i++)
        if (s->step[i].d) return false;
    return accumulates;
}

/* Agrees with the other ranks on the leaves that have a gradient somewhere, and gives those that
   have none here zeros. */
static bool flux__complete_gradients(flux_comm *c, flux_state *s) {
    uint8_t *has = (uint8_t *)flux__zalloc((size_t)s->nleaves);
    bool ok = has != NULL;
    for (int i = 0; i < s->nleaves && ok; i++) has[i] = s->step[i].d != NULL;
    ok = ok && flux__comm_agree(c, s->nleaves, has);
    for (int i = 0; i < s->nleaves && ok; i++) {
        if (!has[i] || s->step[i].d) continue;
        const flux_tensor *p = s->leaf[i].now;
        flux_tensor *zeros = flux_full_with(flux__dims(p), 0, flux__state_dtype(p));
        ok = zeros && flux__start_step(s, i, flux__move(zeros, p->device));
    }
    flux__free(has);
    return ok;
}

/* Multiplies the gradients of all leaves by what this rank's batch counts. */
static bool flux__weigh_gradients(const flux_comm *c, flux_state *s) {
    for (int i = 0; i < s->nleaves && c->weight != 1; i++) {
        flux__step *k = &s->step[i];
        if (k->d && !(k->d = flux_mul(k->d, c->weight))) return false;
    }
    return true;
}

/* Puts the leaves whose gradients fill whole lines of 64 bytes first: these are computed in the
   bucket itself (flux__plan_call.in_place), the others are copied. */
static void flux__order_bucket(const flux_state *s, int n, int *leaf) {
    for (int i = 0, whole = 0; i < n; i++) {
        const int at = leaf[i];
        const flux_tensor *d = s->step[at].d;
        if (flux__size(d) * (int64_t)flux__dtypes[d->dtype].size % 64) continue;
        for (int k = i; k > whole; k--) leaf[k] = leaf[k - 1];
        leaf[whole++] = at;
    }
}

/* x with zeros behind it, so that it can be cut into shares. */
static flux_tensor *flux__padded(const flux_state *s, flux_tensor *x) {
    const int64_t n = flux__size(x), more = flux__share_size(s, n) * s->ranks - n;
    return more == 0 ? x : flux_pad_by(flux_reshape_with(x, FLUX_SHAPE(n)), 0, FLUX_SHAPE(0),
                                       FLUX_SHAPE(more));
}

/* Replaces the gradients of n leaves by this rank's shares of their sums over all ranks, and the
   parameters by their shares: one collective. */
static bool flux__share_bucket(flux_comm *c, flux_state *s, int n, int *leaf) {
    flux_tensor *xs[FLUX__BUCKET_TENSORS];
    int64_t count = 0, at = 0;
    for (int i = 0; i < n; i++) {
        flux__step *k = &s->step[leaf[i]];
        xs[i] = k->measured ? flux__gradient_now(k) : k->d;
        if (!xs[i] || !(xs[i] = flux__padded(s, xs[i]))) return false;
        count += flux__size(xs[i]) / s->ranks;
    }
    flux_tensor *sum = flux__collective_node(c, FLUX__REDUCE_SCATTER, FLUX_SUM, 0, n, xs, count);
    for (int i = 0; i < n && sum; i++) {
        flux__step *k = &s->step[leaf[i]];
        flux__trained_param *l = &s->leaf[leaf[i]];
        const int64_t end = at + flux__size(xs[i]) / s->ranks;
        k->d = flux_slice(sum, 0, at, end);
        k->p = flux__own_share(s, k->p);
        if (k->p) k->p = flux__full_precision(l, k->p);
        k->scale /= c->size;
        at = end;
        if (!k->d || !k->p) return false;
    }
    return sum != NULL;
}

/* Makes whole parameters of the shares in leaf.next of n leaves: one collective, whose result has
   the shares of a rank one behind the other. */
static bool flux__join_bucket(flux_comm *c, flux_state *s, int n, int *leaf) {
    flux_tensor *xs[FLUX__BUCKET_TENSORS];
    int64_t count = 0, at = 0;
    for (int i = 0; i < n; i++) xs[i] = s->leaf[leaf[i]].next, count += flux__size(xs[i]);
    flux_tensor *all = flux__collective_node(c, FLUX__ALLGATHER, FLUX_SUM, 0, n, xs,
                                             count * s->ranks);
    if (!all || !(all = flux_reshape_with(all, FLUX_SHAPE(count, s->ranks)))) return false;
    for (int i = 0; i < n; i++) {
        flux__trained_param *l = &s->leaf[leaf[i]];
        const int64_t end = at + flux__size(xs[i]), size = flux__size(l->now);
        flux_tensor *x = flux_reshape_with(flux_slice(all, 0, at, end),
                                         FLUX_SHAPE((end - at) * s->ranks));
        if (x && size < flux__size(x)) x = flux_slice(x, 0, 0, size);
        l->next = flux_copy(flux_reshape_with(x, flux__dims(l->now)));
        at = end;
        if (!l->next) return false;
    }
    return true;
}

/* Replaces the gradients of n leaves by their sums over all ranks: one collective. */
static bool flux__exchange_bucket(flux_comm *c, flux_state *s, int n, int *leaf) {
    flux_tensor *xs[FLUX__BUCKET_TENSORS];
    int64_t count = 0, at = 0;
    flux__order_bucket(s, n, leaf);
    for (int i = 0; i < n; i++) {
        flux__step *k = &s->step[leaf[i]];
        xs[i] = k->measured ? flux__gradient_now(k) : k->d;
        if (!xs[i]) return false;
        count += flux__size(xs[i]);
    }
    flux_tensor *sum = flux__collective_node(c, FLUX__ALLREDUCE, FLUX_SUM, 0, n, xs, count);
    for (int i = 0; i < n && sum; i++) {
        flux__step *k = &s->step[leaf[i]];
        const int64_t end = at + flux__size(xs[i]);
        k->d = flux_reshape_with(flux_slice(sum, 0, at, end), flux__dims(xs[i]));
        k->scale /= c->size;
        at = end;
        if (!k->d) return false;
    }
    return sum != NULL;
}

/* What travels of a leaf: its gradient, or its new parameter's share once there is one. */
static const flux_tensor *flux__travels(const flux_state *s, int leaf) {
    return s->leaf[leaf].next ? s->leaf[leaf].next : s->step[leaf].d;
}

/* Has `exchange` exchange what travels of all leaves, in buckets of one dtype each, those of the
   last leaves first. */
static bool flux__each_bucket(flux_comm *c, flux_state *s, int r,
                              bool (*exchange)(flux_comm *, flux_state *, int, int *)) {
    int leaf[FLUX__BUCKET_TENSORS], n = 0;
    int64_t bytes = 0;
    for (int i = s->nleaves - 1; i >= 0; i--) {
        const flux_tensor *d = flux__travels(s, i);
        if (!d) continue;
        const int64_t size = flux__size(d) * (int64_t)flux__dtypes[d->dtype].size;
        const bool full = n == FLUX__BUCKET_TENSORS || bytes + size > s->rule[r].bucket;
        if (n && (full || d->dtype != flux__travels(s, leaf[0])->dtype)) {
            if (!exchange(c, s, n, leaf)) return false;
            n = 0, bytes = 0;
        }
        leaf[n++] = i, bytes += size;
    }
    return !n || exchange(c, s, n, leaf);
}
#endif

/* The rule Distributed, number r of the chain: exchanges the gradients of all leaves, those of the
   last leaves first. */
static bool flux__exchange_gradients(flux_state *s, int r) {
    flux_comm *c = s->rule[r].comm;
    if (!flux__is_comm("update", c)) return false;
#ifdef FLUX_MPI
    if (c->size == 1 || flux__accumulating(s, r)) return true;
    int first = 0;
    while (!s->rule[first].comm) first++;
    if (r == first && !flux__weigh_gradients(c, s)) return false;
    if (s->rule[r].bucket == 0) return true;
    if (!flux__complete_gradients(c, s)) return false;
    if (!flux__each_bucket(c, s, r, s->rule[r].ranks > 1 ? flux__share_bucket
                                                         : flux__exchange_bucket)) return false;
    flux__comm_forget(c);                 /* the update, evaluated next, runs all of them */
#endif
    return true;
}

/* Makes whole parameters of the shares in leaf.next, see base/ranks.h. */
static bool flux__join_shares(flux_state *s) {
    flux_comm *c = s->rule[s->cut].comm;
    if (!flux__is_comm("update", c)) return false;
#ifdef FLUX_MPI
    if (!flux__each_bucket(c, s, s->cut, flux__join_bucket)) return false;
    flux__comm_forget(c);
#endif
    return true;
}

/* What other rooms ask of a communicator, see base/ranks.h. */
static const flux__rank_calls *flux__dist_calls(void) {
    static const flux__rank_calls calls = { flux_rank_of, flux_size_of, flux__comm_agree,
                                            flux__comm_seed, flux__comm_weigh,
                                            flux__exchange_gradients, flux__join_shares,
                                            flux__comm_gather, flux__whole_state };
    return &calls;
}

FLUX__END_COLD

#endif /* FLUX__DIST_OPTIMISER_H */
