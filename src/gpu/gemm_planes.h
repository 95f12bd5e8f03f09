#ifndef FLUX__GPU_GEMM_PLANES_H
#define FLUX__GPU_GEMM_PLANES_H
#include "../base/platform.h"
#include "../schedule/kernel.h"
#include "kernels.h"
#include "fused.h"
#include "gemm.h"
#include "gemm_fma.h"
#include "gemm_wgmma.h"

/* ---------------------------------------------------------------------- gpu/gemm_planes.h
   The product of float32 by the tensor cores of sm_90, to float32's accuracy. A float32 is the sum
   of three bf16 numbers of 8 bits each, exactly: its planes. Of the nine products of planes six are
   above a float32's last bit; gpu/gemm_wgmma.h adds them in bf16's speed, which is more than twelve
   times that of plain arithmetic units. Where TF32 is allowed two planes and three products do,
   which still have 16 bits where TF32 has 11.

   A launch computes the planes into scratch memory, [plane][batch][slow side][fast side], with
   the sides as in the operand and the fast one padded to 16 bytes. A number of which planes can't
   tell, an infinity, a NaN, one that rounds to infinity, or one so small that a plane would have
   none of its bits, sets a flag: then the plain product, the last launch, does the work, and else
   it returns at once.

   Invariant: the shape alone decides whether a product goes by planes, and the numbers of its
   operands which of the two launches computes it.

   Source of the split: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence
   Datatype For Higher-Precision Computations", 2019.
   Rejected: TF32's own instruction, which takes no operand whose inner dim is not contiguous. */

FLUX__BEGIN_LEAN

/* The fewest products, of numbers, that are worth the planes and three more launches. Tests set
   it. */
static double flux__planes_least = 1 << 30;
enum { FLUX__PLANES_SIDE = 256 };         /* the fewest rows and columns */
#define FLUX__PLANES_MOST ((int64_t)1 << 32)   /* bytes of scratch memory: of 16,384 squared 3 GB */

typedef struct flux__planes {
    int n, rows, scratch;                 /* planes; rows of a tile; the parameter of scratch
                                             memory, which begins with the flag */
    flux__tensor_map maps[2];
} flux__planes;

/* The map of operand f's planes, which begin `at` bytes into scratch memory. */
static flux__tensor_map flux__plane_map(const flux__kernel *k, const flux__factor *f, int planes,
                                        int width, int64_t at) {
    flux__tensor_map m;
    int64_t matrices = planes;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) matrices *= f->o->stride[d] ? k->full[d] : 1;
    memset(&m, 0, sizeof m);
    m.slot = -1, m.offset = at, m.brain = true;
    m.dim[0] = f->deep ? k->mnk[2] : f->limit, m.dim[1] = f->deep ? f->limit : k->mnk[2];
    m.dim[2] = matrices;
    m.step[0] = (m.dim[0] + 7) / 8 * 16, m.step[1] = m.step[0] * m.dim[1];
    m.box[0] = FLUX__LINE, m.box[1] = f->deep ? width : FLUX__LINE, m.box[2] = 1;
    return m;
}

/* Rows of a block's tile, 0 where the plain product is better: it is small, or so narrow that the
   planes take as long to make as they spare. */
static int flux__plane_rows(const flux__kernel *k) {
    const int64_t M = k->mnk[0], N = k->mnk[1], K = k->mnk[2], all = flux__batches(k);
    int batches = 0;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) batches += k->full[d] > 1;
    if (batches > 1 || all > 65535 || K < 2 * FLUX__LINE || M >= INT32_MAX || N >= INT32_MAX ||
        K >= INT32_MAX || M < FLUX__PLANES_SIDE || N < FLUX__PLANES_SIDE ||
        (double)M * (double)N * (double)K * (double)all < flux__planes_least ||
        flux__product_tiles(k, 64, FLUX__WGMMA_COLUMNS) > FLUX__GPU_BLOCKS)
        return 0;
    return flux__product_tiles(k, 128, FLUX__WGMMA_COLUMNS) >= FLUX__ENOUGH_BLOCKS ? 128
         : flux__product_tiles(k, 64, FLUX__WGMMA_COLUMNS) >= FLUX__FEWEST_TILES ? 64 : 0;
}

/* How a product goes by planes; n is 0 if it does not. */
static flux__planes flux__planes_of(const flux__kernel *k, const flux__factor *fa,
                                    const flux__factor *fb, const flux__gpu *g, bool tf32) {
    flux__planes p;
    memset(&p, 0, sizeof p);
    if (!g->tiled || fa->o->dtype != FLUX_F32 || fb->o->dtype != FLUX_F32 || fa->o->gather ||
        fb->o->gather || fa->o->shape.ndim < 2 || fb->o->shape.ndim < 2 ||
        (p.rows = flux__plane_rows(k)) == 0)
        return p;
    const int n = tf32 ? 2 : 3;
    p.maps[0] = flux__plane_map(k, fa, n, p.rows, 256);
    const int64_t next = (256 + p.maps[0].step[1] * p.maps[0].dim[2] + 255) / 256 * 256;
    p.maps[1] = flux__plane_map(k, fb, n, FLUX__WGMMA_COLUMNS, next);
    if (next + p.maps[1].step[1] * p.maps[1].dim[2] <= FLUX__PLANES_MOST) p.n = n;
    return p;
}

/* The chunks of 8 numbers that an operand's planes have. */
static int64_t flux__plane_chunks(const flux__planes *p, const flux__tensor_map *m) {
    return m->step[0] / 16 * m->dim[1] * (m->dim[2] / p->n);
}

/* Loads the thread's 8 numbers, from element x of line y of the batch's matrix on, into v: by 16
   bytes if they are whole and aligned. Beyond the line are zeros. */
static void flux__emit_plane_numbers(flux__emitter *c, const flux__factor *f,
                                     const flux__tensor_map *m) {
    flux__listing *s = &c->s;
    const bool whole = flux__chunks_fit(f, c->k->mnk[2], 4);
    flux__emit(s, "    float v[8];\n    FULLY\n    for (int u = 0; u < 8; u += %d) {\n"
               "    const %s %c = x + u, %c = y;\n    const int there = x + u < %lld;\n"
               "    const float *const from = p%d + (", whole ? 4 : 1, c->index,
               f->deep ? 'l' : 'i', f->deep ? 'i' : 'l', (long long)m->dim[0], f->p);
    flux__emit_element(s, f);
    flux__emit(s, whole ? ");\n    float_pack four;\n    if (there) four = *(const float_pack *)"
                          "from;\n    FULLY\n    for (int e = 0; e < 4; e++) v[u + e] = there ? "
                          "four.x[e] : 0.0f;\n    }\n"
                        : ");\n    v[u] = there ? *from : 0.0f;\n    }\n");
}

/* Computes the planes of chunk `q` of operand f. 2^127 is the first number that may round to
   infinity; the planes of 2^-108 end at 2^-133, the smallest bf16. */
static void flux__emit_plane_chunk(flux__emitter *c, const flux__planes *p, const flux__factor *f,
                                   const flux__tensor_map *m) {
    flux__listing *s = &c->s;
    flux__emit(s, "    const %s x = (%s)(q %% %lld) * 8, y = (%s)(q / %lld %% %lld), "
               "batch = (%s)(q / %lld);\n", c->index, c->index, (long long)m->step[0] / 16,
               c->index, (long long)m->step[0] / 16, (long long)m->dim[1], c->index,
               (long long)(m->step[0] / 16 * m->dim[1]));
    flux__emit_batch(c, f);
    flux__emit_plane_numbers(c, f, m);
    flux__emit(s, "    char *const to = (char *)p%d + %lldLL + batch * %lldLL + y * %lldLL + x * 2;"
               "\n    FULLY\n    for (int u = 0; u < 8; u++) {\n"
               "    const u32 size = BITS_OF(v[u]) & 0x7fffffffu;\n"
               "    bad |= size >= 0x7f000000u || (size && size < 0x09800000u);\n    }\n"
               "    FULLY\n    for (int n = 0; n < %d; n++) {\n    words4 out;\n    FULLY\n"
               "    for (int u = 0; u < 4; u++) {\n"
               "    out.x[u] = pair_bf16(v[2 * u], v[2 * u + 1]);\n"
               "    v[2 * u] -= FLOAT_OF(out.x[u] << 16);\n"
               "    v[2 * u + 1] -= FLOAT_OF(out.x[u] & 0xffff0000u);\n    }\n"
               "    *(words4 *)(to + n * %lldLL) = out;\n    }\n", p->scratch,
               (long long)m->offset, (long long)m->step[1], (long long)m->step[0], p->n,
               (long long)(m->step[1] * (m->dim[2] / p->n)));
}

/* The launches before the product: one clears the flag, one computes the planes of both
   operands. */
static void flux__code_flag(flux__emitter *c, const flux__planes *p) {
    flux__emit(&c->s, "    if (threadIdx.x == 0) *(int *)p%d = 0;\n", p->scratch);
    c->gk->next.threads = 32, c->gk->next.blocks = 1;
}
static void flux__code_planes(flux__emitter *c, const flux__planes *p, const flux__factor *fa,
                              const flux__factor *fb) {
    const int64_t first = flux__plane_chunks(p, &p->maps[0]),
                  all = first + flux__plane_chunks(p, &p->maps[1]);
    flux__emit(&c->s, "    int bad = 0;\n");
    flux__emit_iterations(c, (all + 255) / 256);
    flux__emit(&c->s, "    long long q = (long long)turn * 256 + threadIdx.x;\n"
               "    if (q < %lldLL) {\n", (long long)first);
    flux__emit_plane_chunk(c, p, fa, &p->maps[0]);
    flux__emit(&c->s, "    } else if (q < %lldLL) {\n    q -= %lldLL;\n", (long long)all,
               (long long)first);
    flux__emit_plane_chunk(c, p, fb, &p->maps[1]);
    flux__emit(&c->s, "    }\n    }\n    if (bad) *(int *)p%d = 1;\n", p->scratch);
    c->gk->next.threads = 256, c->gk->next.blocks = 1;
    c->gk->next.grid[0] = flux__gpu_blocks((all + 255) / 256);
}

/* Launch number `which` of a product by planes; `copies`: the chip copies to shared memory by
   itself. */
static void flux__code_plane_launch(flux__emitter *c, const flux__planes *p, const flux__factor *fa,
                                    const flux__factor *fb, bool copies, int which) {
    const flux__parts all = { c->k->mnk[2],
                              c->k->mnk[0] * c->k->mnk[1] * flux__batches(c->k), 1, -1 };
    char guard[60];
    snprintf(guard, sizeof guard, "    if (%s*(const int *)p%d) return;\n", which == 3 ? "!" : "",
             p->scratch);
    if (which == 0) flux__code_flag(c, p);
    else if (which == 1) flux__code_planes(c, p, fa, fb);
    else if (which == 2) {
        const flux__ring r = flux__ring_of(p->rows, p->n, guard);
        flux__code_wgmma_product(c, fa, fb, &r, &all);
    } else {
        const flux__fma_tile t = flux__choose_fma_tile(c->k);
        flux__emit(&c->s, "%s", guard);
        flux__code_fma_product(c, fa, fb, &t, &all, copies);
    }
}

/* The texts of a product by planes. A dry run declares the parameters of all launches. */
static bool flux__code_plane_product(flux__emitter *c, flux__kernel *k, flux__planes *p,
                                     const flux__factor *fa, const flux__factor *fb, bool copies) {
    p->scratch = flux__emitter_param(c, 's', 0, "long long *");
    k->scratch = (size_t)(p->maps[1].offset + p->maps[1].step[1] * p->maps[1].dim[2]);
    if (!flux__keep_maps(c, p->maps, 2)) return false;
    for (int which = 0; which < 4; which++) flux__code_plane_launch(c, p, fa, fb, copies, which);
    c->s.n = 0;
    for (int which = 0; which < 4; which++) {
        flux__step_start(&c->gk->next);
        flux__code_plane_launch(c, p, fa, fb, copies, which);
        if (!flux__emitter_finish(c)) return false;
    }
    return true;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_GEMM_PLANES_H */
