/* One program in C and in C++, from C++11 on: every option struct is filled and used, and every macro that takes an argument
   more than once evaluates it once. check_cplusplus.sh compiles it in each language and links it to the other's
   implementation; what it prints must be the same. */
#include "flux.h"
#include <string.h>

static int calls;
static flux_tensor *once(flux_tensor *x) { calls++; return x; }
static flux_layer *once_layer(flux_layer *m) { calls++; return m; }
static const float numbers[6] = { 1, 2, 3, 4, 5, 6 };
static const float *once_numbers(void) { calls++; return numbers; }
static flux_tensor *six(void) { return once(flux_from(numbers, 3, 2)); }

static void say(const char *what, flux_tensor *x) {   /* its shape and its sum, weighed so that places count */
    printf("%s:", what);
    for (int i = 0; i < flux_ndim(x); i++) printf(" %d", (int)flux_dim(x, i));
    flux_tensor *flat = flux_to_dtype(flux_reshape(x, flux_len(x)), FLUX_F64);
    printf(" sum %.5g\n", flux_item(flux_dot(flat, flux_to_dtype(flux_arange(1, (double)flux_len(x) + 0.5, 1), FLUX_F64))));
}

static void say_layer(const char *what, flux_layer *m, flux_tensor *x) {
    char text[400];
    flux_layer_text(m, text, sizeof text);
    printf("%s\n", text);
    flux_testmode(m, true);
    flux_tensor *y = flux_call(m, x);
    say(what, flux_num_items(y) > 1 ? flux_nth(y, 0) : y);
}

static void operations(void) {
    flux_tensor *x = flux_sin(flux_reshape(flux_arange(0, 72, 1), 6, 6, 2, 1));
    flux_tensor *w = flux_cos(flux_reshape(flux_arange(0, 16, 1), 2, 2, 2, 2));
    say("conv", flux_conv(.x = x, .weight = w, .stride = FLUX_SHAPE(2, 1), .pad = FLUX_SHAPE(1)));
    say("crosscor", flux_crosscor(.x = x, .weight = flux_slice(w, 2, 0, 1), .dilation = FLUX_SHAPE(2), .groups = 2));
    say("conv_transpose", flux_conv_transpose(.x = x, .weight = w, .stride = FLUX_SHAPE(2), .outpad = FLUX_SHAPE(1)));
    say("maxpool", flux_maxpool(.x = x, .window = FLUX_SHAPE(2, 3)));
    say("lpnormpool", flux_lpnormpool(.x = flux_abs(x), .window = FLUX_SHAPE(2, 2), .stride = FLUX_SHAPE(1), .p = 3));
    say("sum", flux_sum(x, 0, 2));
    say("softmax", flux_softmax(x, 1));
    say("leakyrelu", flux_leakyrelu(.x = x, .alpha = 0.3));
    say("rrelu", flux_rrelu(.x = x, .lo = 0.25, .hi = 0.25));
    flux_tensor *q = flux_reshape(x, 4, 18);
    say("attention", flux_nth(flux_dot_product_attention(.q = q, .k = q, .v = q, .nheads = 2, .causal = true), 0));
    say("init", flux_init("kaiming_normal", .shape = FLUX_SHAPE(4, 5), .gain = 2));
    say("sparse", flux_init("sparse", .shape = FLUX_SHAPE(4, 5), .std = 3, .sparsity = 0.5));
    flux_device d = flux_get_device(.backend = "CPU", .id = 0, .verbose = false);
    printf("%s\n", flux_device_name(d));
}

static void layers(void) {
    flux_tensor *x = flux_sin(flux_reshape(flux_arange(0, 32, 1), 8, 4));
    flux_tensor *image = flux_sin(flux_reshape(flux_arange(0, 128, 1), 8, 4, 2, 2));
    flux_tensor *index = flux_to_dtype(flux_reshape(flux_arange(0, 6, 1), 3, 2), FLUX_I32);
    say_layer("dense", flux_dense(.in = 8, .out = 3, .activation = flux_tanh, .bias = FLUX_OFF), x);
    say_layer("dense", flux_dense(.weight = flux_ones(3, 8), .bias_tensor = flux_ones(3)), x);
    say_layer("scale", flux_scale(.size = FLUX_SHAPE(8), .bias = FLUX_OFF), x);
    say_layer("bilinear", flux_bilinear(.in1 = 8, .in2 = 8, .out = 2, .bias = FLUX_ON), x);
    say_layer("embedding", flux_embedding(.in = 7, .out = 3, .pad = FLUX_ON, .padding_idx = 1), index);
    say_layer("positionembedding", flux_positionembedding(.steps = 9, .features = 2, .init = flux_ones32), flux_ones(2, 3));
    say_layer("embeddingbag", flux_embeddingbag(.in = 7, .out = 3, .reduction = flux_sum), index);
    say_layer("gru", flux_gru(.in = 8, .out = 3, .bias = FLUX_ON, .return_state = false, .hidden_bias = true), x);
    say_layer("recurrence", flux_recurrence(.cell = flux_rnncell(.in = 8, .out = 3), .return_state = true), x);
    say_layer("attention", flux_multiheadattention(.in = 8, .nheads = 4, .out = 5, .bias = true, .scores = FLUX_OFF), x);
    say_layer("layernorm", flux_layernorm(.size = FLUX_SHAPE(8), .eps = 0.1), x);
    say_layer("dropout", flux_dropout(.p = 0.5, .dims = FLUX_SHAPE(0)), x);
    say_layer("conv", flux_conv_layer(.window = FLUX_SHAPE(3, 3), .in = 2, .out = 4, .pad = FLUX_SAMEPAD, .groups = 2), image);
    say_layer("lpnormpool", flux_lpnormpool_layer(.window = FLUX_SHAPE(2, 2), .p = 4), flux_abs(image));
    say_layer("upsample", flux_upsample(.mode = FLUX_BILINEAR, .scale = { 2, 3 }), image);
    say_layer("upsample", flux_upsample(.mode = FLUX_NEAREST, .size = FLUX_SHAPE(16, 8)), image);
    say_layer("batchnorm", flux_batchnorm(.channels = 2, .track_stats = FLUX_OFF, .eps = 0.5), image);
    say_layer("groupnorm", flux_groupnorm(.channels = 2, .groups = 2, .affine = FLUX_OFF), image);
    say_layer("weightnorm", flux_weightnorm(.layer = flux_dense(.in = 8, .out = 2), .which = "weight", .dims = FLUX_SHAPE(1)), x);
}

static flux_tensor *line_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static void training(void) {
    flux_tensor *x = flux_sin(flux_reshape(flux_arange(0, 40, 1), 4, 10)), *y = flux_abs(flux_cos(flux_reshape(flux_arange(0, 20, 1), 2, 10)));
    const flux_rule rules[] = {
        flux_adam(.eta = 0.1, .beta = { 0.5, 0.75 }, .eps = 1e-3),
        flux_rprop(.eta = 0.01, .ell = { 0.25, 1.5 }, .gamma = { 1e-3, 2 }),
        flux_optimiser_chain(flux_clipnorm(.omega = 0.5, .p = 1), flux_rmsprop(.rho = 0.5, .centred = true), flux_weightdecay(.lambda = 0.1)),
        flux_optimiser_chain(flux_clipgrad(.delta = 0.01), flux_adamw(.lambda = 0.5, .couple = FLUX_OFF)),
    };
    say("loss", flux_huber_loss(.yhat = flux_mul(y, 3), .y = y, .agg = FLUX_SUM, .delta = 0.25));
    say("loss", flux_focal_loss(.yhat = flux_softmax(y), .y = flux_softmax(flux_neg(y)), .agg = FLUX_NONE, .gamma = 3));
    flux_layer *top = flux_metric(.f = flux_topk_accuracy, .k = 1);
    printf("metric: %d\n", flux_metric_add(top, y, flux_onecold(y)));
    say("metric", flux_metric_value(top));
    say("topk", flux_topk_accuracy(.yhat = y, .y = flux_onecold(flux_neg(y)), .k = 1));
    flux_layer *mean = flux_averaged(.model = flux_dense(.in = 4, .out = 2, .init = flux_ones32), .decay = 0.5);
    printf("average: %d\n", flux_update_average(mean, flux_dense(.in = 4, .out = 2)));
    say("average", flux_call(flux_averaged(.model = flux_child(mean, 0), .equal = true), x));
    flux_layer *line = flux_dense(.in = 4, .out = 2, .init = flux_ones32);
    flux_loader *ten = flux_dataloader(.x = x, .y = y, .batchsize = 4, .weights = flux_ones(10), .seed = 3);
    flux_tensor *history = NULL;
    printf("train: %d\n", flux_train(.loss = line_loss, .model = line, .data = ten, .state = flux_setup(flux_adam(), line), .epochs = 5, .validation = ten,
                                     .metrics = { flux_metric(.f = flux_r2) }, .early_stop = 4, .min_dist = 1e-3, .history = &history));
    say("history", history);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        flux_seed(3);
        flux_layer *m = flux_chain(flux_dense(4, 3, flux_tanh), flux_dense(3, 2));
        flux_state *opt = flux_setup(rules[i], m);
        flux_loader *data = flux_dataloader(.x = x, .y = y, .batchsize = 4, .shuffle = true, .partial = FLUX_OFF, .seed = 5);
        flux_adjust(opt, .eta = 0.05);
        flux_each (b, data)
            flux_update(opt, m, flux_gradient(flux_mse(flux_call(m, b.x), b.y), m));
        flux_each (b, .loader = data, .progress = NULL) flux_progress_number("", 0);
        flux_print(opt);
        say("trained", flux_destructure(m));
    }
}

static void say_rule(flux_rule r) {
    char text[400];
    flux_state_text(flux_setup(r, flux_dense(1, 1)), text, sizeof text);
    printf("%s\n", text);
}

/* Each option as 0, which is not as if it were left out; what can't be 0 is an error that says so. */
static void zeros(void) {
    flux_tensor *x = flux_sin(flux_reshape(flux_arange(0, 32, 1), 4, 4, 2)), *y = flux_gt(x, 0), *index = flux_to_dtype(flux_arange(0, 2, 1), FLUX_I32);
    flux_tensor *p = flux_softmax(flux_reshape(flux_arange(0, 4, 1), 2, 2));
    say("leakyrelu", flux_leakyrelu(.x = x, .alpha = 0));
    say("elu", flux_elu(.x = x, .alpha = 0));
    say("rrelu", flux_rrelu(.x = x, .lo = 0, .hi = 0));
    say("gain", flux_init("identity", .shape = FLUX_SHAPE(2, 2), .gain = 0));
    say("std", flux_init("truncated_normal", .shape = FLUX_SHAPE(2, 2), .mean = 0.5, .std = 0, .lo = 0));
    say("huber", flux_huber_loss(.yhat = x, .y = y, .delta = 0));
    say("focal", flux_focal_loss(.yhat = p, .y = p, .gamma = 0));
    say("margin", flux_siamese_contrastive_loss(.yhat = x, .y = y, .margin = 0));
    say("dice", flux_dice_coeff_loss(.yhat = x, .y = y, .smooth = 0));
    say("tversky", flux_tversky_loss(.yhat = x, .y = y, .beta = 0));
    say("eps", flux_crossentropy(.yhat = p, .y = p, .eps = 0));
    say("ignore", flux_crossentropy(.yhat = p, .y = index, .ignore_index = 0));
    say("eps", flux_call(flux_layernorm(.size = FLUX_SHAPE(4), .affine = false, .eps = 0), x));
    say_layer("norm", flux_groupnorm(.channels = 4, .groups = 2, .affine = false, .eps = 0), x);
    say_layer("momentum", flux_batchnorm(.channels = 4, .affine = false, .track_stats = false, .eps = 0, .momentum = 0), x);
    say_layer("bias", flux_dense(.in = 4, .out = 4, .bias = false, .init = flux_ones32), x);
    say_layer("padding", flux_embedding(.in = 4, .out = 2, .init = flux_ones32, .padding_idx = 0), index);
    say_rule(flux_descent(0));
    say_rule(flux_descent(.eta = 0));
    say_rule(flux_adam(.eta = 0, .beta = { 0, 0.5 }, .eps = 0));
    say_rule(flux_adam(.beta = { 0.5 }));
    say_rule(flux_adamw(.beta = { 0.5, 0 }, .lambda = 0, .couple = false));
    say_rule(flux_momentum(.rho = 0));
    say_rule(flux_rmsprop(.centred = false));
    say_rule(flux_weightdecay(.lambda = 0));
    flux_rule_opts o = FLUX_OPTIONS(flux_rule_opts, .eta = 0);
    o.rho = 0, o.couple = FLUX_DEFAULT;
    say_rule(flux_rule_with("Nesterov", o));
    flux_loader *data = flux_dataloader(.x = flux_arange(0, 9, 1), .batchsize = 9, .shuffle = true, .partial = false, .seed = 0);
    flux_each (b, data) say("seed", b.x);
}

static void told(const char *message, void *user) { (void)user, printf("%s\n", message); }
static void refusals(void) {
    flux_tensor *x = flux_ones(4, 2, 1), *w = flux_ones(2, 2, 2);
    flux_on_error(told, NULL);
    flux_conv(.x = x, .weight = w, .groups = 0);
    flux_lpnormpool(.x = x, .window = FLUX_SHAPE(2), .p = 0);
    flux_dot_product_attention(.q = x, .k = x, .v = x, .nheads = 0);
    flux_multiheadattention(.in = 4, .nheads = 0);
    flux_multiheadattention(.in = 4, .qk = 0);
    flux_dense(.in = 0, .weight = flux_ones(2, 3));
    flux_conv_layer(.window = FLUX_SHAPE(2), .in = 2, .out = 2, .groups = 0);
    flux_lpnormpool_layer(.window = FLUX_SHAPE(2), .p = 0);
    flux_dataloader(.x = x, .batchsize = 0);
    flux_dataloader(.x = x, .rank = 0, .ranks = 0);
    flux_clipgrad(.delta = 0);
    flux_clipnorm(.omega = 0);
    flux_descent(.rho = 0);
    flux_state *s = flux_setup(flux_rmsprop(), flux_dense(1, 1));
    flux_adjust(s, .beta = { 0, 0 });
    flux_adjust(s, .centred = false);
    flux_on_error(NULL, NULL);
    flux_clear();
}

#define ONCE(n, call)                                                                                  \
    do {                                                                                               \
        calls = 0;                                                                                     \
        (void)(call);                                                                                  \
        if (calls != (n)) printf("%s: %d evaluations of %d arguments\n", #call, calls, (n));           \
    } while (0)

static void evaluations(void) {
    flux_tensor *x = flux_from(numbers, 3, 2);
    flux_layer *m = flux_dense(3, 3);
    flux_tensor *carried = NULL;
    flux_grads *g;
    ONCE(1, flux_from(once_numbers(), 3, 2));
    ONCE(1, flux_borrow(once_numbers(), 3, 2));
    ONCE(1, flux_from_rows(once_numbers(), 2, 3));
    ONCE(1, flux_keep(six()));
    ONCE(1, flux_keep(once_layer(m)));
    flux_times (i, 1) ONCE(1, carried = flux_carry(carried, six()));
    ONCE(1, flux_floats(six()));
    ONCE(1, flux_at(six(), 1, 1));
    ONCE(1, flux_gpu(six()));
    ONCE(1, flux_cpu(once_layer(m)));
    ONCE(1, flux_to(flux_device_of(x), six()));
    ONCE(1, flux_device_of(six()));
    ONCE(2, flux_add(six(), six()));
    ONCE(1, flux_sub(six(), 1));
    ONCE(1, flux_mul(2, six()));
    ONCE(3, flux_where(once(flux_gt(x, 1)), six(), six()));
    ONCE(1, flux_sum(six()));
    ONCE(1, flux_sum(six(), 0, 1));
    ONCE(1, flux_reshape(six(), 6));
    ONCE(2, flux_cat(0, six(), six()));
    ONCE(2, flux_tuple(six(), six()));
    ONCE(2, flux_call(once_layer(m), six()));
    ONCE(2, flux_chain(once_layer(m), once_layer(m)));
    ONCE(2, flux_parallel(flux_add, once_layer(m), once_layer(m)));
    ONCE(1, flux_skipconnection(once_layer(m), flux_add));
    ONCE(1, flux_leakyrelu(six()));
    ONCE(2, flux_mse(six(), six()));
    ONCE(2, flux_topk_accuracy(six(), six(), 1));
    ONCE(1, flux_maxpool(flux_reshape(six(), 3, 2, 1), FLUX_SHAPE(1)));
    ONCE(2, g = flux_gradient(once(flux_sum(flux_call(m, x))), once_layer(m)));
    ONCE(1, flux_outputsize(once_layer(m), 3, 2));
    ONCE(1, flux_setup(flux_adam(), once_layer(m)));
    ONCE(1, flux_dataloader(six()));
    ONCE(1, FLUX_SHAPE((calls++, 2)));
    ONCE(1, flux_optimiser_chain(flux_clipnorm(), flux_adam((calls++, 0.1))));
    printf("evaluated once: %s\n", g ? "yes" : "no");
}

int main(void) {
    FLUX_SCOPE { operations(); }
    FLUX_SCOPE { layers(); }
    FLUX_SCOPE { training(); }
    FLUX_SCOPE { zeros(); }
    FLUX_SCOPE { refusals(); }
    FLUX_SCOPE { evaluations(); }
    return flux_failed();
}
