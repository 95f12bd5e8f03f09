#ifndef FLUX__API_LOSSES_H
#define FLUX__API_LOSSES_H
#include "layers.h"

/* ------------------------------------------------------------------ losses
   loss(y_predicted, y, options): the mean over all elements, or over the batch where a formula sums over classes.
   .agg = FLUX_SUM sums, FLUX_NONE leaves them. Shapes must agree; where a formula sums over classes, y may also be
   integer labels, yhat's shape without the class dimension. Formulas: Flux.Losses. */

typedef enum flux_agg { FLUX_MEAN, FLUX_SUM, FLUX_NONE } flux_agg;
typedef struct flux_loss_opts {
    FLUX__DUMMY
    flux_tensor *yhat FLUX__ZERO, *y FLUX__ZERO;
    flux_agg agg FLUX__ZERO;
    int dim FLUX__ZERO;                   /* the class dimension; default 0 */
    flux__double epsilon FLUX__ZERO;      /* keeps log finite; default the dtype's epsilon */
    flux__double delta FLUX__ZERO;        /* huber_loss: 1 */
    flux__double gamma FLUX__ZERO;        /* focal losses: 2 */
    flux__double margin FLUX__ZERO;       /* siamese_contrastive_loss: 1 */
    flux__double smooth FLUX__ZERO;       /* dice_coeff_loss: 1 */
    flux__double beta FLUX__ZERO;         /* tversky_loss: 0.7 */
    flux_tensor *weights FLUX__ZERO;      /* of the classes; the mean is then the weighted one */
    flux__switch ignore FLUX__ZERO;       /* FLUX_ON, or an .ignore_index (default 0): samples with this label don't count */
    flux__int64 ignore_index FLUX__ZERO;
    flux_tensor *lengths FLUX__ZERO;      /* ctc_loss: each sample's steps, integers, 0 to yhat's; default all */
    flux__marked marked FLUX__ZERO;
} flux_loss_opts;
#define FLUX__LEFT_OUT_flux_loss_opts .epsilon = FLUX__NO_NUMBER, .delta = FLUX__NO_NUMBER, \
    .gamma = FLUX__NO_NUMBER, .margin = FLUX__NO_NUMBER, .smooth = FLUX__NO_NUMBER, \
    .beta = FLUX__NO_NUMBER, .ignore = FLUX_DEFAULT, .ignore_index = FLUX__NO_INT64, \
    .marked = true,
#define FLUX__LOSSES(X)                                                                              \
    X(mae)                        /* |yhat - y| */                                                   \
    X(mse)                        /* (yhat - y)^2 */                                                 \
    X(msle)                       /* log((yhat + eps)/(y + eps))^2 */                                \
    X(huber_loss)                 /* e = |yhat - y|; e < delta ? e^2/2 : delta (e - delta/2) */       \
    X(crossentropy)               /* -sum_classes y log(yhat + eps) */                               \
    X(logitcrossentropy)          /* -sum_classes y logsoftmax(yhat) */                              \
    X(binarycrossentropy)         /* -y log(yhat + eps) - (1-y) log(1 - yhat + eps) */               \
    X(logitbinarycrossentropy)    /* (1-y) yhat - logsigmoid(yhat) */                                \
    X(kldivergence)               /* sum_classes y log(y) + crossentropy */                          \
    X(poisson_loss)               /* yhat - y log(yhat) */                                           \
    X(hinge_loss)                 /* max(0, 1 - yhat y) */                                           \
    X(squared_hinge_loss)         /* max(0, 1 - yhat y)^2 */                                         \
    X(dice_coeff_loss)            /* 1 - (2 sum(y yhat) + s)/(sum(y^2) + sum(yhat^2) + s) */          \
    X(tversky_loss)               /* 1 - (sum(y yhat)+1)/(sum(y yhat + b (1-y) yhat + (1-b) y (1-yhat))+1) */ \
    X(focal_loss)                 /* -sum_classes y (1 - yhat - eps)^gamma log(yhat + eps) */         \
    X(binary_focal_loss)          /* p = y yhat + (1-y)(1-yhat) (+eps); -(1-p)^gamma log(p) */        \
    X(siamese_contrastive_loss)   /* (1-y) yhat^2 + y max(0, margin - yhat)^2 */
#define FLUX__DECLARE_LOSS(name)                                                \
    FLUX_API flux_tensor *flux_##name(flux_tensor *yhat, flux_tensor *y);       \
    FLUX_API flux_tensor *flux_##name##_with(flux_loss_opts o);
FLUX__LOSSES(FLUX__DECLARE_LOSS)
/* -log of the probability of the labels, steps being free to repeat one or to give none, which is the last class: yhat is
   classes x steps (x batch) before softmax, y labels (x batch), a target's unused end being -1. A label or length out of range
   is an error where it lies in host memory, and makes the sample's loss NaN where it is computed or on a device, as does a label
   behind a target's end. A target that its steps cannot give has the loss inf. (Graves et al. 2006.) */
FLUX_API flux_tensor *flux_ctc_loss(flux_tensor *yhat, flux_tensor *y);
FLUX_API flux_tensor *flux_ctc_loss_with(flux_loss_opts o);
FLUX_API flux_tensor *flux_label_smoothing(flux_tensor *y, double alpha, int dim);  /* y (1-a) + a/size(y, dim); dim -1: binary, a/2 */

#endif /* FLUX__API_LOSSES_H */
