#ifndef FLUX__GPU_ATTENTION_WGMMA_H
#define FLUX__GPU_ATTENTION_WGMMA_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/attention.h"
#include "../schedule/kernel.h"
#include "kernels.h"
#include "gemm_wgmma.h"
#include "attention.h"
#include "attention_mma.h"

/* ---------------------------------------------------------------------- gpu/attention_wgmma.h
   Attention in half formats on sm_90 by warpgroups (wgmma) and boxes (TMA), and
   flux__code_attention, which chooses between this text and those of
   gpu/attention_mma.h and gpu/attention.h.

   The passes, and what they compute, are those of gpu/attention_mma.h. A warpgroup
   has 64 rows, of which warp w has 16, so that a lane's sums lie as those of mma
   do, and are in pairs the left operand of the next product. The rows stay in
   shared memory; tiles of columns come to a ring of `stages`, for which thread 0
   asks ahead of their turn. Both are in boxes of 64 features and 64 positions,
   8 KiB; a line of 128 bytes is a position.

   Invariant: shapes and strides alone choose this text. A warpgroup waits for its
   products before it gives a stage back, so nothing that is read is overwritten.
   Heads have 64 or 128 features; a mask or dropout is left to attention_mma.h, as
   its places would not fit in registers. */

FLUX__BEGIN_LEAN

/* How a pass is shared out: warpgroups of a block, blocks of a multiprocessor, stages. */
typedef struct flux__attend_ring {
    int groups, blocks, stages, rows, stage;   /* rows, stage: their bytes */
    bool lean;                                 /* see flux__emit_attend_wgmma_backward */
    int map[5];                                /* parameters of operands' maps */
} flux__attend_ring;

/* The operands' type as wgmma and the prelude's pair_ functions name it. */
static const char *flux__attend_half(const flux__attend_pass *p) {
    return p->a->dtype == FLUX_F16 ? "f16" : "bf16";
}

/* What of a pass follows from shapes, by measurement on an H200: as many warpgroups as registers
   allow, so that some multiply while others take exponentials, in small blocks, which begin and
   end apart. (Rejected, as no faster or slower there: a warpgroup's next scores under way while it
   takes exponentials, which leaves registers for fewer warpgroups. Rows that stay in registers:
   NVRTC 13.0's assembler lets others overwrite these before the loop's next turn.) */
static flux__attend_ring flux__attend_ring_of(flux__attend_pass *p, const int *maps) {
    flux__attend_ring r;
    memset(&r, 0, sizeof r);
    memcpy(r.map, maps, sizeof r.map);
    const bool wide = p->n1 + p->n2 > 128;     /* sums of 128 features take half of the registers */
    r.groups = wide && p->second ? 2 : 1;
    r.blocks = !wide ? p->by_keys ? 3 : 4 : p->second ? 1 : 2;
    r.stages = p->second && (wide || p->by_keys) ? 3 : 2;
    r.lean = p->by_keys && !wide;
    p->tall = 1, p->warps = 4 * r.groups, p->rows = 64 * r.groups;
    p->n = wide && p->forward ? 128 : 64;
    r.rows = (p->n1 + (p->first ? p->n2 : 0)) * p->rows * 2;
    r.stage = (p->n1 + p->n2) * p->n * 2;
    return r;
}

/* Asks for `count` positions of operand i from position `from` on, to `to` in shared memory. */
static void flux__emit_attend_boxes(const flux__attend_pass *p, const flux__attend_ring *r, int i,
                                    const char *to, const char *from, int count,
                                    const char *phase) {
    const long long d = (long long)(i < 2 ? p->a->d : p->a->dv);
    for (int f = 0, at = 0; f < d; f += FLUX__LINE)
        for (int b = 0; b < count; b += FLUX__LINE, at += FLUX__BOX_BYTES)
            flux__emit(&p->a->c->s, "    box_load(%s + %d, &p%d, (int)head * %lld + %d, "
                       "(int)%s + %d, (int)sample, %s);\n", to, at, r->map[i], d, f, from, b,
                       phase);
}

/* Asks for tile number `which` of columns. */
static void flux__emit_attend_request(const flux__attend_pass *p, const flux__attend_ring *r,
                                      const char *which) {
    flux__listing *s = &p->a->c->s;
    char second[24];
    snprintf(second, sizeof second, "to + %d", p->n1 * p->n * 2);
    flux__emit(s, "    const int stage = %s %% %d, from = (int)first + %s * %d;\n"
               "    const u32 to = tiles + stage * %d, phase = full + stage * 8;\n"
               "    phase_expects(phase, %d);\n", which, r->stages, which, p->n, r->stage,
               r->stage);
    flux__emit_attend_boxes(p, r, p->c1, "to", "from", p->n, "phase");
    flux__emit_attend_boxes(p, r, p->c2, second, "from", p->n, "phase");
}

/* Products of the rows and the columns, one: x1 c1', else x2 c2', into `sums`. */
static void flux__emit_attend_wgmma_scores(const flux__attend_pass *p, const char *sums,
                                           bool one) {
    char x[60], c[60];
    const char n = one ? '1' : '2';
    snprintf(x, sizeof x, "LINES(x%c_lines + l %% 4 * 2 + l / 4 * %d)", n, p->rows * 8);
    snprintf(c, sizeof c, "LINES(c%c_lines + l %% 4 * 2 + l / 4 * %d)", n, p->n * 8);
    const flux__wgmma w = { flux__attend_half(p), p->n, sums, x, c, false, false, false,
                            "(int)(l > 0)" };
    flux__emit(&p->a->c->s, "    FULLY\n    for (int l = 0; l < %d; l++)\n",
               (one ? p->n1 : p->n2) / 16);
    flux__emit_wgmma(&p->a->c->s, &w);
    flux__emit(&p->a->c->s, "    products_end();\n");
}

/* Begins to add the products of the weights, fragments x[j], and c1 or c2 to sum1 or sum2. */
static void flux__emit_attend_wgmma_add(const flux__attend_pass *p, const char *x, bool one) {
    char left[16], right[40];
    snprintf(left, sizeof left, "%s[j]", x);
    snprintf(right, sizeof right, "LINES(c%c_turned + j * 128)", one ? '1' : '2');
    const flux__wgmma w = { flux__attend_half(p), one ? p->n1 : p->n2,
                            one ? "sum1[0][%d][%d]" : "sum2[0][%d][%d]", left, right, true, false,
                            true, "1" };
    flux__emit(&p->a->c->s, "    products_begin();\n    FULLY\n    for (int j = 0; j < %d; j++)\n",
               p->n / 16);
    flux__emit_wgmma(&p->a->c->s, &w);
    flux__emit(&p->a->c->s, "    products_end();\n");
}

/* Waits until at most `left` groups of products are under way, and looks at sums n / 2. */
static void flux__emit_attend_settled(const flux__attend_pass *p, int left, const char *sums,
                                      int n) {
    flux__emit(&p->a->c->s, "    products_left(%d);\n    FULLY\n"
               "    for (int j = 0; j < %d; j++) FULLY for (int e = 0; e < 8; e++) SETTLED(%s);\n",
               left, n / 16, sums);
}

/* Masks the scores of a tile at the diagonal or behind the last key. */
static void flux__emit_attend_wgmma_seen(const flux__attend_pass *p) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    const long long later = (long long)(a->keys - a->queries);
    const bool tail = !p->by_keys && p->columns % p->n != 0;
    if (!a->causal && !tail) return;
    flux__emit(s, "    if (");
    if (a->causal && p->by_keys) flux__emit(s, "r0 + w0 + 15 > c0 + %lld", later);
    else if (a->causal) flux__emit(s, "c0 + %d > r0 + w0 + %lld", p->n - 1, later);
    if (tail) flux__emit(s, "%sc0 + %d > %lld", a->causal ? " || " : "", p->n,
                         (long long)p->columns);
    flux__emit(s, ") {\n    FULLY\n    for (int j = 0; j < %d; j++) {\n", p->n / 16);
    flux__emit_attend_mma_seen(p, "s[j][i][e]");
    flux__emit(s, "    }\n    }\n");
}

/* Emits x[j]: of the tile's numbers `v`, the words that the next product multiplies. */
static void flux__emit_attend_words(const flux__attend_pass *p, const char *x, const char *v) {
    flux__emit(&p->a->c->s, "    FULLY\n    for (int j = 0; j < %d; j++) FULLY "
               "for (int e = 0; e < 4; e++) "
               "%s[j][e] = pair_%s(%s[j][0][2 * e], %s[j][0][2 * e + 1]);\n", p->n / 16, x,
               flux__attend_half(p), v, v);
}

/* The forward pass over a tile. */
static void flux__emit_attend_wgmma_forward(const flux__attend_pass *p) {
    flux__listing *s = &p->a->c->s;
    flux__emit(s, "    float s[%d][1][8];\n    u32 x[%d][4];\n    products_begin();\n", p->n / 16,
               p->n / 16);
    flux__emit_attend_wgmma_scores(p, "s[%d][0][%d]", true);
    flux__emit_attend_settled(p, 0, "s[j][0][e]", p->n);
    flux__emit_attend_wgmma_seen(p);
    flux__emit_attend_mma_top(p, 8);
    flux__emit_attend_mma_fade(p, 8);
    flux__emit_attend_mma_powers(p, 8);
    flux__emit(s, "    }\n");
    flux__emit_attend_words(p, "x", "s");
    flux__emit_attend_wgmma_add(p, "x", false);
    flux__emit_attend_settled(p, 0, "sum2[0][j][e]", p->n2);
}

/* A backward pass over a tile. `lean`: dy v' is multiplied when sum2 is done, which takes fewer
   registers; else it is under way while the weights are computed. */
static void flux__emit_attend_wgmma_backward(const flux__attend_pass *p,
                                             const flux__attend_ring *r) {
    flux__listing *s = &p->a->c->s;
    const int n = p->n / 16;
    const char *const each = "    FULLY\n    for (int j = 0; j < %d; j++) FULLY "
                             "for (int e = 0; e < 8; e++) ";
    char lse[48], less[48];
    snprintf(lse, sizeof lse, p->by_keys ? "stats[j * 8 + e / 4 * 4].x[e %% 2 * 2]"
                                         : "most[0][%s]", p->local);
    snprintf(less, sizeof less, p->by_keys ? "stats[j * 8 + e / 4 * 4].x[e %% 2 * 2 + 1]"
                                           : "all[0][%s]", p->local);
    if (p->by_keys) flux__emit(s, "    const float_pack *const stats = (const float_pack *)query + "
                               "(c0 + t %% 4 * 2) / 2;\n");
    flux__emit(s, "    float s[%d][1][8], g[%d][1][8];\n    u32 x[%d][4], y[%d][4];\n"
               "    products_begin();\n", n, n, n, n);
    flux__emit_attend_wgmma_scores(p, "s[%d][0][%d]", true);
    if (!r->lean) flux__emit_attend_wgmma_scores(p, "g[%d][0][%d]", false);
    flux__emit_attend_settled(p, !r->lean, "s[j][0][e]", p->n);
    flux__emit_attend_wgmma_seen(p);
    flux__emit(s, each, n);
    flux__emit(s, "s[j][0][e] = near_exp2(fmaf(s[j][0][e], POWER, -%s));\n", lse);
    if (p->second) {
        flux__emit_attend_words(p, "x", "s");
        flux__emit_attend_wgmma_add(p, "x", false);
    } else flux__emit(s, "    (void)x;\n");
    if (r->lean) {
        flux__emit_attend_settled(p, 0, "sum2[0][j][e]", p->n2);
        flux__emit(s, "    products_begin();\n");
        flux__emit_attend_wgmma_scores(p, "g[%d][0][%d]", false);
    }
    flux__emit_attend_settled(p, p->second && !r->lean, "g[j][0][e]", p->n);
    flux__emit(s, each, n);
    flux__emit(s, "g[j][0][e] = s[j][0][e] * (g[j][0][e] - %s);\n", less);
    flux__emit_attend_words(p, "y", "g");
    flux__emit_attend_wgmma_add(p, "y", true);
    flux__emit_attend_settled(p, 0, "sum1[0][j][e]", p->n1);
    if (p->second) flux__emit_attend_settled(p, 0, "sum2[0][j][e]", p->n2);
}

/* The loop over tiles. Of a causal pass a warpgroup does nothing for tiles of which it sees
   nothing. Lines are the lower half of descriptors: where they begin, in units of 16 bytes, and
   from bit 16 on how far boxes of 64 features are apart, which matters where lines are the inner
   dim (turned). */
static void flux__emit_attend_wgmma_loop(const flux__attend_pass *p, const flux__attend_ring *r) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    const int second = p->n1 * p->n / 8, turned = (p->n * 8 - 1) * 65536;
    flux__emit(s, "#pragma unroll 1\n    for (int k = 0; k < count; k++) {\n"
               "    if (t == 0 && k + AHEAD < count) {\n    const int next = k + AHEAD;\n"
               "    phase_wait(empty + next %% %d * 8, ~(next / %d) & 1);\n", r->stages,
               r->stages);
    flux__emit_attend_request(p, r, "next");
    flux__emit(s, "    }\n    __syncwarp();\n    const int q = k %% %d;\n"
               "    const %s c0 = first + k * %d;\n    phase_wait(full + q * 8, k / %d & 1);\n"
               "    const u32 c1_lines = 65536 + ((tiles + q * %d) >> 4), c2_turned = c1_lines + "
               "%d;\n", r->stages, a->c->index, p->n, r->stages, r->stage, second + turned);
    if (p->first) flux__emit(s, "    const u32 c2_lines = c1_lines + %d, "
                             "c1_turned = c1_lines + %d;\n", second, turned);
    if (r->groups > 1 && a->causal)
        flux__emit(s, p->by_keys ? "    if (r0 + t / 128 * 64 <= c0 + %lld) {\n"
                                 : "    if (c0 <= r0 + t / 128 * 64 + %lld) {\n",
                   (long long)(a->keys - a->queries) + (p->by_keys ? p->n : 64) - 1);
    else flux__emit(s, "    {\n");
    if (p->forward) flux__emit_attend_wgmma_forward(p);
    else flux__emit_attend_wgmma_backward(p, r);
    flux__emit(s, "    }\n    if (t %% 32 == 0) phase_arrive(empty + q * 8);\n    }\n");
}

/* What a pass begins with: phases, the rows, the first tiles, sums of 0. */
static void flux__emit_attend_wgmma_begin(const flux__attend_pass *p, const flux__attend_ring *r) {
    const flux__attend_text *a = p->a;
    flux__listing *s = &a->c->s;
    char second[24];
    snprintf(second, sizeof second, "rows + %d", p->n1 * p->rows * 2);
    flux__emit(s, "    const int count = (int)((last - first + %d) / %d);\n"
               "    if (t == 0) {\n    phase_start(ready, 1);\n"
               "    for (int q = 0; q < %d; q++) phase_start(full + q * 8, 1), "
               "phase_start(empty + q * 8, %d);\n    phases_started();\n"
               "    phase_expects(ready, %d);\n", p->n - 1, p->n, r->stages, p->warps, r->rows);
    flux__emit_attend_boxes(p, r, p->x1, "rows", "r0", p->rows, "ready");
    if (p->first) flux__emit_attend_boxes(p, r, p->x2, second, "r0", p->rows, "ready");
    flux__emit(s, "    for (int k = 0; k < AHEAD && k < count; k++) {\n");
    flux__emit_attend_request(p, r, "k");
    flux__emit(s, "    }\n    }\n    __syncthreads();\n");
    for (int i = 1; i < 3; i++) {
        const bool there = i == 1 ? p->first : p->second;
        const int n = i == 1 ? p->n1 : p->n2;
        if (there)
            flux__emit(s, "    float sum%d[1][%d][8];\n    FULLY\n    for (int j = 0; j < %d; j++) "
                       "FULLY for (int e = 0; e < 8; e++) {\n    sum%d[0][j][e] = 0;\n"
                       "    SETTLED(sum%d[0][j][e]);\n    }\n", i, n / 16, n / 16, i, i);
    }
    if (!p->forward)
        flux__emit(s, "    const float *const query = (const float *)p%d + unit * %lldLL;\n",
                   p->scratch, (long long)((a->queries + FLUX__ATTEND_PAD - 1) /
                                           FLUX__ATTEND_PAD * FLUX__ATTEND_PAD * 2));
    if (!p->by_keys) flux__emit_attend_mma_stats(p);
    flux__emit(s, "    phase_wait(ready, 0);\n"
               "    const u32 x1_lines = 65536 + (rows >> 4) + t / 128 * %d;\n",
               FLUX__BOX_BYTES / 16);
    if (p->first) flux__emit(s, "    const u32 x2_lines = x1_lines + %d;\n", p->n1 * p->rows / 8);
}

/* The text of a pass. */
static bool flux__code_attend_wgmma_pass(flux__attend_pass *p, const int *maps) {
    const flux__attend_ring r = flux__attend_ring_of(p, maps);
    flux__listing *s = &p->a->c->s;
    flux__emit(s, "    extern __shared__ ALIGN16 char dynamic[];\n    __shared__ u64 phases[%d];\n"
               "    const u32 full = shared_at(phases), empty = full + %d, ready = full + %d, "
               "rows = (shared_at(dynamic) + 1023) / 1024 * 1024, tiles = rows + %d;\n"
               "    const int t = (int)threadIdx.x, w0 = t / 32 * 16;\n#define AHEAD %d\n"
               "#define LINES(low) ((u64)0x40000040 << 32 | (low))\n",
               2 * r.stages + 1, 8 * r.stages, 16 * r.stages, r.rows,
               r.stages - r.groups);
    flux__emit_attend_mma_place(p);
    flux__emit_attend_wgmma_begin(p, &r);
    flux__emit_attend_wgmma_loop(p, &r);
    flux__emit(s, "#undef AHEAD\n#undef LINES\n");
    p->a->c->gk->next.shared = (unsigned)(r.rows + r.stages * r.stage + 1024);
    return flux__attend_mma_end(p, 128u * (unsigned)r.groups, (unsigned)r.blocks);
}

/* Fills in the map of operand i. False: TMA can't read it, or it is shorter than a box. */
static bool flux__attend_map(const flux__attend_text *a, int i, flux__tensor_map *m) {
    const flux__operand *o = a->o[i];
    memset(m, 0, sizeof *m);
    m->slot = o->src, m->offset = o->offset * 2, m->brain = o->dtype == FLUX_BF16;
    for (int d = 0; d < 3; d++) m->dim[d] = o->shape.dim[d], m->box[d] = d < 2 ? FLUX__LINE : 1;
    m->step[0] = o->stride[1] * 2;
    m->step[1] = m->dim[2] > 1 ? o->stride[2] * 2 : m->step[0] * m->dim[1];
    return flux__attend_whole(a, i, 2) && m->dim[1] >= FLUX__LINE && m->step[0] > 0 &&
           m->step[1] > 0 && m->step[1] % m->step[0] == 0 && m->dim[0] < INT32_MAX &&
           m->dim[1] < INT32_MAX && m->dim[2] < INT32_MAX && m->step[1] < (int64_t)1 << 40;
}

/* Gives the kernel its operands' maps, whose parameters go to `maps`. False: this text does not
   suit the device or the shapes. */
static bool flux__attend_maps(const flux__attend_text *a, const flux__gpu *g, bool back,
                              int *maps) {
    flux__tensor_map all[5];
    if (!g->tiled || !flux__is_half(a->dtype) || a->d % FLUX__LINE || a->dv % FLUX__LINE ||
        a->heads * a->batch > 65535 || a->o[FLUX__ATTEND_MASK] || a->o[FLUX__ATTEND_KEEP])
        return false;
    memset(all, 0, sizeof all);
    for (int i = 0; i < 5; i++)
        if (i != FLUX__ATTEND_MADE && (i < 3 || back) && !flux__attend_map(a, i, &all[i]))
            return false;
    if (!flux__keep_maps(a->c, all, 5)) return false;
    for (int i = 0; i < 5; i++)
        maps[i] = i != FLUX__ATTEND_MADE && (i < 3 || back)
            ? flux__emitter_param(a->c, 'm', i, "const __grid_constant__ tensor_map") : -1;
    return true;
}

/* The texts of attention's node t: by warpgroups, else with matrix instructions if the chip has one
   for the operands' dtype, where registers hold the features of a head. */
static bool flux__code_attention(flux__emitter *c, flux__kernel *k, const flux__gpu *g,
                                 const flux_tensor *t, int out, bool tf32) {
    flux__attend_text a = flux__attend_of(c, t, out);
    const bool back = (t->arg.i[2] & FLUX__ATTEND_BACK) != 0;
    const flux__fragment *f = g->driver->fragment(g->info.arch, a.o[FLUX__ATTEND_Q]->dtype, tf32);
    const bool half = flux__is_half(a.o[FLUX__ATTEND_Q]->dtype);
    const int64_t most = back && !half ? FLUX__ATTEND_MMA_MOST / 2 : FLUX__ATTEND_MMA_MOST;
    /* Masks' places and doubles take registers, and AMD's compiler takes all for loads ahead. */
    a.roomy = strncmp(g->info.arch, "sm_", 3) == 0 && a.T[0] == 'f' && !a.o[FLUX__ATTEND_MASK] &&
              !a.o[FLUX__ATTEND_KEEP];
    if (!f || a.d > most || a.dv > most) return flux__code_attend(&a, k, back);
    flux__attend_pass p = flux__attend_pass_of(&a, f, !back, false);
    int maps[5];
    const bool tiled = flux__attend_maps(&a, g, back, maps);
    if (c->failed) return false;
    if (!back)
        return tiled ? flux__code_attend_wgmma_pass(&p, maps) : flux__code_attend_pass(&p);
    k->scratch = (size_t)(a.heads * a.batch * ((a.queries + FLUX__ATTEND_PAD - 1) /
                                               FLUX__ATTEND_PAD * FLUX__ATTEND_PAD)) * 8;
    p.scratch = flux__emitter_param(c, 's', 0, "long long *");
    flux__attend_pass by_keys = flux__attend_pass_of(&a, f, false, true);
    by_keys.scratch = p.scratch;
    by_keys.at1 = a.d * a.heads * a.queries * a.batch;
    by_keys.at2 = by_keys.at1 + a.d * a.heads * a.keys * a.batch;
    if (!flux__code_attend_dots(&a, p.scratch, false)) return false;
    if (tiled)
        return flux__code_attend_wgmma_pass(&p, maps) &&
               flux__code_attend_wgmma_pass(&by_keys, maps);
    if (!flux__code_attend_pass(&p)) return false;
    /* With a mask's places or the next tile the registers would not suffice for both. */
    const bool places = a.o[FLUX__ATTEND_MASK] || a.o[FLUX__ATTEND_KEEP];
    if (f->lanes == 32 && by_keys.n1 + by_keys.n2 >= 192 && (places || by_keys.stages == 1)) {
        by_keys.second = false;
        if (!flux__code_attend_pass(&by_keys)) return false;
        by_keys.first = false, by_keys.second = true;
    }
    return flux__code_attend_pass(&by_keys);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_ATTENTION_WGMMA_H */
