#ifndef FLUX__API_MACROS_H
#define FLUX__API_MACROS_H
#include "dispatch.h"

/* ------------------------------------------------------------------ call macros made from lists
   Written by src/macros.sh: the operands of the rows of graph/table.h, which may be numbers, and
   the options of the losses of api/losses.h. */

#ifdef __cplusplus
FLUX__NUMBERS(flux_add)
FLUX__NUMBERS(flux_sub)
FLUX__NUMBERS(flux_mul)
FLUX__NUMBERS(flux_div)
FLUX__NUMBERS(flux_pow)
FLUX__NUMBERS(flux_max2)
FLUX__NUMBERS(flux_min2)
FLUX__NUMBERS(flux_atan2)
FLUX__NUMBERS(flux_mod)
FLUX__NUMBERS(flux_eq)
FLUX__NUMBERS(flux_ne)
FLUX__NUMBERS(flux_lt)
FLUX__NUMBERS(flux_le)
FLUX__NUMBERS(flux_gt)
FLUX__NUMBERS(flux_ge)
#else
#define flux_add(a, b) /* a + b */ FLUX__OF_TWO(flux_add, a, b)
#define flux_sub(a, b) /* a - b */ FLUX__OF_TWO(flux_sub, a, b)
#define flux_mul(a, b) \
    /* a b, element by element; flux_matmul is the matrix product. */ \
    FLUX__OF_TWO(flux_mul, a, b)
#define flux_div(a, b) /* a / b; of integers float32. */ FLUX__OF_TWO(flux_div, a, b)
#define flux_pow(a, b) \
    /* a^b; its gradient by a is 0 where b is 0, and by b where a <= 0. */ \
    FLUX__OF_TWO(flux_pow, a, b)
#define flux_max2(a, b) /* The larger of two; NaN if either is NaN. */ FLUX__OF_TWO(flux_max2, a, b)
#define flux_min2(a, b) \
    /* The smaller of two; NaN if either is NaN. */ \
    FLUX__OF_TWO(flux_min2, a, b)
#define flux_atan2(a, b) \
    /* The angle of the point (b, a) from the first axis, in [-pi, pi]. */ \
    FLUX__OF_TWO(flux_atan2, a, b)
#define flux_mod(a, b) \
    /* a - b floor(a/b), with the sign of b, as torch.remainder; by 0 NaN, of integers 0. */ \
    FLUX__OF_TWO(flux_mod, a, b)
#define flux_eq(a, b) /* Bools: whether a = b. */ FLUX__OF_TWO(flux_eq, a, b)
#define flux_ne(a, b) /* Bools: whether a and b differ. */ FLUX__OF_TWO(flux_ne, a, b)
#define flux_lt(a, b) /* Bools: whether a < b. */ FLUX__OF_TWO(flux_lt, a, b)
#define flux_le(a, b) /* Bools: whether a <= b. */ FLUX__OF_TWO(flux_le, a, b)
#define flux_gt(a, b) /* Bools: whether a > b. */ FLUX__OF_TWO(flux_gt, a, b)
#define flux_ge(a, b) /* Bools: whether a >= b. */ FLUX__OF_TWO(flux_ge, a, b)
#endif

#define flux_mae(...) /* |yhat - y| */ FLUX__LOSS(flux_mae_with, __VA_ARGS__)
#define flux_mse(...) /* (yhat - y)^2 */ FLUX__LOSS(flux_mse_with, __VA_ARGS__)
#define flux_msle(...) /* log((yhat + eps)/(y + eps))^2 */ FLUX__LOSS(flux_msle_with, __VA_ARGS__)
#define flux_huber_loss(...) \
    /* e = |yhat - y|; e < delta ? e^2/2 : delta (e - delta/2) */ \
    FLUX__LOSS(flux_huber_loss_with, __VA_ARGS__)
#define flux_crossentropy(...) \
    /* -sum_classes y log(yhat + eps) */ \
    FLUX__LOSS(flux_crossentropy_with, __VA_ARGS__)
#define flux_logitcrossentropy(...) \
    /* -sum_classes y logsoftmax(yhat) */ \
    FLUX__LOSS(flux_logitcrossentropy_with, __VA_ARGS__)
#define flux_binarycrossentropy(...) \
    /* -y log(yhat + eps) - (1-y) log(1 - yhat + eps) */ \
    FLUX__LOSS(flux_binarycrossentropy_with, __VA_ARGS__)
#define flux_logitbinarycrossentropy(...) \
    /* (1-y) yhat - logsigmoid(yhat) */ \
    FLUX__LOSS(flux_logitbinarycrossentropy_with, __VA_ARGS__)
#define flux_kldivergence(...) \
    /* sum_classes y log(y) + crossentropy */ \
    FLUX__LOSS(flux_kldivergence_with, __VA_ARGS__)
#define flux_poisson_loss(...) \
    /* yhat - y log(yhat) */ \
    FLUX__LOSS(flux_poisson_loss_with, __VA_ARGS__)
#define flux_hinge_loss(...) /* max(0, 1 - yhat y) */ FLUX__LOSS(flux_hinge_loss_with, __VA_ARGS__)
#define flux_squared_hinge_loss(...) \
    /* max(0, 1 - yhat y)^2 */ \
    FLUX__LOSS(flux_squared_hinge_loss_with, __VA_ARGS__)
#define flux_dice_coeff_loss(...) \
    /* 1 - (2 sum(y yhat) + s)/(sum(y^2) + sum(yhat^2) + s) */ \
    FLUX__LOSS(flux_dice_coeff_loss_with, __VA_ARGS__)
#define flux_tversky_loss(...) \
    /* 1 - (sum(y yhat)+1)/(sum(y yhat + b (1-y) yhat + (1-b) y (1-yhat))+1) */ \
    FLUX__LOSS(flux_tversky_loss_with, __VA_ARGS__)
#define flux_focal_loss(...) \
    /* -sum_classes y (1 - yhat - eps)^gamma log(yhat + eps) */ \
    FLUX__LOSS(flux_focal_loss_with, __VA_ARGS__)
#define flux_binary_focal_loss(...) \
    /* p = y yhat + (1-y)(1-yhat) (+eps); -(1-p)^gamma log(p) */ \
    FLUX__LOSS(flux_binary_focal_loss_with, __VA_ARGS__)
#define flux_siamese_contrastive_loss(...) \
    /* (1-y) yhat^2 + y max(0, margin - yhat)^2 */ \
    FLUX__LOSS(flux_siamese_contrastive_loss_with, __VA_ARGS__)

#endif /* FLUX__API_MACROS_H */
