#ifndef FLUX__NN_COMPILE_H
#define FLUX__NN_COMPILE_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../schedule/key.h"
#include "../schedule/plans.h"
#include "../schedule/looking.h"
#include "walk.h"
#include "map.h"
#include "model.h"
#include "moves.h"

/* ---------------------------------------------------------------------- nn/compile.h
   Compiling ahead: flux_prewarm makes the plans that a model's forward pass, its
   loss and its gradients will run for an input of a given shape, so that GPU
   kernels are compiled before the first batch.

   Invariant: only the model's weights and the input, zeros on the model's
   device, are evaluated: they need values, or their computation would be planned
   as part of the forward pass. Copies of the model are called, so that modes and
   whatever a call changes stay as they are, and no random numbers are used up.
   The sum of squares of the output stands for the loss: its gradient depends on
   the output, as that of most losses does. For a back end that compiles nothing
   (the CPU) the call does nothing. */

FLUX__BEGIN_COLD

/* An input of zeros on device d, with values, since a user's layer may read them. */
static flux_tensor *flux__prewarm_input(flux_layer *m, flux_shape in, flux_device d) {
    flux_device cpu = { 0, 0 };
    flux_tensor *like = flux__sample(m, in),
                *x = like ? flux__leaf(flux__dims(like), (flux_dtype)like->dtype, cpu) : NULL;
    if (!x) return NULL;
    memset(x->buf->ptr, 0, x->buf->bytes);
    x = flux__move(x, d);
    return x ? flux_eval(x) : NULL;
}

static void flux__eval_weight(flux_tensor *x, const char *path, bool trained, void *ok) {
    (void)path, (void)trained;
    if (*(bool *)ok) *(bool *)ok = flux_eval(x) != NULL;
}

/* Evaluates the weights: what were still to be initialised or moved would be planned as part of the
   forward pass. */
static bool flux__eval_weights(flux_layer *m) {
    bool ready = true;
    return flux__visit("prewarm", m, flux__eval_weight, &ready) && ready;
}

/* Makes the plan that an evaluation of the n roots would run, which compiles its kernels. cut: the
   plan is one as flux_update makes it, which stores nothing but the roots. */
static bool flux__prewarm_plan(int n, flux_tensor *const *roots, bool cut) {
    flux__graph g;
    do {
        flux__graph_start(&g);
        g.cut = cut;
        for (int i = 0; i < n && g.ok; i++)
            if (roots[i]) flux__graph_want(&g, flux__base(roots[i]));
    } while (flux__graph_met(&g));
    flux__graph_claim(&g);
    bool ok = g.ok;
    if (ok && g.nnode) {
        flux__graph_key(&g);
        ok = g.ok && flux__find_plan(&g) != NULL;
    }
    flux__graph_free(&g);
    return ok;
}

/* Plans the forward pass without gradients. */
static bool flux__prewarm_forward(flux_layer *m, flux_tensor *x) {
    const int b = flux__nograd_enter();
    flux_tensor *y = flux_call_layer(m, x);
    flux__nograd_leave(b);
    return y && (y->op == FLUX__TUPLE ? flux__prewarm_plan(y->nin, y->in, false)
                                      : flux__prewarm_plan(1, &y, false));
}

/* Plans the loss, which is the sum of squares of the floating outputs, and its gradients. */
static bool flux__prewarm_backward(flux_layer *m, flux_tensor *x) {
    flux_tensor *y = flux_call_layer(m, x), *loss = NULL;
    for (int i = 0; y && i < flux_num_items(y); i++) {
        flux_tensor *part = y->op == FLUX__TUPLE ? y->in[i] : y;
        if (!flux__dtypes[part->dtype].real) continue;
        part = flux_sum(flux_square(part));
        loss = loss ? flux_add(loss, part) : part;
    }
    if (!loss || flux_params(m, NULL, 0) == 0) return y != NULL;
    flux_grads *g = flux_gradient(loss, m);
    return g && flux__prewarm_plan(1, &loss, true) && flux__prewarm_plan(g->n, g->grad, true);
}

/* Calls one copy of the model in test mode and one as it is, and restores the random stream. */
FLUX_DEF int flux_prewarm_with(flux_layer *m, flux_shape in) {
    flux__thread *t = flux__self();
    if (!m || !t) return flux__null("prewarm", "model", m), -1;
    if (!flux__check_shape("prewarm", &in)) return -1;
    flux_device d = flux_device_of_layer(m);
    if (d.backend < 0) return -1;
    if (!flux__has_trait(d, FLUX__COMPILES)) return 0;
    if (!flux__eval_weights(m)) return -1;
    uint64_t draws = t->draws;
    int h = flux__hide(), nograd = t->nograd;
    int64_t failures = flux__failures();
    t->nograd = 0;
    flux_layer *quiet = flux__map_layer(flux__keep_leaf, NULL, m, false),
               *copy = flux__map_layer(flux__keep_leaf, NULL, m, false);
    if (quiet) flux_testmode(quiet, true);
    flux_tensor *x = quiet && copy ? flux__prewarm_input(m, in, d) : NULL;
    bool ok = x && flux__prewarm_forward(quiet, x) && flux__prewarm_backward(copy, x) &&
              !flux__failed_since(failures);
    t->nograd = nograd;
    t->draws = draws;
    flux__reveal_object(h, NULL);
    return ok ? 0 : -1;
}

FLUX__END_COLD

#endif /* FLUX__NN_COMPILE_H */
