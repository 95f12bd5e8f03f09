#ifndef FLUX__API_CUSTOM_H
#define FLUX__API_CUSTOM_H
#include "operations.h"

/* ------------------------------------------------------------------ operations of your own
   Most need nothing from here: a function that calls operations is an operation, whose gradient
   follows. FLUX_OP makes one from a formula, and flux_custom one whose gradient you state. */

/* An elementwise operation from a formula, at file scope:

       FLUX_OP(swish_by, (x, beta), x / (1 + exp(-beta * x)));
       FLUX_OP(clipped_exp, (x), exp(fmin(x, 20)), x < 20 ? exp(x) : 0);

   defines flux_tensor *swish_by(flux_tensor *x, flux_tensor *beta). Its operands broadcast as those
   of flux_add do, and the result has the dtype at which they meet (operands of half formats are
   computed in float32 and rounded once). Without more arguments the gradient is that of the
   formula. Otherwise one formula for each operand follows, the derivative of the result by it,
   which is used in its place. An operation of one operand is also a layer: flux_chain(m, act).

   The formula is C for one element, which the C compiler checks: it also defines
   double swish_by_number(double x, double beta). The library reads its text at the first call and
   computes it with operations of its own, vectorised, on every back end and fused with what is
   beside it. It may contain operands, numbers, macros of numbers, + - * /, comparisons, && || !,
   c ? a : b, brackets, and of <math.h>, which the program includes (with f at the end, too)
       exp exp2 expm1 log log2 log10 log1p sqrt cbrt pow sin cos tan asin acos atan atan2 sinh cosh
       tanh erf fabs fmax fmin floor ceil trunc rint;
   anything else is an error of the call, which says what it is. Three things differ from C:
   numbers are real, so that 1 / 2 is a half; both sides of c ? a : b are computed; and fmax and
   fmin give NaN where an operand is NaN. In the gradient of c ? a : b a side that was not chosen
   counts 0 times its derivative, which is NaN if that is infinite: state the derivatives then. */
#define FLUX_OP(name, operands, ...) \
    /* An elementwise operation from a formula: FLUX_OP(half, (x), x / 2); stands at file
       scope. */ \
    FLUX__UNUSED static inline double name##_number(FLUX__EACH_NAME(FLUX__AS_DOUBLE, operands)) {  \
        const double all[] = { FLUX__MAP(FLUX__TO_DOUBLE, __VA_ARGS__) };                          \
        return all[0];                                                                             \
    }                                                                                              \
    FLUX__UNUSED static inline flux_tensor *name(FLUX__EACH_NAME(FLUX__AS_TENSOR, operands)) {     \
        static const char *const formulas[] = { FLUX__MAP(FLUX__TEXT_OF, __VA_ARGS__) };           \
        static const flux_operation op = { #name, FLUX__TEXT_OF operands,                          \
                                           (int)(sizeof formulas / sizeof *formulas), formulas };  \
        flux_tensor *const of[] = { FLUX__NAMES_OF operands };                                     \
        return flux_operate(&op, (int)(sizeof of / sizeof *of), of);                               \
    }                                                                                              \
    struct flux__own_##name
#define FLUX__NAMES_OF(...) __VA_ARGS__
#define FLUX__EACH_NAME(f, list) FLUX__MAP(f, FLUX__NAMES_OF list)
#define FLUX__AS_DOUBLE(x) FLUX__UNUSED double x
#define FLUX__AS_TENSOR(x) flux_tensor *x
#define FLUX__TO_DOUBLE(x) (double)(x)
#define FLUX__TEXT_OF(...) #__VA_ARGS__

/* What FLUX_OP writes, for programs whose formulas come from elsewhere: operands are the names of
   1 to 8 operands ("x, beta"), and formulas the formula and the derivatives by each operand, or the
   formula alone. All that it points to must live as long as gradients are taken. */
typedef struct flux_operation {
    const char *name, *operands;          /* "swish_by"; "x, beta" */
    int nformulas;                        /* 1, or 1 + how many operands */
    const char *const *formulas;          /* the formula, then the derivatives */
} flux_operation;
FLUX_API flux_tensor *flux_operate(const flux_operation *op, int n, flux_tensor *const *operands);

/* A function of tensors with a gradient of your own.
       flux_custom(forward, backward, x, w)
   calls forward with the n operands, at once, and returns the tensor that it returns. What forward
   records has no gradient; it may look at operands (flux_data) and call code that knows nothing of
   this library, with flux_from for the result. Instead of one tensor it may return a flux_tuple,
   whose first tensor is the result and whose others are kept for backward.
   When a gradient is taken, backward is called with the operands, with y, which forward returned
   (in a tuple, if that was one), and with g, the gradient of the result, of the result's shape. It
   writes to dx[i] the gradient by operand i, of that operand's shape; NULL, as which all begin, is
   none. What it records can be differentiated in turn. backward = NULL: there is no gradient.
   flux_custom_with also hands a context to both, which must live as long as gradients are taken. 1
   to 64 operands. */
typedef flux_tensor *(*flux_forward)(int n, flux_tensor *const *x, void *context);
typedef void (*flux_backward)(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g,
                              flux_tensor **dx, void *context);
FLUX_API flux_tensor *flux_custom_with(flux_forward forward, flux_backward backward, void *context,
                                       int n, flux_tensor *const *operands);
#define flux_custom(forward, backward, ...) \
    /* A function of tensors with a gradient of your own: flux_custom(forward, backward, x). */ \
    FLUX__MADE(flux_tensor *, flux_custom_with(forward, backward, NULL, FLUX__NARG(__VA_ARGS__),   \
                                               FLUX__TENSORS(__VA_ARGS__)))

#endif /* FLUX__API_CUSTOM_H */
