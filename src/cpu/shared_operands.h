#ifndef FLUX__CPU_SHARED_OPERANDS_H
#define FLUX__CPU_SHARED_OPERANDS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"
#include "gemm_kernels.h"
#include "gemm_tasks.h"
#include "gemm_panels.h"
#include "gemm_plan.h"
#include "product_operands.h"
#include "kept_operands.h"
#include "backend.h"

/* ---------------------------------------------------------------------- cpu/shared_operands.h
   Finds the products of a plan that share their left operand, as the steps of a
   recurrence share its weight, and has it packed once for all of them
   (cpu/gemm_panels.h): the first of them packs it, all read it.

   Invariant: the panels lie in the scratch memory that the CPU's kernels share
   (schedule/plans.h), so products share them only while no kernel between them
   uses that memory. A slot of a plan has one value throughout, so its panels
   stay true. Whether a product takes inner products instead, which give other
   sums, is asked first (flux__gemm_by_inner): a product has the same bits alone
   and among others. */

FLUX__BEGIN_COLD

enum {
    FLUX__SHARED_USES = 16,               /* fewest products for which packing pays */
    FLUX__SHARED_MOST = FLUX__HELD,       /* most operands that are packed at a time */
    /* most columns of a product that reads panels which are kept: with more, one that packs A by
       the way is as fast */
    FLUX__KEPT_COLUMNS = 256
};
#define FLUX__SHARED_BYTES ((int64_t)32 << 20)      /* most bytes of panels in a plan's memory */
#ifdef FLUX_BLAS
#  define FLUX__SHARES false              /* the program's CBLAS multiplies, from where A lies */
#else
#  define FLUX__SHARES true
#endif

/* Fewest bytes of an operand: smaller ones are as fast where they lie, in the second-level cache;
   tests make it small. */
static int64_t flux__shared_least = 1 << 20;
/* The same of panels that are kept. */
static int64_t flux__kept_least = 1 << 16;

/* An operand that products share: A of kernel `first` and of n - 1 later ones. read: how many of
   them have been told so. */
typedef struct flux__shared { int first, n, read; size_t at, bytes; } flux__shared;

/* Whether tiles compute a product of plain matrices, not inner products, which give other sums. */
static bool flux__multiplied_by_tiles(const flux__kernel *k) {
    const flux__operand *a = &k->operand[0], *b = &k->operand[1];
    flux__gemm_plan plan;
    FLUX__ZEROED(flux__gemm_job, g);
    g.m = k->mnk[0], g.n = k->mnk[1], g.k = k->mnk[2];
    g.a_row = a->stride[0], g.a_col = a->stride[1];
    g.b_row = b->stride[0], g.b_col = b->shape.ndim > 1 ? b->stride[1] : 0;
    flux__gemm_plan_for(&plan, a->dtype == FLUX_F64, &g);
    return flux__gemm_by_inner(&plan, &g) == 1;
}

/* Whether operand i (0: A, 1: B) of a kernel's product, of at least `least` bytes, could be read
   from panels, where the other one has at most `most` columns or rows. Of a B the product asks when
   it runs whether tiles multiply. */
static bool flux__takes_panels(const flux__kernel *k, int i, int64_t least, int64_t most) {
    if (k->kind != FLUX__K_MATMUL || k->operand[0].dtype > FLUX_F64 ||
        k->operand[1].dtype != k->operand[0].dtype || k->scratch) return false;
    const flux__operand *a = &k->operand[0], *b = &k->operand[1];
    const int64_t bytes = k->mnk[i] * k->mnk[2] * (int64_t)flux__dtypes[a->dtype].size;
    bool plain = !a->gather && !b->gather && a->shape.ndim == 2;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) plain = plain && k->full[d] == 1;
    if (k->mnk[i] < 64 || k->mnk[!i] < 1 || k->mnk[!i] > most || bytes < least ||
        bytes > FLUX__SHARED_BYTES || (i == 0 && !plain)) return false;
    return i == 1 || flux__multiplied_by_tiles(k);
}

/* Whether two products have the same A. */
static bool flux__same_a(const flux__kernel *k, const flux__kernel *l) {
    const flux__operand *a = &k->operand[0], *b = &l->operand[0];
    return a->src == b->src && a->dtype == b->dtype && a->offset == b->offset &&
           memcmp(a->shape.dim, b->shape.dim, 2 * sizeof *a->shape.dim) == 0 &&
           memcmp(a->stride, b->stride, 2 * sizeof *a->stride) == 0;
}

/* The entry of a kernel's A among n; NULL: it has none. */
static flux__shared *flux__shared_of(const flux__plan *plan, const flux__kernel *k,
                                     flux__shared *shared, int n) {
    for (int i = 0; i < n; i++)
        if (flux__same_a(k, &plan->kernel[shared[i].first])) return &shared[i];
    return NULL;
}

/* Has the products among the kernels from ... end-1 that share an A read it from panels. uses: by
   kernel, how many products of the plan read their A from its slot, 0 of other kernels. */
static void flux__share_between(const flux__plan *plan, const int *uses, int from, int end) {
    flux__shared shared[FLUX__SHARED_MOST], *s;
    size_t total = 0;
    int n = 0;
    for (int i = from; i < end; i++) {
        if (uses[i] < FLUX__SHARED_USES) continue;
        if ((s = flux__shared_of(plan, &plan->kernel[i], shared, n))) s->n++;
        else if (n < FLUX__SHARED_MOST) shared[n].first = i, shared[n].read = 0, shared[n++].n = 1;
    }
    for (int i = 0; i < n; i++) {
        const flux__kernel *k = &plan->kernel[shared[i].first];
        shared[i].at = total;
        shared[i].bytes = shared[i].n < FLUX__SHARED_USES ? 0 : (size_t)flux__panels_bytes(
            k->mnk[0], k->mnk[2], (int64_t)flux__dtypes[k->operand[0].dtype].size);
        if (total + shared[i].bytes > (size_t)FLUX__SHARED_BYTES) shared[i].bytes = 0;
        total += shared[i].bytes;
    }
    for (int i = from; i < end; i++) {
        flux__kernel *k = &plan->kernel[i];
        s = uses[i] < FLUX__SHARED_USES ? NULL : flux__shared_of(plan, k, shared, n);
        if (!s || !s->bytes) continue;
        flux__cpu *c = (flux__cpu *)k->ready;
        c->panels.used = true, c->panels.fill = i == s->first, c->panels.at = s->at;
        c->panels.group = (int)(s - shared);
        c->panels.backwards = s->read++ % 2 > 0;
        k->scratch = total;
    }
}

/* Whether AMX's tiles read a product's A from panels that might be kept. They multiply so fast that
   packing shows with many columns, too. */
static bool flux__tiles_keep(const flux__kernel *k) {
    const flux__operand *a = &k->operand[0];
    const int64_t bytes = 2 * k->mnk[0] * k->mnk[2];
    bool plain = flux__by_tiles(k) && !a->gather && a->shape.ndim == 2;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) plain = plain && k->full[d] == 1;
    return plain && bytes >= flux__kept_least && bytes <= FLUX__SHARED_BYTES &&
           k->mnk[1] <= 4 * FLUX__KEPT_COLUMNS;
}

/* Notes in a product's kernel which of its operands are kept from call to call. */
static void flux__find_kept(const flux__plan *plan, const flux__kernel *k) {
    flux__cpu *c = (flux__cpu *)k->ready;
    for (int i = 0; i < 2; i++) {
        c->keeps[i] = flux__keepable(plan, &k->operand[i]);
        c->panels_kept[i] = FLUX__SHARES && c->keeps[i] &&
                            (flux__takes_panels(k, i, flux__kept_least, FLUX__KEPT_COLUMNS) ||
                             (i == 0 && flux__tiles_keep(k)));
    }
}

/* Notes in the products of a plan on device d which of their operands are kept, which of them share
   their A, and who packs it. False: an error is recorded. */
static bool flux__find_shared(flux_device d, flux__plan *plan) {
    int products = 0;
    for (int i = 0; i < plan->nkernel; i++) {
        const flux__kernel *k = &plan->kernel[i];
        if (!flux__runs_on(k, d) || k->kind != FLUX__K_MATMUL) continue;
        flux__find_kept(plan, k);
        products++;
    }
    if (!FLUX__SHARES || products < FLUX__SHARED_USES) return true;
    int *uses = (int *)flux__zalloc((size_t)(plan->nkernel + plan->nleaf + plan->nnode) *
                                    sizeof *uses), *by_slot = uses + plan->nkernel;
    if (!uses) return false;
    for (int i = 0; i < plan->nkernel; i++) {
        const flux__kernel *k = &plan->kernel[i];
        uses[i] = flux__runs_on(k, d) &&
                  flux__takes_panels(k, 0, flux__shared_least, FLUX__PANELS_COLUMNS);
        if (uses[i]) by_slot[k->operand[0].src]++;
    }
    for (int i = 0; i < plan->nkernel; i++)
        if (uses[i]) uses[i] = by_slot[plan->kernel[i].operand[0].src];
    for (int i = 0, from = 0; i <= plan->nkernel; i++) {
        const flux__kernel *k = &plan->kernel[i];
        if (i < plan->nkernel && !(flux__runs_on(k, d) && k->scratch)) continue;
        flux__share_between(plan, uses, from, i);
        from = i + 1;
    }
    flux__free(uses);
    return true;
}

FLUX__END_COLD

#endif /* FLUX__CPU_SHARED_OPERANDS_H */
