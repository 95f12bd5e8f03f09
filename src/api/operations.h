#ifndef FLUX__API_OPERATIONS_H
#define FLUX__API_OPERATIONS_H
#include "tensors.h"

/* ------------------------------------------------------------------ elementwise operations
   The result has the shape to which the operands broadcast, as in Julia: shapes are aligned at
   dimension 0, and a dimension of 1, or one that is missing at the end, stretches. Shapes that do
   not fit are an error, and so are tuples and operands on two devices. The dtype is the wider of
   the operands' (float over int over bool; f16 with bf16 gives f32). In the calls of two operands,
   a plain number may stand for either one and takes the other's dtype; until then it is a double,
   and so is a result of numbers only. Comparisons give bool, arithmetic of bools gives int32.
   Functions whose value is not an integer (flux_sqrt, flux_exp, ...) turn integers into float32; a
   negative power of an integer is 0, unless that is 1 or -1.

   On f16 and bf16, whatever consists of several operations or scales a sum (activations, means,
   variances, norms, softmax, pools, losses) computes in float32 and rounds once, at its end. So do
   gradients, even those of a single operation; for exp, sqrt, tanh and sigmoid they start from the
   rounded result, as PyTorch's do. */

/* a + b */
FLUX_API flux_tensor *flux_add(flux_tensor *a, flux_tensor *b);
/* a - b */
FLUX_API flux_tensor *flux_sub(flux_tensor *a, flux_tensor *b);
/* a b, element by element; flux_matmul is the matrix product. */
FLUX_API flux_tensor *flux_mul(flux_tensor *a, flux_tensor *b);
/* a / b; of integers float32. */
FLUX_API flux_tensor *flux_div(flux_tensor *a, flux_tensor *b);
/* a^b; its gradient by a is 0 where b is 0, and by b where a <= 0. */
FLUX_API flux_tensor *flux_pow(flux_tensor *a, flux_tensor *b);
/* The larger of two; NaN if either is NaN. */
FLUX_API flux_tensor *flux_max2(flux_tensor *a, flux_tensor *b);
/* The smaller of two; NaN if either is NaN. */
FLUX_API flux_tensor *flux_min2(flux_tensor *a, flux_tensor *b);
/* The angle of the point (b, a) from the first axis, in [-pi, pi]. */
FLUX_API flux_tensor *flux_atan2(flux_tensor *a, flux_tensor *b);
/* a - b floor(a/b), with the sign of b, as torch.remainder; by 0 NaN, of integers 0. */
FLUX_API flux_tensor *flux_mod(flux_tensor *a, flux_tensor *b);
/* Bools: whether a = b. */
FLUX_API flux_tensor *flux_eq(flux_tensor *a, flux_tensor *b);
/* Bools: whether a and b differ. */
FLUX_API flux_tensor *flux_ne(flux_tensor *a, flux_tensor *b);
/* Bools: whether a < b. */
FLUX_API flux_tensor *flux_lt(flux_tensor *a, flux_tensor *b);
/* Bools: whether a <= b. */
FLUX_API flux_tensor *flux_le(flux_tensor *a, flux_tensor *b);
/* Bools: whether a > b. */
FLUX_API flux_tensor *flux_gt(flux_tensor *a, flux_tensor *b);
/* Bools: whether a >= b. */
FLUX_API flux_tensor *flux_ge(flux_tensor *a, flux_tensor *b);
/* Bools: whether two bools are true. And, or, not take bools only. */
FLUX_API flux_tensor *flux_and(flux_tensor *a, flux_tensor *b);
/* Bools: whether one of two bools is true. */
FLUX_API flux_tensor *flux_or(flux_tensor *a, flux_tensor *b);
/* Bools: whether a bool is false. */
FLUX_API flux_tensor *flux_not(flux_tensor *a);
/* a where cond is true (not 0), b elsewhere. cond broadcasts with a and b. */
FLUX_API flux_tensor *flux_where(flux_tensor *cond, flux_tensor *a, flux_tensor *b);
/* min(max(x, lo), hi). lo > hi is an error. */
FLUX_API flux_tensor *flux_clamp(flux_tensor *x, double lo, double hi);
/* -x */
FLUX_API flux_tensor *flux_neg(flux_tensor *x);
/* |x| */
FLUX_API flux_tensor *flux_abs(flux_tensor *x);
/* -1, 0 or 1, the sign of x. */
FLUX_API flux_tensor *flux_sign(flux_tensor *x);
/* The square root; NaN below 0. */
FLUX_API flux_tensor *flux_sqrt(flux_tensor *x);
/* 1/sqrt(x) */
FLUX_API flux_tensor *flux_rsqrt(flux_tensor *x);
/* x^2 */
FLUX_API flux_tensor *flux_square(flux_tensor *x);
/* e^x */
FLUX_API flux_tensor *flux_exp(flux_tensor *x);
/* The natural logarithm; -inf at 0, NaN below. */
FLUX_API flux_tensor *flux_log(flux_tensor *x);
/* log(1+x) */
FLUX_API flux_tensor *flux_log1p(flux_tensor *x);
/* exp(x)-1 */
FLUX_API flux_tensor *flux_expm1(flux_tensor *x);
/* The sine of x in radians. */
FLUX_API flux_tensor *flux_sin(flux_tensor *x);
/* The cosine of x in radians. */
FLUX_API flux_tensor *flux_cos(flux_tensor *x);
/* The tangent of x in radians. */
FLUX_API flux_tensor *flux_tan(flux_tensor *x);
/* The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]. */
FLUX_API flux_tensor *flux_asin(flux_tensor *x);
/* The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]. */
FLUX_API flux_tensor *flux_acos(flux_tensor *x);
/* The angle in (-pi/2, pi/2) whose tangent is x. */
FLUX_API flux_tensor *flux_atan(flux_tensor *x);
/* (exp(x)-exp(-x))/2 */
FLUX_API flux_tensor *flux_sinh(flux_tensor *x);
/* (exp(x)+exp(-x))/2 */
FLUX_API flux_tensor *flux_cosh(flux_tensor *x);
/* The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x. */
FLUX_API flux_tensor *flux_erf(flux_tensor *x);
/* The largest integer that is not above x. */
FLUX_API flux_tensor *flux_floor(flux_tensor *x);
/* The smallest integer that is not below x. */
FLUX_API flux_tensor *flux_ceil(flux_tensor *x);
/* The nearest integer; halves go to the even one. */
FLUX_API flux_tensor *flux_round(flux_tensor *x);
/* Bools: whether x is NaN. */
FLUX_API flux_tensor *flux_isnan(flux_tensor *x);
/* Bools: whether x is neither NaN nor infinite. */
FLUX_API flux_tensor *flux_isfinite(flux_tensor *x);
/* value where mask is true (not 0), x elsewhere; mask broadcasts with x. */
FLUX_API flux_tensor *flux_masked_fill(flux_tensor *x, flux_tensor *mask, double value);
/* The same values, no gradient. */
FLUX_API flux_tensor *flux_detach(flux_tensor *x);
/* Converts the elements. */
FLUX_API flux_tensor *flux_to_dtype(flux_tensor *x, flux_dtype t);

/* ------------------------------------------------------------------ activations
   Elementwise functions, as NNlib defines them; the result has the shape of x. Each can be handed
   to a layer: flux_dense(10, 5, flux_gelu). Those with a parameter take it as an option, whose
   default stands behind the formula: flux_leakyrelu(x, .alpha = 0.2). */

/* x itself. */
FLUX_API flux_tensor *flux_identity(flux_tensor *x);
/* 1/(1+exp(-x)) */
FLUX_API flux_tensor *flux_sigmoid(flux_tensor *x);
/* clamp((x+3)/6, 0, 1) */
FLUX_API flux_tensor *flux_hardsigmoid(flux_tensor *x);
/* log(sigmoid(x)) */
FLUX_API flux_tensor *flux_logsigmoid(flux_tensor *x);
/* (exp(x)-exp(-x))/(exp(x)+exp(-x)) */
FLUX_API flux_tensor *flux_tanh(flux_tensor *x);
/* clamp(x, -1, 1) */
FLUX_API flux_tensor *flux_hardtanh(flux_tensor *x);
/* max(x, 0) */
FLUX_API flux_tensor *flux_relu(flux_tensor *x);
/* clamp(x, 0, 6) */
FLUX_API flux_tensor *flux_relu6(flux_tensor *x);
/* 1.0507 (x>0 ? x : 1.67326 (exp(x)-1)) (Klambauer et al. 2017). */
FLUX_API flux_tensor *flux_selu(flux_tensor *x);
/* GELU in its tanh form, x/2 (1+tanh(sqrt(2/pi)(x+0.044715x^3))) (Hendrycks and Gimpel 2016). */
FLUX_API flux_tensor *flux_gelu(flux_tensor *x);
/* flux_gelu under its full name. */
FLUX_API flux_tensor *flux_gelu_tanh(flux_tensor *x);
/* GELU by a sigmoid: x sigmoid(sqrt(8/pi)(x+0.044715x^3)). */
FLUX_API flux_tensor *flux_gelu_sigmoid(flux_tensor *x);
/* GELU without approximation: x/2 (1+erf(x/sqrt 2)). */
FLUX_API flux_tensor *flux_gelu_erf(flux_tensor *x);
/* x sigmoid(x) */
FLUX_API flux_tensor *flux_swish(flux_tensor *x);
/* x hardsigmoid(x) */
FLUX_API flux_tensor *flux_hardswish(flux_tensor *x);
/* x tanh(x) */
FLUX_API flux_tensor *flux_lisht(flux_tensor *x);
/* log(cosh(x)) */
FLUX_API flux_tensor *flux_logcosh(flux_tensor *x);
/* x tanh(softplus(x)) */
FLUX_API flux_tensor *flux_mish(flux_tensor *x);
/* log(1+exp(x)) */
FLUX_API flux_tensor *flux_softplus(flux_tensor *x);
/* x/(1+|x|) */
FLUX_API flux_tensor *flux_softsign(flux_tensor *x);
/* x-tanh(x) */
FLUX_API flux_tensor *flux_tanhshrink(flux_tensor *x);
/* x>0 ? x : alpha x, alpha 0.01 */
FLUX_API flux_tensor *flux_leakyrelu(flux_tensor *x);
/* slope random in [lo, hi), 1/8 and 1/3 */
FLUX_API flux_tensor *flux_rrelu(flux_tensor *x);
/* x>0 ? x : alpha (exp(x)-1), alpha 1 */
FLUX_API flux_tensor *flux_elu(flux_tensor *x);
/* x>0 ? x : alpha (exp(x/alpha)-1), alpha 1 */
FLUX_API flux_tensor *flux_celu(flux_tensor *x);
/* sign(x) max(|x|-alpha, 0), alpha 0.5 */
FLUX_API flux_tensor *flux_softshrink(flux_tensor *x);
/* x>alpha ? x : 0, alpha 1 */
FLUX_API flux_tensor *flux_trelu(flux_tensor *x);
typedef struct flux_act_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;            /* of any shape */
    flux__double alpha FLUX__ZERO, lo FLUX__ZERO, hi FLUX__ZERO; /* as the formula has them */
    flux__marked marked FLUX__ZERO;
} flux_act_opts;
#define FLUX__LEFT_OUT_flux_act_opts .alpha = FLUX__NO_NUMBER, .lo = FLUX__NO_NUMBER, \
    .hi = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_tensor *flux_leakyrelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_rrelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_elu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_celu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_softshrink_with(flux_act_opts o);
FLUX_API flux_tensor *flux_trelu_with(flux_act_opts o);
/* Gated linear unit: the first half of x along dim, times the sigmoid of the second half. The size
   of dim is halved; an odd size is an error. */
FLUX_API flux_tensor *flux_glu(flux_tensor *x, int dim);
/* Sets the name under which your function f is printed inside a layer. */
FLUX_API void flux_name_function(flux_fn f, const char *name);

/* ------------------------------------------------------------------ reductions
   flux_sum(x) reduces over all dimensions and gives a 0-dimensional tensor. flux_sum(x, 0) and
   flux_sum(x, 0, 2) reduce over the given dimensions, which stay, with size 1. A dimension that x
   does not have is an error. Sums and products of half formats are computed in float32 and rounded
   once; those of integers and bools are int64. A maximum or minimum of no elements is an error. */

typedef struct flux_reduce_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;
    int d0 FLUX__ZERO, d1 FLUX__ZERO, d2 FLUX__ZERO, d3 FLUX__ZERO,
        d4 FLUX__ZERO, d5 FLUX__ZERO, d6 FLUX__ZERO, d7 FLUX__ZERO;
} flux_reduce_opts;
#define FLUX__LEFT_OUT_flux_reduce_opts
#define FLUX__REDUCE(f, ...) \
    FLUX__MADE(flux_tensor *, \
               f(FLUX__NARG(__VA_ARGS__) - FLUX__ONE(FLUX__SECOND(__VA_ARGS__, 0, 0)), \
                 FLUX__REDUCE_OPTS(__VA_ARGS__)))
FLUX_API flux_tensor *flux_sum_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_mean_with(int n, flux_reduce_opts o);
/* divides by n, not n-1 */
FLUX_API flux_tensor *flux_var_with(int n, flux_reduce_opts o);
/* The square root of the variance. Where that is 0 the gradient is 0. */
FLUX_API flux_tensor *flux_std_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_prod_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_max_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_min_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_any_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_all_with(int n, flux_reduce_opts o);
/* The square root of the sum of squares. Where all elements are 0 the gradient is 0. */
FLUX_API flux_tensor *flux_norm_with(int n, flux_reduce_opts o);
/* log(sum(exp(x))); -inf where all elements are -inf. */
FLUX_API flux_tensor *flux_logsumexp_with(int n, flux_reduce_opts o);
/* The int64 index of the largest (smallest) element, the first of equal ones: along one dimension,
   or in the whole tensor as it lies in memory, dimension 0 fastest. */
FLUX_API flux_tensor *flux_argmax_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_argmin_with(int n, flux_reduce_opts o);
/* Running sums and products, in the shape of x: element i along the dim named is the sum (product)
   of the elements up to i. flux_cumsum(x) is of a vector. Those of integers and bools are int64. */
FLUX_API flux_tensor *flux_cumsum_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_cumprod_with(int n, flux_reduce_opts o);
/* exp(x)/sum(exp(x)) and its logarithm, in the shape of x; the sum is over dimension 0 if none is
   given. Where all elements of a sum are -inf, all results are equal. */
FLUX_API flux_tensor *flux_softmax_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_logsoftmax_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_sum(flux_tensor *x);
FLUX_API flux_tensor *flux_mean(flux_tensor *x);
FLUX_API flux_tensor *flux_var(flux_tensor *x);
FLUX_API flux_tensor *flux_std(flux_tensor *x);
FLUX_API flux_tensor *flux_prod(flux_tensor *x);
FLUX_API flux_tensor *flux_max(flux_tensor *x);
FLUX_API flux_tensor *flux_min(flux_tensor *x);
FLUX_API flux_tensor *flux_any(flux_tensor *x);
FLUX_API flux_tensor *flux_all(flux_tensor *x);
FLUX_API flux_tensor *flux_norm(flux_tensor *x);
FLUX_API flux_tensor *flux_logsumexp(flux_tensor *x);
FLUX_API flux_tensor *flux_cumsum(flux_tensor *x);
FLUX_API flux_tensor *flux_cumprod(flux_tensor *x);
FLUX_API flux_tensor *flux_argmax(flux_tensor *x);
FLUX_API flux_tensor *flux_argmin(flux_tensor *x);
FLUX_API flux_tensor *flux_softmax(flux_tensor *x);
FLUX_API flux_tensor *flux_logsoftmax(flux_tensor *x);

/* ------------------------------------------------------------------ shapes
   Most of these are views, which cost nothing: no data moves until somebody needs it contiguous.
   Dimensions and indices count from 0, without negative ones; what is out of range is an error. */

/* The same elements in a shape with as many elements. One dimension may be -1: it is then computed
   from the others. */
FLUX_API flux_tensor *flux_reshape_with(flux_tensor *x, flux_shape s);
#define flux_reshape(x, ...) \
    /* The same elements in these dims, one of which may be -1: flux_reshape(x, 28, 28, -1). */ \
    flux_reshape_with(x, FLUX_SHAPE(__VA_ARGS__))
/* All but the last dimension become one. */
FLUX_API flux_tensor *flux_flatten(flux_tensor *x);
FLUX_API flux_tensor *flux_permute_with(flux_tensor *x, flux_shape order);
#define flux_permute(x, ...) \
    /* Dimension i of the result is dimension order[i] of x: flux_permute(x, 1, 0, 2). Each
       dimension of x must be named once. */ \
    flux_permute_with(x, FLUX_SHAPE(__VA_ARGS__))
/* Swaps dimensions 0 and 1; a vector of n becomes a 1 x n matrix. */
FLUX_API flux_tensor *flux_transpose(flux_tensor *x);
/* The indices start <= i < stop of dim, or every step-th of them, start being the first. */
FLUX_API flux_tensor *flux_slice(flux_tensor *x, int dim, int64_t start, int64_t stop);
/* The indices start, start+step, ... below stop of dim. */
FLUX_API flux_tensor *flux_slice_step(flux_tensor *x, int dim, int64_t start, int64_t stop,
                                      int64_t step);
/* The first n observations, which the last dimension counts. */
FLUX_API flux_tensor *flux_take(flux_tensor *x, int64_t n);
/* All but the first n. */
FLUX_API flux_tensor *flux_drop(flux_tensor *x, int64_t n);
/* The slice of x at this index of dim, without that dimension. */
FLUX_API flux_tensor *flux_select(flux_tensor *x, int dim, int64_t index);
/* Inserts a dimension of size 1 before dim. */
FLUX_API flux_tensor *flux_unsqueeze(flux_tensor *x, int dim);
/* Drops every dimension of 1. */
FLUX_API flux_tensor *flux_squeeze(flux_tensor *x);
/* Stretches x to a shape, by the rule of the elementwise operations. */
FLUX_API flux_tensor *flux_broadcast_to_with(flux_tensor *x, flux_shape s);
#define flux_broadcast_to(x, ...) \
    /* x stretched to these dims: flux_broadcast_to(v, 3, 4) has 4 columns like v. */ \
    flux_broadcast_to_with(x, FLUX_SHAPE(__VA_ARGS__))
FLUX_API flux_tensor *flux_flip_with(flux_tensor *x, flux_shape dims);
#define flux_flip(x, ...) \
    /* x with these dims reversed: flux_flip(x, 0). */ \
    flux_flip_with(x, FLUX_SHAPE(__VA_ARGS__))
FLUX_API flux_tensor *flux_repeat_with(flux_tensor *x, flux_shape times);
#define flux_repeat(x, ...) \
    /* Tiles copies of x, times[i] of them along dimension i: flux_repeat(x, 2, 3). */ \
    flux_repeat_with(x, FLUX_SHAPE(__VA_ARGS__))
/* Adds lo[i] elements before and hi[i] after dimension i, all equal to value. Negative numbers are
   an error. flux_pad takes the numbers as lo0, hi0, lo1, hi1, ... of up to 4 dimensions. */
FLUX_API flux_tensor *flux_pad_by(flux_tensor *x, double value, flux_shape lo, flux_shape hi);
FLUX_API flux_tensor *flux_pad_with(flux_tensor *x, double value, flux_shape lo_hi);
#define flux_pad(x, value, ...) \
    /* x with elements equal to value around it, lo0, hi0, lo1, hi1, ...: flux_pad(v, 0, 1, 2). */ \
    flux_pad_with(x, value, FLUX_SHAPE(__VA_ARGS__))
/* Concatenates 1 to 255 tensors along dim; their other dimensions must be equal. */
FLUX_API flux_tensor *flux_cat_with(int dim, int n, flux_tensor *const *xs);
#define flux_cat(dim, ...) \
    /* 1 to 255 tensors one after the other along dim: flux_cat(0, a, b). */ \
    flux_cat_with(dim, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
/* Stacks 1 to 255 tensors of one shape along a new dimension, which gets the number dim. */
FLUX_API flux_tensor *flux_stack_with(int dim, int n, flux_tensor *const *xs);
#define flux_stack(dim, ...) \
    /* Tensors of one shape along a new dim: flux_stack(1, u, v) has u and v as columns. */ \
    flux_stack_with(dim, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
/* The slices of x along dim that an integer tensor picks: the result has the dimensions of index in
   place of dim. An index out of range is an error when the numbers are computed. */
FLUX_API flux_tensor *flux_gather(flux_tensor *x, int dim, flux_tensor *index);
/* torch.gather: x at its own place but for dim, where the integer tensor index stands for it. index
   has as many dimensions as x, none larger but dim; the result has its shape. An index out of range
   is an error when the numbers are computed. */
FLUX_API flux_tensor *flux_take_along(flux_tensor *x, int dim, flux_tensor *index);
/* x sorted along .dim, and the int64 indices that sort it so: flux_sort(x, 1, .descending = true).
   Equal elements keep their order, and NaN counts as the largest. The gradient goes where the
   elements came from. A dim of 2^32 elements or more is an error. */
typedef struct flux_sort_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;            /* of any shape */
    int dim FLUX__ZERO;                    /* default 0 */
    bool descending FLUX__ZERO;            /* the largest first */
} flux_sort_opts;
#define FLUX__LEFT_OUT_flux_sort_opts
FLUX_API flux_tensor *flux_sort_with(flux_sort_opts o);
FLUX_API flux_tensor *flux_argsort_with(flux_sort_opts o);
#define flux_sort(...) \
    /* x sorted along .dim: flux_sort(x, 1, .descending = true). */ \
    flux_sort_with(FLUX__OPTS(flux_sort_opts, __VA_ARGS__))
#define flux_argsort(...) \
    /* The int64 indices that sort x along .dim. */ \
    flux_argsort_with(FLUX__OPTS(flux_sort_opts, __VA_ARGS__))
/* The k largest elements along dim, the largest first, and their int64 indices: a tuple of the two,
   for flux_nth(t, 0) and flux_nth(t, 1). k beyond the size of dim is an error. */
FLUX_API flux_tensor *flux_topk(flux_tensor *x, int64_t k, int dim);
/* Diagonal k of a matrix (rows x columns) is where the column less the row is k. flux_tril(x) and
   flux_tril(x, k) keep what is on diagonal k (default 0) and below, flux_triu what is on it and
   above, of each matrix of a batch; the rest is 0. flux_diag(x, k) is diagonal k of a matrix as a
   vector, or, of a vector, the square matrix that has it there. The negative k count downwards. */
FLUX_API flux_tensor *flux_tril_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_triu_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_diag_with(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_tril(flux_tensor *x);
FLUX_API flux_tensor *flux_triu(flux_tensor *x);
FLUX_API flux_tensor *flux_diag(flux_tensor *x);
/* The sum of a square matrix's diagonal. */
FLUX_API flux_tensor *flux_trace(flux_tensor *x);
/* A tuple of views, x cut along dim: flux_split(x, 1, 3) into pieces of size 3, of which the last
   may be smaller; flux_split(x, 1, 2, 5, 1) into pieces of these sizes, at most 8, whose sum must
   be the size of dim; flux_chunk(x, 1, 4) into 4 pieces of equal size, but the last, or fewer, as
   torch.chunk does. More than 255 pieces are an error. */
FLUX_API flux_tensor *flux_split_with(flux_tensor *x, int dim, flux_shape sizes);
#define flux_split(x, dim, ...) \
    /* A tuple of views, x cut along dim into pieces of a size, or of these sizes. */ \
    flux_split_with(x, dim, FLUX_SHAPE(__VA_ARGS__))
/* A tuple of views, x cut along dim into so many pieces, equal but the last. */
FLUX_API flux_tensor *flux_chunk(flux_tensor *x, int dim, int64_t pieces);
/* x with src, shaped as flux_gather(x, dim, index), added at the places that index names. Where an
   index repeats, all its values are added, in order. */
FLUX_API flux_tensor *flux_scatter_add(flux_tensor *x, int dim, flux_tensor *index,
                                       flux_tensor *src);
/* A tuple: 1 to 255 tensors (or tuples) as one value, for layers with more than one input or
   output. flux_nth gives number i of them, from 0. Operations on numbers do not take tuples. */
FLUX_API flux_tensor *flux_tuple_with(int n, flux_tensor *const *xs);
#define flux_tuple(...) \
    /* 1 to 255 tensors, or tuples, as one value. */ \
    flux_tuple_with(FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
/* Number i of a tuple, from 0; of a plain tensor, itself at 0. */
FLUX_API flux_tensor *flux_nth(flux_tensor *tuple, int i);
/* How many tensors a tuple has; 1 for a plain one. */
FLUX_API int flux_num_items(const flux_tensor *tuple);

/* ------------------------------------------------------------------ linear algebra and convolution
   Products of f16 and bf16 are summed in f32. On a CPU that has its own instructions for products
   of bf16 (AMX, AVX512_BF16; FLUX_SIMD=avx512 leaves them out), a number or a sum nearer to 0 than
   1.2e-38 counts as 0, so that its product with infinity is NaN. */

/* The product of m x k (x batch...) and k x n (x batch...), which is m x n (x batch...). Batch
   dimensions broadcast. A vector is a column on the right, and a row on the left; its dimension of
   1 is left out of the result. Integers give float32. Inner sizes that differ are an error. */
FLUX_API flux_tensor *flux_matmul(flux_tensor *a, flux_tensor *b);
/* The outer product, m x n, of vectors of length m and n. */
FLUX_API flux_tensor *flux_outer(flux_tensor *a, flux_tensor *b);
/* The inner product, 0-dimensional, of two vectors of one length. */
FLUX_API flux_tensor *flux_dot(flux_tensor *a, flux_tensor *b);
/* Einstein's sum of 1 to 32 tensors: each dim has a letter, what has equal letters is multiplied,
   and letters that the result lacks are summed. flux_einsum("bik,bkj->bij", a, b) is a product of
   batches, "ij->ji" a transpose, "ii->i" a diagonal, "i,j->ij" an outer product. Without -> the
   result has the letters that stand once, in alphabetical order. "..." stands for the dims that
   the letters leave, which broadcast as in flux_add and, without ->, are the last of the result:
   "ij...,jk...->ik..." is flux_matmul. More operands than two are taken from left to right.
   Integers give float32. At most 8 dims in one place. A letter that has two sizes is an error. */
FLUX_API flux_tensor *flux_einsum_with(const char *formula, int n, flux_tensor *const *xs);
#define flux_einsum(formula, ...) \
    /* Einstein's sum of tensors: flux_einsum("ik,kj->ij", a, b) is a matrix product. */ \
    flux_einsum_with(formula, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
#define FLUX__SAME INT64_MIN
#define FLUX_SAMEPAD \
    /* Pads so that size becomes ceil(size/stride): by dilation (window-1) in all, one more before
       than behind if that is odd. */ \
    FLUX_SHAPE(FLUX__SAME)
/* The options of a convolution with 1 to 3 spatial dimensions:
     x                          w (x h (x d)) x channels in x batch
     weight                     window (1 to 3 dimensions) x in/groups x out
     weight of conv_transpose   window x out/groups x in
     result                     like x, with out channels; w becomes, rounded down,
                                (w + padding - dilation (window-1) - 1) / stride + 1
   One number of .stride, .pad or .dilation counts for all spatial dimensions. */
typedef flux_tensor *flux__images_else_call_flux_conv_layer;   /* what clang and g++ print of */
typedef flux_tensor *flux__images_else_call_flux_maxpool_layer;   /* a shape in its place */
typedef struct flux_conv_opts {
    FLUX__DUMMY
    flux__images_else_call_flux_conv_layer x FLUX__ZERO;   /* images, a tensor */
    flux_tensor *weight FLUX__ZERO;        /* windows */
    flux_shape stride FLUX__ZERO;          /* FLUX_SHAPE(2) or FLUX_SHAPE(2, 1); default 1 */
    flux_shape pad FLUX__ZERO;             /* one number, one per dimension, low and high of each
                                              dimension, or FLUX_SAMEPAD; default 0 */
    flux_shape dilation FLUX__ZERO;        /* default 1 */
    flux_shape outpad FLUX__ZERO;          /* conv_transpose only: added to the result's size */
    flux__int groups FLUX__ZERO;           /* default 1; divides the channels in and out */
    flux__marked marked FLUX__ZERO;
} flux_conv_opts;
#define FLUX__LEFT_OUT_flux_conv_opts .groups = FLUX__NO_INT, .marked = true,
/* A true convolution: the kernel is flipped, as in Flux. */
FLUX_API flux_tensor *flux_conv_with(flux_conv_opts o);
/* A cross-correlation: the kernel is not flipped, as in PyTorch. */
FLUX_API flux_tensor *flux_crosscor_with(flux_conv_opts o);
/* The gradient of flux_conv with respect to its x. */
FLUX_API flux_tensor *flux_conv_transpose_with(flux_conv_opts o);
#define flux_conv(...) \
    /* A true convolution, kernels flipped: flux_conv(x, weight); of a window first, the layer. */ \
    FLUX__OR_LAYER(flux_conv, conv, __VA_ARGS__)
#define flux_crosscor(...) \
    /* A cross-correlation, kernels as they are, as PyTorch's; of a window first, the layer. */ \
    FLUX__OR_LAYER(flux_crosscor, conv, __VA_ARGS__)
#define flux_conv_transpose(...) \
    /* The gradient of flux_conv by its x; of a window first, the layer. */ \
    FLUX__OR_LAYER(flux_conv_transpose, conv, __VA_ARGS__)
typedef struct flux_pool_opts {
    FLUX__DUMMY
    flux__images_else_call_flux_maxpool_layer x FLUX__ZERO;   /* w (x h (x d)) x channels x batch */
    flux_shape window FLUX__ZERO;          /* FLUX_SHAPE(2, 2): one number per spatial dimension */
    flux_shape stride FLUX__ZERO;          /* default: the window */
    flux_shape pad FLUX__ZERO;             /* as in flux_conv */
    flux__double p FLUX__ZERO;             /* lpnormpool only: default 2, more than 0 */
    flux__marked marked FLUX__ZERO;
} flux_pool_opts;
#define FLUX__LEFT_OUT_flux_pool_opts .p = FLUX__NO_NUMBER, .marked = true,
/* The largest value of each window, never one of the padding; the mean, whose divisor counts the
   padding; and (sum x^p)^(1/p), whose gradient is 0 where it is 0. */
FLUX_API flux_tensor *flux_maxpool_with(flux_pool_opts o);
FLUX_API flux_tensor *flux_meanpool_with(flux_pool_opts o);
FLUX_API flux_tensor *flux_lpnormpool_with(flux_pool_opts o);
#define flux_maxpool(...) \
    /* The largest value of each window: flux_maxpool(x, FLUX_SHAPE(2, 2)); or the layer. */ \
    FLUX__OR_LAYER(flux_maxpool, pool, __VA_ARGS__)
#define flux_meanpool(...) \
    /* The mean of each window of x; of a window first, the layer. */ \
    FLUX__OR_LAYER(flux_meanpool, pool, __VA_ARGS__)
#define flux_lpnormpool(...) \
    /* (sum x^p)^(1/p) of each window of x; of a window first, the layer. */ \
    FLUX__OR_LAYER(flux_lpnormpool, pool, __VA_ARGS__)

/* Evaluates a formula in Julia's spelling: flux_expr("sum((W*x .+ b .- y).^2)", W, x, b, y). Dotted
   operators (.+ .- .* ./ .^ .== .< ...) and calls f.(x) are elementwise; * is the matrix product,
   or scales by a number; ' is the transpose. Functions have their names of this file without flux_,
   also those that take whole numbers, as a shape, beside tensors: reshape(x, 28, 28, -1),
   slice(x, 0, 1, 3), cat(0, x, y); what gives a tuple stands in nth(split(x, 1, 2), 0). einsum has
   its formula in single quotes, einsum('ik,kj->ij', a, b). A call has at most 12 operands.
   The names in the formula mean the C variables written after it, which must be plain names. A
   formula that cannot be read is an error that says where. names: "W, x" */
FLUX_API flux_tensor *flux_expr_with(const char *formula, int n, const char *names,
                                     flux_tensor *const *values);
#define flux_expr(formula, ...) \
    /* A formula in Julia's spelling: flux_expr("sum((W*x .- y).^2)", W, x, y). */ \
    flux_expr_with(formula, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__TENSORS(__VA_ARGS__))

/* ------------------------------------------------------------------ one-hot */

/* Integer labels from 0 to classes-1, of any shape, as a bool tensor classes x that shape, true at
   the label. At most 2^24 classes. A label out of range is an error where labels lie in host
   memory. */
FLUX_API flux_tensor *flux_onehot(flux_tensor *labels, int64_t classes);
/* The reverse: int64, argmax along dimension 0, which is dropped. */
FLUX_API flux_tensor *flux_onecold(flux_tensor *y);

#endif /* FLUX__API_OPERATIONS_H */
