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
#include "gemm_tasks.h" /* flux__gemm_split */
#include "gemm_amx.h"
#include "run.h"
#include "products.h"
#include "chains.h"
#include "padding.h"

/* ---------------------------------------------------------------------- cpu/conv_amx.h
   Convolutions of bf16 by square windows by AMX's tiles, without collecting
   windows. What tiles load are lines of 64 bytes, 16 that follow each other. Of
   an image of many channels a line has 32 channels of a position (a place in the
   image), and a tap's lines are those from some position on; of fewer channels
   than 32 a line has a row of a window, all its taps' channels side by side, or 32
   elements of it. Rows of the image, and positions of many channels, that are as
   many apart as windows lie one behind the other. Positions go over the ends of
   the image's rows: what is computed there is left out when results, line by
   line, are transposed to columns.

   Invariant: the sum of an element goes tap by tap over the channels of each, 32
   at a time, or row by row over all of it, filled up with zeros. The product of
   such windows goes in this order whether they are read of an image or were
   stored, by its shape alone (flux__conv_by_taps): so both give the same bits.

   Rejected: pairs of channels interleaved to planes of words, so that nothing is
   transposed: a tile's rows are then in as many planes and begin anywhere in a
   cache line, and products ran at 0.6 to 0.75 of the pace. Lines of a row's taps
   that overlap, of few channels: what is not finite behind a window would spread
   to it through weights of 0. */

FLUX__BEGIN_HOT

#if FLUX__AMX

enum {
    FLUX__CONV_TASK = 2048,               /* about so many positions are computed in a task, */
    FLUX__CONV_PIECE = 240                /* and so many finished at a time */
};
#ifndef FLUX__CONV_BAND                   /* bytes of lines, about, that are made at a time */
#  define FLUX__CONV_BAND (1 << 20)
#endif

typedef struct flux__conv_amx {
    const flux__job *job;
    const uint16_t *x;                    /* the first tap's element of the first window; steps from
                                             there in elements: from window to window and from tap
                                             to tap, in a row and down, by channel, by sample */
    int64_t along, down, tap, tap_down, channel, sample;
    int64_t size, stride;                 /* taps of a window's row, and of its column */
    int64_t wide, high, channels, columns, samples;
    bool flipped;                         /* taps go back as windows go on */
    const flux__padded_rows *pad;         /* NULL, or what pads rows when they are read */
    const char *weight;                   /* panels of 32 columns, in the order of steps */
    float *c;                             /* NULL, or where results are stored as they are */
    int64_t steps;                        /* of k, a line each */
    /* Lines. few: of windows' rows. chunks: how many make a position or a row; pitch: from a row of
       the image to the next one. whole: rows of the image lie as far apart, and are read as one.
       at_once: all of a row that is padded is read, and the next one lies behind it. */
    bool few, whole, at_once;
    int64_t chunks, pitch;
    int64_t band;                         /* rows of windows whose lines are made at a time */
    int64_t tall, plane;                  /* then: rows of the image that lie one behind the other,
                                             bytes of the lines of a chunk */
    int64_t rows, piece;                  /* rows of windows in a task, and finished together */
    int failed;
} flux__conv_amx;

/* A band of a sample: its first row of windows, and how many it has; its lines, and where each step
   of k begins in them, in bytes. */
typedef struct flux__conv_image {
    const flux__conv_amx *all;
    int64_t sample, first, high;
    char *lines;
    int64_t *at;
} flux__conv_image;

/* Whether a product of windows that flux__mark_windows has marked, of `size` taps a row and `wide`
   windows a row, goes tap by tap: rows are not much shorter than with their windows' ends. */
static bool flux__conv_by_taps(int64_t size, int64_t wide) { return size && wide >= 4 * size; }

/* ---- the weight */

/* A weight whose columns are packed in panels of 32, in the order of steps. ks, lines: maps of the
   product's k and of its columns; order: by element of a step the product's, or -1 for zeros. */
typedef struct flux__conv_weight {
    const uint16_t *x;
    const flux__axes *ks, *lines;
    int64_t k, columns, steps;
    const int32_t *order;
    char *to;
    int failed;
} flux__conv_weight;

/* Fills the order of the weight's elements, 32 for each step. The product's k goes channel by
   channel, of each all taps. */
static void flux__conv_order(const flux__conv_amx *w, int32_t *order) {
    const int64_t n = w->size, taps = n * n, row = w->few ? n * w->channels : w->channels;
    for (int64_t step = 0; step < w->steps; step++)
        for (int64_t i = 0; i < 32; i++) {
            const int64_t line = step / w->chunks, at = step % w->chunks * 32 + i,
                          c = w->few ? at % w->channels : at, t = at / w->channels,
                          tap = w->few ? line * n + t : line;
            *order++ = (int32_t)(at >= row ? -1 : c * taps + (w->flipped ? taps - 1 - tap : tap));
        }
}

/* Puts a panel's elements in that order. A word has two neighbours along k, of 32 columns. */
static FLUX__AMX_FN void flux__conv_put_in_order(const char *x, const int32_t *order, int64_t words,
                                                 char *to) {
    for (; words > 0; words--, order += 2, to += FLUX__AMX_LINE)
        for (int64_t i = 0; i < FLUX__AMX_LINE; i += 64) {
            flux__amx_words a, b;
            memset(&a, 0, sizeof a), memset(&b, 0, sizeof b);
            if (order[0] >= 0) memcpy(&a, x + order[0] / 2 * FLUX__AMX_LINE + i, sizeof a);
            if (order[1] >= 0) memcpy(&b, x + order[1] / 2 * FLUX__AMX_LINE + i, sizeof b);
            a = (a >> (order[0] % 2 == 1 ? 16u : 0u) & 0xffffu) |
                b >> (order[1] % 2 == 1 ? 16u : 0u) << 16;
            memcpy(to + i, &a, sizeof a);
        }
}

/* Packs 32 columns. */
static void flux__conv_weight_part(void *ctx, int64_t part) {
    flux__conv_weight *w = (flux__conv_weight *)ctx;
    const int64_t first = part * 32, n = flux__gemm_min(w->columns - first, 32),
                  plain = flux__gemm_up(w->k * 64, 64);
    char *memory = (char *)flux__scratch((size_t)(plain + FLUX__AMX_PANEL((w->k + 31) / 32)));
    if (!memory) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    flux__amx_im2col(w->x, w->ks, 0, w->k, w->lines, first, n, (uint16_t *)(void *)memory, w->k);
    flux__amx_pack((const uint16_t *)(void *)memory, w->k, 1, n, w->k, memory + plain);
    flux__conv_put_in_order(memory + plain, w->order, w->steps * 16,
                            w->to + part * FLUX__AMX_PANEL(w->steps));
    flux__scratch_done(memory);
}

/* ---- the image */

/* How far the i-th position of `n` windows' row or column lies from the first tap of the first
   window: it is a tap of window i / stride, or of the last one. by, tap: from window to window and
   from tap to tap. */
static int64_t flux__conv_place(const flux__conv_amx *w, int64_t i, int64_t n, int64_t by,
                                int64_t tap) {
    const int64_t window = flux__gemm_min(i / w->stride, n - 1), t = i - window * w->stride;
    return window * by + (w->flipped ? w->size - 1 - t : t) * tap;
}

/* Makes lines of 32 channels, or all there are, of n positions, at most 32, of a row of the image,
   from position p on. x: the row's first window's first tap, or what is padded as
   flux__padded_row has it, at the first of the channels. */
static void flux__conv_positions(const flux__conv_amx *w, const uint16_t *x, int64_t channels,
                                 int64_t p, int64_t n, char *to) {
    const int64_t tap = w->flipped ? -w->tap : w->tap;
    if (w->along == w->stride * tap) {
        x += w->pad ? p - w->pad->left : flux__conv_place(w, p, w->wide, w->along, w->tap);
        flux__amx_lines(x, tap, w->channel, n, channels, to, 64);
        return;
    }
    for (int64_t i = 0; i < n; i++, to += 64) {
        uint16_t line[32] = { 0 };
        const uint16_t *at = x + flux__conv_place(w, p + i, w->wide, w->along, w->tap);
        for (int64_t c = 0; c < channels; c++) line[c] = at[c * w->channel];
        memcpy(to, line, sizeof line);
    }
}

/* The positions of a row of the image's windows, and which of them, *from ... *end - 1, are no
   padding. x: the row, or NULL: it is all padding. */
static int64_t flux__conv_inside(const flux__conv_amx *w, const uint16_t *x, int64_t *from,
                                 int64_t *end) {
    const int64_t n = (w->wide - 1) * w->stride + w->size;
    *from = 0, *end = n;
    if (w->pad) flux__padded_ends(w->pad, n, from, end);
    if (!x) *from = *end = n;
    return n;
}

/* The line of position p of row q of the band: rows and positions have phases. */
static char *flux__conv_line(const flux__conv_image *m, int64_t chunk, int64_t p, int64_t q) {
    const flux__conv_amx *w = m->all;
    if (w->stride == 1) return m->lines + chunk * w->plane + (q * w->pitch + p) * 64;
    return m->lines + chunk * w->plane +
           ((p % w->stride * w->stride + q % w->stride) * w->tall + q / w->stride) * w->pitch * 64 +
           p / w->stride * 64;
}

/* Makes the lines of n positions of row q of the band, from p on, zeros, or copies them there. */
static void flux__conv_zeros(const flux__conv_image *m, int64_t chunk, int64_t p, int64_t n,
                             int64_t q) {
    for (; n > 0; n--, p++) memset(flux__conv_line(m, chunk, p, q), 0, 64);
}
static void flux__conv_put(const flux__conv_image *m, int64_t chunk, int64_t p, int64_t n,
                           int64_t q, const char *lines) {
    const int64_t by = m->all->stride;
    if (by == 1) memcpy(flux__conv_line(m, chunk, p, q), lines, (size_t)n * 64);
    for (int64_t i = 0; i < by && i < n && by > 1; i++) {
        char *to = flux__conv_line(m, chunk, p + i, q);
        for (int64_t at = i; at < n; at += by, to += 64) memcpy(to, lines + at * 64, 64);
    }
}

/* Makes the lines of one chunk of a row's positions. */
static void flux__conv_row(const flux__conv_image *m, const uint16_t *x, int64_t chunk, int64_t q) {
    const flux__conv_amx *w = m->all;
    int64_t from, end;
    const int64_t n = flux__conv_inside(w, x, &from, &end),
                  channels = flux__gemm_min(w->channels - chunk * 32, 32);
    char memory[32 * 64];
    flux__conv_zeros(m, chunk, 0, from, q);
    for (int64_t p = from, some; p < end; p += some) {
        if (end - p < 32 && end - from >= 32) p = end - 32;          /* whole lines are faster */
        some = flux__gemm_min(end - p, 32);
        flux__conv_positions(w, x, channels, p, some,
                             w->stride == 1 ? flux__conv_line(m, chunk, p, q) : memory);
        if (w->stride > 1) flux__conv_put(m, chunk, p, some, q, memory);
    }
    flux__conv_zeros(m, chunk, end, n - end, q);
}

/* Makes the lines of one chunk of the band's rows q ... last-1, of which the elements that are no
   padding lie one behind the other: 32 of them at a time, in whatever row they are. */
static void flux__conv_rows_at_once(const flux__conv_image *m, int64_t chunk, int64_t q,
                                    int64_t last) {
    const flux__conv_amx *w = m->all;
    const flux__padded_rows *pad = w->pad;
    const int64_t n = (w->wide - 1) * w->stride + w->size, right = pad->left + pad->wide,
                  y = m->first * w->stride, channels = flux__gemm_min(w->channels - chunk * 32, 32);
    char memory[32 * 64];
    for (; q < last && y + q < pad->top; q++) flux__conv_zeros(m, chunk, 0, n, q);
    for (; q < last && y + last > pad->top + pad->high; last--)
        flux__conv_zeros(m, chunk, 0, n, last - 1);
    for (int64_t r = q; r < last; r++) {
        flux__conv_zeros(m, chunk, 0, pad->left, r);
        flux__conv_zeros(m, chunk, right, n - right, r);
    }
    const int64_t all = (last - q) * pad->wide;
    const uint16_t *x = (const uint16_t *)(const void *)flux__padded_row(pad, m->sample, 32 * chunk,
                                                                         y + q, 2);
    for (int64_t i = 0, p = pad->left, some; i < all; i += some) {
        some = flux__gemm_min(all - i, 32);
        flux__amx_lines(x + i, 1, w->channel, some, channels, memory, 64);
        for (int64_t at = 0, run; at < some; at += run) {
            run = flux__gemm_min(some - at, right - p);
            flux__conv_put(m, chunk, p, run, q, memory + at * 64);
            if ((p += run) == right) p = pad->left, q++;
        }
    }
}

/* Makes the lines of the windows' rows in a row of the image of few channels. memory: for its
   positions, channels side by side, and 64 elements more. */
static FLUX__AMX_FN void flux__conv_row_windows(const flux__conv_image *m, const uint16_t *x,
                                                int64_t q, uint16_t *memory) {
    const flux__conv_amx *w = m->all;
    int64_t from, end;
    const int64_t n = flux__conv_inside(w, x, &from, &end), c = w->channels, step = w->stride * c;
    char lines[32 * 64];
    memset(memory, 0, (size_t)(from * c) * sizeof *memory);
    for (int64_t p = from; p < end; p += 32) {
        flux__conv_positions(w, x, c, p, flux__gemm_min(end - p, 32), lines);
        for (int64_t i = 0; i < 32 && p + i < end; i++)
            memcpy(memory + (p + i) * c, lines + i * 64, 64);
    }
    memset(memory + end * c, 0, (size_t)((n - end) * c) * sizeof *memory);
    for (int64_t chunk = 0; chunk < w->chunks; chunk++) {
        const uint16_t *at = memory + chunk * 32;
        char *to = flux__conv_line(m, chunk, 0, q);
        uint16_t inside[32];
        for (int64_t i = 0; i < 32; i++) inside[i] = chunk * 32 + i < w->size * c ? 0xffff : 0;
        flux__amx_words mask, line;
        memcpy(&mask, inside, sizeof mask);
        for (int64_t i = 0; i < w->wide; i++, at += step, to += 64) {
            memcpy(&line, at, sizeof line);
            line &= mask;
            memcpy(to, &line, sizeof line);
        }
    }
}

/* A band is made ready in parts, of so many rows of the image, or positions if it is read as a
   whole; in chunks of channels each. */
static int64_t flux__conv_all(const flux__conv_image *m) {
    const flux__conv_amx *w = m->all;
    const int64_t rows = (m->high - 1) * w->stride + w->size;
    return w->whole ? (rows - 1) * w->pitch + w->wide + w->size - 1 : rows;
}
static int64_t flux__conv_each(const flux__conv_amx *w) {
    const int64_t task = FLUX__CONV_TASK;
    return w->whole ? task : task / (w->wide * w->stride) + 1;
}

/* Makes the lines of one part. */
static void flux__conv_lines(void *ctx, int64_t part) {
    const flux__conv_image *m = (const flux__conv_image *)ctx;
    const flux__conv_amx *w = m->all;
    const int64_t kinds = w->few ? 1 : w->chunks, chunk = part % kinds, each = flux__conv_each(w),
                  first = part / kinds * each,
                  end = flux__gemm_min(flux__conv_all(m), first + each),
                  n = (w->wide - 1) * w->stride + w->size;
    const uint16_t *x = w->x + m->sample * w->sample + 32 * chunk * w->channel + m->first * w->down;
    if (w->whole) {
        x += flux__conv_place(w, 0, w->high, w->down, w->tap_down) +
             flux__conv_place(w, 0, w->wide, w->along, w->tap);
        for (int64_t i = first; i < end; i += 32) {
            if (end - i < 32 && end - first >= 32) i = end - 32;     /* whole lines are faster */
            flux__amx_lines(x + i, 1, w->channel, flux__gemm_min(end - i, 32),
                            flux__gemm_min(w->channels - chunk * 32, 32),
                            m->lines + chunk * w->plane + i * 64, 64);
        }
        return;
    }
    if (w->at_once) {
        flux__conv_rows_at_once(m, chunk, first, end);
        return;
    }
    uint16_t *memory = NULL;
    if (w->few) memory = (uint16_t *)flux__scratch((size_t)(n * w->channels + 64) * 2);
    if (w->few && !memory) flux__atomic_store32((int *)(uintptr_t)&w->failed, 1);
    for (int64_t q = first; q < end; q++) {
        const uint16_t *row = w->pad ? (const uint16_t *)(const void *)flux__padded_row(
            w->pad, m->sample, 32 * chunk, m->first * w->stride + q, 2) :
            x + flux__conv_place(w, q, w->high - m->first, w->down, w->tap_down);
        if (!w->few) flux__conv_row(m, row, chunk, q);
        else if (memory) flux__conv_row_windows(m, row, q, memory);
    }
    flux__scratch_done(memory);
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
        if (some == left) r->x = 0, r->line += (w->pitch - w->wide) * bytes;
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

/* Finishes `rows` rows of results of n columns from column j on; the first one is row i of the
   product. results: lines of 32 floats; memory: for as many. */
static void flux__conv_finish(const flux__conv_amx *w, flux__job *job, int worker, int64_t i,
                              int64_t j, int64_t rows, int64_t n, float *results, float *memory) {
    const flux__value *v = &job->k->value[job->k->nvalue - 1];
    const int64_t count = rows * w->wide, ld = flux__gemm_up(count, 16), m = job->k->mnk[0],
                  lines = (rows - 1) * w->pitch + w->wide;
    flux__conv_results r = { (const char *)results, 0 };
    /* of few columns, half of a line would be computed for nothing */
    if (w->c || n <= 16 || !flux__chain_lines(job, j, n, results, lines)) {
        float *c = w->c ? w->c + (job->batch * job->k->mnk[1] + j) * m + i : NULL;
        flux__conv_transpose(w, &r, count, n, memory, ld);
        for (int64_t q = 0; q < n && c; q++) memcpy(c + q * m, memory + q * ld, (size_t)count * 4);
        if (!c) flux__epilogue(job, worker, i, j, count, n, memory, ld);
        return;
    }
    flux__store(v->dtype, memory, 1, FLUX__F32C, results, lines * 32);
    r.line = (const char *)memory;
    flux__conv_transpose_halves(w, &r, count, n, (uint16_t *)job->run->ptr[v->out] + job->first +
                                (job->batch * job->k->mnk[1] + j) * m + i, m);
}

/* Computes some rows of windows of a band, of all columns: of 32 columns all lines, before any is
   finished. (Where tiles and vectors took turns after less, tiles were slower: their operands had
   left the first-level cache.) */
static void flux__conv_rows(void *ctx, int worker, int64_t number) {
    const flux__conv_image *m = (const flux__conv_image *)ctx;
    const flux__conv_amx *w = m->all;
    const int64_t y0 = number * w->rows, rows = flux__gemm_min(w->rows, m->high - y0),
        mb = (rows - 1) * w->pitch + w->wide, panel = FLUX__AMX_PANEL(w->steps),
        lines = (rows + w->piece) * w->pitch + 16,
        /* half a panel of 36 steps fits into the first-level cache; a longer one fares no better */
        some = w->steps > 18 && w->steps <= 36 ? (w->steps + 1) / 2 : w->steps;
    float *results = (float *)flux__scratch((size_t)lines * 128),
          *memory = results + rows * w->pitch * 32;
    flux__amx_shape shape = { 0, 0 };
    flux__job job = *w->job;
    job.batch = m->sample;
    for (int64_t j = 0; j < w->columns && results; j += 32) {
        const int64_t n = flux__gemm_min(w->columns - j, 32);
        for (int64_t s = 0; s < w->steps; s += some) {
            const flux__amx_columns x = { m->lines + y0 * w->pitch * 64, 64, m->at + s, NULL };
            flux__amx_multiply(&shape, w->weight + j / 32 * panel + FLUX__AMX_PANEL(s), n, &x, mb,
                               flux__gemm_min(w->steps - s, some), (char *)results, 128, s > 0);
        }
        for (int64_t y = 0; y < rows; y += w->piece)
            flux__conv_finish(w, &job, worker, (m->first + y0 + y) * w->wide, j,
                              flux__gemm_min(w->piece, rows - y), n,
                              results + y * w->pitch * 32, memory);
    }
    FLUX__AMX_RELEASE()
    flux__scratch_done(results);
    if (!results || flux__atomic_load32(&job.failed))
        flux__atomic_store32((int *)(uintptr_t)&w->failed, 1);
}

/* Finds where each step of k begins in the lines: of each row of a window its chunks, or of each
   tap its channels'. */
static void flux__conv_steps(const flux__conv_image *m) {
    const flux__conv_amx *w = m->all;
    for (int64_t s = 0; s < w->steps; s++) {
        const int64_t line = s / w->chunks, u = w->few ? line : line / w->size,
                      t = w->few ? 0 : line % w->size;
        m->at[s] = flux__conv_line(m, s % w->chunks, t, u) - m->lines;
    }
}

/* Computes one sample, a band at a time. */
static void flux__conv_sample(void *ctx, int64_t sample) {
    flux__conv_amx *w = (flux__conv_amx *)ctx;
    const int64_t table = flux__gemm_up(w->steps * 8, 64), kinds = w->few ? 1 : w->chunks;
    flux__conv_image m = { w, sample, 0, 0, NULL, NULL };
    m.at = (int64_t *)flux__scratch((size_t)(table + w->chunks * w->plane));
    if (!m.at) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    m.lines = (char *)m.at + table;
    flux__conv_steps(&m);
    for (; m.first < w->high; m.first += w->band) {
        m.high = flux__gemm_min(w->band, w->high - m.first);
        const int64_t parts = (flux__conv_all(&m) - 1) / flux__conv_each(w) + 1;
        flux__parallel(kinds * parts, flux__conv_lines, &m);
        flux__parallel_workers((m.high + w->rows - 1) / w->rows, flux__conv_rows, &m);
    }
    flux__scratch_done(m.at);
}

/* Finds the order of steps and lines of a convolution that goes by taps. */
static void flux__conv_arrange(flux__conv_amx *w) {
    w->few = w->channels < 32;
    w->chunks = ((w->few ? w->size * w->channels : w->channels) + 31) / 32;
    w->steps = w->size * (w->few ? 1 : w->size) * w->chunks;
    w->pitch = w->wide + (w->few ? 0 : (w->size - 1) / w->stride);
    const int64_t back = w->flipped ? -1 : 1;
    w->whole = !w->pad && !w->few && w->stride == 1 && w->along == 1 && back * w->tap == 1 &&
               back * w->tap_down == w->down && w->down >= w->pitch && w->down <= 2 * w->wide;
    if (w->whole) w->pitch = w->down;
    w->at_once = w->pad && !w->few && w->pad->row == w->pad->wide && w->pad->left >= 0 &&
                 w->pad->left + w->pad->wide <= (w->wide - 1) * w->stride + w->size;
}

/* Computes such a convolution; its weight is given, too. */
static void flux__conv_amx_run(flux__conv_amx *w) {
    const int64_t threads = flux__num_threads(), phases = w->stride * (w->few ? 1 : w->stride),
                  ends = (w->size - 1) / w->stride,
                  row = phases * w->pitch * w->chunks * 64;          /* bytes of a row's lines */
    w->band = flux__gemm_min(w->high, FLUX__CONV_BAND / row + 1);
    if (w->band < 4 * w->size) w->band = flux__gemm_min(w->high, 4 * w->size);
    w->band = flux__gemm_split(w->high, (w->high + w->band - 1) / w->band, 1);
    w->tall = w->band + ends;
    w->plane = (flux__gemm_up(phases * w->tall * w->pitch, 32) | 16) * 64;   /* no whole pages */
    w->rows = flux__gemm_min(FLUX__CONV_TASK / w->pitch + 1, w->band);
    if (w->samples < 2 * threads && threads > 1)
        while (w->rows > 1 && (w->band + w->rows - 1) / w->rows < 2 * threads)
            w->rows = (w->rows + 1) / 2;
    w->piece = flux__gemm_min(w->rows, FLUX__CONV_PIECE / w->pitch);
    if (w->piece < 1) w->piece = 1;
    if (w->samples >= 2 * threads) flux__parallel(w->samples, flux__conv_sample, w);
    else for (int64_t i = 0; i < w->samples; i++) flux__conv_sample(w, i);
}
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_CONV_AMX_H */
