#ifndef FLUX__API_CALLS_H
#define FLUX__API_CALLS_H
#include "sharing.h"

/* ------------------------------------------------------------------ how the calls above are made
   The macros behind the interface: options, operands of different types, loops and blocks, and
   overloads for C++. To use the library, you need not read on.

   Behind a macro flux_NAME(...) stands a function flux_NAME_with, which takes as values what the
   macro's arguments list: a flux_shape for sizes, a count and an array for tensors or layers, a
   struct for options: flux_reshape(x, 2, 3) is flux_reshape_with(x, FLUX_SHAPE(2, 3)). */

/* A block or an iteration. live: 1 in its body, 2 after `continue` or at the end of the body, 0
   after it was left; depth: open scopes before it (0: it opened none); nograd: FLUX_NOGRADs before
   it. */
typedef struct flux__block { int live, depth, nograd; } flux__block;
FLUX_API flux__block flux__block_enter(bool scope, bool nograd, const char *file, int line);
FLUX_API void flux__block_end(flux__block *b, const char *file, int line);
FLUX_API void flux__block_leave(flux__block *b);
/* flux_times: iteration `at` of n. inner stays 1 if `break` leaves the body; failures: the number
   of errors before the loop, to notice new ones. */
typedef struct flux__iterations {
    int64_t at, n, failures;
    int inner;
    flux__block turn;
} flux__iterations;
FLUX_API flux__iterations flux__times_start(int64_t n);
FLUX_API bool flux__times_next(flux__iterations *e, const char *file, int line);
FLUX_API void flux__times_leave(flux__iterations *e);
typedef struct flux__each_args {
    FLUX__DUMMY
    flux_loader *loader FLUX__ZERO;
    const char *progress FLUX__ZERO;
} flux__each_args;
#define FLUX__LEFT_OUT_flux__each_args
typedef struct flux__each_state { flux_batch batch; void *run; int inner; } flux__each_state;
FLUX_API bool flux__each_next(flux__each_state *e, const char *file, int line);
FLUX_API void flux__each_leave(flux__each_state *e);
FLUX_API flux__each_state flux__each_start(flux__each_args a);
FLUX_API flux_layer *flux__layer_of_fn(flux_fn f);
FLUX_API flux_layer *flux__layer_of_fn2(flux_fn2 f);
FLUX_API flux_layer *flux__layer_of_layer(flux_layer *l);
/* A number as an operand, which takes the dtype of the other operand; and a tensor as an operand,
   which is returned as it is. */
FLUX_API flux_tensor *flux__number(double v);
FLUX_API flux_tensor *flux__same(flux_tensor *x);
FLUX_API flux_shape flux__shape(const int64_t *dims, int n);

#if defined(__GNUC__)
#  define FLUX__UNUSED __attribute__((unused))
#else
#  define FLUX__UNUSED
#endif
#if defined(__GNUC__) && !defined(__TINYC__)
#  define FLUX__CLEANUP(f) __attribute__((cleanup(f)))
#else
#  define FLUX__CLEANUP(f)
#endif

#define FLUX__CAT_(a, b) a##b
#define FLUX__CAT(a, b) FLUX__CAT_(a, b)
/* A block or loop is a `for` that runs its body once in an inner `for`, so that `break` and
   `continue` end the inner one only. With compilers that have the cleanup attribute, the function
   that leaves the block also runs at the end of the variable's life, for a `return`; if the block
   was left already, it does nothing. */
#define FLUX__BLOCK(b, scope, nograd)                                                              \
    for (flux__block b FLUX__CLEANUP(flux__block_leave) =                                          \
             flux__block_enter(scope, nograd, __FILE__, __LINE__);                                 \
         b.live; flux__block_end(&b, __FILE__, __LINE__))                                          \
        for (; b.live == 1; b.live = 2)

#if defined(__cplusplus)
#  define FLUX__COUNTER(n) decltype((n) + 0)
#elif defined(__GNUC__) || defined(__TINYC__)
#  define FLUX__COUNTER(n) __typeof__((n) + 0)
#else
#  define FLUX__COUNTER(n) int            /* without typeof, which C has only since 2023 */
#endif
#define FLUX__TIMES(i, n)                                                                          \
    for (flux__iterations i##_turns FLUX__CLEANUP(flux__times_leave) =                             \
             flux__times_start((int64_t)(n));                                                      \
         flux__times_next(&i##_turns, __FILE__, __LINE__);)                                        \
        for (FLUX__UNUSED FLUX__COUNTER(n) i = (FLUX__COUNTER(n))i##_turns.at; i##_turns.inner;    \
             i##_turns.inner = 0)

#define FLUX__EACH(b, ...)                                                                         \
    for (flux__each_state b##_each FLUX__CLEANUP(flux__each_leave) =                               \
             flux__each_start(FLUX__OPTS(flux__each_args, __VA_ARGS__));                           \
         flux__each_next(&b##_each, __FILE__, __LINE__);)                                          \
        for (FLUX__UNUSED flux_batch b = b##_each.batch; b##_each.inner; b##_each.inner = 0)

/* FLUX__NARG counts its arguments, 1 to 32; FLUX__MAP(f, a, b) is f(a), f(b). More arguments give a
   name that is declared nowhere, so that the compiler's message says what is wrong: up to 96
   FLUX__AT_MOST_32_ARGUMENTS, else one that ends in the 97th argument. */
#define FLUX__NARG(...)                                                                            \
    FLUX__NARG_(__VA_ARGS__, FLUX__TOO_MANY_16, FLUX__TOO_MANY_16, FLUX__TOO_MANY_16,              \
                FLUX__TOO_MANY_16, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, \
                16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define FLUX__TOO_MANY_16                                                                          \
    FLUX__TOO_MANY_4, FLUX__TOO_MANY_4, FLUX__TOO_MANY_4, FLUX__TOO_MANY_4
#define FLUX__TOO_MANY_4                                                                           \
    FLUX__AT_MOST_32_ARGUMENTS, FLUX__AT_MOST_32_ARGUMENTS, FLUX__AT_MOST_32_ARGUMENTS,            \
    FLUX__AT_MOST_32_ARGUMENTS
#define FLUX__NARG_(...) FLUX__NARG_97(__VA_ARGS__)
#define FLUX__NARG_97(                                                                             \
    a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20,     \
    a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, a33, a34, a35, a36, a37, a38,      \
    a39, a40, a41, a42, a43, a44, a45, a46, a47, a48, a49, a50, a51, a52, a53, a54, a55, a56,      \
    a57, a58, a59, a60, a61, a62, a63, a64, a65, a66, a67, a68, a69, a70, a71, a72, a73, a74,      \
    a75, a76, a77, a78, a79, a80, a81, a82, a83, a84, a85, a86, a87, a88, a89, a90, a91, a92,      \
    a93, a94, a95, a96, n, ...) n
#define FLUX__EACH_LAYER_OF_AT_MOST_32(x) FLUX__AS_LAYER(x)   /* clang++ prints it, of 97 or more */
#define FLUX__MAP(f, ...) FLUX__CAT(FLUX__MAP_AT_MOST_32_, FLUX__NARG(__VA_ARGS__))(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_1(f, x) f(x)
#define FLUX__MAP_AT_MOST_32_2(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_1(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_3(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_2(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_4(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_3(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_5(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_4(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_6(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_5(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_7(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_6(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_8(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_7(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_9(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_8(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_10(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_9(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_11(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_10(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_12(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_11(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_13(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_12(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_14(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_13(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_15(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_14(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_16(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_15(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_17(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_16(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_18(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_17(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_19(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_18(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_20(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_19(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_21(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_20(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_22(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_21(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_23(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_22(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_24(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_23(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_25(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_24(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_26(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_25(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_27(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_26(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_28(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_27(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_29(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_28(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_30(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_29(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_31(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_30(f, __VA_ARGS__)
#define FLUX__MAP_AT_MOST_32_32(f, x, ...) f(x), FLUX__MAP_AT_MOST_32_31(f, __VA_ARGS__)

/* FLUX__IS_SHAPE(x) is 1 if x is written as FLUX_SHAPE(...), else 0: what that makes begins with a
   name in four pairs of parentheses, which nobody writes. FLUX__INSIDE(x) is what the parentheses
   at the beginning of x hold. */
#define FLUX__IS_SHAPE(x) FLUX__IS_INSIDE(FLUX__INSIDE(FLUX__INSIDE(FLUX__INSIDE(x))))
#define FLUX__IS_INSIDE(x) FLUX__SECOND(FLUX__BRACKET x, 0, 0)
#define FLUX__BRACKET(...) 0, 1
#define FLUX__INSIDE(x) FLUX__FIRST(FLUX__COMMA_BEHIND x)
#define FLUX__COMMA_BEHIND(...) __VA_ARGS__,
#define FLUX__FIRST(...) FLUX__FIRST_(__VA_ARGS__, 0)
#define FLUX__FIRST_(a, ...) a
#define FLUX__SECOND(...) FLUX__SECOND_(__VA_ARGS__)
#define FLUX__SECOND_(a, b, ...) b
/* flux_conv(FLUX_SHAPE(3, 3), 1, 8), with a window first, is the layer flux_conv_layer, as Conv is
   in Flux; so are its siblings and the pools. The names of the macros behind it are what gcc prints
   of a shape in a variable, which only flux_conv_layer can take. */
#define FLUX__OR_LAYER(f, kind, ...)                                  \
    FLUX__CAT(FLUX__A_SHAPE_IN_A_VARIABLE_NEEDS_THE_NAME_WITH_layer_, \
              FLUX__IS_SHAPE(FLUX__FIRST(__VA_ARGS__)))(f, kind, __VA_ARGS__)
#define FLUX__A_SHAPE_IN_A_VARIABLE_NEEDS_THE_NAME_WITH_layer_0(f, kind, ...) \
    f##_with(FLUX__OPTS(flux_##kind##_opts, __VA_ARGS__))
#define FLUX__A_SHAPE_IN_A_VARIABLE_NEEDS_THE_NAME_WITH_layer_1(f, kind, ...) \
    f##_layer_with(FLUX__OPTS(flux_##kind##_layer_opts, __VA_ARGS__))

/* FLUX__OPTS(T, ...) makes a struct of options with marks (api/types.h). Names in braces are C++20;
   __extension__ keeps g++ from saying so. */
#if defined(__cplusplus) && defined(__GNUC__) && !defined(__clang__)
#  define FLUX__OPTS(T, ...) (__extension__ T{ __VA_ARGS__ })
#elif defined(__cplusplus)
#  define FLUX__OPTS(T, ...) T{ __VA_ARGS__ }
#else
#  define FLUX__OPTS(T, ...) ((T){ FLUX__LEFT_OUT_##T ._ = 0, __VA_ARGS__ })
#endif
/* A struct of options for a function that takes one; flux_adam(.eta = 0), for example, is
   flux_rule_with("Adam", FLUX_OPTIONS(flux_rule_opts, .eta = 0)). */
#define FLUX_OPTIONS(T, ...) \
    /* Options for a function that takes a struct: FLUX_OPTIONS(flux_rule_opts, .eta = 0). */ \
    FLUX__OPTS(T, __VA_ARGS__)

/* FLUX__ONE(dim) is 1, if dim is none of the two tensors of flux_max2(a, b). */
#define FLUX__NO_DIM "a dim is a number; of two tensors: flux_max2(a, b), flux_min2(a, b)"
#if defined(__cplusplus) || defined(__TINYC__)
#define FLUX__ONE(dim) 1                  /* in C++ an overload says so */
#else
#define FLUX__ONE(dim)                                                                             \
    (int)sizeof(struct {                                                                           \
        char one;                                                                                  \
        _Static_assert(_Generic((dim), flux_tensor *: 0, default: 1), FLUX__NO_DIM);               \
    })
#endif
#ifndef __cplusplus
#define FLUX__REDUCE_OPTS(...) FLUX__OPTS(flux_reduce_opts, __VA_ARGS__)
#define FLUX__ARRAY(T, ...) ((T[]){ __VA_ARGS__ })
/* FLUX_SHAPE(3, 4) is the flux_shape of these numbers. */
#define FLUX_SHAPE(...) \
    /* The flux_shape of these numbers: FLUX_SHAPE(3, 4). */ \
    ((((flux__shape))))(FLUX__ARRAY(const int64_t, __VA_ARGS__), \
                        (int)(sizeof(FLUX__ARRAY(const int64_t, __VA_ARGS__)) / sizeof(int64_t)))
#define FLUX__DOUBLES_OF(...) FLUX__ARRAY(const double, FLUX__MAP(FLUX__DOUBLE_OF, __VA_ARGS__))
#define FLUX__DOUBLE_OF(x) (double)(x)
#define FLUX__TENSORS(...) ((flux_tensor *const[]){ FLUX__MAP(FLUX__TENSOR, __VA_ARGS__) })
#define FLUX__TENSOR(x) (x)
#define FLUX__PLACES_OF(...) ((flux_tensor **const[]){ __VA_ARGS__ })
#define FLUX__OBJECTS(...) ((const void *const[]){ FLUX__MAP(FLUX__OBJECT, __VA_ARGS__) })
#define FLUX__LAYERS(...) \
    ((flux_layer *const[]){ FLUX__MAP(FLUX__EACH_LAYER_OF_AT_MOST_32, __VA_ARGS__) })
#define FLUX__DTYPE_OF(p)                                                                          \
    _Generic(&*(p), float *: FLUX_F32, const float *: FLUX_F32, double *: FLUX_F64,                \
             const double *: FLUX_F64, int32_t *: FLUX_I32, const int32_t *: FLUX_I32,             \
             int64_t *: FLUX_I64, const int64_t *: FLUX_I64, uint8_t *: FLUX_U8,                   \
             const uint8_t *: FLUX_U8, bool *: FLUX_BOOL, const bool *: FLUX_BOOL)
#endif

#define FLUX__ACT(f, ...) FLUX__MADE(flux_tensor *, f(FLUX__OPTS(flux_act_opts, __VA_ARGS__)))
#define flux_leakyrelu(...) /* x>0 ? x : .alpha x */ FLUX__ACT(flux_leakyrelu_with, __VA_ARGS__)
#define flux_rrelu(...) \
    /* x>0 ? x : a x, a random in [.lo, .hi) */ \
    FLUX__ACT(flux_rrelu_with, __VA_ARGS__)
#define flux_elu(...) /* x>0 ? x : .alpha (exp(x)-1) */ FLUX__ACT(flux_elu_with, __VA_ARGS__)
#define flux_celu(...) \
    /* x>0 ? x : .alpha (exp(x/.alpha)-1) */ \
    FLUX__ACT(flux_celu_with, __VA_ARGS__)
#define flux_softshrink(...) \
    /* sign(x) max(|x|-.alpha, 0) */ \
    FLUX__ACT(flux_softshrink_with, __VA_ARGS__)
#define flux_trelu(...) /* x>.alpha ? x : 0 */ FLUX__ACT(flux_trelu_with, __VA_ARGS__)

#define FLUX__LOSS(f, ...) FLUX__MADE(flux_tensor *, f(FLUX__OPTS(flux_loss_opts, __VA_ARGS__)))
#define flux_ctc_loss(...) \
    /* Connectionist temporal classification: flux_ctc_loss(yhat, labels). */ \
    FLUX__LOSS(flux_ctc_loss_with, __VA_ARGS__)

#define flux_topk_accuracy(...) \
    /* The share whose true class is among the .k highest scores. */ \
    FLUX__MADE(flux_tensor *, flux_topk_accuracy_with(FLUX__OPTS(flux_topk_opts, __VA_ARGS__)))

#define flux_sum(...) \
    /* The sum, of all elements or over dims: flux_sum(x, 0). */ \
    FLUX__REDUCE(flux_sum_with, __VA_ARGS__)
#define flux_mean(...) \
    /* The mean, of all elements or over dims: flux_mean(x, 1). */ \
    FLUX__REDUCE(flux_mean_with, __VA_ARGS__)
#define flux_var(...) \
    /* The variance; it divides by n, not n-1. */ \
    FLUX__REDUCE(flux_var_with, __VA_ARGS__)
#define flux_std(...) \
    /* The standard deviation; it divides by n, not n-1. */ \
    FLUX__REDUCE(flux_std_with, __VA_ARGS__)
#define flux_prod(...) \
    /* The product, of all elements or over dims. */ \
    FLUX__REDUCE(flux_prod_with, __VA_ARGS__)
#define flux_max(...) \
    /* The largest element, of all or over dims; of two tensors: flux_max2. */ \
    FLUX__REDUCE(flux_max_with, __VA_ARGS__)
#define flux_min(...) \
    /* The smallest element, of all or over dims; of two tensors: flux_min2. */ \
    FLUX__REDUCE(flux_min_with, __VA_ARGS__)
#define flux_any(...) \
    /* Whether any element is true, of all or over dims. */ \
    FLUX__REDUCE(flux_any_with, __VA_ARGS__)
#define flux_all(...) \
    /* Whether all elements are true, of all or over dims. */ \
    FLUX__REDUCE(flux_all_with, __VA_ARGS__)
#define flux_norm(...) \
    /* The square root of the sum of squares. */ \
    FLUX__REDUCE(flux_norm_with, __VA_ARGS__)
#define flux_logsumexp(...) \
    /* log(sum(exp(x))), of all elements or over dims. */ \
    FLUX__REDUCE(flux_logsumexp_with, __VA_ARGS__)
#define flux_argmax(...) \
    /* The int64 index of the largest element, in all or along a dim. */ \
    FLUX__REDUCE(flux_argmax_with, __VA_ARGS__)
#define flux_argmin(...) \
    /* The int64 index of the smallest element, in all or along a dim. */ \
    FLUX__REDUCE(flux_argmin_with, __VA_ARGS__)
#define flux_cumsum(...) \
    /* Running sums along a dim, in the shape of x. */ \
    FLUX__REDUCE(flux_cumsum_with, __VA_ARGS__)
#define flux_cumprod(...) \
    /* Running products along a dim, in the shape of x. */ \
    FLUX__REDUCE(flux_cumprod_with, __VA_ARGS__)
#define flux_tril(...) \
    /* What is on diagonal k (default 0) and below, else 0: flux_tril(x, k). */ \
    FLUX__REDUCE(flux_tril_with, __VA_ARGS__)
#define flux_triu(...) \
    /* What is on diagonal k (default 0) and above, else 0: flux_triu(x, k). */ \
    FLUX__REDUCE(flux_triu_with, __VA_ARGS__)
#define flux_diag(...) \
    /* Diagonal k of a matrix; of a vector, the matrix that has it there. */ \
    FLUX__REDUCE(flux_diag_with, __VA_ARGS__)
#define flux_softmax(...) \
    /* exp(x)/sum(exp(x)), over dim 0 or those given, in the shape of x. */ \
    FLUX__REDUCE(flux_softmax_with, __VA_ARGS__)
#define flux_logsoftmax(...) \
    /* The logarithm of flux_softmax, without overflow. */ \
    FLUX__REDUCE(flux_logsoftmax_with, __VA_ARGS__)

#ifdef __cplusplus
}
inline flux_reduce_opts flux__reduce_opts(flux_tensor *x, int a = 0, int b = 0, int c = 0,
                                          int d = 0, int e = 0, int f = 0, int g = 0, int h = 0) {
    flux_reduce_opts o = flux_reduce_opts();
    o.x = x, o.d0 = a, o.d1 = b, o.d2 = c, o.d3 = d, o.d4 = e, o.d5 = f, o.d6 = g, o.d7 = h;
    return o;
}
template <class... T>
inline flux_reduce_opts flux__reduce_opts(flux_tensor *x, flux_tensor *, T...) {
    static_assert(sizeof...(T) > FLUX_MAX_DIMS, FLUX__NO_DIM);
    return flux__reduce_opts(x);
}
#define FLUX__REDUCE_OPTS(...) flux__reduce_opts(__VA_ARGS__)
template <class T, size_t N> struct flux__array {
    T at[N];
    operator const T *() const { return at; }
};
#define FLUX__ARRAY(T, ...) \
    (flux__array<typename flux__bare<T>::type, FLUX__NARG(__VA_ARGS__)>{ { __VA_ARGS__ } })
template <class T> struct flux__bare { typedef T type; };
template <class T> struct flux__bare<const T> { typedef T type; };
template <class... T> inline flux_shape flux__shape_cpp(T... d) {
    const int64_t dims[] = { (int64_t)d... };
    return flux__shape(dims, (int)sizeof...(d));
}
#define FLUX_SHAPE(...) \
    /* The flux_shape of these numbers: FLUX_SHAPE(3, 4). */ \
    ((((flux__shape_cpp))))(__VA_ARGS__)
#define FLUX__DOUBLES_OF(...) FLUX__ARRAY(double, FLUX__MAP(FLUX__DOUBLE_OF, __VA_ARGS__))
#define FLUX__DOUBLE_OF(x) (double)(x)
typedef flux_tensor *flux__tensor_p;
typedef flux_layer *flux__layer_p;
typedef const void *flux__object_p;
#define FLUX__TENSORS(...) FLUX__ARRAY(flux__tensor_p, __VA_ARGS__)
typedef flux_tensor **flux__place_p;
#define FLUX__PLACES_OF(...) FLUX__ARRAY(flux__place_p, __VA_ARGS__)
#define FLUX__OBJECTS(...) FLUX__ARRAY(flux__object_p, FLUX__MAP(FLUX__OBJECT, __VA_ARGS__))
#define FLUX__LAYERS(...) \
    FLUX__ARRAY(flux__layer_p, FLUX__MAP(FLUX__EACH_LAYER_OF_AT_MOST_32, __VA_ARGS__))
/* decltype looks at the type of p only, so that p is evaluated once in flux_from(p, ...). */
#define FLUX__DTYPE_OF(p) flux__dtype_of(decltype(&*(p))())
inline flux_dtype flux__dtype_of(const float *) { return FLUX_F32; }
inline flux_dtype flux__dtype_of(const double *) { return FLUX_F64; }
inline flux_dtype flux__dtype_of(const int32_t *) { return FLUX_I32; }
inline flux_dtype flux__dtype_of(const int64_t *) { return FLUX_I64; }
inline flux_dtype flux__dtype_of(const uint8_t *) { return FLUX_U8; }
inline flux_dtype flux__dtype_of(const bool *) { return FLUX_BOOL; }
#if defined(__clang__)
#  pragma clang diagnostic pop
#endif
#endif

#endif /* FLUX__API_CALLS_H */
