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
#include "gemm_plan.h"

/* ---------------------------------------------------------------------- cpu/attention.h
   Attention on the CPU: a tile of queries at a time with all their scores, which
   stay in the second-level cache; products by flux__gemm, softmax by the loops
   of the instruction set.

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
    /* size: bytes of an element; d, dv: features of q and k, of v and y, of one head; tile:
       queries a task takes at a time */
    int64_t size, heads, d, dv, keys, queries, batch, tile;
    bool causal;                          /* query i sees the keys 0 ... i + later */
    int64_t later;                        /* how many keys more than queries there are */
    double scale;
} flux__attend_job;

typedef struct flux__attend_part {        /* a tile of queries of one head and sample */
    const flux__attend_job *j;
    /* the queries q0 ... q0+n-1, which see the keys 0 ... keys-1 at most */
    int64_t head, sample, q0, n, keys;
    int64_t ld;  /* leading dimension of s and ds: keys, filled up to whole vectors */
    /* Scratch memory. q: d x n, contiguous: the queries, scaled. s, ds: keys x n, columns ld
       apart: the scores, then the probabilities, and their gradient. column: as long as the
       larger of ld and dv. */
    char *q, *s, *ds, *column;
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
           p->j->size;
}

/* The same of a result, (heads * features) x steps x samples, contiguous, that starts at
   element `from` of the kernel's output; steps are heads * features elements apart. */
static char *flux__attend_to(const flux__attend_part *p, int64_t from, int64_t features,
                             int64_t steps, int64_t step) {
    return p->j->out + (from + p->head * features +
                        (p->sample * steps + step) * features * p->j->heads) * p->j->size;
}

/* The address of a query's two statistics behind the y of the forward kernel (`made`): its
   maximal score, and 1 / the sum of its exponentials. */
static char *flux__attend_stats(const flux__attend_part *p, const char *made, int64_t query) {
    const flux__attend_job *j = p->j;
    int64_t y = j->dv * j->heads * j->queries * j->batch;
    return (char *)(intptr_t)made +
           (y + ((p->sample * j->heads + p->head) * j->queries + query) * 2) * j->size;
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
   b_col; c: m x n, columns contiguous and ldc apart. False: out of memory. */
static bool flux__attend_product(const flux__attend_job *j, int64_t m, int64_t n, int64_t k,
                                 const char *a, int64_t a_row, int64_t a_col, const char *b,
                                 int64_t b_row, int64_t b_col, char *c, int64_t ldc, bool sum) {
    flux__attend_sum s = { j, c, ldc };
    flux__gemm_job g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.a_row = a_row, g.a_col = a_col;
    g.b = b, g.b_row = b_row, g.b_col = b_col;
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
   p->s = k' p->q (keys x n). If there is a mask or bias, the bias is added or masked scores
   become minus infinity, and so do those that causality hides (without a mask flux__attend_exp
   leaves these out). False: out of memory. */
static bool flux__attend_logits(flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    const flux__operand *o = j->o[FLUX__ATTEND_MASK];
    int64_t ld, size = j->size;
    char scale[8], none[8];
    const char *q = flux__attend_at(p, FLUX__ATTEND_Q, p->q0, &ld);
    flux__set_number(j->ctype, scale, j->scale);
    flux__identity(j->ctype, FLUX__RED_MAX, none);
    for (int64_t i = 0; i < p->n; i++)
        flux__attend_op(j, FLUX__OP_MUL, j->d, p->q + i * j->d * size, q + i * ld * size, scale, 0);
    q = flux__attend_at(p, FLUX__ATTEND_K, 0, &ld);
    if (!flux__attend_product(j, p->keys, p->n, j->d, q, ld, 1, p->q, 1, j->d, p->s, p->ld, false))
        return false;
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

/* y = v p for the part's queries. v: dv x keys, p: keys x n, y: dv x n, columns of y heads * dv
   elements apart. p is divided by its sums only in y. Stores each query's statistics for the
   gradient. False: out of memory. */
static bool flux__attend_forward(flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    int64_t size = j->size, ld, wide = j->dv * j->heads, n;
    if (!flux__attend_logits(p)) return false;
    for (int64_t i = 0; i < p->n; i++) {
        char *most = flux__attend_stats(p, j->out, p->q0 + i);
        double sum = flux__attend_exp(p, i, most, true, &n);
        flux__set_number(j->ctype, most + size, sum == 0 ? 0 : 1 / sum);
        if (j->o[FLUX__ATTEND_KEEP])
            flux__attend_dropout(p, i, p->s + i * p->ld * size, p->keys);
    }
    const char *v = flux__attend_at(p, FLUX__ATTEND_V, 0, &ld);
    char *y = flux__attend_to(p, 0, j->dv, j->queries, p->q0);
    if (!flux__attend_product(j, j->dv, p->n, p->keys, v, 1, ld, p->s, 1, p->ld, y, wide, false))
        return false;
    for (int64_t i = 0; i < p->n; i++, y += wide * size)
        flux__attend_op(j, FLUX__OP_MUL, j->dv, y, y,
                        flux__attend_stats(p, j->out, p->q0 + i) + size, 0);
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
                    size;
    flux__attend_exp(p, i, most, false, &n);   /* 0 if it sees no key: no gradient */
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
   x keys); all have columns that are heads * (d or dv) elements apart. dp = v'g, dv += g p', dk
   += q ds', dq = k ds, with q scaled before and dq scaled after. False: out of memory. */
static bool flux__attend_backward(flux__attend_part *p) {
    const flux__attend_job *j = p->j;
    int64_t size = j->size, ldv, ldk, ldg, dk = j->d * j->heads * j->queries * j->batch,
            dv = dk + j->d * j->heads * j->keys * j->batch;
    const char *k = flux__attend_at(p, FLUX__ATTEND_K, 0, &ldk),
               *v = flux__attend_at(p, FLUX__ATTEND_V, 0, &ldv),
               *g = flux__attend_at(p, FLUX__ATTEND_G, p->q0, &ldg);
    char scale[8], *dq = flux__attend_to(p, 0, j->d, j->queries, p->q0);
    flux__set_number(j->ctype, scale, j->scale);
    if (!flux__attend_logits(p) ||
        !flux__attend_product(j, p->keys, p->n, j->dv, v, ldv, 1, g, 1, ldg, p->ds, p->ld, false))
        return false;
    for (int64_t i = 0; i < p->n; i++) flux__attend_column(p, i, g + i * ldg * size);
    /* dk and dv hold zeros: the first tile stores if it sees all keys, and adds otherwise */
    bool sum = p->q0 > 0 || p->keys < j->keys;
    bool ok = flux__attend_product(j, j->dv, p->keys, p->n, g, 1, ldg, p->s, p->ld, 1,
                                   flux__attend_to(p, dv, j->dv, j->keys, 0), j->dv * j->heads,
                                   sum) &&
              flux__attend_product(j, j->d, p->keys, p->n, p->q, 1, j->d, p->ds, p->ld, 1,
                                   flux__attend_to(p, dk, j->d, j->keys, 0), j->d * j->heads,
                                   sum) &&
              flux__attend_product(j, j->d, p->n, p->keys, k, 1, ldk, p->ds, 1, p->ld, dq,
                                   j->d * j->heads, false);
    for (int64_t i = 0; i < p->n && ok; i++, dq += j->d * j->heads * size)
        flux__attend_op(j, FLUX__OP_MUL, j->d, dq, dq, scale, 0);
    return ok;
}

/* Runs one task: one tile of queries of one head and sample; in the gradient all tiles of it
   one after the other, so that the sums for dk and dv have one order. Takes the scratch memory
   of the part. */
static void flux__attend_task(void *ctx, int64_t task) {
    flux__attend_job *j = (flux__attend_job *)ctx;
    bool back = j->o[FLUX__ATTEND_G] != NULL, ok = true;
    int64_t tiles = (j->queries + j->tile - 1) / j->tile, from = back ? 0 : task % tiles,
            to = back ? tiles : from + 1, unit = back ? task : task / tiles;
    int64_t ld = flux__gemm_up(j->keys, 16), column = ld > j->dv ? ld : j->dv,
            scores = j->tile * ld;
    int64_t queries = flux__gemm_up(j->tile * j->d, 16),
            capacity = queries + scores * (back ? 2 : 1) + column;
    flux__attend_part p = { j, unit % j->heads, unit / j->heads, 0, 0, 0, 0, NULL, NULL, NULL,
                            NULL };
    p.s = (char *)flux__scratch((size_t)(capacity * j->size));
    p.ds = p.s ? p.s + (back ? scores * j->size : 0) : NULL;
    p.q = p.s ? p.ds + scores * j->size : NULL;
    p.column = p.s ? p.q + queries * j->size : NULL;
    for (int64_t t = from; t < to && p.s && ok; t++) {
        p.q0 = t * j->tile;
        p.n = j->queries - p.q0 < j->tile ? j->queries - p.q0 : j->tile;
        const int64_t reach = p.q0 + p.n + j->later;
        p.keys = j->causal && !j->o[FLUX__ATTEND_MASK] && reach < j->keys ? reach : j->keys;
        p.ld = flux__gemm_up(p.keys, 16);
        ok = back ? flux__attend_backward(&p) : flux__attend_forward(&p);
    }
    if (!p.s || !ok) flux__atomic_store32(&j->failed, 1);
    flux__scratch_done(p.s);
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
    j.heads = t->arg.i[0], j.causal = t->arg.i[1] != 0;
    const flux_shape *q = &j.o[FLUX__ATTEND_Q]->shape, *v = &j.o[FLUX__ATTEND_V]->shape;
    j.d = q->dim[0] / j.heads, j.dv = v->dim[0] / j.heads;
    j.queries = q->dim[1], j.keys = v->dim[1], j.batch = q->dim[2];
    j.later = j.keys - j.queries;
    FLUX__ASSERT(j.queries > 0 && j.keys > 0 && (!j.causal || j.later >= 0));
    j.scale = 1 / sqrt((double)j.d);
    j.tile = flux__gemm_min(FLUX__ATTEND_SCORES / j.keys,
                            j.causal ? FLUX__ATTEND_CAUSAL_TILE : FLUX__ATTEND_TILE);
    if (j.tile < 32) j.tile = 32;
    j.tile = flux__gemm_split(j.queries, (j.queries + j.tile - 1) / j.tile, 4);
    if (back)
        memset(j.out + t->in[0]->dim[0] * j.queries * j.batch * j.size, 0,
               (size_t)((j.d + j.dv) * j.heads * j.keys * j.batch * j.size));
    flux__parallel(j.heads * j.batch * (back ? 1 : (j.queries + j.tile - 1) / j.tile),
                   flux__attend_task, &j);
    if (!j.failed) return 0;
    flux__fail("out of memory: a worker's scratch for attention");
    return -1;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_ATTENTION_H */
