#ifndef FLUX__GPU_GEMM_MMA_H
#define FLUX__GPU_GEMM_MMA_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "kernels.h"
#include "fused.h"
#include "gemm.h"
#include "gemm_fma.h"
#include "gemm_wgmma.h"
#include "gemm_planes.h"

/* ---------------------------------------------------------------------- gpu/gemm_mma.h
   The product with a chip's instruction on small matrices (flux__fragment: tensor
   cores, matrix cores), and flux__code_product, which chooses between the two
   kinds of kernels. Its text is made of three parts over one description
   (flux__warp_tile, flux__tile): fetch brings the next tiles of the operands
   (flux__emit_fetch, flux__emit_put), multiply has each warp load fragments and
   add their products (flux__emit_warp_steps), finish sends the sums through shared
   memory to the epilogue (flux__emit_warp_sums).

   Invariant: the tile of an operand has the layout that the operand has in memory:
   lines of its contiguous side. Where every chunk of 16 bytes is whole and aligned
   a line is copied chunk by chunk from an address that grows by constants, else
   element by element. A chip whose instruction loads fragments of half floats
   (four) has chunk c of line y at c ^ swizzle(y), so that neither copies nor the
   eight lines that a fragment takes meet in a bank of shared memory; else lines
   are padded. While one tile is multiplied the next ones are under way, in
   registers, or by asynchronous copies in two or three stages more. Matrix
   instructions need both operands in one dtype; f32 uses TF32 only if that was
   allowed. Layout and alignment change no sum: tiles of any kind add one fragment
   of the inner dim after the other. */

FLUX__BEGIN_LEAN

typedef struct flux__warp_tile {
    int m, n, k, wm, wn;                  /* block's tile m x n, a warp's part wm x wn; k is in
                                             bytes */
} flux__warp_tile;

typedef struct flux__tile {               /* an operand's tile in shared memory, fast x slow
                                             elements */
    const flux__factor *f;
    const char *type;                     /* of an element in the text */
    int size, chunk,                      /* bytes of an element; elements of a chunk */
        fast, slow, pitch;                /* the side that is contiguous, the other, and the stride
                                             of the other */
    int row, in;                          /* strides in the tile across (along M or N) and along the
                                             inner dim */
    int per, rows, count, threads;        /* chunks of a line; lines between two chunks of a thread;
                                             chunks that a thread loads; how many threads load */
    bool whole, swizzled, ahead;          /* chunks of 16 bytes; lines are not padded but swizzled;
                                             by asynchronous copies to shared memory */
    bool fits[2];                         /* the tile divides the operand across, and along the
                                             inner dim */
} flux__tile;

/* The tile of operand f, `width` across by `depth` of the inner dim, that `threads` threads
   load. */
static flux__tile flux__tile_of(const flux__kernel *k, const flux__factor *f,
                                const flux__fragment *fragment, int width, int depth, int threads) {
    flux__tile t;
    t.f = f;
    t.size = flux__is_half(f->o->dtype) ? 2 : 4;
    t.type = t.size == 2 ? "unsigned short" : "float";
    t.whole = flux__chunks_fit(f, k->mnk[2], 16 / t.size);
    t.chunk = (t.whole ? 16 : 4) / t.size;
    t.ahead = t.whole && fragment->ahead, t.swizzled = t.whole && fragment->fours;
    t.fast = f->deep ? depth : width, t.slow = f->deep ? width : depth;
    t.pitch = t.fast + (t.swizzled ? 0 : f->deep ? 16 / t.size : 8);
    t.row = f->deep ? t.pitch : 1, t.in = f->deep ? 1 : t.pitch;
    t.per = t.fast / t.chunk, t.rows = threads / t.per;
    t.count = (t.per * t.slow + threads - 1) / threads;
    t.threads = t.per * t.slow < threads ? t.per * t.slow : threads;
    t.fits[0] = f->limit % width == 0, t.fits[1] = k->mnk[2] % depth == 0;
    return t;
}

/* What chunks of line `y` are exchanged by. Lines of fewer than 8 chunks, 128 bytes, share it. */
static void flux__emit_swizzle(flux__listing *s, const flux__tile *t, const char *y) {
    int n = t->fast / 8 < 8 ? t->fast / 8 : 8;
    flux__emit(s, "%s / %d %% %d", y, 8 / n, n);
}

/* Declares where a thread's chunks begin: across, along the inner dim, in memory, in shared
   memory. */
static void flux__emit_tile_start(flux__emitter *c, const flux__tile *t) {
    const flux__factor *f = t->f;
    flux__listing *s = &c->s;
    char n = f->name, y[8];
    if (!t->whole) return;
    flux__emit(s, "    const int %c_x = t %% %d * %d, %c_y = t / %d;\n", n, t->per, t->chunk, n,
                t->per);
    flux__emit(s, "    const %s %c_i = %c0 + %c_%c, %c_l = %c_%c;\n", c->index, n, n, n,
                f->deep ? 'y' : 'x', n, n, f->deep ? 'x' : 'y');
    if (flux__goes_by_rows(f)) flux__emit_rows(c, f, t->count, t->rows);
    if (!f->o->gather)
        flux__emit(s, "    const %s *%c_from = p%d + %c_at + %c_i * (%s)%lld + (begin + %c_l) * "
                "(%s)%lld;\n", t->type, n, f->p, n, n, c->index,
                (long long)flux__first_step(&f->across), n, c->index,
                (long long)flux__first_step(&f->in));
    flux__emit(s, "    char *const %c_put = %c_tile + %c_y * %d + ", n, n, n, t->pitch * t->size);
    snprintf(y, sizeof y, "%c_y", n);
    if (t->swizzled) {
        flux__emit(s, "(%c_x / 8 ^ ", n);
        flux__emit_swizzle(s, t, y);
        flux__emit(s, ") * 16;\n");
    } else flux__emit(s, "%c_x * %d;\n", n, t->size);
    if (!t->ahead) flux__emit(s, "    words4 %c_words[%d];\n", n, t->count);
}

/* Opens a block of text for the threads that load, and a loop over their chunks: of a small tile
   not all have one. */
static void flux__emit_chunks(flux__listing *s, const flux__tile *t, int threads) {
    if (t->threads < threads) flux__emit(s, "    if (t < %d)", t->threads);
    flux__emit(s, "    {\n#pragma unroll\n    for (int u = 0; u < %d; u++) {\n", t->count);
}

/* Fetch of single elements, two half floats to a word. Beyond the matrix are zeros. */
static void flux__emit_elements(flux__emitter *c, const flux__tile *t) {
    const flux__factor *f = t->f;
    flux__listing *s = &c->s;
    char n = f->name;
    flux__emit(s, "    const int y = t / %d + u * %d;\n    %c_words[u] = 0;\n#pragma unroll\n"
                "    for (int q = 0; q < %d; q++) {\n    const int x = t %% %d * %d + q;\n",
                t->per, t->rows, n, t->chunk, t->per, t->chunk);
    flux__emit(s, "    const %s i = %c0 + %c, l = l0 + %c;\n", c->index, n, f->deep ? 'y' : 'x',
               f->deep ? 'x' : 'y');
    flux__emit_there(c, f);
    flux__emit(s, "    const %s from = there ? ", c->index);
    flux__emit_element(s, f);
    flux__emit(s, " : 0;\n");
    if (t->size == 2)
        flux__emit(s, "    if (there) %c_words[u] |= (u32)p%d[from] << q * 16;\n    }\n", n, f->p);
    else flux__emit(s, "    if (there) %c_words[u] = BITS_OF(p%d[from]);\n    }\n", n, f->p);
}

/* Fetch: loads the thread's chunks of the tile that begins at l0 of the inner dim, into the
   registers a_words or b_words, or by asynchronous copies to the stage `next`. */
static void flux__emit_fetch(flux__emitter *c, const flux__tile *t, int threads) {
    const flux__factor *f = t->f;
    flux__listing *s = &c->s;
    char n = f->name;
    const char l[] = { '(', 'l', '0', ' ', '+', ' ', n, '_', 'l', ')', 0 };
    if (t->whole && flux__goes_by_rows(f)) flux__emit_turn(c, f, l);
    flux__emit_chunks(s, t, threads);
    if (!t->whole) {
        flux__emit_elements(c, t);
        flux__emit(s, "    }\n    }\n");
        return;
    }
    int64_t step = flux__first_step(&f->in),
        apart = t->rows * (f->deep ? flux__first_step(&f->across) : step);
    if (f->o->gather) {
        flux__emit(s, "    const %s i = %c_i + u * %d, l = l0 + %c_l + u * %d;\n", c->index, n,
                   f->deep ? t->rows : 0, n, f->deep ? 0 : t->rows);
        flux__emit_window(c, f, t->type);
    } else {
        flux__emit(s, "    const int there = l0");
        if (!t->fits[1]) flux__emit(s, " + %c_l + u * %d", n, f->deep ? 0 : t->rows);
        flux__emit(s, " < end");
        if (!t->fits[0])
            flux__emit(s, " && %c_i + u * %d < %lld", n, f->deep ? t->rows : 0,
                       (long long)f->limit);
        flux__emit(s, ";\n    const %s *const from = %c_from + u * (%s)%lld;\n", t->type, n,
                   c->index, (long long)apart);
    }
    if (t->ahead)
        flux__emit(s, "    copy_16(%c_put + next + u * %d, from, there ? 16 : 0);\n", n,
                    t->rows * t->pitch * t->size);
    else flux__emit(s, "    if (there) %c_words[u] = *(const words4 *)from;\n"
                     "    else for (int q = 0; q < 4; q++) %c_words[u].x[q] = 0;\n", n, n);
    flux__emit(s, "    }\n");
    if (!f->o->gather)
        flux__emit(s, "    %c_from += (%s)%lld;\n", n, c->index,
                   (long long)(step * (f->deep ? t->fast : t->slow)));
    flux__emit(s, "    }\n");
}

/* Stores what flux__emit_fetch loaded into registers to the stage `next`. */
static void flux__emit_put(flux__emitter *c, const flux__tile *t, int threads) {
    char n = t->f->name;
    if (t->ahead) return;
    flux__emit_chunks(&c->s, t, threads);
    if (t->whole)
        flux__emit(&c->s, "    *(words4 *)(%c_put + next + u * %d) = %c_words[u];\n", n,
                    t->rows * t->pitch * t->size, n);
    else flux__emit(&c->s, "    *(u32 *)(%c_tile + next + (t / %d + u * %d) * %d + t %% %d * 4) = "
                     "%c_words[u];\n", n, t->per, t->rows, t->pitch * t->size, t->per, n);
    flux__emit(&c->s, "    }\n    }\n");
}

/* The largest tile of which there are enough and of which the result has more than half along
   both sides, else the smallest; an oblong one is for results that are narrow, not for few tiles.
   Warps of 64 lanes have their own shapes, and so have fragments
   that are loaded by fours, where `whole` says that the chunks of both operands are. */
static flux__warp_tile flux__choose_warp_tile(const flux__kernel *k, const flux__fragment *f,
                                              bool whole) {
    static const flux__warp_tile small = { 32, 32, 128, 16, 16 }, shapes[3][3] = {
        { { 128, 128, 64, 64, 32 }, { 128, 64, 64, 64, 32 }, { 64, 64, 64, 32, 32 } },
        { { 128, 128, 64, 64, 64 }, { 128, 64, 64, 64, 32 }, { 64, 64, 64, 32, 32 } },
        { { 128, 128, 64, 64, 64 }, { 128, 64, 128, 64, 32 }, { 64, 64, 128, 32, 32 } } };
    const flux__warp_tile *t = shapes[f->lanes > 32 ? 1 : f->fours && whole ? 2 : 0];
    for (int i = 0; i < 3; i++, t++)
        if (flux__product_blocks(k, t->m, t->n) >= FLUX__ENOUGH_BLOCKS * (i == 1 ? 2 : 1) &&
            k->mnk[0] > t->m / 2 && k->mnk[1] > t->n / 2)
            return *t;
    return small;
}

/* Finish of a warp's wm x wn sums. They go through shared memory, 16 columns at a time with
   leading dimension wm + 4, so that a thread has neighbours of the result, and neighbouring
   threads the next ones. */
static void flux__emit_warp_sums(flux__emitter *c, const flux__warp_tile *t,
                                  const flux__fragment *f, const flux__parts *split) {
    flux__listing *s = &c->s;
    int pitch = t->wm + 4, width = flux__sum_width(c, split, 8), per = t->wm / width;
    const char *V = width > 1 ? "float_pack" : "float";
    flux__emit(s, "    float *const out = (float *)shared + warp * %d;\n#pragma unroll\n"
                "    for (int y = 0; y < %d; y++) {\n", 16 * pitch, t->wn / 16);
    flux__emit(s, "    __syncthreads();\n#pragma unroll\n    for (int x = 0; x < %d; x++)\n"
                "#pragma unroll\n    for (int e = 0; e < %d; e++) "
                "out[mma_col(e) * %d + x * 16 + mma_row(e)] = sum[x][y][e];\n"
                "    __syncthreads();\n", t->wm / 16, 256 / f->lanes, pitch);
    flux__emit(s, "    for (int e = t %% %d; e < %d; e += %d) {\n"
                "    const %s i = a0 + wi + e %% %d * %d, j = b0 + wj + y * 16 + e / %d;\n",
                f->lanes, 16 * per, f->lanes, c->index, per, width, per);
    flux__emit(s, "    if (i < %lld && j < %lld) {\n"
                "    const %s *const from = (const %s *)(out + e / %d * %d + e %% %d * %d);\n",
                (long long)c->k->mnk[0], (long long)c->k->mnk[1], V, V, per, pitch, per, width);
    flux__emit_sum(c, split, "float", width, width > 1 ? "from[j / 4].x[j % 4]" : "*from");
    flux__emit(s, "    }\n    }\n    }\n    __syncthreads();\n");
}

/* Declares a_lane: where the lane's line of a swizzled tile's fragments begins, whose chunk
   differs by the place along the contiguous side; `w`: where the warp's part begins. A fragment is
   four matrices of 8 x 8, whose lines the lanes name in turn: of a those of 16 rows, then the next
   8 of the inner dim, of b those of 8 columns and both halves of the inner dim. */
static void flux__emit_lane(flux__listing *s, const flux__tile *t, const char *w, int width) {
    char n = t->f->name, row[8];
    int count = (t->f->deep ? t->fast : width) / 16;
    bool rows_first = (n == 'a') == t->f->deep;
    if (!t->swizzled) return;
    flux__emit(s, rows_first ? "    const int %c_q = t %% 16, %c_c = t %% 32 / 16;\n"
                             : "    const int %c_q = t %% 8 + t %% 32 / 16 * 8, "
                               "%c_c = t %% 32 / 8 %% 2;\n", n, n);
    flux__emit(s, "    const char *%c_lane[%d];\n#pragma unroll\n    for (int v = 0; v < %d; v++) "
                "%c_lane[v] = %c_tile + (%c_q%s%s) * %d + ((%s%sv * 2 + %c_c) ^ ", n, count,
                count, n, n, n, t->f->deep ? " + " : "", t->f->deep ? w : "", t->pitch * 2,
                t->f->deep ? "" : w, t->f->deep ? "" : " / 8 + ", n);
    snprintf(row, sizeof row, "%c_q", n);
    flux__emit_swizzle(s, t, row);
    flux__emit(s, ") * 16;\n");
}

/* Loads a warp's fragments at l of the inner dim into `to`, n of 16 rows or columns. */
static void flux__emit_fragments(flux__listing *s, const flux__tile *t, const flux__fragment *f,
                                 const char *w, char to, int count) {
    char n = t->f->name;
    flux__emit(s, "#pragma unroll\n    for (int i = 0; i < %d; i++) ", count);
    if (t->swizzled)
        flux__emit(s, "four%s(%c[i], %c_lane[%s] + stage + %s * %d);\n",
                    t->f->deep ? "" : "_turned", to, n,
                    t->f->deep ? "l / 16" : "i", t->f->deep ? "i" : "l / 16", 32 * t->pitch);
    else flux__emit(s, "mma_%c_%s(%c[i], (const %s *)(%c_tile + stage) + (%s + i * 16) * %d + "
                     "l * %d, %d, %d);\n", n, f->name, to, t->type, n, w, t->row, t->in, t->row,
                     t->in);
}

/* Multiply: adds the products of the operands' tiles at `stage`, f->k of the inner dim at a
   time. */
static void flux__emit_warp_steps(flux__emitter *c, const flux__warp_tile *w,
                                   const flux__fragment *f, const flux__tile *a,
                                   const flux__tile *b) {
    flux__listing *s = &c->s;
    int x = w->wm / 16, y = w->wn / 16;
    flux__emit(s, "#pragma unroll\n    for (int l = 0; l < %d; l += %d) {\n"
                "    u32 x[%d][%d], y[%d][%d];\n", w->k / a->size, f->k, x, f->words, y, f->words);
    flux__emit_fragments(s, a, f, "wi", 'x', x);
    flux__emit_fragments(s, b, f, "wj", 'y', y);
    flux__emit(s, "#pragma unroll\n    for (int i = 0; i < %d; i++)\n#pragma unroll\n"
                "    for (int j = 0; j < %d; j++) mma_%s(sum[i][j], x[i], y[j]);\n    }\n", x, y,
                f->name);
}

/* Declares the tiles of `stages` stages, `each` bytes of both operands, and a thread's sums; and
   sets these to 0. */
static void flux__emit_warp_start(flux__emitter *c, const flux__warp_tile *w,
                                  const flux__fragment *f, const flux__tile *a, const flux__tile *b,
                                  int stages, int each, const flux__parts *split) {
    flux__listing *s = &c->s;
    int x = w->wm / 16, y = w->wn / 16, tiles = stages * each,
        out = w->m / w->wm * (w->n / w->wn) * 16 * (w->wm + 4) * 4;
    flux__emit(s, "    __shared__ ALIGN16 u32 shared[%d];\n"
                "    char *const a_tile = (char *)shared, *const b_tile = a_tile + %d;\n",
                (tiles > out ? tiles : out) / 4, a->slow * a->pitch * a->size);
    flux__emit_numbers(c);
    flux__emit(s, "    const int t = (int)threadIdx.x, warp = t / %d, wi = warp %% %d * %d, "
                "wj = warp / %d * %d;\n", f->lanes, w->m / w->wm, w->wm, w->m / w->wm, w->wn);
    flux__emit_lane(s, a, "wi", w->wm);
    flux__emit_lane(s, b, "wj", w->wn);
    flux__emit_product_start(c, a->f, b->f, w->m, w->n, split);
    flux__emit(s, "    float sum[%d][%d][%d];\n#pragma unroll\n    for (int x = 0; x < %d; x++)\n"
                "#pragma unroll\n    for (int y = 0; y < %d; y++)\n#pragma unroll\n"
                "    for (int e = 0; e < %d; e++) sum[x][y][e] = 0;\n", x, y, 256 / f->lanes, x, y,
                256 / f->lanes);
    flux__emit_tile_start(c, a);
    flux__emit_tile_start(c, b);
    if (!a->whole) flux__emit(s, "    u32 a_words[%d];\n", a->count);
    if (!b->whole) flux__emit(s, "    u32 b_words[%d];\n", b->count);
}

/* One turn: fetches the tiles at l0 to the stage `next` and, but before the loop, multiplies those
   of `stage`. `stages` tiles of each operand, of which one is multiplied, are under way. */
static void flux__emit_warp_turn(flux__emitter *c, const flux__warp_tile *w,
                                 const flux__fragment *f, const flux__tile *a, const flux__tile *b,
                                 int threads, int stages, bool multiplies) {
    const bool ahead = a->ahead || b->ahead;
    if (multiplies && ahead) flux__emit(&c->s, "    copies_left(%d);\n", stages - 2);
    if (multiplies) flux__emit(&c->s, "    __syncthreads();\n");
    flux__emit_fetch(c, a, threads);
    flux__emit_fetch(c, b, threads);
    if (ahead) flux__emit(&c->s, "    copies_end();\n");
    if (multiplies) flux__emit_warp_steps(c, w, f, a, b);
    flux__emit_put(c, a, threads);
    flux__emit_put(c, b, threads);
}

/* The product with matrix instructions, a pipeline of 2 to 4 tiles: `stages` - 1 are loaded
   before the loop, and each turn of it loads one more and multiplies the oldest. Turns of swizzled
   tiles stand one after the other, one for each stage, so that places in shared memory are
   constants. Sums of any dtype are f32. The sums' way through shared memory (flux__emit_warp_sums)
   uses the tiles' place. */
static void flux__code_mma_product(flux__emitter *c, const flux__factor *fa,
                                       const flux__factor *fb, const flux__fragment *f,
                                       const flux__warp_tile *tile, const flux__parts *split) {
    flux__warp_tile w = *tile;
    int threads = w.m / w.wm * (w.n / w.wn) * f->lanes,
        depth = w.k / (flux__is_half(fa->o->dtype) ? 2 : 4), stages = 2;
    flux__tile a = flux__tile_of(c->k, fa, f, w.m, depth, threads),
        b = flux__tile_of(c->k, fb, f, w.n, depth, threads);
    int each = (a.slow * a.pitch + b.slow * b.pitch) * a.size;
    const bool ahead = a.ahead || b.ahead, apart = a.swizzled && b.swizzled && a.ahead && b.ahead;
    if (a.ahead && b.ahead) stages = 49152 / each < 4 ? 49152 / each : 4;
    const int before = (stages - 1) * depth, last = (stages - 1) * each;
    flux__listing *s = &c->s;
    flux__emit_warp_start(c, &w, f, &a, &b, stages, each, split);
    flux__emit(s, "#pragma unroll\n    for (int q = 0; q < %d; q++) {\n"
               "    const int next = q * %d;\n    const %s l0 = begin + q * %d;\n", stages - 1,
               each, c->index, depth);
    flux__emit_warp_turn(c, &w, f, &a, &b, threads, stages, false);
    flux__emit(s, "    }\n    %s l0 = begin + %d;\n%s#pragma unroll 1\n    for (; l0 < end + %d; "
               "l0 += %d) {\n", c->index, before, apart ? "" : "    int stage = 0, next = 0;\n",
               before, depth);
    for (int q = 0; q < (apart ? stages : 1); q++) {
        if (q) flux__emit(s, "    l0 += %d;\n    if (l0 >= end + %d) break;\n", depth, before);
        if (apart) flux__emit(s, "    { const int stage = %d, next = %d;\n", q * each,
                              (q + stages - 1) % stages * each);
        else flux__emit(s, "    next = stage == 0 ? %d : stage - %d;\n", last, each);
        flux__emit_warp_turn(c, &w, f, &a, &b, threads, stages, true);
        if (apart) flux__emit(s, "    }\n");
        else flux__emit(s, "    stage = stage == %d ? 0 : stage + %d;\n", last, each);
    }
    flux__emit(s, "    }\n");
    if (ahead) flux__emit(s, "    copies_left(0);\n");
    flux__emit_warp_sums(c, &w, f, split);
    flux__emit(s, "    }\n    }\n");
    c->gk->next.threads = (unsigned)threads;
    /* Two large blocks share a multiprocessor if their registers suffice, which they do not
       where 256 threads load the next tile into registers, nor with TF32. */
    c->gk->next.blocks = w.m < 128 ? 3 : threads < 256 ? 2 : 1;
}

/* The text of a product's kernel, and that of the launch that joins its parts: by warps if the
   chip has a matrix instruction for the operands' dtype. False: no memory. */
static bool flux__code_product(flux__emitter *c, flux__kernel *k, const flux__gpu *g, bool tf32) {
    flux__factor a = flux__factor_of(c, 0), b = flux__factor_of(c, 1);
    const flux__driver *d = g->driver;
    bool cores = a.o->dtype == b.o->dtype && k->mnk[2] > 0,     /* K = 0: nothing to multiply */
        f64 = a.o->dtype == FLUX_F64;
    const flux__fragment *f = cores ? d->fragment(g->info.arch, a.o->dtype, tf32) : NULL;
    /* f16's instruction stands for the chip's asynchronous copies */
    const flux__fragment *chip = f ? f : d->fragment(g->info.arch, FLUX_F16, tf32);
    flux__planes planes = flux__planes_of(k, &a, &b, g, tf32);
    if (planes.n) return flux__code_plane_product(c, k, &planes, &a, &b, chip && chip->ahead);
    const int rows = f ? flux__wgmma_tile(c, &a, &b, g) : 0;
    flux__warp_tile w;
    flux__fma_tile t;
    memset(&w, 0, sizeof w), memset(&t, 0, sizeof t);
    if (f) w = flux__choose_warp_tile(k, f, flux__chunks_fit(&a, k->mnk[2], 8) &&
                                            flux__chunks_fit(&b, k->mnk[2], 8));
    else t = flux__choose_fma_tile(k);
    /* of tiles that differ by their operands' layout the longest tells how a split is rounded */
    flux__parts split = rows ? flux__wgmma_parts(c, rows)
                      : flux__parts_of(c, f ? w.m : t.m, f ? w.n : t.n,
                                       f && f->fours ? 64
                                       : f ? w.k / (flux__is_half(a.o->dtype) ? 2 : 4)
                                       : t.k * t.groups);
    const char *T = f64 ? "double" : "float";
    if (split.parts > 1) {                /* a dry run declares the second launch's parameters */
        flux__code_product_parts(c, &split, T);
        c->s.n = 0;
        flux__step_start(&c->gk->next);
        k->scratch = (size_t)(split.parts * split.points) * (f64 ? 8 : 4);
    }
    const flux__ring ring = flux__ring_of(rows, 1, "");
    if (rows) flux__code_wgmma_product(c, &a, &b, &ring, &split);
    else if (f) flux__code_mma_product(c, &a, &b, f, &w, &split);
    else flux__code_fma_product(c, &a, &b, &t, &split, chip && chip->ahead);
    bool ok = flux__emitter_finish(c);
    if (!ok || split.parts == 1) return ok;
    flux__code_product_parts(c, &split, T);
    return flux__emitter_finish(c);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_MMA_H */
