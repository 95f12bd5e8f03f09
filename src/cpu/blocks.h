#ifndef FLUX__CPU_BLOCKS_H
#define FLUX__CPU_BLOCKS_H
#include "../base/platform.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"
#include "reductions.h"
#include "random.h"
#include "gemm_pack.h"
#include "backend.h"
#include "transfers.h"

/* ---------------------------------------------------------------------- cpu/blocks.h
   The run of one block (flux__do_block): loads, lines, reductions and stores,
   phase by phase.

   Invariant: results of reductions are stored when they are complete. Results
   below the smallest normal float become 0. In a block without points nothing
   is read or made. */

FLUX__BEGIN_LEAN

/* Makes a block of random numbers from the flat indices of its points. */
static void flux__do_random(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    const flux_tensor *t = b->run->g->node[v->node];
    int64_t *index = (int64_t *)(void *)flux__reg(b, b->c->nreg);
    flux__each_run_of(b, i, flux__index_run, index);
    b->walk[i] = 1;
    b->at[i] = flux__reg(b, b->c->reg[i]);
    flux__philox(t->arg.u[0], t->arg.u[1], index, flux__block_count(b, v), (float *)b->at[i],
                 (int)t->arg.u[2]);
}

/* Broadcasts an outer value over the block's reduced points, into its expansion register, for
   inner lines to use. */
static void flux__expand_value(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    const int64_t outer = b->w * b->segments;
    char *out = flux__reg(b, b->c->expand_reg[i]);
    if (outer == 1 || b->rt == 1) return;
    if (b->c->inner_first)
        flux__each_times(out, (const char *)b->at[i], flux__class_size[v->ctype], b->rt, outer);
    else flux__row_times(out, (const char *)b->at[i], (size_t)outer * flux__class_size[v->ctype],
                         b->rt);
}

/* Where a line finds operand x: returns the address, and *walk: 1: an element a point, 0: one
   number for all points. */
static const void *flux__operand_at(flux__block_run *b, const flux__value *user, int x, int *walk) {
    const flux__value *v = &b->k->value[x];
    *walk = b->walk[x];
    if (!v->outer || v->kind == FLUX__V_NUMBER || (user->outer && !flux__reducing(user)))
        return b->at[x];
    if (b->w * b->segments == 1) *walk = 0;
    else if (b->rt != 1) return flux__reg(b, b->c->expand_reg[x]);
    return b->at[x];
}

/* acc = acc op x for rows of n numbers, joined column by column: as many rows at a time as make
   a run of whole vectors, then half of these with the other half. `scratch`: scratch memory that
   may be read and written up to a whole vector. */
static void flux__do_reduce_columns(int ctype, int red, char *acc, const char *x, int64_t n,
                                    int64_t rows, char *scratch) {
    const int64_t row = n * (int64_t)flux__class_size[ctype];
    int64_t many = 1, r;
    if (rows <= 0) return;
    while (2 * many <= rows && (many * n < 256 || many * n % 16)) many *= 2;
    for (r = many; r + many <= rows; r += many)
        flux__join(ctype, red, scratch, r == many ? x : scratch, x + r * row, many * n);
    for (int64_t i = r; i < rows; i++) flux__accumulate(ctype, red, acc, x + i * row, n);
    if (r > many) x = scratch;
    for (int64_t half = many / 2; half > 0; half /= 2, x = scratch)
        flux__join(ctype, red, scratch, x, x + half * row,
                   x == scratch ? flux__gemm_up(half * n, 16) : half * n);
    flux__accumulate(ctype, red, acc, x, x == scratch ? flux__gemm_up(n, 16) : n);
}

/* acc = acc op x for the block's rows or columns of integers, whose order does not matter. */
static void flux__reduce_block(flux__block_run *b, int ctype, int red, char *acc, const char *x) {
    if (b->c->inner_first) flux__reduce_rows(ctype, red, acc, x, b->rt, b->w);
    else flux__do_reduce_columns(ctype, red, acc, x, b->w, b->rt, flux__reg(b, b->c->nreg));
}

/* Whether the chunks of a reduction are added up in double. */
static FLUX__INLINE bool flux__is_wide(const flux__cpu *c, const flux__value *v) {
    return v->kind == FLUX__V_REDUCE && v->ctype == FLUX__F32C && v->op == FLUX__RED_SUM &&
           c->inner > c->order.chunk;
}

/* Joins a block's rows of floating-point numbers to acc. A block holds rows of one chunk each,
   or whole rows with all their chunks (resident), or the next chunks of some rows. */
static void flux__join_rows(flux__block_run *b, int i, int ctype, int red, char *acc,
                            const char *x) {
    const flux__join_order *o = &b->c->order;
    const size_t size = flux__class_size[ctype];
    double *wide = (double *)(void *)flux__sums(b, b->c->reduce_at[i]);
    const flux__hreduce_fn hreduce = flux__hreduce_for(ctype, red);
    const bool is_wide = flux__is_wide(b->c, &b->k->value[i]);
    if (o->inner <= o->chunk) hreduce(acc, x, b->rt, b->w);
    else if (b->c->resident)
        for (int64_t row = 0; row < b->w; row++)
            flux__join_long(o, hreduce, ctype, red, acc + (size_t)row * size,
                            x + (size_t)(row * b->rt) * size);
    else
        for (int64_t row = 0, r, m; row < b->w; row++)
            for (r = 0; r < b->rt; r += m, x += (size_t)m * size) {
                float part = 0;
                m = flux__gemm_min(o->chunk, b->rt - r);
                hreduce(is_wide ? (void *)&part : (void *)(acc + (size_t)row * size), x, m, 1);
                if (is_wide) wide[row] += (double)part;
            }
}
/* The same for columns: the block's rows go to the slots of their chunk, as many at a time as
   have consecutive slots. What is not a sum has one chunk. */
static void flux__join_columns(flux__block_run *b, int i, int ctype, int red, char *acc,
                               const char *x) {
    const flux__section *s = flux__section_now();
    const int64_t n = b->w, slots = b->c->order.slots, all = b->r_end - b->r_start,
                  chunk = red == FLUX__RED_SUM ? b->c->order.chunk : all;
    const size_t row = (size_t)n * flux__class_size[ctype];
    const bool sum = ctype == FLUX__F32C && red == FLUX__RED_SUM;
    double *wide = (double *)(void *)flux__sums(b, b->c->reduce_at[i]), none;
    char *first = (char *)(wide + b->c->w);
    flux__identity(ctype, red, &none);
    for (int64_t r = 0, m; r < b->rt; r += m, x += (size_t)m * row) {
        const int64_t from = b->r0 + r - b->r_start,
                      at = red == FLUX__RED_SUM ? from & (chunk - 1) : from,
                      left = b->rt - r;
        int64_t slot = at & (slots - 1);
        /* what is left over of a short row stands in the last slots, see FLUX__FEW */
        if (b->c->order.rows && from >= (all & -slots)) slot = slots - (all - from);
        m = flux__gemm_min(slots - slot, left);
        if (at == 0 && all - from < slots)
            flux__fill(first, &none, flux__class_size[ctype], (size_t)(slots * n));
        if (at < slots) memcpy(first + (size_t)slot * row, x, (size_t)m * row);
        else if (sum && slot == 0 && left >= slots) {
            const int64_t many = flux__gemm_min(chunk - at, left) / slots;
            s->add_rows((float *)(void *)first, (const float *)(const void *)x, slots * n, many);
            m = many * slots;
        } else flux__join(ctype, red, first + (size_t)slot * row, first + (size_t)slot * row, x,
                          m * n);
        if (at + m < chunk && from + m < all) continue;
        for (int64_t half = slots / 2; half > 0; half /= 2)
            flux__join(ctype, red, first, first, first + (size_t)half * row, half * n);
        if (sum && b->c->inner > chunk) s->add_wide(wide, (const float *)(void *)first, n);
        else flux__accumulate(ctype, red, acc, first, n);
    }
}

/* Joins a block of floating-point numbers in the order that the shape prescribes, and completes
   the results after the last block. */
static void flux__do_join(flux__block_run *b, int i, int ctype, char *acc, const char *x) {
    double *wide = (double *)(void *)flux__sums(b, b->c->reduce_at[i]);
    const bool is_wide = flux__is_wide(b->c, &b->k->value[i]) &&
                         !(b->c->resident && b->c->inner_first);
    if (is_wide && b->fresh) memset(wide, 0, (size_t)b->w * sizeof *wide);
    (b->c->inner_first ? flux__join_rows : flux__join_columns)(
        b, i, ctype, b->k->value[i].op, acc, x);
    if (b->r0 + b->rt < b->r_end) return;
    if (is_wide) flux__convert(FLUX__F32C, acc, FLUX__F64C, wide, b->w);
    flux__settle_zeros(ctype, b->k->value[i].op, acc, b->w);
}

/* The block of a reduction's operand, an element a point. */
static const char *flux__reduced_block(flux__block_run *b, const flux__value *v) {
    int walk, ctype = b->k->value[v->a].ctype;
    const char *x = (const char *)flux__operand_at(b, v, v->a, &walk);
    if (walk) return x;
    char *fill = flux__reg(b, b->c->nreg);     /* one number for all points */
    flux__load(ctype, fill, flux__own_dtype[ctype], x, 0, b->w * b->segments * b->rt);
    return fill;
}

/* Runs a reduction's line: joins the block of its operand to the accumulators. */
static void flux__do_reduce(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    const int64_t outer = b->w * b->segments;
    const int ctype = b->k->value[v->a].ctype;
    const char *x = flux__reduced_block(b, v);
    char *acc = flux__reg(b, b->c->reg[i]);
    int64_t none;                         /* an identity, of any compute type's size */
    flux__identity(ctype, v->op, &none);
    if (b->fresh) flux__fill(acc, &none, flux__class_size[ctype], (size_t)outer);
    if (ctype > FLUX__F64C) flux__reduce_block(b, ctype, v->op, acc, x);
    else flux__do_join(b, i, ctype, acc, x);
    b->at[i] = acc;
    b->walk[i] = 1;
}

/* Runs the line of an argmax or argmin: updates the best numbers and their indices by the block
   of its operand. */
static void flux__do_argreduce(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    int64_t outer = b->w * b->segments;
    int walk, ctype = b->k->value[v->a].ctype;
    size_t size = flux__class_size[ctype];
    const char *x = (const char *)flux__operand_at(b, v, v->a, &walk);
    int64_t *index = (int64_t *)(void *)flux__reg(b, b->c->reg[i]);
    char *best = flux__reg(b, b->c->nreg + 1 + b->c->reduce_at[i]);
    const bool rows = walk && b->c->inner_first && b->fresh && ctype == FLUX__F32C;
    for (int64_t o = 0; b->fresh && !rows && o < outer; o++) index[o] = -1;
    if (rows)
        flux__argreduce_rows(v->op != 0, (float *)(void *)best, index,
                             (const float *)(const void *)x, b->rt, outer, b->r0);
    else if (!walk) {
        for (int64_t o = 0; o < outer; o++) index[o] = 0;
    } else if (b->c->inner_first)
        for (int64_t o = 0; o < outer; o++)
            flux__argreduce(ctype, v->op != 0, best + (size_t)o * size, index + o,
                            x + (size_t)(o * b->rt) * size, b->rt, b->r0);
    else
        for (int64_t r = 0; r < b->rt; r++)
            flux__argaccumulate(ctype, v->op != 0, best, index, x + (size_t)(r * outer) * size,
                                outer,
                                b->r0 + r);
    b->at[i] = index;
    b->walk[i] = 1;
}

/* Where a line writes its result: in the tensor's own memory if the block is contiguous there,
   else in its register. */
static void *flux__result_at(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    char *there = v->out >= 0 && !(b->part && v->outer)
        ? flux__in_place(b, i, (char *)b->run->ptr[v->out], v->dtype) : NULL;
    return there ? (void *)there : (void *)flux__reg(b, b->c->reg[i]);
}

/* An operation's line in a block: its loop, result, and operands, which are an element a point if
   they walk, else one number for all. */
typedef struct flux__operation {
    flux__loop loop;
    char *out;
    const char *in[3];
    int ctype, walk[3];
} flux__operation;

/* Finds the operands of line i and the place of its result. */
static FLUX__INLINE flux__operation flux__operation_at(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    flux__operation o;
    o.loop = b->c->loop[i], o.ctype = v->ctype;
    o.in[0] = (const char *)flux__operand_at(b, v, v->a, &o.walk[0]);
    /* an operand that the operation lacks is given as the first again, since a loop may read all
       three: it fills up the end of each */
    o.in[1] = o.in[2] = o.in[0], o.walk[1] = o.walk[2] = o.walk[0];
    if (v->b >= 0) o.in[1] = (const char *)flux__operand_at(b, v, v->b, &o.walk[1]);
    if (v->c >= 0) o.in[2] = (const char *)flux__operand_at(b, v, v->c, &o.walk[2]);
    b->at[i] = o.out = (char *)flux__result_at(b, i);
    b->walk[i] = 1;
    return o;
}
/* Runs it for n points from `at` on. */
static FLUX__INLINE void flux__run_operation(const flux__operation *o, int64_t at, int64_t n) {
    const int64_t from = at * (int64_t)flux__class_size[o->ctype];
    flux__loop_run(o->ctype, o->loop, n, o->out + from, o->in[0] + from * o->walk[0],
                   o->in[1] + from * o->walk[1], o->in[2] + from * o->walk[2], o->walk[0],
                   o->walk[1], o->walk[2]);
}

/* Runs line i for the present block: computes value i from its operands and stores it if it
   belongs to a tensor. */
static FLUX__O2 void flux__do_line(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    int64_t n = flux__block_count(b, v);
    /* a block without points: nothing is read or made */
    if (n == 0 && v->kind != FLUX__V_NUMBER && !flux__reducing(v)) {
        b->at[i] = flux__reg(b, b->c->reg[i]);
        b->walk[i] = 1;
        return;
    }
    if (flux__read_again(v, b->phase)) {
        flux__do_load(b, i);
        return;
    }
    if (b->c->pattern[i]) {
        b->c->pattern[i]->run(b, i);
        return;
    }
    switch (v->kind) {
    case FLUX__V_LOAD: flux__do_load(b, i); break;
    case FLUX__V_NUMBER: break;           /* set before the first block (flux__start_numbers) */
    case FLUX__V_IOTA:
        b->at[i] = flux__reg(b, b->c->reg[i]);
        b->walk[i] = 1;
        flux__each_run_of(b, i, flux__index_run, b->at[i]);
        break;
    case FLUX__V_RANDOM: flux__do_random(b, i); break;
    case FLUX__V_REDUCE: flux__do_reduce(b, i); return;
    case FLUX__V_ARGREDUCE: flux__do_argreduce(b, i); return;
    case FLUX__V_PRODUCT: {
        int64_t rows = b->product_rows, columns = b->w * b->segments / rows;
        b->walk[i] = 1;
        b->at[i] = (void *)(intptr_t)b->product;
        if (b->product_ld == rows || columns == 1) break;
        b->at[i] = flux__reg(b, b->c->reg[i]);
        flux__gemm_copy(flux__class_size[v->ctype], b->product, 1, b->product_ld, b->at[i], rows,
                        rows, columns);
        break;
    }
    case FLUX__V_OP: {
        const flux__operation o = flux__operation_at(b, i);
        flux__run_operation(&o, 0, n);
    } break;
    default: {
        const int from = b->k->value[v->a].ctype;
        int walk;
        const void *a = flux__operand_at(b, v, v->a, &walk);
        b->walk[i] = (uint8_t)walk;
        if (b->c->store_rounds[i]) {
            b->at[i] = (void *)(intptr_t)a;
            break;
        }
        void *out = walk ? flux__result_at(b, i) : flux__reg(b, b->c->reg[i]);
        if (!walk) n = 1;
        b->at[i] = out;
        if (v->kind == FLUX__V_CONVERT && from != v->ctype)
            flux__convert(v->ctype, out, from, a, n);
        else if (out != a) memcpy(out, a, (size_t)n * flux__class_size[v->ctype]);
        if (v->kind == FLUX__V_ROUND) flux__round_half(v->op, (float *)out, n);
        if (v->kind == FLUX__V_WRAP) flux__wrap(v->op, v->ctype, out, n);
    }
    }
    if (v->out >= 0 && !(b->part && v->outer)) flux__do_store(b, i);
}

/* Whether operation b, over so many bytes, overwrites what a reads, other than in its own place:
   a value whose last reader a is leaves its memory to others. */
static bool flux__overwrites(const flux__operation *b, const flux__operation *a, int64_t bytes) {
    const uintptr_t out = (uintptr_t)b->out;
    for (int i = 0; i < 3; i++) {
        const uintptr_t from = (uintptr_t)a->in[i];
        if (a->walk[i] && from == out) continue;
        if (from < out + (uintptr_t)bytes && out < from + (uintptr_t)(a->walk[i] ? bytes : 4))
            return true;
    }
    return false;
}

/* Runs the first of n lines for a block of long rows, or as many of them as are operations in f32:
   these strip by strip, so that what a line makes is in the first-level cache for the next. A line
   whose result is stored is the last of them, as the next may take its memory. Returns how many
   were run. */
static int flux__do_lines(flux__block_run *b, const int *line, int n) {
    flux__operation o[8];
    const int64_t all = b->w * b->segments * b->rt;
    int some = 0;
    for (bool last = false; some < n && some < 8 && !last; some++) {
        const int i = line[some];
        const flux__value *v = &b->k->value[i];
        if (v->kind != FLUX__V_OP || v->outer || v->ctype != FLUX__F32C || b->c->pattern[i] ||
            flux__read_again(v, b->phase)) break;
        o[some] = flux__operation_at(b, i);
        for (int j = 0; j < some; j++) last = last || flux__overwrites(&o[some], &o[j], 4 * all);
        if (last) break;
        last = v->out >= 0;
    }
    for (int64_t at = 0; at < all && some; at += FLUX__TILE)
        for (int j = 0; j < some; j++)
            flux__run_operation(&o[j], at, flux__gemm_min(all - at, FLUX__TILE));
    if (some && b->k->value[line[some - 1]].out >= 0) flux__do_store(b, line[some - 1]);
    if (!some) flux__do_line(b, line[some++]);
    return some;
}

/* Sets the kernel's numbers, before the first block. */
static void flux__start_numbers(flux__block_run *b) {
    char *numbers = flux__numbers_at(b);
    for (int i = 0; i < b->k->nvalue; i++) {
        const flux__value *v = &b->k->value[i];
        if (v->kind != FLUX__V_NUMBER) continue;
        b->at[i] = numbers + (size_t)i * 8;
        b->walk[i] = 0;
        flux__set_number(v->ctype, b->at[i], flux__number_value(b->run->g, v));
    }
}

/* The per-row stage of phase p: runs the outer lines, once per outer point. */
static void flux__do_per_row(flux__block_run *b, int p) {
    const flux__phase *ph = &b->c->phase[p];
    int64_t rt = b->rt;
    b->rt = 1;
    for (int j = 0; j < ph->nper_row; j++) flux__do_line(b, ph->per_row[j]);
    b->rt = rt;
}

/* Expands the outer values that inner lines of phase p use. In a block that holds whole rows,
   those that an earlier phase has expanded stay as they are. */
static void flux__expand_all(flux__block_run *b, int p) {
    for (int i = 0; i < b->k->nvalue; i++) {
        const flux__value *v = &b->k->value[i];
        const int from = v->phase + flux__reducing(v);
        if (b->c->expand[i] && (b->c->resident ? from == p : from <= p)) flux__expand_value(b, i);
    }
}

/* Runs phase p over the reduced points [r_from, r_to), block by block. */
static void flux__do_phase(flux__block_run *b, int p, int64_t r_from, int64_t r_to) {
    const flux__phase *ph = &b->c->phase[p];
    b->fresh = true;
    b->phase = p;
    b->r_start = r_from, b->r_end = r_to;
    if (ph->n == 0 && !b->c->resident) return;
    int64_t step = b->c->rt > 0 ? b->c->rt : 1, expanded = -1;
    const bool ahead = flux__looks_ahead(b->c, b->k);
    for (b->r0 = r_from; b->r0 < r_to || b->fresh; b->r0 += step) {
        b->rt = r_to - b->r0 < step ? r_to - b->r0 : step;
        if (b->rt < 0) b->rt = 0;
        if (b->rt != expanded) flux__expand_all(b, p);
        expanded = b->rt;
        const bool large = b->w * b->segments * b->rt > 4 * FLUX__TILE;
        if (ahead && ph->n) flux__plan_ahead(b, step);
        for (int j = 0, run = 1; j < ph->n; j += run) {
            if (ahead) flux__fetch_ahead(b, run);
            if (large) run = flux__do_lines(b, ph->line + j, ph->n - j);
            else flux__do_line(b, ph->line[j]);
        }
        b->fresh = false;
    }
}

/* Stores the results of phase p's reductions, which are complete only now. */
static void flux__store_reductions(flux__block_run *b, int p) {
    b->rt = 1;
    for (int i = 0; i < b->k->nvalue; i++)
        if (flux__reducing(&b->k->value[i]) && b->k->value[i].phase == p && b->k->value[i].out >= 0)
            flux__do_store(b, i);
}

/* Runs all phases for one block of outer points. */
static void flux__do_block(flux__block_run *b) {
    for (int p = 0; p < b->c->nphase; p++) {
        flux__do_per_row(b, p);
        flux__do_phase(b, p, 0, b->c->inner);
        flux__store_reductions(b, p);
    }
}

FLUX__END_LEAN

#endif /* FLUX__CPU_BLOCKS_H */
