#ifndef FLUX__CPU_PADDING_H
#define FLUX__CPU_PADDING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "gemm_kernels.h"
#include "depthwise.h"
#include "run.h"
#include "whole.h"
#include "product_batches.h"
#include "thin_products.h"
#include "half_products.h"

/* ---------------------------------------------------------------------- cpu/padding.h
   A depthwise convolution with the kernel before it that pads its images: a
   channel is padded when its turn comes, and read from the first- or second-level
   cache. The padded images are never written to memory.

   Invariant: results are those of the kernels one by one. A channel's windows lie
   in one slice of the padding's, which a task makes for itself.

   Rejected: testing at each position whether a tap lies in the padding. */

FLUX__BEGIN_LEAN

#if FLUX__GEMM_VECTORS
/* Whether kernel k pads images that the product behind it alone reads, as windows. */
static bool flux__pads_product(const flux__run *run, const flux__kernel *k) {
    if (!flux__pads_next(run, k) || k[1].kind != FLUX__K_MATMUL) return false;
    const flux__operand *o = k[1].operand;
    const int slot = run->plan->nleaf + k->node;
    bool alone = o[0].src == slot && o[0].gather && o[0].dtype == FLUX_F32;
    for (int i = 1; i < k[1].noperand; i++) alone = alone && o[i].src != slot;
    return alone;
}

/* Whether batch number i reads slice i, and what that was before it was padded lies where the
   batch's result would, if this took its memory. */
static bool flux__pads_in_place(const flux__products *p, const flux__strided_scatter_job *pad) {
    const flux__operand *a = &p->a.o;
    int64_t step[FLUX_MAX_DIMS], next = pad->slice;
    for (int owner = 2; owner < FLUX_MAX_DIMS; owner++)
        for (int d = 0; d < a->shape.ndim; d++) {
            if (a->owner[d] != owner || a->shape.dim[d] == 1) continue;
            if (a->stride[d] != next) return false;
            next *= a->shape.dim[d];
        }
    flux__contiguous_strides(&pad->o.shape, step);
    for (int d = 0; d < pad->o.shape.ndim; d++)
        if (pad->o.shape.dim[d] > 1 && pad->o.stride[d] != step[d]) return false;
    return !pad->o.offset && flux__count(&pad->part) == p->g.m && pad->units == p->batches;
}

/* Whether each channel of a depthwise convolution reads one slice of what *pad makes, that of its
   number if a result lies where the images did. */
static bool flux__pads_channels(const flux__products *p, const flux__strided_scatter_job *pad) {
    const flux__operand *o = &p->a.o;
    const flux__run *run = p->job.run;
    const flux__taps taps = flux__depthwise_taps(&p->a.map[1], p->g.k);
    const int64_t first = o->offset % pad->slice + taps.first;
    for (int d = 0; d < o->shape.ndim; d++)
        if (o->owner[d] > 1 && o->shape.dim[d] > 1 && o->stride[d] % pad->slice) return false;
    for (int i = 0; i < p->job.k->nouts; i++)
        if (run->ptr[run->plan->nleaf + p->job.k->outs[i]] == run->ptr[pad->o.src] &&
            !flux__pads_in_place(p, pad)) return false;
    return first >= 0 && first + taps.last + flux__axes_at(&p->a.map[0], p->g.m - 1) < pad->slice;
}
#endif

/* Runs a depthwise convolution and the kernel before it, the first of n kernels, which pads its
   images. Returns 2; 0, and nothing is done: they are no such kernels; or -1 with an error
   recorded. */
static int flux__run_padded_depthwise(flux__run *run, flux__kernel *k, int n) {
#if FLUX__GEMM_VECTORS
    flux__products p;
    if (n < 2 || !flux__pads_product(run, k)) return 0;
    const flux__strided_scatter_job pad = flux__scatter_job(run, k);
    flux__products_start(&p, run, k + 1);
    if (p.g.n != 1 || p.g.m * p.batches == 0 || !flux__products_operands(&p)) return 0;
    p.pad = &pad;
    if (flux__products_choose(&p) || !flux__pads_channels(&p, &pad) || !flux__run_depthwise(&p))
        return 0;
    if (p.failed) p.job.failed = 1;
    return flux__job_ok(&p.job) ? 2 : -1;
#else
    return (void)run, (void)k, (void)n, 0;
#endif
}

FLUX__END_LEAN

#endif /* FLUX__CPU_PADDING_H */
