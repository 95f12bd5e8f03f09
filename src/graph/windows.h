#ifndef FLUX__GRAPH_WINDOWS_H
#define FLUX__GRAPH_WINDOWS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "nodes.h"
#include "elementwise.h"
#include "views.h"
#include "reductions.h"
#include "products.h"

/* ---------------------------------------------------------------------- graph/windows.h
   Convolution and pooling. A window view shows each output position's window as
   dims of their own, without copying: [window..., positions..., channels,
   batch]. Convolution is then a matrix product over window and channels,
   pooling a reduction over the window. Windows that tile the image are a
   reshape of it, whose gradient needs no scatter.

   Invariant: x is space... x channels x batch with 1 to 3 spatial dims, the
   weight size... x channels / groups x out (of flux_conv_transpose: size... x
   out / groups x channels). Convolution reads each window from its end, which
   flips the kernel at no cost; cross-correlation does not. A convolution's result
   is shown through a FLUX__CONV node, whose gradient by x is a convolution again,
   or for back ends that are better at that, where windows lie apart or channels
   are few, one product whose windows are added up (flux__conv_back). Where the
   node cannot hold its parameters, or a window lies in the padding altogether,
   the plain graph's gradient is used.

   Rejected: leaving the gradient by x to the graph always, which would add
   overlapping windows up from one large product. */

FLUX__BEGIN_COLD

typedef struct flux__window {
    int nd;                               /* spatial dims, 1 to 3: the first nd dims of x */
    int64_t size[3], stride[3], dilation[3],
            lo[3], hi[3],                 /* padding before and behind */
            out[3];                       /* positions of the window: the result's spatial dims */
    bool flipped;                         /* a window is read from its end, see flux__from_end */
} flux__window;

/* Fills out with an option's numbers: one for each spatial dim, or one for all, or the default
   `otherwise`. False: an error was told. */
static bool flux__per_dim(const char *call, const char *what, const flux_shape *s, int nd,
                          int64_t otherwise, int64_t least, int64_t *out) {
    if (s->ndim != 0 && s->ndim != 1 && s->ndim != nd) {
        flux__fail("%s: %s has %d numbers for %d dims", call, what, s->ndim, nd);
        return false;
    }
    for (int i = 0; i < nd; i++) {
        out[i] = s->ndim == 0 ? otherwise : s->dim[s->ndim == 1 ? 0 : i];
        if (out[i] < least || out[i] > (1 << 30)) {
            flux__fail("%s: %s is %lld", call, what, (long long)out[i]);
            return false;
        }
    }
    return true;
}

/* Fills lo and hi from the option pad: two numbers for each dim, or one for both sides, or
   FLUX_SAMEPAD. That pads so that there are ceil(size/stride) positions, the odd element in
   front; to undo this, it cuts the result of a transposed convolution down to stride times the
   size of x. False: an error was told. */
static bool flux__paddings(const char *call, const flux_shape *pad, flux__window *w,
                           bool transposed) {
    bool same = pad->ndim == 1 && pad->dim[0] == FLUX__SAME;
    if (same || (pad->ndim == 2 * w->nd && w->nd > 0)) {
        for (int i = 0; i < w->nd; i++) {
            int64_t all = flux__times(w->size[i] - 1, w->dilation[i]) -
                          (transposed ? w->stride[i] - 1 : 0);
            if (same && all < 0) all = 0;
            w->lo[i] = same ? all - all / 2 : pad->dim[2 * i];
            w->hi[i] = same ? all / 2 : pad->dim[2 * i + 1];
            if (w->lo[i] < 0 || w->hi[i] < 0)
                return FLUX__REFUSE("%s: negative padding (%lld, %lld)", call, (long long)w->lo[i],
                                    (long long)w->hi[i]);
        }
        return true;
    }
    if (!flux__per_dim(call, "pad", pad, w->nd, 0, 0, w->lo)) return false;
    memcpy(w->hi, w->lo, sizeof w->hi);
    return true;
}

/* Fills out, the number of positions in x as padded. False: an error was told. */
static bool flux__window_out(const char *call, const flux_tensor *x, flux__window *w) {
    for (int i = 0; i < w->nd; i++) {
        int64_t reach = flux__plus(flux__times(w->size[i] - 1, w->dilation[i]), 1);
        int64_t have = flux__plus(x->dim[i], flux__plus(w->lo[i], w->hi[i]));
        if (reach > have || w->size[i] < 1) {
            flux__text t = flux__describe(x);
            flux__fail("%s: a window that reaches over %lld does not fit into dim %d of %s, "
                       "padded to %lld", call, (long long)reach, i, t.s, (long long)have);
            return false;
        }
        w->out[i] = (have - reach) / w->stride[i] + 1;
    }
    return true;
}

/* x padded by lo and hi with value. */
static flux_tensor *flux__pad_window(flux_tensor *x, const flux__window *w, double value) {
    return flux_pad_by(x, value, flux__shape(w->lo, w->nd), flux__shape(w->hi, w->nd));
}

/* The stride of a dim of size n that steps over `by` elements, themselves `stride` apart. Along a
   dim of size 1 it is 0: never used, it might be too large for the image. */
static int64_t flux__window_step(int64_t stride, int64_t by, int64_t n) {
    return n > 1 ? stride * by : 0;
}

/* The dims of a window view, [window..., positions..., channels, batch], and its strides in the
   contiguous padded image. */
static flux_shape flux__window_dims(const flux__window *w, const flux_shape *image, int64_t *step) {
    flux_shape s = flux__shape(NULL, 0);
    int64_t contiguous[FLUX_MAX_DIMS];
    flux__contiguous_strides(image, contiguous);
    for (int i = 0; i < w->nd; i++) {
        step[s.ndim] = flux__window_step(contiguous[i], w->dilation[i], w->size[i]);
        s.dim[s.ndim++] = w->size[i];
    }
    for (int i = 0; i < w->nd; i++) {
        step[s.ndim] = flux__window_step(contiguous[i], w->stride[i], w->out[i]);
        s.dim[s.ndim++] = w->out[i];
    }
    for (int i = w->nd; i < image->ndim; i++) {
        step[s.ndim] = contiguous[i];
        s.dim[s.ndim++] = image->dim[i];
    }
    return s;
}

/* Reverses the window's dims in a view whose strides are `step`, if the window is flipped; returns
   the offset at which the view then begins. */
static int64_t flux__from_end(const flux__window *w, int64_t *step) {
    int64_t start = 0;
    for (int i = 0; i < w->nd && w->flipped; i++)
        start += (w->size[i] - 1) * step[i], step[i] = -step[i];
    return start;
}

/* The window view of x, an image that is already padded: [window..., positions..., channels,
   batch]. */
static flux_tensor *flux__windows(flux_tensor *x, const flux__window *w) {
    int64_t step[FLUX_MAX_DIMS], have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS], offset, rel;
    if (!x) return NULL;
    flux_shape image = flux__dims(x), s = flux__window_dims(w, &image, step);
    flux_tensor *base = flux__layout(x, &offset, have);
    for (int i = 0; i < w->nd; i++) {
        want[i] = flux__window_step(have[i], w->dilation[i], w->size[i]);
        want[w->nd + i] = flux__window_step(have[i], w->stride[i], w->out[i]);
    }
    for (int i = w->nd; i < image.ndim; i++) want[w->nd + i] = have[i];
    rel = flux__from_end(w, step), offset += flux__from_end(w, want);
    return flux__as_strided(x, &s, rel, step, offset, want, base);
}

/* Reads the options of a convolution into w (all but out), and moves x and weight to one device.
   False: an error was told. */
static bool flux__conv_window(const char *call, flux_conv_opts *o, flux__window *w,
                              bool transposed) {
    flux_tensor *xs[2] = { o->x, o->weight };
    if (!flux__together(call, 2, xs)) return false;
    o->x = xs[0], o->weight = xs[1];
    memset(w, 0, sizeof *w);
    w->nd = o->weight->ndim - 2;
    o->groups = (int)flux__given_int(o->groups, o->marked, 1);
    if (w->nd < 1 || w->nd > 3 || o->x->ndim != o->weight->ndim) {
        flux__text a = flux__describe(o->x), b = flux__describe(o->weight);
        flux__fail("%s: x is %s, weight is %s; both need 1 to 3 spatial dims and two more", call,
                   a.s, b.s);
        return false;
    }
    for (int i = 0; i < w->nd; i++)
        if ((w->size[i] = o->weight->dim[i]) < 1)
            return FLUX__REFUSE("%s: weight is %s, whose windows are empty", call,
                                flux__describe(o->weight).s);
    return flux__per_dim(call, "stride", &o->stride, w->nd, 1, 1, w->stride) &&
           flux__per_dim(call, "dilation", &o->dilation, w->nd, 1, 1, w->dilation) &&
           flux__paddings(call, &o->pad, w, transposed);
}

/* The product of n numbers, saturated as by flux__times. */
static int64_t flux__product(const int64_t *v, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p = flux__times(p, v[i]);
    return p;
}

/* Checks that the channels of x and weight fit each other and the groups. False: an error was
   told. */
static bool flux__check_channels(const char *call, const flux_conv_opts *o, int nd,
                                 bool transposed) {
    int64_t in = o->x->dim[nd], a = o->weight->dim[nd], b = o->weight->dim[nd + 1], g = o->groups;
    if (g >= 1 && (transposed ? b == in && in % g == 0 : in % g == 0 && a == in / g && b % g == 0))
        return true;
    flux__text tx = flux__describe(o->x), tw = flux__describe(o->weight);
    flux__fail("%s: channels do not fit: x is %s, weight is %s, groups %d", call, tx.s, tw.s,
               (int)o->groups);
    return false;
}

/* The weight with its nd spatial dims reversed: cross-correlation becomes convolution. */
static flux_tensor *flux__flip_kernel(flux_tensor *w, int nd) {
    int64_t dims[3] = { 0, 1, 2 };
    return flux_flip_with(w, flux__shape(dims, nd));
}

/* Whether the product's inner dim has channels before the window, and the image is read with its
   channels side by side: where the back end asks for it and a group's channels are whole pieces of
   16 bytes. Three spatial dims leave none for groups. */
static bool flux__channels_lead(const flux_tensor *x, const flux__window *w, int64_t groups) {
    const int nd = w->nd;
    return flux__has_trait(x->device, FLUX__READS_IMAGES) && (groups == 1 || nd < 3) &&
           x->dim[nd] / groups * (int64_t)flux__dtypes[x->dtype].size % 16 == 0 &&
           flux__times(flux__product(w->size, nd), flux__product(w->stride, nd)) > 1;
}

/* x, [space..., channels, ...], or with `back` [channels, space..., ...], with the channels at the
   other end of the space. */
static flux_tensor *flux__move_channels(flux_tensor *x, int nd, bool back) {
    int64_t order[FLUX_MAX_DIMS];
    for (int i = 0; x && i < x->ndim; i++)
        order[i] = i > nd ? i : back ? (i + 1) % (nd + 1) : (i + nd) % (nd + 1);
    return x ? flux_permute_with(x, flux__shape(order, x->ndim)) : NULL;
}

/* x, [space..., channels, batch], with its channels side by side in memory: a view of a copy, if
   they are not. */
static flux_tensor *flux__side_channels(flux_tensor *x, int nd) {
    int64_t offset, have[FLUX_MAX_DIMS];
    flux_tensor *moved = flux__move_channels(x, nd, false);
    if (!moved) return NULL;
    flux_shape s = flux__dims(moved);
    flux__layout(moved, &offset, have);
    if (offset || !flux__in_order(&s, have)) moved = flux_copy(moved);
    return flux__move_channels(moved, nd, true);
}

/* The im2col matrix of x, which is padded here: [positions, window x channels / groups, groups,
   batch], or the inner dim is channels / groups x window. Groups are a dim of the copy, where
   there is one left (three spatial dims leave none): a product reads whole dims of a copy that is
   never made (schedule/gathers.h), and of one it would read a group's channels as a part. */
static flux_tensor *flux__conv_columns(flux_tensor *x, const flux__window *w, int64_t groups) {
    const int nd = w->nd, lead = flux__channels_lead(x, w, groups);
    const int64_t in = x->dim[nd] / groups, samples = x->dim[nd + 1];
    const bool apart = groups > 1 && in > 1 && 2 * nd + 3 <= FLUX_MAX_DIMS;
    int64_t order[FLUX_MAX_DIMS];
    int n = nd;
    if (lead) x = flux__side_channels(x, nd);
    flux_tensor *win = x ? flux__windows(flux__pad_window(x, w, 0), w) : NULL;
    if (win && apart) {
        flux_shape s = flux__dims(win);
        s.dim[2 * nd] = in, s.dim[2 * nd + 1] = groups, s.dim[2 * nd + 2] = samples, s.ndim++;
        win = flux_reshape_with(win, s);
    }
    for (int i = 0; i < nd; i++) order[i] = nd + i;
    if (lead) order[n++] = 2 * nd;
    for (int i = 0; i < nd; i++) order[n++] = i;
    for (int i = 2 * nd + lead; win && i < win->ndim; i++) order[n++] = i;
    win = win ? flux_permute_with(win, flux__shape(order, n)) : NULL;
    return win ? flux_reshape(win, flux__product(w->out, nd),
                              flux__times(flux__product(w->size, nd), in), groups, samples) : NULL;
}

/* Shows a convolution's result y through a FLUX__CONV node, whose gradient by x is a convolution
   again (flux__conv_back), and so is the gradient's gradient. The plain graph's gradient would
   add overlapping windows up from one large product. It has to do, and y is returned as it is,
   where a window lies in the padding altogether, where a parameter does not fit into the 20 bits
   that arg has for it, and under FLUX_NOGRAD. */
static flux_tensor *flux__conv_node(flux_tensor *y, const flux_conv_opts *o, const flux__window *w,
                                    bool flip) {
    const flux__thread *self = flux__self();
    int64_t offset, have[FLUX_MAX_DIMS];
    bool fits = y && self && !self->nograd;
    for (int i = 0; i < w->nd && fits; i++)
        fits = w->lo[i] <= (w->size[i] - 1) * w->dilation[i] &&
               (w->out[i] - 1) * w->stride[i] - w->lo[i] < o->x->dim[i] &&
               (w->lo[i] | w->stride[i] | w->dilation[i]) >> 20 == 0;
    if (!fits) return y;
    flux_shape s = flux__dims(y);
    flux_tensor *base = flux__layout(y, &offset, have),
        *node = flux__node(FLUX__CONV, (flux_dtype)y->dtype, &s, y, o->x, o->weight);
    if (!node) return NULL;
    flux__edge(&node->base, base);
    node->offset = offset;
    memcpy(node->stride, have, sizeof have);
    for (int i = 0; i < w->nd; i++)
        node->arg.i[i] = w->stride[i] | w->dilation[i] << 20 | w->lo[i] << 40;
    node->arg.i[3] = o->groups, node->arg.i[4] = flip;
    return flux__done(node);
}

/* Marks the product of square windows, of 3 x 3 to 15 x 15, which a back end may compute in another
   way: how many windows are in a column and in a row, how far they lie apart, at most their size,
   their size, whether they are read from their end, and whether the product is the convolution, or
   else its gradient by the weight, of windows that lie a step apart. */
static void flux__mark_windows(flux_tensor *y, const flux__window *w, bool forward) {
    const int64_t size = w->size[0];
    bool fits = y->op == FLUX__MATMUL && size >= 3 && size < 16;
    const int64_t stride = w->stride[0];
    for (int i = 0; i < 2; i++)
        fits = fits && w->size[i] == size && w->stride[i] == stride && w->dilation[i] == 1 &&
               w->out[i] >> 26 == 0;
    fits = fits && stride <= (forward ? size : 1);
    if (fits) y->arg.i[3] = w->out[1] << 36 | w->out[0] << 10 | stride << 6 | size << 2 |
                            (int64_t)w->flipped << 1 | (int64_t)forward;
}

/* A convolution (flip) or cross-correlation as a product: im2col [positions, window x channels /
   groups, groups, batch] times weight [window x channels / groups, out / groups, groups], or both
   with channels before the window (flux__channels_lead). */
static flux_tensor *flux__convolve(const char *call, flux_conv_opts o, bool flip) {
    flux__window w;
    if (!flux__conv_window(call, &o, &w, false) || !flux__check_channels(call, &o, w.nd, false) ||
        !flux__window_out(call, o.x, &w)) return NULL;
    int h = flux__hide_in(call), nd = w.nd;
    flux__as_one(1);
    w.flipped = flip;
    int64_t g = o.groups, out = o.weight->dim[nd + 1], shape[5];
    flux_tensor *cols = flux__conv_columns(o.x, &w, g), *weight = cols ? o.weight : NULL;
    if (weight && flux__channels_lead(o.x, &w, g)) weight = flux__move_channels(weight, nd, false);
    weight = weight ? flux_reshape(weight, cols->dim[1], out / g, g) : NULL;
    flux_tensor *y = weight ? flux_matmul(cols, weight) : NULL;
    if (y && nd == 2 && g == 1) flux__mark_windows(y, &w, true);
    memcpy(shape, w.out, sizeof w.out);
    shape[nd] = out, shape[nd + 1] = o.x->dim[nd + 1];
    y = y ? flux_reshape_with(y, flux__shape(shape, nd + 2)) : NULL;
    y = flux__conv_node(y, &o, &w, flip);
    flux__as_one(-1);
    return flux__reveal(h, flux__if_eager(y));
}

FLUX_DEF flux_tensor *flux_conv_with(flux_conv_opts o) { return flux__convolve("conv", o, true); }
FLUX_DEF flux_tensor *flux_crosscor_with(flux_conv_opts o) {
    return flux__convolve("crosscor", o, false);
}

/* A convolution's gradient by its input, of spatial dims `size`, where windows lie apart or
   channels are few: one product of g and the transposed weight gives the contribution of each
   window, and FLUX__AS_STRIDED_SCATTER adds these up (col2im). w is the forward convolution's
   window. */
static flux_tensor *flux__conv_added(flux_tensor *g, flux_tensor *weight, const int64_t *size,
                                     const flux__window *w, int groups, bool flip) {
    int nd = w->nd;
    int64_t contiguous[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS],
            taps = flux__product(weight->dim, nd + 1),
        out = weight->dim[nd + 1] / groups;
    flux_shape s = flux__dims(g), image = s;
    flux_tensor *kernel = flip ? flux__flip_kernel(weight, nd) : weight, *y;
    bool meet = false;
    for (int i = 0; i < nd; i++) {
        int64_t wide = (w->size[i] - 1) * w->dilation[i] + 1,
            reach = (w->out[i] - 1) * w->stride[i] + wide;
        int64_t padded = flux__plus(size[i], w->lo[i]);
        meet = meet || wide > w->stride[i];
        image.dim[i] = reach > padded ? reach : padded;
        s.dim[nd + i] = w->size[i];
    }
    image.dim[nd] = s.dim[2 * nd] = flux__times(weight->dim[nd], groups);
    s.dim[2 * nd + 1] = image.dim[nd + 1], s.ndim = 2 * nd + 2;
    if (!flux__check_shape("conv", &image)) return NULL;
    flux__contiguous_strides(&image, contiguous);
    for (int i = 0; i < nd; i++) {
        step[i] = flux__window_step(contiguous[i], w->stride[i], w->out[i]);
        step[nd + i] = flux__window_step(contiguous[i], w->dilation[i], w->size[i]);
    }
    step[2 * nd] = contiguous[nd], step[2 * nd + 1] = contiguous[nd + 1];
    kernel = flux_transpose(flux_reshape(kernel, taps, out, groups));
    /* what is added up is not rounded to a half format before */
    y = flux__matmul(flux_reshape(g, flux__product(w->out, nd), out, groups, image.dim[nd + 1]),
                     kernel, meet);
    y = y ? flux_reshape_with(y, s) : NULL;
    y = y ? flux__as_strided_scatter(y, &image, 0, step, 0, meet) : NULL;
    for (int i = 0; i < nd && y; i++) y = flux_slice(y, i, w->lo[i], w->lo[i] + size[i]);
    return flux__narrow(y, g->dtype);
}

/* Whether flux__conv_added is better than a convolution of g: where a group has few channels beside
   those that it makes, and so not where each channel is by itself. A GPU lacks the trait: there
   windows are read in parallel, but adding them up takes turns. */
static bool flux__conv_adds(const flux_tensor *g, const flux_tensor *weight, const flux__window *w,
                            int groups) {
    const int64_t out = weight->dim[w->nd + 1] / groups;
    bool apart = flux__product(w->stride, w->nd) > 1, alone = weight->dim[w->nd] == 1 && out == 1,
        few = 4 * weight->dim[w->nd] <= out;
    return flux__has_trait(g->device, FLUX__ADDS_WINDOWS) &&
           ((apart && !alone) || (few && flux__product(w->size, w->nd) > 1));
}

/* A convolution's gradient by its input, of spatial dims `size`: g, padded or its elements spread a
   stride apart, convolved with the kernel, which is flipped and has the roles of its channels
   swapped. w is the forward convolution's window. NULL, without an error, where that would need a
   negative padding. */
static flux_tensor *flux__conv_back(flux_tensor *g, flux_tensor *weight, const int64_t *size,
                                    const flux__window *w, int groups, bool flip) {
    int nd = w->nd;
    int64_t contiguous[FLUX_MAX_DIMS], rel = 0, each = weight->dim[nd],
        out = weight->dim[nd + 1] / groups;
    flux_shape s = flux__dims(g), parts = flux__shape(weight->dim, nd + 3),
        order = flux__shape(NULL, nd + 3), whole;
    bool spread = false;
    flux_conv_opts o;
    if (flux__conv_adds(g, weight, w, groups))
        return flux__conv_added(g, weight, size, w, groups, flip);
    memset((void *)&o, 0, sizeof o);
    for (int i = 0; i < nd; i++) {
        int64_t reach = (w->size[i] - 1) * w->dilation[i],
            wide = (w->out[i] - 1) * w->stride[i] + 1;
        s.dim[i] = flux__plus(size[i], reach);
        if (reach < w->lo[i] || size[i] + w->lo[i] < wide) return NULL;
        spread = spread || w->stride[i] > 1;
        o.pad.dim[2 * i] = reach - w->lo[i];
        o.pad.dim[2 * i + 1] = flux__plus(size[i], w->lo[i]) - wide;
    }
    if (!spread) o.pad.ndim = 2 * nd;
    if (!flux__check_shape("conv", &s)) return NULL;
    flux__contiguous_strides(&s, contiguous);
    for (int i = 0; i < nd; i++) {
        rel += ((w->size[i] - 1) * w->dilation[i] - w->lo[i]) * contiguous[i];
        contiguous[i] = flux__window_step(contiguous[i], w->stride[i], w->out[i]);
    }
    o.x = spread ? flux__as_strided_scatter(g, &s, rel, contiguous, 0, false) : g;
    parts.dim[nd] = each, parts.dim[nd + 1] = out, parts.dim[nd + 2] = groups;
    for (int i = 0; i < nd + 3; i++) order.dim[i] = i == nd ? nd + 1 : i == nd + 1 ? nd : i;
    whole = flux__dims(weight);
    whole.dim[nd] = out, whole.dim[nd + 1] = flux__times(each, groups);
    o.weight = flux_reshape_with(flux_permute_with(flux_reshape_with(weight, parts), order), whole);
    o.dilation = flux__shape(w->dilation, nd);
    o.groups = groups;
    return o.x && o.weight ? flux__convolve("conv", o, !flip) : NULL;
}

/* A transposed convolution: the gradient of a convolution by its input, where x stands for g.
   `size` is the spatial dims of the result, `image` those before the padding is cut off. */
FLUX_DEF flux_tensor *flux_conv_transpose_with(flux_conv_opts o) {
    flux__window w;
    int64_t extra[3], size[3], lo[3];
    if (!flux__conv_window("conv_transpose", &o, &w, true) ||
        !flux__check_channels("conv_transpose", &o, w.nd, true) ||
        !flux__per_dim("conv_transpose", "outpad", &o.outpad, w.nd, 0, 0, extra)) return NULL;
    flux_shape image = flux__dims(o.x);   /* spatial dims before the padding is cut off */
    /* the padding can be left out; else all is computed, and then it is cut off */
    bool inside = true;
    for (int i = 0; i < w.nd; i++) {
        int64_t reach = flux__times(w.size[i] - 1, w.dilation[i]);
        w.out[i] = o.x->dim[i];
        image.dim[i] = flux__plus(flux__plus(flux__times(w.out[i] - 1, w.stride[i]), reach),
                                  1 + extra[i]);
        size[i] = flux__plus(image.dim[i], -flux__plus(w.lo[i], w.hi[i]));
        if (size[i] < 1)
            return (flux_tensor *)flux__fail("conv_transpose: padding leaves nothing of dim %d", i);
        inside = inside && w.lo[i] <= reach && w.hi[i] <= reach + extra[i];
    }
    if (!flux__check_shape("conv_transpose", &image)) return NULL;
    for (int i = 0; i < w.nd; i++) {
        lo[i] = inside ? 0 : w.lo[i];
        if (!inside) size[i] += w.lo[i] + w.hi[i], w.lo[i] = 0;
    }
    int h = flux__hide_in("conv_transpose");
    flux_tensor *y = flux__conv_back(o.x, o.weight, size, &w, o.groups, true);
    for (int i = 0; i < w.nd && y && !inside; i++) y = flux_slice(y, i, lo[i], size[i] - w.hi[i]);
    return flux__reveal(h, y);
}

/* What y only has in other places, where y is a transposed convolution whose windows tile the
   result: the product, [positions..., window..., channels, batch]. NULL: y is another tensor. */
static flux_tensor *flux__tiled_by(const flux_tensor *y) {
    return y->op == FLUX__AS_STRIDED_SCATTER && y->nin && !y->arg.i[1] &&
           flux__size(y) == flux__size(y->in[0]) ? y->in[0] : NULL;
}

/* x, of the shape of flux__tiled_by(y), with its elements in the places that they have in y. */
static flux_tensor *flux__tile_as(flux_tensor *x, const flux_tensor *y) {
    flux_shape s = flux__dims(y);
    return flux__as_strided_scatter(x, &s, y->rel, y->stride, 0, false);
}

/* The window view of a pooling's input, padded with value. *mask, 0 so far, becomes the window's
   dims in it, *at the result's shape. Where windows tile the image, they are the image itself with
   each dim divided in two; the gradient of that reshape needs no scatter. */
static flux_tensor *flux__pool_windows(const char *call, flux_pool_opts *o, double value,
                                       flux__window *w, unsigned *mask, flux_shape *at) {
    flux_tensor *x = o->x;
    bool tiles = true;
    if (!flux__check_operands(call, 1, &x)) return NULL;
    memset(w, 0, sizeof *w);
    w->nd = x->ndim - 2;
    if (w->nd < 1 || w->nd > 3 || o->window.ndim == 0) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("%s: x is %s, window has %d dims; "
                                         "needs 1 to 3 spatial dims and two more", call, t.s,
                                         o->window.ndim);
    }
    flux_shape none = flux__shape(NULL, 0), cut = none;
    if (!flux__per_dim(call, "window", &o->window, w->nd, 1, 1, w->size) ||
        !flux__per_dim(call, "stride", o->stride.ndim ? &o->stride : &o->window, w->nd, 1, 1,
                       w->stride) ||
        !flux__per_dim(call, "dilation", &none, w->nd, 1, 1, w->dilation) ||
        !flux__paddings(call, &o->pad, w, false) || !flux__window_out(call, x, w)) return NULL;
    *at = none;
    for (int i = 0; i < w->nd; i++) {
        tiles = tiles && w->size[i] == w->stride[i];
        *mask |= 1u << 2 * i;
        cut.dim[cut.ndim++] = w->size[i];
        cut.dim[cut.ndim++] = at->dim[at->ndim++] = w->out[i];
    }
    for (int i = w->nd; i < x->ndim; i++) cut.dim[cut.ndim++] = at->dim[at->ndim++] = x->dim[i];
    x = flux__pad_window(x, w, value);
    if (!tiles) {
        *mask = (1u << w->nd) - 1;
        return flux__windows(x, w);
    }
    for (int i = 0; i < w->nd && x; i++) x = flux_slice(x, i, 0, w->size[i] * w->out[i]);
    return x ? flux_reshape_with(x, cut) : NULL;
}

/* Pools by a reduction `red` over each window: the maximum, the mean (sum, power 0) or the norm
   of the given power (sum, power > 0). pad is the value of the padding. */
static flux_tensor *flux__pool_reduce(const char *call, flux_pool_opts *o, double pad, int red,
                                      double power) {
    flux__window w;
    flux_shape at;
    unsigned mask = 0;
    int h = flux__hide_in(call);
    /* integers lack the -infinity that the padding needs */
    if (o->x && o->x->op != FLUX__TUPLE) o->x = flux__floating(o->x);
    flux_tensor *win = flux__pool_windows(call, o, pad, &w, &mask, &at);
    if (win && red == FLUX__RED_SUM) win = flux__widened(win);
    if (win && power > 0) win = flux_pow(win, power);
    flux_tensor *y = win ? flux__reduce_node(win, red, mask, win->ndim) : NULL;
    if (y && power > 0) y = flux__root_of_sum(y, 1 / power);
    else if (y && red == FLUX__RED_SUM) y = flux_div(y, (double)flux__product(w.size, w.nd));
    y = y ? flux__narrow(y, o->x->dtype) : NULL;
    return flux__reveal(h, y ? flux_reshape_with(y, at) : NULL);
}

FLUX_DEF flux_tensor *flux_maxpool_with(flux_pool_opts o) {
    return flux__pool_reduce("maxpool", &o, -HUGE_VAL, FLUX__RED_MAX, 0);
}
FLUX_DEF flux_tensor *flux_meanpool_with(flux_pool_opts o) {
    return flux__pool_reduce("meanpool", &o, 0, FLUX__RED_SUM, 0);
}

/* The p-norm of each window: the root of the sum of powers; p is 2 unless given. */
FLUX_DEF flux_tensor *flux_lpnormpool_with(flux_pool_opts o) {
    double p = flux__given(o.p, o.marked, 2);
    if (!(p > 0)) return (flux_tensor *)flux__fail("lpnormpool: p is %g", p);
    return flux__pool_reduce("lpnormpool", &o, 0, FLUX__RED_SUM, p);
}

FLUX__END_COLD

#endif /* FLUX__GRAPH_WINDOWS_H */
