/* Models when memory runs out: each allocation in turn fails, in each of these scenarios.
   Nothing may crash; a call that could not be done has said so; and (under config=sanitize)
   nothing leaks. */
#include "test.h"

static flux_tensor *plus_one(flux_tensor *x) { return flux_add(x, 1); }
static flux_layer *model(void) {
    flux_layer *tied = flux_named("tied", flux_dense(3, 3, flux_tanh));
    return flux_chain(tied, plus_one, tied,
                      flux_parallel(flux_add, flux_dense(3, 3), flux_scale(FLUX_SHAPE(1))),
                      flux_layernorm(FLUX_SHAPE(3)));
}

static bool make(void) { return model() != NULL; }
static bool make_others(void) {
    return flux_embedding(4, 3, .padding_idx = 1) && flux_bilinear(2, 3, 4) &&
           flux_maxout(flux_dense(2, 2), flux_dense(2, 2)) &&
           flux_skipconnection(flux_dense(2, 2), flux_vcat) && flux_dropout(0.5) &&
           flux_dense(3, 3, .init = flux_orthogonal) &&
           flux_init("sparse", FLUX_SHAPE(4, 4), .sparsity = 0.5) &&
           flux_truncated_normal(FLUX_SHAPE(9)) && flux_identity_init(FLUX_SHAPE(3, 3));
}
static bool map(void) {
    flux_layer *m = model();
    return flux_fmap(plus_one, m) && flux_copy_layer(m) && flux_f64(m);
}
static bool flatten(void) {
    flux_layer *m = model();
    flux_tensor *flat = flux_destructure(m);
    return flat && flux_restructure(m, flux_mul(flat, 2)) && flux_item(flux_sum(flat)) < 1e9;
}
static bool call(void) {
    flux_layer *m =
        flux_chain(flux_dense(3, 3, flux_gelu), flux_dropout(0.5), flux_layernorm(FLUX_SHAPE(3)));
    flux_tensor *y = flux_call(m, flux_ones(3, 2));
    return y && flux_data(y) && flux_outputsize(m, 3, 5).ndim == 2;
}
/* Attention with all that it can have, over a whole sequence and step by step. */
static bool attend(void) {
    flux_layer *m = flux_multiheadattention(8, .nheads = 2, .kv_heads = 1, .rotary = 10000, .causal = true,
                                            .bias = true, .scores = FLUX_OFF);
    flux_tensor *x = flux_ones(8, 3);
    if (!m || !x || !flux_data(flux_call(m, x)) || flux_cache(m, 4) != 0) return false;
    bool good = false;
    FLUX_INFER good = flux_data(flux_call(m, x)) && flux_data(flux_call(m, flux_ones(8, 1)));
    return good;
}
static bool train(void) {
    flux_layer *m = flux_chain(flux_dense(2, 3, flux_tanh), flux_dense(3, 2));
    flux_tensor *loss = flux_logitcrossentropy(flux_call(m, flux_ones(2, 4)), flux_full(0.5, 2, 4));
    flux_grads *g = flux_gradient(loss, m);
    return g && flux_data(flux_grad(g, flux_weight(m)));
}
static bool visit(void) {
    flux_layer *m = model();
    return m && flux_num_params(m) > 0 &&
           flux_set_param(m, "layers.tied.bias", flux_ones(3)) == 0 &&
           flux_param(m, "layers.tied.weight") && !flux_failed();
}
/* A training that tells all it has: what it returns is there. */
static flux_tensor *loss_of(flux_layer *m, flux_tensor *x, flux_tensor *y) {
    return flux_mse(flux_call(m, x), y);
}
static bool courses(void) {
    char path[1000];
    snprintf(path, sizeof path, "%.900s/flux_models_memory_%p", test_temp(), (void *)&path);
    flux_layer *m = flux_dense(2, 2), *r2 = flux_metric(flux_r2), *ema = flux_averaged(m);
    flux_loader *data = flux_dataloader(flux_ones(2, 2), flux_full(0.5, 2, 2), .batchsize = 2);
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    flux_tensor *history = NULL;
    bool good = r2 && ema && opt && flux_train(loss_of, m, data, opt,
        .validation = data, .metrics = { r2 },
        .monitor = r2, .averaged = ema, .early_stop = 2, .checkpoint = path,
        .history = &history) == 0;
    remove(path);
    return good && flux_data(history);
}

/* Calls that go over a model: where they can't go on, they have not been done. */
enum { WALKS = 7 };
static int walked;
static bool walk(void) {
    flux_layer *m = model();
    flux_tensor *x = flux_ones(3, 5);
    if (!m || !x) return false;
    if (walked < 2) {
        flux_grads *g = flux_gradient(flux_sum(flux_call(m, x)), m);
        CHECK(!g || flux_num_grads(g) == 8);
        if (!g || walked == 0 || flux_grad_name(g, 7)) return g != NULL;
        for (int i = 0; i < 8; i++) CHECK(*flux_grad_name(g, i) != 0);   /* there is memory now */
        return false;
    }
    if (walked == 2) return flux_set_param(m, "layers.tied.weight", flux_ones(3, 3)) == 0;
    if (walked == 3) return flux_device_of(m).backend >= 0;
    if (walked == 4) return flux_outputsize(m, 3, 5).ndim == 2;
    if (walked == 5) return flux_prewarm(m, 3, 5) == 0;
    return flux_averaged(m) != NULL;
}

static void each_fails_in_turn(bool (*scenario)(void), const char *name) {
    flux_device cpu = { 0, 0 };
    bool done = false;
    long tries = 0;
    flux_on_error(test_silent, NULL);
    for (; !done && tries < 5000; tries++) {
        flux_mem_trim(cpu);
        flux__test_memory_once(tries);
        FLUX_SCOPE {
            bool good = scenario();
            done = !flux__test_refused();
            if (!CHECK(good != flux_failed()))
                fprintf(stderr, "    %s %d, allocation %ld: %s, error \"%s\"\n", name, walked,
                        tries, good ? "done" : "not done", flux_error());
            flux__test_memory(-1);
        }
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    CHECK(done && tries > 3);
    flux_mem_trim(cpu);
    long before = flux__test_live();
    FLUX_SCOPE { scenario(); }
    flux_mem_trim(cpu);
    if (!CHECK(flux__test_live() - before <= 40))       /* plans may be kept */
        fprintf(stderr, "    %s: %ld blocks more\n", name, flux__test_live() - before);
}

TEST(making_a_model) { each_fails_in_turn(make, "make"); }
TEST(making_other_layers) { each_fails_in_turn(make_others, "make_others"); }
TEST(mapping) { each_fails_in_turn(map, "map"); }
TEST(flattening) { each_fails_in_turn(flatten, "flatten"); }
TEST(calling) { each_fails_in_turn(call, "call"); }
TEST(attention) { each_fails_in_turn(attend, "attend"); }
TEST(gradients) { each_fails_in_turn(train, "train"); }
TEST(training) { each_fails_in_turn(courses, "courses"); }
TEST(visiting) { each_fails_in_turn(visit, "visit"); }
TEST(walking) {
    for (walked = 0; walked < WALKS; walked++) each_fails_in_turn(walk, "walk");
}
static bool count(void) {
    flux_layer *m = model();
    return m && flux_params(m, NULL, 0) >= 0 && flux_num_params(m) >= 0;
}
TEST(counting) { each_fails_in_turn(count, "count"); }

/* What a training makes goes with it: what was asked for by its gradients, and a state's counts and
   masters that were shown. */
static void trained_and_saved(const char *path) {
    flux_layer *m = flux_chain(flux_dense(2, 3, flux_tanh), flux_dense(3, 2));
    flux_state *s = flux_setup(flux_adam(0.01), m);
    flux_tensor *x = flux_ones(2, 4);
    for (int i = 0; i < 3; i++) {
        flux_update(s, m, flux_gradient(flux_sum(flux_square(flux_call(m, x))), m));
        CHECK(flux_save_all(path, m, s) == 0);
        CHECK(flux_cpu(flux_tuple(x, flux_add(x, 1))) != NULL);
    }
}
TEST(training_leaves_nothing) {
    const flux_device cpu = { 0, 0 };
    char path[1000];
    long blocks = 0;
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%.900s/flux_models_memory_%p", test_temp(), (void *)&bytes);
    for (int i = 0; i < 12; i++) {        /* the first make plans, which are kept */
        flux_mem_trim(cpu);
        if (i == 2) blocks = flux__test_live(), bytes = flux_mem_stats(cpu).live;
        FLUX_SCOPE { trained_and_saved(path); }
    }
    flux_mem_trim(cpu);
    remove(path);
    if (!CHECK(flux__test_live() - blocks < 8 && flux_mem_stats(cpu).live == bytes))    /* of ten turns */
        fprintf(stderr, "    %ld blocks and %ld bytes more\n", flux__test_live() - blocks,
                (long)(flux_mem_stats(cpu).live - bytes));
}

/* Nor do kernels keep what they need for a moment, whichever way a product is computed. */
static void gradient_of(flux_layer *m, flux_tensor *x) {
    flux_grads *g = flux_gradient(flux_sum(flux_square(flux_call(m, x))), m, x);
    CHECK(flux_data(flux_grad(g, x)) != NULL);
}
static void computed(void) {
    flux_tensor *a = flux_randn(64, 48), *few = flux_randn(2, 64), *many = flux_randn(300, 200);
    flux_tensor *p = flux_randn(7, 5, 40), *q = flux_randn(5, 6, 40), *tall = flux_randn(5, 3000);
    CHECK(flux_data(flux_matmul(flux_transpose(a), flux_transpose(few))) != NULL);
    CHECK(flux_data(flux_matmul(few, a)) && flux_data(flux_matmul(p, q)));
    CHECK(flux_data(flux_relu(flux_matmul(many, flux_transpose(many)))) != NULL);
    CHECK(flux_data(flux_matmul(tall, flux_transpose(tall))) && flux_data(flux_softmax(tall, 1)));
    gradient_of(flux_conv_layer(FLUX_SHAPE(3, 3), 4, 3), flux_randn(9, 9, 4, 2));
    gradient_of(flux_multiheadattention(8, .nheads = 2, .scores = FLUX_OFF), flux_randn(8, 6, 3));
    gradient_of(flux_lstm(6, 5), flux_randn(6, 7, 3));
}
TEST(computing_leaves_nothing) {
    const flux_device cpu = { 0, 0 };
    long blocks = 0;
    for (int i = 0; i < 24; i++) {
        flux_mem_trim(cpu);
        if (i == 4) blocks = flux__test_live();
        FLUX_SCOPE { computed(); }
    }
    flux_mem_trim(cpu);
    if (!CHECK(flux__test_live() - blocks < 16)) fprintf(stderr, "    %ld blocks more\n", flux__test_live() - blocks);
}

/* A layer's own text is as long as it says, and is given room for that. */
typedef struct talker { flux_layer base; flux_tensor *x; } talker;
static flux_tensor *talker_call(flux_layer *self, flux_tensor *x) { return (void)self, x; }
static size_t talker_text(flux_layer *self, char *out, size_t n) {
    (void)self;
    if (n) memset(out, 'y', n - 1), out[n - 1] = 0;
    return 300;
}
TEST(a_text_has_room_for_what_it_said) {
    typedef talker flux__t;
    static const flux_field fields[] = { FLUX_PARAM(x), { NULL, FLUX__END, 0, 0 } };
    static const flux_layer_type type = { "Talker", talker_call, sizeof(talker), fields,
                                          talker_text, 0 };
    talker t;
    char text[1000];
    memset(&t, 0, sizeof t);
    t.x = flux_ones(1);
    flux_layer *m = flux_new_with(&type, &t);
    CHECK(flux_layer_text(flux_chain(m, m), text, sizeof text) > 600);
}

/* Paths are as long as their parts, and their memory grows with them. */
static void count_paths(flux_tensor *x, const char *path, bool trained, void *user) {
    (void)x, (void)trained;
    *(size_t *)user += strlen(path);
}
TEST(paths_of_every_length) {
    char name[64];
    for (size_t n = 1; n <= 2 * 63; n++) FLUX_SCOPE {
        const size_t a = n < 63 ? n : 63, b = n - a;
        size_t all = 0;
        memset(name, 'a', a), name[a] = 0;
        flux_layer *inner = flux_chain(flux_dense(1, 1, .bias = FLUX_OFF));
        inner = flux_chain(flux_named(name, inner));
        memset(name, 'b', b), name[b] = 0;
        flux_visit(flux_chain(b ? flux_named(name, inner) : inner), count_paths, &all);
        CHECK(all == strlen("layers..layers..layers.0.weight") + (b ? b : 1) + a);
    }
}
TEST_MAIN()
