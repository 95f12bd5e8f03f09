/* A training step of a small CNN on 28 x 28 images, batch 64: forward, backward and Adam. One line a figure. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void step(const char *name, flux_layer *m, int64_t batch) {
    enum { RUNS = 300 };
    double times[RUNS], start = seconds();
    int n = 0;
    flux_device cpu = { 0, 0 };
    flux_state *opt = flux_setup(flux_adam(1e-3), m);
    flux_tensor *x = flux_eval(flux_rand(28, 28, 1, batch));
    flux_tensor *y = flux_eval(flux_onehot(flux_eval(flux_to_dtype(flux_mul(flux_rand(batch), 10.0), FLUX_I32)), 10));
    while (n < RUNS && (n < 10 || seconds() - start < 3)) {
        double t = seconds();
        FLUX_SCOPE {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(m, x), y);
            flux_update(opt, m, flux_gradient(loss, m));
        }
        times[n++] = seconds() - t;
    }
    qsort(times, (size_t)n, sizeof *times, compare);
    printf("step %-48s %9.1f us   (fastest %.1f, memory at most %.1f MB)\n", name, times[n / 2] * 1e6, times[0] * 1e6,
           (double)flux_mem_stats(cpu).peak / 1e6);
}

static flux_layer *net(bool norm) {
    flux_layer *l[10];
    int n = 0;
    l[n++] = flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8, norm ? NULL : flux_relu, .pad = FLUX_SAMEPAD);
    if (norm) l[n++] = flux_batchnorm(8, flux_relu);
    l[n++] = flux_maxpool_layer(FLUX_SHAPE(2, 2));
    l[n++] = flux_conv_layer(FLUX_SHAPE(3, 3), 8, 16, norm ? NULL : flux_relu, .pad = FLUX_SAMEPAD);
    if (norm) l[n++] = flux_batchnorm(16, flux_relu);
    l[n++] = flux_maxpool_layer(FLUX_SHAPE(2, 2));
    l[n++] = flux_function(flux_flatten, "flatten");
    l[n++] = flux_dense(7 * 7 * 16, 10);
    return flux_chain_with(n, l, NULL);
}

int main(void) {
    flux_seed(1);
    FLUX_SCOPE step("CNN 1-8-16 3x3, pool, Dense, batch 64", net(false), 64);
    FLUX_SCOPE step("CNN with BatchNorm, batch 64", net(true), 64);
    return flux_failed();
}
