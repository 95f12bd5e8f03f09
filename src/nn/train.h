#ifndef FLUX__NN_TRAIN_H
#define FLUX__NN_TRAIN_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "gradient.h"

/* ---------------------------------------------------------------------- nn/train.h
   What a training is watched with: the criteria for stopping (flux_patience,
   flux_early_stopping, flux_plateau), and flux_gradcheck, which compares
   gradients with finite differences. The loop itself is in nn/loops.h.

   Invariant: a criterion keeps its state in the caller's struct alone.
   flux_gradcheck changes one element at a time, at places spread evenly over x,
   and every call of the function draws the same random numbers. */

FLUX__BEGIN_COLD

FLUX_DEF bool flux_patience(flux_stopper *s, bool condition, int n) {
    if (!s) return flux__null("patience", "stopper", s), false;
    s->count = condition ? s->count + 1 : 0;
    return s->count >= n;
}

/* As in Flux: true once `delay` calls in a row have not brought the score min_dist or more below
   the best one. A score of NaN counts as no improvement. */
FLUX_DEF bool flux_early_stopping(flux_stopper *s, double score, int delay, double min_dist) {
    if (!s) return flux__null("early_stopping", "stopper", s), false;
    double better = s->started ? s->best - score : HUGE_VAL;
    if (!s->started || better >= 0) s->best = score == score ? score : HUGE_VAL;
    s->started = true;
    return flux_patience(s, !(better >= min_dist), delay);
}

/* True once `width` calls in a row have moved the score by less than min_dist (default 1e-6). */
FLUX_DEF bool flux_plateau(flux_stopper *s, double score, int width, double min_dist) {
    if (!s) return flux__null("plateau", "stopper", s), false;
    double moved = s->started ? fabs(s->best - score) : HUGE_VAL;
    s->best = score;                      /* flux_plateau keeps the last score here */
    s->started = true;
    return flux_patience(s, moved < (min_dist > 0 ? min_dist : 1e-6), width);
}

/* ---------------- gradients against finite differences */

/* The function that flux_gradcheck calls, and its argument. */
typedef struct flux__probe_fn {
    flux_tensor *(*fn)(flux_tensor *x, void *user);
    void *user;
    flux_tensor *x;
    uint64_t draws;                       /* position of the random stream before each call */
} flux__probe_fn;

/* fn's value at x with element i replaced by v; `at` has the elements of x. */
static double flux__probe_at(const flux__probe_fn *p, double *at, int64_t i, double v) {
    double old = at[i];
    int h = flux__hide();
    at[i] = v;
    flux_tensor *x =
        flux_to_dtype(flux_from_with(at, FLUX_F64, flux__dims(p->x)), (flux_dtype)p->x->dtype);
    at[i] = old;
    flux__self()->draws = p->draws;
    flux_tensor *y = x && (x = flux__move(x, p->x->device)) != NULL ? p->fn(x, p->user) : NULL;
    double value = y ? flux_item(y) : (double)NAN;
    flux__reveal_object(h, NULL);
    return value;
}

/* The central difference quotient with respect to element i; the step is the cube root of the
   dtype's epsilon, times |x[i]| if that is above 1. */
static double flux__quotient(const flux__probe_fn *p, double *at, int64_t i) {
    double step = cbrt(flux__dtypes[p->x->dtype].epsilon) * (fabs(at[i]) > 1 ? fabs(at[i]) : 1);
    double hi = at[i] + step, lo = at[i] - step;
    if (p->x->dtype == FLUX_F32) hi = (double)(float)hi, lo = (double)(float)lo;
    double up = flux__probe_at(p, at, i, hi), down = flux__probe_at(p, at, i, lo);
    return (up - down) / (hi - lo);
}

/* A copy of x's elements as double, which the caller frees; NULL on an error. */
static double *flux__doubles(flux_tensor *x) {
    size_t bytes = (size_t)flux__size(x) * sizeof(double);
    double *out = (double *)flux__malloc(bytes);
    int h = flux__hide();
    bool ok = out && flux_read(flux_to_dtype(flux_detach(x), FLUX_F64), out, bytes) == 0;
    flux__reveal_object(h, NULL);
    if (!ok) flux__free(out);
    return ok ? out : NULL;
}

/* The largest error of the gradient `want` (NULL: zero) at `probes` elements (0: at all), divided
   by the largest gradient; NaN if a difference quotient is NaN. */
static double flux__compare_gradient(const flux__probe_fn *p, double *at, const double *want,
                                     int probes) {
    int64_t n = flux__size(p->x);
    int64_t count = probes > 0 && probes < n ? probes : n;
    double worst = 0, largest = 0, place = 0;
    for (int64_t k = 0; k < n; k++)
        if (want && fabs(want[k]) > largest) largest = fabs(want[k]);
    for (int64_t k = 0; k < count; k++) {
        int64_t i = count == n ? k : (int64_t)(place * (double)n);
        double is = flux__quotient(p, at, i), error = fabs(is - (want ? want[i] : 0));
        if (error != error) return (double)NAN;
        if (error > worst) worst = error;
        if (fabs(is) > largest) largest = fabs(is);
        place += 0.6180339887498949;      /* golden ratio: even spread, in phase with no dim */
        place -= floor(place);
    }
    return largest > 0 ? worst / largest : 0;
}

/* The error of fn's gradient at x relative to finite differences: see flux__compare_gradient. */
FLUX_DEF double flux_gradcheck(flux_tensor *(*fn)(flux_tensor *x, void *user), void *user,
                               flux_tensor *x, int probes) {
    if (!fn || !x) return flux__null("gradcheck", fn ? "x" : "fn", NULL), (double)NAN;
    const char *what_it_is = x->op == FLUX__TUPLE ? "a tuple" : flux__dtypes[x->dtype].name;
    if (x->op == FLUX__TUPLE || !flux__dtypes[x->dtype].real)
        return flux__fail("gradcheck: x must be a tensor of floating numbers, not %s", what_it_is),
               (double)NAN;
    flux__thread *t = flux__self();
    const void *what[1] = { x };
    flux__probe_fn p = { fn, user, x, t ? t->draws : 0 };
    int h = flux__hide();
    int64_t failures = flux__failures();
    flux_tensor *y = fn(x, user);
    flux_grads *g = y ? flux_gradient_with(y, 1, what) : NULL;
    flux_tensor *d = g ? flux_grad(g, x) : NULL;
    double *want = d ? flux__doubles(d) : NULL, *at = g && (!d || want) ? flux__doubles(x) : NULL;
    if (!y && !flux__failed_since(failures)) flux__fail("gradcheck: the function gave NULL");
    double result = at ? flux__compare_gradient(&p, at, want, probes) : (double)NAN;
    flux__free(want);
    flux__free(at);
    flux__reveal_object(h, NULL);
    return flux__failed_since(failures) ? (double)NAN : result;
}

FLUX__END_COLD

#endif /* FLUX__NN_TRAIN_H */
