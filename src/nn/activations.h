#ifndef FLUX__NN_ACTIVATIONS_H
#define FLUX__NN_ACTIVATIONS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "initialisers.h"

/* ---------------------------------------------------------------------- nn/activations.h
   Activations that are not a row of graph/table.h: compositions of operations,
   which the schedule fuses into one pass. Those with a parameter (leakyrelu,
   elu, celu, softshrink, trelu, rrelu) take flux_act_opts.

   Invariant: a NaN in the input gives NaN. In a choice by flux_where, the branch
   that is not taken must not reach the gradient. where(x > 0, x, exp(x) - 1)
   would break this, as exp(x) overflows for large x, and 0 times infinity is
   NaN; so that branch is computed from min(x, 0). Half formats are computed in
   float32 and rounded once, integers become float32. Temporaries are hidden, so
   the caller sees only the result. */

FLUX__BEGIN_COLD

/* An activation's input as its formula takes it, float32 for half formats; NULL, with an error, if
   x cannot be an operand. */
static flux_tensor *flux__act_input(const char *call, flux_tensor *x) {
    return flux__check_operands(call, 1, &x) ? flux__widened(x) : NULL;
}

FLUX_DEF flux_tensor *flux_identity(flux_tensor *x) {
    return x ? x : (flux_tensor *)flux__null("identity", "x", x);
}

/* Functions of x alone: the name, and the value as an expression of x. */
#define FLUX__COMPOSED(name, value)                                                     \
    FLUX_DEF flux_tensor *flux_##name(flux_tensor *x) {                                 \
        int h = flux__hide(), given = x ? x->dtype : 0;                                 \
        x = flux__act_input(#name, x);                                                  \
        return flux__reveal(h, x ? flux__narrow(value, given) : NULL);                  \
    }

/* scale * (exp(by * x) - 1) for x <= 0, else gain * x. */
static flux_tensor *flux__exp_linear(flux_tensor *x, double scale, double by, double gain) {
    flux_tensor *low = flux_mul(flux_expm1(flux_mul(flux_min2(x, 0.0), by)), scale);
    return flux_where(flux_gt(x, 0.0), flux_mul(x, gain), low);
}

FLUX__COMPOSED(hardsigmoid, flux_clamp(flux_div(flux_add(x, 3.0), 6.0), 0, 1))
FLUX__COMPOSED(logsigmoid, flux_neg(flux_softplus(flux_neg(x))))
FLUX__COMPOSED(hardtanh, flux_clamp(x, -1, 1))
FLUX__COMPOSED(relu6, flux_clamp(x, 0, 6))
FLUX__COMPOSED(selu,
               flux__exp_linear(x, 1.0507009873554805 * 1.6732632423543772, 1, 1.0507009873554805))
FLUX__COMPOSED(gelu_tanh, flux__elementwise(FLUX__OP_GELU, x, NULL, NULL))
FLUX__COMPOSED(gelu_sigmoid, flux__elementwise(FLUX__OP_GELU, x, NULL, NULL))
FLUX__COMPOSED(gelu_erf,
               flux_mul(flux_mul(x, 0.5), flux_add(flux_erf(flux_mul(x, 0.7071067811865476)), 1.0)))
FLUX__COMPOSED(swish, flux_mul(x, flux_sigmoid(x)))
FLUX__COMPOSED(hardswish, flux_mul(x, flux_hardsigmoid(x)))
FLUX__COMPOSED(lisht, flux_mul(x, flux_tanh(x)))
FLUX__COMPOSED(logcosh, flux__elementwise(FLUX__OP_LOGCOSH, x, NULL, NULL))
FLUX__COMPOSED(mish, flux_mul(x, flux_tanh(flux_softplus(x))))
FLUX__COMPOSED(softsign, flux_div(x, flux_add(flux_abs(x), 1.0)))
FLUX__COMPOSED(tanhshrink, flux__elementwise(FLUX__OP_TANHSHRINK, x, NULL, NULL))

FLUX_DEF flux_tensor *flux_gelu(flux_tensor *x) { return flux_gelu_tanh(x); }

/* Those with a parameter: in `value`, a is .alpha or its default. */
#define FLUX__COMPOSED_WITH(name, fallback, good, value)                                           \
    FLUX_DEF flux_tensor *flux_##name##_with(flux_act_opts o) {                                    \
        double a = flux__given(o.alpha, o.marked, fallback);                                       \
        if (!flux__finite(a) || !(good))                                                           \
            return (flux_tensor *)flux__fail(#name ": .alpha is %g", a);                           \
        int h = flux__hide();                                                                      \
        flux_tensor *x = flux__act_input(#name, o.x);                                              \
        return flux__reveal(h, x ? flux__narrow(value, o.x->dtype) : NULL);                        \
    }                                                                                              \
    FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *x) {                                          \
        return flux_##name##_with(flux__act_of(x));                                                \
    }

static flux_act_opts flux__act_of(flux_tensor *x) {
    FLUX__ZEROED(flux_act_opts, o);
    o.x = x;
    return o;
}

FLUX__COMPOSED_WITH(leakyrelu, 0.01, true, flux_where(flux_gt(x, 0.0), x, flux_mul(x, a)))
FLUX__COMPOSED_WITH(elu, 1.0, true, flux__exp_linear(x, a, 1, 1))
FLUX__COMPOSED_WITH(celu, 1.0, a > 0, flux__exp_linear(x, a, 1 / a, 1))
FLUX__COMPOSED_WITH(softshrink, 0.5, a >= 0, flux_sub(x, flux_clamp(x, -a, a)))
FLUX__COMPOSED_WITH(trelu, 1.0, true, flux_where(flux_le(x, a), 0.0, x))

/* x where x > 0, else x times a slope drawn uniformly from .lo to .hi for each element. */
FLUX_DEF flux_tensor *flux_rrelu_with(flux_act_opts o) {
    /* options that were set without the macro: if .lo or .hi is not 0, both are given */
    bool made = o.marked || flux__is_given(o.lo, false) || flux__is_given(o.hi, false);
    double lo = flux__given(o.lo, made, 1.0 / 8), hi = flux__given(o.hi, made, 1.0 / 3);
    if (!flux__finite(lo) || !flux__finite(hi) || lo > hi)
        return (flux_tensor *)flux__fail("rrelu: .lo is %g and .hi is %g", lo, hi);
    int h = flux__hide();
    flux_tensor *x = flux__act_input("rrelu", o.x);
    if (!x) return flux__reveal(h, NULL);
    const flux_shape s = flux__dims(x);
    flux_tensor *u = flux_to_dtype(flux_to_tensor(x->device, flux__rand_by_rank(&s)),
                                   (flux_dtype)x->dtype);
    x = flux_where(flux_gt(x, 0.0), x, flux_mul(x, flux_add(flux_mul(u, hi - lo), lo)));
    return flux__reveal(h, flux__narrow(x, o.x->dtype));
}

FLUX_DEF flux_tensor *(flux_rrelu)(flux_tensor *x) { return flux_rrelu_with(flux__act_of(x)); }

/* a * sigmoid(b), where a and b are the first and second half of x along dim. */
FLUX_DEF flux_tensor *flux_glu(flux_tensor *x, int dim) {
    if (!flux__check_operands("glu", 1, &x)) return NULL;
    if (dim < 0 || dim >= x->ndim || x->dim[dim] % 2)
        return (flux_tensor *)flux__fail("glu: dim %d of %s can't be cut in two halves", dim,
                                         flux__describe(x).s);
    int h = flux__hide();
    int64_t n = x->dim[dim];
    flux_tensor *a = flux__widened(flux_slice(x, dim, 0, n / 2)),
                *b = flux__widened(flux_slice(x, dim, n / 2, n));
    return flux__reveal(h, flux__narrow(flux_mul(a, flux_sigmoid(b)), x->dtype));
}

FLUX__END_COLD

#endif /* FLUX__NN_ACTIVATIONS_H */
