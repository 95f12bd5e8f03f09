/* speed.c - the CPU against the GPU: matrix products, a long chain of formulas, and training steps, timed on both.
       cc -O2 -DFLUX_CUDA -DFLUX_HIP -I. examples/speed.c -lm -o speed && ./speed           in the folder of flux.h
   SHORT=1 in the environment times small ones. */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <stdlib.h>
#include <time.h>

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static flux_layer *model;
static flux_state *opt;

static flux_tensor *product(flux_tensor *a) { return flux_matmul(a, a); }
static flux_tensor *chain(flux_tensor *a) { return flux_sum(flux_mul(flux_tanh(flux_add(a, 1)), flux_exp(flux_neg(flux_square(a))))); }
static flux_tensor *step(flux_tensor *a) {
    flux_tensor *loss = flux_mse(flux_call(model, a), a);
    flux_update(opt, model, flux_gradient(loss, model));
    return loss;
}

/* Milliseconds a run: all are queued, then waited for together, as in a training loop. */
static double time_of(flux_device d, flux_tensor *(*job)(flux_tensor *), flux_tensor *a, int runs) {
    FLUX_SCOPE flux_eval(job(a));         /* the first compiles its kernels */
    flux_synchronise_device(d);
    double start = seconds();
    flux_times (i, runs) flux_eval(job(a));
    flux_synchronise_device(d);
    return (seconds() - start) / runs * 1e3;
}

int main(void) {
    int n = getenv("SHORT") ? 128 : 1024, runs = getenv("SHORT") ? 3 : 20;
    flux_device devices[2] = { flux_get_device(.backend = "CPU"), flux_get_device() };
    int count = flux_device_equal(devices[0], devices[1]) ? 1 : 2;
    for (int i = 0; i < count; i++) {
        flux_tensor *a = flux_to(devices[i], flux_rand(n, n));
        model = flux_to(devices[i], flux_chain(flux_dense(n, n, flux_relu), flux_dense(n, n)));
        opt = flux_setup(flux_adam(), model);
        printf("%s, matrices of %d x %d\n", flux_device_name(devices[i]), n, n);
        printf("    product              %9.3f ms\n", time_of(devices[i], product, a, runs));
        printf("    chain of formulas    %9.3f ms\n", time_of(devices[i], chain, a, runs));
        printf("    training step, Adam  %9.3f ms\n", time_of(devices[i], step, a, runs));
    }
    if (count == 1) printf("no GPU to compare with: CUDA: %s; AMDGPU: %s\n", flux_functional_reason("CUDA"), flux_functional_reason("AMDGPU"));
    return flux_failed();
}
