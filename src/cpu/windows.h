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
#include "casts.h"
#include "gemm_pack.h"
#include "backend.h"
#include "whole.h"

/* ---------------------------------------------------------------------- cpu/windows.h
   Patterns of whole kernels that run without blocks: the maximum or mean of
   small windows (pooling), the gradient of the maximum, window by window, and
   copies of elements in another order, as of a flipped kernel. Windows of half
   formats are widened and narrowed slice by slice. cpu/ready.h has the table of
   patterns; cpu/pooling.h runs such windows together with the kernels before and behind them.

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
    flux__lines in, out;                  /* of x, and in a gradient of y */
    flux__pooled pooled;                  /* what all rows have in common */
    /* from one line to the next; windows that fit; rows that are taken together */
    int64_t ld, part, together;
    int64_t from[FLUX__WINDOW], to[FLUX__WINDOW];    /* places of a window's elements in x and y */
    /* windows two apart are taken from where they lie, and a gradient written in pairs, as where
       windows two wide tile an image: lines would double what is read and written */
    bool direct;
    /* the windows' dims, and for each the steps of x, of g and of y */
    int64_t dim[FLUX_MAX_DIMS], step[3][FLUX_MAX_DIMS];
    int first, next;                      /* the dim along which a row runs, and the rows' own */
    int64_t rows, run_length;             /* number of rows, and of windows side by side in a row */
    /* rows in a task; piece > 0: there is one row only, and a task has so many windows of it */
    int64_t each;
    int64_t piece;
} flux__windows_job;

/* Whether value v only makes a number of a half format of an f32. */
static bool flux__stores_narrow(const flux__value *v) {
    return v->kind == FLUX__V_ROUND && v->op == v->dtype && flux__is_half(v->dtype);
}

/* Whether value v is a load of numbers of the result's type, f32 or a half format, that nothing
   else stores, outer or not. */
static bool flux__is_words(const flux__kernel *k, const flux__pooling *p, int v, bool outer) {
    const flux__value *w = &k->value[v];
    return v >= 0 && w->kind == FLUX__V_LOAD && w->outer == outer && w->ctype == FLUX__F32C &&
           k->operand[w->operand].dtype == k->value[p->top].dtype && w->out < 0;
}

/* Whether a kernel is the maximum or sum of windows, if its last value is a reduction or that
   divided by a number, or the gradient of the maximum; fills in *w. */
static bool flux__is_windows(const flux__kernel *k, flux__pooling *w) {
    const flux__value *top = &k->value[w->top], *v = top, *red;
    const bool half = flux__stores_narrow(top);
    const int n = k->nvalue - half;
    w->g = w->places = w->zero = w->by = -1;
    if (half) v = &k->value[top->a];
    if (top->out < 0 || v->ctype != FLUX__F32C ||
        (half ? v->out >= 0 : top->dtype != FLUX_F32)) return false;
    red = v;
    if (v->kind == FLUX__V_OP && v->op == FLUX__OP_DIV && v->outer && n == 4 &&
        k->value[v->b].kind == FLUX__V_NUMBER) red = &k->value[v->a], w->by = v->b;
    if (red->kind == FLUX__V_REDUCE && n == (w->by < 0 ? 2 : 4)) {
        w->x = red->a, w->sum = red->op == FLUX__RED_SUM;
        return (w->sum || (red->op == FLUX__RED_MAX && red == v)) && (red == v || red->out < 0) &&
               flux__is_words(k, w, w->x, false);
    }
    if (v->kind != FLUX__V_OP || v->op != FLUX__OP_WHERE || v->outer) return false;
    const flux__value *eq = &k->value[v->a], *arg, *i;
    w->g = v->b, w->zero = v->c;
    /* `where` takes its condition as a float */
    if (eq->kind == FLUX__V_CONVERT && eq->out < 0) eq = &k->value[eq->a];
    if (eq->kind != FLUX__V_OP || eq->op != FLUX__OP_EQ || eq->out >= 0 ||
        k->value[w->zero].kind != FLUX__V_NUMBER || !flux__is_words(k, w, w->g, true)) return false;
    arg = &k->value[eq->b], i = &k->value[eq->a], w->x = arg->a, w->places = i->operand;
    return arg->kind == FLUX__V_ARGREDUCE && arg->op == 1 && arg->out < 0 &&
           flux__is_words(k, w, w->x, false) && i->kind == FLUX__V_LOAD && !i->outer &&
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
            if (back) flux__section_now()->weave(at, line, next, both);
            else flux__section_now()->unweave(line, next, at, both);
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
   x, g and y. memory: four times FLUX__LINES. */
static FLUX__O2 void flux__windows_run(const flux__windows_job *j, flux__pooled *p, float *memory,
                                       int64_t (*at)[3], int64_t rows, int64_t o, int64_t n) {
    const flux__lines *in = &j->in, *to = &j->out;
    const int64_t pitch = n + in->most, all = (rows - 1) * pitch + n, sg = j->step[1][j->first],
                  margin = to->most + 16;
    const bool here = in->step == 1 && rows == 1 && all >= 16;
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
    p->windows = all < 16 ? 16 : all, p->rows = 1, p->step = 1, p->paired = false;
    for (int r = 0; r < rows && !here; r++)
        flux__copy_lines(j, line + r * pitch, x + at[r][0], n, false);
    for (int l = 0; l < in->n && all < 16; l++)
        memset(line + l * j->ld + all + in->most, 0, 16 * sizeof *line);
    for (int w = 0; w < p->n; w++)
        p->x[w] = here ? x + at[0][0] + j->from[w] : line + in->line[w] * j->ld + in->at[w];
    if (!j->g) {
        p->y = rows == 1 && n >= 16 ? y + at[0][2] : out;
        flux__section_now()->pool(p);
        for (int r = 0; r < rows && p->y == out; r++)
            flux__copy_words(y + at[r][2], 1, out + r * pitch, 1, n);
        return;
    }
    p->g = g, p->y = place;
    memset(g - margin, 0, (size_t)(all + 2 * margin + 48) * sizeof *g);
    memset(place - margin, 0, (size_t)margin * sizeof *g);
    memset(place + all, 0, (size_t)(margin + 48) * sizeof *g);
    for (int r = 0; r < rows; r++)
        flux__copy_words(g + r * pitch, 1, j->g + o * sg + at[r][1], sg, n);
    for (int l = 0; l < to->n; l++)
        p->d[l] = out + l * j->ld, p->length[l] = all + to->more[l];
    flux__section_now()->pool(p);
    for (int r = 0; r < rows; r++)
        flux__copy_lines(j, out + r * pitch, y + at[r][2], n, true);
}

/* Runs one task: some rows of windows, or a piece of the only one. */
static FLUX__O2 void flux__windows_task(void *ctx, int64_t part) {
    const flux__windows_job *j = (const flux__windows_job *)ctx;
    int64_t row = part * j->each, end = row + j->each < j->rows ? row + j->each : j->rows, rest,
            at[FLUX__TOGETHER][3], now[3] = { 0 }, place[FLUX_MAX_DIMS] = { 0 }, o = 0,
            last = j->run_length;
    float memory[4 * FLUX__LINES];
    flux__pooled p = j->pooled;
    int some = 0, i, d;
    if (j->piece) row = 0, end = 1, o = part * j->piece, last = flux__gemm_min(last, o + j->piece);
    for (d = j->first + 1, rest = row; d < FLUX_MAX_DIMS; rest /= j->dim[d++]) {
        place[d] = rest % j->dim[d];
        for (i = 0; i < 3; i++) now[i] += place[d] * j->step[i][d];
    }
    for (int64_t many; row < end; row += many) {
        many = j->direct ? flux__gemm_min(end - row, j->dim[j->next] - place[j->next]) : 1;
        memcpy(at[some++], now, sizeof now);
        for (d = j->next, rest = many; d < FLUX_MAX_DIMS; place[d++] = 0, rest = 1) {
            for (i = 0; i < 3; i++) now[i] += rest * j->step[i][d];
            if ((place[d] += rest) < j->dim[d]) break;
            for (i = 0; i < 3; i++) now[i] -= j->dim[d] * j->step[i][d];
        }
        if (row + many < end && some < j->together) continue;
        for (int64_t m; o < last; o += m) {
            m = flux__gemm_min(last - o, j->part);
            flux__windows_run(j, &p, memory, at, j->direct ? many : some, o, m);
        }
        some = 0, o = 0;
    }
}

/* Finds the lines of the windows' elements, and how many rows and windows are taken together. */
static void flux__plan_lines(flux__windows_job *j) {
    flux__pooled *p = &j->pooled;
    const int n = p->n;
    const int64_t sx = j->step[0][j->first], sy = j->step[2][j->first], row = j->run_length;
    flux__find_lines(&j->in, j->from, n, sx, 15);
    if (j->g) flux__find_lines(&j->out, j->to, n, sy, 0);
    j->ld = FLUX__LINES / (j->g ? n : j->in.n) / 16 * 16, j->part = j->ld - j->in.most - 32;
    if (j->g) j->part = flux__gemm_min(j->part, FLUX__LINES - 2 * j->out.most - 96);
    j->together = flux__gemm_min(j->part / (row + j->in.most), FLUX__TOGETHER);
    if (j->together < 1) j->together = 1;
    j->direct = row >= 4 && sx == 2 &&
                (!j->g || (sy == 2 && n % 2 == 0 && j->step[1][j->first] == 1));
    for (int w = 0; w < n && j->g; w += 2) j->direct = j->direct && j->to[w + 1] == j->to[w] + 1;
    if (j->direct) j->together = 1, j->part = row;
    p->lines = j->out.n;
    for (int l = 0, i = 0; l < p->lines; l++, p->first[l] = i)
        for (int k = n - 1; k >= 0; k--) {    /* windows that overlap are added in their order */
            const int w = j->out.order[k];
            if (j->out.line[w] == l) p->which[i++] = w, p->at[w] = j->out.at[w];
        }
}

/* Sets the windows of kernel k whose dims are the first `dims` of its, and their steps in x, g (or
   NULL) and y. */
static void flux__set_windows(const flux__run *run, const flux__kernel *k, int dims,
                              const flux__operand *x, const flux__operand *g,
                              flux__windows_job *j) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w = &c->pooling;
    int64_t contiguous[FLUX_MAX_DIMS], at[FLUX_MAX_DIMS] = { 0 };
    memset(j, 0, sizeof *j);
    j->pooled.n = (int)c->inner, j->rows = 1;
    flux__value_strides(k, &k->value[w->top], contiguous);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        const bool in = k->reduced >> d & 1;
        j->dim[d] = in || d >= dims ? 1 : k->full[d];
        j->step[0][d] = x->stride[d], j->step[1][d] = g ? g->stride[d] : 0,
            j->step[2][d] = contiguous[d];
        if (j->dim[d] > 1 && !j->run_length) j->run_length = j->dim[j->first = d];
        else j->rows *= j->dim[d];
    }
    for (j->next = j->first; j->next < FLUX_MAX_DIMS - 1 && j->dim[++j->next] == 1;) {}
    for (int64_t i = 0; i < c->inner; i++) {
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if (k->reduced >> d & 1)
                j->from[i] += at[d] * x->stride[d], j->to[i] += at[d] * contiguous[d];
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if ((k->reduced >> d & 1) && ++at[d] < k->full[d]) break;
            else at[d] = 0;
    }
    j->pooled.slots = w->sum ? flux__windows_slots(k, c) : 0;
    j->pooled.by = w->by < 0 ? 1 : flux__float_of(flux__number_value(run->g, &k->value[w->by]));
}

/* Windows of a half format, by slices of the kernel's dims from `dims` on: of each, what it reads
   is widened, and what it gives is narrowed. */
typedef struct flux__half_windows {
    const flux__kernel *k;
    flux__windows_job windows;            /* of one slice */
    int dims, type;
    const char *src[2];                   /* x and g, or NULL */
    char *dst;
    /* of what a slice reads of x and of g: from where on, and elements; elements that it gives */
    int64_t first[2], n[2], made;
    int64_t slices;
    int failed;
} flux__half_windows;

/* Computes one slice. */
static void flux__half_windows_task(void *ctx, int64_t slice) {
    flux__half_windows *h = (flux__half_windows *)ctx;
    flux__windows_job j = h->windows;
    int64_t at[2] = { 0, 0 }, rest = slice;
    float *memory = (float *)flux__scratch((size_t)(h->n[0] + h->n[1] + h->made) * sizeof *memory),
          *read[2];
    if (!memory) {
        flux__atomic_store32(&h->failed, 1);
        return;
    }
    for (int d = h->dims; d < FLUX_MAX_DIMS; rest /= h->k->full[d++])
        for (int i = 0; i < 2; i++) at[i] += rest % h->k->full[d] * j.step[i][d];
    read[0] = memory, read[1] = memory + h->n[0];
    for (int i = 0; i < 2; i++)
        if (h->src[i]) flux__load(FLUX__F32C, read[i], h->type, h->src[i] + (at[i] + h->first[i]) *
                                  2, 1, h->n[i]);
    j.x = read[0] - h->first[0], j.g = h->src[1] ? read[1] - h->first[1] : NULL;
    j.y = memory + h->n[0] + h->n[1];
    flux__windows_task(&j, 0);
    flux__store(h->type, h->dst + slice * h->made * 2, 1, FLUX__F32C, j.y, h->made);
    flux__scratch_done(memory);
}

/* Runs windows of a half format. False: a slice would read far too much, or memory has run out. */
static bool flux__run_half_windows(flux__run *run, const flux__kernel *k, const flux__operand *x,
                                   const flux__operand *g) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__operand *o[2] = { x, g };
    flux__half_windows h;
    const int64_t all = c->outer * c->inner;
    memset(&h, 0, sizeof h);
    h.k = k, h.type = x->dtype, h.slices = 1;
    /* a slice has whole windows, a row of them at least, and 4096 elements */
    for (int d = 0, row = -1; d < FLUX_MAX_DIMS; d++) {
        if (k->full[d] == 1) continue;
        if (k->reduced >> d & 1) h.dims = d + 1;
        else if (row < 0) row = d, h.dims = d + 1;
    }
    for (int d = h.dims; d < FLUX_MAX_DIMS; d++) h.slices *= k->full[d];
    for (; h.dims < FLUX_MAX_DIMS && all / h.slices < 4096; h.slices /= k->full[h.dims++]) {}
    flux__set_windows(run, k, h.dims, x, g, &h.windows);
    for (int i = 0; i < 2 && o[i]; i++) {
        h.src[i] = flux__operand_ptr(run, o[i]), h.n[i] = 1;
        for (int d = 0; d < h.dims; d++) {
            const int64_t far = (k->full[d] - 1) * o[i]->stride[d];
            h.first[i] += far < 0 ? far : 0, h.n[i] += far < 0 ? -far : far;
        }
        if (h.n[i] > 4 * (all / h.slices) + 4096) return false;
    }
    h.made = (g ? all : c->outer) / h.slices;
    h.dst = (char *)run->ptr[k->value[c->pooling.top].out];
    h.windows.g = (const float *)(const void *)h.src[1];    /* whether there is one */
    flux__plan_lines(&h.windows);
    h.windows.each = h.windows.rows;
    flux__parallel(h.slices, flux__half_windows_task, &h);
    return !flux__atomic_load32(&h.failed);
}

/* Runs a max pooling or its gradient window by window. False, and nothing is done: the gradient
   has other numbers than each element's place in its window, or than 0. */
static bool flux__run_windows(flux__run *run, flux__kernel *k) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w = &c->pooling;
    flux__windows_job j;
    if (w->g >= 0 && (!(flux__number_value(run->g, &k->value[w->zero]) == 0) ||
                      !flux__windows_counted(run, k, &k->operand[w->places], c->inner)))
        return false;
    const flux__operand *ox = &k->operand[k->value[w->x].operand],
                        *og = w->g >= 0 ? &k->operand[k->value[w->g].operand] : NULL;
    if (ox->dtype != FLUX_F32) return flux__run_half_windows(run, k, ox, og);
    flux__set_windows(run, k, FLUX_MAX_DIMS, ox, og, &j);
    j.x = (const float *)(const void *)flux__operand_ptr(run, ox);
    j.g = og ? (const float *)(const void *)flux__operand_ptr(run, og) : NULL;
    j.y = (float *)run->ptr[k->value[w->top].out];
    flux__plan_lines(&j);
    j.each = c->outer * c->inner < 32768 ? j.rows : (j.rows + 63) / 64;
    if (j.rows == 1 && c->outer * c->inner >= 32768)
        j.piece = flux__gemm_up((j.run_length + 63) / 64, 16);
    flux__parallel(j.piece ? (j.run_length + j.piece - 1) / j.piece :
                   (j.rows + j.each - 1) / j.each, flux__windows_task, &j);
    return true;
}

/* A copy of elements in another order, as of a convolution kernel that is flipped: a few
   contiguous elements are too little work for a block. from, to: steps of the shape `part`; each:
   slices of its last dim in a task. */
typedef struct flux__copy_job {
    flux_shape part;
    int type;
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
    const int64_t size = (int64_t)flux__dtypes[j->type].size;
    flux__copy_elements(j->type, &part.part, j->dst + first * j->to[last] * size,
                        part.to, j->src + first * j->from[last] * size, part.from, false);
}

/* Whether a kernel only copies elements into another order; if so, fills in their type, the shape
   and the steps of *j. */
static bool flux__copy_steps(const flux__kernel *k, flux__copy_job *j) {
    const flux__value *x = &k->value[0], *v = &k->value[k->nvalue - 1];
    int64_t at = 1;
    if (k->nvalue != 2 || x->kind != FLUX__V_LOAD ||
        (v->kind != FLUX__V_CONVERT && !flux__stores_narrow(v)) || x->out >= 0 || v->out < 0 ||
        k->reduced) return false;
    const flux__operand *o = &k->operand[x->operand];
    if (o->dtype != v->dtype) return false;
    j->type = v->dtype;
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
