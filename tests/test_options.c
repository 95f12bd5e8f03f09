/* Options: a 0 that a program writes is taken as 0, or refused as 0, and never as if it had been left out. Every field of every
   option struct is set to zero here, beside what it is without. */
#include "test.h"

static const double four[] = { -2, -0.5, 0.5, 2 };
static flux_tensor *x4(void) { return flux_from(four, 4); }

/* The text of a state or layer, up to what differs from machine to machine. */
static const char *text_of(flux_rule r) {
    static char text[300];
    flux_state *s = flux_setup(r, flux_dense(1, 1));
    if (s) flux_state_text(s, text, sizeof text);
    char *end = s ? strstr(text, "  #") : NULL;
    if (end) *end = 0;
    return s ? text : "(no rule)";
}
static const char *layer_of(flux_layer *m) {
    static char text[300];
    if (m) flux_layer_text(m, text, sizeof text);
    size_t n = m ? strcspn(text, "#") : 0;
    while (n && text[n - 1] == ' ') n--;
    text[n] = 0;
    return m ? text : "(no layer)";
}

/* ------------------------------------------------------------------ optimisers */

TEST(a_rate_of_zero_changes_nothing) {
    flux_layer *m = flux_dense(2, 2);
    flux_tensor *w = flux_copy(flux_weight(m)), *x = flux_ones(2, 3);
    const flux_rule rules[] = { flux_descent(0), flux_descent(.eta = 0), flux_adam(0), flux_adam(0.0, .beta = { 0 }) };
    for (int i = 0; i < 4; i++) {
        flux_state *s = flux_setup(rules[i], m);
        CHECK(flux_update(s, m, flux_gradient(flux_sum(flux_call(m, x)), m)) == 0);
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_weight(m), w)))), 0, 0);
    }
    flux_state *s = flux_setup(flux_descent(1), m);
    CHECK(flux_adjust(s, .eta = 0) == 0 && flux_update(s, m, flux_gradient(flux_sum(flux_call(m, x)), m)) == 0);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_weight(m), w)))), 0, 0);
    CHECK(flux_adjust(s, .couple = FLUX_DEFAULT) == 0 && flux_update(s, m, flux_gradient(flux_sum(flux_call(m, x)), m)) == 0);     /* stays */
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_weight(m), w)))), 0, 0);
}

/* Three steps with hyper-parameter number `which` of the rule's options set to v; false: the rule can't be. */
static bool stepped(const char *rule, int which, double v, double out[4]) {
    flux_rule_opts o = FLUX_OPTIONS(flux_rule_opts, .marked = true);
    double *const hyper[] = { &o.eta, &o.beta[0], &o.beta[1], &o.rho, &o.eps, &o.lambda, &o.delta, &o.omega, &o.p, &o.ell[0],
        &o.ell[1], &o.gamma[0], &o.gamma[1] };
    if (which >= (int)(sizeof hyper / sizeof *hyper)) return false;
    *hyper[which] = v;
    flux_on_error(test_silent, NULL);
    flux_layer *m = flux_f64(flux_dense(2, 2, .init = flux_ones32, .bias = FLUX_OFF));
    flux_rule r = flux_rule_with(rule, o);
    flux_state *s = r.made ? flux_setup(r, m) : NULL;
    flux_clear();
    flux_on_error(NULL, NULL);
    for (int i = 0; s && i < 3; i++)
        CHECK(flux_update(s, m, flux_gradient(flux_sum(flux_mul(flux_weight(m), flux_reshape(flux_mul(x4(), i - 0.6), 2, 2))), m)) == 0);
    for (int i = 0; s && i < 4; i++) out[i] = flux_at(flux_weight(m), i % 2, i / 2);
    return s != NULL;
}

/* A rule with a 0 gives what it gives with next to nothing: no formula divides by the 0, or takes a way of its own that leads
   elsewhere. */
TEST(a_rule_with_zero_is_the_limit) {
    static const char *const rules[] = { "Descent", "Momentum", "Nesterov", "RMSProp", "Rprop", "Adam", "AdamW", "RAdam", "AdaMax", "OAdam",
        "AdaGrad", "AdaDelta", "AMSGrad", "NAdam", "AdaBelief", "Lion", "WeightDecay", "SignDecay", "ClipGrad", "ClipNorm" };
    int compared = 0;
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int k = 0; k < 13; k++) FLUX_SCOPE {
            double at_zero[4], close_by[4];
            if (test_left_out((int)r * 13 + k, 7) || !stepped(rules[r], k, 0, at_zero) || !stepped(rules[r], k, 1e-300, close_by)) continue;
            for (int i = 0; i < 4; i++)
                if (!CHECK(test_close(at_zero[i], close_by[i], 1e-9)))
                    fprintf(stderr, "    %s, hyper-parameter %d: %.15g and %.15g\n", rules[r], k, at_zero[i], close_by[i]);
            compared++;
        }
    CHECK(compared > 40 || test_device.backend);
}

TEST(hyper_parameters_of_zero) {
    CHECK_STR(text_of(flux_descent()), "Descent(0.1)");
    CHECK_STR(text_of(flux_descent(.eta = 0)), "Descent(0)");
    CHECK_STR(text_of(flux_momentum(.eta = 0, .rho = 0)), "Momentum(0, rho=0)");
    CHECK_STR(text_of(flux_momentum(.rho = 0)), "Momentum(0.01, rho=0)");
    CHECK_STR(text_of(flux_rmsprop(.rho = 0, .eps = 0)), "RMSProp(0.001, rho=0, eps=0)");
    CHECK_STR(text_of(flux_rmsprop(.centred = false)), "RMSProp(0.001, rho=0.9, eps=1e-08)");
    CHECK_STR(text_of(flux_rmsprop(.centred = true)), "RMSProp(0.001, rho=0.9, eps=1e-08, centred=true)");
    CHECK_STR(text_of(flux_adam(.beta = { 0, 0.9 })), "Adam(0.001, beta=(0, 0.9), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(.beta = { 0.5, 0 })), "Adam(0.001, beta=(0.5, 0), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(.beta[1] = 0)), "Adam(0.001, beta=(0.9, 0), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(.beta[0] = 0, .eps = 0)), "Adam(0.001, beta=(0, 0.999), eps=0)");
    CHECK_STR(text_of(flux_adam(0, { 0, 0 }, .eps = 0)), "Adam(0, beta=(0, 0), eps=0)");
    CHECK_STR(text_of(flux_adam(.epsilon = 0.5)), "Adam(0.001, beta=(0.9, 0.999), eps=0.5)");     /* its old name */
    CHECK_STR(text_of(flux_adamw(.lambda = 0)), "AdamW(0.001, beta=(0.9, 0.999), lambda=0, eps=1e-08)");
    CHECK_STR(text_of(flux_adamw(.couple = false)), "AdamW(0.001, beta=(0.9, 0.999), lambda=0, eps=1e-08, couple=false)");
    CHECK_STR(text_of(flux_rprop(.gamma = { 0, 50 })), "Rprop(0.001, ell=(0.5, 1.2), gamma=(0, 50))");
    CHECK_STR(text_of(flux_weightdecay(0)), "WeightDecay(0)");
    CHECK_STR(text_of(flux_weightdecay(.lambda = 0)), "WeightDecay(0)");
    CHECK_STR(text_of(flux_signdecay(.lambda = 0)), "SignDecay(0)");
    CHECK_ERROR(flux_clipgrad(0), "delta is 0");
    CHECK_ERROR(flux_clipgrad(.delta = 0), "delta is 0");
    CHECK_ERROR(flux_clipnorm(.omega = 0), "omega is 0");
    CHECK_ERROR(flux_clipnorm(.p = 0), "p is 0");
    CHECK_ERROR(flux_rprop(.ell = { 0, 1.2 }), "ell is 0");
    CHECK_ERROR(flux_rprop(.ell = { 0.5, 0 }), "ell is 0");
    CHECK_ERROR(flux_rprop(.gamma = { 1e-6, 0 }), "gamma is 0");
    CHECK_ERROR(flux_accumgrad(0, flux_adam()), "n is 0");
    CHECK_ERROR(flux_descent(.rho = 0), "Descent has no rho");   /* what a rule has not is no less an error as 0 */
    CHECK_ERROR(flux_adam(.couple = false), "no couple");
    CHECK_ERROR(flux_adam(.centred = false), "no centred");
}

static void unheard(const char *message, void *user) { (void)message, (void)user; }

TEST(each_rule_steps_with_each_number_zero) {
    const char *names[] = { "Descent", "Momentum", "Nesterov", "RMSProp", "Adam", "AdamW", "Lion", "RAdam", "AdaMax", "OAdam", "AdaGrad",
                            "AdaDelta", "AMSGrad", "NAdam", "AdaBelief", "WeightDecay", "SignDecay" };
    flux_layer *m = flux_chain(flux_dense(2, 2));
    int steps = 0;
    flux_on_error(unheard, NULL);         /* of a number that a rule has not */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int which = 0; which < 6; which++) {
            flux_rule_opts one[] = {
                FLUX_OPTIONS(flux_rule_opts, .eta = 0), FLUX_OPTIONS(flux_rule_opts, .beta = { 0, 0.9 }),
                FLUX_OPTIONS(flux_rule_opts, .beta = { 0.9, 0 }), FLUX_OPTIONS(flux_rule_opts, .rho = 0),
                FLUX_OPTIONS(flux_rule_opts, .lambda = 0), FLUX_OPTIONS(flux_rule_opts, .eps = 0) };
            flux_rule r = flux_rule_with(names[i], one[which]);
            flux_clear();
            if (!r.made) continue;
            flux_state *s = flux_setup(r, m);
            for (int t = 0; t < 3; t++, steps++) {
                flux_tensor *loss = flux_mse(flux_call(m, flux_rand(2, 3)), flux_rand(2, 3));
                REQUIRE(flux_update(s, m, flux_gradient(loss, m)) == 0);
            }
            bool finite = isfinite(flux_item(flux_sum(flux_destructure(m))));
            if (!finite) fprintf(stderr, "%s, number %d\n", names[i], which);
            CHECK(finite);
            m = flux_chain(flux_dense(2, 2));
        }
    flux_on_error(NULL, NULL);
    CHECK(steps > 100);
}

TEST(adjusting_to_zero) {
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_dense(2, 2));
    flux_state *s = flux_setup(flux_adamw(.lambda = 0.5), m);
    char text[300];
    CHECK(flux_adjust(s, .beta[0] = 0, .lambda = 0, .eps = 0, .couple = false) == 0);
    flux_state_text(s, text, sizeof text);
    CHECK(strstr(text, "AdamW(0.001, beta=(0, 0.999), lambda=0, eps=0, couple=false)"));
    CHECK(flux_adjust(s, .eta = 0, .beta = { 0.5, 0 }) == 0);
    flux_state_text(s, text, sizeof text);
    CHECK(strstr(text, "AdamW(0, beta=(0.5, 0), lambda=0, eps=0, couple=false)"));
    CHECK(flux_adjust(s, .eta = 1, .couple = true) == 0 && flux_adjust_part(s, flux_child(m, 1), .eta = 0) == 0);
    CHECK(flux_adjust_part_with(s, flux_child(m, 1), FLUX_OPTIONS(flux_rule_opts, .beta = { 0, 0 })) == 0);
    flux_tensor *first = flux_copy(flux_weight(flux_child(m, 0))), *second = flux_copy(flux_weight(flux_child(m, 1)));
    CHECK(flux_update(s, m, flux_gradient(flux_sum(flux_call(m, flux_rand(2, 3))), m)) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(first, flux_weight(flux_child(m, 0)))))) > 0.1);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(second, flux_weight(flux_child(m, 1)))))), 0, 0);
    CHECK_ERROR(flux_adjust(s, .rho = 0), "there is no rho");
    CHECK_ERROR(flux_adjust(s, .n = 0), "there is no n");
    CHECK_ERROR(flux_adjust(flux_setup(flux_rmsprop(.centred = true), m), .centred = false), "centred can't be changed");
    CHECK_ERROR(flux_adjust(flux_setup(flux_accumgrad(2, flux_adam()), m), .n = 0), "n is 0");
    CHECK_ERROR(flux_adjust(flux_setup(flux_adam(), m), .couple = false), "no couple");
}

/* ------------------------------------------------------------------ functions */

TEST(activations_with_zero) {
    CHECK_DATA(flux_leakyrelu(x4(), .alpha = 0), ((double[]){ 0, 0, 0.5, 2 }), 0);
    CHECK_DATA(flux_leakyrelu(x4()), ((double[]){ -0.02, -0.005, 0.5, 2 }), 1e-12);
    CHECK_DATA(flux_leakyrelu(x4(), 0), ((double[]){ 0, 0, 0.5, 2 }), 0);
    CHECK_DATA(flux_elu(x4(), .alpha = 0), ((double[]){ 0, 0, 0.5, 2 }), 0);
    CHECK_DATA(flux_softshrink(x4(), .alpha = 0), four, 0);
    CHECK_DATA(flux_trelu(x4(), .alpha = 0), ((double[]){ 0, 0, 0.5, 2 }), 0);
    CHECK_DATA(flux_rrelu(x4(), .lo = 0, .hi = 0), ((double[]){ 0, 0, 0.5, 2 }), 0);
    CHECK_ERROR(flux_rrelu(x4(), .hi = 0), ".lo is 0.125 and .hi is 0");
    flux_tensor *slopes = flux_div(flux_rrelu(flux_full(-1, 1000), .lo = 0), -1);       /* from 0, not from 1/8, to 1/3 */
    CHECK(flux_item(flux_min(slopes)) < 0.02 && flux_item(flux_max(slopes)) < 1.0 / 3);
    CHECK_ERROR(flux_celu(x4(), .alpha = 0), ".alpha is 0");
}

TEST(losses_with_zero) {
    const double p2[] = { 0.25, 0.75, 0.5, 0.5 }, y2[] = { 0, 1, 1, 0 };
    flux_tensor *p = flux_from(p2, 2, 2), *y = flux_from(y2, 2, 2), *sure = flux_from(y2, 2, 2);
    CHECK_NEAR(flux_item(flux_huber_loss(p, y, .delta = 0)), 0, 0);
    CHECK(flux_item(flux_huber_loss(p, y)) > 0.05);
    CHECK_NEAR(flux_item(flux_focal_loss(p, y, .gamma = 0)), flux_item(flux_crossentropy(p, y)), 1e-12);
    CHECK_NEAR(flux_item(flux_binary_focal_loss(p, y, .gamma = 0)), flux_item(flux_binarycrossentropy(p, y)), 1e-12);
    CHECK(flux_item(flux_focal_loss(p, y)) < 0.5 * flux_item(flux_crossentropy(p, y)));
    CHECK(isinf(flux_item(flux_crossentropy(flux_sub(1, sure), y, .eps = 0))));
    CHECK(isinf(flux_item(flux_crossentropy(flux_sub(1, sure), y, .epsilon = 0))));               /* its old name */
    CHECK(isfinite(flux_item(flux_crossentropy(flux_sub(1, sure), y))));
    CHECK_NEAR(flux_item(flux_msle(p, flux_add(y, 1), .eps = 0)), flux_item(flux_mean(flux_square(flux_log(flux_div(p, flux_add(y, 1)))))), 1e-14);
    CHECK_NEAR(flux_item(flux_siamese_contrastive_loss(p, y, .margin = 0)), (0.0625 + 0 + 0 + 0.25) / 4, 1e-12);
    CHECK_NEAR(flux_item(flux_siamese_contrastive_loss(p, y)), (0.0625 + 0.0625 + 0.25 + 0.25) / 4, 1e-12);
    CHECK_NEAR(flux_item(flux_dice_coeff_loss(p, y, .smooth = 0)), 1 - 2.5 / (2 + 1.125), 1e-12);
    CHECK_NEAR(flux_item(flux_dice_coeff_loss(p, y)), 1 - 3.5 / (3 + 1.125), 1e-12);
    CHECK_NEAR(flux_item(flux_tversky_loss(p, y, .beta = 0)), 1 - 2.25 / (1.25 + 0.75 + 1), 1e-12);
    CHECK_NEAR(flux_item(flux_tversky_loss(p, y)), 1 - 2.25 / (1.25 + 0.7 * 0.75 + 0.3 * 0.75 + 1), 1e-12);
    CHECK_NEAR(flux_item(flux_crossentropy(p, y, .dim = 0, .agg = FLUX_MEAN)), flux_item(flux_crossentropy(p, y)), 0);
    const int32_t labels[] = { 0, 1 };
    flux_tensor *l = flux_from(labels, 2);
    CHECK_NEAR(flux_item(flux_crossentropy(p, l)), -(log(0.25) + log(0.5)) / 2, 1e-14);
    CHECK_NEAR(flux_item(flux_crossentropy(p, l, .ignore_index = 0)), -log(0.5), 1e-14);
    CHECK_NEAR(flux_item(flux_crossentropy(p, l, .ignore = true)), -log(0.5), 1e-14);
    CHECK_NEAR(flux_item(flux_crossentropy(p, l, .ignore = false, .ignore_index = 1)), -(log(0.25) + log(0.5)) / 2, 1e-14);
}

TEST(operations_with_zero) {
    flux_tensor *x = flux_rand(6, 2, 1), *w = flux_rand(2, 2, 2);
    CHECK_ERROR(flux_conv(x, w, .groups = 0), "groups 0");
    CHECK_ERROR(flux_crosscor(x, w, .groups = 0), "groups 0");
    CHECK_ERROR(flux_conv_transpose(x, w, .groups = 0), "groups 0");
    CHECK_ERROR(flux_conv(x, w, .stride = FLUX_SHAPE(0)), "stride");
    CHECK_ERROR(flux_conv(x, w, .dilation = FLUX_SHAPE(0)), "dilation");
    CHECK(flux_dim(flux_conv(x, w, .pad = FLUX_SHAPE(0)), 0) == 5 && flux_dim(flux_conv_transpose(x, w, .outpad = FLUX_SHAPE(0)), 0) == 7);
    CHECK_ERROR(flux_lpnormpool(x, FLUX_SHAPE(2), .p = 0), "p is 0");
    CHECK_ERROR(flux_maxpool(x, FLUX_SHAPE(2), .stride = FLUX_SHAPE(0)), "stride");
    CHECK_ERROR(flux_maxpool(x, FLUX_SHAPE(0)), "window");
    flux_tensor *q = flux_rand(4, 3);
    CHECK_ERROR(flux_dot_product_attention(q, q, q, .nheads = 0), "0 heads");
    CHECK_ERROR(flux_dot_product_attention_scores(q, q, .nheads = 0), "0 heads");
    flux_device d = flux_get_device("CPU", 0), e = flux_get_device(.backend = "CPU", .id = 0, .verbose = false);
    CHECK(flux_device_equal(d, e));
}

TEST(initialisers_with_zero) {
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_init("glorot_uniform", FLUX_SHAPE(3, 3), .gain = 0)))), 0, 0);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_init("identity", FLUX_SHAPE(3, 3), .gain = 0, .shift = 0)))), 0, 0);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_init("sparse", FLUX_SHAPE(3, 3), .std = 0)))), 0, 0);
    CHECK(flux_item(flux_min(flux_abs(flux_init("sparse", FLUX_SHAPE(3, 3), .sparsity = 0)))) > 0);
    CHECK_NEAR(flux_item(flux_min(flux_init("truncated_normal", FLUX_SHAPE(9), .mean = 0.5, .std = 0))), 0.5, 0);
    CHECK_NEAR(flux_item(flux_max(flux_init("truncated_normal", FLUX_SHAPE(9), .std = 0, .lo = 0))), 0, 0);
    flux_tensor *up = flux_init("truncated_normal", FLUX_SHAPE(2000), .lo = 0), *down = flux_init("truncated_normal", FLUX_SHAPE(2000), .hi = 0, .mean = 0);
    CHECK(flux_item(flux_min(up)) >= 0 && flux_item(flux_max(up)) > 1.5 && flux_item(flux_max(up)) <= 2);
    CHECK(flux_item(flux_max(down)) <= 0 && flux_item(flux_min(down)) < -1.5 && flux_item(flux_min(down)) >= -2);
    CHECK_ERROR(flux_init("truncated_normal", FLUX_SHAPE(2), .lo = 0, .hi = 0), "bounds 0 and 0");
}

/* ------------------------------------------------------------------ layers */

/* What a layer's .init and the like makes is in each parameter that it says it is for, and in no other. */
static flux_tensor *quarters(flux_shape s) { return flux_full_with(s, 0.25, FLUX_F32); }
static flux_tensor *eighths(flux_shape s) { return flux_full_with(s, 0.125, FLUX_F32); }
static int filled_with(flux_layer *m, double number) {
    flux_tensor *param[40];
    int n = flux_params(m, param, 40), filled = 0;
    for (int i = 0; i < n; i++) filled += flux_item(flux_min(param[i])) == number && flux_item(flux_max(param[i])) == number;
    return filled;
}
TEST(each_layer_takes_its_initialisers) {
    const flux_shape two = FLUX_SHAPE(2, 2);
    const struct { flux_layer *layer; int quarters, eighths; } cases[] = {
        { flux_dense(3, 4, .init = quarters), 1, 0 }, { flux_scale(FLUX_SHAPE(3), .init = quarters), 1, 0 }, { flux_bilinear(3, 4, 2, .init = quarters), 1, 0 },
        { flux_embedding(3, 4, .init = quarters), 1, 0 }, { flux_embeddingbag(3, 4, .init = quarters), 1, 0 }, { flux_positionembedding(3, 4, .init = quarters), 1, 0 },
        { flux_rnn(3, 4, .init = quarters, .init_recurrent = eighths), 1, 1 }, { flux_lstm(3, 4, .init = quarters, .init_recurrent = eighths), 1, 1 },
        { flux_gru(3, 4, .init = quarters, .init_recurrent = eighths), 1, 1 }, { flux_gruv3(3, 4, .init = quarters, .init_recurrent = eighths), 1, 2 },
        { flux_rnncell(3, 4, .init = quarters, .init_recurrent = eighths), 1, 1 }, { flux_lstmcell(3, 4, .init = quarters, .init_recurrent = eighths), 1, 1 },
        { flux_grucell(3, 4, .init = quarters, .init_recurrent = eighths), 1, 1 }, { flux_gruv3cell(3, 4, .init = quarters, .init_recurrent = eighths), 1, 2 },
        { flux_multiheadattention(4, .nheads = 2, .init = quarters), 4, 0 }, { flux_swiglu(3, 4, .init = quarters), 3, 0 },
        { flux_conv_layer(two, 3, 4, .init = quarters), 1, 0 }, { flux_crosscor_layer(two, 3, 4, .init = quarters), 1, 0 },
        { flux_conv_transpose_layer(two, 3, 4, .init = quarters), 1, 0 }, { flux_depthwiseconv(two, 3, 6, .init = quarters), 1, 0 },
        { flux_batchnorm(3, .init_beta = quarters, .init_gamma = eighths), 1, 1 },
        { flux_instancenorm(3, .affine = FLUX_ON, .init_beta = quarters, .init_gamma = eighths), 1, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!CHECK(cases[i].layer && filled_with(cases[i].layer, 0.25) == cases[i].quarters && filled_with(cases[i].layer, 0.125) == cases[i].eighths))
            fprintf(stderr, "    %s: %d and %d\n", layer_of(cases[i].layer), filled_with(cases[i].layer, 0.25), filled_with(cases[i].layer, 0.125));
}

TEST(layers_with_zero) {
    flux_tensor *w = flux_ones(2, 3);
    CHECK_ERROR(flux_dense(.weight = w, .in = 0), "as given");
    CHECK_ERROR(flux_dense(.weight = w, .out = 0), "as given");
    CHECK(flux_dense(.weight = w) != NULL);
    CHECK_ERROR(flux_dense(0, 2), "0");
    CHECK(flux_num_params(flux_dense(2, 3, .bias = false)) == 6 && flux_num_params(flux_dense(2, 3, .bias = true)) == 9);
    CHECK(flux_num_params(flux_dense(2, 3, .bias = 0)) == 6 && flux_num_params(flux_dense(2, 3, .bias = FLUX_DEFAULT)) == 9);
    CHECK(flux_num_params(flux_scale(FLUX_SHAPE(3), .bias = false)) == 3 && flux_num_params(flux_bilinear(2, 2, 2, .bias = false)) == 8);
    CHECK(flux_num_params(flux_rnn(2, 3, .bias = false)) == 15 && flux_num_params(flux_lstm(2, 3, .bias = false)) == 60);
    CHECK(flux_num_params(flux_gru(2, 3, .bias = false, .hidden_bias = false, .return_state = false)) == 45);
    CHECK(flux_num_params(flux_conv_layer(FLUX_SHAPE(2), 2, 3, .bias = false)) == 12);
    CHECK_ERROR(flux_conv_layer(FLUX_SHAPE(2), 2, 3, .groups = 0), ".groups is 0");
    CHECK_ERROR(flux_depthwiseconv(FLUX_SHAPE(2), 2, 4, .groups = 0), "not to be given");
    CHECK_ERROR(flux_conv_layer(FLUX_SHAPE(2), 2, 3, .stride = FLUX_SHAPE(0)), "stride");
    CHECK_ERROR(flux_lpnormpool_layer(FLUX_SHAPE(2), .p = 0), ".p is 0");
    CHECK_ERROR(flux_globallpnormpool(0), "p is 0");
    CHECK_ERROR(flux_upsample(FLUX_NEAREST, .scale = { 0 }), "is to be given");
    CHECK_ERROR(flux_upsample(FLUX_NEAREST, .size = FLUX_SHAPE(0)), "0");
    CHECK_STR(layer_of(flux_dropout(.p = 0)), "Dropout(0)");
    CHECK_STR(layer_of(flux_dropout(.p = 0.5, .dims = FLUX_SHAPE(0))), "Dropout(0.5, dims=0)");
    CHECK_STR(layer_of(flux_embedding(5, 2)), "Embedding(5 => 2)");
    CHECK_STR(layer_of(flux_embedding(5, 2, .padding_idx = 0)), "Embedding(5 => 2, padding_idx=0)");
    CHECK_STR(layer_of(flux_embedding(5, 2, .pad = true)), "Embedding(5 => 2, padding_idx=0)");
    CHECK_STR(layer_of(flux_embedding(5, 2, .pad = false, .padding_idx = 1)), "Embedding(5 => 2)");
}

TEST(attention_layers_with_zero) {
    CHECK_ERROR(flux_multiheadattention(8, .nheads = 0), "0 heads");
    CHECK_ERROR(flux_multiheadattention(8, 0), "0 heads");
    CHECK_ERROR(flux_multiheadattention(8, .qk = 0), "0");
    CHECK_ERROR(flux_multiheadattention(8, .v = 0), "0");
    CHECK_ERROR(flux_multiheadattention(8, .out = 0), "0");
    CHECK_ERROR(flux_multiheadattention(8, .k_in = 0), "0");
    CHECK_ERROR(flux_multiheadattention(8, .v_in = 0), "0");
    flux_tensor *x = flux_rand(8, 3, 2);
    CHECK(flux_num_items(flux_call(flux_multiheadattention(8, .bias = false, .causal = false, .dropout = 0), x)) == 2);
    CHECK(flux_num_items(flux_call(flux_multiheadattention(8, .scores = false), x)) == 1);
}

TEST(norms_with_zero) {
    const double v[] = { 1, 1 + 1e-6, 1, 1 + 1e-6 };
    flux_tensor *x = flux_from(v, 2, 2), *image = flux_reshape(x, 2, 1, 2);
    CHECK_NEAR(flux_item(flux_max(flux_call(flux_layernorm(FLUX_SHAPE(2), .eps = 0), x))), 1, 1e-6);
    CHECK(flux_item(flux_max(flux_call(flux_layernorm(FLUX_SHAPE(2)), x))) < 0.01);
    flux_layer *group = flux_groupnorm(1, 1, .eps = 0), *batch = flux_batchnorm(1, .eps = 0, .momentum = 0), *instance = flux_instancenorm(1, .eps = 0);
    flux_trainmode(group, true), flux_trainmode(batch, true), flux_trainmode(instance, true);
    CHECK_NEAR(flux_item(flux_max(flux_call(group, image))), 1, 1e-6);
    CHECK_NEAR(flux_item(flux_max(flux_call(instance, image))), 1, 1e-8);
    CHECK_NEAR(flux_item(flux_max(flux_call(batch, image))), 1, 1e-6);
    flux_testmode(batch, true);           /* momentum 0: the running mean is 0 still, and the variance 1 */
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_call(batch, image), image)))), 0, 1e-7);
    CHECK(flux_num_params(flux_layernorm(FLUX_SHAPE(2), .affine = false)) == 0 && flux_num_params(flux_layernorm(FLUX_SHAPE(2))) == 4);
    CHECK(flux_num_params(flux_batchnorm(2, .affine = false)) == 0 && flux_num_params(flux_groupnorm(2, 1, .affine = false)) == 0);
    CHECK(flux_num_params(flux_instancenorm(2, .affine = false)) == 0 && flux_num_params(flux_instancenorm(2, .affine = true)) == 4);
    flux_layer *none = flux_batchnorm(1, .track_stats = false);
    flux_testmode(none, true);            /* without a running mean: the batch's */
    CHECK_NEAR(flux_item(flux_sum(flux_call(none, image))), 0, 1e-6);
    none = flux_batchnorm(1);
    flux_testmode(none, true);
    CHECK_NEAR(flux_item(flux_sum(flux_call(none, image))), 4, 1e-4);
}

/* ------------------------------------------------------------------ data */

static void order_of(flux_loader *l, double *out) {
    int n = 0;
    flux_each (b, l)
        for (int i = 0; i < (int)flux_len(b.x); i++) out[n++] = flux_at(b.x, i);
}

TEST(loaders_with_zero) {
    flux_tensor *x = flux_arange(0, 50, 1);
    double a[50], b[50];
    CHECK_ERROR(flux_dataloader(x, .batchsize = 0), ".batchsize is 0");
    CHECK_ERROR(flux_dataloader(x, .ranks = 0), "rank 0 of 0");
    CHECK(flux_length(flux_dataloader(x, .batchsize = 20, .partial = false)) == 2);
    CHECK(flux_length(flux_dataloader(x, .batchsize = 20, .workers = 0, .rank = 0, .collate = FLUX_COLLATE_DEFAULT)) == 3);
    flux_seed(1);
    order_of(flux_dataloader(x, .batchsize = 10, .shuffle = true, .seed = 0), a);
    order_of(flux_dataloader(x, .batchsize = 10, .shuffle = true, .seed = 0), b);
    CHECK(memcmp(a, b, sizeof a) == 0);   /* a seed like others */
    order_of(flux_dataloader(x, .batchsize = 10, .shuffle = true), a);
    order_of(flux_dataloader(x, .batchsize = 10, .shuffle = true), b);
    CHECK(memcmp(a, b, sizeof a) != 0);   /* none: from the stream */
    order_of(flux_dataloader(x, .batchsize = 10, .shuffle = false), a);
    CHECK_NEAR(a[49], 49, 0);
}

/* ------------------------------------------------------------------ how options are written */

#define NO_RATE .eta = 0
#define ZERO 0
#define BETAS(...) .beta = { __VA_ARGS__ }
static int64_t length_of(void *user) { return *(int *)user; }
static int get_one(void *user, int64_t i, int n, flux_tensor **out) { (void)user, (void)n; return *out = flux_full((double)i, 1), 0; }

TEST(options_however_they_are_written) {
    int calls = 0, none = 0, two = 2;
    CHECK_STR(text_of(flux_adam(NO_RATE)), "Adam(0, beta=(0.9, 0.999), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(ZERO, BETAS(0, 0.5))), "Adam(0, beta=(0, 0.5), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(.eta = none, /* .beta = { 0 }, */ .eps = (double)0)), "Adam(0, beta=(0.9, 0.999), eps=0)");
    CHECK_STR(text_of(flux_adam(.eta = none ? 1 : (0), .beta = { [1] = 0.5 })), "Adam(0, beta=(0, 0.5), eps=1e-08)");
    CHECK_STR(text_of(flux_adam(.eta = (calls++, 0))), "Adam(0, beta=(0.9, 0.999), eps=1e-08)");
    CHECK(calls == 1);
    CHECK_STR(text_of(flux_optimiser_chain(flux_weightdecay(0), flux_descent(.eta = 0))), "OptimiserChain(WeightDecay(0), Descent(0))");
    /* filled by hand in C, a struct has 0 for what is left out; FLUX_OPTIONS makes one that knows */
    flux_rule_opts hand = { 0 }, marked = FLUX_OPTIONS(flux_rule_opts, .rho = 0);
    hand.eta = 0.5;
    CHECK_STR(text_of(flux_rule_with("Momentum", hand)), "Momentum(0.5, rho=0.9)");
    CHECK_STR(text_of(flux_rule_with("Momentum", (flux_rule_opts){ .eta = 0.25 })), "Momentum(0.25, rho=0.9)");
    CHECK_STR(text_of(flux_rule_with("Momentum", marked)), "Momentum(0.01, rho=0)");
    marked.eta = 0;
    CHECK_STR(text_of(flux_rule_with("Momentum", marked)), "Momentum(0, rho=0)");
    CHECK(flux_num_params(flux_dense_with((flux_dense_opts){ .in = 2, .out = 3 })) == 9);
    CHECK(flux_num_params(flux_dense_with((flux_dense_opts){ .in = 2, .out = 3, .bias = FLUX_OFF })) == 6);
    /* what an argument points to lives as long as the block around it */
    flux_loader *l = flux_dataloader(.data = &(flux_dataset){ &two, length_of, get_one, 1 }, .batchsize = 1);
    CHECK(flux_length(l) == 2);
}

/* A struct of zeros, as other languages hand it over, has the defaults of the call's macro. */
static bool alike(flux_tensor *a, flux_tensor *b) {
    return a && b && flux_len(a) == flux_len(b) && flux_item(flux_sum((flux_abs(flux_sub(flux_to_dtype(a, FLUX_F64), flux_to_dtype(b, FLUX_F64)))))) == 0;
}
TEST(a_struct_of_zeros_is_the_defaults) {
    flux_tensor *x = flux_eval(flux_randn(4, 6)), *y = flux_eval(flux_softmax(flux_randn(4, 6), 0)), *p = flux_eval(flux_softmax(x, 0));
    flux_act_opts act = { 0 };
    flux_categorical_opts draw = { 0 };
    flux_loss_opts loss = { 0 };
    flux_topk_opts top = { 0 };
    flux_rotary_opts turn = { 0 };
    act.x = draw.x = turn.x = x, loss.yhat = p, loss.y = y, top.yhat = flux_randn(9, 40), top.y = flux_onecold(flux_randn(9, 40));
    CHECK(alike(flux_leakyrelu_with(act), flux_leakyrelu(x)) && alike(flux_elu_with(act), flux_elu(x)) && alike(flux_celu_with(act), flux_celu(x)));
    CHECK(alike(flux_softshrink_with(act), flux_softshrink(x)) && alike(flux_trelu_with(act), flux_trelu(x)) && alike(flux_rotary_with(turn), flux_rotary(x)));
    CHECK(alike(flux_topk_accuracy_with(top), flux_topk_accuracy(top.yhat, top.y)));
    flux_seed(3);
    flux_tensor *one = flux_eval(flux_categorical_with(draw));
    flux_seed(3);
    CHECK(alike(one, flux_categorical(x)) && !alike(one, flux_argmax(x, 0)));
#define OF_ZEROS(name, per) CHECK(alike(flux_##name##_with(loss), flux_##name(p, y)));
    FLUX__LOSSES(OF_ZEROS)
}

/* Two layers, made alike and called alike: with the same text, and the same results in train mode. */
static flux_tensor *trained_call(flux_layer *m, flux_tensor *x) {
    flux_trainmode(m, true);
    flux_seed(4);
    return flux_eval(flux_nth(flux_call(m, x), 0));
}
#define LAYER_OF_ZEROS(with, type, x, macro, ...) do {                                               \
        char text[300];                                                                              \
        flux_seed(3);                                                                                \
        flux_layer *a = with((type){ __VA_ARGS__ });                                                 \
        flux_seed(3);                                                                                \
        flux_layer *b = macro;                                                                       \
        snprintf(text, sizeof text, "%s", layer_of(a));                                              \
        CHECK_STR(text, layer_of(b));                                                                \
        CHECK(a && b && alike(trained_call(a, x), trained_call(b, x)));                              \
    } while (0)
TEST(a_layer_of_a_struct_of_zeros_has_the_defaults) {
    if (test_device.backend) SKIP("options are the same on each device");
    static const int32_t places[] = { 0, 2, 1 };
    const flux_shape two = FLUX_SHAPE(2);
    flux_tensor *x = flux_eval(flux_randn(4, 5, 3)), *image = flux_eval(flux_randn(6, 4, 3)), *wide = flux_eval(flux_randn(8, 5, 3));
    LAYER_OF_ZEROS(flux_dense_with, flux_dense_opts, x, flux_dense(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_scale_with, flux_scale_opts, x, flux_scale(FLUX_SHAPE(4)), .size = FLUX_SHAPE(4));
    LAYER_OF_ZEROS(flux_bilinear_with, flux_bilinear_opts, flux_tuple(x, x), flux_bilinear(4, 4, 2), .in1 = 4, .in2 = 4, .out = 2);
    LAYER_OF_ZEROS(flux_embedding_with, flux_embedding_opts, flux_from(places, 3), flux_embedding(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_embeddingbag_with, flux_embeddingbag_opts, flux_from(places, 3, 1), flux_embeddingbag(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_rnn_with, flux_recurrent_opts, x, flux_rnn(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_lstm_with, flux_recurrent_opts, x, flux_lstm(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_gru_with, flux_recurrent_opts, x, flux_gru(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_gruv3_with, flux_recurrent_opts, x, flux_gruv3(4, 2), .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_multiheadattention_with, flux_multiheadattention_opts, wide, flux_multiheadattention(8), .in = 8);
    LAYER_OF_ZEROS(flux_positionembedding_with, flux_positionembedding_opts, x, flux_positionembedding(6, 4), .steps = 6, .features = 4);
    LAYER_OF_ZEROS(flux_swiglu_with, flux_swiglu_opts, x, flux_swiglu(4, 6), .in = 4, .hidden = 6);
    LAYER_OF_ZEROS(flux_rmsnorm_with, flux_rmsnorm_opts, x, flux_rmsnorm(FLUX_SHAPE(4)), .size = FLUX_SHAPE(4));
    LAYER_OF_ZEROS(flux_layernorm_with, flux_layernorm_opts, x, flux_layernorm(FLUX_SHAPE(4)), .size = FLUX_SHAPE(4));
    LAYER_OF_ZEROS(flux_dropout_with, flux_dropout_opts, x, flux_dropout(0.5), .p = 0.5);
    LAYER_OF_ZEROS(flux_conv_layer_with, flux_conv_layer_opts, image, flux_conv_layer(two, 4, 2), .window = two, .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_crosscor_layer_with, flux_conv_layer_opts, image, flux_crosscor_layer(two, 4, 2), .window = two, .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_conv_transpose_layer_with, flux_conv_layer_opts, image, flux_conv_transpose_layer(two, 4, 2), .window = two, .in = 4, .out = 2);
    LAYER_OF_ZEROS(flux_depthwiseconv_with, flux_conv_layer_opts, image, flux_depthwiseconv(two, 4, 8), .window = two, .in = 4, .out = 8);
    LAYER_OF_ZEROS(flux_maxpool_layer_with, flux_pool_layer_opts, image, flux_maxpool_layer(two), .window = two);
    LAYER_OF_ZEROS(flux_meanpool_layer_with, flux_pool_layer_opts, image, flux_meanpool_layer(two), .window = two);
    LAYER_OF_ZEROS(flux_lpnormpool_layer_with, flux_pool_layer_opts, image, flux_lpnormpool_layer(two), .window = two);
    LAYER_OF_ZEROS(flux_batchnorm_with, flux_norm_opts, image, flux_batchnorm(4), .channels = 4);
    LAYER_OF_ZEROS(flux_instancenorm_with, flux_norm_opts, image, flux_instancenorm(4), .channels = 4);
    LAYER_OF_ZEROS(flux_groupnorm_with, flux_groupnorm_opts, image, flux_groupnorm(4, 2), .channels = 4, .groups = 2);
    LAYER_OF_ZEROS(flux_averaged_with, flux_averaged_opts, x, flux_averaged(flux_dense(4, 2)), .model = flux_dense(4, 2));
}

/* The same of operations. */
#define OPERATION_OF_ZEROS(with, type, macro, ...) CHECK(alike(flux_nth(with((type){ __VA_ARGS__ }), 0), flux_nth(macro, 0)))
TEST(an_operation_of_a_struct_of_zeros_has_the_defaults) {
    if (test_device.backend) SKIP("options are the same on each device");
    const flux_shape two = FLUX_SHAPE(2);
    flux_tensor *x = flux_eval(flux_randn(4, 5, 3)), *image = flux_eval(flux_randn(6, 4, 3)), *w = flux_eval(flux_randn(2, 4, 2)), *back = flux_eval(flux_randn(2, 2, 4));
    OPERATION_OF_ZEROS(flux_dot_product_attention_with, flux_attention_opts, flux_dot_product_attention(x, x, x), .q = x, .k = x, .v = x);
    OPERATION_OF_ZEROS(flux_dot_product_attention_scores_with, flux_attention_opts, flux_dot_product_attention_scores(x, x), .q = x, .k = x);
    OPERATION_OF_ZEROS(flux_sort_with, flux_sort_opts, flux_sort(x, 0), .x = x);
    OPERATION_OF_ZEROS(flux_argsort_with, flux_sort_opts, flux_argsort(x, 0), .x = x);
    OPERATION_OF_ZEROS(flux_conv_with, flux_conv_opts, flux_conv(image, w), .x = image, .weight = w);
    OPERATION_OF_ZEROS(flux_crosscor_with, flux_conv_opts, flux_crosscor(image, w), .x = image, .weight = w);
    OPERATION_OF_ZEROS(flux_conv_transpose_with, flux_conv_opts, flux_conv_transpose(image, back), .x = image, .weight = back);
    OPERATION_OF_ZEROS(flux_maxpool_with, flux_pool_opts, flux_maxpool(image, two), .x = image, .window = two);
    OPERATION_OF_ZEROS(flux_meanpool_with, flux_pool_opts, flux_meanpool(image, two), .x = image, .window = two);
    OPERATION_OF_ZEROS(flux_lpnormpool_with, flux_pool_opts, flux_lpnormpool(image, two), .x = image, .window = two);
}

TEST_MAIN()
