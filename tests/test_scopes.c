/* What a scope's end takes with it: uses of it after that are errors which name the scope. */
#ifndef FLUX_DEBUG
#  define FLUX_DEBUG
#endif
#define FLUX_IMPLEMENTATION
#include "test.h"

static int scope_line, turn_line, batch_line;
static const char *at(int line) {
    static char text[40];
    snprintf(text, sizeof text, "test_scopes.c:%d, has closed", line);
    return text;
}

/* What a scope, a loop's turn and an epoch's leave behind. */
static flux_tensor *from_scope, *from_turn, *from_batch;
static void leave_some(void) {
    static const float data[4] = { 1, 2, 3, 4 };
    flux_loader *l = flux_dataloader(flux_from(data, 4), .batchsize = 2);
    scope_line = __LINE__ + 1;
    FLUX_SCOPE { from_scope = flux_ones(2, 3); }
    turn_line = __LINE__ + 1;
    flux_times (i, 3) { from_turn = flux_full(i, 2, 3); }
    batch_line = __LINE__ + 1;
    flux_each (b, l) { from_batch = flux_add(b.x, 1); }
}

TEST(a_use_after_a_scope_names_it) {
    if (FLUX__ASAN) SKIP("the address sanitizer tells of it: see check_misuse.sh");
    leave_some();
    flux_tensor *x = flux_eval(flux_ones(2, 3));
    for (int i = 0; i < 1000; i++) flux_add(x, i);       /* handles are not used again at once */
    CHECK_ERROR(flux_add(x, from_scope), at(scope_line));
    CHECK_ERROR(flux_add(from_turn, x), at(turn_line));
    CHECK_ERROR(flux_item(from_batch), at(batch_line));
    CHECK_ERROR(flux_matmul(from_scope, x), "matmul: a tensor is used after the scope that had it, opened at");
    CHECK_ERROR(flux_eval(from_scope), "eval: a tensor");
    CHECK_ERROR(flux_data(from_scope), at(scope_line));
    CHECK_ERROR(flux_print(from_scope), at(scope_line));
    CHECK_ERROR(flux_dim(from_turn, 0), at(turn_line));
    CHECK_ERROR(flux_ndim(from_turn), at(turn_line));
    CHECK_ERROR(flux_len(from_turn), at(turn_line));
    CHECK_ERROR(flux_shape_of(from_turn), at(turn_line));
    CHECK_ERROR(flux_dtype_of(from_turn), at(turn_line));
    CHECK_ERROR(flux_device_of(from_turn), at(turn_line));
    CHECK_ERROR(flux_tuple(x, from_turn), at(turn_line));
    CHECK_ERROR(flux_nth(from_turn, 0), at(turn_line));
    CHECK_ERROR(flux_call(flux_dense(2, 2), from_scope), at(scope_line));
    CHECK_ERROR(flux_gradient(flux_sum(x), from_scope), at(scope_line));
    CHECK_ERROR(flux_gradient(from_scope, x), at(scope_line));
    CHECK_ERROR(flux_keep(from_turn), at(turn_line));
    CHECK_ERROR(flux_carry(x, from_turn), at(turn_line));
    CHECK_ERROR(flux_save_npy(from_turn, "/dev/null"), at(turn_line));
    CHECK_ERROR(flux_expr("from_turn .+ x", from_turn, x), at(turn_line));
    CHECK_ERROR(flux_retain(from_turn), at(turn_line));
    CHECK_ERROR(flux_cat(0, x, from_turn), at(turn_line));
}

TEST(a_release_too_many) {
    if (FLUX__ASAN) SKIP("the address sanitizer tells of it: see check_misuse.sh");
    flux_tensor *x = NULL;
    FLUX_SCOPE { x = (flux_tensor *)flux_retain(flux_ones(3)); }
    CHECK(flux_at(x, 2) == 1);
    flux_release(x);
    CHECK_ERROR(flux_release(x), "release: a tensor is used");
    CHECK_ERROR(flux_add(x, 1), "the last owner's release");
}

TEST(models_states_and_gradients_after_their_scope) {
    if (FLUX__ASAN) SKIP("the address sanitizer tells of it: see check_misuse.sh");
    flux_tensor *x = flux_ones(2);
    flux_layer *m = NULL, *kept = flux_dense(2, 1);
    flux_state *opt = NULL;
    flux_grads *g = NULL;
    flux_loader *l = NULL;
    FLUX_SCOPE {
        m = flux_dense(2, 1);
        opt = flux_setup(flux_adam(), m);
        g = flux_gradient(flux_sum(flux_call(m, x)), m);
        l = flux_dataloader(flux_ones(3, 3));
    }
    CHECK_ERROR(flux_call(m, x), "call: a layer is used after the scope that had it, opened at");
    CHECK_ERROR(flux_chain(m, m), "a layer is used");
    CHECK_ERROR(flux_setup(flux_adam(), m), "setup: a layer");
    CHECK_ERROR(flux_num_params(m), "a layer is used");
    CHECK_ERROR(flux_print(m), "a layer is used");
    CHECK_ERROR(flux_update(opt, kept, g), "update: a state");
    CHECK_ERROR(flux_grad(g, x), "grad: gradients are used");
    CHECK_ERROR(flux_length(l), "a loader is used");
    flux_on_error(test_silent, NULL);
    flux_each (b, l) CHECK(!b.x);
    flux_on_error(NULL, NULL);
    CHECK(strstr(flux_error(), "a loader is used"));
    flux_clear();
}

/* Every other call that takes a handle of its own says so of one that is gone, by its own name. */
static flux_tensor *loss_of(flux_layer *m, flux_tensor *a, flux_tensor *b) { return flux_mse(flux_call(m, a), b); }
static flux_tensor *given(int n, flux_tensor *const *x, void *at) { return (void)n, (void)x, *(flux_tensor **)at; }
static flux_tensor *doubled(int n, flux_tensor *const *x, void *at) { return (void)n, (void)at, flux_mul(x[0], 2); }
static void hands_back(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *at) {
    (void)n, (void)x, (void)y, (void)g, dx[0] = *(flux_tensor **)at;
}
#define GONE(call, name, what) CHECK_ERROR(call, name ": " what " used after the scope that had it, opened at")
TEST(calls_name_themselves_and_what_is_gone) {
    if (FLUX__ASAN) SKIP("the address sanitizer tells of it: see check_misuse.sh");
    flux_layer *m = NULL, *kept = flux_dense(2, 1), *metric = NULL;
    flux_tensor *x = NULL, *one = flux_eval(flux_ones(2)), *parts[2], *back = flux_ones(2);
    flux_state *opt = NULL, *state = flux_setup(flux_adam(), kept);
    flux_grads *g = NULL, *grads = flux_gradient(flux_sum(flux_call(kept, one)), kept);
    flux_loader *l = NULL, *loader = flux_dataloader(flux_ones(2, 3), flux_ones(1, 3));
    flux_table *t = NULL;
    FILE *f = fopen("build/test_scopes.csv", "w");
    CHECK(f && fputs("a,b\n1,2\n", f) >= 0);
    if (f) fclose(f);
    FLUX_SCOPE {
        m = flux_dense(2, 1), x = flux_eval(flux_zeros(3)), metric = flux_metric(flux_accuracy), t = flux_load_table("build/test_scopes.csv");
        opt = flux_setup(flux_adam(), m), g = flux_gradient(flux_sum(flux_call(m, one)), m);
        l = flux_dataloader(flux_ones(2, 3), flux_ones(1, 3));
    }
    remove("build/test_scopes.csv");
    char text[100];
    GONE(flux_custom_with(given, NULL, &x, 1, &one), "custom", "a tensor is");
    back = flux_sum(flux_custom_with(doubled, hands_back, &x, 1, &one));
    GONE(flux_gradient(back, one), "custom", "a tensor is");
    GONE(flux_splitobs(0.5, x, &parts[0], &parts[1]), "splitobs", "a tensor is");
    GONE(flux_oversample(one, x, 1), "oversample", "a tensor is");
    GONE(flux_parallel(flux_add, kept, m), "parallel", "a layer is");
    GONE(flux_call(kept, x), "call", "a tensor is");
    GONE(flux_grad(grads, x), "grad", "a tensor is");
    GONE(flux_num_grads(g), "num_grads", "gradients are");
    GONE(flux_cache(m, 3), "cache", "a layer is");
    GONE((int)flux_cached(m) - 1, "cached", "a layer is");
    GONE(flux_metric_value(metric), "metric_value", "a layer is");
    GONE(flux_update(state, m, grads), "update", "a layer is");
    GONE(flux_update(state, kept, g), "update", "gradients are");
    GONE(flux_loadmodel(m, kept), "loadmodel", "a layer is");
    GONE(flux_loadmodel(kept, m), "loadmodel", "a layer is");
    GONE(flux_averaged(m), "averaged", "a layer is");
    GONE(flux_update_average(m, kept), "update_average", "a layer is");
    GONE(flux_update_average(kept, m), "update_average", "a layer is");
    GONE(flux_train(loss_of, m, loader, state), "train", "a layer is");
    GONE(flux_train(loss_of, kept, l, state), "train", "a loader is");
    GONE(flux_train(loss_of, kept, loader, opt), "train", "a state is");
    GONE(flux_train(loss_of, kept, loader, state, .validation = l), "train", "a loader is");
    GONE(flux_train(loss_of, kept, loader, state, .averaged = m), "train", "a layer is");
    GONE((int)flux_table_rows(t), "table_rows", "a table or folder is");
    GONE(flux_table_columns(t), "table_columns", "a table or folder is");
    GONE(flux_column_name(t, 0), "column_name", "a table or folder is");
    GONE(flux_column_labels(t, "a"), "column_labels", "a table or folder is");
    GONE(flux_columns(t, "a"), "columns", "a table or folder is");
    GONE(flux_tensor_text(x, text, sizeof text) == 0, "print", "a tensor is");
    GONE(flux_print(m), "print", "a layer is");
    CHECK(flux_item(flux_sum(one)) == 2 && flux_num_grads(grads) == 2);      /* what is not gone is as it was */
}

TEST(what_was_freed_is_freed_in_the_end) {
    flux_tensor *x = flux_eval(flux_ones(2));
    flux_times (i, 4 * FLUX__QUARANTINE) flux_add(x, 1);
    const flux__thread *t = flux__self();
    CHECK(FLUX__ASAN || t->nfreed > 4 * FLUX__QUARANTINE);
    CHECK(t->nspare == 0);
}

/* ---------------- scopes that grow */

static int notes;
static char last_note[1000];
static void count_note(flux_level level, const char *id, const char *message, void *user) {
    (void)level, (void)user;
    if (!strcmp(id, "scope.memory")) notes++;
    snprintf(last_note, sizeof last_note, "%s", message);
}

/* As if memory began here, and 1 GB were a few MB. */
static void begin_small(void) {
    flux_silence(NULL);
    flux_on_log(count_note, NULL);
    flux__class_pool *pool = &flux__class_pools[test_device.backend][test_device.id];
    flux__scope_most = 8 << 20;
    pool->looked = pool->stats.live;
    notes = 0;
    last_note[0] = 0;
}
static void end_small(void) {
    flux__scope_most = (int64_t)1 << 30;
    flux_on_log(NULL, NULL);
    flux_silence(NULL);
}

/* What is counted is found from node to node, whatever number of operands these have. */
TEST(a_scope_of_nodes_of_many_operands) {
    ONLY_ON_CPU();
    flux_tensor *x = flux_eval(flux_ones(100, 30)), *many[9];
    for (int i = 0; i < 9; i++) many[i] = x;
    for (int n = 1; n <= 9; n++) {
        begin_small();
        FLUX_SCOPE {
            for (int i = 0; i < 900 / n; i++) flux_eval(n == 3 ? flux_where(flux_gt(x, 0), flux_mul(x, i), x) : flux_cat_with(1, n, many));
            for (int i = 0; i < 900; i++) flux_eval(flux_mul(x, i));
        }
        CHECK(notes == 1);
        end_small();
    }
}
TEST(a_scope_that_grows_says_so_once) {
    flux_tensor *x = flux_eval(flux_ones(100, 300)), *h = x;
    begin_small();
    scope_line = __LINE__ + 1;
    FLUX_SCOPE {
        for (int i = 0; i < 60; i++) FLUX_NOGRAD { flux_item(flux_mean(flux_eval(flux_mul(x, i)))); }
        CHECK(notes == 0);                /* 8 MB are not there yet */
        for (int i = 0; i < 400; i++) FLUX_NOGRAD { flux_item(flux_mean(flux_eval(flux_mul(x, i)))); }
        CHECK(notes == 1);
    }
    char where[40];
    snprintf(where, sizeof where, "test_scopes.c:%d has come to hold", scope_line);
    CHECK(strstr(last_note, where) && strstr(last_note, " x mul of 100x300 f32 (") && strstr(last_note, "FLUX_INFER"));

    begin_small();
    flux_times (i, 300) h = flux_keep(flux_eval(flux_add(h, 1)));
    CHECK(notes == 1 && strstr(last_note, " x add of 100x300 f32 ("));
    end_small();
}

TEST(what_does_not_grow_says_nothing) {
    flux_tensor *h = flux_eval(flux_ones(100, 300)), *few[6];
    begin_small();
    flux_times (i, 1000) h = flux_carry(h, flux_add(h, 1));
    flux_times (i, 1000) FLUX_INFER flux_item(flux_mean(flux_eval(flux_add(h, i))));
    CHECK(notes == 0);
    for (int i = 0; i < 6; i++) few[i] = flux_eval(flux_full(i, 1000, 1000));      /* large, but meant */
    CHECK(notes == 0 && flux_at(few[5], 0, 0) == 5);
    flux_silence("scope.memory");
    for (int i = 0; i < 300; i++) flux_eval(flux_add(h, i));
    CHECK(notes == 0);
    end_small();
}

TEST(a_graph_that_nobody_looks_at_grows_too) {
    flux_tensor *sum = flux_scalar(0);
    begin_small();
    for (int i = 0; i < 70000; i++) sum = flux_add(sum, flux_scalar(i));
    CHECK(notes == 1 && strstr(last_note, " x add of scalar f32 ("));
    end_small();
}

TEST(a_tuple_within_a_tuple_is_carried) {
    flux_tensor *all = NULL;
    flux_times (i, 3) {
        flux_tensor *inner = flux_tuple(flux_full(i, 2), flux_add(flux_ones(3), i)), *outer = flux_tuple(flux_zeros(1), inner);
        all = (flux_tensor *)flux_carry(all, outer);
    }
    CHECK(all && flux_num_items(all) == 2);
    CHECK_NEAR(flux_item(flux_sum(flux_nth(flux_nth(all, 1), 1))), 9, 0);
}

TEST_MAIN()
