/* save.c - stops a training in the middle and goes on from a file, with the same numbers as if it
   had never stopped.
       cc -O2 -I. examples/save.c -lm -o save && ./save           in the folder of flux.h */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <math.h>

#define FILE_NAME "save.safetensors"

static flux_layer *new_model(flux_device device) {
    return flux_to(device, flux_chain(flux_dense(4, 16, flux_tanh), flux_dense(16, 1)));
}

/* Some steps; gives the last loss. */
static double train(flux_layer *model, flux_state *opt, flux_tensor *x, flux_tensor *y, int steps) {
    double last = NAN;
    flux_times (i, steps) {
        flux_tensor *loss = flux_mse(flux_call(model, x), y);
        flux_update(opt, model, flux_gradient(loss, model));
        if (i == steps - 1) last = flux_item(loss);
    }
    return last;
}

int main(void) {
    flux_seed(1);
    flux_device device = flux_get_device();
    flux_tensor *x = flux_to(device, flux_randn(4, 256)), *y = flux_eval(flux_sin(flux_sum(x, 0)));

    flux_layer *model = new_model(device);
    flux_state *opt = flux_setup(flux_adam(0.01), model);
    printf("after 100 steps the loss is        %.6f\n", train(model, opt, x, y, 100));
    /* The weights and the optimiser's moments, whole or not at all. */
    if (flux_save_all(FILE_NAME, model, opt) != 0) return 1;
    double one = train(model, opt, x, y, 100);
    printf("100 more, without a stop           %.6f\n", one);

    model = new_model(device);                                   /* with other weights */
    opt = flux_setup(flux_adam(0.01), model);
    if (flux_load_all(FILE_NAME, model, opt) != 0) return 1;     /* all of it fits, or nothing changes */
    double other = train(model, opt, x, y, 100);
    printf("100 more, from the file            %.6f\n", other);
    printf("Python reads it too: safetensors.numpy.load_file(\"" FILE_NAME "\")\n");
    return flux_failed() || one != other;
}
