#ifndef FLUX__API_DISTRIBUTED_H
#define FLUX__API_DISTRIBUTED_H
#include "training.h"

/* ------------------------------------------------------------------ several processes
   A program that mpirun or srun starts many times trains one model together: every process, a rank,
   takes its share of the data and averages its gradients with the others'. Compile with -DFLUX_MPI;
   MPI is opened at run time (FLUX_MPI_LIBRARY names its file if it is not found). What lies on GPUs
   travels by NCCL or RCCL, which are opened, too (FLUX_NCCL_LIBRARY, FLUX_RCCL_LIBRARY), where all
   ranks have it and a GPU of their own; else by way of host memory. Without a launcher, with or
   without -DFLUX_MPI, there is a world of one rank, in which every call here works and communicates
   nothing.

   A collective is an operation like any other: it is recorded, and runs when its result, or that of
   a later collective, is looked at. All ranks must record the same collectives in the same order,
   with the same dtypes and sizes. A rank that calls another one, that does not come within .timeout
   seconds, or that has failed is an error on every rank, which names it; after that no collective
   of this communicator works any more, but values can be looked at and saved. Gradients do not pass
   collectives. */

/* The best that works on all ranks: NCCL or RCCL for tensors on the ranks' GPUs, else MPI. */
#define FLUX_ANY ((const char *)0)
typedef struct flux_distributed_opts {
    FLUX__DUMMY
    const char *backend FLUX__ZERO;       /* "MPI"; "NCCL" or "RCCL", an error where that does not
                                             work (without a launcher nothing is opened); or
                                             FLUX_ANY, the default */
    int *argc FLUX__ZERO; char ***argv FLUX__ZERO;   /* those of main, which MPI may change */
    const void *comm FLUX__ZERO;          /* the address of an MPI_Comm of yours, whose ranks form
                                             the world; default: MPI_COMM_WORLD */
    flux__double timeout FLUX__ZERO;      /* in seconds; default 60 */
    flux__marked marked FLUX__ZERO;
} flux_distributed_opts;
#define FLUX__LEFT_OUT_flux_distributed_opts .timeout = FLUX__NO_NUMBER, .marked = true,
/* Joins the world: starts MPI unless the program has. From then on flux_gpu, flux_cu and flux_roc
   take the GPU of this rank's number on its machine, counted round where there are fewer. Every
   rank calls it, once. It prints why and returns NULL if a launcher has started several ranks and
   they can't be reached. */
FLUX_API flux_comm *flux_distributed_with(flux_distributed_opts o);
#define flux_distributed(...) \
    /* Joins the world: flux_distributed(.timeout = 60). NULL on error. */ \
    flux_distributed_with(FLUX__OPTS(flux_distributed_opts, __VA_ARGS__))
/* Runs the collectives that are recorded still, waits for all ranks, and ends MPI if
   flux_distributed has started it. The communicator is gone afterwards. Returns 0, or non-zero if
   this or an earlier collective has failed. */
FLUX_API int flux_distributed_end(flux_comm *c);
/* 0 ... size - 1; -1 on error */
FLUX_API int flux_rank_of(const flux_comm *c);
/* How many ranks there are. */
FLUX_API int flux_size_of(const flux_comm *c);
/* This rank's number on its machine. */
FLUX_API int flux_local_rank_of(const flux_comm *c);
/* "NCCL", "RCCL", "MPI" or "alone" */
FLUX_API const char *flux_comm_name(const flux_comm *c);
typedef struct flux_interrupted_opts {
    FLUX__DUMMY
    flux_comm *comm FLUX__ZERO;           /* whose ranks are asked; NULL: this process */
} flux_interrupted_opts;
#define FLUX__LEFT_OUT_flux_interrupted_opts
/* flux_interrupted(): true once SIGTERM or SIGINT has come, as schedulers send it before they end a
   job: take a checkpoint and leave the loop. The first call installs the handlers, so that this is
   all that the signals do; a second one of them ends the program. flux_interrupted(comm): whether
   it has come to any rank, the same answer on all of them; every rank asks at the same place. */
FLUX_API bool flux_interrupted_with(flux_interrupted_opts o);
#define flux_interrupted(...) \
    /* Whether SIGTERM or Ctrl-C has come: to this process, or flux_interrupted(comm) to any. */ \
    flux_interrupted_with(FLUX__OPTS(flux_interrupted_opts, __VA_ARGS__))

typedef struct flux_root_opts {
    FLUX__DUMMY
    int root FLUX__ZERO;                  /* the rank that gives or gets; default 0 */
} flux_root_opts;
#define FLUX__LEFT_OUT_flux_root_opts
/* Collectives of tensors of any dtype, on any device, or of tuples of them. op: FLUX_SUM,
   FLUX_PROD, FLUX_MIN, FLUX_MAX or FLUX_MEAN (of integers: float32). Results on all ranks are the
   same bits. NULL on error.
   By NCCL or RCCL the host waits for none of them: a rank that is lost on the way is an error when
   a value is looked at, and what was computed of that collective on the device is worthless then:
   go on from a checkpoint. The tensor must be on the GPU on all ranks or on none. Tensors on the
   host go by MPI, and so, by way of host memory, do those on another GPU than flux_gpu's, and the
   minimum and maximum of floating-point numbers, of which NCCL drops NaN.
   allreduce        the sum, ... over all ranks, element by element, on every rank
   reduce           the same, on rank .root; the others get their own x
   broadcast        x of rank .root, on every rank: flux_broadcast(comm, x, .root = 0)
   allgather        x of all ranks, one behind the other along the last dim; a scalar gives a vector
   reduce_scatter   rank r gets part r of the sum, ..., cut along the last dim into equal parts */
FLUX_API flux_tensor *flux_allreduce(flux_comm *c, flux_tensor *x, flux_agg op);
FLUX_API flux_tensor *flux_reduce_with(flux_comm *c, flux_tensor *x, flux_agg op, flux_root_opts o);
FLUX_API flux_tensor *flux_broadcast_with(flux_comm *c, flux_tensor *x, flux_root_opts o);
/* x of all ranks, one behind the other along the last dim. */
FLUX_API flux_tensor *flux_allgather(flux_comm *c, flux_tensor *x);
/* Part number `rank` of the sum, ..., of all ranks' x, cut along the last dim. */
FLUX_API flux_tensor *flux_reduce_scatter(flux_comm *c, flux_tensor *x, flux_agg op);
#define flux_reduce(c, x, ...) \
    /* The sum, ..., on rank .root: flux_reduce(comm, x, FLUX_SUM, .root = 0). */ \
    FLUX__REDUCE_TO(c, x, __VA_ARGS__, )
#define FLUX__REDUCE_TO(c, x, op, ...) \
    flux_reduce_with(c, x, op, FLUX__OPTS(flux_root_opts, __VA_ARGS__))
#define flux_broadcast(c, ...) \
    /* x of rank .root, on every rank: flux_broadcast(comm, x, .root = 0). */ \
    FLUX__BROADCAST_FROM(c, __VA_ARGS__, )
#define FLUX__BROADCAST_FROM(c, x, ...) \
    flux_broadcast_with(c, x, FLUX__OPTS(flux_root_opts, __VA_ARGS__))
/* Runs all recorded collectives and waits until every rank has come here. Returns 0, or non-zero on
   error. */
FLUX_API int flux_barrier(flux_comm *c);

/* Gives every rank the numbers of rank .root: of a tensor, of a model (parameters and running
   statistics), or of an optimiser's state, as `model = flux_synchronize(comm, model, .root = 0)`.
   They are computed here and now. The result is a new object, ties stay ties; in a world of one it
   is the argument. NULL on error. */
FLUX_API flux_tensor *flux_synchronize_tensor(flux_comm *c, flux_tensor *x, flux_root_opts o);
FLUX_API flux_layer *flux_synchronize_layer(flux_comm *c, flux_layer *m, flux_root_opts o);
FLUX_API flux_state *flux_synchronize_state(flux_comm *c, flux_state *s, flux_root_opts o);

/* Rank 0 saves x (a tensor, a model, a state) as flux_save does; the others wait for it. Returns 0
   on every rank, or non-zero on every rank if the file could not be written.
   flux_distributed_save(comm, model, "m.safetensors") */
FLUX_API int flux_distributed_save_tensor(flux_comm *c, flux_tensor *x, const char *path);
FLUX_API int flux_distributed_save_layer(flux_comm *c, flux_layer *m, const char *path);
FLUX_API int flux_distributed_save_state(flux_comm *c, flux_state *s, const char *path);

typedef struct flux_distributed_rule_opts {
    FLUX__DUMMY
    flux__int64 bucket FLUX__ZERO;        /* bytes of gradients that travel together; 25 MB */
    bool shard FLUX__ZERO;                /* each rank keeps its share of the state alone */
    flux__marked marked FLUX__ZERO;
} flux_distributed_rule_opts;
#define FLUX__LEFT_OUT_flux_distributed_rule_opts .bucket = FLUX__NO_INT64, .marked = true,
/* The rule, applied to gradients that are averaged over all ranks (of an accumulated gradient: when
   it is complete). Gradients travel in buckets, in the order in which they are computed, while
   others still are; what is smaller than a bucket travels when all of it is there, so between
   machines a small model may gain by a small .bucket. A parameter that has a gradient on some ranks
   only counts as 0 on the others.
   Where the loader has .comm, ranks count by their observations, so that the result is the mean of
   the whole batch. flux_distributed_optimiser(comm, flux_adam(1e-3))
   With .shard = true the rule's states, and the master copies of mixed precision, take 1/n of their
   memory on each of n ranks: a rank gets its share of each averaged gradient, steps with it, and
   the new parameters are gathered. Results are those without .shard, to rounding.
   flux_distributed_save and flux_train's checkpoints contain the whole state, and each rank loads
   its share of it by flux_load, whatever their number; flux_save refuses such a state, and
   flux_synchronize gives all ranks the root's counts and leaves the shares. */
FLUX_API flux_rule flux_distributed_optimiser_with(flux_comm *c, flux_rule rule,
                                         flux_distributed_rule_opts o);
#define flux_distributed_optimiser(c, ...) \
    /* The rule on averaged gradients: flux_distributed_optimiser(comm, flux_adam(1e-3)). */ \
    FLUX__DISTRIBUTED_RULE(c, __VA_ARGS__, )
#define FLUX__DISTRIBUTED_RULE(c, rule, ...) \
    flux_distributed_optimiser_with(c, rule, FLUX__OPTS(flux_distributed_rule_opts, __VA_ARGS__))

#endif /* FLUX__API_DISTRIBUTED_H */
