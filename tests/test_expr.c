/* flux_expr: values against the same written as calls and against plain C, precedence against Julia's, every error with
   its column, gradients, and a few thousand formulas that make no sense. */
#include <locale.h>
#include "test.h"
#include "../src/graph/table.h"

static double number(const char *formula) { return flux_item(flux_expr_with(formula, 0, "", NULL)); }

/* Whether two tensors have the same shape and numbers. */
static bool same(flux_tensor *a, flux_tensor *b) {
    flux_shape sa = flux_shape_of(a), sb = flux_shape_of(b);
    if (!a || !b || sa.ndim != sb.ndim || memcmp(sa.dim, sb.dim, (size_t)sa.ndim * sizeof *sa.dim) != 0) return false;
    const double *x = (const double *)flux_data(flux_to_dtype(a, FLUX_F64)), *y = (const double *)flux_data(flux_to_dtype(b, FLUX_F64));
    for (int64_t i = 0; x && y && i < flux_len(a); i++)
        if (!(x[i] == y[i] || fabs(x[i] - y[i]) <= 1e-6 * (1 + fabs(y[i])) || (x[i] != x[i] && y[i] != y[i]))) return false;
    return x && y;
}

/* ------------------------------------------------------------------ numbers */

TEST(precedence_of_numbers) {
    static const struct { const char *formula; double value; } cases[] = {     /* right sides: Julia's answers */
        { "1", 1 }, { "2.5", 2.5 }, { ".5", 0.5 }, { "2.", 2 }, { "1e3", 1000 }, { "1.5e-3", 0.0015 }, { "1E+2", 100 }, { "1f0", 1 },
        { "25f-1", 2.5 }, { "1_000", 1000 }, { "1_0.2_5", 10.25 }, { "2.e2", 200 },
        { "1 + 2*3", 7 }, { "(1 + 2)*3", 9 }, { "10 - 4 - 3", 3 }, { "100/10/2", 5 }, { "2*3/4", 1.5 }, { "7 - 2 + 1", 6 },
        { "-2^2", -4 }, { "(-2)^2", 4 }, { "2^-1", 0.5 }, { "2^3^2", 512 }, { "-2^-2", -0.25 }, { "2^3*2", 16 }, { "2*2^3", 16 },
        { "2^-2*3", 0.75 }, { "-2*3", -6 }, { "1 - -1", 2 }, { "- - 1", 1 }, { "+1", 1 }, { "--2^2", 4 }, { "-3 + 5", 2 },
        { "2(3 + 4)", 14 }, { "1/2(4)", 0.125 }, { "2^2(3)", 64 }, { "3(2)^2", 12 }, { "-3(2)", -6 }, { "2pi", 6.283185307179586 },
        { "2\xCF\x80^2", 19.739208802178716 }, { "1/2pi", 0.15915494309189535 }, { "2sqrt(9)", 6 }, { "2exp(0)", 2 }, { "2e0", 2 },
        { "!0 == 1", 1 }, { "1 + 1 == 2", 1 }, { "1 < 2 && 2 < 3", 1 }, { "1 || 0 && 0", 1 }, { "(1 || 0) && 0", 0 }, { "1 != 1", 0 },
        { "0 || 1", 1 }, { "1 || 1", 1 }, { "0 || 0", 0 }, { "1 && 0", 0 }, { "0 && 1", 0 },
        { "0 | 1", 1 }, { "0 | 0", 0 }, { "1 & 0", 0 }, { "0 & 1", 0 }, { "2 < 2", 0 }, { "3 < 2", 0 },
        { "2 > 2", 0 }, { "2 > 3", 0 }, { "3 <= 2", 0 }, { "2 >= 2", 1 }, { "2 != 3", 1 }, { "2 == 3", 0 },
        { "2 <= 2", 1 }, { "2 >= 3", 0 }, { "3 > 2", 1 }, { "1 \xE2\x89\xA4 2", 1 }, { "1 \xE2\x89\xA5 2", 0 }, { "1 \xE2\x89\xA0 2", 1 },
        { "1 < 2 ? 10 : 20", 10 }, { "0 ? 1 : 0 ? 2 : 3", 3 }, { "1 ? 2 : 3 + 4", 2 }, { "(0 ? 2 : 3) + 4", 7 }, { "2 > 1 ? -1 : 1", -1 },
        { "2 .+ 3 .* 4", 14 }, { "2.+3", 5 }, { "2.*3", 6 }, { "1./4", 0.25 }, { "2 .^ 3", 8 }, { "2.^3.^2", 512 }, { "1.5.+.5", 2 }, { ".-2", -2 },
        { "3 \xE2\x8B\x85 4", 12 }, { "true && !false", 1 }, { "1 & 1 | 0", 1 },
        { "exp(1)", 2.718281828459045 }, { "exp.(1)", 2.718281828459045 }, { "sqrt(2)", 1.4142135623730951 }, { "\xE2\x88\x9A""2", 1.4142135623730951 },
        { "abs(-3)", 3 }, { "max(1, 2)", 2 }, { "min(1, 2)", 1 }, { "clamp(5, 0, 1)", 1 }, { "pow(2, 3)", 8 }, { "round(2.5)", 2 }, { "round(3.5)", 4 },
        { "tanh(0.5) + sin(1) + cos(1) + log(2) + log1p(1) + expm1(1)", 4.9484666 }, { "floor(-1.5) + ceil(-1.5)", -3 },
        { "relu(-1) + relu(2)", 2 }, { "sigmoid(0)", 0.5 }, { "\xCF\x83(0)", 0.5 }, { "sum(3)", 3 }, { "erf(0.5)", 0.5204998778130465 },
        { "2'", 2 }, { "length(3)", 1 }, { "abs2(-3)", 9 }, { "ifelse(1 < 2, 3, 4)", 3 }, { "Inf > 1", 1 }, { "NaN == NaN", 0 },
        { " ( ( 1 ) ) ", 1 }, { "\n1\t+\r1", 2 }, { "\xE2\x84\xAF", 2.718281828459045 }, { "123456789012345678901234567890e-29", 1.2345678901234567 },
        { "0.000000000000000000000000000000000000000000000001e48", 1 }, { "1e-400", 0 }, { "1e99999999999999999999 > 1e300", 1 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = number(cases[i].formula);
        if (!test_close(got, cases[i].value, 3e-7)) fprintf(stderr, "%s is %.9g, not %.9g\n", cases[i].formula, got, cases[i].value);
        CHECK(test_close(got, cases[i].value, 3e-7));
        flux_clear();
    }
    CHECK(number("Inf") > 1e300 && number("-Inf") < -1e300);
    CHECK(number("NaN") != number("NaN"));
}

/* Numbers are computed in double before they take a tensor's dtype. */
TEST(folding_in_double) {
    double one = 1, third = 1.0 / 3, two = 1.0 + 1e-12;
    flux_tensor *x = flux_from(&one, 1);
    CHECK_NEAR(flux_item(flux_expr("x .* (1/3)", x)), third, 0);
    CHECK_NEAR(flux_item(flux_expr("x .* (1 + 1e-12)", x)), two, 0);
    CHECK_NEAR(flux_item(flux_expr("x .+ exp(1)", x)), 1 + exp(1.0), 0);
    CHECK(flux_dtype_of(flux_expr("2x .+ 1", x)) == FLUX_F64);
    CHECK(flux_dtype_of(flux_expr_with("1/3", 0, NULL, NULL)) == FLUX_F32);
    CHECK_NEAR(flux_item(flux_expr("x .* 0.1f0", x)), (double)0.1f, 0);
    int32_t whole[] = { 1, 2 };
    flux_tensor *k = flux_from(whole, 2);
    CHECK(flux_dtype_of(flux_expr("2k .+ 1", k)) == FLUX_I32);
}

TEST(a_comma_in_the_locale_changes_nothing) {
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "fr_FR", "German" };
    const char *have = NULL;
    for (int i = 0; i < 6 && !have; i++) have = setlocale(LC_NUMERIC, names[i]);
    if (!have) SKIP("no locale with a decimal comma; package: locales-all");
    CHECK_NEAR(number("1.5 + 2.5e-1 + max(1, 0.5)"), 2.75, 1e-7);
    setlocale(LC_NUMERIC, "C");
}

/* ------------------------------------------------------------------ arrays */

TEST(the_seed) {
    flux_seed(3);
    flux_tensor *W = flux_rand(2, 5), *b = flux_rand(2), *x = flux_rand(5), *y = flux_rand(2);
    flux_tensor *want = flux_sum(flux_square(flux_sub(flux_add(flux_matmul(W, x), b), y)));
    flux_tensor *got = flux_expr("sum((W*x .+ b .- y).^2)", W, x, b, y);
    CHECK(same(got, want));
    CHECK(flux_ndim(got) == 0);
    flux_grads *g = flux_gradient(got, W, b), *h = flux_gradient(want, W, b);
    CHECK(same(flux_grad(g, W), flux_grad(h, W)));
    CHECK(same(flux_grad(g, b), flux_grad(h, b)));
    flux_tensor *residual = flux_sub(flux_add(flux_matmul(W, x), b), y);
    CHECK(same(flux_grad(g, W), flux_mul(2, flux_outer(residual, x))));
}

TEST(against_calls) {
    flux_seed(4);
    flux_tensor *A = flux_randn(3, 4), *B = flux_randn(4, 2), *C = flux_randn(3, 4), *S = flux_randn(3, 3), *x = flux_randn(4), *y = flux_randn(3);
    flux_tensor *T = flux_randn(3, 4, 2), *s = flux_scalar(1.5), *p = flux_abs(A);
#define SAME(want, ...) CHECK(same(flux_expr(__VA_ARGS__), want))
    SAME(flux_matmul(A, B), "A*B", A, B);
    SAME(flux_matmul(A, x), "A*x", A, x);
    SAME(flux_mul(A, 2), "2A", A);
    SAME(flux_mul(A, 2), "A*2", A);
    SAME(flux_mul(A, s), "A*s", A, s);
    /* what is computed of numbers alone is a number, and no row */
    SAME(flux_transpose(flux_mul(x, 3)), "((s + s)*x)'", s, x);
    SAME(flux_transpose(flux_mul(x, exp(1.5))), "(exp(s)*x)'", s, x);
    SAME(flux_transpose(flux_mul(x, 2)), "(x*max(s, 2))'", s, x);
    SAME(flux_transpose(flux_mul(x, -1.5)), "(-s*x)'", s, x);
    SAME(flux_mul(x, 3), "(s + s)*x", s, x);
    SAME(flux_mul(x, 3), "x*(s + s)", s, x);
    SAME(flux_mul(A, 3), "(s + 1.5)*A", s, A);
    SAME(flux_mul(x, -3), "-(2s)'*x", s, x);
    SAME(flux_mul(x, exp(1.5)), "exp(s)*x", s, x);
    SAME(flux_mul(x, 2), "max(s, 2)*x", s, x);
    SAME(flux_mul(flux_transpose(x), 3), "(s + s)*x'", s, x);
    SAME(flux_mul(flux_dot(x, x), 3), "(s + s)*x'*x", s, x);
    SAME(flux_add(s, s), "(s + s)'", s);
    SAME(flux_add(x, 3), "(s + s)' .+ x", s, x);
    SAME(flux_div(A, 2), "A/2", A);
    SAME(flux_div(A, s), "A/s", A, s);
    SAME(flux_div(1, p), "1 ./ p", p);
    SAME(flux_add(A, C), "A + C", A, C);
    SAME(flux_sub(A, C), "A - C", A, C);
    SAME(flux_add(A, 1), "A .+ 1", A);
    SAME(flux_add(A, y), "A .+ y", A, y);
    SAME(flux_mul(A, C), "A .* C", A, C);
    SAME(flux_neg(A), "-A", A);
    SAME(flux_neg(A), ".-A", A);
    SAME(A, "+A", A);
    SAME(A, "A", A);
    SAME(flux_transpose(A), "A'", A);
    SAME(A, "A''", A);
    SAME(flux_transpose(x), "x'", x);
    SAME(x, "x''", x);
    SAME(flux_matmul(flux_transpose(A), y), "A'*y", A, y);
    SAME(flux_dot(x, x), "x'*x", x);
    SAME(flux_dot(x, x), "x \xE2\x8B\x85 x", x);
    SAME(flux_outer(y, x), "y*x'", y, x);
    SAME(flux_outer(y, x), "y .* x'", y, x);
    SAME(flux_dot(y, flux_matmul(A, x)), "y'*A*x", y, A, x);
    SAME(flux_dot(y, flux_matmul(A, x)), "(2y')*A*x/2", y, A, x);
    SAME(flux_matmul(flux_transpose(y), A), "y'*A", y, A);
    SAME(flux_matmul(flux_transpose(A), y), "(y'*A)'", y, A);
    SAME(flux_transpose(flux_add(x, x)), "x' + x'", x);
    SAME(flux_dot(flux_neg(x), x), "-x'*x", x);
    SAME(flux_dot(flux_tanh(flux_mul(x, 2)), x), "tanh.(2 .* x')*x", x);
    SAME(flux_dot(flux_max2(x, 0), x), "(max.(x', 0).^2 ./ max.(x', 1e-30))*x", x);
    SAME(flux_matmul(flux_add(flux_transpose(x), A), x), "(x' .+ A)*x", A, x);
    SAME(flux_matmul(S, S), "S^2", S);
    SAME(S, "S^1", S);
    SAME(flux_matmul(S, flux_matmul(S, flux_matmul(S, flux_matmul(S, S)))), "S^5", S);
    SAME(flux_square(A), "A.^2", A);
    SAME(flux_mul(A, flux_square(A)), "A.^3", A);
    SAME(flux_pow(p, 1.5), "p.^1.5", p);
    SAME(flux_pow(p, A), "p.^A", p, A);
    SAME(flux_pow(2, A), "2 .^ A", A);
    SAME(flux_neg(flux_square(A)), "-A.^2", A);
    SAME(flux_mul(2, flux_square(A)), "2A.^2", A);
    SAME(flux_exp(A), "exp.(A)", A);
    SAME(flux_mul(2, flux_exp(flux_neg(A))), "2exp.(-A)", A);
    SAME(flux_sigmoid(A), "\xCF\x83.(A)", A);
    SAME(flux_sigmoid(A), "sigmoid.(A)", A);
    SAME(flux_square(A), "abs2.(A)", A);
    SAME(flux_sqrt(p), "\xE2\x88\x9A.(p)", p);
    SAME(flux_sqrt(p), ".\xE2\x88\x9Ap", p);
    SAME(p, "\xE2\x88\x9A.(p).^2", p);
    SAME(flux_le(A, 0), "!.(A .> 0)", A);
    SAME(flux_max2(A, 0), "max.(A, 0)", A);
    SAME(flux_min2(A, C), "min.(A, C)", A, C);
    SAME(flux_clamp(A, -0.5, 0.5), "clamp.(A, -0.5, 0.5)", A);
    SAME(flux_where(flux_gt(A, 0), A, C), "ifelse.(A .> 0, A, C)", A, C);
    SAME(flux_where(flux_gt(s, 0), A, C), "s > 0 ? A : C", s, A, C);
    SAME(flux_and(flux_gt(A, 0), flux_lt(C, 0)), "(A .> 0) .&& (C .< 0)", A, C);
    SAME(flux_and(flux_gt(A, 0), flux_lt(C, 0)), "A .> 0 .&& C .< 0", A, C);
    SAME(flux_and(flux_gt(A, 0), flux_lt(C, 0)), "(A .> 0) .& (C .< 0)", A, C);
    SAME(flux_or(flux_gt(A, 0), flux_not(flux_ge(C, 0))), "A .> 0 .|| .!(C .>= 0)", A, C);
    SAME(flux_gt(A, 0), "A .> 0 .&& true", A);
    SAME(flux_lt(A, 1e9), "A .> 0 .|| true", A);         /* every element, not one for all */
    SAME(flux_gt(A, 1e9), "false .&& (A .> 0)", A);
    SAME(flux_gt(A, 0), "false .|| (A .> 0)", A);
    SAME(flux_sum(flux_lt(A, 1e9)), "sum(A .> 0 .|| 2)", A);
    SAME(flux_eq(A, A), "A .== A", A);
    SAME(flux_ne(A, C), "A .!= C", A, C);
    SAME(flux_le(A, C), "A .<= C", A, C);
    SAME(flux_le(A, C), "A .\xE2\x89\xA4 C", A, C);
    SAME(flux_sum(A), "sum(A)", A);
    SAME(flux_sum(A, 0), "sum(A, dims=0)", A);
    SAME(flux_sum(A, 1), "sum(A; dims = 1)", A);
    SAME(flux_sum(T, 0, 2), "sum(T, dims=(0, 2))", T);
    SAME(flux_sum(T, 1), "sum(T, dims=(1,))", T);
    SAME(flux_sum(flux_square(A)), "sum(abs2, A)", A);
    SAME(flux_mean(flux_abs(A), 0), "mean(abs, A, dims=0)", A);
    SAME(flux_mean(A), "mean(A)", A);
    SAME(flux_mean(A), "sum(A)/length(A)", A);
    SAME(flux_sum(A), "einsum('', sum(A)) + 0*einsum('->', sum(A))", A);
    SAME(flux_div(flux_sum(A), 3), "sum(A)/size(A, 0)", A);
    SAME(flux_var(A, 1), "var(A, dims=1)", A);
    SAME(flux_prod(A), "prod(A)", A);
    SAME(flux_max(A), "maximum(A)", A);
    SAME(flux_max(A), "max(A)", A);
    SAME(flux_min(A, 0), "minimum(A, dims=0)", A);
    SAME(flux_norm(A), "norm(A)", A);
    SAME(flux_argmax(A, 0), "argmax(A, dims=0)", A);
    SAME(flux_any(flux_gt(A, 5)), "any(A .> 5)", A);
    SAME(flux_all(flux_gt(A, -50)), "all(A .> -50)", A);
    SAME(flux_softmax(A), "softmax(A)", A);
    SAME(flux_softmax(A, 1), "softmax(A, dims=1)", A);
    SAME(flux_logsoftmax(A), "logsoftmax(A)", A);
    SAME(flux_logsumexp(A, 0), "logsumexp(A, dims=0)", A);
    SAME(flux_transpose(A), "transpose(A)", A);
    SAME(flux_flatten(T), "flatten(T)", T);
    SAME(flux_dot(x, x), "dot(x, x)", x);
    SAME(flux_dot(x, x), "dot(x', x)", x);
    SAME(flux_outer(y, x), "outer(y, x)", y, x);
    SAME(flux_matmul(A, B), "matmul(A, B)", A, B);
    SAME(flux_cat(0, A, C), "vcat(A, C)", A, C);
    SAME(flux_cat(1, A, C), "hcat(A, C)", A, C);
    SAME(flux_mse(A, C), "mse(A, C)", A, C);
    SAME(flux_logitcrossentropy(A, C), "logitcrossentropy(A, C)", A, C);
    SAME(flux_sum(flux_mul(S, flux_eye(3))), "tr(S)", S);
    SAME(flux_add(flux_matmul(A, flux_matmul(B, flux_transpose(B))), C), "A*B*B' + C", A, B, C);
    SAME(flux_softmax(flux_tanh(flux_add(flux_matmul(A, B), y))), "softmax(tanh.(A*B .+ y))", A, B, y);
#undef SAME
}

/* Every activation and every elementwise function of one operand, by name, against its own call. */
/* Functions of arrays and plain numbers. */
TEST(functions_with_numbers) {
    flux_tensor *x = flux_reshape(flux_sin(flux_arange(0, 12, 1)), 3, 4), *i = flux_to_dtype(flux_reshape(flux_values(2, 0, 1, 1), 1, 4), FLUX_I64);
    flux_tensor *few = flux_to_dtype(flux_values(2, 0), FLUX_I64), *m = flux_gt(x, 0);
    CHECK(same(flux_expr("tril(x, 1) + triu(x, -1) .* 2", x), flux_add(flux_tril(x, 1), flux_mul(flux_triu(x, -1), 2))));
    CHECK(same(flux_expr("diag(x, 1)", x), flux_diag(x, 1)) && same(flux_expr("diag(x)", x), flux_diag(x)));
    CHECK(same(flux_expr("take_along(x, 0, i)", x, i), flux_take_along(x, 0, i)) && same(flux_expr("gather(x, 1, few)", x, few), flux_gather(x, 1, few)));
    CHECK(same(flux_expr("nth(topk(x, 2, 0), 0)", x), flux_nth(flux_topk(x, 2, 0), 0)));
    CHECK(same(flux_expr("nth(topk(x, 2, 1), 1)", x), flux_nth(flux_topk(x, 2, 1), 1)));
    CHECK(same(flux_expr("nth(split(x, 1, 3), 1)", x), flux_slice(x, 1, 3, 4)) && same(flux_expr("nth(chunk(x, 1, 2), 1)", x), flux_slice(x, 1, 2, 4)));
    CHECK(same(flux_expr("einsum('ij,kj->ik', x, x)", x), flux_matmul(x, flux_transpose(x))) && same(flux_expr("einsum(\"ij->j\", x)", x), flux_einsum("ij->j", x)));
    CHECK(same(flux_expr("(x*einsum( 'ji,jk' , x, x''))'", x), flux_transpose(flux_matmul(x, flux_matmul(flux_transpose(x), x)))));
    CHECK(same(flux_expr("masked_fill.(x, m, -1)", x, m), flux_masked_fill(x, m, -1)));
    CHECK(same(flux_expr_with("linspace(0, 2, 5)", 0, "", NULL), flux_linspace(0, 2, 5)));
    CHECK(same(flux_expr_with("sort(randperm(7))", 0, "", NULL), flux_to_dtype(flux_arange(0, 7, 1), FLUX_I64)));
    CHECK(same(flux_expr_with("randint(4, 5, 3)", 0, "", NULL), flux_to_dtype(flux_full(4, 3), FLUX_I64)));
    CHECK(same(flux_expr("bernoulli(1 .+ 0 .* x)", x), flux_ones(3, 4)) && flux_ndim(flux_expr("categorical(x)", x)) == 1);
    flux_grads *g = flux_gradient(flux_expr("sum(take_along(x, 0, i) .* 3)", x, i), x);
    CHECK_NEAR(flux_at(flux_grad(g, x), 2, 0), 3, 0);
    CHECK_NEAR(flux_at(flux_grad(g, x), 1, 0), 0, 0);
}

/* What takes a shape, or any number of tensors, as in C. */
TEST(functions_of_shapes) {
    flux_tensor *x = flux_reshape(flux_sin(flux_arange(0, 24, 1)), 2, 3, 4), *v = flux_values(1, 2, 3), *i = flux_to_dtype(flux_values(2, 0), FLUX_I64);
    flux_tensor *m = flux_reshape(x, 6, 4);
    CHECK(same(flux_expr("reshape(x, 6, -1)", x), m) && same(flux_expr("reshape(x, length(x))", x), flux_reshape(x, 24)));
    CHECK(same(flux_expr("permute(x, 2, 0, 1)", x), flux_permute(x, 2, 0, 1)) && same(flux_expr("permutedims(x, 1, 0, 2)", x), flux_permute(x, 1, 0, 2)));
    CHECK(same(flux_expr("flip(x, 0, 2)", x), flux_flip(x, 0, 2)) && same(flux_expr("repeat(v, 2, 3)", v), flux_repeat(v, 2, 3)));
    CHECK(same(flux_expr("broadcast_to(v, 3, 2 + 2)", v), flux_broadcast_to(v, 3, 4)) && same(flux_expr("pad(v, -1, 1, 2)", v), flux_pad(v, -1, 1, 2)));
    CHECK(same(flux_expr("cat(0, v, v, v)", v), flux_cat(0, v, v, v)) && same(flux_expr("stack(1, v)", v), flux_stack(1, v)));
    CHECK(same(flux_expr("nth(split(m, 0, 1, 3, 2), 1)", m), flux_slice(m, 0, 1, 4)) && same(flux_expr("slice(m, 0, 1, 4)", m), flux_slice(m, 0, 1, 4)));
    CHECK(same(flux_expr("select(x, 2, 3)", x), flux_select(x, 2, 3)) && same(flux_expr("unsqueeze(v, 0)", v), flux_unsqueeze(v, 0)));
    CHECK(same(flux_expr("take(m, 2)", m), flux_take(m, 2)) && same(flux_expr("drop(m, 3)", m), flux_drop(m, 3)));
    CHECK(same(flux_expr("onehot(i, 4) .+ 0", i), flux_add(flux_onehot(i, 4), 0)));
    CHECK(same(flux_expr("scatter_add(v, 0, i, ones(2))", v, i), flux_values(2, 2, 4)));
    CHECK(same(flux_expr_with("zeros(2, 3) .+ 3 .* ones(2, 1)", 0, "", NULL), flux_full(3, 2, 3)));
    CHECK(same(flux_expr_with("eye(3)", 0, "", NULL), flux_eye(3)) && flux_len(flux_expr_with("randint(0, 9, 2, 3)", 0, "", NULL)) == 6);
    flux_seed(4);
    flux_tensor *a = flux_expr_with("rand(2, 3) .- randn(2, 3)", 0, "", NULL);
    flux_seed(4);
    flux_tensor *uniform = flux_rand(2, 3);
    CHECK(same(a, flux_sub(uniform, flux_randn(2, 3))));
    flux_grads *g = flux_gradient(flux_expr("sum(slice(reshape(x, 6, 4), 0, 1, 2) .* 3)", x), x);
    CHECK_NEAR(flux_at(flux_grad(g, x), 1, 0, 2), 3, 0);
    CHECK_NEAR(flux_at(flux_grad(g, x), 0, 0, 2), 0, 0);
}

TEST(every_function_of_one) {
    flux_seed(5);
    flux_tensor *x = flux_rand(7), *bools = flux_gt(x, 0.5), *const TAKES_N[] = { x }, *const TAKES_F[] = { x }, *const TAKES_B[] = { bools };
#define CHECK_ROW(NAME, name, n, dt, call, ...) FLUX__PUBLIC_OF_1(n, call, CHECK_CALL(#name, flux_##name, TAKES_##dt))
#define CHECK_CALL(name, f, of) CHECK(same(flux_expr_with(name ".(x)", 1, "x", of), (f)(*of)));
#define ACTIVATIONS(X) X(identity) X(hardsigmoid) X(logsigmoid) X(hardtanh) X(relu6) X(selu) X(gelu_tanh) X(gelu_sigmoid) X(gelu_erf) \
    X(swish) X(hardswish) X(lisht) X(mish) X(softsign) X(leakyrelu) X(elu) X(celu) X(softshrink) X(trelu)
#define CHECK_ONE(f) CHECK(same(flux_expr(#f ".(x)", x), flux_##f(x)));
    ACTIVATIONS(CHECK_ONE)
    FLUX__ELEMENTWISE(CHECK_ROW)
#define CHECK_LOSS(f, per) CHECK(same(flux_expr(#f "(x, x)", x), flux_##f(x, x)));
    FLUX__LOSSES(CHECK_LOSS)
#undef CHECK_LOSS
}

/* Any elementwise function before any reduction, and what is none. */
TEST(a_function_before_a_reduction) {
    static const char *const functions[] = { "abs", "abs2", "exp", "\xCF\x83", "relu", "tanh", "swish" };
    static const char *const reductions[] = { "sum", "mean", "maximum", "minimum", "prod", "var", "norm", "logsumexp" };
    static const char *const dims[] = { "", ", dims=0", "; dims = (0, 1)" };
    flux_tensor *A = flux_eval(flux_mul(flux_randn(3, 4), 2)), *abs = A, *pair[] = { abs, A };
    char text[100], plain[100];
    for (int i = 0; i < 7 * 8 * 3; i++) FLUX_SCOPE {
        const char *f = functions[i % 7], *r = reductions[i / 7 % 8], *d = dims[i / 56];
        snprintf(text, sizeof text, "%s(%s%s,%sA%s)", r, f, i % 2 ? "" : "  ", i % 3 ? "" : " ", d);
        snprintf(plain, sizeof plain, "%s(%s.(A)%s)", r, f, d);
        CHECK(same(flux_expr(text, A), flux_expr(plain, A)));
    }
    CHECK(number("sum(abs, -3)") == 3 && number("mean(abs2, -3)") == 9);
    CHECK(same(flux_expr("sum(dims=0, abs, A)", A), flux_sum(flux_abs(A), 0)));
    CHECK(same(flux_expr("sum(abs)", abs), flux_sum(A)) && same(flux_expr("sum(abs, dims=0)", abs), flux_sum(A, 0)));
    CHECK_ERROR(flux_expr_with("mean(abs , A)", 2, "abs, A", pair), "expr: column 1: mean takes 1 operand, not 2");
    CHECK_ERROR(flux_expr("sum(abs)", A), "expr: column 5: 'abs' is a function: write abs(...)");
    CHECK_ERROR(flux_expr("sum(abs; A)", A), "expr: column 5: 'abs' is a function");
    CHECK_ERROR(flux_expr("sum(abs, )", A), "expr: column 10: expected a number, a name or (, found ')'");
    CHECK_ERROR(flux_expr("sum(abs, dims=0)", A), "expr: column 16: expected a number, a name or (, found ')'");
    CHECK_ERROR(flux_expr("sum(A, abs)", A), "expr: column 8: 'abs' is a function");
    CHECK_ERROR(flux_expr("sum(A, abs, A)", A), "expr: column 8: 'abs' is a function");
    CHECK_ERROR(flux_expr("sum(abs, abs, A)", A), "expr: column 10: 'abs' is a function");
    CHECK_ERROR(flux_expr("sum(sum, A)", A), "expr: column 5: 'sum' is a function");
    CHECK_ERROR(flux_expr("sum(length, A)", A), "expr: column 5: 'length' is a function");
    CHECK_ERROR(flux_expr("sum(max, A)", A), "expr: column 5: 'max' is a function");
    CHECK_ERROR(flux_expr("sum('a', abs, A)", A), "expr: column 10: 'abs' is a function");
    CHECK_ERROR(flux_expr("sum(abs, 'a')", A), "expr: column 10: expected a number, a name or (, found '''");
    CHECK_ERROR(flux_expr("length(abs, A)", A), "expr: column 1: length takes no function as an operand");
    CHECK_ERROR(flux_expr("exp(abs, A)", A), "expr: column 1: exp takes no function as an operand");
    CHECK_ERROR(flux_expr("sum('a', A)", A), "expr: column 1: sum takes no text");
}

/* ------------------------------------------------------------------ random formulas, computed beside */

/* A formula, how tightly its outermost operation binds, and its values: of a plain number, or of five elements. */
enum { CHOICE, OR, AND, COMPARED, SUMS, PRODUCTS, SIGNED, POWERS, ATOM };
typedef struct { char text[400]; int level; bool array, truth; double v[5]; } formula_part;
static uint32_t draw(uint32_t n);
static const double leaf_values[5] = { -1.5, 2, 0.25, 3, -1 };

static void put_operand(char *to, const formula_part *p, int least) {
    if (p->level >= least && draw(8)) strcat(to, p->text);
    else strcat(to, "("), strcat(to, p->text), strcat(to, ")");
}
static void put_operator(char *to, const char *name, bool dot) {
    const char *space = draw(2) || dot ? " " : "";        /* 2.+3 is another thing than 2 .+ 3 to read, and tested above */
    strcat(to, space), strcat(to, dot ? "." : ""), strcat(to, name), strcat(to, space);
}
static formula_part formula_leaf(void) {
    static const struct { const char *text; double v; } numbers[] = { { "2", 2 }, { "0.5", 0.5 }, { ".25", 0.25 }, { "3", 3 }, { "1e0", 1 }, { "15e-1", 1.5 }, { "1_0", 10 } };
    formula_part p = { "", ATOM, draw(2) != 0, false, { 0 } };
    const uint32_t k = draw(7);
    strcpy(p.text, p.array ? "x" : numbers[k].text);
    for (int i = 0; i < 5; i++) p.v[i] = p.array ? leaf_values[i] : numbers[k].v;
    return p;
}
static double binary_value(int op, double a, double b) {
    switch (op) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    case 4: return pow(a, b);
    case 5: return a < b;
    case 6: return a <= b;
    case 7: return a > b;
    case 8: return a >= b;
    case 9: return a == b;
    case 10: return a != b;
    case 11: return a && b;
    default: return a || b;
    }
}
static formula_part formula_of(int deep, bool truth);
static formula_part binary_formula(int deep, int op) {
    static const char *const names[] = { "+", "-", "*", "/", "^", "<", "<=", ">", ">=", "==", "!=", "&&", "||" };
    static const int levels[] = { SUMS, SUMS, PRODUCTS, PRODUCTS, POWERS, COMPARED, COMPARED, COMPARED, COMPARED, COMPARED, COMPARED, AND, OR };
    const int level = levels[op];
    formula_part a = formula_of(deep - 1, op > 10), b = formula_of(deep - 1, op > 10), p = { "", level, a.array || b.array, op > 4, { 0 } };
    if (op == 4) {                        /* a small whole power */
        b = formula_leaf(), b.array = false, p.array = a.array;
        const uint32_t n = draw(4);
        snprintf(b.text, sizeof b.text, "%u", n);
        for (int i = 0; i < 5; i++) b.v[i] = n;
    }
    put_operand(p.text, &a, level == POWERS ? ATOM : level == COMPARED ? SUMS : level);
    put_operator(p.text, names[op], p.array);
    put_operand(p.text, &b, level == POWERS ? SIGNED : level + 1);
    for (int i = 0; i < 5; i++) p.v[i] = binary_value(op, a.v[i], b.v[i]);
    return p;
}
static formula_part formula_of(int deep, bool truth) {
    formula_part p = { "", ATOM, false, truth, { 0 } };
    const uint32_t kind = draw(10);
    if (truth && (deep <= 0 || kind < 4)) p = binary_formula(deep < 1 ? 1 : deep, (int)(5 + draw(6)));
    else if (truth && kind < 8) p = binary_formula(deep, (int)(11 + draw(2)));
    else if (truth) {
        const formula_part a = formula_of(deep - 1, true);
        p.array = a.array, p.level = SIGNED;
        strcat(p.text, a.array ? ".!" : "!");
        put_operand(p.text, &a, SIGNED);
        for (int i = 0; i < 5; i++) p.v[i] = a.v[i] == 0;
    } else if (deep <= 0) p = formula_leaf();
    else if (kind < 6) p = binary_formula(deep, (int)draw(5));
    else if (kind < 8) {
        static const char *const names[] = { "-", "abs", "floor", "max", "clamp" };
        const uint32_t f = draw(5);
        const formula_part a = formula_of(deep - 1, false), b = formula_of(deep - 1, false);
        p.array = a.array || (f == 3 && b.array), p.level = f ? ATOM : SIGNED;
        strcpy(p.text, f || !p.array ? names[f] : ".-");
        if (f) strcat(p.text, p.array ? ".(" : "(");
        put_operand(p.text, &a, f ? CHOICE : SIGNED);
        if (f == 3) strcat(p.text, draw(2) ? "," : " , "), put_operand(p.text, &b, CHOICE);
        if (f) strcat(p.text, f == 4 ? ", -1, 2)" : ")");
        for (int i = 0; i < 5; i++) {
            const double x = a.v[i], y = b.v[i];
            p.v[i] = f == 0 ? -x : f == 1 ? fabs(x) : f == 2 ? floor(x) : f == 3 ? (x > y ? x : y) : x < -1 ? -1 : x > 2 ? 2 : x;
        }
    } else {
        const formula_part c = formula_of(deep - 1, true), a = formula_of(deep - 1, false), b = formula_of(deep - 1, false);
        p.array = c.array || a.array || b.array, p.level = c.array ? ATOM : CHOICE;
        if (c.array) snprintf(p.text, sizeof p.text, "ifelse.(%.120s, %.120s, %.120s)", c.text, a.text, b.text);
        else put_operand(p.text, &c, OR), put_operator(p.text, "?", false), put_operand(p.text, &a, OR), put_operator(p.text, ":", false), put_operand(p.text, &b, CHOICE);
        for (int i = 0; i < 5; i++) p.v[i] = c.v[i] != 0 ? a.v[i] : b.v[i];
        if (!c.array) p.array = c.v[0] != 0 ? a.array : b.array;
    }
    if (strlen(p.text) > 110) return truth ? binary_formula(1, 5) : formula_leaf();
    for (int i = 0; i < 5; i++)
        if (!(fabs(p.v[i]) < 1e6)) return formula_leaf();
    return p;
}
TEST(random_formulas) {
    flux_tensor *x = flux_eval(flux_values_with(5, leaf_values));
    for (int k = 0; k < 3000; k++) FLUX_SCOPE {
        const formula_part p = formula_of(1 + (int)draw(4), draw(4) == 0);
        if (test_left_out(k, 10)) continue;            /* most have a kernel of their own */
        flux_tensor *y = flux_expr_with(p.text, 1, "x", &x);
        const double *got = y ? (const double *)flux_data(flux_to_dtype(y, FLUX_F64)) : NULL;
        bool good = got && flux_len(y) == (p.array ? 5 : 1);
        for (int i = 0; i < 5 && good; i++) good = test_close(got[p.array ? i : 0], p.v[i], 2e-5);
        if (!good) fprintf(stderr, "\"%s\": \"%s\"\n", p.text, flux_error());
        CHECK(good);
        flux_clear();
    }
}

/* Names are the C variables' own; a bound one goes before a constant, and beside a function of its name. */
TEST(names) {
    float one = 1, two = 2;
    flux_tensor *pi = flux_from(&one, 1), *sum = flux_from(&two, 1), *w_1 = flux_from(&two, 1), *_a = pi;
    CHECK_NEAR(flux_item(flux_expr("pi", pi)), 1, 0);
    CHECK_NEAR(flux_item(flux_expr("sum(sum)", sum)), 2, 0);
    CHECK_NEAR(flux_item(flux_expr("w_1 .* _a", w_1, _a)), 2, 0);
    flux_tensor *both[2] = { pi, sum };
    CHECK_NEAR(flux_item(flux_expr_with("y\xCC\x82 .+ \xCE\x94x", 2, " y\xCC\x82 ,\xCE\x94x ", both)), 3, 0);
    flux_tensor *same_tensor = flux_expr("pi", pi);
    CHECK(same_tensor == pi);
}

/* A name may begin with any character outside ASCII: here with the first and last of each first byte that UTF-8 has. */
TEST(names_in_every_script) {
    flux_tensor *x = flux_scalar(2);
    for (int lead = 0xC2; lead <= 0xF4; lead++)
        for (int last = 0; last < 2; last++) {
            const int n = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
            char name[8] = "", formula[40], second = (char)(last ? 0xBF : 0x80);
            for (int i = 1; i < n; i++) name[i] = second;
            name[0] = (char)lead;
            if (lead == 0xE0 || lead == 0xF0) name[1] = (char)(last ? 0xBF : lead == 0xE0 ? 0xA0 : 0x90);      /* shorter forms are none */
            if (lead == 0xED || lead == 0xF4) name[1] = (char)(last ? lead == 0xED ? 0x9F : 0x8F : 0x80);      /* surrogates, and the end */
            if (lead == 0xC3 && last) name[1] = (char)0xB8;      /* its last is a letter like others, but U+00D7 is a sign */
            snprintf(formula, sizeof formula, "%sa * %sa + 1", name, name);
            strcat(name, "a");
            flux_tensor *y = flux_expr_with(formula, 1, name, &x);
            if (!CHECK(y && flux_item(y) == 5)) fprintf(stderr, "    %02x %02x\n", lead, (unsigned char)name[1]);
        }
    CHECK_ERROR(flux_expr_with("\xE0\x80\x80 + 1", 1, "x", &x), "expr: column 1");
    CHECK_ERROR(flux_expr_with("\xF5\x80\x80\x80 + 1", 1, "x", &x), "expr: column 1");
}

TEST(keeps_nothing) {
    flux_device cpu = { 0, 0 };
    FLUX_SCOPE {
        flux_tensor *x = flux_rand(64, 64);
        flux_eval(x);
        int64_t live = flux_mem_stats(cpu).live;
        FLUX_SCOPE flux_eval(flux_expr("sum(exp.(x*x' .- x).^2, dims=0)", x));
        CHECK(flux_mem_stats(cpu).live == live);
    }
}

static flux_tensor *formula(flux_tensor *x, void *user) {
    flux_tensor *W = (flux_tensor *)user;
    return flux_expr("sum(tanh.(W*x).^2 .* exp.(-x)) + 0.5norm(x) + mean(abs2, softmax(x))/3 + x'*W*x", W, x);
}
TEST(gradients) {
    flux_seed(6);
    flux_tensor *W = flux_to_dtype(flux_randn(4, 4), FLUX_F64), *x = flux_to_dtype(flux_randn(4), FLUX_F64);
    CHECK(flux_gradcheck(formula, W, x, 0) < 1e-6);
}

/* ------------------------------------------------------------------ errors */

#define SPACES_20 "                    "
#define SPACES_100 SPACES_20 SPACES_20 SPACES_20 SPACES_20 SPACES_20

TEST(errors_name_the_column) {
    static const struct { const char *formula, *message; } cases[] = {
        { "W*x .+ z", "expr: column 8: unknown name 'z' (bound: W, x, b, T)" },
        { "W*x .+ zeta + 1", "expr: column 8: unknown name 'zeta'" },
        { "\xCF\x83.(W) .+ \xCF\x83x", "expr: column 10: unknown name '\xCF\x83x'" },
        { "W*", "expr: column 3: expected a number, a name or (, found the end" },
        { "", "expr: column 1: expected a number, a name or (, found the end" },
        { "  ", "expr: column 3: expected a number, a name or (, found the end" },
        { "(W*x", "expr: column 5: expected ) or an operator, found the end" },
        { "((x)", "expr: column 5: expected ) or an operator, found the end" },
        { "W*x)", "expr: column 4: ) without a (" },
        { "W x", "expr: column 3: expected an operator or the end, found 'x'" },
        { "2 x", "expr: column 3: expected an operator or the end, found 'x'" },
        { "x[1]", "expr: column 2: no indexing in formulas" },
        { "x .+ $", "expr: column 6: expected a number, a name or (, found '$'" },
        { "x @ x", "expr: column 3: expected an operator or the end, found '@'" },
        { "x .+ \x80", "expr: column 6: expected a number, a name or (, found byte 0x80" },
        { "x .+ \x01", "expr: column 6: expected a number, a name or (, found byte 0x01" },
        { "x ~ 1", "expr: column 3: expected an operator or the end, found '~'" },
        { "* x", "expr: column 1: expected a number, a name or (, found '*'" },
        { "x .", "expr: column 3: expected an operator or the end, found '.'" },
        { "1 .5", "expr: column 3: expected an operator or the end, found '.'" },
        { "2(3)(4)", "expr: column 5: expected an operator or the end, found '('" },
        { "foo(x)", "expr: column 1: unknown function 'foo'" },
        { "foo.(x)", "expr: column 1: unknown function 'foo'" },
        { "x(1)", "expr: column 1: 'x' is a variable, not a function" },
        { "x + exp", "expr: column 5: 'exp' is a function: write exp(...)" },
        { "topk(x, 1)", "expr: column 1: topk takes 3 operands, not 2" },
        { "einsum(x, x)", "expr: column 1: operand 1 of einsum is no text in quotes" },
        { "einsum('ij')", "expr: column 1: einsum takes 2 operands or more, not 1" },
        { "einsum('ij->i" SPACES_100 SPACES_100 "', x)",
          "expr: column 1: einsum: a text of 205 characters; at most 199" },
        { "einsum('ij, x)", "expr: column 8: expected a number, a name or (, found '''" },
        { "einsum(x, 'ij')", "expr: column 11: expected a number, a name or (, found '''" },
        { "1 + einsum('ijk->i', x)", "expr: column 5: einsum: " },
        { "tril('ij', 1)", "expr: column 1: operand 1 of tril is a text in quotes" },
        { "exp('ij')", "expr: column 1: exp takes no text" },
        { "randperm()", "expr: column 1: randperm takes 1 operand, not 0" },
        { "x + tril(x, 0.5)", "expr: column 5: operand 2 of tril is no whole number" },
        { "nth(x, x)", "expr: column 1: operand 2 of nth is no whole number" },
        { "gather.(x, 0, x)", "expr: column 1: gather takes neither a dot nor dims" },
        { "tril(x, dims=0)", "expr: column 1: tril takes no dims" },
        { "exp()", "expr: column 1: exp takes 1 operand, not 0" },
        { "exp.(x, x)", "expr: column 1: exp takes 1 operand, not 2" },
        { "dot(x)", "expr: column 1: dot takes 2 operands, not 1" },
        { "dot(x, x, x, x)", "expr: column 1: dot takes 2 operands, not 4" },
        { "dot(x,x,x,x,x,x,x,x,x,x,x,x,x)", "expr: column 29: dot takes no more than 12 operands" },
        { "reshape(x)", "expr: column 1: reshape takes 2 operands or more, not 1" },
        { "reshape(x, 1, 1, 1, 1, 1, 1, 1, 1, 1)", "expr: column 1: reshape takes 2 operands or more, not 10" },
        { "reshape(x, 1.5)", "expr: column 1: operand 2 of reshape is no whole number" },
        { "reshape(x, 5, 7)", "expr: column 1: reshape: " },
        { "reshape(x, x)", "expr: column 1: operand 2 of reshape is no whole number" },
        { "cat(0)", "expr: column 1: cat takes 2 operands or more, not 1" },
        { "cat(x, x)", "expr: column 1: operand 1 of cat is no whole number" },
        { "reshape.(x, 2)", "expr: column 1: reshape takes neither a dot nor dims" },
        { "zeros(-1)", "expr: column 1: " },
        { "exp(x", "expr: column 6: expected , or ) or an operator, found the end" },
        { "exp(x x)", "expr: column 7: expected , or ) or an operator, found 'x'" },
        { "1 + exp(x)", "expr: column 5: exp of a 5-element f32 vector: write exp.(...) for each element" },
        { "exp(W)", "expr: column 1: exp of a 2x5 f32 matrix: write exp.(...) for each element" },
        { "max(W, 1)", "expr: column 1: max of a 2x5 f32 matrix: write max.(...) for each element" },
        { "exp(T)", "expr: column 1: exp of a 2x2x2 f32 array: write exp.(...) for each element" },
        { "sum.(x)", "expr: column 1: sum.(...) would take single elements: write sum(...)" },
        { "dot.(x, x)", "expr: column 1: dot.(...) would take single elements: write dot(...)" },
        { "W + 1", "expr: column 3: + of a 2x5 f32 matrix and a number: write .+ for each element" },
        { "1 - W", "expr: column 3: - of a number and a 2x5 f32 matrix: write .- for each element" },
        { "W + b", "expr: column 3: + of a 2x5 f32 matrix and a 2-element f32 vector: the shapes differ; write .+ for each element" },
        { "1 / W", "expr: column 3: / of a number and a 2x5 f32 matrix: write ./ for each element" },
        { "W / W", "expr: column 3: / of a 2x5 f32 matrix and a 2x5 f32 matrix: write ./ for each element" },
        { "W ^ 2", "expr: column 3: ^ of a 2x5 f32 matrix and a number: only a square matrix has powers" },
        { "(W*W')^-1", "expr: column 7: ^ of a 2x2 f32 matrix and a number: only a square matrix has powers" },
        { "(W*W')^0.5", "expr: column 7: ^ of a 2x2 f32 matrix and a number: only a square matrix has powers" },
        { "2 ^ W", "expr: column 3: ^ of a number and a 2x5 f32 matrix: write .^ for each element" },
        { "x == x", "expr: column 3: == of a 5-element f32 vector and a 5-element f32 vector: write .== for each element" },
        { "W > 0", "expr: column 3: > of a 2x5 f32 matrix and a number: write .> for each element" },
        { "W .> 0 && W .< 1", "expr: column 8: && of a 2x5 bool matrix and a 2x5 bool matrix: write .&& for each element" },
        { "!(W .> 0)", "expr: column 1: ! of a 2x5 bool matrix: write .! for each element" },
        { "\xE2\x88\x9Ax", "expr: column 1: \xE2\x88\x9A of a 5-element f32 vector: write .\xE2\x88\x9A for each element" },
        { "0 .< x .< 1", "expr: column 8: comparisons do not chain here: write (a .< b) .&& (b .< c)" },
        { "T'", "expr: column 2: ' of a 2x2x2 f32 array: it takes a vector or a matrix" },
        { "x .> 0 ? 1 : 2", "expr: column 8: ? after a 5-element bool vector: write ifelse.(c, a, b) for each element" },
        { "1 ? 2", "expr: column 6: expected :, found the end" },
        { "sum(x, dims=9)", "expr: column 13: expected a dim from 0 to 7, found '9'" },
        { "sum(x, dims=-1)", "expr: column 13: expected a dim from 0 to 7, found '-'" },
        { "sum(x, dims=x)", "expr: column 13: expected a dim from 0 to 7, found 'x'" },
        { "sum(x, dims=10)", "expr: column 13: expected a dim from 0 to 7" },
        { "sum(x, dims=0, dims=0)", "expr: column 16: dims is given twice" },
        { "sum(x, dims=(0 1))", "expr: column 16: expected , or ), found '1'" },
        { "exp.(x, dims=0)", "expr: column 1: exp takes no dims" },
        { "dot(abs, x)", "expr: column 1: dot takes no function as an operand" },
        { "sum(abs, x, x)", "expr: column 1: sum takes 1 operand, not 2" },
        { "size(x, 0.5)", "expr: column 1: size takes a tensor and one of its dims" },
        { "size(x, x)", "expr: column 1: size takes a tensor and one of its dims" },
        { "dims", "expr: column 1: unknown name 'dims'" },
        /* what an operation itself refuses */
        { "x .+ W*W", "expr: column 7: matmul: " },
        { "W .+ x", "expr: column 3: add: shapes do not broadcast: 2x5 f32 with 5-element f32" },
        { "1 .+ sum(x, dims=0) .+ mse(W, x)", "expr: column 24: mse: " },
        { "tr(W)", "expr: column 1: trace: takes a square matrix, not 2x5 f32" },
        { "W .&& W", "expr: column 3: and: operands must be bool" }
    };
    flux_tensor *W = flux_ones(2, 5), *x = flux_ones(5), *b = flux_ones(2), *T = flux_ones(2, 2, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        flux_tensor *values[] = { W, x, b, T };
        flux_on_error(test_silent, NULL);
        flux_tensor *y = flux_expr_with(cases[i].formula, 4, "W, x, b, T", values);
        bool good = !y && strncmp(flux_error(), cases[i].message, strlen(cases[i].message)) == 0;
        if (!good) fprintf(stderr, "%s: \"%s\", not \"%s\"\n", cases[i].formula, flux_error(), cases[i].message);
        flux_clear();
        flux_on_error(NULL, NULL);
        CHECK(good);
    }
}

TEST(errors_of_the_call) {
    flux_tensor *x = flux_ones(2), *values[] = { x, x };
    CHECK_ERROR(flux_expr_with(NULL, 0, "", NULL), "expr: argument formula is NULL");
    CHECK_ERROR(flux_expr_with("x", 1, "m->x", values), "expr: variable 1 of 1 in \"m->x\" is not a plain name");
    CHECK_ERROR(flux_expr_with("x", 2, "x, y[0]", values), "expr: variable 2 of 2 in \"x, y[0]\" is not a plain name");
    CHECK_ERROR(flux_expr_with("x", 2, "x", values), "expr: variable 1 of 2");
    CHECK_ERROR(flux_expr_with("x", 1, "x, y", values), "expr: variable 1 of 1");
    CHECK_ERROR(flux_expr_with("x", 1, NULL, values), "expr: argument names is NULL");
    CHECK_ERROR(flux_expr_with("x", 1, "x", NULL), "expr: argument x is NULL");
    values[1] = NULL;
    CHECK_ERROR(flux_expr_with("x", 2, "x, y", values), "expr: argument y is NULL");
    /* after an error NULL in is NULL out, and the first sentence stays */
    flux_on_error(test_silent, NULL);
    flux_tensor *bad = flux_expr("x .+ nothing", x);
    CHECK(bad == NULL && flux_expr("bad .+ 1", bad) == NULL && flux_expr("x .+ other", x) == NULL);
    CHECK(strstr(flux_error(), "unknown name 'nothing' (bound: x)") != NULL);
    flux_clear();
    flux_on_error(NULL, NULL);
}

TEST(nesting_is_limited) {
    static char text[20001];
    flux_on_error(test_silent, NULL);
    static const char *const opening[] = { "(", "-", "!", "2^", "exp(", "1?", "sum(abs,", "2(", "x^", ".-", "'" };
    flux_tensor *x = flux_ones(1);
    for (size_t k = 0; k < sizeof opening / sizeof *opening; k++) {
        size_t n = strlen(opening[k]);
        for (size_t i = 0; i + n <= 20000; i += n) memcpy(text + i, opening[k], n), text[i + n] = 0;
        CHECK(flux_expr_with(text, 1, "x", &x) == NULL);
        if (k < 10) CHECK(strstr(flux_error(), "nested more than 200 deep") != NULL);
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    strcpy(text, "");
    for (int i = 0; i < 190; i++) strcat(text, "(");
    strcat(text, "1");
    for (int i = 0; i < 190; i++) strcat(text, ")");
    CHECK_NEAR(number(text), 1, 0);
    strcpy(text, "x");
    for (int i = 0; i < 3000; i++) strcat(text, " .+ x");
    CHECK_NEAR(flux_item(flux_expr_with(text, 1, "x", &x)), 3001, 0);
}

/* ------------------------------------------------------------------ formulas that make no sense
   They must give a tensor or an error, never both, and nothing worse (run this with a sanitizer). */

static uint32_t draw_state = 12345;
static uint32_t draw(uint32_t n) {
    draw_state ^= draw_state << 13, draw_state ^= draw_state >> 17, draw_state ^= draw_state << 5;
    return draw_state % n;
}
static bool sane(const char *text) {
    flux_tensor *values[4];
    bool good = true;
    FLUX_SCOPE {
        values[0] = flux_ones(2, 5), values[1] = flux_ones(5), values[2] = flux_ones(2), values[3] = flux_scalar(2);
        flux_tensor *y = flux_expr_with(text, 4, "W, x, b, s", values);
        good = (y == NULL) == flux_failed() && (y || strncmp(flux_error(), "expr: ", 6) == 0);
        if (y && flux_len(y) < 1000) good = flux_data(y) != NULL || flux_failed();
        for (const char *e = flux_error(); *e; e++)
            if ((unsigned char)*e < 0x20 || *e == 0x7F) good = false;
    }
    if (!good) fprintf(stderr, "\"%s\": \"%s\"\n", text, flux_error());
    flux_clear();
    return good;
}

TEST(random_bytes) {
    char text[64];
    int bad = 0;
    flux_on_error(test_silent, NULL);
    for (int i = 0; i < 4000; i++) {
        uint32_t n = draw(sizeof text - 1);
        for (uint32_t k = 0; k < n; k++) text[k] = (char)(1 + draw(255));
        text[n] = 0;
        if (!sane(text)) bad++;
    }
    flux_on_error(NULL, NULL);
    CHECK(bad == 0);
}

TEST(mutated_formulas) {
    static const char *const good[] = { "sum((W*x .+ b .- s).^2)", "x'*x/2 + mean(abs2, W) * s", "softmax(tanh.(W*x .+ 1e-3))",
        "s > 1 ? clamp.(x, -1, 1) : ifelse.(x .>= 0 .&& x .< 2, 2x.^2, -x)", "\xCF\x83.(x) .* \xCF\x80 .\xE2\x89\xA4 length(x)", "size(W, 1) * dot(x, x) - norm(b)" };
    static const char *const tokens[] = { "(", ")", ".", "'", "^", "*", "+", "-", ".*", ".^", "x", "W", "s", "sum(", "exp.(", ",", "dims=", "2", "0.5", "1e", "?", ":",
        "&&", "==", " ", "\xE2\x88\x9A", "=", ";", "!", "abs,", "max(", "tr(", "^2", "[", "_", "\xCF" };
    char text[200];
    int bad = 0, fine = 0;
    flux_on_error(test_silent, NULL);
    for (int i = 0; i < 4000; i++) {
        strcpy(text, good[draw(6)]);
        for (uint32_t k = 1 + draw(3); k > 0; k--) {
            size_t n = strlen(text), at = draw((uint32_t)n + 1), cut = draw(4);
            char rest[200];
            if (cut > n - at) cut = n - at;
            strcpy(rest, text + at + cut);
            snprintf(text + at, sizeof text - at, "%s%s", draw(3) ? tokens[draw(sizeof tokens / sizeof *tokens)] : "", rest);
        }
        if (!sane(text)) bad++;
    }
    for (int i = 0; i < 6; i++) {
        CHECK(sane(good[i]));
        flux_tensor *values[] = { flux_ones(2, 5), flux_ones(5), flux_ones(2), flux_scalar(2) };
        fine += flux_expr_with(good[i], 4, "W, x, b, s", values) != NULL;
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    CHECK(bad == 0);
    CHECK(fine == 6);
}

/* A name that is found where none is expected is shown up to 40 bytes, and no character in parts. */
TEST(long_names_in_messages) {
    flux_tensor *x = flux_ones(2);
    for (int n = 1; n < 60; n++) {
        char formula[100], name[60], want[100];
        for (int k = 0; k < n; k++) name[k] = (char)('a' + k % 26);
        for (int k = n % 5; k + 1 < n && n % 2; k += 2) memcpy(name + k, "\xC3\xA9", 2);      /* e with an accent, at even or odd places */
        name[n] = 0;
        snprintf(formula, sizeof formula, "x %s", name);
        const int cut = n > 40 && ((unsigned char)name[40] & 0xC0) == 0x80 ? 39 : 40;
        snprintf(want, sizeof want, "found '%.*s'", cut, name);
        CHECK_ERROR(flux_expr(formula, x), want);
    }
}

/* Numbers of one to 60 digits, with the point at each place and exponents, are the nearest ones, as strtod has them. */
TEST(numbers_of_many_digits) {
    ONLY_ON_CPU();
    static const char digits[] = "314159265358979323846264338327950288419716939937510582097494459";
    static const char *const exponents[] = { "", "e0", "e-7", "e+12", "e-250", "E200" };
    flux_tensor *x = flux_full_with(FLUX_SHAPE(1), 1, FLUX_F64);
    int wrong = 0;
    for (int n = 1; n <= 60; n += n < 45 ? 1 : 5)
        for (int point = 0; point <= n; point += 1 + n / 8) {
            char text[100], formula[120];
            snprintf(text, sizeof text, "%.*s%s%.*s%s", point, digits, point < n ? "." : "", n - point, digits + point, exponents[(n + point) % 6]);
            snprintf(formula, sizeof formula, "x * %s", text);
            const double got = flux_item(flux_expr(formula, x)), want = strtod(text, NULL);
            if (got != want) fprintf(stderr, "    %s is %.17g, not %.17g\n", text, got, want), wrong++;
        }
    CHECK(wrong == 0);
}

TEST_MAIN()
