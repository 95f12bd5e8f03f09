#ifndef FLUX__CPU_BACKEND_H
#define FLUX__CPU_BACKEND_H
#include "../base/platform.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/program.h"
#include "loops.h"
#include "gemm_kernels.h"
#include "gemm_pack.h"

/* ---------------------------------------------------------------------- cpu/backend.h
   The CPU back end: its form of a kernel (flux__cpu), and how a kernel is cut
   into blocks. A fused kernel runs block by block: some outer points times some
   reduced ones, about a thousand together, so that the registers of its program
   (a block's numbers each) stay in the first-level cache while the loops of
   cpu/loops.h pass over them. In a block either the reduced points or the outer
   ones lie next to each other, whichever is so in memory. If all reduced points
   fit into one block, values live on from phase to phase; else each phase
   computes anew what it needs.

   Invariant: the order in which numbers are joined depends on the shape and the
   reduced dims alone (flux__join_order), never on what a kernel does besides,
   where its operands lie, its blocks or the number of threads. Sums of f32 are
   taken in f32 within a chunk, where no number passes through more than some 40
   additions, and chunks are added up in f64. */

#define FLUX__TILE 1024  /* elements of a register, and about so many points a block */
/* scores that attention holds at a time, or a few more: they stay in the second-level cache */
#define FLUX__ATTEND_TILE 32768
/* most elements of a column that a block holds although they are far apart in memory */
#define FLUX__SHORT 64
#define FLUX__LARGE (1 << 19)             /* more than a second-level cache holds */
/* rows up to this length are run as one, however large blocks are otherwise */
#define FLUX__LONG_ROW (1 << 18)

FLUX__BEGIN_HOT

/* the lines (value numbers) that run for every block of reduced points; `late`: the per-row
   stage before them, once per outer point */
typedef struct flux__phase { int *line, n, *late, nlate; } flux__phase;

/* The lines of an Adam step, which run as one at the place of line `last`: new_m, new_v and
   last are results, g, m, v, w operands, by numbers. All are value numbers; w is -1 if there is
   none. */
typedef struct flux__adam { int g, m, v, w, by[4], new_m, new_v, last; } flux__adam;

/* The lines of softmax-like rows, which run as one at the place of line `first` (see
   flux__rows_run). All are value numbers; y is -1 if there is none. keep_d, keep_e: other lines
   or a tensor need d, e. */
typedef struct flux__rows {
    int first, x, d, e, second, y, by[3];
    bool squares, keep_d, keep_e;
} flux__rows;

/* a kernel prepared for the CPU; "by value": an array with an entry for each value */
typedef struct flux__cpu {
    int64_t outer, inner;  /* numbers of outer (kept) and of inner (reduced) points */
    int64_t cost;                         /* estimated work of a point: an addition counts as 1 */
    flux__join_order order;               /* how reductions are joined */
    bool inner_first;  /* in a block the reduced points are contiguous, otherwise the outer ones */
    bool across;  /* in most of what is read it is the other way round, so loads transpose */
    int64_t w, rt;                        /* outer and reduced points of a block */
    bool resident;                        /* a block holds all reduced points: rt == inner */
    int nphase, nreg, width;              /* phases, registers, bytes of a register's element */
    flux__phase *phase;
    /* maps of the values that load or store, from outer and inner points to offsets; */
    flux__axes *outer_axes, *inner_axes;
    int *axes_at;                         /* by value: its number among these maps */
    int *reg;                             /* by value: its register, or -1 */
    bool *expand;                         /* by value: an outer value that inner lines use */
    /* by value: a load that may be the same from block to block (hoisted), and so has a
       register of its own */
    bool *again;
    bool *parting;  /* by value: rounded only to be stored; the store rounds it */
    int *expand_reg;                      /* by value: the register of an expanded value, or -1 */
    flux__loop *loop;                     /* by value: the loop of its operation */
    /* reductions; splits > 1: threads share the reduced points, in so many parts */
    int nreduce, splits;
    size_t sum_bytes;                     /* bytes of a reduction's slots and of its double sums */
    int *reduce_at;                       /* by value: its number among the reductions, or -1 */
    flux__adam adam;                      /* last is -1: the kernel has no Adam step */
    flux__rows rows;                      /* first is -1: the kernel has no such rows */
    bool *made;  /* by value: computed by the line of Adam or of rows, not by its own */
    bool *truth;  /* by value: a reduction that counts true elements, or bools that only it reads */
    int tile;                             /* elements of a register */
} flux__cpu;

/* ---------------- merging dims */

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

/* ---------------- making a kernel ready */

static FLUX__INLINE bool flux__is_source(const flux__value *v) {
    return v->kind == FLUX__V_LOAD || v->kind == FLUX__V_IOTA || v->kind == FLUX__V_RANDOM;
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

/* Chooses the blocks of a kernel: which points are contiguous, and w outer by rt reduced points
   a block, at most c->tile together. */
static void flux__choose_blocks(const flux__kernel *k, flux__cpu *c) {
    const int64_t tile = c->tile;
    c->order = flux__order_of(k->full, k->reduced);
    c->outer = c->order.outer, c->inner = c->order.inner, c->inner_first = c->order.rows;
    c->across = k->reduced && flux__prefer_inner(k) != c->inner_first;
    if (c->inner == 0) c->rt = 0, c->w = c->outer < tile ? c->outer : tile;
    else if (c->inner == 1 ||
             c->inner <= (c->inner_first ? tile : flux__one_pass(k) ? 4 : FLUX__SHORT)) {
        c->rt = c->inner;
        c->w = tile / c->inner;
        /* makes a block whole vectors, if several rows can */
        for (int64_t even = 16; even > 1; even /= 2)
            if (c->w >= even && c->inner * even % 16 == 0 && c->w * c->inner % 16 != 0)
                c->w -= c->w % even;
        if (c->w > c->outer) c->w = c->outer;
    } else if (c->inner_first) {
        c->w = c->across ? flux__gemm_min(tile / c->order.chunk, c->outer) : 1;
        c->rt = c->across ? c->order.chunk : tile / c->order.chunk * c->order.chunk;
    }
    else {
        c->w = c->across ? flux__gemm_min(c->outer, 64) : c->outer <= tile ? c->outer :
            flux__gemm_min(flux__gemm_up((c->outer + 3) / 4, 16), tile);
        if (c->w < 1) c->w = 1;
        c->rt = tile / c->w < c->inner ? tile / c->w : c->inner;
        /* a power of two: whole rows of slots */
        while (c->inner > FLUX__SHORT && c->w < 256 && c->rt & (c->rt - 1)) c->rt &= c->rt - 1;
    }
    if (c->w < 1) c->w = 1;
    c->resident = c->rt == c->inner;
}

static const int flux__own_dtype[FLUX__CLASSES] = { FLUX_F32, FLUX_F64, FLUX_I32, FLUX_I64 };

/* Whether a phase reads a value that an earlier phase has stored, instead of computing it
   again. */
static FLUX__INLINE bool flux__read_again(const flux__value *v, int phase) {
    return v->out >= 0 && v->phase < phase && !v->outer && v->kind >= FLUX__V_OP &&
           flux__own_dtype[v->cls] == v->dtype;
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

/* Whether a value is a number that is only read: it has no line, but is set before the first
   block. */
static FLUX__INLINE bool flux__is_idle(const flux__value *v) {
    return v->kind == FLUX__V_NUMBER && v->out < 0;
}

/* Lists the lines of each phase: the inner values that its reductions and stores need, and as
   `late` the outer values that its inner lines may use. False: out of memory. */
static bool flux__split_phases(flux__plan *plan, flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase >= c->nphase) c->nphase = k->value[i].phase + 1;
    const size_t phases = (size_t)c->nphase, values = (size_t)k->nvalue;
    c->phase = (flux__phase *)flux__plan_take(
        plan, (phases + 1) * sizeof *c->phase + 2 * phases * values * sizeof(int));
    bool *need = (bool *)flux__malloc(values);
    bool ok = c->phase && need;
    if (ok) memset(c->phase, 0, (phases + 1) * sizeof *c->phase);
    for (int p = 0; p < c->nphase && ok; p++) {
        flux__phase *ph = &c->phase[p];
        ph->line = (int *)(void *)(c->phase + phases + 1) + 2 * (size_t)p * values;
        ph->late = ph->line + values;
        memset(need, 0, (size_t)k->nvalue);
        for (int i = 0; i < k->nvalue && ok; i++) {
            const flux__value *v = &k->value[i];
            if (v->phase != p) continue;
            if (flux__reducing(v)) flux__need(k, need, v->a);
            else if (v->outer && !flux__is_idle(v)) ph->late[ph->nlate++] = i;
            else if (v->out >= 0 || c->resident) flux__need(k, need, i);
        }
        if (ok) flux__need_more(k, need, p);
        for (int i = 0; i < k->nvalue && ok; i++) {
            const flux__value *v = &k->value[i];
            bool now = c->resident ? v->phase == p : true;
            if (((need[i] && now) || (flux__reducing(v) && v->phase == p)) && !flux__is_idle(v))
                ph->line[ph->n++] = i;
        }
    }
    if (need) FLUX_FREE(need);
    return ok;
}

FLUX__END_HOT

#endif /* FLUX__CPU_BACKEND_H */
