#ifndef FLUX__CPU_CONV_AMX_H
#define FLUX__CPU_CONV_AMX_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/workers.h"
#include "../schedule/analysis.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "gemm_amx.h"
#include "run.h"
#include "products.h"

/* ---------------------------------------------------------------------- cpu/conv_amx.h
   Convolutions of bf16 by square windows a step apart, by AMX's tiles, without
   collecting windows. Two channels of an image are interleaved to one plane of
   words; then the words of a tap are a plane from some place on, and a tile
   loads 16 positions of 16 planes, a plane being as far from the next as a
   tile's rows may be. Positions go over the ends of the image's rows: what
   is computed there is left out when a block is finished.

   Invariant: the sum of an element goes tap by tap, over the channels of each.
   The product of such windows goes in this order whether they are read so,
   collected or stored, by its shape alone (flux__conv_by_taps): so all of these
   give the same bits.

   Rejected, unmeasured: rows of positions by themselves, whose last tile would
   not be filled (56 are 32 and 24), and interleaving all samples at first, which
   would leave the second-level cache. */

FLUX__BEGIN_HOT

#if FLUX__AMX

typedef struct flux__conv_amx {
    const flux__job *job;
    const uint16_t *x;                    /* the image's element of position 0 and the first tap,
                                             and steps in elements: */
    int64_t tap, tap_down, down, channel, sample;
    int64_t size;                         /* taps of a window's row, and of its column */
    int64_t wide, high, channels, columns, samples;
    const char *weight;                   /* columns of k elements, tap by tap */
    int64_t low;                          /* from the first tap to the one that lies first */
    int64_t plane, used;                  /* words of a plane, and those that are the image's */
    int64_t steps;                        /* of k: 16 words each */
    int64_t rows;                         /* rows of positions in a task */
    int failed;
} flux__conv_amx;

/* One sample's words, and where each step of k begins in them, in bytes. */
typedef struct flux__conv_image {
    const flux__conv_amx *all;
    int64_t sample;
    uint32_t *words;
    int64_t *at;
} flux__conv_image;

/* Whether a product of windows that flux__mark_windows has marked, of `size` taps a row and `wide`
   windows a row, goes tap by tap: steps of k are whole channels, and rows are not much shorter than
   with their windows' ends. */
static bool flux__conv_by_taps(int64_t size, int64_t wide, int64_t k) {
    return size && k % (size * size * 32) == 0 && wide >= 4 * size;
}

/* ---- the weight */

/* A weight whose columns are copied tap by tap, of each tap the channels. ks, lines: maps of the
   product's k and of its columns. */
typedef struct flux__conv_weight {
    const uint16_t *x;
    const flux__axes *ks, *lines;
    int64_t taps, k, columns;
    uint16_t *to;
    int failed;
} flux__conv_weight;
/* Copies 32 columns. */
static void flux__conv_weight_part(void *ctx, int64_t part) {
    flux__conv_weight *w = (flux__conv_weight *)ctx;
    const int64_t first = part * 32, n = flux__gemm_min(w->columns - first, 32), c = w->k / w->taps;
    uint16_t *line = (uint16_t *)flux__scratch((size_t)w->k * 2), *to = w->to + first * w->k;
    if (!line) flux__atomic_store32(&w->failed, 1);
    for (int64_t j = 0; j < n && line; j++, to += w->k) {
        flux__amx_im2col(w->x, w->ks, 0, w->k, w->lines, first + j, 1, line, w->k);
        for (int64_t t = 0; t < w->taps; t++)
            for (int64_t i = 0; i < c; i++) to[t * c + i] = line[i * w->taps + t];
    }
    flux__scratch_done(line);
}

/* ---- the image */

/* Interleaves two channels of a sample. */
static void flux__conv_plane(void *ctx, int64_t pair) {
    const flux__conv_image *m = (const flux__conv_image *)ctx;
    const flux__conv_amx *w = m->all;
    const uint16_t *x = w->x + m->sample * w->sample + 2 * pair * w->channel + w->low;
    uint32_t *to = m->words + pair * w->plane;
    int64_t i = 0;
    for (; i + 32 <= w->used; i += 32)
        flux__amx_pair(x + i, w->channel, 2, (char *)(to + i));
    for (; i < w->used; i++) to[i] = x[i] | (uint32_t)x[i + w->channel] << 16;
}

/* Computes some rows of positions of a sample, of all columns. */
static void flux__conv_rows(void *ctx, int worker, int64_t number) {
    const flux__conv_image *m = (const flux__conv_image *)ctx;
    const flux__conv_amx *w = m->all;
    const int64_t y0 = number * w->rows, rows = flux__gemm_min(w->rows, w->high - y0),
        mb = (rows - 1) * w->down + w->wide, ld = flux__gemm_up(mb, 32), bytes = w->steps * 64,
        most = flux__gemm_min(flux__gemm_up(FLUX__GEMM_PIECE / ld + 1, 32), w->columns);
    float *c = (float *)flux__scratch((size_t)(ld * flux__gemm_up(most, 32)) * sizeof *c);
    flux__job job = *w->job;
    job.batch = m->sample;
    for (int64_t j = 0, nb; j < w->columns && c; j += nb) {
        const char *weight = w->weight + j * bytes;
        nb = flux__gemm_min(most, w->columns - j);
        const flux__amx_rows a = { (const char *)(m->words + y0 * w->down), 128, w->plane * 4,
                                   m->at };
        flux__amx_multiply(&a, mb, weight, bytes, nb, w->steps, NULL, (char *)c, ld * 4, false);
        for (int64_t l = 0; l < nb && w->down > w->wide; l++)
            for (int64_t r = 1; r < rows; r++)
                memmove(c + l * ld + r * w->wide, c + l * ld + r * w->down,
                        (size_t)w->wide * sizeof *c);
        flux__epilogue(&job, worker, y0 * w->wide, j, rows * w->wide, nb, c, ld);
    }
    FLUX__AMX_RELEASE()
    flux__scratch_done(c);
    if (!c || flux__atomic_load32(&job.failed))
        flux__atomic_store32((int *)(uintptr_t)&w->failed, 1);
}

/* Computes one sample. */
static void flux__conv_sample(void *ctx, int64_t sample) {
    flux__conv_amx *w = (flux__conv_amx *)ctx;
    const int64_t pairs = w->channels / 2;
    flux__conv_image m = { w, sample, NULL, NULL };
    m.at = (int64_t *)flux__scratch((size_t)(w->steps * 8 + 64 + pairs * w->plane * 4));
    if (!m.at) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    m.words = (uint32_t *)(void *)((char *)m.at + flux__gemm_up(w->steps * 8, 64));
    for (int64_t t = 0, s = 0; t < w->size * w->size; t++)
        for (int64_t i = 0; i < w->channels / 32; i++)
            m.at[s++] = 4 * (t % w->size * w->tap + t / w->size * w->tap_down - w->low +
                             16 * i * w->plane);
    flux__parallel(pairs, flux__conv_plane, &m);
    flux__parallel_workers((w->high + w->rows - 1) / w->rows, flux__conv_rows, &m);
    flux__scratch_done(m.at);
}

/* Computes a convolution that goes by taps, whose places and steps are given: false, and nothing is
   done, if a row's positions or a row's taps do not lie side by side. The weight is given, too. */
static bool flux__conv_amx_run(flux__conv_amx *w) {
    const int64_t sideways = w->tap < 0 ? -w->tap : w->tap,
                  downward = w->tap_down < 0 ? -w->tap_down : w->tap_down, ends = w->size - 1,
                  threads = flux__num_threads();
    if (sideways != 1 || downward != w->down || w->down < w->wide + ends || w->down > 2 * w->wide)
        return false;
    w->low = ends * (flux__gemm_min(w->tap, 0) + flux__gemm_min(w->tap_down, 0));
    w->steps = w->size * w->size * w->channels / 32;
    w->used = (w->high + ends - 1) * w->down + w->wide + ends;
    w->plane = flux__gemm_up(w->used, 32) | 16;            /* an odd number of cache lines */
    w->rows = flux__gemm_min(FLUX__AMX_ROWS / w->down + 1, w->high);
    if (w->samples >= 2 * threads) flux__parallel(w->samples, flux__conv_sample, w);
    else {
        while (w->rows > 1 && (w->high + w->rows - 1) / w->rows < 2 * threads && threads > 1)
            w->rows = (w->rows + 1) / 2;
        for (int64_t i = 0; i < w->samples; i++) flux__conv_sample(w, i);
    }
    return true;
}
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_CONV_AMX_H */
