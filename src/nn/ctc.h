#ifndef FLUX__NN_CTC_H
#define FLUX__NN_CTC_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "losses.h"

/* ---------------------------------------------------------------------- nn/ctc.h
   The CTC loss (connectionist temporal classification), by the forward
   recursion. The labels of a target with blanks between and around them are S =
   2 labels + 1 places; a(s), after each step, is the log of the probability of
   all alignments that are at place s then. In each step an alignment stays at
   its place, moves on by one place, or moves on by two, over a blank between
   labels that differ. The recursion is recorded as operations, so it runs on
   every device and has a gradient.

   Invariant: yhat is classes x steps (x batch); its log-softmax over the classes
   is taken, and the last class is the blank. A negative label ends a target.
   -1e30 stands for log 0, because its differences and its gradient are finite.
   A target that no alignment reaches gives infinity. A label that is no class,
   a label after the end of its target, or a length out of range gives NaN; the
   class and the length are an error instead if they lie in host memory. Steps
   past a sample's length leave its alignments as they are. */

#define FLUX__LOG0 (-1e30)

FLUX__BEGIN_COLD

/* a, S x N, moved on by n places along dim 0; the first n places become log 0. */
static flux_tensor *flux__ctc_later(flux_tensor *a, int64_t n) {
    return flux_pad(flux_slice(a, 0, 0, a->dim[0] - n), FLUX__LOG0, n, 0);
}

/* log(exp(a) + exp(b) + exp(c)) by element; the largest is subtracted first, so
   nothing overflows. */
static flux_tensor *flux__log_sum3(flux_tensor *a, flux_tensor *b, flux_tensor *c) {
    flux_tensor *top = flux_detach(flux_max2(a, flux_max2(b, c)));
    flux_tensor *sum = flux_add(flux_exp(flux_sub(a, top)),
                                flux_add(flux_exp(flux_sub(b, top)), flux_exp(flux_sub(c, top))));
    return flux_add(top, flux_log(sum));
}

/* The class at each place, S x N, for the labels y, labels x N. Places after a target's end
   are blank as well, and so are labels that are no class, whose sample becomes NaN in the end. */
static flux_tensor *flux__ctc_places(flux_tensor *y, int64_t blank) {
    const int64_t labels = y->dim[0], n = y->dim[1];
    flux_tensor *real = flux_where(flux_lt(y, 0.0), (double)blank, flux_min2(y, (double)blank));
    real = flux_reshape(real, 1, labels, n);
    flux_tensor *none = flux__move(
        flux_full_with(FLUX_SHAPE(1, labels, n), (double)blank, FLUX_I64), y->device);
    flux_tensor *end = flux__move(flux_full_with(FLUX_SHAPE(1, n), (double)blank, FLUX_I64),
                                  y->device);
    if (!labels) return end;
    return flux_cat(0, flux_reshape(flux_cat(0, none, real), flux__times(2, labels), n), end);
}

/* The loss of each sample, 1 x N. p: log probabilities, classes x T x N; y: labels x N, int64;
   lengths: 1 x N, or NULL if all samples have T steps. e: log probabilities at the places, S x N x
   T; a: see the head; over: the places that an alignment may reach from two places before; ends:
   index of the place after each target's last label. */
static flux_tensor *flux__ctc(flux_tensor *p, flux_tensor *y, flux_tensor *lengths) {
    int64_t classes = p->dim[0], steps = p->dim[1], n = p->dim[2], flat = classes * steps * n,
            places = 2 * y->dim[0] + 1;
    flux_device d = p->device;
    flux_tensor *place = flux__ctc_places(y, classes - 1), *s = flux__iota_on(d, places, 0);
    flux_tensor *ends = flux_mul(flux_sum(flux_to_dtype(flux_ge(y, 0.0), FLUX_I64), 0), 2.0);
    flux_tensor *at =
        flux_add(flux__iota_on(d, steps, 2), flux_mul(flux__iota_on(d, n, 1), (double)steps));
    flux_tensor *index = flux_add(flux_mul(at, (double)classes), flux_unsqueeze(place, 2));
    flux_tensor *e = flux_gather(flux_reshape_with(p, flux__shape(&flat, 1)), 0, index), *a = NULL,
                *over = NULL;
    if (places > 2 && place)
        over = flux_pad(flux_slice(place, 0, 0, places - 2), (double)(classes - 1), 2, 0);
    if (over) over = flux_and(flux_ne(place, over), flux_ne(place, (double)(classes - 1)));
    for (int64_t t = 0; t < steps && e; t++) {
        flux_tensor *now = flux_select(e, 2, t), *next;
        if (t == 0) a = flux_where(flux_lt(s, 2.0), now, FLUX__LOG0);
        else {
            flux_tensor *one = places > 1 ? flux__ctc_later(a, 1) : a,
                        *two =
                            places > 2 ? flux_where(over, flux__ctc_later(a, 2), FLUX__LOG0) : NULL;
            next = places > 1
                       ? flux_add(flux__log_sum3(a, one, two ? two : flux_mul(one, 1.0)), now)
                       : flux_add(a, now);
            a = lengths ? flux_where(flux_gt(lengths, (double)t), next, a) : next;
        }
        if (t == 0 && lengths) {          /* a sample of length 0: its alignment is at place 0 */
            flux_tensor *start =
                flux_mul(flux_to_dtype(flux_ne(s, 0.0), (flux_dtype)p->dtype), FLUX__LOG0);
            a = flux_where(flux_gt(lengths, 0.0), a, start);
        }
        if (!a) return NULL;
    }
    a = flux_where(flux_or(flux_eq(s, ends), flux_eq(s, flux_sub(ends, 1.0))), a, FLUX__LOG0);
    a = flux_neg(flux_logsumexp(a, 0));
    a = flux_where(flux_gt(a, -0.1 * FLUX__LOG0), HUGE_VAL, a); /* no alignment reaches the end */
    if (lengths)
        a = flux_where(flux_or(flux_lt(lengths, 0.0), flux_gt(lengths, (double)steps)), (double)NAN,
                       a);
    return a;
}

/* Checks dtypes and shapes: yhat classes x steps (x batch), y labels (x batch), lengths batch. */
static bool flux__check_ctc(const flux_loss_opts *o) {
    const flux_tensor *p = o->yhat, *y = o->y, *l = o->lengths;
    flux__text a = flux__describe(p), b = flux__describe(y);
    if (p->ndim < 2 || p->ndim > 3 || p->dim[0] < 2 || p->dim[1] < 1 ||
        !flux__dtypes[p->dtype].real)
        return FLUX__REFUSE(
            "ctc_loss: yhat is floating classes x steps (x batch), 2 classes at least, got %s",
            a.s);
    if (!flux__is_integer(y) || y->ndim < 1 || y->ndim > p->ndim - 1 ||
        flux_dim(y, 1) != flux_dim(p, 2))
        return FLUX__REFUSE("ctc_loss: y is integer labels (x batch) to yhat's %s, got %s", a.s,
                            b.s);
    if (l && (!flux__is_integer(l) || flux__size(l) != flux_dim(p, 2)))
        return FLUX__REFUSE("ctc_loss: .lengths is one integer a sample, got %s for %s",
                            l->op == FLUX__TUPLE ? "a tuple" : flux__describe(l).s, a.s);
    if ((unsigned)o->agg > FLUX_NONE) return FLUX__REFUSE("ctc_loss: .agg is %d", (int)o->agg);
    return true;
}

/* Checks the operands, brings them to classes x steps x batch and labels x batch, takes
   log-softmax, and applies the aggregate to the losses of the samples. */
FLUX_DEF flux_tensor *flux_ctc_loss_with(flux_loss_opts o) {
    flux_tensor *all[3] = { o.yhat, o.y, o.lengths };
    if (!o.yhat || !o.y) return (flux_tensor *)flux__null("ctc_loss", o.yhat ? "y" : "yhat", NULL);
    if (!flux__together("ctc_loss", o.lengths ? 3 : 2, all)) return NULL;
    o.yhat = all[0], o.y = all[1], o.lengths = all[2];
    if (!flux__check_ctc(&o)) return NULL;
    const int64_t classes = o.yhat->dim[0], steps = o.yhat->dim[1], n = flux_dim(o.yhat, 2),
                  labels = o.y->dim[0];
    if (!flux__check_labels("ctc_loss", "label", o.y, INT64_MIN, classes - 1, NULL)) return NULL;
    if (o.lengths && !flux__check_labels("ctc_loss", "length", o.lengths, 0, steps + 1, NULL))
        return NULL;
    int h = flux__hide_in("ctc_loss");
    flux_tensor *p = flux_to_dtype(o.yhat, o.yhat->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32),
                *e = NULL;
    flux_tensor *y = flux_reshape(flux_to_dtype(o.y, FLUX_I64), labels, n);
    flux_tensor *l = o.lengths ? flux_to_dtype(o.lengths, FLUX_I64) : NULL;
    l = l ? flux_reshape(l, 1, n) : NULL;
    p = flux_reshape((flux_logsoftmax)(p), classes, steps, n);
    if (p && y && (l || !o.lengths)) e = flux__ctc(p, y, l);
    if (e && labels) e = flux_where(flux_any(flux_ge(y, (double)(classes - 1)), 0), (double)NAN, e);
    if (e && labels > 1) {                /* NaN for a label after the end of its target */
        flux_tensor *end = flux_lt(flux_slice(y, 0, 0, labels - 1), 0.0),
                    *next = flux_ge(flux_slice(y, 0, 1, labels), 0.0);
        e = flux_where(flux_any(flux_and(end, next), 0), (double)NAN, e);
    }
    if (e)
        e = o.agg == FLUX_MEAN  ? (flux_mean)(e)
            : o.agg == FLUX_SUM ? (flux_sum)(e)
                                : flux_reshape_with(e, flux__shape(&n, 1));
    return flux__reveal(h, e);
}

FLUX_DEF flux_tensor *(flux_ctc_loss)(flux_tensor *yhat, flux_tensor *y) {
    FLUX__ZEROED(flux_loss_opts, o);
    o.yhat = yhat;
    o.y = y;
    return flux_ctc_loss_with(o);
}

FLUX__END_COLD

#endif /* FLUX__NN_CTC_H */
