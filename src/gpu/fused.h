#ifndef FLUX__GPU_FUSED_H
#define FLUX__GPU_FUSED_H
#include "../base/platform.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/grouping.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "vectors.h"

/* ---------------------------------------------------------------------- gpu/fused.h
   The text of fused kernels: elementwise ones, where a thread computes a point
   (flux__code_map), and reductions, where several threads of a block, the lanes,
   reduce the points of one outer point together (flux__code_reduce).
   flux__emitter_start begins the text of every kernel; it makes positions 32-bit
   integers if the kernel's tensors are small enough.

   In the text o is the outer point (an element of what the reduction leaves), r
   the reduced point. A reduction's range of r is cut into parts, which a block
   works through, or which different blocks take (a split reduction, two launches:
   partial results go to scratch memory, then one thread an outer point joins
   them). A kernel may reduce several times, in phases: a phase uses the results
   of those before it.

   Invariant: the number of lanes and parts depends on the shape and the reduced
   dims alone, since it decides in which order a sum is added; the operands'
   strides decide only which threads are the lanes of one outer point. Each lane
   sums some 32 floats at a time in float and adds these sums up in double; lanes
   are joined in trees of 32, these and parts in a fixed order. Threads beyond the
   last outer point compute the last one again, because barriers need them, and
   store nothing. */

FLUX__BEGIN_LEAN

/* Whether value v is computed once an outer point, before the reductions of `phase`. */
static bool flux__gpu_per_row(const flux__value *v, int phase) {
    return v->outer && !flux__reducing(v) && v->phase == phase;
}

/* Begins the text of kernel k: finds the dims of each value, outer and reduced ones apart, and
   whether 32 bits suffice for the farthest position of any operand. False is an error: no
   memory. */
static bool flux__emitter_start(flux__emitter *c, const flux__plan *plan, const flux__kernel *k,
                              flux__gpu_kernel *gk) {
    size_t n = (size_t)k->nvalue + 1;
    memset(c, 0, sizeof *c);
    c->k = k, c->plan = plan, c->gk = gk;
    c->outer_axes = (flux__axes *)flux__zalloc(n * sizeof *c->outer_axes);
    c->inner_axes = (flux__axes *)flux__zalloc(n * sizeof *c->inner_axes);
    c->need = (bool *)flux__zalloc(n);
    c->how = (uint8_t *)flux__zalloc(n);
    if (!c->outer_axes || !c->inner_axes || !c->need || !c->how) return false;
    int64_t most = flux__count8(k->full);
    for (int i = 0; i < k->nvalue; i++) {
        int64_t step[FLUX_MAX_DIMS];
        const flux__value *v = &k->value[i];
        flux__value_strides(k, v, step);
        flux__merge_axes(&c->outer_axes[i], k->full, step, k->reduced, false);
        flux__merge_axes(&c->inner_axes[i], k->full, step, k->reduced, true);
    }
    for (int o = 0; o < k->noperand; o++) {
        int64_t far = k->operand[o].offset;
        for (int d = 0; d < FLUX_MAX_DIMS; d++) {
            int64_t many = d < k->operand[o].shape.ndim ? k->operand[o].shape.dim[d] : 1,
                step = k->operand[o].stride[d];
            if (k->full[d] > many && !k->operand[o].gather) many = k->full[d];
            far += (step < 0 ? -step : step) * (many - 1);
        }
        if (far > most) most = far;
    }
    c->index = most < (int64_t)1 << 30 ? "int" : "long long";
    return true;
}

static void flux__emitter_end(flux__emitter *c) {
    flux__free(c->outer_axes);
    flux__free(c->inner_axes);
    flux__free(c->need);
    flux__free(c->how);
    flux__free(c->s.text);
    flux__free(c->params.text);
}

/* Declares the kernel's numbers (constants and values that the host passes), which are the same
   at every point. */
static void flux__emit_numbers(flux__emitter *c) {
    for (int i = 0; i < c->k->nvalue; i++)
        if (c->k->value[i].kind == FLUX__V_NUMBER) flux__emit_line(c, i);
}

/* The lines for point o of a kernel without reduced dims, phase by phase, with its stores. A
   product's epilogue is such a point, and `product` is the value that it has already declared;
   else -1. */
static void flux__emit_point(flux__emitter *c, int product) {
    for (int p = 0, more = 1; more; p++) {
        more = 0;
        for (int i = 0; i < c->k->nvalue; i++) {
            const flux__value *v = &c->k->value[i];
            if (v->phase > p) more = 1;
            if (v->phase != p) continue;
            if (v->kind != FLUX__V_NUMBER && i != product) flux__emit_line(c, i);
            if (v->out >= 0) flux__emit_store(c, i, "    ");
        }
    }
}

/* How many neighbouring points a thread of an elementwise kernel computes: as many as the
   smallest elements that lie side by side fill 16 bytes, but no more than eight. 1: none do. */
static int flux__map_width(flux__emitter *c) {
    int64_t least = 16;
    flux__find_ways(c, false, 4);
    for (int i = 0; i < c->k->nvalue; i++) {
        const flux__value *v = &c->k->value[i];
        const int64_t bytes = v->kind == FLUX__V_RANDOM ? 4 : flux__element_bytes(c, v);
        if (c->how[i] == FLUX__ALIGNED && bytes < least) least = bytes;
    }
    return least == 16 ? 1 : least < 4 && c->k->nvalue < 64 ? 8 : 4;
}

/* The points from `first` on that a thread computes together: loads, a loop without a branch,
   stores. Value `product` of type T, if there is one, is `sum` at point j. */
static void flux__emit_neighbours(flux__emitter *c, int product, const char *T, const char *sum) {
    const int n = c->k->nvalue;
    flux__emit(&c->s, "    const %s o = first;\n", c->index);
    for (int i = 0; i < n; i++) flux__emit_fetched(c, i, "");
    for (int i = 0; i < n; i++) flux__emit_sheet(c, i);
    flux__emit(&c->s, "    FULLY\n    for (int j = 0; j < %d; j++) {\n"
               "    const %s o = first + j;\n", c->width, c->index);
    for (int i = 0; i < n; i++) {
        if (i == product) flux__emit(&c->s, "    const %s v%d = %s;\n", T, i, sum);
        else if (c->k->value[i].kind != FLUX__V_NUMBER) flux__emit_near_line(c, i, "");
        flux__emit_given(c, i);
    }
    flux__emit(&c->s, "    }\n");
    for (int i = 0; i < n; i++) flux__emit_sent(c, i);
}

/* An elementwise kernel: a thread computes neighbouring points; those that do not fill a
   thread's are computed one by one. */
static void flux__code_map(flux__emitter *c, int64_t points) {
    flux__gpu_kernel *gk = c->gk;
    const int width = flux__map_width(c);
    const int64_t blocks = (points + 256 * width - 1) / (256 * width);
    const bool once = blocks <= FLUX__GPU_BLOCKS;
    flux__emit_numbers(c);
    if (width > 1) flux__find_ways(c, false, width);
    flux__emit(&c->s, "    %s first = ((%s)blockIdx.x * 256 + threadIdx.x) * %d;\n", c->index,
               c->index, width);
    if (!once)
        flux__emit(&c->s, "    for (; first < %lld; first += (%s)gridDim.x * %d)\n",
                   (long long)points, c->index, 256 * width);
    if (width > 1) {
        flux__emit(&c->s, "    if (first <= %lld) {\n", (long long)points - width);
        flux__emit_neighbours(c, -1, NULL, NULL);
        flux__emit(&c->s, "    }\n");
    }
    if (width == 1 || points % width) {
        flux__emit(&c->s, width > 1 ? "    else for (%s o = first; o < %lld; o++) {\n"
                   : "    for (%s o = first; o < %lld; o = %lld) {\n", c->index, (long long)points,
                   (long long)points);
        flux__emit_point(c, -1);
        flux__emit(&c->s, "    }\n");
    }
    gk->next.threads = 256, gk->next.blocks = 1, gk->next.grid[0] = flux__gpu_blocks(blocks);
}

/* How a reduction's work is shared out. */
typedef struct flux__lanes {
    int64_t outer, inner;                 /* outer points; reduced points of each */
    int lanes, rows, parts;               /* threads of an outer point; outer points of a block;
                                             parts of the reduced points */
    int threads, width;                   /* of a block: lanes * rows; neighbouring reduced points
                                             that a lane takes together */
    bool inner_first, split;              /* neighbouring threads are lanes of one outer point, else
                                             rows; each part has its own blocks */
} flux__lanes;

enum { FLUX__GROUP = 32 };                /* lanes that are joined in a tree; the last part of
                                             every chip's warp */

/* Doubles the lanes, up to one for each reduced point (of rows, for `width` of them), until
   there are 2^17 threads; of rows, until a lane has 32 points. Makes parts if there are still
   fewer than 128 blocks and a lane has 32 points or more. The numbers are what a large chip
   keeps busy, but are the same for every chip, as is the order of the sums. Only a kernel that
   needs one pass over the reduced points is split. */
static flux__lanes flux__choose_lanes(const flux__kernel *k) {
    enum { ENOUGH = 1 << 17, BLOCKS = 128 };
    const flux__join_order order = flux__order_of(k->full, k->reduced);
    flux__lanes h;
    h.outer = order.outer, h.inner = order.inner, h.lanes = 1, h.parts = 1;
    h.inner_first = flux__prefer_inner(k);
    h.width = !order.rows || h.inner < 128 ? 1 : h.inner >= 256 && h.inner % 8 == 0 ? 8
              : h.inner % 4 == 0 ? 4 : 1;
    const int most = order.rows ? 512 : FLUX__GROUP;
    while (h.lanes < most && (int64_t)h.lanes * 2 * h.width <= h.inner &&
           (h.outer * h.lanes < ENOUGH ||
            (order.rows && (h.lanes < FLUX__GROUP ||
                            (h.lanes < 256 && h.inner / h.lanes > 32)))))
        h.lanes *= 2;
    h.threads = h.lanes > 256 ? h.lanes : 256;
    h.rows = h.threads / h.lanes;
    int64_t blocks = (h.outer + h.rows - 1) / h.rows, each = h.inner / h.lanes;
    if (blocks < BLOCKS && each >= 32) {
        int64_t parts = (2 * BLOCKS + blocks - 1) / blocks;
        if (parts > each / 8) parts = each / 8;
        if (parts > 256) parts = 256;
        h.parts = (int)parts;
    }
    h.split = h.parts > 1 && flux__one_pass(k);
    return h;
}

/* The number of reductions among the kernel's values before value `upto`. */
static int flux__reductions(const flux__kernel *k, int upto) {
    int n = 0;
    for (int i = 0; i < upto; i++) n += flux__reducing(&k->value[i]);
    return n;
}

/* The prelude's function that joins two partial results, and the value that a reduction starts
   from. */
static const char *flux__red_name(const flux__value *v) {
    static const char *const names[] = { "sum", "prod", "fmax", "fmin" };
    return names[v->op];
}
static const char *flux__red_start(const flux__value *v) {
    static const char *const real[] = { "0", "1", "-INF", "INF" };
    static const char *const i32[] = { "0", "1", "(-2147483647 - 1)", "2147483647" };
    static const char *const i64[] = { "0", "1", "(-9223372036854775807LL - 1)",
                                       "9223372036854775807LL" };
    return (v->ctype <= FLUX__F64C ? real : v->ctype == FLUX__I32C ? i32 : i64)[v->op];
}

/* Whether value i is a reduction of phase p. */
static bool flux__reduces_in(const flux__kernel *k, int i, int p) {
    return flux__reducing(&k->value[i]) && k->value[i].phase == p;
}

/* Whether v is a sum of floats. Its accumulator is a double, to which each lane adds float sums
   of some points. */
static bool flux__adds_wide(const flux__value *v) {
    return v->kind == FLUX__V_REDUCE && v->ctype == FLUX__F32C && v->op == FLUX__RED_SUM;
}
/* The class of the accumulator of value i; that of an argmax or argmin is its operand's. */
static int flux__reduced_class(const flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    return flux__adds_wide(v) ? (int)FLUX__F64C
           : v->kind == FLUX__V_REDUCE ? v->ctype : c->k->value[v->a].ctype;
}

/* Declares the accumulators a<i> of phase p, and the positions x<i> of argmax and argmin. */
static void flux__emit_accumulators(flux__emitter *c, int p) {
    for (int i = 0; i < c->k->nvalue; i++) {
        if (!flux__reduces_in(c->k, i, p)) continue;
        const char *type = flux__class_types[flux__reduced_class(c, i)];
        if (c->k->value[i].kind == FLUX__V_REDUCE)
            flux__emit(&c->s, "    %s a%d = %s;\n", type, i, flux__red_start(&c->k->value[i]));
        else flux__emit(&c->s, "    %s a%d = 0;\n    long long x%d = -1;\n", type, i, i);
    }
}

/* Declares the results of phase p. A maximum or minimum that is a zero becomes +0, as by
   flux__settle_zeros. */
static void flux__emit_reduced(flux__emitter *c, int p) {
    for (int i = 0; i < c->k->nvalue; i++) {
        const flux__value *v = &c->k->value[i];
        const bool arg = v->kind == FLUX__V_ARGREDUCE,
                   zero = !arg && v->op >= FLUX__RED_MAX && v->ctype <= FLUX__F64C;
        if (!flux__reduces_in(c->k, i, p)) continue;
        flux__emit(&c->s, "    const %s v%d = (%s)%s%d%s;\n", flux__class_types[v->ctype], i,
                    flux__class_types[v->ctype], arg ? "x" : "a", i, zero ? " + 0" : "");
    }
}

/* Joins the partial result b (of argmax and argmin also its position y) to the accumulator of
   value i. */
static void flux__emit_join(flux__emitter *c, int i, const char *b, const char *y) {
    const flux__value *v = &c->k->value[i];
    const char *ctype = flux__class_names[flux__reduced_class(c, i)];
    if (v->kind == FLUX__V_REDUCE)
        flux__emit(&c->s, "    a%d = %s_%s(a%d, %s);\n", i, flux__red_name(v), ctype, i, b);
    else flux__emit(&c->s, "    if (later_%s(%s, %s, a%d, x%d, %d)) a%d = %s, x%d = %s;\n", ctype,
                    b,
                     y, i, i, v->op != 0, i, b, i, y);
}

/* Whether line i divides floats by a number of its row: then a row's reciprocal is found once. */
static bool flux__divides_row(const flux__kernel *k, int i) {
    const flux__value *v = &k->value[i];
    return v->kind == FLUX__V_OP && v->op == FLUX__OP_DIV && v->ctype == FLUX__F32C && !v->outer &&
           k->value[v->b].outer;
}

/* The lines of a phase's pass at one reduced point r: computes what c->need says, keeps or
   stores those of this phase that are outputs, and adds to the accumulators. */
static void flux__emit_reduced_point(flux__emitter *c, int p) {
    const flux__kernel *k = c->k;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        char b[24];
        if (c->need[i] && flux__divides_row(k, i))
            flux__emit(&c->s, "    const float v%d = over(v%d, v%d, w%d);\n", i, v->a, v->b, v->b);
        else if (c->need[i] && v->kind != FLUX__V_NUMBER) flux__emit_near_line(c, i, "");
        if (c->need[i] && v->out >= 0 && v->phase == p) {
            const bool now = c->how[i] != FLUX__ALIGNED;
            if (now) flux__emit(&c->s, "    if (live) {\n");
            flux__emit_given(c, i);
            if (now) flux__emit(&c->s, "    }\n");
        }
        if (!flux__reduces_in(k, i, p)) continue;
        snprintf(b, sizeof b, "v%d", v->a);
        if (flux__adds_wide(v)) flux__emit(&c->s, "    s%d = s%d + %s;\n", i, i, b);
        else flux__emit_join(c, i, b, "(long long)r");
    }
}

/* The loop over the points of a chunk that are a lane's, `width` neighbours at a time. */
static void flux__emit_chunk(flux__emitter *c, int p, const flux__lanes *h) {
    const flux__kernel *k = c->k;
    flux__emit(&c->s, "    for (%s first = next + lane * %d; first < end; first += %d) {\n",
                c->index, h->width, h->lanes * h->width);
    flux__emit(&c->s, "    const %s r = first;\n", c->index);
    for (int i = 0; i < k->nvalue; i++)
        if (c->need[i]) flux__emit_fetched(c, i, "");
    for (int i = 0; i < k->nvalue; i++)
        if (c->need[i] && k->value[i].phase == p) flux__emit_sheet(c, i);
    if (h->width > 1)
        flux__emit(&c->s, "    FULLY\n    for (int j = 0; j < %d; j++) {\n"
                   "    const %s r = first + j;\n", h->width, c->index);
    flux__emit_reduced_point(c, p);
    flux__emit(&c->s, h->width > 1 ? "    }\n    if (live) {\n" : "    if (live) {\n");
    for (int i = 0; i < k->nvalue; i++)
        if (c->need[i] && k->value[i].phase == p) flux__emit_sent(c, i);
    flux__emit(&c->s, "    }\n    }\n");
}

/* A lane's loop over its reduced points of a part, in phase p, chunk by chunk. */
static void flux__emit_pass(flux__emitter *c, int p, const flux__lanes *h) {
    const flux__kernel *k = c->k;
    const int64_t some = h->inner / h->lanes / h->parts > 32 ? 32 * h->lanes : h->inner;
    const int64_t all = h->inner / h->width;
    for (int d = 0; d < k->nvalue; d++) {
        bool divides = false;
        for (int i = 0; i < k->nvalue; i++)
            divides = divides || (c->need[i] && flux__divides_row(k, i) && k->value[i].b == d);
        if (divides) flux__emit(&c->s, "    const float w%d = inverse(v%d);\n", d, d);
    }
    flux__emit(&c->s, "    const %s from = (%s)(%lldLL * part / %d) * %d, "
                "to = (%s)(%lldLL * (part + 1) / %d) * %d;\n", c->index, c->index, (long long)all,
                h->parts, h->width, c->index, (long long)all, h->parts, h->width);
    flux__emit(&c->s, "    for (%s next = from; next < to; next += %lld) {\n"
                "    const %s end = to - next < %lld ? to : next + %lld;\n", c->index,
                (long long)some, c->index, (long long)some, (long long)some);
    for (int i = 0; i < k->nvalue; i++)
        if (flux__reduces_in(k, i, p) && flux__adds_wide(&k->value[i]))
            flux__emit(&c->s, "    float s%d = 0;\n", i);
    flux__emit_chunk(c, p, h);
    for (int i = 0; i < k->nvalue; i++)
        if (flux__reduces_in(k, i, p) && flux__adds_wide(&k->value[i]))
            flux__emit(&c->s, "    a%d = a%d + (double)s%d;\n", i, i, i);
    flux__emit(&c->s, "    }\n");
}

/* Joins the accumulator of value i in each group of lanes by shuffles: every lane gets the
   result, since both sides of each exchange add the same two numbers. */
static void flux__emit_shuffles(flux__emitter *c, int i, int group) {
    const char *type = flux__class_types[flux__reduced_class(c, i)];
    const bool arg = c->k->value[i].kind == FLUX__V_ARGREDUCE;
    if (group < 2) return;
    flux__emit(&c->s, "    FULLY\n    for (int w = %d; w > 0; w /= 2) {\n"
               "    const %s b = ACROSS(a%d, w);\n", group / 2, type, i);
    if (arg) flux__emit(&c->s, "    const long long y = ACROSS(x%d, w);\n", i);
    flux__emit_join(c, i, "b", "y");
    flux__emit(&c->s, "    }\n");
}

/* Joins the groups' results of value i, which stand in shared memory behind `base` doubles, from
   number `at` on and `step` apart, in order. */
static void flux__emit_groups(flux__emitter *c, int i, int base, const char *at, int step,
                              int groups) {
    const char *type = flux__class_types[flux__reduced_class(c, i)];
    const bool arg = c->k->value[i].kind == FLUX__V_ARGREDUCE;
    flux__emit(&c->s, "    a%d = ((%s *)(shared + %d))[%s];\n", i, type, base, at);
    if (arg) flux__emit(&c->s, "    x%d = places[%d + %s];\n", i, base, at);
    if (groups < 2) return;
    flux__emit(&c->s, "    for (int g = 1; g < %d; g++) {\n"
               "    const %s b = ((%s *)(shared + %d))[%s + g * %d];\n",
               groups, type, type, base, at, step);
    if (arg)
        flux__emit(&c->s, "    const long long y = places[%d + %s + g * %d];\n", base, at, step);
    flux__emit_join(c, i, "b", "y");
    flux__emit(&c->s, "    }\n");
}

/* Joins the lanes' accumulators of phase p where lanes are neighbouring threads: groups by
   shuffles, then the groups in shared memory, where each reduction has its own place, of a double
   for each group whatever it needs: a float's index counts from there. */
static void flux__emit_tree_near(flux__emitter *c, int p, const flux__lanes *h) {
    const int groups = h->lanes / FLUX__GROUP, all = h->threads / FLUX__GROUP;
    for (int i = 0; i < c->k->nvalue; i++) {
        if (!flux__reduces_in(c->k, i, p)) continue;
        flux__emit_shuffles(c, i, h->lanes < FLUX__GROUP ? h->lanes : FLUX__GROUP);
        if (groups < 2) continue;
        const int at = flux__reductions(c->k, i) * all;
        flux__emit(&c->s, "    if (lane %% 32 == 0) ((%s *)(shared + %d))[tid / 32] = a%d;\n",
                   flux__class_types[flux__reduced_class(c, i)], at, i);
        if (c->k->value[i].kind == FLUX__V_ARGREDUCE)
            flux__emit(&c->s, "    if (lane %% 32 == 0) places[%d + tid / 32] = x%d;\n", at, i);
    }
    if (groups < 2) return;
    flux__emit(&c->s, "    __syncthreads();\n");
    for (int i = 0; i < c->k->nvalue; i++) {
        char at[40];
        snprintf(at, sizeof at, "row * %d", groups);
        if (flux__reduces_in(c->k, i, p))
            flux__emit_groups(c, i, flux__reductions(c->k, i) * all, at, 1, groups);
    }
    if (h->parts > 1 && !h->split) flux__emit(&c->s, "    __syncthreads();\n");
}

/* Joins the lanes' accumulators of phase p; every lane gets the result: groups of lanes each in
   a tree, groups in order. Where lanes stand h->rows threads apart, in shared memory. */
static void flux__emit_tree(flux__emitter *c, int p, const flux__lanes *h) {
    const int group = h->lanes < FLUX__GROUP ? h->lanes : FLUX__GROUP;
    if (h->lanes == 1) return;
    if (h->inner_first) {
        flux__emit_tree_near(c, p, h);
        return;
    }
    for (int i = 0; i < c->k->nvalue; i++) {
        const flux__value *v = &c->k->value[i];
        if (!flux__reduces_in(c->k, i, p)) continue;
        bool arg = v->kind == FLUX__V_ARGREDUCE;
        const char *type = flux__class_types[flux__reduced_class(c, i)];
        flux__emit(&c->s, "    ((%s *)shared)[tid] = a%d;\n", type, i);
        if (arg) flux__emit(&c->s, "    places[tid] = x%d;\n", i);
        flux__emit(&c->s, "    __syncthreads();\n    for (int w = %d; w > 0; w /= 2) {\n"
                    "    if (lane %% %d < w) {\n", group / 2, group);
        flux__emit(&c->s, "    const %s b = ((%s *)shared)[tid + w * %d];\n", type, type, h->rows);
        if (arg) flux__emit(&c->s, "    const long long y = places[tid + w * %d];\n", h->rows);
        flux__emit_join(c, i, "b", "y");
        flux__emit(&c->s, "    ((%s *)shared)[tid] = a%d;\n", type, i);
        if (arg) flux__emit(&c->s, "    places[tid] = x%d;\n", i);
        flux__emit(&c->s, "    }\n    __syncthreads();\n    }\n");
        flux__emit_groups(c, i, 0, "row", h->rows * group, h->lanes / group);
        flux__emit(&c->s, "    __syncthreads();\n");
    }
}

/* One phase: for each part its pass and its tree, then the part's result is joined to those of
   the parts before it in the lane whose number it has, and at last these lanes are joined (a
   split reduction leaves that to flux__code_combine). */
static void flux__emit_phase(flux__emitter *c, int p, const flux__lanes *h) {
    const flux__kernel *k = c->k;
    bool any = false;
    memset(c->need, 0, (size_t)k->nvalue);
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->phase != p || (v->outer && !flux__reducing(v))) continue;
        if (flux__reducing(v)) flux__need(k, c->need, v->a), any = true;
        else if (v->out >= 0) flux__need(k, c->need, i), any = true;
    }
    if (!any) return;
    flux__need_more(k, c->need, 0);
    flux__emit_accumulators(c, p);
    if (h->split) flux__emit(&c->s, "    {\n    const int part = (int)blockIdx.y;\n");
    else flux__emit(&c->s, "    for (int part = 0; part < %d; part++) {\n", h->parts);
    for (int i = 0; i < k->nvalue && h->parts > 1 && !h->split; i++) {
        if (!flux__reduces_in(k, i, p)) continue;
        const bool arg = k->value[i].kind == FLUX__V_ARGREDUCE;
        flux__emit(&c->s, "    const %s b%d = a%d;\n    a%d = %s;\n",
                    flux__class_types[flux__reduced_class(c, i)], i, i, i,
                    arg ? "0" : flux__red_start(&k->value[i]));
        if (arg) flux__emit(&c->s, "    const long long y%d = x%d;\n    x%d = -1;\n", i, i, i);
    }
    flux__emit_pass(c, p, h);
    flux__emit_tree(c, p, h);
    for (int i = 0; i < k->nvalue && h->parts > 1 && !h->split; i++) {
        if (!flux__reduces_in(k, i, p)) continue;
        flux__emit(&c->s, "    { const %s b = a%d;\n    a%d = b%d;\n",
                    flux__class_types[flux__reduced_class(c, i)], i, i, i);
        if (k->value[i].kind == FLUX__V_ARGREDUCE)
            flux__emit(&c->s, "    const long long y = x%d;\n    x%d = y%d;\n", i, i, i);
        flux__emit(&c->s, "    if (lane %% 32 == part %% 32) {\n");
        flux__emit_join(c, i, "b", "y");
        flux__emit(&c->s, "    } }\n");
    }
    flux__emit(&c->s, "    }\n");
    if (h->parts > 1 && !h->split) {
        flux__lanes group = *h;           /* each group of lanes has the same numbers */
        group.parts = 1, group.lanes = FLUX__GROUP;
        flux__emit_tree(c, p, &group);
    }
    if (!h->split) flux__emit_reduced(c, p);
}

/* Whether the kernel has an argmax or argmin. */
static bool flux__has_arg(const flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].kind == FLUX__V_ARGREDUCE) return true;
    return false;
}

/* Opens a block of text for work number `turn` of n: blockIdx.x or, if a launch cannot have n
   blocks, a loop that strides over them. */
static void flux__emit_iterations(flux__emitter *c, int64_t n) {
    if (n <= FLUX__GPU_BLOCKS) flux__emit(&c->s, "    { const unsigned turn = blockIdx.x;\n");
    else flux__emit(&c->s,
                     "    for (long long turn = blockIdx.x; turn < %lld; turn += gridDim.x) {\n",
                     (long long)n);
}

/* Declares shared memory and where a thread stands: its lane, its row, its outer point o, and
   `live`, which is false beyond the last outer point. Such threads are needed at the barriers:
   they compute the last point again and store nothing. */
static void flux__emit_lanes(flux__emitter *c, const flux__lanes *h) {
    const int n = h->lanes == 1 ? 0 : !h->inner_first ? h->threads : h->lanes <= FLUX__GROUP ? 0
                  : h->threads / FLUX__GROUP * flux__reductions(c->k, c->k->nvalue);
    if (n) flux__emit(&c->s, "    __shared__ double shared[%d];\n", n);
    if (n && flux__has_arg(c->k)) flux__emit(&c->s, "    __shared__ long long places[%d];\n", n);
    flux__emit(&c->s, "    const int tid = (int)threadIdx.x, lane = tid %s %d, row = tid %s %d;\n",
                h->inner_first ? "%" : "/", h->inner_first ? h->lanes : h->rows,
                h->inner_first ? "/" : "%", h->inner_first ? h->lanes : h->rows);
    flux__emit_iterations(c, (h->outer + h->rows - 1) / h->rows);
    flux__emit(&c->s, "    const %s at = (%s)turn * %d + row, o = at < %lld ? at : %lld;\n",
                c->index, c->index, h->rows, (long long)h->outer, (long long)h->outer - 1);
    flux__emit(&c->s, "    const int live = at < %lld;\n", (long long)h->outer);
}

/* The values that are computed once an outer point in phase p. */
static void flux__emit_per_row(flux__emitter *c, int p) {
    for (int i = 0; i < c->k->nvalue; i++)
        if (flux__gpu_per_row(&c->k->value[i], p) && c->k->value[i].kind != FLUX__V_NUMBER)
            flux__emit_line(c, i);
}

/* The stores of outputs that have one element an outer point. */
static void flux__emit_outer_stores(flux__emitter *c) {
    for (int i = 0; i < c->k->nvalue; i++)
        if (c->k->value[i].out >= 0 && c->k->value[i].outer) flux__emit_store(c, i, "    ");
}

/* Stores a part's partial results to scratch memory, laid out [part][reduction][outer point],
   16 bytes for each: value and, of argmax and argmin, position. */
static void flux__emit_parts(flux__emitter *c, const flux__lanes *h, int scratch) {
    int n = flux__reductions(c->k, c->k->nvalue);
    flux__emit(&c->s, "    if (live && lane == 0) {\n    const int part = (int)blockIdx.y;\n");
    for (int i = 0; i < c->k->nvalue; i++) {
        const flux__value *v = &c->k->value[i];
        if (!flux__reducing(v)) continue;
        bool arg = v->kind == FLUX__V_ARGREDUCE;
        const char *type = flux__class_types[flux__reduced_class(c, i)];
        flux__emit(&c->s, "    { long long q = (((long long)part * %d + %d) * %lld + o) * 2;\n", n,
                    flux__reductions(c->k, i), (long long)h->outer);
        flux__emit(&c->s, "    *(%s *)(p%d + q) = a%d;", type, scratch, i);
        if (arg) flux__emit(&c->s, " p%d[q + 1] = x%d;", scratch, i);
        flux__emit(&c->s, " }\n");
    }
    flux__emit(&c->s, "    }\n");
}

/* The second launch of a split reduction: the lanes of a warp join an outer point's parts, each
   lane those of its number in order, then the lanes; that computes what depends on the results,
   and stores. */
static void flux__code_combine(flux__emitter *c, const flux__lanes *h, int scratch) {
    int n = flux__reductions(c->k, c->k->nvalue), phases = 1;
    const int64_t blocks = (h->outer + 7) / 8;
    flux__emit_numbers(c);
    flux__emit_iterations(c, blocks);
    flux__emit(&c->s, "    const int lane = (int)threadIdx.x %% 32;\n"
                "    const %s at = (%s)turn * 8 + (int)threadIdx.x / 32, o = at < %lld ? at : "
                "%lld;\n", c->index, c->index, (long long)h->outer, (long long)h->outer - 1);
    for (int i = 0; i < c->k->nvalue; i++)
        if (c->k->value[i].phase >= phases) phases = c->k->value[i].phase + 1;
    flux__emit_per_row(c, 0);
    flux__emit_accumulators(c, 0);
    flux__emit(&c->s, "    for (int part = lane; part < %d; part += 32) {\n", h->parts);
    for (int i = 0; i < c->k->nvalue; i++) {
        const flux__value *v = &c->k->value[i];
        if (!flux__reducing(v)) continue;
        const char *type = flux__class_types[flux__reduced_class(c, i)];
        flux__emit(&c->s,
                    "    { const long long *q = p%d + (((long long)part * %d + %d) * %lld + o) * "
                    "2;\n", scratch, n, flux__reductions(c->k, i), (long long)h->outer);
        flux__emit(&c->s, "    const %s b = *(const %s *)q;\n", type, type);
        flux__emit_join(c, i, "b", "q[1]");
        flux__emit(&c->s, "    }\n");
    }
    flux__emit(&c->s, "    }\n");
    for (int i = 0; i < c->k->nvalue; i++)
        if (flux__reducing(&c->k->value[i])) flux__emit_shuffles(c, i, FLUX__GROUP);
    flux__emit_reduced(c, 0);
    for (int p = 1; p < phases; p++) flux__emit_per_row(c, p);
    flux__emit(&c->s, "    __syncthreads();\n    if (at < %lld && lane == 0) {\n",
                (long long)h->outer);
    flux__emit_outer_stores(c);
    flux__emit(&c->s, "    }\n    }\n");
    c->gk->next.threads = 256, c->gk->next.blocks = 0;
    c->gk->next.grid[0] = flux__gpu_blocks(blocks), c->gk->next.grid[1] = 1;
}

/* A reduction's kernel, or the first launch of a split one: phase by phase, then the outer
   stores (or the partial results). `scratch` is the parameter of the scratch memory if it is
   split. */
static void flux__code_reduce(flux__emitter *c, const flux__lanes *h, int scratch) {
    int phases = 1;
    for (int i = 0; i < c->k->nvalue; i++)
        if (c->k->value[i].phase >= phases) phases = c->k->value[i].phase + 1;
    flux__emit_numbers(c);
    memset(c->how, FLUX__ANYHOW, (size_t)c->k->nvalue);
    if (h->width > 1) flux__find_ways(c, true, h->width);
    flux__emit_lanes(c, h);
    for (int p = 0; p < (h->split ? 1 : phases); p++) {
        flux__emit_per_row(c, p);
        flux__emit_phase(c, p, h);
    }
    if (h->split) flux__emit_parts(c, h, scratch);
    else {                                /* lanes may still read what is overwritten */
        flux__emit(&c->s, "    __syncthreads();\n    if (live && lane == 0) {\n");
        flux__emit_outer_stores(c);
        flux__emit(&c->s, "    }\n");
    }
    flux__emit(&c->s, "    }\n");
    int64_t blocks = (h->outer + h->rows - 1) / h->rows;
    /* Functions of doubles need more registers than three blocks of a multiprocessor would leave,
       or two: a kernel that has them may take all that one block can have. */
    bool doubles = false;
    for (int i = 0; i < c->k->nvalue; i++)
        doubles = doubles ||
                  (c->k->value[i].kind == FLUX__V_OP && c->k->value[i].ctype == FLUX__F64C);
    c->gk->next.threads = (unsigned)h->threads;
    c->gk->next.blocks = doubles || h->threads > 256 ? 1 : 3;
    c->gk->next.grid[0] = flux__gpu_blocks(blocks),
        c->gk->next.grid[1] = (unsigned)(h->split ? h->parts : 1);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_FUSED_H */
