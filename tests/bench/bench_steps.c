/* Training steps: forward, backward and Adam. One line a figure; the smallest model's time is the library's own overhead. */
#define FLUX_IMPLEMENTATION
#include "../../flux.h"
#include <time.h>

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct model { const char *name; int64_t sizes[5]; int64_t batch; } model;

static flux_layer *build(const model *m) {
    flux_layer *l[8];
    int n = 0;
    for (int i = 0; m->sizes[i + 1]; i++) l[n++] = flux_dense(m->sizes[i], m->sizes[i + 1], m->sizes[i + 2] ? flux_relu : flux_identity);
    return flux_chain_of(n, l, NULL);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench(const model *m) {
    enum { RUNS = 200 };
    double times[RUNS], start = seconds();
    int done = 0, classes = 0;
    flux_seed(1);
    while (m->sizes[classes + 1]) classes++;
    flux_layer *net = build(m);
    flux_state *opt = flux_setup(flux_adam(1e-3), net);
    flux_tensor *x = flux_eval(flux_rand(m->sizes[0], m->batch));
    flux_tensor *labels = flux_to_dtype(flux_mul(flux_rand(m->batch), (double)m->sizes[classes]), FLUX_I32);
    flux_tensor *y = flux_eval(flux_onehot(flux_eval(labels), m->sizes[classes]));
    for (int i = 0; i < RUNS && (i < 20 || seconds() - start < 3); i++) {
        double t = seconds();
        FLUX_SCOPE {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(net, x), y);
            flux_update(opt, net, flux_gradient(loss, net));
        }
        times[done++] = seconds() - t;
    }
    qsort(times, (size_t)done, sizeof *times, compare);
    flux_device cpu = { 0, 0 };
    printf("step %-32s %9.1f us   (fastest %.1f, memory at most %.1f MB)\n", m->name, times[done / 2] * 1e6, times[0] * 1e6,
           (double)flux_mem_stats(cpu).peak / 1e6);
}

int main(void) {
    static const model models[] = {
        { "2-2-2, batch 1 (overhead)", { 2, 2, 2 }, 1 },
        { "784-256-10, batch 64", { 784, 256, 10 }, 64 },
        { "784-1024-1024-10, batch 128", { 784, 1024, 1024, 10 }, 128 },
    };
    for (int i = 0; i < 3; i++) FLUX_SCOPE bench(&models[i]);
    return flux_failed();
}
