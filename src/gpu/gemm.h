#ifndef FLUX__GPU_GEMM_H
#define FLUX__GPU_GEMM_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "kernels.h"
#include "fused.h"

/* ---------------------------------------------------------------------- gpu/gemm.h
   The text of matrix products. A block computes a tile of the result from tiles
   of the operands in shared memory; each thread keeps a piece of it in registers
   (flux__code_product_by_thread), or each warp where the chip multiplies small
   matrices (flux__code_product_by_warp: tensor cores, matrix cores). The patches
   that a convolution multiplies are read from the image itself (implicit GEMM).

   Everything here emits text for one product: a is M x K, b is K x N, the result
   is M x N, mnk[] holds M, N, K, and there may be batches. The first dim is the
   contiguous one (column-major) in the result, which has leading dimension M; an
   operand may have any strides. The text's i and j number rows and columns of the
   result, l the inner dim.

   Invariant: shape, dtype and number of multiprocessors choose the tile, and the
   terms of an element's sum are added in one order. The warps' tile of an operand
   has the layout that the operand has in memory, with rows padded so that they
   start in different banks. It is loaded in chunks of 16 bytes if every chunk is
   whole and aligned, else of 4. While one tile is multiplied the next is loaded,
   into registers, or directly into shared memory if the chip has asynchronous
   copies. Shared memory stays within 48 KiB. Matrix instructions need both
   operands in one dtype; f32 uses TF32 only if that was allowed. */

FLUX__BEGIN_LEAN

typedef struct flux__factor {             /* an operand, its dims told apart */
    const flux__operand *o;
    char name;                            /* 'a' or 'b' */
    int p;                                /* the kernel's parameter with its address */
    int64_t limit;                        /* M for a, N for b */
    flux__axes across, in;                /* dims along M or N; dims along the inner dim K */
    bool deep;                            /* the inner dim is the contiguous one */
} flux__factor;

/* A block's tile of the result, and how its threads share the work. */
typedef struct flux__tile_shape {
    int m, n, k, tm, tn, groups;          /* tile m x n, k terms at a time; a thread has tm x tn of
                                             it; groups of threads take turns along the inner dim */
} flux__tile_shape;

/* The sizes and strides of the dims in memory that make up dim `dim` of an operand's matrix:
   one dim, or several if the operand is the implicit im2col matrix of a convolution. */
static void flux__factor_axes(const flux__operand *o, int dim, flux__axes *x) {
    x->nd = 0;
    for (int d = 0; d < o->shape.ndim; d++) {
        if ((o->gather ? o->owner[d] : d) != dim) continue;
        x->dim[x->nd] = o->shape.dim[d];
        x->step[x->nd++] = o->stride[d];
    }
}

/* The stride of the first dim that has more than one element, or 0. */
static int64_t flux__first_step(const flux__axes *x) {
    for (int d = 0; d < x->nd; d++)
        if (x->dim[d] > 1) return x->step[d];
    return 0;
}

/* Operand 0 (a, M x K) or 1 (b, K x N) of the product; a vector has the inner dim alone. */
static flux__factor flux__factor_of(flux__emitter *c, int which) {
    flux__factor f;
    bool vector = c->k->operand[which].shape.ndim == 1;
    f.o = &c->k->operand[which];
    f.name = which ? 'b' : 'a';
    f.p = flux__emitter_slot(c, f.o->src, f.o->dtype);
    f.limit = c->k->mnk[which];
    flux__factor_axes(f.o, vector ? -1 : which, &f.across);
    flux__factor_axes(f.o, vector ? 0 : !which, &f.in);
    f.deep = flux__first_step(&f.in) == 1 && flux__first_step(&f.across) != 1;
    return f;
}

static int64_t flux__batches(const flux__kernel *k) {
    int64_t n = 1;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) n *= k->full[d];
    return n;
}

/* Declares a_at or b_at: where the operand's matrix number `batch` starts. */
static void flux__emit_batch(flux__emitter *c, const flux__factor *f) {
    int64_t before = 1;
    flux__emit(&c->s, "    const %s %c_at = %lld", c->index, f->name, (long long)f->o->offset);
    for (int d = 2; d < FLUX_MAX_DIMS; d++) {
        flux__axes x;
        char at[64];
        flux__factor_axes(f->o, d, &x);
        snprintf(at, sizeof at, "(batch / %lld %% %lld)", (long long)before,
                 (long long)c->k->full[d]);
        if (c->k->full[d] > 1) flux__emit_axes(&c->s, &x, at);
        before *= c->k->full[d];
    }
    flux__emit(&c->s, ";\n");
}

/* The position of the element at i (row of a, column of b) and l (inner dim) of the batch's
   matrix. */
static void flux__emit_element(flux__listing *s, const flux__factor *f) {
    flux__emit(s, "%c_at", f->name);
    flux__emit_axes(s, &f->across, "i");
    flux__emit_axes(s, &f->in, "l");
}

/* Loads an operand's tile, `width` across by `depth` of the inner dim, to a_tile[g][l][i] or
   b_tile[g][l][j] in shared memory. Neighbouring threads load neighbours in memory; beyond the
   matrix there are zeros. */
static void flux__emit_tile(flux__emitter *c, const flux__factor *f, int width, int depth,
                             int threads) {
    flux__listing at = { NULL, 0, 0, false }, *s = &c->s;
    flux__emit(s, "    for (int e = t; e < %d; e += %d) {\n", width * depth, threads);
    if (f->deep) flux__emit(s, "    const int y = e %% %d, x = e / %d;\n", depth, depth);
    else flux__emit(s, "    const int x = e %% %d, y = e / %d;\n", width, width);
    flux__emit(s, "    const %s i = %c0 + x, l = l0 + y;\n    ", c->index, f->name);
    flux__emit(s, "%c_tile[g][y][x] = i < %lld && l < %lld ? ", f->name, (long long)f->limit,
                (long long)c->k->mnk[2]);
    flux__emit(&at, "p%d[", f->p);
    flux__emit_element(&at, f);
    flux__emit(&at, "]");
    if (at.failed) s->failed = true;
    else flux__emit_loaded(s, f->o->dtype, at.text);
    flux__free(at.text);
    flux__emit(s, " : 0;\n    }\n");
}

/* Opens the text's block for the unit `name` of n, which blockIdx.y chooses; `only` stands
   before it. It is a loop only if there are more units than a grid may have blocks along y,
   since a loop costs registers. */
static void flux__emit_unit(flux__emitter *c, const char *name, int64_t n, const char *only) {
    if (n <= 65535)
        flux__emit(&c->s, "    %s{ const %s %s = (%s)blockIdx.y;\n", only, c->index, name,
                    c->index);
    else flux__emit(&c->s,
                     "    %sfor (%s %s = (%s)blockIdx.y; %s < %lld; %s += (%s)gridDim.y) {\n", only,
                     c->index, name, c->index, name, (long long)n, name, c->index);
}

/* What both kinds of products begin with: the tile's first row a0 and column b0, the batch, and
   where its operands start. Opens two blocks of text, over tiles and over batches, and sets the
   launch's grid. */
static void flux__emit_product_start(flux__emitter *c, const flux__factor *a, const flux__factor *b,
                                      int m, int n) {
    int64_t tiles = (c->k->mnk[0] + m - 1) / m, batches = flux__batches(c->k),
        all = tiles * ((c->k->mnk[1] + n - 1) / n);
    flux__emit_iterations(c, all);
    flux__emit(&c->s,
                "    const %s a0 = (%s)(turn %% %lldu) * %d, b0 = (%s)(turn / %lldu) * %d;\n",
                c->index, c->index, (long long)tiles, m, c->index, (long long)tiles, n);
    flux__emit_unit(c, "batch", batches, "");
    flux__emit_batch(c, a);
    flux__emit_batch(c, b);
    c->gk->next.grid[0] = flux__gpu_blocks(all);
    c->gk->next.grid[1] = (unsigned)(batches < 65535 ? batches : 65535);
}

/* The epilogue: what the kernel computes from v, the sum at row i and column j, and its stores.
   `type` is v's type in the text. */
static void flux__emit_epilogue(flux__emitter *c, const char *type) {
    int product = -1;
    for (int i = 0; i < c->k->nvalue; i++)
        if (c->k->value[i].kind == FLUX__V_PRODUCT) product = i;
    flux__emit(&c->s, "    const %s o = (batch * %lld + j) * %lld + i;\n", c->index,
                (long long)c->k->mnk[1], (long long)c->k->mnk[0]);
    if (product >= 0) flux__emit(&c->s, "    const %s v%d = v;\n", type, product);
    flux__emit_point(c, product);
}

/* The larger tile of which the result has one for each multiprocessor, else the smallest, whose
   groups split the inner dim. The largest tile is not for f64. */
static flux__tile_shape flux__choose_tile(const flux__kernel *k, int multiprocessors) {
    static const flux__tile_shape shapes[] = { { 128, 128, 8, 8, 8, 1 }, { 64, 64, 16, 4, 4, 1 },
                                               { 32, 32, 16, 4, 4, 4 } };
    bool f64 = k->operand[0].dtype == FLUX_F64;
    for (int i = f64 ? 1 : 0; i < 2; i++) {
        int64_t tiles = (k->mnk[0] + shapes[i].m - 1) / shapes[i].m *
                        ((k->mnk[1] + shapes[i].n - 1) / shapes[i].n) * flux__batches(k);
        if (tiles >= multiprocessors) return shapes[i];
    }
    flux__tile_shape last = shapes[2];
    if (f64) last.groups = 2;             /* f64 has twice the bytes, shared memory 48 KiB */
    return last;
}

/* The product with one fused multiply-add a term. A thread sums the tm x tn elements of the
   block's m x n tile that are m / tm rows and n / tn columns apart; operand tiles are k x m and
   k x n in shared memory, with one element of padding a row. Several groups sum different parts
   of the inner dim, and their sums are added in the order of the groups. */
static void flux__code_product_by_thread(flux__emitter *c, const flux__factor *a,
                                         const flux__factor *b, const flux__tile_shape *t) {
    const char *T = a->o->dtype == FLUX_F64 ? "double" : "float",
        *fma = a->o->dtype == FLUX_F64 ? "fma" : "fmaf";
    int wide = t->m / t->tm, each = wide * (t->n / t->tn);
    int64_t M = c->k->mnk[0], N = c->k->mnk[1], K = c->k->mnk[2];
    flux__listing *s = &c->s;
    flux__emit(s, "    __shared__ %s a_tile[%d][%d][%d], b_tile[%d][%d][%d];\n", T, t->groups,
                t->k, t->m + 1, t->groups, t->k, t->n + 1);
    if (t->groups > 1)
        flux__emit(s, "    __shared__ %s sums[%d][%d][%d];\n", T, t->groups, t->n, t->m + 1);
    flux__emit_numbers(c);
    flux__emit(s, "    const int g = (int)threadIdx.x / %d, t = (int)threadIdx.x %% %d, "
                "tx = t %% %d, ty = t / %d;\n", each, each, wide, wide);
    flux__emit_product_start(c, a, b, t->m, t->n);
    flux__emit(s, "    %s sum[%d][%d];\n"
                "    for (int y = 0; y < %d; y++) for (int x = 0; x < %d; x++) sum[y][x] = 0;\n", T,
                t->tn, t->tm, t->tn, t->tm);
    flux__emit(s, "    for (%s first = 0; first < %lld; first += %d) {\n"
                "    const %s l0 = first + g * %d;\n", c->index, (long long)K, t->k * t->groups,
                c->index, t->k);
    flux__emit_tile(c, a, t->m, t->k, each);
    flux__emit_tile(c, b, t->n, t->k, each);
    flux__emit(s, "    __syncthreads();\n%s    for (int l = 0; l < %d; l++) {\n"
                "    %s x[%d], y[%d];\n", *T == 'd' ? "#pragma unroll 4\n" : "", t->k, T, t->tm,
                t->tn);
    flux__emit(s, "    for (int i = 0; i < %d; i++) x[i] = a_tile[g][l][tx + i * %d];\n", t->tm,
                wide);
    flux__emit(s, "    for (int j = 0; j < %d; j++) y[j] = b_tile[g][l][ty + j * %d];\n", t->tn,
                t->n / t->tn);
    flux__emit(s, "    for (int j = 0; j < %d; j++) for (int i = 0; i < %d; "
                "i++) sum[j][i] = %s(x[i], y[j], sum[j][i]);\n", t->tn, t->tm, fma);
    flux__emit(s, "    }\n    __syncthreads();\n    }\n");
    if (t->groups > 1) {
        flux__emit(s, "    for (int j = 0; j < %d; j++) for (int i = 0; i < %d; "
                    "i++) sums[g][ty + j * %d][tx + i * %d] = sum[j][i];\n", t->tn, t->tm,
                    t->n / t->tn, wide);
        flux__emit(s, "    __syncthreads();\n"
                    "    for (int e = (int)threadIdx.x; e < %d; e += %d) {\n"
                    "    const %s i = a0 + e %% %d, j = b0 + e / %d;\n", t->m * t->n,
                    each * t->groups, c->index, t->m, t->m);
        flux__emit(s, "    if (i < %lld && j < %lld) {\n    %s v = sums[0][e / %d][e %% %d];\n",
                    (long long)M, (long long)N, T, t->m, t->m);
        flux__emit(s, "    for (int q = 1; q < %d; q++) v += sums[q][e / %d][e %% %d];\n",
                    t->groups, t->m, t->m);
    } else {
        flux__emit(s, "    for (int jj = 0; jj < %d; jj++) for (int ii = 0; ii < %d; ii++) {\n",
                    t->tn, t->tm);
        flux__emit(s, "    const %s i = a0 + tx + ii * %d, j = b0 + ty + jj * %d;\n", c->index,
                    wide, t->n / t->tn);
        flux__emit(s, "    if (i < %lld && j < %lld) {\n    const %s v = sum[jj][ii];\n",
                    (long long)M, (long long)N, T);
    }
    flux__emit_epilogue(c, T);
    flux__emit(s, "    }\n    }\n%s    }\n    }\n", t->groups > 1 ? "    __syncthreads();\n" : "");
    c->gk->next.threads = (unsigned)(each * t->groups);
    c->gk->next.blocks = (t->tm > 4 || *T == 'd' ? 512 : 1024) / c->gk->next.threads;
}

/* ---- products by warps, with matrix instructions */

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

/* Whether all chunks of `chunk` elements along the contiguous side are whole and aligned. */
static bool flux__chunks_fit(const flux__factor *f, int64_t inner, int chunk) {
    const flux__axes *fast = f->deep ? &f->in : &f->across;
    bool fit = !f->o->gather && flux__first_step(fast) == 1 &&
               (f->deep ? inner : f->limit) % chunk == 0 && f->o->offset % chunk == 0;
    for (int d = 0; d < f->o->shape.ndim && fit; d++)
        if (f->o->shape.dim[d] > 1 && f->o->stride[d] != 1 && f->o->stride[d] % chunk != 0)
            fit = false;
    return fit;
}

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
                "    const int there = i < %lld && l < %lld;\n    const %s from = there ? ",
                c->index, n, f->deep ? 'y' : 'x', f->deep ? 'x' : 'y', (long long)f->limit,
                (long long)c->k->mnk[2], c->index);
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

/* The largest tile of which there is one for each multiprocessor and of which the result has
   more than half along both sides, else the smallest. Warps of 64 lanes have their own
   shapes. */
static flux__warp_tile flux__choose_warp_tile(const flux__kernel *k, const flux__fragment *f,
                                              int multiprocessors) {
    static const flux__warp_tile shapes[2][3] = {
        { { 128, 128, 64, 64, 32 }, { 64, 64, 64, 32, 32 }, { 32, 32, 128, 16, 16 } },
        { { 128, 128, 64, 64, 64 }, { 64, 64, 64, 32, 32 }, { 32, 32, 128, 16, 16 } } };
    const flux__warp_tile *t = shapes[f->lanes > 32];
    for (int i = 0; i < 2; i++, t++) {
        int64_t tiles = (k->mnk[0] + t->m - 1) / t->m * ((k->mnk[1] + t->n - 1) / t->n) *
                        flux__batches(k);
        if (tiles >= multiprocessors && k->mnk[0] > t->m / 2 && k->mnk[1] > t->n / 2) return *t;
    }
    return *t;
}

/* The epilogue of a warp's wm x wn sums. They go through shared memory, 16 columns at a time
   with leading dimension wm + 4, so that neighbouring threads store neighbours of the
   result. */
static void flux__emit_warp_sums(flux__emitter *c, const flux__warp_tile *t,
                                  const flux__fragment *f) {
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
    flux__emit_epilogue(c, "float");
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
static void flux__code_product_by_warp(flux__emitter *c, const flux__factor *fa,
                                       const flux__factor *fb, const flux__fragment *f,
                                       int multiprocessors) {
    flux__warp_tile w = flux__choose_warp_tile(c->k, f, multiprocessors);
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
    flux__emit_product_start(c, fa, fb, w.m, w.n);
    flux__emit(s, "    float sum[%d][%d][%d];\n", w.wm / 16, w.wn / 16, 256 / f->lanes);
    flux__emit(s, "#pragma unroll\n    for (int x = 0; x < %d; x++)\n#pragma unroll\n"
                "    for (int y = 0; y < %d; y++)\n#pragma unroll\n"
                "    for (int e = 0; e < %d; e++) sum[x][y][e] = 0;\n", w.wm / 16, w.wn / 16,
                256 / f->lanes);
    if (!a.ahead)
        flux__emit(s, "    %s a_words[%d];\n", a.chunk * a.size == 16 ? "words4" : "u32", a.count);
    if (!b.ahead)
        flux__emit(s, "    %s b_words[%d];\n", b.chunk * b.size == 16 ? "words4" : "u32", b.count);
    flux__emit(s, "    for (int next = 0; next < %d; next++) {\n    const %s l0 = next * %d;\n",
                stages - 1, c->index, depth);
    flux__emit_fetch(c, &a, threads, "next");
    flux__emit_fetch(c, &b, threads, "next");
    if (ahead) flux__emit(s, "    copies_end();\n");
    flux__emit_put(c, &a, threads, "next");
    flux__emit_put(c, &b, threads, "next");
    flux__emit(s, "    }\n    int stage = 0, next = %d;\n#pragma unroll 1\n"
                "    for (%s first = 0; first < %lld; first += %d) {\n"
                "    const %s l0 = first + %d;\n", stages - 1, c->index, (long long)c->k->mnk[2],
                depth, c->index, (stages - 1) * depth);
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
    flux__emit_warp_sums(c, &w, f);
    flux__emit(s, "    }\n    }\n");
    c->gk->next.threads = (unsigned)threads;
    /* Two large blocks share a multiprocessor if their registers suffice, which they do not
       where the next tile is loaded into registers, nor with TF32. */
    c->gk->next.blocks = threads < 256 ? 3
                         : a.ahead && b.ahead && flux__is_half(fa->o->dtype) ? 2 : 1;
}

/* The text of a product's kernel: by warps if the chip has a matrix instruction for the
   operands' dtype. */
static void flux__code_product(flux__emitter *c, const flux__gpu *g, bool tf32) {
    flux__factor a = flux__factor_of(c, 0), b = flux__factor_of(c, 1);
    /* with K = 0 there is nothing to multiply */
    bool cores = a.o->dtype == b.o->dtype && c->k->mnk[2] > 0;
    const flux__fragment *f = cores ? g->driver->fragment(g->info.arch, a.o->dtype, tf32) : NULL;
    if (f) {
        flux__code_product_by_warp(c, &a, &b, f, g->info.multiprocessors);
        return;
    }
    flux__tile_shape tile = flux__choose_tile(c->k, g->info.multiprocessors);
    flux__code_product_by_thread(c, &a, &b, &tile);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_H */
