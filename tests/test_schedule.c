/* The schedule: what is fused means the same as what is computed one by one; a training step is few kernels, updated in
   place; a repeated step is found again; memory does not grow; plans and views keep what they need alive. */
#define FLUX_IMPLEMENTATION
#include "scarce.h"

/* ---------------- random graphs, fused and not */

static uint32_t dice_state;
static int dice(int n) {
    dice_state = dice_state * 1664525u + 1013904223u;
    return (int)((dice_state >> 8) % (uint32_t)n);
}

/* One more tensor from those there are; shapes 3 x 4 x 2 and what reductions and stretches make of it. */
static flux_tensor *grow(flux_tensor **pool, int n) {
    flux_tensor *a = pool[dice(n)], *b = pool[dice(n)], *c = pool[dice(n)];
    int d = dice(3);
    switch (dice(22)) {
    case 0: return flux_add(a, b);
    case 1: return flux_sub(a, b);
    case 2: return flux_mul(flux_tanh(a), b);
    case 3: return flux_sigmoid(a);
    case 4: return flux_tanh(flux_mul(a, 0.5));
    case 5: return flux_where(flux_gt(a, b), a, c);
    case 6: return flux_mul(flux_sum(a, d), 0.25);
    case 7: return flux_max(a, d);
    case 8: return flux_mean(a, 0, 2);
    case 9: return flux_softmax(a, d);
    case 10: return flux_broadcast_to(flux_mean(a), 3, 4, 2);
    case 11: return flux_mul(flux_sub(a, flux_mean(a, d)), flux_rsqrt(flux_add(flux_var(a, d), 0.5)));
    case 12: return flux_flip(a, 1);
    case 13: return flux_add(flux_slice(flux_cat(1, flux_broadcast_to(a, 3, 4, 2), flux_broadcast_to(b, 3, 4, 2)), 1, 2, 6), 0.1);
    case 14: return flux_add(a, flux_mul(flux_rand_with(FLUX_SHAPE(3, 4, 2), FLUX_F64), 0.1));
    case 15: return flux_dim(a, 0) == 3 && flux_dim(a, 1) == 4
        ? flux_mul(flux_matmul(flux_matmul(a, flux_broadcast_to(flux_transpose(pool[0]), 4, 3, flux_dim(a, 2))), a), 0.1) : flux_neg(a);
    case 16: return flux_relu(a);
    case 17: return flux_to_dtype(flux_argmax(a, 1), FLUX_F64);
    case 18: return flux__lerp(a, b, flux_scalar(0.25));
    case 19: return flux_permute(flux_permute(flux_mul(a, 1.5), 1, 2, 0), 2, 0, 1);
    case 20: return flux_add(flux_pad(flux_slice(flux_broadcast_to(flux_mul(a, b), 3, 4, 2), 1, 1, 3), 0.5, 0, 0, 1, 1), 0.25);
    default: return flux_logsumexp(a, d);
    }
}

enum { NODES = 24 };

static void run_graph(uint32_t seed, bool one_by_one, double *sums) {
    flux_tensor *pool[NODES + 3];
    dice_state = seed;
    flux_seed(seed);
    pool[0] = flux_randn_with(FLUX_SHAPE(3, 4, 1), FLUX_F64);
    pool[1] = flux_randn_with(FLUX_SHAPE(3, 4, 2), FLUX_F64);
    pool[2] = flux_randn_with(FLUX_SHAPE(1, 4, 1), FLUX_F64);
    int n = 3;
    for (int i = 0; i < NODES; i++, n++) {
        int h = flux__hide();
        pool[n] = flux__reveal(h, grow(pool, n));
        if (!CHECK(pool[n] != NULL)) return;
        while (flux_ndim(pool[n]) < 3) pool[n] = flux_unsqueeze(pool[n], flux_ndim(pool[n]));
        if (one_by_one) flux_eval(pool[n]);
    }
    flux_tensor *last = flux_sum(flux_square(pool[n - 1]));
    for (int i = n - 4; i < n - 1; i++) last = flux_add(last, flux_mean(pool[i]));
    flux_grads *g = flux_gradient(last, pool[0], pool[1]);
    for (int i = 0; i < NODES; i++) sums[i] = 0;
    flux_tensor *d0 = flux_grad(g, pool[0]), *d1 = flux_grad(g, pool[1]);
    if (d0 && d1) flux_eval_all(3, ((flux_tensor *[]){ last, d0, d1 }));
    sums[0] = flux_item(last);
    sums[1] = d0 ? flux_item(flux_sum(flux_abs(d0))) : 0;
    sums[2] = d1 ? flux_item(flux_sum(flux_abs(d1))) : 0;
    for (int i = 3; i < NODES; i++) sums[i] = flux_item(flux_sum(flux_abs(pool[i + 3])));
}

TEST(fused_is_one_by_one) {
    for (uint32_t seed = 1; seed <= 400; seed++) FLUX_SCOPE {
        double a[NODES], b[NODES];
        if (test_left_out((int)seed, 40)) continue;
        run_graph(seed, false, a);
        run_graph(seed, true, b);
        for (int i = 0; i < NODES; i++) {
            bool same = fabs(a[i] - b[i]) <= 1e-9 * (1 + fabs(b[i])) || (isnan(a[i]) && isnan(b[i]));
            if (!CHECK(same)) fprintf(stderr, "    seed %u, number %d: fused %.17g, one by one %.17g\n", seed, i, a[i], b[i]);
            if (!same) return;
        }
    }
}

static float noise[4][6000 * 3];

/* Maps between two reductions of the same rows, longer than a strip (FLUX__TILE): a result takes the memory of
   a value that no later one reads, and no strip before may be read again. */
static flux_tensor *maps_of_rows(uint32_t seed, bool one_by_one) {
    flux_tensor *pool[20], *y = NULL;
    dice_state = seed;
    FLUX_INFER {                          /* without a gradient and a handle, what is on the way is not stored */
        int n = 0;
        for (; n < 4; n++) pool[n] = flux_eval(flux_from_with(noise[n], FLUX_F32, FLUX_SHAPE(6000, 3)));
        pool[n++] = flux_sub(pool[0], flux_mean(pool[0], 0));
        for (; n < 19; n++) {
            flux_tensor *a = pool[n - 1 - dice(n < 6 ? n : 6)], *b = pool[n - 1 - dice(n)];
            const int op = dice(5);
            pool[n] = op == 0 ? flux_mul(a, b) : op == 1 ? flux_sub(a, b) : op == 2 ? flux_max2(a, b) : op == 3 ? flux_tanh(a) : flux_add(a, b);
            if (one_by_one) flux_eval(pool[n]);
        }
        y = flux_max2(pool[n - 1], flux_max2(pool[n - 2], pool[n - 3]));
        if (one_by_one) flux_eval(y);
        y = (flux_tensor *)flux_retain(flux_add(y, flux_max(y, 0)));
    }
    return y;
}

TEST(maps_of_rows_are_one_by_one) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 6000 * 3; j++) noise[i][j] = (float)((j * 7919 + i * 104729) % 1009) / 1009.0f - 0.5f;
    for (uint32_t seed = 1; seed <= 200; seed++) FLUX_SCOPE {
        if (test_left_out((int)seed, 40)) continue;
        static float a[6000 * 3], b[6000 * 3];
        flux_tensor *x = maps_of_rows(seed, false), *y = maps_of_rows(seed, true);
        const bool good = flux_read(x, a, sizeof a) == 0 && flux_read(y, b, sizeof b) == 0 && memcmp(a, b, sizeof a) == 0;
        flux_release(x), flux_release(y);
        if (!CHECK(good)) {
            fprintf(stderr, "    seed %u\n", seed);
            return;
        }
    }
}

/* ---------------- a training step */

typedef struct step { flux_layer *m; flux_state *opt; flux_tensor *x, *y; } step;

static step make_step(flux_rule rule) {
    step s;
    flux_seed(5);
    s.m = flux_chain(flux_dense(20, 16, flux_relu), flux_dense(16, 10));
    s.opt = flux_setup(rule, s.m);
    s.x = flux_eval(flux_rand(20, 8));
    s.y = flux_eval(flux_onehot(flux_from(((int32_t[]){ 0, 1, 2, 3, 4, 5, 6, 7 }), 8), 10));
    return s;
}

static double do_step(step *s) {
    double value = 0;
    FLUX_SCOPE {
        flux_tensor *loss = flux_logitcrossentropy(flux_call(s->m, s->x), s->y);
        flux_update(s->opt, s->m, flux_gradient(loss, s->m));
        value = flux_item(loss);
    }
    return value;
}

/* Of a step: looking at the loss is a plan too where it has to be moved. */
static flux__plan *newest_of(int kernels) {              /* of that many or more */
    flux__plans *plans = flux__self()->plans;
    flux__plan *best = NULL;
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (flux__plan *p = plans->bucket[i]; p; p = p->next)
            if (p->nkernel >= kernels && (!best || p->used > best->used)) best = p;
    return best;
}
static flux__plan *newest_plan(void) { return newest_of(2); }

static int donors_of(const flux__plan *p) {
    int n = 0;
    for (int i = 0; i < p->nnode; i++) n += p->slot[i].stored && p->slot[i].donated >= 0;
    return n;
}

TEST(a_step_is_few_kernels) {
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    step s = make_step(flux_adam(1e-3));
    for (int i = 0; i < 4; i++) do_step(&s);
    flux__plan *p = newest_plan();
    int products = 0;
    for (int i = 0; i < p->nkernel; i++) products += p->kernel[i].kind == FLUX__K_MATMUL;
    CHECK(p->nkernel <= 14);
    CHECK(products == 5);
    int kept = 0;
    for (int i = 0; i < p->nnode; i++) kept += p->slot[i].stored && p->slot[i].keep;
    CHECK(kept == 12 + 2);                      /* no more than those stay when it has run, and what has a handle: the loss and the logits */
    CHECK(donors_of(p) == 12);                  /* four parameters, two moments each: all where they lay */
    for (int i = 0; i < p->nkernel; i++)  /* bias and activation stand in the first product's epilogue */
        if (p->kernel[i].kind == FLUX__K_MATMUL && p->kernel[i].mnk[2] == 20) CHECK(p->kernel[i].nvalue > 3);
}

/* Of the plan used last: how many kernels, and of which kind (-1: all). */
static int kernels_of(int kind) {
    const flux__plan *last = newest_plan();
    int n = 0;
    for (int i = 0; i < last->nkernel; i++) n += kind < 0 || last->kernel[i].kind == kind;
    return n;
}

/* A map joins one of its users though another must then wait for what that one needs in its turn: of a chain of so many sorts. */
TEST(a_map_joins_a_user_that_needs_others) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_tensor *x = flux_eval(flux_rand(64)), *w = flux_eval(flux_ones(64, 3));
    for (int n = 1; n < 40; n++) {
        flux_tensor *sorted = x, *y = flux_exp(x);
        for (int i = 0; i < n; i++) sorted = flux_sort(sorted, 0, i % 2 ? true : false);
        flux_tensor *both[2] = { flux_add(y, sorted), flux_matmul(y, w) };
        CHECK(flux_eval_all(2, both) == 0);
        const int all = kernels_of(-1);
        CHECK(flux_eval(flux_sort(sorted, 0)) != NULL && all == n * kernels_of(-1) + 2);
    }
}

/* Widening and narrowing count towards a kernel's most nodes, if not among those that compute: 300 of them are two kernels. */
TEST(a_kernel_has_so_many_nodes) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_tensor *x = flux_eval(flux_full(1.0 / 3, 5)), *y = x;
    for (int i = 0; i < 300; i++) y = flux_to_dtype(y, i % 2 ? FLUX_F32 : FLUX_F16);
    CHECK(flux_at(y, 3) == 0.333251953125 && kernels_of(-1) == 2);
}

/* A mean pooling's gradient divides first and then repeats, by a plain copy. */
TEST(a_gradient_of_means_is_a_copy) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_tensor *x = flux_eval(flux_ones(64, 64, 4, 4)), *g = flux_eval(flux_reshape(flux_arange(0, 32 * 32 * 16, 1), 32, 32, 4, 4));
    flux_tensor *y = flux_grad(flux_gradient(flux_sum(flux_mul(flux_meanpool(x, FLUX_SHAPE(2, 2)), g)), x), x);
    CHECK(flux_at(y, 5, 7, 1, 2) == flux_at(g, 2, 3, 1, 2) / 4 && kernels_of(-1) == 2);
    const flux__kernel *k = &newest_plan()->kernel[1];
    CHECK(((const flux__cpu *)k->ready)->whole && !k->reduced);
}

/* A large product takes what is done with it, also where a dim of it has become two: one kernel. */
TEST(a_product_takes_a_map_of_more_dims) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    static const int64_t first[] = { 512, 1, 256, 2 };
    flux_tensor *a = flux_eval(flux_ones(512, 8)), *b = flux_eval(flux_ones(8, 512));
    for (int i = 0; i < 4; i++) {
        flux_tensor *y = flux_reshape(flux_matmul(a, b), first[i], 512 / first[i], 512);
        CHECK(flux_eval(flux_relu(flux_sub(y, 1))) != NULL);
        CHECK(newest_of(1)->nkernel == 1 && newest_of(1)->kernel[0].kind == FLUX__K_MATMUL);
        y = flux_reshape(flux_matmul(a, b), 512, first[i], 512 / first[i]);
        CHECK(flux_eval(flux_relu(flux_sub(y, 2))) != NULL);
        CHECK(newest_of(1)->nkernel == 1 && newest_of(1)->kernel[0].kind == FLUX__K_MATMUL);
    }
}

TEST(steps_of_a_sequence_join_in_the_gradient) {
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_layer *m = flux_lstm(4, 8);
    flux_state *opt = flux_setup(flux_adam(1e-3), m);
    flux_tensor *x = flux_eval(flux_randn(4, 10, 3));
    flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m));
    CHECK(kernels_of(FLUX__K_MATMUL) == 1 + 9 + 9 + 2);    /* Wi x; Wh h; back through Wh; by Wi and by Wh */
    CHECK(kernels_of(FLUX__K_STRIDED_SCATTER) == 0);
    CHECK(kernels_of(FLUX__K_CAT) == 1 + 10 + 1);          /* outputs, the gates' gradients, and those of all steps */
    CHECK(kernels_of(FLUX__K_FUSED) <= 20);                /* a step forward, little else */
}

TEST(what_ends_a_product_is_not_taken_from_it) {
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_tensor *x = flux_eval(flux_randn(4, 3)), *a = flux_eval(flux_randn(5, 4)), *b = flux_eval(flux_randn(5, 4));
    flux_eval(flux_cat(0, flux_relu(flux_matmul(a, x)), flux_relu(flux_matmul(b, x))));
    CHECK(kernels_of(-1) == 3);
    flux_eval(flux_cat(0, flux_tanh(a), flux_mul(b, a)));  /* what is joined anyway is one pass */
    CHECK(kernels_of(-1) == 2);
}

TEST(operands_are_the_same_whatever_lies_between_their_fields) {
    flux__operand o[2];
    for (int i = 0; i < 2; i++) {
        memset(&o[i], i ? 0xa5 : 0, sizeof o[i]);
        o[i].src = 3, o[i].dtype = FLUX_F32, o[i].gather = false, o[i].offset = 7;
        memset(o[i].owner, 0, sizeof o[i].owner);
        memset(o[i].stride, 0, sizeof o[i].stride), memset(o[i].shape.dim, 0, sizeof o[i].shape.dim);
        o[i].shape.ndim = 1, o[i].shape.dim[0] = 100, o[i].stride[0] = 1;
    }
    CHECK(flux__same_operand(&o[0], &o[1]));
    o[1].stride[0] = 2;
    CHECK(!flux__same_operand(&o[0], &o[1]));
}

/* Keys are lists of small numbers, and alike: programs whose shapes change ask for many that differ in a few words. */
TEST(keys_of_plans_have_hashes_of_their_own) {
    enum { SIDE = 16, COUNT = SIDE * SIDE * SIDE };
    static uint64_t hash[COUNT];
    int64_t key[9] = { 3, 7, 1, 0, 0, 9, 4, 0, 2 };
    int same = 0, full = 0, bucket[256] = { 0 };
    for (int i = 0; i < COUNT; i++) {
        key[3] = 1 + i % SIDE, key[4] = 1 + i / SIDE % SIDE, key[7] = 1 + i / SIDE / SIDE;
        hash[i] = flux__key_hash(key, 9);
        for (int j = 0; j < i; j++) same += hash[i] == hash[j];
        int n = ++bucket[hash[i] >> 56];
        full = n > full ? n : full;
    }
    CHECK(same == 0 && full < 4 * COUNT / 256);
}

/* What an operand is stands in a key beside its number: a number, a leaf and a node may all be the
   first of their kind. */
TEST(keys_tell_numbers_leaves_and_nodes_apart) {
    const double x = 0.5, e = exp(x);
    for (int turn = 0; turn < 2; turn++)
        for (int looked_at = 0; looked_at < 2; looked_at++) {
            flux_tensor *r = flux_sqrt(flux_mul(flux_ones(1), x * x)), *s = flux_squeeze(r), *y[4];
            if (looked_at) s = flux_eval(flux_copy(s));
            y[0] = flux_add(flux_exp(s), 2.0);
            y[1] = flux_exp(s), y[1] = flux_add(y[1], y[1]);
            y[2] = flux_add(flux_exp(s), s);
            y[3] = flux_add(2.0, flux_exp(s));
            const double want[] = { e + 2, e + e, e + x, 2 + e };
            CHECK(flux_ndim(s) == 0);
            for (int i = 0; i < 4; i++) {
                const int k = turn ? 3 - i : i;
                CHECK_NEAR(flux_item(y[k]), want[k], 1e-6);
            }
        }
}

/* Graphs that are alike but for one word of their keys, v: each is computed as itself, whichever came
   first. x, y: 4 x 4. i: indices. */
#define ALIKE(X)                                                                                     \
    X(operation, v ? flux_sin(x) : flux_cos(x)) X(order, v ? flux_sub(x, y) : flux_sub(y, x))        \
    X(twice, flux_mul(x, v ? x : y)) X(number, flux_add(x, v ? 2.0 : 3.0))                           \
    X(dtype, flux_to_dtype(flux_to_dtype(x, v ? FLUX_F16 : FLUX_BF16), FLUX_F32))                    \
    X(leaf, flux_exp(flux_to_dtype(v ? half : brain, FLUX_F32)))                                     \
    X(result, flux_to_dtype(flux_exp(x), v ? FLUX_I32 : FLUX_F64))                                   \
    X(shape, flux_exp(v ? flux_reshape(x, 2, 8) : flux_reshape(x, 8, 2)))                            \
    X(dims, flux_exp(v ? flux_reshape(x, 16) : flux_reshape(x, 16, 1)))                              \
    X(rows, flux_exp(v ? flux_slice(x, 0, 0, 2) : flux_slice(x, 1, 0, 2)))                           \
    X(offset, flux_exp(flux_slice(x, 0, v, v + 2))) X(strides, flux_exp(v ? x : flux_transpose(x)))  \
    X(step, flux_exp(flux_slice_step(x, 0, 0, 3, 1 + v)))                                            \
    X(view, flux_add(flux_exp(x), v ? x : flux_transpose(x)))                                        \
    X(node, flux_square(v ? flux_exp(x) : flux_transpose(flux_exp(x))))                              \
    X(reduction, v ? flux_sum(x, 0) : flux_max(x, 0)) X(mask, v ? flux_sum(x, 0) : flux_sum(x, 1))   \
    X(winner, v ? flux_argmax(x, 0) : flux_argmin(x, 0))                                             \
    X(rivals, v ? flux_argmax(x, 0) : flux_argmax(x, 1)) X(gather, flux_gather(x, v, i))             \
    X(scatter, flux_scatter_add(x, v, i, y)) X(cat, flux_cat(v, x, y))                               \
    X(sort, flux_argsort(x, .dim = 0, .descending = v != 0)) X(order_dim, flux_argsort(x, .dim = v)) \
    X(draw, v ? flux_rand(4, 4) : flux_randn(4, 4)) X(fill, flux_pad(x, v ? 5.0 : 7.0, 1, 1))        \
    X(place, flux_pad(x, 0, v, 1 - v)) X(diagonal, flux_diag(flux_slice(x, 0, 0, 1), v ? 1 : -1))    \
    X(meet, v ? flux_grad(flux_gradient(flux_sum(flux_square(flux_maxpool(image, FLUX_SHAPE(2),     \
      .stride = FLUX_SHAPE(1)))), image), image) : flux_grad(flux_gradient(flux_sum(flux_square(    \
      flux_maxpool(image, FLUX_SHAPE(2), .stride = FLUX_SHAPE(2)))), image), image))                 \
    X(back, flux__interpolated(x, FLUX_SHAPE(7, 4), v != 0))                                         \
    X(causal, flux_nth(flux_dot_product_attention(x, y, x, .causal = v != 0), 0))                    \
    X(heads, flux_nth(flux_dot_product_attention(x, y, x, .nheads = v ? 2 : 4), 0))                  \
    X(scan, v ? flux_cumsum(x, 0) : flux_cumprod(x, 0))                                              \
    X(flip, v ? flux_conv(large, kernel) : flux_crosscor(large, kernel))                             \
    X(product, v ? flux_matmul(x, y) : flux_matmul(y, x))
enum {
#define X(name, graph) ALIKE_##name,
    ALIKE(X)
#undef X
    ALIKE_COUNT
};
static flux_tensor *alike(int which, int v) {
    flux_seed(3);
    flux_tensor *x = flux_eval(flux_randn(4, 4)), *y = flux_eval(flux_randn(4, 4));
    flux_tensor *half = flux_eval(flux_to_dtype(x, FLUX_F16)), *brain = flux_eval(flux_to_dtype(x, FLUX_BF16));
    flux_tensor *i = flux_eval(flux_randint(0, 4, 4)), *image = flux_eval(flux_randn(4, 4, 1, 1));
    flux_tensor *large = flux_eval(flux_randn(9, 9, 16, 2)), *kernel = flux_eval(flux_randn(3, 3, 16, 16));
    switch (which) {
#define X(name, graph) case ALIKE_##name: return graph;
    ALIKE(X)
#undef X
    }
    return NULL;
}
TEST(a_plan_is_of_one_graph_alone) {
    ONLY_ON_CPU();
#define X(name, graph) #name,
    static const char *const names[] = { ALIKE(X) };
#undef X
    static double got[2][2][4000];
    for (int which = 0; which < ALIKE_COUNT; which++) FLUX_SCOPE {
        int64_t n[2][2] = { { 0 } };
        for (int turn = 0; turn < 2; turn++) {
            flux__thread *self = flux__self();
            if (self->plans) flux__plans_free(self->plans);
            self->plans = NULL;
            for (int k = 0; k < 2; k++) {
                const int v = k ^ turn;
                flux_tensor *y = flux_to_dtype(flux_eval(alike(which, v)), FLUX_F64);
                n[turn][v] = flux_len(y);
                CHECK(flux_read(y, got[turn][v], (size_t)(n[turn][v] * 8)) == 0);
            }
        }
        bool same = true, other = n[0][0] != n[0][1];
        for (int v = 0; v < 2; v++) {
            same = same && n[0][v] == n[1][v] && !memcmp(got[0][v], got[1][v], (size_t)(n[0][v] * 8));
            other = other || memcmp(got[0][0], got[0][1], (size_t)(n[0][0] * 8));
        }
        if (!CHECK(same)) fprintf(stderr, "    %s\n", names[which]);
        if (!CHECK(other || which == ALIKE_shape || which == ALIKE_dims)) fprintf(stderr, "    %s\n", names[which]);
    }
}

/* Kernels of one plan share scratch memory, as much as the one that needs most, wherever it stands. */
TEST(kernels_share_scratch_memory) {
    static const int64_t sizes[] = { 37, 9001, 500 };
    flux_tensor *x[3], *y[3], *apart[3];
    for (int first = 0; first < 3; first++) FLUX_SCOPE {
        for (int i = 0; i < 3; i++) {
            x[i] = flux_eval(flux_randn(sizes[(first + i) % 3]));
            apart[i] = flux_eval(flux_argsort(x[i]));
            y[i] = flux_argsort(x[i]);
        }
        CHECK(flux_eval_all(3, y) == 0);
        for (int i = 0; i < 3; i++) CHECK(flux_item(flux_all(flux_eq(y[i], apart[i]))) == 1);
    }
}

/* Memory without a tensor, as a kernel's own, is in a message with the bytes it was asked for. */
TEST(memory_without_a_tensor_in_a_message) {
    ONLY_ON_CPU();
    flux_mem_trim(test_device);
    flux__buffer_release(flux__buffer_new(test_device, 4900000, NULL));
    flux__buffer *own = flux__buffer_new(test_device, 5000000, NULL);
    flux_mem_limit(test_device, 6 << 20);
    CHECK_ERROR(flux_eval(flux_rand(1000000)), "; the largest: (4.77 MiB)");
    flux_mem_limit(test_device, 0);
    flux__buffer_release(own);
}

/* What flux_allow_tf32 says is in the key: a plan made before it was called is not taken after. */
TEST(a_plan_is_of_the_precision_that_was_allowed) {
    flux_tensor *a = flux_eval(flux_randn(7, 5)), *b = flux_eval(flux_randn(5, 3));
    int plans[4];
    for (int i = 0; i < 4; i++) {
        flux_allow_tf32(i % 2 != 0);
        flux_eval(flux_matmul(a, b));
        plans[i] = flux__self()->plans->count;
    }
    flux_allow_tf32(false);
    CHECK(plans[1] == plans[0] + 1 && plans[2] == plans[1] && plans[3] == plans[1]);
}

static flux_tensor *overlapping(flux_tensor *x, void *user) {
    (void)user;
    flux_tensor *sum = flux_square(flux_slice(x, 1, 0, 3));
    for (int i = 1; i < 4; i++) sum = flux_add(sum, flux_mul(flux_square(flux_slice(x, 1, i, i + 3)), (double)i));
    return flux_sum(flux_mul(sum, flux_slice(x, 1, 2, 5)));
}
static flux_tensor *apart(flux_tensor *x, void *user) {    /* some of x, with gaps, last first */
    (void)user;
    flux_tensor *a = flux_slice(x, 1, 5, 6), *b = flux_slice(x, 1, 1, 3), *c = flux_slice(x, 1, 3, 4);
    return flux_sum(flux_mul(flux_square(flux_mul(a, c)), flux_sum(flux_square(b), 1)));
}
static flux_tensor *many_products(flux_tensor *w, void *user) {
    flux_tensor *h = (flux_tensor *)user, *sum = NULL;
    for (int i = 0; i < 6; i++) {
        h = flux_tanh(flux_matmul(i % 2 ? w : flux_transpose(w), h));
        sum = sum ? flux_add(sum, flux_sum(flux_square(h))) : flux_sum(flux_square(h));
    }
    return sum;
}
static flux_tensor *five_on_the_left(flux_tensor *w, void *user) {
    flux_tensor *h = (flux_tensor *)user;
    for (int i = 0; i < 5; i++) h = flux_tanh(flux_matmul(w, h));
    return flux_sum(flux_square(h));
}
static flux_tensor *five_on_the_right(flux_tensor *w, void *user) {
    flux_tensor *h = flux_transpose((flux_tensor *)user);
    for (int i = 0; i < 5; i++) h = flux_tanh(flux_matmul(h, w));
    return flux_sum(flux_square(h));
}
/* What comes back to each product is joined of two halves. */
static flux_tensor *five_gates(flux_tensor *w, void *user) {
    flux_tensor *h = (flux_tensor *)user;
    for (int i = 0; i < 5; i++) {
        flux_tensor *z = flux_matmul(h, w);
        h = flux_mul(flux_tanh(flux_slice(z, 1, 0, 4)), flux_sigmoid(flux_slice(z, 1, 4, 8)));
    }
    return flux_sum(flux_square(h));
}

TEST(joined_gradients_are_right) {
    flux_seed(5);                                        /* differences are no better than the numbers drawn allow */
    flux_tensor *x = flux_randn_with(FLUX_SHAPE(2, 6), FLUX_F64), *w = flux_randn_with(FLUX_SHAPE(4, 4), FLUX_F64);
    CHECK_NEAR(flux_gradcheck(overlapping, NULL, x, 0), 0, 1e-7);
    CHECK_NEAR(flux_gradcheck(apart, NULL, x, 0), 0, 1e-7);
    CHECK_NEAR(flux_gradcheck(many_products, flux_randn_with(FLUX_SHAPE(4, 3), FLUX_F64), w, 0), 0, 1e-7);
    flux_tensor *h = flux_randn_with(FLUX_SHAPE(4, 3), FLUX_F64);
    CHECK_NEAR(flux_gradcheck(five_on_the_left, h, w, 0), 0, 1e-7);
    CHECK_NEAR(flux_gradcheck(five_on_the_right, h, w, 0), 0, 1e-7);
    flux_tensor *rows = flux_randn_with(FLUX_SHAPE(3, 4), FLUX_F64);
    flux_tensor *wide = flux_randn_with(FLUX_SHAPE(4, 8), FLUX_F64);
    CHECK_NEAR(flux_gradcheck(five_gates, rows, wide, 0), 0, 1e-7);
}

TEST(a_weight_used_five_times_has_one_product_in_the_gradient) {
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_tensor *(*const fns[])(flux_tensor *, void *) = { five_on_the_left, five_on_the_right };
    flux_tensor *w = flux_eval(flux_randn(4, 4)), *h = flux_eval(flux_randn(4, 3));
    for (int i = 0; i < 2; i++) {
        flux_eval(flux_grad(flux_gradient(fns[i](w, h), w), w));
        CHECK(kernels_of(FLUX__K_MATMUL) == 5 + 4 + 1);    /* forward; back to all but the first; by w */
    }
}

TEST(a_repeated_step_is_found_again) {
    step s = make_step(flux_adam(1e-3));
    for (int i = 0; i < 4; i++) do_step(&s);
    int plans = flux__self()->plans->count;
    for (int i = 0; i < 20; i++) do_step(&s);
    CHECK(flux__self()->plans->count == plans);
}

/* So many kernels and operations have a step's plans by each rule, in float32, and in f16 with a master copy: a rule that does
   more than it needs, or does apart what was done together, has more. */
static int operations_of(const flux__plan *p) {
    int n = 0;
    for (int i = 0; i < p->nkernel; i++) n += p->kernel[i].nvalue;
    return n;
}
TEST(a_step_of_each_rule_is_what_it_was) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    const struct { const char *name; flux_rule rule; int kernels, operations; } steps[] = {
        { "descent", flux_descent(1e-3), 11, 69 }, { "momentum", flux_momentum(1e-3), 11, 89 }, { "adam", flux_adam(1e-3), 11, 113 }, { "adamw", flux_adamw(1e-3), 11, 113 },
        { "clipped", flux_optimiser_chain(flux_clipnorm(), flux_adam(1e-3)), 6, 93 }, { "accumulated", flux_accumgrad(2, flux_adam(1e-3)), 11, 129 },
        { "mixed", flux_mixed_precision(flux_adam(1e-3)), 11, 130 },
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        step s = make_step(steps[i].rule);
        if (!strcmp(steps[i].name, "mixed")) s.x = flux_eval(flux_to_dtype(s.x, FLUX_F16)), s.m = flux_f16(s.m), s.opt = flux_setup(steps[i].rule, s.m);
        for (int k = 0; k < 6; k++) do_step(&s);
        const flux__plan *p = newest_plan();
        if (!CHECK(p->nkernel == steps[i].kernels && operations_of(p) == steps[i].operations))
            fprintf(stderr, "    %s: %d kernels of %d operations\n", steps[i].name, p->nkernel, operations_of(p));
    }
}

/* So do the steps of models of each family of layers. */
#define IMAGES 9, 8, 4, 2
#define WINDOW FLUX_SHAPE(3, 3)
/* A depthwise convolution's result lies where its image was, if no one else reads that and it is as large. */
TEST(depthwise_results_lie_in_place) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    for (int i = 0; i < 7; i++) FLUX_SCOPE FLUX_INFER {
        const flux_conv_opts o = { .weight = flux_eval(flux_randn(3, 3, 1, i == 1 ? 8 : 4)), .groups = 4, .pad = FLUX_SHAPE(1, 1), .stride = FLUX_SHAPE(i == 2 ? 2 : 1), .marked = true };
        flux_tensor *x = flux_eval(flux_randn(9, 8, 4, 3));
        flux_tensor *seen = flux_add(flux_mul(x, x), 1);
        const int h = flux__hide();
        flux_conv_opts again = o;
        again.x = i == 4 ? x : i == 6 ? seen : flux_add(flux_mul(x, x), 1);
        flux_tensor *y = flux_conv_with(again);
        if (i == 3) y = flux_add(y, again.x);
        if (i == 5) y = flux_add(again.x, flux_mean(y));   /* reads the image later */
        y = flux_eval(flux__reveal(h, y));
        const flux__plan *p = newest_plan();
        int inside = 0;
        for (int k = 0; k < p->nnode; k++) inside += p->slot[k].stored && p->slot[k].inside >= 0;
        CHECK(inside == (i == 0));
        if (i == 6) CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(seen, flux_add(flux_square(x), 1))))), 0, 1e-5);
        again.x = flux_to_dtype(i == 4 ? x : flux_eval(flux_add(flux_mul(x, x), 1)), FLUX_F64), again.weight = flux_to_dtype(o.weight, FLUX_F64);
        flux_tensor *z = flux_conv_with(again);
        if (i == 3) z = flux_add(z, again.x);
        if (i == 5) z = flux_add(again.x, flux_mean(z));
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), z)))), 0, 1e-4);
    }
}

TEST(a_step_of_each_layer_is_what_it_was) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    const struct { const char *name; flux_layer *m; flux_tensor *x; int kernels, operations; } steps[] = {
        { "dense", flux_chain(flux_dense(6, 5, flux_tanh), flux_dense(5, 4)), flux_rand(6, 7), 9, 43 },
        { "conv", flux_chain(flux_conv_layer(WINDOW, 4, 5, flux_relu, .pad = FLUX_SAMEPAD), flux_conv_layer(WINDOW, 5, 6)), flux_rand(IMAGES), 16, 48 },
        { "conv, stride 2", flux_chain(flux_conv_layer(WINDOW, 4, 5, flux_relu), flux_conv_layer(WINDOW, 5, 6, .stride = FLUX_SHAPE(2, 2))), flux_rand(IMAGES), 17, 50 },
        { "conv, dilated", flux_chain(flux_conv_layer(WINDOW, 4, 5), flux_conv_layer(WINDOW, 5, 6, .dilation = FLUX_SHAPE(2, 2))), flux_rand(IMAGES), 15, 45 },
        { "conv, of one", flux_chain(flux_conv_layer(WINDOW, 4, 5), flux_conv_layer(FLUX_SHAPE(1, 1), 5, 6)), flux_rand(IMAGES), 15, 45 },
        { "depthwise", flux_chain(flux_depthwiseconv(WINDOW, 4, 4), flux_depthwiseconv(WINDOW, 4, 8)), flux_rand(IMAGES), 15, 45 },
        { "conv_transpose", flux_chain(flux_conv_transpose_layer(WINDOW, 4, 5), flux_conv_transpose_layer(WINDOW, 5, 6, .stride = FLUX_SHAPE(2, 2))), flux_rand(IMAGES), 20, 48 },
        { "pools", flux_chain(flux_conv_layer(WINDOW, 4, 5), flux_maxpool_layer(FLUX_SHAPE(2, 2)), flux_meanpool_layer(FLUX_SHAPE(2, 2), .stride = FLUX_SHAPE(1, 1))), flux_rand(IMAGES), 16, 52 },
        { "upsample", flux_chain(flux_conv_layer(WINDOW, 4, 5), flux_upsample(FLUX_BILINEAR, .scale = { 2 })), flux_rand(IMAGES), 10, 28 },
        { "batchnorm", flux_chain(flux_conv_layer(WINDOW, 4, 5), flux_batchnorm(5, flux_relu)), flux_rand(IMAGES), 16, 107 },
        { "groupnorm", flux_chain(flux_conv_layer(WINDOW, 4, 6), flux_groupnorm(6, 2)), flux_rand(IMAGES), 16, 79 },
        { "layernorm", flux_chain(flux_dense(6, 5), flux_layernorm(FLUX_SHAPE(5))), flux_rand(6, 7), 8, 65 },
        { "embedding", flux_chain(flux_embedding(6, 5), flux_dense(5, 4)), flux_to_dtype(flux_mul(flux_rand(3, 2), 6), FLUX_I32), 11, 32 },
        { "attention", flux_multiheadattention(6, .nheads = 2, .scores = FLUX_OFF, .causal = true), flux_rand(6, 4, 2), 13, 33 },
        { "swiglu", flux_swiglu(6, 5), flux_rand(6, 7), 10, 46 }, { "bilinear", flux_bilinear(6, 6, 5), flux_rand(6, 7), 7, 26 },
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        flux_state *opt = flux_setup(flux_descent(1e-3), steps[i].m);
        flux_tensor *x = flux_eval(steps[i].x);
        for (int k = 0; k < 4; k++) FLUX_SCOPE {
            flux_tensor *loss = flux_mean(flux_square(flux_call(steps[i].m, x)));
            CHECK(flux_update(opt, steps[i].m, flux_gradient(loss, steps[i].m)) == 0);
        }
        const flux__plan *p = newest_plan();
        if (!CHECK(p->nkernel == steps[i].kernels && operations_of(p) == steps[i].operations))
            fprintf(stderr, "    %s: %d kernels of %d operations\n", steps[i].name, p->nkernel, operations_of(p));
    }
}

/* Nor does a step of any rule need another plan where its gradients are large, are clipped, or are not. */
TEST(a_step_of_large_gradients_is_that_of_small_ones) {
    const int rows = (int)(sizeof flux__rule_rows / sizeof *flux__rule_rows);
    for (int i = 1; i < 3 * rows; i++) FLUX_SCOPE {
        const flux__rule_row *row = &flux__rule_rows[i % rows];
        if (!row->step || !*row->name || !strcmp(row->name, "Function")) continue;
        flux_rule rule = FLUX__RULE(row->name), clip = i < 2 * rows ? flux_clipnorm(.omega = 1) : flux_clipnorm(.omega = 1, .global = true);
        if (i >= rows) rule = flux_optimiser_chain(clip, rule, flux_descent(1e-3));
        flux_layer *m = flux_dense(4, 3);
        flux_state *opt = flux_setup(rule, m);
        flux_tensor *x = flux_eval(flux_rand(4, 5));
        int plans = 0;
        for (int k = 0; k < 10; k++) FLUX_SCOPE {
            flux_tensor *size = flux_eval(flux_full(k < 5 ? 0.001 : 100, 1));
            if (k == 5) plans = flux__self()->plans->count;
            CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_mul(flux_square(flux_call(m, x)), size)), m)) == 0);
        }
        if (!CHECK(flux__self()->plans->count == plans)) fprintf(stderr, "    %s%s\n", i < rows ? "" : i < 2 * rows ? "clipped, " : "clipped together, ", row->name);
    }
}

/* Of 512 plans and more those go that were not used for 256 look-ups, and the cache knows how many it has. */
TEST(old_plans_are_dropped) {
    ONLY_ON_CPU();
    static float data[1000];
    static uint32_t used[1000];           /* by size: the clock at its plan's last use, 0: there is none */
    flux_tensor *x = flux_from(data, 1000);
    flux_eval(flux_neg(x));               /* the cache is there */
    flux__plans *plans = flux__self()->plans;
    flux__plans_forget(plans, 0);
    memset(used, 0, sizeof used);
    dice_state = 7;
    int count = 0;
    for (int i = 0; i < 3000; i++) FLUX_SCOPE {
        const int n = 1 + (i < 700 ? i : dice(i % 3 ? 40 : 999));
        const uint32_t before = plans->clock;
        flux_tensor *leaf = flux_from(data, n);
        flux_eval(flux_neg(leaf));
        REQUIRE(plans->clock == before + 1);
        if (!used[n] && count >= 512)
            for (int k = 0; k < 1000; k++)
                if (used[k] && plans->clock - used[k] >= 256) used[k] = 0, count--;
        count += !used[n];
        used[n] = plans->clock;
        int have = 0;
        int64_t bytes = 0;
        for (int b = 0; b < FLUX__BUCKETS && i % 50 == 0; b++)
            for (const flux__plan *p = plans->bucket[b]; p; p = p->next) have++, bytes += p->bytes;
        CHECK(plans->count == count && (i % 50 || (have == count && bytes == plans->bytes)));
    }
}

TEST(no_growth_over_1000_steps) {
    step s = make_step(flux_adam(1e-3));
    flux_device cpu = { 0, 0 };
    do_step(&s), do_step(&s), do_step(&s);
    flux_mem before = flux_mem_stats(cpu);
    int owned = flux__self()->nowned;
    double first = do_step(&s), last = 0;
    for (int i = 0; i < 1000; i++) last = do_step(&s);
    flux_mem after = flux_mem_stats(cpu);
    CHECK(after.live == before.live);
    CHECK(after.reserved == before.reserved);
    CHECK(after.peak == before.peak);
    CHECK(flux__self()->nowned == owned);
    CHECK(last < 0.1 * first);
}

/* What the user holds keeps its value when weights are updated. */
TEST(held_weights_do_not_change) {
    step s = make_step(flux_descent(0.5));
    do_step(&s), do_step(&s);
    flux_tensor *held = flux_weight(s.m), *copy = flux_eval(flux_copy(held));
    do_step(&s), do_step(&s);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(held, copy)))) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_weight(s.m), copy)))) > 0);
}

/* y = outer (inner x): the gradient by inner, which comes later, reads what outer was. */
typedef struct nested { flux_layer base; flux_tensor *outer, *inner; } nested;
static flux_tensor *nested_call(flux_layer *self, flux_tensor *x) {
    return flux_matmul(((nested *)self)->outer, flux_matmul(((nested *)self)->inner, x));
}
FLUX_LAYER(nested, "Nested", nested_call, FLUX_PARAM(outer), FLUX_PARAM(inner))

TEST(a_weight_that_is_read_later_is_not_overwritten) {
    const flux_shape square = FLUX_SHAPE(40, 40);
    flux_tensor *x = flux_eval(flux_randn_with(FLUX_SHAPE(40, 6), FLUX_F64));
    flux_layer *m = flux_new(nested, .outer = flux_randn_with(square, FLUX_F64),
                             .inner = flux_randn_with(square, FLUX_F64));
    flux_state *opt = flux_setup(flux_descent(1e-4), m);
    for (int i = 0; i < 3; i++) FLUX_SCOPE {
        flux_tensor *a = NULL, *b = NULL;
        FLUX_SCOPE {                          /* a parameter that is held is not overwritten */
            FLUX_NOGRAD {
                a = flux_keep(flux_eval(flux_copy(flux_param(m, "outer"))));
                b = flux_keep(flux_eval(flux_copy(flux_param(m, "inner"))));
            }
        }
        flux_tensor *bx = flux_matmul(b, x), *d = flux_mul(flux_matmul(a, bx), 2);
        flux_tensor *outer = flux_matmul(d, flux_transpose(bx));
        flux_tensor *inner = flux_matmul(flux_matmul(flux_transpose(a), d), flux_transpose(x));
        outer = flux_sub(a, flux_mul(outer, 1e-4)), inner = flux_sub(b, flux_mul(inner, 1e-4));
        flux_eval_all(2, ((flux_tensor *[]){ outer, inner }));
        CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m)) == 0);
        if (i && !flux__eager()) CHECK(donors_of(newest_plan()) == 1);    /* inner alone is in place */
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_param(m, "outer"), outer)))) < 1e-10);
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_param(m, "inner"), inner)))) < 1e-10);
    }
}

TEST(held_view_of_a_weight_does_not_change) {
    step s = make_step(flux_descent(0.5));
    do_step(&s), do_step(&s);
    flux_tensor *view = NULL, *copy = NULL;
    FLUX_SCOPE {
        view = flux_keep(flux_transpose(flux_weight(s.m)));
        copy = flux_keep(flux_eval(flux_copy(view)));
    }
    do_step(&s), do_step(&s);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(view, copy)))) == 0);
}

TEST(values_on_the_way_stay_what_they_were) {
    step s = make_step(flux_descent(0.5));
    do_step(&s), do_step(&s);
    flux_tensor *w = flux_copy(flux_weight(s.m));
    flux_eval(w);
    flux_tensor *out = flux_call(s.m, s.x), *sum = flux_sum(out), *lazy = flux_exp(flux_matmul(flux_weight(s.m), s.x));
    flux_tensor *loss = flux_mse(out, flux_zeros(10, 8));
    flux_tensor *before = flux_eval(flux_exp(flux_matmul(w, s.x)));
    flux_tensor *again = flux_eval(flux_mse(flux_copy(flux_call(s.m, s.x)), flux_zeros(10, 8)));
    flux_update(s.opt, s.m, flux_gradient(loss, s.m));
    CHECK_NEAR(flux_item(loss), flux_item(again), 1e-6);
    CHECK_NEAR(flux_item(sum), flux_item(flux_sum(out)), 1e-4);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(lazy, before)))) < 1e-5);
}

TEST(a_used_up_graph_says_so) {
    step s = make_step(flux_descent(0.5));
    flux_tensor *loss = flux_mse(flux_call(s.m, s.x), flux_zeros(10, 8));
    flux_grads *g = flux_gradient(loss, s.m);
    flux_update(s.opt, s.m, g);
    CHECK_ERROR(flux_gradient(loss, s.m), "used up");
    CHECK_ERROR(flux_grad(g, s.x), "used up");
    CHECK(isfinite(flux_item(loss)));
}

/* Looking at the loss before the update must not change where anything ends. */
/* A number is no operand that must be made first, whether it is looked at beside what uses it, or made for a product. */
TEST(a_number_is_looked_at_beside_its_uses) {
    float r[4] = { 1, 2, 3, 4 }, q[1] = { 2 };
    flux_tensor *w = flux_from(r, 4), *b = flux_from(r, 4), *l = flux_sum(flux_add(flux_mul(flux_from(q, 1), w), b));
    flux_grads *g = flux_gradient(l, w, b);
    flux_tensor *all[] = { l, flux_grad(g, w), flux_grad(g, b) };
    REQUIRE(flux_eval_all(3, all) == 0);
    CHECK_NEAR(flux_item(l), 30, 0);
    CHECK_DATA(all[1], ((double[]){ 2, 2, 2, 2 }), 0);
    CHECK_DATA(all[2], ((double[]){ 1, 1, 1, 1 }), 0);
    flux_tensor *c = flux_full(3, 2, 2), *x = flux_eval(flux_reshape(b, 2, 2)), *y = flux_mul(x, c), *s = flux_sum(flux_add(c, x), 0);
    flux_tensor *some[] = { y, s, flux_matmul(c, x), flux_reshape(c, 4), flux_exp(flux_sub(c, c)) };
    REQUIRE(flux_eval_all(5, some) == 0);
    CHECK_DATA(y, ((double[]){ 3, 6, 9, 12 }), 0);
    CHECK_DATA(s, ((double[]){ 9, 13 }), 0);
    CHECK_DATA(some[2], ((double[]){ 9, 9, 21, 21 }), 0);
    CHECK_DATA(c, ((double[]){ 3, 3, 3, 3 }), 0);
    CHECK_DATA(some[4], ((double[]){ 1, 1, 1, 1 }), 0);
}

/* The gradients of a normalisation with its activation, between products; early: the values on the way are looked at first. */
static void of_a_norm(bool early, flux_tensor **out) {
    flux_tensor *x = flux_reshape(flux_sin(flux_arange(0, 64 * 64 * 24 * 3, 1)), 64, 64, 24, 3), *w = flux_full(0.25, 1, 1, 24, 24);
    flux_tensor *scale = flux_eval(flux_reshape(flux_arange(1, 25, 1), 1, 1, 24, 1)), *bias = flux_eval(flux_full(0.5, 1, 1, 24, 1));
    x = flux_conv(flux_eval(x), flux_eval(flux_sin(w)));
    if (early) flux_eval(x);
    flux_tensor *mean = flux_mean(x, 0, 1, 3), *d = flux_sub(x, mean), *y = flux_mul(flux_mul(d, flux_rsqrt(flux_add(flux_mean(flux_square(d), 0, 1, 3), 1e-5))), scale);
    if (early) flux_eval(d), flux_eval(y);
    y = flux_relu6(flux_add(y, bias));
    if (early) flux_eval(y);
    flux_grads *g = flux_gradient(flux_sum(flux_square(flux_conv(y, w))), w, scale, bias);
    out[0] = flux_grad(g, w), out[1] = flux_grad(g, scale), out[2] = flux_grad(g, bias);
    flux_eval_all(3, out);
}

TEST(what_follows_from_a_stored_value_is_not_stored) {
    flux_tensor *lazy[3], *early[3];
    of_a_norm(false, lazy);
    if (!flux__eager()) {
        const flux__plan *p = newest_plan();
        for (int k = 0; k < p->nkernel; k++) {             /* else four: d, what goes into relu6, and its two steps. Two are
                                                              what relu6 passes back, and what the norm does */
            int large = 0;
            for (int o = 0; o < p->kernel[k].nouts; o++) large += p->slot[p->kernel[k].outs[o]].bytes >= 64 * 64 * 24 * 3 * 4;
            CHECK(large <= 2);
        }
    }
    of_a_norm(true, early);
    for (int i = 0; i < 3; i++) {
        CHECK(flux_item(flux_max(flux_abs(early[i]))) > 0);
        CHECK(flux_item(flux_sum(flux_ne(lazy[i], early[i]))) == 0);
    }
}

static int phases_of(const flux__kernel *k) {
    int n = 0;
    for (int i = 0; i < k->nvalue; i++) n = k->value[i].phase >= n ? k->value[i].phase + 1 : n;
    return n;
}

/* A look at a norm's result in train mode stores mean and variance too: the running statistics, and the gradient, need no sum over
   the input for them again. */
TEST(a_look_at_a_norm_stores_its_statistics) {
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    flux_layer *norm = flux_batchnorm(4);
    flux_trainmode(norm, true);
    flux_tensor *x = flux_eval(flux_randn(6, 6, 4, 5)), *y = flux_eval(flux_call(norm, x)), *var = ((flux__norm_layer *)norm)->var;
    CHECK(flux__finished(x) && !flux__finished(var));
    flux_eval(var);
    const flux__plan *p = newest_of(1);
    for (int k = 0; k < p->nkernel; k++) CHECK(!p->kernel[k].reduced);
    flux_eval(flux_grad(flux_gradient(flux_sum(flux_mul(y, x)), x), x));
    p = newest_of(1);
    for (int k = 0; k < p->nkernel; k++)                    /* sums of the gradient, and then the gradient itself */
        CHECK(p->kernel[k].kind != FLUX__K_FUSED || !p->kernel[k].reduced || phases_of(&p->kernel[k]) <= 2);
}

TEST(looking_early_changes_nothing) {
    step a = make_step(flux_adam(1e-2)), b = make_step(flux_adam(1e-2));
    for (int i = 0; i < 5; i++) {
        do_step(&a);
        FLUX_SCOPE {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(b.m, b.x), b.y);
            flux_item(loss);
            flux_grads *g = flux_gradient(loss, b.m);
            flux_data(flux_grad_param(g, b.m, "layers.1.weight"));
            flux_update(b.opt, b.m, g);
        }
    }
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_weight(a.m), flux_weight(b.m))))) < 1e-6);
}

TEST(nograd_keeps_no_graph) {
    flux_device cpu = { 0, 0 };
    step s = make_step(flux_adam(1e-2));
    do_step(&s);
    int64_t live = flux_mem_stats(cpu).live;
    FLUX_SCOPE FLUX_NOGRAD {
        flux_tensor *out = flux_call(s.m, s.x);
        flux_eval(out);
        CHECK(out->nin == 0);
        CHECK(flux_mem_stats(cpu).live <= live + 1024);
    }
}

/* ---------------- long and odd shapes: every way a block can lie */

TEST(reductions_of_every_shape) {
    static const int64_t sizes[] = { 1, 2, 7, 63, 64, 65, 300, 1023, 1025, 5000 };
    for (int i = 0; i < 10; i++)
        for (int j = 0; j < 10; j++) FLUX_SCOPE {
            int64_t m = sizes[i], n = sizes[j];
            if (m * n > 400000 || test_left_out(i + 3 * j, 7)) continue;
            flux_tensor *x = flux_eval(flux_sub(flux_rand_with(FLUX_SHAPE(m, n), FLUX_F64), 0.5));
            const double *p = (const double *)flux_data(x);
            flux_tensor *rows = flux_sum(flux_mul(x, 2), 1), *cols = flux_sum(flux_mul(x, 2), 0), *all = flux_sum(x), *top = flux_max(x, 0);
            flux_tensor *tcols = flux_sum(flux_transpose(x), 1), *soft = flux_softmax(x), *best = flux_argmax(x, 0), *best1 = flux_argmax(x, 1);
            const double *r = (const double *)flux_data(rows), *c = (const double *)flux_data(cols), *t = (const double *)flux_data(top);
            const double *tc = (const double *)flux_data(tcols), *sm = (const double *)flux_data(soft);
            const int64_t *bi = (const int64_t *)flux_data(best), *bj = (const int64_t *)flux_data(best1);
            double sum = 0, worst = 0;
            for (int64_t b = 0; b < n; b++) {
                double s = 0, big = -9, e = 0;
                int64_t at = 0;
                for (int64_t a = 0; a < m; a++) {
                    s += p[a + b * m];
                    if (p[a + b * m] > big) big = p[a + b * m], at = a;
                }
                for (int64_t a = 0; a < m; a++) e += exp(p[a + b * m] - big);
                for (int64_t a = 0; a < m; a++) worst = fmax(worst, fabs(sm[a + b * m] - exp(p[a + b * m] - big) / e));
                worst = fmax(worst, fabs(c[b] - 2 * s)), worst = fmax(worst, fabs(t[b] - big)), worst = fmax(worst, fabs(tc[b] - s));
                worst = fmax(worst, at == bi[b] ? 0 : 1);
                sum += s;
            }
            for (int64_t a = 0; a < m; a++) {
                double s = 0;
                int64_t at = 0;
                for (int64_t b = 0; b < n; b++) {
                    s += p[a + b * m];
                    if (p[a + b * m] > p[a + at * m]) at = b;
                }
                worst = fmax(worst, fabs(r[a] - 2 * s)), worst = fmax(worst, at == bj[a] ? 0 : 1);
            }
            worst = fmax(worst, fabs(flux_item(all) - sum));
            if (!CHECK(worst < 1e-9)) fprintf(stderr, "    %d x %d: off by %g\n", (int)m, (int)n, worst);
        }
}

TEST(a_long_reduction_in_parts) {
    int64_t n = 1000003;
    flux_tensor *x = flux_eval(flux_rand_with(FLUX_SHAPE(n), FLUX_F64));
    const double *p = (const double *)flux_data(x);
    double sum = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += p[i];
        if (p[i] > p[at]) at = i;
    }
    CHECK_NEAR(flux_item(flux_sum(x)), sum, 1e-11);
    CHECK(flux_item(flux_argmax(x)) == (double)at);
    CHECK(flux_item(flux_max(x)) == p[at]);
    CHECK_NEAR(flux_item(flux_var(x)), 1.0 / 12, 1e-2);
    CHECK_NEAR(flux_item(flux_logsumexp(x)), log((double)n) + log(exp(1) - 1), 1e-3);
    flux_tensor *wide = flux_sum(flux_reshape(flux_slice(x, 0, 0, 1000000), 10, 100000), 1);
    double want[10] = { 0 };
    for (int64_t i = 0; i < 1000000; i++) want[i % 10] += p[i];
    CHECK_DATA(wide, want, 1e-9);
}

/* Each phase needs the sums of the one before, and what outer points have is stored though every part makes it. */
TEST(several_phases_in_parts) {
    static const int64_t shapes[][2] = { { 1, 200003 }, { 3, 70001 }, { 40, 3001 }, { 300, 401 }, { 1500, 301 } };
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) FLUX_SCOPE {
        const int64_t m = shapes[k][0], n = shapes[k][1];
        flux_tensor *x = flux_eval(flux_mul(flux_sub(flux_rand_with(FLUX_SHAPE(m, n), FLUX_F64), 0.3), 4.0)), *mean = flux_mean(x, 1), *d = flux_sub(x, mean);
        flux_tensor *all[] = { mean, flux_var(x, 1), d, flux_div(d, flux_sqrt(flux_var(x, 1))), flux_logsumexp(x, 1), flux_argmax(flux_sub(flux_abs(d), mean), 1) };
        flux_eval_all(6, all);
        const double *p = (const double *)flux_data(x), *got[5];
        const int64_t *at = (const int64_t *)flux_data(all[5]);
        double worst = 0;
        for (int i = 0; i < 5; i++) got[i] = (const double *)flux_data(all[i]);
        for (int64_t a = 0; a < m; a++) {
            double sum = 0, squares = 0, e = 0;
            int64_t far = 0;
            for (int64_t b = 0; b < n; b++) sum += p[a + b * m] / (double)n, e += exp(p[a + b * m]);
            for (int64_t b = 0; b < n; b++) squares += pow(p[a + b * m] - sum, 2) / (double)n;
            for (int64_t b = 0; b < n; b++) {
                worst = fmax(worst, fabs(got[2][a + b * m] - (p[a + b * m] - sum)));
                worst = fmax(worst, fabs(got[3][a + b * m] - (p[a + b * m] - sum) / sqrt(squares)));
                if (fabs(p[a + b * m] - sum) > fabs(p[a + far * m] - sum)) far = b;
            }
            worst = fmax(worst, fmax(fabs(got[0][a] - sum), fmax(fabs(got[1][a] - squares), fabs(got[4][a] - log(e)))));
            worst = fmax(worst, fabs(fabs(p[a + far * m] - sum) - fabs(p[a + at[a] * m] - sum)));
        }
        if (!CHECK(worst < 1e-9)) fprintf(stderr, "    %d x %d: off by %g\n", (int)m, (int)n, worst);
    }
}

/* Rows of every length, few and many of them, in float32: what is joined in vectors beside a loop in double */
static void check_reduced(flux_tensor *x, int64_t rows, int64_t n, int64_t row, int64_t step, int dim) {
    const float *p = flux_data(x), *sum = flux_data(flux_sum(x, dim)), *most = flux_data(flux_max(x, dim)), *least = flux_data(flux_min(x, dim));
    const float *prod = flux_data(flux_prod(flux_add(flux_mul(x, 0.01), 1.0), dim)), *var = flux_data(flux_var(x, dim)), *lse = flux_data(flux_logsumexp(x, dim));
    const int64_t *first = (const int64_t *)flux_data(flux_argmax(x, dim)), *last = (const int64_t *)flux_data(flux_argmin(x, dim));
    const int64_t *count = (const int64_t *)flux_data(flux_sum(flux_eq(x, 0.0), dim));
    const uint8_t *any = (const uint8_t *)flux_data(flux_any(flux_gt(x, 2.0), dim)), *all = (const uint8_t *)flux_data(flux_all(x, dim));
    int64_t wrong[11] = { 0 };
    for (int64_t r = 0; r < rows; r++) {
        const float *v = p + r * row;
        double s = 0, size = 0, product = 1, e = 0, squares = 0;
        int64_t high = 0, low = 0, zeros = 0;
        for (int64_t i = 0; i < n; i++) {
            const double one = (double)v[i * step];
            s += one, size += fabs(one), product *= 0.01 * one + 1, e += exp(one), zeros += one == 0;
            if (v[i * step] > v[high * step]) high = i;
            if (v[i * step] < v[low * step]) low = i;
        }
        for (int64_t i = 0; i < n; i++) squares += pow((double)v[i * step] - s / (double)n, 2) / (double)n;
        wrong[0] += !(fabs((double)sum[r] - s) <= 1e-6 * (size + 1)), wrong[1] += most[r] != v[high * step], wrong[2] += least[r] != v[low * step];
        wrong[3] += !(fabs((double)prod[r] - product) <= 1e-5 * (fabs(product) + 1)), wrong[4] += !(fabs((double)var[r] - squares) <= 1e-5 * (squares + 1));
        wrong[5] += !(fabs((double)lse[r] - log(e)) <= 1e-5 * (fabs(log(e)) + 1)), wrong[6] += first[r] != high, wrong[7] += last[r] != low;
        wrong[8] += count[r] != zeros, wrong[9] += any[r] != (v[high * step] > 2), wrong[10] += all[r] != (zeros == 0);
    }
    for (int i = 0; i < 11; i++)
        if (!CHECK(wrong[i] == 0)) fprintf(stderr, "    %d of %d over dim %d: kind %d: %d are wrong\n", (int)rows, (int)n, dim, i, (int)wrong[i]);
}
TEST(reductions_of_floats_of_every_length) {
    static const int64_t lengths[] = { 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 15, 16, 17, 24, 30, 31, 32, 33, 47, 63, 64, 65, 100, 255, 256, 300, 1023, 1024, 3000 };
    static const int64_t counts[] = { 1, 2, 15, 16, 17, 33, 100, 1001, 30000 };
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) FLUX_SCOPE {
            const int64_t n = lengths[l], rows = counts[c];
            if (n * rows > 600000 || (test_device.backend && c > 1 && n < 3000 && (l % 3 != 2 || c == 3 || c == 7))) continue;     /* the same kernels in other numbers */
            if (test_left_out((int)(l + c), 13)) continue;
            flux_tensor *ties = flux_round(flux_mul(flux_randn(n, rows), 3.0)), *x = flux_eval(flux_where(flux_lt(flux_rand(n, rows), 0.5), ties, flux_mul(ties, 1.01)));
            check_reduced(x, rows, n, n, 1, 0);
            check_reduced(flux_reshape(x, rows, n), rows, n, 1, rows, 1);
        }
}
/* Short rows of one long tensor, which threads share piece by piece, and the gradient of their largest */
TEST(the_largest_of_many_short_rows) {
    const int64_t n = 9, rows = 30011;
    flux_tensor *x = flux_eval(flux_randn(n, rows)), *weight = flux_eval(flux_rand(1, rows)), *top = flux_max(x, 0);
    flux_grads *g = flux_gradient(flux_sum(flux_mul(top, weight)), x);
    const float *p = flux_data(x), *w = flux_data(weight), *most = flux_data(top), *got = flux_data(flux_grad(g, x));
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *v = p + r * n;
        int64_t at = 0;
        for (int64_t i = 1; i < n; i++) at = v[i] > v[at] ? i : at;
        wrong += most[r] != v[at];
        for (int64_t i = 0; i < n; i++) wrong += got[r * n + i] != (i == at ? w[r] : 0);
    }
    CHECK(wrong == 0);
}

/* Truths that a comparison gives, and such as lie in memory, in order or not: each reduction by itself, or several of the same */
static void check_truths(flux_tensor *b, const uint8_t *p, int64_t rows, int64_t n, int64_t row, int64_t step, int dim) {
    for (int together = 0; together < 2; together++) FLUX_SCOPE {
        flux_tensor *all[] = { flux_sum(b, dim), flux_any(b, dim), flux_all(b, dim), flux_prod(b, dim), flux_max(b, dim), flux_mean(flux_to_dtype(b, FLUX_F32), dim) };
        if (together) flux_eval_all(6, all);
        const int64_t *sum = (const int64_t *)flux_data(all[0]), *prod = (const int64_t *)flux_data(all[3]);
        const uint8_t *any = (const uint8_t *)flux_data(all[1]), *every = (const uint8_t *)flux_data(all[2]), *most = (const uint8_t *)flux_data(all[4]);
        const float *mean = flux_data(all[5]);
        int64_t wrong[6] = { 0 };
        for (int64_t r = 0; r < rows; r++) {
            int64_t count = 0;
            for (int64_t i = 0; i < n; i++) count += p[r * row + i * step] != 0;
            wrong[0] += sum[r] != count, wrong[1] += any[r] != (count > 0), wrong[2] += every[r] != (count == n), wrong[3] += prod[r] != (count == n);
            wrong[4] += most[r] != (count > 0), wrong[5] += !(fabs((double)mean[r] * (double)n - (double)count) <= 1e-6 * (double)n);
        }
        for (int i = 0; i < 6; i++)
            if (!CHECK(wrong[i] == 0)) fprintf(stderr, "    %d of %d over dim %d: kind %d, together %d: %d are wrong\n", (int)rows, (int)n, dim, i, together, (int)wrong[i]);
    }
}
TEST(truths_are_counted) {
    static const int64_t lengths[] = { 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 33, 63, 100, 1000, 1023, 1025, 3000, 100000 };
    static const int64_t counts[] = { 1, 2, 17, 100, 1001, 40000 };
    static const double less[] = { -1, 0.0002, 0.5, 0.9998, 2 };
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) FLUX_SCOPE {
            const int64_t n = lengths[l], rows = counts[c];
            if (n * rows > 600000 || (test_device.backend && (l != 9 || c != 2))) continue;     /* a device's compiler takes its time */
            flux_tensor *x = flux_eval(flux_rand(n, rows)), *from = flux_lt(x, less[(l + c) % 5]), *b = flux_eval(flux_lt(x, less[(l + c) % 5]));
            const uint8_t *p = (const uint8_t *)flux_data(b);
            check_truths(from, p, rows, n, n, 1, 0);
            check_truths(from, p, n, rows, 1, n, 1);
            check_truths(b, p, rows, n, n, 1, 0);
            check_truths(b, p, n, rows, 1, n, 1);
            check_truths(flux_permute(b, 1, 0), p, rows, n, n, 1, 1);
            if (n > 1) check_truths(flux_slice(b, 0, 1, n), p + 1, rows, n - 1, n, 1, 0);
            check_truths(flux_reshape(b, n * rows), p, 1, n * rows, 0, 1, 0);
            check_truths(flux_ne(flux_to_dtype(b, FLUX_F32), 0), p, rows, n, n, 1, 0);
            const float *part = flux_data(flux_div(flux_sum(flux_where(b, 3.0, flux_mul(x, 0)), 0), flux_sum(b, 0)));     /* read for both */
            int64_t wrong = 0;
            for (int64_t r = 0, some; r < rows; r++) {
                some = memchr(p + r * n, 1, (size_t)n) != NULL;
                wrong += some ? !(fabs((double)part[r] - 3) < 1e-5) : !isnan(part[r]);
            }
            CHECK(wrong == 0);
        }
}

TEST(one_nan_is_found_in_every_place) {
    for (int64_t n = 1; n <= 70; n += n < 20 ? 1 : 7)
        for (int by = 0; by < 2; by++) FLUX_SCOPE {
            flux_tensor *at = flux_reshape(flux_arange(0, (double)(n * n), 1), n, n), *x = flux_randn(n, n);      /* row i has one at place i, or all but the last */
            flux_tensor *there = flux_lt(flux_abs(flux_sub(at, flux_reshape(flux_arange(0, (double)(n * n), (double)(n + 1)), 1, n))), 0.5);
            flux_tensor *y = flux_eval(flux_where(there, flux_full(by ? (double)-INFINITY : (double)NAN, n, n), x)), *all[] = { flux_max(y, 0), flux_min(y, 0), flux_argmax(y, 0), flux_argmin(y, 0) };
            flux_eval_all(4, all);
            const float *most = flux_data(all[0]), *least = flux_data(all[1]);
            const int64_t *first = (const int64_t *)flux_data(all[2]), *last = (const int64_t *)flux_data(all[3]);
            int64_t wrong = 0;
            for (int64_t i = 0; i < n; i++) {
                if (by) wrong += (n > 1 && !isfinite(most[i])) || least[i] > -INFINITY || last[i] != i || (n > 1 && first[i] == i);
                else wrong += !isnan(most[i]) || !isnan(least[i]) || first[i] != i || last[i] != i;
            }
            if (!CHECK(wrong == 0)) fprintf(stderr, "    %d x %d: %d rows are wrong\n", (int)n, (int)n, (int)wrong);
        }
}

TEST(empty_tensors) {
    flux_tensor *e = flux_zeros(0, 3);
    CHECK(flux_len(e) == 0);
    CHECK(flux_data(flux_eval(flux_add(e, 1))) != NULL || !flux_failed());
    CHECK(flux_item(flux_sum(e)) == 0);
    CHECK(flux_item(flux_prod(e)) == 1);
    CHECK_DATA(flux_sum(e, 0), ((double[]){ 0, 0, 0 }), 0);
    CHECK_DATA(flux_matmul(flux_zeros(2, 0), flux_zeros(0, 2)), ((double[]){ 0, 0, 0, 0 }), 0);
    CHECK_ERROR(flux_max(e), "nothing to choose");
    flux_tensor *deep = flux_eval(flux_zeros(3, 4, 0, 5)), *turned = flux_permute(deep, 1, 0, 2, 3);
    CHECK(flux_item(flux_sum(turned)) == 0 && flux_item(flux_prod(flux_slice(deep, 0, 1, 3))) == 1);
    CHECK_DATA(flux_sum(turned, 1, 2, 3), ((double[]){ 0, 0, 0, 0 }), 0);
    CHECK(flux_len(flux_eval(flux_add(flux_exp(turned), flux_sum(turned, 1)))) == 0);
}

/* Of no points nothing is read, however many results there are; the address checker looks on. */
TEST(reductions_over_nothing) {
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_I32, FLUX_BOOL };
    const flux_shape shapes[] = { FLUX_SHAPE(20000, 0), FLUX_SHAPE(0, 20000), FLUX_SHAPE(100, 0, 200), FLUX_SHAPE(70, 0, 3) };
    for (int i = 0; i < 20; i++) FLUX_SCOPE {
        const int d = i % 4 != 1;
        flux_tensor *x = flux_eval(flux_copy(flux_to_dtype(flux_rand_with(shapes[i % 4], FLUX_F32), types[i / 4]))), *y = flux_to_dtype(x, FLUX_F32);
        flux_tensor *of[] = { flux_sum(x, d), flux_any(x, d), flux_norm(y, d), flux_sum(flux_mul(y, flux_sum(y, d)), d), flux_prod(x, d), flux_all(x, d),
                              flux_exp(flux_sum(y, d)), flux_mean(y, d), flux_var(y, d), flux_logsumexp(y, d), flux_softmax(y, d), flux_grad(flux_gradient(flux_sum(flux_square(y)), y), y) };
        REQUIRE(flux_eval_all(12, of) == 0);
        for (int k = 0; k < 12; k++) {
            const int64_t n = flux_len(of[k]);
            const float *r = (const float *)flux_data(flux_to_dtype(of[k], FLUX_F32));
            const float want = k < 4 ? 0.0f : k < 7 ? 1.0f : k < 9 ? NAN : -INFINITY;
            int64_t wrong = n != (k > 9 ? 0 : i % 4 < 3 ? 20000 : 210);
            for (int64_t at = 0; at < n; at++) wrong += isnan(want) ? !isnan(r[at]) : r[at] > want || r[at] < want;
            if (!CHECK(wrong == 0)) fprintf(stderr, "    result %d over dim %d of shape %d as %s\n", k, d, i % 4, flux_dtype_name(types[i / 4]));
        }
        CHECK_ERROR(flux_min(x, d), "min: nothing to choose from");
        CHECK_ERROR(flux_argmax(x, d), "argmax: nothing to choose from");
    }
}

/* Nothing is read beside a number that is the first of two operands, for each column or for all there is; the address checker
   looks on. */
TEST(a_number_is_all_that_is_read_of_it) {
    ONLY_ON_CPU();
    float *one = (float *)malloc(sizeof *one), *three = (float *)malloc(3 * sizeof *three);
    REQUIRE(one && three);
    *one = 2, three[0] = 1, three[1] = 2, three[2] = 3;
    FLUX_SCOPE {
        flux_tensor *a = flux_borrow(one, 1), *x = flux_eval(flux_ones(5001, 3));
        CHECK(flux_item(flux_sum(flux_sub(a, flux_ones(30)))) == 30);
        CHECK(flux_item(flux_sum(flux_where(flux_gt(a, 1), flux_ones(29), 0))) == 29);
        CHECK_DATA(flux_sum(flux_mul(flux_borrow(three, 1, 3), x), 0), ((double[]){ 5001, 10002, 15003 }), 0);
    }
    free(one), free(three);
}

TEST(a_long_first_dimension) {
    ONLY_ON_CPU();
    const int64_t n = 9000000;
    flux_tensor *x = flux_eval(flux_full_with(FLUX_SHAPE(n + 8, 2), 1, FLUX_U8));
    CHECK(flux_item(flux_sum(flux_to_dtype(flux_eval(flux_mul(flux_slice(x, 0, 4, n + 4), 2)), FLUX_I32))) == 4.0 * (double)n);
}

TEST(half_formats_round_after_every_operation) {
    flux_tensor *a = flux_to_dtype(flux_full(1.0, 4), FLUX_BF16), *tiny = flux_to_dtype(flux_full(0.001953125, 4), FLUX_BF16);
    flux_tensor *fused = flux_add(flux_add(a, tiny), tiny), *step1 = flux_eval(flux_add(a, tiny)), *step2 = flux_eval(flux_add(step1, tiny));
    CHECK(flux_dtype_of(fused) == FLUX_BF16);
    CHECK_DATA(fused, ((double[]){ 1, 1, 1, 1 }), 0);
    CHECK_DATA(step2, ((double[]){ 1, 1, 1, 1 }), 0);
}

TEST(graphs_may_be_deep) {
    flux_tensor *x = flux_full(0.0, 3);
    FLUX_SCOPE {
        flux_tensor *y = x;
        for (int i = 0; i < 20000; i++) {
            y = flux_add(y, 1);
            if (i % 100 == 99) flux_eval(y);
        }
        CHECK(flux_item(flux_max(y)) == 20000);
    }
}

/* ---------------- long graphs: planned in time and memory in proportion to their length */

/* kB of memory that this process had at most; 0 where nobody knows */
static long most_memory(void) {
    long kb = 0;
    char line[200];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kb) == 1) break;
    if (f) fclose(f);
    return kb;
}
/* a device's kernels are started one by one, and checked memory is slow */
static int64_t length(void) { return test_device.backend ? 600 : FLUX__ASAN ? 40000 : 200000; }

TEST(a_long_running_sum) {
    const long before = most_memory();
    const int64_t n = length();
    flux_tensor *x = flux_eval(flux_ones(3)), *pending = flux_mul(x, 2), *y = x, *z = x;
    for (int64_t i = 0; i < n; i++) y = flux_add(y, x), z = flux_add(z, pending);
    flux_tensor *loss = flux_add(flux_sum(y), flux_sum(z));
    flux_grads *g = flux_gradient(loss, x);
    CHECK_DATA(flux_grad(g, x), ((double[]){ 3.0 * (double)n + 2, 3.0 * (double)n + 2, 3.0 * (double)n + 2 }), 0);
    CHECK_DATA(y, ((double[]){ (double)n + 1, (double)n + 1, (double)n + 1 }), 0);
    CHECK_DATA(z, ((double[]){ 2.0 * (double)n + 1, 2.0 * (double)n + 1, 2.0 * (double)n + 1 }), 0);
    CHECK(most_memory() - before < 1500000);
}

TEST(a_long_chain_of_elementwise_operations) {
    const int64_t n = length();
    flux_tensor *x = flux_eval(flux_ones(2)), *w = flux_eval(flux_full(-1.0, 2)), *y = x;
    volatile float want = 1;
    for (int64_t i = 0; i < n; i++) {
        const int what = (int)(i % 4);
        y = what == 0 ? flux_mul(y, w) : what == 1 ? flux_mul(y, 0.75) : what == 2 ? flux_add(y, 0.5) : flux_abs(y);
        want = what == 0 ? -want : what == 1 ? want * 0.75f : what == 2 ? want + 0.5f : fabsf(want);
    }
    flux_grads *g = flux_gradient(flux_sum(y), x, w);
    CHECK(flux_eval(flux_grad(g, w)) != NULL && flux_eval(flux_grad(g, x)) != NULL);
    CHECK_DATA(y, ((double[]){ (double)want, (double)want }), 0);
}

TEST(a_long_chain_of_products) {
    const long before = most_memory();
    const int64_t n = length();
    const float swap[] = { 0, 1, 1, 0 }, ab[] = { 3, 5 };
    flux_tensor *w = flux_eval(flux_from(swap, 2, 2)), *x = flux_eval(flux_from(ab, 2)), *y = x;
    for (int64_t i = 0; i < n; i++) y = flux_matmul(w, y);
    flux_grads *g = flux_gradient(flux_sum(flux_mul(y, x)), x);
    flux_tensor *both[] = { y, flux_grad(g, x) };
    CHECK(flux_eval_all(2, both) == 0);
    CHECK_DATA(y, ((double[]){ 3, 5 }), 0);
    CHECK_DATA(both[1], ((double[]){ 6, 10 }), 0);
    CHECK(most_memory() - before < 1500000);
}

TEST(a_long_graph_with_many_results) {
    enum { MOST = 20000 };
    const int n = test_device.backend ? 200 : MOST;
    flux_tensor **ys = (flux_tensor **)malloc(MOST * sizeof *ys), *x = flux_eval(flux_ones(2));
    REQUIRE(ys);
    for (int i = 0; i < n; i++) ys[i] = flux_add(i ? flux_mul(ys[i - 1], 0.5) : x, flux_tanh(flux_mul(x, 0.0)));
    CHECK(flux_eval_all(n, ys) == 0);
    CHECK_DATA(ys[n - 1], ((double[]){ 0, 0 }), 1e-6);
    free(ys);
}

TEST(a_gradient_by_many_tensors) {
    enum { MOST = 20000 };
    const int n = test_device.backend ? 40 : MOST;
    flux_tensor **xs = (flux_tensor **)malloc(MOST * sizeof *xs), *sum = flux_zeros(1);
    REQUIRE(xs);
    for (int i = 0; i < n; i++) xs[i] = flux_eval(flux_ones(1)), sum = flux_add(sum, flux_mul(xs[i], i));
    flux_grads *g = flux_gradient_with(flux_sum(sum), n, (const void *const *)(void *)xs);
    for (int i = 0; i < n; i++) xs[i] = flux_grad(g, xs[i]);
    REQUIRE(flux_eval_all(n, xs) == 0);
    for (int i = 0; i < n; i += 7) CHECK(flux_item(xs[i]) == i);
    CHECK(flux_grad(g, sum) == NULL);
    free(xs);
}

TEST(a_long_chain_is_drawn_and_released) {
    const int64_t n = test_device.backend ? 600 : 50000;
    char path[400];
    flux_tensor *y = NULL;
    snprintf(path, sizeof path, "%s/flux_long.dot", test_temp());
    FLUX_SCOPE {
        y = flux_ones(2);
        for (int64_t i = 0; i < n; i++) y = flux_sum(flux_add(flux_mul(y, 0.5), 0.25), 1);
        flux_retain(y);
        CHECK(flux_graph_dot(y, path) == 0);
    }
    CHECK_DATA(y, ((double[]){ 0.5, 0.5 }), 1e-6);
    flux_release(y);
    remove(path);
}

TEST(reductions_and_attention_over_nothing) {
    CHECK(flux_len(flux_eval(flux_sum(flux_zeros(20000, 0), 0))) == 0);
    CHECK(flux_item(flux_sum(flux_sum(flux_zeros(0, 20000), 0))) == 0);
    flux_layer *m = flux_multiheadattention(8, .nheads = 2, .scores = FLUX_OFF);
    flux_tensor *q = flux_rand(8, 5, 2), *none = flux_rand(8, 0, 2), *y = flux_call(m, q, none, none);
    CHECK(flux_item(flux_sum(flux_abs(y))) == 0);
    CHECK(flux_len(flux_eval(flux_call(m, none, none, none))) == 0);
}

/* What two operands of a kernel read is one arrow if it is one tensor, and two if it is not. */
TEST(a_picture_has_an_arrow_for_each_tensor) {
    char path[400], text[2000] = "";
    snprintf(path, sizeof path, "%s/flux_arrows.dot", test_temp());
    for (int others = 0; others < 2; others++) {
        flux_tensor *x = flux_eval(flux_randn(3, 3)), *z = others ? flux_eval(flux_randn(3, 3)) : x;
        REQUIRE(flux_graph_dot(flux_add(flux_mul(x, 2), flux_transpose(z)), path) == 0);
        FILE *f = fopen(path, "r");
        REQUIRE(f != NULL);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        int arrows = 0;
        for (const char *p = text; (p = strstr(p, "-> k0")) != NULL; p++) arrows++;
        CHECK(arrows == 1 + others);
    }
    remove(path);
}

/* A whole picture: the kernels in order, what each reads, and whose that is. */
TEST(a_picture_word_for_word) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("with FLUX_EAGER all is computed already");
    char path[400], text[2000] = "";
    snprintf(path, sizeof path, "%s/flux_words.dot", test_temp());
    flux_tensor *x = flux_eval(flux_rand(4, 3)), *w = flux_eval(flux_rand(5, 4));
    REQUIRE(flux_graph_dot(flux_div(flux_exp(x), flux_sum(flux_matmul(w, x))), path) == 0);
    FILE *f = fopen(path, "r");
    REQUIRE(f != NULL);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    CHECK_STR(text, "digraph schedule {\n"
                    "  node [shape=box fontname=monospace fontsize=10];\n"
                    "  edge [fontname=monospace fontsize=9];\n"
                    "  k0 [label=\"1. product 5x3 inner 4:\"];\n"
                    "  l1 [label=\"5x4 f32\" shape=ellipse];\n"
                    "  l1 -> k0;\n"
                    "  l0 [label=\"4x3 f32\" shape=ellipse];\n"
                    "  l0 -> k0;\n"
                    "  k1 [label=\"2. fused 5x3: sum\"];\n"
                    "  k0 -> k1 [label=\"5x3 f32\"];\n"
                    "  k2 [label=\"3. fused 4x3: exp div\"];\n"
                    "  l0 [label=\"4x3 f32\" shape=ellipse];\n"
                    "  l0 -> k2;\n"
                    "  k1 -> k2 [label=\"scalar f32\"];\n"
                    "}\n");
    remove(path);
}

/* A schedule that cannot be made leaves the file as it was. */
TEST(a_file_is_kept_where_no_schedule_can_be_drawn) {
    flux_device cpu = { 0, 0 };
    char path[400], word[8] = "";
    snprintf(path, sizeof path, "%s/flux_kept.dot", test_temp());
    FILE *f = fopen(path, "w");
    REQUIRE(f && fputs("before", f) >= 0 && fclose(f) == 0);
    flux_shape s = FLUX_SHAPE(3);
    flux_tensor *x = flux__done(flux__node_raw(FLUX__LEAF, FLUX_F32, &s, cpu, 0));
    CHECK_ERROR(flux_graph_dot(flux_add(x, 1), path), "a placeholder");
    f = fopen(path, "r");
    CHECK(f && fread(word, 1, 7, f) == 6 && !strcmp(word, "before"));
    if (f) fclose(f);
    remove(path);
}

/* What a large graph without gradients has computed on the way is freed on the way. */
TEST(a_long_chain_without_gradients_needs_little_memory) {
    const int64_t n = test_device.backend ? 600 : 20000;
    const int part = flux__part_nodes;
    if (test_device.backend) flux__part_nodes = 50;
    FLUX_INFER {
        flux_tensor *x = flux_eval(flux_ones(10000)), *y = x;
        const int64_t live = flux_mem_stats(test_device).live;
        const int hidden = flux__hide();
        for (int64_t i = 0; i < n; i++) y = i % 40 ? flux_add(y, x) : flux_sub(y, flux_max(y));
        y = flux__reveal(hidden, y);
        flux_mem_trim(test_device);
        CHECK(flux_eval(y) != NULL && flux_mem_stats(test_device).live < live + 60000);
        CHECK(flux_mem_stats(test_device).reserved < live + 2000000);
        CHECK_NEAR(flux_at(y, 17), (double)((n - 1) % 40), 0);
    }
    flux__part_nodes = part;
}

/* Whether a large graph's plan is kept is a question of memory: all of a thread's plans are bounded. */
TEST(plans_do_not_fill_the_memory) {
    ONLY_ON_CPU();
    for (int k = 0; k < 80; k++)
        FLUX_SCOPE {
            flux_tensor *w = flux_eval(flux_eye(2)), *y = flux_eval(flux_ones(2, 3 + k));
            for (int64_t i = 0; i < 4000; i++) y = flux_matmul(w, y);
            CHECK(flux_eval(y) != NULL);
        }
    const flux__plans *plans = flux__self()->plans;
    int64_t bytes = 0;
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (const flux__plan *plan = plans->bucket[i]; plan; plan = plan->next) bytes += plan->bytes;
    CHECK(bytes == plans->bytes && bytes <= FLUX__PLANS_MOST);
}

/* ---------------- patterns that the CPU runs as one (cpu/ready.h) */

/* In place of a pattern that runs whole kernels: counts how many it does, and how many it leaves to blocks. */
static const flux__pattern *watched;
static int whole_done, whole_left;
static bool watched_run(flux__run *run, flux__kernel *k) {
    const bool done = watched->run_all(run, k);
    done ? whole_done++ : whole_left++;
    return done;
}
static const flux__pattern watching = { "watched", NULL, NULL, NULL, watched_run };

/* Whether a kernel of this thread's plans has the pattern of that name; where it runs whole kernels, it is watched from then on. */
static bool have_pattern(const char *name) {
    const flux__plans *plans = flux__self()->plans;
    bool found = false;
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (const flux__plan *p = plans->bucket[i]; p; p = p->next)
            for (int k = 0; k < p->nkernel; k++) {
                flux__cpu *c = (flux__cpu *)p->kernel[k].ready;
                if (p->kernel[k].kind > FLUX__K_MATMUL || !c) continue;
                if (c->whole && strcmp(c->whole->name, name) == 0) found = true, watched = c->whole, c->whole = &watching;
                for (int v = 0; v < p->kernel[k].nvalue; v++)
                    if (c->pattern[v] && strcmp(c->pattern[v]->name, name) == 0)
                        /* and what it makes is not made by lines of their own */
                        found = strcmp(name, "rows") != 0 || (c->made[c->rows.d] && c->made[c->rows.e]);
            }
    return found;
}
static void forget_plans(void) {
    flux_eval(flux_add(flux_ones(3), 1));
    flux__plans_forget(flux__self()->plans, 0);
}

/* Whether a kernel of this thread's plans goes over rows of n points several times, and has them
   whole in its blocks (1) or not (0); -1: there is none. */
static int have_whole_rows(int64_t n) {
    const flux__plans *plans = flux__self()->plans;
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (const flux__plan *p = plans->bucket[i]; p; p = p->next)
            for (int k = 0; k < p->nkernel; k++) {
                const flux__cpu *c = (const flux__cpu *)p->kernel[k].ready;
                if (p->kernel[k].kind == FLUX__K_FUSED && c && c->nphase > 1 && c->inner == n)
                    return c->resident;
            }
    return -1;
}
/* Rows longer than a block are whole in a kernel that needs them again, so that it computes no
   function and converts no half format twice, and copies no short runs twice: not where they are
   very long, or few, so that threads share them, nor where runs of images are read in place again.
   The bits are those of one operation after another. */
TEST(long_rows_are_whole_where_they_are_needed_again) {
    ONLY_ON_CPU();
    static const struct { int64_t run, times, rows; bool function; int whole; flux_dtype dtype; } cases[] = {
        { 6000, 1, 9, true, 1, FLUX_F32 }, { 6000, 1, 9, false, 1, FLUX_F32 }, { 40000, 1, 9, false, 0, FLUX_F32 },
        { 196, 40, 16, false, 1, FLUX_F32 }, { 784, 12, 16, false, 0, FLUX_F32 }, { 3136, 3, 9, false, 0, FLUX_F32 },
        { 3136, 3, 9, true, 1, FLUX_F32 }, { 3136, 3, 9, false, 1, FLUX_F16 }, { 3136, 3, 9, false, 1, FLUX_BF16 },
        { 3136, 3, 9, false, 0, FLUX_F64 }, { 5000, 3, 9, false, 0, FLUX_F32 }, { 30001, 1, 8, true, 1, FLUX_F32 },
        { 30001, 1, 7, true, 0, FLUX_F32 }, { FLUX__LONG_ROW + 16, 1, 8, true, 0, FLUX_F32 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) FLUX_SCOPE {
        const int64_t run = cases[i].run, times = cases[i].times, rows = cases[i].rows;
        forget_plans();
        flux_tensor *x = flux_randn(run, rows, times);
        x = flux_eval(flux_to_dtype(x, cases[i].dtype));
        flux_tensor *a = flux_add(flux_mul(x, 1.5), 0.25);
        a = cases[i].function ? flux_tanh(a) : flux_relu(a);
        flux_tensor *y = flux_eval(flux_sub(a, flux_mul(flux_mean(a, 0, 2), x)));
        CHECK(have_whole_rows(run * times) == cases[i].whole);
        a = flux_eval(flux_add(flux_eval(flux_mul(x, 1.5)), 0.25));
        a = flux_eval(cases[i].function ? flux_tanh(a) : flux_relu(a));
        flux_tensor *z = flux_eval(flux_mul(flux_eval(flux_mean(a, 0, 2)), x));
        z = flux_eval(flux_sub(a, z));
        y = flux_eval(flux_to_dtype(y, FLUX_F32)), z = flux_eval(flux_to_dtype(z, FLUX_F32));
        REQUIRE(flux_floats(y) && flux_floats(z));
        CHECK(!memcmp(flux_floats(y), flux_floats(z), (size_t)(run * times * rows) * sizeof(float)));
    }
}

/* Simple operations of a kernel run as one, with numbers of rows and of columns from within the kernel and from memory: they give
   what each gives alone. */
static flux_tensor *at_once(flux_tensor *x, bool alone) { return alone ? flux_eval(x) : x; }
TEST(steps_are_what_their_lines_are) {
    ONLY_ON_CPU();
    const int64_t sizes[][3] = { { 64, 3, 1 }, { 65, 1, 1 }, { 3, 70, 1 }, { 127, 9, 2 }, { 768, 40, 1 }, { 5000, 3, 1 }, { 16, 300, 3 }, { 1, 200, 1 }, { 300, 300, 6 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 9; way++) FLUX_SCOPE {        /* float32; read from bf16; and all in bf16 */
            const int64_t n = sizes[i][0], m = sizes[i][1], l = sizes[i][2];
            const int over = way % 3, dtype = way < 3 ? FLUX_F32 : FLUX_BF16;      /* the dim that is reduced */
            const flux_dtype own = way < 6 ? FLUX_F32 : FLUX_BF16;
            flux_tensor *x = flux_randn(n, m, l);
            if (way > 6) {                /* some are infinite, NaN, close to overflow and denormal */
                x = flux_where(flux_gt(x, 2.3), HUGE_VAL, flux_where(flux_lt(x, -2.3), NAN, x));
                x = flux_where(flux_eq(x, HUGE_VAL), x, flux_where(flux_gt(x, 2.0), 3.38e38, flux_where(flux_lt(x, -2.0), 1e-41, x)));
            }
            x = flux_eval(flux_to_dtype(x, (flux_dtype)dtype));
            flux_tensor *row = flux_eval(flux_to_dtype(flux_randn(1, m, l), own)), *column = flux_eval(flux_to_dtype(flux_randn(n), own));
            flux_tensor *one = flux_eval(flux_to_dtype(flux_randn(1, 1, l), own)), *all[2][4];
            x = way < 3 || way > 5 ? x : flux_to_dtype(x, FLUX_F32);
            for (int alone = 0; alone < 2; alone++) {
                flux_tensor *mean = at_once(flux_mean(x, over), alone), *d = at_once(flux_sub(x, mean), alone);
                flux_tensor *y = at_once(flux_sub(row, at_once(flux_mul(d, row), alone)), alone);
                y = at_once(flux_relu(at_once(flux_add(at_once(flux_mul(column, y), alone), one), alone)), alone);
                flux_tensor *z = at_once(flux_max2(at_once(flux_div(at_once(flux_sub(mean, x), alone), 1.5), alone), mean), alone);
                z = at_once(flux_min2(at_once(flux_mul(z, z), alone), at_once(flux_sub(2, y), alone)), alone);
                all[alone][0] = at_once(flux_sum(at_once(flux_mul(y, at_once(flux_sub(mean, x), alone)), alone), over), alone);
                all[alone][1] = y;
                /* numbers that are rounded first, and have one operand */
                flux_tensor *number = at_once(flux_relu(at_once(flux_full_with(FLUX_SHAPE(n, m, l), 0.3, own), alone)), alone);
                all[alone][2] = at_once(flux_mul(number, at_once(flux_max2(z, at_once(flux_full_with(FLUX_SHAPE(n, m, l), 0.7, own), alone)), alone)), alone);
                all[alone][3] = at_once(flux_sum(at_once(flux_mul(at_once(flux_mul(at_once(flux_sub(x, row), alone), row), alone), x), alone), 1), alone);
            }
            REQUIRE(flux_eval_all(4, all[0]) == 0 && flux_eval_all(4, all[1]) == 0);
            for (int k = 0; k < 4; k++)
                if (!CHECK(!memcmp(flux_data(all[0][k]), flux_data(all[1][k]), (size_t)flux_len(all[0][k]) * flux_dtype_size(flux_dtype_of(all[0][k])))))
                    fprintf(stderr, "    %lld x %lld x %lld, way %d: result %d\n", (long long)n, (long long)m, (long long)l, way, k);
        }
}

TEST(steps_that_would_overwrite_what_they_read) {
    ONLY_ON_CPU();
    static float memory[100];
    flux__chain_run r;
    memset(&r, 0, sizeof r);
    r.rows = 10, r.columns = 2, r.steps = 2, r.x = memory, r.step[0].at = memory + 40;
    for (int at = 0; at < 80; at++) {
        r.y = memory + at, r.step[1].at = NULL;
        CHECK(flux__steps_overlap(&r) == ((at > 0 && at < 20) || (at > 20 && at < 60 && at != 40)));
        CHECK(r.step[1].at == r.x);       /* a step of one operand */
    }
}

static flux_tensor *pattern_x(void) { return flux_reshape(flux_sin(flux_arange(0, 6 * 6 * 4 * 5, 1)), 6, 6, 4, 5); }
static void use_count(void) { flux_eval(flux_sum(flux_gt(flux_eval(pattern_x()), 0.5), 0)); }
static void use_rows(void) { flux_eval(flux_softmax(flux_eval(flux_reshape(pattern_x(), 24, 30)))); }
static void use_adam(void) {
    flux_layer *m = flux_dense(30, 5);
    flux_state *opt = flux_setup(flux_adam(1e-3), m);
    flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, flux_reshape(pattern_x(), 30, 24)))), m));
}
static void use_windows(void) { flux_eval(flux_maxpool(flux_eval(pattern_x()), FLUX_SHAPE(2, 2))); }
static void use_gradient(void) {
    flux_tensor *x = flux_eval(pattern_x());
    flux_tensor *y = flux_matmul(flux_ones(7, 36), flux_reshape(flux_maxpool(x, FLUX_SHAPE(2, 2)), 36, 5));
    flux_eval(flux_grad(flux_gradient(flux_sum(y), x), x));      /* which needs no maximum, but its place */
}
static void use_chain(void) { flux_eval(flux_relu(flux_add(flux_matmul(flux_ones(60, 7), flux_ones(7, 5)), 1))); }
static void use_steps(void) { flux_eval(flux_relu(flux_add(flux_eval(pattern_x()), 1))); }
static void use_copy(void) { flux_eval(flux_copy(flux_permute(flux_eval(pattern_x()), 1, 0, 2, 3))); }

TEST(patterns) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    static const struct { const char *name; void (*use)(void); } patterns[] = {
        { "count", use_count }, { "rows", use_rows }, { "adam", use_adam }, { "chain", use_chain },
        { "steps", use_steps },
        { "windows", use_windows }, { "windows", use_gradient }, { "copy", use_copy }
    };
    CHECK(sizeof patterns / sizeof *patterns == sizeof flux__patterns / sizeof *flux__patterns + 1);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        forget_plans();
        CHECK(!have_pattern(patterns[i].name));
        FLUX_SCOPE { patterns[i].use(); }
        watched = NULL, whole_done = whole_left = 0;
        if (!CHECK(have_pattern(patterns[i].name))) fprintf(stderr, "  no kernel has \"%s\"\n", patterns[i].name);
        if (!watched) continue;
        FLUX_SCOPE { patterns[i].use(); }                /* the same plan, whose kernels the pattern does */
        if (!CHECK(whole_done > 0 && whole_left == 0)) fprintf(stderr, "  \"%s\" does %d kernels and leaves %d\n", patterns[i].name, whole_done, whole_left);
    }
}

/* ---------------- Adam's step, whose lines run as one */

enum { PLAIN_STEP, DECAYED, SCALED, OTHER_WEIGHT, KEPT_STEP, KEPT_DECAY, STEP_KINDS };
typedef struct adam_step { flux_tensor *g, *m, *v, *w, *other; int kind; bool swapped; } adam_step;

static flux_tensor *adam_line(flux_tensor *x, bool at_once) { return at_once ? x : flux_eval(x); }

/* m', v', w' and a line between of a step, whose lines are computed all at once or each by itself. AdamW's decays w; the step is
   multiplied, but not decayed; another tensor than w decays; or the line between is kept: these do not end with w'. */
static void adam_lines(const adam_step *s, bool at_once, flux_tensor **y) {
    flux_tensor *d, *scale = flux__number(0.7);
    y[0] = adam_line(flux__lerp(s->m, s->g, flux__number(0.1)), at_once);
    y[1] = adam_line(flux__lerp(s->v, adam_line(flux_square(s->g), at_once), flux__number(0.01)), at_once);
    d = adam_line(flux_add(adam_line(flux_sqrt(y[1]), at_once), flux__number(1e-3)), at_once);
    y[3] = d = adam_line(flux_div(y[0], d), at_once);
    if (s->kind != PLAIN_STEP) d = adam_line(s->swapped ? flux_mul(scale, d) : flux_mul(d, scale), at_once);
    if (s->kind == KEPT_STEP) y[3] = d;
    if (s->kind != PLAIN_STEP && s->kind != SCALED) d = adam_line(flux__fma(s->kind == OTHER_WEIGHT ? s->other : s->w, flux__number(0.05), d), at_once);
    if (s->kind == KEPT_DECAY) y[3] = d;
    y[2] = adam_line(flux__fma(d, flux__number(-0.3), s->w), at_once);
}

/* Whether the last plan's kernel runs a step up to w', with its decay. */
static bool adam_decays(bool *up_to_w) {
    const flux__plans *plans = flux__self()->plans;
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (const flux__plan *p = plans->bucket[i]; p; p = p->next)
            for (int k = 0; k < p->nkernel; k++) {
                const flux__cpu *c = (const flux__cpu *)p->kernel[k].ready;
                if (p->kernel[k].kind > FLUX__K_MATMUL || !c || c->adam.last < 0) continue;
                *up_to_w = c->adam.w >= 0;
                return c->adam.by[6] >= 0;
            }
    return *up_to_w = false;
}

TEST(steps_of_adam_have_the_bits_of_their_lines) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    static const int64_t sizes[] = { 1, 15, 16, 37, 5000 };
    for (int i = 0; i < 5 * STEP_KINDS * 2; i++) FLUX_SCOPE FLUX_NOGRAD {
        const int64_t n = sizes[i % 5];
        adam_step s = { NULL, NULL, NULL, NULL, NULL, i / 5 % STEP_KINDS, i / 5 / STEP_KINDS == 1 };
        s.g = flux_eval(flux_randn(n)), s.m = flux_eval(flux_randn(n)), s.v = flux_eval(flux_rand(n));
        s.w = flux_eval(flux_randn(n)), s.other = flux_eval(flux_randn(n));
        flux_tensor *one[4], *all[4];
        adam_lines(&s, false, one);
        forget_plans();
        adam_lines(&s, true, all);
        flux_eval_all(s.kind >= KEPT_STEP ? 4 : 3, all);
        bool up_to_w, decays = adam_decays(&up_to_w);
        CHECK(decays == (s.kind == DECAYED) && up_to_w == (s.kind <= DECAYED));
        for (int k = 0; k < 3; k++)
            if (!CHECK(!memcmp(flux_floats(one[k]), flux_floats(all[k]), (size_t)n * sizeof(float)))) fprintf(stderr, "    kind %d, %d elements, result %d\n", s.kind, (int)n, k);
    }
}

/* The gradient of a transposed weight is a product in the weight's own order, not the transpose of one, also where others are added. */
TEST(gradients_of_transposed_weights_are_not_transposed) {
    flux_tensor *e = flux_eval(flux_randn(5, 7)), *h = flux_eval(flux_randn(5, 3)), *up = flux_eval(flux_randn(7, 3));
    flux_tensor *y = flux_matmul(flux_transpose(e), h), *loss = flux_sum(flux_mul(y, up)), *d;
    d = flux_grad(flux_gradient(loss, e), e);
    if (!flux__eager()) CHECK(d->op == FLUX__MATMUL);
    CHECK(flux_dim(d, 0) == 5 && flux_item(flux_max(flux_abs(flux_sub(d, flux_matmul(h, flux_transpose(up)))))) < 1e-5);
    loss = flux_add(loss, flux_sum(flux_square(flux_gather(e, 1, flux_to_dtype(flux_arange(0, 3, 1), FLUX_I64)))));
    d = flux_grad(flux_gradient(loss, e), e);
    flux_tensor *first = flux_mul(flux_slice(e, 1, 0, 3), 2), *product = flux_matmul(h, flux_transpose(up));
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_slice(d, 1, 0, 3), flux_add(first, flux_slice(product, 1, 0, 3)))))) < 1e-5);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_slice(d, 1, 3, 7), flux_slice(product, 1, 3, 7))))) < 1e-5);
}

/* ---------------- random chains of operations behind a product (cpu/chains.h) */

static uint64_t chain_state = 1;
static int64_t chain_dice(int64_t n) {
    chain_state = chain_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((chain_state >> 33) % (uint64_t)n);
}
typedef struct chain_step { int op; bool first; flux_tensor *other; } chain_step;
typedef struct chain { int product, steps, kept; flux_tensor *a, *b; flux_dtype dtype; chain_step step[10]; } chain;

static flux_tensor *chain_product(const chain *c) {
    if (c->product < 2) return flux_matmul(c->a, c->b);
    return flux_conv(c->a, c->b, .pad = FLUX_SHAPE(c->b->dim[0] / 2, c->b->dim[0] / 2));
}
/* Random numbers of this shape, of which each matrix lies transposed in memory as often as not, if `transposes`. */
static flux_tensor *chain_matrix(flux_shape s, bool transposes) {
    flux_shape stored = s;
    if (!transposes || chain_dice(2)) return flux_eval(flux_randn_with(s, FLUX_F32));
    stored.dim[0] = s.dim[1], stored.dim[1] = s.dim[0];
    flux_tensor *x = flux_eval(flux_randn_with(stored, FLUX_F32));
    return s.ndim == 2 ? flux_permute(x, 1, 0) : flux_permute(x, 1, 0, 2);
}
/* The operands of a product: of two matrices, of batches of such, of a 1 x 1 or 3 x 3 convolution. A large k and few columns make inner products, whose last rows may be less than a vector. */
static void chain_operands(chain *c) {
    static const int64_t columns[] = { 1, 2, 3, 12, 13, 64, 100 };
    static const int products[] = { 0, 0, 0, 1, 1, 1, 2, 3 };
    const int64_t m = 40 + chain_dice(chain_dice(3) ? 40 : 1000), w = 29 + chain_dice(9), batch = 1 + chain_dice(3);
    c->product = products[chain_dice(8)];
    const int kind = c->product < 2 ? c->product : 2;
    const int64_t size = c->product == 3 ? 3 : 1, n = columns[chain_dice(7)] * (kind < 2 ? 1 : 2),
                  k = 1 + chain_dice(n < 4 ? 400 : 40);
    const flux_shape a[] = { { 2, { m, k } }, { 3, { m, k, batch } }, { 4, { w, w + 1, k % 11 + 1, batch } } },
                     b[] = { { 2, { k, n } }, { 3, { k, n, batch } }, { 4, { size, size, k % 11 + 1, n } } };
    c->a = chain_matrix(a[kind], kind < 2), c->b = chain_matrix(b[kind], kind < 2);
    if (kind < 2 && !chain_dice(3)) c->a = flux_eval(flux_to_dtype(c->a, FLUX_BF16)), c->b = flux_eval(flux_to_dtype(c->b, FLUX_BF16));
}
/* A number, or a tensor that has each of these dims or 1; now and then with NaN and Inf, in a half format, a view of a larger one, or
   permuted. */
static flux_tensor *chain_other(flux_shape s) {
    if (!chain_dice(5)) return flux_scalar(0.5 + (double)chain_dice(5));
    flux_shape some = s, order = { s.ndim, { 0 } };
    const int64_t kind = chain_dice(4);
    for (int d = 0; d < s.ndim; d++)
        if (kind == 0 ? d > 0 : kind == 1 ? d == 0 : kind == 2 && chain_dice(2)) some.dim[d] = 1;
    for (int d = 0; d < s.ndim; d++) order.dim[d] = s.ndim - 1 - d;
    flux_tensor *x = flux_randn_with(some, FLUX_F32);
    if (!chain_dice(4)) x = flux_log(x);
    if (!chain_dice(3)) x = flux_to_dtype(x, chain_dice(2) ? FLUX_BF16 : FLUX_F16);
    if (!chain_dice(4)) x = flux_permute_with(flux_eval(flux_copy(flux_permute_with(x, order))), order);
    if (!chain_dice(4)) x = flux_slice(flux_eval(flux_cat((int)chain_dice(s.ndim), x, x)), 0, 0, some.dim[0]);
    for (int d = 1; d < s.ndim; d++)
        if (x->dim[d] != some.dim[d]) x = flux_slice(x, d, 0, some.dim[d]);
    return flux_eval(x);
}
static flux_tensor *chain_apply(flux_tensor *y, const chain_step *s) {
    flux_tensor *a = s->first ? s->other : y, *b = s->first ? y : s->other;
    return flux__arity[s->op] == 1 ? flux__elementwise(s->op, y, NULL, NULL) : flux__elementwise(s->op, a, b, NULL);
}
/* The whole chain at once, or each of its operations by itself; with the value before step `kept`, if there is such a step. */
static flux_tensor *chain_run(const chain *c, bool alone, flux_tensor **kept) {
    flux_tensor *y = chain_product(c);
    *kept = NULL;
    if (alone) y = flux_eval(y);
    if (flux_dtype_of(y) != FLUX_F32) y = flux_to_dtype(y, FLUX_F32);
    for (int i = 0; i < c->steps; i++) {
        if (i == c->kept) *kept = y;
        y = alone ? flux_eval(chain_apply(flux_eval(y), &c->step[i])) : chain_apply(y, &c->step[i]);
    }
    y = flux_to_dtype(y, c->dtype);
    flux_tensor *both[] = { y, *kept };
    return flux_eval_all(*kept ? 2 : 1, both) == 0 ? y : NULL;
}
static bool chain_same(flux_tensor *x, flux_tensor *y) {
    const double *a = (const double *)flux_data(flux_to_dtype(x, FLUX_F64)), *b = (const double *)flux_data(flux_to_dtype(y, FLUX_F64));
    for (int64_t i = 0; i < flux_len(x) && a && b; i++)
        if (memcmp(&a[i], &b[i], 8) && (a[i] == a[i] || b[i] == b[i])) return false;
    return a && b && flux_len(x) == flux_len(y);
}
TEST(chains_have_the_bits_of_their_operations) {
    ONLY_ON_CPU();
    static const int ops[] = { FLUX__OP_ADD, FLUX__OP_SUB, FLUX__OP_MUL, FLUX__OP_DIV, FLUX__OP_MAX2, FLUX__OP_MIN2, FLUX__OP_RELU,
                               FLUX__OP_RELU_BACKWARD, FLUX__OP_ADD, FLUX__OP_SUB, FLUX__OP_MUL, FLUX__OP_RELU, FLUX__OP_SQUARE };
    int chains = 0;
    const int all = 900, was = flux__simd_known, best = flux__simd_detect();
    for (int n = 0; n < all; n++) FLUX_SCOPE {
        chain c;
        memset((void *)&c, 0, sizeof c);
        chain_operands(&c);
        const flux_shape s = flux_shape_of(chain_product(&c));
        c.dtype = chain_dice(4) ? FLUX_F32 : chain_dice(2) ? FLUX_BF16 : FLUX_F16;
        c.steps = (int)chain_dice(6) + (chain_dice(10) ? 0 : 4), c.kept = chain_dice(3) ? -1 : (int)chain_dice(4);
        for (int i = 0; i < c.steps; i++) {
            c.step[i].op = ops[chain_dice(chain_dice(4) ? 12 : 13)], c.step[i].first = chain_dice(2);
            if (flux__arity[c.step[i].op] == 2) c.step[i].other = chain_other(s);
        }
        forget_plans();
        flux__atomic_store32(&flux__simd_known, n % (best + 1) + 1);
        flux_tensor *kept, *want_kept, *shared_kept, *y = chain_run(&c, false, &kept);
        chains += have_pattern("chain");
        flux_tensor *want = chain_run(&c, true, &want_kept);
        flux_threads(3);
        flux_tensor *shared = chain_run(&c, false, &shared_kept);
        flux_threads(1);
        if (!CHECK(chain_same(y, want) && chain_same(shared, want)) ||
            (kept && !CHECK(chain_same(kept, want_kept) && chain_same(shared_kept, want_kept))))
            fprintf(stderr, "  chain %d: product %d, %d operations, to %s\n", n, c.product, c.steps, flux_dtype_name(c.dtype));
    }
    flux__atomic_store32(&flux__simd_known, was);
    forget_plans();
    CHECK(chains > all / 4);
}
/* Operands of half formats, with an element for each of the result's: none, some or all of them; columns that fit together into the
   memory for one, that do not, that are longer than it, and more columns than are taken at a time. */
TEST(chains_of_half_operands) {
    ONLY_ON_CPU();
    static const int64_t rows[] = { 50, 700, 2100 };
    static const int ops[] = { FLUX__OP_MUL, FLUX__OP_ADD, FLUX__OP_SUB };
    for (int of = 0; of < 24; of++) FLUX_SCOPE {
        const flux_shape s = FLUX_SHAPE(rows[of / 8], 75);
        chain c;
        memset((void *)&c, 0, sizeof c);
        c.a = flux_eval(flux_randn(s.dim[0], 9)), c.b = flux_eval(flux_randn(9, s.dim[1]));
        c.steps = 3, c.kept = -1, c.dtype = of % 2 ? FLUX_BF16 : FLUX_F16;
        for (int i = 0; i < 3; i++) {
            const flux_dtype t = of >> i & 1 ? of & 2 ? FLUX_BF16 : FLUX_F16 : FLUX_F32;
            c.step[i].op = ops[i], c.step[i].first = of % 3 == i;
            c.step[i].other = flux_eval(flux_to_dtype(flux_randn_with(s, FLUX_F32), t));
        }
        forget_plans();
        flux_tensor *kept, *y = chain_run(&c, false, &kept);
        CHECK(flux__eager() || have_pattern("chain"));
        CHECK(chain_same(y, chain_run(&c, true, &kept)));
    }
    forget_plans();
}

#ifndef _WIN32
#include <unistd.h>
extern int dup(int fd), dup2(int from, int to), fileno(FILE *f);
/* What FLUX_LOG=schedule prints of a plan: its kernels in order, each with its kind, size, operations and what it stores. */
static flux_tensor *planned_x, *planned_w, *planned_i;
static flux_tensor *plan_of(int k) {
    flux_tensor *x = planned_x, *w = planned_w;
    switch (k) {
    case 0: return flux_add(flux_mul(x, 2), 1);
    case 1: return flux_relu(flux_add(flux_matmul(w, x), flux_eval(flux_ones(5))));
    case 2: return flux_sum(flux_exp(x), 0);
    case 3: return flux_prod(x);
    case 4: return flux_max(x, 1);
    case 5: return flux_min(x, 0);
    case 6: return flux_argmax(x, 0);
    case 7: return flux_gather(x, 0, planned_i);
    case 8: return flux_cat(0, x, x);
    case 9: return flux_rand(7);
    case 10: return flux_softmax(x);
    case 11: return flux_pad(flux_exp(x), 0, 1, 1);
    case 12: return flux_copy(flux_transpose(x));
    case 13: return flux_div(flux_exp(x), flux_sum(flux_matmul(w, x)));
    default: return flux_neg(flux_to_dtype(flux_tanh(x), FLUX_F16));
    }
}
TEST(a_schedule_is_printed) {
    ONLY_ON_CPU();
    if (flux__eager()) SKIP("no plans of more than one operation with FLUX_EAGER");
    static const char *const plans[] = {
        "2 operations in 1 kernels\n   1. fused 4x3: mul add->[4x3 f32]\n",
        "3 operations in 1 kernels\n   1. product 5x3 inner 4: add relu->[5x3 f32]\n",
        "2 operations in 1 kernels\n   1. fused 4x3, reduced dims 0x1: exp sum->[1x3 f32]\n",
        "1 operations in 1 kernels\n   1. fused 4x3, reduced dims 0x3: prod->[scalar f32]\n",
        "1 operations in 1 kernels\n   1. fused 4x3, reduced dims 0x2: max->[4x1 f32]\n",
        "1 operations in 1 kernels\n   1. fused 4x3, reduced dims 0x1: min->[1x3 f32]\n",
        "1 operations in 1 kernels\n   1. fused 4x3, reduced dims 0x1: arg->[1x3 i64]\n",
        "2 operations in 2 kernels\n   1. fused 2-element:->[2-element i64]\n   2. gather 2x3:\n",
        "1 operations in 1 kernels\n   1. cat 8x3:\n",
        "1 operations in 1 kernels\n   1. fused 7-element: random->[7-element f32]\n",
        "5 operations in 1 kernels\n   1. fused 4x3, reduced dims 0x1: max submax exp sum div->[4x3 f32]\n",
        "2 operations in 2 kernels\n   1. fused 4x3: exp->[4x3 f32]\n   2. spread 6x3:\n",
        "1 operations in 1 kernels\n   1. fused 3x4:->[3x4 f32]\n",
        "4 operations in 3 kernels\n   1. product 5x3 inner 4:->[5x3 f32]\n   2. fused 5x3, reduced dims 0x3: sum->[scalar f32]\n   3. fused 4x3: exp div->[4x3 f32]\n",
        "3 operations in 1 kernels\n   1. fused 4x3: tanh neg->[4x3 f16]\n",
        "2 operations in 1 kernels\n   1. fused 4x3: exp->[4x3 f32] neg->[4x3 f32]\n",        /* two are wanted */
        "1 operations in 1 kernels\n   1. fused 4x3: tanh->[4x3 f32, in place]\n"                /* an update */
    };
    const int n = (int)(sizeof plans / sizeof *plans);
    planned_x = flux_eval(flux_rand(4, 3)), planned_w = flux_eval(flux_rand(5, 4)), planned_i = flux_eval(flux_to_dtype(flux_values(2, 0), FLUX_I32));
    for (int k = 0; k < n; k++) FLUX_SCOPE {
        char want[400], got[1000];
        flux_tensor *both[2] = { flux_exp(planned_x), NULL }, *old = flux_eval(flux_rand(4, 3)), *fresh = flux_tanh(old);
        both[1] = flux_neg(both[0]);
        int owners = 1;
        flux_tensor *y = k < n - 2 ? plan_of(k) : NULL;
        FILE *file = tmpfile();
        REQUIRE(file != NULL);
        forget_plans();
        fflush(stderr);
        const int real = dup(2);
        dup2(fileno(file), 2);
        flux__set.schedules = 1;
        if (k < n - 2) flux_eval(y);
        else if (k == n - 2) flux_eval_all(2, both);
        else flux__update_eval(NULL, 1, &old, &fresh, &owners, 0, NULL);
        flux__set.schedules = 0;
        fflush(stderr);
        dup2(real, 2), close(real);
        rewind(file);
        got[fread(got, 1, sizeof got - 1, file)] = 0;
        fclose(file);
        snprintf(want, sizeof want, "flux: schedule of %s", plans[k]);
        CHECK_STR(got, want);
    }
}
#endif

/* What looks like the gradient of a pooling, but has NaN where that has zeros. */
TEST(a_pattern_asks_for_its_numbers) {
    FLUX_SCOPE {
        flux_tensor *x = flux_eval(flux_reshape(flux_sin(flux_arange(0, 40, 1)), 4, 10)), *g = flux_eval(flux_ones(1, 10));
        for (int nan = 0; nan < 2; nan++) {
            flux_tensor *y = flux_where(flux_eq(flux__iota_over(x, 1), flux__argreduce_node(x, 1, 1, 2)), g, nan ? (double)NAN : 0.0);
            const float *at = (const float *)flux_data(flux_cpu(y)), *of = (const float *)flux_data(flux_cpu(x));
            for (int i = 0; i < 40; i++) {
                bool most = true;
                for (int j = i / 4 * 4; j < i / 4 * 4 + 4; j++) most = most && of[j] <= of[i];
                CHECK(most ? at[i] == 1 : nan ? isnan(at[i]) : at[i] == 0);
            }
        }
    }
}

/* ---- memory that runs out while plans are made and run: every cast, and an operation of each kind, in a shape of its own, so
   that no plan is there */

static flux_tensor *of_kind(int kind, flux_tensor *x, flux_tensor *w) {
    flux_tensor *i = flux_argsort(x, 1);
    switch (kind) {
    case 0: return flux_sum(flux_exp(x));
    case 1: return flux_softmax(x);
    case 2: return flux_argmax(x, 1);
    case 3: return flux_tanh(flux_add(flux_matmul(w, x), 1));
    case 4: return flux_matmul(flux_to_dtype(w, FLUX_BF16), flux_to_dtype(x, FLUX_BF16));
    case 5: return flux_conv(flux_reshape(x, flux_dim(x, 0), 1, flux_dim(x, 1), 1), flux_ones(3, 1, flux_dim(x, 1), 2));
    case 6: return flux_sum(flux_cumsum(x, 0));
    case 7: return flux_gather(x, 1, i);
    case 8: return flux_vcat(flux_flip(x, 0), x);
    case 9: return flux_var(x, 0);
    case 10: return flux_sort(x, 1);
    case 11: return flux_nth(flux_dot_product_attention(x, x, x), 0);
    case 12: return flux_randn(flux_dim(x, 0), 3);
    default: return NULL;
    }
}
static bool cast_from_to(int from, int to, int64_t n) {
    flux_tensor *x = flux_eval(flux_to_dtype(flux_eval(flux_rand(n, 3)), (flux_dtype)from));
    return flux_eval(flux_eq(flux_to_dtype(x, (flux_dtype)to), flux_eval(flux_to_dtype(x, (flux_dtype)to)))) != NULL;
}
static bool planned(int kind, int64_t n) {
    return flux_eval(of_kind(kind, flux_eval(flux_rand(n, 5)), flux_eval(flux_rand(4, n)))) != NULL;
}
TEST(plans_without_memory) {
    ONLY_ON_CPU();
    for (int from = 0; from < FLUX_NUM_DTYPES; from++)
        for (int to = 0; to < FLUX_NUM_DTYPES; to++) SCARCE(cast_from_to(from, to, 100 + 10 * from + to), 3, 20);
    for (int kind = 0; kind <= 12; kind++) SCARCE(planned(kind, 20 + kind), 3, 20);
}
TEST_MAIN()
