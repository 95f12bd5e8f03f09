/* Training on as many ranks as a launcher starts is training by one process with the whole batch, to rounding. Each rank trains
   a model twice: with the others on its share, and by itself on all of the data; what they end with is compared. Prints "rank R
   of N: ok, HASH", the hash of all parameters, which is the same in every run on N ranks. Run by tests/check_mpi.sh. */
#define FLUX_IMPLEMENTATION
#include "flux.h"

static int wrong, rank, size;
static uint64_t hash = 14695981039346656037u;
#define EXPECT(what, ...) \
    do if (!(what)) printf("rank %d of %d: line %d: %s ", rank, size, __LINE__, #what), printf(__VA_ARGS__), puts(""), wrong++; while (0)

/* Of 214 observations, each of 1 to 7 ranks has some in the last batch, and not as many. */
enum { IN = 12, OUT = 3, OBSERVATIONS = 214, BATCH = 4, EPOCHS = 3 };

static flux_layer *mlp(void) { return flux_chain(flux_dense(IN, 16, flux_tanh), flux_dense(16, 8, flux_relu), flux_dense(8, OUT)); }
static flux_layer *frozen(void) {
    flux_layer *m = mlp();
    flux_freeze(flux_child(m, 1));
    return m;
}
static flux_tensor *as_image(flux_tensor *x) { return flux_reshape(x, 3, 4, 1, -1); }
static flux_layer *cnn(void) {
    return flux_chain(as_image, flux_conv_layer(FLUX_SHAPE(2, 2), 1, 4, flux_relu), flux_flatten, flux_dense(24, OUT));
}
static flux_layer *half(void) { return flux_f16(mlp()); }

static bool device;                              /* FLUX_TEST_DEVICE: on the GPU of this rank's number */
static flux_layer *on_device(flux_layer *m) { return device ? flux_gpu(m) : m; }

typedef struct job { const char *name; flux_layer *(*model)(void); flux_rule rule; double near; bool scaled; } job;

/* Trains a model, with the others if comm is not NULL, and gives its parameters. */
static flux_tensor *trained(flux_comm *comm, const job *j, flux_tensor *x, flux_tensor *y) {
    flux_seed(3);
    flux_layer *m = on_device(j->model());
    flux_rule rule = j->rule;
    flux_loader *data;
    if (comm) {
        rule = flux_distributed_optimiser(comm, rule, .bucket = 400);
        data = flux_dataloader(x, y, .batchsize = BATCH, .shuffle = true, .seed = 5, .comm = comm);
    } else data = flux_dataloader(x, y, .batchsize = BATCH * size, .shuffle = true, .seed = 5);
    if (device) data = flux_gpu(data);
    flux_state *s = flux_setup(rule, m);
    for (int e = 0; e < EPOCHS; e++)
        flux_each (b, data) {
            flux_tensor *loss = flux_mse(flux_call(m, b.x), b.y);
            if (j->scaled) loss = flux_scaled_loss(s, loss);
            EXPECT(flux_update(s, m, flux_gradient(loss, m)) == 0, "%s", j->name);
        }
    return flux_cpu(flux_to_dtype(flux_destructure(m), FLUX_F32));
}

static void add_hash(flux_tensor *x) {
    const unsigned char *p = (const unsigned char *)flux_data(x);
    for (int64_t i = 0; p && i < 4 * flux_len(x); i++) hash = (hash ^ p[i]) * 1099511628211u;
}

static void compared(flux_comm *comm, const job *j, flux_tensor *x, flux_tensor *y) {
    flux_tensor *a = trained(comm, j, x, y), *b = trained(NULL, j, x, y);
    const double far = flux_item(flux_max(flux_abs(flux_sub(a, b))));
    EXPECT(size == 1 && !device ? far == 0 : far <= (device ? 10 : 1) * j->near, "%s: %g", j->name, far);
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, a, FLUX_MAX), a))) == 0, "%s", j->name);
    EXPECT(flux_item(flux_max(flux_sub(a, flux_allreduce(comm, a, FLUX_MIN)))) == 0, "%s", j->name);
    add_hash(a);
}

/* A layer that has a gradient on rank 0 only, one that has none anywhere, and one after the other on another rank. */
static void with_gaps(flux_comm *comm) {
    flux_seed(8);
    flux_layer *part[4], *m;
    for (int i = 0; i < 4; i++) part[i] = flux_dense(2, 2);
    m = flux_chain(part[0], part[1], part[2], part[3]);
    flux_tensor *before = flux_keep(flux_copy(flux_weight(part[1]))), *none = flux_keep(flux_copy(flux_weight(part[2])));
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_momentum(0.5, .rho = 0.5)), m);
    for (int step = 0; step < 2; step++) FLUX_SCOPE {
        flux_tensor *loss = flux_sum(flux_square(flux_weight(part[0])));
        if (rank == 0) loss = flux_add(loss, flux_sum(flux_weight(part[1])));
        if (rank == size - 1 - step % size) loss = flux_add(loss, flux_sum(flux_weight(part[3])));
        EXPECT(flux_update(s, m, flux_gradient(loss, m)) == 0, "step %d", step);
    }
    /* two steps of momentum with the gradient 1 / size: 0.5 / size, then 0.75 / size */
    flux_tensor *moved = flux_sub(before, flux_weight(part[1]));
    EXPECT(fabs(flux_at(moved, 1, 1) - 1.25 / size) < 1e-6, "%g", flux_at(moved, 1, 1));
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(none, flux_weight(part[2]))))) == 0, " ");
    flux_tensor *all = flux_destructure(m);
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, all, FLUX_MAX), all))) == 0, " ");
    add_hash(all);
}

/* Gradients of float16 that overflow on one rank only: no rank makes the step, and all halve the scale. */
static void with_overflow(flux_comm *comm) {
    flux_seed(9);
    flux_layer *m = half();
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_mixed_precision(flux_descent(0.01))), m);
    for (int step = 0; step < 3; step++) FLUX_SCOPE {
        flux_tensor *x = flux_to_dtype(flux_full(step == 1 && rank == size - 1 ? 3e4 : 0.5, IN, 2), FLUX_F16);
        flux_tensor *loss = flux_scaled_loss(s, flux_mse(flux_call(m, x), flux_to_dtype(flux_zeros(OUT, 2), FLUX_F16)));
        EXPECT(flux_update(s, m, flux_gradient(loss, m)) == 0, "step %d", step);
    }
    EXPECT(flux_skipped(s) == 1, "%d", (int)flux_skipped(s));
    flux_tensor *all = flux_to_dtype(flux_destructure(m), FLUX_F32);
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, all, FLUX_MAX), all))) == 0, " ");
    add_hash(all);
}

/* Dropout draws other masks on each rank; all other draws are alike. */
static void drawn(flux_comm *comm) {
    flux_seed(4);
    flux_layer *d = flux_dropout(0.5);
    flux_trainmode(d, true);
    flux_tensor *a = flux_rand(1000), *mask = flux_call(d, flux_ones(1000));
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, a, FLUX_MAX), a))) == 0, " ");
    const double kept = flux_item(flux_sum(flux_allreduce(comm, mask, FLUX_MIN)));
    EXPECT(size == 1 || kept < 2000 * 0.4, "%g", kept);   /* 0.5^size of them, times 2 */
    add_hash(flux_allreduce(comm, mask, FLUX_SUM));
}

int main(void) {
    flux_comm *comm = flux_distributed();
    if (!comm) return 1;
    rank = flux_rank_of(comm), size = flux_size_of(comm);
    device = getenv("FLUX_TEST_DEVICE") != NULL;
    if (device) {
        const flux_device d = flux_device_of(on_device(mlp()));
        EXPECT(d.backend != 0 && d.id == rank % flux_device_count(getenv("FLUX_TEST_DEVICE")), "%s", flux_device_name(d));
    }
    flux_seed(1);
    flux_tensor *x = flux_rand(IN, OBSERVATIONS), *y = flux_sin(flux_matmul(flux_randn(OUT, IN), x));
    const job jobs[] = {
        { "descent", mlp, flux_descent(0.1), 2e-6, false }, { "adam", mlp, flux_adam(0.01), 2e-4, false },
        { "cnn", cnn, flux_momentum(0.02), 1e-5, false }, { "frozen", frozen, flux_adamw(0.01, .lambda = 0.1), 2e-4, false },
        { "clipped", mlp, flux_optimiser_chain(flux_clipnorm(0.05), flux_descent(0.2)), 1e-5, false },
        { "accumulated", mlp, flux_accumgrad(3, flux_descent(0.2)), 1e-5, false },
        { "f16", half, flux_mixed_precision(flux_descent(0.05)), 1e-2, true }
    };
    for (int i = 0; i < (int)(sizeof jobs / sizeof *jobs); i++) FLUX_SCOPE compared(comm, &jobs[i], x, y);
    FLUX_SCOPE with_gaps(comm);
    FLUX_SCOPE with_overflow(comm);
    FLUX_SCOPE drawn(comm);
    EXPECT(flux_distributed_end(comm) == 0 && !flux_failed(), " ");
    if (!wrong) printf("rank %d of %d: ok, %016llx\n", rank, size, (unsigned long long)hash);
    return wrong != 0;
}
