#ifndef FLUX__CPU_DEPTHWISE_H
#define FLUX__CPU_DEPTHWISE_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../schedule/analysis.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"

/* ---------------------------------------------------------------------- cpu/depthwise.h
   One channel of a depthwise convolution: a product of the windows of an image,
   which lie side by side, and a vector of few taps. It is too thin for tiles, so
   the image is read where it is, a vector of positions for each tap. Of short
   rows the positions between two rows are computed too, and left out when rows
   are put in place.

   Invariant: a position's taps are added in their order, from 0 on, and fused
   where tiles fuse: the bits are those of flux__gemm. Nothing is read but what
   windows hold and what lies between two of them.

   Rejected: rows one by one if they are short, which fill half a vector. */

FLUX__BEGIN_LEAN

/* Most taps, and positions that are computed together. */
#define FLUX__DEPTHWISE_TAPS 64
#define FLUX__DEPTHWISE_PART 2048

#if FLUX__GEMM_VECTORS
/* y[i] = w[0] x[i + at[0]] + w[w_step] x[i + at[1]] ... for n positions */
typedef void (*flux__depthwise_fn)(int64_t taps, const float *w, int64_t w_step, const int64_t *at,
                                   const float *x, float *y, int64_t n);

#  define FLUX__DEPTHWISE_GET(vec, from) (*(const vec *)(const void *)(from))
#  define FLUX__DEPTHWISE_PUT(vec, to, from) *(vec *)(void *)(to) = from;
#  define FLUX__DEPTHWISE(name, vec, target)                                                       \
    FLUX__GEMM_FN(target) void name(int64_t taps, const float *w, int64_t w_step, const int64_t *at, \
                                    const float *x, float *y, int64_t n) {                         \
        FLUX__GEMM_FUSE                                                                            \
        const int64_t lanes = (int)(sizeof(vec) / sizeof *x), whole = n < lanes ? 0 : n;           \
        const vec zero = { 0 };                                                                    \
        int64_t i = 0, t;                                                                          \
        for (; i + 4 * lanes <= whole; i += 4 * lanes) {                                           \
            vec a = zero, b = zero, c = zero, d = zero;                                            \
            for (t = 0; t < taps; t++) {                                                           \
                const float *p = x + i + at[t];                                                    \
                const vec u = w[t * w_step] - zero;                                                \
                a += FLUX__DEPTHWISE_GET(vec, p) * u, b += FLUX__DEPTHWISE_GET(vec, p + lanes) * u; \
                c += FLUX__DEPTHWISE_GET(vec, p + 2 * lanes) * u;                                  \
                d += FLUX__DEPTHWISE_GET(vec, p + 3 * lanes) * u;                                  \
            }                                                                                      \
            FLUX__DEPTHWISE_PUT(vec, y + i, a) FLUX__DEPTHWISE_PUT(vec, y + i + lanes, b)          \
            FLUX__DEPTHWISE_PUT(vec, y + i + 2 * lanes, c) FLUX__DEPTHWISE_PUT(vec, y + i + 3 * lanes, d) \
        }                                                                                          \
        for (; i < whole; i += lanes) {                                                            \
            vec a = zero;                                                                          \
            if (i > whole - lanes) i = whole - lanes;                                              \
            for (t = 0; t < taps; t++)                                                             \
                a += FLUX__DEPTHWISE_GET(vec, x + i + at[t]) * (w[t * w_step] - zero);             \
            FLUX__DEPTHWISE_PUT(vec, y + i, a)                                                     \
        }                                                                                          \
        for (; i < n; i++) {                                                                       \
            float a = 0;                                                                           \
            for (t = 0; t < taps; t++) a += x[i + at[t]] * w[t * w_step];                          \
            y[i] = a;                                                                              \
        }                                                                                          \
    }
FLUX__DEPTHWISE(flux__depthwise_base, flux__vec16f, )
#  if FLUX__X86
FLUX__DEPTHWISE(flux__depthwise_avx2, flux__vec32f, FLUX__AVX2)
FLUX__DEPTHWISE(flux__depthwise_avx512, flux__vec64f, FLUX__AVX512)
#  endif

/* The kernel for this processor. */
static flux__depthwise_fn flux__depthwise_now(void) {
#  if FLUX__X86
    if (flux__simd() > 0) return flux__simd() > 1 ? flux__depthwise_avx512 : flux__depthwise_avx2;
#  endif
    return flux__depthwise_base;
}

/* Whether a channel with these positions and k taps is computed here: its rows of positions lie
   side by side. */
static bool flux__is_depthwise(const flux__axes *positions, int64_t k) {
    const int64_t step = positions->nd > 1 ? positions->step[1] : 0;
    return positions->step[0] == 1 && positions->nd <= 2 && k <= FLUX__DEPTHWISE_TAPS &&
           (positions->nd == 1 || (step >= positions->dim[0] && step <= FLUX__DEPTHWISE_PART));
}

/* Computes one channel: y at all positions, from taps w, w_step apart. */
static void flux__depthwise(const flux__axes *positions, const flux__axes *taps, int64_t k,
                            const float *x, const float *w, int64_t w_step, float *y) {
    const flux__depthwise_fn run = flux__depthwise_now();
    const int64_t n = positions->dim[0], rows = positions->nd > 1 ? positions->dim[1] : 1,
                  step = positions->nd > 1 ? positions->step[1] : n;
    int64_t at[FLUX__DEPTHWISE_TAPS], place[FLUX_MAX_DIMS], many;
    float part[FLUX__DEPTHWISE_PART];
    for (int64_t t = 0; t < k; t++) at[t] = flux__axes_point(taps, t, place);
    if (rows == 1 || n >= 96) {
        for (int64_t r = 0; r < rows; r++) run(k, w, w_step, at, x + r * step, y + r * n, n);
        return;
    }
    for (int64_t r = 0; r < rows; r += many, y += many * n) {
        many = flux__gemm_min(rows - r, FLUX__DEPTHWISE_PART / step);
        run(k, w, w_step, at, x + r * step, part, (many - 1) * step + n);
        flux__gemm_copy_rows((const char *)part, step * 4, (char *)y, n * 4, many, n * 4);
    }
}
#endif

FLUX__END_LEAN

#endif /* FLUX__CPU_DEPTHWISE_H */
