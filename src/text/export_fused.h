#ifndef FLUX__TEXT_EXPORT_FUSED_H
#define FLUX__TEXT_EXPORT_FUSED_H
#include "../base/platform.h"
#include "../base/text.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "../schedule/spelling.h"
#include "export_words.h"

/* ---------------------------------------------------------------------- text/export_fused.h
   A fused kernel as a C function: loops over the outer points, within them a
   loop over the reduced points for each phase, and in these the kernel's lines as
   constants v0, v1, ...

   Invariant: dims that lie behind each other in all that a kernel reads and
   writes are one loop, so that the innermost is as long as can be; positions are
   sums of loop variables times numbers. A sum, maximum or minimum of many floats
   along the innermost loop has eight accumulators, which are joined in order:
   that is more exact than one, and compilers make vectors of it. */

FLUX__BEGIN_COLD

enum { FLUX__NET_LANES = 8, FLUX__NET_LONG = 16 };   /* accumulators; loops worth them */

/* The loops of a kernel: of each the first of the dims it runs over, its length, and whether it
   is reduced. */
typedef struct flux__net_loops { int n, dim[FLUX_MAX_DIMS]; int64_t size[FLUX_MAX_DIMS];
                               bool reduced[FLUX_MAX_DIMS]; } flux__net_loops;

/* Whether dim d follows dim e in memory for all that is read and stored. */
static bool flux__net_follows(const flux__kernel *k, int e, int64_t size, int d) {
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        int64_t step[FLUX_MAX_DIMS];
        if (!flux__is_source(v) && v->out < 0) continue;
        flux__value_strides(k, v, step);
        if (step[d] != step[e] * size) return false;
    }
    return true;
}

static void flux__net_find_loops(const flux__kernel *k, flux__net_loops *all) {
    all->n = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        const bool reduced = k->reduced >> d & 1;
        int last = all->n - 1;
        if (k->full[d] == 1) continue;
        if (last >= 0 && all->reduced[last] == reduced &&
            flux__net_follows(k, all->dim[last], all->size[last], d)) {
            all->size[last] *= k->full[d];
            continue;
        }
        all->dim[all->n] = d, all->size[all->n] = k->full[d], all->reduced[all->n++] = reduced;
    }
}

/* Puts "i0 + i2 * 28": the position for these strides, over the loops that are open. */
static void flux__net_position(flux__sink *s, const flux__net_loops *all, const int64_t *step,
                             bool reduced_too) {
    bool any = false;
    for (int i = 0; i < all->n; i++) {
        const int64_t by = step[all->dim[i]];
        if (by == 0 || (all->reduced[i] && !reduced_too)) continue;
        flux__putf(s, any ? " + i%d" : "i%d", i);
        if (by != 1) flux__putf(s, by < 0 ? " * (%lld)" : " * %lld", (long long)by);
        any = true;
    }
    if (!any) flux__put(s, "0");
}

/* Puts a value's name, or the number that it is. */
static void flux__net_value(flux__net_kernel *c, int i) {
    const flux__value *v = &c->k->value[i];
    if (v->kind == FLUX__V_NUMBER) flux__put_c_number(&c->s, v->ctype, flux__number_value(c->g, v));
    else flux__putf(&c->s, "v%d", i);
}

/* Puts value i converted to what its dtype is stored as, or back (for u8 in a program). */
static void flux__net_stored(flux__net_kernel *c, int i, int dtype) {
    const int ctype = c->k->value[i].ctype, own = flux__class_of(dtype);
    const bool cut = ctype == FLUX__F32C && own >= FLUX__I32C;
    if (dtype == FLUX_BOOL) flux__put(&c->s, "(unsigned char)("), flux__net_value(c, i),
                            flux__put(&c->s, " != 0)");
    else {
        if (cut) flux__putf(&c->s, "$_f32_%s(", dtype == FLUX_U8 ? "u8" : own == FLUX__I32C ? "i32"
                                                                                        : "i64");
        else if (own != ctype || dtype == FLUX_U8) flux__putf(&c->s, "(%s)(",
                                                              flux__dtype_types[dtype]);
        flux__net_value(c, i);
        if (cut || own != ctype || dtype == FLUX_U8) flux__put(&c->s, ")");
    }
}

/* Writes a line of the program, "const float v7 = $_exp_f32(v3);", where `at` puts the position of
   a source. `again`: the value is read from where an earlier phase stored it. */
static void flux__net_line(flux__net_kernel *c, int i, const char *at, bool again) {
    const flux__value *v = &c->k->value[i];
    flux__sink *s = &c->s;
    if (v->kind == FLUX__V_NUMBER || v->kind == FLUX__V_PRODUCT) return;
    flux__putf(s, "const %s v%d = ", flux__class_types[v->ctype], i);
    if (again) flux__putf(s, "y%d[", i), flux__put(s, at), flux__put(s, "]");
    else if (v->kind == FLUX__V_LOAD) {
        flux__net_operand(c, v->operand);
        const int dtype = c->k->operand[v->operand].dtype;
        flux__put(s, dtype == FLUX_BOOL || dtype == FLUX_U8 ? "(int)" : "");
        flux__putf(s, "a%d[", v->operand), flux__put(s, at), flux__put(s, "]");
    } else if (v->kind == FLUX__V_IOTA)
        flux__putf(s, "%lldLL + ", (long long)c->k->operand[v->operand].offset), flux__put(s, at);
    else if (v->kind == FLUX__V_OP) {
        c->ops[v->op] = (uint8_t)(c->ops[v->op] | 1u << v->ctype);
        flux__putf(s, "$_%s_%s(", flux__op_names[v->op], flux__class_names[v->ctype]);
        flux__net_value(c, v->a);
        if (flux__arity[v->op] > 1) flux__put(s, ", "), flux__net_value(c, v->b);
        if (flux__arity[v->op] > 2) flux__put(s, ", "), flux__net_value(c, v->c);
        flux__put(s, ")");
    } else {                              /* CONVERT, WRAP */
        const int to = v->kind == FLUX__V_WRAP ? (int)v->op : flux__own_dtype[v->ctype];
        flux__net_stored(c, v->a, to);
    }
    flux__put(s, ";\n");
}

/* Puts "y3[at] = ...;" for a value that is stored. */
static void flux__net_store(flux__net_kernel *c, int i, const char *at) {
    const flux__value *v = &c->k->value[i];
    flux__net_declare(c, 'y', i, v->dtype, v->out, 0);
    flux__putf(&c->s, "y%d[", i), flux__put(&c->s, at), flux__put(&c->s, "] = ");
    flux__net_stored(c, i, v->dtype);
    flux__put(&c->s, ";\n");
}

/* The text of the position of value i over the open loops, in memory that the caller frees. */
static char *flux__net_at(flux__net_kernel *c, const flux__net_loops *all, int i) {
    int64_t step[FLUX_MAX_DIMS];
    flux__sink at = flux__sink_growing();
    flux__value_strides(c->k, &c->k->value[i], step);
    flux__net_position(&at, all, step, !c->k->value[i].outer);
    flux__sink_end(&at);
    if (at.failed) c->ok = false, flux__free(at.out), at.out = NULL;
    return at.out;
}

static void flux__net_line_at(flux__net_kernel *c, const flux__net_loops *all, int i, bool again) {
    char *at = flux__net_at(c, all, i);
    if (at) flux__net_line(c, i, at, again);
    flux__free(at);
}
static void flux__net_store_at(flux__net_kernel *c, const flux__net_loops *all, int i) {
    char *at = flux__net_at(c, all, i);
    if (at) flux__net_store(c, i, at);
    flux__free(at);
}

/* Opens the loops over the outer (or reduced) points from the highest dim to the lowest, but for
   the lowest `less` of them; gives how many were opened. */
static int flux__net_open(flux__net_kernel *c, const flux__net_loops *all, bool reduced, int less) {
    int count = 0, opened = 0;
    for (int i = 0; i < all->n; i++) count += all->reduced[i] == reduced;
    for (int i = all->n - 1; i >= 0 && opened < count - less; i--) {
        if (all->reduced[i] != reduced) continue;
        flux__putf(&c->s, "for (int i%d = 0; i%d < %lld; i%d++) {\n", i, i,
                   (long long)all->size[i], i);
        opened++;
    }
    return opened;
}
static void flux__net_close(flux__net_kernel *c, int n) {
    for (int i = 0; i < n; i++) flux__put(&c->s, "}\n");
}

static const char *flux__net_start(const flux__value *v) {
    static const char *const real[] = { "0.0f", "1.0f", "-INFINITY", "INFINITY" };
    static const char *const i32[] = { "0", "1", "-2147483647 - 1", "2147483647" };
    static const char *const i64[] = { "0", "1", "-9223372036854775807LL - 1",
                                       "9223372036854775807LL" };
    return (v->ctype <= FLUX__F64C ? real : v->ctype == FLUX__I32C ? i32 : i64)[v->op];
}

/* Puts "to = to op from;" for a reduction. */
static void flux__net_join(flux__net_kernel *c, const flux__value *v, const char *to,
                         const char *from) {
    const char *type = v->ctype <= FLUX__F64C ? "f" : "w";
    if (v->op < FLUX__RED_MAX)
        flux__putf(&c->s, "%s = %s %c %s;\n", to, to, v->op == FLUX__RED_SUM ? '+' : '*', from);
    else if (v->ctype <= FLUX__F64C)
        flux__putf(&c->s, "%s = $_%s_%s(%s, %s);\n", to, v->op == FLUX__RED_MAX ? "fmax" : "fmin",
                   type, to, from);
    else flux__putf(&c->s, "if (%s %c %s) %s = %s;\n", from, v->op == FLUX__RED_MAX ? '>' : '<', to,
                    to, from);
}

static bool flux__net_reduces(const flux__kernel *k, int i, int phase) {
    return flux__reducing(&k->value[i]) && k->value[i].phase == phase;
}

/* What a pass of a phase does at one reduced point: lines, stores, and the accumulators a<i>, or
   if `lane` a<i>[lane]. need: by value. */
static void flux__net_pass_body(flux__net_kernel *c, const flux__net_loops *all, int phase,
                              const bool *need, const char *lane) {
    const flux__kernel *k = c->k;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        char to[40], from[24];
        if (need[i] && v->kind != FLUX__V_NUMBER && !flux__reducing(v))
            flux__net_line_at(c, all, i, flux__read_again(v, phase));
        if (need[i] && v->out >= 0 && v->phase == phase) flux__net_store_at(c, all, i);
        if (!flux__net_reduces(k, i, phase)) continue;
        snprintf(to, sizeof to, lane ? "s%d[%s]" : "s%d", i, lane ? lane : "");
        snprintf(from, sizeof from, "v%d", v->a);
        if (k->value[v->a].kind == FLUX__V_NUMBER) {
            flux__putf(&c->s, "const %s n%d = ", flux__class_types[v->ctype], i);
            flux__net_value(c, v->a);
            flux__put(&c->s, ";\n");
            snprintf(from, sizeof from, "n%d", i);
        }
        if (v->kind == FLUX__V_REDUCE) {
            flux__net_join(c, v, to, from);
            continue;
        }
        flux__put(&c->s, "{\nconst long long at = ");
        int64_t before = 1;
        for (int d = 0, any = 0; d < all->n; d++) {
            if (!all->reduced[d]) continue;
            flux__putf(&c->s, any++ ? " + i%d * %lldLL" : "i%d * %lldLL", d, (long long)before);
            before *= all->size[d];
        }
        flux__putf(&c->s, ";\nif (x%d < 0 || $_beats_%s(%s, s%d, %d)) s%d = %s, x%d = at;\n}\n", i,
                   flux__class_names[k->value[v->a].ctype], from, i, v->op != 0, i, from, i);
    }
}

/* The class in which a reduction is accumulated. */
static int flux__net_class(const flux__kernel *k, int i) {
    const flux__value *v = &k->value[i];
    return v->kind == FLUX__V_REDUCE ? v->ctype : k->value[v->a].ctype;
}

/* A phase's pass over the reduced points of one outer point. Without reductions to do and inner
   values to store there is none. */
static void flux__net_pass(flux__net_kernel *c, const flux__net_loops *all, int phase, bool *need) {
    const flux__kernel *k = c->k;
    bool any = false, lanes = true;
    int first = -1;
    memset(need, 0, (size_t)k->nvalue);
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->phase != phase || (v->outer && !flux__reducing(v))) continue;
        if (flux__reducing(v)) flux__need(k, need, v->a), any = true;
        else if (v->out >= 0) flux__need(k, need, i), any = true, lanes = false;
        if (flux__reducing(v) && (v->kind == FLUX__V_ARGREDUCE || v->ctype != FLUX__F32C))
            lanes = false;
    }
    if (!any) return;
    flux__need_more(k, need, phase);
    for (int i = all->n - 1; i >= 0; i--)
        if (all->reduced[i]) first = i;
    lanes = lanes && first >= 0 && all->size[first] >= FLUX__NET_LONG;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (!flux__net_reduces(k, i, phase)) continue;
        const char *type = flux__class_types[flux__net_class(k, i)];
        if (v->kind == FLUX__V_ARGREDUCE)
            flux__putf(&c->s, "%s s%d = 0;\nlong long x%d = -1;\n", type, i, i);
        else if (!lanes) flux__putf(&c->s, "%s s%d = %s;\n", type, i, flux__net_start(v));
        else {
            flux__putf(&c->s, "%s s%d[%d];\nfor (int q = 0; q < %d; q++) s%d[q] = %s;\n", type, i,
                       FLUX__NET_LANES, FLUX__NET_LANES, i, flux__net_start(v));
        }
    }
    int opened = flux__net_open(c, all, true, lanes);
    if (lanes) {
        const long long size = (long long)all->size[first], whole = size - size % FLUX__NET_LANES;
        flux__putf(&c->s, "for (int b = 0; b < %lld; b += %d)\n"
                   "for (int q = 0; q < %d; q++) {\nconst int i%d = b + q;\n", whole,
                   FLUX__NET_LANES, FLUX__NET_LANES, first);
        flux__net_pass_body(c, all, phase, need, "q");
        flux__put(&c->s, "}\n");
        if (whole < size) {
            flux__putf(&c->s, "for (int i%d = %lld; i%d < %lld; i%d++) {\n", first, whole, first,
                       size, first);
            char lane[32];
            snprintf(lane, sizeof lane, "i%d %% %d", first, FLUX__NET_LANES);
            flux__net_pass_body(c, all, phase, need, lane);
            flux__put(&c->s, "}\n");
        }
    } else flux__net_pass_body(c, all, phase, need, NULL);
    flux__net_close(c, opened);
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        char to[24], from[40];
        if (!flux__net_reduces(k, i, phase)) continue;
        if (lanes)
            for (int width = FLUX__NET_LANES / 2; width; width /= 2) {
                flux__putf(&c->s, "for (int q = 0; q < %d; q++) ", width);
                snprintf(to, sizeof to, "s%d[q]", i);
                snprintf(from, sizeof from, "s%d[q + %d]", i, width);
                flux__net_join(c, v, to, from);
            }
        /* a maximum or minimum that is a zero becomes +0 */
        flux__putf(&c->s, "const %s v%d = %c%d%s%s;\n", flux__class_types[v->ctype], i,
                   v->kind == FLUX__V_ARGREDUCE ? 'x' : 's', i, lanes ? "[0]" : "",
                   v->kind == FLUX__V_REDUCE && v->op >= FLUX__RED_MAX && v->ctype == FLUX__F32C
                       ? " + 0.0f" : "");
    }
}

/* The body of a fused kernel. */
static void flux__net_fused(flux__net_kernel *c) {
    const flux__kernel *k = c->k;
    flux__net_loops all;
    int phases = 1;
    bool *need = (bool *)flux__zalloc((size_t)k->nvalue);
    if (!need) {
        c->ok = false;
        return;
    }
    flux__net_find_loops(k, &all);
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase >= phases) phases = k->value[i].phase + 1;
    int opened = flux__net_open(c, &all, false, 0);
    for (int p = 0; p < phases; p++) {
        for (int i = 0; i < k->nvalue; i++) {
            const flux__value *v = &k->value[i];
            if (v->phase != p || (k->reduced && !v->outer)) continue;
            if (!flux__reducing(v)) flux__net_line_at(c, &all, i, false);
            if (!k->reduced && v->out >= 0) flux__net_store_at(c, &all, i);
        }
        if (k->reduced) flux__net_pass(c, &all, p, need);
    }
    for (int i = 0; i < k->nvalue && k->reduced; i++)
        if (k->value[i].out >= 0 && k->value[i].outer) flux__net_store_at(c, &all, i);
    flux__net_close(c, opened);
    flux__free(need);
}

FLUX__END_COLD

#endif /* FLUX__TEXT_EXPORT_FUSED_H */
