/* Errors are values, and each call judges itself: what failed before it is no concern of its, only a NULL handle then needs
   no words, and flux_each begins with nothing pending. */
#include "test.h"

static int sentences;
static char latest[1024];
static void count(const char *message, void *user) { (void)user, sentences++, snprintf(latest, sizeof latest, "%s", message); }

/* An error that the program has handled, and not cleared: a file that need not be there. */
static void handled_error(void) {
    flux_on_error(count, NULL);
    sentences = 0;
    flux_load_npy("there/is/no/such.npy");
    test_check(sentences == 1 && flux_failed(), __FILE__, __LINE__, "the file is missing");
}
static void forgotten(void) {
    flux_clear();
    flux_on_error(NULL, NULL);
}
/* With the handled error pending, the call succeeds, and nothing more is said. */
#define VALID(expr) do {                                                                             \
        test_check((expr) ? true : false, __FILE__, __LINE__, #expr);                                \
        if (sentences != 1) test_fail(__FILE__, __LINE__, latest);                                   \
        sentences = 1;                                                                               \
    } while (0)
/* It fails and says why. */
#define FAILS(expr, part) do {                                                                       \
        test_check((expr) ? true : false, __FILE__, __LINE__, #expr);                                \
        test_check(sentences == 2 && strstr(latest, part), __FILE__, __LINE__, #expr " says: " part);   \
        sentences = 1;                                                                               \
    } while (0)

static flux_tensor *loss_of(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static flux_tensor *no_loss(flux_layer *m, flux_tensor *x, flux_tensor *y) { return (void)m, (void)x, (void)y, (flux_tensor *)NULL; }
static flux_tensor *square(flux_tensor *x, void *user) { return (void)user, flux_sum(flux_square(x)); }
static flux_tensor *nothing(flux_tensor *x) { return (void)x, (flux_tensor *)NULL; }
static flux_tensor *pair(flux_tensor *x) { return flux_tuple(x, x); }
static flux_tensor *twice(flux_tensor *x) { return flux_mul(x, 2.0); }
static int64_t three(void *user) { return (void)user, 3; }
static int ones(void *user, int64_t i, int n, flux_tensor **out) {
    (void)user;
    for (int k = 0; k < n; k++) out[k] = flux_full((double)i, 2);
    return 0;
}

TEST(operations_after_a_handled_error) {
    flux_tensor *x = flux_rand(4, 6), *w = flux_rand(4);
    int32_t label[] = { 1, 2 };
    handled_error();
    VALID(flux_ndim(flux_stack(0, x, x)) == 3);
    flux_grads *g = flux_gradient(flux_sum(flux_mul(x, w)), w);
    VALID(g && flux_item(flux_sum(flux_grad(g, w))) > 0);
    VALID(flux_data(flux_nth(flux_dot_product_attention(x, x, x), 0)) != NULL);
    VALID(flux_data(flux_dot_product_attention_scores(x, x, .mask = flux_make_causal_mask(x))) != NULL);
    VALID(flux_item(flux_ctc_loss(flux_rand(5, 7), flux_from(label, 2))) > 0);
    VALID(flux_data(flux_expr("sum((x .+ 1).^2)", x)) != NULL);
    VALID(flux_gradcheck(square, NULL, x, 4) < 1e-2);
    VALID(flux_eval_all(2, ((flux_tensor *[]){ flux_exp(x), flux_log(x) })) == 0);
    FAILS(!flux_stack(0, x, w), "stack: shapes differ");
    FAILS(!flux_gradient(x, x), "gradient: the loss must be one real number");
    FAILS(!flux_ctc_loss(x, x), "ctc_loss: y is integer labels");
    forgotten();
}

/* Of calls that are made of others: what another refuses begins with the name of the call that was made. */
TEST(errors_name_the_call_that_was_made) {
    flux_tensor *x = flux_rand(3, 4), *whole = flux_to_dtype(flux_mul(x, 5), FLUX_I64);
    CHECK_ERROR(flux_masked_fill(x, flux_gt(flux_rand(5, 4), 0.5), 0), "masked_fill: where: ");
    CHECK_ERROR(flux_masked_fill(whole, flux_gt(x, 0.5), 0.1), "masked_fill: where: the number 0.1 has no place in a tensor of i64");
    CHECK_ERROR(flux_clamp(whole, 0.5, 2), "clamp: max2: the number 0.5 has no place");
    CHECK_ERROR(flux_stack(5, x, x), "stack: unsqueeze: no new dim can stand before dim 5");
    CHECK_ERROR(flux_randperm((int64_t)1 << 62), "randperm: 4611686018427387904 numbers");
    CHECK_ERROR(flux_randint_with(0, 5, flux__shape(NULL, 9)), "randint: rand: 9 dimensions");
    CHECK_ERROR(flux_balanced_weights(flux_zeros(0, 3)), "balanced_weights: onecold: y has no classes");
    CHECK_ERROR(flux_perplexity(x, flux_rand(3, 5)), "perplexity: ");
    CHECK_ERROR(flux_batchnorm((int64_t)1 << 62), "batchnorm: a tensor of");
    CHECK_ERROR(flux_read(flux_tuple(x, x), NULL, 0), "read: an operand is a tuple");
    CHECK(flux_clamp(x, 0.2, 0.5) != NULL);                    /* and that ends with the call */
    CHECK_ERROR(flux_add(x, flux_rand(5, 4)), "add: ");
}

TEST(models_after_a_handled_error) {
    flux_layer *m = flux_chain(flux_dense(2, 3, flux_tanh), flux_dense(3, 1));
    flux_tensor *x = flux_rand(2, 8), *y = flux_rand(1, 8);
    flux_state *s = flux_setup(flux_adam(), m), *mixed = flux_setup(flux_mixed_precision(flux_adam()), m);
    flux_loader *l = flux_dataloader(x, y, .batchsize = 4);
    handled_error();
    VALID(flux_chain(flux_dense(2, 3), flux_dense(3, 1)) != NULL);
    VALID(flux_update(s, m, flux_gradient(loss_of(m, x, y), m)) == 0);
    VALID(flux_update(mixed, m, flux_gradient(flux_scaled_loss(mixed, loss_of(m, x, y)), m)) == 0);
    VALID(flux_adjust(s, .eta = 0.01) == 0 && flux_adjust_part_with(s, m, (flux_rule_opts){ .eta = 0.02 }) == 0);
    VALID(flux_train(loss_of, m, l, s) == 0);
    VALID(flux_prewarm(m, 2, 8) == 0);
    VALID(flux_fmap(twice, m) != NULL && flux_fmap(flux_relu, m) != NULL);
    VALID(flux_first(l).x != NULL);
    VALID(flux_first(flux_mapobs(twice, l)).x != NULL);
    flux_dataset set;
    memset(&set, 0, sizeof set);
    set.length = three, set.get = ones, set.arrays = 2;
    VALID(flux_first(flux_dataloader(.data = &set, .batchsize = 2)).size == 2);
    FAILS(!flux_fmap(nothing, m), "fmap: the function gave NULL for layers.0.weight");
    FAILS(!flux_fmap(pair, m), "fmap: the function gave a tuple for layers.0.weight of Dense");
    FAILS(flux_train(no_loss, m, l, s) != 0, "train: the loss function gave NULL at batch 0");
    FAILS(flux_adjust(s, .rho = 0.5) != 0, "adjust: there is no rho in");
    forgotten();
}

TEST(a_function_of_the_user_may_fail_and_go_on) {
    flux_tensor *x = flux_rand(2, 8), *y = flux_rand(1, 8);
    flux_layer *m = flux_chain(flux_dense(2, 1));
    int batches = 0;
    handled_error();
    flux_each (b, flux_dataloader(x, y, .batchsize = 4)) batches++;   /* none while an error is pending */
    CHECK(batches == 0 && sentences == 1);
    flux_clear();
    flux_each (b, flux_dataloader(x, y, .batchsize = 4)) {
        flux_load_npy("there/is/no/such.npy");
        flux_clear();
        batches++;
    }
    CHECK(batches == 2 && !flux_failed());
    flux_each (b, flux_dataloader(x, y, .batchsize = 2)) {
        if (batches++ == 3) flux_call(m, y);
    }
    CHECK(batches == 4 && strstr(latest, "expects dim 0 of size 2"));
    forgotten();
}

/* A function of the user, called from within a call of the library, handles one error and ends with another: that is the
   call's, however deep in the call it was. */
static int met;
static flux_tensor *ends_badly(flux_tensor *x) {
    met++;
    flux_load_npy("there/is/no/such.npy");
    flux_clear();
    return flux_clamp(x, 2, 1);
}
static flux_tensor *joins_badly(flux_tensor *x, flux_tensor *y) { return (void)y, ends_badly(x); }
static flux_tensor *is_shaped_badly(flux_shape s) { return ends_badly(flux_full_with(s, 0, FLUX_F32)); }
static flux_tensor *loses_badly(flux_layer *m, flux_tensor *x, flux_tensor *y) { return (void)m, (void)y, ends_badly(x); }
static flux_tensor *loses_once(flux_layer *m, void *user) { return ends_badly(flux_call(m, (flux_tensor *)user)); }
static flux_tensor *squares_badly(flux_tensor *x, void *user) { return (void)user, ends_badly(x); }
static flux_tensor *custom_badly(int n, flux_tensor *const *x, void *user) { return (void)n, (void)user, ends_badly(x[0]); }
static flux_tensor *custom_well(int n, flux_tensor *const *x, void *user) { return (void)n, (void)user, flux_exp(x[0]); }
static void back_badly(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *user) {
    (void)n, (void)x, (void)y, (void)user;
    dx[0] = ends_badly(g);
}
static int gets_badly(void *user, int64_t i, int n, flux_tensor **out) {
    (void)user, (void)n, (void)i;
    return (out[0] = ends_badly(flux_ones(2))) ? 0 : 1;
}
enum { ENDS = 19 };
static bool ends(int way, flux_tensor *x) {
    static const flux_dataset set = { NULL, three, gets_badly, 1 };
    flux_layer *m = flux_dense(2, 2);
    flux_state *s = flux_setup(flux_descent(), m);
    flux_grads *g = NULL;
    char text[200];
    switch (way) {
    case 0: return flux_call(flux_chain(m, ends_badly), x);
    case 1: return flux_call(flux_parallel(joins_badly, m, m), x);
    case 2: return flux_call(flux_skipconnection(m, joins_badly), x);
    case 3: return flux_call(flux_pairwisefusion(joins_badly, m, m), x);
    case 4: return flux_call(flux_maxout(m, ends_badly), x);
    case 5: return flux_call(flux_dense(2, 2, ends_badly), x);
    case 6: return flux_dense(2, 2, .init = is_shaped_badly);
    case 7: return flux_call(flux_weightnorm(flux_dense(2, 2, ends_badly)), x);
    case 8: return flux_call(flux_batchnorm(2, ends_badly), x);
    case 9: return flux_fmap(ends_badly, m);
    case 10: return flux_outputsize(flux_chain(m, ends_badly), 2, 3).ndim >= 0;
    case 11: return flux_withgradient(loses_once, x, m, &g);
    case 12: return flux_train(loses_badly, m, flux_dataloader(x, x), s) == 0;
    case 13: return flux_first(flux_mapobs(ends_badly, flux_dataloader(x))).x;
    case 14: return flux_first(flux_dataloader(.data = &set, .batchsize = 2)).x;
    case 15: return flux_gradcheck(squares_badly, NULL, x, 4) < 1;
    case 16: return flux_custom(custom_badly, NULL, x);
    case 17: return flux_gradient(flux_sum(flux_custom(custom_well, back_badly, x)), x);
    default: return flux_summary_text(flux_chain(m, ends_badly), FLUX_SHAPE(2, 3), text, sizeof text) > 0;
    }
}
TEST(a_function_of_the_user_may_handle_an_error_and_fail) {
    flux_on_error(count, NULL);
    for (int way = 0; way < ENDS; way++) FLUX_SCOPE {
        met = sentences = 0;
        if (!CHECK(!ends(way, flux_rand(2, 2)) && met > 0 && strstr(flux_error(), "clamp: ") && sentences > 1))
            fprintf(stderr, "    way %d: %s\n", way, flux_error());
        flux_clear();
    }
    flux_on_error(NULL, NULL);
}

TEST(null_needs_no_words_after_an_error) {
    flux_on_error(test_silent, NULL);
    CHECK(!flux_clamp(flux_load_npy("no/such/file"), 2, 1));
    CHECK(strstr(flux_error(), "no/such/file") != NULL);
    flux_clear();
    flux_on_error(NULL, NULL);
    CHECK_ERROR(flux_clamp(NULL, 2, 1), "clamp: argument x is NULL");
    handled_error();
    flux_tensor *no = NULL;
    flux_layer *none = NULL;
    VALID(!flux_add(no, flux_ones(2)) && !flux_chain(flux_dense(2, 2), none) && flux_update(NULL, NULL, NULL) == -1);
    flux_clear();
    sentences = 0;
    CHECK(!flux_relu(NULL) && sentences == 1 && strstr(latest, "relu: argument x is NULL"));
    CHECK(!flux_relu(NULL) && sentences == 1);
    forgotten();
}

/* ---------------- sizes that no memory holds, or that int64 does not: refused before memory or time is spent */

TEST(huge_tensors) {
    const int64_t huge = (int64_t)1 << 32, top = INT64_MAX;
    flux_tensor *x = flux_rand(4, 3);
    CHECK_ERROR(flux_zeros(top, top), "full: a tensor of 8.51e+37 elements is too large");
    CHECK_ERROR(flux_sum(flux_eye((int64_t)1 << 62), 0), "eye: a tensor of 2.13e+37 elements is too large");
    CHECK_ERROR(flux_arange(0, 1e300, 1), "arange: from 0 to 1e+300 by 1 is not a range");
    CHECK_ERROR(flux_pad(x, 7, top, top), "pad: a tensor of 2.77e+19 elements is too large");
    CHECK_ERROR(flux_pad(x, 7, 0, 0, top, 1), "pad: a tensor of");
    CHECK_ERROR(flux_repeat(x, top, top), "repeat: a tensor of");
    CHECK_ERROR(flux_repeat(x, 1, huge, huge), "repeat: a tensor of");
    CHECK_ERROR(flux_reshape(x, huge, huge, -1), "reshape: a tensor of");
    CHECK_ERROR(flux_reshape(x, huge, huge), "reshape: a tensor of");
    CHECK_ERROR(flux_broadcast_to(x, 4, 3, top), "broadcast_to: a tensor of");
    CHECK_ERROR(flux_add(flux_zeros(2 * huge, 1), flux_zeros(1, huge / 2)), "add: a tensor of 1.84e+19 elements is too large");
    CHECK_ERROR(flux_where(flux_zeros(huge), flux_zeros(1, huge), 1.0), "where: a tensor of");
    CHECK_ERROR(flux_outer(flux_zeros(2, 3), flux_zeros(4)), "outer: takes two vectors, not 2x3 f32 and 4-element f32");
    CHECK_ERROR(flux_outer(flux_zeros(huge), flux_zeros(huge)), "a tensor of 1.84e+19 elements is too large");
    CHECK_ERROR(flux_matmul(flux_zeros(huge, 1), flux_zeros(1, huge)), "matmul: a tensor of");
    CHECK_ERROR(flux_flip(x, huge), "flip: 4x3 f32 has no dim 4294967296");
    CHECK_ERROR(flux_permute(x, huge, 1), "permute: the order must name");
    CHECK_ERROR(flux_cat(0, flux_to_dtype(x, FLUX_I32), flux__number(9.3e18)), "cat: the number 9.3e+18 has no place in a tensor of i32");
    flux_tensor *one = flux_slice_step(x, 0, 1, 4, top);
    CHECK(flux_dim(one, 0) == 1 && flux_at(one, 0, 2) == flux_at(x, 1, 2));
    CHECK_NEAR(flux_item(flux_sum(flux_grad(flux_gradient(flux_sum(one), x), x))), 3, 0);
}

TEST(huge_windows_and_layers) {
    const int64_t huge = (int64_t)1 << 40, top = INT64_MAX, wide = 1 << 30;
    flux_tensor *x = flux_rand(8, 8, 3, 2), *w = flux_rand(3, 3, 3, 2), *pixel = flux_rand(1, 1, 3, 2);
    CHECK_ERROR(flux_conv(x, w, .pad = FLUX_SHAPE(top, top, top, top)), "pad: a tensor of");
    CHECK_ERROR(flux_conv(x, w, .dilation = FLUX_SHAPE(wide)), "a window that reaches over 2147483649 does not fit");
    CHECK_ERROR(flux_conv(x, flux_ones(0, 3, 2, 3)), "conv: weight is 0x3x2x3 f32, whose windows are empty");
    CHECK_ERROR(flux_conv_transpose(x, flux_ones(0, 3, 2, 3)), "conv_transpose: weight is 0x3x2x3 f32, whose windows are empty");
    CHECK_ERROR(flux_conv_transpose(x, flux_rand(3, 3, 2, 3), .stride = FLUX_SHAPE(wide)), "conv_transpose: a tensor of");
    CHECK_ERROR(flux_conv_transpose(x, flux_rand(3, 3, 2, 3), .dilation = FLUX_SHAPE(wide)), "conv_transpose: a tensor of");
    flux_tensor *corner = flux_conv(x, pixel, .stride = FLUX_SHAPE(wide), .dilation = FLUX_SHAPE(wide));
    CHECK(flux_len(corner) == 4 && flux_data(corner) && flux_data(flux_grad(flux_gradient(flux_sum(corner), x), x)));
    CHECK(flux_data(flux_maxpool(x, FLUX_SHAPE(2), .stride = FLUX_SHAPE(wide))) != NULL);
    CHECK_ERROR(flux_call(flux_upsample(.mode = FLUX_BILINEAR, .size = FLUX_SHAPE(huge, 2 * huge)), x), "upsample: a tensor of");
    CHECK_ERROR(flux_call(flux_upsample(.mode = FLUX_LINEAR, .size = FLUX_SHAPE(top)), flux_rand(4, 1, 1)), "upsample: a tensor of");
    CHECK_ERROR(flux_call(flux_upsample(.size = FLUX_SHAPE(huge, 2 * huge)), x), "upsample: a tensor of");
    CHECK_ERROR(flux_call(flux_upsample(.scale = { 1e300 }), x), "can't make");
    CHECK(flux_call(flux_upsample(.mode = FLUX_LINEAR, .size = FLUX_SHAPE(huge)), flux_rand(4, 1, 1)) != NULL);   /* nobody looks */
    CHECK_ERROR(flux_call(flux_upsample(.mode = FLUX_LINEAR, .size = FLUX_SHAPE(2 * huge)), flux_zeros(huge, 1, 1)), "is beyond int64");
    CHECK_ERROR(flux_lstm(4, top / 4), "lstm: a tensor of 3.69e+19 elements is too large");
    CHECK_ERROR(flux_gru(top, top), "gru: a tensor of");
    CHECK_ERROR(flux_dense(top, top), "dense: a tensor of");
    flux_layer *m = flux_chain(flux_dense(2, 2));
    CHECK(flux_child(m, INT32_MIN) == NULL && flux_child(m, INT32_MAX) == NULL && flux_child(m, 0) != NULL);
}

/* What counts gives -1 for what it can't count. */
TEST(counts_of_nothing) {
    CHECK(flux_ndim(NULL) == -1 && flux_dim(NULL, 0) == -1 && (flux_len)(NULL) == -1);
    CHECK_ERROR((flux_length)(NULL), "length: argument l is NULL");
    CHECK_ERROR(flux_num_params(NULL), "num_params: ");
    CHECK_ERROR(flux_num_grads(NULL), "num_grads: ");
    CHECK_ERROR(flux_table_rows(NULL), "table_rows: argument t is NULL");
    CHECK_ERROR(flux_table_columns(NULL), "table_columns: argument t is NULL");
    CHECK_ERROR(flux_column_missing(NULL, "age"), "column_missing: ");
    CHECK_ERROR(flux_column_labels(NULL, "age"), "column_labels: ");
    CHECK_ERROR(flux_folder_length(NULL), "folder_length: ");
    CHECK_ERROR(flux_folder_classes(NULL), "folder_classes: ");
    CHECK_ERROR(flux_npz_names("there/is/no/such.npz", NULL, 0), "npz_names: ");
    CHECK_ERROR(flux_rank_of(NULL), "rank_of: ");
    CHECK_ERROR(flux_size_of(NULL), "size_of: ");
    CHECK_ERROR(flux_local_rank_of(NULL), "local_rank_of: ");
}

static flux_tensor *a_loss(flux_layer *m, void *user) { return (void)user, flux_sum(flux_param(m, "weight")); }
TEST(wrong_arguments) {
    const flux_shape many = { FLUX_MAX_DIMS + 1, { 0 } }, fewer = { -1, { 0 } };
    const flux_device nowhere = { 1000, 7 }, no_device = { -1, 0 };
    flux_tensor *x = flux_rand(2, 3), *loss = flux_sum(x);
    flux_layer *m = flux_dense(2, 2);
    flux_grads *g = NULL;
    CHECK_ERROR(flux_normalise(x, many, 1e-5), "normalise: 9 dims to normalise over");
    CHECK_ERROR(flux_normalise(x, fewer, 1e-5), "normalise: -1 dims to normalise over");
    CHECK_ERROR(flux_flip_with(x, many), "flip: 9 dims");
    CHECK_ERROR(flux_flip_with(x, fewer), "flip: -1 dims");
    CHECK_ERROR(flux_repeat_with(x, many), "repeat: 9 dims, at most 8");
    CHECK_ERROR(flux_repeat_with(x, fewer), "repeat: -1 dims, at most 8");
    CHECK_ERROR(flux_gradient_with(loss, 1, (const void *[]){ flux_dataloader(x) }), "gradient: by models and tensors only");
    CHECK_ERROR(flux_gradient_with(loss, 1, (const void *[]){ NULL }), "gradient: argument of the list is NULL");
    CHECK_ERROR(flux_withgradient(a_loss, NULL, NULL, &g), "withgradient: argument m is NULL");
    CHECK_ERROR(flux_withgradient(NULL, NULL, m, &g), "withgradient: argument fn is NULL");
    CHECK_ERROR(flux_withgradient(a_loss, NULL, m, NULL), "withgradient: argument g is NULL");
    CHECK_ERROR(flux_averaged(NULL), "averaged: argument model is NULL");
    CHECK_ERROR(flux_update_average(NULL, m), "update_average: argument averaged is NULL");
    CHECK_ERROR(flux_update_average(flux_averaged(m), NULL), "update_average: argument model is NULL");
    CHECK_ERROR(flux_oversample(x, NULL, 1), "oversample: argument labels is NULL");
    CHECK_ERROR(flux_undersample(x, NULL, 1), "undersample: argument labels is NULL");
    CHECK_ERROR(flux_onecold(flux_tuple(x, x)), "onecold: y ");
    CHECK_ERROR(flux_default_device(nowhere), "default_device: device {1000, 7} can't be used here");
    CHECK_ERROR(flux_to(nowhere, m), "to: there is no device {1000, 7}");
    CHECK_ERROR(flux_to(no_device, m), "to: there is no device {-1, 0}");
    flux_on_error(test_silent, NULL);
    flux_load_npy("there/is/no/such.npy");             /* explains a device of -1, and no other */
    CHECK(!flux_to(no_device, m) && strstr(flux_error(), "no/such"));
    flux_on_error(count, NULL);
    sentences = 0;
    CHECK(!flux_to(nowhere, m) && sentences == 1 && strstr(latest, "to: there is no device {1000, 7}"));
    forgotten();
    CHECK_ERROR(flux_update_average(m, m), "update_average: Dense is no averaged model");
    const int64_t most = INT64_C(1) << 53;                      /* integers whose double is exact, and no range longer */
    CHECK_ERROR(flux_randint(-most, 1, 3), "randint: no integers from -9007199254740992 below 1 within 2^53");
    CHECK_ERROR(flux_randint(0, most + 1, 3), "randint: no integers");
    CHECK_ERROR(flux_randint(-most - 1, 0, 3), "randint: no integers");
    CHECK_ERROR(flux_randint(3, 3, 3), "randint: no integers");
    CHECK(flux_item(flux_min(flux_randint(-most, 0, 9))) >= -(double)most && flux_item(flux_max(flux_randint(0, most, 9))) < (double)most);
    CHECK(flux_item(flux_sum(flux_randint(most - 1, most, 1))) == (double)most - 1 && flux_item(flux_sum(flux_randint(-most, 1 - most, 1))) == -(double)most);
    /* names that are too long to be shown are cut between two characters, of one byte and of two */
    CHECK_ERROR(flux_expr("x + aaaaaaaaaabbbbbbbbbbccccccccccddddddddddee", x), "unknown name 'aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd'");
    CHECK_ERROR(flux_expr("x + aaaaaaaaaabbbbbbbbbbccccccccccddddddddd\xc3\xa9", x), "unknown name 'aaaaaaaaaabbbbbbbbbbccccccccccddddddddd'");
}

/* A list that is full is an error; an id that was only shown gives its place up. */
static void count_shown(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)message;
    *(int *)user += !strcmp(id, "data.batchsize");
}
TEST(many_silenced_ids) {
    char id[20];
    int shown = 0;
    flux_silence(NULL);
    for (int i = 0; i < 64; i++) snprintf(id, sizeof id, "some.id.%d", i), flux_silence(id);
    flux_silence("some.id.63");
    CHECK(!flux_failed());
    CHECK_ERROR(flux_silence("one.more"), "silence: \"one.more\" is one too many: 64 ids can be silenced");
    flux_silence(NULL);
    flux_on_log(count_shown, &shown);
    flux_dataloader(flux_ones(3), .batchsize = 4);         /* says data.batchsize, once */
    for (int i = 1; i < 64; i++) snprintf(id, sizeof id, "some.id.%d", i), flux_silence(id);
    flux_dataloader(flux_ones(3), .batchsize = 4);
    CHECK(shown == 1);
    flux_silence("one.more");
    CHECK(!flux_failed());
    flux_dataloader(flux_ones(3), .batchsize = 4);         /* it is not known any more that it was */
    CHECK(shown == 2);
    CHECK_ERROR(flux_silence("two.more"), "silence: \"two.more\" is one too many");
    flux_on_log(NULL, NULL);
    flux_silence(NULL);
}

/* An error that a call had to keep while it held a lock is said when that is given up, and not again
   by the next call that holds one. */
TEST(an_error_is_said_once) {
    const flux_device cpu = { 0, 0 };
    int failures = 0;
    flux_on_error(count, NULL);
    for (long k = 0; k < 30; k++) FLUX_SCOPE {
        flux_mem_trim(cpu);
        sentences = 0;
        flux__test_memory_once(k);
        flux_item(flux_sum(flux_exp(flux_ones(3 + k))));
        flux__test_memory(-1);
        const int said = sentences;
        failures += said;
        for (int again = 0; again < 2; again++) flux_mem_trim(cpu);
        CHECK(sentences == said && (said == 1) == flux_failed());
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    CHECK(failures > 5);
}

TEST_MAIN()
