#ifndef FLUX__NN_NORMS_H
#define FLUX__NN_NORMS_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../graph/reductions.h"
#include "../schedule/key.h"
#include "../schedule/looking.h"
#include "fields.h"
#include "walk.h"
#include "map.h"
#include "functions.h"
#include "initialisers.h"
#include "layers.h"
#include "model.h"
#include "conv.h"

/* ---------------------------------------------------------------------- nn/norms.h
   Normalisation: LayerNorm, RMSNorm, BatchNorm, InstanceNorm, GroupNorm, and WeightNorm
   with its removal. BatchNorm, InstanceNorm and GroupNorm are one struct and
   differ in the dims over which means are taken: all but the channels; the
   spatial dims of one image; a group of channels of one image.

   Invariant: means and variances are computed in float32, or float64, also for
   half formats and integers, whose variance would overflow; parameters and
   statistics of these layers stay float32 in a model of half formats. A running
   statistic is recorded without gradient. It is evaluated by the next
   flux_update, or when it is read, or else before the next batch is added to
   it. A running variance is that of a sample (divided by n - 1). WeightNorm
   stores v in the weight field of its layer; its call makes a clone of the layer
   with g v / |v| in that field. Removal does so once for each WeightNorm,
   however often a model holds it. */

FLUX__BEGIN_COLD

/* Options of a reduction of x over `dims`. */
static flux_reduce_opts flux__over(flux_tensor *x, const flux_shape *dims) {
    FLUX__ZEROED(flux_reduce_opts, o);
    int d[FLUX_MAX_DIMS] = { 0 };
    for (int i = 0; i < dims->ndim && i < FLUX_MAX_DIMS; i++) d[i] = (int)dims->dim[i];
    o.x = x;
    o.d0 = d[0], o.d1 = d[1], o.d2 = d[2], o.d3 = d[3], o.d4 = d[4], o.d5 = d[5], o.d6 = d[6],
    o.d7 = d[7];
    return o;
}

/* (x - mean) / sqrt(var + eps) over `dims`. Half formats and integers are normalised in float32, as
   their variance would overflow. */
FLUX_DEF flux_tensor *flux_normalise(flux_tensor *x, flux_shape dims, double eps) {
    if (!flux__check_operands("normalise", 1, &x)) return NULL;
    if (!(eps >= 0) || !flux__finite(eps))
        return (flux_tensor *)flux__fail("normalise: eps is %g", eps);
    if (dims.ndim < 1 || dims.ndim > FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("normalise: %d dims to normalise over", dims.ndim);
    for (int i = 0; i < dims.ndim; i++)
        if (dims.dim[i] < 0 || dims.dim[i] >= x->ndim)
            return (flux_tensor *)flux__fail("normalise: %s has no dim %lld", flux__describe(x).s,
                                             (long long)dims.dim[i]);
    flux_dtype t = flux__real_dtype(x);
    int h = flux__hide();
    flux_tensor *in = flux_to_dtype(x, t == FLUX_F64 ? FLUX_F64 : FLUX_F32);
    flux_tensor *centred = flux_sub(in, flux_mean_with(dims.ndim, flux__over(in, &dims)));
    flux_tensor *var = flux_mean_with(dims.ndim, flux__over(flux_square(centred), &dims));
    return flux__reveal(h, flux_to_dtype(flux_mul(centred, flux_rsqrt(flux_add(var, eps))), t));
}

/* Sets dims to the first dims of x, over which a layer normalises, and checks that they are of the
   sizes that it was made for. False: an error, or x is NULL. */
static bool flux__first_dims(flux_layer *self, const flux_tensor *x, const flux_shape *size,
                             flux_shape *dims) {
    *dims = flux__shape(NULL, size->ndim);
    for (int i = 0; i < size->ndim; dims->dim[i] = i, i++)
        if (!x || !flux__expect_dim(self, x, i, size->dim[i])) return false;
    return x != NULL;
}

/* Whether .eps and .size are such that a layer can normalise over dims of that size. */
static bool flux__check_norm(const char *call, double eps, const flux_shape *size) {
    if (!(eps >= 0) || !flux__finite(eps)) return FLUX__REFUSE("%s: .eps is %g", call, eps);
    if (size->ndim < 1)
        return FLUX__REFUSE("%s: .size is missing, as in flux_%s(FLUX_SHAPE(64))", call, call);
    return flux__check_shape(call, size) && flux__check_sizes(call, size->ndim, size->dim);
}

typedef struct flux__layernorm {
    flux_layer base;
    flux_layer *diag;
    flux_fn activation;
    double eps;
    flux_shape size;
} flux__layernorm;

/* Normalises x over its first dims, which must be m->size, then applies scale and bias (diag) and
   the activation. */
static flux_tensor *flux__layernorm_call(flux_layer *self, flux_tensor *x) {
    flux__layernorm *m = (flux__layernorm *)self;
    const flux__scale *diag = (const flux__scale *)m->diag;
    flux_dtype own = diag ? (flux_dtype)diag->scale->dtype : flux__real_dtype(x);
    flux_tensor *in = flux__input(self, x, own);
    flux_shape dims;
    if (!flux__first_dims(self, in, &m->size, &dims)) return NULL;
    flux_tensor *y = flux_normalise(in, dims, m->eps);
    y = m->diag && y ? flux_call_layer(m->diag, y) : flux__activate(m->activation, y);
    bool half = flux__is_half(x->dtype);  /* the result returns to the half format of x */
    return half && y && own == FLUX_F32 ? flux_to_dtype(y, (flux_dtype)x->dtype) : y;
}

static size_t flux__layernorm_text(flux_layer *self, char *out, size_t n) {
    const flux__layernorm *m = (const flux__layernorm *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "LayerNorm(");
    flux__put_dims(&s, m->size.dim, m->size.ndim);
    if (m->activation) flux__putf(&s, ", %s", flux__fn_name(m->activation));
    flux__putf(&s, m->diag ? ")" : ", affine=false)");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__layernorm, "LayerNorm", flux__layernorm_call, flux__layernorm_text,
                FLUX_CHILD(diag))

/* LayerNorm over the first dims, of sizes .size, with a Scale (diag) after it unless
   .affine is off. */
FLUX_DEF flux_layer *flux_layernorm_with(flux_layernorm_opts o) {
    FLUX__ZEROED(flux__layernorm, m);
    FLUX__ZEROED(flux_scale_opts, affine);
    m.activation = affine.activation = o.activation;
    m.size = affine.size = o.size;
    m.eps = flux__given(o.eps, o.marked, 1e-5);
    o.affine = flux__given_switch(o.affine, o.marked);
    if (!flux__check_norm("layernorm", m.eps, &o.size) ||
        !flux__check_activation("layernorm", &m.activation)) return NULL;
    int h = flux__hide();
    m.diag = o.affine == FLUX_OFF ? NULL : flux__scale_new(flux__norm_scale_type(), affine);
    return flux__layer_made(h, m.diag || o.affine == FLUX_OFF, flux__layernorm_type(), &m);
}

typedef struct flux__rmsnorm {
    flux_layer base;
    flux_tensor *scale;                   /* of the shape of the dims normalised; NULL: none */
    double eps;
    flux_shape size;
} flux__rmsnorm;

static flux_tensor *flux__rmsnorm_call(flux_layer *self, flux_tensor *x) {
    flux__rmsnorm *m = (flux__rmsnorm *)self;
    if (x->op == FLUX__TUPLE) return flux__input(self, x, FLUX_F32);
    const flux_dtype wide = x->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32;
    flux_tensor *in = flux_to_dtype(x, m->scale ? flux__promote(wide, (flux_dtype)m->scale->dtype)
                                                : wide);
    flux_shape dims;
    if (!flux__first_dims(self, in, &m->size, &dims)) return NULL;
    int h = flux__hide();
    flux_tensor *mean = flux_mean_with(dims.ndim, flux__over(flux_square(in), &dims));
    flux_tensor *y = mean ? flux_mul(in, flux_rsqrt(flux_add(mean, m->eps))) : NULL;
    if (m->scale && y) y = flux_mul(y, m->scale);
    return flux__reveal(h, flux__narrow(y, x->dtype));
}

static size_t flux__rmsnorm_text(flux_layer *self, char *out, size_t n) {
    const flux__rmsnorm *m = (const flux__rmsnorm *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "RMSNorm(");
    flux__put_dims(&s, m->size.dim, m->size.ndim);
    flux__putf(&s, m->scale ? ")" : ", affine=false)");
    return flux__sink_end(&s);
}
FLUX_LAYER_TRAITS(flux__rmsnorm, "RMSNorm", flux__rmsnorm_call, flux__rmsnorm_text, FLUX_KEEPS_F32,
                  FLUX_PARAM(scale))

FLUX_DEF flux_layer *flux_rmsnorm_with(flux_rmsnorm_opts o) {
    FLUX__ZEROED(flux__rmsnorm, m);
    m.size = o.size;
    m.eps = flux__given(o.eps, o.marked, 1e-6);
    const bool affine = flux__given_switch(o.affine, o.marked) != FLUX_OFF;
    if (!flux__check_norm("rmsnorm", m.eps, &o.size)) return NULL;
    int h = flux__hide();
    m.scale = affine ? flux_full_with(o.size, 1, FLUX_F32) : NULL;
    return flux__layer_made(h, m.scale || !affine, flux__rmsnorm_type(), &m);
}

/* ---- BatchNorm, InstanceNorm, GroupNorm: they differ in the dims over which means are taken */

typedef struct flux__norm_layer {
    flux_layer base;
    flux_tensor *beta, *gamma, *mean, *var;
    flux_fn activation;
    double eps, momentum;
    int64_t channels, groups;             /* groups: 0 for BatchNorm, channels for InstanceNorm */
    bool track;                           /* keeps running statistics: mean and var, of channels */
    bool grouped;                         /* a GroupNorm, which prints its groups */
} flux__norm_layer;

/* Records the running statistics after a batch: (1 - momentum) old + momentum new, where `new` has
   one number a channel, averaged over the samples if each sample has its own. The variance is that
   of a sample (divided by n - 1); n is how many numbers each mean and var is of. */
static bool flux__norm_track(flux__norm_layer *m, flux_tensor *mean, flux_tensor *var, double n) {
    flux_tensor *now[2] = { mean, var }, *old[2] = { m->mean, m->var };
    double scale[2] = { m->momentum, m->momentum * n / (n - 1) };
    if (!flux__finished(flux__base(old[0])) || !flux__finished(flux__base(old[1])))
        if (flux_eval_all(2, old) != 0)
            return false; /* else the graph would grow with each batch */
    const int b = flux__nograd_enter();
    for (int i = 0; i < 2; i++) {
        flux_tensor *v = now[i];
        int64_t batch = v->dim[v->ndim - 1], size[2] = { m->channels, batch };
        v = flux_reshape_with(flux_mul(v, scale[i] / (double)batch), flux__shape(size, 2));
        v = v ? flux_reshape_with(batch > 1 ? flux_sum(v, 1) : v, flux__shape(size, 1)) : NULL;
        now[i] = v ? flux_to_dtype(flux_add(flux_mul(old[i], 1 - m->momentum), v),
                                   (flux_dtype)old[i]->dtype)
                   : NULL;
    }
    flux__nograd_leave(b);
    if (!now[0] || !now[1]) return false;
    flux_assign(&m->mean, now[0]);
    flux_assign(&m->var, now[1]);
    return true;
}

/* Records mean, variance and x - mean over `dims`; returns how many numbers each mean is of. If x
   is NULL, the results are NULL and 0. With `lasting` a look at the result stores the first two as
   well, for running statistics and gradients. The mean that is subtracted is a constant to the
   gradient, and *left, the mean less that constant, is 0: whatever the constant, var =
   mean(centred^2) - left^2 and x - mean = centred - left, so gradients of any order are right. The
   mean's own then comes from a few numbers a channel, not from a sum over x that waits for the
   variance's. */
static double flux__norm_stats(flux_tensor *x, const flux_shape *dims, bool lasting,
                               flux_tensor **mean, flux_tensor **var, flux_tensor **centred,
                               flux_tensor **left) {
    double n = 1;
    *mean = *var = *centred = *left = NULL;
    if (!x) return 0;
    for (int i = 0; i < dims->ndim; i++) n *= (double)x->dim[dims->dim[i]];
    *mean = flux_mean_with(dims->ndim, flux__over(x, dims));
    flux_tensor *c = flux_detach(*mean);
    *centred = flux_sub(x, c), *left = flux_sub(*mean, c);
    *var = *centred ? flux_mean_with(dims->ndim, flux__over(flux_square(*centred), dims)) : NULL;
    *var = flux_sub(*var, flux_square(*left));
    if (*var && lasting)
        flux__base(*mean)->flags |= FLUX__LASTING, flux__base(*var)->flags |= FLUX__LASTING;
    return n;
}

/* Whether a variance can be taken in train mode: of more than one number; if not, an error. */
static bool flux__norm_enough(flux_layer *self, const flux_tensor *x, double n) {
    if (n > 1) return true;
    return FLUX__REFUSE("%s has no variance to take of %s in train mode: one value a channel",
                        flux__line_of(self).s, flux__describe(x).s);
}

/* x with one number for each channel, in groups, repeated for each sample. Its gradient is summed
   over the spatial dims first, where a sample's mean and variance are one number a row. */
static flux_tensor *flux__by_group(flux_tensor *x, const flux_shape *split, int nd) {
    flux_shape s = *split;
    for (int d = 0; d < nd; d++) s.dim[d] = 1;
    const int64_t batch = s.dim[nd + 2];
    s.dim[nd + 2] = 1;
    x = flux_reshape_with(x, s);
    s.dim[nd + 2] = batch;
    return flux_broadcast_to_with(x, s);
}

/* A group norm's x, spatial dims x channels x batch, normalised over the spatial dims and the
   channels of a group, then times gamma plus beta: in a shape in which the channel dim is split in
   two, channels of a group x groups, so that all of it is one kernel. */
static flux_tensor *flux__norm_groups(const flux__norm_layer *m, flux_tensor *x) {
    const int nd = x->ndim - 2;
    const int64_t each = m->channels / m->groups;
    flux_shape split = flux__dims(x), over = flux__shape(NULL, 0);
    for (int d = 0; d <= nd; d++) over.dim[over.ndim++] = d;
    split.dim[nd] = each, split.dim[nd + 1] = m->groups, split.dim[nd + 2] = x->dim[nd + 1];
    split.ndim++;
    flux_tensor *y = flux_normalise(flux_reshape_with(x, split), over, m->eps);
    if (m->gamma && y)
        y = flux_add(flux_mul(y, flux__by_group(m->gamma, &split, nd)),
                     flux__by_group(m->beta, &split, nd));
    return y ? flux_reshape_with(y, flux__dims(x)) : NULL;
}

/* Normalises x, spatial dims x channels x batch, with the statistics of the batch or, outside
   training, with the running ones if the layer has them; then applies gamma, beta and the
   activation. */
static flux_tensor *flux__norm_call(flux_layer *self, flux_tensor *x) {
    flux__norm_layer *m = (flux__norm_layer *)self;
    bool batch = m->groups == 0, training = flux_training(self);
    flux_dtype t = flux__real_dtype(x), wide = t == FLUX_F64 ? FLUX_F64 : FLUX_F32;
    flux_tensor *in = flux__input(
        self, x, m->gamma || m->mean ? (flux_dtype)(m->gamma ? m->gamma : m->mean)->dtype : wide);
    int nd = in ? in->ndim - 2 : 0;
    flux_tensor *mean, *var = NULL, *y, *gamma, *left = NULL, *shift;
    if (!in || (batch && in->ndim == 2 ? false : !flux__image(self, x, 0, t)) ||
        !flux__expect_dim(self, x, nd, m->channels))
        return NULL;
    if (m->groups && m->groups < m->channels)
        return flux_to_dtype(flux__activate(m->activation, flux__norm_groups(m, in)), t);
    gamma = m->gamma ? flux__by_channel(m->gamma, in->ndim) : NULL;
    shift = m->gamma ? flux__by_channel(m->beta, in->ndim) : NULL;
    if (m->mean && !(m->track && training)) {
        mean = flux__by_channel(m->mean, in->ndim);
        var = flux__by_channel(m->var, in->ndim);
        y = flux_sub(in, mean);
    } else {
        flux_shape dims = flux__shape(NULL, 0);
        for (int i = 0; i < nd; i++) dims.dim[dims.ndim++] = i;
        if (batch) dims.dim[dims.ndim++] = nd + 1;
        double n = flux__norm_stats(in, &dims, training, &mean, &var, &y, &left);
        if (var && training && !flux__norm_enough(self, x, n)) return NULL;
        if (!var || (training && m->track && !flux__norm_track(m, mean, var, n))) return NULL;
    }
    if (var && y) { /* gamma / sqrt(var + eps), one number a channel, is one pass over y, not two */
        flux_tensor *scale = flux_rsqrt(flux_add(var, m->eps));
        if (gamma) scale = flux_mul(scale, gamma);
        y = flux_mul(y, scale);
        if (left) scale = flux_mul(left, scale);
        if (left) shift = gamma ? flux_sub(shift, scale) : flux_neg(scale);
    }
    if (gamma || left) y = flux_add(y, shift);
    return flux_to_dtype(flux__activate(m->activation, y), t);
}

static size_t flux__norm_text(flux_layer *self, char *out, size_t n) {
    const flux__norm_layer *m = (const flux__norm_layer *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "%s(%lld", self->type->name, (long long)m->channels);
    if (m->grouped) flux__putf(&s, ", %lld", (long long)m->groups);
    if (m->activation) flux__putf(&s, ", %s", flux__fn_name(m->activation));
    if (!m->gamma) flux__putf(&s, ", affine=false");
    return flux__put_mode(&s, self);
}
#define FLUX__NORM_FIELDS FLUX_PARAM(beta), FLUX_PARAM(gamma), FLUX_STATE(mean), FLUX_STATE(var)
FLUX_LAYER_TRAITS(flux__norm_layer, "BatchNorm", flux__norm_call, flux__norm_text, FLUX_KEEPS_F32,
                  FLUX__NORM_FIELDS)
typedef flux__norm_layer flux__instancenorm_layer;
FLUX_LAYER_TRAITS(flux__instancenorm_layer, "InstanceNorm", flux__norm_call, flux__norm_text,
                  FLUX_KEEPS_F32, FLUX__NORM_FIELDS)
typedef flux__norm_layer flux__groupnorm_layer;
FLUX_LAYER_TRAITS(flux__groupnorm_layer, "GroupNorm", flux__norm_call, flux__norm_text,
                  FLUX_KEEPS_F32, FLUX__NORM_FIELDS)

/* Makes any of the three layers; groups: 0 for BatchNorm, else the number of groups of channels. */
static flux_layer *flux__norm_new(const char *call, const flux_layer_type *type, flux_norm_opts *o,
                                  int64_t groups) {
    FLUX__ZEROED(flux__norm_layer, m);
    m.channels = o->channels;
    m.groups = groups;
    m.grouped = type == flux__groupnorm_layer_type();
    m.activation = o->activation;
    m.eps = flux__given(o->eps, o->marked, 1e-5);
    m.momentum = flux__given(o->momentum, o->marked, 0.1);
    m.track = flux__given_switch(o->track_stats, o->marked) == FLUX_ON;
    bool affine = flux__given_switch(o->affine, o->marked) == FLUX_ON;
    if (!flux__check_sizes(call, 1, &m.channels) || !flux__check_activation(call, &m.activation))
        return NULL;
    if (!(m.eps >= 0) || !flux__finite(m.eps))
        return (flux_layer *)flux__fail("%s: .eps is %g", call, m.eps);
    if (!(m.momentum >= 0 && m.momentum <= 1))
        return (flux_layer *)flux__fail("%s: .momentum is %g", call, m.momentum);
    flux_shape s = flux__shape(&m.channels, 1);
    int h = flux__hide_in(call);
    if (affine) {
        m.beta = flux__make_weight(call, o->init_beta ? o->init_beta : flux_zeros32, s);
        m.gamma =
            m.beta ? flux__make_weight(call, o->init_gamma ? o->init_gamma : flux_ones32, s) : NULL;
    }
    bool good = m.gamma || !affine;
    if (good && m.track) {
        m.mean = flux_full_with(s, 0.0, FLUX_F32);
        m.var = m.mean ? flux_full_with(s, 1.0, FLUX_F32) : NULL;
        good = m.var != NULL;
    }
    return flux__layer_made(h, good, type, &m);
}

FLUX_DEF flux_layer *flux_batchnorm_with(flux_norm_opts o) {
    if (flux__given_switch(o.affine, o.marked) == FLUX_DEFAULT) o.affine = FLUX_ON;
    if (flux__given_switch(o.track_stats, o.marked) == FLUX_DEFAULT) o.track_stats = FLUX_ON;
    return flux__norm_new("batchnorm", flux__norm_layer_type(), &o, 0);
}
FLUX_DEF flux_layer *flux_instancenorm_with(flux_norm_opts o) {
    return flux__norm_new("instancenorm", flux__instancenorm_layer_type(), &o, o.channels);
}
/* GroupNorm: .groups must divide .channels; it keeps no running statistics. */
FLUX_DEF flux_layer *flux_groupnorm_with(flux_groupnorm_opts g) {
    FLUX__ZEROED(flux_norm_opts, o);
    o.channels = g.channels;
    o.activation = g.activation;
    o.affine = flux__given_switch(g.affine, g.marked) == FLUX_OFF ? FLUX_OFF : FLUX_ON;
    o.eps = g.eps;
    o.momentum = FLUX__NO_NUMBER;
    o.marked = g.marked;
    if (g.groups < 1 || g.channels % g.groups)
        return (flux_layer *)flux__fail("groupnorm: %lld groups do not divide %lld channels",
                                        (long long)g.groups, (long long)g.channels);
    return flux__norm_new("groupnorm", flux__groupnorm_layer_type(), &o, g.groups);
}

/* ---- WeightNorm */

typedef struct flux__weightnorm_layer {
    flux_layer base;
    flux_layer *layer;                    /* its field `which` holds v */
    flux_tensor *g;
    flux_shape dims;
    const char *which;                    /* the field's name; memory of the layer's type */
} flux__weightnorm_layer;

/* |v|, the norm over `dims`; the dtype's epsilon keeps it above 0. */
static flux_tensor *flux__weight_length(flux_tensor *v, const flux_shape *dims) {
    double tiny = flux__dtypes[v->dtype].epsilon;
    flux_tensor *sum = flux_sum_with(dims->ndim, flux__over(flux_square(flux__widened(v)), dims));
    return sum ? flux_sqrt(flux_add(sum, tiny * tiny)) : NULL;
}

/* A clone of m's layer with g v / |v| in place of v; the caller owns the reference. */
static flux_layer *flux__weightnorm_fold(flux__weightnorm_layer *m) {
    flux_layer *y = flux__layer_clone(m->layer->type, m->layer);
    if (y && flux__copy_base(y, m->layer)) {
        flux_tensor **slot = flux__tensor_named(y, m->which, NULL);
        flux_tensor *w =
            flux_div(flux_mul(flux__widened(*slot), m->g), flux__weight_length(*slot, &m->dims));
        w = flux__narrow(w, (*slot)->dtype);
        if (w) return flux_assign(slot, w), y;
    }
    flux_release(y);
    return NULL;
}

static flux_tensor *flux__weightnorm_call(flux_layer *self, flux_tensor *x) {
    flux_layer *folded = flux__weightnorm_fold((flux__weightnorm_layer *)self);
    flux_tensor *y = folded ? flux_call_layer(folded, x) : NULL;
    flux_release(folded);
    return y;
}

static size_t flux__weightnorm_text(flux_layer *self, char *out, size_t n) {
    const flux__weightnorm_layer *m = (const flux__weightnorm_layer *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "WeightNorm(%s, :%s", flux__line_of(m->layer).s, m->which);
    if (m->dims.ndim != 1 ||
        m->dims.dim[0] != (*flux__tensor_named(m->layer, m->which, NULL))->ndim - 1)
        flux__put_sizes(&s, "dims", m->dims.dim, m->dims.ndim, -1);
    flux__putf(&s, ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TEXT(flux__weightnorm_layer, "WeightNorm", flux__weightnorm_call, flux__weightnorm_text,
                FLUX_CHILD(layer), FLUX_PARAM(g))

/* Wraps a layer: g starts as |v|, so that the layer's output is what it was. */
FLUX_DEF flux_layer *flux_weightnorm_with(flux_weightnorm_opts o) {
    FLUX__ZEROED(flux__weightnorm_layer, m);
    if (!o.layer) return (flux_layer *)flux__null("weightnorm", "layer", o.layer);
    const char *which = o.which ? o.which : "weight";
    flux_tensor **slot = flux__tensor_named(o.layer, which, &m.which);
    if (!slot || !*slot || !flux__dtypes[(*slot)->dtype].real || (*slot)->ndim < 1)
        return (flux_layer *)flux__fail("weightnorm: %s has no \"%.60s\" to normalise",
                                        flux__line_of(o.layer).s, which);
    m.layer = o.layer;
    m.dims = o.dims;
    if (m.dims.ndim < 0 || m.dims.ndim > FLUX_MAX_DIMS)
        return (flux_layer *)flux__fail("weightnorm: %d dims", m.dims.ndim);
    if (!m.dims.ndim) m.dims.dim[m.dims.ndim++] = (*slot)->ndim - 1;
    for (int i = 0; i < m.dims.ndim; i++)
        if (m.dims.dim[i] < 0 || m.dims.dim[i] >= (*slot)->ndim)
            return (flux_layer *)flux__fail("weightnorm: %s, %s, has no dim %lld", which,
                                            flux__describe(*slot).s, (long long)m.dims.dim[i]);
    int h = flux__hide();
    const int b = flux__nograd_enter();
    m.g = flux__narrow(flux__weight_length(*slot, &m.dims), (*slot)->dtype);
    flux__nograd_leave(b);
    double least = m.g ? flux_item(flux_min(m.g)) : 0;
    if (m.g && !(least > 2 * flux__dtypes[(*slot)->dtype].epsilon))
        m.g = (flux_tensor *)flux__fail("weightnorm: %s of %s has no direction: all of it, or a "
                                        "part that is normalised, is zero",
                                        which, flux__line_of(o.layer).s);
    return flux__layer_made(h, m.g != NULL, flux__weightnorm_layer_type(), &m);
}

/* The plain layer that replaces a WeightNorm, the same one wherever the model holds it.
   `folds` maps the WeightNorm to it, and holds a reference to both, so that no other layer
   gets that address. */
static flux_layer *flux__unnormed(flux_layer *m, flux__hashmap *folds) {
    bool fresh;
    flux__pair *known = flux__hashmap_at(folds, m, &fresh);
    if (!known || !fresh) return known ? (flux_layer *)known->value : NULL;
    flux_retain(m);
    flux_layer *y = flux__weightnorm_fold((flux__weightnorm_layer *)m);
    if (y && m->name && !y->name) {       /* the plain layer takes over the WeightNorm's name */
        y->name = m->name;
        m->name = NULL;
    }
    known->value = y;
    return y;
}

/* Replaces every WeightNorm at *place or below it by its plain layer. */
static bool flux__unnorm(flux_layer **place, flux__hashmap *folds, int depth) {
    flux_layer *m = *place;
    if (m->type == flux__weightnorm_layer_type()) {
        flux_layer *y = flux__unnormed(m, folds);
        if (!y) return false;
        *place = (flux_layer *)flux_retain(y);
        flux_release(m);
        m = y;
    }
    FLUX__EACH_MEMBER(at, m)
        if (!at.tensor && depth < FLUX_MAX_LEVELS &&
            !flux__unnorm(at.layer, folds, depth + 1)) return false;
    return true;
}

/* A copy of m in which each WeightNorm is replaced by its layer with the weight g v / |v|. */
FLUX_DEF flux_layer *flux_remove_weightnorms(flux_layer *m) {
    if (!m) return (flux_layer *)flux__null("remove_weightnorms", "m", m);
    int h = flux__hide();
    const int b = flux__nograd_enter();
    flux_layer *y = (flux_layer *)flux_retain(flux__map_layer(flux__keep_leaf, NULL, m, false));
    FLUX__ZEROED(flux__hashmap, folds);
    bool good = y && flux__unnorm(&y, &folds, 0);
    for (size_t i = 0; i < folds.capacity; i++)
        flux_release(folds.at[i].key), flux_release(folds.at[i].value);
    flux__hashmap_free(&folds);
    flux__nograd_leave(b);
    flux_layer *out = (flux_layer *)flux__reveal_object(h, good ? y : NULL);
    flux_release(y);
    return out;
}

FLUX__END_COLD

#endif /* FLUX__NN_NORMS_H */
