/* Several threads at once on the same tensors, model, device and settings, each doing random valid calls from its own seed.
   What each gets must be, bit for bit, what it gets alone; and under a thread sanitizer nothing may race.
   RACES=n: so many rounds; the first one's seed is SEED. */
#include "test.h"
#ifndef _WIN32
#include <pthread.h>

enum { THREADS = 4, STEPS = 24, SHARED = 9, PENDING = 10 };

/* Made anew for each round, so that threads meet at the first look. */
typedef struct world { flux_tensor *x[SHARED], *pending[PENDING]; flux_layer *m; const char *folder; } world;
typedef struct actor {
    const world *w;
    uint64_t seed, sum[STEPS];
    int number, n;
    char error[300];
    pthread_t thread;
} actor;

static uint64_t next(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}
static uint64_t hash(uint64_t h, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return h;
}
static uint64_t look(uint64_t h, flux_tensor *y) {
    static const size_t sizes[] = { 4, 8, 2, 2, 4, 8, 1, 1 };
    const void *data = y ? flux_data(y) : NULL;
    return data ? hash(h, data, (size_t)flux_len(y) * sizes[flux_dtype_of(y)]) : 0;
}

/* Tensors that are recorded and not computed: each on others, so that threads meet in the middle of a graph. */
static void pend(world *w) {
    flux_tensor **p = w->pending;
    p[0] = flux_softmax(flux_matmul(w->x[0], w->x[1]), 0);
    p[1] = flux_tanh(p[0]);
    p[2] = flux_transpose(flux_mul(p[0], 0.5));
    p[3] = flux_full(0.25, 7, 9);                           /* a number, read in place by some and as a tensor by others */
    p[4] = flux_sum(flux_mul(p[1], p[3]), 1);
    p[5] = flux_to_dtype(flux_exp(p[1]), FLUX_F16);
    p[6] = flux_matmul(p[2], p[3]);
    p[7] = flux_cat(0, p[1], p[3]);
    FLUX_NOGRAD { p[8] = flux_square(flux_add(p[1], 1)), p[9] = flux_mean(flux_mul(p[8], p[8])); }
}

static world make(uint64_t seed) {
    world w;
    flux_seed(seed);
    flux_default_device(test_device);
    flux_tensor *a = flux_randn(7, 12), *b = flux_rand(12, 9);
    w.x[0] = flux_eval(a), w.x[1] = flux_eval(b);
    w.x[2] = flux_transpose(w.x[0]);                        /* views: their elements in order are made by a look */
    w.x[3] = flux_slice_step(w.x[1], 0, 1, 12, 2);
    w.x[4] = flux_eval(flux_to_dtype(a, FLUX_BF16));
    w.x[5] = flux_eval(flux_gt(b, 0.5));
    w.x[6] = flux_eval(flux_sum(a));
    w.x[7] = flux_eval(flux_argmax(a, 0));
    w.x[8] = flux_eval(flux_randn(6, 5));
    w.m = flux_chain(flux_dense(6, 8, flux_tanh), flux_batchnorm(8), flux_dense(8, 3));
    flux_testmode(w.m, true);
    static const char *const names[] = { "layers.0.weight", "layers.0.bias", "layers.1.beta", "layers.1.gamma", "layers.1.mean", "layers.1.var",
                                         "layers.2.weight", "layers.2.bias" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) CHECK(flux_eval(flux_param(w.m, names[i])) != NULL);
    w.folder = test_temp();
    pend(&w);
    return w;
}

/* ---------------- what a thread may do */

static uint64_t compute(const world *w, uint64_t *s) {
    flux_tensor *x = w->x[next(s) % 4];
    switch (next(s) % 6) {
    case 0: return look(1, flux_softmax(flux_mul(x, 2), 0));
    case 1: return look(2, flux_matmul(w->x[0], w->x[1]));
    case 2: return look(3, flux_sum(flux_exp(x), 1));
    case 3: return look(4, flux_matmul(x, flux_transpose(x)));
    case 4: return look(5, flux_add(flux_to_dtype(w->x[4], FLUX_F32), w->x[0]));
    default: return look(6, flux_mul(flux_randn(7, 12), w->x[0]));
    }
}
/* what several threads make of the same pending tensors */
static uint64_t beside_others(const world *w, uint64_t *s) {
    flux_tensor *p = w->pending[next(s) % PENDING], *q = w->pending[next(s) % PENDING];
    switch (next(s) % 5) {
    case 0: return look(29, p);
    case 1: return look(31, flux_add(flux_sum(p), flux_max(q)));
    case 2: return look(37, flux_softmax(flux_to_dtype(p, FLUX_F32), 0));
    case 3: {
        flux_grads *g = flux_gradient(flux_sum(flux_mul(flux_sum(flux_to_dtype(p, FLUX_F32)), flux_mul(w->pending[1], w->x[6]))), w->x[0], w->x[6]);
        return look(look(41, flux_grad(g, w->x[0])), flux_grad(g, w->x[6]));
    }
    default: {
        flux_tensor *both[] = { p, q };
        return flux_eval_all(2, both) == 0 ? look(look(43, q), p) : 0;
    }
    }
}
static uint64_t gradients(const world *w, uint64_t *s) {
    flux_tensor *x = flux_mul(w->x[8], (double)(next(s) % 5 + 1)), *loss = flux_mean(flux_square(flux_call(w->m, x)));
    flux_tensor *weight = flux_param(w->m, "layers.0.weight");
    flux_grads *g = flux_gradient(loss, weight, w->x[8]);
    return look(look(7, flux_grad(g, weight)), flux_grad(g, w->x[8]));
}
static uint64_t training(const world *w, uint64_t *s) {
    flux_layer *m = flux_chain(flux_dense(6, 4, flux_relu), flux_dropout(0.3), flux_dense(4, 2));
    flux_state *opt = flux_setup(flux_adam(0.01), m);
    uint64_t h = next(s);
    for (int i = 0; i < 2; i++)
        FLUX_SCOPE { flux_update(opt, m, flux_gradient(flux_mse(flux_call(m, w->x[8]), flux_zeros(2, 5)), m)); }
    return look(h, flux_destructure(m));
}
static uint64_t loading(const world *w, uint64_t *s) {
    uint64_t h = 11;
    flux_loader *l = flux_dataloader(w->x[1], .batchsize = 4, .shuffle = true, .workers = (int)(next(s) % 3));
    flux_each(batch, l) FLUX_SCOPE { h = look(h, flux_mul(batch.x, 3)); }
    return h;
}
static uint64_t moving(const world *w, uint64_t *s) {
    flux_device cpu = { 0, 0 };
    flux_tensor *x = flux_to(cpu, w->x[next(s) % SHARED]);
    if (next(s) % 4 == 0) flux_mem_trim(test_device);
    flux_default_device(test_device);                       /* as the other threads say */
    return look(look(13, x), flux_to(test_device, flux_mul(x, 1)));
}
static uint64_t files(const actor *a, uint64_t *s) {
    char path[400];
    snprintf(path, sizeof path, "%s/flux-races-%d.safetensors", a->w->folder, a->number);
    flux_layer *m = flux_chain(flux_dense(6, 8, flux_tanh), flux_batchnorm(8), flux_dense(8, 3));
    bool ok = flux_save(a->w->m, path) == 0 && flux_load(m, path) == 0;
    remove(path);
    return look(next(s), ok ? flux_destructure(m) : NULL);
}
static uint64_t settings(const world *w, uint64_t *s) {
    char name[120];
    flux_default_device(test_device);
    flux_log_level(FLUX_LOG_WARN);
    flux_allow_tf32(false);
    bool there = flux_functional("CPU") && flux_device_count(flux_device_backend(test_device)) > 0;
    snprintf(name, sizeof name, "%s", flux_device_name(flux_device_of(w->x[0])));
    flux_synchronise_device(test_device);
    return there && flux_device_equal(flux_device_of(flux_zeros(3)), test_device) ? hash(next(s), name, strlen(name)) : 0;
}
static uint64_t mistake(const world *w, uint64_t *s) {
    bool told = !flux_matmul(w->x[0], w->x[8]) && strstr(flux_error(), "inner sizes differ");
    flux_clear();
    return told ? next(s) : 0;
}

static uint64_t step(const actor *a, uint64_t *s) {
    const world *w = a->w;
    switch (next(s) % 14) {
    case 11: case 12: case 13: return beside_others(w, s);
    case 10: return settings(w, s);
    case 0: case 1: return look(17, w->x[next(s) % SHARED]);
    case 2: case 3: return compute(w, s);
    case 4: return gradients(w, s);
    case 5: return training(w, s);
    case 6: return loading(w, s);
    case 7: return moving(w, s);
    case 8: return next(s) % 3 ? mistake(w, s) : files(a, s);
    default: {
        flux_tensor *kept = flux_retain(w->x[next(s) % SHARED]);
        uint64_t h = look(19, kept);
        flux_release(kept);
        return h;
    }
    }
}
static void *act(void *arg) {
    actor *a = (actor *)arg;
    uint64_t s = a->seed;
    flux_seed(a->seed);
    flux_on_error(test_silent, NULL);
    a->n = 0;
    for (int i = 0; i < 4; i++)                             /* all of them first look at the same */
        FLUX_SCOPE { a->sum[a->n++] = look(23, a->w->x[i]); }
    for (int i = 0; i < 4; i++) FLUX_SCOPE { a->sum[a->n++] = beside_others(a->w, &s); }
    while (a->n < STEPS) FLUX_SCOPE { a->sum[a->n++] = step(a, &s); }
    snprintf(a->error, sizeof a->error, "%s", flux_error());
    flux_clear();
    return NULL;
}

TEST(threads_do_together_what_each_does_alone) {
    static actor alone[THREADS], beside[THREADS];
    const char *rounds = getenv("RACES"), *first = getenv("SEED");
    int n = rounds ? atoi(rounds) : test_device.backend ? 3 : 12, bad = 0;
    uint64_t start = first ? strtoull(first, NULL, 10) : 1;
    for (int r = 0; r < n && !bad; r++)
        FLUX_SCOPE {
            uint64_t seed = start + (uint64_t)r;
            world w = make(seed);
            for (int i = 0; i < THREADS; i++) {
                beside[i].w = &w, beside[i].seed = seed * 7919 + (uint64_t)i * 104729 + 1, beside[i].number = i;
                REQUIRE(pthread_create(&beside[i].thread, NULL, act, &beside[i]) == 0);
            }
            for (int i = 0; i < THREADS; i++) pthread_join(beside[i].thread, NULL);
            w = make(seed);
            for (int i = 0; i < THREADS; i++) {
                alone[i] = beside[i];
                REQUIRE(pthread_create(&alone[i].thread, NULL, act, &alone[i]) == 0);
                pthread_join(alone[i].thread, NULL);
                for (int k = 0; k < STEPS; k++) bad += beside[i].sum[k] != alone[i].sum[k] || !alone[i].sum[k];
                bad += beside[i].error[0] || alone[i].error[0];
                if (bad) fprintf(stderr, "    SEED=%llu thread %d: \"%s\", alone \"%s\"\n", (unsigned long long)seed, i, beside[i].error, alone[i].error);
            }
            flux_on_error(NULL, NULL);
        }
    CHECK(bad == 0);
    flux_clear();
}

/* Threads that are profiled together: the names of what they do are kept by all of them. */
static void *call(void *arg) {
    actor *a = (actor *)arg;
    flux_default_device(test_device);
    for (int i = 0; i < 10; i++) FLUX_SCOPE { a->sum[i] = look(29, flux_call(a->w->m, a->w->x[8])); }
    return NULL;
}
TEST(threads_are_profiled) {
    static actor all[THREADS];
    char text[8000];
    world w = make(3);
    flux_profile_start();
    for (int i = 0; i < THREADS; i++) {
        all[i].w = &w, all[i].number = i;
        REQUIRE(pthread_create(&all[i].thread, NULL, call, &all[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(all[i].thread, NULL);
    flux_profile_stop();
    flux_profile_text(text, sizeof text);
    CHECK(strstr(text, "layers.0 Dense") && strstr(text, "layers.2 Dense"));
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < 10; k++) CHECK(all[i].sum[k] && all[i].sum[k] == all[0].sum[0]);
}
#else
TEST(threads_do_together_what_each_does_alone) { SKIP("written for POSIX threads"); }
#endif
TEST_MAIN()
