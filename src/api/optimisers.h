#ifndef FLUX__API_OPTIMISERS_H
#define FLUX__API_OPTIMISERS_H
#include "metrics.h"

/* ------------------------------------------------------------------ gradients */

/* Records the gradients of a loss with respect to models (their trained parameters) and tensors:
   flux_gradient(loss, model, W). The loss is one real number, whose graph flux_update has not used
   up. Look a gradient up with flux_grad, differentiate it again, or hand all of them to
   flux_update. A gradient has the shape of its tensor. NULL on error. */
FLUX_API flux_grads *flux_gradient_with(flux_tensor *loss, int n, const void *const *what);
#define flux_gradient(loss, ...) \
    /* The gradients of a loss by models and tensors: flux_gradient(loss, model). */ \
    flux_gradient_with(loss, FLUX__NARG(__VA_ARGS__), FLUX__OBJECTS(__VA_ARGS__))
/* The gradient with respect to x, or to the parameter of m at this path ("layers.0.weight"). NULL,
   without an error, if the loss does not depend on it. */
FLUX_API flux_tensor *flux_grad(flux_grads *g, flux_tensor *x);
/* The gradient by the parameter of m at this path ("layers.0.weight"); NULL: none. */
FLUX_API flux_tensor *flux_grad_param(flux_grads *g, flux_layer *m, const char *path);
/* All gradients, by number from 0, in the order in which flux_gradient was given their tensors:
   for (int i = 0; i < flux_num_grads(g); i++) ... flux_grad_name(g, i), flux_grad_at(g, i). A name
   is the path in the model, "layers.0.weight"; a tensor's name is its number in the call of
   flux_gradient, which stands before a path if several things were given: "1.bias". flux_print(g)
   shows them with their norms. flux_num_grads is -1 on error. */
FLUX_API int flux_num_grads(flux_grads *g);
/* NULL: no gradient, as above */
FLUX_API flux_tensor *flux_grad_at(flux_grads *g, int i);
/* The name of gradient i, "layers.0.weight". */
FLUX_API const char *flux_grad_name(flux_grads *g, int i);
/* These change all gradients, for the flux_update that follows; nothing is computed yet. Each
   returns 0, or non-zero on error, which changes none. Adding takes, for each tensor of g, its
   gradient in `more`; clipping by value takes each element to [-delta, delta]. */
FLUX_API int flux_grads_scale(flux_grads *g, double by);
/* Adds to each gradient the one in `more` by the same tensor. */
FLUX_API int flux_grads_add(flux_grads *g, flux_grads *more);
/* Takes each element to [-delta, delta]. */
FLUX_API int flux_clip_value(flux_grads *g, double delta);
/* The 2-norm of all gradients as one vector, a float64 number. Clipping scales all of them alike
   if that is above omega, down to omega, and returns the norm that they had. NULL on error. */
FLUX_API flux_tensor *flux_grads_norm(flux_grads *g);
/* Scales all gradients alike so that their norm is omega at most; the norm they had. */
FLUX_API flux_tensor *flux_clip_global(flux_grads *g, double omega);
/* Calls fn(m, user), which returns a loss, and returns it; *g becomes the gradients with respect to
   the parameters of m. During the call m is in train mode, whatever modes its layers have. */
FLUX_API flux_tensor *flux_withgradient(flux_tensor *(*fn)(flux_layer *m, void *user), void *user,
                                        flux_layer *m, flux_grads **g);
/* Compares flux_gradient with finite differences of the number fn(x, user), at no more than
   `probes` elements of x (0: all). Returns the largest difference, relative to the largest
   magnitude in the gradient; NaN on error. x should be float64. */
FLUX_API double flux_gradcheck(flux_tensor *(*fn)(flux_tensor *x, void *user), void *user,
                               flux_tensor *x, int probes);

/* ------------------------------------------------------------------ optimisers
   A rule turns a gradient g into the step that is subtracted from its parameter p; the formulas are
   those of Optimisers.jl. A rule is a plain value with its hyper-parameters:
   flux_adam(1e-3, .beta = {0.9, 0.99}). What a rule stores for each parameter (moments, velocities)
   is in the state that flux_setup returns. A hyper-parameter that the rule does not have, or that
   is out of range, is an error, and the rule's .made is false. */

typedef struct flux_rule_opts {
    FLUX__DUMMY
    flux__double eta FLUX__ZERO;          /* learning rate */
    flux__double2 beta FLUX__ZERO;            /* decay of the two moments */
    flux__double rho FLUX__ZERO;          /* momentum, or decay of an average */
    FLUX__RENAMED(flux__double, eps, epsilon);   /* keeps a divisor above 0 */
    flux__double lambda FLUX__ZERO;       /* weight decay */
    flux__double delta FLUX__ZERO;        /* clipgrad: the bound */
    flux__double omega FLUX__ZERO, p FLUX__ZERO;   /* clipnorm: the bound, and which norm */
    flux__double2 ell FLUX__ZERO, gamma FLUX__ZERO;    /* rprop: the step's factors and bounds */
    flux__int n FLUX__ZERO;               /* accumgrad: how many gradients */
    /* Of schedules, whose calls set them: see flux_schedule_constant and on. */
    flux__double start FLUX__ZERO, finish FLUX__ZERO, decay FLUX__ZERO, period FLUX__ZERO,
        steps FLUX__ZERO;
    flux__switch centred FLUX__ZERO;      /* rmsprop: divides by the standard deviation of g */
    flux__switch global FLUX__ZERO;       /* clipnorm: one norm over all gradients */
    flux__switch couple FLUX__ZERO;       /* adamw: lambda is multiplied by eta; on by default */
    flux__marked marked FLUX__ZERO;
} flux_rule_opts;
#define FLUX__LEFT_OUT_flux_rule_opts .eta = FLUX__NO_NUMBER, .beta = { FLUX__NO_NUMBER, \
    FLUX__NO_NUMBER }, .rho = FLUX__NO_NUMBER, .eps = FLUX__NO_NUMBER, \
    .lambda = FLUX__NO_NUMBER, .delta = FLUX__NO_NUMBER, .omega = FLUX__NO_NUMBER, \
    .p = FLUX__NO_NUMBER, .ell = { FLUX__NO_NUMBER, FLUX__NO_NUMBER }, \
    .gamma = { FLUX__NO_NUMBER, FLUX__NO_NUMBER }, .n = FLUX__NO_INT, \
    .start = FLUX__NO_NUMBER, .finish = FLUX__NO_NUMBER, .decay = FLUX__NO_NUMBER, \
    .period = FLUX__NO_NUMBER, .steps = FLUX__NO_NUMBER, .centred = FLUX_DEFAULT, \
    .global = FLUX_DEFAULT, .couple = FLUX_DEFAULT, .marked = true,
enum { FLUX_MAX_RULES = 16 };   /* most rules of a chain, with those of chains inside it */
typedef double (*flux_schedule_fn)(int64_t t, void *user);
/* comm, bucket, and with .shard rank and ranks: of flux_distributed_optimiser; fn, user: of
   flux_schedule_of. */
typedef struct flux_rule_part {
    int kind; flux_rule_opts o; flux_comm *comm; int64_t bucket; int rank, ranks;
    flux_schedule_fn fn; void *user;
} flux_rule_part;
/* made: false if making it failed; mixed: by flux_mixed_precision; n: how many parts are in use. */
typedef struct flux_rule {
    bool made, mixed;
    int n;
    flux_rule_part part[FLUX_MAX_RULES];
} flux_rule;
/* A rule by its name in Optimisers.jl ("Adam", ...). An unknown name is an error. */
FLUX_API flux_rule flux_rule_with(const char *name, flux_rule_opts o);
#define FLUX__RULE(name, ...) flux_rule_with(name, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
/* Optimisers with their defaults. An option by position is the first one, eta: flux_adam(0.05). */
#define flux_descent(...) \
    /* p - eta g: plain gradient descent; eta 0.1. */ \
    FLUX__RULE("Descent", __VA_ARGS__)
#define flux_momentum(...) \
    /* Descent with momentum (Polyak 1964): eta 0.01, rho 0.9. */ \
    FLUX__RULE("Momentum", __VA_ARGS__)
#define flux_nesterov(...) \
    /* Descent with Nesterov's momentum: eta 0.001, rho 0.9. */ \
    FLUX__RULE("Nesterov", __VA_ARGS__)
#define flux_rmsprop(...) \
    /* RMSProp (Hinton 2012): eta 0.001, rho 0.9, eps 1e-8, centred off. */ \
    FLUX__RULE("RMSProp", __VA_ARGS__)
#define flux_rprop(...) \
    /* Rprop (Riedmiller and Braun 1993): eta 0.001, ell {0.5, 1.2}, gamma {1e-6, 50}. */ \
    FLUX__RULE("Rprop", __VA_ARGS__)
/* Adam (Kingma and Ba 2015) and its kin have eta 0.001, beta {0.9, 0.999}, eps 1e-8, unless the
   line says otherwise. */
#define flux_adam(...) \
    /* Adam (Kingma and Ba 2015): flux_adam(1e-3, .beta = {0.9, 0.99}). */ \
    FLUX__RULE("Adam", __VA_ARGS__)
#define flux_adamw(...) \
    /* Adam with a weight decay of its own (Loshchilov and Hutter 2019): lambda 0, couple on. */ \
    FLUX__RULE("AdamW", __VA_ARGS__)
#define flux_lion(...) \
    /* Lion, by the sign of a momentum (Chen et al. 2023): no eps. */ \
    FLUX__RULE("Lion", __VA_ARGS__)
#define flux_radam(...) \
    /* RAdam (Liu et al. 2020), which warms up by itself. */ \
    FLUX__RULE("RAdam", __VA_ARGS__)
#define flux_adamax(...) \
    /* AdaMax, Adam by the largest gradient (Kingma and Ba 2015). */ \
    FLUX__RULE("AdaMax", __VA_ARGS__)
#define flux_oadam(...) \
    /* Optimistic Adam (Daskalakis et al. 2018): beta {0.5, 0.9}. */ \
    FLUX__RULE("OAdam", __VA_ARGS__)
#define flux_adagrad(...) \
    /* AdaGrad (Duchi et al. 2011): eta 0.1, eps 1e-8. */ \
    FLUX__RULE("AdaGrad", __VA_ARGS__)
#define flux_adadelta(...) \
    /* AdaDelta (Zeiler 2012): rho 0.9, eps 1e-8, no eta. */ \
    FLUX__RULE("AdaDelta", __VA_ARGS__)
#define flux_amsgrad(...) \
    /* AMSGrad (Reddi et al. 2018), with the largest second moment so far. */ \
    FLUX__RULE("AMSGrad", __VA_ARGS__)
#define flux_nadam(...) \
    /* Adam with Nesterov's momentum (Dozat 2016). */ \
    FLUX__RULE("NAdam", __VA_ARGS__)
#define flux_adabelief(...) \
    /* AdaBelief (Zhuang et al. 2020): eps 1e-16. */ \
    FLUX__RULE("AdaBelief", __VA_ARGS__)
/* Parts of a chain, which change the gradient for the rule that follows. */
#define flux_weightdecay(...) \
    /* g + lambda p; lambda 5e-4: flux_weightdecay(.lambda = 1e-4) */ \
    FLUX__RULE("WeightDecay", __VA_ARGS__)
#define flux_signdecay(...) \
    /* g + lambda sign(p); lambda 1e-3 */ \
    FLUX__RULE("SignDecay", __VA_ARGS__)
#define flux_clipgrad(...) \
    /* Clips each element to [-delta, delta]; delta 10. */ \
    FLUX__RULE("ClipGrad", __VA_ARGS__)
#define flux_clipnorm(...) \
    /* Scales each gradient whose p-norm is above omega down to omega; omega 10, p 2. With .global
       = true it takes one norm, that of all gradients as one vector, and scales all alike. */ \
    FLUX__RULE("ClipNorm", __VA_ARGS__)
/* Rules in a row: the gradient passes through them from left to right. */
FLUX_API flux_rule flux_optimiser_chain_with(int n, const flux_rule *rules);
#define flux_optimiser_chain(...) \
    /* Rules in a row: flux_optimiser_chain(flux_clipnorm(.omega = 1), flux_adam()). */ \
    flux_optimiser_chain_with(FLUX__NARG(__VA_ARGS__), FLUX__ARRAY(const flux_rule, __VA_ARGS__))
/* Collects gradients, and at every n-th flux_update applies the rule to the mean of n of them. */
FLUX_API flux_rule flux_accumgrad(int n, flux_rule rule);
/* Schedules: learning rates that change from update to update, as values. t counts the updates that
   a parameter takes part in, from 1; the formulas are those of ParameterSchedulers.jl. In the state
   of a scheduled rule the schedule moves by itself, is saved and printed. */
enum { FLUX_MAX_PHASES = 8 };             /* most phases of a sequence; a one-cycle has two */
/* made: false if making it failed; steps: after so many it is over; 0: it has no end. */
typedef struct flux_schedule {
    bool made;
    int n;
    int64_t steps;
    flux_rule_part phase[FLUX_MAX_PHASES];
} flux_schedule;
/* The same rate at each step. */
FLUX_API flux_schedule flux_schedule_constant(double rate);
/* start decay^floor((t - 1) / period): PyTorch's StepLR */
FLUX_API flux_schedule flux_schedule_step(double start, double decay, int64_t period);
/* start decay^(t - 1) */
FLUX_API flux_schedule flux_schedule_exp(double start, double decay);
/* Half a cosine from start to finish in this many steps, again and again (CosAnneal, restarts). */
FLUX_API flux_schedule flux_schedule_restarts(double start, double finish, int64_t period);
/* The same once, and then finish. */
FLUX_API flux_schedule flux_schedule_cosine(double start, double finish, int64_t steps);
/* In a straight line from start to finish in this many steps, and then finish: a warm-up. */
FLUX_API flux_schedule flux_schedule_linear(double start, double finish, int64_t steps);
/* In a cosine from most / 25 up to most in a quarter of the steps, then down to most / 1e5. */
FLUX_API flux_schedule flux_schedule_onecycle(int64_t steps, double most);
/* A function of yours, called once for each parameter in each update; the same t gives it the same
   rate. It is not saved: load into a state that was made with it. */
FLUX_API flux_schedule flux_schedule_of(flux_schedule_fn fn, void *user);
/* Ends a schedule after so many steps, where another follows in a sequence. */
FLUX_API flux_schedule flux_schedule_for(int64_t steps, flux_schedule s);
/* One after the other, each with t from 1; all but the last have an end, and the last goes on:
   flux_schedule_sequence(flux_schedule_linear(0, 0.1, 500), flux_schedule_exp(0.1, 0.999)) */
FLUX_API flux_schedule flux_schedule_sequence_with(int n, const flux_schedule *s);
#define flux_schedule_sequence(...) \
    /* Schedules one after the other, each with t from 1. */ \
    flux_schedule_sequence_with(FLUX__NARG(__VA_ARGS__), \
                              FLUX__ARRAY(const flux_schedule, __VA_ARGS__))
/* The rate of step t; or NaN. */
FLUX_API double flux_schedule_at(flux_schedule s, int64_t t);
/* The rule with eta from a schedule, also as a part of a chain:
   flux_scheduled(flux_adam(), flux_schedule_cosine(1e-3, 0, 10000)). Of a chain, the one rule that
   has an eta takes it. flux_adjust can't set the eta of such a state. */
FLUX_API flux_rule flux_scheduled(flux_rule rule, flux_schedule s);
/* The learning rate that the next flux_update will use, of the first rule that has one; NaN on
   error. */
FLUX_API double flux_rate(flux_state *s);
/* Mixed precision: the state keeps float32 master copies of f16 and bf16 parameters. Because small
   gradients are 0 in f16, take the gradients of the loss times a scale:
   flux_gradient(flux_scaled_loss(opt, loss), model). flux_update divides them by the scale again.
   If gradients are not finite, it makes no step and halves the scale; after 2000 good steps it
   doubles the scale. Without f16 parameters flux_scaled_loss returns the loss as it is. flux_train
   calls it by itself. */
FLUX_API flux_rule flux_mixed_precision(flux_rule rule);
/* The loss times the state's scale, for flux_gradient in mixed precision. */
FLUX_API flux_tensor *flux_scaled_loss(flux_state *s, flux_tensor *loss);
/* The present scale; 1 without f16. */
FLUX_API double flux_loss_scale(flux_state *s);
/* How many steps were not made because gradients were not finite. */
FLUX_API int64_t flux_skipped(flux_state *s);

/* The state of a rule for all trained parameters of a model; tied parameters share it. Move the
   model to its device before this. NULL on error. */
FLUX_API flux_state *flux_setup(flux_rule rule, flux_layer *model);
/* Plain tensors as a model for flux_setup and flux_update, without a layer around them:
       flux_layer *both = flux_variables(&W, &b);                        // flux_tensor *W, *b
       flux_state *opt = flux_setup(flux_adam(0.01), both);
       flux_update(opt, both, flux_gradient(loss, W, b));                // W and b are new now
   flux_update writes the new tensors to the variables, and so do flux_load, flux_loadmodel and
   flux_set_param; the variables must live as long as these are called, and the tensors belong to
   the model. Up to 32. Move the tensors to their device first, W = flux_gpu(W): flux_gpu(both) is
   another model, and W stays the tensor that it was, on which the loss of that model does not
   depend (flux_update warns of it). A copy of such a model (flux_copy_layer, flux_averaged) writes
   to no variable. NULL on error. */
FLUX_API flux_layer *flux_variables_with(int n, flux_tensor **const *places);
#define flux_variables(...) \
    /* Plain tensors as a model: flux_variables(&W, &b). NULL on error. */ \
    flux_variables_with(FLUX__NARG(__VA_ARGS__), FLUX__PLACES_OF(__VA_ARGS__))
/* The same by name, flux_setup_named("Adam", 0.05, model), for other languages, in which a rule is
   hard to pass. eta is the learning rate; 0: the rule's default. */
FLUX_API flux_state *flux_setup_named(const char *rule, double eta, flux_layer *model);
/* One step: replaces the parameters of the model (that of flux_setup) by new tensors. Parameters
   without a gradient stay entirely as they are. It uses up the graph of the loss: the value of the
   loss can still be looked at, but no gradient of it be taken again. Returns 0, or non-zero on
   error, which leaves model and state as they were. On an x86 processor, what it computes, and what
   is still to be computed for it, has 0 in place of numbers below the smallest normal one of the
   type computed in: 1.2e-38 in f32, 2.2e-308 in f64. */
FLUX_API int flux_update(flux_state *s, flux_layer *model, flux_grads *g);
/* Changes hyper-parameters from now on: flux_adjust(opt, .eta = 1e-4). Fields that are left out
   stay. A field that the rule does not have is an error. Returns 0, or non-zero on error. */
FLUX_API int flux_adjust_with(flux_state *s, flux_rule_opts o);
#define flux_adjust(s, ...) \
    /* Sets hyper-parameters: flux_adjust(opt, .eta = 1e-4). 0, or non-zero on error. */ \
    flux_adjust_with(s, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
#define flux_adjust_part(s, part, ...) \
    /* The same, only for the parameters of this part of the model. */ \
    flux_adjust_part_with(s, part, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
FLUX_API int flux_adjust_part_with(flux_state *s, flux_layer *part, flux_rule_opts o);

#endif /* FLUX__API_OPTIMISERS_H */
