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
#include "gemm_kernels.h"
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
   flux__join_order. Four windows are taken side by side without branches on
   their numbers. Little work is done on the calling thread. */

/* Windows of at most so many elements. */
#define FLUX__WINDOW 64

FLUX__BEGIN_LEAN

/* A pooling (g NULL) or the gradient of a maximum, window by window. */
typedef struct flux__windows_job {
    flux__run *run;
    const flux__kernel *k;
    const float *x, *g;
    float *y;
    /* elements in a window, and their offsets from the window's start in x, and in the gradient
       y: */
    int64_t n;
    int64_t from[FLUX__WINDOW], to[FLUX__WINDOW];
    int64_t wide;                         /* see flux__windows_wide; 0 of a gradient */
    bool dense;                           /* the gradient's windows lie one behind the other */
    /* the image to which a gradient is added, or NULL; elements of its slices that have no window
       in common, how many runs of windows each has, and memory for a slice for each task: a slice
       of the image may lie where that of x was */
    float *image, *sum;
    int64_t slice, slice_rows;
    int64_t slots;                        /* of a sum, see flux__join_order, 1 or 4; 0: a maximum */
    float by;                             /* what a sum is divided by, 1 if by nothing */
    /* the windows' dims, and for each the steps of x and of g; below, those of y: */
    int64_t dim[3][FLUX_MAX_DIMS];
    int64_t step[FLUX_MAX_DIMS];
    int64_t rows, run_length;             /* number of runs, and of windows side by side in a run */
    /* runs in a task; piece > 0: there is one run only, and a task has so many windows of it */
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

/* Whether sums of windows are faster one by one than in blocks, which take windows side by side
   for their rows: those begin several elements apart. Their order must be one of two: element
   after element, or four slots of which the last have what is left over. */
static bool flux__windows_add(const flux__kernel *k, const flux__cpu *c) {
    const int64_t *step = k->operand[k->value[c->pooling.x].operand].stride;
    int d = 0;
    while (d < FLUX_MAX_DIMS - 1 && (k->full[d] == 1 || (k->reduced >> d & 1))) d++;
    return FLUX__GEMM_VECTORS && !c->inner_first && step[d] > 1 && k->full[d] >= 8 &&
           c->inner <= c->order.chunk &&
           c->order.slots == (c->order.rows && c->inner >= 4 ? 4 : 1);
}

/* Whether a pooling or a maximum's gradient ends in this line, and its windows are small ones. */
static bool flux__match_windows(flux__kernel *k, flux__cpu *c, int line) {
    c->pooling.top = line;
    return k->kind == FLUX__K_FUSED && line == k->nvalue - 1 && c->inner > 1 &&
           c->inner <= FLUX__WINDOW && c->outer > 1 && flux__is_windows(k, &c->pooling) &&
           (c->pooling.g >= 0 || (c->pooling.sum ? flux__windows_add(k, c) :
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

/* Four windows are taken side by side (at the end of a run the last one several times), without
   a branch on their elements, which are as good as random, and without an array of four: to
   load four elements at once that were stored one by one takes long. */
#if FLUX__GEMM_VECTORS
typedef int32_t flux__mask4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef flux__vec16f flux__float4;
#  define FLUX__FOUR(x, a, b, c) { (x)[0], (x)[a], (x)[b], (x)[c] }
/* best becomes the larger of v and best, a NaN before a number; `more` says where that is v. */
#  define FLUX__LARGEST(v, best, more) do {                                                            \
        more = ~((v) <= (best)) & ((best) == (best));                                                  \
        best = (flux__float4)(((flux__mask4)(v) & more) | ((flux__mask4)(best) & ~more));              \
    } while (0)
#  define FLUX__LARGER(v, best, at, w) do {                                                            \
        flux__mask4 more, here = { w, w, w, w };                                                       \
        FLUX__LARGEST(v, best, more);                                                                  \
        at = (here & more) | (at & ~more);                                                             \
    } while (0)
#else
typedef struct flux__mask4 { int32_t at[4]; } flux__mask4;
typedef struct flux__float4 { float at[4]; } flux__float4;
#  define FLUX__FOUR(x, a, b, c) { { (x)[0], (x)[a], (x)[b], (x)[c] } }
#  define FLUX__LARGER(v, best, at_, w) do {                                                           \
        for (int l = 0; l < 4; l++)                                                                    \
            if ((v).at[l] > (best).at[l] || ((v).at[l] != (v).at[l] && (best).at[l] == (best).at[l]))  \
                (best).at[l] = (v).at[l], (at_).at[l] = w;                                             \
    } while (0)
#endif

/* Four windows' elements: every second of seven, or any. */
#if FLUX__GEMM_VECTORS
#  define FLUX__WINDOWS_NEXT(v, from)                                                              \
    if (sx == 2 && left > 3) FLUX__TWOS(v, from)                                                   \
    else { const flux__float4 four = FLUX__FOUR(from, b, c, d); v = four; }
#else
#  define FLUX__WINDOWS_NEXT(v, from) { const flux__float4 four = FLUX__FOUR(from, b, c, d); v = four; }
#endif

#if FLUX__GEMM_VECTORS
/* The same for windows two wide that tile a row (their elements, and those of the gradient, in
   pairs), and for any windows two elements apart. The last four may overlap those before.
   FLUX__TWOS takes every second of seven elements. */
#  define FLUX__TWOS(v, from) {                                                                       \
        flux__float4 head = *(const flux__float4 *)(const void *)(from), tail = *(const flux__float4 *)(const void *)((from) + 3); \
        FLUX__SHUFFLE(v, head, tail, flux__vec16i, 0, 2, 5, 7)                                        \
    }
/* Whether the job's windows are of that kind; sx, sg, sy: steps from window to window in x, g
   and y. */
static bool flux__windows_paired(const flux__windows_job *j, bool gradient, int64_t sx, int64_t sg,
                                 int64_t sy) {
    if (j->run_length < 4 || sx != 2 || sy != (gradient ? 2 : 1) ||
        (gradient && (sg != 1 || j->n % 2))) return false;
    for (int64_t w = 0; w < j->n && gradient; w += 2)
        if (j->to[w + 1] != j->to[w] + 1) return false;
    return true;
}
/* The maxima y of a run of such windows: that of each column first, which overlapping windows
   share, then those of as many columns as a window has. */
static FLUX__O2 void flux__windows_columns(const flux__windows_job *j, const float *x, float *y) {
    const int64_t wide = j->wide;
    enum { PART = 128 };                  /* so many windows a time */
    float column[2 * PART + FLUX__WINDOW];
    flux__float4 v, best;
    flux__mask4 more;
    for (int64_t o = 0, i, n; o < j->run_length; o += n, x += 2 * n, y += n) {
        n = j->run_length - o;
        if (n >= 2 * PART - 4) n = PART;
        else if (n > PART) n /= 2;        /* no part is shorter than four windows */
        const int64_t columns = 2 * (n - 1) + wide;
        for (int64_t c = 0; c < columns; c += 4) {
            i = c + 4 > columns ? columns - 4 : c;
            best = *(const flux__float4 *)(const void *)(x + j->from[0] + i);
            for (int64_t w = wide; w < j->n; w += wide) {
                v = *(const flux__float4 *)(const void *)(x + j->from[w] + i);
                FLUX__LARGEST(v, best, more);
            }
            *(flux__float4 *)(void *)(column + i) = best;
        }
        for (int64_t c = 0; c < n; c += 4) {
            i = c + 4 > n ? n - 4 : c;
            FLUX__TWOS(best, column + 2 * i)
            for (int64_t w = 1; w < wide; w++) {
                FLUX__TWOS(v, column + 2 * i + w)
                FLUX__LARGEST(v, best, more);
            }
            *(flux__float4 *)(void *)(y + i) = best + 0.0f;   /* see flux__settle_zeros */
        }
    }
}
/* One run of such windows: the maximum y, or the gradient y, which gets g at the place of the
   maximum and 0 elsewhere. */
static FLUX__O2 void flux__windows_pairs(const flux__windows_job *j, const float *x, const float *g,
                                         float *y) {
    if (j->wide) {
        flux__windows_columns(j, x, y);
        return;
    }
    for (int64_t i = 0, o = 0; o < j->run_length; o += 4) {
        flux__float4 v, best, low, high;
        flux__mask4 at;
        i = o + 4 > j->run_length ? j->run_length - 4 : o;
        memset(&at, 0, sizeof at);
        FLUX__TWOS(best, x + 2 * i + j->from[0])
        for (int32_t w = 1; w < (int32_t)j->n; w++) {
            FLUX__TWOS(v, x + 2 * i + j->from[w])
            FLUX__LARGER(v, best, at, w);
        }
        if (!g) *(flux__float4 *)(void *)(y + i) = best + 0.0f;   /* see flux__settle_zeros */
        for (int32_t w = 0; w < (int32_t)j->n && g; w += 2) {
            const flux__mask4 own = *(const flux__mask4 *)(const void *)(g + i),
                              one = { w, w, w, w }, two = one + 1;
            float *to = y + 2 * i + j->to[w];
            low = (flux__float4)(own & (at == one)), high = (flux__float4)(own & (at == two));
            FLUX__SHUFFLE(v, low, high, flux__vec16i, 0, 4, 1, 5)
            *(flux__float4 *)(void *)to = v;
            FLUX__SHUFFLE(v, low, high, flux__vec16i, 2, 6, 3, 7)
            *(flux__float4 *)(void *)(to + 4) = v;
        }
    }
}
/* The sums of a run of windows that begin sx elements apart, divided by j->by. */
static FLUX__O2 void flux__windows_sums(const flux__windows_job *j, const float *x, float *y,
                                        int64_t sx) {
    const flux__float4 by = { j->by, j->by, j->by, j->by };
    for (int64_t left = j->run_length; left > 0; left -= 4, x += 4 * sx, y += 4) {
        const int64_t b = left > 1 ? sx : 0, c = left > 2 ? 2 * sx : b, d = left > 3 ? 3 * sx : c;
        flux__float4 v, s[4];
        int64_t w = 0;
        for (int k = 0; k < 4 && k < j->slots; k++, w++) {
            FLUX__WINDOWS_NEXT(v, x + j->from[w])
            s[k] = v;
        }
        for (int k; w < j->n;)            /* what is left over goes to the last slots */
            for (k = j->slots == 1 || j->n - w >= 4 ? 0 : 4 - (int)(j->n - w); k < j->slots;
                 k++, w++) {
                FLUX__WINDOWS_NEXT(v, x + j->from[w])
                s[k] += v;
            }
        if (j->slots == 4) s[0] = (s[0] + s[2]) + (s[1] + s[3]);
        s[0] = (s[0] + 0.0f) / by;        /* a reduction starts from +0 */
        if (left > 3) *(flux__float4 *)(void *)y = s[0];
        else memcpy(y, s, (size_t)left * sizeof *y);
    }
}
#endif

/* One run of windows of any kind: x, g and y begin at its first window, and step by sx, sg and
   sy from window to window. */
static FLUX__O2 void flux__windows_run(const flux__windows_job *j, const float *x, const float *g,
                                       float *y, int64_t sx, int64_t sg, int64_t sy) {
#if FLUX__GEMM_VECTORS
    if (j->slots) {
        flux__windows_sums(j, x, y, sx);
        return;
    }
    if (!j->image && flux__windows_paired(j, g != NULL, sx, sg, sy)) {
        flux__windows_pairs(j, x, g, y);
        return;
    }
#endif
    for (int64_t o = 0; o < j->run_length; o += 4, x += 4 * sx, y += 4 * sy) {
        int64_t left = j->run_length - o, n = left < 4 ? left : 4;
        int64_t b = left > 1 ? sx : 0, c = left > 2 ? 2 * sx : b, d = left > 3 ? 3 * sx : c;
        flux__float4 best, v;
        flux__mask4 at;
        float most[4];
        int32_t place[4];
        memset(&at, 0, sizeof at);
        FLUX__WINDOWS_NEXT(best, x + j->from[0])
        for (int32_t w = 1; w < (int32_t)j->n; w++) {
            FLUX__WINDOWS_NEXT(v, x + j->from[w])
            FLUX__LARGER(v, best, at, w);
        }
        memcpy(most, &best, sizeof most);
        memcpy(place, &at, sizeof place);
        for (int64_t i = 0; i < n && j->image; i++)
            y[i * sy + j->to[place[i]]] += g[(o + i) * sg];
        if (j->image) continue;
        if (g && j->dense) memset(y, 0, (size_t)(n * sy) * sizeof *y);
        for (int64_t i = 0; i < n; i++) {
            float *to = y + i * sy;
            for (int64_t w = 0; w < j->n && g && !j->dense; w++) to[j->to[w]] = 0;
            if (g) to[j->to[place[i]]] = g[(o + i) * sg];
            else *to = most[i] + 0.0f;
        }
    }
}

/* Runs one task: some runs of windows, or a piece of the only one. */
static void flux__windows_task(void *ctx, int64_t part) {
    const flux__windows_job *j = (const flux__windows_job *)ctx;
    int64_t row = part * j->each, end = row + j->each < j->rows ? row + j->each : j->rows,
            at[3] = { 0 }, place[FLUX_MAX_DIMS], rest = row;
    const size_t bytes = (size_t)j->slice * sizeof *j->y;
    float *y = j->y;
    int first = 0, d;
    while (first + 1 < FLUX_MAX_DIMS && j->dim[0][first] == 1) first++;
    if (j->piece) {
        flux__windows_job some = *j;
        const int64_t from = part * j->piece, sx = j->dim[1][first], sg = j->dim[2][first],
                      sy = j->step[first];
        some.run_length = flux__gemm_min(j->piece, j->run_length - from);
        flux__windows_run(&some, j->x + from * sx, j->g ? j->g + from * sg : NULL, j->y + from * sy,
                          sx, sg, sy);
        return;
    }
    for (d = first + 1; d < FLUX_MAX_DIMS; rest /= j->dim[0][d++]) {
        place[d] = rest % j->dim[0][d];
        at[0] += place[d] * j->dim[1][d], at[1] += place[d] * j->dim[2][d],
            at[2] += place[d] * j->step[d];
    }
    for (; row < end; row++) {
        if (j->image && row % j->slice_rows == 0) {
            y = j->y + part * j->slice - row / j->slice_rows * j->slice;
            memset(j->sum + part * j->slice, 0, bytes);
        }
        flux__windows_run(j, j->x + at[0], j->g ? j->g + at[1] : NULL, y + at[2],
                          j->dim[1][first], j->dim[2][first], j->step[first]);
        if (j->image && (row + 1) % j->slice_rows == 0)
            memcpy(j->image + row / j->slice_rows * j->slice, j->sum + part * j->slice, bytes);
        for (d = first + 1; d < FLUX_MAX_DIMS; place[d++] = 0) {
            at[0] += j->dim[1][d], at[1] += j->dim[2][d], at[2] += j->step[d];
            if (++place[d] < j->dim[0][d]) break;
            at[0] -= j->dim[0][d] * j->dim[1][d], at[1] -= j->dim[0][d] * j->dim[2][d],
                at[2] -= j->dim[0][d] * j->step[d];
        }
    }
}

/* How many elements wide the rows of a window are, if its elements are rows of as many
   neighbours in x; else 0. */
static int64_t flux__windows_wide(const flux__windows_job *j) {
    int64_t wide = 1;
    while (wide < j->n && j->from[wide] == j->from[0] + wide) wide++;
    for (int64_t w = 0; w < j->n; w++)
        if (j->n % wide || j->from[w] != j->from[w - w % wide] + w % wide) return 0;
    return wide;
}

/* Runs a max pooling or its gradient window by window; a gradient with `into` adds to that
   spread. False, and nothing is done: the gradient has other numbers than each element's place in
   its window, or than 0. */
static bool flux__windows_by(flux__run *run, const flux__kernel *k, const flux__kernel *into) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w = &c->pooling;
    const flux_tensor *t = into ? run->g->node[into->node] : NULL;
    flux__windows_job j;
    int64_t contiguous[FLUX_MAX_DIMS], at[FLUX_MAX_DIMS] = { 0 };
    int first = 0, dims = FLUX_MAX_DIMS;
    if (w->g >= 0 && (!(flux__number_value(run->g, &k->value[w->zero]) == 0) ||
                      !flux__windows_counted(run, k, &k->operand[w->places], c->inner)))
        return false;
    const flux__operand *ox = &k->operand[k->value[w->x].operand],
                        *og = w->g >= 0 ? &k->operand[k->value[w->g].operand] : NULL;
    memset(&j, 0, sizeof j);
    j.n = c->inner, j.slice_rows = 1;
    j.x = (const float *)run->ptr[ox->src] + ox->offset;
    j.g = og ? (const float *)run->ptr[og->src] + og->offset : NULL;
    j.y = (float *)run->ptr[k->value[w->top].out];
    flux__value_strides(k, &k->value[w->top], contiguous);
    if (into) {
        const flux_shape *part = &into->operand[0].shape;
        memcpy(contiguous, t->stride, (size_t)part->ndim * sizeof *contiguous);
        j.image = (float *)run->ptr[run->plan->nleaf + into->node];
        dims = flux__spread_slices(t, part, &j.slice);
    }
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        bool in = k->reduced >> d & 1;
        j.dim[0][d] = in ? 1 : k->full[d];
        j.dim[1][d] = ox->stride[d], j.dim[2][d] = og ? og->stride[d] : 0,
            j.step[d] = contiguous[d];
        if (!in && k->full[d] > 1 && !j.run_length) j.run_length = k->full[first = d];
        else if (d < dims) j.slice_rows *= j.dim[0][d];
    }
    if (first >= dims) return false;
    for (int64_t i = 0; i < j.n; i++) {
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if (k->reduced >> d & 1)
                j.from[i] += at[d] * ox->stride[d], j.to[i] += at[d] * contiguous[d];
        for (int d = 0; d < FLUX_MAX_DIMS; d++)
            if ((k->reduced >> d & 1) && ++at[d] < k->full[d]) break;
            else at[d] = 0;
    }
    j.wide = j.g || w->sum ? 0 : flux__windows_wide(&j);
    j.slots = w->sum ? c->order.slots : 0;
    j.by = w->by < 0 ? 1 : flux__float_of(flux__number_value(run->g, &k->value[w->by]));
    j.dense = j.g && !into && contiguous[first] == j.n;
    for (int64_t i = 0; i < j.n && j.dense; i++) j.dense = j.to[i] == i;
    j.rows = c->outer / j.run_length;
    j.each = c->outer * j.n < 32768 ? j.rows : (j.rows + 63) / 64;
    if (into) j.each = (j.each + j.slice_rows - 1) / j.slice_rows * j.slice_rows;
    else if (j.rows == 1 && c->outer * j.n >= 32768)
        j.piece = flux__gemm_up((j.run_length + 63) / 64, 16);
    const int64_t tasks = j.piece ? (j.run_length + j.piece - 1) / j.piece :
        (j.rows + j.each - 1) / j.each;
    if (into && !(j.sum = (float *)flux__scratch((size_t)(tasks * j.slice) * sizeof *j.sum)))
        return false;
    if (into) j.y = j.sum + t->rel;
    flux__parallel(tasks, flux__windows_task, &j);
    flux__scratch_done(j.sum);
    return true;
}
static bool flux__run_windows(flux__run *run, flux__kernel *k) {
    return flux__windows_by(run, k, NULL);
}

/* Runs the gradient of a maximum and the spread that comes next, if that alone reads it, at once:
   the gradient is added where it belongs, window after window, as flux__add_windows would. */
static bool flux__run_windows_added(flux__run *run, const flux__kernel *k) {
    const flux__kernel *into = k + 1;
    const flux__cpu *c = (const flux__cpu *)k->ready;
    const flux__pooling *w;
    int64_t step[FLUX_MAX_DIMS];
    if (k->kind != FLUX__K_FUSED || into->kind != FLUX__K_STRIDED_SCATTER || !c->whole ||
        c->whole->run_all != flux__run_windows || c->pooling.g < 0) return false;
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
    if (!same && image == run->ptr[x->src]) return false;
    return flux__windows_by(run, k, into);
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
