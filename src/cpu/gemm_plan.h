#ifndef FLUX__CPU_GEMM_PLAN_H
#define FLUX__CPU_GEMM_PLAN_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/workers.h"
#include "../schedule/analysis.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "gemm_panels.h"
#include "gemm_amx.h"

/* ---------------------------------------------------------------------- cpu/gemm_plan.h
   The plan of a matrix product, products by inner products, and the entry,
   flux__gemm; cpu/gemm_tasks.h computes blocks of C. The plan chooses whether C
   is computed as it is or transposed, which is better where A has few rows and B
   many columns; whether inner products are cheaper than tiles; the chunks of k;
   the blocks of C that threads share; and which operands are packed. The
   constants beside each choice are measured. With FLUX_BLAS products go to the
   program's CBLAS.

   Invariant: what changes sums (chunks, inner products or tiles) depends on the
   shape and strides of the whole product alone, judged by AVX-512's measures also
   on AVX2, never on threads, blocks or packing, nor on whether a gathered operand
   was stored. Running out of memory is an error and leaves C incomplete. */

FLUX__BEGIN_HOT

/* The number of partial sums that an inner-product kernel keeps for each result. */
static int64_t flux__gemm_dot_lanes(const flux__gemm_plan *p) {
    return flux__gemm_sizing_set(p->set)->lanes;
}

/* C = A B by inner products for `rows` rows of A and two columns of B, b_col elements apart (0:
   one column, computed twice). a: rows p->a_row elements apart, contiguous along k; b:
   contiguous along k; C's element (i, j) is at c[i * c_row + j * c_col]. The last four rows
   start earlier and overlap the ones before; fewer than four are computed one by one. */
#define FLUX__GEMM_SUMS(name, type)                                                                \
    FLUX__GEMM_FN() void name(const flux__gemm_plan *p, const type *a, const type *b, int64_t b_col, type *c, int64_t c_row, \
                              int64_t c_col, int64_t rows) {                                       \
        const int64_t k = p->k, whole = k < flux__gemm_dot_lanes(p) ? 0 : k, mr = rows < 4 ? 1 : 4;        \
        type sum[8 * 8], *to;                                                                      \
        for (int64_t f, i, j, r = 0, inner4; r < rows; r += inner4 * mr) {                         \
            const int64_t first = r + mr <= rows ? r : rows - mr;                                  \
            const type *from = a + first * p->a_row, *s = sum;                                     \
            inner4 = mr == 1 || rows - r < 4 ? 1 : flux__gemm_min((rows - r) / 4, 8);              \
            p->set->inner_kernel(whole, from, mr > 1 ? p->a_row : 0, b, b_col, sum, inner4);       \
            to = c + first * c_row;                                                                \
            for (f = 0; f < inner4; f++, s += 8, from += 4 * p->a_row) {                           \
                for (i = whole; i < k; i++)                                                        \
                    for (j = 0; j < mr; j++)                                                       \
                        sum[f * 8 + j] += from[i + j * p->a_row] * b[i], sum[f * 8 + j + 4] += from[i + j * p->a_row] * b[b_col + i]; \
                for (j = 0; j < mr; j++, to += c_row) to[0] = s[j], to[c_col] = s[j + 4];          \
            }                                                                                      \
        }                                                                                          \
    }
FLUX__GEMM_SUMS(flux__gemm_sums4, float)
FLUX__GEMM_SUMS(flux__gemm_sums8, double)

/* Multiplies the rows i ... i+n-1 of A by as many columns of B as there are groups of four, and
   returns that number of columns; 0 where the instruction set has no such kernel. c: the
   results, ld apart. Four rows of one operand pass over all of the other, so that what is
   contiguous in C is stored together; the last four start earlier and overlap. */
static int64_t flux__gemm_by_inner4(const flux__gemm_plan *p, int64_t i, int64_t n, char *c,
                                   int64_t ld) {
    const int64_t k = p->k, size = p->size,
                  columns = p->set->inner4 && n >= 4 && k >= flux__gemm_dot_lanes(p) ?
                      p->n & -4 : 0;
    const char *a = p->a + i * p->a_row * size, *b = p->b;
    const int64_t most = p->flip ? columns : n;
    for (int64_t at, j = 0; j < most && columns; j += 4) {
        if (p->flip) {
            at = n & -4;
            p->set->inner4(k, a, p->a_row, b + j * p->b_col * size, p->b_col, c + j * size, ld,
                          at / 4);
            if (at < n)
                at = n - 4, p->set->inner4(k, a + at * p->a_row * size, p->a_row,
                                          b + j * p->b_col * size, p->b_col,
                                          c + (at * ld + j) * size, ld, 1);
        } else {
            at = flux__gemm_min(j, n - 4);
            p->set->inner4(k, b, p->b_col, a + at * p->a_row * size, p->a_row, c + at * size, ld,
                          columns / 4);
        }
    }
    return columns;
}

/* Multiplies one thread's share of A's rows by all columns of B with the inner-product kernels,
   a few rows at a time, and calls the epilogue for these. */
static void flux__gemm_inner_run(void *ctx, int worker, int64_t number) {
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
        for (j = flux__gemm_by_inner4(p, i, n, c, ld); j < p->n; j += 2) {
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
    const flux__axes *a = flip ? j->b_map : j->a_map, *b = flip ? j->a_map : j->b_map;
    p->a_rows = a ? a + flip : NULL, p->a_cols = a ? a + !flip : NULL;
    p->b_rows = b ? b + flip : NULL, p->b_cols = b ? b + !flip : NULL;
}

/* Estimates the cycles of the product in the orientation that the plan has: multiplications,
   packing, and transposing C. */
static double flux__gemm_cost(const flux__gemm_plan *p) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, lanes = p->set->lanes;
    double padded = (double)flux__gemm_up(p->m, p->set->lanes);
    /* the last tile has vectors of half the length */
    if (m > 10 * lanes && padded - m >= lanes / 2 && p->set->narrow) padded -= 0.375 * lanes;
    double c = padded * n * k / (2 * lanes);
    double copy = p->a_row == 1 ? (n > 48 * p->set->columns ? 0.1 : 0) :
        p->a_col == 1 ? (flux__gemm_large(p) ? 0.25 : 0.035) * (double)p->size : 1.5;
    if (p->a_rows) copy = flux__gemm_along(p, p->a_cols, p->a_rows) ? 0.5 : 0.15;
    if (p->b_rows) c += (flux__gemm_along(p, p->b_cols, p->b_rows) ? 0.5 : 0.1) * n * k;
    return c + copy * m * k + (p->flip ? (flux__gemm_far(p) ? 0.6 : 0.2) * m * n : 0);
}

/* Chooses the orientation with the lower estimate, and returns that estimate. An epilogue is given
   parts of C's columns where C is computed transposed, which costs it more than the estimate, on
   which sums depend, may say. */
static double flux__gemm_orient_best(flux__gemm_plan *p) {
    flux__gemm_orient(p, p->job, true);
    const double flipped = flux__gemm_cost(p), parts = p->job->epilogue ? 1.0 : 0.0;
    flux__gemm_orient(p, p->job, false);
    const double cost = flux__gemm_cost(p);
    if (flipped + parts * (double)p->m * (double)p->n >= cost)
        return flipped < cost ? flipped : cost;
    flux__gemm_orient(p, p->job, true);
    return flipped;
}

/* Whether inner-product kernels take less time than tiles: for a vector, and where transposing
   the larger operand (which is contiguous along k), or rows that fill no vector, cost more than
   the horizontal reduction of every sum. If so, A is the operand with more rows, and B's
   columns are made contiguous. Returns 1: tiles, 2: inner products, 3: inner products with A
   and B exchanged. The answer is the same for all of a product and for its parts
   (job->inner_kernel), and with AVX2 as with AVX-512, because the two ways give different sums. */
static int flux__gemm_by_inner(const flux__gemm_plan *plan, const flux__gemm_job *j) {
    flux__gemm_plan sizing = *plan, *p = &sizing;
    int64_t most = j->m > j->n ? j->m : j->n, few = flux__gemm_min(j->m, j->n);
    bool flip = j->m < j->n, turn = (flip ? j->a_col : j->b_row) != 1;
    double cost = plan->cost;
    if (j->inner_kernel) return j->inner_kernel;
    if ((flip ? j->b_row : j->a_col) != 1 || j->a_map || j->b_map || j->pairs ||
        few > FLUX__GEMM_FEW) return 1;
    if (few > 1 && (most + few) * p->k * p->size > 512 << 10 && few * p->k * p->size > 32 << 10)
        return 1;
    p->set = flux__gemm_sizing_set(plan->set);
    if (p->set != plan->set) cost = flux__gemm_orient_best(p);
    /* measured */
    const double vectors = (double)((p->k + p->set->lanes - 1) / p->set->lanes),
                 hreduce = p->size == 4 ? 0.9 : 0.5;
    if (few > 1 && (double)(most * few) * (0.5 * vectors + hreduce) +
        (turn ? 0.1 * (double)(few * p->k) : 0) > cost) return 1;
    return flip ? 3 : 2;
}

/* Computes the whole product by inner products, C transposed if flip; copies B first if it is
   not contiguous along k. False: out of memory. */
static bool flux__gemm_inner_all(flux__gemm_plan *p, bool flip, int64_t threads) {
    flux__gemm_orient(p, p->job, flip);
    int64_t step = (flux__gemm_up(p->k * p->size, 64) | 64) / p->size;
    void *transposed = NULL;
    if (p->b_row != 1) {
        if (!(transposed = flux__scratch((size_t)(step * p->n * p->size)))) return false;
        flux__gemm_copy(p->size, p->b, p->b_row, p->b_col, transposed, step, p->k, p->n);
        p->b = (const char *)transposed, p->b_col = step;
    }
    /* for less work waking a worker takes longer than the work */
    p->rows = threads > 1 ? flux__gemm_split(p->m, 2 * threads, 16) : p->m;
    flux__parallel_workers((p->m + p->rows - 1) / p->rows, flux__gemm_inner_run, p);
    flux__scratch_done(transposed);
    return true;
}

/* Whether A, if it is not copied, may be read in its own order (flux__gemm_stream). */
static bool flux__gemm_may_stream(const flux__gemm_plan *p) {
    return p->n > 1 && p->n <= 24 * p->set->columns && p->a_row == 1 && !p->a_rows &&
           !p->triples && p->m * p->k * p->size >= 1 << 20;
}

/* Decides whether to pack A and B. Measured: B is fine in place until its columns (or its rows, if
   these are contiguous) fall into one set of the cache; columns even then, if the set has a way for
   each of a tile's and A has few rows (64 x 2048 by 512 columns took 1.3 times as long with a copy
   of B, 256 rows 1.05 to 1.1). Rows of B that are far apart and long go to panels even for one tile
   of A's rows, unless k is short (192 x 1576 by 768 columns, a gradient of a layer's weights, took
   1.5 times as long in place; 64 x 256 by 2048 0.92); for many tiles with a short k, too (3072 x 64
   by 768 took 1.17 times as long). A is fine in place until it is larger than
   the second-level cache or each of its columns is on a page of its own, and it is read very often;
   or often, if its columns fall into one set or kernels pack it, or do not begin at cache lines
   (500 cubed took 1.2 to 1.6 times as long in place, 196 x 256 x 2304 1.15). In place A is read
   some tiles at a time: all columns of B are multiplied by these, while the next ones are
   prefetched. A large one that is read less often comes from memory, which gives it fastest in its
   own order (flux__gemm_stream: 768 x 768 by 64 columns 1.3 times as fast, 512 x 2048 by 49 twice),
   unless a thread has few rows of it. */
static void flux__gemm_copies(flux__gemm_plan *p) {
    int64_t a_step = p->a_col * p->size, b_step = (p->b_row == 1 ? p->b_col : p->b_row) * p->size,
            bytes_a = p->m * p->k * p->size;
    /* narrow tiles read A twice as often, and use less of a cache line of B's rows */
    bool often = p->set->columns <= 6;
    bool packs = flux__gemm_packs_a(p, p->columns);
    bool apart = flux__gemm_large(p) || (a_step >= 2000 && (p->k > 64 || bytes_a >= 192 << 10)) ||
                 (often && bytes_a >= 32 << 10);
    bool many = p->columns > (packs || a_step % 2048 == 0 ? 8 : 24) * p->set->columns;
    int64_t most = flux__gemm_up(FLUX__GEMM_BLOCK / (p->chunk * p->size), 8 * p->set->lanes);
    /* the rows of A that make up for a copy of B */
    const bool fits = p->b_row == 1 && flux__l1_ways() >= p->set->columns;
    int64_t repays = (fits ? 16 : 2) * p->set->lanes;
    bool crowded = p->rows > repays &&
                   b_step % (p->b_row == 1 ? 4096 : 256 * p->set->lanes) == 0;
    /* of a vector as long as a cache line, loaded from anywhere, two lines are read */
    bool uneven = p->set->lanes * p->size == 64 && a_step % 64 && p->columns >= 8 * p->set->columns;
    p->copy_a = p->a_row != 1 || (apart && many) || uneven;
    p->vector = p->n == 1 && !p->copy_a && p->set->vector;
    p->stream = flux__gemm_may_stream(p) && !p->copy_a &&
                (p->rows * p->size >= FLUX__GEMM_STREAM / 2 || a_step % 2048 == 0);
    /* each part is soon done, so the next one to prefetch must be small */
    if (packs && p->copy_a && p->columns < 32 * p->set->columns) most /= 2;
    if ((packs || !p->copy_a) && !p->vector && !p->stream && p->m * p->chunk * p->size >
        (p->set->pack_kernel ? 2 : 8) * FLUX__GEMM_BLOCK)
        p->sub = flux__gemm_min(p->sub, flux__gemm_split(
            p->rows, (p->rows + most - 1) / most, 2 * p->set->lanes));
    int64_t tiles = p->rows / (2 * p->set->lanes),
            many_tiles = often ? 32 : 16,
            much = tiles < many_tiles ? 256 << 10 : often ? 32 << 10 : 64 << 10;
    p->panels_b = p->b_col == 1 && p->b_row > 1 && (tiles >= 8 || (tiles >= 1 && p->k >= 512)) &&
                  p->chunk * p->b_row * p->size >= much;
    p->copy_b = crowded || p->panels_b || (p->b_row != 1 && p->b_col != 1);
    if (p->a_rows) p->copy_a = true, p->vector = p->stream = false;
    if (p->b_rows) p->copy_b = !p->triples, p->panels_b = flux__gemm_along(p, p->b_cols, p->b_rows);
    p->panels_b = p->panels_b && p->copy_b;
}

/* Whether blocks are FLUX__GEMM_WIDE times as wide: A is transposed into a copy for each of them,
   and B's columns are read where they lie, as where a language model's states are multiplied by the
   transposed table of its words (50257 x 768 by 768 x 512 1.05 times as fast). */
static bool flux__gemm_wide(const flux__gemm_plan *p) {
    return p->flip && p->a_row != 1 && !p->a_rows && p->b_row == 1 && !p->b_rows &&
           p->b_col * p->size % 4096 && p->chunk >= p->k;
}

/* Cuts C into blocks: as large as allowed, but enough of them for the threads; returns their
   number, which never shows in the result. Columns of C stay whole as long as a block still has
   many of them: what an epilogue reads besides lies along them (Adam's part of a 1024 x 1024 x
   128 took 2.5 ms on two threads, now 1.5). Rows of a large A for few columns are divided no
   further than it is read in its own order (768 x 3072 by 64 columns 1.3 times as fast on two
   threads). A small A is left whole: the kernels before and
   after such a product mostly work by columns too, so a thread keeps its part. */
static int64_t flux__gemm_blocks(flux__gemm_plan *p, int64_t threads) {
    int64_t tall = 2 * p->set->lanes, bytes = p->chunk * p->size, tasks;
    int64_t flat = bytes * 4 <= FLUX__GEMM_CHUNK ? 4 : bytes * 2 <= FLUX__GEMM_CHUNK ? 2 : 1;
    /* with so short a k, more rows: columns of C stay whole and contiguous */
    int64_t height = flat * FLUX__GEMM_TILES * tall;
    /* a chunk that is longer than most has fewer rows in the second-level cache */
    if (bytes > FLUX__GEMM_CHUNK) height = height * FLUX__GEMM_CHUNK / bytes / tall * tall;
    /* blocks that take scratch memory for C stay small */
    int64_t limit = p->flip || !p->job->c ? 1 : 4;
    int64_t rows = limit * height,
            columns = p->triples ? FLUX__GEMM_TRIPLE_COLUMNS :
                (flux__gemm_wide(p) ? FLUX__GEMM_WIDE : limit) * FLUX__GEMM_COLUMNS;
    p->rows = flux__gemm_split(p->m, (p->m + rows - 1) / rows, tall);
    p->columns = flux__gemm_split(p->n, (p->n + columns - 1) / columns, 1);
    for (;;) {  /* rows at the end that are less than a vector go to the block above */
        p->down = (p->m + p->rows - 1 - (p->m > p->rows ? p->set->lanes - 1 : 0)) / p->rows;
        tasks = p->down * ((p->n + p->columns - 1) / p->columns);
        if (tasks >= (threads > 1 ? 2 * threads : 1)) break;
        /* with half as many rows A would not be read in its own order */
        if (tasks >= threads && flux__gemm_may_stream(p) &&
            p->rows * p->size / (FLUX__GEMM_STREAM / 2) == 1) break;
        bool whole = p->job->epilogue && (p->flip ? p->rows : p->columns) >= 256;
        /* A is small enough for every thread to read */
        bool light = p->m * p->k * p->size <= 128 << 10 && p->columns >= 32;
        /* each block packs its part of A, whose rows are rather divided than its packing repeated
           for parts of the columns (768 x 3072 by 512 columns on two threads 1.2 times as fast);
           but where B lies in rows that is packed, too */
        bool tiled = p->rows >= 384 && (p->b_row == 1 || p->m >= p->n);
        if (p->rows > tall && (whole ? p->flip : (tiled || p->rows >= 2 * p->columns) && !light))
            p->rows = flux__gemm_split(p->rows, 2, tall);
        else if (p->columns >= 2 * p->set->columns) p->columns = (p->columns + 1) / 2;
        else break;
    }
    if (p->triples) {
        p->columns = (p->columns + 11) / 12 * 12;
        tasks = p->down * ((p->n + p->columns - 1) / p->columns);
    }
    p->sub = flux__gemm_split(p->rows, (p->rows + height - 1) / height, tall);
    return tasks;
}

/* Whether a mapped B is read where it lies, in triples of columns
   (flux__gemm_triple_places): as in the gradient of a convolution's weights, whose columns are the
   taps of 3 x 3 windows and whose rows are the pixels of an image; a 1 x 1 convolution of several
   small images may have such a B, too. C must be whole tiles of any instruction set. With more
   rows of C, or shorter rows of an image, copies of the columns are as fast or faster (64 rows, of
   56 x 56 images, took 1.15 times as long by copies, 512 of 14 x 14 0.8); and with a short k for
   an epilogue, as C may be computed transposed. */
static bool flux__gemm_has_triples(const flux__gemm_plan *p) {
    return p->b_rows && !p->job->pairs && p->set->columns % 3 == 0 && p->m % 32 == 0 &&
           p->m <= 256 && p->n % 12 == 0 && p->b_cols->dim[0] % 3 == 0 &&
           p->b_rows->dim[0] >= 12 && p->k >= (p->job->epilogue ? 1024 : 256);
}

/* Plans a product: kernels for the instruction set, orientation, and chunks of k. */
static void flux__gemm_plan_for(flux__gemm_plan *p, bool f64, const flux__gemm_job *job) {
    int64_t chunks;
    p->job = job;
    p->set = flux__gemm_kernels(f64, job->pairs);
    p->im2col = flux__gemm_im2col_now();
    p->size = f64 ? 8 : 4;
    p->k = job->k > 0 ? job->k : 0;
    p->failed = 0;
    p->cost = flux__gemm_orient_best(p);
    p->triples = false;
    for (int flip = 1; flip >= 0 && !p->triples; flip--) {
        flux__gemm_plan other = *p;
        flux__gemm_orient(&other, job, flip == 1);
        if ((other.triples = flux__gemm_has_triples(&other))) *p = other;
    }
    chunks = (p->k * p->size + FLUX__GEMM_CHUNK - 1) / FLUX__GEMM_CHUNK;
    if (p->k * p->size <= 3200) chunks = 1;                 /* 784 elements of f32 are one chunk */
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
    bool transposed = (col == 1 || columns == 1) && (row >= columns || rows == 1);
    int64_t step = plain ? (columns == 1 ? rows : col) : rows == 1 ? columns : row;
    if (!plain && !transposed) return 0;
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
    if (!ta || !tb || job->a_map || job->b_map || job->k < 1 || job->m > INT_MAX ||
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
    int inner_kernel;
    if (job->m <= 0 || job->n <= 0) return 0;
#ifdef FLUX_BLAS
    if (!job->pairs && !job->tiles && flux__blas(f64, job)) return 0;
#endif
    threads = (double)job->m * (double)job->n * (double)job->k > 4e5 ? flux__num_threads() : 1;
    if (!job->tiles) flux__gemm_plan_for(&p, f64, job);
    if (job->tiles) p.failed = !flux__amx_run(job, threads);
    else if (job->panels) {
        flux__gemm_orient(&p, job, job->panels_b);
        flux__panels_run(&p, threads);
    } else if ((inner_kernel = flux__gemm_by_inner(&p, job)) > 1)
        p.failed = !flux__gemm_inner_all(&p, inner_kernel > 2, threads);
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

FLUX__END_HOT

#endif /* FLUX__CPU_GEMM_PLAN_H */
