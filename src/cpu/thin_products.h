#ifndef FLUX__CPU_THIN_PRODUCTS_H
#define FLUX__CPU_THIN_PRODUCTS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/workers.h"
#include "../schedule/kernel.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "gemm_plan.h"
#include "depthwise.h"
#include "conv_direct.h"
#include "run.h"
#include "products.h"
#include "product_operands.h"
#include "product_batches.h"

/* ---------------------------------------------------------------------- cpu/thin_products.h
   Products that are too thin to pack an operand for: tasks that compute channels
   of a depthwise convolution and their gradients (cpu/depthwise.h), or parts of a
   direct convolution (cpu/conv_direct.h), and run the lines behind the product on
   them. A task pads its batches' images itself where they are not padded yet.

   Invariant: the sums are those of cpu/gemm_plan.h's products. */

FLUX__BEGIN_HOT

/* Results of thin products that wait for the lines behind the product, about. */
enum { FLUX__THIN_RESULTS = 4096 };

/* How many batches have so many results, and how many of these follow `batch`, of the same sample
   and before `end`. */
static int64_t flux__thin_most(const flux__products *p) {
    return FLUX__THIN_RESULTS / (p->g.m * p->g.n) + 1;
}
static int64_t flux__thin_some(const flux__products *p, int64_t batch, int64_t end) {
    const int64_t all = p->job.k->full[2];
    return flux__gemm_min(flux__gemm_min(flux__thin_most(p), end - batch), all - batch % all);
}

/* Computes the products of n batches of a direct convolution, from `batch` on, if a batch has but
   one part, or one part of a batch, and what follows the product on them. memory: as
   flux__direct_task has it. */
static void flux__direct_batches(flux__products *p, flux__job *job, int64_t batch, int64_t n,
                                 int64_t part, char *memory) {
    const flux__direct *d = p->direct;
    const flux__kernel *k = job->k;
    const int64_t m = p->g.m, size = d->size;
    char *padded = memory + flux__direct_scratch(d) * size,
         *results = padded + flux__padded_bytes(p);
    int64_t i0, mb = flux__direct_positions(d, part, &i0), ld = p->bare ? m : mb;
    for (int64_t i = batch; i < batch + n; i++) {
        const char *x = flux__batch_image(p, i, padded, part > 0);
        char *y = p->bare ? (char *)job->run->ptr[k->value[0].out] +
            (job->first + i * m * p->g.n + i0) * size : results + (i - batch) * mb * p->g.n * size;
        flux__direct_run(d, part, x, (const char *)flux__matrix_at(k, &p->b, i), p->g.b_row,
                         p->g.b_col, y, ld, memory);
    }
    job->batch = batch;
    if (!p->bare) flux__epilogue(job, 0, i0, 0, mb, n * p->g.n, results, ld);
}

/* Computes the parts of one task of a direct convolution. Scratch memory: what flux__direct_run
   needs, padded images, results. */
static void flux__direct_task(void *ctx, int64_t task) {
    flux__products *p = (flux__products *)ctx;
    const flux__direct *d = p->direct;
    flux__job job = p->job;
    const int64_t parts = d->parts, some = parts > 1 ? 1 : flux__thin_most(p),
                  end = flux__gemm_min((task + 1) * p->each, p->batches * parts);
    char *memory = (char *)flux__scratch((size_t)((
        flux__direct_scratch(d) + some * d->most * p->g.n) * d->size + flux__padded_bytes(p)));
    if (!memory) flux__atomic_store32(&p->failed, 1);
    for (int64_t i = task * p->each, n; i < end && memory; i += n) {
        n = parts > 1 ? 1 : flux__thin_some(p, i, end);
        flux__direct_batches(p, &job, i / parts, n, i % parts, memory);
    }
    if (job.failed) flux__atomic_store32(&p->failed, 1);
    flux__scratch_done(memory);
}

/* Runs products of windows and few columns, see conv_direct.h; a task has whole batches if it pads
   their images, and all are padded before if there are too few batches for the threads. False, and
   nothing is done: they are others. */
static bool flux__run_direct(flux__products *p) {
    flux__direct d;
    if (!p->a.o.gather || p->b.o.gather || p->g.tiles || p->g.pairs || p->g.inner_kernel > 1 ||
        !flux__direct_plan(&d, &p->g, p->f64, &p->a.map[0], &p->a.map[1])) return false;
    const int64_t threads = flux__num_threads();
    if (d.parts > 1 && threads > 1 && p->batches < 2 * threads && !flux__products_pad(p))
        return true;
    p->direct = &d;
    p->each = 32768 / (p->g.m / d.parts * p->g.k * p->g.n) + 1;
    if (p->pad) p->each = (p->each + d.parts - 1) / d.parts * d.parts;
    flux__parallel((p->batches * d.parts + p->each - 1) / p->each, flux__direct_task, p);
    p->direct = NULL;
    return true;
}

#if FLUX__GEMM_VECTORS
/* Where a depthwise task computes the results of channels, from batch number `batch` on: where they
   belong, or, if lines come behind the product, in `memory`, from which flux__depthwise_done runs
   these. */
static float *flux__depthwise_place(const flux__products *p, int64_t batch, float *memory) {
    return p->bare ? (float *)p->job.run->ptr[p->job.k->value[0].out] + batch * p->g.m : memory;
}
static void flux__depthwise_done(flux__products *p, int64_t batch, int64_t channels, float *y) {
    flux__job job = p->job;
    job.batch = batch;
    if (!p->bare) flux__epilogue(&job, 0, 0, 0, p->g.m, channels, y, p->g.m);
    if (job.failed) flux__atomic_store32(&p->failed, 1);
}

/* Computes the channels of one task of a depthwise convolution, some of a sample's at a time. */
static void flux__depthwise_task(void *ctx, int64_t task) {
    flux__products *p = (flux__products *)ctx;
    const flux__kernel *k = p->job.k;
    const int64_t m = p->g.m, end = flux__gemm_min((task + 1) * p->each, p->batches),
                  results = p->bare ? 0 : flux__thin_most(p) * m, image = flux__padded_bytes(p);
    float *memory = results + image == 0 ? NULL
        : (float *)flux__scratch((size_t)(results * (int64_t)sizeof *memory + image));
    char *padded = p->pad && memory ? (char *)(memory + results) : NULL;
    const bool ok = memory || results + image == 0;
    const flux__taps taps = flux__depthwise_taps(&p->a.map[1], p->g.k);
    if (!ok) flux__atomic_store32(&p->failed, 1);
    for (int64_t batch = task * p->each, n; batch < end && ok; batch += n) {
        float *y = flux__depthwise_place(p, batch, memory);
        n = flux__thin_some(p, batch, end);
        for (int64_t c = 0; c < n; c++) {
            const void *x = flux__batch_image(p, batch + c, padded, false);
            flux__depthwise(&p->a.map[0], &taps, (const float *)x,
                            (const float *)flux__matrix_at(k, &p->b, batch + c), p->g.b_row,
                            y + c * m);
        }
        flux__depthwise_done(p, batch, n, y);
    }
    flux__scratch_done(memory);
}

/* Computes the gradients by their taps of one task's groups of channels. */
static void flux__depthwise_gradient_task(void *ctx, int64_t task) {
    flux__products *p = (flux__products *)ctx;
    const flux__depthwise_gradient *d = &p->depthwise;
    const flux__kernel *k = p->job.k;
    const int64_t all = k->full[2], groups = (all + d->lanes - 1) / d->lanes,
                  last = p->batches / all * groups,
                  band = (d->band + d->rows * d->positions->dim[0]) * d->lanes;
    float *memory = (float *)flux__scratch((size_t)(band + d->lanes * d->taps) * sizeof *memory);
    if (!memory) flux__atomic_store32(&p->failed, 1);
    for (int64_t i = task * p->each; i < (task + 1) * p->each && i < last && memory; i++) {
        const int64_t c = i % groups * d->lanes, batch = i / groups * all + c,
                      channels = flux__gemm_min(all - c, d->lanes);
        float *y = flux__depthwise_place(p, batch, memory + band);
        flux__depthwise_sums(d, channels, (const float *)flux__matrix_at(k, &p->a, batch),
                             (const float *)flux__matrix_at(k, &p->b, batch), y, memory);
        flux__depthwise_done(p, batch, channels, y);
    }
    flux__scratch_done(memory);
}

/* Whether an operand's matrices along the product's dim 2, the channels, lie one step apart: that
   dim may be several of a copy that is never made. */
static bool flux__even_channels(const flux__matrix *m) {
    int64_t next = 0;
    for (int d = 0; m->o.gather && d < m->o.shape.ndim; d++) {
        if (m->o.owner[d] != 2 || m->o.shape.dim[d] == 1) continue;
        if (next && m->o.stride[d] != next) return false;
        next = m->o.stride[d] * m->o.shape.dim[d];
    }
    return true;
}

/* Runs a product whose batches are gradients of a depthwise convolution's channels by their taps.
   False, and nothing is done: they are not. */
static bool flux__run_depthwise_gradient(flux__products *p) {
    flux__depthwise_gradient *d = &p->depthwise;
    const flux__kernel *k = p->job.k;
    flux__gemm_plan plan;
    d->taps = p->g.m, d->points = p->g.k;
    if (d->points < 1 || (!p->b.o.gather && p->g.b_row != 1) ||
        !flux__even_channels(&p->a) || !flux__even_channels(&p->b) ||
        !flux__depthwise_plan(d, &p->a.map[1], &p->a.map[0], p->b.o.gather ? p->b.map : NULL))
        return false;
    flux__gemm_plan_for(&plan, false, &p->g);
    d->chunk = plan.chunk, d->x_step = d->g_step = 0;
    if (k->full[2] > 1) {
        d->x_step = (const float *)flux__matrix_at(k, &p->a, 1) -
                    (const float *)flux__matrix_at(k, &p->a, 0);
        d->g_step = (const float *)flux__matrix_at(k, &p->b, 1) -
                    (const float *)flux__matrix_at(k, &p->b, 0);
    }
    const int64_t groups = p->batches / k->full[2] * ((k->full[2] + d->lanes - 1) / d->lanes);
    if (!flux__products_pad(p)) return true;
    p->each = 32768 / (d->taps * d->points * d->lanes) + 1;
    flux__parallel((groups + p->each - 1) / p->each, flux__depthwise_gradient_task, p);
    return true;
}

/* Runs a product whose batches are channels of a depthwise convolution, or gradients of such.
   False, and nothing is done: they are not. */
static bool flux__run_depthwise(flux__products *p) {
    if (p->g.n != 1 || p->f64 || !p->a.o.gather || p->g.inner_kernel > 1) return false;
    if (p->b.o.gather || !flux__is_depthwise(&p->a.map[0], &p->a.map[1], p->g.k))
        return flux__run_depthwise_gradient(p);
    p->each = 32768 / (p->g.m * p->g.k) + 1;
    flux__parallel((p->batches + p->each - 1) / p->each, flux__depthwise_task, p);
    return true;
}
#else
#  define flux__run_depthwise(p) false
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_THIN_PRODUCTS_H */
