#ifndef FLUX__CPU_CONV_DIRECT_H
#define FLUX__CPU_CONV_DIRECT_H
#include "../base/platform.h"
#include "../schedule/analysis.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"

/* ---------------------------------------------------------------------- cpu/conv_direct.h
   Direct convolution: a product of an image's windows (A, positions x taps) and
   few columns (B, taps x channels of the result), as of a group of a grouped
   convolution. So few columns do not make up for an im2col pack: the kernels of
   matrix products read the image where it lies, run by run of evenly spaced taps.
   Of windows two apart they read a copy that has even and odd elements apart, and
   no more rows between two of the result. The positions between rows of the
   result are computed too, and left out when rows are put in place, unless whole
   tiles of each row are less work.

   Invariant: an element's sum has the bits that flux__gemm gives it: one chunk of
   k, by the same microkernels. Nothing is read but what windows hold and what
   lies between two of them. A part has at least the positions of a tile, so that
   its last tile may begin earlier, and no two parts write the same result.

   Rejected: more columns, for which a packed copy is as fast; a single column, as of a
   depthwise convolution: dividing rows one by one takes longer than its products. */

FLUX__BEGIN_LEAN

/* most columns of B: where positions between rows are computed, too, else; and of windows two
   apart */
#define FLUX__DIRECT_COLUMNS 32
#define FLUX__DIRECT_WHOLE 64
#define FLUX__DIRECT_APART 16
#define FLUX__DIRECT_LEAST 32             /* fewest taps of windows two apart */
#define FLUX__DIRECT_PART 1024            /* positions of a part, about */
#define FLUX__DIRECT_TAPS 800             /* most elements of k: one chunk of f32 */

typedef struct flux__direct {
    const flux__gemm_set *set;
    int64_t size, k, n;                   /* bytes of an element; B is k x n */
    /* the result has `high` rows of `wide` positions, which are `along` (1 or 2) elements of the
       image apart, rows `down` */
    int64_t wide, high, along, down;
    int64_t parts;                        /* parts of the rows, or of a single row's positions */
    /* positions from row to row of the result in what the kernels read; the most of a part */
    int64_t pitch, most;
    /* taps are `runs` runs of `run`, `step` elements apart; where the first tap is, from a position
       on, and from there on the first of each run */
    int64_t runs, run, step, start, at[FLUX__DIRECT_TAPS];
    /* The copy of positions two apart. Taps go over `slices` of the image, as channels, `slice`
       elements apart; in each they are x_taps wide, x_step apart, and y_taps high, y_step apart,
       from the last in memory on if x_back or y_back. A slice's rows are in `classes`, of which
       each has the rows of every window's first, second, ... tap: `rows` rows of `pitch` even
       elements and then as many of odd ones. */
    int64_t slices, slice, x_taps, x_step, y_taps, y_step, classes, rows;
    bool x_back, y_back;
} flux__direct;

/* The first row of a part, or of a single row the first position. */
static int64_t flux__direct_begin(const flux__direct *d, int64_t part) {
    return part * (d->high > 1 ? d->high : d->wide) / d->parts;
}

/* The number of positions of a part, with those between its rows. */
static int64_t flux__direct_span(const flux__direct *d, int64_t part) {
    const int64_t n = flux__direct_begin(d, part + 1) - flux__direct_begin(d, part);
    return d->high > 1 ? (n - 1) * d->pitch + d->wide : n;
}

/* Whether whole tiles of each row are no more work than rows with the positions between them. */
static bool flux__direct_by_row(const flux__direct *d) {
    const int64_t tall = 2 * d->set->lanes;
    return d->high > 1 && d->wide >= tall && flux__gemm_up(d->wide, tall) <= d->pitch;
}

/* Finds the runs of taps where they lie in the image. */
static void flux__direct_runs(flux__direct *d, const flux__axes *taps) {
    d->run = taps->nd ? taps->dim[0] : 1, d->step = taps->nd ? taps->step[0] : 0;
    d->runs = d->k / d->run, d->start = 0;
    for (int64_t i = 0; i < d->runs; i++) d->at[i] = flux__axes_at(taps, i * d->run);
}

/* Describes the slices of the copy that positions two apart take. False: taps have other dims, or
   rows of positions do not follow each other by whole rows of taps. */
static bool flux__direct_slices(flux__direct *d, const flux__axes *taps) {
    const int nd = taps->nd;
    d->slices = nd ? taps->dim[nd - 1] : 1, d->slice = nd ? taps->step[nd - 1] : 0;
    d->x_taps = nd > 1 ? taps->dim[0] : 1, d->x_step = nd > 1 ? taps->step[0] : 1;
    d->y_taps = nd > 2 ? taps->dim[1] : 1, d->y_step = nd > 2 ? taps->step[1] : 1;
    if ((d->x_back = d->x_step < 0)) d->x_step = -d->x_step;
    if ((d->y_back = d->y_step < 0)) d->y_step = -d->y_step;
    if (nd > 3 || (d->high > 1 && (d->down < 1 || d->y_step < 1 ||
                                   (d->y_taps > 1 && d->down % d->y_step)))) return false;
    d->classes = d->high > 1 ? flux__gemm_min(d->y_taps, d->down / d->y_step) : d->y_taps;
    return true;
}

/* Finds the taps in that copy: rows, `rows` of a class, and columns count from the first in
   memory. */
static void flux__direct_halves(flux__direct *d, int64_t rows) {
    d->rows = rows + (d->y_taps - 1) / d->classes;
    for (int64_t t = 0; t < d->k; t++) {
        const int64_t i = t % d->x_taps, j = t / d->x_taps % d->y_taps,
                      x = (d->x_back ? d->x_taps - 1 - i : i) * d->x_step,
                      y = d->y_back ? d->y_taps - 1 - j : j,
                      plane = (t / d->x_taps / d->y_taps * d->classes + y % d->classes) * 2 + x % 2;
        d->at[t] = (plane * d->rows + y / d->classes) * d->pitch + x / 2;
        if (t) d->at[t] -= d->at[0];
    }
    d->runs = d->k, d->run = 1, d->step = 0, d->start = d->at[0], d->at[0] = 0;
}

/* Plans the product *g of windows whose rows and columns *positions and *taps map. False: it is
   none for this room. */
static bool flux__direct_plan(flux__direct *d, const flux__gemm_job *g, bool f64,
                              const flux__axes *positions, const flux__axes *taps) {
    d->set = flux__gemm_kernels(f64, false), d->size = f64 ? 8 : 4, d->k = g->k, d->n = g->n;
    d->wide = positions->dim[0], d->high = positions->nd > 1 ? positions->dim[1] : 1;
    d->along = positions->step[0], d->down = positions->nd > 1 ? positions->step[1] : 0;
    if (positions->nd < 1 || positions->nd > 2 || d->along < 1 || d->along > (f64 ? 1 : 2) ||
        d->n < 2 || d->n > FLUX__DIRECT_WHOLE || d->k < 1 || d->k * d->size > 4 * FLUX__DIRECT_TAPS)
        return false;
    d->pitch = d->down, d->slices = 0;
    if (d->along == 2) {
        if (!flux__direct_slices(d, taps)) return false;
        d->pitch = d->wide + (d->x_taps - 1) * d->x_step / 2;
    }
    if (d->high > 1 && (d->pitch < d->wide || d->pitch > d->wide + d->wide / 3 + 1 ||
                        d->pitch > 4 * FLUX__DIRECT_PART)) return false;
    const bool whole = d->high == 1 || d->pitch == d->wide || flux__direct_by_row(d);
    if (d->along == 2 && (d->k < FLUX__DIRECT_LEAST || d->n > FLUX__DIRECT_APART)) return false;
    if (d->n > (whole ? FLUX__DIRECT_WHOLE : FLUX__DIRECT_COLUMNS)) return false;
    d->parts = 1;
    d->parts = flux__gemm_min((flux__direct_span(d, 0) - 1) / FLUX__DIRECT_PART + 1,
                              d->high > 1 ? d->high : d->wide);
    d->most = 0;
    int64_t rows = 1;
    for (int64_t i = 0, n; i < d->parts; i++) {
        if ((n = flux__direct_span(d, i)) < 2 * d->set->lanes) return false;
        if (n > d->most) d->most = n;
        n = flux__direct_begin(d, i + 1) - flux__direct_begin(d, i);
        if (d->high > 1 && n > rows) rows = n;
    }
    if (d->high == 1) d->pitch += d->most - d->wide;
    if (d->along == 1) flux__direct_runs(d, taps);
    else flux__direct_halves(d, rows);
    return true;
}

/* Makes a part's copy of the image, of positions two apart. x: the image at the part's first
   position; `rows` rows of `wide` positions. */
static void flux__direct_divide(const flux__direct *d, const float *x, int64_t rows, int64_t wide,
                                float *to) {
    const int64_t n = (d->x_taps - 1) * d->x_step + 2 * wide - 1;
    if (d->x_back) x -= (d->x_taps - 1) * d->x_step;
    if (d->y_back) x -= (d->y_taps - 1) * d->y_step;
    for (int64_t plane = 0; plane < d->slices * d->classes * 2; plane++, to += d->rows * d->pitch) {
        const int64_t odd = plane % 2, kind = plane / 2 % d->classes;
        const flux__axes down = { 1, { d->rows }, { d->down } };
        const flux__gemm_run run = { 0, 0, (n + 1 - odd) / 2 };
        flux__gemm_im2col_now()(1, x + plane / 2 / d->classes * d->slice + kind * d->y_step + odd,
                                &down, 0, rows + (d->y_taps - 1 - kind) / d->classes, &run, 1, 2,
                                to, d->pitch);
    }
}

/* Multiplies `span` positions, neighbours in memory from x on, by all columns of b (k x n, strides
   b_row and b_col): c, its columns ldc apart. The last tile begins earlier. */
static void flux__direct_tiles(const flux__direct *d, const char *x, int64_t span, const char *b,
                               int64_t b_row, int64_t b_col, char *c, int64_t ldc) {
    const int64_t tall = 2 * d->set->lanes, size = d->size;
    const flux__gemm_places places = { d->runs, d->run, d->run, d->at, NULL, { 0 } };
    for (int64_t i = 0, j, nr; i < span; i += tall)
        for (j = 0; j < d->n; j += nr) {
            const int64_t tile = flux__gemm_min(i, span - tall);
            nr = flux__gemm_nr(d->n - j, d->set->columns);
            d->set->two[flux__gemm_width(nr)](d->run, x + (tile + d->start) * size, d->step,
                                              b + j * b_col * size, b_row, b_col,
                                              c + (tile + j * ldc) * size, ldc,
                                              FLUX__GEMM_PLACES + FLUX__GEMM_NEW, &places, 0);
        }
}

/* Elements of a part's copy of the image, and of that with a block of results behind it: the
   scratch memory of flux__direct_run. */
static int64_t flux__direct_copy(const flux__direct *d) {
    return d->along == 2 ? d->slices * d->classes * 2 * d->rows * d->pitch : 0;
}
static int64_t flux__direct_scratch(const flux__direct *d) {
    return flux__direct_copy(d) + d->most * d->n;
}

/* The positions of a part, and the first of them, *i0. */
static int64_t flux__direct_positions(const flux__direct *d, int64_t part, int64_t *i0) {
    const int64_t first = flux__direct_begin(d, part), wide = d->high > 1 ? d->wide : 1;
    *i0 = first * wide;
    return (flux__direct_begin(d, part + 1) - first) * wide;
}

/* Computes a part's results: y, the first of them, columns y_col apart. x: the image, where the
   first of all positions is. */
static void flux__direct_run(const flux__direct *d, int64_t part, const char *x, const char *b,
                             int64_t b_row, int64_t b_col, char *y, int64_t y_col, char *memory) {
    const int64_t size = d->size, first = flux__direct_begin(d, part),
                  some = flux__direct_begin(d, part + 1) - first,
                  rows = d->high > 1 ? some : 1, wide = d->high > 1 ? d->wide : some;
    const bool by_row = flux__direct_by_row(d),
               apart = rows > 1 && !by_row && d->pitch > wide;
    x += first * (d->high > 1 ? d->down : d->along) * size;
    if (d->along == 2) {
        flux__direct_divide(d, (const float *)(const void *)x, rows, wide, (float *)(void *)memory);
        x = memory;
        memory += flux__direct_copy(d) * size;
    }
    char *block = apart ? memory : y;
    const int64_t ld = apart ? d->most : y_col, span = by_row ? wide : flux__direct_span(d, part);
    for (int64_t r = 0; r < (by_row ? rows : 1); r++)
        flux__direct_tiles(d, x + r * d->pitch * size, span, b, b_row, b_col,
                           block + r * wide * size, ld);
    for (int64_t j = 0; j < d->n && apart; j++)
        flux__gemm_copy_rows(block + j * ld * size, d->pitch * size, y + j * y_col * size,
                             wide * size, rows, wide * size);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_CONV_DIRECT_H */
