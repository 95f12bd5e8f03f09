#ifndef FLUX__GRAPH_TABLE_H
#define FLUX__GRAPH_TABLE_H

/* ---------------------------------------------------------------------- graph/table.h
   The table of elementwise operations. Each row has the number of operands, the
   dtype rule, the call, the name for printing, the formula and the gradient of
   one operation; enum, public functions, names for printing and for formulas,
   operand macros (api/macros.h), kernels of every back end, gradients and the
   lists of tests are generated from it. The formula is C over a, b, c, compiled
   by the CPU for every instruction set (a may be a vector) and handed to the GPU
   compilers as a string.

   Invariant: a formula uses + - * / and unary -, FLUX__K(number) for a
   constant, comparisons only inside FLUX__IF(comparison, x, y), and those
   functions FLUX__F(exp), ... that each target defines: abs sqrt exp log log1p
   expm1 sin cos sinh cosh atan2 tanh erf floor ceil round pow mod fmax fmin
   sign sigmoid softplus gelu gelu_slope. The gradient is written with public operations over g, the
   gradient of the result y, by a, b and c in turn; 0 where there is none.

   Dtype rules: N numbers, result as the operands; F floating, integers become
   f32; C compares, result bool; B bool to bool; S first operand bool, the
   others and the result numbers (select).

   Calls: ROW, flux_NAME is the operation and follows from the row; OWN, flux_NAME
   is defined by hand; INNER, there is no public function. */

#define FLUX__ELEMENTWISE(X)                                                                                          \
/*  NAME        name        n dt call   shown         formula                                        gradient by a, b, c */ \
X(ADD,          add,        2, N, ROW,   "+",          a + b,                                         g, g, 0)                             \
X(SUB,          sub,        2, N, ROW,   "-",          a - b,                                         g, flux_neg(g), 0)                   \
X(MUL,          mul,        2, N, OWN,   "*",          a * b,                                         flux_mul(g, b), flux_mul(g, a), 0)   \
X(DIV,          div,        2, F, ROW,   "/",          a / b,                                         flux_div(g, b), flux_neg(flux_div(flux_mul(g, y), b)), 0) \
X(POW,          pow,        2, N, ROW,   "^",          FLUX__F(pow)(a, b),                            flux__grad_pow_a(g, a, b), flux__grad_pow_b(g, a, y), 0) \
X(MAX2,         max2,       2, N, ROW,   "max",        FLUX__F(fmax)(a, b),                           flux_where(flux_ge(a, b), g, 0.0), flux_where(flux_ge(a, b), 0.0, g), 0) \
X(MIN2,         min2,       2, N, ROW,   "min",        FLUX__F(fmin)(a, b),                           flux_where(flux_le(a, b), g, 0.0), flux_where(flux_le(a, b), 0.0, g), 0) \
X(ATAN2,        atan2,      2, F, ROW,   "atan2",       FLUX__F(atan2)(a, b),                           \
                    flux_div(flux_mul(g, b), flux_add(flux_square(a), flux_square(b))), \
                    flux_neg(flux_div(flux_mul(g, a), flux_add(flux_square(a), flux_square(b)))), 0) \
X(MOD,          mod,        2, N, ROW,   "mod",         FLUX__F(mod)(a, b),                            g, flux_neg(flux_mul(g, flux_floor(flux_div(a, b)))), 0) \
X(SUBMAX,       submax,     2, F, INNER, "submax",     FLUX__IF(a == b, FLUX__K(0), a - b),           g, flux_neg(g), 0) /* inf - inf is 0 */ \
X(EQ,           eq,         2, C, ROW,   "eq",         FLUX__IF(a == b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(NE,           ne,         2, C, ROW,   "ne",         FLUX__IF(a != b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(LT,           lt,         2, C, ROW,   "lt",         FLUX__IF(a < b, FLUX__K(1), FLUX__K(0)),       0, 0, 0)                             \
X(LE,           le,         2, C, ROW,   "le",         FLUX__IF(a <= b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(GT,           gt,         2, C, ROW,   "gt",         FLUX__IF(a > b, FLUX__K(1), FLUX__K(0)),       0, 0, 0)                             \
X(GE,           ge,         2, C, ROW,   "ge",         FLUX__IF(a >= b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(AND,          and,        2, B, ROW,   "and",        a * b,                                         0, 0, 0)                             \
X(OR,           or,         2, B, ROW,   "or",         FLUX__F(fmax)(a, b),                           0, 0, 0)                             \
X(NOT,          not,        1, B, ROW,   "not",        FLUX__K(1) - a,                                0, 0, 0)                             \
X(WHERE,        where,      3, S, ROW,   "where",      FLUX__IF(a != FLUX__K(0), b, c),               0, flux_where(a, g, 0.0), flux_where(a, 0.0, g)) \
X(NEG,          neg,        1, N, ROW,   "neg",        -a,                                            flux_neg(g), 0, 0)                   \
X(ABS,          abs,        1, N, ROW,   "abs",        FLUX__F(abs)(a),                               flux_mul(g, flux_sign(a)), 0, 0)     \
X(SIGN,         sign,       1, N, ROW,   "sign",       FLUX__F(sign)(a),                              0, 0, 0)                             \
X(SQUARE,       square,     1, N, ROW,   "square",     a * a,                                         flux_mul(g, flux_mul(a, 2)), 0, 0)   \
X(SQRT,         sqrt,       1, F, ROW,   "sqrt",       FLUX__F(sqrt)(a),                              flux_div(flux_mul(g, 0.5), y), 0, 0) \
X(RSQRT,        rsqrt,      1, F, ROW,   "rsqrt",      FLUX__K(1) / FLUX__F(sqrt)(a),                 flux_mul(flux_mul(g, -0.5), flux_mul(y, flux_square(y))), 0, 0) \
X(EXP,          exp,        1, F, ROW,   "exp",        FLUX__F(exp)(a),                               flux_mul(g, y), 0, 0)                \
X(LOG,          log,        1, F, ROW,   "log",        FLUX__F(log)(a),                               flux_div(g, a), 0, 0)                \
X(LOG1P,        log1p,      1, F, ROW,   "log1p",      FLUX__F(log1p)(a),                             flux_div(g, flux_add(a, 1)), 0, 0)   \
X(EXPM1,        expm1,      1, F, ROW,   "expm1",      FLUX__F(expm1)(a),                             flux_mul(g, flux_exp(a)), 0, 0)      \
X(SIN,          sin,        1, F, ROW,   "sin",        FLUX__F(sin)(a),                               flux_mul(g, flux_cos(a)), 0, 0)      \
X(COS,          cos,        1, F, ROW,   "cos",        FLUX__F(cos)(a),                               flux_neg(flux_mul(g, flux_sin(a))), 0, 0) \
X(TAN,          tan,        1, F, ROW,   "tan",         FLUX__F(sin)(a) / FLUX__F(cos)(a),             flux_mul(g, flux_add(flux_square(y), 1)), 0, 0) \
X(ASIN,         asin,       1, F, ROW,   "asin",        FLUX__F(atan2)(a, FLUX__F(sqrt)((FLUX__K(1) - a) * (FLUX__K(1) + a))), \
                    flux_mul(g, flux_rsqrt(flux_mul(flux_sub(1, a), flux_add(a, 1)))), 0, 0) \
X(ACOS,         acos,       1, F, ROW,   "acos",        FLUX__F(atan2)(FLUX__F(sqrt)((FLUX__K(1) - a) * (FLUX__K(1) + a)), a), \
                    flux_neg(flux_mul(g, flux_rsqrt(flux_mul(flux_sub(1, a), flux_add(a, 1))))), 0, 0) \
X(ATAN,         atan,       1, F, ROW,   "atan",        FLUX__F(atan2)(a, FLUX__K(1)),                 flux_div(g, flux_add(flux_square(a), 1)), 0, 0) \
X(SINH,         sinh,       1, F, ROW,   "sinh",        FLUX__F(sinh)(a),                              flux_mul(g, flux_cosh(a)), 0, 0) \
X(COSH,         cosh,       1, F, ROW,   "cosh",        FLUX__F(cosh)(a),                              flux_mul(g, flux_sinh(a)), 0, 0) \
X(TANH,         tanh,       1, F, ROW,   "tanh",       FLUX__F(tanh)(a),                              flux_mul(g, flux_sub(1, flux_square(y))), 0, 0) \
X(ERF,          erf,        1, F, ROW,   "erf",        FLUX__F(erf)(a), \
                    flux_mul(g, flux_mul(flux_exp(flux_neg(flux_square(a))), 1.1283791670955126)), 0, 0) \
X(FLOOR,        floor,      1, N, ROW,   "floor",      FLUX__F(floor)(a),                             0, 0, 0)                             \
X(CEIL,         ceil,       1, N, ROW,   "ceil",       FLUX__F(ceil)(a),                              0, 0, 0)                             \
X(ROUND,        round,      1, N, ROW,   "round",      FLUX__F(round)(a),                             0, 0, 0)                             \
X(SIGMOID,      sigmoid,    1, F, ROW,   "sigmoid",    FLUX__F(sigmoid)(a),                           flux_mul(g, flux_mul(y, flux_sub(1, y))), 0, 0) \
X(SOFTPLUS,     softplus,   1, F, ROW,   "softplus",   FLUX__F(softplus)(a),                          flux_mul(g, flux_sigmoid(a)), 0, 0)  \
/* near 0 the plain form of these two cancels: there a quotient of polynomials by Pade stands for it */ \
X(LOGCOSH,      logcosh,    1, F, OWN,   "logcosh",    FLUX__IF(FLUX__F(abs)(a) < FLUX__K(0.4), a * a * \
                    ((((FLUX__K(5.351847000252301e-5) * (a * a) + FLUX__K(0.005204142395019793)) * (a * a) + \
                        FLUX__K(0.07727004051624604)) * (a * a) + FLUX__K(0.3557443835022395)) * (a * a) + \
                        FLUX__K(0.5)) / \
                    ((((FLUX__K(0.0007855564903314813) * (a * a) + FLUX__K(0.02761369715225859)) * (a * a) + \
                        FLUX__K(0.2564548755332386)) * (a * a) + FLUX__K(0.8781554336711457)) * (a * a) + \
                        FLUX__K(1)), \
                    FLUX__F(abs)(a) + FLUX__F(softplus)(FLUX__K(-2) * FLUX__F(abs)(a)) - FLUX__K(0.6931471805599453)), flux_mul(g, flux_tanh(a)), 0, 0) \
X(TANHSHRINK,   tanhshrink, 1, F, OWN,   "tanhshrink", FLUX__IF(FLUX__F(abs)(a) < FLUX__K(0.64), a * (a * a) * \
                    (((FLUX__K(1.7619065238112858e-8) * (a * a) + FLUX__K(0.0002442002442002442)) * (a * a) + \
                        FLUX__K(0.02142857142857143)) * (a * a) + FLUX__K(0.3333333333333333)) / \
                    (((FLUX__K(0.0002553002553002553) * (a * a) + FLUX__K(0.02454212454212454)) * (a * a) + \
                        FLUX__K(0.4642857142857143)) * (a * a) + FLUX__K(1)), \
                    a - FLUX__F(tanh)(a)),                                       flux_mul(g, flux_square(flux_tanh(a))), 0, 0) \
X(RELU,         relu,       1, N, ROW,   "relu",       FLUX__IF(a <= FLUX__K(0), FLUX__K(0), a),      flux__elementwise(FLUX__OP_RELU_BACKWARD, y, g, NULL), 0, 0) \
X(RELU_BACKWARD, relu_backward, 2, N, INNER, "relu_backward", FLUX__IF(a > FLUX__K(0), b, FLUX__K(0)), 0, flux__elementwise(FLUX__OP_RELU_BACKWARD, a, g, NULL), 0) \
X(LERP,         lerp,       3, F, INNER, "lerp",       a + c * (b - a),                               flux_mul(g, flux_sub(1, c)), flux_mul(g, c), flux_mul(g, flux_sub(b, a))) \
X(GELU,         gelu,       1, F, OWN,   "gelu",       FLUX__F(gelu)(a),                              flux_mul(g, flux__elementwise(FLUX__OP_GELU_SLOPE, a, NULL, NULL)), 0, 0) \
X(GELU_SLOPE,   gelu_slope, 1, F, INNER, "gelu_slope", FLUX__F(gelu_slope)(a),                        flux__grad_gelu_slope(g, a), 0, 0)   \
X(FMA,          fma,        3, N, INNER, "fma",        a * b + c,                                     flux_mul(g, b), flux_mul(g, a), g)

/* For lists made from the rows: FLUX__PUBLIC_OF_1 is its arguments after a row's n and call if
   the row is a public operation of one operand, and nothing if not; FLUX__PUBLIC_OF_2 the same for
   two operands. */
#define FLUX__PUBLIC_OF_1(n, call, ...) FLUX__IS_##call(FLUX__ONE_OF_##n(__VA_ARGS__))
#define FLUX__PUBLIC_OF_2(n, call, ...) FLUX__IS_##call(FLUX__TWO_OF_##n(__VA_ARGS__))
#define FLUX__IS_ROW(...) __VA_ARGS__
#define FLUX__IS_OWN(...) __VA_ARGS__
#define FLUX__IS_INNER(...)
#define FLUX__ONE_OF_1(...) __VA_ARGS__
#define FLUX__ONE_OF_2(...)
#define FLUX__ONE_OF_3(...)
#define FLUX__TWO_OF_1(...)
#define FLUX__TWO_OF_2(...) __VA_ARGS__
#define FLUX__TWO_OF_3(...)

/* Gradients too long for a row are functions flux__grad_... in graph/gradients.h. */

/* FLUX__F(exp) pastes the name flux__exp_f64, flux__exp_x16, ..., FLUX__P(FMA) FLUX__FMA_x16, ...
   FLUX__KIND is the suffix: f64, i32, i64, or for f32 the number of lanes, x16, x8, x4 (x1 for a
   compiler without vectors). FLUX__T is the type of a stored element, FLUX__V the type in which
   formulas compute. */
#define FLUX__F_(name, kind) flux__##name##_##kind
#define FLUX__F__(name, kind) FLUX__F_(name, kind)
#define FLUX__F(name) FLUX__F__(name, FLUX__KIND)

#endif /* FLUX__GRAPH_TABLE_H */
