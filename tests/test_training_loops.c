/* What stands around a training step: metrics, against scikit-learn (fixtures/metrics.h); splitting, folds and sampling;
   averaged models; flux_train with its options, and a run that is cut off and goes on. */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include "test.h"
#include "fixtures/metrics.h"
#ifndef _WIN32
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

/* ------------------------------------------------------------------ metrics */

static flux_tensor *score(void) { return flux_from(metrics_score, METRICS_CLASSES, METRICS_N); }
static flux_tensor *truth(void) { return flux_from(metrics_truth, METRICS_N); }
static flux_tensor *outputs(const double *at, int n) {         /* the first n, as outputs x observations */
    return flux_slice(flux_from_with(at, FLUX_F64, FLUX_SHAPE(METRICS_OUTPUTS, METRICS_M)), 0, 0, n);
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
    flux_tensor *four = flux_values(1, 2, 4, 7), *true4 = flux_values(1, 2, 3, 8);      /* 1 - 2 / 29, whatever the shape and dtype */
    for (int i = 0; i < 3; i++) {
        const flux_dtype kind[] = { FLUX_F32, FLUX_F16, FLUX_I32 };
        flux_tensor *a = flux_to_dtype(four, kind[i]), *b = flux_to_dtype(true4, kind[i]);
        CHECK_NEAR(flux_item(flux_r2(a, b)), 1 - 2.0 / 29, 1e-12);
        CHECK_NEAR(flux_item(flux_r2(flux_reshape(a, 1, 1, 4), flux_reshape(b, 1, 1, 4))), 1 - 2.0 / 29, 1e-12);
    }
    CHECK_NEAR(flux_item(flux_r2(flux_full(2, 5), flux_full(2, 5))), 1, 0);  /* constant, and met */
}

TEST(metrics_of_sequences_and_ties) {
    flux_tensor *p = flux_reshape(flux_take(score(), 36), METRICS_CLASSES, 9, 4), *y = flux_reshape(flux_take(truth(), 36), 9, 4);
    CHECK_NEAR(flux_item(flux_accuracy(p, y)), flux_item(flux_accuracy(flux_take(score(), 36), flux_take(truth(), 36))), 0);
    CHECK_NEAR(flux_item(flux_perplexity(p, y)), flux_item(flux_perplexity(flux_take(score(), 36), flux_take(truth(), 36))), 1e-12);
    flux_tensor *half = flux_to_dtype(flux_take(score(), 36), FLUX_F16);      /* whose losses are not rounded to it */
    CHECK_NEAR(flux_item(flux_perplexity(half, flux_take(truth(), 36))), flux_item(flux_perplexity(flux_to_dtype(half, FLUX_F64), flux_take(truth(), 36))), 1e-5);
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

/* Labels that say yes or no are classes 1 and 0, for scores as for guesses. */
TEST(metrics_of_yes_and_no) {
    const float scores[4][2] = { { 1, 0 }, { 0, 1 }, { 1, 0 }, { 0, 1 } };
    const uint8_t whole[4] = { 0, 1, 1, 0 };
    const bool yes[4] = { false, true, true, false };
    flux_tensor *p = flux_from(&scores[0][0], 2, 4), *y = flux_from(yes, 4), *z = flux_from(whole, 4);
    CHECK_NEAR(flux_item(flux_accuracy(p, y)), 0.5, 0);
    CHECK(flux_item(flux_all(flux_eq(flux_f1(p, y), flux_f1(p, z)))) == 1);
    CHECK(flux_item(flux_all(flux_eq(flux_confusion(p, y), flux_confusion(p, z)))) == 1);
    CHECK_NEAR(flux_item(flux_accuracy(flux_eq(flux_onecold(p), 1), y)), 0.5, 0);
}

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

static flux_tensor *gives_none(flux_tensor *yhat, flux_tensor *y) { return (void)yhat, (void)y, (flux_tensor *)NULL; }
static flux_tensor *gives_two(flux_tensor *yhat, flux_tensor *y) { return (void)yhat, flux_take(y, 2); }
TEST(metrics_refuse) {
    flux_tensor *p = score(), *y = truth();
    CHECK_ERROR(flux_accuracy(NULL, y), "accuracy: argument yhat is NULL");
    CHECK_ERROR(flux_accuracy(p, flux_take(y, 5)), "accuracy: yhat is 4x37 f64, y is 5-element i32: y must be one-hot");
    CHECK_ERROR(flux_accuracy(flux_rand(1, 5), flux_rand(1, 5)), "has no two classes in dim 0; of one number that says yes or no give flux_gt");
    CHECK_ERROR(flux_confusion(y, y), "confusion: how many classes there are is not known");
    CHECK_ERROR(flux_confusion(flux_rand(4097, 5), flux_take(y, 5)), "confusion: 4097 classes; 4096 are possible");
    if (!test_device.backend) CHECK(flux_dim(flux_confusion(flux_rand(4096, 37), y), 1) == 4096);
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
    CHECK_ERROR(flux_metric_add(flux_metric(gives_none), y, y), "metric: the function gave NULL");
    CHECK_ERROR(flux_call(m, p), "Metric(f1) takes yhat and y");
    flux_tensor *(*const best_five)(flux_tensor *, flux_tensor *) = flux_topk_accuracy;      /* k is 5 */
    flux_tensor *rising = flux_arange(0, 6, 1);
    const int32_t second = 1, last = 0;
    CHECK(flux_item(best_five(flux_reshape(rising, 6, 1), flux_from(&second, 1))) == 1);
    CHECK(flux_item(best_five(flux_reshape(rising, 6, 1), flux_from(&last, 1))) == 0);
}

/* ------------------------------------------------------------------ parts and mixtures of a data set */

static flux_tensor *numbers(int n) { return flux_eval(flux_arange(0, n, 1)); }
static flux_tensor *pairs(int n) { return flux_eval(flux_stack(0, numbers(n), flux_mul(numbers(n), 10))); }      /* 2 x n: i, 10 i */
static const int32_t *ints(flux_tensor *x) { return (const int32_t *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_I32))); }
static bool in_step(flux_tensor *both) {                       /* of (numbers, pairs) */
    flux_tensor *a = flux_nth(both, 0), *b = flux_nth(both, 1);
    return flux_item(flux_sum(flux_ne(flux_select(b, 0, 0), a))) == 0 && flux_item(flux_sum(flux_ne(flux_select(b, 0, 1), flux_mul(a, 10)))) == 0;
}

/* An order belongs to its seed for good: what was begun under one version of the library goes on under the next. */
static bool order_is(flux_loader *l, flux_tensor *x, const int32_t *want, int n) {
    int seen = 0;
    bool good = true;
    if (!l) return flux_len(x) == n && memcmp(ints(x), want, (size_t)n * sizeof *want) == 0;
    flux_each (b, l) for (int64_t i = 0; i < b.size; i++, seen++) good = good && seen < n && ints(b.x)[i] == want[seen];
    return good && seen == n;
}
TEST(orders_belong_to_seeds) {
    static const float weight[12] = { 1, 0, 3, 1, 1, 0.5f, 2, 1, 4, 1, 0, 1 };
    static const int32_t kind[12] = { 0, 1, 0, 2, 0, 1, 0, 0, 2, 0, 1, 0 };
    flux_tensor *x = numbers(12);
    flux_loader *l = flux_dataloader(x, .batchsize = 5, .shuffle = true, .seed = 5);
#define IS(l, x, ...) CHECK(order_is(l, x, (const int32_t[]){ __VA_ARGS__ }, (int)(sizeof (int32_t[]){ __VA_ARGS__ } / 4)))
    IS(l, NULL, 5, 2, 7, 9, 4, 10, 8, 11, 1, 6, 3, 0);
    IS(l, NULL, 2, 6, 0, 9, 5, 3, 1, 4, 7, 8, 10, 11);     /* its second epoch */
    flux_seed(3);
    l = flux_dataloader(x, .batchsize = 5, .shuffle = true);
    IS(l, NULL, 7, 6, 10, 1, 8, 0, 3, 5, 9, 4, 2, 11);
    IS(l, NULL, 7, 4, 0, 3, 11, 1, 9, 2, 6, 5, 8, 10);
    l = flux_dataloader(x, .batchsize = 5, .weights = flux_from(weight, 12), .seed = 4);
    IS(l, NULL, 9, 9, 6, 3, 5, 6, 7, 7, 3, 3, 6, 7);
    IS(l, NULL, 4, 6, 5, 6, 2, 7, 8, 0, 4, 2, 7, 8);
    IS(flux_dataloader(x, .batchsize = 2, .shuffle = true, .seed = 5, .rank = 0, .ranks = 2), NULL, 5, 2, 4, 10, 1, 6);
    IS(flux_dataloader(x, .batchsize = 2, .shuffle = true, .seed = 5, .rank = 1, .ranks = 2), NULL, 7, 9, 8, 11, 3, 0);
    IS(NULL, flux_shuffleobs(x, 7), 3, 4, 10, 7, 6, 2, 5, 0, 9, 11, 1, 8);
    IS(NULL, flux_oversample(x, flux_from(kind, 12), 7), 8, 5, 10, 3, 1, 5, 10, 0, 7, 3, 9, 3, 4, 1, 11, 5, 2, 8, 3, 6, 8);
    IS(NULL, flux_undersample(x, flux_from(kind, 12), 7), 2, 8, 1, 5, 7, 3);
#undef IS
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

/* Of a class that has too many, each observation is taken as often as any other; of one that has too few, those that are
   taken once more, too. Their order is by chance as well. Counts of 600 seeds, within five standard deviations. */
TEST(classes_are_cut_by_chance) {
    enum { SEEDS = 600, LARGE = 7, SMALL = 3 };
    int32_t label[LARGE + SMALL];
    int taken[2][LARGE + SMALL] = { { 0 } }, first[2] = { 0 };
    for (int i = 0; i < LARGE + SMALL; i++) label[i] = i < LARGE ? 1 : 0;
    for (int seed = 0; seed < SEEDS; seed++) FLUX_SCOPE {
        for (int over = 0; over < 2; over++) {
            flux_tensor *x = numbers(LARGE + SMALL), *y = flux_from(label, LARGE + SMALL);
            flux_tensor *got = over ? flux_oversample(x, y, (uint64_t)seed) : flux_undersample(x, y, (uint64_t)seed);
            const int32_t *at = ints(got);
            REQUIRE(at && flux_len(got) == 2 * (over ? LARGE : SMALL));
            for (int i = 0; i < flux_len(got); i++) taken[over][at[i]]++;
            first[over] += at[0] < LARGE;
        }
    }
    for (int i = 0; i < LARGE; i++) {
        const double p = (double)SMALL / LARGE;
        CHECK(fabs(taken[0][i] - SEEDS * p) < 5 * sqrt(SEEDS * p * (1 - p)) && taken[1][i] == SEEDS);
    }
    for (int i = LARGE; i < LARGE + SMALL; i++) {              /* 7 of 3: twice each, and one of them a third time */
        const double p = 1.0 / SMALL;
        CHECK(taken[0][i] == SEEDS && fabs(taken[1][i] - SEEDS * (2 + p)) < 5 * sqrt(SEEDS * p * (1 - p)));
    }
    for (int over = 0; over < 2; over++) CHECK(fabs(first[over] - 0.5 * SEEDS) < 5 * sqrt(0.25 * SEEDS));
}

/* Whichever observations alone have a weight, all that is drawn is of them, and each is drawn. */
TEST(only_what_has_weight_is_drawn) {
    enum { N = 7 };
    for (int first = 0; first < N; first++)
        for (int second = first; second < N; second++) {
            double w[N] = { 0 };
            int times[N] = { 0 };
            w[first] = w[second] = 0.1;
            flux_each (b, flux_dataloader(numbers(N), .batchsize = 40, .weights = flux_from(w, N), .seed = 3)) times[ints(b.x)[0]]++;
            for (int epoch = 0; epoch < 8; epoch++)
                flux_each (b, flux_dataloader(numbers(N), .batchsize = N, .weights = flux_from(w, N), .seed = epoch))
                    for (int i = 0; i < N; i++) times[ints(b.x)[i]]++;
            for (int i = 0; i < N; i++) CHECK((times[i] > 0) == (w[i] > 0));
        }
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

/* ------------------------------------------------------------------ flux_train */

/* A run with all that a resumed one must get right: dropout, batch statistics, shuffling by the thread's own numbers or by a
   seed, noise in the batches, workers, a schedule, an average, metrics. */
typedef struct run { flux_layer *model, *ema, *accuracy, *f1; flux_state *opt; flux_loader *data, *held; flux_tensor *history; char dir[200]; } run;

static flux_batch noisy(flux_batch b, void *user) {
    (void)user;
    b.x = flux_add(b.x, flux_mul(flux_randn_with(flux_shape_of(b.x), FLUX_F32), 0.1));
    return b;
}
static flux_tensor *classes_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_logitcrossentropy(flux_call(m, x), y); }
static void path_in(char *out, size_t n, const char *name) { snprintf(out, n, "%s/flux_loops_%s", test_temp(), name); }

static run run_new(int way) {
    float x[4 * 50];
    int32_t y[50];
    run r;
    for (int i = 0; i < 200; i++) x[i] = (float)((i * 37) % 101) / 50 - 1;
    for (int i = 0; i < 50; i++) y[i] = (x[4 * i] > 0) + (x[4 * i + 1] * x[4 * i + 2] > 0);
    memset(&r, 0, sizeof r);
    r.model = flux_to(test_device, flux_chain(flux_dense(4, 8, flux_tanh), flux_batchnorm(8), flux_dropout(0.3), flux_dense(8, 3)));
    r.ema = flux_averaged(r.model, .decay = 0.8);
    r.accuracy = flux_metric(flux_accuracy), r.f1 = flux_metric(flux_f1);
    r.opt = flux_setup(flux_scheduled(flux_adam(), flux_schedule_exp(0.05, 0.99)), r.model);
    flux_tensor *all = flux_tuple(flux_from(x, 4, 50), flux_from(y, 50)), *learn = NULL, *held = NULL;
    flux_splitobs(0.7, all, &learn, &held);
    r.data = way == 0 ? flux_dataloader(learn, .batchsize = 8, .shuffle = true, .transform = noisy)
           : way == 1 ? flux_dataloader(learn, .batchsize = 8, .shuffle = true, .seed = 5, .workers = 2, .transform = noisy)
                      : flux_dataloader(learn, .batchsize = 8, .weights = flux_balanced_weights(flux_nth(learn, 1)));
    r.held = flux_dataloader(held, .batchsize = 6);
    if (test_device.backend) r.data = flux_to(test_device, r.data), r.held = flux_to(test_device, r.held);
    return r;
}

typedef struct stops { int epoch, batch, calls, ends; bool by_signal; double last; } stops;
static bool stop_there(const flux_train_info *at, void *user) {
    stops *s = (stops *)user;
    s->calls++, s->ends += at->epoch_end;
    if (!at->epoch_end) CHECK(at->loss == at->loss && at->mean == at->mean && at->batches == 5 && at->rate > 0 && at->rate < 0.05);
    else CHECK(at->metrics == 2 && at->validation > 0 && at->metric[0] >= 0 && at->metric[0] <= 1), s->last = at->validation;
    bool there = at->epoch == s->epoch && at->batch == s->batch && !at->epoch_end;
#ifndef _WIN32
    if (there && s->by_signal) raise(SIGINT), there = false;
#endif
    return there;
}
static int run_on(run *r, const char *file, int epochs, stops *s) {
    return flux_train(classes_loss, r->model, r->data, r->opt, .epochs = epochs, .validation = r->held, .averaged = r->ema,
                      .metrics = { r->accuracy, r->f1 }, .monitor = r->accuracy, .checkpoint = file, .resume = true,
                      .callback = s ? stop_there : NULL, .user = s, .history = &r->history);
}
static bool same_model(flux_layer *a, flux_layer *b) { return apart(a, b) == 0 && mean_of_stat(a) == mean_of_stat(b); }
static bool same_history(flux_tensor *a, flux_tensor *b) {
    return flux_len(a) == flux_len(b) && flux_item(flux_sum(flux_to_dtype(flux_ne(a, b), FLUX_I64))) == 0;
}

TEST(a_run_that_was_stopped_goes_on_bit_for_bit) {
    char whole[300], cut[300];
    path_in(whole, sizeof whole, "whole"), path_in(cut, sizeof cut, "cut");
    for (int way = 0; way < 3; way++) {
        const stops at[] = { { 0, 1, 0, 0, false, 0 }, { 1, 3, 0, 0, false, 0 }, { 2, 5, 0, 0, false, 0 } };
        remove(whole), remove(cut);
        flux_seed(17);
        run a = run_new(way);
        REQUIRE(run_on(&a, whole, 4, NULL) == 0 && flux_dim(a.history, 0) == 4 && flux_dim(a.history, 1) == 4);
        for (int i = 0; i < 3; i++) {                          /* three processes, each stopped somewhere else */
            stops s = at[i];
            flux_seed(i ? 99 + (uint64_t)i : 17);
            run b = run_new(way);
            REQUIRE(run_on(&b, cut, 4, &s) == 0);
            CHECK(flux_dim(b.history, 1) == (i == 2 ? 3 : at[i].epoch));
        }
        flux_seed(4711);
        run c = run_new(way);
        stops none = { 9, 9, 0, 0, false, 0 };
        REQUIRE(run_on(&c, cut, 4, &none) == 0);
        CHECK(none.calls == 6 && none.ends == 1);              /* the last epoch's five batches, and its end */
        CHECK(same_model(a.model, c.model) && apart(a.ema, c.ema) == 0 && same_history(a.history, c.history));
        CHECK_NEAR(flux_at(c.history, 1, 3), none.last, 0);
        CHECK_NEAR(flux_rate(a.opt), flux_rate(c.opt), 0);
        CHECK_NEAR(flux_item(flux_metric_value(a.accuracy)), flux_at(c.history, 2, 3), 0);
        CHECK_NEAR(flux_item(flux_mean(flux_metric_value(a.f1))), flux_at(c.history, 3, 3), 1e-15);
        CHECK(run_on(&c, cut, 4, &none) == 0 && none.calls == 6);      /* it is done: nothing happens */
    }
    remove(whole), remove(cut);
}

TEST(ctrl_c_ends_the_batch_and_writes_the_checkpoint) {
#ifdef _WIN32
    SKIP("needs fork");
#else
    ONLY_ON_CPU();
    char cut[300];
    path_in(cut, sizeof cut, "signal");
    remove(cut);
    flux_seed(21);
    run a = run_new(0);
    REQUIRE(flux_train(classes_loss, a.model, a.data, a.opt, .epochs = 3, .validation = a.held, .averaged = a.ema, .metrics = { a.accuracy, a.f1 }, .history = &a.history) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        stops s = { 1, 2, 0, 0, true, 0 };
        flux_seed(21);
        run b = run_new(0);
        bool good = run_on(&b, cut, 3, &s) == 0 && flux_interrupted() && s.calls == 8;       /* 5 batches, an end, 2 batches */
        _exit(good && !flux_failed() && !test_bad ? 0 : 1);
    }
    int status = 1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    run c = run_new(0);
    REQUIRE(run_on(&c, cut, 3, NULL) == 0);
    CHECK(same_model(a.model, c.model) && apart(a.ema, c.ema) == 0 && same_history(a.history, c.history));
    remove(cut);
#endif
}

static flux_tensor *squares(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static bool count_calls(const flux_train_info *at, void *user) { return (void)at, ++*(int *)user, false; }

TEST(train_is_its_epochs_written_out) {
    flux_seed(5);
    flux_tensor *x = flux_eval(flux_randn(3, 20)), *y = flux_eval(flux_randn(2, 20)), *history = NULL;
    flux_layer *a = flux_dense(3, 2), *b = flux_copy_layer(a);
    flux_state *oa = flux_setup(flux_adam(0.01), a), *ob = flux_setup(flux_adam(0.01), b);
    int calls = 0;
    CHECK(flux_train(squares, a, flux_dataloader(x, y, .batchsize = 6), oa, .epochs = 3, .history = &history, .callback = count_calls, .user = &calls) == 0);
    double mean = 0;
    for (int epoch = 0; epoch < 3; epoch++, mean = epoch < 3 ? 0 : mean)
        flux_each (batch, flux_dataloader(x, y, .batchsize = 6)) {           /* 6, 6, 6, 2 */
            flux_tensor *loss = squares(b, batch.x, batch.y);
            CHECK(flux_update(ob, b, flux_gradient(loss, b)) == 0);
            mean += flux_item(loss) * (double)batch.size / 20;
        }
    CHECK(apart(a, b) < 1e-6 && calls == 15);
    CHECK(flux_dim(history, 0) == 2 && flux_dim(history, 1) == 3 && isnan(flux_at(history, 1, 2)));
    CHECK_NEAR(flux_at(history, 0, 2), mean, 1e-6);
    CHECK((flux_train)(squares, a, flux_dataloader(x, y), oa) == 0);
}

/* The target moves away, so that every epoch is worse than the first. */
static int epochs_seen;
static flux_tensor *worse(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_add(squares(m, x, y), 100.0 * ++epochs_seen); }
TEST(early_stopping_and_the_best_model) {
    char best[300], cut[300];
    path_in(best, sizeof best, "best"), path_in(cut, sizeof cut, "early");
    remove(best), remove(cut);
    flux_seed(6);
    flux_tensor *x = flux_eval(flux_randn(3, 8)), *y = flux_eval(flux_randn(2, 8)), *history = NULL;
    flux_layer *m = flux_dense(3, 2), *first = NULL, *loaded = flux_dense(3, 2);
    flux_loader *data = flux_dataloader(x, y, .batchsize = 8);
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    epochs_seen = 0;
    CHECK(flux_train(worse, m, data, opt, .epochs = 1, .best = best) == 0);
    first = flux_copy_layer(m);
    CHECK(flux_train(worse, m, data, opt, .epochs = 50, .validation = data, .early_stop = 3, .best = best, .history = &history,
                     .checkpoint = cut) == 0);
    CHECK(flux_dim(history, 1) == 4);                          /* the first is the best, and three are not better */
    CHECK(flux_load(loaded, best) == 0 && apart(loaded, first) > 0 && apart(loaded, m) > 0);
    int before = epochs_seen;
    CHECK(flux_train(worse, m, data, opt, .epochs = 50, .validation = data, .early_stop = 3, .best = best, .checkpoint = cut, .resume = true) == 0);
    CHECK(epochs_seen == before);                              /* it had stopped */
    for (int epochs = 1; epochs < 4; epochs++) {               /* what it counts goes on where it was left */
        remove(cut);
        CHECK(flux_load(m, best) == 0);
        CHECK(flux_train(worse, m, data, opt, .epochs = epochs, .validation = data, .early_stop = 3, .checkpoint = cut) == 0);
        CHECK(flux_train(worse, m, data, opt, .epochs = 50, .validation = data, .early_stop = 3, .checkpoint = cut, .resume = true,
                         .history = &history) == 0);
        CHECK(flux_dim(history, 1) == 4);
    }
    remove(best), remove(cut);
}

/* Of no observations there is neither a loss nor a metric, and that is no error. */
/* A loader's epoch of any number of digits goes through a file: the next order is that of the loader that went on. */
TEST(epochs_of_a_loader_are_saved) {
    char path[300];
    path_in(path, sizeof path, "epochs");
    flux_tensor *order[2] = { NULL };
    flux_loader *data = flux_dataloader(numbers(50), .batchsize = 50, .shuffle = true, .seed = 7);
    for (int epoch = 1; epoch <= 123; epoch++) {
        flux_each (b, data) {}
        if (epoch != 9 && epoch != 10 && epoch != 99 && epoch != 123) continue;
        flux_loader *later = flux_dataloader(numbers(50), .batchsize = 50, .shuffle = true, .seed = 7);
        CHECK(flux_save_all_with(path, 1, "data", (const void *[]){ data }) == 0 && flux_load_all_with(path, 1, "data", (const void *[]){ later }) == 0);
        epoch++;
        flux_each (b, data) order[0] = flux_keep(b.x);
        flux_each (b, later) order[1] = flux_keep(b.x);
        CHECK(memcmp(ints(order[0]), ints(order[1]), 50 * sizeof(int32_t)) == 0);
    }
    remove(path);
}

/* Without .validation its loss is no number, at batches and at an epoch's end, and there are no metrics. */
static bool no_validation(const flux_train_info *at, void *calls) {
    CHECK(at->validation != at->validation && at->metrics == 0);
    return ++*(int *)calls, false;
}
/* Epochs of no batch: each is told, by its number. */
static bool epoch_of_nothing(const flux_train_info *at, void *epochs) {
    CHECK(at->epoch_end && at->epoch == *(int *)epochs && at->epochs == 3 && at->batch == 0 && at->batches == 0);
    CHECK(at->loss != at->loss && at->metrics == 0);
    return ++*(int *)epochs, false;
}
TEST(training_by_nothing) {
    flux_layer *m = flux_dense(2, 1);
    flux_tensor *history = NULL, *before = flux_eval(flux_copy(flux_weight(m)));
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    flux_loader *none = flux_dataloader(flux_zeros(2, 0), flux_zeros(1, 0), .batchsize = 4);
    int epochs = 0;
    CHECK(flux_train(squares, m, none, opt, .epochs = 3, .callback = epoch_of_nothing, .user = &epochs, .history = &history) == 0);
    CHECK(epochs == 3 && flux_dim(history, 1) == 3 && flux_at(history, 0, 2) != flux_at(history, 0, 2));
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_weight(m), before)))) == 0);
}
TEST(no_validation_is_no_number) {
    flux_layer *m = flux_dense(2, 1);
    int calls = 0;
    CHECK(flux_train(squares, m, flux_dataloader(flux_rand(2, 8), flux_rand(1, 8), .batchsize = 4), flux_setup(flux_descent(0.1), m),
                     .epochs = 2, .callback = no_validation, .user = &calls) == 0);
    CHECK(calls == 6);
}

/* Each number that a callback is told, at each of its calls, against what is known beforehand: a batch's loss is the mean of its
   targets, and an epoch's on .validation is 6 times a factor that this epoch has. */
typedef struct telling {
    flux_layer *model;
    flux_state *state;
    int calls, steps, epoch;
    double metric[4];
} telling;
static telling told;
static const double told_factor[4] = { 3, 2, 2, 1 };
static flux_tensor *known_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) {
    flux_tensor *of_targets = flux_mul(flux_mean(y), flux_training(m) ? 1 : told_factor[told.epoch]);
    return flux_add(of_targets, flux_mul(flux_sum(flux_call(m, x)), 1e-30));
}
static bool all_that_is_told(const flux_train_info *at, void *user) {
    telling *t = (telling *)user;
    static const double mean[4] = { 2, 3.5, 4.5, 4.5 };        /* of 1 2 3, 4 5 6, 7 8 */
    const int turn = t->calls++ % 4;
    CHECK(at->model == t->model && at->state == t->state && at->epochs == 4 && at->batches == 3);
    CHECK(at->epoch == t->epoch && at->batch == (turn < 3 ? turn + 1 : 3) && at->epoch_end == (turn == 3));
    CHECK_NEAR(at->mean, mean[turn], 1e-6);
    if (turn < 3) t->steps++;
    CHECK_NEAR(at->rate, 0.5 * pow(0.75, t->steps), 1e-6);
    if (turn < 3) {
        CHECK_NEAR(at->loss, turn < 2 ? 2 + 3 * turn : 7.5, 1e-6);
        CHECK(isnan(at->validation) && at->metrics == 0 && !at->metric && !at->best);
        return false;
    }
    CHECK(isnan(at->loss) && at->metrics == 2 && at->best == (t->epoch != 2));
    CHECK_NEAR(at->validation, 6 * told_factor[t->epoch], 1e-6);
    CHECK(isfinite(at->metric[0]) && isnan(at->metric[1]));
    t->metric[t->epoch++] = at->metric[0];
    return false;
}
static flux_tensor *no_number(flux_tensor *yhat, flux_tensor *y) { return flux_mul(flux_r2(yhat, y), NAN); }
TEST(a_callback_is_told_all) {
    flux_tensor *x = flux_rand(2, 8), *history = NULL;
    telling *t = &told;
    memset(t, 0, sizeof *t);
    t->model = flux_dense(2, 1);
    t->state = flux_setup(flux_scheduled(flux_descent(0.1), flux_schedule_exp(0.5, 0.75)), t->model);
    flux_loader *data = flux_dataloader(x, flux_reshape(flux_arange(1, 9, 1), 1, 8), .batchsize = 3),
                *held = flux_dataloader(flux_rand(2, 2), flux_reshape(flux_arange(4, 12, 4), 1, 2), .batchsize = 2);
    CHECK(flux_train(known_loss, t->model, data, t->state, .epochs = 4, .validation = held, .metrics = { flux_metric(flux_r2), flux_metric(no_number) },
                     .history = &history, .callback = all_that_is_told, .user = t) == 0);
    CHECK(t->calls == 16 && flux_dim(history, 0) == 4 && flux_dim(history, 1) == 4);
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(flux_at(history, 0, i), 4.5, 1e-6);
        CHECK_NEAR(flux_at(history, 1, i), 6 * told_factor[i], 1e-6);
        CHECK(flux_at(history, 2, i) == t->metric[i] && isnan(flux_at(history, 3, i)));
    }
}

/* The best epoch is the one of the lowest loss, on .validation where that is given, or of the highest metric that is monitored. */
static const double courses[4][6] = {      /* .validation's loss, two metrics, the loss */
    { 6, 5, 7, 5, 4, 9 }, { 0.5, 0.25, 0.75, 0.75, 0.625, 1 }, { 3, 4, 5, 2, 6, 6 }, { 1, 2, 0.5, 0.25, 0.5, 0.125 }
};
static int courses_at;
static flux_tensor *loss_of_course(flux_layer *m, flux_tensor *x, flux_tensor *y) {
    (void)y;
    return flux_add(flux_mul(flux_sum(flux_call(m, x)), 1e-30), courses[flux_training(m) ? 3 : 0][courses_at]);
}
static flux_tensor *first_course(flux_tensor *yhat, flux_tensor *y) { return (void)yhat, (void)y, flux_scalar(courses[1][courses_at]); }
static flux_tensor *second_course(flux_tensor *yhat, flux_tensor *y) { return (void)yhat, (void)y, flux_scalar(courses[2][courses_at]); }
static bool count_best(const flux_train_info *at, void *best) {
    if (at->epoch_end) *(unsigned *)best |= (unsigned)at->best << courses_at++;
    return false;
}
TEST(the_best_epoch_by_each_measure) {
    flux_tensor *x = flux_rand(2, 4), *y = flux_rand(1, 4);
    flux_loader *data = flux_dataloader(x, y, .batchsize = 4);
    flux_layer *one = flux_metric(first_course), *two = flux_metric(second_course);
    for (int way = 0; way < 4; way++) {
        const double *course = courses[way];
        double most = HUGE_VAL;
        unsigned best = 0, want = 0;
        for (int i = 0; i < 6; i++) {
            const double cost = way == 1 || way == 2 ? -course[i] : course[i];
            want |= (unsigned)(cost < most) << i;
            most = fmin(most, cost);
        }
        flux_layer *m = flux_dense(2, 1), *monitor = way == 1 ? one : way == 2 ? two : NULL;
        courses_at = 0;
        if (way < 3) CHECK(flux_train(loss_of_course, m, data, flux_setup(flux_descent(0.1), m), .epochs = 6, .validation = data,
                                      .metrics = { one, two }, .monitor = monitor, .callback = count_best, .user = &best) == 0);
        else CHECK(flux_train(loss_of_course, m, data, flux_setup(flux_descent(0.1), m), .epochs = 6, .callback = count_best, .user = &best) == 0);
        CHECK(courses_at == 6 && best == want);
    }
}

TEST(validation_by_nothing) {
    flux_tensor *x = flux_randn(3, 8), *y = flux_eval(flux_rand(2, 8)), *history = NULL;
    flux_layer *m = flux_dense(3, 2), *acc = flux_metric(flux_accuracy);
    flux_loader *none = flux_dataloader(flux_slice(x, 1, 0, 0), flux_slice(y, 1, 0, 0));
    CHECK(flux_train(squares, m, flux_dataloader(x, y, .batchsize = 4), flux_setup(flux_descent(0.1), m), .epochs = 2, .validation = none,
                     .metrics = { acc }, .history = &history) == 0);
    CHECK(flux_dim(history, 0) == 3 && flux_dim(history, 1) == 2);
    for (int i = 0; i < 2; i++) CHECK(isfinite(flux_at(history, 0, i)) && isnan(flux_at(history, 1, i)) && isnan(flux_at(history, 2, i)));
}

TEST(train_refuses) {
    flux_layer *m = flux_dense(3, 2), *acc = flux_metric(flux_accuracy);
    flux_loader *data = flux_dataloader(flux_randn(3, 8), flux_randn(2, 8), .batchsize = 4);
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    char junk[300];
    path_in(junk, sizeof junk, "junk");
    CHECK_ERROR(flux_train(squares, m, data, opt, .epochs = 0), "train: .epochs is 0");
    CHECK_ERROR(flux_train(squares, m, data, opt, .early_stop = 0), "train: .early_stop is 0 epochs");
    CHECK_ERROR(flux_train(squares, m, data, opt, .metrics = { acc }), "train: .metrics are of .validation, which is not given");
    CHECK_ERROR(flux_train(squares, m, data, opt, .validation = data, .metrics = { m }), "train: Dense is no metric");
    CHECK_ERROR(flux_train(squares, m, data, opt, .validation = data, .monitor = acc), "train: .monitor is none of .metrics");
    CHECK_ERROR(flux_train(squares, m, data, opt, .resume = true), "train: .resume goes on from .checkpoint");
    CHECK_ERROR(flux_train(squares, m, data, opt, .averaged = m), "train: .averaged is a Dense, no averaged model");
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = "/nowhere/at/all", .epochs = 1), "save");
    flux_layer *other = flux_copy_layer(m);
    flux_save_all(junk, m);
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), "course");
    double numbers_of_another[8] = { 1, 77, 0, 0, 0, 0, 0, 0 };
    flux_tensor *course = flux_from(numbers_of_another, 8), *began = flux_random_state(), *random = began;
    flux_save_all(junk, m, course, began, random);
    /* what is there and cannot be opened is no beginning: the next checkpoint would replace it */
#ifndef _WIN32                            /* where a file in a file is not there */
    char within[400];
    snprintf(within, sizeof within, "%s/run", junk);
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = within, .resume = true), "cannot be read");
#endif
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), "is of another training: it stopped in epoch 1 at batch 77");
    static const struct { int at; double number; bool fits; } numbers[] = {        /* each alone: the epoch, the batch, how far early stopping had counted */
        { 0, -1, false }, { 0, 0, true }, { 0, 0.5, false }, { 0, 1e9, false }, { 1, -2, false }, { 1, -1, true }, { 1, 0.5, false }, { 1, 2, true }, { 1, 3, false },
        { 6, -1, false }, { 6, 0.5, false }, { 6, 3, true }, { 6, 999999999, true }, { 6, 1e9, false } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double all[8] = { 0 };
        all[numbers[i].at] = numbers[i].number;
        course = flux_from(all, 8);
        flux_save_all(junk, m, course, began, random);
        CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), numbers[i].fits ? "load_all: " : "is of another training: it stopped in epoch ");
    }
    course = flux_from(numbers_of_another, 7), flux_save_all(junk, m, course, began, random);
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), "is 7-element f64, not what this training saves there");
    course = flux_to_dtype(flux_from(numbers_of_another, 8), FLUX_F32), flux_save_all(junk, m, course, began, random);
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), "is 8-element f32, not what this training saves there");
    course = flux_from(numbers_of_another, 8), random = flux_from(((int64_t[]){ 1, 2, 3 }), 3), flux_save_all(junk, m, course, began, random);
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), "train: random in ");
    random = began, began = flux_ones(2), flux_save_all(junk, m, course, began, random);
    CHECK_ERROR(flux_train(squares, m, data, opt, .checkpoint = junk, .resume = true), "train: began in ");
    (void)other;
    remove(junk);
}

TEST_MAIN()
