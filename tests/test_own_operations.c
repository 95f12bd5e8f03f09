/* Operations of the program's own: FLUX_OP beside what the C compiler makes of the same formula, and flux_custom, whose
   gradients are compared with differences in double and with those of the library's own operations. */
#include "test.h"

#define SLOPE 0.25
FLUX_OP(swish_by, (x, beta), x / (1 + exp(-beta * x)));
FLUX_OP(leaky, (x), x > 0 ? x : SLOPE * x, x > 0 ? 1 : SLOPE);
FLUX_OP(hill, (x, k), pow(x, 2) / (k * k + x * x),
        2 * x * k * k / ((k * k + x * x) * (k * k + x * x)), -2 * x * x * k / ((k * k + x * x) * (k * k + x * x)));
FLUX_OP(straight_through, (x), rint(x), 1);
FLUX_OP(three, (a, b, c), a - b / c * 2. + .5 * -(c) * 1e-1, 1., -2 / c, 2 * b / (c * c) - 0.05);
FLUX_OP(third_of, (x), x > 0 ? 1 : 1 / 3.0);
FLUX_OP(logic, (x, y), (x > 0.5 && y <= 0) || !(x != 0) || (x == 2 && x >= y) ? x + 1 : +y < 1 ? -y : 7);
FLUX_OP(is_large, (x), x > 1);
FLUX_OP(nothing, (x, y), 3 * sqrt(4.0) - 1, 0, 0);
FLUX_OP(only_first, (x, y), x * x);
FLUX_OP(folded, (x), x * (fmax(1, 2) + pow(2, 3) + fabsf(-3.0f) + (0 ? 5 : 6) + !0 + !2 + (1 < 2) + (1 > 2 || 2 == 2)));
FLUX_OP(tilted, (x, y), x + 1.00048 * y, 1, 1.00048);
FLUX_OP(tilted_more, (x, y), x + 1.0038 * y, 1, 1.0038);
FLUX_OP(safe_root, (x), x > 0 ? sqrt(x) : 0, x > 0 ? 0.5 / sqrt(x) : 0);

/* Every function of FLUX_OP's list, once by its name, and some by that with an f. */
#define EACH_FUNCTION(X)                                                                                              \
    X(exp, 1) X(exp2, 1) X(expm1, 1) X(log, 0) X(log2, 0) X(log10, 0) X(log1p, 0) X(sqrt, 0) X(cbrt, 1) X(sin, 1)     \
    X(cos, 1) X(tan, 1) X(asin, 2) X(acos, 2) X(atan, 1) X(sinh, 1) X(cosh, 1) X(tanh, 1) X(erf, 1) X(fabs, 1)         \
    X(floor, 3) X(ceil, 3) X(trunc, 3) X(rint, 3)
#define EACH_FUNCTION_OF_TWO(X) X(pow, 0) X(atan2, 1) X(fmax, 1) X(fmin, 1)
#define OP_OF_ONE(f, domain) FLUX_OP(own_##f, (x), f(x) * 2);
#define OP_OF_TWO(f, domain) FLUX_OP(own_##f, (x, y), f(x, y) + x);
EACH_FUNCTION(OP_OF_ONE)
EACH_FUNCTION_OF_TWO(OP_OF_TWO)

/* Values of a domain: 0 positive, 1 all, 2 from -1 to 1, 3 all, with steps between them. */
static double value(int domain, int i) {
    const double u = (i * 37 % 101) / 101.0;
    return domain == 0 ? 0.05 + 3 * u : domain == 2 ? 1.9 * u - 0.95 : domain == 3 ? 7 * u - 3.5 + 0.01 : 5 * u - 2.5;
}
static flux_tensor *values(int domain, int n, int from) {
    static double at[101];
    for (int i = 0; i < n; i++) at[i] = value(domain, i + from);
    return flux_from(at, n);
}

static void same_as_c(const char *name, flux_tensor *(*op)(flux_tensor *), double (*number)(double), int domain) {
    flux_tensor *x = values(domain, 50, 0), *y = op(x), *single = op(flux_to_dtype(x, FLUX_F32));
    REQUIRE(y && single && flux_dtype_of(y) == FLUX_F64 && flux_dtype_of(single) == FLUX_F32);
    for (int i = 0; i < 50; i++) {
        const double want = number(value(domain, i));
        if (!test_close(flux_at(y, i), want, 1e-13 * (1 + fabs(want))) ||
            !test_close(flux_at(single, i), want, 2e-5 * (1 + fabs(want)))) test_fail(__FILE__, __LINE__, name);
    }
    if (domain == 3) return;
    flux_grads *g = flux_gradient(flux_sum(y), x);
    for (int i = 0; i < 50; i++) {
        const double v = value(domain, i), h = 1e-6, d = (number(v + h) - number(v - h)) / (2 * h);
        if (!test_close(flux_at(flux_grad(g, x), i), d, 1e-6 * (1 + fabs(d)))) test_fail(__FILE__, __LINE__, name);
    }
}

TEST(functions_of_one_operand) {
    struct { const char *name; flux_tensor *(*op)(flux_tensor *); double (*number)(double); int domain; } all[] = {
#define ROW_OF_ONE(f, domain) { #f, own_##f, own_##f##_number, domain },
        EACH_FUNCTION(ROW_OF_ONE)
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        FLUX_SCOPE same_as_c(all[i].name, all[i].op, all[i].number, all[i].domain);
}

static void same_as_c2(const char *name, flux_tensor *(*op)(flux_tensor *, flux_tensor *),
                       double (*number)(double, double), int domain, bool smooth) {
    flux_tensor *x = values(domain, 40, 0), *y = values(domain, 40, 17), *z = op(x, y);
    REQUIRE(z != NULL);
    flux_grads *g = flux_gradient(flux_sum(z), x, y);
    for (int i = 0; i < 40; i++) {
        const double a = value(domain, i), b = value(domain, i + 17), h = 1e-6, want = number(a, b);
        const double da = (number(a + h, b) - number(a - h, b)) / (2 * h);
        const double db = (number(a, b + h) - number(a, b - h)) / (2 * h);
        if (!test_close(flux_at(z, i), want, 1e-13 * (1 + fabs(want)))) test_fail(__FILE__, __LINE__, name);
        if (smooth && (!test_close(flux_at(flux_grad(g, x), i), da, 1e-6 * (1 + fabs(da))) ||
                       !test_close(flux_at(flux_grad(g, y), i), db, 1e-6 * (1 + fabs(db)))))
            test_fail(__FILE__, __LINE__, name);
    }
}

TEST(functions_of_two_operands) {
#define RUN_OF_TWO(f, domain) FLUX_SCOPE same_as_c2(#f, own_##f, own_##f##_number, domain, true);
    EACH_FUNCTION_OF_TWO(RUN_OF_TWO)
    FLUX_SCOPE same_as_c2("swish_by", swish_by, swish_by_number, 1, true);
    FLUX_SCOPE same_as_c2("hill", hill, hill_number, 0, true);
    FLUX_SCOPE same_as_c2("only_first", only_first, only_first_number, 1, false);
    FLUX_SCOPE same_as_c2("logic", logic, logic_number, 3, false);
}

TEST(operands_broadcast_and_gradients_are_summed) {
    flux_tensor *x = flux_reshape(values(1, 12, 0), 4, 3), *beta = values(0, 4, 5), *k = flux_reshape(values(0, 3, 9), 1, 3);
    flux_tensor *a = swish_by(x, beta), *b = hill(x, k), *c = three(x, beta, k);
    CHECK(flux_ndim(a) == 2 && flux_dim(a, 0) == 4 && flux_dim(a, 1) == 3 && flux_dim(c, 1) == 3);
    flux_grads *g = flux_gradient(flux_sum(flux_add(flux_add(a, flux_mul(b, 2)), flux_square(c))), x, beta, k);
    flux_tensor *dbeta = flux_grad(g, beta), *dk = flux_grad(g, k);
    REQUIRE(dbeta && dk && flux_ndim(dbeta) == 1 && flux_ndim(dk) == 2 && flux_dim(dk, 0) == 1);
    const double h = 1e-6;
    for (int i = 0; i < 4; i++) {
        double d = 0;
        for (int j = 0; j < 3; j++) {
            const double v = flux_at(x, i, j), w = flux_at(beta, i), kk = flux_at(k, 0, j), t = three_number(v, w, kk);
            d += (swish_by_number(v, w + h) - swish_by_number(v, w - h)) / (2 * h);
            d += 2 * t * (three_number(v, w + h, kk) - three_number(v, w - h, kk)) / (2 * h);
        }
        CHECK_NEAR(flux_at(dbeta, i), d, 1e-6);
    }
    for (int j = 0; j < 3; j++) {
        double d = 0;
        for (int i = 0; i < 4; i++) {
            const double v = flux_at(x, i, j), w = flux_at(beta, i), kk = flux_at(k, 0, j), t = three_number(v, w, kk);
            d += 2 * (hill_number(v, kk + h) - hill_number(v, kk - h)) / (2 * h);
            d += 2 * t * (three_number(v, w, kk + h) - three_number(v, w, kk - h)) / (2 * h);
        }
        CHECK_NEAR(flux_at(dk, 0, j), d, 1e-6 * (1 + fabs(d)));
    }
}

TEST(stated_derivatives_are_used) {
    flux_tensor *x = flux_values(-1.4, 0, 2.6), *y = leaky(x);
    CHECK_DATA(y, ((double[]){ -0.35, 0, 2.6 }), 1e-6);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_mul(y, 3)), x), x), ((double[]){ 0.75, 0.75, 3 }), 0);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(straight_through(x)), x), x), ((double[]){ 1, 1, 1 }), 0);
    CHECK_DATA(straight_through(x), ((double[]){ -1, 0, 3 }), 0);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(safe_root(x)), x), x), ((double[]){ 0, 0, 0.5 / sqrt(2.6) }), 1e-6);
    /* a gradient's gradient goes through the formulas of the derivatives */
    flux_tensor *d = flux_grad(flux_gradient(flux_sum(hill(x, flux_values(1, 1, 1))), x), x);
    flux_tensor *dd = flux_grad(flux_gradient(flux_sum(d), x), x);
    for (int i = 0; i < 3; i++) {
        const double v = flux_at(x, i), q = 1 + v * v;
        CHECK_NEAR(flux_at(dd, i), 2 / (q * q) - 8 * v * v / (q * q * q), 1e-5);
    }
}

TEST(dtypes_of_results) {
    flux_tensor *x = flux_to_dtype(flux_values(-2, 3), FLUX_F64);
    flux_tensor *third = third_of(x);
    CHECK(flux_dtype_of(third) == FLUX_F64 && flux_at(third, 0) == 1 / 3.0 && flux_at(third, 1) == 1);
    CHECK(flux_dtype_of(is_large(x)) == FLUX_BOOL);
    CHECK_DATA(is_large(x), ((double[]){ 0, 1 }), 0);
    CHECK_DATA(nothing(x, flux_ones(2)), ((double[]){ 5, 5 }), 0);
    CHECK(flux_dtype_of(nothing(x, flux_ones(2))) == FLUX_F64);
    CHECK(flux_dim(only_first(flux_ones(2), flux_ones(2, 3)), 1) == 3);
    CHECK_DATA(folded(x), ((double[]){ -2 * folded_number(1), 3 * folded_number(1) }), 0);
    /* a half format is rounded once, at the end */
    flux_dtype halves[] = { FLUX_F16, FLUX_BF16 };
    for (int i = 0; i < 2; i++) {
        flux_tensor *h = flux_to_dtype(values(1, 64, 3), halves[i]), *beta = flux_to_dtype(values(0, 64, 8), halves[i]);
        flux_tensor *y = swish_by(h, beta), *grad = flux_grad(flux_gradient(flux_sum(y), h), h);
        flux_tensor *wide = swish_by(flux_to_dtype(h, FLUX_F32), flux_to_dtype(beta, FLUX_F32));
        CHECK(flux_dtype_of(y) == halves[i] && flux_dtype_of(grad) == halves[i]);
        CHECK(flux_item(flux_all(flux_eq(y, flux_to_dtype(wide, halves[i])))) == 1);
        flux_tensor *slope = flux_grad(flux_gradient(flux_sum(leaky(h)), h), h);
        CHECK(flux_dtype_of(slope) == halves[i] && flux_dtype_of(leaky(h)) == halves[i]);
        for (int k = 0; k < 64; k++) CHECK(flux_at(slope, k) == (flux_at(h, k) > 0 ? 1 : SLOPE));
        flux_tensor *many = flux_to_dtype(flux_ones(100), halves[i]), *one = flux_to_dtype(flux_ones(1), halves[i]);
        y = i ? tilted_more(many, one) : tilted(many, one);   /* the gradient by `one` is a sum, which is rounded once */
        const double sum = flux_item(flux_grad(flux_gradient(flux_sum(y), one), one));
        CHECK(sum == flux_item(flux_to_dtype(flux_scalar(i ? 100.38 : 100.048), halves[i])));
    }
}

static flux_tensor *operate(const char *operands, const char *formula) {
    const char *const formulas[] = { formula };
    const flux_operation op = { "mine", operands, 1, formulas };
    flux_tensor *const of[] = { flux_ones(2), flux_ones(2) };
    return flux_operate(&op, strchr(operands, ',') ? 2 : 1, of);
}

TEST(what_a_formula_cannot_contain) {
    const char *const bad[][2] = {
        { "foo(x)", "mine: column 1: unknown name foo (operands: x)" }, { "x + y", "column 5: unknown name y" },
        { "x ^ 2", "column 3: expected an operator of C" }, { "0 < x < 1", "column 7: comparisons do not chain" },
        { "pow(x)", "column 6: expected ,, found ')'" }, { "exp(x, 1)", "column 6: expected ), found ','" },
        { "(x + 1", "expected )" }, { "x ? 1", "expected :" }, { "x 2", "expected an operator or the end" },
        { "0x10 * x", "numbers are decimal" }, { "010 * x", "numbers are decimal" }, { "x +", "expected a number" },
        { "", "expected a number" }, { "x.*x", "an operator of C" }, { "x % 2", "expected an operator or the end" },
        { "exp + x", "unknown name exp" }, { "round(x)", "unknown name round" }, { "float(x)", "unknown name float" },
        { "expff(x)", "unknown name expff" }, { "fabsxf(x)", "unknown name fabsxf" }, { "powxf(x, x)", "unknown name powxf" },
        { "x ? 1 : ", "expected a number" }, { "pow(x, x", "expected )" }, { "x + ) ", "column 5: expected a number" }, { " x \n)", "expected an operator or the end" }
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK_ERROR(operate("x", bad[i][0]), bad[i][1]);
    char deep[1200];
    memset(deep, '(', 600);
    snprintf(deep + 600, 100, "x");
    memset(deep + 601, ')', 599);
    deep[1199] = 0;
    CHECK_ERROR(operate("x", deep), "nested more than");
    CHECK_DATA(operate("x", "0.5f * x + 007.5 * 0 + 1.e0f + 2.*x"), ((double[]){ 3.5, 3.5 }), 0);
    CHECK_DATA(operate("x", " \t+x \r\n+ 1\n "), ((double[]){ 2, 2 }), 0);                  /* blanks on each side */
    CHECK_DATA(operate("x", "x > 0 ? -(3) : !x ? 1 : 2 "), ((double[]){ -3, -3 }), 0);
    CHECK_DATA(operate("x", "x < 0 ? x : x < 1 || 0 ? 1 : 2 + pow(2, 3) * x"), ((double[]){ 10, 10 }), 0);
    const char *const two[] = { "x", "1" };
    const flux_operation op = { "mine", "x, y", 2, two }, none = { "mine", "x", 1, NULL };
    flux_tensor *const of[] = { flux_ones(2), flux_ones(3) };
    CHECK_ERROR(flux_operate(&op, 2, of), "mine: 2 operands named \"x, y\" and 2 formulas");
    CHECK_ERROR(flux_operate(&op, 9, of), "mine: 9 operands");
    CHECK_ERROR(flux_operate(&none, 1, of), "operate:");
    CHECK_ERROR(flux_operate(NULL, 1, of), "operate:");
    CHECK_ERROR(swish_by(flux_ones(2), flux_ones(3)), "swish_by: shapes do not broadcast");
    CHECK_ERROR(swish_by(flux_ones(2), NULL), "swish_by");
}

TEST(an_operation_is_a_layer) {
    flux_seed(1);
    flux_layer *m = flux_chain(flux_dense(2, 16, flux_tanh), flux_dense(16, 16), leaky, flux_dense(16, 1));
    flux_state *opt = flux_setup(flux_adam(0.02), m);
    flux_tensor *x = flux_from(((float[]){ 0, 0, 0, 1, 1, 0, 1, 1 }), 2, 4), *y = flux_from(((float[]){ 0, 1, 1, 0 }), 1, 4);
    double last = 1;
    flux_times (i, 150) {
        flux_tensor *loss = flux_mse(flux_call(m, x), y);
        flux_update(opt, m, flux_gradient(loss, m));
        last = flux_item(loss);
    }
    CHECK(last < 0.01);
}

/* ---- flux_custom */

/* Squares by a loop of C that knows nothing of the library. */
static flux_tensor *square_in_c(int n, flux_tensor *const *x, void *calls) {
    float out[8];
    const float *in = flux_floats(x[0]);
    if (!in || n != 1) return NULL;
    for (int64_t i = 0; i < flux_len(x[0]); i++) out[i] = in[i] * in[i];
    if (calls) ++*(int *)calls;
    return flux_to(flux_device_of(x[0]), flux_from(out, flux_len(x[0])));
}
static void square_back(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *calls) {
    (void)n, (void)y;
    dx[0] = flux_mul(g, flux_mul(x[0], 2));
    if (calls) *(int *)calls += 10;
}

TEST(a_call_into_c) {
    int calls = 0;
    flux_tensor *x = flux_values(1, -2, 3), *of[] = { x };
    flux_tensor *y = flux_custom_with(square_in_c, square_back, &calls, 1, of);
    CHECK(calls == 1);
    CHECK_DATA(y, ((double[]){ 1, 4, 9 }), 0);
    flux_tensor *d = flux_grad(flux_gradient(flux_sum(flux_exp(flux_mul(y, 0.1))), x), x);
    CHECK(calls == 11);
    for (int i = 0; i < 3; i++) {
        const double v = flux_at(x, i);
        CHECK_NEAR(flux_at(d, i), 0.2 * v * exp(0.1 * v * v), 1e-6);
    }
    flux_tensor *dd = flux_grad(flux_gradient(flux_sum(d), x), x);      /* through y and through x */
    for (int i = 0; i < 3; i++) {
        const double v = flux_at(x, i), e = exp(0.1 * v * v);
        CHECK_NEAR(flux_at(dd, i), 0.2 * e + 0.04 * v * v * e, 1e-5);
    }
    calls = 0;
    FLUX_NOGRAD y = flux_custom_with(square_in_c, square_back, &calls, 1, of);
    CHECK(!flux_grad(flux_gradient(flux_sum(y), x), x) && calls == 1);
}

/* Gradients that are clipped on their way back; the context is the bound. */
static flux_tensor *same(int n, flux_tensor *const *x, void *c) { return (void)n, (void)c, x[0]; }
static void clip_back(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *bound) {
    (void)n, (void)x, (void)y;
    dx[0] = flux_clamp(g, -*(double *)bound, *(double *)bound);
}

TEST(a_gradient_that_is_clipped) {
    double bound = 0.5;
    flux_tensor *x = flux_values(0.1, 2, -3), *of[] = { x };
    flux_tensor *y = flux_custom_with(same, clip_back, &bound, 1, of);
    CHECK_DATA(y, ((double[]){ 0.1, 2, -3 }), 1e-6);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_square(y)), x), x), ((double[]){ 0.2, 0.5, -0.5 }), 1e-6);
    CHECK(!flux_grad(flux_gradient(flux_sum(flux_custom(same, NULL, x)), x), x));
}

/* A product whose backward uses what forward kept, and has no gradient by its second operand. */
static flux_tensor *keeping(int n, flux_tensor *const *x, void *c) {
    (void)n, (void)c;
    flux_tensor *e = flux_exp(x[0]);
    return flux_tuple(flux_mul(e, x[1]), e);
}
static void keeping_back(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *c) {
    (void)n, (void)c;
    if (flux_num_items(y) != 2) return;
    dx[0] = flux_mul(g, flux_mul(flux_nth(y, 1), x[1]));
}

TEST(what_forward_keeps) {
    flux_tensor *x = flux_values(0.5, -1), *w = flux_values(2, 3), *y = flux_custom(keeping, keeping_back, x, w);
    CHECK(flux_num_items(y) == 1);
    CHECK_DATA(y, ((double[]){ 2 * exp(0.5), 3 * exp(-1) }), 1e-5);
    flux_grads *g = flux_gradient(flux_sum(flux_add(y, flux_square(w))), x, w);
    CHECK_DATA(flux_grad(g, x), ((double[]){ 2 * exp(0.5), 3 * exp(-1) }), 1e-5);
    CHECK_DATA(flux_grad(g, w), ((double[]){ 4, 6 }), 0);
}

static flux_tensor *give_null(int n, flux_tensor *const *x, void *c) { return (void)n, (void)x, (void)c, (flux_tensor *)NULL; }
static flux_tensor *give_tuples(int n, flux_tensor *const *x, void *c) {
    return (void)n, (void)c, flux_tuple(flux_tuple(x[0]), x[0]);
}
static void wrong_shape(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *c) {
    (void)n, (void)x, (void)y, (void)c;
    dx[0] = flux_sum(g);
}

TEST(custom_errors) {
    flux_tensor *x = flux_ones(2), *of[65];
    for (int i = 0; i < 65; i++) of[i] = x;
    CHECK_ERROR(flux_custom(give_null, clip_back, x), "custom: forward returned NULL");
    CHECK_ERROR(flux_custom(give_tuples, clip_back, x), "begins with a tuple");
    CHECK_ERROR(flux_custom(NULL, clip_back, x), "custom: argument forward is NULL");
    CHECK_ERROR(flux_custom_with(same, clip_back, NULL, 65, of), "custom: 65 operands");
    CHECK_ERROR(flux_custom_with(same, clip_back, NULL, 1, NULL), "custom");
    CHECK_ERROR(flux_custom(same, clip_back, (flux_tensor *)NULL), "custom");
    CHECK_ERROR(flux_gradient(flux_sum(flux_custom(same, wrong_shape, x)), x),
                "custom: backward wrote scalar f32 as the gradient by operand 0");
    flux_tensor *y = flux_custom_with(same, square_back, NULL, 64, of);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(y), x), x), ((double[]){ 2, 2 }), 0);
}

/* A step with operations of one's own is a plan like any other: no memory grows. */
TEST(training_with_a_custom_gradient) {
    flux_layer *m = flux_dense(3, 1);
    flux_state *opt = flux_setup(flux_descent(0.05), m);
    flux_tensor *x = flux_from(((float[]){ 1, 2, 3, -1, 0, 1 }), 3, 2), *y = flux_from(((float[]){ 1, -1 }), 1, 2);
    double bound = 0.1, first = 0, last = 0;
    flux_times (i, 60) {
        flux_tensor *out = swish_by(flux_call(m, x), flux_ones(1)), *of[] = { out };
        flux_tensor *loss = flux_mse(flux_custom_with(same, clip_back, &bound, 1, of), y);
        flux_update(opt, m, flux_gradient(loss, m));
        last = flux_item(loss);
        if (i == 0) first = last;
    }
    CHECK(last < first);
}
TEST_MAIN()
