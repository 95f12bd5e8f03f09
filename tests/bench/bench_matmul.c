/* Matrix products through the public interface, each recorded and evaluated by itself: squares and the shapes of training, with A
   and B as they are and turned. One line a shape, GFLOP/s of the four orders; FLUX_NUM_THREADS sets the threads. Beside OpenBLAS
   (give it the right core, or an old one does not know new processors: OPENBLAS_CORETYPE=SkylakeX) also ratios, their geometric
   mean and the worst of them, also of the product alone, without what it takes to record it, find its plan and its memory, which is
   half a microsecond: as long as a sixth of the smallest products here; tests/bench/peers.sh sees to that:
       cc -O2 -DHAVE_CBLAS tests/bench/bench_matmul.c -lopenblas -lm
   The two take turns in blocks, medians of all; with several threads there is a pause between, for its threads to calm down.
   bench_matmul [seconds for each product [part of a shape's name]] */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>
#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

typedef struct shape { int m, n, k; const char *what; } shape;
static const shape shapes[] = {
    { 64, 64, 64, "square" },         { 128, 128, 128, "square" },      { 256, 256, 256, "square" },
    { 512, 512, 512, "square" },      { 1000, 1000, 1000, "square" },   { 1024, 1024, 1024, "square" },
    { 2048, 2048, 2048, "square" },
    { 256, 64, 784, "784-256, batch 64: forward" },      { 256, 784, 64, "784-256, batch 64: by the weight" },
    { 784, 64, 256, "784-256, batch 64: by the input" }, { 10, 64, 256, "256-10, batch 64: forward" },
    { 10, 256, 64, "256-10, batch 64: by the weight" },  { 256, 64, 10, "256-10, batch 64: by the input" },
    { 1024, 128, 1024, "1024-1024, batch 128: forward, by the input" },
    { 1024, 1024, 128, "1024-1024, batch 128: by the weight" },
    { 12544, 16, 72, "3x3, 8-16, 28x28, 16 images: forward" }, { 72, 16, 12544, "3x3, 8-16, 28x28, 16 images: by the weight" },
    { 12544, 72, 16, "3x3, 8-16, 28x28, 16 images: by the input" },
    { 784, 32, 288, "3x3, 32-32, 28x28, one image: forward" }, { 196, 64, 64, "1x1, 64-64, 14x14, one image" },
    { 768, 512, 256, "transformer of 256, 512 tokens: q, k, v" }, { 256, 512, 256, "transformer of 256: projection" },
    { 1024, 512, 256, "transformer of 256: wide" },   { 256, 512, 1024, "transformer of 256: narrow" },
    { 256, 1024, 512, "transformer of 256: by the weight" }, { 128, 128, 64, "attention of 128 tokens: scores" },
    { 64, 128, 128, "attention of 128 tokens: values" },
};

static double wall(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* What others do meanwhile counts only where it must. */
static double seconds(void) { return flux__num_threads() > 1 ? wall() : (double)clock() / CLOCKS_PER_SEC; }

static void pause_for(double s) {
    for (double end = wall() + s; wall() < end;) {}
}

typedef struct product { int m, n, k; bool ta, tb; flux_dtype type; flux_tensor *a, *b; void *c; } product;

static double ours(const product *p, int times) {
    double t = seconds();
    for (int i = 0; i < times; i++)
        FLUX_SCOPE { flux_eval(flux_matmul(p->ta ? flux_transpose(p->a) : p->a, p->tb ? flux_transpose(p->b) : p->b)); }
    return (seconds() - t) / times;
}

static double alone(const product *p, int times) {
    flux__gemm_job g;
    memset(&g, 0, sizeof g);
    g.m = p->m, g.n = p->n, g.k = p->k, g.a = flux_data(p->a), g.b = flux_data(p->b), g.c = p->c, g.ldc = p->m;
    g.a_row = p->ta ? p->k : 1, g.a_col = p->ta ? 1 : p->m, g.b_row = p->tb ? p->n : 1, g.b_col = p->tb ? 1 : p->k;
    double t = seconds();
    for (int i = 0; i < times; i++) flux__gemm(p->type == FLUX_F64, &g);
    return (seconds() - t) / times;
}

static double theirs(const product *p, int times) {
#ifdef HAVE_CBLAS
    CBLAS_TRANSPOSE ta = p->ta ? CblasTrans : CblasNoTrans, tb = p->tb ? CblasTrans : CblasNoTrans;
    int m = p->m, n = p->n, k = p->k, la = p->ta ? k : m, lb = p->tb ? n : k;
    const void *x = flux_data(p->a), *y = flux_data(p->b);
    double t = seconds();
    for (int i = 0; i < times; i++)
        if (p->type == FLUX_F64) cblas_dgemm(CblasColMajor, ta, tb, m, n, k, 1, (const double *)x, la, (const double *)y, lb, 0, (double *)p->c, m);
        else cblas_sgemm(CblasColMajor, ta, tb, m, n, k, 1, (const float *)x, la, (const float *)y, lb, 0, (float *)p->c, m);
    return (seconds() - t) / times;
#else
    (void)p, (void)times;
    return 0;
#endif
}

static flux_tensor *numbers(int rows, int columns, flux_dtype type) {
    return flux_eval(flux_to_dtype(flux_randn(rows, columns), type));
}

/* Medians over the rounds: of our time, and of the ratios in each, so that what slows a processor down for a while slows both. */
typedef struct figures { double time, ratio, alone; } figures;

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

/* a call's time, after some that bring its data near */
static double block(double (*fn)(const product *, int), const product *p, int times) {
    fn(p, times / 4 + 1);
    return fn(p, times);
}

enum { ROUNDS = 255 };

/* One product by turns: as a look, alone, and by OpenBLAS; or, where it has no such product, by our own for f32. */
static figures rounds(const product *p, const product *f32, double budget) {
    double time[ROUNDS], ratio[ROUNDS], bare[ROUNDS], rest = flux__num_threads() > 1 ? 0.03 : 0, end = wall() + budget;
    const bool half = p->type == FLUX_F16 || p->type == FLUX_BF16;
    const int times = (int)(0.0002 / (ours(p, 3) + 1e-7)) + 1;
    int n = 0;
    for (; n < ROUNDS && (n < 3 || wall() < end); n++) {
        pause_for(rest);
        time[n] = block(ours, p, times);
        double self = half ? time[n] : block(alone, p, times), other = half ? block(ours, f32, times) : block(theirs, p, times);
        ratio[n] = other / time[n], bare[n] = other / self;
    }
    figures f = { median(time, n), median(ratio, n), half ? 0 : median(bare, n) };
    return f;
}

static figures bench(const shape *s, int order, flux_dtype type, double budget) {
    figures f = { 0, 0, 0 };
    FLUX_SCOPE {
        product p = { s->m, s->n, s->k, order / 2 == 1, order % 2 == 1, type, NULL, NULL, malloc((size_t)s->m * (size_t)s->n * 8) }, f32;
        p.a = p.ta ? numbers(p.k, p.m, type) : numbers(p.m, p.k, type), p.b = p.tb ? numbers(p.n, p.k, type) : numbers(p.k, p.n, type);
        f32 = p;
        f32.a = flux_eval(flux_to_dtype(p.a, FLUX_F32)), f32.b = flux_eval(flux_to_dtype(p.b, FLUX_F32));
        ours(&p, 1);
        if (p.c) f = rounds(&p, &f32, budget);
        free(p.c);
    }
    return f;
}

typedef struct ratios { double product, worst; int count; char where[64]; } ratios;

static void ratio(ratios *r, double x, const char *shape, const char *order) {
    if (!r->count++ || x < r->worst) r->worst = x, snprintf(r->where, sizeof r->where, "%s %s", shape, order);
    r->product += log(x);
}

int main(int argc, char **argv) {
    static const char *const orders[] = { "NN", "NT", "TN", "TT" };
    static const flux_dtype types[] = { FLUX_F32, FLUX_F64, FLUX_BF16, FLUX_F16 };
    double budget = argc > 1 ? atof(argv[1]) : getenv("SHORT") ? 0.001 : 0.05;
    int n = (int)(sizeof shapes / sizeof *shapes);
    const char *only = argc > 2 ? argv[2] : "";
#ifdef HAVE_CBLAS
    openblas_set_num_threads(flux__num_threads());
#endif
    printf("matrix products, %d threads: GFLOP/s%s\n", flux__num_threads(),
#ifdef HAVE_CBLAS
           ", and how many times as fast as OpenBLAS"
#else
           ""
#endif
    );
    for (int t = 0; t < 4; t++) {
        ratios all = { 0, 0, 0, "" }, bare = all;
        char text[40];
        bool half = t > 1;
        for (int i = 0; i < n; i++) {
            const shape *s = &shapes[i];
            snprintf(text, sizeof text, "%d x %d x %d", s->m, s->n, s->k);
            if (!strstr(text, only) && !strstr(s->what, only)) continue;
            printf("product %-4s %-20s", flux_dtype_name(types[t]), text);
            for (int o = 0; o < 4; o++) {
                figures f = bench(s, o, types[t], budget);
                printf("  %s %6.1f", orders[o], 2e-9 * s->m * s->n * s->k / f.time);
                if (f.ratio <= 0) continue;
                printf(" %4.2f", f.ratio);
                ratio(&all, f.ratio, text, orders[o]);
                if (!half) ratio(&bare, f.alone, text, orders[o]);
            }
            printf("   %s\n", s->what);
            fflush(stdout);
        }
        if (all.count)
            printf("products %s beside %s: geometric mean %.3f, worst %.2f (%s)\n", flux_dtype_name(types[t]), half ? "our f32" : "OpenBLAS",
                   exp(all.product / all.count), all.worst, all.where);
        if (bare.count) printf("    alone: geometric mean %.3f, worst %.2f (%s)\n", exp(bare.product / bare.count), bare.worst, bare.where);
    }
    return flux_failed();
}
