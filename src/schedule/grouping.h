#ifndef FLUX__SCHEDULE_GROUPING_H
#define FLUX__SCHEDULE_GROUPING_H
#include "../base/platform.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../graph/windows.h"
#include "kernel.h"
#include "key.h"

/* ---------------------------------------------------------------------- schedule/grouping.h
   Grouping of nodes into kernels. flux__assign_groups goes from the last node
   to the first; each joins the group of one of its users, or starts a new one
   (flux__choose_group). Fused kernels have one index space; a matrix product
   takes the elementwise nodes that follow it as its epilogue.

   Invariant: a node joins a group only if every user of it in the group reads
   it point by point, and if no cycle of groups results (flux__no_circle).
   Groups are bounded in size, as programs and compilers have limits. A copy of
   overlapping windows that only products read (flux__find_gathers) is never
   made: the CPU copies it a block at a time while packing, a GPU reads the
   image itself. A reduction of very many elements to fewer than 4 results joins
   only users that go on with its result, so that it can be spread over
   threads. */

FLUX__LEAN

typedef struct flux__group {
    int kind, product;                    /* product: the node of the matrix product, or -1 */
    int64_t full[FLUX_MAX_DIMS];
    unsigned reduced;
    bool reduces;                         /* has a reduction already */
    int members, nodes, last;             /* how many nodes that compute; how many in all; the highest number */
} flux__group;

enum {
    FLUX__GROUP_MEMBERS = 60,             /* of a kernel: no more nodes that compute, */
    FLUX__GROUP_NODES = 256,              /* nor in all */
    FLUX__CIRCLE_STEPS = 512,             /* looked at for a node, to see whether a circle would come of joining a group */
    FLUX__JOIN_LOOKS = 4096               /* how many of its uses are looked at to find a group for a node, see flux__tries */
};

typedef struct flux__link { int to, next; } flux__link;   /* next: the number of another link of the same group, -1: none */

typedef struct flux__planner {
    flux__graph *g;
    int n;                                /* nodes */
    int *group_of;                        /* by node */
    flux__group *group;
    int ngroup;
    int *needs;                           /* by group: its last link to one that makes what it uses; -1: none */
    flux__link *link;
    int nlink, link_room;
    int *level;                           /* by group: higher than those of all groups that use what it makes */
    int *tried, *user_of;                 /* by group: the last node + 1 that was to join it; that it uses */
    flux__link *raised;                   /* groups whose level was raised, and what it was */
    int nraised, raised_room;
    int steps;                            /* left of FLUX__CIRCLE_STEPS */
    int *member, *member_start;           /* nodes of group G: member[member_start[G] ... member_start[G+1]-1], in order */
    int *value_of;                        /* by node: its value in the kernel that is being built, or -1 */
    flux__kernel building;                /* that kernel's lines and operands, before they are counted */
    bool *gather;                         /* by node: a copy that products read through, see flux__find_gathers */
    int *use, *use_start;                 /* uses of node i: use[use_start[i] ... use_start[i+1]-1] = node * 256 + operand */
    bool ok;                              /* memory has not run out */
} flux__planner;

static void flux__dims8(const flux_tensor *t, int64_t *out) {
    int d = t->ndim;
    memcpy(out, t->dim, (size_t)d * sizeof *out);
    while (d < FLUX_MAX_DIMS) out[d++] = 1;
}

static bool flux__same8(const int64_t *a, const int64_t *b) { return memcmp(a, b, FLUX_MAX_DIMS * sizeof *a) == 0; }

/* The strides by which a use reads its operand over the user's points; false if x's dims don't fit those. */
static void flux__use_strides(flux_tensor *x, const int64_t *points, int64_t *offset, int64_t *stride) {
    int64_t have[FLUX_MAX_DIMS];
    flux__layout(x, offset, have);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) stride[d] = d < x->ndim && x->dim[d] == points[d] && points[d] > 1 ? have[d] : 0;
}

/* Whether user reads operand k point by point: element (i, j, ...) of the node at point (i, j, ...), stretched dims aside. */
static bool flux__pointwise(flux_tensor *user, int k, const flux_tensor *node) {
    int64_t points[FLUX_MAX_DIMS], offset, stride[FLUX_MAX_DIMS], step = 1;
    flux__dims8(flux__is_reduce(user) ? user->in[0] : user, points);
    flux__use_strides(user->in[k], points, &offset, stride);
    if (offset != 0) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        int64_t n = d < node->ndim ? node->dim[d] : 1;
        if (n != 1 && n != points[d]) return false;
        if (stride[d] != (n > 1 ? step : 0)) return false;
        step *= n;
    }
    return true;
}

static void flux__outer_dims(const flux__group *G, int64_t *out) {
    for (int d = 0; d < FLUX_MAX_DIMS; d++) out[d] = G->reduced >> d & 1 ? 1 : G->full[d];
}

static int64_t flux__count8(const int64_t *v) { return flux__product(v, FLUX_MAX_DIMS); }

/* A group's level becomes at least this, and is written down. */
static void flux__raise_one(flux__planner *p, int G, int level) {
    flux__link *raised = (flux__link *)flux__grow(p->raised, &p->raised_room, p->nraised + 1, sizeof *raised);
    if (!raised) {
        p->ok = false;
        return;
    }
    p->raised = raised, raised += p->nraised++;
    raised->to = G, raised->next = p->level[G];
    p->level[G] = level;
}

/* Raises a group's level, and with it those of the groups that it needs, where they are not higher anyway. False, with all
   levels as they were: one of these uses the node, so that a circle would be closed; or it takes too long to know. */
static bool flux__raise(flux__planner *p, int G, int level, int node) {
    bool good = true;
    p->nraised = 0;
    flux__raise_one(p, G, level);
    for (int i = 0; i < p->nraised && good && p->ok; i++) {
        const int from = p->raised[i].to;
        for (int e = p->needs[from]; e >= 0 && good && p->ok; e = p->link[e].next) {
            const int to = p->link[e].to;
            good = --p->steps >= 0;
            if (p->level[to] > p->level[from]) continue;
            good = good && p->user_of[to] != node + 1;
            flux__raise_one(p, to, p->level[from] + 1);
        }
    }
    while (!(good && p->ok) && p->nraised) p->nraised--, p->level[p->raised[p->nraised].to] = p->raised[p->nraised].next;
    return good && p->ok;
}

/* Whether the groups that use a node may need its group G, and so come before it, without a circle. */
static bool flux__no_circle(flux__planner *p, int node, int G) {
    int level = p->level[G];
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        int K = p->group_of[p->use[u] >> 8];
        if (K == G) continue;
        p->user_of[K] = node + 1;
        if (p->level[K] >= level) level = p->level[K] + 1;
    }
    p->user_of[G] = 0;
    return level == p->level[G] || flux__raise(p, G, level, node);
}

/* Group a uses what group b makes. */
static void flux__need_group(flux__planner *p, int a, int b) {
    for (int e = p->needs[a], n = 0; e >= 0 && n < 4; e = p->link[e].next, n++)
        if (p->link[e].to == b) return;
    flux__link *link = (flux__link *)flux__grow(p->link, &p->link_room, p->nlink + 1, sizeof *link);
    if (!link) {
        p->ok = false;
        return;
    }
    p->link = link;
    link[p->nlink].to = b, link[p->nlink].next = p->needs[a];
    p->needs[a] = p->nlink++;
}

FLUX__COLD

/* The dims that a reduction really reduces: those that are not 1 anyway. */
static unsigned flux__real_mask(const flux_tensor *t) {
    unsigned real = 0;
    for (int d = 0; d < t->in[0]->ndim; d++)
        if ((t->arg.i[1] >> d & 1) && t->in[0]->dim[d] != 1) real |= 1u << d;
    return real;
}

/* A map joins if its points are the group's, or are the outer ones (perhaps by declaring dims reduced). */
static bool flux__map_fits(flux__group *G, const flux_tensor *t, bool commit) {
    int64_t s[FLUX_MAX_DIMS], outer[FLUX_MAX_DIMS];
    unsigned mask = 0;
    flux__dims8(t, s);
    flux__outer_dims(G, outer);
    if (flux__same8(s, G->full) || (G->reduced && flux__same8(s, outer))) return true;
    if (G->kind != FLUX__K_FUSED || G->reduced) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (s[d] != 1 && s[d] != G->full[d]) return false;
        if (s[d] != G->full[d]) mask |= 1u << d;
    }
    if (commit) G->reduced = mask;
    return true;
}

/* Few outer points and many inner ones are better spread over threads, in kernels of one phase each: there a reduction
   joins only those that go on with its result. */
static bool flux__too_deep(flux__planner *p, int node, const int64_t *full, unsigned mask) {
    int64_t outer = 1, s[FLUX_MAX_DIMS], other[FLUX_MAX_DIMS];
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (!(mask >> d & 1)) outer *= full[d];
    if (outer >= 4 || flux__count8(full) <= 65536) return false;
    flux__dims8(p->g->node[node], s);
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        flux__dims8(p->g->node[p->use[u] >> 8], other);
        if (!flux__same8(s, other)) return true;
    }
    return false;
}

static bool flux__reduce_fits(flux__planner *p, int node, flux__group *G, bool commit) {
    const flux_tensor *t = p->g->node[node];
    int64_t full[FLUX_MAX_DIMS], s[FLUX_MAX_DIMS];
    unsigned real = flux__real_mask(t);
    flux__dims8(t->in[0], full);
    flux__dims8(t, s);
    if (G->kind != FLUX__K_FUSED || flux__too_deep(p, node, full, real)) return false;
    bool same = flux__same8(G->full, full);
    if (same && G->reduced == real) return true;
    if (same && !G->reduced) {
        if (commit) G->reduced = real;
        return true;
    }
    if (G->reduced || G->reduces || !flux__same8(G->full, s) || !real) return false;
    if (commit) {                         /* the group worked on the result alone: its points become the outer ones */
        memcpy(G->full, full, sizeof full);
        G->reduced = real;
    }
    return true;
}

static bool flux__product_fits(const flux__group *G, const flux_tensor *t) {
    int64_t s[FLUX_MAX_DIMS];
    flux__dims8(t, s);
    return G->kind == FLUX__K_FUSED && G->product < 0 && !G->reduced && !G->reduces && flux__same8(G->full, s) && G->members <= 24;
}

static bool flux__fits(flux__planner *p, int node, int G, bool commit) {
    flux_tensor *t = p->g->node[node];
    flux__group *group = &p->group[G];
    if (group->kind != FLUX__K_FUSED && group->kind != FLUX__K_MATMUL) return false;
    if (group->members >= FLUX__GROUP_MEMBERS || group->nodes >= FLUX__GROUP_NODES) return false;
    if (flux__is_map(t)) return group->kind == FLUX__K_MATMUL && group->members > 24 ? false : flux__map_fits(group, t, commit);
    if (flux__is_reduce(t)) return flux__reduce_fits(p, node, group, commit);
    if (t->op == FLUX__MATMUL) return flux__product_fits(group, t);
    return false;
}

static int flux__own_kind(const flux_tensor *t) {
    switch (t->op) {
    case FLUX__MATMUL: return FLUX__K_MATMUL;
    case FLUX__GATHER: return FLUX__K_GATHER;
    case FLUX__SCATTER: return FLUX__K_SCATTER;
    case FLUX__SPREAD: return FLUX__K_SPREAD;
    case FLUX__CAT: return FLUX__K_CAT;
    case FLUX__MOVE: return FLUX__K_MOVE;
    case FLUX__ATTEND: return FLUX__K_ATTEND;
    default: return FLUX__K_FUSED;
    }
}

static int flux__new_group(flux__planner *p, int node) {
    flux_tensor *t = p->g->node[node];
    flux__group *G = &p->group[p->ngroup];
    memset(G, 0, sizeof *G);
    G->kind = flux__own_kind(t);
    G->product = t->op == FLUX__MATMUL ? node : -1;
    flux__dims8(flux__is_reduce(t) ? t->in[0] : t, G->full);
    if (flux__is_reduce(t)) G->reduced = flux__real_mask(t);
    p->needs[p->ngroup] = -1;
    p->level[p->ngroup] = p->tried[p->ngroup] = p->user_of[p->ngroup] = 0;
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        const int above = p->level[p->group_of[p->use[u] >> 8]];
        if (above >= p->level[p->ngroup]) p->level[p->ngroup] = above + 1;
    }
    return p->ngroup++;
}

/* In how many groups a node's place is looked for. Each look goes over all its uses: of many uses, a few are enough. */
static int flux__tries(const flux__planner *p, int node) {
    return FLUX__JOIN_LOOKS / (p->use_start[node + 1] - p->use_start[node] + 1) + 4;
}

/* Whether all in group G that use the node do so point by point, and no circle comes of it. */
static bool flux__may_join(flux__planner *p, int node, int G) {
    if (p->tried[G] == node + 1) return false;
    p->tried[G] = node + 1;
    if (!flux__fits(p, node, G, false)) return false;
    for (int v = p->use_start[node]; v < p->use_start[node + 1]; v++) {
        int user = p->use[v] >> 8;
        if (user == p->group[G].product) return false;
        if (p->group_of[user] == G && !flux__pointwise(p->g->node[user], p->use[v] & 255, p->g->node[node])) return false;
    }
    return flux__no_circle(p, node, G);
}

/* Whether a product or reduction that nobody else uses ends in this node: it is better left to be its epilogue. */
static bool flux__ends_work(const flux__planner *p, int node, int depth) {
    flux_tensor *t = p->g->node[node];
    for (int k = 0; k < t->nin && depth; k++) {
        flux_tensor *b = flux__base(t->in[k]);
        if (flux__finished(b) || b->op == FLUX__NUMBER || p->use_start[b->index + 1] - p->use_start[b->index] != 1) continue;
        if (b->op == FLUX__MATMUL || flux__is_reduce(b) || (flux__is_map(b) && flux__ends_work(p, b->index, depth - 1))) return true;
    }
    return false;
}

static bool flux__is_computed(const flux_tensor *t) { return t->op < FLUX__ELEMENTWISE_COUNT || t->op == FLUX__CAST; }

/* The group of a tensor of the same shape that is to be joined to this one by a cat: what gates share is read once. */
static int flux__choose_sibling(flux__planner *p, int node, int tries) {
    flux_tensor *t = p->g->node[node];
    int64_t s[FLUX_MAX_DIMS];
    bool known = false;
    flux__dims8(t, s);
    if (!flux__is_computed(t)) return -1;
    for (int u = p->use_start[node]; u < p->use_start[node + 1] && tries > 0; u++) {
        flux_tensor *user = p->g->node[p->use[u] >> 8];
        if (user->op != FLUX__CAT) continue;
        if (!known && flux__ends_work(p, node, 6)) return -1;
        known = true;
        for (int k = 0; k < user->nin && tries > 0; k++) {
            flux_tensor *b = flux__base(user->in[k]);
            if (flux__finished(b) || !flux__is_computed(b) || b->index <= node) continue;
            int G = p->group_of[b->index];
            if (p->group[G].reduced || !flux__same8(p->group[G].full, s)) continue;
            tries--;
            if (flux__may_join(p, node, G)) return G;
        }
    }
    return -1;
}

/* The group for a node: one of its users', if all is well, else a new one. Users have theirs already. */
static int flux__choose_group(flux__planner *p, int node) {
    int tries = flux__tries(p, node);
    p->steps = FLUX__CIRCLE_STEPS;
    for (int u = p->use_start[node]; u < p->use_start[node + 1] && tries > 0; u++) {
        int user = p->use[u] >> 8, G = p->group_of[user];
        tries -= p->tried[G] != node + 1;
        if (flux__may_join(p, node, G)) return flux__fits(p, node, G, true) ? G : -1;
    }
    return flux__choose_sibling(p, node, tries);
}

/* Whether a node only widens a half format, or narrows to it: that is a part of loading and of rounding, no work of its own. */
static bool flux__is_width(const flux_tensor *t) {
    return t->op == FLUX__CAST && (t->dtype == FLUX_F32 ? flux__is_half(t->in[0]->dtype) : t->in[0]->dtype == FLUX_F32 && flux__is_half(t->dtype));
}

static bool flux__assign_groups(flux__planner *p) {
    for (int i = p->n - 1; i >= 0; i--) {
        flux_tensor *t = p->g->node[i];
        p->group_of[i] = -1;
        flux__soon(p->g->node, i - FLUX__SOON, p->n);
        if (p->gather[i]) continue;
        int G = flux__choose_group(p, i);
        if (G < 0) G = flux__new_group(p, i);
        flux__group *group = &p->group[G];
        p->group_of[i] = G;
        group->members += !flux__is_width(t);
        group->nodes++;
        if (i > group->last) group->last = i;
        if (flux__is_reduce(t)) group->reduces = true;
        if (t->op == FLUX__MATMUL) group->kind = FLUX__K_MATMUL, group->product = i;
        for (int u = p->use_start[i]; u < p->use_start[i + 1]; u++) {
            int K = p->group_of[p->use[u] >> 8];
            if (K != G) flux__need_group(p, K, G);
        }
        if (!p->ok) return false;
    }
    return true;
}

/* The nodes of each group, in order. */
static void flux__list_members(flux__planner *p) {
    int *start = p->member_start;
    for (int G = 0; G <= p->ngroup; G++) start[G] = 0;
    for (int i = 0; i < p->n; i++)
        if (p->group_of[i] >= 0) start[p->group_of[i]]++;
    for (int G = 0, at = 0; G <= p->ngroup; G++) at += start[G], start[G] = at;     /* the ends now */
    for (int i = p->n - 1; i >= 0; i--)
        if (p->group_of[i] >= 0) p->member[--start[p->group_of[i]]] = i;
}

/* Which dim of x, a view of all of a copy's elements, each dim of the copy is a part of; false: not so simple. */
static bool flux__owners(const flux_tensor *x, const flux_tensor *copy, uint8_t *owner) {
    int64_t natural[FLUX_MAX_DIMS], offset = FLUX__IS_VIEW(x) ? x->offset : 0, count = 1;
    flux_shape s = flux__dims(copy);
    if (x->ndim < 2 || offset) return false;
    flux__natural(&s, natural);
    memset(owner, 0, FLUX_MAX_DIMS);
    for (int d = 0; d < x->ndim; d++) {
        int64_t n = 1, step = FLUX__IS_VIEW(x) ? x->stride[d] : natural[d];
        int j = 0;
        if (x->dim[d] == 1) continue;
        while (j < s.ndim && (natural[j] != step || s.dim[j] == 1)) j++;
        for (; j < s.ndim && n < x->dim[d]; j++) {
            n *= s.dim[j];
            owner[j] = (uint8_t)d;
        }
        if (n != x->dim[d]) return false;
        count *= n;
    }
    return count == flux__count(&s);
}

/* A convolution's product takes a copy of overlapping windows, many times the image. It is never made: the CPU copies a
   block at a time, as the product would copy a matrix, so that it stays in the cache; a GPU reads the image itself. So with
   copies that a product would have to make of rows in another order: those of a sum over samples. */
static void flux__find_gathers(flux__planner *p) {
    uint8_t owner[FLUX_MAX_DIMS];
    for (int i = 0; i < p->n && p->g->copies; i++) {
        const flux_tensor *t = p->g->node[i], *x = t->nin ? t->in[0] : NULL;
        if (t->op != FLUX__COPY || !FLUX__IS_VIEW(x) || (p->g->flag[i] & FLUX__ROOT)) continue;
        bool reads = t->dtype == FLUX_F32 || t->dtype == FLUX_F64 || flux__backend_of(t->device.backend)->ready, plain;
        plain = x->dtype == t->dtype && reads && x->base->op != FLUX__NUMBER;
        bool chained = !flux__finished(x->base) && p->gather[x->base->index];
        bool along = x->stride[0] == 1 && !flux__backend_of(t->device.backend)->ready;   /* as good as copied */
        p->gather[i] = plain && !chained && (along || flux__size(t) > flux__size(x->base));
    }
    for (int i = 0; i < p->n && p->g->copies; i++)
        for (int k = 0; k < p->g->node[i]->nin; k++) {
            flux_tensor *x = p->g->node[i]->in[k], *b = flux__base(x);
            if (flux__finished(b) || b->mark != p->g->walk || !p->gather[b->index]) continue;
            if (p->g->node[i]->op != FLUX__MATMUL || !flux__owners(x, b, owner)) p->gather[b->index] = false;
        }
}

static bool flux__is_gather(const flux__planner *p, const flux_tensor *b) {
    return p->g->copies && !flux__finished(b) && b->mark == p->g->walk && p->gather[b->index];
}

/* Uses come after what they use. A number that was numbered later than what reads it is none of its operands: it was to be
   looked at itself, or is another node's operand, and who reads it takes the number. */
static bool flux__find_uses(flux__planner *p) {
    int *count = p->use_start, total = 0, room = 0;
    flux__link *all = NULL;               /* in the order of users: what is used, and node * 256 + operand */
    flux__find_gathers(p);
    for (int i = 0; i < p->n; i++) {
        flux_tensor *t = p->g->node[i];
        flux__soon(p->g->node, i + FLUX__SOON, p->n);
        for (int k = 0; k < flux__reads(t) && !p->gather[i]; k++) {
            flux_tensor *b = flux__base(t->in[k]);
            if (flux__is_gather(p, b)) b = b->in[0]->base;
            if (flux__finished(b) || (b->op == FLUX__NUMBER && (b->mark != p->g->walk || b->index > i))) continue;
            flux__link *more = (flux__link *)flux__grow(all, &room, total + 1, sizeof *all);
            if (!more) {
                if (all) FLUX_FREE(all);
                return false;
            }
            all = more;
            all[total].to = b->index, all[total++].next = i << 8 | k;
            count[b->index + 1]++;
        }
    }
    for (int i = 0; i < p->n; i++) count[i + 1] += count[i];
    p->use = (int *)flux__malloc((size_t)(total + 1) * sizeof *p->use);
    for (int u = 0; u < total && p->use; u++) p->use[count[all[u].to]++] = all[u].next;
    for (int i = p->n; i > 0; i--) count[i] = count[i - 1];
    count[0] = 0;
    if (all) FLUX_FREE(all);
    return p->use != NULL;
}

#endif /* FLUX__SCHEDULE_GROUPING_H */
