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

TEST_MAIN()
