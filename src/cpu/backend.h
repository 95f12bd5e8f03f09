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

#define FLUX__TILE 1024
#define FLUX__ATTEND_TILE 32768           /* scores at a time, or some more: they stay in the second cache */
#define FLUX__SHORT 64                    /* numbers of a column that a block holds though they are apart in memory */
#define FLUX__LARGE (1 << 19)             /* elements: more than a second cache holds */
#define FLUX__LONG_ROW (1 << 18)          /* elements: rows up to there are run as one, whatever a block is else */

FLUX__HOT

typedef struct flux__phase { int *line, n, *late, nlate; } flux__phase;   /* values by number: inner ones; outer ones before */

/* Adam's lines, run as one where the last of them stands; values by number, w -1: none. */
typedef struct flux__adam { int g, m, v, w, by[4], new_m, new_v, last; } flux__adam;

/* Lines of whole rows, run as one where `first` stands (see flux__rows_run); values by number, y -1: none. */
typedef struct flux__rows { int first, x, d, e, second, y, by[3]; bool squares, keep_d, keep_e; } flux__rows;

typedef struct flux__cpu {                /* a kernel made ready for the CPU */
    int64_t outer, inner;                 /* points */
    int64_t cost;                         /* of a point: a sum counts for one */
    flux__join_order order;
    bool inner_first;                     /* reduced points lie together in a block, else the outer ones do */
    bool across;                          /* it is the others that lie together in most of what is read */
    int64_t w, rt;                        /* outer and reduced points a block */
    bool resident;                        /* rt is all of inner */
    int nphase, nreg, width;              /* registers, bytes of an element there */
    flux__phase *phase;
    flux__axes *outer_axes, *inner_axes;  /* of a value that loads or stores, */
    int *axes_at;                         /* which has this number there */
    int *reg;                             /* by value: its register, -1 */
    bool *expand;                         /* by value: outer, and used by inner ones */
    bool *again;                          /* by value: a load that may be the same in block after block, and so has a register of its own */
    bool *parting;                        /* by value: rounded only to be stored, which rounds */
    int *expand_reg;
    flux__loop *loop;                     /* by value */
    int nreduce, splits;                  /* splits > 1: the order's parts, run one by one */
    size_t sum_bytes;                     /* of a reduction's slots and of what chunks are added up in */
    int *reduce_at;                       /* by value: its number among the reductions */
    flux__adam adam;                      /* last -1: not in this kernel */
    flux__rows rows;                      /* first -1: not in this kernel */
    bool *made;                           /* by value: by Adam's line or that of rows, not by its own */
    bool *truth;                          /* by value: a reduction that counts what is true, or bools that only it reads */
    int tile;                             /* elements of a register */
} flux__cpu;

FLUX__LEAN

/* ---------------- merging dims */

static void flux__merge_axes(flux__axes *x, const int64_t *dim, const int64_t *step, unsigned mask, bool in) {
    x->nd = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (((mask >> d & 1) != 0) != in || dim[d] == 1) continue;
        if (dim[d] == 0) {                /* no points: nothing to divide by */
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

static int64_t flux__axes_at(const flux__axes *x, int64_t flat) {
    int64_t at = 0;
    if (x->nd == 1) return flat * x->step[0];
    for (int d = 0; d < x->nd; d++) {
        at += flat % x->dim[d] * x->step[d];
        flat /= x->dim[d];
    }
    return at;
}

FLUX__COLD

/* ---------------- making a kernel ready */

static FLUX__INLINE bool flux__is_source(const flux__value *v) { return v->kind == FLUX__V_LOAD || v->kind == FLUX__V_IOTA || v->kind == FLUX__V_RANDOM; }

static void flux__value_strides(const flux__kernel *k, const flux__value *v, int64_t *step) {
    if (flux__is_source(v)) {
        memcpy(step, k->operand[v->operand].stride, FLUX_MAX_DIMS * sizeof *step);
        return;
    }
    int64_t at = 1;                       /* a stored value lies in order; an outer one has no reduced dims */
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        bool gone = v->outer && (k->reduced >> d & 1);
        step[d] = gone || k->full[d] == 1 ? 0 : at;
        if (!gone) at *= k->full[d];
    }
}

/* Which points lie together in most of what is read and written? */
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

/* Whether whole rows are reduced: the first dims, and no others; and not just two or three numbers. */
static FLUX__INLINE bool flux__reduces_rows(unsigned reduced, int64_t inner) { return inner >= 4 && !(reduced & (reduced + 1)); }

/* Few numbers a window and many windows side by side, as in pooling: rows of windows are worth more than rows within one,
   unless those fill a vector. */
static bool flux__small_windows(const int64_t *full, unsigned reduced, int64_t inner) {
    int64_t run = 1;
    int d = 0;
    if (inner > 32 || ((reduced & 1) && full[0] >= 16) || flux__reduces_rows(reduced, inner)) return false;
    while (d < FLUX_MAX_DIMS && (reduced >> d & 1)) d++;
    for (; d < FLUX_MAX_DIMS && !(reduced >> d & 1); d++) run *= full[d];
    return run >= 4 && run > (reduced & 1 ? full[0] : 1);
}

/* Reduced points at a time: as many as make whole runs of memory, if they come in runs, so that they are used where they lie. */
static int64_t flux__even_tile(const int64_t *full, unsigned reduced) {
    int64_t run = 1, parts;
    for (int d = 0; d < FLUX_MAX_DIMS && (reduced >> d & 1); d++) run *= full[d];
    parts = (run + FLUX__TILE - 1) / FLUX__TILE;
    return run > FLUX__TILE / 4 && run % parts == 0 ? run / parts : FLUX__TILE;
}

static flux__join_order flux__order_of(const int64_t *full, unsigned reduced) {
    flux__join_order o = { 1, 1, 1, 1, false, 1 };
    int first = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (reduced >> d & 1) o.inner *= full[d];
        else o.outer *= full[d];
    while (first < FLUX_MAX_DIMS - 1 && full[first] == 1) first++;
    o.rows = (reduced >> first & 1) && !flux__small_windows(full, reduced, o.inner);
    if (o.rows) o.chunk = o.inner <= FLUX__TILE ? o.inner : flux__even_tile(full, reduced);
    else {                                /* rows of slots that make up a run of vectors */
        while (2 * o.slots <= o.inner && o.slots < 128 && o.outer < 256 && (o.slots * o.outer < 256 || o.slots * o.outer % 16)) o.slots *= 2;
        o.chunk = 32 * o.slots;
    }
    const int64_t work = o.outer * o.inner;
    int64_t parts = work / 32768 < 32 ? work / 32768 : 32;
    if (o.outer > (o.rows ? 7 : 4096) || work < 65536 || o.inner <= FLUX__SHORT) return o;
    if (parts > o.inner / o.chunk) parts = o.inner / o.chunk;
    if (parts > 1) o.parts = (int)parts;
    return o;
}

static FLUX__INLINE bool flux__reducing(const flux__value *v) { return v->kind == FLUX__V_REDUCE || v->kind == FLUX__V_ARGREDUCE; }

/* Nothing is done at the reduced points once a reduction is complete? */
static bool flux__one_pass(const flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase > 0 && (flux__reducing(&k->value[i]) || !k->value[i].outer)) return false;
    return true;
}

static void flux__choose_blocks(const flux__kernel *k, flux__cpu *c) {
    const int64_t tile = c->tile;
    c->order = flux__order_of(k->full, k->reduced);
    c->outer = c->order.outer, c->inner = c->order.inner, c->inner_first = c->order.rows;
    c->across = k->reduced && flux__prefer_inner(k) != c->inner_first;
    if (c->inner == 0) c->rt = 0, c->w = c->outer < tile ? c->outer : tile;
    else if (c->inner == 1 || c->inner <= (c->inner_first ? tile : flux__one_pass(k) ? 4 : FLUX__SHORT)) {
        c->rt = c->inner;
        c->w = tile / c->inner;
        for (int64_t even = 16; even > 1; even /= 2)     /* a block of whole vectors, if rows can make one up */
            if (c->w >= even && c->inner * even % 16 == 0 && c->w * c->inner % 16 != 0) c->w -= c->w % even;
        if (c->w > c->outer) c->w = c->outer;
    } else if (c->inner_first) {
        c->w = c->across ? flux__gemm_min(tile / c->order.chunk, c->outer) : 1;
        c->rt = c->across ? c->order.chunk : tile / c->order.chunk * c->order.chunk;
    }
    else {
        c->w = c->across ? flux__gemm_min(c->outer, 64) : c->outer <= tile ? c->outer : flux__gemm_min(flux__gemm_up((c->outer + 3) / 4, 16), tile);
        if (c->w < 1) c->w = 1;
        c->rt = tile / c->w < c->inner ? tile / c->w : c->inner;
        while (c->inner > FLUX__SHORT && c->w < 256 && c->rt & (c->rt - 1)) c->rt &= c->rt - 1;    /* whole rows of slots */
    }
    if (c->w < 1) c->w = 1;
    c->resident = c->rt == c->inner;
}

static const int flux__own_dtype[FLUX__CLASSES] = { FLUX_F32, FLUX_F64, FLUX_I32, FLUX_I64 };

/* Whether a phase reads what an earlier one has stored, instead of computing it again. */
static FLUX__INLINE bool flux__read_again(const flux__value *v, int phase) {
    return v->out >= 0 && v->phase < phase && !v->outer && v->kind >= FLUX__V_OP && flux__own_dtype[v->cls] == v->dtype;
}

static FLUX__INLINE void flux__need(const flux__kernel *k, bool *need, int v) {
    if (v >= 0 && !k->value[v].outer) need[v] = true;
}

/* What the needed lines need: operands stand before what uses them. */
static void flux__need_more(const flux__kernel *k, bool *need, int phase) {
    for (int i = k->nvalue - 1; i >= 0; i--) {
        const flux__value *v = &k->value[i];
        if (!need[i] || flux__read_again(v, phase)) continue;
        flux__need(k, need, v->a);
        flux__need(k, need, v->b);
        flux__need(k, need, v->c);
    }
}

/* A number that is only read has no line: it is set before the first block. */
static FLUX__INLINE bool flux__is_idle(const flux__value *v) { return v->kind == FLUX__V_NUMBER && v->out < 0; }

/* The lines of each phase: inner values that its reductions and stores need, outer ones that its inner ones may use. */
static bool flux__split_phases(flux__plan *plan, flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase >= c->nphase) c->nphase = k->value[i].phase + 1;
    const size_t phases = (size_t)c->nphase, values = (size_t)k->nvalue;
    c->phase = (flux__phase *)flux__plan_take(plan, (phases + 1) * sizeof *c->phase + 2 * phases * values * sizeof(int));
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
            if (((need[i] && now) || (flux__reducing(v) && v->phase == p)) && !flux__is_idle(v)) ph->line[ph->n++] = i;
        }
    }
    if (need) FLUX_FREE(need);
    return ok;
}

#endif /* FLUX__CPU_BACKEND_H */
