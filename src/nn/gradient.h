#ifndef FLUX__NN_GRADIENT_H
#define FLUX__NN_GRADIENT_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/gradients.h"
#include "../graph/backward.h"
#include "walk.h"
#include "model.h"

/* ---------------------------------------------------------------------- nn/gradient.h
   Gradients with respect to models and tensors: flux_gradient_with collects the
   tensors that are given and the trained tensors of the models that are given,
   and runs flux__backward (graph/backward.h); flux_grad returns one gradient.
   flux_withgradient first calls a loss function in train mode.

   Invariant: the loss is one real number whose graph was not used up by
   flux_update. Each tensor is collected once, however often a model holds it,
   and has one gradient. The gradient of a tensor that the loss does not depend
   on is NULL, which is no error. A flux_grads holds references to the loss and
   the graph until it is freed or used up by flux_update. Nothing is evaluated
   here. */

FLUX__BEGIN_LEAN

/* Collecting the tensors whose gradients are wanted. */
typedef struct flux__wanted { flux_grads *g; int capacity; bool ok; } flux__wanted;

/* The index of t among the collected tensors, or -1: a scan if they are few, else the hash map. */
static int flux__asked(const flux_grads *g, const flux_tensor *t) {
    if (g->n > FLUX__FEW_ASKED) return (int)(intptr_t)flux__hashmap_get(&g->number, t) - 1;
    int i = g->n - 1;
    while (i >= 0 && g->of[i] != t) i--;
    return i;
}

/* Adds the newest tensor to the hash map; when there are first too many for a scan, adds all. */
static bool flux__number_asked(flux_grads *g) {
    for (int i = g->n == FLUX__FEW_ASKED + 1 ? 0 : g->n - 1; g->n > FLUX__FEW_ASKED && i < g->n;
         i++) {
        bool fresh;
        flux__pair *p = flux__hashmap_at(&g->number, g->of[i], &fresh);
        if (!p) return false;
        p->value = (void *)(intptr_t)(i + 1);
    }
    return true;
}

/* Collects t, unless it is there already. */
static void flux__want(flux__wanted *w, flux_tensor *t) {
    if (flux__asked(w->g, t) >= 0) return;
    flux_tensor **of = (flux_tensor **)flux__one_more(&w->g->of, &w->capacity, w->g->n, sizeof *of);
    if (of) *of = (flux_tensor *)flux_retain(t), w->g->n++;
    if (!of || !flux__number_asked(w->g)) w->ok = false;
}

static void flux__want_visit(flux_tensor *x, const char *path, bool trained, void *user) {
    (void)path;
    if (trained) flux__want((flux__wanted *)user, x);
}

/* Whether gradients of this loss can be taken: one real number, its graph not used up. */
static bool flux__check_loss(flux_tensor *loss) {
    if (!flux__check_operands("gradient", 1, &loss)) return false;
    if (flux__size(loss) != 1 || !flux__dtypes[loss->dtype].real)
        return FLUX__REFUSE("gradient: the loss must be one real number, not %s",
                            flux__describe(loss).s);
    if (loss->flags & FLUX__CONSUMED)
        return FLUX__REFUSE(
            "gradient: this loss's graph was used up by flux_update; record the loss again");
    return true;
}

/* Records the gradients of the loss with respect to n models or tensors. */
FLUX_DEF flux_grads *flux_gradient_with(flux_tensor *loss, int n, const void *const *what) {
    if (!flux__check_loss(loss)) return NULL;
    flux_grads *g = (flux_grads *)flux__handle_new(sizeof *g, FLUX__GRADS);
    if (!g) return NULL;
    g->loss = (flux_tensor *)flux_retain(loss);
    flux__wanted w;
    g->asked = (void **)flux__zalloc((size_t)(n > 0 ? n : 0) * sizeof *g->asked);
    w.g = g, w.capacity = 0, w.ok = g->asked != NULL;
    for (int i = 0; i < n && w.ok; i++) {
        flux__head *h = (flux__head *)(intptr_t)what[i];
        if (!h) flux__null("gradient", "of the list", h), w.ok = false;
        else if (h->kind == FLUX__FREED) flux__gone("gradient", h), w.ok = false;
        else if (h->kind == FLUX__TENSOR) flux__want(&w, (flux_tensor *)h);
        else if (h->kind == FLUX__LAYER)
            w.ok = flux__visit("gradient", (flux_layer *)h, flux__want_visit, &w) && w.ok;
        else flux__fail("gradient: by models and tensors only"), w.ok = false;
        if (w.ok) g->asked[g->nasked++] = flux_retain(h);
    }
    g->grad = (flux_tensor **)flux__zalloc((size_t)g->n * sizeof *g->grad);
    int depth = flux__hide();
    bool ok = w.ok && g->grad && flux__backward(g);
    flux__thread *t = flux__self();
    if (t) flux__scope_close_to(t, depth);
    if (!ok) {
        flux_release(g);
        return NULL;
    }
    return (flux_grads *)flux__own(g);
}

FLUX_DEF flux_tensor *flux_grad(flux_grads *g, flux_tensor *x) {
    if (!g || !x)
        return (flux_tensor *)flux__null("grad", g ? "x" : "g", g ? (void *)x : (void *)g);
    if (FLUX__GONE("grad", g) || FLUX__GONE("grad", x)) return NULL;
    if (g->used)
        return (flux_tensor *)flux__fail(
            "grad: these gradients were used up by flux_update; look at them before");
    const int i = flux__asked(g, x);
    return i >= 0 && g->grad[i] ? (flux_tensor *)flux__own(flux_retain(g->grad[i])) : NULL;
}

FLUX_DEF flux_tensor *flux_grad_param(flux_grads *g, flux_layer *m, const char *path) {
    flux_tensor *x = flux_param(m, path);
    return x && g ? flux_grad(g, x) : (flux_tensor *)flux__null("grad_param", "g", g);
}

/* Calls fn in train mode and returns its loss; *g has the gradients by m. NULL on an error. */
FLUX_DEF flux_tensor *flux_withgradient(flux_tensor *(*fn)(flux_layer *m, void *user), void *user,
                                        flux_layer *m, flux_grads **g) {
    if (g) *g = NULL;
    if (!m || !fn || !g)
        return (flux_tensor *)flux__null("withgradient", !m ? "m" : !fn ? "fn" : "g", NULL);
    flux__training here;
    if (!flux__train_enter(&here, m)) return NULL;
    flux_tensor *loss = fn(m, user);
    flux__train_leave(&here);
    if (loss) *g = flux_gradient(loss, m);
    return *g ? loss : NULL;
}

FLUX__END_LEAN

#endif /* FLUX__NN_GRADIENT_H */
