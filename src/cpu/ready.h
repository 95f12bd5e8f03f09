#ifndef FLUX__CPU_READY_H
#define FLUX__CPU_READY_H
#include "../base/platform.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "loops.h"
#include "vectors.h"
#include "gemm_tasks.h"
#include "backend.h"
#include "rows.h"
#include "chains.h"
#include "windows.h"

/* ---------------------------------------------------------------------- cpu/ready.h
   Making a kernel ready for the CPU (flux__prepare): the patterns that it has, by
   the table flux__patterns, its blocks, registers for its values, and loops for
   its lines. A new pattern is a row of the table.

   Invariant: registers are given out by last use; outer values, and loads that
   stay the same from block to block (again), keep theirs for the whole kernel. A
   number has no register. A value that is rounded only to be stored is rounded
   by the store (store_rounds). Splitting a reduction over threads follows
   flux__join_order. */

FLUX__BEGIN_COLD

/* The patterns, in the order in which they are looked for. */
static const flux__pattern flux__patterns[] = {
    /* name      matches               uses              run             run_all */
    { "count",   flux__match_count,    NULL,             flux__do_count, NULL },
    { "rows",    flux__match_rows,     flux__rows_uses,  flux__do_rows,  NULL },
    { "adam",    flux__match_adam,     flux__adam_uses,  flux__do_adam,  NULL },
    { "chain",   flux__match_chain,    NULL,             flux__do_chain, NULL },
    { "steps",   flux__match_steps,    flux__steps_uses, flux__do_steps, NULL },
    { "windows", flux__match_windows,  NULL,             NULL,           flux__run_windows },
    { "copy",    flux__match_copy,     NULL,             NULL,           flux__run_copy }
};

/* Looks for each pattern at each line, and notes where it runs. */
static void flux__find_patterns(flux__kernel *k, flux__cpu *c) {
    c->rows.first = c->adam.last = c->chain.last = -1;
    for (size_t p = 0; p < sizeof flux__patterns / sizeof *flux__patterns; p++)
        for (int i = 0; i < k->nvalue; i++) {
            if (!flux__patterns[p].matches(k, c, i)) continue;
            if (flux__patterns[p].run) c->pattern[i] = &flux__patterns[p];
            else c->whole = &flux__patterns[p];
        }
}

/* Removes from a list of lines those that a pattern computes; returns how many are left. */
static int flux__not_made(const flux__cpu *c, int *line, int n) {
    int left = 0;
    for (int i = 0; i < n; i++)
        if (!c->made[line[i]]) line[left++] = line[i];
    return left;
}
static void flux__take_out_made(flux__cpu *c) {
    for (int p = 0; p < c->nphase; p++) {
        flux__phase *ph = &c->phase[p];
        ph->n = flux__not_made(c, ph->line, ph->n),
            ph->nper_row = flux__not_made(c, ph->per_row, ph->nper_row);
    }
}

/* Lists the values that a line uses and makes. */
static flux__uses flux__uses_of(const flux__kernel *k, const flux__cpu *c, int line) {
    const flux__value *v = &k->value[line];
    flux__uses u;
    memset(&u, -1, sizeof u);
    u.in[0] = v->a, u.in[1] = v->b, u.in[2] = v->c;
    if (c->pattern[line] && c->pattern[line]->uses) c->pattern[line]->uses(k, c, line, &u);
    return u;
}

/* Whether a value needs a register: a number does not. */
static bool flux__needs_register(const flux__value *v) { return v->kind != FLUX__V_NUMBER; }

/* Whether a load is the same from block to block and can be hoisted: a bias of a matrix with
   short columns, or what all rows have in common. */
static bool flux__is_hoisted(const flux__kernel *k, const flux__cpu *c, int i) {
    const flux__axes *out = &c->outer_axes[c->axes_at[i]];
    if (k->value[i].kind != FLUX__V_LOAD || k->value[i].outer || c->made[i] || c->numbers[i] ||
        (c->inner > 1 && !(c->inner_first && c->resident))) return false;
    return c->inner_axes[c->axes_at[i]].nd == 1 &&
           (out->nd == 1 ? out->step[0] == 0 :
            out->nd == 2 && out->step[1] == 0 && out->dim[0] <= c->tile);
}

/* Notes that value v, unless it is -1, is used at this time. */
static void flux__note_use(int *last, int v, int clock) {
    if (v >= 0) last[v] = clock;
}

/* Gives value v a register that is free, from number `fixed` on, if it needs one and has none. */
static void flux__take_register(const flux__kernel *k, flux__cpu *c, bool *taken, int fixed,
                                int v) {
    int r = fixed;
    if (v < 0 || k->value[v].outer || !flux__needs_register(&k->value[v]) || c->reg[v] >= 0) return;
    while (taken[r]) r++;
    taken[r] = true;
    c->reg[v] = r;
    if (r >= c->nreg) c->nreg = r + 1;
}

/* Gives values their registers, by last use. In a block of whole rows a value lives from its
   own line to its last use in any phase; otherwise it lives within a phase. Outer values keep
   theirs. last: scratch, for values; taken: for registers, all false. */
static void flux__assign_registers(flux__kernel *k, flux__cpu *c, int *last, bool *taken) {
    const int operands = FLUX__CHAIN_STEPS + 1;
    int clock = 0;
    memset(last, -1, (size_t)k->nvalue * sizeof(int));
    for (int p = 0; p < c->nphase; p++)
        for (int j = 0; j < c->phase[p].n; j++, clock++) {
            const flux__uses u = flux__uses_of(k, c, c->phase[p].line[j]);
            flux__note_use(last, c->phase[p].line[j], clock);
            for (int i = 0; i < operands; i++) flux__note_use(last, u.in[i], clock);
            for (int i = 0; i < 3; i++) flux__note_use(last, u.made[i], clock);
        }
    for (int i = 0; i < k->nvalue; i++) c->reg[i] = -1, c->expand_reg[i] = -1;
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].outer && flux__needs_register(&k->value[i])) {
            c->reg[i] = c->nreg++;
            if (c->expand[i]) c->expand_reg[i] = c->nreg++;
        } else if ((c->hoisted[i] = flux__is_hoisted(k, c, i))) c->reg[i] = c->nreg++;
    const int fixed = c->nreg;
    clock = 0;
    for (int p = 0; p < c->nphase; p++)
        for (int j = 0; j < c->phase[p].n; j++, clock++) {
            const int line = c->phase[p].line[j];
            const flux__uses u = flux__uses_of(k, c, line);
            flux__take_register(k, c, taken, fixed, line);
            for (int i = 0; i < 3; i++) flux__take_register(k, c, taken, fixed, u.made[i]);
            for (int i = 0; i < k->nvalue; i++)
                if (last[i] == clock && !k->value[i].outer && c->reg[i] >= 0)
                    taken[c->reg[i]] = false;
        }
}

/* Finds which values are rounded only to be stored, and which outer values are expanded. */
static void flux__find_roles(const flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        int use[3];
        use[0] = v->a, use[1] = v->b, use[2] = v->c;
        /* not if it is stored in another dtype than it is rounded to, after a cast */
        c->store_rounds[i] = v->kind == FLUX__V_ROUND && v->out >= 0 && v->op == v->dtype;
        for (int j = 0; j < 3; j++) {
            if (use[j] < 0) continue;
            c->store_rounds[use[j]] = false;
            if ((!v->outer || flux__reducing(v)) && !c->made[i] && !flux__runs_steps(c, i) &&
                k->value[use[j]].outer &&
                k->value[use[j]].kind != FLUX__V_NUMBER)
                c->expand[use[j]] = true;
        }
    }
}

/* Finds the loop of each operation, the maps of what is loaded or stored, the number of each
   reduction, and the width of registers. */
static void flux__bind_loops(flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++) {
        flux__value *v = &k->value[i];
        int64_t step[FLUX_MAX_DIMS];
        c->reduce_at[i] = flux__reducing(v) ? c->nreduce++ : -1;
        if (v->ctype == FLUX__F64C || v->ctype == FLUX__I64C || v->kind == FLUX__V_IOTA ||
            v->kind == FLUX__V_RANDOM) c->width = 8;
        if (v->kind == FLUX__V_OP) c->loop[i] = flux__loop_for(v->ctype, v->op);
        if (!flux__is_source(v) && v->out < 0) continue;
        flux__value_strides(k, v, step);
        flux__merge_axes(&c->outer_axes[c->axes_at[i]], k->full, step, k->reduced, false);
        flux__merge_axes(&c->inner_axes[c->axes_at[i]], k->full, step, k->reduced, true);
    }
}

/* The work of one point, in additions. */
static int64_t flux__point_cost(const flux__kernel *k) {
    int64_t cost = 0;
    for (int i = 0; i < k->nvalue; i++) cost += flux__is_function(k->value[i].op) ? 5 : 1;
    return cost;
}

/* A prepared kernel with the arrays for its values, in one piece of the plan's memory. NULL:
   out of memory. */
static flux__cpu *flux__cpu_new(flux__plan *plan, const flux__kernel *k) {
    const size_t n = (size_t)k->nvalue, at = (sizeof(flux__cpu) + 15) & ~(size_t)15;
    size_t moved = 1;  /* number of values that have maps; the others share the last one */
    for (size_t i = 0; i < n; i++) moved += flux__is_source(&k->value[i]) || k->value[i].out >= 0;
    flux__cpu *c;
    const size_t all = at + moved * 2 * sizeof(flux__axes) +
        n * (sizeof(flux__loop) + sizeof *c->pattern + 4 * sizeof(int) + 8 * sizeof(bool));
    c = (flux__cpu *)flux__plan_take(plan, all);
    if (!c) return NULL;
    memset(c, 0, all);
    c->outer_axes = (flux__axes *)(void *)((char *)c + at);
    c->inner_axes = c->outer_axes + moved;
    c->loop = (flux__loop *)(void *)(c->inner_axes + moved);
    c->pattern = (const flux__pattern **)(void *)(c->loop + n);
    c->reg = (int *)(void *)(c->pattern + n);
    c->expand_reg = c->reg + n;
    c->reduce_at = c->expand_reg + n;
    c->axes_at = c->reduce_at + n;
    c->expand = (bool *)(void *)(c->axes_at + n);
    c->hoisted = c->expand + n;
    c->store_rounds = c->hoisted + n;
    c->made = c->store_rounds + n;
    c->linked = c->made + n;
    c->omitted = c->linked + n;
    c->numbers = c->omitted + n;
    c->truth = c->numbers + n;
    for (size_t i = 0, next = 0; i < n; i++)
        c->axes_at[i] =
            (int)(flux__is_source(&k->value[i]) || k->value[i].out >= 0 ? next++ : moved - 1);
    return c;
}

/* Prepares a kernel for the CPU: patterns, blocks, phases, loops and registers. Kernels of
   whole tensors need none of this. False: out of memory, which is recorded. */
static bool flux__prepare(flux__plan *plan, flux__kernel *k) {
    if (k->kind > FLUX__K_MATMUL) return true;
    flux__cpu *c = flux__cpu_new(plan, k);
    size_t n = (size_t)k->nvalue;
    if (!c) return false;
    k->ready = c;
    c->width = 4;
    flux__usual_blocks(k, c);
    flux__find_patterns(k, c);
    int *last = (int *)flux__malloc(n * sizeof(int));
    bool *taken = (bool *)flux__zalloc(n * 3);
    bool ok = last && taken && flux__split_phases(plan, k, c);
    if (ok) {
        flux__bind_loops(k, c);
        flux__find_roles(k, c);
        flux__find_numbers(k, c);
        flux__take_out_made(c);
        /* it reads and writes in place, so whole pieces of the product fit a register */
        if (k->kind == FLUX__K_MATMUL && c->adam.last >= 0) c->tile = FLUX__GEMM_PIECE;
        flux__assign_registers(k, c, last, taken);
        c->splits = c->nreduce && !c->resident ? c->order.parts : 1;
        c->sum_bytes = ((size_t)((c->order.slots + 1) * c->w) * 8 + 63) / 64 * 64;
        c->cost = flux__point_cost(k);
    }
    flux__free(last);
    flux__free(taken);
    return ok;
}

FLUX__END_COLD

#endif /* FLUX__CPU_READY_H */
