#ifndef FLUX__CPU_WINDOWS_H
#define FLUX__CPU_WINDOWS_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "loops.h"
#include "vectors.h"
#include "gemm_pack.h"
#include "backend.h"
#include "whole.h"

/* ---------------------------------------------------------------------- cpu/windows.h
   Patterns of whole kernels that run without blocks: the maximum or mean of
   small windows (pooling), the gradient of the maximum, window by window, and
   copies of 32-bit words in another order, as of a flipped kernel. cpu/ready.h has the table of
   patterns.

   Invariant: a kernel is one of these only if its program is exactly that: max
   alone; a sum, perhaps divided by a number; where(number == argmax, g, 0),
   with numbers that are each element's own place in its window; or one load
   and one store. Results are those of the plain program: the first of equals
   wins, NaN wins, a maximum of zeros is +0, and sums go in the order of
   flux__join_order. A vector has windows side by side, without branches on their
   numbers. Elements that are not neighbours in x are gathered in lines first:
   then any stride is a stride of 1. Little work is done on the calling thread. */

/* Floats of the lines of a task, and windows' rows that it takes together, if they are short. */
#define FLUX__LINES 3072
#define FLUX__TOGETHER 64
/* floats of a padded slice of an image, at most: they stay in the second-level cache */
#define FLUX__PADDED (1 << 16)

FLUX__BEGIN_LEAN

/* How elements that are `step` apart from window to window lie in n lines: element w of window i is
   at i + at[w] of line[w]. Where lines start, how much longer than a row of windows each is, and
   the longest; the elements in the order of their places. */
typedef struct flux__lines {
    int n, line[FLUX__WINDOW], order[FLUX__WINDOW];
    int64_t step, at[FLUX__WINDOW], start[FLUX__WINDOW], more[FLUX__WINDOW], most;
} flux__lines;

/* A pooling (g NULL) or the gradient of a maximum, window by window. */
typedef struct flux__windows_job {
    const float *x, *g;
    float *y;
    flux__lines in, out;                  /* of x, and in a gradient of y or the image */
    flux__pooled pooled;                  /* what all rows have in common */
    /* from one line to the next; windows that fit; rows that are taken together; flat > 0: their
       windows are so far apart, and those between are computed for nothing */
    int64_t ld, part, together, flat;
    int64_t from[FLUX__WINDOW], to[FLUX__WINDOW];    /* places of a window's elements in x and y */
    /* windows two apart are taken from where they lie, and a gradient written in pairs, as where
       windows two wide tile an image: lines would double what is read and written */
    bool direct;
    /* the image to which a gradient is added, or NULL, and where the first window is in it;
       elements of its slices that have no window in common, how many runs of windows each has, and
       memory for a slice for each task, in which every step-th element is one phase, of so many
       floats: a slice of the image may lie where that of x was */
    float *image, *sum;
    int64_t rel, slice, slice_rows, phase;
    /* what pads x, or NULL; a task does that slice by slice, in memory of its own, which then is
       x, without steps from slice to slice */
    const flux__strided_scatter_job *pad;
    /* the windows' dims, and for each the steps of x, of g and of y */
    int64_t dim[FLUX_MAX_DIMS], step[3][FLUX_MAX_DIMS];
    int first, next;                      /* the dim along which a row runs, and the rows' own */
    int64_t rows, run_length;             /* number of rows, and of windows side by side in a row */
    /* rows in a task; piece > 0: there is one row only, and a task has so many windows of it */
    int64_t each;
    int64_t piece;
} flux__windows_job;

/* Whether value v is a load of f32 that nothing else stores, outer or not. */
static bool flux__is_words(const flux__kernel *k, int v, bool outer) {
    const flux__value *w = &k->value[v];
    return v >= 0 && w->kind == FLUX__V_LOAD && w->outer == outer && w->dtype == FLUX_F32 &&
           w->ctype == FLUX__F32C && k->operand[w->operand].dtype == FLUX_F32 && w->out < 0;
}

/* Whether a kernel is the maximum or sum of windows, if its last value is a reduction or that
   divided by a number, or the gradient of the maximum; fills in *w. */
static bool flux__is_windows(const flux__kernel *k, flux__pooling *w) {
    const flux__value *v = &k->value[w->top], *red = v;
    w->g = w->places = w->zero = w->by = -1;
    if (v->kind == FLUX__V_OP && v->op == FLUX__OP_DIV && v->outer && k->nvalue == 4 &&
        k->value[v->b].kind == FLUX__V_NUMBER) red = &k->value[v->a], w->by = v->b;
    if (red->kind == FLUX__V_REDUCE && k->nvalue == (w->by < 0 ? 2 : 4)) {
        w->x = red->a, w->sum = red->op == FLUX__RED_SUM;
        return (w->sum || (red->op == FLUX__RED_MAX && red == v)) && v->out >= 0 &&
               (red == v || red->out < 0) && v->dtype == FLUX_F32 && v->ctype == FLUX__F32C &&
               flux__is_words(k, w->x, false);
    }
    if (v->kind != FLUX__V_OP || v->op != FLUX__OP_WHERE || v->out < 0 || v->dtype != FLUX_F32 ||
        v->outer) return false;
    const flux__value *eq = &k->value[v->a], *arg, *i;
    w->g = v->b, w->zero = v->c;
    /* `where` takes its condition as a float */
    if (eq->kind == FLUX__V_CONVERT && eq->out < 0) eq = &k->value[eq->a];
    if (eq->kind != FLUX__V_OP || eq->op != FLUX__OP_EQ || eq->out >= 0 ||
        k->value[w->zero].kind != FLUX__V_NUMBER || !flux__is_words(k, w->g, true)) return false;
    arg = &k->value[eq->b], i = &k->value[eq->a], w->x = arg->a, w->places = i->operand;
    return arg->kind == FLUX__V_ARGREDUCE && arg->op == 1 && arg->out < 0 &&
           flux__is_words(k, w->x, false) && i->kind == FLUX__V_LOAD && !i->outer &&
           i->ctype == FLUX__I64C && i->dtype == FLUX_I64 && i->out < 0;
}

/* Whether a maximum is that of rows that lie one behind the other, which horizontal reductions
   take faster than windows. */
static bool flux__is_of_rows(const flux__kernel *k, const flux__cpu *c) {
    const int64_t *step = k->operand[k->value[c->pooling.x].operand].stride;
    int64_t row = 1;
    int d = 0;
    if (!flux__reduces_rows(k->reduced, c->inner)) return false;
    for (; d < FLUX_MAX_DIMS && (k->reduced >> d & 1); row *= k->full[d++])
        if (k->full[d] > 1 && step[d] != row) return false;
    while (d < FLUX_MAX_DIMS && k->full[d] == 1) d++;
    return d == FLUX_MAX_DIMS || step[d] >= row;
}

/* The slots in which sums of windows are joined, or 0 if they are not faster one by one than in
   blocks, which take windows side by side for their rows: those begin several elements apart.
   Their order must be one of two: element after element, or that of short rows (FLUX__FEW), four
   slots of which the last have what is left over. */
static int flux__windows_slots(const flux__kernel *k, const flux__cpu *c) {
    const int64_t *step = k->operand[k->value[c->pooling.x].operand].stride;
    const bool rows = FLUX__VECTORS && c->order.rows && c->inner >= 4 && c->inner < 32;
    int d = 0;
    while (d < FLUX_MAX_DIMS - 1 && (k->full[d] == 1 || (k->reduced >> d & 1))) d++;
    if (step[d] <= 0 || flux__is_of_rows(k, c)) return 0;
    return rows ? 4 : !c->inner_first && c->inner <= c->order.chunk && c->order.slots == 1;
}

/* Whether a pooling or a maximum's gradient ends in this line, and its windows are small ones. */
static bool flux__match_windows(flux__kernel *k, flux__cpu *c, int line) {
    c->pooling.top = line;
    return k->kind == FLUX__K_FUSED && line == k->nvalue - 1 && c->inner > 1 &&
           c->inner <= FLUX__WINDOW && c->outer > 1 && flux__is_windows(k, &c->pooling) &&
           (c->pooling.g >= 0 || (c->pooling.sum ? flux__windows_slots(k, c) > 0 :
                                  !flux__is_of_rows(k, c)));
}

/* Whether the numbers that the argmax is compared with are each element's own place in its
   window, the same for all windows. */
static bool flux__windows_counted(const flux__run *run, const flux__kernel *k,
                                  const flux__operand *o, int64_t n) {
    const int64_t *value = (const int64_t *)run->ptr[o->src] + o->offset;
    int64_t at[FLUX_MAX_DIMS] = { 0 };
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (!(k->reduced >> d & 1) && k->full[d] > 1 && o->stride[d]) return false;
    for (int64_t i = 0; i < n; i++) {
        int64_t place = 0;
        for (int d = 0; d < FLUX_MAX_DIMS; d++) place += at[d] * o->stride[d];
        if (value[place] != i) return false;
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if ((k->reduced >> d & 1) && ++at[d] < k->full[d]) break;
            else at[d] = 0;
    }
    return true;
}

/* Finds the lines of n elements that are at `from` in the first window, at most `most` longer than
   a row; if that is 0, each has one. */
static void flux__find_lines(flux__lines *s, const int64_t *from, int n, int64_t step,
                             int64_t most) {
    s->step = step;
    for (int w = 0, i; w < n; s->order[i] = w++)
        for (i = w; i > 0 && from[s->order[i - 1]] > from[w]; i--) s->order[i] = s->order[i - 1];
    for (int i = 0; i < n; i++) {
        const int w = s->order[i];
        int64_t d = 0;
        int l = most ? 0 : s->n;
        for (; l < s->n; l++) {
            d = from[w] - s->start[l];
            if (d == 0 || (step && d % step == 0 && d / step > 0 && d / step <= most)) break;
        }
        if (l == s->n) d = 0, s->start[s->n++] = from[w];
        s->line[w] = l, s->at[w] = d ? d / step : 0;
        if (s->at[w] > s->more[l]) s->more[l] = s->at[w];
        if (s->at[w] > s->most) s->most = s->at[w];
    }
}

/* Copies to lines, or with `back` from them, so many elements each and what they have more; lines
   lie j->ld apart. What is behind a line, up to its place for the next row, becomes 0. */
static FLUX__O2 void flux__copy_lines(const flux__windows_job *j, float *line, float *x,
                                      int64_t n, bool back) {
    const flux__lines *s = back ? &j->out : &j->in;
    for (int l = 0; l < s->n; l++, line += j->ld) {
        float *at = x + s->start[l], *next = line + j->ld;
        int64_t both = 0;
        if (s->step == 2 && l + 1 < s->n && s->start[l + 1] == s->start[l] + 1) {
            both = n + flux__gemm_min(s->more[l], s->more[l + 1]);
            if (back) flux__weave_words(at, line, next, both);
            else flux__unweave_words(line, next, at, both);
        }
        for (int k = 0; k < 1 + (both > 0); k++, at++) {
            float *to = line + k * j->ld;
            const int64_t m = n + s->more[l + k];
            if (back) flux__copy_words(at + 2 * both, s->step, to + both, 1, m - both);
            else flux__copy_words(to + both, 1, at + both * s->step, s->step, m - both);
            for (int64_t i = m; i < n + s->most && !back; i++) to[i] = 0;
        }
        if (both) l++, line = next;
    }
}

/* Runs n windows, the first one number o, of each of some rows that begin at the places at[...] in
   x, g and y; of an image, base more in the sum of a slice. memory: four times FLUX__LINES. */
static FLUX__O2 void flux__windows_run(const flux__windows_job *j, flux__pooled *p, float *memory,
                                       int64_t (*at)[3], int64_t rows, int64_t o, int64_t n,
                                       float *sum, int64_t base) {
    const flux__lines *in = &j->in, *to = &j->out;
    const int64_t pitch = j->flat ? j->flat : n + in->most, all = (rows - 1) * pitch + n,
                  sg = j->step[1][j->first], margin = to->most + 16;
    const bool here = in->step == 1 && (j->flat || rows == 1) && all >= 16;
    float *line = memory, *out = line + FLUX__LINES, *g = out + FLUX__LINES + margin,
          *place = g + FLUX__LINES, *x = (float *)(uintptr_t)j->x + o * in->step,
          *y = j->y + o * j->step[2][j->first];
    if (j->direct && n >= 4) {
        p->windows = n, p->rows = rows, p->step = 2, p->paired = j->g != NULL;
        for (int i = 0; i < 3; i++) p->next[i] = j->step[i][j->next];
        for (int w = 0; w < p->n; w++)
            p->x[w] = x + at[0][0] + j->from[w], p->d[w] = y + at[0][2] + j->to[w];
        p->y = y + at[0][2], p->g = j->g ? j->g + o + at[0][1] : NULL;
        flux__section_for(n)->pool(p);
        return;
    }
    const bool two = j->image && in->step == 2 && n >= 16;    /* x is taken from where it lies */
    p->windows = two ? n : all < 16 ? 16 : all, p->rows = two ? rows : 1, p->step = two ? 2 : 1;
    p->next[0] = rows > 1 ? at[1][0] - at[0][0] : 0, p->next[2] = pitch, p->paired = false;
    for (int r = 0; r < (j->flat ? 1 : rows) && !here && !two; r++)
        flux__copy_lines(j, line + r * pitch, x + at[r][0], j->flat ? all : n, false);
    for (int l = 0; l < in->n && all < 16 && !two; l++)
        memset(line + l * j->ld + all + in->most, 0, 16 * sizeof *line);
    for (int w = 0; w < p->n; w++)
        p->x[w] = here || two ? x + at[0][0] + j->from[w] :
            line + in->line[w] * j->ld + in->at[w];
    if (!j->g) {
        p->y = rows == 1 && n >= 16 ? y + at[0][2] : out;
        flux__section_now()->pool(p);
        for (int r = 0; r < rows && p->y == out; r++)
            flux__copy_words(y + at[r][2], 1, out + r * pitch, 1, n);
        return;
    }
    p->g = g, p->y = place;
    memset(g - margin, 0, (size_t)(all + 2 * margin + 32) * sizeof *g);
    memset(place - margin, 0, (size_t)margin * sizeof *g);
    memset(place + all, 0, (size_t)(margin + 32) * sizeof *g);
    for (int r = 0; r < rows; r++)
        flux__copy_words(g + r * pitch, 1, j->g + o * sg + at[r][1], sg, n);
    for (int l = 0; l < to->n; l++) {
        const int64_t first = base + at[0][2] + o * to->step + to->start[l];
        p->d[l] = sum ? sum + first % to->step * j->phase + first / to->step : out + l * j->ld;
        p->length[l] = all + to->more[l];
    }
    flux__section_now()->pool(p);
    for (int r = 0; r < rows && !sum; r++)
        flux__copy_lines(j, out + r * pitch, y + at[r][2], n, true);
}

/* Copies the sum of a slice, phase by phase, to its place in the image. */
static void flux__join_phases(const flux__windows_job *j, float *image, const float *sum) {
    const int64_t step = j->out.step, even = step == 2 ? j->slice / 2 : 0;
    flux__weave_words(image, sum, sum + j->phase, even);
    for (int64_t p = 0; p < step && p + even * 2 < j->slice; p++)
        flux__copy_words(image + even * 2 + p, step, sum + p * j->phase + even, 1,
                         (j->slice - even * 2 - p + step - 1) / step);
}

/* Runs one task: some rows of windows, or a piece of the only one. */
static FLUX__O2 void flux__windows_task(void *ctx, int64_t part) {
    const flux__windows_job *j = (const flux__windows_job *)ctx;
    int64_t row = part * j->each, end = row + j->each < j->rows ? row + j->each : j->rows, rest,
            at[FLUX__TOGETHER][3], now[3] = { 0 }, place[FLUX_MAX_DIMS] = { 0 }, o = 0,
            last = j->run_length;
    float memory[4 * FLUX__LINES];
    flux__pooled p = j->pooled;
    const int64_t bytes = j->out.step * j->phase * 4;
    float *sum = j->image ? j->sum + part * bytes / 4 : NULL;
    flux__windows_job own;
    int some = 0, i, d;
    if (j->pad) own = *j, own.x += part * j->pad->slice, j = &own;
    if (j->piece) row = 0, end = 1, o = part * j->piece, last = flux__gemm_min(last, o + j->piece);
    for (d = j->first + 1, rest = row; d < FLUX_MAX_DIMS; rest /= j->dim[d++]) {
        place[d] = rest % j->dim[d];
        for (i = 0; i < 3; i++) now[i] += place[d] * j->step[i][d];
    }
    for (int64_t many; row < end; row += many) {
        many = j->direct ? flux__gemm_min(end - row, j->dim[j->next] - place[j->next]) : 1;
        const int64_t slice = sum ? row / j->slice_rows : 0;
        const bool sliced = sum || j->pad,
                   ends = row + many == end || (sliced && (row + many) % j->slice_rows == 0);
        int64_t *was = at[some++], by = many;
        if (sum && row % j->slice_rows == 0) memset(sum, 0, (size_t)bytes);
        if (j->pad && row % j->slice_rows == 0)
            flux__scatter_slice(j->pad, row / j->slice_rows, (char *)(uintptr_t)j->x);
        memcpy(was, now, sizeof now);
        for (d = j->next; d < FLUX_MAX_DIMS; place[d++] = 0, by = 1) {
            for (i = 0; i < 3; i++) now[i] += by * j->step[i][d];
            if ((place[d] += by) < j->dim[d]) break;
            for (i = 0; i < 3; i++) now[i] -= j->dim[d] * j->step[i][d];
        }
        if (!ends && some < j->together &&
            !(j->flat && now[0] - was[0] != j->flat * j->in.step) &&
            !(sum && now[2] - was[2] != j->flat * j->in.step)) continue;
        for (int64_t m, to = j->rel - slice * j->slice; o < last; o += m) {
            m = flux__gemm_min(last - o, j->part);
            flux__windows_run(j, &p, memory, at, j->direct ? many : some, o, m, sum, to);
        }
        some = 0, o = 0;
        if (sum && (row + 1) % j->slice_rows == 0)
            flux__join_phases(j, j->image + slice * j->slice, sum);
    }
}

/* Finds the lines of the windows' elements, and how many rows and windows are taken together. */
static void flux__plan_lines(flux__windows_job *j) {
    flux__pooled *p = &j->pooled;
    const int next = j->next, n = p->n;
    const int64_t sx = j->step[0][j->first], sy = j->step[2][j->first], row = j->run_length,
                  far = sx > 0 && j->step[0][next] % sx == 0 ? j->step[0][next] / sx : 0;
    const bool alone = j->g && !j->image;
    if (j->dim[next] > 1 && far >= row && far <= 512 && sx <= 2 && far <= row * sx + row / 4 + 8 &&
        (!j->image || (sx == sy && j->step[0][next] == j->step[2][next]))) j->flat = far;
    for (;; j->flat = 0) {
        memset(&j->in, 0, sizeof j->in), memset(&j->out, 0, sizeof j->out);
        flux__find_lines(&j->in, j->from, n, sx, j->flat && sx > 1 ? 512 : 15);
        if (j->g) flux__find_lines(&j->out, j->to, n, sy, alone ? 0 : j->flat ? 512 : 15);
        j->ld = FLUX__LINES / (alone ? n : j->in.n) / 16 * 16;
        j->part = (j->flat && sx == 1 && !alone ? FLUX__LINES : j->ld) - j->in.most - 16;
        if (j->g) j->part = flux__gemm_min(j->part, FLUX__LINES - 2 * j->out.most - 64);
        j->together = j->image && !j->flat ? 1 : j->part / (j->flat ? j->flat : row + j->in.most);
        j->together = j->together < 1 ? 1 : flux__gemm_min(j->together, FLUX__TOGETHER);
        if (!j->flat || j->together > 1) break;
    }
    j->direct = row >= 4 && sx == 2 &&
                (!j->g || (alone && sy == 2 && n % 2 == 0 && j->step[1][j->first] == 1));
    for (int w = 0; w < n && j->g; w += 2) j->direct = j->direct && j->to[w + 1] == j->to[w] + 1;
    if (j->direct) j->together = 1, j->part = row;
    p->lines = j->out.n;
    for (int l = 0, i = 0; l < p->lines; l++, p->first[l] = i)
        for (int k = n - 1; k >= 0; k--) {    /* windows that overlap are added in their order */
            const int w = j->out.order[k];
            if (j->out.line[w] == l) p->which[i++] = w, p->at[w] = j->out.at[w];
        }
}

/* Whether the windows of kernel k are read from slices of what *pad makes, each by runs of its own;
   if so, *dims is the first dim that counts slices. */
static bool flux__pads_slices(const flux__strided_scatter_job *pad, const flux__kernel *k,
                              const flux__operand *x, int *dims) {
    int64_t next = pad->slice, reach = x->offset, runs = 0;
    int d = 0;
    for (; d < FLUX_MAX_DIMS && x->stride[d] != pad->slice; d++) {
        reach += (k->full[d] - 1) * x->stride[d];
        runs += k->full[d] > 1 && !(k->reduced >> d & 1);
        if (k->full[d] > 1 && x->stride[d] < 1) return false;
    }
    for (*dims = d; d < FLUX_MAX_DIMS; next *= k->full[d++])
        if (k->full[d] > 1 && (x->stride[d] != next || k->reduced >> d & 1)) return false;
    return pad->padded && !x->offset && reach < pad->slice && runs > 1 &&
           next == pad->slice * pad->units && pad->slice <= FLUX__PADDED;
}

/* Runs a max pooling or its gradient window by window; a gradient with `into` adds to that spread,
   and `pad` is a spread that only pads x. False, and nothing is done: the gradient has other
   numbers than each element's place in its window, or than 0, or slices do not fit. */
static bool flux__windows_by(flux__run *run, const flux__kernel *k, const flux__kernel *into,
                             const flux__kernel *pad) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w = &c->pooling;
    const flux_tensor *t = into ? run->g->node[into->node] : NULL;
    flux__windows_job j;
    flux__strided_scatter_job padding;
    int64_t contiguous[FLUX_MAX_DIMS], at[FLUX_MAX_DIMS] = { 0 };
    int dims = FLUX_MAX_DIMS;
    if (w->g >= 0 && (!(flux__number_value(run->g, &k->value[w->zero]) == 0) ||
                      !flux__windows_counted(run, k, &k->operand[w->places], c->inner)))
        return false;
    const flux__operand *ox = &k->operand[k->value[w->x].operand],
                        *og = w->g >= 0 ? &k->operand[k->value[w->g].operand] : NULL;
    memset(&j, 0, sizeof j);
    j.slice_rows = 1, j.pooled.n = (int)c->inner;
    j.x = (const float *)run->ptr[ox->src] + ox->offset;
    j.g = og ? (const float *)run->ptr[og->src] + og->offset : NULL;
    j.y = (float *)run->ptr[k->value[w->top].out];
    flux__value_strides(k, &k->value[w->top], contiguous);
    if (into) {
        const flux_shape *part = &into->operand[0].shape;
        memcpy(contiguous, t->stride, (size_t)part->ndim * sizeof *contiguous);
        j.image = (float *)run->ptr[run->plan->nleaf + into->node], j.rel = t->rel;
        dims = flux__spread_slices(t, part, &j.slice);
    }
    if (pad) {
        int slices;
        padding = flux__scatter_job(run, pad), j.pad = &padding;
        if (!flux__pads_slices(j.pad, k, ox, &slices) || (into && slices != dims) ||
            padding.src == (const char *)(into ? j.image : j.y)) return false;
        dims = slices;
    }
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        bool in = k->reduced >> d & 1;
        j.dim[d] = in ? 1 : k->full[d];
        j.step[0][d] = pad && d >= dims ? 0 : ox->stride[d], j.step[1][d] = og ? og->stride[d] : 0,
            j.step[2][d] = contiguous[d];
        if (!in && k->full[d] > 1 && !j.run_length) j.run_length = k->full[j.first = d];
        else if (d < dims) j.slice_rows *= j.dim[d];
    }
    if (j.first >= dims || (into && contiguous[j.first] < 1)) return false;
    for (j.next = j.first; j.next < FLUX_MAX_DIMS - 1 && j.dim[++j.next] == 1;) {}
    for (int64_t i = 0; i < c->inner; i++) {
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if (k->reduced >> d & 1)
                j.from[i] += at[d] * ox->stride[d], j.to[i] += at[d] * contiguous[d];
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if ((k->reduced >> d & 1) && ++at[d] < k->full[d]) break;
            else at[d] = 0;
    }
    j.pooled.slots = w->sum ? flux__windows_slots(k, c) : 0, j.pooled.add = into != NULL;
    j.pooled.by = w->by < 0 ? 1 : flux__float_of(flux__number_value(run->g, &k->value[w->by]));
    flux__plan_lines(&j);
    j.rows = c->outer / j.run_length;
    j.each = c->outer * c->inner < 32768 ? j.rows : (j.rows + 63) / 64;
    if (into || pad) j.each = (j.each + j.slice_rows - 1) / j.slice_rows * j.slice_rows;
    else if (j.rows == 1 && c->outer * c->inner >= 32768)
        j.piece = flux__gemm_up((j.run_length + 63) / 64, 16);
    const int64_t tasks = j.piece ? (j.run_length + j.piece - 1) / j.piece :
        (j.rows + j.each - 1) / j.each;
    if (into) j.phase = j.slice / j.out.step + 64;
    const int64_t sums = into ? tasks * j.out.step * j.phase : 0, pads = pad ? padding.slice : 0;
    if ((into || pad) &&
        !(j.sum = (float *)flux__scratch((size_t)(sums + tasks * pads) * sizeof *j.sum)))
        return false;
    if (pad) j.x = j.sum + sums;
    flux__parallel(tasks, flux__windows_task, &j);
    flux__scratch_done(j.sum);
    return true;
}
static bool flux__run_windows(flux__run *run, flux__kernel *k) {
    return flux__windows_by(run, k, NULL, NULL);
}

/* Whether kernel k is a pooling of windows. */
static bool flux__pools(const flux__kernel *k) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    return k->kind == FLUX__K_FUSED && c->whole && c->whole->run_all == flux__run_windows;
}

/* Whether kernel k only pads what the windows of the next one alone are read from. */
static bool flux__pads_windows(const flux__run *run, const flux__kernel *k) {
    if (k->kind != FLUX__K_STRIDED_SCATTER || !flux__pools(k + 1) ||
        run->g->node[k->node]->dtype != FLUX_F32) return false;
    const flux__pooling *w = &((const flux__cpu *)k[1].ready)->pooling;
    const flux__slot_info *own = &run->plan->slot[k->node];
    const int slot = run->plan->nleaf + k->node;
    return k[1].operand[k[1].value[w->x].operand].src == slot && !own->keep &&
           &run->plan->kernel[own->last_kernel] == k + 1 &&
           (w->g < 0 || k[1].operand[k[1].value[w->g].operand].src != slot);
}

/* Whether kernel k is the gradient of a maximum, and the spread that comes next alone reads it:
   then it is added where it belongs, window after window, as flux__add_windows would. */
static bool flux__adds_next(const flux__run *run, const flux__kernel *k, bool padded) {
    const flux__kernel *into = k + 1;
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w;
    int64_t step[FLUX_MAX_DIMS];
    if (into->kind != FLUX__K_STRIDED_SCATTER || !flux__pools(k) || c->pooling.g < 0) return false;
    w = &c->pooling;
    const flux__operand *o = &into->operand[0];
    const int slot = k->value[w->top].out, nleaf = run->plan->nleaf;
    const flux__slot_info *own = &run->plan->slot[slot - nleaf];
    const flux_tensor *t = run->g->node[into->node];
    const flux__operand *x = &k->operand[k->value[w->x].operand];
    const void *image = run->ptr[nleaf + into->node];
    bool same = x->offset == t->rel;      /* the image lies as x does */
    if (o->src != slot || o->offset || own->keep || &run->plan->kernel[own->last_kernel] != into ||
        !t->arg.i[1] || image == run->ptr[k->operand[k->value[w->g].operand].src]) return false;
    flux__contiguous_strides(&o->shape, step);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        const int64_t n = d < o->shape.ndim ? o->shape.dim[d] : 1;
        if (k->full[d] != n || (n > 1 && o->stride[d] != step[d])) return false;
        same = same && (n == 1 || x->stride[d] == t->stride[d]);
    }
    return same || padded || image != run->ptr[x->src];
}

/* Runs a pooling or its gradient at once with the kernel before it, if that pads, and the one
   after, if that adds it up; k: the first of n kernels. Returns how many it ran, or 0. */
static int flux__run_windows_joined(flux__run *run, const flux__kernel *k, int n) {
    const flux__kernel *pad = n > 1 && flux__pads_windows(run, k) ? k : NULL;
    if (pad) k++, n--;
    const flux__kernel *into = n > 1 && flux__adds_next(run, k, pad != NULL) ? k + 1 : NULL;
    if (!(pad || into) || !flux__windows_by(run, k, into, pad)) return 0;
    return 1 + (pad != NULL) + (into != NULL);
}

/* A copy of 32-bit words in another order, as of a convolution kernel that is flipped: a few
   contiguous words are too little work for a block. from, to: steps of the shape `part`; each:
   slices of its last dim in a task. */
typedef struct flux__copy_job {
    flux_shape part;
    int64_t from[FLUX_MAX_DIMS], to[FLUX_MAX_DIMS], each;
    const char *src;
    char *dst;
} flux__copy_job;

/* Copies one task's slices. */
static void flux__copy_task(void *ctx, int64_t task) {
    const flux__copy_job *j = (const flux__copy_job *)ctx;
    flux__copy_job part = *j;
    int last = part.part.ndim - 1;
    int64_t first = task * j->each, rest = part.part.dim[last] - first;
    part.part.dim[last] = rest < j->each ? rest : j->each;
    /* the dim with the smaller step runs first, so that a cache line that is read is used up */
    if (llabs(part.from[last]) < llabs(part.from[last - 1])) {
        int64_t dim = part.part.dim[last], from = part.from[last], to = part.to[last];
        part.part.dim[last] = part.part.dim[last - 1], part.from[last] = part.from[last - 1],
            part.to[last] = part.to[last - 1];
        part.part.dim[last - 1] = dim, part.from[last - 1] = from, part.to[last - 1] = to;
    }
    flux__copy_elements(FLUX_F32, &part.part, j->dst + first * j->to[last] * 4, part.to,
                        j->src + first * j->from[last] * 4, part.from, false);
}

/* Whether a kernel only copies 32-bit words into another order; if so, fills in the shape and the
   steps of *j. */
static bool flux__copy_steps(const flux__kernel *k, flux__copy_job *j) {
    const flux__value *x = &k->value[0], *v = &k->value[k->nvalue - 1];
    int64_t at = 1;
    if (k->nvalue != 2 || x->kind != FLUX__V_LOAD || v->kind != FLUX__V_CONVERT || x->out >= 0 ||
        v->out < 0 || k->reduced) return false;
    const flux__operand *o = &k->operand[x->operand];
    if (o->dtype != v->dtype || flux__dtypes[o->dtype].size != 4) return false;
    j->part = flux__shape(NULL, 0);
    for (int d = 0; d < FLUX_MAX_DIMS; at *= k->full[d++]) {
        int last = j->part.ndim - 1;
        if (k->full[d] == 1) continue;
        if (last >= 0 && o->stride[d] == j->from[last] * j->part.dim[last]) {
            j->part.dim[last] = flux__times(j->part.dim[last], k->full[d]);
            continue;
        }
        j->from[j->part.ndim] = o->stride[d], j->to[j->part.ndim] = at;
        j->part.dim[j->part.ndim++] = k->full[d];
    }
    return j->part.ndim >= 2;
}

static bool flux__match_copy(flux__kernel *k, flux__cpu *c, int line) {
    flux__copy_job j;
    return k->kind == FLUX__K_FUSED && line == k->nvalue - 1 && c->outer > 0 &&
           flux__copy_steps(k, &j);
}

/* Runs such a copy. */
static bool flux__run_copy(flux__run *run, flux__kernel *k) {
    flux__copy_job j;
    int64_t n = 1;
    if (!flux__copy_steps(k, &j)) return false;
    for (int d = 0; d + 1 < j.part.ndim; d++) n *= j.part.dim[d];
    j.each = (1 << 15) / n + 1;
    j.src = flux__operand_ptr(run, &k->operand[k->value[0].operand]);
    j.dst = (char *)run->ptr[k->value[1].out];
    flux__parallel((j.part.dim[j.part.ndim - 1] + j.each - 1) / j.each, flux__copy_task, &j);
    return true;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_WINDOWS_H */
