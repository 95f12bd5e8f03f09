#ifndef FLUX__CPU_GEMM_AMX_H
#define FLUX__CPU_GEMM_AMX_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_store32 */
#include "../base/system.h"
#include "../base/workers.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h"

/* ---------------------------------------------------------------------- cpu/gemm_amx.h
   Products of bf16 by AMX, the matrix unit of Intel's processors: eight tiles of
   16 rows by 64 bytes. An instruction adds to a tile of f32 the product of a
   tile whose rows are 16 words along k and of one whose columns are, a word
   being two neighbours along k. C's columns are the rows of its tiles, so that
   these are stored as C lies. Four tiles hold 32 x 32 elements of C while A and
   B go through the other four.

   A task computes FLUX__AMX_ROWS x FLUX__AMX_COLUMNS of C at most, half as many
   rows of a long k or of a very short one. It packs its rows of A in panels of
   32, FLUX__AMX_STEPS steps of k at a time: line l of a panel is word l of each
   row. So panels have 512 KB at most, a quarter of the second-level cache. B is
   read where it lies if its columns are contiguous along k, but for what fills no
   tile; else it is copied once for all tasks. Of an operand with a map (the
   windows of an image) a part at a time is collected first, and packed as a
   matrix.

   Invariant: an element's sum goes over whole tiles of k from its beginning on,
   the last one padded with zeros; it is the same for any number of threads and
   any block. Instructions are macros (FLUX__AMX_LOAD ...), for which a test may
   put functions that do as the processor's manual says. Tiles are released at
   the end of a task, so that nothing of them is saved when threads change.

   Rejected: prefetching panels, and a copy of B where its columns crowd into a
   few sets of the cache: neither was faster. */

FLUX__BEGIN_HOT

#if FLUX__AMX

enum {
    FLUX__AMX_STEPS = 32,                 /* most steps of k in a panel, which are 16 words each */
    FLUX__AMX_LINE = 128,                 /* bytes of a panel's line: a word of 32 rows */
    FLUX__AMX_ROWS = 512, FLUX__AMX_COLUMNS = 1024
};
/* Bytes of a panel of so many steps. */
#define FLUX__AMX_PANEL(steps) ((steps) * 16 * FLUX__AMX_LINE)

/* What LDTILECFG reads: the rows of each tile, and the bytes of a row. */
typedef struct flux__amx_tiles {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} flux__amx_tiles;

/* A tile's rows are `step` bytes apart in memory. FLUX__AMX_HERE: whether there are tiles. */
#ifndef FLUX__AMX_LOAD
#  define FLUX__AMX_HERE() (flux__simd() > 3)
#  define FLUX__AMX_SET(tiles) __asm__ volatile("ldtilecfg %0" : : "m"(*(tiles)));
#  define FLUX__AMX_RELEASE() __asm__ volatile("tilerelease");
#  define FLUX__AMX_ZERO(t) __asm__ volatile("tilezero {%%tmm" #t "|tmm" #t "}" : :);
#  define FLUX__AMX_LOAD(t, from, step)                                                            \
    __asm__ volatile("tileloadd {(%0,%1,1), %%tmm" #t "|tmm" #t ", [%0+%1*1]}"                     \
                     : : "r"(from), "r"((int64_t)(step)) : "memory");
#  define FLUX__AMX_STORE(t, to, step)                                                             \
    __asm__ volatile("tilestored {%%tmm" #t ", (%0,%1,1)|[%0+%1*1], tmm" #t "}"                    \
                     : : "r"(to), "r"((int64_t)(step)) : "memory");
#  define FLUX__AMX_DOT(c, a, b)                                                                   \
    __asm__ volatile("tdpbf16ps {%%tmm" #b ", %%tmm" #a ", %%tmm" #c "|tmm" #c ", tmm" #a          \
                     ", tmm" #b "}" : :);
#endif

typedef struct flux__amx_product {
    const flux__gemm_job *job;
    int64_t steps;                        /* of k: 16 words each, the last one padded with zeros */
    const char *b;                        /* columns of words along k, */
    int64_t b_step;                       /* so many bytes apart */
    char *copy;                           /* NULL, or scratch memory of all of B, or its `rest` */
    const char *rest;                     /* NULL, or of each column the last step, 64 bytes, of
                                             which b has a part alone */
    int64_t at[FLUX__AMX_STEPS];          /* in a column, where each step begins */
    int64_t rows, columns, down;          /* of C in a task; tasks down C */
    int failed;
} flux__amx_product;

/* The rows and columns of C that a thread's tiles are shaped for; at first 0, none. */
typedef struct flux__amx_shape { int64_t rows, columns; } flux__amx_shape;

/* Shapes tiles for mb x nb elements of C, at most 32 x 32. Tiles 0 and 1 hold the first 16 columns
   of C, 2 and 3 the others; 4 and 5 B's columns; 6 and 7 A's rows. */
static void flux__amx_set(flux__amx_shape *shape, int64_t mb, int64_t nb) {
    FLUX__ZEROED(flux__amx_tiles, t);
    shape->rows = mb, shape->columns = nb;
    t.palette = 1;
    for (int i = 0; i < 8; i++) {
        const bool right = i < 4 ? i > 1 : i == 5, low = i < 4 ? i % 2 : i == 7;
        const int64_t columns = right ? nb - 16 : flux__gemm_min(nb, 16),
                      rows = low ? mb - 16 : flux__gemm_min(mb, 16);
        t.rows[i] = (uint8_t)(i > 5 ? 16 : columns > 0 ? columns : 1);
        t.bytes[i] = (uint16_t)(i == 4 || i == 5 ? 64 : rows > 0 ? 4 * rows : 4);
    }
    FLUX__AMX_SET(&t)
}

/* Adds to the tiles of C the products of 16 words: a: 16 lines of A, FLUX__AMX_LINE bytes apart;
   b: B's columns, b_step bytes apart. tall, wide: C has more than 16 rows, columns. */
#define FLUX__AMX_STEP(a, b, b_step) {                                                             \
        FLUX__AMX_LOAD(4, b, b_step)                                                               \
        FLUX__AMX_LOAD(6, a, FLUX__AMX_LINE)                                                       \
        if (tall) { FLUX__AMX_LOAD(7, (a) + 64, FLUX__AMX_LINE) }                                  \
        FLUX__AMX_DOT(0, 4, 6)                                                                     \
        if (tall) { FLUX__AMX_DOT(1, 4, 7) }                                                       \
        if (wide) { FLUX__AMX_LOAD(5, (b) + 16 * (b_step), b_step) FLUX__AMX_DOT(2, 5, 6) }        \
        if (wide && tall) { FLUX__AMX_DOT(3, 5, 7) }                                               \
    }
/* Does `what` with each tile of C and where it is stored. */
#define FLUX__AMX_EACH(what)                                                                       \
    what(0, c, ld)                                                                                 \
    if (tall) { what(1, c + 64, ld) }                                                              \
    if (wide) { what(2, c + 16 * ld, ld) }                                                         \
    if (wide && tall) { what(3, c + 16 * ld + 64, ld) }
#define FLUX__AMX_CLEAR(t, c, ld) FLUX__AMX_ZERO(t)

/* Columns of B, `step` bytes apart, contiguous in each step of k; step s begins at[s] bytes behind
   a column's beginning. rest: NULL, or the last step, 64 bytes a column. */
typedef struct flux__amx_columns {
    const char *x;
    int64_t step;
    const int64_t *at;
    const char *rest;
} flux__amx_columns;

/* Computes as many elements of C as tiles are shaped for, or goes on with their sums. a: A's
   panel, of `steps` steps, or one more if `rest` is not NULL; b: B's columns; c: columns ld bytes
   apart. */
static FLUX__AMX_FN void flux__amx_block(bool tall, bool wide, int64_t steps, const char *a,
                                         const char *b, int64_t b_step, const int64_t *at,
                                         const char *rest, char *c, int64_t ld, bool go_on) {
    if (go_on) { FLUX__AMX_EACH(FLUX__AMX_LOAD) }
    else { FLUX__AMX_EACH(FLUX__AMX_CLEAR) }
    for (; steps > 0; steps--, at++, a += FLUX__AMX_PANEL(1)) FLUX__AMX_STEP(a, b + *at, b_step)
    if (rest) FLUX__AMX_STEP(a, rest, 64)
    FLUX__AMX_EACH(FLUX__AMX_STORE)
}

/* Adds to mb x nb elements of C the products of A's panels, of `steps` steps each, and of B's
   columns, or with go_on goes on with the sums there. c: columns are ld bytes apart. *shape: that
   of the tiles, as it was and as it is left. */
static void flux__amx_multiply(flux__amx_shape *shape, const char *a, int64_t mb,
                               const flux__amx_columns *b, int64_t nb, int64_t steps, char *c,
                               int64_t ld, bool go_on) {
    for (int64_t j = 0; j < nb; j += 32)
        for (int64_t i = 0; i < mb; i += 32) {
            const int64_t rows = mb - i < 32 ? mb - i : 32, columns = nb - j < 32 ? nb - j : 32;
            if (rows != shape->rows || columns != shape->columns)
                flux__amx_set(shape, rows, columns);
            flux__amx_block(rows > 16, columns > 16, steps - (b->rest != NULL),
                            a + i / 32 * FLUX__AMX_PANEL(steps), b->x + j * b->step, b->step, b->at,
                            b->rest ? b->rest + j * 64 : NULL, c + i * 4 + j * ld, ld, go_on);
        }
}

/* ---- packing */

typedef uint16_t flux__amx_halves __attribute__((vector_size(64)));
typedef uint32_t flux__amx_words __attribute__((vector_size(64)));

/* Packs a panel whose columns are contiguous: 32 rows of k columns, `col` elements apart. An odd
   last column is paired with zeros. */
static FLUX__AMX_FN void flux__amx_pair(const uint16_t *x, int64_t col, int64_t k, char *to) {
    flux__amx_halves a, b, low, high;
    for (; k > 0; k -= 2, x += 2 * col, to += FLUX__AMX_LINE) {
        memcpy(&a, x, 64);
        if (k > 1) memcpy(&b, x + col, 64);
        else memset(&b, 0, 64);
        FLUX__PREFETCH((const char *)x + 16 * col)
        FLUX__PREFETCH((const char *)x + 18 * col)
        FLUX__SHUFFLE(low, a, b, flux__amx_halves, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38,
                      7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47)
        FLUX__SHUFFLE(high, a, b, flux__amx_halves, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
                      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31,
                      63)
        memcpy(to, &low, 64), memcpy(to + 64, &high, 64);
    }
}

/* Transposes 16 x 16 words, rows a[...]; b is overwritten. Zipping rows i and i + 8 rotates the
   bits of an element's row and column by one; four times exchanges them. */
#define FLUX__AMX_ZIP(to, from, i)                                                                 \
    FLUX__SHUFFLE(to[2 * i], from[i], from[i + 8], flux__amx_words,                                \
                  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)                          \
    FLUX__SHUFFLE(to[2 * i + 1], from[i], from[i + 8], flux__amx_words,                            \
                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define FLUX__AMX_ZIPS(to, from)                                                                   \
    FLUX__AMX_ZIP(to, from, 0) FLUX__AMX_ZIP(to, from, 1) FLUX__AMX_ZIP(to, from, 2)               \
    FLUX__AMX_ZIP(to, from, 3) FLUX__AMX_ZIP(to, from, 4) FLUX__AMX_ZIP(to, from, 5)               \
    FLUX__AMX_ZIP(to, from, 6) FLUX__AMX_ZIP(to, from, 7)
#define FLUX__AMX_TRANSPOSE(a, b)                                                                  \
    FLUX__AMX_ZIPS(b, a) FLUX__AMX_ZIPS(a, b) FLUX__AMX_ZIPS(b, a) FLUX__AMX_ZIPS(a, b)
#define FLUX__AMX_SIXTEEN(f)                                                                       \
    f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)

/* Transposes 16 x 16 words: rows of x, x_step bytes apart, become columns of `to`, whose rows are
   to_step bytes apart. Only so many rows are read, the others being zeros, and only so many
   columns are written as rows. */
static FLUX__AMX_FN void flux__amx_turn(const char *x, int64_t x_step, int64_t rows, char *to,
                                        int64_t to_step, int64_t columns) {
    flux__amx_words a[16], b[16];
#define FLUX__AMX_READ(i) memcpy(&a[i], x + i * x_step, 64);
#define FLUX__AMX_WRITE(i) memcpy(to + i * to_step, &a[i], 64);
    if (rows == 16) { FLUX__AMX_SIXTEEN(FLUX__AMX_READ) }
    else {
        memset(a, 0, sizeof a);
        for (int64_t i = 0; i < rows; i++) FLUX__AMX_READ(i)
    }
    for (int64_t i = 0; i < rows; i++) FLUX__PREFETCH(x + i * x_step + 256)
    FLUX__AMX_TRANSPOSE(a, b)
    if (columns == 16) { FLUX__AMX_SIXTEEN(FLUX__AMX_WRITE) }
    else for (int64_t i = 0; i < columns; i++) FLUX__AMX_WRITE(i)
}

/* Packs a panel: `rows` rows of k elements, at most 32, with any strides, and zeros behind them, so
   that there are 32 rows and whole steps of k. */
static void flux__amx_pack(const uint16_t *x, int64_t row, int64_t col, int64_t rows, int64_t k,
                           char *to) {
    const int64_t words = (k + 1) / 2, whole = col == 1 ? k / 32 : 0;
    if (rows == 32 && row == 1) {
        flux__amx_pair(x, col, k, to);
        memset(to + words * FLUX__AMX_LINE, 0,
               (size_t)(flux__gemm_up(words, 16) - words) * FLUX__AMX_LINE);
        return;
    }
    for (int64_t s = 0; s < whole; s++, x += 32, to += 16 * FLUX__AMX_LINE)
        for (int64_t i = 0; i < 32; i += 16)
            flux__amx_turn((const char *)(x + i * row), 2 * row,
                           rows < i ? 0 : flux__gemm_min(rows - i, 16), to + 4 * i,
                           FLUX__AMX_LINE, 16);
    memset(to, 0, (size_t)(flux__gemm_up(words, 16) - whole * 16) * FLUX__AMX_LINE);
    for (k -= whole * 32; k > 0; k -= 2, x += 2 * col, to += FLUX__AMX_LINE)
        for (int64_t r = 0; r < rows; r++) {
            memcpy(to + 4 * r, x + r * row, 2);
            if (k > 1) memcpy(to + 4 * r + 2, x + r * row + col, 2);
        }
}

/* Copies n lines, A's rows or B's columns, at most 32, of k elements, at most 32, to 64 bytes each,
   to_step bytes apart. line, col: how many elements of x lines and elements along k are apart. */
static void flux__amx_lines(const uint16_t *x, int64_t line, int64_t col, int64_t n, int64_t k,
                            char *to, int64_t to_step) {
    char panel[FLUX__AMX_PANEL(1)];
    flux__amx_pack(x, line, col, n, k, panel);
    for (int64_t i = 0; i < n; i += 16)
        flux__amx_turn(panel + 4 * i, FLUX__AMX_LINE, 16, to + i * to_step, to_step,
                       flux__gemm_min(n - i, 16));
}

/* ---- operands with a map */

typedef uint16_t flux__amx_halves16 __attribute__((vector_size(32)));
typedef uint32_t flux__amx_words8 __attribute__((vector_size(32)));
typedef uint16_t flux__amx_halves8 __attribute__((vector_size(16)));

/* Copies n halves, or more than `size` that are every second one, in whole vectors, of which the
   last overlaps the one before. Words have two halves; the last ones begin one half earlier, so
   that nothing beyond the run is read. */
#define FLUX__AMX_COPY(size)                                                                       \
    for (; c < count; c++, to += to_step) {                                                        \
        const uint16_t *from = x + at[c];                                                          \
        for (int64_t i = 0; i + size < n; i += size) memcpy(to + i, from + i, 2 * size);           \
        memcpy(to + n - size, from + n - size, 2 * size);                                          \
    }
#define FLUX__AMX_EVENS(size, words, halves)                                                       \
    for (; c < count; c++, to += to_step) {                                                        \
        const uint16_t *from = x + at[c];                                                          \
        words w;                                                                                   \
        halves h;                                                                                  \
        for (int64_t i = 0; i + size < n; i += size) {                                             \
            memcpy(&w, from + 2 * i, sizeof w);                                                    \
            h = __builtin_convertvector(w, halves);                                                \
            memcpy(to + i, &h, sizeof h);                                                          \
        }                                                                                          \
        memcpy(&w, from + 2 * (n - size) - 1, sizeof w);                                           \
        h = __builtin_convertvector(w >> 16, halves);                                              \
        memcpy(to + n - size, &h, sizeof h);                                                       \
    }
/* Copies a run of n halves, `step` apart, once for each of `count` points, whose places are
   at[...]. Copies are to_step halves apart. */
static FLUX__AMX_FN void flux__amx_copy_run(const uint16_t *x, int64_t step, const int64_t *at,
                                            int64_t count, int64_t n, uint16_t *to,
                                            int64_t to_step) {
    int64_t c = 0;
    if (step == 2 && n > 16) FLUX__AMX_EVENS(16, flux__amx_words, flux__amx_halves16)
    else if (step == 2 && n > 8) FLUX__AMX_EVENS(8, flux__amx_words8, flux__amx_halves8)
    else if (step != 1)
        for (; c < count; c++, to += to_step)
            for (int64_t i = 0; i < n; i++) to[i] = x[at[c] + i * step];
    else if (n >= 32) FLUX__AMX_COPY(32)
    else if (n >= 16) FLUX__AMX_COPY(16)
    else if (n >= 8) FLUX__AMX_COPY(8)
    else if (n >= 4) FLUX__AMX_COPY(4)
    else if (n >= 2) FLUX__AMX_COPY(2)
    else FLUX__AMX_COPY(1)
}

/* Copies the points start ... start+count-1 of `across`, to_step halves apart in `to`; of each, the
   elements first ... first+n-1 of `along`, contiguously. from: element (0, 0). */
static void flux__amx_im2col(const uint16_t *from, const flux__axes *along, int64_t first,
                             int64_t n, const flux__axes *across, int64_t start, int64_t count,
                             uint16_t *to, int64_t to_step) {
    flux__gemm_run run[64];
    int64_t place[FLUX_MAX_DIMS], at[64], next = flux__axes_point(across, start, place), some;
    for (; count > 0; count -= some, to += some * to_step) {
        some = flux__gemm_min(count, 64);
        for (int64_t c = 0; c < some; c++) at[c] = next, next += flux__axes_next(across, 0, place);
        for (int64_t i = 0, m; i < n; i += m) {
            m = n - i;
            const int64_t runs = flux__gemm_runs(along, 1, first + i, &m, run);
            for (int64_t r = 0; r < runs; r++)
                flux__amx_copy_run(from + run[r].from, along->step[0], at, some, run[r].n,
                                   to + i + run[r].to, to_step);
        }
    }
}

/* An operand, or a part of it: where it is, and its strides along its 32 lines (A's rows or B's
   columns) and along k. */
typedef struct flux__amx_part { const uint16_t *x; int64_t line, k; } flux__amx_part;
/* most halves of a part, whose lines along k are an odd number of cache lines apart */
enum { FLUX__AMX_COLLECTED = 32 * (32 * FLUX__AMX_STEPS + 32) };

/* Finds lines first ... first+n-1 of an operand, at most 32, and k of them from k0 on. map: NULL,
   or its maps of lines and of k, by which the part is copied to `memory`. */
static void flux__amx_find(flux__amx_part *part, const void *x, const flux__axes *lines,
                           const flux__axes *ks, int64_t first, int64_t n, int64_t k0, int64_t k,
                           uint16_t *memory) {
    if (!lines) {
        part->x = (const uint16_t *)x + first * part->line + k0 * part->k;
        return;
    }
    const bool along = ks->step[0] == 1 && (lines->step[0] != 1 || lines->dim[0] < ks->dim[0]);
    part->x = memory, part->k = along ? 1 : 32;
    part->line = along ? flux__gemm_up(k, 64) | 32 : 1;
    if (along)
        flux__amx_im2col((const uint16_t *)x, ks, k0, k, lines, first, n, memory, part->line);
    else flux__amx_im2col((const uint16_t *)x, lines, first, n, ks, k0, k, memory, 32);
}

/* Copies 32 columns of B, of which `part` counts, contiguously along k. */
static void flux__amx_copy_b(void *ctx, int64_t part) {
    const flux__amx_product *p = (const flux__amx_product *)ctx;
    const flux__gemm_job *j = p->job;
    const int64_t first = part * 32, n = flux__gemm_min(j->n - first, 32);
    const flux__axes *ks = j->b_map, *lines = ks ? ks + 1 : NULL;
    uint16_t memory[32 * 96];
    char *to = p->copy + first * p->b_step;
    if (ks && ks->step[0] == 1) {
        flux__amx_im2col((const uint16_t *)j->b, ks, 0, j->k, lines, first, n,
                         (uint16_t *)(void *)to, p->b_step / 2);
        for (int64_t i = 0; i < n; i++)
            memset(to + i * p->b_step + j->k * 2, 0, (size_t)(p->steps * 64 - j->k * 2));
        return;
    }
    for (int64_t k = 0, some; k < j->k; k += some, to += 64) {
        flux__amx_part b = { NULL, j->b_col, j->b_row };
        some = flux__gemm_min(j->k - k, 32);
        flux__amx_find(&b, j->b, lines, ks, first, n, k, some, memory);
        flux__amx_lines(b.x, b.line, b.k, n, some, to, p->b_step);
    }
}

/* Finds B for the tiles: where it lies, with copies of what fills no tile, or as a copy. False: out
   of memory. */
static bool flux__amx_find_b(flux__amx_product *p) {
    const flux__gemm_job *j = p->job;
    const uint16_t *x = (const uint16_t *)j->b;
    const int64_t whole = j->k / 32 * 32;
    p->steps = (j->k + 31) / 32;
    p->b = (const char *)j->b, p->b_step = 2 * j->b_col;
    if (j->b_row == 1 && !j->b_map && whole == j->k) return true;
    if (j->b_row == 1 && !j->b_map) {
        if (!(p->copy = (char *)flux__scratch((size_t)j->n * 64))) return false;
        memset(p->copy, 0, (size_t)j->n * 64);
        for (int64_t i = 0; i < j->n; i++)
            memcpy(p->copy + i * 64, x + i * j->b_col + whole, (size_t)(j->k - whole) * 2);
        p->rest = p->copy;
        return true;
    }
    p->b_step = p->steps * 64 | 64;       /* an odd number of cache lines */
    p->copy = (char *)flux__scratch((size_t)(p->b_step * j->n));
    if (p->copy) flux__parallel((j->n + 31) / 32, flux__amx_copy_b, p);
    p->b = p->copy;
    return p->copy != NULL;
}

/* ---- tasks */

/* Packs the panels of rows i0 ... i0+mb-1 of A, `some` steps of k from `step` on. memory: for a
   part of an A with a map. */
static void flux__amx_panels(const flux__amx_product *p, int64_t i0, int64_t mb, int64_t step,
                             int64_t some, uint16_t *memory, char *to) {
    const flux__gemm_job *j = p->job;
    const flux__axes *lines = j->a_map, *ks = lines ? lines + 1 : NULL;
    const int64_t k = flux__gemm_min(some * 32, j->k - step * 32);
    for (int64_t i = 0; i < mb; i += 32, to += FLUX__AMX_PANEL(some)) {
        flux__amx_part a = { NULL, j->a_row, j->a_col };
        const int64_t n = flux__gemm_min(mb - i, 32);
        flux__amx_find(&a, j->a, lines, ks, i0 + i, n, step * 32, k, memory);
        flux__amx_pack(a.x, a.line, a.k, n, k, to);
    }
}

/* Bytes of all panels of A. */
static int64_t flux__amx_bytes(int64_t m, int64_t k) {
    return (m + 31) / 32 * FLUX__AMX_PANEL((k + 31) / 32);
}
/* Where, in memory that has them all, the panels of rows i0 ... of `some` steps of k from `step` on
   begin: those of all rows of one part of k follow each other. */
static char *flux__amx_kept_at(const flux__amx_product *p, int64_t i0, int64_t step, int64_t some) {
    return (char *)p->job->panels + (p->job->m + 31) / 32 * FLUX__AMX_PANEL(step) +
           i0 / 32 * FLUX__AMX_PANEL(some);
}
/* Packs the panels of 32 rows of A where they are kept. */
static void flux__amx_fill(void *ctx, int64_t part) {
    const flux__amx_product *p = (const flux__amx_product *)ctx;
    for (int64_t step = 0, some; step < p->steps; step += some) {
        some = flux__gemm_min(p->steps - step, FLUX__AMX_STEPS);
        flux__amx_panels(p, part * 32, flux__gemm_min(p->job->m - part * 32, 32), step, some, NULL,
                         flux__amx_kept_at(p, part * 32, step, some));
    }
}

/* Computes one block of C, in C itself or in scratch memory, and calls the epilogue: for few
   columns at a time if all of k is in the panels. */
static void flux__amx_task(void *ctx, int worker, int64_t number) {
    flux__amx_product *p = (flux__amx_product *)ctx;
    const flux__gemm_job *job = p->job;
    const bool once = p->steps <= FLUX__AMX_STEPS;
    const int64_t i0 = number % p->down * p->rows, j0 = number / p->down * p->columns,
                  mb = flux__gemm_min(job->m - i0, p->rows),
                  end = flux__gemm_min(job->n, j0 + p->columns),
                  piece = once ? FLUX__GEMM_PIECE / p->rows / 32 * 32 : end - j0,
                  ld = job->c ? job->ldc : flux__gemm_up(mb, 16),
                  steps = flux__gemm_min(p->steps, FLUX__AMX_STEPS),
                  most = job->panels ? 0 : FLUX__AMX_PANEL((mb + 31) / 32 * steps);
    const int64_t part = job->a_map ? 2 * FLUX__AMX_COLLECTED : 0;
    char *memory = (char *)flux__scratch((size_t)(part + most + (job->c ? 0 : ld * piece * 4))),
         *panels = memory + part;
    flux__amx_shape shape = { 0, 0 };
    if (!memory) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    for (int64_t j = j0, nb; j < end; j += nb) {
        nb = flux__gemm_min(end - j, piece);
        char *c = job->c ? (char *)job->c + (i0 + j * ld) * 4 : memory + part + most;
        for (int64_t step = 0, some; step < p->steps; step += some) {
            some = flux__gemm_min(p->steps - step, FLUX__AMX_STEPS);
            if (job->panels) panels = flux__amx_kept_at(p, i0, step, some);
            else if (!once || j == j0)
                flux__amx_panels(p, i0, mb, step, some, (uint16_t *)(void *)memory, panels);
            const flux__amx_columns b = { p->b + j * p->b_step + step * 64, p->b_step, p->at,
                p->rest && step + some == p->steps ? p->rest + j * 64 : NULL };
            flux__amx_multiply(&shape, panels, mb, &b, nb, some, c, ld * 4, step > 0);
        }
        if (job->epilogue) job->epilogue(job->ctx, worker, i0, j, mb, nb, c, ld);
    }
    FLUX__AMX_RELEASE()
    flux__scratch_done(memory);
}

/* Whether a product of two bf16 matrices is computed by tiles: with fewer elements vectors are as
   fast (measured). */
static bool flux__amx_wants(int64_t m, int64_t n, int64_t k) {
    return FLUX__AMX_HERE() && m >= 8 && m * n >= 256 && k >= 24;
}

/* Computes a product whose job says `tiles`. False: out of memory. */
static bool flux__amx_run(const flux__gemm_job *job, int64_t threads) {
    FLUX__ZEROED(flux__amx_product, p);
    p.job = job;
    FLUX__ASSERT(job->k > 0);
    if (!flux__amx_find_b(&p)) return false;
    for (int i = 0; i < FLUX__AMX_STEPS; i++) p.at[i] = 64 * i;
    p.rows = flux__gemm_min(flux__gemm_up(job->m, 32), FLUX__AMX_ROWS);
    if (p.steps > 16 || p.steps <= 4) p.rows = flux__gemm_min(p.rows, FLUX__AMX_ROWS / 2);
    p.columns = flux__gemm_min(flux__gemm_up(job->n, 32), FLUX__AMX_COLUMNS);
    for (;;) {
        const int64_t across = (job->n + p.columns - 1) / p.columns;
        p.down = (job->m + p.rows - 1) / p.rows;
        if (threads == 1 || p.down * across >= 2 * threads) break;
        if (p.rows > 32) p.rows = flux__gemm_up(p.rows / 2, 32);
        else if (p.columns > 64) p.columns = flux__gemm_up(p.columns / 2, 32);
        else break;
    }
    if (job->panels && job->fill) flux__parallel((job->m + 31) / 32, flux__amx_fill, &p);
    flux__parallel_workers(p.down * ((job->n + p.columns - 1) / p.columns), flux__amx_task, &p);
    flux__scratch_done(p.copy);
    return !flux__atomic_load32(&p.failed);
}
#else
#  define flux__amx_wants(m, n, k) ((void)(m), (void)(n), (void)(k), false)
#  define flux__amx_run(job, threads) ((void)(threads), false)
#endif

FLUX__END_HOT

#endif /* FLUX__CPU_GEMM_AMX_H */
