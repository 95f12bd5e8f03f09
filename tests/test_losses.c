/* Losses: Flux's golden values, PyTorch's values and gradients, finite differences, options, and
   what must be refused. */
#include "test.h"
#include "fixtures/layers.h"

static flux_tensor *filled(int rows, int cols, double a, double s) {
    double v[64];
    for (int i = 0; i < rows * cols; i++) v[i] = s * sin(a + i);
    return flux_from(v, rows, cols);
}
static const double hard[12] = { 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0 };   /* classes 2, 0, 1, 1 */
static flux_tensor *L(void) { return filled(3, 4, 0.6, 1.7); }
static flux_tensor *R(void) { return filled(3, 4, 0.2, 1.5); }
static flux_tensor *T(void) { return filled(3, 4, 2.2, 1.1); }
static flux_tensor *P(void) { return flux_from(fix_loss_P, 3, 4); }
static flux_tensor *Q(void) { return flux_from(fix_loss_Q, 3, 4); }
static flux_tensor *D(void) { return flux_from(fix_loss_D, 3, 4); }
static flux_tensor *H(void) { return flux_from(hard, 3, 4); }
static flux_tensor *S(void) { return flux_sign(T()); }

typedef struct loss_case {
    const char *name;
    flux_tensor *(*with)(flux_loss_opts);
    flux_tensor *(*p)(void), *(*y)(void);
    flux_loss_opts o;
    const double *value, *gradient;
} loss_case;
#define CASE(name, fn, p, y, ...)                                                             \
    { #name, flux_##fn##_with, p, y, { .yhat = NULL, __VA_ARGS__ }, fix_loss_##name,      \
      fix_loss_##name##_gp }
#define PLAIN(name, fn, p, y) CASE(name, fn, p, y, .agg = FLUX_MEAN)
static const loss_case cases[] = {
    PLAIN(mae, mae, R, T),
    PLAIN(mse, mse, R, T),
    CASE(msle, msle, Q, D, .eps = 1e-300),
    PLAIN(huber, huber_loss, R, T),
    CASE(huber_05, huber_loss, R, T, .delta = 0.5),
    CASE(crossentropy, crossentropy, P, H, .eps = 1e-300),
    CASE(crossentropy_soft, crossentropy, P, D, .eps = 1e-300),
    PLAIN(logitcrossentropy, logitcrossentropy, L, H),
    PLAIN(logitcrossentropy_soft, logitcrossentropy, L, D),
    CASE(logitcrossentropy_sum, logitcrossentropy, L, D, .agg = FLUX_SUM),
    PLAIN(binarycrossentropy, binarycrossentropy, Q, H),
    PLAIN(logitbinarycrossentropy, logitbinarycrossentropy, L, H),
    PLAIN(kldivergence, kldivergence, P, D),
    PLAIN(poisson, poisson_loss, Q, D),
    PLAIN(hinge, hinge_loss, R, S),
    PLAIN(squared_hinge, squared_hinge_loss, R, S),
    PLAIN(dice, dice_coeff_loss, Q, H),
    PLAIN(tversky, tversky_loss, Q, H),
    PLAIN(focal, focal_loss, P, H),
    CASE(focal_05, focal_loss, P, H, .gamma = 0.5),
    PLAIN(binary_focal, binary_focal_loss, Q, H),
    PLAIN(siamese, siamese_contrastive_loss, Q, H),
};
#define CASES (int)(sizeof cases / sizeof *cases)

static flux_tensor *run(const loss_case *c, flux_tensor *p, flux_tensor *y) {
    flux_loss_opts o = c->o;
    o.yhat = p;
    o.y = y;
    return c->with(o);
}

static void against_torch(const loss_case *c, flux_dtype t, double tol) {
    flux_tensor *p = flux_to_dtype(c->p(), t), *loss = run(c, p, flux_to_dtype(c->y(), t));
    double value = flux_item(loss);
    if (!CHECK(test_close(value, *c->value, tol)))
        fprintf(stderr, "    %s: %.10g, not %.10g\n", c->name, value, *c->value);
    CHECK(flux_ndim(loss) == 0 && flux_dtype_of(loss) == t);
    flux_tensor *g = flux_grad(flux_gradient(loss, p), p);
    const double *v = g ? (const double *)flux_data(flux_to_dtype(g, FLUX_F64)) : NULL;
    for (int i = 0; i < 12; i++)
        if (!CHECK(v && test_close(v[i], c->gradient[i], tol)))
            fprintf(stderr, "    %s by yhat, element %d: %.10g, not %.10g\n", c->name, i,
                    v ? v[i] : 0, c->gradient[i]);
}

TEST(values_and_gradients_as_pytorch_in_f64) {
    for (int i = 0; i < CASES; i++) FLUX_SCOPE against_torch(&cases[i], FLUX_F64, 1e-7);
}

TEST(values_and_gradients_as_pytorch_in_f32) {
    for (int i = 0; i < CASES; i++)
        if (!(cases[i].o.eps > 0)) FLUX_SCOPE against_torch(&cases[i], FLUX_F32, 2e-5);
}

static flux_tensor *of_yhat(flux_tensor *x, void *user) {
    const loss_case *c = (const loss_case *)user;
    return run(c, x, c->y());
}
static flux_tensor *of_y(flux_tensor *x, void *user) {
    const loss_case *c = (const loss_case *)user;
    return run(c, c->p(), x);
}

TEST(gradients_against_finite_differences) {
    for (int i = 0; i < CASES; i++) FLUX_SCOPE {
        double gap = flux_gradcheck(of_yhat, (void *)(intptr_t)&cases[i], cases[i].p(), 0);
        if (!CHECK(gap < 1e-5)) fprintf(stderr, "    %s by yhat: %g\n", cases[i].name, gap);
    }
}

TEST(gradients_by_y_against_finite_differences) {
    for (int i = 0; i < CASES; i++) {
        bool soft = cases[i].y == D || cases[i].y == T;
        if (soft) FLUX_SCOPE {
            double gap = flux_gradcheck(of_y, (void *)(intptr_t)&cases[i], cases[i].y(), 0);
            if (!CHECK(gap < 1e-5)) fprintf(stderr, "    %s by y: %g\n", cases[i].name, gap);
        }
    }
}

/* ---- Flux's documented values */

static flux_tensor *rising(double from, int rows, int cols) {
    double v[64];
    for (int i = 0; i < rows * cols; i++) v[i] = from + i;
    return flux_from(v, rows, cols);
}
static flux_tensor *onehot(const int *label, int classes, int n) {
    bool v[64] = { false };
    for (int i = 0; i < n; i++) v[i * classes + label[i]] = true;
    return flux_from(v, classes, n);
}

TEST(golden_crossentropy) {
    const int label[5] = { 0, 1, 2, 1, 0 };
    flux_tensor *y = onehot(label, 3, 5), *p = flux_softmax(rising(-7, 3, 5)),
                *f = flux_to_dtype(p, FLUX_F32);
    double eps = 1.1920928955078125e-7;   /* float32's: the documents' values are float32's */
    CHECK_NEAR(flux_item(flux_crossentropy(p, y, .eps = eps)), 1.6076053, 1e-7);
    CHECK_NEAR(flux_item(flux_crossentropy(p, flux_label_smoothing(y, 0.15, 0), .eps = eps)),
               1.5776052, 1e-7);
    CHECK_NEAR(flux_item(flux_crossentropy(f, y)), 1.6076053, 3e-7);
    CHECK_NEAR(flux_item(flux_crossentropy(f, flux_label_smoothing(y, 0.15, 0))), 1.5776052, 3e-7);
}

TEST(golden_logitcrossentropy) {
    const int label[7] = { 0, 1, 2, 0, 1, 0, 0 };
    double v[21];
    for (int i = 0; i < 10; i++) v[i] = i - 9, v[10 + i] = i;
    v[20] = 7.5;
    flux_tensor *x = flux_from(v, 3, 7), *y = onehot(label, 3, 7), *f = flux_to_dtype(x, FLUX_F32);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(x, y)), 1.5791205, 1e-7);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(f, y)), 1.5791205, 3e-7);
    CHECK_NEAR(flux_item(flux_crossentropy(flux_softmax(f), y)), 1.5791197, 4e-7);
}

TEST(golden_focal) {
    double y[] = { 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0 };
    double z[] = { 0, 1, 1, 0, 0, 1 }, q[] = { 0.268941, 0.731059, 0.5, 0.5, 0.268941, 0.731059 };
    CHECK_NEAR(flux_item(flux_focal_loss(flux_softmax(rising(-7, 3, 5)), flux_from(y, 3, 5))),
               1.127756, 5e-6);
    CHECK_NEAR(flux_item(flux_binary_focal_loss(flux_from(q, 2, 3), flux_from(z, 2, 3))),
               0.0728675615927385, 1e-14);
}

TEST(golden_binary) {
    double x[3] = { 2, -1, 3.14159265358979 }, y[3] = { 1, 0, 1 };
    CHECK_NEAR(flux_item(flux_logitbinarycrossentropy(flux_from(x, 3), flux_from(y, 3))), 0.160832,
               1e-6);
    CHECK_NEAR(flux_item(flux_binarycrossentropy(flux_sigmoid(flux_from(x, 3)), flux_from(y, 3))),
               0.160832, 1e-6);
}

TEST(golden_elementwise) {
    double y[3] = { 1, 2, 3 }, a[3] = { 1.1, 1.9, 3.1 }, b[3] = { 1.1, 2.1, 3.1 },
           c[3] = { 1.1, 2.2, 3.3 }, d[3] = { 0.9, 1.8, 2.7 }, e[3] = { 1, 3, 3 };
    flux_tensor *t = flux_from(y, 3);
    CHECK_NEAR(flux_item(flux_mae(flux_from(a, 3), t)), 0.1, 1e-15);
    CHECK_NEAR(flux_item(flux_mse(flux_from(a, 3), t)), 0.01, 1e-15);
    /* These two are float32's in the documents. */
    CHECK_NEAR(flux_item(flux_msle(flux_from(c, 3), t)), 0.009084041, 2e-8);
    CHECK_NEAR(flux_item(flux_msle(flux_from(d, 3), t)), 0.011100831, 2e-8);
    CHECK_NEAR(flux_item(flux_huber_loss(flux_from(b, 3), t)), 0.005, 1e-15);
    CHECK_NEAR(flux_item(flux_huber_loss(flux_from(b, 3), t, .delta = 0.05)), 0.00375, 1e-15);
    CHECK_NEAR(flux_item(flux_dice_coeff_loss(flux_from(b, 3), t)), 0.000992391663909964, 1e-12);
    CHECK_NEAR(flux_item(flux_poisson_loss(flux_from(e, 3), t)), 0.5023128522198171, 1e-12);
}

TEST(golden_others) {
    double p[4] = { 0.1, 0.3, 1, 1.5 }, y[4] = { 1, -1, 1, 1 }, q[3] = { 0.9, 0.2, 0.6 },
           z[3] = { 1, 0, 1 };
    CHECK_NEAR(flux_item(flux_hinge_loss(flux_from(p, 4), flux_from(y, 4))), 0.55, 1e-12);
    CHECK_NEAR(flux_item(flux_squared_hinge_loss(flux_from(p, 4), flux_from(y, 4))), 0.625, 1e-12);
    CHECK_NEAR(flux_item(flux_tversky_loss(flux_from(q, 3), flux_from(z, 3))), 0.10394265232974909,
               1e-12);
    CHECK_NEAR(flux_item(flux_kldivergence(flux_full(0.5, 2, 2), flux_eye(2))), log(2.0), 1e-6);
}

TEST(golden_siamese) {
    double y[5] = { 1, 2, 3, 4, 5 }, p[5] = { 1, 2, 3, 4, 5 };
    /* by hand, margin 2: mean of (1-y) yhat^2 + y max(0, 2 - yhat)^2 */
    CHECK_NEAR(
        flux_item(flux_siamese_contrastive_loss(flux_from(p, 5), flux_from(y, 5), .margin = 2)),
        -33.8, 1e-9);
}

/* ---- every formula, written out once more, with its options at their defaults, given, and given as 0 */

static double y_log(double y, double q) { return y == 0 && q <= 0 ? 0 : y * log(q); }
static double above0(double x) { return x > 0 ? x : 0; }
/* What element i adds to loss k of FLUX__LOSSES; `soft` has the softmax of p along its classes. */
static double element(int k, double p, double y, double soft, const flux_loss_opts *o) {
    const double e = fabs(p - y), q = p + o->eps, right = y * p + (1 - y) * (1 - p) + o->eps;
    switch (k) {
    case 0: return e;
    case 1: return e * e;
    case 2: return pow(log(q / (y + o->eps)), 2);
    case 3: return e < o->delta ? e * e / 2 : o->delta * (e - o->delta / 2);
    case 4: return -y_log(y, q);
    case 5: return -y * log(soft);
    case 6: return -y_log(y, q) - y_log(1 - y, 1 - p + o->eps);
    case 7: return (1 - y) * p + log1p(exp(-p));
    case 8: return y_log(y, y) - y_log(y, q);
    case 9: return p - y_log(y, p);
    case 10: return above0(1 - p * y);
    case 11: return pow(above0(1 - p * y), 2);
    case 14: return -pow(above0(1 - q), o->gamma) * y_log(y, q);
    case 15: return -pow(above0(1 - right), o->gamma) * log(right);
    default: return (1 - y) * p * p + y * pow(above0(o->margin - p), 2);
    }
}
static double whole(bool dice, const double *p, const double *y, const flux_loss_opts *o) {
    double both = 0, squares = 0, wrong = 0;
    for (int i = 0; i < 12; i++) {
        both += p[i] * y[i], squares += p[i] * p[i] + y[i] * y[i];
        wrong += o->beta * (1 - y[i]) * p[i] + (1 - o->beta) * y[i] * (1 - p[i]);
    }
    return dice ? 1 - (2 * both + o->smooth) / (squares + o->smooth) : 1 - (both + 1) / (both + wrong + 1);
}
TEST(every_formula_with_every_option) {
    static flux_tensor *(*const loss[])(flux_loss_opts) = {
#define WITH(name, per) flux_##name##_with,
        FLUX__LOSSES(WITH)
    };
    static const char per[] = "EEEESSEESEEEBBSEE";             /* element, sample, batch */
    static const double p[12] = { 0, 0.3, 1, 0.6, 0.25, 0.9, 0.125, 1, 0, 0.75, 0.5, 0.01 },
                        y[12] = { 0, 0.25, 1, 0.8, 0.1, 0.5, 1, 1, 0, 0, 0.4, 0 };
    flux_tensor *tp = flux_from(p, 3, 4), *ty = flux_from(y, 3, 4);
    double total[4] = { 0 };
    for (int i = 0; i < 12; i++) total[i / 3] += exp(p[i]);
    const flux_loss_opts sets[3] = {
        { .eps = 2.220446049250313e-16, .delta = 1, .gamma = 2, .margin = 1, .smooth = 1, .beta = 0.7 },
        { .eps = 0.125, .delta = 0.2, .gamma = 1.5, .margin = 0.6, .smooth = 0.25, .beta = 0.4 },
        { .eps = 0, .delta = 0, .gamma = 0, .margin = 0, .smooth = 0, .beta = 0 } };
    for (int k = 0; k < 17; k++)
        for (int set = 0; set < 3; set++) FLUX_SCOPE {
            const flux_loss_opts *v = &sets[set];
            flux_loss_opts o = FLUX_OPTIONS(flux_loss_opts, .eps = v->eps, .delta = v->delta, .gamma = v->gamma,
                                            .margin = v->margin, .smooth = v->smooth, .beta = v->beta), none = { .yhat = tp, .y = ty };
            o.yhat = tp, o.y = ty;
            double want = per[k] == 'B' ? whole(k == 12, p, y, v) : 0;
            for (int i = 0; i < 12 && per[k] != 'B'; i++)
                want += element(k, p[i], y[i], exp(p[i]) / total[i / 3], v) / (per[k] == 'S' ? 4 : 12);
            const double got = flux_item(loss[k](set ? o : none));
            if (!CHECK(test_close(got, want, 1e-12) || (isnan(got) && isnan(want)))) fprintf(stderr, "    loss %d, options %d: %.17g, not %.17g\n", k, set, got, want);
        }
}
/* A label is the one-hot column of its class, in each loss that takes labels, however they are summed up. */
TEST(labels_are_columns) {
    static flux_tensor *(*const loss[])(flux_loss_opts) = { flux_crossentropy_with, flux_logitcrossentropy_with, flux_kldivergence_with, flux_focal_loss_with };
    static const int32_t label[4] = { 2, 0, 1, 1 };
    static const double w[3] = { 0.5, 3, 1.25 };
    for (int k = 0; k < 4; k++)
        for (int agg = FLUX_MEAN; agg <= FLUX_NONE; agg++)
            for (int way = 0; way < 4; way++) FLUX_SCOPE {
                flux_loss_opts o = { .yhat = P(), .agg = (flux_agg)agg, .eps = 0.125, .gamma = 1.5 };
                if (way % 2) o.weights = flux_from(w, 3);
                o.y = flux_to_dtype(flux_from(label, 4), way < 2 ? FLUX_I32 : FLUX_U8);
                flux_tensor *a = loss[k](o);
                o.y = H();
                flux_tensor *b = loss[k](o);
                CHECK(a && b && flux_ndim(a) == flux_ndim(b) && flux_item(flux_max(flux_abs(flux_sub(a, b)))) < 1e-14);
            }
}

/* ---- options */

TEST(aggregates) {
    flux_tensor *p = L(), *y = H(), *each = flux_logitcrossentropy(p, y, .agg = FLUX_NONE);
    CHECK(flux_ndim(each) == 2 && flux_dim(each, 0) == 1 && flux_dim(each, 1) == 4);
    double sum = flux_item(flux_sum(each));
    CHECK_NEAR(flux_item(flux_logitcrossentropy(p, y, .agg = FLUX_SUM)), sum, 1e-12);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(p, y)), sum / 4, 1e-12);
    CHECK_NEAR(flux_item(flux_mse(p, y, .agg = FLUX_SUM)), 12 * flux_item(flux_mse(p, y)), 1e-12);
    flux_tensor *none = flux_mse(p, y, .agg = FLUX_NONE);
    CHECK(flux_dim(none, 0) == 3 && flux_dim(none, 1) == 4);
    CHECK_NEAR(flux_item(flux_dice_coeff_loss(Q(), y, .agg = FLUX_NONE)), *fix_loss_dice, 2e-9);
}

/* Weights of classes: the sum is that of the weighted terms, and the mean is by the weights of the observations' classes, whether
   y is labels, one-hot or probabilities; checked by hand, in double. */
TEST(class_weights) {
    const double w[3] = { 0.5, 3, 1.25 };
    const int32_t label[4] = { 2, 0, 1, 1 };
    flux_tensor *weights = flux_from(w, 3), *labels = flux_from(label, 4), *p = flux_softmax(L(), 0);
    const double *probability = (const double *)flux_data(p);
    for (int soft = 0; soft < 2; soft++) {
        const double *y = soft ? fix_loss_D : hard;
        double sum = 0, total = 0;
        for (int i = 0; i < 12; i++) sum -= w[i % 3] * y[i] * log(probability[i]), total += w[i % 3] * y[i];
        flux_tensor *t = soft ? D() : H();
        CHECK_NEAR(flux_item(flux_logitcrossentropy(L(), t, .weights = weights, .agg = FLUX_SUM)), sum, 1e-12);
        CHECK_NEAR(flux_item(flux_logitcrossentropy(L(), t, .weights = weights)), sum / total, 1e-12);
        CHECK_NEAR(flux_item(flux_crossentropy(p, t, .weights = weights, .eps = 1e-300)), sum / total, 1e-12);
        CHECK_NEAR(flux_item(flux_logitcrossentropy(flux_transpose(L()), flux_transpose(t), .weights = weights, .dim = 1)), sum / total, 1e-12);
        if (soft) continue;
        CHECK_NEAR(flux_item(flux_logitcrossentropy(L(), labels, .weights = weights)), sum / total, 1e-12);
        CHECK_NEAR(flux_item(flux_logitcrossentropy(L(), labels, .weights = weights, .agg = FLUX_SUM)), sum, 1e-12);
        sum += w[2] * log(probability[2]), total -= w[2];          /* without the one of class 2 */
        CHECK_NEAR(flux_item(flux_logitcrossentropy(L(), labels, .weights = weights, .ignore_index = 2)), sum / total, 1e-12);
    }
}

TEST(class_dimension) {
    flux_tensor *p = flux_transpose(L()), *y = flux_transpose(D());
    CHECK_NEAR(flux_item(flux_logitcrossentropy(p, y, .dim = 1)), *fix_loss_logitcrossentropy_soft,
               3e-9);
    CHECK_NEAR(flux_item(flux_crossentropy(flux_transpose(P()), y, .dim = 1)),
               *fix_loss_crossentropy_soft, 3e-9);
    CHECK_NEAR(flux_item(flux_kldivergence(flux_transpose(P()), y, .dim = 1)),
               *fix_loss_kldivergence, 3e-9);
    CHECK_ERROR(flux_crossentropy(p, y, .dim = 2),
                "crossentropy: yhat is 4x3 f64 and has no dim 2 for the classes");
    CHECK_ERROR(flux_crossentropy(p, y, .dim = -1), "crossentropy: .dim is -1");
}

TEST(labels_are_converted) {
    bool b[4] = { true, false, false, true };
    float p[4] = { 0.9f, 0.2f, 0.1f, 0.8f };
    int32_t n[4] = { 1, 0, 0, 1 };
    double want = (0.01 + 0.04 + 0.01 + 0.04) / 4;
    flux_tensor *x = flux_from(p, 2, 2);
    CHECK_NEAR(flux_item(flux_mse(x, flux_from(b, 2, 2))), want, 5e-9);
    CHECK_NEAR(flux_item(flux_mse(x, flux_from(n, 2, 2))), want, 5e-9);
    CHECK(flux_dtype_of(flux_mse(x, flux_to_dtype(flux_from(n, 2, 2), FLUX_F64))) == FLUX_F32);
    CHECK_NEAR(flux_item(flux_mse(flux_from(n, 2, 2), x)), want, 5e-9);
}

TEST(zero_times_log_zero) {
    float p[4] = { 0, 1, 1, 0 }, y[4] = { 0, 1, 1, 0 };
    flux_tensor *a = flux_from(p, 2, 2), *b = flux_from(y, 2, 2);
    CHECK_NEAR(flux_item(flux_crossentropy(a, b)), 0, 2e-7);
    CHECK_NEAR(flux_item(flux_binarycrossentropy(a, b)), 0, 3e-7);
    CHECK_NEAR(flux_item(flux_kldivergence(a, b)), 0, 2e-7);
    CHECK_NEAR(flux_item(flux_poisson_loss(a, b)), 0.5, 1e-7);
    CHECK_NEAR(flux_item(flux_focal_loss(a, b)), 0, 1e-7);
    CHECK_NEAR(flux_item(flux_binary_focal_loss(a, b)), 0, 1e-7);
    flux_tensor *losses[6] = { flux_crossentropy(a, b), flux_binarycrossentropy(a, b),
                               flux_kldivergence(a, b), flux_poisson_loss(a, b),
                               flux_focal_loss(a, b),   flux_binary_focal_loss(a, b) };
    for (int i = 0; i < 6; i++) {
        flux_grads *g = flux_gradient(losses[i], a, b);
        const float *ga = flux_floats(flux_grad(g, a)), *gb = flux_floats(flux_grad(g, b));
        for (int k = 0; k < 4; k++) CHECK(ga && gb && ga[k] - ga[k] == 0 && gb[k] - gb[k] == 0);
    }
}

/* A class that can't be, and isn't, costs nothing; one that is, everything. */
TEST(masked_logits) {
    float x[3] = { -INFINITY, 1, 2 }, y[3] = { 0, 1, 0 }, z[3] = { 1, 0, 0 };
    flux_tensor *t = flux_from(x, 3, 1), *loss = flux_logitcrossentropy(t, flux_from(y, 3, 1));
    CHECK_NEAR(flux_item(loss), log(1 + exp(1.0)), 1e-6);
    CHECK_DATA(flux_grad(flux_gradient(loss, t), t), ((double[]){ 0, -0.731058579, 0.731058579 }),
               1e-6);
    CHECK(flux_item(flux_logitcrossentropy(t, flux_from(z, 3, 1))) == INFINITY);
}

TEST(large_logits_stay_finite) {
    float x[4] = { -1e4f, 1e4f, 80, -80 }, y[4] = { 1, 0, 1, 0 };
    flux_tensor *t = flux_from(x, 4), *loss = flux_logitbinarycrossentropy(t, flux_from(y, 4));
    CHECK_NEAR(flux_item(loss), 5000, 1e-3);
    CHECK_DATA(flux_grad(flux_gradient(loss, t), t), ((double[]){ -0.25, 0.25, 0, 0 }), 1e-30);
}

TEST(smoothing) {
    bool b[4] = { true, false, false, true };
    flux_tensor *y = flux_from(b, 2, 2);
    CHECK_DATA(flux_label_smoothing(y, 0.2, 0), ((double[]){ 0.9, 0.1, 0.1, 0.9 }), 2e-7);
    CHECK_DATA(flux_label_smoothing(flux_zeros(4, 2), 0.2, 0),
               ((double[]){ .05, .05, .05, .05, .05, .05, .05, .05 }), 1e-8);
    CHECK_DATA(flux_label_smoothing(flux_zeros(3), 0.2, -1), ((double[]){ .1, .1, .1 }), 1e-8);
    CHECK_ERROR(flux_label_smoothing(y, 0, 0), "label_smoothing: alpha is 0");
    CHECK_ERROR(flux_label_smoothing(y, 1, 0), "label_smoothing: alpha is 1");
    CHECK_ERROR(flux_label_smoothing(y, NAN, 0), "label_smoothing: alpha is");
    CHECK_ERROR(flux_label_smoothing(y, 0.1, 2), "label_smoothing: 2x2 bool has no dim 2");
    CHECK_ERROR(flux_label_smoothing(NULL, 0.1, 0), "NULL");
}

/* ---- what is refused */

TEST(shapes_must_agree) {
    for (int i = 0; i < CASES; i++)
        FLUX_SCOPE CHECK_ERROR(run(&cases[i], flux_ones(3, 4), flux_ones(4, 3)),
                               "yhat is 3x4 f32, y is 4x3 f32");
    CHECK_ERROR(flux_mse(flux_ones(3, 4), flux_ones(3)),
                "mse: yhat is 3x4 f32, y is 3-element f32: their shapes must be the same");
    CHECK_NEAR(flux_item(flux_mse(flux_ones(3, 1), flux_zeros(3))), 1, 0);   /* trailing 1s */
}

TEST(options_must_make_sense) {
    flux_tensor *p = flux_full(0.5, 2, 2), *y = flux_eye(2);
    CHECK_ERROR(flux_crossentropy(p, y, .eps = -1e-3), "crossentropy: .eps is -0.001");
    CHECK_ERROR(flux_crossentropy(p, y, .eps = NAN), "crossentropy: .eps is");
    CHECK_ERROR(flux_crossentropy(p, y, .eps = 1e-50),
                "crossentropy: .eps is 1e-50, which is 0 in f32");
    CHECK_ERROR(flux_huber_loss(p, y, .delta = -1), "huber_loss: .delta is -1");
    CHECK_ERROR(flux_focal_loss(p, y, .gamma = INFINITY), "focal_loss: .gamma is inf");
    CHECK_ERROR(flux_siamese_contrastive_loss(p, y, .margin = -2),
                "siamese_contrastive_loss: .margin is -2");
    CHECK_ERROR(flux_dice_coeff_loss(p, y, .smooth = -1), "dice_coeff_loss: .smooth is -1");
    CHECK_ERROR(flux_tversky_loss(p, y, .beta = 1.5), "tversky_loss: .beta is 1.5");
    CHECK_ERROR(flux_mse(p, y, .agg = (flux_agg)7), "mse: .agg is 7");
}

TEST(null_and_tuples) {
    flux_tensor *p = flux_ones(2, 2);
    CHECK_ERROR(flux_mse(NULL, p), "mse: argument yhat is NULL");
    CHECK_ERROR(flux_mse(p, NULL), "mse: argument y is NULL");
    CHECK_ERROR(flux_mse(flux_tuple(p, p), p), "tuple");
    flux_fn2 plain = flux_mse;            /* the function, without options */
    CHECK_NEAR(flux_item(plain(p, flux_zeros(2, 2))), 1, 0);
}
/* Of no observations: nothing for each, the sum 0, and no mean; Dice and Tversky, which are of the batch as a whole, miss nothing. */
#define OF_NONE(name, per) do {                                                                      \
        flux_tensor *p = flux_rand(3, 0), *y = flux_rand(3, 0), *each = flux_##name(p, y, .agg = FLUX_NONE); \
        const char kind = #per[0];                                                                   \
        REQUIRE(each != NULL);                                                                       \
        if (kind == 'B') CHECK(flux_ndim(each) == 0 && flux_item(each) == 0);                        \
        else CHECK(flux_ndim(each) == 2 && flux_dim(each, 0) == (kind == 'E' ? 3 : 1) && flux_dim(each, 1) == 0); \
        CHECK_NEAR(flux_item(flux_##name(p, y, .agg = FLUX_SUM)), 0, 0);                             \
        const double mean = flux_item(flux_##name(p, y));                                            \
        CHECK(kind == 'B' ? mean == 0 : isnan(mean));                                                \
        CHECK(flux_len(flux_grad(flux_gradient(flux_##name(p, y), p), p)) == 0);                     \
    } while (0);
TEST(losses_of_no_observations) {
    ONLY_ON_CPU();
    FLUX__LOSSES(OF_NONE)
}

TEST_MAIN()
