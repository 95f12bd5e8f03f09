#ifndef FLUX__NN_METRICS_H
#define FLUX__NN_METRICS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../base/options.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "../data/orders.h"
#include "fields.h"
#include "losses.h"

/* ---------------------------------------------------------------------- nn/metrics.h
   Metrics: what a model is judged by, as functions of (yhat, y), and
   flux_metric, which takes one over many batches.

   Invariant: a metric is a function of sums over observations, so that sums of
   batches, added up, give exactly what all observations at once would give,
   however uneven the batches are. A row has both halves: `sums` of a batch, and
   `value` of sums; the public function is one after the other. Sums are float64,
   or int64 where they count, and lie where yhat lies. Any other function of
   (yhat, y) that gives one number is taken for a mean over observations.

   Rejected: means of the batches' values (wrong for a last batch that is not
   full, and for F1, R2 and perplexity always); sums on the host, as a batch
   would have to wait for its device. */

FLUX__BEGIN_COLD

typedef struct flux__metric_row {
    const char *name;
    flux_fn2 f;
    flux_tensor *(*sums)(const char *call, flux_tensor *yhat, flux_tensor *y, int k);
    flux_tensor *(*value)(flux_tensor *sums);
} flux__metric_row;

/* ---------------- classes: what was guessed, and what is true */

/* int64 vectors of one class for each observation; classes: how many there are, 0: unknown. */
typedef struct flux__guesses { flux_tensor *guess, *truth; int64_t classes; } flux__guesses;

/* x has one number a class along dim 0, of which there are at least two. */
static bool flux__are_scores(const flux_tensor *x) {
    return x->op != FLUX__TUPLE && flux__dtypes[x->dtype].real && x->ndim > 0 && x->dim[0] > 1;
}

static flux_tensor *flux__flat_labels(flux_tensor *x) {
    return x ? flux_reshape_with(flux_to_dtype(x, FLUX_I64), FLUX_SHAPE(-1)) : NULL;
}

static void *flux__bad_guesses(const char *call, const flux_tensor *p, const flux_tensor *y) {
    flux__text a = flux__describe(p), b = flux__describe(y);
    if (flux__dtypes[p->dtype].real && !flux__are_scores(p))
        return flux__fail("%s: yhat is %s, which has no two classes in dim 0; of one number that "
                          "says yes or no give flux_gt(yhat, 0.5)", call, a.s);
    return flux__fail("%s: yhat is %s, y is %s: y must be one-hot, in the shape of yhat, or have "
                      "one label for each of its observations", call, a.s, b.s);
}

/* yhat is scores, one for each class in dim 0, or the guesses themselves, integers or bools; y is
   one-hot (or probabilities), or labels. */
static bool flux__take_guesses(const char *call, flux_tensor *p, flux_tensor *y,
                               flux__guesses *g) {
    const bool scores = flux__are_scores(p), hard = !flux__dtypes[p->dtype].real;
    /* yes and no are classes 1 and 0 */
    if (scores && y->dtype == FLUX_BOOL && !flux__same_dims(p, y)) y = flux_to_dtype(y, FLUX_U8);
    if (!y) return false;
    const bool labels = scores ? flux__are_labels(p, y, 0) : hard && flux__same_dims(p, y);
    const bool wide = scores ? flux__same_dims(p, y) : hard && flux__are_labels(y, p, 0);
    if (!labels && !wide) return flux__bad_guesses(call, p, y), false;
    g->classes = scores ? p->dim[0] : wide ? y->dim[0] : 0;
    if (!g->classes && p->dtype == FLUX_BOOL && y->dtype == FLUX_BOOL) g->classes = 2;
    if (scores && labels && !flux__check_labels(call, "label", y, 0, g->classes, NULL))
        return false;
    g->guess = flux__flat_labels(scores ? flux_onecold(p) : p);
    g->truth = flux__flat_labels(wide ? flux_onecold(y) : y);
    return g->guess && g->truth;
}

/* The float64 vector of a sum and the number of its terms. */
static flux_tensor *flux__sum_and_count(flux_tensor *x, int64_t n) {
    if (!x) return NULL;
    flux_tensor *both[2];
    both[0] = flux_reshape_with((flux_sum)(flux_to_dtype(x, FLUX_F64)), FLUX_SHAPE(1));
    both[1] = flux__move(flux_full_with(FLUX_SHAPE(1), (double)n, FLUX_F64), x->device);
    return flux_cat_with(0, 2, both);
}

static flux_tensor *flux__mean_of_sums(flux_tensor *s) {
    return flux_div(flux_select(s, 0, 0), flux_select(s, 0, 1));
}

/* ---------------- the rows */

static flux_tensor *flux__sums_accuracy(const char *call, flux_tensor *p, flux_tensor *y, int k) {
    flux__guesses g;
    (void)k;
    if (!flux__take_guesses(call, p, y, &g)) return NULL;
    return flux__sum_and_count(flux_eq(g.guess, g.truth), flux_len(g.truth));
}

/* The rank of the true class is the number of classes that come before it: those of a higher score,
   or of the same and a lower number, which is the order of flux_onecold. All come before a NaN. */
static flux_tensor *flux__sums_topk(const char *call, flux_tensor *p, flux_tensor *y, int k) {
    flux__guesses g;
    if (!flux__are_scores(p)) return (flux_tensor *)flux__bad_guesses(call, p, y);
    if (k < 1 || k > p->dim[0])
        return (flux_tensor *)flux__fail("%s: k is %d, which is not within 1 to the %lld classes",
                                         call, k, (long long)p->dim[0]);
    if (!flux__take_guesses(call, p, y, &g)) return NULL;
    flux_tensor *score = flux_reshape_with(p, FLUX_SHAPE(g.classes, -1)),
        *truth = flux_unsqueeze(g.truth, 0),
        *class_of = flux_to_dtype(flux__iota_on(p->device, g.classes, 0), FLUX_I64),
        *is_true = flux_eq(class_of, truth),
        *its = flux__sum_dim(flux_where(is_true, score, 0.0), 0),
        *before = flux_or(flux_not(flux_le(score, its)),
                          flux_and(flux_eq(score, its), flux_lt(class_of, truth))),
        *rank = flux__sum_dim(flux_to_dtype(before, FLUX_I32), 0),
        *known = flux_and(flux_ge(truth, 0.0), flux_lt(truth, (double)g.classes));
    return flux__sum_and_count(flux_and(known, flux_lt(rank, (double)k)), flux_len(g.truth));
}

/* Counts of all pairs of guess and truth; a label that is no class is left to the scatter, which
   refuses the index -1. */
static flux_tensor *flux__sums_confusion(const char *call, flux_tensor *p, flux_tensor *y, int k) {
    flux__guesses g;
    (void)k;
    if (!flux__take_guesses(call, p, y, &g)) return NULL;
    if (!g.classes)
        return (flux_tensor *)flux__fail(
            "%s: how many classes there are is not known from labels alone: one of yhat and y "
            "must have a number for each class; flux_onehot makes such of labels", call);
    if (g.classes > 1 << 12)
        return (flux_tensor *)flux__fail("%s: %lld classes; 4096 are possible", call,
                                         (long long)g.classes);
    const double n = (double)g.classes;
    flux_tensor *pair = flux_add(flux_mul(g.truth, n), g.guess),
        *in = flux_and(flux_and(flux_ge(g.truth, 0.0), flux_lt(g.truth, n)),
                       flux_and(flux_ge(g.guess, 0.0), flux_lt(g.guess, n))),
        *none = flux__move(flux_full_with(FLUX_SHAPE(g.classes * g.classes), 0, FLUX_I64),
                           p->device);
    return flux_scatter_add(none, 0, flux_where(in, pair, -1.0),
                            flux_to_dtype(flux_eq(pair, pair), FLUX_I64));
}

static flux_tensor *flux__value_confusion(flux_tensor *s) {
    const int64_t n = (int64_t)(sqrt((double)flux_len(s)) + 0.5);
    return flux_reshape_with(s, FLUX_SHAPE(n, n));
}

/* a / b, and 0 where b is 0. */
static flux_tensor *flux__share_of(flux_tensor *a, flux_tensor *b) {
    return flux_div(a, flux_max2(b, 1.0));
}

/* For each class: how often it was guessed rightly, was guessed, and was true. */
typedef struct flux__hits { flux_tensor *right, *guessed, *is_true; } flux__hits;
static flux__hits flux__take_hits(flux_tensor *s) {
    flux_tensor *c = flux_to_dtype(flux__value_confusion(s), FLUX_F64);
    flux__hits h;
    h.right = (flux_diag)(c);
    h.guessed = flux_reshape_with(flux__sum_dim(c, 1), FLUX_SHAPE(-1));
    h.is_true = flux_reshape_with(flux__sum_dim(c, 0), FLUX_SHAPE(-1));
    return h;
}
static flux_tensor *flux__value_precision(flux_tensor *s) {
    flux__hits h = flux__take_hits(s);
    return flux__share_of(h.right, h.guessed);
}
static flux_tensor *flux__value_recall(flux_tensor *s) {
    flux__hits h = flux__take_hits(s);
    return flux__share_of(h.right, h.is_true);
}
static flux_tensor *flux__value_f1(flux_tensor *s) {
    flux__hits h = flux__take_hits(s);
    return flux__share_of(flux_mul(h.right, 2.0), flux_add(h.guessed, h.is_true));
}

/* For each output: the sum of y, of y^2, of (y - yhat)^2, and the number of observations. */
static flux_tensor *flux__sums_r2(const char *call, flux_tensor *p, flux_tensor *y, int k) {
    flux_shape s = flux__dims(p);
    flux_tensor *row[4];
    (void)k;
    if (!flux__same_dims(p, y) || p->ndim < 1) {
        flux__text a = flux__describe(p), b = flux__describe(y);
        return (flux_tensor *)flux__fail("%s: yhat is %s, y is %s: both must have the same shape, "
                                         "whose last dim counts observations", call, a.s, b.s);
    }
    const int64_t n = s.dim[--s.ndim], outputs = flux__count(&s);
    p = flux_reshape_with(flux_to_dtype(p, FLUX_F64), FLUX_SHAPE(outputs, n));
    y = flux_reshape_with(flux_to_dtype(y, FLUX_F64), FLUX_SHAPE(outputs, n));
    row[0] = flux__sum_dim(y, 1);
    row[1] = flux__sum_dim(flux_square(y), 1);
    row[2] = flux__sum_dim(flux_square(flux_sub(y, p)), 1);
    row[3] = row[0] ? flux__move(flux_full_with(flux__dims(row[0]), (double)n, FLUX_F64),
                                 row[0]->device) : NULL;
    return flux_cat_with(1, 4, row);
}

/* The mean over outputs of 1 - rest / spread, where spread is the sum of squares about the mean;
   of outputs without any spread, 1 if they were met exactly, else 0. */
static flux_tensor *flux__value_r2(flux_tensor *s) {
    flux_tensor *sum = flux_select(s, 1, 0), *squares = flux_select(s, 1, 1),
        *rest = flux_select(s, 1, 2), *n = flux_select(s, 1, 3),
        *spread = flux_sub(squares, flux_div(flux_square(sum), n)),
        *flat = flux_le(spread, flux_mul(squares, 1e-14)),
        *met = flux_to_dtype(flux_eq(rest, 0.0), FLUX_F64),
        *r2 = flux_sub(1.0, flux_div(rest, flux_where(flat, 1.0, spread)));
    return (flux_mean)(flux_where(flat, met, r2));
}

/* The sum of -log of the probability of what is true, and over how many observations. */
static flux_tensor *flux__sums_perplexity(const char *call, flux_tensor *p, flux_tensor *y,
                                          int k) {
    flux_loss_opts o = FLUX_OPTIONS(flux_loss_opts, .yhat = NULL);
    (void)k;
    if (!flux__are_scores(p)) return (flux_tensor *)flux__bad_guesses(call, p, y);
    o.yhat = flux__widened(p), o.y = y, o.agg = FLUX_NONE;    /* no half format for the losses */
    return flux__sum_and_count(flux_logitcrossentropy_with(o), flux_len(p) / p->dim[0]);
}
static flux_tensor *flux__value_perplexity(flux_tensor *s) {
    return flux_exp(flux__mean_of_sums(s));
}

/* ---------------- functions of one batch */

#define FLUX__METRIC_ROW(name, sums, value) \
    { #name, flux_##name, flux__sums_##sums, flux__##value },
static const flux__metric_row flux__metric_rows[] = {
    FLUX__METRIC_ROW(accuracy, accuracy, mean_of_sums)
    FLUX__METRIC_ROW(topk_accuracy, topk, mean_of_sums)
    FLUX__METRIC_ROW(confusion, confusion, value_confusion)
    FLUX__METRIC_ROW(precision, confusion, value_precision)
    FLUX__METRIC_ROW(recall, confusion, value_recall)
    FLUX__METRIC_ROW(f1, confusion, value_f1)
    FLUX__METRIC_ROW(r2, r2, value_r2)
    FLUX__METRIC_ROW(perplexity, perplexity, value_perplexity)
};

/* The row of a function; NULL: it has none. */
static const flux__metric_row *flux__metric_row_of(flux_fn2 f) {
    for (size_t i = 0; i < sizeof flux__metric_rows / sizeof *flux__metric_rows; i++)
        if (f == flux__metric_rows[i].f) return &flux__metric_rows[i];
    return NULL;
}

/* The sums of one batch; `f` stands where there is no row. */
static flux_tensor *flux__metric_sums(const flux__metric_row *row, flux_fn2 f, flux_tensor *yhat,
                                      flux_tensor *y, int k) {
    const char *call = row ? row->name : "metric";
    flux_tensor *both[2] = { yhat, y };
    if (!yhat || !y) return (flux_tensor *)flux__null(call, yhat ? "y" : "yhat", NULL);
    if (!flux__together(call, 2, both)) return NULL;
    int h = flux__hide();
    int64_t failures = flux__failures();
    flux_tensor *s = NULL;
    if (row) s = row->sums(call, both[0], both[1], k);
    else {
        const int64_t n = yhat->ndim ? yhat->dim[yhat->ndim - 1] : 1;
        flux_tensor *mean = f(yhat, y);
        if (mean && (mean->op == FLUX__TUPLE || flux__size(mean) != 1))
            flux__fail("metric: the function gave %s, not one number", flux__describe(mean).s);
        else if (mean) s = flux__sum_and_count(flux_mul(flux_to_dtype(mean, FLUX_F64), (double)n),
                                               n);
        else if (!flux__failed_since(failures)) flux__fail("metric: the function gave NULL");
    }
    return flux__reveal(h, flux__failed_since(failures) ? NULL : s);
}

static flux_tensor *flux__metric_of(const flux__metric_row *row, flux_tensor *sums) {
    int h = flux__hide();
    return flux__reveal(h, !sums ? NULL : row ? row->value(sums) : flux__mean_of_sums(sums));
}

static flux_tensor *flux__metric_once(flux_fn2 f, flux_tensor *yhat, flux_tensor *y, int k) {
    const flux__metric_row *r = flux__metric_row_of(f);
    int h = flux__hide_in(r->name);
    return flux__reveal(h, flux__metric_of(r, flux__metric_sums(r, NULL, yhat, y, k)));
}
#define FLUX__DEFINE_METRIC(name)                                                                  \
    FLUX_DEF flux_tensor *flux_##name(flux_tensor *yhat, flux_tensor *y) {                         \
        return flux__metric_once(flux_##name, yhat, y, 0);                                         \
    }
FLUX__DEFINE_METRIC(accuracy)
FLUX__DEFINE_METRIC(confusion)
FLUX__DEFINE_METRIC(precision)
FLUX__DEFINE_METRIC(recall)
FLUX__DEFINE_METRIC(f1)
FLUX__DEFINE_METRIC(r2)
FLUX__DEFINE_METRIC(perplexity)

enum { FLUX__TOPK = 5 };                  /* the k that is not given */
FLUX_DEF flux_tensor *flux_topk_accuracy_with(flux_topk_opts o) {
    const int k = (int)flux__given_int(o.k, o.marked, FLUX__TOPK);
    return flux__metric_once(flux_topk_accuracy, o.yhat, o.y, k);
}
FLUX_DEF flux_tensor *(flux_topk_accuracy)(flux_tensor *yhat, flux_tensor *y) {
    return flux__metric_once(flux_topk_accuracy, yhat, y, FLUX__TOPK);
}

/* ---------------- over many batches */

typedef struct flux__metric {
    flux_layer base;
    flux_tensor *sums;                    /* of all batches so far; NULL: of none */
    const flux__metric_row *row;          /* NULL: the mean of f */
    flux_fn2 f;
    int k;
} flux__metric;

/* The name of a function that metrics and losses have, or NULL. */
static const char *flux__judge_name(flux_fn2 f) {
    const flux__metric_row *row = flux__metric_row_of(f);
#define FLUX__LOSS_NAME(name, per) { flux_##name, #name },
    static const struct { flux_fn2 f; const char *name; } loss[] = {
        FLUX__LOSSES(FLUX__LOSS_NAME) { flux_ctc_loss, "ctc_loss" }
    };
    for (size_t i = 0; !row && i < sizeof loss / sizeof *loss; i++)
        if (f == loss[i].f) return loss[i].name;
    return row ? row->name : NULL;
}

/* What a metric is called beside its number. */
static const char *flux__metric_name(const flux_layer *m) {
    const char *name = flux__judge_name(((const flux__metric *)m)->f);
    return m->name ? m->name : name ? name : "metric";
}

static size_t flux__metric_text(flux_layer *self, char *out, size_t n) {
    const flux__metric *m = (const flux__metric *)self;
    const char *name = flux__judge_name(m->f);
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "Metric(%s", name ? name : "function");
    if (m->f == flux_topk_accuracy) flux__putf(&s, ", k=%d", m->k);
    flux__put(&s, ")");
    return flux__sink_end(&s);
}

static flux_tensor *flux__metric_call(flux_layer *self, flux_tensor *x) {
    const flux__metric *m = (const flux__metric *)self;
    if (flux_num_items(x) != 2)
        return (flux_tensor *)flux__fail("%s takes yhat and y", flux__line_of(self).s);
    int h = flux__hide();
    flux_tensor *s = flux__metric_sums(m->row, m->f, flux_nth(x, 0), flux_nth(x, 1), m->k);
    return flux__reveal(h, flux__metric_of(m->row, s));
}
FLUX_LAYER_TEXT(flux__metric, "Metric", flux__metric_call, flux__metric_text, FLUX_STATE(sums))

FLUX_DEF flux_layer *flux_metric_with(flux_metric_opts o) {
    FLUX__ZEROED(flux__metric, m);
    if (!o.f) return (flux_layer *)flux__null("metric", "f", NULL);
    m.row = flux__metric_row_of(o.f);
    m.f = o.f;
    m.k = (int)flux__given_int(o.k, o.marked, FLUX__TOPK);
    if (flux__is_given_int(o.k, o.marked) && m.f != flux_topk_accuracy)
        return (flux_layer *)flux__fail("metric: .k goes with flux_topk_accuracy");
    return flux__layer_new(flux__metric_type(), &m);
}

/* m as a metric; NULL, with an error, if it is none. */
static flux__metric *flux__as_metric(const char *call, flux_layer *m) {
    if (!m || FLUX__GONE(call, m)) return (flux__metric *)flux__null(call, "metric", m);
    if (m->type != flux__metric_type())
        return (flux__metric *)flux__fail("%s: %s is no metric; flux_metric makes one", call,
                                          m->type->name);
    return (flux__metric *)m;
}

/* The sums are computed here, so that they keep no graph alive; on a GPU they are queued. */
FLUX_DEF int flux_metric_add(flux_layer *metric, flux_tensor *yhat, flux_tensor *y) {
    flux__metric *m = flux__as_metric("metric_add", metric);
    if (!m) return -1;
    int h = flux__hide();
    flux_tensor *s = flux__metric_sums(m->row, m->f, yhat, y, m->k);
    if (s && m->sums && !flux__same_dims(s, m->sums)) {
        flux__fail("metric_add: this batch has other classes or outputs than those before it");
        s = NULL;
    }
    if (s && m->sums) s = flux_add(m->sums, s);
    s = s ? flux_eval(flux_detach(s)) : NULL;
    if (s) flux_assign(&m->sums, s);
    flux__reveal_object(h, NULL);
    return s ? 0 : -1;
}

FLUX_DEF flux_tensor *flux_metric_value(flux_layer *metric) {
    flux__metric *m = flux__as_metric("metric_value", metric);
    if (!m) return NULL;
    if (!m->sums)
        return (flux_tensor *)flux__fail("metric_value: %s has met no batch",
                                         flux__line_of(metric).s);
    return flux__metric_of(m->row, m->sums);
}

FLUX_DEF void flux_metric_reset(flux_layer *metric) {
    flux__metric *m = flux__as_metric("metric_reset", metric);
    if (m) flux_assign(&m->sums, NULL);
}

FLUX__END_COLD

#endif /* FLUX__NN_METRICS_H */
