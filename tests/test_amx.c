/* Products of bf16 by AMX's tiles, which here are memory: each instruction does as Intel's Software Developer's Manual, volume 2,
   says, so the test needs no such processor. Where there is one, its instructions are compared with these. */
#define _GNU_SOURCE
#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

enum { TILES = 8 };
typedef struct tile { int rows, bytes; unsigned char at[16][64]; } tile;
static __thread tile tiles[TILES];
static __thread int configured;
static int tiles_used;

/* A subnormal number as 0 of its sign. */
#define FLUSHED(x) (fabsf(x) < FLT_MIN ? copysignf(0, x) : (x))
/* What most of the test's time is spent in has no checks of sanitizers. */
#define UNCHECKED no_sanitize("address", "undefined")
/* `words` words of two bf16 numbers as floats: the first of word i is even[i], the second odd[i]. */
__attribute__((UNCHECKED)) static void of_bf16(const unsigned char *from, int words, float *even, float *odd) {
    for (int i = 0; i < words; i++) {
        uint32_t two, first, second;
        memcpy(&two, from + 4 * i, 4);
        first = two << 16, second = two & 0xffff0000u;
        memcpy(&even[i], &first, 4), memcpy(&odd[i], &second, 4);
        even[i] = FLUSHED(even[i]), odd[i] = FLUSHED(odd[i]);
    }
}
static void tile_set(const void *config) {
    const unsigned char *p = (const unsigned char *)config;
    configured = p[0] == 1 && p[1] == 0;
    for (int i = 0; i < TILES; i++) {
        uint16_t bytes;
        memcpy(&bytes, p + 16 + 2 * i, 2);
        memset(&tiles[i], 0, sizeof tiles[i]);
        tiles[i].bytes = bytes, tiles[i].rows = p[48 + i];
        if (bytes > 64 || tiles[i].rows > 16 || !bytes != !tiles[i].rows) abort();
    }
}
static void tile_release(void) { configured = 0; }
static tile *tile_of(int t) {
    if (!configured || !tiles[t].rows) abort();
    return &tiles[t];
}
static void tile_zero(int t) { memset(tile_of(t)->at, 0, sizeof tiles[t].at); }
static void tile_load(int t, const void *from, int64_t step) {
    tile_zero(t);
    for (int r = 0; r < tiles[t].rows; r++) memcpy(tiles[t].at[r], (const char *)from + r * step, (size_t)tiles[t].bytes);
}
static void tile_store(int t, void *to, int64_t step) {
    for (int r = 0; r < tile_of(t)->rows; r++) memcpy((char *)to + r * step, tiles[t].at[r], (size_t)tiles[t].bytes);
}
/* sum[i] += x y[i], fused, for 16 sums; `multiply_here` is for a processor that has the instruction. */
#define MULTIPLY(name, attributes)                                                                  \
    __attribute__(attributes) static void name(float x, const float *y, float *sum) {               \
        for (int i = 0; i < 16; i++) {                                                              \
            const float s = fmaf(x, y[i], sum[i]);                                                  \
            sum[i] = FLUSHED(s);                                                                    \
        }                                                                                           \
    }
MULTIPLY(multiply_anywhere, (UNCHECKED))
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__TINYC__)
MULTIPLY(multiply_here, (UNCHECKED, target("fma")))
static int has_fma(void) { return __builtin_cpu_supports("fma") != 0; }
#else
#define multiply_here multiply_anywhere
static int has_fma(void) { return 0; }
#endif

/* TDPBF16PS: sums of even and of odd places by themselves, fused, to nearest, without subnormal numbers. */
static void tile_dot(int c, int a, int b) {
    const tile *x = tile_of(a), *y = tile_of(b);
    tile *z = tile_of(c);
    float y_even[16][16], y_odd[16][16];
    if (z->rows != x->rows || x->bytes != 4 * y->rows || z->bytes != y->bytes) abort();
    void (*multiply)(float, const float *, float *) = has_fma() ? multiply_here : multiply_anywhere;
    for (int k = 0; k < y->rows; k++) of_bf16(y->at[k], 16, y_even[k], y_odd[k]);
    for (int m = 0; m < z->rows; m++) {
        float x_even[16], x_odd[16], even[16] = { 0 }, odd[16] = { 0 };
        of_bf16(x->at[m], 16, x_even, x_odd);
        for (int k = 0; k < y->rows; k++) multiply(x_even[k], y_even[k], even), multiply(x_odd[k], y_odd[k], odd);
        for (int n = 0; n < z->bytes / 4; n++) {
            float was;
            memcpy(&was, z->at[m] + 4 * n, 4);
            const float sum = even[n] + odd[n], all = FLUSHED(was) + FLUSHED(sum), now = FLUSHED(all);
            memcpy(z->at[m] + 4 * n, &now, 4);
        }
    }
    tiles_used = 1;
}
#define FLUX__AMX_FN
#define FLUX__AMX_HERE() true
#define FLUX__AMX_SET(tiles) tile_set(tiles);
#define FLUX__AMX_RELEASE() tile_release();
#define FLUX__AMX_ZERO(t) tile_zero(t);
#define FLUX__AMX_LOAD(t, from, step) tile_load(t, from, step);
#define FLUX__AMX_STORE(t, to, step) tile_store(t, to, step);
#define FLUX__AMX_DOT(c, a, b) tile_dot(c, a, b);
#define FLUX__CONV_MEMORY 500000
#define FLUX__CONV_BAND 40000
#define FLUX_IMPLEMENTATION
#include "test.h"
#include "half_convs.h"

#if !FLUX__AMX
TEST(there_are_no_tiles) { SKIP("they need Linux on x86-64, and gcc 11 or clang 12 (Debian: gcc)"); }
#else

enum { PLAIN, TURNED, STEPPED, FLIPPED, ODD, LAYOUTS };
/* m x n random numbers as bf16 in some layout: rows contiguous; columns; every second row; columns backwards; a part of an odd number
   of rows. */
static flux_tensor *laid_out(int64_t m, int64_t n, int layout) {
    if (layout == TURNED) return flux_transpose(flux_eval(flux_to_dtype(flux_randn(n, m), FLUX_BF16)));
    if (layout == STEPPED) return flux_slice_step(flux_eval(flux_to_dtype(flux_randn(2 * m, n), FLUX_BF16)), 0, 0, 2 * m, 2);
    if (layout == FLIPPED) return flux_flip(flux_eval(flux_to_dtype(flux_randn(m, n), FLUX_BF16)), 1);
    if (layout == ODD) return flux_slice(flux_eval(flux_to_dtype(flux_randn(m + 3 - m % 2, n), FLUX_BF16)), 0, 1, m + 1);
    return flux_eval(flux_to_dtype(flux_randn(m, n), FLUX_BF16));
}
/* The greatest error of a product y = a b of m x k by k x n in units of what rounding may do: a sum of k products in f32, and one
   rounding to y's dtype. */
static double worst(flux_tensor *a, flux_tensor *b, flux_tensor *y) {
    flux_tensor *x = flux_to_dtype(a, FLUX_F64), *z = flux_to_dtype(b, FLUX_F64), *want = flux_matmul(x, z),
                *size = flux_matmul(flux_abs(x), flux_abs(z));
    const double most = flux_dtype_of(y) == FLUX_BF16 ? 1 / 256.0 : 0;
    flux_tensor *error = flux_abs(flux_sub(flux_to_dtype(y, FLUX_F64), want));
    return flux_item(flux_max(flux_div(error, flux_add(flux_add(flux_mul(size, 1e-6), flux_mul(flux_abs(want), most)), 1e-30))));
}
static bool same(flux_tensor *a, flux_tensor *b) { return flux_item(flux_all(flux_eq(a, b))) != 0; }

TEST(products_of_any_shape) {
    static const int64_t sides[] = { 8, 16, 17, 31, 32, 33, 48, 63, 65, 100, 300 }, ks[] = { 24, 27, 32, 33, 34, 63, 64, 65, 97, 544, 1100 };
    flux_seed(1);
    for (int i = 0; i < 60; i++) FLUX_SCOPE {
        const int64_t m = sides[i * 7 % 11], k = ks[i % 9], side = sides[(i + i / 11) % 11],
                      n = m * side < 256 ? 256 / m : side;
        flux_tensor *a = laid_out(m, k, i % LAYOUTS), *b = laid_out(k, n, i / LAYOUTS % LAYOUTS), *y[2];
        tiles_used = 0;
        for (int t = 0; t < 2; t++) {
            flux_threads(t ? 3 : 1);
            y[t] = flux_eval(flux_matmul(a, b));
        }
        CHECK(tiles_used == 1);
        CHECK(same(y[0], y[1]));
        CHECK(worst(a, b, y[0]) <= 1);
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(y[0], flux_matmul(flux_copy(a), flux_copy(b)))))), 0, 0);
    }
    flux_threads(0);
}

/* A weight's panels are kept from call to call, of any layout, of more than a part of k, on any number of threads; the results are those
   of the panels that each call packs. */
TEST(panels_of_weights_are_kept) {
    static const int64_t sizes[][3] = { { 70, 90, 41 }, { 300, 1100, 33 }, { 64, 2100, 300 }, { 33, 2048, 8 }, { 545, 64, 260 } };
    const int64_t least = flux__kept_least;
    long kept = 0;
    flux__kept_least = 1 << 12;
    flux_seed(4);
    for (int i = 0; i < 15; i++) FLUX_SCOPE {
        const int64_t *s = sizes[i % 5];
        flux_tensor *w = laid_out(s[0], s[1], i % LAYOUTS), *x = laid_out(s[1], s[2], PLAIN), *want = flux_eval(flux_matmul(w, x));
        for (int call = 0; call < 6; call++) FLUX_INFER {
            flux_threads(1 + (i + call) % 3);
            CHECK(same(flux_eval(flux_matmul(w, x)), want));
        }
        kept += flux__kept_bytes > 0;
    }
    CHECK(flux__kept_bytes == 0 && (flux__eager() || kept >= 10));
    flux__kept_least = least;
    flux_threads(0);
}

/* The weight of a convolution by taps, too, one copy for images whose rows lie side by side and far apart: results are those without
   a copy. */
TEST(weights_of_convolutions_are_kept) {
    long kept = 0;
    flux_seed(8);
    for (int i = 0; i < 4; i++) FLUX_SCOPE {
        const int64_t size = i & 1 ? 5 : 3, wide = 5 * size;
        flux_tensor *all = flux_eval(flux_to_dtype(flux_randn(4 * wide, wide, 32, 2), FLUX_BF16)), *part = flux_slice(all, 0, 0, wide);
        flux_tensor *x = flux_eval(flux_copy(part)), *w = flux_eval(flux_to_dtype(flux_randn(size, size, 32, 40), FLUX_BF16));
        for (int call = 0; call < 8; call++) FLUX_INFER {
            flux_threads(1 + (i + call) % 3);
            flux_tensor *fresh = flux_eval(flux_neg(flux_eval(flux_neg(w)))), *want = flux_eval(flux_conv(x, fresh));
            CHECK(same(flux_eval(flux_conv(x, w)), want));
            CHECK(same(flux_eval(flux_conv(part, w)), want));
            if (i & 2) CHECK(same(flux_eval(flux_crosscor(x, w)), flux_eval(flux_crosscor(x, fresh))));
            /* of every second column, there are other copies */
            CHECK(same(flux_eval(flux_conv(x, flux_slice_step(w, 3, 0, 40, 2))), flux_slice_step(want, 2, 0, 40, 2)));
        }
        kept += flux__kept_bytes == 2 * size * size * 32 * ((i & 2 ? 2 : 1) * 64 + 32);
    }
    CHECK(flux__kept_bytes == 0 && (flux__eager() || kept == 4));
    flux_threads(0);
}

/* With an epilogue, over batches of which one side may be shared, and where the sum itself is wanted in f32. */
TEST(products_with_more_about_them) {
    flux_seed(2);
    flux_tensor *w = laid_out(70, 90, PLAIN), *x = laid_out(90, 41, PLAIN), *bias = flux_eval(flux_to_dtype(flux_randn(70), FLUX_BF16));
    flux_tensor *y = flux_eval(flux_relu(flux_add(flux_matmul(w, x), bias))), *plain = flux_eval(flux_matmul(w, x));
    CHECK(worst(w, x, plain) <= 1);
    flux_tensor *want = flux_relu(flux_add(flux_matmul(flux_to_dtype(w, FLUX_F32), flux_to_dtype(x, FLUX_F32)), bias));
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F32), want)))) < 0.3);
    CHECK(flux_item(flux_mean(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F32), want)))) < 0.03);
    flux_tensor *many = flux_eval(flux_to_dtype(flux_randn(90, 20, 5), FLUX_BF16)), *all = flux_eval(flux_matmul(w, many));
    for (int i = 0; i < 5; i++) {
        flux_tensor *one = flux_reshape(flux_slice(many, 2, i, i + 1), 90, 20);
        CHECK(same(flux_reshape(flux_slice(all, 2, i, i + 1), 70, 20), flux_eval(flux_matmul(w, one))));
        CHECK(worst(w, one, flux_matmul(w, one)) <= 1);
    }
    CHECK(worst(w, x, flux_to_dtype(flux_zeros(70, 41), FLUX_BF16)) > 1);     /* the measure sees an error */
}

/* Gradients by both sides, whose products have other layouts. */
TEST(gradients_go_by_tiles) {
    flux_seed(3);
    flux_tensor *w = laid_out(48, 64, PLAIN), *x = laid_out(64, 40, PLAIN), *g = laid_out(48, 40, PLAIN);
    flux_grads *d = flux_gradient(flux_sum(flux_mul(flux_matmul(w, x), g)), w, x);
    CHECK(worst(g, flux_transpose(x), flux_grad(d, w)) <= 1);
    CHECK(worst(flux_transpose(w), g, flux_grad(d, x)) <= 1);
}

/* Attention in bf16, and its gradients, beside float32's of the same numbers: whole tiles of queries, keys and features and cut ones,
   several tiles, two kinds of mask; the same on any number of threads. */
TEST(attention_goes_by_tiles) {
    static const struct { int64_t d, dv, heads, queries, keys; bool causal, mask, tiles; } cases[] = {
        { 64, 64, 2, 150, 150, true, false, true }, { 40, 72, 1, 33, 90, false, true, true }, { 32, 32, 2, 64, 65, false, false, true },
        { 64, 32, 1, 45, 333, true, false, true },  { 64, 64, 1, 3, 90, false, false, false }, { 24, 64, 1, 45, 90, false, false, true },
        { 20, 64, 1, 45, 90, false, false, false } };
    flux_seed(9);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) FLUX_SCOPE {
        const int64_t heads = cases[i].heads, queries = cases[i].queries, keys = cases[i].keys;
        flux_tensor *x[3] = { flux_randn(cases[i].d * heads, queries, 2), flux_randn(cases[i].d * heads, keys, 2), flux_randn(cases[i].dv * heads, keys, 2) };
        flux_tensor *g = flux_eval(flux_to_dtype(flux_randn(cases[i].dv * heads, queries, 2), FLUX_BF16)), *all[2][4], *again[4] = { NULL };
        flux_tensor *mask = cases[i].mask ? flux_eval(flux_gt(flux_rand(keys, queries), 0.4)) : NULL;
        for (int k = 0; k < 3; k++) x[k] = flux_eval(flux_to_dtype(x[k], FLUX_BF16));
        for (int wide = 0; wide < 3; wide++) {
            flux_tensor *y[3], **to = wide < 2 ? all[wide] : again;
            for (int k = 0; k < 3; k++) y[k] = wide == 1 ? flux_eval(flux_to_dtype(x[k], FLUX_F32)) : x[k];
            flux_threads(wide < 2 ? 1 : 3);
            tiles_used = 0;
            flux_tensor *out = flux_nth(flux_dot_product_attention(y[0], y[1], y[2], .nheads = (int)heads, .mask = mask, .causal = cases[i].causal), 0);
            flux_grads *d = flux_gradient(flux_sum(flux_mul(out, g)), y[0], y[1], y[2]);
            to[0] = flux_eval(out);
            CHECK(flux__eager() || tiles_used == (wide != 1 && cases[i].tiles));
            for (int k = 0; k < 3; k++) to[k + 1] = flux_eval(flux_grad(d, y[k]));
        }
        for (int k = 0; k < 4; k++) {
            flux_tensor *apart = flux_abs(flux_sub(flux_to_dtype(all[0][k], FLUX_F32), all[1][k]));
            const double most = flux_item(flux_max(flux_abs(all[1][k])));
            CHECK_NEAR(flux_item(flux_max(apart)) / most, 0, 1.2e-2);
            CHECK(same(all[0][k], again[k]));
        }
    }
    flux_threads(0);
}

/* Of a convolution the windows are collected part by part. */
TEST(convolutions_go_by_tiles) {
    int by_tiles = 0;
    flux_seed(5);
    for (int i = 0; i < 16; i++) FLUX_SCOPE {
        half_conv c = half_convs_any(FLUX_BF16);
        tiles_used = 0;
        if (!half_convs_agree(&c)) fprintf(stderr, "    convolution %d\n", i);
        by_tiles += tiles_used;
    }
    CHECK(by_tiles >= 5);
    flux_threads(0);
}

/* Whether their images and weights lie as they are or are views, whose elements are put in order first. */
TEST(convolutions_by_taps_read_views) {
    flux_seed(6);
    for (int i = 0; i < 14; i++) FLUX_SCOPE {                  /* rows of 4 * size windows; two of one less go the other way */
        const int64_t size = i < 8 || i == 12 ? 3 : 5, wide = 5 * size - 1 - (i >= 12);
        half_conv c;
        memset((void *)&c, 0, sizeof c);
        c.dtype = FLUX_BF16, c.flip = i < 8 ? i / 4 : (i ^ i / 2) & 1;
        c.o.x = flux_eval(flux_to_dtype(flux_randn(wide, size + 5, 32, 2), FLUX_BF16));
        c.o.weight = flux_eval(flux_to_dtype(flux_randn(size, size, 32, 32), FLUX_BF16));
        if (i & 1) c.o.x = half_convs_turned(c.o.x, 0);
        if (i & 2) c.o.weight = half_convs_turned(c.o.weight, 2);
        if (!half_convs_agree(&c)) fprintf(stderr, "    convolution %d\n", i);
    }
    flux_threads(0);
}

static flux_tensor *padded_conv(flux_tensor *x, flux_tensor *w, int64_t by) {
    return flux_conv(x, w, .pad = FLUX_SHAPE(1, 1), .stride = FLUX_SHAPE(by, by));
}
static flux_tensor *where_finite(flux_tensor *x) { return flux_lt(flux_abs(x), (double)INFINITY); }

/* Operations behind a convolution see what would have been stored; images of several tasks and bands, of many channels and few, by
   windows one and two steps apart, and with NaN and infinity, which spread to their own windows alone. */
TEST(convolutions_by_taps_with_more_about_them) {
    flux_seed(7);
    for (int i = 0; i < 10; i++) FLUX_SCOPE {
        const int64_t wide = i % 4 < 2 ? 60 : 33, high = i % 4 < 2 ? 45 : 13, out = i % 2 ? 40 : 3, in = i < 4 ? 32 : i < 8 ? 5 : 40,
                      by = i < 4 || i == 5 ? 1 : 2;
        flux_tensor *x = flux_randn(wide, high, in, 2), *bias = flux_eval(flux_to_dtype(flux_randn(1, 1, out), FLUX_BF16)), *y[2];
        if (i % 4 < 2) x = flux_where(flux_gt(x, 3), (double)NAN, flux_where(flux_lt(x, -3), (double)INFINITY, x));
        x = flux_eval(flux_to_dtype(x, FLUX_BF16));
        flux_tensor *w = flux_eval(flux_to_dtype(flux_randn(3, 3, in, out), FLUX_BF16));
        for (int t = 0; t < 2; t++) {
            flux_threads(t ? 3 : 1);
            tiles_used = 0;
            flux_tensor *plain = flux_eval(padded_conv(x, w, by));
            CHECK(tiles_used == 1);
            y[t] = flux_eval(flux_relu(flux_add(padded_conv(x, w, by), bias)));
            CHECK(half_convs_same(y[t], flux_relu(flux_add(plain, bias))));
            CHECK(half_convs_same(plain, padded_conv(flux_copy(x), w, by)));
        }
        CHECK(half_convs_same(y[0], y[1]));
        flux_tensor *wide_x = flux_to_dtype(x, FLUX_F32), *wide_w = flux_to_dtype(w, FLUX_F32);
        CHECK(same(where_finite(padded_conv(x, w, by)), where_finite(padded_conv(wide_x, wide_w, by))));
    }
    flux_threads(0);
}

/* Where there are enough positions, gradients by weights are computed from images. */
TEST(gradients_by_weights_from_images) {
    flux_seed(8);
    for (int i = 0; i < 12; i++) FLUX_SCOPE {
        const bool many = i > 5;             /* small samples that are taken together; else parts of sums, added up later */
        const int64_t size = i % 3 == 2 ? 5 : 3 - (i == 4), wide = 20 + 7 * (i % 4), samples = many ? 4 + i % 3 : 1 + i % 5,
                      high = 2100 / wide / (many ? 4 : 1) + i % 5, in = many ? 34 + i % 3 : i == 3 ? 37 : 3 + i, groups = i == 10 ? 2 : 1,
                      out = 9 + 6 * i;
        half_conv c;
        memset((void *)&c, 0, sizeof c);
        c.dtype = FLUX_BF16, c.flip = i & 1, c.o.groups = (int)groups, c.o.pad = FLUX_SHAPE(size / 2, size / 2);
        c.o.x = flux_eval(flux_to_dtype(flux_randn(wide, high, in * groups, samples), FLUX_BF16));
        c.o.weight = flux_eval(flux_to_dtype(flux_randn(size, size, in, out + out % groups), FLUX_BF16));
        if (i % 4 == 1) c.o.x = half_convs_turned(c.o.x, 0);
        if (i % 4 == 2) c.o.x = flux_flip(c.o.x, 0);
        if (i % 4 == 3) c.o.pad = FLUX_SHAPE(0, 0), c.o.x = half_convs_turned(flux_flip(c.o.x, 1), 1);
        if (!half_convs_agree(&c)) fprintf(stderr, "    convolution %d\n", i);
    }
    flux_threads(0);
}

/* What is infinite or no number comes to the taps that see it, and to no others. */
TEST(gradients_by_weights_of_infinite_images) {
    flux_seed(9);
    for (int i = 0; i < 2; i++) FLUX_SCOPE {
        flux_tensor *corner = flux_pad(flux_full(i ? (double)NAN : (double)INFINITY, 1, 1, 1, 1), 0, 49, 0, 49, 0, 3, 4);
        flux_tensor *x = flux_eval(flux_to_dtype(flux_add(flux_randn(50, 50, 8, 1), corner), FLUX_BF16));
        flux_tensor *w = flux_eval(flux_to_dtype(flux_randn(3, 3, 8, 32), FLUX_BF16)), *y = flux_crosscor(x, w);
        flux_tensor *ones = flux_eval(flux_to_dtype(flux_ones(48, 48, 32, 1), FLUX_BF16));
        flux_tensor *dw = flux_to_dtype(flux_grad(flux_gradient(flux_sum(flux_mul(y, ones)), w), w), FLUX_F32);
        const float *v = flux_floats(dw);
        for (int64_t at = 0; at < flux_len(dw); at++) CHECK(!isfinite(v[at]) == (at % 72 == 35));
    }
}

#if FLUX__X86
/* What the processor's tiles give, if it has any, the tiles above give. */
TEST(tiles_of_memory_are_the_processors) {
    if (flux__simd() < 4) SKIP("this processor has no AMX with BF16, or the system does not allow it");
    static const struct { uint8_t head[16]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {
        { 1 }, { 48, 64, 48 }, { 13, 13, 16 } };
    uint16_t x[13][32], y[16][24];
    float z[13][12], mine[13][12];
    flux_seed(4);
    for (int round = 0; round < 40; round++) FLUX_SCOPE {
        const double *random = (const double *)flux_data(flux_eval(flux_to_dtype(flux_rand(1000), FLUX_F64)));
        for (int i = 0; i < 13 * 32; i++) x[i / 32][i % 32] = (uint16_t)(random[i] * (round % 2 ? 65536 : 256) + (round % 2 ? 0 : 0x3f80));
        for (int i = 0; i < 16 * 24; i++) y[i / 24][i % 24] = (uint16_t)(random[500 + i] * 65536);
        for (int i = 0; i < 13 * 12; i++) z[i / 12][i % 12] = (float)(random[i] - 0.5);
        memcpy(mine, z, sizeof z);
        tile_set(&shape);
        tile_load(0, mine, 48), tile_load(1, x, 64), tile_load(2, y, 48);
        tile_dot(0, 1, 2);
        tile_store(0, mine, 48);
        tile_release();
        __asm__ volatile("ldtilecfg %0\n\ttileloadd (%1,%4,1), %%tmm0\n\ttileloadd (%2,%5,1), %%tmm1\n\t"
                         "tileloadd (%3,%4,1), %%tmm2\n\ttdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\ttilestored %%tmm0, (%1,%4,1)\n\ttilerelease"
                         : : "m"(shape), "r"(z), "r"(x), "r"(y), "r"((int64_t)48), "r"((int64_t)64) : "memory");
        for (int i = 0; i < 13 * 12; i++) {
            const float a = z[i / 12][i % 12], b = mine[i / 12][i % 12];
            CHECK(isnan(a) ? isnan(b) : memcmp(&a, &b, 4) == 0);
        }
    }
}
#endif
#endif
TEST_MAIN()
