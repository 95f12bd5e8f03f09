/* Printing: tensors, models, sizes. Most texts here were taken from a Julia session or from Flux.jl's own documents;
   the model summaries follow the layout that its show code computes. */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include <locale.h>
#include <stdlib.h>
#define FLUX_IMPLEMENTATION
#include "test.h"
#include "../examples/plot.h"
#ifndef _WIN32
#include <unistd.h>
#endif

static char shown[1 << 18];
/* A heading says where the tensor is: "CUDA(0)" becomes what it is on the CPU. */
static const char *text_of(flux_tensor *x) {
    size_t n = flux_tensor_text(x, shown, sizeof shown);
    const char *device = getenv("FLUX_TEST_DEVICE");
    char there[40];
    if (n != strlen(shown)) return "the length is wrong";
    snprintf(there, sizeof there, " %s(0)", device ? device : "");
    if (device && !strstr(shown, there) && strstr(shown, " CPU")) return "the device is not named";
    for (char *at = shown; device && (at = strstr(at, there)) != NULL; at += 4) {
        memmove(at + 4, at + strlen(there), strlen(at + strlen(there)) + 1);
        memcpy(at, " CPU", 4);
    }
    return shown;
}
static const char *model_text(flux_layer *m) {
    size_t n = flux_layer_text(m, shown, sizeof shown);
    return n == strlen(shown) ? shown : "the length is wrong";
}
/* One float64 or float32 as a scalar prints it, without place and dtype. */
static const char *number_text(double v, flux_dtype t) {
    flux_shape s = { 0, { 0 } };
    char *end;
    text_of(flux_full_with(s, v, t));
    if ((end = strchr(shown, ' ')) != NULL) *end = 0;
    return shown;
}
static int lines_in(const char *s) {
    int n = 1;
    for (; *s; s++) n += *s == '\n';
    return n;
}
static int widest(const char *s) {         /* in characters */
    int most = 0, n = 0;
    for (; *s; s++) {
        if (((unsigned char)*s & 0xC0) != 0x80) n++;
        if (*s == '\n') n = 0;
        if (n > most) most = n;
    }
    return most;
}
static void defaults(void) {
    flux_print_limits(0, 0);
    flux_print_ascii(false);
}

/* ------------------------------------------------------------------ sizes in bytes, groups of digits */

TEST(bytes) {
    static const struct { int64_t n; const char *text; } cases[] = {
        { 0, "0 bytes" }, { 1, "1 byte" }, { 2, "2 bytes" }, { 1023, "1023 bytes" }, { 1024, "1.000 KiB" },
        { 3076, "3.004 KiB" }, { 3284, "3.207 KiB" }, { 6512680, "6.211 MiB" }, { 1048576, "1.000 MiB" },
        { 1048575, "1023.999 KiB" }, { 1073741823, "1.000 GiB" },
        { 1073741823 - 524288, "1023.500 MiB" }, { 1073741824, "1.000 GiB" }, { (int64_t)1 << 40, "1.000 TiB" },
        { INT64_MAX, "8.000 EiB" }, { -5, "-5 bytes" }, { 1536, "1.500 KiB" }
    };
    char out[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(flux_format_bytes(cases[i].n, out, sizeof out) == strlen(cases[i].text));
        CHECK_STR(out, cases[i].text);
    }
    /* around each unit: three decimals, and what rounds to 1024.000 is 1.000 of the next */
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    static const double parts[] = { 1, 1.5, 2.0004, 2.0006, 999.9994, 1000, 1023.998, 1023.9994, 1023.9996 };
    double unit = 1024;
    for (int u = 0; u < 6; u++, unit *= 1024)
        for (size_t i = 0; i < sizeof parts / sizeof *parts && parts[i] * unit < 9.2e18; i++) {
            char want[32];
            const double n = floor(parts[i] * unit + 0.5), whole = n / unit;
            if (whole < 1023.9995) snprintf(want, sizeof want, "%.3f %s", whole, units[u]);
            else snprintf(want, sizeof want, "1.000 %s", units[u + 1]);
            flux_format_bytes((int64_t)n, out, sizeof out);
            CHECK_STR(out, want);
        }
    memset(out, '#', sizeof out);
    CHECK(flux_format_bytes(3076, out, 4) == 9);
    CHECK_STR(out, "3.0");
    CHECK(out[4] == '#');
    CHECK(flux_format_bytes(3076, NULL, 0) == 9);
    CHECK(flux_format_bytes(3076, NULL, 7) == 9);
    CHECK(flux_format_bytes(3076, out, 0) == 9 && out[0] == '3');
}

TEST(digit_groups) {
    static const struct { int64_t n; const char *text; } cases[] = {
        { 0, "0" }, { 999, "999" }, { 1000, "1_000" }, { 1607680, "1_607_680" }, { 123456, "123_456" }, { -1000, "-1_000" },
        { INT64_MIN, "-9_223_372_036_854_775_808" }
    };
    char out[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(flux__integer_text(cases[i].n, true, out) == (int)strlen(cases[i].text));
        CHECK_STR(out, cases[i].text);
    }
}

/* ------------------------------------------------------------------ numbers */

TEST(numbers_are_shortest) {
    CHECK_STR(number_text(0.5, FLUX_F64), "0.5");
    CHECK_STR(number_text(1, FLUX_F64), "1.0");
    CHECK_STR(number_text(-0.0, FLUX_F64), "-0.0");
    CHECK_STR(number_text(0.1, FLUX_F64), "0.1");
    CHECK_STR(number_text(0.1 + 0.2, FLUX_F64), "0.30000000000000004");
    CHECK_STR(number_text(1.0 / 3, FLUX_F64), "0.3333333333333333");
    CHECK_STR(number_text(100000, FLUX_F64), "100000.0");
    CHECK_STR(number_text(1e6, FLUX_F64), "1.0e6");
    CHECK_STR(number_text(123456.7, FLUX_F64), "123456.7");
    CHECK_STR(number_text(1234567.8, FLUX_F64), "1.2345678e6");
    CHECK_STR(number_text(0.0001, FLUX_F64), "0.0001");
    CHECK_STR(number_text(0.00001, FLUX_F64), "1.0e-5");
    CHECK_STR(number_text(1.5e-5, FLUX_F64), "1.5e-5");
    CHECK_STR(number_text(1e300, FLUX_F64), "1.0e300");
    CHECK_STR(number_text(5e-324, FLUX_F64), "5.0e-324");
    CHECK_STR(number_text(DBL_MAX, FLUX_F64), "1.7976931348623157e308");
    CHECK_STR(number_text(0.1, FLUX_F32), "0.1");
    CHECK_STR(number_text(1.0 / 3, FLUX_F32), "0.33333334");
    CHECK_STR(number_text(16777216, FLUX_F32), "1.6777216e7");
    CHECK_STR(number_text((double)FLT_MAX, FLUX_F32), "3.4028235e38");
    CHECK_STR(number_text(1e-45, FLUX_F32), "1.0e-45");
    CHECK_STR(number_text(0.1, FLUX_F16), "0.1");
    CHECK_STR(number_text(65504, FLUX_F16), "6.55e4");
    CHECK_STR(number_text(1.0 / 3, FLUX_F16), "0.3333");
    CHECK_STR(number_text(0.1, FLUX_BF16), "0.1");
    CHECK_STR(number_text(3.140625, FLUX_BF16), "3.14");
    CHECK_STR(number_text((double)NAN, FLUX_F32), "NaN");
    CHECK_STR(number_text((double)INFINITY, FLUX_F32), "Inf");
    CHECK_STR(number_text(-(double)INFINITY, FLUX_F64), "-Inf");
    CHECK_STR(number_text(-7, FLUX_I32), "-7");
    CHECK_STR(number_text(255, FLUX_U8), "255");
    CHECK_STR(number_text(1, FLUX_BOOL), "1");
}

/* Whatever is printed of a vector reads back as the very same number. */
TEST(numbers_read_back) {
    uint64_t state = 88172645463325252u;
    int bad32 = 0, bad64 = 0;
    for (int i = 0; i < 20000; i++) {
        char text[40];
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint32_t half = (uint32_t)state;
        float f;
        double d;
        memcpy(&f, &half, sizeof f);
        memcpy(&d, &state, sizeof d);
        flux__real_text((double)f, FLUX_F32, 17, text);
        if (f == f && f - f == 0 && strtof(text, NULL) != f) bad32++;
        flux__real_text(d, FLUX_F64, 17, text);
        if (d == d && d - d == 0 && strtod(text, NULL) != d) bad64++;
        flux__real_text(d, FLUX_F64, 6, text);
        if (strlen(text) > 13) bad64++;    /* -1.23456e-300 */
    }
    CHECK(bad32 == 0);
    CHECK(bad64 == 0);
}

TEST(a_comma_in_the_locale_does_not_show) {
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "fr_FR", "German" };
    const char *have = NULL;
    for (int i = 0; i < 6 && !have; i++) have = setlocale(LC_NUMERIC, names[i]);
    if (!have) SKIP("no locale with a decimal comma; package: locales-all");
    CHECK_STR(number_text(0.5, FLUX_F32), "0.5");
    CHECK_STR(number_text(1.25e-7, FLUX_F64), "1.25e-7");
    char out[32];
    flux_format_bytes(3076, out, sizeof out);
    CHECK_STR(out, "3.004 KiB");
    setlocale(LC_NUMERIC, "C");
}

/* ------------------------------------------------------------------ tensors */

TEST(matrix_as_in_the_documents) {
    float w[] = { -0.984794f, 0.720379f, 0.851011f, -0.904345f, -0.486398f, -0.586942f };
    CHECK_STR(text_of(flux_from(w, 3, 2)), "3\xC3\x97" "2 CPU f32:\n -0.984794  -0.904345\n  0.720379  -0.486398\n  0.851011  -0.586942");
    float v[] = { 0.695662f, -0.204763f, -0.955829f, 0.816299f, -0.10232f, 0.538412f };
    CHECK_STR(text_of(flux_from(v, 3, 2)), "3\xC3\x97" "2 CPU f32:\n  0.695662   0.816299\n -0.204763  -0.10232\n -0.955829   0.538412");
    float y[] = { 0.0137076f, 0.0362744f, 0.791443f, 0.171815f, 0.620854f, 0.668804f, 0.53197f, 0.819654f, 0.108651f, 0.179971f, 0.312918f,
                  0.388508f, 0.907292f, 0.00155418f, 0.29f, 0.435899f };
    flux_print_limits(20, 200);
    CHECK_STR(text_of(flux_from(y, 1, 16)), "1\xC3\x97" "16 CPU f32:\n 0.0137076  0.0362744  0.791443  0.171815  0.620854  0.668804  0.53197"
              "  0.819654  0.108651  0.179971  0.312918  0.388508  0.907292  0.00155418  0.29  0.435899");
    defaults();
}

TEST(vector) {
    float x[] = { 0.066846445f, 0.5f, 0.25f, 1, 2, 3, 4, 5, 6, 0.76706964f };
    flux_print_limits(3, 80);
    CHECK_STR(text_of(flux_from(x, 10)), "10-element CPU f32:\n 0.066846445\n \xE2\x8B\xAE\n 0.76706964");
    x[0] = -0.99992573f, x[4] = -0.547261f;
    CHECK_STR(text_of(flux_from(x, 5)), "5-element CPU f32:\n -0.99992573\n  \xE2\x8B\xAE\n -0.547261");
    flux_print_limits(2, 80);
    CHECK_STR(text_of(flux_from(x, 5)), "5-element CPU f32:\n -0.99992573\n  \xE2\x8B\xAE");
    flux_print_limits(1, 80);
    CHECK_STR(text_of(flux_from(x, 5)), "5-element CPU f32:\n -0.99992573\n  \xE2\x8B\xAE");
    flux_print_limits(5, 80);
    CHECK(lines_in(text_of(flux_from(x, 5))) == 6);
    CHECK(lines_in(text_of(flux_from(x, 6))) == 6);
    defaults();
    CHECK(lines_in(text_of(flux_zeros(20))) == 21);
    CHECK(lines_in(text_of(flux_zeros(21))) == 21);
    CHECK(strstr(shown, "\xE2\x8B\xAE") != NULL);
    CHECK_STR(text_of(flux_from(x, 1)), "1-element CPU f32:\n -0.99992573");
}

TEST(columns_align_on_the_point) {
    double x[] = { 1, -22.25, 1000, 100.5, 3, 1e-7 };
    CHECK_STR(text_of(flux_from(x, 3, 2)), "3\xC3\x97" "2 CPU f64:\n    1.0   100.5\n  -22.25    3.0\n 1000.0     1.0e-7");
    double y[] = { (double)NAN, 1.5, -(double)INFINITY, 2 };
    CHECK_STR(text_of(flux_from(y, 2, 2)), "2\xC3\x97" "2 CPU f64:\n NaN    -Inf\n   1.5     2.0");
    int32_t i[] = { 1, -20, 300, 4 };
    CHECK_STR(text_of(flux_from(i, 2, 2)), "2\xC3\x97" "2 CPU i32:\n   1  300\n -20    4");
    double z[] = { 1234567.8, 0.123456789, 123456.7, 100000 };
    CHECK_STR(text_of(flux_from(z, 2, 2)), "2\xC3\x97" "2 CPU f64:\n 1.23457e6       1.23457e5\n 0.123457   100000.0");
}

TEST(scalars_empty_bools) {
    bool hot[] = { true, false, false, false, true, false };
    CHECK_STR(text_of(flux_scalar(0.25)), "0.25 CPU f32");
    CHECK_STR(text_of(flux_from(hot, 3, 2)), "3\xC3\x97" "2 CPU bool:\n 1  \xE2\x8B\x85\n \xE2\x8B\x85  1\n \xE2\x8B\x85  \xE2\x8B\x85");
    CHECK_STR(text_of(flux_from(hot, 3)), "3-element CPU bool:\n 1\n 0\n 0");
    CHECK_STR(text_of(flux_zeros(0)), "0-element CPU f32");
    CHECK_STR(text_of(flux_zeros(0, 3)), "0\xC3\x97" "3 CPU f32");
    CHECK_STR(text_of(flux_zeros(3, 0, 2)), "3\xC3\x97" "0\xC3\x97" "2 CPU f32");
}

TEST(slices_of_three_dims) {
    float x[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    CHECK_STR(text_of(flux_from(x, 2, 2, 3)), "2\xC3\x97" "2\xC3\x97" "3 CPU f32:\n[:, :, 0] =\n 1.0  3.0\n 2.0  4.0\n\n[:, :, 1] =\n 5.0  7.0\n"
              " 6.0  8.0\n\n[:, :, 2] =\n  9.0  11.0\n 10.0  12.0");
    CHECK_STR(text_of(flux_from(x, 1, 2, 1, 2)), "1\xC3\x97" "2\xC3\x97" "1\xC3\x97" "2 CPU f32:\n[:, :, 0, 0] =\n 1.0  2.0\n\n[:, :, 0, 1] =\n 3.0  4.0");
    text_of(flux_arange(0, 2 * 3 * 4, 1));
    text_of(flux_reshape(flux_arange(0, 24, 1), 1, 1, 4, 6));
    CHECK(strstr(shown, "[:, :, 2, 0] =") != NULL && strstr(shown, "[:, :, 3, 0] =") == NULL);
    CHECK(strstr(shown, "\n 2.0\n\n\xE2\x8B\xAE\n\n[:, :, 1, 5] =\n 21.0\n\n") != NULL);
    CHECK(strstr(shown, "[:, :, 3, 5] =\n 23.0") != NULL);
}

TEST(elided_columns) {
    float x[400];
    for (int i = 0; i < 400; i++) x[i] = (float)i;
    flux_print_limits(20, 30);
    CHECK_STR(text_of(flux_from(x, 2, 30)), "2\xC3\x97" "30 CPU f32:\n 0.0  2.0  4.0  \xE2\x80\xA6  56.0  58.0\n 1.0  3.0  5.0     57.0  59.0");
    CHECK(widest(shown) <= 30);
    flux_print_ascii(true);
    CHECK_STR(text_of(flux_from(x, 2, 30)), "2x30 CPU f32:\n 0.0  2.0  ...  56.0  58.0\n 1.0  3.0       57.0  59.0");
    flux_print_ascii(false);
    flux_print_limits(20, 1);             /* one column is always shown */
    CHECK_STR(text_of(flux_from(x, 1, 3)), "1\xC3\x97" "3 CPU f32:\n 0.0  \xE2\x80\xA6");
    flux_print_limits(5, 24);
    CHECK_STR(text_of(flux_from(x, 20, 20)), "20\xC3\x97" "20 CPU f32:\n  0.0  20.0  \xE2\x80\xA6  380.0\n  1.0  21.0     381.0\n  \xE2\x8B\xAE\n"
              " 18.0  38.0     398.0\n 19.0  39.0     399.0");
    for (int width = 1; width < 60; width++) {
        flux_print_limits(20, width);
        text_of(flux_from(x, 1, 20));
        if (strchr(shown, '\n')) CHECK(widest(strchr(shown, '\n') + 1) <= (width < 8 ? 8 : width));
    }
    defaults();
    CHECK(widest(text_of(flux_from(x, 1, 400))) <= 80 && widest(shown) > 66);
    CHECK(lines_in(text_of(flux_from(x, 200, 2))) == 21);
}

/* A tensor of 400 million elements, none of which is computed before somebody looks: only what is shown is fetched. */
TEST(large) {
    flux_device cpu = { 0, 0 };
    flux_tensor *line = flux_arange(0, 20000, 1), *big = flux_broadcast_to(line, 20000, 20000);
    flux_eval(line);
    int64_t before = flux_mem_stats(cpu).peak;
    text_of(big);
    CHECK(flux_mem_stats(cpu).peak - before < 1 << 20);
    CHECK(strncmp(shown, "20000\xC3\x97" "20000 CPU f32:\n     0.0      0.0 ", 36) == 0);
    CHECK(strstr(shown, "\n 19999.0  19999.0") != NULL);
    CHECK(lines_in(shown) == 21 && widest(shown) <= 80);
    /* what is cut down before it is fetched reads as what is not */
    static char whole[1 << 14];
    flux_tensor *x = flux_eval(flux_randn(70, 90, 13));
    text_of(x);
    strcpy(whole, shown);
    flux_print_limits(20, 80);
    const float *data = flux_floats(x);
    char first[40], last[40];
    flux__real_text((double)data[0], FLUX_F32, 6, first);
    flux__real_text((double)data[70 * 90 * 13 - 1], FLUX_F32, 6, last);
    CHECK(strstr(whole, first) != NULL && strcmp(whole + strlen(whole) - strlen(last), last) == 0);
    CHECK(strstr(whole, "[:, :, 2] =") && !strstr(whole, "[:, :, 3] =") && !strstr(whole, "[:, :, 9] =") && strstr(whole, "[:, :, 10] ="));
    defaults();
}

/* Views and computed tensors print as what they are, and stay what they are. */
TEST(views_and_expressions) {
    float x[] = { 1, 2, 3, 4, 5, 6 };
    flux_tensor *t = flux_from(x, 2, 3);
    CHECK_STR(text_of(flux_transpose(t)), "3\xC3\x97" "2 CPU f32:\n 1.0  2.0\n 3.0  4.0\n 5.0  6.0");
    CHECK_STR(text_of(flux_slice(t, 1, 1, 2)), "2\xC3\x97" "1 CPU f32:\n 3.0\n 4.0");
    CHECK_STR(text_of(flux_mul(t, 0.5)), "2\xC3\x97" "3 CPU f32:\n 0.5  1.5  2.5\n 1.0  2.0  3.0");
    CHECK_STR(text_of(flux_from_rows(x, 2, 3)), "2\xC3\x97" "3 CPU f32:\n 1.0  2.0  3.0\n 4.0  5.0  6.0");
    CHECK_STR(text_of(flux_tuple(t, flux_scalar(2))), "2-element tuple:\n[0] 2\xC3\x97" "3 CPU f32:\n 1.0  3.0  5.0\n 2.0  4.0  6.0\n[1] 2.0 CPU f32");
    double one[] = { 1, 2, 3, 4, 5, 6 };
    CHECK_DATA(t, one, 0);
}

TEST(dtypes) {
    float x[] = { 0.1f, 2, -3.5f, 100 };
    flux_tensor *t = flux_from(x, 2, 2);
    CHECK_STR(text_of(flux_to_dtype(t, FLUX_F16)), "2\xC3\x97" "2 CPU f16:\n 0.1   -3.5\n 2.0  100.0");
    CHECK_STR(text_of(flux_to_dtype(t, FLUX_BF16)), "2\xC3\x97" "2 CPU bf16:\n 0.1   -3.5\n 2.0  100.0");
    CHECK_STR(text_of(flux_to_dtype(t, FLUX_I64)), "2\xC3\x97" "2 CPU i64:\n 0   -3\n 2  100");
    CHECK_STR(text_of(flux_to_dtype(flux_abs(t), FLUX_U8)), "2\xC3\x97" "2 CPU u8:\n 0    3\n 2  100");
}

/* ------------------------------------------------------------------ the layout of any tensor, found anew */

/* Numbers alone are taken as they are; where they stand, and which are left out, is found from the limits. */
typedef struct { char text[40]; int left, right; } cell;
static cell cell_of(double v, flux_dtype t, bool dots, bool matrix, bool ascii) {
    cell c;
    if (flux__dtypes[t].real) flux__real_text(v, t, matrix ? 6 : 17, c.text);
    else snprintf(c.text, sizeof c.text, "%.0f", v);
    c.left = (int)strcspn(c.text, "."), c.right = (int)strlen(c.text) - c.left;
    if (dots && v == 0) strcpy(c.text, ascii ? "." : "\xE2\x8B\x85");
    return c;
}

static void put_blanks(char **to, int n) { while (n-- > 0) *(*to)++ = ' '; }
static void put_text(char **to, const char *text) { while (*text) *(*to)++ = *text++; }

/* Of n things, at most `most` are shown, the first `head` and the last `tail` of more: their numbers, and how many. */
static int numbers_shown(int n, int most, int head, int tail, int *which) {
    int k = 0;
    for (int i = 0; i < n; i++)
        if (n <= most || i < head || i >= n - tail) which[k++] = i;
    return k;
}

/* One page of rows x columns numbers, `rows_most` of them and a line of at most `wide`. */
static void put_page_of(char **to, const double *v, int rows, int columns, flux_dtype t, bool flat, int rows_most, int wide, bool ascii) {
    static cell cells[64][64];
    int row[64], first = 0, last = 0, left[64] = { 0 }, right[64] = { 0 }, all = 1, used = 1;
    const int nrows = numbers_shown(rows, rows_most, rows_most < 3 ? 1 : rows_most / 2, rows_most < 3 ? 0 : (rows_most - 1) / 2, row);
    const char *const gap = ascii ? "..." : "\xE2\x80\xA6", *const below = ascii ? ":" : "\xE2\x8B\xAE";
    for (int j = 0; j < columns; j++) {
        for (int i = 0; i < nrows; i++) {
            const cell c = cells[i][j] = cell_of(v[row[i] + rows * j], t, t == FLUX_BOOL && !flat, columns > 1, ascii);
            left[j] = left[j] > c.left ? left[j] : c.left, right[j] = right[j] > c.right ? right[j] : c.right;
        }
        all += left[j] + right[j] + 2 * (j > 0);
    }
    while (first + last < columns && all > wide) {
        const int j = first > last ? columns - 1 - last : first;
        used += left[j] + right[j] + 2;
        if (first && used + (ascii ? 3 : 1) > wide) break;
        *(first > last ? &last : &first) += 1;
    }
    if (all <= wide) first = columns;
    for (int i = 0; i < nrows; i++) {
        const bool jumps = i && row[i] != row[i - 1] + 1, signs = i % 5 == 0;
        if (jumps) put_text(to, "\n"), put_blanks(to, left[0]), put_text(to, below);
        put_text(to, "\n");
        int late = 0;                     /* blanks that come before what else comes */
        for (int j = 0; j < columns; j++) {
            if (j >= first && j < columns - last) {
                if (j > first || (!last && !signs)) continue;
                put_blanks(to, late + 2), put_text(to, signs ? gap : ascii ? "   " : " ");
                late = 0;
            } else {
                put_blanks(to, late + (j ? 2 : 1) + left[j] - cells[i][j].left);
                put_text(to, cells[i][j].text);
                late = right[j] - cells[i][j].right;
            }
        }
    }
    if (nrows < rows && row[nrows - 1] < rows - 1) put_text(to, "\n"), put_blanks(to, left[0]), put_text(to, below);
}

static const char *wanted_text(flux_tensor *x, int rows_most, int wide, bool ascii) {
    static char wanted[1 << 18];
    char *to = wanted;
    const flux_shape s = flux_shape_of(x);
    const int rows = s.ndim ? (int)s.dim[0] : 1, columns = s.ndim > 1 ? (int)s.dim[1] : 1;
    int page[64], pages = flux_len(x) ? (int)flux_len(x) / rows / columns : 0;
    const flux_dtype t = flux_dtype_of(x);
    const double *v = (const double *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F64)));
    if (!s.ndim) return snprintf(wanted, sizeof wanted, "%s CPU %s", cell_of(v[0], t, false, false, ascii).text, flux_dtype_name(t)), wanted;
    for (int d = 0; d < s.ndim; d++) to += sprintf(to, "%s%d", !d ? "" : ascii ? "x" : "\xC3\x97", (int)s.dim[d]);
    to += sprintf(to, "%s CPU %s%s", s.ndim == 1 ? "-element" : "", flux_dtype_name(t), pages ? ":" : "");
    const int npages = numbers_shown(pages, 10, 3, 3, page);
    for (int k = 0; k < npages; k++) {
        if (k) put_text(&to, "\n");
        if (k && page[k] != page[k - 1] + 1) put_text(&to, ascii ? "\n:\n" : "\n\xE2\x8B\xAE\n");
        for (int d = 2, left = page[k]; d < s.ndim; left /= (int)s.dim[d++]) to += sprintf(to, d == 2 ? "\n[:, :, %d" : ", %d", left % (int)s.dim[d]);
        if (s.ndim > 2) put_text(&to, "] =");
        put_page_of(&to, v + (size_t)rows * (size_t)columns * (size_t)page[k], rows, columns, t, s.ndim == 1, rows_most, wide, ascii);
    }
    *to = 0;
    return wanted;
}

static uint64_t print_state;
static int dice(int n) {
    print_state = print_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((print_state >> 33) % (uint64_t)n);
}

/* Of every dtype, size, rank, number of digits and limit: the text is the one found anew, whole. */
TEST(layout_of_any_tensor) {
    static double numbers[40 * 60 * 14];
    for (int i = 0; i < (test_device.backend ? 60 : 3000); i++) FLUX_SCOPE {
        print_state = (uint64_t)i;
        const int ndim = dice(20) < 12 ? 2 : dice(5), rows_most = dice(4) ? 1 + dice(9) : 20, wide = dice(3) ? 1 + dice(60) : 80;
        const bool ascii = dice(3) == 0;
        flux_shape s = { ndim, { 0 } };
        int64_t n = 1;
        for (int d = 0; d < ndim; d++) n *= s.dim[d] = d < 2 ? dice(8) ? 1 + dice(dice(2) ? 9 : 40) : dice(2) : dice(30) ? 1 + dice(4 - ndim ? 13 : 3) : 0;
        const flux_dtype t = (flux_dtype)dice(FLUX_NUM_DTYPES);
        for (int64_t k = 0; k < n; k++) {
            static const double scales[] = { 1, 100, 1e5, 1e-6, 0.5 };
            numbers[k] = dice(10) ? (dice(2001) - 1000) / (dice(2) ? 1 : 1000.0) * scales[dice(5)] : 0;
            if (t == FLUX_U8 || t == FLUX_BOOL) numbers[k] = t == FLUX_U8 ? dice(256) : dice(3) == 0;
            else if (!flux__dtypes[t].real) numbers[k] = floor(numbers[k]);
        }
        flux_tensor *x = flux_to_dtype(flux_from_with(numbers, FLUX_F64, s), t);
        flux_print_limits(rows_most, wide);
        flux_print_ascii(ascii);
        const char *got = text_of(x), *want = wanted_text(x, rows_most, wide, ascii);
        if (strcmp(got, want)) fprintf(stderr, "tensor %d:\n%s\n---- wanted:\n%s\n", i, got, want);
        CHECK(!strcmp(got, want));
    }
    defaults();
}

/* On a device: played by one whose memory is the host's. It is told apart, and printing moves nothing. */
static bool fake_yes(char *why, size_t n) { return (void)why, (void)n, true; }
static int fake_count(void) { return 2; }
static void fake_name(int id, char *out, size_t n) { snprintf(out, n, "Card %d", id); }
static void *fake_alloc(int id, size_t bytes) { return (void)id, malloc(bytes); }
static void fake_free(int id, void *p, size_t bytes) { (void)id, (void)bytes, free(p); }
static int fake_move(int id, void *to, const void *from, size_t bytes) { return (void)id, memcpy(to, from, bytes), 0; }
TEST(on_a_device) {
    if (getenv("FLUX_TEST_DEVICE")) SKIP("a back end of its own takes the place of the one that the tests run on");
    flux_device d = { FLUX__CUDA_BACKEND, 1 };
    static flux__backend fake;
    fake = *flux__backend_of(FLUX__CPU_BACKEND);
    fake.available = fake.functional = fake_yes, fake.count = fake_count, fake.device_name = fake_name;
    fake.alloc = fake_alloc, fake.free = fake_free, fake.upload = fake.download = fake_move;
    flux__backend_set(FLUX__CUDA_BACKEND, &fake);
    float x[] = { 1, 2, 3, 4 };
    flux_scope_open();
    flux_tensor *t = flux_to(d, flux_from(x, 2, 2)), *s = flux_to(d, flux_scalar(0.5));
    CHECK_STR(text_of(t), "2\xC3\x97" "2 CUDA(1) f32:\n 1.0  3.0\n 2.0  4.0");
    CHECK_STR(text_of(s), "0.5 CUDA(1) f32");
    CHECK(flux_device_equal(flux_device_of(t), d));
    flux_scope_close();
    flux_mem_trim(d);
    flux__backend_set(FLUX__CUDA_BACKEND, NULL);
}

/* As snprintf: of every room, the longest beginning that fits, and nothing beyond. */
static void check_rooms(size_t (*text)(void *object, char *out, size_t n), void *object) {
    static char whole[4096], part[4096];
    size_t need = text(object, whole, sizeof whole);
    CHECK(need > 0 && need == strlen(whole) && need < sizeof whole);
    CHECK(text(object, NULL, 0) == need);
    CHECK(text(object, NULL, 99) == need);
    for (size_t n = 0; n < need + 3; n++) {
        memset(part, '#', sizeof part);
        size_t fits = n == 0 ? 0 : n - 1 < need ? n - 1 : need;
        bool good = text(object, part, n) == need && memcmp(part, whole, fits) == 0 && (n == 0 || part[fits] == 0) && part[n] == '#';
        if (!good) fprintf(stderr, "with room for %d bytes\n", (int)n);
        if (!good) CHECK(good);
    }
}
static size_t tensor_text(void *x, char *out, size_t n) { return flux_tensor_text((flux_tensor *)x, out, n); }
static size_t layer_text(void *m, char *out, size_t n) { return flux_layer_text((flux_layer *)m, out, n); }

TEST(every_room) {
    flux_print_limits(3, 30);
    check_rooms(tensor_text, flux_randn(7, 9, 2));
    defaults();
    check_rooms(layer_text, flux_chain(flux_dense(2, 3, flux_sigmoid), flux_dense(3, 2), flux_softmax));
}

TEST(nothing_to_print) {
    char out[8] = "########";
    CHECK_ERROR(flux_tensor_text(NULL, out, 8), "tensor_text: argument x is NULL");
    CHECK(out[0] == 0);
    CHECK_ERROR(flux_layer_text(NULL, out, 8), "layer_text: argument m is NULL");
    CHECK_ERROR(flux_print_tensor(NULL), "print: argument x is NULL");
    CHECK_ERROR(flux_print_layer(NULL), "print: argument m is NULL");
}

/* ------------------------------------------------------------------ models */

/* A stand-in for a normalisation layer: two parameters, two states, a text of its own. */
typedef struct { flux_layer base; flux_tensor *beta, *gamma, *mean, *var; const char *said; } norm;
static flux_tensor *norm_call(flux_layer *m, flux_tensor *x) { return (void)m, x; }
static size_t norm_text(flux_layer *m, char *out, size_t n) { return (size_t)snprintf(out, n, "%s", ((norm *)m)->said); }
FLUX_LAYER_TEXT(norm, "Norm", norm_call, norm_text, FLUX_PARAM(beta), FLUX_PARAM(gamma), FLUX_STATE(mean), FLUX_STATE(var))
static flux_layer *norm_of(int64_t n, const char *said) {
    return flux_new(norm, .beta = flux_zeros(n), .gamma = flux_ones(n), .mean = flux_zeros(n), .var = flux_ones(n), .said = said);
}

TEST(one_line) {
    CHECK_STR(model_text(flux_dense(2, 3)), "Dense(2 => 3)       # 9 parameters");
    CHECK_STR(model_text(flux_dense(10, 5)), "Dense(10 => 5)      # 55 parameters");
    CHECK_STR(model_text(norm_of(2, "BatchNorm(2, relu)")), "BatchNorm(2, relu)  # 4 parameters, plus 4 non-trainable");
    CHECK_STR(model_text(flux_dense(784, 2048)), "Dense(784 => 2048)  # 1_607_680 parameters");
    CHECK_STR(model_text(flux_dense(10, 5, flux_sigmoid)), "Dense(10 => 5, \xCF\x83)   # 55 parameters");
    CHECK_STR(model_text(flux_dense(5, 2, flux_tanh, .bias = FLUX_OFF)), "Dense(5 => 2, tanh; bias=false)  # 10 parameters");
    CHECK_STR(model_text(flux_named("last", flux_dense(2, 3))), "Dense(2 => 3)       # 9 parameters");
    CHECK_STR(model_text(norm_of(0, "Nothing()")), "Nothing()           # 0 parameters");
}

TEST(chain_as_in_the_documents) {
    CHECK_STR(model_text(flux_chain(flux_dense(1, 256, flux_tanh), flux_dense(256, 1))),
              "Chain(\n"
              "  Dense(1 => 256, tanh),                # 512 parameters\n"
              "  Dense(256 => 1),                      # 257 parameters\n"
              ")                   # Total: 4 arrays, 769 parameters, 3.004 KiB.");
    CHECK_STR(model_text(flux_chain(flux_dense(2, 3, flux_tanh), norm_of(3, "BatchNorm(3)"), flux_dense(3, 2))),
              "Chain(\n"
              "  Dense(2 => 3, tanh),                  # 9 parameters\n"
              "  BatchNorm(3),                         # 6 parameters, plus 6\n"
              "  Dense(3 => 2),                        # 8 parameters\n"
              ")         # Total: 6 trainable arrays, 23 parameters,\n"
              "          # plus 2 non-trainable, 6 parameters, summarysize 116 bytes.");
    CHECK_STR(model_text(flux_chain(flux_dense(10, 5, flux_sigmoid), flux_softmax)),
              "Chain(\n"
              "  Dense(10 => 5, \xCF\x83),                    # 55 parameters\n"
              "  softmax,\n"
              ") ");
}

TEST(nested_and_named) {
    flux_layer *inner = flux_chain(flux_dense(3, 3, flux_relu), flux_named("mid", flux_dense(3, 2)));
    CHECK_STR(model_text(flux_chain(flux_named("enc", flux_dense(2, 3)), inner, flux_named("dec", flux_chain(flux_dense(2, 2), flux_relu)))),
              "Chain(\n"
              "  enc = Dense(2 => 3),                  # 9 parameters\n"
              "  Chain(\n"
              "    Dense(3 => 3, relu),                # 12 parameters\n"
              "    mid = Dense(3 => 2),                # 8 parameters\n"
              "  ),\n"
              "  dec = Chain(\n"
              "    Dense(2 => 2),                      # 6 parameters\n"
              "    relu,\n"
              "  ),\n"
              ")                   # Total: 8 arrays, 35 parameters, 140 bytes.");
    CHECK_STR(model_text(flux_skipconnection(flux_dense(2, 2), flux_add)),
              "SkipConnection(\n"
              "  Dense(2 => 2),                        # 6 parameters\n"
              "  +,\n"
              ") ");
    CHECK_STR(model_text(flux_parallel(flux_vcat, flux_dense(2, 2), flux_dense(2, 3))),
              "Parallel(\n"
              "  vcat,\n"
              "  Dense(2 => 2),                        # 6 parameters\n"
              "  Dense(2 => 3),                        # 9 parameters\n"
              ")                   # Total: 4 arrays, 15 parameters, 60 bytes.");
    CHECK_STR(model_text(flux_chain(flux_relu, flux_softmax)), "Chain(relu, softmax)");
    CHECK_STR(model_text(flux_chain(flux_dense(2, 2), flux_chain(flux_relu, flux_softmax))),
              "Chain(\n"
              "  Dense(2 => 2),                        # 6 parameters\n"
              "  Chain(relu, softmax),\n"
              ") ");
    CHECK_STR(model_text(flux_chain(flux_dense(2, 3, .weight = flux_ones(3, 2)), norm_of(11, "a name that is longer than the column of the comments"))),
              "Chain(\n"
              "  Dense(2 => 3),                        # 9 parameters\n"
              "  a name that is longer than the column of the comments,  # 22 parameters, plus 22\n"
              ")         # Total: 4 trainable arrays, 31 parameters,\n"
              "          # plus 2 non-trainable, 22 parameters, summarysize 212 bytes.");
}

typedef struct { flux_layer base; flux_layer *actor; flux_tensor *critic; int visits; } actor_critic;
FLUX_LAYER(actor_critic, "ActorCritic", norm_call, FLUX_CHILD(actor), FLUX_PARAM(critic))
typedef struct { flux_layer base; flux_tensor *weight, *bias; } affine;
FLUX_LAYER(affine, "Affine", norm_call, FLUX_PARAM(weight), FLUX_PARAM(bias))
typedef struct { flux_layer base; flux_layer *body; flux_tensor *seen; flux_layer **more; int count; } tracker;
FLUX_LAYER(tracker, "Tracker", norm_call, FLUX_CHILD(body), FLUX_STATE(seen), FLUX_CHILDREN(more, count))
typedef struct { flux_layer base; int nothing; } empty;
static const flux_field no_fields[] = { { NULL, FLUX__END, 0, 0 } };
static const flux_layer_type empty_type = { "Empty", norm_call, sizeof(empty), no_fields, NULL, 0 };

TEST(layers_of_the_users_own) {
    flux_layer *dense = flux_dense(2, 2);
    CHECK_STR(model_text(flux_new(actor_critic, .actor = dense, .critic = flux_ones(2))),
              "ActorCritic(\n"
              "  Dense(2 => 2),                        # 6 parameters\n"
              "  2-element f32,                        # 2 parameters\n"
              ")                   # Total: 3 arrays, 8 parameters, 32 bytes.");
    CHECK_STR(model_text(flux_new(affine, .weight = flux_ones(5, 2), .bias = flux_ones(5))), "Affine(5\xC3\x97" "2 f32, 5-element f32)  # 15 parameters");
    CHECK_STR(model_text(flux_chain(flux_new(affine, .weight = flux_ones(5, 2)), flux_relu)),
              "Chain(\n"
              "  Affine(5\xC3\x97" "2 f32),                      # 10 parameters\n"
              "  relu,\n"
              ") ");
    flux_layer *more[] = { flux_dense(1, 1), flux_dense(1, 2) };
    CHECK_STR(model_text(flux_new(tracker, .body = dense, .seen = flux_zeros(3, 4), .more = more, .count = 2)),
              "Tracker(\n"
              "  Dense(2 => 2),                        # 6 parameters\n"
              "  3\xC3\x97" "4 f32,                              # 12 non-trainable\n"
              "  Dense(1 => 1),                        # 2 parameters\n"
              "  Dense(1 => 2),                        # 4 parameters\n"
              ")         # Total: 6 trainable arrays, 12 parameters,\n"
              "          # plus 1 non-trainable, 12 parameters, summarysize 96 bytes.");
    CHECK_STR(model_text(flux_new(tracker, .seen = NULL)), "Tracker()");
    empty e = { { { 0, 0, 0 }, NULL, FLUX_MODE_AUTO, false, 0, NULL }, 0 };
    CHECK_STR(model_text(flux_new_with(&empty_type, &e)), "Empty()");
    static char said[3000];
    memset(said, 'a', sizeof said - 1);
    model_text(norm_of(1, said));
    CHECK(strlen(shown) == 2999 + 2 + strlen("# 2 parameters, plus 2 non-trainable"));
}

TEST(flags) {
    flux_tensor *zero = flux_zeros(2), *bad = flux_div(flux_zeros(2), 0), *big = flux_div(flux_ones(2), 0);
    flux_layer *affines[4];
    affines[0] = flux_new(affine, .weight = flux_zeros(2, 2), .bias = zero);
    affines[1] = flux_new(affine, .weight = flux_ones(2, 2), .bias = bad);
    affines[2] = flux_new(affine, .weight = big, .bias = flux_zeros(2));
    affines[3] = flux_new(affine, .weight = flux_neg(big), .bias = bad);
    CHECK_STR(model_text(affines[0]), "Affine(2\xC3\x97" "2 f32, 2-element f32)  # 6 parameters  (all zero)");
    CHECK_STR(model_text(flux_chain_with(4, affines, NULL)),
              "Chain(\n"
              "  Affine(2\xC3\x97" "2 f32, 2-element f32),       # 6 parameters  (all zero)\n"
              "  Affine(2\xC3\x97" "2 f32, 2-element f32),       # 6 parameters  (some NaN)\n"
              "  Affine(2-element f32, 2-element f32),  # 4 parameters  (some Inf)\n"
              "  Affine(2-element f32, 2-element f32),  # 4 parameters, 2 tied  (some NaN)\n"
              ")                   # Total: 7 arrays, 18 parameters, 72 bytes.");
    CHECK_STR(model_text(flux_new(affine, .weight = flux_to_dtype(flux_zeros(2), FLUX_F16), .bias = flux_to_dtype(flux_zeros(1), FLUX_BOOL))),
              "Affine(2-element f16, 1-element bool)  # 2 parameters, plus 1 non-trainable  (all zero)");
}

/* What flux_update leaves as it is says so. */
TEST(frozen) {
    flux_layer *m = flux_chain(flux_dense(2, 3), flux_dense(3, 3), flux_relu, flux_dense(3, 1));
    flux_freeze(flux_child(m, 1));
    CHECK_STR(model_text(m),
              "Chain(\n"
              "  Dense(2 => 3),                        # 9 parameters\n"
              "  Dense(3 => 3),                        # 12 parameters, frozen\n"
              "  relu,\n"
              "  Dense(3 => 1),                        # 4 parameters\n"
              ")                   # Total: 6 arrays, 25 parameters, 100 bytes.");
    CHECK_STR(model_text(flux_child(m, 1)), "Dense(3 => 3)       # 12 parameters, frozen");
    flux_layer *heads = flux_multiheadattention(4, .nheads = 2), *gate;
    flux_freeze(flux_child(heads, 0));
    CHECK(strstr(model_text(heads), "# 64 parameters, partly frozen") != NULL);
    gate = flux_new(affine, .weight = flux_ones(2, 2), .bias = flux_ones(2));
    flux_freeze(gate);
    CHECK_STR(model_text(gate), "Affine(2\xC3\x97" "2 f32, 2-element f32)  # 6 parameters, frozen");
    flux_thaw(m);
    CHECK(!strstr(model_text(m), "frozen"));
}

TEST(tied) {
    flux_layer *dense = flux_dense(3, 3);
    CHECK_STR(model_text(flux_chain(dense, dense)),
              "Chain(\n"
              "  Dense(3 => 3),                        # 12 parameters\n"
              "  Dense(3 => 3),                        # 12 parameters, tied\n"
              ") ");
    flux_tensor *w = flux_weight(dense);
    CHECK_STR(model_text(flux_chain(dense, flux_dense(3, 3, .weight = w), flux_dense(3, 3, .weight = flux_transpose(w), .bias = FLUX_OFF))),
              "Chain(\n"
              "  Dense(3 => 3),                        # 12 parameters\n"
              "  Dense(3 => 3),                        # 12 parameters, 9 tied\n"
              "  Dense(3 => 3; bias=false),            # 9 parameters\n"
              ")                   # Total: 4 arrays, 24 parameters, 60 bytes.");
}

TEST(same_text_for_other_dtypes) {
    flux_layer *m = flux_f16(flux_chain(flux_dense(1, 256, flux_tanh), flux_dense(256, 1)));
    CHECK(strstr(model_text(m), "# Total: 4 arrays, 769 parameters, 1.502 KiB.") != NULL);
}

TEST(deep) {
    flux_layer *m = flux_dense(1, 1);
    for (int i = 0; i < 300; i++) m = flux_chain(m, flux_relu);
    model_text(m);
    CHECK(lines_in(shown) == 3 * 201 + 1);        /* of 201 levels, and what the last of them holds in one line */
    CHECK(strncmp(shown, "Chain(\n  Chain(\n    Chain(\n", 27) == 0);
    CHECK_STR(shown + strlen(shown) - 10, "  relu,\n) ");
}

/* A layer's own text of any length below 64 KiB is whole; of one that is longer its type is shown. */
typedef struct wordy { flux_layer base; } wordy;
static size_t words;
static flux_tensor *wordy_call(flux_layer *self, flux_tensor *x) { return (void)self, x; }
static size_t wordy_text(flux_layer *self, char *out, size_t n) {
    (void)self;
    for (size_t i = 0; i < n; i++) out[i] = i < words && i + 1 < n ? (char)('a' + i % 26) : 0;
    return words;
}
FLUX_LAYER_TEXT(wordy, "Wordy", wordy_call, wordy_text)
TEST(long_texts_of_layers) {
    static const size_t lengths[] = { 0, 1, 254, 255, 256, 257, 65534, 65535, 65536, 65537 };
    static char want[70000];
    flux_layer *m = flux_new(wordy);
    for (int i = 0; i < 10; i++) {
        words = lengths[i];
        for (size_t k = 0; k < words; k++) want[k] = (char)('a' + k % 26);
        want[words] = 0;
        CHECK_STR(model_text(m), words < 65536 ? want : "Wordy");
    }
}

TEST(ascii) {
    flux_print_ascii(true);
    CHECK_STR(model_text(flux_dense(10, 5, flux_sigmoid)), "Dense(10 => 5, sigmoid)  # 55 parameters");
    CHECK_STR(text_of(flux_zeros(1, 2)), "1x2 CPU f32:\n 0.0  0.0");
    flux_print_limits(2, 80);
    CHECK_STR(text_of(flux_zeros(3)), "3-element CPU f32:\n 0.0\n :");
    bool hot[] = { true, false };
    CHECK_STR(text_of(flux_from(hot, 1, 2)), "1x2 CPU bool:\n 1  .");
    flux_layer *m = flux_chain(flux_new(affine, .weight = flux_ones(5, 2)), flux_dense(10, 5, flux_sigmoid));
    for (const char *s = model_text(m); *s; s++)
        if ((unsigned char)*s >= 0x80) CHECK((unsigned char)*s < 0x80);
    defaults();
    CHECK_STR(text_of(flux_zeros(1, 1)), "1\xC3\x97" "1 CPU f32:\n 0.0");
}

/* Colour adds escapes and changes nothing else. */
TEST(colour) {
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_new(affine, .weight = flux_zeros(5, 2)), flux_new(affine, .weight = flux_div(flux_zeros(1), 0)));
    static char plain[4096], coloured[4096], stripped[4096];
    flux_layer_text(m, plain, sizeof plain);
    flux__sink s = flux__sink_to(coloured, sizeof coloured);
    s.colour = true;
    flux__put_whole_model(&s, m);
    flux__sink_end(&s);
    size_t n = 0;
    for (const char *p = coloured; *p; p++)
        if (*p == '\033') p = strchr(p, 'm');
        else stripped[n++] = *p;
    CHECK_STR(stripped, plain);
    CHECK(strstr(coloured, "\033[90m# 6 parameters\033[0m\n") != NULL);
    CHECK(strstr(coloured, "# 10 parameters\033[36m  (all zero)\033[0m") != NULL);
    CHECK(strstr(coloured, "# 1 parameters\033[31m  (some NaN)\033[0m") != NULL);
    CHECK(strstr(coloured, "\033[90m# Total: 4 arrays") != NULL);
}

/* A text in a column of any width, in characters of one to three bytes: whole and padded, or its beginning and dots, of which
   a width of less has as many as fit. */
TEST(cut_to_a_width) {
    static const char *const texts[] = { "", "a", "layers", "\xc3\xa9t\xc3\xa9", "\xe2\x86\x92x\xe2\x86\x92y\xe2\x86\x92", "of the width 12" };
    for (int ascii = 0; ascii < 2; ascii++)
        for (int width = 0; width < 18; width++)
            for (int i = 0; i < 6; i++) {
                char got[100] = "", want[100] = "";
                const int have = (int)flux__characters(texts[i]), dots = have <= width ? 0 : ascii ? (width < 3 ? width : 3) : width > 0;
                size_t bytes = 0;
                for (int kept = 0; kept < (have <= width ? have : width - dots); kept++)
                    for (bytes++; ((unsigned char)texts[i][bytes] & 0xC0) == 0x80;) bytes++;
                memcpy(want, texts[i], bytes);
                for (int k = 0; k < dots; k++) strcat(want, ascii ? "." : "\xe2\x80\xa6");
                for (int k = have; k < width; k++) strcat(want, " ");
                flux_print_ascii(ascii);
                flux__sink s = flux__sink_to(got, sizeof got);
                flux__put_cut(&s, texts[i], width);
                flux__sink_end(&s);
                CHECK_STR(got, want);
            }
    flux_print_ascii(false);
}

/* flux_print writes the text and a newline, without colour where stdout is no terminal. */
TEST(printed) {
    static char got[4096];
    fflush(stdout);
    FILE *f = tmpfile();
    REQUIRE(f != NULL);
    flux__sink s = { NULL, 0, 0, 0, f, false, false, false };
    flux_tensor *x = flux_randn(4, 4);
    CHECK(flux__put_tensor(&s, x));
    flux__put_whole_model(&s, flux_dense(2, 3));
    rewind(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    flux_tensor_text(x, shown, sizeof shown);
    strcat(shown, "Dense(2 => 3)       # 9 parameters");
    CHECK_STR(got, shown);
}

/* The line of every kind of layer: each option shows where it is not what it is by itself. */
static flux_layer *in_mode(flux_layer *m, bool training) { return training ? flux_trainmode(m, true) : flux_testmode(m, true), m; }
TEST(lines_of_layers) {
#define S FLUX_SHAPE
    const struct { flux_layer *m; const char *line; } lines[] = {
        { flux_dense(3, 2, flux_relu), "Dense(3 => 2, relu)" }, { flux_dense(3, 2, flux_identity, .bias = FLUX_OFF), "Dense(3 => 2; bias=false)" },
        { flux_scale(S(3)), "Scale(3)" }, { flux_scale(S(3, 2), flux_tanh), "Scale(3, 2, tanh)" }, { flux_scale(S(3), .bias = FLUX_OFF), "Scale(3; bias=false)" },
        { flux_bilinear(3, 3, 2), "Bilinear(3 => 2)" }, { flux_bilinear(3, 4, 2, flux_tanh, .bias = FLUX_OFF), "Bilinear((3, 4) => 2, tanh; bias=false)" },
        { flux_embedding(5, 2), "Embedding(5 => 2)" }, { flux_embedding(5, 2, .padding_idx = 0), "Embedding(5 => 2, padding_idx=0)" }, { flux_embedding(5, 2, .pad = FLUX_ON), "Embedding(5 => 2, padding_idx=0)" },
        { flux_embeddingbag(5, 2), "EmbeddingBag(5 => 2)" }, { flux_embeddingbag(5, 2, flux_mean), "EmbeddingBag(5 => 2)" }, { flux_embeddingbag(5, 2, flux_sum), "EmbeddingBag(5 => 2, sum)" },
        { flux_embeddingbag(5, 2, flux_max), "EmbeddingBag(5 => 2, max)" },
        { flux_positionembedding(7, 4), "PositionEmbedding(7 => 4)" },
        { flux_swiglu(4, 6), "SwiGLU(4 => 6 => 4)" }, { flux_swiglu(4, 6, 5, .bias = true), "SwiGLU(4 => 6 => 5; bias=true)" },
        { flux_rnn(3, 2), "RNN(3 => 2, tanh)" }, { flux_rnn(3, 2, flux_relu, .bias = FLUX_OFF), "RNN(3 => 2, relu; bias=false)" }, { flux_rnn(3, 2, flux_identity), "RNN(3 => 2, identity)" },
        { flux_lstm(3, 2), "LSTM(3 => 2)" }, { flux_lstm(3, 2, .bias = FLUX_OFF), "LSTM(3 => 2; bias=false)" }, { flux_gru(3, 2, .hidden_bias = true), "GRU(3 => 2; hidden_bias=true)" },
        { flux_gru(3, 2), "GRU(3 => 2)" }, { flux_gruv3(3, 2), "GRUv3(3 => 2)" }, { flux_rnncell(3, 2), "RNNCell(3 => 2, tanh)" }, { flux_lstmcell(3, 2), "LSTMCell(3 => 2)" },
        { flux_grucell(3, 2, .hidden_bias = true), "GRUCell(3 => 2; hidden_bias=true)" }, { flux_gruv3cell(3, 2), "GRUv3Cell(3 => 2)" },
        { flux_layernorm(S(3)), "LayerNorm(3)" }, { flux_layernorm(S(3, 2), flux_relu), "LayerNorm(3, 2, relu)" }, { flux_layernorm(S(3), .affine = FLUX_OFF), "LayerNorm(3, affine=false)" },
        { flux_rmsnorm(S(3, 2)), "RMSNorm(3, 2)" }, { flux_rmsnorm(S(3), .affine = FLUX_OFF), "RMSNorm(3, affine=false)" },
        { flux_batchnorm(3), "BatchNorm(3)" }, { flux_batchnorm(3, flux_relu, .affine = FLUX_OFF), "BatchNorm(3, relu, affine=false)" }, { flux_instancenorm(3), "InstanceNorm(3, affine=false)" },
        { flux_instancenorm(3, .affine = FLUX_ON), "InstanceNorm(3)" }, { flux_groupnorm(4, 2), "GroupNorm(4, 2)" }, { flux_groupnorm(4, 2, flux_relu, .affine = FLUX_OFF), "GroupNorm(4, 2, relu, affine=false)" },
        { in_mode(flux_batchnorm(3), true), "BatchNorm(3, active=true)" }, { in_mode(flux_batchnorm(3), false), "BatchNorm(3, active=false)" },
        { flux_dropout(0.25), "Dropout(0.25)" }, { flux_dropout(0.5, S(1)), "Dropout(0.5, dims=1)" }, { flux_dropout(0.5, S(0, 2)), "Dropout(0.5, dims=(0, 2))" }, { flux_alphadropout(0.1), "AlphaDropout(0.1)" },
        { in_mode(flux_dropout(0.25, S(1)), true), "Dropout(0.25, dims=1, active=true)" },
        { flux_conv_layer(S(3), 1, 2), "Conv((3,), 1 => 2)" }, { flux_conv_layer(S(3, 2), 1, 2, flux_relu, .bias = FLUX_OFF), "Conv((3, 2), 1 => 2, relu, bias=false)" },
        { flux_conv_layer(S(3, 3), 4, 2, .stride = S(2), .pad = S(1), .dilation = S(2, 1), .groups = 2), "Conv((3, 3), 4 => 2, pad=1, stride=2, dilation=(2, 1), groups=2)" },
        { flux_conv_layer(S(3, 3), 1, 2, .stride = S(2, 1), .pad = S(1, 0, 2, 2)), "Conv((3, 3), 1 => 2, pad=(1, 0, 2, 2), stride=(2, 1))" }, { flux_conv_layer(S(3, 3), 1, 2, .pad = S(1, 2)), "Conv((3, 3), 1 => 2, pad=(1, 2))" },
        { flux_conv_transpose_layer(S(3, 3), 4, 2, .stride = S(2), .outpad = S(1)), "ConvTranspose((3, 3), 4 => 2, stride=2, outpad=1)" },
        { flux_conv_transpose_layer(S(3, 3), 4, 2, .stride = S(3), .outpad = S(1, 2), .groups = 2), "ConvTranspose((3, 3), 4 => 2, stride=3, outpad=(1, 2), groups=2)" },
        { flux_crosscor_layer(S(3, 3), 1, 2), "CrossCor((3, 3), 1 => 2)" }, { flux_depthwiseconv(S(3, 3), 2, 4), "Conv((3, 3), 2 => 4, groups=2)" },
        { flux_maxpool_layer(S(2, 2)), "MaxPool((2, 2))" }, { flux_maxpool_layer(S(3), .stride = S(1), .pad = S(1)), "MaxPool((3,), pad=1, stride=1)" },
        { flux_meanpool_layer(S(3, 2), .stride = S(2, 1), .pad = S(1, 0)), "MeanPool((3, 2), pad=(1, 0), stride=(2, 1))" }, { flux_lpnormpool_layer(S(2, 2), .p = 3), "LPNormPool((2, 2), p=3)" },
        { flux_maxpool_layer(S(2, 3), .stride = S(2, 3)), "MaxPool((2, 3))" },
        { flux_adaptivemaxpool(S(4, 3)), "AdaptiveMaxPool((4, 3))" }, { flux_adaptivemeanpool(S(4)), "AdaptiveMeanPool((4,))" }, { flux_globalmaxpool(), "GlobalMaxPool()" }, { flux_globalmeanpool(), "GlobalMeanPool()" },
        { flux_globallpnormpool(1.5), "GlobalLPNormPool(p=1.5)" },
        { flux_upsample(.scale = { 2 }), "Upsample(:nearest, scale = 2)" }, { flux_upsample(FLUX_BILINEAR, .scale = { 2, 1.5 }), "Upsample(:bilinear, scale = (2, 1.5))" },
        { flux_upsample(FLUX_TRILINEAR, .scale = { 2, 3, 4 }), "Upsample(:trilinear, scale = (2, 3, 4))" }, { flux_upsample(FLUX_LINEAR, .size = S(9)), "Upsample(:linear, size = 9)" },
        { flux_upsample(.size = S(9, 6)), "Upsample(:nearest, size = (9, 6))" }, { flux_pixelshuffle(3), "PixelShuffle(3)" },
        { flux_weightnorm(flux_dense(3, 2)), "WeightNorm(Dense(3 => 2), :weight)" }, { flux_weightnorm(flux_dense(.weight = flux_ones(2, 3), .bias_tensor = flux_ones(2)), "bias"), "WeightNorm(Dense(3 => 2), :bias)" },
        { flux_weightnorm(flux_dense(3, 2), .dims = S(0)), "WeightNorm(Dense(3 => 2), :weight, dims=0)" }, { flux_weightnorm(flux_dense(3, 2), .dims = S(0, 1)), "WeightNorm(Dense(3 => 2), :weight, dims=(0, 1))" },
        { flux_multiheadattention(8, 2), "MultiHeadAttention(8; nheads=2)" }, { flux_multiheadattention(8, 4, .kv_heads = 2, .rotary = 10000, .causal = true), "MultiHeadAttention(8; nheads=4, kv_heads=2, rotary=10000, causal=true)" },
        { flux_multiheadattention(8, 2, .bias = true, .dropout = 0.1), "MultiHeadAttention(8; nheads=2, bias=true, dropout_prob=0.1)" },
        { flux_multiheadattention(8, 2, .k_in = 6), "MultiHeadAttention((8, 6, 8) => 8 => 8; nheads=2)" }, { flux_multiheadattention(8, 2, .v_in = 6), "MultiHeadAttention((8, 8, 6) => 8 => 8; nheads=2)" },
        { flux_multiheadattention(8, 2, .qk = 4), "MultiHeadAttention(8 => 4 => 8; nheads=2)" }, { flux_multiheadattention(8, 2, .v = 4), "MultiHeadAttention(8 => (8, 4) => 8; nheads=2)" },
        { flux_multiheadattention(8, 2, .out = 5), "MultiHeadAttention(8 => 8 => 5; nheads=2)" }, { flux_multiheadattention(8, 4, .v = 16, .kv_heads = 2), "MultiHeadAttention(8 => (8, 16) => 8; nheads=4, kv_heads=2)" },
    };
#undef S
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) CHECK_STR(lines[i].m ? flux__line_of(lines[i].m).s : flux_error(), lines[i].line);
}

/* ------------------------------------------------------------------ summaries */

typedef struct { flux_layer base; flux_layer *inner, *unused; flux_tensor *gain; } gate;
static flux_tensor *gate_call(flux_layer *self, flux_tensor *x) { return flux_mul(flux_call(((gate *)self)->inner, x), ((gate *)self)->gain); }
FLUX_LAYER(gate, "Gate", gate_call, FLUX_CHILD(inner), FLUX_CHILD(unused), FLUX_PARAM(gain))

static const char *summary_of(flux_layer *m, flux_shape in) {
    const size_t n = flux_summary_text(m, in, shown, sizeof shown);
    return n == strlen(shown) ? shown : "the length is wrong";
}
static flux_layer *nested(flux_layer *m, int deep) {
    while (deep-- > 0) m = flux_chain(m);
    return m;
}

/* Whole tables, counted by hand: what is tied counts once, what is frozen has a star, what is not called a row. */
TEST(summaries) {
    flux_layer *tied = flux_dense(8, 8), *one = flux_dense(1, 1, .bias = FLUX_OFF);
    flux_layer *g = flux_new(gate, .inner = flux_dense(8, 8), .unused = flux_dense(8, 9), .gain = flux_ones(8));
    flux_freeze(tied), flux_freeze(one);
    CHECK_STR(summary_of(flux_chain(tied, g, flux_named("head", tied), flux_relu), FLUX_SHAPE(8, 2)),
              "layer                   output  parameters  mul-adds      bytes\n"
              "Chain                   8x2\n"
              "  head = Dense(8 => 8)  8x2             72*      128   64 bytes\n"
              "  Gate                  8x2              8\n"
              "    Dense(8 => 8)       8x2             72       128   64 bytes\n"
              "  head = Dense(8 => 8)  8x2              0*      128   64 bytes\n"
              "  relu                  8x2              0         0   64 bytes\n"
              "not called                              81\n"
              "total                                  233       384  256 bytes\n"
              "* frozen: flux_update leaves 72 parameters as they are\n"
              "its parameters take 932 bytes\n");
    CHECK_STR(summary_of(one, FLUX_SHAPE(1, 3)),
              "layer                      output  parameters  mul-adds     bytes\n"
              "Dense(1 => 1; bias=false)  1x3              1*        3  12 bytes\n"
              "total                                       1         3  12 bytes\n"
              "* frozen: flux_update leaves 1 parameter as it is\n"
              "its parameters take 4 bytes\n");
    CHECK_STR(summary_of(nested(flux_dense(8, 8), 8), FLUX_SHAPE(8, 7, 100)),     /* two blanks a level, */
              "layer                          output   parameters  mul-adds       bytes\n"
              "Chain                          8x7x100\n"
              "  Chain                        8x7x100\n"
              "    Chain                      8x7x100\n"
              "      Chain                    8x7x100\n"
              "        Chain                  8x7x100\n"
              "          Chain                8x7x100\n"
              "            Chain              8x7x100\n"
              "              Chain            8x7x100\n"
              "                Dense(8 => 8)  8x7x100          72    44_800  21.875 KiB\n"
              "total                                           72    44_800  21.875 KiB\n"
              "its parameters take 288 bytes\n");
    CHECK_STR(summary_of(nested(flux_dense(8, 8), 12), FLUX_SHAPE(8, 7, 100)),    /* or where some are deeper one, up to ten */
              "layer                    output   parameters  mul-adds       bytes\n"
              "Chain                    8x7x100\n"
              " Chain                   8x7x100\n"
              "  Chain                  8x7x100\n"
              "   Chain                 8x7x100\n"
              "    Chain                8x7x100\n"
              "     Chain               8x7x100\n"
              "      Chain              8x7x100\n"
              "       Chain             8x7x100\n"
              "        Chain            8x7x100\n"
              "         Chain           8x7x100\n"
              "          Chain          8x7x100\n"
              "          Chain          8x7x100\n"
              "          Dense(8 => 8)  8x7x100          72    44_800  21.875 KiB\n"
              "total                                     72    44_800  21.875 KiB\n"
              "its parameters take 288 bytes\n");
}

/* A name is cut before an output is, and large numbers are shortened. */
TEST(summaries_of_eighty_columns) {
    if (getenv("FLUX_EAGER")) SKIP("all is computed here");
    flux_layer *m = flux_named("a name that is long, \xc3\xa9 is one character, and so it goes on", flux_dense(8, 8)), *tall = flux_dense(1, 10000);
    CHECK_STR(summary_of(nested(m, 9), FLUX_SHAPE(8, 7, 100000000000)),
              "layer                         output            parameters  mul-adds       bytes\n"
              "Chain                         8x7x100000000000\n"
              " Chain                        8x7x100000000000\n"
              "  Chain                       8x7x100000000000\n"
              "   Chain                      8x7x100000000000\n"
              "    Chain                     8x7x100000000000\n"
              "     Chain                    8x7x100000000000\n"
              "      Chain                   8x7x100000000000\n"
              "       Chain                  8x7x100000000000\n"
              "        Chain                 8x7x100000000000\n"
              "         a name that is lon\xe2\x80\xa6  8x7x100000000000          72  4.48e+13  20.373 TiB\n"
              "total                                                   72  4.48e+13  20.373 TiB\n"
              "its parameters take 288 bytes\n");
    flux_print_ascii(true);
    CHECK_STR(summary_of(flux_chain(m), FLUX_SHAPE(8, 1000, 1000, 1000, 10, 10, 1, 1)),
              "layer                 output                     parameters  mul-adds      bytes\n"
              "Chain                 8x1000x1000x1000x10x10...\n"
              "  a name that is ...  8x1000x1000x1000x10x10...          72   6.4e+12  2.910 TiB\n"
              "total                                                    72   6.4e+12  2.910 TiB\n"
              "its parameters take 288 bytes\n");
    CHECK_STR(summary_of(tall, FLUX_SHAPE(1, 1000, 1000, 1, 1, 1, 1, 1)),
              "layer              output                 parameters        mul-adds       bytes\n"
              "Dense(1 => 10000)  10000x1000x1000x1x...      20_000  10_000_000_000  37.253 GiB\n"
              "total                                         20_000  10_000_000_000  37.253 GiB\n"
              "its parameters take 78.125 KiB\n");
    defaults();
}

#ifndef _WIN32
/* What stands on stdout from the first call to the second, which gives it. */
static FILE *taken;
static int real_stdout = -1;
static void take_stdout(void) {
    fflush(stdout);
    taken = tmpfile(), real_stdout = dup(1);
    if (taken) dup2(fileno(taken), 1);
}
static const char *taken_stdout(void) {
    static char got[1 << 14];
    fflush(stdout);
    dup2(real_stdout, 1);
    close(real_stdout);
    if (!taken) return "no temporary file";
    rewind(taken);
    got[fread(got, 1, sizeof got - 1, taken)] = 0;
    fclose(taken);
    return got;
}
static void profiled(void *x) { flux_eval(flux_exp((flux_tensor *)x)); }

/* Whatever is printed is its text: of tensors, models, loaders, states and gradients, and a newline; of a summary and a
   profile, which are several lines. NULL is an error, and prints nothing. */
TEST(what_is_printed_is_the_text) {
    flux_tensor *x = flux_eval(flux_randn(4, 6));
    flux_layer *m = flux_dense(4, 3);
    flux_loader *data = flux_dataloader(x, .batchsize = 2);
    flux_state *opt = flux_setup(flux_adam(), m);
    flux_grads *g = flux_gradient(flux_sum(flux_call(m, x)), m);
#define PRINTED(kind, object)                                                                                          \
    do {                                                                                                              \
        REQUIRE(flux_##kind##_text(object, shown, sizeof shown - 1) < sizeof shown - 1);                               \
        if (shown[strlen(shown) - 1] != '\n') strcat(shown, "\n");                                                    \
        take_stdout(), flux_print_##kind(object);                                                                      \
        CHECK_STR(taken_stdout(), shown);                                                                              \
        take_stdout();                                                                                                 \
        CHECK_ERROR(flux_print_##kind(NULL), "is NULL");                                                               \
        CHECK_STR(taken_stdout(), "");                                                                                 \
    } while (0)
    PRINTED(tensor, x);
    PRINTED(layer, m);
    PRINTED(loader, data);
    PRINTED(state, opt);
    PRINTED(grads, g);
    CHECK(flux_summary_text(m, FLUX_SHAPE(4, 6), shown, sizeof shown) > 100);
    take_stdout(), flux_summary(m, 4, 6);
    CHECK_STR(taken_stdout(), shown);
    take_stdout(), flux_profile(profiled, x);
    const char *got = taken_stdout();
    flux_profile_text(shown, sizeof shown);
    CHECK_STR(got, shown);
    CHECK(strstr(got, " 1 evaluations of 1 kernels\n") && strstr(got, "exp\n"));
    profiled(x);                          /* nothing is measured after the end */
    flux_profile_text(shown, sizeof shown);
    CHECK_STR(got, shown);
}
#endif

#ifndef _WIN32
/* ---- the line of a bar, found anew */

extern int setenv(const char *name, const char *value, int over);
extern int unsetenv(const char *name);
/* At most `most` characters of an ASCII text, of which the last stands for what is cut. */
static void cut_to(char *out, const char *text, int most) {
    if ((int)strlen(text) <= most) strcpy(out, text);
    else sprintf(out, "%.*s%s", most > 1 ? most - 1 : 0, text, most > 0 ? "\xE2\x80\xA6" : "");
}
static void wanted_bar(char *out, const char *label, int done, bool last, int columns) {
    char tail[300], name[100], bar[40];
    const int eta = done ? (int)(2.0 / done * (10 - done) + 0.5) : 0, have = (int)strlen(label), room = columns - 1 - 7, least = have < 12 ? have : 12;
    sprintf(tail, " %d/10  %d samples/s  %s 0:%02d  loss 37.5  rate 0.25", done, 2 * done, last ? "time" : "eta", last ? 2 : eta);
    if ((int)strlen(tail) > room - least) sprintf(tail, " %d/10  loss 37.5  rate 0.25", done);
    int wide = room - (int)strlen(tail), space, full;
    wide = wide > have ? have : wide;
    if (wide <= 3) wide = 0;
    space = room - wide - (int)strlen(tail);
    space = space < 0 ? 0 : space > 30 ? 30 : space;
    full = space * done / 10;
    for (int i = 0; i < space; i++) bar[i] = i < full ? '#' : '.';
    bar[space] = 0;
    cut_to(name, label, wide);
    out += sprintf(out, "\r%s %3d%% %s", name, 10 * done, bar);
    cut_to(out, tail, room > wide ? room - wide : 0);
}
TEST(bars_of_any_width) {
    static const char *const labels[] = { "", "e", "epoch", "of twelve ch", "of thirteen c", "the second part of the training of the larger model" };
    const char *was = getenv("COLUMNS");
    char width[20], want[400], got[400];
    for (int columns = 1; columns < 110; columns++)
        for (int k = 0; k < 6 * 8; k++) {
            const int done = (int[]){ 0, 3, 9, 10 }[k / 2 % 4];
            flux__progress bar;
            memset(&bar, 0, sizeof bar);
            strcpy(bar.label, labels[k / 8]), strcpy(bar.value[0].label, "loss"), strcpy(bar.value[1].label, "rate");
            bar.value[0].number = 37.5, bar.value[1].number = 0.25, bar.values = 2;
            bar.total = 10, bar.done = done, bar.samples = 4 * done;
            FILE *file = tmpfile();
            REQUIRE(file != NULL);
            snprintf(width, sizeof width, "%d", columns);
            setenv("COLUMNS", width, 1);
            fflush(stderr);
            const int real = dup(2);
            dup2(fileno(file), 2);
            bar.start = flux__now() - 2.001;
            flux__bar_draw(&bar, k % 2);
            const bool slow = flux__now() - bar.start > 2.05;
            dup2(real, 2), close(real);
            rewind(file);
            got[fread(got, 1, sizeof got - 1, file)] = 0;
            fclose(file);
            wanted_bar(want, labels[k / 8], done, k % 2, columns);
            if (!slow) CHECK_STR(got, want);
        }
    if (was) setenv("COLUMNS", was, 1);
    else unsetenv("COLUMNS");
}

/* What an epoch of training says of its validation: the weight stays 1, as the rate is next to nothing. */
static flux_tensor *loss_of_epoch(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static void said_by_training(char *got, size_t n, flux_train_opts o) {
    FILE *file = tmpfile();
    if (!CHECK(file != NULL)) return;
    fflush(stderr);
    const int real = dup(2);
    dup2(fileno(file), 2);
    CHECK(flux_train_with(o) == 0);
    fflush(stderr);
    dup2(real, 2), close(real);
    rewind(file);
    got[fread(got, 1, n - 1, file)] = 0;
    fclose(file);
}
TEST(what_training_says_of_its_validation) {
    char got[4000];
    flux_layer *m = flux_dense(1, 1, .init = flux_ones32), *mae = flux_named("off", flux_metric(flux_mae)), *mse = flux_metric(flux_mse);
    flux_tensor *x = flux_full(2, 1, 4), *y = flux_zeros(1, 4);
    flux_train_opts o = FLUX_OPTIONS(flux_train_opts, .loss = loss_of_epoch, .model = m, .epochs = 2, .progress = "fit");
    o.data = flux_dataloader(x, y, .batchsize = 2), o.validation = flux_dataloader(flux_full(3, 1, 2), flux_zeros(1, 2), .batchsize = 2);
    o.state = flux_setup(flux_descent(1e-20), m), o.metrics[0] = mae, o.metrics[1] = mse;
    said_by_training(got, sizeof got, o);
    CHECK(strstr(got, "fit 1/2: validation loss 9, off 3, mse 9, the best\n") && strstr(got, "fit 2/2: validation loss 9, off 3, mse 9\n"));
    CHECK(strstr(got, "loss 4") != NULL && strstr(got, "rate 1e-20") != NULL);
    o.monitor = mae;                      /* 3 is as good as 3, and no metric's name where there is none */
    o.metrics[1] = NULL;
    o.progress = "again";
    said_by_training(got, sizeof got, o);
    CHECK(strstr(got, "again 1/2: validation loss 9, off 3, the best\n") && strstr(got, "again 2/2: validation loss 9, off 3\n"));
    o.validation = NULL, o.monitor = NULL, o.metrics[0] = NULL;
    said_by_training(got, sizeof got, o);
    CHECK(strstr(got, "loss 4") && !strstr(got, "validation") && !strstr(got, "best"));
    o.progress = NULL;
    said_by_training(got, sizeof got, o);
    CHECK_STR(got, "");
}
#endif

/* With room for 0, 1, 2, ... allocations: an error or the text, and nothing lost or overrun. */
static size_t formula_text(void *x, char *out, size_t n) {
    flux_tensor *t = (flux_tensor *)x;
    return flux_tensor_text(flux_expr("sum(exp.(t*t').^2 ./ sqrt(2), dims=0)", t), out, n);
}
static void check_memory(size_t (*text)(void *object, char *out, size_t n), void *object) {
    static char whole[8192], part[8192];
    size_t need = text(object, whole, sizeof whole);
    int i = 0, failures = 0;
    for (; i < 500; i++) {
        flux_on_error(test_silent, NULL);
        flux_scope_open();
        flux__test_memory(i);
        size_t got = text(object, part, sizeof part);
        bool ran_out = flux__test_refused() > 0;
        flux__test_memory(-1);
        flux_scope_close();
        failures += flux_failed();
        if (!flux_failed()) CHECK(got == need && strcmp(part, whole) == 0);
        else CHECK(strstr(flux_error(), "memory") != NULL);
        flux_clear();
        flux_on_error(NULL, NULL);
        if (!ran_out) break;
    }
    CHECK(i < 500);
    if (!failures) fprintf(stderr, "(no allocation was made)\n");
}

TEST(out_of_memory) {
    check_memory(tensor_text, flux_eval(flux_randn(4, 3)));
    check_memory(tensor_text, flux_eval(flux_randn(100, 100, 20)));
    check_memory(layer_text, flux_chain(flux_dense(2, 3, flux_sigmoid), flux_dense(3, 2), flux_softmax));
    check_memory(layer_text, flux_chain(flux_new(affine, .weight = flux_ones(2)), flux_new(affine, .weight = flux_zeros(2)), flux_dense(1, 1)));
    check_memory(formula_text, flux_eval(flux_randn(3, 3)));
}

/* ---- pictures of the examples */

static void plot_of(const char *text, char *out, size_t n) {
    const double x[2] = { 0, 1 }, y[2] = { 1, 2 };
    const plot_series series = { text, PLOT_LINE, 0, 2, x, y };
    const char *path = "build/test_print.svg";
    size_t used = 0;
    CHECK(plot_svg(path, text, text, text, &series, 1) == 0);
    FILE *f = fopen(path, "r");
    if (f) used = fread(out, 1, n - 1, f), fclose(f);
    out[used] = 0;
    remove(path);
}

TEST(plots_are_xml_whatever_the_labels) {
    static char plain[20000], marked[20000];
    int five = 0;
    plot_of("abc", plain, sizeof plain);
    plot_of("a<b & \"c\"]]>\x01", marked, sizeof marked);
    for (const char *at = marked; (at = strstr(at, "a&lt;b &amp; \"c\"]]&gt; <")) != NULL; at++) five++;
    CHECK(five == 5 && !strstr(marked, "a<b") && !strstr(marked, "& "));
    CHECK(strstr(plain, ">abc<") && strstr(plain, "</svg>"));
}

TEST_MAIN()
