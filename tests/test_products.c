/* Matrix products and convolutions beside plain loops in double: sizes that no tile divides, all orders, batches, epilogues, in
   each format. On the software GPU also as other chips multiply: with tensor cores, matrix cores, or neither; each of these in
   a process of its own (`child`), since what the devices are is told to a process when it starts. */
#include "test.h"

typedef struct format { flux_dtype dtype; bool tf32; double in, out; } format;    /* of an operand's and a result's rounding */
static const format formats[] = {
    { FLUX_F32, false, 0, 1.2e-7 }, { FLUX_F16, false, 0, 1e-3 }, { FLUX_BF16, false, 0, 8e-3 }, { FLUX_F32, true, 1e-3, 1.2e-7 }, { FLUX_F64, false, 0, 1e-15 },
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* A software GPU as gfx908 differs from gfx90a in bf16's instruction alone, gfx1030 in all that has matrix cores, so not in f64,
   gfx1100 and gfx1201 from that one in half formats; and TF32 is NVIDIA's. Kernels that are another chip's to the letter are not run
   again. */
static bool as_before(const format *f) {
    const char *chip = getenv("SOFTGPU") ? getenv("SOFTGPU_ARCH") : NULL;
    if (!chip) return false;
    if (!strncmp(chip, "gfx11", 5) || !strncmp(chip, "gfx12", 5)) return f->out < 5e-4;
    return !strcmp(chip, "gfx908") ? f->dtype != FLUX_BF16 : !strcmp(chip, "gfx1030") ? f->tf32 || f->dtype == FLUX_F64 : false;
}

/* On a chip without TF32, a format that allows it is plain f32: its kernels are f32's to the letter where all orders are run. */
static bool as_f32(const format *f) {
    const char *chip = getenv("SOFTGPU") ? getenv("SOFTGPU_ARCH") : NULL;
    return chip && f->tf32 && (!strcmp(chip, "75") || !strncmp(chip, "gfx", 3));
}

/* As on another chip than the one that devices are of, every second case is run: its kernels have the other cores, not other
   edges. */
static bool as_on_another(int i) {
    return getenv("SOFTGPU") && getenv("SOFTGPU_ARCH") && i % 2;
}

static flux_device cpu(void) {
    flux_device d = { 0, 0 };
    return d;
}

/* Numbers of a format as a tensor on the device, and as doubles, which the caller frees. */
static flux_tensor *numbers(flux_shape s, flux_dtype t, double **copy) {
    flux_device was = test_device;
    flux_default_device(cpu());
    flux_tensor *x = flux_eval(flux_randn_with(s, FLUX_F32)), *wide = flux_to_dtype(flux_to_dtype(x, t), FLUX_F64);
    flux_default_device(was);
    const double *from = (const double *)flux_data(wide);
    *copy = (double *)malloc((size_t)flux_len(x) * 8);
    memcpy(*copy, from, (size_t)flux_len(x) * 8);
    return flux_eval(flux_to_dtype(flux_to(was, x), t));   /* a move makes f64 f32 */
}
static const double *doubles(flux_tensor *x) { return (const double *)flux_data(flux_to_dtype(flux_cpu(x), FLUX_F64)); }

/* How far the worst element lies beyond its tolerance, at most 1 if all is well: the products' magnitudes times what each
   is rounded by, and the result's own rounding, `steps` times. */
static double worst(const double *got, const double *want, const double *size, int64_t n, const format *f, int64_t inner, double steps) {
    double most = got ? 0 : 1e300, sums = f->dtype == FLUX_F64 ? 1.2e-16 : 6e-8;
    for (int64_t i = 0; got && i < n; i++) {
        double allowed = size[i] * (f->in * 1.01 + sums * (double)(inner + 4)) + (fabs(want[i]) + 1e-6) * f->out * steps, off = fabs(got[i] - want[i]) / allowed;
        if (!(off <= most)) most = off;
    }
    return most;
}

static void check_worst(double off, const char *what, const format *f, const int64_t *m) {
    char text[200];
    snprintf(text, sizeof text, "%s of %s%s, %d x %d x %d: %g times its tolerance", what, flux_dtype_name(f->dtype), f->tf32 ? " as tf32" : "", (int)m[0], (int)m[1],
             (int)m[2], off);
    test_check(off <= 1, __FILE__, __LINE__, text);
}

/* ---------------- products */

/* relu(a b + bias) * 2 + residual, of a batch; a and b as they are or from their transposes. */
static void product(const format *f, const int64_t *m, int64_t batch, int order, bool epilogue) {
    double *a, *b, *bias, *more;
    int64_t M = m[0], N = m[1], K = m[2], n = M * N * batch;
    flux_tensor *x = numbers(order & 1 ? FLUX_SHAPE(K, M, batch) : FLUX_SHAPE(M, K, batch), f->dtype, &a);
    flux_tensor *y = numbers(order & 2 ? FLUX_SHAPE(N, K, batch) : FLUX_SHAPE(K, N, batch), f->dtype, &b);
    flux_tensor *c = numbers(FLUX_SHAPE(M), f->dtype, &bias), *d = numbers(FLUX_SHAPE(M, N, batch), f->dtype, &more);
    double *want = (double *)malloc((size_t)n * 8), *size = (double *)malloc((size_t)n * 8);
    if (order & 1) x = flux_permute(x, 1, 0, 2);
    if (order & 2) y = flux_permute(y, 1, 0, 2);
    flux_tensor *z = flux_matmul(x, y);
    if (epilogue) z = flux_add(flux_mul(flux_relu(flux_add(z, c)), 2), d);
    for (int64_t at = 0; at < n; at++) {
        int64_t i = at % M, j = at / M % N, q = at / M / N;
        double sum = 0, all = 0;
        const double *row = a + q * M * K + (order & 1 ? i * K : i), *column = b + q * N * K + (order & 2 ? j : j * K);
        const int64_t next_a = order & 1 ? 1 : M, next_b = order & 2 ? N : 1;
        for (int64_t l = 0; l < K; l++) {
            const double p = row[l * next_a] * column[l * next_b];
            sum += p, all += fabs(p);
        }
        size[at] = all, want[at] = sum;
        if (!epilogue) continue;
        want[at] = (sum + bias[i] > 0 ? sum + bias[i] : 0) * 2 + more[at];
        size[at] = all * 2 + (fabs(sum) + fabs(bias[i]) + fabs(more[at])) * 4 * f->out / 6e-8 / (double)(K + 4);
    }
    check_worst(worst(doubles(z), want, size, n, f, K, epilogue ? 4 : 1.01), epilogue ? "a product with an epilogue" : "a product", f, m);
    free(a), free(b), free(bias), free(more), free(want), free(size);
}

static void all_products(void) {
    /* The last ones, with their batches, take every tile that a GPU's products have, and splits of the inner dim. Of a processor
       that is emulated, where each takes 50 times as long, they are left out: its tiles are in the sizes before them. */
    const bool emulated = getenv("EMULATED") != NULL;
    static const int64_t sizes[][4] = { { 1, 1, 1 }, { 33, 17, 5 }, { 70, 130, 66 }, { 40, 24, 72 }, { 136, 264, 40 }, { 19, 200, 131 }, { 128, 128, 64 },
                                         { 3, 2, 77 }, { 7, 1, 300 }, { 10, 67, 259 }, { 10, 65, 37 }, { 196, 9, 20 },
                                         { 5, 6, 1031 }, { 72, 40, 768 }, { 68, 132, 24, 64 }, { 65, 66, 19, 128 }, { 36, 40, 40, 128 }, { 33, 2, 21, 128 },
                                         { 72, 136, 40, 64 }, { 136, 72, 56, 64 }, { 40, 48, 72, 128 }, { 48, 40, 136, 128 } };
    for (int f = 0; f < FORMATS; f++) {
        if (as_before(&formats[f])) continue;
        flux_allow_tf32(formats[f].tf32);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int order = 0; order < 4; order++) FLUX_SCOPE {
                if (sizes[s][3] ? emulated || order != (f + (int)s) % 4 : as_f32(&formats[f]) || as_on_another((int)s + order + f) || test_left_out((int)s + order + f, 4)) continue;
                const int64_t batch = sizes[s][3] ? sizes[s][3] : 1 + (order + (int)s) % 3;
                product(&formats[f], sizes[s], batch, order, (order + (int)s) % 2);
            }
    }
    flux_allow_tf32(false);
}

/* Views whose steps are no multiple of anything, and one matrix for the whole batch. */
static void views(const format *f) {
    double *a, *b;
    const int64_t m[3] = { 24, 16, 40 };
    flux_tensor *x = numbers(FLUX_SHAPE(51, 41), f->dtype, &a), *y = numbers(FLUX_SHAPE(41, 16, 3), f->dtype, &b);
    flux_tensor *z = flux_matmul(flux_slice(flux_slice(x, 0, 3, 27), 1, 1, 41), flux_slice(y, 0, 1, 41));
    double want[24 * 16 * 3], size[24 * 16 * 3];
    for (int at = 0; at < 24 * 16 * 3; at++) {
        want[at] = size[at] = 0;
        for (int l = 0; l < 40; l++) {
            double p = a[at % 24 + 3 + (l + 1) * 51] * b[l + 1 + at / 24 * 41];
            want[at] += p, size[at] += fabs(p);
        }
    }
    check_worst(worst(doubles(z), want, size, 24 * 16 * 3, f, 40, 1.01), "a product of views", f, m);
    free(a), free(b);
}

static void all_views(void) {
    for (int f = 0; f < FORMATS; f++) {
        if (as_before(&formats[f]) || as_f32(&formats[f])) continue;
        flux_allow_tf32(formats[f].tf32);
        views(&formats[f]);
    }
    flux_allow_tf32(false);
}

/* ---------------- convolutions */

typedef struct convolution { int64_t size[2], in, out, batch, window[2], stride, pad, dilation; int groups; } convolution;

/* Adds up over all that meet: y += x w, and of y's gradient g: dx += g w, dw += g x. As crosscor, the kernel not flipped. */
static void convolve(const convolution *c, const int64_t *outs, const double *x, const double *w, const double *g, double **to, double **size) {
    int64_t each = c->in / c->groups, per = c->out / c->groups, area = c->window[0] * c->window[1];
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t o = 0; o < c->out; o++)
            for (int64_t q = 0; q < each * area; q++) {
                int64_t kx = q % c->window[0] * c->dilation - c->pad, ky = q / c->window[0] % c->window[1] * c->dilation - c->pad;
                int64_t plane = c->size[1] * (q / area + o / per * each + c->in * n), aw = q + o * each * area;
                for (int64_t oy = 0; oy < outs[1]; oy++) {
                    int64_t iy = oy * c->stride + ky, at_x = c->size[0] * (iy + plane), at_y = outs[0] * (oy + outs[1] * (o + c->out * n));
                    for (int64_t ox = 0, ix = kx; ox < outs[0] && iy >= 0 && iy < c->size[1]; ox++, ix += c->stride) {
                        if (ix < 0 || ix >= c->size[0]) continue;
                        const double vx = x[at_x + ix], vw = w[aw], vg = g[at_y + ox];
                        to[0][at_y + ox] += vx * vw, to[1][at_x + ix] += vg * vw, to[2][aw] += vg * vx;
                        size[0][at_y + ox] += fabs(vx * vw), size[1][at_x + ix] += fabs(vg * vw), size[2][aw] += fabs(vg * vx);
                    }
                }
            }
}

static void convolution_of(const format *f, const convolution *c) {
    static const char *const what[] = { "a convolution", "its gradient by data", "its gradient by weight" };
    double *x, *w, *g, *to[3], *size[3];
    int64_t outs[2], n[3], each = c->in / c->groups, inner = c->batch * c->size[0] * c->size[1] + c->out + each * c->window[0] * c->window[1];
    const int64_t m[3] = { c->size[0], c->size[1], c->in };
    for (int i = 0; i < 2; i++) outs[i] = (c->size[i] + 2 * c->pad - (c->window[i] - 1) * c->dilation - 1) / c->stride + 1;
    flux_tensor *tx = numbers(FLUX_SHAPE(c->size[0], c->size[1], c->in, c->batch), f->dtype, &x);
    flux_tensor *tw = numbers(FLUX_SHAPE(c->window[0], c->window[1], each, c->out), f->dtype, &w);
    flux_tensor *tg = numbers(FLUX_SHAPE(outs[0], outs[1], c->out, c->batch), f->dtype, &g);
    flux_tensor *y = flux_crosscor(tx, tw, .stride = FLUX_SHAPE(c->stride), .pad = FLUX_SHAPE(c->pad), .dilation = FLUX_SHAPE(c->dilation), .groups = c->groups);
    flux_grads *d = flux_gradient(flux_sum(flux_to_dtype(flux_mul(y, tg), FLUX_F32)), tx, tw);
    flux_tensor *got[3] = { y, flux_grad(d, tx), flux_grad(d, tw) };
    for (int i = 0; i < 3; i++) {
        n[i] = flux_len(got[i]);
        to[i] = (double *)calloc((size_t)n[i] + 1, 8), size[i] = (double *)calloc((size_t)n[i] + 1, 8);
    }
    convolve(c, outs, x, w, g, to, size);
    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; k < n[i] && i > 0; k++) size[i][k] *= 1 + f->out / 6e-8 / (double)inner;    /* parts are rounded before they are added */
        check_worst(worst(doubles(got[i]), to[i], size[i], n[i], f, inner, 2), what[i], f, m);
        free(to[i]), free(size[i]);
    }
    free(x), free(w), free(g);
}

static void all_convolutions(void) {
    static const convolution all[] = {
        { { 9, 7 }, 3, 5, 2, { 3, 3 }, 1, 1, 1, 1 }, { { 11, 10 }, 4, 6, 3, { 3, 2 }, 2, 1, 1, 2 }, { { 12, 9 }, 2, 33, 1, { 2, 3 }, 1, 2, 2, 1 },
        { { 5, 5 }, 8, 8, 1, { 1, 1 }, 1, 0, 1, 1 }, { { 40, 20 }, 5, 4, 1, { 5, 5 }, 1, 2, 1, 1 },
        { { 20, 16 }, 5, 7, 3, { 1, 1 }, 1, 0, 1, 1 }, { { 43, 12 }, 3, 4, 2, { 3, 3 }, 2, 1, 1, 1 },    /* weights turned once; two apart */
        { { 9, 7 }, 8, 6, 2, { 3, 3 }, 1, 1, 1, 1 }, { { 13, 11 }, 16, 6, 2, { 3, 2 }, 2, 1, 2, 2 },        /* channels of 16 bytes */
        { { 21, 7 }, 24, 40, 1, { 2, 3 }, 1, 2, 1, 1 }, { { 9, 8 }, 8, 33, 256, { 2, 2 }, 1, 1, 1, 1 },      /* across tiles; many narrow ones */
        /* windows read where they lie, since rows of the result are whole tiles */
        { { 32, 9 }, 16, 13, 2, { 3, 3 }, 1, 1, 1, 1 }, { { 34, 6 }, 8, 33, 1, { 3, 2 }, 1, 0, 1, 1 }, { { 64, 5 }, 4, 1, 2, { 5, 5 }, 1, 2, 1, 1 },
        { { 32, 8 }, 12, 10, 3, { 3, 3 }, 1, 2, 2, 2 }, { { 96, 3 }, 17, 64, 1, { 1, 3 }, 1, 1, 1, 1 },
        /* with fewer multiplications: one image, several, sizes that no tile divides, channels in chunks */
        { { 20, 16 }, 16, 24, 1, { 3, 3 }, 1, 1, 1, 1 }, { { 13, 11 }, 19, 17, 2, { 3, 3 }, 1, 1, 1, 1 }, { { 41, 7 }, 18, 16, 1, { 3, 3 }, 1, 0, 1, 1 },
        { { 17, 16 }, 270, 16, 1, { 3, 3 }, 1, 1, 1, 1 },
    };
    for (int f = 0; f < FORMATS; f++) {
        if (as_before(&formats[f]) || as_f32(&formats[f])) continue;
        flux_allow_tf32(formats[f].tf32);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) FLUX_SCOPE {
            if (getenv("EMULATED") && all[i].batch > 3) continue;
            if (!as_on_another((int)i + f) && !test_left_out((int)i + f, 3)) convolution_of(&formats[f], &all[i]);
        }
    }
    flux_allow_tf32(false);
}

/* ---------------- here, and as other chips do it */

static void on_all_chips(const char *name, void (*run)(void)) {
    static const char *const nvidia[] = { "75", "80", NULL }, *const amd[] = { "gfx908", "gfx90a", "gfx1030", "gfx1100", "gfx1201", NULL };
    const char *backend = test_device.backend ? getenv("FLUX_TEST_DEVICE") : NULL, *const *chip = backend && !strcmp(backend, "CUDA") ? nvidia : amd;
    flux_seed(11);
    if (!backend || !getenv("SOFTGPU")) {
        run();
        return;
    }
    for (int i = 1; *chip; chip++, i++) {
        char text[100], words[40];
        if (!test_rest() && test_left_out(i, 2)) continue;     /* of a maker those with another kind of cores */
        if (i > 3 && run != all_products) continue;    /* which differ in how a warp multiplies alone */
        snprintf(text, sizeof text, "%s as on %s", name, *chip);
        snprintf(words, sizeof words, "child %s", name);
        test_check(test_as_chip(*chip, words, i % 2 != 0), __FILE__, __LINE__, text);
    }
}

TEST(a_convolution_takes_no_memory_for_its_windows) {
    enum { SIDE = 48, IN = 8, OUT = 4, WINDOW = 5 };
    for (int half = 0; half < 2; half++) {
        flux_dtype t = half && test_device.backend ? FLUX_F16 : FLUX_F32;
        flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(SIDE, SIDE, IN, 2), t)), *w = flux_eval(flux_to_dtype(flux_randn(WINDOW, WINDOW, IN, OUT), t));
        int64_t image = SIDE * SIDE * IN * 2 * (t == FLUX_F16 ? 2 : 4), before = flux_mem_stats(test_device).live;
        flux_tensor *y = flux_conv(x, w, .pad = FLUX_SAMEPAD);
        flux_grads *g = flux_gradient(flux_sum(flux_to_dtype(flux_square(y), FLUX_F32)), x, w);
        REQUIRE(flux_eval(y) && flux_eval(flux_grad(g, w)) && flux_eval(flux_grad(g, x)));
        CHECK(flux_mem_stats(test_device).peak - before < 8 * image);       /* the windows would be 25 */
    }
}

TEST(products) { on_all_chips("products", all_products); }
TEST(products_of_views) { on_all_chips("views", all_views); }
TEST(convolutions) { on_all_chips("convolutions", all_convolutions); }

/* Sizes for which sm_90 multiplies by warpgroups, where a real compiler's PTX is run or on a card: tiles of 64, 128 and 256
   rows, edges, more rounds than its four stages, and a split inner dim, which alone is run where a software GPU has source. */
TEST(products_of_warpgroups) {
    static const int64_t sizes[][4] = { { 120, 72, 264, 64 }, { 200, 72, 136, 64 }, { 504, 72, 72, 64 }, { 136, 72, 8200, 2 } };
    if (!test_device.backend) SKIP("about GPUs");
    const bool source = getenv("SOFTGPU") && !getenv("SOFTGPU_PTX");
    for (int f = 1; f <= 2; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int order = 0; order < 4; order++) FLUX_SCOPE {
                if (source ? s < 3 || order != f : test_left_out((int)s + order + f, 4)) continue;
                product(&formats[f], sizes[s], sizes[s][3], order, (order + (int)s) % 2);
            }
}

/* The same step again and again, by its graph at last, though operands lie elsewhere each time. */
TEST(products_of_warpgroups_again) {
    if (!test_device.backend) SKIP("about GPUs");
    double *a, *b;
    flux_tensor *w = numbers(FLUX_SHAPE(72, 1024), FLUX_F16, &b), *kept[6];
    for (int step = 0; step < 6; step++) {
        flux_tensor *x = kept[step] = numbers(FLUX_SHAPE(1024, 72), FLUX_F16, &a);
        flux_tensor *y = flux_matmul(x, w);
        const double *sums = doubles(flux_sum(flux_to_dtype(y, FLUX_F32), 1));
        double off = sums ? 0 : 1;
        for (int i = 0; i < 1024 && sums; i++) {
            double want = 0, size = 0;
            for (int l = 0; l < 72; l++)
                for (int j = 0; j < 1024; j++) want += a[i + l * 1024] * b[l + j * 72], size += fabs(a[i + l * 1024] * b[l + j * 72]);
            off = fmax(off, fabs(sums[i] - want) / size);
        }
        CHECK(off < 1e-3);
        free(a);
    }
    free(b);
}

/* Large enough that the CPU copies either operand, in panels of one width after another; a few columns of each are checked. */
TEST(products_that_copy_their_operands) {
    static const int64_t mnk[][3] = { { 1100, 299, 300 }, { 530, 402, 260 }, { 2100, 640, 130 } };
    if (test_device.backend) SKIP("about how the CPU copies operands");
    for (int s = 0; s < 3; s++)
        for (int order = 0; order < 8; order++) FLUX_SCOPE {
            if (test_left_out(3 * s + order, 8)) continue;      /* one of each size, in another order */
            const format *f = &formats[order & 4 ? FORMATS - 1 : 0];
            int64_t m = mnk[s][0], n = mnk[s][1], k = mnk[s][2], wrong = 0;
            double *a, *b;
            flux_tensor *x = numbers(order & 1 ? FLUX_SHAPE(k, m) : FLUX_SHAPE(m, k), f->dtype, &a), *y = numbers(order & 2 ? FLUX_SHAPE(n, k) : FLUX_SHAPE(k, n), f->dtype, &b);
            const double *c = doubles(flux_matmul(order & 1 ? flux_transpose(x) : x, order & 2 ? flux_transpose(y) : y));
            for (int64_t j = 0; j < n; j += 5)
                for (int64_t i = 0; i < m; i += 7) {
                    double sum = 0;
                    for (int64_t l = 0; l < k; l++) sum += a[order & 1 ? l + i * k : i + l * m] * b[order & 2 ? j + l * n : l + j * k];
                    wrong += !c || !(fabs(c[i + j * m] - sum) < (order & 4 ? 1e-11 : 1e-3));
                }
            CHECK(wrong == 0);
            free(a), free(b);
        }
}

/* A product with a vector goes over its matrix in another way than one with more columns, and gives the same bits. */
TEST(a_vector_is_as_a_column_of_a_matrix) {
    static const int64_t rows[] = { 9, 32, 37, 130, 1056, 2100 }, inners[] = { 1, 7, 8, 17, 512, 801, 1500 };
    if (test_device.backend) SKIP("about sums on the CPU");
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < 6; i++)
            for (size_t j = 0; j < 7; j++) {
                flux_tensor *a, *b, *bias, *one, *more;
                if (test_left_out((int)(i + j + 2 * t), 5)) continue;
                FLUX_SCOPE {
                    a = flux_eval(flux_randn_with(FLUX_SHAPE(rows[i], inners[j]), t ? FLUX_F64 : FLUX_F32));
                    b = flux_eval(flux_randn_with(FLUX_SHAPE(inners[j], 5), t ? FLUX_F64 : FLUX_F32));
                    bias = flux_eval(flux_randn_with(FLUX_SHAPE(rows[i]), t ? FLUX_F64 : FLUX_F32));
                    for (int k = 0; k < 2; k++) {
                        one = flux_matmul(a, flux_select(b, 1, 3)), more = flux_select(flux_matmul(a, b), 1, 3);
                        if (k) one = flux_relu(flux_add(one, bias)), more = flux_relu(flux_add(more, bias));
                        CHECK(!memcmp(flux_data(one), flux_data(more), (size_t)rows[i] * (t ? 8 : 4)));
                    }
                }
            }
}

/* A matrix of a half format times a vector is the product of float32, rounded once: of any size, of slices, transposed, followed by an
   operation or not, on any number of threads. */
static int64_t between(int64_t lo, int64_t hi) { return lo + (int64_t)flux_item(flux_mul(flux_rand(1), hi - lo + 0.999)); }
TEST(a_half_format_times_a_vector_is_as_exact_as_float32) {
    ONLY_ON_CPU();
    flux_seed(8);
    for (int i = 0; i < 120; i++) FLUX_SCOPE {
        if (test_left_out(i, 11)) continue;
        const flux_dtype type = i % 2 ? FLUX_F16 : FLUX_BF16;
        const int64_t m = between(1, i % 5 ? 300 : 2500), k = between(1, i % 7 ? 300 : 2000), skip = between(0, 2) * (i % 3 == 0);
        const bool turned = between(0, 3) == 0, flat = between(0, 1) > 0, more = between(0, 1) > 0;
        flux_tensor *all = flux_eval(flux_to_dtype(flux_randn(turned ? k : m + skip + 3, turned ? m + skip + 3 : k), type));
        flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(k), type)), *y[2];
        if (!flat) x = flux_reshape(x, k, 1);
        for (int wide = 0; wide < 2; wide++) {
            flux_tensor *of = flux_eval(flux_to_dtype(all, wide ? FLUX_F32 : type)), *w = flux_slice(turned ? flux_transpose(of) : of, 0, skip, skip + m);
            flux_threads(wide ? 1 : 1 + i % 3);
            y[wide] = flux_to_dtype(flux_matmul(w, flux_eval(flux_to_dtype(x, wide ? FLUX_F32 : type))), type);
            if (more) y[wide] = flux_relu(flux_add(y[wide], 1));
            y[wide] = flux_eval(flux_to_dtype(y[wide], FLUX_F32));
        }
        if (!CHECK(flux_item(flux_sum(flux_ne(y[0], y[1]))) == 0))
            fprintf(stderr, "    %s, %lld x %lld%s%s, from row %lld, %d threads\n", flux_dtype_name(type), (long long)m, (long long)k, turned ? ", transposed" : "",
                    more ? ", with more" : "", (long long)skip, 1 + i % 3);
    }
    flux_threads(0);
}

/* The same of few columns: f16 has the bits of the product of f32, rounded; bf16 has them where no instruction multiplies it as it is. */
TEST(a_half_format_times_few_columns_is_the_product_of_float32) {
    ONLY_ON_CPU();
    flux_seed(9);
    for (int i = 0; i < 150; i++) FLUX_SCOPE {
        if (test_left_out(i, 11)) continue;
        const flux_dtype type = i % 2 ? FLUX_F16 : FLUX_BF16;
        const int64_t m = between(1, i % 5 ? 200 : 2500), k = between(1, i % 7 ? 200 : 1200), n = between(2, i % 3 ? 12 : 70), skip = between(0, 2);
        const bool more = between(0, 1) > 0, turned = between(0, 3) == 0;
        flux_tensor *all = flux_eval(flux_to_dtype(flux_randn(m + skip + 3, k), type)), *y[2];
        flux_tensor *x = flux_eval(flux_to_dtype(turned ? flux_randn(n, k) : flux_randn(k, n), type));
        for (int wide = 0; wide < 2; wide++) {
            const flux_dtype t = wide ? FLUX_F32 : type;
            flux_tensor *w = flux_slice(flux_eval(flux_to_dtype(all, t)), 0, skip, skip + m), *z = flux_eval(flux_to_dtype(x, t));
            flux_threads(wide ? 1 : 1 + i % 3);
            y[wide] = flux_to_dtype(flux_matmul(w, turned ? flux_transpose(z) : z), type);
            if (more) y[wide] = flux_relu(flux_add(y[wide], 1));
            y[wide] = flux_eval(flux_to_dtype(y[wide], FLUX_F32));
        }
        double apart = flux_item(flux_max(flux_abs(flux_sub(y[0], y[1])))), most = 0;
#ifdef FLUX_BLAS
        const bool same_sums = false;
#else
        const bool same_sums = type == FLUX_F16 || getenv("FLUX_SIMD") != NULL;
#endif
        if (!same_sums) most = (type == FLUX_F16 ? 0x1p-10 : 0x1p-7) * flux_item(flux_max(flux_abs(y[1])));
        if (!CHECK(apart <= most))
            fprintf(stderr, "    %s, %lld x %lld by %lld%s%s, from row %lld, %d threads: %g apart\n", flux_dtype_name(type), (long long)m, (long long)k, (long long)n,
                    turned ? " turned" : "", more ? ", with more" : "", (long long)skip, 1 + i % 3, apart);
    }
    flux_threads(0);
}

/* A large matrix that is multiplied by few columns is read in its own order (flux__gemm_stream), with the same bits as where so many
   columns are multiplied that it is not: on any number of threads, with rows that are no whole tiles or vectors, as a part of a larger
   matrix, with an epilogue. */
TEST(a_large_matrix_is_read_in_its_own_order) {
    static const int64_t columns[] = { 2, 3, 8, 13, 31, 96, 150, 287 }, sizes[] = { 1024, 1003, 256, 300, 768, 517 };
    if (test_device.backend) SKIP("about sums on the CPU");
    for (int of = 0; of < 48; of++) FLUX_SCOPE {
        if (test_left_out(of, 23)) continue;
        const bool f64 = of % 3 == 1, epilogue = of & 2;
        const flux_dtype dtype = f64 ? FLUX_F64 : FLUX_F32;
        const int64_t rows = sizes[of % 6], n = columns[of / 6], k = (1 << 20) / (rows * (f64 ? 8 : 4)) + 1 + of % 5 * 300;
        const size_t bytes = (size_t)(rows * n) * (f64 ? 8 : 4);
        flux_tensor *a = flux_slice(flux_eval(flux_randn_with(FLUX_SHAPE(rows + of % 4 * 7, k), dtype)), 0, 0, rows);
        flux_tensor *b = flux_eval(flux_randn_with(FLUX_SHAPE(k, 400), dtype)), *bias = flux_eval(flux_randn_with(FLUX_SHAPE(rows), dtype));
        flux_tensor *few = flux_eval(flux_copy(flux_slice(b, 1, 0, n))), *out[3];
        for (int i = 0; i < 3; i++) {
            flux_threads(i == 2 ? 3 : 1);
            out[i] = flux_matmul(a, i ? few : b);
            if (epilogue) out[i] = flux_relu(flux_add(out[i], bias));
            flux_eval(out[i]);
        }
        flux_threads(1);
        const void *want = flux_data(flux_slice(out[0], 1, 0, n)), *got = flux_data(out[1]), *shared = flux_data(out[2]);
        CHECK(want && got && shared && !memcmp(got, want, bytes) && !memcmp(shared, want, bytes));
    }
}

/* The gradient of a convolution's weights beside plain loops in double: of windows with three taps a row, or six, the CPU reads the
   images where they lie (flux__gemm_triple_places), of others copies. The same bits on any number of threads, whatever the stride,
   dilation and padding. Of a large gradient a chunk of the sum ends within a row and spans images. */
TEST(gradients_of_weights_read_images_in_place) {
    static const int64_t taps[][2] = { { 3, 3 }, { 3, 1 }, { 3, 2 }, { 6, 2 }, { 4, 3 } };
    if (test_device.backend) SKIP("about how the CPU reads images");
    flux_seed(27);
    for (int of = 0; of < 40; of++) FLUX_SCOPE {
        if (test_left_out(of, 11)) continue;
        const int64_t *kernel = taps[of % 5], images = of % 4 ? 1 : of % 8 + 4, columns = of == 16 ? 360 : 240,
                      in = images == 4 ? columns / (kernel[0] * kernel[1]) / 4 * 4 : 4 + of % 3 * 4,
                      out = images == 4 ? 256 : 32 + of % 5 / 4 * 32, step = 1 + of % 7 / 5,
                      apart = 1 + of % 5 / 3, pad = of % 3 / 2, high = (images > 1 ? 16 : 30) + of % 23,
                      wide = (images > 1 ? 13 : 21) * step + of % 11 + (kernel[0] - 1) * apart;
        const flux_dtype dtype = of % 6 == 5 ? FLUX_F64 : FLUX_F32;
        flux_tensor *x = flux_eval(flux_randn_with(FLUX_SHAPE(wide, high, in, images), dtype)), *d[3];
        flux_tensor *w = flux_eval(flux_randn_with(FLUX_SHAPE(kernel[0], kernel[1], in, out), dtype));
        flux_tensor *y = flux_crosscor(x, w, .stride = FLUX_SHAPE(step), .pad = FLUX_SHAPE(pad), .dilation = FLUX_SHAPE(apart));
        const int64_t across = flux_dim(y, 0), down = flux_dim(y, 1);
        const bool last = of % 3 == 1 || of == 32;    /* whether channels are neighbours in the gradient that comes back */
        flux_tensor *g = flux_eval(flux_randn_with(last ? FLUX_SHAPE(out, across, down, images) : FLUX_SHAPE(across, down, out, images), dtype));
        if (last) g = flux_permute(g, 1, 2, 0, 3);
        for (int i = 0; i < 3; i++) {
            flux_threads(i == 0 ? 1 : i == 1 ? 2 : 5);
            d[i] = flux_eval(flux_grad(flux_gradient(flux_sum(flux_mul(y, g)), w), w));
        }
        flux_threads(0);
        const size_t bytes = (size_t)(kernel[0] * kernel[1] * in * out) * (dtype == FLUX_F64 ? 8 : 4);
        CHECK(flux_data(d[0]) && !memcmp(flux_data(d[0]), flux_data(d[1]), bytes) && !memcmp(flux_data(d[0]), flux_data(d[2]), bytes));
        const double *gy = doubles(g), *image = doubles(x), *got = doubles(d[0]);
        double worst = 0;
        for (int64_t at = of % 3; at < kernel[0] * kernel[1] * in * out; at += images == 4 ? 37 : 3) {
            const int64_t kx = at % kernel[0], ky = at / kernel[0] % kernel[1], from = at / (kernel[0] * kernel[1]) % in,
                          to = at / (kernel[0] * kernel[1] * in);
            double sum = 0, size = 0;
            for (int64_t p = 0; p < across * down * images; p++) {
                const int64_t ox = p % across, oy = p / across % down, n = p / (across * down), ix = ox * step + kx * apart - pad,
                              iy = oy * step + ky * apart - pad;
                if (ix < 0 || ix >= wide || iy < 0 || iy >= high) continue;
                const double part = gy[ox + across * (oy + down * (to + out * n))] * image[ix + wide * (iy + high * (from + in * n))];
                sum += part, size += fabs(part);
            }
            worst = fmax(worst, fabs(got[at] - sum) / (size + 1e-9));
        }
        CHECK(worst < (dtype == FLUX_F64 ? 1e-14 : 2e-6));
    }
}

/* Products are divided and packed in other ways by older instruction sets: some of the tests again, as on processors that end there. */
TEST(older_instruction_sets) {
    static const char *const sets[] = { "avx2", "base" }, *const parts[] = { "gradients_of", "products_that", "a_vector", "a_half" };
    char command[5000];
    if (test_device.backend) SKIP("about the CPU's instructions");
    if (getenv("FLUX_SIMD") || getenv("EMULATED")) SKIP("run by another instruction set already");
    for (int i = 0; i < 8; i++) {
        snprintf(command, sizeof command, "FLUX_SIMD=%s '%s' %s >/dev/null", sets[i / 4], test_program, parts[i % 4]);
        CHECK(system(command) == 0);
    }
}

/* The sum of a large product and a tensor that is read in another order: its dims are the product's, one of them as two. */
TEST(a_product_whose_dim_is_two_of_its_sum) {
    if (test_device.backend) SKIP("about what the CPU's products take, which is long on a software GPU");
    static const int orders[3][3] = { { 1, 0, 2 }, { 2, 1, 0 }, { 0, 2, 1 } };
    for (int of = 0; of < 9; of++) FLUX_SCOPE {
        const int *at = orders[of / 3], first = of % 3 == 0 ? 256 : of % 3 == 1 ? 2 : 1;
        const int64_t dim[3] = { first, 512 / first, 512 };
        int back[3];
        for (int i = 0; i < 3; i++) back[at[i]] = i;
        flux_tensor *c = flux_matmul(flux_eval(flux_rand(512, 8)), flux_eval(flux_rand(8, 512)));
        flux_tensor *beside = flux_permute(flux_eval(flux_rand(dim[at[0]], dim[at[1]], dim[at[2]])), back[0], back[1], back[2]);
        const float *got = flux_floats(flux_eval(flux_add(flux_reshape(c, dim[0], dim[1], dim[2]), beside)));
        const float *a = flux_floats(flux_eval(c)), *b = flux_floats(flux_eval(flux_copy(beside)));
        int bad = 0;
        for (int i = 0; got && a && b && i < 512 * 512; i++) bad += fabs((double)got[i] - (double)a[i] - (double)b[i]) > 1e-5;
        CHECK(got && a && b && bad == 0);
    }
}

TEST(tf32_only_if_allowed) {
    double *a, *b;
    flux_tensor *x = numbers(FLUX_SHAPE(64, 64), FLUX_F32, &a), *y = numbers(FLUX_SHAPE(64, 64), FLUX_F32, &b);
    const char *backend = getenv("FLUX_TEST_DEVICE");
    for (int allowed = 0; allowed < 3; allowed++) {
        flux_allow_tf32(allowed == 1);                     /* and off again */
        const double *z = doubles(flux_matmul(x, y));
        double most = 0;
        REQUIRE(z != NULL);
        for (int at = 0; at < 64 * 64; at++) {
            double sum = 0;
            for (int l = 0; l < 64; l++) sum += a[at % 64 + l * 64] * b[l + at / 64 * 64];
            if (fabs(sum - z[at]) > most) most = fabs(sum - z[at]);
        }
        if (allowed != 1) CHECK(most < 2e-5);
        else if (backend && !strcmp(backend, "CUDA") && getenv("SOFTGPU")) CHECK(most > 1e-4 && most < 0.05);
    }
    free(a), free(b);
}

#define main run_tests
static int run_tests(int argc, char **argv);
TEST_MAIN()
#undef main
int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } children[] = {
        { "products", all_products }, { "views", all_views }, { "convolutions", all_convolutions } };
    if (argc != 3 || strcmp(argv[1], "child")) return run_tests(argc, argv);
    if (!test_go_to_device() || !test_device.backend) return 3;
    flux_seed(11);
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        if (strcmp(children[i].name, argv[2])) continue;
        children[i].run();
        if (flux_failed()) test_fail(__FILE__, __LINE__, flux_error());
        return test_bad || !test_checks;
    }
    return 3;
}
