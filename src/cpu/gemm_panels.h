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
   its weight, or once for all calls (cpu/kept_operands.h). Where A lies, a tile's
   columns are pages apart, which neither the processor's prefetcher nor its TLB
   likes: 2048 x 512 by 512 x 8 in f32 takes 107 us, from panels 64; the same A
   transposed, which would be packed for each product, 197 us. Every second product
   of a plan reads the panels from the last to the first: it begins with those that
   the one before left in the second-level cache, which is smaller than all of them
   (2048 x 512 by 512 x 1 1.4 times as fast on a processor with 2 MB of it).

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

/* Packs the rows first ... end-1, a piece, of a mapped A, some columns at a time. to: the first
   panel of the piece. */
static void flux__panels_fill_mapped(const flux__gemm_plan *p, int64_t first, int64_t end,
                                     char *to) {
    double part[1024];                    /* FLUX__PANELS_UNIT rows of `most` elements */
    const int64_t tall = 2 * p->set->lanes, size = p->size,
                  most = (int64_t)sizeof part / size / FLUX__PANELS_UNIT;
    if (end - first < FLUX__PANELS_UNIT)
        memset(to, 0, (size_t)(FLUX__PANELS_UNIT * p->k * size));
    for (int64_t k = 0, n; k < p->k; k += n) {
        n = flux__gemm_min(p->k - k, most);
        flux__gemm_im2col(p, p->a, p->a_cols, k, n, p->a_rows, first, end - first, (char *)part,
                          most);
        for (int64_t i = 0; i < end - first; i += tall)
            flux__gemm_copy(size, (const char *)part + i * most * size, most, 1,
                            to + (i * p->k + k * tall) * size, tall,
                            flux__gemm_min(end - first - i, tall), n);
    }
}

/* Packs one piece of A: FLUX__PANELS_UNIT rows, which are one panel or several. */
static void flux__panels_fill(void *ctx, int64_t piece) {
    const flux__gemm_plan *p = (const flux__gemm_plan *)ctx;
    const int64_t tall = 2 * p->set->lanes, size = p->size, first = piece * FLUX__PANELS_UNIT,
                  end = flux__gemm_min(first + FLUX__PANELS_UNIT, p->m);
    char *to = (char *)p->job->panels + first * p->k * size;
    if (p->a_rows) {
        flux__panels_fill_mapped(p, first, end, to);
        return;
    }
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
   processor's own prefetcher is faster. end: no panel follows. *step: bytes from line to line. */
static const char *flux__panels_next(const flux__gemm_plan *p, const char *panel, int64_t k,
                                     bool end, int64_t call, int64_t calls, int64_t *step) {
    const int64_t width = 2 * p->set->lanes * p->size, share = p->chunk * width / calls;
    const bool inside = k + p->chunk < p->k;
    *step = p->n > 1 && (inside || !end) ? (share + p->chunk - 1) / p->chunk : 0;
    if (!*step) return panel;
    return panel + call * share +
           (inside ? k + p->chunk : p->job->backwards ? -p->k : p->k) * width;
}

/* How many calls of a kernel multiply a panel's columns by all columns of B. */
static int64_t flux__panels_calls(const flux__gemm_plan *p) {
    int64_t calls = 0;
    for (int64_t j = 0; j < p->n; j += flux__gemm_nr(p->n - j, p->set->columns)) calls++;
    return calls;
}

/* Multiplies the panels of `rows` rows from row i0 on by all columns of B. block: C's element
   (i0, 0), columns ld elements apart. */
static void flux__panels_multiply(const flux__gemm_plan *p, int64_t i0, int64_t rows, char *block,
                                  int64_t ld) {
    const flux__gemm_job *job = p->job;
    const int64_t tall = 2 * p->set->lanes, size = p->size, n = (rows + tall - 1) / tall,
                  calls = flux__panels_calls(p);
    for (int64_t number = 0; number < n; number++) {
        const int64_t i = (job->backwards ? n - 1 - number : number) * tall, at = i0 + i;
        const char *panel = (const char *)job->panels + at * p->k * size;
        const bool end = job->backwards ? at < tall : at + tall >= p->m;
        for (int64_t k = 0, some; k < p->k; k += some) {
            some = flux__gemm_min(p->k - k, p->chunk);
            for (int64_t j = 0, nr, call = 0, step; j < p->n; j += nr, call++) {
                const char *next = flux__panels_next(p, panel, k, end, call, calls, &step);
                nr = flux__gemm_nr(p->n - j, p->set->columns);
                const int64_t row = p->panels_b ? nr : p->b_row, col = p->panels_b ? 1 : p->b_col;
                p->set->two[flux__gemm_width(nr)](
                    some, panel + k * tall * size, tall, p->b + (k * row + j * p->b_col) * size,
                    row, col, block + (i + j * ld) * size, ld, k > 0, next, step);
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
   scratch memory, and calls the epilogue. A C that is computed transposed is put in order first. */
static void flux__panels_task(void *ctx, int worker, int64_t number) {
    flux__gemm_plan *p = (flux__gemm_plan *)ctx;
    const flux__gemm_job *job = p->job;
    const int64_t size = p->size, i0 = flux__panels_piece(p, number) * p->rows,
                  rows = flux__gemm_min(p->m - i0, p->rows),
                  padded = flux__gemm_up(rows, 2 * p->set->lanes);
    char *to = job->c ? (char *)job->c + i0 * (p->flip ? job->ldc : 1) * size : NULL;
    const bool direct = to && padded == rows && !p->flip;
    char *apart = direct ? NULL : (char *)flux__scratch(
        (size_t)((padded + (p->flip && !to ? rows : 0)) * p->n * size));
    if (!apart && !direct) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    char *block = direct ? to : apart;
    int64_t ld = direct ? job->ldc : padded;
    flux__panels_multiply(p, i0, rows, block, ld);
    if (p->flip) {
        block = to ? to : apart + padded * p->n * size;
        flux__gemm_copy(size, apart, padded, 1, block, to ? job->ldc : p->n, p->n, rows);
        ld = to ? job->ldc : p->n;
    } else if (to && apart)
        flux__gemm_copy_rows(apart, padded * size, to, job->ldc * size, p->n, rows * size);
    if (job->epilogue && p->flip) job->epilogue(job->ctx, worker, 0, i0, p->n, rows, block, ld);
    else if (job->epilogue) job->epilogue(job->ctx, worker, i0, 0, rows, p->n, block, ld);
    flux__scratch_done(apart);
}

/* A copy of B, whose columns are contiguous, or in panels as high as a tile is wide, row by row
   (plan->panels_b); step: elements of a column with what separates it from the next. */
typedef struct flux__panels_columns {
    const flux__gemm_plan *plan;
    char *to;
    int64_t step;
} flux__panels_columns;
/* Copies the columns that a tile has, those of call number `call`. */
static void flux__panels_copy_columns(void *ctx, int64_t call) {
    const flux__panels_columns *c = (const flux__panels_columns *)ctx;
    const flux__gemm_plan *p = c->plan;
    int64_t j = 0, n;
    while (n = flux__gemm_nr(p->n - j, p->set->columns), call-- > 0) j += n;
    char *to = c->to + j * c->step * p->size;
    if (p->panels_b)
        flux__gemm_im2col(p, p->b, p->b_cols, j, n, p->b_rows, 0, p->k, to, n);
    else if (p->b_rows)
        flux__gemm_im2col(p, p->b, p->b_rows, 0, p->k, p->b_cols, j, n, to, c->step);
    else
        flux__gemm_copy(p->size, p->b + j * p->b_col * p->size, p->b_row, p->b_col, to, c->step,
                        p->k, n);
}

/* Computes a product from job->panels, which it packs first if job->fill says so. The plan has
   their matrix as A. Sets p->failed where memory runs out. */
static void flux__panels_run(flux__gemm_plan *p, int64_t threads) {
    const int64_t tall = 2 * p->set->lanes, size = p->size;
    p->panels_b = false;
    flux__panels_columns b = { p, NULL, (flux__gemm_up(p->k * size, 64) | 64) / size };
    if (p->job->fill)
        flux__parallel((p->m + FLUX__PANELS_UNIT - 1) / FLUX__PANELS_UNIT, flux__panels_fill, p);
    /* not where more of B's columns than the cache has ways fall into one set, or are apart */
    if (p->b_rows || p->b_row != 1 || (p->n > 8 && p->b_col * size % 4096 == 0)) {
        if (!(b.to = (char *)flux__scratch((size_t)(b.step * p->n * size)))) {
            p->failed = 1;
            return;
        }
        p->panels_b = p->b_rows && flux__gemm_along(p, p->b_cols, p->b_rows);
        flux__parallel(flux__panels_calls(p), flux__panels_copy_columns, &b);
        p->b = b.to, p->b_row = 1, p->b_col = b.step;
    }
    p->rows = flux__gemm_min(flux__gemm_split(p->m, threads > 1 ? 2 * threads : 1, tall),
                             flux__gemm_up(FLUX__PANELS_PIECE / p->n, tall));
    const int64_t pieces = (p->m + p->rows - 1) / p->rows;
    p->share = (pieces + threads - 1) / threads;
    flux__parallel_workers(pieces, flux__panels_task, p);
    flux__scratch_done(b.to);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_GEMM_PANELS_H */
