#ifndef FLUX__GPU_WHOLE_H
#define FLUX__GPU_WHOLE_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../graph/interpolation.h"
#include "../schedule/kernel.h"
#include "../schedule/program.h"
#include "../schedule/spelling.h"
#include "kernels.h"
#include "sorting.h"

/* ---------------------------------------------------------------------- gpu/whole.h
   The text of whole-tensor kernels, one thread an element of the result, or
   several that lie side by side: gather, scatter_add, concatenation, interpolation, and spread
   (as_strided_scatter), the reverse of a strided view.

   Invariant: results know no atomic operations: the thread of an element of the result finds
   all that is added to it and adds it in the order of the operand, so sums are
   the same in every run; half formats are summed in f32. In scatter_add a thread
   compares all indices with its coordinate or, where these are too many, reads its
   part of the keys that earlier launches have sorted (gpu/sorting.h).
   A key holds an index and its number, so equal indices keep their order. The first
   thread that meets an index out of range takes the device's status words by a
   compare-and-swap and fills them, so that no two threads' are mixed; the index
   becomes an error at the next download or wait. Spread goes over
   the dims by falling stride. Where each stride exceeds the reach of the dims
   behind, as in padding and a slice's gradient, an element has one index in each,
   by division; else it loops over the indices alone from which the dims behind
   can still reach the element. */

FLUX__BEGIN_LEAN

/* Declares the coordinates of element o of the result: d0, d1, ... */
static void flux__emit_coordinates(flux__emitter *c, const flux_shape *shape) {
    int64_t before = 1;
    for (int d = 0; d < shape->ndim; d++) {
        flux__emit(&c->s, "    const %s d%d = o", c->index, d);
        if (before > 1) flux__emit(&c->s, " / %lld", (long long)before);
        if (d + 1 < shape->ndim) flux__emit(&c->s, " %% %lld", (long long)shape->dim[d]);
        flux__emit(&c->s, ";\n");
        before *= shape->dim[d];
    }
}

/* Opens a grid-stride loop over the n elements o of the result, `width` of them a turn, and sets
   the launch's grid. */
static void flux__emit_each(flux__emitter *c, int64_t n, int width) {
    int64_t blocks = (n + 256 * width - 1) / (256 * width);
    flux__emit(&c->s,
                "    for (%s o = ((%s)blockIdx.x * 256 + threadIdx.x) * %d; o < %lld; "
                "o += (%s)gridDim.x * %d) {\n", c->index, c->index, width, (long long)n, c->index,
                256 * width);
    c->gk->next.threads = 256, c->gk->next.blocks = 1,
        c->gk->next.grid[0] = flux__gpu_blocks(blocks);
}

/* The statement that adds x, an element as it is stored, to a sum. */
static void flux__emit_add(flux__emitter *c, int dtype, const char *sum, const char *x) {
    int ctype = flux__class_of(dtype);
    flux__emit(&c->s, "%s = sum_%s(%s, ", sum, flux__class_names[ctype], sum);
    flux__emit_loaded(&c->s, dtype, x);
    flux__emit(&c->s, ");");
}

/* Stores sum as element o of the result, and closes the loop of flux__emit_each. */
static void flux__emit_result(flux__emitter *c, int p, int dtype) {
    flux__emit(&c->s, "    p%d[o] = ", p);
    flux__emit_stored(&c->s, dtype, flux__class_of(dtype), "sum");
    flux__emit(&c->s, ";\n    }\n");
}

/* Declares sum, in the class that the dtype is computed in: f32 for half formats. */
static void flux__emit_zero(flux__emitter *c, int dtype) {
    flux__emit(&c->s, "    %s sum = 0;\n", flux__class_types[flux__class_of(dtype)]);
}

/* Adds to a position the offset of element number `var` of a tensor with this shape and these
   strides. */
static void flux__emit_number_at(flux__listing *s, const flux_shape *shape, const int64_t *stride,
                                  const char *var) {
    int64_t before = 1;
    for (int d = 0; d < shape->ndim; d++) {
        flux__emit(s, " + (%s / %lld %% %lld) * %lld", var, (long long)before,
                    (long long)shape->dim[d], (long long)stride[d]);
        before *= shape->dim[d];
    }
}

/* How many neighbouring elements of the result lie side by side in x, at a multiple of as many,
   where places along `dim` are picked: at most 16 bytes of them. */
static int flux__picked_width(const flux__operand *x, int dim) {
    const int size = (int)flux__dtypes[x->dtype].size;
    int width = dim > 0 && x->stride[0] == 1 ? 16 / size : 1;
    while (width > 1 && (x->shape.dim[0] % width != 0 || x->offset % width != 0)) width /= 2;
    for (int d = 1; d < x->shape.ndim; d++)
        while (x->shape.dim[d] > 1 && x->stride[d] % width != 0) width /= 2;
    return width * size < 4 ? 1 : width;
}

/* The beginning of a statement: the thread that takes the status words (parameter pe) says that an
   index into dim of so many rows is out of range, in scatter_add or not. The swap is of 32 bits,
   for one of 64 makes ptxas spill registers in the sort of keys (sm_90). */
static void flux__emit_take_status(flux__listing *s, int pe, int dim, int64_t rows, int adds) {
    flux__emit(s, "    if (atomicCAS((u32 *)p%d, 0u, 1u) == 0) p%d[3] = %d, p%d[4] = %lld, "
               "p%d[5] = %d, ", pe, pe, dim, pe, (long long)rows, pe, adds);
}

/* Gather along arg.i[0]: the coordinates of element o of the result give the position of its
   index, and the index gives the position in the operand. An index out of range is reported,
   and 0 is used. */
static void flux__code_gather(flux__emitter *c, const flux_tensor *t, int out) {
    const flux__operand *x = &c->k->operand[0], *index = &c->k->operand[1];
    int dim = (int)t->arg.i[0], nd = x->shape.ndim, ni = index->shape.ndim, dtype = t->dtype;
    flux_shape whole = flux__dims(t);
    int px = flux__emitter_slot(c, x->src, dtype), pi = flux__emitter_slot(c, index->src, FLUX_I64),
        po = flux__emitter_slot(c, out, dtype);
    int pe = flux__emitter_param(c, 'e', 0, "long long *");
    int64_t rows = x->shape.dim[dim], before = 1;
    const int width = flux__picked_width(x, dim), words = width * (int)flux__dtypes[dtype].size / 4;
    flux__listing *s = &c->s;
    flux__emit_each(c, flux__count(&whole), width);
    flux__emit_coordinates(c, &whole);
    flux__emit(s, "    long long id = p%d[%lld", pi, (long long)index->offset);
    for (int d = 0; d < ni; d++)
        flux__emit(s, " + d%d * %lld", dim + d, (long long)index->stride[d]);
    flux__emit(s, "];\n    if (id < 0 || id >= %lld) {\n", (long long)rows);
    flux__emit_take_status(s, pe, dim, rows, 0);
    flux__emit(s, "p%d[1] = id, p%d[2] = 0", pe, pe);
    for (int d = 0; d < ni; d++) {
        flux__emit(s, " + d%d * %lld", dim + d, (long long)before);
        before *= index->shape.dim[d];
    }
    flux__emit(s, ";\n    id = 0;\n    }\n");
    flux__emit(s, "    const %s from = %lld + (%s)id * %lld", c->index, (long long)x->offset,
               c->index, (long long)x->stride[dim]);
    for (int d = 0; d < nd; d++)
        if (d != dim)
            flux__emit(s, " + d%d * %lld", d < dim ? d : d - 1 + ni, (long long)x->stride[d]);
    if (width == 1) flux__emit(s, ";\n    p%d[o] = p%d[from];\n    }\n", po, px);
    else flux__emit(s, ";\n    *(words%d *)(p%d + o) = *(const words%d *)(p%d + from);\n    }\n",
                    words, po, words, px);
}

/* Scatter_add: each element of the result adds what belongs to its index, in the order of the
   indices. A thread compares all indices with its coordinate or, if these are too many, reads in
   sorted keys, from where a launch of its own has found that those of its index start: the upper
   bits of a key are an index, the lower ones the index's number, so no two keys are equal. */
typedef struct flux__scatter {
    int dim, px, pi, ps, po, pe, bits;    /* parameters of operand, indices, source, result and
                                             status; bits: of a number in a key */
    int64_t n, rows, starts;              /* indices; size of dim; where the starts are in the keys'
                                             memory */
    bool sorts;
    flux__sorting keys;
} flux__scatter;

/* Declares id, index number `var`, and reports it if it is out of range. */
static void flux__emit_index(flux__emitter *c, const flux__scatter *h, const char *var) {
    const flux__operand *index = &c->k->operand[1];
    flux__emit(&c->s, "    const long long id = p%d[%lld", h->pi, (long long)index->offset);
    flux__emit_number_at(&c->s, &index->shape, index->stride, var);
    flux__emit(&c->s, "];\n"
                "    if (id < 0 || id >= %lld)\n", (long long)h->rows);
    flux__emit_take_status(&c->s, h->pe, h->dim, h->rows, 1);
    flux__emit(&c->s, "p%d[1] = id, p%d[2] = %s;\n", h->pe, h->pe, var);
}

/* The launch that finds where each index's keys start, and after the last one's where they end. */
static void flux__code_starts(flux__emitter *c, const flux__scatter *h) {
    flux__emit(&c->s, "    const u64 *keys = (const u64 *)p%d + %lld;\n"
               "    for (long long o = (long long)blockIdx.x * 256 + threadIdx.x; o <= %lld; "
               "o += (long long)gridDim.x * 256) {\n    long long at = 0, end = %lld;\n",
               h->keys.keys, (long long)h->keys.sorted, (long long)h->rows, (long long)h->n);
    flux__emit(&c->s, "    while (at < end) {\n    const long long middle = (at + end) / 2;\n"
               "    if (keys[middle] < (u64)o << %d) at = middle + 1;\n    else end = middle;\n"
               "    }\n    p%d[%lld + o] = at;\n    }\n", h->bits, h->keys.keys,
               (long long)h->starts);
    c->gk->next.threads = 256, c->gk->next.grid[0] = flux__gpu_blocks(h->rows / 256 + 1);
}

/* The elements that a thread of scatter_add adds together: the type of what it loads of them, and
   the text of number j of load u. */
typedef struct flux__picked_load { int width; const char *type, *element; } flux__picked_load;

static flux__picked_load flux__picked_load_of(const flux__operand *src, int dim, bool sorts) {
    const int size = (int)flux__dtypes[src->dtype].size;
    flux__picked_load w = { 1, flux__dtype_types[src->dtype], "l[u]" };
    if (!sorts || !flux__dtypes[src->dtype].real || flux__picked_width(src, dim) * size < 16)
        return w;
    w.width = 16 / size, w.type = size == 8 ? "double_pack" : size == 4 ? "float_pack" : "words4";
    w.element = size == 2 ? "(unsigned short)(l[u].x[j / 2] >> j % 2 * 16)" : "l[u].x[j]";
    return w;
}

/* Adds to the sums what the source has for the indices of this thread's coordinate along dim, in
   the order of their numbers q. What several sorted keys mean is loaded before it is added, so
   that loads are in flight together. */
static void flux__emit_meant(flux__emitter *c, const flux__scatter *h, const flux__picked_load *w) {
    const flux__operand *index = &c->k->operand[1], *src = &c->k->operand[2];
    const int loads = !h->sorts ? 1 : h->n > 4 * h->rows ? 8 : 4;
    flux__listing *s = &c->s;
    if (h->sorts) {
        flux__emit(s, "    const u64 *keys = (const u64 *)p%d + %lld;\n"
                   "    const long long *starts = p%d + %lld, stop = starts[d%d + 1];\n"
                   "    for (long long at = starts[d%d]; at < stop; at += %d) {\n", h->keys.keys,
                   (long long)h->keys.sorted, h->keys.keys, (long long)h->starts, h->dim, h->dim,
                   loads);
    } else {
        flux__emit(s, "    for (%s q = 0; q < %lld; q++) {\n    if (p%d[%lld", c->index,
                   (long long)h->n, h->pi, (long long)index->offset);
        flux__emit_number_at(s, &index->shape, index->stride, "q");
        flux__emit(s, "] != d%d) continue;\n", h->dim);
    }
    flux__emit(s, "    %s l[%d];\n    FULLY\n    for (int u = 0; u < %d; u++) {\n", w->type, loads,
               loads);
    if (h->sorts)
        flux__emit(s, "    if (at + u >= stop) continue;\n"
                   "    const %s q = (%s)(keys[at + u] & %lluu);\n", c->index, c->index,
                   (unsigned long long)(((uint64_t)1 << h->bits) - 1));
    flux__emit(s, "    const %s from = %lld", c->index, (long long)src->offset);
    for (int d = 0; d < c->k->operand[0].shape.ndim; d++)
        if (d != h->dim)
            flux__emit(s, " + d%d * %lld", d,
                       (long long)src->stride[d < h->dim ? d : d - 1 + index->shape.ndim]);
    flux__emit_number_at(s, &index->shape, src->stride + h->dim, "q");
    flux__emit(s, ";\n    l[u] = *(const %s *)(p%d + from);\n    }\n    FULLY\n"
               "    for (int u = 0; u < %d; u++) {\n%s    FULLY\n"
               "    for (int j = 0; j < %d; j++) { ", w->type, h->ps, loads,
               h->sorts ? "    if (at + u >= stop) continue;\n" : "", w->width);
    flux__emit_add(c, src->dtype, "sum[j]", w->element);
    flux__emit(s, " }\n    }\n    }\n");
}

/* Stores the sums as what begins with element o of the result. */
static void flux__emit_sums(flux__emitter *c, int p, int dtype, const flux__picked_load *w) {
    flux__listing *s = &c->s;
    flux__emit(s, "    %s y;\n    FULLY\n    for (int j = 0; j < %d; j++) ", w->type,
               flux__is_half(dtype) && w->width > 1 ? 4 : w->width);
    if (flux__is_half(dtype) && w->width > 1)
        flux__emit(s, "y.x[j] = pair_%s(sum[2 * j], sum[2 * j + 1])", flux__dtypes[dtype].name);
    else {
        flux__emit(s, w->width > 1 ? "y.x[j] = " : "y = ");
        flux__emit_stored(s, dtype, flux__class_of(dtype), "sum[j]");
    }
    flux__emit(s, ";\n    *(%s *)(p%d + o) = y;\n    }\n", w->type, p);
}

/* The adding launch of scatter_add: element o starts from the operand's and adds the source's
   elements of all indices that mean it. */
static void flux__code_add(flux__emitter *c, const flux_tensor *t, const flux__scatter *h) {
    const flux__operand *x = &c->k->operand[0];
    const flux__picked_load w = flux__picked_load_of(&c->k->operand[2], h->dim, h->sorts);
    int dtype = t->dtype;
    flux_shape whole = flux__dims(t);
    int64_t count = flux__count(&whole);
    flux__listing *s = &c->s;
    char at[64];
    flux__emit_each(c, !h->sorts && h->n > count ? h->n : count, w.width);
    if (!h->sorts) {                      /* thread o also checks index number o */
        flux__emit(s, "    if (o < %lld) {\n", (long long)h->n);
        flux__emit_index(c, h, "o");
        flux__emit(s, "    }\n    if (o >= %lld) continue;\n", (long long)count);
    }
    flux__emit_coordinates(c, &whole);
    flux__emit(s, "    %s sum[%d];\n    const %s from = %lld",
               flux__class_types[flux__class_of(dtype)], w.width, c->index, (long long)x->offset);
    for (int d = 0; d < x->shape.ndim; d++)
        flux__emit(s, " + d%d * %lld", d, (long long)x->stride[d]);
    snprintf(at, sizeof at, "p%d[from + j * %lld]", h->px, (long long)x->stride[0]);
    flux__emit(s, ";\n    FULLY\n    for (int j = 0; j < %d; j++) sum[j] = ", w.width);
    flux__emit_loaded(s, dtype, at);
    flux__emit(s, ";\n");
    flux__emit_meant(c, h, &w);
    flux__emit_sums(c, h->po, dtype, &w);
}

/* So many comparisons with an index, by all threads together, are not worth a sort. */
enum { FLUX__SCATTER_LOOKS = 1 << 20 };

/* The kernel of scatter_add: a sort if the comparisons are too many, then the adding launch. */
static bool flux__code_scatter(flux__emitter *c, flux__kernel *k, const flux_tensor *t, int out) {
    flux__scatter h;
    flux_shape whole = flux__dims(t);
    memset(&h, 0, sizeof h);
    h.dim = (int)t->arg.i[0], h.n = flux__count(&k->operand[1].shape),
        h.rows = k->operand[0].shape.dim[h.dim];
    h.px = flux__emitter_slot(c, k->operand[0].src, t->dtype),
        h.pi = flux__emitter_slot(c, k->operand[1].src, FLUX_I64);
    h.ps = flux__emitter_slot(c, k->operand[2].src, t->dtype),
        h.po = flux__emitter_slot(c, out, t->dtype);
    h.pe = flux__emitter_param(c, 'e', 0, "long long *");
    h.sorts = h.n > FLUX__SCATTER_LOOKS / flux__count(&whole);
    if (h.sorts) {
        while ((int64_t)1 << h.bits < h.n) h.bits++;
        h.keys.n = h.n, h.keys.columns = 1, h.keys.order = -1;
        h.keys.keys = flux__emitter_param(c, 's', 0, "long long *");
        h.keys.width = flux__sort_width(&h.keys);
        h.starts = h.n > h.keys.width ? 2 * h.n : h.n;
        k->scratch = (size_t)(h.starts + h.rows + 1) * 8;
        flux__code_pieces(c, &h.keys);
        flux__emit_index(c, &h, "i");
        flux__emit(&c->s, "    key = (u64)(id < 0 || id >= %lld ? %lld : id) << %d | (u64)i;\n",
                   (long long)h.rows, (long long)h.rows, h.bits);
        if (!flux__code_sort(c, &h.keys)) return false;
        flux__code_starts(c, &h);
        if (!flux__emitter_finish(c)) return false;
    }
    flux__code_add(c, t, &h);
    return flux__emitter_finish(c);
}

/* Concatenation along arg.i[0]: an element comes from the first operand that ends beyond its
   coordinate. */
static void flux__code_cat(flux__emitter *c, const flux_tensor *t, int out) {
    int dim = (int)t->arg.i[0];
    flux_shape whole = flux__dims(t);
    int64_t at = 0;
    int po = flux__emitter_slot(c, out, t->dtype);
    flux__emit_each(c, flux__count(&whole), 1);
    flux__emit_coordinates(c, &whole);
    for (int i = 0; i < c->k->noperand; i++) {
        const flux__operand *o = &c->k->operand[i];
        int64_t n = dim < o->shape.ndim ? o->shape.dim[dim] : 1;
        int p = flux__emitter_slot(c, o->src, t->dtype);
        flux__emit(&c->s, "    %sif (d%d < %lld) p%d[o] = p%d[%lld + (d%d - %lld) * %lld",
                    i ? "else " : "", dim, (long long)(at + n), po, p, (long long)o->offset, dim,
                    (long long)at, (long long)(dim < o->shape.ndim ? o->stride[dim] : 0));
        for (int d = 0; d < o->shape.ndim; d++)
            if (d != dim) flux__emit(&c->s, " + d%d * %lld", d, (long long)o->stride[d]);
        flux__emit(&c->s, "];\n");
        at += n;
    }
    flux__emit(&c->s, "    }\n");
}

/* Interpolation, or its reverse: the sum over all dims of what an element is made of. */
static void flux__code_interpolation(flux__emitter *c, const flux_tensor *t, int out) {
    const flux__operand *x = &c->k->operand[0];
    const flux_shape whole = flux__dims(t);
    flux__listing *s = &c->s;
    char text[512];
    int px = flux__emitter_slot(c, x->src, t->dtype), po = flux__emitter_slot(c, out, t->dtype);
    flux__emit_each(c, flux__count(&whole), 1);
    flux__emit_coordinates(c, &whole);
    flux__emit_zero(c, t->dtype);
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->dim[d] == x->shape.dim[d]) continue;
        flux__lerps_text(text, sizeof text, t, d, flux__class_types[flux__class_of(t->dtype)]);
        flux__emit(s, "%s", text);
    }
    flux__emit(s, "    sum += p%d[%lld", px, (long long)x->offset);
    for (int d = 0; d < t->ndim; d++)
        flux__emit(s, " + (%s)%c%d * %lld", c->index, t->dim[d] == x->shape.dim[d] ? 'd' : 'i', d,
                   (long long)x->stride[d]);
    flux__emit(s, "]");
    for (int d = 0; d < t->ndim; d++)
        if (t->dim[d] != x->shape.dim[d]) flux__emit(s, " * w%d", d);
    flux__emit(s, ";\n");
    for (int d = 0; d < t->ndim; d++)
        if (t->dim[d] != x->shape.dim[d]) flux__emit(s, "    }\n");
    flux__emit_result(c, po, t->dtype);
}

/* The reverse of a strided view (as_strided_scatter): element o of the result gets the elements
   of the operand that the view placed at o: their sum if several may meet (arg.i[1]), else the
   only one, or the fill value if there is none. The dims are gone over by falling stride;
   `rest` is the distance still to go, and a loop takes only indices that leave a rest which the
   dims behind can reach. A dim with a negative stride is counted from its other end. */
static void flux__code_strided_scatter(flux__emitter *c, const flux_tensor *t, int out) {
    const flux__operand *x = &c->k->operand[0];
    int order[FLUX_MAX_DIMS], nd = 0, dtype = t->dtype;
    int64_t step[FLUX_MAX_DIMS], start = t->rel, reach = 0;
    bool add = t->arg.i[1] != 0, empty = false;
    for (int d = 0; d < x->shape.ndim; d++) {
        int64_t n = x->shape.dim[d];
        if (n == 0) empty = true;
        if (n <= 1) continue;
        step[d] = t->stride[d];
        if (step[d] < 0) start += step[d] * (n - 1), step[d] = -step[d];
        int at = nd++;
        while (at > 0 && step[order[at - 1]] < step[d]) order[at] = order[at - 1], at--;
        order[at] = d;
    }
    bool nests = true;                    /* each step exceeds the reach of the dims behind */
    for (int i = nd - 1; i >= 0; i--) {
        nests = nests && step[order[i]] > reach;
        reach += step[order[i]] * (x->shape.dim[order[i]] - 1);
    }
    int px = flux__emitter_slot(c, x->src, dtype), po = flux__emitter_slot(c, out, dtype);
    flux__listing *s = &c->s;
    flux__emit_each(c, flux__size(t), 1);
    flux__emit_zero(c, dtype);
    if (!add)
        flux__emit(s, "    sum = (%s)p%d;\n", flux__class_types[flux__class_of(dtype)],
                    flux__emitter_param(c, 'f', 0, "double"));
    if (!empty)
        flux__emit(s, "    const %s rest0 = o - (%lld);\n    if (rest0 >= 0 && rest0 <= %lld) {\n",
                    c->index, (long long)start, (long long)reach);
    for (int i = 0; i < nd && !empty; i++) {
        int d = order[i];
        int64_t n = x->shape.dim[d];
        reach -= step[d] * (n - 1);
        if (nests)
            flux__emit(s, "    const %s i%d = rest%d / %lld, rest%d = rest%d %% %lld;\n"
                       "    if (i%d < %lld) {\n", c->index, d, i, (long long)step[d], i + 1, i,
                       (long long)step[d], d, (long long)n);
        else if (step[d] == 0)
            flux__emit(s, "    const %s rest%d = rest%d;\n"
                        "    for (%s i%d = 0; i%d < %lld; i%d++) {\n", c->index, i + 1, i, c->index,
                        d, d, (long long)n, d);
        else {
            flux__emit(s, "    for (%s i%d = rest%d > %lld ? (rest%d - %lld + %lld) / %lld : 0; "
                        "i%d < %lld && i%d * %lld <= rest%d; i%d++) {\n", c->index, d, i,
                        (long long)reach, i, (long long)reach, (long long)step[d] - 1,
                        (long long)step[d], d, (long long)n, d, (long long)step[d], i, d);
            flux__emit(s, "    const %s rest%d = rest%d - i%d * %lld;\n", c->index, i + 1, i, d,
                        (long long)step[d]);
        }
    }
    if (!empty) {
        flux__listing at = { NULL, 0, 0, false };
        flux__emit(s, "    if (rest%d == 0) ", nd);
        flux__emit(&at, "p%d[%lld", px, (long long)x->offset);
        for (int i = 0; i < nd; i++) {
            int d = order[i];
            if (t->stride[d] < 0)
                flux__emit(&at, " + (%lld - i%d) * %lld", (long long)x->shape.dim[d] - 1, d,
                            (long long)x->stride[d]);
            else flux__emit(&at, " + i%d * %lld", d, (long long)x->stride[d]);
        }
        flux__emit(&at, "]");
        if (at.failed) s->failed = true;
        else if (add) flux__emit_add(c, dtype, "sum", at.text);
        else {
            flux__emit(s, "sum = ");
            flux__emit_loaded(s, dtype, at.text);
            flux__emit(s, ";");
        }
        flux__free(at.text);
        flux__emit(s, "\n");
        for (int i = 0; i < nd; i++) flux__emit(s, "    }\n");
        flux__emit(s, "    }\n");
    }
    flux__emit_result(c, po, dtype);
}

FLUX__END_LEAN

#endif /* FLUX__GPU_WHOLE_H */
