#ifndef FLUX__DIST_COMM_H
#define FLUX__DIST_COMM_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../base/options.h"
#include "../base/ranks.h"
#include "../graph/leaves.h"
#include "../schedule/trace.h"
#include "mpi_library.h"
#include "mpi.h"
#include "window.h"
#include "nccl_library.h"
#include "../device/choosing.h"

/* ---------------------------------------------------------------------- dist/comm.h
   Communicators: joining the world (flux_distributed) and what is known of it.
   The engine is MPI, or between GPUs NCCL (dist/nccl.h) beside it.
   Before each collective the ranks shake hands (dist/handshakes.h), so that a
   rank which calls another collective, does not come or has failed is an error
   with its name, and no hang.

   Invariant: a flux_comm is never freed, since loaders, rules and recorded
   collectives have its address: what is used after flux_distributed_end is an
   error that says so. All ranks shake hands in one order, that of recording, and the data
   follow in the same order, on an MPI communicator of their own. After an error
   the communicator is broken: it stays, so that values can be looked at and
   saved, but it does no collective any more.

   Rejected: a thread that communicates (MPI then needs its highest level of
   threads, and two threads of one core take turns; the thread that evaluates
   looks after what is on its way instead), and blocking calls without a
   handshake (a rank that is late by a minute can't be told from one that is
   dead). */

FLUX__BEGIN_COLD

enum flux__collective_kind {
    FLUX__ALLREDUCE, FLUX__REDUCE_TO, FLUX__BROADCAST_FROM, FLUX__ALLGATHER, FLUX__REDUCE_SCATTER,
    FLUX__BARRIER, FLUX__LEAVE
};
FLUX__UNUSED static const char *const flux__collective_names[] = {
    "allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "barrier",
    "distributed_end"
};
FLUX__UNUSED static const char *const flux__agg_names[] = {
    "mean", "sum", "none", "prod", "min", "max"
};

/* What a rank is about to call, as ranks compare it. Ranks send it to each other as bytes. */
typedef struct flux__header {
    int64_t number;                       /* how many collectives came before it */
    int64_t count;                        /* elements of this rank's operands */
    int32_t kind, op, dtype, root;
    int64_t failed;                       /* of distributed_end: 1 if an error came before it */
    int64_t on_gpu;                       /* 1: NCCL does it */
} flux__header;

typedef struct flux__message flux__message;
typedef struct flux__nccl flux__nccl;

struct flux_comm {
    flux__head head;
    struct flux_comm *before;             /* the one made before it */
    bool ended;
    int rank, size, local_rank, local_size;
    double timeout;                       /* seconds */
    double weight;                        /* of this rank's batch in a mean over all ranks, see
                                             flux__comm_weigh; 1: all are alike */
    int64_t number;                       /* collectives begun */
    flux_tensor *last;                    /* the newest one recorded that may not have run yet, an
                                             edge; or NULL */
    bool broken;                          /* a collective has failed */
    char why[400];                        /* the first failure */
#ifdef FLUX_MPI
    flux__mpi_handle shake, data, side;   /* MPI communicators: of handshakes, of data,
                                             of reports */
    flux__nccl *nccl;                     /* NULL: MPI does all collectives */
    flux__message *first;                 /* collectives that were started, oldest first, see
                                             dist/messages.h */
    double poll_at;                       /* when to look how far they are, by flux__now */
    double waited;                        /* seconds for which kernels have waited for them */
    bool shaken;                          /* the next collective's handshake is done, see
                                             dist/replay.h */
    bool joined;                          /* the three are made */
    flux__mpi_window window;              /* of `data`, where one_host */
    bool one_host;                        /* all ranks are on this machine, and have a window */
    char (*hosts)[64];                    /* by rank: its machine's name */
#endif
};

#ifdef FLUX__WITH_NCCL
/* hook: flux__nccl_join, dist/nccl.h */
static bool flux__nccl_join(flux_comm *c, char *why, size_t size);
/* hook: flux__nccl_end, dist/nccl.h */
static void flux__nccl_end(flux_comm *c, bool well);
/* hook: flux__nccl_name, dist/nccl.h */
static const char *flux__nccl_name(const flux_comm *c);
#endif

/* hook: flux__dist_calls, dist/optimiser.h */
static const flux__rank_calls *flux__dist_calls(void);

/* ---------------- asking */

/* Whether c is a communicator; if not, an error. */
static bool flux__is_comm(const char *call, const flux_comm *c) {
    if (!c) return flux__null(call, "comm", c), false;
    if (c->ended) return FLUX__REFUSE("%s: the communicator was ended", call);
    return true;
}

FLUX_DEF int flux_rank_of(const flux_comm *c) { return flux__is_comm("rank_of", c) ? c->rank : -1; }
FLUX_DEF int flux_size_of(const flux_comm *c) { return flux__is_comm("size_of", c) ? c->size : -1; }
FLUX_DEF int flux_local_rank_of(const flux_comm *c) {
    return flux__is_comm("local_rank_of", c) ? c->local_rank : -1;
}
FLUX_DEF const char *flux_comm_name(const flux_comm *c) {
    if (!flux__is_comm("comm_name", c)) return "none";
#ifdef FLUX__WITH_NCCL
    if (c->nccl) return flux__nccl_name(c);
#endif
    return c->size == 1 ? "alone" : "MPI";
}

/* What this rank's mean over its batch counts in a mean over all ranks: the loader says it. */
static void flux__comm_weigh(flux_comm *c, double weight) {
    c->weight = weight;
}

/* ---------------- joining */

static flux_comm *flux__comms;            /* the one made last; once a process mostly */

static flux_comm *flux__comm_new(double timeout) {
    flux_comm *c = (flux_comm *)flux__zalloc(sizeof *c);
    if (!c) return NULL;
    c->head.kind = FLUX__COMM;
    c->head.refs = 1;
    c->size = c->local_size = 1;
    c->timeout = timeout;
    c->weight = 1;
    c->before = flux__comms;
    flux__comms = c;
    return c;
}

#ifdef FLUX_MPI
/* Finds the ranks' machines: their names, this rank's number on its own, and whether there is one
   only, where they get a window. Makes the communicators. */
static bool flux__comm_hosts(flux_comm *c, flux__mpi_handle world, char *why, size_t n) {
    flux__mpi_handle local;
    c->rank = flux__mpi_rank(world), c->size = flux__mpi_size(world);
    if (c->rank < 0 || c->rank >= c->size) {
        snprintf(why, n, "MPI says that this is rank %d of %d", c->rank, c->size);
        return false;
    }
    c->hosts = (char (*)[64])flux__zalloc((size_t)c->size * sizeof *c->hosts);
    if (!c->hosts) return false;
    if (!flux__mpi_dup(world, &c->shake, why, n) || !flux__mpi_dup(world, &c->data, why, n) ||
        !flux__mpi_dup(world, &c->side, why, n) || !flux__mpi_split_host(world, &local, why, n))
        return false;
    flux__trace_rank(c->rank);
    flux__rank_key = (uint64_t)c->rank * UINT64_C(0x9e3779b97f4a7c15);
    c->local_rank = flux__gpu_rank = flux__mpi_rank(local), c->local_size = flux__mpi_size(local);
    flux__mpi_free(&local);
    if (c->local_size == c->size && !flux__mpi_window_start(&c->window, c->data, c->rank, why, n))
        return false;
    c->one_host = c->window.part != NULL;
    flux__mpi_host(c->hosts[c->rank], sizeof c->hosts[0]);
    c->joined = flux__mpi_allgather(c->data, c->hosts, sizeof c->hosts[0], NULL, why, n);
    return c->joined;
}
#endif

/* Ends a communicator; MPI itself goes on. */
static void flux__comm_end(flux_comm *c) {
#ifdef FLUX_MPI
#ifdef FLUX__WITH_NCCL
    flux__nccl_end(c, !c->broken && c->joined);
#endif
    flux__mpi_window_free(&c->window, !c->broken && c->joined);
    if (!c->broken && c->joined) {        /* to free one, all ranks must come */
        flux__mpi_free(&c->shake);
        flux__mpi_free(&c->data);
        flux__mpi_free(&c->side);
    }
    flux__free(c->hosts);
    c->hosts = NULL;
#endif
    if (!c->broken) snprintf(c->why, sizeof c->why, "the communicator was ended");
    c->broken = c->ended = true;
}

enum { FLUX__BY_ANY, FLUX__BY_MPI, FLUX__BY_NCCL, FLUX__BY_NONE };
/* The engine that .backend names. */
static int flux__comm_engine(const char *name) {
    if (!name) return FLUX__BY_ANY;
    if (strcmp(name, "MPI") == 0) return FLUX__BY_MPI;
    return strcmp(name, "NCCL") == 0 || strcmp(name, "RCCL") == 0 ? FLUX__BY_NCCL : FLUX__BY_NONE;
}

#ifdef FLUX_MPI
/* Has GPUs talk by NCCL, if that is asked for or, without an error, if it works. */
static bool flux__comm_gpus(flux_comm *c, int engine, char *why, size_t n) {
    if (engine == FLUX__BY_MPI || c->size == 1) return true;
#ifdef FLUX__WITH_NCCL
    char text[400];
    if (flux__nccl_join(c, text, sizeof text)) return true;
    if (engine == FLUX__BY_NCCL) snprintf(why, n, "%s", text);
    else flux__note(FLUX_LOG_DEBUG, "distributed.nccl", false,
                    "distributed: collectives of GPUs go by MPI: %s", text);
#else
    if (engine == FLUX__BY_NCCL)
        snprintf(why, n, "NCCL is for programs compiled with -DFLUX_CUDA or -DFLUX_HIP");
#endif
    return engine != FLUX__BY_NCCL;
}
#endif

/* Joins the world by MPI, if a launcher has started this program or the program itself has started
   MPI; alone otherwise. False: why is told. */
static bool flux__comm_join(flux_comm *c, const flux_distributed_opts *o, char *why, size_t n) {
    int family;
    const int launched = flux__mpi_launched(&family);
#ifdef FLUX_MPI
    if (launched == 1 && !o->comm && !flux__mpi_running()) return true;
    if (!flux__mpi_open(why, n) || !flux__mpi_start(o->argc, o->argv, why, n)) return false;
    flux__mpi_handle world = o->comm ? flux__mpi_given(o->comm) : flux__mpi_world();
    if (!flux__comm_hosts(c, world, why, n)) return false;
    if (launched > 1 && c->size == 1 && !o->comm) {
        snprintf(why, n, "a launcher%s%s has started %d processes, but %s, which is %s, knows of "
                 "one only: set FLUX_MPI_LIBRARY to the launcher's own library",
                 family ? " of " : "", family ? flux__mpi_families[family] : "", launched,
                 flux__mpi.file, flux__mpi_families[flux__mpi.family]);
        return false;
    }
    return flux__comm_gpus(c, flux__comm_engine(o->backend), why, n);
#else
    (void)c;
    if (launched != 1 || o->comm)
        snprintf(why, n, "%s, but the program was compiled without -DFLUX_MPI",
                 o->comm ? ".comm is given" : "a launcher has started this program");
    return launched == 1 && !o->comm;
#endif
}

FLUX_DEF flux_comm *flux_distributed_with(flux_distributed_opts o) {
    char why[600] = "";
    const double timeout = flux__given(o.timeout, o.marked, 60);
    flux_comm *c = NULL;
    flux__ranks = flux__dist_calls();
    if (!(timeout > 0)) snprintf(why, sizeof why, ".timeout is %g s", timeout);
    else if (flux__comm_engine(o.backend) == FLUX__BY_NONE)
        snprintf(why, sizeof why, "there is no backend \"%.40s\"; there are MPI, NCCL and RCCL",
                 o.backend);
    else if ((c = flux__comm_new(timeout)) != NULL && flux__comm_join(c, &o, why, sizeof why))
        return c;
    if (why[0]) flux__fail("distributed: %s", why);
    if (c) flux__comm_end(c);
    return NULL;
}

FLUX__END_COLD

#endif /* FLUX__DIST_COMM_H */
