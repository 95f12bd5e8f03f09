#ifndef FLUX__CPU_CHAINS_H
#define FLUX__CPU_CHAINS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"
#include "gemm_pack.h"
#include "backend.h"
#include "run.h"
#include "rows.h"
#include "transfers.h"
#include "blocks.h"

/* ---------------------------------------------------------------------- cpu/chains.h
   Simple operations that run as one, as each result goes to the next line alone:
   they stay in vector registers from the first step to the last.

   Behind a product all lines may be one chain, as a norm in test mode with a
   residual addition and relu: the other operands are tensors or numbers. They
   run column by column, from a finished block of the product to the tensor. A
   chain without a step stores a product in a half format; one that ends in a
   half format also has tensors of one for operands. Where a product comes row by
   row and its operands are numbers of columns, it runs before the transposition
   (flux__chain_lines).

   In a fused kernel any lines may be, as those of a norm's gradient: the last
   one runs all of them (flux__do_steps), for a block. An outer value, one number
   a row, is then read where it is and need not be repeated for all points.

   Invariant: an element's result is that of the lines alone, bit by bit.

   Rejected: line by line over pieces in the first-level cache, as other kernels
   run (a norm behind a 1 x 1 convolution took a third as long as its product). */

FLUX__BEGIN_LEAN

/* The fewest rows of a product whose operations run as a chain. Shorter columns are run together,
   as whole vectors: those of 16 and 24 rows took 1.2 to 1.6 times as long by a chain, of 64 less. A
   product that is only stored in a half format may have any number of rows. */
enum { FLUX__CHAIN_ROWS = 48 };

/* The operation of the step that value i may be, over all points: one of few instructions, or the
   rounding to bf16 of what is not stored; -1: none. */
static int flux__step_op(const flux__kernel *k, int i) {
    const flux__value *v = &k->value[i];
    if (v->outer || v->ctype != FLUX__F32C || v->c >= 0) return -1;
    if (v->kind == FLUX__V_ROUND) return v->op == FLUX_BF16 && v->out < 0 ? FLUX__CHAIN_ROUND : -1;
    return v->kind == FLUX__V_OP && flux__chained[v->op] &&
           (v->dtype == FLUX_F32 || v->dtype == FLUX_BF16) ? v->op : -1;
}

/* Whether value i rounds what is rounded again behind a relu alone, which keeps a number or makes
   it 0: the first rounding changes nothing, and no step is made of it. */
static bool flux__rounds_twice(const flux__kernel *k, int i) {
    const flux__value *x = k->value;
    const int relu = x[i].kind == FLUX__V_ROUND && x[i].out < 0 ? flux__only_user(k, i) : -1;
    if (relu < 0 || x[relu].kind != FLUX__V_OP || x[relu].op != FLUX__OP_RELU || x[relu].out >= 0)
        return false;
    const int next = flux__only_user(k, relu);
    return next >= 0 && x[next].kind == FLUX__V_ROUND && x[next].op == x[i].op;
}

/* Whether value v is a product's chain's other operand: a number, or a tensor that has one number
   down a column of the product or neighbours, of a half format only if the result has one, too. */
static bool flux__chain_takes(const flux__kernel *k, int v) {
    const flux__value *x = &k->value[v];
    flux__axes axes;
    if (x->kind == FLUX__V_NUMBER) return x->ctype == FLUX__F32C;
    if (x->kind != FLUX__V_LOAD || x->ctype != FLUX__F32C || x->out >= 0) return false;
    const int dtype = k->operand[x->operand].dtype;
    flux__merge_axes(&axes, k->full, k->operand[x->operand].stride, 0, false);
    const bool halves = axes.step[0] == 0 || k->value[k->nvalue - 1].kind == FLUX__V_ROUND;
    return (axes.step[0] == 0 || axes.step[0] == 1) &&
           (dtype == FLUX_F32 || (halves && flux__is_half(dtype)));
}

/* Whether line i may be a chain's next step, value `top` being its result so far; if so, adds
   it. */
static bool flux__chain_add(const flux__kernel *k, flux__chain *c, int i, int top) {
    const flux__value *v = &k->value[i];
    const bool two = v->b >= 0, first = two && v->a != top;
    const int other = !two ? -1 : first ? v->a : v->b, op = flux__step_op(k, i);
    if (op >= 0 && v->a == top && flux__rounds_twice(k, i)) return true;
    if (op < 0 || c->steps == FLUX__CHAIN_STEPS || (first ? v->b : v->a) != top ||
        (two && !flux__chain_takes(k, other))) return false;
    c->step[c->steps].op = op, c->step[c->steps].other = other;
    c->step[c->steps++].first = first;
    return true;
}

/* Whether all lines of a product are a chain that ends in this one, which alone is stored. */
static bool flux__match_chain(flux__kernel *k, flux__cpu *c, int line) {
    const flux__value *x = k->value, *end = &x[line];
    const bool rounds = end->kind == FLUX__V_ROUND && end->op == end->dtype;
    flux__chain chain = { line, 0, { { 0, 0, false } } };
    int top = 0;                          /* the product, behind operands that are loaded before */
    while (top < line && (x[top].kind == FLUX__V_LOAD || x[top].kind == FLUX__V_NUMBER)) top++;
    if (k->kind != FLUX__K_MATMUL || top == line || line != k->nvalue - 1 || end->out < 0 ||
        x[top].kind != FLUX__V_PRODUCT || x[top].ctype != FLUX__F32C || x[top].out >= 0)
        return false;
    for (int i = top + 1; i < line + !rounds; i++) {
        if (x[i].kind == FLUX__V_LOAD || x[i].kind == FLUX__V_NUMBER) continue;
        if (!flux__chain_add(k, &chain, i, top) || (i < line && x[i].out >= 0)) return false;
        top = i;
    }
    if ((rounds && end->a != top) || (!rounds && top != line) ||
        (chain.steps && k->mnk[0] < FLUX__CHAIN_ROWS)) return false;
    for (int i = 0; i < line; i++) c->made[i] = true;
    c->chain = chain;
    return true;
}

/* ---- lines of a fused kernel */

/* The fewest numbers that lie side by side in a block for its lines to run as chains: shorter
   columns run better as lines, together. */
enum { FLUX__STEPS_ROWS = 64 };

static void flux__do_steps(flux__block_run *b, int line);

/* Whether line i runs as steps, itself the last. */
static bool flux__runs_steps(const flux__cpu *c, int i) {
    return c->pattern[i] && c->pattern[i]->run == flux__do_steps;
}

/* Whether line i may be a step. */
static bool flux__may_step(const flux__kernel *k, const flux__cpu *c, int i) {
    const flux__value *v = &k->value[i];
    return flux__step_op(k, i) >= 0 && !c->made[i] && (!c->pattern[i] || flux__runs_steps(c, i)) &&
           k->value[v->a].ctype == FLUX__F32C && (v->b < 0 || k->value[v->b].ctype == FLUX__F32C);
}

/* The operand of line i that is the step before it, or -1. */
static int flux__step_before(const flux__kernel *k, const flux__cpu *c, int i) {
    const flux__value *v = &k->value[i];
    return c->linked[v->a] ? v->a : v->b >= 0 && c->linked[v->b] ? v->b : -1;
}
/* How many steps line i has, with those before it. */
static int flux__steps_to(const flux__kernel *k, const flux__cpu *c, int i) {
    int n = 0;
    for (; i >= 0; i = flux__step_before(k, c, i)) n += !c->omitted[i];
    return n;
}

/* How many steps line i would have if it went on with operand x; 0: it can't. No line between them
   stores: its result may lie where an operand of x does, which is now read later. */
static int flux__steps_with(const flux__kernel *k, const flux__cpu *c, int i, int x) {
    if (x < 0 || k->value[i].a == k->value[i].b || !flux__may_step(k, c, x) ||
        k->value[x].phase != k->value[i].phase || k->value[x].out >= 0 ||
        flux__only_user(k, x) != i) return 0;
    for (int between = x + 1; between < i; between++)
        if (k->value[between].out >= 0) return 0;
    const int n = flux__steps_to(k, c, x) + 1;
    return n <= FLUX__CHAIN_STEPS ? n : 0;
}

/* Whether line `line` ends a chain of steps so far, or is one whose other operand is a number a
   row. A later line may go on with it. */
static bool flux__match_steps(flux__kernel *k, flux__cpu *c, int line) {
    const flux__value *v = &k->value[line];
    const bool columns = c->inner_first && k->reduced;
    if (k->kind != FLUX__K_FUSED || (columns ? c->inner : c->outer) < FLUX__STEPS_ROWS ||
        (columns ? c->rt : c->w) < FLUX__STEPS_ROWS || !flux__may_step(k, c, line)) return false;
    const int a = flux__steps_with(k, c, line, v->a), b = flux__steps_with(k, c, line, v->b),
              before = a >= b ? v->a : v->b;
    if (a || b) {
        c->linked[before] = c->made[before] = true;
        c->omitted[before] = flux__rounds_twice(k, before);
        c->pattern[before] = NULL;
        return true;
    }
    return v->b >= 0 && k->reduced && k->value[v->a].outer != k->value[v->b].outer &&
           !flux__is_const(k, v->a) && !flux__is_const(k, v->b);
}

/* Whether value v is loaded from memory that has one number for each row of a block. */
static bool flux__is_number_a_row(const flux__kernel *k, const flux__cpu *c, int v) {
    if (v < 0 || k->value[v].kind != FLUX__V_LOAD || k->value[v].outer) return false;
    const flux__axes *along = (c->inner_first ? c->inner_axes : c->outer_axes) + c->axes_at[v];
    return along->nd == 1 && along->step[0] == 0;
}

/* Whether line i uses such a value v as a step's other operand only. */
static bool flux__steps_by(const flux__kernel *k, const flux__cpu *c, int i, int v) {
    const int other = k->value[i].a == v ? k->value[i].b : k->value[i].a;
    return (c->linked[i] || flux__runs_steps(c, i)) && other >= 0 && other != v &&
           !k->value[other].outer && !flux__is_const(k, other) &&
           !flux__is_number_a_row(k, c, other);
}

/* Finds the loads whose numbers need not be repeated for all points of a row. */
static void flux__find_numbers(const flux__kernel *k, flux__cpu *c) {
    for (int v = 0; v < k->nvalue; v++) {
        bool all = k->reduced && flux__is_number_a_row(k, c, v);
        for (int i = 0; i < k->nvalue && all; i++) {
            const flux__value *x = &k->value[i];
            if (x->a == v || x->b == v || x->c == v) all = flux__steps_by(k, c, i, v);
        }
        c->numbers[v] = all;
    }
}

/* The operands of all steps that end in this line. */
static void flux__steps_uses(const flux__kernel *k, const flux__cpu *c, int line, flux__uses *u) {
    int n = 0;
    for (int i = line, before; i >= 0; i = before) {
        const flux__value *v = &k->value[i];
        before = flux__step_before(k, c, i);
        FLUX__ASSERT(n < FLUX__CHAIN_STEPS + (before < 0));
        if (v->a != before) u->in[n++] = v->a;
        if (v->b >= 0 && v->b != before) u->in[n++] = v->b;
    }
    while (n < FLUX__CHAIN_STEPS + 1) u->in[n++] = -1;
}

/* ---- the run */

/* A step's other operand in a half format: its element for the first row and column; NULL: it has
   none. */
typedef struct flux__chain_half { const char *at; int dtype; } flux__chain_half;

/* A step for the present block. Its other operand has an even step down a column and one from each
   column of a matrix to the next, because of dims that are joined to columns each continues the one
   before in it (flux__product_fits). Of a half format, it is *half. */
static flux__chain_step flux__chain_place(const flux__block_run *b, int step,
                                          flux__chain_half *half) {
    const int i = b->c->chain.step[step].other;
    const int64_t *mn = b->k->mnk;
    const flux__value *v = &b->k->value[i < 0 ? 0 : i];
    const void *at = i < 0 ? (const void *)b->product : b->at[i];
    flux__chain_step s = { b->c->chain.step[step].op, b->c->chain.step[step].first, false,
                           (const float *)at, 0 };
    half->at = NULL;
    if (i < 0 || v->kind == FLUX__V_NUMBER) return s;
    const flux__axes *x = &b->c->outer_axes[b->c->axes_at[i]];
    FLUX__ASSERT(x->nd == 1 || x->dim[0] % (mn[0] * mn[1]) == 0 ||
                 (x->dim[0] == mn[0] && x->dim[1] % mn[1] == 0));
    const flux__operand *o = &b->k->operand[v->operand];
    const int64_t first = flux__value_offset(b->k, v) + flux__axes_at(x, b->o0);
    s.along = x->step[0] == 1;
    s.next = x->nd > 1 && x->dim[0] == mn[0] ? x->step[1] : mn[0] * x->step[0];
    half->dtype = o->dtype;
    if (flux__is_half(o->dtype)) half->at = (const char *)b->run->ptr[o->src] + 2 * first;
    else s.at = (const float *)b->run->ptr[o->src] + first;
    return s;
}

/* Runs the steps for less rows than a vector of four has, by way of copies. */
static void flux__chain_few(flux__chain_run *r) {
    float pad[FLUX__CHAIN_STEPS + 2][4] = { { 0 } }, *y = r->y;
    const int64_t n = r->rows;
    FLUX__ASSERT(r->columns == 1 && n < 4);
    memcpy(pad[0], r->x, (size_t)n * 4);
    for (int s = 0; s < r->steps; s++)
        if (r->step[s].along)
            memcpy(pad[s + 1], r->step[s].at, (size_t)n * 4), r->step[s].at = pad[s + 1];
    r->x = pad[0], r->y = pad[FLUX__CHAIN_STEPS + 1], r->rows = 4;
    flux__section_for(4)->chain(r);
    memcpy(y, r->y, (size_t)n * 4);
}

/* Runs the steps for less than four rows of some columns. */
static void flux__chain_short(const flux__chain_run *r) {
    for (int64_t j = 0; j < r->columns; j++) {
        flux__chain_run one = *r;
        one.columns = 1, one.x += j * r->x_next, one.y += j * r->y_next;
        for (int s = 0; s < r->steps; s++) one.step[s].at += j * r->step[s].next;
        flux__chain_few(&one);
    }
}
/* Runs the steps for some rows of some columns. */
static void flux__chain_rows(const flux__chain_run *r) {
    if (r->rows >= 4) flux__section_for(r->rows)->chain(r);
    else flux__chain_short(r);
}

/* The part of a run from row i and column j on, of so many rows and columns, its result at y, its
   columns side by side. Operands of half formats with an element a row (half) are widened: each has
   `most` floats of `wide`. */
static flux__chain_run flux__chain_part(const flux__chain_run *r, const flux__chain_half *half,
                                        int64_t i, int64_t j, int64_t rows, int64_t columns,
                                        float *y, float *wide, int64_t most) {
    flux__chain_run some = *r;
    some.rows = some.y_next = rows, some.columns = columns;
    some.x += j * r->x_next + i, some.y = y;
    for (int s = 0; s < r->steps; s++) {
        flux__chain_step *step = &some.step[s];
        const int64_t at = j * step->next + (step->along ? i : 0);
        if (!step->along || !half[s].at) {
            step->at += at;
            continue;
        }
        for (int64_t q = 0; q < columns; q++)
            flux__load(FLUX__F32C, wide + q * rows, half[s].dtype,
                       half[s].at + 2 * (at + q * step->next), 1, rows);
        step->at = wide, step->next = rows;
        wide += most;
    }
    return some;
}

/* Stores rows of some columns in a half format: the chain's results, which go by way of `part`, as
   many columns at a time as it has room for, or without a step the product. half: the steps' other
   operands in half formats; to: the tensor's element of the first. */
static void flux__chain_halves(const flux__chain_run *r, const flux__chain_half *half, int dtype,
                               char *to, int64_t next) {
    enum { PART = 2048 };
    float part[PART], wide[PART];
    int needs = FLUX__F32C, widened = 0;
    const flux__cast_fn write = flux__writer(dtype, &needs);
    FLUX__ASSERT(write && needs == FLUX__F32C);
    for (int s = 0; s < r->steps; s++) widened += r->step[s].along && half[s].at;
    const int64_t most = PART / (widened > 1 ? widened : 1),
                  each = r->rows < most ? most / r->rows : 1;
    for (int64_t j = 0; !r->steps && j < r->columns; j++)
        write(r->rows, to + 2 * j * next, r->x + j * r->x_next);
    for (int64_t j = 0; r->steps && j < r->columns; j += each)
        for (int64_t i = 0, n; i < r->rows; i += n) {
            n = flux__gemm_min(r->rows - i, most);
            const flux__chain_run some = flux__chain_part(
                r, half, i, j, n, flux__gemm_min(r->columns - j, each), part, wide, most);
            flux__chain_rows(&some);
            for (int64_t q = 0; q < some.columns; q++)
                write(n, to + 2 * ((j + q) * next + i), part + q * n);
        }
}

/* How a block's points are rows and columns of a matrix: its columns lie side by side. */
typedef struct flux__step_shape { int64_t rows, columns; bool outer_along; int64_t outer_next; }
    flux__step_shape;
static flux__step_shape flux__step_shape_of(const flux__block_run *b) {
    const int64_t outer = b->w * b->segments;
    flux__step_shape s = { outer, b->rt, true, 0 };
    if (b->rt != 1 && (b->c->inner_first || outer == 1))
        s.rows = b->rt, s.columns = outer, s.outer_along = false, s.outer_next = 1;
    return s;
}

/* Value x as a step's other operand. */
static flux__chain_step flux__step_operand(const flux__block_run *b, const flux__step_shape *s,
                                           int op, bool first, int x) {
    const flux__value *v = &b->k->value[x];
    flux__chain_step step = { op, first, b->walk[x] != 0, (const float *)b->at[x], s->rows };
    if (!b->walk[x]) step.next = 0;
    else if (b->walk[x] == FLUX__BY_ROW) step.along = false, step.next = 1;
    else if (v->outer) step.along = s->outer_along, step.next = s->outer_next;
    return step;
}

/* Whether as many bytes from a and from b on overlap, and not in the same places. */
static bool flux__overlaps(const float *a, const float *b, int64_t bytes) {
    const intptr_t apart = (intptr_t)a - (intptr_t)b;
    return apart && -bytes < apart && apart < bytes;
}
/* Whether the result lies where a step reads, other than in its own place. Also has steps of one
   operand name another one, which is then read and not used. */
static bool flux__steps_overlap(flux__chain_run *r) {
    const int64_t bytes = r->rows * r->columns * 4;
    bool overlap = flux__overlaps(r->x, r->y, bytes);
    for (int n = 0; n < r->steps; n++) {
        if (!r->step[n].at) r->step[n].at = r->x;
        overlap = overlap || flux__overlaps(r->step[n].at, r->y, bytes);
    }
    return overlap;
}

/* Runs the steps that end in this line, for a block: from the last one back they are found, from
   the first on they run, whose first operand has an element a point. */
static void flux__do_steps(flux__block_run *b, int line) {
    const flux__value *x = b->k->value;
    const flux__step_shape s = flux__step_shape_of(b);
    flux__chain_run r;
    int n = flux__steps_to(b->k, b->c, line);
    r.steps = n, r.rows = s.rows, r.columns = s.columns, r.x_next = r.y_next = s.rows;
    for (int i = line, before; i >= 0; i = before) {
        before = flux__step_before(b->k, b->c, i);
        const bool a_outer = x[x[i].a].outer || flux__is_const(b->k, x[i].a) ||
                             b->c->numbers[x[i].a],
                   /* whether the operand b is what it goes on with */
                   second = x[i].b >= 0 && (before < 0 ? a_outer : x[i].a != before);
        const int other = second ? x[i].a : x[i].b, from = second ? x[i].b : x[i].a;
        flux__chain_step step = { flux__step_op(b->k, i), second, false, NULL, 0 };
        if (other >= 0) step = flux__step_operand(b, &s, step.op, second, other);
        if (!b->c->omitted[i]) r.step[--n] = step;
        if (before < 0) r.x = (const float *)b->at[from];
        if (before < 0 && !b->walk[from]) {
            float *all = (float *)(void *)flux__reg(b, b->c->nreg);
            flux__fill(all, r.x, sizeof *all, (size_t)(s.rows * s.columns));
            r.x = all;
        }
    }
    float *y = (float *)flux__result_at(b, line);
    r.y = y;
    if (flux__steps_overlap(&r)) r.y = (float *)(void *)flux__reg(b, b->c->nreg);
    flux__chain_rows(&r);
    if (r.y != y) memcpy(y, r.y, (size_t)(s.rows * s.columns) * sizeof *y);
    b->at[line] = y;
    b->walk[line] = 1;
    if (x[line].out >= 0) flux__do_store(b, line);
}

/* Runs a product's chain for the present block, some columns at a time, for which a half format's
   numbers of columns are widened. */
static void flux__do_chain(flux__block_run *b, int line) {
    enum { SOME = 32 };
    const flux__value *v = &b->k->value[line];
    const int64_t m = b->k->mnk[0], columns = b->w * b->segments / b->product_rows;
    const bool rounds = v->kind == FLUX__V_ROUND;
    const int steps = b->c->chain.steps, size = rounds ? 2 : 4;
    char *out = (char *)b->run->ptr[v->out] + b->o0 * size;
    flux__chain_half half[FLUX__CHAIN_STEPS], some[FLUX__CHAIN_STEPS];
    float wide[FLUX__CHAIN_STEPS][SOME];
    flux__chain_step place[FLUX__CHAIN_STEPS];
    flux__chain_run r;
    bool any = false;
    for (int s = 0; s < steps; s++)
        place[s] = flux__chain_place(b, s, &half[s]), any = any || half[s].at;
    r.rows = b->product_rows, r.x_next = b->product_ld, r.y_next = m, r.steps = steps;
    for (int64_t j = 0; j < columns; j += r.columns, out += r.columns * m * size) {
        r.columns = any ? flux__gemm_min(columns - j, SOME) : columns;
        r.x = (const float *)(const void *)b->product + j * r.x_next;
        r.y = (float *)(void *)out;
        for (int s = 0; s < steps; s++) {
            const int64_t at = j * place[s].next;
            r.step[s] = place[s], some[s] = half[s];
            if (!half[s].at) r.step[s].at += at;
            else if (place[s].along) some[s].at += 2 * at;
            else {
                flux__load(FLUX__F32C, wide[s], half[s].dtype, half[s].at + 2 * at, place[s].next,
                           r.columns);
                r.step[s].at = wide[s], r.step[s].next = 1;
            }
        }
        if (rounds) flux__chain_halves(&r, some, v->dtype, out, m);
        else flux__chain_rows(&r);
    }
}

#if FLUX__AMX
/* Whether a product's lines are a chain that ends in a half format, none of whose operands has an
   element a row; if so, runs it for columns j ... j+n-1, at most 32, of the job's batch, before the
   product is transposed. x: lines of 32 columns, a row each; they become the results, in f32. */
static bool flux__chain_lines(flux__job *job, int64_t j, int64_t n, float *x, int64_t lines) {
    enum { LINES = 16 };
    const flux__kernel *k = job->k;
    const flux__chain *chain = &((const flux__cpu *)k->ready)->chain;
    flux__block_run b;
    flux__chain_run r;
    float numbers[FLUX__CHAIN_STEPS][LINES * 32];
    if (chain->last < 0 || k->value[chain->last].kind != FLUX__V_ROUND) return false;
    if (chain->steps == 0) return true;
    if (!flux__block_start(&b, job->run, job->k)) return false;
    b.o0 = job->first + (job->batch * k->mnk[1] + j) * k->mnk[0];
    b.product = (const char *)x;
    r.steps = chain->steps;
    for (int s = 0; s < r.steps; s++) {
        flux__chain_half half;
        flux__chain_step *step = &r.step[s];
        *step = flux__chain_place(&b, s, &half);
        if (step->along) return false;
        if (!half.at && step->next == 0) continue;
        float *to = numbers[s];
        flux__load(FLUX__F32C, to, half.at ? half.dtype : FLUX_F32,
                   half.at ? half.at : (const char *)step->at, step->next, n);
        for (int64_t i = n; i < 32; i++) to[i] = 0;
        for (int64_t i = 1; i < LINES; i++) memcpy(to + i * 32, to, 32 * sizeof *to);
        step->at = to, step->along = true, step->next = 0;
    }
    r.x = r.y = x, r.x_next = r.y_next = r.rows = LINES * 32, r.columns = lines / LINES;
    flux__chain_rows(&r);
    r.x = r.y = x + r.rows * r.columns, r.rows = lines % LINES * 32, r.columns = 1;
    if (r.rows) flux__chain_rows(&r);
    return true;
}
#endif

FLUX__END_LEAN

#endif /* FLUX__CPU_CHAINS_H */
