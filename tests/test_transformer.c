/* What language models have beside attention: RMSNorm, SwiGLU, positions, grouped heads, and writing on with keys and values
   that are kept. Beside formulas in double, and beside the same without a cache. */
#include "test.h"

static double furthest(flux_tensor *a, flux_tensor *b) {
    return flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(flux_cpu(a), FLUX_F64), flux_to_dtype(flux_cpu(b), FLUX_F64)))));
}
static flux_tensor *here(flux_tensor *x) { return flux_eval(flux_to(test_device, x)); }

TEST(rmsnorm) {
    flux_layer *m = flux_to(test_device, flux_f64(flux_rmsnorm(FLUX_SHAPE(5), .eps = 1e-3)));
    flux_tensor *x = here(flux_randn_with(FLUX_SHAPE(5, 7), FLUX_F64)), *scale = here(flux_rand_with(FLUX_SHAPE(5), FLUX_F64));
    CHECK(flux_set_param(m, "scale", scale) == 0);
    flux_tensor *y = flux_call(m, x), *w = here(flux_randn_with(FLUX_SHAPE(5, 7), FLUX_F64));
    flux_grads *g = flux_gradient(flux_sum(flux_mul(y, w)), x, m);
    flux_tensor *gx = flux_grad(g, x), *gs = flux_grad_param(g, m, "scale");
    double ds[5] = { 0 };
    for (int j = 0; j < 7; j++) {
        double mean = 1e-3, dot = 0;
        for (int i = 0; i < 5; i++) mean += flux_at(x, i, j) * flux_at(x, i, j) / 5;
        const double r = 1 / sqrt(mean);
        for (int i = 0; i < 5; i++) dot += flux_at(w, i, j) * flux_at(scale, i) * flux_at(x, i, j);
        for (int i = 0; i < 5; i++) {
            const double v = flux_at(x, i, j), s = flux_at(scale, i);
            CHECK_NEAR(flux_at(y, i, j), v * r * s, 1e-14);
            CHECK_NEAR(flux_at(gx, i, j), r * flux_at(w, i, j) * s - v * r * r * r * dot / 5, 1e-13);
            ds[i] += flux_at(w, i, j) * v * r;
        }
    }
    CHECK_DATA(gs, ds, 1e-13);
    /* half formats are computed in float32 */
    flux_tensor *big = flux_full_with(FLUX_SHAPE(64, 1), 3e4, FLUX_F16);
    flux_tensor *one = flux_call(flux_f16(flux_rmsnorm(FLUX_SHAPE(64))), big);
    CHECK(flux_dtype_of(one) == FLUX_F16 && flux_at(one, 3, 0) == 1);
    CHECK(flux_num_params(flux_rmsnorm(FLUX_SHAPE(4, 2), .affine = false)) == 0);
    CHECK_NEAR(flux_at(flux_call(flux_rmsnorm(FLUX_SHAPE(2, 2), .affine = false, .eps = 0), flux_full(2, 2, 2, 3)), 1, 0, 2), 1, 1e-6);
    CHECK_ERROR(flux_call(m, flux_ones(4, 2)), "RMSNorm(5) expects dim 0 of size 5");
    CHECK_ERROR(flux_rmsnorm(FLUX_SHAPE(5), .eps = -1), "rmsnorm: .eps");
    CHECK_ERROR(flux_rmsnorm(.eps = 1), "rmsnorm: .size is missing");
}

TEST(swiglu) {
    flux_layer *m = flux_to(test_device, flux_f64(flux_swiglu(3, 4, .out = 2, .bias = true)));
    flux_tensor *x = here(flux_randn_with(FLUX_SHAPE(3, 2), FLUX_F64)), *y = flux_call(m, x);
    flux_tensor *w[3] = { flux_param(m, "gate.weight"), flux_param(m, "up.weight"), flux_param(m, "down.weight") };
    CHECK(flux_num_params(m) == 2 * 16 + 10);
    for (int j = 0; j < 2; j++)
        for (int o = 0; o < 2; o++) {
            double sum = 0;
            for (int k = 0; k < 4; k++) {
                double gate = 0, up = 0;
                for (int i = 0; i < 3; i++) gate += flux_at(w[0], k, i) * flux_at(x, i, j), up += flux_at(w[1], k, i) * flux_at(x, i, j);
                sum += flux_at(w[2], o, k) * gate / (1 + exp(-gate)) * up;
            }
            CHECK_NEAR(flux_at(y, o, j), sum, 1e-14);
        }
    CHECK(flux_num_params(flux_swiglu(3, 4)) == 36);
    char text[200];
    flux_layer_text(flux_swiglu(3, 4, .out = 2, .bias = true), text, sizeof text);
    CHECK(strstr(text, "SwiGLU(3 => 4 => 2; bias=true)") == text);
    flux_layer_text(flux_swiglu(3, 4), text, sizeof text);
    CHECK(strstr(text, "SwiGLU(3 => 4 => 3)") == text);
    CHECK_ERROR(flux_swiglu(3, 0), "swiglu");
}

TEST(rotary) {
    const int heads = 2, d = 6;
    flux_tensor *x = here(flux_randn_with(FLUX_SHAPE(12, 5, 2), FLUX_F64)), *at = flux_to_dtype(flux_values(3, 4, 900, 0, 7), FLUX_I64);
    for (int way = 0; way < 2; way++) {
        flux_tensor *y = way ? flux_rotary(x, .nheads = 2, .base = 500, .positions = here(at)) : flux_rotary(x, .nheads = 2);
        flux_tensor *back = flux_grad(flux_gradient(flux_sum(flux_mul(y, x)), x), x);
        for (int b = 0; b < 2; b++)
            for (int s = 0; s < 5; s++)
                for (int h = 0; h < heads; h++)
                    for (int i = 0; i < d / 2; i++) {
                        const double p = way ? flux_at(at, s) : s, w = p * pow(way ? 500 : 10000, -2.0 * i / d);
                        const double u = flux_at(x, h * d + i, s, b), v = flux_at(x, h * d + i + d / 2, s, b);
                        CHECK_NEAR(flux_at(y, h * d + i, s, b), u * cos(w) - v * sin(w), 1e-12);
                        CHECK_NEAR(flux_at(y, h * d + i + d / 2, s, b), v * cos(w) + u * sin(w), 1e-12);
                        /* the sum of y x is cos(w) (u^2 + v^2) */
                        CHECK_NEAR(flux_at(back, h * d + i, s, b), 2 * u * cos(w), 1e-12);
                    }
    }
    flux_tensor *half = flux_to_dtype(x, FLUX_F16), *turned = flux_rotary(half);
    CHECK(flux_dtype_of(turned) == FLUX_F16 && furthest(turned, flux_rotary(flux_to_dtype(half, FLUX_F64))) < 4e-3);
    CHECK_ERROR(flux_rotary(x, .nheads = 4), "rotary: 4 heads of an even number");
    CHECK_ERROR(flux_rotary(flux_ones(4)), "rotary: x is floating");
    CHECK_ERROR(flux_rotary(x, .base = 1), "rotary: .base is 1");
    CHECK_ERROR(flux_rotary(x, .positions = flux_ones(4)), "rotary: .positions");
}

/* Scores depend on the distance of two steps alone. */
TEST(rotary_is_relative) {
    flux_tensor *q = here(flux_randn_with(FLUX_SHAPE(8, 1), FLUX_F64)), *k = here(flux_randn_with(FLUX_SHAPE(8, 1), FLUX_F64));
    double dot[2];
    for (int i = 0; i < 2; i++)
        dot[i] = flux_item(flux_sum(flux_mul(flux_rotary(q, .positions = here(flux_full(i ? 57 : 7, 1))), flux_rotary(k, .positions = here(flux_full(i ? 53 : 3, 1))))));
    CHECK_NEAR(dot[0], dot[1], 1e-12);
}

/* Queries and keys are turned, values are not: the layer beside its own formula. With fewer queries than keys they are the last. */
TEST(heads_are_turned) {
    flux_layer *m = flux_to(test_device, flux_f64(flux_multiheadattention(16, .nheads = 4, .rotary = 100, .causal = true, .scores = FLUX_OFF)));
    flux_tensor *keys = here(flux_randn_with(FLUX_SHAPE(16, 9, 2), FLUX_F64)), *w[4];
    const char *names[] = { "q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight" };
    for (int i = 0; i < 4; i++) w[i] = flux_param(m, names[i]);
    for (int fewer = 0; fewer < 2; fewer++) {
        flux_tensor *x = fewer ? here(flux_slice(keys, 1, 5, 9)) : keys, *v = flux_matmul(w[2], keys);
        flux_tensor *q = flux_rotary(flux_matmul(w[0], keys), .nheads = 4, .base = 100), *k = flux_rotary(flux_matmul(w[1], keys), .nheads = 4, .base = 100);
        if (fewer) q = flux_slice(q, 1, 5, 9);
        flux_tensor *want = flux_matmul(w[3], flux_nth(flux_dot_product_attention(q, k, v, .nheads = 4, .causal = true), 0));
        flux_tensor *got = flux_call(m, fewer ? flux_tuple(x, keys) : x);
        CHECK(furthest(got, want) < 1e-13);
    }
}

/* Grouped heads are those of a layer in which the weights of keys and values are repeated. */
TEST(grouped_heads) {
    flux_layer *m = flux_to(test_device, flux_f64(flux_multiheadattention(16, .nheads = 4, .kv_heads = 2, .rotary = 100, .causal = true, .scores = FLUX_OFF)));
    flux_layer *full = flux_to(test_device, flux_f64(flux_multiheadattention(16, .nheads = 4, .rotary = 100, .causal = true, .scores = FLUX_OFF)));
    CHECK(flux_num_params(m) == 16 * 16 * 2 + 16 * 8 * 2);
    const char *same[] = { "q_proj.weight", "out_proj.weight" }, *repeated[] = { "k_proj.weight", "v_proj.weight" };
    for (int i = 0; i < 2; i++) {
        flux_tensor *w = flux_param(m, repeated[i]);
        w = flux_reshape(flux_broadcast_to(flux_reshape(w, 4, 1, 2, 16), 4, 2, 2, 16), 16, 16);
        CHECK(flux_set_param(full, same[i], flux_param(m, same[i])) == 0 && flux_set_param(full, repeated[i], w) == 0);
    }
    flux_tensor *x = here(flux_randn_with(FLUX_SHAPE(16, 9, 2), FLUX_F64)), *a = flux_call(m, x), *b = flux_call(full, x);
    CHECK(furthest(a, b) < 1e-13);
    flux_grads *ga = flux_gradient(flux_sum(flux_square(a)), m, x), *gb = flux_gradient(flux_sum(flux_square(b)), full, x);
    CHECK(furthest(flux_grad(ga, x), flux_grad(gb, x)) < 1e-12);
    flux_tensor *gk = flux_grad_param(gb, full, "k_proj.weight");
    CHECK(furthest(flux_grad_param(ga, m, "k_proj.weight"), flux_reshape(flux_sum(flux_reshape(gk, 4, 2, 2, 16), 1), 8, 16)) < 1e-12);
    char text[200];
    flux_layer_text(m, text, sizeof text);
    CHECK(strncmp(text, "MultiHeadAttention(16; nheads=4, kv_heads=2, rotary=100, causal=true)", 69) == 0);
    CHECK_ERROR(flux_multiheadattention(16, .nheads = 4, .kv_heads = 3), "3 heads of keys and values for 4");
    CHECK_ERROR(flux_multiheadattention(12, .nheads = 4, .rotary = 100), ".rotary is 100, with 3 features");
    CHECK_ERROR(flux_multiheadattention(16, .nheads = 4, .rotary = 0.5), ".rotary is 0.5");
}

/* ---- writing on */

enum { WIDTH = 16, LETTERS = 7 };
static flux_layer *writer(bool rotary, int kv_heads, bool f64) {
    flux_layer *block[2];
    for (int i = 0; i < 2; i++) {
        flux_layer *look = flux_multiheadattention(WIDTH, .nheads = 4, .kv_heads = kv_heads, .causal = true, .scores = FLUX_OFF, .rotary = rotary ? 10000 : 0);
        block[i] = flux_chain(flux_skipconnection(flux_chain(flux_rmsnorm(FLUX_SHAPE(WIDTH)), look), flux_add),
                              flux_skipconnection(flux_chain(flux_rmsnorm(FLUX_SHAPE(WIDTH)), flux_swiglu(WIDTH, 24)), flux_add));
    }
    flux_layer *m = rotary ? flux_chain(flux_embedding(LETTERS, WIDTH), block[0], block[1], flux_dense(WIDTH, LETTERS))
                           : flux_chain(flux_embedding(LETTERS, WIDTH), flux_positionembedding(20, WIDTH), block[0], block[1], flux_dense(WIDTH, LETTERS));
    return flux_to(test_device, f64 ? flux_f64(m) : m);
}
static flux_tensor *letters(int steps, int batch) {
    return here(flux_to_dtype(flux_randint(0, LETTERS, steps, batch), FLUX_I32));
}

/* A text in parts gives what the whole gives: prompts of several steps, then single ones. */
static void in_parts(flux_layer *m, const int *parts, int n, int batch, double tol) {
    int steps = 0, at = 0;
    for (int i = 0; i < n; i++) steps += parts[i];
    flux_tensor *x = letters(steps, batch), *whole = NULL, *got;
    FLUX_NOGRAD whole = flux_eval(flux_call(m, x));
    for (int again = 0; again < 2; again++) {
        REQUIRE(flux_cache(m, 20) == 0 && flux_cached(m) == 0);
        for (int i = 0; i < n; at += parts[i++]) FLUX_INFER {
            got = flux_call(m, flux_slice(x, 0, at, at + parts[i]));
            REQUIRE(got != NULL);
            CHECK(furthest(got, flux_slice(whole, 1, at, at + parts[i])) < tol);
            CHECK(flux_cached(m) == at + parts[i]);
        }
        at = 0;
    }
    CHECK(flux_cache(m, 0) == 0 && flux_cached(m) == 0);
    FLUX_NOGRAD CHECK(furthest(flux_call(m, x), whole) < tol);
}

TEST(writing_on_step_by_step) {
    static const int single[] = { 1, 1, 1, 1, 1, 1 }, prompt[] = { 7, 1, 1, 1 }, mixed[] = { 1, 4, 1, 3, 2, 9 };
    for (int rotary = 0; rotary < 2; rotary++) FLUX_SCOPE {
        flux_layer *m = writer(rotary, rotary ? 2 : 4, true);
        if (!test_left_out(1, 2)) in_parts(m, single, 6, 1, 1e-12);
        in_parts(m, prompt, 4, 3, 1e-12);
        if (test_left_out(1, 2)) continue;
        in_parts(m, mixed, 6, 2, 1e-12);
        in_parts(writer(rotary, 1, false), mixed, 6, 2, 2e-5);
    }
}

TEST(the_cache_grows_no_memory) {
    /* Memory goes out by 64 bytes at least, so fewer steps tell, where attention over all the room takes long. */
    const int steps = test_device.backend ? 100 : 400;
    flux_layer *m = writer(true, 2, false);
    flux_tensor *x = letters(1, 1);
    flux_mem before = { 0 };
    CHECK(flux_cache(m, steps) == 0);
    flux_times (i, steps) FLUX_INFER {
        if (i == 20) before = flux_mem_stats(test_device);
        flux_item(flux_sum(flux_call(m, x)));
    }
    CHECK(flux_mem_stats(test_device).live <= before.live + 1024);
}

/* A vector of features x steps, without a batch; and a cached layer that is moved or copied keeps what it has. */
TEST(caches_of_copies) {
    flux_layer *m = writer(true, 2, true), *other;
    flux_tensor *x = here(flux_reshape(letters(6, 1), 6)), *whole = NULL;
    FLUX_NOGRAD whole = flux_eval(flux_call(m, x));
    CHECK(flux_cache(m, 8) == 0);
    FLUX_NOGRAD {
        CHECK(furthest(flux_call(m, flux_slice(x, 0, 0, 3)), flux_slice(whole, 1, 0, 3)) < 1e-12);
        other = flux_copy_layer(flux_cpu(m));
        CHECK(furthest(flux_call(m, flux_slice(x, 0, 3, 4)), flux_slice(whole, 1, 3, 4)) < 1e-12);
        CHECK(flux_cached(other) == 3);
        CHECK(furthest(flux_call(other, flux_cpu(flux_slice(x, 0, 3, 6))), flux_slice(whole, 1, 3, 6)) < 1e-12);
        CHECK(flux_cached(other) == 6 && flux_cached(m) == 4);
    }
}

TEST(what_a_cache_cannot_do) {
    flux_layer *m = writer(true, 2, false), *learnt = writer(false, 4, false);
    flux_tensor *x = letters(3, 1);
    CHECK(flux_cache(m, 4) == 0);
    CHECK_ERROR(flux_call(m, x), "has a cache, and is called under FLUX_INFER or FLUX_NOGRAD only");
    FLUX_NOGRAD {
        CHECK(flux_call(m, x) != NULL);
        CHECK_ERROR(flux_call(m, letters(2, 1)), "its cache of 4 steps has 3, and 2 more do not fit");
        CHECK(flux_cache(m, 4) == 0);
        CHECK(flux_call(m, x) != NULL);
        CHECK_ERROR(flux_call(m, letters(1, 2)), "its cache is");
    }
    CHECK_ERROR(flux_cache(flux_multiheadattention(8, .nheads = 2), 4), "is not causal");
    CHECK_ERROR(flux_cache(flux_dense(2, 2), 4), "cache: the model has no MultiHeadAttention");
    CHECK_ERROR(flux_cache(m, -1), "cache: -1 steps");
    CHECK_ERROR(flux_cache(NULL, 1), "cache: argument model is NULL");
    CHECK(flux_cached(flux_dense(2, 2)) == 0);
    FLUX_NOGRAD CHECK_ERROR(flux_call(learnt, letters(21, 1)), "PositionEmbedding(20 => 16) takes features x steps (x batch), at most 20 steps");
    CHECK_ERROR(flux_positionembedding(0, 3), "positionembedding");
}

/* Training is as without: each call is a text of its own. */
TEST(a_writer_learns) {
    if (test_left_out(1, 2) && !getenv("SOFTGPU_PTX")) SKIP("the long form runs it: it takes 60 steps");
    flux_seed(5);
    flux_layer *m = writer(true, 2, false);
    flux_state *opt = flux_setup(flux_adam(0.01), m);
    double first = 0, last = 0;
    flux_tensor *x = here(flux_to_dtype(flux_mod(flux_arange(0, 12, 1), 5), FLUX_I32));
    flux_times (i, 60) {
        flux_tensor *y = flux_call(m, flux_reshape(flux_slice(x, 0, 0, 11), 11, 1));
        flux_tensor *loss = flux_logitcrossentropy(y, flux_reshape(flux_slice(x, 0, 1, 12), 11, 1));
        flux_update(opt, m, flux_gradient(loss, m));
        last = flux_item(loss);
        if (i == 0) first = last;
    }
    CHECK(first > 1.5 && last < 0.1);
}
TEST_MAIN()
