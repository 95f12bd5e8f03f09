#ifndef FLUX__CPU_PRODUCT_OPERANDS_H
#define FLUX__CPU_PRODUCT_OPERANDS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "loops.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_amx.h"
#include "products.h"
#include "transfers.h"
#include "whole.h"
#include "padding.h"

/* ---------------------------------------------------------------------- cpu/product_operands.h
   A product's operands as they are multiplied: where they lie and with which
   strides, or for windows of an image, which are never stored, the implicit-GEMM
   maps of their rows and columns. Half formats are converted to f32, of windows
   the image; bf16 is left as it is for AMX's tiles, or becomes vnni pairs, that
   is words of two neighbours along k.

   Invariant: what multiplies half formats is chosen by shapes, dtypes and what
   flux__mark_windows has marked, never by whether an operand is gathered. */

FLUX__BEGIN_HOT

/* Whether a product is one of two bf16 matrices. */
static bool flux__both_bf16(const flux__kernel *k) {
    const flux__operand *o = k->operand;
    return o[0].dtype == FLUX_BF16 && o[1].dtype == FLUX_BF16 && k->mnk[0] > 1 && k->mnk[1] > 1 &&
           k->mnk[2] > 1;
}

/* Whether AMX's tiles compute a product. */
static bool flux__by_tiles(const flux__kernel *k) {
    return flux__both_bf16(k) && flux__amx_wants(k->mnk[0], k->mnk[1], k->mnk[2]);
}
/* What flux__mark_windows has told of a product; size 0: nothing. stride: how far its windows lie
   apart. */
typedef struct flux__square_windows {
    int64_t size, stride, wide, high;
    bool flipped, forward;
} flux__square_windows;
static flux__square_windows flux__product_mark(const flux__run *run, const flux__kernel *k) {
    const int64_t mark = run->g->node[k->node]->arg.i[3];
    const flux__square_windows m = { mark >> 2 & 15, mark >> 6 & 15, mark >> 10 & ((1 << 26) - 1),
                                     mark >> 36, (mark & 2) != 0, (mark & 1) != 0 };
    return m;
}
/* Whether a product is of 3 x 3 windows a step apart: in f32 it may take fewer multiplications
   (cpu/winograd.h). */
static bool flux__product_of_three(const flux__run *run, const flux__kernel *k) {
    const flux__square_windows m = flux__product_mark(run, k);
    return m.size == 3 && m.stride == 1;
}
/* Whether a product is multiplied as vnni pairs, by AVX-512's instruction for bf16. One of such
   windows is converted to f32. */
static bool flux__by_pairs(const flux__run *run, const flux__kernel *k) {
    return FLUX__BF16 && flux__simd() > 2 && flux__both_bf16(k) && !flux__by_tiles(k) &&
           !flux__product_of_three(run, k);
}
/* Bytes that a product's operands need where they are converted. */
static size_t flux__product_scratch(const flux__kernel *k) {
    return flux__by_tiles(k) ? 0
        : flux__widened_bytes(&k->operand[0]) + flux__widened_bytes(&k->operand[1]);
}

#if FLUX__BF16
/* Makes vnni pairs. x: n x k, with strides row and col; to: n x (k + 1) / 2 words, contiguous,
   word (i, l) of x's columns 2l and 2l + 1. The last column of an odd k is paired with zeros. */
FLUX__GEMM_FN() void flux__pair_columns(const uint16_t *x, int64_t row, int64_t col, int64_t k,
                                        int64_t n, uint32_t *to) {
    typedef uint16_t V __attribute__((vector_size(16)));
    typedef uint16_t At __attribute__((vector_size(16), aligned(2), may_alias));
    int64_t i;
    for (; k > 1; k -= 2, x += 2 * col, to += n) {
        for (i = 0; row == 1 && i + 8 <= n; i += 8) {
            V a = *(const At *)(const void *)(x + i), b = *(const At *)(const void *)(x + col + i),
              low, high;
            FLUX__SHUFFLE(low, a, b, V, 0, 8, 1, 9, 2, 10, 3, 11)
            FLUX__SHUFFLE(high, a, b, V, 4, 12, 5, 13, 6, 14, 7, 15)
            ((At *)(void *)(to + i))[0] = low, ((At *)(void *)(to + i))[1] = high;
        }
        for (; i < n; i++) to[i] = x[i * row] | (uint32_t)x[i * row + col] << 16;
    }
    for (i = 0; k > 0 && i < n; i++) to[i] = x[i * row];
}

/* Pairs an operand's neighbours along dim k into words, line by line: a line is n words of two
   columns, or of a row that has the neighbours contiguous. lines: lines of one matrix; total:
   of all; each: of a task. */
typedef struct flux__pairing {
    const flux__operand *o;
    const uint16_t *x;
    uint32_t *to;
    int k;
    int64_t lines, n, total, each;
} flux__pairing;
/* Makes the words of one task's lines. */
static void flux__pair_part(void *ctx, int64_t part) {
    const flux__pairing *t = (const flux__pairing *)ctx;
    const flux__operand *o = t->o;
    int64_t k = o->shape.dim[t->k], row = o->stride[!t->k], col = o->stride[t->k], at, rest, some;
    for (int64_t line = part * t->each, end = flux__gemm_min(line + t->each, t->total); line < end;
         line += some) {
        const uint16_t *x = t->x + o->offset;
        uint32_t *to = t->to + line * t->n;
        at = line % t->lines, rest = line / t->lines;
        some = flux__gemm_min(end - line, t->lines - at);
        for (int d = 2; d < o->shape.ndim; rest /= o->shape.dim[d++])
            x += rest % o->shape.dim[d] * o->stride[d];
        if (col != 1)
            flux__pair_columns(x + 2 * at * col, row, col, flux__gemm_min(2 * some, k - 2 * at),
                               t->n, to);
        else for (int64_t i = at; i < at + some; i++, to += t->n)
            to[t->n - 1] = 0, memcpy(to, x + i * row, (size_t)k * 2);
    }
}

/* Whether the pairs of operand *o at `src` are words in memory already. */
static bool flux__paired(const flux__operand *o, const char *src, int k) {
    bool there = o->stride[k] == 1 && o->shape.dim[k] % 2 == 0 && o->offset % 2 == 0 &&
                 (intptr_t)src % 4 == 0;
    for (int d = 0; d < o->shape.ndim; d++) there = there && (d == k || o->stride[d] % 2 == 0);
    return there;
}

/* Makes *o an operand of words: where the pairs are words already they are used in place,
   otherwise they are made in `memory`. Returns the address of the words. */
static const char *flux__pair_up(flux__operand *o, const char *src, void *memory, int k) {
    flux__operand was = *o;
    int64_t words = (o->shape.dim[k] + 1) / 2, rows = o->shape.dim[!k], size = words * rows;
    bool along = o->stride[k] == 1, there = flux__paired(o, src, k);
    o->shape.dim[k] = words;
    if (there) {
        for (int d = 0; d < o->shape.ndim; d++) o->stride[d] /= d == k ? 1 : 2;
        o->offset /= 2;
        return src;
    }
    o->offset = 0;
    o->stride[k] = along ? 1 : rows;
    o->stride[!k] = along ? words : 1;
    for (int d = 2; d < o->shape.ndim; size *= o->shape.dim[d++]) o->stride[d] = size;
    flux__pairing t = { &was, (const uint16_t *)(const void *)src, (uint32_t *)memory, k,
                        along ? rows : words, along ? words : rows, 0, 0 };
    t.total = size / t.n, t.each = FLUX__WIDEN / 2 / t.n + 1;
    flux__parallel((t.total + t.each - 1) / t.each, flux__pair_part, &t);
    return (const char *)memory;
}
#else
#  define flux__paired(o, src, k) ((void)(src), false)
#  define flux__pair_up(o, src, memory, k) (src)
#endif

/* An operand of a product: where it is, its strides in elements, or for a gathered operand (an
   im2col operand that is never stored) the implicit-GEMM maps of its rows and columns. */
typedef struct flux__matrix {
    const char *at;
    int64_t row, col;
    flux__operand o;
    int64_t size;       /* bytes of an element, or of a word */
    flux__axes map[2];  /* of a gathered operand: maps of its rows and its columns */
    /* NULL, or scratch memory for a gathered operand's pairs, and of an image that is padded */
    void *words, *padded;
} flux__matrix;

/* Makes the map of the operand's rows (side 0) or columns (side 1) from its dims that belong to
   dim `side` of the product's index space, then those of dim `more` (-1: none). */
static void flux__matrix_map(flux__matrix *m, int side, int more) {
    int64_t dim[FLUX_MAX_DIMS] = { 1, 1, 1, 1, 1, 1, 1, 1 }, step[FLUX_MAX_DIMS] = { 0 };
    for (int n = 0, owner = side; owner >= 0; owner = owner == side ? more : -1)
        for (int d = 0; d < m->o.shape.ndim; d++)
            if ((m->o.gather ? m->o.owner[d] : d) == owner)
                dim[n] = m->o.shape.dim[d], step[n++] = m->o.stride[d];
    flux__merge_axes(&m->map[side], dim, step, 0, false);
}

/* The stride along `side` that a contiguous copy of a gathered operand would have. */
static int64_t flux__copied_stride(const flux__matrix *m, int side) {
    int64_t step = 1;
    int d = 0;
    while (d < m->o.shape.ndim && (m->o.owner[d] != side || m->o.shape.dim[d] == 1))
        step *= m->o.shape.dim[d++];
    return d < m->o.shape.ndim ? step : 1;
}

#if FLUX__BF16
/* A gathered operand of a half format, of n elements, that is copied in parts of FLUX__WIDEN. */
typedef struct flux__halves_copy {
    const uint16_t *from;
    uint16_t *to;
    flux__axes x;
    int64_t offset, n;
} flux__halves_copy;
static void flux__copy_halves(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    const flux__halves_copy *c = (const flux__halves_copy *)ctx;
    if (step == 1) memcpy(c->to + at, c->from + offset, (size_t)n * 2);
    else for (int64_t i = 0; i < n; i++) c->to[at + i] = c->from[offset + i * step];
}
static void flux__copy_halves_part(void *ctx, int64_t part) {
    const flux__halves_copy *c = (const flux__halves_copy *)ctx;
    const int64_t at = part * FLUX__WIDEN;
    flux__each_run(&c->x, c->offset, at, flux__gemm_min(c->n - at, FLUX__WIDEN), at,
                   flux__copy_halves, ctx);
}

/* Makes the vnni pairs of a gathered operand, from a copy that is as it would be if it were stored:
   so whether it is shows in no result. False: out of memory. */
static bool flux__gather_pairs(flux__matrix *m, int i) {
    const flux__operand was = m->o;
    const int64_t n = flux__count(&was.shape), all = n + flux__gemm_up(n, 32);
    int64_t dim[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS] = { 0 };
    char *copy = (char *)flux__scratch((size_t)(all * 4));
    if (!(m->words = copy)) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) dim[d] = 1;
    memcpy(dim, was.shape.dim, (size_t)was.shape.ndim * sizeof *dim);
    memcpy(step, was.stride, (size_t)was.shape.ndim * sizeof *step);
    flux__halves_copy t = { (const uint16_t *)(const void *)m->at, (uint16_t *)(void *)copy,
                            { 0, { 0 }, { 0 } }, was.offset, n };
    flux__merge_axes(&t.x, dim, step, 0, false);
    flux__parallel((n + FLUX__WIDEN - 1) / FLUX__WIDEN, flux__copy_halves_part, &t);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) dim[d] = 1, step[d] = flux__copied_stride(m, d);
    for (int d = 0; d < was.shape.ndim; d++) dim[was.owner[d]] *= was.shape.dim[d];
    memcpy(m->o.shape.dim, dim, sizeof dim);
    memcpy(m->o.stride, step, sizeof step);
    m->o.shape.ndim = FLUX_MAX_DIMS, m->o.gather = false, m->o.offset = 0;
    m->at = flux__pair_up(&m->o, copy, copy + (all - n) * 2, !i);
    return true;
}
#else
#  define flux__gather_pairs(m, i) ((void)(m), false)
#endif

/* Converts the image that windows *o are read from, at `src`, to f32. */
static void flux__widen_image(flux__matrix *m, const flux__operand *o, const char *src,
                              void *memory) {
    int64_t first;
    const int64_t n = flux__operand_span(o, &first);
    m->at = flux__widen_all(o->dtype, src + (o->offset + first) * 2, n, memory);
    m->o.offset = -first;
}

/* Prepares operand i (0: A, 1: B) of product g; `memory` receives the f32 or the words that half
   formats become, where they are not read as they lie. An image that is to be padded is left to
   flux__products_pad, unless it becomes words. False: out of memory. */
static bool flux__matrix_operand(const flux__run *run, const flux__operand *o, int i,
                                 const flux__gemm_job *g, void *memory, flux__matrix *m) {
    const bool widens = flux__is_half(o->dtype) && !g->tiles && !g->pairs;
    m->o = *o;
    m->words = m->padded = NULL;
    m->size = o->dtype == FLUX_F64 ? 8 : g->tiles ? 2 : 4;
    m->at = (const char *)run->ptr[m->o.src];
    if (o->padding && g->pairs) {
        const flux__strided_scatter_job pad = flux__padding_job(run, o);
        if (!(m->at = (char *)(m->padded = flux__pad_all(&pad)))) return false;
    }
    if (m->o.gather && g->pairs) {
        if (!flux__gather_pairs(m, i)) return false;
    } else if (m->o.gather) {
        if (widens && !o->padding) flux__widen_image(m, o, m->at, memory);
        flux__matrix_map(m, 0, -1);
        flux__matrix_map(m, 1, -1);
        m->row = m->col = 0;
        return true;
    } else if (g->pairs) m->at = flux__pair_up(&m->o, m->at, memory, !i);
    else if (widens) {
        if (flux__side_by_side(&m->o))
            m->at = flux__widen_all(o->dtype, m->at + o->offset * 2, flux__count(&o->shape),
                                    memory);
        else {
            m->at = (const char *)flux__widen(&m->o, m->at, memory);
            flux__contiguous_strides(&m->o.shape, m->o.stride);
        }
        m->o.offset = 0;
    }
    bool vector = m->o.shape.ndim == 1;
    m->row = vector && i == 0 ? 0 : m->o.stride[0];
    m->col = vector ? (i == 0 ? m->o.stride[0] : 0) : m->o.stride[1];
    return true;
}

FLUX__END_HOT

#endif /* FLUX__CPU_PRODUCT_OPERANDS_H */
