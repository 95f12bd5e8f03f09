/* Every row of the table of operations: its values against libm, its gradient and second derivative against float64
   finite differences; and the same for the operations that move, choose, sum and multiply. The rows are walked, so that
   none can be added without a reference here. */
#define FLUX_IMPLEMENTATION
#include "scarce.h"
#include <float.h>
#define CHECK_VALUES(x, want, n, tol) test_data(x, want, n, tol, __FILE__, __LINE__, #x)

/* ---------------- references that are not ours */

static double ref_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static double ref_max(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }
static double ref_min(double a, double b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }

typedef struct reference { const char *name; double lo, hi; bool smooth; double (*f)(double a, double b, double c); } reference;
#define REF(name, expression) static double ref_##name(double a, double b, double c) { (void)a, (void)b, (void)c; return expression; }
REF(add, a + b) REF(sub, a - b) REF(mul, a * b) REF(div, a / b) REF(pow, pow(a, b)) REF(max2, ref_max(a, b)) REF(min2, ref_min(a, b))
REF(submax, a == b ? 0 : a - b) REF(eq, a == b) REF(ne, a != b) REF(lt, a < b) REF(le, a <= b) REF(gt, a > b) REF(ge, a >= b)
REF(and, a != 0 && b != 0) REF(or, a != 0 || b != 0) REF(not, a == 0) REF(where, a != 0 ? b : c) REF(neg, -a) REF(abs, fabs(a))
REF(sgn, ref_sign(a)) REF(square, a * a) REF(sqrt, sqrt(a)) REF(rsqrt, 1 / sqrt(a)) REF(exp, exp(a)) REF(log, log(a))
REF(log1p, log1p(a)) REF(expm1, expm1(a)) REF(sin, sin(a)) REF(cos, cos(a)) REF(tanh, tanh(a)) REF(erf, erf(a))
REF(tan, tan(a)) REF(asin, asin(a)) REF(acos, acos(a)) REF(atan, atan(a)) REF(sinh, sinh(a)) REF(cosh, cosh(a))
REF(atan2, atan2(a, b)) REF(mod, b == 0 ? 0 : a - b * floor(a / b))
REF(floor, floor(a)) REF(ceil, ceil(a)) REF(round, nearbyint(a)) REF(sigmoid, 1 / (1 + exp(-a))) REF(softplus, log1p(exp(a)))
REF(relu, a > 0 ? a : 0) REF(relu_backward, a > 0 ? b : 0) REF(lerp, a + c * (b - a)) REF(fma, a * b + c)
REF(gelu_slope, 0.5 * (1 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a))) + 0.5 * a * (1 - pow(tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)), 2)) *
                0.7978845608028654 * (1 + 0.134145 * a * a))
REF(logcosh, log(cosh(a))) REF(tanhshrink, a - tanh(a))
REF(gelu, 0.5 * a * (1 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a))))

static const reference refs[] = {
    { "add", -2, 2, true, ref_add }, { "sub", -2, 2, true, ref_sub }, { "mul", -2, 2, true, ref_mul }, { "div", 0.5, 2, true, ref_div },
    { "pow", 0.5, 2, true, ref_pow }, { "max2", -2, 2, true, ref_max2 }, { "min2", -2, 2, true, ref_min2 },
    { "submax", -2, 2, true, ref_submax }, { "eq", -2, 2, false, ref_eq }, { "ne", -2, 2, false, ref_ne }, { "lt", -2, 2, false, ref_lt },
    { "le", -2, 2, false, ref_le }, { "gt", -2, 2, false, ref_gt }, { "ge", -2, 2, false, ref_ge }, { "and", -2, 2, false, ref_and },
    { "or", -2, 2, false, ref_or }, { "not", -2, 2, false, ref_not }, { "where", -2, 2, true, ref_where }, { "neg", -2, 2, true, ref_neg },
    { "abs", -2, 2, true, ref_abs }, { "sign", -2, 2, true, ref_sgn }, { "square", -2, 2, true, ref_square },
    { "sqrt", 0.2, 2, true, ref_sqrt }, { "rsqrt", 0.2, 2, true, ref_rsqrt }, { "exp", -3, 3, true, ref_exp }, { "log", 0.2, 3, true, ref_log },
    { "log1p", -0.5, 2, true, ref_log1p }, { "expm1", -2, 2, true, ref_expm1 }, { "sin", -4, 4, true, ref_sin }, { "cos", -4, 4, true, ref_cos },
    { "tan", -1, 1, true, ref_tan }, { "asin", -0.9, 0.9, true, ref_asin }, { "acos", -0.9, 0.9, true, ref_acos },
    { "atan", -3, 3, true, ref_atan }, { "sinh", -3, 3, true, ref_sinh }, { "cosh", -3, 3, true, ref_cosh },
    { "atan2", 0.2, 2, true, ref_atan2 }, { "mod", 2, 2.6, true, ref_mod },
    { "tanh", -3, 3, true, ref_tanh }, { "erf", -3, 3, true, ref_erf }, { "floor", -4, 4, true, ref_floor }, { "ceil", -4, 4, true, ref_ceil },
    { "round", -4, 4, true, ref_round }, { "sigmoid", -5, 5, true, ref_sigmoid }, { "softplus", -5, 5, true, ref_softplus },
    { "relu", -2, 2, true, ref_relu }, { "relu_backward", -2, 2, true, ref_relu_backward }, { "lerp", -2, 2, true, ref_lerp }, { "fma", -2, 2, true, ref_fma },
    { "logcosh", -3, 3, true, ref_logcosh }, { "tanhshrink", -3, 3, true, ref_tanhshrink }, { "gelu", -4, 4, true, ref_gelu }, { "gelu_slope", -4, 4, true, ref_gelu_slope }
};
enum { NREFS = sizeof refs / sizeof refs[0], N = 37 };

static const reference *ref_of(int op) {
    for (int i = 0; i < NREFS; i++)
        if (strcmp(refs[i].name, flux__op_names[op]) == 0) return &refs[i];
    fprintf(stderr, "%s:%d: %s has no row in refs\n", __FILE__, __LINE__, flux__op_names[op]);
    exit(1);
}

static flux_tensor *range_of(flux_dtype t, double lo, double hi, int64_t n) {
    return flux_to_dtype(flux_add(flux_mul(flux_rand_with(FLUX_SHAPE(n), FLUX_F64), hi - lo), lo), t);
}

static flux_tensor *apply(int op, flux_tensor **xs) { return flux__elementwise(op, xs[0], xs[1], xs[2]); }

TEST(rows_have_references) {
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++)
        CHECK(ref_of(op) != NULL);
    CHECK((int)FLUX__ELEMENTWISE_COUNT == (int)NREFS);
}

static void check_values(int op, flux_dtype t, double tol) {
    const reference *r = ref_of(op);
    char rule = flux__rules[op];
    flux_tensor *xs[3], *wide[3];
    double out[N];
    for (int k = 0; k < 3; k++) {
        xs[k] = rule == 'B' || (rule == 'S' && k == 0) ? flux_gt(range_of(FLUX_F64, -1, 1, N), 0) : range_of(t, r->lo, r->hi, N);
        wide[k] = flux_to_dtype(xs[k], FLUX_F64);
    }
    flux_tensor *y = apply(op, xs);
    const double *a = (const double *)flux_data(wide[0]), *b = (const double *)flux_data(wide[1]), *c = (const double *)flux_data(wide[2]);
    for (int i = 0; i < N; i++) out[i] = r->f(a[i], b[i], c[i]);
    CHECK_VALUES(y, out, N, tol);
}

TEST(values_f32) { for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++) FLUX_SCOPE check_values(op, FLUX_F32, 2e-6); }
TEST(values_f64) { for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++) FLUX_SCOPE check_values(op, FLUX_F64, 1e-13); }
TEST(values_bf16) { for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++) FLUX_SCOPE check_values(op, FLUX_BF16, 8e-3); }
TEST(values_f16) { for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++) FLUX_SCOPE check_values(op, FLUX_F16, 1e-3); }

/* Integers: the rows that take them, over small numbers, exactly. */
static void check_integers(int op, flux_dtype t) {
    const reference *r = ref_of(op);
    char rule = flux__rules[op];
    if (rule == 'B' || rule == 'F') return;
    flux_tensor *xs[3];
    double in[3][N], out[N];
    int lo = t == FLUX_U8 || strcmp(r->name, "pow") == 0 ? 0 : -5;
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < N; i++) in[k][i] = lo + (i * (k + 3) + k) % 8;
        xs[k] = flux_to_dtype(flux_from(in[k], N), t);
    }
    for (int i = 0; i < N; i++) {
        out[i] = r->f(in[0][i], in[1][i], in[2][i]);
        if (t == FLUX_U8) out[i] = (double)(uint8_t)(int64_t)out[i];
    }
    CHECK_VALUES(apply(op, xs), out, N, 0);
}

TEST(values_integers) {
    static const flux_dtype ts[] = { FLUX_I32, FLUX_I64, FLUX_U8 };
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++)
        for (int k = 0; k < 3; k++) FLUX_SCOPE check_integers(op, ts[k]);
}

/* ---------------- gradients of rows */

typedef struct row_case { int op, by; flux_tensor *xs[3]; flux_tensor *weights; } row_case;

static flux_tensor *row_loss(flux_tensor *x, void *user) {
    row_case *r = (row_case *)user;
    flux_tensor *xs[3];
    for (int k = 0; k < 3; k++) xs[k] = k == r->by ? x : r->xs[k];
    return flux_sum(flux_mul(apply(r->op, xs), r->weights));
}

static flux_tensor *row_slope(flux_tensor *x, void *user) {          /* for second derivatives: the sum of squared gradients */
    flux_grads *g = flux_gradient(row_loss(x, user), x);
    flux_tensor *d = g ? flux_grad(g, x) : NULL;
    return d ? flux_sum(flux_square(d)) : flux_sum(flux_mul(x, 0.0));
}

static void check_row(int op, int by, flux_shape other) {
    const reference *r = ref_of(op);
    row_case c = { op, by, { NULL, NULL, NULL }, NULL };
    if (!r->smooth || (flux__rules[op] == 'S' && by == 0)) return;
    for (int k = 0; k < 3; k++) {
        flux_shape s = k == by ? FLUX_SHAPE(3, 4) : other;
        c.xs[k] = flux_add(flux_mul(flux_rand_with(s, FLUX_F64), (r->hi - r->lo) * 0.9), r->lo + 0.05);
        if (flux__rules[op] == 'S' && k == 0) c.xs[k] = flux_gt(c.xs[k], 0);
    }
    c.weights = flux_rand_with(FLUX_SHAPE(3, 4), FLUX_F64);
    double first = flux_gradcheck(row_loss, &c, c.xs[by], 0), second = flux_gradcheck(row_slope, &c, c.xs[by], 0);
    if (!CHECK(first < 1e-6) || !CHECK(second < 1e-5))
        fprintf(stderr, "    %s by operand %d: first %g, second %g\n", r->name, by, first, second);
}

TEST(gradients_of_rows) {
    flux_seed(3);
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++)
        for (int by = 0; by < flux__arity[op]; by++) FLUX_SCOPE {
            if (test_left_out(op, 3)) continue;
            check_row(op, by, FLUX_SHAPE(3, 4));
            check_row(op, by, FLUX_SHAPE(1, 4));
            check_row(op, by, FLUX_SHAPE(3));
        }
}

/* The operand that is stretched gets its gradient summed. */
static flux_tensor *stretch_loss(flux_tensor *x, void *user) { return flux_sum(flux_square(flux_mul((flux_tensor *)user, x))); }

TEST(gradient_of_stretched_operand) {
    flux_tensor *big = flux_rand_with(FLUX_SHAPE(3, 4, 2), FLUX_F64);
    CHECK(flux_gradcheck(stretch_loss, big, flux_rand_with(FLUX_SHAPE(3), FLUX_F64), 0) < 1e-6);
    CHECK(flux_gradcheck(stretch_loss, big, flux_rand_with(FLUX_SHAPE(1, 4), FLUX_F64), 0) < 1e-6);
    CHECK(flux_gradcheck(stretch_loss, big, flux_rand_with(FLUX_SHAPE(1, 1, 2), FLUX_F64), 0) < 1e-6);
    CHECK(flux_gradcheck(stretch_loss, big, flux_rand_with(flux__shape(NULL, 0), FLUX_F64), 0) < 1e-6);
}

/* Numbers beside tensors are double until they meet a dtype: also those that only a gradient computes, 0.1 - 1 or log 0.3. */
static double slope_at(flux_tensor *y, flux_tensor *x) { return flux_item(flux_grad(flux_gradient(y, x), x)); }
TEST(numbers_are_double) {
    flux_tensor *x = flux_full_with(flux__shape(NULL, 0), 1.7, FLUX_F64);
    CHECK_NEAR(flux_item(flux_pow(x, 0.1)), pow(1.7, 0.1), 1e-15);
    CHECK_NEAR(slope_at(flux_pow(x, 0.1), x), 0.1 * pow(1.7, -0.9), 1e-15);
    CHECK_NEAR(slope_at(flux_pow(0.3, x), x), log(0.3) * pow(0.3, 1.7), 1e-15);
    CHECK_NEAR(slope_at(flux_div(0.1, x), x), -0.1 / (1.7 * 1.7), 1e-15);
    CHECK_NEAR(slope_at(flux__lerp(flux__number(0.1), flux__number(0.3), x), x), 0.2, 1e-15);
    CHECK_NEAR(slope_at(flux__fma(flux__number(0.1), flux__number(0.3), x), x), 1, 0);
    CHECK_NEAR(flux_item(flux_mul(flux_exp(flux__number(0.1)), x)), exp(0.1) * 1.7, 1e-15);
    CHECK_NEAR(flux_item(flux_add(flux_sub(flux_mul(0.1, 3), 0.7), x)), 0.1 * 3 - 0.7 + 1.7, 1e-15);
    CHECK_NEAR(flux_item(flux_where(flux_gt(1e-60, 0), x, 0.0)), 1.7, 0);
    CHECK(flux_dtype_of(flux_mul(2, 3)) == FLUX_F32 && flux_dtype_of(flux_lt(2, 3)) == FLUX_BOOL);
    CHECK_NEAR(flux_item(flux_mul(2, 3)), 6, 0);
    CHECK_NEAR(flux_item(flux_lt(2, 3)), 1, 0);
}

/* Each row on numbers and tensors, in each choice of which operands are which. Rows that want bools take no number. */
TEST(each_row_of_numbers) {
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++)
        for (int which = 0; which < 1 << flux__arity[op]; which++) FLUX_SCOPE {
            const reference *r = ref_of(op);
            flux_tensor *xs[3] = { NULL, NULL, NULL };
            double v[3] = { 0, 0, 0 };
            for (int k = 0; k < flux__arity[op]; k++) {
                v[k] = r->lo + (r->hi - r->lo) * (0.3 + 0.15 * k);
                if (flux__rules[op] == 'B' || (flux__rules[op] == 'S' && k == 0)) v[k] = (which + op) % 3 == 0;
                xs[k] = which >> k & 1 ? flux__number(v[k]) : flux_full_with(flux__shape(NULL, 0), v[k], FLUX_F64);
                if (flux__rules[op] == 'B' && !(which >> k & 1)) xs[k] = flux_gt(xs[k], 0);
            }
            if (flux__rules[op] == 'B' && which) {
                CHECK_ERROR(apply(op, xs), "operands must be bool");
                continue;
            }
            char what[100];
            snprintf(what, sizeof what, "%s, numbers %d", r->name, which);
            flux_tensor *y = flux_add(apply(op, xs), flux_full_with(flux__shape(NULL, 0), 0, FLUX_F64));
            test_near(flux_item(y), r->f(v[0], v[1], v[2]), flux__rules[op] == 'S' ? 1e-7 : 1e-13, __FILE__, __LINE__, what);
        }
}

/* At 0 what has a slope has that, and a number, not 0 times infinity: powers whose exponent is a number, and is a tensor. */
TEST(gradients_at_zero) {
    static const double slopes[5] = { 0, 1, 0, 0, 0 }, seconds[5] = { 0, 0, 2, 0, 0 };
    for (int t = 0; t < 2; t++)
        for (int y = 0; y < 5; y++) FLUX_SCOPE {
            flux_tensor *x = flux_full_with(FLUX_SHAPE(2), 0, t ? FLUX_F64 : FLUX_F32), *p = flux_full_with(FLUX_SHAPE(2), y, FLUX_F32);
            flux_tensor *by_number = flux_grad(flux_gradient(flux_sum(flux_pow(x, y)), x), x);
            flux_tensor *by_tensor = flux_grad(flux_gradient(flux_sum(flux_pow(x, p)), x), x);
            for (int k = 0; k < 2; k++) {
                flux_tensor *d = k ? by_tensor : by_number;
                flux_grads *g = flux_gradient(flux_sum(d), x);
                CHECK_NEAR(flux_item(flux_max(d)), slopes[y], 0);
                CHECK_NEAR(flux_grad(g, x) ? flux_item(flux_max(flux_grad(g, x))) : 0, seconds[y], 0);
            }
            flux_tensor *by_p = flux_grad(flux_gradient(flux_sum(flux_pow(x, p)), p), p);
            CHECK_NEAR(flux_item(flux_max(by_p)), 0, 0);
            CHECK_NEAR(flux_item(flux_max(flux_grad(flux_gradient(flux_sum(by_p), p), p))), 0, 0);
        }
    flux_tensor *x = flux_zeros(3, 4), *none = flux_zeros(4, 4, 1, 2);
    flux_tensor *norm = flux_grad(flux_gradient(flux_norm(x), x), x);
    CHECK_NEAR(flux_item(flux_max(flux_abs(norm))), 0, 0);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_grad(flux_gradient(flux_sum(norm), x), x)))), 0, 0);
    float half[] = { 0, 0, 3, 4 };                         /* a column of zeros beside one that is none */
    flux_tensor *two = flux_from(half, 2, 2);
    CHECK_DATA(flux_norm(two, 0), ((double[]){ 0, 5 }), 0);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_norm(two, 0)), two), two), ((double[]){ 0, 0, 0.6, 0.8 }), 1e-7);
    flux_tensor *pool = flux_lpnormpool(none, .window = FLUX_SHAPE(2, 2));
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_grad(flux_gradient(flux_sum(pool), none), none)))), 0, 0);
    for (int zeros = 0; zeros < 4; zeros++) FLUX_SCOPE {   /* of a product: the Hessian, each entry the product of the other two */
        double at[4] = { 2, 3, 4, 5 }, want[4];
        for (int i = 0; i < zeros; i++) at[i] = 0;
        for (int i = 0; i < 4; i++) {
            want[i] = 0;
            for (int j = 0; j < 4; j++) {
                double others = 1;
                for (int k = 0; k < 4; k++) others *= k == i || k == j ? 1 : at[k];
                want[i] += i == j ? 0 : others;
            }
        }
        flux_tensor *f = flux_from(at, 4), *d = flux_grad(flux_gradient(flux_prod(f), f), f);
        CHECK_NEAR(flux_item(flux_sum(d)), at[1] * at[2] * at[3] + at[0] * (at[2] * at[3] + at[1] * at[3] + at[1] * at[2]), 1e-12);
        CHECK_DATA(flux_grad(flux_gradient(flux_sum(d), f), f), want, 1e-12);
    }
    flux_tensor *nan = flux_full(NAN, 3);
    CHECK(isnan(flux_item(flux_norm(nan))));
}

/* A number made by flux_ones and the like is a tensor as others are, whatever an operation makes of it. */
TEST(gradients_by_numbers) {
    double x[] = { 1, 2, 3, 4 }, ones[] = { 1, 1, 1, 1 };
    flux_tensor *v = flux_from(x, 4), *f = flux_to_dtype(v, FLUX_F32), *n;
#define BY(of, expression, array) do { n = of; CHECK_DATA(flux_grad(flux_gradient(flux_sum(expression), n), n), array, 0); } while (0)
    BY(flux_scalar(1), flux_mul(f, n), ((double[]){ 10 }));
    BY(flux_scalar(1), flux_mul(n, f), ((double[]){ 10 }));
    BY(flux_scalar(1), flux_mul(f, flux_reshape(n, 1)), ((double[]){ 10 }));
    BY(flux_scalar(0), flux_add(f, n), ((double[]){ 4 }));
    BY(flux_ones(1), flux_mul(f, flux_broadcast_to(n, 4)), ((double[]){ 10 }));
    BY(flux_ones(1), flux_mul(f, flux_copy(flux_broadcast_to(n, 4))), ((double[]){ 10 }));
    BY(flux_ones(4), flux_mul(v, n), x);
    BY(flux_ones(4), flux_mul(v, flux_to_dtype(n, FLUX_F64)), x);
    BY(flux_ones(4), flux_mul(flux_to_dtype(f, FLUX_BF16), n), x);
    BY(flux_ones(4), flux_mul(f, flux_to(test_device, n)), x);
    BY(flux_ones(1, 4), flux_matmul(n, f), x);
    BY(flux_ones(4, 1), flux_matmul(flux_transpose(n), v), x);
    BY(flux_ones(4), flux_cat(0, f, n), ones);
    BY(flux_eval(flux_ones(4)), flux_mul(v, n), x);
#undef BY
    flux_tensor *s = flux_scalar(1), *d = flux_grad(flux_gradient(flux_sum(flux_mul(flux_square(s), flux_mul(f, s))), s), s);
    CHECK_NEAR(flux_item(d), 30, 0);
    CHECK_NEAR(flux_item(flux_grad(flux_gradient(d, s), s)), 60, 0);
}

/* And so a model learns it. */
TEST(a_scale_that_starts_at_one_is_trained) {
    flux_tensor *x = flux_rand(8), *y = flux_mul(x, 3), *s = flux_scalar(1);
    for (int i = 0; i < 200; i++) {
        flux_grads *g = flux_gradient(flux_mse(flux_mul(x, s), y), s);
        REQUIRE(g && flux_grad(g, s));
        s = flux_eval(flux_detach(flux_sub(s, flux_mul(flux_grad(g, s), 0.5))));
    }
    CHECK_NEAR(flux_item(s), 3, 1e-4);
}

/* ---------------- gradients of all else: f(x) weighed and summed, x being 3 x 4 x 2 */

typedef flux_tensor *(*structural)(flux_tensor *x);
#define S(name, expression) static flux_tensor *s_##name(flux_tensor *x) { return expression; }
S(reshape, flux_square(flux_reshape(x, 6, 4)))
S(reshape_of_view, flux_square(flux_reshape(flux_permute(x, 2, 0, 1), 6, -1)))
S(permute, flux_square(flux_permute(x, 2, 0, 1)))
S(transpose, flux_square(flux_transpose(x)))
S(slice, flux_square(flux_slice(x, 1, 1, 3)))
S(step, flux_square(flux_slice_step(x, 1, 0, 4, 3)))
S(take, flux_mul(flux_take(x, 1), flux_drop(x, 1)))
S(select, flux_square(flux_select(x, 1, 2)))
S(squeeze, flux_square(flux_squeeze(flux_unsqueeze(x, 1))))
S(flip, flux_mul(flux_flip(x, 0, 2), x))
S(repeat, flux_square(flux_repeat(x, 2, 1, 3)))
S(pad, flux_square(flux_pad(x, 1.5, 1, 2, 0, 1)))
S(broadcast, flux_square(flux_broadcast_to(flux_sum(x, 1), 3, 5, 2)))
S(cat, flux_square(flux_cat(1, x, flux_mul(x, 2), x)))
S(stack, flux_square(flux_stack(1, x, flux_exp(x))))
S(gather, flux_square(flux_gather(x, 1, flux_from(((int32_t[]){ 3, 0, 3 }), 3))))
S(gather2, flux_square(flux_gather(x, 0, flux_from(((int64_t[]){ 2, 0, 2, 1 }), 2, 2))))
S(scatter, flux_square(flux_scatter_add(x, 1, flux_from(((int32_t[]){ 1, 1 }), 2), flux_mul(flux_slice(x, 1, 0, 2), 3))))
S(cast, flux_square(flux_to_dtype(x, FLUX_F64)))
S(copy, flux_square(flux_copy(flux_transpose(x))))
S(tuple, flux_mul(flux_nth(flux_tuple(x, flux_exp(x)), 1), x))
S(sum, flux_square(flux_sum(x)))
S(sum0, flux_square(flux_sum(x, 0)))
S(sum02, flux_square(flux_sum(x, 0, 2)))
S(mean1, flux_square(flux_mean(x, 1)))
S(var, flux_square(flux_var(x)))
S(var1, flux_var(x, 1))
S(prod, flux_prod(flux_add(x, 0.5), 1))
S(prod_zero, flux_prod(flux_mul(x, flux_from(((double[]){ 0, 1, 2 }), 3)), 0))
S(max, flux_square(flux_max(x, 1)))
S(min, flux_square(flux_min(x)))
S(norm, flux_exp(flux_norm(x, 0)))
S(logsumexp, flux_logsumexp(x, 1))
S(logsumexp_all, flux_logsumexp(x))
S(softmax, flux_square(flux_softmax(x)))
S(softmax1, flux_square(flux_softmax(x, 1)))
S(logsoftmax, flux_square(flux_logsoftmax(x)))
S(logsoftmax12, flux_square(flux_logsoftmax(x, 1, 2)))
S(clamp, flux_square(flux_clamp(x, 0.3, 0.7)))
S(matmul, flux_square(flux_matmul(flux_reshape(x, 4, 6), flux_reshape(x, 6, 4))))
S(matmul_t, flux_square(flux_matmul(flux_transpose(flux_reshape(x, 6, 4)), flux_reshape(x, 6, 4))))
S(matmul_batch, flux_square(flux_matmul(x, flux_reshape(x, 4, 3, 2))))
S(matmul_batch_shared, flux_square(flux_matmul(flux_reshape(flux_take(flux_reshape(x, 12, 2), 1), 3, 4), flux_reshape(x, 4, 3, 2))))
S(matmul_vector, flux_square(flux_matmul(flux_reshape(x, 4, 6), flux_reshape(flux_slice(x, 1, 0, 1), 6))))
S(vector_matmul, flux_square(flux_matmul(flux_reshape(flux_slice(x, 1, 0, 1), 6), flux_reshape(x, 6, 4))))
S(outer, flux_outer(flux_reshape(x, 24), flux_reshape(flux_slice(x, 0, 0, 1), 8)))
S(dot, flux_dot(flux_reshape(x, 24), flux_reshape(flux_exp(x), 24)))
S(dense_relu, flux_relu(flux_sub(flux_matmul(flux_reshape(x, 4, 6), flux_reshape(x, 6, 4)), 1)))
S(layernorm, flux_div(flux_sub(x, flux_mean(x, 0)), flux_sqrt(flux_add(flux_var(x, 0), 0.1))))
S(std, flux_square(flux_std(x)))
S(std1, flux_exp(flux_std(x, 1)))
S(cumsum, flux_square(flux_cumsum(x, 1)))
S(cumprod, flux_cumprod(flux_mul(x, flux_from(((double[]){ 1, 0, 2 }), 3)), 0))
S(cumprod_long, flux_cumprod(flux_reshape(x, 24)))
S(einsum, flux_square(flux_einsum("bik,bkj->bij", flux_permute(x, 2, 0, 1), flux_permute(flux_sin(x), 2, 1, 0))))
S(einsum_odd, flux_einsum("iai,baj->jb", flux_reshape(flux_slice(x, 0, 0, 2), 2, 4, 2), flux_square(flux_reshape(x, 3, 4, 2))))
S(einsum_rest, flux_einsum("...k,k...->...", flux_permute(x, 2, 0, 1), flux_square(flux_slice(flux_permute(x, 1, 2, 0), 1, 0, 1))))
S(sort, flux_square(flux_sort(x, 1)))
S(topk, flux_square(flux_nth(flux_topk(x, 2, 0), 0)))
S(tril, flux_square(flux_tril(x, 1)))
S(triu, flux_square(flux_triu(x)))
S(diag, flux_square(flux_diag(flux_reshape(x, 4, 6), -1)))
S(diag_of_vector, flux_matmul(flux_diag(flux_reshape(x, 24), 2), flux_sin(flux_arange(0, 26, 1))))
S(trace, flux_square(flux_trace(flux_matmul(flux_reshape(x, 4, 6), flux_reshape(x, 6, 4)))))
S(take_along, flux_square(flux_take_along(x, 1, flux_from(((int64_t[]){ 3, 0, 3, 1, 2, 2 }), 2, 3, 1))))
S(masked_fill, flux_square(flux_masked_fill(x, flux_gt(x, 0.5), 0.25)))
S(split, flux_mul(flux_nth(flux_split(x, 1, 3), 1), flux_nth(flux_split(x, 1, 1, 2, 1), 0)))
S(chunk, flux_mul(flux_nth(flux_chunk(x, 1, 2), 1), flux_nth(flux_chunk(x, 1, 2), 0)))
S(detach, flux_mul(x, flux_exp(flux_add(flux_detach(flux_mul(x, 0.0)), x))))

static const struct { const char *name; structural f; } structurals[] = {
#define ROW(name) { #name, s_##name }
    ROW(reshape), ROW(reshape_of_view), ROW(permute), ROW(transpose), ROW(slice), ROW(step), ROW(take), ROW(select), ROW(squeeze), ROW(flip),
    ROW(repeat), ROW(pad), ROW(broadcast), ROW(cat), ROW(stack), ROW(gather), ROW(gather2), ROW(scatter), ROW(cast), ROW(copy), ROW(tuple),
    ROW(sum), ROW(sum0), ROW(sum02), ROW(mean1), ROW(var), ROW(var1), ROW(prod), ROW(prod_zero), ROW(max), ROW(min), ROW(norm), ROW(logsumexp),
    ROW(logsumexp_all), ROW(softmax), ROW(softmax1), ROW(logsoftmax), ROW(logsoftmax12), ROW(clamp), ROW(matmul), ROW(matmul_t), ROW(matmul_batch),
    ROW(matmul_batch_shared), ROW(outer), ROW(dot), ROW(dense_relu), ROW(layernorm), ROW(detach), ROW(vector_matmul), ROW(matmul_vector),
    ROW(std), ROW(std1), ROW(cumsum), ROW(cumprod), ROW(cumprod_long), ROW(sort), ROW(topk), ROW(einsum), ROW(einsum_odd), ROW(einsum_rest), ROW(tril), ROW(triu), ROW(diag), ROW(diag_of_vector), ROW(trace), ROW(take_along), ROW(masked_fill), ROW(split), ROW(chunk)
};

static flux_tensor *weigh(flux_tensor *y) {        /* a different weight for every element */
    if (!y) return NULL;
    flux_tensor *w = flux_sin(flux_add(flux_to_dtype(flux_arange(0, (double)flux_len(y), 1), FLUX_F64), 1));
    return flux_sum(flux_mul(flux_reshape(y, -1), w));
}
static flux_tensor *structural_loss(flux_tensor *x, void *user) { return weigh(structurals[*(int *)user].f(x)); }
static flux_tensor *structural_slope(flux_tensor *x, void *user) {
    flux_grads *g = flux_gradient(structural_loss(x, user), x);
    flux_tensor *d = g ? flux_grad(g, x) : NULL;
    return d ? flux_sum(flux_mul(flux_square(d), 0.5)) : NULL;
}

TEST(gradients_of_structure) {
    flux_seed(11);
    for (int i = 0; i < (int)(sizeof structurals / sizeof structurals[0]); i++) FLUX_SCOPE {
        flux_tensor *x = flux_add(flux_rand_with(FLUX_SHAPE(3, 4, 2), FLUX_F64), 0.1);
        double first = flux_gradcheck(structural_loss, &i, x, 0), second = flux_gradcheck(structural_slope, &i, x, 0);
        if (!CHECK(first < 1e-6) || !CHECK(second < 2e-5)) fprintf(stderr, "    %s: first %g, second %g\n", structurals[i].name, first, second);
    }
}

/* Each of them, its gradient too, while memory runs out. */
static flux_tensor *fixed_x;
static flux_tensor *structural_both(void *user) {
    flux_tensor *d = structural_slope(fixed_x, user), *y = structural_loss(fixed_x, user);
    return d && y ? flux_add(d, y) : NULL;
}
TEST(memory_runs_out_in_gradients_of_structure) {
    ONLY_ON_CPU();
    flux_seed(11);
    fixed_x = flux_eval(flux_add(flux_rand_with(FLUX_SHAPE(3, 4, 2), FLUX_F64), 0.1));
    for (int i = 0; i < (int)(sizeof structurals / sizeof structurals[0]); i++) {
        double want = NAN;
        flux_tensor *y = flux_eval(structural_loss(fixed_x, &i)), *d = flux_eval(structural_slope(fixed_x, &i));
        want = scarce_sum(flux_add(y, d));
        scarce_value(structurals[i].name, structural_both, &i, want, 8);
    }
}

#if FLUX__WINOGRAD
/* Of the two sizes the first refuses what the shares of the tiles give, the second a task's memory: both are larger than what any
   test before has taken, and than what is made before them. */
TEST(a_weights_gradient_without_scratch_memory_is_an_error) {
    static const size_t sizes[] = { 270000, 320000 };
    ONLY_ON_CPU();
    if (flux__simd() < 1) return;
    flux_tensor *x = flux_eval(flux_abs(flux_ones(64, 64, 32, 1))), *w = flux_eval(flux_ones(3, 3, 32, 32)), *one = flux_eval(flux_ones(62, 62, 32, 1));
    for (int i = 0; i < 3; i++) FLUX_SCOPE {
        flux_tensor *d = flux_grad(flux_gradient(flux_sum(flux_mul(flux_conv(x, w), one)), w), w);
        flux_on_error(test_silent, NULL);
        flux__test_memory_large(i < 2 ? sizes[i] : SIZE_MAX);
        d = flux_eval(d);
        flux__test_memory_large(SIZE_MAX);
        flux_on_error(NULL, NULL);
        CHECK(i < 2 ? !d && strstr(flux_error(), "a worker's scratch") : d && flux_item(flux_min(d)) == 62 * 62 && flux_item(flux_max(d)) == 62 * 62);
        if (!d) flux_clear();
    }
}

/* Its scratch memory is larger than what any test before has taken, and than what it reads and makes. */
TEST(a_convolution_without_scratch_memory_is_an_error) {
    ONLY_ON_CPU();
    if (flux__simd() < 1) return;
    flux_tensor *x = flux_eval(flux_ones(18, 18, 128, 1)), *w = flux_eval(flux_ones(3, 3, 128, 128));
    flux_on_error(test_silent, NULL);
    flux__test_memory_large(900000);
    CHECK(!flux_eval(flux_conv(x, w)) && strstr(flux_error(), "out of memory"));
    flux__test_memory_large(SIZE_MAX);
    flux_clear();
    flux_on_error(NULL, NULL);
    CHECK(flux_item(flux_sum(flux_conv(x, w))) == 16 * 16 * 128 * 9 * 128);
}
#endif

/* Numbers on either side of a tensor, those among them that make no node. */
TEST(numbers_on_either_side) {
    static const double numbers[] = { 0, 1, -1, 2, -0.5 };
    const double v[] = { 1.5, -2, 0.25, 3 };
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < 5; i++) FLUX_SCOPE {
            if (test_left_out(i, 5)) continue;
            const double c = numbers[i];
            flux_tensor *x = flux_to_dtype(flux_from(v, 4), type ? FLUX_F64 : FLUX_F32);
            flux_tensor *y[] = { flux_add(x, c), flux_add(c, x), flux_sub(x, c), flux_sub(c, x), flux_mul(x, c), flux_mul(c, x),
                                 flux_div(x, c), flux_div(c, x), flux_max2(x, c), flux_max2(c, x), flux_min2(x, c), flux_min2(c, x),
                                 flux_pow(flux_abs(x), c), flux_pow(2.0, x), flux_gt(x, c), flux_gt(c, x), flux_eq(x, c), flux_eq(c, x) };
            for (int op = 0; op < (int)(sizeof y / sizeof *y); op++)
                for (int k = 0; k < 4; k++) {
                    const double a = v[k];
                    const double want[] = { a + c, c + a, a - c, c - a, a * c, c * a, a / c, c / a, fmax(a, c), fmax(c, a), fmin(a, c), fmin(c, a),
                                            pow(fabs(a), c), pow(2, a), a > c, c > a, a == c, c == a };
                    CHECK_NEAR(flux_at(y[op], k), want[op], 1e-6);
                }
        }
}

/* ---------------- convolution and pooling: values by a plain loop, gradients by differences */

typedef struct conv_case { int kind; flux_conv_opts o; flux_pool_opts p; flux_tensor *fixed; bool by_weight; } conv_case;

static flux_tensor *conv_loss(flux_tensor *x, void *user) {
    conv_case *c = (conv_case *)user;
    flux_conv_opts o = c->o;
    flux_pool_opts p = c->p;
    o.x = c->by_weight ? c->fixed : x;
    o.weight = c->by_weight ? x : c->fixed;
    p.x = x;
    switch (c->kind) {
    case 0: return weigh(flux_square(flux_conv_with(o)));
    case 1: return weigh(flux_square(flux_crosscor_with(o)));
    case 2: return weigh(flux_square(flux_conv_transpose_with(o)));
    case 3: return weigh(flux_square(flux_maxpool_with(p)));
    case 4: return weigh(flux_square(flux_meanpool_with(p)));
    default: return weigh(flux_lpnormpool_with(p));
    }
}

TEST(conv_by_hand) {
    flux_tensor *x = flux_from(((float[]){ 1, 2, 3, 4, 5 }), 5, 1, 1), *w = flux_from(((float[]){ 1, 0, -1 }), 3, 1, 1);
    CHECK_VALUES(flux_conv(x, w), ((double[]){ 2, 2, 2 }), 3, 0);
    CHECK_VALUES(flux_crosscor(x, w), ((double[]){ -2, -2, -2 }), 3, 0);
    CHECK_VALUES(flux_conv_transpose(flux_from(((float[]){ 1, 2 }), 2, 1, 1), w, .stride = FLUX_SHAPE(2)), ((double[]){ -1, 0, -1, 0, 2 }), 5, 0);
    CHECK_VALUES(flux_maxpool(x, FLUX_SHAPE(2), .pad = FLUX_SHAPE(1)), ((double[]){ 1, 3, 5 }), 3, 0);
    CHECK_VALUES(flux_meanpool(x, FLUX_SHAPE(2), .pad = FLUX_SHAPE(1)), ((double[]){ 0.5, 2.5, 4.5 }), 3, 0);
    CHECK_VALUES(flux_lpnormpool(x, FLUX_SHAPE(2)), ((double[]){ sqrt(5), 5 }), 2, 1e-6);
}

static int64_t pick(const flux_shape *s, int i, int64_t otherwise) { return s->ndim == 0 ? otherwise : s->dim[s->ndim == 1 ? 0 : i]; }

/* Two-dimensional convolution, straight from its definition. */
static void conv2_reference(const flux_conv_opts *o, bool flip, double *out, const int64_t *dims) {
    const double *x = (const double *)flux_data(o->x), *w = (const double *)flux_data(o->weight);
    int64_t W = flux_dim(o->x, 0), H = flux_dim(o->x, 1), C = flux_dim(o->x, 2), kw = flux_dim(o->weight, 0), kh = flux_dim(o->weight, 1);
    int64_t cg = flux_dim(o->weight, 2), O = flux_dim(o->weight, 3), g = o->groups ? o->groups : 1, at = 0;
    for (int64_t n = 0; n < dims[3]; n++)
        for (int64_t c = 0; c < O; c++)
            for (int64_t j = 0; j < dims[1]; j++)
                for (int64_t i = 0; i < dims[0]; i++, at++) {
                    double sum = 0;
                    for (int64_t d = 0; d < cg; d++)
                        for (int64_t q = 0; q < kh; q++)
                            for (int64_t p = 0; p < kw; p++) {
                                int64_t u = i * pick(&o->stride, 0, 1) - pick(&o->pad, 0, 0) + p * pick(&o->dilation, 0, 1);
                                int64_t v = j * pick(&o->stride, 1, 1) - pick(&o->pad, 1, 0) + q * pick(&o->dilation, 1, 1);
                                if (u < 0 || v < 0 || u >= W || v >= H) continue;
                                int64_t ch = c / (O / g) * cg + d, pp = flip ? kw - 1 - p : p, qq = flip ? kh - 1 - q : q;
                                sum += x[u + W * (v + H * (ch + C * n))] * w[pp + kw * (qq + kh * (d + cg * c))];
                            }
                    out[at] = sum;
                }
}

static void check_conv2(flux_conv_opts o) {
    for (int flip = 0; flip < 2; flip++) {
        flux_tensor *y = flip ? flux_conv_with(o) : flux_crosscor_with(o);
        if (!CHECK(y != NULL)) return;
        flux_shape s = flux_shape_of(y);
        double *want = (double *)malloc((size_t)flux_len(y) * sizeof *want);
        conv2_reference(&o, flip != 0, want, s.dim);
        CHECK_VALUES(y, want, flux_len(y), 1e-12);
        free(want);
    }
}

TEST(conv_against_loops) {
    flux_conv_opts o = { 0 };
    o.x = flux_rand_with(FLUX_SHAPE(7, 6, 4, 3), FLUX_F64);
    o.weight = flux_rand_with(FLUX_SHAPE(3, 2, 4, 6), FLUX_F64);
    check_conv2(o);
    o.stride = FLUX_SHAPE(2, 1), o.pad = FLUX_SHAPE(1), o.dilation = FLUX_SHAPE(1, 2);
    check_conv2(o);
    o.weight = flux_rand_with(FLUX_SHAPE(3, 2, 2, 6), FLUX_F64), o.groups = 2;
    check_conv2(o);
}

static void check_conv_gradient(conv_case c, flux_shape x, flux_shape w) {
    flux_tensor *a = flux_rand_with(x, FLUX_F64), *b = w.ndim ? flux_rand_with(w, FLUX_F64) : NULL;
    for (int by = 0; by < (w.ndim ? 2 : 1); by++) {
        c.by_weight = by == 1;
        c.fixed = by ? a : b;
        double e = flux_gradcheck(conv_loss, &c, by ? b : a, 0);
        if (!CHECK(e < 1e-6)) fprintf(stderr, "    kind %d by %s: %g\n", c.kind, by ? "weight" : "input", e);
    }
}

TEST(conv_gradients) {
    for (int kind = 0; kind < 3; kind++) FLUX_SCOPE {
        conv_case c;
        memset(&c, 0, sizeof c);
        c.kind = kind;
        check_conv_gradient(c, FLUX_SHAPE(5, 2, 2), FLUX_SHAPE(3, 2, 2));
        c.o.stride = FLUX_SHAPE(2), c.o.pad = FLUX_SHAPE(1);
        check_conv_gradient(c, FLUX_SHAPE(5, 4, 2, 2), FLUX_SHAPE(3, 3, 2, 2));
        c.o.groups = 2, c.o.stride = FLUX_SHAPE(1);
        if (kind == 2) check_conv_gradient(c, FLUX_SHAPE(3, 3, 4, 1), FLUX_SHAPE(2, 2, 1, 4));
        else check_conv_gradient(c, FLUX_SHAPE(3, 3, 4, 1), FLUX_SHAPE(2, 2, 2, 4));
        c.o.groups = 0, c.o.pad = FLUX_SHAPE(0);
        check_conv_gradient(c, FLUX_SHAPE(3, 3, 3, 1, 1), FLUX_SHAPE(2, 2, 2, 1, 1));
    }
}

TEST(pool_gradients) {
    for (int kind = 3; kind < 6; kind++) FLUX_SCOPE {
        conv_case c;
        memset(&c, 0, sizeof c);
        c.kind = kind, c.p.window = FLUX_SHAPE(3, 3), c.p.stride = FLUX_SHAPE(2), c.p.pad = kind == 5 ? FLUX_SHAPE(0) : FLUX_SHAPE(1);
        check_conv_gradient(c, FLUX_SHAPE(6, 5, 2, 1), flux__shape(NULL, 0));
        c.p.window = FLUX_SHAPE(2), c.p.stride = flux__shape(NULL, 0), c.p.pad = flux__shape(NULL, 0);
        check_conv_gradient(c, FLUX_SHAPE(6, 2, 2), flux__shape(NULL, 0));
    }
}

TEST(conv_transpose_is_the_gradient_of_conv) {
    flux_tensor *x = flux_rand_with(FLUX_SHAPE(7, 6, 2, 2), FLUX_F64), *w = flux_rand_with(FLUX_SHAPE(3, 2, 2, 3), FLUX_F64);
    flux_tensor *y = flux_conv(x, w, .stride = FLUX_SHAPE(2, 1), .pad = FLUX_SHAPE(1, 0)), *up = flux_rand_with(flux_shape_of(y), FLUX_F64);
    flux_tensor *dx = flux_grad(flux_gradient(flux_sum(flux_mul(y, up)), x), x);
    flux_tensor *t = flux_conv_transpose(up, w, .stride = FLUX_SHAPE(2, 1), .pad = FLUX_SHAPE(1, 0));
    CHECK(flux_dim(t, 0) == 7 && flux_dim(t, 1) == 6 && flux_dim(t, 2) == 2);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(t, dx)))) < 1e-12);
}

/* ---------------- the same on a device as on the CPU: random shapes of up to eight dims, some of them 0, and views of them */

typedef struct both { int n; flux_tensor *y[2][400]; char what[400][60]; } both;     /* results there and here */

static unsigned dice_state;
static int dice(int n) { return dice_state = dice_state * 1664525u + 1013904223u, (int)((dice_state >> 8) % (unsigned)n); }

static flux_shape dice_shape(int most, bool empty) {
    flux_shape s = flux__shape(NULL, dice(most + 1));
    int64_t total = 1;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = total > 300 ? 1 + dice(2) : 1 + dice(s.ndim > 4 ? 3 : 7), total *= s.dim[i];
    if (empty && s.ndim) s.dim[dice(s.ndim)] = 0;
    return s;
}

/* A tensor of shape s whose elements lie in another order, with gaps: on the device, and the same on the CPU. */
static void dice_view(flux_shape s, flux_dtype t, double lo, double hi, flux_tensor **out) {
    flux_device cpu = { 0, 0 };
    flux_shape base = s, order = s, dims = flux__shape(NULL, 0);
    int step[FLUX_MAX_DIMS], first[FLUX_MAX_DIMS], at[FLUX_MAX_DIMS], seed = dice(1000);
    for (int i = 0; i < s.ndim; i++) at[i] = i;
    for (int i = s.ndim - 1; i > 0; i--) {
        int k = dice(i + 1), was = at[i];
        at[i] = at[k], at[k] = was;
    }
    for (int i = 0; i < s.ndim; i++) {    /* dim i of the base becomes dim at[i] */
        step[i] = 1 + (dice(4) == 0), first[i] = dice(4) == 0;
        base.dim[i] = s.dim[at[i]] ? (s.dim[at[i]] - 1) * step[i] + 1 + first[i] : 0;
        order.dim[at[i]] = i;
        if (dice(4) == 0) dims.dim[dims.ndim++] = i;
    }
    for (int far = 0; far < 2; far++) {
        flux_seed((uint64_t)seed);
        flux_default_device(cpu);
        flux_tensor *x = flux_add(flux_mul(flux_rand_with(base, FLUX_F64), hi - lo), lo);
        x = flux_eval(flux__move(flux_eval(t == FLUX_BOOL ? flux_gt(x, (lo + hi) / 2) : flux_to_dtype(x, t)), far ? test_device : cpu));   /* flux_to makes f32 of f64 */
        for (int i = 0; i < s.ndim; i++)
            if (s.dim[at[i]]) x = flux_slice_step(x, i, first[i], base.dim[i], step[i]);
        if (dims.ndim && flux_len(x)) x = flux_flip_with(x, dims);
        out[far] = flux_permute_with(x, order);
        flux_default_device(test_device);
    }
}

static void both_add(both *b, flux_tensor *here, flux_tensor *far, const char *name, int t) {
    bool same = CHECK(!here == !far);
    if (!same) fprintf(stderr, "    %s of %s is refused %s\n", name, flux_dtype_name((flux_dtype)t), here ? "there" : "here");
    flux_clear();
    if (!here || !far || !CHECK(b->n < 400)) return;
    snprintf(b->what[b->n], sizeof b->what[0], "%s of %s", name, flux_dtype_name((flux_dtype)t));
    b->y[0][b->n] = here, b->y[1][b->n++] = far;
}

static void both_check(const both *b) {
    REQUIRE(flux_eval_all(b->n, b->y[0]) == 0 && flux_eval_all(b->n, b->y[1]) == 0);
    for (int i = 0; i < b->n; i++) {
        static const double tols[FLUX_NUM_DTYPES] = { 2e-5, 1e-11, 4e-3, 3.2e-2, 0, 0, 0, 0 };
        flux_tensor *y[2];
        for (int far = 0; far < 2; far++) y[far] = flux_to_dtype(flux_cpu(b->y[far][i]), FLUX_F64);
        int64_t n = flux_len(y[0]), bad = -1;
        const double *x = (const double *)flux_data(y[0]), *z = (const double *)flux_data(y[1]);
        double tol = tols[flux_dtype_of(b->y[0][i])], largest = 0;         /* sums are as exact as their largest parts */
        for (int64_t k = 0; k < n && x; k++)
            if (fabs(x[k]) > largest && fabs(x[k]) <= DBL_MAX) largest = fabs(x[k]);
        if (!CHECK(flux_device_equal(flux_device_of(b->y[1][i]), test_device) && flux_dtype_of(b->y[1][i]) == flux_dtype_of(b->y[0][i])) ||
            !CHECK(flux_len(y[1]) == n && (n == 0 || (x && z)))) fprintf(stderr, "    %s\n", b->what[i]);
        for (int64_t k = 0; k < n && bad < 0 && x && z; k++)
            if (!test_close(z[k], x[k], tol * largest) && !test_close(z[k], x[k], tol) && !(isnan(x[k]) && isnan(z[k]))) bad = k;
        if (!CHECK(bad < 0)) fprintf(stderr, "    %s, element %d of %d: %.10g there, %.10g here\n", b->what[i], (int)bad, (int)n, z[bad], x[bad]);
    }
}

/* All rows of the table at one shape and dtype, each operand with some dims of 1 or left out. */
static void dice_rows(both *b, flux_dtype t, bool empty) {
    flux_shape s = dice_shape(8, empty);
    for (int op = 0; op < FLUX__ELEMENTWISE_COUNT; op++) {
        const reference *r = ref_of(op);
        char rule = flux__rules[op];
        flux_tensor *xs[3][2], *a[2][3];
        bool whole = t == FLUX_I32 || t == FLUX_I64 || t == FLUX_U8;
        for (int k = 0; k < 3; k++) {
            flux_shape own = s;
            for (int i = 0; i < s.ndim && k; i++)
                if (dice(3) == 0) own.dim[i] = 1;
            while (k && own.ndim && (own.dim[own.ndim - 1] == 1 || dice(8) == 0)) own.ndim--;
            bool truth = rule == 'B' || (rule == 'S' && k == 0);
            dice_view(own, truth ? FLUX_BOOL : t, whole ? (t == FLUX_U8 || op == FLUX__OP_POW ? 0 : -6) : r->lo, whole ? 7 : r->hi, xs[k]);
            a[0][k] = xs[k][0], a[1][k] = xs[k][1];
        }
        both_add(b, apply(op, a[0]), apply(op, a[1]), flux__op_names[op], t);
    }
}

/* What reduces, moves, picks and multiplies; f of two operands of one shape, which may be used or not. */
typedef flux_tensor *(*of_two)(flux_tensor *x, flux_tensor *z);
#define D(name, expression) static flux_tensor *d_##name(flux_tensor *x, flux_tensor *z) { return (void)z, expression; }
static int d_dim;                         /* a dim of x, which has one at least */
D(sum, flux_sum(x)) D(sum1, flux_sum(x, d_dim)) D(prod1, flux_prod(x, d_dim)) D(mean1, flux_mean(x, d_dim)) D(max1, flux_max(x, d_dim)) D(min1, flux_min(x, d_dim))
D(max, flux_max(x)) D(argmax, flux_argmax(x, d_dim)) D(argmin, flux_argmin(x, d_dim)) D(var1, flux_var(x, d_dim)) D(softmax, flux_softmax(x, d_dim))
D(logsumexp, flux_logsumexp(x, d_dim)) D(sums, flux_sub(flux_sum(flux_mul(x, z), d_dim), flux_max(z, d_dim))) D(copy, flux_copy(x))
D(flat, flux_add(flux_reshape(x, -1), flux_reshape(z, -1))) D(cat, flux_cat(d_dim, x, z, x)) D(stack, flux_stack(0, z, x)) D(flip, flux_copy(flux_flip(x, d_dim)))
D(pad, flux_pad(x, 2, 1, 0)) D(gather, flux_gather(x, d_dim, flux_slice(flux_from(((int32_t[]){ 0, 0 }), 2), 0, 0, flux_dim(x, d_dim) ? 2 : 0))) D(repeat, flux_repeat(x, 2))
D(scatter, flux_scatter_add(x, d_dim, flux_from(((int64_t[]){ 0 }), 1), flux_slice(z, d_dim, 0, 1)))
D(f32, flux_to_dtype(x, FLUX_F32)) D(f64, flux_to_dtype(x, FLUX_F64)) D(f16, flux_to_dtype(x, FLUX_F16)) D(bf16, flux_to_dtype(x, FLUX_BF16))
D(i32, flux_to_dtype(x, FLUX_I32)) D(i64, flux_to_dtype(x, FLUX_I64)) D(u8, flux_to_dtype(x, FLUX_U8)) D(bool, flux_to_dtype(x, FLUX_BOOL))
D(matmul, flux_matmul(flux_reshape(x, flux_dim(x, 0), -1), flux_transpose(flux_reshape(z, flux_dim(x, 0), -1))))
D(matmul_inner, flux_matmul(flux_transpose(flux_reshape(x, flux_dim(x, 0), -1)), flux_reshape(z, flux_dim(x, 0), -1)))

static const struct { const char *name; of_two f; } of_twos[] = {
#define OF(name) { #name, d_##name }
    OF(sum), OF(sum1), OF(prod1), OF(mean1), OF(max1), OF(min1), OF(max), OF(argmax), OF(argmin), OF(var1), OF(softmax), OF(logsumexp), OF(sums), OF(copy), OF(flat), OF(cat),
    OF(stack), OF(flip), OF(pad), OF(gather), OF(repeat), OF(scatter), OF(f32), OF(f64), OF(f16), OF(bf16), OF(i32), OF(i64), OF(u8), OF(bool), OF(matmul), OF(matmul_inner)
};

/* The gradients of such results' sums of squares. */
static void slopes(both *b, flux_tensor **y, flux_tensor **x, const char *name, flux_dtype t) {
    flux_device cpu = { 0, 0 };
    flux_tensor *d[2] = { NULL, NULL };
    char of[60];
    snprintf(of, sizeof of, "gradient of %s", name);
    for (int far = 0; far < 2 && flux__dtypes[t].real; far++) {
        flux_default_device(far ? test_device : cpu);
        flux_grads *g = y[far] && flux__dtypes[flux_dtype_of(y[far])].real ? flux_gradient(flux_sum(flux_square(flux_to_dtype(y[far], FLUX_F64))), x[far]) : NULL;
        d[far] = g ? flux_grad(g, x[far]) : NULL;
    }
    both_add(b, d[0], d[1], of, t);
}

static void dice_others(both *b, flux_dtype t, bool empty) {
    flux_device cpu = { 0, 0 };
    flux_shape s = dice_shape(8, empty);
    flux_tensor *xs[2][2], *y[2];
    bool whole = t == FLUX_I32 || t == FLUX_I64 || t == FLUX_U8;
    if (s.ndim == 0) s.dim[s.ndim++] = 3;
    d_dim = dice(s.ndim);
    for (int k = 0; k < 2; k++) dice_view(s, t, t == FLUX_U8 ? 0 : whole ? -3 : -2, whole ? 4 : 2, xs[k]);
    for (int i = 0; i < (int)(sizeof of_twos / sizeof *of_twos); i++) {
        for (int far = 0; far < 2; far++) {
            flux_default_device(far ? test_device : cpu);
            y[far] = of_twos[i].f(xs[0][far], xs[1][far]);
        }
        both_add(b, y[0], y[1], of_twos[i].name, t);
        slopes(b, y, xs[0], of_twos[i].name, t);
    }
}

/* Convolutions and pools over odd sizes. */
static void dice_images(both *b, flux_dtype t) {
    flux_conv_opts o = { 0 };
    flux_pool_opts p = { 0 };
    flux_tensor *xs[2], *ws[2], *ts[2], *y[2];
    static const char *const names[] = { "conv", "crosscor", "conv_transpose", "maxpool", "meanpool" };
    o.groups = 1 + dice(2);
    int64_t in = o.groups * (1 + dice(3)), out = o.groups * (1 + dice(3)), w = 3 + dice(8), h = 3 + dice(8), kw = 1 + dice(3), kh = 1 + dice(3);
    dice_view(FLUX_SHAPE(w, h, in, 1 + dice(3)), t, -2, 2, xs);
    dice_view(FLUX_SHAPE(kw, kh, in / o.groups, out), t, -1, 1, ws);
    dice_view(FLUX_SHAPE(kw, kh, out / o.groups, in), t, -1, 1, ts);
    o.stride = FLUX_SHAPE(1 + dice(2), 1 + dice(3)), o.pad = FLUX_SHAPE(dice(kw > 1 ? 2 : 1), dice(kh > 1 ? 2 : 1)), p.window = FLUX_SHAPE(1 + dice(3), 2);
    for (int kind = 0; kind < 5; kind++) {
        for (int far = 0; far < 2; far++) {
            o.x = p.x = xs[far], o.weight = kind == 2 ? ts[far] : ws[far];
            y[far] = kind == 0 ? flux_conv_with(o) : kind == 1 ? flux_crosscor_with(o) : kind == 2 ? flux_conv_transpose_with(o) : kind == 3 ? flux_maxpool_with(p) : flux_meanpool_with(p);
        }
        both_add(b, y[0], y[1], names[kind], t);
        slopes(b, y, xs, names[kind], t);
        if (kind < 3) slopes(b, y, kind == 2 ? ts : ws, names[kind], t);
    }
}

/* Windows of any size, distance and padding over 1 to 3 dims, by plain loops. Numbers are few, so that maxima tie; NaN is the largest.
   Gradients are whole numbers, also divided by a window's elements: sums of them have no rounding. */
typedef struct windows { int nd, n; bool mean; flux_shape x, window, stride, pad; float *data, *g, *y, *dx; } windows;

/* Goes on to the next index of a shape; false: that was the last one */
static bool next_index(int nd, const int64_t *dim, int64_t *at) {
    for (int d = 0; d < nd; at[d++] = 0)
        if (++at[d] < dim[d]) return true;
    return false;
}

/* Writes the maximum or mean of the window at the place at[...] of an image to *w->y; or, where there is w->dx, adds `by` to the
   gradient of the maximum, or a part of it to that of each element. */
static void window_of(const windows *w, const int64_t *at, int64_t image, float by) {
    int64_t e[3] = { 0 }, most = -1, step[3] = { 1, w->x.dim[0], w->x.dim[0] * (w->nd > 1 ? w->x.dim[1] : 1) };
    double sum = 0, n = 1;
    float best = -INFINITY;
    for (int d = 0; d < w->nd; d++) n *= (double)w->window.dim[d];
    do {
        int64_t place = image;
        bool inside = true;
        for (int d = 0; d < w->nd; d++) {
            const int64_t i = at[d] * w->stride.dim[d] + e[d] - w->pad.dim[2 * d];
            inside = inside && i >= 0 && i < w->x.dim[d], place += i * step[d];
        }
        if (!inside) continue;
        const float v = w->data[place];
        sum += v;
        if (w->mean && w->dx) w->dx[place] += by / (float)n;
        if (v > best || (v != v && best == best)) best = v, most = place;
    } while (next_index(w->nd, w->window.dim, e));
    if (!w->dx) *w->y = w->mean ? (float)(sum / n) : best;
    else if (!w->mean && most >= 0) w->dx[most] += by;
}

static void pool_as_loops(windows *w) {
    flux_tensor *x = flux_from_with(w->data, FLUX_F32, w->x), *y = NULL, *dx = NULL, *g, *loss;
    flux_pool_opts o = { 0 };
    o.x = x, o.window = w->window, o.stride = w->stride, o.pad = w->pad;
    FLUX_NOGRAD y = w->mean ? flux_meanpool_with(o) : flux_maxpool_with(o);
    if (!CHECK(y != NULL)) return;
    const flux_shape s = flux_shape_of(y);
    const int64_t n = flux_len(y), all = flux_len(x);
    float *want = (float *)calloc((size_t)(n + all), sizeof *want);
    const float *have = (const float *)flux_data(y);
    bool good = have && want;
    int64_t at[FLUX_MAX_DIMS] = { 0 }, size = 1, i = 0;
    for (int d = 0; d < w->nd; d++) size *= w->x.dim[d];
    g = flux_eval(flux_mul(flux_floor(flux_mul(flux_rand_with(s, FLUX_F32), 8)), w->n));
    y = w->mean ? flux_meanpool_with(o) : flux_maxpool_with(o);
    loss = flux_sum(flux_mul(y, g));
    FLUX_NOGRAD dx = flux_eval(flux_grad(flux_gradient(loss, x), x));
    const float *up = (const float *)flux_data(g), *got = (const float *)flux_data(dx);
    good = good && up && got;
    if (CHECK(good)) do {
        const int64_t image = (at[w->nd] + at[w->nd + 1] * w->x.dim[w->nd]) * size;
        w->y = want + i, w->dx = NULL, window_of(w, at, image, 0);
        good = good && (w->mean ? fabs(have[i] - want[i]) < 2e-6 * 9 || have[i] == want[i] : have[i] == want[i] || (have[i] != have[i] && want[i] != want[i]));
        w->dx = want + n, window_of(w, at, image, up[i++]);
    } while (next_index(s.ndim, s.dim, at));
    for (i = 0; i < all && good; i++) good = got[i] == want[n + i];
    if (!CHECK(good)) {
        fprintf(stderr, "    %s of %lld x %lld x %lld, %d dims, window %lld x %lld, stride %lld x %lld, pad %lld x %lld\n", w->mean ? "mean" : "maximum", (long long)w->x.dim[0],
                (long long)w->x.dim[1], (long long)w->x.dim[2], w->nd, (long long)w->window.dim[0], (long long)w->window.dim[1], (long long)w->stride.dim[0], (long long)w->stride.dim[1],
                (long long)w->pad.dim[0], (long long)w->pad.dim[2]);
    }
    free(want);
}

TEST(pools_of_any_windows) {
    dice_state = 5;
    for (int i = 0; i < 600; i++) FLUX_SCOPE {
        windows w = { 1 + dice(8) % 3, 1, i % 2 == 1, flux__shape(NULL, 0), flux__shape(NULL, 0), flux__shape(NULL, 0), flux__shape(NULL, 0), NULL, NULL, NULL, NULL };
        if (w.nd != 2 && dice(2)) w.nd = 2;
        w.x.ndim = w.nd + 2, w.window.ndim = w.stride.ndim = w.nd, w.pad.ndim = 2 * w.nd;
        for (int d = 0; d < w.nd; d++) {
            const int size = 1 + dice(dice(8) ? 4 : w.nd == 2 ? 8 : 12), lo = dice(3) ? dice(size) : 0, hi = dice(3) ? dice(size) : 0;
            w.window.dim[d] = size, w.pad.dim[2 * d] = lo, w.pad.dim[2 * d + 1] = hi, w.n *= size;
            w.stride.dim[d] = 1 + dice(dice(8) ? 3 : 11);
            w.x.dim[d] = 1 + (lo + hi < size - 1 ? size - 1 - lo - hi : 0) + dice(dice(8) ? 20 : w.nd == 1 ? 2000 : w.nd == 2 ? 130 : 30);
        }
        w.x.dim[w.nd] = 1 + dice(3), w.x.dim[w.nd + 1] = 1 + dice(3);
        if (test_left_out(i, 40) || w.n > 64 * 64) continue;
        const int64_t all = flux__product(w.x.dim, w.x.ndim);
        const bool special = !w.mean && dice(2);
        REQUIRE((w.data = (float *)malloc((size_t)all * sizeof *w.data)) != NULL);
        for (int64_t k = 0; k < all; k++) {
            const int r = dice(special ? 40 : 20);
            w.data[k] = r == 39 ? NAN : r == 38 ? INFINITY : (float)(r - 10) / 4;
        }
        pool_as_loops(&w);
        free(w.data);
    }
}

/* Elements side by side are computed several at a time: from any place on, and to any place. */
TEST(slices_of_any_length_and_start) {
    static const flux_dtype dtypes[] = { FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8 };
    static const int lengths[] = { 1, 3, 4, 5, 7, 8, 9, 15, 16, 60 };
    double v[70];
    for (int i = 0; i < 70; i++) v[i] = i % 31;
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (int from = 0; from < 9; from += 1 + (int)l % 3) FLUX_SCOPE {
                const int n = lengths[l];
                flux_tensor *all = flux_eval(flux_to_dtype(flux_from_with(v, FLUX_F64, FLUX_SHAPE(70)), dtypes[t])),
                    *x = flux_slice(all, 0, from, from + n), *y = flux_slice(all, 0, 8 - from, 8 - from + n);
                flux_tensor *two[3] = { flux_add(x, y), flux_add(flux_mul(x, x), flux_flip(y, 0)), flux_gt(x, y) };
                flux_eval_all(3, two);
                const double *sum = (const double *)flux_data(flux_to_dtype(two[0], FLUX_F64));
                const double *square = (const double *)flux_data(flux_to_dtype(two[1], FLUX_F64));
                const double *more = (const double *)flux_data(flux_to_dtype(two[2], FLUX_F64));
                REQUIRE(sum && square && more);
                for (int i = 0; i < n; i++) {
                    const double a = v[from + i], b = v[8 - from + i], c = a * a + v[8 - from + n - 1 - i];
                    CHECK_NEAR(sum[i], a + b, 0);
                    CHECK_NEAR(square[i], dtypes[t] == FLUX_U8 ? (double)((int)c % 256) : c, dtypes[t] == FLUX_BF16 ? 4 : 0);
                    CHECK_NEAR(more[i], a > b, 0);
                }
            }
}

/* Rows and columns of any length are reduced by so many threads, several points at a time, in parts: sums, the greatest and
   its place, and softmax, which uses them again, agree with doubles; and a sum is the same number in any kernel. */
TEST(reductions_of_any_length) {
    static const int lengths[] = { 5, 33, 127, 128, 130, 132, 256, 260, 264, 1000, 1024, 2055, 4096, 5001, 20000, 70000 };
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (int way = 0; way < 4; way++) FLUX_SCOPE {
            const int n = lengths[l], m = way < 2 ? 3 : 1, dim = way % 2;
            flux_tensor *x = flux_randn(dim ? m : n, dim ? n : m), *sum, *most, *place, *soft;
            if (way >= 2) x = flux_to_dtype(flux_to_dtype(x, FLUX_BF16), FLUX_F32);
            x = flux_eval(x);
            soft = flux_softmax(x, dim), sum = flux_sum(x, dim), most = flux_max(x, dim), place = flux_argmax(x, dim);
            flux_tensor *all[4] = { soft, sum, most, place }, *again = flux_add(flux_mul(x, 0), flux_sum(x, dim));
            flux_eval_all(4, all);
            const float *v = (const float *)flux_data(x), *s = (const float *)flux_data(soft), *t = (const float *)flux_data(sum);
            const float *g = (const float *)flux_data(most), *a = (const float *)flux_data(again);
            const int64_t *at = (const int64_t *)flux_data(place);
            REQUIRE(v && s && t && g && a && at);
            for (int r = 0; r < m; r++) {
                double total = 0, exps = 0;
                int best = 0;
                for (int i = 0; i < n; i++) {
                    const double e = v[dim ? i * m + r : r * n + i];
                    total += e, exps += exp(e);
                    if (e > v[dim ? best * m + r : r * n + best]) best = i;
                }
                CHECK_NEAR(t[r], total, 1e-6 * n);
                CHECK(at[r] == best && g[r] == v[dim ? best * m + r : r * n + best]);
                for (int i = 0; i < n; i += 1 + n / 50) {
                    const int k = dim ? i * m + r : r * n + i;
                    CHECK_NEAR(s[k], exp((double)v[k]) / exps, 3e-6 * exp((double)v[k]) / exps + 1e-12);
                    CHECK(a[k] == t[r]);
                }
            }
        }
}

TEST(a_device_agrees_with_the_cpu) {
    if (!test_device.backend) SKIP("the CPU is what a device is compared with");
    const char *times = getenv("TIMES"), *seed = getenv("SEED");
    int n = times ? atoi(times) : 1;
    both *b = (both *)malloc(sizeof *b);
    dice_state = seed ? (unsigned)atoi(seed) : 5;
    flux_on_error(test_silent, NULL);
    for (int i = 0; i < n * FLUX_NUM_DTYPES; i++) FLUX_SCOPE {
        flux_dtype t = (flux_dtype)(i % FLUX_NUM_DTYPES);
        b->n = 0;
        dice_rows(b, t, i % 3 == 1);
        dice_others(b, t, i % 3 == 2);
        if (flux__dtypes[t].real) dice_images(b, t);
        both_check(b);
    }
    flux_on_error(NULL, NULL);
    free(b);
}

TEST_MAIN()
