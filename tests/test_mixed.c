/* Half precision: what a model of f16 or bf16 computes beside float32, what its norms keep, and training it with float32
   masters and a scaled loss. */
#include "test.h"

static float signs[64];

static double apart(flux_tensor *a, flux_tensor *b) {
    return flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(a, FLUX_F32), flux_to_dtype(b, FLUX_F32)))));
}

/* Small whole numbers, whose sums are exact in f32: the order of a sum does not matter. */
static flux_tensor *whole(int64_t rows, int64_t columns, flux_dtype t, bool cut) {
    flux_tensor *x = flux_to_dtype(flux_to_dtype(flux_mul(flux_rand(rows + (cut ? 3 : 0), columns), 5), FLUX_I32), t);
    return flux_eval(x) && cut ? flux_slice(x, 0, 2, 2 + rows) : x;
}
TEST(half_products_in_every_order) {
    const int64_t m = 310, n = 33, k = 300;
    for (int way = 0; way < 16; way++) {
        flux_dtype t = way & 1 ? FLUX_BF16 : FLUX_F16;
        bool ta = way & 2, tb = way & 4, cut = way & 8;
        flux_tensor *a = ta ? whole(k, m, t, cut) : whole(m, k, t, cut), *b = tb ? whole(n, k, t, cut) : whole(k, n, t, cut);
        flux_tensor *wide_a = flux_eval(flux_to_dtype(a, FLUX_F32)), *wide_b = flux_eval(flux_to_dtype(b, FLUX_F32));
        flux_tensor *got = flux_matmul(ta ? flux_transpose(a) : a, tb ? flux_transpose(b) : b);
        flux_tensor *want = flux_to_dtype(flux_matmul(ta ? flux_transpose(wide_a) : wide_a, tb ? flux_transpose(wide_b) : wide_b), t);
        CHECK(flux_dtype_of(got) == t && flux_item(flux_max(flux_to_dtype(want, FLUX_F32))) > 100);
        CHECK(apart(flux_eval(got), flux_eval(want)) == 0);
    }
}

/* Lines of which one holds something special, along k and across, and what float32 makes of them. Numbers below 1.2e-38 may count as
   0 where the processor itself multiplies bf16. */
TEST(half_products_of_special_values) {
    const int64_t m = 37, n = 21, k = 45;
    const float special[] = { HUGE_VALF, -HUGE_VALF, NAN, -0.0f, 3e38f, 1e-39f };
    for (int way = 0; way < 8; way++)
        for (int s = 0; s < 6; s++) {
            flux_dtype t = way & 1 ? FLUX_BF16 : FLUX_F16;
            float a[37 * 45], b[21 * 45];
            for (int i = 0; i < m * k; i++) a[i] = (float)(i % 7 - 3);
            for (int i = 0; i < n * k; i++) b[i] = (float)(i % 5 + 1);
            a[way & 2 ? 5 * k + 44 - s : 5 + (44 - s) * m] = special[s];
            flux_tensor *x = way & 2 ? flux_from(a, k, m) : flux_from(a, m, k), *y = way & 4 ? flux_from(b, n, k) : flux_from(b, k, n);
            x = flux_eval(flux_to_dtype(x, t)), y = flux_eval(flux_to_dtype(y, t));
            flux_tensor *wide_x = flux_to_dtype(x, FLUX_F32), *wide_y = flux_to_dtype(y, FLUX_F32);
            flux_tensor *got = flux_matmul(way & 2 ? flux_transpose(x) : x, way & 4 ? flux_transpose(y) : y);
            flux_tensor *want = flux_to_dtype(flux_matmul(way & 2 ? flux_transpose(wide_x) : wide_x, way & 4 ? flux_transpose(wide_y) : wide_y), t);
            flux_tensor *same = flux_or(flux_eq(got, want), flux_and(flux_ne(got, got), flux_ne(want, want)));
            CHECK(flux_item(flux_min(flux_to_dtype(same, FLUX_F32))) == 1);
            if (s < 2) CHECK(isinf(flux_item(flux_max(flux_abs(got)))));
        }
}

TEST(products_accumulate_in_f32) {
    for (int bf = 0; bf < 2; bf++) {                       /* 4096 ones: f16 counts no further than 2048, bf16 than 256 */
        flux_dtype t = bf ? FLUX_BF16 : FLUX_F16;
        flux_tensor *ones = flux_full_shape(FLUX_SHAPE(4, 4096), 1, t), *more = flux_full_shape(FLUX_SHAPE(4096, 3), 1, t), *y = flux_matmul(ones, more);
        CHECK(flux_dtype_of(y) == t);
        CHECK(flux_item(flux_max(y)) == 4096 && flux_item(flux_min(y)) == 4096);
        CHECK(flux_item(flux_sum(ones)) == 16384);
        flux_grads *g = flux_gradient(flux_sum(y), ones);
        CHECK(flux_item(flux_max(flux_grad(g, ones))) == 3);
    }
}

static flux_layer *model(void) {
    return flux_chain(flux_embedding(20, 16), flux_layernorm(FLUX_SHAPE(16)), flux_lstm(16, 16),
                      flux_skipconnection(flux_multiheadattention(16, .nheads = 2, .causal = true, .scores = FLUX_OFF), flux_add),
                      flux_dropout(0.1), flux_dense(16, 5, flux_gelu));
}

TEST(whole_models_in_half_precision) {
    flux_layer *m = model();
    const int32_t words[] = { 1, 5, 19, 0, 7, 3, 2, 11 };
    flux_tensor *x = flux_from(words, 4, 2), *want;
    flux_testmode(m, true);
    want = flux_call(m, x);
    for (int bf = 0; bf < 2; bf++) {
        flux_layer *h = bf ? flux_bf16(m) : flux_f16(m);
        flux_tensor *y = flux_call(h, x);
        CHECK(flux_dtype_of(y) == (bf ? FLUX_BF16 : FLUX_F16));
        CHECK_NEAR(apart(y, want), 0, bf ? 0.1 : 0.012);
        flux_grads *g = flux_gradient(flux_sum(flux_square(y)), h), *f = flux_gradient(flux_sum(flux_square(want)), m);
        flux_tensor *a = flux_grad_param(g, h, "layers.5.weight"), *b = flux_grad_param(f, m, "layers.5.weight");
        CHECK(flux_dtype_of(a) == (bf ? FLUX_BF16 : FLUX_F16));
        CHECK(apart(a, b) < (bf ? 0.1 : 0.02) * flux_item(flux_max(flux_abs(b))));
    }
}

TEST(norms_keep_f32) {
    flux_layer *m = flux_layernorm(FLUX_SHAPE(4)), *h = flux_f16(m);
    CHECK(flux_dtype_of(flux_param(h, "diag.scale")) == FLUX_F32 && flux_dtype_of(flux_param(h, "diag.bias")) == FLUX_F32);
    float x[] = { 300, 301, 302, 303 };                    /* squares that f16 can't hold */
    flux_tensor *in = flux_from(x, 4), *y = flux_call(h, flux_to_dtype(in, FLUX_F16));
    CHECK(flux_dtype_of(y) == FLUX_F16);                   /* f32 is only for within: the next layer gets what this one got */
    CHECK_NEAR(apart(y, flux_call(m, in)), 0, 2e-3);
    CHECK(flux_dtype_of(flux_param(flux_f16(flux_scale(FLUX_SHAPE(4))), "scale")) == FLUX_F16);
    CHECK(flux_dtype_of(flux_param(flux_f64(h), "diag.scale")) == FLUX_F64);
}

/* A regression whose gradients are about 1e-8: below what f16 has. */
static flux_tensor *tiny_loss(flux_layer *m, flux_tensor *x) {
    return flux_mul(flux_mean(flux_to_dtype(flux_square(flux_sub(flux_call(m, x), flux_to_dtype(flux_ones(1), FLUX_F16))), FLUX_F32)), 1e-8);
}

TEST(a_scaled_loss_keeps_small_gradients) {
    flux_layer *m = flux_f16(flux_dense(4, 1));
    flux_tensor *x = flux_full_shape(FLUX_SHAPE(4, 8), 0.25, FLUX_F16);
    flux_state *opt = flux_setup(flux_mixed_precision(flux_descent(1e6)), m);
    CHECK(flux_loss_scale(opt) == 32768);
    flux_tensor *loss = tiny_loss(m, x);
    CHECK(flux_item(flux_max(flux_abs(flux_grad_param(flux_gradient(loss, m), m, "weight")))) == 0);
    double before = flux_item(flux_mul(loss, 1e8));
    for (int i = 0; i < 20; i++) FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, tiny_loss(m, x)), m)) == 0);
    CHECK(flux_item(flux_mul(tiny_loss(m, x), 1e8)) < 0.8 * before);
    CHECK(flux_skipped(opt) == 0);
}

TEST(the_scale_changes_no_step) {                          /* but for rounding: one f32 step with and one without */
    flux_layer *a = flux_f16(flux_dense(3, 2)), *b = flux_copy_layer(a);
    flux_tensor *x = flux_to_dtype(flux_randn(3, 5), FLUX_F16);
    for (int k = 0; k < 2; k++) {
        flux_layer *m = k ? b : a;
        flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
        for (int i = 0; i < 5; i++) {
            flux_tensor *loss = flux_mean(flux_square(flux_call(m, x)));
            flux_update(opt, m, flux_gradient(k ? flux_scaled_loss(opt, loss) : loss, m));
        }
    }
    CHECK_NEAR(apart(flux_weight(a), flux_weight(b)), 0, 2e-3);
}

TEST(a_step_with_an_overflow_is_skipped) {
    flux_layer *m = flux_f16(flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
    flux_tensor *x = flux_full_shape(FLUX_SHAPE(2, 1), 100, FLUX_F16), *before = flux_copy(flux_weight(m));
    flux_eval(before);
    flux_tensor *loss = flux_sum(flux_call(m, x));         /* its gradient by the weight, 100, is 3,276,800 when scaled */
    flux_grads *g = flux_gradient(flux_scaled_loss(opt, loss), m);
    CHECK(flux_update(opt, m, g) == 0 && flux_skipped(opt) == 1 && flux_loss_scale(opt) == 16384);
    CHECK(apart(before, flux_weight(m)) == 0);
    int steps = 1;
    for (; steps < 20 && flux_skipped(opt) == steps; steps++) flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_sum(flux_call(m, x))), m));
    CHECK(flux_skipped(opt) == steps - 1 && flux_loss_scale(opt) == 512);       /* 512 * 100 fits */
    CHECK_NEAR(apart(before, flux_weight(m)), 0.01, 1e-3); /* Adam's first step, though it was the seventh call */
    float nan[] = { NAN, 1 };
    flux_tensor *now = flux_eval(flux_copy(flux_weight(m)));
    flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_sum(flux_call(m, flux_to_dtype(flux_from(nan, 2, 1), FLUX_F16)))), m));
    CHECK(apart(now, flux_weight(m)) == 0 && flux_skipped(opt) == steps);
}

TEST(the_scale_grows_again) {
    flux_layer *m = flux_f16(flux_dense(1, 1, .bias = FLUX_OFF));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_descent(1e-4)), m);
    flux_tensor *x = flux_full_shape(FLUX_SHAPE(1, 1), 1e-3, FLUX_F16);
    for (int i = 0; i < 2000; i++) FLUX_SCOPE flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_to_dtype(flux_sum(flux_call(m, x)), FLUX_F32)), m));
    CHECK(flux_loss_scale(opt) == 65536 && flux_skipped(opt) == 0);
}

TEST(no_scale_where_none_is_needed) {
    flux_layer *m = flux_dense(2, 1), *b = flux_bf16(m);
    flux_state *plain = flux_setup(flux_adam(0.01), m), *mixed = flux_setup(flux_mixed_precision(flux_adam(0.01)), b);
    flux_tensor *loss = flux_sum(flux_call(m, flux_ones(2, 3)));
    CHECK(flux_scaled_loss(plain, loss) == loss && flux_scaled_loss(mixed, loss) == loss);
    CHECK(flux_loss_scale(plain) == 1 && flux_loss_scale(mixed) == 1 && flux_skipped(plain) == 0);
}

TEST(gradients_of_another_loss_are_refused) {
    flux_layer *m = flux_f16(flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
    flux_tensor *loss = flux_sum(flux_call(m, flux_full_shape(FLUX_SHAPE(2, 3), 1, FLUX_F16)));
    flux_grads *g = flux_gradient(flux_add(flux_scaled_loss(opt, loss), 1), m);
    CHECK_ERROR(flux_update(opt, m, g), "update: these gradients are not of the loss that flux_scaled_loss gave: scale last");
    CHECK_ERROR(flux_scaled_loss(opt, NULL), "scaled_loss: argument loss is NULL");
}

static flux_tensor *train_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_logitcrossentropy(flux_call(m, x), y); }

/* The sign of a sum of three numbers, learnt in each precision. */
TEST(training_in_half_precision_learns) {
    float x[3 * 64];
    int32_t y[64];
    for (int i = 0; i < 192; i++) x[i] = (float)sin(3.7 * i * i);
    for (int i = 0; i < 64; i++) signs[i] = x[3 * i] + x[3 * i + 1] + x[3 * i + 2], y[i] = signs[i] > 0;
    for (int k = 0; k < 3; k++) {
        flux_seed(3);
        flux_layer *m = flux_chain(flux_dense(3, 32, flux_relu), flux_layernorm(FLUX_SHAPE(32)), flux_dense(32, 2));
        flux_tensor *in = flux_from(x, 3, 64), *labels = flux_from(y, 64);
        if (k) m = k == 1 ? flux_f16(m) : flux_bf16(m), in = flux_to_dtype(in, k == 1 ? FLUX_F16 : FLUX_BF16);
        flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
        flux_loader *data = flux_dataloader(in, labels, .batchsize = 16);
        for (int i = 0; i < 40; i++) CHECK(flux_train(train_loss, m, data, opt) == 0);
        CHECK(flux_item(flux_to_dtype(train_loss(m, in, labels), FLUX_F32)) < 0.1);
    }
}

TEST(a_scale_moves_with_its_state) {
    flux_layer *m = flux_f16(flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
    flux_tensor *x = flux_full_shape(FLUX_SHAPE(2, 1), 100, FLUX_F16);
    flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_sum(flux_call(m, x))), m));
    flux_state *there = flux_cpu(opt);
    CHECK(flux_loss_scale(there) == 16384 && flux_skipped(there) == 1);
}

/* Steps 3 and 23 overflow; 2000 after that the scale grows. */
static void some_steps(flux_layer *m, flux_state *opt, flux_tensor *x, int from, int to) {
    for (int i = from; i < to; i++) FLUX_SCOPE {
        flux_tensor *in = flux_mul(x, i == 3 || i == 23 ? 1e9 : 1.0 + 0.0001 * i);
        CHECK(flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_mean(flux_square(flux_call(m, in)))), m)) == 0);
    }
}

TEST(a_run_goes_on_from_its_files_as_if_never_interrupted) {
    flux_seed(5);
    flux_layer *m = flux_f16(flux_chain(flux_dense(3, 8, flux_tanh), flux_dense(8, 2))), *fresh = flux_copy_layer(m);
    flux_rule rule = flux_mixed_precision(flux_adam(0.01));
    flux_state *opt = flux_setup(rule, m), *again = flux_setup(rule, fresh);
    flux_tensor *x = flux_to_dtype(flux_randn(3, 6), FLUX_F16);
    char path[256];
    snprintf(path, sizeof path, "%s/test_mixed.safetensors", test_temp());
    some_steps(m, opt, x, 0, 30);
    double scale = flux_loss_scale(opt);
    int64_t skipped = flux_skipped(opt);
    CHECK(skipped >= 2 && scale < 32768);
    REQUIRE(flux_save_all(path, m, opt) == 0);
    CHECK(flux_at(flux_load_tensor(path, "opt.loss_scale"), 0) == scale);
    some_steps(m, opt, x, 30, 2050);
    const void *others[] = { fresh, again };
    REQUIRE(flux_load_items(path, 2, "m, opt", others) == 0);
    CHECK(flux_loss_scale(again) == scale && flux_skipped(again) == skipped);
    some_steps(fresh, again, x, 30, 2050);
    CHECK(flux_loss_scale(opt) > scale && flux_loss_scale(opt) == flux_loss_scale(again) && flux_skipped(opt) == flux_skipped(again));
    CHECK(apart(flux_param(m, "layers.0.weight"), flux_param(fresh, "layers.0.weight")) == 0);
    CHECK(apart(flux_param(m, "layers.1.bias"), flux_param(fresh, "layers.1.bias")) == 0);
    REQUIRE(flux_save_all(path, opt) == 0);
    flux_tensor *master = flux_load_tensor(path, "opt.layers.0.weight.master"), *counts = flux_load_tensor(path, "opt.loss_scale");
    const void *other[] = { again };
    REQUIRE(flux_save_items(path, 1, "opt", other) == 0);
    CHECK(apart(master, flux_load_tensor(path, "opt.layers.0.weight.master")) == 0);
    CHECK(apart(counts, flux_load_tensor(path, "opt.loss_scale")) == 0);
    remove(path);
}

TEST(a_scale_loaded_under_a_recorded_loss) {
    flux_layer *m = flux_f16(flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
    flux_tensor *x = flux_full_shape(FLUX_SHAPE(2, 1), 100, FLUX_F16);
    char path[256];
    snprintf(path, sizeof path, "%s/test_scale.safetensors", test_temp());
    REQUIRE(flux_save(opt, path) == 0);
    flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_sum(flux_call(m, x))), m));
    flux_grads *g = flux_gradient(flux_scaled_loss(opt, flux_sum(flux_call(m, x))), m);
    REQUIRE(flux_load(opt, path) == 0);
    CHECK_ERROR(flux_update(opt, m, g), "update: another loss scale was loaded after flux_scaled_loss; record the loss again");
    CHECK(flux_loss_scale(opt) == 32768 && flux_skipped(opt) == 0);
    remove(path);
}
TEST_MAIN()
