#ifndef FLUX__NN_LOSSES_H
#define FLUX__NN_LOSSES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../graph/reductions.h"
#include "../schedule/looking.h"
#include "../data/orders.h"
#include "initialisers.h"
#include "activations.h"
#include "norms.h"

/* ---------------------------------------------------------------------- nn/losses.h
   Losses. A loss is a line of FLUX__LOSSES (api/losses.h), which says whether its
   formula gives a value for each element, for each class of a sample, or one
   number, and a function here, flux__loss_NAME, its formula. Rows and public
   functions follow from the list. One function for all losses, flux__loss, does
   the rest: defaults, checks, conversion of y, class weights, integer labels and
   the aggregate.

   Invariant: a formula gets p = yhat and y in yhat's dtype or, if that is a half
   format, in float32, which lasts up to the aggregate. It takes 0 * log(0) as 0,
   without NaN in the gradient. yhat and y have equal shapes, except for trailing
   dims of 1; a loss over classes also takes integer labels, of yhat's shape
   without the class dim. A label that is no class is an error if the labels lie
   in host memory. Reading them from a device would mean waiting for it, so there
   such a label makes the loss NaN and does not go unnoticed. A mean with weights
   divides by the sum of the weights. */

FLUX__BEGIN_COLD

/* What a formula gives a value for; PER_SAMPLE: for each class, which flux__loss sums up. */
typedef enum flux__loss_kind {
    FLUX__PER_ELEMENT,
    FLUX__PER_SAMPLE,
    FLUX__PER_BATCH
} flux__loss_kind;

typedef struct flux__loss_row {
    const char *name;
    /* y: times the weights of the classes, if any; o->y: without them */
    flux_tensor *(*formula)(flux_tensor *p, flux_tensor *y, const flux_loss_opts *o);
    flux__loss_kind kind;
} flux__loss_row;

/* y log(q), and 0 where y is 0 and q is 0 or less. */
static flux_tensor *flux__ylog(flux_tensor *y, flux_tensor *q) {
    flux_tensor *nothing = flux_and(flux_eq(y, 0.0), flux_le(q, 0.0));
    return flux_mul(y, flux_log(flux_where(nothing, 1.0, q)));
}

static flux_tensor *flux__one_minus(flux_tensor *x) { return flux_sub(1.0, x); }
static flux_tensor *flux__above0(flux_tensor *x) { return flux_max2(x, 0.0); }

#define FLUX__FORMULA(name, value)                                                            \
    static flux_tensor *flux__loss_##name(flux_tensor *p, flux_tensor *y,                     \
                                          const flux_loss_opts *o) {                          \
        (void)o;                                                                              \
        return value;                                                                         \
    }
FLUX__FORMULA(mae, flux_abs(flux_sub(p, y)))
FLUX__FORMULA(mse, flux_square(flux_sub(p, y)))
FLUX__FORMULA(msle,
              flux_square(flux_log(flux_div(flux_add(p, o->eps), flux_add(y, o->eps)))))
FLUX__FORMULA(crossentropy, flux_neg(flux__ylog(y, flux_add(p, o->eps))))
FLUX__FORMULA(logitbinarycrossentropy,
              flux_add(flux_mul(flux__one_minus(y), p), flux_softplus(flux_neg(p))))
FLUX__FORMULA(kldivergence, flux_sub(flux__ylog(y, o->y), flux__ylog(y, flux_add(p, o->eps))))
FLUX__FORMULA(poisson_loss, flux_sub(p, flux__ylog(y, p)))
FLUX__FORMULA(hinge_loss, flux_relu(flux__one_minus(flux_mul(p, y))))
FLUX__FORMULA(squared_hinge_loss, flux_square(flux_relu(flux__one_minus(flux_mul(p, y)))))

/* e = |p - y|: e^2 / 2 below delta, else delta (e - delta / 2) */
static flux_tensor *flux__loss_huber_loss(flux_tensor *p, flux_tensor *y, const flux_loss_opts *o) {
    flux_tensor *e = flux_abs(flux_sub(p, y)),
                *line = flux_mul(flux_sub(e, o->delta / 2), o->delta);
    return flux_where(flux_lt(e, o->delta), flux_mul(flux_square(e), 0.5), line);
}

/* -y log(softmax(p)) along the class dim. A class that is masked out by a logit of -inf and has y =
   0 adds 0 to the loss. */
static flux_tensor *flux__loss_logitcrossentropy(flux_tensor *p, flux_tensor *y,
                                                 const flux_loss_opts *o) {
    flux_shape dims = flux__shape(NULL, 0);
    dims.dim[dims.ndim++] = o->dim;
    flux_tensor *l = flux_logsoftmax_with(1, flux__over(p, &dims));
    flux_tensor *nothing = flux_and(flux_eq(y, 0.0), flux_le(l, -1e30));
    return flux_neg(flux_mul(y, flux_where(nothing, 0.0, l)));
}

/* -y log(p + eps) - (1 - y) log(1 - p + eps) */
static flux_tensor *flux__loss_binarycrossentropy(flux_tensor *p, flux_tensor *y,
                                                  const flux_loss_opts *o) {
    flux_tensor *yes = flux__ylog(y, flux_add(p, o->eps));
    return flux_neg(
        flux_add(yes, flux__ylog(flux__one_minus(y), flux_add(flux__one_minus(p), o->eps))));
}

/* -(1 - q)^gamma y log(q), with q = p + eps */
static flux_tensor *flux__loss_focal_loss(flux_tensor *p, flux_tensor *y, const flux_loss_opts *o) {
    flux_tensor *q = flux_add(p, o->eps);
    flux_tensor *weight = flux_pow(flux__above0(flux__one_minus(q)), o->gamma);
    return flux_neg(flux_mul(weight, flux__ylog(y, q)));
}

/* -(1 - q)^gamma log(q), where q = y p + (1 - y) (1 - p) + eps is the probability given to
   the right answer */
static flux_tensor *flux__loss_binary_focal_loss(flux_tensor *p, flux_tensor *y,
                                                 const flux_loss_opts *o) {
    flux_tensor *right = flux_add(flux_mul(y, p), flux_mul(flux__one_minus(y), flux__one_minus(p)));
    right = flux_add(right, o->eps);
    return flux_neg(
        flux_mul(flux_pow(flux__above0(flux__one_minus(right)), o->gamma), flux_log(right)));
}

/* (1 - y) p^2 + y max(0, margin - p)^2; p is the distance of a pair */
static flux_tensor *flux__loss_siamese_contrastive_loss(flux_tensor *p, flux_tensor *y,
                                                        const flux_loss_opts *o) {
    flux_tensor *apart = flux_square(flux__above0(flux_sub(o->margin, p)));
    return flux_add(flux_mul(flux__one_minus(y), flux_square(p)), flux_mul(y, apart));
}

/* 1 - (2 sum(y p) + smooth) / (sum(y^2 + p^2) + smooth) */
static flux_tensor *flux__loss_dice_coeff_loss(flux_tensor *p, flux_tensor *y,
                                               const flux_loss_opts *o) {
    flux_tensor *both = flux_add(flux_mul((flux_sum)(flux_mul(y, p)), 2.0), o->smooth);
    flux_tensor *all = flux_add((flux_sum)(flux_add(flux_square(y), flux_square(p))), o->smooth);
    return flux__one_minus(flux_div(both, all));
}

/* 1 - (sum(y p) + 1) / (sum(y p + beta (1 - y) p + (1 - beta) y (1 - p)) + 1) */
static flux_tensor *flux__loss_tversky_loss(flux_tensor *p, flux_tensor *y,
                                            const flux_loss_opts *o) {
    flux_tensor *both = flux_mul(y, p);
    flux_tensor *wrong = flux_add(flux_mul(flux_mul(flux__one_minus(y), p), o->beta),
                                  flux_mul(flux_mul(y, flux__one_minus(p)), 1 - o->beta));
    return flux__one_minus(flux_div(flux_add((flux_sum)(both), 1.0),
                                    flux_add((flux_sum)(flux_add(both, wrong)), 1.0)));
}

/* Checks the options, with their defaults filled in: all numbers finite and not negative,
   .beta at most 1, and .eps not so small that it is 0 in float32, in which a loss of
   dtype t is computed. */
static bool flux__check_loss_opts(const char *call, const flux_loss_opts *o, flux_dtype t) {
    const struct {
        const char *name;
        double value;
    } all[] = { { "eps", o->eps }, { "delta", o->delta },   { "gamma", o->gamma },
                { "margin", o->margin },   { "smooth", o->smooth }, { "beta", o->beta } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!flux__finite(all[i].value) || all[i].value < 0)
            return FLUX__REFUSE("%s: .%s is %g", call, all[i].name, all[i].value);
    if (o->beta > 1)
        return FLUX__REFUSE("%s: .beta is %g, which is not within 0 to 1", call, (double)o->beta);
    if ((unsigned)o->agg > FLUX_NONE) return FLUX__REFUSE("%s: .agg is %d", call, (int)o->agg);
    if (o->dim < 0 || o->dim >= FLUX_MAX_DIMS) return FLUX__REFUSE("%s: .dim is %d", call, o->dim);
    bool tiny = t != FLUX_F64 && o->eps > 0 && o->eps < 1.2e-38;
    return !tiny || FLUX__REFUSE("%s: .eps is %g, which is 0 in f32", call, (double)o->eps);
}

/* Whether yhat and y have the same shape, except for trailing dims of 1, and yhat has the class dim
   that the loss needs. */
static bool flux__check_pair(const flux__loss_row *row, const flux_loss_opts *o) {
    const flux_tensor *p = o->yhat, *y = o->y;
    bool same = true;
    for (int i = 0; i < p->ndim || i < y->ndim; i++)
        same = same && flux_dim(p, i) == flux_dim(y, i);
    bool classes = row->kind != FLUX__PER_SAMPLE || o->dim < p->ndim || o->dim >= FLUX_MAX_DIMS ||
                   p->ndim == 0;
    if (same && classes) return true;
    flux__text a = flux__describe(p), b = flux__describe(y);
    if (!same)
        flux__fail("%s: yhat is %s, y is %s: their shapes must be the same", row->name, a.s, b.s);
    else flux__fail("%s: yhat is %s and has no dim %d for the classes", row->name, a.s, o->dim);
    return false;
}

static bool flux__is_integer(const flux_tensor *x) {
    return x->op != FLUX__TUPLE && !flux__dtypes[x->dtype].real && x->dtype != FLUX_BOOL;
}

/* Checks labels (or lengths; `what` names them in the message) if their values can be read at
   once: an error names the first one outside least ... end - 1 that is not *ignored. Others pass
   unread. */
static bool flux__check_labels(const char *call, const char *what, flux_tensor *y, int64_t least,
                               int64_t end, const int64_t *ignored) {
    return !flux__in_host_memory(y) || !flux__see_buffer(&y->buf) ||
           flux__labels_good(call, what, y, least, end, ignored);
}

/* Whether y is integer labels: of p's shape without dim `dim`, the class dimension. */
static bool flux__are_labels(const flux_tensor *p, const flux_tensor *y, int dim) {
    if (!flux__is_integer(y) || dim < 0 || dim >= p->ndim || y->ndim >= p->ndim) return false;
    for (int i = 0; i + 1 < p->ndim; i++)
        if (flux_dim(y, i) != p->dim[i < dim ? i : i + 1]) return false;
    return true;
}

/* Labels beside p. y: the labels, of p's shape with 1 in the class dim; wide: bool of p's
   shape, true at the class of the label (one-hot); keep: bool of y's shape, false for ignored
   labels, or NULL. */
typedef struct flux__labels { flux_tensor *y, *wide, *keep; } flux__labels;

/* Checks the labels and records the three tensors; false on an error. */
static bool flux__take_labels(const char *call, flux_tensor *p, const flux_loss_opts *o,
                              bool ignore, flux__labels *l) {
    flux_shape s = flux__dims(p);
    int64_t classes = s.dim[o->dim], index = o->ignore_index;
    if (!flux__check_labels(call, "label", o->y, 0, classes, ignore ? &index : NULL)) return false;
    s.dim[o->dim] = 1;
    l->y = flux_reshape_with(o->y->dtype == FLUX_U8 ? flux_to_dtype(o->y, FLUX_I32) : o->y, s);
    flux_tensor *all = l->y ? flux__iota_on(l->y->device, classes, o->dim) : NULL;
    l->wide = all ? flux_eq(flux_to_dtype(all, (flux_dtype)l->y->dtype), l->y) : NULL;
    l->keep = ignore && l->wide ? flux_ne(l->y, (double)o->ignore_index) : NULL;
    return l->wide && (l->keep || !ignore);
}

/* .weights, a vector of one number a class, reshaped to broadcast along p's class
   dim, in dtype t. */
static flux_tensor *flux__class_weights(const char *call, flux_tensor *p, const flux_loss_opts *o,
                                        flux_dtype t) {
    flux_tensor *w = o->weights;
    if (w->op == FLUX__TUPLE || w->ndim != 1 || o->dim >= p->ndim || w->dim[0] != p->dim[o->dim] ||
        w->dtype == FLUX_BOOL) {
        flux__text have = flux__describe(w), of = flux__describe(p);
        return (flux_tensor *)flux__fail(
            "%s: .weights is a vector of one number a class; it is %s, yhat is %s", call,
            w->op == FLUX__TUPLE ? "a tuple" : have.s, of.s);
    }
    flux_shape s = flux__dims(p);
    for (int i = 0; i < s.ndim; i++)
        if (i != o->dim) s.dim[i] = 1;
    return flux_reshape_with(flux_to_dtype(w, t), s);
}

/* The sum over one dim, which stays with size 1. */
static flux_tensor *flux__sum_dim(flux_tensor *x, int dim) {
    flux_shape dims = flux__shape(NULL, 0);
    dims.dim[dims.ndim++] = dim;
    return x ? flux_sum_with(1, flux__over(x, &dims)) : NULL;
}

/* The loss of each sample for integer labels: the formula with y = 1, taken at the class of the
   label. A label that is no class makes the sample's loss NaN, an ignored one makes it 0.
   *total: what a mean divides by, the sum of weights or the number of labels kept, or NULL for
   the number of samples. */
static flux_tensor *flux__label_loss(const flux__loss_row *row, flux_tensor *p,
                                     const flux_loss_opts *o, bool ignore, flux_tensor **total) {
    flux__labels l;
    flux_dtype t = (flux_dtype)p->dtype;
    if (!flux__take_labels(row->name, p, o, ignore, &l)) return NULL;
    flux_tensor *w = o->weights ? flux__class_weights(row->name, p, o, t) : NULL, *e;
    if (o->weights && !w) return NULL;
    if (row->formula == flux__loss_logitcrossentropy) { /* log(sum exp) - logit: one log a sample */
        flux_tensor *top, *less = flux__shifted(p, 1u << o->dim, &top);
        e = less ? flux_sub(flux_log(flux__sum_dim(flux_exp(less), o->dim)),
                            flux__sum_dim(flux_where(l.wide, less, 0.0), o->dim))
                 : NULL;
        if (w) e = flux_mul(e, flux__sum_dim(flux_where(l.wide, w, 0.0), o->dim));
    } else {
        flux_loss_opts one = *o;
        one.y = flux__move(flux_full_with(flux__shape(NULL, 0), 1, t), p->device);
        e = row->formula(p, one.y, &one);
        if (w) e = flux_mul(e, w);
        e = flux__sum_dim(flux_where(l.wide, e, 0.0), o->dim);
    }
    e = flux_where(flux_or(flux_lt(l.y, 0.0), flux_ge(l.y, (double)p->dim[o->dim])), (double)NAN,
                   e);
    if (l.keep) e = flux_where(l.keep, e, 0.0);
    if (w) w = flux__sum_dim(flux_where(l.wide, w, 0.0), o->dim);
    if (l.keep) w = w ? flux_where(l.keep, w, 0.0) : flux_to_dtype(l.keep, t);
    *total = w ? (flux_sum)(w) : NULL;
    return e;
}

/* Any loss: fills in defaults, checks, converts, and applies the formula, weights and aggregate. */
static flux_tensor *flux__loss(const flux__loss_row *row, flux_loss_opts o) {
    flux_tensor *both[2] = { o.yhat, o.y };
    if (!o.yhat || !o.y) return (flux_tensor *)flux__null(row->name, o.yhat ? "y" : "yhat", NULL);
    if (!flux__together(row->name, 2, both)) return NULL;
    o.yhat = both[0], o.y = both[1];
    flux_dtype t = flux__dtypes[o.yhat->dtype].real ? (flux_dtype)o.yhat->dtype : FLUX_F32;
    bool labels = row->kind == FLUX__PER_SAMPLE && flux__are_labels(o.yhat, o.y, o.dim);
    o.ignore = flux__given_switch(o.ignore, o.marked);
    bool ignore = o.ignore == FLUX_ON ||
                  (o.ignore == FLUX_DEFAULT && flux__is_given_int(o.ignore_index, o.marked));
    o.ignore_index = flux__given_int(o.ignore_index, o.marked, 0);
    o.eps = flux__given(o.eps, o.marked, flux__dtypes[t].epsilon);
    o.delta = flux__given(o.delta, o.marked, 1);
    o.gamma = flux__given(o.gamma, o.marked, 2);
    o.margin = flux__given(o.margin, o.marked, 1);
    o.smooth = flux__given(o.smooth, o.marked, 1);
    o.beta = flux__given(o.beta, o.marked, 0.7);
    if ((!labels && !flux__check_pair(row, &o)) || !flux__check_loss_opts(row->name, &o, t))
        return NULL;
    if (ignore && !labels)
        return (flux_tensor *)flux__fail(
            "%s: .ignore_index goes with integer labels, which y is not", row->name);
    if (o.weights && row->kind != FLUX__PER_SAMPLE)
        return (flux_tensor *)flux__fail("%s: .weights are of classes, which it has not",
                                         row->name);
    if (o.lengths) return (flux_tensor *)flux__fail("%s: .lengths are for ctc_loss", row->name);
    int h = flux__hide_in(row->name);
    flux_tensor *p = flux__widened(o.yhat);
    flux_tensor *y = labels || !p ? NULL : flux_to_dtype(o.y, (flux_dtype)p->dtype), *total = NULL,
                *e;
    if (y) o.y = y;
    if (o.weights && y)
        y = flux_mul(y, flux__class_weights(row->name, p, &o, (flux_dtype)p->dtype));
    if (o.weights && y) total = (flux_sum)(y);
    e = labels && p ? flux__label_loss(row, p, &o, ignore, &total)
        : p && y    ? row->formula(p, y, &o)
                    : NULL;
    if (e && !labels && row->kind == FLUX__PER_SAMPLE && e->ndim > 0) e = flux__sum_dim(e, o.dim);
    if (e && row->kind != FLUX__PER_BATCH && o.agg != FLUX_NONE)
        e = o.agg == FLUX_MEAN && total ? flux_div((flux_sum)(e), total)
            : o.agg == FLUX_SUM         ? (flux_sum)(e)
                                        : (flux_mean)(e);
    return flux__reveal(h, flux__narrow(e, (int)t));
}

#define FLUX__DEFINE_LOSS(name, per)                                                               \
    FLUX_DEF flux_tensor *flux_##name##_with(flux_loss_opts o) {                                   \
        static const flux__loss_row row = { #name, flux__loss_##name, FLUX__PER_##per };           \
        return flux__loss(&row, o);                                                                \
    }                                                                                              \
    FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *yhat, flux_tensor *y) {                       \
        flux_loss_opts o;                                                                          \
        memset((void *)&o, 0, sizeof o);                                                           \
        o.yhat = yhat;                                                                             \
        o.y = y;                                                                                   \
        return flux_##name##_with(o);                                                              \
    }
FLUX__LOSSES(FLUX__DEFINE_LOSS)

/* y (1 - alpha) + alpha / n, n being the number of classes along dim, or 2 if dim is -1
   (binary labels). */
FLUX_DEF flux_tensor *flux_label_smoothing(flux_tensor *y, double alpha, int dim) {
    if (!flux__check_operands("label_smoothing", 1, &y)) return NULL;
    if (!(alpha > 0 && alpha < 1))
        return (flux_tensor *)flux__fail(
            "label_smoothing: alpha is %g, which is not between 0 and 1", alpha);
    if (dim < -1 || dim >= y->ndim) {
        flux__text t = flux__describe(y);
        return (flux_tensor *)flux__fail("label_smoothing: %s has no dim %d", t.s, dim);
    }
    int h = flux__hide_in("label_smoothing");
    double share = alpha / (dim < 0 ? 2.0 : (double)(y->dim[dim] > 0 ? y->dim[dim] : 1));
    flux_tensor *x = flux__act_input("label_smoothing", y);
    return flux__reveal(h,
                        x ? flux__narrow(flux_add(flux_mul(x, 1 - alpha), share), y->dtype) : NULL);
}

FLUX__END_COLD

#endif /* FLUX__NN_LOSSES_H */
