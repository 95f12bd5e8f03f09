/* Layers with weights, dropout and initialisers: PyTorch's values and gradients, finite
   differences, statistics, text, and what must be refused. Containers and models are in
   test_models.c. */
#include "test.h"
#include "fixtures/layers.h"

static flux_tensor *fill(flux_shape s, double a, double k) {
    double v[64];
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    for (int64_t i = 0; i < n; i++) v[i] = k * sin(a + (double)i);
    return flux_from_with(v, FLUX_F64, s);
}
#define FILL(a, k, ...) fill(FLUX_SHAPE(__VA_ARGS__), a, k)

static const char *text_of(flux_layer *m) {
    static char text[300];
    size_t n = m && m->type->text ? m->type->text(m, text, sizeof text) : 0;
    return n && n < sizeof text ? text : "?";
}
static flux_tensor *grad_of(flux_tensor *loss, flux_tensor *x) {
    return flux_grad(flux_gradient(loss, x), x);
}

/* ---- Dense */

static flux_layer *dense_fixture(flux_fn act) {
    return flux_dense(.weight = FILL(0.1, 0.8, 2, 3), .bias_tensor = FILL(0.5, 0.3, 2), .activation = act);
}

TEST(dense_as_pytorch) {
    flux_layer *m = dense_fixture(flux_tanh);
    flux_tensor *x = FILL(1.0, 1.2, 3, 4), *y = flux_call(m, x), *loss = flux_sum(flux_square(y));
    CHECK_DATA(y, fix_dense, 2e-8);
    CHECK_DATA(flux_call(flux_dense(.weight = flux_weight(m), .b = flux_bias(m), .activation = flux_tanh), x), fix_dense, 2e-8);   /* its old name */
    flux_grads *g = flux_gradient(loss, m, x);
    CHECK_DATA(flux_grad(g, flux_weight(m)), fix_dense_gW, 2e-8);
    CHECK_DATA(flux_grad(g, flux_bias(m)), fix_dense_gb, 2e-8);
    CHECK_DATA(flux_grad(g, x), fix_dense_gX, 2e-8);
    CHECK_DATA(flux_grad_param(g, m, "weight"), fix_dense_gW, 2e-8);
}

TEST(dense_in_f32) {
    flux_layer *m = flux_f32(dense_fixture(flux_tanh));
    flux_tensor *x = flux_to_dtype(FILL(1.0, 1.2, 3, 4), FLUX_F32), *y = flux_call(m, x);
    CHECK(flux_dtype_of(y) == FLUX_F32);
    CHECK_DATA(y, fix_dense, 1e-6);
    CHECK_DATA(flux_grad(flux_gradient(flux_sum(flux_square(y)), m), flux_weight(m)), fix_dense_gW,
               3e-6);
}

TEST(dense_takes_trailing_dims_as_batch) {
    flux_layer *m = dense_fixture(NULL);
    flux_tensor *x = FILL(1.0, 1.2, 3, 2, 2), *y = flux_call(m, x);
    CHECK(flux_ndim(y) == 3 && flux_dim(y, 0) == 2 && flux_dim(y, 1) == 2 && flux_dim(y, 2) == 2);
    CHECK_DATA(y, fix_dense3, 2e-8);
    flux_grads *g = flux_gradient(flux_sum(flux_square(y)), m, x);
    CHECK_DATA(flux_grad(g, flux_weight(m)), fix_dense3_gW, 2e-8);
    CHECK_DATA(flux_grad(g, x), fix_dense3_gX, 2e-8);
}

TEST(dense_of_a_vector_is_a_vector) {
    flux_tensor *y = flux_call(dense_fixture(flux_tanh), FILL(1.0, 1.2, 3));
    CHECK(flux_ndim(y) == 1);
    CHECK_DATA(y, ((double[]){ fix_dense[0], fix_dense[1] }), 2e-8);
}

TEST(dense_of_an_empty_batch) {
    flux_tensor *y = flux_call(flux_dense(3, 2), flux_zeros(3, 0));
    CHECK(flux_ndim(y) == 2 && flux_dim(y, 0) == 2 && flux_dim(y, 1) == 0);
    y = flux_call(flux_dense(3, 2, flux_relu), flux_zeros(3, 2, 0));
    CHECK(flux_ndim(y) == 3 && flux_dim(y, 0) == 2 && flux_dim(y, 2) == 0);
}

TEST(dense_starts_with_zero_bias_and_glorot_weights) {
    flux_layer *m = flux_dense(100, 50);
    CHECK(flux_dim(flux_weight(m), 0) == 50 && flux_dim(flux_weight(m), 1) == 100 &&
          flux_dtype_of(flux_weight(m)) == FLUX_F32);
    CHECK(flux_dim(flux_bias(m), 0) == 50 && flux_item(flux_max(flux_abs(flux_bias(m)))) == 0);
    double most = flux_item(flux_max(flux_abs(flux_weight(m))));
    CHECK(most <= sqrt(6.0 / 150) && most > 0.97 * sqrt(6.0 / 150));
}

TEST(dense_without_bias) {
    flux_layer *m = flux_dense(3, 2, flux_relu, .bias = FLUX_OFF);
    CHECK(flux_params(m, NULL, 0) == 1 && flux_num_params(m) == 6);
    CHECK_ERROR(flux_bias(m), "bias: Dense(3 => 2, relu; bias=false) has none");
    CHECK_NEAR(flux_item(flux_sum(flux_call(m, flux_zeros(3, 2)))), 0, 0);
}

TEST(dense_text) {
    CHECK_STR(text_of(flux_dense(10, 5)), "Dense(10 => 5)");
    CHECK_STR(text_of(flux_dense(10, 5, flux_identity)), "Dense(10 => 5)");
    CHECK_STR(text_of(flux_dense(10, 5, flux_tanh, .bias = FLUX_OFF)),
              "Dense(10 => 5, tanh; bias=false)");
    CHECK_STR(text_of(flux_dense(10, 5, flux_sigmoid, .bias = FLUX_OFF)),
              "Dense(10 => 5, \xcf\x83; bias=false)");
    flux_print_ascii(true);
    CHECK_STR(text_of(flux_dense(10, 5, flux_sigmoid)), "Dense(10 => 5, sigmoid)");
    flux_print_ascii(false);
}

static flux_tensor *my_act(flux_tensor *x) { return flux_mul(x, 3); }
static flux_tensor *other_act(flux_tensor *x) { return flux_mul(x, 4); }

TEST(names_of_activations) {
    CHECK_STR(text_of(flux_dense(2, 2, my_act)), "Dense(2 => 2, function)");
    flux_name_function(my_act, "triple");
    CHECK_STR(text_of(flux_dense(2, 2, my_act)), "Dense(2 => 2, triple)");
    flux_name_function(my_act, "thrice");
    CHECK_STR(text_of(flux_dense(2, 2, my_act)), "Dense(2 => 2, thrice)");
    CHECK_STR(text_of(flux_dense(2, 2, flux_leakyrelu)), "Dense(2 => 2, leakyrelu)");
    CHECK_STR(text_of(flux_dense(2, 2, other_act)), "Dense(2 => 2, function)");
    CHECK_ERROR(flux_name_function(NULL, "x"), "name_function: argument f is NULL");
    CHECK_ERROR(flux_name_function(my_act, NULL), "name_function: argument name is NULL");
}

TEST(dense_refuses) {
    flux_layer *m = flux_dense(2, 3);
    CHECK_ERROR(flux_call(m, flux_ones(3, 4)),
                "Dense(2 => 3) expects dim 0 of size 2, got 3x4 f32");
    CHECK_ERROR(flux_call(m, flux_scalar(1)),
                "Dense(2 => 3) expects dim 0 of size 2, got scalar f32");
    CHECK_ERROR(flux_call(m, flux_ones(2), flux_ones(2)), "Dense(2 => 3) takes one input, got 2");
    CHECK_ERROR(flux_dense(0, 3), "dense: size 1 is 0");
    CHECK_ERROR(flux_dense(3, -1), "dense: size 0 is -1");
    CHECK_ERROR(flux_dense(1000000000, 1000000000),
                "dense: a tensor of 1e+18 elements is too large");
    CHECK_ERROR(flux_dense(2, 3, flux_softmax), "softmax is no activation");
    CHECK_ERROR(flux_dense(2, 3, flux_logsoftmax), "flux_chain(flux_dense(...), flux_logsoftmax)");
    CHECK_ERROR(flux_dense(.weight = flux_ones(3)),
                "dense: .weight must be a floating matrix, out x in, not 3-element f32");
    CHECK_ERROR(flux_dense(4, 3, .weight = flux_ones(3, 5)),
                "dense: .weight must be a floating matrix, out x in as given, not 3x5 f32");
    CHECK_ERROR(flux_dense(.weight = flux_ones(3, 0)), "dense: size 1 is 0");      /* sizes of one's own are sizes, too */
    CHECK_ERROR(flux_dense(.weight = flux_ones(0, 5)), "dense: size 0 is 0");
    CHECK_ERROR(flux_dense(.weight = flux_ones(3, 5), .bias_tensor = flux_ones(5)),
                "dense: .bias_tensor must be a vector of 3");
    CHECK_ERROR(flux_dense(5, 3, .b = flux_ones(3), .bias = FLUX_OFF), ".bias not off");
}

static flux_tensor *bad_init(flux_shape s) { (void)s; return flux_ones(2, 2); }
static flux_tensor *no_init(flux_shape s) { (void)s; return NULL; }
static flux_tensor *double_init(flux_shape s) { return flux_full_with(s, 0.5, FLUX_F64); }

TEST(initialisers_of_the_users_own) {
    flux_layer *m = flux_dense(2, 3, .init = double_init);
    CHECK(flux_dtype_of(flux_weight(m)) == FLUX_F64 && flux_dtype_of(flux_bias(m)) == FLUX_F64);
    CHECK_NEAR(flux_item(flux_sum(flux_call(m, flux_to_dtype(flux_ones(2), FLUX_F64)))), 3, 0);
    CHECK_ERROR(flux_dense(2, 3, .init = bad_init),
                "dense: .init gave 2x2 f32 where 3x2 floating numbers were asked for");
    CHECK_ERROR(flux_dense(2, 3, .init = no_init), "dense: .init gave NULL");
}

static int warnings;
static void count_warning(flux_level level, const char *id, const char *message, void *user) {
    (void)message, (void)user;
    if (level == FLUX_LOG_WARN && !strcmp(id, "layer.dtype")) warnings++;
}

TEST(input_takes_the_weights_dtype) {
    flux_layer *m = flux_dense(2, 3);
    int32_t n[2] = { 1, 2 };
    flux_silence(NULL);
    flux_on_log(count_warning, NULL);
    warnings = 0;
    CHECK(flux_dtype_of(flux_call(m, flux_from(n, 2))) == FLUX_F32 && warnings == 0);
    CHECK(flux_dtype_of(flux_call(m, flux_to_dtype(flux_ones(2), FLUX_F16))) == FLUX_F32 &&
          warnings == 0);
    CHECK(flux_dtype_of(flux_call(m, flux_to_dtype(flux_ones(2), FLUX_F64))) == FLUX_F32 &&
          warnings == 1);
    flux_call(m, flux_to_dtype(flux_ones(2), FLUX_F64));
    CHECK(warnings == 1);
    flux_silence(NULL);
    flux_call(flux_f16(m), flux_ones(2));
    CHECK(warnings == 2);
    flux_on_log(NULL, NULL);
}

/* ---- Scale, Bilinear */

TEST(scale_values) {
    flux_layer *m = flux_scale(FLUX_SHAPE(3), flux_relu);
    float s[3] = { 2, -1, 0.5f }, b[3] = { 1, 0, -1 }, x[6] = { 1, 2, 3, -1, -2, -3 };
    CHECK(flux_set_param(m, "scale", flux_from(s, 3)) == 0 &&
          flux_set_param(m, "bias", flux_from(b, 3)) == 0);
    CHECK_DATA(flux_call(m, flux_from(x, 3, 2)), ((double[]){ 3, 0, 0.5, 0, 2, 0 }), 1e-7);
    CHECK_DATA(flux_call(flux_scale(FLUX_SHAPE(2)), flux_ones(2)), ((double[]){ 1, 1 }), 0);
    flux_tensor *y = flux_call(flux_scale(FLUX_SHAPE(1, 4), .bias = FLUX_OFF), flux_ones(3, 4));
    CHECK(flux_dim(y, 0) == 3 && flux_dim(y, 1) == 4 && flux_item(flux_sum(y)) == 12);
}

TEST(scale_text_and_errors) {
    CHECK_STR(text_of(flux_scale(FLUX_SHAPE(3))), "Scale(3)");
    CHECK_STR(text_of(flux_scale(FLUX_SHAPE(1, 4), flux_square, .bias = FLUX_OFF)),
              "Scale(1, 4, square; bias=false)");
    CHECK_ERROR(flux_call(flux_scale(FLUX_SHAPE(3)), flux_ones(4, 2)),
                "Scale(3) expects dim 0 of size 3, got 4x2 f32");
    CHECK_ERROR(flux_scale(.bias = FLUX_OFF), "scale: .size is missing");
    CHECK_ERROR(flux_scale(FLUX_SHAPE(3, 0)), "scale: size 1 is 0");
    CHECK_ERROR(flux_scale(FLUX_SHAPE(3), flux_softmax), "scale: softmax is no activation");
}

TEST(bilinear_as_pytorch) {
    flux_layer *m = flux_f64(flux_bilinear(3, 2, 4));
    CHECK(flux_set_param(m, "weight", FILL(0.2, 0.7, 4, 3, 2)) == 0 &&
          flux_set_param(m, "bias", FILL(0.9, 0.4, 4)) == 0);
    flux_tensor *a = FILL(0.3, 1.1, 3, 5), *b = FILL(1.3, 0.9, 2, 5), *y = flux_call(m, a, b);
    CHECK_DATA(y, fix_bilinear, 2e-8);
    flux_grads *g = flux_gradient(flux_sum(flux_square(y)), m, a, b);
    CHECK_DATA(flux_grad(g, flux_weight(m)), fix_bilinear_gW, 2e-8);
    CHECK_DATA(flux_grad(g, flux_bias(m)), fix_bilinear_gb, 2e-8);
    CHECK_DATA(flux_grad(g, a), fix_bilinear_gA, 2e-8);
    CHECK_DATA(flux_grad(g, b), fix_bilinear_gB, 2e-8);
}

TEST(bilinear_shapes) {
    flux_layer *m = flux_bilinear(3, 2, 4, .bias = FLUX_OFF), *same = flux_bilinear(3, 3, 2);
    CHECK(flux_ndim(flux_call(m, flux_ones(3), flux_ones(2))) == 1);
    flux_tensor *y = flux_call(m, flux_ones(3, 5, 2), flux_ones(2, 5, 2));
    CHECK(flux_ndim(y) == 3 && flux_dim(y, 0) == 4 && flux_dim(y, 1) == 5 && flux_dim(y, 2) == 2);
    flux_tensor *x = flux_rand(3, 4), *gap = flux_sub(flux_call(same, x), flux_call(same, x, x));
    CHECK_NEAR(flux_item(flux_max(flux_abs(gap))), 0, 0);
}

TEST(bilinear_text_and_errors) {
    flux_layer *m = flux_bilinear(8, 16, 4, flux_tanh, .bias = FLUX_OFF);
    CHECK_STR(text_of(m), "Bilinear((8, 16) => 4, tanh; bias=false)");
    CHECK_STR(text_of(flux_bilinear(3, 3, 2)), "Bilinear(3 => 2)");
    CHECK_ERROR(flux_call(m, flux_ones(8, 2), flux_ones(8, 2)),
                "expects dim 0 of size 16, got 8x2 f32");
    CHECK_ERROR(flux_call(m, flux_ones(8)), "expects dim 0 of size 16");
    CHECK_ERROR(flux_call(m, flux_ones(8, 2), flux_ones(16, 3)),
                "its inputs 8x2 f32 and 16x3 f32 differ in more than dim 0");
    CHECK_ERROR(flux_call(m, flux_ones(8), flux_ones(16), flux_ones(2)),
                "takes one or two inputs, got 3");
    CHECK_ERROR(flux_bilinear(8, 0, 4), "bilinear: size 2 is 0");
}

/* ---- Embedding */

static const int64_t places[6] = { 0, 4, 2, 2, 1, 4 };

static flux_layer *embedding_fixture(bool pad) {
    flux_layer *m =
        flux_f64(flux_embedding(5, 3, .pad = pad ? FLUX_ON : FLUX_OFF, .padding_idx = 2));
    flux_set_param(m, "weight", FILL(0.4, 1.0, 3, 5));
    return m;
}

TEST(embedding_as_pytorch) {
    flux_layer *m = embedding_fixture(false);
    flux_tensor *y = flux_call(m, flux_from(places, 6));
    CHECK_DATA(y, fix_embedding, 2e-8);
    CHECK_DATA(grad_of(flux_sum(flux_square(y)), flux_weight(m)), fix_embedding_gW, 2e-8);
}

TEST(embedding_padding_as_pytorch) {
    flux_layer *m = embedding_fixture(true);
    flux_tensor *y = flux_call(m, flux_from(places, 6));
    CHECK_DATA(y, fix_embedding_pad, 2e-8);
    CHECK_DATA(grad_of(flux_sum(flux_add(flux_square(y), flux_mul(y, 3))), flux_weight(m)),
               fix_embedding_pad_gW, 2e-8);
}

TEST(embedding_of_onehot_columns) {
    for (int pad = 0; pad < 2; pad++) {
        flux_layer *m = embedding_fixture(pad == 1);
        flux_tensor *y = flux_call(m, flux_onehot(flux_from(places, 6), 5));
        if (pad) CHECK_DATA(y, fix_embedding_pad, 2e-8);
        else CHECK_DATA(y, fix_embedding, 2e-8);
        flux_tensor *g =
            grad_of(flux_sum(flux_add(flux_square(y), flux_mul(y, pad ? 3 : 0))), flux_weight(m));
        if (pad) CHECK_DATA(g, fix_embedding_pad_gW, 2e-8);
        else CHECK_DATA(g, fix_embedding_gW, 2e-8);
    }
}

TEST(embedding_shapes_and_dtypes) {
    flux_layer *m = embedding_fixture(false);
    uint8_t small[4] = { 1, 2, 3, 4 };
    int32_t one = 4;
    flux_tensor *y = flux_call(m, flux_from(small, 2, 2));
    CHECK(flux_ndim(y) == 3 && flux_dim(y, 0) == 3 && flux_dim(y, 1) == 2 && flux_dim(y, 2) == 2);
    y = flux_call(m, flux_reshape_with(flux_from(&one, 1), flux_shape_of(flux_scalar(0))));
    CHECK(flux_ndim(y) == 1 && flux_dim(y, 0) == 3);
    CHECK_NEAR(flux_at(y, 0), sin(0.4 + 12), 1e-9);
    y = flux_call(m, flux_reshape(flux_onehot(flux_from(small, 4), 5), 5, 2, 2));
    CHECK(flux_ndim(y) == 3 && flux_dim(y, 2) == 2);
}

TEST(embedding_padding_starts_zero) {
    flux_layer *m = flux_embedding(6, 4, .padding_idx = 5),
               *first = flux_embedding(6, 4, .pad = FLUX_ON);
    CHECK_NEAR(flux_item(flux_norm(flux_slice(flux_weight(m), 1, 5, 6))), 0, 0);
    CHECK(flux_item(flux_norm(flux_slice(flux_weight(m), 1, 0, 5))) > 0.5);
    CHECK_NEAR(flux_item(flux_norm(flux_slice(flux_weight(first), 1, 0, 1))), 0, 0);
    CHECK(flux_item(flux_norm(flux_slice(flux_weight(flux_embedding(6, 4)), 1, 0, 1))) > 0.05);
}

/* Whichever column is the padding's, its outputs are 0 and it learns nothing, whatever it holds; all others do. */
TEST(embedding_of_any_padding) {
    flux_tensor *every = flux_to_dtype(flux_arange(0, 5, 1), FLUX_I32);
    for (int k = -2; k < 5; k++) {
        flux_layer *fresh = k < -1 ? flux_embedding(5, 3) : k == -1 ? flux_embedding(5, 3, .pad = FLUX_ON) : flux_embedding(5, 3, .padding_idx = k);
        flux_layer *m = flux_restructure(fresh, flux_ones(15));
        flux_tensor *y = flux_call(m, every), *g = flux_grad_param(flux_gradient(flux_sum(y), m), m, "weight");
        for (int i = 0; i < 5; i++) {
            const int padding = k == -1 ? 0 : k;
            CHECK(flux_at(y, 0, i) == (i != padding) && flux_at(y, 2, i) == (i != padding) && flux_at(g, 1, i) == (i != padding));
        }
    }
}

TEST(embedding_text_and_errors) {
    CHECK_STR(text_of(flux_embedding(26, 4)), "Embedding(26 => 4)");
    CHECK_STR(text_of(flux_embedding(26, 4, .padding_idx = 1)),
              "Embedding(26 => 4, padding_idx=1)");
    CHECK_ERROR(flux_embedding(26, 4, .padding_idx = 26),
                "embedding: .padding_idx is 26, indices are 0 to 25");
    CHECK_ERROR(flux_embedding(26, 4, .padding_idx = -1), "embedding: .padding_idx is -1");
    CHECK_ERROR(flux_embedding(0, 4), "embedding: size 1 is 0");
    CHECK_ERROR(flux_call(flux_embedding(26, 4), flux_ones(3, 4)),
                "Embedding(26 => 4) takes integer indices or bool columns, got 3x4 f32");
    CHECK_ERROR(flux_call(flux_embedding(26, 4), flux_onehot(flux_from(places, 6), 5)),
                "Embedding(26 => 4) expects dim 0 of size 26, got 5x6 bool");
}

/* ---- LayerNorm, normalise */

TEST(layernorm_as_pytorch) {
    flux_layer *m = flux_f64(flux_layernorm(FLUX_SHAPE(4)));
    CHECK(flux_set_param(m, "diag.scale", FILL(0.2, 1.5, 4)) == 0 &&
          flux_set_param(m, "diag.bias", FILL(1.1, 0.5, 4)) == 0);
    flux_tensor *x = FILL(0.7, 2.0, 4, 3), *y = flux_call(m, x);
    CHECK_DATA(y, fix_layernorm, 2e-8);
    flux_grads *g = flux_gradient(flux_sum(flux_square(y)), m, x);
    CHECK_DATA(flux_grad(g, x), fix_layernorm_gX, 5e-8);
    CHECK_DATA(flux_grad(g, flux_param(m, "diag.scale")), fix_layernorm_gs, 3e-8);
    CHECK_DATA(flux_grad(g, flux_param(m, "diag.bias")), fix_layernorm_gb, 3e-8);
}

TEST(layernorm_over_two_dims) {
    flux_layer *m = flux_layernorm(FLUX_SHAPE(2, 3), .affine = FLUX_OFF, .eps = 1e-3);
    flux_tensor *x = FILL(0.7, 2.0, 2, 3, 2), *y = flux_call(m, x),
                *cube = flux_mul(y, flux_square(y));
    CHECK(flux_num_params(m) == 0 && flux_dtype_of(y) == FLUX_F64);
    CHECK_DATA(y, fix_layernorm2, 2e-8);
    CHECK_DATA(grad_of(flux_sum(cube), x), fix_layernorm2_gX, 3e-8);
}

TEST(layernorm_in_half_formats) {
    float x[4] = { 300, 301, 302, 303 };   /* their squares do not fit into f16 */
    double want[4] = { -1.3416354, -0.4472118, 0.4472118, 1.3416354 };
    flux_tensor *h = flux_to_dtype(flux_from(x, 4), FLUX_F16),
                *y = flux_call(flux_layernorm(FLUX_SHAPE(4), .affine = FLUX_OFF), h);
    CHECK(flux_dtype_of(y) == FLUX_F16);
    CHECK_DATA(y, want, 1e-3);
}

TEST(layernorm_text_and_errors) {
    CHECK_STR(text_of(flux_layernorm(FLUX_SHAPE(3))), "LayerNorm(3)");
    CHECK_STR(text_of(flux_layernorm(FLUX_SHAPE(3, 4), flux_tanh, .affine = FLUX_OFF)),
              "LayerNorm(3, 4, tanh, affine=false)");
    CHECK_ERROR(flux_layernorm(.eps = 1e-5), "layernorm: .size is missing");
    CHECK_ERROR(flux_layernorm(FLUX_SHAPE(3), .eps = -1), "layernorm: .eps is -1");
    CHECK_ERROR(flux_layernorm(FLUX_SHAPE(3), .eps = NAN), "layernorm: .eps is");
    CHECK_ERROR(flux_call(flux_layernorm(FLUX_SHAPE(3)), flux_ones(4, 3)),
                "LayerNorm(3) expects dim 0 of size 3, got 4x3 f32");
    CHECK_ERROR(flux_call(flux_layernorm(FLUX_SHAPE(4, 3)), flux_ones(4)),
                "LayerNorm(4, 3) expects dim 1 of size 3, got 4-element f32");
    CHECK(flux_item(
              flux_min(flux_call(flux_layernorm(FLUX_SHAPE(4), flux_relu), flux_rand(4, 2)))) == 0);
}

TEST(normalise_adds_eps_to_the_variance) {
    double x[5] = { 90, 100, 110, 130, 70 };
    flux_tensor *y = flux_normalise(flux_from(x, 5), FLUX_SHAPE(0), 1e-5);
    CHECK_NEAR(flux_at(y, 0), -0.49999999375, 1e-15);
    float m[4] = { 1, 3, 5, 11 };
    CHECK_DATA(flux_normalise(flux_from(m, 2, 2), FLUX_SHAPE(1), 0), ((double[]){ -1, -1, 1, 1 }),
               1e-6);
    CHECK_ERROR(flux_normalise(flux_ones(2), FLUX_SHAPE(1), 0),
                "normalise: 2-element f32 has no dim 1");
    CHECK_ERROR(flux_normalise(flux_ones(2), FLUX_SHAPE(0), -1), "normalise: eps is -1");
    CHECK_ERROR(flux_normalise(NULL, FLUX_SHAPE(0), 0), "NULL");
}

/* ---- Dropout */

TEST(dropout_drops_and_scales) {
    flux_seed(3);
    flux_tensor *x = flux_full(2, 100, 200), *y = flux_call(flux_dropout(0.4), x);
    double kept = flux_item(flux_mean(flux_ne(y, 0)));
    CHECK_NEAR(kept, 0.6, 4 * sqrt(0.24 / 20000));
    CHECK_NEAR(flux_item(flux_max(y)), 2 / 0.6, 1e-6);
    CHECK_NEAR(flux_item(flux_sum(y)), kept * 20000 * 2 / 0.6, 5e-7);
    flux_tensor *again = flux_call(flux_dropout(0.4), x);
    CHECK(flux_item(flux_mean(flux_to_dtype(flux_ne(y, again), FLUX_F32))) > 0.4);
    flux_seed(3);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_call(flux_dropout(0.4), x), y)))), 0, 0);
}

TEST(dropout_gradient_uses_the_same_mask) {
    flux_tensor *x = flux_ones(1000), *y = flux_call(flux_dropout(0.5), x);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(grad_of(flux_sum(y), x), y)))), 0, 0);
}

TEST(dropout_at_the_ends) {
    flux_tensor *x = flux_full(INFINITY, 5);
    CHECK(flux_call(flux_dropout(0.0), x) == x);
    CHECK(flux_call(flux_dropout(0.0), x) == x && flux_call(flux_alphadropout(0), x) == x);
    CHECK_NEAR(flux_item(flux_sum(flux_call(flux_dropout(1.0), x))), 0, 0);
    CHECK_NEAR(flux_item(flux_sum(flux_call(flux_alphadropout(1.0), x))), 0, 0);
    flux_tensor *none = flux_call(flux_alphadropout(1.0), flux_full_with(FLUX_SHAPE(2, 3), NAN, FLUX_F64));
    CHECK(flux_dtype_of(none) == FLUX_F64 && flux_len(none) == 6 && flux_item(flux_sum(none)) == 0);
    flux_tensor *y = flux_ones(3), *g = grad_of(flux_sum(flux_call(flux_dropout(1.0), y)), y);
    CHECK(g != NULL);
    CHECK_NEAR(flux_item(flux_norm(g)), 0, 0);
}

TEST(dropout_mask_along_dims) {
    flux_seed(4);
    flux_tensor *y = flux_call(flux_dropout(0.5, FLUX_SHAPE(1)), flux_ones(4, 64));
    CHECK_NEAR(flux_item(flux_max(flux_sub(flux_max(y, 0), flux_min(y, 0)))), 0, 0);
    double kept = flux_item(flux_mean(flux_ne(y, 0)));
    CHECK(kept > 0.2 && kept < 0.8);
    CHECK_ERROR(flux_call(flux_dropout(0.5, FLUX_SHAPE(2)), flux_ones(4, 4)),
                "Dropout(0.5, dims=2): its input is 4x4 and has no dim 2");
}

TEST(dropout_modes) {
    flux_layer *m = flux_dropout(0.5);
    flux_tensor *x = flux_ones(1000);
    flux_testmode(m, true);
    CHECK(flux_call(m, x) == x);
    CHECK_STR(text_of(m), "Dropout(0.5, active=false)");
    flux_testmode(m, false);
    FLUX_NOGRAD { CHECK(flux_call(m, x) == x); }
    CHECK(flux_call(m, x) != x);
    flux_trainmode(m, true);
    FLUX_NOGRAD { CHECK(flux_call(m, x) != x); }
    CHECK_STR(text_of(m), "Dropout(0.5, active=true)");
    flux_trainmode(m, false);
    CHECK_STR(text_of(m), "Dropout(0.5)");
}

TEST(dropout_text_and_errors) {
    CHECK_STR(text_of(flux_dropout(0.4)), "Dropout(0.4)");
    CHECK_STR(text_of(flux_dropout(0.4, FLUX_SHAPE(0, 2))), "Dropout(0.4, dims=(0, 2))");
    CHECK_STR(text_of(flux_alphadropout(0.25)), "AlphaDropout(0.25)");
    CHECK_ERROR(flux_dropout(1.5), "dropout: p is 1.5, which is not within 0 to 1");
    CHECK_ERROR(flux_dropout(-0.1), "dropout: p is -0.1");
    CHECK_ERROR(flux_dropout(NAN), "dropout: p is");
    CHECK_ERROR(flux_alphadropout(2), "alphadropout: p is 2");
    CHECK_ERROR(flux_dropout(0.4, FLUX_SHAPE(-1)), "dropout: .dims names a dim that no tensor has");
}

TEST(dropout_of_integers_is_float) {
    int32_t v[4] = { 3, 3, 3, 3 };
    flux_tensor *y = flux_call(flux_dropout(0.5), flux_from(v, 4));
    CHECK(flux_dtype_of(y) == FLUX_F32);
    CHECK(flux_item(flux_max(y)) == 6 || flux_item(flux_max(y)) == 0);
}

TEST(alphadropout_keeps_mean_and_variance) {
    flux_seed(6);
    flux_tensor *x = flux_randn(200000), *y = flux_call(flux_alphadropout(0.3), x);
    CHECK_NEAR(flux_item(flux_mean(y)), 0, 4 / sqrt(200000.0));
    CHECK_NEAR(flux_item(flux_var(y)), 1, 0.05);
    double p = 0.3, low = -1.7580993408473766, a = 1 / sqrt((1 - p) * (1 + p * low * low));
    CHECK_NEAR(flux_item(flux_mean(flux_lt(flux_abs(flux_sub(y, a * low - a * low * p)), 1e-5))), p,
               4 * sqrt(p * (1 - p) / 200000));
}

/* ---- initialisers */

static void check_spread(flux_tensor *w, double std, int line) {
    double n = (double)flux_len(w), mean = flux_item(flux_mean(w)), var = flux_item(flux_var(w));
    bool good = fabs(mean) <= 4 * std / sqrt(n) && fabs(var / (std * std) - 1) <= 0.05 &&
                flux_dtype_of(w) == FLUX_F32;
    if (!CHECK(good))
        fprintf(stderr, "    line %d: mean %g, variance %g, not %g\n", line, mean, var, std * std);
}
#define SPREAD(w, std) check_spread(w, std, __LINE__)

TEST(spread_of_initialisers) {
    flux_shape s = FLUX_SHAPE(200, 300), k = FLUX_SHAPE(3, 5, 20, 40);   /* fans: 300, 600 */
    flux_seed(11);
    SPREAD(flux_glorot_uniform(s), sqrt(2 / 500.0));
    SPREAD(flux_glorot_uniform(k), sqrt(2 / 900.0));
    SPREAD(flux_glorot_normal(s), sqrt(2 / 500.0));
    SPREAD(flux_glorot_normal(k), sqrt(2 / 900.0));
    SPREAD(flux_kaiming_uniform(s), sqrt(2 / 300.0));
    SPREAD(flux_kaiming_normal(s), sqrt(2 / 300.0));
    SPREAD(flux_kaiming_normal(k), sqrt(2 / 300.0));
    SPREAD(flux_truncated_normal(s), sqrt(0.77374));   /* 1 - 4 phi(2) / (2 Phi(2) - 1) */
    SPREAD(flux_lecun_normal(s), sqrt(1 / 300.0));
    SPREAD(flux_randn32(s), 1);
    SPREAD(flux_sub(flux_rand32(s), 0.5), sqrt(1 / 12.0));
    SPREAD(flux_init("glorot_normal", s, .gain = 3), 3 * sqrt(2 / 500.0));
    SPREAD(flux_init("kaiming_uniform", s, .gain = 1), sqrt(1 / 300.0));
    SPREAD(flux_init("glorot_uniform", s, .gain = 3), 3 * sqrt(2 / 500.0));
    SPREAD(flux_init("kaiming_normal", s, .gain = 3), 3 * sqrt(1 / 300.0));
    SPREAD(flux_init("lecun_normal", s, .gain = 3), 3 * sqrt(1 / 300.0));
}

static void check_bound(flux_tensor *w, double bound, int line) {
    double least = flux_item(flux_min(w)), most = flux_item(flux_max(w));
    if (!CHECK(most <= bound && most > 0.95 * bound && -least <= bound && -least > 0.95 * bound))
        fprintf(stderr, "    line %d: %g to %g, not just within %g\n", line, least, most, bound);
}
#define BOUND(w, b) check_bound(w, b, __LINE__)

TEST(bounds_of_initialisers) {
    flux_seed(12);
    BOUND(flux_glorot_uniform(FLUX_SHAPE(100, 100)), 0.1732051);
    BOUND(flux_glorot_uniform(FLUX_SHAPE(10, 100)), 0.2335497);
    BOUND(flux_kaiming_uniform(FLUX_SHAPE(100, 10)), 0.7745968);
    BOUND(flux_truncated_normal(FLUX_SHAPE(100, 100)), 2);
    BOUND(flux_lecun_normal(FLUX_SHAPE(10000, 1)), 2);      /* of standard deviation 1 before it is cut */
    BOUND(flux_sub(flux_init("truncated_normal", FLUX_SHAPE(1000), .mean = 1, .std = 2, .lo = -0.5, .hi = 1.5), 0.5), 1);
    CHECK(flux_item(flux_max(flux_init("truncated_normal", FLUX_SHAPE(1000), .mean = 1, .std = 2,
                                       .lo = -0.5, .hi = 1.5))) <= 1.5);
    CHECK(flux_item(flux_min(flux_init("truncated_normal", FLUX_SHAPE(1000), .mean = 1, .std = 2,
                                       .lo = -0.5, .hi = 1.5))) >= -0.5);
}

static int notes;
static void count_notes(flux_level level, const char *id, const char *message, void *user) {
    (void)message, (void)user;
    notes += level == FLUX_LOG_WARN && !strcmp(id, "init.truncated");
}
/* A warning where the mean lies more than two std outside, on either side, and nowhere else. */
TEST(truncated_normal_far_from_its_mean) {
    static const double means[] = { -7.1, -6.9, -4, 0, 4, 6.9, 7.1 };
    for (int i = 0; i < 7; i++) {
        flux_silence(NULL);
        notes = 0;
        flux_on_log(count_notes, NULL);
        flux_tensor *w = flux_init("truncated_normal", FLUX_SHAPE(50), .mean = means[i], .std = 2, .lo = -3, .hi = 3);
        CHECK(notes == (fabs(means[i]) > 7) && flux_item(flux_max(flux_abs(w))) <= 3);
    }
    flux_on_log(NULL, NULL);
}

/* The fifths of a truncated normal hold a fifth each: the shape, not only two moments. */
TEST(truncated_normal_has_its_quantiles) {
    /* Phi^-1(Phi(-2) + k/5 (2 Phi(2) - 1)) */
    const double edge[4] = { -0.7938201, -0.2415872, 0.2415872, 0.7938201 };
    flux_seed(13);
    flux_tensor *w = flux_truncated_normal(FLUX_SHAPE(40000));
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(flux_item(flux_mean(flux_lt(w, edge[i]))), (i + 1) / 5.0,
                   4 * sqrt(0.25 / 40000) + 1e-4);
}

static double gram_gap(flux_tensor *w) {   /* from the identity */
    flux_tensor *g = flux_matmul(flux_transpose(w), w);
    return flux_item(flux_max(flux_abs(flux_sub(g, flux_eye(flux_dim(g, 0))))));
}

/* A loop over columns that have no rows would not end. */
TEST(initialisers_of_empty_matrices_end) {
    static const char *name[] = { "orthogonal", "sparse",  "identity",      "truncated_normal",
                                  "lecun_normal", "randn", "glorot_normal", "kaiming_uniform" };
    const int64_t many = (int64_t)1 << 40;
    const flux_shape empty[] = { FLUX_SHAPE(0, many), FLUX_SHAPE(many, 0) };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        for (size_t k = 0; k < 2; k++) {
            flux_tensor *w = flux_init(name[i], empty[k]);
            CHECK(w && flux_len(w) == 0 && flux_dim(w, 0) == empty[k].dim[0]);
        }
}

TEST(orthogonal_is_orthonormal) {
    flux_tensor *tall = flux_orthogonal(FLUX_SHAPE(7, 4)),
                *wide = flux_orthogonal(FLUX_SHAPE(4, 7));
    CHECK_NEAR(gram_gap(tall), 0, 1e-6);
    CHECK_NEAR(gram_gap(flux_transpose(wide)), 0, 1e-6);
    CHECK_NEAR(gram_gap(flux_orthogonal(FLUX_SHAPE(64, 64))), 0, 2e-6);
    flux_tensor *k = flux_orthogonal(FLUX_SHAPE(3, 3, 2, 5));
    CHECK(flux_ndim(k) == 4 && flux_dim(k, 3) == 5);
    CHECK_NEAR(gram_gap(flux_reshape(k, 18, 5)), 0, 1e-6);
    CHECK_NEAR(gram_gap(flux_div(flux_init("orthogonal", FLUX_SHAPE(6, 3), .gain = 2), 2)), 0,
               1e-6);
    CHECK_ERROR(flux_orthogonal(FLUX_SHAPE(5)), "init: orthogonal makes matrices");
}

TEST(sparse_has_its_zeros) {
    flux_seed(14);
    flux_tensor *w = flux_init("sparse", FLUX_SHAPE(101, 50), .sparsity = 0.1);
    flux_tensor *zeros = flux_sum(flux_to_dtype(flux_eq(w, 0), FLUX_F32), 0);
    CHECK(flux_item(flux_max(zeros)) == 11 && flux_item(flux_min(zeros)) == 11);
    CHECK_NEAR(flux_item(flux_sum(flux_square(w))) / (90 * 50), 1e-4, 1e-5);
    flux_tensor *rows = flux_sum(flux_to_dtype(flux_eq(w, 0), FLUX_F32), 1);   /* spread out */
    CHECK(flux_item(flux_max(rows)) < 18);
    CHECK_NEAR(flux_item(flux_norm(flux_init("sparse", FLUX_SHAPE(10, 5), .sparsity = 3))), 0, 0);
    CHECK_ERROR(flux_init("sparse", FLUX_SHAPE(10), .sparsity = 0.5),
                "init: sparse makes matrices");
    CHECK_ERROR(flux_init("sparse", FLUX_SHAPE(10, 5), .sparsity = -0.5),
                "init: .sparsity is -0.5");
}

TEST(identity_on_the_diagonal) {
    CHECK_DATA(flux_identity_init(FLUX_SHAPE(2, 3)), ((double[]){ 1, 0, 0, 1, 0, 0 }), 0);
    CHECK_DATA(flux_init("identity", FLUX_SHAPE(3, 2), .gain = 2, .shift = 1),
               ((double[]){ 0, 2, 0, 0, 0, 2 }), 0);
    CHECK_DATA(flux_init("identity", FLUX_SHAPE(3, 2), .shift = -1),
               ((double[]){ 0, 0, 1, 1, 0, 0 }), 0);
    CHECK_DATA(flux_identity_init(FLUX_SHAPE(3)), ((double[]){ 0, 0, 0 }), 0);
    flux_tensor *k = flux_identity_init(FLUX_SHAPE(3, 4, 2, 2));     /* centres: 1 and 1, from 0 */
    CHECK_NEAR(flux_item(flux_sum(k)), 2, 0);
    CHECK(flux_at(k, 1, 1, 0, 0) == 1 && flux_at(k, 1, 1, 1, 1) == 1);
}

TEST(constant_initialisers) {
    CHECK_DATA(flux_zeros32(FLUX_SHAPE(2)), ((double[]){ 0, 0 }), 0);
    CHECK_DATA(flux_ones32(FLUX_SHAPE(2)), ((double[]){ 1, 1 }), 0);
    CHECK(flux_item(flux_min(flux_rand32(FLUX_SHAPE(1000)))) >= 0 &&
          flux_item(flux_max(flux_rand32(FLUX_SHAPE(1000)))) < 1);
}

TEST(initialisers_repeat_with_their_seed) {
    const char *names[] = { "glorot_uniform", "kaiming_normal", "truncated_normal", "orthogonal",
                            "sparse" };
    for (int i = 0; i < 5; i++) {
        flux_seed(77);
        flux_tensor *a = flux_init(names[i], FLUX_SHAPE(6, 5), .sparsity = 0.5);
        flux_seed(77);
        flux_tensor *b = flux_init(names[i], FLUX_SHAPE(6, 5), .sparsity = 0.5),
                    *c = flux_init(names[i], FLUX_SHAPE(6, 5), .sparsity = 0.5);
        CHECK_NEAR(flux_item(flux_norm(flux_sub(a, b))), 0, 0);
        CHECK(flux_item(flux_norm(flux_sub(a, c))) > 0);
    }
}

TEST(initialisers_refuse) {
    CHECK_ERROR(flux_init("glorot", FLUX_SHAPE(2, 2)), "init: there is no initialiser \"glorot\"");
    CHECK_ERROR(flux_init("glorot_normal", FLUX_SHAPE(2, 2), .gain = NAN), "init: .gain is");
    CHECK_ERROR(flux_init("glorot_normal", FLUX_SHAPE(2, 2), .gain = INFINITY),
                "init: .gain is inf");
    CHECK_ERROR(flux_init("truncated_normal", FLUX_SHAPE(2), .std = -1), "init: .std is -1");
    CHECK_ERROR(flux_init("truncated_normal", FLUX_SHAPE(2), .lo = 1, .hi = -1),
                "init: the bounds 1 and -1 are not in order");
    CHECK_ERROR(flux_glorot_uniform(FLUX_SHAPE(2, -2)), "init: dimension 1 is -2");
    CHECK_ERROR(flux_init(NULL, FLUX_SHAPE(2)), "init: argument name is NULL");
}

TEST(layers_from_initialisers) {
    flux_layer *m = flux_dense(6, 6, .init = flux_orthogonal);
    CHECK_NEAR(gram_gap(flux_weight(m)), 0, 1e-6);
    m = flux_dense(3, 3, .init = flux_identity_init, .bias = FLUX_OFF);
    flux_tensor *x = flux_rand(3, 2);
    CHECK_NEAR(flux_item(flux_norm(flux_sub(flux_call(m, x), x))), 0, 1e-7);
}

/* ---- gradients of everything at once, against finite differences */

static flux_tensor *through(flux_tensor *x, void *user) {
    return flux_sum(flux_exp(flux_call((flux_layer *)user, x)));
}

TEST(gradients_against_finite_differences) {
    flux_layer *ms[] = { flux_dense(4, 3, flux_tanh), flux_scale(FLUX_SHAPE(4), flux_swish),
                         flux_bilinear(4, 4, 2), flux_layernorm(FLUX_SHAPE(4)),
                         flux_layernorm(FLUX_SHAPE(4, 3), .affine = FLUX_OFF) };
    for (int i = 0; i < 5; i++) {
        double gap = flux_gradcheck(through, flux_f64(ms[i]), FILL(0.4, 1.3, 4, 3), 0);
        if (!CHECK(gap < 1e-6)) fprintf(stderr, "    %s: %g\n", text_of(ms[i]), gap);
    }
}
/* The last test, since names are for good. */
TEST(names_end) {
    char name[20];
    for (int i = 0; i < 199; i++) {                 /* beside one of above */
        snprintf(name, sizeof name, "f%d", i);
        flux_name_function((flux_fn)(uintptr_t)(4096 + 16 * i), name);
    }
    CHECK(!flux_failed());
    CHECK_STR(text_of(flux_dense(2, 2, (flux_fn)(uintptr_t)(4096 + 16 * 198))), "Dense(2 => 2, f198)");
    CHECK_ERROR(flux_name_function(other_act, "one more"), "name_function: 200 functions have names already, no room for \"one more\"");
    flux_name_function(my_act, "again");            /* it has one */
    CHECK_STR(text_of(flux_dense(2, 2, my_act)), "Dense(2 => 2, again)");
}

/* Each layer over a batch of no observations: the shape of one of two, but for the batch, and gradients that are zeros; or an error
   where nothing can be said of none. */
static flux_tensor *first_item(flux_tensor *x) { return flux_nth(x, 0); }
static void batch_of_none(const char *name, flux_layer *m, flux_shape s, bool indices, const char *refused, const char *refused_in_training) {
    flux_shape none = s;
    none.dim[s.ndim - 1] = 0;
    test_check(m != NULL, __FILE__, __LINE__, name);
    for (int train = 0; m && train < 2; train++) {
        const char *error = train && refused_in_training ? refused_in_training : refused;
        flux_tensor *two = flux_full_with(s, 1, indices ? FLUX_I32 : FLUX_F32), *x = flux_full_with(none, 1, indices ? FLUX_I32 : FLUX_F32);
        flux_testmode(m, !train);
        if (error) CHECK_ERROR(flux_call(m, x), error);
        if (error) continue;
        flux_tensor *y = flux_eval(flux_call(m, x)), *want = flux_call(m, two);
        bool good = y && want && flux_ndim(y) == flux_ndim(want);
        for (int d = 0; good && d < flux_ndim(y); d++) good = flux_dim(y, d) == (d + 1 < flux_ndim(y) ? flux_dim(want, d) : 0);
        flux_grads *g = good && train && !indices ? flux_gradient(flux_sum(flux_square(flux_call(m, x))), m, x) : NULL;
        good = good && (!train || indices || (g && flux_len(flux_grad(g, x)) == 0));
        for (int i = 0; g && i < flux_num_grads(g); i++) {
            flux_tensor *d = flux_grad_at(g, i);
            good = good && (flux_len(d) == 0 || flux_item(flux_max(flux_abs(d))) == 0);
        }
        test_check(good, __FILE__, __LINE__, name);
    }
}
#define NONE(layer, ...) batch_of_none(#layer, layer, FLUX_SHAPE(__VA_ARGS__), false, NULL, NULL)
TEST(batches_of_no_observations) {
    ONLY_ON_CPU();
    NONE(flux_dense(6, 3, flux_tanh), 6, 2), NONE(flux_scale(FLUX_SHAPE(6)), 6, 2), NONE(flux_bilinear(6, 6, 3), 6, 2);
    NONE(flux_maxout(flux_dense(6, 5), flux_dense(6, 5)), 6, 2), NONE(flux_weightnorm(flux_dense(6, 3)), 6, 2);
    NONE(flux_skipconnection(flux_dense(6, 6), flux_add), 6, 2), NONE(flux_parallel(flux_add, flux_dense(6, 3), flux_dense(6, 3)), 6, 2);
    NONE(flux_chain(flux_dense(6, 5), flux_softmax), 6, 2), NONE(flux_chain(flux_dense(6, 5), flux_logsoftmax), 6, 2);
    NONE(flux_chain(flux_flatten, flux_dense(24, 5)), 6, 4, 2), NONE(flux_dropout(0.5), 6, 2), NONE(flux_alphadropout(0.5), 6, 2);
    NONE(flux_layernorm(FLUX_SHAPE(6)), 6, 2), NONE(flux_instancenorm(4), 6, 5, 4, 2), NONE(flux_groupnorm(4, 2), 6, 5, 4, 2);
    NONE(flux_multiheadattention(6, .nheads = 2, .scores = FLUX_OFF), 6, 5, 2), NONE(flux_multiheadattention(6, .nheads = 3, .scores = FLUX_OFF, .causal = true), 6, 5, 2);
    NONE(flux_conv_layer(FLUX_SHAPE(3, 3), 4, 2), 6, 5, 4, 2), NONE(flux_conv_layer(FLUX_SHAPE(3, 3), 4, 4, .groups = 2, .pad = FLUX_SAMEPAD), 6, 5, 4, 2);
    NONE(flux_depthwiseconv(FLUX_SHAPE(3, 3), 4, 8), 6, 5, 4, 2), NONE(flux_conv_transpose_layer(FLUX_SHAPE(3, 3), 4, 2), 6, 5, 4, 2);
    NONE(flux_conv_layer(FLUX_SHAPE(3), 4, 2, .stride = FLUX_SHAPE(2)), 6, 4, 2), NONE(flux_crosscor_layer(FLUX_SHAPE(3, 1, 2), 2, 3), 4, 3, 5, 2, 2);
    NONE(flux_maxpool(FLUX_SHAPE(2, 2)), 6, 5, 4, 2), NONE(flux_meanpool(FLUX_SHAPE(2, 2)), 6, 5, 4, 2);
    NONE(flux_adaptivemaxpool(FLUX_SHAPE(2, 2)), 6, 5, 4, 2), NONE(flux_adaptivemeanpool(FLUX_SHAPE(2, 2)), 6, 5, 4, 2), NONE(flux_globalmeanpool(), 6, 5, 4, 2);
    NONE(flux_upsample(.scale = { 2, 2 }), 6, 5, 4, 2), NONE(flux_upsample(FLUX_BILINEAR, .size = FLUX_SHAPE(9, 4)), 6, 5, 4, 2), NONE(flux_pixelshuffle(2), 6, 5, 4, 2);
    batch_of_none("Embedding", flux_embedding(6, 3), FLUX_SHAPE(4, 2), true, NULL, NULL);
    batch_of_none("EmbeddingBag", flux_embeddingbag(6, 3), FLUX_SHAPE(4, 2), true, NULL, NULL);
    batch_of_none("BatchNorm", flux_batchnorm(6), FLUX_SHAPE(6, 2), false, NULL, "BatchNorm(6) has no variance to take of 6x0 f32 in train mode: one value a channel");
    batch_of_none("LSTM", flux_lstm(6, 3), FLUX_SHAPE(6, 5, 2), false, "LSTM(6 => 3) takes features x steps (x batch), got 6x5x0 f32", NULL);
    batch_of_none("GRUCell", flux_chain(flux_grucell(6, 3), first_item), FLUX_SHAPE(6, 2), false, "GRUCell(6 => 3) takes features (x batch), got 6x0 f32", NULL);
}

TEST_MAIN()
