#ifndef FLUX__DIST_MPI_H
#define FLUX__DIST_MPI_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../cpu/casts.h"
#include "mpi_library.h"
#include "../graph/nodes.h"

#ifdef FLUX_MPI
/* ---------------------------------------------------------------------- dist/mpi.h
   MPI's calls for flux.h's dtypes: starting and ending, communicators,
   collectives of any number of elements, and small messages. A wrapper returns
   whether it succeeded; if not, it writes MPI's sentence to `why`, of which the
   caller makes an error.

   Invariant: a number of elements that does not fit an int goes in pieces
   (flux__mpi_most). Sums and products of f16 and bf16, which MPI does not know,
   are computed in f32 and rounded once for each addition; minimum and maximum
   give NaN where a number is NaN, as flux_min2 does; a bool's sum is "any", its
   product "all". MPI may be started by the program, with any level of threads:
   all calls come from the thread that evaluates. */

FLUX__BEGIN_LEAN

#define FLUX__MPI_CALL(name, ARGS)                                                                 \
    (flux__mpi.family == FLUX__MPI_MPICH ? flux__mpi.i.name ARGS(i) : flux__mpi.p.name ARGS(p))

static int64_t flux__mpi_most = 1 << 28;   /* most elements of a call; tests make it small */

/* Whether a call of MPI returned success; if not, writes its sentence to why. */
static bool flux__mpi_ok(int rc, const char *call, char *why, size_t n) {
    char text[1024] = "";
    int length = 0;
#define FLUX__ARGS(h) (rc, text, &length)
    if (rc == 0) return true;
    /* before MPI has started it has no sentences */
    const bool said = flux__mpi.started && FLUX__MPI_CALL(Error_string, FLUX__ARGS) == 0;
    if (said) snprintf(why, n, "MPI_%s: %.200s", call, text);
    else snprintf(why, n, "MPI_%s: error %d", call, rc);
    return false;
#undef FLUX__ARGS
}

/* ---------------- starting and ending */

/* Starts MPI, unless the program has, whose level of threads is kept then. */
static bool flux__mpi_start(int *argc, char ***argv, char *why, size_t n) {
    int started = 0, ended = 0, level = 0;
#define FLUX__ARGS(h) (&started)
    FLUX__MPI_CALL(Initialized, FLUX__ARGS);
#undef FLUX__ARGS
#define FLUX__ARGS(h) (&ended)
    FLUX__MPI_CALL(Finalized, FLUX__ARGS);
#undef FLUX__ARGS
    if (ended) snprintf(why, n, "MPI was ended earlier, and can't be started twice");
    flux__mpi.started = started && !ended;
    if (started || ended) return !ended;
#define FLUX__ARGS(h) (argc, argv, flux__mpi.is.serialized, &level)
    flux__mpi.ours = flux__mpi_ok(FLUX__MPI_CALL(Init_thread, FLUX__ARGS), "Init_thread", why, n);
#undef FLUX__ARGS
    flux__mpi.started = flux__mpi.ours;
    return flux__mpi.ours;
}

/* Ends MPI if flux__mpi_start has started it. */
static void flux__mpi_finish(void) {
#define FLUX__ARGS(h) ()
    if (flux__mpi.ours) FLUX__MPI_CALL(Finalize, FLUX__ARGS);
#undef FLUX__ARGS
    flux__mpi.ours = false;
}

/* ---------------- communicators */

static flux__mpi_handle flux__mpi_world(void) { return flux__mpi.constant[FLUX__MPI_WORLD]; }

/* The communicator at this address, an MPI_Comm of the program's. */
static flux__mpi_handle flux__mpi_given(const void *comm) {
    flux__mpi_handle c;
    c.p = NULL;
    if (flux__mpi.family == FLUX__MPI_MPICH) memcpy(&c.i, comm, sizeof c.i);
    else memcpy(&c.p, comm, sizeof c.p);
    return c;
}

/* This rank's number, or -1. */
static int flux__mpi_rank(flux__mpi_handle c) {
    int rank = -1;
#define FLUX__ARGS(h) (c.h, &rank)
    FLUX__MPI_CALL(Comm_rank, FLUX__ARGS);
#undef FLUX__ARGS
    return rank;
}
static int flux__mpi_size(flux__mpi_handle c) {
    int size = 1;
#define FLUX__ARGS(h) (c.h, &size)
    FLUX__MPI_CALL(Comm_size, FLUX__ARGS);
#undef FLUX__ARGS
    return size;
}

/* A copy of a communicator, whose errors are returned. */
static bool flux__mpi_dup(flux__mpi_handle c, flux__mpi_handle *out, char *why, size_t n) {
    const flux__mpi_handle handler = flux__mpi.constant[FLUX__MPI_RETURNS];
#define FLUX__ARGS(h) (c.h, &out->h)
    if (!flux__mpi_ok(FLUX__MPI_CALL(Comm_dup, FLUX__ARGS), "Comm_dup", why, n)) return false;
#undef FLUX__ARGS
#define FLUX__ARGS(h) (out->h, handler.h)
    return flux__mpi_ok(FLUX__MPI_CALL(Comm_set_errhandler, FLUX__ARGS), "Comm_set_errhandler", why,
                        n);
#undef FLUX__ARGS
}

/* The ranks of c that are on this machine, in their order. */
static bool flux__mpi_split_host(flux__mpi_handle c, flux__mpi_handle *out, char *why, size_t n) {
    const flux__mpi_handle info = flux__mpi.constant[FLUX__MPI_NO_INFO];
#define FLUX__ARGS(h) (c.h, flux__mpi.is.shared, 0, info.h, &out->h)
    return flux__mpi_ok(FLUX__MPI_CALL(Comm_split_type, FLUX__ARGS), "Comm_split_type", why, n);
#undef FLUX__ARGS
}

static void flux__mpi_free(flux__mpi_handle *c) {
#define FLUX__ARGS(h) (&c->h)
    FLUX__MPI_CALL(Comm_free, FLUX__ARGS);
#undef FLUX__ARGS
}

/* This machine's name. */
static void flux__mpi_host(char *out, size_t n) {
    char name[1024] = "";
    int length = 0;
#define FLUX__ARGS(h) (name, &length)
    FLUX__MPI_CALL(Get_processor_name, FLUX__ARGS);
#undef FLUX__ARGS
    snprintf(out, n, "%s", name);
}

/* ---------------- operations of dtypes */

/* NaN where either is; two zeros give +0, or ranks, whose operands come in different orders, would
   get zeros of different signs. */
#define FLUX__MAX_OF_TWO(a, b) (((a) > (b) || (a) != (a) ? (a) : (b)) + 0)
#define FLUX__MIN_OF_TWO(a, b) (((a) < (b) || (a) != (a) ? (a) : (b)) + 0)
/* A reduction of a floating type in plain C. */
#define FLUX__MPI_FOLD(T, name, OF)                                                                \
    static void flux__mpi_##name##_##T(void *in, void *inout, int *n, void *type) {                \
        const T *a = (const T *)in;                                                                \
        T *b = (T *)inout;                                                                         \
        (void)type;                                                                                \
        for (int i = 0; i < *n; i++) b[i] = OF(a[i], b[i]);                                        \
    }
FLUX__MPI_FOLD(float, max, FLUX__MAX_OF_TWO)
FLUX__MPI_FOLD(float, min, FLUX__MIN_OF_TWO)
FLUX__MPI_FOLD(double, max, FLUX__MAX_OF_TWO)
FLUX__MPI_FOLD(double, min, FLUX__MIN_OF_TWO)

/* inout = in op inout for n numbers of a half format, computed in f32 and rounded once. */
static void flux__mpi_fold_half(int dtype, flux__mpi_fold *fold, const char *in, char *inout,
                                int n) {
    float a[256], b[256];
    for (int at = 0, some; at < n; at += some) {
        some = n - at < 256 ? n - at : 256;
        flux__load(FLUX__F32C, a, dtype, in + 2 * at, 1, some);
        flux__load(FLUX__F32C, b, dtype, inout + 2 * at, 1, some);
        fold(a, b, &some, NULL);
        flux__store(dtype, inout + 2 * at, 1, FLUX__F32C, b, some);
    }
}
#define FLUX__SUM_OF_TWO(a, b) ((a) + (b))
#define FLUX__PRODUCT_OF_TWO(a, b) ((a) * (b))
FLUX__MPI_FOLD(float, sum, FLUX__SUM_OF_TWO)
FLUX__MPI_FOLD(float, prod, FLUX__PRODUCT_OF_TWO)
#define FLUX__MPI_HALVES(name)                                                                     \
    static void flux__mpi_##name##_f16(void *in, void *inout, int *n, void *type) {                \
        (void)type;                                                                                \
        flux__mpi_fold_half(FLUX_F16, flux__mpi_##name##_float, (char *)in, (char *)inout, *n);    \
    }                                                                                              \
    static void flux__mpi_##name##_bf16(void *in, void *inout, int *n, void *type) {               \
        (void)type;                                                                                \
        flux__mpi_fold_half(FLUX_BF16, flux__mpi_##name##_float, (char *)in, (char *)inout, *n);   \
    }
FLUX__MPI_HALVES(sum)
FLUX__MPI_HALVES(prod)
FLUX__MPI_HALVES(min)
FLUX__MPI_HALVES(max)

/* The reductions of our own by dtype (f32, f64, f16, bf16) and operation (sum, prod, min, max);
   NULL: MPI's own does it. */
static flux__mpi_fold *const flux__mpi_folds[4][4] = {
    { NULL, NULL, flux__mpi_min_float, flux__mpi_max_float },
    { NULL, NULL, flux__mpi_min_double, flux__mpi_max_double },
    { flux__mpi_sum_f16, flux__mpi_prod_f16, flux__mpi_min_f16, flux__mpi_max_f16 },
    { flux__mpi_sum_bf16, flux__mpi_prod_bf16, flux__mpi_min_bf16, flux__mpi_max_bf16 }
};
static struct { flux__mpi_handle op; bool made; } flux__mpi_made[4][4];

static flux__mpi_handle flux__mpi_type(flux_dtype t) {
    static const int types[] = { FLUX__MPI_FLOAT, FLUX__MPI_DOUBLE, FLUX__MPI_UINT16,
                                 FLUX__MPI_UINT16, FLUX__MPI_INT32, FLUX__MPI_INT64,
                                 FLUX__MPI_UINT8, FLUX__MPI_UINT8 };
    return flux__mpi.constant[types[t]];
}

/* The operation `op` on dtype t; one of our own is made when it is first needed. */
static bool flux__mpi_op(flux_dtype t, flux_agg op, flux__mpi_handle *out, char *why, size_t n) {
    int k = op == FLUX_SUM ? 0 : op == FLUX_PROD ? 1 : op == FLUX_MIN ? 2 : 3;
    if (t == FLUX_BOOL) k = k == 0 ? 3 : k == 1 ? 2 : k;         /* any, all */
    flux__mpi_fold *fold = t < 4 ? flux__mpi_folds[t][k] : NULL;
    *out = flux__mpi.constant[FLUX__MPI_SUM + k];
    if (!fold) return true;
#define FLUX__ARGS(h) (fold, 1, &flux__mpi_made[t][k].op.h)
    if (!flux__mpi_made[t][k].made &&
        !flux__mpi_ok(FLUX__MPI_CALL(Op_create, FLUX__ARGS), "Op_create", why, n)) return false;
#undef FLUX__ARGS
    flux__mpi_made[t][k].made = true;
    *out = flux__mpi_made[t][k].op;
    return true;
}

/* ---------------- collectives: data are replaced by the result

   With a request a collective only begins, flux__mpi_test ends it, and it has at most
   flux__mpi_most elements, as it does not go in pieces. */

#define FLUX__MPI_IN_PLACE ((const void *)flux__mpi.is.in_place)

static bool flux__mpi_test(flux__mpi_handle *request, bool *done, char *why, size_t n) {
    int64_t status[8];
    int flag = 0;
#define FLUX__ARGS(h) (&request->h, &flag, status)
    const bool ok = flux__mpi_ok(FLUX__MPI_CALL(Test, FLUX__ARGS), "Test", why, n);
#undef FLUX__ARGS
    *done = flag != 0;
    return ok;
}

/* Calls MPI's `name`, or `begun` if there is a request; FLUX__MPI_LIST has the arguments. */
#define FLUX__MPI_WAITS(h) (FLUX__MPI_LIST(h))
#define FLUX__MPI_BEGINS(h) (FLUX__MPI_LIST(h), &request->h)
#define FLUX__MPI_EITHER(name, begun)                                                              \
    (request ? flux__mpi_ok(FLUX__MPI_CALL(begun, FLUX__MPI_BEGINS), #begun, why, n)               \
             : flux__mpi_ok(FLUX__MPI_CALL(name, FLUX__MPI_WAITS), #name, why, n))

/* What the collectives below have in common: a loop over pieces of a call's elements. */
#define FLUX__MPI_PIECES(name, begun)                                                              \
    bool ok = true;                                                                                \
    for (int64_t at = 0, some; at < count && ok; at += some) {                                     \
        const size_t offset = (size_t)at * flux__dtypes[t].size;                                   \
        void *part = (char *)data + offset;                                                        \
        some = count - at < flux__mpi_most ? count - at : flux__mpi_most;                          \
        ok = FLUX__MPI_EITHER(name, begun);                                                        \
    }                                                                                              \
    return ok;

static bool flux__mpi_allreduce(flux__mpi_handle c, void *data, int64_t count, flux_dtype t,
                                flux_agg agg, flux__mpi_handle *request, char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(t);
    flux__mpi_handle op;
    if (!flux__mpi_op(t, agg, &op, why, n)) return false;
#define FLUX__MPI_LIST(h) FLUX__MPI_IN_PLACE, part, (int)some, type.h, op.h, c.h
    FLUX__MPI_PIECES(Allreduce, Iallreduce)
#undef FLUX__MPI_LIST
}

/* out gets the reduction on the root, and stays as it is elsewhere. Not in place: MPICH 4.0 crashes
   then, if the root is not rank 0. */
static bool flux__mpi_reduce(flux__mpi_handle c, void *data, void *out, int64_t count,
                             flux_dtype t, flux_agg agg, int root, flux__mpi_handle *request,
                             char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(t);
    flux__mpi_handle op;
    if (!flux__mpi_op(t, agg, &op, why, n)) return false;
#define FLUX__MPI_LIST(h) part, (char *)out + offset, (int)some, type.h, op.h, root, c.h
    FLUX__MPI_PIECES(Reduce, Ireduce)
#undef FLUX__MPI_LIST
}

static bool flux__mpi_broadcast(flux__mpi_handle c, void *data, int64_t count, flux_dtype t,
                                int root, flux__mpi_handle *request, char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(t);
#define FLUX__MPI_LIST(h) part, (int)some, type.h, root, c.h
    FLUX__MPI_PIECES(Bcast, Ibcast)
#undef FLUX__MPI_LIST
}

/* data: a block of `bytes` of each rank, in the order of ranks; this rank's own is there already.
   Blocks that are too long for one call are sent by one rank after the other. */
static bool flux__mpi_allgather(flux__mpi_handle c, void *data, size_t bytes,
                                flux__mpi_handle *request, char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(FLUX_U8);
    if (bytes > (size_t)flux__mpi_most) {
        bool sent = true;
        for (int r = 0, size = flux__mpi_size(c); r < size && sent; r++)
            sent = flux__mpi_broadcast(c, (char *)data + (size_t)r * bytes, (int64_t)bytes,
                                       FLUX_U8, r, NULL, why, n);
        return sent;
    }
#define FLUX__MPI_LIST(h) FLUX__MPI_IN_PLACE, 0, type.h, data, (int)bytes, type.h, c.h
    return FLUX__MPI_EITHER(Allgather, Iallgather);
#undef FLUX__MPI_LIST
}

/* data: `count` elements for each rank, in the order of ranks, which are destroyed; out: those of
   this rank, reduced. Without a request they are reduced to one rank after the other: what is too
   long for one call. */
static bool flux__mpi_reduce_scatter(flux__mpi_handle c, void *data, void *out, int64_t count,
                                     flux_dtype t, flux_agg agg, flux__mpi_handle *request,
                                     char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(t);
    const size_t bytes = (size_t)count * flux__dtypes[t].size;
    const int ranks = flux__mpi_size(c), some = (int)count;
    flux__mpi_handle op;
    bool ok = flux__mpi_op(t, agg, &op, why, n);
#define FLUX__ARGS(h) (data, out, some, type.h, op.h, c.h, &request->h)
    if (request) return ok && flux__mpi_ok(FLUX__MPI_CALL(Ireduce_scatter_block, FLUX__ARGS),
                                           "Ireduce_scatter_block", why, n);
#undef FLUX__ARGS
    for (int r = 0; r < ranks && ok; r++)
        ok = flux__mpi_reduce(c, (char *)data + (size_t)r * bytes, out, count, t, agg, r, NULL, why,
                              n);
    return ok;
}

/* ---------------- small messages */

static bool flux__mpi_isend(flux__mpi_handle c, const void *data, size_t bytes, int to, int tag,
                            flux__mpi_handle *request, char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(FLUX_U8);
#define FLUX__ARGS(h) (data, (int)bytes, type.h, to, tag, c.h, &request->h)
    return flux__mpi_ok(FLUX__MPI_CALL(Isend, FLUX__ARGS), "Isend", why, n);
#undef FLUX__ARGS
}

/* Whether a message with this tag lies here; *from: its rank, or -1. */
static bool flux__mpi_probe(flux__mpi_handle c, int tag, int *from, char *why, size_t n) {
    int status[16] = { 0 }, flag = 0;
#define FLUX__ARGS(h) (flux__mpi.is.any_source, tag, c.h, &flag, status)
    const bool ok = flux__mpi_ok(FLUX__MPI_CALL(Iprobe, FLUX__ARGS), "Iprobe", why, n);
#undef FLUX__ARGS
    *from = ok && flag ? status[flux__mpi.is.source] : -1;
    return ok;
}

static bool flux__mpi_receive(flux__mpi_handle c, void *data, size_t bytes, int from, int tag,
                              char *why, size_t n) {
    const flux__mpi_handle type = flux__mpi_type(FLUX_U8);
    int64_t status[8];
#define FLUX__ARGS(h) (data, (int)bytes, type.h, from, tag, c.h, status)
    return flux__mpi_ok(FLUX__MPI_CALL(Recv, FLUX__ARGS), "Recv", why, n);
#undef FLUX__ARGS
}

FLUX__END_LEAN
#endif /* FLUX_MPI */

#endif /* FLUX__DIST_MPI_H */
