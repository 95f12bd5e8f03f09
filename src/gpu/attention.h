#ifndef FLUX__GPU_ATTENTION_H
#define FLUX__GPU_ATTENTION_H
#include "../base/platform.h"
#include "../graph/attention.h"
#include "../schedule/kernel.h"
#include "../schedule/program.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "gemm.h"

/* ---------------------------------------------------------------------- gpu/attention.h
   The text of attention's kernels. A block computes scores in tiles of 32 rows by
   32 columns, eight threads a row. Its rows are what its results belong to: the
   queries or, in the gradients of k and v, the keys; a loop goes over the columns,
   which are the other of the two.

   Layout: q, k, v and the result's gradient are [features * heads, positions,
   batch], features contiguous, with strides of their own for position and sample.
   Results are contiguous in the same order. A mask is [key, query, head, sample]
   by any strides. A unit is one head of one sample.

   Invariant: scores are not stored in device memory. The forward kernel keeps
   each query's running maximum and sum (online softmax), and writes the maximum
   and the sum's reciprocal behind its result; the gradients read them and compute
   each tile's weights again. Each result has its own blocks (blockIdx.z in the
   gradients), so no two blocks add to one element and sums have one order. A
   query whose keys are all masked has the result 0, and its scores get no
   gradient. Tiles that a causal mask hides altogether are skipped,
   unless there is another mask. */

FLUX__BEGIN_LEAN

/* What a block computes: the result y, or the gradient of q, k or v. */
enum { FLUX__ATTEND_Y, FLUX__ATTEND_DQ, FLUX__ATTEND_DK, FLUX__ATTEND_DV };
enum { FLUX__ATTEND_FEATURES = 64 };      /* of a result that a block computes */

typedef struct flux__attend_text {
    flux__emitter *c;
    const char *T, *X;                    /* the type and its name in functions: "float", "f32" */
    /* operands, by FLUX__ATTEND_Q ...; NULL: the kernel has none */
    const flux__operand *o[FLUX__ATTEND_OPERANDS];
    int p[FLUX__ATTEND_OPERANDS], out;    /* parameters of these, and of what is computed */
    int64_t heads, d, dv, queries, keys, batch;   /* d: features of a head in q and k; dv: in v */
    bool causal;
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

/* Adds to to[0 ... 3] the dot products, over the features, of operand i at the thread's row
   with operand k at its four columns. Both come through shared memory, 16 features at a time:
   a_tile[feature][row], b_tile[feature][column], rows padded to 33. */
static void flux__emit_attend_product(const flux__attend_text *a, const char *to, int i, int k) {
    const flux__operand *o = a->o[i];
    long long depth = (long long)(o->shape.dim[0] / a->heads), rows = (long long)o->shape.dim[1],
        columns = (long long)a->o[k]->shape.dim[1];
    char x[200], y[200];
    flux__emit(&a->c->s, "    for (int l0 = 0; l0 < %lld; l0 += 16) {\n"
                "    for (int e = t; e < 512; e += 256) {\n", depth);
    flux__emit(&a->c->s, "    const int f = l0 + e %% 16, i = e / 16;\n"
                "    a_tile[e %% 16][i] = f < %lld && r0 + i < %lld ? %s : 0;\n", depth, rows,
                flux__attend_element(a, i, "r0 + i", "f", x, sizeof x));
    flux__emit(&a->c->s, "    b_tile[e %% 16][i] = f < %lld && c0 + i < %lld ? %s : 0;\n    }\n"
                "    __syncthreads();\n", depth, columns,
                flux__attend_element(a, k, "c0 + i", "f", y, sizeof y));
    flux__emit(&a->c->s, "#pragma unroll 4\n    for (int l = 0; l < 16; l++) {\n"
                "    const %s y = a_tile[l][r];\n", a->T);
    flux__emit(&a->c->s,
                "    for (int j = 0; j < 4; j++) %s[j] = fma%s(y, b_tile[l][c + j * 8], %s[j]);\n"
                "    }\n    __syncthreads();\n    }\n", to, a->T[0] == 'f' ? "f" : "", to);
}

/* Loads what the forward kernel wrote for the query i = from + t: most[t] (maximum) and sum[t]
   (reciprocal of the sum). With `less` also fade[t], the dot product of y and its gradient,
   which the softmax's gradient subtracts. That loop is unrolled by 8: loads of all features at
   once would need more registers than three blocks of a multiprocessor have. */
static void flux__emit_attend_stats(const flux__attend_text *a, const char *from, bool less) {
    flux__listing *s = &a->c->s;
    long long y = (long long)(a->dv * a->heads * a->queries * a->batch),
        queries = (long long)a->queries;
    char g[200];
    flux__emit(s, "    if (t < 32) {\n"
                "    const %s i = %s + t, at = %lld + (unit * %lld + i) * 2;\n    %s dot = 0;\n",
                a->c->index, from, y, queries, a->T);
    flux__emit(s, "    most[t] = i < %lld ? p%d[at] : 0, sum[t] = i < %lld ? p%d[at + 1] : 0;\n",
                queries, a->p[FLUX__ATTEND_MADE], queries, a->p[FLUX__ATTEND_MADE]);
    if (less)
        flux__emit(s, "#pragma unroll 8\n"
                    "    for (int f = 0; f < %lld && i < %lld; "
                    "f++) dot += %s * p%d[((sample * %lld + i) * %lld + head) * %lld + f];\n"
                    "    fade[t] = dot;\n", (long long)a->dv, queries,
                    flux__attend_element(a, FLUX__ATTEND_G, "i", "f", g, sizeof g),
                    a->p[FLUX__ATTEND_MADE], queries,
                    (long long)a->heads, (long long)a->dv);
    flux__emit(s, "    }\n    __syncthreads();\n");
}

/* Writes "p5[...]": the element of a mask, FLUX__ATTEND_MASK or FLUX__ATTEND_KEEP, for `key` and
   the index `query`. */
static void flux__emit_attend_mask(const flux__attend_text *a, int which, const char *query) {
    const flux__operand *o = a->o[which];
    flux__emit(&a->c->s, "p%d[%lld + key * %lld + %s * %lld + head * %lld + sample * %lld]",
               a->p[which], (long long)o->offset, (long long)o->stride[0], query,
               (long long)o->stride[1], (long long)o->stride[2], (long long)o->stride[3]);
}

/* The forward kernel's sums of its tile's weights, by the first 32 threads. */
static void flux__emit_attend_sums(const flux__attend_text *a) {
    flux__emit(&a->c->s, "    if (t < 32) {\n    sum[t] *= fade[t];\n"
                "    for (int i = 0; i < 32; i++) sum[t] += w[t][i];\n    }\n");
}

/* Makes the tile w[row][column] from the dot products x of q and k (and g of v and y's
   gradient): the scores are scaled and masked. The forward kernel stores exp(score - running
   maximum), and in fade[] the factor by which older sums shrink when the maximum grows. The
   gradient of v needs the softmax's weights p, those of q and k p (g - fade). What dropout drops
   is 0 in w, after the sums, and in g. */
static void flux__emit_attend_weights(const flux__attend_text *a, int what) {
    flux__listing *s = &a->c->s;
    const flux__operand *o = a->o[FLUX__ATTEND_MASK];
    const bool drops = a->o[FLUX__ATTEND_KEEP] != NULL;
    bool transposed = what >= FLUX__ATTEND_DK;
    long long rows = (long long)(transposed ? a->keys : a->queries),
        columns = (long long)(transposed ? a->queries : a->keys);
    if (drops && what == FLUX__ATTEND_Y) flux__emit(s, "    int keep[4];\n");
    flux__emit(s, "    for (int j = 0; j < 4; j++) {\n"
                "    const %s row = r0 + r, col = c0 + c + j * 8, key = %s, query = %s;\n",
                a->c->index, transposed ? "row" : "col", transposed ? "col" : "row");
    flux__emit(s, "    const int live = row < %lld && col < %lld;\n    %s v = x[j] * (%s)%.17g;\n",
                rows, columns, a->T, a->T, 1 / sqrt((double)a->d));
    if (o) {
        flux__emit(s, "    if (live) v = ");
        flux__emit(s, o->dtype == FLUX_BOOL ? "" : "v + ");
        flux__emit_attend_mask(a, FLUX__ATTEND_MASK, "query");
        flux__emit(s, o->dtype == FLUX_BOOL ? " ? v : -INF;\n" : ";\n");
    }
    if (a->causal)
        flux__emit(s, "    if (key > query + %lld) v = -INF;\n", (long long)(a->keys - a->queries));
    if (drops) {
        flux__emit(s, "    %skeep%s = live && ", what == FLUX__ATTEND_Y ? "" : "const int ",
                   what == FLUX__ATTEND_Y ? "[j]" : "");
        flux__emit_attend_mask(a, FLUX__ATTEND_KEEP, "query");
        flux__emit(s, ";\n");
    }
    if (what == FLUX__ATTEND_Y) {
        flux__emit(s, "    w[r][c + j * 8] = v;\n    }\n    __syncthreads();\n"
                    "    const int n = c0 + 32 <= %lld ? 32 : (int)(%lld - c0);\n", columns,
                    columns);
        flux__emit(s, "    if (t < 32) {\n    %s m = most[t];\n"
                    "    for (int i = 0; i < n; i++) m = fmax_%s(m, w[t][i]);\n", a->T, a->X);
        flux__emit(s, "    fade[t] = exp_%s(most[t] == m ? 0 : most[t] - m), most[t] = m;\n    }\n"
                    "    __syncthreads();\n    for (int j = 0; j < 4; j++) {\n", a->X);
        flux__emit(s, "    const %s v = w[r][c + j * 8];\n"
                    "    w[r][c + j * 8] = c + j * 8 < n ? exp_%s(v == most[r] ? 0 : v - most[r]) "
                    ": 0;\n    }\n", a->T, a->X);
        if (!drops) return;
        flux__emit(s, "    __syncthreads();\n");
        flux__emit_attend_sums(a);
        flux__emit(s, "    __syncthreads();\n"
                    "    for (int j = 0; j < 4; j++) if (!keep[j]) w[r][c + j * 8] = 0;\n");
        return;
    }
    flux__emit(s, "    const int q = %s;\n"
                "    %s p = live ? exp_%s(v == most[q] ? 0 : v - most[q]) * sum[q] : 0;\n",
                transposed ? "c + j * 8" : "r", a->T, a->X);
    flux__emit(s, "    w[r][c + j * 8] = ");
    if (what == FLUX__ATTEND_DV) flux__emit(s, drops ? "keep ? p : 0;\n    }\n" : "p;\n    }\n");
    else flux__emit(s, "most[q] == -INF ? 0 : p * (%s - fade[q]);\n    }\n",
                    drops ? "(keep ? g[j] : 0)" : "g[j]");
}

/* Blocks along x for a result: tiles of 32 rows times chunks of features. */
static int64_t flux__attend_blocks(int64_t rows, int64_t features) {
    return (rows + 31) / 32 * ((features + FLUX__ATTEND_FEATURES - 1) / FLUX__ATTEND_FEATURES);
}

/* The text of one result, which begins at element `at` of the kernel's output. For each tile of
   columns it makes w and loads z[column][feature] (of v, k, q or y's gradient, see `with`), and
   a thread adds w z to acc[], 8 of the 64 features of its row, 8 apart. */
static void flux__emit_attend(const flux__attend_text *a, int what, int64_t at) {
    enum { Q = FLUX__ATTEND_Q, K = FLUX__ATTEND_K, V = FLUX__ATTEND_V, G = FLUX__ATTEND_G };
    static const int row_of[] = { Q, Q, K, K }, column_of[] = { K, K, Q, Q },
        with[] = { V, K, Q, G };
    flux__listing *s = &a->c->s;
    bool forward = what == FLUX__ATTEND_Y, transposed = what >= FLUX__ATTEND_DK,
         skip = a->causal && !a->o[FLUX__ATTEND_MASK];
    int z = with[what];
    long long features = (long long)(a->o[z]->shape.dim[0] / a->heads),
        rows = (long long)a->o[row_of[what]]->shape.dim[1];
    long long columns = (long long)a->o[column_of[what]]->shape.dim[1], tiles = (rows + 31) / 32,
        tasks = (long long)(a->heads * a->batch);
    char from[200];
    snprintf(from, sizeof from, "if (blockIdx.x < %lldu) ",
             (long long)flux__attend_blocks(rows, features));
    flux__emit_unit(a->c, "unit", tasks, from);
    flux__emit(s, "    const %s r0 = (%s)(blockIdx.x %% %lldu) * 32, "
                "e0 = (%s)(blockIdx.x / %lldu) * %d, head = unit %% %lld, sample = unit / %lld;\n",
                a->c->index, a->c->index, tiles, a->c->index, tiles, FLUX__ATTEND_FEATURES,
                (long long)a->heads, (long long)a->heads);
    flux__emit(s, "    %s acc[%d];\n    for (int j = 0; j < %d; j++) acc[j] = 0;\n", a->T,
                FLUX__ATTEND_FEATURES / 8, FLUX__ATTEND_FEATURES / 8);
    if (forward) flux__emit(s, "    if (t < 32) most[t] = -INF, sum[t] = 0;\n");
    if (what == FLUX__ATTEND_DQ) flux__emit_attend_stats(a, "r0", true);
    /* causal: of the tiles of keys those that a query of r0 ... r0 + 31 sees; of the tiles of
       queries those from the first that sees key r0 */
    char first[96] = "0", last[96] = "";
    const long long later = (long long)(a->keys - a->queries);
    if (skip && transposed)
        snprintf(first, sizeof first, "r0 > %lld ? (r0 - %lld) / 32 * 32 : 0", later, later);
    if (skip && !transposed) snprintf(last, sizeof last, " && c0 < r0 + %lld", later + 32);
    flux__emit(s, "    for (%s c0 = %s; c0 < %lld%s; c0 += 32) {\n    %s x[4] = { 0 };\n",
                a->c->index, first, columns, last, a->T);
    if (transposed) flux__emit_attend_stats(a, "c0", what == FLUX__ATTEND_DK);
    flux__emit_attend_product(a, "x", row_of[what], column_of[what]);
    if (!forward && what != FLUX__ATTEND_DV) {
        flux__emit(s, "    %s g[4] = { 0 };\n", a->T);
        flux__emit_attend_product(a, "g", transposed ? V : G, transposed ? G : V);
    }
    flux__emit_attend_weights(a, what);
    flux__emit(s, "    for (int e = t; e < 32 * %d; e += 256) {\n"
                "    const int f = e %% %d, i = e / %d;\n", FLUX__ATTEND_FEATURES,
                FLUX__ATTEND_FEATURES, FLUX__ATTEND_FEATURES);
    flux__emit(s, "    z[i][f] = e0 + f < %lld && c0 + i < %lld ? %s : 0;\n    }\n"
                "    __syncthreads();\n", features, columns,
                flux__attend_element(a, z, "c0 + i", "e0 + f", from, sizeof from));
    if (forward) {
        if (!a->o[FLUX__ATTEND_KEEP]) flux__emit_attend_sums(a);
        flux__emit(s, "    for (int j = 0; j < %d; j++) acc[j] *= fade[r];\n",
                    FLUX__ATTEND_FEATURES / 8);
    }
    flux__emit(s, "#pragma unroll 4\n    for (int i = 0; i < 32; i++)\n"
                "    for (int j = 0; j < %d; j++) acc[j] = fma%s(w[r][i], z[i][c + j * 8], "
                "acc[j]);\n    __syncthreads();\n    }\n",
                FLUX__ATTEND_FEATURES / 8, a->T[0] == 'f' ? "f" : "");
    /* a query whose keys are all masked has the result 0 */
    if (forward)
        flux__emit(s, "    if (t < 32 && most[t] == -INF) sum[t] = INF;\n    __syncthreads();\n");
    flux__emit(s, "    for (int j = 0; j < %d; j++) {\n    const %s f = e0 + c + j * 8;\n",
                FLUX__ATTEND_FEATURES / 8, a->c->index);
    flux__emit(s, "    if (r0 + r < %lld && f < %lld) p%d[%lld + ((sample * %lld + r0 + r) * %lld "
                "+ head) * %lld + f] = acc[j]", rows, features, a->out, (long long)at, rows,
                (long long)a->heads, features);
    if (forward) flux__emit(s, " / sum[r];\n    }\n");
    else if (what == FLUX__ATTEND_DV) flux__emit(s, ";\n    }\n");
    else flux__emit(s, " * (%s)%.17g;\n    }\n", a->T, 1 / sqrt((double)a->d));
    if (forward) {
        flux__emit(s, "    if (e0 == 0 && t < 32 && r0 + t < %lld) {\n"
                    "    const %s q = %lld + (unit * %lld + r0 + t) * 2;\n", rows, a->c->index,
                    (long long)(a->dv * a->heads * a->queries * a->batch), rows);
        flux__emit(s, "    p%d[q] = most[t], p%d[q + 1] = 1 / sum[t];\n    }\n", a->out, a->out);
    }
    flux__emit(s, "    __syncthreads();\n    }\n");
}

/* What the texts of attention's node t need to know of it. */
static flux__attend_text flux__attend_of(flux__emitter *c, const flux_tensor *t, int out) {
    const flux__kernel *k = c->k;
    flux__attend_text a;
    memset(&a, 0, sizeof a);
    a.c = c, a.T = flux__dtype_types[t->dtype], a.X = flux__class_names[flux__class_of(t->dtype)];
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

/* The kernel of an attention, forward or gradients (back): shared memory, then the text of each
   result for its blockIdx.z. The output holds y and two numbers a query, or the gradients of q,
   k and v, one behind the other. */
static bool flux__code_attend(const flux__attend_text *text, bool back) {
    flux__attend_text a = *text;
    flux__emitter *c = a.c;
    int64_t q = a.d * a.heads * a.queries * a.batch, most = 0, n, tasks = a.heads * a.batch;
    flux__emit(&c->s,
                "    __shared__ %s a_tile[16][33], b_tile[16][33], w[32][33], z[32][%d], most[32], "
                "sum[32], fade[32];\n", a.T, FLUX__ATTEND_FEATURES + 1);
    flux__emit(&c->s, "    const int t = (int)threadIdx.x, r = t / 8, c = t %% 8;\n");
    for (int what = back ? FLUX__ATTEND_DQ : FLUX__ATTEND_Y;
         what <= (back ? FLUX__ATTEND_DV : FLUX__ATTEND_Y); what++) {
        if (back) flux__emit(&c->s, "    if (blockIdx.z == %du) {\n", what - FLUX__ATTEND_DQ);
        flux__emit_attend(&a, what, what == FLUX__ATTEND_DK ? q
                           : what == FLUX__ATTEND_DV ? q + a.d * a.heads * a.keys * a.batch : 0);
        if (back) flux__emit(&c->s, "    }\n");
        n = flux__attend_blocks(what >= FLUX__ATTEND_DK ? a.keys : a.queries,
                                what == FLUX__ATTEND_Y || what == FLUX__ATTEND_DV ? a.dv : a.d);
        if (n > most) most = n;
    }
    c->gk->next.threads = 256, c->gk->next.blocks = 3;
    c->gk->next.grid[0] = (unsigned)most,
        c->gk->next.grid[1] = (unsigned)(tasks < 65535 ? tasks : 65535),
        c->gk->next.grid[2] = back ? 3 : 1;
    return flux__emitter_finish(c);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_ATTENTION_H */
