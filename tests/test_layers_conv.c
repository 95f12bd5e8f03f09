/* Layers of images: PyTorch's values and gradients, finite differences, golden values, running statistics, text, sizes,
   files, PyTorch's own files, and what must be refused. */
#include "test.h"
#include "fixtures/conv.h"

#define S FLUX_SHAPE
static flux_tensor *fill(flux_shape s, double a, double k) {
    static double v[4096];
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    for (int64_t i = 0; i < n; i++) v[i] = k * sin(a + (double)i);
    return flux_from_with(v, FLUX_F64, s);
}
#define FILL(a, k, ...) fill(S(__VA_ARGS__), a, k)

static const char *text_of(flux_layer *m) {
    static char text[300];
    size_t n = m && m->type->text ? m->type->text(m, text, sizeof text) : 0;
    return n && n < sizeof text ? text : "?";
}
static flux_tensor *loss_of(flux_tensor *y) { return flux_sum(flux_square(y)); }
static void set(flux_layer *m, const char *path, double a, double k) {
    CHECK(flux_set_param(m, path, fill(flux_shape_of(flux_param(m, path)), a, k)) == 0);
}
static bool shape_is(flux_shape s, int n, const int64_t *dim) {
    bool same = s.ndim == n;
    for (int i = 0; same && i < n; i++) same = s.dim[i] == dim[i];
    return same;
}
#define SHAPE_IS(s, ...) shape_is(s, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[]){ __VA_ARGS__ })

/* ---- convolution as PyTorch has it, in float64 and float32 */

#define CONV(name, layer, ...)                                                                       \
    TEST(name##_as_pytorch) {                                                                        \
        flux_layer *m = flux_f64(layer);                                                             \
        flux_tensor *x = FILL(0.3, 1.1, __VA_ARGS__);                                                \
        set(m, "weight", 0.7, 0.6);                                                                  \
        set(m, "bias", 0.2, 0.4);                                                                    \
        flux_tensor *y = flux_call(m, x);                                                            \
        CHECK_DATA(y, fix_##name, 2e-8);                                                             \
        flux_grads *g = flux_gradient(loss_of(y), m, x);                                             \
        CHECK_DATA(flux_grad(g, x), fix_##name##_gX, 2e-8);                                          \
        CHECK_DATA(flux_grad(g, flux_weight(m)), fix_##name##_gW, 2e-8);                             \
        CHECK_DATA(flux_grad(g, flux_bias(m)), fix_##name##_gb, 2e-8);                               \
        flux_shape in = flux_shape_of(x), out = flux_shape_of(y);                                    \
        CHECK(shape_is(flux_outputsize_with(m, in), out.ndim, out.dim));                               \
        m = flux_f32(m), x = flux_to_dtype(x, FLUX_F32), y = flux_call(m, x);                        \
        CHECK(flux_dtype_of(y) == FLUX_F32);                                                         \
        CHECK_DATA(y, fix_##name, 2e-6);                                                             \
        g = flux_gradient(loss_of(y), m, x);                                                         \
        CHECK_DATA(flux_grad(g, x), fix_##name##_gX, 1e-5);                                          \
        CHECK_DATA(flux_grad(g, flux_weight(m)), fix_##name##_gW, 2e-5);                             \
        CHECK_DATA(flux_grad(g, flux_bias(m)), fix_##name##_gb, 2e-5);                               \
    }
CONV(conv1, flux_conv_layer(S(3), 2, 3, .stride = S(2), .pad = S(1)), 7, 2, 2)
CONV(conv2, flux_conv_layer(S(3, 2), 2, 3), 5, 4, 2, 2)
CONV(crosscor, flux_crosscor_layer(S(3, 2), 2, 3), 5, 4, 2, 2)
CONV(strided, flux_conv_layer(S(3, 2), 2, 3, .stride = S(2), .pad = S(1, 1, 1, 0), .dilation = S(1, 2)), 7, 6, 2, 1)
CONV(grouped, flux_conv_layer(S(3, 3), 2, 4, .pad = S(1), .groups = 2), 3, 4, 2, 2)
CONV(same, flux_conv_layer(S(4, 2), 1, 2, .pad = FLUX_SAMEPAD), 5, 4, 1, 1)
CONV(conv3, flux_conv_layer(S(2, 2, 2), 2, 2, .pad = S(1, 0, 0, 0, 0, 1)), 3, 4, 3, 2, 1)
CONV(pointwise, flux_conv_layer(S(1, 1), 3, 2), 3, 2, 3, 2)
CONV(transpose, flux_conv_transpose_layer(S(3, 2), 2, 3), 4, 3, 2, 2)
CONV(transpose1, flux_conv_transpose_layer(S(3), 2, 4, .stride = S(3), .pad = S(1), .outpad = S(1), .dilation = S(2), .groups = 2), 4, 2, 1)
CONV(transpose2, flux_conv_transpose_layer(S(3, 2), 2, 3, .stride = S(2), .pad = S(1, 0, 0, 1), .outpad = S(1, 0)), 4, 3, 2, 2)

TEST(depthwise_is_grouped) {
    flux_layer *m = flux_f64(flux_depthwiseconv(S(3, 3), 2, 4, .pad = S(1)));
    set(m, "weight", 0.7, 0.6);
    set(m, "bias", 0.2, 0.4);
    CHECK_DATA(flux_call(m, FILL(0.3, 1.1, 3, 4, 2, 2)), fix_grouped, 2e-8);
    CHECK_STR(text_of(m), "Conv((3, 3), 2 => 4, pad=1, groups=2)");
}

TEST(conv_flips_crosscor_does_not) {
    float x[] = { 1, 2, 3, 4, 5 }, w[] = { 1, 0, -1 };
    flux_layer *a = flux_conv_layer(S(3), 1, 1, .bias = FLUX_OFF), *b = flux_crosscor_layer(S(3), 1, 1);
    CHECK(flux_set_param(a, "weight", flux_from(w, 3, 1, 1)) == 0 && flux_set_param(b, "weight", flux_from(w, 3, 1, 1)) == 0);
    CHECK_DATA(flux_call(a, flux_from(x, 5, 1, 1)), ((double[]){ 2, 2, 2 }), 0);
    CHECK_DATA(flux_call(b, flux_from(x, 5, 1, 1)), ((double[]){ -2, -2, -2 }), 0);
    CHECK_DATA(flux_weight(a), ((double[]){ 1, 0, -1 }), 0);
}

/* The name without _layer, called with a window first. */
TEST(window_first_is_the_layer) {
    char text[600], expect[600];
    flux_layer_text(flux_chain(flux_conv(S(3, 3), 1, 2, flux_relu, .stride = S(2)), flux_crosscor(S(1, 1), 2, 3),
                               flux_conv_transpose(S(2, 2), 3, 1), flux_maxpool(S(2, 2), .pad = S(1)), flux_meanpool(S(2, 2), S(1)),
                               flux_lpnormpool(S(2, 2), .p = 3)), text, sizeof text);
    flux_layer_text(flux_chain(flux_conv_layer(S(3, 3), 1, 2, flux_relu, .stride = S(2)), flux_crosscor_layer(S(1, 1), 2, 3),
                               flux_conv_transpose_layer(S(2, 2), 3, 1), flux_maxpool_layer(S(2, 2), .pad = S(1)),
                               flux_meanpool_layer(S(2, 2), S(1)), flux_lpnormpool_layer(S(2, 2), .p = 3)), expect, sizeof expect);
    CHECK(strcmp(text, expect) == 0);
    flux_tensor *x = flux_reshape(flux_arange(0, 5, 1), 5, 1, 1);
    CHECK_DATA(flux_maxpool((flux_abs)(x), S(2)), ((double[]){ 1, 3 }), 0);
}

TEST(conv_samepad_keeps_sizes) {
    CHECK(SHAPE_IS(flux_outputsize(flux_conv_layer(S(5, 4), 1, 2, .pad = FLUX_SAMEPAD), 28, 27, 1, 3), 28, 27, 2, 3));
    CHECK(SHAPE_IS(flux_outputsize(flux_conv_layer(S(3, 3), 1, 2, .pad = FLUX_SAMEPAD, .stride = S(2)), 28, 27, 1, 3), 14, 14, 2, 3));
    CHECK(SHAPE_IS(flux_outputsize(flux_conv_layer(S(3), 1, 2, .pad = FLUX_SAMEPAD, .dilation = S(3)), 20, 1, 3), 20, 2, 3));
    CHECK(SHAPE_IS(flux_outputsize(flux_conv_transpose_layer(S(4, 5), 1, 2, .pad = FLUX_SAMEPAD, .stride = S(2, 3)), 7, 5, 1, 3), 14, 15, 2, 3));
    CHECK(SHAPE_IS(flux_outputsize(flux_conv_transpose_layer(S(2), 1, 2, .pad = FLUX_SAMEPAD, .stride = S(4)), 7, 1, 3), 26, 2, 3));  /* nothing to take away */
    CHECK(SHAPE_IS(flux_outputsize(flux_maxpool_layer(S(3, 3), .pad = FLUX_SAMEPAD, .stride = S(1)), 8, 9, 2, 1), 8, 9, 2, 1));
    CHECK(SHAPE_IS(flux_outputsize(flux_meanpool_layer(S(2, 2)), 9, 8, 2, 1), 4, 4, 2, 1));
    CHECK(SHAPE_IS(flux_shape_of(flux_conv(flux_ones(9, 9, 1, 1), flux_ones(3, 3, 1, 1), .pad = FLUX_SAMEPAD)), 9, 9, 1, 1));
}

TEST(conv_text) {
    CHECK_STR(text_of(flux_conv_layer(S(3, 3), 3, 16, flux_relu)), "Conv((3, 3), 3 => 16, relu)");
    CHECK_STR(text_of(flux_conv_layer(S(3, 3), 4, 16, flux_relu, .pad = S(1), .stride = S(2), .dilation = S(2), .groups = 4, .bias = FLUX_OFF)),
              "Conv((3, 3), 4 => 16, relu, pad=1, stride=2, dilation=2, groups=4, bias=false)");
    CHECK_STR(text_of(flux_conv_layer(S(5), 1, 2, .pad = S(2, 1))), "Conv((5,), 1 => 2, pad=(2, 1))");
    CHECK_STR(text_of(flux_conv_layer(S(5, 3), 1, 2, .pad = FLUX_SAMEPAD)), "Conv((5, 3), 1 => 2, pad=(2, 1))");
    CHECK_STR(text_of(flux_crosscor_layer(S(2, 2), 1, 2, .pad = FLUX_SAMEPAD, .stride = S(1, 2))),
              "CrossCor((2, 2), 1 => 2, pad=(1, 0, 1, 0), stride=(1, 2))");
    CHECK_STR(text_of(flux_conv_transpose_layer(S(2, 2), 3, 4, .outpad = S(1, 0), .stride = S(2))),
              "ConvTranspose((2, 2), 3 => 4, stride=2, outpad=(1, 0))");
}

TEST(conv_weights_and_names) {
    flux_layer *m = flux_chain(flux_conv_layer(S(3, 3), 4, 8, .groups = 2), flux_batchnorm(8), flux_conv_transpose_layer(S(3, 3), 8, 4, .groups = 2));
    CHECK(SHAPE_IS(flux_shape_of(flux_param(m, "layers.0.weight")), 3, 3, 2, 8));
    CHECK(SHAPE_IS(flux_shape_of(flux_param(m, "layers.2.weight")), 3, 3, 2, 8));
    CHECK(flux_dim(flux_param(m, "layers.2.bias"), 0) == 4 && flux_dim(flux_param(m, "layers.1.beta"), 0) == 8);
    CHECK(flux_param(m, "layers.1.mean") && flux_param(m, "layers.1.var") && flux_params(m, NULL, 0) == 6);
    double most = flux_item(flux_max(flux_abs(flux_param(m, "layers.0.weight")))), bound = sqrt(6.0 / (9 * 2 + 9 * 8));
    CHECK(most <= bound && most > 0.9 * bound);
    CHECK(flux_weight(flux_conv_layer(S(2, 2), 1, 1, .init = flux_ones32)) && flux_item(flux_sum(flux_weight(flux_conv_layer(S(2, 2), 1, 1, .init = flux_ones32)))) == 4);
}

static flux_tensor *fn_of_layer(flux_tensor *x, void *m) { return flux_sum(flux_sin(flux_call((flux_layer *)m, x))); }
/* The gradient's own gradient: of a sum that weighs each element otherwise. */
static flux_tensor *fn_of_gradient(flux_tensor *x, void *m) {
    flux_tensor *g = flux_grad(flux_gradient(fn_of_layer(x, m), x), x);
    return flux_sum(flux_mul(g, fill(flux_shape_of(x), 2.0, 1.0)));
}
typedef struct by_param { flux_layer *m; const char *path; flux_tensor *x; } by_param;
static flux_tensor *fn_of_param(flux_tensor *p, void *user) {
    by_param *b = (by_param *)user;
    if (flux_set_param(b->m, b->path, p) != 0) return NULL;
    return fn_of_layer(b->x, b->m);
}
/* By the weight, of what the gradient by x adds up to. */
static flux_tensor *fn_mixed(flux_tensor *p, void *user) {
    by_param *b = (by_param *)user;
    if (flux_set_param(b->m, b->path, p) != 0) return NULL;
    return flux_sum(flux_mul(flux_grad(flux_gradient(fn_of_layer(b->x, b->m), b->x), b->x), fill(flux_shape_of(b->x), 2.0, 1.0)));
}
static flux_tensor *fn_mixed_back(flux_tensor *x, void *user) {
    by_param *b = (by_param *)user;
    flux_tensor *w = flux_param(b->m, b->path);
    flux_tensor *g = flux_grad(flux_gradient(fn_of_layer(x, b->m), w), w);
    return flux_sum(flux_mul(g, fill(flux_shape_of(w), 2.5, 1.0)));
}

static void check_gradients(flux_layer *m, flux_tensor *x, bool second) {
    flux_tensor *p[8];
    const char *paths[] = { "weight", "bias", "beta", "gamma", "g", "layer.weight" };
    m = flux_f64(m);
    CHECK_NEAR(flux_gradcheck(fn_of_layer, m, x, 0), 0, 5e-9);
    if (second) CHECK_NEAR(flux_gradcheck(fn_of_gradient, m, x, 0), 0, 5e-7);
    CHECK(flux_params(m, p, 8) <= 8);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        flux_on_error(test_silent, NULL);
        flux_tensor *w = flux_param(m, paths[i]);
        flux_clear();
        flux_on_error(NULL, NULL);
        by_param b = { m, paths[i], x };
        if (!w) continue;
        flux_tensor *start = fill(flux_shape_of(w), 0.7, 0.8);
        CHECK_NEAR(flux_gradcheck(fn_of_param, &b, start, 0), 0, 5e-9);
        if (!second || i > 0) continue;
        CHECK_NEAR(flux_gradcheck(fn_mixed, &b, start, 0), 0, 5e-9);
        CHECK(flux_set_param(m, paths[i], start) == 0);
        CHECK_NEAR(flux_gradcheck(fn_mixed_back, &b, x, 0), 0, 5e-9);
    }
}

TEST(conv_gradients) {
    check_gradients(flux_conv_layer(S(3, 2), 2, 3, flux_tanh, .pad = S(1, 0)), FILL(0.3, 1, 4, 3, 2, 2), true);
    check_gradients(flux_conv_layer(S(2), 2, 2, .stride = S(2), .dilation = S(2)), FILL(0.3, 1, 7, 2, 2), true);
    check_gradients(flux_conv_layer(S(2, 2), 4, 4, .groups = 2, .stride = S(1, 2), .pad = S(0, 1, 1, 0)), FILL(0.3, 1, 3, 4, 4, 1), true);
    check_gradients(flux_conv_transpose_layer(S(3, 2), 2, 3, .stride = S(2), .pad = S(1, 0)), FILL(0.3, 1, 3, 2, 2, 2), true);
    check_gradients(flux_conv_transpose_layer(S(2), 4, 2, .groups = 2, .stride = S(3), .outpad = S(2)), FILL(0.3, 1, 3, 4, 2), true);
    check_gradients(flux_crosscor_layer(S(2, 1, 2), 1, 2, .dilation = S(1, 1, 2)), FILL(0.3, 1, 3, 2, 4, 1, 1), true);
    check_gradients(flux_conv_layer(S(4), 1, 2, .stride = S(3)), FILL(0.3, 1, 9, 1, 1), true);    /* stride leaves a rest, and gaps */
    check_gradients(flux_conv_layer(S(1), 2, 2, .stride = S(3), .pad = S(2)), FILL(0.3, 1, 5, 2, 1), true);
}

/* The three forms, over many shapes, against sums written out. */
typedef struct shape_case { int w, h, c, n, kw, kh, out, sw, sh, pw, ph, dw, dh, g; } shape_case;
static double direct(const shape_case *k, const float *x, const float *w, int ox, int oy, int o, int b) {
    double sum = 0;
    int cg = k->c / k->g, og = k->out / k->g;
    for (int c = 0; c < cg; c++)
        for (int j = 0; j < k->kh; j++)
            for (int i = 0; i < k->kw; i++) {
                int ix = ox * k->sw - k->pw + i * k->dw, iy = oy * k->sh - k->ph + j * k->dh;
                if (ix < 0 || iy < 0 || ix >= k->w || iy >= k->h) continue;
                int flat = ((b * k->c + o / og * cg + c) * k->h + iy) * k->w + ix;
                sum += (double)x[flat] * (double)w[((o * cg + c) * k->kh + k->kh - 1 - j) * k->kw + k->kw - 1 - i];
            }
    return sum;
}
/* Such a convolution beside sums written out, its gradients by sums that it is linear in. */
static void check_conv(const shape_case *k) {
    flux_tensor *x = flux_eval(flux_randn(k->w, k->h, k->c, k->n)), *w = flux_eval(flux_randn(k->kw, k->kh, k->c / k->g, k->out));
    flux_tensor *y = flux_conv(x, w, .stride = S(k->sw, k->sh), .pad = S(k->pw, k->ph), .dilation = S(k->dw, k->dh), .groups = k->g);
    const float *fx = flux_floats(x), *fw = flux_floats(w), *fy = flux_floats(y);
    double worst = 0, scale = sqrt((double)(k->kw * k->kh * k->c / k->g));
    int ow = (int)flux_dim(y, 0), oh = (int)flux_dim(y, 1), at = 0;
    for (int b = 0; fy && b < k->n; b++)
        for (int o = 0; o < k->out; o++)
            for (int oy = 0; oy < oh; oy++)
                for (int ox = 0; ox < ow; ox++)
                    worst = fmax(worst, fabs((double)fy[at++] - direct(k, fx, fw, ox, oy, o, b)));
    CHECK_NEAR(worst / scale, 0, 4e-6);     /* without fused multiply-adds, too */
    /* <g, conv(x, w)> is linear in x and in w: its gradients' products with x and w are itself. */
    flux_tensor *g = flux_eval(flux_randn_with(flux_shape_of(y), FLUX_F32)), *dot = flux_sum(flux_mul(g, y));
    flux_grads *d = flux_gradient(dot, x, w);
    double whole = flux_item(dot), size = flux_item(flux_norm(y)) * 10 + 1;
    CHECK_NEAR((flux_item(flux_sum(flux_mul(flux_grad(d, x), x))) - whole) / size, 0, 2e-6);
    CHECK_NEAR((flux_item(flux_sum(flux_mul(flux_grad(d, w), w))) - whole) / size, 0, 2e-6);
    flux_tensor *x2 = flux_eval(flux_randn_with(flux_shape_of(x), FLUX_F32)), *w2 = flux_eval(flux_randn_with(flux_shape_of(w), FLUX_F32));
    flux_tensor *yx = flux_conv(x2, w, .stride = S(k->sw, k->sh), .pad = S(k->pw, k->ph), .dilation = S(k->dw, k->dh), .groups = k->g);
    flux_tensor *yw = flux_conv(x, w2, .stride = S(k->sw, k->sh), .pad = S(k->pw, k->ph), .dilation = S(k->dw, k->dh), .groups = k->g);
    CHECK_NEAR((flux_item(flux_sum(flux_mul(flux_grad(d, x), x2))) - flux_item(flux_sum(flux_mul(g, yx)))) / size, 0, 2e-6);
    CHECK_NEAR((flux_item(flux_sum(flux_mul(flux_grad(d, w), w2))) - flux_item(flux_sum(flux_mul(g, yw)))) / size, 0, 2e-6);
}
TEST(conv_of_many_shapes) {
    static const shape_case cases[] = {
        { 28, 28, 1, 2, 3, 3, 8, 1, 1, 1, 1, 1, 1, 1 },   { 14, 14, 8, 3, 3, 3, 16, 1, 1, 1, 1, 1, 1, 1 },
        { 9, 7, 5, 2, 3, 2, 7, 1, 1, 0, 1, 1, 1, 1 },     { 33, 5, 3, 2, 5, 3, 13, 1, 1, 2, 1, 1, 1, 1 },
        { 16, 16, 4, 2, 3, 3, 6, 2, 2, 1, 1, 1, 1, 1 },   { 17, 9, 6, 2, 3, 3, 9, 1, 1, 2, 2, 2, 2, 3 },
        { 6, 6, 40, 2, 3, 3, 30, 1, 1, 1, 1, 1, 1, 1 },   { 20, 20, 3, 1, 7, 7, 33, 2, 2, 3, 3, 1, 1, 1 },
        { 40, 1, 2, 2, 9, 1, 3, 1, 1, 4, 0, 1, 1, 1 },    { 5, 5, 64, 2, 1, 1, 48, 1, 1, 0, 0, 1, 1, 1 },
        { 4, 4, 2, 70, 4, 4, 5, 1, 1, 0, 0, 1, 1, 1 },    { 12, 11, 24, 2, 3, 3, 24, 1, 1, 1, 1, 1, 1, 24 },
        { 43, 6, 3, 16, 3, 3, 4, 2, 2, 1, 1, 1, 1, 1 },   { 1, 150, 2, 3, 1, 3, 20, 1, 1, 0, 1, 1, 1, 1 },
        { 18, 17, 2, 4, 3, 3, 16, 1, 1, 1, 1, 1, 1, 1 },  { 21, 4, 8, 32, 2, 2, 6, 2, 2, 0, 0, 1, 1, 2 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) FLUX_SCOPE { check_conv(&cases[i]); }
}

/* The windows of every group and sample, stored: positions x (window x channels of a group) x groups x samples. */
static flux_tensor *windows_of(const shape_case *k, flux_tensor *x, int ow, int oh) {
    const int cg = k->c / k->g, taps = k->kw * k->kh * cg;
    float *all = (float *)calloc((size_t)ow * (size_t)oh * (size_t)taps * (size_t)k->g * (size_t)k->n, 4);
    const float *from = flux_floats(x);
    for (int at = 0; all && from && at < ow * oh * taps * k->g * k->n; at++) {
        const int t = at / (ow * oh) % taps, channel = at / (ow * oh) / taps * cg + t / (k->kw * k->kh),
                  i = at % ow * k->sw - k->pw + (k->kw - 1 - t % k->kw) * k->dw, j = at / ow % oh * k->sh - k->ph + (k->kh - 1 - t / k->kw % k->kh) * k->dh;
        if (i >= 0 && j >= 0 && i < k->w && j < k->h) all[at] = from[(channel * k->h + j) * k->w + i];
    }
    flux_tensor *windows = all ? flux_from(all, ow * oh, taps, k->g, k->n) : NULL;
    free(all);
    return windows;
}
/* Few channels, in groups or not: beside sums written out; the same bits as a plain product has, of f32, f64 and f16, with a bias of zeros and without. */
TEST(few_channels_of_many_shapes) {
    ONLY_ON_CPU();
    unsigned seed = 5;
    for (int round = 0; round < 120; round++) FLUX_SCOPE {
        if (test_left_out(round, 7)) continue;
        int r[14], top[14] = { 70, 30, 4, 3, 4, 4, 20, 2, 2, 3, 3, 2, 2, 4 };     /* as in shape_case; channels are those of a group */
        for (int i = 0; i < 14; i++) r[i] = 1 + (int)((seed = seed * 1103515245u + 12345u) >> 16) % top[i];
        if (round % 6 == 0) r[0] += 1500;
        if (round % 6 == 1) r[1] = r[5] = 1;
        const shape_case k = { r[0], r[1], r[2] * r[13], r[3], r[4], r[5], r[6] * r[13], r[7], r[8], r[9] - 1, r[10] - 1, r[11], r[12], r[13] };
        const int ow = (k.w + 2 * k.pw - (k.kw - 1) * k.dw - 1) / k.sw + 1, oh = (k.h + 2 * k.ph - (k.kh - 1) * k.dh - 1) / k.sh + 1;
        if (k.w + 2 * k.pw <= (k.kw - 1) * k.dw || k.h + 2 * k.ph <= (k.kh - 1) * k.dh) continue;
        if (round % 4 == 0) check_conv(&k);
        const flux_dtype type = round % 3 == 0 ? FLUX_F64 : round % 3 == 1 ? FLUX_F16 : FLUX_F32;
        flux_tensor *x = flux_eval(flux_randn(k.w, k.h, k.c, k.n)), *w = flux_eval(flux_randn(k.kw, k.kh, r[2], k.out));
        x = flux_eval(flux_to_dtype(flux_to_dtype(x, FLUX_F16), type)), w = flux_eval(flux_to_dtype(flux_to_dtype(w, FLUX_F16), type));
        flux_conv_opts o = { .x = x, .weight = w, .stride = S(k.sw, k.sh), .pad = S(k.pw, k.ph), .dilation = S(k.dw, k.dh), .groups = k.g };
        flux_tensor *y = flux_eval(flux_conv_with(o)), *z = flux_eval(flux_add(flux_conv_with(o), flux_eval(flux_to_dtype(flux_zeros(1, 1, k.out), type))));
        flux_tensor *windows = flux_to_dtype(windows_of(&k, flux_to_dtype(x, FLUX_F32), ow, oh), type);
        flux_tensor *plain = flux_matmul(flux_eval(windows), flux_eval(flux_reshape(w, k.kw * k.kh * r[2], r[6], k.g)));
        REQUIRE(y && z && plain && flux_len(y) == flux_len(plain) && flux_dtype_of(y) == type);
#ifndef FLUX_BLAS                         /* which adds a product up in an order of its own */
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_eval(flux_reshape(plain, flux_len(y))), flux_eval(flux_reshape(y, flux_len(y))))))) == 0);
#endif
        CHECK(flux_item(flux_max(flux_abs(flux_sub(y, z)))) == 0);
    }
}

/* Windows that tile an image, two wide or not: in f32 and half formats, which are written in pairs, as in f64; of whole numbers, so
   that all are exact. */
TEST(transposed_windows_that_tile) {
    for (int i = 1; i <= 63; i++) FLUX_SCOPE {
        const int wide = (i + 2) / 3;
        const flux_dtype t = i % 3 == 0 ? FLUX_F32 : i % 3 == 1 ? FLUX_BF16 : FLUX_F16;
        const int window = 1 + wide % 3, high = 1 + wide % 4;
        flux_tensor *x = flux_eval(flux_floor(flux_mul(flux_rand(wide, high, 3, 2), 9.0))), *w = flux_eval(flux_floor(flux_mul(flux_rand(2, window, 4, 3), 9.0)));
        flux_tensor *y = flux_to_dtype(flux_eval(flux_conv_transpose(flux_to_dtype(x, t), flux_to_dtype(w, t), .stride = S(2, window))), FLUX_F32), *z = flux_conv_transpose(flux_to_dtype(x, FLUX_F64), flux_to_dtype(w, FLUX_F64), .stride = S(2, window));
        const float *p = flux_floats(flux_eval(y)), *q = flux_floats(flux_eval(flux_to_dtype(z, FLUX_F32)));
        REQUIRE(p && q && SHAPE_IS(flux_shape_of(y), 2 * wide, window * high, 4, 2));
        CHECK(!memcmp(p, q, (size_t)flux_len(y) * sizeof *p));
        CHECK(flux_item(flux_sum(y)) > 0);
    }
}

/* A layer whose windows tile adds its bias before elements go to their places: the same as behind it, and its gradients, too. */
TEST(transposed_layers_that_tile) {
    for (int i = 0; i < 12; i++) FLUX_SCOPE {
        const int groups = 1 + i % 2, nd = 1 + i % 3;
        const int64_t window = 1 + i % 4, in = 2 * groups, out = 3 * groups;
        const flux_dtype t = i % 5 == 4 ? FLUX_BF16 : FLUX_F32;
        const flux_shape each = nd == 1 ? S(window) : nd == 2 ? S(window, 2) : S(2, window, 3);
        flux_layer *m = flux_conv_transpose_layer(each, in, out, flux_tanh, .stride = each, .groups = groups);
        REQUIRE(m);
        flux_set_param(m, "bias", flux_randn(out));
        if (t == FLUX_BF16) m = flux_bf16(m);
        flux_tensor *x = flux_eval(flux_to_dtype(nd == 1 ? flux_randn(5, in, 3) : nd == 2 ? flux_randn(5, 4, in, 3) : flux_randn(4, 3, 2, in, 2), t));
        flux_tensor *w = flux_weight(m), *b = flux_param(m, "bias"), *y = flux_call(m, x);
        flux_shape along = flux_shape_of(y);
        for (int d = 0; d < along.ndim; d++) along.dim[d] = d == nd ? out : 1;
        flux_tensor *z = flux_tanh(flux_add(flux_eval(flux_conv_transpose(x, w, .stride = each, .groups = groups)), flux_reshape_with(b, along)));
        CHECK(flux_len(y) == flux_len(z) && flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(y, FLUX_F32), flux_to_dtype(z, FLUX_F32))))) == 0);
        flux_tensor *of = flux_eval(flux_to_dtype(flux_randn_with(flux_shape_of(y), FLUX_F32), t));
        flux_grads *g = flux_gradient(flux_sum(flux_mul(y, of)), x, w, b), *h = flux_gradient(flux_sum(flux_mul(flux_tanh(flux_add(flux_conv_transpose(x, w, .stride = each, .groups = groups), flux_reshape_with(b, along))), of)), x, w, b);
        flux_tensor *all[3] = { x, w, b };
        for (int k = 0; k < 3; k++) CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(flux_grad(g, all[k]), FLUX_F32), flux_to_dtype(flux_grad(h, all[k]), FLUX_F32))))), 0, t == FLUX_BF16 ? 0.3 : 2e-5);
    }
}

/* Windows of every second element and of neighbours: of few channels a product reads them as they lie, and two of their dims have
   stride 1. */
TEST(transposed_windows_that_overlap) {
    for (int i = 0; i < 24; i++) FLUX_SCOPE {
        if (test_left_out(i, 3)) continue;
        const int64_t window = 1 + i % 5, by = 1 + i % 3, wide = 3 + i % 7, in = 1 + i % 2, out = 1 + i / 2 % 4;
        const flux_dtype t = i % 4 < 2 ? FLUX_F64 : FLUX_F32;
        flux_tensor *x = flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand(wide, in, 2), 9.0)), t)), *w = flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand(window, out, in), 9.0)), t));
        flux_tensor *y = flux_conv_transpose(x, w, .stride = S(by), .outpad = S(by - 1));
        flux_grads *g = flux_gradient(flux_sum(flux_mul(y, y)), x, w);
        flux_tensor *cx = flux_cpu(x), *cw = flux_cpu(w), *z = flux_conv_transpose(cx, cw, .stride = S(by), .outpad = S(by - 1));
        flux_grads *h = flux_gradient(flux_sum(flux_mul(z, z)), cx, cw);
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_cpu(y), z)))) == 0);
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_cpu(flux_grad(g, x)), flux_grad(h, cx))))) == 0);
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_cpu(flux_grad(g, w)), flux_grad(h, cw))))) == 0);
    }
}

/* Where windows overlap, what a half format's gradient adds up is rounded once, in the end. */
TEST(overlapping_gradients_of_half_formats_are_rounded_once) {
    for (int i = 0; i < 8; i++) FLUX_SCOPE {
        const flux_dtype t = i % 2 ? FLUX_BF16 : FLUX_F16;
        const int64_t by = 1 + i / 2 % 2, in = i < 4 ? 4 : 2, out = 5 * (3 - by) * in / 2;
        flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(13, 12, in, 2), t)), *w = flux_eval(flux_to_dtype(flux_randn(3, 3, in, out), t));
        flux_tensor *y = flux_conv(x, w, .stride = S(by), .pad = S(1)), *of = flux_eval(flux_to_dtype(flux_randn_with(flux_shape_of(y), FLUX_F32), t));
        flux_tensor *wide = flux_to_dtype(flux_cpu(x), FLUX_F64), *z = flux_conv(wide, flux_to_dtype(flux_cpu(w), FLUX_F64), .stride = S(by), .pad = S(1));
        flux_tensor *g = flux_to_dtype(flux_cpu(flux_grad(flux_gradient(flux_sum(flux_mul(y, of)), x), x)), FLUX_F64);
        flux_tensor *h = flux_grad(flux_gradient(flux_sum(flux_mul(z, flux_to_dtype(flux_cpu(of), FLUX_F64))), wide), wide);
        flux_tensor *most = flux_add(flux_mul(flux_abs(h), t == FLUX_BF16 ? 0x1p-8 : 0x1p-11), 2e-5);
        if (!CHECK(flux_item(flux_max(flux_sub(flux_abs(flux_sub(g, h)), most))) <= 0)) fprintf(stderr, "    gradient %d\n", i);
    }
}

TEST(conv_of_half_formats_and_empty_batches) {
    flux_layer *m = flux_conv_layer(S(3, 3), 2, 3, flux_relu, .pad = S(1));
    flux_tensor *x = flux_randn(5, 4, 2, 2), *y = flux_call(m, x), *z = flux_call(flux_f16(m), flux_to_dtype(x, FLUX_F16));
    CHECK(flux_dtype_of(z) == FLUX_F16);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(y, flux_to_dtype(z, FLUX_F32))))), 0, 1e-2);
    CHECK(SHAPE_IS(flux_shape_of(flux_eval(flux_call(m, flux_zeros(5, 4, 2, 0)))), 5, 4, 3, 0));
    flux_tensor *none = flux_zeros(5, 4, 2, 0), *w = flux_randn(3, 3, 2, 3);
    flux_grads *g = flux_gradient(flux_sum(flux_conv(none, w, .pad = S(1))), w);
    CHECK_NEAR(flux_item(flux_norm(flux_grad(g, w))), 0, 0);
}

/* ---- pooling and upsampling */

#define PLAIN(name, layer, input)                                                                    \
    TEST(name##_as_pytorch) {                                                                        \
        flux_layer *m = layer;                                                                       \
        flux_tensor *x = input, *y = flux_call(m, x);                                                \
        CHECK_DATA(y, fix_##name, 2e-8);                                                             \
        CHECK_DATA(flux_grad(flux_gradient(loss_of(y), x), x), fix_##name##_gX, 2e-8);               \
        flux_shape in = flux_shape_of(x), out = flux_shape_of(y);                                    \
        CHECK(shape_is(flux_outputsize_with(m, in), out.ndim, out.dim));                               \
    }
PLAIN(maxpool, flux_maxpool_layer(S(2, 2)), FILL(0.4, 1.3, 6, 5, 2, 2))
PLAIN(maxpool3, flux_maxpool_layer(S(3, 3), .stride = S(2), .pad = S(1)), FILL(0.4, 1.3, 6, 5, 2, 2))
PLAIN(meanpool3, flux_meanpool_layer(S(3, 3), .stride = S(2), .pad = S(1)), FILL(0.4, 1.3, 6, 5, 2, 2))
PLAIN(adaptivemax, flux_adaptivemaxpool(S(3, 2)), FILL(0.9, 1.2, 6, 4, 2, 1))
PLAIN(adaptivemean, flux_adaptivemeanpool(S(3, 2)), FILL(0.9, 1.2, 6, 4, 2, 1))
PLAIN(nearest, flux_upsample(.scale = { 2, 3 }), FILL(0.9, 1.2, 6, 4, 2, 1))
PLAIN(linear, flux_upsample(FLUX_LINEAR, .size = S(7)), FILL(0.1, 1, 4, 2, 1))
PLAIN(bilinear, flux_upsample(FLUX_BILINEAR, .size = S(9, 5)), FILL(0.9, 1.2, 6, 4, 2, 1))
PLAIN(trilinear, flux_upsample(FLUX_TRILINEAR, .scale = { 2 }), FILL(0.5, 1, 2, 3, 2, 1, 1))
PLAIN(pixelshuffle, flux_pixelshuffle(2), FILL(0.8, 1, 3, 2, 8, 1))

TEST(lppool_as_pytorch) {
    flux_tensor *x = FILL(0.4, 1.3, 6, 5, 2, 2);
    flux_tensor *y = flux_call(flux_lpnormpool_layer(S(2, 2), .p = 3), flux_add(flux_abs(x), 0.1));
    CHECK_DATA(y, fix_lppool, 2e-8);
    CHECK_DATA(flux_grad(flux_gradient(loss_of(y), x), x), fix_lppool_gX, 1e-7);
    flux_tensor *a = flux_call(flux_globallpnormpool(2), x);
    CHECK(SHAPE_IS(flux_shape_of(a), 1, 1, 2, 2));
    CHECK_NEAR(flux_at(a, 0, 0, 1, 0), sqrt(flux_item(flux_sum(flux_square(flux_slice(flux_slice(x, 2, 1, 2), 3, 0, 1))))), 1e-12);
}

TEST(global_and_adaptive_pools) {
    flux_tensor *x = FILL(0.4, 1.3, 6, 5, 2, 2), *top = flux_call(flux_globalmaxpool(), x), *mean = flux_call(flux_globalmeanpool(), x);
    CHECK(SHAPE_IS(flux_shape_of(top), 1, 1, 2, 2) && SHAPE_IS(flux_shape_of(mean), 1, 1, 2, 2));
    CHECK_NEAR(flux_item(flux_sum(flux_abs(flux_sub(top, flux_max(x, 0, 1))))), 0, 1e-12);
    CHECK_NEAR(flux_item(flux_sum(flux_abs(flux_sub(mean, flux_mean(x, 0, 1))))), 0, 1e-12);
    flux_tensor *y = flux_call(flux_adaptivemaxpool(S(4, 2)), x);      /* 6 to 4: stride 1, window 3; 5 to 2: stride 2, window 3 */
    CHECK(SHAPE_IS(flux_shape_of(y), 4, 2, 2, 2));
    CHECK_NEAR(flux_at(y, 1, 1, 0, 0), flux_item(flux_max(flux_slice(flux_slice(flux_take(flux_slice(x, 2, 0, 1), 1), 0, 1, 4), 1, 2, 5))), 0);
    CHECK(SHAPE_IS(flux_shape_of(flux_call(flux_adaptivemeanpool(S(2)), flux_ones(7, 3, 1))), 2, 3, 1));
    CHECK(SHAPE_IS(flux_outputsize(flux_globalmeanpool(), 4, 4, 4, 3, 2), 1, 1, 1, 3, 2));
}

TEST(maxpool_ignores_padding_and_takes_the_first) {
    float x[] = { -3, -1, -1, -2 };
    flux_tensor *t = flux_from(x, 4, 1, 1), *y = flux_call(flux_maxpool_layer(S(3), .pad = S(1), .stride = S(1)), t);
    CHECK_DATA(y, ((double[]){ -1, -1, -1, -1 }), 0);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(y), t), t), ((double[]){ 0, 3, 1, 0 }), 0);
    flux_tensor *i = flux_to_dtype(t, FLUX_I32), *z = flux_call(flux_maxpool_layer(S(2)), i);
    CHECK_DATA(z, ((double[]){ -1, -1 }), 0);
}

/* A pooling by its definition, in double: y of x, and dx, to which the gradient g of y goes. */
static void pool_plainly(bool max, const flux_pool_opts *o, const flux_shape *in, const flux_shape *out, const float *x, const float *g,
                         double *y, double *dx) {
    int64_t p[FLUX_MAX_DIMS] = { 0 }, volume = 1;
    for (int d = 0; d < o->window.ndim; d++) volume *= o->window.dim[d];
    for (int64_t at = 0; p[out->ndim - 1] < out->dim[out->ndim - 1]; at++) {
        int64_t best = -1;
        y[at] = 0;
        for (int64_t i = 0; i < volume; i++) {
            int64_t from = 0, step = 1, rest = i;
            bool inside = true;
            for (int d = 0; d < in->ndim; step *= in->dim[d++]) {
                int64_t place = p[d];
                if (d < o->window.ndim) {
                    place = p[d] * o->stride.dim[d] + rest % o->window.dim[d] - o->pad.dim[2 * d];
                    rest /= o->window.dim[d];
                }
                inside = inside && place >= 0 && place < in->dim[d], from += place * step;
            }
            if (!inside) continue;
            if (!max) y[at] += (double)x[from] / (double)volume, dx[from] += (double)g[at] / (double)volume;
            else if (best < 0 || x[from] > x[best] || (isnan(x[from]) && !isnan(x[best]))) best = from;
        }
        if (max) y[at] = (double)x[best], dx[best] += (double)g[at];
        for (int d = 0; ++p[d] == out->dim[d] && d + 1 < out->ndim; d++) p[d] = 0;
    }
}
static int differs(const float *x, const double *want, int64_t n) {
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad += isnan(want[i]) ? !isnan(x[i]) : !(fabs((double)x[i] - want[i]) <= 2e-6);
    return bad;
}
/* Pools at random: 1 to 3 dims, windows, strides, paddings, an image that is transposed, equal elements and NaN. A device
   compiles kernels for each, so it has fewer. */
TEST(pools_of_random_shapes) {
    uint32_t seed = 7;
#define UP_TO(n) ((int64_t)((seed = seed * 1664525u + 1013904223u) >> 8) % (n))
    const int pools = !test_device.backend ? 400 : getenv("SHORT") ? 15 : 60;
    for (int i = 0; i < pools; i++) FLUX_SCOPE {
        const int nd = 1 + (int)UP_TO(3);
        const bool max = UP_TO(2), turned = UP_TO(3) == 0;
        flux_shape s = S(0);
        flux_pool_opts o;
        memset(&o, 0, sizeof o);
        o.window.ndim = o.stride.ndim = nd, o.pad.ndim = 2 * nd, s.ndim = nd + 2;
        for (int d = 0; d < nd; d++) {
            const int64_t w = o.window.dim[d] = 1 + UP_TO(nd == 3 ? 3 : 5);
            o.stride.dim[d] = UP_TO(3) ? 1 + UP_TO(4) : w, o.pad.dim[2 * d] = UP_TO(w / 2 + 1), o.pad.dim[2 * d + 1] = UP_TO(w / 2 + 1);
            s.dim[d] = w + UP_TO(nd == 1 ? 200 : nd == 2 ? 40 : 8);
        }
        s.dim[nd] = 1 + UP_TO(4), s.dim[nd + 1] = 1 + UP_TO(3);
        flux_shape order = s;             /* the first two dims stand the other way round in memory */
        for (int d = 0; d < nd + 2; d++) order.dim[d] = nd > 1 && d < 2 ? 1 - d : d;
        flux_shape there = s;
        if (turned && nd > 1) there.dim[0] = s.dim[1], there.dim[1] = s.dim[0];
        flux_tensor *x = flux_floor(flux_mul(flux_rand_with(there, FLUX_F32), 9.0));
        if (max && i % 2) x = flux_where(flux_lt(flux_rand_with(there, FLUX_F32), 0.05), (double)NAN, x);
        o.x = x = flux_eval(turned ? flux_permute_with(flux_eval(x), order) : x);
        flux_tensor *y = max ? flux_maxpool_with(o) : flux_meanpool_with(o), *dx = NULL, *g, *loss;
        g = flux_eval(flux_randn_with(flux_shape_of(y), FLUX_F32)), loss = flux_sum(flux_mul(y, g));
        FLUX_NOGRAD dx = flux_eval(flux_grad(flux_gradient(loss, x), x));
        const float *fx = flux_floats(flux_copy(x)), *fg = flux_floats(g), *fy = flux_floats(y), *fdx = flux_floats(flux_copy(dx));
        const flux_shape out = flux_shape_of(y);
        double *to = (double *)calloc((size_t)(flux_length(x) + flux_length(y)), sizeof *to), *back = to + flux_length(y);
        REQUIRE(fx && fg && fy && fdx && to);
        pool_plainly(max, &o, &s, &out, fx, fg, to, back);
        CHECK_NEAR(differs(fy, to, flux_length(y)) + differs(fdx, back, flux_length(x)), 0, 0);
        free(to);
    }
#undef UP_TO
}

/* Of the first of the largest in each window, or of the first NaN, and its gradient. */
TEST(maxpool_of_many_shapes) {
    static const int cases[][7] = {       /* image, window, stride, channels */
        { 28, 28, 2, 2, 2, 2, 3 }, { 14, 6, 2, 3, 2, 3, 2 }, { 15, 5, 2, 2, 2, 2, 2 }, { 9, 4, 2, 2, 2, 2, 1 }, { 6, 6, 2, 2, 2, 2, 2 },
        { 32, 8, 4, 2, 4, 2, 2 },  { 21, 9, 3, 3, 2, 2, 2 }, { 16, 3, 2, 1, 2, 1, 2 }, { 26, 26, 1, 2, 2, 2, 1 },
        { 20, 17, 3, 3, 1, 1, 2 }, { 19, 9, 5, 2, 3, 1, 2 }, { 13, 8, 4, 1, 1, 3, 2 }, { 40, 1, 5, 1, 2, 1, 3 }, { 12, 12, 4, 4, 2, 4, 1 },
        { 521, 5, 3, 3, 2, 2, 2 }, { 506, 2, 2, 1, 2, 1, 1 }, { 507, 3, 3, 2, 2, 1, 1 }, { 900, 9, 7, 8, 2, 1, 1 }, { 9, 9, 3, 3, 2, 2, 3 },
        { 35, 8, 2, 2, 2, 2, 3 }, { 22, 4, 2, 2, 2, 2, 3 }, { 23, 9, 3, 3, 2, 2, 2 }, { 33188, 1, 2, 1, 2, 1, 1 },    /* the last in pieces, one of 2 windows */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) FLUX_SCOPE {
        const int *k = cases[i], w = k[0], h = k[1], c = k[6], n = w > 9999 ? 1 : 2;
        flux_tensor *x = flux_eval(flux_floor(flux_mul(flux_rand(w, h, c, n), 7.0)));     /* many are alike */
        if (i % 2) x = flux_eval(flux_where(flux_lt(flux_rand(w, h, c, n), 0.05), (double)NAN, x));
        flux_tensor *y = flux_eval(flux_maxpool(x, .window = S(k[2], k[3]), .stride = S(k[4], k[5])));
        int ow = (int)flux_dim(y, 0), oh = (int)flux_dim(y, 1), bad = 0;
        flux_tensor *g = flux_eval(flux_randn(ow, oh, c, n)), *dx = flux_grad(flux_gradient(flux_sum(flux_mul(flux_maxpool(x, .window = S(k[2], k[3]), .stride = S(k[4], k[5])), g)), x), x);
        const float *fx = flux_floats(x), *fy = flux_floats(y), *fg = flux_floats(g), *fd = flux_floats(dx);
        float *want = (float *)calloc((size_t)(w * h * c * n), sizeof *want);
        REQUIRE(fx && fy && fg && fd && want);
        for (int o = 0; o < ow * oh * c * n; o++) {
            int from = (o / (ow * oh) * h + o / ow % oh * k[5]) * w + o % ow * k[4], best = from;
            for (int at = 1; at < k[2] * k[3]; at++) {
                int there = from + at / k[2] * w + at % k[2];
                if (fx[there] > fx[best] || (isnan(fx[there]) && !isnan(fx[best]))) best = there;
            }
            bad += isnan(fx[best]) ? !isnan(fy[o]) : memcmp(&fy[o], &fx[best], sizeof *fy) != 0;
            want[best] += fg[o];
        }
        for (int at = 0; at < w * h * c * n; at++) bad += fabsf(want[at] - fd[at]) > 1e-6f;
        CHECK_NEAR(bad, 0, 0);
        free(want);
    }
}
/* Beside a loop: rows long enough to be copied as they are and short ones, of any size of element, and views of rows. */
TEST(padding_of_many_shapes) {
    static const int cases[][7] = {       /* image, before and behind, channels */
        { 30, 7, 1, 1, 1, 1, 3 }, { 16, 5, 0, 3, 2, 0, 2 }, { 40, 1, 4, 0, 0, 0, 2 }, { 17, 4, 0, 0, 1, 2, 1 }, { 15, 6, 2, 1, 1, 1, 2 },
        { 4, 6, 1, 1, 1, 0, 2 }, { 8, 3, 20, 0, 0, 1, 2 }, { 9, 5, 0, 17, 1, 0, 3 }, { 300, 4, 2, 1, 0, 1, 2 },
    };
    static const flux_dtype dtypes[] = { FLUX_F32, FLUX_F64, FLUX_BF16, FLUX_U8 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 12; i++) FLUX_SCOPE {
        const int *k = cases[i / 12], w = k[0], h = k[1], n = k[6], pw = w + k[2] + k[3], ph = h + k[4] + k[5];
        flux_tensor *x = flux_eval(flux_to_dtype(flux_floor(flux_mul(flux_rand(w, h, n + 1), 99)), dtypes[i % 4])), *of = flux_slice(x, 2, 1, n + 1);
        if (i / 4 % 3 == 1) of = flux_flip(of, 1);
        if (i / 4 % 3 == 2) of = flux_flip(of, 0);
        flux_tensor *y = flux_eval(flux_pad(of, 7, k[2], k[3], k[4], k[5]));
        int bad = 0;
        REQUIRE(SHAPE_IS(flux_shape_of(y), pw, ph, n));
        const float *fx = flux_floats(flux_to_dtype(x, FLUX_F32)), *fy = flux_floats(flux_to_dtype(y, FLUX_F32));
        REQUIRE(fx && fy);
        for (int at = 0; at < pw * ph * n; at++) {
            int a = at % pw - k[2], b = at / pw % ph - k[4], c = at / pw / ph + 1;
            bool in = a >= 0 && a < w && b >= 0 && b < h;
            if (i / 4 % 3 == 1) b = h - 1 - b;
            if (i / 4 % 3 == 2) a = w - 1 - a;
            bad += fy[at] != (in ? fx[(c * h + b) * w + a] : 7);
        }
        CHECK_NEAR(bad, 0, 0);
    }
}
/* The product of a channel's windows, as a plain product: sides of the image, of the result, of a window, stride, padding, dilation. */
static flux_tensor *product_of_windows(flux_tensor *x, flux_tensor *w, const int *image, const int *size, const int *window, int stride, int pad, int d, bool turned) {
    const int m = size[0] * size[1], k = window[0] * window[1], n = (int)(flux_dim(x, 2) * flux_dim(x, 3));
    float *all = (float *)calloc((size_t)m * (size_t)k * (size_t)n, 4);
    const float *from = flux_floats(x);
    for (int c = 0; c < n && all && from; c++)
        for (int t = 0; t < k; t++)
            for (int at = 0; at < m; at++) {
                const int tap = turned ? k - 1 - t : t, i = at % size[0] * stride + tap % window[0] * d - pad, j = at / size[0] * stride + tap / window[0] * d - pad;
                if (i >= 0 && j >= 0 && i < image[0] && j < image[1]) all[(c * k + t) * m + at] = from[(c * image[1] + j) * image[0] + i];
            }
    flux_tensor *windows = all ? flux_from(all, m, k, flux_dim(x, 2), flux_dim(x, 3)) : NULL;
    free(all);
    return flux_matmul(windows, flux_eval(flux_reshape(w, k, 1, flux_dim(x, 2))));
}
/* A channel by itself: beside a loop, its gradients too; the same bits as a plain product has, with a bias of zeros and without. */
TEST(depthwise_of_many_shapes) {
    unsigned seed = 11;
    for (int round = 0; round < 60; round++) FLUX_SCOPE {
        if (test_device.backend && round % 7 > 2) continue;
        int r[9], top[9] = { 40, 20, 5, 2, 4, 4, 2, 3, 3 };   /* w, h, channels, batch, window, dilation, padding, stride */
        for (int i = 0; i < 9; i++) r[i] = 1 + (int)((seed = seed * 1103515245u + 12345u) >> 16) % top[i];
        if (round % 10 == 0) r[0] += 100;
        int d = r[6], pad = r[7] - 1, stride = round % 3 ? 1 : r[8], ow = (r[0] + 2 * pad - (r[4] - 1) * d - 1) / stride + 1, oh = (r[1] + 2 * pad - (r[5] - 1) * d - 1) / stride + 1;
        if (r[0] + 2 * pad <= (r[4] - 1) * d || r[1] + 2 * pad <= (r[5] - 1) * d) continue;
        bool turned = round % 2;
        flux_tensor *x = flux_eval(flux_randn(r[0], r[1], r[2], r[3])), *w = flux_eval(flux_randn(r[4], r[5], 1, r[2])), *y, *g = flux_eval(flux_randn(ow, oh, r[2], r[3]));
        flux_conv_opts o = { .x = x, .weight = w, .stride = S(stride), .pad = S(pad), .dilation = S(d), .groups = r[2] };
        y = turned ? flux_conv_with(o) : flux_crosscor_with(o);
        flux_grads *grads = flux_gradient(flux_sum(flux_mul(y, g)), x, w);
        flux_tensor *dx = flux_grad(grads, x), *dw = flux_grad(grads, w), *z = turned ? flux_conv_with(o) : flux_crosscor_with(o);
        z = flux_add(flux_reshape(z, ow * oh, 1, r[2], r[3]), flux_eval(flux_zeros(1, 1, r[2])));
        const float *fx = flux_floats(x), *fw = flux_floats(w), *fy = flux_floats(flux_eval(flux_add(flux_eval(y), 0.0))), *fg = flux_floats(g);
        REQUIRE(fx && fw && fy && fg && SHAPE_IS(flux_shape_of(y), ow, oh, r[2], r[3]));
        CHECK(!memcmp(flux_floats(z), fy, (size_t)flux_len(y) * 4));
        flux_tensor *plain = product_of_windows(x, w, r, (int[]){ ow, oh }, r + 4, stride, pad, d, turned);
#ifndef FLUX_BLAS                         /* which adds a product up in an order of its own */
        CHECK(!memcmp(flux_floats(flux_eval(flux_add(flux_eval(plain), 0.0))), fy, (size_t)flux_len(y) * 4));
#endif
        double worst = 0, *sx = (double *)calloc((size_t)flux_len(x), 8), sw[64 * 5] = { 0 };
        for (int at = 0; at < (int)flux_len(y); at++) {
            int c = at / (ow * oh) % r[2];
            double sum = 0;
            for (int t = 0; t < r[4] * r[5]; t++) {
                int i = at % ow * stride + t % r[4] * d - pad, j = at / ow % oh * stride + t / r[4] * d - pad, place = (turned ? r[4] * r[5] - 1 - t : t) + c * r[4] * r[5];
                if (i < 0 || j < 0 || i >= r[0] || j >= r[1]) continue;
                int from = (at / (ow * oh) * r[1] + j) * r[0] + i;
                sum += (double)fx[from] * fw[place], sx[from] += (double)fg[at] * fw[place], sw[place] += (double)fg[at] * fx[from];
            }
            worst = fmax(worst, fabs(sum - fy[at]));
        }
        for (int i = 0; i < (int)flux_len(x); i++) worst = fmax(worst, fabs(sx[i] - flux_floats(dx)[i]));
        for (int i = 0; i < (int)flux_len(w); i++) worst = fmax(worst, fabs(sw[i] - flux_floats(dw)[i]) / 20);
        CHECK_NEAR(worst, 0, 1e-5);
        free(sx);
    }
}
/* A channel is padded when its turn comes, and its result may take the place of the image: the same as of images that stay. */
TEST(padded_channels_in_place) {
    ONLY_ON_CPU();                        /* a device pads no image in place */
    for (int way = 0; way < 48; way++) FLUX_SCOPE {
        if (test_left_out(way, 7)) continue;
        const int dim = way % 4, start = way / 4 % 3, stride = 1 + way / 12 % 2, bias = way / 24 ? FLUX_ON : FLUX_OFF;
        flux_tensor *x = flux_eval(flux_randn(40, 36, 13, 6)), *last[2];
        const int64_t n = flux_dim(x, dim), channels = dim == 2 ? n - start : 13;
        flux_layer *m = flux_depthwiseconv(S(3, 3), channels, channels, bias ? flux_relu : NULL, .pad = S(1), .stride = S(stride), .bias = bias);
        flux_testmode(m, true);
        for (int apart = 0; apart < 2; apart++) FLUX_INFER {
            flux_tensor *a = flux_exp(x);
            a = flux_slice(apart ? flux_eval(a) : a, dim, start, n);
            flux_tensor *b = flux_call(m, apart ? flux_eval(flux_copy(a)) : a), *c = flux_call(m, apart ? flux_eval(b) : b);
            c = flux_maxpool(apart ? flux_eval(c) : c, S(3, 3), .stride = S(1), .pad = S(1));
            last[apart] = flux_keep(flux_eval(flux_maxpool(apart ? flux_eval(c) : c, S(2, 2))));
        }
        const float *p = flux_floats(last[0]), *q = flux_floats(last[1]);
        CHECK(p && q && !memcmp(p, q, (size_t)flux_len(last[0]) * sizeof *p));
    }
}
/* The same of groups, whose channels are padded together; and of one image, whose parts are shared out to threads. */
TEST(padded_groups_in_place) {
    ONLY_ON_CPU();                        /* a device pads no image in place */
    for (int way = 0; way < 48; way++) FLUX_SCOPE {
        if (test_left_out(way, 7)) continue;
        const int groups = 1 << way % 4, stride = 1 + way / 4 % 2, bias = way / 8 % 2 ? FLUX_ON : FLUX_OFF, samples = way / 16 * 3 + 1;
        flux_tensor *x = flux_eval(flux_randn(40, 36, 16, samples)), *last[2];
        flux_layer *m = flux_conv_layer(S(5, 5), 16, 16, bias ? flux_relu : NULL, .pad = S(2), .stride = S(stride), .groups = groups, .bias = bias);
        REQUIRE(m && flux_set_param(m, "weight", flux_randn(5, 5, 16 / groups, 16)) == 0);
        for (int apart = 0; apart < 2; apart++) FLUX_INFER {
            flux_tensor *a = flux_exp(x);
            flux_tensor *b = flux_call(m, apart ? flux_eval(a) : a), *c = flux_call(m, apart ? flux_eval(b) : b);
            last[apart] = flux_keep(flux_eval(flux_maxpool(apart ? flux_eval(c) : c, S(2, 2))));
        }
        const float *p = flux_floats(last[0]), *q = flux_floats(last[1]);
        CHECK(p && q && !memcmp(p, q, (size_t)flux_len(last[0]) * sizeof *p));
    }
}
/* Images that are views: flipped, repeated, transposed, every second element; the same as of copies. */
TEST(few_channels_of_views) {
    for (int way = 0; way < 48; way++) FLUX_SCOPE {
        if (test_device.backend ? way % 5 : test_left_out(way, 7)) continue;
        flux_tensor *x = flux_eval(flux_randn(way % 6 == 5 ? 80 : 40, 44, 8, 3)), *v = x;
        const int view = way % 6, stride = 1 + way / 6 % 2, pad = way / 12 % 2 * 2, groups = way / 24 ? 2 : 1;
        if (view < 3) v = view < 2 ? flux_flip(x, view) : flux_flip(x, 0, 1);
        if (view == 3) v = flux_broadcast_to(flux_eval(flux_slice(x, 1, 0, 1)), 40, 44, 8, 3);
        if (view == 4) v = flux_permute(x, 1, 0, 2, 3);
        if (view == 5) v = flux_reshape(flux_slice(flux_reshape(x, 2, 40, 44, 8, 3), 0, 1, 2), 40, 44, 8, 3);
        flux_tensor *w = flux_eval(flux_randn(3, 5, 8 / groups, 12)), *y[2];
        REQUIRE(v && w);
        for (int copied = 0; copied < 2; copied++)
            y[copied] = flux_eval(flux_conv(copied ? flux_eval(flux_copy(v)) : v, w, .stride = S(stride), .pad = S(pad), .groups = groups));
        CHECK(flux_item(flux_max(flux_abs(flux_sub(y[0], y[1])))) == 0);
    }
}
/* Norm, sum and activation after a convolution may run while its product is in the cache: the same bits as each by itself. */
TEST(what_follows_a_convolution_is_the_same_in_its_epilogue) {
    static const int cases[][5] = {       /* image, channels in and out, batch */
        { 64, 64, 3, 64, 1 }, { 61, 70, 2, 64, 2 }, { 14, 14, 5, 384, 4 }, { 9, 1, 5, 2000, 15 }, { 520, 1, 2, 512, 1 },
        { 64, 33, 8, 24, 2 },             /* windows read where they lie */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) FLUX_NOGRAD FLUX_SCOPE {
        const int *k = cases[i];
        flux_layer *c = flux_conv_layer(S(3, 3), k[2], k[3], .pad = S(1), .bias = FLUX_OFF), *n = flux_batchnorm(k[3], flux_relu);
        flux_tensor *x = flux_eval(flux_randn(k[0], k[1], k[2], k[4])), *skip = flux_eval(flux_randn(k[0], k[1], k[3], k[4]));
        flux_tensor *row = flux_eval(flux_randn(1, k[1], 1, 1));          /* of which dims cannot be joined */
        REQUIRE(c && n && x && skip && row && flux_set_param(c, "weight", flux_randn(3, 3, k[2], k[3])) == 0);
        REQUIRE(flux_set_param(n, "gamma", flux_randn(k[3])) == 0 && flux_set_param(n, "beta", flux_randn(k[3])) == 0);
        flux_testmode(n, true);
        flux_tensor *step = flux_eval(flux_call(n, flux_eval(flux_call(c, x)))), *two = flux_eval(flux_relu(flux_eval(flux_add(step, skip))));
        flux_tensor *three = flux_eval(flux_add(flux_eval(flux_call(c, x)), row));
        CHECK(!memcmp(flux_floats(flux_call(n, flux_call(c, x))), flux_floats(step), (size_t)flux_len(step) * 4));
        CHECK(!memcmp(flux_floats(flux_relu(flux_add(flux_call(n, flux_call(c, x)), skip))), flux_floats(two), (size_t)flux_len(step) * 4));
        CHECK(!memcmp(flux_floats(flux_add(flux_call(c, x), row)), flux_floats(three), (size_t)flux_len(step) * 4));
    }
}
TEST(pool_gradients) {
    check_gradients(flux_maxpool_layer(S(2, 2), .stride = S(1)), FILL(0.3, 1, 4, 3, 1, 2), true);
    check_gradients(flux_maxpool_layer(S(2, 2)), FILL(0.3, 1, 5, 4, 1, 2), true);
    check_gradients(flux_meanpool_layer(S(3), .pad = S(1), .stride = S(2)), FILL(0.3, 1, 5, 2, 2), true);
    check_gradients(flux_lpnormpool_layer(S(2, 2)), flux_add(FILL(0.3, 1, 4, 4, 1, 1), 3.0), true);
    check_gradients(flux_upsample(FLUX_BILINEAR, .scale = { 1.5, 2 }), FILL(0.3, 1, 4, 3, 1, 2), true);
    check_gradients(flux_upsample(.scale = { 2 }), FILL(0.3, 1, 3, 2, 1, 2), true);
    check_gradients(flux_pixelshuffle(2), FILL(0.3, 1, 3, 8, 1), true);
    check_gradients(flux_globalmeanpool(), FILL(0.3, 1, 3, 2, 2, 1), true);
}

TEST(upsample_golden) {
    float x[] = { 1, 2, 3 };
    CHECK_DATA(flux_call(flux_upsample(FLUX_LINEAR, .scale = { 2 }), flux_from(x, 3, 1, 1)), ((double[]){ 1, 1.4, 1.8, 2.2, 2.6, 3 }), 1e-6);
    CHECK_DATA(flux_call(flux_upsample(.scale = { 2 }), flux_from(x, 3, 1, 1)), ((double[]){ 1, 1, 2, 2, 3, 3 }), 0);
    CHECK_DATA(flux_call(flux_upsample(.size = S(6)), flux_from(x, 3, 1, 1)), ((double[]){ 1, 1, 2, 2, 3, 3 }), 0);
    CHECK_DATA(flux_call(flux_upsample(FLUX_LINEAR, .size = S(1)), flux_from(x, 3, 1, 1)), ((double[]){ 1 }), 0);
    CHECK(SHAPE_IS(flux_outputsize(flux_upsample(FLUX_BILINEAR, .scale = { 1.5 }), 5, 4, 2, 1), 7, 6, 2, 1));
}

/* Interpolation in double, element by element: the weight of element i of n for element k of m, and all its dims' together. */
static double weight_of(int64_t n, int64_t m, int64_t k, int64_t i) {
    const double last = m > 1 ? (double)(m - 1) : 1, w = 1 - fabs((double)k * (double)(n - 1) - (double)i * last) / last;
    return w > 0 ? w : 0;
}
static void interpolate(double *y, const double *x, int nd, const int64_t *n, const int64_t *m, int64_t rest, bool back) {
    int64_t in = 1, out = 1;
    for (int d = 0; d < nd; d++) in *= n[d], out *= m[d];
    memset(y, 0, (size_t)((back ? in : out) * rest) * sizeof *y);
    for (int64_t k = 0; k < out; k++)
        for (int64_t i = 0; i < in; i++) {
            double w = 1;
            for (int64_t d = 0, a = k, b = i; d < nd && w > 0; a /= m[d], b /= n[d], d++) w *= weight_of(n[d], m[d], a % m[d], b % n[d]);
            for (int64_t r = 0; r < rest && w > 0; r++) *(back ? &y[r * in + i] : &y[r * out + k]) += w * (back ? x[r * out + k] : x[r * in + i]);
        }
}

/* Values, gradients and the gradient's gradient: up, down, to and from one element, one to three dims, few and many channels,
   a row longer than what is transposed at a time. Whether threads, order of looking or layout differ, the bits are the same. */
TEST(interpolation_and_its_reverse) {
    static const struct { int nd; int64_t n[3], m[3], channels, batch; } cases[] = {
        { 1, { 7 }, { 23 }, 3, 5 }, { 1, { 23 }, { 7 }, 1, 1 }, { 1, { 1 }, { 9 }, 70, 2 }, { 1, { 9 }, { 1 }, 70, 2 }, { 1, { 300 }, { 1301 }, 3, 1 },
        { 1, { 2000 }, { 9001 }, 2, 3 }, { 2, { 13, 10 }, { 26, 20 }, 3, 2 }, { 2, { 56, 3 }, { 112, 9 }, 9, 2 }, { 2, { 5, 33 }, { 5, 71 }, 2, 2 },
        { 2, { 33, 5 }, { 70, 5 }, 2, 2 }, { 2, { 1, 6 }, { 4, 13 }, 2, 1 }, { 2, { 24, 17 }, { 9, 31 }, 4, 1 }, { 3, { 3, 4, 5 }, { 7, 9, 8 }, 2, 2 },
        { 3, { 6, 1, 5 }, { 3, 4, 1 }, 3, 1 },
    };
    static const flux_upsampling modes[] = { FLUX_LINEAR, FLUX_BILINEAR, FLUX_TRILINEAR };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 2; t++) FLUX_SCOPE {
            if (test_left_out((int)i + t, 3)) continue;
            const int nd = cases[i].nd;
            const int64_t *n = cases[i].n, *m = cases[i].m, rest = cases[i].channels * cases[i].batch;
            const double near = t ? 1e-13 : 2e-6;
            flux_shape from = { .ndim = nd + 2 }, size = { .ndim = nd };
            memcpy(from.dim, n, (size_t)nd * sizeof *n), memcpy(size.dim, m, (size_t)nd * sizeof *m);
            from.dim[nd] = cases[i].channels, from.dim[nd + 1] = cases[i].batch;
            flux_layer *up = flux_upsample(modes[nd - 1], .size = size);
            flux_tensor *x = flux_eval(flux_randn_with(from, t ? FLUX_F64 : FLUX_F32)), *y = flux_call(up, x);
            REQUIRE(y && flux_ndim(y) == nd + 2);
            flux_tensor *g = flux_eval(flux_to_dtype(flux_randn_with(flux_shape_of(y), FLUX_F32), flux_dtype_of(x)));
            flux_tensor *dx = flux_grad(flux_gradient(flux_sum(flux_mul(y, g)), x), x);
            double *wide = (double *)malloc((size_t)(flux_len(y) + flux_len(x) + 1) * sizeof *wide);
            REQUIRE(wide && dx);
            const double *fx = (const double *)flux_data(flux_to_dtype(x, FLUX_F64)), *fg = (const double *)flux_data(flux_to_dtype(g, FLUX_F64));
            interpolate(wide, fx, nd, n, m, rest, false);
            test_data(y, wide, flux_len(y), near, __FILE__, __LINE__, "y");
            double most = 1;             /* weights that come together in an element of the gradient */
            for (int d = 0; d < nd; d++) most *= 1 + (double)m[d] / (double)n[d];
            interpolate(wide, fg, nd, n, m, rest, true);
            test_data(dx, wide, flux_len(x), near * most, __FILE__, __LINE__, "dx");
            /* <v, dx> is linear in g: its gradient by g is v interpolated, with the same bits */
            flux_tensor *v = flux_eval(flux_randn_with(from, FLUX_F32)), *gg = flux_eval(flux_copy(g));
            if (!t) {
                flux_tensor *again = flux_grad(flux_gradient(flux_sum(flux_mul(flux_grad(flux_gradient(flux_sum(flux_mul(flux_call(up, x), gg)), x), x), v)), gg), gg);
                CHECK(again && !memcmp(flux_floats(again), flux_floats(flux_call(up, v)), (size_t)flux_len(y) * 4));
            }
            free(wide);
        }
}

/* What is read is not contiguous: permuted, sliced, broadcast; of half formats; of nothing. A weight of 0 reads nothing. */
TEST(interpolation_of_views_halves_and_nothing) {
    flux_layer *up = flux_upsample(FLUX_BILINEAR, .size = S(9, 21));
    flux_tensor *x = flux_eval(flux_randn(7, 12, 6, 5)), *turned = flux_permute(x, 1, 0, 3, 2), *part = flux_slice(flux_slice(x, 0, 2, 6), 3, 1, 4),
                *wide = flux_broadcast_to(flux_slice(x, 2, 0, 1), 7, 12, 4, 5), *all[] = { turned, part, wide };
    for (int i = 0; i < 3; i++) {
        flux_tensor *a = flux_call(up, all[i]), *b = flux_call(up, flux_eval(flux_copy(all[i])));
        REQUIRE(a && b);
        CHECK(!memcmp(flux_floats(a), flux_floats(b), (size_t)flux_len(a) * 4));
    }
    flux_tensor *y = flux_call(up, x), *ones = flux_full_with(flux_shape_of(y), 1, FLUX_F32);
    CHECK(!memcmp(flux_floats(flux_grad(flux_gradient(flux_sum(y), x), x)),
                  flux_floats(flux_grad(flux_gradient(flux_sum(flux_mul(y, flux_eval(ones))), x), x)), (size_t)flux_len(x) * 4));
    for (int h = 0; h < 2; h++) {
        const flux_dtype t = h ? FLUX_BF16 : FLUX_F16;
        flux_tensor *half = flux_eval(flux_to_dtype(x, t)), *z = flux_call(up, half), *exact = flux_call(up, flux_to_dtype(half, FLUX_F32));
        CHECK(flux_dtype_of(z) == t && !memcmp(flux_floats(flux_to_dtype(z, FLUX_F32)), flux_floats(flux_to_dtype(flux_to_dtype(exact, t), FLUX_F32)), (size_t)flux_len(z) * 4));
    }
    CHECK(SHAPE_IS(flux_shape_of(flux_eval(flux_call(up, flux_zeros(7, 12, 6, 0)))), 9, 21, 6, 0));
    flux_tensor *none = flux_zeros(7, 12, 0, 2);
    CHECK(flux_data(flux_grad(flux_gradient(flux_sum(flux_call(up, none)), none), none)) != NULL || flux_len(none) == 0);
    float row[] = { 1, INFINITY, 3, 4, 5 };                    /* 5 to 9: every second element stays */
    const float *line = flux_floats(flux_call(flux_upsample(FLUX_LINEAR, .size = S(9)), flux_from(row, 5, 1, 1)));
    CHECK(line[0] == 1 && line[1] > 1e38f && line[2] > 1e38f && line[3] > 1e38f && line[4] == 3 && line[8] == 5);
}

/* Images are shared by threads, and looked at in any order: the same bits. */
TEST(interpolation_by_several_threads) {
    flux_layer *up = flux_upsample(FLUX_BILINEAR, .scale = { 2 });
    flux_tensor *x = flux_eval(flux_randn(30, 41, 16, 4)), *g = flux_eval(flux_randn(60, 82, 16, 4));
    flux_tensor *y[2], *d[2];
    for (int i = 0; i < 2; i++) {
        flux_threads(i ? 4 : 1);
        y[i] = flux_eval(flux_call(up, x)), d[i] = flux_eval(flux_grad(flux_gradient(flux_sum(flux_mul(flux_call(up, x), g)), x), x));
        REQUIRE(y[i] && d[i]);
    }
    flux_threads(0);
    CHECK(!memcmp(flux_floats(y[0]), flux_floats(y[1]), (size_t)flux_len(y[0]) * 4) && !memcmp(flux_floats(d[0]), flux_floats(d[1]), (size_t)flux_len(x) * 4));
}

TEST(pool_and_upsample_text) {
    CHECK_STR(text_of(flux_maxpool_layer(S(2, 2))), "MaxPool((2, 2))");
    CHECK_STR(text_of(flux_maxpool_layer(S(3, 3), .pad = S(1), .stride = S(2))), "MaxPool((3, 3), pad=1, stride=2)");
    CHECK_STR(text_of(flux_meanpool_layer(S(5), .pad = S(2, 1), .stride = S(1))), "MeanPool((5,), pad=(2, 1), stride=1)");
    CHECK_STR(text_of(flux_lpnormpool_layer(S(2, 2), .p = 3)), "LPNormPool((2, 2), p=3)");
    CHECK_STR(text_of(flux_adaptivemaxpool(S(25, 25))), "AdaptiveMaxPool((25, 25))");
    CHECK_STR(text_of(flux_globalmeanpool()), "GlobalMeanPool()");
    CHECK_STR(text_of(flux_globallpnormpool(1.5)), "GlobalLPNormPool(p=1.5)");
    CHECK_STR(text_of(flux_upsample(.scale = { 2, 3 })), "Upsample(:nearest, scale = (2, 3))");
    CHECK_STR(text_of(flux_upsample(FLUX_TRILINEAR, .scale = { 1.5 })), "Upsample(:trilinear, scale = 1.5)");
    CHECK_STR(text_of(flux_upsample(FLUX_BILINEAR, .size = S(4, 6))), "Upsample(:bilinear, size = (4, 6))");
    CHECK_STR(text_of(flux_pixelshuffle(3)), "PixelShuffle(3)");
}

/* ---- normalisation */

#define NORM(name, layer, ...)                                                                       \
    TEST(name##_as_pytorch) {                                                                        \
        flux_layer *m = flux_f64(layer);                                                             \
        flux_tensor *x = FILL(0.4, 1.3, 3, 2, 4, 3);                                                 \
        set(m, "gamma", 0.9, 1.2);                                                                   \
        set(m, "beta", 0.1, 0.5);                                                                    \
        flux_tensor *y = flux_call(m, x);                                                            \
        CHECK_DATA(y, fix_##name, 2e-8);                                                             \
        flux_grads *g = flux_gradient(loss_of(y), m, x);                                             \
        CHECK_DATA(flux_grad(g, x), fix_##name##_gX, 1e-7);                                          \
        CHECK_DATA(flux_grad_param(g, m, "gamma"), fix_##name##_gg, 2e-8);                           \
        CHECK_DATA(flux_grad_param(g, m, "beta"), fix_##name##_gb, 2e-8);                            \
        __VA_ARGS__                                                                                  \
    }
NORM(batchnorm, flux_batchnorm(4),
     CHECK_DATA(flux_param(m, "mean"), fix_batchnorm_mean, 1e-9);
     CHECK_DATA(flux_param(m, "var"), fix_batchnorm_var, 1e-9);
     flux_testmode(m, true);
     y = flux_call(m, x);
     CHECK_DATA(y, fix_batchnorm_test, 2e-8);
     g = flux_gradient(loss_of(y), m, x);
     CHECK_DATA(flux_grad(g, x), fix_batchnorm_test_gX, 2e-8);
     CHECK_DATA(flux_grad_param(g, m, "gamma"), fix_batchnorm_test_gg, 2e-8);
     CHECK_DATA(flux_param(m, "mean"), fix_batchnorm_mean, 1e-9);)
NORM(instancenorm, flux_instancenorm(4, .affine = FLUX_ON, .track_stats = FLUX_ON),
     CHECK_DATA(flux_param(m, "mean"), fix_instancenorm_mean, 1e-9);
     CHECK_DATA(flux_param(m, "var"), fix_instancenorm_var, 2e-8);)
NORM(groupnorm, flux_groupnorm(4, 2), CHECK(flux_params(m, NULL, 0) == 2);)

TEST(batchnorm_golden) {
    float x[] = { 1, 2, 3, 6 };
    flux_layer *m = flux_batchnorm(1);
    CHECK_DATA(flux_call(m, flux_from(x, 1, 4)), ((double[]){ -1.06904344, -0.53452172, 0, 1.60356517 }), 2e-6);
    CHECK_DATA(flux_param(m, "mean"), ((double[]){ 0.3 }), 1e-6);
    CHECK_DATA(flux_param(m, "var"), ((double[]){ 1.3666667 }), 1e-6);
}

TEST(norm_gradients) {
    flux_tensor *x = FILL(0.4, 1.3, 3, 2, 4, 2);
    check_gradients(flux_batchnorm(4, flux_tanh), x, true);
    check_gradients(flux_instancenorm(4, .affine = FLUX_ON), x, true);
    check_gradients(flux_groupnorm(4, 2), x, true);
    check_gradients(flux_groupnorm(4, 4, flux_tanh, .affine = FLUX_OFF), x, false);
    check_gradients(flux_batchnorm(3, .track_stats = FLUX_OFF), FILL(0.3, 1, 3, 5), true);
    flux_layer *m = flux_batchnorm(4);
    flux_call(m, flux_to_dtype(x, FLUX_F32));
    flux_testmode(m, true);
    check_gradients(m, x, true);
}

/* However it is trained, the statistics are those of plain arithmetic, and nothing piles up behind them. */
TEST(batchnorm_statistics_follow_training) {
    flux_layer *m = flux_chain(flux_dense(3, 4), flux_batchnorm(4, flux_relu), flux_dense(4, 2));
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    flux_tensor *x = flux_eval(flux_randn(3, 6));
    double mean[4] = { 0 }, var[4] = { 1, 1, 1, 1 };
    int64_t live = 0;
    flux_device cpu = { 0, 0 };
    for (int step = 0; step < 12; step++) FLUX_SCOPE {
        float h[4][6];
        flux_tensor *pre = NULL;
        FLUX_NOGRAD { pre = flux_add(flux_matmul(flux_param(m, "layers.0.weight"), x), flux_param(m, "layers.0.bias")); }
        CHECK(flux_read(flux_copy(flux_transpose(pre)), h, sizeof h) == 0);
        for (int c = 0; c < 4; c++) {
            double a = 0, b = 0;
            for (int i = 0; i < 6; i++) a += (double)h[c][i] / 6;
            for (int i = 0; i < 6; i++) b += ((double)h[c][i] - a) * ((double)h[c][i] - a) / 5;
            mean[c] = 0.9 * mean[c] + 0.1 * a, var[c] = 0.9 * var[c] + 0.1 * b;
        }
        flux_tensor *loss = loss_of(flux_call(m, x));
        if (step % 3 == 1) flux_item(loss);
        if (step % 4 == 3) flux_eval(flux_param(m, "layers.1.mean"));
        CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
        if (step == 5) live = flux_mem_stats(cpu).live;
    }
    CHECK_DATA(flux_param(m, "layers.1.mean"), mean, 1e-5);
    CHECK_DATA(flux_param(m, "layers.1.var"), var, 1e-5);
    CHECK(flux_mem_stats(cpu).live <= live + 512);
    for (int i = 0; i < 40; i++) FLUX_SCOPE flux_call(m, x);      /* nobody looks, nothing is trained */
    CHECK(flux_mem_stats(cpu).live <= live + 4096);
    flux_tensor *a = NULL, *b = NULL;
    FLUX_NOGRAD { a = flux_eval(flux_call(m, x)); b = flux_eval(flux_call(m, flux_take(x, 3))); }
    CHECK_NEAR(flux_item(flux_sum(flux_abs(flux_sub(flux_take(a, 3), b)))), 0, 1e-6);     /* NOGRAD: test mode */
}

/* Statistics that cannot be computed: the call that waits for them has failed, and keeps them as they were. */
TEST(batchnorm_with_statistics_that_fail) {
    if (test_device.backend) SKIP("a device tells of an index out of range when its numbers are looked at");
    const int32_t beyond[2] = { 1, 2 };
    for (int i = 0; i < 2; i++) FLUX_SCOPE {
        flux_layer *m = flux_batchnorm(2);
        flux_tensor *bad = flux_gather(flux_ones(2), 0, flux_add(flux_from(beyond, 2), 1));
        flux_trainmode(m, true);
        REQUIRE(flux_set_param(m, i ? "var" : "mean", bad) == 0);
        CHECK_ERROR(flux_call(m, flux_ones(2, 3)), "gather");
        CHECK(flux_param(m, i ? "var" : "mean") == bad);
    }
}

TEST(batchnorm_frozen_and_first_in_the_model) {
    flux_layer *m = flux_chain(flux_batchnorm(2), flux_dense(2, 1));
    flux_state *opt = flux_setup(flux_adam(), m);
    flux_tensor *x = flux_eval(flux_randn(2, 8));
    flux_device cpu = { 0, 0 };
    int64_t live = 0;
    flux_freeze(flux_child(m, 0));
    for (int i = 0; i < 30; i++) FLUX_SCOPE {
        CHECK(flux_update(opt, m, flux_gradient(loss_of(flux_call(m, flux_add(x, 1.0))), m)) == 0);
        if (i == 10) live = flux_mem_stats(cpu).live;
    }
    CHECK(flux_mem_stats(cpu).live <= live);
    CHECK_DATA(flux_param(m, "layers.0.gamma"), ((double[]){ 1, 1 }), 0);
    double want = flux_at(flux_mean(x, 1), 0, 0) + 1;
    CHECK_NEAR(flux_at(flux_param(m, "layers.0.mean"), 0), want * (1 - pow(0.9, 30)), 5e-6);
}

TEST(norm_layers_move_save_and_load) {
    flux_layer *m = flux_chain(flux_conv_layer(S(3, 3), 1, 2, .pad = S(1)), flux_batchnorm(2, flux_relu), flux_maxpool_layer(S(2, 2)));
    flux_layer *other = flux_chain(flux_conv_layer(S(3, 3), 1, 2, .pad = S(1)), flux_batchnorm(2, flux_relu), flux_maxpool_layer(S(2, 2)));
    flux_tensor *x = flux_eval(flux_randn(4, 4, 1, 3));
    for (int i = 0; i < 3; i++) flux_eval(flux_call(m, x));
    char path[600];
    snprintf(path, sizeof path, "%s/flux_test_layers_conv.safetensors", test_temp());
    CHECK(flux_save(m, path) == 0 && flux_load(other, path) == 0);
    remove(path);
    flux_layer *copy = flux_to(test_device, flux_cpu(flux_copy_layer(m)));
    flux_testmode(m, true), flux_testmode(other, true), flux_testmode(copy, true);
    flux_tensor *y = flux_eval(flux_call(m, x));
    CHECK(flux_item(flux_sum(flux_abs(flux_param(m, "layers.1.mean")))) > 0);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(y, flux_call(other, x))))), 0, 0);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(y, flux_call(copy, x))))), 0, 0);
}

TEST(norm_of_half_formats_keeps_f32_statistics) {
    flux_layer *m = flux_f16(flux_chain(flux_conv_layer(S(1, 1), 2, 2), flux_batchnorm(2)));
    CHECK(flux_dtype_of(flux_param(m, "layers.1.gamma")) == FLUX_F32 && flux_dtype_of(flux_param(m, "layers.0.weight")) == FLUX_F16);
    flux_tensor *x = flux_to_dtype(flux_randn(4, 4, 2, 3), FLUX_F16), *y = flux_call(m, x);
    CHECK(flux_dtype_of(y) == FLUX_F16 && flux_dtype_of(flux_param(m, "layers.1.mean")) == FLUX_F32);
    CHECK_NEAR(flux_item(flux_mean(flux_square(flux_to_dtype(y, FLUX_F32)))), 1, 1e-2);
}

TEST(norm_text) {
    char text[600];
    CHECK_STR(text_of(flux_batchnorm(3)), "BatchNorm(3)");
    CHECK_STR(text_of(flux_batchnorm(2, flux_relu, .affine = FLUX_OFF)), "BatchNorm(2, relu, affine=false)");
    CHECK_STR(text_of(flux_instancenorm(2)), "InstanceNorm(2, affine=false)");
    CHECK_STR(text_of(flux_groupnorm(4, 2, flux_tanh)), "GroupNorm(4, 2, tanh)");
    flux_layer *m = flux_batchnorm(2, flux_relu);
    flux_layer_text(m, text, sizeof text);
    CHECK_STR(text, "BatchNorm(2, relu)  # 4 parameters, plus 4 non-trainable");
    flux_testmode(m, true);
    CHECK_STR(text_of(m), "BatchNorm(2, relu, active=false)");
    m = flux_chain(flux_dense(2, 3, flux_tanh), flux_batchnorm(3), flux_dense(3, 2));
    flux_layer_text(m, text, sizeof text);
    CHECK(strstr(text, "  BatchNorm(3),                         # 6 parameters, plus 6\n"));
    CHECK(strstr(text, ")         # Total: 6 trainable arrays, 23 parameters,\n"
                       "          # plus 2 non-trainable, 6 parameters, summarysize 116 bytes."));
}

TEST(weightnorm_as_pytorch) {
    flux_layer *inner = flux_f64(flux_conv_layer(S(2, 2), 2, 3));
    set(inner, "weight", 0.7, 0.6);
    set(inner, "bias", 0.2, 0.4);
    flux_layer *m = flux_weightnorm(inner, .dims = S(0, 1, 2));
    CHECK_STR(text_of(m), "WeightNorm(Conv((2, 2), 2 => 3), :weight, dims=(0, 1, 2))");
    flux_tensor *x = FILL(0.3, 1.1, 3, 3, 2, 1);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_call(m, x), flux_call(inner, x))))), 0, 1e-14);
    set(m, "g", 1.2, 1);
    flux_tensor *y = flux_call(m, x);
    CHECK_DATA(y, fix_weightnorm, 2e-8);
    flux_grads *g = flux_gradient(loss_of(y), m, x);
    CHECK_DATA(flux_grad(g, x), fix_weightnorm_gX, 2e-8);
    CHECK_DATA(flux_grad_param(g, m, "layer.weight"), fix_weightnorm_gV, 2e-8);
    CHECK_DATA(flux_grad_param(g, m, "g"), fix_weightnorm_gg, 2e-8);
    CHECK_DATA(flux_grad_param(g, m, "layer.bias"), fix_weightnorm_gb, 2e-8);
    flux_layer *plain = flux_remove_weightnorms(flux_chain(m, flux_flatten));
    CHECK_STR(text_of(flux_child(plain, 0)), "Conv((2, 2), 2 => 3)");
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_reshape(flux_call(plain, x), 2, 2, 3, 1), y)))), 0, 1e-14);
    CHECK_STR(text_of(flux_remove_weightnorms(flux_weightnorm(flux_dense(2, 3)))), "Dense(2 => 3)");
    check_gradients(flux_weightnorm(flux_dense(2, 3)), FILL(0.3, 1, 2, 2), false);
    flux_layer *twice = flux_weightnorm(flux_dense(3, 3, flux_tanh));    /* one layer before the fold, one after it */
    flux_layer *tied = flux_remove_weightnorms(flux_chain(twice, flux_chain(twice, flux_dense(3, 2)), flux_weightnorm(flux_dense(2, 2))));
    CHECK(flux_num_params(tied) == 3 * 3 + 3 + 3 * 2 + 2 + 2 * 2 + 2);
    CHECK(flux_param(tied, "layers.0.weight") == flux_param(tied, "layers.1.layers.0.weight"));
    flux_tensor *before = flux_call(flux_chain(twice, twice), flux_ones(3)), *after = flux_call(flux_chain(flux_child(tied, 0), flux_child(tied, 0)), flux_ones(3));
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(before, after)))), 0, 1e-6);
    for (int i = 0; i < 4; i++) {         /* the plain layer has its own name, else the WeightNorm's */
        flux_layer *in = flux_dense(2, 3), *out = flux_weightnorm(i & 1 ? flux_named("in", in) : in);
        const char *name = flux_remove_weightnorms(i & 2 ? flux_named("out", out) : out)->name;
        CHECK_STR(name ? name : "", i & 1 ? "in" : i & 2 ? "out" : "");
    }
    flux_layer *d = flux_weightnorm(flux_dense(2, 3));
    CHECK(flux_num_params(d) == 12 && flux_dim(flux_param(d, "g"), 0) == 3 && flux_dim(flux_param(d, "g"), 1) == 1);
}

/* ---- a model of them trains, moves along, and gives the same on any number of threads */

TEST(a_small_cnn_learns) {
    flux_seed(3);
    flux_tensor *x = flux_eval(flux_randn(8, 8, 1, 32));
    flux_tensor *top = flux_sum(flux_slice(x, 1, 0, 4), 0, 1), *low = flux_sum(flux_slice(x, 1, 4, 8), 0, 1);
    flux_tensor *y = flux_eval(flux_to_dtype(flux_reshape(flux_gt(top, low), 1, 32), FLUX_F32));
    flux_layer *m = flux_chain(flux_conv_layer(S(3, 3), 1, 6, .pad = FLUX_SAMEPAD), flux_batchnorm(6, flux_relu), flux_maxpool_layer(S(2, 2)),
                               flux_conv_layer(S(3, 3), 6, 8, flux_relu), flux_meanpool_layer(S(2, 2)), flux_flatten, flux_dense(8, 1));
    flux_state *opt = flux_setup(flux_adam(0.015), m);
    double first = 0, last = 0;
    for (int i = 0; i < 20; i++) FLUX_SCOPE {
        flux_tensor *loss = flux_logitbinarycrossentropy(flux_call(m, x), y);
        CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
        last = flux_item(loss);
        if (i == 0) first = last;
    }
    CHECK(first > 0.4 && last < 0.5 * first);
}

TEST(same_numbers_on_any_number_of_threads) {
    for (int wide = 20; wide <= 32; wide += 12) {      /* 32: windows read where they lie */
        flux_tensor *x = flux_eval(flux_randn(wide, 18, 12, 9)), *w = flux_eval(flux_randn(3, 3, 12, 20)), *r[2][3];
        for (int k = 0; k < 2; k++) {
            flux_threads(k ? 2 : 1);
            flux_tensor *y = flux_conv(x, w, .pad = S(1)), *loss = flux_sum(flux_sin(y));
            flux_grads *g = flux_gradient(loss, x, w);
            r[k][0] = flux_eval(flux_copy(y)), r[k][1] = flux_eval(flux_grad(g, x)), r[k][2] = flux_eval(flux_grad(g, w));
        }
        for (int i = 0; i < 3; i++) CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(r[0][i], r[1][i])))), 0, 0);
    }
    flux_threads(0);
}

/* ---- wrong calls */

TEST(wrong_convolutions) {
    flux_layer *m = flux_conv_layer(S(3, 3), 2, 4);
    CHECK_ERROR(flux_conv_layer(.in = 2, .out = 3), "the window has 0 numbers");
    CHECK_ERROR(flux_conv_layer(S(1, 1, 1, 1), 2, 3), "the window has 4 numbers");
    CHECK_ERROR(flux_conv_layer(S(3, 0), 2, 3), "the window is 0");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 0, 3), "conv_layer: size 0 is 0");
    CHECK_ERROR(flux_crosscor_layer(S(3, 3), 2, -1), "crosscor_layer: size 1 is -1");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .groups = 3), "does not divide 2 channels in and 4 out");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .stride = S(0)), "stride is 0");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .stride = S(1, 1, 1)), "stride has 3 numbers for 2 dims");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .pad = S(1, 1, 1)), "pad has 3 numbers for 2 dims");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .pad = S(-2, 0, 0, 0)), "negative padding");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .dilation = S(-1)), "dilation is -1");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, .outpad = S(1)), ".outpad is for ConvTranspose");
    CHECK_ERROR(flux_conv_layer(S(3, 3), 2, 4, flux_softmax), "softmax is no activation");
    CHECK_ERROR(flux_depthwiseconv(S(3, 3), 2, 4, .groups = 2), ".groups is the number of channels in");
    CHECK_ERROR(flux_depthwiseconv(S(3, 3), 2, 3), "does not divide");
    CHECK_ERROR(flux_conv_transpose_layer(S(3, 3), 2, 4, .outpad = S(-1)), "outpad is -1");
    CHECK_ERROR(flux_call(m, flux_ones(5, 5, 3, 1)), "Conv((3, 3), 2 => 4) expects dim 2 of size 2, got 5x5x3x1");
    CHECK_ERROR(flux_call(m, flux_ones(5, 5, 2)), "expects 2 spatial dims, channels and batch, got 5x5x2");
    CHECK_ERROR(flux_call(m, flux_ones(2, 5, 2, 1)), "does not fit into dim 0");
    CHECK_ERROR(flux_call(m, flux_ones(5, 5, 2, 1), flux_ones(1)), "takes one input, got 2");
    CHECK_ERROR(flux_call(flux_conv_transpose_layer(S(1), 1, 1, .pad = S(3)), flux_ones(2, 1, 1)), "padding leaves nothing");
    CHECK(flux_outputsize(m, 5, 5, 2, 7).ndim == 4);
}

TEST(wrong_pools_and_upsamplings) {
    CHECK_ERROR(flux_maxpool_layer(.stride = S(2)), "maxpool_layer: the window has 0 numbers");
    CHECK_ERROR(flux_meanpool_layer(S(2, 2), .stride = S(1, 2, 3)), "stride has 3 numbers");
    CHECK_ERROR(flux_maxpool_layer(S(2, 2), .pad = S(2)), "a padding as wide as the window");
    CHECK_ERROR(flux_lpnormpool_layer(S(2), .p = -1), ".p is -1");
    CHECK_ERROR(flux_adaptivemaxpool(S(0)), "the window is 0");
    CHECK_ERROR(flux_adaptivemeanpool(S(1, 1, 1, 1)), "4 numbers");
    CHECK_ERROR(flux_globallpnormpool(0), "globallpnormpool: p is 0");
    CHECK_ERROR(flux_call(flux_adaptivemaxpool(S(5)), flux_ones(4, 1, 1)), "can't make more than there is of dim 0");
    CHECK_ERROR(flux_call(flux_maxpool_layer(S(2, 2)), flux_ones(4, 4, 1)), "expects 2 spatial dims");
    CHECK_ERROR(flux_call(flux_globalmaxpool(), flux_ones(4, 4)), "GlobalMaxPool() expects 1 to 3 spatial dims");
    CHECK_ERROR(flux_upsample(FLUX_NEAREST), "one of .scale and .size");
    CHECK_ERROR(flux_upsample(.scale = { 2 }, .size = S(4)), "one of .scale and .size");
    CHECK_ERROR(flux_upsample(.scale = { 1.5 }), "nearest takes whole numbers");
    CHECK_ERROR(flux_upsample(FLUX_BILINEAR, .scale = { -1 }), ".scale[0] is -1");
    CHECK_ERROR(flux_upsample(FLUX_BILINEAR, .scale = { 2, 2, 2 }), ".scale has 3 numbers for bilinear");
    CHECK_ERROR(flux_upsample((flux_upsampling)9, .scale = { 2 }), "there is no mode 9");
    CHECK_ERROR(flux_call(flux_upsample(.size = S(5)), flux_ones(2, 1, 1)), "nearest makes whole multiples");
    CHECK_ERROR(flux_call(flux_upsample(FLUX_BILINEAR, .scale = { 2 }), flux_ones(2, 1, 1)), "expects 2 spatial dims");
    CHECK_ERROR(flux_pixelshuffle(0), "pixelshuffle: r is 0");
    CHECK_ERROR(flux_call(flux_pixelshuffle(2), flux_ones(2, 2, 6, 1)), "takes a multiple of 2 channels for each of 2 dims");
}

TEST(wrong_norms) {
    CHECK_ERROR(flux_batchnorm(0), "batchnorm: size 0 is 0");
    CHECK_ERROR(flux_batchnorm(2, .eps = -1), "batchnorm: .eps is -1");
    CHECK_ERROR(flux_instancenorm(2, .momentum = 2), "instancenorm: .momentum is 2");
    CHECK_ERROR(flux_groupnorm(5, 2), "2 groups do not divide 5 channels");
    CHECK_ERROR(flux_groupnorm(4, 0), "0 groups");
    CHECK_ERROR(flux_batchnorm(2, flux_softmax), "no activation");
    CHECK_ERROR(flux_call(flux_batchnorm(2), flux_ones(3, 4)), "BatchNorm(2) expects dim 0 of size 2");
    CHECK_ERROR(flux_call(flux_batchnorm(2), flux_ones(2)), "BatchNorm(2) expects");
    CHECK_ERROR(flux_call(flux_batchnorm(2), flux_ones(2, 1)), "one value a channel");
    CHECK_ERROR(flux_call(flux_instancenorm(2), flux_ones(2, 3)), "InstanceNorm(2, affine=false) expects");
    CHECK_ERROR(flux_call(flux_batchnorm(2), flux_ones(2, 3), flux_ones(2)), "takes one input");
    CHECK_ERROR(flux_weightnorm(NULL), "weightnorm: argument layer is NULL");
    CHECK_ERROR(flux_weightnorm(flux_dense(2, 2), "nothing"), "has no \"nothing\"");
    CHECK_ERROR(flux_weightnorm(flux_dense(2, 2), "bias"), "has no direction");
    CHECK_ERROR(flux_weightnorm(flux_dense(2, 2), .dims = S(2)), "has no dim 2");
    CHECK_ERROR(flux_remove_weightnorms(NULL), "remove_weightnorms: argument m is NULL");
}

/* ---- PyTorch's own files */

static flux_layer *torch_net(void) {
    return flux_chain(flux_conv_layer(S(3, 3), 1, 4, .pad = S(1)), flux_batchnorm(4, flux_relu), flux_maxpool_layer(S(2, 2)),
                      flux_conv_layer(S(5, 3), 4, 6, .stride = S(2), .pad = S(1), .groups = 2, .bias = FLUX_OFF),
                      flux_groupnorm(6, 3, flux_relu), flux_conv_transpose_layer(S(2, 2), 6, 3, .stride = S(2)),
                      flux_layernorm(S(4, 6)), flux_flatten, flux_dense(72, 5));
}
static const char torch_file[] = "tests/fixtures/torch.safetensors";
static const char torch_map[] = "layers.0 = conv1, layers.1 = bn1, layers.3 = conv2, layers.4=norm, layers.5 = up, layers.6 = ln, layers.8 = fc";

static flux_tensor *torch_input(flux_shape s, double a, double k) {
    static float v[288];
    for (int i = 0; i < 288; i++) v[i] = (float)sin(a + k * i);
    return flux_from_with(v, FLUX_F32, s);
}

TEST(torch_models_give_pytorchs_predictions) {
    flux_layer *m = torch_net(), *s = flux_chain(flux_dense(3, 4), flux_tanh, flux_chain(flux_dense(4, 4), flux_relu), flux_dense(4, 2));
    REQUIRE(flux_load_torch(m, torch_file, torch_map) == 0);
    flux_testmode(m, true);
    CHECK_DATA(flux_call(m, torch_input(S(12, 12, 1, 2), 0.5, 0.71)), fix_torch_net, 1e-5);
    REQUIRE(flux_load_torch(s, "tests/fixtures/torch_sequential.safetensors", NULL) == 0);
    CHECK_DATA(flux_call(s, torch_input(S(3, 2), 0.5, 1)), fix_torch_sequential, 1e-9);
    flux_layer *named = flux_chain(flux_named("conv1", flux_conv_layer(S(3, 3), 1, 4, .pad = S(1))), flux_named("bn1", flux_batchnorm(4)));
    REQUIRE(flux_load_torch(named, torch_file, "= conv2, = norm, = up, = ln, = fc") == 0);
    CHECK_NEAR(flux_at(flux_param(named, "layers.bn1.var"), 2), flux_at(flux_param(m, "layers.1.var"), 2), 0);
    flux_layer *half = flux_f16(flux_chain(flux_dense(3, 4), flux_tanh, flux_chain(flux_dense(4, 4), flux_relu), flux_dense(4, 7)));
    REQUIRE(flux_load_torch(half, "tests/fixtures/torch_sequential.safetensors", "layers.3 =, = 3") == 0);
    CHECK_NEAR(flux_at(flux_param(half, "layers.0.weight"), 1, 2), flux_at(flux_param(s, "layers.0.weight"), 1, 2), 1e-3);
}

/* What PyTorch wrote, loaded and saved again, is what PyTorch wrote: names, shapes and bits. */
TEST(torch_models_are_saved_as_pytorch_saves_them) {
    static const char *const names[] = { "conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var",
        "conv2.weight", "norm.weight", "norm.bias", "up.weight", "up.bias", "ln.weight", "ln.bias", "fc.weight", "fc.bias" };
    flux_layer *m = torch_net(), *again = torch_net();
    REQUIRE(flux_load_torch(m, torch_file, torch_map) == 0);
    REQUIRE(flux_save_torch(m, "build/torch_saved.safetensors", torch_map) == 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        flux_tensor *a = flux_cpu(flux_load_tensor(torch_file, names[i])), *b = flux_cpu(flux_load_tensor("build/torch_saved.safetensors", names[i]));
        REQUIRE(a && b && flux_len(a) == flux_len(b) && flux_ndim(a) == flux_ndim(b));
        for (int d = 0; d < flux_ndim(a); d++) CHECK(flux_dim(a, d) == flux_dim(b, d));
        CHECK(memcmp(flux_data(a), flux_data(b), (size_t)flux_len(a) * sizeof(float)) == 0);
    }
    flux_tensor *count = flux_load_tensor("build/torch_saved.safetensors", "bn1.num_batches_tracked");
    CHECK(count && flux_ndim(count) == 0 && flux_dtype_of(count) == FLUX_I64 && flux_item(count) == 0);
    CHECK(flux_load_torch(again, "build/torch_saved.safetensors", torch_map) == 0);
    CHECK(flux_save_torch(m, "build/torch_saved.safetensors", "layers.8 =, layers.6=, layers.0 = conv") == 0);
    CHECK_ERROR(flux_load_tensor("build/torch_saved.safetensors", "x"), "it holds no tensor x; it has 12: 1.bias, ");
    remove("build/torch_saved.safetensors");
    CHECK_ERROR(flux_save_torch(NULL, torch_file, NULL), "save_torch: argument m is NULL");
    CHECK_ERROR(flux_save_torch(m, NULL, NULL), "save_torch: argument path is NULL");
    CHECK_ERROR(flux_save_torch(m, "/nowhere/at.all", NULL), "save_torch: ");
    CHECK_ERROR(flux_save_torch(m, "/nowhere/at.all", "layers.0 conv1"), "save_torch: \"layers.0 conv1\" in the map is not of the form");
    CHECK_ERROR(flux_save_torch(m, "/nowhere/at.all", "layers.0 = a, layers.3 = a"), "save_torch: two tensors have the name a.weight");
}

TEST(wrong_torch_files) {
    flux_layer *m = torch_net();
    flux_tensor *before = flux_copy(flux_param(m, "layers.0.weight"));
    flux_eval(before);
    CHECK_ERROR(flux_load_torch(NULL, torch_file, NULL), "load_torch: argument m is NULL");
    CHECK_ERROR(flux_load_torch(m, NULL, NULL), "load_torch: argument path is NULL");
    CHECK_ERROR(flux_load_torch(m, "/nowhere/at.all", NULL), "load_torch: ");
    CHECK_ERROR(flux_load_torch(m, torch_file, "layers.0 conv1"), "is not of the form ours = theirs");
    CHECK_ERROR(flux_load_torch(m, torch_file, NULL), "it has no \"0.weight\", which would be layers.0.weight here");
    CHECK_ERROR(flux_load_torch(m, torch_file, "layers.0 = conv1, layers.1 = bn1, layers.3 = conv2, layers.4 = norm, layers.5 = up, layers.6 = ln, layers.8 ="),
                "it has \"fc.bias\", which nothing here takes");
    CHECK_ERROR(flux_load_torch(flux_chain(flux_conv_layer(S(3, 3), 1, 5)), torch_file, "layers.0 = conv1"),
                "conv1.weight is 3x3x1x4 f32 there, in our order, but layers.0.weight is 3x3x1x5 f32 here");
    CHECK_ERROR(flux_load_torch(flux_chain(flux_dense(3, 4)), "tests/fixtures/conv.h", NULL), "conv.h");
    CHECK_NEAR(flux_item(flux_sum(flux_abs(flux_sub(before, flux_param(m, "layers.0.weight"))))), 0, 0);
}

/* Windows of a padded image, which a processor pads slice by slice on the way, are those of the image padded before: values and
   gradients, bit by bit. 300 x 300 is more than is padded on the way. */
TEST(pooling_pads_on_the_way) {
    static const struct { int64_t w, h, channels, batch, window, stride, pad; } cases[] = {
        { 20, 17, 3, 2, 3, 2, 1 }, { 31, 16, 5, 3, 3, 1, 1 }, { 18, 40, 70, 2, 5, 2, 2 }, { 16, 24, 2, 1, 3, 3, 1 },
        { 56, 56, 8, 4, 3, 2, 1 }, { 300, 300, 2, 1, 3, 2, 1 }, { 40, 1, 6, 2, 3, 2, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int mean = 0; mean < 2; mean++) FLUX_SCOPE {
            const int64_t p = cases[i].pad;
            const flux_shape window = FLUX_SHAPE(cases[i].window, cases[i].window), stride = FLUX_SHAPE(cases[i].stride);
            flux_tensor *x = flux_eval(flux_randn(cases[i].w, cases[i].h, cases[i].channels, cases[i].batch));
            flux_tensor *y = mean ? flux_meanpool(x, window, .stride = stride, .pad = FLUX_SHAPE(p))
                                  : flux_maxpool(x, window, .stride = stride, .pad = FLUX_SHAPE(p));
            flux_tensor *g = flux_eval(flux_rand_with(flux_shape_of(y), FLUX_F32));
            flux_tensor *dx = flux_eval(flux_grad(flux_gradient(flux_sum(flux_mul(y, g)), x), x));
            FLUX_NOGRAD y = flux_eval(mean ? flux_meanpool(x, window, .stride = stride, .pad = FLUX_SHAPE(p))
                                           : flux_maxpool(x, window, .stride = stride, .pad = FLUX_SHAPE(p)));
            flux_tensor *wide = flux_eval(flux_pad(x, mean ? 0 : -1e30, p, p, p, p));
            flux_tensor *z = flux_eval(mean ? flux_meanpool(wide, window, .stride = stride) : flux_maxpool(wide, window, .stride = stride));
            flux_tensor *dw = flux_eval(flux_grad(flux_gradient(flux_sum(flux_mul(z, g)), wide), wide));
            dw = flux_slice(flux_slice(dw, 0, p, p + cases[i].w), 1, p, p + cases[i].h);
            CHECK(flux_item(flux_sum(flux_ne(y, z))) == 0);
            CHECK(flux_item(flux_sum(flux_ne(dx, dw))) == 0);
        }
}

/* The gradient of a max pooling whose windows overlap is added up window after window where nobody keeps it window by window: the
   same bits as where the record keeps it. */
TEST(a_pooling_gradient_is_the_same_where_nothing_is_kept) {
    static const int64_t size[][3] = { { 35, 1, 1 }, { 112, 30, 1 }, { 17, 9, 1 }, { 10, 7, 13 } }, window[] = { 3, 2, 4 }, stride[] = { 2, 1, 3 };
    for (int of = 0; of < 48; of++) FLUX_SCOPE {
        const int at = of % 4, nd = at ? at > 2 ? 3 : 2 : 1, k = of / 4 % 3, by = (of / 4 + of / 12) % 3;
        flux_shape s = FLUX_SHAPE(1), w = s, step = s, pad = s;
        s.ndim = nd + 2, w.ndim = step.ndim = pad.ndim = nd;
        for (int d = 0; d < nd; d++)
            s.dim[d] = size[at][d], w.dim[d] = window[(k + d) % 3], step.dim[d] = stride[by], pad.dim[d] = (of + d) % 2;
        s.dim[nd] = 3, s.dim[nd + 1] = 2;
        flux_tensor *x = flux_eval(of % 2 ? flux_randn_with(s, FLUX_F32) : flux_floor(flux_mul(flux_rand_with(s, FLUX_F32), 4)));
        flux_tensor *y = flux_maxpool(x, w, .stride = step, .pad = pad), *g = flux_randn_with(flux_shape_of(y), FLUX_F32);
        flux_tensor *loss = flux_sum(flux_mul(y, flux_eval(g))), *kept = flux_grad(flux_gradient(loss, x), x), *dx = NULL;
        FLUX_NOGRAD dx = flux_eval(flux_grad(flux_gradient(loss, x), x));
        const void *got = flux_data(flux_cpu(flux_copy(dx))), *want = flux_data(flux_cpu(flux_copy(flux_eval(kept))));
        CHECK(got && want && !memcmp(got, want, (size_t)flux_length(x) * 4));
    }
}

TEST_MAIN()
