#ifndef FLUX__CPU_TRANSFERS_H
#define FLUX__CPU_TRANSFERS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "loops.h"
#include "vectors.h"
#include "casts.h"
#include "gemm_pack.h"
#include "backend.h"

/* ---------------------------------------------------------------------- cpu/transfers.h
   One thread's view of a running kernel (flux__block_run), and the loads and
   stores of its blocks: where a block lies in memory, how it gets to a register
   and back, and what is prefetched for the next one.

   Invariant: a value is read or written in the tensor's own memory if the block
   lies contiguously there in its own dtype (flux__in_place), else by way of a
   register. walk[i] says whether at[i] holds a number for every point, one for
   all, or one for each row (FLUX__BY_ROW). A load that is the same from
   block to block is done once. */

FLUX__BEGIN_LEAN

#define FLUX__AHEAD 8                     /* most loads of a block that are prefetched */
/* walk of a load that has one number for each row of the block (cpu/chains.h) */
enum { FLUX__BY_ROW = 2 };

typedef struct flux__block_run {          /* one thread's view of a running kernel */
    flux__run *run;
    flux__kernel *k;
    flux__cpu *c;
    /* registers, a scratch register, a register a reduction (the best of an argmax, counts),
       then flux__sums */
    char *memory;
    void **at;                            /* by value: where its elements are now */
    uint8_t *walk;  /* by value: 1: an element a point, 0: one number for all points, or
                       FLUX__BY_ROW */
    int64_t *held;  /* by value: which block a hoisted load's register holds, or 0 */
    /* the block: outer points from o0, w in each segment; reduced points from r0, rt of them */
    int64_t o0, w, r0, rt;
    int64_t r_start, r_end;               /* the reduced points over which the phase runs */
    /* a block of a product: so many columns, w points each, segment_step points apart */
    int64_t segments, segment_step;
    /* a product's finished block: product_rows rows, columns product_ld elements apart */
    const char *product;
    int64_t product_rows, product_ld;
    bool fresh;  /* first block of a pass over the reduced points: accumulators start */
    bool part;  /* part of a split reduction: outer values are stored once, at the end */
    int phase;
    /* what is still to be prefetched for the next block, and how much of it at a line */
    struct { const char *at, *end; } ahead[FLUX__AHEAD];
    int nahead;
    int64_t ahead_share;
} flux__block_run;

static char *flux__reg(flux__block_run *b, int reg) {
    FLUX__ASSERT(reg >= 0 && reg <= b->c->nreg + 1 + b->c->nreduce);
    return b->memory + (size_t)reg * (size_t)b->c->tile * (size_t)b->c->width;
}
/* Behind the registers: for each reduction w doubles, in which it adds up its chunks, then its
   slots; behind these the numbers. */
static char *flux__sums(flux__block_run *b, int reduction) {
    return flux__reg(b, b->c->nreg + 1 + b->c->nreduce) + (size_t)reduction * b->c->sum_bytes;
}
static char *flux__numbers_at(flux__block_run *b) { return flux__sums(b, b->c->nreduce); }

/* The number of elements of a value in the block. */
static int64_t flux__block_count(const flux__block_run *b, const flux__value *v) {
    int64_t outer = b->w * b->segments;
    return v->outer ? outer : outer * b->rt;
}

typedef void (*flux__run_fn)(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n);

/* Calls fn for each run of evenly spaced points in the flat range [f0, f0 + n) of x, with the
   run's offset (base added), step and length, and its position in the block, counted from `at`. */
static void flux__each_run(const flux__axes *x, int64_t base, int64_t f0, int64_t n, int64_t at,
                           flux__run_fn fn, void *ctx) {
    int64_t pos[FLUX_MAX_DIMS];
    for (int d = 0; d < x->nd; d++) {
        pos[d] = d + 1 < x->nd ? f0 % x->dim[d] : f0;
        if (d + 1 < x->nd) f0 /= x->dim[d];
        base += pos[d] * x->step[d];
    }
    while (n > 0) {
        int64_t len = x->nd == 1 ? n : x->dim[0] - pos[0];
        if (len > n) len = n;
        fn(ctx, base, x->step[0], at, len);
        at += len, n -= len;
        base += len * x->step[0], pos[0] += len;
        for (int d = 0; d + 1 < x->nd && pos[d] == x->dim[d]; d++) {
            base += x->step[d + 1] - x->dim[d] * x->step[d];
            pos[d] = 0, pos[d + 1]++;
        }
    }
}

/* Whether the rows of a block, which begin at outer point o0, follow each other evenly in
   memory: then they are one run. */
static bool flux__rows_follow(const flux__block_run *b, const flux__axes *out, const flux__axes *in,
                              int64_t o0) {
    return in->nd == 1 && b->rt == b->c->inner && out->step[0] == in->step[0] * b->rt &&
           (out->nd == 1 || o0 % out->dim[0] + b->w <= out->dim[0]);
}

/* Calls fn for all runs of a value's block: along the contiguous points, for each of the
   others. */
static void flux__each_run_of(flux__block_run *b, int i, flux__run_fn fn, void *ctx) {
    const flux__value *v = &b->k->value[i];
    const flux__axes *out = &b->c->outer_axes[b->c->axes_at[i]],
                     *in = &b->c->inner_axes[b->c->axes_at[i]];
    int64_t base = flux__value_offset(b->k, v), at = 0;
    for (int64_t s = 0; s < b->segments; s++) {
        int64_t o0 = b->o0 + s * b->segment_step;
        if (v->outer) {
            flux__each_run(out, base, o0, b->w, at, fn, ctx);
            at += b->w;
        } else if (b->c->inner_first && flux__rows_follow(b, out, in, o0)) {
            fn(ctx, base + flux__axes_at(out, o0) + flux__axes_at(in, b->r0), in->step[0], at,
               b->w * b->rt);
            at += b->w * b->rt;
        } else if (b->c->inner_first)
            for (int64_t o = 0; o < b->w; o++, at += b->rt)
                flux__each_run(in, base + flux__axes_at(out, o0 + o), b->r0, b->rt, at, fn, ctx);
        else
            for (int64_t r = 0; r < b->rt; r++, at += b->w)
                flux__each_run(out, base + flux__axes_at(in, b->r0 + r), o0, b->w, at, fn, ctx);
    }
}

/* The address of value i's block in a tensor at `memory`, if the block is contiguous there in
   the order of a register and in the compute type's own dtype (or is rows of bools that are
   counted); else NULL. */
static FLUX__O2 char *flux__in_place(flux__block_run *b, int i, char *memory, int dtype) {
    const flux__value *v = &b->k->value[i];
    const flux__axes *out = &b->c->outer_axes[b->c->axes_at[i]],
                     *in = &b->c->inner_axes[b->c->axes_at[i]];
    bool o_run = out->nd == 1 || b->o0 % out->dim[0] + b->w * b->segments <= out->dim[0];
    bool r_run = in->nd == 1 || v->outer || b->r0 % in->dim[0] + b->rt <= in->dim[0];
    if ((flux__own_dtype[v->ctype] != dtype &&
         !(v->kind == FLUX__V_LOAD && b->c->truth[i] && b->c->inner_first)) || !o_run || !r_run)
        return NULL;
    int64_t outer = b->w * b->segments,
            base = flux__value_offset(b->k, v);
    if (b->segments > 1 && b->segment_step != b->w) return NULL;
    bool o_ok = outer == 1, r_ok = v->outer || b->rt == 1;
    if (b->c->inner_first) {
        r_ok = r_ok || in->step[0] == 1;
        o_ok = o_ok || out->step[0] == (v->outer ? 1 : b->rt);
    } else {
        o_ok = o_ok || out->step[0] == 1;
        r_ok = r_ok || in->step[0] == outer;
    }
    if (!o_ok || !r_ok) return NULL;
    int64_t at = base + flux__axes_at(out, b->o0) + (v->outer ? 0 : flux__axes_at(in, b->r0));
    return memory + (size_t)at * flux__dtypes[dtype].size;
}

/* plain: contiguous elements are copied as they are; ahead: how many bytes behind a run the one
   lies that is prefetched while it is copied, or 0 */
typedef struct flux__transfer {
    const char *src;
    char *dst;
    int ctype, dtype;
    size_t wide, narrow;
    bool plain;
    ptrdiff_t ahead;
} flux__transfer;

static void flux__load_run(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    const flux__transfer *t = (const flux__transfer *)ctx;
    const char *src = t->src + (ptrdiff_t)offset * (ptrdiff_t)t->narrow;
    char *dst = t->dst + (size_t)at * t->wide;
    const int64_t bytes = n * (int64_t)t->wide;
    for (int64_t i = 0; t->ahead && i < bytes; i += 64) FLUX__PREFETCH_LATER(src + t->ahead + i)
    if (t->plain && step == 1) memcpy(dst, src, (size_t)bytes);
    else flux__load(t->ctype, dst, t->dtype, src, step, n);
}

static void flux__store_run(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    const flux__transfer *t = (const flux__transfer *)ctx;
    char *dst = t->dst + (ptrdiff_t)offset * (ptrdiff_t)t->narrow;
    const char *src = t->src + (size_t)at * t->wide;
    const int64_t bytes = n * (int64_t)t->wide;
    for (int64_t i = 0; t->ahead && i < bytes; i += 64) FLUX__PREFETCH_WRITE(dst + t->ahead + i)
    if (t->plain && step == 1) memcpy(dst, src, (size_t)bytes);
    else flux__store(t->dtype, dst, step, t->ctype, src, n);
}

/* How the runs of value i are loaded or stored. Where a large value that is read for the first
   time, or stored, lies in many short runs, as a channel does in small images, the processor does
   not foresee where the next ones are: they are prefetched some 4 KB before it is their turn. */
static flux__transfer flux__transfer_of(const flux__block_run *b, int i, const char *src, char *dst,
                                        int dtype) {
    const flux__value *v = &b->k->value[i];
    const flux__axes *in = &b->c->inner_axes[b->c->axes_at[i]];
    const bool load = v->kind == FLUX__V_LOAD;
    flux__transfer t = { src, dst, v->ctype, dtype, flux__class_size[v->ctype],
                         flux__dtypes[dtype].size, flux__own_dtype[v->ctype] == dtype, 0 };
    if (b->k->reduced && b->c->inner_first && !v->outer && t.plain && in->nd > 1 &&
        in->step[0] == 1 && in->dim[0] >= 16 && in->dim[0] < FLUX__TILE &&
        b->c->outer * b->c->inner >= FLUX__LARGE && (b->phase == 0 || !load))
        t.ahead = (ptrdiff_t)((FLUX__TILE / in->dim[0] + 1) * in->step[1] * (int64_t)t.wide);
    return t;
}

static void flux__index_run(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    int64_t *out = (int64_t *)ctx + at;
    for (int64_t i = 0; i < n; i++) out[i] = offset + i * step;
}

/* Repeats each of `numbers` elements n times: out[i * n ...] = in[i]. */
static void flux__each_times(char *out, const char *in, size_t size, int64_t n, int64_t numbers) {
    /* flux__strided_scatter_rows may write 16 floats past the end: the last four elements, 16 or
       more outputs, are left to the plain loop */
    int64_t quick = size == 4 && n >= 4 && n < 16 && numbers > 4 ? numbers - 4 : 0;
    const float *from = (const float *)(const void *)in;
    if (size == 4 && n < 4) flux__repeat_words((float *)(void *)out, from, n, quick = numbers);
    else flux__strided_scatter_rows((float *)(void *)out, from, n, quick);
    for (int64_t i = quick; i < numbers; i++)
        flux__fill(out + (size_t)(i * n) * size, in + (size_t)i * size, size, (size_t)n);
}
/* Copies a row of so many bytes n times; the first copy may be the row itself. */
static void flux__row_times(char *out, const char *row, size_t bytes, int64_t n) {
    for (int64_t r = 0; r < n; r++, out += bytes)
        if (out != row) memcpy(out, row, bytes);
}

/* Loads a block whose rows are all the same, or each of one repeated number, and reads these
   once; for steps (c->numbers) they are not repeated. False: it is no such block, nothing is
   done. */
static bool flux__load_repeated(flux__block_run *b, int i, flux__transfer t) {
    const flux__value *v = &b->k->value[i];
    const bool first = b->c->inner_first;
    const flux__axes *out = &b->c->outer_axes[b->c->axes_at[i]],
                     *in = &b->c->inner_axes[b->c->axes_at[i]];
    const flux__axes *along = first ? in : out, *down = first ? out : in;
    const int64_t n = first ? b->rt : b->w, rows = first ? b->w : b->rt,
                  base = flux__value_offset(b->k, v);
    if (v->outer || b->segments > 1 || rows == 1) return false;
    if (down->nd == 1 && down->step[0] == 0) {
        flux__each_run(along, base, first ? b->r0 : b->o0, n, 0, flux__load_run, &t);
        flux__row_times(t.dst, t.dst, (size_t)n * t.wide, rows);
        return true;
    }
    if (along->nd > 1 || along->step[0]) return false;
    const bool by_row = b->c->numbers[i] && n > 1;
    if (by_row) b->walk[i] = FLUX__BY_ROW;
    else t.dst = flux__reg(b, b->c->nreg);
    flux__each_run(down, base, first ? b->o0 : b->r0, rows, 0, flux__load_run, &t);
    if (!by_row) flux__each_times((char *)b->at[i], t.dst, t.wide, n, rows);
    return true;
}

/* Whether the register of a hoisted load holds this block already; if not, notes that it will. */
static bool flux__hoisted_is_loaded(flux__block_run *b, int i) {
    const flux__axes *out = &b->c->outer_axes[b->c->axes_at[i]];
    if (!b->c->hoisted[i]) return false;
    const int64_t period = out->nd == 1 ? 1 : out->dim[0],
                  is = (b->o0 % period) << 40 | b->w << 20 | b->segments;
    if (b->segments > 1 && b->segment_step % period) return false;
    if (b->held[i] == is) return true;
    b->held[i] = is;
    return false;
}

/* Loads a block that is contiguous in memory across its rows by transposing it. False: it is no
   such block, nothing is done. */
static bool flux__load_transposed(flux__block_run *b, int i, const flux__transfer *t) {
    const flux__value *v = &b->k->value[i];
    const flux__axes *out = &b->c->outer_axes[b->c->axes_at[i]],
                     *in = &b->c->inner_axes[b->c->axes_at[i]];
    const flux__axes *along = b->c->inner_first ? in : out, *across = b->c->inner_first ? out : in;
    const int64_t base = flux__value_offset(b->k, v),
                  rows = b->c->inner_first ? b->rt : b->w;
    if (v->outer || b->segments > 1 || t->narrow != t->wide || across->step[0] != 1 || rows == 1 ||
        b->w * b->rt == rows) return false;
    if ((out->nd > 1 && b->o0 % out->dim[0] + b->w > out->dim[0]) ||
        (in->nd > 1 && b->r0 % in->dim[0] + b->rt > in->dim[0])) return false;
    flux__gemm_copy((int64_t)t->wide, t->src +
                    (base + flux__axes_at(out, b->o0) + flux__axes_at(in, b->r0)) *
                    (int64_t)t->narrow, along->step[0], 1, t->dst, rows, rows, b->w * b->rt / rows);
    return true;
}

/* Loads a block of a kernel without a reduction in which each number stands for a run of points, as
   a channel's for those of its image: one number for the whole block is used where it is, several
   are read and then repeated. False: it is no such block, nothing is done. */
static bool flux__load_numbers(flux__block_run *b, int i, flux__transfer t) {
    const flux__value *v = &b->k->value[i];
    flux__axes up = b->c->outer_axes[b->c->axes_at[i]];
    const int64_t n = up.dim[0], w = b->w,
                  base = flux__value_offset(b->k, v);
    if (b->k->reduced || b->c->hoisted[i] || b->segments > 1 || up.nd == 1 || up.step[0] ||
        v->kind != FLUX__V_LOAD || flux__own_dtype[v->ctype] != t.dtype) return false;
    if (b->o0 % n + w <= n && b->c->adam.last < 0) {
        b->at[i] = (void *)(intptr_t)(t.src + (base + flux__axes_at(&up, b->o0)) *
                                      (int64_t)t.narrow);
        b->walk[i] = 0;
        return true;
    }
    if (b->o0 % n || w % n) return false;
    memmove(up.dim, up.dim + 1, (size_t)--up.nd * sizeof *up.dim);
    memmove(up.step, up.step + 1, (size_t)up.nd * sizeof *up.step);
    t.dst = flux__reg(b, b->c->nreg);
    flux__each_run(&up, base, b->o0 / n, w / n, 0, flux__load_run, &t);
    flux__each_times((char *)b->at[i], t.dst, t.wide, n, w / n);
    return true;
}

/* Runs a load, or reads again what an earlier phase has stored: in place if the block is
   contiguous there, else into the register. */
static void flux__do_load(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    bool own = v->kind != FLUX__V_LOAD;   /* a value that an earlier phase has stored */
    int dtype = own ? v->dtype : b->k->operand[v->operand].dtype;
    char *src = (char *)b->run->ptr[own ? v->out : b->k->operand[v->operand].src],
         *there = flux__in_place(b, i, src, dtype);
    b->walk[i] = 1;
    b->at[i] = there ? there : (void *)flux__reg(b, b->c->reg[i]);
    if (there || flux__hoisted_is_loaded(b, i)) return;
    flux__transfer t = flux__transfer_of(b, i, src, (char *)b->at[i], dtype);
    if (!flux__load_numbers(b, i, t) && !flux__load_repeated(b, i, t) &&
        !flux__load_transposed(b, i, &t))
        flux__each_run_of(b, i, flux__load_run, &t);
}

/* Stores a value's block in its tensor, unless it was written there. */
static void flux__do_store(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    char *dst = (char *)b->run->ptr[v->out];
    int64_t n = flux__block_count(b, v);
    char *there = flux__in_place(b, i, dst, v->dtype);
    if (there == (char *)b->at[i] && b->walk[i]) return;
    if (there && b->walk[i]) {
        memcpy(there, b->at[i], (size_t)n * flux__class_size[v->ctype]);
        return;
    }
    const char *src = (const char *)b->at[i];
    if (!b->walk[i]) {                    /* one number for all points */
        char *fill = flux__reg(b, b->c->nreg);
        flux__load(v->ctype, fill, flux__own_dtype[v->ctype], src, 0, n);
        src = fill;
    }
    flux__transfer t = flux__transfer_of(b, i, src, dst, v->dtype);
    flux__each_run_of(b, i, flux__store_run, &t);
}

/* Whether a kernel's blocks are prefetched: large operands of a reduction, since a block is a page
   or less, and the processor's own prefetcher begins anew with each. Not in kernels without a
   reduction, nor in those with softmax-like rows: they store results too, and there it is
   slower. */
static bool flux__looks_ahead(const flux__cpu *c, const flux__kernel *k) {
    return k->reduced && c->rows.first < 0 && c->outer * c->inner >= FLUX__LARGE;
}

/* Goes on to the block behind this one: the next points of the phase, else the first ones of the
   next phase or outer points. False: there is none. */
static bool flux__go_on(flux__block_run *b, int64_t step) {
    b->r0 += step;
    if (b->r0 >= b->r_end) {
        b->r0 = b->r_start;
        if (!b->part && ++b->phase == b->c->nphase) b->phase = 0;
        if (b->part || b->phase == 0) b->o0 += b->w;
    }
    b->rt = flux__gemm_min(step, b->r_end - b->r0);
    return b->o0 + b->w <= b->c->outer;
}

/* Notes what the block behind this one loads in place. */
static FLUX__O2 void flux__plan_ahead(flux__block_run *b, int64_t step) {
    const int64_t o0 = b->o0, r0 = b->r0, rt = b->rt;
    const int phase = b->phase, lines = b->c->phase[phase].n;
    int64_t all = 0;
    int n = 0;
    if (flux__go_on(b, step)) {
        const flux__phase *ph = &b->c->phase[b->phase];
        for (int j = 0; j < ph->n && n < FLUX__AHEAD; j++) {
            const flux__value *v = &b->k->value[ph->line[j]];
            if (v->kind != FLUX__V_LOAD || v->outer) continue;
            const flux__operand *from = &b->k->operand[v->operand];
            const char *at = flux__in_place(b, ph->line[j], (char *)b->run->ptr[from->src],
                                            from->dtype);
            if (!at) continue;
            const int64_t bytes = b->w * b->segments * b->rt *
                                  (int64_t)flux__dtypes[from->dtype].size;
            b->ahead[n].at = at, b->ahead[n++].end = at + bytes;
            all += bytes;
        }
    }
    b->nahead = n;
    b->ahead_share = all / lines + 64;
    b->o0 = o0, b->r0 = r0, b->rt = rt, b->phase = phase;
}

/* Prefetches the shares of so many lines into the second-level cache. A line computes while its
   share comes; all of it at once would have the line wait. */
static void flux__fetch_ahead(flux__block_run *b, int lines) {
    int64_t left = b->ahead_share * lines;
    for (int i = 0; i < b->nahead && left > 0; i++) {
        const char *at = b->ahead[i].at;
        for (; at < b->ahead[i].end && left > 0; at += 64, left -= 64) FLUX__PREFETCH_LATER(at)
        b->ahead[i].at = at;
    }
}

FLUX__END_LEAN

#endif /* FLUX__CPU_TRANSFERS_H */
