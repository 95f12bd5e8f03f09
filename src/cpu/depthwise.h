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
   the image is read where it is, a vector of positions for each tap; of windows
   two apart, from a copy that has even and odd elements apart. Of short rows the
   positions between two rows are computed too, and left out when rows are put in
   place.

   The gradient by the taps is a sum over positions for each tap, one product
   after another, so a vector has channels side by side: some rows of as many
   channels are transposed first, the image and the gradient of the result.

   Invariant: a position's taps are added in their order, from 0 on, a tap's
   positions in theirs, in chunks of k, and fused where tiles fuse: the bits are
   those of flux__gemm. Nothing is read but what windows hold and what lies
   between two of them.

   Rejected: rows one by one if they are short, which fill half a vector. */

FLUX__BEGIN_LEAN

/* Most taps, and positions that are computed together. */
#define FLUX__DEPTHWISE_TAPS 64
#define FLUX__DEPTHWISE_PART 2048
/* Taps whose gradients are summed together; elements of a channel that are transposed at a time. */
#define FLUX__DEPTHWISE_SUMS 9
#define FLUX__DEPTHWISE_BAND 4096

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

/* Where k taps are, from the first in memory on; how far that is from the first of all; and where
   the last one is. */
typedef struct flux__taps { int64_t k, first, last, at[FLUX__DEPTHWISE_TAPS]; } flux__taps;

static flux__taps flux__depthwise_taps(const flux__axes *taps, int64_t k) {
    int64_t place[FLUX_MAX_DIMS];
    flux__taps t;
    t.k = k, t.first = INT64_MAX, t.last = 0;
    for (int64_t i = 0; i < k; i++) {
        t.at[i] = flux__axes_point(taps, i, place);
        if (t.at[i] < t.first) t.first = t.at[i];
    }
    for (int64_t i = 0; i < k; i++)
        if ((t.at[i] -= t.first) > t.last) t.last = t.at[i];
    return t;
}

/* Whether a channel with these positions and k taps is computed here: its rows of positions lie
   side by side, or every second element of an image's rows is one. */
static bool flux__is_depthwise(const flux__axes *positions, const flux__axes *taps, int64_t k) {
    const int64_t along = positions->step[0], n = positions->dim[0],
                  step = positions->nd > 1 ? positions->step[1] : 0;
    if (along < 1 || along > 2 || positions->nd > 2 || k > FLUX__DEPTHWISE_TAPS || step % along ||
        (positions->nd > 1 && (step < along * n || step > along * FLUX__DEPTHWISE_PART)))
        return false;
    const int64_t last = flux__depthwise_taps(taps, k).last;
    return along == 1 ||
           (n < FLUX__DEPTHWISE_PART && last < FLUX__DEPTHWISE_BAND &&
            last + 2 * n <= FLUX__DEPTHWISE_BAND);
}

/* Computes one channel's rows of n positions, `step` apart: y, from taps that are at[...] elements
   from a position. w: their weights, w_step apart. */
static void flux__depthwise_rows(int64_t n, int64_t rows, int64_t step, int64_t k,
                                 const int64_t *at, const float *x, const float *w, int64_t w_step,
                                 float *y) {
    const flux__depthwise_fn run = flux__depthwise_now();
    float part[FLUX__DEPTHWISE_PART];
    int64_t many;
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

/* Computes one channel: y at all positions, from taps w, w_step apart. Of positions two
   apart, some rows are divided into even and odd elements first. */
static void flux__depthwise(const flux__axes *positions, const flux__taps *taps, const float *x,
                            const float *w, int64_t w_step, float *y) {
    const int64_t n = positions->dim[0], rows = positions->nd > 1 ? positions->dim[1] : 1,
                  step = positions->nd > 1 ? positions->step[1] : 2 * n,
                  half = FLUX__DEPTHWISE_BAND / 2;
    const flux__axes once = { 1, { 1 }, { 0 } };
    int64_t at[FLUX__DEPTHWISE_TAPS], many;
    const int64_t k = taps->k, one = taps->last + 2 * n - 1;
    float part[FLUX__DEPTHWISE_BAND];
    x += taps->first;
    if (positions->step[0] == 1) {
        flux__depthwise_rows(n, rows, step, k, taps->at, x, w, w_step, y);
        return;
    }
    for (int64_t t = 0; t < k; t++) at[t] = taps->at[t] % 2 * half + taps->at[t] / 2;
    for (int64_t r = 0; r < rows; r += many, x += many * step) {
        many = flux__gemm_min(rows - r, (FLUX__DEPTHWISE_BAND - one) / step + 1);
        for (int64_t odd = 0; odd < 2; odd++) {
            const flux__gemm_run all = { 0, 0, ((many - 1) * step + one + 1 - odd) / 2 };
            flux__gemm_im2col_now()(1, x + odd, &once, 0, 1, &all, 1, 2, part + odd * half, 0);
        }
        flux__depthwise_rows(n, many, step / 2, k, at, part, w, w_step, y + r * n);
    }
}

/* s[t] += the sum of x[at[t]] g over n positions, each a vector of channels; x's are `step` floats
   apart */
typedef void (*flux__depthwise_sums_fn)(int64_t n, const float *x, int64_t step, const int64_t *at,
                                        const float *g, float *sum);
#  define FLUX__DEPTHWISE_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#  define FLUX__DEPTHWISE_FROM(t) V s##t = s[t]; const float *const x##t = x + at[t];
#  define FLUX__DEPTHWISE_ADD(t) s##t += FLUX__DEPTHWISE_GET(V, x##t + i) * u;
#  define FLUX__DEPTHWISE_TO(t) s[t] = s##t;
#  define FLUX__DEPTHWISE_GRADIENT(name, vec, target)                                              \
    FLUX__GEMM_FN(target) void name(int64_t n, const float *x, int64_t step, const int64_t *at,    \
                                    const float *g, float *sum) {                                  \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        V *s = (V *)(void *)sum;                                                                   \
        FLUX__DEPTHWISE_EACH(FLUX__DEPTHWISE_FROM)                                                 \
        for (int64_t i = 0; n > 0; n--, i += step, g += (int)(sizeof(V) / sizeof *g)) {            \
            const V u = FLUX__DEPTHWISE_GET(V, g);                                                 \
            FLUX__DEPTHWISE_EACH(FLUX__DEPTHWISE_ADD)                                              \
        }                                                                                          \
        FLUX__DEPTHWISE_EACH(FLUX__DEPTHWISE_TO)                                                   \
    }
FLUX__DEPTHWISE_GRADIENT(flux__depthwise_sums_base, flux__vec16f, )
#  if FLUX__X86
FLUX__DEPTHWISE_GRADIENT(flux__depthwise_sums_avx2, flux__vec32f, FLUX__AVX2)
FLUX__DEPTHWISE_GRADIENT(flux__depthwise_sums_avx512, flux__vec64f, FLUX__AVX512)
#  endif

/* The gradient by the taps of channels that lie x_step and g_step elements apart. */
typedef struct flux__depthwise_gradient {
    flux__depthwise_sums_fn run;
    /* g_map: where g is at each position, or NULL: contiguous */
    const flux__axes *positions, *g_map;
    int64_t lanes, taps, points, chunk, x_step, g_step;
    /* rows of positions in a band, of one image, and elements of the image that these hold; the
       first element that a window holds, from its position on, and where taps are, in vectors */
    int64_t rows, band, first, at[FLUX__DEPTHWISE_TAPS + FLUX__DEPTHWISE_SUMS];
} flux__depthwise_gradient;

/* Plans such a gradient; false: it is another product, or its windows are too large. */
static bool flux__depthwise_plan(flux__depthwise_gradient *d, const flux__axes *positions,
                                 const flux__axes *taps, const flux__axes *g_map) {
    const int64_t n = positions->dim[0], most = positions->nd > 1 ? positions->dim[1] : 1,
                  step = most > 1 ? positions->step[1] : 1,
                  along = (n - 1) * positions->step[0] + 1;
    d->run = flux__depthwise_sums_base, d->lanes = 4;
#  if FLUX__X86
    if (flux__simd() > 0) d->run = flux__depthwise_sums_avx2, d->lanes = 8;
    if (flux__simd() > 1) d->run = flux__depthwise_sums_avx512, d->lanes = 16;
#  endif
    d->positions = positions, d->g_map = g_map;
    if (d->taps > FLUX__DEPTHWISE_TAPS || positions->step[0] < 1 || step < 1 ||
        (g_map && (g_map->step[0] != 1 || g_map->dim[0] % (n * most)))) return false;
    const flux__taps places = flux__depthwise_taps(taps, d->taps);
    const int64_t last = places.last;
    d->first = places.first;
    for (int64_t t = 0; t < d->taps; t++) d->at[t] = places.at[t] * d->lanes;
    for (int64_t t = 0; t < FLUX__DEPTHWISE_SUMS; t++) d->at[d->taps + t] = 0;
    if (last >= FLUX__DEPTHWISE_BAND || along > FLUX__DEPTHWISE_BAND - last) return false;
    d->rows = flux__gemm_min(most, (FLUX__DEPTHWISE_BAND - last - along) / step + 1);
    d->band = (d->rows - 1) * step + along + last;
    return true;
}

/* Computes the gradients by the taps of some channels, at most d->lanes: y, d->taps of each.
   memory: (d->band + d->rows n) d->lanes floats. */
static void flux__depthwise_sums(const flux__depthwise_gradient *d, int64_t channels,
                                 const float *x, const float *g, float *y, float *memory) {
    const flux__axes *axes = d->positions;
    const int64_t n = axes->dim[0], lanes = d->lanes, most = axes->nd > 1 ? axes->dim[1] : 1,
                  step = most > 1 ? axes->step[1] : 1;
    float sum[2][(FLUX__DEPTHWISE_TAPS + FLUX__DEPTHWISE_SUMS) * 16] = { { 0 } },
          *columns = memory + d->band * lanes;
    for (int64_t f = 0, i, rows, some; f < d->points; f += rows * n) {
        rows = flux__gemm_min(most - f / n % most, d->rows);
        flux__gemm_copy(4, x + d->first + flux__axes_at(axes, f), d->x_step, 1, memory, lanes,
                        channels, d->band - (d->rows - rows) * step);
        flux__gemm_copy(4, g + (d->g_map ? flux__axes_at(d->g_map, f) : f), d->g_step, 1, columns,
                        lanes, channels, rows * n);
        for (i = 0; i < rows * n; i += some) {
            const int64_t left = d->chunk - (f + i) % d->chunk;
            some = flux__gemm_min(n - i % n, left);
            for (int64_t t = 0; t < d->taps; t += FLUX__DEPTHWISE_SUMS)
                d->run(some, memory + (i / n * step + i % n * axes->step[0]) * lanes,
                       axes->step[0] * lanes, d->at + t, columns + i * lanes, sum[0] + t * lanes);
            if (some < left && f + i + some < d->points) continue;
            for (int64_t s = 0; s < d->taps * lanes; s++)
                sum[1][s] = f + i < d->chunk ? sum[0][s] : sum[0][s] + sum[1][s], sum[0][s] = 0;
        }
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t t = 0; t < d->taps; t++) *y++ = sum[1][t * lanes + c];
}
#endif

FLUX__END_LEAN

#endif /* FLUX__CPU_DEPTHWISE_H */
