/* Training steps: forward, backward and Adam. One line a figure; the smallest model's time is the library's own overhead.
   On a GPU (built with -DFLUX_CUDA or -DFLUX_HIP) also what a step that repeats asks of the driver, as on a software GPU, whose
   times say nothing:
       make softgpu build/release/gpu/bench/bench_steps && sh tests/on_device.sh soft-cuda1 build/release/gpu/bench/bench_steps */
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
    return flux_chain_with(n, l, NULL);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#if defined FLUX_CUDA || defined FLUX_HIP
static flux__gpu_counters counters(flux_device d) { return flux__gpus[d.backend - FLUX__CUDA_BACKEND][d.id].counters; }
static void tell_counts(const model *m, flux_device d, flux__gpu_counters was, flux__gpu_counters now, int steps) {
    double n = steps;
    printf("step %-32s %9.1f launches, %.1f graph launches, %.1f kernels with new arguments, %.1f synchronisations, %.1f allocations on %s\n", m->name,
           (double)(now.launches - was.launches) / n, (double)(now.graph_launches - was.graph_launches) / n, (double)(now.graph_updates - was.graph_updates) / n,
           (double)(now.waits - was.waits) / n, (double)(now.allocations - was.allocations) / n, flux_device_name(d));
}
#endif

/* The device that FLUX_TEST_DEVICE names, else a GPU if there is one. */
static flux_device where(void) {
    const char *name = getenv("FLUX_TEST_DEVICE");
    return name ? flux_get_device(.backend = name) : flux_get_device();
}

static void bench(const model *m, flux_device d) {
    enum { RUNS = 200 };
    int least = getenv("SOFTGPU") ? 6 : 20;
    double times[RUNS], start = seconds();
    int done = 0, classes = 0;
    flux_seed(1);
    while (m->sizes[classes + 1]) classes++;
    flux_layer *net = flux_to(d, build(m));
    flux_state *opt = flux_setup(flux_adam(1e-3), net);
    flux_tensor *x = flux_eval(flux_rand(m->sizes[0], m->batch));
    flux_tensor *labels = flux_to_dtype(flux_mul(flux_rand(m->batch), (double)m->sizes[classes]), FLUX_I32);
    flux_tensor *y = flux_eval(flux_onehot(flux_eval(labels), m->sizes[classes]));
#if defined FLUX_CUDA || defined FLUX_HIP
    flux__gpu_counters was = { 0 };
#endif
    double begun = 0;
    for (int i = 0; i < RUNS && (i < least || seconds() - start < 3); i++) {
        if (i == 3 && d.backend) {             /* from here on steps repeat */
            flux_synchronise_device(d);
#if defined FLUX_CUDA || defined FLUX_HIP
            was = counters(d);
#endif
            begun = seconds();
        }
        double t = seconds();
        FLUX_SCOPE {
            flux_tensor *loss = flux_logitcrossentropy(flux_call(net, x), y);
            flux_update(opt, net, flux_gradient(loss, net));
        }
        times[done++] = seconds() - t;
    }
#if defined FLUX_CUDA || defined FLUX_HIP
    if (d.backend) tell_counts(m, d, was, counters(d), done - 3);
#endif
    if (d.backend) flux_synchronise_device(d);
    double all = (seconds() - begun) / (done - 3);
    qsort(times, (size_t)done, sizeof *times, compare);
    if (d.backend) printf("step %-32s %9.1f us   (%.1f of them the program's, memory at most %.1f MB)\n", m->name, all * 1e6, times[done / 2] * 1e6,
                          (double)flux_mem_stats(d).peak / 1e6);
    else printf("step %-32s %9.1f us   (fastest %.1f, memory at most %.1f MB)\n", m->name, times[done / 2] * 1e6, times[0] * 1e6,
                (double)flux_mem_stats(d).peak / 1e6);
}

int main(void) {
    static const model models[] = {
        { "2-2-2, batch 1 (overhead)", { 2, 2, 2 }, 1 },
        { "784-256-10, batch 64", { 784, 256, 10 }, 64 },
        { "784-1024-1024-10, batch 128", { 784, 1024, 1024, 10 }, 128 },
    };
    flux_device d = where();
    flux_default_device(d);
    for (int i = 0; i < (getenv("SOFTGPU") ? 2 : 3); i++) FLUX_SCOPE bench(&models[i], d);
    return flux_failed();
}
