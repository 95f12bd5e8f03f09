/* Gradients as things: gone over by number and name, scaled, added, clipped, and printed. */
#include "test.h"

static flux_tensor *row(double a, double b) { return flux_from(((double[]){ a, b }), 2); }
static flux_tensor *times(flux_tensor *a, flux_tensor *b) { return flux_sum(flux_mul(a, b)); }

TEST(by_number_and_name) {
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_dense(2, 2, .bias = FLUX_OFF));
    flux_tensor *x = flux_ones(2, 1), *w = flux_ones(2);
    flux_grads *g = flux_gradient(flux_sum(flux_call(m, x)), m);
    CHECK(flux_num_grads(g) == 3);
    CHECK_STR(flux_grad_name(g, 0), "layers.0.weight");
    CHECK_STR(flux_grad_name(g, 1), "layers.0.bias");
    CHECK_STR(flux_grad_name(g, 2), "layers.1.weight");
    for (int i = 0; i < flux_num_grads(g); i++)
        CHECK(flux_grad_at(g, i) == flux_grad_param(g, m, flux_grad_name(g, i)));
    g = flux_gradient(flux_sum(w), w, m);
    CHECK_STR(flux_grad_name(g, 0), "0");
    CHECK_STR(flux_grad_name(g, 2), "1.layers.0.bias");
    CHECK(flux_grad_at(g, 0) && !flux_grad_at(g, 2) && !flux_failed());
    CHECK_ERROR(flux_grad_at(g, 4), "grad_at: there is no gradient 4 among 4");
    CHECK_ERROR(flux_grad_name(g, -1), "grad_name: there is no gradient -1 among 4");
    CHECK_ERROR(flux_num_grads(NULL), "num_grads");
}

TEST(scaled_and_added) {
    flux_tensor *a = row(1, 2), *b = row(3, 4);
    flux_grads *g = flux_gradient(flux_sum(flux_square(a)), a, b);
    flux_grads *more = flux_gradient(times(a, b), b, a);
    CHECK(flux_grads_scale(g, 0.5) == 0);
    CHECK_DATA(flux_grad(g, a), ((double[]){ 1, 2 }), 0);
    CHECK(flux_grads_add(g, more) == 0);
    CHECK_DATA(flux_grad(g, a), ((double[]){ 4, 6 }), 0);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 1, 2 }), 0);      /* which g had none for */
    CHECK_DATA(flux_grad(more, a), ((double[]){ 3, 4 }), 0);
    CHECK_ERROR(flux_grads_add(g, NULL), "grads_add");
}

TEST(clipped) {
    flux_tensor *a = row(0, 0), *b = row(0, 0);
    flux_tensor *loss = flux_add(times(a, row(3, 0)), times(b, row(0, -4)));
    flux_grads *g = flux_gradient(loss, a, b);
    CHECK_NEAR(flux_item(flux_clip_global(g, 10)), 5, 1e-12);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 0, -4 }), 0);     /* shorter than omega: not touched */
    CHECK_NEAR(flux_item(flux_clip_global(g, 1)), 5, 1e-12);
    CHECK_DATA(flux_grad(g, a), ((double[]){ 0.6, 0 }), 1e-12);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 0, -0.8 }), 1e-12);
    CHECK_NEAR(flux_item(flux_grads_norm(g)), 1, 1e-12);
    CHECK(flux_clip_value(g, 0.7) == 0);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 0, -0.7 }), 0);
    CHECK_ERROR(flux_clip_value(g, 0), "clip_value: delta is 0, but must be more than 0");
    CHECK_ERROR(flux_clip_global(g, -1), "clip_global: omega is -1, but must be more than 0");
    g = flux_gradient(flux_sum(a), b);                         /* none at all */
    CHECK_NEAR(flux_item(flux_clip_global(g, 1)), 0, 0);
}

/* A step with clipped gradients is that of a chain with a global ClipNorm, in f32 and f16. */
TEST(clipped_and_updated) {
    for (int half = 0; half < 2; half++) FLUX_SCOPE {
        flux_layer *m = flux_dense(3, 2), *n;
        if (half) m = flux_f16(m);
        n = flux_copy_layer(m);
        flux_tensor *x = flux_to_dtype(flux_ones(3, 4), half ? FLUX_F16 : FLUX_F32);
        flux_state *one = flux_setup(flux_descent(1), m);
        flux_state *two = flux_setup(flux_optimiser_chain(flux_clipnorm(0.5, .global = true), flux_descent(1)), n);
        flux_grads *g = flux_gradient(flux_sum(flux_call(m, x)), m);
        CHECK(flux_clip_global(g, 0.5) != NULL && flux_update(one, m, g) == 0);
        CHECK(flux_update(two, n, flux_gradient(flux_sum(flux_call(n, x)), n)) == 0);
        flux_tensor *off = flux_sub(flux_weight(m), flux_weight(n));
        CHECK(flux_item(flux_max(flux_abs(off))) <= (half ? 2e-3 : 1e-6));
        CHECK_ERROR(flux_grads_scale(g, 2), "used up by flux_update");
    }
}

TEST(printed) {
    char text[300];
    flux_tensor *a = row(1, 2), *b = row(3, 4), *c = row(5, 6);
    flux_grads *g = flux_gradient(flux_add(times(a, row(3, -4)), times(b, row((double)NAN, 1))), a, b, c);
    flux_grads_text(g, text, sizeof text);
    CHECK_STR(text, "Gradients of 3 arrays, not finite\n  0: norm 5, largest 4\n  1: has NaN\n  2: none");
    g = flux_gradient(flux_sum(a), a);
    flux_grads_text(g, text, sizeof text);
    CHECK_STR(text, "Gradients of 1 array, norm 1.414\n  0: norm 1.414, largest 1");
    flux_print(g);
    CHECK_ERROR(flux_grads_text(NULL, text, sizeof text), "print");
}

TEST_MAIN()
