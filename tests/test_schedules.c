/* Schedules of learning rates: the values of ParameterSchedulers.jl's formulas, worked out by hand or by these formulas
   written out again; in a chain, stepped by it, saved with it, printed. */
#include "test.h"
#include <math.h>
#define PI 3.14159265358979323846

typedef struct { flux_layer base; flux_tensor *p; } bare;
static flux_tensor *bare_call(flux_layer *self, flux_tensor *x) { return flux_sum(flux_mul(((bare *)self)->p, x)); }
FLUX_LAYER(bare, "Bare", bare_call, FLUX_PARAM(p))

static flux_layer *one(void) { return flux_new(bare, .p = flux_full_with(FLUX_SHAPE(1), 0, FLUX_F64)); }
static double at(flux_layer *m) { return flux_item(flux_param(m, "p")); }
static int step(flux_state *s, flux_layer *m) {                /* the gradient is 1 */
    int rc = -1;
    FLUX_SCOPE rc = flux_update(s, m, flux_gradient(flux_call(m, flux_full_with(FLUX_SHAPE(1), 1, FLUX_F64)), m));
    return rc;
}
static double cycle(double a, double b, double g) { return fabs(a - b) * g + fmin(a, b); }

TEST(formulas) {
    flux_schedule c = flux_schedule_constant(0.3), s = flux_schedule_step(1, 0.5, 3), e = flux_schedule_exp(2, 0.9),
                  r = flux_schedule_restarts(0.8, 0.1, 10), k = flux_schedule_cosine(0.8, 0.1, 10), l = flux_schedule_linear(0, 0.5, 4);
    for (int t = 1; t < 40; t++) {
        double x = fmod(t - 1, 10);
        CHECK_NEAR(flux_schedule_at(c, t), 0.3, 0);
        CHECK_NEAR(flux_schedule_at(s, t), pow(0.5, (t - 1) / 3), 1e-15);
        CHECK_NEAR(flux_schedule_at(e, t), 2 * pow(0.9, t - 1), 1e-15);
        CHECK_NEAR(flux_schedule_at(r, t), cycle(0.8, 0.1, (1 + cos(PI * x / 10)) / 2), 1e-15);
        CHECK_NEAR(flux_schedule_at(k, t), t < 11 ? cycle(0.8, 0.1, (1 + cos(PI * x / 10)) / 2) : 0.1, 1e-15);
        /* a warm-up is Triangle(0, 0.5, 8) for as long as that rises */
        CHECK_NEAR(flux_schedule_at(l, t), t < 5 ? cycle(0, 0.5, 2 / PI * fabs(asin(sin(PI * (t - 1) / 8)))) : 0.5, 1e-15);
    }
    CHECK_ERROR(flux_schedule_at(c, 0), "schedule_at: t is 0, but counts from 1");
    CHECK_ERROR(flux_schedule_exp(-1, 0.5), "schedule_exp: start is -1, but must be 0 or more");
    CHECK_ERROR(flux_schedule_step(1, 0.5, 0), "schedule_step: period is 0, but must be from 1 to 1e15");
}

TEST(one_cycle) {
    flux_schedule s = flux_schedule_onecycle(10, 1);           /* 3 steps up, 7 down */
    const double rise[] = { 0.04, 0.28, 0.76 };
    for (int t = 1; t <= 3; t++) CHECK_NEAR(flux_schedule_at(s, t), rise[t - 1], 1e-12);
    for (int t = 4; t <= 11; t++) CHECK_NEAR(flux_schedule_at(s, t), cycle(1, 1e-5, (1 + cos(PI * (t - 4) / 7)) / 2), 1e-12);
    CHECK_NEAR(flux_schedule_at(s, 1000), 1e-5, 1e-12);
    s = flux_schedule_onecycle(2, 1);                          /* the shortest: a step up, a step down */
    CHECK(s.made);
    CHECK_NEAR(flux_schedule_at(s, 1), 0.04, 1e-12);
    CHECK_NEAR(flux_schedule_at(s, 2), 1, 1e-12);
    CHECK_NEAR(flux_schedule_at(s, 3), 1e-5, 1e-12);
    CHECK_ERROR(flux_schedule_onecycle(1, 1), "schedule_onecycle: 1 steps, but it takes 2 or more");
}

TEST(sequences) {
    flux_schedule warm = flux_schedule_linear(0, 1, 2), tail = flux_schedule_exp(1, 0.5);
    flux_schedule s = flux_schedule_sequence(warm, flux_schedule_for(3, flux_schedule_constant(7)), tail);
    const double want[] = { 0, 0.5, 7, 7, 7, 1, 0.5, 0.25 };
    for (int t = 1; t <= 8; t++) CHECK_NEAR(flux_schedule_at(s, t), want[t - 1], 0);
    s = flux_schedule_sequence(flux_schedule_for(4, s), flux_schedule_constant(3));      /* cut within its second phase */
    const double cut[] = { 0, 0.5, 7, 7, 3, 3 };
    for (int t = 1; t <= 6; t++) CHECK_NEAR(flux_schedule_at(s, t), cut[t - 1], 0);
    CHECK_ERROR(flux_schedule_sequence(tail, warm), "schedule 0 has no end; flux_schedule_for gives it one");
    for (int i = 1; i < 5; i++) s = flux_schedule_sequence(flux_schedule_for(100 * i, s), warm);
    CHECK(flux_schedule_sequence(flux_schedule_for(1000, s), warm).made);      /* eight phases */
    CHECK_ERROR(flux_schedule_sequence(flux_schedule_for(1000, s), warm, warm), "at most 8 phases");
    CHECK_ERROR(flux_schedule_for(0, warm), "schedule_for: steps is 0, but must be 1 or more");
}

TEST(stepped_by_its_chain) {
    flux_schedule s = flux_schedule_sequence(flux_schedule_linear(0, 1, 2), flux_schedule_exp(1, 0.5));
    flux_layer *m = one();
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipgrad(0.5), flux_scheduled(flux_descent(), s)), m);
    double p = 0;
    for (int t = 1; t <= 6; t++) {
        CHECK_NEAR(flux_rate(opt), flux_schedule_at(s, t), 0);
        CHECK(step(opt, m) == 0);
        CHECK_NEAR(at(m), p -= 0.5 * flux_schedule_at(s, t), 1e-15);
    }
    CHECK_ERROR(flux_adjust(opt, .eta = 1), "adjust: eta follows the schedule in OptimiserChain(");
    CHECK_ERROR(flux_adjust(opt, .decay = 1), "adjust: decay follows the schedule");
    CHECK(flux_adjust(opt, .delta = 0.25) == 0);
    CHECK_NEAR(flux_rate(flux_setup(flux_adam(0.25), m)), 0.25, 0);
    CHECK_ERROR(flux_rate(flux_setup(flux_adadelta(), m)), "rate: no rule of this state has an eta");
    /* an accumulated step is one step of the schedule, wherever the schedule was put */
    flux_state *two = flux_setup(flux_scheduled(flux_accumgrad(2, flux_descent()), flux_schedule_exp(1, 0.5)), m);
    for (int i = 0; i < 4; i++) CHECK(step(two, m) == 0);
    CHECK_NEAR(flux_rate(two), 0.25, 0);
}

TEST(refused) {
    flux_schedule c = flux_schedule_constant(1);
    CHECK_ERROR(flux_scheduled(flux_adadelta(), c), "scheduled: no rule of this chain has an eta");
    CHECK_ERROR(flux_scheduled(flux_scheduled(flux_adam(), c), c), "scheduled: this rule has a schedule already");
    CHECK_ERROR(flux_scheduled(flux_optimiser_chain(flux_adam(), flux_descent()), c), "several rules of this chain have an eta");
    flux_rule rules[FLUX_MAX_RULES - 1];
    for (int i = 0; i < FLUX_MAX_RULES - 1; i++) rules[i] = i ? flux_clipgrad(1) : flux_descent();
    CHECK(flux_scheduled(flux_optimiser_chain_with(FLUX_MAX_RULES - 1, rules), c).made);      /* as many as there can be */
    CHECK_ERROR(flux_scheduled(flux_optimiser_chain_with(FLUX_MAX_RULES - 1, rules), flux_schedule_sequence(flux_schedule_linear(0, 1, 4), c)),
        "scheduled: a chain has at most 16 rules and phases");
    flux_layer *m = one();                                     /* two rules, each by its own schedule */
    flux_state *s = flux_setup(flux_optimiser_chain(flux_scheduled(flux_descent(), flux_schedule_exp(1, 0.5)),
                                                    flux_scheduled(flux_descent(), flux_schedule_step(4, 0.5, 2))), m);
    CHECK(step(s, m) == 0 && step(s, m) == 0 && step(s, m) == 0);
    CHECK_NEAR(at(m), -(1 * 4 + 0.5 * 4 + 0.25 * 2), 1e-15);
}

static double falling(int64_t t, void *user) { return *(double *)user / (double)t; }
static double broken(int64_t t, void *user) { return (void)user, t < 2 ? 1 : (double)NAN; }
TEST(functions) {
    double top = 6;
    flux_layer *m = one();
    flux_state *s = flux_setup(flux_scheduled(flux_descent(), flux_schedule_of(falling, &top)), m);
    for (int i = 0; i < 3; i++) CHECK(step(s, m) == 0);
    CHECK_NEAR(at(m), -11, 1e-15);
    s = flux_setup(flux_scheduled(flux_descent(), flux_schedule_of(broken, NULL)), m);
    CHECK(step(s, m) == 0);
    CHECK_ERROR(step(s, m), "schedule: the rate of step 2 is nan");
    CHECK_NEAR(at(m), -12, 1e-15);
    CHECK_ERROR(flux_schedule_of(NULL, NULL), "schedule_of");
}

/* A phase that is over is not asked again, and one that follows not before. */
static double noted(int64_t t, void *user) { return *(int64_t *)user = t, 1 / (double)t; }
TEST(functions_in_their_turn) {
    int64_t first = 0, second = 0;
    flux_schedule s = flux_schedule_sequence(flux_schedule_for(2, flux_schedule_of(noted, &first)),
        flux_schedule_for(3, flux_schedule_of(noted, &second)), flux_schedule_constant(2));
    flux_layer *m = one();
    flux_state *opt = flux_setup(flux_scheduled(flux_descent(), s), m);
    const double moved[] = { 1, 0.5, 1, 0.5, 1 / 3.0, 2, 2 };
    double p = 0;
    for (int t = 0; t < 7; t++) {
        CHECK(step(opt, m) == 0);
        CHECK_NEAR(at(m), p -= moved[t], 1e-15);
        CHECK(first == (t < 2 ? t + 1 : 2) && second == (t < 2 ? 0 : t < 5 ? t - 1 : 3));
    }
}

TEST(saved_and_printed) {
    char text[300], back[300];
    const char *file = "build/test_schedules.safetensors";
    flux_layer *m = one(), *n = one();
    flux_rule rule = flux_scheduled(flux_momentum(), flux_schedule_cosine(0.5, 0.1, 10));
    flux_state *a = flux_setup(rule, m), *b = flux_setup(rule, n);
    for (int i = 0; i < 5; i++) CHECK(step(a, m) == 0);
    flux_state_text(a, text, sizeof text);
    CHECK_STR(text, "OptimiserChain(Cosine(0.5, finish=0.1, period=10, steps=0), Momentum(0.5, rho=0.9))"
                    "  # of 1 array, 1 parameters, eta 0.3 next");
    CHECK(flux_save(a, file) == 0 && flux_load(b, file) == 0);
    flux_state_text(b, back, sizeof back);
    CHECK_STR(back, text);
    CHECK_NEAR(flux_rate(b), flux_rate(a), 0);
    CHECK(step(a, m) == 0 && flux_set_param(n, "p", flux_param(m, "p")) == 0);
    CHECK(step(b, n) == 0 && step(a, m) == 0);
    CHECK_NEAR(flux_rate(b), flux_schedule_at(flux_schedule_cosine(0.5, 0.1, 10), 7), 0);
    remove(file);
}

TEST_MAIN()
