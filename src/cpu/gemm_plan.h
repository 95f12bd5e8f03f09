#ifndef FLUX__CPU_GEMM_PLAN_H
#define FLUX__CPU_GEMM_PLAN_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/errors.h"
#include "../base/workers.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"

/* ---------------------------------------------------------------------- cpu/gemm_plan.h
   The plan of a matrix product and one thread's share of it; flux__gemm is the
   entry. The plan chooses whether C is computed as it is or transposed, which
   is better where A has few rows and B many columns; whether inner products are
   cheaper than tiles; the chunks of k; the blocks of C that threads share; and
   which operands are packed. The constants beside each choice are measured.
   With FLUX_BLAS products go to the program's CBLAS.

   Invariant: what changes sums (chunks, inner products or tiles) depends on the
   shape and strides of the whole product alone, judged by AVX-512's measures
   also on AVX2, never on threads, blocks or packing. Blocks of A fit the
   second-level cache, a panel of B the first. Less than a vector of rows at the
   end is done by a tile that begins earlier. C may be missing: then only the
   epilogue sees it, from scratch memory. Running out of memory is an error and
   leaves C incomplete. */

FLUX__LEAN

typedef struct flux__gemm_plan {
    const flux__gemm_job *job;
    const flux__gemm_set *set;
    int64_t size;                         /* bytes of an element */
    /* flip: a is B transposed, b is A transposed, and C is computed transposed */
    bool flip, copy_a, copy_b;
    /* layout of the packed b: panels of nr columns, row by row; else column by column */
    bool panels_b;
    int64_t m, n, k;  /* C is m x n, a m x k, b k x n, as the plan reads them: */
    const char *a, *b, *a_next;           /* a_next: the next product's a, or NULL */
    int64_t a_row, a_col, b_row, b_col;   /* strides of a and b, in elements */
    /* implicit-GEMM maps of a's and b's rows and columns; NULL: plain strides. With a map the
       operand is copied by `collect` */
    const flux__axes *a_rows, *a_cols, *b_rows, *b_cols;
    flux__gemm_collector collect;
    /* size of the block of C that a task computes; number of such blocks down C */
    int64_t rows, columns, down;
    /* rows of A that are multiplied at a time, so that they stay in the second-level cache */
    int64_t sub;
    int64_t chunk;                        /* length of a chunk of k */
    double cost;                          /* estimated cycles of the whole product */
    int failed;                           /* set to 1 by a task that finds no scratch memory */
} flux__gemm_plan;

typedef struct flux__gemm_task {          /* one block of C */
    const flux__gemm_plan *plan;
    int worker;
    /* the block's first row and column, rows and columns; the first and the number of points of
       k of the present chunk */
    int64_t i0, j0, mb, nb, k0, kb;
    /* the rows that are being multiplied (below: the rows at hand), counted from i0 */
    int64_t i, ib;
    /* where the block of A that comes next is still to be prefetched; NULL: there is none, */
    const char *next;
    int64_t lines;  /* and how many cache lines of each of its columns are still to be prefetched */
    bool keep;  /* A is packed by the kernel that reads it first (flux__gemm_keeps) */
    bool late;  /* the epilogue is called once, when the block is complete (flux__gemm_late) */
    /* number of A's columns that are read in place; the columns after them are read from the
       copy */
    int64_t there;
    char *a, *b;                          /* scratch memory: the packed A and B, */
    /* a tile of which only some rows are stored, and the block of C if it cannot be computed in
       C itself */
    char *edge, *out;
    int64_t out_from;  /* number of the block's column that is stored first in `out` */
    /* distance of the columns of the copied a, in elements, if it is not packed in panels */
    int64_t a_step;
    int64_t b_step;                       /* distance of the copied b's columns, in elements */
    char *block;  /* the address of C's element (i0, j0), or `out`; columns are ld elements apart */
    int64_t ld;
} flux__gemm_task;

/* bytes of a column of B in a chunk of k: the columns of a tile fit the first-level cache */
#define FLUX__GEMM_CHUNK 2048
/* tiles in a block's height: at most 1 MB of A, in the second-level cache */
#define FLUX__GEMM_TILES 16
#define FLUX__GEMM_COLUMNS 512            /* columns in a block's width */
/* bytes of A that are read in place at a time: as many again are being prefetched into the
   second-level cache */
#define FLUX__GEMM_BLOCK (1 << 17)
#define FLUX__GEMM_FEW 64  /* most columns for which inner-product kernels are considered */
/* elements of C that the epilogue is given at a time, unless one panel of B makes more */
#define FLUX__GEMM_PIECE 16384

/* n divided into `parts` parts: the size of a part, rounded up to a multiple of unit */
static int64_t flux__gemm_split(int64_t n, int64_t parts, int64_t unit) {
    return flux__gemm_up((n + parts - 1) / parts, unit);
}

/* Chooses the tile that computes row i of the rows at hand, and returns its first row. A tile
   is two vectors high, or one at the end (half a one where that is enough). The last tile
   starts earlier, so that it ends with the last row: the rows that it has in common with the
   tile before come out the same again. The result is below 0 only if all the rows are less than
   a vector. *high: the tile's rows. */
static int64_t flux__gemm_tile_at(const flux__gemm_task *t, int64_t i, int64_t *high) {
    const flux__gemm_set *set = t->plan->set;
    int64_t lanes = set->lanes, left = t->ib - i,
            narrow = set->narrow && !t->plan->panels_b ? lanes / 2 : 0;
    if (left <= narrow) *high = narrow;
    else *high = left >= 2 * lanes || (i > 0 && left > lanes + narrow) ? 2 * lanes : lanes;
    return flux__gemm_min(i, t->ib - *high);
}

/* The number of A's columns (of the present chunk) that can be read in place if a tile of
   `high` rows reads past the rows of A, of which there are less than a vector: what follows a
   column in memory must be another column of A, or at least belong to A's memory. 0 where B has
   many columns, for then it is not worth it: each tile is computed in two parts. */
static int64_t flux__gemm_readable(const flux__gemm_task *t, int64_t high) {
    const flux__gemm_plan *p = t->plan;
    int64_t beyond = (p->k - 1) * p->a_col + p->m - (t->i0 + t->i) - high;
    if (p->n > p->k / 2 || p->a_col <= 0 || beyond < t->k0 * p->a_col) return 0;
    return flux__gemm_min(beyond / p->a_col + 1 - t->k0, t->kb);
}

/* Describes the elements first ... first+*n-1 of the map x as runs of evenly spaced elements,
   at most 64 of them; sets *n to the number of elements they cover and returns the number of
   runs. An element is `words` 32-bit words. */
static int64_t flux__gemm_runs(const flux__axes *x, int64_t words, int64_t first, int64_t *n,
                               flux__gemm_run *run) {
    int64_t place[FLUX_MAX_DIMS], from = flux__axes_point(x, first, place), i, count, len;
    for (i = 0, count = 0; i < *n && count < 64; i += len, count++) {
        len = words > 1 && x->step[0] != 1 ? 1 : flux__gemm_min(x->dim[0] - place[0], *n - i);
        run[count].from = from * words, run[count].to = i * words, run[count].n = len * words;
        place[0] += len, from += len * x->step[0];
        if (place[0] < x->dim[0]) continue;
        from += flux__axes_next(x, 1, place) - x->dim[0] * x->step[0];
        place[0] = 0;
    }
    *n = i;
    return count;
}

/* How many elements of a mapped matrix are copied together if runs go along x: the length of
   x's first dim if it is contiguous, half of it if every second element is taken, else 1. */
static int64_t flux__gemm_together(const flux__axes *x, int64_t size) {
    return x->step[0] == 1 ? x->dim[0] : x->step[0] == 2 && size == 4 ? (x->dim[0] + 1) / 2 : 1;
}
/* Whether runs along x are longer than runs along y. */
static bool flux__gemm_along(const flux__gemm_plan *p, const flux__axes *x, const flux__axes *y) {
    return flux__gemm_together(x, p->size) > flux__gemm_together(y, p->size);
}

/* The im2col pack. Copies the points start ... start+count-1 of `across`, to_step elements
   apart in `to`; of each, the elements first ... first+n-1 of `along`, contiguously. from:
   element (0, 0) of the mapped matrix. */
static void flux__gemm_collect(const flux__gemm_plan *p, const char *from, const flux__axes *along,
                               int64_t first, int64_t n, const flux__axes *across, int64_t start,
                               int64_t count, char *to, int64_t to_step) {
    flux__gemm_run run[64];
    int64_t i, m, runs, words = p->size / 4;
    for (i = 0; i < n; i += m) {
        m = n - i;
        runs = flux__gemm_runs(along, words, first + i, &m, run);
        p->collect(words, (const float *)(const void *)from, across, start, count, run, runs,
                   words > 1 ? 1 : along->step[0], (float *)(void *)(to + i * p->size),
                   to_step * words);
    }
}

/* Packs a mapped A whose columns, not rows, hold the longer runs: up to `most` rows by 64
   columns at a time are collected row by row, then transposed into the copy, whose columns are
   a_step apart. */
static void flux__gemm_collect_turned(const flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    double part[1024];                    /* 32 rows of 64 floats, or 16 of doubles */
    int64_t i, k, rows, n, most = 128 / p->size;
    for (i = 0; i < t->ib; i += rows)
        for (k = 0, rows = flux__gemm_min(t->ib - i, most); k < t->kb; k += n) {
            n = flux__gemm_min(t->kb - k, 64);
            flux__gemm_collect(p, p->a, p->a_cols, t->k0 + k, n, p->a_rows, t->i0 + t->i + i, rows,
                               (char *)part, 64);
            flux__gemm_copy(p->size, part, 64, 1, t->a + (i + k * t->a_step) * p->size, t->a_step,
                            rows, n);
        }
}

/* The distance of columns in a collected copy of that many rows: whole vectors, and not a
   multiple of 1024 bytes, which would put all columns into the same sets of the cache. */
static int64_t flux__gemm_apart(const flux__gemm_plan *p, int64_t rows) {
    int64_t step = flux__gemm_up(rows, p->set->lanes);
    return step * p->size % 1024 == 0 ? step + p->set->lanes : step;
}

/* Packs the rows at hand of a mapped A (kb columns of ib elements, a_step apart), with zeros
   behind rows that fill no vector. */
static void flux__gemm_pack_grid(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    t->there = 0;
    t->a_step = flux__gemm_apart(p, t->ib);
    if (t->ib < p->set->lanes) memset(t->a, 0, (size_t)(t->a_step * t->kb * p->size));
    if (flux__gemm_along(p, p->a_cols, p->a_rows)) flux__gemm_collect_turned(t);
    else flux__gemm_collect(p, p->a, p->a_rows, t->i0 + t->i, t->ib, p->a_cols, t->k0, t->kb, t->a,
                            t->a_step);
}

/* Packs the rows at hand of A: all of them if the plan copies A, or, if they are less than a
   vector, the columns that cannot be read in place. A panel of the copy is as high as its tile
   (two vectors, the last one maybe less) and holds kb columns, contiguously; panels follow each
   other. */
static void flux__gemm_pack_a(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t tall = 2 * p->set->lanes, i = t->ib / tall, high,
            start = flux__gemm_tile_at(t, 0, &high), size = p->size;
    const char *from = p->a + ((t->i0 + t->i) * p->a_row + t->k0 * p->a_col) * size;
    t->there = p->copy_a ? 0 : start < 0 ? flux__gemm_readable(t, high) : t->kb;
    if (start < 0) {
        memset(t->a, 0, (size_t)(high * (t->kb - t->there) * size));
        flux__gemm_copy(size, from + t->there * p->a_col * size, p->a_row, p->a_col, t->a, high,
                        t->ib, t->kb - t->there);
    }
    if (!p->copy_a || start < 0) return;
    /* all full panels together: A is read column by column */
    if (p->a_row == 1 && !t->keep)
        flux__gemm_panels(from, p->a_col * size, t->a, tall * size, i, t->kb);
    for (i = p->a_row != 1 ? 0 : i * tall; i < t->ib; i += high) {
        start = flux__gemm_tile_at(t, i, &high);
        flux__gemm_copy(size, from + start * p->a_row * size, p->a_row, p->a_col,
                        t->a + i * t->kb * size, high, high, t->kb);
    }
}

/* c += tile, or c = tile: both rows x columns, their columns ldc and ld elements apart. */
static FLUX__O2 void flux__gemm_add_tile(int64_t size, char *c, int64_t ldc, const char *tile,
                                         int64_t ld, int64_t rows, int64_t columns, bool add) {
    int64_t i, j;
    if (!add) {
        flux__gemm_copy_rows(tile, ld * size, c, ldc * size, columns, rows * size);
        return;
    }
    for (j = 0; j < columns; j++, c += ldc * size, tile += ld * size) {
        float *f = (float *)(void *)c;
        double *d = (double *)(void *)c;
        if (size == 4) for (i = 0; i < rows; i++) f[i] += ((const float *)(const void *)tile)[i];
        else for (i = 0; i < rows; i++) d[i] += ((const double *)(const void *)tile)[i];
    }
}

/* Returns the address of element (k0, j) of the block's B, in place or packed, for the columns
   j ... j+wide-1; *row and *col: its strides in elements. */
static const char *flux__gemm_b(const flux__gemm_task *t, int64_t j, int64_t wide, int64_t *row,
                                int64_t *col) {
    const flux__gemm_plan *p = t->plan;
    *row = p->copy_b ? p->panels_b ? wide : 1 : p->b_row;
    *col = p->copy_b ? p->panels_b ? 1 : t->b_step : p->b_col;
    return p->copy_b ? t->b + j * t->b_step * p->size :
           p->b + (t->k0 * p->b_row + (t->j0 + j) * p->b_col) * p->size;
}

/* Whether C is so large that little of it is in a cache before it is written. */
static bool flux__gemm_far(const flux__gemm_plan *p) {
    return p->m * p->n * p->size * (p->job->batches > 1 ? p->job->batches : 1) >
           2 * FLUX__GEMM_BLOCK;
}
/* Whether A is larger than the second-level cache. */
static bool flux__gemm_large(const flux__gemm_plan *p) { return p->m * p->k * p->size > 2 << 20; }

/* Finds what to prefetch while the rows at hand are multiplied. Where A is read in place, its
   columns are too far apart for the processor's own prefetcher, so kernels fetch the next
   block: rows further down, the first rows of the next chunk of k, or those of the next
   product. */
static void flux__gemm_ahead(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t i = t->i + t->ib, rows = flux__gemm_min(i < t->mb ? t->mb - i : t->mb, t->ib);
    const char *next = i < t->mb ? p->a + (t->i0 + i + t->k0 * p->a_col) * p->size :
        t->k0 + t->kb < p->k ? p->a + (t->i0 + (t->k0 + t->kb) * p->a_col) * p->size :
        p->a_next ? p->a_next + t->i0 * p->size : NULL;
    t->next = next;
    t->lines = next && (!p->copy_a || t->keep) ? (rows * p->size + 63) / 64 : 0;
}

/* Prefetches a tile of C (`wide` columns, step bytes apart) that is in no cache: otherwise its
   stores would wait for memory. */
static FLUX__INLINE void flux__gemm_fetch(const char *c, int64_t step, int64_t wide) {
    for (; wide > 0; wide--, c += step) { FLUX__PREFETCH_WRITE(c) FLUX__PREFETCH_WRITE(c + 64) }
}

/* Multiplies all full panels of A (two vectors high) with the columns j ... j+wide-1 of B;
   their tiles are computed in C or `out` directly. Returns how many rows these panels have. */
static int64_t flux__gemm_full(flux__gemm_task *t, int64_t j, int64_t wide) {
    const flux__gemm_plan *p = t->plan;
    const flux__gemm_set *set = p->set;
    const bool keep = t->keep && j == 0, copied = p->copy_a && !keep,
               far = !t->out && flux__gemm_far(p), add = t->k0 > 0;
    const int64_t size = p->size, kb = t->kb, ld = t->ld, tall = 2 * set->lanes,
                  end = t->ib & -tall, high = tall * size;
    const int64_t step = p->a_rows ? t->a_step : copied ? tall : p->a_col,
                  down = copied && !p->a_rows ? high * kb : high;
    const int64_t line = keep ? high : 0, lines = keep ? high * kb : down;
    int64_t i, b_row, b_col;
    const flux__gemm_kernel two = set->two[wide <= 4 ? wide - 1 : wide / 2 + 1];
    const flux__gemm_kernel kernel = keep ? set->keep :
        set->plain && wide == set->columns ? set->plain : two;
    const char *a = copied ? t->a : p->a + (t->i0 + t->i + t->k0 * p->a_col) * size,
               *b = flux__gemm_b(t, j, wide, &b_row, &b_col);
    const char *to = keep ? t->a : a;
    char *c = t->block + (t->i + (j - t->out_from) * ld) * size;
    for (i = 0; i < end; i += tall, c += high, a += down, to += lines) {
        if (far) flux__gemm_fetch(c, ld * size, wide);
        if (keep || t->lines <= 0) kernel(kb, a, step, b, b_row, b_col, c, ld, add, to, line);
        else {
            two(kb, a, step, b, b_row, b_col, c, ld, add, t->next, p->a_col * size);
            t->next += 64, t->lines--;
        }
    }
    return end;
}

/* Multiplies one panel of A with the columns j ... j+wide-1 of B. i: the panel's first row that
   is to be stored; start, high: the tile's first row and height from flux__gemm_tile_at. The
   tile goes by way of t->edge where it would overwrite rows that are not its own. */
static void flux__gemm_tile(flux__gemm_task *t, int64_t i, int64_t start, int64_t high, int64_t j,
                            int64_t wide) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, size = p->size;
    int64_t rows = flux__gemm_min(t->ib - i, high), skip = start < 0 ? 0 : i - start;
    /* elements from the last column's start to the end of the block */
    int64_t past = (t->nb - j - wide + 1) * t->ld;
    /* `whole`: rows past a column's end belong to the next column, which is computed later */
    bool add = t->k0 > 0, whole = !add && t->ld == t->mb && past >= high;
    /* the second part continues the first part's sums, so the result is the same */
    const bool parted = t->there > 0 && t->there < t->kb;
    bool edge = start < 0 ? (!t->out && !whole) || (parted && add) : skip > 0 && add;
    const flux__gemm_set *set = high < lanes ? p->set->narrow : p->set;
    flux__gemm_kernel kernel =
        (high > lanes ? set->two : set->one)[wide <= 4 ? wide - 1 : wide / 2 + 1];
    const char *a = p->a + (t->i0 + t->i + i - skip + t->k0 * p->a_col) * size;
    int64_t b_row, b_col, ld = edge ? high : t->ld, n = t->there;
    const char *b = flux__gemm_b(t, j, wide, &b_row, &b_col);
    char *c = t->block + (t->i + i + (j - t->out_from) * t->ld) * size,
         *to = edge ? t->edge : c - skip * size;
    if (n > 0) kernel(n, a, p->a_col, b, b_row, b_col, to, ld, add && !edge, a, 0);
    if (n < t->kb || n == 0)
        kernel(t->kb - n, t->a + (p->a_rows ? i - skip : i * t->kb) * size,
               p->a_rows ? t->a_step : high, b + n * b_row * size, b_row, b_col, to, ld,
               n > 0 ? (int)FLUX__GEMM_GO_ON : add && !edge, a, 0);
    if (edge) flux__gemm_add_tile(size, c, t->ld, t->edge + skip * size, high, rows, wide, add);
}

/* Finishes the columns j ... j+n-1 of the rows at hand: transposes them into C if the product
   is computed transposed, and calls the epilogue. */
static void flux__gemm_finish(flux__gemm_task *t, int64_t j, int64_t n) {
    const flux__gemm_plan *p = t->plan;
    const flux__gemm_job *job = p->job;
    char *block = t->block + (t->i + (j - t->out_from) * t->ld) * p->size, *to;
    int64_t i0 = t->i0 + t->i, j0 = t->j0 + j, mb = t->ib, nb = n, ld = t->ld;
    if (p->flip) {
        i0 = t->j0 + j, j0 = t->i0 + t->i, mb = n, nb = t->ib;
        ld = job->c ? job->ldc : n;
        to = job->c ? (char *)job->c + (i0 + j0 * ld) * p->size : t->edge;
        flux__gemm_copy(p->size, block, t->ld, 1, to, ld, mb, nb);
        block = to;
    }
    if (job->epilogue) job->epilogue(job->ctx, t->worker, i0, j0, mb, nb, block, ld);
}

/* How many of n remaining columns the next panel of B takes: panels are about equally wide, at
   most `most`, and of widths that have a kernel. */
static int64_t flux__gemm_wide(int64_t n, int64_t most) {
    int64_t panels = 1;
    if (n <= 4 || (n % 2 && n < 2 * most)) return n < 3 ? n : n == 4 ? 4 : 3;
    if (n > most) panels = (n + most - 1) / most, n = flux__gemm_up((n + panels - 1) / panels, 2);
    return n;
}

/* Whether the epilogue of a block whose rows are computed in several steps is called once, at
   the end: whole columns are much less work for it than as many parts, and the block is still
   in the second-level cache. */
static bool flux__gemm_late(const flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    return p->job->epilogue && !p->flip && p->sub + p->set->lanes <= t->mb &&
           t->mb * t->nb * p->size <= FLUX__GEMM_BLOCK;
}

/* Adds one chunk of k to the rows at hand. A panel of B stays in the first-level cache while
   the panels of A pass by. */
static void flux__gemm_rows(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t i, j, c, n, start, high, done = 0, wide;
    if (p->a_rows) flux__gemm_pack_grid(t);
    else flux__gemm_pack_a(t);
    flux__gemm_ahead(t);
    for (j = 0; j < t->nb; j += wide) {
        wide = flux__gemm_wide(t->nb - j, p->set->columns);
        for (i = flux__gemm_full(t, j, wide); i < t->ib; i += high) {
            start = flux__gemm_tile_at(t, i, &high);
            for (c = 0; c < wide; c += n) {
                n = high < p->set->lanes ? flux__gemm_wide(wide - c, p->set->narrow->columns) :
                    wide;
                flux__gemm_tile(t, i, start, high, j + c, n);
            }
        }
        if (t->k0 + t->kb < p->k || t->late) continue;
        if (j + wide < t->nb && (j + 2 * wide - done) * t->ib <= FLUX__GEMM_PIECE) continue;
        flux__gemm_finish(t, done, j + wide - done);
        done = j + wide;
        if (t->out && !p->flip && p->chunk >= p->k) t->out_from = done;
    }
    t->out_from = 0;
}

/* Packs B's columns from j on into panels of nr columns, row by row: all panels of one width
   together. Returns how many columns were packed. */
static int64_t flux__gemm_panels_of_b(flux__gemm_task *t, int64_t j) {
    const flux__gemm_plan *p = t->plan;
    int64_t wide = flux__gemm_wide(t->nb - j, p->set->columns), n = wide, size = p->size, l;
    char *to = t->b + j * t->b_step * size;
    const char *from = p->b + (t->k0 * p->b_row + t->j0 + j) * size;
    if (p->b_rows)
        flux__gemm_collect(p, p->b, p->b_cols, t->j0 + j, wide, p->b_rows, t->k0, t->kb, to, wide);
    else {
        while (j + n < t->nb && flux__gemm_wide(t->nb - j - n, p->set->columns) == wide) n += wide;
        for (l = 0; l < t->kb; l++, from += p->b_row * size, to += wide * size)
            flux__gemm_deal(from, to, wide * t->b_step * size, n / wide, wide * size);
    }
    return n;
}

/* Whether A is packed by the kernels that read it first, for the tiles that follow: beside
   their products the copy costs nothing. Not if there are many columns: then a copy made
   beforehand costs little in proportion, and leaves the second-level cache to larger blocks.
   Nor if the block has whole columns of C for an epilogue and its part of A is large: packed
   beforehand, A need not be divided by rows, and the epilogue, which is given whole columns,
   reads its other operands in place (Adam's part of a step on two threads took 1.5 times as
   long by parts of columns). */
static bool flux__gemm_keeps(const flux__gemm_plan *p, int64_t columns) {
    if (p->job->epilogue && p->rows >= p->m && p->rows * p->chunk * p->size > 2 * FLUX__GEMM_BLOCK)
        return false;
    return p->set->keep && p->a_row == 1 && !p->a_rows && columns < 64 * p->set->columns &&
           flux__gemm_wide(columns, p->set->columns) == p->set->columns;
}

/* Adds one chunk of k to a block of C: packs B if the plan says so, then multiplies the block's
   rows, `sub` at a time. */
static void flux__gemm_chunk(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t j;
    const char *b = p->b + (t->k0 * p->b_row + t->j0 * p->b_col) * p->size;
    if (p->b_rows && !p->panels_b)
        flux__gemm_collect(p, p->b, p->b_rows, t->k0, t->kb, p->b_cols, t->j0, t->nb, t->b,
                           t->b_step);
    else if (p->copy_b && !p->panels_b)
        flux__gemm_copy(p->size, b, p->b_row, p->b_col, t->b, t->b_step, t->kb, t->nb);
    for (j = 0; p->panels_b && j < t->nb;) j += flux__gemm_panels_of_b(t, j);
    for (t->i = 0; t->i < t->mb; t->i += t->ib) {
        t->ib = t->mb - t->i < p->sub + p->set->lanes ? t->mb - t->i : p->sub;
        flux__gemm_rows(t);
    }
    if (!t->late || t->k0 + t->kb < p->k) return;
    t->i = 0, t->ib = t->mb;
    flux__gemm_finish(t, 0, t->nb);
}

/* Takes a task's scratch memory and divides it into a, b, edge and out; false: out of memory.
   The scratch block of C begins half a page from where large tensors begin: a processor takes a
   load for one of what is being stored if the lower 12 bits of the addresses are the same. */
static bool flux__gemm_room(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, tall = 2 * lanes, high = flux__gemm_up(t->mb, lanes), total;
    bool part = high != t->mb;  /* the last tile has rows that do not belong to the block */
    int64_t a = p->copy_a ? flux__gemm_min(p->sub + lanes, high) + (p->a_rows ? lanes : 0) :
        t->mb < lanes ? lanes : 0;
    int64_t b = p->copy_b ? t->nb * t->b_step : 0;
    int64_t turn = p->flip ? flux__gemm_min(p->sub + lanes, t->mb) * t->nb : 0,
            edge = part && tall * p->set->columns > turn ? tall * p->set->columns : turn;
    /* columns of `out` are free again once the epilogue has seen them */
    bool passing = !p->flip && p->chunk >= p->k && !t->late;
    /* the fewest rows that an epilogue call gets */
    int64_t last = t->mb % p->sub >= lanes || t->mb < p->sub ? t->mb % p->sub : p->sub;
    int64_t kept = passing ? flux__gemm_min(t->nb, FLUX__GEMM_PIECE / last + p->set->columns) :
        t->nb;
    int64_t out = p->flip || !p->job->c ? high * kept : 0;
    a = flux__gemm_up(a * p->chunk * p->size, 64);
    b = flux__gemm_up(b * p->size, 64);
    edge = flux__gemm_up(edge * p->size, 64);
    total = a + b + edge + out * p->size + (out ? 4096 : 0);
    t->a = t->b = t->edge = t->out = NULL;
    t->out_from = 0;
    t->block = (char *)p->job->c;
    t->ld = p->job->ldc;
    if (total > 0 && (t->a = (char *)flux__scratch((size_t)total)) == NULL) return false;
    if (total > 0) t->b = t->a + a, t->edge = t->b + b;
    if (!out) t->block += (t->i0 + t->j0 * t->ld) * p->size;
    else t->block = t->out = t->edge + edge + ((2112 - (intptr_t)(t->edge + edge)) & 4095),
        t->ld = high;
    return true;
}

/* Computes one block of C, chunk of k after chunk. number: the block's number, counted down the
   columns of blocks. */
static void flux__gemm_task_run(void *ctx, int worker, int64_t number) {
    flux__gemm_plan *p = (flux__gemm_plan *)ctx;
    flux__gemm_task t;
    t.plan = p;
    t.worker = worker;
    t.i0 = number % p->down * p->rows;
    t.j0 = number / p->down * p->columns;
    t.mb = number % p->down == p->down - 1 ? p->m - t.i0 : p->rows;
    t.nb = flux__gemm_min(p->n - t.j0, p->columns);
    /* an odd number of cache lines */
    t.b_step = (flux__gemm_up(p->chunk * p->size, 64) | 64) / p->size;
    t.keep = p->copy_a && flux__gemm_keeps(p, t.nb);
    t.late = flux__gemm_late(&t);
    if (!flux__gemm_room(&t)) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    t.k0 = 0;
    do {                                  /* runs once even for k = 0, which gives zeros */
        t.kb = flux__gemm_min(p->k - t.k0, p->chunk);
        flux__gemm_chunk(&t);
        t.k0 += t.kb;
    } while (t.k0 < p->k);
    flux__scratch_done(t.a);
}

/* The number of partial sums that an inner-product kernel keeps for each result. */
static int64_t flux__gemm_dot_lanes(const flux__gemm_plan *p) {
    return flux__gemm_judge(p->set)->lanes;
}

/* C = A B by inner products for `rows` rows of A and two columns of B, b_col elements apart (0:
   one column, computed twice). a: rows p->a_row elements apart, contiguous along k; b:
   contiguous along k; C's element (i, j) is at c[i * c_row + j * c_col]. The last four rows
   start earlier and overlap the ones before; fewer than four are computed one by one. */
#define FLUX__GEMM_SUMS(name, type)                                                                \
    FLUX__GEMM_FN() void name(const flux__gemm_plan *p, const type *a, const type *b, int64_t b_col, type *c, int64_t c_row, \
                              int64_t c_col, int64_t rows) {                                       \
        const int64_t k = p->k, whole = k < flux__gemm_dot_lanes(p) ? 0 : k, high = rows < 4 ? 1 : 4;        \
        type sum[8 * 8], *to;                                                                      \
        for (int64_t f, i, j, r = 0, fours; r < rows; r += fours * high) {                         \
            const int64_t first = r + high <= rows ? r : rows - high;                              \
            const type *from = a + first * p->a_row, *s = sum;                                     \
            fours = high == 1 || rows - r < 4 ? 1 : flux__gemm_min((rows - r) / 4, 8);             \
            p->set->dots(whole, from, high > 1 ? p->a_row : 0, b, b_col, sum, fours);              \
            to = c + first * c_row;                                                                \
            for (f = 0; f < fours; f++, s += 8, from += 4 * p->a_row) {                            \
                for (i = whole; i < k; i++)                                                        \
                    for (j = 0; j < high; j++)                                                     \
                        sum[f * 8 + j] += from[i + j * p->a_row] * b[i], sum[f * 8 + j + 4] += from[i + j * p->a_row] * b[b_col + i]; \
                for (j = 0; j < high; j++, to += c_row) to[0] = s[j], to[c_col] = s[j + 4];        \
            }                                                                                      \
        }                                                                                          \
    }
FLUX__GEMM_SUMS(flux__gemm_sums4, float)
FLUX__GEMM_SUMS(flux__gemm_sums8, double)

/* Multiplies the rows i ... i+n-1 of A by as many columns of B as there are groups of four, and
   returns that number of columns; 0 where the instruction set has no such kernel. c: the
   results, ld apart. Four rows of one operand pass over all of the other, so that what is
   contiguous in C is stored together; the last four start earlier and overlap. */
static int64_t flux__gemm_by_fours(const flux__gemm_plan *p, int64_t i, int64_t n, char *c,
                                   int64_t ld) {
    const int64_t k = p->k, size = p->size,
                  columns = p->set->fours && n >= 4 && k >= flux__gemm_dot_lanes(p) ? p->n & -4 : 0;
    const char *a = p->a + i * p->a_row * size, *b = p->b;
    const int64_t most = p->flip ? columns : n;
    for (int64_t at, j = 0; j < most && columns; j += 4) {
        if (p->flip) {
            at = n & -4;
            p->set->fours(k, a, p->a_row, b + j * p->b_col * size, p->b_col, c + j * size, ld,
                          at / 4);
            if (at < n)
                at = n - 4, p->set->fours(k, a + at * p->a_row * size, p->a_row,
                                          b + j * p->b_col * size, p->b_col,
                                          c + (at * ld + j) * size, ld, 1);
        } else {
            at = flux__gemm_min(j, n - 4);
            p->set->fours(k, b, p->b_col, a + at * p->a_row * size, p->a_row, c + at * size, ld,
                          columns / 4);
        }
    }
    return columns;
}

/* Multiplies one thread's share of A's rows by all columns of B with the inner-product kernels,
   a few rows at a time, and calls the epilogue for these. */
static void flux__gemm_dots_run(void *ctx, int worker, int64_t number) {
    const flux__gemm_plan *p = (const flux__gemm_plan *)ctx;
    const flux__gemm_job *job = p->job;
    double piece[FLUX__GEMM_FEW * 8];     /* C, if the job has no memory for it */
    int64_t i = number * p->rows, end = flux__gemm_min(i + p->rows, p->m), n, j, ld, size = p->size;
    /* few enough rows to stay in the first-level cache */
    int64_t most = flux__gemm_min(FLUX__GEMM_FEW * 8 / p->n,
                                  flux__gemm_up((16 << 10) / (p->k * size + 1) + 1, 4));
    for (; i < end; i += n) {
        n = flux__gemm_min(end - i, most);
        ld = job->c ? job->ldc : p->flip ? p->n : n;
        int64_t row = p->flip ? ld : 1, col = p->flip ? 1 : ld;
        char *c = job->c ? (char *)job->c + i * row * size : (char *)piece;
        /* a single last column is computed twice */
        for (j = flux__gemm_by_fours(p, i, n, c, ld); j < p->n; j += 2) {
            bool two = p->n - j > 1;
            const void *a = p->a + i * p->a_row * size, *b = p->b + j * p->b_col * size;
            void *to = c + j * col * size;
            int64_t b_col = two ? p->b_col : 0, c_col = two ? col : 0;
            if (size == 4)
                flux__gemm_sums4(p, (const float *)a, (const float *)b, b_col, (float *)to, row,
                                 c_col, n);
            else flux__gemm_sums8(p, (const double *)a, (const double *)b, b_col, (double *)to, row,
                                  c_col, n);
        }
        if (!job->epilogue) continue;
        if (p->flip) job->epilogue(job->ctx, worker, 0, i, p->n, n, c, ld);
        else job->epilogue(job->ctx, worker, i, 0, n, p->n, c, ld);
    }
}

FLUX__HOT

/* Fills in the plan's operands: as the job has them, or with flip exchanged and transposed, so
   that C is computed transposed. */
static void flux__gemm_orient(flux__gemm_plan *p, const flux__gemm_job *j, bool flip) {
    p->flip = flip;
    p->m = flip ? j->n : j->m;
    p->n = flip ? j->m : j->n;
    p->a = (const char *)(flip ? j->b : j->a);
    p->b = (const char *)(flip ? j->a : j->b);
    p->a_next = flip ? NULL : (const char *)j->a_next;
    p->a_row = flip ? j->b_col : j->a_row;
    p->a_col = flip ? j->b_row : j->a_col;
    p->b_row = flip ? j->a_col : j->b_row;
    p->b_col = flip ? j->a_row : j->b_col;
    const flux__axes *a = flip ? j->b_grid : j->a_grid, *b = flip ? j->a_grid : j->b_grid;
    p->a_rows = a ? a + flip : NULL, p->a_cols = a ? a + !flip : NULL;
    p->b_rows = b ? b + flip : NULL, p->b_cols = b ? b + !flip : NULL;
}

/* Estimates the cycles of the product in the orientation that the plan has: multiplications,
   packing, and transposing C. */
static double flux__gemm_cost(const flux__gemm_plan *p) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, lanes = p->set->lanes;
    double high = (double)flux__gemm_up(p->m, p->set->lanes);
    /* the last tile has vectors of half the length */
    if (m > 10 * lanes && high - m >= lanes / 2 && p->set->narrow) high -= 0.375 * lanes;
    double c = high * n * k / (2 * lanes);
    double copy = p->a_row == 1 ? (n > 48 * p->set->columns ? 0.1 : 0) :
        p->a_col == 1 ? 0.035 * (double)p->size : 1.5;
    if (p->a_rows) copy = flux__gemm_along(p, p->a_cols, p->a_rows) ? 0.5 : 0.15;
    if (p->b_rows) c += (flux__gemm_along(p, p->b_cols, p->b_rows) ? 0.5 : 0.1) * n * k;
    return c + copy * m * k + (p->flip ? (flux__gemm_far(p) ? 0.6 : 0.2) * m * n : 0);
}

/* Chooses the orientation with the lower estimate, and returns that estimate. */
static double flux__gemm_orient_best(flux__gemm_plan *p) {
    flux__gemm_orient(p, p->job, true);
    const double flipped = flux__gemm_cost(p);
    flux__gemm_orient(p, p->job, false);
    const double cost = flux__gemm_cost(p);
    if (flipped >= cost) return cost;
    flux__gemm_orient(p, p->job, true);
    return flipped;
}

/* Whether inner-product kernels take less time than tiles: for a vector, and where transposing
   the larger operand (which is contiguous along k), or rows that fill no vector, cost more than
   the horizontal reduction of every sum. If so, A is the operand with more rows, and B's
   columns are made contiguous. Returns 1: tiles, 2: inner products, 3: inner products with A
   and B exchanged. The answer is the same for all of a product and for its parts (job->dots),
   and with AVX2 as with AVX-512, because the two ways give different sums. */
static int flux__gemm_by_dots(const flux__gemm_plan *plan, const flux__gemm_job *j) {
    flux__gemm_plan judge = *plan, *p = &judge;
    int64_t most = j->m > j->n ? j->m : j->n, few = flux__gemm_min(j->m, j->n);
    bool flip = j->m < j->n, turn = (flip ? j->a_col : j->b_row) != 1;
    double cost = plan->cost;
    if (j->dots) return j->dots;
    if ((flip ? j->b_row : j->a_col) != 1 || j->a_grid || j->b_grid || j->pairs ||
        few > FLUX__GEMM_FEW) return 1;
    if (few > 1 && (most + few) * p->k * p->size > 512 << 10) return 1;
    p->set = flux__gemm_judge(plan->set);
    if (p->set != plan->set) cost = flux__gemm_orient_best(p);
    /* measured */
    const double vectors = (double)((p->k + p->set->lanes - 1) / p->set->lanes),
                 fold = p->size == 4 ? 0.9 : 0.5;
    if (few > 1 && (double)(most * few) * (0.5 * vectors + fold) +
        (turn ? 0.1 * (double)(few * p->k) : 0) > cost) return 1;
    return flip ? 3 : 2;
}

/* Computes the whole product by inner products, C transposed if flip; copies B first if it is
   not contiguous along k. False: out of memory. */
static bool flux__gemm_dots_all(flux__gemm_plan *p, bool flip, int64_t threads) {
    flux__gemm_orient(p, p->job, flip);
    int64_t step = (flux__gemm_up(p->k * p->size, 64) | 64) / p->size;
    void *turned = NULL;
    if (p->b_row != 1) {
        if (!(turned = flux__scratch((size_t)(step * p->n * p->size)))) return false;
        flux__gemm_copy(p->size, p->b, p->b_row, p->b_col, turned, step, p->k, p->n);
        p->b = (const char *)turned, p->b_row = 1, p->b_col = step;
    }
    /* for less work waking a worker takes longer than the work */
    p->rows = threads > 1 ? flux__gemm_split(p->m, 2 * threads, 16) : p->m;
    flux__parallel_workers((p->m + p->rows - 1) / p->rows, flux__gemm_dots_run, p);
    flux__scratch_done(turned);
    return true;
}

/* Decides whether to pack A and B. Measured: B is fine in place until its columns (or its rows,
   if these are contiguous) fall into one set of the cache. A is fine in place until it is
   larger than the second-level cache or each of its columns is on a page of its own, and it is
   read very often; or often, if its columns fall into one set or kernels pack it. In place A is
   read some tiles at a time: all columns of B are multiplied by these, while the next ones are
   prefetched. */
static void flux__gemm_copies(flux__gemm_plan *p) {
    int64_t a_step = p->a_col * p->size, b_step = (p->b_row == 1 ? p->b_col : p->b_row) * p->size;
    /* narrow tiles read A twice as often, and use less of a cache line of B's rows */
    bool often = p->set->columns <= 6;
    bool keep = flux__gemm_keeps(p, p->columns);
    bool apart = flux__gemm_large(p) || (a_step >= 2000 && p->k > 64) ||
                 (often && p->m * p->k * p->size >= 32 << 10);
    bool many = p->columns > (keep || a_step % 2048 == 0 ? 8 : often ? 24 : 48) * p->set->columns;
    int64_t most = flux__gemm_up(FLUX__GEMM_BLOCK / (p->chunk * p->size), 8 * p->set->lanes);
    bool crowded = p->rows > 2 * p->set->lanes &&
                   b_step % (p->b_row == 1 ? 4096 : 256 * p->set->lanes) == 0;
    p->copy_a = p->a_row != 1 || (apart && many);
    /* each part is soon done, so the next one to prefetch must be small */
    if (keep && p->copy_a && p->columns < 32 * p->set->columns) most /= 2;
    if ((keep || !p->copy_a) && p->rows * p->chunk * p->size >
        (p->set->keep ? 2 : 8) * FLUX__GEMM_BLOCK)
        p->sub = flux__gemm_min(p->sub, flux__gemm_split(
            p->rows, (p->rows + most - 1) / most, 2 * p->set->lanes));
    int64_t tiles = p->rows / (2 * p->set->lanes),
            much = often && tiles >= 32 ? 32 << 10 : 256 << 10;
    p->panels_b = p->b_col == 1 && p->b_row > 1 && tiles >= 8 &&
                  p->chunk * p->b_row * p->size > much;
    p->copy_b = crowded || p->panels_b || (p->b_row != 1 && p->b_col != 1);
    if (p->a_rows) p->copy_a = true;
    if (p->b_rows) p->copy_b = true, p->panels_b = flux__gemm_along(p, p->b_cols, p->b_rows);
}

/* Cuts C into blocks: as large as allowed, but enough of them for the threads; returns their
   number, which never shows in the result. Columns of C stay whole as long as a block still has
   many of them: what an epilogue reads besides lies along them (Adam's part of a 1024 x 1024 x
   128 took 2.5 ms on two threads, now 1.5). A small A is left whole: the kernels before and
   after such a product mostly work by columns too, so a thread keeps its part. */
static int64_t flux__gemm_blocks(flux__gemm_plan *p, int64_t threads) {
    int64_t tall = 2 * p->set->lanes, bytes = p->chunk * p->size, tasks;
    int64_t flat = bytes * 4 <= FLUX__GEMM_CHUNK ? 4 : bytes * 2 <= FLUX__GEMM_CHUNK ? 2 : 1;
    /* with so short a k, more rows: columns of C stay whole and contiguous */
    int64_t high = flat * FLUX__GEMM_TILES * tall;
    /* blocks that take scratch memory for C stay small */
    int64_t limit = p->flip || !p->job->c ? 1 : 4;
    int64_t rows = limit * high, columns = limit * FLUX__GEMM_COLUMNS;
    p->rows = flux__gemm_split(p->m, (p->m + rows - 1) / rows, tall);
    p->columns = flux__gemm_split(p->n, (p->n + columns - 1) / columns, 1);
    for (;;) {  /* rows at the end that are less than a vector go to the block above */
        p->down = (p->m + p->rows - 1 - (p->m > p->rows ? p->set->lanes - 1 : 0)) / p->rows;
        tasks = p->down * ((p->n + p->columns - 1) / p->columns);
        if (tasks >= (threads > 1 ? 2 * threads : 1)) break;
        bool whole = p->job->epilogue && (p->flip ? p->rows : p->columns) >= 256;
        /* A is small enough for every thread to read */
        bool light = p->m * p->k * p->size <= 128 << 10 && p->columns >= 32;
        if (p->rows > tall && (whole ? p->flip : p->rows >= 2 * p->columns && !light))
            p->rows = flux__gemm_split(p->rows, 2, tall);
        else if (p->columns >= 2 * p->set->columns) p->columns = (p->columns + 1) / 2;
        else break;
    }
    p->sub = flux__gemm_split(p->rows, (p->rows + high - 1) / high, tall);
    return tasks;
}

/* Plans a product: kernels for the instruction set, orientation, and chunks of k. */
static void flux__gemm_plan_for(flux__gemm_plan *p, bool f64, const flux__gemm_job *job) {
    int64_t chunks;
    p->job = job;
    p->set = flux__gemm_kernels(f64, job->pairs);
    p->collect = flux__gemm_collector_now();
    p->size = f64 ? 8 : 4;
    p->k = job->k > 0 ? job->k : 0;
    p->failed = 0;
    p->cost = flux__gemm_orient_best(p);
    chunks = (p->k * p->size + FLUX__GEMM_CHUNK - 1) / FLUX__GEMM_CHUNK;
    if (p->k * p->size <= 3200) chunks = 1;            /* 784 elements of f32 are one chunk */
    p->chunk = chunks > 1 ? flux__gemm_split(p->k, chunks, 8) : p->k > 0 ? p->k : 1;
}

#ifdef FLUX_BLAS
/* ---- products by the program's own CBLAS, if it can read the operands. What the epilogue is
   to see goes to scratch memory, some columns at a time. The sums are those of the CBLAS:
   whether they depend on the number of threads is decided there. */
#  if !defined(CBLAS_H) && !defined(__MKL_CBLAS_H__)
#    ifdef __cplusplus
extern "C" {
#    endif
extern void cblas_sgemm(int order, int turn_a, int turn_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c,
                        int ldc);
extern void cblas_dgemm(int order, int turn_a, int turn_b, int m, int n, int k, double alpha,
                        const double *a, int lda, const double *b, int ldb, double beta, double *c,
                        int ldc);
#    ifdef __cplusplus
}
#    endif
#    define FLUX__CBLAS(type, x) x
#  else
#    define FLUX__CBLAS(type, x) (type)(x)
#  endif

/* How CBLAS can read a rows x columns matrix with these strides: 111 (no transpose), 112
   (transpose), or 0: not at all. *ld: its leading dimension. */
static int flux__blas_reads(int64_t row, int64_t col, int64_t rows, int64_t columns, int *ld) {
    bool plain = (row == 1 || rows == 1) && (col >= rows || columns == 1);
    bool turned = (col == 1 || columns == 1) && (row >= columns || rows == 1);
    int64_t step = plain ? (columns == 1 ? rows : col) : rows == 1 ? columns : row;
    if (!plain && !turned) return 0;
    *ld = (int)step;
    return step > INT_MAX ? 0 : plain ? 111 : 112;
}

/* the columns j0 ... j0+nb-1 of C, `each` of them an epilogue call */
typedef struct flux__blas_part {
    const flux__gemm_job *job;
    char *block;
    int64_t size, j0, nb, each;
} flux__blas_part;

/* Calls the epilogue for some of the columns that CBLAS has computed. */
static void flux__blas_show(void *ctx, int worker, int64_t number) {
    const flux__blas_part *p = (const flux__blas_part *)ctx;
    int64_t j = number * p->each, n = flux__gemm_min(p->nb - j, p->each),
            ld = p->job->c ? p->job->ldc : p->job->m;
    p->job->epilogue(p->job->ctx, worker, 0, p->j0 + j, p->job->m, n, p->block + j * ld * p->size,
                     ld);
}

/* Computes the product by CBLAS; false: it cannot read the operands, or there is no scratch
   memory. */
static bool flux__blas(bool f64, const flux__gemm_job *job) {
    int lda, ldb, m = (int)job->m, k = (int)job->k, ldc = (int)(job->c ? job->ldc : job->m);
    int ta = flux__blas_reads(job->a_row, job->a_col, job->m, job->k, &lda),
        tb = flux__blas_reads(job->b_row, job->b_col, job->k, job->n, &ldb);
    int64_t most = job->c ? job->n : flux__gemm_min((1 << 18) / job->m + 1, job->n);
    flux__blas_part p;
    void *scratch = NULL;
    if (!ta || !tb || job->a_grid || job->b_grid || job->k < 1 || job->m > INT_MAX ||
        job->n > INT_MAX || job->k > INT_MAX || job->ldc > INT_MAX) return false;
    p.job = job, p.size = f64 ? 8 : 4, p.each = FLUX__GEMM_PIECE / job->m + 1;
    if (!job->c && !(scratch = flux__scratch((size_t)(job->m * most * p.size)))) return false;
    p.block = (char *)(job->c ? job->c : scratch);
    for (p.j0 = 0; p.j0 < job->n; p.j0 += p.nb) {
        const char *b = (const char *)job->b + p.j0 * job->b_col * p.size;
        int n = (int)(p.nb = flux__gemm_min(job->n - p.j0, most));
        if (f64)
            cblas_dgemm(FLUX__CBLAS(CBLAS_ORDER, 102), FLUX__CBLAS(CBLAS_TRANSPOSE, ta),
                        FLUX__CBLAS(CBLAS_TRANSPOSE, tb), m, n, k, 1, (const double *)job->a, lda,
                        (const double *)(const void *)b, ldb, 0, (double *)(void *)p.block, ldc);
        else
            cblas_sgemm(FLUX__CBLAS(CBLAS_ORDER, 102), FLUX__CBLAS(CBLAS_TRANSPOSE, ta),
                        FLUX__CBLAS(CBLAS_TRANSPOSE, tb), m, n, k, 1, (const float *)job->a, lda,
                        (const float *)(const void *)b, ldb, 0, (float *)(void *)p.block, ldc);
        if (job->epilogue)
            flux__parallel_workers((p.nb + p.each - 1) / p.each, flux__blas_show, &p);
    }
    flux__scratch_done(scratch);
    return true;
}
#endif

/* Multiplies: C = A B as the job describes it (shapes and strides: flux__gemm_job), in f64 or
   f32. Returns 0, or -1 with an error recorded if there is no memory. */
static int flux__gemm(bool f64, const flux__gemm_job *job) {
    flux__gemm_plan p;
    int64_t threads, tasks;
    int dots;
    if (job->m <= 0 || job->n <= 0) return 0;
#ifdef FLUX_BLAS
    if (!job->pairs && flux__blas(f64, job)) return 0;
#endif
    flux__gemm_plan_for(&p, f64, job);
    threads = (double)p.m * (double)p.n * (double)p.k > 4e5 ? flux__num_threads() : 1;
    if ((dots = flux__gemm_by_dots(&p, job)) > 1)
        p.failed = !flux__gemm_dots_all(&p, dots > 2, threads);
    else {
        tasks = flux__gemm_blocks(&p, threads);
        flux__gemm_copies(&p);
        flux__parallel_workers(tasks, flux__gemm_task_run, &p);
    }
    if (!flux__atomic_load32(&p.failed)) return 0;
    flux__fail("matmul: out of memory for a product of %lldx%lld by %lldx%lld", (long long)job->m,
               (long long)job->k, (long long)job->k, (long long)job->n);
    return -1;
}

#endif /* FLUX__CPU_GEMM_PLAN_H */
