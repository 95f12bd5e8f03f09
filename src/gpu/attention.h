#ifndef FLUX__GPU_ATTENTION_H
#define FLUX__GPU_ATTENTION_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/attention.h"
#include "../schedule/kernel.h"
#include "../schedule/program.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "gemm.h"

/* ---------------------------------------------------------------------- gpu/attention.h
   The text of attention's kernels without matrix instructions: of f64, of f32 at
   its own accuracy, and of chips that have none. A block of 128 or 256 threads has a
   tile of scores whose rows are what its results belong to: the queries or, in the
   gradients of k and v, the keys; a loop goes over the columns, which are the other
   of the two. The passes and their operands are those of gpu/attention_mma.h:

       pass      x1   c1   x2   c2    s = x1 c1'   g = x2 c2'
       y         q    k    -    v     sum2 += p c2
       dq        q    k    dy   v     sum1 += w c1
       dk, dv    k    q    v    dy    sum1 += w c1, sum2 += p c2

   p: the softmax's weights; w = p (g - dot(dy, y)). A thread has a piece of the tile
   in registers, so that packs of 16 bytes from shared memory serve several products
   each. What is multiplied lies there by the inner dim first, whose lines are
   swizzled (AT) so that neither side meets in a bank.

   Layout: q, k, v and the result's gradient are [features * heads, positions,
   batch], features contiguous, with strides of their own for position and sample.
   Results are contiguous in the same order, and of the same dtype. A mask is [key,
   query, head, sample] by any strides. A unit is one head of one sample.

   Invariant: scores are not stored in device memory. The forward kernel keeps
   each query's running maximum and sum (online softmax), and writes the maximum
   and the sum's reciprocal behind its result; the gradients read them and compute
   each tile's weights again. dq has a launch of its own, so no two blocks add to one
   element and sums have one order. A query whose keys are all masked has the result
   0, and its scores get no gradient. Tiles that a causal mask hides altogether are
   skipped, unless there is another mask. */

FLUX__BEGIN_LEAN

enum { FLUX__ATTEND_FEATURES = 64,        /* of a result that a block computes */
       FLUX__ATTEND_PAD = 128 };          /* queries of a unit in scratch memory: a multiple */

typedef struct flux__attend_text {
    flux__emitter *c;
    const char *T, *X;                    /* the type and its name in functions: "float", "f32" */
    /* operands, by FLUX__ATTEND_Q ...; NULL: the kernel has none */
    const flux__operand *o[FLUX__ATTEND_OPERANDS];
    int p[FLUX__ATTEND_OPERANDS], out;    /* parameters of these, and of what is computed */
    int dtype;                            /* of q, k, v and what is stored */
    int64_t heads, d, dv, queries, keys, batch;   /* d: features of a head in q and k; dv: in v */
    bool causal, roomy;                   /* roomy: registers hold pieces of 8 rows, else of 4 */
} flux__attend_text;

/* Writes to `out` the expression "p2[...]", of half formats "f16_float(p2[...])": feature f of the
   unit at position `step` of operand i. */
static const char *flux__attend_element(const flux__attend_text *a, int i, const char *step,
                                        const char *f, char *out, size_t n) {
    const flux__operand *o = a->o[i];
    const char *wide = o->dtype == FLUX_F16 ? "f16_float"
                       : o->dtype == FLUX_BF16 ? "bf16_float" : "";
    snprintf(out, n, "%s(p%d[%lld + head * %lld + (%s) * %lld + sample * %lld + %s])", wide,
             a->p[i], (long long)o->offset, (long long)(o->shape.dim[0] / a->heads), step,
             (long long)o->stride[1], (long long)o->stride[2], f);
    return out;
}

/* The type of what is stored. */
static const char *flux__attend_stored(const flux__attend_text *a) {
    return flux__dtype_types[a->dtype];
}

/* Where the forward vector's maxima and sums begin, in numbers of the type T. */
static long long flux__attend_stats_at(const flux__attend_text *a) {
    const int64_t n = a->dv * a->heads * a->queries * a->batch;
    return (long long)(flux__attend_behind(n, a->dtype) / (flux__is_half(a->dtype) ? 2 : 1));
}

/* Emits a store to `to` of n neighbours, v[0] ...: 1, or so many that they are at most 16 bytes and
   aligned. */
static void flux__emit_attend_put(const flux__attend_text *a, int n) {
    flux__listing *s = &a->c->s;
    const char *half = a->dtype == FLUX_F16 ? "f16" : a->dtype == FLUX_BF16 ? "bf16" : NULL;
    if (n == 1) {
        flux__emit(s, half ? "    *to = float_%s(v[0]);\n" : "    *to = v[0];\n", half);
        return;
    }
    const bool wide = a->T[0] != 'f';
    const int words = half ? n / 2 : n;
    char type[16];
    snprintf(type, sizeof type, wide ? "double_pack" : "words%d", words);
    flux__emit(s, "    %s w;\n    FULLY\n    for (int q = 0; q < %d; q++) w.x[q] = ", type, words);
    if (half) flux__emit(s, "pair_%s(v[2 * q], v[2 * q + 1])", half);
    else flux__emit(s, wide ? "v[q]" : "BITS_OF(v[q])");
    flux__emit(s, ";\n    *(%s *)to = w;\n", type);
}

/* Writes "p5[...]": the element of a mask, FLUX__ATTEND_MASK or FLUX__ATTEND_KEEP, for `key` and
   the index `query`. */
static void flux__emit_attend_mask(const flux__attend_text *a, int which, const char *query) {
    const flux__operand *o = a->o[which];
    flux__emit(&a->c->s, "p%d[%lld + key * %lld + %s * %lld + head * %lld + sample * %lld]",
               a->p[which], (long long)o->offset, (long long)o->stride[0], query,
               (long long)o->stride[1], (long long)o->stride[2], (long long)o->stride[3]);
}

/* Whether rows of operand i are whole, aligned chunks of 16 bytes. */
static bool flux__attend_whole(const flux__attend_text *a, int i, int size) {
    const flux__operand *o = a->o[i];
    const int64_t n[] = { o->shape.dim[0] / a->heads, o->offset, o->stride[1], o->stride[2] };
    for (int j = 0; j < 4; j++)
        if (n[j] * size % 16 != 0 && (j < 2 || o->shape.dim[j - 1] > 1)) return false;
    return true;
}

/* What the texts of attention's node t need to know of it. */
static flux__attend_text flux__attend_of(flux__emitter *c, const flux_tensor *t, int out) {
    const flux__kernel *k = c->k;
    flux__attend_text a;
    memset(&a, 0, sizeof a);
    const int wide = (int)flux__attend_wide(t);
    a.c = c, a.T = flux__dtype_types[wide], a.X = flux__class_names[flux__class_of(wide)];
    a.dtype = t->dtype;
    for (int i = 0; i < k->noperand; i++) {
        int at = flux__attend_operand(t->arg.i[2], i);
        a.o[at] = &k->operand[i];
        a.p[at] = flux__emitter_slot(c, a.o[at]->src, a.o[at]->dtype);
    }
    a.out = flux__emitter_slot(c, out, t->dtype);
    a.heads = t->arg.i[0], a.causal = t->arg.i[1] != 0;
    const flux_shape *q = &a.o[FLUX__ATTEND_Q]->shape, *v = &a.o[FLUX__ATTEND_V]->shape;
    a.d = q->dim[0] / a.heads, a.dv = v->dim[0] / a.heads;
    a.queries = q->dim[1], a.keys = v->dim[1], a.batch = q->dim[2];
    return a;
}

/* Adds to `dot` a lane's part of dot(dy, y): of half formats four neighbours at a time, where they
   are whole chunks. */
static void flux__emit_attend_dot(const flux__attend_text *a) {
    flux__listing *s = &a->c->s;
    const char *half = a->dtype == FLUX_F16 ? "f16" : "bf16";
    const bool fours = flux__is_half(a->dtype) && a->dv % 4 == 0 &&
                       flux__attend_whole(a, FLUX__ATTEND_G, 2);
    char g[200], y[200];
    flux__attend_element(a, FLUX__ATTEND_G, "i", "f", g, sizeof g);
    snprintf(y, sizeof y, "p%d[((sample * %lld + i) * %lld + head) * %lld + f]",
             a->p[FLUX__ATTEND_MADE], (long long)a->queries, (long long)a->heads,
             (long long)a->dv);
    if (fours)
        flux__emit(s, "    for (int f = f0 * 4; f < %lld; f += 64) {\n"
                   "    const words2 g = *(const words2 *)&%s, y = *(const words2 *)&%s;\n"
                   "    FULLY\n    for (int q = 0; q < 4; q++) dot = fmaf("
                   "%s_float((unsigned short)(g.x[q / 2] >> q %% 2 * 16)), "
                   "%s_float((unsigned short)(y.x[q / 2] >> q %% 2 * 16)), dot);\n    }\n",
                   (long long)a->dv, strchr(g, '('), y, half, half);
    else {
        flux__emit(s, "    for (int f = f0; f < %lld; f += 16) dot = fma%s(%s, ",
                   (long long)a->dv, a->T[0] == 'f' ? "f" : "", g);
        flux__emit_loaded(s, a->dtype, y);
        flux__emit(s, ", dot);\n");
    }
}

/* The launch before the gradients. Of each query, with `plain`: its maximum, or 0 if it sees no
   key, the reciprocal of its sum, and dot(dy, y), of 4 numbers; else the logarithm, to base 2, of
   its softmax's sum, infinite if it sees no key, and dot(dy, y). 16 threads have a query. */
static bool flux__code_attend_dots(const flux__attend_text *a, int scratch, bool plain) {
    flux__emitter *c = a->c;
    flux__listing *s = &c->s;
    const int64_t units = a->heads * a->batch, queries = (a->queries + FLUX__ATTEND_PAD - 1) /
                                                          FLUX__ATTEND_PAD * FLUX__ATTEND_PAD;
    flux__emit(s, "    const int t = (int)threadIdx.x, f0 = t %% 16;\n");
    flux__emit_unit(c, "unit", units, "");
    flux__emit(s, "    const %s head = unit %% %lld, sample = unit / %lld, "
                "i = (%s)blockIdx.x * 16 + t / 16;\n    %s dot = 0, most = %s, rest = 0;\n",
                c->index, (long long)a->heads, (long long)a->heads, c->index, a->T,
                plain ? "0" : "INF");
    flux__emit(s, "    if (i < %lld) {\n", (long long)a->queries);
    flux__emit_attend_dot(a);
    flux__emit(s, "    const %s *const stat = (const %s *)p%d + "
                "(%lld + (unit * %lld + i) * 2);\n"
                "    rest = stat[1];\n    if (rest != 0) most = %s;\n    }\n", a->T, a->T,
                a->p[FLUX__ATTEND_MADE], flux__attend_stats_at(a), (long long)a->queries,
                plain ? "stat[0]" : "fmaf(stat[0], 1.44269504f, -log2f(rest))");
    flux__emit(s, "    for (int w = 8; w; w /= 2) dot += ACROSS(dot, w);\n"
                "    %s *const to = (%s *)p%d + (unit * %lldLL + i) * %d;\n"
                "    if (f0 == 0) to[0] = most, %s = dot;\n    }\n", a->T, a->T, scratch,
                (long long)queries, plain ? 4 : 2, plain ? "to[1] = rest, to[2]" : "to[1]");
    c->gk->next.threads = 256, c->gk->next.blocks = 2;
    c->gk->next.grid[0] = (unsigned)(queries / 16);
    c->gk->next.grid[1] = (unsigned)(units < 65535 ? units : 65535);
    return flux__emitter_finish(c);
}

/* A pass, and how a block's threads share it: `side / tall` x 16 of them have `tall` x `pack`
   scores each of `side` x `side`, and of sums as many rows and 4 features. */
typedef struct flux__attend_tile {
    const flux__attend_text *a;
    bool forward, by_keys;                /* rows are keys */
    int x1, c1, x2, c2;                   /* operands by their number in flux__attend_text */
    int side, tall, pack, threads;        /* pack: elements of 16 bytes */
    int64_t limit, columns, at1, at2;     /* rows and columns of a unit; where results begin */
    int scratch;                          /* the parameter of scratch memory */
} flux__attend_tile;

static flux__attend_tile flux__attend_tile_of(const flux__attend_text *a, bool forward,
                                              bool by_keys) {
    flux__attend_tile p;
    memset(&p, 0, sizeof p);
    p.a = a, p.forward = forward, p.by_keys = by_keys;
    p.x1 = by_keys ? FLUX__ATTEND_K : FLUX__ATTEND_Q;
    p.c1 = by_keys ? FLUX__ATTEND_Q : FLUX__ATTEND_K;
    p.x2 = by_keys ? FLUX__ATTEND_V : FLUX__ATTEND_G;
    p.c2 = by_keys ? FLUX__ATTEND_G : FLUX__ATTEND_V;
    p.pack = a->T[0] == 'f' ? 4 : 2;
    p.side = 16 * p.pack, p.tall = a->roomy ? 2 * p.pack : p.pack;
    p.threads = 16 * p.side / p.tall;
    p.limit = by_keys ? a->keys : a->queries, p.columns = by_keys ? a->queries : a->keys;
    return p;
}

/* How many features of operand i are multiplied at a time. */
static int flux__attend_depth(const flux__attend_tile *p, int i) {
    const int64_t d = (p->a->o[i]->shape.dim[0] / p->a->heads + 15) / 16 * 16;
    return d < p->side ? (int)d : p->side;
}

/* Loads `side` positions of operand i, from position `from` on, to `to` in shared memory: `turned`,
   features from l0 on come first, else as they lie and from e0 on. Eight lanes' positions and four
   lanes' features reach all banks; the others have more positions or, behind the last, features.
   Beyond the operand are zeros. */
static void flux__emit_attend_fetch(const flux__attend_tile *p, int i, const char *from,
                                    const char *to, bool turned) {
    const flux__attend_text *a = p->a;
    const flux__operand *o = a->o[i];
    flux__listing *s = &a->c->s;
    const bool whole = !flux__is_half(o->dtype) && flux__attend_whole(a, i, 16 / p->pack);
    const int chunk = whole ? p->pack : 1,
        span = p->threads / 4 < p->side ? p->threads / 4 : p->side, rows = p->side / span,
        wide = turned ? flux__attend_depth(p, i) : FLUX__ATTEND_FEATURES, per = wide / chunk,
        turns = p->side * per / p->threads;
    const long long all = (long long)(o->shape.dim[0] / a->heads),
        positions = (long long)o->shape.dim[1];
    /* e0 goes over the features of keys or of values, whichever are more */
    const bool beyond = !turned && all < (long long)(a->d > a->dv ? a->d : a->dv);
    const char *const first = turned ? "l0" : "e0";
    char step[40], x[200], f[40];
    if (turned) flux__emit(s, "    {\n    const int i0 = t %% 8 + t / 32 %% %d * 8, "
                            "n0 = (t / 8 %% 4 + t / %d * 4) * %d;\n", span / 8, 4 * span, chunk);
    else flux__emit(s, "    {\n    const int i0 = t / %d, n0 = t %% %d * %d;\n", per, per, chunk);
    snprintf(step, sizeof step, "%s + i0", from);
    snprintf(f, sizeof f, "%s + n0", first);
    flux__attend_element(a, i, step, f, x, sizeof x);
    flux__emit(s, "    const %s *const at = &%s;\n", flux__dtype_types[o->dtype], strchr(x, '('));
    flux__emit(s, "#pragma unroll %d\n    for (int u = 0; u < %d; u++) {\n",
                p->by_keys ? 2 : 4, turns);
    if (turned) flux__emit(s, "    const int i = u %% %d * %d, n = u / %d * %d;\n", rows, span,
                            rows, p->threads / span * chunk);
    else flux__emit(s, "    const int i = u * %d, n = 0;\n", p->threads / per);
    flux__emit(s, "    const int live = 1");
    if (positions % p->side != 0) flux__emit(s, " && %s + i < %lld", step, positions);
    if (all % wide != 0 || beyond) flux__emit(s, " && %s + n < %lld", f, all);
    snprintf(x, sizeof x, "at[i * %lld + n]", (long long)o->stride[1]);
    flux__emit(s, ";\n    %s *const into = %s + ", a->T, to);
    if (turned) flux__emit(s, "(AT(n0 + n, i0 / %d) + i0 %% %d + i);\n", p->pack, p->pack);
    else flux__emit(s, "((i0 + i) * %d + n0);\n", FLUX__ATTEND_FEATURES);
    if (whole) flux__emit(s, "    %s_pack v;\n    if (live) v = *(const %s_pack *)&%s;\n"
                           "    else FULLY for (int q = 0; q < %d; q++) v.x[q] = 0;\n", a->T, a->T,
                           x, chunk);
    else {
        flux__emit(s, "    *into = live ? ");
        flux__emit_loaded(s, o->dtype, x);
        flux__emit(s, " : 0;\n");
    }
    if (whole && turned) flux__emit(s, "    FULLY\n    for (int q = 0; q < %d; q++) "
                                     "into[q * %d] = v.x[q];\n", chunk, p->side);
    else if (whole) flux__emit(s, "    *(%s_pack *)into = v;\n", a->T);
    flux__emit(s, "    }\n    }\n");
}

/* Adds to `sum` the product, over `inner` terms, of the tile `rows`, turned, and what is in
   c_tile, turned or, of `features`, as it lies. */
static void flux__emit_attend_multiply(const flux__attend_tile *p, const char *sum,
                                       const char *rows, bool features, int inner) {
    flux__listing *s = &p->a->c->s;
    const char *T = p->a->T;
    const int wide = features ? 4 : p->pack, V = p->pack, tall = p->tall / V;
    /* Of 16 steps a turn needs most registers; a loop of one turn would be none, so that compilers
       move its loads, and what follows, to where there are none left. */
    const int step = inner > 16 && (features || !p->by_keys) ? 16 : 8;
    const char *const turn = step == 16 ? "u / 4" : "(l1 + u) / 4 % 4";
    flux__emit(s, "#pragma unroll 1\n    for (int l1 = 0; l1 < %d; l1 += %d)\n    FULLY\n"
                "    for (int u = 0; u < %d; u++) {\n    const int l = l1 + u;\n"
                "    %s_pack x[%d], y[%d];\n    FULLY\n    for (int i = 0; i < %d; i++) "
                "x[i] = *(const %s_pack *)(%s + l * %d + ((ty ^ %s * %d) * %d + i) * %d);\n", inner,
                step, step, T, tall, wide / V, tall, T, rows, p->side, turn, 2 / tall, tall, V);
    if (features) flux__emit(s, "    FULLY\n    for (int j = 0; j < %d; j++) y[j] = "
                              "*(const %s_pack *)(c_tile + l * %d + (j * 16 + tx) * %d);\n",
                              wide / V, T, FLUX__ATTEND_FEATURES, V);
    else flux__emit(s, "    y[0] = *(const %s_pack *)(c_tile + l * %d + (tx ^ %s * 2) * %d);\n",
                     T, p->side, turn, V);
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int j = 0; j < %d; j++) %s[i][j] = fma%s(x[i / %d].x[i %% %d], "
                "y[j / %d].x[j %% %d], %s[i][j]);\n    }\n", p->tall, wide, sum,
                T[0] == 'f' ? "f" : "", V, V, V, V, sum);
}

/* Declares `sum`: dot products, over the features, of operand i at the rows with operand k at the
   columns. `kept`: the rows are in x_tile already. */
static void flux__emit_attend_product(const flux__attend_tile *p, const char *sum, int i, int k,
                                      bool kept) {
    flux__listing *s = &p->a->c->s;
    const long long all = (long long)(p->a->o[i]->shape.dim[0] / p->a->heads);
    const int depth = flux__attend_depth(p, i);
    flux__emit(s, "    %s %s[%d][%d] = { 0 };\n", p->a->T, sum, p->tall, p->pack);
    if (all > depth) flux__emit(s, "#pragma unroll 1\n"
                                 "    for (int l0 = 0; l0 < %lld; l0 += %d) {\n", all, depth);
    else flux__emit(s, "    {\n    const int l0 = 0;\n");
    flux__emit(s, "    __syncthreads();\n");
    if (!kept) flux__emit_attend_fetch(p, i, "r0", "x_tile", true);
    flux__emit_attend_fetch(p, k, "c0", "c_tile", true);
    flux__emit(s, "    __syncthreads();\n");
    flux__emit_attend_multiply(p, sum, "x_tile", false, depth);
    flux__emit(s, "    }\n");
}

/* Adds to `sum` the product of the weights `w` and operand k at the columns. */
static void flux__emit_attend_add(const flux__attend_tile *p, const char *sum, const char *w,
                                  int k) {
    flux__listing *s = &p->a->c->s;
    flux__emit(s, "    __syncthreads();\n    FULLY\n    for (int j = 0; j < %d; j++)\n    FULLY\n"
                "    for (int i = 0; i < %d; i++) {\n    %s_pack v;\n    FULLY\n"
                "    for (int q = 0; q < %d; q++) v.x[q] = %s[i * %d + q][j];\n", p->pack,
                p->tall / p->pack, p->a->T, p->pack, w, p->pack);
    flux__emit(s, "    *(%s_pack *)(w_tile + AT(tx * %d + j, ty * %d + i)) = v;\n    }\n", p->a->T,
                p->pack, p->tall / p->pack);
    flux__emit_attend_fetch(p, k, "c0", "c_tile", false);
    flux__emit(s, "    __syncthreads();\n");
    flux__emit_attend_multiply(p, sum, "w_tile", true, p->side);
}

/* Begins loops over a thread's scores [i][j], each with its key and query. */
static void flux__emit_attend_scores(const flux__attend_tile *p) {
    flux__emit(&p->a->c->s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int j = 0; j < %d; j++) {\n    const %s row = r0 + ty * %d + i, "
                "col = c0 + tx * %d + j, key = %s, query = %s;\n", p->tall, p->pack, p->a->c->index,
                p->tall, p->pack, p->by_keys ? "row" : "col", p->by_keys ? "col" : "row");
}

/* Scales the scores s and masks them, in tiles that have something to mask. */
static void flux__emit_attend_seen(const flux__attend_tile *p) {
    const flux__attend_text *a = p->a;
    const flux__operand *o = a->o[FLUX__ATTEND_MASK];
    flux__listing *s = &a->c->s;
    const long long later = (long long)(a->keys - a->queries), side = p->side,
        columns = (long long)p->columns;
    const bool tail = !p->by_keys && columns % side != 0;
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int j = 0; j < %d; j++) s[i][j] *= (%s)%.17g;\n", p->tall, p->pack, a->T,
                1 / sqrt((double)a->d));
    if (!o && !tail && !a->causal) return;
    if (!o && !a->causal) flux__emit(s, "    if (c0 + %lld > %lld) {\n", side, columns);
    else if (!o) flux__emit(s, "    if (%s + %lld > %s + %lld || (%d && c0 + %lld > %lld)) {\n",
                             p->by_keys ? "r0" : "c0", side - 1, p->by_keys ? "c0" : "r0", later,
                             tail, side, columns);
    else flux__emit(s, "    {\n");
    flux__emit_attend_scores(p);
    if (o) {
        flux__emit(s, "    if (row < %lld && col < %lld) s[i][j] = ", (long long)p->limit, columns);
        flux__emit(s, o->dtype == FLUX_BOOL ? "" : "s[i][j] + ");
        flux__emit_attend_mask(a, FLUX__ATTEND_MASK, "query");
        flux__emit(s, o->dtype == FLUX_BOOL ? " ? s[i][j] : -INF;\n" : ";\n");
    }
    if (a->causal) flux__emit(s, "    if (key > query + %lld) s[i][j] = -INF;\n", later);
    if (tail) flux__emit(s, "    if (col >= %lld) s[i][j] = -INF;\n", columns);
    flux__emit(s, "    }\n    }\n");
}

/* Makes 0 of the numbers `v` that dropout drops. */
static void flux__emit_attend_drop(const flux__attend_tile *p, const char *v) {
    flux__listing *s = &p->a->c->s;
    if (!p->a->o[FLUX__ATTEND_KEEP]) return;
    flux__emit_attend_scores(p);
    flux__emit(s, "    if (row < %lld && col < %lld && !", (long long)p->limit,
                (long long)p->columns);
    flux__emit_attend_mask(p->a, FLUX__ATTEND_KEEP, "query");
    flux__emit(s, ") %s[i][j] = 0;\n    }\n", v);
}

/* The forward pass over a tile: the running maximum and sum of each row, whose maximum 16 lanes
   join by shuffles, and sum2, which shrinks where the maximum grows. */
static void flux__emit_attend_forward(const flux__attend_tile *p) {
    flux__listing *s = &p->a->c->s;
    const char *f = p->a->T[0] == 'f' ? "f" : "";
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++) {\n    %s top = most[i];\n"
                "    FULLY\n    for (int j = 0; j < %d; j++) top = fmax%s(top, s[i][j]);\n"
                "    FULLY\n    for (int q = 1; q < 16; q *= 2) "
                "top = fmax%s(top, ACROSS(top, q));\n", p->tall, p->a->T, p->pack, f, f);
    flux__emit(s, "    const %s base = top == -INF ? 0 : top, fade = EXP(most[i] - base);\n"
                "    most[i] = top, all[i] *= fade;\n    FULLY\n    for (int j = 0; j < %d; j++) "
                "s[i][j] = EXP(s[i][j] - base), all[i] += s[i][j];\n    FULLY\n"
                "    for (int j = 0; j < 4; j++) sum2[i][j] *= fade;\n    }\n", p->a->T, p->pack);
    flux__emit_attend_drop(p, "s");
    flux__emit_attend_add(p, "sum2", "s", p->c2);
}

/* A backward pass over a tile: p in s, and w in g. */
static void flux__emit_attend_backward(const flux__attend_tile *p) {
    flux__listing *s = &p->a->c->s;
    const char outer = p->by_keys ? 'j' : 'i', inner = p->by_keys ? 'i' : 'j';
    const int count = p->by_keys ? p->pack : p->tall;
    const char *const none = p->a->o[FLUX__ATTEND_MASK] ? "stat[1] == 0 ? 0 : " : "";
    flux__emit_attend_drop(p, "g");
    flux__emit(s, "    FULLY\n    for (int %c = 0; %c < %d; %c++) {\n"
                "    const %s *const stat = query_at + (%s * %d + %c) * 4;\n", outer, outer, count,
                outer, p->a->T, p->by_keys ? "c0 + tx" : "r0 + ty", count, outer);
    flux__emit(s, "    FULLY\n    for (int %c = 0; %c < %d; %c++) {\n"
                "    s[i][j] = EXP(s[i][j] - stat[0]) * stat[1];\n"
                "    g[i][j] = %ss[i][j] * (g[i][j] - stat[2]);\n    }\n    }\n", inner, inner,
                p->by_keys ? p->tall : p->pack, inner, none);
    if (p->by_keys) {
        flux__emit_attend_drop(p, "s");
        flux__emit_attend_add(p, "sum2", "s", p->c2);
    }
    flux__emit_attend_add(p, "sum1", "g", p->c1);
}

/* Stores sum1 or sum2, times `by`, to the result that begins at `at` of the output. */
static void flux__emit_attend_store(const flux__attend_tile *p, bool one, const char *by,
                                    int64_t at) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    const long long features = (long long)(one ? a->d : a->dv);
    const int V = features % p->pack == 0 && at % p->pack == 0 ? p->pack : 1;
    const char name = one ? '1' : '2';
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int j = 0; j < 4; j += %d) {\n    const %s row = r0 + ty * %d + i, "
                "f = e0 + (j / %d * 16 + tx) * %d + j %% %d;\n", p->tall, V, a->c->index, p->tall,
                p->pack, p->pack, p->pack);
    flux__emit(s, "    if (row >= %lld || f >= %lld) continue;\n    %s *const to = p%d + (%lld + "
                "((sample * %lld + row) * %lld + head) * %lld + f);\n", (long long)p->limit,
                features, flux__attend_stored(a), a->out, (long long)at, (long long)p->limit,
                (long long)a->heads, features);
    flux__emit(s, "    %s v[%d];\n    FULLY\n    for (int q = 0; q < %d; q++) "
                "v[q] = sum%c[i][j + q] * %s;\n", a->T, V, V, name, by);
    flux__emit_attend_put(a, V);
    flux__emit(s, "    }\n");
}

/* The end of the forward pass: y, and behind it each query's maximum and the reciprocal of its
   sum, which is 0 if it sees no key. */
static void flux__emit_attend_result(const flux__attend_tile *p) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++) {\n    FULLY\n"
                "    for (int q = 1; q < 16; q *= 2) all[i] += ACROSS(all[i], q);\n"
                "    all[i] = all[i] == 0 ? 0 : 1 / all[i];\n", p->tall);
    flux__emit(s, "    const %s row = r0 + ty * %d + i;\n    if (e0 > 0 || tx > 0 || row >= %lld) "
                "continue;\n    %s *const to = (%s *)p%d + (%lld + (unit * %lld + row) * 2);\n"
                "    to[0] = most[i], to[1] = all[i];\n    }\n", a->c->index, p->tall,
                (long long)a->queries, a->T, a->T, a->out, flux__attend_stats_at(a),
                (long long)a->queries);
    flux__emit_attend_store(p, false, "all[i]", 0);
}

/* What a pass begins with: its place and sums of 0. Blocks along x are tiles of rows, of a causal
   pass those with most columns first, times chunks of features. */
static void flux__emit_attend_begin(const flux__attend_tile *p, bool kept) {
    const flux__attend_text *a = p->a;
    flux__emitter *c = a->c;
    flux__listing *s = &c->s;
    const long long tiles = (long long)((p->limit + p->side - 1) / p->side);
    const char *const last = a->causal && !p->by_keys ? "last - " : "";
    flux__emit(s, "    __shared__ ALIGN16 %s x_tile[%d], c_tile[%d]", a->T, p->side * p->side,
                p->side * FLUX__ATTEND_FEATURES);
    if (kept) flux__emit(s, ", w_tile[%d];\n", p->side * p->side);
    else flux__emit(s, ";\n    %s *const w_tile = x_tile;\n", a->T);
    flux__emit(s, "#define AT(i, pack) ((i) * %d + ((pack) ^ (i) / 4 %% 4 * 2) * %d)\n"
                "#define EXP(x) %s\n    const int t = (int)threadIdx.x, tx = t %% 16, "
                "ty = t / 16;\n", p->side, p->pack,
                a->T[0] == 'f' ? "near_exp2((x) * 1.44269504f)" : "exp(x)");
    flux__emit_unit(c, "unit", a->heads * a->batch, "");
    flux__emit(s, "    const %s last = %lld, r0 = (%s(%s)(blockIdx.x %% %lldu)) * %d, "
                "e0 = (%s)(blockIdx.x / %lldu) * %d, head = unit %% %lld, sample = unit / %lld;\n",
                c->index, tiles - 1, last, c->index, tiles, p->side, c->index, tiles,
                FLUX__ATTEND_FEATURES, (long long)a->heads, (long long)a->heads);
    if (!p->forward)
        flux__emit(s, "    const %s *const query_at = (const %s *)p%d + unit * %lldLL;\n"
                    "    %s sum1[%d][4] = { 0 };\n", a->T, a->T, p->scratch,
                    (long long)((a->queries + FLUX__ATTEND_PAD - 1) / FLUX__ATTEND_PAD *
                                FLUX__ATTEND_PAD * 4), a->T, p->tall);
    if (p->forward || p->by_keys) flux__emit(s, "    %s sum2[%d][4] = { 0 };\n", a->T, p->tall);
    if (p->forward)
        flux__emit(s, "    %s most[%d], all[%d] = { 0 };\n    FULLY\n"
                    "    for (int i = 0; i < %d; i++) most[i] = -INF;\n", a->T, p->tall, p->tall,
                    p->tall);
    if (!kept) return;
    flux__emit(s, "    {\n    const int l0 = 0;\n");
    flux__emit_attend_fetch(p, p->x1, "r0", "x_tile", true);
    flux__emit(s, "    }\n");
}

/* The text of a pass. */
static bool flux__code_attend_tile(const flux__attend_tile *p) {
    const flux__attend_text *a = p->a;
    flux__emitter *c = a->c;
    flux__listing *s = &c->s;
    const bool mask = a->o[FLUX__ATTEND_MASK] != NULL, skip = a->causal && !mask,
        kept = p->forward && a->d <= p->side;
    const long long later = (long long)(a->keys - a->queries);
    const int64_t tiles = (p->limit + p->side - 1) / p->side, units = a->heads * a->batch,
        most = p->forward || (p->by_keys && a->dv > a->d) ? a->dv : a->d;
    flux__emit_attend_begin(p, kept);
    /* causal: of the tiles of keys those that a query of the rows sees; of the tiles of queries
       those from the first that sees key r0 */
    char first[96] = "0", end[96] = "";
    if (skip && p->by_keys)
        snprintf(first, sizeof first, "r0 > %lld ? (r0 - %lld) / %d * %d : 0", later, later,
                 p->side, p->side);
    if (skip && !p->by_keys) snprintf(end, sizeof end, " && c0 < r0 + %lld", later + p->side);
    flux__emit(s, "#pragma unroll 1\n    for (%s c0 = %s; c0 < %lld%s; c0 += %d) {\n", c->index,
                first, (long long)p->columns, end, p->side);
    flux__emit_attend_product(p, "s", p->x1, p->c1, kept);
    if (!p->forward) flux__emit_attend_product(p, "g", p->x2, p->c2, false);
    flux__emit_attend_seen(p);
    if (p->forward) flux__emit_attend_forward(p);
    else flux__emit_attend_backward(p);
    flux__emit(s, "    }\n");
    char scale[40];
    snprintf(scale, sizeof scale, "(%s)%.17g", a->T, 1 / sqrt((double)a->d));
    if (p->forward) flux__emit_attend_result(p);
    else flux__emit_attend_store(p, true, scale, p->at1);
    if (p->by_keys) flux__emit_attend_store(p, false, "1", p->at2);
    flux__emit(s, "    __syncthreads();\n    }\n#undef AT\n#undef EXP\n");
    /* of the features of one turn there are few products, of several a loop takes registers; the
       pass of keys has two sums */
    const bool narrow = a->d <= 32 || a->d > p->side,
               few = !a->roomy || p->by_keys || (narrow && !p->forward);
    c->gk->next.threads = (unsigned)p->threads;
    c->gk->next.blocks = few ? 2 : !narrow && p->forward ? 4 : 3;
    c->gk->next.grid[0] = (unsigned)(tiles * ((most + FLUX__ATTEND_FEATURES - 1) /
                                              FLUX__ATTEND_FEATURES));
    c->gk->next.grid[1] = (unsigned)(units < 65535 ? units : 65535);
    return flux__emitter_finish(c);
}

/* The kernels of an attention, forward or gradients (back). The output holds y and two numbers a
   query, or the gradients of q, k and v, one behind the other. */
static bool flux__code_attend(const flux__attend_text *a, flux__kernel *k, bool back) {
    flux__attend_tile p = flux__attend_tile_of(a, !back, false);
    if (!back) return flux__code_attend_tile(&p);
    k->scratch = (size_t)(a->heads * a->batch * ((a->queries + FLUX__ATTEND_PAD - 1) /
                                                 FLUX__ATTEND_PAD * FLUX__ATTEND_PAD)) * 64 /
                 (size_t)p.pack;
    p.scratch = flux__emitter_param(a->c, 's', 0, "long long *");
    flux__attend_tile by_keys = flux__attend_tile_of(a, false, true);
    by_keys.scratch = p.scratch;
    by_keys.at1 = a->d * a->heads * a->queries * a->batch;
    by_keys.at2 = by_keys.at1 + a->d * a->heads * a->keys * a->batch;
    return flux__code_attend_dots(a, p.scratch, true) && flux__code_attend_tile(&p) &&
           flux__code_attend_tile(&by_keys);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_ATTENTION_H */
