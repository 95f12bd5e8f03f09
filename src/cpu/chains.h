#ifndef FLUX__CPU_CHAINS_H
#define FLUX__CPU_CHAINS_H
#include "../base/platform.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"
#include "gemm_pack.h"
#include "backend.h"
#include "blocks.h"
#include "rows.h"

/* ---------------------------------------------------------------------- cpu/chains.h
   The lines behind a product, if they are one chain of simple operations, as a
   norm in test mode with a residual addition and relu: each result goes to the
   next line alone, and the other operand is a tensor or a number. They run
   column by column in vector registers, from a finished block of the product to
   the tensor. A chain without a step stores a product in a half format.

   Invariant: an element's result is that of the lines alone, bit by bit. Rows of
   a column are taken as far as each operand goes on evenly, and columns as far
   as they follow each other so.

   Rejected: line by line over pieces in the first-level cache, as other kernels
   run (a norm behind a 1 x 1 convolution took a third as long as its product). */

FLUX__BEGIN_LEAN

/* The fewest rows of a product whose operations run as a chain. Shorter columns are run together,
   as whole vectors: those of 16 and 24 rows took 1.2 to 1.6 times as long by a chain, of 64 less. A
   product that is only stored in a half format may have any number of rows. */
enum { FLUX__CHAIN_ROWS = 48 };

/* Whether value v is a chain's other operand: a number, or a tensor of f32 that has, down a column
   of the product, neighbours or one number. */
static bool flux__chain_takes(const flux__kernel *k, int v) {
    const flux__value *x = &k->value[v];
    flux__axes axes;
    if (x->kind == FLUX__V_NUMBER) return x->ctype == FLUX__F32C;
    if (x->kind != FLUX__V_LOAD || x->ctype != FLUX__F32C || x->out >= 0 ||
        k->operand[x->operand].dtype != FLUX_F32) return false;
    flux__merge_axes(&axes, k->full, k->operand[x->operand].stride, 0, false);
    return axes.step[0] == 0 || axes.step[0] == 1;
}

/* Whether line i may be a chain's next step, value `top` being its result so far; if so, adds
   it. */
static bool flux__chain_add(const flux__kernel *k, flux__chain *c, int i, int top) {
    const flux__value *v = &k->value[i];
    const bool two = v->b >= 0, first = two && v->a != top;
    const int other = !two ? -1 : first ? v->a : v->b;
    if (!flux__is_f32(k, i, v->op) || !flux__chained[v->op] || v->c >= 0 ||
        c->steps == FLUX__CHAIN_STEPS || (first ? v->b : v->a) != top || other == top ||
        (two && !flux__chain_takes(k, other))) return false;
    c->step[c->steps].op = v->op, c->step[c->steps].other = other;
    c->step[c->steps++].first = first;
    return true;
}

/* Whether all lines of a product are a chain that ends in this one, which alone is stored. */
static bool flux__match_chain(flux__kernel *k, flux__cpu *c, int line) {
    const flux__value *x = k->value, *end = &x[line];
    const bool rounds = end->kind == FLUX__V_ROUND && end->op == end->dtype;
    flux__chain chain = { line, 0, { { 0, 0, false } } };
    int top = 0;
    if (k->kind != FLUX__K_MATMUL || line == 0 || line != k->nvalue - 1 || end->out < 0 ||
        x[0].kind != FLUX__V_PRODUCT || x[0].ctype != FLUX__F32C || x[0].out >= 0) return false;
    for (int i = 1; i < line + !rounds; i++) {
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

/* ---- the run */

/* Finds the other operand of a step from a point on, where columns are m points apart, and lowers
   the run's rows and columns to those for which it goes on evenly. */
static void flux__chain_place(const flux__block_run *b, int step, int64_t point, int64_t m,
                              flux__chain_run *r) {
    flux__chain_step *s = &r->step[step];
    const int i = b->c->chain.step[step].other;
    const flux__value *v = &b->k->value[i < 0 ? 0 : i];
    s->op = b->c->chain.step[step].op, s->first = b->c->chain.step[step].first;
    s->at = i < 0 ? r->x : (const float *)b->at[i], s->along = false, s->next = 0;
    if (i < 0 || v->kind == FLUX__V_NUMBER) return;
    const flux__axes *x = &b->c->outer_axes[b->c->axes_at[i]];
    const int64_t run = x->dim[0], left = run - point % run;
    s->at = (const float *)b->run->ptr[b->k->operand[v->operand].src] +
            flux__value_offset(b->k, v) + flux__axes_at(x, point);
    s->along = x->step[0] == 1;
    s->next = x->nd > 1 && run == m ? x->step[1] : m * x->step[0];
    if (x->nd == 1) return;
    r->rows = flux__gemm_min(r->rows, left);
    if (run != m) r->columns = flux__gemm_min(r->columns, run % m ? 1 : (left + m - 1) / m);
    else if (x->nd > 2)
        r->columns = flux__gemm_min(r->columns, x->dim[1] - point / run % x->dim[1]);
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

/* Runs the steps for rows and columns in which all operands go on evenly. */
static void flux__chain_even(flux__chain_run *r) {
    flux__chain_run one = *r;
    if (r->rows >= 4) {
        flux__section_for(r->rows)->chain(r);
        return;
    }
    for (int64_t j = 0; j < r->columns; j++) {
        one = *r, one.columns = 1, one.x += j * r->x_next, one.y += j * r->y_next;
        for (int s = 0; s < r->steps; s++) one.step[s].at += j * r->step[s].next;
        flux__chain_few(&one);
    }
}

/* Stores rows of some columns in a half format: the chain's results, which go by way of `part`, or
   without a step the product. to: the tensor's element of the first. */
static void flux__chain_halves(flux__chain_run *r, int dtype, char *to, int64_t next) {
    float part[512];
    for (int64_t j = 0; j < r->columns; j++, to += 2 * next)
        for (int64_t i = 0, n; i < r->rows; i += n) {
            flux__chain_run some = *r;
            n = flux__gemm_min(r->rows - i, r->steps ? 512 : r->rows);
            some.rows = n, some.columns = 1, some.x += j * r->x_next + i, some.y = part;
            for (int s = 0; s < r->steps; s++)
                some.step[s].at += j * r->step[s].next + (r->step[s].along ? i : 0);
            if (r->steps) flux__chain_even(&some);
            flux__store(dtype, to + 2 * i, 1, FLUX__F32C, r->steps ? part : some.x, n);
        }
}

/* Runs a product's chain for the present block. */
static void flux__do_chain(flux__block_run *b, int line) {
    const flux__value *v = &b->k->value[line];
    const int64_t rows = b->product_rows, all = b->w * b->segments / rows,
                  m = b->segments > 1 ? b->segment_step : rows;
    char *out = (char *)b->run->ptr[v->out];
    flux__chain_run r;
    r.steps = b->c->chain.steps, r.x_next = b->product_ld, r.y_next = m;
    for (int64_t j = 0; j < all; j += r.columns)
        for (int64_t i = 0; i < rows; i += r.rows) {
            const int64_t point = b->o0 + j * m + i;
            r.x = (const float *)(const void *)b->product + j * b->product_ld + i;
            r.y = (float *)(void *)out + point;
            r.rows = rows - i, r.columns = i ? 1 : all - j;
            for (int s = 0; s < r.steps; s++) flux__chain_place(b, s, point, m, &r);
            if (r.rows < rows) r.columns = 1;
            if (v->kind == FLUX__V_ROUND) flux__chain_halves(&r, v->dtype, out + 2 * point, m);
            else flux__chain_even(&r);
        }
}

FLUX__END_LEAN

#endif /* FLUX__CPU_CHAINS_H */
