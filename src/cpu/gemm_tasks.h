#ifndef FLUX__CPU_GEMM_TASKS_H
#define FLUX__CPU_GEMM_TASKS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/workers.h"
#include "../schedule/analysis.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"

/* ---------------------------------------------------------------------- cpu/gemm_tasks.h
   One thread's share of a matrix product: a task computes a block of C. It
   packs its part of A and B if the plan says so (images of which the taps of
   rows of three are columns of B are read where they lie), multiplies chunk of k
   after chunk, some rows at a time, and calls the epilogue. cpu/gemm_plan.h makes the
   plan (flux__gemm_plan) that all tasks share.

   Invariant: chunks of k are the plan's and are added in order; blocks, tiles
   and packing never show in a sum. Blocks of A fit the second-level cache, a
   panel of B the first. Less than a vector of rows at the end is done by a tile
   that begins earlier. C may be missing: then only the epilogue sees it, from
   scratch memory. A task that finds no scratch memory sets plan->failed and
   leaves its block incomplete. */

FLUX__BEGIN_LEAN

typedef struct flux__gemm_plan {
    const flux__gemm_job *job;
    const flux__gemm_set *set;
    int64_t size;                         /* bytes of an element */
    /* flip: a is B transposed, b is A transposed, and C is computed transposed */
    bool flip, copy_a, copy_b;
    /* layout of the packed b: panels of nr columns, row by row; else column by column */
    bool panels_b;
    bool vector;                          /* b is a vector, and a read as flux__gemm_vector does */
    bool stream;                          /* a is read as flux__gemm_stream does */
    bool triples;                         /* b is read as flux__gemm_triple_places says */
    int64_t m, n, k;  /* C is m x n, a m x k, b k x n, as the plan reads them: */
    const char *a, *b, *a_next;           /* a_next: the next product's a, or NULL */
    int64_t a_row, a_col, b_row, b_col;   /* strides of a and b, in elements */
    /* implicit-GEMM maps of a's and b's rows and columns; NULL: plain strides. With a map the
       operand is copied by `collect` */
    const flux__axes *a_rows, *a_cols, *b_rows, *b_cols;
    flux__gemm_im2col_fn im2col;
    /* size of the block of C that a task computes; number of such blocks down C */
    int64_t rows, columns, down;
    int64_t share;                        /* tasks of a thread, in cpu/gemm_panels.h */
    /* rows of A that are multiplied at a time, so that they stay in the second-level cache */
    int64_t sub;
    int64_t chunk;                        /* length of a chunk of k */
    double cost;                          /* estimated cycles of the whole product */
    int failed;                           /* set to 1 by a task that finds no scratch memory */
} flux__gemm_plan;

#define FLUX__GEMM_PLACES_MOST 800        /* most runs of a chunk: its points */

/* What kernels prefetch for later beside their products: one call of a kernel in `every` does,
   `calls` times, from `at` on, a line `step` bytes further with each point of k; the next one
   begins `advance` bytes further. */
typedef struct flux__gemm_later {
    const char *at;
    int64_t step, advance, calls, every;
} flux__gemm_later;

typedef struct flux__gemm_task {          /* one block of C */
    const flux__gemm_plan *plan;
    int worker;
    /* the block's first row and column, rows and columns; the first and the number of points of
       k of the present chunk */
    int64_t i0, j0, mb, nb, k0, kb;
    /* the rows that are being multiplied (below: the rows at hand), counted from i0 */
    int64_t i, ib;
    /* what comes after the rows at hand: [0] the block of A, [1] the chunk of B to be packed */
    flux__gemm_later later[2];
    int64_t call;  /* number of calls of a kernel that might prefetch them, so far */
    bool packs;  /* A is packed by the kernel that reads it first (flux__gemm_packs_a) */
    /* the epilogue is called once, when the block is complete (flux__gemm_epilogue_last) */
    bool epilogue_last;
    /* number of A's columns that are read in place; the columns after them are read from the
       copy */
    int64_t there;
    /* of a B that is read in triples: the runs of the chunk's points, the length of the first one,
       and what is skipped before each of the others */
    flux__gemm_places runs;
    int64_t first_run, jump[FLUX__GEMM_PLACES_MOST];
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
#define FLUX__GEMM_WIDE 8                 /* so many times that where flux__gemm_wide says so */
/* the same where B is read in triples: A is packed for each block, B not at all */
#define FLUX__GEMM_TRIPLE_COLUMNS 2304
/* bytes of A that are read in place at a time: as many again are being prefetched into the
   second-level cache */
#define FLUX__GEMM_BLOCK (1 << 17)
/* flux__gemm_stream reads so many bytes of A at a time, and so many of a column at most */
#define FLUX__GEMM_PART (64 << 10)
#define FLUX__GEMM_STREAM 2048
#define FLUX__GEMM_FEW 64  /* most columns for which inner-product kernels are considered */
/* most bytes of a chunk of B that are prefetched while the one before is multiplied */
#define FLUX__GEMM_LATER (5 << 18)
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
   a vector. *mr: the tile's rows. */
static int64_t flux__gemm_tile_at(const flux__gemm_task *t, int64_t i, int64_t *mr) {
    const flux__gemm_set *set = t->plan->set;
    int64_t lanes = set->lanes, left = t->ib - i,
            narrow = set->narrow && !t->plan->panels_b ? lanes / 2 : 0;
    if (left <= narrow) *mr = narrow;
    else *mr = left >= 2 * lanes || (i > 0 && left > lanes + narrow) ? 2 * lanes : lanes;
    return flux__gemm_min(i, t->ib - *mr);
}

/* The number of A's columns (of the present chunk) that can be read in place if a tile of
   `mr` rows reads past the rows of A, of which there are less than a vector: what follows a
   column in memory must be another column of A, or at least belong to A's memory. 0 where B has
   many columns, for then it is not worth it: each tile is computed in two parts. */
static int64_t flux__gemm_readable(const flux__gemm_task *t, int64_t mr) {
    const flux__gemm_plan *p = t->plan;
    int64_t beyond = (p->k - 1) * p->a_col + p->m - (t->i0 + t->i) - mr;
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
static void flux__gemm_im2col(const flux__gemm_plan *p, const char *from, const flux__axes *along,
                               int64_t first, int64_t n, const flux__axes *across, int64_t start,
                               int64_t count, char *to, int64_t to_step) {
    flux__gemm_run run[64];
    int64_t i, m, runs, words = p->size / 4;
    for (i = 0; i < n; i += m) {
        m = n - i;
        runs = flux__gemm_runs(along, words, first + i, &m, run);
        p->im2col(words, (const float *)(const void *)from, across, start, count, run, runs,
                   words > 1 ? 1 : along->step[0], (float *)(void *)(to + i * p->size),
                   to_step * words);
    }
}

/* Packs a mapped A whose columns, not rows, hold the longer runs: up to `most` rows by 64
   columns at a time are collected row by row, then transposed into the copy, whose columns are
   a_step apart. */
static void flux__gemm_im2col_transposed(const flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    double part[1024];                    /* 32 rows of 64 floats, or 16 of doubles */
    int64_t i, k, rows, n, most = 128 / p->size;
    for (i = 0; i < t->ib; i += rows)
        for (k = 0, rows = flux__gemm_min(t->ib - i, most); k < t->kb; k += n) {
            n = flux__gemm_min(t->kb - k, 64);
            flux__gemm_im2col(p, p->a, p->a_cols, t->k0 + k, n, p->a_rows, t->i0 + t->i + i, rows,
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
static void flux__gemm_pack_mapped(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    t->there = 0;
    t->a_step = flux__gemm_apart(p, t->ib);
    if (t->ib < p->set->lanes) memset(t->a, 0, (size_t)(t->a_step * t->kb * p->size));
    if (flux__gemm_along(p, p->a_cols, p->a_rows)) flux__gemm_im2col_transposed(t);
    else flux__gemm_im2col(p, p->a, p->a_rows, t->i0 + t->i, t->ib, p->a_cols, t->k0, t->kb, t->a,
                            t->a_step);
}

/* Packs the rows at hand of A: all of them if the plan copies A, or, if they are less than a
   vector, the columns that cannot be read in place. A panel of the copy is as high as its tile
   (two vectors, the last one maybe less) and holds kb columns, contiguously; panels follow each
   other. */
static void flux__gemm_pack_a(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t tall = 2 * p->set->lanes, i = t->ib / tall, mr,
            start = flux__gemm_tile_at(t, 0, &mr), size = p->size;
    const char *from = p->a + ((t->i0 + t->i) * p->a_row + t->k0 * p->a_col) * size;
    t->there = p->copy_a ? 0 : start < 0 ? flux__gemm_readable(t, mr) : t->kb;
    if (start < 0) {
        memset(t->a, 0, (size_t)(mr * (t->kb - t->there) * size));
        flux__gemm_copy(size, from + t->there * p->a_col * size, p->a_row, p->a_col, t->a, mr,
                        t->ib, t->kb - t->there);
    }
    if (!p->copy_a || start < 0) return;
    /* all full panels together: A is read column by column */
    if (p->a_row == 1 && !t->packs)
        flux__gemm_panels(from, p->a_col * size, t->a, tall * size, i, t->kb);
    for (i = p->a_row != 1 ? 0 : i * tall; i < t->ib; i += mr) {
        start = flux__gemm_tile_at(t, i, &mr);
        flux__gemm_copy(size, from + start * p->a_row * size, p->a_row, p->a_col,
                        t->a + i * t->kb * size, mr, mr, t->kb);
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
   j ... j+nr-1; *row and *col: its strides in elements. */
static const char *flux__gemm_b(const flux__gemm_task *t, int64_t j, int64_t nr, int64_t *row,
                                int64_t *col) {
    const flux__gemm_plan *p = t->plan;
    *row = p->copy_b ? p->panels_b ? nr : 1 : p->b_row;
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

/* The prefetching of `points` runs of `width` bytes, step bytes apart: by one call of a kernel in
   `turns` a line of each run. Runs that follow each other are spread evenly over all `calls` calls:
   a processor that is asked for many lines in a row lets the product's own loads wait. */
static flux__gemm_later flux__gemm_spread(const flux__gemm_task *t, const char *at, int64_t points,
                                          int64_t width, int64_t step, int64_t calls,
                                          int64_t turns) {
    flux__gemm_later x = { at, step, 64, (width + 63) / 64, turns };
    if (width != step || t->plan->set->plain || t->plan->stream || calls < turns || !t->kb)
        return x;
    x.calls = calls / turns;
    x.advance = points * width / x.calls + 1;
    x.step = (x.advance + t->kb - 1) / t->kb;
    return x;
}

/* Finds what to prefetch while the rows at hand are multiplied. Where A is read in place, its
   columns are too far apart for the processor's own prefetcher, so kernels fetch the next
   block: rows further down, the first rows of the next chunk of k, or those of the next
   product. Of a B in panels they fetch the next chunk, if it leaves room in the second-level cache
   (192 x 1576 by 192 columns 1.18 times as fast with both, 128 x 3136 by 512 1.09). */
static void flux__gemm_ahead(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    const int64_t i = t->i + t->ib, size = p->size, panels = (t->nb - 1) / p->set->columns + 1,
                  rows = flux__gemm_min(i < t->mb ? t->mb - i : t->mb, t->ib),
                  points = flux__gemm_min(p->k - t->k0 - t->kb, p->chunk),
                  calls = (panels - t->packs) * (t->ib / (2 * p->set->lanes));
    const bool chunk = i >= t->mb && points > 0,
               a = !p->copy_a || t->packs,
               b = chunk && p->panels_b && !p->b_rows && p->b_row == t->nb &&
                   points * t->nb * size <= FLUX__GEMM_LATER && !p->set->plain;
    const char *next = i < t->mb ? p->a + (t->i0 + i + t->k0 * p->a_col) * size :
        chunk ? p->a + (t->i0 + (t->k0 + t->kb) * p->a_col) * size :
        p->a_next ? p->a_next + t->i0 * size : NULL;
    t->call = 0;
    t->later[0] = flux__gemm_spread(t, next, chunk ? points : t->kb, rows * size, p->a_col * size,
                                    calls, a && b ? 2 : 1);
    t->later[1] = flux__gemm_spread(t, p->b + (t->k0 + t->kb) * p->b_row * size, points,
                                    t->nb * size, p->b_row * size, calls, a ? 2 : 1);
    if (!a || !next) t->later[0].calls = 0;
    if (!b) t->later[1].calls = 0;
}

/* Prefetches a tile of C (`nr` columns, step bytes apart) that is in no cache: otherwise its
   stores would wait for memory. */
static FLUX__INLINE void flux__gemm_fetch(const char *c, int64_t step, int64_t nr) {
    for (; nr > 0; nr--, c += step) { FLUX__PREFETCH_WRITE(c) FLUX__PREFETCH_WRITE(c + 64) }
}

/* How many of n remaining columns the next panel of B takes: panels are about equally wide, at
   most `most`, and of widths that have a kernel. */
static int64_t flux__gemm_nr(int64_t n, int64_t most) {
    int64_t panels = 1;
    if (n <= 4 || (n % 2 && n < 2 * most)) return n < 3 ? n : n == 4 ? 4 : 3;
    if (n > most) panels = (n + most - 1) / most, n = flux__gemm_up((n + panels - 1) / panels, 2);
    return n;
}

/* What flux__gemm_stream prefetches beside the kernels' products: some columns of A, `run` bytes of
   each, `step` bytes apart. Each call of a kernel prefetches `share` bytes, from byte `at` of
   `column` on, so that memory is asked for evenly. share 0: nothing. */
typedef struct flux__gemm_prefetch {
    const char *column;
    int64_t at, run, step, share;
} flux__gemm_prefetch;

/* What comes after the columns of a chunk before column l and n rows from row r on, whose product
   is made by `calls` calls of a kernel: the next columns, else the next rows, else what
   flux__gemm_ahead found. Where B has few columns a call would have to prefetch more than it
   multiplies, and the processor's own prefetcher is fast enough. */
static flux__gemm_prefetch flux__gemm_stream_next(const flux__gemm_task *t, int64_t r, int64_t n,
                                                  int64_t l, int64_t end, int64_t calls) {
    const flux__gemm_plan *p = t->plan;
    const int64_t size = p->size, later = r + n;
    flux__gemm_prefetch x = { t->later[0].at, 0,
                              flux__gemm_min(t->later[0].calls * 64, FLUX__GEMM_STREAM),
                              p->a_col * size, 0 };
    if (l < t->kb || later < end) {
        const bool down = l >= t->kb;
        const int64_t row = t->i0 + t->i + (down ? later : r), column = t->k0 + (down ? 0 : l);
        x.column = p->a + (row + column * p->a_col) * size;
        x.run = down ? flux__gemm_min(n, end - later) * size : n * size;
    }
    const int64_t left = l < t->kb ? t->kb - l : t->kb;
    if (calls > n / (2 * p->set->lanes) && x.column && x.run > 0)
        x.share = x.run * flux__gemm_min(left, FLUX__GEMM_PART / x.run) / calls + 1;
    return x;
}

/* Multiplies the first `end` rows at hand with all columns of B where A is large and B has few
   columns: A is read in the order in which it lies in memory, some pages at a time, while what
   comes next is prefetched, and sums wait in t->edge. Without a second panel of B A is read once,
   by as many streams as a processor's prefetcher follows. */
static void flux__gemm_stream(flux__gemm_task *t, int64_t end) {
    const flux__gemm_plan *p = t->plan;
    const int64_t size = p->size, tall = 2 * p->set->lanes, ld = FLUX__GEMM_STREAM / size + tall,
                  pieces = (end * size + FLUX__GEMM_STREAM - 1) / FLUX__GEMM_STREAM,
                  piece = flux__gemm_split(end, pieces, tall);
    int64_t r, l, j, i, n, nr, some, b_row, b_col, panels = 0;
    for (j = 0; j < t->nb; j += flux__gemm_nr(t->nb - j, p->set->columns)) panels++;
    for (r = 0; r < end; r += n) {
        n = flux__gemm_min(end - r, piece);
        for (l = 0; l < t->kb; l += some) {
            some = flux__gemm_min(t->kb - l, panels > 1 ? FLUX__GEMM_PART / (n * size) : 32);
            flux__gemm_prefetch x =
                flux__gemm_stream_next(t, r, n, l + some, end, n / tall * panels);
            for (j = 0; j < t->nb; j += nr) {
                nr = flux__gemm_nr(t->nb - j, p->set->columns);
                const flux__gemm_kernel kernel = p->set->two[flux__gemm_width(nr)];
                const char *b = flux__gemm_b(t, j, nr, &b_row, &b_col) + l * b_row * size,
                           *a = p->a + (t->i0 + t->i + r + (t->k0 + l) * p->a_col) * size;
                for (i = 0; i < n; i += tall) {
                    kernel(some, a + i * size, p->a_col, b, b_row, b_col,
                           t->edge + (i + j * ld) * size, ld,
                           l > 0 ? FLUX__GEMM_GO_ON : FLUX__GEMM_NEW,
                           x.share ? x.column + x.at : a, (x.share + some - 1) / some);
                    x.at += x.share;
                    for (; x.share && x.at >= x.run; x.at -= x.run) x.column += x.step;
                }
            }
        }
        flux__gemm_add_tile(size, t->block + (t->i + r) * size, t->ld, t->edge, ld, n, t->nb,
                            t->k0 > 0);
    }
}

/* Finds the runs of evenly spaced points of the chunk, as rows of an image, in a mapped B that is
   read where it lies. A chunk may begin and end within a run. */
static void flux__gemm_find_runs(flux__gemm_task *t) {
    const flux__axes *x = t->plan->b_rows;
    const int64_t run = x->dim[0], left = t->kb - flux__gemm_min(run - t->k0 % run, t->kb);
    const flux__gemm_places runs = { 1 + (left + run - 1) / run, run,
                                     left - (left - 1) / run * run, NULL, t->jump, { 0 } };
    int64_t place[FLUX_MAX_DIMS];
    FLUX__ASSERT(runs.n <= FLUX__GEMM_PLACES_MOST);
    t->runs = runs, t->first_run = t->kb - left;
    flux__axes_point(x, t->k0, place);
    for (int64_t i = 1; i < runs.n; i++)
        t->jump[i] = flux__axes_next(x, 1, place) - run * x->step[0];
}

/* The places of the columns j ... j+nr-1 of a mapped B that is read where it lies: in triples
   of neighbours, as the taps of a window's row. *b: the address of the first. */
static flux__gemm_places flux__gemm_triple_places(const flux__gemm_task *t, int64_t j, int64_t nr,
                                                 const char **b) {
    const flux__gemm_plan *p = t->plan;
    flux__gemm_places places = t->runs;
    int64_t place[FLUX_MAX_DIMS], first = flux__axes_point(p->b_cols, t->j0 + j, place);
    FLUX__ASSERT(nr % 3 == 0);
    for (int64_t i = 3; i < nr; i += 3)
        places.triple[i / 3 - 1] = flux__axes_point(p->b_cols, t->j0 + j + i, place) - first;
    *b = p->b + (first + flux__axes_point(p->b_rows, t->k0, place)) * p->size;
    return places;
}

/* What the kernel of tile number i prefetches beside its products with the columns j ... j+nr-1:
   what comes later, or of a B that is read where it lies its part of the nr columns behind these,
   which the first `tiles` tiles share, a line *step bytes further with each point of k. Without
   that the first tile of the next columns waits for memory at each of their cache lines (192 x 192
   by 1576 columns took 1.25 times as long, 64 x 256 by 2048 1.5). NULL: nothing; with a short k
   that costs more than it gains. */
static const char *flux__gemm_next(flux__gemm_task *t, int64_t j, int64_t nr, int64_t i,
                                   int64_t tiles, int64_t *step) {
    const flux__gemm_plan *p = t->plan;
    int64_t row, col, size = p->size, call = t->call++;
    for (flux__gemm_later *x = t->later; x < t->later + 2; x++, call++) {
        if (x->calls <= 0 || call % x->every) continue;
        x->calls--, x->at += x->advance;
        *step = x->step;
        return x->at - x->advance;
    }
    if (p->copy_b || j + nr >= t->nb || i >= tiles || t->kb < 32) return NULL;
    const char *next = flux__gemm_b(t, j + nr, nr, &row, &col);
    if (col == 1) {                       /* rows of nr elements, on one or two cache lines each */
        *step = row * size;
        return i > 1 ? NULL : next + i * (nr - 1) * size;
    }
    if (row == 1 && col == t->kb) {       /* all are contiguous: a share for each tile */
        const int64_t share = nr * t->kb * size / tiles;
        *step = (share + t->kb - 1) / t->kb;
        return next + i * share;
    }
    *step = size;                         /* a column for each of the first tiles */
    return row == 1 && tiles >= nr && i < nr ? next + i * col * size : NULL;
}

/* Multiplies all full panels of A (two vectors high) with the columns j ... j+nr-1 of B;
   their tiles are computed in C or `out` directly. Returns how many rows these panels have. */
static int64_t flux__gemm_full(flux__gemm_task *t, int64_t j, int64_t nr) {
    const flux__gemm_plan *p = t->plan;
    const flux__gemm_set *set = p->set;
    const bool packs = t->packs && j == 0, copied = p->copy_a && !packs,
               far = !t->out && flux__gemm_far(p), add = t->k0 > 0;
    const int64_t size = p->size, kb = t->kb, ld = t->ld, tall = 2 * set->lanes,
                  end = t->ib & -tall, mr = tall * size;
    const int64_t step = p->a_rows ? t->a_step : copied ? tall : p->a_col,
                  down = copied && !p->a_rows ? mr * kb : mr;
    const int64_t line = packs ? mr : 0, lines = packs ? mr * kb : down;
    int64_t i, b_row, b_col;
    const flux__gemm_kernel two = set->two[flux__gemm_width(nr)];
    const flux__gemm_kernel kernel = packs ? set->pack_kernel :
        set->plain && nr == set->columns ? set->plain : two;
    const char *a = copied ? t->a : p->a + (t->i0 + t->i + t->k0 * p->a_col) * size,
               *b = flux__gemm_b(t, j, nr, &b_row, &b_col);
    const char *to = packs ? t->a : a;
    char *c = t->block + (t->i + (j - t->out_from) * ld) * size;
    if (p->vector) {
        set->vector(end, kb, a, step, b, b_row, c, add);
        return end;
    }
    if (p->stream) {
        if (j == 0 && end > 0) flux__gemm_stream(t, end);
        return end;
    }
    if (p->triples) {
        const flux__gemm_places places = flux__gemm_triple_places(t, j, nr, &b);
        FLUX__ASSERT(end == t->ib);       /* blocks of a product of whole tiles are such */
        for (i = 0; i < end; i += tall, c += mr, a += down)
            two(t->first_run, a, step, b, p->b_rows->step[0], p->b_cols->step[0], c, ld,
                FLUX__GEMM_PLACES + (add ? FLUX__GEMM_ADD : FLUX__GEMM_NEW), &places, 0);
        return end;
    }
    for (i = 0; i < end; i += tall, c += mr, a += down, to += lines) {
        int64_t ahead = 0;
        const char *next = packs ? NULL :
            flux__gemm_next(t, j, nr, i / tall, kernel == two ? end / tall : 1, &ahead);
        if (far) flux__gemm_fetch(c, ld * size, nr);
        if (next) two(kb, a, step, b, b_row, b_col, c, ld, add, next, ahead);
        else kernel(kb, a, step, b, b_row, b_col, c, ld, add, to, line);
    }
    return end;
}

/* Multiplies one panel of A with the columns j ... j+nr-1 of B. i: the panel's first row that
   is to be stored; start, mr: the tile's first row and height from flux__gemm_tile_at. The
   tile goes by way of t->edge where it would overwrite rows that are not its own. */
static void flux__gemm_tile(flux__gemm_task *t, int64_t i, int64_t start, int64_t mr, int64_t j,
                            int64_t nr) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, size = p->size;
    int64_t rows = flux__gemm_min(t->ib - i, mr), skip = start < 0 ? 0 : i - start;
    FLUX__ASSERT(rows > 0 && nr > 0 && nr <= p->set->columns && mr <= 2 * lanes);
    /* elements from the last column's start to the end of the block */
    int64_t past = (t->nb - j - nr + 1) * t->ld;
    /* `whole`: rows past a column's end belong to the next column, which is computed later */
    bool add = t->k0 > 0, whole = !add && t->ld == t->mb && past >= mr;
    /* the second part continues the first part's sums, so the result is the same */
    const bool parted = t->there > 0 && t->there < t->kb;
    bool edge = start < 0 ? (!t->out && !whole) || (parted && add) : skip > 0 && add;
    const flux__gemm_set *set = mr < lanes ? p->set->narrow : p->set;
    flux__gemm_kernel kernel =
        (mr > lanes ? set->two : set->one)[flux__gemm_width(nr)];
    const char *a = p->a + (t->i0 + t->i + i - skip + t->k0 * p->a_col) * size;
    int64_t b_row, b_col, ld = edge ? mr : t->ld, n = t->there;
    const char *b = flux__gemm_b(t, j, nr, &b_row, &b_col);
    char *c = t->block + (t->i + i + (j - t->out_from) * t->ld) * size,
         *to = edge ? t->edge : c - skip * size;
    if (n > 0) kernel(n, a, p->a_col, b, b_row, b_col, to, ld, add && !edge, a, 0);
    if (n < t->kb || n == 0)
        kernel(t->kb - n, t->a + (p->a_rows ? i - skip : i * t->kb) * size,
               p->a_rows ? t->a_step : mr, b + n * b_row * size, b_row, b_col, to, ld,
               n > 0 ? (int)FLUX__GEMM_GO_ON : add && !edge, a, 0);
    if (edge) flux__gemm_add_tile(size, c, t->ld, t->edge + skip * size, mr, rows, nr, add);
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

/* Whether the epilogue of a block whose rows are computed in several steps is called once, at
   the end: whole columns are much less work for it than as many parts, and the block is still
   in the second-level cache. */
static bool flux__gemm_epilogue_last(const flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    return p->job->epilogue && !p->flip && p->sub + p->set->lanes <= t->mb &&
           t->mb * t->nb * p->size <= FLUX__GEMM_BLOCK;
}

/* Adds one chunk of k to the rows at hand. A panel of B stays in the first-level cache while
   the panels of A pass by. */
static void flux__gemm_rows(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t i, j, c, n, start, mr, done = 0, nr;
    if (p->a_rows) flux__gemm_pack_mapped(t);
    else flux__gemm_pack_a(t);
    flux__gemm_ahead(t);
    for (j = 0; j < t->nb; j += nr) {
        nr = flux__gemm_nr(t->nb - j, p->set->columns);
        for (i = flux__gemm_full(t, j, nr); i < t->ib; i += mr) {
            start = flux__gemm_tile_at(t, i, &mr);
            for (c = 0; c < nr; c += n) {
                n = mr < p->set->lanes ? flux__gemm_nr(nr - c, p->set->narrow->columns) :
                    nr;
                flux__gemm_tile(t, i, start, mr, j + c, n);
            }
        }
        if (t->k0 + t->kb < p->k || t->epilogue_last) continue;
        if (j + nr < t->nb && (j + 2 * nr - done) * t->ib <= FLUX__GEMM_PIECE) continue;
        flux__gemm_finish(t, done, j + nr - done);
        done = j + nr;
        if (t->out && p->chunk >= p->k && !p->stream) t->out_from = done;
    }
    t->out_from = 0;
}

/* Packs B's columns from j on into panels of nr columns, row by row: all panels of one width
   together. Returns how many columns were packed. */
static int64_t flux__gemm_panels_of_b(flux__gemm_task *t, int64_t j) {
    const flux__gemm_plan *p = t->plan;
    int64_t nr = flux__gemm_nr(t->nb - j, p->set->columns), n = nr, size = p->size, l;
    char *to = t->b + j * t->b_step * size;
    const char *from = p->b + (t->k0 * p->b_row + t->j0 + j) * size;
    if (p->b_rows)
        flux__gemm_im2col(p, p->b, p->b_cols, t->j0 + j, nr, p->b_rows, t->k0, t->kb, to, nr);
    else {
        while (j + n < t->nb && flux__gemm_nr(t->nb - j - n, p->set->columns) == nr) n += nr;
        for (l = 0; l < t->kb; l++, from += p->b_row * size, to += nr * size)
            flux__gemm_interleave(from, to, nr * t->b_step * size, n / nr, nr * size);
    }
    return n;
}

/* Whether A is packed by the kernels that read it first, for the tiles that follow: beside
   their products the copy costs nothing. Not beside a B in triples, which that kernel cannot read.
   Not if there are many columns: then a copy made beforehand costs little in proportion, and
   leaves the second-level cache to larger blocks. Nor if the block has whole columns of C for an
   epilogue and its part of A is large: packed beforehand, A need not be divided by rows, and the
   epilogue, which is given whole columns, reads its other operands in place (Adam's part of a
   step on two threads took 1.5 times as long by parts of columns). */
static bool flux__gemm_packs_a(const flux__gemm_plan *p, int64_t columns) {
    if (p->job->epilogue && p->rows >= p->m && p->rows * p->chunk * p->size > 2 * FLUX__GEMM_BLOCK)
        return false;
    return p->set->pack_kernel && p->a_row == 1 && !p->a_rows && !p->triples &&
           columns < 64 * p->set->columns &&
           flux__gemm_nr(columns, p->set->columns) == p->set->columns;
}

/* Adds one chunk of k to a block of C: packs B if the plan says so, then multiplies the block's
   rows, `sub` at a time. */
static void flux__gemm_chunk(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t j;
    const char *b = p->b + (t->k0 * p->b_row + t->j0 * p->b_col) * p->size;
    if (p->triples) flux__gemm_find_runs(t);
    else if (p->b_rows && !p->panels_b)
        flux__gemm_im2col(p, p->b, p->b_rows, t->k0, t->kb, p->b_cols, t->j0, t->nb, t->b,
                           t->b_step);
    else if (p->copy_b && !p->panels_b)
        flux__gemm_copy(p->size, b, p->b_row, p->b_col, t->b, t->b_step, t->kb, t->nb);
    for (j = 0; p->panels_b && j < t->nb;) j += flux__gemm_panels_of_b(t, j);
    for (t->i = 0; t->i < t->mb; t->i += t->ib) {
        t->ib = t->mb - t->i < p->sub + p->set->lanes ? t->mb - t->i : p->sub;
        flux__gemm_rows(t);
        flux__between();
    }
    if (!t->epilogue_last || t->k0 + t->kb < p->k) return;
    t->i = 0, t->ib = t->mb;
    flux__gemm_finish(t, 0, t->nb);
}

/* Takes a task's scratch memory and divides it into a, b, edge and out; false: out of memory.
   The scratch block of C begins half a page from where large tensors begin: a processor takes a
   load for one of what is being stored if the lower 12 bits of the addresses are the same. */
static bool flux__gemm_reserve(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, tall = 2 * lanes, mr = flux__gemm_up(t->mb, lanes), total;
    bool part = mr != t->mb;  /* the last tile has rows that do not belong to the block */
    int64_t a = p->copy_a ? flux__gemm_min(p->sub + lanes, mr) + (p->a_rows ? lanes : 0) :
        t->mb < lanes ? lanes : 0;
    int64_t b = p->copy_b ? t->nb * t->b_step : 0;
    /* columns of `out` are free again once they are transposed and the epilogue has seen them */
    bool passing = p->chunk >= p->k && !t->epilogue_last && !p->stream;
    /* the fewest rows that an epilogue call gets */
    int64_t last = t->mb % p->sub >= lanes || t->mb < p->sub ? t->mb % p->sub : p->sub;
    int64_t kept = passing ? flux__gemm_min(t->nb, FLUX__GEMM_PIECE / last + p->set->columns) :
        t->nb;
    int64_t out = p->flip || !p->job->c ? mr * kept : 0;
    int64_t turn = p->flip && !p->job->c ? flux__gemm_min(p->sub + lanes, t->mb) * kept : 0,
            edge = part && tall * p->set->columns > turn ? tall * p->set->columns : turn;
    if (p->stream && edge < t->nb * (FLUX__GEMM_STREAM / p->size + tall))
        edge = t->nb * (FLUX__GEMM_STREAM / p->size + tall);
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
        t->ld = mr;
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
    t.packs = p->copy_a && flux__gemm_packs_a(p, t.nb);
    t.epilogue_last = flux__gemm_epilogue_last(&t);
    if (!flux__gemm_reserve(&t)) {
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

FLUX__END_LEAN

#endif /* FLUX__CPU_GEMM_TASKS_H */
