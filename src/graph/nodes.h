#ifndef FLUX__GRAPH_NODES_H
#define FLUX__GRAPH_NODES_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add, flux__atomic_load32 */
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "table.h"

/* ---------------------------------------------------------------------- graph/nodes.h
   The graph: a tensor is a node, that is an operation, its operands, and once
   it has been computed a buffer. This room lists the operations that are no
   rows of graph/table.h, makes and frees nodes (flux__node, flux__tensor_free),
   checks operands and devices, and makes numbers (flux_full_shape,
   flux__number). Recording does nothing else: it checks shapes, dtypes and
   devices, and computes nothing unless FLUX_EAGER is set (flux__if_eager).

   Invariant: a buffer holds its tensor's elements contiguously, dim 0 fastest.
   A view (reshape, permute, slice, ...) has no buffer but names a base that is
   not a view, an offset and strides. A node that is not computed yet belongs to
   the thread that made it. A bare number (FLUX__WEAK) has no dtype and no
   device of its own and adapts to its operands. Freeing a long graph needs no
   recursion: dead nodes are chained through base. Nodes come from a free list
   of each thread, as a small training step makes a hundred. */

/* hook: flux_eval, schedule/looking.h */
/* hook: flux_device_name, device/registry.h */

#define FLUX__OP_ENUM(NAME, ...) FLUX__OP_##NAME,

FLUX__LEAN

enum flux__op {
    FLUX__ELEMENTWISE(FLUX__OP_ENUM)
    FLUX__ELEMENTWISE_COUNT,
    FLUX__LEAF = FLUX__ELEMENTWISE_COUNT, /* has its buffer from the start, or is a placeholder without one */
    FLUX__NUMBER,                         /* arg.num in every element, as its dtype has it unless it is a bare number */
    FLUX__CAST, FLUX__COPY,
    FLUX__IOTA,                           /* int64: each element's own number */
    FLUX__RANDOM,                         /* arg.u: key, stream, kind */
    FLUX__REDUCE,                         /* arg.i: which (flux__red), mask of dims that go */
    FLUX__ARGREDUCE,                      /* arg.i: 1 for max, mask */
    FLUX__VIEWS,
    FLUX__RESHAPE = FLUX__VIEWS,
    FLUX__PERMUTE,                        /* arg.i: order */
    FLUX__STRIDED,                        /* rel and arg.i: offset and strides in the operand as if it lay in order */
    FLUX__BROADCAST,
    FLUX__DETACH,
    FLUX__CONV,                           /* a convolution's result: shows in[0], has its own gradient by x and weight, in[1] and in[2] */
    FLUX__ATTENTION,                      /* shows part of in[0], with a gradient of its own by the others: see flux__attention */
    FLUX__VIEWS_END,
    FLUX__MATMUL = FLUX__VIEWS_END,
    FLUX__GATHER, FLUX__SCATTER,          /* arg.i: dim */
    FLUX__SPREAD,                         /* the reverse of STRIDED: operand added into zeros, or put into stride[0]... see flux__spread */
    FLUX__CAT,                            /* arg.i: dim */
    FLUX__MOVE,                           /* to another device */
    FLUX__ATTEND,                         /* arg.i: heads, causal, 1 for the gradients */
    FLUX__TUPLE                           /* arg.i: how many levels of tuples */
};
static const char *const flux__op_names[] = {
#define FLUX__OP_NAME(NAME, name, ...) #name,
    FLUX__ELEMENTWISE(FLUX__OP_NAME)
    "leaf", "number", "cast", "copy", "iota", "random", "reduce", "argreduce", "reshape", "permute", "slice", "broadcast",
    "detach", "conv", "attention", "matmul", "gather", "scatter_add", "spread", "cat", "move", "attend", "tuple"
};
static const unsigned char flux__arity[] = {
#define FLUX__OP_ARITY(NAME, name, n, ...) n,
    FLUX__ELEMENTWISE(FLUX__OP_ARITY)
};
static const char flux__rules[] = {       /* the dtype rule's letter */
#define FLUX__OP_RULE(NAME, name, n, dt, ...) #dt[0],
    FLUX__ELEMENTWISE(FLUX__OP_RULE)
};
#define FLUX__IS_VIEW(t) ((t)->op >= FLUX__VIEWS && (t)->op < FLUX__VIEWS_END)
enum { FLUX__UNIFORM, FLUX__NORMAL };
enum flux__class { FLUX__F32C, FLUX__F64C, FLUX__I32C, FLUX__I64C, FLUX__CLASSES };   /* what kernels compute in */

FLUX__HOT

/* ---------------- nodes */

static void flux__edge(flux_tensor **slot, flux_tensor *x) {
    *slot = x;
    flux__atomic_add(&x->head.refs, FLUX__EDGE);
}

/* Takes an edge away; true when that was the last reference and the node is to be freed. */
static bool flux__unedge(flux_tensor *x) { return flux__atomic_add(&x->head.refs, -FLUX__EDGE) == 0; }

/* Frees nodes, and those only they referred to; the dead are chained by base, so that a long graph needs no stack. */
static void flux__tensor_free(flux_tensor *t) {
    flux__thread *self = flux__self();
    flux_tensor *dead = t, *base = t->base;
    t->base = NULL;
    if (base && flux__unedge(base)) flux__tensor_free(base);
    while (dead) {
        t = dead;
        dead = t->base;
        for (int i = 0; i < t->nin; i++) {
            flux_tensor *x = t->in[i];
            if (!x || !flux__unedge(x)) continue;
            flux_tensor *b = x->base;
            x->base = dead;
            dead = x;
            if (b && flux__unedge(b)) {  /* a base is no view: it has no base of its own */
                b->base = dead;
                dead = b;
            }
        }
        if (t->in != t->slot && t->in) FLUX_FREE(t->in);
        flux__buffer_release(t->buf);
        if (t->dense) flux_release((flux_tensor *)t->dense);
        if (!FLUX__DEBUG && !FLUX__ASAN && self && self->nspare < 4096) {
            t->head.kind = FLUX__FREED;
            t->base = self->spare;
            self->spare = t;
            self->nspare++;
        } else flux__bury(t);
    }
}

/* Cuts a node off from what it was made of; its value (buf, or a view's base) stays. */
static void flux__cut(flux_tensor *t) {
    for (int i = 0; i < t->nin; i++)
        if (t->in[i] && flux__unedge(t->in[i])) flux__tensor_free(t->in[i]);
    if (t->in != t->slot && t->in) FLUX_FREE(t->in);
    t->in = t->slot;
    t->nin = 0;
}

static flux_tensor *flux__node_raw(int op, flux_dtype dtype, const flux_shape *s, flux_device d, int nin) {
    flux__thread *self = flux__self();
    flux_tensor *t = self ? self->spare : NULL;
    const int nd = s->ndim;               /* most nodes are small, and need no closer look */
    const bool small = nd == 0 || (nd <= 2 && ((uint64_t)s->dim[0] | (uint64_t)s->dim[nd - 1]) < (uint64_t)1 << 21 && nd > 0);
    if (!small && !flux__check_shape(flux__op_names[op], s)) return NULL;
    if (t) {
        self->spare = t->base;
        self->nspare--;
    } else if (!(t = (flux_tensor *)flux__malloc(sizeof *t))) return NULL;
    t->head.kind = FLUX__TENSOR;          /* field by field: faster than a memset, and there are thousands */
    t->head.carried = 0;
    t->head.refs = 1;
    t->op = (uint16_t)op;
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)s->ndim;
    t->nin = 0;
    t->flags = self && self->nograd ? FLUX__FIXED : 0;
    t->mark = t->walk_mark = 0;
    t->index = t->walk_index = 0;
    t->device = d;
    memset(t->dim, 0, sizeof t->dim);
    t->in = t->slot;
    t->slot[0] = t->slot[1] = t->slot[2] = NULL;
    t->buf = NULL;
    t->base = NULL, t->dense = 0;
    memset(&t->arg, 0, sizeof t->arg);
    for (int i = 0; i < s->ndim; i++) t->dim[i] = s->dim[i];
    if (nin > 3 && !(t->in = (flux_tensor **)flux__zalloc((size_t)nin * sizeof *t->in))) {
        t->in = t->slot;
        flux_release(t);
        return NULL;
    }
    t->nin = (uint8_t)nin;
    return t;
}

static int flux__home_at;                 /* see flux_default_device: a back end and a device in one number, for threads */
static FLUX__INLINE flux_device flux__home(void) {
    int at = flux__atomic_load32(&flux__home_at);
    flux_device d = { at / FLUX__MAX_IDS, at % FLUX__MAX_IDS };
    return d;
}

/* A new node of up to three operands, owned by nobody yet. */
static flux_tensor *flux__node(int op, flux_dtype dtype, const flux_shape *s, flux_tensor *a, flux_tensor *b, flux_tensor *c) {
    flux_tensor *t = flux__node_raw(op, dtype, s, a ? a->device : flux__home(), a ? b ? c ? 3 : 2 : 1 : 0);
    if (!t) return NULL;
    if (a) flux__edge(&t->in[0], a);
    if (b) flux__edge(&t->in[1], b);
    if (c) flux__edge(&t->in[2], c);
    return t;
}

/* hook: flux__eager, schedule/looking.h */
static bool flux__eager(void);

/* Computes x at once under FLUX_EAGER. */
static flux_tensor *flux__if_eager(flux_tensor *x) {
    return x && flux__eager() && !flux__self()->as_one && x->op != FLUX__TUPLE && !(x->flags & FLUX__WEAK) ? flux_eval(x) : x;
}

/* Hands a finished node to the innermost scope. */
static flux_tensor *flux__done(flux_tensor *t) { return flux__if_eager((flux_tensor *)flux__own(t)); }

/* What is recorded between 1 and -1 is one operation: its steps alone would store what together they need not, as a
   convolution's windows. What it gives goes through flux__if_eager. */
static void flux__as_one(int by) {
    flux__thread *t = flux__self();
    if (t) t->as_one += by;
}

/* A number in every element: itself, or a view of one. It is at home on any device, see flux__taken. */
static bool flux__is_number(const flux_tensor *t) { return (FLUX__IS_VIEW(t) ? t->base : t)->op == FLUX__NUMBER; }

/* hook: flux__as_stored, cpu/casts.h */
static double flux__as_stored(flux_dtype t, double x);
/* The number of x once more, by a node not finished yet: in another shape or dtype, or on another device. Its gradient is x's,
   but for a number of ours, which nobody asks for. */
static flux_tensor *flux__renumber(flux_tensor *x, const flux_shape *s, flux_dtype t, flux_device d) {
    flux_tensor *y = flux__node_raw(FLUX__NUMBER, t, s, d, 0);
    if (!y) return NULL;
    y->arg.num = flux__as_stored(t, (FLUX__IS_VIEW(x) ? x->base : x)->arg.num);
    if (x->flags & (FLUX__WEAK | FLUX__SEED)) return y;
    flux__edge(&y->in[0], x);
    y->nin = 1;
    return y;
}

/* Operands must be real tensors on one device; numbers are everywhere. */
static bool flux__check_operands(const char *call, int n, flux_tensor *const *xs) {
    static const char *const names[] = { "a", "b", "c" };
    const flux_tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!xs[i]) {
            flux__null(call, n == 1 ? "x" : i < 3 ? names[i] : "of the list", xs[i]);
            return false;
        }
        if (FLUX__GONE(call, xs[i])) return false;
        if (xs[i]->op == FLUX__TUPLE) {
            flux__fail("%s: an operand is a tuple of %d tensors; take one with flux_nth", call, xs[i]->nin);
            return false;
        }
        if (flux__is_number(xs[i])) continue;
        if (first && !flux__same_device(first->device, xs[i]->device)) {
            flux__text ta = flux__describe(first), tb = flux__describe(xs[i]);
            char where[96];
            snprintf(where, sizeof where, "%s", flux_device_name(first->device));
            flux__fail("%s: operands are on two devices: %s on %s, %s on %s; move one with flux_to", call, ta.s, where, tb.s,
                       flux_device_name(xs[i]->device));
            return false;
        }
        if (!first) first = xs[i];
    }
    return true;
}

static flux_device flux__place(int n, flux_tensor *const *xs) {
    for (int i = 0; i < n; i++)
        if (!flux__is_number(xs[i])) return xs[i]->device;
    for (int i = 0; i < n; i++)           /* a bare number lies anywhere; one that a gradient starts from, at its loss */
        if (!(xs[i]->flags & FLUX__WEAK)) return xs[i]->device;
    return xs[0]->device;
}

FLUX__COLD

static bool flux__check_make(const char *call, const flux_shape *s, flux_dtype t) {
    if ((unsigned)t >= FLUX_NUM_DTYPES) {
        flux__fail("%s: %d is not a dtype", call, (int)t);
        return false;
    }
    return flux__check_shape(call, s);
}

FLUX_DEF flux_tensor *flux_full_shape(flux_shape s, double value, flux_dtype t) {
    if (!flux__check_make("full", &s, t)) return NULL;
    flux_tensor *x = flux__node(FLUX__NUMBER, t, &s, NULL, NULL, NULL);
    if (x) x->arg.num = flux__as_stored(t, value);
    return x ? flux__done(x) : NULL;
}

FLUX__LEAN

FLUX_DEF flux_tensor *flux__number(double value) {
    flux_shape none = flux__shape(NULL, 0);
    flux_tensor *x = flux__node(FLUX__NUMBER, FLUX_F32, &none, NULL, NULL, NULL);
    if (!x) return NULL;
    x->arg.num = value;
    x->flags |= FLUX__WEAK;               /* before flux__done: FLUX_EAGER must not round it to f32 */
    return flux__done(x);
}

static void flux__natural(const flux_shape *s, int64_t *stride) {
    int64_t step = 1;
    for (int i = 0; i < s->ndim; i++) {
        stride[i] = step;
        step *= s->dim[i];
    }
}

/* Where x's elements lie: in which base, from which offset, by which strides. */
static flux_tensor *flux__layout(flux_tensor *x, int64_t *offset, int64_t *stride) {
    if (!FLUX__IS_VIEW(x)) {
        flux_shape s = flux__dims(x);
        *offset = 0;
        flux__natural(&s, stride);
        return x;
    }
    *offset = x->offset;
    memcpy(stride, x->stride, sizeof x->stride);
    return x->base;
}

/* Whether elements of such dims and strides lie in order without holes. */
static bool flux__in_order(const flux_shape *s, const int64_t *stride) {
    int64_t step = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] != 1 && stride[i] != step) return false;
        step *= s->dim[i];
    }
    return true;
}

#endif /* FLUX__GRAPH_NODES_H */
