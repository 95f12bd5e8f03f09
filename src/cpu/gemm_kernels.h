#ifndef FLUX__CPU_GEMM_KERNELS_H
#define FLUX__CPU_GEMM_KERNELS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../schedule/analysis.h"
#include "loops.h"

/* ---------------------------------------------------------------------- cpu/gemm_kernels.h
   The matrix product C = A B in f32 or f64, for any strides: its job
   (flux__gemm_job) and its microkernels; cpu/gemm_pack.h copies operands,
   cpu/gemm_plan.h cuts the work. An mr x nr tile of C stays in registers:
   vectors run down the columns of A and C, single elements of B are broadcast,
   32 x 12 with AVX-512. Inner-product kernels (inner_kernel, inner4) serve few columns.
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

FLUX__BEGIN_LEAN

typedef struct flux__gemm_job {
    int64_t m, n, k;
    const void *a;                        /* A, m x k, and its strides in elements: */
    int64_t a_row, a_col;                 /* from row to row, from column to column */
    const void *b;                        /* B, k x n */
    int64_t b_row, b_col;
    /* implicit-GEMM maps, or NULL. With a map, A or B has no strides: [0] maps its rows, [1]
       its columns to offsets, which are added */
    const flux__axes *a_map, *b_map;
    void *c;  /* C, m x n, its columns ldc elements apart, each contiguous */
    int64_t ldc;                          /* c NULL: only the epilogue sees C */
    /* NULL, or the A of the product that comes next, with the same strides: its first block is
       prefetched */
    const void *a_next;
    int64_t batches;  /* number of such products that are computed one after another, or 0 */
    /* bf16: an element of A or B is a 32-bit word of two neighbours along k (vnni pairs); an
       element of C is an f32 */
    bool pairs;
    /* bf16: A and B are read as they lie, an element is 2 bytes, and AMX's tiles multiply
       (cpu/gemm_amx.h); an element of C is an f32 */
    bool tiles;
    /* 0, or what flux__gemm_by_inner chose for the whole product of which this is a part */
    int inner_kernel;
    /* NULL, or memory for the panels of A, or of B (panels_b), that this product and others read
       (cpu/gemm_panels.h; by tiles A's alone, cpu/gemm_amx.h); fill: this one packs them first;
       backwards: it reads them from the last to the first */
    void *panels;
    bool panels_b, fill, backwards;
    /* NULL, or called once for each finished piece of C, from any thread, while the piece is in
       the cache: rows i0 ... i0+mb-1, columns j0 ... j0+nb-1, element (i, j) of the piece at
       block[i + j * ld]. */
    void (*epilogue)(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb,
                     void *block, int64_t ld);
    void *ctx;
} flux__gemm_job;

/* A microkernel computes one tile of C, mr x nr, as a sum of k products. a: mr x k, each column
   contiguous, columns a_step elements apart. b: k x nr, element (l, j) at b[l * b_row + j *
   b_col]. c: mr x nr, columns contiguous and ldc apart. Meanwhile it prefetches k cache lines
   for tiles to come, from `next` on, next_step bytes apart: prefetched all at once before the
   loop, they would fill the queue that the kernel's own loads go through. add: the sums become
   C, are added to C, or continue from the sums that C holds, as if the loop had never stopped
   (the packing and the plain kernel cannot, nor can they do the following). With FLUX__GEMM_PLACES
   too, which is added to one of the first two, `next` is a flux__gemm_places. */
enum { FLUX__GEMM_NEW, FLUX__GEMM_ADD, FLUX__GEMM_GO_ON, FLUX__GEMM_PLACES = 4 };
/* Columns of a and rows of b in n runs: k of them, then `each`, and in the last one `last`. jump
   NULL: b's runs follow each other, a's are in other places, at[...] elements from the first. Else
   a's runs follow each other, and before run i of b jump[i] elements are skipped; b's columns stand
   in triples, b_col apart within one, and triples 1 to 3 triple[...] elements from the first. */
typedef struct flux__gemm_places {
    int64_t n, each, last;
    const int64_t *at, *jump;
    int64_t triple[3];
} flux__gemm_places;
typedef void (*flux__gemm_kernel)(int64_t k, const void *a, int64_t a_step, const void *b,
                                  int64_t b_row, int64_t b_col, void *c, int64_t ldc, int add,
                                  const void *next, int64_t next_step);

/* An inner-product kernel: 4 * inner4 rows of A times two columns of B. a: rows a_row apart, b:
   columns b_col apart, both contiguous along k (k is a vector or more), so that neither is
   transposed. sum: of each four rows first the four sums of column 0, then the four of column
   1. */
typedef void (*flux__gemm_inner)(int64_t k, const void *a, int64_t a_row, const void *b,
                                int64_t b_col, void *sum, int64_t inner4);
/* The same of four columns of B, with the same bits. c: the four sums of a row are contiguous,
   rows are c_row apart. */
typedef void (*flux__gemm_inner4)(int64_t k, const void *a, int64_t a_row, const void *b,
                                 int64_t b_col, void *c, int64_t c_row, int64_t inner4);

/* A matrix times a vector, with a microkernel's sums: c, or with `add` c plus, `rows` sums of k
   products; rows is a multiple of a vector, of bf16 of two. Columns of A are read from end to end,
   as they lie in memory: it is read once only, so memory is all that counts. Some have an A of a
   half format, which becomes f32 on the way, and a B of f32. */
typedef void (*flux__gemm_vector)(int64_t rows, int64_t k, const void *a, int64_t a_step,
                                  const void *b, int64_t b_row, void *c, bool add);

typedef struct flux__gemm_set {           /* the kernels for one element type and instruction set */
    /* the set with vectors of half the length that gives the same bits, or NULL */
    const struct flux__gemm_set *narrow;
    int lanes, columns;                   /* elements of a vector; the largest nr */
    /* microkernels one and two vectors high, for nr = 1, 2, 3, 4, 6, ... */
    const flux__gemm_kernel *one, *two;
    /* NULL, or the packing kernel of the largest tile: it prefetches nothing, but copies its
       part of A to `next` */
    flux__gemm_kernel pack_kernel;
    /* NULL, or a microkernel of the largest tile that prefetches nothing */
    flux__gemm_kernel plain;
    flux__gemm_inner inner_kernel;        /* inner products with two columns of B, */
    flux__gemm_inner4 inner4;  /* and with four; NULL where there are too few registers */
    flux__gemm_vector vector;             /* or NULL */
} flux__gemm_set;

/* The place of the microkernel for nr columns in `one` and `two`. */
static FLUX__INLINE int64_t flux__gemm_width(int64_t nr) { return nr <= 4 ? nr - 1 : nr / 2 + 1; }

/* Column j of B is read through pointer j / 3, at 0, 1 or 2 column strides from it: that is
   what an address of an instruction can hold. X(column, pointer, strides). */
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
    typedef float flux__vec##bytes##f __attribute__((vector_size(bytes), aligned(4), may_alias));  \
    typedef double flux__vec##bytes##d __attribute__((vector_size(bytes), aligned(8), may_alias));
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
#  define FLUX__K_GET1(j, q, r) x##j = at[0]; at = FLUX__K_NEXT(at);
#  define FLUX__K_GET2(j, q, r) x##j = at[0]; y##j = at[1]; at = FLUX__K_NEXT(at);
#  define FLUX__K_PUT1(j, q, r) at[0] = x##j; at = FLUX__K_NEXT(at);
#  define FLUX__K_PUT2(j, q, r) at[0] = x##j; at[1] = y##j; at = FLUX__K_NEXT(at);
#  define FLUX__K_NEXT(at) (V *)(void *)((T *)(void *)at + ldc)

/* gcc broadcasts each element of B into a register. With AVX-512 that takes longer than the
   product itself if the element has only one product; the instruction can broadcast an element
   from memory instead. Operands stand in both orders, for -masm=intel. */
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

/* bf16: a word of u and of B holds two numbers; both products are added. */
#  define FLUX__K_MULB1(j, q, r)                                                                   \
    __asm__("vdpbf16ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(x##j) : "v"(u), "m"(b##q[r * b_col]));
#  define FLUX__K_MULB2(j, q, r)                                                                   \
    __asm__("vdpbf16ps {%4%{1to16%}, %2, %0|%0, %2, %4%{1to16%}}\n\tvdpbf16ps {%4%{1to16%}, %3, %1|%1, %3, %4%{1to16%}}" \
            : "+v"(x##j), "+v"(y##j) : "v"(u), "v"(v), "m"(b##q[r * b_col]));

/* NEON multiplies by one element of a register, so no register is filled with copies of it. */
#  define FLUX__K_MULN1(j, q, r)                                                                   \
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(x##j) : "w"(u), "w"(b##q[r * b_col]));
#  define FLUX__K_MULN2(j, q, r)                                                                   \
    __asm__("fmla %0.4s, %2.4s, %4.s[0]\n\tfmla %1.4s, %3.4s, %4.s[0]"                             \
            : "+w"(x##j), "+w"(y##j) : "w"(u), "w"(v), "w"(b##q[r * b_col]));
#  define FLUX__K_MULO1(j, q, r)                                                                   \
    __asm__("fmla %0.2d, %1.2d, %2.d[0]" : "+w"(x##j) : "w"(u), "w"(b##q[r * b_col]));
#  define FLUX__K_MULO2(j, q, r)                                                                   \
    __asm__("fmla %0.2d, %2.2d, %4.d[0]\n\tfmla %1.2d, %3.2d, %4.d[0]"                             \
            : "+w"(x##j), "+w"(y##j) : "w"(u), "w"(v), "w"(b##q[r * b_col]));

#  define FLUX__K_FETCH FLUX__PREFETCH_LATER(fetch)
/* What the packing kernel copies is in the second-level cache by then, but its columns are too
   far apart for the processor to prefetch more. */
#  define FLUX__K_PACK                                                                             \
    ((V *)(uintptr_t)fetch)[0] = u, ((V *)(uintptr_t)fetch)[1] = v;                                \
    FLUX__PREFETCH(p + 16 * a_step)
#  define FLUX__GEMM_KERNEL(name, type, vec, mul, mr, nr, target)                              \
    FLUX__GEMM_LOOP(name##_##mr##x##nr, type, vec, mul##mr, mr, nr, target, FLUX__K_FETCH)
#  define FLUX__GEMM_LOOP(name, type, vec, mul, mr, nr, target, beside)                            \
    FLUX__GEMM_FN(target) void name(                                                               \
        int64_t k, const void *a, int64_t a_step, const void *b, int64_t b_row, int64_t b_col,     \
        void *c, int64_t ldc, int add, const void *next, int64_t next_step) {                      \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef type T;                                                                            \
        const T *b0 = (const T *)b, *b1 = nr > 3 ? b0 + 3 * b_col : b0,                            \
                *b2 = nr > 6 ? b1 + 3 * b_col : b0, *b3 = nr > 9 ? b2 + 3 * b_col : b0;            \
        const T *p = (const T *)a;                                                                 \
        const char *fetch = (const char *)next;                                                    \
        const flux__gemm_places *places = (const flux__gemm_places *)next;                         \
        V *at, u, v, w, zero = {0} FLUX__COLUMNS##nr(FLUX__K_VAR##mr);                             \
        FLUX__COLUMNS##nr(FLUX__K_ZERO##mr)                                                        \
        at = (V *)c;                                                                               \
        if (add == FLUX__GEMM_GO_ON) { FLUX__COLUMNS##nr(FLUX__K_GET##mr) }                        \
        if (add & FLUX__GEMM_PLACES && places->jump)                                               \
            b1 = b0 + places->triple[0], b2 = b0 + places->triple[1], b3 = b0 + places->triple[2];    \
        for (int64_t l = k, done = 0, d;;) {                                                       \
            for (; l; l--) {                                                                       \
                u = ((const V *)(const void *)p)[0];                                               \
                if (mr == 2) v = ((const V *)(const void *)p)[mr - 1];                             \
                FLUX__COLUMNS##nr(mul)                                                             \
                if (mr == 2) { beside fetch += next_step; }                                        \
                p += a_step, b0 += b_row, b1 += b_row, b2 += b_row, b3 += b_row;                   \
            }                                                                                      \
            if (!(add & FLUX__GEMM_PLACES) || ++done == places->n) break;                          \
            if (places->jump) d = places->jump[done], b0 += d, b1 += d, b2 += d, b3 += d;          \
            else p = (const T *)a + places->at[done];                                              \
            l = done + 1 < places->n ? places->each : places->last;                                \
        }                                                                                          \
        at = (V *)c;                                                                               \
        if (add & FLUX__GEMM_ADD) { FLUX__COLUMNS##nr(FLUX__K_ADD##mr) }                           \
        at = (V *)c;                                                                               \
        FLUX__COLUMNS##nr(FLUX__K_PUT##mr)                                                         \
        (void)v, (void)w, (void)b3, (void)fetch;                                                   \
    }
/* Vectors of half the length are twice the instructions, and a core that two threads share
   reads so many that each one beside the sums takes time (there, a prefetch is 8 % of a
   product). So this is the largest tile for where nothing is to be prefetched, with two steps
   of k in a turn of the loop. */
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
        void *c, int64_t ldc, int add, const void *next, int64_t next_step) {                      \
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
/* Sums of a page of C at a time are kept in the first-level cache; eight columns are added to each
   as it passes. As much of these as belongs to a page fills that cache, so the next eight are
   prefetched into the second-level one. */
#  define FLUX__V_TIMES(j, q, r) const V x##j = b##q[r * b_row] - zero;
#  define FLUX__V_ADD(j, q, r)                                                                     \
    y += *(const V *)(const void *)(a##q + r * a_step) * x##j;                                     \
    FLUX__PREFETCH_LATER(a##q + (r + 8) * a_step)
/* The same of f16: eight columns are half as much, and the next ones fit into the first-level cache
   beside them. */
#  define FLUX__V_ADD_F16(j, q, r)                                                                 \
    {                                                                                              \
        V f;                                                                                       \
        __asm__("vcvtph2ps {%1, %0|%0, %1}" : "=v"(f) : "m"(*(const H *)(const void *)(a##q + r * a_step))); \
        y += f * x##j;                                                                             \
    }                                                                                              \
    FLUX__PREFETCH(a##q + (r + 8) * a_step)
/* And of bf16, whose bits are an f32's upper half: of a word's two rows the second one's are there,
   the first one's are moved. Their sums are z and y. */
#  define FLUX__V_ADD_BF16(j, q, r)                                                                \
    {                                                                                              \
        const H two = *(const H *)(const void *)(a##q + r * a_step);                               \
        y += (V)(two << 16) * x##j, z += (V)(two & 0xffff0000u) * x##j;                            \
    }                                                                                              \
    FLUX__PREFETCH(a##q + (r + 8) * a_step)
#  define FLUX__V_COLUMNS(columns, add)                                                            \
    {                                                                                              \
        const A *a0 = p + l * a_step, *a1 = a0 + 3 * a_step, *a2 = a1 + 3 * a_step;                \
        const T *b0 = (const T *)b + l * b_row, *b1 = b0 + 3 * b_row, *b2 = b1 + 3 * b_row;        \
        columns(FLUX__V_TIMES)                                                                     \
        for (i = 0; i < n; i += each, a0 += each, a1 += each, a2 += each) {                        \
            V y = *(const V *)(const void *)(sum + i), z = *(const V *)(const void *)(sum + i + each - lanes); \
            columns(add)                                                                           \
            *(V *)(void *)(sum + i) = y;                                                           \
            if (each > lanes) *(V *)(void *)(sum + i + lanes) = z;                                 \
        }                                                                                          \
        (void)a1, (void)a2, (void)b1, (void)b2;                                                    \
    }
#  define FLUX__GEMM_VECTOR(name, type, vec, target)                                               \
    FLUX__GEMM_VECTOR_OF(name, type, vec, type, FLUX__V_ADD, 1, , target)
/* `vectors` of rows are added to at a time: of two the first has the even rows */
#  define FLUX__GEMM_VECTOR_OF(name, type, vec, a_type, add_columns, vectors, types, target)       \
    FLUX__GEMM_FN(target) void name(int64_t rows, int64_t k, const void *a, int64_t a_step,        \
                                    const void *b, int64_t b_row, void *c, bool add) {             \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef type T;                                                                            \
        typedef a_type A;                                                                          \
        types                                                                                      \
        enum { most = 4096 / sizeof(T), lanes = sizeof(V) / sizeof(T), each = vectors * lanes };   \
        const V zero = {0};                                                                        \
        const A *p = (const A *)a;                                                                 \
        T sum[most], *to = (T *)c;                                                                 \
        for (int64_t i, l, n; rows > 0; rows -= n, p += n, to += n) {                              \
            n = rows < (int)most ? rows : (int)most;                                                      \
            memset(sum, 0, (size_t)n * sizeof(T));                                                 \
            for (l = 0; l + 8 <= k; l += 8) FLUX__V_COLUMNS(FLUX__COLUMNS8, add_columns)           \
            for (; l < k; l++) FLUX__V_COLUMNS(FLUX__COLUMNS1, add_columns)                        \
            for (i = 0; i < n; i++) {                                                              \
                l = vectors > 1 ? i / each * each + i % 2 * lanes + i % each / 2 : i;              \
                to[i] = add ? to[i] + sum[l] : sum[l];                                             \
            }                                                                                      \
        }                                                                                          \
    }
#  define FLUX__GEMM_MR6(name, type, vec, mul, mr, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 1, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 2, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 3, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 4, target)                                       \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 6, target)
#  define FLUX__GEMM_MR8(name, type, vec, mul, mr, target)                                     \
    FLUX__GEMM_MR6(name, type, vec, mul, mr, target)                                           \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 8, target)
#  define FLUX__GEMM_MR12(name, type, vec, mul, mr, target)                                    \
    FLUX__GEMM_MR8(name, type, vec, mul, mr, target)                                           \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 10, target)                                    \
    FLUX__GEMM_KERNEL(name, type, vec, mul, mr, 12, target)
#  define FLUX__GEMM_LIST6(n) n##1, n##2, n##3, n##4, n##6
#  define FLUX__GEMM_LIST8(n) FLUX__GEMM_LIST6(n), n##8
#  define FLUX__GEMM_LIST12(n) FLUX__GEMM_LIST8(n), n##10, n##12
typedef int flux__vec16i __attribute__((vector_size(16)));
#  if !defined(__clang__)
typedef int64_t flux__vec16l __attribute__((vector_size(16)));
typedef int flux__vec32i __attribute__((vector_size(32)));
typedef int64_t flux__vec32l __attribute__((vector_size(32)));
typedef int flux__vec64i __attribute__((vector_size(64)));
typedef int64_t flux__vec64l __attribute__((vector_size(64)));
#  endif
#  define FLUX__LANES2(i, j) i, j
#  define FLUX__LANE8(i) ((i) < 4 ? (i) : (i) + 4)
#  define FLUX__LANES8(i, j, k, l) FLUX__LANE8(i), FLUX__LANE8(j), FLUX__LANE8(k), FLUX__LANE8(l),   \
    FLUX__LANE8(i) + 4, FLUX__LANE8(j) + 4, FLUX__LANE8(k) + 4, FLUX__LANE8(l) + 4
#  define FLUX__LANE4(i) ((i) < 2 ? (i) : (i) + 2)
#  define FLUX__LANES22(i, j) FLUX__LANE4(i), FLUX__LANE4(j), FLUX__LANE4(i) + 2, FLUX__LANE4(j) + 2
/* Inner products. Each sum has a vector of partial sums. The horizontal reduction transposes
   four such vectors (f32) or two (f64) in registers, as a pack transposes squares, so that
   their sums stand side by side. Vectors of 16 bytes hold one group of partial sums, those of
   32 bytes two and those of 64 bytes four, which are added at the end. The last vectors of k
   start earlier so that they end with it, and the elements that were added already are masked
   to 0. */
#  define FLUX__D_ALL(p) *(const V *)(const void *)(p)
#  define FLUX__D_LAST(p) (V)(*(const M *)(const void *)(p) & last)
#  define FLUX__D_LOOP(type, step, first)                                                          \
            int64_t left = k;                                                                      \
            for (; left >= n; left -= n, p += n, q += n) { step(FLUX__D_ALL) }                     \
            if (left > 0 && k >= n) {                                                              \
                const M last = *(const M *)(const void *)(flux__last_lanes + 16 - (n - left - first) * (int)(sizeof(type) / sizeof(int))); \
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
#  define FLUX__HREDUCE_F(ints, lanes, c)                                                             \
    FLUX__SHUFFLE(u, x0##c, x1##c, ints, lanes(0, 4, 1, 5)) FLUX__SHUFFLE(v, x0##c, x1##c, ints, lanes(2, 6, 3, 7)) u += v; \
    FLUX__SHUFFLE(v, x2##c, x3##c, ints, lanes(0, 4, 1, 5)) FLUX__SHUFFLE(w, x2##c, x3##c, ints, lanes(2, 6, 3, 7)) v += w; \
    FLUX__SHUFFLE(w, u, v, ints, lanes(0, 1, 4, 5)) FLUX__SHUFFLE(u, u, v, ints, lanes(2, 3, 6, 7)) u += w;
#  define FLUX__HREDUCE_D(ints, lanes, c)                                                             \
    FLUX__SHUFFLE(u, x0##c, x1##c, ints, lanes(0, 2)) FLUX__SHUFFLE(v, x0##c, x1##c, ints, lanes(1, 3)) u += v; \
    FLUX__SHUFFLE(v, x2##c, x3##c, ints, lanes(0, 2)) FLUX__SHUFFLE(w, x2##c, x3##c, ints, lanes(1, 3)) v += w;
#  define FLUX__JOIN(to, x)                                                                        \
    { H half; W all; FLUX__D_HALVE(half, H, x) FLUX__D_HALVE(all, W, half)                         \
      *(W *)(void *)(to) = all; }
#  define FLUX__SUMS_F(ints, lanes)                                                                \
    FLUX__HREDUCE_F(ints, lanes, 0) FLUX__JOIN(to, u)                                              \
    FLUX__HREDUCE_F(ints, lanes, 1) FLUX__JOIN(to + 4, u)
#  define FLUX__SUMS_D(ints, lanes)                                                                \
    FLUX__HREDUCE_D(ints, lanes, 0) FLUX__JOIN(to, u) FLUX__JOIN(to + 2, v)                        \
    FLUX__HREDUCE_D(ints, lanes, 1) FLUX__JOIN(to + 4, u) FLUX__JOIN(to + 6, v)
#  define FLUX__GEMM_INNER(name, type, vec, half_vec, short_vec, sums, ints, lanes, target)        \
    FLUX__GEMM_FN(target) void name(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t inner4) { \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef half_vec H;                                                                        \
        typedef int M __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));              \
        typedef short_vec W;                                                                       \
        const int64_t n = (int)(sizeof(V) / sizeof(type));                                         \
        type *to = (type *)sum;                                                                    \
        for (; inner4 > 0; inner4--, a = (const type *)a + 4 * a_row, to += 8) {                   \
            const type *p = (const type *)a, *q = (const type *)b;                                 \
            V t, y, z, u, v, w, zero = {0} FLUX__D_VAR(0) FLUX__D_VAR(1) FLUX__D_VAR(2) FLUX__D_VAR(3); \
            FLUX__D_LOOP(type, FLUX__D_STEP, 0)                                                    \
            sums(ints, lanes)                                                                      \
        }                                                                                          \
    }
#  if FLUX__X86
/* The same for vectors of 64 bytes that are two of 32, so that AVX2 gives the bits of AVX-512:
   one half after the other, or both at once if B has only one column. */
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
                const int *mask = flux__last_lanes + 16 - (n - left) * (int)(sizeof(type) / sizeof(int)); \
                const M last = *(const M *)(const void *)mask, high = *(const M *)(const void *)(mask + 8); \
                p -= n - left, q -= n - left;                                                      \
                y = FLUX__D_LAST(q), z = (V)(*(const M *)(const void *)(q + n / 2) & high);          \
                FLUX__D_REST(0) FLUX__D_REST(1) FLUX__D_REST(2) FLUX__D_REST(3)                    \
            }
#    define FLUX__ONE_F(ints, lanes)                                                               \
    FLUX__HREDUCE_F(ints, lanes, 0) s0 = u; FLUX__HREDUCE_F(ints, lanes, 1) u += s0;               \
    FLUX__JOIN(to, u) FLUX__JOIN(to + 4, u)
#    define FLUX__ONE_D(ints, lanes)                                                               \
    FLUX__HREDUCE_D(ints, lanes, 0) s0 = u, s1 = v; FLUX__HREDUCE_D(ints, lanes, 1) u += s0, v += s1;     \
    FLUX__JOIN(to, u) FLUX__JOIN(to + 2, v) FLUX__JOIN(to + 4, u) FLUX__JOIN(to + 6, v)
#    define FLUX__HALF_SUM(s, u, to) if (first) { s += u; FLUX__JOIN(to, s) } else s = u;
#    define FLUX__HALVES_F(ints, lanes)                                                            \
    FLUX__HREDUCE_F(ints, lanes, 0) FLUX__HALF_SUM(s0, u, to) FLUX__HREDUCE_F(ints, lanes, 1) FLUX__HALF_SUM(s1, u, to + 4)
#    define FLUX__HALVES_D(ints, lanes)                                                            \
    FLUX__HREDUCE_D(ints, lanes, 0) FLUX__HALF_SUM(s0, u, to) FLUX__HALF_SUM(s1, v, to + 2)        \
    FLUX__HREDUCE_D(ints, lanes, 1) FLUX__HALF_SUM(s2, u, to + 4) FLUX__HALF_SUM(s3, v, to + 6)
#    define FLUX__GEMM_HALVES(name, type, vec, short_vec, sums, one, ints, lanes)                  \
    FLUX__GEMM_FN(FLUX__AVX2) void name(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t inner4) { \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef vec H;                                                                             \
        typedef int M __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));              \
        typedef short_vec W;                                                                       \
        const int64_t n = 64 / (int)sizeof(type);                                                  \
        type *to = (type *)sum;                                                                    \
        for (; inner4 > 0; inner4--, a = (const type *)a + 4 * a_row, to += 8) {                   \
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
/* Sixteen sums at a time: AVX-512 has registers for so many vectors of 64 bytes. The reduced
   groups of four vectors are joined into one, whose quarters (f32) or halves (f64) are rows of
   C or halves of rows. */
#    define FLUX__LANE16(i, first) ((i) < 4 ? (i) : (i) + 12) + (first)
#    define FLUX__LANES16(i, j, k, l)                                                              \
    FLUX__LANE16(i, 0), FLUX__LANE16(j, 0), FLUX__LANE16(k, 0), FLUX__LANE16(l, 0), FLUX__LANE16(i, 4), FLUX__LANE16(j, 4), FLUX__LANE16(k, 4), \
    FLUX__LANE16(l, 4), FLUX__LANE16(i, 8), FLUX__LANE16(j, 8), FLUX__LANE16(k, 8), FLUX__LANE16(l, 8), FLUX__LANE16(i, 12), FLUX__LANE16(j, 12), \
    FLUX__LANE16(k, 12), FLUX__LANE16(l, 12)
#    define FLUX__LANE2(i, first) ((i) < 2 ? (i) : (i) + 6) + (first)
#    define FLUX__LANES2222(i, j)                                                                  \
    FLUX__LANE2(i, 0), FLUX__LANE2(j, 0), FLUX__LANE2(i, 2), FLUX__LANE2(j, 2), FLUX__LANE2(i, 4), FLUX__LANE2(j, 4), FLUX__LANE2(i, 6), FLUX__LANE2(j, 6)
#    define FLUX__D_VAR4(c) , x0##c = zero, x1##c = zero, x2##c = zero, x3##c = zero
#    define FLUX__D_MUL4(at, c)                                                                    \
    t = at(p + c * a_row); x0##c += t * y0, x1##c += t * y1, x2##c += t * y2, x3##c += t * y3;
#    define FLUX__D_STEP4(at) {                                                                    \
                const V y0 = at(q), y1 = at(q + b_col), y2 = at(q + 2 * b_col), y3 = at(q + 3 * b_col); \
                FLUX__D_MUL4(at, 0) FLUX__D_MUL4(at, 1) FLUX__D_MUL4(at, 2) FLUX__D_MUL4(at, 3)    \
            }
#    define FLUX__JOIN_HALVES(sum, a, b, low, mr) {                                              \
        flux__vec64d one, two;                                                                   \
        FLUX__SHUFFLE(one, (flux__vec64d)a, (flux__vec64d)b, flux__vec64l, low)              \
        FLUX__SHUFFLE(two, (flux__vec64d)a, (flux__vec64d)b, flux__vec64l, mr)             \
        sum = (V)one + (V)two;                                                                     \
    }
#    define FLUX__LIST(...) __VA_ARGS__
#    define FLUX__JOIN4(a, b, c, d)                                                                \
    FLUX__JOIN_HALVES(c, c, d, FLUX__LIST(0, 1, 2, 3, 8, 9, 10, 11), FLUX__LIST(4, 5, 6, 7, 12, 13, 14, 15)) \
    FLUX__JOIN_HALVES(a, a, b, FLUX__LIST(0, 1, 2, 3, 8, 9, 10, 11), FLUX__LIST(4, 5, 6, 7, 12, 13, 14, 15)) \
    FLUX__JOIN_HALVES(a, a, c, FLUX__LIST(0, 1, 4, 5, 8, 9, 12, 13), FLUX__LIST(2, 3, 6, 7, 10, 11, 14, 15))
#    define FLUX__PUT_ROW(c, x, i)                                                                 \
    *(W *)(void *)(to + c * c_row) = ((const W *)(const void *)&x)[i];
#    define FLUX__INNER4_F(ints, lanes)                                                             \
    FLUX__HREDUCE_F(ints, lanes, 0) s0 = u; FLUX__HREDUCE_F(ints, lanes, 1) s1 = u; FLUX__HREDUCE_F(ints, lanes, 2) s2 = u; FLUX__HREDUCE_F(ints, lanes, 3) \
    FLUX__JOIN4(s0, s1, s2, u)                                                                     \
    FLUX__PUT_ROW(0, s0, 0) FLUX__PUT_ROW(1, s0, 1) FLUX__PUT_ROW(2, s0, 2) FLUX__PUT_ROW(3, s0, 3)
#    define FLUX__INNER4_D(ints, lanes)                                                            \
    FLUX__HREDUCE_D(ints, lanes, 0) s0 = u, s1 = v; FLUX__HREDUCE_D(ints, lanes, 1)                \
    FLUX__JOIN4(s0, s1, u, v)                                                                      \
    FLUX__PUT_ROW(0, s0, 0) FLUX__PUT_ROW(1, s0, 1)                                                \
    FLUX__HREDUCE_D(ints, lanes, 2) s0 = u, s1 = v; FLUX__HREDUCE_D(ints, lanes, 3)                \
    FLUX__JOIN4(s0, s1, u, v)                                                                      \
    FLUX__PUT_ROW(2, s0, 0) FLUX__PUT_ROW(3, s0, 1)
#    define FLUX__GEMM_INNER4(name, type, vec, short_vec, sums, ints, lanes)                       \
    FLUX__GEMM_FN(FLUX__AVX512) void name(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *c, int64_t c_row, \
                                          int64_t inner4) {                                        \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef short_vec W;                                                                       \
        typedef int M __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));              \
        const int64_t n = (int)(sizeof(V) / sizeof(type));                                         \
        type *to = (type *)c;                                                                      \
        for (; inner4 > 0; inner4--, a = (const type *)a + 4 * a_row, to += 4 * c_row) {           \
            const type *p = (const type *)a, *q = (const type *)b;                                 \
            V t, u, v, w, s0, s1, s2, zero = {0} FLUX__D_VAR4(0) FLUX__D_VAR4(1) FLUX__D_VAR4(2) FLUX__D_VAR4(3); \
            FLUX__D_LOOP(type, FLUX__D_STEP4, 0)                                                   \
            sums(ints, lanes)                                                                      \
            (void)s2;                                                                              \
        }                                                                                          \
    }
#  endif
#  define FLUX__GEMM_SET(name, type, vec, bytes, mul, nr, target, narrow, inner_kernel, inner4, pack_kernel, plain, vector) \
    FLUX__GEMM_MR##nr(name, type, vec, mul, 1, target)                                           \
    FLUX__GEMM_MR##nr(name, type, vec, mul, 2, target)                                           \
    static const flux__gemm_kernel name##_one[] = {FLUX__GEMM_LIST##nr(name##_1x)};              \
    static const flux__gemm_kernel name##_two[] = {FLUX__GEMM_LIST##nr(name##_2x)};              \
    static const flux__gemm_set name = {narrow, bytes / (int)sizeof(type), nr, name##_one,       \
                                        name##_two, pack_kernel, plain, inner_kernel##_inner, inner4, vector};

FLUX__GEMM_VECTOR(flux__gemm_f32_base_vector, float, flux__vec16f, )
FLUX__GEMM_VECTOR(flux__gemm_f64_base_vector, double, flux__vec16d, )
FLUX__GEMM_INNER(flux__gemm_f32_base_inner, float, flux__vec16f, flux__vec16f, flux__vec16f,
                FLUX__SUMS_F, flux__vec16i, FLUX__LANES4, )
FLUX__GEMM_INNER(flux__gemm_f64_base_inner, double, flux__vec16d, flux__vec16d, flux__vec16d,
                FLUX__SUMS_D, flux__vec16l, FLUX__LANES2, )
#  if FLUX__X86
FLUX__GEMM_VECTOR(flux__gemm_f32_avx2_vector, float, flux__vec32f, FLUX__AVX2)
FLUX__GEMM_VECTOR(flux__gemm_f64_avx2_vector, double, flux__vec32d, FLUX__AVX2)
FLUX__GEMM_VECTOR(flux__gemm_f32_avx512_vector, float, flux__vec64f, FLUX__AVX512)
FLUX__GEMM_VECTOR(flux__gemm_f64_avx512_vector, double, flux__vec64d, FLUX__AVX512)
#    define FLUX__HALF_TYPE(type, bytes)                                                           \
    typedef type H __attribute__((vector_size(bytes), aligned(2), may_alias));
#    define FLUX__HALF_VECTORS(name, bytes, target)                                                \
    FLUX__GEMM_VECTOR_OF(name##_bf16, float, flux__vec##bytes##f, uint16_t, FLUX__V_ADD_BF16, 2, FLUX__HALF_TYPE(uint32_t, bytes), target) \
    FLUX__GEMM_VECTOR_OF(name##_f16, float, flux__vec##bytes##f, uint16_t, FLUX__V_ADD_F16, 1, FLUX__HALF_TYPE(uint16_t, bytes / 2), target)
FLUX__HALF_VECTORS(flux__gemm_vector_avx2, 32, FLUX__AVX2)
FLUX__HALF_VECTORS(flux__gemm_vector_avx512, 64, FLUX__AVX512)
FLUX__GEMM_HALVES(flux__gemm_f32_avx2_inner, float, flux__vec32f, flux__vec16f, FLUX__HALVES_F,
                  FLUX__ONE_F, flux__vec32i, FLUX__LANES8)
FLUX__GEMM_HALVES(flux__gemm_f64_avx2_inner, double, flux__vec32d, flux__vec16d, FLUX__HALVES_D,
                  FLUX__ONE_D, flux__vec32l, FLUX__LANES22)
FLUX__GEMM_INNER(flux__gemm_f32_avx512_inner, float, flux__vec64f, flux__vec32f, flux__vec16f,
                FLUX__SUMS_F, flux__vec64i, FLUX__LANES16, FLUX__AVX512)
FLUX__GEMM_INNER(flux__gemm_f64_avx512_inner, double, flux__vec64d, flux__vec32d, flux__vec16d,
                FLUX__SUMS_D, flux__vec64l, FLUX__LANES2222, FLUX__AVX512)
FLUX__GEMM_INNER4(flux__gemm_f32_inner4, float, flux__vec64f, flux__vec16f, FLUX__INNER4_F,
                 flux__vec64i, FLUX__LANES16)
FLUX__GEMM_INNER4(flux__gemm_f64_inner4, double, flux__vec64d, flux__vec32d, FLUX__INNER4_D,
                 flux__vec64l, FLUX__LANES2222)
#  endif
#  if FLUX__NEON
FLUX__GEMM_SET(flux__gemm_f32_base, float, flux__vec16f, 16, FLUX__K_MULN, 12, , NULL,
               flux__gemm_f32_base, NULL, NULL, NULL, flux__gemm_f32_base_vector)
FLUX__GEMM_SET(flux__gemm_f64_base, double, flux__vec16d, 16, FLUX__K_MULO, 12, , NULL,
               flux__gemm_f64_base, NULL, NULL, NULL, flux__gemm_f64_base_vector)
#  else
FLUX__GEMM_SET(flux__gemm_f32_base, float, flux__vec16f, 16, FLUX__K_MUL, 6, , NULL,
               flux__gemm_f32_base, NULL, NULL, NULL, flux__gemm_f32_base_vector)
FLUX__GEMM_SET(flux__gemm_f64_base, double, flux__vec16d, 16, FLUX__K_MUL, 6, , NULL,
               flux__gemm_f64_base, NULL, NULL, NULL, flux__gemm_f64_base_vector)
#  endif
#  if FLUX__X86
FLUX__GEMM_LOOP(flux__gemm_f32_pack, float, flux__vec32f, FLUX__K_MUL2, 2, 6, FLUX__AVX2,
                FLUX__K_PACK)
FLUX__GEMM_LOOP(flux__gemm_f64_pack, double, flux__vec32d, FLUX__K_MUL2, 2, 6, FLUX__AVX2,
                FLUX__K_PACK)
FLUX__GEMM_PLAIN(flux__gemm_f32_plain, float, flux__vec32f, FLUX__AVX2)
FLUX__GEMM_PLAIN(flux__gemm_f64_plain, double, flux__vec32d, FLUX__AVX2)
FLUX__GEMM_SET(flux__gemm_f32_avx2, float, flux__vec32f, 32, FLUX__K_MUL, 6, FLUX__AVX2, NULL,
               flux__gemm_f32_avx2, NULL, flux__gemm_f32_pack, flux__gemm_f32_plain,
               flux__gemm_f32_avx2_vector)
FLUX__GEMM_SET(flux__gemm_f64_avx2, double, flux__vec32d, 32, FLUX__K_MUL, 6, FLUX__AVX2, NULL,
               flux__gemm_f64_avx2, NULL, flux__gemm_f64_pack, flux__gemm_f64_plain,
               flux__gemm_f64_avx2_vector)
FLUX__GEMM_SET(flux__gemm_f32_avx512, float, flux__vec64f, 64, FLUX__K_MULS, 12, FLUX__AVX512,
               &flux__gemm_f32_avx2, flux__gemm_f32_avx512, flux__gemm_f32_inner4, NULL, NULL,
               flux__gemm_f32_avx512_vector)
FLUX__GEMM_SET(flux__gemm_f64_avx512, double, flux__vec64d, 64, FLUX__K_MULD, 8, FLUX__AVX512,
               &flux__gemm_f64_avx2, flux__gemm_f64_avx512, flux__gemm_f64_inner4, NULL, NULL,
               flux__gemm_f64_avx512_vector)
#  endif
#  if FLUX__BF16
FLUX__GEMM_SET(flux__gemm_bf16, float, flux__vec64f, 64, FLUX__K_MULB, 8, FLUX__AVX512_BF16, NULL,
               flux__gemm_f32_avx2, NULL, NULL, NULL, NULL)
#  endif

#else
/* For compilers without vectors: the same interface; a "vector" is four rows, a tile has four
   columns at most. */
#  define FLUX__GEMM_FN(target) static
#  define FLUX__GEMM_KERNEL(name, type, mr, nr)                                                \
    static void name##_##mr##x##nr(int64_t k, const void *a, int64_t a_step, const void *b,    \
                                       int64_t b_row, int64_t b_col, void *c, int64_t ldc, int add, \
                                       const void *next, int64_t next_step) {                      \
        type x[nr][4 * mr] = {{0}}, *to = (type *)c, w;                                        \
        const type *f = (const type *)a, *g = (const type *)b;                                     \
        const flux__gemm_places *places = (const flux__gemm_places *)next;                         \
        int64_t i, j;                                                                              \
        for (j = 0; add == FLUX__GEMM_GO_ON && j < nr; j++)                                      \
            for (i = 0; i < 4 * mr; i++) x[j][i] = to[j * ldc + i];                              \
        for (int64_t l = k, done = 0;;) {                                                          \
            for (; l; l--, f += a_step, g += b_row)                                                \
                for (j = 0; j < nr; j++)                                                           \
                    for (i = 0, w = g[j * b_col]; i < 4 * mr; i++) x[j][i] += f[i] * w;            \
            if (!(add & FLUX__GEMM_PLACES) || ++done == places->n) break;                          \
            f = (const type *)a + places->at[done];                                                \
            l = done + 1 < places->n ? places->each : places->last;                                \
        }                                                                                          \
        for (j = 0; j < nr; j++, to += ldc)                                                      \
            for (i = 0; i < 4 * mr; i++) to[i] = x[j][i] + (add & FLUX__GEMM_ADD ? to[i] : 0);                    \
        (void)next_step;                                                                           \
    }
#  define FLUX__GEMM_MR(name, type, mr)                                                        \
    FLUX__GEMM_KERNEL(name, type, mr, 1) FLUX__GEMM_KERNEL(name, type, mr, 2)                  \
    FLUX__GEMM_KERNEL(name, type, mr, 3) FLUX__GEMM_KERNEL(name, type, mr, 4)
#  define FLUX__GEMM_INNER(name, type)                                                             \
    static void name##_inner(int64_t k, const void *a, int64_t a_row, const void *b, int64_t b_col, void *sum, int64_t inner4) { \
        int64_t i, l;                                                                              \
        for (i = 0; i < 8 * inner4; i++) {                                                         \
            const type *p = (const type *)a + (i / 8 * 4 + i % 4) * a_row, *q = (const type *)b + i / 4 % 2 * b_col; \
            type x = 0;                                                                            \
            for (l = 0; l < k; l++) x += p[l] * q[l];                                              \
            ((type *)sum)[i] = x;                                                                  \
        }                                                                                          \
    }
#  define FLUX__GEMM_SET(name, type)                                                                \
    FLUX__GEMM_MR(name, type, 1)                                                                    \
    FLUX__GEMM_MR(name, type, 2)                                                                    \
    FLUX__GEMM_INNER(name, type)                                                                    \
    static const flux__gemm_kernel name##_one[] = {name##_1x1, name##_1x2, name##_1x3, name##_1x4}; \
    static const flux__gemm_kernel name##_two[] = {name##_2x1, name##_2x2, name##_2x3, name##_2x4}; \
    static const flux__gemm_set name = {NULL, 4, 4, name##_one, name##_two, NULL, NULL, name##_inner, NULL, NULL};
FLUX__GEMM_SET(flux__gemm_f32_base, float)
FLUX__GEMM_SET(flux__gemm_f64_base, double)
#endif

/* The microkernels for f32, f64 or bf16 pairs on this processor. */
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

/* What multiplies a matrix of a half format by a vector of f32, or NULL. */
static flux__gemm_vector flux__half_vector_kernel(int dtype) {
#if FLUX__GEMM_VECTORS && FLUX__X86
    const bool bf16 = dtype == FLUX_BF16;
    if (flux__simd() > 1)
        return bf16 ? flux__gemm_vector_avx512_bf16 : flux__gemm_vector_avx512_f16;
    if (flux__simd() == 1) return bf16 ? flux__gemm_vector_avx2_bf16 : flux__gemm_vector_avx2_f16;
#endif
    (void)dtype;
    return NULL;
}

/* The set by whose vector length and tile the ways of summing are chosen: with AVX2 it is that
   of AVX-512, so that the sums are the same. */
static const flux__gemm_set *flux__gemm_sizing_set(const flux__gemm_set *set) {
#if FLUX__GEMM_VECTORS && FLUX__X86
    if (set == &flux__gemm_f32_avx2) return &flux__gemm_f32_avx512;
    if (set == &flux__gemm_f64_avx2) return &flux__gemm_f64_avx512;
#endif
    return set;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_GEMM_KERNELS_H */
