#ifndef FLUX__CPU_HALF_PRODUCTS_H
#define FLUX__CPU_HALF_PRODUCTS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add, flux__atomic_load32, flux__atomic_store32 */
#include "../base/object.h"
#include "../base/memory.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "casts.h"
#include "backend.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "gemm_panels.h"
#include "gemm_amx.h"
#include "conv_amx.h"
#include "conv_amx_gradient.h"
#include "gemm_plan.h"
#include "run.h"
#include "products.h"
#include "padding.h"
#include "product_operands.h"
#include "product_batches.h"
#include "thin_products.h"
#include "winograd.h"
#include "winograd_gradient.h"
#include "kept_operands.h"

/* ---------------------------------------------------------------------- cpu/half_products.h
   The run of a matrix product's kernel (flux__run_product): operands made
   ready, batches shared out to threads, and the ways to save work: samples of
   small images joined into one product, a shared operand transposed once, half
   formats converted by the thread that reads them. cpu/product_operands.h makes
   the operands ready. Convolutions may go other ways: cpu/winograd.h,
   cpu/winograd_gradient.h, cpu/conv_amx.h, cpu/conv_amx_gradient.h,
   cpu/thin_products.h. A matrix of a half format is read as it lies where it has few columns to
   multiply.

   Invariant: many products are shared out whole, few ones in blocks.

   Rejected: converting half formats once for all threads: most of it would come
   out of another core's cache, and an f16 196 x 64 x 64 took three times as
   long on two threads as on one. */

FLUX__BEGIN_HOT

/* The epilogue of samples that are joined to one product: each sample's rows go to
   flux__epilogue with its own batch number. */

static void flux__epilogue_samples(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb,
                                   int64_t nb, void *block, int64_t ld) {
    flux__job job = *(flux__job *)ctx;
    int64_t m = job.k->mnk[0], i, n, size = job.k->operand[0].dtype == FLUX_F64 ? 8 : 4;
    for (i = 0; i < mb; i += n) {
        job.batch = (i0 + i) / m;
        n = flux__gemm_min(mb - i, m - (i0 + i) % m);
        flux__epilogue(&job, worker, (i0 + i) % m, j0, n, nb, (char *)block + i * size, ld);
    }
    if (job.failed) flux__atomic_store32(&((flux__job *)ctx)->failed, 1);
}

/* Joins the samples to one product of many rows where small matrices are all multiplied by the
   same one, as small images by a weight; by tiles all windows of images, for then the weight is
   packed once. False: they are not of this kind. */
static bool flux__samples_join(flux__products *p) {
    const int64_t *full = p->job.k->full;
    const flux__operand *b = &p->b.o;
    if (p->g.tiles ? !p->a.o.gather : p->g.m > 128) return false;
    if (full[3] < 2 || p->a.o.shape.ndim < 2) return false;
    for (int d = 2; d < FLUX_MAX_DIMS; d++)
        if (d != 3 && full[d] != 1) return false;
    for (int d = 0; d < b->shape.ndim; d++)
        if ((b->gather ? b->owner[d] : d) == 3 && b->shape.dim[d] > 1) return false;
    flux__matrix_map(&p->a, 0, 3);
    if (!p->g.a_map) flux__matrix_map(&p->a, 1, -1);
    p->g.m *= full[3];
    p->g.a_row = p->g.a_col = 0;
    p->g.a_map = p->a.map;
    p->g.epilogue = flux__epilogue_samples;
    p->batches = 1;
    p->bare = false;
    return true;
}

/* Transposes a B that all batches share, once instead of for each, if its columns are to be
   contiguous along k. Returns the copy (k x n, in scratch memory), or NULL: B stays as it is. */
static void *flux__transpose_shared(flux__products *p) {
    const flux__operand *b = &p->b.o;
    int64_t size = p->f64 ? 8 : 4, step = (flux__gemm_up(p->g.k * size, 64) | 64) / size;
    bool shared = !b->gather && !p->g.tiles && p->g.a_row == 1 && p->g.b_col == 1 &&
                  p->g.b_row > 1 && p->g.m >= 64 * flux__num_threads();
    for (int d = 2; d < b->shape.ndim; d++) shared = shared && b->shape.dim[d] == 1;
    void *transposed = shared ? flux__scratch((size_t)(step * p->g.n * size)) : NULL;
    if (!transposed) return NULL;
    flux__gemm_copy(size, (const char *)p->b.at + b->offset * size, p->g.b_row, 1, transposed, step,
                    p->g.k, p->g.n);
    p->b.at = (const char *)transposed, p->b.o.offset = 0, p->g.b_row = 1, p->g.b_col = step;
    return transposed;
}

/* ---- a product of half formats on several threads: each thread converts what it reads to f32,
   or to words. If it were converted once for all of them, most of it would have to come out of
   the cache of the thread that converted it: where threads share no cache, f16 196 x 64 x 64
   took three times as long on two threads as on one. */

/* about as many elements of a part are converted, and at most as many besides, for more than a part
   a thread */
#define FLUX__PART_HALVES (1 << 16)
#define FLUX__PART_BESIDE (1 << 14)

/* `all` is cut into parts of `each` of its n rows of A (side 0) or columns of B (side 1) */
typedef struct flux__halves { flux__products *all; int side; int64_t each, n; } flux__halves;

/* Converts the operands of one part and computes its product. */
static void flux__half_part(void *ctx, int64_t part) {
    const flux__halves *h = (const flux__halves *)ctx;
    flux__products p = *h->all;
    flux__operand o[2] = { p.job.k->operand[0], p.job.k->operand[1] };
    int64_t at = part * h->each, n = flux__gemm_min(h->n - at, h->each), first, all;
    o[h->side].shape.dim[h->side] = n;
    o[h->side].offset += at * o[h->side].stride[h->side];
    first = flux__gemm_up(flux__count(&o[0].shape) * 4, 64),
        all = first + flux__count(&o[1].shape) * 4;
    char *memory = (char *)flux__scratch((size_t)all);
    if (memory && flux__matrix_operand(p.job.run, &o[0], 0, &p.g, memory, &p.a) &&
        flux__matrix_operand(p.job.run, &o[1], 1, &p.g, memory + first, &p.b)) {
        *(h->side ? &p.g.n : &p.g.m) = n;
        p.job.first = h->side ? at * p.g.ldc : at;
        p.g.a_row = p.a.row, p.g.a_col = p.a.col, p.g.b_row = p.b.row, p.g.b_col = p.b.col;
        flux__product_task(&p, 0);
    }
    flux__scratch_done(memory);
    if (!memory || p.failed) flux__atomic_store32(&h->all->failed, 1);
}

/* A matrix of a half format, whose columns are contiguous, times few columns: `chunk` elements are
   added up at once, and rows are cut into tasks. x: the columns in f32, k elements each. */
typedef struct flux__half_few {
    flux__products *all;
    flux__gemm_vector vector;             /* what multiplies a single column */
    const flux__gemm_set *set;
    const uint16_t *a;
    int64_t a_col, chunk, each;
    float *x;
} flux__half_few;

/* Rows and columns of A that are converted at a time. For up to 4 columns of B a quarter of the
   columns, 32 KB, which stay in the first-level cache; more of them make up for the second. */
enum { FLUX__FEW_ROWS = 1024, FLUX__FEW_POINTS = 32 };

/* Multiplies by one column: mb rows from row i0 on. Less than 32 at the end are multiplied in a
   copy that has 32. c: up to 31 rows more, `copy`: 32 rows of a chunk. */
static void flux__half_vector(const flux__half_few *v, int64_t i0, int64_t mb, float *c,
                              uint16_t *copy) {
    const int64_t k = v->all->g.k, whole = mb & -32;
    for (int64_t k0 = 0, kb; k0 < k; k0 += kb) {
        const uint16_t *a = v->a + i0 + k0 * v->a_col;
        kb = flux__gemm_min(k - k0, v->chunk);
        v->vector(whole, kb, a, v->a_col, v->x + k0, 1, c, k0 > 0);
        if (mb == whole) continue;
        memset(copy, 0, (size_t)(kb * 32) * sizeof *copy);
        for (int64_t l = 0; l < kb; l++)
            memcpy(copy + l * 32, a + whole + l * v->a_col, (size_t)(mb - whole) * sizeof *a);
        v->vector(32, kb, copy, 32, v->x + k0, 1, c + whole, k0 > 0);
    }
}

/* Adds to `sums`, or begins them, the products of `points` columns of A from column l on; `rows`
   rows from row i on, in tiles, the last of which is filled with zeros. sums: FLUX__FEW_ROWS apart
   by column; part: memory of FLUX__FEW_ROWS x FLUX__FEW_POINTS. */
static void flux__half_points(const flux__half_few *v, int64_t i, int64_t rows, int64_t l,
                              int64_t points, bool begin, float *part, float *sums) {
    const int64_t n = v->all->g.n, k = v->all->g.k, tall = 2 * v->set->lanes,
                  full = flux__gemm_up(rows, tall);
    for (int64_t q = 0; q < points; q++) {
        flux__load(FLUX__F32C, part + q * full, v->all->job.k->operand[0].dtype,
                   (const char *)(v->a + i + (l + q) * v->a_col), 1, rows);
        memset(part + q * full + rows, 0, (size_t)(full - rows) * sizeof *part);
    }
    for (int64_t j = 0, nr; j < n; j += nr) {
        nr = flux__gemm_nr(n - j, v->set->columns);
        const flux__gemm_kernel kernel = v->set->two[flux__gemm_width(nr)];
        for (int64_t r = 0; r < full; r += tall) /* and prefetches what is converted next */
            kernel(points, part + r, full, v->x + l + j * k, 1, k, sums + r + j * FLUX__FEW_ROWS,
                   FLUX__FEW_ROWS, begin ? FLUX__GEMM_NEW : FLUX__GEMM_GO_ON,
                   j ? NULL : v->a + i + r + (l + points) * v->a_col, j ? 0 : 2 * v->a_col);
    }
}

/* Floats of memory that flux__half_rows needs beside C. */
static int64_t flux__half_beside(int64_t n) { return FLUX__FEW_ROWS * (FLUX__FEW_POINTS + n); }
/* Multiplies mb rows from row i0 on: c: their results, ld apart, and behind it memory. */
static void flux__half_rows(const flux__half_few *v, int64_t i0, int64_t mb, float *c, int64_t ld) {
    const int64_t n = v->all->g.n, k = v->all->g.k,
                  points = n > 4 ? FLUX__FEW_POINTS : FLUX__FEW_POINTS / 4;
    float *part = c + ld * n, *sums = part + FLUX__FEW_ROWS * FLUX__FEW_POINTS;
    for (int64_t r = 0, rows; r < mb; r += rows) {
        rows = flux__gemm_min(mb - r, FLUX__FEW_ROWS);
        for (int64_t k0 = 0, kb; k0 < k; k0 += kb) {
            kb = flux__gemm_min(k - k0, v->chunk);
            for (int64_t l = 0; l < kb; l += points)
                flux__half_points(v, i0 + r, rows, k0 + l, flux__gemm_min(kb - l, points), l == 0,
                                  part, sums);
            flux__gemm_add_tile(sizeof *c, (char *)(c + r), ld, (const char *)sums,
                                FLUX__FEW_ROWS, rows, n, k0 > 0);
        }
    }
}

/* Computes one task's rows. */
static void flux__half_few_task(void *ctx, int worker, int64_t number) {
    const flux__half_few *v = (const flux__half_few *)ctx;
    const int64_t i0 = number * v->each, n = v->all->g.n,
                  mb = flux__gemm_min(v->each, v->all->g.m - i0), ld = flux__gemm_up(mb, 32),
                  beside = v->vector ? 16 * v->chunk : flux__half_beside(n);
    float *c = (float *)flux__scratch((size_t)(ld * n + beside) * sizeof *c);
    flux__job job = v->all->job;
    if (c && v->vector) flux__half_vector(v, i0, mb, c, (uint16_t *)(void *)(c + ld));
    else if (c) flux__half_rows(v, i0, mb, c, ld);
    if (c) flux__epilogue(&job, worker, i0, 0, mb, n, c, ld);
    if (!c || flux__atomic_load32(&job.failed)) flux__atomic_store32(&v->all->failed, 1);
    flux__scratch_done(c);
}

/* Multiplies a matrix of a half format, whose columns are contiguous, by few columns, or several of
   them by one column each: the matrix is read as it lies, which takes half of the memory's time
   that an f32 takes, and converted where it is multiplied. The sums are those of the product of
   f32. False, and nothing is done: it is another product, or a small one. */
static bool flux__run_half_few(flux__products *p) {
    const flux__operand *o = p->job.k->operand;
    flux__half_few v = { p, NULL, flux__gemm_kernels(false, false), NULL, 0, 0, 0, NULL };
    flux__gemm_job g = p->g;
    flux__gemm_plan plan;
    const int64_t m = p->g.m, n = p->g.n, k = p->job.k->mnk[2], threads =
        (double)m * (double)(n * k) > 4e5 ? flux__num_threads() : 1;
    if (n == 1) v.vector = flux__half_vector_kernel(o[0].dtype);
    const bool few = n <= FLUX__GEMM_FEW && !p->g.tiles && !p->g.pairs && o[1].shape.ndim > 1;
    if (!(n == 1 ? v.vector != NULL : few && p->batches == 1) ||
        !flux__is_half(o[0].dtype) || !flux__is_half(o[1].dtype) || o[0].shape.ndim < 2 ||
        o[0].gather || o[1].gather || o[0].stride[0] != 1 || o[0].stride[1] < m || m < 16 ||
        m * k < 4096) return false;
    /* small ones are shared out whole */
    if (p->batches > 1 && threads < flux__num_threads()) return false;
    g.k = k, g.a_row = 1, g.a_col = m, g.b_row = 1, g.b_col = k;
    flux__gemm_plan_for(&plan, false, &g);
    if (n > 1 && (plan.flip || flux__gemm_by_inner(&plan, &g) != 1)) return false;
    p->g.k = k;
    v.chunk = plan.chunk, v.each = threads > 1 ? flux__gemm_up(m / (2 * threads) + 1, 64) : m;
    v.a_col = o[0].stride[1], v.x = (float *)flux__scratch((size_t)(k * n) * sizeof *v.x);
    if (!v.x) return p->failed = 1, true;
    for (int64_t i = 0; i < p->batches; i++) {
        const char *src[2];
        for (int side = 0; side < 2; side++)
            src[side] = (const char *)p->job.run->ptr[o[side].src] +
                        flux__batch_offset(p->job.k, &o[side], i) * 2;
        v.a = (const uint16_t *)(const void *)src[0], p->job.batch = i;
        for (int64_t j = 0; j < n; j++)
            flux__load(FLUX__F32C, v.x + j * k, o[1].dtype,
                       src[1] + (n > 1 ? j * o[1].stride[1] * 2 : 0), o[1].stride[0], k);
        flux__parallel_workers((m + v.each - 1) / v.each, flux__half_few_task, &v);
    }
    flux__scratch_done(v.x);
    return true;
}

/* Computes a product of half formats in parts, one or more a thread, and where each is contiguous
   and needs little besides, so many that what is converted stays in the second-level cache. False,
   and nothing is done: it is too small, there is nothing to convert, or what every part needs is
   too much to convert for each. */
static bool flux__halves_apart(flux__products *p) {
    const flux__operand *o = p->job.k->operand;
    flux__gemm_plan plan;
    flux__halves h = { p, p->g.m < p->g.n, 0, p->g.m < p->g.n ? p->g.n : p->g.m };
    int64_t k = p->job.k->mnk[2], parts = flux__num_threads(),
            a[FLUX_MAX_DIMS], b[FLUX_MAX_DIMS];
    /* parts that lie apart in memory */
    const bool slabs = o[h.side].stride[h.side] > o[h.side].stride[!h.side];
    if (slabs && flux__gemm_min(p->g.m, p->g.n) * k <= FLUX__PART_BESIDE &&
        parts < h.n * k / FLUX__PART_HALVES) parts = h.n * k / FLUX__PART_HALVES;
    parts = flux__gemm_min(parts, h.n / 32);
    if (parts < 2 || p->batches > 1 || p->g.tiles || !flux__is_half(o[0].dtype) ||
        !flux__is_half(o[1].dtype) || o[0].shape.ndim < 2 || o[1].shape.ndim < 2)
        return false;
    /* a product of 3 x 3 windows may go by cpu/winograd.h, which gives other sums */
    if (flux__product_of_three(p->job.run, p->job.k)) return false;
    if (o[0].gather || o[1].gather || (double)p->g.m * (double)p->g.n * (double)k < 4e5 ||
        flux__gemm_min(p->g.m, p->g.n) * k > 1 << 18) return false;
    if (p->g.pairs && flux__paired(&o[0], (const char *)p->job.run->ptr[o[0].src], 1) &&
        flux__paired(&o[1], (const char *)p->job.run->ptr[o[1].src], 0)) return false;
    flux__widened_strides(&o[0], a);
    flux__widened_strides(&o[1], b);
    p->g.a_row = a[0], p->g.a_col = a[1], p->g.b_row = b[0], p->g.b_col = b[1];
    flux__gemm_plan_for(&plan, false, &p->g);
    p->g.inner_kernel = flux__gemm_by_inner(&plan, &p->g);
    h.each = flux__gemm_up((h.n + parts - 1) / parts, 16);
    flux__parallel((h.n + h.each - 1) / h.each, flux__half_part, &h);
    return true;
}

#if FLUX__WINOGRAD || FLUX__AMX
/* The maps of B's rows, along k, and of its columns, whether it is gathered or not. */
static void flux__maps_of_b(const flux__products *p, flux__axes *map) {
    const flux__axes k = { 1, { p->g.k }, { p->b.row } }, columns = { 1, { p->g.n }, { p->b.col } };
    const bool gathered = p->b.o.gather;
    map[0] = gathered ? p->b.map[0] : k, map[1] = gathered ? p->b.map[1] : columns;
}
#endif

#if FLUX__WINOGRAD
/* The steps of a convolution's kernel, from tap to tap, channel to channel and column to column.
   Other orders of its elements are put in order in a copy, which is returned. */
static void *flux__winograd_kernel(const flux__products *p, flux__winograd *w) {
    const flux__axes *map = p->b.o.gather ? p->b.map : NULL;
    const void *at = flux__matrix_at(p->job.k, &p->b, 0);
    w->k = (const float *)at;
    w->k_tap = p->g.b_row, w->k_channel = 9 * w->k_tap, w->k_column = p->g.b_col;
    if (!map) return NULL;
    w->k_tap = map[0].step[0], w->k_channel = map[0].step[1], w->k_column = map[1].step[0];
    if (map[0].nd == 2 && map[0].dim[0] == 9 && map[1].nd == 1) return NULL;
    w->failed = !flux__gather_now(&at, &map, false, p->g.n, p->g.k, &w->k_column, &w->k_tap, 1);
    w->k = (const float *)at, w->k_channel = 9;
    return w->failed ? NULL : (void *)(uintptr_t)at;
}

/* Finds a planned convolution's numbers of its kernel, if they are kept from call to call. */
static void flux__winograd_kept(flux__products *p, flux__winograd *w) {
    const flux__kernel *k = p->job.k;
    const int64_t what[16] = { 'w', w->set->columns, w->flip, w->channels, w->columns, w->some,
                               w->k_tap, w->k_channel, w->k_column, k->operand[1].offset };
    if (!((const flux__cpu *)k->ready)->keeps[1] || k->operand[1].dtype != FLUX_F32) return;
    p->copy[1] = flux__kept_find(p->job.run, k, 1, what, flux__winograd_bytes(w), &p->kept[1]);
    w->u = p->copy[1] ? (float *)p->copy[1]->ptr : NULL;
    w->known = w->u && !p->kept[1];
}

/* Whether a product is a convolution that flux__mark_windows has marked and cpu/winograd.h
   computes, which *w describes then. */
static bool flux__by_winograd(const flux__products *p, flux__winograd *w) {
    const flux__square_windows mark = flux__product_mark(p->job.run, p->job.k);
    if (mark.size != 3 || mark.stride > 1 || !mark.forward || p->f64 || p->g.tiles) return false;
    memset(w, 0, sizeof *w);
    w->flip = mark.flipped, w->wide = mark.wide, w->high = mark.high;
    w->channels = p->g.k / 9, w->columns = p->g.n, w->samples = p->batches;
    return flux__winograd_fits(w);
}

/* Whether a planned convolution's images can be padded row by row; fills *rows. */
static bool flux__winograd_pads(const flux__products *p, const flux__winograd *w,
                                flux__padded_rows *rows) {
    const int64_t at = w->x - (const float *)(const void *)p->a.at;
    return w->direct && !flux__pads_halves(p) &&
           flux__find_padded_rows(p->pad, at + (w->flip ? 2 * (w->tap + w->tap_down) : 0), rows) &&
           w->down == rows->pitch && w->channel == rows->slice &&
           (w->samples == 1 || w->sample == w->channels * rows->slice);
}

/* Runs such a product. False, and nothing is done: it is another one, or better left as one. */
static bool flux__run_winograd(flux__products *p) {
    const flux__kernel *k = p->job.k;
    flux__winograd w;
    if (!flux__by_winograd(p, &w)) return false;
    w.job = &p->job;
    const flux__axes plain[2] = { { 1, { p->g.m }, { p->a.row } },
                                  { 1, { p->g.k }, { p->a.col } } },
                     *map = p->a.o.gather ? p->a.map : plain;
    w.x = (const float *)flux__matrix_at(k, &p->a, 0);
    if (w.samples > 1) w.sample = (const float *)flux__matrix_at(k, &p->a, 1) - w.x;
    w.along = flux__axes_at(&map[0], 1), w.down = flux__axes_at(&map[0], w.wide);
    w.tap = flux__axes_at(&map[1], 1), w.tap_down = flux__axes_at(&map[1], 3);
    w.channel = flux__axes_at(&map[1], 9);
    flux__padded_rows rows;
    flux__winograd_plan(&w);
    if (p->pad && flux__winograd_pads(p, &w, &rows)) w.pad = &rows;
    else if (p->pad) {
        if (!flux__products_pad(p)) return true;
        w.x = (const float *)flux__matrix_at(k, &p->a, 0);
        flux__winograd_plan(&w);
    }
    void *copy = flux__winograd_kernel(p, &w);
    if (!w.failed) {
        if (!copy) flux__winograd_kept(p, &w);
        flux__winograd_run(&w);
    }
    flux__scratch_done(copy);
    p->job.failed = w.failed;
    return true;
}

/* Runs the product that is the gradient of a convolution by its weight, see winograd_gradient.h.
   False, and nothing is done: it is another product, or better left as one. */
static bool flux__run_winograd_gradient(flux__products *p) {
    const flux__kernel *k = p->job.k;
    const flux__square_windows mark = flux__product_mark(p->job.run, k);
    flux__winograd_gradient w;
    if (mark.size != 3 || mark.forward || p->f64 || p->g.tiles) return false;
    memset(&w, 0, sizeof w);
    w.flip = mark.flipped, w.wide = mark.wide, w.high = mark.high;
    w.channels = p->g.m / 9, w.columns = p->g.n, w.samples = p->g.k / (w.wide * w.high);
    if (!flux__winograd_pays(w.channels, w.columns, w.wide, w.high, w.samples)) return false;
    if (!flux__products_pad(p)) return true;
    const flux__axes plain[2] = { { 1, { p->g.m }, { p->a.row } },
                                  { 1, { p->g.k }, { p->a.col } } },
                     *map = p->a.o.gather ? p->a.map : plain;
    flux__axes b[2];
    flux__maps_of_b(p, b);
    w.places = &b[0], w.lines = &b[1];
    w.along = flux__axes_at(&map[1], 1), w.down = flux__axes_at(&map[1], w.wide);
    w.sample = flux__axes_at(&map[1], w.wide * w.high);
    w.tap = flux__axes_at(&map[0], 1), w.tap_down = flux__axes_at(&map[0], 3);
    w.channel = flux__axes_at(&map[0], 9);
    w.job = &p->job, w.batches = p->batches;
    w.x = (const float *)flux__matrix_at(k, &p->a, 0);
    w.g = (const float *)flux__matrix_at(k, &p->b, 0);
    if (w.batches > 1) {
        w.x_batch = (const float *)flux__matrix_at(k, &p->a, 1) - w.x;
        w.g_batch = (const float *)flux__matrix_at(k, &p->b, 1) - w.g;
    }
    flux__winograd_gradient_plan(&w);
    flux__winograd_gradient_run(&w);
    p->job.failed = flux__atomic_load32(&w.failed);
    return true;
}
#else
#  define flux__run_winograd(p) false
#  define flux__run_winograd_gradient(p) false
#endif

/* Describes one side of an operand, n elements long, for flux__kept_find: `most` pairs of a length
   and a step. False: it has more. */
static bool flux__kept_side(const flux__axes *map, int64_t n, int64_t step, int most,
                            int64_t *what) {
    if (map && map->nd > most) return false;
    what[0] = n, what[1] = step;
    for (int d = 0; map && d < map->nd; d++)
        what[2 * d] = map->dim[d], what[2 * d + 1] = map->step[d];
    return true;
}

/* Finds the panels of operand i (0: A, 1: B) that are kept from call to call, or are to be from now
   on. False: there are none. */
static bool flux__find_panels(flux__products *p, int i) {
    const flux__kernel *k = p->job.k;
    const flux__axes *map = i ? p->g.b_map : p->g.a_map;
    const int64_t m = i ? p->g.n : p->g.m, size = p->f64 ? 8 : 4;
    const int lanes = flux__gemm_kernels(p->f64, false)->lanes;
    int64_t what[16] = { 'p', size, lanes, m, p->g.k, k->operand[i].offset };
    if (!flux__kept_side(map ? map + i : NULL, m, i ? p->g.b_col : p->g.a_row, 2, what + 6) ||
        !flux__kept_side(map ? map + !i : NULL, p->g.k, i ? p->g.b_row : p->g.a_col, 3, what + 10))
        return false;
    p->copy[i] = flux__kept_find(p->job.run, k, i, what, flux__panels_bytes(m, p->g.k, size),
                                 &p->kept[i]);
    p->g.panels = p->copy[i] ? p->copy[i]->ptr : NULL;
    p->g.panels_b = i == 1, p->g.fill = p->kept[i] != NULL;
    return p->g.panels != NULL;
}

/* Has a product read its A from the panels that products of this plan share: from those that are
   kept, which the first of them finds and the run holds, or from scratch memory, which it fills. */
static void flux__shared_panels(flux__products *p) {
    const flux__cpu *c = (const flux__cpu *)p->job.k->ready;
    flux__buffer **held = &p->job.run->held[c->panels.group];
    p->g.backwards = c->panels.backwards;
    if (c->panels.fill) {
        flux__buffer_release(*held);
        *held = NULL;
        if (c->panels_kept[0] && flux__find_panels(p, 0)) {
            *held = p->copy[0];
            flux__atomic_add(&p->copy[0]->refs, 1);
            return;
        }
    }
    p->g.panels = *held ? (*held)->ptr : (char *)p->job.k->scratch_at + c->panels.at;
    p->g.fill = c->panels.fill;
}

#if FLUX__AMX
/* Has a product by tiles read its A from panels that are kept from call to call, if there are
   such. */
static void flux__amx_kept(flux__products *p) {
    const flux__kernel *k = p->job.k;
    const int64_t what[16] = { 't', p->g.m, p->g.k, p->g.a_row, p->g.a_col, k->operand[0].offset };
    if (!((const flux__cpu *)k->ready)->panels_kept[0]) return;
    p->copy[0] = flux__kept_find(p->job.run, k, 0, what, flux__amx_bytes(p->g.m, p->g.k),
                                 &p->kept[0]);
    p->g.panels = p->copy[0] ? p->copy[0]->ptr : NULL;
    p->g.fill = p->kept[0] != NULL;
}
#else
#  define flux__amx_kept(p) ((void)(p))
#endif

/* Has a product of one batch read an operand from panels, if there are such. A single column or row
   reads the other operand as fast where it lies. */
static void flux__products_panels(flux__products *p) {
    const flux__cpu *c = (const flux__cpu *)p->job.k->ready;
    if (p->g.tiles) flux__amx_kept(p);
    else if (c->panels.used) flux__shared_panels(p);
    else if (c->panels_kept[0] && p->g.n > 1 && flux__find_panels(p, 0)) return;
    else if (c->panels_kept[1] && p->g.m > 1 &&
             (p->g.inner_kernel ? p->g.inner_kernel : flux__products_by_inner(p)) == 1)
        flux__find_panels(p, 1);
}

/* Joins samples, and chooses the kernel of inner products. True: they are joined. */
static bool flux__products_choose(flux__products *p) {
    const bool joined = flux__samples_join(p);
    p->g.batches = p->batches;
    if (joined) p->g.inner_kernel = 1;
    else if (!p->g.tiles && (p->batches > 1 || p->g.a_map || p->g.b_map))
        p->g.inner_kernel = flux__products_by_inner(p);
    return joined;
}

/* Multiplies, once the operands are ready: many batches are shared out to threads whole, few ones
   in blocks. */
static void flux__products_multiply(flux__products *p) {
    const bool joined = flux__products_choose(p);
    const int64_t batches = p->batches, threads = flux__num_threads();
    /* a task of flux__run_depthwise pads one slice for a batch */
    const bool later = p->pad && !joined && flux__pads_channels(p) && (p->pads == 1 || p->g.n > 1);
    if (!later && !flux__products_pad(p)) return;
    if (!joined && (flux__run_depthwise(p) || flux__run_direct(p))) return;
    if ((batches == 1 || (threads > 1 && batches < 2 * threads)) && !flux__products_pad(p)) return;
    if (batches == 1) flux__products_panels(p);
    void *transposed = batches > 1 ? flux__transpose_shared(p) : NULL;
    if (batches >= 2 * threads) flux__parallel(batches, flux__product_task, p);
    else for (int64_t i = 0; i < batches; i++) flux__product_task(p, i);
    flux__scratch_done(transposed);
}

/* Makes the operands of a product's kernel ready. False: out of memory. */
static bool flux__products_operands(flux__products *p) {
    const flux__kernel *k = p->job.k;
    char *scratch = (char *)k->scratch_at;           /* NULL: neither needs any */
    bool ok = flux__matrix_operand(p->job.run, &k->operand[0], 0, &p->g, scratch, &p->a);
    if (k->operand[0].padding && !p->a.padded)
        p->padding = flux__padding_job(p->job.run, &k->operand[0]), p->pad = &p->padding;
    if (scratch) scratch += flux__widened_bytes(&k->operand[0]);
    p->b.words = p->b.padded = NULL;
    ok = ok && flux__matrix_operand(p->job.run, &k->operand[1], 1, &p->g, scratch, &p->b);
    p->g.a_row = p->a.row, p->g.a_col = p->a.col, p->g.b_row = p->b.row, p->g.b_col = p->b.col;
    if (p->a.o.gather) p->g.a_map = p->a.map;
    if (p->b.o.gather) p->g.b_map = p->b.map;
    return ok;
}

#if FLUX__AMX
/* Whether the images of a convolution by taps can be padded row by row; if so, *w reads *rows. */
static bool flux__conv_pads(const flux__products *p, flux__conv_amx *w, flux__padded_rows *rows) {
    const int64_t back = w->flipped ? -1 : 1, ends = w->flipped ? w->size - 1 : 0,
                  at = w->x - (const uint16_t *)(const void *)p->a.at;
    if (w->tap != back || w->along != w->stride ||
        !flux__find_padded_rows(p->pad, at + ends * (w->tap + w->tap_down), rows) ||
        w->tap_down != back * rows->pitch || w->down != w->stride * rows->pitch ||
        (w->channels > 1 && w->channel != rows->slice) ||
        (w->samples > 1 && w->sample != w->channels * rows->slice)) return false;
    w->pad = rows, w->channel = rows->channel;
    return true;
}

/* Describes a convolution that goes by taps, of the product's operands. */
static void flux__conv_of(const flux__products *p, const flux__square_windows *mark,
                          flux__conv_amx *w) {
    const flux__axes rows = { 1, { p->g.m }, { p->a.row } }, ks = { 1, { p->g.k }, { p->a.col } },
                     *m = p->a.o.gather ? &p->a.map[0] : &rows,
                     *k = p->a.o.gather ? &p->a.map[1] : &ks;
    memset(w, 0, sizeof *w);
    w->job = &p->job, w->size = mark->size, w->stride = mark->stride, w->flipped = mark->flipped;
    w->wide = mark->wide, w->high = mark->high, w->channels = p->g.k / (w->size * w->size);
    w->columns = p->g.n, w->samples = p->batches;
    w->along = flux__axes_at(m, 1), w->down = flux__axes_at(m, w->wide);
    w->tap = flux__axes_at(k, 1), w->tap_down = flux__axes_at(k, w->size);
    w->channel = flux__axes_at(k, w->size * w->size);
    w->x = (const uint16_t *)flux__matrix_at(p->job.k, &p->a, 0);
    if (w->samples > 1) w->sample = (const uint16_t *)flux__matrix_at(p->job.k, &p->a, 1) - w->x;
    if (p->bare) w->c = (float *)p->job.run->ptr[p->job.k->value[0].out];
}

/* Finds the memory of a convolution's weight, in the order of steps, that is kept from call to
   call: it is to be filled if p->kept[1] says so. NULL: there is none. */
static char *flux__conv_weight_kept(flux__products *p, const flux__conv_amx *c,
                                    const flux__conv_weight *w, int64_t bytes) {
    const flux__kernel *k = p->job.k;
    int64_t what[16] = { 'c', c->size, c->flipped, k->operand[1].offset };
    if (!((const flux__cpu *)k->ready)->keeps[1] ||
        !flux__kept_side(w->ks, w->k, 0, 3, what + 4) ||
        !flux__kept_side(w->lines, w->columns, 0, 3, what + 10)) return NULL;
    p->copy[1] = flux__kept_find(p->job.run, k, 1, what, bytes, &p->kept[1]);
    return p->copy[1] ? (char *)p->copy[1]->ptr : NULL;
}

/* The weight of a convolution in panels of 32 columns, in the order of steps: the memory kept of it
   or, as *scratch, memory that the caller gives back. NULL: out of memory. */
static char *flux__conv_weight_of(flux__products *p, const flux__conv_amx *c, void **scratch) {
    flux__axes map[2];
    flux__maps_of_b(p, map);
    flux__conv_weight w = { (const uint16_t *)flux__matrix_at(p->job.k, &p->b, 0), &map[0], &map[1],
                            p->g.k, p->g.n, c->steps, NULL, NULL, 0 };
    const int64_t bytes = (w.columns + 31) / 32 * FLUX__AMX_PANEL(w.steps);
    w.to = flux__conv_weight_kept(p, c, &w, bytes);
    if (w.to && !p->kept[1]) return w.to;
    if (!w.to) *scratch = w.to = (char *)flux__scratch((size_t)bytes);
    int32_t *order = (int32_t *)flux__scratch((size_t)w.steps * 32 * sizeof *order);
    if (order) flux__conv_order(c, order);
    w.order = order;
    if (w.to && order) flux__parallel((w.columns + 31) / 32, flux__conv_weight_part, &w);
    flux__scratch_done(order);
    return !order || flux__atomic_load32(&w.failed) ? NULL : w.to;
}

/* Computes a product of windows that goes by taps. False, and nothing is done: it is another one.
   *scratch: memory to be given back, or NULL. */
static bool flux__products_by_taps(flux__products *p, void **scratch) {
    flux__conv_amx w;
    const flux__square_windows mark = flux__product_mark(p->job.run, p->job.k);
    if (!p->g.tiles || !mark.forward || !flux__conv_by_taps(mark.size, mark.wide)) return false;
    flux__padded_rows rows;
    flux__conv_of(p, &mark, &w);
    if (p->pad && !flux__conv_pads(p, &w, &rows)) {
        if (!flux__products_pad(p)) return true;
        w.x = (const uint16_t *)flux__matrix_at(p->job.k, &p->a, 0);
    }
    flux__conv_arrange(&w);
    if ((w.weight = flux__conv_weight_of(p, &w, scratch)) != NULL) flux__conv_amx_run(&w);
    p->failed |= !w.weight || flux__atomic_load32(&w.failed);
    return true;
}

/* Computes a product that is the gradient of a convolution by its weight from the image. False, and
   nothing is done: it is none, or the image is not finite. */
static bool flux__run_weight_gradient(flux__products *p) {
    flux__axes map[2];
    flux__weight_gradient w;
    memset(&w, 0, sizeof w);
    flux__maps_of_b(p, map);
    w.columns = p->g.n, w.places = &map[0], w.lines = &map[1];
    const flux__square_windows mark = flux__product_mark(p->job.run, p->job.k);
    if (!p->g.tiles || !p->a.o.gather || (mark.size && mark.forward) ||
        !flux__weight_gradient_of(&w, &p->a.map[0], &p->a.map[1])) return false;
    if (!flux__products_pad(p)) return true;
    for (int64_t i = 0; i < p->batches && !w.failed; i++) {
        flux__job job = p->job;
        job.batch = i, w.job = &job;
        w.x = (const uint16_t *)flux__matrix_at(p->job.k, &p->a, i) + w.corner;
        w.y = (const uint16_t *)flux__matrix_at(p->job.k, &p->b, i);
        if (p->bare) w.c = (float *)p->job.run->ptr[p->job.k->value[0].out] + i * p->g.m * p->g.n;
        if (!flux__weight_gradient_run(&w)) return false;
    }
    p->failed |= w.failed;
    return true;
}
#else
#  define flux__products_by_taps(p, scratch) ((void)(scratch), false)
#  define flux__run_weight_gradient(p) ((void)(p), false)
#endif

/* Describes a product's kernel, but for its operands. */
static void flux__products_start(flux__products *p, flux__run *run, flux__kernel *k) {
    memset(p, 0, sizeof *p);
    p->batches = 1;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) p->batches *= k->full[d];
    p->f64 = k->operand[0].dtype == FLUX_F64, p->bare = flux__bare_product(k);
    p->job.run = run, p->job.k = k;
    p->g.tiles = flux__by_tiles(k), p->g.pairs = flux__by_pairs(run, k);
    p->g.m = k->mnk[0], p->g.n = k->mnk[1], p->g.k = p->g.pairs ? (k->mnk[2] + 1) / 2 : k->mnk[2],
        p->g.ldc = p->g.m;
    if (!p->bare) p->g.epilogue = flux__epilogue;
}

/* Runs a product's kernel. Returns 0, or -1 with an error recorded. */
static int flux__run_product(flux__run *run, flux__kernel *k) {
    flux__products p;
    flux__products_start(&p, run, k);
    if (k->mnk[0] * k->mnk[1] * p.batches == 0) return 0;
    if (!flux__run_half_few(&p) && !flux__halves_apart(&p)) {
        void *scratch = NULL;
        if (!flux__products_operands(&p)) p.failed = 1;
        else if (!flux__products_by_taps(&p, &scratch) && !flux__run_winograd(&p) &&
                 !flux__run_winograd_gradient(&p) && !flux__run_weight_gradient(&p))
            flux__products_multiply(&p);
        flux__scratch_done(scratch);
        flux__scratch_done(p.a.words);
        flux__scratch_done(p.a.padded);
        flux__scratch_done(p.b.words);
    }
    if (p.failed) p.job.failed = 1;
    for (int i = 0; i < 2; i++) {
        if (p.kept[i]) flux__kept_done(run, k, i, p.kept[i], !p.job.failed);
        flux__buffer_release(p.copy[i]);
    }
    return flux__job_ok(&p.job) ? 0 : -1;
}

FLUX__END_HOT

#endif /* FLUX__CPU_HALF_PRODUCTS_H */
