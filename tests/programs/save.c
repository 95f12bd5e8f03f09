/* A model saved and loaded again, and what happens when it does not fit.
   expect: largest difference 0
   expect: refused: yes
   expect: unchanged: yes */
#define FLUX_IMPLEMENTATION
#include "flux.h"

int main(void) {
    flux_layer *m = flux_gpu(flux_chain(flux_dense(10, 5, flux_tanh), flux_dense(5, 2)));
    if (flux_save(m, "model.safetensors") != 0) return 1;
    flux_layer *same = flux_chain(flux_dense(10, 5, flux_tanh), flux_dense(5, 2));
    if (flux_load(same, "model.safetensors") != 0) return 1;
    flux_tensor *x = flux_rand(10, 3);
    flux_tensor *gap = flux_max(flux_abs(flux_sub(flux_cpu(flux_call(m, flux_gpu(x))), flux_call(same, x))));
    printf("largest difference %g\n", flux_item(gap));

    flux_layer *other = flux_chain(flux_dense(10, 4, flux_tanh), flux_dense(4, 2));
    double before = flux_item(flux_sum(flux_weight(other)));
    printf("refused: %s\n", flux_load(other, "model.safetensors") != 0 && flux_failed() ? "yes" : "no");
    flux_clear();
    printf("unchanged: %s\n", flux_item(flux_sum(flux_weight(other))) == before ? "yes" : "no");
    return flux_failed();
}
