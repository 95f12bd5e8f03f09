#ifndef FLUX__API_LOSSES_H
#define FLUX__API_LOSSES_H
#include "layers.h"

/* ------------------------------------------------------------------ losses
   flux_NAME(yhat, y, options): yhat is what the model predicts, y what is true. The formulas are
   those of Flux.Losses, per element or, where they have sum_classes, per sample. The result is
   their mean, 0-dimensional; with .agg = FLUX_SUM it is their sum, with FLUX_NONE the tensor of
   them all (per sample: with size 1 in the class dimension). The dice and Tversky losses are one
   number anyway. yhat and y must have the same shape, except for trailing dimensions of 1. A loss
   that sums over classes also takes integer labels for y, counted from 0, in the shape of yhat
   without its class dimension. A label that is no class is an error where labels lie in host
   memory, and makes the loss NaN where they lie on a GPU or are still to be computed. NULL on
   error. */

/* PROD, MIN and MAX are for collectives (flux_allreduce), not for losses. */
typedef enum flux_agg {
    FLUX_MEAN, FLUX_SUM, FLUX_NONE, FLUX_PROD, FLUX_MIN, FLUX_MAX
} flux_agg;
typedef struct flux_loss_opts {
    FLUX__DUMMY
    flux_tensor *yhat FLUX__ZERO, *y FLUX__ZERO; /* what is predicted, what is true */
    flux_agg agg FLUX__ZERO;              /* FLUX_MEAN (default), FLUX_SUM, FLUX_NONE */
    int dim FLUX__ZERO;                   /* the dimension of the classes; default 0 */
    FLUX__RENAMED(flux__double, eps, epsilon);   /* keeps log finite; default: the dtype's epsilon */
    flux__double delta FLUX__ZERO;        /* huber_loss: 1 */
    flux__double gamma FLUX__ZERO;        /* focal losses: 2 */
    flux__double margin FLUX__ZERO;       /* siamese_contrastive_loss: 1 */
    flux__double smooth FLUX__ZERO;       /* dice_coeff_loss: 1 */
    flux__double beta FLUX__ZERO;         /* tversky_loss: 0.7 */
    flux_tensor *weights FLUX__ZERO;   /* vector, one per class; a mean is then the weighted one */
    flux__switch ignore FLUX__ZERO;       /* samples whose label is .ignore_index do not count; on
                                             if an .ignore_index is given */
    flux__int64 ignore_index FLUX__ZERO;  /* default 0 */
    flux_tensor *lengths FLUX__ZERO;      /* ctc_loss: the steps of each sample, integers from 0 to
                                             the steps of yhat; default: all steps */
    flux__marked marked FLUX__ZERO;
} flux_loss_opts;
#define FLUX__LEFT_OUT_flux_loss_opts .eps = FLUX__NO_NUMBER, .delta = FLUX__NO_NUMBER, \
    .gamma = FLUX__NO_NUMBER, .margin = FLUX__NO_NUMBER, .smooth = FLUX__NO_NUMBER, \
    .beta = FLUX__NO_NUMBER, .ignore = FLUX_DEFAULT, .ignore_index = FLUX__NO_INT64, \
    .marked = true,
/* The list of losses: each with what the formula gives a value for (an element, a sample, or the
   whole batch) and the formula. eps, delta, gamma, margin, s and b stand for the options .eps,
   .delta, .gamma, .margin, .smooth and .beta. */
#define FLUX__LOSSES(X)                                                                                               \
    X(mae, ELEMENT)                       /* |yhat - y| */                                                            \
    X(mse, ELEMENT)                       /* (yhat - y)^2 */                                                          \
    X(msle, ELEMENT)                      /* log((yhat + eps)/(y + eps))^2 */                                         \
    X(huber_loss, ELEMENT)                /* e = |yhat - y|; e < delta ? e^2/2 : delta (e - delta/2) */               \
    X(crossentropy, SAMPLE)               /* -sum_classes y log(yhat + eps) */                                        \
    X(logitcrossentropy, SAMPLE)          /* -sum_classes y logsoftmax(yhat) */                                       \
    X(binarycrossentropy, ELEMENT)        /* -y log(yhat + eps) - (1-y) log(1 - yhat + eps) */                        \
    X(logitbinarycrossentropy, ELEMENT)   /* (1-y) yhat - logsigmoid(yhat) */                                         \
    X(kldivergence, SAMPLE)               /* sum_classes y log(y) + crossentropy */                                   \
    X(poisson_loss, ELEMENT)              /* yhat - y log(yhat) */                                                    \
    X(hinge_loss, ELEMENT)                /* max(0, 1 - yhat y) */                                                    \
    X(squared_hinge_loss, ELEMENT)        /* max(0, 1 - yhat y)^2 */                                                  \
    X(dice_coeff_loss, BATCH)             /* 1 - (2 sum(y yhat) + s)/(sum(y^2) + sum(yhat^2) + s) */                  \
    X(tversky_loss, BATCH)                /* 1 - (sum(y yhat)+1)/(sum(y yhat + b (1-y) yhat + (1-b) y (1-yhat))+1) */ \
    X(focal_loss, SAMPLE)                 /* -sum_classes y (1 - yhat - eps)^gamma log(yhat + eps) */                 \
    X(binary_focal_loss, ELEMENT)         /* p = y yhat + (1-y)(1-yhat) (+eps); -(1-p)^gamma log(p) */                \
    X(siamese_contrastive_loss, ELEMENT)  /* (1-y) yhat^2 + y max(0, margin - yhat)^2 */
#define FLUX__DECLARE_LOSS(name, per)                                           \
    FLUX_API flux_tensor *flux_##name(flux_tensor *yhat, flux_tensor *y);       \
    FLUX_API flux_tensor *flux_##name##_with(flux_loss_opts o);
FLUX__LOSSES(FLUX__DECLARE_LOSS)
/* Connectionist temporal classification (Graves et al. 2006): -log of the probability that the
   steps spell the target, where steps may repeat a label or give the blank, which is the last
   class. yhat is classes x steps (x batch), before softmax; y holds integer labels, target length
   (x batch), where -1 fills the unused end of a target. A label or length out of range, or a label
   after the end of a target, is an error where it lies in host memory, and makes the loss of its
   sample NaN where it lies on a GPU or is still to be computed. A target that the steps cannot
   spell has loss inf. */
FLUX_API flux_tensor *flux_ctc_loss(flux_tensor *yhat, flux_tensor *y);
FLUX_API flux_tensor *flux_ctc_loss_with(flux_loss_opts o);
/* Smoothed one-hot labels, in the shape of y: y (1 - alpha) + alpha/n, n being the size of dim, the
   class dimension. dim -1: binary labels, n = 2. alpha must lie between 0 and 1, both excluded. */
FLUX_API flux_tensor *flux_label_smoothing(flux_tensor *y, double alpha, int dim);

#endif /* FLUX__API_LOSSES_H */
