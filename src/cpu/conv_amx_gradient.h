#ifndef FLUX__CPU_CONV_AMX_GRADIENT_H
#define FLUX__CPU_CONV_AMX_GRADIENT_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_load32, flux__atomic_store32 */
#include "../base/workers.h"
#include "../schedule/analysis.h"
#include "run.h"
#include "gemm_pack.h"
#include "gemm_amx.h"
#include "products.h"

/* ---------------------------------------------------------------------- cpu/conv_amx_gradient.h
   The gradient by its weight of a convolution of bf16 by square windows a step
   apart, by AMX's tiles, without collecting windows. A channel of the image is
   copied to a line whose positions go over the ends of the image's rows; a tap
   reads the same line from another place on. Of y's gradient each column is
   packed along such positions, with zeros at those that are no window's. So an
   element is a sum over positions of two lines that both are contiguous.

   Some samples' positions are taken together, and FLUX__CONV_CHUNK steps of them
   are gone through tap by tap while they are in the first-level cache; sums wait
   in memory.

   Invariant: an element's sum goes over the samples and positions of each, for
   any number of threads. What is no number times a zero is no number: an image
   that is not finite everywhere is left to the product of its windows.

   Rejected: y's gradient read from another place on in place of the image, whose
   lines could begin at a cache line's beginning (a tenth at most, by a loop of its
   own). Unmeasured: a large image in bands; the copies of one sample are as large
   as the sample, its columns and these again. */

FLUX__BEGIN_HOT

#if FLUX__AMX

enum { FLUX__CONV_CHUNK = 8 };
#ifndef FLUX__CONV_MEMORY                 /* a test has less */
#  define FLUX__CONV_MEMORY (1 << 20)     /* about as many bytes of operands are ready at a time */
#endif

/* One gradient: a product of A, the image's windows, and B, y's gradient. */
typedef struct flux__weight_gradient {
    const flux__job *job;
    const uint16_t *x;                    /* the image's element that lies first, by position: */
    int64_t corner;                       /* so far from A's first element */
    int64_t channel, sample;              /* steps in elements */
    flux__axes plane;                     /* places of a channel's positions */
    bool back[2];                         /* taps go from the last to the first, by dim */
    float *c;                             /* NULL, or where C is stored without an epilogue */
    const uint16_t *y;                    /* y's gradient, and maps of its positions and columns */
    const flux__axes *places, *lines;
    int64_t size, wide, high, channels, columns, samples;
    int64_t pitch;                        /* positions of a row */
    int64_t steps;                        /* of a sample's positions, 32 each */
    int64_t together, first;              /* samples that are taken together; the first of them */
    int64_t part, line;                   /* bytes of a sample in a line, and of a line */
    char *image, *panels, *sums;
    uint16_t *rows;                       /* of one sample the columns of y's gradient */
    int64_t *at, *tap;                    /* in a line, where each step and each tap begins */
    int64_t shares;                       /* tasks that share 32 channels and 32 columns by taps */
    int failed, special;                  /* special: the image is not finite */
} flux__weight_gradient;

/* Describes the gradient that is a product whose A is of windows, by maps of A's rows and of k; the
   maps of B are in *w. False: it is no such gradient, or it has too few positions to be faster so
   (measured: 1568 were not, where weights are 256 x 256). */
static bool flux__weight_gradient_of(flux__weight_gradient *w, const flux__axes *rows,
                                     const flux__axes *ks) {
    if (rows->nd < 2 || rows->nd > 3 || ks->nd < 2 || ks->nd > 3 || rows->dim[0] < 2 ||
        rows->dim[1] != rows->dim[0] || ks->dim[0] < rows->dim[0]) return false;
    const int64_t ends = rows->dim[0] - 1;
    w->size = rows->dim[0], w->wide = ks->dim[0], w->high = ks->dim[1];
    w->channels = rows->nd > 2 ? rows->dim[2] : 1, w->samples = ks->nd > 2 ? ks->dim[2] : 1;
    w->channel = rows->nd > 2 ? rows->step[2] : 0, w->sample = ks->nd > 2 ? ks->step[2] : 0;
    w->pitch = w->wide + ends;
    const flux__axes plane = { 2, { w->pitch, w->high + ends }, { ks->step[0], ks->step[1] } },
                     line = { 1, { w->pitch * (w->high + ends) }, { ks->step[0] } };
    w->plane = ks->step[1] == w->pitch * ks->step[0] ? line : plane;
    for (int d = 0; d < 2; d++) {
        const int64_t step = ks->step[d];
        if (rows->step[d] != step && rows->step[d] != -step) return false;
        w->back[d] = rows->step[d] != step;
        if (w->back[d]) w->corner -= ends * step;
    }
    return w->wide * w->high * w->samples >= 2048 && w->places->dim[0] % w->wide == 0;
}

/* From where on in a line a tap's positions are, in bytes. */
static int64_t flux__weight_gradient_tap(const flux__weight_gradient *w, int64_t t) {
    const int64_t x = t % w->size, y = t / w->size, ends = w->size - 1;
    return 2 * ((w->back[0] ? ends - x : x) + (w->back[1] ? ends - y : y) * w->pitch);
}

/* Whether all of n halves, a multiple of 32, are finite numbers of bf16. */
static FLUX__AMX_FN bool flux__conv_finite(const char *x, int64_t n) {
    flux__amx_halves v, any;
    uint16_t all[32], found = 0;
    memset(&any, 0, sizeof any);
    for (int64_t i = 0; i < n; i += 32, x += 64) {
        memcpy(&v, x, sizeof v);
        any |= (flux__amx_halves)((v & 0x7f80) == 0x7f80);
    }
    memcpy(all, &any, sizeof all);
    for (int i = 0; i < 32; i++) found |= all[i];
    return !found;
}

/* Copies 32 channels of the samples that are taken together. */
static void flux__weight_gradient_image(flux__weight_gradient *w, int64_t first) {
    const flux__axes lines = { 1, { w->channels }, { w->channel } };
    const int64_t n = flux__gemm_min(w->channels - first, 32);
    char *to = w->image + first * w->line;
    for (int64_t s = 0; s < w->together && w->first + s < w->samples; s++)
        flux__amx_im2col(w->x + (w->first + s) * w->sample, &w->plane, 0,
                         (w->high + w->size - 1) * w->pitch, &lines, first, n,
                         (uint16_t *)(void *)(to + s * w->part), w->line / 2);
    if (!flux__conv_finite(to, n * w->line / 2)) flux__atomic_store32(&w->special, 1);
}

/* Packs 32 columns of y's gradient of the samples that are taken together. Between rows lines are
   zeros, as they were at first. */
static void flux__weight_gradient_columns(const flux__weight_gradient *w, int64_t first) {
    const int64_t n = flux__gemm_min(w->columns - first, 32), k = w->steps * 32;
    uint16_t *lines = w->rows + first * k;
    char *to = w->panels + first / 32 * FLUX__AMX_PANEL(w->steps * w->together);
    int64_t at[64];
    for (int64_t s = 0; s < w->together; s++, to += FLUX__AMX_PANEL(w->steps)) {
        const int64_t row = (w->first + s) * w->high;
        if (w->first + s >= w->samples) {
            memset(to, 0, (size_t)FLUX__AMX_PANEL(w->steps));
            continue;
        }
        for (int64_t y = 0, some; y < w->high; y += some) {
            some = flux__gemm_min(w->high - y, 64);
            for (int64_t i = 0; i < some; i++)
                at[i] = flux__axes_at(w->places, (row + y + i) * w->wide);
            for (int64_t i = 0; i < n; i++)
                flux__amx_copy_run(w->y + flux__axes_at(w->lines, first + i), w->places->step[0],
                                   at, some, w->wide, lines + i * k + y * w->pitch, w->pitch);
        }
        flux__amx_pack(lines, k, 1, n, k, to);
    }
}

/* Makes 32 channels or 32 columns ready. */
static void flux__weight_gradient_operand(void *ctx, int64_t part) {
    flux__weight_gradient *w = (flux__weight_gradient *)ctx;
    const int64_t images = (w->channels + 31) / 32;
    if (part < images) flux__weight_gradient_image(w, part * 32);
    else flux__weight_gradient_columns(w, (part - images) * 32);
}

/* Of 32 channels and 32 columns, by number, the sums: lines of 32 columns, channel by channel, of
   each all taps. */
static char *flux__weight_gradient_sums(const flux__weight_gradient *w, int64_t number) {
    return w->sums + number * w->size * w->size * 4096;
}

/* Adds to the sums of 32 channels and 32 columns those of the samples that are taken together: by
   all taps, or those of a row. */
static void flux__weight_gradient_add(void *ctx, int worker, int64_t number) {
    const flux__weight_gradient *w = (const flux__weight_gradient *)ctx;
    const int64_t blocks = (w->channels + 31) / 32, block = number / w->shares,
                  c = block % blocks * 32, j = block / blocks * 32,
                  nc = flux__gemm_min(w->channels - c, 32),
                  nj = flux__gemm_min(w->columns - j, 32), steps = w->steps * w->together,
                  taps = w->size * w->size, first = number % w->shares * (taps / w->shares);
    const char *panel = w->panels + j / 32 * FLUX__AMX_PANEL(steps), *x = w->image + c * w->line;
    char *sums = flux__weight_gradient_sums(w, block);
    flux__amx_shape shape = { 0, 0 };
    (void)worker;
    flux__amx_set(&shape, nj, nc);
    for (int64_t s = 0, some; s < steps; s += some) {
        some = steps - s < 2 * FLUX__CONV_CHUNK ? steps - s : (int64_t)FLUX__CONV_CHUNK;
        for (int64_t t = first; t < first + taps / w->shares; t++)
            flux__amx_block(nj > 16, nc > 16, some, panel + FLUX__AMX_PANEL(s), x + w->tap[t],
                            w->line, w->at + s, NULL, sums + t * FLUX__AMX_LINE,
                            taps * FLUX__AMX_LINE, w->first + s > 0);
    }
    FLUX__AMX_RELEASE()
}

/* Finishes 32 channels of 32 columns. */
static void flux__weight_gradient_finish(void *ctx, int worker, int64_t number) {
    flux__weight_gradient *w = (flux__weight_gradient *)ctx;
    const int64_t blocks = (w->channels + 31) / 32, taps = w->size * w->size,
                  c = number % blocks * 32, j = number / blocks * 32,
                  rows = flux__gemm_min(w->channels - c, 32) * taps,
                  n = flux__gemm_min(w->columns - j, 32), ld = flux__gemm_up(rows, 16) | 16;
    const char *sums = flux__weight_gradient_sums(w, number);
    char *block = (char *)flux__scratch((size_t)(ld * n) * 4);
    flux__job job = *w->job;
    for (int64_t i = 0; i < rows && block; i += 16)
        for (int64_t l = 0; l < n; l += 16)
            flux__amx_turn(sums + i * FLUX__AMX_LINE + 4 * l, FLUX__AMX_LINE,
                           flux__gemm_min(rows - i, 16), block + (l * ld + i) * 4, ld * 4,
                           flux__gemm_min(n - l, 16));
    if (block && !w->c) flux__epilogue(&job, worker, c * taps, j, rows, n, block, ld);
    for (int64_t l = 0; l < n && block && w->c; l++)
        memcpy(w->c + (j + l) * w->channels * taps + c * taps, block + l * ld * 4,
               (size_t)rows * 4);
    if (!block || flux__atomic_load32(&job.failed)) flux__atomic_store32(&w->failed, 1);
    flux__scratch_done(block);
}

/* Asks for the memory of an image's lines, of y's lines and panels, of sums and of places. */
static void *flux__weight_gradient_memory(flux__weight_gradient *w) {
    const int64_t images = (w->channels + 31) / 32, columns = (w->columns + 31) / 32,
                  image = images * 32 * w->line, rows = columns * 32 * w->steps * 64,
                  panels = columns * FLUX__AMX_PANEL(w->steps * w->together),
                  taps = w->size * w->size, sums = images * columns * taps * 4096;
    char *memory = (char *)flux__scratch((size_t)(image + rows + panels + sums +
                                                  (w->steps * w->together + taps) * 8));
    if (!memory) return NULL;
    w->image = memory, w->rows = (uint16_t *)(void *)(memory + image);
    w->panels = memory + image + rows, w->sums = w->panels + panels;
    w->at = (int64_t *)(void *)(w->sums + sums), w->tap = w->at + w->steps * w->together;
    for (int64_t s = 0; s < w->together; s++)
        for (int64_t i = 0; i < w->steps; i++) w->at[s * w->steps + i] = s * w->part + i * 64;
    for (int64_t t = 0; t < taps; t++) w->tap[t] = flux__weight_gradient_tap(w, t);
    memset(memory, 0, (size_t)(image + rows));
    return memory;
}

/* Computes the gradient. False, and nothing is done: the image is not finite. */
static bool flux__weight_gradient_run(flux__weight_gradient *w) {
    const int64_t ends = w->size - 1, images = (w->channels + 31) / 32,
                  columns = (w->columns + 31) / 32;
    w->steps = ((w->high - 1) * w->pitch + w->wide + 31) / 32;
    w->part = flux__gemm_up(ends * w->pitch + ends + w->steps * 32, 32) * 2;
    const int64_t each = images * 32 * w->part + columns * FLUX__AMX_PANEL(w->steps),
                  least = (FLUX__CONV_CHUNK + w->steps - 1) / w->steps,
                  most = FLUX__CONV_MEMORY / each > least ? FLUX__CONV_MEMORY / each : least,
                  times = (w->samples + most - 1) / most;
    w->together = (w->samples + times - 1) / times;
    w->line = w->together * w->part | 64;                  /* an odd number of cache lines */
    w->shares = images * columns < flux__num_threads() ? w->size : 1;
    void *memory = flux__weight_gradient_memory(w);
    if (!memory) return w->failed = 1, true;
    for (w->first = 0; w->first < w->samples; w->first += w->together) {
        flux__parallel(images + columns, flux__weight_gradient_operand, w);
        if (flux__atomic_load32(&w->failed) || flux__atomic_load32(&w->special)) break;
        flux__parallel_workers(images * columns * w->shares, flux__weight_gradient_add, w);
    }
    const bool ok = w->first >= w->samples;
    if (ok) flux__parallel_workers(images * columns, flux__weight_gradient_finish, w);
    flux__scratch_done(memory);
    return ok || flux__atomic_load32(&w->failed);
}
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_CONV_AMX_GRADIENT_H */
