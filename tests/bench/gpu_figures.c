/* Figures of one GPU, for tests/gpu_day.sh: `gpu_figures SECTION...` prints a line a figure: name, microseconds, work, unit of
   work, with tabs between; tests/bench/peer_gpu.py prints the same names with PyTorch. Sections, in their order of worth:
   products add softmax convolution attention embedding steps transfers; `start` is a process's first step, and `check` compares
   products, a convolution and attention, forward and backward, with the CPU's, once, as a sanitizer wants it.
   The device is the one that FLUX_TEST_DEVICE names, else the best. SMALL=1: sizes for a software GPU, whose times say nothing.
   TURNS=N: what a figure times is run N times and not timed, for a profiler of kernels. */
#define FLUX_IMPLEMENTATION               /* as users compile it: that of tests is not */
#include "../../flux.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static flux_device gpu;
static bool small;
static int untimed;

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---------------- timing */

typedef void turn(void *of);
static double turns(turn *run, void *of, int n) {
    double start = seconds();
    for (int i = 0; i < n; i++) FLUX_SCOPE run(of);
    flux_synchronise_device(gpu);
    return (seconds() - start) / n;
}
/* The median of five loops of some 20 ms, each ended by one wait; four turns before that make the kernels and the launch graph. */
static void figure(const char *name, double work, const char *unit, turn *run, void *of) {
    double times[5];
    if (untimed) {
        turns(run, of, untimed);
        printf("%s\n", name);
        return;
    }
    turns(run, of, 4);
    double once = turns(run, of, 1);
    int n = small || once > 0.02 ? 1 : once < 2e-5 ? 1000 : (int)(0.02 / once);
    for (int i = 0; i < 5; i++) times[i] = turns(run, of, n);
    qsort(times, 5, sizeof *times, compare);
    printf("%s\t%.2f\t%g\t%s\n", name, times[2] * 1e6, work, unit);
    fflush(stdout);
}

typedef struct operands { flux_tensor *x[4]; int way; flux_layer *layer; } operands;
static flux_tensor *numbers(flux_dtype t, flux_shape s) { return flux_eval(flux_to_dtype(flux_randn_with(s, FLUX_F32), t)); }

/* ---------------- products: way & 1: a is a transpose, & 2: b is */

static flux_tensor *product(const operands *o) {
    return flux_matmul(o->way & 1 ? flux_transpose(o->x[0]) : o->x[0], o->way & 2 ? flux_transpose(o->x[1]) : o->x[1]);
}
static operands of_product(flux_dtype t, int64_t m, int64_t n, int64_t k, int way) {
    operands o = { { NULL }, way, NULL };
    o.x[0] = numbers(t, way & 1 ? FLUX_SHAPE(k, m) : FLUX_SHAPE(m, k));
    o.x[1] = numbers(t, way & 2 ? FLUX_SHAPE(n, k) : FLUX_SHAPE(k, n));
    return o;
}
static void run_product(void *of) { flux_eval(product((operands *)of)); }
static const char *const ways[] = { "NN", "TN", "NT", "TT" };

static void products(void) {
    static const struct { const char *name; flux_dtype t; bool tf32; } formats[] = { { "f32", FLUX_F32, false }, { "tf32", FLUX_F32, true }, { "bf16", FLUX_BF16, false } };
    static const int64_t sizes[][3] = { { 1024, 1024, 1024 }, { 4096, 4096, 4096 }, { 256, 64, 784 }, { 512, 8192, 512 } }, less[][3] = { { 64, 64, 64 } };
    for (size_t s = 0; s < (small ? 1 : sizeof sizes / sizeof *sizes); s++)
        for (int f = 0; f < 3; f++)
            for (int way = 0; way < 4; way++) FLUX_SCOPE {
                const int64_t *m = small ? less[s] : sizes[s];
                char name[100];
                operands o = of_product(formats[f].t, m[0], m[1], m[2], way);
                flux_allow_tf32(formats[f].tf32);
                snprintf(name, sizeof name, "product %s %d x %d x %d %s", formats[f].name, (int)m[0], (int)m[1], (int)m[2], ways[way]);
                figure(name, 2.0 * (double)(m[0] * m[1] * m[2]), "flop", run_product, &o);
                flux_allow_tf32(false);
            }
}

/* ---------------- memory */

static void run_add(void *of) { flux_eval(flux_add(((operands *)of)->x[0], ((operands *)of)->x[1])); }
static void run_softmax(void *of) { flux_eval(flux_softmax(((operands *)of)->x[0])); }
static void run_sum(void *of) { flux_eval(flux_sum(((operands *)of)->x[0])); }

static operands of_memory(int64_t *n) {
    flux_shape s = small ? FLUX_SHAPE(64, 32) : FLUX_SHAPE(4096, 16384);
    operands o = { { numbers(FLUX_F32, s), numbers(FLUX_F32, s) }, 0, NULL };
    *n = flux_len(o.x[0]);
    return o;
}
static void add(void) {
    int64_t n;
    operands o = of_memory(&n);
    figure("add f32, 16384 rows of 4096", 12.0 * (double)n, "B", run_add, &o);
    figure("sum of all", 4.0 * (double)n, "B", run_sum, &o);
}
static void softmax(void) {
    int64_t n;
    operands o = of_memory(&n);
    figure("softmax f32, 16384 rows of 4096", 8.0 * (double)n, "B", run_softmax, &o);
}

/* ---------------- convolution, attention, embedding */

static flux_tensor *convolve(const operands *o) { return flux_crosscor(o->x[0], o->x[1], .pad = FLUX_SAMEPAD); }
static void gradients(flux_tensor *y, const operands *o, int n) {
    flux_tensor *out[3];
    flux_grads *g = n == 2 ? flux_gradient(flux_sum(flux_mul(y, o->x[3])), o->x[0], o->x[1]) : flux_gradient(flux_sum(flux_mul(y, o->x[3])), o->x[0], o->x[1], o->x[2]);
    for (int i = 0; i < n; i++) out[i] = flux_grad(g, o->x[i]);
    flux_eval_all(n, out);
}
static void run_conv(void *of) { flux_eval(convolve((operands *)of)); }
static void run_conv_gradients(void *of) { gradients(convolve((operands *)of), (operands *)of, 2); }
static operands of_conv(flux_dtype t, int64_t side, int64_t in, int64_t out, int64_t batch) {
    operands o = { { numbers(t, FLUX_SHAPE(side, side, in, batch)), numbers(t, FLUX_SHAPE(3, 3, in, out)), NULL, numbers(t, FLUX_SHAPE(side, side, out, batch)) }, 0, NULL };
    return o;
}
static void convolution(void) {
    static const int64_t sizes[][4] = { { 56, 64, 64, 64 }, { 14, 256, 256, 64 } }, less[][4] = { { 8, 4, 4, 2 } };
    for (size_t s = 0; s < (small ? 1 : 2); s++)
        for (int half = 0; half < 2; half++) FLUX_SCOPE {
            const int64_t *c = small ? less[s] : sizes[s];
            char name[120];
            operands o = of_conv(half ? FLUX_BF16 : FLUX_F32, c[0], c[1], c[2], c[3]);
            double flop = 18.0 * (double)(c[0] * c[0] * c[1] * c[2] * c[3]);
            int n = snprintf(name, sizeof name, "convolution %s 3 x 3, %d -> %d, side %d, batch %d", half ? "bf16" : "f32", (int)c[1], (int)c[2], (int)c[0], (int)c[3]);
            figure(name, flop, "flop", run_conv, &o);
            snprintf(name + n, sizeof name - (size_t)n, ", gradients");
            figure(name, 2 * flop, "flop", run_conv_gradients, &o);
        }
}

static flux_tensor *attend(const operands *o) { return flux_nth(flux_dot_product_attention(o->x[0], o->x[1], o->x[2], .nheads = o->way, .causal = true), 0); }
static void run_attention(void *of) { flux_eval(attend((operands *)of)); }
static void run_attention_gradients(void *of) { gradients(attend((operands *)of), (operands *)of, 3); }
static operands of_attention(flux_dtype t, int64_t width, int64_t length, int64_t batch, int heads) {
    operands o = { { NULL }, heads, NULL };
    for (int i = 0; i < 4; i++) o.x[i] = numbers(t, FLUX_SHAPE(width, length, batch));
    return o;
}
static void attention(void) {
    const int64_t width = small ? 16 : 1024, length = small ? 16 : 1024, batch = small ? 2 : 8;
    for (int half = 0; half < 2; half++) FLUX_SCOPE {
        char name[120];
        operands o = of_attention(half ? FLUX_BF16 : FLUX_F32, width, length, batch, small ? 2 : 16);
        double flop = 2.0 * (double)(width * length * length * batch);          /* two products of the causal half */
        int n = snprintf(name, sizeof name, "attention %s, causal, width %d, length %d, batch %d", half ? "bf16" : "f32", (int)width, (int)length, (int)batch);
        figure(name, flop, "flop", run_attention, &o);
        snprintf(name + n, sizeof name - (size_t)n, ", gradients");
        figure(name, 2.5 * flop, "flop", run_attention_gradients, &o);
    }
}

static flux_tensor *labels(flux_shape s, int classes) { return flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand_with(s, FLUX_F32), classes)), FLUX_I32)); }
static void run_embedding(void *of) { flux_eval(flux_call(((operands *)of)->layer, ((operands *)of)->x[0])); }
static void run_embedding_gradient(void *of) {
    operands *o = (operands *)of;
    flux_grads *g = flux_gradient(flux_sum(flux_mul(flux_call(o->layer, o->x[0]), o->x[1])), o->layer);
    flux_eval(flux_grad_param(g, o->layer, "weight"));
}
static void embedding(void) {
    const int64_t width = small ? 16 : 512, words = small ? 50 : 50000, length = small ? 16 : 1024, batch = small ? 2 : 32;
    operands o = { { labels(FLUX_SHAPE(length, batch), (int)words), numbers(FLUX_F32, FLUX_SHAPE(width, length, batch)) }, 0, flux_to(gpu, flux_embedding(words, width)) };
    double bytes = 8.0 * (double)(width * length * batch);
    char name[120];
    int n = snprintf(name, sizeof name, "embedding f32, %d of %d, %d indices", (int)words, (int)width, (int)(length * batch));
    figure(name, bytes, "B", run_embedding, &o);
    snprintf(name + n, sizeof name - (size_t)n, ", gradient");
    figure(name, bytes + 4.0 * (double)(width * words), "B", run_embedding_gradient, &o);
}

/* ---------------- training steps: forward, backward and Adam */

typedef struct training { flux_layer *net; flux_state *opt; flux_tensor *x, *y; } training;
static void run_step(void *of) {
    training *t = (training *)of;
    flux_update(t->opt, t->net, flux_gradient(flux_logitcrossentropy(flux_call(t->net, t->x), t->y), t->net));
}
static training train(flux_layer *net, flux_tensor *x, flux_tensor *y) {
    training t = { flux_to(gpu, net), NULL, x, y };
    t.opt = flux_setup(flux_adam(1e-3), t.net);
    return t;
}
static flux_layer *block(int64_t width) {
    return flux_chain(
        flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(width)), flux_multiheadattention(width, .nheads = 4, .causal = true, .scores = FLUX_OFF)), flux_add),
        flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(width)), flux_dense(width, 4 * width, flux_gelu), flux_dense(4 * width, width)), flux_add));
}
static flux_layer *cnn(void) {
    return flux_chain(flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8, flux_relu, .pad = FLUX_SAMEPAD), flux_maxpool_layer(FLUX_SHAPE(2, 2)),
                      flux_conv_layer(FLUX_SHAPE(3, 3), 8, 16, flux_relu, .pad = FLUX_SAMEPAD), flux_maxpool_layer(FLUX_SHAPE(2, 2)), flux_flatten, flux_dense(7 * 7 * 16, 10));
}
static training digits(void) {
    return train(flux_chain(flux_dense(784, 256, flux_relu), flux_dense(256, 10)), numbers(FLUX_F32, FLUX_SHAPE(784, 64)), labels(FLUX_SHAPE(64), 10));
}
static void steps(void) {
    FLUX_SCOPE {
        training t = digits();
        figure("step 784-256-10, batch 64", 0, "", run_step, &t);
    }
    if (small) return;
    FLUX_SCOPE {
        training t = train(flux_chain(flux_dense(784, 1024, flux_relu), flux_dense(1024, 1024, flux_relu), flux_dense(1024, 10)),
                           numbers(FLUX_F32, FLUX_SHAPE(784, 128)), labels(FLUX_SHAPE(128), 10));
        figure("step 784-1024-1024-10, batch 128", 0, "", run_step, &t);
    }
    FLUX_SCOPE {
        training t = train(cnn(), numbers(FLUX_F32, FLUX_SHAPE(28, 28, 1, 64)), labels(FLUX_SHAPE(64), 10));
        figure("step CNN 1-8-16 3x3, pool, Dense, batch 64", 0, "", run_step, &t);
    }
    FLUX_SCOPE {
        training t = train(flux_chain(flux_embedding(64, 64), block(64), block(64), flux_dense(64, 64)), labels(FLUX_SHAPE(64, 32), 64), labels(FLUX_SHAPE(64, 32), 64));
        figure("step transformer, 2 layers of 64, length 64, batch 32", 0, "", run_step, &t);
    }
}

/* ---------------- copies between the host's memory, as malloc gives it, and the device's */

static void run_to_device(void *of) { flux_eval(flux_to(gpu, ((operands *)of)->x[0])); }
static void *fetched;
static void run_to_host(void *of) {
    flux_tensor *x = ((operands *)of)->x[1];
    flux_read(x, fetched, (size_t)flux_len(x) * sizeof(float));
}
static void transfers(void) {
    for (int64_t mb = 1; mb <= (small ? 1 : 256); mb *= 16) FLUX_SCOPE {
        char name[60];
        operands o = { { NULL }, 0, NULL };
        o.x[1] = numbers(FLUX_F32, FLUX_SHAPE(mb << 18));
        fetched = malloc((size_t)mb << 20);
        o.x[0] = flux_eval(flux_cpu(o.x[1]));
        snprintf(name, sizeof name, "%d MB to the device", (int)mb);
        figure(name, (double)(mb << 20), "B", run_to_device, &o);
        snprintf(name, sizeof name, "%d MB to the host", (int)mb);
        figure(name, (double)(mb << 20), "B", run_to_host, &o);
        free(fetched);
    }
}

/* ---------------- what a sanitizer looks at */

static int wrong;
static void agree(const char *what, int n, flux_tensor **there, flux_tensor **here, double tolerance) {
    flux_eval_all(n, there);
    for (int i = 0; i < n; i++) {
        flux_tensor *want = flux_to_dtype(here[i], FLUX_F64), *got = flux_to_dtype(flux_cpu(there[i]), FLUX_F64);
        double size = flux_item(flux_max(flux_abs(want))), gap = flux_item(flux_max(flux_abs(flux_sub(got, want))));
        bool good = gap <= tolerance * size;
        wrong += !good;
        printf("%s %s, tensor %d: largest gap %.2g of %.2g\n", good ? "good" : "WRONG", what, i, gap, size);
    }
}
typedef flux_tensor *forward(const operands *o);
/* y and its gradients by n operands, there and on the CPU */
static void check(const char *what, forward *f, operands o, int n, double tolerance) {
    operands there = o;
    flux_tensor *out[2][4];
    for (int i = 0; i < 4; i++) there.x[i] = o.x[i] ? flux_to(gpu, o.x[i]) : NULL;
    for (int at = 0; at < 2; at++) {
        const operands *with = at ? &there : &o;
        out[at][n] = f(with);
        flux_tensor *loss = flux_sum(flux_to_dtype(flux_mul(out[at][n], with->x[3]), FLUX_F32));
        flux_grads *g = n == 2 ? flux_gradient(loss, with->x[0], with->x[1]) : flux_gradient(loss, with->x[0], with->x[1], with->x[2]);
        for (int i = 0; i < n; i++) out[at][i] = flux_grad(g, with->x[i]);
    }
    agree(what, n + 1, out[1], out[0], tolerance);
}
/* Products that have tiles of each size, the inner dim split, and a dim of batches, by fast instructions where there are some. */
static void large_products(flux_dtype t, int way, double tolerance) {
    static const int64_t sizes[][3] = { { 2000, 2088, 136 }, { 1000, 2056, 136 }, { 1000, 1032, 264 }, { 296, 200, 20008 } };
    for (size_t s = 0; s < (small ? 0 : sizeof sizes / sizeof *sizes); s++) FLUX_SCOPE {
        char name[100];
        operands o = of_product(t, sizes[s][0], sizes[s][1], sizes[s][2], way);
        o.x[3] = numbers(t, FLUX_SHAPE(sizes[s][0], sizes[s][1]));
        snprintf(name, sizeof name, "product %s %s %d x %d x %d", ways[way], flux_dtype_name(t), (int)sizes[s][0], (int)sizes[s][1], (int)sizes[s][2]);
        check(name, product, o, 2, tolerance / 4);
    }
}
static void checks(void) {
    static const flux_dtype formats[] = { FLUX_F32, FLUX_F16, FLUX_BF16 };
    static const double tolerance[] = { 1e-5, 5e-3, 4e-2 };
    flux_device cpu = { 0, 0 };
    flux_default_device(cpu);
    for (int f = 0; f < 3; f++) FLUX_SCOPE {
        char name[100];
        for (int way = 0; way < 4; way++) {
            operands o = of_product(formats[f], 70, 130, 66, way);
            o.x[3] = numbers(formats[f], FLUX_SHAPE(70, 130));
            snprintf(name, sizeof name, "product %s %s", ways[way], flux_dtype_name(formats[f]));
            check(name, product, o, 2, tolerance[f]);
        }
        snprintf(name, sizeof name, "convolution %s", flux_dtype_name(formats[f]));
        check(name, convolve, of_conv(formats[f], 13, 5, 9, 3), 2, tolerance[f]);
        snprintf(name, sizeof name, "attention %s", flux_dtype_name(formats[f]));
        check(name, attend, of_attention(formats[f], 48, 37, 2, 3), 3, tolerance[f] * 2);
        /* heads of 64 and 128 features, whole tiles and cut ones: what an assembler makes of loops no emulation of PTX shows */
        for (int heads = 4; heads >= 2 && !small; heads /= 2) {
            snprintf(name, sizeof name, "attention %s, %d features", flux_dtype_name(formats[f]), 256 / heads);
            check(name, attend, of_attention(formats[f], 256, 330, 2, heads), 3, tolerance[f] * 2);
        }
        for (int way = 0; way < 4; way++) large_products(formats[f], way, tolerance[f]);
    }
}

/* A process's first step; whoever starts it takes the time. */
static void start(void) {
    training t = digits();
    run_step(&t);
    flux_synchronise_device(gpu);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } sections[] = {
        { "check", checks }, { "products", products }, { "add", add }, { "softmax", softmax }, { "convolution", convolution }, { "attention", attention },
        { "embedding", embedding }, { "steps", steps }, { "transfers", transfers }, { "start", start },
    };
    const char *backend = getenv("FLUX_TEST_DEVICE");
    gpu = backend ? flux_get_device(.backend = backend) : flux_get_device();
    small = getenv("SMALL") != NULL;
    untimed = getenv("TURNS") ? atoi(getenv("TURNS")) : 0;
    if (argc > 1 && !strcmp(argv[1], "name")) return printf("%s\n", flux_device_name(gpu)) < 0 || !gpu.backend;
    flux_default_device(gpu);
    flux_seed(1);
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof sections / sizeof *sections; k++)
            if (!strcmp(argv[i], sections[k].name)) FLUX_SCOPE sections[k].run();
    return wrong || flux_failed();
}
