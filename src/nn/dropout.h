#ifndef FLUX__NN_DROPOUT_H
#define FLUX__NN_DROPOUT_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "fields.h"
#include "layers.h"
#include "model.h"

/* ---------------------------------------------------------------------- nn/dropout.h
   Dropout and AlphaDropout: each number is kept with probability 1 - p in train
   mode, and passes unchanged otherwise.

   Invariant: the mask is drawn from the thread's random stream when the layer
   is called, so the seed determines it; if .dims is given, the mask varies along
   those dims only. Kept numbers are divided by 1 - p. AlphaDropout replaces
   dropped numbers by the limit of selu at minus infinity, then scales and shifts
   so that mean and variance stay as they were (in float32 for half formats). At
   p = 1 all numbers are dropped, and nothing is divided by 0. */

FLUX__BEGIN_COLD

typedef struct flux__dropout { flux_layer base; double p; flux_shape dims; } flux__dropout;

/* ---------------- Dropout and AlphaDropout */

/* The mask of numbers of shape s on device d: bool, true with probability 1 - p. It varies along
   the dims of m->dims, or along all dims if none are named; the other dims have size 1 and
   broadcast. If all numbers are dropped, it is one false. */
static flux_tensor *flux__dropout_mask(flux__dropout *m, flux_shape s, flux_device d) {
    const flux_shape full = s;
    if (!(m->p < 1))
        return flux_to_tensor(d, flux_full_with(flux__shape(NULL, 0), 0.0, FLUX_BOOL));
    for (int i = 0; i < s.ndim && m->dims.ndim; i++) {
        bool varies = false;
        for (int k = 0; k < m->dims.ndim; k++) varies = varies || m->dims.dim[k] == i;
        if (!varies) s.dim[i] = 1;
    }
    for (int k = 0; k < m->dims.ndim; k++)
        if (m->dims.dim[k] >= s.ndim)
            return (flux_tensor *)flux__fail("%s: its input is %s and has no dim %lld",
                                             flux__line_of(&m->base).s, flux__shape_text(&full).s,
                                             (long long)m->dims.dim[k]);
    return flux_gt(flux_to_tensor(d, flux__rand_by_rank(&s)), m->p);
}

/* The input as a floating tensor; NULL after an error. *active is false if the layer is to return
   its input unchanged. */
static flux_tensor *flux__dropout_input(flux__dropout *m, flux_tensor *x, bool *active) {
    *active = m->p > 0 && flux_training(&m->base);
    if (!*active) return x;
    return flux__input(&m->base, x, flux__real_dtype(x));
}

/* What dropout with probability p leaves, x, scaled so that its mean stays. */
static flux_tensor *flux__dropout_scaled(flux_tensor *x, double p) {
    return x && p < 1 ? flux_mul(x, 1 / (1 - p)) : x;
}

/* x / (1 - p) where the mask is true, else 0. */
static flux_tensor *flux__dropout_call(flux_layer *self, flux_tensor *x) {
    flux__dropout *m = (flux__dropout *)self;
    bool active;
    x = flux__dropout_input(m, x, &active);
    if (!active || !x) return x;
    flux_tensor *keep = flux__dropout_mask(m, flux__dims(x), x->device);
    return keep ? flux_where(keep, flux__dropout_scaled(x, m->p), 0.0) : NULL;
}

/* Replaces dropped numbers by `low`, the limit of selu at minus infinity; y a + b then has the mean
   and variance of x. */
static flux_tensor *flux__alphadropout_call(flux_layer *self, flux_tensor *x) {
    flux__dropout *m = (flux__dropout *)self;
    const double low = -1.7580993408473766;
    double p = m->p, a = 1 / sqrt((1 - p) * (1 + p * low * low)), b = -a * low * p;
    bool active;
    x = flux__dropout_input(m, x, &active);
    if (!active || !x) return x;
    flux_tensor *keep = flux__dropout_mask(m, flux__dims(x), x->device);
    if (keep && !(p < 1)) return flux_where(keep, x, 0.0);
    return keep ? flux__narrow(flux_add(flux_mul(flux_where(keep, flux__widened(x), low), a), b),
                               x->dtype)
                : NULL;
}

static size_t flux__dropout_text(flux_layer *self, char *out, size_t n) {
    const flux__dropout *m = (const flux__dropout *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "%s(%.10g", self->type->name, m->p);
    if (m->dims.ndim) flux__putf(&s, m->dims.ndim > 1 ? ", dims=(" : ", dims=");
    flux__put_dims(&s, m->dims.dim, m->dims.ndim);
    if (m->dims.ndim > 1) flux__putf(&s, ")");
    return flux__put_mode(&s, self);
}
FLUX_LAYER_TEXT(flux__dropout, "Dropout", flux__dropout_call, flux__dropout_text)
typedef flux__dropout flux__alphadropout;
FLUX_LAYER_TEXT(flux__alphadropout, "AlphaDropout", flux__alphadropout_call, flux__dropout_text)

/* Makes a Dropout or an AlphaDropout; `dims`: those along which the mask varies. */
static flux_layer *flux__dropout_new(const char *call, const flux_layer_type *type, double p,
                                     flux_shape dims) {
    FLUX__ZEROED(flux__dropout, m);
    if (!(p >= 0 && p <= 1))
        return (flux_layer *)flux__fail("%s: p is %g, which is not within 0 to 1", call, p);
    for (int i = 0; i < dims.ndim || dims.ndim < 0; i++)
        if (dims.ndim < 0 || dims.ndim > FLUX_MAX_DIMS || dims.dim[i] < 0 ||
            dims.dim[i] >= FLUX_MAX_DIMS)
            return (flux_layer *)flux__fail("%s: .dims names a dim that no tensor has", call);
    m.p = p;
    m.dims = dims;
    return flux__layer_new(type, &m);
}

FLUX_DEF flux_layer *flux_dropout_with(flux_dropout_opts o) {
    return flux__dropout_new("dropout", flux__dropout_type(), o.p, o.dims);
}
FLUX_DEF flux_layer *flux_alphadropout(double p) {
    return flux__dropout_new("alphadropout", flux__alphadropout_type(), p, flux__shape(NULL, 0));
}

FLUX__END_COLD

#endif /* FLUX__NN_DROPOUT_H */
