#ifndef FLUX__GPU_VECTORS_H
#define FLUX__GPU_VECTORS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/spelling.h"
#include "kernels.h"

/* ---------------------------------------------------------------------- gpu/vectors.h
   The text of a thread that computes several neighbouring points: what it loads
   and stores of them is one access of 16 bytes where the elements lie side by
   side. Before the loop over its points stand the loads (flux__emit_fetched),
   within it a line takes its element out of what was loaded
   (flux__emit_near_line) and puts a result into words (flux__emit_given), which
   are stored behind it (flux__emit_sent). Loops are unrolled, so that these
   arrays are registers; since all loads stand before all stores, they are in
   flight together.

   Invariant: vectors change no number and no order. Buffers lie at multiples of
   16 bytes, also borrowed ones (flux__borrowed): whether an element does follows
   from its operand's offset and strides alone.

   Rejected: __restrict__, since a result may take over an operand's memory. */

FLUX__BEGIN_LEAN

/* How a value varies along `width` neighbouring points: in any way; by a constant step, which
   may be 0, from the first one's place on; or side by side from an aligned place on. */
enum { FLUX__ANYHOW, FLUX__STEPPED, FLUX__ALIGNED };

/* Whether all steps of x, from dim `first` on, are multiples of n. */
static bool flux__steps_in(const flux__axes *x, int first, int64_t n) {
    for (int d = first; d < x->nd; d++)
        if (x->dim[d] > 1 && x->step[d] % n != 0) return false;
    return true;
}

/* How value i, which is loaded, drawn or stored, varies along the points; `inner` says whether
   these are neighbours among the reduced points. */
static int flux__way(const flux__emitter *c, int i, bool inner, int width) {
    const flux__value *v = &c->k->value[i];
    const flux__axes *fast = &c->fast[i];
    const int64_t offset = flux__value_offset(c->k, v);
    if (fast->nd > 1 && fast->dim[0] % width != 0) return FLUX__ANYHOW;
    const bool side = fast->step[0] == 1 && offset % width == 0 && flux__steps_in(fast, 1, width) &&
                      (!inner || flux__steps_in(&c->outer_axes[i], 0, width));
    return side && v->kind != FLUX__V_IOTA ? FLUX__ALIGNED : FLUX__STEPPED;
}

static bool flux__is_placed(const flux__value *v) { return flux__is_source(v) || v->out >= 0; }
static int64_t flux__element_bytes(const flux__emitter *c, const flux__value *v) {
    return (int64_t)flux__dtypes[v->kind == FLUX__V_LOAD ? c->k->operand[v->operand].dtype
                                                         : v->dtype].size;
}

/* Sets c->how of all values. False: none of the values that vary is aligned. */
static bool flux__find_ways(flux__emitter *c, bool inner, int width) {
    bool any = false;
    c->width = width;
    c->fast = inner ? c->inner_axes : c->outer_axes;
    for (int i = 0; i < c->k->nvalue; i++) {
        const flux__value *v = &c->k->value[i];
        c->how[i] = FLUX__ANYHOW;
        if (!flux__is_placed(v) || (inner && v->outer)) continue;
        c->how[i] = (uint8_t)flux__way(c, i, inner, width);
        any = any || c->how[i] == FLUX__ALIGNED;
    }
    return any;
}

/* The words that hold the aligned elements of value i: "words4 l7[2]" declares them. Returns how
   many 32-bit words one has. */
static int flux__emit_words(flux__emitter *c, int i, char name, const char *more) {
    const int bytes = (int)flux__element_bytes(c, &c->k->value[i]) * c->width,
        each = bytes < 16 ? bytes / 4 : 4;
    flux__emit(&c->s, "    words%d %c%d[%s%d];\n", each, name, i, more, bytes / (4 * each));
    return each;
}
static int flux__words_each(const flux__emitter *c, int i) {
    const int bytes = (int)flux__element_bytes(c, &c->k->value[i]) * c->width;
    return bytes < 16 ? bytes / 4 : 4;
}

/* Loads, before the loop over a thread's points, what value i has at them, or finds the first
   one's place; o and r are the first point. `turn` is empty, or the text "[u]" of the index of
   an array over several such loops. */
static void flux__emit_fetched(flux__emitter *c, int i, const char *turn) {
    const flux__value *v = &c->k->value[i];
    flux__listing *s = &c->s;
    if (!flux__is_source(v)) return;
    if (c->how[i] == FLUX__STEPPED) {
        flux__emit(s, "    const %s q%d = ", c->index, i);
        flux__emit_place(c, s, i);
        flux__emit(s, ";\n");
    }
    if (c->how[i] != FLUX__ALIGNED) return;
    if (v->kind == FLUX__V_RANDOM) {
        int key = flux__emitter_param(c, 'k', i, "unsigned long long"),
            stream = flux__emitter_param(c, 't', i, "unsigned long long");
        flux__emit(s, "    float l%d[%d];\n    for (int f = 0; f < %d; f += 4)\n    %ss(p%d, p%d, ",
                   i, c->width, c->width, flux__draw_name(v), key, stream);
        flux__emit_place(c, s, i);
        flux__emit(s, " + f, l%d + f);\n", i);
        return;
    }
    const flux__operand *x = &c->k->operand[v->operand];
    const int p = flux__emitter_slot(c, x->src, x->dtype);
    const int each = *turn ? flux__words_each(c, i) : flux__emit_words(c, i, 'l', "");
    const int count = (int)flux__element_bytes(c, v) * c->width / (4 * each);
    for (int f = 0; f < count; f++) {
        flux__emit(s, "    l%d%s[%d] = ((const words%d *)(p%d + ", i, turn, f, each, p);
        flux__emit_place(c, s, i);
        flux__emit(s, "))[%d];\n", f);
    }
}

/* Element j of the aligned elements of value i, of this dtype, as it is stored. */
static void flux__emit_taken(const flux__emitter *c, flux__listing *s, int i, int dtype,
                               const char *turn) {
    const int each = flux__words_each(c, i), size = (int)flux__dtypes[dtype].size;
    const int per = each * 4 / size;      /* elements of one struct of words */
    if (size == 8) {
        flux__emit(s, dtype == FLUX_F64 ? "DOUBLE_OF" : "(long long)");
        flux__emit(s, "((u64)l%d%s[j / %d].x[j %% %d * 2] | (u64)l%d%s[j / %d].x[j %% %d * 2 + 1] "
                   "<< 32)", i, turn, per, per, i, turn, per, per);
        return;
    }
    flux__emit(s, dtype == FLUX_F32 ? "FLOAT_OF(" : dtype == FLUX_I32 ? "(int)("
               : size == 2 ? "(unsigned short)(" : "(unsigned char)(");
    flux__emit(s, "l%d%s[j / %d].x[j %% %d", i, turn, per, per);
    if (size < 4) flux__emit(s, " / %d] >> j %% %d * %d)", 4 / size, 4 / size, 8 * size);
    else flux__emit(s, "])");
}

/* The declaration of value i at point number j of a thread's: as flux__emit_line, but for what
   was fetched. */
static void flux__emit_near_line(flux__emitter *c, int i, const char *turn) {
    const flux__value *v = &c->k->value[i];
    if (!flux__is_source(v) || c->how[i] == FLUX__ANYHOW) {
        flux__emit_line(c, i);
        return;
    }
    const int64_t step = c->fast[i].step[0];
    flux__listing x = { NULL, 0, 0, false };
    flux__emit(&c->s, "    const %s v%d = ", flux__class_types[v->ctype], i);
    if (v->kind == FLUX__V_IOTA) flux__emit(&c->s, "q%d + j * %lld", i, (long long)step);
    else if (v->kind == FLUX__V_RANDOM && c->how[i] == FLUX__ALIGNED)
        flux__emit(&c->s, "l%d[j]", i);
    else if (v->kind == FLUX__V_RANDOM)
        flux__emit(&c->s, "%s(p%d, p%d, q%d + j * %lld)", flux__draw_name(v),
                   flux__emitter_param(c, 'k', i, "unsigned long long"),
                   flux__emitter_param(c, 't', i, "unsigned long long"), i, (long long)step);
    else {
        const flux__operand *o = &c->k->operand[v->operand];
        if (c->how[i] == FLUX__ALIGNED) flux__emit_taken(c, &x, i, o->dtype, turn);
        else flux__emit(&x, "p%d[q%d + j * %lld]", flux__emitter_slot(c, o->src, o->dtype), i,
                        (long long)step);
        if (x.failed) c->s.failed = true;
        else flux__emit_loaded(&c->s, o->dtype, x.text);
        flux__free(x.text);
    }
    flux__emit(&c->s, ";\n");
}

/* Declares, before the loop, what the stored elements of value i are put into. */
static void flux__emit_sheet(flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    if (v->out < 0 || c->how[i] != FLUX__ALIGNED) return;
    flux__emit_words(c, i, 's', "");
    if (flux__is_half(v->dtype)) flux__emit(&c->s, "    float h%d[%d];\n", i, c->width);
}

/* Puts value i at point j where it is stored from, or stores it. */
static void flux__emit_given(flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    const bool half = flux__is_half(v->dtype);
    const int size = (int)flux__dtypes[v->dtype].size;
    flux__listing y = { NULL, 0, 0, false };
    char x[24];
    if (v->out < 0) return;
    if (c->how[i] != FLUX__ALIGNED) {
        flux__emit_store(c, i, "    ");
        return;
    }
    snprintf(x, sizeof x, "v%d", i);
    flux__emit_stored(&y, half ? (int)FLUX_F32 : v->dtype, v->ctype, x);
    const int each = flux__words_each(c, i), per = each * 4 / size;
    flux__listing *s = &c->s;
    if (y.failed) s->failed = true;
    else if (half) flux__emit(s, "    h%d[j] = %s;\n", i, y.text);
    else if (size == 8)
        flux__emit(s, "    { const u64 w = %s(%s);\n    s%d[j / %d].x[j %% %d * 2] = (u32)w, "
                   "s%d[j / %d].x[j %% %d * 2 + 1] = (u32)(w >> 32); }\n",
                   v->dtype == FLUX_F64 ? "WORDS_OF" : "(u64)", y.text, i, per, per, i, per, per);
    else if (size == 4)
        flux__emit(s, "    s%d[j / %d].x[j %% %d] = %s(%s);\n", i, per, per,
                   v->dtype == FLUX_F32 ? "BITS_OF" : "(u32)", y.text);
    else flux__emit(s, "    s%d[j / %d].x[j %% %d / 4] = (j %% 4 ? s%d[j / %d].x[j %% %d / 4] : 0) "
                    "| (u32)%s << j %% 4 * 8;\n", i, per, per, i, per, per, y.text);
    flux__free(y.text);
}

/* Stores, behind the loop, what was put for value i; o and r are the first point. */
static void flux__emit_sent(flux__emitter *c, int i) {
    const flux__value *v = &c->k->value[i];
    if (v->out < 0 || c->how[i] != FLUX__ALIGNED) return;
    const int p = flux__emitter_slot(c, v->out, v->dtype), each = flux__words_each(c, i),
        count = (int)flux__element_bytes(c, v) * c->width / (4 * each);
    flux__listing *s = &c->s;
    if (flux__is_half(v->dtype))
        flux__emit(s, "    for (int j = 0; j < %d; j++) s%d[j / %d].x[j %% %d] = "
                   "pair_%s(h%d[2 * j], h%d[2 * j + 1]);\n", c->width / 2, i, each, each,
                   flux__dtypes[v->dtype].name, i, i);
    for (int f = 0; f < count; f++) {
        flux__emit(s, "    ((words%d *)(p%d + ", each, p);
        flux__emit_place(c, s, i);
        flux__emit(s, "))[%d] = s%d[%d];\n", f, i, f);
    }
}

FLUX__END_LEAN

#endif /* FLUX__GPU_VECTORS_H */
