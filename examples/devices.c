/* devices.c - what can compute here: each back end, why not if it is not there, its devices, and a model that visits all.
       cc -O2 -I. examples/devices.c -lm -o devices && ./devices           in the folder of flux.h
       cc -O2 -DFLUX_CUDA -DFLUX_HIP -I. examples/devices.c -lm -o devices && ./devices           with GPUs */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <math.h>

int main(void) {
    double worst = 0;
    flux_layer *model = flux_chain(flux_dense(4, 8, flux_tanh), flux_dense(8, 2));
    flux_tensor *x = flux_randn(4, 3), *want = flux_eval(flux_call(model, x));
    for (const char *const *name = flux_supported_devices(); *name; name++) {
        flux_device list[16];
        int n = flux_get_devices(*name, list, 16);
        printf("%-7s %s\n", *name, flux_functional_reason(*name));
        flux_times (i, n < 16 ? n : 16) {
            flux_layer *there = flux_to(list[i], model);
            flux_tensor *y = flux_call(there, flux_to(list[i], x));
            double gap = flux_item(flux_max(flux_abs(flux_sub(flux_cpu(y), want))));
            worst = fmax(worst, gap);
            flux_mem m = flux_mem_stats(list[i]);
            printf("        %d: %s; a small model gives the same there within %.1g, with %.1f KB of memory\n", i, flux_device_name(list[i]),
                   gap, (double)m.peak / 1024);
        }
    }
    flux_device best = flux_get_device(.verbose = true);
    printf("a program that asks for the best device gets %s\n", flux_device_name(best));
    return flux_failed() || !(worst < 1e-4);
}
