#ifndef FLUX__SCHEDULE_DISPATCH_H
#define FLUX__SCHEDULE_DISPATCH_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "kernel.h"
#include "key.h"

/* ---------------------------------------------------------------------- schedule/dispatch.h
   From a plan to its back ends: flux__kernels_ready has each back end make its
   kernels ready, flux__kernels_run hands it rows of them, and
   flux__kernel_unready lets it drop what it made. A move has two back ends, so
   it is done here, by the copies of their tables; a call (flux__plan_call) has
   none. It is started in its turn and finished before the first kernel that
   reads its result, so that it goes on beside the kernels between.

   Invariant: only a move knows which back end is the host's: between two others
   it goes by way of host memory. What a back end made of a kernel is
   kernel->ready, what it needs while the kernel runs is kernel->scratch; the
   plan owns both, and kernel->by says who gave them. */

FLUX__BEGIN_LEAN

enum { FLUX__HELD = 8 };
/* A plan while it runs, as back ends see it. */
typedef struct flux__run {
    flux__plan *plan;
    flux__graph *g;
    flux__buffer **buffer;                /* by node; behind these lie flux__spares.next (by
                                             node) and the scratch buffers (by kernel) */
    void **ptr;                           /* by slot: where its elements are */
    flux__buffer *held[FLUX__HELD];       /* what a back end refers to until the end, or NULL */
} flux__run;

/* The address of an operand's first element. */
static const char *flux__operand_ptr(const flux__run *run, const flux__operand *o) {
    return (const char *)run->ptr[o->src] +
           (ptrdiff_t)o->offset * (ptrdiff_t)flux__dtypes[o->dtype].size;
}

/* ---------------- moves */

/* Copies bytes between devices: up, down, within a back end, or by way of the host's memory
   between two others. Returns 0, or not 0 if it failed. */
static int flux__move_bytes(flux_device to, void *dst, flux_device from, const void *src,
                            size_t bytes) {
    const flux__backend *a = flux__backend_of(from.backend), *b = flux__backend_of(to.backend);
    if (bytes == 0) return 0;
    if (from.backend == to.backend) return b->copy(to.id, dst, from.id, src, bytes);
    if (from.backend == FLUX__CPU_BACKEND) return b->upload(to.id, dst, src, bytes);
    if (to.backend == FLUX__CPU_BACKEND) return a->download(from.id, dst, src, bytes);
    void *host = flux__malloc(bytes);
    int rc = host ? a->download(from.id, host, src, bytes) : -1;
    if (rc == 0) rc = b->upload(to.id, dst, host, bytes);
    flux__free(host);
    return rc;
}

/* Runs a move of a tensor between devices; records an error if it fails. */
static int flux__run_move(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    const flux__operand *o = &k->operand[0];
    flux_device from = t->in[0]->device, to = t->device;
    size_t bytes = (size_t)flux__size(t) * flux__dtypes[t->dtype].size;
    void *dst = run->ptr[run->plan->nleaf + k->node];
    int rc = flux__move_bytes(to, dst, from, flux__operand_ptr(run, o), bytes);
    if (rc != 0) {
        char there[96];
        snprintf(there, sizeof there, "%s", flux_device_name(from));
        flux__fail("to: %zu bytes could not be copied from %s to %s", bytes, there,
                   flux_device_name(to));
    }
    return rc;
}

/* ---------------- kernels */

/* Whether a back end runs kernel k on device d. */
static bool flux__runs_on(const flux__kernel *k, flux_device d) {
    return k->kind < FLUX__K_MOVE && !k->idle && flux__same_device(k->device, d);
}

/* Has the plan's kernels made ready, those of each device together, so that a compiler is called
   once. False: an error is recorded. */
static bool flux__kernels_ready(flux__plan *plan, flux__graph *g) {
    for (int i = 0; i < plan->nkernel; i++) {
        const flux_device d = plan->kernel[i].device;
        const flux__backend *b = flux__backend_of(d.backend);
        if (!flux__runs_on(&plan->kernel[i], d) || plan->kernel[i].by) continue;
        for (int j = i; j < plan->nkernel; j++)
            if (flux__runs_on(&plan->kernel[j], d)) plan->kernel[j].by = b;
        if (!b->ready(d, plan, g)) return false;
    }
    return true;
}

/* Frees what the back end made of a kernel. */
static void flux__kernel_unready(flux__kernel *k) {
    if (k->ready) k->by->drop(k->ready);
    k->ready = NULL;
}

/* How many kernels from number k on follow each other on one device, at least 1: their back end
   gets such a row at once. Before a kernel that reads the result of a call a new row begins. */
static int flux__kernel_row(const flux__plan *plan, int k) {
    const flux__kernel *first = &plan->kernel[k];
    int n = 1;
    while (first->by && k + n < plan->nkernel && !first[n].waits &&
           flux__runs_on(&first[n], first->device)) n++;
    return n;
}

/* Runs a row of n kernels, and returns how many of them were done or, on a device that works on
   its own, started. */
static int flux__kernels_run(flux__run *r, flux__kernel *k, int n) {
    FLUX__ASSERT(n == 1 || (k->by && flux__runs_on(&k[n - 1], k->device)));
    if (k->by) return k->by->run(r, k, n);
    if (k->idle) return 1;
    if (!k->call) return flux__run_move(r, k) == 0;
    k->started = k->call->start(r, k) == 0;
    return k->started;
}

/* Finishes the started calls whose results kernel number `at` or one before it reads. */
static bool flux__calls_finish(flux__run *r, int at) {
    bool ok = true;
    for (int i = 0; i < r->plan->nkernel && i < at; i++) {
        flux__kernel *k = &r->plan->kernel[i];
        if (!k->started || k->read_at > at) continue;
        k->started = false;
        if (k->call->finish(r, k) != 0) ok = false;
    }
    return ok;
}

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_DISPATCH_H */
