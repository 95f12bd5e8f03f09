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
   checks operands and devices, and makes numbers (flux_full_with,
   flux__number). Recording an operation checks shapes, dtypes and devices and
   makes a node; it computes nothing unless FLUX_EAGER is set (flux__if_eager).

   Invariant: a buffer holds its tensor's elements contiguously, dim 0 fastest.
   A view (reshape, permute, slice, ...) has no buffer but names a base that is
   not a view, an offset and strides. A node that is not computed yet may be
   shared by threads (schedule/claims.h). A bare number (FLUX__WEAK) has no dtype and no
   device of its own and adapts to the operands beside it. Freeing a long graph
   needs no recursion: dead nodes are chained through base. Nodes come from a
   free list of each thread, as a small training step makes a hundred. */

/* hook: flux_eval, schedule/looking.h */
/* hook: flux_device_name, device/registry.h */

#define FLUX__OP_ENUM(NAME, ...) FLUX__OP_##NAME,

FLUX__BEGIN_HOT

enum flux__op {
    FLUX__ELEMENTWISE(FLUX__OP_ENUM)
    FLUX__ELEMENTWISE_COUNT,
    FLUX__LEAF = FLUX__ELEMENTWISE_COUNT, /* has its buffer from the start; a placeholder has
                                             none */
    FLUX__NUMBER,                         /* arg.num in every element, in its dtype unless bare */
    FLUX__CAST, FLUX__COPY,
    FLUX__IOTA,                           /* int64: each element's index */
    FLUX__RANDOM,                         /* arg.u: key, stream, kind */
    FLUX__REDUCE,                         /* arg.i: kind (flux__red), mask of the dims reduced */
    FLUX__ARGREDUCE,                      /* arg.i: 1 for max, mask */
    FLUX__VIEWS,
    FLUX__RESHAPE = FLUX__VIEWS,
    FLUX__PERMUTE,                        /* arg.i: order */
    FLUX__AS_STRIDED,                     /* as_strided: rel and arg.i are offset and strides in
                                             the operand as if that were contiguous */
    FLUX__BROADCAST,
    FLUX__DETACH,
    FLUX__CONV,                           /* shows in[0], a convolution's result, and has its own
                                             gradient by x and the weight, in[1] and in[2] */
    FLUX__ATTENTION,                      /* shows part of in[0], and has its own gradient by the
                                             other operands: see flux__attention */
    FLUX__CUSTOM,                         /* shows in[0], and has the program's gradient by the
                                             other operands: see flux_custom */
    FLUX__VIEWS_END,
    FLUX__MATMUL = FLUX__VIEWS_END,
    FLUX__GATHER, FLUX__SCATTER,          /* arg.i: dim */
    FLUX__AS_STRIDED_SCATTER,             /* as_strided_scatter: the operand is added into zeros,
                                             or put into a fill value: see
                                             flux__as_strided_scatter */
    FLUX__CAT,                            /* arg.i: dim */
    FLUX__MOVE,                           /* to another device */
    FLUX__INTERPOLATE,                    /* arg.i: 1 for its reverse: see flux__interpolated */
    FLUX__ATTEND,                         /* arg.i: heads, causal, flags: FLUX__ATTEND_BACK ... */
    FLUX__SORT,                           /* argsort of a matrix's columns; arg.i: 1 descending */
    FLUX__CALL,                           /* arg.i: the address of its flux__plan_call, how many
                                             operands it reads (the others only come before it), the
                                             rest is the function's own */
    FLUX__TUPLE                           /* arg.i: depth of tuples within tuples */
};
static const char *const flux__op_names[] = {
#define FLUX__OP_NAME(NAME, name, ...) #name,
    FLUX__ELEMENTWISE(FLUX__OP_NAME)
    "leaf", "number", "cast", "copy", "iota", "random", "reduce", "argreduce",
    "reshape", "permute", "slice", "broadcast", "detach", "conv", "attention", "custom",
    "matmul", "gather", "scatter_add", "spread", "cat", "move", "interpolate", "attend",
    "sort", "call", "tuple"
};
static const unsigned char flux__arity[] = {
#define FLUX__OP_ARITY(NAME, name, n, ...) n,
    FLUX__ELEMENTWISE(FLUX__OP_ARITY)
};
static const char flux__rules[] = {       /* by row: the letter of its dtype rule */
#define FLUX__OP_RULE(NAME, name, n, dt, ...) #dt[0],
    FLUX__ELEMENTWISE(FLUX__OP_RULE)
};
#define FLUX__IS_VIEW(t) ((t)->op >= FLUX__VIEWS && (t)->op < FLUX__VIEWS_END)
enum { FLUX__UNIFORM, FLUX__NORMAL };
/* the types in which kernels compute */
enum flux__class { FLUX__F32C, FLUX__F64C, FLUX__I32C, FLUX__I64C, FLUX__CLASSES };

/* ---------------- nodes */

/* Makes *slot an edge to x, which counts as a reference to x. */
static void flux__edge(flux_tensor **slot, flux_tensor *x) {
    *slot = x;
    flux__atomic_add(&x->head.refs, FLUX__EDGE);
}

/* Takes an edge to x away. True: that was the last reference, and the caller frees x. */
static bool flux__unedge(flux_tensor *x) {
    return flux__atomic_add(&x->head.refs, -FLUX__EDGE) == 0;
}

#ifndef FLUX__SPARE_NODES                 /* tests have none while memory runs out (counted.h) */
#  define FLUX__SPARE_NODES 4096
#endif
/* Frees t and all nodes that only freed nodes refer to. Dead nodes are chained by base, so that a
   long graph needs no recursion. Nodes go to the thread's free list, but in debug builds to
   flux__quarantine, which notices a later use. */
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
            if (b && flux__unedge(b)) {   /* a base is never a view, so it has no base itself */
                b->base = dead;
                dead = b;
            }
        }
        if (t->in != t->slot) flux__free(t->in);
        flux__buffer_release(t->buf);
        if (t->dense) flux_release((flux_tensor *)t->dense);
        if (!FLUX__DEBUG && !FLUX__ASAN && self && self->nspare < FLUX__SPARE_NODES) {
            t->head.kind = FLUX__FREED;
            t->base = self->spare;
            self->spare = t;
            self->nspare++;
        } else flux__quarantine(t);
    }
}

/* Releases the operands of t; its value (buf, or a view's base) stays. */
static void flux__cut(flux_tensor *t) {
    for (int i = 0; i < t->nin; i++)
        if (t->in[i] && flux__unedge(t->in[i])) flux__tensor_free(t->in[i]);
    if (t->in != t->slot) flux__free(t->in);
    t->in = t->slot;
    t->nin = 0;
}

/* A new node with room for nin operands, which the caller sets, owned by nobody yet. It comes
   from the thread's free list if that has one. NULL: an error was told. */
static flux_tensor *flux__node_raw(int op, flux_dtype dtype, const flux_shape *s, flux_device d,
                                   int nin) {
    flux__thread *self = flux__self();
    flux_tensor *t = self && FLUX__SPARE_NODES > 0 ? self->spare : NULL;
    /* a small shape is valid and needs no flux__check_shape */
    const int nd = s->ndim;
    const bool small =
        nd == 0 || (nd <= 2 &&
                    ((uint64_t)s->dim[0] | (uint64_t)s->dim[nd - 1]) < (uint64_t)1 << 21 &&
                    nd > 0);
    if (!small && !flux__check_shape(flux__op_names[op], s)) return NULL;
    if (t) {
        self->spare = t->base;
        self->nspare--;
    } else if (!(t = (flux_tensor *)flux__malloc(sizeof *t))) return NULL;
    /* field by field, faster than memset: thousands are made */
    t->head.kind = FLUX__TENSOR;
    t->head.carried = 0;
    t->head.refs = 1;
    t->op = (uint16_t)op;
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)s->ndim;
    t->nin = 0;
    t->flags = self && self->nograd ? FLUX__FIXED : 0;
    t->maker = self ? self->number : 0;
    t->origin = self ? self->origin : 0;
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

/* The default device as back end * FLUX__MAX_IDS + id: one number, so that threads read it
   whole. */
static int flux__home_at;
static FLUX__INLINE flux_device flux__home(void) {
    int at = flux__atomic_load32(&flux__home_at);
    flux_device d = { at / FLUX__MAX_IDS, at % FLUX__MAX_IDS };
    return d;
}

/* A new node of up to three operands (NULL: none from there on), owned by nobody yet. It is on
   a's device, or without operands on the default device. */
static flux_tensor *flux__node(int op, flux_dtype dtype, const flux_shape *s, flux_tensor *a,
                               flux_tensor *b, flux_tensor *c) {
    flux_tensor *t = flux__node_raw(op, dtype, s, a ? a->device : flux__home(),
                                    a ? b ? c ? 3 : 2 : 1 : 0);
    if (!t) return NULL;
    if (a) flux__edge(&t->in[0], a);
    if (b) flux__edge(&t->in[1], b);
    if (c) flux__edge(&t->in[2], c);
    return t;
}

/* hook: flux__eager, schedule/looking.h */
static bool flux__eager(void);

/* Computes x at once under FLUX_EAGER, unless an operation of several steps is being recorded
   (flux__as_one). */
static flux_tensor *flux__if_eager(flux_tensor *x) {
    const flux__thread *t = x && flux__eager() ? flux__self() : NULL;
    return t && !t->as_one && x->op != FLUX__TUPLE && !(x->flags & FLUX__WEAK) ? flux_eval(x) : x;
}

/* Hands a node whose fields are all set to the innermost scope, and computes it under
   FLUX_EAGER. */
static flux_tensor *flux__done(flux_tensor *t) {
    return flux__if_eager((flux_tensor *)flux__own(t));
}

/* flux__as_one(1) to flux__as_one(-1) records the steps of one operation, which FLUX_EAGER must
   not compute one by one: a step alone would store what the kernel of all does not need, such as
   a convolution's windows. The result goes through flux__if_eager afterwards. */
static void flux__as_one(int by) {
    flux__thread *t = flux__self();
    if (t) t->as_one += by;
}

/* Whether t has one number in every element: a FLUX__NUMBER or a view of one. Such a tensor is an
   operand on any device, see flux__taken. */
static bool flux__is_number(const flux_tensor *t) {
    return (FLUX__IS_VIEW(t) ? t->base : t)->op == FLUX__NUMBER;
}

/* hook: flux__as_stored, cpu/casts.h */
static double flux__as_stored(flux_dtype t, double x);
/* A new FLUX__NUMBER with x's number in another shape or dtype, or on another device; the caller
   still calls flux__done. Its gradient is passed on to x, but for a bare number or a seed, whose
   gradient nobody asks for. */
static flux_tensor *flux__renumber(flux_tensor *x, const flux_shape *s, flux_dtype t,
                                   flux_device d) {
    flux_tensor *y = flux__node_raw(FLUX__NUMBER, t, s, d, 0);
    if (!y) return NULL;
    y->arg.num = flux__as_stored(t, (FLUX__IS_VIEW(x) ? x->base : x)->arg.num);
    if (x->flags & (FLUX__WEAK | FLUX__SEED)) return y;
    flux__edge(&y->in[0], x);
    y->nin = 1;
    return y;
}

/* Checks that all n operands are valid tensors, none a tuple, on one device; numbers may be
   anywhere. False: an error was told, or an operand is NULL. */
static bool flux__check_operands(const char *call, int n, flux_tensor *const *xs) {
    static const char *const names[] = { "a", "b", "c" };
    const flux_tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!xs[i])
            return flux__null(call, n == 1 ? "x" : i < 3 ? names[i] : "of the list", xs[i]), false;
        if (FLUX__GONE(call, xs[i])) return false;
        if (xs[i]->op == FLUX__TUPLE)
            return FLUX__REFUSE("%s: an operand is a tuple of %d tensors; take one with flux_nth",
                                call, xs[i]->nin);
        if (flux__is_number(xs[i])) continue;
        if (first && !flux__same_device(first->device, xs[i]->device)) {
            char where[96];
            snprintf(where, sizeof where, "%s", flux_device_name(first->device));
            return FLUX__REFUSE(
                "%s: operands are on two devices: %s on %s, %s on %s; move one with flux_to", call,
                flux__describe(first).s, where, flux__describe(xs[i]).s,
                flux_device_name(xs[i]->device));
        }
        if (!first) first = xs[i];
    }
    return true;
}

/* The device on which an operation on these operands is computed. */
static flux_device flux__place(int n, flux_tensor *const *xs) {
    for (int i = 0; i < n; i++)
        if (!flux__is_number(xs[i])) return xs[i]->device;
    /* a bare number has no device, but a gradient's seed has that of its loss */
    for (int i = 0; i < n; i++)
        if (!(xs[i]->flags & FLUX__WEAK)) return xs[i]->device;
    return xs[0]->device;
}

/* Checks dtype and shape of a tensor to be made. False: an error was told. */
static bool flux__check_make(const char *call, const flux_shape *s, flux_dtype t) {
    if ((unsigned)t >= FLUX_NUM_DTYPES) return FLUX__REFUSE("%s: %d is not a dtype", call, (int)t);
    return flux__check_shape(call, s);
}

/* A full number: one node, whose arg.num is the value of every element as dtype t stores it. */
FLUX_DEF flux_tensor *flux_full_with(flux_shape s, double value, flux_dtype t) {
    if (!flux__check_make("full", &s, t)) return NULL;
    flux_tensor *x = flux__node(FLUX__NUMBER, t, &s, NULL, NULL, NULL);
    if (x) x->arg.num = flux__as_stored(t, value);
    return x ? flux__done(x) : NULL;
}

/* A bare number: a scalar whose dtype and device adapt to the other operands. */
FLUX_DEF flux_tensor *flux__number(double value) {
    flux_shape none = flux__shape(NULL, 0);
    flux_tensor *x = flux__node(FLUX__NUMBER, FLUX_F32, &none, NULL, NULL, NULL);
    if (!x) return NULL;
    x->arg.num = value;
    x->flags |= FLUX__WEAK;               /* before flux__done: FLUX_EAGER must not round to f32 */
    return flux__done(x);
}

/* The strides of a contiguous tensor of shape s, dim 0 fastest. */
static void flux__contiguous_strides(const flux_shape *s, int64_t *stride) {
    int64_t step = 1;
    for (int i = 0; i < s->ndim; i++) {
        stride[i] = step;
        step *= s->dim[i];
    }
}

/* The tensor in whose buffer x's elements lie (x, or the base of a view), with x's offset and
   strides in it. */
static flux_tensor *flux__layout(flux_tensor *x, int64_t *offset, int64_t *stride) {
    if (!FLUX__IS_VIEW(x)) {
        flux_shape s = flux__dims(x);
        *offset = 0;
        flux__contiguous_strides(&s, stride);
        return x;
    }
    *offset = x->offset;
    memcpy(stride, x->stride, sizeof x->stride);
    return x->base;
}

/* Whether a tensor of these dims and strides is contiguous, dim 0 fastest. */
static bool flux__in_order(const flux_shape *s, const int64_t *stride) {
    int64_t step = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] != 1 && stride[i] != step) return false;
        step *= s->dim[i];
    }
    return true;
}

FLUX__END_HOT

#endif /* FLUX__GRAPH_NODES_H */
