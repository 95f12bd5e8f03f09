#ifndef FLUX__CPU_RUN_H
#define FLUX__CPU_RUN_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "vectors.h"
#include "casts.h"
#include "reductions.h"
#include "backend.h"
#include "transfers.h"
#include "blocks.h"

/* ---------------------------------------------------------------------- cpu/run.h
   A kernel's run over threads: tasks of several blocks, and split reductions,
   whose parts threads share when there are too few outer points.

   Invariant: a task's blocks and a reduction's parts are fixed by the shape,
   and partial results are put together in the order of the parts, f32 sums in
   double: so the number of threads never shows in a result. Each thread has
   scratch memory of its own for registers, kept for the next kernel. A worker
   that finds no memory sets job->failed, and the calling thread reports it
   (flux__job_ok). In a split reduction outer values are stored once, at the
   end. */

FLUX__BEGIN_LEAN

/* One kernel's run, shared by its threads. per_task: blocks a task; partial: results of a split
   reduction's parts; failed: a task found no memory; phase: of a split reduction; batch, first:
   of a product, the batch and the element of C at which the product begins. */
typedef struct flux__job {
    flux__run *run;
    flux__kernel *k;
    int64_t per_task, tasks;
    char *partial;
    int failed, phase;
    int64_t batch, first;
} flux__job;

/* Bytes of scratch memory a thread needs for a kernel: registers, sums, numbers, and the arrays
   of flux__block_run. */
static size_t flux__memory_bytes(const flux__kernel *k, const flux__cpu *c) {
    size_t regs = (size_t)(c->nreg + 1 + c->nreduce) * (size_t)c->tile * (size_t)c->width +
        (size_t)c->tile * 8;
    return regs + (size_t)c->nreduce * c->sum_bytes +
           (size_t)k->nvalue * (16 + sizeof(void *) + 1) + 256;
}

/* This thread's scratch memory for kernels, aligned to 64 bytes, and kept for the next kernel.
   NULL: out of memory. */
static char *flux__kernel_memory(size_t bytes) {
    flux__thread *t = flux__self();
    if (!t) return NULL;
    if (t->scratch_bytes < bytes) {       /* if there is no memory, what was found before stays */
        void *more = flux__malloc(bytes);
        if (!more) return NULL;
        flux__free(t->scratch);
        t->scratch = more;
        t->scratch_bytes = bytes;
    }
    return (char *)(((uintptr_t)t->scratch + 63) & ~(uintptr_t)63);
}

/* Whether all of a kernel's tasks found their memory; if not, the calling thread records the
   error here. */
static bool flux__job_ok(const flux__job *job) {
    return !flux__atomic_load32(&job->failed) ||
           FLUX__REFUSE("out of memory: a worker's scratch for a kernel");
}

/* Prepares a thread's view of a running kernel: its scratch memory, divided, and the kernel's
   numbers. False: out of memory. */
static bool flux__block_start(flux__block_run *b, flux__run *run, flux__kernel *k) {
    flux__cpu *c = (flux__cpu *)k->ready;
    memset(b, 0, sizeof *b);
    b->run = run, b->k = k, b->c = c;
    b->segments = 1, b->rt = 1;
    b->memory = flux__kernel_memory(flux__memory_bytes(k, c));
    if (!b->memory) return false;
    char *end = flux__numbers_at(b) + (size_t)k->nvalue * 8 + 64;
    b->at = (void **)(void *)end;
    b->held = (int64_t *)(void *)(end + (size_t)k->nvalue * sizeof(void *));
    b->walk = (uint8_t *)(b->held + k->nvalue);
    memset(b->held, 0, (size_t)k->nvalue * sizeof *b->held);
    flux__start_numbers(b);
    return true;
}

/* Runs one task: per_task blocks of outer points. */
static void flux__block_task(void *ctx, int64_t task) {
    flux__job *job = (flux__job *)ctx;
    flux__block_run b;
    if (!flux__block_start(&b, job->run, job->k)) {
        flux__atomic_store32(&job->failed, 1);
        return;
    }
    int64_t from = task * job->per_task * b.c->w, to = (task + 1) * job->per_task * b.c->w;
    if (to > b.c->outer) to = b.c->outer;
    for (b.o0 = from; b.o0 < to; b.o0 += b.c->w) {
        b.w = to - b.o0 < b.c->w ? to - b.o0 : b.c->w;
        flux__do_block(&b);
    }
}

/* Where a split reduction has its results of a part; part number `splits` are the combined
   ones. best: the best numbers that belong to an argmax's indices. */
static char *flux__partial(const flux__job *job, int i, int64_t part, bool best) {
    const flux__cpu *c = (const flux__cpu *)job->k->ready;
    return job->partial + ((part * c->nreduce + c->reduce_at[i]) * 2 + best) * c->outer * 8;
}

/* Makes the outer values that phase p starts from: reductions of earlier phases are read from
   the combined results, and the outer lines that follow from them run again. */
static void flux__start_phase(flux__block_run *b, const flux__job *job, int p) {
    for (int q = 0; q <= p; q++) {
        for (int i = 0; i < b->k->nvalue; i++) {
            const flux__value *v = &b->k->value[i];
            if (!flux__reducing(v) || v->phase != q - 1) continue;
            b->at[i] = flux__reg(b, b->c->reg[i]);
            b->walk[i] = 1;
            const size_t size = flux__class_size[v->ctype];
            memcpy(b->at[i], flux__partial(job, i, b->c->splits, false) + (size_t)b->o0 * size,
                   (size_t)b->w * size);
        }
        flux__do_per_row(b, q);
    }
}

/* Runs one phase over one part of the reduced points, for all outer points, and keeps the
   part's results. */
static void flux__split_task(void *ctx, int64_t part) {
    flux__job *job = (flux__job *)ctx;
    flux__block_run b;
    if (!flux__block_start(&b, job->run, job->k)) {
        flux__atomic_store32(&job->failed, 1);
        return;
    }
    flux__cpu *c = b.c;
    const int64_t from = flux__part_start(&c->order, part),
                  to = flux__part_start(&c->order, part + 1);
    b.part = true;
    for (b.o0 = 0; b.o0 < c->outer; b.o0 += c->w) {
        b.w = c->outer - b.o0 < c->w ? c->outer - b.o0 : c->w;
        flux__start_phase(&b, job, job->phase);
        flux__do_phase(&b, job->phase, from, to);
        for (int i = 0; i < job->k->nvalue; i++) {
            const flux__value *v = &job->k->value[i];
            if (!flux__reducing(v) || v->phase != job->phase) continue;
            const size_t size = flux__class_size[v->ctype],
                         wide = flux__class_size[job->k->value[v->a].ctype];
            memcpy(flux__partial(job, i, part, false) + (size_t)b.o0 * size, b.at[i],
                   (size_t)b.w * size);
            if (v->kind == FLUX__V_ARGREDUCE)
                memcpy(flux__partial(job, i, part, true) + (size_t)b.o0 * wide,
                       flux__reg(&b, c->nreg + 1 + c->reduce_at[i]), (size_t)b.w * wide);
        }
    }
}

/* Combines the results of a split reduction's parts, in their order; f32 sums in double. */
static void flux__combine(const flux__job *job, int i) {
    const flux__value *v = &job->k->value[i];
    const flux__cpu *c = (const flux__cpu *)job->k->ready;
    const size_t size = flux__class_size[v->ctype];
    const size_t wide = flux__class_size[job->k->value[v->a].ctype];
    char *acc = flux__partial(job, i, c->splits, false),
         *best = flux__partial(job, i, c->splits, true);
    if (flux__is_wide(c, v)) {
        memset(best, 0, (size_t)c->outer * 8);
        for (int part = 0; part < c->splits; part++)
            flux__section_now()->add_wide(
                (double *)(void *)best,
                (const float *)(const void *)flux__partial(job, i, part, false), c->outer);
        flux__convert(FLUX__F32C, acc, FLUX__F64C, best, c->outer);
        return;
    }
    memcpy(acc, flux__partial(job, i, 0, false), (size_t)c->outer * size);
    memcpy(best, flux__partial(job, i, 0, true), (size_t)c->outer * wide);
    for (int part = 1; part < c->splits; part++) {
        const char *x = flux__partial(job, i, part, false), *y = flux__partial(job, i, part, true);
        if (v->kind == FLUX__V_REDUCE) flux__accumulate(v->ctype, v->op, acc, x, c->outer);
        else
            for (int64_t o = 0; o < c->outer; o++) {
                int64_t won = 0;          /* becomes 1 if the later part has the better number */
                flux__argreduce(job->k->value[v->a].ctype, v->op != 0, best + (size_t)o * wide,
                                &won,
                                y + (size_t)o * wide, 1, 1);
                if (won) memcpy(acc + (size_t)o * 8, x + (size_t)o * 8, 8);
            }
    }
}

/* Runs a kernel whose reductions are split: phase by phase, all parts in parallel, then their
   results combined; stores the outer values at the end. Returns 0, or -1 with an error
   recorded. */
static int flux__run_split(flux__job *job) {
    flux__cpu *c = (flux__cpu *)job->k->ready;
    flux__block_run b;
    job->partial = (char *)job->k->scratch_at;
    for (job->phase = 0; job->phase < c->nphase; job->phase++) {
        if (c->phase[job->phase].n) flux__parallel(c->splits, flux__split_task, job);
        if (!flux__job_ok(job)) return -1;
        for (int i = 0; i < job->k->nvalue; i++)
            if (flux__reducing(&job->k->value[i]) && job->k->value[i].phase == job->phase)
                flux__combine(job, i);
    }
    if (!flux__block_start(&b, job->run, job->k)) return -1;
    for (; b.o0 < c->outer; b.o0 += c->w) {
        b.w = c->outer - b.o0 < c->w ? c->outer - b.o0 : c->w;
        flux__start_phase(&b, job, c->nphase);
        for (int p = 0; p < c->nphase; p++) flux__store_reductions(&b, p);
    }
    return 0;
}

/* Runs a fused kernel: by a pattern of the whole kernel, as a split reduction, or in blocks that
   threads share. Returns 0, or -1 with an error recorded. */
static int flux__run_fused(flux__run *run, flux__kernel *k) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    flux__job job;
    if (c->outer == 0 || (c->whole && c->whole->run_all(run, k))) return 0;
    memset(&job, 0, sizeof job);
    job.run = run, job.k = k;
    if (c->splits > 1) return flux__run_split(&job);
    int64_t blocks = (c->outer + c->w - 1) / c->w,
            work = c->outer * (c->inner > 0 ? c->inner : 1) * c->cost;
    /* too little work for a second thread is done on the calling one */
    int64_t tasks = work / 131072 + 1;
    if (tasks > 256) tasks = 256;
    job.per_task = (blocks + tasks - 1) / tasks;
    job.tasks = (blocks + job.per_task - 1) / job.per_task;
    flux__parallel(job.tasks, flux__block_task, &job);
    return flux__job_ok(&job) ? 0 : -1;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_RUN_H */
