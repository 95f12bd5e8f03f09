/* Training on as many ranks as a launcher starts is training by one process with the whole batch, to rounding. Each rank trains
   a model twice: with the others on its share, and by itself on all of the data; what they end with is compared. Prints "rank R
   of N: ok, HASH", the hash of all parameters, which is the same in every run on N ranks. Run by tests/check_mpi.sh. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "meet.h"
#include "flux.h"

static int wrong, rank, size;
static uint64_t hash = 14695981039346656037u;
#define EXPECT(what, ...) \
    do if (!(what)) printf("rank %d of %d: line %d: %s ", rank, size, __LINE__, #what), printf(__VA_ARGS__), puts(""), wrong++; while (0)

/* Of 79 observations, each of 1 to 7 ranks has some in the last batch, and not as many. */
enum { IN = 12, OUT = 3, OBSERVATIONS = 79, BATCH = 4, EPOCHS = 2 };

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
static flux_layer *halves(void) { return flux_bf16(mlp()); }

static bool device;                              /* FLUX_TEST_DEVICE: on the GPU of this rank's number */
static flux_layer *on_device(flux_layer *m) { return device ? flux_gpu(m) : m; }
static flux_tensor *on_device_tensor(flux_tensor *x) { return device ? flux_gpu(x) : x; }

typedef struct job { const char *name; flux_layer *(*model)(void); flux_rule rule; double near; bool scaled; } job;

/* Trains a model, with the others if comm is not NULL, and gives its parameters. */
static flux_tensor *trained(flux_comm *comm, const job *j, bool shard, flux_tensor *x, flux_tensor *y) {
    flux_seed(3);
    flux_layer *m = on_device(j->model());
    flux_rule rule = j->rule;
    flux_loader *data;
    if (comm) {
        rule = flux_distributed_optimiser(comm, rule, .bucket = 400, .shard = shard);
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

/* All ranks have the same numbers. */
static void alike(flux_comm *comm, flux_tensor *x) {
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, x, FLUX_MAX), x))) == 0, " ");
    EXPECT(flux_item(flux_max(flux_sub(x, flux_allreduce(comm, x, FLUX_MIN)))) == 0, " ");
    add_hash(x);
}

static void compared(flux_comm *comm, const job *j, flux_tensor *x, flux_tensor *y) {
    flux_tensor *alone = trained(NULL, j, false, x, y);
    for (int shard = 0; shard < 2; shard++) {
        flux_tensor *a = trained(comm, j, shard, x, y);
        const double far = flux_item(flux_max(flux_abs(flux_sub(a, alone))));
        EXPECT(size == 1 && !device ? far == 0 : far <= (device ? 10 : 1) * j->near, "%s, %d: %g", j->name, shard, far);
        alike(comm, a);
    }
}

/* A layer that has a gradient on rank 0 only, one that has none anywhere, and one after the other on another rank. */
static void with_gaps(flux_comm *comm, bool shard) {
    flux_seed(8);
    flux_layer *part[4], *m;
    for (int i = 0; i < 4; i++) part[i] = flux_dense(2, 2);
    m = flux_chain(part[0], part[1], part[2], part[3]);
    flux_tensor *before = flux_keep(flux_copy(flux_weight(part[1]))), *none = flux_keep(flux_copy(flux_weight(part[2])));
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_momentum(0.5, .rho = 0.5), .shard = shard), m);
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
    alike(comm, flux_destructure(m));
}

/* Gradients of float16 that overflow on one rank only: no rank makes the step, and all halve the scale. */
static void with_overflow(flux_comm *comm, bool shard) {
    flux_seed(9);
    flux_layer *m = half();
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_mixed_precision(flux_descent(0.01)), .shard = shard), m);
    for (int step = 0; step < 3; step++) FLUX_SCOPE {
        flux_tensor *x = flux_to_dtype(flux_full(step == 1 && rank == size - 1 ? 3e4 : 0.5, IN, 2), FLUX_F16);
        flux_tensor *loss = flux_scaled_loss(s, flux_mse(flux_call(m, x), flux_to_dtype(flux_zeros(OUT, 2), FLUX_F16)));
        EXPECT(flux_update(s, m, flux_gradient(loss, m)) == 0, "step %d", step);
    }
    EXPECT(flux_skipped(s) == 1, "%d", (int)flux_skipped(s));
    alike(comm, flux_to_dtype(flux_destructure(m), FLUX_F32));
}

/* ---------------- shares of a state */

static void steps(flux_state *s, flux_layer *m, int n) {
    flux_tensor *x = on_device_tensor(flux_full(0.1 * (rank + 1), IN, 4));
    for (int i = 0; i < n; i++) FLUX_SCOPE {
        flux_tensor *loss = flux_mean(flux_square(flux_call(m, x)));
        EXPECT(flux_update(s, m, flux_gradient(loss, m)) == 0, "step %d", i);
    }
}

/* Of Adam's state each rank has its share alone: 1 / size of the memory, and a part of an element more for each parameter. */
static void small(flux_comm *comm) {
    flux_layer *m = on_device(flux_dense(IN, 10000));
    const flux_device d = flux_device_of(m);
    int64_t before = flux_mem_stats(d).live, bytes[2];
    for (int shard = 0; shard < 2; shard++) {
        flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_adam(), .shard = shard), m);
        bytes[shard] = flux_mem_stats(d).live - before;
        before = flux_mem_stats(d).live;
        EXPECT(s != NULL, " ");
    }
    EXPECT(bytes[0] >= 2 * 4 * 10000 * (IN + 1) && bytes[1] * size <= bytes[0] + 4 * 64 * size, "%d, %d", (int)bytes[0], (int)bytes[1]);
}

/* What is saved is the whole state: one without shares takes it, and one of shares takes that one's; all go on alike. */
static void kept(flux_comm *comm, flux_rule rule, flux_layer *(*model)(void), double near) {
    char path[600], text[2][400];
    flux_layer *m[3];
    flux_state *s[3];
    common_file(path, sizeof path, "training.safetensors");
    for (int i = 0; i < 3; i++) {
        flux_seed(12);
        m[i] = on_device(model());
        s[i] = flux_setup(flux_distributed_optimiser(comm, rule, .shard = i != 1, .bucket = 300), m[i]);
    }
    steps(s[0], m[0], 2);
    EXPECT(flux_adjust(s[0], 0.02) == 0, " ");
    if (size > 1) EXPECT(flux_save(s[0], "refused") != 0 && strstr(flux_error(), "flux_distributed_save"), "%s", flux_error());
    flux_clear();
    for (int i = 0; i < 2; i++) {                        /* into the whole one, and from that into shares */
        EXPECT(flux_distributed_save(comm, s[i], path) == 0 && flux_load(s[i + 1], path) == 0, "%d", i);
        flux_loadmodel(m[i + 1], m[0]);
        flux_barrier(comm);                              /* before it is written again */
    }
    if (rank == 0) remove(path);
    flux_state_text(s[0], text[0], sizeof text[0]), flux_state_text(s[1], text[1], sizeof text[1]);
    EXPECT(!strcmp(text[0], text[1]) && strstr(text[0], "0.02"), "%s", text[0]);
    for (int i = 0; i < 3; i++) steps(s[i], m[i], 4);
    flux_tensor *a[3];
    for (int i = 0; i < 3; i++) a[i] = flux_cpu(flux_to_dtype(flux_destructure(m[i]), FLUX_F32));
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(a[0], a[1])))) <= near, "%g", flux_item(flux_max(flux_abs(flux_sub(a[0], a[1])))));
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(a[0], a[2])))) == 0, " ");   /* as if it had not been saved */
    alike(comm, a[0]);
    s[0] = flux_synchronize(comm, s[0]);
    steps(s[0], m[0], 1), steps(s[2], m[2], 1);
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(flux_destructure(m[0]), flux_destructure(m[2]))))) == 0, " ");
}

/* A checkpoint of flux_train has the whole state: a run that goes on from it ends as one that was never stopped. */
static flux_tensor *loss(flux_layer *m, flux_tensor *a, flux_tensor *b) { return flux_mse(flux_call(m, a), b); }
static void checkpointed(flux_comm *comm, flux_tensor *x, flux_tensor *y) {
    char path[600];
    flux_tensor *end[2] = { NULL, NULL };
    common_file(path, sizeof path, "training.run");
    for (int run = 0; run < 3; run++) {                  /* three epochs; two, and with what they left a third */
        flux_seed(6);
        flux_layer *m = on_device(mlp());
        flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_adam(0.01), .shard = true), m);
        flux_loader *data = flux_dataloader(x, y, .batchsize = BATCH, .shuffle = true, .seed = 5, .comm = comm);
        if (device) data = flux_gpu(data);
        if (!run) EXPECT(flux_train(loss, m, data, s, .epochs = 3) == 0, "%s", flux_error());
        else EXPECT(flux_train(loss, m, data, s, .epochs = run + 1, .checkpoint = path, .resume = run == 2) == 0, "%s", flux_error());
        if (run != 1) end[run / 2] = flux_cpu(flux_destructure(m));
    }
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(end[0], end[1])))) == 0, " ");
    flux_barrier(comm);
    if (rank == 0) remove(path);
}

/* A run that begins on some ranks goes on with others, from rank 0's files; batches are of 12 on 1, 2, 3, 4 ranks. */
static int resumed(flux_comm *comm, const char *mode, flux_tensor *x, flux_tensor *y) {
    const bool goes_on = !strcmp(mode, "go_on");
    const int epochs[] = { goes_on ? 1 : 2, 3 };
    char model[600], state[600];
    common_file(model, sizeof model, "run.model"), common_file(state, sizeof state, "run.state");
    flux_layer *m[2];
    for (int alone = 0; alone < 2; alone++) {
        flux_seed(2);
        m[alone] = mlp();
        flux_rule rule = flux_mixed_precision(flux_adamw(0.01, .lambda = 0.01));
        if (!alone) rule = flux_distributed_optimiser(comm, rule, .shard = true);
        flux_state *s = flux_setup(rule, m[alone]);
        if (!alone && goes_on) EXPECT(flux_load(m[0], model) == 0 && flux_load(s, state) == 0, " ");
        flux_loader *data = alone ? flux_dataloader(x, y, .batchsize = 12)
                                  : flux_dataloader(x, y, .batchsize = 12 / size, .comm = comm);
        for (int e = 0; e < epochs[alone]; e++)
            flux_each (b, data) EXPECT(flux_update(s, m[alone], flux_gradient(flux_mse(flux_call(m[alone], b.x), b.y), m[alone])) == 0, " ");
        if (!alone && !goes_on)
            EXPECT(flux_distributed_save(comm, m[0], model) == 0 && flux_distributed_save(comm, s, state) == 0, " ");
        if (!goes_on) break;
    }
    if (goes_on) {
        const double far = flux_item(flux_max(flux_abs(flux_sub(flux_destructure(m[0]), flux_destructure(m[1])))));
        EXPECT(far < 1e-4, "%g", far);
    }
    flux_barrier(comm);
    if (goes_on && rank == 0) remove(model), remove(state);
    EXPECT(flux_distributed_end(comm) == 0 && !flux_failed(), " ");
    if (!wrong) printf("rank %d of %d: ok\n", rank, size);
    return wrong != 0;
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

void take_apart(flux_comm *comm, bool apart);            /* of failing.c */

int main(int argc, char **argv) {
    flux_comm *comm = flux_distributed();
    if (!comm) return 1;
    if (getenv("DIST_APART")) take_apart(comm, true);    /* as if each rank were on a machine of its own */
    rank = flux_rank_of(comm), size = flux_size_of(comm);
    device = getenv("FLUX_TEST_DEVICE") != NULL;
    if (device) {
        const flux_device d = flux_device_of(on_device(mlp()));
        EXPECT(d.backend != 0 && d.id == rank % flux_device_count(getenv("FLUX_TEST_DEVICE")), "%s", flux_device_name(d));
    }
    flux_seed(1);
    flux_tensor *x = flux_rand(IN, OBSERVATIONS), *y = flux_sin(flux_matmul(flux_randn(OUT, IN), x));
    if (argc > 1) return resumed(comm, argv[1], x, y);
    const job jobs[] = {
        { "descent", mlp, flux_descent(0.1), 2e-6, false }, { "adam", mlp, flux_adam(0.01), 2e-4, false },
        { "cnn", cnn, flux_momentum(0.02), 1e-5, false }, { "frozen", frozen, flux_adamw(0.01, .lambda = 0.1), 2e-4, false },
        { "clipped", mlp, flux_optimiser_chain(flux_clipnorm(0.05), flux_descent(0.2)), 1e-5, false },
        { "accumulated", mlp, flux_accumgrad(3, flux_descent(0.2)), 1e-5, false },
        { "f16", half, flux_mixed_precision(flux_descent(0.05)), 1e-2, true },
        { "global", frozen, flux_accumgrad(2, flux_optimiser_chain(flux_clipnorm(0.05, .global = true), flux_adam(0.02))), 2e-4, false },
        { "after", mlp, flux_optimiser_chain(flux_accumgrad(2, flux_weightdecay(0.01)), flux_momentum(0.1),
                                             flux_clipnorm(0.05, .global = true, .p = 3)), 1e-5, false }
    };
    for (int i = 0; i < (int)(sizeof jobs / sizeof *jobs); i++) FLUX_SCOPE compared(comm, &jobs[i], x, y);
    for (int shard = 0; shard < 2; shard++) FLUX_SCOPE {
        with_gaps(comm, shard);
        with_overflow(comm, shard);
    }
    FLUX_SCOPE small(comm);
    FLUX_SCOPE checkpointed(comm, x, y);
    FLUX_SCOPE kept(comm, flux_optimiser_chain(flux_clipnorm(0.5), flux_adam()), mlp, 1e-6);
    FLUX_SCOPE kept(comm, flux_mixed_precision(flux_accumgrad(2, flux_momentum())), halves, 4e-3);
    FLUX_SCOPE drawn(comm);
    EXPECT(flux_distributed_end(comm) == 0 && !flux_failed(), " ");
    if (!wrong) printf("rank %d of %d: ok, %016llx\n", rank, size, (unsigned long long)hash);
    return wrong != 0;
}
