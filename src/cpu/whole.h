#ifndef FLUX__CPU_WHOLE_H
#define FLUX__CPU_WHOLE_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../graph/reductions.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/program.h"
#include "../schedule/dispatch.h"
#include "loops.h"
#include "casts.h"
#include "reductions.h"
#include "gemm_kernels.h" /* flux__vec16f, flux__vec16i */
#include "products.h"

/* ---------------------------------------------------------------------- cpu/whole.h
   Kernels that are no elementwise program: spread (the reverse of a strided
   view), concatenation, gather and scatter_add. flux__copy_elements moves or
   adds elements between two strided layouts of one shape.

   Invariant: threads share slices of the result, so each element has one writer
   and additions have one order; gather and scatter_add go in the order of
   the indices. Where places of a spread meet, f16 and bf16 are summed in f32. An
   index out of range is an error that names it. */

FLUX__BEGIN_LEAN

/* ---------------- whole-tensor kernels */

/* Copies (or with `add` adds) the elements of a strided layout of the shape *s to another one
   of the same shape; t: their dtype, steps in elements. */
static void flux__copy_elements(int t, const flux_shape *s, char *dst, const int64_t *dst_step,
                                const char *src, const int64_t *src_step, bool add);

/* Copies n 32-bit words, ss apart, to places ds apart. */
static FLUX__O2 void flux__copy_words(float *dst, int64_t ds, const float *src, int64_t ss,
                                      int64_t n) {
    /* rows of an image are too short to be worth a call of memcpy each */
    if (ds == 1 && ss == 1) {
        for (; n >= 8; n -= 8, dst += 8, src += 8) memcpy(dst, src, 32);
        if (n >= 4) memcpy(dst, src, 16), n -= 4, dst += 4, src += 4;
        for (; n > 0; n--) memcpy(dst++, src++, 4);
        return;
    }
    for (; n >= 4; n -= 4, dst += 4 * ds, src += 4 * ss) {
        memcpy(dst, src, 4), memcpy(dst + ds, src + ss, 4);
        memcpy(dst + 2 * ds, src + 2 * ss, 4), memcpy(dst + 3 * ds, src + 3 * ss, 4);
    }
    for (; n > 0; n--, dst += ds, src += ss) memcpy(dst, src, 4);
}

/* Writes n words of a and of b in turn. */
static FLUX__O2 void flux__interleave_words(float *dst, const float *a, const float *b, int64_t n) {
#if FLUX__GEMM_VECTORS
    for (; n >= 4; n -= 4, dst += 8, a += 4, b += 4) {
        const flux__vec16f v = *(const flux__vec16f *)(const void *)a,
                           w = *(const flux__vec16f *)(const void *)b;
        flux__vec16f low, high, *at = (flux__vec16f *)(void *)dst;
        FLUX__SHUFFLE(low, v, w, flux__vec16i, 0, 4, 1, 5)
        FLUX__SHUFFLE(high, v, w, flux__vec16i, 2, 6, 3, 7)
        at[0] = low, at[1] = high;
    }
#endif
    for (; n > 0; n--, dst += 2) memcpy(dst, a++, 4), memcpy(dst + 1, b++, 4);
}

/* The same of halves. */
static FLUX__O2 void flux__interleave_halves(uint16_t *dst, const uint16_t *a, const uint16_t *b,
                                             int64_t n) {
#if FLUX__GEMM_VECTORS
    typedef uint16_t V __attribute__((vector_size(16)));
    for (; n >= 8; n -= 8, dst += 16, a += 8, b += 8) {
        V v, w, low, high;
        memcpy(&v, a, sizeof v), memcpy(&w, b, sizeof w);
        FLUX__SHUFFLE(low, v, w, V, 0, 8, 1, 9, 2, 10, 3, 11)
        FLUX__SHUFFLE(high, v, w, V, 4, 12, 5, 13, 6, 14, 7, 15)
        memcpy(dst, &low, sizeof low), memcpy(dst + 8, &high, sizeof high);
    }
#endif
    for (; n > 0; n--, dst += 2) dst[0] = *a++, dst[1] = *b++;
}

/* Adds n floats, ss apart, to those at dst, ds apart. */
static FLUX__O2 void flux__add_words(float *dst, int64_t ds, const float *src, int64_t ss,
                                     int64_t n) {
#if FLUX__GEMM_VECTORS
    /* adding -0 leaves the elements in between as they are */
    const flux__vec16f none = { -0.0f, -0.0f, -0.0f, -0.0f };
    flux__vec16f v, w, *at;
    for (; n >= 4 && ds == 1 && ss == 1; n -= 4, dst += 4, src += 4)
        *(flux__vec16f *)(void *)dst += *(const flux__vec16f *)(const void *)src;
    /* not >=: nothing beyond the last element is touched */
    for (; n > 4 && ds == 2 && ss == 1; n -= 4, dst += 8, src += 4) {
        v = *(const flux__vec16f *)(const void *)src, at = (flux__vec16f *)(void *)dst;
        FLUX__SHUFFLE(w, v, none, flux__vec16i, 2, 6, 3, 7)
        FLUX__SHUFFLE(v, v, none, flux__vec16i, 0, 4, 1, 5)
        at[0] += v, at[1] += w;
    }
#endif
    for (; n > 0; n--, dst += ds, src += ss) *dst += *src;
}

/* Copies or adds n elements of dtype t, ss apart, to places ds apart. */
static void flux__copy_row(int t, int64_t n, char *dst, int64_t ds, const char *src, int64_t ss,
                           bool add) {
    size_t size = flux__dtypes[t].size;
    if (!add && size == 4 && (n < 256 || ds != 1 || ss != 1)) {
        flux__copy_words((float *)(void *)dst, ds, (const float *)(const void *)src, ss, n);
        return;
    }
    if (add && t == FLUX_F32) {
        flux__add_words((float *)(void *)dst, ds, (const float *)(const void *)src, ss, n);
        return;
    }
    if (!add) {
        flux__copies(size, n, dst, ds, src, ss);
        return;
    }
    int ctype = flux__class_of(t);
    char a[256 * 8], b[256 * 8];
    for (int64_t i = 0; i < n; i += 256) {
        int64_t m = n - i < 256 ? n - i : 256;
        char *to = dst + (ptrdiff_t)(i * ds) * (ptrdiff_t)size;
        flux__load(ctype, a, t, src + (ptrdiff_t)(i * ss) * (ptrdiff_t)size, ss, m);
        flux__load(ctype, b, t, to, ds, m);
        flux__accumulate(ctype, FLUX__RED_SUM, b, a, m);
        flux__store(t, to, ds, ctype, b, m);
    }
}

/* Adds floats like flux__copy_image, one or two dims of which are as short as a window's: along
   the first one that is not, a row for each element of a window. From the last element to the
   first, so that windows that overlap are added in their order. */
static void flux__add_windows(const int64_t *n, float *dst, const int64_t *ds, const float *src,
                              const int64_t *ss) {
    const int along = n[1] < 8 ? 2 : 1, other = 3 - along;
    const bool down = (ds[0] > 0) == (ds[along] > 0);
    for (int64_t i = 0; i < n[other]; i++)
        for (int64_t c = 0; c < n[0]; c++) {
            const int64_t at = down ? n[0] - 1 - c : c;
            flux__add_words(dst + i * ds[other] + at * ds[0], ds[along],
                            src + i * ss[other] + at * ss[0], ss[along], n[along]);
        }
}

/* Goes on to the next index `at` along the dims from `first` on, and to its places in two layouts
   of steps ds and ss. False: that was the last one. */
static FLUX__INLINE bool flux__next_place(const flux_shape *s, int first, int64_t *at, int64_t *to,
                                          const int64_t *ds, int64_t *from, const int64_t *ss) {
    for (int d = first; d < s->ndim; d++) {
        *to += ds[d], *from += ss[d];
        if (++at[d] < s->dim[d]) return true;
        *to -= ds[d] * s->dim[d], *from -= ss[d] * s->dim[d];
        at[d] = 0;
    }
    return false;
}

/* Whether copying repeats each element of a contiguous row, one behind the other. */
static bool flux__repeats(const flux_shape *s, const int64_t *ds, const int64_t *ss) {
    return s->ndim > 1 && !ss[0] && ds[0] == 1 && ss[1] == 1 && ds[1] == s->dim[0];
}

/* Whether every second element of a row that is written is one of the first dim, and those between
   are the third dim's other half, as of windows two wide that tile an image. */
static bool flux__tiles_by_two(const flux_shape *s, const int64_t *ds, const int64_t *ss) {
    return s->ndim > 2 && ds[0] == 2 && ss[0] == 1 && s->dim[2] == 2 && ds[2] == 1;
}

/* Copies words, or halves, between two such layouts: both halves of a row are written together. */
static void flux__interleave_image(const flux_shape *s, char *dst, const int64_t *ds,
                                   const char *src, const int64_t *ss, size_t size) {
    int64_t at[FLUX_MAX_DIMS] = { 0 }, to = 0, from = 0;
    do {
        for (int64_t i = 0; i < s->dim[1]; i++) {
            char *y = dst + (size_t)(to + i * ds[1]) * size;
            const char *x = src + (ptrdiff_t)(from + i * ss[1]) * (ptrdiff_t)size,
                       *next = x + (ptrdiff_t)ss[2] * (ptrdiff_t)size;
            if (size == 4)
                flux__interleave_words((float *)(void *)y, (const float *)(const void *)x,
                                       (const float *)(const void *)next, s->dim[0]);
            else flux__interleave_halves((uint16_t *)(void *)y, (const uint16_t *)(const void *)x,
                                         (const uint16_t *)(const void *)next, s->dim[0]);
        }
    } while (flux__next_place(s, 3, at, &to, ds, &from, ss));
}

/* Copies 32-bit words or adds floats between two layouts of at least two dims, two dims in one
   loop. */
static void flux__copy_image(const flux_shape *s, char *dst, const int64_t *ds, const char *src,
                             const int64_t *ss, bool add) {
    void (*row)(float *, int64_t, const float *, int64_t, int64_t) = add ? flux__add_words :
        flux__copy_words;
    int64_t at[FLUX_MAX_DIMS] = { 0 }, to = 0, from = 0;
    const bool windows = add && s->ndim > 2 && s->dim[0] < 8;
    const bool repeats = !add && flux__repeats(s, ds, ss);
    for (;;) {
        float *y = (float *)(void *)dst + to;
        const float *x = (const float *)(const void *)src + from;
        if (windows) flux__add_windows(s->dim, y, ds, x, ss);
        if (repeats) flux__repeat_words(y, x, s->dim[0], s->dim[1]);
        for (int64_t i = 0; i < s->dim[1] && !windows && !repeats; i++)
            row(y + i * ds[1], ds[0], x + i * ss[1], ss[0], s->dim[0]);
        if (!flux__next_place(s, windows ? 3 : 2, at, &to, ds, &from, ss)) return;
    }
}

/* Runs over all dims but one, row by row; words of two dims and more go to flux__copy_image. Other
   elements of short rows are copied along the second dim. */
static void flux__copy_elements(int t, const flux_shape *s, char *dst, const int64_t *ds,
                                const char *src, const int64_t *ss, bool add) {
    int64_t at[FLUX_MAX_DIMS] = { 0 }, n = s->ndim ? s->dim[0] : 1, to = 0, from = 0;
    const ptrdiff_t size = (ptrdiff_t)flux__dtypes[t].size;
    const bool repeats = !add && flux__repeats(s, ds, ss),
               down = repeats || (!add && s->ndim > 1 && n < 16 && s->dim[1] > n);
    if (flux__count(s) == 0) return;
    if (!add && (size == 4 || size == 2) && flux__tiles_by_two(s, ds, ss)) {
        flux__interleave_image(s, dst, ds, src, ss, (size_t)size);
        return;
    }
    if ((add ? t == FLUX_F32 : size == 4) && s->ndim > 1) {
        flux__copy_image(s, dst, ds, src, ss, add);
        return;
    }
    do {
        char *y = dst + (ptrdiff_t)to * size;
        const char *x = src + (ptrdiff_t)from * size;
        if (!down) flux__copy_row(t, n, y, s->ndim ? ds[0] : 1, x, s->ndim ? ss[0] : 1, add);
        if (repeats) flux__repeat((size_t)size, y, x, n, s->dim[1]);
        for (int64_t i = 0; i < n && down && !repeats; i++)
            flux__copy_row(t, s->dim[1], y + i * ds[0] * size, ds[1], x + i * ss[0] * size, ss[1],
                           add);
    } while (flux__next_place(s, 1 + down, at, &to, ds, &from, ss));
}

/* Stores a number as one element of dtype t. */
static void flux__store_number(int t, void *dst, double value) {
    char one[8];
    const int ctype = flux__class_of(t);
    flux__set_number(ctype, one, value);
    flux__store(t, dst, 1, ctype, one, 1);
}

/* Whether the rows of a strided layout of the shape *s are contiguous and follow each other in
   memory, with gaps between them or none. */
static bool flux__rows_ascend(const flux_shape *s, const int64_t *step) {
    int64_t end = s->ndim ? s->dim[0] : 0;
    if (!end || step[0] != 1) return false;
    for (int d = 1; d < s->ndim; end += (s->dim[d] - 1) * step[d], d++)
        if (s->dim[d] < 1 || (s->dim[d] > 1 && step[d] < end)) return false;
    return true;
}

/* Copies a row of n bytes. A short one goes in blocks of 16, the last of which overlaps the one
   before, as it is not worth a call of memcpy. */
static FLUX__INLINE void flux__copy_bytes(char *to, const char *from, int64_t n) {
    if (n < 16 || n > 1024) {
        memcpy(to, from, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n - 16; i += 16) memcpy(to + i, from + i, 16);
    memcpy(to + n - 16, from + n - 16, 16);
}

/* Writes a slice of `slice` elements of `size` bytes: the rows of src, of shape *s and steps ss,
   go to the places with steps ds from element rel on, which flux__rows_ascend has found to ascend;
   what is before, between and behind them is filled with *one. Where rows have 16 bytes or more, a
   gap of up to 16 is filled with 16, as the row behind it is written next. */
static FLUX__O2 void flux__copy_padded(const flux_shape *s, char *dst, int64_t rel,
                                       const int64_t *ds, const char *src, const int64_t *ss,
                                       int64_t size, const char *one, int64_t slice) {
    const int64_t n = s->dim[0] * size, rows = s->ndim > 1 ? s->dim[1] : 1,
                  down = s->ndim > 1 ? ds[1] * size : 0, step = s->ndim > 1 ? ss[1] * size : 0;
    int64_t at[FLUX_MAX_DIMS] = { 0 }, to = rel, from = 0;
    char gap[16], *done = dst;
    flux__fill(gap, one, (size_t)size, (size_t)(16 / size));
    for (bool more = s->ndim > 0; more; more = flux__next_place(s, 2, at, &to, ds, &from, ss)) {
        char *y = dst + to * size;
        const char *x = src + from * size;
        for (int64_t i = 0; i < rows; i++, y += down, x += step) {
            if (n >= 16 && y - done <= 16) memcpy(done, gap, 16);
            else flux__fill(done, one, (size_t)size, (size_t)((y - done) / size));
            flux__copy_bytes(y, x, n);
            done = y + n;
        }
    }
    flux__fill(done, one, (size_t)size, (size_t)((dst + slice * size - done) / size));
}

/* An as_strided_scatter (the reverse of a strided view) in slices: `units` slices of
   `slice` elements of the result, each a task's `each` at a time; `part` is the shape of the
   operand within a slice. */
typedef struct flux__strided_scatter_job {
    const flux_tensor *t;
    flux_shape part;
    flux__operand o;
    char *dst;
    const char *src;
    int64_t slice, units, each;
    char one[8];                          /* the element to fill with, stored as one of its dtype:
                                             aligned here, behind an int64_t */
    bool padded;                          /* see flux__copy_padded */
} flux__strided_scatter_job;

/* Fills slice u, which goes to dst, and writes the operand's elements into it; the operand's last
   dims, which `part` lacks, count the slices. */
static void flux__scatter_slice(const flux__strided_scatter_job *j, int64_t u, char *dst) {
    ptrdiff_t size = (ptrdiff_t)flux__dtypes[j->t->dtype].size;
    int64_t from = 0, rest = u;
    for (int d = j->part.ndim; d < j->o.shape.ndim; rest /= j->o.shape.dim[d++])
        from += rest % j->o.shape.dim[d] * j->o.stride[d];
    if (j->padded) {
        flux__copy_padded(&j->part, dst, j->t->rel, j->t->stride, j->src + (ptrdiff_t)from * size,
                          j->o.stride, size, j->one, j->slice);
        return;
    }
    /* elements that are not added have places of their own, so as many as a slice's fill it */
    if (j->t->arg.i[1] || flux__count(&j->part) < j->slice)
        flux__fill(dst, j->one, (size_t)size, (size_t)j->slice);
    flux__copy_elements(j->t->dtype, &j->part, dst + (ptrdiff_t)j->t->rel * size, j->t->stride,
                        j->src + (ptrdiff_t)from * size, j->o.stride, j->t->arg.i[1] != 0);
}
/* Makes the slices of one task. */
static void flux__strided_scatter_task(void *ctx, int64_t task) {
    const flux__strided_scatter_job *j = (const flux__strided_scatter_job *)ctx;
    const int64_t bytes = j->slice * (int64_t)flux__dtypes[j->t->dtype].size;
    for (int64_t u = task * j->each; u < j->units && u < (task + 1) * j->each; u++)
        flux__scatter_slice(j, u, j->dst + u * bytes);
}

/* Cuts the result of the spread t along the last dims of its operand, as long as each slice has its
   elements alone; *slice: elements of a slice. Returns how many dims are left. */
static int flux__spread_slices(const flux_tensor *t, const flux_shape *from, int64_t *slice) {
    int64_t reach = t->rel;
    int dims = from->ndim;
    *slice = flux__size(t);
    for (int d = 0; d < dims; d++) reach += (from->dim[d] - 1) * t->stride[d];
    for (; dims > 1 && t->stride[dims - 1] > 0 &&
           t->stride[dims - 1] * from->dim[dims - 1] == *slice; dims--) {
        const int64_t step = t->stride[dims - 1];
        reach -= (from->dim[dims - 1] - 1) * step;
        if (reach >= step || step < 64) break;
        *slice = step;
    }
    return dims;
}

/* The job of a spread of operand *o to t, whose elements go to dst. The result is cut into slices
   along the operand's last dims as long as each slice has its elements alone, so that threads share
   the slices. */
static flux__strided_scatter_job flux__scatter_job(const flux__run *run, const flux_tensor *t,
                                                   const flux__operand *o, char *dst) {
    flux__strided_scatter_job j = { t, o->shape, *o, dst, flux__operand_ptr(run, o), 1, 1, 1,
                                    { 0 }, false };
    j.part.ndim = flux__spread_slices(t, &o->shape, &j.slice);
    for (int d = j.part.ndim; d < o->shape.ndim; d++) j.units *= o->shape.dim[d];
    j.each = (1 << 15) / j.slice + 1;
    j.padded = !t->arg.i[1] && o->stride[0] == 1 && j.part.ndim &&
               j.part.dim[0] * (int64_t)flux__dtypes[t->dtype].size >= 16 &&
               flux__rows_ascend(&j.part, t->stride);
    flux__store_number(t->dtype, j.one, t->arg.i[1] ? 0 : t->arg.num);
    return j;
}
static flux__strided_scatter_job flux__scatter_job_of(const flux__run *run,
                                                      const flux__kernel *k) {
    return flux__scatter_job(run, run->g->node[k->node], &k->operand[0],
                             (char *)run->ptr[run->plan->nleaf + k->node]);
}
/* Makes all slices of a spread. */
static void flux__scatter_slices(flux__strided_scatter_job *j) {
    flux__parallel((j->units + j->each - 1) / j->each, flux__strided_scatter_task, j);
}

/* Whether kernel k, whose result the kernel behind it is the last to read, is only a spread to
   places of its own, as padding is, whose result need not stay. */
static bool flux__pads_next(const flux__run *run, const flux__kernel *k) {
    const flux__slot_info *own = &run->plan->slot[k->node];
    return k->kind == FLUX__K_STRIDED_SCATTER && !run->g->node[k->node]->arg.i[1] && !own->keep &&
           &run->plan->kernel[own->last_kernel] == k + 1;
}

/* Runs a spread. Elements that go to the same place are added in a float's own format, those of
   f16 and bf16 in f32. */
static int flux__run_strided_scatter(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    const flux__operand *o = &k->operand[0];
    char *dst = (char *)run->ptr[run->plan->nleaf + k->node];
    bool half = t->arg.i[1] && flux__is_half(t->dtype);
    int64_t n = flux__size(t);
    if (n == 0) return 0;
    if (!half) {
        flux__strided_scatter_job j = flux__scatter_job_of(run, k);
        flux__scatter_slices(&j);
        return 0;
    }
    float *wide = flux__widen(o, run->ptr[o->src], k->scratch_at),
          *sum = (float *)(void *)((char *)wide + flux__widened_bytes(o));
    int64_t contiguous[FLUX_MAX_DIMS];
    flux__contiguous_strides(&o->shape, contiguous);
    memset(sum, 0, (size_t)n * sizeof *sum);
    flux__copy_elements(FLUX_F32, &o->shape, (char *)(sum + t->rel), t->stride, (const char *)wide,
                        contiguous, true);
    flux__store(t->dtype, dst, 1, FLUX__F32C, sum, n);
    return 0;
}

/* A concatenation, cut along dim `end`, the last one longer than 1, into tasks of `each`
   slices. */
typedef struct flux__cat_job {
    flux__run *run;
    const flux__kernel *k;
    const flux_tensor *t;
    char *dst;
    int end;
    int64_t each;
} flux__cat_job;

/* Copies one task's slices of the result's last dim, from the operands that have them. */
static void flux__cat_task(void *ctx, int64_t task) {
    const flux__cat_job *j = (const flux__cat_job *)ctx;
    int64_t contiguous[FLUX_MAX_DIMS], at = 0, from = task * j->each, to = from + j->each;
    int dim = (int)j->t->arg.i[0], end = j->end;
    ptrdiff_t size = (ptrdiff_t)flux__dtypes[j->t->dtype].size;
    flux_shape s = flux__dims(j->t);
    flux__contiguous_strides(&s, contiguous);
    if (to > s.dim[end]) to = s.dim[end];
    for (int i = 0; i < j->k->noperand; i++) {
        const flux__operand *o = &j->k->operand[i];
        flux_shape part = o->shape;
        int64_t many = dim < part.ndim ? part.dim[dim] : 1, first = from, last = to;
        if (dim == end) first = from > at ? from - at : 0, last = to - at < many ? to - at : many;
        if (first < last) {
            char *dst = j->dst + (ptrdiff_t)(at * contiguous[dim] + first * contiguous[end]) * size;
            const char *src = flux__operand_ptr(j->run, o);
            if (end < part.ndim)
                part.dim[end] = last - first, src += (ptrdiff_t)(first * o->stride[end]) * size;
            flux__copy_elements(j->t->dtype, &part, dst, contiguous, src, o->stride, false);
        }
        at += many;
    }
}

/* Runs a concatenation, in tasks of about 8192 elements. */
static int flux__run_cat(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    flux__cat_job j = { run, k, t, (char *)run->ptr[run->plan->nleaf + k->node], t->ndim - 1, 1 };
    int64_t n = flux__size(t), tasks = n / 8192;
    while (j.end > 0 && t->dim[j.end] == 1) j.end--;
    if (tasks < 1) tasks = 1;
    if (n > 0) j.each = (t->dim[j.end] + tasks - 1) / tasks;
    if (n > 0) flux__parallel((t->dim[j.end] + j.each - 1) / j.each, flux__cat_task, &j);
    return 0;
}

/* A gather or scatter_add: of `large` (x, or what is added to), slices of the shape `slice` lie
   `row` apart along the picked dim; of `small`, index_out apart by dim of the index. Both have the
   dims `behind`, whose points are `units`, each a task's `each` at a time. */
typedef struct flux__index_job {
    const flux_tensor *t;
    const flux__operand *index;
    const int64_t *ids;
    char *large, *small;
    bool scatter;
    flux_shape slice, behind;             /* the dims before and after the picked one */
    int64_t large_step[FLUX_MAX_DIMS], small_step[FLUX_MAX_DIMS], row, index_out[FLUX_MAX_DIMS];
    int64_t n, units, each;
} flux__index_job;
enum { FLUX__INDICES = 256 };             /* indices that are looked up at a time */

/* The ids of m indices from number i on; places: the offsets of their slices in `small`. */
static FLUX__O2 void flux__index_ids(const flux__index_job *j, int64_t i, int64_t m, int64_t *ids,
                                     int64_t *places) {
    const flux__operand *x = j->index;
    int64_t point[FLUX_MAX_DIMS], at = 0, place = 0;
    for (int d = 0; d < x->shape.ndim; i /= x->shape.dim[d++]) {
        point[d] = i % x->shape.dim[d];
        at += point[d] * x->stride[d], place += point[d] * j->index_out[d];
    }
    for (int64_t l = 0; l < m; l++) {
        ids[l] = j->ids[at], places[l] = place;
        flux__next_place(&x->shape, 0, point, &at, x->stride, &place, j->index_out);
    }
}

/* The number of the first index that is not within `rows`, or -1; *id: what it is. */
static int64_t flux__index_outside(const flux__index_job *j, int64_t rows, int64_t *id) {
    int64_t ids[FLUX__INDICES], places[FLUX__INDICES];
    for (int64_t i = 0, m; i < j->n; i += m) {
        m = j->n - i;
        if (m > FLUX__INDICES) m = FLUX__INDICES;
        flux__index_ids(j, i, m, ids, places);
        for (int64_t l = 0; l < m; l++)
            if (ids[l] < 0 || ids[l] >= rows) return *id = ids[l], i + l;
    }
    return -1;
}

/* Copies or adds m elements of 32 bits between `large`, at the offsets `rows`, and `small`. */
static FLUX__O2 void flux__index_words(bool add, float *large, const int64_t *rows, float *small,
                                       const int64_t *places, int64_t m) {
    for (int64_t i = 0; i < m && add; i++) large[rows[i]] += small[places[i]];
    for (int64_t i = 0; i < m && !add; i++) memcpy(small + places[i], large + rows[i], 4);
}

/* Runs one task: its points of the dims behind, for some indices at a time, in their order. */
static void flux__index_task(void *ctx, int64_t task) {
    const flux__index_job *j = (const flux__index_job *)ctx;
    int64_t rows[FLUX__INDICES], places[FLUX__INDICES], m;
    const int64_t from = task * j->each, last = from + j->each,
                  to = last < j->units ? last : j->units;
    const ptrdiff_t bytes = (ptrdiff_t)flux__dtypes[j->t->dtype].size;
    const bool words = flux__count(&j->slice) == 1 &&
                       (j->scatter ? j->t->dtype == FLUX_F32 : bytes == 4);
    for (int64_t i = 0; i < j->n; i += m) {
        m = j->n - i;
        if (m > FLUX__INDICES) m = FLUX__INDICES;
        flux__index_ids(j, i, m, rows, places);
        for (int64_t l = 0; l < m; l++) rows[l] *= j->row;
        for (int64_t u = from; u < to; u++) {
            int64_t rest = u, large_at = 0, small_at = 0;
            for (int d = 0, at = j->slice.ndim; d < j->behind.ndim; d++, at++) {
                large_at += rest % j->behind.dim[d] * j->large_step[at];
                small_at += rest % j->behind.dim[d] * j->small_step[at];
                rest /= j->behind.dim[d];
            }
            char *large = j->large + large_at * bytes, *small = j->small + small_at * bytes;
            if (words)
                flux__index_words(j->scatter, (float *)(void *)large, rows,
                                  (float *)(void *)small, places, m);
            for (int64_t l = 0; l < m && !words; l++) {
                char *x = large + rows[l] * bytes, *y = small + places[l] * bytes;
                if (j->scatter)
                    flux__copy_elements(j->t->dtype, &j->slice, x, j->large_step, y, j->small_step,
                                        true);
                else
                    flux__copy_elements(j->t->dtype, &j->slice, y, j->small_step, x, j->large_step,
                                        false);
            }
        }
    }
}

/* Runs a gather or scatter_add: slices of x are copied to the result, or slices of the source are
   added to the result, in the order of the indices. Threads share the dims behind the picked one.
   An index out of range is an error. */
static int flux__run_index(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    const flux__operand *x = &k->operand[0], *src = &k->operand[2];
    const int dim = (int)t->arg.i[0], behind = k->operand[1].shape.ndim;
    char *out = (char *)run->ptr[run->plan->nleaf + k->node];
    int64_t contiguous[FLUX_MAX_DIMS], rows = x->shape.dim[dim], id;
    flux_shape whole = flux__dims(t);
    flux__index_job j;
    bool one = true;
    memset(&j, 0, sizeof j);
    flux__contiguous_strides(&whole, contiguous);
    j.t = t, j.index = &k->operand[1], j.scatter = t->op == FLUX__SCATTER;
    j.ids = (const int64_t *)(const void *)flux__operand_ptr(run, j.index);
    j.large = j.scatter ? out : (char *)(intptr_t)flux__operand_ptr(run, x);
    j.small = j.scatter ? (char *)(intptr_t)flux__operand_ptr(run, src) : out;
    const int64_t *large = j.scatter ? contiguous : x->stride,
                  *small = j.scatter ? src->stride : contiguous;
    j.n = flux__count(&j.index->shape), j.row = large[dim], j.units = 1;
    for (int d = 0, at = 0; d < x->shape.ndim; d++) {
        flux_shape *part = d < dim ? &j.slice : &j.behind;
        if (d == dim) continue;
        part->dim[part->ndim++] = x->shape.dim[d];
        j.large_step[at] = large[d], j.small_step[at++] = small[d < dim ? d : d - 1 + behind];
    }
    for (int d = 0; d < behind; d++) j.index_out[d] = small[dim + d];
    const int64_t outside = flux__index_outside(&j, rows, &id);
    if (outside >= 0) {
        flux__fail("%s: index %lld (number %lld) is not within dim %d of size %lld",
                   flux__op_names[t->op], (long long)id, (long long)outside, dim, (long long)rows);
        return -1;
    }
    for (int d = 0; d < x->shape.ndim; d++) one = one && (x->shape.dim[d] == 1 || !x->stride[d]);
    if (j.scatter && one && flux__size(t) > 0)      /* zeros, as in the gradient of a gather */
        flux__fill(out, flux__operand_ptr(run, x), flux__dtypes[t->dtype].size,
                   (size_t)flux__size(t));
    else if (j.scatter)
        flux__copy_elements(t->dtype, &x->shape, out, contiguous, flux__operand_ptr(run, x),
                            x->stride, false);
    j.units = flux__count(&j.behind);
    j.each = (1 << 15) / (j.n * flux__count(&j.slice) + 1) + 1;
    flux__parallel((j.units + j.each - 1) / j.each, flux__index_task, &j);
    return 0;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_WHOLE_H */
