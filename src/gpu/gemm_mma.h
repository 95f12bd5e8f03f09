#ifndef FLUX__GPU_GEMM_MMA_H
#define FLUX__GPU_GEMM_MMA_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "kernels.h"
#include "fused.h"
#include "gemm.h"
#include "gemm_fma.h"

/* ---------------------------------------------------------------------- gpu/gemm_mma.h
   The product with a chip's instruction on small matrices (flux__fragment: tensor
   cores, matrix cores), and flux__code_product, which chooses between the two
   kinds of kernels.

   Invariant: the warps' tile of an operand has the layout that the operand has in
   memory, with rows padded so that they start in different banks. It is loaded in
   chunks of 16 bytes if every chunk is whole and aligned, else of 4. While one
   tile is multiplied the next is loaded, into registers, or directly into shared
   memory if the chip has asynchronous copies. Matrix instructions need both
   operands in one dtype; f32 uses TF32 only if that was allowed. */

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
    int count, threads;                   /* chunks that a thread loads, and how many threads
                                             load */
    bool ahead;                           /* by asynchronous copies to shared memory */
} flux__tile;

/* The tile of operand f, `width` across by `depth` of the inner dim, that `threads` threads
   load. */
static flux__tile flux__tile_of(const flux__kernel *k, const flux__factor *f,
                                const flux__fragment *fragment, int width, int depth, int threads) {
    flux__tile t;
    t.f = f;
    t.size = flux__is_half(f->o->dtype) ? 2 : 4;
    t.type = t.size == 2 ? "unsigned short" : "float";
    t.chunk = 16 / t.size;
    bool whole = flux__chunks_fit(f, k->mnk[2], t.chunk);
    if (!whole) t.chunk = 4 / t.size;
    t.ahead = whole && fragment->ahead;
    t.fast = f->deep ? depth : width, t.slow = f->deep ? width : depth;
    t.pitch = t.fast + (f->deep ? 16 / t.size : 8);
    t.row = f->deep ? t.pitch : 1, t.in = f->deep ? 1 : t.pitch;
    int chunks = t.fast / t.chunk * t.slow;
    t.count = (chunks + threads - 1) / threads;
    t.threads = chunks < threads ? chunks : threads;
    return t;
}

/* Opens a block of text for the threads that load: of a small tile not all have a chunk. */
static void flux__emit_guard(flux__listing *s, const flux__tile *t, int threads) {
    if (t->threads < threads) flux__emit(s, "    if (t < %d)", t->threads);
    flux__emit(s, "    {\n");
}

/* Loads the thread's chunks of the tile that begins at l0 of the inner dim: into the registers
   a_words or b_words, or by asynchronous copies to tile number `stage` in shared memory. Beyond
   the matrix are zeros. */
static void flux__emit_fetch(flux__emitter *c, const flux__tile *t, int threads,
                             const char *stage) {
    const flux__factor *f = t->f;
    flux__listing *s = &c->s;
    int per = t->fast / t->chunk;
    char n = f->name;
    flux__emit_guard(s, t, threads);
    flux__emit(s, "#pragma unroll\n    for (int u = 0; u < %d; u++) {\n"
                "    const int y = t / %d + u * %d;\n", t->count, per, threads / per);
    if (t->chunk * t->size == 4)
        flux__emit(s, "    %c_words[u] = 0;\n#pragma unroll\n    for (int q = 0; q < %d; q++) {\n"
                    "    const int x = t %% %d * %d + q;\n", n, t->chunk, per, t->chunk);
    else flux__emit(s, "    const int x = t %% %d * %d;\n", per, t->chunk);
    flux__emit(s, "    const %s i = %c0 + %c, l = l0 + %c;\n"
                "    const int there = i < %lld && l < end;\n    const %s from = there ? ",
                c->index, n, f->deep ? 'y' : 'x', f->deep ? 'x' : 'y', (long long)f->limit,
                c->index);
    flux__emit_element(s, f);
    flux__emit(s, " : 0;\n");
    if (t->ahead)
        flux__emit(s, "    copy_16(%c_tile + %s * %d + y * %d + x, p%d + from, there ? 16 : 0);\n",
                    n, stage, t->slow * t->pitch, t->pitch, f->p);
    else if (t->chunk * t->size == 16) {
        flux__emit(s, "    if (there) %c_words[u] = *(const words4 *)(p%d + from);\n", n, f->p);
        flux__emit(s, "    else %c_words[u].x[0] = %c_words[u].x[1] = %c_words[u].x[2] = "
                    "%c_words[u].x[3] = 0;\n", n, n, n, n);
    } else if (t->size == 2)
        flux__emit(s, "    if (there) %c_words[u] |= (u32)p%d[from] << q * 16;\n    }\n", n, f->p);
    else flux__emit(s, "    if (there) %c_words[u] = BITS_OF(p%d[from]);\n    }\n", n, f->p);
    flux__emit(s, "    }\n    }\n");
}

/* Stores what flux__emit_fetch loaded into registers to tile number `stage`. */
static void flux__emit_put(flux__emitter *c, const flux__tile *t, int threads, const char *stage) {
    int per = t->fast / t->chunk;
    if (t->ahead) return;
    flux__emit_guard(&c->s, t, threads);
    flux__emit(&c->s, "#pragma unroll\n    for (int u = 0; u < %d; u++)\n"
                "    *(%s *)(%c_tile + %s * %d + (t / %d + u * %d) * %d + t %% %d * %d) = "
                "%c_words[u];\n    }\n", t->count, t->chunk * t->size == 16 ? "words4" : "u32",
                t->f->name, stage, t->slow * t->pitch, per, threads / per, t->pitch, per, t->chunk,
                t->f->name);
}

/* The largest tile of which there are enough and of which the result has more than half along
   both sides, else the smallest. Warps of 64 lanes have their own
   shapes. */
static flux__warp_tile flux__choose_warp_tile(const flux__kernel *k, const flux__fragment *f) {
    static const flux__warp_tile shapes[2][3] = {
        { { 128, 128, 64, 64, 32 }, { 64, 64, 64, 32, 32 }, { 32, 32, 128, 16, 16 } },
        { { 128, 128, 64, 64, 64 }, { 64, 64, 64, 32, 32 }, { 32, 32, 128, 16, 16 } } };
    const flux__warp_tile *t = shapes[f->lanes > 32];
    for (int i = 0; i < 2; i++, t++)
        if (flux__product_tiles(k, t->m, t->n) >= FLUX__ENOUGH_BLOCKS && k->mnk[0] > t->m / 2 &&
            k->mnk[1] > t->n / 2)
            return *t;
    return *t;
}

/* The epilogue of a warp's wm x wn sums. They go through shared memory, 16 columns at a time
   with leading dimension wm + 4, so that neighbouring threads store neighbours of the
   result. */
static void flux__emit_warp_sums(flux__emitter *c, const flux__warp_tile *t,
                                  const flux__fragment *f, const flux__parts *split) {
    flux__listing *s = &c->s;
    int pitch = t->wm + 4, sums = 256 / f->lanes;
    flux__emit(s, "    float *const out = (float *)shared + warp * %d;\n#pragma unroll\n"
                "    for (int y = 0; y < %d; y++) {\n", 16 * pitch, t->wn / 16);
    flux__emit(s, "    __syncthreads();\n#pragma unroll\n    for (int x = 0; x < %d; x++)\n"
                "#pragma unroll\n    for (int e = 0; e < %d; e++) "
                "out[mma_col(e) * %d + x * 16 + mma_row(e)] = sum[x][y][e];\n"
                "    __syncthreads();\n", t->wm / 16, sums, pitch);
    flux__emit(s, "    for (int e = t %% %d; e < %d; e += %d) {\n"
                "    const %s i = a0 + wi + e %% %d, j = b0 + wj + y * 16 + e / %d;\n", f->lanes,
                16 * t->wm, f->lanes, c->index, t->wm, t->wm);
    flux__emit(s, "    if (i < %lld && j < %lld) {\n"
                "    const float v = out[e / %d * %d + e %% %d];\n", (long long)c->k->mnk[0],
                (long long)c->k->mnk[1], t->wm, pitch, t->wm);
    flux__emit_sum(c, split, "float");
    flux__emit(s, "    }\n    }\n    }\n    __syncthreads();\n");
}

/* Multiplies the operands' tiles number `stage`: f->k of the inner dim at a time, a warp loads
   its fragments of 16 rows of a and 16 columns of b, and adds all their products to its
   sums. */
static void flux__emit_warp_steps(flux__emitter *c, const flux__warp_tile *w,
                                   const flux__fragment *f, const flux__tile *a,
                                   const flux__tile *b) {
    flux__listing *s = &c->s;
    int depth = w->k / a->size, x = w->wm / 16, y = w->wn / 16;
    flux__emit(s, "    const %s *const as = a_tile + stage * %d + wi * %d, "
                "*const bs = b_tile + stage * %d + wj * %d;\n", a->type, a->slow * a->pitch, a->row,
                b->slow * b->pitch, b->row);
    flux__emit(s, "#pragma unroll\n    for (int l = 0; l < %d; l += %d) {\n"
                "    u32 x[%d][%d], y[%d][%d];\n", depth, f->k, x, f->words, y, f->words);
    flux__emit(s, "#pragma unroll\n"
                "    for (int i = 0; i < %d; i++) mma_a_%s(x[i], as + i * %d + l * %d, %d, %d);\n",
                x, f->name, 16 * a->row, a->in, a->row, a->in);
    flux__emit(s, "#pragma unroll\n"
                "    for (int j = 0; j < %d; j++) mma_b_%s(y[j], bs + j * %d + l * %d, %d, %d);\n",
                y, f->name, 16 * b->row, b->in, b->row, b->in);
    flux__emit(s, "#pragma unroll\n    for (int i = 0; i < %d; i++)\n#pragma unroll\n"
                "    for (int j = 0; j < %d; j++) mma_%s(sum[i][j], x[i], y[j]);\n    }\n", x, y,
                f->name);
}

/* The product with matrix instructions, a pipeline of 2 to 4 tiles: `stages` - 1 are loaded
   before the loop, and each turn of it loads one more and multiplies the oldest. Sums of any
   dtype are f32. The sums' way through shared memory (flux__emit_warp_sums) uses the tiles'
   place. */
static void flux__code_mma_product(flux__emitter *c, const flux__factor *fa,
                                       const flux__factor *fb, const flux__fragment *f,
                                       const flux__warp_tile *tile, const flux__parts *split) {
    flux__warp_tile w = *tile;
    int warps = w.m / w.wm * (w.n / w.wn), threads = warps * f->lanes,
        depth = w.k / (flux__is_half(fa->o->dtype) ? 2 : 4), stages = 2;
    flux__tile a = flux__tile_of(c->k, fa, f, w.m, depth, threads),
        b = flux__tile_of(c->k, fb, f, w.n, depth, threads);
    int bytes_a = a.slow * a.pitch * a.size, bytes = bytes_a + b.slow * b.pitch * b.size,
        out = warps * 16 * (w.wm + 4) * 4;
    bool ahead = a.ahead || b.ahead;
    if (a.ahead && b.ahead) stages = 49152 / bytes < 4 ? 49152 / bytes : 4;
    flux__listing *s = &c->s;
    flux__emit(s, "    __shared__ ALIGN16 u32 shared[%d];\n",
                (stages * bytes > out ? stages * bytes : out) / 4);
    flux__emit(s, "    %s *const a_tile = (%s *)shared, *const b_tile = (%s *)(shared + %d);\n",
                a.type, a.type, a.type, stages * bytes_a / 4);
    flux__emit_numbers(c);
    flux__emit(s, "    const int t = (int)threadIdx.x, warp = t / %d, wi = warp %% %d * %d, "
                "wj = warp / %d * %d;\n", f->lanes, w.m / w.wm, w.wm, w.m / w.wm, w.wn);
    flux__emit_product_start(c, fa, fb, w.m, w.n, split);
    flux__emit(s, "    float sum[%d][%d][%d];\n", w.wm / 16, w.wn / 16, 256 / f->lanes);
    flux__emit(s, "#pragma unroll\n    for (int x = 0; x < %d; x++)\n#pragma unroll\n"
                "    for (int y = 0; y < %d; y++)\n#pragma unroll\n"
                "    for (int e = 0; e < %d; e++) sum[x][y][e] = 0;\n", w.wm / 16, w.wn / 16,
                256 / f->lanes);
    if (!a.ahead)
        flux__emit(s, "    %s a_words[%d];\n", a.chunk * a.size == 16 ? "words4" : "u32", a.count);
    if (!b.ahead)
        flux__emit(s, "    %s b_words[%d];\n", b.chunk * b.size == 16 ? "words4" : "u32", b.count);
    flux__emit(s, "    for (int next = 0; next < %d; next++) {\n"
                "    const %s l0 = begin + next * %d;\n", stages - 1, c->index, depth);
    flux__emit_fetch(c, &a, threads, "next");
    flux__emit_fetch(c, &b, threads, "next");
    if (ahead) flux__emit(s, "    copies_end();\n");
    flux__emit_put(c, &a, threads, "next");
    flux__emit_put(c, &b, threads, "next");
    flux__emit(s, "    }\n    int stage = 0, next = %d;\n#pragma unroll 1\n"
                "    for (%s first = begin; first < end; first += %d) {\n"
                "    const %s l0 = first + %d;\n", stages - 1, c->index, depth, c->index,
                (stages - 1) * depth);
    if (ahead) flux__emit(s, "    copies_left(%d);\n", stages - 2);
    flux__emit(s, "    __syncthreads();\n");
    flux__emit_fetch(c, &a, threads, "next");
    flux__emit_fetch(c, &b, threads, "next");
    if (ahead) flux__emit(s, "    copies_end();\n");
    flux__emit_warp_steps(c, &w, f, &a, &b);
    flux__emit_put(c, &a, threads, "next");
    flux__emit_put(c, &b, threads, "next");
    flux__emit(s, "    stage = stage == %d ? 0 : stage + 1, next = next == %d ? 0 : next + 1;\n"
                "    }\n", stages - 1, stages - 1);
    if (ahead) flux__emit(s, "    copies_left(0);\n");
    flux__emit_warp_sums(c, &w, f, split);
    flux__emit(s, "    }\n    }\n");
    c->gk->next.threads = (unsigned)threads;
    /* Two large blocks share a multiprocessor if their registers suffice, which they do not
       where the next tile is loaded into registers, nor with TF32. */
    c->gk->next.blocks = threads < 256 ? 3
                         : a.ahead && b.ahead && flux__is_half(fa->o->dtype) ? 2 : 1;
}

/* The text of a product's kernel, and that of the launch that joins its parts: by warps if the
   chip has a matrix instruction for the operands' dtype. False: no memory. */
static bool flux__code_product(flux__emitter *c, flux__kernel *k, const flux__gpu *g, bool tf32) {
    flux__factor a = flux__factor_of(c, 0), b = flux__factor_of(c, 1);
    const flux__driver *d = g->driver;
    bool cores = a.o->dtype == b.o->dtype && k->mnk[2] > 0,     /* K = 0: nothing to multiply */
        f64 = a.o->dtype == FLUX_F64;
    const flux__fragment *f = cores ? d->fragment(g->info.arch, a.o->dtype, tf32) : NULL;
    flux__warp_tile w;
    flux__fma_tile t;
    memset(&w, 0, sizeof w), memset(&t, 0, sizeof t);
    if (f) w = flux__choose_warp_tile(k, f);
    else t = flux__choose_fma_tile(k);
    flux__parts split = flux__parts_of(c, f ? w.m : t.m, f ? w.n : t.n,
                                       f ? w.k / (flux__is_half(a.o->dtype) ? 2 : 4)
                                         : t.k * t.groups);
    const char *T = f64 ? "double" : "float";
    if (split.parts > 1) {                /* a dry run declares the second launch's parameters */
        flux__code_product_parts(c, &split, T);
        c->s.n = 0;
        flux__step_start(&c->gk->next);
        k->scratch = (size_t)(split.parts * split.points) * (f64 ? 8 : 4);
    }
    /* f16's instruction stands for the chip's asynchronous copies */
    const flux__fragment *chip = f ? f : d->fragment(g->info.arch, FLUX_F16, tf32);
    if (f) flux__code_mma_product(c, &a, &b, f, &w, &split);
    else flux__code_fma_product(c, &a, &b, &t, &split, chip && chip->ahead);
    bool ok = flux__emitter_finish(c);
    if (!ok || split.parts == 1) return ok;
    flux__code_product_parts(c, &split, T);
    return flux__emitter_finish(c);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_MMA_H */
