#ifndef FLUX__GRAPH_BACKWARD_H
#define FLUX__GRAPH_BACKWARD_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add32 */
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"
#include "products.h"
#include "gradients.h"

/* ---------------------------------------------------------------------- graph/backward.h
   Reverse-mode differentiation: the walk from the loss back along the edges.
   flux__walk_collect numbers all nodes that the loss depends on, operands
   first, without recursion; flux__backward then calls flux__gradient_of
   (graph/gradients.h) from the last node to the first and sums what reaches
   each. flux__map, a hash map from tensors to numbers, is here too.
   schedule/update.h uses the walk with whole set, to count references.

   Invariant: contributions to one gradient are summed in an order that
   recording fixes, so results repeat. A walk writes only to nodes of its own
   thread: an unfinished node keeps its number itself, a finished one, which
   threads may share, is looked up in a map. Nothing passes behind nodes of
   FLUX_NOGRAD, except in a whole walk.

   Rejected: adding up the contributions of many time steps one by one, where
   each slice's gradient would be as large as the whole tensor and each product
   small: slices that do not overlap are joined, and a sum of products becomes
   one product of joined matrices. */

FLUX__BEGIN_LEAN

/* A hash map (open addressing, linear probing) from tensors to numbers. It does not write to the
   tensors: threads may share them. */
typedef struct flux__map {
    flux_tensor **key;                    /* NULL: the slot is free */
    int *value;
    int n, capacity;                      /* entries, at most half of capacity, which is 2^k or 0 */
} flux__map;

/* One contribution to a gradient, in a linked list: next is an index from 1, and 0 ends it. */
typedef struct flux__more { flux_tensor *x; int next; } flux__more;

/* One frame of the depth-first search: a node, the operand to visit next, and whether threads may
   share the node. */
typedef struct flux__dfs_frame { flux_tensor *t; int next; bool shared; } flux__dfs_frame;

typedef struct flux__walk {
    flux_tensor **node, **grad;           /* numbered nodes, operands first; their gradients */
    int *refs, refs_room;                 /* by node in a whole walk: edges of walked nodes to it */
    int *more_of;                         /* by node: head of its list in more, the last
                                             contribution first; 0: the list is empty */
    flux__more *more;                     /* contributions but for each node's first, in grad */
    int nmore, more_room;
    flux_tensor *cat[8];                  /* the last 8 concatenations along a last dim made by
                                             flux__join_slices: a ring, the next at ncat & 7 */
    int ncat;
    bool *wanted;                         /* by node: it depends on a tensor that was asked for */
    int n, capacity;                      /* nodes numbered; capacity of node */
    flux__dfs_frame *frame;               /* the search's stack, the loss first */
    int top, frame_capacity;
    flux__map shared;                     /* numbers of the nodes that other threads made */
    uint32_t id;                          /* walk_mark of nodes that hold their own number */
    uint16_t maker;                       /* number of this thread: other threads' nodes do not */
    bool whole;                           /* also follows edges behind nodes of FLUX_NOGRAD,
                                             which no gradient passes */
} flux__walk;

/* The value slot of t, or the free slot in which t would be put. The map must have room for one. */
static FLUX__INLINE int *flux__map_slot(const flux__map *m, const flux_tensor *t) {
    uint64_t hash = ((uint64_t)(uintptr_t)t >> 4) * 0x9e3779b97f4a7c15u;
    int i = (int)(hash >> 33) & (m->capacity - 1);
    while (m->key[i] && m->key[i] != t) i = (i + 1) & (m->capacity - 1);
    return &m->value[i];
}

/* Makes room for one more entry: doubles the capacity once half of it is taken. False: an error
   was told. */
static bool flux__map_grow(flux__map *m) {
    flux__map big;
    if (m->n * 2 < m->capacity) return true;
    big.capacity = m->capacity ? m->capacity * 2 : 64;
    big.n = m->n;
    big.key = (flux_tensor **)flux__zalloc((size_t)big.capacity * sizeof *big.key);
    big.value = (int *)flux__malloc((size_t)big.capacity * sizeof *big.value);
    if (!big.key || !big.value) {
        flux__free(big.key);
        flux__free(big.value);
        return false;
    }
    for (int i = 0; i < m->capacity; i++)
        if (m->key[i]) {
            int *slot = flux__map_slot(&big, m->key[i]);
            *slot = m->value[i];
            big.key[slot - big.value] = m->key[i];
        }
    flux__free(m->key), flux__free(m->value);
    *m = big;
    return true;
}

/* The number of t, or -1 when it has none. */
static FLUX__O2 int flux__map_get(const flux__map *m, const flux_tensor *t) {
    if (!m->capacity) return -1;
    int *slot = flux__map_slot(m, t);
    return m->key[slot - m->value] ? *slot : -1;
}

/* Sets the number of t, new or not. False: an error was told. */
static bool flux__map_put(flux__map *m, flux_tensor *t, int value) {
    if (!flux__map_grow(m)) return false;
    int *slot = flux__map_slot(m, t);
    if (!m->key[slot - m->value]) m->n++;
    m->key[slot - m->value] = t;
    *slot = value;
    return true;
}

static void flux__map_free(flux__map *m) {
    flux__free(m->key);
    flux__free(m->value);
}

/* The number of t in this walk, or below 0 if it has none yet: -1 where the number will stand in
   the node, -2 where it will stand in the map. A thread writes into nodes that it made, and into
   no others, as threads may walk through the same nodes. No two walks have the same id. */
static FLUX__INLINE int flux__walk_get(const flux__walk *w, const flux_tensor *t) {
    if (t->maker == w->maker && t->maker) return t->walk_mark == w->id ? t->walk_index : -1;
    const int k = flux__map_get(&w->shared, t);
    return k < 0 ? -2 : k;
}

/* Sets up an empty walk under an id that no other walk has. False: an error was told. */
static bool flux__walk_start(flux__walk *w) {
    static int walks;
    memset(w, 0, sizeof *w);
    while (w->id == 0) w->id = (uint32_t)flux__atomic_add32(&walks, 1);
    const flux__thread *self = flux__self();
    w->maker = self ? self->number : 0;
    return self != NULL;
}

/* Pushes t on the search's stack. False: an error was told. */
static FLUX__INLINE bool flux__walk_push(flux__walk *w, flux_tensor *t, bool shared) {
    flux__dfs_frame *frame = (flux__dfs_frame *)flux__grow(w->frame, &w->frame_capacity, w->top + 1,
                                                           sizeof *frame);
    if (!frame) return false;
    w->frame = frame, frame += w->top++;
    frame->t = t, frame->next = 0, frame->shared = shared;
    return true;
}

/* Gives t the next number. shared: threads may share t, so the number goes into the map. refs:
   the edges to t seen so far, kept in a whole walk. False: an error was told. */
static FLUX__INLINE bool flux__walk_number(flux__walk *w, flux_tensor *t, bool shared, int refs) {
    flux_tensor **node = (flux_tensor **)flux__grow(w->node, &w->capacity, w->n + 1, sizeof *node);
    if (!node) return false;
    w->node = node;
    if (w->whole) {
        int *all = (int *)flux__grow(w->refs, &w->refs_room, w->n + 1, sizeof *all);
        if (!all) return false;
        w->refs = all, all[w->n] = refs;
    }
    if (!shared) t->walk_mark = w->id, t->walk_index = w->n;
    else if (!flux__map_put(&w->shared, t, w->n)) return false;
    node[w->n++] = t;
    return true;
}

/* Numbers all nodes that the loss depends on, operands first, in depth-first order without
   recursion. Only edges that a gradient passes are followed, unless the walk is a whole one.
   False: an error was told. */
static FLUX__O2 bool flux__walk_collect(flux__walk *w, flux_tensor *loss) {
    int k = flux__walk_get(w, loss);
    if (k >= 0) return true;
    if (!flux__walk_push(w, loss, k == -2)) return false;
    while (w->top) {
        flux__dfs_frame *frame = &w->frame[w->top - 1];
        flux_tensor *t = frame->t, *x = NULL;
        const int n = w->whole ? t->nin : flux__behind(t);
        for (k = 0; frame->next < n && k >= 0;) {
            x = t->in[frame->next++];
            k = flux__walk_get(w, x);
            if (k < 0 && (w->whole ? x->nin : flux__behind(x)) == 0) {
                if (!flux__walk_number(w, x, k == -2, 1)) return false;
                k = 0;
            } else if (k >= 0 && w->whole) w->refs[k]++;
        }
        if (k < 0 ? !flux__walk_push(w, x, k == -2)
                  : (w->top--, !flux__walk_number(w, t, frame->shared, w->top > 0))) return false;
    }
    return true;
}

/* Marks the nodes whose gradient is needed: the tensors asked for and all that depend on them. */
static void flux__mark_wanted(flux__walk *w, const flux_grads *g) {
    for (int i = 0; i < g->n; i++) {
        int k = flux__walk_get(w, g->of[i]);
        if (k >= 0) w->wanted[k] = true;
    }
    for (int k = 0; k < w->n; k++)
        for (int i = 0; i < flux__behind(w->node[k]) && !w->wanted[k]; i++)
            w->wanted[k] = w->wanted[flux__walk_get(w, w->node[k]->in[i])];
}

/* ---------------- many contributions to one gradient
   A loop over the steps of a sequence takes at each step a slice of one tensor and multiplies it by
   one weight. If the contributions were added up one by one, each slice's gradient would be as
   large as the whole tensor, and each contribution to the weight's gradient a small product.
   Instead the gradients of slices that don't overlap are concatenated, and a sum of products
   becomes one product of the concatenated factors. */

/* The dim along which y is a slice, from *start on, with zeros around it (a
   FLUX__AS_STRIDED_SCATTER of a contiguous range of one dim); -1 if y is not such. */
static int flux__slice_part_dim(const flux_tensor *y, int64_t *start) {
    flux_shape s = flux__dims(y);
    int64_t contiguous[FLUX_MAX_DIMS];
    int dim = -1;
    if (y->op != FLUX__AS_STRIDED_SCATTER || !y->nin || y->arg.i[0] || y->arg.i[1] ||
        y->in[0]->ndim != s.ndim || !flux__size(y)) return -1;
    flux__contiguous_strides(&s, contiguous);
    for (int d = 0; d < s.ndim; d++) {
        int64_t n = y->in[0]->dim[d], first = y->rel / contiguous[d] % s.dim[d];
        if ((n > 1 && y->stride[d] != contiguous[d]) || first + n > s.dim[d]) return -1;
        if (n == s.dim[d]) continue;
        if (dim >= 0) return -1;
        dim = d;
        *start = first;
    }
    return dim;
}

/* A slice and where it starts along the common dim. */
typedef struct flux__slice_part { int64_t start; flux_tensor *x; } flux__slice_part;

static int flux__slice_part_order(const void *a, const void *b) {
    int64_t x = ((const flux__slice_part *)a)->start, y = ((const flux__slice_part *)b)->start;
    return x < y ? -1 : x > y;
}

/* The sum of n gradients that are slices among zeros along one dim: their concatenation in the
   order of their starts, with zeros for what none covers. NULL, without an error, if one is no
   such slice, or if two overlap. */
static flux_tensor *flux__join_slices(flux__walk *w, int n, flux_tensor **xs) {
    int64_t start = 0, at = 0;
    int dim = flux__slice_part_dim(xs[0], &start), count = 0;
    for (int i = 1; i < n; i++)
        if (dim < 0 || xs[i]->dtype != xs[0]->dtype || flux__slice_part_dim(xs[i], &start) != dim)
            return NULL;
    flux__slice_part *slice = (flux__slice_part *)flux__malloc((size_t)n * sizeof *slice);
    flux_tensor **part = (flux_tensor **)flux__malloc((size_t)(2 * n + 1) * sizeof *part),
        *y = NULL;
    flux_shape gap = flux__dims(xs[0]);
    int64_t end = gap.dim[dim];
    for (int i = 0; i < n && slice && part; i++) {
        slice[i].x = xs[i]->in[0];
        flux__slice_part_dim(xs[i], &slice[i].start);
    }
    if (slice && part) qsort(slice, (size_t)n, sizeof *slice, flux__slice_part_order);
    for (int i = 0; i <= n && slice && part && at >= 0; i++) {
        gap.dim[dim] = (i < n ? slice[i].start : end) - at;
        if (gap.dim[dim] > 0)
            part[count++] = flux__move(flux_full_with(gap, 0, (flux_dtype)xs[0]->dtype),
                                       xs[0]->device);
        if (i == n) break;
        part[count++] = slice[i].x;
        at = gap.dim[dim] < 0 ? -1 : slice[i].start + slice[i].x->dim[dim];
    }
    if (slice && part && at >= 0) y = flux__cat_many(dim, count, part);
    if (y && dim > 0 && dim == y->ndim - 1) w->cat[w->ncat++ & 7] = y;
    flux__free(slice);
    flux__free(part);
    return y;
}

/* The tensor that x is a reshape of. */
static const flux_tensor *flux__unshaped(const flux_tensor *x) {
    while (x->op == FLUX__RESHAPE && flux__behind(x)) x = x->in[0];
    return x;
}

/* The index i at which c, a concatenation along its last dim, has xs[0] to xs[n-1] as its
   operands i to i+n-1, reshapes ignored; -1 if nowhere. */
static int flux__cat_run(const flux_tensor *c, int n, flux_tensor **xs) {
    if (!c || c->op != FLUX__CAT || c->arg.i[0] != c->ndim - 1 || flux__behind(c) < n ||
        c->dtype != xs[0]->dtype) return -1;
    for (int i = 0, k; i + n <= c->nin; i++) {
        for (k = 0; k < n && flux__unshaped(c->in[i + k]) == flux__unshaped(xs[k]); k++) {}
        if (k == n) return i;
    }
    return -1;
}

/* The n matrices xs concatenated along dim 1: a slice of a concatenation that the graph or w->cat
   already has, or a new one. Where xs[0] is not contiguous, the transposes are concatenated along
   dim 0 instead, and the result is transposed. Overwrites xs. NULL, without an error, where a
   concatenation that is there has operands of different sizes. */
static flux_tensor *flux__cat_columns(flux__walk *w, int n, flux_tensor **xs) {
    flux_shape s = flux__dims(xs[0]);
    int64_t offset, stride[FLUX_MAX_DIMS];
    for (int k = w->n + 7; k >= 0; k--) {
        flux_tensor *c = k >= w->n ? w->cat[k - w->n] : w->node[k];
        int at = flux__cat_run(c, n, xs), last = c ? c->ndim - 1 : 0;
        if (at < 0) continue;
        int64_t each = flux_dim(c->in[0], last), dims[2] = { s.dim[0], flux__times(s.dim[1], n) };
        for (int i = 1; i < c->nin; i++)
            if (flux_dim(c->in[i], last) != each) return NULL;
        return flux_reshape_with(flux_slice(c, last, at * each, (at + n) * each),
                               flux__shape(dims, 2));
    }
    flux__layout(xs[0], &offset, stride);
    if (flux__in_order(&s, stride)) return flux__cat_many(1, n, xs);
    for (int i = 0; i < n; i++) xs[i] = flux__transposed(xs[i]);
    return flux_transpose(flux__cat_many(0, n, xs));
}

/* The sum of n products of matrices as one product of the concatenated factors. NULL, without an
   error, if they are not products of matrices of one dtype, or where joining does not pay: fewer
   than 4, or slim ones beside what would be copied. */
static flux_tensor *flux__join_products(flux__walk *w, int n, flux_tensor **xs) {
    int64_t inner = 0, rows = flux_dim(xs[0], 0), cols = flux_dim(xs[0], 1);
    bool fit = n >= 4;
    for (int i = 0; i < n && fit; i++) {
        const flux_tensor *y = xs[i];
        fit = y->op == FLUX__MATMUL && y->nin == 2 && y->ndim == 2 && y->in[0]->ndim == 2 &&
              y->in[1]->ndim == 2 && y->dtype == xs[0]->dtype;
        inner += fit ? y->in[0]->dim[1] : 0;
    }
    fit = fit && (4 * (rows + cols) <= rows * cols || inner * (rows + cols) <= 1 << 18);
    flux_tensor **part = fit ? (flux_tensor **)flux__malloc((size_t)n * sizeof *part) : NULL;
    if (!part) return NULL;
    /* the last contribution came first: here in the order of recording */
    for (int i = 0; i < n; i++) part[i] = xs[n - 1 - i]->in[0];
    flux_tensor *a = flux__cat_columns(w, n, part);
    for (int i = 0; i < n && a; i++)
        if (!(part[i] = flux__transposed(xs[n - 1 - i]->in[1]))) a = NULL;
    flux_tensor *b = a ? flux__cat_columns(w, n, part) : NULL;
    flux__free(part);
    return b ? flux_matmul(a, flux_transpose(b)) : NULL;
}

/* Adds x to the contributions to the gradient of node `at`. False: an error was told. */
static bool flux__contribute(flux__walk *w, int at, flux_tensor *x) {
    if (!w->grad[at]) {
        w->grad[at] = x;
        return true;
    }
    flux__more *more = (flux__more *)flux__one_more(&w->more, &w->more_room, w->nmore,
                                                    sizeof *more);
    if (!more) return false;
    more->x = x;
    more->next = w->more_of[at];
    w->more_of[at] = ++w->nmore;
    return true;
}

/* Puts the sum of all contributions to the gradient of node k into grad[k]. Called once all nodes
   that use node k have contributed. False: an error was told. */
static bool flux__sum_up(flux__walk *w, int k) {
    int n = 1;
    if (!w->grad[k] || !w->more_of[k]) return true;
    for (int i = w->more_of[k]; i; i = w->more[i - 1].next) n++;
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs), *sum;
    if (!xs) return false;
    xs[0] = w->grad[k];
    for (int i = w->more_of[k], at = n; i; i = w->more[i - 1].next) xs[--at] = w->more[i - 1].x;
    w->more_of[k] = 0;
    sum = flux__join_slices(w, n, xs);
    if (!sum) sum = flux__join_products(w, n, xs);
    /* a sum of two rounds once by itself */
    bool wide = !sum && n > 2 && flux__is_half(xs[0]->dtype);
    for (int i = sum ? n : 0; i < n; i++) {
        flux_tensor *x = wide ? flux__widened(xs[i]) : xs[i];
        sum = i ? flux_add(sum, x) : x;
    }
    if (wide) sum = flux__narrow(sum, xs[0]->dtype);
    flux__free(xs);
    w->grad[k] = sum;
    return sum != NULL;
}

/* Passes the gradient of node k on: computes what it contributes to each operand that is wanted.
   False: an error was told. */
static bool flux__walk_back(flux__walk *w, int k) {
    flux_tensor *y = w->node[k], *g = w->grad[k], *of, *out[255];
    bool need[255];
    if (y->op == FLUX__TUPLE || !flux__behind(y)) return true;
    if (!flux__dtypes[y->dtype].real) return true;
    const int64_t failures = flux__failures();
    out[0] = flux__rows_gradient(y, g, &of);
    if (flux__failed_since(failures)) return false;
    if (of) {
        const int at = flux__walk_get(w, of);
        return !w->wanted[at] || flux__contribute(w, at, out[0]);
    }
    for (int i = 0; i < y->nin; i++) {
        out[i] = NULL;
        need[i] = w->wanted[flux__walk_get(w, y->in[i])] && flux__dtypes[y->in[i]->dtype].real;
    }
    for (int i = y->nin; i < 3; i++) out[i] = NULL, need[i] = false;
    flux__gradient_of(y, g, need, out);
    if (flux__failed_since(failures)) return false;
    for (int i = 0; i < y->nin; i++) {
        if (!need[i] || !out[i]) continue;
        if (!flux__contribute(w, flux__walk_get(w, y->in[i]), out[i])) return false;
    }
    return true;
}

/* Frees the arrays of a walk; the nodes themselves belong to others. */
static void flux__walk_free(flux__walk *w) {
    flux__free(w->node);
    flux__free(w->grad);
    flux__free(w->more_of);
    flux__free(w->more);
    flux__free(w->wanted);
    flux__free(w->refs);
    flux__free(w->frame);
    flux__map_free(&w->shared);
}

/* The gradient of a loss by itself: 1 in every element, flagged as the seed. */
static flux_tensor *flux__seed(flux_tensor *loss) {
    flux_shape s = flux__dims(loss);
    flux_tensor *one = flux__node_raw(FLUX__NUMBER, (flux_dtype)loss->dtype, &s, loss->device, 0);
    if (one) one->arg.num = 1, one->flags |= FLUX__SEED;
    return one ? flux__done(one) : NULL;
}

/* Fills g->grad with the gradients of g->loss by each tensor of g->of: NULL where the loss
   does not depend on it. Goes through the numbered nodes from the loss back. False: an error
   was told. */
static bool flux__backward(flux_grads *g) {
    flux__walk w;
    bool ok = flux__walk_start(&w) && flux__walk_collect(&w, g->loss);
    if (ok) {
        w.grad = (flux_tensor **)flux__zalloc((size_t)w.n * sizeof *w.grad);
        w.more_of = (int *)flux__zalloc((size_t)w.n * sizeof *w.more_of);
        w.wanted = (bool *)flux__zalloc((size_t)w.n);
        ok = w.grad && w.more_of && w.wanted;
    }
    if (ok) {
        flux__thread *self = flux__self();
        const uint32_t origin = self->origin;
        flux__mark_wanted(&w, g);
        w.grad[w.n - 1] = flux__seed(g->loss);
        ok = w.grad[w.n - 1] != NULL;
        for (int k = w.n - 1; k >= 0 && ok; k--) {
            if (!w.grad[k] || !w.wanted[k] || !flux__behind(w.node[k])) continue;
            self->origin = w.node[k]->origin | FLUX__BACKWARD;
            ok = flux__sum_up(&w, k) && flux__walk_back(&w, k);
        }
        self->origin = FLUX__BACKWARD;
        /* leaves last: concatenations made on the way can be reused */
        for (int k = w.n - 1; k >= 0 && ok; k--) ok = flux__sum_up(&w, k);
        self->origin = origin;
    }
    for (int i = 0; i < g->n && ok; i++) {
        int k = flux__walk_get(&w, g->of[i]);
        flux_tensor *d = k < 0 ? NULL : w.grad[k];
        g->grad[i] = (flux_tensor *)flux_retain(d);
    }
    flux__walk_free(&w);
    return ok;
}

FLUX__END_LEAN

#endif /* FLUX__GRAPH_BACKWARD_H */
