/* Values of the operations of graph/picking.h and of those who make tensors of numbers, by hand and from PyTorch; their gradients
   are in test_ops. */
#include "test.h"
#include "fixtures/operations.h"

#define VALUES(x, tolerance, ...)                                                                                                          \
    do {                                                                                                                                   \
        const double want[] = { __VA_ARGS__ };                                                                                             \
        test_data(x, want, (int)(sizeof want / sizeof *want), tolerance, __FILE__, __LINE__, #x);                                                         \
    } while (0)
#define SHAPE_IS(x, ...) CHECK(flux_len(x) >= 0 && shape_is(x, FLUX_SHAPE(__VA_ARGS__)))
static bool shape_is(flux_tensor *x, flux_shape s) {
    flux_shape have = flux_shape_of(x);
    for (int i = 0; i < s.ndim; i++)
        if (i >= have.ndim || have.dim[i] != s.dim[i]) return false;
    return have.ndim == s.ndim;
}
static flux_tensor *matrix(void) {        /* 2 x 3: rows 1 3 5 and 2 4 6 */
    return flux_reshape(flux_values(1, 2, 3, 4, 5, 6), 2, 3);
}

TEST(numbers_make_tensors) {
    int seven = 7;
    long eight = 8;
    VALUES(flux_values(1, 2.5, seven, eight), 0, 1, 2.5, 7, 8);
    CHECK(flux_dtype_of(flux_values(3)) == FLUX_F32);
    VALUES(flux_linspace(-1, 1, 5), 0, -1, -0.5, 0, 0.5, 1);
    VALUES(flux_linspace(0.1, 0.7, 3), 0, 0.1f, 0.4f, 0.7f);
    VALUES(flux_linspace(3, 9, 1), 0, 3);
    CHECK(flux_len(flux_linspace(0, 1, 0)) == 0);
}

TEST(not_a_number) {
    flux_tensor *x = flux_values(1, HUGE_VAL, -HUGE_VAL, NAN, 0, 3e38);
    VALUES(flux_isnan(x), 0, 0, 0, 0, 1, 0, 0);
    VALUES(flux_isfinite(x), 0, 1, 0, 0, 0, 1, 1);
    VALUES(flux_isfinite(flux_to_dtype(flux_values(1, 2), FLUX_I32)), 0, 1, 1);
    VALUES(flux_expr("isnan.(x)", x), 0, 0, 0, 0, 1, 0, 0);
    VALUES(flux_masked_fill(x, flux_isnan(x), -1), 0, 1, HUGE_VAL, -HUGE_VAL, -1, 0, (double)3e38f);
}

TEST(triangles_and_diagonals) {
    flux_tensor *x = matrix();
    VALUES(flux_tril(x), 0, 1, 2, 0, 4, 0, 0);
    VALUES(flux_tril(x, 1), 0, 1, 2, 3, 4, 0, 6);
    VALUES(flux_triu(x), 0, 1, 0, 3, 4, 5, 6);
    VALUES(flux_triu(x, -1), 0, 1, 2, 3, 4, 5, 6);
    VALUES(flux_triu(flux_stack(2, x, x), 2), 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 5, 0);
    VALUES(flux_tril(flux_gt(x, 0)), 0, 1, 1, 0, 1, 0, 0);
    VALUES(flux_diag(x), 0, 1, 4);
    VALUES(flux_diag(x, 1), 0, 3, 6);
    VALUES(flux_diag(x, -1), 0, 2);
    CHECK(flux_len(flux_diag(x, 3)) == 0 && flux_len(flux_diag(x, -2)) == 0);
    const int64_t many = (int64_t)1 << 40;         /* its number times rows is more than int64 holds */
    CHECK(flux_len(flux_diag(flux_full_with(FLUX_SHAPE(many, 0), 1.0, FLUX_F32), 1 << 30)) == 0);
    VALUES(flux_diag(flux_values(1, 2)), 0, 1, 0, 0, 2);
    VALUES(flux_diag(flux_values(1, 2), 1), 0, 0, 0, 0, 1, 0, 0, 0, 2, 0);
    VALUES(flux_diag(flux_values(1, 2), -1), 0, 0, 1, 0, 0, 0, 2, 0, 0, 0);
    VALUES(flux_trace(flux_slice(x, 1, 1, 3)), 0, 3 + 6);
    VALUES(flux_expr("trace(x' * x) + tr(x' * x)", x), 1e-5, 182);
    CHECK_ERROR(flux_trace(x), "square");
    CHECK_ERROR(flux_tril(flux_values(1)), "matrix");
    CHECK_ERROR(flux_diag(flux_zeros(2, 2, 2)), "vector or a matrix");
}

/* Matrices of all small sizes, every diagonal of them and beyond, against loops. */
TEST(bands_and_diagonals_of_all_sizes) {
    for (int rows = 0; rows < 4; rows++)
        for (int columns = 0; columns < 4; columns++)
            for (int k = -5; k <= 5; k += test_device.backend ? 5 : 1) FLUX_SCOPE {
                if (test_left_out(rows + columns, 4)) continue;
                double x[9], low[9], high[9], line[9], square[64] = { 0 };
                int n = 0;
                for (int i = 0; i < rows * columns; i++) {
                    const int off = i / rows - i % rows;       /* column less row */
                    x[i] = i + 1;
                    low[i] = off <= k ? x[i] : 0, high[i] = off >= k ? x[i] : 0;
                    if (off == k) line[n++] = x[i];
                }
                flux_tensor *m = flux_from_with(x, FLUX_F64, FLUX_SHAPE(rows, columns));
                test_data(flux_tril(m, k), low, rows * columns, 0, __FILE__, __LINE__, "tril");
                test_data(flux_triu(m, k), high, rows * columns, 0, __FILE__, __LINE__, "triu");
                test_data(flux_diag(m, k), line, n, 0, __FILE__, __LINE__, "diagonal");
                const int wide = rows + abs(k), first = k < 0 ? -k : k * wide;
                for (int i = 0; i < rows; i++) square[first + i * (wide + 1)] = i + 1;
                flux_tensor *back = flux_diag(flux_slice(flux_values(1, 2, 3), 0, 0, rows), k);
                SHAPE_IS(back, wide, wide);
                test_data(back, square, wide * wide, 0, __FILE__, __LINE__, "matrix");
            }
}

TEST(deviations) {
    VALUES(flux_std(flux_values(1, 2, 3, 4)), 1e-6, sqrt(1.25));
    VALUES(flux_std(matrix(), 1), 1e-6, sqrt(8.0 / 3), sqrt(8.0 / 3));
    flux_tensor *x = matrix();
    VALUES(flux_expr("std(x, dims=0)", x), 1e-6, 0.5, 0.5, 0.5);
    flux_tensor *same = flux_ones(3);
    VALUES(flux_grad(flux_gradient(flux_std(same), same), same), 0, 0, 0, 0);
}

TEST(running_sums) {
    flux_tensor *x = matrix();
    VALUES(flux_cumsum(x, 0), 0, 1, 3, 3, 7, 5, 11);
    VALUES(flux_cumsum(x, 1), 0, 1, 2, 4, 6, 9, 12);
    VALUES(flux_cumprod(x, 1), 0, 1, 2, 3, 8, 15, 48);
    VALUES(flux_expr("cumsum(x, dims=1)", x), 0, 1, 2, 4, 6, 9, 12);
    VALUES(flux_cumsum(flux_values(1, HUGE_VAL, 2)), 0, 1, HUGE_VAL, HUGE_VAL);
    CHECK(flux_dtype_of(flux_cumsum(flux_gt(flux_values(1, 2), 0))) == FLUX_I64);
    SHAPE_IS(flux_cumsum(flux_zeros(2, 0), 1), 2, 0);
    for (int64_t n = 1; n < 70000; n = 3 * n + 1) FLUX_SCOPE {     /* blocks within blocks, none of them full */
        flux_tensor *long_one = flux_cumsum(flux_to_dtype(flux_full_with(FLUX_SHAPE(2, n), 1, FLUX_I32), FLUX_I64), 1);
        const int64_t *at = (const int64_t *)flux_data(long_one);
        bool good = at != NULL;
        for (int64_t i = 0; good && i < 2 * n; i++) good = at[i] == i / 2 + 1;
        CHECK(good);
    }
    CHECK_ERROR(flux_cumsum(x), "takes one dim");
    CHECK_ERROR(flux_cumsum(x, 2), "no dim 2");
}

/* Of one block, of several, and of blocks' blocks, along the middle of three dims. */
TEST(running_sums_of_all_lengths) {
    static double x[6 * 300], sum[6 * 300], product[6 * 300];
    for (int n = 0; n < 300; n += n < 36 && !test_device.backend ? 1 : 37) FLUX_SCOPE {
        for (int i = 0; i < 6 * n; i++) {
            const int at = i / 2 % n;
            x[i] = i * 5 % 7 ? (double)(i * 5 % 7) / 4 : -0.5;
            sum[i] = x[i] + (at ? sum[i - 2] : 0);
            product[i] = x[i] * (at ? product[i - 2] : 1);
        }
        flux_tensor *y = flux_from_with(x, FLUX_F64, FLUX_SHAPE(2, n, 3));
        test_data(flux_cumsum(y, 1), sum, 6 * n, 0, __FILE__, __LINE__, "sums");
        test_data(flux_cumprod(y, 1), product, 6 * n, 1e-12, __FILE__, __LINE__, "products");
    }
}

TEST(einsteins_sums) {
    flux_tensor *x = matrix(), *y = flux_reshape(flux_values(1, 0, 2, -1, 1, 1), 3, 2), *v = flux_values(1, 2, 3);
    flux_tensor *pair = flux_stack(0, y, flux_mul(y, 2)), *w = flux_stack(0, x, x);
    VALUES(flux_einsum("ij,jk->ik", x, y), 0, 1 + 10, 2 + 12, -1 + 3 + 5, -2 + 4 + 6);
    VALUES(flux_einsum("ij, jk", x, y), 0, 11, 14, 7, 8);
    VALUES(flux_einsum("ij,jk->ki", x, y), 0, 11, 7, 14, 8);
    VALUES(flux_einsum("bij,bjk->bik", w, pair), 0, 11, 22, 14, 28, 7, 14, 8, 16);
    VALUES(flux_einsum("...j,jk->...k", x, y), 0, 11, 14, 7, 8);
    VALUES(flux_einsum("b...j,bj...->b...", w, pair), 0, 11, 22, 8, 16);
    VALUES(flux_einsum("ij...,jk...->ik...", x, y), 0, 11, 14, 7, 8);
    VALUES(flux_einsum("i...->...i", x), 0, 1, 3, 5, 2, 4, 6);
    VALUES(flux_einsum("i...", x), 0, 1, 2, 3, 4, 5, 6);
    VALUES(flux_einsum("i...->i", x), 0, 9, 12);
    VALUES(flux_einsum("...,...", x, flux_values(1, 2)), 0, 1, 4, 3, 8, 5, 12);
    VALUES(flux_einsum("...,...", flux_reshape(v, 1, 3), x), 0, 1, 2, 6, 8, 15, 18);
    VALUES(flux_einsum("...i,...->i", x, flux_values(2)), 0, 6, 14, 22);
    CHECK_ERROR(flux_einsum("...,...", x, v), "... of \"...,...\" is 2, and in operand 2 it is 3");
    CHECK_ERROR(flux_einsum("......", x), "no letter");
    CHECK_ERROR(flux_einsum("ijk...->i", x), "names 3 dims");
    VALUES(flux_einsum("ij->ji", x), 0, 1, 3, 5, 2, 4, 6);
    VALUES(flux_einsum("ba", x), 0, 1, 3, 5, 2, 4, 6);
    VALUES(flux_einsum("ij->", x), 0, 21);
    VALUES(flux_einsum("ij->j", x), 0, 3, 7, 11);
    VALUES(flux_einsum("ii->i", flux_slice(x, 1, 0, 2)), 0, 1, 4);
    VALUES(flux_einsum("ii", flux_slice(x, 1, 0, 2)), 0, 5);
    VALUES(flux_einsum("i,i", v, v), 0, 14);
    VALUES(flux_einsum("i,j->ij", v, flux_values(1, 10)), 0, 1, 2, 3, 10, 20, 30);
    VALUES(flux_einsum("ij,j->ij", x, v), 0, 1, 2, 6, 8, 15, 18);
    VALUES(flux_einsum("ij,kl->", x, y), 0, 21 * 4);
    VALUES(flux_einsum("ij,j,i->i", x, v, flux_values(1, 2)), 0, 1 + 6 + 15, 2 * (2 + 8 + 18));
    VALUES(flux_einsum("ij,jk,kl->il", x, y, x), 0, 11 + 14, 14 + 16, 33 + 28, 42 + 32, 55 + 42, 70 + 48);
    CHECK(flux_dtype_of(flux_einsum("i,i", flux_to_dtype(v, FLUX_F16), flux_to_dtype(v, FLUX_F16))) == FLUX_F16);
    flux_tensor *counts = flux_to_dtype(x, FLUX_I32), *products = flux_einsum("ij,kj->ik", counts, counts);
    CHECK(flux_dtype_of(products) == FLUX_F32 && flux_dtype_of(flux_einsum("ij->ji", counts)) == FLUX_F32);
    CHECK(flux_dtype_of(flux_einsum("ij->i", counts)) == FLUX_F32);
    VALUES(products, 0, 35, 44, 44, 56);
    CHECK_ERROR(flux_einsum("ij,jk->ik", x, x), "j of \"ij,jk->ik\" is 3, and in operand 2 it is 2");
    CHECK_ERROR(flux_einsum("ijk->ij", x), "names 3 dims");
    CHECK_ERROR(flux_einsum("ij->k", x), "k stands in no operand");
    CHECK_ERROR(flux_einsum("ij->ii", x), "i stands twice in the result");
    CHECK_ERROR(flux_einsum("ij,jk", x), "not of 1 operands");
    CHECK_ERROR(flux_einsum("i.->i", x), "no letter");
    CHECK_ERROR(flux_einsum("ij>i", x), "no letter");
    CHECK_ERROR(flux_einsum("ij->i.", x), "no letter");
    CHECK_ERROR(flux_einsum("i...->i......", x), "no letter");
    /* eight letters are as many as there may be, in a result, an operand and a product */
    flux_tensor *four = flux_ones(2, 2, 2, 2), *five = flux_ones(2, 2, 2, 2, 2);
    flux_tensor *eight = flux_einsum("abcd,efgh->hgfedcba", four, flux_add(four, 1));
    SHAPE_IS(eight, 2, 2, 2, 2, 2, 2, 2, 2);
    SHAPE_IS(flux_einsum("abbcdefg->gfedcba", eight), 2, 2, 2, 2, 2, 2, 2);
    CHECK(flux_item(flux_einsum("aabbccdd->", eight)) == 2 * 16);
    CHECK_ERROR(flux_einsum("abcde,fghi->abcdefghi", five, four), "more than 8 letters in one place");
    CHECK_ERROR(flux_einsum("abcdefghi->a", eight), "more than 8 letters in one place");
    CHECK_ERROR(flux_einsum("abcde,fghi", five, four), "more than 8 letters in one place");
    CHECK_ERROR(flux_einsum("abcde,fghi,abcd,efgh,i->", five, four, four, four, flux_ones(2)),
                "a product in \"abcde,fghi,abcd,efgh,i->\" has more than 8 letters");
}

/* ---- formulas of Einstein's sums at random, against loops over all letters */

static uint32_t drawn = 1;
static int draw(int n) {
    drawn = drawn * 1664525u + 1013904223u;
    return (int)((drawn >> 8) % (uint32_t)n);
}

typedef struct operand { char letter[9]; int64_t dim[8], n; double value[6561]; } operand;

/* Where the element is whose letters have these numbers; a dim of 1 has one place for all. */
static int64_t place_of(const operand *o, const int *at) {
    int64_t place = 0, step = 1;
    for (int d = 0; o->letter[d]; step *= o->dim[d++])
        if (o->dim[d] > 1) place += at[(int)o->letter[d]] * step;
    return place;
}

/* Some letters of "abcd", twice if `doubled`, and at a place of its own "..." for `rest` dims;
   -1: none. text: as the formula says it. Letters '0', '1' stand for the dims of "...". */
static void draw_letters(operand *o, char *text, int rest, bool doubled) {
    const int at = draw(3), n = draw(4);
    int k = 0, t = 0;
    for (int i = 0; i <= n || i <= at; i++) {
        if (i == at && rest >= 0) {
            t += sprintf(text + t, "...");
            for (int d = 0; d < rest; d++) o->letter[k++] = (char)('0' + d);
        }
        const char c = (char)('a' + draw(4));
        o->letter[k] = 0;
        if (i >= n || (!doubled && strchr(o->letter, c))) continue;
        o->letter[k++] = text[t++] = c;
    }
    o->letter[k] = text[t] = 0;
}

/* The result of loops over all numbers of all letters. */
static void sum_plainly(const operand *in, int n, operand *out, const int *size) {
    static const char all[] = "abcd01";
    int at[128] = { 0 };
    for (int64_t i = 0; i < out->n; i++) out->value[i] = 0;
    for (int i = 0; i < n; i++)
        if (!in[i].n) return;
    for (int left = 1; left;) {
        double product = 1;
        for (int i = 0; i < n; i++) product *= in[i].value[place_of(&in[i], at)];
        out->value[place_of(out, at)] += product;
        left = 0;
        for (int c = 0; all[c] && !left; c++) {
            bool met = false;
            for (int i = 0; i < n; i++) met = met || strchr(in[i].letter, all[c]);
            if (met && ++at[(int)all[c]] < size[(int)all[c]]) left = 1;
            else at[(int)all[c]] = 0;
        }
    }
}

/* The result's letters: some of the operands', or with no arrow those that stand once. */
static void draw_result(const operand *in, int n, operand *out, char *formula, int most) {
    char all[100] = "", text[20] = "";
    const int rest_at = draw(3), from = draw(4), arrow = draw(4);
    int k = 0, t = 0;
    for (int i = 0; i < n; i++) strcat(all, in[i].letter);
    for (int i = 0; i < 4; i++) {
        const char c = (char)('a' + (arrow ? (i + from) % 4 : i)), *first = strchr(all, c);
        if (arrow && most >= 0 && i == rest_at) {
            t += sprintf(text + t, "...");
            for (int d = 0; d < most; d++) out->letter[k++] = (char)('0' + d);
        }
        if (first && (arrow ? draw(3) > 0 : !strchr(first + 1, c)))
            out->letter[k++] = text[t++] = c;
    }
    for (int d = 0; d < most && !arrow; d++) out->letter[k++] = (char)('0' + d);
    out->letter[k] = 0;
    if (arrow) strcat(strcat(formula, "->"), text);
}

/* Sizes, and small whole numbers; a dim of "..." may be 1. */
static flux_tensor *draw_values(operand *o, const int *size) {
    flux_shape s = { 0 };
    o->n = 1;
    for (; o->letter[s.ndim]; o->n *= s.dim[s.ndim++]) {
        const int c = o->letter[s.ndim];
        s.dim[s.ndim] = o->dim[s.ndim] = c < 'a' && draw(3) == 0 ? 1 : size[c];
    }
    for (int64_t k = 0; k < o->n; k++) o->value[k] = draw(7) - 3;
    return flux_from_with(o->value, FLUX_F64, s);
}

/* A letter of "..." has the size of its dims that are not 1. */
static void size_dots(const operand *in, int n, int *size) {
    size['0'] = size['1'] = 1;
    for (int i = 0; i < n; i++)
        for (int d = 0; in[i].letter[d]; d++) {
            const int c = in[i].letter[d];
            if (c < 'a' && in[i].dim[d] != 1) size[c] = (int)in[i].dim[d];
        }
}

TEST(einsteins_sums_at_random) {
    static operand in[3], out;
    const int turns = !test_device.backend ? 400 : getenv("SHORT") ? 5 : 20;   /* kernels of each are compiled */
    drawn = 1;
    for (int turn = 0; turn < turns; turn++) FLUX_SCOPE {
        char formula[200] = "";
        int size[128] = { 0 }, most = -1;
        flux_tensor *x[3];
        const int n = 1 + draw(3), dots = draw(3);
        for (const char *c = "abcd01"; *c; c++) size[(int)*c] = draw(9) ? 1 + draw(3) : 0;
        for (int i = 0; i < n; i++) {
            char text[20];
            const int rest = dots && draw(3) ? draw(3) : -1;
            draw_letters(&in[i], text, rest, draw(3) == 0);
            strcat(strcat(formula, i ? "," : ""), text);
            most = rest > most ? rest : most;
            x[i] = draw_values(&in[i], size);
        }
        size_dots(in, n, size);
        draw_result(in, n, &out, formula, most);
        flux_shape s = { 0 };
        for (out.n = 1; out.letter[s.ndim]; out.n *= s.dim[s.ndim++])
            s.dim[s.ndim] = out.dim[s.ndim] = size[(int)out.letter[s.ndim]];
        sum_plainly(in, n, &out, size);
        flux_tensor *y = flux_einsum_with(formula, n, x);
        const int bad = test_bad;
        CHECK(shape_is(y, s));
        test_data(y, out.value, out.n, 0, __FILE__, __LINE__, formula);
        if (test_bad > bad) fprintf(stderr, "    %s\n", formula);
    }
}

/* As fixtures/make_operations.py does it: s*sin(a + k), k = 0, 1, ... in the order of memory. */
static flux_tensor *fill(flux_shape s, double a, double scale) {
    double v[64];
    for (int k = 0; k < 64; k++) v[k] = scale * sin(a + k);
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    return n <= 64 ? flux_from_with(v, FLUX_F64, s) : NULL;
}
#define TORCH(name, y)                                                                                                                     \
    do {                                                                                                                                   \
        flux_tensor *got = y;                                                                                                              \
        flux_tensor *w = flux_ndim(got) ? fill(flux_shape_of(got), 0.7, 1) : flux_from_with(&weight, FLUX_F64, flux_shape_of(got));        \
        CHECK_DATA(got, fix_##name, 1e-10);                                                                                                \
        g = flux_gradient(flux_sum(flux_mul(got, w)), x, z);                                                                               \
        CHECK_DATA(flux_grad(g, x), fix_##name##_gx, 1e-10);                                                                               \
    } while (0)
#define TORCH2(name, y)                                                                                                                    \
    do {                                                                                                                                   \
        TORCH(name, y);                                                                                                                    \
        CHECK_DATA(flux_grad(g, z), fix_##name##_gz, 1e-10);                                                                               \
    } while (0)

TEST(as_pytorch) {
    const double weight = 0.7;            /* of a result that is one number */
    flux_tensor *x = fill(FLUX_SHAPE(3, 4), 0.3, 0.9), *z = fill(FLUX_SHAPE(3, 4), 1.1, 0.8);
    flux_tensor *index = flux_from(((int64_t[]){ 2, 0, 0, 0, 1, 2, 1, 1 }), 2, 4);
    flux_grads *g;
    TORCH(tan, flux_tan(x));
    TORCH(asin, flux_asin(x));
    TORCH(acos, flux_acos(x));
    TORCH(atan, flux_atan(x));
    TORCH(sinh, flux_sinh(x));
    TORCH(cosh, flux_cosh(x));
    TORCH2(atan2, flux_atan2(x, z));
    TORCH2(mod, flux_mod(x, z));
    TORCH(std, flux_std(x));
    TORCH(std0, flux_std(x, 0));
    TORCH(cumsum, flux_cumsum(x, 1));
    TORCH(cumprod, flux_cumprod(x, 0));
    TORCH(sort, flux_sort(x, 1));
    TORCH(sort_down, flux_sort(x, 0, .descending = true));
    TORCH(topk, flux_nth(flux_topk(x, 2, 1), 0));
    TORCH(tril, flux_tril(x, -1));
    TORCH(triu, flux_triu(x, 1));
    TORCH(diag, flux_diag(x, 1));
    TORCH(diag_of, flux_diag(flux_select(x, 1, 1), -1));
    TORCH(trace, flux_trace(flux_slice(x, 1, 0, 3)));
    TORCH(take_along, flux_take_along(x, 0, index));
    TORCH(masked_fill, flux_masked_fill(x, flux_gt(x, 0.2), -3));
    TORCH(split, flux_nth(flux_split(x, 1, 1, 3), 1));
    TORCH(chunk, flux_nth(flux_chunk(x, 1, 3), 1));
    TORCH2(einsum, flux_einsum("ij,kj->ki", x, z));
    TORCH2(einsum_rest, flux_einsum("i...,i...->...", x, flux_slice(z, 1, 0, 1)));
}

TEST(drawing) {
    flux_seed(5);
    flux_tensor *x = flux_randint(-2, 3, 1000), *again;
    const int64_t *at = (const int64_t *)flux_data(x);
    int count[5] = { 0 };
    REQUIRE(at);
    for (int i = 0; i < 1000; i++) {
        CHECK(at[i] >= -2 && at[i] < 3);
        count[at[i] + 2]++;
    }
    for (int i = 0; i < 5; i++) CHECK(count[i] > 150 && count[i] < 250);
    flux_seed(5);
    again = flux_randint(-2, 3, 1000);
    CHECK(flux_item(flux_all(flux_eq(x, again))) == 1);
    CHECK_NEAR(flux_item(flux_mean(flux_bernoulli(flux_full(0.3, 5000)))), 0.3, 0.03);
    VALUES(flux_bernoulli(flux_values(0, 1, 0)), 0, 0, 1, 0);
    flux_tensor *logits = flux_log(flux_values(0.2, 0, 0.8)), *many = flux_broadcast_to(logits, 3, 4000);
    flux_tensor *drawn = flux_categorical(many), *hot = flux_categorical(many, .temperature = 2), *cold = flux_categorical(many, .temperature = 0);
    SHAPE_IS(drawn, 4000);
    CHECK_NEAR(flux_item(flux_mean(flux_eq(drawn, 2))), 0.8, 0.03);
    CHECK(flux_item(flux_any(flux_eq(drawn, 1))) == 0);
    CHECK_NEAR(flux_item(flux_mean(flux_eq(hot, 2))), 2.0 / 3, 0.03);       /* 0.8^(1/2) to 0.2^(1/2) */
    CHECK(flux_item(flux_all(flux_eq(cold, 2))) == 1);
    CHECK(flux_ndim(flux_categorical(logits)) == 0);
    /* from the likeliest alone: of 0.4, 0.25, 0.2, 0.1, 0.05 two by their number, or by their sum */
    many = flux_broadcast_to(flux_log(flux_values(0.05, 0.4, 0.1, 0.25, 0.2)), 5, 4000);
    flux_tensor *two[3] = { flux_categorical(many, .top_k = 2), flux_categorical(many, .top_p = 0.6), flux_categorical(many, .top_k = 3, .top_p = 0.7) };
    for (int i = 0; i < 3; i++) {
        CHECK(flux_item(flux_all(flux_or(flux_eq(two[i], 1), flux_eq(two[i], 3)))) == 1);
        CHECK_NEAR(flux_item(flux_mean(flux_eq(two[i], 1))), 0.4 / 0.65, 0.03);
    }
    CHECK(flux_item(flux_all(flux_eq(flux_categorical(many, .top_p = 0), 1))) == 1);
    CHECK(flux_item(flux_all(flux_eq(flux_categorical(many, .top_k = 1), 1))) == 1);
    CHECK_NEAR(flux_item(flux_mean(flux_eq(flux_categorical(many, .top_k = 9, .top_p = 1), 1))), 0.4, 0.03);
    CHECK_ERROR(flux_categorical(logits, .top_k = 0), "top_k is 0");
    CHECK_ERROR(flux_categorical(logits, .top_p = 1.5), "top_p 1.5");
    CHECK_ERROR(flux_randint(3, 3, 2), "no integers");
    CHECK_ERROR(flux_categorical(flux_scalar(1)), "no classes");
    CHECK_ERROR(flux_categorical(logits, .temperature = -1), "temperature");
}

TEST(sorting) {
    flux_tensor *x = flux_values(3, NAN, 1, 3, -HUGE_VAL, 2);
    VALUES(flux_argsort(x), 0, 4, 2, 5, 0, 3, 1);
    VALUES(flux_argsort(x, .descending = true), 0, 1, 0, 3, 5, 2, 4);
    VALUES(flux_sort(flux_values(3, 1, 2)), 0, 1, 2, 3);
    VALUES(flux_sort(matrix(), 1, true), 0, 5, 6, 3, 4, 1, 2);
    VALUES(flux_sort(flux_transpose(matrix()), .descending = true), 0, 5, 3, 1, 6, 4, 2);
    VALUES(flux_sort(flux_to_dtype(flux_values(3, 1, 2), FLUX_U8)), 0, 1, 2, 3);
    x = matrix();
    VALUES(flux_expr("sort(-x, dims=1)", x), 0, -5, -6, -3, -4, -1, -2);
    flux_tensor *top = flux_topk(flux_values(3, 1, 4, 1, 5), 2, 0);
    VALUES(flux_nth(top, 0), 0, 5, 4);
    VALUES(flux_nth(top, 1), 0, 4, 2);
    SHAPE_IS(flux_sort(flux_zeros(0, 3)), 0, 3);
    CHECK(flux_ndim(flux_sort(flux_scalar(2))) == 0);
    flux_seed(3);
    flux_tensor *perm = flux_randperm(10000);
    CHECK(flux_item(flux_all(flux_eq(flux_sort(perm), flux_arange(0, 10000, 1)))) == 1);
    CHECK(flux_item(flux_mean(flux_eq(perm, flux_arange(0, 10000, 1)))) < 0.01);
    CHECK_ERROR(flux_topk(x, 3, 0), "3 of dim 0");
    CHECK_ERROR(flux_sort(x, 2), "no dim 2");
    flux_tensor *long_one = flux_broadcast_to(flux_scalar(0), (int64_t)UINT32_MAX + 1);
    CHECK_ERROR(flux_sort(long_one), "sort: dim 0 of 4294967296-element f32 has more");
    CHECK_ERROR(flux_argsort(long_one), "argsort: dim 0 of 4294967296-element f32 has more");
    CHECK_ERROR(flux_topk(long_one, 2, 0), "topk: dim 0 of 4294967296-element f32 has more");
    CHECK_ERROR(flux_randperm(-1), "-1");
}

/* ---- orders of many keys: those of an insertion sort, one for one */

/* Whether element `at` comes before element `before` of a column, by the rule that argsort states. */
static bool goes_first(double at, double before, bool descending) {
    const bool more = at > before || (isnan(at) && !isnan(before)), less = at < before || (!isnan(at) && isnan(before));
    return descending ? more : less;
}
/* Checks argsort along dim 0 of n x columns numbers against the order that the rule leaves no choice in. */
static void order_is(flux_tensor *x, bool descending) {
    const int64_t n = flux_dim(x, 0), columns = flux_len(x) / n;
    const double *key = (const double *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F64)));
    flux_tensor *order = flux_argsort(flux_gpu(x), 0, descending);
    CHECK(flux_device_equal(flux_device_of(order), flux_device_of(flux_gpu(x))));
    const int64_t *i = (const int64_t *)flux_data(flux_cpu(order));
    int64_t wrong = 0;
    for (int64_t c = 0; c < columns && key && i; c++)
        for (int64_t at = 1; at < n; at++) {
            const int64_t a = i[c * n + at - 1], b = i[c * n + at];
            const double p = key[c * n + a], q = key[c * n + b];
            wrong += goes_first(q, p, descending) || (!goes_first(p, q, descending) && a >= b);
        }
    CHECK(wrong == 0);
    VALUES(flux_cpu(flux_sum(flux_sub(order, flux_reshape(flux_to_dtype(flux_gpu(flux_arange(0, (double)n, 1)), FLUX_I64), n, 1)))), 0, 0);   /* each once */
}

TEST(orders_of_many_keys) {
    static const int64_t rows[] = { 1, 7, 64, 65, 512, 513, 2048, 2049, 8191, 8192, 33000 };     /* a GPU merges 33000 twice */
    flux_seed(5);
    for (int s = 0; s < (int)(sizeof rows / sizeof *rows); s++)
        for (int descending = 0; descending < 2; descending++) {
            const int64_t n = rows[s], columns = n < 3000 ? 5 : 2;
            flux_tensor *x = flux_eval(flux_div(flux_randint(-20, 20, n, columns), 4));   /* many are equal; 0 and -0 */
            x = flux_where(flux_eq(x, 1), NAN, flux_where(flux_eq(x, 2), -HUGE_VAL, flux_where(flux_eq(x, 3), flux_neg(flux_zeros(1)), x)));
            order_is(x, descending);
            order_is(flux_randn(n, columns), descending);
            if (n > 2100) continue;
            order_is(flux_to_dtype(flux_mul(flux_randn(n, columns), 1e15), FLUX_I64), descending);      /* keys of many digits */
            order_is(flux_to_dtype(x, FLUX_F16), descending);
            order_is(flux_to_dtype(flux_randint(-300, 300, n, columns), FLUX_I32), descending);
            order_is(flux_randint(0, 2, n, columns), descending);
        }
    flux_tensor *large = flux_from(((int64_t[]){ INT64_MAX, INT64_MIN, -1, 0, INT64_MAX - 1, INT64_MIN + 1 }), 6);
    VALUES(flux_cpu(flux_argsort(flux_gpu(large))), 0, 1, 5, 2, 3, 4, 0);
    flux_tensor *cube = flux_gpu(flux_randn(5, 700, 3));
    for (int dim = 0; dim < 3; dim++) {   /* a view's strides, and each dim, as the CPU has them */
        flux_tensor *odd = flux_permute(flux_slice(cube, 1, 3, 633), 2, 0, 1);
        CHECK(flux_item(flux_all(flux_eq(flux_cpu(flux_argsort(odd, dim)), flux_argsort(flux_cpu(odd), dim)))) == 1);
        CHECK(flux_item(flux_all(flux_eq(flux_cpu(flux_sort(odd, dim)), flux_sort(flux_cpu(odd), dim)))) == 1);
        CHECK(flux_item(flux_all(flux_eq(flux_cpu(flux_nth(flux_topk(odd, 2, dim), 1)), flux_nth(flux_topk(flux_cpu(odd), 2, dim), 1)))) == 1);
    }
}

/* An index may be of any size along the dim that it picks from, and along the others of none beyond x's. */
TEST(take_along_of_any_size) {
    flux_tensor *x = flux_eval(flux_reshape(flux_arange(0, 6, 1), 2, 3));
    const int64_t have[2] = { 2, 3 };
    for (int dim = 0; dim < 2; dim++)
        for (int64_t rows = 0; rows < 5; rows++)
            for (int64_t columns = 0; columns < 5; columns++) FLUX_SCOPE {
                int32_t pick[16];
                for (int64_t i = 0; i < rows * columns; i++) pick[i] = (int32_t)((i * 7 + 1) % have[dim]);
                flux_tensor *index = flux_from(pick, rows, columns), *y;
                if (dim == 0 ? columns > 3 : rows > 2) {
                    CHECK_ERROR(flux_take_along(x, dim, index), "is not within x 2x3 f32");
                    continue;
                }
                REQUIRE((y = flux_take_along(x, dim, index)) != NULL);
                CHECK(flux_dim(y, 0) == rows && flux_dim(y, 1) == columns);
                for (int64_t i = 0; i < rows * columns; i++) {
                    const int64_t r = i % rows, c = i / rows;
                    CHECK(flux_at(y, r, c) == (double)(dim == 0 ? pick[i] + 2 * c : r + 2 * pick[i]));
                }
            }
}

TEST(taking_along) {
    flux_tensor *x = matrix(), *i = flux_from(((int64_t[]){ 1, 0, 0, 1, 1, 1 }), 2, 3);
    VALUES(flux_take_along(x, 0, i), 0, 2, 1, 3, 4, 6, 6);
    VALUES(flux_take_along(x, 1, flux_from(((int32_t[]){ 2, 0 }), 1, 2)), 0, 5, 1);
    VALUES(flux_take_along(flux_transpose(x), 1, flux_transpose(i)), 0, 2, 3, 6, 1, 4, 6);
    CHECK_ERROR(flux_take_along(x, 1, flux_values(1, 2)), "integers");
    CHECK_ERROR(flux_take_along(x, 0, flux_from(((int64_t[]){ 1 }), 1)), "not within");
    CHECK_ERROR(flux_take_along(x, 2, i), "no dim 2");
    CHECK_ERROR(flux_data(flux_take_along(x, 0, flux_from(((int64_t[]){ 2, 0, 0 }), 1, 3))), "not within dim 0");
}

/* Small whole numbers below top at random, dim 0 first: to `value`, and as a tensor, which of some is a view. */
static flux_tensor *whole_numbers(flux_shape s, int top, flux_dtype t, double *value) {
    flux_shape stored = s;
    double turned[900];
    const int shift = s.ndim > 1 ? draw(s.ndim) : 0;           /* dim i of what is stored is dim i + shift */
    int64_t n = 1, step[FLUX_MAX_DIMS];
    for (int d = 0; d < s.ndim; d++) step[d] = n, n *= s.dim[d];
    for (int d = 0; d < s.ndim; d++) stored.dim[d] = s.dim[(d + shift) % s.ndim];
    for (int64_t i = 0; i < n; i++) value[i] = draw(top);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = 0, rest = i;
        for (int d = 0; d < s.ndim; d++) at += rest % stored.dim[d] * step[(d + shift) % s.ndim], rest /= stored.dim[d];
        turned[i] = value[at];
    }
    flux_shape order = s;
    for (int d = 0; d < s.ndim; d++) order.dim[d] = (d - shift + s.ndim) % s.ndim;
    flux_tensor *x = flux_eval(flux_to_dtype(flux_from_with(turned, FLUX_F64, stored), t));
    return shift ? flux_permute_with(x, order) : x;
}

/* Gathering and adding at indices, of any dtypes and shapes, beside loops; and an index that is not there. A turn's numbers
   are drawn from its own seed, so that it is the same whichever others are left out. */
TEST(indices_of_any_dtype_and_shape) {
    static const flux_dtype whole[] = { FLUX_I32, FLUX_I64, FLUX_U8 };
    for (int turn = 0; turn < 2000; turn++) FLUX_SCOPE {
        if (test_left_out(turn, 4)) continue;
        drawn = (uint32_t)turn * 2654435761u + 1;
        const flux_dtype t = (flux_dtype)draw(FLUX_BOOL), from = (flux_dtype)draw(FLUX_NUM_DTYPES), it = whole[draw(3)];
        flux_shape s = FLUX_SHAPE(1), is = FLUX_SHAPE(1), out = FLUX_SHAPE(1);
        double x[900], id[900], src[900], sum[900], picked[900];
        s.ndim = 1 + draw(3), is.ndim = draw(3), out.ndim = 0;
        int64_t before = 1, after = 1, ids = 1, bad = -1;
        const int dim = draw(s.ndim);
        for (int d = 0; d < s.ndim; d++) s.dim[d] = 1 + draw(4);
        for (int d = 0; d < is.ndim; d++) is.dim[d] = 1 + draw(3), ids *= is.dim[d];
        for (int d = 0; d < dim; d++) before *= s.dim[d], out.dim[out.ndim++] = s.dim[d];
        for (int d = 0; d < is.ndim; d++) out.dim[out.ndim++] = is.dim[d];
        for (int d = dim + 1; d < s.ndim; d++) after *= s.dim[d], out.dim[out.ndim++] = s.dim[d];
        const int64_t rows = s.dim[dim];
        flux_tensor *a = whole_numbers(s, 6, t, x), *i = whole_numbers(is, (int)rows + (draw(8) == 0), it, id);
        flux_tensor *b = whole_numbers(out, from == FLUX_BOOL ? 2 : 6, from, src);
        flux_tensor *taken = flux_gather(a, dim, i), *added = flux_scatter_add(a, dim, i, b);
        CHECK(flux_dtype_of(taken) == t && flux_dtype_of(added) == t);
        flux_shape other = out;                                /* a dim longer, or a dim of 1 more */
        if (out.ndim && draw(2)) other.dim[draw(out.ndim)]++;
        else other.dim[other.ndim++] = 1;
        CHECK_ERROR(flux_scatter_add(a, dim, i, flux_full_with(other, 0, from)), "scatter_add: src must be");
        for (int64_t k = 0; k < before * rows * after; k++) sum[k] = x[k];
        for (int64_t k = 0; k < ids && bad < 0; k++)
            if (id[k] >= (double)rows) bad = k;
        for (int64_t k = 0; k < before * ids * after && bad < 0; k++) {
            const int64_t at = k % before + before * ((int64_t)id[k / before % ids] + rows * (k / before / ids));
            picked[k] = x[at], sum[at] += src[k];
        }
        if (bad < 0) {
            test_data(taken, picked, before * ids * after, 0, __FILE__, __LINE__, "gathered");
            test_data(added, sum, before * rows * after, 0, __FILE__, __LINE__, "added");
            continue;
        }
        char says[120];
        if (test_device.backend) snprintf(says, sizeof says, ") is not within dim %d of size %d", dim, (int)rows);   /* of which of them is open */
        else snprintf(says, sizeof says, "index %d (number %d) is not within dim %d of size %d", (int)rows, (int)bad, dim, (int)rows);
        CHECK_ERROR(flux_data(taken), says);
        CHECK_ERROR(flux_data(added), says);
    }
}

/* Thousands of indices, of a tensor and of a view, are looked up in pieces: each at its place, and the one that is not there named. */
TEST(thousands_of_indices) {
    enum { A = 31, B = 17, C = 5, ROWS = 40 };
    static int32_t id[A * B * C];
    static double want[3 * A * B * C];
    for (int view = 0; view < 2; view++)
        for (int bad = -1; bad < A * B * C; bad += 900) FLUX_SCOPE {
            for (int i = 0; i < A * B * C; i++) id[i] = i == bad ? ROWS : i * 7 % 37;
            flux_tensor *x = flux_eval(flux_reshape(flux_arange(0, 3 * ROWS, 1), 3, ROWS)), *index = flux_from(id, A, B, C);
            if (view) index = flux_permute(index, 1, 0, 2);
            if (bad >= 0) {
                CHECK_ERROR(flux_data(flux_gather(x, 1, index)), "is not within dim 1 of size 40");
                continue;
            }
            for (int i = 0; i < 3 * A * B * C; i++) {
                const int k = i / 3, b = k % B, a = k / B % A, c = k / B / A;
                want[i] = i % 3 + 3 * id[view ? a + A * (b + B * c) : k];
            }
            test_data(flux_gather(x, 1, index), want, 3 * A * B * C, 0, __FILE__, __LINE__, "gathered");
        }
}

TEST(pieces) {
    flux_tensor *x = matrix(), *two = flux_split(x, 1, 2), *three = flux_split(x, 1, 1, 0, 2), *halves = flux_chunk(x, 1, 2);
    CHECK(flux_num_items(two) == 2 && flux_num_items(three) == 3 && flux_num_items(halves) == 2);
    VALUES(flux_nth(two, 0), 0, 1, 2, 3, 4);
    VALUES(flux_nth(two, 1), 0, 5, 6);
    SHAPE_IS(flux_nth(three, 1), 2, 0);
    VALUES(flux_nth(three, 2), 0, 3, 4, 5, 6);
    SHAPE_IS(flux_nth(halves, 1), 2, 1);
    CHECK(flux_num_items(flux_chunk(flux_zeros(5), 0, 4)) == 3);       /* 2 2 1, as torch.chunk */
    CHECK_ERROR(flux_split(x, 1, 1, 1), "do not cut");
    CHECK_ERROR(flux_split(x, 1, 0), "do not cut");
    CHECK_ERROR(flux_chunk(x, 0, 0), "0 pieces");
    CHECK_ERROR(flux_split(flux_zeros(256), 0, 1), "255");
}

TEST_MAIN()
