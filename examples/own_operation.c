/* own_operation.c - operations of your own: an activation from a formula, and a function of tensors whose gradient you
   state. With both, a network learns with weights of one bit.
       cc -O2 -I. examples/own_operation.c -lm -o own_operation && ./own_operation           in the folder of flux.h */
#define FLUX_IMPLEMENTATION
#include "flux.h"
#include <math.h>
#include <stdlib.h>

/* One line of C for one element. Its gradient follows from it; or write one formula for each operand behind it, as for
   sign_of, which is flat: its gradient is let through where |x| < 1 (the straight-through estimator). */
FLUX_OP(snake, (x, a), x + pow(sin(a * x), 2) / a);
FLUX_OP(sign_of, (x), x < 0 ? -1 : 1, fabs(x) < 1 ? 1 : 0);

/* Or a function of tensors: forward may do what it likes, here look at the numbers with a loop of plain C, which leaves
   of each row of a weight the signs and the mean size. */
static flux_tensor *rows_of_one_bit(int n, flux_tensor *const *x, void *context) {
    (void)n, (void)context;
    int64_t rows = flux_dim(x[0], 0), columns = flux_dim(x[0], 1);
    flux_tensor *w = flux_cpu(x[0]);
    float *out = malloc((size_t)(rows * columns) * sizeof *out);
    const float *in = flux_floats(w);
    for (int64_t r = 0; in && out && r < rows; r++) {
        float mean = 0;
        for (int64_t c = 0; c < columns; c++) mean += fabsf(in[c * rows + r]) / (float)columns;
        for (int64_t c = 0; c < columns; c++) out[c * rows + r] = in[c * rows + r] < 0 ? -mean : mean;
    }
    flux_tensor *y = in && out ? flux_to(flux_device_of(x[0]), flux_from(out, rows, columns)) : NULL;
    free(out);
    return y;
}
static void straight_through(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx,
                             void *context) {
    (void)n, (void)x, (void)y, (void)context;
    dx[0] = g;                            /* as if the weights had not been rounded */
}

/* A layer that multiplies by such a weight. */
typedef struct { flux_layer base; flux_tensor *weight, *bias, *a; } one_bit;
static flux_tensor *one_bit_call(flux_layer *self, flux_tensor *x) {
    one_bit *l = (one_bit *)self;
    flux_tensor *w = flux_custom(rows_of_one_bit, straight_through, l->weight);
    return snake(flux_add(flux_matmul(w, x), l->bias), l->a);
}
FLUX_LAYER(one_bit, "OneBit", one_bit_call, FLUX_PARAM(weight), FLUX_PARAM(bias), FLUX_PARAM(a))
static flux_layer *new_one_bit(int64_t in, int64_t out) {
    return flux_new(one_bit, .weight = flux_glorot_uniform(FLUX_SHAPE(out, in)), .bias = flux_zeros(out), .a = flux_ones(out));
}

int main(void) {
    flux_seed(1);
    flux_device device = flux_get_device();
    flux_layer *model = flux_to(device, flux_chain(flux_dense(1, 64), new_one_bit(64, 64), flux_dense(64, 1)));
    flux_print(model);
    printf("the formula for plain numbers: snake(0.5) = %.4f\n", snake_number(0.5, 1));

    flux_tensor *x = flux_to(device, flux_reshape(flux_linspace(-3, 3, 256), 1, 256));
    flux_tensor *y = flux_eval(flux_add(flux_sin(flux_mul(x, 2)), flux_mul(sign_of(x), 0.5)));
    flux_state *opt = flux_setup(flux_adam(3e-3), model);
    double last = 1;
    flux_times (step, 600) {
        flux_tensor *loss = flux_mse(flux_call(model, x), y);
        flux_update(opt, model, flux_gradient(loss, model));
        if (step % 150 == 149) printf("step %3d: loss %.4f\n", step + 1, last = flux_item(loss));
    }
    return flux_failed() || !(last < 0.05);
}
