#ifndef FLUX__SCHEDULE_GATHERS_H
#define FLUX__SCHEDULE_GATHERS_H
#include "../base/platform.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "kernel.h"
#include "key.h"
#include "grouping.h"

/* ---------------------------------------------------------------------- schedule/gathers.h
   Copies that are never made (p->gather): a copy of overlapping windows that only
   products read. The CPU copies it a block at a time while packing, and pads the
   image by the way, a GPU reads the image itself, without its padding. And the uses of each node
   (flux__find_uses), to which such a copy is transparent: its users read what it
   would have copied.

   Invariant: a product reads whole dims of such a copy (flux__owners), so that a
   place in it says where in the image an element lies. */

FLUX__BEGIN_LEAN

/* x is a view of all elements of `copy`. Fills owner: for each dim of the copy, the dim of x that
   it is a part of. False if a dim of x is not made of consecutive dims of the copy. */
static bool flux__owners(const flux_tensor *x, const flux_tensor *copy, uint8_t *owner) {
    int64_t contiguous[FLUX_MAX_DIMS], offset = FLUX__IS_VIEW(x) ? x->offset : 0, count = 1;
    flux_shape s = flux__dims(copy);
    if (x->ndim < 2 || offset) return false;
    flux__contiguous_strides(&s, contiguous);
    memset(owner, 0, FLUX_MAX_DIMS);
    for (int d = 0; d < x->ndim; d++) {
        int64_t n = 1, step = FLUX__IS_VIEW(x) ? x->stride[d] : contiguous[d];
        int j = 0;
        if (x->dim[d] == 1) continue;
        while (j < s.ndim && (contiguous[j] != step || s.dim[j] == 1)) j++;
        for (; j < s.ndim && n < x->dim[d]; j++) {
            n *= s.dim[j];
            owner[j] = (uint8_t)d;
        }
        if (n != x->dim[d]) return false;
        count *= n;
    }
    return count == flux__count(&s);
}

static bool flux__is_gather(const flux__planner *p, const flux_tensor *b) {
    return p->g->copies && !flux__finished(b) && flux__in_graph(p->g, b) && p->gather[b->index];
}

/* The tensor that is read for x: of copies that are never made, their source. */
static flux_tensor *flux__read_for(const flux__planner *p, flux_tensor *x) {
    while (flux__is_gather(p, flux__base(x))) x = flux__base(x)->in[0];
    return x;
}

/* Whether t is its operand among zeros. */
static bool flux__is_padding(const flux_tensor *t) {
    int64_t whole[FLUX_MAX_DIMS];
    if (t->op != FLUX__AS_STRIDED_SCATTER || !t->nin || t->arg.i[0] || t->arg.i[1] ||
        t->in[0]->ndim != t->ndim || !flux__size(t->in[0])) return false;
    const flux_tensor *from = t->in[0];
    flux_shape s = flux__dims(t);
    flux__contiguous_strides(&s, whole);
    for (int d = 0; d < s.ndim; d++)
        if ((from->dim[d] > 1 && t->stride[d] != whole[d]) ||
            t->rel / whole[d] % s.dim[d] + from->dim[d] > s.dim[d]) return false;
    return true;
}

/* Where the elements of x, a view of its padded base, lie in what was padded: the offset and the
   strides along the dims of x, and the coordinates that may lie in the padding. A stride of x is a
   multiple of one of the base's, and so a step along that dim; false: it is not, or such steps
   leave the dim. */
static bool flux__unpadded(const flux_tensor *x, int64_t *offset, int64_t *stride,
                           flux__bounds *bounds) {
    const flux_tensor *pad = x->base;
    int64_t whole[FLUX_MAX_DIMS], have[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(pad);
    flux__contiguous_strides(&s, whole);
    flux__layout(pad->in[0], offset, have);
    memset(stride, 0, sizeof have);
    bounds->n = 0;
    for (int e = 0; e < s.ndim; e++) {
        flux__bound c;
        memset(&c, 0, sizeof c);
        const int64_t lo = pad->rel / whole[e] % s.dim[e];
        c.first = x->offset / whole[e] % s.dim[e] - lo, c.n = pad->in[0]->dim[e];
        int64_t least = c.first, most = c.first;
        for (int d = 0; d < x->ndim; d++) {
            const int64_t step = x->stride[d], size = step < 0 ? -step : step;
            if (x->dim[d] == 1 || size < whole[e] || (e + 1 < s.ndim && size >= whole[e + 1]))
                continue;
            if (step % whole[e] != 0) return false;
            c.step[d] = step / whole[e], stride[d] = c.step[d] * have[e];
            *(step < 0 ? &least : &most) += c.step[d] * (x->dim[d] - 1);
        }
        if (least < -lo || most >= s.dim[e] - lo) return false;
        *offset += c.first * have[e];
        if (least >= 0 && most < c.n) continue;
        if (bounds->n == 3) return false;
        bounds->of[bounds->n++] = c;
    }
    return true;
}

/* Whether node i may read x, a view of a padded image that is not made: a copy of windows may,
   which is not made either. */
static bool flux__reads_unpadded(const flux__planner *p, int i, const flux_tensor *x) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux__bounds bounds;
    return p->g->node[i]->op == FLUX__COPY && p->gather[i] &&
           (!flux__has_trait(x->device, FLUX__READS_IMAGES) ||
            flux__unpadded(x, &offset, stride, &bounds));
}

/* Takes the marks of padded images that a product would have to pad and others read, too: each
   would pad them again. use: as many zeros as there are nodes, and again in the end. */
static void flux__pad_once(flux__planner *p, int *use) {
    const flux__graph *g = p->g;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            const flux_tensor *b = flux__base(g->node[i]->in[k]);
            /* a product pads its left operand */
            if (flux__is_gather(p, b)) use[b->index] += g->node[i]->op == FLUX__MATMUL && k ? 2 : 1;
        }
    for (int i = 0; i < p->n; i++) {
        const flux_tensor *t = g->node[i], *x = t->op == FLUX__COPY ? flux__base(t->in[0]) : NULL;
        if (x && use[i] > 1 && flux__is_gather(p, x)) use[x->index] = 2;
    }
    for (int i = 0; i < p->n; i++) {
        const flux_tensor *t = g->node[i];
        if (use[i] > 1 && t->op != FLUX__COPY && flux__has_trait(t->device, FLUX__PADS_IMAGES))
            p->gather[i] = false;
        use[i] = 0;
    }
}

/* Marks the padded images that are never made, since only copies that are not made read them. */
static void flux__find_padding(flux__planner *p) {
    for (int i = 0; i < p->n; i++) {
        const flux_tensor *t = p->g->node[i];
        if (flux__is_padding(t) &&
            flux__has_trait(t->device, FLUX__READS_IMAGES | FLUX__PADS_IMAGES))
            p->gather[i] = !(p->g->flag[i] & FLUX__ROOT) &&
                           flux__base(t->in[0])->op != FLUX__NUMBER;
    }
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->g->node[i]->nin; k++) {
            const flux_tensor *x = p->g->node[i]->in[k], *b = flux__base(p->g->node[i]->in[k]);
            if (flux__is_gather(p, b) && b->op != FLUX__COPY && !flux__reads_unpadded(p, i, x))
                p->gather[b->index] = false;
        }
    flux__pad_once(p, p->use_start);
}

/* Marks the copies that are never made (p->gather). The matrix product of a convolution reads a
   copy of overlapping windows (im2col), many times the size of the image. The CPU packs it a block
   at a time, as it would pack a matrix, so that the block stays in the cache; a GPU reads the image
   itself. On the CPU the same is done with copies that only put rows in another order, which the
   product would have to make to sum over samples. A copy loses its mark if anything but a matrix
   product reads it, or if the product's view of it is not made of whole dims of the copy
   (flux__owners). */
static void flux__find_gathers(flux__planner *p) {
    uint8_t owner[FLUX_MAX_DIMS];
    for (int i = 0; i < p->n && p->g->copies; i++) {
        const flux_tensor *t = p->g->node[i], *x = t->nin ? t->in[0] : NULL;
        if (t->op != FLUX__COPY || !FLUX__IS_VIEW(x) || (p->g->flag[i] & FLUX__ROOT)) continue;
        const bool plain = x->dtype == t->dtype && flux__dtypes[t->dtype].real &&
                           x->base->op != FLUX__NUMBER;
        bool chained = flux__is_gather(p, x->base);
        int first = 0;
        while (first < x->ndim - 1 && x->dim[first] == 1) first++;
        /* rows are contiguous: packing reads them as fast as it would read a copy */
        bool along = x->ndim && x->stride[first] == 1 &&
                     flux__has_trait(t->device, FLUX__GATHERS_ROWS);
        p->gather[i] = plain && !chained && (along || flux__size(t) > flux__size(x->base));
    }
    for (int i = 0; i < p->n && p->g->copies; i++)
        for (int k = 0; k < p->g->node[i]->nin; k++) {
            flux_tensor *x = p->g->node[i]->in[k], *b = flux__base(x);
            if (!flux__is_gather(p, b)) continue;
            if (p->g->node[i]->op != FLUX__MATMUL || !flux__owners(x, b, owner))
                p->gather[b->index] = false;
        }
    if (p->g->copies) flux__find_padding(p);
}

/* Fills use and use_start, the uses of each node. A NUMBER node with a higher index than its reader
   does not count as an operand: it is in the graph because it is evaluated itself or another node
   reads it as a tensor, and this reader takes its value directly. */
static bool flux__find_uses(flux__planner *p) {
    int *count = p->use_start, total = 0, capacity = 0;
    /* in the order of users; to: the node used, next: user * 256 + operand */
    flux__link *all = NULL;
    flux__find_gathers(p);
    for (int i = 0; i < p->n; i++) {
        flux_tensor *t = p->g->node[i];
        flux__soon(p->g->node, i + FLUX__SOON, p->n);
        for (int k = 0; k < flux__reads(t) && !p->gather[i]; k++) {
            flux_tensor *b = flux__base(flux__read_for(p, t->in[k]));
            if (flux__finished(b) ||
                (b->op == FLUX__NUMBER && (!flux__in_graph(p->g, b) || b->index > i)))
                continue;
            flux__link *more = (flux__link *)flux__grow(all, &capacity, total + 1, sizeof *all);
            if (!more) {
                flux__free(all);
                return false;
            }
            all = more;
            all[total].to = b->index, all[total++].next = i << 8 | k;
            count[b->index + 1]++;
        }
    }
    for (int i = 0; i < p->n; i++) count[i + 1] += count[i];
    p->use = (int *)flux__malloc((size_t)total * sizeof *p->use);
    for (int u = 0; u < total && p->use; u++) p->use[count[all[u].to]++] = all[u].next;
    for (int i = p->n; i > 0; i--) count[i] = count[i - 1];
    count[0] = 0;
    flux__free(all);
    return p->use != NULL;
}

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_GATHERS_H */
