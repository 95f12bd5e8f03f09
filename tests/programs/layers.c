/* Models made of layers and plain functions: mapped, moved, called and printed.
   expect: 5-element
   expect: Chain(
   expect: Dense(10 => 5
   expect: softmax
   expect: 67 parameters
   expect: columns sum to 1: yes
   expect: 55 parameters in all */
#define FLUX_IMPLEMENTATION
#include "flux.h"

int main(void) {
    flux_layer *d = flux_dense(10, 5, flux_sigmoid);
    d = flux_fmap(flux_cu, d);
    flux_print(flux_call(d, flux_cu(flux_rand(10))));

    flux_layer *m = flux_gpu(flux_chain(flux_dense(10, 5, flux_sigmoid), flux_dense(5, 2), flux_softmax));
    flux_print(m);
    flux_tensor *p = flux_call(m, flux_gpu(flux_rand(10, 16)));
    flux_print(flux_cpu(p));
    double gap = flux_item(flux_max(flux_abs(flux_sub(flux_sum(p, 0), 1))));
    printf("columns sum to 1: %s\n", gap < 1e-5 ? "yes" : "no");
    m = flux_cpu(m);

    flux_layer *tied = flux_dense(10, 5);
    printf("%d parameters in all\n", (int)flux_num_params(flux_chain(tied, flux_relu, tied)));
    return flux_failed();
}
