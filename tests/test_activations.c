/* Activations: Flux's golden values, PyTorch's values and derivatives, finite differences, and
   what lies at the edges. */
#include "test.h"
#include "fixtures/layers.h"

typedef struct act { const char *name; flux_fn f; const double *y, *g; } act;
#define POINTS 14
#define ACT(name) { #name, flux_##name, fix_act_##name, fix_act_##name##_gx }
static const act acts[] = { ACT(sigmoid),   ACT(hardsigmoid), ACT(logsigmoid),   ACT(tanh),
                            ACT(hardtanh),  ACT(relu),        ACT(relu6),        ACT(selu),
                            ACT(gelu_tanh), ACT(gelu_erf),    ACT(gelu_sigmoid), ACT(swish),
                            ACT(hardswish), ACT(lisht),       ACT(logcosh),      ACT(mish),
                            ACT(softplus),  ACT(softsign),    ACT(tanhshrink),   ACT(leakyrelu),
                            ACT(elu),       ACT(celu),        ACT(softshrink),   ACT(trelu) };
#define ACTS (int)(sizeof acts / sizeof *acts)

static void compare(const char *name, flux_tensor *got, const double *want, int n, double tol) {
    flux_tensor *d = flux_to_dtype(got, FLUX_F64);
    const double *v = flux_len(d) == n ? (const double *)flux_data(d) : NULL;
    if (!CHECK(v != NULL)) fprintf(stderr, "    in %s\n", name);
    for (int i = 0; v && i < n; i++)
        if (!CHECK(test_close(v[i], want[i], tol)))
            fprintf(stderr, "    in %s, element %d: %.10g, not %.10g\n", name, i, v[i], want[i]);
}

/* Value and derivative at the fixture's points, in dtype t. */
static void against_torch(const act *a, flux_dtype t, double tol) {
    flux_tensor *x = flux_to_dtype(flux_from(fix_act_x, POINTS), t), *y = a->f(x);
    compare(a->name, y, a->y, POINTS, tol);
    CHECK(flux_dtype_of(y) == t);
    flux_grads *g = flux_gradient(flux_sum(y), x);
    compare(a->name, flux_grad(g, x), a->g, POINTS, tol);
}

TEST(values_and_derivatives_as_pytorch_in_f64) {
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE if (!test_left_out(i, 4)) against_torch(&acts[i], FLUX_F64, 2e-8);
}

TEST(values_and_derivatives_as_pytorch_in_f32) {
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE if (!test_left_out(i + 2, 4)) against_torch(&acts[i], FLUX_F32, 3e-6);
}

TEST(values_in_half_formats) {
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE {
            if (test_left_out(i, 8)) continue;
            compare(acts[i].name, acts[i].f(flux_to_dtype(flux_from(fix_act_x, POINTS), FLUX_F16)),
                    acts[i].y, POINTS, 0.02);
            compare(acts[i].name, acts[i].f(flux_to_dtype(flux_from(fix_act_x, POINTS), FLUX_BF16)),
                    acts[i].y, POINTS, 0.12);
    }
}

/* ---------------- each activation over numbers from 1e-12 to 1e4 of either sign, against its formula in double: no form that
   cancels near 0 or far out. `value` and `slope` are how far off in the absolute they may be, in epsilons, beside a few
   roundings: 0 where the relative error is small everywhere. Slopes of tanh and sigmoid come from their values. */

static double sigmoid_of(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double softplus_of(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static double cut_of(double x, double lo, double hi) { return x < lo ? lo : x > hi ? hi : x; }
static double sech2_of(double x) { return fabs(x) > 300 ? 0 : 1 / (cosh(x) * cosh(x)); }
static double logcosh_of(double x) { return fabs(x) > 300 ? fabs(x) - log(2.0) : log1p(2 * sinh(x / 2) * sinh(x / 2)); }
static double tanhshrink_of(double x) {
    double t = x * x;
    if (t > 0.01) return x - tanh(x);
    return x * t * (1 / 3.0 - t * (2 / 15.0 - t * (17 / 315.0 - t * (62 / 2835.0 - t * (1382 / 155925.0 - t * (21844 / 6081075.0 - t * 929569 / 638512875.0))))));
}
static double gelu_arg(double x) { return 1.5957691216057308 * x * (1 + 0.044715 * x * x); }
static double gelu_by(double x) { return x * sigmoid_of(gelu_arg(x)); }
static double gelu_slope(double x) {
    double s = sigmoid_of(gelu_arg(x)), rest = sigmoid_of(-gelu_arg(x));
    return s + (rest > 0 ? x * s * rest * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x) : 0);
}
static double normal_of(double x) { return 0.5 * erfc(-x * 0.7071067811865476); }
#define TRUE(name, value, slope) static double v_##name(double x) { return value; } static double d_##name(double x) { return slope; }
TRUE(sigmoid, sigmoid_of(x), sigmoid_of(x) * sigmoid_of(-x))
TRUE(hardsigmoid, cut_of((x + 3) / 6, 0, 1), fabs(x) < 3 ? 1 / 6.0 : 0)
TRUE(logsigmoid, -softplus_of(-x), sigmoid_of(-x))
TRUE(tanh, tanh(x), sech2_of(x))
TRUE(hardtanh, cut_of(x, -1, 1), fabs(x) < 1)
TRUE(relu, x > 0 ? x : 0, x > 0)
TRUE(relu6, cut_of(x, 0, 6), x > 0 && x < 6)
TRUE(selu, 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x)), 1.0507009873554805 * (x > 0 ? 1 : 1.6732632423543772 * exp(x)))
TRUE(gelu_tanh, gelu_by(x), gelu_slope(x))
TRUE(gelu_erf, x * normal_of(x), normal_of(x) + x * exp(-x * x / 2) * 0.3989422804014327)
TRUE(gelu_sigmoid, gelu_by(x), gelu_slope(x))
TRUE(swish, x * sigmoid_of(x), sigmoid_of(x) + x * sigmoid_of(x) * sigmoid_of(-x))
TRUE(hardswish, x * cut_of((x + 3) / 6, 0, 1), x < -3 ? 0 : x > 3 ? 1 : (2 * x + 3) / 6)
TRUE(lisht, x * tanh(x), tanh(x) + x * sech2_of(x))
TRUE(logcosh, logcosh_of(x), tanh(x))
TRUE(mish, x * tanh(softplus_of(x)), tanh(softplus_of(x)) + x * sigmoid_of(x) * sech2_of(softplus_of(x)))
TRUE(softplus, softplus_of(x), sigmoid_of(x))
TRUE(softsign, x / (1 + fabs(x)), 1 / ((1 + fabs(x)) * (1 + fabs(x))))
TRUE(tanhshrink, tanhshrink_of(x), tanh(x) * tanh(x))
TRUE(leakyrelu, x > 0 ? x : 0.01 * x, x > 0 ? 1 : 0.01)
TRUE(elu, x > 0 ? x : expm1(x), x > 0 ? 1 : exp(x))
TRUE(celu, x > 0 ? x : expm1(x), x > 0 ? 1 : exp(x))
TRUE(softshrink, x - cut_of(x, -0.5, 0.5), fabs(x) > 0.5)
TRUE(trelu, x > 1 ? x : 0, x > 1)

typedef struct truth { double (*v)(double), (*d)(double), value, slope; } truth;
#define KNOWN(name, value, slope) { v_##name, d_##name, value, slope }
static const truth truths[] = {           /* in the order of acts */
    KNOWN(sigmoid, 0, 1), KNOWN(hardsigmoid, 1, 0), KNOWN(logsigmoid, 0, 0), KNOWN(tanh, 0, 1.5), KNOWN(hardtanh, 0, 0), KNOWN(relu, 0, 0), KNOWN(relu6, 0, 0), KNOWN(selu, 0, 0),
    KNOWN(gelu_tanh, 1e-3, 1), KNOWN(gelu_erf, 5, 5), KNOWN(gelu_sigmoid, 1e-3, 1), KNOWN(swish, 0, 1), KNOWN(hardswish, 0, 1), KNOWN(lisht, 0, 0), KNOWN(logcosh, 0, 0),
    KNOWN(mish, 0, 1), KNOWN(softplus, 0, 0), KNOWN(softsign, 0, 1), KNOWN(tanhshrink, 0, 0), KNOWN(leakyrelu, 0, 0), KNOWN(elu, 0, 0), KNOWN(celu, 0, 0), KNOWN(softshrink, 0, 0), KNOWN(trelu, 0, 0) };

/* Where a kink lies, either slope will do; and numbers so small that they have fewer digits are left out. */
static bool at_a_kink(double x) { return x == 0 || fabs(fabs(x) - 0.5) < 1e-9 || fabs(fabs(x) - 1) < 1e-9 || fabs(fabs(x) - 3) < 1e-9 || fabs(x - 6) < 1e-9; }
static void over_the_range(int i, flux_dtype t, double epsilon, double roundings) {
    static double at[1400];
    int n = 0;
    for (double x = 1.01e-12; x < 1e4; x *= 1.12) at[n++] = x, at[n++] = -x;
    for (double x = -12; x < 12; x += 0.0337) at[n++] = x;
    flux_tensor *x = flux_eval(flux_to_dtype(flux_from(at, n), t)), *y = acts[i].f(x), *d = flux_grad(flux_gradient(flux_sum(y), x), x);
    const double *from = (const double *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F64)));
    const double *v = (const double *)flux_data(flux_cpu(flux_to_dtype(y, FLUX_F64))), *s = (const double *)flux_data(flux_cpu(flux_to_dtype(d, FLUX_F64)));
    double small = t == FLUX_F16 ? 6e-5 : t == FLUX_F64 ? 1e-300 : 1.2e-38, step = t == FLUX_F16 ? 6e-8 : t == FLUX_F64 ? 1e-300 : 1.2e-38;
    for (int k = 0; CHECK(from && v && s) && k < n; k++) {
        double value = truths[i].v(from[k]), slope = truths[i].d(from[k]);
        if (at_a_kink(from[k])) continue;
        double value_off = roundings * epsilon * fabs(value) + truths[i].value * (t == FLUX_F64 ? 2.2e-16 : 1.2e-7) + (fabs(value) < small ? step : 0);
        double slope_off = roundings * epsilon * fabs(slope) + truths[i].slope * (i == 0 || i == 3 || t == FLUX_F64 ? epsilon : 1.2e-7) + (fabs(slope) < small ? step : 0);
        if (!CHECK(fabs(v[k] - value) <= value_off) || !CHECK(fabs(s[k] - slope) <= slope_off)) {
            fprintf(stderr, "    %s in %s at %.9g: %.9g, not %.9g, or the slope %.9g, not %.9g\n", acts[i].name, flux_dtype_name(t), from[k], v[k], value, s[k], slope);
            return;
        }
    }
}
TEST(over_the_whole_range_in_f64) { for (int i = 0; i < ACTS; i++) FLUX_SCOPE if (!test_left_out(i, 3)) over_the_range(i, FLUX_F64, 2.2e-16, 400); }
TEST(over_the_whole_range_in_f32) { for (int i = 0; i < ACTS; i++) FLUX_SCOPE over_the_range(i, FLUX_F32, 1.2e-7, 8); }
TEST(half_formats_round_once) {
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE if (!test_left_out(i, 2)) over_the_range(i, FLUX_F16, 9.77e-4, 0.501);
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE if (!test_left_out(i + 1, 2)) over_the_range(i, FLUX_BF16, 7.82e-3, 0.501);
    flux_tensor *x = flux_full_with(FLUX_SHAPE(1), -3, FLUX_BF16);
    CHECK_NEAR(flux_item(flux_gelu_erf(x)), -0.00404969, 1.6e-5);
    CHECK_NEAR(flux_item(flux_logcosh(flux_full(1e-4, 1))), 5e-9, 1e-15);
}

typedef struct golden { const char *name; flux_fn f; double y[4]; } golden;
static const golden flux_says[] = {
    { "sigmoid", flux_sigmoid, { .1824255, .3775407, .6224593, .8175745 } },
    { "hardsigmoid", flux_hardsigmoid, { .25, .4166667, .5833333, .75 } },
    { "logsigmoid", flux_logsigmoid, { -1.7014133, -.9740770, -.4740770, -.2014133 } },
    { "elu", flux_elu, { -.7768698, -.3934693, .5, 1.5 } },
    { "celu", flux_celu, { -.7768698, -.3934693, .5, 1.5 } },
    { "selu", flux_selu, { -1.3658144, -.6917582, .5253505, 1.5760515 } },
    { "gelu", flux_gelu, { -.1004284, -.1542860, .3457140, 1.3995716 } },
    { "gelu_erf", flux_gelu_erf, { -.1002108, -.1542688, .3457312, 1.3997892 } },
    { "swish", flux_swish, { -.2736383, -.1887703, .3112297, 1.2263617 } },
    { "hardswish", flux_hardswish, { -.375, -.2083333, .2916667, 1.125 } },
    { "lisht", flux_lisht, { 1.3577224, .2310586, .2310586, 1.3577224 } },
    { "logcosh", flux_logcosh, { .8554402, .1201145, .1201145, .8554402 } },
    { "mish", flux_mish, { -.2980997, -.2207438, .3752452, 1.4033783 } },
    { "softsign", flux_softsign, { -.6, -.3333333, .3333333, .6 } },
    { "softshrink", flux_softshrink, { -1, 0, 0, 1 } },
    { "tanhshrink", flux_tanhshrink, { -.5948517, -.0378828, .0378828, .5948517 } },
    { "trelu", flux_trelu, { 0, 0, 0, 1.5 } },
    { "leakyrelu", flux_leakyrelu, { -.015, -.005, .5, 1.5 } },
    { "tanh", flux_tanh, { -.9051483, -.4621172, .4621172, .9051483 } },
    { "relu", flux_relu, { 0, 0, .5, 1.5 } },
    { "relu6", flux_relu6, { 0, 0, .5, 1.5 } },
    { "identity", flux_identity, { -1.5, -.5, .5, 1.5 } },
};

TEST(golden_values_of_flux) {
    float x[4] = { -1.5f, -0.5f, 0.5f, 1.5f };
    for (size_t i = 0; i < sizeof flux_says / sizeof *flux_says; i++) FLUX_SCOPE
        compare(flux_says[i].name, flux_says[i].f(flux_from(x, 4)), flux_says[i].y, 4, 2e-7);
}

static flux_tensor *sum_of(flux_tensor *x, void *user) {
    return flux_sum(((const act *)user)->f(x));
}
/* A gradient, to be differentiated again. */
static flux_tensor *slope_of(flux_tensor *x, void *user) {
    flux_grads *g = flux_gradient(flux_sum(((const act *)user)->f(x)), x);
    flux_tensor *d = flux_grad(g, x);
    return flux_sum(flux_mul(d, d));
}

TEST(gradients_against_finite_differences) {
    double at[] = { -4.2, -2.1, -1.3, -0.8, -0.37, -0.11, 0.09, 0.28, 0.61, 1.4, 2.3, 4.9 };
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE {
        double gap = flux_gradcheck(sum_of, (void *)(intptr_t)&acts[i], flux_from(at, 12), 0);
        if (!CHECK(gap < 1e-6)) fprintf(stderr, "    %s: %g\n", acts[i].name, gap);
    }
}

/* An error is relative to the largest of all gradients, also of those at which no difference is taken. */
static flux_tensor *partly_fixed(flux_tensor *x, void *user) {
    (void)user;
    return flux_add(flux_sum(flux_mul(x, flux_to_dtype(flux_values(1, 1000, 3), FLUX_F64))), flux_sum(flux_mul(flux_slice(flux_detach(x), 0, 0, 1), 0.5)));
}
TEST(gradcheck_is_relative) {
    static const double at[3] = { 1, 2, 3 };
    CHECK_NEAR(flux_gradcheck(partly_fixed, NULL, flux_from(at, 3), 0), 0.5e-3, 1e-8);
    CHECK_NEAR(flux_gradcheck(partly_fixed, NULL, flux_from(at, 3), 1), 0.5e-3, 1e-8);
}

static flux_tensor *counted(flux_tensor *x, void *user) {
    ++*(int *)user;
    return flux_sum(flux_square(x));
}

/* The function is called once, and then as often for each probe; there are no more probes than elements. */
TEST(a_check_of_gradients_takes_so_many_probes) {
    double at[] = { -4.2, -2.1, -1.3, -0.8, -0.37, -0.11, 0.09, 0.28, 0.61, 1.4, 2.3, 4.9 };
    const int probes[] = { 0, 12, 50, 3 };
    int calls[4] = { 0, 0, 0, 0 };
    for (int i = 0; i < 4; i++) CHECK(flux_gradcheck(counted, &calls[i], flux_from(at, 12), probes[i]) < 1e-6);
    CHECK(calls[0] >= 13 && (calls[0] - 1) % 12 == 0);
    CHECK(calls[1] == calls[0] && calls[2] == calls[0] && 4 * (calls[3] - 1) == calls[0] - 1);
}

TEST(second_derivatives_against_finite_differences) {
    static const int smooth[] = { 0, 2, 3, 8, 9, 10, 11, 13, 14, 15, 16, 18 };
    double at[] = { -2.1, -1.3, -0.37, 0.28, 0.61, 1.4 };
    for (size_t i = 0; i < sizeof smooth / sizeof *smooth; i++) FLUX_SCOPE {
            double gap =
                flux_gradcheck(slope_of, (void *)(intptr_t)&acts[smooth[i]], flux_from(at, 6), 0);
            if (!CHECK(gap < 1e-5)) fprintf(stderr, "    %s: %g\n", acts[smooth[i]].name, gap);
    }
}

/* Huge inputs give finite values, or the input's own infinity, and finite derivatives. */
TEST(huge_inputs) {
    float x[4] = { -1e30f, -1e4f, 1e4f, 1e30f };
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE {
        flux_tensor *t = flux_from(x, 4), *y = acts[i].f(t);
        flux_tensor *g = flux_grad(flux_gradient(flux_sum(y), t), t);
        const float *v = flux_floats(y), *d = flux_floats(g);
        for (int k = 0; k < 4; k++) {
            bool good = v && d && v[k] - v[k] == 0 && d[k] - d[k] == 0;
            if (!CHECK(good))
                fprintf(stderr, "    %s at %g: %g, %g\n", acts[i].name, (double)x[k],
                        v ? (double)v[k] : 0.0, d ? (double)d[k] : 0.0);
        }
    }
}

TEST(nan_stays_nan) {
    float x[2] = { NAN, 1.0f };
    for (int i = 0; i < ACTS; i++) FLUX_SCOPE {
        const float *v = flux_floats(acts[i].f(flux_from(x, 2)));
        if (!CHECK(v && v[0] != v[0] && v[1] == v[1])) fprintf(stderr, "    %s\n", acts[i].name);
    }
}

TEST(integers_become_float) {
    int32_t x[3] = { -2, 0, 3 };
    CHECK_DATA(flux_leakyrelu(flux_from(x, 3)), ((double[]){ -0.02, 0, 3 }), 1e-8);
    CHECK_DATA(flux_hardsigmoid(flux_from(x, 3)), ((double[]){ 1 / 6.0, 0.5, 1 }), 1e-7);
    CHECK(flux_dtype_of(flux_elu(flux_from(x, 3))) == FLUX_F32);
}

TEST(parameters) {
    flux_tensor *x = flux_from(fix_act_x, POINTS);
    CHECK_DATA(flux_leakyrelu(x, .alpha = 0.3), fix_act_leakyrelu_03, 1e-15);
    CHECK_DATA(flux_elu(x, .alpha = 2), fix_act_elu_2, 2e-8);
    CHECK_DATA(flux_celu(x, .alpha = 2), fix_act_celu_2, 2e-8);
    CHECK_DATA(flux_softshrink(x, .alpha = 1), fix_act_softshrink_1, 1e-15);
    CHECK_DATA(flux_trelu(x, .alpha = 3), fix_act_trelu_3, 2e-8);
    CHECK_ERROR(flux_leakyrelu(x, .alpha = NAN), "leakyrelu: .alpha is");
    CHECK_ERROR(flux_celu(x, .alpha = -1), "celu: .alpha is -1");
    CHECK_ERROR(flux_softshrink(x, .alpha = -0.5), "softshrink: .alpha is -0.5");
    CHECK_ERROR(flux_elu(NULL, .alpha = 2), "elu: argument x is NULL");
}

TEST(rrelu_draws_its_slopes) {
    flux_seed(5);
    flux_tensor *y = flux_rrelu(flux_full(-1, 10000)), *mean = flux_mean(y);
    CHECK(flux_item(flux_min(y)) >= -1.0 / 3 && flux_item(flux_max(y)) <= -1.0 / 8);
    CHECK_NEAR(flux_item(mean), -11.0 / 48, 4 * 0.0602 / 100);
    CHECK(flux_item(flux_var(y)) > 0.0030);
    CHECK_NEAR(flux_item(flux_sum(flux_rrelu(flux_full(2, 10)))), 20, 0);
    CHECK_NEAR(flux_item(flux_sum(flux_rrelu(flux_full(-1, 10), .lo = 0.5, .hi = 0.5))), -5, 1e-6);
    flux_tensor *(*const plain)(flux_tensor *) = flux_rrelu;   /* as a layer's function */
    flux_seed(5);
    CHECK_NEAR(flux_item(flux_sum(flux_abs(flux_sub(plain(flux_full(-1, 10000)), y)))), 0, 0);
    CHECK_ERROR(flux_rrelu(y, .lo = 0.5, .hi = 0.25), "rrelu: .lo is 0.5 and .hi is 0.25");
}

TEST(glu_halves_a_dim) {
    double at[12];
    for (int i = 0; i < 12; i++) at[i] = 1.4 * sin(0.3 + i);
    flux_tensor *x = flux_from(at, 4, 3), *y = flux_glu(x, 0);
    CHECK_DATA(y, fix_glu, 2e-8);
    CHECK(flux_dim(y, 0) == 2 && flux_dim(y, 1) == 3);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_square(y)), x), x), fix_glu_gx, 2e-8);
    CHECK_ERROR(flux_glu(x, 1), "glu: dim 1 of 4x3 f64 can't be cut in two halves");
    CHECK_ERROR(flux_glu(x, 2), "glu: dim 2 of 4x3 f64");
    CHECK_ERROR(flux_glu(NULL, 0), "NULL");
}

TEST(softmax_over_columns) {
    double at[12];
    for (int i = 0; i < 12; i++) at[i] = 1.4 * sin(0.3 + i);
    flux_tensor *x = flux_from(at, 3, 4), *y = flux_softmax(x), *l = flux_logsoftmax(x);
    CHECK_DATA(y, fix_softmax, 2e-8);
    CHECK_DATA(l, fix_logsoftmax, 2e-8);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_square(y)), x), x), fix_softmax_gx, 2e-8);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_square(l)), x), x), fix_logsoftmax_gx, 2e-8);
}

TEST(identity_is_the_same_tensor) {
    flux_tensor *x = flux_ones(3);
    CHECK(flux_identity(x) == x);
    CHECK_ERROR(flux_identity(NULL), "identity: argument x is NULL");
}

TEST(null_in_null_out) {
    for (int i = 0; i < ACTS; i++) CHECK_ERROR(acts[i].f(NULL), "is NULL");
    flux_on_error(test_silent, NULL);
    flux_tensor *bad = flux_add(flux_ones(2), flux_ones(3));
    CHECK(!bad && strstr(flux_error(), "add"));
    for (int i = 0; i < ACTS; i++) CHECK(acts[i].f(bad) == NULL);
    CHECK(strstr(flux_error(), "add") != NULL);
    flux_clear();
    flux_on_error(NULL, NULL);
}
TEST_MAIN()
