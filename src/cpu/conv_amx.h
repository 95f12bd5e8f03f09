#ifndef FLUX__CPU_CONV_AMX_H
#define FLUX__CPU_CONV_AMX_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "casts.h"
#include "gemm_pack.h"
#include "gemm_amx.h"
#include "backend.h"
#include "run.h"
#include "products.h"

/* ---------------------------------------------------------------------- cpu/conv_amx.h
   Convolutions of bf16 by square windows a step apart, by AMX's tiles, without
   collecting windows. Of an image each position's channels are put side by side,
   32 of them in 64 bytes; then a tap's positions are the image from some place
   on, and a tile loads 16 positions that follow each other. Positions go over
   the ends of the image's rows: what is computed there is left out when results,
   position by position, are transposed to columns.

   Invariant: the sum of an element goes tap by tap, over the channels of each.
   The product of such windows goes in this order whether they are read so,
   collected or stored, by its shape alone (flux__conv_by_taps): so all of these
   give the same bits.

   Rejected: pairs of channels interleaved to planes of words, so that nothing is
   transposed: a tile's rows are then in as many planes and begin anywhere in a
   cache line, and products ran at 0.6 to 0.75 of the pace. Unmeasured: rows of
   positions by themselves, whose last tile would not be filled (56 are 32 and
   24), and images made ready for all samples at first, which would leave the
   second-level cache. */

FLUX__BEGIN_HOT

#if FLUX__AMX

enum {
    FLUX__CONV_TASK = 2048,               /* about so many positions are computed in a task, */
    FLUX__CONV_PIECE = 240                /* and so many finished at a time */
};

typedef struct flux__conv_amx {
    const flux__job *job;
    const uint16_t *x;                    /* the image's element of position 0 and the first tap,
                                             and steps in elements: */
    int64_t tap, tap_down, down, channel, sample;
    int64_t size;                         /* taps of a window's row, and of its column */
    int64_t wide, high, channels, columns, samples;
    const char *weight;                   /* panels of 32 columns, tap by tap */
    int64_t low;                          /* from the first tap to the one that lies first */
    int64_t used;                         /* positions of the image */
    int64_t plane;                        /* bytes of all positions, 32 channels each */
    int64_t steps;                        /* of k: 32 channels of a tap each */
    int64_t rows, piece;                  /* rows of positions in a task, and finished together */
    int failed;
} flux__conv_amx;

/* One sample: its planes, and where each step of k begins in them, in bytes. */
typedef struct flux__conv_image {
    const flux__conv_amx *all;
    int64_t sample;
    char *planes;
    int64_t *at;
} flux__conv_image;

/* Whether a product of windows that flux__mark_windows has marked, of `size` taps a row and `wide`
   windows a row, goes tap by tap: steps of k are whole channels, and rows are not much shorter than
   with their windows' ends. */
static bool flux__conv_by_taps(int64_t size, int64_t wide, int64_t k) {
    return size && k % (size * size * 32) == 0 && wide >= 4 * size;
}

/* ---- the weight */

/* A weight whose columns, of each of `taps` taps the channels, are packed in panels of 32, or
   copied: `to` has k elements a column. ks, lines: maps of the product's k and of its columns. */
typedef struct flux__conv_weight {
    const uint16_t *x;
    const flux__axes *ks, *lines;
    int64_t taps, k, columns;
    bool panels;
    char *to;
    int failed;
} flux__conv_weight;
/* Bytes of a panel of k elements a column. */
static int64_t flux__conv_panel(int64_t k) { return FLUX__AMX_PANEL(k / 32); }

/* Puts a panel whose lines go channel by channel, of each all taps, in the order tap by tap. A word
   has two neighbours along k, of 32 columns. */
static FLUX__AMX_FN void flux__conv_tap_order(const char *x, int64_t taps, int64_t channels,
                                              char *to) {
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < channels; c += 2, to += FLUX__AMX_LINE) {
            const int64_t first = c * taps + t, second = first + taps;
            const uint32_t odd = first % 2 ? 16 : 0, other = second % 2 ? 16 : 0;
            for (int64_t i = 0; i < FLUX__AMX_LINE; i += 64) {
                flux__amx_words a, b;
                memcpy(&a, x + first / 2 * FLUX__AMX_LINE + i, sizeof a);
                memcpy(&b, x + second / 2 * FLUX__AMX_LINE + i, sizeof b);
                a = (a >> odd & 0xffffu) | b >> other << 16;
                memcpy(to + i, &a, sizeof a);
            }
        }
}

/* Packs or copies 32 columns. */
static void flux__conv_weight_part(void *ctx, int64_t part) {
    flux__conv_weight *w = (flux__conv_weight *)ctx;
    const int64_t first = part * 32, n = flux__gemm_min(w->columns - first, 32),
                  bytes = flux__conv_panel(w->k);
    char *memory = (char *)flux__scratch((size_t)bytes * (w->panels ? 2 : 3)),
         *plain = memory + bytes, *panel = w->panels ? w->to + part * bytes : plain + bytes;
    if (!memory) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    flux__amx_im2col(w->x, w->ks, 0, w->k, w->lines, first, n, (uint16_t *)(void *)memory, w->k);
    flux__amx_pack((const uint16_t *)(void *)memory, w->k, 1, n, w->k, plain);
    flux__conv_tap_order(plain, w->taps, w->k / w->taps, panel);
    for (int64_t s = 0; s < w->k / 32 && !w->panels; s++)
        for (int64_t i = 0; i < n; i += 16)
            flux__amx_turn(panel + FLUX__AMX_PANEL(s) + 4 * i, FLUX__AMX_LINE, 16,
                           w->to + (first + i) * w->k * 2 + s * 64, w->k * 2,
                           flux__gemm_min(n - i, 16));
    flux__scratch_done(memory);
}

/* ---- the image */

/* A sample's positions are made ready in so many parts, of so many positions each. */
static int64_t flux__conv_shares(const flux__conv_amx *w) {
    return flux__gemm_up(w->used, FLUX__CONV_TASK) / FLUX__CONV_TASK;
}
static int64_t flux__conv_share(const flux__conv_amx *w) {
    return (w->used + flux__conv_shares(w) - 1) / flux__conv_shares(w);
}

/* Puts 32 channels of some of a sample's positions side by side. */
static void flux__conv_positions(void *ctx, int64_t part) {
    const flux__conv_image *m = (const flux__conv_image *)ctx;
    const flux__conv_amx *w = m->all;
    const int64_t chunks = w->channels / 32, c = part % chunks,
        each = flux__conv_share(w), first = part / chunks * each,
        end = flux__gemm_min(w->used, first + each);
    const uint16_t *x = w->x + m->sample * w->sample + 32 * c * w->channel + w->low;
    for (int64_t i = first; i < end; i += 32) {
        if (end - i < 32 && end - first >= 32) i = end - 32;         /* whole lines are faster */
        flux__amx_lines(x + i, 1, w->channel, flux__gemm_min(end - i, 32), 32,
                        m->planes + c * w->plane + i * 64, 64);
    }
}

/* ---- results */

/* Results, position by position, a line each of 32 columns, of which some have been finished: the
   line of the next one that counts, and its place in its row of positions. */
typedef struct flux__conv_results { const char *line; int64_t x; } flux__conv_results;

/* Finds the next n results; those behind them, up to `all`, are the last one. Lines have `bytes`
   bytes. */
static void flux__conv_next(const flux__conv_amx *w, flux__conv_results *r, int64_t n, int64_t all,
                            int64_t bytes, const char **from) {
    int64_t i = 0;
    while (i < n) {
        const int64_t left = w->wide - r->x, some = n - i < left ? n - i : left, end = i + some;
        for (; i < end; r->line += bytes) from[i++] = r->line;
        r->x += some;
        if (some == left) r->x = 0, r->line += (w->down - w->wide) * bytes;
    }
    for (; i < all; i++) from[i] = from[n - 1];
}
/* Transposes 16 x 16 words, which are `at` bytes behind from[0] ... from[15], in a. */
#define FLUX__CONV_LOAD(i) memcpy(&a[i], from[i] + at, 64);
#define FLUX__CONV_TRANSPOSE(a, b) FLUX__AMX_SIXTEEN(FLUX__CONV_LOAD) FLUX__AMX_TRANSPOSE(a, b)

/* Transposes the next `count` results, of f32, to n columns, ld elements apart. Of each column up
   to 15 more elements are written. */
static FLUX__AMX_FN void flux__conv_transpose(const flux__conv_amx *w, flux__conv_results *r,
                                              int64_t count, int64_t n, float *c, int64_t ld) {
    flux__amx_words a[16], b[16];
    const char *from[16];
    for (int64_t q = 0; q < count; q += 16) {
        flux__conv_next(w, r, count - q < 16 ? count - q : 16, 16, 128, from);
        for (int64_t j = 0, at = 0; j < n; j += 16, at += 64) {
            float *to = c + j * ld + q;
#define FLUX__CONV_STORE(i) memcpy(to + i * ld, &a[i], 64);
            FLUX__CONV_TRANSPOSE(a, b)
            if (n - j >= 16) { FLUX__AMX_SIXTEEN(FLUX__CONV_STORE) }
            else for (int64_t i = 0; i < n - j; i++) FLUX__CONV_STORE(i)
        }
    }
}

/* Transposes the next `count` results, of a half format, to n columns, ld elements apart. */
static FLUX__AMX_FN void flux__conv_transpose_halves(const flux__conv_amx *w,
                                                     flux__conv_results *r, int64_t count,
                                                     int64_t n, uint16_t *c, int64_t ld) {
    flux__amx_words a[16], b[16], low[16];
    flux__amx_halves y[2];
    const char *all[32], **from = all;
    const int64_t at = 0;
    for (int64_t q = 0; q < count; q += 32) {
        const int64_t some = count - q < 32 ? count - q : 32;
        flux__conv_next(w, r, some, 32, 64, all);
        FLUX__CONV_TRANSPOSE(a, b)
        memcpy(low, a, sizeof a);
        from = all + 16;
        FLUX__CONV_TRANSPOSE(a, b)
        from = all;
        for (int64_t j = 0; j < n; j += 2) {
            const flux__amx_halves x0 = (flux__amx_halves)low[j / 2],
                                   x1 = (flux__amx_halves)a[j / 2];
            FLUX__SHUFFLE(y[0], x0, x1, flux__amx_halves, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                          24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58,
                          60, 62)
            FLUX__SHUFFLE(y[1], x0, x1, flux__amx_halves, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23,
                          25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59,
                          61, 63)
            for (int64_t i = 0; i < 2 && j + i < n; i++)
                if (some == 32) memcpy(c + (j + i) * ld + q, &y[i], 64);
                else memcpy(c + (j + i) * ld + q, &y[i], (size_t)some * 2);
        }
    }
}

/* Whether the program does nothing but store the product in a half format. */
static bool flux__stores_half(const flux__kernel *k) {
    const flux__chain *c = &((const flux__cpu *)k->ready)->chain;
    return c->last >= 0 && c->steps == 0;
}

/* Finishes `rows` rows of results of n columns from column j on; the first one is row i of the
   product. results: lines of 32 floats; memory: for as many. */
static void flux__conv_finish(const flux__conv_amx *w, flux__job *job, int worker, int64_t i,
                              int64_t j, int64_t rows, int64_t n, const float *results,
                              float *memory) {
    const flux__value *v = &job->k->value[job->k->nvalue - 1];
    const int64_t count = rows * w->wide, ld = flux__gemm_up(count, 16), m = job->k->mnk[0];
    flux__conv_results r = { (const char *)results, 0 };
    if (!flux__stores_half(job->k)) {
        flux__conv_transpose(w, &r, count, n, memory, ld);
        flux__epilogue(job, worker, i, j, count, n, memory, ld);
        return;
    }
    flux__store(v->dtype, memory, 1, FLUX__F32C, results, ((rows - 1) * w->down + w->wide) * 32);
    r.line = (const char *)memory;
    flux__conv_transpose_halves(w, &r, count, n, (uint16_t *)job->run->ptr[v->out] + job->first +
                                (job->batch * job->k->mnk[1] + j) * m + i, m);
}

/* Computes some rows of positions of a sample, of all columns: of 32 columns all positions, before
   any is finished. (Where tiles and vectors took turns after less, tiles were slower: their
   operands had left the first-level cache.) */
static void flux__conv_rows(void *ctx, int worker, int64_t number) {
    const flux__conv_image *m = (const flux__conv_image *)ctx;
    const flux__conv_amx *w = m->all;
    const int64_t y0 = number * w->rows, rows = flux__gemm_min(w->rows, w->high - y0),
        mb = (rows - 1) * w->down + w->wide, panel = flux__conv_panel(w->steps * 32),
        lines = (rows + w->piece) * w->down + 16,
        /* half a panel of 36 steps fits into the first-level cache; a longer one fares no better */
        some = w->steps > 18 && w->steps <= 36 ? (w->steps + 1) / 2 : w->steps;
    float *results = (float *)flux__scratch((size_t)lines * 128),
          *memory = results + rows * w->down * 32;
    flux__amx_shape shape = { 0, 0 };
    flux__job job = *w->job;
    job.batch = m->sample;
    for (int64_t j = 0; j < w->columns && results; j += 32) {
        const int64_t n = flux__gemm_min(w->columns - j, 32);
        for (int64_t s = 0; s < w->steps; s += some) {
            const flux__amx_columns x = { m->planes + y0 * w->down * 64, 64, m->at + s, NULL };
            flux__amx_multiply(&shape, w->weight + j / 32 * panel + FLUX__AMX_PANEL(s), n, &x, mb,
                               flux__gemm_min(w->steps - s, some), (char *)results, 128, s > 0);
        }
        for (int64_t y = 0; y < rows; y += w->piece)
            flux__conv_finish(w, &job, worker, (y0 + y) * w->wide, j,
                              flux__gemm_min(w->piece, rows - y), n, results + y * w->down * 32,
                              memory);
    }
    FLUX__AMX_RELEASE()
    flux__scratch_done(results);
    if (!results || flux__atomic_load32(&job.failed))
        flux__atomic_store32((int *)(uintptr_t)&w->failed, 1);
}

/* Computes one sample. */
static void flux__conv_sample(void *ctx, int64_t sample) {
    flux__conv_amx *w = (flux__conv_amx *)ctx;
    const int64_t chunks = w->channels / 32, table = flux__gemm_up(w->steps * 8, 64);
    flux__conv_image m = { w, sample, NULL, NULL };
    m.at = (int64_t *)flux__scratch((size_t)(table + chunks * w->plane));
    if (!m.at) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    m.planes = (char *)m.at + table;
    for (int64_t t = 0, s = 0; t < w->size * w->size; t++)
        for (int64_t i = 0; i < chunks; i++)
            m.at[s++] = 64 * (t % w->size * w->tap + t / w->size * w->tap_down - w->low) +
                        i * w->plane;
    flux__parallel(chunks * flux__conv_shares(w), flux__conv_positions, &m);
    flux__parallel_workers((w->high + w->rows - 1) / w->rows, flux__conv_rows, &m);
    flux__scratch_done(m.at);
}

/* Whether a convolution that goes by taps, whose places and steps are given, is computed from its
   image: a row's positions and a row's taps lie side by side. */
static bool flux__conv_amx_wants(const flux__conv_amx *w) {
    const int64_t sideways = w->tap < 0 ? -w->tap : w->tap,
                  downward = w->tap_down < 0 ? -w->tap_down : w->tap_down;
    return sideways == 1 && downward == w->down && w->down >= w->wide + w->size - 1 &&
           w->down <= 2 * w->wide;
}

/* Computes such a convolution; its weight is given, too. */
static void flux__conv_amx_run(flux__conv_amx *w) {
    const int64_t ends = w->size - 1, threads = flux__num_threads();
    w->low = ends * (flux__gemm_min(w->tap, 0) + flux__gemm_min(w->tap_down, 0));
    w->steps = w->size * w->size * w->channels / 32;
    w->used = (w->high + ends - 1) * w->down + w->wide + ends;
    w->plane = (flux__gemm_up(w->used, 32) | 16) * 64;     /* not a multiple of a page */
    w->rows = flux__gemm_min(FLUX__CONV_TASK / w->down + 1, w->high);
    if (w->samples < 2 * threads && threads > 1)
        while (w->rows > 1 && (w->high + w->rows - 1) / w->rows < 2 * threads)
            w->rows = (w->rows + 1) / 2;
    w->piece = flux__gemm_min(w->rows, FLUX__CONV_PIECE / w->down + !(FLUX__CONV_PIECE / w->down));
    if (w->samples >= 2 * threads) flux__parallel(w->samples, flux__conv_sample, w);
    else for (int64_t i = 0; i < w->samples; i++) flux__conv_sample(w, i);
}
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_CONV_AMX_H */
