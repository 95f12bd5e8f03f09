#ifndef FLUX__CPU_PRODUCT_BATCHES_H
#define FLUX__CPU_PRODUCT_BATCHES_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/object.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "casts.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "gemm_plan.h"
#include "depthwise.h"
#include "conv_direct.h"
#include "run.h"
#include "whole.h"
#include "padding.h"
#include "products.h"
#include "product_operands.h"

/* ---------------------------------------------------------------------- cpu/product_batches.h
   The products of one kernel (flux__products), which has one for each batch: where
   a batch's matrices lie, and the product of one batch.

   Invariant: whether inner products are used is decided for the whole kernel, as
   if gathered operands had been copied, so parts and batches have the same sums as
   one product. */

FLUX__BEGIN_HOT

/* One kernel's products: the job that all share, the operands, and the number of batches; bare:
   the product is stored without an epilogue. */
typedef struct flux__products {
    flux__job job;
    flux__gemm_job g;
    flux__matrix a, b;
    int64_t batches, each;                /* each: batches of a task of flux__run_depthwise */
    bool f64, bare;
    int failed;
    /* by operand: its copy in another order, or NULL, and the entry of one that is to be filled */
    flux__buffer *copy[2];
    flux__kept *kept[2];
#if FLUX__GEMM_VECTORS
    flux__depthwise_gradient depthwise;
#endif
    const flux__direct *direct;           /* how flux__run_direct computes the products */
    /* NULL, or A is of images that are not padded yet, and a.at is not read: what pads them, and
       how many slices of it a batch reads (flux__pads_channels) */
    const flux__strided_scatter_job *pad;
    flux__strided_scatter_job padding;
    int64_t pads;
} flux__products;

/* Pads the images of A now, for what reads them in memory. False: out of memory. */
static bool flux__products_pad(flux__products *p) {
    const flux__operand *o = &p->job.k->operand[0];
    if (!p->pad) return true;
    char *padded = flux__pad_all(p->pad);
    p->a.at = padded, p->a.padded = padded, p->pad = NULL;
    if (!padded) p->failed = 1;
    else if (p->a.size > (int64_t)flux__dtypes[o->dtype].size)
        flux__widen_image(&p->a, o, padded, p->job.k->scratch_at);
    return padded != NULL;
}

/* Which way (see flux__gemm_by_inner) the products of a kernel are computed, as if gathered
   operands were copies. */
static int flux__products_by_inner(const flux__products *p) {
    flux__gemm_plan plan;
    flux__gemm_job g = p->g;
    g.a_map = g.b_map = NULL;
    if (p->a.o.gather)
        g.a_row = flux__copied_stride(&p->a, 0), g.a_col = flux__copied_stride(&p->a, 1);
    if (p->b.o.gather)
        g.b_row = flux__copied_stride(&p->b, 0), g.b_col = flux__copied_stride(&p->b, 1);
    flux__gemm_plan_for(&plan, p->f64, &g);
    return flux__gemm_by_inner(&plan, &g);
}
/* Copies a gathered operand for inner products: `many` rows of A (side 0) or columns of B (side
   1), each contiguous along k. *x becomes the copy, k elements a row or column, and *map NULL.
   False: out of memory. */
static bool flux__gather_now(const void **x, const flux__axes **map, bool f64, int64_t many,
                             int64_t k, int64_t *many_step, int64_t *k_step, int side) {
    const flux__axes *axes = *map;
    flux__gemm_plan plan;
    void *to = flux__scratch((size_t)(many * k * (f64 ? 8 : 4)));
    if (!to) return false;
    plan.size = f64 ? 8 : 4, plan.im2col = flux__gemm_im2col_now();
    flux__gemm_im2col(&plan, (const char *)*x, &axes[!side], 0, k, &axes[side], 0, many,
                       (char *)to, k);
    *x = to, *map = NULL, *many_step = k, *k_step = 1;
    return true;
}

/* The address of a batch's matrix. */
static const void *flux__matrix_at(const flux__kernel *k, const flux__matrix *m, int64_t batch) {
    int64_t at = m->o.offset;
    if (!m->o.gather) return m->at + flux__batch_offset(k, &m->o, batch) * m->size;
    for (int p = 2; p < FLUX_MAX_DIMS; p++) {
        int64_t i = batch % k->full[p];
        batch /= k->full[p];
        for (int d = 0; d < m->o.shape.ndim; d++) {
            if (m->o.owner[d] != p) continue;
            at += i % m->o.shape.dim[d] * m->o.stride[d];
            i /= m->o.shape.dim[d];
        }
    }
    return m->at + at * m->size;
}

/* ---- images that are padded when a batch's turn comes */

#define FLUX__PADDED_MOST (1 << 18)       /* most elements that a task pads at a time */

/* Adds to *first and *last how far the first nd dims of a map reach down and up. */
static void flux__axes_reach(const flux__axes *x, int nd, int64_t *first, int64_t *last) {
    for (int d = 0; d < nd; d++)
        *(x->step[d] < 0 ? first : last) += (x->dim[d] - 1) * x->step[d];
}

/* Whether each batch reads neighbouring slices of what p->pad makes, p->pads of them, as a group's
   channels. */
static bool flux__pads_channels(flux__products *p) {
    const flux__operand *o = &p->a.o;
    const flux__axes *taps = &p->a.map[1];
    const int64_t slice = p->pad->slice;
    const bool several = taps->nd > 0 && taps->step[taps->nd - 1] == slice;
    int64_t first = o->offset % slice, last = first;
    p->pads = several ? taps->dim[taps->nd - 1] : 1;
    flux__axes_reach(taps, taps->nd - several, &first, &last);
    flux__axes_reach(&p->a.map[0], p->a.map[0].nd, &first, &last);
    for (int d = 0; d < o->shape.ndim; d++)
        if (o->owner[d] > 1 && o->shape.dim[d] > 1 && o->stride[d] % slice) return false;
    return first >= 0 && last < slice && p->pads * slice <= FLUX__PADDED_MOST;
}

/* Whether images are widened when they are padded. */
static bool flux__pads_halves(const flux__products *p) {
    return p->pad && p->a.size > (int64_t)flux__dtypes[p->pad->t->dtype].size;
}
/* Bytes of a batch's images where they are padded when its turn comes, to a multiple of 64; of a
   half format also of a slice before it is widened. */
static int64_t flux__padded_bytes(const flux__products *p) {
    if (!p->pad) return 0;
    return flux__gemm_up(p->pad->slice * (p->pads * p->a.size + (flux__pads_halves(p) ? 2 : 0)),
                         64);
}

/* The image of a batch: where it lies, or in `memory`, where it is padded now or, with `made`, has
   been before. */
static const char *flux__batch_image(const flux__products *p, int64_t batch, char *memory,
                                     bool made) {
    const char *x = (const char *)flux__matrix_at(p->job.k, &p->a, batch);
    if (!p->pad) return x;
    const int64_t at = (x - p->a.at) / p->a.size, slice = p->pad->slice;
    for (int64_t c = 0; c < p->pads && !made; c++) {
        char *to = memory + c * slice * p->a.size, *half = memory + p->pads * slice * p->a.size;
        flux__scatter_slice(p->pad, at / slice + c, flux__pads_halves(p) ? half : to);
        if (flux__pads_halves(p)) flux__load(FLUX__F32C, to, p->pad->t->dtype, half, 1, slice);
    }
    return memory + at % slice * p->a.size;
}

/* Computes the product of one batch. */
static void flux__product_task(void *ctx, int64_t batch) {
    flux__products *p = (flux__products *)ctx;
    flux__job job = p->job;
    flux__gemm_job g = p->g;
    char *padded = p->pad ? (char *)flux__scratch((size_t)flux__padded_bytes(p)) : NULL;
    if (p->pad && !padded) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    job.batch = batch;
    g.ctx = &job;
    g.a = flux__batch_image(p, batch, padded, false);
    g.b = flux__matrix_at(job.k, &p->b, batch);
    g.a_next = g.a_row == 1 && batch + 1 < p->batches ? flux__matrix_at(job.k, &p->a, batch + 1) :
        NULL;
    if (p->bare)
        g.c = (char *)job.run->ptr[job.k->value[0].out] +
            (size_t)(job.first + batch * g.m * g.n) * (p->f64 ? 8 : 4);
    const bool now_a = g.inner_kernel > 1 && g.a_map, now_b = g.inner_kernel > 1 && g.b_map;
    bool ok = !now_a || flux__gather_now(&g.a, &g.a_map, p->f64, g.m, g.k, &g.a_row, &g.a_col, 0);
    ok = ok && (!now_b || flux__gather_now(&g.b, &g.b_map, p->f64, g.n, g.k, &g.b_col, &g.b_row,
                                           1));
    if (!ok || flux__gemm(p->f64, &g) != 0 || flux__atomic_load32(&job.failed))
        flux__atomic_store32(&p->failed, 1);
    if (now_b && ok) flux__scratch_done((void *)(uintptr_t)g.b);
    if (now_a && !g.a_map) flux__scratch_done((void *)(uintptr_t)g.a);
    flux__scratch_done(padded);
}

FLUX__END_HOT

#endif /* FLUX__CPU_PRODUCT_BATCHES_H */
