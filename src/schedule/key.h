#ifndef FLUX__SCHEDULE_KEY_H
#define FLUX__SCHEDULE_KEY_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32 */
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../graph/backward.h"
#include "kernel.h"
#include "claims.h"

/* ---------------------------------------------------------------------- schedule/key.h
   From tensors to a graph in order, and its key. flux__graph_visit collects the
   unfinished nodes depth first, without recursion, and the leaves, finished
   tensors that they read; flux__graph_key describes both as a sequence of
   integers, the key, under which plans are cached (schedule/plans.h).

   Invariant: operands have lower numbers than results. Whatever a plan or a
   kernel depends on is in the key: operations and their parameters, dtypes,
   dims, strides of views, devices, which nodes are stored, which leaves may be
   overwritten, TF32. What a plan must not depend on is left out: addresses,
   values of numbers, random keys. Elementwise operations and reductions read
   the value of a NUMBER in place; it is then no node of the graph. Two graphs
   with equal keys have equal plans. */

FLUX__BEGIN_HOT

/* Flags of a node. ROOT: it must be stored; KEEP: it keeps its buffer after the plan has run; SEEN:
   somebody outside the step can still look at it. */
enum { FLUX__ROOT = 1, FLUX__KEEP = 2, FLUX__SEEN = 4 };
/* The most nodes of a plan: a use is an int, node * 256 + operand, see flux__find_uses. */
enum { FLUX__MOST_NODES = (1 << 23) - 1 };

typedef struct flux__graph {
    flux_tensor **node, **leaf;
    uint8_t *flag;                        /* by node: FLUX__ROOT and others */
    int *donated;                         /* by node: the leaf whose buffer it may take over, or
                                             -1 */
    int nnode, node_capacity, flag_capacity, donated_capacity, nleaf, leaf_capacity;
    int64_t *key;
    int nkey, key_capacity;
    flux__map leaves;
    flux__dfs_frame *frame;               /* stack of a depth-first visit: frames from its start
                                             to the current node */
    int top, frame_capacity;
    uint32_t walk, met;                   /* met: the mark of another thread's claimed nodes */
    flux__claim claim;
    bool tf32;                            /* matrix products may use TF32; part of the key */
    bool cut;                             /* an update: nodes are cut off from their operands
                                             afterwards, and those that nobody can look at are
                                             not kept */
    bool copies;                          /* some nodes are COPY */
    uint8_t flags;                        /* the flags of all nodes, or-ed */
    bool ok;
} flux__graph;

/* The plans of a thread. clock: how many look-ups there were. kept: the arrays of the last graph,
   which the next one uses again. */
typedef struct flux__plans {
    flux__plan *bucket[FLUX__BUCKETS];
    int count;
    int64_t bytes;                        /* bytes of all plans together */
    uint32_t clock;
    flux__graph kept;
} flux__plans;

static FLUX__INLINE bool flux__finished(const flux_tensor *t) {
    return flux__see_buffer(&t->buf) || t->op == FLUX__LEAF;
}
static FLUX__INLINE bool flux__in_graph(const flux__graph *g, const flux_tensor *t) {
    return flux__see32(&t->mark) == g->walk;
}
static FLUX__INLINE flux_tensor *flux__base(flux_tensor *t) {
    return FLUX__IS_VIEW(t) ? t->base : t;
}
/* Number of operands that must be computed first; a NUMBER needs none. */
static FLUX__INLINE int flux__reads(const flux_tensor *t) {
    return t->op == FLUX__NUMBER ? 0 : t->nin;
}

/* Prefetches a node that a pass over many nodes reaches soon: the nodes of a large graph are in no
   cache when they are reached. */
static FLUX__INLINE void flux__soon(flux_tensor *const *node, int i, int n) {
    if ((unsigned)i >= (unsigned)n) return;
    const char *at = (const char *)node[i];
    FLUX__PREFETCH(at)
    FLUX__PREFETCH(at + 64)
    FLUX__PREFETCH(at + 128)
    (void)at;
}
/* SOON: how many nodes ahead to prefetch; FAR: graphs of fewer nodes fit into the second-level
   cache. */
enum { FLUX__SOON = 6, FLUX__FAR = 2000 };

/* Whether a node is computed point by point and can be a value in a fused kernel. */
static bool flux__is_map(const flux_tensor *t) {
    return t->op < FLUX__ELEMENTWISE_COUNT || t->op == FLUX__CAST || t->op == FLUX__COPY ||
           t->op == FLUX__IOTA || t->op == FLUX__RANDOM || t->op == FLUX__NUMBER;
}
/* hook: flux__watched_layer, nn/model.h */
/* Writes to out which layer flux_summary or flux_outputsize is calling; false: none. */
static bool flux__watched_layer(char *out, size_t n);
static bool flux__is_reduce(const flux_tensor *t) {
    return t->op == FLUX__REDUCE || t->op == FLUX__ARGREDUCE;
}

/* flux__leaf_number gives the number of a leaf, or -1. Up to FLUX__FEW_LEAVES leaves are searched
   one by one; beyond that the graph has a hash map of them. */
#define FLUX__FEW_LEAVES 8

static int flux__leaf_number(const flux__graph *g, const flux_tensor *t) {
    if (g->nleaf > FLUX__FEW_LEAVES) return flux__map_get(&g->leaves, t);
    int i = g->nleaf - 1;
    while (i >= 0 && g->leaf[i] != t) i--;
    return i;
}

/* Adds a finished tensor to the graph's leaves, unless it is one already. A leaf without a buffer
   has no value to read, which is an error: a placeholder, or a tensor whose memory an update took
   over. */
static void flux__graph_leaf(flux__graph *g, flux_tensor *t) {
    if (flux__leaf_number(g, t) >= 0) return;
    flux_tensor **leaf =
        (flux_tensor **)flux__grow(g->leaf, &g->leaf_capacity, g->nleaf + 1, sizeof *leaf);
    if (leaf) g->leaf = leaf, leaf[g->nleaf++] = t;
    else g->ok = false;
    for (int i = g->nleaf == FLUX__FEW_LEAVES + 1 ? 0 : g->nleaf - 1;
         g->ok && g->nleaf > FLUX__FEW_LEAVES && i < g->nleaf; i++)
        g->ok = flux__map_put(&g->leaves, leaf[i], i);
    if (!g->ok) return;
    if (!t->buf) {
        flux__text text = flux__describe(t);
        char layer[160];
        if (t->flags & FLUX__CONSUMED)
            flux__fail(
                "a tensor's memory was taken over by flux_update; keep a copy with flux_copy (%s)",
                text.s);
        else if (flux__watched_layer(layer, sizeof layer))
            flux__fail("%s looks at a value, but a placeholder (%s) has no value: flux_summary, "
                       "flux_outputsize and flux_export_c compute none",
                       layer, text.s);
        else flux__fail("a placeholder (%s) has no value", text.s);
        g->ok = false;
    }
}

/* Gives a node its number in the graph and marks it as visited. */
static void flux__graph_add(flux__graph *g, flux_tensor *t) {
    flux_tensor **node =
        (flux_tensor **)flux__grow(g->node, &g->node_capacity, g->nnode + 1, sizeof *node);
    if (node) g->node = node;
    uint8_t *flag = (uint8_t *)flux__grow(g->flag, &g->flag_capacity, g->nnode + 1, 1);
    if (flag) g->flag = flag;
    int *donated = (int *)flux__grow(g->donated, &g->donated_capacity, g->nnode + 1,
                                     sizeof *donated);
    if (donated) g->donated = donated;
    if (!node || !flag || !donated) {
        g->ok = false;
        return;
    }
    flux__show32(&t->mark, g->walk);
    t->index = g->nnode;
    flag[g->nnode] = 0;
    donated[g->nnode] = -1;
    node[g->nnode++] = t;
}

/* Pushes a node on the stack of the search, which ends if another thread computes the node. */
static void flux__graph_push(flux__graph *g, flux_tensor *t) {
    if (flux__claims.first && t->mark && flux__claimed(t->mark)) {
        g->met = t->mark;
        g->ok = false;
        return;
    }
    flux__dfs_frame *frame = (flux__dfs_frame *)flux__grow(g->frame, &g->frame_capacity, g->top + 1,
                                                           sizeof *frame);
    if (!frame) {
        g->ok = false;
        return;
    }
    g->frame = frame, frame += g->top++;
    frame->t = t, frame->next = 0;
}

/* The next operand of the node on top of the stack that has yet to be visited, or NULL. Finished
   operands become leaves on the way; numbers that a map or a reduction reads in place are
   skipped. The last operand of a call comes first: of a collective it is the one before it, so that
   each one's operands are computed, and it can start, before those of the next. */
static flux_tensor *flux__graph_below(flux__graph *g) {
    flux__dfs_frame *frame = &g->frame[g->top - 1];
    flux_tensor *t = frame->t;
    const int n = flux__reads(t);
    while (frame->next < n) {
        const int i = frame->next++, at = t->op != FLUX__CALL ? i : i ? i - 1 : n - 1;
        flux_tensor *x = flux__base(t->in[at]);
        if (x->op == FLUX__NUMBER && !flux__finished(x) &&
            (flux__is_map(t) || flux__is_reduce(t)))
            continue;
        if (flux__finished(x)) flux__graph_leaf(g, x);
        else if (!flux__in_graph(g, x)) return x;
    }
    return NULL;
}

/* Visits t and the unfinished nodes behind it depth first, so that operands get lower numbers than
   results. */
static void flux__graph_visit(flux__graph *g, flux_tensor *t) {
    t = flux__base(t);
    if (flux__finished(t)) flux__graph_leaf(g, t);
    else if (!flux__in_graph(g, t)) flux__graph_push(g, t);
    while (g->top && g->ok) {
        flux_tensor *x = flux__graph_below(g);
        if (x) flux__graph_push(g, x);
        else flux__graph_add(g, g->frame[--g->top].t);
    }
}

/* Visits the graph behind x, which is no view, and makes x a root. */
static void flux__graph_want(flux__graph *g, flux_tensor *x) {
    flux__graph_visit(g, x);
    if (g->ok && !flux__finished(x)) g->flag[x->index] |= FLUX__ROOT;
}

/* Grows the key for a node of so many operands, so that what is appended for the node needs no
   check. */
static bool flux__key_reserve(flux__graph *g, int operands) {
    int64_t *key =
        (int64_t *)flux__grow(g->key, &g->key_capacity, g->nkey + 32 + 20 * operands, sizeof *key);
    if (key) g->key = key;
    else g->ok = false;
    return key != NULL;
}

static FLUX__INLINE int64_t *flux__key_dims(int64_t *key, const int64_t *v, int n) {
    for (int i = 0; i < n; i++) *key++ = v[i];
    return key;
}

/* Whether the operands of maps and reductions that lie in b, a NUMBER, are read in place: b is no
   node and no leaf of the graph. Another thread may give it a buffer meanwhile. */
static bool flux__in_place_number(const flux__graph *g, const flux_tensor *b) {
    return b->op == FLUX__NUMBER && !flux__in_graph(g, b) &&
           (!flux__finished(b) || flux__leaf_number(g, b) < 0);
}

/* Appends an operand to the key: its kind (0 leaf, 1 node, 2 number), its number, and for a view
   the layout in which it reads its base. The dims of a node are in the key already. */
static int64_t *flux__key_operand(flux__graph *g, int64_t *key, flux_tensor *x) {
    flux_tensor *b = flux__base(x);
    const bool number = flux__in_place_number(g, b),
               leaf = !number && flux__finished(b);
    const int64_t id = number ? 0 : leaf ? flux__leaf_number(g, b) : b->index,
                  kind = number ? 2 : !leaf;
    *key++ = kind | (int64_t)x->dtype << 4 | (int64_t)x->ndim << 8 | (int64_t)(x != b) << 12 |
             id << 16;
    if (kind == 1 && x == b) return key;
    key = flux__key_dims(key, x->dim, x->ndim);
    if (x == b) return key;
    *key++ = x->offset;
    return flux__key_dims(key, x->stride, x->ndim);
}

static int64_t flux__device_word(flux_device d) {
    return (int64_t)d.backend << 56 | (int64_t)d.id << 48;
}

/* Appends the parameters of an operation, besides its operands, to the key. */
static int64_t *flux__key_arg(flux__graph *g, int64_t *key, const flux_tensor *t) {
    if (t->op == FLUX__COPY) g->copies = true;
    if (t->op == FLUX__MATMUL) return flux__key_dims(key, t->arg.i + 3, 1);
    if (t->op == FLUX__REDUCE || t->op == FLUX__ARGREDUCE) return flux__key_dims(key, t->arg.i, 2);
    if (t->op == FLUX__GATHER || t->op == FLUX__SCATTER || t->op == FLUX__CAT ||
        t->op == FLUX__SORT || t->op == FLUX__INTERPOLATE)
        return flux__key_dims(key, t->arg.i, 1);
    if (t->op == FLUX__RANDOM) return flux__key_dims(key, t->arg.i + 2, 1);
    if (t->op == FLUX__ATTEND) return flux__key_dims(key, t->arg.i, 3);
    if (t->op == FLUX__CALL) return flux__key_dims(key, t->arg.i, FLUX_MAX_DIMS);
    if (t->op != FLUX__AS_STRIDED_SCATTER) return key;
    key = flux__key_dims(key, t->arg.i, 2);
    *key++ = t->rel;
    return flux__key_dims(key, t->stride, FLUX_MAX_DIMS);
}

/* Whether a node keeps its buffer when the plan has run: if the graph is cut, only nodes that
   somebody can look at do; otherwise all stored nodes but those recorded without grad that no
   handle reaches. */
static FLUX__INLINE bool flux__stays(const flux__graph *g, const flux_tensor *t, int flag) {
    if (g->cut) return (flag & (FLUX__SEEN | FLUX__ROOT)) != 0;
    return !(t->flags & FLUX__FIXED) || (flag & FLUX__ROOT) || flux__visible(t);
}

/* Appends a node to the key: operation, dtype, device, flags, donated leaf, dims, operands and
   parameters. */
static void flux__key_node(flux__graph *g, int i) {
    flux_tensor *t = g->node[i];
    const int n = flux__reads(t);
    if (!flux__key_reserve(g, t->nin)) return;
    int flag = g->flag[i] | (t->flags & FLUX__LASTING ? FLUX__ROOT : 0);
    if (flux__stays(g, t, flag)) flag |= FLUX__KEEP, g->flag[i] = (uint8_t)flag;
    g->flags |= t->flags;
    int64_t *key = g->key + g->nkey;
    *key++ = t->op | (int64_t)t->dtype << 16 | (int64_t)t->ndim << 20 | (int64_t)n << 24 |
             (int64_t)(flag & ~FLUX__SEEN) << 32 | flux__device_word(t->device);
    *key++ = g->donated[i];
    key = flux__key_dims(key, t->dim, t->ndim);
    for (int k = 0; k < n; k++) key = flux__key_operand(g, key, t->in[k]);
    if (t->op >= FLUX__ELEMENTWISE_COUNT) key = flux__key_arg(g, key, t);
    g->nkey = (int)(key - g->key);
}

/* Builds the graph's key. On the way the nodes get their KEEP flags. */
static void flux__graph_key(flux__graph *g) {
    if (!flux__key_reserve(g, g->nleaf)) return;
    g->tf32 = flux__atomic_load32(&flux__tf32) != 0;
    g->key[g->nkey++] = (int64_t)g->nleaf << 32 | (int64_t)g->tf32 << 31 | g->nnode;
    for (int i = 0; i < g->nleaf; i++)
        g->key[g->nkey++] = g->leaf[i]->dtype | flux__device_word(g->leaf[i]->device);
    const int ahead = g->nnode > FLUX__FAR ? FLUX__SOON : 0;
    for (int i = 0; i < g->nnode; i++) {
        if (ahead) flux__soon(g->node, i + ahead, g->nnode);
        flux__key_node(g, i);
    }
}

/* Makes g an empty graph, with the arrays that this thread's last graph left and a new number,
   g->walk, by which visited nodes are marked. Graphs are collected under the claims' lock:
       do { flux__graph_start(&g); ... flux__graph_visit ... } while (flux__graph_met(&g));
       flux__graph_claim(&g); ... flux__graph_free(&g); */
static void flux__graph_start(flux__graph *g) {
    flux__thread *t = flux__self();
    if (t && t->plans) {
        *g = t->plans->kept;
        memset(&t->plans->kept, 0, sizeof t->plans->kept);
    } else memset(g, 0, sizeof *g);
    g->ok = t != NULL;
    g->met = g->claim.walk = 0;
    flux__claims_lock();
    g->walk = flux__new_walk();
}

/* Claims the nodes that were collected, and gives up the lock. */
static void flux__graph_claim(flux__graph *g) {
    flux__claim_begin(&g->claim, g->walk);
    flux__claims_unlock();
}

static void flux__graph_drop(flux__graph *g) {
    flux__free(g->node);
    flux__free(g->flag);
    flux__free(g->donated);
    flux__free(g->leaf);
    flux__free(g->key);
    flux__free(g->frame);
    flux__map_free(&g->leaves);
}

/* Leaves the graph's arrays to this thread's next graph, or frees them if these are large or the
   thread has such arrays already. */
static void flux__graph_free(flux__graph *g) {
    if (g->claim.walk) flux__claim_end(&g->claim);
    flux__thread *t = flux__self();
    flux__plans *plans = t ? t->plans : NULL;
    if (!plans || plans->kept.node || g->node_capacity > 4096) {
        flux__graph_drop(g);
        return;
    }
    if (g->leaves.n) memset(g->leaves.key, 0, (size_t)g->leaves.capacity * sizeof *g->leaves.key);
    g->nnode = g->nleaf = g->nkey = g->top = g->leaves.n = 0;
    g->cut = g->copies = false;
    g->flags = 0;
    /* a graph within this one that ran out of memory before its first node */
    if (plans->kept.frame || plans->kept.leaf) flux__graph_drop(&plans->kept);
    plans->kept = *g;
}

/* Whether the search met a node that another thread computes. If so, the graph is freed, the lock
   given up, and that thread waited for: the graph has to be collected again. */
static bool flux__graph_met(flux__graph *g) {
    if (!g->met) return false;
    flux__claim_wait();
    flux__claims_unlock();
    flux__graph_free(g);
    return true;
}

FLUX__END_HOT

#endif /* FLUX__SCHEDULE_KEY_H */
