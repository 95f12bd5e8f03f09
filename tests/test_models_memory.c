/* Models when memory runs out: each allocation in turn fails, in each of these scenarios.
   Nothing may crash; a call that could not be done has said so; and (under config=sanitize)
   nothing leaks. */
#include <stddef.h>
static void *scarce_malloc(size_t bytes);
static void *scarce_realloc(void *p, size_t bytes);
static void scarce_free(void *p);
#define FLUX_MALLOC(bytes) scarce_malloc(bytes)
#define FLUX_REALLOC(p, bytes) scarce_realloc(p, bytes)
#define FLUX_FREE(p) scarce_free(p)
#ifndef NDEBUG
#define NDEBUG                             /* blocks are counted, so what is freed is to go at once at -O0 too */
#endif
#define FLUX_IMPLEMENTATION
#include "test.h"

/* Allocations until one fails (-1: none does), and those not freed. */
static long left = -1, live;
static bool refuse(void) { return left >= 0 && left-- == 0; }
static void *scarce_malloc(size_t bytes) {
    void *p = refuse() ? NULL : malloc(bytes);
    live += p != NULL;
    return p;
}
static void *scarce_realloc(void *p, size_t bytes) {
    void *q = refuse() ? NULL : realloc(p, bytes);
    live += q && !p;
    return q;
}
static void scarce_free(void *p) {
    live -= p != NULL;
    free(p);
}

static flux_tensor *plus_one(flux_tensor *x) { return flux_add(x, 1); }
static flux_layer *model(void) {
    flux_layer *tied = flux_named("tied", flux_dense(3, 3, flux_tanh));
    return flux_chain(tied, plus_one, tied,
                      flux_parallel(flux_add, flux_dense(3, 2), flux_scale(FLUX_SHAPE(1))),
                      flux_layernorm(FLUX_SHAPE(1)));
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

static void each_fails_in_turn(bool (*scenario)(void), const char *name) {
    flux_device cpu = { 0, 0 };
    bool done = false;
    long tries = 0;
    flux_on_error(test_silent, NULL);
    for (; !done && tries < 5000; tries++) {
        flux_mem_trim(cpu);
        left = tries;
        FLUX_SCOPE {
            bool good = scenario();
            done = left >= 0;              /* no allocation was refused */
            if (!CHECK(good != flux_failed()))
                fprintf(stderr, "    %s, allocation %ld: %s, error \"%s\"\n", name, tries,
                        good ? "done" : "not done", flux_error());
            left = -1;
        }
        flux_clear();
    }
    flux_on_error(NULL, NULL);
    CHECK(done && tries > 3);
    flux_mem_trim(cpu);
    long before = live;
    FLUX_SCOPE { scenario(); }
    flux_mem_trim(cpu);
    if (!CHECK(live - before <= 40))       /* plans may be kept */
        fprintf(stderr, "    %s: %ld blocks more\n", name, live - before);
}

TEST(making_a_model) { each_fails_in_turn(make, "make"); }
TEST(making_other_layers) { each_fails_in_turn(make_others, "make_others"); }
TEST(mapping) { each_fails_in_turn(map, "map"); }
TEST(flattening) { each_fails_in_turn(flatten, "flatten"); }
TEST(calling) { each_fails_in_turn(call, "call"); }
TEST(gradients) { each_fails_in_turn(train, "train"); }
TEST(visiting) { each_fails_in_turn(visit, "visit"); }
TEST_MAIN()
