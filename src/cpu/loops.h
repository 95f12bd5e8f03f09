#ifndef FLUX__CPU_LOOPS_H
#define FLUX__CPU_LOOPS_H
#include "../base/platform.h"
#include "../graph/table.h"
#include "../graph/nodes.h"
#include "../schedule/analysis.h"

/* ---------------------------------------------------------------------- cpu/loops.h
   The innermost loops of the CPU, as macros that cpu/float64.h and
   cpu/vectors.h instantiate. They work on a tile: some hundred elements of one
   compute type, in the first-level cache. Each row of graph/table.h becomes a
   function for every compute type, and for float32 one for every instruction
   set, in vectors of 16, 8 or 4 lanes, chosen at run time (flux__section),
   without any -m option. Folds are horizontal reductions of rows. The compiler
   options set here, for -O0 builds too, end in cpu/random.h.

   Invariant: an element's result depends neither on its place nor on its
   neighbours: the rest at the end of a tile goes through the same vector code.
   A sum's order depends on its length alone. Random numbers use no fused
   multiply-adds and have the same bits everywhere. A result may lie where an
   operand of stride 1 does.

   Rejected: the compiler's vectorising of f32 (ten times slower for functions),
   libm (20 ns an element), and including a file once per instruction set, which
   fails when it is renamed: hence functions inside macros. */

/* hook: FLUX__HALVES, cpu/vectors.h */
/* hook: FLUX__IFD, cpu/vectors.h */
/* hook: FLUX__BITS, cpu/vectors.h */
/* hook: FLUX__FLOAT, cpu/vectors.h */
/* hook: FLUX__DOUBLE, cpu/vectors.h */
/* hook: FLUX__TOFLOAT, cpu/vectors.h */
/* hook: FLUX__KD, cpu/vectors.h */
/* hook: FLUX__DBITS, cpu/vectors.h */
/* hook: FLUX__CHAIN_CASE, cpu/float32.h */

FLUX__BEGIN_NUMBERS

/* y[i] = f(a[i], b[i], c[i]) for n elements. A stride of 1 walks along the operand, 0 repeats
   its first element. */
typedef void (*flux__loop)(int64_t n, void *y, const void *a, const void *b, const void *c,
                           int sa, int sb, int sc);
/* Runs a loop for any n and strides: fills up what a loop for vectors needs whole. */
typedef void (*flux__run_loop)(flux__loop f, int64_t n, void *y, const void *a, const void *b,
                               const void *c, int sa, int sb, int sc);
/* A horizontal reduction: acc[r] = acc[r] op all numbers of row r; rows of n contiguous numbers
   follow each other. */
typedef void (*flux__hreduce_fn)(void *acc, const void *x, int64_t n, int64_t rows);
/* Converts n contiguous elements. */
typedef void (*flux__cast_fn)(int64_t n, void *y, const void *x);
/* Makes `blocks` blocks of FLUX__RANDOM_BLOCK random numbers, from `counter` on; kind 0:
   uniform, 1: normal. */
typedef void (*flux__random_fn)(uint64_t key, uint64_t stream, uint64_t counter, int64_t blocks,
                                float *out, int kind);
/* An Adam step for n elements. in: g, m, v, w (NULL: none); by: 1 - beta1, 1 - beta2, epsilon,
   scale, what g is multiplied by first, and if it decays, as AdamW's does, what its result is
   multiplied by, and how much of w is added to that. */
typedef void (*flux__adam_fn)(int64_t n, float *m, float *v, float *w, const float *const *in,
                              const float *by, bool decays);
/* `count` rows of n >= 4 numbers, contiguous and one after the other. For each row: first: its
   maximum, or (squares) its sum; d = x - maximum and e = exp(d), or (squares) d = x - sum /
   by[0] and e = d^2; second: the sum of e; and y, by the operation `last`: DIV: e / second,
   SUB: d - log(second), MUL: d / sqrt(second / by[1] + by[2]). e has room for all rows, or, if
   it is not kept (keep_e), for `capacity` numbers, a row at least. d or y is NULL if it is not
   wanted. */
typedef struct flux__rows_run {
    const flux__join_order *order;
    int64_t n, capacity, count;
    /* less, each: per row, what is subtracted for d, and what y is computed with */
    const float *x, *less, *each;
    float *first, *second, *d, *e, *y, by[3];
    int last;
    bool squares, keep_e;
} flux__rows_run;
/* Computes d and e of the rows of r, or y of the rows of `last`, or both, of as many rows: then
   r has no d, and y is e / second. */
typedef void (*flux__rows_fn)(const flux__rows_run *r, const flux__rows_run *last);

/* A chain of operations over a matrix x, whose columns are contiguous and x_next elements apart, to
   y: the first has x as an operand, each other one the result of the one before. The other operand
   of a step, if it has one, has an element a row (along) or a number a column, `next` elements
   behind that of the column before, and stands first if `first`. A result may lie where an operand
   does that goes along its columns. */
/* most steps of a chain; the operation of one that rounds to bf16, which no row of the table has */
enum { FLUX__CHAIN_STEPS = 8, FLUX__CHAIN_ROUND = FLUX__ELEMENTWISE_COUNT };
typedef struct flux__chain_step {
    int op;
    bool first, along;
    const float *at;
    int64_t next;
} flux__chain_step;
typedef struct flux__chain_run {
    int64_t rows, columns;                /* as many rows as a vector has lanes, or more */
    const float *x;
    float *y;
    int64_t x_next, y_next;
    int steps;
    flux__chain_step step[FLUX__CHAIN_STEPS];
} flux__chain_run;
typedef void (*flux__chain_fn)(const flux__chain_run *r);

#ifndef FLUX__VECTORS                     /* whether the compiler has vector types */
#  if !defined(_MSC_VER) && !defined(__TINYC__) && \
      (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9))
#    define FLUX__VECTORS 1
#  else
#    define FLUX__VECTORS 0
#  endif
#endif
#define FLUX__P_(name, kind) FLUX__##name##_##kind
#define FLUX__P__(name, kind) FLUX__P_(name, kind)
#define FLUX__P(name) FLUX__P__(name, FLUX__KIND)
#define FLUX__T FLUX__F(t)
#define FLUX__V FLUX__F(v)

/* out: the elements of a and b (those of b numbered on from a's) that the list names; ints: a
   vector type for such a list */
#if defined(__clang__)
#  define FLUX__SHUFFLE(out, a, b, ints, ...) out = __builtin_shufflevector(a, b, __VA_ARGS__);
#else
#  define FLUX__SHUFFLE(out, a, b, ints, ...)                                                      \
    { ints mask = {__VA_ARGS__}; out = __builtin_shuffle(a, b, mask); }
#endif
#define FLUX__LANES4(i, j, k, l) i, j, k, l
#if FLUX__VECTORS
typedef uint64_t flux__two_words __attribute__((vector_size(16)));
#endif
/* Fills `all` elements of `size` bytes with the one at p; many zeros by memset, which does not read
   what it overwrites. memcpy of a size that is known here is no call. */
static void flux__fill(void *out, const void *p, size_t size, size_t all) {
    char *to = (char *)out;
    size_t bytes = size * all;
    uint64_t all_of = 0;
    uint32_t word;
    uint16_t half;
    if (size == 8) memcpy(&all_of, p, 8);
    else if (size == 4) memcpy(&word, p, 4), all_of = word * UINT64_C(0x100000001);
    else if (size == 2) memcpy(&half, p, 2), all_of = half * UINT64_C(0x1000100010001);
    else all_of = *(const unsigned char *)p * UINT64_C(0x101010101010101);
    if (bytes >= 4096 && all_of == (all_of & 255) * UINT64_C(0x101010101010101)) {
        memset(to, (int)(all_of & 255), bytes);
        return;
    }
#if FLUX__VECTORS
    const flux__two_words two = { all_of, all_of };
    for (; bytes >= 16; bytes -= 16, to += 16) memcpy(to, &two, 16);
#endif
    for (; bytes >= 8; bytes -= 8, to += 8) memcpy(to, &all_of, 8);
    memcpy(to, &all_of, bytes);
}

/* A formula's loop, in vectors or element by element; a, b and c are the formula's operands.
   The loop in vectors is given whole vectors, and for an operand with stride 0 a vector full of
   it: FLUX__F(run) sees to that, once for all formulas, of which there are many. */
#define FLUX__VECTOR_LOOP(NAME, count, formula)                                                      \
static void FLUX__F(loop_##NAME)(int64_t n, void *y, const void *pa, const void *pb,                 \
                                 const void *pc, int sa, int sb, int sc) {                           \
    const float *p = (const float *)pa, *q = (const float *)pb, *r = (const float *)pc;              \
    for (float *to = (float *)y; n > 0; n -= FLUX__LANES, to += FLUX__LANES) {                       \
        FLUX__V a = FLUX__F(at)(p), b, c, out;                                                       \
        if (count > 1) b = FLUX__F(at)(q);                                                           \
        if (count > 2) c = FLUX__F(at)(r);                                                           \
        out = formula;                                                                               \
        memcpy(to, &out, sizeof out), (void)b, (void)c;                                              \
        p += FLUX__LANES * sa, q += FLUX__LANES * sb, r += FLUX__LANES * sc;                         \
    }                                                                                                \
}
#define FLUX__VECTOR_RUN                                                                             \
static void FLUX__F(run)(flux__loop f, int64_t n, void *y, const void *a, const void *b,             \
                         const void *c, int sa, int sb, int sc) {                                    \
    FLUX__V full[3];                                                                                 \
    if (n <= 0) return;                                                                              \
    if (!sa) full[0] = FLUX__K(*(const float *)a), a = &full[0];                                     \
    if (!sb && b) full[1] = FLUX__K(*(const float *)b), b = &full[1];                                \
    if (!sc && c) full[2] = FLUX__K(*(const float *)c), c = &full[2];                                \
    if (n >= FLUX__LANES) f(n - n % FLUX__LANES, y, a, b, c, sa, sb, sc);                            \
    if (n % FLUX__LANES) flux__run_rest(f, FLUX__LANES, n, (float *)y, a, b, c, sa, sb, sc);         \
}
#if FLUX__VECTORS
/* Runs a loop for the n % lanes elements at the end, filled up to a whole vector. */
static void flux__run_rest(flux__loop f, int lanes, int64_t n, float *y, const void *a,
                           const void *b, const void *c, int sa, int sb, int sc) {
    float pad[4][16];
    const float *in[3] = { (const float *)a, (const float *)b, (const float *)c };
    const int stride[3] = { sa, sb, sc };
    const int left = (int)(n % lanes);
    const int64_t whole = n - left;
    for (int k = 0; k < 3; k++) {
        if (!stride[k]) continue;
        for (int i = 0; i < lanes; i++) pad[k][i] = in[k][whole + (i < left ? i : 0)];
        in[k] = pad[k];
    }
    f(lanes, pad[3], in[0], in[1], in[2], sa, sb, sc);
    for (int i = 0; i < left; i++) y[whole + i] = pad[3][i];
}
#else
static void flux__run_x1(flux__loop f, int64_t n, void *y, const void *a, const void *b,
                         const void *c, int sa, int sb, int sc) {
    f(n, y, a, b, c, sa, sb, sc);
}
#endif
#define FLUX__SCALAR_LOOP(NAME, count, formula)                                                      \
static void FLUX__F(loop_##NAME)(int64_t n, void *y, const void *pa, const void *pb,                 \
                                 const void *pc, int sa, int sb, int sc) {                           \
    const FLUX__T *p = (const FLUX__T *)pa, *q = count > 1 ? (const FLUX__T *)pb : p;                \
    const FLUX__T *r = count > 2 ? (const FLUX__T *)pc : p;                                          \
    for (FLUX__T *to = (FLUX__T *)y; n > 0; n--, to++) {                                             \
        FLUX__V a = *p, b = *q, c = *r;                                                              \
        *to = (FLUX__T)(formula), (void)a, (void)b, (void)c;                                         \
        p += sa, q += sb, r += sc;                                                                   \
    }                                                                                                \
}

/* The operations that a chain may have: their formulas are a few instructions long. */
#define FLUX__CHAINED_ADD 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_SUB 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_MUL 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_DIV 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_MAX2 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_MIN2 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_RELU 0, FLUX__CHAIN_CASE, true
#define FLUX__CHAINED_RELU_BACKWARD 0, FLUX__CHAIN_CASE, true
/* A row's case in a chain's loop, or nothing, and whether it has one: the name of an operation that
   is not in the list is no macro. */
#define FLUX__CHAIN_SECOND(a, b, ...) b
#define FLUX__CHAIN_THIRD(a, b, c, ...) c
#define FLUX__CHAIN_CHOICE(...) FLUX__CHAIN_SECOND(__VA_ARGS__)
#define FLUX__CHAIN_HAS(...) FLUX__CHAIN_THIRD(__VA_ARGS__)
#define FLUX__CHAIN_ROW(NAME, name, count, dt, call, shown, formula, ...)                            \
    FLUX__CHAIN_CHOICE(FLUX__CHAINED_##NAME, FLUX__NO_CASE, false, 0)(NAME, formula)
#define FLUX__CHAIN_FLAG(NAME, ...) FLUX__CHAIN_HAS(FLUX__CHAINED_##NAME, FLUX__NO_CASE, false, 0),
static const bool flux__chained[] = { FLUX__ELEMENTWISE(FLUX__CHAIN_FLAG) };
#define FLUX__NO_CASE(NAME, formula)

/* The loops of a compute type, by the rows of the table; F rows (floating point) have none for
   integers. */
#define FLUX__WHEN_N(yes, no) yes
#define FLUX__WHEN_C(yes, no) yes
#define FLUX__WHEN_B(yes, no) yes
#define FLUX__WHEN_S(yes, no) yes
#define FLUX__WHEN_F(yes, no) FLUX__P(FLOATING)(yes, no)
#define FLUX__WHEN_X(yes, no) no
#define FLUX__NO_LOOP(NAME, count, formula)
#define FLUX__LOOP_ROW(NAME, name, count, dt, call, shown, formula, ...) \
    FLUX__WHEN_##dt(FLUX__LOOP, FLUX__NO_LOOP)(NAME, count, formula)
#define FLUX__POINTER_ROW(NAME, name, count, dt, ...) FLUX__WHEN_##dt(FLUX__F(loop_##NAME), NULL),
#define FLUX__LOOPS                                                                                  \
FLUX__ELEMENTWISE(FLUX__LOOP_ROW)                                                                    \
static const flux__loop FLUX__F(loops)[] = { FLUX__ELEMENTWISE(FLUX__POINTER_ROW) };

#if FLUX__VECTORS  /* joins 16 lanes into the first, as a tree: halves with halves */
typedef float flux__quad __attribute__((vector_size(16)));
typedef int32_t flux__quad_bits __attribute__((vector_size(16)));
static FLUX__INLINE flux__quad flux__quad_pick(flux__quad_bits first, flux__quad a, flux__quad b) {
    return (flux__quad)((first & (flux__quad_bits)a) | (~first & (flux__quad_bits)b));
}
#  define FLUX__MAX_QUAD(a, b)                                                                     \
    flux__quad_pick((flux__quad_bits)(a != a) | (flux__quad_bits)(a > b), a, b)
#  define FLUX__MORE_QUAD(a, b) flux__quad_pick((flux__quad_bits)(a > b), a, b)
#  define FLUX__LESS_QUAD(a, b) flux__quad_pick((flux__quad_bits)(a < b), a, b)
#  define FLUX__MAXNUM_QUAD(a, b) FLUX__P(MAX_QUAD)(a, b)
#  define FLUX__MINNUM_QUAD(a, b) FLUX__P(MIN_QUAD)(a, b)
#  define FLUX__JOIN_QUADS(lane, op, qop)                                                            \
    flux__quad q[4];                                                                                 \
    memcpy(q, lane, sizeof q);                                                                       \
    q[0] = qop(q[0], q[2]), q[1] = qop(q[1], q[3]), q[0] = qop(q[0], q[1]);                          \
    const flux__quad upper = { q[0][2], q[0][3], q[0][2], q[0][3] };                                 \
    q[0] = qop(q[0], upper);                                                                         \
    const flux__quad next = { q[0][1], q[0][1], q[0][1], q[0][1] };                                  \
    q[0] = qop(q[0], next);                                                                          \
    memcpy(lane, q, sizeof lane[0]);
#else
#  define FLUX__JOIN_QUADS FLUX__JOIN_LANES
#endif
#define FLUX__JOIN_LANES(lane, op, qop)                                                              \
    for (int half = 8; half > 0; half /= 2)                                                          \
        for (int one_of = 0; one_of < half; one_of++) lane[one_of] = op(lane[one_of], lane[one_of + half]);

#if FLUX__VECTORS && !defined(__clang__)
/* for casts and reductions that are worth compiling to vectors of what every processor has */
#  define FLUX__FAST                                                                               \
    __attribute__((optimize("O1", "tree-loop-optimize", "tree-loop-vectorize",                     \
                            "vect-cost-model=dynamic", "no-trapping-math")))
#else
#  define FLUX__FAST
#endif

/* Horizontal reductions: for each row, acc = acc op x[0] op x[1] ... A row of 16 elements or
   more is taken in lanes, element i in lane i mod 16, which are joined at the end. */
#define FLUX__HREDUCE(name, T, op, identity)                                                         \
static void FLUX__F(name)(void *acc, const void *in, int64_t n, int64_t rows) {                      \
    const T *x = (const T *)in;                                                                      \
    for (T *sum = (T *)acc; rows > 0; rows--, sum++) {                                               \
        T lane[16];                                                                                  \
        int64_t i, left = n;                                                                         \
        if (n < 16) {                                                                                \
            T one = *sum;                                                                            \
            for (; left > 0; left--, x++) one = op(one, *x);                                         \
            *sum = one;                                                                              \
            continue;                                                                                \
        }                                                                                            \
        for (i = 0; i < 16; i++) lane[i] = identity;                                                 \
        for (; left >= 16; left -= 16, x += 16)                                                      \
            for (i = 0; i < 16; i++) lane[i] = op(lane[i], x[i]);                                    \
        for (i = 0; i < left; i++, x++) lane[i] = op(lane[i], *x);                                   \
        FLUX__JOIN_LANES(lane, op, 0)                                                                \
        *sum = op(*sum, lane[0]);                                                                    \
    }                                                                                                \
}
#define FLUX__SUM_OF(a, b) ((a) + (b))
#define FLUX__PROD_OF(a, b) ((a) * (b))
/* NaN if either operand is NaN */
#define FLUX__MAX_OF(a, b) ((a) != (a) ? (a) : (a) > (b) ? (a) : (b))
#define FLUX__MIN_OF(a, b) ((a) != (a) ? (a) : (a) < (b) ? (a) : (b))
#define FLUX__MAXNUM_OF(a, b) ((a) > (b) ? (a) : (b))
#define FLUX__MINNUM_OF(a, b) ((a) < (b) ? (a) : (b))
#define FLUX__HREDUCE_TABLE                                                                             \
static const flux__hreduce_fn FLUX__F(hreduces)[] = {                                                      \
    FLUX__F(hsum), FLUX__F(hprod), FLUX__F(hmax), FLUX__F(hmin) };
#define FLUX__SCALAR_HREDUCES(T, U, lowest, highest, fast)                                          \
FLUX__HREDUCE(hsum, U, FLUX__SUM_OF, 0)                                                             \
FLUX__HREDUCE(hprod, U, FLUX__PROD_OF, 1)                                                           \
fast FLUX__HREDUCE(hmax, T, FLUX__MAX_OF, lowest)                                                   \
fast FLUX__HREDUCE(hmin, T, FLUX__MIN_OF, highest)                                                  \
FLUX__HREDUCE_TABLE

/* The same in vectors, for rows of 32 elements or more: four accumulators of 16 lanes each, in
   as many variables as that takes (an array would be kept in memory). The elements left over at
   the end are loaded with those before them, which are masked. */
#define FLUX__PARTS_x16(F, g, vop) F(g, 0, vop)
#define FLUX__PARTS_x8(F, g, vop) F(g, 0, vop) F(g, 1, vop)
#define FLUX__PARTS_x4(F, g, vop) F(g, 0, vop) F(g, 1, vop) F(g, 2, vop) F(g, 3, vop)
#define FLUX__PART_NEW(g, i, vop) FLUX__V s##g##i = start;
#define FLUX__PART_TAKE(g, i, vop) s##g##i = vop(s##g##i, FLUX__F(at)(x)), x += FLUX__LANES;
#define FLUX__PART_LAST(g, i, vop)                                                                   \
    memcpy(&mask, flux__last_lanes + n % 16 + i * FLUX__LANES, sizeof mask), v = FLUX__F(at)(x), x += FLUX__LANES; \
    s##g##i = vop(s##g##i, FLUX__IF(mask, v, start));
#define FLUX__PART_JOIN(g, i, vop) s0##i = vop(vop(s0##i, s1##i), vop(s2##i, s3##i));
#define FLUX__PART_PUT(g, i, vop) memcpy(lane + i * FLUX__LANES, &s0##i, sizeof v);
/* Rows of less than 32 elements: four rows side by side, in vectors of four. The end of a row
   is loaded with the elements before it, which are masked. Then the four accumulators are
   transposed and joined. Less than four rows at the end are filled up to four, so that each row
   is joined in one order wherever it stands. */
#define FLUX__QUAD_AT(y, p) memcpy(&y, p, sizeof y);
#define FLUX__QUAD_TAKE(y, p, qop) FLUX__QUAD_AT(v, p) y = qop(y, v);
#define FLUX__QUAD_LAST(y, p, qop)                                                                 \
    FLUX__QUAD_AT(v, p) v = flux__quad_pick(last, v, start), y = qop(y, v);
#define FLUX__QUAD_JOIN(y, a, b, lanes1, lanes2, qop)                                                \
    FLUX__SHUFFLE(v, a, b, flux__quad_bits, lanes1) FLUX__SHUFFLE(y, a, b, flux__quad_bits, lanes2) y = qop(v, y);
#define FLUX__FEW(name, op, qop, identity)                                                           \
static void flux__few_##name(float *acc, const float *x, int64_t n, int64_t rows) {                  \
    const flux__quad start = { identity, identity, identity, identity };                             \
    const int64_t back = 4 - n % 4;                                                                  \
    flux__quad_bits last;                                                                            \
    flux__quad a, b, c, d, v;                                                                        \
    memcpy(&last, flux__last_lanes + 12 + n % 4, sizeof last);                                       \
    for (; n < 4 && rows > 0; rows--, acc++)                                                         \
        for (const float *end = x + n; x < end; x++) *acc = op(*acc, *x);                            \
    for (; rows > 3; rows -= 4, acc += 4, x += 4 * n) {                                              \
        const float *p = x, *q = p + n, *r = q + n, *s = r + n;                                      \
        FLUX__QUAD_AT(a, p) FLUX__QUAD_AT(b, q) FLUX__QUAD_AT(c, r) FLUX__QUAD_AT(d, s)              \
        for (const float *end = x + n - 4; (p += 4, q += 4, r += 4, s += 4, p <= end);) {            \
            FLUX__QUAD_TAKE(a, p, qop) FLUX__QUAD_TAKE(b, q, qop) FLUX__QUAD_TAKE(c, r, qop) FLUX__QUAD_TAKE(d, s, qop) \
        }                                                                                            \
        if (back < 4) {                                                                              \
            FLUX__QUAD_LAST(a, p - back, qop) FLUX__QUAD_LAST(b, q - back, qop)                      \
            FLUX__QUAD_LAST(c, r - back, qop) FLUX__QUAD_LAST(d, s - back, qop)                      \
        }                                                                                            \
        FLUX__QUAD_JOIN(a, a, b, FLUX__LANES4(0, 4, 1, 5), FLUX__LANES4(2, 6, 3, 7), qop)            \
        FLUX__QUAD_JOIN(c, c, d, FLUX__LANES4(0, 4, 1, 5), FLUX__LANES4(2, 6, 3, 7), qop)            \
        FLUX__QUAD_JOIN(a, a, c, FLUX__LANES4(0, 1, 4, 5), FLUX__LANES4(2, 3, 6, 7), qop)            \
        FLUX__QUAD_AT(v, acc) a = qop(v, a);                                                         \
        memcpy(acc, &a, sizeof a);                                                                   \
    }                                                                                                \
    if (rows > 0) flux__few_rest(flux__few_##name, acc, x, n, rows);                                 \
}
/* Masks of a last vector, from element 16 - n on: all lanes but the last n are 0. */
FLUX__UNUSED static const int32_t flux__last_lanes[32] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
    -1, -1, -1, -1 };
#if FLUX__VECTORS
static void flux__few_rest(void (*few)(float *, const float *, int64_t, int64_t), float *acc,
                           const float *x, int64_t n, int64_t rows) {
    float four[4] = { 0 }, filled[4 * 32] = { 0 };
    memcpy(four, acc, (size_t)rows * 4), memcpy(filled, x, (size_t)(rows * n) * 4);
    few(four, filled, n, 4);
    memcpy(acc, four, (size_t)rows * 4);
}
FLUX__FEW(hsum, FLUX__SUM_OF, FLUX__SUM_OF, 0)
FLUX__FEW(hprod, FLUX__PROD_OF, FLUX__PROD_OF, 1)
FLUX__FEW(hmaxnum, FLUX__MAXNUM_OF, FLUX__MORE_QUAD, -INFINITY)
FLUX__FEW(hminnum, FLUX__MINNUM_OF, FLUX__LESS_QUAD, INFINITY)
#endif
#define FLUX__VECTOR_HREDUCE(name, vop, op, identity, qop)                                           \
static void FLUX__F(name)(void *acc, const void *in, int64_t n, int64_t rows) {                      \
    const float *x = (const float *)in;                                                              \
    const FLUX__V start = identity;                                                                  \
    FLUX__V v;                                                                                       \
    FLUX__VI mask;                                                                                   \
    float lane[16], *sum = (float *)acc;                                                             \
    if (n < 32) {                                                                                    \
        flux__few_##name(sum, x, n, rows);                                                           \
        return;                                                                                      \
    }                                                                                                \
    for (; rows > 0; rows--, sum++) {                                                                \
        FLUX__P(PARTS)(FLUX__PART_NEW, 0, vop) FLUX__P(PARTS)(FLUX__PART_NEW, 1, vop)                \
        FLUX__P(PARTS)(FLUX__PART_NEW, 2, vop) FLUX__P(PARTS)(FLUX__PART_NEW, 3, vop)                \
        for (const float *end = x + n / 64 * 64; x < end;) {                                         \
            FLUX__P(PARTS)(FLUX__PART_TAKE, 0, vop) FLUX__P(PARTS)(FLUX__PART_TAKE, 1, vop)          \
            FLUX__P(PARTS)(FLUX__PART_TAKE, 2, vop) FLUX__P(PARTS)(FLUX__PART_TAKE, 3, vop)          \
        }                                                                                            \
        if (n & 32) { FLUX__P(PARTS)(FLUX__PART_TAKE, 0, vop) FLUX__P(PARTS)(FLUX__PART_TAKE, 1, vop) } \
        if (n & 16) { FLUX__P(PARTS)(FLUX__PART_TAKE, 2, vop) }                                      \
        if (n & 15) {                                                                                \
            x -= 16 - n % 16;                                                                        \
            FLUX__P(PARTS)(FLUX__PART_LAST, 3, vop)                                                  \
        }                                                                                            \
        FLUX__P(PARTS)(FLUX__PART_JOIN, 0, vop)                                                      \
        FLUX__P(PARTS)(FLUX__PART_PUT, 0, vop)                                                       \
        FLUX__JOIN_QUADS(lane, op, qop)                                                              \
        *sum = op(*sum, lane[0]);                                                                    \
    }                                                                                                \
}
#if !FLUX__VECTORS
#  undef FLUX__VECTOR_HREDUCE
#  define FLUX__VECTOR_HREDUCE(name, vop, op, identity, qop) FLUX__HREDUCE(name, float, op, identity)
#endif
/* A maximum or minimum that is NaN if an element is. The sum of a row with a NaN is NaN too,
   and to test the sum of several short rows at once costs less than to compare all elements.
   This is the slow way, for rows with a NaN, or Inf and -Inf. */
static void flux__reduce_nan_rows(flux__hreduce_fn hreduce, float *acc, const float *x, int64_t n,
                                int64_t rows) {
    for (; rows > 0; rows--, acc++, x += n) {
        if (*acc != *acc) continue;
        hreduce(acc, x, n, 1);
        for (int64_t i = 0; i < n; i++)
            if (x[i] != x[i]) *acc = x[i];
    }
}
#define FLUX__NAN_HREDUCE(name, hreduce)                                                             \
static void FLUX__F(name)(void *acc, const void *in, int64_t n, int64_t rows) {                      \
    const float *x = (const float *)in;                                                              \
    float *a = (float *)acc;                                                                         \
    for (int64_t many = n > 0 && n < 512 ? 512 / n : 1; rows > 0; rows -= many, a += many, x += n * many) { \
        float sum = 0;                                                                               \
        bool odd = false;                                                                            \
        if (many > rows) many = rows;                                                                \
        FLUX__F(hsum)(&sum, x, n * many, 1);                                                         \
        for (int64_t i = 0; i < many; i++) odd |= a[i] != a[i];                                      \
        if (odd || sum != sum) flux__reduce_nan_rows(FLUX__F(hreduce), a, x, n, many);               \
        else FLUX__F(hreduce)(a, x, n, many);                                                        \
    }                                                                                                \
}
#define FLUX__VECTOR_HREDUCES                                                                           \
FLUX__VECTOR_HREDUCE(hsum, FLUX__SUM_OF, FLUX__SUM_OF, FLUX__K(0), FLUX__SUM_OF)                    \
FLUX__VECTOR_HREDUCE(hprod, FLUX__PROD_OF, FLUX__PROD_OF, FLUX__K(1), FLUX__PROD_OF)                \
FLUX__VECTOR_HREDUCE(hmaxnum, FLUX__MAX, FLUX__MAXNUM_OF, FLUX__K(-INFINITY), FLUX__MAXNUM_QUAD)          \
FLUX__VECTOR_HREDUCE(hminnum, FLUX__MIN, FLUX__MINNUM_OF, FLUX__K(INFINITY), FLUX__MINNUM_QUAD)        \
FLUX__NAN_HREDUCE(hmax, hmaxnum)                                                                  \
FLUX__NAN_HREDUCE(hmin, hminnum)                                                                 \
FLUX__HREDUCE_TABLE

/* Sums of columns. add_rows: sum[i] += x[i] of `rows` rows of n floats, one after the other,
   four at a time. add_wide: adds n floats to doubles. */
#define FLUX__VECTOR_WIDE                                                                            \
static void FLUX__F(add_rows)(float *sum, const float *x, int64_t n, int64_t rows) {                 \
    for (int64_t r = 0, i; r < rows; x += n, r++) {                                                  \
        const float *p = x, *q = p + n, *o = q + n, *u = o + n;                                      \
        const bool four = r + 4 <= rows;                                                             \
        for (i = 0; four && i + FLUX__LANES <= n; i += FLUX__LANES) {                                \
            FLUX__V a = FLUX__F(at)(sum + i) + FLUX__F(at)(p + i) + FLUX__F(at)(q + i) + FLUX__F(at)(o + i) + FLUX__F(at)(u + i); \
            memcpy(sum + i, &a, sizeof a);                                                           \
        }                                                                                            \
        for (; four && i < n; i++) sum[i] = sum[i] + p[i] + q[i] + o[i] + u[i];                      \
        for (; i + FLUX__LANES <= n; i += FLUX__LANES) {                                             \
            FLUX__V a = FLUX__F(at)(sum + i) + FLUX__F(at)(p + i);                                   \
            memcpy(sum + i, &a, sizeof a);                                                           \
        }                                                                                            \
        for (; i < n; i++) sum[i] += p[i];                                                           \
        if (four) x = u, r += 3;                                                                     \
    }                                                                                                \
}                                                                                                    \
static void FLUX__F(add_wide)(double *sum, const float *x, int64_t n) {                              \
    FLUX__VD d[2], s[2];                                                                             \
    for (; n >= FLUX__LANES; n -= FLUX__LANES, x += FLUX__LANES, sum += FLUX__LANES) {               \
        FLUX__F(widen)(FLUX__F(at)(x), d);                                                           \
        memcpy(s, sum, sizeof *sum * FLUX__LANES);                                                   \
        for (int h = 0; h < FLUX__HALVES; h++) s[h] = s[h] + d[h];                                   \
        memcpy(sum, s, sizeof *sum * FLUX__LANES);                                                   \
    }                                                                                                \
    for (; n > 0; n--) *sum++ += (double)*x++;                                                       \
}

/* Rows of windows side by side, at least a vector of them, element w of window i at x[w][i * step],
   step 1 or 2: their maxima y, or with slots their sums divided by `by`, in the order of
   flux__join_order. With g, the places of the maxima are found, the first of equals or the first
   NaN, and g[i] goes there, 0 elsewhere, or with add nothing: of paired windows, elements w and
   w + 1 to d[w][i * 2]; of others, a single row, to line l, d[l][i + at[w]], for the elements w =
   which[first[l]] ... . The lines are as long as said, and up to 31 are written behind their ends;
   g is 0 and y, which gets the places, is there up to 16 before the first window and 48 behind the
   last. Without rows and y, g[i] goes to all elements of a window. next: from row to row in x, g,
   and y or d. */
#define FLUX__WINDOW 64                   /* elements of a window, at most */
typedef struct flux__pooled {
    int64_t windows, rows, next[3], length[FLUX__WINDOW], at[FLUX__WINDOW];
    int n, step, slots, lines, first[FLUX__WINDOW + 1], which[FLUX__WINDOW];
    bool add, paired;
    float by, *y, *d[FLUX__WINDOW];
    const float *x[FLUX__WINDOW], *g;
} flux__pooled;
#define FLUX__VECTOR_POOL                                                                            \
FLUX__FN(pool_at)(const float *x, int step) { return step == 2 ? FLUX__F(seconds)(x) : FLUX__F(at)(x); } \
FLUX__FN(pool_sum)(const flux__pooled *p, int64_t i, int step) {                                     \
    FLUX__V s[4];                                                                                    \
    int w = 0, n = p->n;                                                                             \
    for (int k = 0; k < 4; k++) s[k] = FLUX__F(pool_at)(p->x[k < n ? k : 0] + i, step);              \
    if (p->slots == 1) {                                                                             \
        for (w = 1; w < n; w++) s[0] = s[0] + FLUX__F(pool_at)(p->x[w] + i, step);                   \
        return s[0];                                                                                 \
    }                                                                                                \
    for (w = 4; n - w >= 4; w += 4) {                                                                \
        const float *const *x = p->x + w;                                                            \
        s[0] = s[0] + FLUX__F(pool_at)(x[0] + i, step), s[1] = s[1] + FLUX__F(pool_at)(x[1] + i, step); \
        s[2] = s[2] + FLUX__F(pool_at)(x[2] + i, step), s[3] = s[3] + FLUX__F(pool_at)(x[3] + i, step); \
    }                                                                                                \
    /* what is left over goes to the last slots */                                                   \
    if (n - w == 3) s[1] = s[1] + FLUX__F(pool_at)(p->x[w++] + i, step);                             \
    if (n - w == 2) s[2] = s[2] + FLUX__F(pool_at)(p->x[w++] + i, step);                             \
    if (n - w == 1) s[3] = s[3] + FLUX__F(pool_at)(p->x[w] + i, step);                               \
    return (s[0] + s[2]) + (s[1] + s[3]);                                                            \
}                                                                                                    \
/* the place of the maximum, or with `value` the maximum itself, of any numbers */                   \
FLUX__FN(pool_find)(const flux__pooled *p, int64_t i, int step, bool value) {                        \
    FLUX__V best = FLUX__F(pool_at)(p->x[0] + i, step), at = FLUX__K(0), v;                          \
    const float *const *x = p->x;                                                                    \
    for (int w = 1, n = p->n; w < n; w++) {                                                          \
        v = FLUX__F(pool_at)(x[w] + i, step);                                                        \
        at = FLUX__IF((v > best) | ((v != v) & (best == best)), FLUX__K(w), at);                     \
        best = FLUX__IF((v > best) | ((v != v) & (best == best)), v, best);                          \
    }                                                                                                \
    return value ? best : at;                                                                        \
}                                                                                                    \
/* The maxima of two vectors of windows, from i and from k on, or with g their places, the first of  \
   equals. A sum is NaN if an element is, or if there are both infinities. */                        \
static FLUX__INLINE void FLUX__F(pool_max)(const flux__pooled *p, int64_t i, int64_t k, int step,    \
                                           FLUX__V *y) {                                             \
    const float *const *x = p->x, *const *end = x + p->n;                                            \
    const bool find = p->g != NULL;                                                                  \
    FLUX__V a = FLUX__F(pool_at)(*x + i, step), b = FLUX__F(pool_at)(*x + k, step), v, w,            \
            s = a, t = b, at;                                                                        \
    while (++x < end) {                                                                              \
        v = FLUX__F(pool_at)(*x + i, step), w = FLUX__F(pool_at)(*x + k, step);                      \
        s = s + v, t = t + w, a = FLUX__MAX(v, a), b = FLUX__MAX(w, b);                              \
    }                                                                                                \
    s = s + t, y[0] = a, y[1] = b;                                                                   \
    if (!FLUX__ALL(s == s)) {                                                                        \
        y[0] = FLUX__F(pool_find)(p, i, step, !find), y[1] = FLUX__F(pool_find)(p, k, step, !find);  \
        return;                                                                                      \
    }                                                                                                \
    if (!find) return;                                                                               \
    for (at = y[0] = y[1] = FLUX__K(p->n - 1); --x > p->x;) {                                        \
        at = at - FLUX__K(1);                                                                        \
        y[0] = FLUX__IF(FLUX__F(pool_at)(x[-1] + i, step) == a, at, y[0]);                           \
        y[1] = FLUX__IF(FLUX__F(pool_at)(x[-1] + k, step) == b, at, y[1]);                           \
    }                                                                                                \
}                                                                                                    \
/* what windows from i on give, and those from k on: both are sums, maxima or the maxima's places */ \
static FLUX__INLINE void FLUX__F(pool_two)(const flux__pooled *p, int64_t i, int64_t k, int step,    \
                                           FLUX__V *v) {                                             \
    const FLUX__V none = FLUX__K(0), by = FLUX__K(p->by);                                            \
    if (!p->slots) {                                                                                 \
        FLUX__F(pool_max)(p, i, k, step, v);                                                         \
        v[0] = v[0] + none, v[1] = v[1] + none;                                                      \
    } else {                                                                                         \
        v[0] = (FLUX__F(pool_sum)(p, i, step) + none) / by;                                          \
        v[1] = (FLUX__F(pool_sum)(p, k, step) + none) / by;                                          \
    }                                                                                                \
}                                                                                                    \
/* Adds what windows give to the image's lines, two vectors at a time. */                            \
static void FLUX__F(pool_back)(const flux__pooled *p) {                                              \
    FLUX__V v, w, g, h, place;                                                                       \
    for (int l = p->lines - 1; l >= 0; l--)                                                          \
        for (int64_t i = 0, n = p->length[l]; i < n; i += 2 * FLUX__LANES) {                         \
            const int *k = p->which + p->first[l], *end = p->which + p->first[l + 1];                \
            float *d = p->d[l] + i;                                                                  \
            v = w = FLUX__K(0);                                                                      \
            if (p->add) v = FLUX__F(at)(d), w = FLUX__F(at)(d + FLUX__LANES);                        \
            for (; k < end; k++) {                                                                   \
                const int64_t at = i - p->at[*k], next = at + FLUX__LANES;                           \
                g = FLUX__F(at)(p->g + at), h = FLUX__F(at)(p->g + next);                            \
                if (p->y) {                                                                          \
                    place = FLUX__K(*k);                                                             \
                    g = FLUX__IF(FLUX__F(at)(p->y + at) == place, g, FLUX__K(0));                    \
                    h = FLUX__IF(FLUX__F(at)(p->y + next) == place, h, FLUX__K(0));                  \
                }                                                                                    \
                if (p->add) v = v + g, w = w + h;                                                    \
                else v = g, w = h;                                                                   \
            }                                                                                        \
            memcpy(d, &v, sizeof v), memcpy(d + FLUX__LANES, &w, sizeof w);                          \
        }                                                                                            \
}                                                                                                    \
/* writes g to those elements of paired windows, from i on, that `at` names, and 0 to the others */  \
static FLUX__INLINE void FLUX__F(pool_pairs)(const flux__pooled *p, int64_t r, int64_t i,            \
                                             FLUX__V at) {                                           \
    const FLUX__V g = FLUX__F(at)(p->g + r * p->next[1] + i), none = FLUX__K(0);                     \
    float *const *d = p->d;                                                                          \
    const int64_t to = r * p->next[2] + i * 2;                                                       \
    for (int w = 0; w < p->n; w += 2)                                                                \
        FLUX__F(weave)(d[w] + to, FLUX__IF(at == FLUX__K(w), g, none),                               \
                       FLUX__IF(at == FLUX__K(w + 1), g, none));                                     \
}                                                                                                    \
static FLUX__INLINE void FLUX__F(pool_row)(const flux__pooled *p, int64_t r, int step) {             \
    FLUX__V v[2];                                                                                    \
    /* floats of x that a window goes on by, over all its rows: they are prefetched */               \
    const int64_t far = step == 1 ? 0 : p->next[0] < 8 * p->windows ? p->next[0] / p->windows : 4;   \
    const float *ahead = p->x[p->n - 1] + (r + 8) * p->next[0];                                      \
    const int64_t from = r * p->next[0], last = p->windows - FLUX__LANES, both = 2 * FLUX__LANES;    \
    float *y = p->y + r * p->next[2];                                                                \
    for (int64_t i = 0, k; i < p->windows; i += both) {                                              \
        for (int64_t w = 0; w < far * both; w += 16) FLUX__PREFETCH_LATER(ahead + i * far + w)       \
        if (i > last) i = last;                                                                      \
        k = i + FLUX__LANES < last ? i + FLUX__LANES : last;                                         \
        FLUX__F(pool_two)(p, from + i * step, from + k * step, step, v);                             \
        if (p->paired) FLUX__F(pool_pairs)(p, r, i, v[0]), FLUX__F(pool_pairs)(p, r, k, v[1]);       \
        else memcpy(y + i, &v[0], sizeof v[0]), memcpy(y + k, &v[1], sizeof v[1]);                   \
    }                                                                                                \
}                                                                                                    \
/* copies n pairs of x to a and b, or back to x */                                                   \
static void FLUX__F(unweave)(float *a, float *b, const float *x, int64_t n) {                        \
    FLUX__V v, w;                                                                                    \
    for (int64_t i = 0; i < n && n >= FLUX__LANES; i += FLUX__LANES) {                               \
        if (i + FLUX__LANES > n) i = n - FLUX__LANES;                                                \
        v = FLUX__F(seconds)(x + 2 * i), w = FLUX__F(seconds)(x + 2 * i + 1);                        \
        memcpy(a + i, &v, sizeof v), memcpy(b + i, &w, sizeof w);                                    \
    }                                                                                                \
    for (; n < FLUX__LANES && n > 0; n--) *a++ = *x++, *b++ = *x++;                                  \
}                                                                                                    \
static void FLUX__F(weaves)(float *x, const float *a, const float *b, int64_t n) {                   \
    for (int64_t i = 0; i < n && n >= FLUX__LANES; i += FLUX__LANES) {                               \
        if (i + FLUX__LANES > n) i = n - FLUX__LANES;                                                \
        FLUX__F(weave)(x + 2 * i, FLUX__F(at)(a + i), FLUX__F(at)(b + i));                           \
    }                                                                                                \
    for (; n < FLUX__LANES && n > 0; n--) *x++ = *a++, *x++ = *b++;                                  \
}                                                                                                    \
static void FLUX__F(pool)(const flux__pooled *p) {                                                   \
    for (int64_t r = 0; r < p->rows; r++)                                                            \
        if (p->step == 2) FLUX__F(pool_row)(p, r, 2);                                                \
        else FLUX__F(pool_row)(p, r, 1);                                                             \
    if (p->g && !p->paired) FLUX__F(pool_back)(p);                                                   \
}

/* For attention; n is a multiple of 16. attend_exp: s = exp(s - *most), where *most, the
   maximum, is first found if `find`; returns the sum. attend_back: given p before the division
   by its sum, whose reciprocal is `by`, and dp, makes p = p by and the gradient before the
   softmax, dp = p (dp - less). */
#define FLUX__ATTEND_ROWS(T, join)                                                                   \
static double FLUX__F(attend_exp)(int64_t n, void *row, void *most, bool find) {                     \
    enum { one = sizeof(FLUX__V) / sizeof(T), few = 16 / one };                                      \
    T *s = (T *)row, lane[16];                                                                       \
    FLUX__V m[few], sum[few], x;                                                                     \
    int i;                                                                                           \
    for (i = 0; i < few; i++) m[i] = FLUX__K(-HUGE_VAL), sum[i] = FLUX__K(0);                        \
    for (int64_t at = 0; find && at < n; at += 16)                                                   \
        for (i = 0; i < few; i++) memcpy(&x, s + at + i * one, sizeof x), m[i] = FLUX__F(fmax)(m[i], x);\
    memcpy(lane, m, sizeof lane);                                                                    \
    if (find) { join(lane, FLUX__MAX_OF, FLUX__MAX_QUAD) memcpy(most, lane, sizeof lane[0]); }       \
    memcpy(lane, most, sizeof lane[0]);                                                              \
    m[0] = FLUX__K(lane[0]);                                                                         \
    for (int64_t at = 0; at < n; at += 16)                                                           \
        for (i = 0; i < few; i++) {                                                                  \
            memcpy(&x, s + at + i * one, sizeof x);                                                  \
            x = FLUX__F(exp)(FLUX__IF(x == m[0], FLUX__K(0), x - m[0]));                             \
            memcpy(s + at + i * one, &x, sizeof x), sum[i] = sum[i] + x;                             \
        }                                                                                            \
    memcpy(lane, sum, sizeof lane);                                                                  \
    join(lane, FLUX__SUM_OF, FLUX__SUM_OF)                                                           \
    return (double)lane[0];                                                                          \
}                                                                                                    \
static void FLUX__F(attend_back)(int64_t n, void *row, void *grad, double by, double less) {         \
    enum { one = sizeof(FLUX__V) / sizeof(T) };                                                      \
    T *p = (T *)row, *dp = (T *)grad;                                                                \
    FLUX__V x, d, b = FLUX__K((T)by), l = FLUX__K((T)less);                                          \
    for (; n > 0; n -= one, p += one, dp += one) {                                                   \
        memcpy(&x, p, sizeof x), memcpy(&d, dp, sizeof d);                                           \
        x = x * b, d = x * (d - l);                                                                  \
        memcpy(p, &x, sizeof x), memcpy(dp, &d, sizeof d);                                           \
    }                                                                                                \
}

#define FLUX__FN(name) static FLUX__INLINE FLUX__V FLUX__F(name)

#define FLUX__VI FLUX__F(vi)
#define FLUX__VU FLUX__F(vu)
#define FLUX__VD FLUX__F(vd)
#define FLUX__VL FLUX__F(vl)
#define FLUX__VUL FLUX__F(vul)
#define FLUX__MAGIC 12582912.0f           /* 1.5 2^23: x + MAGIC has round(x) in its low bits */
#define FLUX__MAGIC_D 6755399441055744.0  /* 1.5 2^52: the same in double */

/* What an instruction set offers for float32. */
typedef struct flux__section {
    const flux__loop *loops;
    flux__run_loop run;                   /* runs one of the loops */
    const flux__hreduce_fn *hreduces;
    flux__random_fn random;
    flux__adam_fn adam;
    flux__rows_fn rows;
    flux__chain_fn chain;
    flux__hreduce_fn hmaxnum;             /* the maximum of rows without NaN */
    void (*add_rows)(float *sum, const float *x, int64_t n, int64_t rows);
    void (*add_wide)(double *sum, const float *x, int64_t n);
    void (*pool)(const flux__pooled *p);
    void (*unweave)(float *a, float *b, const float *x, int64_t n);
    void (*weave)(float *x, const float *a, const float *b, int64_t n);
    double (*attend_exp)(int64_t n, void *row, void *most, bool find);
    void (*attend_back)(int64_t n, void *row, void *grad, double by, double less);
} flux__section;

#define FLUX__LANES FLUX__P(LANES)
#define FLUX__SQRT(x) FLUX__P(SQRT)(x)
#define FLUX__FMA(a, b, c) FLUX__P(FMA)(a, b, c)
#define FLUX__FMAD(a, b, c) FLUX__P(FMAD)(a, b, c)
#define FLUX__MIN(a, b) FLUX__P(MIN)(a, b)
#define FLUX__MAX(a, b) FLUX__P(MAX)(a, b)
#define FLUX__SCALE(x, t) FLUX__P(SCALE)(x, t)
#define FLUX__SCALE_DOWN(x, t) FLUX__P(SCALE_DOWN)(x, t)
/* Looks up each lane of i in a table of 16 numbers, by its lowest 4 bits. */
#define FLUX__LOOKUP(table, i) FLUX__P(LOOKUP)(table, i)
#define FLUX__ALL(mask) FLUX__P(ALL)(mask)
/* x, kept in a register: gcc makes constants anew at each use */
#define FLUX__HELD(x) FLUX__P(HELD)(x)
/* Products of 64-bit lanes: the low 32 bits of x times m, which is below 2^32. */
#define FLUX__MUL32(x, m) FLUX__P(MUL32)(x, m)

FLUX__END_NUMBERS

#endif /* FLUX__CPU_LOOPS_H */
