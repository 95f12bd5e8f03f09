#ifndef FLUX__CPU_PADDING_H
#define FLUX__CPU_PADDING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "conv_direct.h"
#include "run.h"
#include "whole.h"
#include "product_batches.h"
#include "thin_products.h"
#include "half_products.h"

/* ---------------------------------------------------------------------- cpu/padding.h
   A thin product (cpu/thin_products.h) with the kernel before it that pads its
   images: a depthwise convolution's channel, or a group's channels, are padded when
   their turn comes, and read from the first- or second-level cache. The padded
   images are never written to memory.

   Invariant: results are those of the kernels one by one. A batch's windows lie in
   neighbouring slices of the padding's, which a task makes for itself.

   Rejected: testing at each position whether a tap lies in the padding. */

FLUX__BEGIN_LEAN

#define FLUX__PADDED_MOST (1 << 18)       /* most elements that a task pads at a time */

/* Whether kernel k pads images that the product behind it alone reads, as windows. */
static bool flux__pads_product(const flux__run *run, const flux__kernel *k) {
    if (!flux__pads_next(run, k) || k[1].kind != FLUX__K_MATMUL) return false;
    const flux__operand *o = k[1].operand;
    const int slot = run->plan->nleaf + k->node;
    bool alone = o[0].src == slot && o[0].gather && o[0].dtype == FLUX_F32 &&
                 o[1].dtype == FLUX_F32;
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

/* Adds to *first and *last how far the first nd dims of a map reach down and up. */
static void flux__axes_reach(const flux__axes *x, int nd, int64_t *first, int64_t *last) {
    for (int d = 0; d < nd; d++)
        *(x->step[d] < 0 ? first : last) += (x->dim[d] - 1) * x->step[d];
}

/* Whether each batch reads neighbouring slices of what *pad makes, p->pads of them, as a group's
   channels; one slice, that of its number, if a result lies where the images did. */
static bool flux__pads_channels(flux__products *p, const flux__strided_scatter_job *pad) {
    const flux__operand *o = &p->a.o;
    const flux__axes *taps = &p->a.map[1];
    const flux__run *run = p->job.run;
    const bool several = taps->nd > 0 && taps->step[taps->nd - 1] == pad->slice;
    int64_t first = o->offset % pad->slice, last = first;
    p->pads = several ? taps->dim[taps->nd - 1] : 1;
    flux__axes_reach(taps, taps->nd - several, &first, &last);
    flux__axes_reach(&p->a.map[0], p->a.map[0].nd, &first, &last);
    for (int d = 0; d < o->shape.ndim; d++)
        if (o->owner[d] > 1 && o->shape.dim[d] > 1 && o->stride[d] % pad->slice) return false;
    for (int i = 0; i < p->job.k->nouts; i++)
        if (run->ptr[run->plan->nleaf + p->job.k->outs[i]] == run->ptr[pad->o.src] &&
            (several || !flux__pads_in_place(p, pad))) return false;
    return first >= 0 && last < pad->slice && p->pads * pad->slice <= FLUX__PADDED_MOST;
}

/* Runs a thin product of windows and the kernel before it, the first of n kernels, which pads its
   images. Returns 2; 0, and nothing is done: they are no such kernels; or -1 with an error
   recorded. */
static int flux__run_padded(flux__run *run, flux__kernel *k, int n) {
    flux__products p;
    if (n < 2 || !flux__pads_product(run, k)) return 0;
    const flux__strided_scatter_job pad = flux__scatter_job(run, k);
    flux__products_start(&p, run, k + 1);
    if (p.g.n > FLUX__DIRECT_WHOLE || p.g.m * p.batches == 0 || flux__takes_winograd(&p) ||
        !flux__products_operands(&p)) return 0;
    p.pad = &pad;
    if (flux__products_choose(&p) || !flux__pads_channels(&p, &pad) ||
        !((p.pads == 1 && flux__run_depthwise(&p)) || flux__run_direct(&p)))
        return 0;
    if (p.failed) p.job.failed = 1;
    return flux__job_ok(&p.job) ? 2 : -1;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_PADDING_H */
