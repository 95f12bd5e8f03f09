#ifndef FLUX__CPU_GEMM_PACK_H
#define FLUX__CPU_GEMM_PACK_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "gemm_kernels.h"

/* ---------------------------------------------------------------------- cpu/gemm_pack.h
   Packing: copies of blocks of A and B for the microkernels of
   cpu/gemm_kernels.h. Contiguous columns are copied into panels as high as a
   tile, contiguous rows are transposed in registers, other strides are gathered
   element by element; B is packed interleaved, a tile's nr columns row by row.
   The im2col pack (flux__gemm_im2col_fn) copies operands that are more than a
   matrix, windows of an image or a sum over samples, straight from the
   implicit-GEMM map (flux__axes: how rows and columns are made of several
   dims).

   Invariant: nothing is read or written beyond what was asked for: the last
   vector of a run begins earlier and overlaps the one before. Panels whose
   places would crowd into one set of the cache are copied a few at a time. A
   unit for flux__gemm_up is a power of two. */

FLUX__BEGIN_LEAN

/* unit: a power of two */
static int64_t flux__gemm_up(int64_t n, int64_t unit) { return (n + unit - 1) & -unit; }
static int64_t flux__gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }

#define FLUX__GEMM_MOVE(vec, to, from) *(vec *)(void *)(to) = *(const vec *)(const void *)(from);
/* Copies `rows` rows of `bytes` contiguous bytes, from_step and to_step bytes apart. Copies of
   a size that the compiler knows are a few instructions each. */
FLUX__GEMM_FN() void flux__gemm_copy_rows(const char *from, int64_t from_step, char *to,
                                          int64_t to_step, int64_t rows, int64_t bytes) {
    int64_t i;
    for (; rows > 0; rows--, from += from_step, to += to_step) {
        const char *next = rows > 1 ? from + from_step : from;
        for (i = 0; i + 64 <= bytes; i += 64) {
            FLUX__PREFETCH(next + i)
            memcpy(to + i, from + i, 64);
        }
        if (bytes & 32) memcpy(to + i, from + i, 32), i += 32;
        if (bytes & 16) memcpy(to + i, from + i, 16), i += 16;
        if (bytes & 8) memcpy(to + i, from + i, 8), i += 8;
        if (bytes & 4) memcpy(to + i, from + i, 4);
        (void)next;
    }
}
/* Packs whole panels of A. from: contiguous columns, from_step bytes apart, of panels * tall
   bytes each. to: a panel is tall bytes (two vectors: 32, 64 or 128) of each of `columns`
   columns, contiguously, and begins columns * tall bytes after the last one. A is read in the
   order in which it lies in memory; but where panels begin at places that fall into one set of
   the cache, only as many panels are packed at a time as have room there. */
FLUX__GEMM_FN() void flux__gemm_panels(const char *from, int64_t from_step, char *to, int64_t tall,
                                       int64_t panels, int64_t columns) {
    const int64_t step = columns * tall, few = step % 2048 == 0 ? 4 : panels;
    for (int64_t p = 0, n; p < panels; p += n) {
        const char *column = from + p * tall;
        char *dest = to + p * step;
        n = panels - p < few ? panels - p : few;
        for (int64_t k = 0; k < columns; k++, column += from_step, dest += tall) {
            const char *s = column, *next = columns - k > 2 ? s + 2 * from_step : s;
            char *d = dest;
            int64_t q;
            if (tall == 128)
                for (q = 0; q < n; q++, s += 128, next += 128, d += step) {
                    FLUX__PREFETCH(next) FLUX__PREFETCH(next + 64)
                    memcpy(d, s, 128);
                }
            else if (tall == 64)
                for (q = 0; q < n; q++, s += 64, next += 64, d += step) {
                    FLUX__PREFETCH(next)
                    memcpy(d, s, 64);
                }
            else
                for (q = 0; q < n; q++, s += 32, d += step) memcpy(d, s, 32);
            (void)next;
        }
    }
}
/* The interleaved pack: `pieces` contiguous pieces of `bytes` bytes each go to places to_step
   bytes apart. 24 and 48 bytes are what the largest tiles take of a row of B. */
FLUX__GEMM_FN() void flux__gemm_interleave(const char *from, char *to, int64_t to_step, int64_t pieces,
                                     int64_t bytes) {
    if (bytes == 24)
        for (; pieces > 0; pieces--, from += 24, to += to_step) memcpy(to, from, 24);
    else if (bytes == 48)
        for (; pieces > 0; pieces--, from += 48, to += to_step) memcpy(to, from, 48);
    else flux__gemm_copy_rows(from, bytes, to, to_step, pieces, bytes);
}
/* Copies rows x columns elements one by one, for any strides `row` and `column`; in the copy
   rows are 1 and columns to_step elements apart. */
#define FLUX__GEMM_GATHER(name, type)                                                              \
    FLUX__GEMM_FN() void name(const void *from, int64_t row, int64_t column, void *to,             \
                              int64_t to_step, int64_t rows, int64_t columns) {                    \
        int64_t r, i;                                                                              \
        for (i = 0; i < columns; i++)                                                              \
            for (r = 0; r < rows; r++)                                                             \
                ((type *)to)[r + i * to_step] = ((const type *)from)[r * row + i * column];        \
    }
FLUX__GEMM_GATHER(flux__gemm_gather4, float)
FLUX__GEMM_GATHER(flux__gemm_gather8, double)

#if FLUX__GEMM_VECTORS
/* Transposes rows x columns elements: contiguous rows, from_step elements apart, become columns
   to_step apart. Squares of n x n elements are transposed in registers, in an order in which
   whole cache lines are written; the last square may overlap the one before. A vector of 32
   bytes is two of 16 side by side, each with a square of its own: the results of two vectors
   that lie below one another make whole columns. What is smaller than a square is left to
   `rest`. */
#  define FLUX__TRANSPOSE_ROW(V, p) *(const V *)(const void *)(p)
#  define FLUX__TRANSPOSE_PUT(V, column, x) *(V *)(void *)(d + (column) * to_step) = x;
#  define FLUX__TRANSPOSE_4(V, ints, lanes, s, a, b, c, e)                                              \
    { V one = FLUX__TRANSPOSE_ROW(V, s), two = FLUX__TRANSPOSE_ROW(V, s + from_step), low, high;             \
      V three = FLUX__TRANSPOSE_ROW(V, s + 2 * from_step), four = FLUX__TRANSPOSE_ROW(V, s + 3 * from_step); \
      FLUX__SHUFFLE(low, one, two, ints, lanes(0, 4, 1, 5)) FLUX__SHUFFLE(high, three, four, ints, lanes(0, 4, 1, 5)) \
      FLUX__SHUFFLE(a, low, high, ints, lanes(0, 1, 4, 5)) FLUX__SHUFFLE(b, low, high, ints, lanes(2, 3, 6, 7)) \
      FLUX__SHUFFLE(low, one, two, ints, lanes(2, 6, 3, 7)) FLUX__SHUFFLE(high, three, four, ints, lanes(2, 6, 3, 7)) \
      FLUX__SHUFFLE(c, low, high, ints, lanes(0, 1, 4, 5)) FLUX__SHUFFLE(e, low, high, ints, lanes(2, 3, 6, 7)) }
#  define FLUX__TRANSPOSE_2(V, ints, lanes, s, a, b)                                                    \
    { V one = FLUX__TRANSPOSE_ROW(V, s), two = FLUX__TRANSPOSE_ROW(V, s + from_step);                        \
      FLUX__SHUFFLE(a, one, two, ints, lanes(0, 2)) FLUX__SHUFFLE(b, one, two, ints, lanes(1, 3)) }
#  define FLUX__TRANSPOSE_JOIN(V, ints, column, a, b, ...)                                              \
    { V joined; FLUX__SHUFFLE(joined, a, b, ints, __VA_ARGS__) FLUX__TRANSPOSE_PUT(V, column, joined) }
#  define FLUX__TRANSPOSE_JOIN8(V, at, ...)                                                             \
    FLUX__TRANSPOSE_JOIN(V, flux__vec32i, at, a, f, __VA_ARGS__) FLUX__TRANSPOSE_JOIN(V, flux__vec32i, at + 1, b, g, __VA_ARGS__) \
    FLUX__TRANSPOSE_JOIN(V, flux__vec32i, at + 2, c, h, __VA_ARGS__) FLUX__TRANSPOSE_JOIN(V, flux__vec32i, at + 3, e, k, __VA_ARGS__)
#  define FLUX__TRANSPOSE_JOIN4(V, at, ...)                                                             \
    FLUX__TRANSPOSE_JOIN(V, flux__vec32l, at, a, c, __VA_ARGS__) FLUX__TRANSPOSE_JOIN(V, flux__vec32l, at + 1, b, e, __VA_ARGS__)
#  define FLUX__TRANSPOSE_F16(V)                                                                        \
    V a, b, c, e;                                                                                  \
    FLUX__TRANSPOSE_4(V, flux__vec16i, FLUX__LANES4, s, a, b, c, e)                                   \
    FLUX__TRANSPOSE_PUT(V, 0, a) FLUX__TRANSPOSE_PUT(V, 1, b) FLUX__TRANSPOSE_PUT(V, 2, c) FLUX__TRANSPOSE_PUT(V, 3, e)
#  define FLUX__TRANSPOSE_F32(V)                                                                        \
    V a, b, c, e, f, g, h, k;                                                                      \
    const float *below = s + 4 * from_step;                                                        \
    FLUX__TRANSPOSE_4(V, flux__vec32i, FLUX__LANES8, s, a, b, c, e)                                   \
    FLUX__TRANSPOSE_4(V, flux__vec32i, FLUX__LANES8, below, f, g, h, k)                               \
    FLUX__TRANSPOSE_JOIN8(V, 0, 0, 1, 2, 3, 8, 9, 10, 11) FLUX__TRANSPOSE_JOIN8(V, 4, 4, 5, 6, 7, 12, 13, 14, 15)
#  define FLUX__TRANSPOSE_D16(V)                                                                        \
    V a, b;                                                                                        \
    FLUX__TRANSPOSE_2(V, flux__vec16l, FLUX__LANES2, s, a, b)                                         \
    FLUX__TRANSPOSE_PUT(V, 0, a) FLUX__TRANSPOSE_PUT(V, 1, b)
#  define FLUX__TRANSPOSE_D32(V)                                                                   \
    V a, b, c, e;                                                                                  \
    const double *below = s + 2 * from_step;                                                       \
    FLUX__TRANSPOSE_2(V, flux__vec32l, FLUX__LANES22, s, a, b) FLUX__TRANSPOSE_2(V, flux__vec32l, FLUX__LANES22, below, c, e) \
    FLUX__TRANSPOSE_JOIN4(V, 0, 0, 1, 4, 5) FLUX__TRANSPOSE_JOIN4(V, 2, 2, 3, 6, 7)
#  define FLUX__GEMM_TRANSPOSE(name, type, vec, n, square, rest, target)                           \
    FLUX__GEMM_FN(target) void name(const type *from, int64_t from_step, type *to, int64_t to_step, int64_t rows, int64_t columns) { \
        int64_t r, i, x, y, left, squares, step, from_down;                                        \
        if (rows < n || columns < n) rest(from, from_step, to, to_step, rows, columns);            \
        else for (r = 0; r < rows; r += squares * n) {                                             \
            y = r < rows - n ? r : rows - n, left = rows - y;                                      \
            squares = left >= 4 * n ? 4 : left > n ? 2 : 1;                                        \
            step = left < 2 * n ? left - n : n, from_down = step * from_step;                      \
            for (i = 0; i < columns; i += n) {                                                     \
                x = i < columns - n ? i : columns - n;                                             \
                const type *s = from + y * from_step + x;                                          \
                type *d = to + x * to_step + y;                                                    \
                for (left = squares; left > 0; left--, s += from_down, d += step) { square(vec) }  \
            }                                                                                      \
        }                                                                                          \
    }
#  define FLUX__TRANSPOSE_REST4(from, step, to, to_step, rows, columns)                                 \
    flux__gemm_gather4(from, step, 1, to, to_step, rows, columns)
#  define FLUX__TRANSPOSE_REST8(from, step, to, to_step, rows, columns)                                 \
    flux__gemm_gather8(from, step, 1, to, to_step, rows, columns)
FLUX__GEMM_TRANSPOSE(flux__gemm_transpose4, float, flux__vec16f, 4, FLUX__TRANSPOSE_F16, FLUX__TRANSPOSE_REST4, )
FLUX__GEMM_TRANSPOSE(flux__gemm_transpose8, double, flux__vec16d, 2, FLUX__TRANSPOSE_D16, FLUX__TRANSPOSE_REST8, )
#  if FLUX__X86
FLUX__GEMM_TRANSPOSE(flux__gemm_transpose4_avx2, float, flux__vec32f, 8, FLUX__TRANSPOSE_F32, flux__gemm_transpose4,
                FLUX__AVX2)
FLUX__GEMM_TRANSPOSE(flux__gemm_transpose8_avx2, double, flux__vec32d, 4, FLUX__TRANSPOSE_D32, flux__gemm_transpose8,
                FLUX__AVX2)
#    define FLUX__TRANSPOSE(name) (flux__simd() ? name##_avx2 : name)
#  endif
#else
static void flux__gemm_transpose4(const float *from, int64_t from_step, float *to, int64_t to_step,
                             int64_t rows, int64_t columns) {
    flux__gemm_gather4(from, from_step, 1, to, to_step, rows, columns);
}
static void flux__gemm_transpose8(const double *from, int64_t from_step, double *to,
                                  int64_t to_step,
                             int64_t rows, int64_t columns) {
    flux__gemm_gather8(from, from_step, 1, to, to_step, rows, columns);
}
#endif
#ifndef FLUX__TRANSPOSE
#  define FLUX__TRANSPOSE(name) name
#endif

/* Packs rows x columns elements of `size` bytes with strides `row` and `column` (in elements)
   into columns to_step elements apart, each contiguous, in the fastest way for these strides. */
static void flux__gemm_copy(int64_t size, const void *from, int64_t row, int64_t column, void *to,
                            int64_t to_step, int64_t rows, int64_t columns) {
    const float *f = (const float *)from;
    const double *d = (const double *)from;
    if (row == 1)
        flux__gemm_copy_rows((const char *)from, column * size, (char *)to, to_step * size, columns,
                             rows * size);
    else if (size == 4 && column == 1)
        FLUX__TRANSPOSE(flux__gemm_transpose4)(f, row, (float *)to, to_step, rows, columns);
    else if (size == 4) flux__gemm_gather4(f, row, column, to, to_step, rows, columns);
    else if (column == 1)
        FLUX__TRANSPOSE(flux__gemm_transpose8)(d, row, (double *)to, to_step, rows, columns);
    else flux__gemm_gather8(d, row, column, to, to_step, rows, columns);
}

/* ---- the im2col pack: operands that are more than a matrix, as the windows of an image, or a
   sum that also goes over samples */

/* n words: where the first is, from the point's start, and its place in the copy */
typedef struct flux__gemm_run { int64_t from, to, n; } flux__gemm_run;

/* Copies the runs once for each of the points first ... first+count-1 of `across`; copies of
   points are to_step words apart. A run's words are `step` apart in `from` and contiguous in
   the copy; an element is `words` words, one or two. */
typedef void (*flux__gemm_im2col_fn)(int64_t words, const float *from, const flux__axes *across,
                                     int64_t first, int64_t count, const flux__gemm_run *run,
                                     int64_t runs, int64_t step, float *to, int64_t to_step);

/* The offset of point `flat`, and its index in each dim. */
static int64_t flux__axes_point(const flux__axes *x, int64_t flat, int64_t *place) {
    int64_t at = 0;
    for (int d = 0; d < x->nd; d++) {
        place[d] = flat % x->dim[d];
        flat /= x->dim[d];
        at += place[d] * x->step[d];
    }
    return at;
}

/* Steps to the next point of the dims from d on: updates the indices and returns the change of
   the offset. */
static FLUX__INLINE int64_t flux__axes_next(const flux__axes *x, int d, int64_t *place) {
    int64_t far = 0;
    for (; d < x->nd; d++) {
        far += x->step[d];
        if (++place[d] < x->dim[d]) break;
        far -= x->step[d] * x->dim[d];
        place[d] = 0;
    }
    return far;
}

/* Runs are short, such as rows of an image: they are copied in whole vectors, the last of which
   may overlap the one before. */
#define FLUX__GEMM_ENDS(vec) {                                                                     \
        FLUX__GEMM_MOVE(vec, q, p)                                                                 \
        i = n - (int)(sizeof(vec) / sizeof *q);                                                    \
        FLUX__GEMM_MOVE(vec, q + i, p + i)                                                         \
    }
#define FLUX__GEMM_IM2COL(name, vec, half, least, evens, target)                                   \
    FLUX__GEMM_FN(target) void name(int64_t words, const float *from, const flux__axes *across, int64_t first, int64_t count, \
                                    const flux__gemm_run *run, int64_t runs, int64_t step, float *to, int64_t to_step) { \
        const int64_t size = (int)sizeof(float), lanes = (int)sizeof(vec) / size;                  \
        int64_t place[FLUX_MAX_DIMS], r, i;                                                        \
        const float *s = from + words * flux__axes_point(across, first, place);                    \
        for (; count > 0; count--, to += to_step, s += words * flux__axes_next(across, 0, place))  \
            for (r = 0; r < runs; r++) {                                                           \
                const float *p = s + run[r].from;                                                  \
                float *q = to + run[r].to;                                                         \
                int64_t n = run[r].n;                                                              \
                if (step != 1 || n * size < (int)sizeof(least)) {                                  \
                    i = 0;                                                                         \
                    if (step == 2) { evens(q, p) }                                                 \
                    for (; i < n; i++) q[i] = p[i * step];                                         \
                }                                                                                  \
                else if (n * size < (int)sizeof(half)) FLUX__GEMM_ENDS(least)                      \
                else if (n < lanes) FLUX__GEMM_ENDS(half)                                          \
                else {                                                                             \
                    for (i = 0; i + lanes <= n; i += lanes) FLUX__GEMM_MOVE(vec, q + i, p + i)     \
                    if (i < n) FLUX__GEMM_MOVE(vec, q + n - lanes, p + n - lanes)                  \
                }                                                                                  \
            }                                                                                      \
    }

#if !FLUX__GEMM_VECTORS
#  define FLUX__EVENS(to, from)
FLUX__GEMM_IM2COL(flux__im2col_base, float, float, float, FLUX__EVENS, )
#else
/* Copies every second word, without reading past the last of them. */
#  if defined(__clang__)
#    define FLUX__EVEN(vec, ints, to, from, ...)                                                   \
        *(vec *)(void *)(to) = __builtin_shufflevector(((const vec *)(const void *)(from))[0], ((const vec *)(const void *)(from))[1], __VA_ARGS__);
#  else
#    define FLUX__EVEN(vec, ints, to, from, ...) {                                                 \
        ints even = {__VA_ARGS__};                                                                 \
        *(vec *)(void *)(to) = __builtin_shuffle(((const vec *)(const void *)(from))[0], ((const vec *)(const void *)(from))[1], even); \
    }
#  endif
#  define FLUX__EVEN4(to, from) FLUX__EVEN(flux__vec16f, flux__vec16i, to, from, 0, 2, 4, 6)
#  define FLUX__EVEN16(to, from)                                                                   \
    FLUX__EVEN(flux__vec64f, flux__vec64i, to, from, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,        \
               22, 24, 26, 28, 30)
#  define FLUX__EVENS(lanes, even, to, from) {                                                     \
        for (; i + lanes < n; i += lanes) even(to + i, from + 2 * i)                               \
        i = n - 1;                                                                                 \
        even(to + i - lanes, from + 2 * (i - lanes))                                               \
    }
#  define FLUX__EVENS4(to, from) if (n > 4) FLUX__EVENS(4, FLUX__EVEN4, to, from)
#  define FLUX__EVENS16(to, from)                                                                  \
    if (n > 16) FLUX__EVENS(16, FLUX__EVEN16, to, from)                                            \
    else FLUX__EVENS4(to, from)
FLUX__GEMM_IM2COL(flux__im2col_base, flux__vec16f, flux__vec16f, flux__vec16f,
                   FLUX__EVENS4, )
#  if FLUX__X86
FLUX__GEMM_IM2COL(flux__im2col_avx2, flux__vec32f, flux__vec16f, flux__vec16f, FLUX__EVENS4,
                   FLUX__AVX2)
FLUX__GEMM_IM2COL(flux__im2col_avx512, flux__vec64f, flux__vec32f, flux__vec16f,
                   FLUX__EVENS16, FLUX__AVX512)
#  endif
#endif

/* The im2col pack for this processor. */
static flux__gemm_im2col_fn flux__gemm_im2col_now(void) {
#if FLUX__GEMM_VECTORS && FLUX__X86
    if (flux__simd() > 0) return flux__simd() > 1 ? flux__im2col_avx512 : flux__im2col_avx2;
#endif
    return flux__im2col_base;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_GEMM_PACK_H */
