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

/* A rounding before a relu whose result is rounded may be left out: the same bits, of sums and of a product with a bias, as where the
   sum is stored before. Numbers that are rounded up and down, to even, to infinity and to a number below 1.2e-38; both zeros; NaN. */
static flux_tensor *sum_of_three(flux_tensor *x, flux_tensor *y, flux_tensor *z, int stored, int relus) {
    flux_tensor *s = flux_add(x, y);
    if (stored) flux_eval(s);
    for (int i = 0; i < relus; i++) s = flux_relu(s);
    if (stored) flux_eval(s);
    return flux_eval(z ? flux_relu(flux_mul(s, z)) : s);
}
TEST(a_relu_after_a_rounding) {
    static const float some[] = { 0, -0.0f, 1, -1, 1.0078125f, 0.00390625f, -0.00390625f, 0.01171875f, HUGE_VALF, -HUGE_VALF, NAN, 3.38e38f,
                                  -3.38e38f, 1e-39f, -1e-39f, 9.2e-41f, 65504, 16, -1.0078125f };
    enum { SOME = sizeof some / sizeof *some, N = SOME * SOME };
    float a[N], b[N];
    for (int i = 0; i < N; i++) a[i] = some[i % SOME], b[i] = some[i / SOME];
    for (int way = 0; way < 24; way++) FLUX_SCOPE {
        const flux_dtype t = way & 1 ? FLUX_BF16 : FLUX_F16;
        const bool product = way & 2, more = way & 4;
        flux_tensor *x = flux_eval(flux_to_dtype(flux_from(a, N), t)), *y = flux_eval(flux_to_dtype(flux_from(b, N), t)), *got[2];
        flux_tensor *z = more ? flux_eval(flux_to_dtype(flux_mul(flux_randn(N), 100), t)) : NULL;
        flux_tensor *one = flux_eval(flux_to_dtype(flux_full(1.00390625, 1, 3), t)), *bias = flux_eval(flux_reshape(y, N, 1));
        if (product && z) z = flux_reshape(z, N, 1);
        for (int stored = 0; stored < 2; stored++) {
            flux_tensor *first = product ? flux_matmul(flux_reshape(x, N, 1), one) : x;
            got[stored] = sum_of_three(stored ? flux_eval(first) : first, product ? bias : y, z, stored, 1 + way / 8);
        }
        flux_tensor *same = flux_or(flux_eq(got[0], got[1]), flux_and(flux_ne(got[0], got[0]), flux_ne(got[1], got[1])));
        REQUIRE(got[0] && got[1] && same);
        CHECK(flux_item(flux_min(flux_to_dtype(same, FLUX_F32))) == 1);
        CHECK(flux_item(flux_sum(flux_to_dtype(flux_gt(got[0], 0), FLUX_F32))) > N / 10);
    }
}

TEST(products_accumulate_in_f32) {
    for (int bf = 0; bf < 2; bf++) {                       /* 4096 ones: f16 counts no further than 2048, bf16 than 256 */
        flux_dtype t = bf ? FLUX_BF16 : FLUX_F16;
        flux_tensor *ones = flux_full_with(FLUX_SHAPE(4, 4096), 1, t), *more = flux_full_with(FLUX_SHAPE(4096, 3), 1, t), *y = flux_matmul(ones, more);
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
    flux_tensor *x = flux_full_with(FLUX_SHAPE(4, 8), 0.25, FLUX_F16);
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

TEST(each_loss_is_scaled_for_itself) {                     /* after one that was, one that is not */
    flux_layer *a = flux_f16(flux_dense(3, 2)), *b = flux_copy_layer(a);
    flux_state *both = flux_setup(flux_mixed_precision(flux_descent(0.125)), a), *none = flux_setup(flux_mixed_precision(flux_descent(0.125)), b);
    flux_tensor *x = flux_to_dtype(flux_ones(3, 1), FLUX_F16);
    for (int i = 0; i < 4; i++) {                          /* all numbers are sums of few powers of two */
        flux_tensor *loss = flux_sum(flux_call(a, x));
        CHECK(flux_update(both, a, flux_gradient(i % 2 ? loss : flux_scaled_loss(both, loss), a)) == 0);
        CHECK(flux_update(none, b, flux_gradient(flux_sum(flux_call(b, x)), b)) == 0);
        CHECK(apart(flux_weight(a), flux_weight(b)) == 0);
    }
}

TEST(a_step_with_an_overflow_is_skipped) {
    flux_layer *m = flux_f16(flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
    flux_tensor *x = flux_full_with(FLUX_SHAPE(2, 1), 100, FLUX_F16), *before = flux_copy(flux_weight(m));
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

TEST(no_gradient_has_not_overflown) {                  /* none at all, or none but those of nothing */
    flux_tensor *x = flux_full_with(FLUX_SHAPE(2, 1), 1, FLUX_F16), *none = flux_full_with(FLUX_SHAPE(0), 1, FLUX_F16);
    flux_layer *m = flux_f16(flux_dense(2, 1, .bias = FLUX_OFF)), *nothing = flux_variables(&none);
    flux_silence("update.nothing");
    for (int k = 0; k < 3; k++) {
        flux_layer *each = k == 2 ? nothing : m;
        flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), each);
        if (k == 1) flux_freeze(m);
        flux_tensor *loss = flux_sum(k == 0 ? x : k == 1 ? flux_call(m, x) : none);
        const double scale = flux_loss_scale(opt);
        CHECK(flux_update(opt, each, flux_gradient(flux_scaled_loss(opt, loss), each)) == 0);
        CHECK(scale == 32768 && flux_loss_scale(opt) == scale && flux_skipped(opt) == 0);
    }
    flux_silence(NULL);
}

TEST(the_scale_grows_again) {
    flux_layer *m = flux_f16(flux_dense(1, 1, .bias = FLUX_OFF));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_descent(1e-4)), m);
    flux_tensor *x = flux_full_with(FLUX_SHAPE(1, 1), 1e-3, FLUX_F16);
    for (int i = 0; i < 2000; i++) FLUX_SCOPE flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_to_dtype(flux_sum(flux_call(m, x)), FLUX_F32)), m));
    CHECK(flux_loss_scale(opt) == 65536 && flux_skipped(opt) == 0);
}

/* Two steps overflow; from then on each doubling is 2000 steps after the last. */
TEST(the_scale_grows_each_2000_steps) {
    flux_layer *m = flux_f16(flux_dense(1, 1, .bias = FLUX_OFF));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_descent(1e-4)), m);
    for (int i = -1; i <= 4000; i++) {
        FLUX_SCOPE {
            flux_tensor *x = flux_full_with(FLUX_SHAPE(1, 1), i < 1 ? INFINITY : 1e-3, FLUX_F16);
            flux_update(opt, m, flux_gradient(flux_scaled_loss(opt, flux_to_dtype(flux_sum(flux_call(m, x)), FLUX_F32)), m));
        }
        if (i % 2000 == 0 || i % 2000 == 1999) CHECK(flux_loss_scale(opt) == 8192 << i / 2000);
    }
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
    flux_tensor *loss = flux_sum(flux_call(m, flux_full_with(FLUX_SHAPE(2, 3), 1, FLUX_F16)));
    flux_grads *g = flux_gradient(flux_add(flux_scaled_loss(opt, loss), 1), m);
    CHECK_ERROR(flux_update(opt, m, g), "update: these gradients are not of the loss that flux_scaled_loss gave: scale last");
    CHECK_ERROR(flux_scaled_loss(opt, NULL), "scaled_loss: argument loss is NULL");
    CHECK_ERROR(flux_scaled_loss(opt, flux_tuple(loss, loss)), "scaled_loss: ");
}

static flux_tensor *train_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_logitcrossentropy(flux_call(m, x), y); }

/* ---------------- formulas are computed in float32 and rounded once: each beside itself in float64, at the same halves. And what
   float64 gives is itself right to ten digits, so that nothing in it is a float32: its gradient beside differences of eighth order. */

typedef flux_tensor *(*formula)(flux_tensor *x);
static float part_of(int i) { return (float)((i * 7919 + 13) % 997) / 997.0f; }

/* Halves spread over lo to hi, as float64. */
static flux_tensor *halves(flux_dtype t, double lo, double hi, flux_shape s) {
    float v[512];
    for (int i = 0; i < 512; i++) v[i] = (float)lo + (float)(hi - lo) * part_of(i);
    return flux_to_dtype(flux_eval(flux_to_dtype(flux_from_with(v, FLUX_F32, s), t)), FLUX_F64);
}

/* Whether got is want rounded to t, but for float32's own noise, which is of numbers of about 1 at least. */
static void check_rounded(const char *name, const char *what, flux_dtype t, flux_tensor *got, flux_tensor *want, double times) {
    const double *a = (const double *)flux_data(flux_cpu(flux_to_dtype(got, FLUX_F64))), *b = (const double *)flux_data(flux_cpu(want)), once = t == FLUX_F16 ? 0.000489 : 0.00392;
    double most = 1;
    if (!CHECK(a && b && flux_dtype_of(got) == t && flux_len(got) == flux_len(want))) return;
    for (int64_t i = 0; i < flux_len(want); i++) most = fabs(b[i]) > most ? fabs(b[i]) : most;
    for (int64_t i = 0; i < flux_len(want); i++)
        if (!CHECK(fabs(a[i] - b[i]) <= times * once * fabs(b[i]) + 1e-6 * most)) {
            fprintf(stderr, "    %s of %s, %s %d: %.9g, not %.9g\n", name, flux_dtype_name(t), what, (int)i, a[i], b[i]);
            return;
        }
}

/* A formula of x, its result weighted by halves so that its gradient has something to do. */
static flux_tensor *weighted(flux_tensor *y, flux_tensor **weights, flux_dtype t) {
    if (!*weights) *weights = halves(t, 0.5, 1.5, flux_shape_of(y));
    return flux_sum(flux_mul(y, flux_to_dtype(*weights, flux_dtype_of(y))));
}
static double along(formula f, flux_tensor *x, flux_tensor *way, double by, flux_tensor **weights) {
    flux_seed(1);
    return flux_item(weighted(f(flux_add(x, flux_mul(way, by))), weights, FLUX_F64));
}
static void check_slope(const char *name, formula f, flux_tensor *x, flux_tensor *d, double span, flux_tensor *weights) {
    static const double by[] = { 4 / 5.0, -1 / 5.0, 4 / 105.0, -1 / 280.0 };
    flux_tensor *way = halves(FLUX_F16, -1, 1, flux_shape_of(x));
    double step = 1e-3 * span, slope = 0, size = flux_item(flux_sum(flux_abs(flux_mul(d, way))));
    for (int k = 0; k < 4; k++) slope += by[k] * (along(f, x, way, (k + 1) * step, &weights) - along(f, x, way, -(k + 1) * step, &weights)) / step;
    if (!CHECK(fabs(slope - flux_item(flux_sum(flux_mul(d, way)))) <= 1e-10 * (size + 1)))
        fprintf(stderr, "    %s in f64: the slope %.13g, by differences %.13g\n", name, flux_item(flux_sum(flux_mul(d, way))), slope);
}
static void check_formula(const char *name, formula f, double lo, double hi, flux_shape s, double times, bool smooth) {
    static int formulas;                   /* the short form takes f16 and bf16 by turns */
    formulas++;
    for (int bf = 0; bf < 2; bf++) FLUX_SCOPE {
        if (test_left_out(formulas + bf, 2)) continue;
        flux_dtype t = bf ? FLUX_BF16 : FLUX_F16;
        flux_tensor *wide = halves(t, lo, hi, s), *x = flux_eval(flux_to_dtype(wide, t)), *weights = NULL;
        flux_seed(1);
        flux_tensor *y = f(x);
        flux_seed(1);
        flux_tensor *z = f(wide);
        check_rounded(name, "value", t, y, z, 1);
        flux_tensor *d = flux_grad(flux_gradient(weighted(y, &weights, t), x), x);
        flux_tensor *e = flux_grad(flux_gradient(weighted(z, &weights, t), wide), wide);
        check_rounded(name, "gradient", t, d, e, times);
        if (smooth && !bf) check_slope(name, f, wide, e, (hi - lo) / 6, weights);
    }
}

#define F(name, expression) static flux_tensor *f_##name(flux_tensor *x) { return expression; }
static flux_tensor *in_training(flux_layer *m, flux_tensor *x) {
    m = flux_dtype_of(x) == FLUX_F64 ? flux_f64(m) : m;
    flux_trainmode(m, true);
    return flux_call(m, x);
}
#define OF(layer) in_training(layer, x)
F(mean0, flux_mean(x, 0)) F(var0, flux_var(x, 0)) F(std0, flux_std(x, 0)) F(norm0, flux_norm(x, 0)) F(logsumexp0, flux_logsumexp(x, 0)) F(prod1, flux_prod(x, 1))
F(softmax1, flux_softmax(x, 1)) F(logsoftmax1, flux_logsoftmax(x, 1)) F(glu, flux_glu(x, 0)) F(square, flux_square(x)) F(pow, flux_pow(x, 2.3))
F(div, flux_div(x, flux_slice(x, 1, 0, 1))) F(rsqrt, flux_rsqrt(x)) F(sqrt, flux_sqrt(x)) F(log1p, flux_log1p(x)) F(expm1, flux_expm1(x)) F(sin, flux_sin(x)) F(cos, flux_cos(x))
F(dot, flux_dot(flux_reshape(x, -1), flux_reshape(flux_flip(x, 0), -1))) F(stretched, flux_mul(x, flux_slice(x, 1, 0, 1)))
F(normalise, flux_normalise(x, FLUX_SHAPE(0), 1e-5)) F(layernorm, OF(flux_layernorm(FLUX_SHAPE(8))))
F(batchnorm, OF(flux_batchnorm(4))) F(groupnorm, OF(flux_groupnorm(4, 2))) F(instancenorm, OF(flux_instancenorm(4)))
F(meanpool, flux_meanpool(x, .window = FLUX_SHAPE(2, 2))) F(meanpools, flux_meanpool(x, .window = FLUX_SHAPE(3, 3), .stride = FLUX_SHAPE(1), .pad = FLUX_SHAPE(1)))
F(lpnormpool, flux_lpnormpool(x, .window = FLUX_SHAPE(2, 2))) F(globalmean, OF(flux_globalmeanpool())) F(adaptivemean, OF(flux_adaptivemeanpool(FLUX_SHAPE(2, 2))))
F(bilinear, OF(flux_upsample(FLUX_BILINEAR, .size = FLUX_SHAPE(7, 5)))) F(alphadropout, OF(flux_alphadropout(0.5)))
F(smoothing, flux_label_smoothing(x, 0.1, 0)) F(rrelu, flux_rrelu(x))
#undef F

typedef struct formula_row { const char *name; formula f; double lo, hi; } formula_row;
#define ROW(name, lo, hi) { #name, f_##name, lo, hi }
TEST(reductions_of_halves_round_once) {
    static const formula_row rows[] = { ROW(mean0, -3, 3), { "large mean", f_mean0, 20000, 60000 }, ROW(var0, -3, 3), { "large var", f_var0, -200, 200 }, ROW(std0, -3, 3), { "large std", f_std0, -9000, 9000 }, ROW(norm0, -3, 3),
        { "large norm", f_norm0, -9000, 9000 }, ROW(logsumexp0, -5, 5), ROW(softmax1, -5, 5), ROW(logsoftmax1, -5, 5), ROW(prod1, 0.5, 1.5), ROW(dot, -3, 3) };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_formula(rows[i].name, rows[i].f, rows[i].lo, rows[i].hi, FLUX_SHAPE(16, 8), 1, true);
    check_formula("stretched", f_stretched, -3, 3, FLUX_SHAPE(16, 8), 3, true);   /* x is both operands: two halves are added up */
    check_formula("div", f_div, 0.5, 3, FLUX_SHAPE(16, 8), 3, true);
}

TEST(operations_on_halves_round_once) {
    static const formula_row rows[] = { ROW(square, -3, 3), ROW(pow, 0.5, 3), ROW(sqrt, 0.1, 3), ROW(rsqrt, 0.1, 3), ROW(log1p, -0.5, 3), ROW(expm1, -3, 3), ROW(sin, -3, 3),
        ROW(cos, -3, 3), ROW(glu, -5, 5), ROW(smoothing, 0, 1) };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_formula(rows[i].name, rows[i].f, rows[i].lo, rows[i].hi, FLUX_SHAPE(16, 8), 1, true);
    check_formula("rrelu", f_rrelu, -3, 3, FLUX_SHAPE(16, 8), 1, false);
    static const struct { const char *name; formula f; } acts[] = { { "logsigmoid", flux_logsigmoid }, { "gelu_tanh", flux_gelu_tanh }, { "gelu_sigmoid", flux_gelu_sigmoid }, { "gelu_erf", flux_gelu_erf },
        { "swish", flux_swish }, { "lisht", flux_lisht }, { "logcosh", flux_logcosh }, { "mish", flux_mish }, { "softplus", flux_softplus }, { "tanhshrink", flux_tanhshrink } };
    static const struct { const char *name; formula f; } bent[] = { { "hardsigmoid", flux_hardsigmoid }, { "hardtanh", flux_hardtanh }, { "relu6", flux_relu6 }, { "selu", flux_selu },
        { "hardswish", flux_hardswish }, { "softsign", flux_softsign }, { "leakyrelu", flux_leakyrelu }, { "elu", flux_elu }, { "celu", flux_celu },
        { "softshrink", flux_softshrink }, { "trelu", flux_trelu } };
    for (size_t i = 0; i < sizeof bent / sizeof *bent; i++) check_formula(bent[i].name, bent[i].f, -4.4, 4.4, FLUX_SHAPE(16, 8), 1, false);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) check_formula(acts[i].name, acts[i].f, -4.4, 4.4, FLUX_SHAPE(16, 8), 1, true);
}

TEST(layers_of_halves_round_once) {
    static const formula_row rows[] = { ROW(batchnorm, -3, 3), ROW(groupnorm, -3, 3), ROW(instancenorm, -3, 3), ROW(meanpool, 20000, 60000), ROW(lpnormpool, 0.1, 600),
        ROW(globalmean, 20000, 60000), ROW(adaptivemean, -3, 3), ROW(alphadropout, -3, 3) };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_formula(rows[i].name, rows[i].f, rows[i].lo, rows[i].hi, FLUX_SHAPE(4, 4, 4, 2), 1, true);
    /* where windows overlap, each one's part of a gradient is a half before these are added up */
    check_formula("meanpools", f_meanpools, -3, 3, FLUX_SHAPE(4, 4, 4, 2), 2, true);
    check_formula("bilinear", f_bilinear, -3, 3, FLUX_SHAPE(4, 4, 4, 2), 3, true);
    check_formula("normalise", f_normalise, -3, 3, FLUX_SHAPE(8, 6), 1, true);
    check_formula("layernorm", f_layernorm, -3, 3, FLUX_SHAPE(8, 6), 1, true);
}

/* By y and yhat, with the mean and the sum as aggregate: a sum of f16 may be beyond 65504, a mean is not. */
typedef flux_tensor *(*loss_fn)(flux_loss_opts o);
static loss_fn loss_now;
static flux_tensor *loss_y;
static flux_tensor *loss_of(flux_tensor *x) {
    flux_loss_opts o;
    memset((void *)&o, 0, sizeof o);
    o.yhat = x, o.y = flux_to_dtype(loss_y, flux_dtype_of(x)), o.eps = 1e-3;
    return loss_now(o);
}
TEST(losses_of_halves_round_once) {
#define LOSS_ROW(name, per) { #name, flux_##name##_with },
    static const struct { const char *name; loss_fn f; } rows[] = { FLUX__LOSSES(LOSS_ROW) };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        loss_now = rows[i].f;
        loss_y = halves(FLUX_BF16, 0, 1, FLUX_SHAPE(8, 16));
        check_formula(rows[i].name, loss_of, 0.1, 0.9, FLUX_SHAPE(8, 16), 1, strcmp(rows[i].name, "mae") != 0);
    }
    loss_now = flux_mse_with;
    loss_y = halves(FLUX_BF16, -200, 0, FLUX_SHAPE(8, 16));
    check_formula("large mse", loss_of, 0, 20, FLUX_SHAPE(8, 16), 1, true);
}

TEST(a_mean_of_halves_does_not_overflow) {
    flux_tensor *x = flux_full_with(FLUX_SHAPE(128), 1000, FLUX_F16);
    flux_grads *g = flux_gradient(flux_mean(x), x);
    CHECK_NEAR(flux_item(flux_mean(x)), 1000, 0);
    CHECK_NEAR(flux_item(flux_max(flux_grad(g, x))), 1.0 / 128, 0);
    CHECK_NEAR(flux_item(flux_var(x)), 0, 0);
    CHECK_NEAR(flux_item(flux_norm(x)), 11312, 0);         /* sqrt(128) 1000 is 11313.7; f16 has every eighth number there */
    CHECK_NEAR(flux_item(flux_mse(x, flux_mul(x, 0.75))), 62500, 1e-3);
    CHECK(isinf(flux_item(flux_sum(x))));                  /* a sum has the dtype of what it sums */
}

/* Cells round their states, and not each operation: the mean distance from the same halves in float64, in epsilons. */
TEST(recurrent_layers_of_halves) {
    static const double most[3][2] = { { 0.038, 0.1 }, { 0.078, 0.24 }, { 0.078, 0.24 } };
    for (int kind = 0; kind < 3; kind++)
        for (int bf = 0; bf < 2; bf++) FLUX_SCOPE {
            double off = 0, slope_off = 0, epsilon = bf ? 7.8125e-3 : 9.765625e-4;
            for (int seed = 0; seed < 10; seed++) FLUX_SCOPE {
                flux_seed((uint64_t)seed);
                flux_layer *m = kind == 0 ? flux_lstm(8, 16) : kind == 1 ? flux_gru(8, 16) : flux_gruv3(8, 16);
                flux_layer *half = bf ? flux_bf16(m) : flux_f16(m), *wide = flux_f64(half);
                flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(8, 6, 4), bf ? FLUX_BF16 : FLUX_F16)), *z = flux_to_dtype(x, FLUX_F64);
                flux_tensor *y = flux_call(half, x), *v = flux_call(wide, z);
                flux_tensor *d = flux_grad(flux_gradient(flux_sum(y), x), x), *e = flux_grad(flux_gradient(flux_sum(v), z), z);
                off += flux_item(flux_mean(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), v)))) / epsilon / 10;
                slope_off += flux_item(flux_mean(flux_abs(flux_sub(flux_to_dtype(d, FLUX_F64), e)))) / epsilon / 10;
            }
            if (!CHECK(off < most[kind][0]) || !CHECK(slope_off < most[kind][1])) fprintf(stderr, "    kind %d: %g, gradients %g\n", kind, off, slope_off);
        }
}

/* Of a tensor that is used often the gradient is a sum, which in bf16 would go no further than 256. */
TEST(gradients_of_many_uses_add_up_in_f32) {
    flux_tensor *x = flux_full_with(FLUX_SHAPE(2), 1, FLUX_BF16), *sum = flux_zeros(2);
    for (int i = 0; i < 600; i++) sum = flux_add(sum, flux_to_dtype(x, FLUX_F32));
    CHECK_NEAR(flux_item(flux_max(flux_grad(flux_gradient(flux_sum(sum), x), x))), 600, 0);
}

/* Whatever is used how often: its gradient has its dtype, and was rounded once, where each of the parts but the first alone is
   less than half of what the format holds beside 1. */
TEST(gradients_of_few_uses_round_once) {
    for (int t = FLUX_F16; t <= FLUX_BF16; t++)
        for (int uses = 1; uses < 8; uses++) FLUX_SCOPE {
            const double small = t == FLUX_F16 ? 1.0 / 4096 : 1.0 / 512, unit = 4 * small, whole = 1 + (uses - 1) * small;
            flux_tensor *x = flux_full_with(FLUX_SHAPE(2), 3, (flux_dtype)t), *z = flux_neg(x), *sum = flux_zeros(2);
            for (int i = 0; i < uses; i++) sum = flux_add(sum, flux_mul(flux_to_dtype(z, FLUX_F32), i ? small : 1));
            flux_grads *g = flux_gradient(flux_sum(sum), x, z);
            CHECK(flux_dtype_of(flux_grad(g, x)) == (flux_dtype)t && flux_dtype_of(flux_grad(g, z)) == (flux_dtype)t);
            CHECK_NEAR(flux_item(flux_max(flux_grad(g, z))), nearbyint(whole / unit) * unit, 0);
            CHECK_NEAR(flux_item(flux_max(flux_grad(g, x))), -flux_item(flux_max(flux_grad(g, z))), 0);
        }
}

/* So does an index that comes often: a gather's gradient, and an embedding's, which f16 would stop at 2048. */
TEST(what_an_index_meets_adds_up_in_f32) {
    flux_tensor *many = flux_full_with(FLUX_SHAPE(3000), 0, FLUX_I64);
    for (int t = FLUX_F16; t <= FLUX_BF16; t++) {
        flux_tensor *ones = flux_full_with(FLUX_SHAPE(1, 3000), 1, (flux_dtype)t), *x = flux_full_with(FLUX_SHAPE(1, 2), 5, (flux_dtype)t);
        double gap = t == FLUX_F16 ? 2 : 16;                   /* between numbers of that size */
        CHECK_NEAR(flux_item(flux_max(flux_scatter_add(x, 1, many, ones))), 3005, gap);
        CHECK_NEAR(flux_item(flux_max(flux_grad(flux_gradient(flux_sum(flux_gather(x, 1, many)), x), x))), 3000, gap);
        CHECK(flux_dtype_of(flux_scatter_add(x, 1, many, ones)) == (flux_dtype)t);
    }
}

/* What a program itself widened stays the tensor that its gradients are by, the second one too. */
/* A weight's gradient is a sum over samples too: each sample's part is 1 + 2^-8 here (in f16 1 + 2^-11), which the format does not hold, and all are
   added before anything is rounded. */
TEST(gradients_of_weights_round_once) {
    for (int t = 0; t < 2; t++)
        FLUX_SCOPE {
            flux_dtype half = t ? FLUX_F16 : FLUX_BF16;
            float small = t ? 1.0f / 2048 : 1.0f / 256, sum = 100 * (1 + small), image[2 * 100];
            for (int i = 0; i < 100; i++) image[2 * i] = 1, image[2 * i + 1] = small;
            flux_tensor *x = flux_to_dtype(flux_reshape(flux_from(image, 200), 2, 1, 100), half);
            flux_tensor *w = flux_to_dtype(flux_ones(1, 1, 1), half), *v = flux_to_dtype(flux_ones(1, 1), half);
            flux_tensor *y = flux_conv(x, w), *z = flux_matmul(v, flux_permute(x, 1, 0, 2));
            flux_grads *g = flux_gradient(flux_add(flux_sum(flux_to_dtype(y, FLUX_F32)), flux_sum(flux_to_dtype(z, FLUX_F32))), w, v);
            CHECK(flux_dtype_of(flux_grad(g, w)) == half && flux_dtype_of(flux_grad(g, v)) == half);
            CHECK_NEAR(flux_item(flux_grad(g, w)), flux_item(flux_to_dtype(flux_full(sum, 1), half)), 0);
            CHECK_NEAR(flux_item(flux_grad(g, v)), flux_item(flux_to_dtype(flux_full(sum, 1), half)), 0);
        }
}
TEST(gradients_by_what_was_widened) {
    flux_tensor *x = flux_full_with(FLUX_SHAPE(2), 3, FLUX_F16), *w = flux_to_dtype(x, FLUX_F32), *back = flux_to_dtype(w, FLUX_F16);
    CHECK_NEAR(flux_item(flux_max(flux_grad(flux_gradient(flux_sum(back), w), w))), 1, 0);
    flux_tensor *d = flux_grad(flux_gradient(flux_sum(flux_pow(w, 3)), w), w);
    CHECK_NEAR(flux_item(flux_max(flux_grad(flux_gradient(flux_sum(d), w), w))), 18, 0);
    flux_tensor *e = flux_grad(flux_gradient(flux_sum(flux_lisht(x)), x), x);     /* a formula's, through float32 */
    CHECK_NEAR(flux_item(flux_max(flux_grad(flux_gradient(flux_sum(e), x), x))), 2 * pow(cosh(3), -2) * (1 - 3 * tanh(3)), 2e-5);
}

/* An autoencoder of batch 128, whose squared errors add up to more than f16 has. */
static flux_tensor *rebuild(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
TEST(an_autoencoder_in_f16_learns) {
    for (int bf = 0; bf < 2; bf++) FLUX_SCOPE {
        flux_dtype t = bf ? FLUX_BF16 : FLUX_F16;
        flux_seed(3);
        flux_layer *m = flux_chain(flux_dense(64, 32, flux_mish), flux_dense(32, 64));
        m = bf ? flux_bf16(m) : flux_f16(m);
        flux_tensor *x = flux_eval(flux_to_dtype(flux_mul(flux_randn(64, 128), 8), t));
        flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
        double first = flux_item(rebuild(m, x, x)), sum = 64 * 128 * first;
        CHECK(sum > 65504 && first < 200);
        for (int i = 0; i < 30; i++) REQUIRE(flux_train(rebuild, m, flux_dataloader(flux_tuple(x, x), .batchsize = 128), opt) == 0);
        CHECK(flux_item(rebuild(m, x, x)) < 0.75 * first);
        CHECK(flux_skipped(opt) <= 3);
    }
}

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
    flux_tensor *x = flux_full_with(FLUX_SHAPE(2, 1), 100, FLUX_F16);
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
    REQUIRE(flux_load_all_with(path, 2, "m, opt", others) == 0);
    CHECK(flux_loss_scale(again) == scale && flux_skipped(again) == skipped);
    some_steps(fresh, again, x, 30, 2050);
    CHECK(flux_loss_scale(opt) > scale && flux_loss_scale(opt) == flux_loss_scale(again) && flux_skipped(opt) == flux_skipped(again));
    CHECK(apart(flux_param(m, "layers.0.weight"), flux_param(fresh, "layers.0.weight")) == 0);
    CHECK(apart(flux_param(m, "layers.1.bias"), flux_param(fresh, "layers.1.bias")) == 0);
    REQUIRE(flux_save_all(path, opt) == 0);
    flux_tensor *master = flux_load_tensor(path, "opt.layers.0.weight.master"), *counts = flux_load_tensor(path, "opt.loss_scale");
    const void *other[] = { again };
    REQUIRE(flux_save_all_with(path, 1, "opt", other) == 0);
    CHECK(apart(master, flux_load_tensor(path, "opt.layers.0.weight.master")) == 0);
    CHECK(apart(counts, flux_load_tensor(path, "opt.loss_scale")) == 0);
    remove(path);
}

TEST(a_scale_loaded_under_a_recorded_loss) {
    flux_layer *m = flux_f16(flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_adam(0.01)), m);
    flux_tensor *x = flux_full_with(FLUX_SHAPE(2, 1), 100, FLUX_F16);
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
