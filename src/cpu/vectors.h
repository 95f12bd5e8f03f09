#ifndef FLUX__CPU_VECTORS_H
#define FLUX__CPU_VECTORS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../graph/table.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "loops.h"
#include "float64.h" /* flux__loops_f64 */
#include "float32.h" /* FLUX__VECTOR_SECTION */

/* ---------------------------------------------------------------------- cpu/vectors.h
   The instruction sets of float32: one lane for compilers without vectors, four
   lanes (SSE2, NEON), eight (AVX2 with FMA), sixteen (AVX-512). Each defines
   the vocabulary (FLUX__FMA, FLUX__SQRT, ...) and instantiates cpu/loops.h and
   cpu/float32.h. flux__section_now gives the table of the processor at hand,
   flux__loop_for the loop of an operation, flux__run_rows runs whole rows:
   softmax, log-softmax, normalisation.

   Invariant: vectors are the compiler's own types; instructions that these have
   no operator for are assembler text, with operands in both orders for
   -masm=intel. AVX2 and AVX-512 give the same bits; without fused multiply-adds
   the last bits differ. Half formats are converted by the processor where it
   can. A loop for vectors gets whole vectors: flux__loop_run fills up the rest.
   A row whose sum is NaN, as one with NaN or Inf may have, is computed again by
   the plain steps.

   Rejected: the compilers' headers of intrinsics, which take longer to read
   than a whole instruction set here. */

FLUX__BEGIN_NUMBERS

#if !FLUX__VECTORS
/* One lane: compilers without vectors. */
typedef float flux__t_x1, flux__v_x1;
typedef double flux__vd_x1;
typedef int32_t flux__vi_x1;
typedef uint32_t flux__vu_x1;
typedef int64_t flux__vl_x1;
typedef uint64_t flux__vul_x1;
#define FLUX__SAME_BITS(name, to, from)                                                              \
static FLUX__INLINE to name(from x) {                                                                \
    to y;                                                                                            \
    memcpy(&y, &x, sizeof y);                                                                        \
    return y;                                                                                        \
}
FLUX__SAME_BITS(flux__bits, uint32_t, float)
FLUX__SAME_BITS(flux__of_bits, float, uint32_t)
FLUX__SAME_BITS(flux__bits64, uint64_t, double)
FLUX__SAME_BITS(flux__of_bits64, double, uint64_t)
static FLUX__INLINE void flux__widen_x1(float x, double *halves) { halves[0] = (double)x; }
static FLUX__INLINE float flux__narrow_x1(const double *x) { return (float)*x; }
#  define FLUX__LOOP FLUX__SCALAR_LOOP
#  define FLUX__HALVES 1
#  define FLUX__K(v) ((float)(v))
#  define FLUX__KD(v) ((double)(v))
#  define FLUX__BITS(x) flux__bits(x)
#  define FLUX__FLOAT(i) flux__of_bits(i)
#  define FLUX__DBITS(x) flux__bits64(x)
#  define FLUX__DOUBLE(i) flux__of_bits64(i)
#  define FLUX__TOFLOAT(i) ((float)(i))
#  define FLUX__IF(cond, x, y) ((cond) ? (x) : (y))
#  define FLUX__IFD(cond, x, y) ((cond) ? (x) : (y))
#  define FLUX__FLOATING_x1(yes, no) yes
#  define FLUX__LANES_x1 1
#  define FLUX__SQRT_x1(x) sqrtf(x)
#  define FLUX__FMA_x1(a, b, c) ((a) * (b) + (c))
#  define FLUX__FMAD_x1(a, b, c) ((a) * (b) + (c))
#  define FLUX__MIN_x1(a, b) ((a) < (b) ? (a) : (b))
#  define FLUX__MAX_x1(a, b) ((a) > (b) ? (a) : (b))
#  define FLUX__SCALE_x1(x, t) flux__scale_x1(x, t)
#  define FLUX__SCALE_DOWN_x1(x, t) flux__scale_down_x1(x, t)
#  define FLUX__LOOKUP_x1(table, i) (table)[(i) & 15]
#  define FLUX__ALL_x1(mask) (mask)
#  define FLUX__HELD_x1(x) (x)
#  define FLUX__MUL32_x1(x, m) (((x) & 0xffffffff) * (m))
static FLUX__INLINE float flux__seconds_x1(const float *x) { return *x; }
static FLUX__INLINE void flux__weave_x1(float *to, float a, float b) { to[0] = a, to[1] = b; }
#  define FLUX__KIND x1
FLUX__VECTOR_SECTION

#else
#  define FLUX__LOOP FLUX__VECTOR_LOOP
#  define FLUX__HALVES 2
#  define FLUX__K(v) ((float)(v) - FLUX__F(zero))
#  define FLUX__KD(v) ((double)(v) - FLUX__F(zerod))
#  define FLUX__BITS(x) ((FLUX__VU)(x))
#  define FLUX__FLOAT(i) ((FLUX__V)(i))
#  define FLUX__DBITS(x) ((FLUX__VUL)(x))
#  define FLUX__DOUBLE(i) ((FLUX__VD)(i))
#  define FLUX__TOFLOAT(i) __builtin_convertvector(i, FLUX__V)
#  define FLUX__IF(cond, x, y) \
    ((FLUX__V)FLUX__F(pick)((FLUX__VI)(cond), (FLUX__VI)(x), (FLUX__VI)(y)))
#  define FLUX__IFD(cond, x, y) \
    ((FLUX__VD)FLUX__F(pickd)((FLUX__VL)(cond), (FLUX__VL)(x), (FLUX__VL)(y)))
#  define FLUX__VECTOR __attribute__((vector_size(4 * FLUX__LANES)))
#define FLUX__VECTOR_TYPES                                                                           \
typedef float FLUX__V FLUX__VECTOR;                                                                  \
typedef int32_t FLUX__VI FLUX__VECTOR;                                                               \
typedef uint32_t FLUX__VU FLUX__VECTOR;                                                              \
typedef double FLUX__VD FLUX__VECTOR;                                                                \
typedef int64_t FLUX__VL FLUX__VECTOR;                                                               \
typedef uint64_t FLUX__VUL FLUX__VECTOR;                                                             \
typedef uint16_t FLUX__F(halves) __attribute__((vector_size(2 * FLUX__LANES)));                      \
static const FLUX__V FLUX__F(zero) = { 0 };                                                          \
static const FLUX__VD FLUX__F(zerod) = { 0 };                                                        \
static FLUX__INLINE FLUX__VI FLUX__F(pick)(FLUX__VI m, FLUX__VI x, FLUX__VI y) {                     \
    return (x & m) | (y & ~m);                                                                       \
}                                                                                                    \
static FLUX__INLINE FLUX__VL FLUX__F(pickd)(FLUX__VL m, FLUX__VL x, FLUX__VL y) {                    \
    return (x & m) | (y & ~m);                                                                       \
}
#define FLUX__VECTOR_WIDTHS                                                                          \
static FLUX__INLINE void FLUX__F(widen)(FLUX__V x, FLUX__VD *halves) {                               \
    halves[0] = FLUX__P(LOW)(x), halves[1] = FLUX__P(HIGH)(x);                                       \
}                                                                                                    \
FLUX__FN(narrow)(const FLUX__VD *x) { return FLUX__P(JOIN)(x[0], x[1]); }                            \
/* every second of the numbers from x on, but nothing behind the last; the numbers of a and b in turn */ \
FLUX__FN(seconds)(const float *x) {                                                                  \
    FLUX__V a, b;                                                                                    \
    memcpy(&a, x, sizeof a), memcpy(&b, x + FLUX__LANES - 1, sizeof b);                              \
    FLUX__SHUFFLE(a, a, b, FLUX__VI, FLUX__P(SECONDS))                                               \
    return a;                                                                                        \
}                                                                                                    \
static FLUX__INLINE void FLUX__F(weave)(float *to, FLUX__V a, FLUX__V b) {                           \
    FLUX__V low, high;                                                                               \
    FLUX__SHUFFLE(low, a, b, FLUX__VI, FLUX__P(WEAVE_LOW))                                           \
    FLUX__SHUFFLE(high, a, b, FLUX__VI, FLUX__P(WEAVE_HIGH))                                         \
    memcpy(to, &low, sizeof low), memcpy(to + FLUX__LANES, &high, sizeof high);                      \
}                                                                                                    \
FLUX__VECTOR_RUN

/* Instructions for which the vector types have no operator, as assembler text: the compilers'
   headers of intrinsics take longer to read than a whole instruction set here. */
#define FLUX__INSTRUCTION(type, name, args, text, in, ...)                                           \
static FLUX__INLINE type FLUX__F(name) args {                                                        \
    type y;                                                                                          \
    __asm__(text : "=" in(y) : __VA_ARGS__);                                                         \
    return y;                                                                                        \
}
/* clang can be told to fuse a product and a sum, and then may choose the operands itself */
#if defined(__clang__)
#  define FLUX__FUSED_STEP(type, name, text, ...)                                                    \
static FLUX__INLINE type FLUX__F(name)(type a, type b, type c) {                                     \
    _Pragma("STDC FP_CONTRACT ON")                                                                   \
    return a * b + c;                                                                                \
}
#else
#  define FLUX__FUSED_STEP(type, name, text, ...)                                                    \
FLUX__INSTRUCTION(type, name, (type a, type b, type c), text, __VA_ARGS__)
#endif

/* Loads and stores of half formats: `convert` makes h, a vector of 16-bit numbers, the floats
   v, or the reverse. */
#define FLUX__LOAD16(name, convert)                                                                  \
static void name(int64_t n, void *y, const void *x) {                                                \
    float *out = (float *)y, tail[FLUX__LANES] = { 0 };                                              \
    const uint16_t *in = (const uint16_t *)x;                                                        \
    FLUX__F(halves) h;                                                                               \
    FLUX__V v;                                                                                       \
    for (; n >= FLUX__LANES; n -= FLUX__LANES, in += FLUX__LANES, out += FLUX__LANES) {              \
        memcpy(&h, in, sizeof h);                                                                    \
        convert;                                                                                     \
        memcpy(out, &v, sizeof v);                                                                   \
    }                                                                                                \
    if (n <= 0) return;                                                                              \
    memcpy(tail, in, (size_t)n * 2), memcpy(&h, tail, sizeof h);                                     \
    convert;                                                                                         \
    memcpy(tail, &v, sizeof v), memcpy(out, tail, (size_t)n * 4);                                    \
}
#define FLUX__KEPT(n) (FLUX__VU)FLUX__HELD((FLUX__VUL)(none + n))
#define FLUX__STORE16(name, convert)                                                                 \
static void name(int64_t n, void *y, const void *x) {                                                \
    uint16_t *out = (uint16_t *)y;                                                                   \
    const float *in = (const float *)x;                                                              \
    float tail[FLUX__LANES] = { 0 };                                                                 \
    FLUX__F(halves) h;                                                                               \
    FLUX__V v;                                                                                       \
    FLUX__VU none = { 0 };                                                                           \
    const FLUX__VU below = FLUX__KEPT(0x7fffu), odd = FLUX__KEPT(1u), quiet = FLUX__KEPT(0x7fc0u);   \
    for (; n >= FLUX__LANES; n -= FLUX__LANES, in += FLUX__LANES, out += FLUX__LANES) {              \
        memcpy(&v, in, sizeof v);                                                                    \
        convert;                                                                                     \
        memcpy(out, &h, sizeof h);                                                                   \
    }                                                                                                \
    (void)below, (void)odd, (void)quiet;                                                             \
    if (n <= 0) return;                                                                              \
    memcpy(tail, in, (size_t)n * 4), memcpy(&v, tail, sizeof v);                                     \
    convert;                                                                                         \
    memcpy(tail, &h, sizeof h), memcpy(out, tail, (size_t)n * 2);                                    \
}

/* As flux__bf16_of, for a vector. `pack` moves the low 16 bits of all lanes to the lower half
   of the register. */
#define FLUX__BF16_OF(pack, in)                                                                      \
static FLUX__INLINE FLUX__F(halves) FLUX__F(bf16_of)(FLUX__V v, FLUX__VU below, FLUX__VU odd, FLUX__VU quiet) { \
    FLUX__VU u = FLUX__BITS(v), r = (u + below + ((u >> 16) & odd)) >> 16;                           \
    FLUX__F(halves) h;                                                                               \
    r = FLUX__BITS(FLUX__IF(v != v, quiet, r));                                                      \
    __asm__(pack : in(r));                                                                           \
    memcpy(&h, &r, sizeof h);                                                                        \
    return h;                                                                                        \
}

/* Four lanes: what every processor for which the compiler compiles has: SSE2 on x86-64, NEON on
   64-bit ARM. */
#  define FLUX__FLOATING_x4(yes, no) yes
#  define FLUX__LANES_x4 4
#  define FLUX__SECONDS_x4 0, 2, 5, 7
#  define FLUX__WEAVE_LOW_x4 0, 4, 1, 5
#  define FLUX__WEAVE_HIGH_x4 2, 6, 3, 7
#  define FLUX__HELD_x4(x) (x)
#  define FLUX__MIN_QUAD_x4(a, b) FLUX__MIN_x4(a, b)
#  define FLUX__MAX_QUAD_x4(a, b) FLUX__MAX_x4(a, b)
#  define FLUX__SCALE_x4(x, t) flux__scale_x4(x, t)
#  define FLUX__SCALE_DOWN_x4(x, t) flux__scale_down_x4(x, t)
#  define FLUX__LOOKUP_x4(table, i) flux__look_x4(table, i)
#  if FLUX__X86
#    define FLUX__SQRT_x4(x) flux__vsqrt_x4(x)
#    define FLUX__LOW_x4(x) flux__low_x4(x)
#    define FLUX__HIGH_x4(x) flux__low_x4(flux__upper_x4(x))
#    define FLUX__JOIN_x4(x, y) flux__vjoin_x4(flux__thin_x4(x), flux__thin_x4(y))
#    define FLUX__ALL_x4(mask) (flux__signs_x4(mask) == 15)
#    define FLUX__MUL32_x4(x, m) flux__vmul32_x4(x, m)
#    define FLUX__MIN_x4(a, b) flux__vmin_x4(a, b)
#    define FLUX__MAX_x4(a, b) flux__vmax_x4(a, b)
#  elif FLUX__NEON
#    define FLUX__FMA_x4(a, b, c) flux__vfma_x4(a, b, c)
#    define FLUX__FMAD_x4(a, b, c) flux__vfmad_x4(a, b, c)
#    define FLUX__MIN_x4(a, b) flux__vmin_x4(a, b)
#    define FLUX__MAX_x4(a, b) flux__vmax_x4(a, b)
#    define FLUX__SQRT_x4(x) flux__vsqrt_x4(x)
#    define FLUX__LOW_x4(x) flux__low_x4(x)
#    define FLUX__HIGH_x4(x) flux__high_x4(x)
#    define FLUX__JOIN_x4(x, y) flux__vjoin_x4(flux__thin_x4(x), y)
#    define FLUX__ALL_x4(mask) FLUX__ALL_OF(mask)
#    define FLUX__MUL32_x4(x, m) flux__vmul32_x4(flux__short_x4(x), flux__short_x4(m))
#  else
#define FLUX__OF_LANES(type, name, args, ...)                                                        \
static FLUX__INLINE type name args {                                                                 \
    type v = { __VA_ARGS__ };                                                                        \
    return v;                                                                                        \
}
typedef float flux__four __attribute__((vector_size(16)));
typedef double flux__two __attribute__((vector_size(16)));
FLUX__OF_LANES(flux__four, flux__roots, (flux__four x), sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3]))
FLUX__OF_LANES(flux__two, flux__wide_lanes, (flux__four x, int i), (double)x[i], (double)x[i + 1])
FLUX__OF_LANES(flux__four, flux__joined, (flux__two x, flux__two y), (float)x[0], (float)x[1], (float)y[0], (float)y[1])
#    define FLUX__SQRT_x4(x) flux__roots(x)
#    define FLUX__LOW_x4(x) flux__wide_lanes(x, 0)
#    define FLUX__HIGH_x4(x) flux__wide_lanes(x, 2)
#    define FLUX__JOIN_x4(x, y) flux__joined(x, y)
#    define FLUX__ALL_x4(mask) FLUX__ALL_OF(mask)
#    define FLUX__MUL32_x4(x, m) (((x) & (uint64_t)0xffffffff) * (m))
#    define FLUX__MIN_x4(a, b) FLUX__IF((a) < (b), a, b)
#    define FLUX__MAX_x4(a, b) FLUX__IF((a) > (b), a, b)
#  endif
#  if !FLUX__NEON
#    define FLUX__FMA_x4(a, b, c) ((a) * (b) + (c))
#    define FLUX__FMAD_x4(a, b, c) ((a) * (b) + (c))
#  endif
#  define FLUX__ALL_OF(mask) ((((FLUX__VL)(mask))[0] & ((FLUX__VL)(mask))[1]) == -1)
#  define FLUX__KIND x4
FLUX__VECTOR_TYPES
#  if FLUX__X86
FLUX__INSTRUCTION(FLUX__V, vsqrt, (FLUX__V x), "sqrtps {%1, %0|%0, %1}", "x", "x"(x))
FLUX__INSTRUCTION(FLUX__V, vmin, (FLUX__V a, FLUX__V b), "minps {%2, %0|%0, %2}", "x", "0"(a), "x"(b))
FLUX__INSTRUCTION(FLUX__V, vmax, (FLUX__V a, FLUX__V b), "maxps {%2, %0|%0, %2}", "x", "0"(a), "x"(b))
FLUX__INSTRUCTION(FLUX__VD, low, (FLUX__V x), "cvtps2pd {%1, %0|%0, %1}", "x", "x"(x))
FLUX__INSTRUCTION(FLUX__V, upper, (FLUX__V x), "movhlps {%0, %0|%0, %0}", "x", "0"(x))
FLUX__INSTRUCTION(FLUX__V, thin, (FLUX__VD x), "cvtpd2ps {%1, %0|%0, %1}", "x", "x"(x))
FLUX__INSTRUCTION(FLUX__V, vjoin, (FLUX__V a, FLUX__V b), "movlhps {%2, %0|%0, %2}", "x", "0"(a), "x"(b))
FLUX__INSTRUCTION(FLUX__VUL, vmul32, (FLUX__VUL a, FLUX__VUL b), "pmuludq {%2, %0|%0, %2}", "x", "0"(a), "x"(b))
FLUX__INSTRUCTION(int, signs, (FLUX__VI mask), "movmskps {%1, %0|%0, %1}", "r", "x"(mask))
#  elif FLUX__NEON
FLUX__FUSED_STEP(FLUX__V, vfma, "fmla %0.4s, %1.4s, %2.4s", "w", "w"(a), "w"(b), "0"(c))
FLUX__FUSED_STEP(FLUX__VD, vfmad, "fmla %0.2d, %1.2d, %2.2d", "w", "w"(a), "w"(b), "0"(c))
FLUX__INSTRUCTION(FLUX__V, vsqrt, (FLUX__V x), "fsqrt %0.4s, %1.4s", "w", "w"(x))
FLUX__INSTRUCTION(FLUX__V, vmin, (FLUX__V a, FLUX__V b), "fmin %0.4s, %1.4s, %2.4s", "w", "w"(a), "w"(b))
FLUX__INSTRUCTION(FLUX__V, vmax, (FLUX__V a, FLUX__V b), "fmax %0.4s, %1.4s, %2.4s", "w", "w"(a), "w"(b))
FLUX__INSTRUCTION(FLUX__VD, low, (FLUX__V x), "fcvtl %0.2d, %1.2s", "w", "w"(x))
FLUX__INSTRUCTION(FLUX__VD, high, (FLUX__V x), "fcvtl2 %0.2d, %1.4s", "w", "w"(x))
FLUX__INSTRUCTION(FLUX__V, thin, (FLUX__VD x), "fcvtn %0.2s, %1.2d", "w", "w"(x))
FLUX__INSTRUCTION(FLUX__V, vjoin, (FLUX__V a, FLUX__VD b), "fcvtn2 %0.4s, %2.2d", "w", "0"(a), "w"(b))
FLUX__INSTRUCTION(FLUX__VUL, short, (FLUX__VUL x), "xtn %0.2s, %1.2d", "w", "w"(x))
FLUX__INSTRUCTION(FLUX__VUL, vmul32, (FLUX__VUL a, FLUX__VUL b), "umull %0.2d, %1.2s, %2.2s", "w", "w"(a), "w"(b))
#  endif
FLUX__VECTOR_WIDTHS
static FLUX__INLINE FLUX__V flux__look_x4(const float *table, FLUX__VU i) {
    i = i & 15u;
    FLUX__V y = { table[i[0]], table[i[1]], table[i[2]], table[i[3]] };
    return y;
}
FLUX__VECTOR_SECTION
#  if FLUX__NEON
FLUX__LOAD16(flux__f16_f32, __asm__("fcvtl %0.4s, %1.4h" : "=w"(v) : "w"(h)))
FLUX__STORE16(flux__f32_f16, __asm__("fcvtn %0.4h, %1.4s" : "=w"(h) : "w"(v)))
#  endif

#  if FLUX__X86
/* Operands stand in both orders, for -masm=intel. `in` says which registers an operand may be
   in (AVX2's own instructions cannot name those that AVX-512 adds), `half` is the letter that
   names the lower half of a register, and `halved` says which registers may be named so: clang 19
   prints the halves of those that AVX-512 adds as masks (%k0). */
#  if defined(__clang__)
#    define FLUX__HALVED "x"
#  else
#    define FLUX__HALVED "v"
#  endif
#define FLUX__VECTOR_INSTRUCTIONS(in, half, halved, extract, insert)                                 \
FLUX__INSTRUCTION(FLUX__V, vsqrt, (FLUX__V x), "vsqrtps {%1, %0|%0, %1}", in, in(x))                 \
FLUX__INSTRUCTION(FLUX__V, vmin, (FLUX__V a, FLUX__V b), "vminps {%2, %1, %0|%0, %1, %2}", in, in(a), in(b)) \
FLUX__INSTRUCTION(FLUX__V, vmax, (FLUX__V a, FLUX__V b), "vmaxps {%2, %1, %0|%0, %1, %2}", in, in(a), in(b)) \
FLUX__INSTRUCTION(flux__quad, quad_min, (flux__quad a, flux__quad b), "vminps {%2, %1, %0|%0, %1, %2}", in, in(a), in(b)) \
FLUX__INSTRUCTION(flux__quad, quad_max, (flux__quad a, flux__quad b), "vmaxps {%2, %1, %0|%0, %1, %2}", in, in(a), in(b)) \
FLUX__FUSED_STEP(FLUX__V, vfma, "vfmadd213ps {%3, %2, %0|%0, %2, %3}", in, "0"(a), in(b), in(c))                           \
FLUX__FUSED_STEP(FLUX__VD, vfmad, "vfmadd213pd {%3, %2, %0|%0, %2, %3}", in, "0"(a), in(b), in(c))                         \
FLUX__INSTRUCTION(FLUX__VUL, vmul32, (FLUX__VUL a, FLUX__VUL b),                                     \
                  "vpmuludq {%2, %1, %0|%0, %1, %2}", in, in(a), in(b))                              \
FLUX__INSTRUCTION(FLUX__VUL, held, (FLUX__VUL x), "", in, "0"(x))                                    \
FLUX__INSTRUCTION(FLUX__V, look, (FLUX__V x, FLUX__VU i), "vpermps {%1, %2, %0|%0, %2, %1}", in, in "m"(x), in(i)) \
FLUX__INSTRUCTION(FLUX__VD, low, (FLUX__V x), "vcvtps2pd {%" half "1, %0|%0, %" half "1}", in, halved(x)) \
FLUX__INSTRUCTION(FLUX__VD, high, (FLUX__V x), extract " {$1, %1, %" half "0|%" half "0, %1, 1}\n\t" \
                  "vcvtps2pd {%" half "0, %0|%0, %" half "0}", halved, in(x))                        \
FLUX__INSTRUCTION(FLUX__V, thin, (FLUX__VD x), "vcvtpd2ps {%1, %" half "0|%" half "0, %1}", halved, in(x)) \
FLUX__INSTRUCTION(FLUX__V, vjoin, (FLUX__V a, FLUX__V b),                                            \
                  insert " {$1, %" half "2, %1, %0|%0, %1, %" half "2, 1}", in, in(a), halved(b))

/* Eight lanes: AVX2 with FMA and F16C. */
#    define FLUX__FLOATING_x8(yes, no) yes
#    define FLUX__LANES_x8 8
#    define FLUX__SECONDS_x8 0, 2, 4, 6, 9, 11, 13, 15
#    define FLUX__WEAVE_LOW_x8 0, 8, 1, 9, 2, 10, 3, 11
#    define FLUX__WEAVE_HIGH_x8 4, 12, 5, 13, 6, 14, 7, 15
#    define FLUX__SQRT_x8(x) flux__vsqrt_x8(x)
#    define FLUX__FMA_x8(a, b, c) flux__vfma_x8(a, b, c)
#    define FLUX__FMAD_x8(a, b, c) flux__vfmad_x8(a, b, c)
#    define FLUX__MIN_x8(a, b) flux__vmin_x8(a, b)
#    define FLUX__MAX_x8(a, b) flux__vmax_x8(a, b)
#    define FLUX__MIN_QUAD_x8(a, b) flux__quad_min_x8(a, b)
#    define FLUX__MAX_QUAD_x8(a, b) flux__quad_max_x8(a, b)
#    define FLUX__HELD_x8(x) flux__held_x8(x)
#    define FLUX__SCALE_x8(x, t) flux__scale_x8(x, t)
#    define FLUX__SCALE_DOWN_x8(x, t) flux__scale_down_x8(x, t)
#    define FLUX__LOOKUP_x8(table, i)                                                              \
    flux__either_x8(flux__look_x8(flux__at_x8(table), i),                                          \
                    flux__look_x8(flux__at_x8((table) + 8), i), (i) << 28)
#    define FLUX__LOW_x8(x) flux__low_x8(x)
#    define FLUX__HIGH_x8(x) flux__high_x8(x)
#    define FLUX__JOIN_x8(x, y) flux__vjoin_x8(flux__thin_x8(x), flux__thin_x8(y))
#    define FLUX__ALL_x8(mask) (flux__signs_x8(mask) == 255)
#    define FLUX__MUL32_x8(x, m) flux__vmul32_x8(x, m)
#    undef FLUX__KIND
#    define FLUX__KIND x8
#    if defined(__clang__)
#      pragma clang attribute push(FLUX__AVX2, apply_to = function)
#    else
#      pragma GCC push_options
#      pragma GCC target("avx2,fma,f16c")
#      pragma GCC optimize("expensive-optimizations" /* or no vzeroupper */, "ira-region=mixed", "no-tree-ccp")
#    endif
FLUX__VECTOR_TYPES
FLUX__VECTOR_INSTRUCTIONS("x", "x", "x", "vextractf128", "vinsertf128")
FLUX__INSTRUCTION(FLUX__V, either, (FLUX__V a, FLUX__V b, FLUX__VU sign), "vblendvps {%3, %2, %1, %0|%0, %1, %2, %3}", "x", "x"(a), "x"(b), "x"(sign))
FLUX__VECTOR_WIDTHS
static FLUX__INLINE int flux__signs_x8(FLUX__VI mask) {
    int y;
    __asm__("vmovmskps {%1, %0|%0, %1}" : "=r"(y) : "x"(mask));
    return y;
}
FLUX__VECTOR_SECTION
FLUX__LOAD16(flux__half_load_x8, __asm__("vcvtph2ps {%1, %0|%0, %1}" : "=x"(v) : "x"(h)))
FLUX__STORE16(flux__half_store_x8, __asm__("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=x"(h) : "x"(v)))
FLUX__LOAD16(flux__bf16_load_x8, v = FLUX__FLOAT(__builtin_convertvector(h, FLUX__VU) << 16))
FLUX__BF16_OF("vpackusdw {%0, %0, %0|%0, %0, %0}\n\tvpermq {$8, %0, %0|%0, %0, 8}", "+x")
FLUX__STORE16(flux__bf16_store_x8, h = flux__bf16_of_x8(v, below, odd, quiet))
#    if defined(__clang__)
#      pragma clang attribute pop
#    else
#      pragma GCC pop_options
#    endif

#    undef FLUX__KIND
/* Sixteen lanes: AVX-512F, with what AVX2 has. */
#    define FLUX__FLOATING_x16(yes, no) yes
#    define FLUX__LANES_x16 16
#    define FLUX__SECONDS_x16 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31
#    define FLUX__WEAVE_LOW_x16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#    define FLUX__WEAVE_HIGH_x16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#    define FLUX__SQRT_x16(x) flux__vsqrt_x16(x)
#    define FLUX__FMA_x16(a, b, c) flux__vfma_x16(a, b, c)
#    define FLUX__FMAD_x16(a, b, c) flux__vfmad_x16(a, b, c)
#    define FLUX__MIN_x16(a, b) flux__vmin_x16(a, b)
#    define FLUX__MAX_x16(a, b) flux__vmax_x16(a, b)
#    define FLUX__MIN_QUAD_x16(a, b) flux__quad_min_x16(a, b)
#    define FLUX__MAX_QUAD_x16(a, b) flux__quad_max_x16(a, b)
#    define FLUX__HELD_x16(x) flux__held_x16(x)
#    define FLUX__SCALE_x16(x, t) flux__vscale_x16(x, (t) - FLUX__MAGIC)
#    define FLUX__SCALE_DOWN_x16(x, t) FLUX__SCALE_x16(x, t)
#    define FLUX__LOOKUP_x16(table, i) flux__look_x16(flux__at_x16(table), i)
#    define FLUX__LOW_x16(x) flux__low_x16(x)
#    define FLUX__HIGH_x16(x) flux__high_x16(x)
#    define FLUX__JOIN_x16(x, y) flux__vjoin_x16(flux__thin_x16(x), flux__thin_x16(y))
#    define FLUX__ALL_x16(mask) (flux__signs_x16(mask) == 65535)
#    define FLUX__MUL32_x16(x, m) flux__vmul32_x16(x, m)
#    define FLUX__KIND x16
#    if defined(__clang__)
#      pragma clang attribute push(FLUX__AVX512, apply_to = function)
#    else
#      pragma GCC push_options
#      pragma GCC target("avx512f,avx2,fma,f16c")
#      pragma GCC optimize("expensive-optimizations" /* or no vzeroupper */, "ira-region=mixed", "no-tree-ccp")
#    endif
FLUX__VECTOR_TYPES
FLUX__VECTOR_INSTRUCTIONS("v", "t", FLUX__HALVED, "vextractf32x8", "vinsertf32x8")
FLUX__VECTOR_WIDTHS
FLUX__INSTRUCTION(FLUX__V, vscale, (FLUX__V x, FLUX__V n), "vscalefps {%2, %1, %0|%0, %1, %2}", "v", "v"(x), "v"(n))
static FLUX__INLINE uint16_t flux__signs_x16(FLUX__VI mask) {
    uint16_t y;
    __asm__("vpmovd2m {%1, %0|%0, %1}" : "=Yk"(y) : "v"(mask));
    return y;
}
FLUX__VECTOR_SECTION
FLUX__BF16_OF("vpmovdw {%0, %t0|%t0, %0}", "+" FLUX__HALVED)
FLUX__LOAD16(flux__bf16_load_x16, FLUX__VU u; __asm__("vpmovzxwd {%1, %0|%0, %1}" : "=v"(u) : "v"(h)); v = FLUX__FLOAT(u << 16))
FLUX__STORE16(flux__bf16_store_x16, h = flux__bf16_of_x16(v, below, odd, quiet))
/* The same for processors with avx512_bf16, whose instruction converts two vectors. It takes what
   is denormal for zero and leaves a NaN its bits: pairs that have one go the other way. */
static void flux__bf16_store_pairs(int64_t n, void *y, const void *x) {
    const float *in = (const float *)x;
    uint16_t *out = (uint16_t *)y, low, high;
    uint8_t special;
    for (FLUX__V a, b; n >= 32; n -= 32, in += 32, out += 32) {
        FLUX__VU both;
        memcpy(&a, in, sizeof a), memcpy(&b, in + 16, sizeof b);
        __asm__("vcvtne2ps2bf16 {%4, %5, %0|%0, %5, %4}\n\t"
                "vfpclassps {$0xa1, %4, %1|%1, %4, 0xa1}\n\t"     /* NaN or denormal */
                "vfpclassps {$0xa1, %5, %2|%2, %5, 0xa1}\n\t"
                "kortestw {%1, %2|%2, %1}\n\tsetne %3"
                : "=&v"(both), "=&Yk"(low), "=&Yk"(high), "=q"(special) : "v"(a), "v"(b) : "cc");
        if (special) flux__bf16_store_x16(32, out, in);
        else memcpy(out, &both, sizeof both);
    }
    if (n > 0) flux__bf16_store_x16(n, out, in);
}
#    if defined(__clang__)
#      pragma clang attribute pop
#    else
#      pragma GCC pop_options
#    endif
static const flux__section *const flux__sections[] = {
    &flux__section_x4, &flux__section_x8, &flux__section_x16, &flux__section_x16,
    &flux__section_x16 };                 /* by flux__simd() */
#  endif
#endif

/* The instruction set of this processor. */
static const flux__section *flux__section_now(void) {
#if FLUX__VECTORS && FLUX__X86
    return flux__sections[flux__simd()];
#else
    return &FLUX__F(section);
#endif
}
/* The same, or that of as wide vectors as n numbers, at least 4, fill. */
static const flux__section *flux__section_for(int64_t n) {
#if FLUX__VECTORS && FLUX__X86
    const int level = flux__simd();
    return flux__sections[n >= 16 || level == 0 ? level : n >= 8];
#else
    return (void)n, flux__section_now();
#endif
}

/* Elements of the rows that are taken at a time: each step runs for all of them, so that no row
   waits for the end of its own sum. */
#define FLUX__ROWS_TILE 512
/* hook: flux__join_long, cpu/reductions.h */
static void flux__join_long(const flux__join_order *o, flux__hreduce_fn hreduce, int ctype, int red,
                            void *acc, const void *x);

/* hook: flux__settle_zeros, cpu/reductions.h */
static void flux__settle_zeros(int ctype, int red, void *acc, int64_t n);

/* acc[r] = the sum or maximum of row r, for the rows of r, in the order of flux__join_order. */
static void flux__hreduce_rows(const flux__rows_run *r, flux__hreduce_fn hreduce, int red,
                               float *acc,
                            const float *x) {
    const float start = red == FLUX__RED_SUM ? 0 : -INFINITY;
    flux__fill(acc, &start, sizeof start, (size_t)r->count);
    if (r->n <= r->order->chunk) hreduce(acc, x, r->n, r->count);
    else
        for (int64_t row = 0; row < r->count; row++, x += r->n)
            flux__join_long(r->order, hreduce, FLUX__F32C, red, acc + row, x);
    flux__settle_zeros(FLUX__F32C, red, acc, r->count);
}
/* Computes a row that has NaN or Inf once more, by the plain steps: such a row may have no
   maximum, and inf - inf is NaN. */
static void flux__run_nan_row(const flux__section *s, const flux__rows_run *all, int64_t row) {
    flux__rows_run r = *all;
    float *e = r.e + row * r.n;
    r.count = 1, r.x += row * r.n;
    flux__hreduce_rows(&r, s->hreduces[FLUX__RED_MAX], FLUX__RED_MAX, r.first + row, r.x);
    s->run(s->loops[FLUX__OP_SUBMAX], r.n, e, r.x, r.first + row, r.x, 1, 0, 1);
    if (r.d) memcpy(r.d + row * r.n, e, (size_t)r.n * sizeof *e);
    s->run(s->loops[FLUX__OP_EXP], r.n, e, e, e, e, 1, 1, 1);
    flux__hreduce_rows(&r, s->hreduces[FLUX__RED_SUM], FLUX__RED_SUM, r.second + row, e);
}
/* Runs all steps but the last for some rows: their maxima or sums, d and e (together with y of
   the rows of `was`, if there are any), the sums of e, and what y is computed with. less, each:
   arrays for the rows of r. */
static void flux__run_some_rows(const flux__section *s, flux__rows_run *r, flux__rows_run *was,
                                float *less, float *each) {
    const int64_t many = r->count;
    flux__hreduce_rows(r, r->squares ? s->hreduces[FLUX__RED_SUM] : s->hmaxnum,
                    r->squares ? FLUX__RED_SUM : FLUX__RED_MAX, r->first, r->x);
    for (int64_t i = 0; i < many; i++) less[i] = r->squares ? r->first[i] / r->by[0] : r->first[i];
    s->rows(r, was->count > 0 ? was : NULL);
    if (was->count > many) {              /* the last rows are fewer than those of `was` */
        was->count -= many, was->x += many * r->n, was->e += many * r->n, was->y += many * r->n,
            was->less += many, was->each += many;
        s->rows(NULL, was);
    }
    was->count = 0;
    flux__hreduce_rows(r, s->hreduces[FLUX__RED_SUM], FLUX__RED_SUM, r->second, r->e);
    for (int64_t i = 0; i < many && !r->squares; i++)
        if (r->second[i] != r->second[i]) flux__run_nan_row(s, r, i), less[i] = r->first[i];
    for (int64_t i = 0; i < many; i++)
        each[i] = r->squares ? r->second[i] / r->by[1] + r->by[2] : r->second[i];
    if (r->y && r->last != FLUX__OP_DIV) {
        const flux__loop map = s->loops[r->squares ? FLUX__OP_RSQRT : FLUX__OP_LOG];
        s->run(map, (many + 15) / 16 * 16, each, each, each, each, 1, 1, 1);
    }
}
/* Repeats each of `many` numbers n times (4 to 15), one after the other; up to 16 numbers past
   the end are overwritten. */
#define FLUX__AS_STRIDED_SCATTER(width)                                                              \
    for (; n <= width && many > 0; many--, to += n, x++) {                                           \
        const float all = *x;                                                                        \
        for (int i = 0; i < width; i++) to[i] = all;                                                 \
    }
static FLUX__FAST void flux__strided_scatter_rows(float *to, const float *x, int64_t n,
                                                  int64_t many) {
    FLUX__AS_STRIDED_SCATTER(8) FLUX__AS_STRIDED_SCATTER(16)
}
/* Runs rows that are too short for vectors of their own: what the numbers of a row have in
   common is repeated for each of them, so that all rows are one run. */
static FLUX__FAST void flux__run_short_rows(const flux__section *s, const flux__rows_run *all) {
    const flux__loop less = s->loops[all->squares ? FLUX__OP_SUB : FLUX__OP_SUBMAX],
                     map = s->loops[all->squares ? FLUX__OP_SQUARE : FLUX__OP_EXP];
    flux__rows_run r = *all;
    float row[FLUX__ROWS_TILE], each[FLUX__ROWS_TILE + 16];
    for (int64_t at = 0, n = r.n, o = 0; at < all->count; at += r.count, o += r.count * n) {
        const int64_t most = FLUX__ROWS_TILE / n / 16 * 16,
                      many = r.count = all->count - at < most ? all->count - at : most;
        r.x = all->x + o, r.e = all->e + (r.keep_e ? o : 0), r.y = all->y ? all->y + o : NULL,
            r.first = all->first + at, r.second = all->second + at;
        r.d = all->d ? all->d + o : r.y && r.last != FLUX__OP_DIV ? r.y : r.e;
        flux__hreduce_rows(&r, s->hreduces[r.squares ? FLUX__RED_SUM : FLUX__RED_MAX],
                        r.squares ? FLUX__RED_SUM : FLUX__RED_MAX, r.first, r.x);
        for (int64_t i = 0; i < many && r.squares; i++) row[i] = r.first[i] / r.by[0];
        flux__strided_scatter_rows(each, r.squares ? row : r.first, n, many);
        s->run(less, many * n, r.d, r.x, each, each, 1, 1, 1),
            s->run(map, many * n, r.e, r.d, r.d, r.d, 1, 1, 1);
        flux__hreduce_rows(&r, s->hreduces[FLUX__RED_SUM], FLUX__RED_SUM, r.second, r.e);
        if (!r.y) continue;
        for (int64_t i = 0; i < many && r.squares; i++) row[i] = r.second[i] / r.by[1] + r.by[2];
        if (r.squares) s->run(s->loops[FLUX__OP_RSQRT], many, row, row, row, row, 1, 1, 1);
        else if (r.last == FLUX__OP_SUB)
            s->run(s->loops[FLUX__OP_LOG], many, row, r.second, row, row, 1, 1, 1);
        flux__strided_scatter_rows(each, r.last == FLUX__OP_DIV ? r.second : row, n, many);
        s->run(s->loops[r.last], many * n, r.y, r.last == FLUX__OP_DIV ? r.e : r.d, each, each, 1,
               1, 1);
    }
}
/* Runs softmax-like rows (flux__rows_run), FLUX__ROWS_TILE elements at a time. Where y is e /
   second and d is not wanted, the divisions wait for the exponentials of the next rows. */
static void flux__run_rows(const flux__section *s, const flux__rows_run *all) {
    if (all->n < 16) {
        flux__run_short_rows(s, all);
        return;
    }
    const int64_t many = all->n < FLUX__ROWS_TILE ? FLUX__ROWS_TILE / all->n : 1, n = all->n;
    const bool wait = (all->keep_e || 2 * many * n <= all->capacity) && all->y && !all->d &&
                      all->last == FLUX__OP_DIV;
    flux__rows_run r = *all, was = *all;
    float less[2][FLUX__ROWS_TILE / 16], each[2][FLUX__ROWS_TILE / 16];
    for (int i = 0; i < FLUX__ROWS_TILE / 16; i++) each[0][i] = each[1][i] = 1;
    was.count = 0;
    for (int64_t row = 0, odd = 0; row < all->count; row += many, odd ^= wait) {
        r.count = all->count - row < many ? all->count - row : many;
        r.x = all->x + row * n, r.d = all->d ? all->d + row * n : NULL,
            r.e = all->e + (all->keep_e ? row * n : odd * many * n);
        r.y = all->y ? all->y + row * n : NULL, r.first = all->first + row,
            r.second = all->second + row;
        r.less = less[odd], r.each = each[odd];
        flux__run_some_rows(s, &r, &was, less[odd], each[odd]);
        if (wait) was = r;
        else if (r.y) s->rows(NULL, &r);
    }
    if (was.count > 0) s->rows(NULL, &was);
}

/* The loop of an operation of the table, or NULL if it has none for this compute type. */
static flux__loop flux__loop_for(int ctype, int op) {
    static const flux__loop *const tables[] = {
        NULL, flux__loops_f64, flux__loops_i32, flux__loops_i64 };
    if (ctype < 0 || ctype >= FLUX__CLASSES || op < 0 || op >= FLUX__ELEMENTWISE_COUNT) return NULL;
    return ctype == FLUX__F32C ? flux__section_now()->loops[op] : tables[ctype][op];
}

/* Runs a loop. A loop for vectors is called directly only if n and the strides leave nothing to
   fill up. */
static FLUX__INLINE void flux__loop_run(int ctype, flux__loop f, int64_t n, void *y, const void *a,
                                        const void *b, const void *c, int sa, int sb, int sc) {
    if (ctype == FLUX__F32C && (n % 16 || !(sa & sb & sc)))
        flux__section_now()->run(f, n, y, a, b, c, sa, sb, sc);
    else f(n, y, a, b, c, sa, sb, sc);
}

/* Runs an Adam step for n elements: whole vectors, then the rest, filled up to 16. m, v, w:
   results; in, by: see flux__adam_fn. */
static void flux__adam_run(int64_t n, float *m, float *v, float *w, const float *const *in,
                           const float *by, bool decays) {
    const flux__adam_fn adam = flux__section_now()->adam;
    const int64_t whole = n - n % 16;
    const size_t left = (size_t)(n - whole);
    float pad[4][16] = { { 0 } }, out[3][16];
    const float *last[4];
    adam(whole, m, v, w, in, by, decays);
    if (!left) return;
    for (int i = 0; i < 4; i++)
        last[i] = in[i] ? (const float *)memcpy(pad[i], in[i] + whole, 4 * left) : NULL;
    adam(16, out[0], out[1], out[2], last, by, decays);
    memcpy(m + whole, out[0], 4 * left), memcpy(v + whole, out[1], 4 * left),
        memcpy(w + whole, out[2], 4 * left);
}

FLUX__END_NUMBERS

#endif /* FLUX__CPU_VECTORS_H */
