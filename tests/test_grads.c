/* Gradients as things: gone over by number and name, scaled, added, clipped, and printed. */
#include "test.h"

static flux_tensor *row(double a, double b) { return flux_from(((double[]){ a, b }), 2); }
static flux_tensor *times(flux_tensor *a, flux_tensor *b) { return flux_sum(flux_mul(a, b)); }

TEST(by_number_and_name) {
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_dense(2, 2, .bias = FLUX_OFF));
    flux_tensor *x = flux_ones(2, 1), *w = flux_ones(2);
    flux_grads *g = flux_gradient(flux_sum(flux_call(m, x)), m);
    CHECK(flux_num_grads(g) == 3);
    CHECK_STR(flux_grad_name(g, 0), "layers.0.weight");
    CHECK_STR(flux_grad_name(g, 1), "layers.0.bias");
    CHECK_STR(flux_grad_name(g, 2), "layers.1.weight");
    for (int i = 0; i < flux_num_grads(g); i++)
        CHECK(flux_grad_at(g, i) == flux_grad_param(g, m, flux_grad_name(g, i)));
    g = flux_gradient(flux_sum(w), w, m);
    CHECK_STR(flux_grad_name(g, 0), "0");
    CHECK_STR(flux_grad_name(g, 2), "1.layers.0.bias");
    CHECK(flux_grad_at(g, 0) && !flux_grad_at(g, 2) && !flux_failed());
    CHECK_ERROR(flux_grad_at(g, 4), "grad_at: there is no gradient 4 among 4");
    CHECK_ERROR(flux_grad_name(g, -1), "grad_name: there is no gradient -1 among 4");
    CHECK_ERROR(flux_num_grads(NULL), "num_grads");
}

TEST(scaled_and_added) {
    flux_tensor *a = row(1, 2), *b = row(3, 4);
    flux_grads *g = flux_gradient(flux_sum(flux_square(a)), a, b);
    flux_grads *more = flux_gradient(times(a, b), b, a);
    CHECK(flux_grads_scale(g, 0.5) == 0);
    CHECK_DATA(flux_grad(g, a), ((double[]){ 1, 2 }), 0);
    CHECK(flux_grads_add(g, more) == 0);
    CHECK_DATA(flux_grad(g, a), ((double[]){ 4, 6 }), 0);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 1, 2 }), 0);      /* which g had none for */
    CHECK_DATA(flux_grad(more, a), ((double[]){ 3, 4 }), 0);
    CHECK_ERROR(flux_grads_add(g, NULL), "grads_add");
}

TEST(clipped) {
    flux_tensor *a = row(0, 0), *b = row(0, 0);
    flux_tensor *loss = flux_add(times(a, row(3, 0)), times(b, row(0, -4)));
    flux_grads *g = flux_gradient(loss, a, b);
    CHECK_NEAR(flux_item(flux_clip_global(g, 10)), 5, 1e-12);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 0, -4 }), 0);     /* shorter than omega: not touched */
    CHECK_NEAR(flux_item(flux_clip_global(g, 1)), 5, 1e-12);
    CHECK_DATA(flux_grad(g, a), ((double[]){ 0.6, 0 }), 1e-12);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 0, -0.8 }), 1e-12);
    CHECK_NEAR(flux_item(flux_grads_norm(g)), 1, 1e-12);
    CHECK(flux_clip_value(g, 0.7) == 0);
    CHECK_DATA(flux_grad(g, b), ((double[]){ 0, -0.7 }), 0);
    CHECK_ERROR(flux_clip_value(g, 0), "clip_value: delta is 0, but must be more than 0");
    CHECK_ERROR(flux_clip_global(g, -1), "clip_global: omega is -1, but must be more than 0");
    g = flux_gradient(flux_sum(a), b);                         /* none at all */
    CHECK_NEAR(flux_item(flux_clip_global(g, 1)), 0, 0);
}

/* A step with clipped gradients is that of a chain with a global ClipNorm, in f32 and f16. */
TEST(clipped_and_updated) {
    for (int half = 0; half < 2; half++) FLUX_SCOPE {
        flux_layer *m = flux_dense(3, 2), *n;
        if (half) m = flux_f16(m);
        n = flux_copy_layer(m);
        flux_tensor *x = flux_to_dtype(flux_ones(3, 4), half ? FLUX_F16 : FLUX_F32);
        flux_state *one = flux_setup(flux_descent(1), m);
        flux_state *two = flux_setup(flux_optimiser_chain(flux_clipnorm(0.5, .global = true), flux_descent(1)), n);
        flux_grads *g = flux_gradient(flux_sum(flux_call(m, x)), m);
        CHECK(flux_clip_global(g, 0.5) != NULL && flux_update(one, m, g) == 0);
        CHECK(flux_update(two, n, flux_gradient(flux_sum(flux_call(n, x)), n)) == 0);
        flux_tensor *off = flux_sub(flux_weight(m), flux_weight(n));
        CHECK(flux_item(flux_max(flux_abs(off))) <= (half ? 2e-3 : 1e-6));
        CHECK_ERROR(flux_grads_scale(g, 2), "used up by flux_update");
    }
}

TEST(printed) {
    char text[300];
    flux_tensor *a = row(1, 2), *b = row(3, 4), *c = row(5, 6);
    flux_grads *g = flux_gradient(flux_add(times(a, row(3, -4)), times(b, row((double)NAN, 1))), a, b, c);
    flux_grads_text(g, text, sizeof text);
    CHECK_STR(text, "Gradients of 3 arrays, not finite\n  0: norm 5, largest 4\n  1: has NaN\n  2: none");
    g = flux_gradient(flux_sum(a), a);
    flux_grads_text(g, text, sizeof text);
    CHECK_STR(text, "Gradients of 1 array, norm 1.414\n  0: norm 1.414, largest 1");
    flux_print(g);
    CHECK_ERROR(flux_grads_text(NULL, text, sizeof text), "print");
}

/* Every gradient has its operand's dtype, shape and device, whatever the other operand's dtype: operations that compute in a wider
   one, or in another shape, turn back. Against the gradient of the same operands in f64. */
typedef flux_tensor *(*of_two)(flux_tensor *a, flux_tensor *b);
#define OF_TWO(X)                                                                                    \
    X(add, flux_add(a, flux_mul(b, b))) X(mul, flux_mul(a, b)) X(div, flux_div(a, flux_add(b, 2))) X(pow, flux_pow(flux_add(flux_abs(a), 1), b)) X(max2, flux_max2(a, b)) \
    X(where, flux_where(flux_gt(a, 0), flux_mul(a, a), b)) X(matmul, flux_matmul(flux_transpose(a), b)) X(einsum, flux_einsum("ij,kj->ik", a, b)) \
    X(outer, flux_outer(flux_reshape(a, -1), flux_reshape(b, -1))) X(dot, flux_dot(flux_reshape(a, -1), flux_reshape(b, -1)))            \
    X(cat, flux_square(flux_cat(1, a, b))) X(stack, flux_square(flux_stack(0, a, b))) X(broadcast, flux_mul(flux_sum(a, 0), b))           \
    X(conv, flux_conv(flux_reshape(a, 4, 3, 1, 1), flux_reshape(b, 2, 2, 1, 3)))                                                          \
    X(conv_groups, flux_conv(flux_reshape(a, 6, 2, 1), flux_reshape(b, 6, 1, 2), .groups = 2, .pad = FLUX_SAMEPAD))                       \
    X(crosscor, flux_crosscor(flux_reshape(a, 4, 3, 1, 1), flux_reshape(b, 2, 3, 1, 2), .stride = FLUX_SHAPE(2, 1), .pad = FLUX_SHAPE(1)))  \
    X(conv_transpose, flux_conv_transpose(flux_reshape(a, 4, 3, 1, 1), flux_reshape(b, 2, 2, 3, 1), .stride = FLUX_SHAPE(2)))              \
    X(attention, flux_nth(flux_dot_product_attention(a, b, b, .nheads = 2), 0)) X(scores, flux_dot_product_attention_scores(a, b))        \
    X(mse, flux_mse(a, b)) X(huber, flux_huber_loss(a, b, .delta = 0.3)) X(crossentropy, flux_logitcrossentropy(a, flux_softmax(b, 0)))    \
    X(kl, flux_kldivergence(flux_softmax(a, 0), flux_softmax(b, 0))) X(tversky, flux_tversky_loss(flux_sigmoid(a), flux_sigmoid(b)))      \
    X(scatter, flux_square(flux_scatter_add(a, 1, flux_from(((const int32_t[]){ 2, 0, 2 }), 3), b))) X(gather, flux_mul(flux_gather(a, 1, flux_from(((const int32_t[]){ 2, 0, 2 }), 3)), b)) \
    X(sort, flux_mul(flux_sort(a, .dim = 0), b)) X(topk, flux_mul(flux_nth(flux_topk(a, 2, 0), 0), flux_slice(b, 0, 1, 3))) X(cumsum, flux_mul(flux_cumsum(a, 1), b)) \
    X(cumprod, flux_mul(flux_cumprod(flux_add(a, 2), 0), b)) X(softmax, flux_mul(flux_softmax(a, 0), b)) X(logsoftmax, flux_mul(flux_logsoftmax(a, 1), b)) \
    X(norm, flux_mul(flux_norm(a, 0), b)) X(var, flux_mul(flux_var(a, 1), b)) X(lse, flux_mul(flux_logsumexp(a, 0), b)) X(prod, flux_mul(flux_prod(flux_add(a, 2), 0), b)) \
    X(max, flux_mul(flux_max(a, 0), b)) X(pad, flux_square(flux_add(flux_pad(a, 0, 1, 0), flux_pad(b, 1, 0, 1)))) X(flip, flux_mul(flux_flip(a, 0), b)) \
    X(repeat, flux_mul(flux_repeat(a, 2), flux_cat(0, b, b))) X(maxpool, flux_mul(flux_maxpool(flux_reshape(a, 4, 3, 1, 1), FLUX_SHAPE(2, 1)), flux_reshape(flux_slice(b, 0, 0, 2), 2, 3, 1, 1))) \
    X(meanpool, flux_mul(flux_meanpool(flux_reshape(a, 4, 3, 1, 1), FLUX_SHAPE(2, 1)), flux_reshape(flux_slice(b, 0, 0, 2), 2, 3, 1, 1))) X(normalise, flux_mul(flux_normalise(a, FLUX_SHAPE(0), 1e-3), b)) \
    X(gelu, flux_mul(flux_gelu_erf(a), flux_mish(b))) X(glu, flux_mul(flux_glu(a, 0), flux_glu(b, 0))) X(rotary, flux_mul(flux_rotary(a), b))
#define DEFINE_OF_TWO(name, expression) static flux_tensor *two_##name(flux_tensor *a, flux_tensor *b) { return expression; }
OF_TWO(DEFINE_OF_TWO)
#define ROW_OF_TWO(name, expression) { #name, two_##name },
static const struct { const char *name; of_two f; } two[] = { OF_TWO(ROW_OF_TWO) };

TEST(gradients_are_like_their_operands) {
    static const flux_dtype dtypes[][2] = { { FLUX_F16, FLUX_F16 }, { FLUX_BF16, FLUX_BF16 }, { FLUX_F16, FLUX_F32 }, { FLUX_F32, FLUX_BF16 }, { FLUX_F32, FLUX_F64 }, { FLUX_F64, FLUX_F16 } };
    double v[2][12];
    for (int i = 0; i < 12; i++) v[0][i] = (i * 7 % 12 - 5.5) / 8, v[1][i] = (i * 5 % 12 - 4.5) / 8;      /* which every format holds */
    for (int i = 0; i < (int)(sizeof two / sizeof *two); i++) {
        flux_tensor *x[2] = { flux_from(v[0], 4, 3), flux_from(v[1], 4, 3) };
        flux_grads *g = flux_gradient(flux_sum(flux_to_dtype(two[i].f(x[0], x[1]), FLUX_F64)), x[0], x[1]);
        for (int d = 0; d < 6 && g; d++) {
            if (test_left_out(i + d, 12)) continue;
            flux_tensor *y[2] = { flux_to_dtype(x[0], dtypes[d][0]), flux_to_dtype(x[1], dtypes[d][1]) };
            flux_grads *h = flux_gradient(flux_sum(flux_to_dtype(two[i].f(y[0], y[1]), FLUX_F32)), y[0], y[1]);
            for (int k = 0; k < 2; k++) {
                flux_tensor *got = flux_grad(h, y[k]), *want = flux_grad(g, x[k]);
                const bool like = got && flux_dtype_of(got) == dtypes[d][k] && flux_ndim(got) == 2 && flux_dim(got, 0) == 4 && flux_dim(got, 1) == 3 &&
                                  flux_device_equal(flux_device_of_tensor(got), flux_device_of_tensor(y[k]));
                const double tol = dtypes[d][0] == FLUX_BF16 || dtypes[d][1] == FLUX_BF16 ? 0.04 : dtypes[d][0] == FLUX_F16 || dtypes[d][1] == FLUX_F16 ? 5e-3 : 1e-5;
                const double off = like ? flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(got, FLUX_F64), want)))) : NAN, most = flux_item(flux_max(flux_abs(want)));
                if (!CHECK(like && off <= tol * (most > 1 ? most : 1)))
                    fprintf(stderr, "    %s of %s and %s, by operand %d: %s%g off\n", two[i].name, flux_dtype_name(dtypes[d][0]), flux_dtype_name(dtypes[d][1]), k, like ? "" : "not alike, ", off);
            }
        }
        CHECK(g != NULL);
    }
}

/* The gradient that arrives is a view where what comes next is one: the other way round, behind other
   elements, from its end. What it gives is that of the same numbers side by side. */
static flux_tensor *seen_as(int way, flux_tensor *y, flux_tensor *other) {
    flux_shape s = flux_shape_of(y), order = s;
    for (int d = 0; d < s.ndim; d++) order.dim[d] = s.ndim - 1 - d;
    return way == 0 ? y : way == 1 ? flux_permute_with(y, order) : way == 2 ? flux_flip(y, 0) : flux_cat(s.ndim - 1, other, y);
}
TEST(gradients_that_arrive_as_views) {
    double v[2][12];
    for (int i = 0; i < 12; i++) v[0][i] = (i * 7 % 12 - 5.5) / 8, v[1][i] = (i * 5 % 12 - 4.5) / 8;
    for (int i = 0; i < (int)(sizeof two / sizeof *two); i++) FLUX_SCOPE {
        flux_tensor *x[2] = { flux_from(v[0], 4, 3), flux_from(v[1], 4, 3) }, *weight = NULL, *other = NULL, *want[2] = { NULL };
        for (int way = 0; way < 4; way++) {
            if (test_left_out(i + way, 12)) continue;
            flux_tensor *y = two[i].f(x[0], x[1]);
            if (flux_ndim(y) == 0) break;
            if (!weight) weight = flux_eval(flux_randn_with(flux_shape_of(y), FLUX_F64)), other = flux_eval(flux_neg(weight));
            for (int views = want[0] != NULL; views < 2; views++) {
                flux_tensor *w = flux_eval(flux_copy(seen_as(views ? way : 0, weight, other)));
                flux_grads *g = flux_gradient(flux_sum(flux_mul(seen_as(views ? way : 0, y, other), w)), x[0], x[1]);
                for (int k = 0; k < 2 && CHECK(flux_grad(g, x[k]) != NULL); k++) {
                    if (!views) want[k] = flux_eval(flux_grad(g, x[k]));
                    else if (!CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_grad(g, x[k]), want[k])))) < 1e-12))
                        fprintf(stderr, "    %s, by operand %d, way %d\n", two[i].name, k, way);
                }
            }
        }
    }
}

/* Softmax and norms have gradients as wholes, which the same of single calls, whose results are all in hand, have not: they go by
   the chain rule. */
static flux_tensor *softmax_whole(flux_tensor *x, flux_tensor **inside) { return *inside = NULL, flux_softmax(x, 0, 2); }
static flux_tensor *softmax_apart(flux_tensor *x, flux_tensor **inside) {
    flux_tensor *e = flux_exp(x), *sum = *inside = flux_sum(e, 0, 2);
    return flux_div(e, sum);
}
static flux_tensor *normal_whole(flux_tensor *x, flux_tensor **inside) { return *inside = NULL, flux_normalise(x, FLUX_SHAPE(0, 1), 0.1); }
static flux_tensor *normal_apart(flux_tensor *x, flux_tensor **inside) {
    flux_tensor *mean = flux_mean(x, 0, 1), *c = flux_sub(x, mean), *var = *inside = flux_mean(flux_square(c), 0, 1), *r = flux_rsqrt(flux_add(var, 0.1));
    return flux_mul(c, r);
}
static flux_tensor *root_whole(flux_tensor *x, flux_tensor **inside) {
    flux_tensor *y = NULL;
    *inside = NULL;
    FLUX_SCOPE { y = flux_keep(flux_mul(x, flux_rsqrt(flux_add(flux_div(flux_sum(flux_square(x), 0), 7), 0.1)))); }
    return y;
}
static flux_tensor *root_apart(flux_tensor *x, flux_tensor **inside) {
    flux_tensor *sum = *inside = flux_sum(flux_square(x), 0), *r = flux_rsqrt(flux_add(flux_div(sum, 7), 0.1));
    return flux_mul(x, r);
}
/* By a number that is not how many there are: what is subtracted is no mean. */
static flux_tensor *odd_apart(flux_tensor *x, flux_tensor **inside) {
    flux_tensor *part = flux_div(flux_sum(x, 0), 7), *c = flux_sub(x, part), *sum = *inside = flux_sum(flux_square(c), 0);
    flux_tensor *r = flux_rsqrt(flux_add(flux_div(sum, 7), 0.1));
    return flux_mul(c, r);
}
static flux_tensor *odd_whole(flux_tensor *x, flux_tensor **inside) {
    flux_tensor *y = NULL, *in;
    FLUX_SCOPE { y = flux_keep(odd_apart(x, &in)); }
    return *inside = NULL, y;
}
typedef flux_tensor *rows_fn(flux_tensor *x, flux_tensor **inside);
static flux_tensor *loss_of_rows(rows_fn *f, flux_tensor *x, flux_tensor **inside) {
    return flux_sum(flux_mul(flux_sin(flux_mul(f(flux_mul(x, 1.5), inside), 3)), x));
}
/* The greatest difference of a and b. */
static double apart_by(flux_tensor *a, flux_tensor *b) { return flux_item(flux_max(flux_abs(flux_sub(a, b)))); }

TEST(rows_have_gradients_as_wholes) {
    rows_fn *const whole[] = { softmax_whole, normal_whole, root_whole, odd_whole };
    rows_fn *const parts[] = { softmax_apart, normal_apart, root_apart, odd_apart };
    for (int i = 0; i < 4; i++) {
        flux_tensor *x = flux_to_dtype(flux_randn(5, 4, 3), FLUX_F64), *in;
        x = flux_eval(x);
        flux_tensor *first = loss_of_rows(whole[i], x, &in), *second = loss_of_rows(parts[i], x, &in);
        flux_grads *a = flux_gradient(first, x), *b = flux_gradient(second, x, in);
        CHECK(apart_by(flux_grad(a, x), flux_grad(b, x)) < 1e-12 && flux_grad(b, in));
        flux_tensor *bend[2];
        for (int k = 0; k < 2; k++) {       /* and the gradient's own gradient */
            flux_tensor *slope = flux_grad(k ? b : a, x);
            bend[k] = flux_grad(flux_gradient(flux_sum(flux_mul(flux_square(slope), x)), x), x);
        }
        CHECK(apart_by(bend[0], bend[1]) < 1e-10);
        /* what is inside has no gradient of its own if nobody asks for it, and the right one if somebody does */
        const double step = 1e-4;
        if (i == 1) {
            flux_tensor *c = flux_sub(flux_mul(x, 1.5), flux_mean(flux_mul(x, 1.5), 0, 1)), *var = flux_eval(in);
            flux_tensor *at[2];
            for (int k = 0; k < 2; k++)
                at[k] = flux_sum(flux_mul(flux_sin(flux_mul(flux_mul(c, flux_rsqrt(flux_add(var, 0.1 + (k ? step : -step)))), 3)), x));
            const double slope = (flux_item(at[1]) - flux_item(at[0])) / (2 * step);
            CHECK_NEAR(flux_item(flux_sum(flux_grad(b, in))), slope, 1e-4);
        }
    }
}

TEST_MAIN()
