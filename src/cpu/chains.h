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
#include "rows.h"
#include "transfers.h"

/* ---------------------------------------------------------------------- cpu/chains.h
   The lines behind a product, if they are one chain of simple operations, as a
   norm in test mode with a residual addition and relu: each result goes to the
   next line alone, and the other operand is a tensor or a number. They run
   column by column in vector registers, from a finished block of the product to
   the tensor. A chain without a step stores a product in a half format.

   Invariant: an element's result is that of the lines alone, bit by bit.

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
        c->steps == FLUX__CHAIN_STEPS || (first ? v->b : v->a) != top ||
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

/* A step for the present block. Its other operand has an even step down a column and one from each
   column of a matrix to the next, because of dims that are joined to columns each continues the one
   before in it (flux__product_fits). */
static flux__chain_step flux__chain_place(const flux__block_run *b, int step) {
    const int i = b->c->chain.step[step].other;
    const int64_t *mn = b->k->mnk;
    const flux__value *v = &b->k->value[i < 0 ? 0 : i];
    const void *at = i < 0 ? (const void *)b->product : b->at[i];
    flux__chain_step s = { b->c->chain.step[step].op, b->c->chain.step[step].first, false,
                           (const float *)at, 0 };
    if (i < 0 || v->kind == FLUX__V_NUMBER) return s;
    const flux__axes *x = &b->c->outer_axes[b->c->axes_at[i]];
    FLUX__ASSERT(x->nd == 1 || x->dim[0] % (mn[0] * mn[1]) == 0 ||
                 (x->dim[0] == mn[0] && x->dim[1] % mn[1] == 0));
    s.at = (const float *)b->run->ptr[b->k->operand[v->operand].src] + flux__value_offset(b->k, v) +
           flux__axes_at(x, b->o0);
    s.along = x->step[0] == 1;
    s.next = x->nd > 1 && x->dim[0] == mn[0] ? x->step[1] : mn[0] * x->step[0];
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

/* Runs the steps for some rows of some columns. */
static void flux__chain_rows(flux__chain_run *r) {
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
    int needs = FLUX__F32C;
    const flux__cast_fn write = flux__writer(dtype, &needs);
    FLUX__ASSERT(write && needs == FLUX__F32C);
    for (int64_t j = 0; j < r->columns; j++, to += 2 * next) {
        if (!r->steps) write(r->rows, to, r->x + j * r->x_next);
        for (int64_t i = 0, n; i < r->rows && r->steps; i += n) {
            flux__chain_run some = *r;
            n = flux__gemm_min(r->rows - i, 512);
            some.rows = n, some.columns = 1, some.x += j * r->x_next + i, some.y = part;
            for (int s = 0; s < r->steps; s++)
                some.step[s].at += j * r->step[s].next + (r->step[s].along ? i : 0);
            flux__chain_rows(&some);
            write(n, to + 2 * i, part);
        }
    }
}

/* Runs a product's chain for the present block. */
static void flux__do_chain(flux__block_run *b, int line) {
    const flux__value *v = &b->k->value[line];
    const int64_t m = b->k->mnk[0];
    char *out = (char *)b->run->ptr[v->out];
    flux__chain_run r;
    r.x = (const float *)(const void *)b->product, r.x_next = b->product_ld;
    r.y = (float *)(void *)out + b->o0, r.y_next = m;
    r.rows = b->product_rows, r.columns = b->w * b->segments / r.rows;
    r.steps = b->c->chain.steps;
    for (int s = 0; s < r.steps; s++) r.step[s] = flux__chain_place(b, s);
    if (v->kind == FLUX__V_ROUND) flux__chain_halves(&r, v->dtype, out + 2 * b->o0, m);
    else flux__chain_rows(&r);
}

FLUX__END_LEAN

#endif /* FLUX__CPU_CHAINS_H */
