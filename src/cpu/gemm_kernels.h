#ifndef FLUX__CPU_GEMM_KERNELS_H
#define FLUX__CPU_GEMM_KERNELS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "loops.h"

/* ---------------------------------------------------------------------- cpu/gemm_kernels.h
   The matrix product C = A B in f32 or f64, for any strides: its job
   (flux__gemm_job) and its microkernels; cpu/gemm_pack.h copies operands,
   cpu/gemm_plan.h cuts the work. An mr x nr tile of C stays in registers:
   vectors run down the columns of A and C, single elements of B are broadcast,
   32 x 12 with AVX-512. Inner-product kernels (dots, fours) serve few columns.
   One macro makes the kernels of every instruction set, for several nr, so that
   little work goes into padding.

   Invariant: k is cut into chunks by its own length alone and chunks are added
   in order: an element's sum is the same for any number of threads, any block
   and tile, with AVX2 and AVX-512, and whether an operand is packed or read
   where it lies. a is m x k with steps a_row, a_col; b k x n with b_row, b_col;
   c has columns ldc apart. The epilogue sees each finished piece of C once.

   Rejected: intrinsics (immintrin.h alone takes half as long to compile as all
   of this), and packing all of A and B (twice the memory, and slower for the
   flat matrices of a training step). */

FLUX__LEAN

typedef struct flux__axes { int nd; int64_t dim[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS]; } flux__axes;   /* merged dims */

typedef struct flux__gemm_job {
    int64_t m, n, k;
    const void *a;                        /* A, m x k, and its strides in elements: */
    int64_t a_row, a_col;                 /* from row to row, from column to column */
    const void *b;                        /* B, k x n */
    int64_t b_row, b_col;
    const flux__axes *a_grid, *b_grid;    /* may be NULL; else no strides: what its rows, and its columns, are made of */
    void *c;                              /* C, m x n, its columns ldc apart */
    int64_t ldc;                          /* c NULL: only the epilogue sees C */
    const void *a_next;                   /* may be NULL: the A of the product that comes next, with the same strides */
    int64_t batches;                      /* how many such products are made one after another, or 0 */
    bool pairs;                           /* an element of A or B is a word of two numbers of bf16; of C, an f32 */
    int dots;                             /* 0, or how the product that this is a part of is made: see flux__gemm_by_dots */
    /* May be NULL. Called once for each finished piece of C, from any thread, while it is in the
       cache: rows i0 ... i0+mb-1, columns j0 ... j0+nb-1, its (i, j) at block[i + j * ld]. */
    void (*epilogue)(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb,
                     void *block, int64_t ld);
    void *ctx;
} flux__gemm_job;

/* A kernel adds up k products for one tile: of A as many rows as the tile has, columns a_step apart. Meanwhile it fetches k lines
   for tiles to come, next_step bytes apart: all at once before it, they would fill the queue that its own loads go through.
   The sums become C, are added to it, or (of tiles one vector high) go on from it, as if they had never stopped. */
enum { FLUX__GEMM_NEW, FLUX__GEMM_ADD, FLUX__GEMM_GO_ON };
typedef void (*flux__gemm_kernel)(int64_t k, const void *a, int64_t a_step, const void *b, int64_t b_row, int64_t b_col, void *c, int64_t ldc,
                                  int add, const void *next, int64_t next_step);

/* Rows of A, by fours, times two columns of B, both contiguous in k, a vector or more: sums of products, without turning either.
   Gives of each four the first column's sums, then the second's. */
typedef void (*flux__gemm_dots)(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t fours);
/* The same of four columns of B, and the same bits, stored where they belong: a row's four lie together, rows c_row apart. */
typedef void (*flux__gemm_fours)(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *c, int64_t c_row, int64_t fours);

typedef struct flux__gemm_set {           /* the kernels for one element type and instruction set */
    const struct flux__gemm_set *narrow;  /* those with vectors of half the length and the same bits, or NULL */
    int lanes, columns;                   /* elements of a vector; most columns of a tile */
    const flux__gemm_kernel *one, *two;   /* one and two vectors high; of 1, 2, 3, 4, 6, ... columns */
    flux__gemm_kernel keep;               /* NULL, or of the largest tile: fetches nothing, but copies A's part to `next` */
    flux__gemm_kernel plain;              /* NULL, or of the largest tile: fetches nothing */
    flux__gemm_dots dots;
    flux__gemm_fours fours;               /* NULL where registers are too few */
} flux__gemm_set;

/* Column j of B is read through pointer j / 3, at 0, 1 or 2 column strides from it: what an address
   can hold. */
#define FLUX__COLUMNS1(X) X(0, 0, 0)
#define FLUX__COLUMNS2(X) FLUX__COLUMNS1(X) X(1, 0, 1)
#define FLUX__COLUMNS3(X) FLUX__COLUMNS2(X) X(2, 0, 2)
#define FLUX__COLUMNS4(X) FLUX__COLUMNS3(X) X(3, 1, 0)
#define FLUX__COLUMNS5(X) FLUX__COLUMNS4(X) X(4, 1, 1)
#define FLUX__COLUMNS6(X) FLUX__COLUMNS5(X) X(5, 1, 2)
#define FLUX__COLUMNS7(X) FLUX__COLUMNS6(X) X(6, 2, 0)
#define FLUX__COLUMNS8(X) FLUX__COLUMNS7(X) X(7, 2, 1)
#define FLUX__COLUMNS9(X) FLUX__COLUMNS8(X) X(8, 2, 2)
#define FLUX__COLUMNS10(X) FLUX__COLUMNS9(X) X(9, 3, 0)
#define FLUX__COLUMNS11(X) FLUX__COLUMNS10(X) X(10, 3, 1)
#define FLUX__COLUMNS12(X) FLUX__COLUMNS11(X) X(11, 3, 2)

#if (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#  define FLUX__GEMM_VECTORS 1
#else
#  define FLUX__GEMM_VECTORS 0
#endif

#if FLUX__GEMM_VECTORS
#  if defined(__clang__)
#    define FLUX__GEMM_FN(target) static target
#    define FLUX__GEMM_FUSE _Pragma("STDC FP_CONTRACT ON")
#  else
#    define FLUX__GEMM_FN(target) /* as fast as "O2" here, and compiled in less time */            \
        static __attribute__((optimize("O1", "expensive-optimizations", "fp-contract=fast", "align-loops=64", "ira-region=mixed", "no-tree-ccp", "no-thread-jumps"))) target
#    define FLUX__GEMM_FUSE
#  endif
#  define FLUX__GEMM_TYPES(bytes)                                                                  \
    typedef float flux__gemm_f##bytes __attribute__((vector_size(bytes), aligned(4), may_alias));  \
    typedef double flux__gemm_d##bytes __attribute__((vector_size(bytes), aligned(8), may_alias));
FLUX__GEMM_TYPES(16)
FLUX__GEMM_TYPES(32)
FLUX__GEMM_TYPES(64)

#  define FLUX__K_ZERO1(j, q, r) x##j = zero;
#  define FLUX__K_ZERO2(j, q, r) x##j = y##j = zero;
#  define FLUX__K_VAR1(j, q, r) , x##j
#  define FLUX__K_VAR2(j, q, r) , x##j, y##j
#  define FLUX__K_MUL1(j, q, r) x##j += u * (b##q[r * b_col] - zero);
#  define FLUX__K_MUL2(j, q, r) w = b##q[r * b_col] - zero; x##j += u * w; y##j += v * w;
#  define FLUX__K_ADD1(j, q, r) x##j += at[0]; at = FLUX__K_NEXT(at);
#  define FLUX__K_ADD2(j, q, r) x##j += at[0]; y##j += at[1]; at = FLUX__K_NEXT(at);
#  define FLUX__K_GET(j, q, r) x##j = at[0]; at = FLUX__K_NEXT(at);
#  define FLUX__K_PUT1(j, q, r) at[0] = x##j; at = FLUX__K_NEXT(at);
#  define FLUX__K_PUT2(j, q, r) at[0] = x##j; at[1] = y##j; at = FLUX__K_NEXT(at);
#  define FLUX__K_NEXT(at) (V *)(void *)((T *)(void *)at + ldc)

/* gcc fills a register with each element of B, which takes AVX-512 longer than the product itself if that is its only one;
   it can multiply by an element where it lies. Operands in both orders, for -masm=intel. */
#  define FLUX__K_MULS2 FLUX__K_MUL2
#  define FLUX__K_MULD2 FLUX__K_MUL2
#  if defined(__clang__)
#    define FLUX__K_MULS1 FLUX__K_MUL1
#    define FLUX__K_MULD1 FLUX__K_MUL1
#  else
#    define FLUX__K_MULS1(j, q, r)                                                                 \
        __asm__("vfmadd231ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(x##j) : "v"(u), "m"(b##q[r * b_col]));
#    define FLUX__K_MULD1(j, q, r)                                                                 \
        __asm__("vfmadd231pd {%2%{1to8%}, %1, %0|%0, %1, %2%{1to8%}}" : "+v"(x##j) : "v"(u), "m"(b##q[r * b_col]));
#  endif

/* Words are two numbers of bf16 each, whose products are both added. */
#  define FLUX__K_MULB1(j, q, r)                                                                   \
    __asm__("vdpbf16ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(x##j) : "v"(u), "m"(b##q[r * b_col]));
#  define FLUX__K_MULB2(j, q, r)                                                                   \
    __asm__("vdpbf16ps {%4%{1to16%}, %2, %0|%0, %2, %4%{1to16%}}\n\tvdpbf16ps {%4%{1to16%}, %3, %1|%1, %3, %4%{1to16%}}" \
            : "+v"(x##j), "+v"(y##j) : "v"(u), "v"(v), "m"(b##q[r * b_col]));

/* NEON multiplies by one element of a register, so that none is filled with it. */
#  define FLUX__K_MULN1(j, q, r) __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(x##j) : "w"(u), "w"(b##q[r * b_col]));
#  define FLUX__K_MULN2(j, q, r)                                                                   \
    __asm__("fmla %0.4s, %2.4s, %4.s[0]\n\tfmla %1.4s, %3.4s, %4.s[0]"                             \
            : "+w"(x##j), "+w"(y##j) : "w"(u), "w"(v), "w"(b##q[r * b_col]));
#  define FLUX__K_MULO1(j, q, r) __asm__("fmla %0.2d, %1.2d, %2.d[0]" : "+w"(x##j) : "w"(u), "w"(b##q[r * b_col]));
#  define FLUX__K_MULO2(j, q, r)                                                                   \
    __asm__("fmla %0.2d, %2.2d, %4.d[0]\n\tfmla %1.2d, %3.2d, %4.d[0]"                             \
            : "+w"(x##j), "+w"(y##j) : "w"(u), "w"(v), "w"(b##q[r * b_col]));

#  define FLUX__K_FETCH FLUX__PREFETCH_LATER(fetch)
/* What it copies is in the second cache by then, but columns are too far apart for more. */
#  define FLUX__K_KEEP ((V *)(uintptr_t)fetch)[0] = u, ((V *)(uintptr_t)fetch)[1] = v; FLUX__PREFETCH(p + 16 * a_step)
#  define FLUX__GEMM_KERNEL(name, type, vec, mul, high, wide, target)                              \
    FLUX__GEMM_LOOP(name##_##high##x##wide, type, vec, mul##high, high, wide, target, FLUX__K_FETCH)
#  define FLUX__GEMM_LOOP(name, type, vec, mul, high, wide, target, beside)                        \
    FLUX__GEMM_FN(target) void name(                                                               \
        int64_t k, const void *a, int64_t a_step, const void *b, int64_t b_row, int64_t b_col,     \
        void *c, int64_t ldc, int add, const void *next, int64_t next_step) {                     \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef type T;                                                                            \
        const T *b0 = (const T *)b, *b1 = wide > 3 ? b0 + 3 * b_col : b0,                          \
                *b2 = wide > 6 ? b1 + 3 * b_col : b0, *b3 = wide > 9 ? b2 + 3 * b_col : b0;        \
        const T *p = (const T *)a;                                                                 \
        const char *fetch = (const char *)next;                                                    \
        V *at, u, v, w, zero = {0} FLUX__COLUMNS##wide(FLUX__K_VAR##high);                         \
        FLUX__COLUMNS##wide(FLUX__K_ZERO##high)                                                    \
        at = (V *)c;                                                                               \
        if (high == 1 && add == FLUX__GEMM_GO_ON) { FLUX__COLUMNS##wide(FLUX__K_GET) }             \
        for (; k; k--) {                                                                           \
            u = ((const V *)(const void *)p)[0];                                                   \
            if (high == 2) v = ((const V *)(const void *)p)[high - 1];                             \
            FLUX__COLUMNS##wide(mul)                                                               \
            if (high == 2) { beside fetch += next_step; }                                          \
            p += a_step, b0 += b_row, b1 += b_row, b2 += b_row, b3 += b_row;                       \
        }                                                                                          \
        at = (V *)c;                                                                               \
        if (add == FLUX__GEMM_ADD) { FLUX__COLUMNS##wide(FLUX__K_ADD##high) }                      \
        at = (V *)c;                                                                               \
        FLUX__COLUMNS##wide(FLUX__K_PUT##high)                                                     \
        (void)v, (void)w, (void)b3, (void)fetch;                                                   \
    }
/* Vectors half as long are twice the instructions, and a core that two threads share reads so many that each one beside the sums
   takes time (there, a fetch 8 % of a product): the largest tile where nothing is to be fetched, two steps of k at a time. */
#  define FLUX__K_SUM(j, q, r) w = b##q[r * b_col + o * b_row] - zero; x##j += u * w; y##j += v * w;
#  define FLUX__K_STEP(further)                                                                    \
    {                                                                                              \
        enum { o = further };                                                                      \
        u = ((const V *)(const void *)p)[0], v = ((const V *)(const void *)p)[1];                  \
        FLUX__COLUMNS6(FLUX__K_SUM)                                                                \
        p += a_step;                                                                               \
    }
#  define FLUX__GEMM_PLAIN(name, type, vec, target)                                                \
    FLUX__GEMM_FN(target) void name(                                                               \
        int64_t k, const void *a, int64_t a_step, const void *b, int64_t b_row, int64_t b_col,     \
        void *c, int64_t ldc, int add, const void *next, int64_t next_step) {                     \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef type T;                                                                            \
        const T *b0 = (const T *)b, *b1 = b0 + 3 * b_col, *p = (const T *)a;                       \
        V *at, u, v, w, zero = {0} FLUX__COLUMNS6(FLUX__K_VAR2);                                   \
        int64_t pairs = k / 2;                                                                     \
        FLUX__COLUMNS6(FLUX__K_ZERO2)                                                              \
        for (; pairs; pairs--, b0 += 2 * b_row, b1 += 2 * b_row) { FLUX__K_STEP(0) FLUX__K_STEP(1) } \
        if (k % 2) FLUX__K_STEP(0)                                                                 \
        at = (V *)c;                                                                               \
        if (add) { FLUX__COLUMNS6(FLUX__K_ADD2) }                                                  \
        at = (V *)c;                                                                               \
        FLUX__COLUMNS6(FLUX__K_PUT2)                                                               \
        (void)next, (void)next_step;                                                               \
    }
#  define FLUX__GEMM_HIGH6(name, type, vec, mul, high, target)                                     \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 1, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 2, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 3, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 4, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 6, target)
#  define FLUX__GEMM_HIGH8(name, type, vec, mul, high, target)                                     \
    FLUX__GEMM_HIGH6(name, type, vec, mul, high, target)                                           \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 8, target)
#  define FLUX__GEMM_HIGH12(name, type, vec, mul, high, target)                                    \
    FLUX__GEMM_HIGH8(name, type, vec, mul, high, target)                                           \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 10, target)                                      \
    FLUX__GEMM_KERNEL(name, type, vec, mul, high, 12, target)
#  define FLUX__GEMM_LIST6(n) n##1, n##2, n##3, n##4, n##6
#  define FLUX__GEMM_LIST8(n) FLUX__GEMM_LIST6(n), n##8
#  define FLUX__GEMM_LIST12(n) FLUX__GEMM_LIST8(n), n##10, n##12
#  if !defined(__clang__)
typedef int flux__gemm_i16 __attribute__((vector_size(16)));
typedef int64_t flux__gemm_l16 __attribute__((vector_size(16)));
typedef int flux__gemm_i32 __attribute__((vector_size(32)));
typedef int64_t flux__gemm_l32 __attribute__((vector_size(32)));
typedef int flux__gemm_i64 __attribute__((vector_size(64)));
typedef int64_t flux__gemm_l64 __attribute__((vector_size(64)));
#  endif
#  define FLUX__LANES2(i, j) i, j
#  define FLUX__LANE8(i) ((i) < 4 ? (i) : (i) + 4)
#  define FLUX__LANES8(i, j, k, l) FLUX__LANE8(i), FLUX__LANE8(j), FLUX__LANE8(k), FLUX__LANE8(l),   \
    FLUX__LANE8(i) + 4, FLUX__LANE8(j) + 4, FLUX__LANE8(k) + 4, FLUX__LANE8(l) + 4
#  define FLUX__LANE4(i) ((i) < 2 ? (i) : (i) + 2)
#  define FLUX__LANES22(i, j) FLUX__LANE4(i), FLUX__LANE4(j), FLUX__LANE4(i) + 2, FLUX__LANE4(j) + 2
/* A vector for each sum. Folding turns four such vectors into sums that stand side by side, as it turns squares: f32 by fours,
   f64 by twos. Vectors of 16 B hold one of these, those of 32 B two and those of 64 B four, which are added at the end. The last
   vectors of k begin so much earlier that they end with it, and what others had already is 0 in them. */
static const int flux__gemm_last[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
#  define FLUX__D_ALL(p) *(const V *)(const void *)(p)
#  define FLUX__D_LAST(p) (V)(*(const M *)(const void *)(p) & last)
#  define FLUX__D_LOOP(type, step, first)                                                          \
            int64_t left = k;                                                                      \
            for (; left >= n; left -= n, p += n, q += n) { step(FLUX__D_ALL) }                     \
            if (left > 0 && k >= n) {                                                              \
                const M last = *(const M *)(const void *)(flux__gemm_last + 16 - (n - left - first) * (int)(sizeof(type) / sizeof(int))); \
                p -= n - left, q -= n - left;                                                      \
                step(FLUX__D_LAST)                                                                 \
            }
#  define FLUX__D_VAR(r) , x##r##0 = zero, x##r##1 = zero
#  define FLUX__D_MUL(at, r) t = at(p + r * a_row); x##r##0 += t * y, x##r##1 += t * z;
#  define FLUX__D_STEP(at)                                                                         \
                y = at(q), z = at(q + b_col);                                                      \
                FLUX__D_MUL(at, 0) FLUX__D_MUL(at, 1) FLUX__D_MUL(at, 2) FLUX__D_MUL(at, 3)
#  define FLUX__D_HALVE(half, H, x)                                                                \
    half = *(const H *)(const void *)&x;                                                           \
    if (sizeof(x) > sizeof(H)) half += ((const H *)(const void *)&x)[sizeof(x) > sizeof(H)];
#  define FLUX__FOLD_F(ints, lanes, c)                                                             \
    FLUX__SHUFFLE(u, x0##c, x1##c, ints, lanes(0, 4, 1, 5)) FLUX__SHUFFLE(v, x0##c, x1##c, ints, lanes(2, 6, 3, 7)) u += v; \
    FLUX__SHUFFLE(v, x2##c, x3##c, ints, lanes(0, 4, 1, 5)) FLUX__SHUFFLE(w, x2##c, x3##c, ints, lanes(2, 6, 3, 7)) v += w; \
    FLUX__SHUFFLE(w, u, v, ints, lanes(0, 1, 4, 5)) FLUX__SHUFFLE(u, u, v, ints, lanes(2, 3, 6, 7)) u += w;
#  define FLUX__FOLD_D(ints, lanes, c)                                                             \
    FLUX__SHUFFLE(u, x0##c, x1##c, ints, lanes(0, 2)) FLUX__SHUFFLE(v, x0##c, x1##c, ints, lanes(1, 3)) u += v; \
    FLUX__SHUFFLE(v, x2##c, x3##c, ints, lanes(0, 2)) FLUX__SHUFFLE(w, x2##c, x3##c, ints, lanes(1, 3)) v += w;
#  define FLUX__JOIN(to, x) { H half; W all; FLUX__D_HALVE(half, H, x) FLUX__D_HALVE(all, W, half) *(W *)(void *)(to) = all; }
#  define FLUX__SUMS_F(ints, lanes) FLUX__FOLD_F(ints, lanes, 0) FLUX__JOIN(to, u) FLUX__FOLD_F(ints, lanes, 1) FLUX__JOIN(to + 4, u)
#  define FLUX__SUMS_D(ints, lanes)                                                                \
    FLUX__FOLD_D(ints, lanes, 0) FLUX__JOIN(to, u) FLUX__JOIN(to + 2, v)                           \
    FLUX__FOLD_D(ints, lanes, 1) FLUX__JOIN(to + 4, u) FLUX__JOIN(to + 6, v)
#  define FLUX__GEMM_DOTS(name, type, vec, half_vec, short_vec, sums, ints, lanes, target)         \
    FLUX__GEMM_FN(target) void name(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t fours) { \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef half_vec H;                                                                        \
        typedef int M __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));              \
        typedef short_vec W;                                                                       \
        const int64_t n = (int)(sizeof(V) / sizeof(type));                                         \
        type *to = (type *)sum;                                                                    \
        for (; fours > 0; fours--, a = (const type *)a + 4 * a_row, to += 8) {                     \
            const type *p = (const type *)a, *q = (const type *)b;                                 \
            V t, y, z, u, v, w, zero = {0} FLUX__D_VAR(0) FLUX__D_VAR(1) FLUX__D_VAR(2) FLUX__D_VAR(3); \
            FLUX__D_LOOP(type, FLUX__D_STEP, 0)                                                    \
            sums(ints, lanes)                                                                      \
        }                                                                                          \
    }
#  if FLUX__X86
/* The same of vectors of 64 B that are two of 32 B, and so the same bits: one half after the other, or, where there is but one column
   of B, both at once. */
#    define FLUX__D_BOTH(r)                                                                        \
                t = FLUX__D_ALL(p + r * a_row), x##r##0 += t * y, t = FLUX__D_ALL(p + r * a_row + n / 2), x##r##1 += t * z;
#    define FLUX__D_REST(r)                                                                        \
                t = FLUX__D_LAST(p + r * a_row), x##r##0 += t * y, t = (V)(*(const M *)(const void *)(p + r * a_row + n / 2) & high), x##r##1 += t * z;
#    define FLUX__D_ONE(type)                                                                      \
            int64_t left = k;                                                                      \
            for (; left >= n; left -= n, p += n, q += n) {                                         \
                y = FLUX__D_ALL(q), z = FLUX__D_ALL(q + n / 2);                                    \
                FLUX__D_BOTH(0) FLUX__D_BOTH(1) FLUX__D_BOTH(2) FLUX__D_BOTH(3)                    \
            }                                                                                      \
            if (left > 0 && k >= n) {                                                              \
                const int *mask = flux__gemm_last + 16 - (n - left) * (int)(sizeof(type) / sizeof(int)); \
                const M last = *(const M *)(const void *)mask, high = *(const M *)(const void *)(mask + 8); \
                p -= n - left, q -= n - left;                                                      \
                y = FLUX__D_LAST(q), z = (V)(*(const M *)(const void *)(q + n / 2) & high);        \
                FLUX__D_REST(0) FLUX__D_REST(1) FLUX__D_REST(2) FLUX__D_REST(3)                    \
            }
#    define FLUX__ONE_F(ints, lanes) FLUX__FOLD_F(ints, lanes, 0) s0 = u; FLUX__FOLD_F(ints, lanes, 1) u += s0; FLUX__JOIN(to, u) FLUX__JOIN(to + 4, u)
#    define FLUX__ONE_D(ints, lanes)                                                               \
    FLUX__FOLD_D(ints, lanes, 0) s0 = u, s1 = v; FLUX__FOLD_D(ints, lanes, 1) u += s0, v += s1;     \
    FLUX__JOIN(to, u) FLUX__JOIN(to + 2, v) FLUX__JOIN(to + 4, u) FLUX__JOIN(to + 6, v)
#    define FLUX__HALF_SUM(s, u, to) if (first) { s += u; FLUX__JOIN(to, s) } else s = u;
#    define FLUX__HALVES_F(ints, lanes)                                                            \
    FLUX__FOLD_F(ints, lanes, 0) FLUX__HALF_SUM(s0, u, to) FLUX__FOLD_F(ints, lanes, 1) FLUX__HALF_SUM(s1, u, to + 4)
#    define FLUX__HALVES_D(ints, lanes)                                                            \
    FLUX__FOLD_D(ints, lanes, 0) FLUX__HALF_SUM(s0, u, to) FLUX__HALF_SUM(s1, v, to + 2)           \
    FLUX__FOLD_D(ints, lanes, 1) FLUX__HALF_SUM(s2, u, to + 4) FLUX__HALF_SUM(s3, v, to + 6)
#    define FLUX__GEMM_HALVES(name, type, vec, short_vec, sums, one, ints, lanes)                  \
    FLUX__GEMM_FN(FLUX__AVX2) void name(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t fours) { \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef vec H;                                                                             \
        typedef int M __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));              \
        typedef short_vec W;                                                                       \
        const int64_t n = 64 / (int)sizeof(type);                                                  \
        type *to = (type *)sum;                                                                    \
        for (; fours > 0; fours--, a = (const type *)a + 4 * a_row, to += 8) {                     \
            V s0, s1, s2, s3, zero = {0};                                                          \
            s0 = s1 = s2 = s3 = zero;                                                              \
            for (int64_t first = 0; b_col && first < n; first += n / 2) {                          \
                const type *p = (const type *)a + first, *q = (const type *)b + first;             \
                V t, y, z, u, v, w FLUX__D_VAR(0) FLUX__D_VAR(1) FLUX__D_VAR(2) FLUX__D_VAR(3);    \
                FLUX__D_LOOP(type, FLUX__D_STEP, first)                                            \
                sums(ints, lanes)                                                                  \
            }                                                                                      \
            if (!b_col) {                                                                          \
                const type *p = (const type *)a, *q = (const type *)b;                             \
                V t, y, z, u, v, w FLUX__D_VAR(0) FLUX__D_VAR(1) FLUX__D_VAR(2) FLUX__D_VAR(3);    \
                FLUX__D_ONE(type)                                                                  \
                one(ints, lanes)                                                                   \
            }                                                                                      \
            (void)s2, (void)s3;                                                                    \
        }                                                                                          \
    }
/* Sixteen sums at a time: there are registers for so many vectors of 64 B. The parts of four folded ones are joined into one, whose
   parts are rows of C, or halves of them. */
#    define FLUX__LANE16(i, first) ((i) < 4 ? (i) : (i) + 12) + (first)
#    define FLUX__LANES16(i, j, k, l)                                                              \
    FLUX__LANE16(i, 0), FLUX__LANE16(j, 0), FLUX__LANE16(k, 0), FLUX__LANE16(l, 0), FLUX__LANE16(i, 4), FLUX__LANE16(j, 4), FLUX__LANE16(k, 4), \
    FLUX__LANE16(l, 4), FLUX__LANE16(i, 8), FLUX__LANE16(j, 8), FLUX__LANE16(k, 8), FLUX__LANE16(l, 8), FLUX__LANE16(i, 12), FLUX__LANE16(j, 12), \
    FLUX__LANE16(k, 12), FLUX__LANE16(l, 12)
#    define FLUX__LANE2(i, first) ((i) < 2 ? (i) : (i) + 6) + (first)
#    define FLUX__LANES2222(i, j)                                                                  \
    FLUX__LANE2(i, 0), FLUX__LANE2(j, 0), FLUX__LANE2(i, 2), FLUX__LANE2(j, 2), FLUX__LANE2(i, 4), FLUX__LANE2(j, 4), FLUX__LANE2(i, 6), FLUX__LANE2(j, 6)
#    define FLUX__D_VAR4(c) , x0##c = zero, x1##c = zero, x2##c = zero, x3##c = zero
#    define FLUX__D_MUL4(at, c) t = at(p + c * a_row); x0##c += t * y0, x1##c += t * y1, x2##c += t * y2, x3##c += t * y3;
#    define FLUX__D_STEP4(at) {                                                                    \
                const V y0 = at(q), y1 = at(q + b_col), y2 = at(q + 2 * b_col), y3 = at(q + 3 * b_col); \
                FLUX__D_MUL4(at, 0) FLUX__D_MUL4(at, 1) FLUX__D_MUL4(at, 2) FLUX__D_MUL4(at, 3)    \
            }
#    define FLUX__JOIN_HALVES(sum, a, b, low, high) {                                              \
        flux__gemm_d64 one, two;                                                                   \
        FLUX__SHUFFLE(one, (flux__gemm_d64)a, (flux__gemm_d64)b, flux__gemm_l64, low)              \
        FLUX__SHUFFLE(two, (flux__gemm_d64)a, (flux__gemm_d64)b, flux__gemm_l64, high)             \
        sum = (V)one + (V)two;                                                                     \
    }
#    define FLUX__LIST(...) __VA_ARGS__
#    define FLUX__JOIN4(a, b, c, d)                                                                \
    FLUX__JOIN_HALVES(c, c, d, FLUX__LIST(0, 1, 2, 3, 8, 9, 10, 11), FLUX__LIST(4, 5, 6, 7, 12, 13, 14, 15)) \
    FLUX__JOIN_HALVES(a, a, b, FLUX__LIST(0, 1, 2, 3, 8, 9, 10, 11), FLUX__LIST(4, 5, 6, 7, 12, 13, 14, 15)) \
    FLUX__JOIN_HALVES(a, a, c, FLUX__LIST(0, 1, 4, 5, 8, 9, 12, 13), FLUX__LIST(2, 3, 6, 7, 10, 11, 14, 15))
#    define FLUX__PUT_ROW(c, x, i) *(W *)(void *)(to + c * c_row) = ((const W *)(const void *)&x)[i];
#    define FLUX__FOURS_F(ints, lanes)                                                             \
    FLUX__FOLD_F(ints, lanes, 0) s0 = u; FLUX__FOLD_F(ints, lanes, 1) s1 = u; FLUX__FOLD_F(ints, lanes, 2) s2 = u; FLUX__FOLD_F(ints, lanes, 3) \
    FLUX__JOIN4(s0, s1, s2, u)                                                                     \
    FLUX__PUT_ROW(0, s0, 0) FLUX__PUT_ROW(1, s0, 1) FLUX__PUT_ROW(2, s0, 2) FLUX__PUT_ROW(3, s0, 3)
#    define FLUX__FOURS_D(ints, lanes)                                                             \
    FLUX__FOLD_D(ints, lanes, 0) s0 = u, s1 = v; FLUX__FOLD_D(ints, lanes, 1)                      \
    FLUX__JOIN4(s0, s1, u, v)                                                                      \
    FLUX__PUT_ROW(0, s0, 0) FLUX__PUT_ROW(1, s0, 1)                                                \
    FLUX__FOLD_D(ints, lanes, 2) s0 = u, s1 = v; FLUX__FOLD_D(ints, lanes, 3)                      \
    FLUX__JOIN4(s0, s1, u, v)                                                                      \
    FLUX__PUT_ROW(2, s0, 0) FLUX__PUT_ROW(3, s0, 1)
#    define FLUX__GEMM_FOURS(name, type, vec, short_vec, sums, ints, lanes)                        \
    FLUX__GEMM_FN(FLUX__AVX512) void name(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *c, int64_t c_row, \
                                          int64_t fours) {                                         \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef short_vec W;                                                                       \
        typedef int M __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));              \
        const int64_t n = (int)(sizeof(V) / sizeof(type));                                         \
        type *to = (type *)c;                                                                      \
        for (; fours > 0; fours--, a = (const type *)a + 4 * a_row, to += 4 * c_row) {             \
            const type *p = (const type *)a, *q = (const type *)b;                                 \
            V t, u, v, w, s0, s1, s2, zero = {0} FLUX__D_VAR4(0) FLUX__D_VAR4(1) FLUX__D_VAR4(2) FLUX__D_VAR4(3); \
            FLUX__D_LOOP(type, FLUX__D_STEP4, 0)                                                   \
            sums(ints, lanes)                                                                      \
            (void)s2;                                                                              \
        }                                                                                          \
    }
#  endif
#  define FLUX__GEMM_SET(name, type, vec, bytes, mul, wide, target, narrow, dots, fours, keep, plain) \
    FLUX__GEMM_HIGH##wide(name, type, vec, mul, 1, target)                                         \
    FLUX__GEMM_HIGH##wide(name, type, vec, mul, 2, target)                                         \
    static const flux__gemm_kernel name##_one[] = {FLUX__GEMM_LIST##wide(name##_1x)};              \
    static const flux__gemm_kernel name##_two[] = {FLUX__GEMM_LIST##wide(name##_2x)};              \
    static const flux__gemm_set name = {narrow, bytes / (int)sizeof(type), wide, name##_one,       \
                                        name##_two, keep, plain, dots##_dots, fours};

FLUX__GEMM_DOTS(flux__gemm_f32_base_dots, float, flux__gemm_f16, flux__gemm_f16, flux__gemm_f16, FLUX__SUMS_F, flux__gemm_i16, FLUX__LANES4, )
FLUX__GEMM_DOTS(flux__gemm_f64_base_dots, double, flux__gemm_d16, flux__gemm_d16, flux__gemm_d16, FLUX__SUMS_D, flux__gemm_l16, FLUX__LANES2, )
#  if FLUX__X86
FLUX__GEMM_HALVES(flux__gemm_f32_avx2_dots, float, flux__gemm_f32, flux__gemm_f16, FLUX__HALVES_F, FLUX__ONE_F, flux__gemm_i32, FLUX__LANES8)
FLUX__GEMM_HALVES(flux__gemm_f64_avx2_dots, double, flux__gemm_d32, flux__gemm_d16, FLUX__HALVES_D, FLUX__ONE_D, flux__gemm_l32, FLUX__LANES22)
FLUX__GEMM_DOTS(flux__gemm_f32_avx512_dots, float, flux__gemm_f64, flux__gemm_f32, flux__gemm_f16, FLUX__SUMS_F, flux__gemm_i64, FLUX__LANES16, FLUX__AVX512)
FLUX__GEMM_DOTS(flux__gemm_f64_avx512_dots, double, flux__gemm_d64, flux__gemm_d32, flux__gemm_d16, FLUX__SUMS_D, flux__gemm_l64, FLUX__LANES2222, FLUX__AVX512)
FLUX__GEMM_FOURS(flux__gemm_f32_fours, float, flux__gemm_f64, flux__gemm_f16, FLUX__FOURS_F, flux__gemm_i64, FLUX__LANES16)
FLUX__GEMM_FOURS(flux__gemm_f64_fours, double, flux__gemm_d64, flux__gemm_d32, FLUX__FOURS_D, flux__gemm_l64, FLUX__LANES2222)
#  endif
#  if FLUX__NEON
FLUX__GEMM_SET(flux__gemm_f32_base, float, flux__gemm_f16, 16, FLUX__K_MULN, 12, , NULL, flux__gemm_f32_base, NULL, NULL, NULL)
FLUX__GEMM_SET(flux__gemm_f64_base, double, flux__gemm_d16, 16, FLUX__K_MULO, 12, , NULL, flux__gemm_f64_base, NULL, NULL, NULL)
#  else
FLUX__GEMM_SET(flux__gemm_f32_base, float, flux__gemm_f16, 16, FLUX__K_MUL, 6, , NULL, flux__gemm_f32_base, NULL, NULL, NULL)
FLUX__GEMM_SET(flux__gemm_f64_base, double, flux__gemm_d16, 16, FLUX__K_MUL, 6, , NULL, flux__gemm_f64_base, NULL, NULL, NULL)
#  endif
#  if FLUX__X86
FLUX__GEMM_LOOP(flux__gemm_f32_keep, float, flux__gemm_f32, FLUX__K_MUL2, 2, 6, FLUX__AVX2, FLUX__K_KEEP)
FLUX__GEMM_LOOP(flux__gemm_f64_keep, double, flux__gemm_d32, FLUX__K_MUL2, 2, 6, FLUX__AVX2, FLUX__K_KEEP)
FLUX__GEMM_PLAIN(flux__gemm_f32_plain, float, flux__gemm_f32, FLUX__AVX2)
FLUX__GEMM_PLAIN(flux__gemm_f64_plain, double, flux__gemm_d32, FLUX__AVX2)
FLUX__GEMM_SET(flux__gemm_f32_avx2, float, flux__gemm_f32, 32, FLUX__K_MUL, 6, FLUX__AVX2, NULL, flux__gemm_f32_avx2, NULL, flux__gemm_f32_keep, flux__gemm_f32_plain)
FLUX__GEMM_SET(flux__gemm_f64_avx2, double, flux__gemm_d32, 32, FLUX__K_MUL, 6, FLUX__AVX2, NULL, flux__gemm_f64_avx2, NULL, flux__gemm_f64_keep, flux__gemm_f64_plain)
FLUX__GEMM_SET(flux__gemm_f32_avx512, float, flux__gemm_f64, 64, FLUX__K_MULS, 12, FLUX__AVX512, &flux__gemm_f32_avx2, flux__gemm_f32_avx512, flux__gemm_f32_fours, NULL, NULL)
FLUX__GEMM_SET(flux__gemm_f64_avx512, double, flux__gemm_d64, 64, FLUX__K_MULD, 8, FLUX__AVX512, &flux__gemm_f64_avx2, flux__gemm_f64_avx512, flux__gemm_f64_fours, NULL, NULL)
#  endif
#  if FLUX__BF16
FLUX__GEMM_SET(flux__gemm_bf16, float, flux__gemm_f64, 64, FLUX__K_MULB, 8, FLUX__AVX512_BF16, NULL, flux__gemm_f32_avx2, NULL, NULL, NULL)
#  endif

#else
/* A compiler without vectors: the same interface, four rows to a "vector", four columns at most. */
#  define FLUX__GEMM_FN(target) static
#  define FLUX__GEMM_KERNEL(name, type, high, wide)                                                \
    static void name##_##high##x##wide(int64_t k, const void *a, int64_t a_step, const void *b,    \
                                       int64_t b_row, int64_t b_col, void *c, int64_t ldc, int add, \
                                       const void *next, int64_t next_step) {                      \
        type x[wide][4 * high] = {{0}}, *to = (type *)c, w;                                        \
        const type *f = (const type *)a, *g = (const type *)b;                                     \
        int64_t i, j;                                                                              \
        for (j = 0; add == FLUX__GEMM_GO_ON && j < wide; j++)                                      \
            for (i = 0; i < 4 * high; i++) x[j][i] = to[j * ldc + i];                              \
        for (; k > 0; k--, f += a_step, g += b_row)                                                \
            for (j = 0; j < wide; j++)                                                             \
                for (i = 0, w = g[j * b_col]; i < 4 * high; i++) x[j][i] += f[i] * w;              \
        for (j = 0; j < wide; j++, to += ldc)                                                      \
            for (i = 0; i < 4 * high; i++) to[i] = x[j][i] + (add == FLUX__GEMM_ADD ? to[i] : 0);                    \
        (void)next, (void)next_step;                                                               \
    }
#  define FLUX__GEMM_HIGH(name, type, high)                                                        \
    FLUX__GEMM_KERNEL(name, type, high, 1) FLUX__GEMM_KERNEL(name, type, high, 2)                  \
    FLUX__GEMM_KERNEL(name, type, high, 3) FLUX__GEMM_KERNEL(name, type, high, 4)
#  define FLUX__GEMM_DOTS(name, type)                                                              \
    static void name##_dots(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t fours) { \
        int64_t i, l;                                                                              \
        for (i = 0; i < 8 * fours; i++) {                                                          \
            const type *p = (const type *)a + (i / 8 * 4 + i % 4) * a_row, *q = (const type *)b + i / 4 % 2 * b_col; \
            type x = 0;                                                                            \
            for (l = 0; l < k; l++) x += p[l] * q[l];                                              \
            ((type *)sum)[i] = x;                                                                  \
        }                                                                                          \
    }
#  define FLUX__GEMM_SET(name, type)                                                               \
    FLUX__GEMM_HIGH(name, type, 1)                                                                 \
    FLUX__GEMM_HIGH(name, type, 2)                                                                 \
    FLUX__GEMM_DOTS(name, type)                                                                    \
    static const flux__gemm_kernel name##_one[] = {name##_1x1, name##_1x2, name##_1x3, name##_1x4}; \
    static const flux__gemm_kernel name##_two[] = {name##_2x1, name##_2x2, name##_2x3, name##_2x4}; \
    static const flux__gemm_set name = {NULL, 4, 4, name##_one, name##_two, NULL, NULL, name##_dots, NULL};
FLUX__GEMM_SET(flux__gemm_f32_base, float)
FLUX__GEMM_SET(flux__gemm_f64_base, double)
#endif

static const flux__gemm_set *flux__gemm_kernels(bool f64, bool pairs) {
#if FLUX__BF16
    if (pairs) return &flux__gemm_bf16;
#endif
    (void)pairs;
#if FLUX__GEMM_VECTORS && FLUX__X86
    int level = flux__simd();
    if (level > 1) return f64 ? &flux__gemm_f64_avx512 : &flux__gemm_f32_avx512;
    if (level == 1) return f64 ? &flux__gemm_f64_avx2 : &flux__gemm_f32_avx2;
#endif
    return f64 ? &flux__gemm_f64_base : &flux__gemm_f32_base;
}

/* The set whose measures say how a product is made: with AVX2 as with AVX-512, so that the sums are the same. */
static const flux__gemm_set *flux__gemm_judge(const flux__gemm_set *set) {
#if FLUX__GEMM_VECTORS && FLUX__X86
    if (set == &flux__gemm_f32_avx2) return &flux__gemm_f32_avx512;
    if (set == &flux__gemm_f64_avx2) return &flux__gemm_f64_avx512;
#endif
    return set;
}

#endif /* FLUX__CPU_GEMM_KERNELS_H */
