/* Collectives of GPUs by NCCL or RCCL, on as many ranks as a launcher starts, each with the GPU of its number. The mode is the
   first argument:
     works       every dtype, operation and root, against numbers that are written down here; "rank R of N: ok"
     overlap     long rows of collectives and kernels in turn, whose results tell if one did not wait for the other
     fails CALL  the call of NCCL's fails on rank 1, in its turn; "rank R: told ..., saved" if that was told, and values can be
                 looked at and saved afterwards; "list": the calls
     replay      steps with their collectives as one graph, whose results are the bits of those kernel by kernel
     differ      rank 1's tensor is on the host               shape   rank 1's has fewer elements
     hangs       rank 1's NCCL does nothing from a collective on (SOFTNCCL_HANG)
     late        the same, of a collective in a graph           launch  the graph's launch fails on rank 1
     one         NCCL of a single rank, which needs no launcher and no MPI: for a machine with one card
   Run by tests/check_nccl.sh on software GPUs. */
#define _POSIX_C_SOURCE 200809L
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include "meet.h"

/* of failing.c, for training.c, which is linked with this here */
void take_apart(flux_comm *c, bool apart);
void take_apart(flux_comm *c, bool apart) { c->one_host = !apart && c->window.part; }

static int wrong, rank, size;
static flux_comm *comm;
#define EXPECT(what) \
    do if (!(what)) printf("rank %d of %d: line %d: %s\n", rank, size, __LINE__, #what), wrong++; while (0)

static flux_device gpu_of(const flux_tensor *x) { return flux_device_of((flux_tensor *)(intptr_t)x); }

/* ---------------- works */

static double mine(int r, int64_t i) { return 1 + (double)(r % 3) + (double)(i % 3); }
static flux_tensor *numbers(flux_dtype t, int r, int64_t n) {
    float v[4096];
    for (int64_t i = 0; i < n; i++) v[i] = (float)mine(r, i);
    return flux_to_dtype(flux_gpu(flux_from(v, n)), t);      /* flux_gpu itself takes f64 for f32 */
}
static double folded(flux_agg op, int64_t i) {
    double y = mine(0, i);
    for (int r = 1; r < size; r++) {
        const double x = mine(r, i);
        y = op == FLUX_PROD ? y * x : op == FLUX_MIN ? fmin(y, x) : op == FLUX_MAX ? fmax(y, x) : y + x;
    }
    return op == FLUX_MEAN ? y / size : y;
}
static bool close_to(flux_tensor *x, int64_t i, double want, flux_dtype t) {
    const double have = flux_at(flux_reshape(x, -1), i), scale = t == FLUX_BF16 ? 8e-3 : t == FLUX_F16 ? 1e-3 : 1e-6;
    return t == FLUX_BOOL ? have == 1 : fabs(have - want) <= scale * fabs(want);
}

static void of_dtype(flux_dtype t) {
    static const flux_agg ops[] = { FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX, FLUX_MEAN };
    const int64_t n = 1000;
    flux_tensor *x = numbers(t, rank, n);
    for (int k = 0; k < 5; k++) FLUX_SCOPE {
        flux_tensor *y = flux_allreduce(comm, flux_reshape(x, 10, 100), ops[k]);
        EXPECT(flux_ndim(y) == 2 && gpu_of(y).backend != 0);
        for (int64_t i = 0; i < n; i += 37) EXPECT(close_to(y, i, folded(ops[k], i), t));
        for (int root = 0; root < size; root++) {
            flux_tensor *z = flux_reduce(comm, x, ops[k], .root = root);
            for (int64_t i = 0; i < n; i += 111) EXPECT(close_to(z, i, rank == root ? folded(ops[k], i) : mine(rank, i), t));
        }
        flux_tensor *s = flux_reduce_scatter(comm, numbers(t, rank, 12 * size), ops[k]);
        EXPECT(flux_len(s) == 12);
        for (int64_t i = 0; i < 12; i++) EXPECT(close_to(s, i, folded(ops[k], 12 * rank + i), t));
    }
    for (int root = 0; root < size; root++) {
        flux_tensor *b = flux_broadcast(comm, x, .root = root);
        EXPECT(flux_dtype_of(b) == t);
        for (int64_t i = 0; i < n; i += 41) EXPECT(close_to(b, i, mine(root, i), t));
    }
    flux_tensor *g = flux_allgather(comm, flux_reshape(x, 10, 100));
    EXPECT(flux_dtype_of(g) == t && flux_dim(g, 1) == 100 * size && gpu_of(g).backend != 0);
    for (int64_t i = 0; i < n * size; i += 41) EXPECT(close_to(g, i, mine((int)(i / n), i % n), t));
}

static void of_others(void) {
    flux_tensor *here = flux_allreduce(comm, flux_full((double)rank, 3), FLUX_SUM);     /* of the host: by MPI */
    EXPECT(gpu_of(here).backend == 0 && flux_at(here, 2) == size * (size - 1) / 2.0);
    EXPECT(flux_len(flux_allreduce(comm, flux_gpu(flux_zeros(0)), FLUX_SUM)) == 0);
    EXPECT(flux_item(flux_allreduce(comm, flux_gpu(flux_scalar(rank)), FLUX_SUM)) == size * (size - 1) / 2.0);
    flux_tensor *nan = flux_gpu(flux_full(rank == size - 1 ? (double)NAN : 1, 2));             /* NCCL itself drops it */
    EXPECT(isnan(flux_at(flux_allreduce(comm, nan, FLUX_MAX), 0)) && isnan(flux_at(flux_allreduce(comm, nan, FLUX_SUM), 1)));
    flux_tensor *both = flux_allreduce(comm, flux_tuple(flux_gpu(flux_ones(2)), flux_gpu(flux_full(rank, 3)), flux_ones(4)), FLUX_SUM);
    flux_tensor *joined = flux_add(flux_sum(flux_nth(both, 0)), flux_sum(flux_nth(both, 1)));     /* two of a group */
    EXPECT(flux_item(joined) == 2.0 * size + 3 * size * (size - 1) / 2.0 && flux_at(flux_nth(both, 2), 3) == size);
    flux_seed(100 + (uint64_t)rank);
    flux_layer *m = flux_gpu(flux_chain(flux_dense(3, 4, flux_relu), flux_batchnorm(4), flux_dense(4, 2)));
    m = flux_synchronize(comm, m, .root = size - 1);
    flux_seed(100 + (uint64_t)size - 1);
    flux_layer *root = flux_chain(flux_dense(3, 4, flux_relu), flux_batchnorm(4), flux_dense(4, 2));
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(flux_cpu(flux_destructure(m)), flux_destructure(root))))) == 0);
    EXPECT(flux_barrier(comm) == 0);
}

/* ---------------- one: flux.h does not call NCCL in a world of one, so what it would call is called here */

static bool alike(flux_tensor *x, flux_tensor *y) { return flux_item(flux_all(flux_eq(flux_cpu(x), flux_cpu(y)))) == 1; }

static void one_group(flux_dtype t, flux_agg op, int64_t n) {
    static const int kinds[] = { FLUX__ALLREDUCE, FLUX__REDUCE_TO, FLUX__BROADCAST_FROM, FLUX__ALLGATHER, FLUX__REDUCE_SCATTER };
    flux__nccl_task task[5];
    flux__header header[5];
    flux_tensor *x = flux_eval(numbers(t, 0, n)), *y[5];
    for (int i = 0; i < 5; i++) {
        y[i] = flux_eval(numbers(t, 1 + i % 2, n));
        memset(&header[i], 0, sizeof header[i]);
        header[i].kind = kinds[i], header[i].op = (int)op, header[i].dtype = (int)t, header[i].count = n;
        task[i].header = &header[i], task[i].in = flux_pointer(x), task[i].out = (void *)(uintptr_t)flux_pointer(y[i]);
        task[i].packed = flux__nccl_packed(comm->nccl);
        EXPECT(task[i].packed >= 0);
    }
    EXPECT(flux__nccl_run(comm, task, 5));
    for (int i = 0; i < 5; i++) EXPECT(alike(x, y[i]));
}

static void one(void) {
    char why[400] = "";
    flux__nccl_id id;
    const int backend = strcmp(getenv("FLUX_TEST_DEVICE"), "CUDA") ? FLUX__AMDGPU_BACKEND : FLUX__CUDA_BACKEND;
    const flux__nccl_library *l = flux__nccl_open(backend, why, sizeof why);
    flux_eval(flux_gpu(flux_ones(1)));                      /* the device is open */
    memset((void *)&id, 0, sizeof id);
    EXPECT(l && l->call.GetUniqueId(&id) == 0);
    if (l) comm->nccl = flux__nccl_new(comm, backend, id, why, sizeof why);
    EXPECT(comm->nccl);
    if (!comm->nccl) {
        printf("%s\n", why);
        return;
    }
    static const flux_agg ops[] = { FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX };
    for (int t = 0; t < FLUX_NUM_DTYPES; t++)
        for (int k = 0; k < 4; k++) FLUX_SCOPE one_group((flux_dtype)t, ops[k], 1 + 999 * (k % 2));
    for (int i = 0; i < 20; i++) FLUX_SCOPE one_group(FLUX_F32, FLUX_SUM, 4000);     /* turns are taken again */
    flux__nccl_end(comm, true);
}

/* ---------------- overlap */

/* Collectives that use what the device is about to compute, and kernels that use what they give, without a look between. */
static void overlap(void) {
    const int64_t n = 5000;
    for (int repeat = 0; repeat < 3; repeat++) FLUX_SCOPE {
        flux_tensor *x = flux_gpu(flux_full(rank + 1.0, n)), *kept[8];
        double want = 0;
        for (int r = 0; r < size; r++) want += r + 1;
        for (int i = 0; i < 8; i++) {
            flux_tensor *a = flux_mul(x, 2), *b = flux_add(x, (double)i);
            flux_tensor *sum = flux_allreduce(comm, a, FLUX_SUM), *other = flux_allreduce(comm, b, FLUX_SUM);
            flux_tensor *beside = flux_sqrt(flux_square(b));            /* of neither */
            kept[i] = flux_add(flux_sub(sum, other), flux_mul(beside, 0));
            x = flux_div(flux_add(sum, flux_mul(x, 0)), 2.0 * size);    /* the mean, on every rank */
            if (i % 3 == 2) flux_eval(x);
        }
        EXPECT(fabs(flux_at(x, n - 1) - want / size) < 1e-5 && fabs(flux_at(x, 0) - want / size) < 1e-5);
        for (int i = 0; i < 8; i++) EXPECT(fabs(flux_at(kept[i], 17) - (want - size * i)) < 1e-4);
    }
    /* a step of buckets, over and over: memory does not grow, and is used again only behind the collectives */
    flux_seed(3);
    flux_layer *m = flux_gpu(flux_chain(flux_dense(8, 64, flux_tanh), flux_dense(64, 8)));
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_adam(0.01), .bucket = 600), m);
    flux_tensor *data = flux_gpu(flux_full(0.1 * (rank + 1), 8, 16));
    int64_t first = 0;
    for (int step = 0; step < 40; step++) FLUX_SCOPE {
        EXPECT(flux_update(s, m, flux_gradient(flux_mse(flux_call(m, data), data), m)) == 0);
        if (step == 10) first = flux_mem_stats(gpu_of(data)).reserved;
    }
    EXPECT(flux_mem_stats(gpu_of(data)).reserved == first);
    flux_tensor *all = flux_destructure(m);
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, all, FLUX_SUM), flux_mul(all, (double)size)))) < 1e-5);
}

/* ---------------- replay */

static flux__gpu *gpu(void) {
    return &flux__gpus[strcmp(getenv("FLUX_TEST_DEVICE"), "CUDA") ? 1 : 0][comm->local_rank];
}
static flux_tensor *data_of(int r) { return flux_gpu(flux_full(0.1 * (r + 1), 8, 16)); }
static flux_layer *network(void) {
    flux_seed(3);
    return flux_gpu(flux_chain(flux_dense(8, 48, flux_tanh), flux_dense(48, 10), flux_dense(10, 8)));
}
static int train(flux_state *s, flux_layer *m, int n) {
    static flux_tensor *x;                   /* where it was in the last steps */
    int rc = 0;
    if (!x) x = (flux_tensor *)flux_retain(flux_eval(data_of(rank)));
    for (int i = 0; i < n && rc == 0; i++) FLUX_SCOPE rc = flux_update(s, m, flux_gradient(flux_mse(flux_call(m, x), x), m));
    return rc;
}

/* n steps, kernel by kernel or with graphs. what: 1: shares of the state; 2: memory is given back on rank 1 in between, so
   that its graph is dropped; 3: another plan runs there, and takes the memory that the graph has */
static flux_tensor *trained(int n, bool graphs, int what) {
    flux_layer *m = network();
    flux_rule rule = flux_distributed_optimiser(comm, flux_adam(0.01), .bucket = 700, .shard = what == 1);
    flux_state *s = flux_setup(rule, m);
    gpu()->replaying = graphs;
    EXPECT(train(s, m, n / 2) == 0);
    if (what == 2 && rank == 1) {
        FLUX_SCOPE flux_eval(flux_mul(flux_gpu(flux_ones(100000)), 2));
        flux_mem_trim(gpu_of(data_of(0)));
    }
    if (what == 3 && rank == 1) EXPECT(flux_item(flux_sum(flux_mul(data_of(1), 3.0))) > 0);
    const flux__gpu_counters before = gpu()->counters;
    const unsigned taken = comm->nccl->taken;
    EXPECT(train(s, m, n - n / 2) == 0);
    const flux__gpu_counters now = gpu()->counters;
    const int64_t steps = n - n / 2, graph_launches = now.graph_launches - before.graph_launches, made = now.graphs - before.graphs,
        turns = comm->nccl->taken - taken;
    /* one graph a step, which has all collectives in it */
    if (graphs && what < 2) EXPECT(turns == steps && graph_launches == steps && made == 0 && comm->nccl->graphs);
    else if (graphs) EXPECT(turns > steps && turns < 2 * steps && made > 0 && comm->nccl->graphs);
    else EXPECT(turns > 2 * steps && graph_launches == 0);
    gpu()->replaying = true;
    return flux_cpu(flux_destructure(m));
}

static void replay(void) {
    for (int what = 0; what < 4; what++) FLUX_SCOPE {
        flux_tensor *by_kernels = trained(20, false, what), *by_graphs = trained(20, true, what);
        EXPECT(memcmp(flux_data(by_kernels), flux_data(by_graphs), 4 * (size_t)flux_len(by_graphs)) == 0);
        flux_tensor *sum = flux_allreduce(comm, by_graphs, FLUX_SUM);
        EXPECT(flux_item(flux_max(flux_abs(flux_sub(sum, flux_mul(by_graphs, (double)size))))) < 1e-5);
    }
    flux_layer *m = network();               /* memory is steady */
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_adam(0.01)), m);
    EXPECT(train(s, m, 10) == 0);
    const flux_device d = { gpu()->driver == flux__driver_of(FLUX__CUDA_BACKEND) ? FLUX__CUDA_BACKEND : FLUX__AMDGPU_BACKEND, gpu()->id };
    const int64_t reserved = flux_mem_stats(d).reserved, made = gpu()->counters.graphs;
    EXPECT(train(s, m, 100) == 0 && flux_mem_stats(d).reserved == reserved && gpu()->counters.graphs == made);
}

/* ---------------- faults */

#define FAILED 3                         /* ncclInternalError */
static char spoilt[40];
static long left = 1;                    /* it fails in its turn */
static flux__nccl_calls real;
static bool fails(const char *call) { return rank == 1 && !strcmp(call, spoilt) && --left == 0; }
#define ARGUMENTS(...) __VA_ARGS__
#define SPOILT(name, parameters, arguments) \
    static int spoilt_##name parameters { return fails(#name) ? FAILED : real.name arguments; }
SPOILT(GetUniqueId, (flux__nccl_id *id), (id))
SPOILT(CommInitRank, (void **c, int n, flux__nccl_id id, int r), (c, n, id, r))
SPOILT(CommInitRankConfig, (void **c, int n, flux__nccl_id id, int r, flux__nccl_config *o), (c, n, id, r, o))
SPOILT(CommGetAsyncError, (void *c, int *e), (c, e))
SPOILT(CommFinalize, (void *c), (c))
SPOILT(CommDestroy, (void *c), (c))
SPOILT(GroupStart, (void), ())
SPOILT(GroupEnd, (void), ())
SPOILT(AllReduce, (const void *a, void *b, size_t n, int t, int o, void *c, void *s), (a, b, n, t, o, c, s))
SPOILT(Reduce, (const void *a, void *b, size_t n, int t, int o, int r, void *c, void *s), (a, b, n, t, o, r, c, s))
SPOILT(Broadcast, (const void *a, void *b, size_t n, int t, int r, void *c, void *s), (a, b, n, t, r, c, s))
SPOILT(AllGather, (const void *a, void *b, size_t n, int t, void *c, void *s), (a, b, n, t, c, s))
SPOILT(ReduceScatter, (const void *a, void *b, size_t n, int t, int o, void *c, void *s), (a, b, n, t, o, c, s))
#define ALL(X) X(GetUniqueId) X(CommInitRank) X(CommInitRankConfig) X(CommGetAsyncError) X(CommFinalize) X(CommDestroy)        \
    X(GroupStart) X(GroupEnd) X(AllReduce) X(Reduce) X(Broadcast) X(AllGather) X(ReduceScatter)

static int rank_by_launcher(void) {
    const char *mpich = getenv("PMI_RANK"), *open = getenv("OMPI_COMM_WORLD_RANK");
    return atoi(mpich ? mpich : open ? open : "0");
}
static void spoil(const char *call) {
    char why[300];
    const int backend = strcmp(getenv("FLUX_TEST_DEVICE"), "CUDA") ? FLUX__AMDGPU_BACKEND : FLUX__CUDA_BACKEND;
    flux__nccl_calls *now = &flux__nccls[backend - FLUX__CUDA_BACKEND].call;
    flux_functional(getenv("FLUX_TEST_DEVICE"));
    if (!flux__nccl_open(backend, why, sizeof why)) puts(why), exit(1);
    real = *now;
    snprintf(spoilt, sizeof spoilt, "%s", call);
    if (!strcmp(call, "GetUniqueId")) rank = rank == 0;              /* it is rank 0 that makes it */
    if (!strcmp(call, "CommInitRank")) now->CommInitRankConfig = NULL, now->CommFinalize = NULL;   /* as of an old NCCL */
#define SPOIL(name) if (now->name) now->name = spoilt_##name;
    ALL(SPOIL)
}

static void tell(const char *mode) {
    char told[600], path[100];
    snprintf(told, sizeof told, "%s", flux_error());
    flux_clear();
    flux_layer *m = flux_gpu(flux_dense(2, 2));
    snprintf(path, sizeof path, "nccl.%s%s.%d.safetensors", mode, spoilt, rank);
    const bool saved = flux_save(m, path) == 0 && flux_item(flux_sum(flux_gpu(flux_ones(3)))) == 3;
    remove(path);
    if (comm && *told) {
        EXPECT(!flux_allreduce(comm, flux_gpu(flux_ones(3)), FLUX_SUM) && strstr(flux_error(), "earlier"));
        EXPECT(flux_distributed_end(comm) != 0);
    } else if (comm) EXPECT(flux_distributed_end(comm) == 0 || !strcmp(spoilt, "CommFinalize"));
    printf("rank %d: told %s; %s\n", rank, *told ? told : "nothing", saved && !wrong ? "saved" : "LOST");
    fflush(stdout);
}

static int no_launch(void *exec, void *stream) { return (void)exec, (void)stream, 1; }

static int faults(const char *mode, const char *call) {
    if (call && !strcmp(call, "list")) {
#define LIST(name) puts(#name);
        ALL(LIST)
        return 0;
    }
    rank = rank_by_launcher();
    if (call) spoil(call);
    comm = flux_distributed(.backend = "NCCL", .timeout = !strcmp(mode, "hangs") || !strcmp(mode, "late") ? 1 : 5);
    rank = rank_by_launcher(), size = comm ? flux_size_of(comm) : 0;
    if (comm && call) {
        flux_tensor *x = flux_gpu(flux_ones(6 * size));
        flux_eval(flux_allreduce(comm, x, FLUX_SUM));
        flux_eval(flux_broadcast(comm, x));
        flux_eval(flux_reduce(comm, x, FLUX_SUM));
        flux_eval(flux_allgather(comm, x));
        flux_tensor *last = flux_reduce_scatter(comm, x, FLUX_SUM);
        if (last && flux_eval(last)) flux_item(flux_sum(last));
    } else if (comm && (!strcmp(mode, "late") || !strcmp(mode, "launch"))) {
        flux_layer *m = network();
        flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_adam(0.01)), m);
        EXPECT(train(s, m, 10) == 0 && gpu()->counters.graph_launches > 5);
        if (!strcmp(mode, "launch") && rank == 1) flux__cu.GraphLaunch = no_launch;
        if (train(s, m, 10) == 0) flux_item(flux_sum(flux_destructure(m)));
    } else if (comm) {
        flux_tensor *x = flux_gpu(flux_ones(rank == 1 && !strcmp(mode, "shape") ? 9 : 10)), *y = NULL;
        EXPECT(flux_at(flux_allreduce(comm, flux_gpu(flux_ones(2)), FLUX_SUM), 1) == size);
        if (rank == 1 && !strcmp(mode, "differ")) x = flux_ones(10);
        y = flux_allreduce(comm, x, FLUX_SUM);
        if (y && flux_eval(y)) flux_item(flux_sum(y));
    }
    tell(mode);
    meet(rank, 2, 8);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "works";
    if (strcmp(mode, "works") && strcmp(mode, "overlap") && strcmp(mode, "replay") && strcmp(mode, "one")) return faults(mode, !strcmp(mode, "fails") ? argv[2] : NULL);
    comm = flux_distributed();
    if (!comm) return 1;
    rank = flux_rank_of(comm), size = flux_size_of(comm);
    EXPECT(size == 1 || !strcmp(flux_comm_name(comm), strcmp(getenv("FLUX_TEST_DEVICE"), "CUDA") ? "RCCL" : "NCCL"));
    if (!strcmp(mode, "overlap")) overlap();
    else if (!strcmp(mode, "replay")) replay();
    else if (!strcmp(mode, "one")) one();
    else for (int t = 0; t < FLUX_NUM_DTYPES; t++) FLUX_SCOPE of_dtype((flux_dtype)t);
    FLUX_SCOPE of_others();
    EXPECT(flux_distributed_end(comm) == 0 && !flux_failed());
    if (!wrong) printf("rank %d of %d: ok\n", rank, size);
    return wrong != 0;
}
