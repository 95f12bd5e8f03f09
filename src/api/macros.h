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
#define flux_add(a, b) FLUX__OF_TWO(flux_add, a, b)
#define flux_sub(a, b) FLUX__OF_TWO(flux_sub, a, b)
#define flux_mul(a, b) FLUX__OF_TWO(flux_mul, a, b)
#define flux_div(a, b) FLUX__OF_TWO(flux_div, a, b)
#define flux_pow(a, b) FLUX__OF_TWO(flux_pow, a, b)
#define flux_max2(a, b) FLUX__OF_TWO(flux_max2, a, b)
#define flux_min2(a, b) FLUX__OF_TWO(flux_min2, a, b)
#define flux_atan2(a, b) FLUX__OF_TWO(flux_atan2, a, b)
#define flux_mod(a, b) FLUX__OF_TWO(flux_mod, a, b)
#define flux_eq(a, b) FLUX__OF_TWO(flux_eq, a, b)
#define flux_ne(a, b) FLUX__OF_TWO(flux_ne, a, b)
#define flux_lt(a, b) FLUX__OF_TWO(flux_lt, a, b)
#define flux_le(a, b) FLUX__OF_TWO(flux_le, a, b)
#define flux_gt(a, b) FLUX__OF_TWO(flux_gt, a, b)
#define flux_ge(a, b) FLUX__OF_TWO(flux_ge, a, b)
#endif

#define flux_mae(...) FLUX__LOSS(flux_mae_with, __VA_ARGS__)
#define flux_mse(...) FLUX__LOSS(flux_mse_with, __VA_ARGS__)
#define flux_msle(...) FLUX__LOSS(flux_msle_with, __VA_ARGS__)
#define flux_huber_loss(...) FLUX__LOSS(flux_huber_loss_with, __VA_ARGS__)
#define flux_crossentropy(...) FLUX__LOSS(flux_crossentropy_with, __VA_ARGS__)
#define flux_logitcrossentropy(...) FLUX__LOSS(flux_logitcrossentropy_with, __VA_ARGS__)
#define flux_binarycrossentropy(...) FLUX__LOSS(flux_binarycrossentropy_with, __VA_ARGS__)
#define flux_logitbinarycrossentropy(...) \
    FLUX__LOSS(flux_logitbinarycrossentropy_with, __VA_ARGS__)
#define flux_kldivergence(...) FLUX__LOSS(flux_kldivergence_with, __VA_ARGS__)
#define flux_poisson_loss(...) FLUX__LOSS(flux_poisson_loss_with, __VA_ARGS__)
#define flux_hinge_loss(...) FLUX__LOSS(flux_hinge_loss_with, __VA_ARGS__)
#define flux_squared_hinge_loss(...) FLUX__LOSS(flux_squared_hinge_loss_with, __VA_ARGS__)
#define flux_dice_coeff_loss(...) FLUX__LOSS(flux_dice_coeff_loss_with, __VA_ARGS__)
#define flux_tversky_loss(...) FLUX__LOSS(flux_tversky_loss_with, __VA_ARGS__)
#define flux_focal_loss(...) FLUX__LOSS(flux_focal_loss_with, __VA_ARGS__)
#define flux_binary_focal_loss(...) FLUX__LOSS(flux_binary_focal_loss_with, __VA_ARGS__)
#define flux_siamese_contrastive_loss(...) \
    FLUX__LOSS(flux_siamese_contrastive_loss_with, __VA_ARGS__)

#endif /* FLUX__API_MACROS_H */
