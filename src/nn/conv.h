#ifndef FLUX__NN_CONV_H
#define FLUX__NN_CONV_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../graph/windows.h"
#include "../graph/interpolation.h"
#include "fields.h"
#include "functions.h"
#include "initialisers.h"
#include "layers.h"

/* ---------------------------------------------------------------------- nn/conv.h
   Layers on images: Conv, CrossCor, ConvTranspose, DepthwiseConv, pooling (with
   a window, to a given output size, or of the whole image), upsampling and
   PixelShuffle, over graph/windows.h.

   Invariant: an image has 1 to 3 spatial dims, then channels and batch.
   Windows, strides, dilations and paddings are checked when the layer is made,
   sizes against the image when it is called. Bias and activation are applied in
   the shape of the matrix product, points x channels / groups x groups x batch,
   so that they run as its epilogue, while the product is in the cache. An
   adaptive pool computes its window and stride from the image; the window of a
   global pool is the whole image. A pool's padding must be smaller than its
   window, as else some windows would hold nothing but padding. */

FLUX__BEGIN_COLD

typedef struct flux__conv_layer {
    flux_layer base;
    /* weight: window x in / groups x out (ConvTranspose: window x out / groups x in);
       bias: out, or NULL */
    flux_tensor *weight, *bias;
    flux_fn activation;
    flux__window w;                       /* all fields but `out`, which depends on the image */
    int64_t outpad[3];                    /* ConvTranspose only */
    int groups;
} flux__conv_layer;

typedef flux_tensor *(*flux__convolve_fn)(flux_conv_opts o);

/* Adds ", what=2", or ", what=(2, 1)" if the n numbers differ, or nothing if all are `usual`. */
static void flux__put_sizes(flux__sink *s, const char *what, const int64_t *v, int n,
                            int64_t usual) {
    bool plain = true, one = true;
    for (int i = 0; i < n; i++) plain = plain && v[i] == usual, one = one && v[i] == v[0];
    if (plain) return;
    flux__putf(s, one ? ", %s=" : ", %s=(", what);
    flux__put_dims(s, v, one ? 1 : n);
    if (!one) flux__putf(s, ")");
}

/* The paddings of a window as options give them: low and high side of each dim in turn. */
static flux_shape flux__paddings_of(const flux__window *w) {
    flux_shape s = flux__shape(NULL, 2 * w->nd);
    for (int i = 0; i < w->nd; i++) s.dim[2 * i] = w->lo[i], s.dim[2 * i + 1] = w->hi[i];
    return s;
}

/* Adds the paddings as an option: one number for each dim if both its sides are alike, else two. */
static void flux__put_padding(flux__sink *s, const flux__window *w) {
    flux_shape both = flux__paddings_of(w);
    bool alike = true;
    for (int i = 0; i < w->nd; i++) alike = alike && w->lo[i] == w->hi[i];
    flux__put_sizes(s, "pad", alike ? w->lo : both.dim, alike ? w->nd : both.ndim, 0);
}

/* Adds "(3, 3)", or "(3,)" for one number. */
static void flux__put_tuple(flux__sink *s, const int64_t *v, int n) {
    flux__putf(s, "(");
    flux__put_dims(s, v, n);
    flux__putf(s, n == 1 ? ",)" : ")");
}

/* Checks that x is an image of nd spatial dims (nd 0: of 1 to 3), and converts it
   to dtype `want`. */
static flux_tensor *flux__image(flux_layer *m, flux_tensor *x, int nd, flux_dtype want) {
    flux_tensor *in = flux__input(m, x, want);
    if (!in || (nd ? in->ndim == nd + 2 : in->ndim >= 3 && in->ndim <= 5)) return in;
    return (flux_tensor *)flux__fail("%s expects %s spatial dims, channels and batch, got %s",
                                     flux__line_of(m).s,
                                     nd == 1   ? "1"
                                     : nd == 2 ? "2"
                                     : nd == 3 ? "3"
                                               : "1 to 3",
                                     flux__describe(x).s);
}

/* A vector of one number a channel, reshaped to broadcast along an image of ndim dims. */
static flux_tensor *flux__by_channel(flux_tensor *v, int ndim) {
    flux_shape s = flux__shape(NULL, ndim);
    for (int i = 0; i < ndim; i++) s.dim[i] = i == ndim - 2 ? flux__size(v) : 1;
    return flux_reshape_with(v, s);
}

/* A convolution layer's bias along the columns of its product, which has so many taps for each
   channel. */
static flux_tensor *flux__bias_of_taps(const flux__conv_layer *m, int64_t taps) {
    if (taps == 1) return flux_reshape(m->bias, 1, -1, m->groups);
    const int64_t each = flux__size(m->bias) / m->groups;
    flux_tensor *b = flux_broadcast_to(flux_reshape(m->bias, 1, each, m->groups), taps, each,
                                       m->groups);
    return flux_reshape(b, 1, taps * each, m->groups);
}

/* Calls a convolution layer on x, spatial dims x in x batch, by the operation f; `transposed`: a
   ConvTranspose, whose weight has the channels of x in its last dim. */
static flux_tensor *flux__conv_run(flux_layer *self, flux_tensor *x, flux__convolve_fn f,
                                   bool transposed) {
    flux__conv_layer *m = (flux__conv_layer *)self;
    int nd = m->w.nd;
    FLUX__ZEROED(flux_conv_opts, o);
    o.x = flux__image(self, x, nd, (flux_dtype)m->weight->dtype);
    if (!o.x ||
        !flux__expect_dim(self, x, nd,
                          transposed ? m->weight->dim[nd + 1] : m->weight->dim[nd] * m->groups))
        return NULL;
    o.weight = m->weight;
    o.stride = flux__shape(m->w.stride, nd);
    o.dilation = flux__shape(m->w.dilation, nd);
    o.pad = flux__paddings_of(&m->w);
    if (transposed) o.outpad = flux__shape(m->outpad, nd);
    o.groups = m->groups;
    /* bias and activation in the shape of the product, so that they run as its epilogue */
    flux_tensor *y = f(o), *tiles = transposed && y ? flux__tiled_by(y) : NULL,
                *of = tiles ? tiles : y;
    const int64_t taps = tiles ? flux__product(m->w.size, nd) : 1;
    flux_tensor *z = y ? flux_reshape(of, flux__product(of->dim, nd), taps * y->dim[nd] / m->groups,
                                      m->groups, y->dim[nd + 1]) : NULL;
    if (z && m->bias) z = flux_add(z, flux__bias_of_taps(m, taps));
    z = flux__activate(m->activation, z);
    z = z ? flux_reshape_with(z, flux__dims(of)) : NULL;
    return z && tiles ? flux__tile_as(z, y) : z;
}

static flux_tensor *flux__conv_call(flux_layer *self, flux_tensor *x) {
    return flux__conv_run(self, x, flux_conv_with, false);
}
static flux_tensor *flux__crosscor_call(flux_layer *self, flux_tensor *x) {
    return flux__conv_run(self, x, flux_crosscor_with, false);
}
static flux_tensor *flux__convtranspose_call(flux_layer *self, flux_tensor *x) {
    return flux__conv_run(self, x, flux_conv_transpose_with, true);
}

/* "Conv((3, 3), 1 => 16, relu, pad=1)": options that have their defaults are left out. */
static size_t flux__conv_text(flux_layer *self, char *out, size_t n) {
    const flux__conv_layer *m = (const flux__conv_layer *)self;
    int nd = m->w.nd;
    int64_t a = m->weight->dim[nd] * m->groups, b = m->weight->dim[nd + 1];
    bool transposed = self->type->call == flux__convtranspose_call;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "%s(", self->type->name);
    flux__put_tuple(&s, m->w.size, nd);
    flux__putf(&s, ", %lld => %lld", (long long)(transposed ? b : a),
              (long long)(transposed ? a : b));
    if (m->activation) flux__putf(&s, ", %s", flux__fn_name(m->activation));
    flux__put_padding(&s, &m->w);
    flux__put_sizes(&s, "stride", m->w.stride, nd, 1);
    flux__put_sizes(&s, "dilation", m->w.dilation, nd, 1);
    flux__put_sizes(&s, "outpad", m->outpad, nd, 0);
    if (m->groups != 1) flux__putf(&s, ", groups=%d", m->groups);
    flux__putf(&s, m->bias ? ")" : ", bias=false)");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__conv_layer, "Conv", flux__conv_call, flux__conv_text, FLUX_PARAM(weight),
                FLUX_PARAM(bias))
typedef flux__conv_layer flux__crosscor_layer;
FLUX_LAYER_TEXT(flux__crosscor_layer, "CrossCor", flux__crosscor_call, flux__conv_text,
                FLUX_PARAM(weight), FLUX_PARAM(bias))
typedef flux__conv_layer flux__convtranspose_layer;
FLUX_LAYER_TEXT(flux__convtranspose_layer, "ConvTranspose", flux__convtranspose_call,
                flux__conv_text, FLUX_PARAM(weight), FLUX_PARAM(bias))

/* Checks the window of a layer, 1 to 3 sizes of at least 1, and stores it in w, which it clears. */
static bool flux__check_window(const char *call, const flux_shape *window, flux__window *w) {
    memset(w, 0, sizeof *w);
    w->nd = window->ndim;
    if (w->nd >= 1 && w->nd <= 3)
        return flux__per_dim(call, "the window", window, w->nd, 1, 1, w->size);
    return FLUX__REFUSE("%s: the window has %d numbers; 1 to 3 are wanted, as in FLUX_SHAPE(3, 3)",
                        call, w->nd);
}

/* Makes any of the convolution layers; outpad is allowed if it is a ConvTranspose
   (`transposed`). */
static flux_layer *flux__conv_new(const char *call, const flux_layer_type *type,
                                  flux_conv_layer_opts *o, bool transposed) {
    FLUX__ZEROED(flux__conv_layer, m);
    flux_shape size, none = flux__shape(NULL, 0);
    flux__window *w = &m.w;
    int64_t ends[2] = { o->in, o->out };
    m.activation = o->activation;
    m.groups = (int)flux__given_int(o->groups, o->marked, 1);
    o->bias = flux__given_switch(o->bias, o->marked);
    if (!flux__check_window(call, &o->window, w) || !flux__check_sizes(call, 2, ends) ||
        !flux__check_activation(call, &m.activation) ||
        !flux__per_dim(call, "stride", &o->stride, w->nd, 1, 1, w->stride) ||
        !flux__per_dim(call, "dilation", &o->dilation, w->nd, 1, 1, w->dilation) ||
        !flux__paddings(call, &o->pad, w, transposed) ||
        !flux__per_dim(call, "outpad", transposed ? &o->outpad : &none, w->nd, 0, 0, m.outpad))
        return NULL;
    if (!transposed && o->outpad.ndim)
        return (flux_layer *)flux__fail("%s: .outpad is for ConvTranspose only", call);
    if (m.groups < 1 || o->in % m.groups || o->out % m.groups)
        return (flux_layer *)flux__fail(
            "%s: .groups is %d, which does not divide %lld channels in and %lld out", call,
            m.groups, (long long)o->in, (long long)o->out);
    size = flux__shape(w->size, w->nd + 2);
    size.dim[w->nd] = (transposed ? o->out : o->in) / m.groups;
    size.dim[w->nd + 1] = transposed ? o->in : o->out;
    int h = flux__hide();
    bool good = flux__make_affine(call, o->init ? o->init : flux_glorot_uniform, size,
                                  flux__shape(&o->out, 1), o->bias, &m.weight, &m.bias);
    return flux__layer_made(h, good, type, &m);
}

#define FLUX__CONV_LAYER(name, type, transposed)                                                   \
    FLUX_DEF flux_layer *flux_##name##_with(flux_conv_layer_opts o) {                              \
        return flux__conv_new(#name, type, &o, transposed);                                        \
    }
FLUX__CONV_LAYER(conv_layer, flux__conv_layer_type(), false)
FLUX__CONV_LAYER(crosscor_layer, flux__crosscor_layer_type(), false)
FLUX__CONV_LAYER(conv_transpose_layer, flux__convtranspose_layer_type(), true)
FLUX_DEF flux_layer *flux_depthwiseconv_with(flux_conv_layer_opts o) {
    if (flux__is_given_int(o.groups, o.marked))
        return (flux_layer *)flux__fail(
            "depthwiseconv: .groups is the number of channels in, %lld; it is not to be given",
            (long long)o.in);
    o.groups = o.in > 0 && o.in < 1 << 30 ? (int)o.in : 1;
    return flux__conv_new("depthwiseconv", flux__conv_layer_type(), &o, false);
}

/* ---- pooling: a window, an output size (adaptive) or the whole image (global) */

enum { FLUX__POOL_MAX, FLUX__POOL_MEAN, FLUX__POOL_LPNORM };
typedef struct flux__pool_layer {
    flux_layer base;
    flux__window w;                       /* adaptive: w.size is the result's; global: w.nd is 0 */
    double p;
    int kind;
    bool adaptive;
} flux__pool_layer;

/* Sets the window and stride with which a pool of x has m->w.size results along each dim. */
static bool flux__pool_adapt(flux__pool_layer *m, const flux_tensor *x, flux_pool_opts *o) {
    o->window = o->stride = flux__shape(NULL, m->w.nd);
    for (int i = 0; i < m->w.nd; i++) {
        int64_t in = x->dim[i], out = m->w.size[i];
        if (in < out)
            return FLUX__REFUSE("%s can't make more than there is of dim %d of %s",
                                flux__line_of(&m->base).s, i, flux__describe(x).s);
        o->stride.dim[i] = in / out;
        o->window.dim[i] = in - flux__times(out - 1, in / out);
    }
    return true;
}

/* Pools x, spatial dims x channels x batch. A max pool keeps the dtype of x, even an integer. */
static flux_tensor *flux__pool_call(flux_layer *self, flux_tensor *x) {
    flux__pool_layer *m = (flux__pool_layer *)self;
    int nd = m->w.nd;
    FLUX__ZEROED(flux_pool_opts, o);
    o.x = flux__image(self, x, nd,
                      m->kind == FLUX__POOL_MAX && x->op != FLUX__TUPLE ? (flux_dtype)x->dtype
                                                                        : flux__real_dtype(x));
    if (!o.x) return NULL;
    o.p = m->p;
    o.pad = flux__paddings_of(&m->w);
    o.window = flux__shape(m->w.size, nd);
    o.stride = flux__shape(m->w.stride, nd);
    if (!nd) {
        nd = o.x->ndim - 2;
        o.window = o.stride = flux__shape(o.x->dim, nd);
    } else if (m->adaptive && !flux__pool_adapt(m, o.x, &o)) return NULL;
    return m->kind == FLUX__POOL_MAX    ? flux_maxpool_with(o)
           : m->kind == FLUX__POOL_MEAN ? flux_meanpool_with(o)
                                        : flux_lpnormpool_with(o);
}

/* "MaxPool((2, 2), stride=1)", "AdaptiveMeanPool((4, 4))", "GlobalLPNormPool(p=2)" */
static size_t flux__pool_text(flux_layer *self, char *out, size_t n) {
    static const char *const names[] = { "Max", "Mean", "LPNorm" };
    const flux__pool_layer *m = (const flux__pool_layer *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "%s%sPool(", !m->w.nd ? "Global" : m->adaptive ? "Adaptive" : "",
               names[m->kind]);
    if (m->w.nd) flux__put_tuple(&s, m->w.size, m->w.nd);
    if (m->kind == FLUX__POOL_LPNORM) flux__putf(&s, m->w.nd ? ", p=%.10g" : "p=%.10g", m->p);
    flux__put_padding(&s, &m->w);
    if (!m->adaptive && memcmp(m->w.stride, m->w.size, sizeof m->w.size) != 0)
        flux__put_sizes(&s, "stride", m->w.stride, m->w.nd, 0);
    flux__putf(&s, ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__pool_layer, "Pool", flux__pool_call, flux__pool_text)

/* Makes a pool with a window or, if `adaptive`, with .window as the size of the result. */
static flux_layer *flux__pool_new(const char *call, int kind, flux_pool_layer_opts *o,
                                  bool adaptive) {
    FLUX__ZEROED(flux__pool_layer, m);
    flux_shape none = flux__shape(NULL, 0);
    m.kind = kind;
    m.adaptive = adaptive;
    m.p = flux__given(o->p, o->marked, 2);
    if (!flux__check_window(call, &o->window, &m.w) ||
        !flux__per_dim(call, "stride", o->stride.ndim ? &o->stride : &o->window, m.w.nd, 1, 1,
                       m.w.stride) ||
        !flux__per_dim(call, "dilation", &none, m.w.nd, 1, 1, m.w.dilation) ||
        !flux__paddings(call, &o->pad, &m.w, false))
        return NULL;
    if (!(m.p > 0) || !flux__finite(m.p))
        return (flux_layer *)flux__fail("%s: .p is %g", call, m.p);
    for (int i = 0; i < m.w.nd; i++)
        if (m.w.lo[i] >= m.w.size[i] || m.w.hi[i] >= m.w.size[i])
            return (flux_layer *)flux__fail(
                "%s: a padding as wide as the window, %lld, leaves windows of nothing else", call,
                (long long)m.w.size[i]);
    return flux__layer_new(flux__pool_layer_type(), &m);
}

#define FLUX__POOL_LAYER(name, kind)                                                               \
    FLUX_DEF flux_layer *flux_##name##_with(flux_pool_layer_opts o) {                              \
        return flux__pool_new(#name, kind, &o, false);                                             \
    }
FLUX__POOL_LAYER(maxpool_layer, FLUX__POOL_MAX)
FLUX__POOL_LAYER(meanpool_layer, FLUX__POOL_MEAN)
FLUX__POOL_LAYER(lpnormpool_layer, FLUX__POOL_LPNORM)

/* Pools whose result has the spatial size `out`. */
#define FLUX__ADAPTIVE_POOL(name, kind)                                                            \
    FLUX_DEF flux_layer *flux_##name(flux_shape out) {                                             \
        FLUX__ZEROED(flux_pool_layer_opts, o);                                                     \
        o.window = out;                                                                            \
        return flux__pool_new(#name, kind, &o, true);                                              \
    }
FLUX__ADAPTIVE_POOL(adaptivemaxpool, FLUX__POOL_MAX)
FLUX__ADAPTIVE_POOL(adaptivemeanpool, FLUX__POOL_MEAN)

/* A pool over the whole image. */
static flux_layer *flux__global_new(int kind, double p) {
    FLUX__ZEROED(flux__pool_layer, m);
    m.kind = kind;
    m.p = p;
    if (!(p > 0) || !flux__finite(p))
        return (flux_layer *)flux__fail("globallpnormpool: p is %g", p);
    return flux__layer_new(flux__pool_layer_type(), &m);
}
FLUX_DEF flux_layer *flux_globalmaxpool(void) { return flux__global_new(FLUX__POOL_MAX, 2); }
FLUX_DEF flux_layer *flux_globalmeanpool(void) { return flux__global_new(FLUX__POOL_MEAN, 2); }
FLUX_DEF flux_layer *flux_globallpnormpool(double p) {
    return flux__global_new(FLUX__POOL_LPNORM, p);
}

/* ---- upsampling */

typedef struct flux__upsample_layer { flux_layer base; flux_upsample_opts o; } flux__upsample_layer;

static const char *const flux__upsampling_names[] = { "nearest", "linear", "bilinear",
                                                      "trilinear" };

/* The size of dim i after upsampling; -1, with an error, if the layer cannot make that size. */
static int64_t flux__upsampled(flux__upsample_layer *m, const flux_tensor *x, int i) {
    const flux_upsample_opts *o = &m->o;
    int64_t in = x->dim[i];
    double scale = o->scale[1] > 0 ? o->scale[i] : o->scale[0];
    double scaled = floor(scale * (double)in * (1 + 1e-12));
    int64_t out = o->size.ndim    ? o->size.dim[o->size.ndim == 1 ? 0 : i]
                  : scaled < 9e18 ? (int64_t)scaled
                                  : INT64_MAX;
    if (o->mode == FLUX_NEAREST ? in > 0 && out >= in && out % in == 0 : out >= 1 && in >= 1)
        return out;
    flux__fail("%s can't make %lld of dim %d of %s%s", flux__line_of(&m->base).s, (long long)out, i,
               flux__describe(x).s,
               o->mode == FLUX_NEAREST ? ": nearest makes whole multiples" : "");
    return -1;
}

/* Repeats each element along the first nd dims, up to the shape s: inserts a dim before each of
   them, broadcasts these, and merges the pairs. */
static flux_tensor *flux__repeat_each(flux_tensor *x, int nd, flux_shape s) {
    flux_shape pairs = flux__shape(NULL, nd + s.ndim), wide = pairs;
    for (int i = 0, d = 0; i < s.ndim; i++) {
        if (i < nd) pairs.dim[d] = 1, wide.dim[d++] = s.dim[i] / x->dim[i];
        pairs.dim[d] = wide.dim[d] = x->dim[i], d++;
    }
    return flux_reshape_with(flux_broadcast_to_with(flux_reshape_with(x, pairs), wide), s);
}

/* Upsamples x, spatial dims x channels x batch. nd: how many spatial dims the
   options need; 0: any. */
static flux_tensor *flux__upsample_call(flux_layer *self, flux_tensor *x) {
    flux__upsample_layer *m = (flux__upsample_layer *)self;
    bool nearest = m->o.mode == FLUX_NEAREST;
    int nd = nearest ? m->o.size.ndim > 1  ? m->o.size.ndim
                       : m->o.scale[2] > 0 ? 3
                       : m->o.scale[1] > 0 ? 2
                                           : 0
                     : (int)m->o.mode;
    flux_tensor *y = flux__image(
        self, x, nd, nearest && x->op != FLUX__TUPLE ? (flux_dtype)x->dtype : flux__real_dtype(x));
    if (!y) return NULL;
    nd = y->ndim - 2;
    flux_shape s = flux__dims(y);
    for (int i = 0; i < nd; i++)
        if ((s.dim[i] = flux__upsampled(m, x, i)) < 0) return NULL;
    if (!flux__check_shape("upsample", &s)) return NULL;
    for (int i = 0; i < nd && !nearest; i++)
        if (flux__times(s.dim[i], x->dim[i]) == INT64_MAX)
            return (flux_tensor *)flux__fail("%s: dim %d of %s times its new size is beyond int64",
                                             flux__line_of(&m->base).s, i, flux__describe(x).s);
    y = nearest ? flux__repeat_each(y, nd, s) : flux__interpolated(flux__widened(y), s, false);
    return flux__narrow(y, x->dtype);
}

/* "Upsample(:bilinear, scale = (2, 3))" or "Upsample(:nearest, size = 8)" */
static size_t flux__upsample_text(flux_layer *self, char *out, size_t n) {
    const flux_upsample_opts *o = &((const flux__upsample_layer *)self)->o;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "Upsample(:%s, ", flux__upsampling_names[o->mode]);
    if (o->size.ndim) {
        flux__putf(&s, "size = ");
        if (o->size.ndim > 1) flux__put_tuple(&s, o->size.dim, o->size.ndim);
        else flux__put_dims(&s, o->size.dim, 1);
    } else if (o->scale[1] > 0) {
        flux__putf(&s, "scale = (%.10g, %.10g", o->scale[0], o->scale[1]);
        if (o->scale[2] > 0) flux__putf(&s, ", %.10g", o->scale[2]);
        flux__putf(&s, ")");
    } else flux__putf(&s, "scale = %.10g", o->scale[0]);
    flux__putf(&s, ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__upsample_layer, "Upsample", flux__upsample_call, flux__upsample_text)

/* Checks the mode and that one of .scale and .size is given, with one number or
   one for each dim. */
FLUX_DEF flux_layer *flux_upsample_with(flux_upsample_opts o) {
    FLUX__ZEROED(flux__upsample_layer, m);
    int n = 0;
    if ((unsigned)o.mode > FLUX_TRILINEAR)
        return (flux_layer *)flux__fail("upsample: there is no mode %d", (int)o.mode);
    for (int i = 0; i < 3; i++) {
        if (!(o.scale[i] >= 0) || !flux__finite(o.scale[i]) || (o.scale[i] > 0 && n < i) ||
            (o.mode == FLUX_NEAREST && o.scale[i] != floor(o.scale[i])))
            return (flux_layer *)flux__fail(
                "upsample: .scale[%d] is %g%s", i, o.scale[i],
                o.mode == FLUX_NEAREST && o.scale[i] > 0 ? "; nearest takes whole numbers" : "");
        n += o.scale[i] > 0;
    }
    if ((n > 0) == (o.size.ndim > 0))
        return (flux_layer *)flux__fail("upsample: one of .scale and .size is to be given");
    int have = n ? n : o.size.ndim;
    if (have > 3 || (have > 1 && o.mode != FLUX_NEAREST && have != (int)o.mode))
        return (flux_layer *)flux__fail("upsample: %s has %d numbers for %s",
                                        n ? ".scale" : ".size", have,
                                        flux__upsampling_names[o.mode]);
    if (o.size.ndim && !flux__check_sizes("upsample", o.size.ndim, o.size.dim)) return NULL;
    m.o = o;
    return flux__layer_new(flux__upsample_layer_type(), &m);
}

typedef struct flux__pixelshuffle_layer { flux_layer base; int64_t r; } flux__pixelshuffle_layer;

/* Reshapes x to w x h x r x r x c x n, permutes that to r x w x r x h x c x n, and merges each r
   with the dim after it: r w x r h x c x n. */
static flux_tensor *flux__pixelshuffle_call(flux_layer *self, flux_tensor *x) {
    int64_t r = ((flux__pixelshuffle_layer *)self)->r, rest, order[FLUX_MAX_DIMS];
    flux_tensor *y =
        flux__image(self, x, 0, x->op == FLUX__TUPLE ? FLUX_F32 : (flux_dtype)x->dtype);
    int nd = y ? y->ndim - 2 : 0;
    if (!y) return NULL;
    flux_shape s = flux__shape(y->dim, 2 * nd + 2), end = flux__shape(y->dim, nd + 2);
    rest = y->dim[nd];
    bool fits = true;
    for (int i = 0; i < nd; i++) {
        fits = fits && rest % r == 0;
        rest /= r;
        s.dim[nd + i] = r;
        end.dim[i] = flux__times(end.dim[i], r);
        order[2 * i] = nd + i, order[2 * i + 1] = i;
    }
    if (!fits)
        return (flux_tensor *)flux__fail(
            "%s takes a multiple of %lld channels for each of %d dims, got %s",
            flux__line_of(self).s, (long long)r, nd, flux__describe(x).s);
    s.dim[2 * nd] = end.dim[nd] = rest;
    s.dim[2 * nd + 1] = y->dim[nd + 1];
    order[2 * nd] = 2 * nd, order[2 * nd + 1] = 2 * nd + 1;
    y = flux_permute_with(flux_reshape_with(y, s), flux__shape(order, 2 * nd + 2));
    return flux_reshape_with(y, end);
}

static size_t flux__pixelshuffle_text(flux_layer *self, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "PixelShuffle(%lld)", (long long)((const flux__pixelshuffle_layer *)self)->r);
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__pixelshuffle_layer, "PixelShuffle", flux__pixelshuffle_call,
                flux__pixelshuffle_text)

FLUX_DEF flux_layer *flux_pixelshuffle(int64_t r) {
    FLUX__ZEROED(flux__pixelshuffle_layer, m);
    m.r = r;
    if (r < 1 || r > 1 << 20)
        return (flux_layer *)flux__fail("pixelshuffle: r is %lld", (long long)r);
    return flux__layer_new(flux__pixelshuffle_layer_type(), &m);
}

FLUX__END_COLD

#endif /* FLUX__NN_CONV_H */
