/* Optimisers: every rule against the golden values of Optimisers.jl and against five steps of PyTorch or of the formula
   written out in Python (fixtures/make_optim.py); what flux_update does to a model, and what it leaves alone. */
#include "test.h"
#include "fixtures/optim.h"
#include <float.h>

/* ------------------------------------------------------------------ models of bare parameters, with gradients of our choice */

typedef struct { flux_layer base; flux_tensor *p; } bare;
typedef struct { flux_layer base; flux_tensor *p, *q; } pair;
static flux_tensor *bare_call(flux_layer *self, flux_tensor *x) { return flux_sum(flux_mul(((bare *)self)->p, x)); }
static flux_tensor *pair_call(flux_layer *self, flux_tensor *x) {
    pair *m = (pair *)self;
    return flux_add(flux_sum(flux_mul(m->p, x)), flux_mul(flux_sum(flux_mul(m->q, x)), 2));
}
FLUX_LAYER(bare, "Bare", bare_call, FLUX_PARAM(p))
FLUX_LAYER(pair, "Pair", pair_call, FLUX_PARAM(p), FLUX_PARAM(q))

static flux_tensor *number(double v, flux_dtype t) { return flux_full_with(FLUX_SHAPE(1), v, t); }
static flux_layer *bare_of(flux_tensor *p) { return flux_new(bare, .p = p); }
static flux_layer *pair_of(flux_tensor *p, flux_tensor *q) { return flux_new(pair, .p = p, .q = q); }
static double at(flux_layer *m, const char *path) { return flux_item(flux_param(m, path)); }

/* One step in which the gradient of m's p is g (and of its q twice that). */
static int step_by(flux_state *opt, flux_layer *m, flux_tensor *g) {
    int rc = -1;
    FLUX_SCOPE rc = flux_update(opt, m, flux_gradient(flux_call(m, g), m));
    return rc;
}
static int step(flux_state *opt, flux_layer *m, double g) {
    int rc = -1;
    FLUX_SCOPE rc = step_by(opt, m, number(g, flux_dtype_of(flux_param(m, "p"))));
    return rc;
}

static char seen[2000];
static void remember(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)user;
    snprintf(seen, sizeof seen, "%s: %s", id, message);
}

/* ------------------------------------------------------------------ rules */

static flux_rule rule_named(const char *name) {
    flux_rule_opts defaults;
    memset(&defaults, 0, sizeof defaults);
    if (!strcmp(name, "RMSProp centred")) return flux_rmsprop(.centred = true);
    if (!strcmp(name, "AdamW")) return flux_adamw(.lambda = 0.1);
    if (!strcmp(name, "AdamW uncoupled")) return flux_adamw(.lambda = 0.1, .couple = FLUX_OFF);
    if (!strcmp(name, "chain"))
        return flux_optimiser_chain(flux_clipgrad(.delta = 2), flux_weightdecay(.lambda = 0.01), flux_clipnorm(.omega = 3), flux_adam(0.1));
    return flux_rule_with(name, defaults);
}

/* Behaviour, section 6.2: from 1 with the gradients 0.5, -0.3, 0.8. */
TEST(golden_values) {
    static const struct { const char *rule; double p[3]; } golden[] = {
        { "Descent", { 0.95, 0.98, 0.90 } },
        { "Momentum", { 0.995, 0.9935, 0.98415 } },
        { "Nesterov", { 0.99905, 0.999215, 0.9975735 } },
        { "RMSProp", { 0.9968377225, 0.9985280310, 0.9958955119 } },
        { "RMSProp centred", { 0.9966666669, 0.9983630447, 0.9955963151 } },
        { "Rprop", { 0.999, 0.999, 0.9985 } },
        { "Adam", { 0.999, 0.9988085020, 0.9982049656 } },
        { "Lion", { 0.999, 1.0, 0.999 } },
        { "RAdam", { 0.9995, 0.9994210526, 0.9990760342 } },
        { "AdaMax", { 0.999, 0.9988419472, 0.9984106742 } },
        { "OAdam", { 0.998, 0.9991637308, 0.9975646060 } },
        { "AdaGrad", { 0.9000000040, 0.9514495779, 0.8706373756 } },
        { "AdaDelta", { 0.9996837723, 0.9999228180, 0.9995089655 } },
        { "AMSGrad", { 0.9968377870, 0.9960240104, 0.9930363793 } },
        { "NAdam", { 0.9985255784, 0.9987878711, 0.9978429651 } },
        { "AdamW", { 0.9989, 0.9986086120, 0.9979052148 } },
        { "AdamW uncoupled", { 0.8990, 0.8089085020, 0.7274141154 } },
        { "AdaBelief", { 0.9988888889, 0.9986856138, 0.9980179740 } },
    };
    static const double g[3] = { 0.5, -0.3, 0.8 };
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) FLUX_SCOPE {
        flux_layer *wide = bare_of(number(1, FLUX_F64)), *m = bare_of(number(1, FLUX_F32));
        flux_state *wide_opt = flux_setup(rule_named(golden[k].rule), wide), *opt = flux_setup(rule_named(golden[k].rule), m);
        for (int t = 0; t < 3; t++) {
            int before = test_bad;
            CHECK(step(wide_opt, wide, g[t]) == 0 && step(opt, m, g[t]) == 0);
            CHECK_NEAR(at(wide, "p"), golden[k].p[t], 6e-11);
            CHECK_NEAR(at(m, "p"), golden[k].p[t], 3e-7);
            if (test_bad > before) fprintf(stderr, "    %s, step %d\n", golden[k].rule, t + 1);
        }
    }
}

static void five_steps(size_t k, flux_dtype dtype, double tolerance) {
    flux_tensor *start = flux_to_dtype(flux_from(optim_start, 3, 4), dtype);
    flux_layer *m = bare_of(start);
    flux_state *opt = flux_setup(rule_named(optim_steps[k].rule), m);
    for (int t = 0; t < 5; t++) FLUX_SCOPE {
        int before = test_bad;
        flux_tensor *g = flux_to_dtype(flux_from(optim_gradient[t], 3, 4), dtype);
        CHECK(step_by(opt, m, g) == 0);
        CHECK_DATA(flux_param(m, "p"), optim_steps[k].p[t], tolerance);
        if (test_bad > before) fprintf(stderr, "    %s in %s, step %d\n", optim_steps[k].rule, flux_dtype_name(dtype), t + 1);
    }
    CHECK_DATA(start, optim_start, dtype == FLUX_F64 ? 0 : 1e-7);    /* somebody still holds it: it has not changed */
}

TEST(five_steps_in_double) {
    for (size_t k = 0; k < sizeof optim_steps / sizeof *optim_steps; k++) FLUX_SCOPE five_steps(k, FLUX_F64, 2e-10);
}

TEST(five_steps_in_float) {
    for (size_t k = 0; k < sizeof optim_steps / sizeof *optim_steps; k++) FLUX_SCOPE five_steps(k, FLUX_F32, 3e-6);
}

/* In a world of one a distributed rule is the rule: of any bucket, with shares of states or without, and behind it the
   accumulation of gradients. What is saved by its rank loads like any other file. */
TEST(distributed_rules_of_one_rank) {
    const char *path = "build/test_optim.alone.safetensors";
    flux_comm *c = flux_distributed();
    test_kept++;
    REQUIRE(c);
    CHECK_STR(flux_comm_name(c), "alone");
    for (size_t k = 0; k < sizeof optim_steps / sizeof *optim_steps; k++) FLUX_SCOPE {
        flux_rule rule = k % 2 ? flux_distributed_optimiser(c, rule_named(optim_steps[k].rule), .bucket = 1)
                               : flux_distributed_optimiser(c, rule_named(optim_steps[k].rule), .shard = true);
        flux_layer *m = bare_of(flux_to_dtype(flux_from(optim_start, 3, 4), FLUX_F64)), *other = bare_of(flux_to_dtype(flux_zeros(3, 4), FLUX_F64));
        flux_state *opt = flux_setup(rule, m), *later = flux_setup(rule, m);
        for (int t = 0; t < 5; t++) FLUX_SCOPE {
            if (t == 3) {                                      /* goes on from the file, with the state that it had */
                CHECK(flux_distributed_save(c, opt, path) == 0 && flux_load(later, path) == 0);
                CHECK(flux_synchronize(c, later) == later && flux_synchronize(c, m) == m);
            }
            CHECK(step_by(t < 3 ? opt : later, m, flux_to_dtype(flux_from(optim_gradient[t], 3, 4), FLUX_F64)) == 0);
            CHECK_DATA(flux_param(m, "p"), optim_steps[k].p[t], 2e-10);
        }
        CHECK(flux_distributed_save(c, m, path) == 0 && flux_load(other, path) == 0);
        CHECK_DATA(flux_param(other, "p"), optim_steps[k].p[4], 2e-10);
        CHECK(flux_distributed_save(c, flux_param(m, "p"), path) == 0);
        CHECK_DATA(flux_load_tensor(path, NULL), optim_steps[k].p[4], 2e-10);
    }
    flux_layer *m = bare_of(number(1, FLUX_F64));
    flux_rule accumulated = flux_distributed_optimiser(c, flux_accumgrad(2, flux_optimiser_chain(flux_weightdecay(0.01), flux_descent(0.1))));
    flux_state *opt = flux_setup(accumulated, m);
    CHECK(step(opt, m, 3) == 0 && at(m, "p") == 1 && step(opt, m, 1) == 0);
    CHECK_NEAR(at(m, "p"), 1 - 0.1 * (2 + 0.01), 1e-14);
    CHECK_ERROR(flux_distributed_optimiser(c, flux_adam(), .bucket = 0), "distributed_optimiser: .bucket is 0 bytes");
    CHECK_ERROR(flux_distributed_optimiser(NULL, flux_adam()), "distributed_optimiser: argument comm is NULL");
    CHECK_ERROR(flux_distributed_optimiser(c, flux_distributed_optimiser(c, flux_adam(), .shard = true)),
        "distributed_optimiser: the rule is distributed already, and .shard can be in one place only");
    CHECK_ERROR(flux_distributed_optimiser(c, flux_distributed_optimiser(c, flux_adam()), .shard = true), "the rule is distributed already");
    CHECK(flux_distributed_optimiser(c, flux_distributed_optimiser(c, flux_adam())).made);
    flux_rule many[FLUX_MAX_RULES];
    for (int i = 0; i < FLUX_MAX_RULES; i++) many[i] = flux_descent();
    CHECK(flux_distributed_optimiser(c, flux_optimiser_chain_with(FLUX_MAX_RULES - 2, many)).made);
    CHECK_ERROR(flux_distributed_optimiser(c, flux_optimiser_chain_with(FLUX_MAX_RULES - 1, many)),
        "distributed_optimiser: a chain has at most ");
    CHECK_ERROR(flux_synchronize(c, m, .root = 1), "synchronize: .root is 1; there are ranks 0 to 0");
    CHECK_ERROR(flux_synchronize(c, opt, .root = -1), "synchronize: .root is -1; there are ranks 0 to 0");
    CHECK_ERROR(flux_synchronize(c, (flux_layer *)NULL), "synchronize: argument model is NULL");
    CHECK_ERROR(flux_synchronize(c, (flux_state *)NULL), "synchronize: argument state is NULL");
    CHECK_ERROR(flux_distributed_save(NULL, opt, path), "distributed_save: argument comm is NULL");
    CHECK_ERROR(flux_distributed_save(NULL, m, path), "distributed_save: argument comm is NULL");
    CHECK_ERROR(flux_distributed_save(c, m, "build/nowhere/m.safetensors"), "nowhere");
    CHECK(!flux_interrupted(c) && flux_distributed_end(c) == 0);
    CHECK(remove(path) == 0);
}

/* The example in Flux's documentation of setup: two batches, absolute error times 100. */
static flux_tensor *hundredfold(flux_layer *m, flux_tensor *x, flux_tensor *y) {
    return flux_mul(flux_sum(flux_abs(flux_sub(flux_call(m, x), y))), 100);
}
/* Plain tensors: one step against the formula by hand, with gradients by tensor and by model; then the line y = 2 x - 1. */
TEST(variables_are_a_model) {
    flux_tensor *w = flux_values(1, -2), *b = flux_scalar(0.5), *old = w;
    flux_layer *both = flux_variables(&w, &b);
    flux_state *opt = flux_setup(flux_descent(0.1), both);
    flux_tensor *loss = flux_add(flux_sum(flux_mul(flux_square(w), 3)), flux_mul(b, 4));
    CHECK(flux_update(opt, both, flux_gradient(loss, w, b)) == 0);
    CHECK_DATA(w, ((double[]){ 1 - 0.6, -2 + 1.2 }), 1e-6);
    CHECK_NEAR(flux_item(b), 0.1, 1e-6);
    CHECK_DATA(old, ((double[]){ 1, -2 }), 0);
    CHECK(flux_param(both, "layers.0.value") == w && flux_num_params(both) == 3);
    CHECK(flux_update(opt, both, flux_gradient(flux_sum(flux_square(w)), both)) == 0);
    CHECK_DATA(w, ((double[]){ 0.32, -0.64 }), 1e-6);
    CHECK_NEAR(flux_item(b), 0.1, 1e-6);

    flux_tensor *x = flux_linspace(-1, 1, 21), *y = flux_eval(flux_sub(flux_mul(x, 2), 1)), *slope = flux_scalar(0), *shift = flux_scalar(0);
    both = flux_variables(&slope, &shift), opt = flux_setup(flux_adam(0.1), both);
    flux_times (i, 300) flux_update(opt, both, flux_gradient(flux_mse(flux_add(flux_mul(x, slope), shift), y), slope, shift));
    CHECK_NEAR(flux_item(slope), 2, 1e-3);
    CHECK_NEAR(flux_item(shift), -1, 1e-3);

    flux_tensor *none = NULL, **nowhere[1] = { NULL };
    CHECK_ERROR(flux_variables(&w, &none), "variables: argument the tensor of a variable is NULL");
    CHECK_ERROR(flux_variables_with(1, nowhere), "variables: argument the tensor of a variable is NULL");
    CHECK_ERROR(flux_variables_with(33, nowhere), "variables: 33 variables (1 to 32)");
    CHECK_ERROR(flux_call(both, x), "Variables is no function of an input");
}

/* Ten steps of Adam on two tensors: at once, and in two halves between which another process would have loaded model and
   state from a file. Bit for bit the same. */
static void five_adam_steps(flux_state *opt, flux_layer *both, flux_tensor **w, flux_tensor **b) {
    flux_times (i, 5) {
        flux_tensor *loss = flux_add(flux_sum(flux_square(flux_square(*w))), flux_square(flux_sub(*b, 3)));
        CHECK(flux_update(opt, both, flux_gradient(loss, *w, *b)) == 0);
    }
}
static bool equal(flux_tensor *a, flux_tensor *b) { return flux_item(flux_all(flux_eq(a, b))) == 1; }
TEST(variables_are_loaded) {
    flux_tensor *w = flux_values(1, -2), *b = flux_scalar(0.5), *w2 = flux_zeros(2), *b2 = flux_scalar(0), *w1, *b1;
    flux_layer *both = flux_variables(&w, &b), *again = flux_variables(&w2, &b2);
    flux_state *opt = flux_setup(flux_adam(0.1), both), *opt2 = flux_setup(flux_adam(0.7), again);
    five_adam_steps(opt, both, &w, &b);
    CHECK(flux_save_all("build/variables.safetensors", both, opt) == 0);
    CHECK(flux_save(both, "build/variables_alone.safetensors") == 0 && flux_save(opt, "build/variables_state.safetensors") == 0);
    w1 = flux_keep(flux_copy(w)), b1 = flux_keep(flux_copy(b));
    five_adam_steps(opt, both, &w, &b);

    CHECK(flux_load_all_with("build/variables.safetensors", 2, "both, opt", (const void *const[]){ again, opt2 }) == 0);
    CHECK(equal(w2, w1));
    CHECK(equal(b2, b1));
    CHECK(flux_param(again, "layers.0.value") == w2 && flux_param(again, "layers.1.value") == b2);
    five_adam_steps(opt2, again, &w2, &b2);
    CHECK(equal(w2, w));
    CHECK(equal(b2, b));

    CHECK(flux_load(again, "build/variables_alone.safetensors") == 0 && flux_load(opt2, "build/variables_state.safetensors") == 0);
    CHECK(equal(w2, w1));
    five_adam_steps(opt2, again, &w2, &b2);
    CHECK(equal(w2, w));

    CHECK(flux_set_param(again, "layers.1.value", flux_scalar(7)) == 0);
    CHECK(flux_item(b2) == 7);
    CHECK(flux_loadmodel(again, both) == 0);
    CHECK(equal(w2, w));
    CHECK(equal(b2, b));
    CHECK(w2 == flux_param(again, "layers.0.value"));
    flux_layer *ema = flux_averaged(both, .decay = 0.5);          /* a copy leaves the variables alone, however it is changed */
    flux_tensor *held = w;
    CHECK(flux_update_average(ema, both) == 0 && flux_load(flux_child(ema, 0), "build/variables_alone.safetensors") == 0);
    CHECK(flux_set_param(flux_copy_layer(both), "layers.0.value", flux_zeros(2)) == 0 && w == held);
    flux_layer *copy = flux_copy_layer(both);
    CHECK(flux_update(flux_setup(flux_descent(), copy), copy, flux_gradient(flux_sum(flux_param(copy, "layers.0.value")), copy)) == 0);
    CHECK(w == held);
    CHECK(equal(flux_param(flux_child(ema, 0), "layers.0.value"), w1));
    flux_layer *moved = flux_gpu(both);                           /* a model that was moved writes to them as before */
    CHECK(w == held);                                             /* from its first update on */
    CHECK(flux_update(flux_setup(flux_descent(), moved), moved, flux_gradient(flux_sum(flux_param(moved, "layers.0.value")), moved)) == 0);
    CHECK(w == flux_param(moved, "layers.0.value") && w != held);
    remove("build/variables.safetensors"), remove("build/variables_alone.safetensors"), remove("build/variables_state.safetensors");
}

TEST(momentum_of_the_documentation) {
    const double want_w[2] = { 3.038, -2.057 }, want_v[2] = { -2.018, 3.027 };
    double x[4] = { 0.2, -0.3, 0.2, -0.3 }, y[2] = { 0.4, 0.4 };
    flux_layer *m = flux_f64(flux_dense(2, 1, flux_leakyrelu, .init = flux_ones32));
    flux_state *opt = flux_setup(flux_momentum(0.1), m);
    CHECK(flux_train(hundredfold, m, flux_dataloader(flux_from(x, 2, 2), flux_from(y, 1, 2)), opt) == 0);
    CHECK_DATA(flux_weight(m), want_w, 1e-14);
    CHECK_NEAR(flux_item(flux_bias(m)), 10.19, 1e-12);
    REQUIRE(flux_save(opt, "build/test_optim.safetensors") == 0);
    CHECK_DATA(flux_load_tensor("build/test_optim.safetensors", "weight.velocity"), want_v, 1e-12);
    CHECK_NEAR(flux_item(flux_load_tensor("build/test_optim.safetensors", "bias.velocity")), -10.09, 1e-12);
    remove("build/test_optim.safetensors");
}

/* A weight whose gradient stays 0 (a dead unit, a word that doesn't come): 0.9^t is below 1.2e-38 after 830 steps, where some
   processors' arithmetic is a hundred times slower. Such numbers become 0 in an update as in what is done by hand, on all
   threads, and the caller's own arithmetic is as it was. */
static void fade(flux_rule rule, const char *name, int64_t n) {
    flux_layer *m = bare_of(flux_full_with(FLUX_SHAPE(n), 1, FLUX_F32));
    flux_state *opt = flux_setup(rule, m);
    for (int t = 0; t < 900; t++)
        FLUX_SCOPE REQUIRE(step_by(opt, m, flux_full_with(FLUX_SHAPE(n), t ? 0 : 1e-2, FLUX_F32)) == 0);
    REQUIRE(flux_save(opt, "build/test_optim.safetensors") == 0);
    const float *x = (const float *)flux_data(flux_load_tensor("build/test_optim.safetensors", name));
    REQUIRE(x);
    for (int64_t i = 0; i < n; i++) CHECK(x[i] == 0 || (fabs(x[i]) > FLT_MIN && fabs(x[i]) < 1e-36));   /* 0.1 m may be flushed first */
    remove("build/test_optim.safetensors");
}
TEST(what_fades_is_no_denormal_number) {
    ONLY_ON_CPU();
#if !defined(__x86_64__) && !defined(_M_X64)
    SKIP("numbers below the smallest normal one are flushed on x86 processors only");
#endif
    flux_tensor *least = flux_full_with(FLUX_SHAPE(100000), 1.2e-38, FLUX_F32), *x = flux_mul(least, 0.1);
    const float part = 1.2e-38f * 0.1f;
    fade(flux_momentum(0.01), "p.velocity", 3);
    fade(flux_adam(), "p.m", 100000);
    fade(flux_nesterov(), "p.velocity", 1);
    for (int i = 0; i < 100000; i += 33333) CHECK(((const float *)flux_data(x))[i] == 0 && part > 0);
}
static volatile float faded_least = 1.2e-38f;
TEST(what_fades_by_hand_is_what_fades_in_an_update) {
    ONLY_ON_CPU();
    static float start[40];
    for (int i = 0; i < 40; i++) start[i] = (float)(i - 20) * 0.013f;
    flux_tensor *p = flux_from(start, 40), *v = flux_zeros(40);
    flux_layer *m = bare_of(flux_from(start, 40));
    flux_state *opt = flux_setup(flux_momentum(0.01), m);
    for (int t = 0; t < 1000; t++) FLUX_SCOPE {
        flux_tensor *g = t < 3 ? flux_from(start, 40) : flux_zeros(40);
        REQUIRE(step_by(opt, m, g) == 0);
        v = flux_keep(flux_eval(flux_add(flux_mul(v, 0.9), g))), p = flux_keep(flux_eval(flux_add(flux_mul(v, -0.01), p)));
    }
    REQUIRE(flux_save(opt, "build/test_optim.safetensors") == 0);
    for (int i = 0; i < 40; i++) CHECK_NEAR(flux_floats(flux_param(m, "p"))[i], flux_floats(p)[i], 1e-6);
    flux_tensor *velocity = flux_load_tensor("build/test_optim.safetensors", "p.velocity");
    for (int i = 0; i < 40; i++) CHECK(flux_floats(velocity)[i] == flux_floats(v)[i]);
#if defined(__x86_64__) || defined(_M_X64)     /* other processors keep such numbers, in both */
    for (int i = 0; i < 40; i++) CHECK(fabsf(flux_floats(v)[i]) > FLT_MIN || flux_floats(v)[i] == 0);
#endif
    CHECK(faded_least * 0.1f > 0);
    remove("build/test_optim.safetensors");
}

/* The examples of Optimisers.jl. */
TEST(chain_clips_before_discounting) {
    const double want[3] = { -0.03, -0.1, -0.1 };
    double g[3] = { 0.3, 1, 7 };
    flux_layer *m = bare_of(flux_full_with(FLUX_SHAPE(3), 0, FLUX_F64));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipgrad(1.0), flux_descent(0.1)), m);
    CHECK(step_by(opt, m, flux_from(g, 3)) == 0);
    CHECK_DATA(flux_param(m, "p"), want, 1e-15);
}

TEST(accumulation_applies_every_nth_mean) {
    flux_layer *m = bare_of(number(1, FLUX_F64)), *m2 = bare_of(number(2, FLUX_F64));
    flux_rule rule = flux_accumgrad(2, flux_optimiser_chain(flux_weightdecay(0.01), flux_descent(0.1)));
    flux_state *opt = flux_setup(rule, m), *opt2 = flux_setup(rule, m2);
    CHECK(step(opt, m, 33) == 0 && step(opt2, m2, 0) == 0);
    CHECK(at(m, "p") == 1 && at(m2, "p") == 2);
    CHECK(step(opt, m, 0) == 0 && step(opt2, m2, 444) == 0);
    CHECK_NEAR(at(m, "p"), -0.651, 1e-14);
    CHECK_NEAR(at(m2, "p"), -20.202002, 1e-7);                 /* printed there in float32 */
    CHECK(step(opt, m, 1) == 0);                               /* a new round starts from nothing */
    CHECK_NEAR(at(m, "p"), -0.651, 1e-14);
    CHECK(step(opt, m, 3) == 0);
    CHECK_NEAR(at(m, "p"), -0.651 - 0.1 * (2 - 0.00651), 1e-14);
}

TEST(accumulated_adam_counts_only_its_own_steps) {
    flux_layer *a = bare_of(number(1, FLUX_F64)), *b = bare_of(number(1, FLUX_F64));
    flux_state *one = flux_setup(flux_adam(0.01), a), *three = flux_setup(flux_accumgrad(3, flux_adam(0.01)), b);
    for (int t = 0; t < 4; t++) {
        CHECK(step(one, a, t - 1.5) == 0);
        for (int k = 0; k < 3; k++) CHECK(step(three, b, t - 1.5 + (k - 1)) == 0);
        CHECK_NEAR(at(b, "p"), at(a, "p"), 1e-15);
    }
}

TEST(clipnorm_by_each_norm) {
    double g[4] = { 3, -4, 0, 12 };                            /* norms 19, 13 and 12, and cube root of 1819 */
    static const struct { double p, norm; } norms[] = { { 1, 19 }, { 2, 13 }, { HUGE_VAL, 12 }, { 3, 12.20714 } };
    for (int k = 0; k < 4; k++) FLUX_SCOPE {
        double want[4];
        flux_layer *m = bare_of(flux_full_with(FLUX_SHAPE(4), 0, FLUX_F64));
        flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(.omega = 2, .p = norms[k].p), flux_descent(1)), m);
        CHECK(step_by(opt, m, flux_from(g, 4)) == 0);
        for (int i = 0; i < 4; i++) want[i] = -g[i] * 2 / norms[k].norm;
        CHECK_DATA(flux_param(m, "p"), want, 1e-5);
    }
    flux_layer *m = bare_of(flux_full_with(FLUX_SHAPE(4), 0, FLUX_F64));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(13.5), flux_descent(1)), m);
    const double whole[4] = { -3, 4, 0, -12 };
    CHECK(step_by(opt, m, flux_from(g, 4)) == 0);
    CHECK_DATA(flux_param(m, "p"), whole, 0);                  /* shorter than omega: not touched */
    g[2] = (double)NAN;
    CHECK_ERROR(step_by(opt, m, flux_from(g, 4)), "clipnorm: the gradient of p has the 2-norm nan");
    CHECK_DATA(flux_param(m, "p"), whole, 0);
}

/* The gradients of p and q are g and 2 g; together their norms are 3 sqrt(5), 9, 6 and 3 cbrt(9). */
TEST(clipnorm_by_the_norm_of_all_gradients) {
    static const struct { double p, norm; } norms[] = { { 2, 6.7082039324993694 }, { 1, 9 }, { HUGE_VAL, 6 }, { 3, 6.2402514691557 } };
    for (int k = 0; k < 4; k++) FLUX_SCOPE {
        flux_layer *m = pair_of(number(0, FLUX_F64), number(0, FLUX_F64));
        flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(2, .p = norms[k].p, .global = true), flux_descent(1)), m);
        CHECK(step(opt, m, 3) == 0);
        CHECK_NEAR(at(m, "p"), -3 * 2 / norms[k].norm, 1e-12);
        CHECK_NEAR(at(m, "q"), -6 * 2 / norms[k].norm, 1e-12);
        CHECK(flux_adjust(opt, .omega = 100) == 0 && step(opt, m, 3) == 0);
        CHECK_NEAR(at(m, "p"), -3 * 2 / norms[k].norm - 3, 1e-12);       /* shorter than omega: not touched */
    }
    flux_layer *m = pair_of(number(0, FLUX_F64), number(0, FLUX_F64));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipnorm(1, .global = true), flux_descent(1)), m);
    CHECK(step(opt, m, 0.6e154) == 0);                         /* whose squares would overflow */
    CHECK_NEAR(at(m, "q"), -2 / sqrt(5), 1e-12);
    CHECK_ERROR(step(opt, m, (double)INFINITY), "clipnorm: the gradient of p has the 2-norm inf");
    CHECK_NEAR(at(m, "q"), -2 / sqrt(5), 1e-12);
    CHECK_ERROR(flux_adjust(opt, .global = false), "global can't be changed");
    CHECK_ERROR(flux_adam(.global = true), "adam: Adam has no global");
}

TEST(empty_chain_subtracts_the_gradient) {
    flux_layer *m = bare_of(number(1, FLUX_F32));
    flux_state *opt = flux_setup(flux_optimiser_chain_with(0, NULL), m);
    CHECK(step(opt, m, 0.25) == 0);
    CHECK(at(m, "p") == 0.75);
}

TEST(decays) {
    flux_layer *m = bare_of(number(-2, FLUX_F64));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_weightdecay(0.5), flux_signdecay(0.25), flux_descent(1)), m);
    CHECK(step(opt, m, 1) == 0);
    CHECK_NEAR(at(m, "p"), -2 - (1 - 0.5 * 2 - 0.25), 1e-15);
}

TEST(centred_rmsprop_of_equal_gradients_is_finite) {
    flux_layer *m = bare_of(flux_ones(64));
    flux_state *opt = flux_setup(flux_rmsprop(.centred = true), m);
    for (int t = 0; t < 400; t++) CHECK(step_by(opt, m, flux_full(0.1 + 0.37, 64)) == 0);
    CHECK(fabs(flux_item(flux_sum(flux_param(m, "p")))) < 1e30);
}

/* ------------------------------------------------------------------ sixteen bits */

TEST(mixed_precision_keeps_masters) {
    flux_layer *plain = bare_of(number(1, FLUX_F16)), *mixed = bare_of(number(1, FLUX_F16)), *brain = bare_of(number(1, FLUX_BF16));
    flux_state *a = flux_setup(flux_descent(1e-4), plain), *b = flux_setup(flux_mixed_precision(flux_descent(1e-4)), mixed);
    flux_state *c = flux_setup(flux_mixed_precision(flux_descent(1e-4)), brain);
    for (int t = 0; t < 200; t++) CHECK(step(a, plain, 1) == 0 && step(b, mixed, 1) == 0 && step(c, brain, 1) == 0);
    CHECK(at(plain, "p") == 1);                                /* each step is less than half of what f16 can tell from 1 */
    CHECK_NEAR(at(mixed, "p"), 0.98, 3e-4);
    CHECK_NEAR(at(brain, "p"), 0.98, 2e-3);
    CHECK(flux_dtype_of(flux_param(mixed, "p")) == FLUX_F16 && flux_dtype_of(flux_param(brain, "p")) == FLUX_BF16);
}

TEST(masters_follow_a_parameter_that_was_replaced) {
    flux_layer *m = bare_of(number(1, FLUX_F16));
    flux_state *opt = flux_setup(flux_mixed_precision(flux_descent(0.5)), m);
    CHECK(step(opt, m, 1) == 0);
    CHECK(at(m, "p") == 0.5);
    CHECK(flux_set_param(m, "p", number(8, FLUX_F16)) == 0);
    CHECK(step(opt, m, 1) == 0);
    CHECK(at(m, "p") == 7.5);
}

TEST(half_states_do_not_underflow) {                           /* (1e-4)^2 is 0 in f16; v must not be */
    flux_layer *m = bare_of(number(0, FLUX_F16));
    flux_state *opt = flux_setup(flux_adam(0.01), m);
    for (int t = 0; t < 3; t++) CHECK(step(opt, m, 1e-4) == 0);
    CHECK_NEAR(at(m, "p"), -0.03, 2e-3);
}

TEST(half_epsilon_is_raised) {                                 /* a gradient of 2^-24 with epsilon 1e-7 or 1e-8 */
    double g = ldexp(1, -24);
    flux_layer *m = bare_of(number(0, FLUX_F16)), *mixed = bare_of(number(0, FLUX_F16));
    flux_state *opt = flux_setup(flux_adam(0.01), m), *masters = flux_setup(flux_mixed_precision(flux_adam(0.01)), mixed);
    CHECK(step(opt, m, g) == 0 && step(masters, mixed, g) == 0);
    CHECK_NEAR(at(m, "p"), -0.01 * g / (g + 1e-7), 2e-6);
    CHECK_NEAR(at(mixed, "p"), -0.01 * g / (g + 1e-8), 2e-5);
}

/* Adam and AdamW over several blocks of numbers and a rest, where g comes from memory and where it is a product's block, and
   where it is multiplied by a number first, which the step does; not where something else wants the product. */
static void by_hand(flux_rule_opts o, const double *g, double *p, double *m, double *v, int n, int t) {
    for (int i = 0; i < n; i++) {
        m[i] += (1 - 0.9) * (g[i] - m[i]), v[i] += (1 - 0.999) * (g[i] * g[i] - v[i]);
        p[i] -= o.eta * (m[i] / (1 - pow(0.9, t)) / (sqrt(v[i] / (1 - pow(0.999, t))) + 1e-8) + o.lambda * p[i]);
    }
}
TEST(adam_of_many_numbers) {
    enum { ROWS = 97, COLUMNS = 101, N = ROWS * COLUMNS };
    static double g[N], p[N], m[N], v[N];
    for (int way = 0; way < 12; way++) {
        const bool product = way % 4 < 2;
        const double scale = way < 4 ? 1 : -0.375;
        flux_rule_opts o = { .eta = 0.01, .lambda = way % 2 ? 0.1 : 0 };
        flux_tensor *a = flux_eval(flux_randn(ROWS, 5)), *b = flux_eval(flux_randn(COLUMNS, 5)), *d = flux_matmul(a, flux_transpose(b));
        const double *exact = (const double *)flux_data(flux_cpu(flux_to_dtype(d, FLUX_F64)));
        flux_layer *net = bare_of(flux_eval(flux_randn(ROWS, COLUMNS)));
        flux_state *opt = flux_setup(way % 2 ? flux_adamw(o.eta, .lambda = o.lambda) : flux_adam(o.eta), net);
        memcpy(p, flux_data(flux_cpu(flux_to_dtype(flux_param(net, "p"), FLUX_F64))), sizeof p);
        memset(m, 0, sizeof m), memset(v, 0, sizeof v);
        for (int t = 1; t <= 3; t++) FLUX_SCOPE {
            flux_tensor *x = flux_eval(flux_mul(b, (double)t)), *w = flux_param(net, "p"), *scaled = way < 4 ? w : flux_mul(w, scale);
            flux_tensor *loss = flux_sum(product ? flux_mul(flux_matmul(flux_transpose(a), scaled), flux_transpose(x)) : flux_mul(scaled, flux_eval(flux_mul(d, (double)t))));
            for (int i = 0; i < N; i++) g[i] = exact[i] * t * scale;
            flux_grads *grads = flux_gradient(loss, net);
            flux_tensor *kept = way < 8 ? NULL : flux_mul(flux_grad_param(grads, net, "p"), 1.0);
            CHECK(flux_update(opt, net, grads) == 0);
            if (kept) CHECK_DATA(kept, g, 1e-4);
            by_hand(o, g, p, m, v, N, t);
        }
        CHECK_DATA(flux_param(net, "p"), p, 2e-5);
    }
}

/* ------------------------------------------------------------------ what an update does to a model */

TEST(no_gradient_no_change) {
    flux_layer *m = pair_of(number(1, FLUX_F64), number(1, FLUX_F64));
    flux_state *opt = flux_setup(flux_adamw(0.1, .lambda = 0.5), m);
    for (int t = 0; t < 3; t++) FLUX_SCOPE {                   /* the loss knows nothing of q */
        flux_tensor *loss = flux_sum(flux_mul(flux_param(m, "p"), 2));
        CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
    }
    CHECK(at(m, "q") == 1 && at(m, "p") < 1);                  /* no decay, no momentum */
    CHECK(step(opt, m, 1) == 0);
    CHECK_NEAR(at(m, "q"), 1 - 0.1 * (1 + 0.5), 1e-8);         /* its first step, with the first step's correction */
}

TEST(no_gradient_at_all_is_a_warning) {
    flux_layer *m = bare_of(number(1, FLUX_F32));
    flux_state *opt = flux_setup(flux_descent(), m);
    flux_tensor *other = number(2, FLUX_F32);
    seen[0] = 0;
    flux_silence(NULL);
    flux_on_log(remember, NULL);
    CHECK(flux_update(opt, m, flux_gradient(flux_sum(other), m)) == 0);
    CHECK_STR(seen, "update.nothing: update: the loss depends on no parameter of this Bare");
    seen[0] = 0;
    flux_freeze(m);                                            /* meant to be left alone: nothing to warn of */
    flux_silence(NULL);
    CHECK(step(opt, m, 1) == 0);
    CHECK_STR(seen, "");
    flux_on_log(NULL, NULL);
    CHECK(at(m, "p") == 1);
}

TEST(zero_gradient_is_a_gradient) {
    flux_layer *m = bare_of(number(1, FLUX_F64));
    flux_state *opt = flux_setup(flux_adamw(0.1, .lambda = 0.5), m);
    CHECK(step(opt, m, 0) == 0);
    CHECK_NEAR(at(m, "p"), 0.95, 1e-15);
}

TEST(freeze_and_thaw) {
    flux_layer *first = flux_dense(2, 2, .init = flux_ones32), *m = flux_chain(first, flux_dense(2, 1, .init = flux_ones32));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_weightdecay(0.1), flux_descent(0.1)), m);
    flux_freeze(first);
    for (int t = 0; t < 2; t++) FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_call(m, flux_ones(2, 3))), m)) == 0);
    CHECK_NEAR(flux_at(flux_weight(first), 0, 0), 1, 0);
    CHECK(flux_at(flux_param(m, "layers.1.weight"), 0, 0) < 0);
    flux_thaw(first);
    FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_call(m, flux_ones(2, 3))), m)) == 0);
    CHECK(flux_at(flux_weight(first), 0, 0) != 1);
}

TEST(tied_tensors_are_one) {
    flux_tensor *w = number(1, FLUX_F64);
    flux_layer *m = pair_of(w, w);
    flux_state *opt = flux_setup(flux_momentum(0.1, .rho = 0.5), m);
    CHECK(step(opt, m, 1) == 0);                               /* 1 from p, 2 from q: 3 */
    CHECK_NEAR(at(m, "p"), 0.7, 1e-15);
    CHECK(flux_param(m, "p") == flux_param(m, "q"));
    CHECK(step(opt, m, 0) == 0);
    CHECK_NEAR(at(m, "q"), 0.55, 1e-15);
    CHECK(flux_param(m, "p") == flux_param(m, "q"));
    CHECK(flux_item(w) == 1);
    char text[200];
    flux_state_text(opt, text, sizeof text);
    CHECK(strstr(text, "1 array, 1 parameter") != NULL);
}

TEST(a_layer_that_stands_twice) {
    flux_layer *d = flux_dense(2, 2, .init = flux_ones32, .bias = FLUX_OFF), *m = flux_chain(d, d);
    flux_tensor *held = flux_copy(flux_weight(d));
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    flux_set_param(d, "weight", held);                         /* held here as well: an update must not write into it */
    for (int t = 0; t < 3; t++) FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_call(m, flux_ones(2, 1))), m)) == 0);
    const double ones[4] = { 1, 1, 1, 1 };
    CHECK_DATA(held, ones, 0);
    double w = 1;                                              /* loss 8 w^2, so its gradient by each of four weights is 4 w */
    for (int t = 0; t < 3; t++) w -= 0.1 * 4 * w;
    const double want[4] = { w, w, w, w };
    CHECK_DATA(flux_weight(d), want, 2e-7);
}

TEST(transposed_ties_stay_views) {
    double start[6] = { 1, 2, 3, 4, 5, 6 };
    flux_tensor *w = flux_from(start, 2, 3);
    flux_layer *m = pair_of(flux_transpose(w), w);             /* the view stands first */
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    for (int t = 0; t < 2; t++) FLUX_SCOPE {
        flux_tensor *p = flux_param(m, "p"), *q = flux_param(m, "q");
        flux_tensor *loss = flux_add(flux_sum(flux_mul(p, flux_transpose(flux_from(start, 2, 3)))), flux_sum(q));
        CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
    }
    double want[6], turned[6];
    for (int i = 0; i < 6; i++) want[i] = start[i] - 0.2 * (start[i] + 1);
    for (int i = 0; i < 6; i++) turned[i] = want[i / 3 + i % 3 * 2];
    CHECK_DATA(flux_param(m, "q"), want, 1e-14);
    CHECK_DATA(flux_param(m, "p"), turned, 1e-14);
}

TEST(values_that_are_held_do_not_change) {
    flux_layer *m = bare_of(flux_ones(100));
    flux_state *opt = flux_setup(flux_adam(0.1), m);
    CHECK(step_by(opt, m, flux_ones(100)) == 0);
    flux_tensor *held = (flux_tensor *)flux_retain(flux_param(m, "p"));
    double before = flux_at(held, 7);
    for (int t = 0; t < 3; t++) CHECK(step_by(opt, m, flux_ones(100)) == 0);
    CHECK(flux_at(held, 7) == before && flux_at(flux_param(m, "p"), 7) < before - 0.1);
    flux_release(held);
}

/* A parameter that stands once, in two fields, in a layer that stands twice, and beside a view of itself; of each, whoever
   holds the tensor keeps its numbers through updates, by any rule; and what was made of it before, and is looked at only behind
   an update, is of the numbers of before. */
typedef struct stand { flux_layer *model; const char *path; } stand;
static stand stands(int kind, int n) {
    flux_tensor *w = flux_eval(flux_rand(n, n));
    flux_layer *d = flux_dense(n, n, .bias = FLUX_OFF), *twice = flux_chain(d, d);
    flux_set_param(d, "weight", w);
    return kind == 0 ? (stand){ bare_of(w), "p" } : kind == 1 ? (stand){ pair_of(w, w), "q" } :
           kind == 2 ? (stand){ twice, "layers.1.weight" } : (stand){ pair_of(flux_transpose(w), w), "q" };
}
static flux_tensor *loss_of_stand(int kind, flux_layer *m, int n) {
    flux_tensor *x = flux_ones(n, kind == 2 ? 1 : n);
    return flux_sum(kind == 2 ? flux_call(m, x) : flux_call(m, flux_add(x, flux_eye(n))));
}
TEST(whoever_holds_a_parameter_keeps_its_numbers) {
    static const int sizes[] = { 1, 5, 70 };
    for (int kind = 0; kind < 4; kind++)
        for (int rule = 0; rule < 4; rule++)
            for (int i = 0; i < 3; i++) FLUX_SCOPE {
                const int n = sizes[i];
                static float was[70 * 70], now[70 * 70];
                const size_t bytes = (size_t)(n * n) * sizeof *was;
                stand s = stands(kind, n);
                flux_rule rules[] = { flux_descent(0.01), flux_momentum(0.01), flux_adam(0.01), flux_mixed_precision(flux_adam(0.01)) };
                flux_state *opt = flux_setup(rules[rule], s.model);
                for (int t = 0; t < 8; t++) FLUX_SCOPE {
                    flux_tensor *held = NULL, *twice = NULL, *row = NULL;
                    FLUX_SCOPE {                               /* one reference of each, and none is left in a scope */
                        flux_tensor *w = flux_param(s.model, s.path);
                        if (t % 2 == 0) held = (flux_tensor *)flux_retain(w);
                        if (t % 3) twice = (flux_tensor *)flux_retain(flux_mul(w, 2.0));
                        if (t % 3 == 2) row = (flux_tensor *)flux_retain(flux_sum(w, 0));
                        CHECK(flux_read(w, was, bytes) == 0);
                    }
                    FLUX_SCOPE CHECK(flux_update(opt, s.model, flux_gradient(loss_of_stand(kind, s.model, n), s.model)) == 0);
                    CHECK(flux_read(flux_param(s.model, s.path), now, bytes) == 0 && memcmp(was, now, bytes) != 0);
                    if (held && !CHECK(flux_read(held, now, bytes) == 0 && memcmp(was, now, bytes) == 0))
                        fprintf(stderr, "    kind %d, rule %d, of %d, step %d\n", kind, rule, n, t);
                    bool same = !twice || flux_read(twice, now, bytes) == 0;
                    for (int k = 0; twice && k < n * n; k++) same = same && now[k] == 2 * was[k];
                    if (!CHECK(same)) fprintf(stderr, "    twice; kind %d, rule %d, of %d, step %d\n", kind, rule, n, t);
                    for (int k = 0; row && k < n; k++) {
                        double sum = 0;
                        for (int j = 0; j < n; j++) sum += (double)was[k * n + j];
                        CHECK_NEAR(flux_at(row, 0, k), sum, 1e-5);
                    }
                    flux_release(held);
                    flux_release(twice);
                    flux_release(row);
                }
            }
}

TEST(memory_does_not_grow) {
    flux_layer *m = flux_chain(flux_dense(20, 30, flux_tanh), flux_dense(30, 5));
    flux_tensor *x = flux_eval(flux_randn(20, 16)), *y = flux_eval(flux_randn(5, 16));
    flux_state *opt = flux_setup(flux_adam(), m);
    flux_device cpu = { 0, 0 };
    int64_t live = 0;
    for (int t = 0; t < 1000; t++) {
        FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_mse(flux_call(m, x), y), m)) == 0);
        if (t == 1) live = flux_mem_stats(cpu).live;
    }
    CHECK_NEAR(flux_mem_stats(cpu).live, live, 0);
}

TEST(weights_are_updated_where_they_lie) {
    const char *eager = getenv("FLUX_EAGER");
    if (eager && strcmp(eager, "1") == 0) SKIP("FLUX_EAGER=1 computes new weights before it is known that the old ones go");
    flux_layer *m = flux_dense(300, 200, .bias = FLUX_OFF);
    flux_state *opt = flux_setup(flux_adam(), m);
    const void *where = NULL;
    for (int t = 0; t < 4; t++) FLUX_SCOPE {
        CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_call(m, flux_ones(300, 2))), m)) == 0);
        if (t == 1) where = flux_data(flux_weight(m));
    }
    CHECK(flux_data(flux_weight(m)) == where);
}

TEST(a_failed_update_changes_nothing) {
    flux_layer *m = flux_dense(300, 200), *twin = flux_copy_layer(m);
    flux_state *opt = flux_setup(flux_adam(0.1), m), *good = flux_setup(flux_adam(0.1), twin);
    flux_tensor *x = flux_eval(flux_randn(300, 64));
    for (int t = 0; t < 4; t++) FLUX_SCOPE {
        flux_tensor *held = (flux_tensor *)flux_retain(flux_weight(m));     /* so that the step needs memory */
        flux_mem_trim(test_device);
        flux_mem_limit(test_device, flux_mem_stats(test_device).live + 1000);
        if (t == 2) CHECK_ERROR(flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m)), "out of memory");
        flux_mem_limit(test_device, 0);
        CHECK(flux_weight(m) == held);
        flux_release(held);
        CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m)) == 0);
        CHECK(flux_update(good, twin, flux_gradient(flux_sum(flux_square(flux_call(twin, x))), twin)) == 0);
    }
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_weight(m), flux_weight(twin))))) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_bias(m), flux_bias(twin))))) == 0);
}

/* ------------------------------------------------------------------ adjust */

TEST(adjust_changes_what_is_named) {
    flux_layer *m = bare_of(number(1, FLUX_F64));
    flux_state *opt = flux_setup(flux_momentum(0.1, .rho = 0.5), m);
    CHECK(step(opt, m, 1) == 0);
    CHECK_NEAR(at(m, "p"), 0.9, 1e-15);
    CHECK(flux_adjust(opt, .eta = 0.2) == 0);
    CHECK(step(opt, m, 1) == 0);
    CHECK_NEAR(at(m, "p"), 0.9 - (0.05 + 0.2), 1e-15);
    CHECK(flux_adjust(opt, .rho = 1e-9) == 0);
    CHECK(step(opt, m, 1) == 0);
    CHECK_NEAR(at(m, "p"), 0.65 - 0.2, 1e-8);
}

TEST(adjust_one_of_two_betas) {
    char text[200];
    flux_state *opt = flux_setup(flux_adam(), bare_of(number(1, FLUX_F32)));
    flux_rule_opts o;
    memset(&o, 0, sizeof o);
    o.beta[1] = 0.99;
    CHECK(flux_adjust_with(opt, o) == 0);
    flux_state_text(opt, text, sizeof text);
    CHECK(strstr(text, "Adam(0.001, beta=(0.9, 0.99), eps=1e-08)") == text);
}

TEST(adjust_a_part) {
    flux_layer *a = bare_of(number(1, FLUX_F64)), *b = bare_of(number(1, FLUX_F64)), *m = flux_chain(a, b);
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    flux_rule_opts o;
    memset(&o, 0, sizeof o);
    o.eta = 0.5;
    CHECK(flux_adjust_part_with(opt, b, o) == 0);
    FLUX_SCOPE {
        flux_tensor *loss = flux_sum(flux_add(flux_param(m, "layers.0.p"), flux_param(m, "layers.1.p")));
        CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
    }
    CHECK_NEAR(at(m, "layers.0.p"), 0.9, 1e-15);
    CHECK_NEAR(at(m, "layers.1.p"), 0.5, 1e-15);
    char text[400];
    flux_state_text(opt, text, sizeof text);
    CHECK_STR(text, "Descent(0.1)  # of 2 arrays, 2 parameters\n  layers.1.p: Descent(0.5)");
    CHECK(flux_adjust(opt, .eta = 0.25) == 0);                 /* the whole again */
    flux_state_text(opt, text, sizeof text);
    CHECK_STR(text, "Descent(0.25)  # of 2 arrays, 2 parameters");
    CHECK_ERROR(flux_adjust_part_with(opt, bare_of(number(1, FLUX_F64)), o), "no parameter of this Bare belongs");
}

TEST(adjust_errors) {
    flux_layer *m = bare_of(number(1, FLUX_F64));
    flux_state *opt = flux_setup(flux_optimiser_chain(flux_clipgrad(1), flux_adam()), m);
    CHECK_ERROR(flux_adjust(opt, .rho = 0.5),
                "adjust: there is no rho in OptimiserChain(ClipGrad(1), Adam(0.001, beta=(0.9, 0.999), eps=1e-08))");
    CHECK_ERROR(flux_adjust(opt, .eta = -1), "adjust: eta is -1, but must be 0 or more");
    CHECK_ERROR(flux_adjust(opt, .eta = (double)NAN), "adjust: eta is");
    CHECK_ERROR(flux_adjust(opt, .eta = 5, .beta = { 1.5 }), "adjust: beta is 1.5");
    CHECK_ERROR(flux_adjust(opt, .couple = FLUX_OFF), "no couple");
    CHECK_ERROR(flux_adjust(opt, .centred = true), "centred can't be changed");
    CHECK_ERROR(flux_adjust((flux_state *)NULL, .eta = 1), "adjust: argument state is NULL");
    char text[300];
    flux_state_text(opt, text, sizeof text);                   /* none of them has changed anything */
    CHECK(strstr(text, "OptimiserChain(ClipGrad(1), Adam(0.001, beta=(0.9, 0.999), eps=1e-08))") == text);
}

/* ------------------------------------------------------------------ text */

static const char *text_of(flux_rule rule) {
    static char text[400];
    flux_layer *m = bare_of(number(1, FLUX_F16));
    flux_state *opt = flux_setup(rule, m);
    size_t need = flux_state_text(opt, NULL, 0);
    text[0] = 0;
    if (need < sizeof text) CHECK(flux_state_text(opt, text, need + 1) == need && strlen(text) == need);
    char *end = strstr(text, "  # of 1 array, 1 parameter");
    if (CHECK(end != NULL)) *end = 0;
    return text;
}
TEST(states_as_text) {
    CHECK_STR(text_of(flux_adam()), "Adam(0.001, beta=(0.9, 0.999), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(3e-4, .beta = { 0.5, 0.99 })), "Adam(0.0003, beta=(0.5, 0.99), eps=1e-08)");
    CHECK_STR(text_of(flux_adamw(.lambda = 0.01)), "AdamW(0.001, beta=(0.9, 0.999), lambda=0.01, eps=1e-08)");
    CHECK_STR(text_of(flux_adamw(.couple = FLUX_OFF)), "AdamW(0.001, beta=(0.9, 0.999), lambda=0, eps=1e-08, couple=false)");
    CHECK_STR(text_of(flux_rmsprop(.centred = true)), "RMSProp(0.001, rho=0.9, eps=1e-08, centred=true)");
    CHECK_STR(text_of(flux_rprop()), "Rprop(0.001, ell=(0.5, 1.2), gamma=(1e-06, 50))");
    CHECK_STR(text_of(flux_clipnorm()), "ClipNorm(10, p=2)");
    CHECK_STR(text_of(flux_clipnorm(1, .global = true)), "ClipNorm(1, p=2, global=true)");
    CHECK_STR(text_of(flux_accumgrad(4, flux_descent())), "OptimiserChain(AccumGrad(4), Descent(0.1))");
    CHECK_STR(text_of(flux_mixed_precision(flux_optimiser_chain(flux_clipgrad(), flux_adadelta()))),
              "MixedPrecision(OptimiserChain(ClipGrad(10), AdaDelta(0.9, eps=1e-08)))");
    CHECK_STR(text_of(flux_optimiser_chain(flux_clipgrad(), flux_mixed_precision(flux_descent()))),
              "MixedPrecision(OptimiserChain(ClipGrad(10), Descent(0.1)))");
    CHECK_STR(text_of(flux_optimiser_chain(flux_signdecay(), flux_optimiser_chain(flux_weightdecay(), flux_lion()))),
              "OptimiserChain(SignDecay(0.001), WeightDecay(0.0005), Lion(0.001, beta=(0.9, 0.999)))");
}

/* ------------------------------------------------------------------ mistakes */

/* That a state keeps its own numbers is said before anything is changed, so also when another thing does not fit. */
TEST(rules_of_a_file_that_does_not_fit) {
    const char *path = "build/test_optim.rules.safetensors";
    flux_layer *m = bare_of(number(1, FLUX_F32));
    flux_state *saved = flux_setup(flux_descent(0.5), m), *other = flux_setup(flux_optimiser_chain(flux_clipgrad(1), flux_descent(0.25)), m);
    flux_loader *data = flux_dataloader(flux_ones(2, 4));
    CHECK(flux_save_all_with(path, 1, "opt", (const void *[]){ saved }) == 0);
    flux_on_log(remember, NULL);
    seen[0] = 0;
    CHECK_ERROR(flux_load_all_with(path, 2, "opt, data", (const void *[]){ other, data }), "it has no epoch of a loader data");
    CHECK(strstr(seen, "load.rules: load: ") == seen && flux_rate(other) == 0.25);
    flux_on_log(NULL, NULL);
    CHECK(remove(path) == 0);
}

TEST(rules_by_name) {
    flux_layer *a = bare_of(number(1, FLUX_F64)), *b = bare_of(number(1, FLUX_F64));
    flux_state *named = flux_setup_named("Adam", 0.05, a), *same = flux_setup(flux_adam(0.05), b);
    for (int t = 0; t < 3; t++) CHECK(step(named, a, t - 0.7) == 0 && step(same, b, t - 0.7) == 0 && at(a, "p") == at(b, "p"));
    CHECK_ERROR(flux_setup_named("Adma", 0.05, a), "rule: there is no rule named \"Adma\"");
    CHECK_ERROR(flux_setup_named("Adam", -1, a), "adam: eta is -1");
}

TEST(rules_that_can_not_be) {
    CHECK_ERROR(flux_adam(-0.1), "adam: eta is -0.1, but must be 0 or more");
    CHECK_ERROR(flux_adam((double)NAN), "adam: eta is");
    CHECK_ERROR(flux_adam(HUGE_VAL), "adam: eta is inf");
    CHECK_ERROR(flux_adam(.beta = { 0.9, 1 }), "adam: beta is 1, but must be at least 0 and less than 1");
    CHECK_ERROR(flux_descent(.rho = 0.9), "descent: Descent has no rho");
    CHECK_ERROR(flux_momentum(0.01, .beta = { 0.9 }), "momentum: Momentum has no beta");
    CHECK_ERROR(flux_adam(.lambda = 0.1), "adam: Adam has no lambda");
    CHECK_ERROR(flux_adam(.couple = FLUX_OFF), "adam: Adam has no couple");
    CHECK_ERROR(flux_adam(.centred = true), "adam: Adam has no centred");
    CHECK_ERROR(flux_adam(.n = 3), "adam: Adam has no n");
    CHECK_ERROR(flux_clipgrad(-1), "clipgrad: delta is -1, but must be more than 0");
    CHECK_ERROR(flux_rprop(.gamma = { 2, 1 }), "rprop: gamma is (2, 1), not in order");
    CHECK_ERROR(flux_accumgrad(0, flux_adam()), "accumgrad: n is 0, but must be 1 or more");
    CHECK_ERROR(flux_rule_with("Adma", flux_adam().part[0].o), "rule: there is no rule named \"Adma\"");
    CHECK_ERROR(flux_rule_with(NULL, flux_adam().part[0].o), "rule: argument name is NULL");
    CHECK_ERROR(flux_optimiser_chain(flux_adam(-1), flux_adam()), "adam: eta is -1");
    flux_rule never;
    memset(&never, 0, sizeof never);
    CHECK_ERROR(flux_optimiser_chain(never), "optimiser_chain: this is not a rule");
    CHECK_ERROR(flux_setup(never, bare_of(number(1, FLUX_F32))), "setup: this is not a rule");
    flux_on_error(test_silent, NULL);
    flux_rule bad = flux_adam(-1);
    CHECK(!bad.made && flux_setup(bad, flux_dense(2, 2)) == NULL && !flux_mixed_precision(bad).made);
    CHECK_STR(flux_error(), "adam: eta is -1, but must be 0 or more");
    flux_clear();
    flux_on_error(NULL, NULL);
}

/* A rule is a value: whole after the scope that made it. */
TEST(rules_outlive_their_scope) {
    flux_rule chain = flux_descent(), mixed = chain, many = chain;
    FLUX_SCOPE {
        chain = flux_optimiser_chain(flux_clipgrad(1), flux_optimiser_chain(flux_weightdecay(), flux_adam()));
        mixed = flux_mixed_precision(flux_accumgrad(2, flux_momentum()));
    }
    CHECK_STR(text_of(chain), "OptimiserChain(ClipGrad(1), WeightDecay(0.0005), Adam(0.001, beta=(0.9, 0.999), eps=1e-08))");
    CHECK_STR(text_of(mixed), "MixedPrecision(OptimiserChain(AccumGrad(2), Momentum(0.01, rho=0.9)))");
    for (int i = 1; i < 16; i++) many = flux_optimiser_chain(flux_clipgrad(), many);
    CHECK(many.n == 16 && flux_setup(many, bare_of(number(1, FLUX_F32))) != NULL);
    CHECK_ERROR(flux_optimiser_chain(many, chain), "optimiser_chain: a chain has at most 16 rules");
    CHECK_ERROR(flux_accumgrad(2, many), "accumgrad: a chain has at most 16 rules");
    CHECK(flux_mixed_precision(many).n == 16 && flux_mixed_precision(many).mixed);
}

TEST(updates_that_can_not_be) {
    flux_layer *m = flux_chain(flux_dense(2, 3), flux_dense(3, 1)), *other = flux_dense(2, 3), *longer = flux_chain(flux_dense(2, 3), flux_dense(3, 1), flux_dense(1, 1));
    flux_layer *wider = flux_chain(flux_dense(2, 4), flux_dense(4, 1)), *half = flux_f16(m);
    flux_state *opt = flux_setup(flux_adam(), m);
    flux_grads *g = flux_gradient(flux_sum(flux_call(m, flux_ones(2, 1))), m);
    REQUIRE(g != NULL);
    CHECK_ERROR(flux_update(NULL, m, g), "update: argument state is NULL");
    CHECK_ERROR(flux_update(opt, NULL, g), "update: argument model is NULL");
    CHECK_ERROR(flux_update(opt, m, NULL), "update: argument gradients is NULL");
    CHECK_ERROR(flux_setup(flux_adam(), NULL), "setup: argument model is NULL");
    CHECK_ERROR(flux_update(opt, other, g), "update: this model has the parameter weight where the one of flux_setup had layers.0.weight");
    CHECK_ERROR(flux_update(opt, longer, g), "layers.2.weight where the one of flux_setup had no more");
    CHECK_ERROR(flux_update(opt, wider, g), "update: layers.0.weight is 4x2 f32, but was 3x2 f32 at flux_setup");
    CHECK_ERROR(flux_update(opt, half, g), "update: layers.0.weight is 3x2 f16, but was 3x2 f32 at flux_setup");
    CHECK_ERROR(flux_update(flux_setup(flux_adam(), longer), m, g), "no parameter layers.2.weight, which the one of flux_setup had");
    CHECK(flux_update(opt, m, g) == 0);
    CHECK_ERROR(flux_gradient(flux_nth(flux_tuple(flux_sum(flux_call(m, flux_ones(2, 1)))), 3), m), "nth");
}

TEST(ties_that_change) {
    flux_tensor *w = number(1, FLUX_F32), *v = number(2, FLUX_F32);
    flux_layer *tied = pair_of(w, w), *free_pair = pair_of(w, v);
    flux_state *a = flux_setup(flux_descent(), tied), *b = flux_setup(flux_descent(), free_pair);
    CHECK_ERROR(step(a, pair_of(w, v), 1), "update: q was tied to p at flux_setup and is not any more");
    CHECK_ERROR(step(b, pair_of(v, v), 1), "update: p is tied to q now, and was not at flux_setup");
    CHECK(flux_item(w) == 1 && flux_item(v) == 2);
}

TEST(used_up_graph) {
    flux_layer *m = bare_of(number(1, FLUX_F32));
    flux_state *opt = flux_setup(flux_descent(), m);
    flux_tensor *loss = flux_call(m, number(3, FLUX_F32));
    CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
    CHECK(flux_item(loss) == 3);
    CHECK_ERROR(flux_gradient(loss, m), "used up");
    flux_grads *g = flux_gradient(flux_call(m, number(3, FLUX_F32)), m);
    CHECK(flux_update(opt, m, g) == 0);
    CHECK_ERROR(flux_update(opt, m, g), "update: these gradients were used up");
}

TEST(no_parameters_is_a_warning) {
    seen[0] = 0;
    flux_on_log(remember, NULL);
    flux_state *opt = flux_setup(flux_adam(), flux_chain(flux_tanh));
    flux_on_log(NULL, NULL);
    CHECK(opt != NULL);
    CHECK_STR(seen, "setup.empty: setup: this Chain has no trainable parameters");
}

/* ------------------------------------------------------------------ training */

static flux_tensor *squares(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static flux_tensor *blows_up(flux_layer *m, flux_tensor *x, flux_tensor *y) {
    return flux_div(squares(m, x, y), flux_sub(flux_mean(x), 3));   /* a batch of threes divides by 0 */
}
static flux_tensor *no_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return (void)m, (void)x, (void)y, (flux_tensor *)NULL; }

static bool trained_in_train_mode;
static flux_tensor *notes_mode(flux_layer *m, flux_tensor *x, flux_tensor *y) {
    trained_in_train_mode = flux_training(m);
    return squares(m, x, y);
}

TEST(train_learns) {
    flux_seed(3);
    flux_tensor *x = flux_eval(flux_rand(1, 64)), *y = flux_eval(flux_add(flux_mul(x, 3), 1));
    flux_layer *m = flux_dense(1, 1);
    flux_state *opt = flux_setup(flux_descent(0.2), m);
    flux_loader *data = flux_dataloader(x, y, .batchsize = 8);
    double before = flux_item(squares(m, x, y));
    flux_testmode(m, true);
    for (int epoch = 0; epoch < 40; epoch++) CHECK(flux_train(notes_mode, m, data, opt) == 0);
    CHECK(trained_in_train_mode);
    CHECK(!flux_training(m) && m->mode == FLUX_MODE_TEST);     /* and as it was after it */
    CHECK(flux_item(squares(m, x, y)) < before / 1000);
    CHECK_NEAR(flux_item(flux_weight(m)), 3, 0.05);
}

TEST(train_is_the_loop_written_out) {
    flux_seed(5);
    flux_layer *a = flux_chain(flux_dense(3, 4, flux_tanh), flux_dense(4, 2)), *b = flux_copy_layer(a);
    flux_tensor *x = flux_eval(flux_randn(3, 20)), *y = flux_eval(flux_randn(2, 20));
    flux_state *oa = flux_setup(flux_adam(0.01), a), *ob = flux_setup(flux_adam(0.01), b);
    CHECK(flux_train(squares, a, flux_dataloader(x, y, .batchsize = 6), oa) == 0);
    flux_each (batch, flux_dataloader(x, y, .batchsize = 6))
        CHECK(flux_update(ob, b, flux_gradient(squares(b, batch.x, batch.y), b)) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_destructure(a), flux_destructure(b))))) < 1e-6);
}

TEST(train_stops_before_a_bad_update) {
    float xs[6] = { 1, 2, 3, 3, 4, 5 };
    flux_tensor *x = flux_from(xs, 1, 6), *y = flux_ones(1, 6);
    flux_layer *m = flux_dense(1, 1), *twin = flux_copy_layer(m);
    flux_state *opt = flux_setup(flux_descent(0.01), m), *good = flux_setup(flux_descent(0.01), twin);
    CHECK_ERROR(flux_train(blows_up, m, flux_dataloader(x, y, .batchsize = 2), opt), "train: the loss is inf at batch 1");
    CHECK(flux_train(blows_up, twin, flux_dataloader(flux_take(x, 2), flux_take(y, 2), .batchsize = 2), good) == 0);
    CHECK_NEAR(flux_item(flux_weight(m)), flux_item(flux_weight(twin)), 0);     /* only batch 0 counted */
}

TEST(train_errors) {
    flux_layer *m = flux_dense(1, 1);
    flux_loader *data = flux_dataloader(flux_ones(1, 4), flux_ones(1, 4));
    flux_state *opt = flux_setup(flux_adam(), m);
    CHECK_ERROR(flux_train(NULL, m, data, opt), "train: argument loss is NULL");
    CHECK_ERROR(flux_train(squares, NULL, data, opt), "train: argument model is NULL");
    CHECK_ERROR(flux_train(squares, m, NULL, opt), "train: argument data is NULL");
    CHECK_ERROR(flux_train(squares, m, data, NULL), "train: argument state is NULL");
    flux_testmode(m, true);
    CHECK_ERROR(flux_train(no_loss, m, data, opt), "train: the loss function gave NULL at batch 0");
    CHECK(m->mode == FLUX_MODE_TEST && !flux_training(m));
}

TEST(patience_counts_in_a_row) {
    flux_stopper s = { 0 };
    static const bool in[] = { true, true, false, true, true, true, true, false }, out[] = { 0, 0, 0, 0, 0, 1, 1, 0 };
    for (int i = 0; i < 8; i++) CHECK(flux_patience(&s, in[i], 3) == out[i]);
    CHECK_ERROR(flux_patience(NULL, true, 3), "patience");
}

TEST(early_stopping_as_in_flux) {
    flux_stopper s = { 0 };
    static const double in[] = { 5, 4, 4.5, 4.2, 3.9, 4, 4.1, 3.95 };
    static const bool out[] = { 0, 0, 0, 0, 0, 0, 0, 1 };      /* three in a row above the best */
    for (int i = 0; i < 8; i++) CHECK(flux_early_stopping(&s, in[i], 3, 0) == out[i]);
    flux_stopper far = { 0 };
    static const double slow[] = { 1, 0.95, 0.9, 0.5, 0.49 };
    static const bool stops[] = { 0, 0, 1, 0, 0 };             /* a gain of less than 0.1 is none */
    for (int i = 0; i < 5; i++) CHECK(flux_early_stopping(&far, slow[i], 2, 0.1) == stops[i]);
    flux_stopper bad = { 0 };
    CHECK(!flux_early_stopping(&bad, 1, 2, 0));
    CHECK(!flux_early_stopping(&bad, (double)NAN, 2, 0));
    CHECK(flux_early_stopping(&bad, (double)NAN, 2, 0));               /* NaN is never an improvement */
    CHECK(!flux_early_stopping(&bad, 0.5, 2, 0));
}

TEST(plateau_as_in_flux) {
    flux_stopper s = { 0 };
    static const double in[] = { 10, 9, 9.0005, 8.9996, 8.9995, 7, 7, 7 };
    static const bool out[] = { 0, 0, 0, 0, 1, 0, 0, 0 };
    for (int i = 0; i < 8; i++) CHECK(flux_plateau(&s, in[i], 3, 1e-2) == out[i]);
    flux_stopper fine = { 0 };                                 /* min_dist 0: the default, 1e-6 */
    CHECK(!flux_plateau(&fine, 1, 1, 0) && !flux_plateau(&fine, 1.001, 1, 0) && flux_plateau(&fine, 1.001, 1, 0));
    CHECK_ERROR(flux_plateau(NULL, 1, 1, 0), "plateau: argument stopper is NULL");
    CHECK_ERROR(flux_early_stopping(NULL, 1, 1, 0), "early_stopping: argument stopper is NULL");
    CHECK_ERROR(flux_patience(NULL, true, 1), "patience: argument stopper is NULL");
}

/* ------------------------------------------------------------------ gradients against differences */

static flux_tensor *smooth(flux_tensor *x, void *user) { return (void)user, flux_sum(flux_mul(flux_sin(x), flux_exp(flux_mul(x, 0.3)))); }
static flux_tensor *half_blind(flux_tensor *x, void *user) {   /* its gradient misses one of two factors */
    (void)user;
    return flux_sum(flux_mul(x, flux_detach(x)));
}
static flux_tensor *constant(flux_tensor *x, void *user) { return (void)x, (void)user, flux_scalar(3); }
static flux_tensor *nothing(flux_tensor *x, void *user) {
    (void)x, (void)user;
    return NULL;
}
static flux_tensor *whole(flux_tensor *x, void *user) { return (void)user, flux_sum(x); }
static flux_tensor *noisy(flux_tensor *x, void *user) { return (void)user, flux_sum(flux_mul(flux_square(x), flux_rand(4, 3))); }
static flux_tensor *not_one(flux_tensor *x, void *user) { return (void)user, flux_mul(x, 2); }

TEST(gradcheck_tells_right_from_wrong) {
    flux_tensor *x = flux_to_dtype(flux_randn(4, 3), FLUX_F64), *narrow = flux_randn(4, 3);
    CHECK(flux_gradcheck(smooth, NULL, x, 0) < 1e-8);
    CHECK(flux_gradcheck(smooth, NULL, x, 5) < 1e-8);
    CHECK(flux_gradcheck(smooth, NULL, narrow, 0) < 1e-2);
    CHECK_NEAR(flux_gradcheck(half_blind, NULL, x, 0), 0.5, 1e-9);
    CHECK(flux_gradcheck(constant, NULL, x, 0) == 0);
    CHECK(flux_gradcheck(noisy, NULL, x, 0) < 1e-8);           /* the same numbers are drawn at every call */
    CHECK_ERROR(flux_gradcheck(not_one, NULL, x, 0), "one real number");
    CHECK_ERROR(flux_gradcheck(nothing, NULL, x, 0), "gradcheck: the function gave NULL");
    /* its points are floats, and so is what lies between them */
    CHECK(flux_gradcheck(whole, NULL, flux_from(((float[]){ 0.3f }), 1), 0) == 0);
    CHECK_ERROR(flux_gradcheck(NULL, NULL, x, 0), "gradcheck: argument fn is NULL");
    CHECK_ERROR(flux_gradcheck(smooth, NULL, NULL, 0), "gradcheck: argument x is NULL");
    CHECK_ERROR(flux_gradcheck(smooth, NULL, flux_to_dtype(x, FLUX_I32), 0), "must be a tensor of floating numbers, not i32");
}

/* ------------------------------------------------------------------ states in files, and on their way */

static flux_rule long_chain(void) { return flux_accumgrad(2, flux_optimiser_chain(flux_momentum(), flux_adam(), flux_adam(0.5))); }

TEST(a_saved_run_goes_on_as_if_it_had_not_stopped) {
    static flux_rule (*const rules[])(void) = { long_chain };
    for (int k = 0; k < 3; k++) FLUX_SCOPE {
        flux_rule rule = k == 0 ? rules[0]() : k == 1 ? flux_adam(0.01) : flux_mixed_precision(flux_adam(0.01));
        flux_seed(9);
        flux_layer *start = flux_chain(flux_dense(3, 4, flux_tanh), flux_dense(4, 2)), *m = k == 2 ? flux_f16(start) : start;
        flux_layer *again = flux_copy_layer(m);
        flux_tensor *x = flux_to_dtype(flux_randn(3, 5), flux_dtype_of(flux_param(m, "layers.0.weight")));
        flux_state *opt = flux_setup(rule, m), *second = flux_setup(rule, again);
        for (int t = 0; t < 6; t++) {
            FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m)) == 0);
            if (t == 2) REQUIRE(flux_save_all("build/test_optim.safetensors", m, opt) == 0);
        }
        const char *path = "build/test_optim.safetensors";
        const void *into[2] = { again, second };
        REQUIRE(flux_load_all_with(path, 2, "m, opt", into) == 0);
        for (int t = 3; t < 6; t++) FLUX_SCOPE CHECK(flux_update(second, again, flux_gradient(flux_sum(flux_square(flux_call(again, x))), again)) == 0);
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_destructure(m), flux_destructure(again))))) == 0);
        if (k == 0) {
            const double steps[4] = { 1, 1, 1, 1 };            /* three gradients: one applied, one waiting */
            CHECK_DATA(flux_load_tensor(path, "opt.layers.0.bias.steps"), steps, 0);
            CHECK(flux_load_tensor(path, "opt.layers.0.bias.m2") != NULL);      /* the second Adam's */
        }
        if (k == 2) CHECK(flux_dtype_of(flux_load_tensor(path, "opt.layers.1.weight.master")) == FLUX_F32);
        remove(path);
    }
}

/* Part of the loss is held fixed: what lies behind it belongs to the step, though no gradient goes there. */
static flux_tensor *fixed_call(flux_layer *self, flux_tensor *x) {
    flux_tensor *p = ((bare *)self)->p, *scale = NULL;
    FLUX_NOGRAD scale = flux_exp(flux_neg(flux_mul(p, 2)));
    return flux_sum(flux_mul(flux_mul(p, scale), x));
}
typedef struct { flux_layer base; flux_tensor *p; } fixed;
FLUX_LAYER(fixed, "Fixed", fixed_call, FLUX_PARAM(p))

TEST(a_step_through_a_part_that_is_held_fixed) {
    FLUX_SCOPE {
        flux_layer *m = flux_new(fixed, .p = number(0.5, FLUX_F64));
        flux_state *opt = flux_setup(flux_descent(0.25), m);
        double p = 0.5;
        for (int i = 0; i < 5; i++) {
            FLUX_SCOPE CHECK(flux_update(opt, m, flux_gradient(flux_call(m, number(2, FLUX_F64)), m)) == 0);
            p -= 0.25 * 2 * exp(-2 * p);
            CHECK_NEAR(at(m, "p"), p, 1e-12);
        }
    }
}

TEST(moving_a_state_to_where_it_is) {
    ONLY_ON_CPU();
    flux_state *opt = flux_setup(flux_adam(), flux_dense(2, 2));
    CHECK(flux_cpu(opt) == opt);
    CHECK(flux_device_of(opt).backend == 0);
}

/* ------------------------------------------------------------------ any order of calls

   Steps with gradients of some of the parameters, steps that fail, layers frozen and thawed, parameters that are put in the
   place of others, rates that are adjusted, states that are saved and loaded: in random order, beside the rules' formulas for
   one number each. */

enum { LEAVES = 3, DESCENT = 0, MOMENTUM, ADAM, EVERY_SECOND, HALVES, ORDERS };
typedef struct { double p, v, m, t, eta; bool frozen; } leaf;

static unsigned drawn;
static int draw(int n) { return (int)((drawn = drawn * 1664525u + 1013904223u) >> 8) % n; }
static double drawn_number(void) { return (draw(4001) - 2000) / 256.0; }

static flux_rule ordered_rule(int kind) {
    return kind == DESCENT ? flux_descent(0.1) : kind == MOMENTUM ? flux_momentum(0.1, .rho = 0.75)
         : kind == ADAM ? flux_adam(0.1) : kind == EVERY_SECOND ? flux_accumgrad(2, flux_descent(0.1))
         : flux_mixed_precision(flux_momentum(0.1, .rho = 0.75));
}

/* What the rule makes of one number with the gradient g. */
static void follow(int kind, leaf *x, double g) {
    if (kind == DESCENT) x->p -= x->eta * g;
    else if (kind == EVERY_SECOND) {
        x->v += g / 2;
        x->t++;
        if (fmod(x->t, 2) == 0) x->p -= x->eta * x->v, x->v = 0;
    } else if (kind == ADAM) {
        x->t++;
        x->m = 0.9 * x->m + 0.1 * g;
        x->v = 0.999 * x->v + 0.001 * g * g;
        x->p -= x->eta * (x->m / (1 - pow(0.9, x->t))) / (sqrt(x->v / (1 - pow(0.999, x->t))) + 1e-8);
    } else {
        x->v = 0.75 * x->v + x->eta * g;
        x->p -= x->v;
    }
}

/* A step with gradients of some of the parameters; with a loss that depends on none there is none to do. */
static void some_step(int kind, flux_state *opt, flux_layer *m, leaf *leaves, bool fails) {
    flux_tensor *loss = NULL;
    double g[LEAVES] = { 0, 0, 0 };
    int some = 1 + draw((1 << LEAVES) - 1), awake = 0;
    for (int i = 0; i < LEAVES; i++) {
        if (!(some >> i & 1)) continue;
        flux_tensor *p = flux_param(flux_child(m, i), "p"), *part;
        g[i] = fails ? HUGE_VAL : drawn_number();
        awake += !leaves[i].frozen;
        part = flux_sum(flux_mul(p, number(g[i], flux_dtype_of(p))));
        loss = loss ? flux_add(loss, part) : part;
    }
    if (fails && awake) CHECK_ERROR(flux_update(opt, m, flux_gradient(loss, m)), "clipnorm: the gradient of");
    else if (!fails) CHECK(flux_update(opt, m, flux_gradient(loss, m)) == 0);
    for (int i = 0; i < LEAVES && !fails; i++)
        if (some >> i & 1 && !leaves[i].frozen) follow(kind, &leaves[i], g[i]);
}

static flux_state *saved_and_loaded(int kind, bool clips, flux_state *opt, flux_layer *m) {
    flux_rule rule = ordered_rule(kind);
    flux_state *other = flux_setup(clips ? flux_optimiser_chain(flux_clipnorm(1e30), rule) : rule, m);
    CHECK(flux_save(opt, "build/test_optim.order") == 0 && flux_load(other, "build/test_optim.order") == 0);
    return flux_keep(other);
}

static void in_any_order(int kind, unsigned seed) {
    const flux_dtype t = kind == HALVES ? FLUX_F16 : FLUX_F64;
    const bool clips = kind == DESCENT || kind == MOMENTUM || kind == ADAM;
    leaf leaves[LEAVES];
    flux_layer *layers[LEAVES], *m;
    flux_tensor *held[LEAVES];
    double value[LEAVES];
    drawn = seed * 747796405u + 1;
    for (int i = 0; i < LEAVES; i++) {
        leaf start = { drawn_number(), 0, 0, 0, 0.1, false };
        leaves[i] = start;
        layers[i] = bare_of(number(start.p, t));
        held[i] = (flux_tensor *)flux_retain(flux_param(layers[i], "p")), value[i] = start.p;
    }
    m = flux_chain_with(LEAVES, layers, NULL);
    flux_rule rule = ordered_rule(kind);
    flux_state *opt = flux_setup(clips ? flux_optimiser_chain(flux_clipnorm(1e30), rule) : rule, m);
    for (int step = 0; step < 60; step++) FLUX_SCOPE {
        const int what = draw(12), i = draw(LEAVES);
        leaf *x = &leaves[i];
        if (what == 0) flux_freeze(layers[i]), x->frozen = true;
        else if (what == 1) flux_thaw(layers[i]), x->frozen = false;
        else if (what == 2) x->p = drawn_number(), flux_set_param(layers[i], "p", number(x->p, t));
        else if (what == 3) x->eta = draw(9) / 16.0, CHECK(flux_adjust_part(opt, layers[i], .eta = x->eta) == 0);
        else if (what == 4) opt = saved_and_loaded(kind, clips, opt, m);
        else if (what == 5 && clips) some_step(kind, opt, m, leaves, true);
        else if (what == 6) {                                  /* an old value stays what it was */
            flux_release(held[i]);
            held[i] = (flux_tensor *)flux_retain(flux_param(layers[i], "p")), value[i] = flux_item(held[i]);
        } else some_step(kind, opt, m, leaves, false);
        for (int k = 0; k < LEAVES; k++) {
            CHECK_NEAR(at(layers[k], "p"), leaves[k].p, kind == HALVES ? 4e-3 : 1e-12);
            CHECK(flux_item(held[k]) == value[k] || kind == HALVES);
        }
        if (test_bad) break;
    }
    for (int i = 0; i < LEAVES; i++) flux_release(held[i]);
    if (test_bad) fprintf(stderr, "    rule %d, seed %u\n", kind, seed);
}
TEST(any_order_of_calls) {
    ONLY_ON_CPU();
    flux_on_log(remember, NULL);                               /* of steps without a gradient that is wanted */
    for (unsigned seed = 0; seed < 8; seed++)
        for (int kind = 0; kind < ORDERS && !test_bad; kind++) FLUX_SCOPE in_any_order(kind, seed);
    flux_on_log(NULL, NULL);
    remove("build/test_optim.order");
}

TEST_MAIN()
