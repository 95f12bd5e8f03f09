#ifndef FLUX__CPU_ATTENTION_H
#define FLUX__CPU_ATTENTION_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../graph/attention.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "../schedule/dispatch.h"
#include "vectors.h"
#include "casts.h"
#include "reductions.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"
#include "gemm_tasks.h" /* flux__gemm_split */
#include "gemm_amx.h"
#include "gemm_plan.h"

/* ---------------------------------------------------------------------- cpu/attention.h
   Attention on the CPU: a tile of queries at a time with all their scores, which
   stay in the second-level cache; products by flux__gemm, softmax by the loops
   of the instruction set.

   Half formats are widened as a task reads them, and narrowed as it stores. By
   AMX's tiles, bf16 is multiplied as it is, and a tile's probabilities and their
   gradients are rounded to it before they are: the sums stay in f32.

   Invariant: a task is one tile of queries of one head and sample; in the
   gradient it is all tiles of a head and sample, one after the other, so that
   the sums for k and v have one order. Scores of a query are filled up to whole
   vectors with minus infinity. A query that sees no key sees all alike, and has
   no gradient by its scores. */

FLUX__BEGIN_LEAN

/* The most scores that a task holds at a time, unless a tile of 32 queries has more: in the
   gradient as many again are their gradients. The most queries of a tile, which are about equal:
   where causality hides some of a tile's scores, more queries compute more of what is hidden.
   Measured with 64 features: of 1024 keys 32 queries took 1.4 times as long as 128, and 256 0.95;
   of 4096 16 queries 1.7 times as long as 64. */
enum { FLUX__ATTEND_SCORES = 1 << 18, FLUX__ATTEND_TILE = 128, FLUX__ATTEND_CAUSAL_TILE = 96 };

typedef struct flux__attend_job {
    const flux__kernel *k;
    /* operands, by FLUX__ATTEND_Q ...; NULL: the kernel has none */
    const char *x[FLUX__ATTEND_OPERANDS];
    const flux__operand *o[FLUX__ATTEND_OPERANDS];
    char *out;
    int ctype, failed;
    int half;                             /* the dtype of q, k, v and y, if it is a half format, or
                                             else -1 */
    bool tiles;                           /* products go by AMX's tiles */
    bool heads_whole;                     /* a task is all tiles of queries of a head and sample */
    /* size, stored: bytes of an element of the compute type, and of q, k, v and y; d, dv: features
       of q and k, of v and y, of one head; tile: queries a task takes at a time */
    int64_t size, stored, heads, d, dv, keys, queries, batch, tile;
    int64_t behind;                       /* where the statistics are, in elements of y */
    bool causal;                          /* query i sees the keys 0 ... i + later */
    int64_t later;                        /* how many keys more than queries there are */
    double scale;
} flux__attend_job;

typedef struct flux__attend_part {        /* a tile of queries of one head and sample */
    const flux__attend_job *j;
    /* the queries q0 ... q0+n-1, which see the keys 0 ... keys-1 at most */
    int64_t head, sample, q0, n, keys;
    int64_t ld;  /* leading dimension of s and ds: keys, filled up to whole vectors */
    /* the features of all keys, and how many elements columns are apart: see flux__attend_taken */
    const char *k, *v;
    int64_t ldk, ldv;
    /* Scratch memory. q: d x n, contiguous: the queries, scaled. s, ds: keys x n, columns ld
       apart: the scores, then the probabilities, and their gradient; low: one of them in bf16.
       column: as long as the larger of ld and dv. Of half formats, widened: wide, k and v; g,
       dv x n; y, a result before it is narrowed, d or dv x n; sums, dk and dv of all keys. */
    char *q, *s, *ds, *low, *column, *wide, *g, *y, *sums;
} flux__attend_part;

/* y[i] = a[i] op b[i] for n numbers of the job's compute type; sb 0: b is one number. */
static void flux__attend_op(const flux__attend_job *j, int op, int64_t n, void *y, const void *a,
                            const void *b, int sb) {
    flux__loop_run(j->ctype, flux__loop_for(j->ctype, op), n, y, a, b, a, 1, sb, 1);
}

/* The address of the features of this head at step `step` (a query or key) of operand i,
   (features of a head) x steps, contiguous along the features; *ld: the distance of steps in
   elements. The operand is (heads * features) x steps x samples. */
static const char *flux__attend_at(const flux__attend_part *p, int i, int64_t step, int64_t *ld) {
    const flux__operand *o = p->j->o[i];
    int64_t features = o->shape.dim[0] / p->j->heads;
    *ld = o->stride[1];
    return p->j->x[i] + (p->head * features + step * o->stride[1] + p->sample * o->stride[2]) *
           p->j->stored;
}

/* The same for `n` steps in the type that products take: of a half format, unless it goes by tiles,
   widened to `memory`. */
static const char *flux__attend_taken(const flux__attend_part *p, int i, int64_t step, int64_t n,
                                      char *memory, int64_t *ld) {
    const flux__attend_job *j = p->j;
    const int64_t features = j->o[i]->shape.dim[0] / j->heads;
    const char *x = flux__attend_at(p, i, step, ld);
    if (j->half < 0 || j->tiles) return x;
    for (int64_t c = 0; c < n; c++)
        flux__load(j->ctype, memory + c * features * j->size, j->half, x + c * *ld * j->stored, 1,
                   features);
    *ld = features;
    return memory;
}

/* The same of a result, (heads * features) x steps x samples, contiguous, that starts at
   element `from` of the kernel's output; steps are heads * features elements apart. */
static char *flux__attend_to(const flux__attend_part *p, int64_t from, int64_t features,
                             int64_t steps, int64_t step) {
    return p->j->out + (from + p->head * features +
                        (p->sample * steps + step) * features * p->j->heads) * p->j->stored;
}

/* Stores n numbers of the compute type times `factor`, one number; `from` is changed. A result that
   is not of a half format is there already. */
static FLUX__INLINE void flux__attend_put(const flux__attend_job *j, char *to, char *from,
                                          const char *factor, int64_t n) {
    flux__attend_op(j, FLUX__OP_MUL, n, from, from, factor, 0);
    if (j->half >= 0) flux__store(j->half, to, 1, j->ctype, from, n);
    FLUX__ASSERT(j->half >= 0 || to == from);
}

/* The address of a query's two statistics behind the y of the forward kernel (`made`): its
   maximal score, and 1 / the sum of its exponentials. */
static char *flux__attend_stats(const flux__attend_part *p, const char *made, int64_t query) {
    const flux__attend_job *j = p->j;
    return (char *)(intptr_t)made + j->behind * j->stored +
           ((p->sample * j->heads + p->head) * j->queries + query) * 2 * j->size;
}

typedef struct flux__attend_sum {
    const flux__attend_job *j;
    char *to;
    int64_t ld;
} flux__attend_sum;

/* An epilogue: adds the finished block (mb x nb, columns ld apart) to the rows from i0 and
   columns from j0 of s->to, whose columns are s->ld apart. */
static void flux__attend_add(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb,
                             void *block, int64_t ld) {
    const flux__attend_sum *s = (const flux__attend_sum *)ctx;
    (void)worker;
    for (int64_t c = 0; c < nb; c++) {
        char *to = s->to + (i0 + (j0 + c) * s->ld) * s->j->size;
        flux__attend_op(s->j, FLUX__OP_ADD, mb, to, to, (char *)block + c * ld * s->j->size, 1);
    }
}

/* c = a b, or with `sum` c += a b. a: m x k with strides a_row, a_col; b: k x n with b_row,
   b_col, both of the compute type or, by tiles, of bf16; c: m x n, columns contiguous and ldc
   apart. False: out of memory. */
static bool flux__attend_product(const flux__attend_job *j, int64_t m, int64_t n, int64_t k,
                                 const char *a, int64_t a_row, int64_t a_col, const char *b,
                                 int64_t b_row, int64_t b_col, char *c, int64_t ldc, bool sum) {
    flux__attend_sum s = { j, c, ldc };
    flux__gemm_job g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.a_row = a_row, g.a_col = a_col;
    g.b = b, g.b_row = b_row, g.b_col = b_col;
    g.tiles = j->tiles;
    if (sum) g.epilogue = flux__attend_add, g.ctx = &s;
    else g.c = c, g.ldc = ldc;
    return flux__gemm(j->ctype == FLUX__F64C, &g) == 0;
}

/* Loads n numbers of query i's mask, for keys from the first on, to p->column. which:
   FLUX__ATTEND_MASK or FLUX__ATTEND_KEEP. */
static void flux__attend_load(const flux__attend_part *p, int which, int64_t i, int64_t n) {
    const flux__attend_job *j = p->j;
    const flux__operand *o = j->o[which];
    int64_t at = (p->q0 + i) * o->stride[1] + p->head * o->stride[2] + p->sample * o->stride[3];
    flux__load(j->ctype, p->column, o->dtype,
               j->x[which] + at * (int64_t)flux__dtypes[o->dtype].size, o->stride[0], n);
}

/* Replaces s[k], for keys k < n, by the number at `other` where p->column[k] is 0. */
static void flux__attend_select(const flux__attend_part *p, char *s, const char *other,
                                int64_t n) {
    const flux__attend_job *j = p->j;
    flux__loop_run(j->ctype, flux__loop_for(j->ctype, FLUX__OP_WHERE), n, s, p->column, s, other,
                   1, 1, 0);
}

/* Replaces by 0 what dropout drops of s, query i's n weights or their gradients. */
static void flux__attend_dropout(const flux__attend_part *p, int64_t i, char *s, int64_t n) {
    const char zero[8] = { 0 };
    flux__attend_load(p, FLUX__ATTEND_KEEP, i, n);
    flux__attend_select(p, s, zero, n);
}

/* Makes the scores of the part's queries before the softmax: p->q = scale * q (d x n), then
   p->s = k' p->q (keys x n); by tiles p->s = scale * k' q, for p->q would be rounded. If there is
   a mask or bias, the bias is added or masked scores become minus infinity, and so do those that
   causality hides (without a mask flux__attend_exp leaves these out). False: out of memory. */
static bool flux__attend_logits(flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    const flux__operand *o = j->o[FLUX__ATTEND_MASK];
    int64_t ld, size = j->size;
    char scale[8], none[8];
    const char *q = flux__attend_taken(p, FLUX__ATTEND_Q, p->q0, p->n, p->q, &ld);
    flux__set_number(j->ctype, scale, j->scale);
    flux__identity(j->ctype, FLUX__RED_MAX, none);
    for (int64_t i = 0; i < p->n && !j->tiles; i++)
        flux__attend_op(j, FLUX__OP_MUL, j->d, p->q + i * j->d * size, q + i * ld * size, scale, 0);
    if (!j->tiles) q = p->q, ld = j->d;
    if (!flux__attend_product(j, p->keys, p->n, j->d, p->k, p->ldk, 1, q, 1, ld, p->s, p->ld,
                              false)) return false;
    for (int64_t i = 0; i < p->n && j->tiles; i++)
        flux__attend_op(j, FLUX__OP_MUL, p->keys, p->s + i * p->ld * size, p->s + i * p->ld * size,
                        scale, 0);
    for (int64_t i = 0; i < p->n && o; i++) {
        char *s = p->s + i * p->ld * size;
        int64_t seen = p->q0 + i + 1 + j->later;
        flux__attend_load(p, FLUX__ATTEND_MASK, i, p->keys);
        if (o->dtype != FLUX_BOOL) flux__attend_op(j, FLUX__OP_ADD, p->keys, s, s, p->column, 1);
        else flux__attend_select(p, s, none, p->keys);
        if (j->causal && seen < p->keys)
            flux__copies((size_t)size, p->keys - seen, s + seen * size, 1, none, 0);
    }
    return true;
}

/* The number of the job's compute type that is stored at `at`. */
static double flux__attend_number(const flux__attend_job *j, const char *at) {
    float x;
    double y;
    if (j->ctype == FLUX__F64C) return memcpy(&y, at, sizeof y), y;
    return memcpy(&x, at, sizeof x), (double)x;
}

/* Replaces the scores of query i by exp(score - maximum), 0 for keys that it does not see, and
   returns their sum. `most`: the query's maximum, which is found first if `find`. *n: the
   numbers that this takes, whole vectors. A query that sees no key gets zeros and the sum 0. */
static double flux__attend_exp(const flux__attend_part *p, int64_t i, char *most, bool find,
                               int64_t *n) {
    const flux__attend_job *j = p->j;
    int64_t size = j->size,
            reach = p->q0 + i + 1 + j->later,
            seen = j->causal && !j->o[FLUX__ATTEND_MASK] && reach < p->keys ? reach : p->keys;
    char *s = p->s + i * p->ld * size, none[8];
    *n = flux__gemm_up(seen, 16);
    flux__identity(j->ctype, FLUX__RED_MAX, none);
    for (int64_t at = seen; at < *n; at++) memcpy(s + at * size, none, (size_t)size);
    double sum = (j->ctype == FLUX__F64C ? flux__attend_exp_f64 : flux__section_now()->attend_exp)(
        *n, s, most, find);
    bool blind = memcmp(most, none, (size_t)size) == 0;
    memset(s + (blind ? 0 : seen * size), 0, (size_t)((p->ld - (blind ? 0 : seen)) * size));
    return blind ? 0 : sum;
}

/* Scores as products take them: keys x n, columns ld apart; by tiles rounded to p->low. */
static const char *flux__attend_scores(const flux__attend_part *p, const char *s) {
    for (int64_t i = 0; i < p->n && p->j->tiles; i++)
        flux__store(FLUX_BF16, p->low + i * p->ld * 2, 1, FLUX__F32C, s + i * p->ld * 4, p->keys);
    return p->j->tiles ? p->low : s;
}

/* y = v p for the part's queries. v: dv x keys, p: keys x n, y: dv x n, columns of y heads * dv
   elements apart. p is divided by its sums only in y. Stores each query's statistics for the
   gradient. False: out of memory. */
static bool flux__attend_forward(flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    const int64_t size = j->size, wide = j->dv * j->heads, ld = j->half < 0 ? wide : j->dv;
    int64_t n;
    if (!flux__attend_logits(p)) return false;
    for (int64_t i = 0; i < p->n; i++) {
        char *most = flux__attend_stats(p, j->out, p->q0 + i);
        double sum = flux__attend_exp(p, i, most, true, &n);
        flux__set_number(j->ctype, most + size, sum == 0 ? 0 : 1 / sum);
        if (j->o[FLUX__ATTEND_KEEP])
            flux__attend_dropout(p, i, p->s + i * p->ld * size, p->keys);
    }
    char *to = flux__attend_to(p, 0, j->dv, j->queries, p->q0), *y = j->half < 0 ? to : p->y;
    if (!flux__attend_product(j, j->dv, p->n, p->keys, p->v, 1, p->ldv,
                              flux__attend_scores(p, p->s), 1, p->ld, y, ld, false)) return false;
    for (int64_t i = 0; i < p->n; i++, y += ld * size, to += wide * j->stored)
        flux__attend_put(j, to, y, flux__attend_stats(p, j->out, p->q0 + i) + size, j->dv);
    return true;
}

/* Makes p->s column i the probabilities p, and p->ds column i the gradient of the scores, p (dp
   - y'g), where ds held dp. What dropout drops is 0 in dp before and in p after. g: the gradient
   of the query's y, dv numbers. */
static void flux__attend_column(const flux__attend_part *p, int64_t i, const char *g) {
    const flux__attend_job *j = p->j;
    int64_t size = j->size, n;
    const bool drops = j->o[FLUX__ATTEND_KEEP] != NULL;
    char *s = p->s + i * p->ld * size, *ds = p->ds + i * p->ld * size, sum[8],
         *most = flux__attend_stats(p, j->x[FLUX__ATTEND_MADE], p->q0 + i);
    const char *y = j->x[FLUX__ATTEND_MADE] +
                    (p->head * j->dv + (p->sample * j->queries + p->q0 + i) * j->dv * j->heads) *
                    j->stored;
    flux__attend_exp(p, i, most, false, &n);   /* 0 if it sees no key: no gradient */
    if (j->half >= 0) flux__load(j->ctype, p->y, j->half, y, 1, j->dv), y = p->y;
    if (j->tiles) flux__load(j->ctype, p->column, j->half, g, 1, j->dv), g = p->column;
    flux__attend_op(j, FLUX__OP_MUL, j->dv, p->column, g, y, 1);
    flux__identity(j->ctype, FLUX__RED_SUM, sum);
    flux__reduce(j->ctype, FLUX__RED_SUM, sum, p->column, j->dv);
    if (drops) flux__attend_dropout(p, i, ds, p->keys);
    (j->ctype == FLUX__F64C ? flux__attend_back_f64 : flux__section_now()->attend_back)(
        n, s, ds, flux__attend_number(j, most + size), flux__attend_number(j, sum));
    if (drops) flux__attend_dropout(p, i, s, p->keys);
    memset(ds + n * size, 0, (size_t)((p->ld - n) * size));
}

/* The gradient of the part's queries: dq (d x n), and what they add to dk (d x keys) and dv (dv
   x keys); all have columns that are heads * (d or dv) elements apart, or of half formats p->sums
   has dk and dv. dp = v'g, dv += g p', dk += q ds', dq = k ds, with q scaled before (by tiles
   flux__attend_narrow scales dk) and dq scaled after. False: out of memory. */
static bool flux__attend_backward(flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    const bool half = j->half >= 0;
    const int64_t size = j->size, wide = j->d * j->heads, ld = half ? j->d : wide,
                  stored = j->tiles ? j->stored : size;
    int64_t ldg, ldq = j->d;
    const char *g = flux__attend_taken(p, FLUX__ATTEND_G, p->q0, p->n, p->g, &ldg),
               *q = j->tiles ? flux__attend_at(p, FLUX__ATTEND_Q, p->q0, &ldq) : p->q;
    char scale[8], *to = flux__attend_to(p, 0, j->d, j->queries, p->q0), *dq = half ? p->y : to,
         *dk = p->sums, *dv = p->sums + j->d * j->keys * size;
    if (!half) {
        const int64_t from = wide * j->queries * j->batch, then = from + wide * j->keys * j->batch;
        dk = flux__attend_to(p, from, j->d, j->keys, 0);
        dv = flux__attend_to(p, then, j->dv, j->keys, 0);
    }
    flux__set_number(j->ctype, scale, j->scale);
    if (!flux__attend_logits(p) ||
        !flux__attend_product(j, p->keys, p->n, j->dv, p->v, p->ldv, 1, g, 1, ldg, p->ds, p->ld,
                              false)) return false;
    for (int64_t i = 0; i < p->n; i++) flux__attend_column(p, i, g + i * ldg * stored);
    const bool sum = p->q0 > 0;           /* dk and dv of keys that the first tile does not see
                                             hold zeros */
    const char *s = flux__attend_scores(p, p->s);
    if (!flux__attend_product(j, j->dv, p->keys, p->n, g, 1, ldg, s, p->ld, 1, dv,
                              half ? j->dv : j->dv * j->heads, sum)) return false;
    s = flux__attend_scores(p, p->ds);
    if (!flux__attend_product(j, j->d, p->keys, p->n, q, 1, ldq, s, p->ld, 1, dk, ld, sum) ||
        !flux__attend_product(j, j->d, p->n, p->keys, p->k, 1, p->ldk, s, 1, p->ld, dq, ld, false))
        return false;
    for (int64_t i = 0; i < p->n; i++, dq += ld * size, to += wide * j->stored)
        flux__attend_put(j, to, dq, scale, j->d);
    return true;
}

/* Stores p->sums, the gradients by a head's keys and values, in the half format. */
static void flux__attend_narrow(const flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    const int64_t from = j->d * j->heads * j->queries * j->batch,
                  then = from + j->d * j->heads * j->keys * j->batch;
    char scale[8], *dk = p->sums, *dv = dk + j->d * j->keys * j->size;
    flux__set_number(j->ctype, scale, j->scale);
    if (j->tiles) flux__attend_op(j, FLUX__OP_MUL, j->d * j->keys, dk, dk, scale, 0);
    for (int64_t i = 0; i < j->keys; i++, dk += j->d * j->size, dv += j->dv * j->size) {
        flux__store(j->half, flux__attend_to(p, from, j->d, j->keys, i), 1, j->ctype, dk, j->d);
        flux__store(j->half, flux__attend_to(p, then, j->dv, j->keys, i), 1, j->ctype, dv, j->dv);
    }
}

/* Gives a part its scratch memory, or with memory NULL only finds out how many bytes it takes. */
static int64_t flux__attend_memory(flux__attend_part *p, bool back, char *memory) {
    const flux__attend_job *j = p->j;
    const bool half = j->half >= 0, widens = half && !j->tiles;
    const int64_t ld = flux__gemm_up(j->keys, 16), all = (j->d + j->dv) * j->keys,
                  most = j->d > j->dv ? j->d : j->dv;
    struct { char **at; int64_t n; } parts[] = {
        { &p->s, j->tile * ld }, { &p->ds, back ? j->tile * ld : 0 }, { &p->q, j->tile * j->d },
        { &p->column, ld > j->dv ? ld : j->dv }, { &p->low, j->tiles ? j->tile * ld / 2 : 0 },
        { &p->wide, widens ? all : 0 }, { &p->g, widens && back ? j->tile * j->dv : 0 },
        { &p->y, half ? j->tile * most : 0 }, { &p->sums, half && back ? all : 0 } };
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (memory) *parts[i].at = memory + bytes;
        bytes += flux__gemm_up(parts[i].n * j->size, 64);
    }
    return bytes;
}

/* Finds, or widens, the first n keys and values of the part's head and sample. */
static void flux__attend_keys(flux__attend_part *p, int64_t n) {
    char *values = p->wide + p->j->d * p->j->keys * p->j->size;
    p->k = flux__attend_taken(p, FLUX__ATTEND_K, 0, n, p->wide, &p->ldk);
    p->v = flux__attend_taken(p, FLUX__ATTEND_V, 0, n, values, &p->ldv);
}

/* Runs one task: one tile of queries of one head and sample; or all tiles of it one after the
   other: in the gradient, so that the sums for dk and dv have one order, and where keys and values
   are widened, if there are heads enough for all threads. Takes the scratch memory of the part. */
static void flux__attend_task(void *ctx, int64_t task) {
    flux__attend_job *j = (flux__attend_job *)ctx;
    bool back = j->o[FLUX__ATTEND_G] != NULL, ok = true;
    const int64_t tiles = (j->queries + j->tile - 1) / j->tile,
                  from = j->heads_whole ? 0 : task % tiles,
                  to = j->heads_whole ? tiles : from + 1,
                  unit = j->heads_whole ? task : task / tiles;
    FLUX__ZEROED(flux__attend_part, p);
    p.j = j, p.head = unit % j->heads, p.sample = unit / j->heads;
    char *memory = (char *)flux__scratch((size_t)flux__attend_memory(&p, back, NULL));
    if (memory) flux__attend_memory(&p, back, memory);
    if (memory && back && j->half >= 0)
        memset(p.sums, 0, (size_t)((j->d + j->dv) * j->keys * j->size));
    for (int64_t t = from; t < to && memory && ok; t++) {
        p.q0 = t * j->tile;
        p.n = j->queries - p.q0 < j->tile ? j->queries - p.q0 : j->tile;
        const int64_t reach = p.q0 + p.n + j->later;
        p.keys = j->causal && !j->o[FLUX__ATTEND_MASK] && reach < j->keys ? reach : j->keys;
        p.ld = flux__gemm_up(p.keys, 16);
        if (t == from) flux__attend_keys(&p, j->heads_whole ? j->keys : p.keys);
        ok = back ? flux__attend_backward(&p) : flux__attend_forward(&p);
    }
    if (!memory || !ok) flux__atomic_store32(&j->failed, 1);
    else if (back && j->half >= 0) flux__attend_narrow(&p);
    flux__scratch_done(memory);
}

/* Runs an attention kernel, forward or gradient: fills the job from the kernel's operands and
   shares its tasks out to the threads. Returns 0, or -1 with an error recorded. */
static int flux__run_attend(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    bool back = (t->arg.i[2] & FLUX__ATTEND_BACK) != 0;
    flux__attend_job j;
    memset(&j, 0, sizeof j);
    for (int i = 0; i < k->noperand; i++) {
        int at = flux__attend_operand(t->arg.i[2], i);
        j.o[at] = &k->operand[i];
        j.x[at] = flux__operand_ptr(run, j.o[at]);
    }
    j.k = k, j.out = (char *)run->ptr[run->plan->nleaf + k->node];
    j.ctype = flux__class_of(t->dtype), j.size = (int64_t)flux__class_size[j.ctype];
    j.half = flux__is_half(t->dtype) ? t->dtype : -1;
    j.stored = (int64_t)flux__dtypes[t->dtype].size;
    j.heads = t->arg.i[0], j.causal = t->arg.i[1] != 0;
    const flux_shape *q = &j.o[FLUX__ATTEND_Q]->shape, *v = &j.o[FLUX__ATTEND_V]->shape;
    j.d = q->dim[0] / j.heads, j.dv = v->dim[0] / j.heads;
    j.queries = q->dim[1], j.keys = v->dim[1], j.batch = q->dim[2];
    j.behind = flux__attend_behind(j.dv * j.heads * j.queries * j.batch, t->dtype);
    j.later = j.keys - j.queries;
    FLUX__ASSERT(j.queries > 0 && j.keys > 0 && (!j.causal || j.later >= 0));
    j.scale = 1 / sqrt((double)j.d);
    j.tile = flux__gemm_min(FLUX__ATTEND_SCORES / j.keys,
                            j.causal ? FLUX__ATTEND_CAUSAL_TILE : FLUX__ATTEND_TILE);
    if (j.tile < 32) j.tile = 32;
    j.tile = flux__gemm_split(j.queries, (j.queries + j.tile - 1) / j.tile, 4);
    const int64_t few = flux__gemm_min(j.d, j.dv), queries = flux__gemm_min(j.tile, j.queries);
    j.tiles = j.half == FLUX_BF16 && flux__amx_wants(j.keys, queries, few) &&
              flux__amx_wants(few, queries, j.keys);
    if (back && j.half < 0)
        memset(j.out + t->in[0]->dim[0] * j.queries * j.batch * j.size, 0,
               (size_t)((j.d + j.dv) * j.heads * j.keys * j.batch * j.size));
    j.heads_whole = back || (j.half >= 0 && !j.tiles &&
                             j.heads * j.batch >= 2 * flux__num_threads());
    flux__parallel(j.heads * j.batch * (j.heads_whole ? 1 : (j.queries + j.tile - 1) / j.tile),
                   flux__attend_task, &j);
    if (!j.failed) return 0;
    flux__fail("out of memory: a worker's scratch for attention");
    return -1;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_ATTENTION_H */
