#ifndef FLUX__API_OPERATIONS_H
#define FLUX__API_OPERATIONS_H
#include "tensors.h"

/* ------------------------------------------------------------------ elementwise operations
   Shapes broadcast as in Julia: aligned at dim 0, a dimension of 1 (or one that is missing at the end) stretches.
   Dtypes meet at the wider one (float over int over bool; f16 with bf16 gives f32). A plain number may stand for
   either operand and takes the other's dtype; until then it is a double, as is what numbers alone give. Comparisons give bool.
   What is made of several operations, or scales a sum (activations, means, variances, norms, softmax, pools, losses), computes in
   float32 on f16 and bf16 and rounds once at its end; so do gradients, those of a single operation too, which for exp, sqrt, tanh
   and sigmoid start from the rounded result, as PyTorch's do. */

FLUX_API flux_tensor *flux_add(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_sub(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_mul(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_div(flux_tensor *a, flux_tensor *b);   /* of integers: float32 */
FLUX_API flux_tensor *flux_pow(flux_tensor *a, flux_tensor *b);   /* the gradient by a of a^0 is 0, and by b where a <= 0 */
FLUX_API flux_tensor *flux_max2(flux_tensor *a, flux_tensor *b);  /* the larger; NaN if either is */
FLUX_API flux_tensor *flux_min2(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_eq(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_ne(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_lt(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_le(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_gt(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_ge(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_and(flux_tensor *a, flux_tensor *b);   /* of bools, as are or, not */
FLUX_API flux_tensor *flux_or(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_not(flux_tensor *a);
FLUX_API flux_tensor *flux_where(flux_tensor *cond, flux_tensor *a, flux_tensor *b);   /* cond ? a : b */
FLUX_API flux_tensor *flux_clamp(flux_tensor *x, double lo, double hi);
FLUX_API flux_tensor *flux_neg(flux_tensor *x);
FLUX_API flux_tensor *flux_abs(flux_tensor *x);
FLUX_API flux_tensor *flux_sign(flux_tensor *x);
FLUX_API flux_tensor *flux_sqrt(flux_tensor *x);
FLUX_API flux_tensor *flux_rsqrt(flux_tensor *x);                 /* 1/sqrt(x) */
FLUX_API flux_tensor *flux_square(flux_tensor *x);
FLUX_API flux_tensor *flux_exp(flux_tensor *x);
FLUX_API flux_tensor *flux_log(flux_tensor *x);
FLUX_API flux_tensor *flux_log1p(flux_tensor *x);                 /* log(1+x) */
FLUX_API flux_tensor *flux_expm1(flux_tensor *x);                 /* exp(x)-1 */
FLUX_API flux_tensor *flux_sin(flux_tensor *x);
FLUX_API flux_tensor *flux_cos(flux_tensor *x);
FLUX_API flux_tensor *flux_erf(flux_tensor *x);
FLUX_API flux_tensor *flux_floor(flux_tensor *x);
FLUX_API flux_tensor *flux_ceil(flux_tensor *x);
FLUX_API flux_tensor *flux_round(flux_tensor *x);                 /* halves to even */
FLUX_API flux_tensor *flux_detach(flux_tensor *x);                /* the same value, no gradient through it */
FLUX_API flux_tensor *flux_to_dtype(flux_tensor *x, flux_dtype t);

/* ------------------------------------------------------------------ activations (NNlib's definitions)
   Each is also a value to hand to a layer: flux_dense(10, 5, flux_gelu). Those with a parameter take it as an option:
   flux_leakyrelu(x, .alpha = 0.2). */

FLUX_API flux_tensor *flux_identity(flux_tensor *x);
FLUX_API flux_tensor *flux_sigmoid(flux_tensor *x);               /* 1/(1+exp(-x)) */
FLUX_API flux_tensor *flux_hardsigmoid(flux_tensor *x);           /* clamp((x+3)/6, 0, 1) */
FLUX_API flux_tensor *flux_logsigmoid(flux_tensor *x);            /* log(sigmoid(x)) */
FLUX_API flux_tensor *flux_tanh(flux_tensor *x);
FLUX_API flux_tensor *flux_hardtanh(flux_tensor *x);              /* clamp(x, -1, 1) */
FLUX_API flux_tensor *flux_relu(flux_tensor *x);
FLUX_API flux_tensor *flux_relu6(flux_tensor *x);                 /* clamp(x, 0, 6) */
FLUX_API flux_tensor *flux_selu(flux_tensor *x);
FLUX_API flux_tensor *flux_gelu(flux_tensor *x);                  /* tanh form: x/2 (1+tanh(sqrt(2/pi)(x+0.044715x^3))) */
FLUX_API flux_tensor *flux_gelu_tanh(flux_tensor *x);             /* the same */
FLUX_API flux_tensor *flux_gelu_sigmoid(flux_tensor *x);          /* x sigmoid(sqrt(8/pi)(x+0.044715x^3)) */
FLUX_API flux_tensor *flux_gelu_erf(flux_tensor *x);              /* x/2 (1+erf(x/sqrt 2)) */
FLUX_API flux_tensor *flux_swish(flux_tensor *x);                 /* x sigmoid(x) */
FLUX_API flux_tensor *flux_hardswish(flux_tensor *x);             /* x hardsigmoid(x) */
FLUX_API flux_tensor *flux_lisht(flux_tensor *x);                 /* x tanh(x) */
FLUX_API flux_tensor *flux_logcosh(flux_tensor *x);               /* log(cosh(x)) */
FLUX_API flux_tensor *flux_mish(flux_tensor *x);                  /* x tanh(softplus(x)) */
FLUX_API flux_tensor *flux_softplus(flux_tensor *x);              /* log(1+exp(x)) */
FLUX_API flux_tensor *flux_softsign(flux_tensor *x);              /* x/(1+|x|) */
FLUX_API flux_tensor *flux_tanhshrink(flux_tensor *x);            /* x-tanh(x) */
FLUX_API flux_tensor *flux_leakyrelu(flux_tensor *x);             /* x>0 ? x : alpha x, alpha 0.01 */
FLUX_API flux_tensor *flux_rrelu(flux_tensor *x);                 /* leaky with random slopes in [lo, hi), 1/8 and 1/3 */
FLUX_API flux_tensor *flux_elu(flux_tensor *x);                   /* x>0 ? x : alpha (exp(x)-1), alpha 1 */
FLUX_API flux_tensor *flux_celu(flux_tensor *x);                  /* max(0,x) + min(0, alpha (exp(x/alpha)-1)), alpha 1 */
FLUX_API flux_tensor *flux_softshrink(flux_tensor *x);            /* sign(x) max(|x|-alpha, 0), alpha 0.5 */
FLUX_API flux_tensor *flux_trelu(flux_tensor *x);                 /* x>alpha ? x : 0, alpha 1 */
typedef struct flux_act_opts { FLUX__DUMMY flux_tensor *x FLUX__ZERO; flux__double alpha FLUX__ZERO, lo FLUX__ZERO, hi FLUX__ZERO; flux__marked marked FLUX__ZERO; } flux_act_opts;
#define FLUX__LEFT_OUT_flux_act_opts .alpha = FLUX__NO_NUMBER, .lo = FLUX__NO_NUMBER, \
    .hi = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_tensor *flux_leakyrelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_rrelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_elu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_celu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_softshrink_with(flux_act_opts o);
FLUX_API flux_tensor *flux_trelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_glu(flux_tensor *x, int dim);          /* first half of dim times sigmoid of the second */
FLUX_API void flux_name_function(flux_fn f, const char *name);    /* how a function of yours prints inside a layer */

/* ------------------------------------------------------------------ reductions
   Over all dimensions, flux_sum(x), giving a 0-dimensional tensor; or over given ones, which stay with size 1:
   flux_sum(x, 0), flux_sum(x, 0, 2). Sums and products of half formats are taken in float32 and rounded once. */

typedef struct flux_reduce_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;
    int d0 FLUX__ZERO, d1 FLUX__ZERO, d2 FLUX__ZERO, d3 FLUX__ZERO, d4 FLUX__ZERO, d5 FLUX__ZERO, d6 FLUX__ZERO, d7 FLUX__ZERO;
} flux_reduce_opts;
#define FLUX__LEFT_OUT_flux_reduce_opts
#define FLUX__REDUCE(f, ...) f(FLUX__NARG(__VA_ARGS__) - 1, FLUX__REDUCE_OPTS(__VA_ARGS__))
FLUX_API flux_tensor *flux_sum_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_mean_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_var_over(int n, flux_reduce_opts o);   /* divided by n, not n-1 */
FLUX_API flux_tensor *flux_prod_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_max_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_min_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_any_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_all_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_norm_over(int n, flux_reduce_opts o);  /* square root of the sum of squares; of zeros the gradient is 0 */
FLUX_API flux_tensor *flux_logsumexp_over(int n, flux_reduce_opts o);   /* log of the sum of exp(x); -inf of nothing but that */
FLUX_API flux_tensor *flux_argmax_over(int n, flux_reduce_opts o);   /* int64, the first of equals; one dim or all */
FLUX_API flux_tensor *flux_argmin_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_softmax_over(int n, flux_reduce_opts o);     /* exp(x)/sum(exp(x)); over dim 0 if none is given; all
                                                                           alike where there is nothing but -inf */
FLUX_API flux_tensor *flux_logsoftmax_over(int n, flux_reduce_opts o);  /* log of that */
FLUX_API flux_tensor *flux_sum(flux_tensor *x);
FLUX_API flux_tensor *flux_mean(flux_tensor *x);
FLUX_API flux_tensor *flux_var(flux_tensor *x);
FLUX_API flux_tensor *flux_prod(flux_tensor *x);
FLUX_API flux_tensor *flux_max(flux_tensor *x);
FLUX_API flux_tensor *flux_min(flux_tensor *x);
FLUX_API flux_tensor *flux_any(flux_tensor *x);
FLUX_API flux_tensor *flux_all(flux_tensor *x);
FLUX_API flux_tensor *flux_norm(flux_tensor *x);
FLUX_API flux_tensor *flux_logsumexp(flux_tensor *x);
FLUX_API flux_tensor *flux_argmax(flux_tensor *x);
FLUX_API flux_tensor *flux_argmin(flux_tensor *x);
FLUX_API flux_tensor *flux_softmax(flux_tensor *x);               /* over dim 0 */
FLUX_API flux_tensor *flux_logsoftmax(flux_tensor *x);            /* over dim 0 */

/* ------------------------------------------------------------------ shapes
   Views cost nothing: no data moves until somebody needs it in order. */

FLUX_API flux_tensor *flux_reshape_to(flux_tensor *x, flux_shape s);      /* one dimension may be -1: what is left */
#define flux_reshape(x, ...) flux_reshape_to(x, FLUX_SHAPE(__VA_ARGS__))
FLUX_API flux_tensor *flux_flatten(flux_tensor *x);               /* all but the last dimension become one */
FLUX_API flux_tensor *flux_permute_to(flux_tensor *x, flux_shape order);
#define flux_permute(x, ...) flux_permute_to(x, FLUX_SHAPE(__VA_ARGS__))  /* dim i of the result is dim order[i] of x */
FLUX_API flux_tensor *flux_transpose(flux_tensor *x);             /* swaps dims 0 and 1; a vector becomes a 1 x n row */
FLUX_API flux_tensor *flux_slice(flux_tensor *x, int dim, int64_t start, int64_t stop);   /* start <= i < stop */
FLUX_API flux_tensor *flux_slice_step(flux_tensor *x, int dim, int64_t start, int64_t stop, int64_t step);
FLUX_API flux_tensor *flux_take(flux_tensor *x, int64_t n);       /* the first n observations (last dimension) */
FLUX_API flux_tensor *flux_drop(flux_tensor *x, int64_t n);       /* all but the first n */
FLUX_API flux_tensor *flux_select(flux_tensor *x, int dim, int64_t index);   /* that index; the dimension goes */
FLUX_API flux_tensor *flux_unsqueeze(flux_tensor *x, int dim);    /* a new dimension of 1 before dim */
FLUX_API flux_tensor *flux_squeeze(flux_tensor *x);               /* drops every dimension of 1 */
FLUX_API flux_tensor *flux_broadcast_to_shape(flux_tensor *x, flux_shape s);
#define flux_broadcast_to(x, ...) flux_broadcast_to_shape(x, FLUX_SHAPE(__VA_ARGS__))
FLUX_API flux_tensor *flux_flip_dims(flux_tensor *x, flux_shape dims);
#define flux_flip(x, ...) flux_flip_dims(x, FLUX_SHAPE(__VA_ARGS__))      /* reverses these dims */
FLUX_API flux_tensor *flux_repeat_by(flux_tensor *x, flux_shape times);
#define flux_repeat(x, ...) flux_repeat_by(x, FLUX_SHAPE(__VA_ARGS__))    /* tiles: times along each dim */
FLUX_API flux_tensor *flux_pad_by(flux_tensor *x, double value, flux_shape lo, flux_shape hi);
FLUX_API flux_tensor *flux_pad_all(flux_tensor *x, double value, flux_shape lo_hi);
#define flux_pad(x, value, ...) flux_pad_all(x, value, FLUX_SHAPE(__VA_ARGS__))   /* lo0, hi0, lo1, hi1, ... */
FLUX_API flux_tensor *flux_cat_all(int dim, int n, flux_tensor *const *xs);
#define flux_cat(dim, ...) flux_cat_all(dim, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))      /* joined along dim */
FLUX_API flux_tensor *flux_stack_all(int dim, int n, flux_tensor *const *xs);
#define flux_stack(dim, ...) flux_stack_all(dim, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))  /* along a new dim */
/* Rows of dim picked by an integer tensor: the result has index's dimensions in place of dim. */
FLUX_API flux_tensor *flux_gather(flux_tensor *x, int dim, flux_tensor *index);
/* x with src (shaped as flux_gather(x, dim, index)) added at those places, in order, repeated ones summed. */
FLUX_API flux_tensor *flux_scatter_add(flux_tensor *x, int dim, flux_tensor *index, flux_tensor *src);
/* Several tensors as one value, for layers with more than one input or output; flux_nth takes one out again. */
FLUX_API flux_tensor *flux_tuple_of(int n, flux_tensor *const *xs);
#define flux_tuple(...) flux_tuple_of(FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
FLUX_API flux_tensor *flux_nth(flux_tensor *tuple, int i);
FLUX_API int flux_count(const flux_tensor *tuple);                /* its tensors; 1 for a plain tensor */

/* ------------------------------------------------------------------ linear algebra and convolution
   Products of f16 and bf16 are added up in f32. A CPU that multiplies bf16 itself (AVX512_BF16; FLUX_SIMD=avx512 leaves it out) takes
   what is nearer to 0 than 1.2e-38, a number or a sum, for 0, and that times infinity for NaN. */

FLUX_API flux_tensor *flux_matmul(flux_tensor *a, flux_tensor *b); /* m x k (x batch) by k x n (x batch); a vector is a column,
                                                                      or on the left a row of its own length */
FLUX_API flux_tensor *flux_outer(flux_tensor *a, flux_tensor *b);  /* vectors of m and n: m x n */
FLUX_API flux_tensor *flux_dot(flux_tensor *a, flux_tensor *b);    /* sum of products: 0-dimensional */
#define FLUX__SAME INT64_MIN
#define FLUX_SAMEPAD FLUX_SHAPE(FLUX__SAME)   /* as much padding as makes ceil(size/stride) of size */
typedef struct flux_conv_opts {            /* x: w (x h (x d)) x channels x batch; weight: k... x in/groups x out */
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO, *weight FLUX__ZERO;
    flux_shape stride FLUX__ZERO;          /* FLUX_SHAPE(2) or FLUX_SHAPE(2, 1); default 1 */
    flux_shape pad FLUX__ZERO;             /* one number, one a dimension, lo and hi of each, or FLUX_SAMEPAD; default 0 */
    flux_shape dilation FLUX__ZERO;        /* default 1 */
    flux_shape outpad FLUX__ZERO;          /* conv_transpose only */
    flux__int groups FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_conv_opts;
#define FLUX__LEFT_OUT_flux_conv_opts .groups = FLUX__NO_INT, .marked = true,
FLUX_API flux_tensor *flux_conv_with(flux_conv_opts o);           /* true convolution: the kernel is flipped, as in Flux */
FLUX_API flux_tensor *flux_crosscor_with(flux_conv_opts o);       /* not flipped, as in PyTorch */
FLUX_API flux_tensor *flux_conv_transpose_with(flux_conv_opts o); /* the gradient of flux_conv by its input */
#define flux_conv(...) flux_conv_with(FLUX__OPTS(flux_conv_opts, __VA_ARGS__))
#define flux_crosscor(...) flux_crosscor_with(FLUX__OPTS(flux_conv_opts, __VA_ARGS__))
#define flux_conv_transpose(...) flux_conv_transpose_with(FLUX__OPTS(flux_conv_opts, __VA_ARGS__))
typedef struct flux_pool_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;
    flux_shape window FLUX__ZERO;          /* FLUX_SHAPE(2, 2): one a spatial dimension */
    flux_shape stride FLUX__ZERO;          /* default: the window */
    flux_shape pad FLUX__ZERO;             /* as in flux_conv */
    flux__double p FLUX__ZERO;             /* lpnormpool: default 2 */
    flux__marked marked FLUX__ZERO;
} flux_pool_opts;
#define FLUX__LEFT_OUT_flux_pool_opts .p = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_tensor *flux_maxpool_with(flux_pool_opts o);        /* padding is never chosen */
FLUX_API flux_tensor *flux_meanpool_with(flux_pool_opts o);       /* padding counts in the divisor */
FLUX_API flux_tensor *flux_lpnormpool_with(flux_pool_opts o);     /* (sum x^p)^(1/p); where that is 0 the gradient is 0 */
#define flux_maxpool(...) flux_maxpool_with(FLUX__OPTS(flux_pool_opts, __VA_ARGS__))
#define flux_meanpool(...) flux_meanpool_with(FLUX__OPTS(flux_pool_opts, __VA_ARGS__))
#define flux_lpnormpool(...) flux_lpnormpool_with(FLUX__OPTS(flux_pool_opts, __VA_ARGS__))

/* A formula in Julia's spelling: flux_expr("sum((W*x .+ b .- y).^2)", W, x, b, y). Dotted operators (.+ .- .* ./ .^ .== .< ...)
   and calls f.(x) are elementwise, * is the matrix product (or scales by a number), ' the transpose; functions go by
   their names here without flux_. Names are bound to the C variables written after it, which must be plain names. */
FLUX_API flux_tensor *flux_expr_with(const char *formula, int n, const char *names, flux_tensor *const *values);  /* names: "W, x" */
#define flux_expr(formula, ...) flux_expr_with(formula, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__TENSORS(__VA_ARGS__))

/* ------------------------------------------------------------------ one-hot */

FLUX_API flux_tensor *flux_onehot(flux_tensor *labels, int64_t classes);   /* integer labels of shape s: bool, classes x s */
FLUX_API flux_tensor *flux_onecold(flux_tensor *y);                        /* argmax along dim 0, that dimension dropped: int64 */

#endif /* FLUX__API_OPERATIONS_H */
