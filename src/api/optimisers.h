#ifndef FLUX__API_OPTIMISERS_H
#define FLUX__API_OPTIMISERS_H
#include "losses.h"

/* ------------------------------------------------------------------ gradients */

/* Gradients of a one-element loss by models and tensors: flux_gradient(loss, model, W). Each can be looked up with
   flux_grad, differentiated again, or handed to flux_update. NULL on error. */
FLUX_API flux_grads *flux_gradient_of(flux_tensor *loss, int n, const void *const *what);
#define flux_gradient(loss, ...) flux_gradient_of(loss, FLUX__NARG(__VA_ARGS__), FLUX__OBJECTS(__VA_ARGS__))
FLUX_API flux_tensor *flux_grad(flux_grads *g, flux_tensor *x);   /* NULL, without an error, where the loss does not depend on x */
FLUX_API flux_tensor *flux_grad_param(flux_grads *g, flux_layer *m, const char *path);
/* Calls fn, m being in train mode meanwhile whatever its layers' own modes are: its value, and the gradients by m's parameters
   in *g. */
FLUX_API flux_tensor *flux_withgradient(flux_tensor *(*fn)(flux_layer *m, void *user), void *user, flux_layer *m, flux_grads **g);
/* Compares flux_gradient with finite differences of fn(x): the largest difference, relative to the gradient's largest
   magnitude, over at most `probes` elements (0: all). NaN on error. x should be float64. */
FLUX_API double flux_gradcheck(flux_tensor *(*fn)(flux_tensor *x, void *user), void *user, flux_tensor *x, int probes);

/* ------------------------------------------------------------------ optimisers (Optimisers.jl's definitions)
   Rules are values, which hold all that they are: flux_adam(1e-3, .beta = {0.9, 0.99}). State per parameter lives in what
   flux_setup returns. */

typedef struct flux_rule_opts {
    FLUX__DUMMY
    flux__double eta FLUX__ZERO;          /* learning rate */
    flux__two beta FLUX__ZERO;           /* decay of the moments */
    flux__double rho FLUX__ZERO;          /* momentum or decay */
    flux__double epsilon FLUX__ZERO;
    flux__double lambda FLUX__ZERO;       /* weight decay */
    flux__double delta FLUX__ZERO;        /* clipgrad: bound */
    flux__double omega FLUX__ZERO, p FLUX__ZERO;/* clipnorm: bound, which norm */
    flux__two ell FLUX__ZERO, gamma FLUX__ZERO;     /* rprop: factors, bounds of the step */
    flux__int n FLUX__ZERO;               /* accumgrad: how many */
    flux__switch centred FLUX__ZERO;      /* rmsprop */
    flux__switch couple FLUX__ZERO;       /* adamw: lambda is multiplied by eta; on by default */
    flux__marked marked FLUX__ZERO;
} flux_rule_opts;
#define FLUX__LEFT_OUT_flux_rule_opts .eta = FLUX__NO_NUMBER, .beta = { FLUX__NO_NUMBER, \
    FLUX__NO_NUMBER }, .rho = FLUX__NO_NUMBER, .epsilon = FLUX__NO_NUMBER, \
    .lambda = FLUX__NO_NUMBER, .delta = FLUX__NO_NUMBER, .omega = FLUX__NO_NUMBER, \
    .p = FLUX__NO_NUMBER, .ell = { FLUX__NO_NUMBER, FLUX__NO_NUMBER }, \
    .gamma = { FLUX__NO_NUMBER, FLUX__NO_NUMBER }, .n = FLUX__NO_INT, .centred = FLUX_DEFAULT, \
    .couple = FLUX_DEFAULT, .marked = true,
enum { FLUX_MAX_RULES = 16 };             /* of a chain, those of the chains in it counted */
typedef struct flux_rule_part { int kind; flux_rule_opts o; } flux_rule_part;
typedef struct flux_rule { bool made, mixed; int n; flux_rule_part part[FLUX_MAX_RULES]; } flux_rule;   /* made false: none */
FLUX_API flux_rule flux_rule_with(const char *name, flux_rule_opts o);
#define FLUX__RULE(name, ...) flux_rule_with(name, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
#define flux_descent(...) FLUX__RULE("Descent", __VA_ARGS__)      /* eta 0.1: eta g */
#define flux_momentum(...) FLUX__RULE("Momentum", __VA_ARGS__)    /* eta 0.01, rho 0.9 */
#define flux_nesterov(...) FLUX__RULE("Nesterov", __VA_ARGS__)    /* eta 0.001, rho 0.9 */
#define flux_rmsprop(...) FLUX__RULE("RMSProp", __VA_ARGS__)      /* eta 0.001, rho 0.9, epsilon 1e-8, centred */
#define flux_rprop(...) FLUX__RULE("Rprop", __VA_ARGS__)          /* eta 0.001, ell {0.5, 1.2}, gamma {1e-6, 50} */
#define flux_adam(...) FLUX__RULE("Adam", __VA_ARGS__)            /* eta 0.001, beta {0.9, 0.999}, epsilon 1e-8 */
#define flux_adamw(...) FLUX__RULE("AdamW", __VA_ARGS__)          /* and lambda 0, couple */
#define flux_lion(...) FLUX__RULE("Lion", __VA_ARGS__)
#define flux_radam(...) FLUX__RULE("RAdam", __VA_ARGS__)
#define flux_adamax(...) FLUX__RULE("AdaMax", __VA_ARGS__)
#define flux_oadam(...) FLUX__RULE("OAdam", __VA_ARGS__)          /* beta {0.5, 0.9} */
#define flux_adagrad(...) FLUX__RULE("AdaGrad", __VA_ARGS__)      /* eta 0.1 */
#define flux_adadelta(...) FLUX__RULE("AdaDelta", __VA_ARGS__)    /* rho 0.9 */
#define flux_amsgrad(...) FLUX__RULE("AMSGrad", __VA_ARGS__)
#define flux_nadam(...) FLUX__RULE("NAdam", __VA_ARGS__)
#define flux_adabelief(...) FLUX__RULE("AdaBelief", __VA_ARGS__)  /* epsilon 1e-16 */
/* Parts of a chain: they change the gradient for the rule that follows. */
#define flux_weightdecay(...) FLUX__RULE("WeightDecay", __VA_ARGS__)   /* g + lambda p; flux_weightdecay(.lambda = 5e-4) */
#define flux_signdecay(...) FLUX__RULE("SignDecay", __VA_ARGS__)       /* g + lambda sign(p); lambda 1e-3 */
#define flux_clipgrad(...) FLUX__RULE("ClipGrad", __VA_ARGS__)         /* each element to [-delta, delta]; delta 10 */
#define flux_clipnorm(...) FLUX__RULE("ClipNorm", __VA_ARGS__)         /* each tensor to norm omega; omega 10, p 2 */
FLUX_API flux_rule flux_optimiser_chain_of(int n, const flux_rule *rules);
#define flux_optimiser_chain(...) flux_optimiser_chain_of(FLUX__NARG(__VA_ARGS__), FLUX__ARRAY(const flux_rule, __VA_ARGS__))
FLUX_API flux_rule flux_accumgrad(int n, flux_rule rule);         /* applies the mean of n gradients at every n-th call */
/* Keeps float32 masters of f16 and bf16 parameters. Small gradients are 0 in f16: so take those of the loss times a scale,
   flux_gradient(flux_scaled_loss(opt, loss), model). flux_update divides by it again; if gradients are not finite, it makes
   no step and halves the scale, and after 2000 steps it doubles it. Without f16 parameters the loss stays as it is.
   flux_train does that by itself. */
FLUX_API flux_rule flux_mixed_precision(flux_rule rule);
FLUX_API flux_tensor *flux_scaled_loss(flux_state *s, flux_tensor *loss);
FLUX_API double flux_loss_scale(flux_state *s);                   /* the scale now; 1 where there is none */
FLUX_API int64_t flux_skipped(flux_state *s);                     /* steps not made because of gradients that were not finite */

/* State for every trained tensor of a model (tied ones share it). Move the model to its device first. */
FLUX_API flux_state *flux_setup(flux_rule rule, flux_layer *model);
/* One step: replaces the model's parameters; those without a gradient are left alone entirely. The loss's graph is
   used up: its value can still be looked at, its gradient not taken again. 0: done. What it computes on an x86 processor, and
   what is still to be computed for it, has 0 in place of numbers below 1.2e-38, f64 below 2.2e-308: the smallest normal ones
   of what is computed in. */
FLUX_API int flux_update(flux_state *s, flux_layer *model, flux_grads *g);
/* Changes hyper-parameters from now on: flux_adjust(opt, .eta = 1e-4). Fields left out stay. A field that the
   rule does not have is an error. 0: done. */
FLUX_API int flux_adjust_with(flux_state *s, flux_rule_opts o);
#define flux_adjust(s, ...) flux_adjust_with(s, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
#define flux_adjust_part(s, part, ...) flux_adjust_layer(s, part, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))    /* only for this part of the model */
FLUX_API int flux_adjust_layer(flux_state *s, flux_layer *part, flux_rule_opts o);
/* Trains over the loader once; the model is in train mode meanwhile, whatever its layers' own modes are. A loss that is not finite
   stops it before the update, as an error. 0: done. */
typedef flux_tensor *(*flux_loss_fn)(flux_layer *model, flux_tensor *x, flux_tensor *y);
FLUX_API int flux_train(flux_loss_fn loss, flux_layer *model, flux_loader *data, flux_state *s);
/* Training helpers: each keeps its state in a struct of yours that starts as {0}. */
typedef struct flux_stopper { double best; int count; bool started; } flux_stopper;
FLUX_API bool flux_patience(flux_stopper *s, bool condition, int n);           /* true after n trues in a row */
FLUX_API bool flux_early_stopping(flux_stopper *s, double score, int delay, double min_dist);   /* no better by min_dist in delay calls */
FLUX_API bool flux_plateau(flux_stopper *s, double score, int width, double min_dist);          /* within min_dist for width calls */

#endif /* FLUX__API_OPTIMISERS_H */
