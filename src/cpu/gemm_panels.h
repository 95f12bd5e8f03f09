#ifndef FLUX__CPU_GEMM_PANELS_H
#define FLUX__CPU_GEMM_PANELS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/workers.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"

/* ---------------------------------------------------------------------- cpu/gemm_panels.h
   Products with few columns whose A is packed as a whole, once for all products
   of a plan that share it (cpu/shared_operands.h), as the steps of an LSTM share
   its weight. Where A lies, a tile's columns are pages apart, which neither the
   processor's prefetcher nor its TLB likes: 2048 x 512 by 512 x 8 in f32 takes
   107 us, from panels 64; the same A transposed, which would be packed for each
   product, 197 us.

   Invariant: a panel is two vectors of rows by all of k, its columns contiguous;
   panels follow each other, and rows past the last are zeros. Sums are those of
   cpu/gemm_tasks.h, bit for bit: the same kernels add the same chunks of k in
   the same order. */

FLUX__BEGIN_LEAN

enum {
    FLUX__PANELS_UNIT = 32,               /* whole panels of any instruction set */
    FLUX__PANELS_COLUMNS = 32             /* most columns of B: with more, A is packed by the way */
};

/* Bytes of the panels of an m x k matrix. */
static int64_t flux__panels_bytes(int64_t m, int64_t k, int64_t size) {
    return flux__gemm_up(flux__gemm_up(m, FLUX__PANELS_UNIT) * k * size, 64);
}

/* Packs one piece of A: FLUX__PANELS_UNIT rows, which are one panel or several. */
static void flux__panels_fill(void *ctx, int64_t piece) {
    const flux__gemm_plan *p = (const flux__gemm_plan *)ctx;
    const int64_t tall = 2 * p->set->lanes, size = p->size, first = piece * FLUX__PANELS_UNIT,
                  end = flux__gemm_min(first + FLUX__PANELS_UNIT, p->m);
    char *to = (char *)p->job->panels + first * p->k * size;
    const char *from = p->a + first * p->a_row * size;
    const int64_t whole = p->a_row == 1 ? (end - first) / tall : 0;
    if (whole) flux__gemm_panels(from, p->a_col * size, to, tall * size, whole, p->k);
    for (int64_t i = first + whole * tall; i < end; i += tall) {
        const int64_t rows = flux__gemm_min(end - i, tall);
        char *panel = to + (i - first) * p->k * size;
        if (rows < tall) memset(panel, 0, (size_t)(tall * p->k * size));
        flux__gemm_copy(size, p->a + i * p->a_row * size, p->a_row, p->a_col, panel, tall, rows,
                        p->k);
    }
}

/* Computes p->rows rows of C, or what is left, in C itself where all its panels are full, else in
   scratch memory, and calls the epilogue. */
static void flux__panels_task(void *ctx, int worker, int64_t number) {
    flux__gemm_plan *p = (flux__gemm_plan *)ctx;
    const flux__gemm_job *job = p->job;
    const int64_t tall = 2 * p->set->lanes, size = p->size, i0 = number * p->rows,
                  rows = flux__gemm_min(p->m - i0, p->rows), padded = flux__gemm_up(rows, tall);
    char *apart = job->c && padded == rows ? NULL : (char *)flux__scratch(
        (size_t)(padded * p->n * size));
    char *block = apart ? apart : (char *)job->c + i0 * size;
    const int64_t ld = apart ? padded : job->ldc;
    if (!apart && !(job->c && padded == rows)) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    for (int64_t i = 0; i < rows; i += tall)
        for (int64_t k = 0, some; k < p->k; k += some) {
            const char *a = (const char *)job->panels + ((i0 + i) * p->k + k * tall) * size;
            some = flux__gemm_min(p->k - k, p->chunk);
            for (int64_t j = 0, nr; j < p->n; j += nr) {
                nr = flux__gemm_nr(p->n - j, p->set->columns);
                p->set->two[flux__gemm_width(nr)](
                    some, a, tall, p->b + (k * p->b_row + j * p->b_col) * size, p->b_row, p->b_col,
                    block + (i + j * ld) * size, ld, k > 0, a, 0);
            }
        }
    if (apart && job->c)
        flux__gemm_copy_rows(apart, padded * size, (char *)job->c + i0 * size, job->ldc * size,
                             p->n, rows * size);
    if (job->epilogue) job->epilogue(job->ctx, worker, i0, 0, rows, p->n, block, ld);
    flux__scratch_done(apart);
}

/* Computes the product of a plan that is not transposed (flip), from job->panels, which it packs
   first if job->fill says so. Sets p->failed where memory runs out. */
static void flux__panels_run(flux__gemm_plan *p, int64_t threads) {
    const int64_t tall = 2 * p->set->lanes, size = p->size,
                  step = (flux__gemm_up(p->k * size, 64) | 64) / size;
    void *columns = NULL;
    if (p->job->fill)
        flux__parallel((p->m + FLUX__PANELS_UNIT - 1) / FLUX__PANELS_UNIT, flux__panels_fill, p);
    /* not where more of B's columns than the cache has ways fall into one set, or are apart */
    if (p->b_row != 1 || (p->n > 8 && p->b_col * size % 4096 == 0)) {
        if (!(columns = flux__scratch((size_t)(step * p->n * size)))) {
            p->failed = 1;
            return;
        }
        flux__gemm_copy(size, p->b, p->b_row, p->b_col, columns, step, p->k, p->n);
        p->b = (const char *)columns, p->b_row = 1, p->b_col = step;
    }
    p->rows = flux__gemm_min(flux__gemm_split(p->m, threads > 1 ? 2 * threads : 1, tall),
                             flux__gemm_up(FLUX__GEMM_PIECE / p->n, tall));
    flux__parallel_workers((p->m + p->rows - 1) / p->rows, flux__panels_task, p);
    flux__scratch_done(columns);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_GEMM_PANELS_H */
