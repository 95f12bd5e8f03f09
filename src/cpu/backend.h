#ifndef FLUX__CPU_BACKEND_H
#define FLUX__CPU_BACKEND_H
#include "../base/platform.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "../schedule/dispatch.h"
#include "loops.h"
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

   Invariant: blocks follow the kernel's shape and what its operands' strides
   prefer, and the order in which numbers are joined (flux__join_order) does not
   follow the blocks. */

#define FLUX__LARGE (1 << 19)             /* more than a second-level cache holds */
/* rows up to this length may be run as one, however large blocks are otherwise */
#define FLUX__LONG_ROW (1 << 18)
/* of rows up to this length a second-level cache holds several */
#define FLUX__ROW_IN_CACHE (1 << 15)

FLUX__BEGIN_HOT

/* the lines (value numbers) that run for every block of reduced points; `per_row`: the per-row
   stage before them, once per outer point */
typedef struct flux__phase { int *line, n, *per_row, nper_row; } flux__phase;

/* The lines of an Adam step, which run as one at the place of line `last`: new_m, new_v and
   last are results, g, m, v, w operands, by numbers. All are value numbers; w is -1 if there is
   none, and so are by[4], the number that g is multiplied by first, and the two of AdamW: by[5],
   that the step is multiplied by before by[6] w is added to it. */
enum { FLUX__ADAM_NUMBERS = 7 };
typedef struct flux__adam {
    int g, m, v, w, by[FLUX__ADAM_NUMBERS], new_m, new_v, last;
} flux__adam;

/* The lines of softmax-like rows, which run as one at the place of line `first` (see
   flux__rows_run). All are value numbers; y is -1 if there is none. keep_d, keep_e: other lines
   or a tensor need d, e. */
typedef struct flux__rows {
    int first, x, d, e, second, y, by[3];
    bool squares, keep_d, keep_e;
} flux__rows;

/* The maximum or sum of small windows, or the maximum's gradient, which runs window by window: the
   value that is stored, the values x and g that it loads (g -1: no gradient), the operand with the
   places that the gradient compares the argmax with, the number that is stored elsewhere, and the
   number that a sum is divided by, or -1. */
typedef struct flux__pooling { int top, x, g, places, zero, by; bool sum; } flux__pooling;

/* A product's lines that are one chain of operations (flux__chain_run): its last line, or -1: they
   are none; by step the operation, the value that is its other operand, or -1, and whether that
   stands first. */
typedef struct flux__chain {
    int last, steps;
    struct { int op, other; bool first; } step[FLUX__CHAIN_STEPS];
} flux__chain;

struct flux__cpu;
struct flux__block_run;

/* The values that a line uses in place of its operands, and those that it makes besides its own;
   -1: none. */
typedef struct flux__uses { int in[FLUX__CHAIN_STEPS + 1], made[3]; } flux__uses;

/* A pattern of lines that runs as one, or a whole kernel that runs without blocks (cpu/ready.h has
   the table). Results have the same bits as those of the lines. */
typedef struct flux__pattern {
    const char *name;
    /* Whether the pattern ends in, or has its place at, this line of the kernel; if so, notes in c
       what its run needs to know, and which lines it makes (c->made). */
    bool (*matches)(flux__kernel *k, struct flux__cpu *c, int line);
    /* Fills in what it uses and makes at this line; NULL: as any line. */
    void (*uses)(const flux__kernel *k, const struct flux__cpu *c, int line, flux__uses *u);
    /* Runs it at the place of the line, for a block; NULL: it is a whole kernel. */
    void (*run)(struct flux__block_run *b, int line);
    /* Runs a whole kernel. False, and nothing is done: not with the numbers of this run. */
    bool (*run_all)(flux__run *run, flux__kernel *k);
} flux__pattern;

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
    bool *hoisted;
    bool *store_rounds;  /* by value: rounded only to be stored; the store rounds it */
    int *expand_reg;                      /* by value: the register of an expanded value, or -1 */
    flux__loop *loop;                     /* by value: the loop of its operation */
    /* reductions; splits > 1: threads share the reduced points, in so many parts */
    int nreduce, splits;
    size_t sum_bytes;                     /* bytes of a reduction's slots and of its double sums */
    int *reduce_at;                       /* by value: its number among the reductions, or -1 */
    const flux__pattern **pattern;        /* by value: what runs at its place, or NULL */
    const flux__pattern *whole;           /* what runs the whole kernel, if the numbers allow it */
    flux__adam adam;                      /* last is -1: the kernel has no Adam step */
    flux__rows rows;                      /* first is -1: the kernel has no such rows */
    flux__pooling pooling;
    flux__chain chain;
    /* of a product that shares its A: its panels lie from byte `at` of the kernel's scratch memory
       on, and this kernel packs them if `fill`, and reads them from the last if `backwards`
       (cpu/shared_operands.h); or they are the run's held[group], which is kept */
    struct { bool used, fill, backwards; int group; size_t at; } panels;
    /* by operand of a product: whether copies of it may be kept from call to call
       (cpu/kept_operands.h), and whether its panels are such */
    bool keeps[2], panels_kept[2];
    bool *made;  /* by value: computed by a pattern's line, not by its own */
    bool *linked;                         /* by value: a step with which its user's chain goes on */
    bool *omitted;                        /* by value: a rounding that is no step of its chain */
    bool *numbers;                        /* by value: a load of a number a row, for steps */
    bool *truth;  /* by value: a reduction that counts true elements, or bools that only it reads */
    int tile;                             /* elements of a register */
} flux__cpu;


/* ---------------- making a kernel ready */

/* Whether an operation is a function such as exp, which takes about five times as long as an
   addition. */
static bool flux__is_function(int op) {
    return op < FLUX__ELEMENTWISE_COUNT && flux__arity[op] == 1 && flux__rules[op] == 'F';
}

/* Whether all that a kernel of f32 loads is short windows apart from each other in memory, as in
   pooling with overlap, side by side in long runs. */
static bool flux__windows_apart(const flux__kernel *k, const flux__join_order *o) {
    bool apart = false;
    if (!FLUX__VECTORS || !o->rows || o->inner < 4 || o->inner >= 32) return false;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        flux__axes in, out;
        if (v->ctype != FLUX__F32C || v->kind == FLUX__V_ARGREDUCE || (!v->outer && v->out >= 0))
            return false;
        if (v->outer || v->kind != FLUX__V_LOAD) continue;
        flux__merge_axes(&in, k->full, k->operand[v->operand].stride, k->reduced, true);
        flux__merge_axes(&out, k->full, k->operand[v->operand].stride, k->reduced, false);
        if (in.nd == 1 || out.dim[0] < 8) return false;
        apart = true;
    }
    return apart;
}

/* Chooses the blocks of a kernel: which points are contiguous, and w outer by rt reduced points
   a block, at most c->tile together. */
static void flux__choose_blocks(const flux__kernel *k, flux__cpu *c) {
    const int64_t tile = c->tile;
    c->order = flux__order_of(k->full, k->reduced);
    c->outer = c->order.outer, c->inner = c->order.inner, c->inner_first = c->order.rows;
    c->across = k->reduced && flux__prefer_inner(k) != c->inner_first;
    /* such windows are joined column by column, in the slots of short rows (FLUX__FEW) */
    if (flux__windows_apart(k, &c->order))
        c->inner_first = c->across = false, c->order.slots = 4, c->order.chunk = 128;
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

/* Whether a value is a number that is only read: it has no line, but is set before the first
   block. */
static FLUX__INLINE bool flux__is_idle(const flux__value *v) {
    return v->kind == FLUX__V_NUMBER && v->out < 0;
}

/* Lists the lines of each phase: the inner values that its reductions and stores need, and as
   `per_row` the outer values that its inner lines may use. False: out of memory. */
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
        ph->per_row = ph->line + values;
        memset(need, 0, (size_t)k->nvalue);
        for (int i = 0; i < k->nvalue && ok; i++) {
            const flux__value *v = &k->value[i];
            if (v->phase != p) continue;
            if (flux__reducing(v)) flux__need(k, need, v->a);
            else if (v->outer && !flux__is_idle(v)) ph->per_row[ph->nper_row++] = i;
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
    flux__free(need);
    return ok;
}

FLUX__END_HOT

#endif /* FLUX__CPU_BACKEND_H */
