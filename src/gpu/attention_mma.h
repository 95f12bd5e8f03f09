#ifndef FLUX__GPU_ATTENTION_MMA_H
#define FLUX__GPU_ATTENTION_MMA_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/attention.h"
#include "../schedule/kernel.h"
#include "kernels.h"
#include "gemm.h"
#include "attention.h"

/* ---------------------------------------------------------------------- gpu/attention_mma.h
   Attention with a chip's instruction on small matrices (flux__fragment), in the
   order of FlashAttention-2 (Dao, 2023).

   A warp has 16 or 32 rows (the queries or, for the gradients of k and v, the
   keys), whose operands' fragments and sums stay in registers; tiles of columns
   come through shared memory. One text serves each pass, whose rows have x1 and
   x2, and whose columns c1 and c2:

       pass      x1   c1   x2   c2    s = x1 c1'   g = x2 c2'
       y         q    k    -    v     sum2 += p c2
       dq        q    k    dy   v     sum1 += w c1
       dk, dv    k    q    v    dy    sum1 += w c1, sum2 += p c2

   p: the softmax's weights exp(s - lse); w = p (g - dot(dy, y)). The lanes' sums s
   are, in pairs, fragments of the next product. The gradients have a launch
   before them that computes each query's lse and dot(dy, y).

   Invariant: dq has a pass of its own, which multiplies again what dk's and dv's
   did, so that no two blocks add to one element and sums have one order. Exponents
   are of 2; the numbers behind y are those of gpu/attention.h. AMD's instruction is
   given its operands in exchange, since its sums are fragments only when turned. */

FLUX__BEGIN_LEAN

enum { FLUX__ATTEND_MMA_MOST = 128 };     /* features of a head, at most */

typedef struct flux__attend_pass {
    const flux__attend_text *a;
    const flux__fragment *f;
    bool forward, by_keys, first, second; /* rows are keys; the pass has sum1, sum2 */
    int x1, c1, x2, c2;                   /* operands by their number in flux__attend_text */
    int n1, n2, size, pitch1, pitch2;     /* features of x1 and x2, in 16s; bytes of an element;
                                             elements from row to row in shared memory */
    int tall, warps, rows, n, stages;     /* pieces of 16 rows of a warp; rows of a block; columns
                                             of a tile; tiles that are there at once */
    int tile, scratch;                    /* words of a tile; the parameter of scratch memory */
    int64_t limit, columns, at1, at2;     /* rows and columns of a unit; where results begin */
    const char *type, *row, *local, *col; /* of an element in shared memory; a lane's rows by h and
                                             of its sum e, and the column of that */
    int locals, near, far;                /* rows of a lane in a piece; by what the lanes of a row
                                             differ: near, twice that ... below far */
} flux__attend_pass;

/* What of a pass follows from shapes: how many rows and columns a block has, so that registers
   and 48 KiB of shared memory suffice. */
static flux__attend_pass flux__attend_pass_of(const flux__attend_text *a, const flux__fragment *f,
                                              bool forward, bool by_keys) {
    flux__attend_pass p;
    memset(&p, 0, sizeof p);
    p.a = a, p.f = f, p.forward = forward, p.by_keys = by_keys;
    p.first = !forward, p.second = forward || by_keys;
    p.x1 = by_keys ? FLUX__ATTEND_K : FLUX__ATTEND_Q;
    p.c1 = by_keys ? FLUX__ATTEND_Q : FLUX__ATTEND_K;
    p.x2 = by_keys ? FLUX__ATTEND_V : FLUX__ATTEND_G;
    p.c2 = by_keys ? FLUX__ATTEND_G : FLUX__ATTEND_V;
    p.size = flux__is_half(a->o[FLUX__ATTEND_Q]->dtype) ? 2 : 4;
    p.type = p.size == 2 ? "unsigned short" : "float";
    p.n1 = (int)(a->d + 15) / 16 * 16, p.n2 = (int)(a->dv + 15) / 16 * 16;
    p.pitch1 = p.n1 + 16 / p.size, p.pitch2 = p.n2 + 16 / p.size;
    p.limit = by_keys ? a->keys : a->queries, p.columns = by_keys ? a->queries : a->keys;
    const int wide = p.n1 > p.n2 ? p.n1 : p.n2;
    const int64_t units = a->heads * a->batch, pieces = (p.limit + 15) / 16;
    p.tall = !f->turned && p.size == 2 && wide <= 64 && !by_keys &&
             (pieces + 7) / 8 * units >= FLUX__ENOUGH_BLOCKS ? 2 : 1;
    p.warps = pieces / p.tall < 4 ? (int)((pieces + p.tall - 1) / p.tall) : 4;
    p.rows = 16 * p.tall * p.warps;
    p.stages = f->ahead;
    for (int i = 0; i < 5; i++)
        if (i < 3 || (i == 4 && !forward)) p.stages = p.stages && flux__attend_whole(a, i, p.size);
    p.stages++;
    p.n = 64;
    /* 256 registers do not hold 64 columns' places in a mask, which AMD's compiler keeps. */
    if (f->turned && f->lanes == 32)
        p.n = 64 >> (a->o[FLUX__ATTEND_MASK] != NULL) >> (a->o[FLUX__ATTEND_KEEP] != NULL);
    const int column = p.stages * ((p.pitch1 + p.pitch2) * p.size + 8);
    while (p.n > 16 && (p.n / 2 >= p.columns || p.n * column > 40960)) p.n /= 2;
    p.tile = p.n * ((p.pitch1 + p.pitch2) * p.size + (by_keys ? 8 : 0)) / 4;
    p.locals = f->turned ? 1 : 2, p.near = f->turned ? 16 : 1, p.far = f->turned ? f->lanes : 4;
    p.row = f->turned ? "t % 16" : "t % 32 / 4 + h * 8";
    p.local = f->turned ? "0" : "e / 2 % 2";
    p.col = f->turned ? "mma_row(e)" : "mma_col(e)";
    return p;
}

/* Loads `count` positions of operand i, from position `from` on, to `to` in shared memory: in
   chunks of 16 bytes if they are whole, of which a thread has every step-th row. Beyond the
   operand are zeros. */
static void flux__emit_attend_tile(const flux__attend_pass *p, int i, const char *from, int count,
                                   const char *to) {
    flux__listing *s = &p->a->c->s;
    const flux__operand *o = p->a->o[i];
    const char *index = p->a->c->index;
    const bool whole = flux__attend_whole(p->a, i, p->size);
    const int n = i < 2 ? p->n1 : p->n2, pitch = i < 2 ? p->pitch1 : p->pitch2,
        threads = p->warps * p->f->lanes, chunk = 16 / p->size, per = n / chunk,
        step = threads / per;
    /* rows beyond the operand are not read, but have addresses that must be aligned: a single row's
       stride may be any */
    const long long d = (long long)(o->shape.dim[0] / p->a->heads),
        most = (long long)o->shape.dim[1], stride = most > 1 ? (long long)o->stride[1] : 0;
    if (!whole) {
        flux__emit(s, "    for (int e = t; e < %d; e += %d) {\n"
                    "    const int i = e / %d, f = e %% %d;\n", count * n, threads, n, n);
        flux__emit(s, "    (%s)[i * %d + f] = %s + i < %lld && f < %lld ? "
                    "from%d[(%s + i) * %lld + f] : 0;\n    }\n", to, pitch, from, most, d, i, from,
                    stride);
        return;
    }
    char live[40] = "";
    if (d < n) snprintf(live, sizeof live, "f >= %lld ? 0 : ", d);
    if (threads % per) flux__emit(s, "    if (t < %d)", step * per);
    flux__emit(s, "    {\n    const int i0 = t / %d, f = t %% %d * %d;\n"
                "    const %s *const at = from%d + ((%s + i0) * %lld + f);\n", per, per, chunk,
                p->type, i, from, stride);
    flux__emit(s, "    %s *const into = %s + i0 * %d + f;\n    const %s left = %s%lld - %s - i0;\n"
                "    FULLY\n    for (int i = 0; i < %d; i += %d)", p->type, to, pitch, index,
                live, most, from, count, step);
    if (count % step) flux__emit(s, " if (i0 + i < %d)", count);
    if (p->stages > 1) flux__emit(s, "\n    copy_16(into + i * %d, at + i * %lld, "
                                   "i < left ? 16 : 0);\n    }\n", pitch, stride);
    else flux__emit(s, " {\n    words4 w;\n"
                     "    if (i < left) w = *(const words4 *)(at + i * %lld);\n"
                     "    else w.x[0] = w.x[1] = w.x[2] = w.x[3] = 0;\n"
                     "    *(words4 *)(into + i * %d) = w;\n    }\n    }\n", stride, pitch);
}

/* Loads the tile that begins at column `from`, to number `stage`. */
static void flux__emit_attend_columns(const flux__attend_pass *p, const char *from,
                                      const char *stage) {
    flux__listing *s = &p->a->c->s;
    flux__emit(s, "    {\n    %s *const tile = (%s *)(shared + (%s) * %d);\n", p->type, p->type,
                stage, p->tile);
    char second[40];
    snprintf(second, sizeof second, "tile + %d", p->n * p->pitch1);
    flux__emit_attend_tile(p, p->c1, from, p->n, "tile");
    flux__emit(s, "    APART;\n");
    flux__emit_attend_tile(p, p->c2, from, p->n, second);
    flux__emit(s, "    APART;\n");
    if (p->by_keys && p->stages > 1)
        flux__emit(s, "    if (t < %d) copy_16((float *)(tile + behind) + t * 4, "
                    "query + (%s) * 2 + t * 4, 16);\n", p->n / 2, from);
    else if (p->by_keys)
        flux__emit(s, "    for (int e = t; e < %d; e += %d) ((float *)(tile + behind))[e] = "
                    "query[(%s) * 2 + e];\n", p->n * 2, p->warps * p->f->lanes, from);
    if (p->stages > 1) flux__emit(s, "    copies_end();\n");
    flux__emit(s, "    }\n");
}

/* Loads the rows' fragments of operand i into x[][][]; they come through the tiles' place. */
static void flux__emit_attend_rows(const flux__attend_pass *p, const char *x, int i) {
    flux__listing *s = &p->a->c->s;
    const int n = i < 2 ? p->n1 : p->n2, pitch = i < 2 ? p->pitch1 : p->pitch2, k = p->f->k;
    flux__emit(s, "    u32 %s[%d][%d][%d];\n", x, p->tall, n / k, p->f->words);
    char place[32];
    snprintf(place, sizeof place, "(%s *)shared", p->type);
    flux__emit_attend_tile(p, i, "r0", p->rows, place);
    if (p->stages > 1) flux__emit(s, "    copies_end();\n    copies_left(0);\n");
    flux__emit(s, "    __syncthreads();\n    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int l = 0; l < %d; l++) mma_%c_%s(%s[i][l], %s + (w0 + i * 16) * %d + "
                "l * %d, %d, 1);\n", p->tall, n / k, p->f->turned ? 'b' : 'a', p->f->name, x,
                place, pitch, k, pitch);
    flux__emit(s, "    __syncthreads();\n");
}

/* Adds to `sum` a product of the rows' fragments, `x`, and 16 columns, `c`. */
static void flux__emit_attend_mma_scores(const flux__attend_pass *p, const char *sum,
                                         const char *x, bool one) {
    const bool turned = p->f->turned;
    char left[40];
    snprintf(left, sizeof left, "%s[i][l]", x);
    flux__emit(&p->a->c->s, "    FULLY\n    for (int l = 0; l < %d; l++) {\n"
                "    APART;\n    u32 y[%d];\n"
                "    mma_%c_%s(y, c%c + j * %d + l * %d, %d, 1);\n",
                (one ? p->n1 : p->n2) / p->f->k, p->f->words, turned ? 'a' : 'b', p->f->name,
                one ? '1' : '2', 16 * (one ? p->pitch1 : p->pitch2), p->f->k,
                one ? p->pitch1 : p->pitch2);
    flux__emit(&p->a->c->s, "    FULLY\n    for (int i = 0; i < %d; i++) mma_%s(%s, %s, %s);\n"
                "    }\n", p->tall, p->f->name, sum, turned ? "y" : left, turned ? left : "y");
}

/* Adds to sum1 or sum2 the product of the weights `w`, which are sums of lanes, and c1 or c2. As
   fragments of f32 the sums have an order of their own along the inner dim, which c1's and c2's
   follow. */
static void flux__emit_attend_mma_add(const flux__attend_pass *p, const char *w, bool one) {
    flux__listing *s = &p->a->c->s;
    const flux__fragment *f = p->f;
    const bool turned = f->turned;
    const int own = 128 / f->lanes, pitch = one ? p->pitch1 : p->pitch2, n = one ? p->n1 : p->n2;
    char sum[40];
    snprintf(sum, sizeof sum, "sum%c[i][f]", one ? '1' : '2');
    flux__emit(s, "    FULLY\n    for (int h = 0; h < %d; h++) {\n    u32 x[%d][%d];\n    FULLY\n"
                "    for (int i = 0; i < %d; i++) {\n", 16 / f->k, p->tall, f->words, p->tall);
    for (int i = 0; i < f->words && (p->size == 4 || i < own); i++)
        if (p->size == 2) flux__emit(s, "    x[i][%d] = pair_%s(%s[%d], %s[%d]);\n", i, f->name, w,
                                      2 * i, w, 2 * i + 1);
        else flux__emit(s, "    x[i][%d] = %s(%s[h * %d + %d]);\n", i, turned ? "BITS_OF" : "tf32",
                         w, f->words, f->words == 4 ? i % 2 * 2 + i / 2 : i);
    if (p->size == 2 && f->words > own) flux__emit(s, "    mma_share(x[i]);\n");
    flux__emit(s, "    }\n    FULLY\n    for (int f = 0; f < %d; f++) {\n"
                "    APART;\n    u32 y[%d];\n"
                "    const %s *const from = c%c + j * %d + f * 16;\n", n / 16, f->words, p->type,
                one ? '1' : '2', 16 * pitch);
    if (p->size == 2)
        flux__emit(s, "    mma_%c_%s(y, from, 1, %d);\n", turned ? 'a' : 'b', f->name, pitch);
    else if (turned)
        flux__emit(s, "    y[0] = BITS_OF(from[t %% 16 + (t %% 64 / 16 * 4 + h) * %d]);\n", pitch);
    else flux__emit(s, "    FULLY\n    for (int q = 0; q < 4; q++) y[q] = tf32(from[t %% 32 / 4 + "
                     "q / 2 * 8 + (t %% 4 * 2 + q %% 2 + h * 8) * %d]);\n", pitch);
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++) mma_%s(%s, %s, %s);\n    }\n    }\n",
                p->tall, f->name, sum, turned ? "y" : "x[i]", turned ? "x[i]" : "y");
}

/* Begins a loop over a lane's sums [i][e] of a piece of 16 columns, j, each with its key and
   query. */
static void flux__emit_attend_places(const flux__attend_pass *p) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int e = 0; e < %d; e++) {\n    const int h = %s;\n", p->tall,
                256 / p->f->lanes, p->local);
    flux__emit(s, "    const %s row = r0 + w0 + i * 16 + %s, col = c0 + j * 16 + %s, key = %s, "
                "query_at = %s;\n", a->c->index, p->row, p->col, p->by_keys ? "row" : "col",
                p->by_keys ? "col" : "row");
}

/* Masks the sums `v` of a piece of 16 columns, j; a bias makes of them exponents of 2. */
static void flux__emit_attend_mma_seen(const flux__attend_pass *p, const char *v) {
    const flux__attend_text *a = p->a;
    const flux__operand *o = a->o[FLUX__ATTEND_MASK];
    flux__listing *s = &a->c->s;
    const long long later = (long long)(a->keys - a->queries);
    const bool tail = !p->by_keys && p->columns % p->n != 0;
    flux__emit_attend_places(p);
    if (o) {
        const bool boolean = o->dtype == FLUX_BOOL;
        flux__emit(s, "    if (row < %lld && col < %lld) %s = ", (long long)p->limit,
                    (long long)p->columns, v);
        if (!boolean) flux__emit(s, "fmaf(%s, SCALE, 1.44269504f * ", v);
        flux__emit_attend_mask(a, FLUX__ATTEND_MASK, "query_at");
        flux__emit(s, boolean ? " ? %s : -INF;\n" : ");\n", v);
    }
    if (a->causal) flux__emit(s, "    if (key > query_at + %lld) %s = -INF;\n", later, v);
    if (tail) flux__emit(s, "    if (col >= %lld) %s = -INF;\n", (long long)p->columns, v);
    flux__emit(s, "    }\n");
}

/* Makes 0 of the sums `v` of a piece of 16 columns, j, that dropout drops. */
static void flux__emit_attend_mma_drop(const flux__attend_pass *p, const char *v) {
    flux__listing *s = &p->a->c->s;
    if (!p->a->o[FLUX__ATTEND_KEEP]) return;
    flux__emit_attend_places(p);
    flux__emit(s, "    if (row < %lld && col < %lld && !", (long long)p->limit,
               (long long)p->columns);
    flux__emit_attend_mask(p->a, FLUX__ATTEND_KEEP, "query_at");
    flux__emit(s, ") %s = 0;\n    }\n", v);
}

/* Of the forward pass over a tile: the running maximum `most` and sum `all` of each row, whose
   lanes join by shuffles; scores become their exponentials, and sum2 shrinks as the maximum grows.
   Row after row, for AMD: its compiler makes a third more instructions of the text below. */
static void flux__emit_attend_mma_by_rows(const flux__attend_pass *p, int sums) {
    flux__listing *s = &p->a->c->s;
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int h = 0; h < %d; h++) {\n    float top = most[i][h];\n", p->tall,
                p->locals);
    flux__emit(s, "#define EACH FULLY for (int j = 0; j < %d; j++) FULLY "
                "for (int e = 0; e < %d; e++) if (%s == h)\n", p->n / 16, sums, p->local);
    flux__emit(s, "    EACH top = fmaxf(top, s[j][i][e]);\n");
    for (int w = p->near; w < p->far; w *= 2)
        flux__emit(s, "    top = fmaxf(top, ACROSS(top, %d));\n", w);
    flux__emit(s, "    const float base = top == -INF ? 0.0f : top * POWER, "
                "fade = near_exp2(fmaf(most[i][h], POWER, -base));\n"
                "    most[i][h] = top, all[i][h] *= fade;\n");
    flux__emit(s, "    EACH s[j][i][e] = near_exp2(fmaf(s[j][i][e], POWER, -base)), "
                "all[i][h] += s[j][i][e];\n#undef EACH\n    FULLY\n"
                "    for (int f = 0; f < %d && fade != 1.0f; f++)\n    FULLY\n"
                "    for (int e = 0; e < %d; e++) if (%s == h) sum2[i][f][e] *= fade;\n    }\n",
                p->n2 / 16, sums, p->local);
    flux__emit(s, "    FULLY\n    for (int j = 0; j < %d; j++) {\n", p->n / 16);
}

/* The same for all rows at once, for NVIDIA, where a branch would part their chains, which fill
   each other's waits. First the maximum, as the subtrahend `top`, and what sums shrink by,
   `fade`. */
static void flux__emit_attend_mma_top(const flux__attend_pass *p, int sums) {
    flux__listing *s = &p->a->c->s;
    const char *const rows = "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                             "    for (int h = 0; h < %d; h++) ";
    flux__emit(s, "    float top[%d][%d], fade[%d][%d];\n", p->tall, p->locals, p->tall,
                p->locals);
    flux__emit(s, rows, p->tall, p->locals);
    flux__emit(s, "top[i][h] = most[i][h];\n    FULLY\n    for (int j = 0; j < %d; j++)\n"
                "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int e = 0; e < %d; e++) "
                "top[i][%s] = fmaxf(top[i][%s], s[j][i][e]);\n", p->n / 16, p->tall, sums,
                p->local, p->local);
    for (int w = p->near; w < p->far; w *= 2) {
        flux__emit(s, rows, p->tall, p->locals);
        flux__emit(s, "top[i][h] = fmaxf(top[i][h], ACROSS(top[i][h], %d));\n", w);
    }
    flux__emit(s, rows, p->tall, p->locals);
    flux__emit(s, "{\n    const float v = top[i][h];\n"
                "    top[i][h] = v == -INF ? 0.0f : v * POWER;\n"
                "    fade[i][h] = near_exp2(fmaf(most[i][h], POWER, -top[i][h]));\n"
                "    most[i][h] = v, all[i][h] *= fade[i][h];\n    }\n");
}

static void flux__emit_attend_mma_fade(const flux__attend_pass *p, int sums) {
    flux__emit(&p->a->c->s, "    FULLY\n    for (int f = 0; f < %d; f++)\n    FULLY\n"
                "    for (int i = 0; i < %d; i++)\n    FULLY\n    for (int e = 0; e < %d; e++) "
                "sum2[i][f][e] *= fade[i][%s];\n", p->n2 / 16, p->tall, sums, p->local);
}

/* Begins a loop over pieces of 16 columns, j, whose exponentials come with what takes them. */
static void flux__emit_attend_mma_powers(const flux__attend_pass *p, int sums) {
    flux__emit(&p->a->c->s, "    FULLY\n    for (int j = 0; j < %d; j++) {\n    FULLY\n"
                "    for (int i = 0; i < %d; i++)\n    FULLY\n    for (int e = 0; e < %d; e++) "
                "s[j][i][e] = near_exp2(fmaf(s[j][i][e], POWER, -top[i][%s])), "
                "all[i][%s] += s[j][i][e];\n", p->n / 16, p->tall, sums, p->local, p->local);
}

/* The forward pass over a tile: scores, their exponentials, and what these add to sum2. The lanes'
   parts of a row's sum are joined at the end. */
static void flux__emit_attend_mma_forward(const flux__attend_pass *p, bool masked) {
    flux__listing *s = &p->a->c->s;
    const int sums = 256 / p->f->lanes, n = p->n / 16;
    flux__emit(s, "    float s[%d][%d][%d] = { 0 };\n    FULLY\n"
                "    for (int j = 0; j < %d; j++) {\n", n, p->tall, sums, n);
    flux__emit_attend_mma_scores(p, "s[j][i]", "x1", true);
    if (masked) flux__emit_attend_mma_seen(p, "s[j][i][e]");
    flux__emit(s, "    }\n");
    if (p->f->turned) flux__emit_attend_mma_by_rows(p, sums);
    else {
        flux__emit_attend_mma_top(p, sums);
        flux__emit_attend_mma_fade(p, sums);
        flux__emit_attend_mma_powers(p, sums);
    }
    flux__emit_attend_mma_drop(p, "s[j][i][e]");
    flux__emit_attend_mma_add(p, "s[j][i]", false);
    flux__emit(s, "    }\n");
}

/* A backward pass over a tile, 16 columns at a time. */
static void flux__emit_attend_mma_backward(const flux__attend_pass *p, bool masked) {
    flux__listing *s = &p->a->c->s;
    const int sums = 256 / p->f->lanes;
    flux__emit(s, "#pragma unroll 1\n    for (int j = 0; j < %d; j++) {\n"
                "    float s[%d][%d] = { 0 }", p->n / 16, p->tall, sums);
    flux__emit(s, p->first ? ", g[%d][%d] = { 0 };\n" : ";\n", p->tall, sums);
    flux__emit_attend_mma_scores(p, "s[i]", "x1", true);
    if (p->first) flux__emit_attend_mma_scores(p, "g[i]", "x2", false);
    if (p->first) flux__emit_attend_mma_drop(p, "g[i][e]");
    if (masked) flux__emit_attend_mma_seen(p, "s[i][e]");
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int e = 0; e < %d; e++) {\n", p->tall, sums);
    if (p->by_keys)
        flux__emit(s, "    const float *const stat = (float *)(c1 + behind) + (j * 16 + %s) * 2;\n"
                    "    const float lse = stat[0], less = stat[1];\n", p->col);
    else flux__emit(s, "    const float lse = most[i][%s], less = all[i][%s];\n", p->local,
                     p->local);
    flux__emit(s, "    s[i][e] = near_exp2(fmaf(s[i][e], POWER, -lse));\n");
    flux__emit(s, p->first ? "    g[i][e] = s[i][e] * (g[i][e] - less);\n    }\n"
                           : "    (void)less;\n    }\n");
    if (p->second) flux__emit_attend_mma_drop(p, "s[i][e]");
    if (p->second) flux__emit_attend_mma_add(p, "s[i]", false);
    if (p->first) flux__emit_attend_mma_add(p, "g[i]", true);
    flux__emit(s, "    }\n");
}

/* Stores sum1 or sum2, times `by`, to the result that begins at `at` of the output. */
static void flux__emit_attend_mma_store(const flux__attend_pass *p, bool one, const char *by,
                                    int64_t at) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    const int step = p->f->turned ? 4 : 2, sums = 256 / p->f->lanes;
    const long long features = (long long)(one ? a->d : a->dv);
    const bool whole = features % step == 0 && at % step == 0;
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int f = 0; f < %d; f++)\n    FULLY\n"
                "    for (int e = 0; e < %d; e += %d) {\n    const int h = %s;\n", p->tall,
                (one ? p->n1 : p->n2) / 16, sums, whole ? step : 1, p->local);
    flux__emit(s, "    const %s row = r0 + w0 + i * 16 + %s, col = f * 16 + %s;\n", a->c->index,
                p->row, p->col);
    flux__emit(s, "    if (row >= %lld || col >= %lld) continue;\n", (long long)p->limit, features);
    flux__emit(s, "    %s *const to = p%d + (%lld + ((sample * %lld + row) * %lld + head) * "
                "%lld + col);\n", flux__attend_stored(a), a->out, (long long)at,
                (long long)p->limit, (long long)a->heads, features);
    flux__emit(s, "    float v[%d];\n    FULLY\n    for (int q = 0; q < %d; q++) "
                "v[q] = sum%c[i][f][e + q] * %s;\n", whole ? step : 1, whole ? step : 1,
                one ? '1' : '2', by);
    flux__emit_attend_put(a, whole ? step : 1);
    flux__emit(s, "    }\n");
}

/* The end of the forward pass: y, and behind it each query's maximum and the reciprocal of its
   sum. */
static void flux__emit_attend_mma_result(const flux__attend_pass *p) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    flux__emit(s, "    FULLY\n    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int h = 0; h < %d; h++) {\n    float v = all[i][h];\n", p->tall,
                p->locals);
    for (int w = p->near; w < p->far; w *= 2) flux__emit(s, "    v += ACROSS(v, %d);\n", w);
    flux__emit(s, "    all[i][h] = v == 0.0f ? 0.0f : 1.0f / v;\n    const int e = 0;\n"
                "    const %s row = r0 + w0 + i * 16 + %s;\n"
                "    if (%s > 0 || row >= %lld) continue;\n", a->c->index, p->row, p->col,
                (long long)a->queries);
    flux__emit(s, "    float *const to = (float *)p%d + (%lld + (unit * %lld + row) * 2);\n"
                "    to[0] = v == 0.0f ? -INF : most[i][h] * POWER * 0.693147181f, "
                "to[1] = all[i][h];\n    }\n", a->out, flux__attend_stats_at(a),
                (long long)a->queries);
    flux__emit_attend_mma_store(p, false, "all[i][h]", 0);
}

/* The numbers of a lane's queries, where these are the rows: the running maximum and sum or, going
   backward, the logarithm of the softmax's sum, and dot(dy, y). */
static void flux__emit_attend_mma_stats(const flux__attend_pass *p) {
    flux__listing *s = &p->a->c->s;
    flux__emit(s, "    float most[%d][%d], all[%d][%d];\n    FULLY\n"
                "    for (int i = 0; i < %d; i++)\n    FULLY\n"
                "    for (int h = 0; h < %d; h++) {\n", p->tall, p->locals, p->tall, p->locals,
                p->tall, p->locals);
    if (p->forward) flux__emit(s, "    most[i][h] = -INF, all[i][h] = 0;\n    }\n");
    else flux__emit(s, "    const int at = ((int)r0 + w0 + i * 16 + %s) * 2;\n"
                     "    most[i][h] = query[at], all[i][h] = query[at + 1];\n    }\n", p->row);
}

/* What a pass begins with: where operands start, the rows' fragments and numbers, sums of 0. */
static void flux__emit_attend_mma_begin(const flux__attend_pass *p) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    const int sums = 256 / p->f->lanes;
    for (int i = 0; i < 5; i++)
        if (i < 3 || (i == 4 && !p->forward))
            flux__emit(s, "    const %s *const from%d = (const %s *)p%d + (%lld + head * %lld + "
                        "sample * %lld);\n", p->type, i, p->type, a->p[i],
                        (long long)a->o[i]->offset,
                        (long long)(a->o[i]->shape.dim[0] / a->heads),
                        (long long)a->o[i]->stride[2]);
    if (!p->forward)
        flux__emit(s, "    const float *const query = (const float *)p%d + unit * %lldLL;\n",
                    p->scratch, (long long)((a->queries + FLUX__ATTEND_PAD - 1) /
                                            FLUX__ATTEND_PAD * FLUX__ATTEND_PAD * 2));
    flux__emit_attend_rows(p, "x1", p->x1);
    if (p->first) flux__emit_attend_rows(p, "x2", p->x2);
    if (p->first) flux__emit(s, "    float sum1[%d][%d][%d] = { 0 };\n", p->tall, p->n1 / 16, sums);
    if (p->second)
        flux__emit(s, "    float sum2[%d][%d][%d] = { 0 };\n", p->tall, p->n2 / 16, sums);
    if (!p->by_keys) flux__emit_attend_mma_stats(p);
}

/* The loop over tiles as long as c0 < `end`, which begins with the tile at c0 in shared memory or
   under way to it. */
static void flux__emit_attend_loop(const flux__attend_pass *p, const char *end, bool masked) {
    flux__listing *s = &p->a->c->s;
    const bool ahead = p->stages > 1;
    flux__emit(s, "#pragma unroll 1\n    for (; c0 < %s; c0 += %d) {\n%s    __syncthreads();\n",
                end, p->n, ahead ? "    copies_left(0);\n" : "");
    if (ahead) flux__emit(s, "    const %s next = c0 + %d;\n    if (next < last)\n", p->a->c->index,
                           p->n);
    flux__emit_attend_columns(p, ahead ? "next" : "c0", ahead ? "1 - stage" : "0");
    flux__emit(s, "%s    const %s *const c1 = (%s *)(shared + %s * %d), *const c2 = c1 + %d;\n",
                ahead ? "" : "    __syncthreads();\n", p->type, p->type, ahead ? "stage" : "0",
                p->tile, p->n * p->pitch1);
    if (p->forward) flux__emit_attend_mma_forward(p, masked);
    else flux__emit_attend_mma_backward(p, masked);
    flux__emit(s, "%s    }\n", ahead ? "    stage = 1 - stage;\n" : "");
}

/* The loops over tiles, from `first` to `last`. Only those at an edge are masked: the diagonal of
   a causal pass, which comes last or, by keys, first, and the last tile of keys. Where there is a
   mask all are. */
static void flux__emit_attend_loops(const flux__attend_pass *p) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    const long long later = (long long)(a->keys - a->queries), columns = (long long)p->columns;
    const bool tail = !p->by_keys && columns % p->n != 0;
    flux__emit(s, "    %s c0 = first;\n", a->c->index);
    if (p->stages > 1) {
        flux__emit(s, "    int stage = 0;\n    if (first < last)\n");
        flux__emit_attend_columns(p, "first", "0");
    }
    if (a->o[FLUX__ATTEND_MASK] || (!a->causal && !tail)) {
        flux__emit_attend_loop(p, "last", a->o[FLUX__ATTEND_MASK] != NULL);
        return;
    }
    flux__emit(s, "    const %s seen = ", a->c->index);
    if (!a->causal) flux__emit(s, "%lld;\n", columns / p->n * p->n);
    else if (p->by_keys) flux__emit(s, "r0 + %lld < last ? r0 + %lld : last;\n",
                                     p->rows - 1 - later, p->rows - 1 - later);
    else flux__emit(s, "(r0 + %lld < %lld ? r0 + %lld : %lld) / %d * %d;\n", later + 1, columns,
                     later + 1, columns, p->n, p->n);
    flux__emit_attend_loop(p, "seen", p->by_keys);
    flux__emit_attend_loop(p, "last", !p->by_keys);
}

/* A block's place: unit, head, sample, its rows from r0 on, and the columns from `first` to `last`
   that it goes through. Of a causal pass without another mask the blocks with most columns come
   first, and tiles without a visible score are left out. */
static void flux__emit_attend_mma_place(const flux__attend_pass *p) {
    const flux__attend_text *a = p->a;
    flux__emitter *c = a->c;
    flux__listing *s = &c->s;
    const int64_t blocks = (p->limit + p->rows - 1) / p->rows;
    const flux__operand *mask = a->o[FLUX__ATTEND_MASK];
    const bool skip = a->causal && !mask;
    const long long later = (long long)(a->keys - a->queries);
    flux__emit(s, "#define SCALE %.9gf\n#define POWER %s\n",
                1.4426950408889634 / sqrt((double)a->d),
                mask && mask->dtype != FLUX_BOOL ? "1.0f" : "SCALE");
    flux__emit_unit(c, "unit", a->heads * a->batch, "");
    char block[48] = "blockIdx.x";
    if (skip && !p->by_keys)
        snprintf(block, sizeof block, "(%lldu - blockIdx.x)", (long long)(blocks - 1));
    flux__emit(s, "    const %s head = unit %% %lld, sample = unit / %lld, r0 = (%s)%s * %d, "
                "first = ", c->index, (long long)a->heads, (long long)a->heads, c->index, block,
                p->rows);
    if (skip && p->by_keys)
        flux__emit(s, "r0 > %lld ? (r0 - %lld) / %d * %d : 0", later, later, p->n, p->n);
    else flux__emit(s, "0");
    flux__emit(s, ", last = %lld", (long long)p->columns);
    if (skip && !p->by_keys)
        flux__emit(s, " < r0 + %lld ? %lld : r0 + %lld", later + p->rows, (long long)p->columns,
                    later + p->rows);
    flux__emit(s, ";\n");
}

/* The end of a pass, whose launch has so many threads a block and blocks a multiprocessor. */
static bool flux__attend_mma_end(const flux__attend_pass *p, unsigned threads, unsigned each) {
    const flux__attend_text *a = p->a;
    flux__gpu_step *next = &a->c->gk->next;
    const int64_t units = a->heads * a->batch;
    char scale[40];
    snprintf(scale, sizeof scale, "%.9ef", 1 / sqrt((double)a->d));
    if (p->forward) flux__emit_attend_mma_result(p);
    if (p->first) flux__emit_attend_mma_store(p, true, scale, p->at1);
    if (p->second && !p->forward) flux__emit_attend_mma_store(p, false, "1.0f", p->at2);
    flux__emit(&a->c->s, "    __syncthreads();\n    }\n#undef SCALE\n#undef POWER\n");
    next->threads = threads, next->blocks = each;
    next->grid[0] = (unsigned)((p->limit + p->rows - 1) / p->rows);
    next->grid[1] = (unsigned)(units < 65535 ? units : 65535);
    return flux__emitter_finish(a->c);
}

/* The text of a pass. */
static bool flux__code_attend_pass(const flux__attend_pass *p) {
    flux__listing *s = &p->a->c->s;
    const int threads = p->warps * p->f->lanes, across = p->rows *
        (p->pitch1 > p->pitch2 ? p->pitch1 : p->pitch2) * p->size / 4;
    flux__emit(s, "    __shared__ ALIGN16 u32 shared[%d];\n"
                "    const int t = (int)threadIdx.x, w0 = t / %d * %d;\n",
                p->stages * p->tile > across ? p->stages * p->tile : across, p->f->lanes,
                16 * p->tall);
    if (p->by_keys) flux__emit(s, "    const int behind = %d;\n", p->n * (p->pitch1 + p->pitch2));
    flux__emit_attend_mma_place(p);
    flux__emit_attend_mma_begin(p);
    flux__emit_attend_loops(p);
    return flux__attend_mma_end(p, (unsigned)threads, 2);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_ATTENTION_MMA_H */
