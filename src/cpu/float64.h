#ifndef FLUX__CPU_FLOAT64_H
#define FLUX__CPU_FLOAT64_H
#include "../base/platform.h"
#include "loops.h"

/* ---------------------------------------------------------------------- cpu/float64.h
   The loops of float64, by libm, and of the integers: the functions that
   formulas use in these compute types, and the instances of the loops and
   reductions. flux__formula_value computes one row of the table on doubles, for
   numbers that are no tensors.

   Invariant: integers are computed twice as wide where there is such a type,
   and cut back: so they wrap, and nothing overflows. 64-bit integers need
   __int128 for that. An integer to a negative power is the whole part of the
   result. F rows of the table have no integer loops. fmax and fmin give NaN if
   either operand is NaN. */

FLUX__BEGIN_NUMBERS

#define FLUX__LOOP FLUX__SCALAR_LOOP
#define FLUX__IF(cond, x, y) ((cond) ? (x) : (y))
#define FLUX__K(v) ((FLUX__V)(v))
#define FLUX__FLOATING_f64(yes, no) yes
#define FLUX__FLOATING_i32(yes, no) no
#define FLUX__FLOATING_i64(yes, no) no
typedef double flux__t_f64, flux__v_f64;
typedef int32_t flux__t_i32;
typedef int64_t flux__v_i32, flux__t_i64;
#if defined(__SIZEOF_INT128__)
__extension__ typedef __int128 flux__v_i64;
#else
typedef int64_t flux__v_i64;
#endif

#define FLUX__LIBM(name, call) \
    static FLUX__INLINE double flux__##name##_f64(double x) { return call(x); }
FLUX__LIBM(abs, fabs)
FLUX__LIBM(sqrt, sqrt)
FLUX__LIBM(exp, exp)
FLUX__LIBM(log, log)
FLUX__LIBM(log1p, log1p)
FLUX__LIBM(expm1, expm1)
FLUX__LIBM(sin, sin)
FLUX__LIBM(cos, cos)
FLUX__LIBM(sinh, sinh)
FLUX__LIBM(cosh, cosh)
FLUX__LIBM(tanh, tanh)
FLUX__LIBM(erf, erf)
FLUX__LIBM(floor, floor)
FLUX__LIBM(ceil, ceil)
FLUX__LIBM(round, rint)
static FLUX__INLINE double flux__pow_f64(double x, double y) { return pow(x, y); }
static FLUX__INLINE double flux__atan2_f64(double y, double x) { return atan2(y, x); }
/* a - b floor(a/b), exact but for the sum at the end; a zero has the sign of b */
static FLUX__INLINE double flux__mod_f64(double a, double b) {
    double r = fmod(a, b);
    return r == 0 ? copysign(r, b) : (r < 0) != (b < 0) ? r + b : r;
}
static FLUX__INLINE double flux__fmax_f64(double a, double b) { return FLUX__MAX_OF(a, b); }
static FLUX__INLINE double flux__fmin_f64(double a, double b) { return FLUX__MIN_OF(a, b); }
static FLUX__INLINE double flux__sign_f64(double x) {
    const double above = x > 0 ? 1 : x;   /* in two steps gcc makes it without a jump */
    return x < 0 ? -1 : above;
}
static FLUX__INLINE double flux__sigmoid_f64(double x) {
    double e = exp(-fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}
static FLUX__INLINE double flux__gelu_f64(double x) {
    return x * flux__sigmoid_f64(x * (1.5957691216057308 + 0.07135481627260025 * x * x));
}
static FLUX__INLINE double flux__gelu_slope_f64(double x) {
    double c = x > 10 ? 10 : x < -10 ? -10 : x,
           e = exp(-fabs(c * (1.5957691216057308 + 0.07135481627260025 * c * c))), r = 1 / (1 + e);
    return (x > 0 ? r : e * r) + c * (1.5957691216057308 + 3 * 0.07135481627260025 * c * c) * r *
           (e * r);
}
static FLUX__INLINE double flux__softplus_f64(double x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

/* a^b, which wraps; for a negative b the whole part of the result */
static int64_t flux__whole_power(int64_t a, int64_t b) {
    uint64_t x = (uint64_t)a, y = 1;
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (; b; b >>= 1, x *= x)
        if (b & 1) y *= x;
    return (int64_t)y;
}

/* a modulo b with the sign of b; 0 for b = 0, and for b = -1, where C's % may overflow */
static int64_t flux__whole_mod(int64_t a, int64_t b) {
    int64_t r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

#define FLUX__INTEGER_MATH                                                                           \
FLUX__FN(abs)(FLUX__V x) { return x < 0 ? -x : x; }                                                  \
FLUX__FN(sign)(FLUX__V x) { return (x > 0) - (x < 0); }                                              \
FLUX__FN(floor)(FLUX__V x) { return x; }                                                             \
FLUX__FN(ceil)(FLUX__V x) { return x; }                                                              \
FLUX__FN(round)(FLUX__V x) { return x; }                                                             \
FLUX__FN(fmax)(FLUX__V a, FLUX__V b) { return a > b ? a : b; }                                       \
FLUX__FN(fmin)(FLUX__V a, FLUX__V b) { return a < b ? a : b; }                                       \
FLUX__FN(pow)(FLUX__V a, FLUX__V b) { return flux__whole_power((int64_t)a, (int64_t)b); }            \
FLUX__FN(mod)(FLUX__V a, FLUX__V b) { return flux__whole_mod((int64_t)a, (int64_t)b); }

#define FLUX__KIND f64
FLUX__LOOPS
/* The value of one row of graph/table.h for the operands v[0 ... 2]. */
static double flux__formula_value(int op, const double *v) {
    double y;
    flux__loops_f64[op](1, &y, &v[0], &v[1], &v[2], 0, 0, 0);
    return y;
}
FLUX__SCALAR_HREDUCES(double, double, -HUGE_VAL, HUGE_VAL, )
FLUX__ATTEND_ROWS(double, FLUX__JOIN_LANES)
#undef FLUX__KIND
#define FLUX__KIND i32
FLUX__INTEGER_MATH
FLUX__LOOPS
FLUX__SCALAR_HREDUCES(int32_t, uint32_t, INT32_MIN, INT32_MAX, FLUX__FAST)    /* used for bools, too */
#undef FLUX__KIND
#define FLUX__KIND i64
FLUX__INTEGER_MATH
FLUX__LOOPS
FLUX__SCALAR_HREDUCES(int64_t, uint64_t, INT64_MIN, INT64_MAX, )
#undef FLUX__KIND
#undef FLUX__LOOP
#undef FLUX__IF
#undef FLUX__K

FLUX__END_NUMBERS

#endif /* FLUX__CPU_FLOAT64_H */
