/* Collectives of every kind and dtype on as many ranks as a launcher starts, against numbers that are written down here. Prints
   "rank R of N: ok", or what is wrong. Run by tests/check_mpi.sh; without a launcher it is a world of one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "flux.h"

static int wrong, rank, size;
#define EXPECT(what) \
    do if (!(what)) printf("rank %d of %d: line %d: %s\n", rank, size, __LINE__, #what), wrong++; while (0)

/* 1 + r + i % 3: what rank r has at i. Small, so that sums are exact in every dtype. */
static double mine(int r, int64_t i) { return 1 + (double)(r % 3) + (double)(i % 3); }

static flux_tensor *numbers(flux_dtype t, int r, int64_t n) {
    float v[4096];
    for (int64_t i = 0; i < n; i++) v[i] = (float)mine(r, i);
    return flux_to_dtype(flux_from(v, n), t);
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
    if (t == FLUX_BOOL) return have == 1;                /* every number is true */
    if (getenv("V") && !(fabs(have - want) <= scale * fabs(want))) printf("%s at %d: %g, not %g\n", flux_dtype_name(t), (int)i, have, want);
    return fabs(have - want) <= scale * fabs(want);
}

/* Whether a product of all ranks' numbers fits the dtype. */
static bool fits(flux_dtype t, flux_agg op) {
    const double most = t == FLUX_U8 ? 255 : t == FLUX_F16 ? 65504 : 1e9;
    return op != FLUX_PROD || pow(5, size) < most;
}

static void of_dtype(flux_comm *comm, flux_dtype t) {
    static const flux_agg ops[] = { FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX, FLUX_MEAN };
    const int64_t n = 1000;
    flux_tensor *x = numbers(t, rank, n);
    for (int k = 0; k < 5; k++) FLUX_SCOPE {
        if (!fits(t, ops[k])) continue;
        flux_tensor *y = flux_allreduce(comm, flux_reshape(x, 10, 100), ops[k]);
        EXPECT(flux_ndim(y) == 2 && flux_dim(y, 1) == 100);
        for (int64_t i = 0; i < n; i += 37) EXPECT(close_to(y, i, folded(ops[k], i), t));
        flux_tensor *z = flux_reduce(comm, x, ops[k], .root = size - 1);
        for (int64_t i = 0; i < n; i += 37)
            EXPECT(close_to(z, i, rank == size - 1 ? folded(ops[k], i) : mine(rank, i), t));
    }
    flux_tensor *b = flux_broadcast(comm, x, .root = size / 2), *g = flux_allgather(comm, flux_reshape(x, 10, 100));
    EXPECT(flux_dtype_of(b) == t && flux_dtype_of(g) == t && flux_dim(g, 1) == 100 * size);
    for (int64_t i = 0; i < n; i += 41) EXPECT(close_to(b, i, mine(size / 2, i), t));
    for (int64_t i = 0; i < n * size; i += 41) EXPECT(close_to(g, i, mine((int)(i / n), i % n), t));
    flux_tensor *s = flux_reduce_scatter(comm, numbers(t, rank, 12 * size), FLUX_SUM);
    EXPECT(flux_len(s) == 12);
    for (int64_t i = 0; i < 12; i++) EXPECT(close_to(s, i, folded(FLUX_SUM, 12 * rank + i), t));
}

/* Collectives are recorded, and looking at one runs those before it on this rank; ranks may look at them in any order. */
static void in_order(flux_comm *comm) {
    flux_tensor *a = flux_allreduce(comm, flux_full((double)rank + 1, 3), FLUX_SUM), *b = flux_mul(a, 2),
                *c = flux_allreduce(comm, flux_add(b, (double)rank), FLUX_MAX), *all;
    const double sum = size * (size + 1) / 2.0;
    if (rank % 2) EXPECT(flux_item(flux_sum(c)) == 3 * (2 * sum + size - 1));
    EXPECT(flux_item(flux_sum(a)) == 3 * sum);
    EXPECT(flux_item(flux_sum(c)) == 3 * (2 * sum + size - 1));
    FLUX_SCOPE flux_allreduce(comm, flux_ones(5), FLUX_SUM);     /* dropped: it runs, at the latest, with the next one */
    all = flux_allreduce(comm, flux_ones(2), FLUX_SUM);
    EXPECT(flux_at(all, 1) == size);
    flux_tensor *both = flux_allreduce(comm, flux_tuple(flux_ones(2), flux_full(rank, 3)), FLUX_SUM);
    EXPECT(flux_at(flux_nth(both, 1), 2) == size * (size - 1) / 2.0 && flux_at(flux_nth(both, 0), 0) == size);
    EXPECT(flux_barrier(comm) == 0);
}

/* Views, numbers, empty tensors, scalars; NaN and zeros in a maximum. */
static void of_views(flux_comm *comm) {
    flux_tensor *x = flux_reshape(numbers(FLUX_F32, rank, 12), 3, 4), *t = flux_allreduce(comm, flux_transpose(x), FLUX_SUM);
    EXPECT(flux_at(t, 3, 2) == folded(FLUX_SUM, 11) && flux_at(t, 1, 0) == folded(FLUX_SUM, 3));
    EXPECT(flux_item(flux_allreduce(comm, flux_scalar(rank), FLUX_MAX)) == size - 1);
    EXPECT(flux_len(flux_allreduce(comm, flux_zeros(0), FLUX_SUM)) == 0);
    EXPECT(flux_len(flux_allgather(comm, flux_scalar(rank))) == size);
    flux_tensor *nan = flux_full(rank == size - 1 ? NAN : 1.0, 2);
    EXPECT(isnan(flux_at(flux_allreduce(comm, nan, FLUX_MAX), 0)) && isnan(flux_at(flux_allreduce(comm, nan, FLUX_MIN), 1)));
    EXPECT(isnan(flux_at(flux_allreduce(comm, flux_to_dtype(nan, FLUX_F16), FLUX_MAX), 0)));
    for (int r = 0; r < size && size > 1; r++)           /* one zero has another sign: all ranks get +0 */
        for (int t = 0; t < 4; t++) {
            flux_tensor *zero = flux_to_dtype(flux_full(r == rank ? 0.0 : -0.0, 2), (flux_dtype)t);
            EXPECT(!signbit(flux_at(flux_allreduce(comm, zero, FLUX_MAX), 0)));
            EXPECT(!signbit(flux_at(flux_allreduce(comm, zero, FLUX_MIN), 1)));
        }
}

/* Of failing.c: the most elements that one call takes; from how many bytes ranks on one machine use the window, and how much of a half
   of it; has the data travel as if each rank were on a machine of its own. */
void take_pieces(int64_t most);
void take_window(size_t from, size_t half);
void take_apart(flux_comm *comm, bool apart);

/* More elements than one call takes. */
static void in_pieces(flux_comm *comm) {
    take_pieces(300);
    of_dtype(comm, FLUX_F32);
    of_dtype(comm, FLUX_BF16);
    take_pieces(1 << 28);
}

/* Numbers of rank r whose sums and products are rounded. */
static flux_tensor *uneven(flux_dtype t, int r, int64_t n) {
    float *v = (float *)malloc((size_t)n * sizeof *v);
    if (!v) return NULL;
    for (int64_t i = 0; i < n; i++) v[i] = 0.5f + (float)(((uint32_t)i * 2654435761u + (uint32_t)r * 40503u * 65537u) >> 12) / 350000;
    flux_tensor *x = flux_eval(flux_to_dtype(flux_from(v, n), t));
    free(v);
    return x;
}

/* x op y of dtype t on one rank; any and all of a bool. */
static flux_tensor *folded_two(flux_dtype t, flux_agg op, flux_tensor *x, flux_tensor *y) {
    const bool truth = t == FLUX_BOOL;
    if (op == FLUX_MAX || (truth && op == FLUX_SUM)) return flux_max2(x, y);
    if (op == FLUX_MIN || truth) return flux_min2(x, y);
    return op == FLUX_SUM ? flux_add(x, y) : flux_mul(x, y);
}

/* An allreduce of n numbers and a reduce_scatter of n from each rank have the bits of operations on one rank, in the order of ranks. */
static void same_bits(flux_comm *comm, flux_dtype t, flux_agg op, int64_t n) {
    flux_tensor *all = uneven(t, 0, n), *parts = uneven(t, 0, n * size);
    for (int r = 1; r < size; r++) {
        all = folded_two(t, op, all, uneven(t, r, n));
        parts = folded_two(t, op, parts, uneven(t, r, n * size));
    }
    flux_tensor *x = flux_allreduce(comm, uneven(t, rank, n), op), *y = flux_reduce_scatter(comm, uneven(t, rank, n * size), op);
    EXPECT(flux_item(flux_any(flux_ne(x, all))) == 0);
    EXPECT(flux_item(flux_any(flux_ne(y, flux_slice(parts, 0, rank * n, (rank + 1) * n)))) == 0);
}

/* Reductions of few elements through the window, in small pieces, of which some are shorter than others, or empty. */
static void in_window(flux_comm *comm) {
    take_window(0, 64 * (size_t)size);
    for (int t = 0; t < FLUX_NUM_DTYPES; t++) FLUX_SCOPE of_dtype(comm, (flux_dtype)t);
    FLUX_SCOPE in_order(comm);
    FLUX_SCOPE of_views(comm);
    FLUX_SCOPE in_pieces(comm);
    take_window(1 << 18, 1 << 17);
}

/* The window's reductions are in the order of ranks, around the ends of pieces: small ones, and those that are in use. */
static void of_window(flux_comm *comm) {
    static const flux_agg ops[] = { FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX };
    take_window(0, 64 * (size_t)size);
    for (int t = 0; t < FLUX_NUM_DTYPES; t++)
        for (int k = 0; k < 4; k++) {
            const int64_t piece = 64 / (int64_t)flux_dtype_size((flux_dtype)t);
            FLUX_SCOPE same_bits(comm, (flux_dtype)t, ops[k], 1);
            for (int64_t n = 1; n < 4; n++) FLUX_SCOPE same_bits(comm, (flux_dtype)t, ops[k], n * piece * (n == 2 ? size : 1) + n - 2);
        }
    take_window(1 << 18, 1 << 17);
    FLUX_SCOPE same_bits(comm, FLUX_F32, FLUX_SUM, 131073);
    FLUX_SCOPE same_bits(comm, FLUX_F16, FLUX_PROD, 131073);
}

/* A collective that kernels run beside, longer than it takes: its data come meanwhile, as check_mpi.sh sees in the trace. */
static void beside_kernels(flux_comm *comm) {
    flux_tensor *x = flux_eval(flux_ones(1000)), *w = flux_eval(flux_full(1.0 / 256, 256, 256)), *z = w;
    flux_tensor *y = flux_allreduce(comm, x, FLUX_SUM);
    for (int i = 0; i < 50; i++) z = flux_matmul(w, z);
    EXPECT(flux_item(flux_add(flux_sum(z), flux_sum(y))) == 256 + 1000 * size);
}

/* A model, an optimiser's state and a tensor become those of the root. */
static void synchronized(flux_comm *comm) {
    flux_seed(100 + (uint64_t)rank);
    flux_layer *m = flux_chain(flux_dense(3, 4, flux_relu), flux_batchnorm(4), flux_dense(4, 2));
    m = flux_synchronize(comm, m, .root = size - 1);
    flux_seed(100 + (uint64_t)size - 1);
    flux_layer *root = flux_chain(flux_dense(3, 4, flux_relu), flux_batchnorm(4), flux_dense(4, 2));
    flux_tensor *a = flux_destructure(m), *b = flux_destructure(root);
    EXPECT(flux_item(flux_max(flux_abs(flux_sub(a, b)))) == 0);
    flux_state *s = flux_setup(flux_adam(), m);
    flux_tensor *x = flux_full((double)rank, 3, 5);
    flux_update(s, m, flux_gradient(flux_mse(flux_call(m, x), flux_zeros(2, 5)), m));
    s = flux_synchronize(comm, s);
    m = flux_synchronize(comm, m);
    flux_update(s, m, flux_gradient(flux_mse(flux_call(m, flux_ones(3, 5)), flux_zeros(2, 5)), m));
    flux_tensor *d = flux_destructure(m);
    EXPECT(flux_item(flux_max(flux_sub(flux_allreduce(comm, d, FLUX_MAX), d))) == 0);
    EXPECT(flux_item(flux_max(flux_sub(d, flux_allreduce(comm, d, FLUX_MIN)))) == 0);
    EXPECT(flux_item(flux_synchronize(comm, flux_scalar(rank), .root = size - 1)) == size - 1);
}

/* Rank 0 can't write: all learn of it. After the end, what has the communicator still is refused. */
static void used_afterwards(flux_comm *comm) {
    flux_layer *m = flux_dense(2, 2);
    flux_tensor *x = flux_ones(2, 8);
    EXPECT(flux_distributed_save(comm, m, "no/such/folder/m.safetensors") != 0);
    flux_clear();
    flux_loader *data = flux_dataloader(x, .batchsize = 1, .comm = comm);
    flux_state *s = flux_setup(flux_distributed_optimiser(comm, flux_descent()), m);
    EXPECT(flux_distributed_end(comm) == 0);
    EXPECT(flux_rank_of(comm) == -1 && strstr(flux_error(), "ended") && !flux_allreduce(comm, x, FLUX_SUM));
    flux_clear();
    int64_t n = 0;
    flux_each (b, data) n += b.size;
    EXPECT(n > 0 && !flux_failed());
    EXPECT(flux_update(s, m, flux_gradient(flux_sum(flux_call(m, x)), m)) != 0);
    EXPECT(flux_distributed_end(comm) != 0);
    flux_clear();
}

/* What was recorded runs when all ranks meet or agree, and is let go of: nothing is held that was not before. */
static void let_go(flux_comm *comm) {
    int64_t live[12];
    for (int i = 0; i < 12; i++) {
        FLUX_SCOPE {
            flux_tensor *sum = flux_allreduce(comm, flux_full(rank + i, 20000), FLUX_SUM);
            EXPECT(sum != NULL);
            if (i % 3 == 0) EXPECT(flux_barrier(comm) == 0);
            if (i % 3 == 1) EXPECT(!flux_interrupted(.comm = comm));
            if (i % 3 == 2) EXPECT(close_to(sum, 7, size * (i + (size - 1) / 2.0), FLUX_F32));
        }
        live[i] = flux_mem_stats((flux_device){ 0, 0 }).live;
    }
    for (int i = 6; i < 12; i++) EXPECT(live[i] == live[i - 3]);
}

int main(int argc, char **argv) {
    flux_comm *comm = flux_distributed(.argc = &argc, .argv = &argv);
    if (!comm) return 1;
    rank = flux_rank_of(comm), size = flux_size_of(comm);
    EXPECT(flux_local_rank_of(comm) == rank);            /* on one machine */
    for (int apart = 0; apart < 2; apart++) {
        take_apart(comm, apart);
        for (int t = 0; t < FLUX_NUM_DTYPES; t++) FLUX_SCOPE of_dtype(comm, (flux_dtype)t);
        FLUX_SCOPE in_order(comm);
        FLUX_SCOPE of_views(comm);
        FLUX_SCOPE in_pieces(comm);
        FLUX_SCOPE in_window(comm);
    }
    take_apart(comm, false);
    FLUX_SCOPE of_window(comm);
    take_apart(comm, true);
    FLUX_SCOPE beside_kernels(comm);
    FLUX_SCOPE synchronized(comm);
    FLUX_SCOPE let_go(comm);
    FLUX_SCOPE used_afterwards(comm);
    EXPECT(!flux_failed());
    if (!wrong) printf("rank %d of %d: ok\n", rank, size);
    return wrong != 0;
}
