#ifndef FLUX__TEXT_DOT_H
#define FLUX__TEXT_DOT_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/order.h"
#include "../schedule/plans.h"

/* ---------------------------------------------------------------------- text/dot.h
   A schedule as a picture: flux_graph_dot writes the plan that evaluating a
   tensor would run as Graphviz text. Each kernel is a box, each leaf an
   ellipse, and each tensor that a kernel reads an arrow to that kernel.

   Invariant: nothing is computed (a GPU's kernels may be compiled). The plan is
   looked up or made as an evaluation would do it, and stays in the cache, where
   that evaluation finds it. An operand that a kernel reads in several ways is
   one arrow. A graph without unevaluated nodes gives an empty picture and no
   error. */

FLUX__BEGIN_COLD

/* Writes a box for each kernel of a plan, with arrows from what it reads. maker[i] is the index of
   the kernel that stores node i of the graph. */
static void flux__dot_kernels(FILE *f, const flux__plan *plan, const flux__graph *g,
                              const int *maker) {
    char words[240];
    for (int i = 0; i < plan->nkernel; i++) {
        const flux__kernel *k = &plan->kernel[i];
        flux__kernel_words(plan, g, k, FLUX__WORDS_SIZES, words, sizeof words);
        fprintf(f, "  k%d [label=\"%d. %s\"];\n", i, i + 1, words);
        for (int j = 0; j < k->noperand; j++) {
            int src = k->operand[j].src;
            bool again = src < 0;         /* no tensor: only strides, of a value of this kernel */
            for (int e = 0; e < j; e++) again = again || k->operand[e].src == src;
            if (again) continue;
            flux__text t = flux__describe(src < plan->nleaf ? g->leaf[src]
                                                            : g->node[src - plan->nleaf]);
            if (src < plan->nleaf)
                fprintf(f, "  l%d [label=\"%s\" shape=ellipse];\n  l%d -> k%d;\n", src, t.s, src,
                        i);
            else fprintf(f, "  k%d -> k%d [label=\"%s\"];\n", maker[src - plan->nleaf], i, t.s);
        }
    }
}

/* Writes a plan as Graphviz text. plan is NULL where nothing is left to compute; maker: room for a
   number of each node. */
static void flux__dot_write(FILE *f, const flux__plan *plan, const flux__graph *g, int *maker) {
    fputs("digraph schedule {\n"
          "  node [shape=box fontname=monospace fontsize=10];\n"
          "  edge [fontname=monospace fontsize=9];\n",
          f);
    for (int i = 0; plan && i < plan->nkernel; i++)
        for (int j = 0; j < plan->kernel[i].nouts; j++) maker[plan->kernel[i].outs[j]] = i;
    if (plan) flux__dot_kernels(f, plan, g, maker);
    fputs("}\n", f);
}

/* The same into a file, or to stdout if path is NULL. False: an error was told. */
static bool flux__dot_save(const char *path, const flux__plan *plan, const flux__graph *g,
                           int *maker) {
    FILE *f = path ? flux__fopen(path, "wb") : stdout;
    if (!f) return FLUX__REFUSE("graph_dot: cannot open %s: %s", path, strerror(errno));
    flux__dot_write(f, plan, g, maker);
    bool good = !ferror(f);               /* what a write lost is not written again */
    good = (path ? fclose(f) : fflush(f)) == 0 && good;
    return good || FLUX__REFUSE("graph_dot: cannot write %s: %s", path ? path : "to stdout",
                                strerror(errno));
}

/* The file is opened when there is a plan, so that an error before leaves it as it was. */
FLUX_DEF int flux_graph_dot(flux_tensor *x, const char *path) {
    flux__graph g;
    if (!flux__check_operands("graph_dot", 1, &x)) return -1;
    do {
        flux__graph_start(&g);
        flux__graph_want(&g, flux__base(x));
    } while (flux__graph_met(&g));
    flux__graph_claim(&g);
    const bool work = g.ok && g.nnode;
    if (work) flux__graph_key(&g);
    flux__plan *plan = work && g.ok ? flux__find_plan(&g) : NULL;
    int *maker = plan ? (int *)flux__zalloc((size_t)plan->nnode * sizeof *maker) : NULL;
    const bool ok = g.ok && (!work || maker) && flux__dot_save(path, plan, &g, maker);
    flux__free(maker);
    flux__graph_free(&g);
    return ok ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__TEXT_DOT_H */
