/* What stands around a training step: metrics, against scikit-learn (fixtures/metrics.h); splitting, folds and sampling;
   averaged models; flux_train with its options, and a run that is cut off and goes on. */
#include "test.h"
#include "fixtures/metrics.h"

/* ------------------------------------------------------------------ metrics */

static flux_tensor *score(void) { return flux_from(metrics_score, METRICS_CLASSES, METRICS_N); }
static flux_tensor *truth(void) { return flux_from(metrics_truth, METRICS_N); }
static flux_tensor *outputs(const double *at, int n) {         /* the first n, as outputs x observations */
    return flux_slice(flux_from_data(at, FLUX_F64, FLUX_SHAPE(METRICS_OUTPUTS, METRICS_M)), 0, 0, n);
}

TEST(metrics_as_in_scikit_learn) {
    flux_tensor *p = score(), *y = truth(), *wide = flux_onehot(y, METRICS_CLASSES), *guess = flux_onecold(p);
    flux_tensor *forms[3][2] = { { p, y }, { p, wide }, { guess, wide } };
    for (int i = 0; i < 3; i++) {
        flux_tensor *a = forms[i][0], *b = forms[i][1];
        CHECK_DATA(flux_accuracy(a, b), metrics_accuracy, 1e-12);
        CHECK_DATA(flux_confusion(a, b), metrics_confusion, 0);
        CHECK_DATA(flux_precision(a, b), metrics_precision, 1e-12);
        CHECK_DATA(flux_recall(a, b), metrics_recall, 1e-12);
        CHECK_DATA(flux_f1(a, b), metrics_f1, 1e-12);
        CHECK_NEAR(flux_item(flux_mean(flux_f1(a, b))), metrics_macro_f1[0], 1e-12);
        if (i == 2) break;
        for (int k = 1; k <= 3; k++) CHECK_NEAR(flux_item(flux_topk_accuracy(a, b, .k = k)), metrics_topk[k - 1], 1e-12);
        CHECK_NEAR(flux_item(flux_topk_accuracy(a, b, .k = 4)), 1, 0);
        CHECK_DATA(flux_perplexity(a, b), metrics_perplexity, 1e-12);
    }
    CHECK_DATA(flux_accuracy(guess, y), metrics_accuracy, 1e-12);
    CHECK(flux_at(flux_confusion(p, y), 1, 0) == metrics_confusion[1]);      /* guessed 1, and it was 0 */
    CHECK(flux_dtype_of(flux_confusion(p, y)) == FLUX_I64 && flux_ndim(flux_accuracy(p, y)) == 0);
    CHECK_NEAR(flux_item(flux_r2(outputs(metrics_yhat, 1), outputs(metrics_y, 1))), metrics_r2[0], 1e-12);
    CHECK_NEAR(flux_item(flux_r2(outputs(metrics_yhat, 2), outputs(metrics_y, 2))), metrics_r2[1], 1e-12);
    CHECK_NEAR(flux_item(flux_r2(outputs(metrics_yhat, 3), outputs(metrics_y, 3))), metrics_r2[2], 1e-12);
    CHECK_NEAR(flux_item(flux_r2(flux_full(2, 5), flux_full(2, 5))), 1, 0);  /* constant, and met */
}

TEST(metrics_of_sequences_and_ties) {
    flux_tensor *p = flux_reshape(flux_take(score(), 36), METRICS_CLASSES, 9, 4), *y = flux_reshape(flux_take(truth(), 36), 9, 4);
    CHECK_NEAR(flux_item(flux_accuracy(p, y)), flux_item(flux_accuracy(flux_take(score(), 36), flux_take(truth(), 36))), 0);
    CHECK_NEAR(flux_item(flux_perplexity(p, y)), flux_item(flux_perplexity(flux_take(score(), 36), flux_take(truth(), 36))), 1e-12);
    float same[6] = { 1, 1, 1, 0, (float)NAN, 2 };
    int32_t second[2] = { 1, 2 };
    flux_tensor *t = flux_from(same, 3, 2), *s = flux_from(second, 2);
    for (int k = 1; k <= 3; k++)                               /* of equal scores the first is guessed; NaN is above all */
        CHECK_NEAR(flux_item(flux_topk_accuracy(t, s, .k = k)), k == 1 ? flux_item(flux_accuracy(t, s)) : 1, 0);
    CHECK_NEAR(flux_item(flux_topk_accuracy(flux_slice(t, 1, 1, 2), flux_from(second, 1), .k = 2)), 0, 0);   /* is NaN itself */
    flux_tensor *yes = flux_gt(flux_from(same, 6), 0.5), *is = flux_lt(flux_from(same, 6), 1.5);
    const double counts[4] = { 1, 1, 1, 3 };                   /* of no and yes: NaN is neither above nor below */
    CHECK_DATA(flux_confusion(yes, is), counts, 0);
    CHECK_NEAR(flux_item(flux_accuracy(yes, is)), 4.0 / 6, 1e-12);
}

static flux_tensor *mean_of_yhat(flux_tensor *yhat, flux_tensor *y) { return (void)y, flux_mean(yhat); }

TEST(metrics_over_uneven_batches_are_those_of_all) {
    const flux_fn2 all[] = { flux_accuracy, flux_confusion, flux_precision, flux_recall, flux_f1, flux_perplexity, flux_logitcrossentropy, mean_of_yhat };
    for (int i = 0; i < 8; i++) {
        flux_layer *m = flux_metric(all[i]);
        flux_each (b, flux_dataloader(score(), truth(), .batchsize = 10)) {  /* 10, 10, 10, 7 */
            CHECK(flux_metric_add(m, b.x, b.y) == 0);
            if (i == 0) CHECK_NEAR(flux_item(flux_call(m, b.x, b.y)), flux_item(flux_accuracy(b.x, b.y)), 0);
        }
        flux_tensor *whole = all[i](score(), truth()), *got = flux_metric_value(m);
        CHECK(flux_len(whole) == flux_len(got));
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(got, FLUX_F64), flux_to_dtype(whole, FLUX_F64))))) < 1e-12);
    }
    flux_layer *r2 = flux_metric(flux_r2), *top = flux_metric(flux_topk_accuracy, .k = 2);
    flux_each (b, flux_dataloader(outputs(metrics_yhat, 2), outputs(metrics_y, 2), .batchsize = 4)) CHECK(flux_metric_add(r2, b.x, b.y) == 0);
    CHECK_NEAR(flux_item(flux_metric_value(r2)), metrics_r2[1], 1e-12);
    flux_each (b, flux_dataloader(score(), truth(), .batchsize = 10)) CHECK(flux_metric_add(top, b.x, b.y) == 0);
    CHECK_NEAR(flux_item(flux_metric_value(top)), metrics_topk[1], 1e-12);
    char text[100];
    flux_layer_text(top, text, sizeof text);
    CHECK(strncmp(text, "Metric(topk_accuracy, k=2)", 26) == 0);
    flux_metric_reset(top);
    CHECK_ERROR(flux_metric_value(top), "metric_value: Metric(topk_accuracy, k=2) has met no batch");
}

static flux_tensor *gives_two(flux_tensor *yhat, flux_tensor *y) { return (void)yhat, flux_take(y, 2); }
TEST(metrics_refuse) {
    flux_tensor *p = score(), *y = truth();
    CHECK_ERROR(flux_accuracy(NULL, y), "accuracy: argument yhat is NULL");
    CHECK_ERROR(flux_accuracy(p, flux_take(y, 5)), "accuracy: yhat is 4x37 f64, y is 5-element i32: y must be one-hot");
    CHECK_ERROR(flux_accuracy(flux_rand(1, 5), flux_rand(1, 5)), "has no two classes in dim 0; of one number that says yes or no give flux_gt");
    CHECK_ERROR(flux_confusion(y, y), "confusion: how many classes there are is not known");
    CHECK_ERROR(flux_topk_accuracy(p, y), "topk_accuracy: k is 5, which is not within 1 to the 4 classes");
    CHECK_ERROR(flux_r2(flux_rand(2, 3), flux_rand(3, 2)), "r2: yhat is 2x3 f32, y is 3x2 f32: both must have the same shape");
    if (!test_device.backend) CHECK_ERROR(flux_f1(flux_take(p, 1), flux_from((int32_t[]){ 4 }, 1)), "f1: label 4 at (0) is not one of 0 to 3");
    CHECK_ERROR(flux_metric(NULL), "metric: argument f is NULL");
    CHECK_ERROR(flux_metric(flux_f1, .k = 3), "metric: .k goes with flux_topk_accuracy");
    CHECK_ERROR(flux_metric_add(flux_dense(2, 2), p, y), "metric_add: Dense is no metric; flux_metric makes one");
    flux_layer *m = flux_metric(flux_f1), *two = flux_metric(gives_two);
    CHECK(flux_metric_add(m, p, y) == 0);
    CHECK_ERROR(flux_metric_add(m, flux_slice(p, 0, 0, 3), flux_mul(y, 0)), "metric_add: this batch has other classes");
    CHECK_DATA(flux_metric_value(m), metrics_f1, 1e-12);       /* and is as it was */
    CHECK_ERROR(flux_metric_add(two, y, y), "metric: the function gave 2-element i32, not one number");
}

/* ------------------------------------------------------------------ parts and mixtures of a data set */

static flux_tensor *numbers(int n) { return flux_eval(flux_arange(0, n, 1)); }
static flux_tensor *pairs(int n) { return flux_eval(flux_stack(0, numbers(n), flux_mul(numbers(n), 10))); }      /* 2 x n: i, 10 i */
static const int32_t *ints(flux_tensor *x) { return (const int32_t *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_I32))); }
static bool in_step(flux_tensor *both) {                       /* of (numbers, pairs) */
    flux_tensor *a = flux_nth(both, 0), *b = flux_nth(both, 1);
    return flux_item(flux_sum(flux_ne(flux_select(b, 0, 0), a))) == 0 && flux_item(flux_sum(flux_ne(flux_select(b, 0, 1), flux_mul(a, 10)))) == 0;
}

TEST(several_arrays_stay_together) {
    flux_tensor *all = flux_shuffleobs(flux_tuple(numbers(20), pairs(20)), 4), *a = NULL, *b = NULL;
    CHECK(in_step(all));
    CHECK(flux_item(flux_sum(flux_ne(flux_nth(all, 0), flux_shuffleobs(numbers(20), 4)))) == 0);     /* as an array alone */
    CHECK(flux_splitobs(0.7, all, &a, &b) == 0);
    CHECK(in_step(a) && in_step(b) && flux_len(flux_nth(a, 0)) == 14 && flux_dim(flux_nth(b, 1), 1) == 6);
    int n = 0;
    flux_each (batch, flux_dataloader(a, .batchsize = 4)) n += (int)flux_len(batch.x), CHECK(in_step(flux_tuple(batch.x, batch.y)));
    CHECK(n == 14);
    CHECK_ERROR(flux_shuffleobs(flux_tuple(numbers(3), pairs(4)), 1), "shuffleobs: array 0 has 3 observations, array 1 has 4");
    CHECK_ERROR(flux_splitobs(0.5, flux_tuple(numbers(3), flux_scalar(1)), &a, &b), "splitobs: an array of the tuple has no dimension");
}

TEST(folds_hold_each_observation_out_once) {
    for (int k = 2; k <= 7; k++) {
        int held[10] = { 0 };
        for (int i = 0; i < k; i++) {
            flux_tensor *learn = NULL, *out = NULL;
            REQUIRE(flux_kfolds(k, i, flux_tuple(numbers(10), pairs(10)), &learn, &out) == 0);
            int size = (int)flux_len(flux_nth(out, 0)), seen[10] = { 0 };
            CHECK(size == 10 / k + (i < 10 % k) && in_step(learn) && in_step(out) && flux_len(flux_nth(learn, 0)) == 10 - size);
            const int32_t *in = ints(flux_nth(learn, 0)), *at = ints(flux_nth(out, 0));
            for (int j = 0; j < size; j++) held[at[j]]++, seen[at[j]]++;
            for (int j = 0; j < 10 - size; j++) seen[in[j]]++;
            for (int j = 0; j < 10; j++) CHECK(seen[j] == 1);
        }
        for (int j = 0; j < 10; j++) CHECK(held[j] == 1);
    }
    flux_tensor *a = NULL, *b = NULL;
    CHECK_ERROR(flux_kfolds(1, 0, numbers(4), &a, &b), "kfolds: 1 folds of 4 observations");
    CHECK_ERROR(flux_kfolds(3, 3, numbers(4), &a, &b), "kfolds: there is no fold 3 among 3");
    CHECK_ERROR(flux_kfolds(3, 0, numbers(4), NULL, &b), "kfolds: argument learn is NULL");
    CHECK(!a && !b);
}

static const int32_t kinds[9] = { 7, 2, 7, 7, -1, 7, 2, 7, 7 };        /* 6 of class 7, 2 of class 2, 1 of class -1 */
TEST(classes_made_equally_frequent) {
    for (int over = 0; over < 2; over++) {
        flux_tensor *x = flux_tuple(numbers(9), pairs(9), flux_from(kinds, 9)), *y = flux_from(kinds, 9);
        flux_tensor *got = over ? flux_oversample(x, y, 3) : flux_undersample(x, y, 3), *again = over ? flux_oversample(x, y, 3) : flux_undersample(x, y, 3);
        int each = over ? 6 : 1, n = 3 * each, times[9] = { 0 }, of[3] = { 0 };
        CHECK(in_step(got) && flux_len(flux_nth(got, 0)) == n && flux_item(flux_sum(flux_ne(flux_nth(got, 0), flux_nth(again, 0)))) == 0);
        const int32_t *at = ints(flux_nth(got, 0)), *kind = ints(flux_nth(got, 2));
        for (int i = 0; i < n; i++) times[at[i]]++, of[kind[i] == 7 ? 0 : kind[i] == 2 ? 1 : 2]++, CHECK(kind[i] == kinds[at[i]]);
        for (int c = 0; c < 3; c++) CHECK(of[c] == each);
        for (int i = 0; over && i < 9; i++) CHECK(times[i] == (kinds[i] == 7 ? 1 : kinds[i] == 2 ? 3 : 6));   /* as evenly as can be */
    }
    const double ones[2] = { 1, 1 }, weights[9] = { 0.5, 1.5, 0.5, 0.5, 3, 0.5, 1.5, 0.5, 0.5 };
    CHECK_DATA(flux_balanced_weights(flux_from(kinds, 9)), weights, 1e-15);
    CHECK_DATA(flux_balanced_weights(flux_onehot(flux_onecold(flux_eye(2)), 2)), ones, 0);
    CHECK_ERROR(flux_oversample(numbers(8), flux_from(kinds, 9), 1), "oversample: 9 labels for 8 observations");
    CHECK_ERROR(flux_balanced_weights(numbers(4)), "balanced_weights: labels are a vector of integers, or one-hot");
}

TEST(weighted_sampling) {
    enum { N = 6, EPOCHS = 500 };
    const double w[N] = { 1, 0, 3, 2, 0, 0 }, below[2] = { 1, -1 };
    flux_loader *data = flux_dataloader(numbers(N), .batchsize = 4, .weights = flux_from(w, N), .seed = 9), *moved = flux_mapobs(flux_square, data);
    int count[N] = { 0 }, other[N] = { 0 };
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        flux_each (b, data) for (int i = 0; i < b.size; i++) count[ints(b.x)[i]]++;
        flux_each (b, moved) for (int i = 0; i < b.size; i++) other[(int)(sqrt(ints(b.x)[i]) + 0.5)]++;
    }
    for (int i = 0; i < N; i++) {                              /* binomial: within five standard deviations */
        double p = w[i] / 6, n = N * EPOCHS;
        CHECK(fabs(count[i] - n * p) <= 5 * sqrt(n * p * (1 - p)) && other[i] == count[i]);
    }
    char text[300];
    flux_loader_text(data, text, sizeof text);
    CHECK(strstr(text, "batchsize=4, weighted=true") != NULL);
    int all = 0;                                               /* two ranks with one seed share one draw */
    int32_t whole[N] = { 0 }, parts[N] = { 0 };
    flux_each (b, flux_dataloader(numbers(N), .batchsize = 6, .weights = flux_from(w, N), .seed = 4)) for (int i = 0; i < 6; i++) whole[ints(b.x)[i]]++;
    for (int rank = 0; rank < 2; rank++)
        flux_each (b, flux_dataloader(numbers(N), .batchsize = 3, .weights = flux_from(w, N), .seed = 4, .rank = rank, .ranks = 2))
            for (int i = 0; i < b.size; i++) parts[ints(b.x)[i]]++, all++;
    CHECK(all == N && memcmp(whole, parts, sizeof whole) == 0);
    flux_each (b, flux_dataloader(numbers(N), .batchsize = 3, .weights = flux_from(w, N), .rank = 1, .ranks = 2)) CHECK(b.size == 3 && w[ints(b.x)[0]] > 0);
    CHECK_ERROR(flux_dataloader(numbers(3), .weights = flux_ones(4)), "dataloader: .weights is 4-element f32, not a vector of one number for each of the 3");
    CHECK_ERROR(flux_dataloader(numbers(2), .weights = flux_from(below, 2)), "dataloader: the weight of observation 1 is -1");
    CHECK_ERROR(flux_dataloader(numbers(2), .weights = flux_zeros(2)), "dataloader: the sum of .weights is 0");
}

/* ------------------------------------------------------------------ averaged models */

static flux_layer *network(void) { return flux_chain(flux_dense(3, 4, flux_tanh), flux_batchnorm(4), flux_dense(4, 2)); }
static double apart(flux_layer *a, flux_layer *b) {            /* the largest difference of any parameter */
    return flux_item(flux_max(flux_abs(flux_sub(flux_destructure(a), flux_destructure(b)))));
}
static double mean_of_stat(flux_layer *m) { return flux_item(flux_mean(flux_param(m, "layers.1.mean"))); }
static void train_once(flux_layer *m, flux_state *opt) {
    FLUX_SCOPE flux_update(opt, m, flux_gradient(flux_mean(flux_square(flux_call(m, flux_randn(3, 8)))), m));
}

/* PyTorch's formulas, followed in double by hand: n = 0 takes p, then ema = decay ema + (1 - decay) p, or the mean of all. */
TEST(averages_follow_their_formulas) {
    for (int equal = 0; equal < 2; equal++) {
        flux_seed(8);
        flux_layer *m = network(), *a = equal ? flux_averaged(m, .equal = true) : flux_averaged(m, .decay = 0.9);
        flux_state *opt = flux_setup(flux_adam(0.1), m);
        double by_hand[30];
        int n = (int)flux_num_params(m);
        REQUIRE(n <= 34 && flux_num_params(a) == n);
        for (int t = 0; t < 6; t++) {
            train_once(m, opt);
            CHECK(flux_update_average(a, m) == 0);
            const float *p = flux_floats(flux_cpu(flux_destructure(m))), *got = flux_floats(flux_cpu(flux_destructure(a)));
            for (int i = 0; i < n && i < 30; i++) {
                by_hand[i] = t == 0 ? p[i] : equal ? by_hand[i] + (p[i] - by_hand[i]) / (t + 1) : 0.9 * by_hand[i] + 0.1 * p[i];
                CHECK_NEAR(got[i], by_hand[i], 1e-6);
            }
        }
        CHECK(apart(a, m) > 1e-3);
        CHECK_NEAR(mean_of_stat(flux_child(a, 0)), mean_of_stat(m), 0);    /* statistics are the model's */
        flux_tensor *x = flux_randn(3, 5);
        FLUX_NOGRAD CHECK(flux_item(flux_sum(flux_ne(flux_call(a, x), flux_call(flux_child(a, 0), x)))) == 0);
    }
}

TEST(averages_are_saved_and_copied_like_models) {
    char file[300];
    snprintf(file, sizeof file, "%s/test_average.%p", test_temp(), (void *)file);
    flux_seed(9);
    flux_layer *m = network(), *a = flux_averaged(m), *b = flux_averaged(network());
    flux_state *opt = flux_setup(flux_adam(0.1), m);
    for (int i = 0; i < 3; i++) train_once(m, opt), CHECK(flux_update_average(a, m) == 0);
    CHECK(flux_save(a, file) == 0 && flux_load(b, file) == 0 && apart(a, b) == 0);
    train_once(m, opt);
    CHECK(flux_update_average(a, m) == 0 && flux_update_average(b, m) == 0 && apart(a, b) == 0);   /* the count came along */
    flux_layer *copy = network();
    CHECK(flux_loadmodel(copy, flux_child(a, 0)) == 0 && apart(copy, a) == 0);
    CHECK(flux_loadmodel(flux_child(b, 0), m) == 0 && apart(b, m) == 0);
    double before = apart(copy, a);
    train_once(copy, flux_setup(flux_adam(0.1), copy));
    CHECK(before == 0 && apart(copy, a) > 1e-3);               /* and is a copy */
    remove(file);
    CHECK_ERROR(flux_loadmodel(copy, flux_chain(flux_dense(3, 4), flux_batchnorm(4), flux_dense(4, 3))),
                "loadmodel: layers.2.weight is 2x4 f32 in the one model and 3x4 f32 in the other");
    CHECK_ERROR(flux_loadmodel(copy, flux_chain(flux_dense(3, 4, .bias = FLUX_OFF), flux_batchnorm(4), flux_dense(4, 2))), "loadmodel: the one model has layers.1.");
    CHECK_ERROR(flux_loadmodel(copy, flux_chain(flux_dense(3, 4), flux_batchnorm(4))), "loadmodel: the one model has more tensors than the other: 8 and 6");
    CHECK_ERROR(flux_averaged(m, .decay = 1), "averaged: .decay is 1, but must be from 0 to below 1");
    CHECK_ERROR(flux_averaged(m, .decay = 0.5, .equal = true), "two kinds of average");
    CHECK_ERROR(flux_update_average(m, m), "update_average: Chain is no averaged model; flux_averaged makes one");
}

typedef struct { flux_layer base; flux_tensor *there, *back; } tied;
static flux_tensor *tied_call(flux_layer *self, flux_tensor *x) { tied *m = (tied *)self; return flux_matmul(m->back, flux_tanh(flux_matmul(m->there, x))); }
FLUX_LAYER(tied, "Tied", tied_call, FLUX_PARAM(there), FLUX_PARAM(back))

TEST(averages_of_ties_and_halves) {
    flux_seed(2);
    flux_tensor *w = flux_eval(flux_randn(2, 3));
    flux_layer *m = flux_new(tied, .there = w, .back = flux_transpose(w)), *twice = flux_chain(flux_dense(2, 2), flux_dense(2, 2));
    flux_set_param(twice, "layers.1.weight", flux_param(twice, "layers.0.weight"));
    flux_layer *a = flux_averaged(m, .decay = 0.5), *once = flux_averaged(twice, .decay = 0.5);
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    for (int i = 0; i < 3; i++) train_once(m, opt), CHECK(flux_update_average(a, m) == 0 && flux_update_average(once, twice) == 0);
    flux_tensor *there = flux_param(a, "model.there"), *back = flux_param(a, "model.back");
    CHECK(flux_num_params(a) == 6 && flux_item(flux_sum(flux_ne(flux_transpose(there), back))) == 0);
    CHECK(flux_num_params(m) == 6 && flux_num_params(once) == flux_num_params(twice));
    flux_layer *half = flux_f16(flux_dense(3, 3)), *mean = flux_averaged(half, .decay = 0.999);
    CHECK(flux_update_average(mean, half) == 0 && flux_update_average(mean, half) == 0);
    CHECK(flux_dtype_of(flux_weight(mean)) == FLUX_F32 && flux_dtype_of(flux_weight(half)) == FLUX_F16);
    CHECK(flux_loadmodel(half, flux_child(mean, 0)) == 0 && flux_dtype_of(flux_weight(half)) == FLUX_F16);
}

TEST_MAIN()
