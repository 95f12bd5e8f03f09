#ifndef FLUX__SCHEDULE_ANALYSIS_H
#define FLUX__SCHEDULE_ANALYSIS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "kernel.h"
#include "key.h"

/* ---------------------------------------------------------------------- schedule/analysis.h
   What back ends ask of a kernel: where the elements of its values lie
   (flux__axes), which of its points are contiguous, in which order a reduction
   joins its numbers, which lines a phase needs, and the numbers that are set
   anew at each run. Nothing here knows which back end asks.

   Invariant: the order in which numbers are joined depends on the shape and the
   reduced dims alone (flux__join_order), never on what a kernel does besides,
   where its operands lie, its blocks or the number of threads. Sums of f32 are
   taken in f32 within a chunk, where no number passes through more than some 40
   additions, and chunks are added up in f64. */

FLUX__BEGIN_LEAN

/* most points of a reduction that are joined as one chunk; also the elements of a CPU's register */
#define FLUX__TILE 1024
/* a reduction of up to so many points to many results is not split; also the most elements of a
   column that a CPU's block holds although they are far apart in memory */
#define FLUX__SHORT 64

/* a map from a flat index to an offset: dim[0] runs fastest; step: elements; dims that follow
   each other in memory are merged */
typedef struct flux__axes { int nd; int64_t dim[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS]; } flux__axes;

/* How the points of a reduction are joined. The `inner` reduced points of each of `outer`
   results are taken in chunks, one after the other. Within a chunk, point r goes to slot r mod
   slots, and the slots are joined in halves. If `rows`, the reduced points lie along dim 0, and
   the slots are the lanes of the horizontal reductions below. */
typedef struct flux__join_order {
    int64_t outer, inner, chunk, slots;
    bool rows;
    /* a long reduction to few results is cut into so many parts, which threads share and which
       are joined in order */
    int parts;
} flux__join_order;
/* ---------------- maps from points to offsets */

/* Makes the map x of the dims that are in `mask` (in: true) or not in it (false): dims of size
   1 are left out, and a dim that continues the one before is merged with it. x has at least one
   dim. dim, step: sizes and strides of FLUX_MAX_DIMS dims. */
static void flux__merge_axes(flux__axes *x, const int64_t *dim, const int64_t *step, unsigned mask,
                             bool in) {
    x->nd = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (((mask >> d & 1) != 0) != in || dim[d] == 1) continue;
        if (dim[d] == 0) {                /* no points; a dim of size 0 would be divided by */
            x->nd = 0;
            break;
        }
        int last = x->nd - 1;
        if (last >= 0 && step[d] == x->step[last] * x->dim[last]) x->dim[last] *= dim[d];
        else {
            x->dim[x->nd] = dim[d];
            x->step[x->nd++] = step[d];
        }
    }
    if (x->nd == 0) {
        x->nd = 1;
        x->dim[0] = 1;
        x->step[0] = 0;
    }
}

/* The offset of the point with the flat index `flat`. */
static int64_t flux__axes_at(const flux__axes *x, int64_t flat) {
    int64_t at = 0;
    if (x->nd == 1) return flat * x->step[0];
    for (int d = 0; d < x->nd; d++) {
        at += flat % x->dim[d] * x->step[d];
        flat /= x->dim[d];
    }
    return at;
}

/* The value of a number: a literal, or that of a node's operand, read anew at each run. */
static double flux__number_value(const flux__graph *g, const flux__value *v) {
    if (v->op == 1) return v->node;       /* a literal */
    flux_tensor *user = g->node[v->node >> 8];
    if ((v->node & 255) == 255) return user->arg.num;
    return flux__base(user->in[v->node & 255])->arg.num;
}

/* The float32 nearest to x. Kernels run in a mode in which a conversion makes 0 of what is
   below the smallest normal number; but a number that a program gives is no result, and is
   kept: such a float's bits are a count of 2^-149. */
static float flux__float_of(double x) {
    if (x == 0 || !(fabs(x) < (double)FLT_MIN)) return (float)x;
    const double even = 6755399441055744.0;  /* 1.5 2^52: a double of this size has no fraction */
    const double count = ldexp(fabs(x), 149) + even;
    const uint32_t bits = (uint32_t)(count - even) | (x < 0 ? UINT32_C(1) << 31 : 0);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Stores x as one number of a compute type. */
static void flux__set_number(int ctype, void *out, double x) {
    switch (ctype) {
    case FLUX__F32C: *(float *)out = flux__float_of(x); break;
    case FLUX__F64C: *(double *)out = x; break;
    case FLUX__I32C:
        *(int32_t *)out = FLUX__WHOLE(int32_t, x, -2147483648.0, 2147483647.0, INT32_MAX);
        break;
    default:
        *(int64_t *)out = FLUX__WHOLE(int64_t, x, -9223372036854775808.0, 9223372036854775808.0,
                                      INT64_MAX);
    }
}

/* ---------------- what a kernel's lines read, write and need */

static FLUX__INLINE bool flux__is_source(const flux__value *v) {
    return v->kind == FLUX__V_LOAD || v->kind == FLUX__V_IOTA || v->kind == FLUX__V_RANDOM;
}

/* Where such a value begins in its operand, in elements; 0 of one that is stored, which has no
   operand. */
static FLUX__INLINE int64_t flux__value_offset(const flux__kernel *k, const flux__value *v) {
    return flux__is_source(v) ? k->operand[v->operand].offset : 0;
}

/* The strides of a value that is loaded or stored, by dims of the kernel's index space; 0 where
   it does not vary. */
static void flux__value_strides(const flux__kernel *k, const flux__value *v, int64_t *step) {
    if (flux__is_source(v)) {
        memcpy(step, k->operand[v->operand].stride, FLUX_MAX_DIMS * sizeof *step);
        return;
    }
    int64_t at = 1;  /* a stored value is contiguous; an outer one has no reduced dims */
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        bool gone = v->outer && (k->reduced >> d & 1);
        step[d] = gone || k->full[d] == 1 ? 0 : at;
        if (!gone) at *= k->full[d];
    }
}

/* Whether in most of what is read and written the reduced points, rather than the outer ones,
   are contiguous. */
static bool flux__prefer_inner(const flux__kernel *k) {
    int votes = 0;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        int64_t step[FLUX_MAX_DIMS], least = INT64_MAX;
        int at = -1;
        if (v->outer || (v->kind != FLUX__V_LOAD && v->out < 0)) continue;
        flux__value_strides(k, v, step);
        for (int d = 0; d < FLUX_MAX_DIMS; d++) {
            int64_t s = step[d] < 0 ? -step[d] : step[d];
            if (s && k->full[d] > 1 && s < least) least = s, at = d;
        }
        if (at >= 0) votes += k->reduced >> at & 1 ? 1 : -1;
    }
    if (votes) return votes > 0;
    return (k->reduced & 1) != 0 && k->full[0] > 1;
}

/* Whether whole rows are reduced: the reduced dims are the first ones, and a row has more than
   two or three numbers. */
static FLUX__INLINE bool flux__reduces_rows(unsigned reduced, int64_t inner) {
    return inner >= 4 && !(reduced & (reduced + 1));
}

/* Whether reductions are small windows that lie side by side in many, as in pooling: then it is
   better to have runs of windows contiguous than runs within one, unless these fill a vector. */
static bool flux__small_windows(const int64_t *full, unsigned reduced, int64_t inner) {
    int64_t run = 1;
    int d = 0;
    if (inner > 32 || ((reduced & 1) && full[0] >= 16) || flux__reduces_rows(reduced, inner))
        return false;
    while (d < FLUX_MAX_DIMS && (reduced >> d & 1)) d++;
    for (; d < FLUX_MAX_DIMS && !(reduced >> d & 1); d++) run *= full[d];
    return run >= 4 && run > (reduced & 1 ? full[0] : 1);
}

/* Reduced points per block: if they come in runs that are contiguous in memory, so many that
   blocks divide the runs evenly and are used in place. */
static int64_t flux__even_tile(const int64_t *full, unsigned reduced) {
    int64_t run = 1, parts;
    for (int d = 0; d < FLUX_MAX_DIMS && (reduced >> d & 1); d++) run *= full[d];
    parts = (run + FLUX__TILE - 1) / FLUX__TILE;
    return run > FLUX__TILE / 4 && run % parts == 0 ? run / parts : FLUX__TILE;
}

/* The order in which a reduction over the dims in `reduced` of a space of the shape `full`
   joins its numbers. It depends on nothing else. */
static flux__join_order flux__order_of(const int64_t *full, unsigned reduced) {
    flux__join_order o = { 1, 1, 1, 1, false, 1 };
    int first = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (reduced >> d & 1) o.inner *= full[d];
        else o.outer *= full[d];
    while (first < FLUX_MAX_DIMS - 1 && full[first] == 1) first++;
    o.rows = (reduced >> first & 1) && !flux__small_windows(full, reduced, o.inner);
    if (o.rows) o.chunk = o.inner <= FLUX__TILE ? o.inner : flux__even_tile(full, reduced);
    else {  /* as many slots as make a row of slots a run of whole vectors */
        while (2 * o.slots <= o.inner && o.slots < 128 && o.outer < 256 &&
               (o.slots * o.outer < 256 || o.slots * o.outer % 16)) o.slots *= 2;
        o.chunk = 32 * o.slots;
    }
    const int64_t work = o.outer * o.inner;
    int64_t parts = work / 32768 < 32 ? work / 32768 : 32;
    if (o.outer > (o.rows ? 7 : 4096) || work < 65536 || o.inner <= FLUX__SHORT) return o;
    if (parts > o.inner / o.chunk) parts = o.inner / o.chunk;
    if (parts > 1) o.parts = (int)parts;
    return o;
}

static FLUX__INLINE bool flux__reducing(const flux__value *v) {
    return v->kind == FLUX__V_REDUCE || v->kind == FLUX__V_ARGREDUCE;
}

/* Whether all reductions are in the first phase and no inner line comes after: one pass over
   the reduced points is enough. */
static bool flux__one_pass(const flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase > 0 && (flux__reducing(&k->value[i]) || !k->value[i].outer))
            return false;
    return true;
}

/* The dtype that a compute type is stored in without a conversion. */
static const int flux__own_dtype[FLUX__CLASSES] = { FLUX_F32, FLUX_F64, FLUX_I32, FLUX_I64 };

/* Whether a phase reads a value that an earlier phase has stored, instead of computing it
   again. */
static FLUX__INLINE bool flux__read_again(const flux__value *v, int phase) {
    return v->out >= 0 && v->phase < phase && !v->outer && v->kind >= FLUX__V_OP &&
           flux__own_dtype[v->ctype] == v->dtype;
}

/* Marks value v as needed, unless it is outer (or -1). */
static FLUX__INLINE void flux__need(const flux__kernel *k, bool *need, int v) {
    if (v >= 0 && !k->value[v].outer) need[v] = true;
}

/* Marks what the needed lines need in turn: operands stand before the lines that use them. */
static void flux__need_more(const flux__kernel *k, bool *need, int phase) {
    for (int i = k->nvalue - 1; i >= 0; i--) {
        const flux__value *v = &k->value[i];
        if (!need[i] || flux__read_again(v, phase)) continue;
        flux__need(k, need, v->a);
        flux__need(k, need, v->b);
        flux__need(k, need, v->c);
    }
}

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_ANALYSIS_H */
