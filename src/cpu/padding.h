#ifndef FLUX__CPU_PADDING_H
#define FLUX__CPU_PADDING_H
#include "../base/platform.h"
#include "../base/dtypes.h"
#include "../base/workers.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"
#include "whole.h"

/* ---------------------------------------------------------------------- cpu/padding.h
   Images that a product pads itself (flux__operand.padding), so that a padded image
   is neither written to memory nor read from it: row by row where a convolution
   copies rows anyway (cpu/winograd.h, cpu/conv_amx.h), a batch's slices when its turn
   comes (cpu/product_batches.h), or all at once, into scratch memory.

   Invariant: what is read is the padded image, element for element. Places are those
   in the padded image, whether that is in memory or not.

   Rejected: testing at each position whether a tap lies in the padding; padding that
   several products read, as a convolution and its gradient by the weight do, which
   each would pad again. */

FLUX__BEGIN_LEAN

/* What pads the image that operand *o reads. */
static flux__strided_scatter_job flux__padding_job(const flux__run *run, const flux__operand *o) {
    FLUX__ZEROED(flux__operand, from);
    from.src = o->src, from.dtype = o->dtype, from.shape = o->padding->shape;
    from.offset = o->padding->offset;
    memcpy(from.stride, o->padding->stride, sizeof from.stride);
    return flux__scatter_job(run, run->g->node[o->padding->node], &from, NULL);
}

/* The whole padded image, in scratch memory. NULL: there is none. */
static char *flux__pad_all(const flux__strided_scatter_job *pad) {
    flux__strided_scatter_job j = *pad;
    j.dst = (char *)flux__scratch((size_t)(j.slice * j.units) * flux__dtypes[j.t->dtype].size);
    if (j.dst) flux__scatter_slices(&j);
    return j.dst;
}

/* Rows of two-dimensional images that are padded as they are read. x: what is padded, `wide` x
   `high` elements of each channel of each sample, whose first one is at (left, top) in the padded
   image; row, channel, sample: steps of x in elements; pitch, slice: elements of the padded
   image's rows and of a channel of it. */
typedef struct flux__padded_rows {
    const char *x;
    int64_t left, top, wide, high, row, channel, sample, pitch, slice;
} flux__padded_rows;

/* Finds the rows of what *pad makes. left and top are counted from element number `at` of the
   padded image, of channel 0 and sample 0. False: that is no such image, or its rows are not
   contiguous. */
static bool flux__find_padded_rows(const flux__strided_scatter_job *pad, int64_t at,
                                   flux__padded_rows *r) {
    const flux_tensor *t = pad->t;
    const flux__operand *o = &pad->o;
    const int nd = o->shape.ndim;
    if (nd < 2 || nd > 4 || pad->part.ndim != 2 || t->ndim != nd || o->stride[0] != 1 ||
        pad->slice != t->dim[0] * t->dim[1] || at < 0 || at >= pad->slice) return false;
    r->x = pad->src, r->pitch = t->dim[0], r->slice = pad->slice;
    r->left = t->rel % r->pitch - at % r->pitch, r->top = t->rel / r->pitch - at / r->pitch;
    r->wide = pad->part.dim[0], r->high = pad->part.dim[1], r->row = o->stride[1];
    r->channel = nd > 2 ? o->stride[2] : 0, r->sample = nd > 3 ? o->stride[3] : 0;
    return true;
}

/* Where row y of a channel of a sample would have its element number 0, if nothing were padded, in
   elements of `size` bytes; NULL: the row is all padding. */
static const char *flux__padded_row(const flux__padded_rows *r, int64_t sample, int64_t channel,
                                    int64_t y, int64_t size) {
    if (y < r->top || y - r->top >= r->high) return NULL;
    return r->x + (sample * r->sample + channel * r->channel + (y - r->top) * r->row) * size;
}

/* The first n elements of a row of which *from ... *end - 1 are not padding. */
static void flux__padded_ends(const flux__padded_rows *r, int64_t n, int64_t *from,
                              int64_t *end) {
    const int64_t last = r->left + r->wide;
    *from = r->left < 0 ? 0 : r->left < n ? r->left : n;
    *end = last < *from ? *from : last < n ? last : n;
}

/* Writes the first n elements of a row of f32. */
static void flux__pad_row(const flux__padded_rows *r, int64_t sample, int64_t channel, int64_t y,
                          int64_t n, float *to) {
    const float *x = (const float *)(const void *)flux__padded_row(r, sample, channel, y, 4);
    int64_t from, end;
    flux__padded_ends(r, n, &from, &end);
    if (!x) from = end = n;
    for (int64_t i = 0; i < from; i++) to[i] = 0;
    if (end > from) memcpy(to + from, x + from - r->left, (size_t)(end - from) * sizeof *to);
    for (int64_t i = end; i < n; i++) to[i] = 0;
}

FLUX__END_LEAN

#endif /* FLUX__CPU_PADDING_H */
