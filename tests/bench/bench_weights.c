/* Products of a weight and a few columns, as inference makes them: layer after layer, so that a weight comes from memory, and the same
   weight again and again, from a cache. Fastest of each, GFLOP/s; FLUX_NUM_THREADS sets the threads (1 unless set). Two trees are
   compared by turns of this program, since a machine's pace changes.
   bench_weights [seconds for each product] */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

enum { MOST = 512 };                      /* weights at once, of at least 128 MB together where so many are enough */
typedef struct shape { int64_t m, n, k; const char *what; } shape;
static const shape shapes[] = {
    { 768, 64, 768, "transformer of 768, 64 tokens: projection" }, { 3072, 64, 768, "wide" }, { 768, 64, 3072, "narrow" },
    { 50257, 64, 768, "its words" }, { 768, 512, 768, "512 tokens: projection" }, { 768, 16, 768, "16 tokens: projection" },
    { 512, 49, 2048, "1x1, 2048-512, 7x7, by the weight" }, { 1024, 49, 256, "1x1, 256-1024, 7x7, by the weight" },
    { 1000, 8, 2048, "2048-1000, batch 8" }, { 2048, 8, 512, "LSTM of 512, batch 8: a step" }, { 500, 500, 500, "square" },
};

static double wall(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* GFLOP/s of the fastest product, each by the next of n weights. */
static double fastest(const shape *s, flux_tensor **weight, int64_t n, flux_tensor *x, double seconds) {
    double best = 1e9;
    const double end = wall() + seconds;
    for (int64_t i = 0; i < n + 3 || wall() < end; i++) FLUX_SCOPE {
        const double start = wall();
        flux_eval(flux_matmul(weight[i % n], x));
        const double took = wall() - start;
        if (i >= 3 && took < best) best = took;
    }
    return 2e-9 * (double)s->m * (double)s->n * (double)s->k / best;
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    if (!getenv("FLUX_NUM_THREADS")) flux_threads(1);
    printf("weights, GFLOP/s %20s %8s\n", "from memory", "cached");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) FLUX_SCOPE {
        const shape *s = &shapes[i];
        flux_tensor *weight[MOST], *x = flux_eval(flux_randn(s->k, s->n));
        int64_t n = (128 << 20) / (4 * s->m * s->k) + 2;
        if (n > MOST) n = MOST;
        for (int64_t w = 0; w < n; w++) weight[w] = flux_eval(flux_randn(s->m, s->k));
        const double far = fastest(s, weight, n, x, seconds), near = fastest(s, weight, 1, x, seconds);
        printf("%5lld x %3lld x %4lld %18.1f %8.1f   %s\n", (long long)s->m, (long long)s->n, (long long)s->k, far, near, s->what);
        fflush(stdout);
    }
    return 0;
}
