/* A linear map and its squared error, moved to the best device there is; the same as one formula; its gradients.
   expect: loss
   expect: on CPU
   expect: 5-element
   expect: the formula agrees: yes
   expect: dW is 2 e x': yes
   expect: db is 2 e: yes */
#define FLUX_IMPLEMENTATION
#include "flux.h"

static flux_tensor *W, *b;

static flux_tensor *guess(flux_tensor *x) { return flux_add(flux_matmul(W, x), b); }
static flux_tensor *loss(flux_tensor *x, flux_tensor *y) { return flux_sum(flux_square(flux_sub(guess(x), y))); }
static const char *near_zero(flux_tensor *gap) { return flux_item(flux_max(flux_abs(gap))) < 1e-5 ? "yes" : "no"; }

int main(void) {
    W = flux_gpu(flux_rand(2, 5));
    b = flux_gpu(flux_rand(2));
    flux_tensor *x = flux_gpu(flux_rand(5)), *y = flux_gpu(flux_rand(2));
    printf("loss %g on %s\n", flux_item(loss(x, y)), flux_device_name(flux_device_of(W)));
    flux_print(x);
    flux_print(flux_cpu(x));

    flux_tensor *same = flux_expr("sum((W*x .+ b .- y).^2)", W, x, b, y);
    printf("the formula agrees: %s\n", near_zero(flux_sub(same, loss(x, y))));

    flux_grads *g = flux_gradient(loss(x, y), W, b);
    flux_tensor *e = flux_sub(guess(x), y);
    printf("dW is 2 e x': %s\n", near_zero(flux_sub(flux_grad(g, W), flux_mul(flux_outer(e, x), 2))));
    printf("db is 2 e: %s\n", near_zero(flux_sub(flux_grad(g, b), flux_mul(2, e))));
    flux_print(flux_grad(g, W));
    return flux_failed();
}
