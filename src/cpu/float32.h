#ifndef FLUX__CPU_FLOAT32_H
#define FLUX__CPU_FLOAT32_H
#include "../base/platform.h"
#include "../graph/table.h"
#include "../graph/nodes.h" /* FLUX__OP_DIV, FLUX__OP_SUB */
#include "loops.h"
#include "float64.h" /* flux__mod_f64 */

/* ---------------------------------------------------------------------- cpu/float32.h
   The functions of float32 (exp, log, tanh, pow, ...) for any number of lanes,
   written once as macros over the vector vocabulary that cpu/vectors.h defines
   for each instruction set; random numbers; and two loops for several lines of
   a kernel at once, Adam's step and softmax-like rows.

   Invariant: coefficients are minimax fits on the interval that stands beside
   each, within 2^-27 or better. Functions keep NaN, infinities and the sign of
   zero; rare arguments (denormals of log, far angles) are looked for once per
   vector, which costs less than a choice in each lane. Random numbers are
   Philox 4x32-10: element i is word i mod 4 of counter i div 4, and between
   words and numbers stand only sums, products and a square root, rounded one by
   one. The joined loops use the same sums and products as the lines alone, so
   they give the same bits.

   Rejected: Adam line by line, which takes three times as long. */

FLUX__BEGIN_NUMBERS

/* Polynomials. FLUX__POLY(3, x, c) is c[0] + c[1] x + c[2] x^2 by fused multiply-adds; _PLAIN
   by separate products and sums, _D in double. */
#define FLUX__POLY(n, x, c) FLUX__POLY##n(FLUX__FUSED, x, c, 0)
#define FLUX__POLY_PLAIN(n, x, c) FLUX__POLY##n(FLUX__PLAIN, x, c, 0)
#define FLUX__POLY_D(n, x, c) FLUX__POLY##n(FLUX__DOUBLES, x, c, 0)
#define FLUX__FUSED(y, x, c) FLUX__FMA(y, x, FLUX__K(c))
#define FLUX__PLAIN(y, x, c) ((y) * (x) + FLUX__K(c))
#define FLUX__DOUBLES(y, x, c) FLUX__FMAD(y, x, FLUX__KD(c))
#define FLUX__FUSED_(c) FLUX__K(c)
#define FLUX__PLAIN_(c) FLUX__K(c)
#define FLUX__DOUBLES_(c) FLUX__KD(c)
#define FLUX__POLY1(step, x, c, i) step##_((c)[i])
#define FLUX__POLY2(step, x, c, i) step(FLUX__POLY1(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY3(step, x, c, i) step(FLUX__POLY2(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY4(step, x, c, i) step(FLUX__POLY3(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY5(step, x, c, i) step(FLUX__POLY4(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY6(step, x, c, i) step(FLUX__POLY5(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY7(step, x, c, i) step(FLUX__POLY6(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY8(step, x, c, i) step(FLUX__POLY7(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY9(step, x, c, i) step(FLUX__POLY8(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY10(step, x, c, i) step(FLUX__POLY9(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY11(step, x, c, i) step(FLUX__POLY10(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY12(step, x, c, i) step(FLUX__POLY11(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY13(step, x, c, i) step(FLUX__POLY12(step, x, c, (i) + 1), x, (c)[i])

/* Coefficients are minimax fits (those of pow: Chebyshev) on the interval that stands beside
   each, within 2^-27 or better. */
static const float flux__exp_c[] = {      /* e^r, |r| < 0.35 */
    1.0f, 1.0f, 0.49999997f, 0.166665256f, 0.041667711f, 0.00836828537f, 0.00138460414f };
static const float flux__log_c[] = {      /* (log(1+f) - f + f^2/2) / f^3, 0.707 < 1+f < 1.414 */
    0.333333313f, -0.25000003f, 0.200011224f, -0.16667816f, 0.142361864f, -0.124151088f,
    0.117893502f, -0.116004936f, 0.0686802641f };
/* Piecewise polynomials of a function, in t = x - start of a piece. A piece's number is in the
   bits of 1 + x: pieces begin where 1 + x is 1 (number 12, from x = 0 on), 1.25 (13), 1.5 (14),
   1.75 (15), 2 (0), 2.5 (1), ... 4 (4), 5 (5), ... A row holds the coefficients of all pieces
   for one power of t. Those of piece 12 are of f(x)/x less 1 (erf: less 2), and its first is a
   large number: see FLUX__F(curve). */
static const float flux__tanh_c[7][16] = {
    { 0.761594176f, 0.905148268f, 0.964027584f, 0.986614287f, 0.995054781f, 0.999329329f, 0.999909222f, 0.999987721f,
      0.999998331f, 1, 1, 1, 3e38f, 0.244918659f, 0.462117165f, 0.635148942f },
    { 0.419973701f, 0.180706114f, 0.0706506446f, 0.0265928432f, 0.00986487418f, 0.00134008483f, 0.00018107488f, 2.4301251e-05f,
      3.40407792e-06f, 0, 0, 0, 0, 0.940015197f, 0.78644675f, 0.596586943f },
    { -0.31985116f, -0.163564295f, -0.0681069121f, -0.0262458287f, -0.00980345812f, -0.00133242842f, -0.00017740413f, -2.23608768e-05f,
      -3.61173988e-06f, 0, 0, 0, -1.14828288e-06f, -0.230238169f, -0.363396198f, -0.378956974f },
    { 0.103726454f, 0.0878727138f, 0.0420978218f, 0.0170833617f, 0.00640851352f, 0.000862237881f, 0.000106227475f, 8.71722477e-06f,
      2.63062293e-06f, 0, 0, 0, -0.333268404f, -0.256807476f, -0.094742924f, 0.042289257f },
    { 0.0267235991f, -0.0255728271f, -0.0178906955f, -0.00823795889f, -0.00298437849f, -0.000383557519f, -3.42503117e-05f, 4.80057133e-06f,
      -1.32680873e-06f, 0, 0, 0, -0.00120408915f, 0.138793096f, 0.168965891f, 0.0967992023f },
    { -0.0432129279f, -0.000206671291f, 0.00493113929f, 0.00310606859f, 0.000939140213f, 0.000107260115f, 3.23468925e-07f, -7.50610479e-06f,
      4.00714839e-07f, 0, 0, 0, 0.14317748f, 0.074926421f, -0.0451842956f, -0.056537535f },
    { 0.0156413335f, 0.00243221014f, -0.000642349652f, -0.000775107881f, -0.000150176129f, -1.37197321e-05f, 2.51940787e-06f, 2.66417373e-06f,
      -5.2534304e-08f, 0, 0, 0, -0.0371257886f, -0.0742615312f, -0.0130135911f, -0.00160342129f } };
static const float flux__erf_c[7][16] = {
    { 0.842700779f, 0.966105163f, 0.995322287f, 0.999593019f, 0.999977887f, 1, 1, 1,
      1, 1, 1, 1, 3e38f, 0.276326388f, 0.520499885f, 0.711155653f },
    { 0.415107667f, 0.118930146f, 0.020665871f, 0.00217979378f, 0.000139190292f, 0, 0, 0,
      0, 0, 0, 0, -0.871620834f, 1.06001437f, 0.878781676f, 0.642928839f },
    { -0.415095001f, -0.178411067f, -0.0413191468f, -0.00546791498f, -0.000408575375f, 0, 0, 0,
      0, 0, 0, 0, -5.4394161e-07f, -0.265011847f, -0.439359993f, -0.482124388f },
    { 0.138103455f, 0.139045104f, 0.0481563918f, 0.0084821675f, 0.00070679927f, 0, 0, 0,
      0, 0, 0, 0, -0.376093209f, -0.309040785f, -0.146928728f, 0.0257298928f },
    { 0.0712404773f, -0.0466111973f, -0.0344515182f, -0.00894996431f, -0.00073926308f, 0, 0, 0,
      0, 0, 0, 0, -0.000626304129f, 0.125923619f, 0.186491832f, 0.158198789f },
    { -0.077010639f, -0.00836305786f, 0.0139999418f, 0.00628179312f, 0.000429762615f, 0, 0, 0,
      0, 0, 0, 0, 0.117961414f, 0.084803462f, -0.00522770174f, -0.0799925104f },
    { 0.0201855823f, 0.00951745547f, -0.00231762137f, -0.0022550507f, -0.000105825442f, 0, 0, 0,
      0, 0, 0, 0, -0.0190888904f, -0.0524474606f, -0.0298493933f, 0.0156883169f } };
/* 2^k log(1+e^x) for x = r - k ln 2, |r| < 0.35, in powers of r: k = 0 is piece 0, k = 1 piece
   15, k = 2 piece 14, ... k = 15 piece 1, which is e^r. */
static const float flux__softplus_c[7][16] = {
    { 0.693147182f, 1, 0.999969482f, 0.999938965f, 0.99987793f, 0.999755919f, 0.999512017f, 0.999024689f,
      0.998051941f, 0.996113956f, 0.992267966f, 0.98469305f, 0.969993949f, 0.942264259f, 0.892574191f, 0.810930192f },
    { 0.5f, 1, 0.999939024f, 0.999877989f, 0.999755979f, 0.999512017f, 0.999024451f, 0.99805069f,
      0.996108949f, 0.992248058f, 0.984615386f, 0.969696939f, 0.941176414f, 0.888888836f, 0.800000012f, 0.666666687f },
    { 0.124999866f, 0.49999997f, 0.499939054f, 0.499878258f, 0.49975723f, 0.499513358f, 0.49902615f, 0.49805367f,
      0.496116757f, 0.492279381f, 0.484731883f, 0.470157832f, 0.442906588f, 0.39506346f, 0.320000947f, 0.222223729f },
    { -2.47777715e-10f, 0.166665256f, 0.166622996f, 0.166582629f, 0.166500926f, 0.166338459f, 0.166014031f, 0.16536878f,
      0.164084107f, 0.161547929f, 0.156606004f, 0.147222042f, 0.130269572f, 0.102426127f, 0.0639993176f, 0.0246896353f },
    { -0.00520583708f, 0.041667711f, 0.041644793f, 0.0416210443f, 0.0415642783f, 0.0414830893f, 0.0413209908f, 0.0410028249f,
      0.0403785221f, 0.0391097777f, 0.0367536657f, 0.0322442241f, 0.0246485006f, 0.0133840898f, 0.00105056691f, -0.00619716058f },
    { 2.34547803e-09f, 0.00836828537f, 0.00836971402f, 0.00835965294f, 0.00834552385f, 0.00831251033f, 0.00824693497f, 0.00810796581f,
      0.00784973986f, 0.00735052675f, 0.00641296385f, 0.00474594673f, 0.00214309897f, -0.000987704727f, -0.00293347286f, -0.00202591787f },
    { 0.000331393268f, 0.00138460414f, 0.00139678211f, 0.00140940642f, 0.0014802292f, 0.00146940316f, 0.00144875038f, 0.00138338038f,
      0.00123366993f, 0.0011542429f, 0.000625633809f, 0.000414769602f, -0.000365845743f, -0.000735076086f, -0.000563535665f, 0.000273939077f } };
static const float flux__sin_c[] = {      /* (sin(r)/r - 1) / r^2 in r^2, |r| < pi/4 */
    -0.166666672f, 0.00833336543f, -0.000198463487f, 2.75806656e-06f };
static const float flux__cos_c[] = {      /* (cos(r) - 1 + r^2/2) / r^4 in r^2 */
    0.0416666679f, -0.00138882315f, 2.45242463e-05f };
static const double flux__log2_c[] = {    /* log2(1+f) / f, 0.707 < 1+f < 1.414 */
    1.4426950408708787, -0.7213475209631692, 0.4808983601767402, -0.3606736553138975,
    0.2885373943295742, -0.24045433701134736, 0.20617283396742422, -0.18027102681134222,
    0.15878354491828683, -0.1434903553934768, 0.14495062987640134, -0.14144815266231964,
    0.07553804942107636 };
static const double flux__exp2_c[] = {    /* 2^x, |x| < 0.5 */
    1.0, 0.6931472067028326, 0.24022650922288757, 0.05550327226670302, 0.009618056678524637,
    0.0013400428177615838, 0.0001546144469856913 };

static const double flux__atan_c[] = {    /* atan(r) / r in r^2, 0 <= r <= 1, by Chebyshev */
    0.99999999999029188, -0.33333332995051296, 0.19999980353689645, -0.14285262492495704,
    0.11105656189675474, -0.090511372514089999, 0.075022313667423055, -0.060385484491948541,
    0.043902868689978239, -0.026271574631780946, 0.011602323441057973, -0.0032614861114606489,
    0.00043016480682746657 };

#define FLUX__VECTOR_BASICS                                                                          \
FLUX__FN(at)(const void *p) {                                                                        \
    FLUX__V v;                                                                                       \
    memcpy(&v, p, sizeof v);                                                                         \
    return v;                                                                                        \
}                                                                                                    \
FLUX__FN(abs)(FLUX__V x) { return FLUX__FLOAT(FLUX__BITS(x) & 0x7fffffffu); }                        \
/* y with the sign of x, where y has that sign or is a zero that lost it */                          \
FLUX__FN(like)(FLUX__V y, FLUX__V x) {                                                               \
    return FLUX__FLOAT(FLUX__BITS(y) | (FLUX__BITS(x) & 0x80000000u));                               \
}                                                                                                    \
/* Of MIN and MAX the second operand is the result if one is NaN */                                  \
FLUX__FN(clamp)(FLUX__V x, float lo, float hi) {                                                     \
    return FLUX__MAX(FLUX__K(lo), FLUX__MIN(FLUX__K(hi), x));                                        \
}                                                                                                    \
FLUX__FN(fmax)(FLUX__V a, FLUX__V b) { return FLUX__IF(a != a, a, FLUX__MAX(a, b)); }                \
FLUX__FN(fmin)(FLUX__V a, FLUX__V b) { return FLUX__IF(a != a, a, FLUX__MIN(a, b)); }                \
FLUX__FN(sqrt)(FLUX__V x) { return FLUX__SQRT(x); }                                                  \
FLUX__FN(sign)(FLUX__V x) {                                                                          \
    return FLUX__IF(x > 0.0f, FLUX__K(1), FLUX__IF(x < 0.0f, FLUX__K(-1), x));                       \
}                                                                                                    \
FLUX__FN(round)(FLUX__V x) {                                                                         \
    FLUX__V a = FLUX__F(abs)(x), r = (a + 8388608.0f) - 8388608.0f;                                  \
    return FLUX__F(like)(FLUX__IF(a < 8388608.0f, r, a), x);                                         \
}                                                                                                    \
FLUX__FN(floor)(FLUX__V x) {                                                                         \
    FLUX__V r = FLUX__F(round)(x);                                                                   \
    return r - FLUX__IF(r > x, FLUX__K(1), FLUX__K(0));                                              \
}                                                                                                    \
FLUX__FN(ceil)(FLUX__V x) { return -FLUX__F(floor)(-x); }

#define FLUX__VECTOR_EXP                                                                             \
/* x = n ln 2 + r with |r| < 0.35: gives r, and n + MAGIC in *t */                                   \
FLUX__FN(part)(FLUX__V x, FLUX__V *t) {                                                              \
    *t = FLUX__FMA(x, FLUX__K(1.44269504f), FLUX__K(FLUX__MAGIC));                                   \
    FLUX__V n = *t - FLUX__MAGIC, r = FLUX__FMA(n, FLUX__K(-0.693145752f), x);                       \
    return FLUX__FMA(n, FLUX__K(-1.42860677e-6f), r);                                                \
}                                                                                                    \
/* e^r - 1 */                                                                                        \
FLUX__FN(exp_rest)(FLUX__V r) { return FLUX__FMA(r * r, FLUX__POLY(5, r, flux__exp_c + 2), r); }     \
/* 2^n for t = n + MAGIC, -127 < n < 128 */                                                          \
FLUX__FN(power)(FLUX__V t) { return FLUX__FLOAT((FLUX__BITS(t) << 23) + 0x3f800000u); }              \
/* x 2^n in two steps, so that n may lead to a denormal or past the largest number */                \
FLUX__FN(scale)(FLUX__V x, FLUX__V t) {                                                              \
    FLUX__VU n = FLUX__BITS(t) - 0x4b400000u, h = (FLUX__VU)((FLUX__VI)n >> 1);                      \
    return x * FLUX__F(power)(FLUX__FLOAT(h)) * FLUX__F(power)(FLUX__FLOAT(n - h));                  \
}                                                                                                    \
/* the same for n <= 0 */                                                                            \
FLUX__FN(scale_down)(FLUX__V x, FLUX__V t) {                                                         \
    return x * FLUX__FLOAT((FLUX__BITS(t) << 23) + 0x5f800000u) * 5.42101086e-20f;                   \
}                                                                                                    \
/* c[1] + c[2] t + ..., of piece i */                                                                \
FLUX__FN(piece)(FLUX__V t, FLUX__VU i, const float (*c)[16]) {                                       \
    FLUX__V y = FLUX__FMA(FLUX__LOOKUP(c[6], i), t, FLUX__LOOKUP(c[5], i));                          \
    y = FLUX__FMA(FLUX__FMA(y, t, FLUX__LOOKUP(c[4], i)), t, FLUX__LOOKUP(c[3], i));                 \
    return FLUX__FMA(FLUX__FMA(y, t, FLUX__LOOKUP(c[2], i)), t, FLUX__LOOKUP(c[1], i));              \
}                                                                                                    \
FLUX__FN(exp)(FLUX__V x) {                                                                           \
    FLUX__V t, r = FLUX__F(part)(FLUX__F(clamp)(x, -104, 89), &t);                                   \
    return FLUX__SCALE(FLUX__POLY(7, r, flux__exp_c), t);                                            \
}                                                                                                    \
/* the same of x <= 0 */                                                                             \
FLUX__FN(exp_below)(FLUX__V x) {                                                                     \
    FLUX__V t, r = FLUX__F(part)(FLUX__MAX(FLUX__K(-104), x), &t);                                   \
    return FLUX__SCALE_DOWN(FLUX__POLY(7, r, flux__exp_c), t);                                       \
}                                                                                                    \
FLUX__FN(expm1)(FLUX__V x) {                                                                         \
    FLUX__V t, s = FLUX__F(exp_rest)(FLUX__F(part)(FLUX__F(clamp)(x, -18, 89), &t));                 \
    FLUX__V p = FLUX__F(power)(t - 1.0f), y = FLUX__FMA(s, p, p - 0.5f);                             \
    return FLUX__F(like)(FLUX__IF(t == FLUX__MAGIC, s, y + y), x);                                   \
}                                                                                                    \
/* e^|x|/2, which overflows only where cosh does */                                                  \
FLUX__FN(half_exp)(FLUX__V x) {                                                                      \
    FLUX__V t, r = FLUX__F(part)(FLUX__MIN(FLUX__K(90), FLUX__F(abs)(x)), &t);                       \
    return FLUX__F(scale)(FLUX__POLY(7, r, flux__exp_c), t - 1.0f);                                  \
}                                                                                                    \
FLUX__FN(cosh)(FLUX__V x) {                                                                          \
    FLUX__V e = FLUX__F(half_exp)(x);                                                                \
    return e + FLUX__K(0.25) / e;                                                                    \
}                                                                                                    \
FLUX__FN(sinh)(FLUX__V x) {                                                                          \
    FLUX__V e = FLUX__F(half_exp)(x), a = FLUX__F(abs)(x), m = FLUX__F(expm1)(FLUX__MIN(FLUX__K(1), a)); \
    FLUX__V y = FLUX__IF(a < 1.0f, (m + m / (m + 1.0f)) * 0.5f, e - FLUX__K(0.25) / e);              \
    return FLUX__F(like)(y, x);                                                                      \
}                                                                                                    \
/* 1/(1+e^-x). With -|x| = n ln 2 + r and w = 2^n it is, for x >= 0 and s = e^r - 1, 1/(1+w+ws),     \
   and for x < 0 and s = e^-r - 1, w/(1+w+s). What the denominator's last sum and the division       \
   round away is added back. All intermediate values but d are negative, so that none has to         \
   change its sign */                                                                                \
FLUX__FN(sigmoid)(FLUX__V x) {                                                                       \
    FLUX__VU sign = FLUX__BITS(x) & 0x80000000u;                                                     \
    FLUX__V t, r = FLUX__F(part)(FLUX__MAX(FLUX__K(-104), FLUX__FLOAT(FLUX__BITS(x) | 0x80000000u)), &t); \
    FLUX__V s = FLUX__F(exp_rest)(FLUX__FLOAT(FLUX__BITS(r) ^ sign)), one = FLUX__K(1), w = FLUX__SCALE_DOWN(-one, t); \
    FLUX__V u = FLUX__FMA(FLUX__IF(sign == 0u, w, -one), s, w), d = one - u, q = -one / d;           \
    q = FLUX__FMA(q, FLUX__FMA(q, (one - d) - u, FLUX__FMA(q, d, one)), q);                          \
    return q * FLUX__IF(sign == 0u, -one, w);                                                        \
}                                                                                                    \
/* e^-|y|, where gelu is x/(1+e^-y): y is not exact enough for the corrections of sigmoid to         \
   matter */                                                                                         \
FLUX__FN(gelu_power)(FLUX__V x) {                                                                    \
    FLUX__V y = x * FLUX__FMA(x * x, FLUX__K(0.0713548163f), FLUX__K(1.59576912f));                  \
    return FLUX__F(exp_below)(FLUX__FLOAT(FLUX__BITS(y) | 0x80000000u));                             \
}                                                                                                    \
FLUX__FN(gelu)(FLUX__V x) {                                                                          \
    FLUX__V e = FLUX__F(gelu_power)(x);                                                              \
    return x * FLUX__IF(x > 0.0f, FLUX__K(1), e) / (e + 1.0f);                                       \
}                                                                                                    \
FLUX__FN(gelu_slope)(FLUX__V x) {                                                                    \
    FLUX__V c = FLUX__F(clamp)(x, -10, 10), e = FLUX__F(gelu_power)(c), r = FLUX__K(1) / (e + 1.0f); \
    FLUX__V q = FLUX__FMA(c * c, FLUX__K(0.214064449f), FLUX__K(1.59576912f)) * c;                   \
    return FLUX__FMA(q * r, e * r, FLUX__IF(x > 0.0f, r, e * r));                                    \
}                                                                                                    \
/* An odd function of x by the pieces of c; a is |x|, capped where the function is 1; whole is a     \
   (tanh) or 2a (erf). The constant of the piece is the smaller of c[0] and whole: in the first      \
   piece c[0] is large, and whole is taken, so that f(a)/a is not rounded where it is near 1 or      \
   more */                                                                                           \
FLUX__FN(curve)(FLUX__V x, FLUX__V a, FLUX__V whole, const float (*c)[16]) {                         \
    FLUX__V u = a + 1.0f, y;                                                                         \
    FLUX__VU i = FLUX__BITS(u) >> 21;                                                                \
    FLUX__V t = a - (FLUX__FLOAT(i << 21) - 1.0f);                                                   \
    y = FLUX__F(piece)(t, i, c);                                                                     \
    return FLUX__F(like)(FLUX__FMA(y, t, FLUX__MIN(whole, FLUX__LOOKUP(c[0], i))), x);               \
}                                                                                                    \
FLUX__FN(tanh)(FLUX__V x) {                                                                          \
    FLUX__V a = FLUX__MIN(FLUX__K(10), FLUX__F(abs)(x));                                             \
    return FLUX__F(curve)(x, a, a, flux__tanh_c);                                                    \
}                                                                                                    \
FLUX__FN(erf)(FLUX__V x) {                                                                           \
    FLUX__V a = FLUX__MIN(FLUX__K(4), FLUX__F(abs)(x));                                              \
    return FLUX__F(curve)(x, a, a + a, flux__erf_c);                                                 \
}

#define FLUX__VECTOR_LOG                                                                             \
/* x = 2^e m with 0.707 < m < 1.414: gives m */                                                      \
FLUX__FN(split)(FLUX__V x, FLUX__V *e) {                                                             \
    FLUX__VU i = FLUX__BITS(x) - 0x3f3504f3u;                                                        \
    *e = FLUX__TOFLOAT((FLUX__VI)i >> 23);                                                           \
    return FLUX__FLOAT((i & 0x7fffffu) + 0x3f3504f3u);                                               \
}                                                                                                    \
/* log(1+f) + e ln 2 + c, for a small c */                                                           \
FLUX__FN(log_sum)(FLUX__V f, FLUX__V e, FLUX__V c) {                                                 \
    FLUX__V z = f * f, y = FLUX__FMA(e, FLUX__K(-2.12194440e-4f), c);                                \
    y = FLUX__FMA(z * f, FLUX__POLY(9, f, flux__log_c), y);                                          \
    return FLUX__FMA(e, FLUX__K(0.693359375f), f + FLUX__FMA(z, FLUX__K(-0.5f), y));                 \
}                                                                                                    \
/* Few vectors have denormals or numbers without a logarithm: one test per vector costs less         \
   than a choice in each lane */                                                                     \
FLUX__FN(log)(FLUX__V x) {                                                                           \
    FLUX__VI plain = (FLUX__VI)((x >= FLT_MIN) & (x < FLUX__K(INFINITY)));                           \
    FLUX__V shift = FLUX__K(0), m = x, e, y;                                                         \
    if (!FLUX__ALL(plain))                                                                           \
        shift = FLUX__IF(x < FLT_MIN, FLUX__K(23), shift), m = FLUX__IF(x < FLT_MIN, x * 8388608.0f, x); \
    m = FLUX__F(split)(m, &e);                                                                       \
    y = FLUX__F(log_sum)(m - 1.0f, e - shift, FLUX__K(0));                                           \
    if (!FLUX__ALL(plain)) {                                                                         \
        y = FLUX__IF(x < FLUX__K(INFINITY), y, x);                                                   \
        y = FLUX__IF(x > 0.0f, y, FLUX__IF(x == 0.0f, FLUX__K(-INFINITY), FLUX__K(NAN)));            \
    }                                                                                                \
    return y;                                                                                        \
}                                                                                                    \
/* log(1+x) for -1 < x < inf: what 1+x rounds away is added again as c */                            \
FLUX__FN(log_of_1p)(FLUX__V x) {                                                                     \
    FLUX__V u = x + 1.0f, e, m = FLUX__F(split)(u, &e);                                              \
    FLUX__V c = FLUX__IF(e == 0.0f, FLUX__K(0), (x - (u - 1.0f)) / u);                               \
    return FLUX__F(log_sum)(FLUX__IF(e == 0.0f, x, m - 1.0f), e, c);                                 \
}                                                                                                    \
FLUX__FN(log1p)(FLUX__V x) {                                                                         \
    FLUX__V y = FLUX__F(like)(FLUX__F(log_of_1p)(x), x);                                             \
    y = FLUX__IF(x < FLUX__K(INFINITY), y, x);                                                       \
    return FLUX__IF(x > -1.0f, y, FLUX__IF(x == -1.0f, FLUX__K(-INFINITY), FLUX__K(NAN)));           \
}                                                                                                    \
/* max(x, 0) + log(1+e^-|x|): the logarithm is 2^-k times a piece; from k = 15 on it is y -          \
   y^2/2 of y = e^-|x| */                                                                            \
FLUX__FN(softplus)(FLUX__V x) {                                                                      \
    FLUX__V t, a = FLUX__FLOAT(FLUX__BITS(x) | 0x80000000u), r = FLUX__F(part)(FLUX__MAX(FLUX__K(-104), a), &t); \
    FLUX__VU i = FLUX__BITS(FLUX__MAX(t, FLUX__K(FLUX__MAGIC - 15)));                                \
    FLUX__V y = FLUX__FMA(FLUX__F(piece)(r, i, flux__softplus_c), r, FLUX__LOOKUP(flux__softplus_c[0], i)); \
    y = FLUX__SCALE_DOWN(y, t);                                                                      \
    y = FLUX__FMA(y, FLUX__IF(t < FLUX__MAGIC - 14, y * -0.5f, FLUX__K(0)), y);                      \
    return FLUX__IF(x > 0.0f, x, FLUX__K(0)) + y;                                                    \
}

/* Angles of 1e5 and more (and NaN) among n floats, one by one in double. */
static FLUX__NOINLINE void flux__far_angles(void *y, const void *x, int n, double (*f)(double)) {
    const float *in = (const float *)x;
    float *out = (float *)y;
    for (int i = 0; i < n; i++)
        if (!(fabsf(in[i]) < 1e5f)) out[i] = (float)f((double)in[i]);
}

/* mod of n floats, one by one: only the division of whole numbers that fmod does is exact */
static FLUX__NOINLINE void flux__mods(void *y, const void *a, const void *b, int n) {
    float *out = (float *)y;
    for (int i = 0; i < n; i++)
        out[i] = (float)flux__mod_f64((double)((const float *)a)[i], (double)((const float *)b)[i]);
}

#define FLUX__VECTOR_TRIG                                                                            \
/* x - n pi/2 as a sum of two floats: n < 2^17 times the 33 bits of the first part of pi/2 is        \
   exact in double */                                                                                \
FLUX__FN(turn)(FLUX__V x, FLUX__V n, FLUX__V *low) {                                                 \
    FLUX__VD d[2], k[2];                                                                             \
    FLUX__F(widen)(x, d), FLUX__F(widen)(n, k);                                                      \
    for (int h = 0; h < FLUX__HALVES; h++)                                                           \
        d[h] = d[h] - k[h] * 1.57079632673412561417 - k[h] * 6.07710050650619224932e-11;             \
    FLUX__V r = FLUX__F(narrow)(d);                                                                  \
    FLUX__F(widen)(r, k);                                                                            \
    for (int h = 0; h < FLUX__HALVES; h++) d[h] = d[h] - k[h];                                       \
    *low = FLUX__F(narrow)(d);                                                                       \
    return r;                                                                                        \
}                                                                                                    \
/* sin(x + quarter pi/2); f is the same function in double, for far angles */                        \
FLUX__FN(trig)(FLUX__V x, uint32_t quarter, double (*f)(double)) {                                   \
    FLUX__V t = FLUX__FMA(x, FLUX__K(0.636619772f), FLUX__K(FLUX__MAGIC));                           \
    FLUX__V l, r = FLUX__F(turn)(x, t - FLUX__MAGIC, &l), z = r * r;                                 \
    FLUX__V s = r + FLUX__FMA(z * r, FLUX__POLY(4, z, flux__sin_c), l);                              \
    FLUX__V w = FLUX__FMA(z, FLUX__K(-0.5f), FLUX__K(1));                                            \
    FLUX__V c = FLUX__FMA(z, FLUX__K(-0.5f), 1.0f - w) - r * l;                                      \
    c = w + FLUX__FMA(z * z, FLUX__POLY(3, z, flux__cos_c), c);                                      \
    FLUX__VU j = FLUX__BITS(t) + quarter;                                                            \
    FLUX__V y = FLUX__FLOAT(FLUX__BITS(FLUX__IF((j & 1u) != 0u, c, s)) ^ ((j & 2u) << 30));          \
    FLUX__VI near = (FLUX__VI)(FLUX__F(abs)(x) < 1e5f);                                              \
    if (!FLUX__ALL(near)) {                                                                          \
        FLUX__V in = x, out = y;                                                                     \
        flux__far_angles(&out, &in, (int)(sizeof in / sizeof(float)), f);                            \
        y = out;                                                                                     \
    }                                                                                                \
    return y;                                                                                        \
}                                                                                                    \
FLUX__FN(sin)(FLUX__V x) { return FLUX__IF(x == 0.0f, x, FLUX__F(trig)(x, 0, sin)); }                \
FLUX__FN(cos)(FLUX__V x) { return FLUX__F(trig)(x, 1, cos); }

#define FLUX__VECTOR_POW                                                                             \
/* log2 of x >= 0; for 0 and inf a number that is very large in magnitude */                         \
static FLUX__INLINE FLUX__VD FLUX__F(log2)(FLUX__VD x) {                                             \
    const uint64_t root = UINT64_C(0x3fe6a09e667f3bcd), one = UINT64_C(0x3ff0000000000000);          \
    FLUX__VUL i = FLUX__DBITS(x) + (one - root);                                                     \
    FLUX__VD e = FLUX__DOUBLE((i >> 52) | UINT64_C(0x4330000000000000)) - (4503599627370496.0 + 1023); \
    FLUX__VD f = FLUX__DOUBLE((i & UINT64_C(0xfffffffffffff)) + root) - 1.0;                         \
    FLUX__VD y = e + f * FLUX__POLY_D(13, f, flux__log2_c);                                          \
    return FLUX__IFD(x + x == x, y * 1e60, y);                                                       \
}                                                                                                    \
static FLUX__INLINE FLUX__VD FLUX__F(exp2)(FLUX__VD x) {                                             \
    FLUX__VD y = FLUX__IFD(x > 200.0, FLUX__KD(200), x);                                             \
    y = FLUX__IFD(y < -200.0, FLUX__KD(-200), y);                                                    \
    FLUX__VD t = y + FLUX__MAGIC_D, f = y - (t - FLUX__MAGIC_D);                                     \
    return FLUX__DOUBLE(FLUX__DBITS(FLUX__POLY_D(7, f, flux__exp2_c)) + (FLUX__DBITS(t) << 52));     \
}                                                                                                    \
/* the angle of the point (x, y), in double: atan(r) of the quotient r <= 1 of |x| and |y|, from the \
   nearer axis */                                                                                    \
FLUX__FN(atan2)(FLUX__V y, FLUX__V x) {                                                              \
    FLUX__VD u[2], v[2], p[2];                                                                       \
    FLUX__F(widen)(x, u), FLUX__F(widen)(FLUX__F(abs)(y), v);                                        \
    for (int h = 0; h < FLUX__HALVES; h++) {                                                         \
        FLUX__VD a = FLUX__DOUBLE(FLUX__DBITS(u[h]) & INT64_MAX), b = v[h];                          \
        a = FLUX__IFD(a > 1e39, FLUX__KD(1e200), a), b = FLUX__IFD(b > 1e39, FLUX__KD(1e200), b);    \
        FLUX__VD r = FLUX__IFD(a < b, a, b) / FLUX__IFD(a + b == 0.0, FLUX__KD(1), FLUX__IFD(a < b, b, a));\
        r = r * FLUX__POLY_D(13, r * r, flux__atan_c);                                               \
        r = FLUX__IFD(a < b, 1.5707963267948966 - r, r);                                             \
        p[h] = FLUX__IFD((FLUX__DBITS(u[h]) >> 63) != 0u, 3.1415926535897932 - r, r);                \
    }                                                                                                \
    return FLUX__IF((x != x) | (y != y), x + y, FLUX__F(like)(FLUX__F(narrow)(p), y));               \
}                                                                                                    \
FLUX__FN(mod)(FLUX__V a, FLUX__V b) {                                                                \
    FLUX__V y = a;                                                                                   \
    flux__mods(&y, &a, &b, (int)(sizeof y / sizeof(float)));                                         \
    return y;                                                                                        \
}                                                                                                    \
/* |a|^b = 2^(b log2 |a|) in double; then the sign, and C's special values */                        \
FLUX__FN(pow)(FLUX__V a, FLUX__V b) {                                                                \
    FLUX__V x = FLUX__F(abs)(a), y = FLUX__F(clamp)(b, -3e38f, 3e38f), half = y * 0.5f, r, s;        \
    FLUX__VD d[2], of[2], by[2];                                                                     \
    FLUX__F(widen)(x, of), FLUX__F(widen)(y, by);                                                    \
    for (int h = 0; h < FLUX__HALVES; h++) d[h] = FLUX__F(exp2)(by[h] * FLUX__F(log2)(of[h]));       \
    r = FLUX__F(narrow)(d);                                                                          \
    s = FLUX__IF(FLUX__F(round)(half) != half, -r, r);             /* a < 0: is b odd? whole? */     \
    s = FLUX__IF(FLUX__F(round)(y) == y, s, FLUX__IF(x + x == x, r, FLUX__K(NAN)));                  \
    r = FLUX__IF((FLUX__BITS(a) & 0x80000000u) != 0u, s, r);                                         \
    r = FLUX__IF((a != a) | (b != b), a + b, r);                                                     \
    return FLUX__IF((a == 1.0f) | (b == 0.0f), FLUX__K(1), r);                                       \
}

/* Random numbers by Philox 4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw 2011). Element i is
   word i mod 4 of the block at counter (i div 4, stream): no state, any order, any number of
   threads. Normal numbers follow by Box and Muller from the words 0 and 1, 2 and 3. Between the
   words and the numbers stand only sums, products and a square root, rounded one by one. */
#define FLUX__RANDOM_BLOCK 64             /* elements made at once, from 16 counters */
static const float flux__normal_c[] = {   /* as flux__log_c, for FLUX__POLY_PLAIN */
    0.333333403f, -0.250007987f, 0.200008228f, -0.166237861f, 0.142079964f, -0.131613865f,
    0.127297074f, -0.0759919658f };

#define FLUX__VECTOR_RANDOM                                                                          \
FLUX__FN(uniform)(FLUX__VU w) { return FLUX__TOFLOAT((FLUX__VI)(w >> 8)) * 5.9604644775390625e-8f; } \
/* sqrt(-2 log u), u = (w div 2 + 1) / 2^31 */                                                       \
FLUX__FN(radius)(FLUX__VU w) {                                                                       \
    FLUX__V e, u = (FLUX__TOFLOAT((FLUX__VI)(w >> 1)) + 1.0f) * 4.65661287e-10f;                     \
    FLUX__V f = FLUX__F(split)(u, &e) - 1.0f, z = f * f;                                             \
    FLUX__V y = z * -0.5f + z * f * FLUX__POLY_PLAIN(8, f, flux__normal_c);                          \
    return FLUX__SQRT((e * 0.693147182f + (f + y)) * -2.0f);                                         \
}                                                                                                    \
/* sine of the angle w/2^32 of a full circle plus `quarters` quarters: with one it is the cosine */  \
FLUX__FN(circle)(FLUX__VU w, uint32_t quarters) {                                                    \
    FLUX__VU j = (w + 0x20000000u) >> 30, k = j + quarters;                                          \
    FLUX__V r = FLUX__TOFLOAT((FLUX__VI)(w - (j << 30))) * 1.46291807e-9f, z = r * r;                \
    FLUX__V s = r + z * r * FLUX__POLY_PLAIN(4, z, flux__sin_c);                                     \
    FLUX__V c = 1.0f + (z * -0.5f + z * z * FLUX__POLY_PLAIN(3, z, flux__cos_c));                    \
    return FLUX__FLOAT(FLUX__BITS(FLUX__IF((k & 1u) != 0u, c, s)) ^ ((k & 2u) << 30));               \
}                                                                                                    \
/* Philox: words 0 and 2 of the counters in *e, words 1 and 3 in *o; a counter has one lane of       \
   64 bits */                                                                                        \
static FLUX__INLINE void FLUX__F(words)(const FLUX__VUL *key, FLUX__VUL c0, FLUX__VUL c2, FLUX__VUL *e, FLUX__VUL *o) { \
    FLUX__VUL c1 = c0 >> 32, c3 = c2 >> 32, k0 = key[0], k1 = key[1];                                \
    const uint64_t low = 0xffffffff;                                                                 \
    for (int round = 0; round < 10; round++, k0 += key[2], k1 += key[3]) {                           \
        FLUX__VUL p = FLUX__MUL32(c0, key[4]), q = FLUX__MUL32(c2, key[5]);                          \
        c0 = (q >> 32) ^ c1 ^ k0, c2 = (p >> 32) ^ c3 ^ k1, c1 = q, c3 = p;                          \
    }                                                                                                \
    *e = (c0 & low) | (c2 << 32), *o = (c1 & low) | (c3 << 32);                                      \
}                                                                                                    \
static void FLUX__F(random)(uint64_t key, uint64_t stream, uint64_t counter, int64_t blocks,         \
                            float *out, int kind) {                                                  \
    enum { many = sizeof(FLUX__VUL) / sizeof(uint64_t) };          /* counters at once */            \
    static const uint64_t iota[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };                                      \
    const uint64_t low = 0xffffffff;                                                                 \
    FLUX__VUL first, zero = { 0 }, u[2], v[2], keys[6];                                              \
    uint64_t pair[2][many];                                                                          \
    memcpy(&first, iota, sizeof first);                                                              \
    keys[0] = zero + key, keys[1] = zero + (key >> 32);                                              \
    keys[2] = FLUX__HELD(zero + 0x9E3779B9u), keys[3] = FLUX__HELD(zero + 0xBB67AE85u);              \
    keys[4] = FLUX__HELD(zero + 0xD2511F53u), keys[5] = FLUX__HELD(zero + 0xCD9E8D57u);              \
    for (blocks *= FLUX__RANDOM_BLOCK / 4 / many; blocks > 0; blocks--, counter += many) {           \
        FLUX__F(words)(keys, first + counter, zero + stream, &u[0], &u[1]);                          \
        for (size_t at = 0; at < sizeof first; at += sizeof(FLUX__V)) {                              \
            FLUX__VU a, b;                                                                           \
            FLUX__V x, y;                                                                            \
            memcpy(&a, (char *)u + at, sizeof a), memcpy(&b, (char *)(u + 1) + at, sizeof b);        \
            if (kind) x = FLUX__F(radius)(a), y = x * FLUX__F(circle)(b, 0), x = x * FLUX__F(circle)(b, 1); \
            else x = FLUX__F(uniform)(a), y = FLUX__F(uniform)(b);                                   \
            memcpy((char *)v + at, &x, sizeof x), memcpy((char *)(v + 1) + at, &y, sizeof y);        \
        }                                                                                            \
        u[0] = (v[0] & low) | (v[1] << 32), u[1] = (v[0] >> 32) | (v[1] & (low << 32));              \
        memcpy(pair, u, sizeof pair);                                                                \
        for (int l = 0; l < many; l++, out += 4)                                                     \
            memcpy(out, &pair[0][l], 8), memcpy(out + 2, &pair[1][l], 8);                            \
    }                                                                                                \
}

/* Adam's step has seven lines for an element, AdamW's nine, and either moves 28 bytes: to pass over
   them line by line takes three times as long. The sums and products are those of the lines, so the
   bits are the same. What comes next is prefetched while square roots are computed. */
#define FLUX__ADAM_AHEAD 1024
#define FLUX__VECTOR_ADAM                                                                            \
static void FLUX__F(adam)(int64_t n, float *to_m, float *to_v, float *to_w, const float *const *in,  \
                          const float *by, bool decays) {                                            \
    const float *pg = in[0], *pm = in[1], *pv = in[2], *pw = in[3];                                  \
    for (int64_t i = 0; i < n; i += FLUX__LANES) {                                                   \
        FLUX__V g = FLUX__F(at)(pg + i), m = FLUX__F(at)(pm + i), v = FLUX__F(at)(pv + i), w;        \
        if (by[4] != 1) g = g * by[4];                                                               \
        m = m + by[0] * (g - m), v = v + by[1] * (g * g - v), w = m / (FLUX__SQRT(v) + by[2]);       \
        if (pw) {                                                                                    \
            const FLUX__V x = FLUX__F(at)(pw + i);                                                   \
            if (decays) w = x * by[6] + w * by[5];                                                   \
            w = w * by[3] + x;                                                                       \
            FLUX__PREFETCH_LATER(pw + i + FLUX__ADAM_AHEAD)                                          \
        }                                                                                            \
        FLUX__PREFETCH_LATER(pm + i + FLUX__ADAM_AHEAD) FLUX__PREFETCH_LATER(pv + i + FLUX__ADAM_AHEAD) \
        memcpy(to_m + i, &m, sizeof m), memcpy(to_v + i, &v, sizeof v), memcpy(to_w + i, &w, sizeof w); \
    }                                                                                                \
}

/* Softmax-like rows (flux__rows_run). The last vector of a row begins earlier, and overlaps the
   one before: so no result may lie where an operand does. The rows after these are prefetched
   while d and e are computed. One loop computes the exponentials of some rows and the divisions
   of others, which fill each other's gaps. */
#define FLUX__ROW_LOOP(r, from, ...)                                                                 \
    for (int64_t row = 0, o = 0; row < r->count; row++, o += n) {                                    \
        const FLUX__V less = FLUX__K(r->less[row]), by = FLUX__K(r->each[row]);                      \
        for (int64_t i = 0; i < n; i += FLUX__LANES) {                                               \
            const int64_t at = o + (i + FLUX__LANES <= n ? i : n - FLUX__LANES);                     \
            FLUX__V v = FLUX__F(at)(from + at);                                                      \
            __VA_ARGS__                                                                              \
        }                                                                                            \
        (void)less, (void)by;                                                                        \
    }
#define FLUX__ROW_PARTS(map, ...)                                                                    \
    FLUX__ROW_LOOP(r, x, FLUX__V w; v = v - less, w = map; FLUX__PREFETCH_LATER(x + ahead + at)      \
                   if (d) memcpy(d + at, &v, sizeof v); memcpy(e + at, &w, sizeof w); __VA_ARGS__)
#define FLUX__ROW_LAST(value) FLUX__ROW_LOOP(last, from, v = value; memcpy(y + at, &v, sizeof v);)
#define FLUX__VECTOR_ROWS                                                                            \
static void FLUX__F(rows)(const flux__rows_run *r, const flux__rows_run *last) {                     \
    const int64_t n = r ? r->n : last->n, ahead = r ? r->count * n : 0;                              \
    const float *x = r ? r->x : NULL, *from = !last ? NULL : last->last == FLUX__OP_DIV ? last->e : last->x; \
    float *d = r ? r->d : NULL, *e = r ? r->e : NULL, *y = last ? last->y : NULL;                    \
    if (r && r->squares) FLUX__ROW_PARTS(v * v,)                                                     \
    else if (r) FLUX__ROW_PARTS(FLUX__F(exp_below)(v), if (y) w = FLUX__F(at)(from + at) / FLUX__K(last->each[row]), memcpy(y + at, &w, sizeof w);) \
    else if (last->last == FLUX__OP_DIV) FLUX__ROW_LAST(v / by)                                      \
    else if (last->last == FLUX__OP_SUB) FLUX__ROW_LAST(FLUX__IF(v != less, v - less, FLUX__K(0)) - by) \
    else FLUX__ROW_LAST((v - less) * by)                                                             \
}

/* Chains of operations (flux__chain_run), four vectors of a column at a time, which stay in
   registers from the first step to the last. The last vector of a column begins earlier, and
   overlaps the one before, with which it is loaded before either is stored; if less than four are
   left, the last one is computed more often. */
#define FLUX__CHAIN_AHEAD 256             /* so many elements ahead is prefetched */
#define FLUX__CHAIN_EACH(what) what(0) what(1) what(2) what(3)
#define FLUX__CHAIN_BEGIN(k)                                                                         \
    const int64_t i##k = i + (k < some ? k : some - 1) * FLUX__LANES, o##k = i##k < last ? i##k : last; \
    FLUX__V v##k = FLUX__F(at)(x + o##k);                                                            \
    FLUX__PREFETCH_WRITE(y + o##k + FLUX__CHAIN_AHEAD)
#define FLUX__CHAIN_OTHER(k)                                                                         \
    w##k = FLUX__F(at)(p + o##k);                                                                    \
    FLUX__PREFETCH(p + o##k + FLUX__CHAIN_AHEAD)
#define FLUX__CHAIN_SWAP(k) { const FLUX__V a = v##k; v##k = w##k, w##k = a; }
#define FLUX__CHAIN_END(k) memcpy(y + o##k, &v##k, sizeof v##k);
#define FLUX__CHAIN_ONE(formula, v, w) { const FLUX__V a = v, b = w; v = formula; (void)b; }
#define FLUX__CHAIN_CASE(NAME, formula)                                                              \
    case FLUX__OP_##NAME:                                                                            \
        FLUX__CHAIN_ONE(formula, v0, w0) FLUX__CHAIN_ONE(formula, v1, w1)                            \
        FLUX__CHAIN_ONE(formula, v2, w2) FLUX__CHAIN_ONE(formula, v3, w3)                            \
        break;
/* as flux__bf16_of */
#define FLUX__CHAIN_ROUNDED(v) {                                                                     \
        const FLUX__VU u = FLUX__BITS(v), quiet = (u & 0) + 0x7fc00000,                              \
                       near = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;                             \
        v = FLUX__FLOAT(FLUX__IF(v != v, quiet, near));                                              \
    }
#define FLUX__VECTOR_CHAIN                                                                           \
static void FLUX__F(chain)(const flux__chain_run *r) {                                               \
    const int64_t last = r->rows - FLUX__LANES;                                                      \
    for (int64_t j = 0; j < r->columns; j++) {                                                       \
        const float *x = r->x + j * r->x_next;                                                       \
        float *y = r->y + j * r->y_next;                                                             \
        int64_t left = (r->rows + FLUX__LANES - 1) / FLUX__LANES;                                    \
        for (int64_t i = 0, some; left > 0; left -= some, i += some * FLUX__LANES) {                 \
            some = left == 5 ? 3 : left < 4 ? left : 4;                                              \
            FLUX__CHAIN_EACH(FLUX__CHAIN_BEGIN)                                                      \
            for (const flux__chain_step *s = r->step; s < r->step + r->steps; s++) {                 \
                const float *p = s->at + j * s->next;                                                \
                FLUX__V w0, w1, w2, w3;                                                              \
                if (s->along) { FLUX__CHAIN_EACH(FLUX__CHAIN_OTHER) }                                \
                else w0 = w1 = w2 = w3 = FLUX__K(*p);                                                \
                if (s->first) { FLUX__CHAIN_EACH(FLUX__CHAIN_SWAP) }                                 \
                switch (s->op) {                                                                     \
                FLUX__ELEMENTWISE(FLUX__CHAIN_ROW)                                                   \
                case FLUX__CHAIN_ROUND:                                                              \
                    FLUX__CHAIN_ROUNDED(v0) FLUX__CHAIN_ROUNDED(v1)                                  \
                    FLUX__CHAIN_ROUNDED(v2) FLUX__CHAIN_ROUNDED(v3)                                  \
                    break;                                                                           \
                }                                                                                    \
            }                                                                                        \
            FLUX__CHAIN_EACH(FLUX__CHAIN_END)                                                        \
        }                                                                                            \
    }                                                                                                \
}

#define FLUX__VECTOR_SECTION                                                                         \
FLUX__VECTOR_BASICS                                                                                  \
FLUX__VECTOR_EXP                                                                                     \
FLUX__VECTOR_LOG                                                                                     \
FLUX__VECTOR_TRIG                                                                                    \
FLUX__VECTOR_POW                                                                                     \
FLUX__VECTOR_RANDOM                                                                                  \
FLUX__VECTOR_ADAM                                                                                    \
FLUX__LOOPS                                                                                          \
FLUX__VECTOR_HREDUCES                                                                                \
FLUX__VECTOR_WIDE                                                                                    \
FLUX__VECTOR_POOL                                                                                    \
FLUX__VECTOR_ROWS                                                                                    \
FLUX__VECTOR_CHAIN                                                                                   \
FLUX__ATTEND_ROWS(float, FLUX__JOIN_QUADS)                                                           \
static const flux__section FLUX__F(section) = {                                                      \
    FLUX__F(loops), FLUX__F(run), FLUX__F(hreduces), FLUX__F(random), FLUX__F(adam), FLUX__F(rows), FLUX__F(chain), FLUX__F(hmaxnum), \
    FLUX__F(add_rows), FLUX__F(add_wide), FLUX__F(pool), FLUX__F(unweave), FLUX__F(weaves),          \
    FLUX__F(attend_exp), FLUX__F(attend_back) };

FLUX__END_NUMBERS

#endif /* FLUX__CPU_FLOAT32_H */
