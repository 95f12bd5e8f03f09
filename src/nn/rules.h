#ifndef FLUX__NN_RULES_H
#define FLUX__NN_RULES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/options.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"

/* ---------------------------------------------------------------------- nn/rules.h
   Optimisers. A rule is a row of a table: its hyper-parameters with their
   defaults, the states (tensors) that it keeps for each parameter, and a step
   function, which records operations that turn a gradient into the value to
   subtract from the parameter. The definitions are those of Optimisers.jl. A
   chain is a flat list of rules, and the gradient passes through them from left
   to right.

   Invariant: a step function gives its result as scale * d, a number times a
   tensor. Learning rates and bias corrections are numbers that are known before
   anything is computed, so they go into scale and cost no pass over memory, and
   p - scale * d is one operation. Powers of beta are taken in double from the
   step's count, so two steps differ only in their numbers and one plan serves
   all. States are float32, or float64 for float64 parameters: in float16 the
   square of a small gradient is 0.

   Rejected: a fused loop per rule (the schedule fuses), states kept in the
   layers (a rule is not the model's concern), an update per parameter (a small
   model has many small ones). */

FLUX__BEGIN_LEAN

/* ---------------- hyper-parameters */

enum {
    FLUX__NONE, FLUX__ETA, FLUX__BETA1, FLUX__BETA2, FLUX__RHO, FLUX__LAMBDA, FLUX__EPS,
    FLUX__DELTA, FLUX__OMEGA, FLUX__NORM_P, FLUX__ELL1, FLUX__ELL2, FLUX__GAMMA1, FLUX__GAMMA2,
    FLUX__EVERY, FLUX__START, FLUX__FINISH, FLUX__DECAY, FLUX__PERIOD, FLUX__STEPS,
    FLUX__HYPERS
};

/* A hyper-parameter: its name, its offset in flux_rule_opts, its range, and the range in words. */
typedef struct flux__hyper_row {
    const char *name;
    size_t at;
    double least, most;
    const char *want;
} flux__hyper_row;
static const flux__hyper_row flux__hypers[FLUX__HYPERS] = {
    { "", 0, 0, 0, "" },
    { "eta", offsetof(flux_rule_opts, eta), 0, DBL_MAX, "0 or more" },
    { "beta", offsetof(flux_rule_opts, beta), 0, 1 - DBL_EPSILON, "at least 0 and less than 1" },
    { "beta", offsetof(flux_rule_opts, beta) + sizeof(double), 0, 1 - DBL_EPSILON,
      "at least 0 and less than 1" },
    { "rho", offsetof(flux_rule_opts, rho), 0, 1, "from 0 to 1" },
    { "lambda", offsetof(flux_rule_opts, lambda), 0, DBL_MAX, "0 or more" },
    { "eps", offsetof(flux_rule_opts, eps), 0, DBL_MAX, "0 or more" },
    { "delta", offsetof(flux_rule_opts, delta), DBL_MIN, HUGE_VAL, "more than 0" },
    { "omega", offsetof(flux_rule_opts, omega), DBL_MIN, HUGE_VAL, "more than 0" },
    { "p", offsetof(flux_rule_opts, p), DBL_MIN, HUGE_VAL, "more than 0" },
    { "ell", offsetof(flux_rule_opts, ell), DBL_MIN, 1, "more than 0 and at most 1" },
    { "ell", offsetof(flux_rule_opts, ell) + sizeof(double), 1, DBL_MAX, "1 or more" },
    { "gamma", offsetof(flux_rule_opts, gamma), 0, DBL_MAX, "0 or more" },
    { "gamma", offsetof(flux_rule_opts, gamma) + sizeof(double), DBL_MIN, HUGE_VAL, "more than 0" },
    { "n", 0, 1, INT_MAX, "1 or more" },
    { "start", offsetof(flux_rule_opts, start), 0, DBL_MAX, "0 or more" },
    { "finish", offsetof(flux_rule_opts, finish), 0, DBL_MAX, "0 or more" },
    { "decay", offsetof(flux_rule_opts, decay), 0, DBL_MAX, "0 or more" },
    { "period", offsetof(flux_rule_opts, period), 1, 1e15, "from 1 to 1e15" },
    { "steps", offsetof(flux_rule_opts, steps), 0, 1e15, "0 or more" }
};

/* The value of hyper-parameter h in o; FLUX__NO_NUMBER if it is not given. */
static double flux__hyper(const flux_rule_opts *o, int h) {
    double v;
    if (h == FLUX__EVERY) return o->n == FLUX__NO_INT ? FLUX__NO_NUMBER : (double)o->n;
    memcpy(&v, (const char *)o + flux__hypers[h].at, sizeof v);
    return v;
}

static void flux__hyper_set(flux_rule_opts *o, int h, double v) {
    if (h == FLUX__EVERY) o->n = (int)v;
    else memcpy((char *)o + flux__hypers[h].at, &v, sizeof v);
}

/* ---------------- steps

   In the comments on step functions g is the gradient, p the parameter, x' the new value of a state
   x; each says what is subtracted from p if the rule stands alone. */

/* The numbers that one update uses as operands, each as one scalar tensor. */
typedef struct flux__constants {
    double v[24];
    flux_tensor *x[24];
    int n;
} flux__constants;

/* The step of one rule for one parameter. The gradient, as the rules so far have changed it, is
   scale * d. If scale came from data (measured), it is always multiplied in, even where it is 1, so
   that the graph has the same shape in every step. */
typedef struct flux__step {
    flux_rule_opts o;                     /* the rule's hyper-parameters for this parameter */
    flux__constants *shared;
    flux_tensor *p;                       /* the parameter, in the dtype of its states */
    flux_tensor *d;                       /* NULL: no step is made for this parameter */
    double scale;
    bool measured;
    int64_t t;                            /* the step's number, from 1; its new value is kept */
    flux_tensor **s, **next;              /* its states before and after (next NULL: unchanged) */
    flux_tensor *norm;                    /* set by ClipNorm: the norm of d, to be evaluated */
    double size;                          /* its value, times |scale| */
    const flux_rule_part *part;           /* the rule in its chain */
    double eta;                           /* set by a phase of a schedule, for the next rule */
    bool paced;                           /* a phase has set it */
    int64_t past;                         /* the steps of phases that are over */
} flux__step;

/* v as a scalar operand. Most parameters need the same few numbers, so they share the tensors. */
static flux_tensor *flux__constant(const flux__step *k, double v) {
    flux__constants *c = k->shared;
    for (int i = 0; i < c->n; i++)
        if (c->v[i] == v) return c->x[i];
    flux_tensor *x = flux__number(v);
    if (x && c->n < 24) c->v[c->n] = v, c->x[c->n++] = x;
    return x;
}

/* The gradient as one tensor: multiplies scale into d. */
static flux_tensor *flux__gradient_now(flux__step *k) {
    if (k->measured || k->scale != 1)
        k->d = flux__elementwise(FLUX__OP_MUL, k->d, flux__constant(k, k->scale), NULL);
    k->scale = 1;
    k->measured = false;
    return k->d;
}

/* flux__blend: keep * old + (1 - keep) * x. flux__scaled_sum: a * scale + b. */
static flux_tensor *flux__blend(flux__step *k, flux_tensor *old, flux_tensor *x, double keep) {
    return flux__lerp(old, x, flux__constant(k, 1 - keep));
}
static flux_tensor *flux__scaled_sum(flux__step *k, flux_tensor *a, double scale, flux_tensor *b) {
    return flux__fma(a, flux__constant(k, scale), b);
}

/* The step eta (m/c1) / (sqrt(v/c2) + eps) of a mean m and a mean square v, which Adam divides by
   its bias corrections c1 and c2. It is written as scale = eta sqrt(c2)/c1 times
   d = m / (sqrt(v) + eps sqrt(c2)). */
static void flux__rooted_ratio(flux__step *k, flux_tensor *m, double c1, flux_tensor *v,
                               double c2) {
    k->d = flux_div(m, flux_add(flux_sqrt(v), flux__constant(k, k->o.eps * sqrt(c2))));
    k->scale = k->o.eta * sqrt(c2) / c1;
}

/* eta g */
static void flux__step_descent(flux__step *k) { k->scale *= k->o.eta; }

/* velocity' = rho velocity + eta g, which is subtracted */
static void flux__step_momentum(flux__step *k) {
    k->scale *= k->o.eta;
    k->d = k->next[0] = flux__scaled_sum(k, k->s[0], k->o.rho, flux__gradient_now(k));
}

/* v' = rho v - eta g, v the velocity; (1 + rho) eta g - rho^2 v is subtracted */
static void flux__step_nesterov(flux__step *k) {
    double rho = k->o.rho;
    k->scale *= k->o.eta;
    flux_tensor *g = flux__gradient_now(k);
    k->d = flux__scaled_sum(k, k->s[0], -rho * rho, flux_mul(g, 1 + rho));
    k->next[0] = flux_sub(flux_mul(k->s[0], rho), g);
}

/* q' = rho q + (1 - rho) g^2, the mean square; eta g / (sqrt(q') + eps) */
static void flux__step_rmsprop(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *q = flux__blend(k, k->s[0], flux_square(g), k->o.rho);
    k->next[0] = q;
    flux__rooted_ratio(k, g, 1, q, 1);
}

/* The same with the variance q' - l'^2 in place of the mean square q', l being the mean of g. */
static void flux__step_rmsprop_centred(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *q = flux__blend(k, k->s[0], flux_square(g), k->o.rho);
    flux_tensor *l = flux__blend(k, k->s[1], g, k->o.rho),
                *spread = flux_max2(flux_sub(q, flux_square(l)), 0.0);
    k->next[0] = q;                       /* max2: q - l^2 of equal gradients can round below 0 */
    k->next[1] = l;
    flux__rooted_ratio(k, g, 1, spread, 1);
}

/* Each element has its own step. It grows by ell[1], to gamma[1] at most, while g keeps its sign.
   It shrinks by ell[0], to gamma[0] at least, when the sign changes; then g counts as 0 once. */
static void flux__step_rprop(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *same = flux_mul(k->s[0], g), *step = k->s[1];
    flux_tensor *turned = flux_lt(same, 0.0);
    flux_tensor *more = flux_min2(flux_mul(step, k->o.ell[1]), k->o.gamma[1]);
    flux_tensor *less = flux_max2(flux_mul(step, k->o.ell[0]), k->o.gamma[0]);
    k->next[0] = flux_where(turned, 0.0, g);
    k->next[1] = flux_where(flux_gt(same, 0.0), more, flux_where(turned, less, step));
    k->d = flux_mul(k->next[1], flux_sign(k->next[0]));
}

/* Adam's bias correction, 1 - beta[which]^t, by which a moment is divided. */
static double flux__lack(const flux__step *k, int which) {
    return 1 - pow(k->o.beta[which], (double)k->t);
}

/* Records Adam's first and second moment in next[0] and next[1]; returns the gradient. */
static flux_tensor *flux__moments(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    k->next[0] = flux__blend(k, k->s[0], g, k->o.beta[0]);
    k->next[1] = flux__blend(k, k->s[1], flux_square(g), k->o.beta[1]);
    return g;
}

static void flux__step_adam(flux__step *k) {
    flux__moments(k);
    flux__rooted_ratio(k, k->next[0], flux__lack(k, 0), k->next[1], flux__lack(k, 1));
}

/* Adam's step plus lambda p, or plus eta lambda p if coupled */
static void flux__step_adamw(flux__step *k) {
    double lambda = k->o.lambda;
    flux__step_adam(k);
    if (lambda == 0) return;
    if (k->o.couple != FLUX_OFF) lambda *= k->o.eta;
    k->d = flux__scaled_sum(k, k->p, lambda, flux__gradient_now(k));
}

/* m' = beta2 g + (1 - beta2) m; eta sign(beta1 m' + (beta2 - beta1) g) */
static void flux__step_lion(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    double b1 = k->o.beta[0], b2 = k->o.beta[1];
    k->next[0] = flux__blend(k, g, k->s[0], b2);          /* b2 weighs g, as in Optimisers.jl */
    k->d = flux_sign(flux__scaled_sum(k, g, b2 - b1, flux_mul(k->next[0], b1)));
    k->scale = k->o.eta;
}

/* Adam's step times a rectification, if rho, the length of the average that v is of, is above 4;
   before that, the first moment alone. */
static void flux__step_radam(flux__step *k) {
    double b2 = pow(k->o.beta[1], (double)k->t), most = 2 / (1 - k->o.beta[1]) - 1;
    double rho = most - 2 * (double)k->t * b2 / (1 - b2);
    flux__moments(k);
    if (rho > 4) {
        flux__rooted_ratio(k, k->next[0], flux__lack(k, 0), k->next[1], 1 - b2);
        k->scale *= sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
    } else {
        k->d = k->next[0];
        k->scale = k->o.eta / flux__lack(k, 0);
    }
}

/* u' = max(beta2 u, |g|); eta / (1 - beta1^t) m' / (u' + eps) */
static void flux__step_adamax(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    k->next[0] = flux__blend(k, k->s[0], g, k->o.beta[0]);
    k->next[1] = flux_max2(flux_mul(k->s[1], k->o.beta[1]), flux_abs(g));
    k->d = flux_div(k->next[0], flux_add(k->next[1], flux__constant(k, k->o.eps)));
    k->scale = k->o.eta / flux__lack(k, 0);
}

/* last' = Adam's step; 2 last' - last is subtracted */
static void flux__step_oadam(flux__step *k) {
    flux__step_adam(k);
    k->next[2] = flux__gradient_now(k);
    k->d = flux_sub(flux_mul(k->next[2], 2), k->s[2]);
}

/* square' = square + g^2; eta g / (sqrt(square') + eps) */
static void flux__step_adagrad(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    k->next[0] = flux__fma(g, g, k->s[0]);
    flux__rooted_ratio(k, g, 1, k->next[0], 1);
}

/* q' = rho q + (1 - rho) g^2; d = g sqrt((delta + eps) / (q' + eps)) is subtracted; delta
   is the running mean of d^2. */
static void flux__step_adadelta(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *q = flux__blend(k, k->s[0], flux_square(g), k->o.rho);
    flux_tensor *e = flux__constant(k, k->o.eps);
    k->next[0] = q;
    k->d = flux_mul(g, flux_sqrt(flux_div(flux_add(k->s[1], e), flux_add(q, e))));
    k->next[1] = flux__blend(k, k->s[1], flux_square(k->d), k->o.rho);
}

/* vmax' = max(vmax, v'); eta m' / (sqrt(vmax') + eps), without bias corrections */
static void flux__step_amsgrad(flux__step *k) {
    flux__moments(k);
    k->next[2] = flux_max2(k->s[2], k->next[1]);
    flux__rooted_ratio(k, k->next[0], 1, k->next[2], 1);
}

/* Adam's step with beta1 / (1 - beta1^(t+1)) m' + (1 - beta1) / (1 - beta1^t) g for the corrected
   first moment, and beta2 v' / (1 - beta2^t) for the second. */
static void flux__step_nadam(flux__step *k) {
    double b1 = k->o.beta[0], next = 1 - pow(b1, (double)k->t + 1);
    flux_tensor *g = flux__moments(k);
    flux_tensor *m =
        flux__scaled_sum(k, k->next[0], b1 / next, flux_mul(g, (1 - b1) / flux__lack(k, 0)));
    if (k->o.beta[1] > 0) flux__rooted_ratio(k, m, 1, k->next[1], flux__lack(k, 1) / k->o.beta[1]);
    else k->d = m, k->scale = k->o.eta / k->o.eps;    /* v is weighed by beta[1], which is 0 */
}

/* Adam's step with s' = beta2 s + (1 - beta2) (g - m')^2 + eps for the second moment */
static void flux__step_adabelief(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *m = flux__blend(k, k->s[0], g, k->o.beta[0]);
    k->next[0] = m;
    flux_tensor *s = flux__blend(k, k->s[1], flux_square(flux_sub(g, m)), k->o.beta[1]);
    k->next[1] = flux_add(s, flux__constant(k, k->o.eps));
    flux__rooted_ratio(k, m, flux__lack(k, 0), k->next[1], flux__lack(k, 1));
}

/* g + lambda p */
static void flux__step_weightdecay(flux__step *k) {
    k->d = flux__scaled_sum(k, k->p, k->o.lambda, flux__gradient_now(k));
}

/* g + lambda sign(p) */
static void flux__step_signdecay(flux__step *k) {
    k->d = flux__scaled_sum(k, flux_sign(k->p), k->o.lambda, flux__gradient_now(k));
}

/* g clamped to -delta ... delta by element */
static void flux__step_clipgrad(flux__step *k) {
    k->d = flux_clamp(flux__gradient_now(k), -k->o.delta, k->o.delta);
}

/* Only records the norm of d. flux__clip_norms and flux__clip_global (nn/update.h) evaluate the
   norms of all parameters together and change k->scale. */
static void flux__step_clipnorm(flux__step *k) {
    double p = k->o.p;
    flux_tensor *size = p == 2 ? k->d : flux_abs(k->d);
    if (p == 2) k->norm = (flux_norm)(size);
    else if (p > DBL_MAX) k->norm = (flux_max)(size);
    else k->norm = flux_pow((flux_sum)(flux_pow(size, p)), 1 / p);
}

/* Adds up gradients; every n-th step passes on their mean, the others pass on
   nothing (d is NULL). */
static void flux__step_accumgrad(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k),
                *sum = k->t > 1 ? flux_add(k->s[0], g) : k->o.n > 1 ? flux_copy(g) : g;
    k->d = k->t >= k->o.n ? sum : NULL;
    k->scale = 1 / (double)k->t;
    if (k->d) k->t = 0;                   /* the next step has number 1 and begins a new sum */
    else k->next[0] = sum;
}

/* ---------------- schedules

   A schedule is a row of phases in front of the rule whose eta it gives: the first phase that is
   not over sets k->eta. They are rules that leave the gradient as it is, so that they are counted,
   saved and printed as rules are. t is the phase's own step, from 1. */

/* The phase's own step; 0 if another phase has set the rate, or this one is over. */
static double flux__phase_step(flux__step *k) {
    int64_t t = k->t - k->past;
    if (k->paced) return 0;
    if (k->o.steps > 0 && (double)t > k->o.steps) {
        k->past += (int64_t)k->o.steps;
        return 0;
    }
    k->paced = true;
    return (double)t;
}

/* How far a half cosine from 0 to 1 is at x, from 0 to 1. */
static double flux__half_cosine(double x) { return (1 - cos(3.14159265358979323846 * x)) / 2; }

/* The rate a share `at` on the way from start to finish */
static void flux__pace_between(flux__step *k, double at) {
    k->eta = k->o.start + (k->o.finish - k->o.start) * at;
}

static void flux__step_constant(flux__step *k) {
    if (flux__phase_step(k) > 0) k->eta = k->o.start;
}
static void flux__step_stairs(flux__step *k) {
    double t = flux__phase_step(k);
    if (t > 0) k->eta = k->o.start * pow(k->o.decay, floor((t - 1) / k->o.period));
}
static void flux__step_exp(flux__step *k) {
    double t = flux__phase_step(k);
    if (t > 0) k->eta = k->o.start * pow(k->o.decay, t - 1);
}
static void flux__step_restarts(flux__step *k) {
    double t = flux__phase_step(k);
    if (t > 0) flux__pace_between(k, flux__half_cosine(fmod(t - 1, k->o.period) / k->o.period));
}
static void flux__step_cosine(flux__step *k) {
    double t = flux__phase_step(k);
    if (t > 0) flux__pace_between(k, flux__half_cosine(fmin((t - 1) / k->o.period, 1)));
}
static void flux__step_linear(flux__step *k) {
    double t = flux__phase_step(k);
    if (t > 0) flux__pace_between(k, fmin((t - 1) / k->o.period, 1));
}
static void flux__step_function(flux__step *k) {
    double t = flux__phase_step(k);
    if (t == 0) return;
    k->eta = k->part->fn ? k->part->fn((int64_t)t, k->part->user) : (double)NAN;
    if (!(k->eta - k->eta == 0)) flux__fail("schedule: the rate of step %g is %g", t, k->eta);
}

/* Gives the rule whose step this is the rate of the phases before it. */
static void flux__take_pace(flux__step *k) {
    if (k->paced) k->o.eta = k->eta;
    k->paced = false;
    k->past = 0;
}

/* ---------------- the table of rules */

typedef struct flux__rule_row {
    const char *name;
    void (*step)(flux__step *k);
    /* Called once for the steps of all parameters, after step; NULL: nothing is done. r: the rule's
       number in the chain. False: an error was told. */
    bool (*all)(struct flux_state *s, int r);
    bool counts;                          /* the step function needs the step's number, k->t */
    /* states for each parameter; start: 0, or the hyper-parameter whose value they start with */
    struct { const char *name; int start; } state[3];
    /* hyper-parameters and defaults in printed order; the first is printed without its name */
    struct { int hyper; double value; } has[7];
} flux__rule_row;

#define FLUX__M_V { { "m", 0 }, { "v", 0 }, { NULL, 0 } }
#define FLUX__BETAS(beta1, beta2) { FLUX__BETA1, beta1 }, { FLUX__BETA2, beta2 }
#define FLUX__ADAM_HAS(beta1, beta2, eps) \
    { { FLUX__ETA, 1e-3 }, FLUX__BETAS(beta1, beta2), { FLUX__EPS, eps }, { 0, 0 } }
#define FLUX__NO_STATE { { NULL, 0 } }
#define FLUX__CLIP_HAS { { FLUX__OMEGA, 10 }, { FLUX__NORM_P, 2 }, { 0, 0 } }
#define FLUX__WAY_HAS { { FLUX__START, 0 }, { FLUX__FINISH, 0 }, { FLUX__PERIOD, 1 }, \
    { FLUX__STEPS, 0 }, { 0, 0 } }
#define FLUX__RMS_HAS { { FLUX__ETA, 1e-3 }, { FLUX__RHO, 0.9 }, { FLUX__EPS, 1e-8 }, { 0, 0 } }

/* hook: flux__clip_norms, nn/update.h */
static bool flux__clip_norms(flux_state *s, int r);
/* hook: flux__clip_global, nn/update.h */
static bool flux__clip_global(flux_state *s, int r);
/* hook: flux__distribute, nn/update.h */
static bool flux__distribute(flux_state *s, int r);

static const flux__rule_row flux__rule_rows[] = {
    { "", NULL, NULL, false, FLUX__NO_STATE, { { 0, 0 } } },
    { "Descent", flux__step_descent, NULL, false, FLUX__NO_STATE,
      { { FLUX__ETA, 0.1 }, { 0, 0 } } },
    { "Momentum", flux__step_momentum, NULL, false, { { "velocity", 0 } },
      { { FLUX__ETA, 0.01 }, { FLUX__RHO, 0.9 }, { 0, 0 } } },
    { "Nesterov", flux__step_nesterov, NULL, false, { { "velocity", 0 } },
      { { FLUX__ETA, 1e-3 }, { FLUX__RHO, 0.9 }, { 0, 0 } } },
    { "RMSProp", flux__step_rmsprop, NULL, false, { { "square", 0 } }, FLUX__RMS_HAS },
    { "RMSProp", flux__step_rmsprop_centred, NULL, false, { { "square", 0 }, { "mean", 0 } },
      FLUX__RMS_HAS },
    { "Rprop", flux__step_rprop, NULL, false, { { "gradient", 0 }, { "step", FLUX__ETA } },
      { { FLUX__ETA, 1e-3 }, { FLUX__ELL1, 0.5 }, { FLUX__ELL2, 1.2 }, { FLUX__GAMMA1, 1e-6 },
        { FLUX__GAMMA2, 50 }, { 0, 0 } } },
    { "Adam", flux__step_adam, NULL, true, FLUX__M_V, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "AdamW", flux__step_adamw, NULL, true, FLUX__M_V,
      { { FLUX__ETA, 1e-3 }, FLUX__BETAS(0.9, 0.999), { FLUX__LAMBDA, 0 }, { FLUX__EPS, 1e-8 },
        { 0, 0 } } },
    { "Lion", flux__step_lion, NULL, false, { { "m", 0 } },
      { { FLUX__ETA, 1e-3 }, FLUX__BETAS(0.9, 0.999), { 0, 0 } } },
    { "RAdam", flux__step_radam, NULL, true, FLUX__M_V, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "AdaMax", flux__step_adamax, NULL, true, { { "m", 0 }, { "u", 0 } },
      FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "OAdam", flux__step_oadam, NULL, true, { { "m", 0 }, { "v", 0 }, { "last", 0 } },
      FLUX__ADAM_HAS(0.5, 0.9, 1e-8) },
    { "AdaGrad", flux__step_adagrad, NULL, false, { { "square", FLUX__EPS } },
      { { FLUX__ETA, 0.1 }, { FLUX__EPS, 1e-8 }, { 0, 0 } } },
    { "AdaDelta", flux__step_adadelta, NULL, false, { { "square", 0 }, { "delta", 0 } },
      { { FLUX__RHO, 0.9 }, { FLUX__EPS, 1e-8 }, { 0, 0 } } },
    { "AMSGrad", flux__step_amsgrad, NULL, false,
      { { "m", FLUX__EPS }, { "v", FLUX__EPS }, { "vmax", FLUX__EPS } },
      FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "NAdam", flux__step_nadam, NULL, true, FLUX__M_V, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "AdaBelief", flux__step_adabelief, NULL, true, { { "m", 0 }, { "s", 0 } },
      FLUX__ADAM_HAS(0.9, 0.999, 1e-16) },
    { "WeightDecay", flux__step_weightdecay, NULL, false, FLUX__NO_STATE,
      { { FLUX__LAMBDA, 5e-4 }, { 0, 0 } } },
    { "SignDecay", flux__step_signdecay, NULL, false, FLUX__NO_STATE,
      { { FLUX__LAMBDA, 1e-3 }, { 0, 0 } } },
    { "ClipGrad", flux__step_clipgrad, NULL, false, FLUX__NO_STATE,
      { { FLUX__DELTA, 10 }, { 0, 0 } } },
    { "ClipNorm", flux__step_clipnorm, flux__clip_norms, false, FLUX__NO_STATE, FLUX__CLIP_HAS },
    { "ClipNorm", flux__step_clipnorm, flux__clip_global, false, FLUX__NO_STATE, FLUX__CLIP_HAS },
    { "AccumGrad", flux__step_accumgrad, NULL, true, { { "sum", 0 } },
      { { FLUX__EVERY, 1 }, { 0, 0 } } },
    { "Constant", flux__step_constant, NULL, true, FLUX__NO_STATE,
      { { FLUX__START, 0 }, { FLUX__STEPS, 0 }, { 0, 0 } } },
    { "Step", flux__step_stairs, NULL, true, FLUX__NO_STATE,
      { { FLUX__START, 0 }, { FLUX__DECAY, 1 }, { FLUX__PERIOD, 1 }, { FLUX__STEPS, 0 },
        { 0, 0 } } },
    { "Exp", flux__step_exp, NULL, true, FLUX__NO_STATE,
      { { FLUX__START, 0 }, { FLUX__DECAY, 1 }, { FLUX__STEPS, 0 }, { 0, 0 } } },
    { "CosAnneal", flux__step_restarts, NULL, true, FLUX__NO_STATE, FLUX__WAY_HAS },
    { "Cosine", flux__step_cosine, NULL, true, FLUX__NO_STATE, FLUX__WAY_HAS },
    { "Linear", flux__step_linear, NULL, true, FLUX__NO_STATE, FLUX__WAY_HAS },
    { "Function", flux__step_function, NULL, true, FLUX__NO_STATE,
      { { FLUX__STEPS, 0 }, { 0, 0 } } },
    { "Distributed", NULL, flux__distribute, false, FLUX__NO_STATE, { { 0, 0 } } }
};

/* The kind of a flux_rule_part is the number of its row, 1 or more. */
enum { FLUX__RULE_ROWS = sizeof flux__rule_rows / sizeof flux__rule_rows[0] };

/* A rule that was not made: flux_setup and chains refuse it. */
static flux_rule flux__bad_rule(void) {
    FLUX__ZEROED(flux_rule, r);
    return r;
}

/* ---------------- making rules */

/* The name of the call that makes a rule, for messages: "adam" for the row "Adam". */
static flux__text flux__call_name(const flux__rule_row *row) {
    flux__text t;
    int i = 0;
    for (; row->name[i] && i < 20; i++) t.s[i] = (char)tolower((unsigned char)row->name[i]);
    t.s[i] = 0;
    return t;
}

/* Whether a rule has hyper-parameter h. */
static bool flux__row_has(const flux__rule_row *row, int h) {
    for (int i = 0; i < 7 && row->has[i].hyper; i++)
        if (row->has[i].hyper == h) return true;
    return false;
}

/* Whether a rule is a phase of a schedule. */
static bool flux__is_phase(const flux__rule_row *row) { return flux__row_has(row, FLUX__STEPS); }

/* Whether hyper-parameter h is in its range; if not, an error. */
static bool flux__check_hyper(const char *call, const flux_rule_opts *o, int h) {
    double v = flux__hyper(o, h);
    const flux__hyper_row *row = &flux__hypers[h];
    if (v >= row->least && v <= row->most) return true;
    return FLUX__REFUSE("%s: %s is %g, but must be %s", call, row->name, v,
                        v > DBL_MAX && row->most == DBL_MAX ? "a finite number" : row->want);
}

/* Checks couple (AdamW), centred (RMSProp), global (ClipNorm); sets the default of couple. */
static bool flux__resolve_switches(flux_rule_part *r, const char *call) {
    const flux__rule_row *row = &flux__rule_rows[r->kind];
    bool couples = row->step == flux__step_adamw, squares = row->step == flux__step_rmsprop;
    if (r->o.couple != FLUX_DEFAULT && !couples)
        return FLUX__REFUSE("%s: %s has no couple", call, row->name);
    if (r->o.centred != FLUX_DEFAULT && !squares && row->step != flux__step_rmsprop_centred)
        return FLUX__REFUSE("%s: %s has no centred", call, row->name);
    if (r->o.global != FLUX_DEFAULT && row->step != flux__step_clipnorm)
        return FLUX__REFUSE("%s: %s has no global", call, row->name);
    if (couples && r->o.couple == FLUX_DEFAULT) r->o.couple = FLUX_ON;
    return true;
}

static bool flux__has_hyper(const flux_rule_opts *o, int h) {
    return flux__is_given(flux__hyper(o, h), o->marked);
}

/* Fills in the rule's defaults, and 0 for hyper-parameters that it does not have. False, with an
   error, for a value out of range or a hyper-parameter that the rule does not have. The first
   number may be given without its name, and then arrives as eta: flux_clipnorm(1). */
static bool flux__resolve(flux_rule_part *r) {
    const flux__rule_row *row = &flux__rule_rows[r->kind];
    flux__text call = flux__call_name(row);
    int first = row->has[0].hyper;
    if (!flux__row_has(row, FLUX__ETA) && flux__has_hyper(&r->o, FLUX__ETA) &&
        !flux__has_hyper(&r->o, first)) {
        flux__hyper_set(&r->o, first, r->o.eta);
        r->o.eta = FLUX__NO_NUMBER;
    }
    for (int h = 1; h < FLUX__HYPERS; h++) {
        if (flux__row_has(row, h)) continue;
        if (flux__has_hyper(&r->o, h))
            return FLUX__REFUSE("%s: %s has no %s", call.s, row->name, flux__hypers[h].name);
        flux__hyper_set(&r->o, h, 0);
    }
    for (int i = 0; i < 7 && row->has[i].hyper; i++) {
        int h = row->has[i].hyper;
        if (!flux__has_hyper(&r->o, h)) flux__hyper_set(&r->o, h, row->has[i].value);
        else if (!flux__check_hyper(call.s, &r->o, h)) return false;
    }
    if (r->o.gamma[0] > r->o.gamma[1])
        return FLUX__REFUSE("%s: gamma is (%g, %g), not in order", call.s, r->o.gamma[0],
                            r->o.gamma[1]);
    return flux__resolve_switches(r, call.s);
}

/* A rule by its row's name. The rows of centred RMSProp and global ClipNorm follow those of RMSProp
   and ClipNorm and have their names. */
FLUX_DEF FLUX__COLD flux_rule flux_rule_with(const char *name, flux_rule_opts o) {
    flux_rule r = flux__bad_rule();
    flux_rule_part *part = &r.part[0];
    if (!name) flux__null("rule", "name", name);
    o.couple = flux__given_switch(o.couple, o.marked);
    o.centred = flux__given_switch(o.centred, o.marked);
    o.global = flux__given_switch(o.global, o.marked);
    part->o = o;
    part->kind = 1;
    while (name && part->kind < FLUX__RULE_ROWS &&
           strcmp(flux__rule_rows[part->kind].name, name) != 0)
        part->kind++;
    if (part->kind == FLUX__RULE_ROWS) flux__fail("rule: there is no rule named \"%.60s\"", name);
    if (!name || part->kind == FLUX__RULE_ROWS) return flux__bad_rule();
    if (o.centred == FLUX_ON && flux__rule_rows[part->kind].step == flux__step_rmsprop)
        part->kind++;
    if (o.global == FLUX_ON && flux__rule_rows[part->kind].step == flux__step_clipnorm)
        part->kind++;
    if (!flux__resolve(part)) return flux__bad_rule();
    r.n = 1;
    r.made = true;
    return r;
}

/* Whether a rule was made by one of the calls that make rules; if not, an error. */
static bool flux__is_rule(const char *call, const flux_rule *r) {
    return r->made ||
           (!flux__null_explained() &&
            FLUX__REFUSE("%s: this is not a rule (rules are made by flux_adam() and the like)",
                         call));
}

/* The parts of n rules, which may be chains themselves, one after the other. */
static FLUX__COLD flux_rule flux__chain_rules(const char *call, int n, const flux_rule *rules) {
    flux_rule r = flux__bad_rule();
    for (int i = 0; i < n; i++) {
        if (!flux__is_rule(call, &rules[i])) return flux__bad_rule();
        if (rules[i].n > FLUX_MAX_RULES - r.n) {
            flux__fail("%s: a chain has at most %d rules", call, (int)FLUX_MAX_RULES);
            return flux__bad_rule();
        }
        for (int k = 0; k < rules[i].n; k++) r.part[r.n++] = rules[i].part[k];
        r.mixed |= rules[i].mixed;
    }
    r.made = true;
    return r;
}

FLUX_DEF flux_rule flux_optimiser_chain_with(int n, const flux_rule *rules) {
    return flux__chain_rules("optimiser_chain", n, rules);
}

/* AccumGrad in front of `rule`: the rule steps once in n updates, with the mean gradient. */
FLUX_DEF flux_rule flux_accumgrad(int n, flux_rule rule) {
    flux_rule two[2];
    two[0] = flux__bad_rule();
    two[0].part[0].o.n = n;
    if (n < 1) {
        flux__fail("accumgrad: n is %d, but must be 1 or more", n);
        return flux__bad_rule();
    }
    two[0] = flux_rule_with("AccumGrad", two[0].part[0].o);
    two[1] = rule;
    return flux__chain_rules("accumgrad", 2, two);
}

FLUX_DEF flux_rule flux_mixed_precision(flux_rule rule) {
    flux_rule r = flux__chain_rules("mixed_precision", 1, &rule);
    r.mixed = r.made;
    return r;
}

FLUX__END_LEAN

#endif /* FLUX__NN_RULES_H */
