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
   product, 197 us. Every second product reads the panels from the last to the
   first: it begins with those that the one before left in the second-level cache,
   which is smaller than all of them (2048 x 512 by 512 x 1 1.4 times as fast on a
   processor with 2 MB of it).

   Invariant: a panel is two vectors of rows by all of k, its columns contiguous;
   panels follow each other, and rows past the last are zeros. Sums are those of
   cpu/gemm_tasks.h, bit for bit: the same kernels add the same chunks of k in
   the same order. */

FLUX__BEGIN_LEAN

enum {
    FLUX__PANELS_UNIT = 32,               /* whole panels of any instruction set */
    FLUX__PANELS_COLUMNS = 32,            /* most columns of B: with more, A is packed by the way */
    FLUX__PANELS_PIECE = 65536            /* elements of C that the epilogue is given at a time */
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

/* What a kernel prefetches that multiplies columns k ... of a panel, call number `call` of `calls`
   that do: its share of the panel's next chunk, or of the first chunk of the panel that comes next,
   evenly, as memory gives it fastest. A single column multiplies too little for that: the
   processor's own prefetcher is faster. end: no panel comes next. *step: bytes from line to line. */
static const char *flux__panels_next(const flux__gemm_plan *p, const char *panel, int64_t k,
                                     bool end, int64_t call, int64_t calls, int64_t *step) {
    const int64_t width = 2 * p->set->lanes * p->size, share = p->chunk * width / calls;
    const bool inside = k + p->chunk < p->k;
    *step = p->n > 1 && (inside || !end) ? (share + p->chunk - 1) / p->chunk : 0;
    if (!*step) return panel;
    return panel + call * share +
           (inside ? k + p->chunk : p->job->backwards ? -p->k : p->k) * width;
}

/* Multiplies the panels of `rows` rows from row i0 on by all columns of B. block: C's element
   (i0, 0), columns ld elements apart. */
static void flux__panels_multiply(const flux__gemm_plan *p, int64_t i0, int64_t rows, char *block,
                                  int64_t ld) {
    const flux__gemm_job *job = p->job;
    const int64_t tall = 2 * p->set->lanes, size = p->size, n = (rows + tall - 1) / tall;
    int64_t calls = 0;
    for (int64_t j = 0; j < p->n; j += flux__gemm_nr(p->n - j, p->set->columns)) calls++;
    for (int64_t number = 0; number < n; number++) {
        const int64_t i = (job->backwards ? n - 1 - number : number) * tall, at = i0 + i;
        const char *panel = (const char *)job->panels + at * p->k * size;
        const bool end = job->backwards ? at < tall : at + tall >= p->m;
        for (int64_t k = 0, some; k < p->k; k += some) {
            some = flux__gemm_min(p->k - k, p->chunk);
            for (int64_t j = 0, nr, call = 0, step; j < p->n; j += nr, call++) {
                const char *next = flux__panels_next(p, panel, k, end, call, calls, &step);
                nr = flux__gemm_nr(p->n - j, p->set->columns);
                p->set->two[flux__gemm_width(nr)](
                    some, panel + k * tall * size, tall,
                    p->b + (k * p->b_row + j * p->b_col) * size, p->b_row, p->b_col,
                    block + (i + j * ld) * size, ld, k > 0, next, step);
            }
        }
    }
}

/* Which piece of C, p->rows rows each, the task `number` computes. Where A is read backwards, the
   pieces of each thread (flux__parallel_workers divides tasks so) are computed in reverse order. */
static int64_t flux__panels_piece(const flux__gemm_plan *p, int64_t number) {
    const int64_t pieces = (p->m + p->rows - 1) / p->rows, first = number / p->share * p->share,
                  end = flux__gemm_min(first + p->share, pieces);
    return p->job->backwards ? first + end - 1 - number : number;
}

/* Computes p->rows rows of C, or what is left, in C itself where all its panels are full, else in
   scratch memory, and calls the epilogue. */
static void flux__panels_task(void *ctx, int worker, int64_t number) {
    flux__gemm_plan *p = (flux__gemm_plan *)ctx;
    const flux__gemm_job *job = p->job;
    const int64_t size = p->size, i0 = flux__panels_piece(p, number) * p->rows,
                  rows = flux__gemm_min(p->m - i0, p->rows),
                  padded = flux__gemm_up(rows, 2 * p->set->lanes);
    char *apart = job->c && padded == rows ? NULL : (char *)flux__scratch(
        (size_t)(padded * p->n * size));
    char *block = apart ? apart : (char *)job->c + i0 * size;
    const int64_t ld = apart ? padded : job->ldc;
    if (!apart && !(job->c && padded == rows)) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    flux__panels_multiply(p, i0, rows, block, ld);
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
                             flux__gemm_up(FLUX__PANELS_PIECE / p->n, tall));
    const int64_t pieces = (p->m + p->rows - 1) / p->rows;
    p->share = (pieces + threads - 1) / threads;
    flux__parallel_workers(pieces, flux__panels_task, p);
    flux__scratch_done(columns);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_GEMM_PANELS_H */
