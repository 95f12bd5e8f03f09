/* A library with flux.h in it, that nobody else sees: see host.c. */
#define FLUX_STATIC
#define FLUX_IMPLEMENTATION
#include "flux.h"

double plugin_compute(void);
double plugin_compute(void) {             /* leaves what it makes to the thread's own scope */
    flux_threads(3);
    flux_tensor *x = flux_ones(200, 200);
    return flux_item(flux_sum(flux_matmul(x, flux_add(x, 1.0))));
}
