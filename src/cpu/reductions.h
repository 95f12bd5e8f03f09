#ifndef FLUX__CPU_REDUCTIONS_H
#define FLUX__CPU_REDUCTIONS_H
#include "../base/platform.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"

/* ---------------------------------------------------------------------- cpu/reductions.h
   Reductions of tiles: identities, joining of partial results, rows with the
   order of flux__join_order (flux__join_long), counting of bools, and argmax
   and argmin.

   Invariant: a long reduction is taken in chunks, one after the other, and in
   parts that threads share; both are said by flux__join_order, that is by the
   shape alone. Sums of f32 chunks are added up in double. A maximum or minimum
   of zeros is +0, since which zero is found would be a matter of order. NaN
   wins: a maximum is NaN if an element is, and argmax gives the first NaN, else
   the first of equals. Of short rows several are taken at a time; a row with
   NaN is found by its sum, which costs less than comparing every element. */

FLUX__BEGIN_NUMBERS

/* Stores a reduction's identity: 0, 1, the lowest or the highest number. */
static void flux__identity(int ctype, int red, void *out) {
    const bool narrow = ctype == FLUX__I32C;
    const double real[] = { 0, 1, -HUGE_VAL, HUGE_VAL };
    const int64_t whole[] = { 0, 1, narrow ? INT32_MIN : INT64_MIN,
                              narrow ? INT32_MAX : INT64_MAX };
    if (ctype <= FLUX__F64C) flux__convert(ctype, out, FLUX__F64C, real + red, 1);
    else flux__convert(ctype, out, FLUX__I64C, whole + red, 1);
}

/* out[i] = x[i] op y[i]; flux__accumulate: acc[i] = acc[i] op x[i]. */
static void flux__join(int ctype, int red, void *out, const void *x, const void *y, int64_t n) {
    static const int op[] = { FLUX__OP_ADD, FLUX__OP_MUL, FLUX__OP_MAX2, FLUX__OP_MIN2 };
    flux__loop_run(ctype, flux__loop_for(ctype, op[red]), n, out, x, y, x, 1, 1, 1);
}
static void flux__accumulate(int ctype, int red, void *acc, const void *x, int64_t n) {
    flux__join(ctype, red, acc, acc, x, n);
}
/* Turns -0 among n maxima or minima into +0: which of several zeros is found depends on the
   order. */
static void flux__settle_zeros(int ctype, int red, void *acc, int64_t n) {
    float *f = (float *)acc;
    double *d = (double *)acc;
    for (int64_t i = 0; red >= FLUX__RED_MAX && i < n; i++)
        if (ctype == FLUX__F32C) f[i] += 0.0f;
        else d[i] += 0.0;
}

/* The horizontal reduction of rows, for a compute type. */
static flux__hreduce_fn flux__hreduce_for(int ctype, int red) {
    static const flux__hreduce_fn *const tables[] = {
        NULL, flux__hreduces_f64, flux__hreduces_i32, flux__hreduces_i64 };
    return (ctype == FLUX__F32C ? flux__section_now()->hreduces : tables[ctype])[red];
}
/* acc[r] = acc[r] op x[0] op ... op x[n-1] for each row r of n contiguous numbers; rows follow
   each other. Long rows are halved, so that a sum's error hardly grows. */
static void flux__reduce_rows(int ctype, int red, void *acc, const void *x, int64_t n,
                              int64_t rows) {
    const size_t size = flux__class_size[ctype];
    for (; n > 4096 && rows > 0; rows--, acc = (char *)acc + size,
         x = (const char *)x + (size_t)n * size) {
        const int64_t half = (n / 2 + 4095) / 4096 * 4096;
        double part;
        flux__identity(ctype, red, &part);
        flux__reduce_rows(ctype, red, &part, x, half, 1);
        flux__reduce_rows(ctype, red, &part, (const char *)x + (size_t)half * size, n - half, 1);
        flux__accumulate(ctype, red, acc, &part, 1);
    }
    if (rows > 0) flux__hreduce_for(ctype, red)(acc, x, n, rows);
}
static void flux__reduce(int ctype, int red, void *acc, const void *x, int64_t n) {
    flux__reduce_rows(ctype, red, acc, x, n, 1);
}

/* The first reduced point of a part. */
static int64_t flux__part_start(const flux__join_order *o, int64_t part) {
    const int64_t at = part == 0 || part == o->parts ? part * o->inner :
        (o->inner + o->chunk - 1) / o->chunk * part / o->parts * o->chunk;
    return at < o->inner ? at : o->inner;
}
/* *acc = x[0] op x[1] ... for a row of several chunks, which are joined in order, and so are
   the parts. f32 sums of chunks are added up in double. */
static void flux__join_long(const flux__join_order *o, flux__hreduce_fn hreduce, int ctype, int red,
                            void *acc, const void *x) {
    const int64_t size = flux__class_size[ctype];
    const bool wide = ctype == FLUX__F32C && red == FLUX__RED_SUM;
    double all = 0;
    for (int part = 0; part < o->parts; part++) {
        double sum = 0, joined = 0;
        const int64_t end = flux__part_start(o, part + 1);
        if (!wide) flux__identity(ctype, red, &joined);
        for (int64_t r = flux__part_start(o, part), m; r < end; r += m) {
            float one = 0;
            m = end - r < o->chunk ? end - r : o->chunk;
            hreduce(wide ? (void *)&one : (void *)&joined, (const char *)x + r * size, m, 1);
            sum += (double)one;
        }
        all += (double)(float)sum;
        if (wide) continue;
        if (part == 0) memcpy(acc, &joined, (size_t)size);
        else flux__accumulate(ctype, red, acc, &joined, 1);
    }
    if (wide) *(float *)acc = (float)all;
}

/* Bytes that are not 0 are counted eight at a time: each byte of a sum can count those of up to
   254 words. */
#define FLUX__BYTES(b) (UINT64_C(0x0101010101010101) * (b))
static FLUX__INLINE uint64_t flux__true_bytes(const uint8_t *x) {
    uint64_t word;
    memcpy(&word, x, sizeof word);
    return ((((word & FLUX__BYTES(127)) + FLUX__BYTES(127)) | word) >> 7) & FLUX__BYTES(1);
}
/* count[r] = how many of the n bytes of row r are not 0; rows follow each other. */
static void flux__count_bytes(int32_t *count, const uint8_t *x, int64_t n, int64_t rows) {
    static const uint8_t first[16] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const uint8_t *const end = x + n * rows;
    uint64_t kept;
    memcpy(&kept, first + 8 - n % 8, sizeof kept);
    for (; rows > 0; rows--, count++) {
        const uint8_t *const next = x + n;
        uint64_t sum = 0;
        int32_t all = 0;
        for (const uint8_t *stop; next - x >= 8;
             all += (int32_t)(sum * UINT64_C(0x1000100010001) >> 48), sum = 0) {
            stop = next - x > 8 * 254 ? x + 8 * 254 : next - (next - x) % 8;
            for (; x < stop; x += 8) sum += flux__true_bytes(x);
            sum = (sum & UINT64_C(0xff00ff00ff00ff)) + ((sum >> 8) & UINT64_C(0xff00ff00ff00ff));
        }
        if (n % 8 && end - x >= 8)
            all += (int32_t)((flux__true_bytes(x) & kept) * FLUX__BYTES(1) >> 56), x = next;
        for (; x < next; x++) all += *x != 0;
        *count = all;
    }
}
/* Sums of 0 and 1 as counts. */
FLUX__FAST static void flux__count_floats(int32_t *count, const float *sum, int64_t n) {
    for (int64_t i = 0; i < n; i++) count[i] = (int32_t)sum[i];
}
/* Whether each count is at least `least`, as 0 or 1. */
FLUX__FAST static void flux__count_reaches(int32_t *count, int32_t least, int64_t n) {
    for (int64_t i = 0; i < n; i++) count[i] = count[i] >= least;
}

/* The start of the first block of 64 floats that has the number or a NaN; the last one if none
   of the others has. */
FLUX__FAST static int64_t flux__skip_less(const void *in, int64_t n, float number) {
    const float *x = (const float *)in;
    int64_t at = 0;
    for (; n - at >= 64; at += 64) {
        int32_t found = 0;
        for (int k = 0; k < 64; k++) found |= (x[at + k] == number) | (x[at + k] != x[at + k]);
        if (found) break;
    }
    return at;
}

/* argreduce: the index of the largest (max) or smallest number of a row, whose first element
   has the index `first`: the first of equals, but the first NaN before all others; *acc and
   *index hold the best so far, and an index below 0 says that there is none yet. argaccumulate:
   the same for n columns, element `now` of each. */
#define FLUX__ARG(name, T, I, ctype, fast)                                                           \
static FLUX__INLINE bool flux__beats_##name(T x, T best, bool max) {                                 \
    return best == best && (x != x || (max ? x > best : x < best));                                  \
}                                                                                                    \
static void flux__argreduce_##name(bool max, void *acc, int64_t *index, const void *in, int64_t n,   \
                                   int64_t first) {                                                  \
    const T *x = (const T *)in;                                                                      \
    T *best = (T *)acc, top;                                                                         \
    int64_t i = 0;                                                                                   \
    for (; n < 16 && i < n; i++)                                                                     \
        if (*index < 0 || flux__beats_##name(x[i], *best, max)) *best = x[i], *index = first + i;    \
    if (n < 16) return;                                                                              \
    memcpy(&top, x, sizeof top);                                                                     \
    flux__reduce(ctype, max ? FLUX__RED_MAX : FLUX__RED_MIN, &top, x, n);                            \
    if (*index >= 0 && !flux__beats_##name(top, *best, max)) return;                                 \
    if (ctype == FLUX__F32C) i = flux__skip_less(in, n, (float)top);                                 \
    while (top == top ? x[i] != top : x[i] == x[i]) i++;                                             \
    *best = x[i];                                                                                    \
    *index = first + i;                                                                              \
}                                                                                                    \
fast static void flux__argaccumulate_##name(bool max, void *acc, int64_t *index, const void *in,     \
                                            int64_t n, int64_t now) {                                \
    const T *x = (const T *)in;                                                                      \
    T *best = (T *)acc;                                                                              \
    I take[64];      /* masks of ones or zeros: a branch could not be predicted */                   \
    for (int64_t i = 0; i < n && index[i] < 0; i++) best[i] = x[i], index[i] = now;                  \
    for (int64_t i = 0, m; i < n; i += m, x += m, best += m) {                                       \
        m = n - i < 64 ? n - i : 64;                                                                 \
        if (max) FLUX__ARG_TAKE(T, I, >) else FLUX__ARG_TAKE(T, I, <)                                \
        for (int64_t k = 0; k < m; k++) index[i + k] ^= (index[i + k] ^ now) & (int64_t)take[k];     \
    }                                                                                                \
}
#define FLUX__ARG_TAKE(T, I, beats)                                                                  \
        for (int64_t k = 0; k < m; k++) {                                                            \
            const T old = best[k], v = x[k];                                                         \
            take[k] = (I)-(I)((old == old) & ((v != v) | (v beats old)));                            \
            best[k] = take[k] ? v : old;                                                             \
        }
FLUX__ARG(f32, float, int32_t, FLUX__F32C, FLUX__FAST)
FLUX__ARG(f64, double, int64_t, FLUX__F64C, )
FLUX__ARG(i32, int32_t, int32_t, FLUX__I32C, )
FLUX__ARG(i64, int64_t, int64_t, FLUX__I64C, )

/* Argmax and argmin of rows take four short rows at a time; for a long row it is faster to find
   the maximum first and then to look for it. A row with a NaN has a sum that is NaN. */
#define FLUX__ARG_SHORT 256
/* best[r], index[r]: the largest (max) or smallest number of row r and its index, counted from
   `first`; what they held before does not matter. */
static void flux__argreduce_rows(bool max, float *best, int64_t *index, const float *x, int64_t n,
                                 int64_t rows, int64_t first) {
#if FLUX__VECTORS
    const int32_t sign = max ? 0 : INT32_MIN;
    const flux__quad_bits none = { 0, 0, 0, 0 }, one = { 1, 1, 1, 1 },
        flip = { sign, sign, sign, sign };
    const flux__quad zero = { 0, 0, 0, 0 }, least = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    for (; n <= FLUX__ARG_SHORT && rows >= 4; rows -= 4, x += 4 * n, best += 4, index += 4) {
        const float *x1 = x + n, *x2 = x1 + n, *x3 = x2 + n;
        flux__quad top = least, sum = zero;
        flux__quad_bits at = none, now = none;
        for (int64_t i = 0; i < n; i++, now += one) {
            const flux__quad v = { x[i], x1[i], x2[i], x3[i] },
                             y = (flux__quad)((flux__quad_bits)v ^ flip);
            const flux__quad_bits more = y > top;
            sum += v, top = flux__quad_pick(more, y, top), at = (more & now) | (~more & at);
        }
        const flux__two_words nans = (flux__two_words)(sum != sum);
        top = (flux__quad)((flux__quad_bits)top ^ flip);
        memcpy(best, &top, sizeof top);
        index[0] = first + at[0], index[1] = first + at[1], index[2] = first + at[2],
            index[3] = first + at[3];
        for (int r = 0; r < 4 && (nans[0] | nans[1]); r++)
            index[r] = -1, flux__argreduce_f32(max, best + r, index + r, x + r * n, n, first);
    }
#endif
    for (; rows > 0; rows--, x += n, best++, index++)
        *index = -1, flux__argreduce_f32(max, best, index, x, n, first);
}
typedef void (*flux__arg_fn)(bool max, void *best, int64_t *index, const void *x, int64_t n,
                             int64_t at);

/* Updates best and index by the row x, whose first element has the index `first`. */
FLUX__UNUSED static void flux__argreduce(int ctype, bool max, void *best, int64_t *index,
                                         const void *x, int64_t n, int64_t first) {
    static const flux__arg_fn table[] = { flux__argreduce_f32, flux__argreduce_f64,
                                          flux__argreduce_i32, flux__argreduce_i64 };
    table[ctype](max, best, index, x, n, first);
}
/* Updates best[i] and index[i] by x[i]; all x have the index `now` in their column. */
FLUX__UNUSED static void flux__argaccumulate(int ctype, bool max, void *best, int64_t *index,
                                             const void *x, int64_t n, int64_t now) {
    static const flux__arg_fn table[] = { flux__argaccumulate_f32, flux__argaccumulate_f64,
                                          flux__argaccumulate_i32, flux__argaccumulate_i64 };
    table[ctype](max, best, index, x, n, now);
}

FLUX__END_NUMBERS

#endif /* FLUX__CPU_REDUCTIONS_H */
