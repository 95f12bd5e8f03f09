#ifndef FLUX__SCHEDULE_GROUPING_H
#define FLUX__SCHEDULE_GROUPING_H
#include "../base/platform.h"
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
   Groups are bounded in size, as programs and compilers have limits. A copy that
   is never made (schedule/gathers.h) is in no group. A reduction of very many
   elements to fewer than 4 results joins only users that go on with its result,
   so that it can be spread over threads. A norm's gradient stays with its rows'
   sums (flux__left_to_rows). */

FLUX__BEGIN_LEAN

typedef struct flux__group {
    int kind, product;                    /* product: number of the matmul node, or -1 */
    int64_t full[FLUX_MAX_DIMS];
    unsigned reduced;
    unsigned whole, joined;               /* dims that continue the one before in all that its maps
                                             read; those that do so within a dim of its product, and
                                             bit 0, if that has another shape */
    bool reduces;                         /* one of its nodes is a reduction */
    int members, nodes, last;             /* members: nodes that compute (flux__is_width does not
                                             count); nodes: all of them; last: the highest node
                                             number */
} flux__group;

enum {
    FLUX__GROUP_MEMBERS = 60,             /* most nodes of a kernel that compute */
    FLUX__GROUP_NODES = 256,              /* most nodes of a kernel in all */
    FLUX__CIRCLE_STEPS = 512,             /* most links followed, for one node, to find out
                                             whether joining a group closes a cycle */
    /* most uses examined to find a group for one node, see flux__tries */
    FLUX__JOIN_LOOKS = 4096
};

/* An entry of a list by group; next: number of the next link of the same group, or -1. */
typedef struct flux__link { int to, next; } flux__link;

typedef struct flux__planner {
    flux__graph *g;
    int n;                                /* how many nodes the graph has */
    int *group_of;                        /* by node: its group, or -1 */
    flux__group *group;
    int ngroup;
    int *needs;                           /* by group: its newest link to a group whose results
                                             it reads, or -1 */
    flux__link *link;
    int nlink, link_capacity;
    int *level;                           /* by group: above the levels of all groups that read
                                             its results */
    int *tried, *user_of;                 /* by group: number + 1 of the last node tried for it;
                                             of the last such node that it reads */
    flux__link *raised;                   /* groups whose level was raised (to), and the level
                                             before (next) */
    int nraised, raised_room;
    int steps;                            /* how many of FLUX__CIRCLE_STEPS are left for this
                                             node */
    int *member, *member_start;           /* nodes of group G, ascending: member[member_start[G]
                                             ... member_start[G+1]-1] */
    int *value_of;                        /* by node: the value that holds it in the kernel being
                                             built, or -1 */
    flux__kernel building;                /* arrays with spare capacity for that kernel's lines
                                             and operands */
    bool *gather;                         /* by node: a copy that is never made, see
                                             schedule/gathers.h */
    uint8_t *anew;                        /* by node: FLUX__ANEW, FLUX__ANEW_READS, see
                                             flux__find_anew */
    int *use, *use_start;                 /* uses of node i: use[use_start[i] ...
                                             use_start[i+1]-1] = node * 256 + operand */
    bool ok;                              /* false once memory has run out */
} flux__planner;

static void flux__dims8(const flux_tensor *t, int64_t *out) {
    int d = t->ndim;
    memcpy(out, t->dim, (size_t)d * sizeof *out);
    while (d < FLUX_MAX_DIMS) out[d++] = 1;
}

static bool flux__same8(const int64_t *a, const int64_t *b) {
    return memcmp(a, b, FLUX_MAX_DIMS * sizeof *a) == 0;
}

/* The strides by which a user reads x while it goes over its own points: those of x's layout, and 0
   along dims in which x is broadcast. */
static void flux__use_strides(flux_tensor *x, const int64_t *points, int64_t *offset,
                              int64_t *stride) {
    int64_t have[FLUX_MAX_DIMS];
    flux__layout(x, offset, have);
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        stride[d] = d < x->ndim && x->dim[d] == points[d] && points[d] > 1 ? have[d] : 0;
}

/* Whether the shape s is `full` with dims that follow each other made one; dims of size 1 do not
   count. *joined: the dims of `full` that continue the one before. If `stride` is given, strides
   along `full` become those along s. */
static bool flux__coarser(const int64_t *full, const int64_t *s, unsigned *joined,
                          int64_t *stride) {
    int64_t step[FLUX_MAX_DIMS] = { 0 };
    int d = 0;
    *joined = 0;
    for (int c = 0; c < FLUX_MAX_DIMS; c++) {
        int64_t n = 1;
        for (; n < s[c] && d < FLUX_MAX_DIMS; n *= full[d++]) {
            if (full[d] == 1) continue;
            if (n > 1) *joined |= 1u << d;
            else if (stride) step[c] = stride[d];
        }
        if (n != s[c]) return false;
    }
    for (; d < FLUX_MAX_DIMS; d++)
        if (full[d] != 1) return false;
    if (stride) memcpy(stride, step, sizeof step);
    return true;
}

/* The dims of a map that continue the one before in all that it reads. */
static unsigned flux__whole_dims(flux_tensor *t) {
    int64_t points[FLUX_MAX_DIMS], offset, stride[FLUX_MAX_DIMS];
    unsigned whole = ~0u;
    flux__dims8(t, points);
    for (int k = 0; k < t->nin; k++) {
        int last = -1;
        flux__use_strides(t->in[k], points, &offset, stride);
        for (int d = 0; d < FLUX_MAX_DIMS; d++) {
            if (points[d] == 1) continue;
            if (last >= 0 && stride[d] != stride[last] * points[last]) whole &= ~(1u << d);
            last = d;
        }
    }
    return whole;
}

/* Whether user reads operand k point by point: at point (i, j, ...) it reads element (i, j, ...) of
   the node, apart from dims in which the node is broadcast. A product's dims may be several of the
   user's each (flux__coarser). */
static bool flux__pointwise(flux_tensor *user, int k, const flux_tensor *node) {
    int64_t points[FLUX_MAX_DIMS], offset, stride[FLUX_MAX_DIMS], step = 1;
    flux__dims8(flux__is_reduce(user) ? user->in[0] : user, points);
    flux__use_strides(user->in[k], points, &offset, stride);
    if (offset != 0) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        int64_t n = node->op == FLUX__MATMUL ? points[d] : d < node->ndim ? node->dim[d] : 1;
        if (n != 1 && n != points[d]) return false;
        if (stride[d] != (n > 1 ? step : 0)) return false;
        step *= n;
    }
    return node->op != FLUX__MATMUL || step == flux__size(node);
}

static void flux__outer_dims(const flux__group *G, int64_t *out) {
    for (int d = 0; d < FLUX_MAX_DIMS; d++) out[d] = G->reduced >> d & 1 ? 1 : G->full[d];
}

static int64_t flux__count8(const int64_t *v) { return flux__product(v, FLUX_MAX_DIMS); }

/* Sets a group's level and records the old one in p->raised, so that it can be undone. */
static void flux__raise_one(flux__planner *p, int G, int level) {
    flux__link *raised =
        (flux__link *)flux__grow(p->raised, &p->raised_room, p->nraised + 1, sizeof *raised);
    if (!raised) {
        p->ok = false;
        return;
    }
    p->raised = raised, raised += p->nraised++;
    raised->to = G, raised->next = p->level[G];
    p->level[G] = level;
}

/* Raises the level of group G, and those of the groups that it needs where they are not higher
   already. Returns false, with all levels as they were, if one of the needed groups reads the node,
   so that a cycle would be closed, or if the search runs out of steps. */
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
    while (!(good && p->ok) && p->nraised)
        p->nraised--, p->level[p->raised[p->nraised].to] = p->raised[p->nraised].next;
    return good && p->ok;
}

/* Whether node can join group G without a cycle: all groups that use the node will then need G,
   which must come before them. */
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

/* Records that group a reads a result of group b. Only the four newest links are searched for a
   duplicate. */
static void flux__need_group(flux__planner *p, int a, int b) {
    for (int e = p->needs[a], n = 0; e >= 0 && n < 4; e = p->link[e].next, n++)
        if (p->link[e].to == b) return;
    flux__link *link = (flux__link *)flux__grow(p->link, &p->link_capacity, p->nlink + 1,
                                                sizeof *link);
    if (!link) {
        p->ok = false;
        return;
    }
    p->link = link;
    link[p->nlink].to = b, link[p->nlink].next = p->needs[a];
    p->needs[a] = p->nlink++;
}

/* The mask of the dims that a reduction really reduces: dims of size 1 do not count. */
static unsigned flux__real_mask(const flux_tensor *t) {
    unsigned real = 0;
    for (int d = 0; d < t->in[0]->ndim; d++)
        if ((t->arg.i[1] >> d & 1) && t->in[0]->dim[d] != 1) real |= 1u << d;
    return real;
}

/* Whether a map (a node computed point by point) fits into group G: its dims are all the group's
   dims, or its outer dims. In a fused group without a reduction it also fits if its dims are 1
   where they differ from the group's; with `commit`, those dims become the reduced ones. */
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

/* Whether a reduction is so deep that it stays out of the group. More than 65536 elements reduced
   to fewer than 4 results are best spread over threads, which takes a kernel of a single phase, so
   that such a reduction joins only users that have the shape of its result. */
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

/* Whether a reduction fits into group G. Its input dims are the group's dims, which have the same
   reduced mask or none yet; or its result dims are the dims of a group without a reduction. In the
   latter case the group's dims become the outer ones of the larger space. With `commit`, the
   group's dims and mask are changed accordingly. */
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
    /* the group had the dims of the result: they become its outer dims */
    if (commit) {
        memcpy(G->full, full, sizeof full);
        G->reduced = real;
    }
    return true;
}

/* Whether a matrix product can take group G as its epilogue: it has the group's dims, or dims of
   which each is several of the group's, as points are of an image's. */
static bool flux__product_fits(flux__group *G, const flux_tensor *t, bool commit) {
    int64_t s[FLUX_MAX_DIMS];
    unsigned joined;
    flux__dims8(t, s);
    if (G->kind != FLUX__K_FUSED || G->product >= 0 || G->reduced || G->reduces || G->members > 24)
        return false;
    if (flux__same8(G->full, s)) return true;
    if (!flux__coarser(G->full, s, &joined, NULL) || (joined & ~G->whole)) return false;
    if (commit) G->joined = joined | 1;   /* dims of size 1 may stand elsewhere: never 0 */
    return true;
}

/* Whether a node of group G, or one up to `depth` maps before it, reads a product that has no other
   user and could take the group as its epilogue: then a smaller map, as a scale of each channel, is
   left to a kernel of its own, because an epilogue has no outer values. */
static bool flux__awaits_product(const flux__planner *p, flux__group *G, int node, int depth) {
    const flux_tensor *t = p->g->node[node];
    int64_t s[FLUX_MAX_DIMS];
    for (int k = 0; k < t->nin && depth; k++) {
        flux_tensor *b = flux__base(t->in[k]);
        if (flux__finished(b) || !flux__in_graph(p->g, b) || p->gather[b->index] ||
            p->use_start[b->index + 1] - p->use_start[b->index] != 1) continue;
        flux__dims8(b, s);
        if (b->op == FLUX__MATMUL ? flux__product_fits(G, b, false)
            : flux__is_map(b) && flux__same8(s, G->full) &&
              flux__awaits_product(p, G, b->index, depth - 1))
            return true;
    }
    return false;
}

/* Whether a large group only repeats the elements of t, each a few times side by side, as a mean
   pooling's gradient does: a kernel of its own, which is a plain copy, is faster at that than one
   that has the points of t. */
static bool flux__only_repeats(const flux__planner *p, const flux__group *G, const flux_tensor *t) {
    int d = 0;
    while (d < t->ndim && G->full[d] == 1) d++;
    return G->members == 1 && p->g->node[G->last]->op == FLUX__COPY && d < t->ndim &&
           t->dim[d] == 1 && G->full[d] < 16 && flux__count8(G->full) >= 1 << 16;
}

/* Whether a node, or one up to `depth` maps before it, reads a reduction of the group's points that
   the group, which reduces over other dims, cannot take. */
static bool flux__awaits_reduction(const flux__planner *p, const flux__group *G, int node,
                                   int depth) {
    const flux_tensor *t = p->g->node[node];
    int64_t s[FLUX_MAX_DIMS];
    for (int k = 0; k < t->nin && depth; k++) {
        const flux_tensor *b = flux__base(t->in[k]);
        if (flux__finished(b) || !flux__in_graph(p->g, b) || p->gather[b->index]) continue;
        if (flux__is_reduce(b)) {
            flux__dims8(b->in[0], s);
            if (flux__same8(s, G->full) && flux__real_mask(b) != G->reduced) return true;
        } else if (flux__is_map(b) && flux__awaits_reduction(p, G, b->index, depth - 1))
            return true;
    }
    return false;
}

/* Whether a node of all points of group G, as a norm's gradient, is left to the kernel of the rows'
   sums that it needs: the group reduces over other dims, and other kernels need the node, too. Else
   the group would compute anew from the sums what it can read. */
static bool flux__left_to_rows(const flux__planner *p, const flux__group *G, int node) {
    int64_t s[FLUX_MAX_DIMS];
    bool apart = false;
    flux__dims8(p->g->node[node], s);
    if (!G->reduced || !flux__same8(s, G->full)) return false;
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++)
        apart = apart || &p->group[p->group_of[p->use[u] >> 8]] != G;
    return apart && flux__awaits_reduction(p, G, node, 5);
}

static bool flux__fits(flux__planner *p, int node, int G, bool commit) {
    flux_tensor *t = p->g->node[node];
    flux__group *group = &p->group[G];
    if (group->kind != FLUX__K_FUSED && group->kind != FLUX__K_MATMUL) return false;
    if (group->members >= FLUX__GROUP_MEMBERS || group->nodes >= FLUX__GROUP_NODES) return false;
    if (flux__is_map(t)) {
        int64_t s[FLUX_MAX_DIMS];
        flux__dims8(t, s);
        if (flux__only_repeats(p, group, t) || flux__left_to_rows(p, group, node)) return false;
        if (group->kind == FLUX__K_MATMUL
                ? group->members > 24 || (group->joined & ~flux__whole_dims(t))
                : !group->reduced && !flux__same8(s, group->full) &&
                  flux__awaits_product(p, group, group->last, 12))
            return false;
        return flux__map_fits(group, t, commit);
    }
    if (flux__is_reduce(t)) return flux__reduce_fits(p, node, group, commit);
    return t->op == FLUX__MATMUL && flux__product_fits(group, t, commit);
}

static int flux__own_kind(const flux_tensor *t) {
    switch (t->op) {
    case FLUX__MATMUL: return FLUX__K_MATMUL;
    case FLUX__GATHER: return FLUX__K_GATHER;
    case FLUX__SCATTER: return FLUX__K_SCATTER;
    case FLUX__AS_STRIDED_SCATTER: return FLUX__K_STRIDED_SCATTER;
    case FLUX__CAT: return FLUX__K_CAT;
    case FLUX__MOVE: return FLUX__K_MOVE;
    case FLUX__INTERPOLATE: return FLUX__K_INTERPOLATE;
    case FLUX__ATTEND: return FLUX__K_ATTEND;
    case FLUX__CALL: return FLUX__K_CALL;
    case FLUX__SORT: return FLUX__K_SORT;
    default: return FLUX__K_FUSED;
    }
}

static int flux__new_group(flux__planner *p, int node) {
    flux_tensor *t = p->g->node[node];
    flux__group *G = &p->group[p->ngroup];
    memset(G, 0, sizeof *G);
    G->kind = flux__own_kind(t);
    G->whole = ~0u;
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

/* How many groups are tried for a node. Each try goes over all uses of the node, so a node with
   many uses gets fewer tries. */
static int flux__tries(const flux__planner *p, int node) {
    return FLUX__JOIN_LOOKS / (p->use_start[node + 1] - p->use_start[node] + 1) + 4;
}

/* Whether a node may join group G: it fits, all its users in G read it point by point and none of
   them is the matrix product, and no cycle of groups results. */
static bool flux__may_join(flux__planner *p, int node, int G) {
    if (p->tried[G] == node + 1) return false;
    p->tried[G] = node + 1;
    if (!flux__fits(p, node, G, false)) return false;
    for (int v = p->use_start[node]; v < p->use_start[node + 1]; v++) {
        int user = p->use[v] >> 8;
        if (user == p->group[G].product) return false;
        if (p->group_of[user] == G &&
            !flux__pointwise(p->g->node[user], p->use[v] & 255, p->g->node[node]))
            return false;
    }
    return flux__no_circle(p, node, G);
}

/* Whether this node, up to `depth` maps back, depends on a matrix product or reduction that has no
   other user. Such a node is better left to be its epilogue. */
static bool flux__ends_work(const flux__planner *p, int node, int depth) {
    flux_tensor *t = p->g->node[node];
    for (int k = 0; k < t->nin && depth; k++) {
        flux_tensor *b = flux__base(t->in[k]);
        if (flux__finished(b) || b->op == FLUX__NUMBER ||
            p->use_start[b->index + 1] - p->use_start[b->index] != 1)
            continue;
        if (b->op == FLUX__MATMUL || flux__is_reduce(b) ||
            (flux__is_map(b) && flux__ends_work(p, b->index, depth - 1)))
            return true;
    }
    return false;
}

static bool flux__is_computed(const flux_tensor *t) {
    return t->op < FLUX__ELEMENTWISE_COUNT || t->op == FLUX__CAST;
}

/* The group of another operand, of the same shape, of a cat that reads this node; -1: none. In one
   kernel, what the operands of the cat share (as the gates of a recurrent cell do) is read once. */
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

/* The group that a node joins: that of one of its users, which have theirs already, or of a sibling
   under a cat. -1: it needs a group of its own. */
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

/* Whether a node only widens a half format to f32 or narrows f32 to a half format. That is part of
   a load or of the rounding before a store, so it does not count as a member of its group. */
static bool flux__is_width(const flux_tensor *t) {
    return t->op == FLUX__CAST &&
           (t->dtype == FLUX_F32 ? flux__is_half(t->in[0]->dtype)
                                 : t->in[0]->dtype == FLUX_F32 && flux__is_half(t->dtype));
}

/* Gives every node its group, from the last node to the first, so that the users of a node have
   their groups before it. Copies that are never made (p->gather) get none. False: out of memory. */
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
        if (flux__is_map(t)) group->whole &= flux__whole_dims(t);
        if (t->op == FLUX__MATMUL) group->kind = FLUX__K_MATMUL, group->product = i;
        for (int u = p->use_start[i]; u < p->use_start[i + 1]; u++) {
            int K = p->group_of[p->use[u] >> 8];
            if (K != G) flux__need_group(p, K, G);
        }
        if (!p->ok) return false;
    }
    return true;
}

/* ---------------- values that each kernel computes for itself

   A value that one kernel makes and others read is stored, and read again. Where it follows by
   cheap operations from one tensor that is in memory anyway and from a few numbers, as all that a
   normalisation and its activation need in their gradients does, the others compute it anew. */

enum {
    FLUX__ANEW = 1,                       /* computed by each kernel that needs it, not stored */
    FLUX__ANEW_READS = 2,                 /* stored, as others compute such a value from it */
    FLUX__ANEW_LARGE = 1 << 18,           /* fewer elements stay in the cache */
    FLUX__ANEW_DEPTH = 8                  /* most operations, one on another */
};

/* Whether a node, read in this kernel, is not stored and must be computed there. */
static bool flux__is_anew(const flux__planner *p, const flux_tensor *b) {
    return !flux__finished(b) && flux__in_graph(p->g, b) && (p->anew[b->index] & FLUX__ANEW);
}

/* Whether kernels other than its own read a node that is computed point by point only in the same
   way, so that they can compute it themselves; *apart: whether there are such kernels. */
static bool flux__users_can(const flux__planner *p, int node, bool *apart) {
    const flux_tensor *t = p->g->node[node];
    int64_t s[FLUX_MAX_DIMS];
    *apart = false;
    flux__dims8(t, s);
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        const int user = p->use[u] >> 8;
        const flux__group *K = &p->group[p->group_of[user]];
        if (p->group_of[user] == p->group_of[node]) continue;
        *apart = true;
        if (K->kind != FLUX__K_FUSED || !flux__same8(s, K->full) ||
            K->nodes + FLUX__ANEW_DEPTH > FLUX__GROUP_NODES ||
            !flux__pointwise(p->g->node[user], p->use[u] & 255, t)) return false;
    }
    return true;
}

/* Whether a node can be computed anew from small tensors and one of its own size, which is stored
   anyway: *from, NULL as long as none was found. With `commit`, it will be. */
static bool flux__follows(flux__planner *p, int node, flux_tensor **from, int depth, bool commit) {
    flux_tensor *t = p->g->node[node];
    const int own = p->group_of[node];
    if (!depth || t->op >= FLUX__ELEMENTWISE_COUNT || flux__rules[t->op] == 'F' ||
        !flux__dtypes[t->dtype].real || (p->g->flag[node] & FLUX__ROOT)) return false;
    if (commit) p->anew[node] |= FLUX__ANEW;
    for (int k = 0; k < t->nin; k++) {
        flux_tensor *x = t->in[k], *b = flux__base(x);
        const bool here = !flux__finished(b) && flux__in_graph(p->g, b);
        bool apart;
        if (b->op == FLUX__NUMBER) continue;
        if (here && flux__size(b) * 8 > flux__size(t) &&
            (flux__is_anew(p, b) || (p->group_of[b->index] == own &&
                                     !(p->g->flag[b->index] & FLUX__ROOT) &&
                                     flux__users_can(p, b->index, &apart) && !apart))) {
            if (!flux__pointwise(t, k, b) || flux__size(b) != flux__size(t) ||
                !flux__follows(p, b->index, from, depth - 1, commit)) return false;
            continue;
        }
        if (commit && here) p->anew[b->index] |= FLUX__ANEW_READS;
        if (flux__size(x) * 8 <= flux__size(t)) continue;
        if ((*from && *from != x) || flux__dtypes[x->dtype].size > flux__dtypes[t->dtype].size)
            return false;
        *from = x;
    }
    return true;
}

/* Marks the values that are computed anew. */
static void flux__find_anew(flux__planner *p) {
    bool apart;
    for (int i = 0; i < p->n; i++) {
        flux_tensor *from = NULL;
        if (p->group_of[i] < 0 || p->group[p->group_of[i]].kind != FLUX__K_FUSED ||
            flux__size(p->g->node[i]) < FLUX__ANEW_LARGE || !flux__users_can(p, i, &apart) ||
            !apart || !flux__follows(p, i, &from, FLUX__ANEW_DEPTH, false)) continue;
        flux__follows(p, i, &from, FLUX__ANEW_DEPTH, true);
        for (int u = p->use_start[i]; u < p->use_start[i + 1]; u++)
            p->group[p->group_of[p->use[u] >> 8]].nodes += FLUX__ANEW_DEPTH;
    }
}

/* Lists the nodes of each group in ascending order (member, member_start), by a counting sort. */
static void flux__list_members(flux__planner *p) {
    int *start = p->member_start;
    for (int G = 0; G <= p->ngroup; G++) start[G] = 0;
    for (int i = 0; i < p->n; i++)
        if (p->group_of[i] >= 0) start[p->group_of[i]]++;
    /* start[G] is the end of group G now */
    for (int G = 0, at = 0; G <= p->ngroup; G++) at += start[G], start[G] = at;
    for (int i = p->n - 1; i >= 0; i--)
        if (p->group_of[i] >= 0) p->member[--start[p->group_of[i]]] = i;
}

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_GROUPING_H */
