/* Elementwise work, one line a figure. First the inner loops on a tile in the cache, for each instruction set that this
   machine has, beside memcpy; then whole tensors through the public interface, where memory and fusion decide. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

enum { TILE = 1024 };
static float *a, *b, *c, *y;              /* the loops' operands and result, with room for doubles, from a cache line's start */
static volatile float sink;

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if FLUX__VECTORS && FLUX__X86
static int levels(void) { return flux__simd() < 2 ? flux__simd() + 1 : 3; }    /* past that no loop is another */
static const flux__section *section(int level) { return flux__sections[level]; }
#else
static int levels(void) { return 1; }
static const flux__section *section(int level) { return level ? NULL : flux__section_now(); }
#endif

/* the fastest of some runs, in billions of elements a second */
static double loop_speed(flux__run_loop drive, flux__loop f) {
    double best = 1e9;
    for (int run = 0; run < 15; run++) {
        const double start = seconds();
        for (int i = 0; i < 200; i++) {
            if (drive) drive(f, TILE, y, a, b, c, 1, 1, 1);
            else if (f) f(TILE, y, a, b, c, 1, 1, 1);
            else memcpy(y, a, TILE * sizeof *a);
            sink = y[0];                  /* so that no call can be left out */
        }
        const double t = (seconds() - start) / 200;
        if (t < best) best = t;
    }
    return TILE / best * 1e-9;
}

static void bench_loops(void) {
    static const int ops[] = { FLUX__OP_ADD, FLUX__OP_MUL, FLUX__OP_FMA, FLUX__OP_RELU, FLUX__OP_SQRT, FLUX__OP_EXP, FLUX__OP_LOG, FLUX__OP_TANH,
                               FLUX__OP_SIGMOID, FLUX__OP_SOFTPLUS, FLUX__OP_ERF, FLUX__OP_SIN, FLUX__OP_POW };
    static const char *const names[] = { "base", "avx2", "avx512" };
    for (int i = 0; i < TILE; i++) a[i] = (float)(i % 97) / 97, b[i] = (float)(i % 89) / 50, c[i] = 0.5f;
    printf("loop %-12s %39.2f Gelem/s\n", "memcpy", loop_speed(NULL, NULL));
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
        for (int level = 0; level < levels(); level++)
            printf("loop %-12s %-8s %30.2f Gelem/s\n", flux__op_names[ops[k]], names[level], loop_speed(section(level)->run, section(level)->loops[ops[k]]));
    for (int i = 0; i < TILE; i++) ((double *)a)[i] = (double)(i % 97) / 97;
    printf("loop %-12s %39.2f Gelem/s\n", "f64 exp", loop_speed(NULL, flux__loop_for(FLUX__F64C, FLUX__OP_EXP)));
}

static void bench_reductions(void) {
    for (int kind = 0; kind < 3; kind++) {
        double best = 1e9;
        for (int run = 0; run < 15; run++) {
            const double start = seconds();
            for (int i = 0; i < 200; i++) {
                if (kind == 0) flux__reduce(FLUX__F32C, FLUX__RED_SUM, y, a, TILE);
                else flux__philox_run(1, 2, i * TILE, TILE, y, kind - 1);
                sink = y[0];
            }
            const double t = (seconds() - start) / 200;
            if (t < best) best = t;
        }
        printf("loop %-30s %21.2f Gelem/s\n", kind == 0 ? "sum" : kind == 1 ? "random, uniform" : "random, normal", TILE / best * 1e-9);
    }
}

/* ---- whole tensors: what a step of each kind costs */

static flux_tensor *of_exp(flux_tensor **x) { return flux_exp(x[0]); }
static flux_tensor *of_tanh(flux_tensor **x) { return flux_tanh(x[0]); }
static flux_tensor *of_sigmoid(flux_tensor **x) { return flux_sigmoid(x[0]); }
static flux_tensor *of_add(flux_tensor **x) { return flux_add(x[0], x[1]); }
static flux_tensor *of_gelu(flux_tensor **x) { return flux_gelu(x[0]); }
static flux_tensor *of_sum(flux_tensor **x) { return flux_sum(x[0]); }
static flux_tensor *of_softmax(flux_tensor **x) { return flux_softmax(flux_reshape(x[0], 100, -1)); }
static flux_tensor *of_layernorm(flux_tensor **x) { return flux_normalise(flux_reshape(x[0], 100, -1), FLUX_SHAPE(0), 1e-5); }
static flux_layer *weights;               /* as many as x[0] has elements */
static flux_state *adam;
static flux_tensor *of_adam(flux_tensor **x) {
    flux_update(adam, weights, flux_gradient(flux_sum(flux_mul(flux_param(weights, "scale"), x[0])), weights));
    return flux_param(weights, "scale");
}

/* bytes: what it must read and write for an element; memcpy, in turn with it, moves as many */
static void bench_tensor(const char *name, flux_tensor *(*f)(flux_tensor **), int64_t n, int bytes) {
    flux_tensor *x[2];
    double best = 1e9, copy = 1e9, t;
    const size_t half = (size_t)n * (size_t)bytes / 2;
    char *from = (char *)malloc(half), *to = (char *)malloc(half);
    if (from && to) memset(from, 1, half), memset(to, 2, half);      /* pages of its own: zeros not written to are one page for all */
    for (int k = 0; k < 2; k++) x[k] = flux_eval(flux_rand(n));
    if (f == of_adam) weights = flux_scale(FLUX_SHAPE(n), .bias = FLUX_OFF), adam = flux_setup(flux_adam(), weights);
    for (double start = seconds(), now = start; now - start < 0.6 && !flux_failed() && from && to; ) {
        FLUX_SCOPE flux_eval(f(x));
        t = seconds();
        if (t - now < best) best = t - now;
        memcpy(to, from, half);
        sink = (float)to[half / 2];
        now = seconds();
        if (now - t < copy) copy = now - t;
    }
    printf("tensor %-10s of %8lld %10.2f us %8.2f Gelem/s", name, (long long)n, best * 1e6, (double)n / best * 1e-9);
    if (half > 1 << 20) printf(" %6.2f of a copy's time", best / copy);
    printf("\n");
    free(from), free(to);
}

int main(void) {
    static const struct { const char *name; flux_tensor *(*f)(flux_tensor **); int bytes; } what[] = {
        { "add", of_add, 12 }, { "exp", of_exp, 8 }, { "tanh", of_tanh, 8 }, { "sigmoid", of_sigmoid, 8 }, { "gelu", of_gelu, 8 },
        { "adam", of_adam, 28 }, { "sum", of_sum, 4 }, { "softmax", of_softmax, 8 },
        { "layernorm", of_layernorm, 8 } };
    static double room[4 * TILE + 64];
    a = (float *)room + (64 - (uintptr_t)room % 64) / sizeof *a, b = a + 2 * TILE, c = b + 2 * TILE, y = c + 2 * TILE;
    bench_loops();
    bench_reductions();
    for (size_t k = 0; k < sizeof what / sizeof *what; k++) {
        FLUX_SCOPE bench_tensor(what[k].name, what[k].f, 1000, what[k].bytes);
        FLUX_SCOPE bench_tensor(what[k].name, what[k].f, 16000000, what[k].bytes);
    }
    return flux_failed();
}
