#ifndef FLUX__NN_GRADS_H
#define FLUX__NN_GRADS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/gradients.h"
#include "../schedule/looking.h"
#include "walk.h"
#include "adjust.h"

/* ---------------------------------------------------------------------- nn/grads.h
   Gradients as things: going over a flux_grads by number and name, scaling,
   adding and clipping its gradients, and its text.

   Invariant: a change replaces all gradients of a flux_grads or none; it is
   recorded and not computed, so that an update fuses it. Names are found when
   one is first asked for, by a walk over what was given to flux_gradient:
   writing paths in every step would cost more than a small model's update. */

FLUX__BEGIN_COLD

/* Whether g can be looked at and changed; if not, an error. */
static bool flux__open_grads(const char *call, const flux_grads *g) {
    if (!g || FLUX__GONE(call, g)) return flux__null(call, "g", g), false;
    return !g->used || FLUX__REFUSE("%s: these gradients were used up by flux_update", call);
}

FLUX_DEF int flux_num_grads(flux_grads *g) { return flux__open_grads("num_grads", g) ? g->n : -1; }

/* Whether i is the number of a gradient of g; if not, an error. */
static bool flux__grad_number(const char *call, const flux_grads *g, int i) {
    if (!flux__open_grads(call, g)) return false;
    return (i >= 0 && i < g->n) ||
           FLUX__REFUSE("%s: there is no gradient %d among %d", call, i, g->n);
}

FLUX_DEF flux_tensor *flux_grad_at(flux_grads *g, int i) {
    if (!flux__grad_number("grad_at", g, i) || !g->grad[i]) return NULL;
    return (flux_tensor *)flux__own(flux_retain(g->grad[i]));
}

/* ---------------- names */

typedef struct flux__naming { flux_grads *g; int of; bool ok; } flux__naming;

/* Names the gradient by x, unless it has a name. Where several things were given to flux_gradient
   the thing's number stands before its path. */
static void flux__name_grad(flux_tensor *x, const char *path, bool trained, void *user) {
    flux__naming *w = (flux__naming *)user;
    char number[16];
    int i = 0;
    while (i < w->g->n && w->g->of[i] != x) i++;
    if (!trained || i == w->g->n || w->g->name[i]) return;
    number[0] = 0;
    if (w->g->nasked > 1 || !*path) snprintf(number, sizeof number, "%d", w->of);
    size_t room = strlen(number) + strlen(path) + 2;
    char *name = (char *)flux__malloc(room);
    if (!name) w->ok = false;
    else snprintf(name, room, "%s%s%s", number, *number && *path ? "." : "", path);
    w->g->name[i] = name;
}

static bool flux__name_grads(flux_grads *g) {
    flux__naming w = { g, 0, true };
    if (g->name) return true;
    g->name = (char **)flux__zalloc((size_t)g->n * sizeof *g->name);
    if (!g->name) return false;
    g->nnames = g->n;
    for (; w.of < g->nasked; w.of++) {
        flux__head *h = (flux__head *)g->asked[w.of];
        if (h->kind != FLUX__LAYER) flux__name_grad((flux_tensor *)h, "", true, &w);
        else if (!flux__visit("grad_name", (flux_layer *)h, flux__name_grad, &w)) w.ok = false;
    }
    if (!w.ok) flux__forget_names(g);     /* of which some are missing */
    return w.ok;
}

FLUX_DEF const char *flux_grad_name(flux_grads *g, int i) {
    if (!flux__grad_number("grad_name", g, i) || !flux__name_grads(g)) return NULL;
    return g->name[i] ? g->name[i] : "";  /* "": its model holds another tensor by now */
}

/* ---------------- changes */

/* What a gradient becomes: d times `by` where that is given, plus the gradient of `more` by the
   same tensor; clamped to -most ... most. */
typedef struct flux__change {
    flux_tensor *by;
    const flux_grads *more;
    double most;
} flux__change;

static flux_tensor *flux__changed(const flux_grads *g, int i, const flux__change *c) {
    flux_tensor *d = g->grad[i], *e = NULL;
    flux_dtype t = (flux_dtype)(d ? d->dtype : 0);
    for (int k = 0; c->more && k < c->more->n && !e; k++)
        if (c->more->of[k] == g->of[i]) e = c->more->grad[k];
    if (!d) return e;
    if (c->by) d = flux_to_dtype(flux_mul(d, c->by), t);
    if (c->most > 0) d = flux_clamp(d, -c->most, c->most);
    return e ? flux_add(d, e) : d;
}

/* Replaces all gradients of g by what the change makes of them; if one fails, none. */
static bool flux__change_grads(flux_grads *g, const flux__change *c) {
    flux_tensor **fresh = (flux_tensor **)flux__zalloc((size_t)g->n * sizeof *fresh);
    if (!fresh) return false;
    int64_t failures = flux__failures();
    int h = flux__hide();
    for (int i = 0; i < g->n && !flux__failed_since(failures); i++)
        fresh[i] = (flux_tensor *)flux_retain(flux__changed(g, i, c));
    bool ok = !flux__failed_since(failures);
    for (int i = 0; i < g->n; i++) {
        if (ok) flux_assign(&g->grad[i], fresh[i]);
        flux_release(fresh[i]);
    }
    flux__reveal_object(h, NULL);
    flux__free(fresh);
    return ok;
}

FLUX_DEF int flux_grads_scale(flux_grads *g, double by) {
    if (!flux__open_grads("grads_scale", g)) return -1;
    int h = flux__hide();
    flux__change c = { flux__number(by), NULL, 0 };
    bool ok = c.by && flux__change_grads(g, &c);
    flux__reveal_object(h, NULL);
    return ok ? 0 : -1;
}

FLUX_DEF int flux_grads_add(flux_grads *g, flux_grads *more) {
    if (!flux__open_grads("grads_add", g) || !flux__open_grads("grads_add", more)) return -1;
    flux__change c = { NULL, more, 0 };
    return flux__change_grads(g, &c) ? 0 : -1;
}

FLUX_DEF int flux_clip_value(flux_grads *g, double delta) {
    if (!flux__open_grads("clip_value", g)) return -1;
    if (!(delta > 0))
        return flux__fail("clip_value: delta is %g, but must be more than 0", delta), -1;
    flux__change c = { NULL, NULL, delta };
    return flux__change_grads(g, &c) ? 0 : -1;
}

/* Records d's 2-norm as a float64 number, in which squares of norms do not overflow. */
static flux_tensor *flux__grad_norm(flux_tensor *d) {
    flux_dtype t = d->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32;
    return flux_to_dtype((flux_norm)(flux_to_dtype(d, t)), FLUX_F64);
}

FLUX_DEF flux_tensor *flux_grads_norm(flux_grads *g) {
    if (!flux__open_grads("grads_norm", g)) return NULL;
    int h = flux__hide();
    int64_t failures = flux__failures();
    flux_tensor *sum = NULL;
    for (int i = 0; i < g->n && !flux__failed_since(failures); i++) {
        if (!g->grad[i]) continue;
        flux_tensor *square = flux_square(flux__grad_norm(g->grad[i]));
        sum = sum ? flux_add(sum, square) : square;
    }
    if (!sum && !flux__failed_since(failures)) sum = flux_full_with(FLUX_SHAPE(1), 0, FLUX_F64);
    return flux__reveal(h, sum && !flux__failed_since(failures) ? flux_sqrt(sum) : NULL);
}

FLUX_DEF flux_tensor *flux_clip_global(flux_grads *g, double omega) {
    if (!flux__open_grads("clip_global", g)) return NULL;
    if (!(omega > 0))
        return (flux_tensor *)flux__fail("clip_global: omega is %g, but must be more than 0",
                                         omega);
    int h = flux__hide();
    flux_tensor *norm = flux_grads_norm(g);
    flux__change c = { norm ? flux_min2(flux_div(omega, norm), 1.0) : NULL, NULL, 0 };
    bool ok = c.by && flux__change_grads(g, &c);
    return flux__reveal(h, ok ? norm : NULL);
}

/* ---------------- as text */

/* Puts a line on a gradient; `none`: the loss does not depend on its tensor. */
static void flux__put_grad(flux__sink *out, const char *name, bool none, double norm,
                           double most) {
    flux__put(out, "\n  ");
    flux__put(out, name);
    flux__put(out, ": ");
    if (none) flux__put(out, "none");
    else if (norm - norm == 0 && most - most == 0) {
        flux__put(out, "norm ");
        flux__put_rounded(out, norm);
        flux__put(out, ", largest ");
        flux__put_rounded(out, most);
    } else flux__put(out, most != most ? "has NaN" : "has Inf");
}

/* The norm and the largest magnitude of each gradient into v, two numbers for each; those of a
   gradient that is not there stay 0. */
static bool flux__measure_grads(const flux_grads *g, double *v) {
    flux_tensor **x = (flux_tensor **)flux__zalloc((size_t)g->n * 2 * sizeof *x);
    int n = 0, h = flux__hide();
    int64_t failures = flux__failures();
    for (int i = 0; x && i < g->n; i++) {
        if (!g->grad[i] || !flux__size(g->grad[i])) continue;
        x[n++] = flux__grad_norm(g->grad[i]);
        x[n++] = flux_to_dtype((flux_max)(flux_abs(g->grad[i])), FLUX_F64);
    }
    bool ok = x && !flux__failed_since(failures) && flux_eval_all(n, x) == 0;
    for (int i = 0, k = 0; ok && i < g->n; i++) {
        if (!g->grad[i] || !flux__size(g->grad[i])) continue;
        v[2 * i] = flux_item(x[k++]);
        v[2 * i + 1] = flux_item(x[k++]);
    }
    flux__reveal_object(h, NULL);
    flux__free(x);
    return ok;
}

FLUX_DEF size_t flux_grads_text(flux_grads *g, char *out, size_t n) {
    flux__sink sink = flux__sink_to(out, n);
    double *v = flux__open_grads("print", g) && flux__name_grads(g)
                    ? (double *)flux__zalloc((size_t)g->n * 2 * sizeof *v) : NULL;
    if (!v || !flux__measure_grads(g, v)) return flux__free(v), flux__sink_end(&sink);
    double sum = 0;
    for (int i = 0; i < g->n; i++) sum += v[2 * i] * v[2 * i];
    flux__putf(&sink, "Gradients of %d %s, ", g->n, g->n == 1 ? "array" : "arrays");
    flux__put(&sink, sum - sum == 0 ? "norm " : "not finite");
    if (sum - sum == 0) flux__put_rounded(&sink, sqrt(sum));
    for (int i = 0; i < g->n; i++)
        flux__put_grad(&sink, g->name[i] ? g->name[i] : "", !g->grad[i], v[2 * i], v[2 * i + 1]);
    flux__free(v);
    return flux__sink_end(&sink);
}

FLUX__END_COLD

#endif /* FLUX__NN_GRADS_H */
