/* Copies of weights in other orders, which the CPU keeps from call to call (cpu/kept_operands.h): a result has the bits that it has
   without, whatever the shape; they go with the weight, and where its elements change. */
#define _DEFAULT_SOURCE
#define FLUX_IMPLEMENTATION
#include "test.h"
#ifndef _WIN32
#  include <pthread.h>
#endif

enum { CALLS = 5, INPUTS = 2 };
#if defined __SANITIZE_THREAD__           /* which takes ten times as long, and an address sanitizer five times */
enum { CASES = 60 };
#elif defined __SANITIZE_ADDRESS__
enum { CASES = 120 };
#else
enum { CASES = 360 };
#endif

/* ------------------------------------------------------------------ random operations on a weight */

/* An operation on a weight w and an input x, found from a number. kernel 0: a product; else a convolution of so wide windows. */
typedef struct operation {
    int64_t m, k, n, kernel, stride, pad, images;
    flux_dtype dtype;
    bool transposed, left, epilogue, crosscor, batch;
    int part, step;                       /* w is a part of a larger tensor: from here on, every so many-th */
    flux_shape w, x;
} operation;

static uint64_t next(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}
static int64_t from(uint64_t *s, int64_t least, int64_t most) { return least + (int64_t)(next(s) % (uint64_t)(most - least + 1)); }

static operation operation_of(uint64_t seed) {
    operation o;
    uint64_t s = seed * 2654435761u + 88172645463325252u;
    memset(&o, 0, sizeof o);
    for (int i = 0; i < 4; i++) next(&s);
    static const flux_dtype dtypes[] = { FLUX_F32, FLUX_F32, FLUX_F32, FLUX_F64, FLUX_F64, FLUX_F16, FLUX_BF16 };
    o.dtype = dtypes[from(&s, 0, 6)], o.epilogue = from(&s, 0, 1), o.part = (int)from(&s, 0, 2), o.step = (int)from(&s, 1, 2);
    o.transposed = from(&s, 0, 2) == 0, o.left = from(&s, 0, 1), o.crosscor = from(&s, 0, 1), o.batch = from(&s, 0, 2) == 0;
    o.kernel = from(&s, 0, 1) ? 0 : from(&s, 0, 1) ? 3 : from(&s, 1, 5);
    if (!o.kernel) {
        o.m = from(&s, 64, 300), o.k = from(&s, 0, 2) ? from(&s, 1, 400) : from(&s, 500, 1400), o.n = from(&s, 0, 1) ? from(&s, 1, 24) : from(&s, 1, 270);
        o.w = FLUX_SHAPE(o.transposed ? o.k : o.m, o.transposed ? o.m : o.k);
        o.batch = o.batch && o.left && !o.transposed;
        o.x = o.batch ? FLUX_SHAPE(o.n, o.m, 1) : o.left ? FLUX_SHAPE(o.n, o.m) : FLUX_SHAPE(o.k, o.n);
        return o;
    }
    const bool wide = from(&s, 0, 2) == 0;  /* channels of few pixels */
    const int64_t in = from(&s, wide ? 60 : 1, wide ? 260 : 40), out = from(&s, wide ? 60 : 16, wide ? 260 : 90),
                  side = from(&s, wide && o.kernel == 1 ? 1 : 5, wide ? 7 : 18);
    o.stride = from(&s, 0, 3) ? 1 : 2, o.pad = from(&s, 0, 2), o.images = from(&s, 0, 1) ? 1 : from(&s, 1, 5);
    o.w = FLUX_SHAPE(o.kernel, o.kernel, in, out);
    o.x = FLUX_SHAPE(side, side + from(&s, 0, 3), in, o.images);
    return o;
}

/* Random numbers of the operation's dtype. */
static flux_tensor *numbers(const operation *o, flux_shape s) {
    if (o->dtype == FLUX_F64) return flux_eval(flux_randn_with(s, FLUX_F64));
    return flux_eval(flux_to_dtype(flux_randn_with(s, FLUX_F32), o->dtype));
}

/* A weight, or the larger tensor of which it is a part. */
static flux_tensor *weight_of(const operation *o) {
    flux_shape s = o->w;
    if (o->part) s.dim[s.ndim - 1] = s.dim[s.ndim - 1] * o->step + 3;
    return numbers(o, s);
}

/* The same numbers in new memory. */
static flux_tensor *anew(flux_tensor *x) { return flux_eval(flux_neg(flux_eval(flux_neg(x)))); }

/* The operation, which is recorded and not computed. w: see weight_of. Without a copy of it that is kept if `fresh`. */
static flux_tensor *result_of(const operation *o, flux_tensor *w, flux_tensor *x, bool fresh) {
    const int last = o->w.ndim - 1;
    if (fresh) w = anew(w);
    if (o->part) w = flux_slice_step(w, last, o->part, o->part + o->w.dim[last] * o->step, o->step);
    flux_tensor *y;
    if (o->kernel && o->crosscor) y = flux_crosscor(x, w, .stride = FLUX_SHAPE(o->stride), .pad = FLUX_SHAPE(o->pad));
    else if (o->kernel) y = flux_conv(x, w, .stride = FLUX_SHAPE(o->stride), .pad = FLUX_SHAPE(o->pad));
    else {
        if (o->transposed) w = flux_transpose(w);
        y = o->left ? flux_matmul(x, w) : flux_matmul(w, x);
    }
    return o->epilogue ? flux_relu(flux_add(flux_mul(y, 0.5), 0.25)) : y;
}

static bool same(flux_tensor *a, flux_tensor *b) {
    const void *x = flux_data(a), *y = flux_data(b);
    const flux_dtype t = flux_dtype_of(a);
    return x && y && !memcmp(x, y, (size_t)flux_len(a) * (t == FLUX_F64 ? 8 : t == FLUX_F32 ? 4 : 2));
}

/* Calls an operation again and again, on one of two inputs by turns, beside the same with a fresh weight. Returns how many bytes were
   kept in the end; -1: a result differs. */
static int64_t call(const operation *o) {
    flux_tensor *w = weight_of(o), *x[INPUTS];
    const int64_t before = flux__kept_bytes;
    for (int i = 0; i < INPUTS; i++) x[i] = numbers(o, o->x);
    for (int i = 0; i < CALLS; i++) FLUX_INFER {
        flux_tensor *got = flux_eval(result_of(o, w, x[i % INPUTS], false)), *want = flux_eval(result_of(o, w, x[i % INPUTS], true));
        if (!got || !want || !same(got, want)) return -1;
    }
    return flux__kept_bytes - before;
}

TEST(results_have_the_same_bits) {
    ONLY_ON_CPU();
    const char *seed = getenv("KEPT_SEED");
    const int64_t least = flux__kept_least;
    int kept = 0, n = seed ? 1 : CASES;
    flux__kept_least = 1 << 12;
    for (int i = 0; i < n; i++) {
        if (!seed && test_left_out(i, 6)) continue;
        char what[120] = "the same";
        flux_scope_open();
        const uint64_t number = seed ? strtoull(seed, NULL, 10) : (uint64_t)i + 1;
        const operation o = operation_of(number);
        flux_seed(number);
        flux_threads(1 + i % 3);
        const int64_t bytes = call(&o);
        kept += bytes > 0;
        if (bytes < 0) snprintf(what, sizeof what, "KEPT_SEED=%llu differs: %s", (unsigned long long)number, flux_error());
        CHECK_STR("the same", what);
        flux_scope_close();
        CHECK(flux__kept_bytes == 0);     /* the weight has taken its copies with it */
    }
    flux_threads(1);
    flux__kept_least = least;
    CHECK(seed || flux__eager() || !FLUX__SHARES || kept * 5 > n || getenv("SHORT"));
}

/* Parts of one tensor, of the same shape and strides, have copies of their own. */
TEST(parts_of_one_tensor_are_told_apart) {
    ONLY_ON_CPU();
    FLUX_SCOPE {
        flux_seed(7);
        flux_tensor *all = flux_eval(flux_randn(128, 600)), *x = flux_eval(flux_randn(200, 6)), *part[3], *want[3];
        for (int i = 0; i < 3; i++) part[i] = flux_slice(all, 1, i * 200, (i + 1) * 200), want[i] = flux_eval(flux_matmul(anew(part[i]), x));
        for (int call = 0; call < 3 * CALLS; call++) FLUX_INFER CHECK(same(flux_eval(flux_matmul(part[call % 3], x)), want[call % 3]));
        CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes == 3 * 128 * 200 * 4);
    }
    CHECK(flux__kept_bytes == 0);
}

/* So have operations that read the same weight in other orders: convolutions and cross-correlations, of parts of it, on any number of
   threads; it and its transpose. */
TEST(orders_of_one_tensor_are_told_apart) {
    ONLY_ON_CPU();
    FLUX_SCOPE {
        flux_seed(8);
        operation o[8];
        flux_tensor *x = flux_eval(flux_randn(20, 20, 64, 1)), *w = flux_eval(flux_randn(3, 3, 64, 192)), *part[8], *want[8];
        for (int i = 0; i < 8; i++) {
            memset(&o[i], 0, sizeof o[i]);
            o[i].kernel = 3, o[i].stride = o[i].pad = 1, o[i].crosscor = i & 1, o[i].dtype = FLUX_F32;
            part[i] = flux_slice(w, 3, (i & 2) * 32, (i & 2) * 32 + 128);
        }
        for (int i = 0; i < 8; i++) want[i] = flux_eval(result_of(&o[i], part[i], x, true));
        for (int call = 0; call < 8 * CALLS; call++) FLUX_INFER {
            const int i = call % 8;
            flux_threads(i & 4 ? 5 : 1);
            CHECK(same(flux_eval(result_of(&o[i], part[i], x, false)), want[i]));
        }
        flux_threads(1);
        flux_tensor *square = flux_eval(flux_randn(160, 160)), *b = flux_eval(flux_randn(160, 9));
        flux_tensor *fresh = anew(square), *plain = flux_eval(flux_matmul(fresh, b)), *turned = flux_eval(flux_matmul(flux_transpose(fresh), b));
        for (int call = 0; call < 2 * CALLS; call++) FLUX_INFER {
            flux_tensor *y = flux_matmul(call % 2 ? flux_transpose(square) : square, b);
            CHECK(same(flux_eval(y), call % 2 ? turned : plain));
        }
        CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes > 5 * 160 * 160 * 4);
    }
    CHECK(flux__kept_bytes == 0);
}

/* Views of a half format's weight, which are converted to the same places, have no copies that are taken for each other's. */
TEST(views_of_a_half_format_are_told_apart) {
    ONLY_ON_CPU();
    static const flux_dtype dtypes[] = { FLUX_F16, FLUX_BF16, FLUX_F32 };
    for (int t = 0; t < 3; t++) FLUX_SCOPE {
        operation o;
        memset(&o, 0, sizeof o);
        o.kernel = 3, o.stride = o.pad = 1, o.dtype = dtypes[t];
        flux_tensor *x = numbers(&o, FLUX_SHAPE(20, 20, 32, 1)), *w = numbers(&o, FLUX_SHAPE(3, 3, 32, 96)), *view[3], *want[3];
        for (int i = 0; i < 3; i++) view[i] = flux_slice_step(w, 3, 0, 32 * (i + 1), i + 1), want[i] = flux_eval(result_of(&o, view[i], x, true));
        for (int call = 0; call < 3 * CALLS; call++) FLUX_INFER CHECK(same(flux_eval(result_of(&o, view[call % 3], x, false)), want[call % 3]));
    }
}

/* Steps of a recurrence share their weight's panels, kept or not; some of them are recorded for gradients, and some not. */
TEST(steps_with_and_without_gradients_share_panels) {
    ONLY_ON_CPU();
    const int64_t least = flux__shared_least, kept_least = flux__kept_least;
    flux__shared_least = flux__kept_least = 1 << 12;
    FLUX_SCOPE {
        flux_tensor *w = flux_eval(flux_randn(96, 96)), *other = flux_eval(flux_randn(96, 96)), *x = flux_eval(flux_randn(96, 40 * 4));
        for (int call = 0; call < 3 * CALLS; call++) FLUX_SCOPE {
            flux_tensor *y[40], *fresh[40], *a = call % 3 == 1 ? other : w, *b = anew(a);
            for (int i = 0; i < 40; i++) {
                flux_tensor *part = flux_slice(x, 1, i * 4, i * 4 + 4);
                if (call % 3 == 2 && i % 5) y[i] = flux_matmul(a, part), fresh[i] = flux_matmul(b, part);
                else FLUX_NOGRAD y[i] = flux_matmul(a, part), fresh[i] = flux_matmul(b, part);
            }
            CHECK(flux_eval_all(40, y) == 0 && flux_eval_all(40, fresh) == 0);
            for (int i = 0; i < 40; i++) CHECK(same(y[i], fresh[i]));
        }
    }
    CHECK(flux__kept_bytes == 0);
    flux__shared_least = least, flux__kept_least = kept_least;
}

/* ------------------------------------------------------------------ what changes is no longer kept */

/* A model whose layers keep copies. */
static flux_layer *small_model(void) {
    return flux_chain(flux_conv_layer(FLUX_SHAPE(3, 3), 16, 24, flux_relu, .pad = FLUX_SHAPE(1)), flux_function(flux_flatten, "flatten"),
                      flux_dense(24 * 16 * 16, 70, flux_tanh), flux_dense(70, 64));
}

/* The model's answer beside that of a copy whose weights nobody has read yet. */
static bool answers(flux_layer *m, flux_tensor *x) {
    bool good = true;
    FLUX_INFER {
        flux_layer *fresh = flux_copy_layer(m);
        flux_tensor *y = flux_eval(flux_call(m, x));
        const char *const names[] = { "layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias", "layers.3.weight", "layers.3.bias" };
        good = y != NULL;
        for (int i = 0; i < 6 && good; i++) good = flux_set_param(fresh, names[i], anew(flux_param(m, names[i]))) == 0;
        good = good && same(y, flux_eval(flux_call(fresh, x)));
    }
    return good;
}

TEST(an_update_is_seen) {
    ONLY_ON_CPU();
    const int64_t least = flux__kept_least;
    flux__kept_least = 1 << 12;
    FLUX_SCOPE {
        flux_seed(3);
        flux_layer *m = small_model();
        flux_tensor *x = flux_eval(flux_randn(16, 16, 16, 4)), *t = flux_eval(flux_randn(64, 4));
        flux_state *opt = flux_setup(flux_adam(1e-2), m);
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < 4; i++) CHECK(answers(m, x));
            CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes > 0);
            FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_mse(flux_call(m, x), t), m)) == 0);
        }
        /* a new value of a weight, while the old one is still there */
        flux_tensor *was = flux_param(m, "layers.2.weight");
        CHECK(flux_set_param(m, "layers.2.weight", flux_eval(flux_neg(was))) == 0);
        for (int i = 0; i < 4; i++) CHECK(answers(m, x));
    }
    CHECK(flux__kept_bytes == 0);
    flux__kept_least = least;
}

/* Memory of the user's own may change between two calls, and has no copies. */
TEST(borrowed_memory_is_read_anew) {
    ONLY_ON_CPU();
    enum { M = 128, K = 256, N = 8 };
    static float w[M * K];
    FLUX_SCOPE {
        flux_seed(5);
        flux_tensor *x = flux_eval(flux_randn(K, N)), *lent = flux_borrow_with(w, FLUX_F32, FLUX_SHAPE(M, K));
        for (int call = 0; call < 6; call++) FLUX_INFER {
            for (int i = 0; i < M * K; i++) w[i] = (float)((i * 7 + call) % 11);
            CHECK(same(flux_eval(flux_matmul(lent, x)), flux_eval(flux_matmul(flux_from_with(w, FLUX_F32, FLUX_SHAPE(M, K)), x))));
        }
        CHECK(flux__kept_bytes == 0);
    }
}

/* ------------------------------------------------------------------ how much is kept */

/* Nothing of weights that are being trained, of batches that are slices of a data set, and where too many orders are asked for. */
TEST(what_is_not_a_weight_is_not_kept) {
    ONLY_ON_CPU();
    FLUX_SCOPE {
        flux_tensor *w = flux_eval(flux_randn(128, 256)), *data = flux_eval(flux_randn(256, 1024));
        for (int i = 0; i < 4 * CALLS; i++) FLUX_SCOPE CHECK(flux_eval(flux_matmul(w, flux_slice(data, 1, i % 16 * 64, i % 16 * 64 + 64))) != NULL);
        CHECK(flux__kept_bytes == 0);
        flux_tensor *few = flux_eval(flux_randn(16, 256));
        for (int i = 0; i < 16 * CALLS; i++) FLUX_INFER CHECK(flux_eval(flux_matmul(few, flux_slice(data, 1, i % 16 * 64, i % 16 * 64 + 64))) != NULL);
        CHECK(flux__kept_bytes == 0);
        for (int i = 0; i < 16 * CALLS; i++) FLUX_INFER CHECK(flux_eval(flux_matmul(few, flux_slice(data, 1, i % 16, i % 16 + 512))) != NULL);
        const int64_t before = flux__kept_bytes;
        CHECK(before <= FLUX__KEPT_ORDERS * 256 * 512 * 4);
        for (int i = 0; i < CALLS; i++) FLUX_INFER CHECK(flux_eval(flux_matmul(few, flux_slice(data, 1, 20, 532))) != NULL);
        CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes - before == 256 * 512 * 4);
    }
    CHECK(flux__kept_bytes == 0);
}

/* Calls a product of a new 256 x 256 weight so often that a copy is made. */
static flux_tensor *often(void) {
    flux_tensor *w = flux_eval(flux_randn(256, 256)), *x = flux_eval(flux_randn(256, 8));
    for (int i = 0; i < CALLS; i++) FLUX_INFER CHECK(flux_eval(flux_matmul(w, x)) != NULL);
    return w;
}

TEST(a_limit_of_memory_keeps_nothing) {
    ONLY_ON_CPU();
    const flux_device cpu = { 0, 0 };
    FLUX_SCOPE {
        const int64_t live = flux_mem_stats(cpu).live;
        flux_mem_limit(cpu, live + (16 << 20));
        often();
        CHECK(flux__kept_bytes == 0);
        flux_mem_limit(cpu, 0);
        often();
        CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes == 256 * 256 * 4);
        CHECK(flux_mem_stats(cpu).live - live >= 2 * 256 * 256 * 4 + flux__kept_bytes);
    }
    CHECK(flux__kept_bytes == 0);
}

/* Copies go where their memory is wanted: under a new limit, by a tensor that finds no memory, by flux_mem_trim. */
TEST(copies_make_room) {
    ONLY_ON_CPU();
    const flux_device cpu = { 0, 0 };
    for (int way = 0; way < 3; way++) FLUX_SCOPE {
        flux_mem_trim(cpu);
        often();
        CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes == 256 * 256 * 4);
        if (way == 0) flux_mem_limit(cpu, (int64_t)1 << 30);
        if (way == 1) flux_mem_trim(cpu);
        if (way == 2) {
            flux__class_pools[0][0].stats.limit = flux_mem_stats(cpu).reserved + 1000;  /* set so that the copy stays until then */
            CHECK(flux_eval(flux_randn(256, 200)) != NULL);
        }
        CHECK(flux__kept_bytes == 0);
        flux_mem_limit(cpu, 0);
    }
}

/* Of more weights than have room the first ones are kept, and all answer. */
TEST(no_more_is_kept_than_has_room) {
    ONLY_ON_CPU();
    FLUX_SCOPE {
        const int64_t all = 256 * 256 * 4;
        flux__atomic_add(&flux__kept_bytes, FLUX__KEPT_MOST - 2 * all - 1);
        for (int i = 0; i < 4; i++) often();
        flux__atomic_add(&flux__kept_bytes, -(FLUX__KEPT_MOST - 2 * all - 1));
        CHECK(flux__eager() || !FLUX__SHARES || flux__kept_bytes == 2 * all);
    }
    CHECK(flux__kept_bytes == 0);
}

#ifndef __SANITIZE_THREAD__               /* it takes a minute there, and has no threads that share */
/* Where an allocation fails, at whichever place, there is no copy or an error, and never a wrong result. */
TEST(memory_runs_out) {
    ONLY_ON_CPU();
    const int64_t least = flux__kept_least;
    operation some[5];
    for (uint64_t i = 0; i < 4; i++) some[i] = operation_of(i + 1);
    some[4] = operation_of(1);            /* by Winograd's algorithm */
    some[4].kernel = 3, some[4].stride = some[4].pad = some[4].images = 1, some[4].part = 0, some[4].dtype = FLUX_F32;
    some[4].w = FLUX_SHAPE(3, 3, 16, 24), some[4].x = FLUX_SHAPE(18, 18, 16, 1);
    flux__kept_least = 1 << 12;
    flux_on_error(test_silent, NULL);
    for (int i = 0; i < 5; i++) {
        const operation o = some[i];
        int well = 0;                     /* runs in a row without an error: a copy that can't be made is none */
        bool done;
        flux_threads(1 + i % 2);
        for (long n = 0; n < 400 && well < 20; n++) {
            flux_scope_open();
            flux_tensor *w = weight_of(&o), *x = numbers(&o, o.x), *y[CALLS] = { NULL };
            flux_tensor *want = flux_eval(result_of(&o, w, x, true));
            flux_mem_trim(test_device);
            flux__threads_stop();         /* nor is there any memory kept from before */
            flux__test_memory_once(n);
            done = true;
            for (int j = 0; j < CALLS; j++) {
                flux__threads_stop();
                FLUX_NOGRAD y[j] = result_of(&o, w, x, false);
                if (!y[j] || !flux_eval(y[j])) y[j] = NULL, done = false;
            }
            flux__test_memory(-1);
            CHECK(done == !flux_failed());
            well = done ? well + 1 : 0;
            for (int j = 0; j < CALLS; j++) CHECK(!y[j] || same(y[j], want));
            flux_clear();
            flux_scope_close();
            CHECK(flux__kept_bytes == 0);
        }
        CHECK(well == 20);
    }
    flux_threads(1);
    flux_on_error(NULL, NULL);
    flux__kept_least = least;
}
#endif

/* ------------------------------------------------------------------ several threads */

#ifndef _WIN32
typedef struct asker { const operation *o; flux_tensor *w, *x, *want; int wrong; pthread_t thread; } asker;
static void *ask(void *of) {
    asker *a = (asker *)of;
    for (int i = 0; i < 3 * CALLS; i++) FLUX_INFER {
        flux_tensor *y = flux_eval(result_of(a->o, a->w, a->x, false));
        a->wrong += !y || !same(y, a->want);
    }
    return NULL;
}

/* Threads that ask the same weight at once: one makes the copy while the others read the weight, then all read the copy. */
TEST(threads_share_a_copy) {
    ONLY_ON_CPU();
    const int64_t least = flux__kept_least;
    flux__kept_least = 1 << 12;
    for (uint64_t seed = 1; seed <= 12; seed++) FLUX_SCOPE {
        const operation o = operation_of(seed);
        asker a[3];
        flux_tensor *w = weight_of(&o), *x = numbers(&o, o.x);
        flux_tensor *want = flux_eval(result_of(&o, w, x, true));
        for (int i = 0; i < 3; i++) {
            a[i] = (asker){ &o, w, x, want, 0, 0 };
            CHECK(pthread_create(&a[i].thread, NULL, ask, &a[i]) == 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(a[i].thread, NULL);
            CHECK(a[i].wrong == 0);
        }
    }
    CHECK(flux__kept_bytes == 0);
    flux__kept_least = least;
}
#endif

#ifndef __SANITIZE_THREAD__
/* Tiles are of other sizes by older instruction sets: the first tests again, as on processors that end there. */
TEST(older_instruction_sets) {
    static const char *const sets[] = { "avx2", "base" };
    char command[5000];
    ONLY_ON_CPU();
    if (getenv("FLUX_SIMD") || getenv("EMULATED")) SKIP("run by another instruction set already");
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "FLUX_SIMD=%s '%s' results_have >/dev/null", sets[i], test_program);
        CHECK(system(command) == 0);
    }
}
#endif

TEST_MAIN()
