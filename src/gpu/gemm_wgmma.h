#ifndef FLUX__GPU_GEMM_WGMMA_H
#define FLUX__GPU_GEMM_WGMMA_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "kernels.h"
#include "fused.h"
#include "gemm.h"

/* ---------------------------------------------------------------------- gpu/gemm_wgmma.h
   The product of half floats with the instructions that sm_90 alone has: the tensor memory
   accelerator (TMA) copies tiles of the operands to shared memory, and a warpgroup of 128 threads
   multiplies them from there (wgmma). A block has three warpgroups. One thread of the last asks
   for tiles, four stages ahead; the first two multiply, 64 columns of the result each. What
   wgmma calls a is our operand b, turned: so that a thread's sums are neighbours of the result.

   A stage has two phases (mbarriers): `full`, over when its bytes have come, and `empty`, over when
   the eight warps that multiply have done with it. A tile lies in lines of 128 bytes, 64 half
   floats of the operand's contiguous side, whose chunks of 16 bytes TMA exchanges (line % 8, the
   128-byte swizzle) as wgmma expects. An operand whose inner dim is contiguous has a line for each
   row (K-major), else one for each place of the inner dim, 64 rows to a box (MN-major), so that no
   operand is copied or turned before.

   Invariant: shape and strides alone choose this text, its tile and its split; beyond the matrices
   TMA writes zeros. A map (flux__tensor_map) says where an operand lies; launches encode it anew
   when the address has changed.

   Operands may be planes (gpu/gemm_planes.h), bf16 numbers whose sum is a float32: then a stage has
   the tiles of all planes; a turn has sums of its own, of the products of pairs of planes, the
   smallest first, and adds them in float32. (Rejected: adding them while the next turn multiplies
   into others; the assembler then waits for each wgmma.)

   Sources: PTX ISA 8.0, "Asynchronous Warpgroup Level Matrix Instructions"; CUDA's driver API,
   cuTensorMapEncodeTiled. */

FLUX__BEGIN_LEAN

enum { FLUX__LINE = 64, FLUX__WGMMA_COLUMNS = 128, FLUX__BOX_BYTES = 64 * 128 };
enum { FLUX__FEWEST_TILES = 64 };         /* below it the inner dim is split */

typedef struct flux__ring {
    int rows, planes;                     /* of a tile; of an operand: 1 if it is half floats */
    int turns, stage;                     /* stages, and the bytes of one */
    const char *guard;                    /* text that a block begins with: it may return */
} flux__ring;

static flux__ring flux__ring_of(int rows, int planes, const char *guard) {
    flux__ring r = { rows, planes, 5 - planes, (rows + FLUX__WGMMA_COLUMNS) * 128 * planes, guard };
    return r;
}

/* Fills in the map of an operand whose block's part is `width` across. False: TMA can't read it,
   as its strides are no multiples of 16 bytes, or it is an image's windows, or not 2-D with one dim
   of batches. */
static bool flux__map_of(const flux__kernel *k, const flux__factor *f, int width,
                         flux__tensor_map *m) {
    const flux__operand *o = f->o;
    const int64_t step = flux__first_step(f->deep ? &f->across : &f->in);
    int batches = 0;
    memset(m, 0, sizeof *m);
    if (o->gather || o->shape.ndim < 2 || !flux__chunks_fit(f, k->mnk[2], 8)) return false;
    m->slot = o->src, m->offset = o->offset * 2, m->brain = o->dtype == FLUX_BF16;
    m->dim[0] = f->deep ? k->mnk[2] : f->limit, m->dim[1] = f->deep ? f->limit : k->mnk[2];
    m->dim[2] = 1, m->step[0] = step * 2, m->step[1] = m->step[0] * m->dim[1];
    m->box[0] = FLUX__LINE, m->box[1] = f->deep ? width : FLUX__LINE, m->box[2] = 1;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) {
        flux__axes x;
        flux__factor_axes(o, o->stride, d, &x);
        batches += k->full[d] > 1;
        if (k->full[d] > 1 && x.nd && x.step[0]) m->dim[2] = k->full[d], m->step[1] = x.step[0] * 2;
    }
    return batches <= 1 && step > 0 && m->step[1] > 0 && m->step[1] % m->step[0] == 0 &&
           m->dim[0] < INT32_MAX && m->dim[1] < INT32_MAX && m->dim[2] < INT32_MAX &&
           m->step[1] < (int64_t)1 << 40;
}

/* Rows of a block's tile: the most of which there are enough tiles, where little lies beyond the
   edge: an eighth of M, or half of the last tile. 0 where another text is better: too few tiles to
   fill half a chip, even with the inner dim split, or results and inner dims that are short. */
static int flux__wgmma_rows(const flux__kernel *k) {
    const int64_t M = k->mnk[0], N = k->mnk[1], K = k->mnk[2];
    if (M <= 32 || N <= 64 || K < FLUX__LINE || flux__batches(k) > 65535 ||
        flux__product_tiles(k, 64, FLUX__WGMMA_COLUMNS) > FLUX__GPU_BLOCKS)
        return 0;                         /* a block has one tile, of one batch */
    for (int rows = 256; rows >= 64; rows /= 2) {
        const int64_t beyond = (M + rows - 1) / rows * rows - M;
        if (flux__product_tiles(k, rows, FLUX__WGMMA_COLUMNS) >= FLUX__ENOUGH_BLOCKS &&
            (beyond <= M / 8 || beyond <= rows / 2))
            return rows;
    }
    if (flux__product_tiles(k, 64, FLUX__WGMMA_COLUMNS) >= FLUX__FEWEST_TILES) return 64;
    return flux__product_tiles(k, 128, FLUX__WGMMA_COLUMNS) * (K / FLUX__LEAST_TERMS) >=
           FLUX__ENOUGH_BLOCKS ? 128 : 0;
}

/* The split: none where the tiles fill half of a chip, as the second launch costs more then. */
static flux__parts flux__wgmma_parts(flux__emitter *c, int rows) {
    const int64_t K = c->k->mnk[2];
    if (flux__product_tiles(c->k, rows, FLUX__WGMMA_COLUMNS) < FLUX__FEWEST_TILES)
        return flux__parts_of(c, rows, FLUX__WGMMA_COLUMNS, FLUX__LINE);
    flux__parts s = { K, c->k->mnk[0] * c->k->mnk[1] * flux__batches(c->k), 1, -1 };
    return s;
}

/* The producer's requests for the part of operand f, `width` across, of the tile at l of the inner
   dim: it goes to `to` + `at`, a box after the other, plane by plane. */
static void flux__emit_boxes(flux__emitter *c, const flux__ring *r, const flux__factor *f,
                             const flux__tensor_map *m, int map, int width, int at) {
    const int batches = (int)m->dim[2] / r->planes, each = f->deep ? width : FLUX__LINE;
    for (int e = 0; e < r->planes * width; e += each) {
        char across[32];
        snprintf(across, sizeof across, "(int)%c0 + %d", f->name, e % width);
        flux__emit(&c->s, "    box_load(to + %d, &p%d, %s, %s, (int)%s + %d, full + q * 8);\n",
                   at + e * 128, map, f->deep ? "l" : across, f->deep ? across : "l",
                   batches > 1 ? "batch" : "0", e / width * batches);
    }
}

/* Declares a descriptor of wgmma's: of the tile at `from`, with the 128-byte swizzle, lines by
   eights 1024 bytes apart and, of an operand that is not `deep`, boxes of 64 rows. */
static void flux__emit_descriptor(flux__emitter *c, const flux__factor *f, const char *from) {
    flux__emit(&c->s, "    const u64 %c_lines = (u64)1 << 62 | (u64)64 << 32 | (u64)%d << 16 | "
               "((%s) >> 4);\n", f->name, f->deep ? 1 : FLUX__BOX_BYTES / 16, from);
}

/* One wgmma instruction, d += a b or d = a b, where a is 64 x 16 and b 16 x n half floats. The
   strings are expressions. */
typedef struct flux__wgmma {
    const char *type;                     /* "f16" or "bf16" */
    int n;
    const char *sums;                     /* a lane's sum e of n / 2: a format of e / 8 and e % 8 */
    const char *a, *b;                    /* descriptors */
    bool loaded;                          /* a is an array of a lane's 4 words instead */
    bool turned_a, turned_b;              /* the dims not along the inner one come first */
    const char *adds;                     /* 0: d = a b */
} flux__wgmma;

/* Emits the instruction: its operands are the sums, a, b and whether it adds, in this order. */
static void flux__emit_wgmma(flux__listing *s, const flux__wgmma *w) {
    const int sums = w->n / 2, words = w->loaded ? 4 : 1;
    flux__emit(s, "    asm volatile(\"{\\n.reg .pred %%%%p;\\nsetp.ne.b32 %%%%p, %%%d, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {", sums + words + 1, w->n,
               w->type, w->type);
    for (int e = 0; e < sums; e++) flux__emit(s, "%s%%%d", e ? "," : "", e);
    flux__emit(s, w->loaded ? "}, {" : "}, ");
    for (int e = 0; e < words; e++) flux__emit(s, "%s%%%d", e ? "," : "", sums + e);
    flux__emit(s, w->loaded ? "}, %%%d, %%%%p, 1, 1, " : ", %%%d, %%%%p, 1, 1, ", sums + words);
    if (!w->loaded) flux__emit(s, "%d, ", w->turned_a);
    flux__emit(s, "%d;\\n}\\n\"\n        : ", w->turned_b);
    for (int e = 0; e < sums; e++) {
        flux__emit(s, e ? ", \"+f\"(" : "\"+f\"(");
        flux__emit(s, w->sums, e / 8, e % 8);
        flux__emit(s, ")");
    }
    flux__emit(s, "\n        : ");
    for (int e = 0; e < words && w->loaded; e++) flux__emit(s, "\"r\"(%s[%d]), ", w->a, e);
    if (!w->loaded) flux__emit(s, "\"l\"(%s), ", w->a);
    flux__emit(s, "\"l\"(%s), \"r\"(%s));\n", w->b, w->adds);
}

/* One instruction for each place l * 16 of a line: adds to `sum`, or where `adds` is 0
   puts there, 64 x rows x 16 products of the tiles of plane `a` and of plane `b`. */
static void flux__emit_line_products(flux__emitter *c, const flux__factor *fa,
                                     const flux__factor *fb, int rows, const char *sum, int a,
                                     int b, const char *adds) {
    char left[60], right[60];
    snprintf(left, sizeof left, "b_now + %d + l * %d", b * FLUX__WGMMA_COLUMNS * 8,
             fb->deep ? 2 : 128);
    snprintf(right, sizeof right, "a_now + %d + l * %d", a * rows * 8, fa->deep ? 2 : 128);
    const flux__wgmma w = { fa->o->dtype == FLUX_F16 ? "f16" : "bf16", rows, sum, left, right,
                            false, !fb->deep, !fa->deep, adds };
    flux__emit(&c->s, "    FULLY\n    for (int l = 0; l < %d; l++)\n", FLUX__LINE / 16);
    flux__emit_wgmma(&c->s, &w);
}

/* The products of a turn, into `sum`: of planes those of the pairs that matter, those of
   the smallest pair first. The order matters: the chip cuts each sum off (to 24 bits and toward
   zero, as its errors suggest), so few of them may be of the size of the result. */
static void flux__emit_turn_products(flux__emitter *c, const flux__ring *r, const flux__factor *fa,
                                     const flux__factor *fb, const char *sum) {
    flux__emit(&c->s, "    products_begin();\n");
    for (int both = r->planes - 1; both >= 0; both--)
        for (int a = 0; a <= both; a++)
            flux__emit_line_products(c, fa, fb, r->rows, sum, a, both - a,
                             r->planes > 1 && both == r->planes - 1 && a == 0 ? "(int)(l > 0)"
                                                                              : "1");
    flux__emit(&c->s, "    products_end();\n");
}

/* What the eight warps do that multiply. Turn n waits for its stage and multiplies. The stage is
   given back when the products are done: of half floats in the next turn, of planes at once, whose
   sums are added then. */
static void flux__emit_consumers(flux__emitter *c, const flux__ring *r, const flux__factor *fa,
                                 const flux__factor *fb) {
    flux__listing *s = &c->s;
    const int sums = r->rows / 2;
    char from[64];
    flux__emit(s, "    registers_more();\n    float sum[%d];\n    FULLY\n"
               "    for (int e = 0; e < %d; e++) {\n    sum[e] = 0;\n    SETTLED(sum[e]);\n    }\n",
               sums, sums);
    flux__emit_descriptor(c, fa, "tiles");
    snprintf(from, sizeof from, "tiles + %d + t / 128 * %d", r->planes * r->rows * 128,
             FLUX__BOX_BYTES);
    flux__emit_descriptor(c, fb, from);
    flux__emit(s, "#pragma unroll 1\n    for (int n = 0; n < steps; n++) {\n"
               "    const int q = n %% %d;\n    phase_wait(full + q * 8, n / %d & 1);\n"
               "    const u64 a_now = a_lines + q * %d, b_now = b_lines + q * %d;\n", r->turns,
               r->turns, r->stage / 16, r->stage / 16);
    if (r->planes > 1) {
        flux__emit(s, "    float part[%d];\n", sums);
        flux__emit_turn_products(c, r, fa, fb, "part[%d * 8 + %d]");
        flux__emit(s, "    products_left(0);\n    if (t %% 32 == 0) phase_arrive(empty + q * 8);\n"
                   "    FULLY\n    for (int e = 0; e < %d; e++) {\n    SETTLED(part[e]);\n"
                   "    sum[e] += part[e];\n    }\n    }\n", sums);
        return;
    }
    flux__emit_turn_products(c, r, fa, fb, "sum[%d * 8 + %d]");
    flux__emit(s, "    products_left(1);\n"
               "    if (n > 0 && t %% 32 == 0) phase_arrive(empty + (n - 1) %% %d * 8);\n"
               "    }\n    products_left(0);\n    FULLY\n"
               "    for (int e = 0; e < %d; e++) SETTLED(sum[e]);\n", r->turns, sums);
}

/* Finish: each warp puts its 16 columns into shared memory, in the tiles' place, once all have
   multiplied; then a thread has neighbours of a column, and its neighbours the next ones. */
static void flux__emit_wgmma_sums(flux__emitter *c, const flux__parts *split, int rows) {
    flux__listing *s = &c->s;
    const int pitch = rows + 8, width = flux__sum_width(c, split, 8), per = rows / width;
    const char *V = width > 1 ? "float_pack" : "float";
    flux__emit(s, "    consumers_meet();\n    const int lane = t %% 32, wj = t / 32 * 16;\n"
               "    float *const out = (float *)(dynamic + (tiles - shared_at(dynamic))) + "
               "wj * %d;\n    FULLY\n    for (int e = 0; e < %d; e += 2) {\n    words2 two;\n"
               "    two.x[0] = BITS_OF(sum[e]), two.x[1] = BITS_OF(sum[e + 1]);\n"
               "    *(words2 *)(out + (lane / 4 + e / 2 %% 2 * 8) * %d + e / 4 * 8 + lane %% 4 * 2)"
               " = two;\n    }\n    __syncwarp();\n", pitch, rows / 2, pitch);
    flux__emit(s, "    for (int e = lane; e < %d; e += 32) {\n"
               "    const %s i = a0 + e %% %d * %d, j = b0 + wj + e / %d;\n", 16 * per, c->index,
               per, width, per);
    flux__emit(s, "    if (i < %lld && j < %lld) {\n"
               "    const %s *const from = (const %s *)(out + e / %d * %d + e %% %d * %d);\n",
               (long long)c->k->mnk[0], (long long)c->k->mnk[1], V, V, per, pitch, per, width);
    flux__emit_sum(c, split, "float", width, width > 1 ? "from[j / 4].x[j % 4]" : "*from");
    flux__emit(s, "    }\n    }\n");
}

/* The kernel's text. Its maps are the kernel's. */
static void flux__code_wgmma_product(flux__emitter *c, const flux__factor *fa,
                                     const flux__factor *fb, const flux__ring *r,
                                     const flux__parts *split) {
    flux__listing *s = &c->s;
    const int a = flux__emitter_param(c, 'm', 0, "const __grid_constant__ tensor_map"),
              b = flux__emitter_param(c, 'm', 1, "const __grid_constant__ tensor_map");
    flux__emit(s, "%s    extern __shared__ ALIGN16 char dynamic[];\n"
               "    __shared__ u64 phases[%d];\n"
               "    const u32 full = shared_at(phases), empty = full + %d, "
               "tiles = (shared_at(dynamic) + 1023) / 1024 * 1024;\n", r->guard, 2 * r->turns,
               8 * r->turns);
    flux__emit_numbers(c);
    flux__emit(s, "    const int t = (int)threadIdx.x;\n");
    flux__emit_product_start(c, fa, fb, r->rows, FLUX__WGMMA_COLUMNS, split);
    flux__emit(s, "    if (t == 0) {\n    for (int q = 0; q < %d; q++) "
               "phase_start(full + q * 8, 1), phase_start(empty + q * 8, 8);\n"
               "    phases_started();\n    }\n    __syncthreads();\n"
               "    const int steps = (int)((end - begin + %d) / %d);\n", r->turns,
               FLUX__LINE - 1, FLUX__LINE);
    flux__emit(s, "    if (t >= 256) {\n    registers_less();\n    if (t == 256)\n"
               "    for (int n = 0; n < steps; n++) {\n    const int q = n %% %d, "
               "l = (int)begin + n * %d;\n    const u32 to = tiles + q * %d;\n"
               "    phase_wait(empty + q * 8, ~(n / %d) & 1);\n"
               "    phase_expects(full + q * 8, %d);\n", r->turns, FLUX__LINE, r->stage, r->turns,
               r->stage);
    flux__emit_boxes(c, r, fa, &c->gk->maps[0], a, r->rows, 0);
    flux__emit_boxes(c, r, fb, &c->gk->maps[1], b, FLUX__WGMMA_COLUMNS,
                     r->planes * r->rows * 128);
    flux__emit(s, "    }\n    } else {\n");
    flux__emit_consumers(c, r, fa, fb);
    flux__emit_wgmma_sums(c, split, r->rows);
    flux__emit(s, "    }\n    }\n    }\n");
    c->gk->next.threads = 384, c->gk->next.blocks = 1;
    c->gk->next.shared = (unsigned)(r->turns * r->stage + 1024);
}

/* Gives the kernel its n operands' maps. False: no memory. */
static bool flux__keep_maps(flux__emitter *c, const flux__tensor_map *maps, int n) {
    c->gk->maps = (flux__tensor_map *)flux__zalloc((size_t)n * sizeof *maps);
    if (!c->gk->maps) return c->failed = true, false;
    memcpy(c->gk->maps, maps, (size_t)n * sizeof *maps);
    return true;
}

/* The rows of a tile if the device has TMA and wgmma and both suit the product, whose maps are the
   kernel's then; else 0. */
static int flux__wgmma_tile(flux__emitter *c, const flux__factor *fa, const flux__factor *fb,
                            const flux__gpu *g) {
    const int rows = g->tiled && flux__is_half(fa->o->dtype) && fa->o->dtype == fb->o->dtype
                     ? flux__wgmma_rows(c->k) : 0;
    flux__tensor_map maps[2];
    if (!rows || !flux__map_of(c->k, fa, rows, &maps[0]) ||
        !flux__map_of(c->k, fb, FLUX__WGMMA_COLUMNS, &maps[1]))
        return 0;
    return flux__keep_maps(c, maps, 2) ? rows : 0;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_WGMMA_H */
