#ifndef FLUX__CPU_INTERPOLATION_H
#define FLUX__CPU_INTERPOLATION_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../graph/windows.h" /* flux__product */
#include "../graph/interpolation.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"
#include "gemm_kernels.h" /* flux__vec16f, flux__vec16d */
#include "gemm_pack.h"
#include "whole.h"

/* ---------------------------------------------------------------------- cpu/interpolation.h
   Linear interpolation and its reverse: a pass along each dim, image after image,
   so that what lies between two passes stays in the cache. A pass takes whole rows:
   each of its result is a sum of a few of its operand's, with weights that are the
   same for all images and found before. Along the first dim, rows are columns:
   some of them are transposed on the way in and out.

   Invariant: sums go in the order of the operand's elements. The dims go from the
   first, the reverse from the last, which leaves the first, the dearest, the
   smallest image. Threads share images. */

FLUX__BEGIN_LEAN

/* most rows that are transposed at a time, and elements of them */
enum { FLUX__LERP_ROWS = 64, FLUX__LERP_ROOM = 1 << 15 };

/* A pass along a dim: element k of `to` is the sum of the operand's from read[k] on, as many as
   there are weights from at[k] to at[k+1]. */
typedef struct flux__lerps_pass {
    int dim;
    int64_t from, to, *read, *at;
    char *weight;                         /* of the operand's dtype */
} flux__lerps_pass;

typedef struct flux__lerps_job {
    const flux__operand *x;
    const char *from;
    char *to;
    int image, npass;                     /* dims of an image, passes */
    flux__lerps_pass pass[FLUX_MAX_DIMS];
    int64_t images, each;                 /* images in all, and in a task */
    int64_t count[2], most, columns;      /* elements of an image before and after, most between
                                             two passes, and memory for transposed rows */
    bool plain;                           /* an image lies as it is needed */
    int failed;
} flux__lerps_job;

/* The sums of rows of m elements of type T, four and one vector V of n a time. */
#if FLUX__GEMM_VECTORS
#  define FLUX__LERPS_AT(V, v) (*(const V *)(const void *)(at + i + v * (int64_t)(sizeof(V) / sizeof *at)))
#  define FLUX__LERPS_VECTORS(T, V, n)                                                             \
        for (V a, c, d, e, *to; m - i >= 4 * n; i += 4 * n) {                                      \
            at = from, a = FLUX__LERPS_AT(V, 0) * w[0], c = FLUX__LERPS_AT(V, 1) * w[0],           \
                d = FLUX__LERPS_AT(V, 2) * w[0], e = FLUX__LERPS_AT(V, 3) * w[0];                  \
            for (j = 1; j < terms; j++) {                                                          \
                at += m;                                                                           \
                a += FLUX__LERPS_AT(V, 0) * w[j], c += FLUX__LERPS_AT(V, 1) * w[j],                \
                    d += FLUX__LERPS_AT(V, 2) * w[j], e += FLUX__LERPS_AT(V, 3) * w[j];            \
            }                                                                                      \
            to = (V *)(void *)(y + i), to[0] = a, to[1] = c, to[2] = d, to[3] = e;                 \
        }                                                                                          \
        for (V a; m - i >= n; i += n) {                                                            \
            at = from, a = FLUX__LERPS_AT(V, 0) * w[0];                                            \
            for (j = 1; j < terms; j++) at += m, a += FLUX__LERPS_AT(V, 0) * w[j];                 \
            *(V *)(void *)(y + i) = a;                                                             \
        }
#  define FLUX__LERPS_FN(target) FLUX__GEMM_FN(target)
#else
#  define FLUX__LERPS_VECTORS(T, V, n)
#  define FLUX__LERPS_FN(target) static
#endif
#define FLUX__LERPS_SUMS(name, T, V, n, target)                                                    \
    FLUX__LERPS_FN(target) void name(const flux__lerps_pass *b, int64_t m, const T *x, T *y) {     \
        for (int64_t k = 0, i, j; k < b->to; k++, y += m) {                                        \
            const T *from = x + b->read[k] * m,                                                    \
                    *w = (const T *)(const void *)b->weight + b->at[k], *at;                       \
            const int64_t terms = b->at[k + 1] - b->at[k];                                         \
            if (!terms) memset(y, 0, (size_t)m * sizeof *y);                                       \
            if (!terms) continue;                                                                  \
            i = 0;                                                                                 \
            FLUX__LERPS_VECTORS(T, V, n)                                                           \
            for (T s; i < m; i++) {                                                                \
                for (s = from[i] * w[0], at = from, j = 1; j < terms; j++)                         \
                    at += m, s += at[i] * w[j];                                                    \
                y[i] = s;                                                                          \
            }                                                                                      \
        }                                                                                          \
    }
FLUX__LERPS_SUMS(flux__lerps_sums4, float, flux__vec16f, 4, )
FLUX__LERPS_SUMS(flux__lerps_sums8, double, flux__vec16d, 2, )
#if FLUX__GEMM_VECTORS && FLUX__X86
FLUX__LERPS_SUMS(flux__lerps_sums4_avx2, float, flux__vec32f, 8, FLUX__AVX2)
FLUX__LERPS_SUMS(flux__lerps_sums8_avx2, double, flux__vec32d, 4, FLUX__AVX2)
#endif

/* A pass over `rest` images whose dim follows `inner` elements. columns: memory for rows that are
   transposed. */
#define FLUX__LERPS_PASS(name, T, sums, transpose)                                                 \
    static void name(const flux__lerps_pass *b, int64_t inner, int64_t rest, const T *x, T *y,     \
                     T *columns) {                                                                 \
        const int64_t rows = flux__gemm_min(FLUX__LERP_ROOM / (b->from + b->to), FLUX__LERP_ROWS); \
        T *made = columns + rows * b->from;                                                        \
        for (int64_t r = 0, m; r < rest; r += m) {                                                 \
            m = inner > 1 || rows < 4 || rest - r < 4 ? 1 : rest - r < rows ? rest - r : rows;     \
            const T *from = x + r * b->from * inner;                                               \
            T *to = y + r * b->to * inner;                                                         \
            if (m == 1) FLUX__TRANSPOSE(sums)(b, inner, from, to);                                 \
            else {                                                                                 \
                FLUX__TRANSPOSE(transpose)(from, b->from, columns, m, m, b->from);                 \
                FLUX__TRANSPOSE(sums)(b, m, columns, made);                                        \
                FLUX__TRANSPOSE(transpose)(made, m, to, b->to, b->to, m);                          \
            }                                                                                      \
        }                                                                                          \
    }
FLUX__LERPS_PASS(flux__lerps_pass4, float, flux__lerps_sums4, flux__gemm_transpose4)
FLUX__LERPS_PASS(flux__lerps_pass8, double, flux__lerps_sums8, flux__gemm_transpose8)

/* All passes over an image. between: memory for two images that lie between passes, and behind
   them for rows. */
static void flux__lerps_image(const flux__lerps_job *j, const char *x, char *y, char *between) {
    const bool wide = j->x->dtype == FLUX_F64;
    const size_t bytes = (size_t)j->most * flux__dtypes[j->x->dtype].size;
    flux_shape s = j->x->shape;
    s.ndim = j->image;
    if (!j->plain) {
        int64_t step[FLUX_MAX_DIMS];
        flux__contiguous_strides(&s, step);
        flux__copy_elements(j->x->dtype, &s, between + bytes, step, x, j->x->stride, false);
        x = between + bytes;
    }
    for (int p = 0; p < j->npass; p++) {
        const flux__lerps_pass *b = &j->pass[p];
        const int64_t inner = flux__product(s.dim, b->dim),
                      rest = flux__product(s.dim + b->dim + 1, s.ndim - b->dim - 1);
        char *to = p + 1 == j->npass ? y : between + (p % 2 ? bytes : 0),
             *rows = between + 2 * bytes;
        if (wide) flux__lerps_pass8(b, inner, rest, (const double *)(const void *)x,
                                   (double *)(void *)to, (double *)(void *)rows);
        else flux__lerps_pass4(b, inner, rest, (const float *)(const void *)x, (float *)(void *)to,
                              (float *)(void *)rows);
        s.dim[b->dim] = b->to, x = to;
    }
}

static void flux__lerps_task(void *ctx, int64_t task) {
    flux__lerps_job *j = (flux__lerps_job *)ctx;
    const size_t size = flux__dtypes[j->x->dtype].size;
    const int64_t last = (task + 1) * j->each < j->images ? (task + 1) * j->each : j->images;
    char *between = (char *)flux__scratch((size_t)(2 * j->most + j->columns) * size);
    if (!between) flux__atomic_store32(&j->failed, 1);
    for (int64_t i = task * j->each; i < last && between; i++) {
        int64_t at = 0, rest = i;
        for (int d = j->image; d < j->x->shape.ndim; rest /= j->x->shape.dim[d++])
            at += rest % j->x->shape.dim[d] * j->x->stride[d];
        flux__lerps_image(j, j->from + at * (int64_t)size, j->to + i * j->count[1] * (int64_t)size,
                         between);
    }
    flux__scratch_done(between);
}

/* Writes the weights of a pass into the plan's memory at `to`; gives where they end. */
static char *flux__lerps_weights(flux__lerps_pass *b, const flux_tensor *t, char *to) {
    const flux__lerps dim = flux__lerps_of(t, b->dim);
    int64_t last;
    b->from = t->in[0]->dim[b->dim], b->to = t->dim[b->dim];
    b->read = (int64_t *)(void *)to, b->at = b->read + b->to;
    b->weight = (char *)(b->at + b->to + 1);
    b->at[0] = 0;
    for (int64_t k = 0; k < b->to; k++) {
        flux__lerps_reads(&dim, k, &b->read[k], &last);
        b->at[k + 1] = b->at[k];
        for (int64_t i = b->read[k]; i <= last; i++) {
            const double w = flux__lerps_weight(&dim, k, i);
            if (t->dtype == FLUX_F64) ((double *)(void *)b->weight)[b->at[k + 1]++] = w;
            else ((float *)(void *)b->weight)[b->at[k + 1]++] = (float)w;
        }
    }
    return b->weight + 2 * dim.m * 8;
}

/* Bytes of an interpolation's tables of weights: of a dim two at most for each that is made. */
static size_t flux__lerps_bytes(const flux_tensor *t) {
    size_t bytes = 0;
    for (int d = 0; d < t->ndim; d++)
        if (t->dim[d] != t->in[0]->dim[d])
            bytes += (size_t)(2 * t->dim[d] + 1 + 2 * flux__lerps_of(t, d).m) * 8;
    return bytes;
}

/* Runs an interpolation or its reverse: finds the passes and their weights, and what an image is,
   and shares the images out to the threads. Returns 0, or -1 with an error recorded. */
static int flux__run_interpolation(flux__run *run, flux__kernel *k) {
    const flux_tensor *t = run->g->node[k->node], *x = t->in[0];
    const bool back = t->arg.i[0] != 0;
    char *tables = (char *)k->scratch_at;
    flux__lerps_job j;
    int64_t step = 1;
    memset(&j, 0, sizeof j);
    j.x = &k->operand[0], j.from = flux__operand_ptr(run, j.x), j.plain = true;
    j.to = (char *)run->ptr[run->plan->nleaf + k->node];
    if (flux__size(t) == 0) return 0;
    for (int i = 0; i < t->ndim; i++) {
        const int d = back ? t->ndim - 1 - i : i;
        if (t->dim[d] == x->dim[d]) continue;
        j.pass[j.npass].dim = d;
        tables = flux__lerps_weights(&j.pass[j.npass++], t, tables);
        if (d >= j.image) j.image = d + 1;
    }
    /* more dims, as long as an image is small: rows are transposed some at a time */
    while (j.image < t->ndim && flux__product(t->dim, j.image + 1) < 4096 &&
           flux__product(x->dim, j.image + 1) < 4096) j.image++;
    for (int d = 0; d < j.image; step *= x->dim[d++])
        j.plain = j.plain && (x->dim[d] == 1 || j.x->stride[d] == step);
    j.count[0] = j.most = step, j.count[1] = flux__product(t->dim, j.image);
    for (int p = 0; p < j.npass; p++) {
        const int64_t both = j.pass[p].from + j.pass[p].to,
                      room = flux__gemm_min(FLUX__LERP_ROOM, FLUX__LERP_ROWS * both);
        if (room > j.columns) j.columns = room;
        step = step / j.pass[p].from * j.pass[p].to;
        if (p + 1 < j.npass && step > j.most) j.most = step;
    }
    j.images = flux__size(t) / j.count[1];
    j.each = 32768 / (j.count[0] + j.count[1]) + 1;
    flux__parallel((j.images + j.each - 1) / j.each, flux__lerps_task, &j);
    return !flux__atomic_load32(&j.failed) ||
           FLUX__REFUSE("out of memory: images on the way of an interpolation") ? 0 : -1;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_INTERPOLATION_H */
