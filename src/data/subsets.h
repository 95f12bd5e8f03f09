#ifndef FLUX__DATA_SUBSETS_H
#define FLUX__DATA_SUBSETS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "orders.h"

/* ---------------------------------------------------------------------- data/subsets.h
   Parts and mixtures of a data set before it goes into a loader: splitting,
   shuffling, folds, classes made equally frequent.

   Invariant: a data set is an array or a tuple of arrays whose last dims are
   equal, and what is done to one is done to all, so pairs stay together. A run
   of observations is a view; only where they are picked, or joined around a
   fold, are they copied, on the device where they lie. Orders depend on the seed
   and the labels alone.

   Rejected: lists of indices as results, as in Julia: C has no views by index,
   and flux_gather is one line away. */

FLUX__BEGIN_COLD

/* How many observations an array, or all arrays of a tuple, have; -1: an error. */
static int64_t flux__observations(const char *call, flux_tensor *x) {
    if (!x || FLUX__GONE(call, x)) return flux__null(call, "x", x), -1;
    const bool tuple = x->op == FLUX__TUPLE;
    int64_t n = -1;
    for (int i = 0; i < flux_num_items(x); i++) {
        const flux_tensor *a = tuple ? x->in[i] : x;
        if (a->op == FLUX__TUPLE || a->ndim < 1)
            return flux__fail("%s: %s has no dimension of observations", call,
                              tuple ? "an array of the tuple" : "x"), -1;
        const int64_t have = a->dim[a->ndim - 1];
        if (i && have != n)
            return flux__fail("%s: array 0 has %lld observations, array %d has %lld (the last "
                              "dimension counts them)", call, (long long)n, i, (long long)have),
                   -1;
        n = have;
    }
    return n;
}

/* A part of x: observations begin ... end - 1 if there is no index, else those that it picks. */
typedef struct flux__part { int64_t begin, end; flux_tensor *index; } flux__part;

static flux_tensor *flux__part_of_one(flux_tensor *x, const flux__part *p) {
    if (!p->index) return flux_slice(x, x->ndim - 1, p->begin, p->end);
    return flux_gather(x, x->ndim - 1, flux_to_tensor(x->device, p->index));
}

static flux_tensor *flux__part_of(flux_tensor *x, flux__part p) {
    flux_tensor *part[255];
    int h = flux__hide();
    if (x->op != FLUX__TUPLE) return flux__reveal(h, flux__part_of_one(x, &p));
    for (int i = 0; i < x->nin; i++) part[i] = flux__part_of_one(x->in[i], &p);
    return flux__reveal(h, flux_tuple_with(x->nin, part));
}

static flux_tensor *flux__run_of(flux_tensor *x, int64_t begin, int64_t end) {
    const flux__part p = { begin, end, NULL };
    return flux__part_of(x, p);
}

/* The observations that n indices name. */
static flux_tensor *flux__picked(flux_tensor *x, const int64_t *at, int64_t n) {
    const flux_device cpu = { 0, 0 };
    int h = flux__hide();
    const flux__part p = { 0, 0, flux__index_tensor(at, 0, n, cpu) };
    return flux__reveal(h, p.index ? flux__part_of(x, p) : NULL);
}

/* a and b joined along the observations. */
static flux_tensor *flux__cat_runs(flux_tensor *a, flux_tensor *b) {
    flux_tensor *both[2], *whole[255];
    if (!a || !b) return NULL;
    int h = flux__hide();
    for (int i = 0; i < flux_num_items(a); i++) {
        both[0] = flux_nth(a, i), both[1] = flux_nth(b, i);
        whole[i] = both[0] && both[1] ? flux_cat_with(both[0]->ndim - 1, 2, both) : NULL;
    }
    return flux__reveal(h, a->op == FLUX__TUPLE ? flux_tuple_with(a->nin, whole) : whole[0]);
}

FLUX_DEF int flux_splitobs(double part, flux_tensor *x, flux_tensor **first, flux_tensor **second) {
    const int64_t n = flux__observations("splitobs", x);
    if (n < 0) return -1;
    if (!(part >= 0 && part <= 1))
        return flux__fail("splitobs: the part %g is not between 0 and 1", part), -1;
    const int64_t cut = (int64_t)rint(part * (double)n);
    flux_tensor *a = first ? flux__run_of(x, 0, cut) : x;
    flux_tensor *b = second ? flux__run_of(x, cut, n) : x;
    if (!a || !b) return -1;
    if (first) *first = a;
    if (second) *second = b;
    return 0;
}

/* The order is written into the tensor of indices: if there is no memory for that, as for the
   observations of a view that repeats some billion times, the call fails at once. */
FLUX_DEF flux_tensor *flux_shuffleobs(flux_tensor *x, uint64_t seed) {
    const int64_t n = flux__observations("shuffleobs", x);
    const flux_device cpu = { 0, 0 };
    if (n < 0 || !flux__can_order("shuffleobs", n)) return NULL;
    int h = flux__hide();
    const flux__part p = { 0, 0, flux__leaf(flux__shape(&n, 1), FLUX_I64, cpu) };
    if (p.index) flux__write_order((int64_t *)p.index->buf->ptr, n, flux__scramble(seed));
    return flux__reveal(h, p.index ? flux__part_of(x, p) : NULL);
}

FLUX_DEF int flux_kfolds(int k, int i, flux_tensor *x, flux_tensor **learn, flux_tensor **held) {
    const int64_t n = flux__observations("kfolds", x);
    if (n < 0) return -1;
    if (!learn || !held) return flux__null("kfolds", learn ? "held" : "learn", NULL), -1;
    if (k < 2 || k > n)
        return flux__fail("kfolds: %d folds of %lld observations", k, (long long)n), -1;
    if (i < 0 || i >= k) return flux__fail("kfolds: there is no fold %d among %d", i, k), -1;
    const int64_t size = n / k, over = n % k, begin = i * size + (i < over ? i : over),
                  end = begin + size + (i < over);
    int h = flux__hide();
    flux_tensor *out = flux__run_of(x, begin, end),
                *rest = i == 0       ? flux__run_of(x, end, n)
                        : i == k - 1 ? flux__run_of(x, 0, begin)
                                     : flux__cat_runs(flux__run_of(x, 0, begin),
                                                    flux__run_of(x, end, n));
    flux_retain(out);
    rest = flux__reveal(h, rest);
    out = out ? (flux_tensor *)flux__own(out) : NULL;
    if (!out || !rest) return -1;
    *learn = rest;
    *held = out;
    return 0;
}

/* ---------------- classes */

/* The observations by class: at[begin of class c ... begin of class c + 1 - 1] are of class c. */
typedef struct flux__classed { int64_t label, at; } flux__classed;

static int flux__by_label(const void *a, const void *b) {
    const flux__classed *x = (const flux__classed *)a, *y = (const flux__classed *)b;
    if (x->label != y->label) return x->label < y->label ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* The observations in the order of their labels, of which there are *n; the caller frees them.
   NULL: an error. */
static flux__classed *flux__by_class(const char *call, flux_tensor *labels, int64_t *n) {
    if (!labels || FLUX__GONE(call, labels))
        return (flux__classed *)flux__null(call, "labels", labels);
    int h = flux__hide_in(call);
    flux_tensor *one = labels->op != FLUX__TUPLE && labels->ndim == 2 ? flux_onecold(labels)
                                                                      : labels;
    if (one && (one->op == FLUX__TUPLE || one->ndim != 1 || flux__dtypes[one->dtype].real ||
                one->dtype == FLUX_BOOL)) {
        flux__fail("%s: labels are a vector of integers, or one-hot, classes x observations; "
                   "these are %s", call,
                   one->op == FLUX__TUPLE ? "a tuple" : flux__describe(labels).s);
        one = NULL;
    }
    flux_device cpu = { 0, 0 };
    one = one ? flux_to_tensor(cpu, flux_to_dtype(one, FLUX_I64)) : NULL;
    const int64_t *label = one ? (const int64_t *)flux_data(one) : NULL;
    *n = one ? flux_len(one) : 0;
    flux__classed *all = label || (one && *n == 0)
        ? (flux__classed *)flux__malloc((size_t)*n * sizeof *all) : NULL;
    for (int64_t i = 0; all && i < *n; i++) all[i].label = label[i], all[i].at = i;
    if (all) qsort(all, (size_t)*n, sizeof *all, flux__by_label);
    flux__reveal_object(h, NULL);
    return all;
}

/* Where the class that begins at i ends. */
static int64_t flux__class_end(const flux__classed *all, int64_t n, int64_t i) {
    int64_t end = i;
    while (end < n && all[end].label == all[i].label) end++;
    return end;
}

/* Appends `want` observations of a class to `to`: all as often as fits, and the rest by chance. */
static void flux__take_class(flux__classed *from, int64_t size, int64_t want, uint64_t *key,
                             int64_t *to) {
    for (int64_t k = 0; k < want; k++) {
        const int64_t i = k % size;
        if (i == 0 && want - k < size)    /* not all of them: shuffled as far as they are taken */
            for (int64_t a = 0; a < want - k; a++) {
                const int64_t b = a + (int64_t)flux__below((uint64_t)(size - a), key);
                const flux__classed old = from[a];
                from[a] = from[b], from[b] = old;
            }
        to[k] = from[i].at;
    }
}

/* Observations of which each class has as many as the largest, or the smallest. */
static flux_tensor *flux__resampled(const char *call, flux_tensor *x, flux_tensor *labels,
                                    bool over, uint64_t seed) {
    int64_t n = 0, classes = 0, size = 0, all = flux__observations(call, x);
    flux__classed *by = all < 0 ? NULL : flux__by_class(call, labels, &n);
    if (!by) return NULL;
    if (n != all || n >= (int64_t)1 << 32) {
        flux__fail("%s: %lld labels for %lld observations", call, (long long)n, (long long)all);
        return flux__free(by), (flux_tensor *)NULL;
    }
    for (int64_t i = 0, end; i < n; i = end, classes++) {
        end = flux__class_end(by, n, i);
        if (!classes || (over ? end - i > size : end - i < size)) size = end - i;
    }
    const int64_t count = flux__times(size, classes);
    uint64_t key = flux__scramble(seed);
    int64_t *picked = (int64_t *)flux__malloc((size_t)flux__times(flux__plus(count, 1),
                                                                  (int64_t)sizeof *picked)),
            *order = picked ? flux__new_order(call, count, key) : NULL, *at = picked;
    key = flux__scramble(key);
    for (int64_t i = 0, end; order && i < n; i = end, at += size) {
        end = flux__class_end(by, n, i);
        flux__take_class(by + i, end - i, size, &key, at);
    }
    for (int64_t i = 0; order && i < count; i++) order[i] = picked[order[i]];
    flux_tensor *y = order ? flux__picked(x, order, count) : NULL;
    flux__free(order);
    flux__free(picked);
    flux__free(by);
    return y;
}

FLUX_DEF flux_tensor *flux_oversample(flux_tensor *x, flux_tensor *labels, uint64_t seed) {
    return flux__resampled("oversample", x, labels, true, seed);
}
FLUX_DEF flux_tensor *flux_undersample(flux_tensor *x, flux_tensor *labels, uint64_t seed) {
    return flux__resampled("undersample", x, labels, false, seed);
}

FLUX_DEF flux_tensor *flux_balanced_weights(flux_tensor *labels) {
    const flux_device cpu = { 0, 0 };
    int64_t n = 0, classes = 0;
    flux__classed *by = flux__by_class("balanced_weights", labels, &n);
    flux_tensor *y = by ? flux__leaf(flux__shape(&n, 1), FLUX_F64, cpu) : NULL;
    double *w = y ? (double *)y->buf->ptr : NULL;
    for (int64_t i = 0; i < n && w; i = flux__class_end(by, n, i)) classes++;
    for (int64_t i = 0, end; i < n && w; i = end) {
        end = flux__class_end(by, n, i);
        for (int64_t k = i; k < end; k++)
            w[by[k].at] = (double)n / ((double)classes * (double)(end - i));
    }
    flux__free(by);
    return y;
}

FLUX__END_COLD

#endif /* FLUX__DATA_SUBSETS_H */
