#ifndef FLUX__CPU_WINOGRAD_H
#define FLUX__CPU_WINOGRAD_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/system.h"
#include "../base/workers.h"
#include "loops.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"
#include "run.h"
#include "products.h"
#include "padding.h"

/* ---------------------------------------------------------------------- cpu/winograd.h
   Convolution by windows of 3 x 3, a step apart, with fewer multiplications:
   Winograd's F(2 x 2, 3 x 3) (Lavin and Gray, "Fast algorithms for convolutional
   neural networks", 2015). A tile, 2 x 2 results, needs 4 x 4 pixels; sums and
   differences of these are multiplied by such of the kernel, 16 numbers instead of
   36, and added up over the channels by 16 matrix products, tiles x channels x
   results' channels, whose sums and differences are the tile.

   Invariant: whether a convolution is computed so depends on its shape alone, and
   a result's additions are the same for any number of threads, with AVX2 and
   AVX-512, and whether the windows are read in the image or from a copy of them,
   as when a graph is computed in parts. Channels are added in chunks of at most
   256, so that errors stay below 1.7 times those of the plain product (measured;
   with up to 128 channels they are smaller). What lies beyond the image in its last
   tiles reaches no result.

   Rejected: F(4 x 4, 3 x 3), whose errors are several times as large. */

FLUX__BEGIN_HOT

#if FLUX__GEMM_VECTORS && FLUX__X86
#  define FLUX__WINOGRAD 1

/* Of one channel and a row of tiles: the 16 numbers of each tile, number p at v + p * apart, of
   the four rows of pixels. Lanes behind the last tile are written too, if they are few. */
typedef void (*flux__winograd_in)(const float *const *row, int64_t tiles, float *v, int64_t apart);
/* The two rows of results of such tiles; y1 is NULL where the image ends before it. What lies
   behind a row's end is written too: the rows after it come later. */
typedef void (*flux__winograd_out)(const float *m, int64_t apart, int64_t tiles, float *y0,
                                   float *y1);

#  define FLUX__WINOGRAD_GET(vec, from) (*(const vec *)(const void *)(from))
#  define FLUX__WINOGRAD_PUT(vec, to, from) *(vec *)(void *)(to) = from;
/* the numbers 4i ... 4i+3 of the pixels in x op y, where x and y are rows */
#  define FLUX__WINOGRAD_ROW(vec, ints, i, x, op, y)                                               \
    a = FLUX__WINOGRAD_GET(vec, x + at) op FLUX__WINOGRAD_GET(vec, y + at);                        \
    b = FLUX__WINOGRAD_GET(vec, x + at + lanes) op FLUX__WINOGRAD_GET(vec, y + at + lanes);        \
    c = FLUX__WINOGRAD_GET(vec, x + at + 2) op FLUX__WINOGRAD_GET(vec, y + at + 2);                \
    d = FLUX__WINOGRAD_GET(vec, x + at + lanes + 2) op FLUX__WINOGRAD_GET(vec, y + at + lanes + 2); \
    FLUX__SHUFFLE(e, a, b, ints, FLUX__EVEN_##vec) FLUX__SHUFFLE(f, a, b, ints, FLUX__ODD_##vec)   \
    FLUX__SHUFFLE(g, c, d, ints, FLUX__EVEN_##vec) FLUX__SHUFFLE(h, c, d, ints, FLUX__ODD_##vec)   \
    FLUX__WINOGRAD_PUT(vec, v + t + 4 * i * apart, e - g)                                          \
    FLUX__WINOGRAD_PUT(vec, v + t + (4 * i + 1) * apart, f + g)                                    \
    FLUX__WINOGRAD_PUT(vec, v + t + (4 * i + 2) * apart, g - f)                                    \
    FLUX__WINOGRAD_PUT(vec, v + t + (4 * i + 3) * apart, f - h)
#  define FLUX__WINOGRAD_SUM(vec, j, s, z)                                                         \
    a = FLUX__WINOGRAD_GET(vec, m + t + j * apart);                                                \
    b = FLUX__WINOGRAD_GET(vec, m + t + (4 + j) * apart);                                          \
    c = FLUX__WINOGRAD_GET(vec, m + t + (8 + j) * apart);                                          \
    d = FLUX__WINOGRAD_GET(vec, m + t + (12 + j) * apart);                                         \
    s = a + b + c, z = b - c - d;
#  define FLUX__WINOGRAD_STORE(vec, ints, to, p, q, r, s)                                          \
    a = p + q + r, b = q - r - s;                                                                  \
    FLUX__SHUFFLE(c, a, b, ints, FLUX__LOW_##vec) FLUX__SHUFFLE(d, a, b, ints, FLUX__HIGH_##vec)   \
    FLUX__WINOGRAD_PUT(vec, to + 2 * t, c) FLUX__WINOGRAD_PUT(vec, to + 2 * t + lanes, d)
#  define FLUX__WINOGRAD_MOVES(name, vec, ints, target)                                            \
    FLUX__GEMM_FN(target) void name##_in(const float *const *row, int64_t tiles, float *v, int64_t apart) { \
        const float *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];                        \
        const int64_t lanes = (int)(sizeof(vec) / sizeof *v);                                      \
        vec a, b, c, d, e, f, g, h;                                                                \
        for (int64_t t = 0, at; t < tiles; t += lanes) {                                           \
            if (t + lanes > tiles && t > 0) t = tiles - lanes;                                     \
            at = 2 * t;                                                                            \
            FLUX__WINOGRAD_ROW(vec, ints, 0, r0, -, r2) FLUX__WINOGRAD_ROW(vec, ints, 1, r1, +, r2) \
            FLUX__WINOGRAD_ROW(vec, ints, 2, r2, -, r1) FLUX__WINOGRAD_ROW(vec, ints, 3, r1, -, r3) \
        }                                                                                          \
    }                                                                                              \
    FLUX__GEMM_FN(target) void name##_out(const float *m, int64_t apart, int64_t tiles, float *y0, float *y1) { \
        const int64_t lanes = (int)(sizeof(vec) / sizeof *m);                                      \
        vec a, b, c, d, s0, s1, s2, s3, z0, z1, z2, z3;                                            \
        for (int64_t t = tiles > lanes ? tiles - lanes : 0;; t = t > lanes ? t - lanes : 0) {      \
            FLUX__WINOGRAD_SUM(vec, 0, s0, z0) FLUX__WINOGRAD_SUM(vec, 1, s1, z1)                  \
            FLUX__WINOGRAD_SUM(vec, 2, s2, z2) FLUX__WINOGRAD_SUM(vec, 3, s3, z3)                  \
            FLUX__WINOGRAD_STORE(vec, ints, y0, s0, s1, s2, s3)                                    \
            if (y1) { FLUX__WINOGRAD_STORE(vec, ints, y1, z0, z1, z2, z3) }                        \
            if (t == 0) break;                                                                     \
        }                                                                                          \
    }
#  define FLUX__EVEN_flux__vec32f 0, 2, 4, 6, 8, 10, 12, 14
#  define FLUX__ODD_flux__vec32f 1, 3, 5, 7, 9, 11, 13, 15
#  define FLUX__LOW_flux__vec32f 0, 8, 1, 9, 2, 10, 3, 11
#  define FLUX__HIGH_flux__vec32f 4, 12, 5, 13, 6, 14, 7, 15
#  define FLUX__EVEN_flux__vec64f 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#  define FLUX__ODD_flux__vec64f 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#  define FLUX__LOW_flux__vec64f 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#  define FLUX__HIGH_flux__vec64f 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
FLUX__WINOGRAD_MOVES(flux__winograd_avx2, flux__vec32f, flux__vec32i, FLUX__AVX2)
FLUX__WINOGRAD_MOVES(flux__winograd_avx512, flux__vec64f, flux__vec64i, FLUX__AVX512)

/* The 16 numbers of each channel's 3 x 3 numbers, of which number i is at g + i * step; number p at
   u + p * apart. Up to 7 channels more are computed. */
#  define FLUX__WINOGRAD_G(i) FLUX__WINOGRAD_GET(V, g + c + (i) * step)
#  define FLUX__WINOGRAD_DOWN(x)                                                                   \
    p##x = FLUX__WINOGRAD_G(x), w = FLUX__WINOGRAD_G(x + 3) * half, s##x = FLUX__WINOGRAD_G(x + 6); \
    q##x = (p##x + s##x) * half + w, r##x = (p##x + s##x) * half - w;
#  define FLUX__WINOGRAD_ALONG(i, x)                                                               \
    w = (x##0 + x##2) * half;                                                                      \
    FLUX__WINOGRAD_PUT(V, u + c + 4 * i * apart, x##0)                                             \
    FLUX__WINOGRAD_PUT(V, u + c + (4 * i + 1) * apart, w + x##1 * half)                            \
    FLUX__WINOGRAD_PUT(V, u + c + (4 * i + 2) * apart, w - x##1 * half)                            \
    FLUX__WINOGRAD_PUT(V, u + c + (4 * i + 3) * apart, x##2)
FLUX__GEMM_FN(FLUX__AVX2) void flux__winograd_filter(const float *g, int64_t step, int64_t channels,
                                                     float *u, int64_t apart) {
    typedef flux__vec32f V;
    const V zero = { 0 }, half = 0.5f - zero;
    V w, p0, p1, p2, q0, q1, q2, r0, r1, r2, s0, s1, s2;
    for (int64_t c = 0; c < channels; c += 8) {
        FLUX__WINOGRAD_DOWN(0) FLUX__WINOGRAD_DOWN(1) FLUX__WINOGRAD_DOWN(2)
        FLUX__WINOGRAD_ALONG(0, p) FLUX__WINOGRAD_ALONG(1, q) FLUX__WINOGRAD_ALONG(2, r)
        FLUX__WINOGRAD_ALONG(3, s)
    }
}

#  define FLUX__WINOGRAD_CHUNK 256        /* most channels that are added up at once */
#  define FLUX__WINOGRAD_TILES 256        /* most tiles that are multiplied together */

/* A convolution. Of the windows' matrix and of the kernel's, x and k are the places of their first
   elements; steps are in elements: from position to position along the image's rows and down,
   from tap to tap so, from channel to channel, from sample to sample. */
typedef struct flux__winograd {
    const flux__job *job;
    const flux__gemm_set *set;
    flux__winograd_in in;
    flux__winograd_out out;
    const float *x, *k, *end;             /* end: behind the image's last pixel */
    int64_t along, down, tap, tap_down, channel, sample;
    int64_t k_tap, k_channel, k_column;
    bool flip, direct;                    /* direct: the image is read where it is */
    const flux__padded_rows *pad;         /* NULL, or what pads its rows when they are read */
    int64_t wide, high, across, rows, channels, columns, samples;  /* across: tiles in a row */
    /* rows of tiles in a group, and groups; columns of a part, and parts */
    int64_t each, groups, some, parts;
    /* the kernel's numbers: panel by panel of columns, the 16 numbers, column by column; NULL: they
       are to be made in scratch memory. known: they need not be made */
    float *u;
    bool known;
    int64_t deep;                         /* channels, rounded up to vectors */
    int failed;
} flux__winograd;

/* Makes the kernel's numbers of some columns. */
#  define FLUX__WINOGRAD_FILTERS 8
static void flux__winograd_filters(void *ctx, int64_t task) {
    flux__winograd *w = (flux__winograd *)ctx;
    int64_t j = task * FLUX__WINOGRAD_FILTERS,
            end = flux__gemm_min(j + FLUX__WINOGRAD_FILTERS, w->columns);
    float *g = (float *)flux__scratch((size_t)(9 * w->deep) * sizeof *g);
    if (!g) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    for (; j < end; j++) {
        int64_t at = j / w->some * w->some, last = flux__gemm_min(at + w->some, w->columns), nr;
        while (nr = flux__gemm_nr(last - at, w->set->columns), at + nr <= j) at += nr;
        flux__gemm_copy(4, w->k + j * w->k_column, w->k_channel, w->k_tap, g, w->deep, w->channels,
                        9);
        flux__winograd_filter(w->flip ? g + 8 * w->deep : g, w->flip ? -w->deep : w->deep,
                              w->channels, w->u + (at * 16 + j - at) * w->deep, nr * w->deep);
    }
    flux__scratch_done(g);
}

/* Finds the four rows of pixels of a row of tiles; `need` elements of each are read. Where they
   cannot be read in the image, they are put into `copy`. */
static void flux__winograd_pixels(const flux__winograd *w, int64_t sample, int64_t y, int64_t c,
                                  int64_t need, float *copy, const float **row) {
    for (int r = 0; r < 4; r++, copy += need) {
        /* a row of pixels is the first row of windows' first row of taps; the last two are the
           others of the last windows */
        const int64_t at = flux__gemm_min(y + r, w->high + 1), v = flux__gemm_min(at, w->high - 1);
        const float *from = w->x + sample * w->sample + c * w->channel + v * w->down +
                            (w->flip ? 2 - at + v : at - v) * w->tap_down +
                            (w->flip ? 2 * w->tap : 0);
        row[r] = from;
        if (w->direct && from + need <= w->end) continue;
        row[r] = copy;
        for (int64_t i = 0; i < w->wide; i++) copy[i] = from[i * w->along];
        from += (w->wide - 1) * w->along;
        for (int64_t i = 1, tap = w->flip ? -w->tap : w->tap; i < 3; i++)
            copy[w->wide - 1 + i] = from[i * tap];
    }
}

/* Pads the rows of pixels of `some` rows of tiles from pixel row y on; copy: a line of `need`
   floats for each. */
static void flux__winograd_pad(const flux__winograd *w, int64_t sample, int64_t y, int64_t c,
                               int64_t some, int64_t need, float *copy) {
    for (int64_t r = 0; r < 2 * some + 2; r++, copy += need)
        flux__pad_row(w->pad, sample, c, flux__gemm_min(y + r, w->high + 1), w->wide + 2, copy);
}

/* Makes the numbers of the tiles of one channel, n rows of tiles from row s of all samples on.
   copy: memory for 2n + 2 lines of `need` floats. */
static void flux__winograd_channel(const flux__winograd *w, int64_t s, int64_t n, int64_t c,
                                   int64_t need, float *copy, float *v, int64_t apart) {
    const float *row[4];
    float *first = copy;                  /* of the rows that are padded */
    for (int64_t r = 0; r < n; r++, v += w->across, first += w->pad ? 2 * need : 0) {
        const int64_t sample = (s + r) / w->rows, y = (s + r) % w->rows;
        if (!w->pad) flux__winograd_pixels(w, sample, 2 * y, c, need, copy, row);
        else if (r == 0 || y == 0)
            flux__winograd_pad(w, sample, 2 * y, c, flux__gemm_min(n - r, w->rows - y), need,
                               first = copy);
        for (int i = 0; i < 4 && w->pad; i++) row[i] = first + i * need;
        w->in(row, w->across, v, apart);
    }
}

/* Multiplies the tiles' numbers by those of nr columns from column j on, panel u. */
static void flux__winograd_multiply(const flux__winograd *w, const float *v, int64_t apart,
                                    int64_t tiles, const float *u, int64_t nr, float *m,
                                    int64_t m_apart) {
    const int64_t tall = 2 * w->set->lanes, chunk = flux__gemm_split(w->channels,
        (w->channels + FLUX__WINOGRAD_CHUNK - 1) / FLUX__WINOGRAD_CHUNK, 8);
    const int which = (int)flux__gemm_width(nr);
    for (int p = 0; p < 16; p++, v += apart, u += nr * w->deep, m += m_apart)
        for (int64_t k = 0, n; k < w->channels; k += n) {
            n = flux__gemm_min(w->channels - k, chunk);
            for (int64_t i = 0; i < tiles; i += tall) {
                const bool first = i == 0;  /* fetches the numbers that come next */
                (tiles - i < tall ? w->set->one : w->set->two)[which](
                    n, v + k * tiles + i, tiles, u + k, 1, w->deep, m + i, tiles, k > 0,
                    first ? u + nr * w->deep + k * 16 : v, first ? 64 : 0);
            }
        }
}

/* Puts nb columns of the rows of tiles s ... s+n-1 together in `block`, and gives them to the
   kernel's program, sample by sample. */
static void flux__winograd_finish(const flux__winograd *w, int worker, int64_t s, int64_t n,
                                  const float *m, int64_t tiles, int64_t apart, int64_t j,
                                  int64_t nb, float *block) {
    flux__job job = *w->job;
    for (int64_t some, first, height; n > 0; n -= some, s += some, m += some * w->across) {
        job.batch = s / w->rows, first = s % w->rows;
        some = flux__gemm_min(n, w->rows - first);
        height = flux__gemm_min(2 * some, w->high - 2 * first);
        for (int64_t c = 0; c < nb; c++)
            for (int64_t r = 0; r < some; r++) {
                float *y = block + (c * height + 2 * r) * w->wide;
                w->out(m + c * tiles + r * w->across, apart, w->across, y,
                       2 * r + 1 < height ? y + w->wide : NULL);
            }
        flux__epilogue(&job, worker, 2 * first * w->wide, j, height * w->wide, nb, block,
                       height * w->wide);
    }
    if (flux__atomic_load32(&job.failed)) flux__atomic_store32((int *)(uintptr_t)&w->failed, 1);
}

/* Computes a group's rows of tiles of a part's columns. */
static void flux__winograd_task(void *ctx, int worker, int64_t number) {
    flux__winograd *w = (flux__winograd *)ctx;
    const int64_t s = number % w->groups * w->each, j0 = number / w->groups * w->some,
        n = flux__gemm_min(w->each, w->rows * w->samples - s),
        end = flux__gemm_min(j0 + w->some, w->columns), tiles = flux__gemm_up(n * w->across, 16),
        lanes = w->across > 8 ? w->set->lanes : 8, most = w->set->columns,
        columns = flux__gemm_min(flux__gemm_up(2048 / tiles, most) + most, end - j0),
        apart = w->channels * tiles + 16, m_apart = columns * tiles,
        need = 2 * (w->across > lanes ? w->across : lanes) + 2,
        block = 2 * n * w->wide * columns + 64, lines = w->pad ? 2 * n + 2 : 4;
    float *v = (float *)flux__scratch((size_t)(16 * (apart + m_apart) + 16 + block +
                                               lines * need) * sizeof *v);
    if (!v) {
        flux__atomic_store32(&w->failed, 1);
        return;
    }
    float *m = v + 16 * apart, *out = m + 16 * m_apart + 16, *copy = out + block;
    for (int64_t c = 0; c < w->channels; c++)
        flux__winograd_channel(w, s, n, c, need, copy, v + c * tiles, apart);
    for (int64_t j = j0, nb, nr; j < end; j += nb) {
        for (nb = 0; nb == 0 || (j + nb < end && nb + most <= columns); nb += nr) {
            nr = flux__gemm_nr(end - j - nb, most);
            flux__winograd_multiply(w, v, apart, tiles, w->u + (j + nb) * 16 * w->deep, nr,
                                    m + nb * tiles, m_apart);
        }
        flux__winograd_finish(w, worker, s, n, m, tiles, m_apart, j, nb, out);
        flux__between();
    }
    flux__scratch_done(v);
}

/* Whether images of so many results are worth it: channels enough on both sides, tiles enough for
   what the kernel's numbers take, few results that tiles have beyond the image (of 7 x 7 results
   4 x 4 tiles are still 1.15 to 1.25 times as fast as the product of windows, 1.6 times where the
   kernel's numbers are known). */
static bool flux__winograd_pays(int64_t channels, int64_t columns, int64_t wide, int64_t high,
                                int64_t samples) {
    const int64_t tiles = (wide + 1) / 2 * ((high + 1) / 2);
    return flux__simd() > 0 && channels >= 16 && columns >= 16 && 20 * tiles <= 7 * wide * high &&
           tiles * samples >= 64;
}

/* Whether a convolution is computed so. Shorter rows would not fill a vector. */
static bool flux__winograd_fits(flux__winograd *w) {
    w->across = (w->wide + 1) / 2, w->rows = (w->high + 1) / 2;
    return w->wide >= 6 &&
           flux__winograd_pays(w->channels, w->columns, w->wide, w->high, w->samples);
}

/* About how long n rows of tiles take, in tiles: whole vectors, of which a last single one takes
   longer than half of two, and the kernel's numbers are read. */
static int64_t flux__winograd_cost(const flux__winograd *w, int64_t n) {
    const int64_t tiles = flux__gemm_up(n * w->across, 16);
    return n ? tiles + tiles % 32 / 2 + 16 : 0;
}
/* Cuts the rows of tiles into groups whose numbers stay in the second-level cache, and the columns
   into parts, for the threads. */
static void flux__winograd_cut(flux__winograd *w) {
    const int64_t all = w->rows * w->samples, threads = flux__num_threads(),
        most = w->set->columns,
        tiles = flux__gemm_min((1 << 20) / (64 * w->channels), FLUX__WINOGRAD_TILES);
    int64_t best = 0;
    for (int64_t n = 1, cost; n <= all && (n == 1 || n * w->across <= tiles); n++) {
        cost = all / n * flux__winograd_cost(w, n) + flux__winograd_cost(w, all % n);
        if (n == 1 || cost <= best) best = cost, w->each = n;
    }
    w->groups = (all + w->each - 1) / w->each;
    w->parts = threads > 1 && w->groups < 2 * threads ? flux__gemm_min(
        (2 * threads + w->groups - 1) / w->groups, w->columns / 64 + 1) : 1;
    w->some = flux__gemm_split(w->columns, w->parts, most);
    w->parts = (w->columns + w->some - 1) / w->some;
}

/* Chooses how a convolution that fits, whose places and steps are given, is computed. */
static void flux__winograd_plan(flux__winograd *w) {
    w->set = flux__gemm_kernels(false, false);
    const bool half = flux__simd() < 2 || w->across <= 8;
    w->in = half ? flux__winograd_avx2_in : flux__winograd_avx512_in;
    w->out = half ? flux__winograd_avx2_out : flux__winograd_avx512_out;
    const int64_t sign = w->flip ? -1 : 1;
    w->direct = w->along == 1 && w->tap == sign && w->tap_down == sign * w->down && w->down > 0 &&
                w->channel >= 0 && w->sample >= 0;
    w->end = w->x + (w->flip ? 2 * (w->tap + w->tap_down) : 0) + (w->samples - 1) * w->sample +
             (w->channels - 1) * w->channel + (w->high + 1) * w->down + w->wide + 2;
    w->deep = flux__gemm_up(w->channels, 16);
    flux__winograd_cut(w);
}

/* Bytes of the kernel's numbers. */
static int64_t flux__winograd_bytes(const flux__winograd *w) { return 64 * w->deep * w->columns; }

/* Computes a planned convolution. */
static void flux__winograd_run(flux__winograd *w) {
    void *scratch = w->u ? NULL : flux__scratch((size_t)flux__winograd_bytes(w));
    if (!w->u) w->u = (float *)scratch;
    w->failed = !w->u;
    if (w->u && !w->known)
        flux__parallel((w->columns + FLUX__WINOGRAD_FILTERS - 1) / FLUX__WINOGRAD_FILTERS,
                       flux__winograd_filters, w);
    if (!flux__atomic_load32(&w->failed))
        flux__parallel_workers(w->groups * w->parts, flux__winograd_task, w);
    flux__scratch_done(scratch);
}
#else
#  define FLUX__WINOGRAD 0
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_WINOGRAD_H */
