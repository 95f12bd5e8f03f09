/* xor.c - the smallest thing that learns: a network that gets XOR right after seeing its four cases.
       cc -O2 -I. examples/xor.c -lm -o xor && ./xor           in the folder of flux.h */
#define FLUX_IMPLEMENTATION
#include "flux.h"

int main(void) {
    float in[4][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }, out[4] = { 0, 1, 1, 0 };
    flux_device device = flux_get_device();                       /* a GPU if there is one */
    flux_tensor *x = flux_to(device, flux_from(&in[0][0], 2, 4)); /* 2 features x 4 samples */
    flux_tensor *y = flux_to(device, flux_from(out, 1, 4));

    flux_seed(3);
    flux_layer *model = flux_to(device, flux_chain(flux_dense(2, 8, flux_tanh), flux_dense(8, 1)));
    flux_state *opt = flux_setup(flux_adam(0.05), model);

    flux_times (step, 201) {                                      /* what a step makes goes with it */
        flux_tensor *loss = flux_logitbinarycrossentropy(flux_call(model, x), y);
        flux_update(opt, model, flux_gradient(loss, model));
        if (step % 50 == 0) printf("step %3d: loss %.4f\n", step, flux_item(loss));
    }
    flux_tensor *answer = flux_round(flux_sigmoid(flux_call(model, x)));
    flux_print(answer);
    return flux_failed() || !flux_item(flux_all(flux_eq(answer, y)));
}
