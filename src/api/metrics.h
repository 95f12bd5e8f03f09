#ifndef FLUX__API_METRICS_H
#define FLUX__API_METRICS_H
#include "losses.h"

/* ------------------------------------------------------------------ metrics
   What a model is judged by: functions of what it predicts, yhat, and of what is true, y, on any
   device. Of the classes of an observation, yhat has a score each in dim 0, as losses take them,
   of which the highest is the guess, the first of equal ones; or yhat is the guesses themselves, an
   integer, or a bool of yes or no, for each observation. y is one-hot, with a dim 0 of classes, or
   has an integer label (or yes and no) for each observation, counted from 0. A label that is no
   class is an error where labels lie in host memory; elsewhere it counts as missed, or fails where
   pairs are counted. The results are float64, counts int64. NULL on error. */

/* The share of observations that were guessed rightly. */
FLUX_API flux_tensor *flux_accuracy(flux_tensor *yhat, flux_tensor *y);
/* The share of those whose true class is among the .k with the highest scores:
   flux_topk_accuracy(yhat, y, .k = 3). */
typedef struct flux_topk_opts {
    FLUX__DUMMY
    flux_tensor *yhat FLUX__ZERO, *y FLUX__ZERO; /* scores, and what is true */
    flux__int k FLUX__ZERO;               /* default 5; at most the number of classes */
    flux__marked marked FLUX__ZERO;
} flux_topk_opts;
#define FLUX__LEFT_OUT_flux_topk_opts .k = FLUX__NO_INT, .marked = true,
FLUX_API flux_tensor *flux_topk_accuracy(flux_tensor *yhat, flux_tensor *y);
FLUX_API flux_tensor *flux_topk_accuracy_with(flux_topk_opts o);
/* The classes x classes matrix of counts: a row for each guess, a column for each truth, as in
   Julia; in memory it is scikit-learn's confusion_matrix, count[truth][guess]. At most 4096
   classes. */
FLUX_API flux_tensor *flux_confusion(flux_tensor *yhat, flux_tensor *y);
/* Vectors of a number a class, 0 where nothing was counted: right / guessed, right / true, and
   2 right / (guessed + true). The macro average is flux_mean(flux_f1(yhat, y)). */
FLUX_API flux_tensor *flux_precision(flux_tensor *yhat, flux_tensor *y);
/* right / true of each class, a vector; 0 where none is true. */
FLUX_API flux_tensor *flux_recall(flux_tensor *yhat, flux_tensor *y);
/* 2 right / (guessed + true) of each class, a vector. */
FLUX_API flux_tensor *flux_f1(flux_tensor *yhat, flux_tensor *y);
/* The coefficient of determination, 1 - sum (y - yhat)^2 / sum (y - mean(y))^2 over observations,
   which the last dim counts; of several outputs the mean of theirs, as in scikit-learn. An output
   that is constant counts 1 if it was met exactly, else 0. */
FLUX_API flux_tensor *flux_r2(flux_tensor *yhat, flux_tensor *y);
/* exp of the mean of flux_logitcrossentropy: yhat is logits. */
FLUX_API flux_tensor *flux_perplexity(flux_tensor *yhat, flux_tensor *y);

typedef struct flux_metric_opts {
    FLUX__DUMMY
    flux_fn2 f FLUX__ZERO;                /* of yhat and y: flux_accuracy, ... */
    flux__int k FLUX__ZERO;               /* of flux_topk_accuracy: 5 */
    flux__marked marked FLUX__ZERO;
} flux_metric_opts;
#define FLUX__LEFT_OUT_flux_metric_opts .k = FLUX__NO_INT, .marked = true,
FLUX_API flux_layer *flux_metric_with(flux_metric_opts o);
#define flux_metric(...) \
    /* A metric over many batches, which gives what all of them at once would give, also where the
       last one is not full: a layer that keeps sums.
           flux_layer *f1 = flux_metric(flux_f1), *top = flux_metric(flux_topk_accuracy, .k = 3);
           flux_each (b, held) FLUX_INFER flux_metric_add(f1, flux_call(model, b.x), b.y);
           flux_print(flux_metric_value(f1));
       Of a function that is none of the above (flux_mse, or one of yours) which gives one number,
       it keeps the mean by observations, which the last dim of yhat counts. flux_named names
       it. */ \
    flux_metric_with(FLUX__OPTS(flux_metric_opts, __VA_ARGS__))
/* Takes a batch in; 0, or -1 on error, which leaves the metric as it was. flux_call(metric, yhat,
   y) gives the batch's own number, and takes nothing in. */
FLUX_API int flux_metric_add(flux_layer *metric, flux_tensor *yhat, flux_tensor *y);
/* Of all since the reset. */
FLUX_API flux_tensor *flux_metric_value(flux_layer *metric);
/* Begins the sums anew. */
FLUX_API void flux_metric_reset(flux_layer *metric);

#endif /* FLUX__API_METRICS_H */
