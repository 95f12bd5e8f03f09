/* Options that are 0, positional, named, from a macro and mixed, without a warning. C only: names after places. */
#define FLUX_IMPLEMENTATION
#include "flux.h"

#define COMMON .eta = 0, .eps = 1e-6

int main(void) {
    flux_layer *m = flux_chain(flux_dense(2, 3, flux_tanh, .bias = false), flux_batchnorm(3, flux_relu, FLUX_ON, FLUX_ON, 0, .momentum = 0),
                               flux_dense(3, 2, .bias = 0));
    flux_print(m);                                             /* expect: Dense(2 => 3, tanh; bias=false) */
    flux_print(flux_setup(flux_descent(0), m));                /* expect: Descent(0) */
    flux_print(flux_setup(flux_adam(COMMON), m));              /* expect: Adam(0, beta=(0.9, 0.999), eps=1e-06) */
    flux_print(flux_setup(flux_adam(0, { 0, 0.9 }), m));       /* expect: Adam(0, beta=(0, 0.9), eps=1e-08) */
    flux_state *opt = flux_setup(flux_adam(1e-2, .beta[1] = 0), m);
    flux_print(opt);                                           /* expect: Adam(0.01, beta=(0.9, 0), eps=1e-08) */
    flux_adjust(opt, .eta = 0, .beta = { 0 });
    flux_print(opt);                                           /* expect: Adam(0, beta=(0, 0), eps=1e-08) */
    flux_tensor *x = flux_sub(flux_arange(0, 3, 1), 1);
    flux_print(flux_leakyrelu(x, 0));                          /* expect: 0.0 */
    flux_loader *data = flux_dataloader(flux_ones(2, 5), flux_ones(2, 5), .batchsize = 2, .partial = false, .seed = 0);
    printf("%d batches\n", (int)flux_length(data));            /* expect: 2 batches */
    flux_each (b, data, .progress = NULL)
        flux_update(opt, m, flux_gradient(flux_huber_loss(flux_call(m, b.x), b.y, .delta = 0), m));
    printf("%g\n", flux_item(flux_focal_loss(flux_ones(2, 2), flux_ones(2, 2), .gamma = 0, .eps = 0)));      /* expect: 0 */
    return flux_failed();
}
