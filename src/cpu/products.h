#ifndef FLUX__CPU_PRODUCTS_H
#define FLUX__CPU_PRODUCTS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "casts.h"
#include "backend.h"
#include "transfers.h"
#include "blocks.h"
#include "run.h"

/* ---------------------------------------------------------------------- cpu/products.h
   What a matrix product needs of a kernel: its epilogue, which runs the
   kernel's program over each finished block of C while that is in the cache,
   batch offsets, and half formats widened to f32. cpu/half_products.h runs
   products, cpu/gemm_plan.h multiplies.

   Invariant: a product whose only line stores it in f32 or f64 has no epilogue
   and is written where it belongs (flux__bare_product). A block in the epilogue
   is several columns: segments of product_rows points, m apart in the result. A
   widened operand keeps its order if its elements lie side by side in some
   order of its dims, and is contiguous otherwise; flux__widened_strides gives
   its strides. The epilogue gets f32 sums for half formats. */

FLUX__BEGIN_HOT

/* Prefetches the part of a result that a block of the epilogue will write, which is in no cache. A
   chain prefetches as it goes. */
static FLUX__INLINE void flux__fetch_result(const flux__block_run *b) {
    const flux__value *v = &b->k->value[b->k->nvalue - 1];
    if (v->out < 0 || b->segments > 1 || b->c->chain.last >= 0) return;
    const int64_t size = (int64_t)flux__dtypes[v->dtype].size;
    const char *to = (const char *)b->run->ptr[v->out] + b->o0 * size;
    for (int64_t i = 0; i < b->w * size; i += 64) { FLUX__PREFETCH_WRITE(to + i) }
}

/* Chooses the pieces of a block of mb x nb that the epilogue runs: all of it for a chain, which
   needs no register; else as many rows of as many columns as fit one. */
static void flux__epilogue_pieces(const flux__cpu *c, int64_t m, int64_t mb, int64_t nb,
                                  int64_t *rows, int64_t *cols) {
    *rows = mb, *cols = nb;
    if (c->chain.last >= 0) return;
    *rows = mb < c->tile ? mb : c->tile, *cols = c->tile / *rows;
    /* parts of columns that are long are read and written where they are, one by one */
    if (mb < m && *rows >= 256) *cols = 1;
    /* whole vectors, where several columns together make such */
    for (int64_t even = 16; even > 1 && *cols % 16; even /= 2)
        if (*cols >= even && *rows * even % 16 == 0) {
            *cols -= *cols % even;
            break;
        }
}

/* The epilogue of a product: runs the kernel's program over a finished block of C while it is
   in the cache, in pieces. block: mb x nb, rows from i0, columns from j0, columns contiguous and ld
   apart. */
static void flux__epilogue(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb,
                           void *block, int64_t ld) {
    flux__job *job = (flux__job *)ctx;
    flux__block_run b;
    (void)worker;
    if (!flux__block_start(&b, job->run, job->k)) {
        flux__atomic_store32(&job->failed, 1);
        return;
    }
    int64_t m = job->k->mnk[0], n = job->k->mnk[1], rows, cols;
    size_t size = job->k->operand[0].dtype == FLUX_F64 ? 8 : 4;
    flux__epilogue_pieces(b.c, m, mb, nb, &rows, &cols);
    for (int64_t j = 0; j < nb; j += cols)
        for (int64_t i = 0; i < mb; i += rows) {
            int64_t high = mb - i < rows ? mb - i : rows, wide = nb - j < cols ? nb - j : cols;
            b.product_rows = high;
            b.w = high == m ? high * wide : high;          /* several whole columns are one run */
            b.segments = high == m ? 1 : wide;
            b.segment_step = m;
            b.o0 = job->first + job->batch * m * n + (j0 + j) * m + i0 + i;
            b.r0 = 0, b.rt = 1;
            b.product = (const char *)block + (size_t)(i + j * ld) * size;
            b.product_ld = ld;
            flux__fetch_result(&b);
            for (int p = 0; p < b.c->nphase; p++) {
                flux__do_per_row(&b, p);
                for (int l = 0; l < b.c->phase[p].n; l++) flux__do_line(&b, b.c->phase[p].line[l]);
            }
        }
}

/* Whether the program does nothing but store the product as f32 or f64: then the product is
   written in place, without an epilogue. */
static bool flux__bare_product(const flux__kernel *k) {
    return k->nvalue == 1 && k->value[0].kind == FLUX__V_PRODUCT &&
           (k->value[0].dtype == FLUX_F32 || k->value[0].dtype == FLUX_F64);
}

/* The offset of a batch's matrix in an operand. */
static int64_t flux__batch_offset(const flux__kernel *k, const flux__operand *o, int64_t batch) {
    int64_t at = o->offset;
    int first = k->mnk[0] < 0 ? 0 : 2;
    for (int d = first; d < FLUX_MAX_DIMS && batch > 0; d++) {
        if (d < o->shape.ndim && o->shape.dim[d] > 1) at += batch % k->full[d] * o->stride[d];
        batch /= k->full[d];
    }
    return at;
}

/* The elements between an operand's first and last in memory, these two included; *first: how far
   the first is from the element of index 0. */
static int64_t flux__operand_span(const flux__operand *o, int64_t *first) {
    int64_t least = 0, most = 0;
    for (int d = 0; d < o->shape.ndim; d++)
        *(o->stride[d] < 0 ? &least : &most) += (o->shape.dim[d] - 1) * o->stride[d];
    *first = least;
    return most - least + 1;
}

/* Bytes of an operand of a half format as f32, to a multiple of 64: of windows those of the image.
   Other operands need none. */
static size_t flux__widened_bytes(const flux__operand *o) {
    int64_t first;
    if (!flux__is_half(o->dtype)) return 0;
    const int64_t n = o->gather ? flux__operand_span(o, &first) : flux__count(&o->shape);
    return ((size_t)n * 4 + 63) / 64 * 64;
}

/* Converts an operand of a half format to f32, contiguous in the order of its dims. */
static float *flux__widen(const flux__operand *o, const void *src, void *memory) {
    int64_t n = flux__count(&o->shape);
    flux__axes x;
    int64_t dim[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS];
    float *out = (float *)memory;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        dim[d] = d < o->shape.ndim ? o->shape.dim[d] : 1,
            step[d] = d < o->shape.ndim ? o->stride[d] : 0;
    flux__merge_axes(&x, dim, step, 0, false);
    flux__transfer t = { (const char *)src, (char *)out, FLUX__F32C, o->dtype, 4, 2, false, 0 };
    flux__each_run(&x, o->offset, 0, n, 0, flux__load_run, &t);
    return out;
}

/* Whether an operand is contiguous in some order of its dims. */
static bool flux__side_by_side(const flux__operand *o) {
    int64_t at = 1, n = flux__count(&o->shape);
    int d = 0;
    while (at < n && d < o->shape.ndim)
        if (o->shape.dim[d] > 1 && o->stride[d] == at) at *= o->shape.dim[d], d = 0;
        else d++;
    return at == n;
}

/* Converts n contiguous elements to f32, in parts of FLUX__WIDEN elements. */
#define FLUX__WIDEN ((int64_t)1 << 16)
static void flux__widen_part(void *ctx, int64_t part) {
    const flux__transfer *t = (const flux__transfer *)ctx;
    int64_t at = part * FLUX__WIDEN, left = (int64_t)t->wide - at;
    flux__load(FLUX__F32C, t->dst + at * 4, t->dtype, t->src + at * 2, 1,
               left < FLUX__WIDEN ? left : FLUX__WIDEN);
}
static const char *flux__widen_all(int dtype, const char *src, int64_t n, void *memory) {
    flux__transfer t = { src, (char *)memory, FLUX__F32C, dtype, (size_t)n, 2, false, 0 };
    flux__parallel(((int64_t)t.wide + FLUX__WIDEN - 1) / FLUX__WIDEN, flux__widen_part, &t);
    return t.dst;
}

/* The strides of a half format's operand after its conversion to f32. */
static void flux__widened_strides(const flux__operand *o, int64_t *stride) {
    if (flux__side_by_side(o)) memcpy(stride, o->stride, sizeof o->stride);
    else flux__contiguous_strides(&o->shape, stride);
}

FLUX__END_HOT

#endif /* FLUX__CPU_PRODUCTS_H */
