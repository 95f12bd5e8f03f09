#ifndef FLUX__DIST_COLLECTIVES_H
#define FLUX__DIST_COLLECTIVES_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "comm.h"
#include "messages.h"
#include "replay.h" /* FLUX__REPLAY_CALLS */
#include "handshakes.h"
#include "mpi.h"

/* ---------------------------------------------------------------------- dist/collectives.h
   Collectives as nodes of the graph. A node (FLUX__CALL) reads n operands, which
   are packed one behind the other, and gives one flat tensor of all their
   elements; views of it are the results. So a bucket of gradients is one node
   and one message.

   Invariant: each collective has the one recorded before it as its last operand,
   unless that has run, so that looking at any of them runs all earlier ones, in
   the order of recording, on every rank. The result is exchanged where it lies:
   in host memory the node's own buffer, of a device's a copy in host memory
   unless MPI takes the device's. A mean is a sum, divided by the graph, where it
   fuses.

   Rejected: a message for each tensor (small ones would pay the time of a message
   each), and collectives that run when they are called (they would stop the
   recording, and could not go on beside kernels). */

FLUX__BEGIN_COLD

#ifdef FLUX_MPI
#define FLUX__COLLECTIVE_CALL(name, in_place) \
    { name, in_place, flux__message_start, flux__message_finish, FLUX__REPLAY_CALLS }
static const flux__plan_call flux__collective_calls[] = {          /* by kind */
    FLUX__COLLECTIVE_CALL("allreduce", true), FLUX__COLLECTIVE_CALL("reduce", false),
    FLUX__COLLECTIVE_CALL("broadcast", true), FLUX__COLLECTIVE_CALL("allgather", false),
    FLUX__COLLECTIVE_CALL("reduce_scatter", false)
};

/* ---------------- recording */

/* x in contiguous memory on the device d, as a collective reads it. */
static flux_tensor *flux__collective_operand(flux_tensor *x, flux_device d) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    if (!flux__same_device(x->device, d)) x = flux__move(x, d);
    if (!x) return NULL;
    flux__layout(x, &offset, stride);
    return flux__in_order(&s, stride) ? x : flux_copy(x);
}

/* Records a collective of the n tensors xs, all of one dtype: a node of `count` elements in one
   dim. NULL: an error was told. */
static flux_tensor *flux__collective_node(flux_comm *c, int kind, int op, int root, int n,
                                          flux_tensor *const *xs, int64_t count) {
    const flux_device place = flux__place(n, xs);
    flux_shape s = flux__shape(&count, 1);
    flux_tensor *last = c->last,
                *y = flux__node_raw(FLUX__CALL, (flux_dtype)xs[0]->dtype, &s, place,
                                    n + (last != NULL));
    for (int i = 0; y && i < n; i++) {
        flux_tensor *x = flux__collective_operand(xs[i], place);
        if (x) flux__edge(&y->in[i], x);
        else {
            flux_release(y);
            return NULL;
        }
    }
    if (!y) return NULL;
    if (last) flux__edge(&y->in[n], last);
    y->arg.i[0] = (int64_t)(intptr_t)&flux__collective_calls[kind];
    y->arg.i[1] = n;
    y->arg.i[FLUX__CALL_COMM] = (int64_t)(intptr_t)c;
    y->arg.i[FLUX__CALL_KIND] = kind;
    y->arg.i[FLUX__CALL_OP] = op;
    y->arg.i[FLUX__CALL_ROOT] = root;
    flux__comm_forget(c);
    flux__edge(&c->last, y);
    return flux__done(y);
}
#endif

/* Whether a collective with this root may be recorded; if not, an error. */
static bool flux__check_root(const char *call, const flux_comm *c, int root) {
    if (!flux__is_comm(call, c)) return false;
    if (c->broken) return FLUX__REFUSE("%s: an earlier collective has failed: %s", call, c->why);
    if (root < 0 || root >= c->size)
        return FLUX__REFUSE("%s: .root is %d; there are ranks 0 to %d", call, root, c->size - 1);
    return true;
}

/* Whether the collective `call` of x may be recorded; if not, an error. */
static bool flux__check_collective(const char *call, const flux_comm *c, flux_tensor *x, int op,
                                   int root) {
    if (!flux__check_root(call, c, root)) return false;
    if (!x) return flux__null(call, "x", x), false;
    if (op < FLUX_MEAN || op > FLUX_MAX || op == FLUX_NONE)
        return FLUX__REFUSE("%s: %d is none of FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX, FLUX_MEAN",
                            call, op);
    return true;
}

/* The shape of a collective's result for an x of shape s: of an allgather the last dim is as often
   as there are ranks, of a reduce_scatter it is cut into as many parts. */
static flux_shape flux__collective_shape(const flux_comm *c, int kind, flux_shape s) {
    if (s.ndim == 0 && kind == FLUX__ALLGATHER) s.dim[s.ndim++] = 1;
    if (kind == FLUX__ALLGATHER)
        s.dim[s.ndim - 1] = flux__times(s.dim[s.ndim - 1], c->size);
    if (kind == FLUX__REDUCE_SCATTER) s.dim[s.ndim - 1] /= c->size;
    return s;
}

/* Records a collective of one tensor. In a world of one, that is x itself. */
static flux_tensor *flux__collective_one(flux_comm *c, int kind, flux_tensor *x, int op, int root) {
    const flux_shape s = flux__collective_shape(c, kind, flux__dims(x));
    const bool mean = op == FLUX_MEAN && (kind != FLUX__REDUCE_TO || c->rank == root);
    int h = flux__hide();
    if (op == FLUX_MEAN && !flux__dtypes[x->dtype].real) x = flux_to_dtype(x, FLUX_F32);
    flux_tensor *y = x;
#ifdef FLUX_MPI
    if (y && c->size > 1)
        y = flux__collective_node(c, kind, op == FLUX_MEAN ? FLUX_SUM : op, root, 1, &x,
                                  flux__count(&s));
#endif
    if (y && mean && c->size > 1) y = flux_mul(y, 1.0 / c->size);
    return flux__reveal(h, y ? flux_reshape_with(y, s) : NULL);
}

/* The collective `call` of a tensor, or of each tensor of a tuple. */
static flux_tensor *flux__collective(const char *call, flux_comm *c, int kind, flux_tensor *x,
                                     int op, int root) {
    if (!flux__check_collective(call, c, x, op, root)) return NULL;
    if (x->op != FLUX__TUPLE) {
        const bool cut = kind == FLUX__REDUCE_SCATTER;
        if (cut && (!x->ndim || x->dim[x->ndim - 1] % c->size))
            return (flux_tensor *)flux__fail("%s: the last dim of %s can't be cut into %d parts",
                                             call, flux__describe(x).s, c->size);
        return flux__collective_one(c, kind, x, op, root);
    }
    flux_tensor *part[255];
    int h = flux__hide();
    for (int i = 0; i < x->nin; i++)
        if (!(part[i] = flux__collective(call, c, kind, x->in[i], op, root)))
            return flux__reveal(h, NULL);
    return flux__reveal(h, flux_tuple_with(x->nin, part));
}

FLUX_DEF flux_tensor *flux_allreduce(flux_comm *c, flux_tensor *x, flux_agg op) {
    return flux__collective("allreduce", c, FLUX__ALLREDUCE, x, (int)op, 0);
}
FLUX_DEF flux_tensor *flux_reduce_with(flux_comm *c, flux_tensor *x, flux_agg op,
                                       flux_root_opts o) {
    return flux__collective("reduce", c, FLUX__REDUCE_TO, x, (int)op, o.root);
}
FLUX_DEF flux_tensor *flux_broadcast_with(flux_comm *c, flux_tensor *x, flux_root_opts o) {
    return flux__collective("broadcast", c, FLUX__BROADCAST_FROM, x, FLUX_SUM, o.root);
}
FLUX_DEF flux_tensor *flux_allgather(flux_comm *c, flux_tensor *x) {
    return flux__collective("allgather", c, FLUX__ALLGATHER, x, FLUX_SUM, 0);
}
FLUX_DEF flux_tensor *flux_reduce_scatter(flux_comm *c, flux_tensor *x, flux_agg op) {
    return flux__collective("reduce_scatter", c, FLUX__REDUCE_SCATTER, x, (int)op, 0);
}

/* ---------------- all ranks together */

/* Runs what was recorded, so that the call that follows on this rank has its number. */
static bool flux__comm_flush(flux_comm *c) {
    flux_tensor *last = (flux_tensor *)flux_retain(c->last);
    const bool ok = !last || flux_eval(last);
    flux_release(last);
    return ok;
}

/* Waits until all ranks have come to the same call: a collective without data. */
static bool flux__comm_meet(flux_comm *c, int kind) {
    if (!flux__comm_flush(c)) return false;
#ifdef FLUX_MPI
    FLUX__ZEROED(flux__header, h);
    h.kind = kind;
    h.failed = kind == FLUX__LEAVE && flux_failed();       /* the others are told */
    if (c->size > 1) return flux__collective_now(c, &h, NULL, NULL);
#else
    (void)kind;
#endif
    return true;
}

/* Replaces each of the n numbers by the largest that any rank has there, here and now. False: an
   error was told. */
static bool flux__comm_agree(flux_comm *c, int n, uint8_t *v) {
    if (!flux__is_comm("distributed", c)) return false;
#ifdef FLUX_MPI
    FLUX__ZEROED(flux__header, h);
    h.kind = FLUX__ALLREDUCE, h.op = FLUX_MAX, h.dtype = FLUX_U8, h.count = n;
    if (c->size > 1)
        return flux__comm_flush(c) && flux__collective_now(c, &h, v, v);
#endif
    (void)n, (void)v;
    return true;
}

/* Gathers n numbers of each rank here and now, this rank's being at all + rank n. False: an error
   was told. */
static bool flux__comm_gather(flux_comm *c, int n, double *all) {
    if (!flux__is_comm("distributed", c)) return false;
#ifdef FLUX_MPI
    FLUX__ZEROED(flux__header, h);
    h.kind = FLUX__ALLGATHER, h.dtype = FLUX_F64, h.count = n;
    if (c->size > 1)
        return flux__comm_flush(c) && flux__collective_now(c, &h, all, all);
#endif
    (void)n, (void)all;
    return true;
}

FLUX_DEF bool flux_interrupted_with(flux_interrupted_opts o) {
    uint8_t any = flux__interrupted();
    if (o.comm) flux__comm_agree(o.comm, 1, &any);
    return any;
}

/* Gives all ranks the seed of rank 0, here and now. False: an error was told. */
static bool flux__comm_seed(flux_comm *c, uint64_t mine, uint64_t *seed) {
    *seed = mine;
#ifdef FLUX_MPI
    FLUX__ZEROED(flux__header, h);
    h.kind = FLUX__BROADCAST_FROM, h.op = FLUX_SUM, h.dtype = FLUX_I64, h.count = 1;
    return c->size == 1 || (flux__comm_flush(c) && flux__collective_now(c, &h, seed, seed));
#else
    (void)c;
    return true;
#endif
}

FLUX_DEF int flux_barrier(flux_comm *c) {
    return flux__is_comm("barrier", c) && flux__comm_meet(c, FLUX__BARRIER) ? 0 : -1;
}

FLUX_DEF int flux_distributed_end(flux_comm *c) {
    if (!flux__is_comm("distributed_end", c)) return -1;
    const bool ok = !c->broken && flux__comm_meet(c, FLUX__LEAVE);
    flux__comm_forget(c);
    flux__comm_end(c);
#ifdef FLUX_MPI
    if (ok) flux__mpi_finish();           /* it would wait for ranks that do not come */
#endif
    return ok ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__DIST_COLLECTIVES_H */
