/* layer.c - a layer of your own: a struct, a function, and one line that describes the fields. With
   that it can be moved, printed, trained, saved and put into chains as the built-in ones can.
       cc -O2 -I. examples/layer.c -lm -o layer && ./layer           in the folder of flux.h */
#define FLUX_IMPLEMENTATION
#include "flux.h"

/* y = x + scale .* body(x): a step away from the input, of a length that is learnt for each feature. */
typedef struct { flux_layer base; flux_layer *body; flux_tensor *scale; } residual;

static flux_tensor *residual_call(flux_layer *self, flux_tensor *x) {
    residual *r = (residual *)self;
    return flux_add(x, flux_mul(flux_call(r->body, x), r->scale));
}
FLUX_LAYER(residual, "Residual", residual_call, FLUX_CHILD(body), FLUX_PARAM(scale))

static flux_layer *new_residual(int64_t size) {
    return flux_new(residual, .body = flux_chain(flux_dense(size, size, flux_gelu), flux_dense(size, size)),
                    .scale = flux_full(0.1, size));
}

int main(void) {
    flux_seed(1);
    flux_device device = flux_get_device();
    flux_layer *model = flux_to(device, flux_chain(flux_dense(2, 32), new_residual(32),
                                                   new_residual(32), flux_dense(32, 1)));
    flux_print(model);
    printf("%d numbers are trained; the first scale is layers.1.scale:\n", (int)flux_num_params(model));
    flux_print(flux_slice(flux_param(model, "layers.1.scale"), 0, 0, 4));

    /* Which points lie inside of a ring? */
    flux_tensor *x = flux_to(device, flux_sub(flux_mul(flux_rand(2, 1000), 3), 1.5));
    flux_tensor *r = flux_sum(flux_square(x), 0);
    flux_tensor *y = flux_eval(flux_to_dtype(flux_and(flux_gt(r, 0.4), flux_lt(r, 1.5)), FLUX_F32));
    flux_state *opt = flux_setup(flux_adam(3e-3), model);
    double share = 0;
    flux_times (step, 300) {
        flux_tensor *logit = flux_call(model, x), *loss = flux_logitbinarycrossentropy(logit, y);
        flux_update(opt, model, flux_gradient(loss, model));
        if (step % 100 != 99) continue;
        flux_tensor *right = flux_eq(flux_gt(logit, 0), flux_gt(y, 0.5));
        share = 100 * flux_item(flux_mean(right));
        printf("step %d: loss %.3f, %.1f %% right\n", step + 1, flux_item(loss), share);
    }
    printf("its scale is learnt, as its body is:\n");
    flux_print(flux_slice(flux_param(model, "layers.1.scale"), 0, 0, 4));
    return flux_failed() || share < 95;
}
