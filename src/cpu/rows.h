#ifndef FLUX__CPU_ROWS_H
#define FLUX__CPU_ROWS_H
#include "../base/platform.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "loops.h"
#include "vectors.h"
#include "gemm_tasks.h"
#include "backend.h"

/* ---------------------------------------------------------------------- cpu/rows.h
   Making a kernel ready for the CPU (flux__prepare): registers for its values,
   loops for its lines, and the lines that run as one. Three patterns are
   recognised: Adam's step, rows of softmax, log-softmax or normalisation, and
   reductions of bools, which are counted.

   Invariant: lines run as one give the same bits as the lines alone; a pattern
   is taken only if its intermediate values are needed nowhere else, or are
   kept. Registers are given out by last use; outer values, and loads that stay
   the same from block to block (again), keep theirs for the whole kernel. A
   number has no register. A value that is rounded only to be stored is rounded
   by the store (parting). Splitting a reduction over threads follows
   flux__join_order. */

FLUX__BEGIN_COLD

/* Whether value v is this operation (kind and op) in f32, outer or not. */
static bool flux__is_line(const flux__kernel *k, int v, int kind, int op, bool outer) {
    const flux__value *x = &k->value[v];
    return x->kind == kind && x->op == op && x->cls == FLUX__F32C && x->dtype == FLUX_F32 &&
           x->outer == outer;
}
/* Whether value v is this elementwise operation in f32, at all points. */
static bool flux__is_f32(const flux__kernel *k, int v, int op) {
    return flux__is_line(k, v, FLUX__V_OP, op, false);
}
static bool flux__is_const(const flux__kernel *k, int v) {
    return k->value[v].kind == FLUX__V_NUMBER;
}
/* Whether value v is an operand in f32 with an element a point. */
static bool flux__is_walk(const flux__kernel *k, int v) {
    const flux__value *x = &k->value[v];
    return (x->kind == FLUX__V_OP || x->kind == FLUX__V_LOAD || x->kind == FLUX__V_PRODUCT) &&
           x->cls == FLUX__F32C && !x->outer;
}
/* The only line that uses value v, or -1 if there are several or none. */
static int flux__only_user(const flux__kernel *k, int v) {
    int user = -1;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *x = &k->value[i];
        if (x->a != v && x->b != v && x->c != v) continue;
        if (user >= 0) return -1;
        user = i;
    }
    return user;
}
/* Whether value v is this operation, and `user` alone needs it. */
static bool flux__passes(const flux__kernel *k, int v, int op, int user) {
    return flux__is_f32(k, v, op) && k->value[v].out < 0 && flux__only_user(k, v) == user;
}

/* Whether the division `div` is that of an Adam step, m' / (sqrt(v') + epsilon) with m' =
   lerp(m, g) and v' = lerp(v, square(g)), perhaps followed by fma(div, scale, w); if so, fills
   in *a. */
static bool flux__adam_at(const flux__kernel *k, int div, flux__adam *a) {
    const flux__value *x = k->value;
    int sum, root, square, fma;
    if (!flux__is_f32(k, div, FLUX__OP_DIV)) return false;
    a->new_m = x[div].a, sum = x[div].b, a->last = div, a->w = -1;
    if (!flux__is_f32(k, a->new_m, FLUX__OP_LERP) || !flux__passes(k, sum, FLUX__OP_ADD, div))
        return false;
    root = x[sum].a, a->by[2] = a->by[3] = x[sum].b;
    if (!flux__is_const(k, a->by[2]) || !flux__passes(k, root, FLUX__OP_SQRT, sum)) return false;
    a->new_v = x[root].a;
    if (!flux__is_f32(k, a->new_v, FLUX__OP_LERP)) return false;
    square = x[a->new_v].b, a->g = x[a->new_m].b, a->m = x[a->new_m].a, a->v = x[a->new_v].a;
    a->by[0] = x[a->new_m].c, a->by[1] = x[a->new_v].c;
    if (!flux__passes(k, square, FLUX__OP_SQUARE, a->new_v) || x[square].a != a->g) return false;
    if (flux__only_user(k, a->new_m) != div || flux__only_user(k, a->new_v) != root) return false;
    fma = flux__only_user(k, div);
    if (fma >= 0 && x[div].out < 0 && flux__is_f32(k, fma, FLUX__OP_FMA) && x[fma].a == div &&
        flux__is_const(k, x[fma].b) && flux__is_walk(k, x[fma].c) && x[fma].phase == x[div].phase)
        a->w = x[fma].c, a->by[3] = x[fma].b, a->last = fma;
    return flux__is_const(k, a->by[0]) && flux__is_const(k, a->by[1]) && flux__is_walk(k, a->g) &&
           flux__is_walk(k, a->m) && flux__is_walk(k, a->v) && x[a->m].phase == x[div].phase &&
           x[a->v].phase == x[div].phase && x[square].phase == x[div].phase;
}

/* Finds the kernel's Adam step, and marks the lines that it replaces; a->last is -1 if there is
   none. */
static void flux__find_adam(const flux__kernel *k, flux__cpu *c) {
    const flux__value *x = k->value;
    flux__adam *a = &c->adam;
    int div = 0;
    while (div < k->nvalue && !flux__adam_at(k, div, a)) div++;
    if (div == k->nvalue || (x[div].phase > 0 && !c->resident)) {
        a->last = -1;
        return;
    }
    c->made[div] = true;
    c->made[a->new_m] = c->made[a->new_v] = c->made[x[a->new_v].b] = c->made[x[div].b] =
        c->made[x[x[div].b].a] = true;
    c->made[a->last] = false;
}

/* Whether the sum `second` is the second reduction of softmax-like rows: the sum of exp(x -
   max(x)), or of square(x - mean(x)). If so, fills in *a. */
static bool flux__rows_at(const flux__kernel *k, int second, flux__rows *a) {
    const flux__value *x = k->value;
    if (!flux__is_line(k, second, FLUX__V_REDUCE, FLUX__RED_SUM, true)) return false;
    a->second = second, a->e = x[second].a, a->by[0] = -1, a->y = -1;
    a->squares = flux__is_f32(k, a->e, FLUX__OP_SQUARE);
    if (!a->squares && !flux__is_f32(k, a->e, FLUX__OP_EXP)) return false;
    a->d = x[a->e].a;
    if (!flux__is_f32(k, a->d, a->squares ? FLUX__OP_SUB : FLUX__OP_SUBMAX)) return false;
    a->x = x[a->d].a, a->first = x[a->d].b;
    if (a->squares) {
        if (!flux__is_line(k, a->first, FLUX__V_OP, FLUX__OP_DIV, true)) return false;
        a->by[0] = x[a->first].b, a->first = x[a->first].a;
        if (!flux__is_const(k, a->by[0])) return false;
    }
    return flux__is_line(k, a->first, FLUX__V_REDUCE, a->squares ? FLUX__RED_SUM : FLUX__RED_MAX,
                         true) && x[a->first].a == a->x && flux__is_walk(k, a->x) &&
           x[a->d].phase == x[a->first].phase + 1;
}

/* Whether value y ends such rows: e / second (softmax), d - log(second) (log-softmax), or d
   rsqrt(second / by[1] + by[2]) (normalisation). */
static bool flux__ends_rows(const flux__kernel *k, int y, flux__rows *a) {
    const flux__value *x = k->value;
    const int by = x[y].b;
    if (!a->squares && flux__is_f32(k, y, FLUX__OP_DIV)) return x[y].a == a->e && by == a->second;
    if (!a->squares)
        return flux__is_f32(k, y, FLUX__OP_SUB) && x[y].a == a->d &&
               flux__is_line(k, by, FLUX__V_OP, FLUX__OP_LOG, true) && x[by].a == a->second;
    if (!flux__is_f32(k, y, FLUX__OP_MUL) || x[y].a != a->d ||
        !flux__is_line(k, by, FLUX__V_OP, FLUX__OP_RSQRT, true)) return false;
    const int sum = x[by].a;
    if (!flux__is_line(k, sum, FLUX__V_OP, FLUX__OP_ADD, true) ||
        !flux__is_line(k, x[sum].a, FLUX__V_OP, FLUX__OP_DIV, true)) return false;
    a->by[1] = x[x[sum].a].b, a->by[2] = x[sum].b;
    return x[x[sum].a].a == a->second && flux__is_const(k, a->by[1]) && flux__is_const(k, a->by[2]);
}

/* Whether a tensor, or a line other than `user` and `or_user`, needs value v. */
static bool flux__is_kept(const flux__kernel *k, int v, int user, int or_user) {
    if (k->value[v].out >= 0) return true;
    for (int i = 0; i < k->nvalue; i++)
        if (i != user && i != or_user && (k->value[i].a == v || k->value[i].b == v ||
                                          k->value[i].c == v)) return true;
    return false;
}

/* Finds reductions of bools, and lets them count the bools as these are: floats of 0 and 1 from
   a comparison, or bytes from memory. The lines that converted the bools are dropped if nothing
   else needs them. */
static void flux__find_truths(flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++) {
        flux__value *v = &k->value[i];
        if (v->kind != FLUX__V_REDUCE || v->cls == FLUX__F32C) continue;
        int x = v->a;
        bool alone = flux__only_user(k, x) == i;
        for (int user; k->value[x].kind == FLUX__V_CONVERT;
             alone = alone && flux__only_user(k, x) == user)
            user = x, x = k->value[x].a;
        flux__value *from = &k->value[x];
        if (from->dtype != FLUX_BOOL || from->outer ||
            !(from->kind == FLUX__V_LOAD ? alone : from->cls == FLUX__F32C)) continue;
        c->truth[i] = true, c->truth[x] = from->kind == FLUX__V_LOAD, from->cls = FLUX__F32C;
        for (int at = v->a, next = v->a = (int16_t)x; at != x && !flux__is_kept(k, at, -1, -1);
             at = next)
            next = k->value[at].a, k->value[at].a = -1, k->value[at].phase = -1;
    }
}

/* Marks outer values that only the lines of a pattern need: they are computed with it. */
static void flux__find_made(const flux__kernel *k, flux__cpu *c) {
    const flux__value *x = k->value;
    for (int i = k->nvalue - 1; i >= 0; i--) {
        bool used = false, made = x[i].outer && x[i].kind == FLUX__V_OP && x[i].out < 0;
        for (int j = i + 1; j < k->nvalue && made; j++)
            if (x[j].a == i || x[j].b == i || x[j].c == i) used = true, made = c->made[j];
        if (used && made) c->made[i] = true;
    }
}

/* Finds softmax-like rows, and chooses the blocks for them: rows must be whole within a block,
   and need only registers of a row. False: there are none. */
static bool flux__find_rows(const flux__kernel *k, flux__cpu *c) {
    flux__rows *a = &c->rows;
    int64_t points = 1, inner = 1;
    int second = 0, y = 0;
    while (second < k->nvalue && !flux__rows_at(k, second, a)) second++;
    if (second == k->nvalue || k->kind != FLUX__K_FUSED) return false;
    while (y < k->nvalue && !flux__ends_rows(k, y, a)) y++;
    if (y < k->nvalue) c->made[a->y = y] = true;
    c->made[a->d] = c->made[a->e] = c->made[second] = true;
    a->keep_d = flux__is_kept(k, a->d, a->e, a->y),
        a->keep_e = flux__is_kept(k, a->e, second, a->y);
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        points *= k->full[d], inner *= k->reduced >> d & 1 ? k->full[d] : 1;
    c->tile = (points < FLUX__LARGE ? 4 : 16) * FLUX__TILE;
    if (inner > c->tile && inner <= FLUX__LONG_ROW) c->tile = (int)(inner + 15) / 16 * 16;
    flux__choose_blocks(k, c);
    if (c->inner_first && c->resident && c->inner >= 4) {
        flux__find_made(k, c);
        return true;
    }
    memset(c->made, 0, (size_t)k->nvalue * sizeof *c->made);
    c->tile = FLUX__TILE;
    return false;
}

/* How many values at all points need a register, because they are neither read nor stored in
   place. */
static int flux__in_registers(const flux__kernel *k) {
    int n = 0;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->outer || v->kind == FLUX__V_NUMBER || flux__reducing(v)) continue;
        n += v->kind == FLUX__V_LOAD ? k->operand[v->operand].dtype != flux__own_dtype[v->cls] :
            v->out < 0;
    }
    return n;
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
            ph->nlate = flux__not_made(c, ph->late, ph->nlate);
    }
}

/* Lists the values that a line uses: [0] itself, [1 ... 4] its operands, from [5] on what it
   makes besides; -1: none. Returns the length of the list. */
static int flux__used(const flux__kernel *k, const flux__cpu *c, int line, int *use) {
    const flux__value *v = &k->value[line];
    const flux__adam *a = &c->adam;
    const flux__rows *r = &c->rows;
    use[0] = line, use[1] = v->a, use[2] = v->b, use[3] = v->c, use[4] = -1;
    if (line == r->first) use[5] = r->keep_d ? r->d : -1, use[6] = r->e, use[7] = r->y;
    else if (line == a->last)
        use[1] = a->g, use[2] = a->m, use[3] = a->v, use[4] = a->w, use[5] = a->new_m,
            use[6] = a->new_v, use[7] = -1;
    else return 4;
    return 8;
}

/* Whether a value needs a register: a number does not. */
static bool flux__needs_register(const flux__value *v) { return v->kind != FLUX__V_NUMBER; }

/* Whether a load is the same from block to block and can be hoisted: a bias of a matrix with
   short columns, or what all rows have in common. */
static bool flux__is_again(const flux__kernel *k, const flux__cpu *c, int i) {
    const flux__axes *out = &c->outer_axes[c->axes_at[i]];
    if (k->value[i].kind != FLUX__V_LOAD || k->value[i].outer ||
        (c->inner > 1 && !(c->inner_first && c->resident))) return false;
    return c->inner_axes[c->axes_at[i]].nd == 1 &&
           (out->nd == 1 ? out->step[0] == 0 :
            out->nd == 2 && out->step[1] == 0 && out->dim[0] <= c->tile);
}

/* Gives values their registers, by last use. In a block of whole rows a value lives from its
   own line to its last use in any phase; otherwise it lives within a phase. Outer values keep
   theirs. last, taken: scratch arrays, for values and registers. */
static void flux__assign_registers(flux__kernel *k, flux__cpu *c, int *last, bool *taken) {
    int clock = 0;
    memset(last, -1, (size_t)k->nvalue * sizeof(int));
    for (int p = 0; p < c->nphase; p++)
        for (int j = 0; j < c->phase[p].n; j++, clock++)
            for (int use[8], u = flux__used(k, c, c->phase[p].line[j], use) - 1; u >= 0; u--)
                if (use[u] >= 0) last[use[u]] = clock;
    for (int i = 0; i < k->nvalue; i++) c->reg[i] = -1, c->expand_reg[i] = -1;
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].outer && flux__needs_register(&k->value[i])) {
            c->reg[i] = c->nreg++;
            if (c->expand[i]) c->expand_reg[i] = c->nreg++;
        } else if ((c->again[i] = flux__is_again(k, c, i))) c->reg[i] = c->nreg++;
    int fixed = c->nreg, top = c->nreg;
    memset(taken, 0, (size_t)k->nvalue * 3 + 3);
    clock = 0;
    for (int p = 0; p < c->nphase; p++)
        for (int j = 0; j < c->phase[p].n; j++, clock++) {
            int use[8], n = flux__used(k, c, c->phase[p].line[j], use);
            for (int u = 0; u < n; u++) {
                if (use[u] < 0 || (u > 0 && u < 5)) continue;
                const flux__value *v = &k->value[use[u]];
                if (v->outer || !flux__needs_register(v) || c->reg[use[u]] >= 0) continue;
                int r = fixed;            /* a register for what the line makes */
                while (taken[r]) r++;
                taken[r] = true;
                c->reg[use[u]] = r;
                if (r >= top) top = r + 1;
            }
            for (int u = 0; u < n; u++)
                if (use[u] >= 0 && !k->value[use[u]].outer && last[use[u]] == clock &&
                    c->reg[use[u]] >= 0)
                    taken[c->reg[use[u]]] = false;
        }
    c->nreg = top;
}

/* Finds which values are rounded only to be stored, and which outer values are expanded. */
static void flux__find_roles(const flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        int use[3];
        use[0] = v->a, use[1] = v->b, use[2] = v->c;
        /* not if it is stored in another dtype than it is rounded to, after a cast */
        c->parting[i] = v->kind == FLUX__V_ROUND && v->out >= 0 && v->op == v->dtype;
        for (int j = 0; j < 3; j++) {
            if (use[j] < 0) continue;
            c->parting[use[j]] = false;
            if ((!v->outer || flux__reducing(v)) && !c->made[i] && k->value[use[j]].outer &&
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
        if (v->cls == FLUX__F64C || v->cls == FLUX__I64C || v->kind == FLUX__V_IOTA ||
            v->kind == FLUX__V_RANDOM) c->width = 8;
        if (v->kind == FLUX__V_OP) c->loop[i] = flux__loop_for(v->cls, v->op);
        if (!flux__is_source(v) && v->out < 0) continue;
        flux__value_strides(k, v, step);
        flux__merge_axes(&c->outer_axes[c->axes_at[i]], k->full, step, k->reduced, false);
        flux__merge_axes(&c->inner_axes[c->axes_at[i]], k->full, step, k->reduced, true);
    }
}

/* The work of one point, in additions. */
static int64_t flux__point_cost(const flux__kernel *k) {
    int64_t cost = 0;
    for (int i = 0; i < k->nvalue; i++) {
        /* a function such as exp takes about five times as long as an addition */
        int op = k->value[i].op;
        cost += op < FLUX__ELEMENTWISE_COUNT && flux__arity[op] == 1 && flux__rules[op] == 'F'
            ? 5 : 1;
    }
    return cost;
}

/* A prepared kernel with the arrays for its values, in one piece of the plan's memory. NULL:
   out of memory. */
static flux__cpu *flux__cpu_new(flux__plan *plan, const flux__kernel *k) {
    const size_t n = (size_t)k->nvalue, at = (sizeof(flux__cpu) + 15) & ~(size_t)15;
    size_t moved = 1;  /* number of values that have maps; the others share the last one */
    for (size_t i = 0; i < n; i++) moved += flux__is_source(&k->value[i]) || k->value[i].out >= 0;
    const size_t all = at + moved * 2 * sizeof(flux__axes) +
        n * (sizeof(flux__loop) + 4 * sizeof(int) + 5 * sizeof(bool));
    flux__cpu *c = (flux__cpu *)flux__plan_take(plan, all);
    if (!c) return NULL;
    memset(c, 0, all);
    c->outer_axes = (flux__axes *)(void *)((char *)c + at);
    c->inner_axes = c->outer_axes + moved;
    c->loop = (flux__loop *)(void *)(c->inner_axes + moved);
    c->reg = (int *)(void *)(c->loop + n);
    c->expand_reg = c->reg + n;
    c->reduce_at = c->expand_reg + n;
    c->axes_at = c->reduce_at + n;
    c->expand = (bool *)(void *)(c->axes_at + n);
    c->again = c->expand + n;
    c->parting = c->again + n;
    c->made = c->parting + n;
    c->truth = c->made + n;
    for (size_t i = 0, next = 0; i < n; i++)
        c->axes_at[i] =
            (int)(flux__is_source(&k->value[i]) || k->value[i].out >= 0 ? next++ : moved - 1);
    return c;
}

/* How many times the usual size a register is. Larger blocks cost less per point where few
   registers are needed or rows are short, and transpose longer runs where loads transpose. */
static int flux__tile_times(const flux__kernel *k, const flux__cpu *c, bool large) {
    if (c->across) return c->inner_first ? 16 : 4;
    if (c->inner_first) return !large && flux__in_registers(k) == 0 ? 4 : 1;
    if (large) return c->outer < 256 || c->resident ? 2 : 1;
    return c->resident || flux__in_registers(k) < 2 ? 4 : 1;
}

/* Prepares a kernel for the CPU: patterns, blocks, phases, loops and registers. Kernels of
   whole tensors need none of this. False: out of memory, or an error is recorded. */
static bool flux__prepare(flux__plan *plan, flux__kernel *k) {
    if (k->kind > FLUX__K_MATMUL) return true;
    flux__cpu *c = flux__cpu_new(plan, k);
    size_t n = (size_t)k->nvalue + 1;
    if (!c) return false;
    k->ready = c;
    c->width = 4;
    c->tile = FLUX__TILE;
    flux__find_truths(k, c);
    if (!flux__find_rows(k, c)) {
        c->rows.first = -1;
        flux__choose_blocks(k, c);
        const int times = !k->reduced ? 1 :
            flux__tile_times(k, c, c->outer * c->inner >= FLUX__LARGE);
        if (times > 1) {
            c->tile = times * FLUX__TILE;
            flux__choose_blocks(k, c);
        }
    }
    int *last = (int *)flux__zalloc(n * sizeof(int));
    bool *taken = (bool *)flux__zalloc(n * 3 + 8);
    bool ok = last && taken && flux__split_phases(plan, k, c);
    if (ok) {
        flux__bind_loops(k, c);
        flux__find_adam(k, c);
        flux__find_roles(k, c);
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

#endif /* FLUX__CPU_ROWS_H */
