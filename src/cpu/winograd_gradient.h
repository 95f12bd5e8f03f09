#ifndef FLUX__CPU_WINOGRAD_GRADIENT_H
#define FLUX__CPU_WINOGRAD_GRADIENT_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/system.h"
#include "../base/workers.h"
#include "../schedule/analysis.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "run.h"
#include "products.h"
#include "winograd.h"

/* ---------------------------------------------------------------------- cpu/winograd_gradient.h
   The gradient of a convolution by its 3 x 3 weight with fewer multiplications:
   Winograd's F(3 x 3, 2 x 2) (Lavin and Gray, as in cpu/winograd.h). A tile is
   2 x 2 of y's gradient and the 4 x 4 pixels that belong to it; of both sums and
   differences are multiplied, 16 numbers instead of 36, and added up over the
   tiles by 16 matrix products, channels x tiles x y's channels, whose sums and
   differences are the 9 taps. Rows of both images are transposed first, so that
   the numbers are made, and multiplied, channel beside channel.

   Invariant: whether a gradient is computed so depends on its shape alone, and a
   result's additions are the same for any number of threads, with AVX2 and AVX-512,
   and whether the windows are read in the image or from a copy of them. Tiles are
   added up in chunks of some rows of tiles, which keeps errors at 0.9 to 1.1 times
   those of the product of windows (measured). A small weight has its tiles in
   shares, for several threads. What a tile has beyond the image is zero. */

FLUX__BEGIN_HOT

#if FLUX__WINOGRAD

/* Of a row of tiles and a vector of channels the 16 numbers of each tile, from rows of pixels whose
   channels lie side by side, `pitch` elements a pixel: number p at v + p * apart, a tile's `step`
   elements behind those of the one before. */
typedef void (*flux__winograd_tiles)(const float *const *row, int64_t pitch, int64_t tiles,
                                     float *v, int64_t step, int64_t apart);
/* The 9 taps, tap i at y + i * step, of the sums of a vector of channels, p at m + p * apart. */
typedef void (*flux__winograd_taps)(const float *m, int64_t apart, float *y, int64_t step);

/* the numbers 4i ... 4i+3 of a tile of pixels in x op y, where x and y are rows */
#  define FLUX__WINOGRAD_PIXELS(vec, i, x, op, y)                                                  \
    a = FLUX__WINOGRAD_GET(vec, x) op FLUX__WINOGRAD_GET(vec, y);                                  \
    b = FLUX__WINOGRAD_GET(vec, x + pitch) op FLUX__WINOGRAD_GET(vec, y + pitch);                  \
    c = FLUX__WINOGRAD_GET(vec, x + 2 * pitch) op FLUX__WINOGRAD_GET(vec, y + 2 * pitch);          \
    d = FLUX__WINOGRAD_GET(vec, x + 3 * pitch) op FLUX__WINOGRAD_GET(vec, y + 3 * pitch);          \
    FLUX__WINOGRAD_PUT(vec, v + 4 * i * apart, a - c)                                              \
    FLUX__WINOGRAD_PUT(vec, v + (4 * i + 1) * apart, b + c)                                        \
    FLUX__WINOGRAD_PUT(vec, v + (4 * i + 2) * apart, c - b)                                        \
    FLUX__WINOGRAD_PUT(vec, v + (4 * i + 3) * apart, b - d)
/* the numbers 4i ... 4i+3 of a tile of y's gradient whose rows have become the row a, b */
#  define FLUX__WINOGRAD_SLOPES(vec, i, at0, at1)                                                  \
    a = at0, b = at1;                                                                              \
    FLUX__WINOGRAD_PUT(vec, v + 4 * i * apart, a)                                                  \
    FLUX__WINOGRAD_PUT(vec, v + (4 * i + 1) * apart, a + b)                                        \
    FLUX__WINOGRAD_PUT(vec, v + (4 * i + 2) * apart, a - b)                                        \
    FLUX__WINOGRAD_PUT(vec, v + (4 * i + 3) * apart, b)
#  define FLUX__WINOGRAD_M(vec, p) FLUX__WINOGRAD_GET(vec, m + (p) * apart)
#  define FLUX__WINOGRAD_DOWN3(vec, j)                                                             \
    a = FLUX__WINOGRAD_M(vec, 4 + j), b = FLUX__WINOGRAD_M(vec, 8 + j), c = (a + b) * half;        \
    p##j = FLUX__WINOGRAD_M(vec, j) + c, q##j = (a - b) * half, r##j = c - FLUX__WINOGRAD_M(vec, 12 + j);
#  define FLUX__WINOGRAD_ALONG3(vec, i, x)                                                         \
    c = (x##1 + x##2) * half;                                                                      \
    FLUX__WINOGRAD_PUT(vec, y + 3 * i * step, x##0 + c)                                            \
    FLUX__WINOGRAD_PUT(vec, y + (3 * i + 1) * step, (x##1 - x##2) * half)                          \
    FLUX__WINOGRAD_PUT(vec, y + (3 * i + 2) * step, c - x##3)
#  define FLUX__WINOGRAD_SUMS(name, vec, target)                                                   \
    FLUX__GEMM_FN(target) void name##_pixels(const float *const *row, int64_t pitch, int64_t tiles, float *v, int64_t step, int64_t apart) { \
        const float *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];                        \
        vec a, b, c, d;                                                                            \
        for (; tiles > 0; tiles--, v += step) {                                                    \
            FLUX__WINOGRAD_PIXELS(vec, 0, r0, -, r2) FLUX__WINOGRAD_PIXELS(vec, 1, r1, +, r2)      \
            FLUX__WINOGRAD_PIXELS(vec, 2, r2, -, r1) FLUX__WINOGRAD_PIXELS(vec, 3, r1, -, r3)      \
            r0 += 2 * pitch, r1 += 2 * pitch, r2 += 2 * pitch, r3 += 2 * pitch;                    \
        }                                                                                          \
    }                                                                                              \
    FLUX__GEMM_FN(target) void name##_slopes(const float *const *row, int64_t pitch, int64_t tiles, float *v, int64_t step, int64_t apart) { \
        const float *r0 = row[0], *r1 = row[1];                                                    \
        vec a, b, s, t, x, y;                                                                      \
        for (; tiles > 0; tiles--, v += step, r0 += 2 * pitch, r1 += 2 * pitch) {                  \
            s = FLUX__WINOGRAD_GET(vec, r0), t = FLUX__WINOGRAD_GET(vec, r0 + pitch);              \
            x = FLUX__WINOGRAD_GET(vec, r1), y = FLUX__WINOGRAD_GET(vec, r1 + pitch);              \
            FLUX__WINOGRAD_SLOPES(vec, 0, s, t) FLUX__WINOGRAD_SLOPES(vec, 1, s + x, t + y)        \
            FLUX__WINOGRAD_SLOPES(vec, 2, s - x, t - y) FLUX__WINOGRAD_SLOPES(vec, 3, x, y)        \
        }                                                                                          \
    }                                                                                              \
    FLUX__GEMM_FN(target) void name##_taps(const float *m, int64_t apart, float *y, int64_t step) { \
        const vec zero = { 0 }, half = 0.5f - zero;                                                \
        vec a, b, c, p0, p1, p2, p3, q0, q1, q2, q3, r0, r1, r2, r3;                               \
        FLUX__WINOGRAD_DOWN3(vec, 0) FLUX__WINOGRAD_DOWN3(vec, 1) FLUX__WINOGRAD_DOWN3(vec, 2)     \
        FLUX__WINOGRAD_DOWN3(vec, 3)                                                               \
        FLUX__WINOGRAD_ALONG3(vec, 0, p) FLUX__WINOGRAD_ALONG3(vec, 1, q)                          \
        FLUX__WINOGRAD_ALONG3(vec, 2, r)                                                           \
    }
FLUX__WINOGRAD_SUMS(flux__winograd_avx2, flux__vec32f, FLUX__AVX2)
FLUX__WINOGRAD_SUMS(flux__winograd_avx512, flux__vec64f, FLUX__AVX512)

#  define FLUX__WINOGRAD_ADDED 56         /* about as many tiles are added up at once */
#  define FLUX__WINOGRAD_PIECE 128        /* most tiles of a piece of a row */
/* most shares of the tiles whose sums are made apart, and most numbers of them all */
#  define FLUX__WINOGRAD_SHARES 8
#  define FLUX__WINOGRAD_APART (1 << 18)

/* Gradients: batches of products of A, the windows' matrix transposed, and B, y's gradient. */
typedef struct flux__winograd_gradient {
    const flux__job *job;
    const flux__gemm_set *set;
    flux__winograd_tiles pixels, slopes;
    flux__winograd_taps taps;
    const float *x, *g;                   /* the first elements of A and B */
    /* A's steps in elements: from position to position along an image's rows and down, from tap to
       tap so, from channel to channel, from sample to sample */
    int64_t along, down, tap, tap_down, channel, sample;
    const flux__axes *places, *lines;     /* B's maps of positions and of columns */
    int64_t batches, x_batch, g_batch;    /* from batch to batch in A and in B */
    bool flip;
    int64_t wide, high, channels, columns, samples;
    int64_t across, rows;                 /* tiles in a row, rows of tiles in a sample */
    /* tiles of a piece of a row, pieces of a row; pieces that are added up at once */
    int64_t piece, pieces, each;
    /* shares of the tiles, of whose sums the taps are added up in order; chunks of them all */
    int64_t shares, chunks;
    float *apart;                         /* NULL, or each share's taps */
    int64_t some, parts;                  /* channels of a task, and tasks that share a column */
    int64_t nb, blocks;                   /* columns of a task; tasks that C is cut into */
    int failed;
} flux__winograd_gradient;

/* A task's channels and columns, and its scratch memory. */
typedef struct flux__winograd_block {
    int64_t batch, share;
    const float *x, *g;                   /* this batch's */
    int64_t c0, j0, mb, nb;               /* its first channel and column, and how many */
    int64_t mp, np;                       /* elements of a pixel in transposed rows */
    int64_t most;                         /* most tiles that are added up at once */
    int64_t v_apart, d_apart, m_apart;    /* from number to number */
    int64_t panel;                        /* elements of a panel of columns */
    /* the numbers of pixels, in panels of one or two vectors of channels; of y's gradient, in
       panels of columns; their products, tile by tile of the microkernel */
    float *v, *d, *m;
    float *image, *slopes;                /* four, two transposed rows of a piece */
    float *taps, *out;
} flux__winograd_block;

/* Transposes row `at` of pixels of a sample, from pixel `from` on, n pixels, zeros beyond the
   image. */
static void flux__winograd_row_of_x(const flux__winograd_gradient *w, const flux__winograd_block *b,
                                    int64_t sample, int64_t at, int64_t from, int64_t n,
                                    float *to) {
    /* a row of pixels is the first row of windows' first row of taps; the last two are the others
       of the last windows, and so with pixels of a row */
    const int64_t v = flux__gemm_min(at, w->high - 1),
        all = at < w->high + 2 ? flux__gemm_min(n, w->wide + 2 - from) : 0,
        first = flux__gemm_min(all, w->wide - from > 0 ? w->wide - from : 0);
    const float *x = b->x + sample * w->sample + b->c0 * w->channel + v * w->down +
                     (at - v) * w->tap_down;
    if (first > 0)
        flux__gemm_copy(4, x + from * w->along, w->channel, w->along, to, b->mp, b->mb, first);
    if (all > first)
        flux__gemm_copy(4, x + (w->wide - 1) * w->along + (from + first - w->wide + 1) * w->tap,
                        w->channel, w->tap, to + first * b->mp, b->mp, b->mb, all - first);
    if (n > all) memset(to + all * b->mp, 0, (size_t)((n - all) * b->mp) * sizeof *to);
}

/* The same of y's gradient. */
static void flux__winograd_row_of_g(const flux__winograd_gradient *w, const flux__winograd_block *b,
                                    int64_t sample, int64_t at, int64_t from, int64_t n,
                                    float *to) {
    const int64_t all = at < w->high ? flux__gemm_min(n, w->wide - from) : 0,
                  first = (sample * w->high + at) * w->wide + from;
    if (all > 0 && w->places->dim[0] % w->wide == 0 && w->lines->nd == 1)
        flux__gemm_copy(4, b->g + flux__axes_at(w->places, first) + b->j0 * w->lines->step[0],
                        w->lines->step[0], w->places->step[0], to, b->np, b->nb, all);
    else for (int64_t i = 0; i < all; i++) {
        const float *g = b->g + flux__axes_at(w->places, first + i);
        for (int64_t j = 0; j < b->nb; j++)
            to[i * b->np + j] = g[flux__axes_at(w->lines, b->j0 + j)];
    }
    if (n > all) memset(to + all * b->np, 0, (size_t)((n - all) * b->np) * sizeof *to);
}

/* Makes the numbers of the pieces s ... s+n-1 of rows of tiles; returns how many tiles. */
static int64_t flux__winograd_numbers(const flux__winograd_gradient *w,
                                      const flux__winograd_block *b, int64_t s, int64_t n) {
    const int64_t lanes = w->set->lanes, size = (2 * w->piece + 2) * b->mp;
    int64_t tiles = 0, some;
    FLUX__ASSERT(w->pieces == 1 || n == 1);    /* a piece of a row is added up alone */
    for (int64_t end = s + n, ready = -1; s < end; s++, tiles += some) {
        const int64_t y = s / w->pieces % w->rows, sample = s / w->pieces / w->rows,
                      from = s % w->pieces * w->piece;
        const float *row[4];
        some = flux__gemm_min(w->across - from, w->piece);
        for (int64_t r = 0; r < 4; r++) {
            float *to = b->image + (2 * y + r) % 4 * size;
            row[r] = to;
            if (ready != s || r > 1)      /* two rows are the tiles' before, too */
                flux__winograd_row_of_x(w, b, sample, 2 * y + r, 2 * from, 2 * some + 2, to);
        }
        ready = y + 1 < w->rows ? s + 1 : -1;
        for (int64_t c = 0, mr; c < b->mp; c += mr) {
            const float *at[4] = { row[0] + c, row[1] + c, row[2] + c, row[3] + c };
            const int64_t panel = c / (2 * lanes) * (2 * lanes),
                          step = b->mp - panel > lanes ? 2 * lanes : lanes;
            mr = lanes;
            w->pixels(at, b->mp, some, b->v + panel * b->most + tiles * step + c - panel, step,
                      b->v_apart);
        }
        for (int64_t r = 0; r < 2; r++) {
            float *to = b->slopes + r * 2 * w->piece * b->np;
            row[r] = to;
            flux__winograd_row_of_g(w, b, sample, 2 * y + r, 2 * from, 2 * some, to);
        }
        for (int64_t j = 0, q = 0, nr; j < b->nb; j += nr, q++) {
            const float *at[2] = { row[0] + j, row[1] + j };
            nr = flux__gemm_nr(b->nb - j, w->set->columns);
            FLUX__ASSERT(nr <= lanes);
            w->slopes(at, b->np, some, b->d + q * b->panel + tiles * nr, nr, b->d_apart);
        }
    }
    return tiles;
}

/* Finds run `number` of the memory that the rows of tiles s ... s+n-1 are made of: of some rows of
   a sample a channel of the image or of y's gradient. Returns its bytes, or 0: there is none. */
static int64_t flux__winograd_memory(const flux__winograd_gradient *w,
                                     const flux__winograd_block *b, int64_t s, int64_t n,
                                     int64_t number, const char **at) {
    const int64_t sample = number / (b->mb + b->nb), c = number % (b->mb + b->nb),
                  skip = sample > 0 ? sample * w->rows - s % w->rows : 0;
    if (skip >= n || w->pieces > 1) return 0;
    s += skip;
    const int64_t y = 2 * (s % w->rows), high = 2 * flux__gemm_min(n - skip, w->rows - s % w->rows),
                  which = s / w->rows;
    *at = (const char *)(c < b->mb
        ? b->x + which * w->sample + (b->c0 + c) * w->channel + y * w->down
        : b->g + flux__axes_at(w->places, (which * w->high + y) * w->wide) +
              (b->j0 + c - b->mb) * w->lines->step[0]);
    return high * 4 * (c < b->mb ? w->down : w->wide);
}

/* Adds the products of the tiles' numbers to the sums, or with `first` makes them the sums.
   Meanwhile the memory of the rows of tiles s ... s+n-1 is prefetched, run by run. */
static void flux__winograd_add(const flux__winograd_gradient *w, const flux__winograd_block *b,
                               int64_t tiles, bool first, int64_t s, int64_t n) {
    const int64_t lanes = w->set->lanes;
    int64_t run = 0;
    for (int64_t p = 0; p < 16; p++)
        for (int64_t j = 0, q = 0, nr; j < b->nb; j += nr, q++) {
            const float *d = b->d + p * b->d_apart + q * b->panel;
            float *m = b->m + p * b->m_apart + j * b->mp;
            nr = flux__gemm_nr(b->nb - j, w->set->columns);
            for (int64_t i = 0, mr; i < b->mp; i += mr, m += mr * nr) {
                mr = b->mp - i > lanes ? 2 * lanes : lanes;
                const char *next = (const char *)d;
                const int64_t bytes = flux__winograd_memory(w, b, s, n, run++, &next);
                (mr > lanes ? w->set->two : w->set->one)[flux__gemm_width(nr)](
                    tiles, b->v + p * b->v_apart + i * b->most, mr, d, nr, 1, m, mr,
                    first ? (int)FLUX__GEMM_NEW : (int)FLUX__GEMM_ADD, next,
                    (bytes + tiles - 1) / tiles);
            }
        }
}

/* Makes the taps of column j + k of the sums, whose panel begins at column j and has nr. */
static void flux__winograd_taps_of(const flux__winograd_gradient *w, const flux__winograd_block *b,
                                   int64_t j, int64_t k, int64_t nr, float *to) {
    const int64_t lanes = w->set->lanes, step = w->flip ? -b->mp : b->mp;
    const float *m = b->m + j * b->mp;
    float *taps = b->taps + (w->flip ? 8 * b->mp : 0);
    for (int64_t i = 0, mr; i < b->mp; i += mr, m += mr * nr) {
        mr = b->mp - i > lanes ? 2 * lanes : lanes;
        for (int64_t c = 0; c < mr; c += lanes)
            w->taps(m + k * mr + c, b->m_apart, taps + i + c, step);
    }
    flux__gemm_copy(4, b->taps, b->mp, 1, to, 9, 9, b->mb);
}

/* Makes the taps of the sums, and gives them to the kernel's program or puts them with those of
   other shares. */
static void flux__winograd_columns(flux__winograd_gradient *w, const flux__winograd_block *b,
                                   int worker) {
    const int64_t high = 9 * b->mb, most = FLUX__GEMM_PIECE / high + 1;
    flux__job job = *w->job;
    int64_t done = 0;
    job.batch = b->batch;
    for (int64_t j = 0, nr; j < b->nb; j += nr) {
        nr = flux__gemm_nr(b->nb - j, w->set->columns);
        for (int64_t k = 0; k < nr; k++) {
            const int64_t end = j + k + 1;
            float *to = w->apart ? w->apart + ((b->share * w->columns + b->j0 + j + k) *
                                               w->channels + b->c0) * 9
                                 : b->out + (j + k - done) * high;
            flux__winograd_taps_of(w, b, j, k, nr, to);
            if (w->apart || (end - done < most && end < b->nb)) continue;
            flux__epilogue(&job, worker, 9 * b->c0, b->j0 + done, high, end - done, b->out, high);
            done = end;
        }
    }
    if (flux__atomic_load32(&job.failed)) flux__atomic_store32(&w->failed, 1);
}

/* How many columns' shares are added up at a time. */
static int64_t flux__winograd_piece(const flux__winograd_gradient *w) {
    return FLUX__GEMM_PIECE / (9 * w->channels) + 1;
}
/* Adds up what the shares give for some columns, for the kernel's program. */
static void flux__winograd_join(void *ctx, int worker, int64_t number) {
    flux__winograd_gradient *w = (flux__winograd_gradient *)ctx;
    const int64_t j = number * flux__winograd_piece(w), high = 9 * w->channels,
                  n = flux__gemm_min(w->columns - j, flux__winograd_piece(w));
    char *to = (char *)(w->apart + j * high);
    flux__job job = *w->job;
    for (int64_t s = 1; s < w->shares; s++)
        flux__gemm_add_tile(4, to, high, (const char *)(w->apart + (s * w->columns + j) * high),
                            high, high, n, true);
    flux__epilogue(&job, worker, 0, j, high, n, to, high);
    if (flux__atomic_load32(&job.failed)) flux__atomic_store32(&w->failed, 1);
}

/* Asks for a task's scratch memory. */
static bool flux__winograd_reserve(const flux__winograd_gradient *w, flux__winograd_block *b) {
    const int64_t lanes = w->set->lanes, most = w->set->columns;
    int64_t panels = 0, size[7], all = 0;
    for (int64_t j = 0; j < b->nb; j += flux__gemm_nr(b->nb - j, most)) panels++;
    b->mp = flux__gemm_up(b->mb, lanes), b->np = flux__gemm_up(b->nb, 16) + 16;
    b->most = w->each * w->piece;
    b->panel = b->most * most + 16;
    /* odd numbers of cache lines, which do not crowd into one set of the cache */
    b->v_apart = flux__gemm_up(b->mp * b->most, 16) | 16;
    b->d_apart = flux__gemm_up(panels * b->panel, 16) | 16;
    b->m_apart = flux__gemm_up(b->mp * b->nb, 16) | 16;
    size[0] = 16 * b->v_apart, size[1] = 16 * b->d_apart, size[2] = 16 * b->m_apart;
    size[3] = 4 * (2 * w->piece + 2) * b->mp, size[4] = 4 * w->piece * b->np + 16;
    size[5] = 9 * b->mp;
    size[6] = w->apart ? 0 : flux__gemm_min(FLUX__GEMM_PIECE + 9 * b->mb, 9 * b->mb * b->nb);
    for (int i = 0; i < 7; i++) all += size[i] = flux__gemm_up(size[i], 16);
    if (!(b->v = (float *)flux__scratch((size_t)all * sizeof *b->v))) return false;
    b->d = b->v + size[0], b->m = b->d + size[1], b->image = b->m + size[2];
    b->slopes = b->image + size[3], b->taps = b->slopes + size[4], b->out = b->taps + size[5];
    memset(b->image, 0, (size_t)(size[3] + size[4]) * sizeof *b->image);
    return true;
}

/* Computes some channels of some columns of a batch, by a share of its tiles. */
static void flux__winograd_gradient_task(void *ctx, int worker, int64_t number) {
    flux__winograd_gradient *w = (flux__winograd_gradient *)ctx;
    const int64_t block = number % w->blocks;
    flux__winograd_block b;
    b.share = number / w->blocks % w->shares, b.batch = number / w->blocks / w->shares;
    b.x = w->x + b.batch * w->x_batch, b.g = w->g + b.batch * w->g_batch;
    b.c0 = block % w->parts * w->some, b.j0 = block / w->parts * w->nb;
    b.mb = flux__gemm_min(w->channels - b.c0, w->some);
    b.nb = flux__gemm_min(w->columns - b.j0, w->nb);
    if (!flux__winograd_reserve(w, &b)) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    const int64_t first = b.share * w->chunks / w->shares * w->each,
        end = flux__gemm_min((b.share + 1) * w->chunks / w->shares * w->each,
                             w->samples * w->rows * w->pieces);
    for (int64_t s = first, n; s < end; s += n) {
        n = flux__gemm_min(end - s, w->each);
        flux__winograd_add(w, &b, flux__winograd_numbers(w, &b, s, n), s == first, s + n,
                           flux__gemm_min(end - s - n, w->each));
        flux__between();
    }
    flux__winograd_columns(w, &b, worker);
    flux__scratch_done(b.v);
}

/* Cuts the tiles into chunks, by the shape alone, and C into blocks for the threads. */
static void flux__winograd_gradient_plan(flux__winograd_gradient *w) {
    const int64_t threads = flux__num_threads();
    w->across = (w->wide + 1) / 2, w->rows = (w->high + 1) / 2;
    w->set = flux__gemm_kernels(false, false);
    const bool half = flux__simd() < 2;
    w->pixels = half ? flux__winograd_avx2_pixels : flux__winograd_avx512_pixels;
    w->slopes = half ? flux__winograd_avx2_slopes : flux__winograd_avx512_slopes;
    w->taps = half ? flux__winograd_avx2_taps : flux__winograd_avx512_taps;
    w->pieces = (w->across + FLUX__WINOGRAD_PIECE - 1) / FLUX__WINOGRAD_PIECE;
    w->piece = (w->across + w->pieces - 1) / w->pieces;
    const int64_t all = w->samples * w->rows * w->pieces,
                  most = flux__gemm_min(FLUX__WINOGRAD_ADDED / w->piece + 1, all),
                  times = (all + most - 1) / most;
    w->each = (all + times - 1) / times;
    w->chunks = (all + w->each - 1) / w->each;
    w->shares = w->batches > 1 ? 1 : FLUX__WINOGRAD_SHARES;
    while (w->shares > 1 && (w->chunks < 2 * w->shares ||
                             w->shares * 9 * w->channels * w->columns > FLUX__WINOGRAD_APART))
        w->shares /= 2;
    if (w->flip) {                        /* from the other end */
        w->x += 2 * (w->tap + w->tap_down);
        w->tap = -w->tap, w->tap_down = -w->tap_down;
    }
    w->some = flux__gemm_split(w->channels, (w->channels + 63) / 64, 32);
    w->nb = flux__gemm_split(w->columns, (w->columns + 127) / 128, 4);
    for (;;) {
        w->parts = (w->channels + w->some - 1) / w->some;
        w->blocks = w->parts * ((w->columns + w->nb - 1) / w->nb);
        if (w->blocks * w->shares * w->batches >= threads) break;
        if (w->nb >= 24) w->nb = flux__gemm_split(w->nb, 2, 4);
        else if (w->some > 32) w->some = flux__gemm_split(w->some, 2, 32);
        else break;
    }
}

/* Computes planned gradients. */
static void flux__winograd_gradient_run(flux__winograd_gradient *w) {
    const int64_t size = w->shares * 9 * w->channels * w->columns,
                  piece = flux__winograd_piece(w);
    if (w->shares > 1 && !(w->apart = (float *)flux__scratch((size_t)size * sizeof *w->apart))) {
        w->failed = 1;
        return;
    }
    flux__parallel_workers(w->blocks * w->shares * w->batches, flux__winograd_gradient_task, w);
    if (w->apart && !flux__atomic_load32(&w->failed))
        flux__parallel_workers((w->columns + piece - 1) / piece, flux__winograd_join, w);
    flux__scratch_done(w->apart);
}
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_WINOGRAD_GRADIENT_H */
