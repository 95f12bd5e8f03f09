#ifndef FLUX__GPU_SORTING_H
#define FLUX__GPU_SORTING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "kernels.h"
#include "fused.h"

/* ---------------------------------------------------------------------- gpu/sorting.h
   The text of sorts: argsort of a matrix's columns (FLUX__SORT), and the sort of
   keys that scatter_add searches in (gpu/whole.h). A launch sorts pieces, each by
   one block in its shared memory, with Batcher's bitonic sort (1968); further
   launches merge runs of pieces, FLUX__SORT_WAYS at once.

   Invariant: keys are unsigned words of 64 bits whose order is the wanted one.
   argsort's keys go with places, the numbers of their rows, and of equal keys the
   smaller place comes first, so the order is the CPU's (cpu/sorting.h); those of
   scatter_add are all different and need none. Nothing depends on which block is
   done first. Columns of few rows share a block. */

FLUX__BEGIN_LEAN

/* Keys of a block, where there are enough blocks and where there are few keys in all; runs that
   are merged at once. */
enum { FLUX__SORT_PIECE = 2048, FLUX__SORT_LEAST = 512, FLUX__SORT_FEW = 1 << 17,
       FLUX__SORT_WAYS = 8 };

/* A sort of `columns` columns of n keys. `keys` and `order` are parameters: of memory for the
   keys, twice if they are more than a piece, and of the places' result, -1 if there is none. */
typedef struct flux__sorting {
    int64_t n, columns, width;            /* width: keys that are sorted at once, a power of 2 */
    int keys, order;
    int64_t sorted;                       /* in the keys' memory: where the sorted ones start */
} flux__sorting;

/* The power of 2 of keys that a block sorts at once: all of a column, or a piece. */
static int64_t flux__sort_width(const flux__sorting *h) {
    const int64_t most = h->n * h->columns > FLUX__SORT_FEW ? FLUX__SORT_PIECE : FLUX__SORT_LEAST;
    int64_t width = 1;
    while (width < h->n && width < most) width *= 2;
    return width;
}

/* The keys of a block: columns of `width` keys, in all at least 512 where there are places. */
static int64_t flux__sort_block(const flux__sorting *h) {
    const int64_t least = h->order < 0 ? 64 : 512;
    return h->width > least ? h->width : least;
}

/* Declares the memory of the places that a launch with `left` merges behind it writes: the last
   one, and each second before it, writes to the result, the others to what follows the keys. */
static void flux__emit_order(flux__emitter *c, const flux__sorting *h, const char *name,
                             int left) {
    if (left % 2 == 0) flux__emit(&c->s, "    long long *%s = p%d;\n", name, h->order);
    else flux__emit(&c->s, "    long long *%s = p%d + %lld;\n", name, h->keys,
                    (long long)(2 * h->n * h->columns));
}

/* How many launches merge. */
static int flux__sort_merges(const flux__sorting *h) {
    int merges = 0;
    for (int64_t run = h->width; run < h->n; run *= FLUX__SORT_WAYS) merges++;
    return merges;
}

/* Begins the launch that sorts pieces, up to where the caller's text gives `key` the key of row i
   of column `column`. */
static void flux__code_pieces(flux__emitter *c, flux__sorting *h) {
    flux__listing *s = &c->s;
    int64_t block = flux__sort_block(h), rows = (h->n + h->width - 1) / h->width * h->width,
            blocks = (rows * h->columns + block - 1) / block;
    if (h->order >= 0) flux__emit_order(c, h, "order", flux__sort_merges(h));
    if (h->n > h->width || h->order < 0)
        flux__emit(s, "    u64 *keys = (u64 *)p%d;\n", h->keys);
    flux__emit(s, "    __shared__ u64 part[%lld];\n", (long long)block);
    if (h->order >= 0) flux__emit(s, "    __shared__ int place[%lld];\n", (long long)block);
    flux__emit_iterations(c, blocks);
    flux__emit(s, "    const long long first = (long long)turn * %lld;\n"
               "    for (int at = (int)threadIdx.x; at < %lld; at += %lld) {\n"
               "    const long long column = (first + at) / %lld, i = (first + at) %% %lld;\n"
               "    u64 key = ~(u64)0;\n    if (i < %lld && column < %lld) {\n", (long long)block,
               (long long)block, (long long)block / 2, (long long)rows, (long long)rows,
               (long long)h->n, (long long)h->columns);
    c->gk->next.threads = (unsigned)block / 2, c->gk->next.grid[0] = flux__gpu_blocks(blocks);
}

/* Ends the launch of flux__code_pieces: sorts, and stores what is no filling. */
static void flux__code_pieces_end(flux__emitter *c, const flux__sorting *h) {
    flux__listing *s = &c->s;
    const bool places = h->order >= 0;
    int64_t block = flux__sort_block(h), rows = (h->n + h->width - 1) / h->width * h->width;
    flux__emit(s, "    }\n    part[at] = key;\n%s    }\n", places ? "    place[at] = at;\n" : "");
    flux__emit(s, "    __syncthreads();\n    for (int run = 2; run <= %lld; run *= 2)\n"
               "    for (int far = run / 2; far > 0; far /= 2) {\n"
               "    const int i = (int)threadIdx.x;\n"
               "    const int a = 2 * i - (i & (far - 1)), b = a + far;\n"
               "    const u64 x = part[a], y = part[b];\n", (long long)h->width);
    if (places) flux__emit(s, "    const int j = place[a], k = place[b];\n");
    flux__emit(s, "    if ((x > y%s) == ((a & run) == 0 || run == %lld)) part[a] = y, part[b] = x",
               places ? " || (x == y && j > k)" : "", (long long)h->width);
    flux__emit(s, "%s;\n    __syncthreads();\n    }\n",
               places ? ", place[a] = k, place[b] = j" : "");
    flux__emit(s, "    for (int at = (int)threadIdx.x; at < %lld; at += %lld) {\n"
               "    const long long column = (first + at) / %lld, i = (first + at) %% %lld;\n"
               "    if (i < %lld && column < %lld) {\n", (long long)block, (long long)block / 2,
               (long long)rows, (long long)rows, (long long)h->n, (long long)h->columns);
    if (!places || h->n > h->width)
        flux__emit(s, "    keys[column * %lld + i] = part[at];\n", (long long)h->n);
    if (places)
        flux__emit(s, "    order[column * %lld + i] = (first + place[at]) %% %lld;\n",
                   (long long)h->n, (long long)rows);
    flux__emit(s, "    }\n    }\n    __syncthreads();\n    }\n");
}

/* Merges sorted runs of `run` keys into runs of FLUX__SORT_WAYS times as many, from one half of the
   keys' memory to the other: a key moves by the number of keys before it in the neighbouring runs,
   found by binary searches that go side by side. `left` launches follow. */
static void flux__code_merge(flux__emitter *c, flux__sorting *h, int64_t run, int left) {
    flux__listing *s = &c->s;
    int64_t total = h->n * h->columns, to = h->sorted ? 0 : total,
            all = run * FLUX__SORT_WAYS;
    bool stores = h->order < 0 || left;   /* nobody reads the keys behind argsort's last launch */
    flux__emit(s, "    const u64 *keys = (const u64 *)p%d + %lld;\n", h->keys,
               (long long)h->sorted);
    if (stores) flux__emit(s, "    u64 *merged = (u64 *)p%d + %lld;\n", h->keys, (long long)to);
    if (h->order >= 0) {
        flux__emit_order(c, h, "order", left + 1);
        flux__emit_order(c, h, "put", left);
    }
    flux__emit(s, "    for (long long o = (long long)blockIdx.x * 256 + threadIdx.x; o < %lld; "
               "o += (long long)gridDim.x * 256) {\n"
               "    const u64 key = keys[o];\n    const long long column = o / %lld * %lld, "
               "i = o - column, first = i / %lld * %lld;\n", (long long)total, (long long)h->n,
               (long long)h->n, (long long)all, (long long)all);
    flux__emit(s, "    const int own = (int)((i - first) / %lld);\n"
               "    long long at = column + first + (i - first) %% %lld;\n"
               "    int low[%d], high[%d];\n    FULLY\n    for (int way = 0; way < %d; way++) {\n"
               "    const long long left = %lld - first - way * %lldLL;\n",
               (long long)run, (long long)run, FLUX__SORT_WAYS, FLUX__SORT_WAYS, FLUX__SORT_WAYS,
               (long long)h->n, (long long)run);
    flux__emit(s, "    low[way] = 0, high[way] = way == own || left < 0 ? 0 : left < %lld ? "
               "(int)left : %lld;\n    }\n#pragma unroll 1\n"
               "    for (int size = %lld; size > 0; size /= 2) {\n    u64 other[%d];\n    FULLY\n"
               "    for (int way = 0; way < %d; way++) if (low[way] < high[way]) other[way] = "
               "keys[column + first + way * %lldLL + (low[way] + high[way]) / 2];\n",
               (long long)run, (long long)run, (long long)run, FLUX__SORT_WAYS, FLUX__SORT_WAYS,
               (long long)run);
    flux__emit(s, "    FULLY\n    for (int way = 0; way < %d; way++) if (low[way] < high[way]) {\n"
               "    if (other[way] < key || (other[way] == key && way < own)) "
               "low[way] = (low[way] + high[way]) / 2 + 1;\n"
               "    else high[way] = (low[way] + high[way]) / 2;\n    }\n    }\n    FULLY\n"
               "    for (int way = 0; way < %d; way++) at += low[way];\n", FLUX__SORT_WAYS,
               FLUX__SORT_WAYS);
    if (stores) flux__emit(s, "    merged[at] = key;\n");
    if (h->order >= 0) flux__emit(s, "    put[at] = order[o];\n");
    flux__emit(s, "    }\n");
    c->gk->next.threads = 256, c->gk->next.grid[0] = flux__gpu_blocks((total + 255) / 256);
    h->sorted = to;
}

/* The launches of a sort that flux__code_pieces began. */
static bool flux__code_sort(flux__emitter *c, flux__sorting *h) {
    int left = flux__sort_merges(h);
    flux__code_pieces_end(c, h);
    bool ok = flux__emitter_finish(c);
    for (int64_t run = h->width; ok && run < h->n; run *= FLUX__SORT_WAYS) {
        flux__code_merge(c, h, run, --left);
        ok = flux__emitter_finish(c);
    }
    return ok;
}

/* The kernel of argsort. All bits of a negative number are inverted, and the sign alone of others;
   -0 is 0, and NaN is the largest word. */
static bool flux__code_argsort(flux__emitter *c, flux__kernel *k, const flux_tensor *t, int out) {
    const flux__operand *x = &k->operand[0];
    const bool real = flux__dtypes[x->dtype].real;
    FLUX__ZEROED(flux__sorting, h);
    h.n = t->dim[0], h.columns = t->dim[1], h.keys = -1, h.width = flux__sort_width(&h);
    int px = flux__emitter_slot(c, x->src, x->dtype);
    h.order = flux__emitter_slot(c, out, FLUX_I64);
    if (h.n > h.width) {
        h.keys = flux__emitter_param(c, 's', 0, "long long *");
        k->scratch = (size_t)(h.n * h.columns) * 24;
    }
    flux__code_pieces(c, &h);
    flux__emit(&c->s, "    const %s x = p%d[%lld + i * %lld + column * %lld];\n",
               real ? "double" : "long long", px, (long long)x->offset, (long long)x->stride[0],
               (long long)x->stride[1]);
    flux__emit(&c->s, real ? "    const u64 w = WORDS_OF(x), sign = (u64)1 << 63;\n    key = "
                             "x != x ? ~(u64)0 : x == 0 ? sign : w & sign ? ~w : w | sign;\n"
                           : "    key = (u64)x ^ (u64)1 << 63;\n");
    if (t->arg.i[0]) flux__emit(&c->s, "    key = ~key;\n");
    return flux__code_sort(c, &h);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_SORTING_H */
