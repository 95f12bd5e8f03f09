/* A training step of a small CNN on 28 x 28 images, batch 64: forward, backward and Adam; then its convolutions alone. */
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

enum { RUNS = 300 };
static double times[RUNS];

static void show(const char *name, int n, double flops) {
    qsort(times, (size_t)n, sizeof *times, compare);
    printf("%-44s %9.3f ms   (fastest %.3f", name, times[n / 2] * 1e3, times[0] * 1e3);
    if (flops > 0) printf(", %.1f GFLOP/s", flops / times[0] * 1e-9);
    printf(")\n");
}

static void step(const char *name, flux_layer *m, int64_t batch) {
    int n = 0;
    double start = seconds();
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
    show(name, n, 0);
}

/* One 3 x 3 convolution: forward, and both gradients. */
static void conv(int64_t size, int64_t in, int64_t out, int64_t batch) {
    double flops = 2.0 * 9 * (double)(in * out * size * size * batch);
    flux_tensor *x = flux_eval(flux_rand(size, size, in, batch)), *w = flux_eval(flux_rand(3, 3, in, out));
    flux_tensor *gy = flux_eval(flux_rand(size, size, out, batch));
    static const char *const what[] = { "forward", "by weight", "by input" };
    for (int k = 0; k < 3; k++) {
        int n = 0;
        char name[80];
        double start = seconds();
        while (n < RUNS && (n < 5 || seconds() - start < 1)) {
            double t = seconds();
            FLUX_SCOPE {
                flux_tensor *y = flux_conv(x, w, .pad = FLUX_SHAPE(1));
                if (k) y = flux_sum(flux_mul(y, gy)), y = flux_grad(flux_gradient(y, x, w), k == 1 ? w : x);
                flux_eval(y);
            }
            times[n++] = seconds() - t;
        }
        snprintf(name, sizeof name, "conv 3x3 %d to %d, %dx%d, batch %d: %s", (int)in, (int)out, (int)size, (int)size, (int)batch, what[k]);
        show(name, n, flops);
    }
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
    return flux_chain_of(n, l, NULL);
}

int main(void) {
    flux_seed(1);
    FLUX_SCOPE step("step of 1-8-16 3x3, pool, Dense, batch 64", net(false), 64);
    FLUX_SCOPE step("the same with BatchNorm", net(true), 64);
    FLUX_SCOPE conv(28, 1, 8, 64);
    FLUX_SCOPE conv(14, 8, 16, 64);
    FLUX_SCOPE conv(32, 32, 32, 16);
    FLUX_SCOPE conv(16, 64, 64, 16);
    return flux_failed();
}
