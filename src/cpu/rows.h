#ifndef FLUX__CPU_ROWS_H
#define FLUX__CPU_ROWS_H
#include "../base/platform.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"
#include "reductions.h"
#include "backend.h"
#include "transfers.h"
#include "blocks.h"

/* ---------------------------------------------------------------------- cpu/rows.h
   Lines of a kernel's program that run as one: reductions of bools, which are
   counted; Adam's step; and rows of softmax, log-softmax or normalisation. Each
   has a function that finds it (flux__match_...), one that says what it uses,
   and one that runs it for a block; cpu/ready.h has the table of them.

   Invariant: lines run as one give the same bits as the lines alone; a pattern
   is taken only if its intermediate values are needed nowhere else, or are
   kept. */

FLUX__BEGIN_COLD

/* Whether value v is this operation (kind and op) in f32, outer or not. */
static bool flux__is_line(const flux__kernel *k, int v, int kind, int op, bool outer) {
    const flux__value *x = &k->value[v];
    return x->kind == kind && x->op == op && x->ctype == FLUX__F32C && x->dtype == FLUX_F32 &&
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
           x->ctype == FLUX__F32C && !x->outer;
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

/* Whether a tensor, or a line other than `user` and `or_user`, needs value v. */
static bool flux__is_kept(const flux__kernel *k, int v, int user, int or_user) {
    if (k->value[v].out >= 0) return true;
    for (int i = 0; i < k->nvalue; i++)
        if (i != user && i != or_user && (k->value[i].a == v || k->value[i].b == v ||
                                          k->value[i].c == v)) return true;
    return false;
}

/* ---------------- reductions of bools */

/* Whether line i reduces bools: floats of 0 and 1 from a comparison, or bytes from memory. They
   are counted as they are, and the lines that converted them are dropped if nothing else needs
   them. */
static bool flux__match_count(flux__kernel *k, flux__cpu *c, int i) {
    flux__value *v = &k->value[i];
    if (v->kind != FLUX__V_REDUCE || v->ctype == FLUX__F32C) return false;
    int x = v->a;
    bool alone = flux__only_user(k, x) == i;
    for (int user; k->value[x].kind == FLUX__V_CONVERT;
         alone = alone && flux__only_user(k, x) == user)
        user = x, x = k->value[x].a;
    flux__value *from = &k->value[x];
    if (from->dtype != FLUX_BOOL || from->outer ||
        !(from->kind == FLUX__V_LOAD ? alone : from->ctype == FLUX__F32C)) return false;
    c->truth[i] = true, c->truth[x] = from->kind == FLUX__V_LOAD, from->ctype = FLUX__F32C;
    for (int at = v->a, next = v->a = (int16_t)x; at != x && !flux__is_kept(k, at, -1, -1);
         at = next)
        next = k->value[at].a, k->value[at].a = -1, k->value[at].phase = -1;
    return true;
}

/* Runs the line of such a reduction: the count says whether any is true, or all are. The operand
   is floats of 0 and 1, or bytes if the block is read in place. */
static void flux__do_count(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    const int64_t outer = b->w * b->segments;
    const char *x = flux__reduced_block(b, v);
    char *acc = flux__reg(b, b->c->reg[i]);
    int32_t *count = (int32_t *)(void *)flux__reg(b, b->c->nreg);
    char *sum = flux__reg(b, b->c->nreg + 1 + b->c->reduce_at[i]);
    if (b->c->truth[v->a] && x != flux__reg(b, b->c->reg[v->a]))
        flux__count_bytes(count, (const uint8_t *)x, b->rt, outer);
    else {
        memset(sum, 0, (size_t)outer * sizeof(float));
        flux__reduce_block(b, FLUX__F32C, FLUX__RED_SUM, sum, x);
        flux__count_floats(count, (const float *)(void *)sum, outer);
    }
    if (v->op != FLUX__RED_SUM)
        flux__count_reaches(count, v->op == FLUX__RED_MAX ? 1 : (int32_t)b->rt, outer);
    flux__convert(v->ctype, b->fresh ? acc : sum, FLUX__I32C, count, outer);
    if (!b->fresh) flux__accumulate(v->ctype, v->op, acc, sum, outer);
    b->at[i] = acc;
    b->walk[i] = 1;
}

/* ---------------- Adam's step */

/* If only an Adam step needs its gradient, and that is an operand times a number, as the sum of
   all ranks' gradients is: lets the step multiply. */
static bool flux__adam_scale(const flux__kernel *k, flux__adam *a) {
    const flux__value *x = k->value, *g = &x[a->g];
    const int by = flux__is_const(k, g->b) ? g->b : g->a, from = by == g->b ? g->a : g->b;
    if (flux__is_kept(k, a->g, a->new_m, x[a->new_v].b) || !flux__is_const(k, by) ||
        !flux__is_walk(k, from) || x[from].phase != g->phase) return false;
    a->by[4] = by, a->g = from;
    return true;
}

/* If the result d of an Adam step is used by fma(d, scale, w) alone, or by AdamW's fma(fma(w,
   lambda, d eta), scale, w), these lines are part of the step. */
static void flux__adam_ends(const flux__kernel *k, int div, flux__adam *a) {
    const flux__value *x = k->value;
    int d = div, fma = flux__only_user(k, div), by = -1, decay = -1;
    if (fma >= 0 && x[div].out < 0 && flux__is_f32(k, fma, FLUX__OP_MUL) && x[fma].out < 0) {
        by = x[fma].a == div ? x[fma].b : x[fma].a, decay = flux__only_user(k, fma);
        if (decay < 0 || !flux__is_f32(k, decay, FLUX__OP_FMA) || x[decay].c != fma ||
            !flux__is_const(k, by) || !flux__is_const(k, x[decay].b)) return;
        d = decay, fma = flux__only_user(k, decay);
    }
    if (fma < 0 || x[d].out >= 0 || !flux__is_f32(k, fma, FLUX__OP_FMA) || x[fma].a != d ||
        !flux__is_const(k, x[fma].b) || !flux__is_walk(k, x[fma].c) ||
        x[fma].phase != x[div].phase || (decay >= 0 && x[decay].a != x[fma].c)) return;
    a->w = x[fma].c, a->by[3] = x[fma].b, a->last = fma;
    if (decay >= 0) a->by[5] = by, a->by[6] = x[decay].b;
}

/* Whether the division `div` is that of an Adam step, m' / (sqrt(v') + epsilon) with m' =
   lerp(m, g) and v' = lerp(v, square(g)), perhaps followed by the weight's update; if so, fills
   in *a. */
static bool flux__adam_at(const flux__kernel *k, int div, flux__adam *a) {
    const flux__value *x = k->value;
    int sum, root, square;
    if (!flux__is_f32(k, div, FLUX__OP_DIV)) return false;
    a->new_m = x[div].a, sum = x[div].b, a->last = div;
    a->w = a->by[4] = a->by[5] = a->by[6] = -1;
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
    flux__adam_ends(k, div, a);
    return flux__is_const(k, a->by[0]) && flux__is_const(k, a->by[1]) && flux__is_walk(k, a->g) &&
           flux__is_walk(k, a->m) && flux__is_walk(k, a->v) && x[a->m].phase == x[div].phase &&
           x[a->v].phase == x[div].phase && x[square].phase == x[div].phase;
}

/* The division of the Adam step that may end in this line. */
static int flux__adam_division(const flux__kernel *k, int line) {
    const flux__value *x = k->value;
    if (flux__is_f32(k, line, FLUX__OP_FMA)) line = x[line].a;
    if (!flux__is_f32(k, line, FLUX__OP_FMA)) return line;
    line = x[line].c;                             /* of AdamW */
    if (!flux__is_f32(k, line, FLUX__OP_MUL)) return line;
    return flux__is_const(k, x[line].a) ? x[line].b : x[line].a;
}

/* Whether a step of Adam ends in this line. A kernel has one at most. */
static bool flux__match_adam(flux__kernel *k, flux__cpu *c, int line) {
    const flux__value *x = k->value;
    const int div = flux__adam_division(k, line);
    flux__adam a;
    if (c->adam.last >= 0 || !flux__adam_at(k, div, &a) || a.last != line ||
        (x[div].phase > 0 && !c->resident)) return false;
    const int g = a.g;
    if (flux__is_f32(k, g, FLUX__OP_MUL)) c->made[g] = flux__adam_scale(k, &a);
    c->adam = a;
    if (k->kind == FLUX__K_FUSED && !k->reduced) {      /* it reads and writes in place mostly */
        c->tile = 8 * FLUX__TILE;
        flux__choose_blocks(k, c);
    }
    c->made[div] = true;
    if (a.by[6] >= 0) c->made[x[a.last].a] = c->made[x[x[a.last].a].c] = true;
    c->made[a.new_m] = c->made[a.new_v] = c->made[x[a.new_v].b] = c->made[x[div].b] =
        c->made[x[x[div].b].a] = true;
    c->made[a.last] = false;
    return true;
}
static void flux__adam_uses(const flux__kernel *k, const flux__cpu *c, int line, flux__uses *u) {
    const flux__adam *a = &c->adam;
    (void)k, (void)line;
    u->in[0] = a->g, u->in[1] = a->m, u->in[2] = a->v, u->in[3] = a->w;
    u->made[0] = a->new_m, u->made[1] = a->new_v;
}

/* Runs all lines of an Adam step at once, for a block. */
static void flux__do_adam(flux__block_run *b, int line) {
    const flux__adam *a = &b->c->adam;
    const int made[3] = { a->new_m, a->new_v, a->last };
    const float *in[4];
    float by[FLUX__ADAM_NUMBERS] = { 0, 0, 0, 0, 1, 0, 0 }, *out[3];
    (void)line;
    in[0] = (const float *)b->at[a->g], in[1] = (const float *)b->at[a->m],
        in[2] = (const float *)b->at[a->v];
    in[3] = a->w < 0 ? NULL : (const float *)b->at[a->w];
    for (int i = 0; i < FLUX__ADAM_NUMBERS; i++)
        if (a->by[i] >= 0) by[i] = *(const float *)b->at[a->by[i]];
    for (int i = 0; i < 3; i++) {
        b->at[made[i]] = out[i] = (float *)flux__result_at(b, made[i]);
        b->walk[made[i]] = 1;
    }
    flux__adam_run(flux__block_count(b, &b->k->value[a->last]), out[0], out[1], out[2], in, by,
                   a->by[6] >= 0);
    for (int i = 0; i < 3; i++)  /* a result that lies in a register still has to be stored */
        if (b->k->value[made[i]].out >= 0 && (char *)out[i] == flux__reg(b, b->c->reg[made[i]]))
            flux__do_store(b, made[i]);
}

/* ---------------- rows of softmax and normalisation */

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

/* Whether value v is a simple operation for another one, with which it may run (cpu/chains.h). */
static bool flux__goes_on(const flux__kernel *k, int v) {
    if (!flux__is_f32(k, v, k->value[v].op) || !flux__chained[k->value[v].op]) return false;
    const int user = k->value[v].out >= 0 ? -1 : flux__only_user(k, v);
    return user >= 0 && flux__is_f32(k, user, k->value[user].op) &&
           flux__chained[k->value[user].op];
}

/* How many values at all points need a register, because they are neither read nor stored in
   place, and do not stay in the processor's registers either. */
static int flux__in_registers(const flux__kernel *k) {
    int n = 0;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->outer || v->kind == FLUX__V_NUMBER || flux__reducing(v)) continue;
        n += v->kind == FLUX__V_LOAD ? k->operand[v->operand].dtype != flux__own_dtype[v->ctype] :
            v->out < 0 && !flux__goes_on(k, i);
    }
    return n;
}

/* How many times the usual size a register is. Larger blocks cost less per point where few
   registers are needed, rows are short or each has numbers of its own to make, as between two
   passes over it, and transpose longer runs where loads transpose. */
static int flux__tile_times(const flux__kernel *k, const flux__cpu *c, bool large) {
    if (!k->reduced) return flux__in_registers(k) < 2 ? 4 : 1;
    if (c->across) return c->inner_first ? 16 : 4;
    if (c->inner_first && flux__in_registers(k) == 0) return !large || c->inner <= 256 ? 4 : 1;
    if (c->inner_first) return !large && !flux__one_pass(k) ? 4 : 1;
    if (large) return c->outer < 256 || c->resident ? 2 : 1;
    return c->resident || flux__in_registers(k) < 2 ? 4 : 1;
}

/* Whether a kernel that goes over long rows several times reads its operands and computes its
   values again each time, block by block. It does if no value costs more than its load, as
   functions, random numbers and conversions from a half format do, and the rows lie in several
   runs of a block or more, which are used in place, or are too long for the second-level cache to
   hold several. Else rows are whole and nothing is computed twice, as in the gradient of a norm of
   small images; for that their registers may leave the first-level cache. */
static bool flux__reads_again(const flux__kernel *k, const flux__cpu *c) {
    int64_t run = 1;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->outer || v->kind == FLUX__V_NUMBER || flux__reducing(v)) continue;
        if (v->kind == FLUX__V_LOAD
            ? k->operand[v->operand].dtype != flux__own_dtype[v->ctype]
            : v->kind != FLUX__V_OP || flux__is_function(v->op)) return false;
    }
    for (int d = 0; d < FLUX_MAX_DIMS && (k->reduced >> d & 1); d++) run *= k->full[d];
    return run >= c->order.chunk && (run < c->inner || run > FLUX__ROW_IN_CACHE);
}

/* Chooses the blocks of a kernel without such rows. */
static void flux__usual_blocks(const flux__kernel *k, flux__cpu *c) {
    c->tile = FLUX__TILE;
    flux__choose_blocks(k, c);
    const int times = flux__tile_times(k, c, c->outer * c->inner >= FLUX__LARGE);
    c->tile = times * FLUX__TILE;
    if (c->inner_first && !c->across && c->order.parts == 1 && !flux__one_pass(k) &&
        c->inner > c->tile && c->inner <= FLUX__LONG_ROW && !flux__reads_again(k, c))
        c->tile = (int)(c->inner + 15) / 16 * 16;
    if (c->tile > FLUX__TILE) flux__choose_blocks(k, c);
}

/* Whether softmax-like rows have this line as their first reduction. Blocks are chosen for them:
   rows must be whole within a block, and need only registers of a row. A kernel has one such
   pattern at most. */
static bool flux__match_rows(flux__kernel *k, flux__cpu *c, int line) {
    flux__rows rows, *a = &rows;
    int64_t points = 1, inner = 1;
    int second = line + 1, y = 0;
    if (k->kind != FLUX__K_FUSED || c->rows.first >= 0 || k->value[line].kind != FLUX__V_REDUCE)
        return false;
    while (second < k->nvalue && !(flux__rows_at(k, second, a) && a->first == line)) second++;
    if (second == k->nvalue) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        points *= k->full[d], inner *= k->reduced >> d & 1 ? k->full[d] : 1;
    c->tile = (points < FLUX__LARGE ? 4 : 16) * FLUX__TILE;
    if (inner > c->tile && inner <= FLUX__LONG_ROW) c->tile = (int)(inner + 15) / 16 * 16;
    flux__choose_blocks(k, c);
    if (!c->inner_first || !c->resident || c->inner < 4) {
        flux__usual_blocks(k, c);
        return false;
    }
    while (y < k->nvalue && !flux__ends_rows(k, y, a)) y++;
    if (y < k->nvalue) c->made[a->y = y] = true;
    c->made[a->d] = c->made[a->e] = c->made[second] = true;
    a->keep_d = flux__is_kept(k, a->d, a->e, a->y),
        a->keep_e = flux__is_kept(k, a->e, second, a->y);
    c->rows = rows;
    flux__find_made(k, c);
    return true;
}
static void flux__rows_uses(const flux__kernel *k, const flux__cpu *c, int line, flux__uses *u) {
    const flux__rows *r = &c->rows;
    (void)k, (void)line;
    u->made[0] = r->keep_d ? r->d : -1, u->made[1] = r->e, u->made[2] = r->y;
}

/* Where the rows of value i go: if they are kept, to the tensor or the value's register for the
   whole block, otherwise to the register, of which only some rows are used. */
static float *flux__part_at(flux__block_run *b, int i, bool keep) {
    float *to = (float *)(keep ? flux__result_at(b, i) : (void *)flux__reg(b, b->c->reg[i]));
    b->at[i] = to;
    b->walk[i] = 1;
    return to;
}

/* Runs all lines of softmax-like rows at once, for a block of whole rows. */
static void flux__do_rows(flux__block_run *b, int line) {
    const flux__rows *a = &b->c->rows;
    flux__rows_run r;
    const int stored[3] = { a->d, a->e, a->y };
    (void)line;
    memset(&r, 0, sizeof r);
    r.order = &b->c->order, r.n = b->rt, r.capacity = b->c->tile, r.count = b->w,
        r.x = (const float *)b->at[a->x], r.squares = a->squares;
    r.last = a->y < 0 ? -1 : b->k->value[a->y].op;
    for (int i = 0; i < 3 && a->squares && (i == 0 || a->y >= 0); i++)
        r.by[i] = *(const float *)b->at[a->by[i]];
    b->at[a->first] = r.first = (float *)(void *)flux__reg(b, b->c->reg[a->first]);
    b->at[a->second] = r.second = (float *)(void *)flux__reg(b, b->c->reg[a->second]);
    b->walk[a->first] = b->walk[a->second] = 1;
    r.keep_e = a->keep_e, r.e = flux__part_at(b, a->e, a->keep_e);
    if (a->keep_d) r.d = flux__part_at(b, a->d, true);
    if (a->y >= 0) r.y = flux__part_at(b, a->y, true);
    flux__run_rows(flux__section_now(), &r);
    for (int i = 0; i < 3; i++)
        if (stored[i] >= 0 && b->k->value[stored[i]].out >= 0) flux__do_store(b, stored[i]);
}

FLUX__END_COLD

#endif /* FLUX__CPU_ROWS_H */
