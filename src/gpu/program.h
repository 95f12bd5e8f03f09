#ifndef FLUX__GPU_PROGRAM_H
#define FLUX__GPU_PROGRAM_H
#include "../base/platform.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/grouping.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "launch.h"
#include "fused.h"
#include "tiles.h"
#include "gemm_mma.h"
#include "sorting.h"
#include "whole.h"
#include "attention_wgmma.h"

/* ---------------------------------------------------------------------- gpu/program.h
   From a kernel to text: flux__code_kernel chooses the emitter of its kind, and
   flux__emit_formula turns a formula of graph/table.h into a function of the
   program, FLUX__F(exp)(a) into exp_f32(a).

   Invariant: a kernel's text depends on its shapes, strides, dtypes and the chip
   alone, not on addresses or numbers, which are parameters; the text's hash is the
   kernel's name, so equal kernels are compiled once. A kernel without points has
   no launch. Both launches of a split reduction take the same parameters: those
   that only the second one uses are found by emitting both once and throwing the
   text away. Formulas of integers are computed in 64 bits and cut. */

FLUX__BEGIN_LEAN

/* Emits the function of an operation in a class, exp_f32_op for example, from its formula:
   FLUX__F(exp)(a) becomes exp_f32(a), FLUX__K becomes K_f32, FLUX__IF becomes IF. */
static void flux__emit_formula(flux__listing *s, int op, int ctype) {
    bool whole = ctype >= FLUX__I32C;
    const char *T = flux__class_types[ctype], *suffix = whole ? "w" : flux__class_names[ctype],
        *p = flux__formulas[op];
    flux__emit(s, "DEVICE %s %s_%s_op(%s a%s, %s b%s, %s c%s) {\n", T, flux__op_names[op],
                flux__class_names[ctype], T, whole ? "_" : "", T, whole ? "_" : "", T,
                whole ? "_" : "");
    if (whole) flux__emit(s, "    long long a = a_, b = b_, c = c_;\n");
    flux__emit(s, "    return (%s)(", T);
    while (*p) {
        if (strncmp(p, "FLUX__F(", 8) == 0) {
            const char *end = strchr(p, ')');
            flux__emit(s, "%.*s_%s", (int)(end - p - 8), p + 8, suffix);
            p = end + 1;
        } else if (strncmp(p, "FLUX__K", 7) == 0) {
            flux__emit(s, "K_%s", suffix);
            p += 7;
        } else if (strncmp(p, "FLUX__IF", 8) == 0) {
            flux__emit(s, "IF");
            p += 8;
        } else {
            const char *end = strstr(p, "FLUX__");
            int n = end ? (int)(end - p) : (int)strlen(p);
            flux__emit(s, "%.*s", n, p);
            p += n;
        }
    }
    flux__emit(s, ");\n}\n");
}

/* Frees what flux__gpu_ready made of a kernel, when its plan is freed. */
static void flux__gpu_kernel_drop(void *ready) {
    flux__gpu_kernel *gk = (flux__gpu_kernel *)ready;
    for (int i = 0; i < gk->launches; i++)
        flux__free(gk->step[i].text);
    flux__graph_exec_drop(gk);
    flux__free(gk->step);
    flux__free(gk->param);
    flux__free(gk->args);
    flux__free(gk->maps);
    flux__free(gk);
}

/* The texts of elementwise kernels: the first that fits. */
static const struct flux__map_text {
    bool (*fits)(flux__emitter *);
    void (*code)(flux__emitter *, int64_t points);
} flux__map_texts[] = {
    { flux__reads_across, flux__code_tiles },
    { NULL,               flux__code_map }
};

/* The text of a fused kernel: elementwise, a reduction, or a split reduction, which needs
   scratch memory. */
static bool flux__code_fused(flux__emitter *c, flux__kernel *k) {
    int64_t points = flux__count8(k->full), outer = 1;
    if (!k->reduced) {
        if (points == 0) return true;
        const struct flux__map_text *text = flux__map_texts;
        while (text->fits && !text->fits(c)) text++;
        text->code(c, points);
        return flux__emitter_finish(c);
    }
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (!(k->reduced >> d & 1)) outer *= k->full[d];
    if (outer == 0) return true;
    flux__lanes h = flux__choose_lanes(k);
    int scratch = h.split ? flux__emitter_param(c, 's', 0, "long long *") : -1;
    /* a dry run declares the parameters of both launches */
    if (h.split) {
        flux__code_reduce(c, &h, scratch);
        flux__code_combine(c, &h, scratch);
        c->s.n = 0;
    }
    flux__code_reduce(c, &h, scratch);
    bool ok = flux__emitter_finish(c);
    if (!ok || !h.split) return ok;
    k->scratch = (size_t)(h.parts * flux__reductions(k, k->nvalue)) * (size_t)h.outer * 16;
    flux__code_combine(c, &h, scratch);
    return flux__emitter_finish(c);
}

/* The text of a kernel of any kind; one without points has no launch. False: no memory. */
static bool flux__code_kernel(flux__emitter *c, flux__plan *plan, flux__graph *graph,
                              flux__kernel *k,
                              const flux__gpu *g) {
    const flux_tensor *t = k->node >= 0 ? graph->node[k->node] : NULL;
    int out = plan->nleaf + k->node;
    if (k->kind == FLUX__K_FUSED) return flux__code_fused(c, k);
    if (flux__count8(k->full) == 0) return true;
    if (k->kind == FLUX__K_MATMUL) return flux__code_product(c, k, g, graph->tf32);
    if (k->kind == FLUX__K_ATTEND)
        return flux__code_attention(c, k, g, t, out, graph->tf32);
    if (k->kind == FLUX__K_SORT) return flux__code_argsort(c, k, t, out);
    if (k->kind == FLUX__K_CAT) flux__code_cat(c, t, out);
    else if (k->kind == FLUX__K_INTERPOLATE) flux__code_interpolation(c, t, out);
    else if (k->kind == FLUX__K_STRIDED_SCATTER) flux__code_strided_scatter(c, t, out);
    else if (k->kind == FLUX__K_SCATTER) return flux__code_scatter(c, k, t, out);
    else flux__code_gather(c, t, out);
    return flux__emitter_finish(c);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_PROGRAM_H */
