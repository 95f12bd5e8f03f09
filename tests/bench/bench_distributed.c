/* What communication costs: run it by `mpirun -np 2 build/release/tests/bench/bench_distributed`, or on more ranks, with one
   thread each (FLUX_NUM_THREADS=1). A collective is compared with the same MPI's bare MPI_Allreduce of as many bytes in the
   same run, whose result, as ours, does not overwrite its operand; the training step with the same step of as many processes that do not talk. From the latency and the bandwidth so
   measured it reckons what more ranks would give. Times are the fastest of many, ratios medians of pairs. */
#define FLUX_MPI
#define FLUX_IMPLEMENTATION
#include "../../flux.h"

static flux_comm *comm;
static int rank, ranks;

/* What two ways took, measured in turn: the fastest of each, in seconds, and the median over the rounds of b's time by a's.
   A round's two times are neighbours and are the slowest rank's, so the median is right where the machine's pace changes and
   where one core is slower than another; the fastest of each may be of different paces. */
typedef struct turns { double a, b, ratio; } turns;

enum { MOST_ROUNDS = 2000 };
static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures both ways, each time from a barrier on. */
typedef void way(void *data);
static turns in_turns(int rounds, way *a, way *b, void *data) {
    static double took[2 * MOST_ROUNDS], ratio[MOST_ROUNDS];
    turns t = { 1e9, 1e9, 0 };
    for (int i = 0; i < 2 * rounds; i++) {
        flux_barrier(comm);
        const double start = flux__now();
        (i % 2 ? b : a)(data);
        took[i] = flux__now() - start;
    }
    flux_tensor *slowest = flux_allreduce(comm, flux_from(took, 2, rounds), FLUX_MAX);
    const double *s = (const double *)flux_data(slowest);
    for (int i = 0; i < rounds; i++) {
        if (s[2 * i] < t.a) t.a = s[2 * i];
        if (s[2 * i + 1] < t.b) t.b = s[2 * i + 1];
        ratio[i] = s[2 * i + 1] / s[2 * i];
    }
    qsort(ratio, (size_t)rounds, sizeof *ratio, ascending);
    t.ratio = ratio[rounds / 2];
    return t;
}

/* ---- collectives */

typedef struct tensors { int n; flux_tensor *x[64]; float *bare, *sum; int64_t count; } tensors;

static void by_flux(void *data) {
    tensors *t = (tensors *)data;
    FLUX_INFER {
        flux_tensor *y = flux__collective_node(comm, FLUX__ALLREDUCE, FLUX_SUM, 0, t->n, t->x, t->count);
        flux_eval(y);
    }
}
static void by_mpi(void *data) {
    tensors *t = (tensors *)data;
    const flux__mpi_handle type = flux__mpi_type(FLUX_F32), op = flux__mpi.constant[FLUX__MPI_SUM];
#define ARGS(h) (t->bare, t->sum, (int)t->count, type.h, op.h, comm->data.h)
    FLUX__MPI_CALL(Allreduce, ARGS);
}

static void collective(const char *name, int n, int64_t each) {
    tensors t = { n, { NULL }, NULL, NULL, n * each };
    t.bare = (float *)calloc((size_t)t.count, 4), t.sum = (float *)calloc((size_t)t.count, 4);
    for (int i = 0; i < n; i++) t.x[i] = flux_eval(flux_rand(each));
    const turns took = in_turns(t.count > 100000 ? 100 : MOST_ROUNDS, by_flux, by_mpi, &t);
    if (!rank) printf("allreduce of %-24s %9.1f us, bare MPI_Allreduce %9.1f us: %.2f of its time\n", name, 1e6 * took.a,
                      1e6 * took.b, 1 / took.ratio);
    free(t.bare);
    free(t.sum);
}

/* ---- a training step */

typedef struct training { flux_layer *m; flux_state *s[3]; flux_tensor *x, *y; } training;
static void step(training *t, int which) {
    FLUX_SCOPE {
        flux_tensor *loss = flux_logitcrossentropy(flux_call(t->m, t->x), t->y);
        flux_update(t->s[which], t->m, flux_gradient(loss, t->m));
        flux_item(loss);
    }
}
static void together(void *data) { step((training *)data, 0); }
static void apart(void *data) { step((training *)data, 1); }
static void sharded(void *data) { step((training *)data, 2); }

static double training_step(int64_t batch) {
    training t;
    flux_seed(1);
    t.m = flux_chain(flux_dense(784, 1024, flux_relu), flux_dense(1024, 1024, flux_relu), flux_dense(1024, 10));
    t.s[0] = flux_setup(flux_distributed_optimiser(comm, flux_adam(1e-3)), t.m);
    t.s[1] = flux_setup(flux_adam(1e-3), t.m);
    t.s[2] = flux_setup(flux_distributed_optimiser(comm, flux_adam(1e-3), .shard = true), t.m);
    t.x = flux_eval(flux_rand(784, batch));
    t.y = flux_eval(flux_onehot(flux_eval(flux_to_dtype(flux_mul(flux_rand(batch), 10), FLUX_I32)), 10));
    turns took = in_turns(100, together, apart, &t);
    if (!rank) printf("step 784-1024-1024-10, batch %lld a rank: %.2f ms together, %.2f ms apart: %.2f of its speed\n", (long long)batch,
                      1e3 * took.a, 1e3 * took.b, took.ratio);
    took = in_turns(100, sharded, apart, &t);
    if (!rank) printf("  with shares of the optimiser's state: %.2f ms, %.2f of its speed\n", 1e3 * took.a, took.ratio);
    return took.b;
}

/* ---- many ranks, reckoned */

static double bare(int64_t count) {
    tensors t = { 1, { NULL }, (float *)calloc((size_t)count, 4), (float *)calloc((size_t)count, 4), count };
    const turns took = in_turns(200, by_mpi, by_mpi, &t);
    free(t.bare);
    free(t.sum);
    return took.a < took.b ? took.a : took.b;
}

/* Of n ranks, m floats: a ring passes 2 (n - 1) pieces of 1 / n; a tree 2 log2(n) times all of it; two levels are rings within
   machines of 8 and between them. */
static void reckoned(double compute) {
    const int64_t floats = 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 10240 + 10;
    const double latency = bare(1) / 2, second = bare(2000000), bytes = 4.0 * (double)floats,
                 bandwidth = 8e6 / (second > 2 * latency ? second - 2 * latency : second);      /* two ranks: each byte goes once each way */
    if (rank) return;
    printf("reckoned from %.2f us a message and %.2f GB/s between two ranks here (an estimate, not a measurement):\n", 1e6 * latency,
           bandwidth / 1e9);
    for (int64_t n = 8; n <= 16384; n = n < 1024 ? n * 8 * (n == 64 ? 2 : 1) : n * 16) {
        const double hosts = (double)n / 8, ring = 2 * ((double)n - 1) * (latency + bytes / (double)n / bandwidth),
                     tree = 2 * ceil(log2((double)n)) * (latency + bytes / bandwidth),
                     levels = 14 * (latency + bytes / 8 / bandwidth) + 2 * (hosts - 1) * (latency + bytes / 8 / hosts / bandwidth);
        printf("  %5lld ranks: ring %8.2f ms, tree %8.2f ms, two levels %8.2f ms; a step at %.2f, %.2f, %.2f of one rank's speed\n", (long long)n,
               1e3 * ring, 1e3 * tree, 1e3 * levels, compute / (compute + ring), compute / (compute + tree), compute / (compute + levels));
    }
}

int main(int argc, char **argv) {
    comm = flux_distributed(.argc = &argc, .argv = &argv);
    if (!comm) return 1;
    rank = flux_rank_of(comm), ranks = flux_size_of(comm);
    if (ranks == 1) printf("one rank communicates nothing: FLUX_NUM_THREADS=1 mpirun -np 2 %s\n", argv[0]);
    else {
        FLUX_SCOPE collective("8 MB", 1, 2000000);
        FLUX_SCOPE collective("64 tensors of 8 KB", 64, 2048);
        FLUX_SCOPE collective("64 tensors of 256 bytes", 64, 64);
        double compute = 0;
        FLUX_SCOPE compute = training_step(128);
        reckoned(compute);
    }
    return flux_distributed_end(comm) || flux_failed();
}
