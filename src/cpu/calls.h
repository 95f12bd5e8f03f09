#ifndef FLUX__CPU_CALLS_H
#define FLUX__CPU_CALLS_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/dispatch.h"
#include "backend.h"
#include "run.h"
#include "products.h"
#include "whole.h"
#include "ready.h"
#include "pooling.h"
#include "product_operands.h"
#include "half_products.h"
#include "shared_operands.h"
#include "attention.h"
#include "sorting.h"
#include "interpolation.h"

/* ---------------------------------------------------------------------- cpu/calls.h
   The CPU's row of the table of back ends, FLUX__CPU_ROW: memory, aligned to 64
   bytes, and the calls that make kernels ready, run and drop them.

   Invariant: a call that fails is safe to leave: all memory that kernels need is
   found when they are made ready, or by the plan (kernel->scratch), but for that
   of a product's blocks, which may fail midway (FLUX__STOPS_MIDWAY). Kernels
   round to nearest and flush denormal results to 0, and the caller's
   floating-point mode is restored after each row (flux__set_float_mode). */

FLUX__BEGIN_LEAN

/* ---------------- what there is */

static bool flux__cpu_works(char *why, size_t n) {
    snprintf(why, n, "functional");
    return true;
}
static int flux__cpu_count(void) { return 1; }
static void flux__cpu_name(int id, char *out, size_t n) {
    (void)id;
    snprintf(out, n, "CPU");
}
/* The CPU needs neither driver nor compiler, so it has both. */
static bool flux__cpu_component(const char *name, bool *known) {
    static const char *const parts[] = { "all", "driver", "compiler", NULL };
    return *known = flux__in_list(name, parts);
}

/* ---------------- memory */

/* Asks Linux for 2 MB pages for the part of a block of memory that covers whole ones: there are
   fewer page faults and TLB misses, and fewer pages to pin where MPI has the kernel copy from one
   process to another, which takes two thirds of the time then. Blocks of up to 4 MB stay on small
   pages: a matrix that nearly fits the caches is faster there, since small pages are scattered in
   physical memory, so that its columns compete less for the same cache sets. */
static void flux__large_pages(char *p, size_t bytes) {
#if defined(__linux__)
    const uintptr_t page = (uintptr_t)2 << 20, from = ((uintptr_t)p + page - 1) & ~(page - 1),
                    to = ((uintptr_t)p + bytes) & ~(page - 1);
    const int kept = errno;
    if (bytes > 2 * page && to > from) madvise((void *)from, to - from, FLUX__HUGE_PAGES);
    errno = kept;                         /* an old system may refuse, which is no error */
#else
    (void)p, (void)bytes;
#endif
}

/* Host memory, aligned to 64 bytes, so that vector loops need no scalar head, and two tensors
   don't share a cache line. The address from FLUX_MALLOC is stored just before the one returned. */
static void *flux__cpu_alloc(int id, size_t bytes) {
    (void)id;
    if (bytes > SIZE_MAX - 64 - sizeof(void *)) return NULL;
    char *base = (char *)FLUX_MALLOC(bytes + 64 + sizeof(void *));
    if (!base) return NULL;
    char *p = base + sizeof(void *) + 63;
    p -= (uintptr_t)p & 63;
    memcpy(p - sizeof(void *), &base, sizeof(void *));
    flux__large_pages(p, bytes);
    return p;
}

static void flux__cpu_free(int id, void *p, size_t bytes) {
    (void)id, (void)bytes;
    if (!p) return;
    char *base;
    memcpy(&base, (char *)p - sizeof(void *), sizeof(void *));
    flux__free(base);
}

static int flux__cpu_move(int id, void *dst, const void *src, size_t bytes) {
    (void)id;
    memcpy(dst, src, bytes);
    return 0;
}
static int flux__cpu_copy(int to, void *dst, int from, const void *src, size_t bytes) {
    (void)from;
    return flux__cpu_move(to, dst, src, bytes);
}
/* An evaluation on the CPU is complete when it returns, so there is nothing to wait for. */
static int flux__cpu_wait(int id) { return (void)id, 0; }

/* ---------------- kernels */

/* Bytes of scratch memory that a kernel needs while it runs: for operands of half formats as f32
   (of a spread, also for its sum), or for the parts of split reductions. */
static size_t flux__cpu_scratch(const flux__kernel *k, const flux__graph *g) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    if (k->kind == FLUX__K_FUSED && c->splits > 1)
        return (size_t)((c->splits + 1) * (int64_t)c->nreduce * 2 * c->outer * 8);
    if (k->kind == FLUX__K_MATMUL) return flux__product_scratch(k);
    if (k->kind == FLUX__K_STRIDED_SCATTER && flux__is_half(k->operand[0].dtype))
        return flux__widened_bytes(&k->operand[0]) + (size_t)flux__size(g->node[k->node]) * 4;
    if (k->kind == FLUX__K_INTERPOLATE) return flux__lerps_bytes(g->node[k->node]);
    if (k->kind == FLUX__K_SORT)
        return (size_t)flux__size(g->node[k->node]) * 2 * sizeof(uint64_t);
    return 0;
}

/* Makes the plan's kernels on the CPU ready, and takes this thread's memory for the largest of
   them. False: an error is recorded. */
static bool flux__cpu_ready(flux_device d, flux__plan *plan, flux__graph *g) {
    size_t most = 0, bytes;
    for (int i = 0; i < plan->nkernel; i++) {
        flux__kernel *k = &plan->kernel[i];
        if (!flux__runs_on(k, d)) continue;
        if (!flux__prepare(plan, k)) return false;
        k->scratch = flux__cpu_scratch(k, g);
        bytes = k->ready ? flux__memory_bytes(k, (const flux__cpu *)k->ready) : 0;
        if (bytes > most) most = bytes;
    }
    return flux__find_shared(d, plan) && (most == 0 || flux__kernel_memory(most) != NULL);
}

/* What flux__cpu_ready made lies in the plan's memory and goes with it. */
static void flux__cpu_drop(void *ready) { (void)ready; }

/* Runs n kernels, and returns how many were done. They run in one floating-point mode, whatever
   the caller's is, which is restored: results are rounded to nearest, and those below the
   smallest normal number become 0 (FLUX__FLUSH). The moments of a weight whose gradient stays 0
   would end as denormals, as exponentials do, and slow everything down. */
static int flux__cpu_run(flux__run *r, flux__kernel *k, int n) {
    /* by kind; moves and calls never get here */
    static int (*const run[])(flux__run *r, flux__kernel *k) = {
        flux__run_fused, flux__run_product, flux__run_index, flux__run_index,
        flux__run_strided_scatter, flux__run_cat, flux__run_interpolation, flux__run_attend,
        flux__run_sort };
    const unsigned mode = flux__float_mode(),
                   ours = (mode & ~(unsigned)FLUX__ROUNDING) | FLUX__FLUSH;
    int done = 0, joined;
    if (mode != ours) flux__set_float_mode(ours);
    while (done < n) {
        joined = flux__run_pooling_joined(r, &k[done], n - done);
        if (joined == 0) joined = run[k[done].kind](r, &k[done]) == 0 ? 1 : -1;
        if (joined < 0) break;
        done += joined;
    }
    if (mode != ours) flux__set_float_mode(mode);
    return done;
}

/* The CPU's row. */
#define FLUX__CPU_ROW                                                                              \
    { "CPU",                                                                                       \
      FLUX__GATHERS_ROWS | FLUX__ADDS_WINDOWS | FLUX__LONG_PRODUCTS | FLUX__STOPS_MIDWAY |         \
          FLUX__PADS_IMAGES,                                                                       \
      flux__cpu_works, flux__cpu_works, flux__cpu_count, flux__cpu_name, flux__cpu_component,      \
      flux__cpu_alloc, flux__cpu_free, flux__cpu_move, flux__cpu_move, flux__cpu_copy,             \
      flux__cpu_wait, NULL, flux__cpu_ready, flux__cpu_run, flux__cpu_drop, NULL, NULL }

FLUX__END_LEAN

#endif /* FLUX__CPU_CALLS_H */
