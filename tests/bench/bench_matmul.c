/* Matrix products through the public interface: one line a shape. FLUX_NUM_THREADS sets the threads. Beside OpenBLAS
   (give it the right core, or an old one does not know new processors: OPENBLAS_CORETYPE=SkylakeX):
       cc -O2 -DHAVE_CBLAS tests/bench/bench_matmul.c -lopenblas -lm
   The two take turns in blocks, best of each; with several threads there is a pause between, for its threads to calm down. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>
#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

typedef struct shape { int m, n, k; bool ta, tb; const char *what; } shape;
static const shape shapes[] = {
    { 64, 64, 64, false, false, "" },       { 128, 128, 128, false, false, "" },    { 256, 256, 256, false, false, "" },
    { 512, 512, 512, false, false, "" },    { 1000, 1000, 1000, false, false, "" }, { 1024, 1024, 1024, false, false, "" },
    { 2048, 2048, 2048, false, false, "" }, { 1024, 1024, 1024, true, false, "" },  { 1024, 1024, 1024, false, true, "" },
    { 256, 64, 784, false, false, "784-256, batch 64: forward" },
    { 256, 784, 64, false, true, "784-256, batch 64: by the weight" },
    { 784, 64, 256, true, false, "784-256, batch 64: by the input" },
    { 10, 64, 256, false, false, "256-10, batch 64: forward" },
    { 10, 256, 64, false, true, "256-10, batch 64: by the weight" },
    { 256, 64, 10, true, false, "256-10, batch 64: by the input" },
    { 1024, 128, 1024, false, false, "1024-1024, batch 128: forward" },
    { 1024, 1024, 128, false, true, "1024-1024, batch 128: by the weight" },
    { 1024, 128, 1024, true, false, "1024-1024, batch 128: by the input" },
    { 1000, 1, 1000, false, false, "one sample" },
    { 1000, 1, 1000, true, false, "one sample, turned" },
};

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void pause_for(double s) {
    for (double end = seconds() + s; seconds() < end;) {}
}

static double ours(const shape *s, flux_tensor *a, flux_tensor *b, int times) {
    double t = seconds();
    for (int i = 0; i < times; i++)
        FLUX_SCOPE { flux_eval(flux_matmul(s->ta ? flux_transpose(a) : a, s->tb ? flux_transpose(b) : b)); }
    return (seconds() - t) / times;
}

#ifdef HAVE_CBLAS
static double theirs(const shape *s, bool f64, flux_tensor *a, flux_tensor *b, void *c, int times) {
    CBLAS_TRANSPOSE ta = s->ta ? CblasTrans : CblasNoTrans, tb = s->tb ? CblasTrans : CblasNoTrans;
    int m = s->m, n = s->n, k = s->k, la = s->ta ? k : m, lb = s->tb ? n : k;
    const void *x = flux_data(a), *y = flux_data(b);
    double t = seconds();
    for (int i = 0; i < times; i++)
        if (f64) cblas_dgemm(CblasColMajor, ta, tb, m, n, k, 1, (const double *)x, la, (const double *)y, lb, 0, (double *)c, m);
        else cblas_sgemm(CblasColMajor, ta, tb, m, n, k, 1, (const float *)x, la, (const float *)y, lb, 0, (float *)c, m);
    return (seconds() - t) / times;
}
#endif

static double bench(const shape *s, flux_dtype type, double budget) {
    double flops = 2.0 * s->m * s->n * s->k, best = 1e9, other = 1e9, t;
    FLUX_SCOPE {
        flux_tensor *a = flux_eval(flux_randn_shape(s->ta ? FLUX_SHAPE(s->k, s->m) : FLUX_SHAPE(s->m, s->k), type));
        flux_tensor *b = flux_eval(flux_randn_shape(s->tb ? FLUX_SHAPE(s->n, s->k) : FLUX_SHAPE(s->k, s->n), type));
        void *c = malloc((size_t)s->m * (size_t)s->n * 8);
        int times = (int)(0.004 / ours(s, a, b, 1)) + 1;
        double rest = flux__num_threads() > 1 ? 0.06 : 0;
        for (double end = seconds() + budget; seconds() < end && c;) {
            pause_for(rest);
            for (int i = 0; i < 3; i++) if ((t = ours(s, a, b, times)) < best) best = t;
#ifdef HAVE_CBLAS
            for (int i = 0; i < 3; i++) if ((t = theirs(s, type == FLUX_F64, a, b, c, times)) < other) other = t;
#endif
        }
        free(c);
    }
    printf("%s %5d x %4d x %4d %c%c %10.1f us %8.1f GFLOP/s", flux_dtype_name(type), s->m, s->n, s->k, s->ta ? 'T' : 'N', s->tb ? 'T' : 'N',
           best * 1e6, flops / best * 1e-9);
    if (other < 1e9) printf("   OpenBLAS %8.1f   ratio %.2f", flops / other * 1e-9, other / best);
    printf("   %s\n", s->what);
    fflush(stdout);
    return other / best;
}

int main(int argc, char **argv) {
    double budget = argc > 1 ? atof(argv[1]) : getenv("SHORT") ? 0.01 : 0.3;
    int n = (int)(sizeof shapes / sizeof *shapes);
#ifdef HAVE_CBLAS
    openblas_set_num_threads(flux__num_threads());
#endif
    printf("threads %d\n", flux__num_threads());
    for (int type = FLUX_F32; type <= FLUX_F64; type++) {
        double product = 1;
        for (int i = 0; i < n; i++) product *= bench(&shapes[i], (flux_dtype)type, budget);
#ifdef HAVE_CBLAS
        printf("geometric mean %.3f\n", pow(product, 1.0 / n));
#endif
    }
    return flux_failed();
}
