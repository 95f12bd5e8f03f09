/* The model mechanism: layers of one's own, containers, walks, maps, ties, modes, freezing,
   flattening, and that nothing leaks. */
#include "test.h"

static flux_tensor *grad_of(flux_tensor *loss, flux_tensor *x) {
    return flux_grad(flux_gradient(loss, x), x);
}
static double norm_of(flux_tensor *x) { return flux_item(flux_norm(x)); }
static double gap(flux_tensor *a, flux_tensor *b) { return norm_of(flux_sub(a, b)); }
static const char *text_of(flux_layer *m) {
    static char text[300];
    size_t n = m && m->type->text ? m->type->text(m, text, sizeof text) : 0;
    return n && n < sizeof text ? text : "?";
}

/* ---- layers of one's own */

typedef struct actor_critic {
    flux_layer base;
    flux_layer *actor;
    flux_tensor *critic, *seen;           /* seen: state */
    int visits;
} actor_critic;

static flux_tensor *actor_critic_call(flux_layer *self, flux_tensor *x) {
    actor_critic *m = (actor_critic *)self;
    m->visits++;
    flux_tensor *y = flux_mul(flux_call(m->actor, x), m->critic);
    if (m->seen) flux_assign(&m->seen, flux_add(m->seen, 1));
    return y;
}
FLUX_LAYER(actor_critic, "ActorCritic", actor_critic_call, FLUX_CHILD(actor), FLUX_PARAM(critic),
           FLUX_STATE(seen))

static flux_layer *fresh(void) {
    return flux_new(actor_critic, .actor = flux_dense(2, 2), .critic = flux_full(3, 2),
                    .seen = flux_zeros(1), .visits = 7);
}

typedef struct stack_layer {
    flux_layer base;
    flux_layer **parts;
    int count;
    double factor;
} stack_layer;
static flux_tensor *stack_call(flux_layer *self, flux_tensor *x) {
    stack_layer *m = (stack_layer *)self;
    for (int i = 0; i < m->count; i++) x = flux_call(m->parts[i], x);
    return flux_mul(x, m->factor);
}
FLUX_LAYER(stack_layer, "Stack", stack_call, FLUX_CHILDREN(parts, count))

/* `unused` is in no list. */
typedef struct picky { flux_layer base; flux_tensor *used, *unused; } picky;
static flux_tensor *picky_call(flux_layer *self, flux_tensor *x) {
    return flux_add(x, ((picky *)self)->used);
}
FLUX_LAYER(picky, "Picky", picky_call, FLUX_PARAM(used))

static flux_tensor *nothing_call(flux_layer *self, flux_tensor *x) {
    return (void)self, (void)x, (flux_tensor *)NULL;
}
typedef picky picky_null;
FLUX_LAYER(picky_null, "Nothing", nothing_call, FLUX_PARAM(used))

TEST(own_layer_is_called_and_keeps_its_fields) {
    flux_layer *m = fresh();
    actor_critic *a = (actor_critic *)m;
    flux_tensor *x = flux_ones(2), *y = flux_call(m, x);
    CHECK_NEAR(gap(y, flux_mul(flux_call(a->actor, x), 3)), 0, 1e-6);
    CHECK(a->visits == 8 && m->mode == FLUX_MODE_AUTO && !m->frozen && m->name == NULL);
    CHECK_NEAR(flux_item(a->seen), 1, 0);
    FLUX_SCOPE { flux_call(m, x); }
    CHECK_NEAR(flux_item(a->seen), 2, 0);
}

TEST(own_layer_outlives_the_scope_of_its_parts) {
    flux_layer *m = NULL;
    FLUX_SCOPE { m = flux_keep(fresh()); }
    CHECK_NEAR(flux_item(flux_sum(((actor_critic *)m)->critic)), 6, 0);
    CHECK(flux_num_params(m) == 8);
}

TEST(children_are_copied) {
    flux_layer *parts[2] = { flux_dense(3, 3), flux_dense(3, 1) };
    flux_layer *m = flux_new(stack_layer, .parts = parts, .count = 2, .factor = 2);
    flux_layer *first = parts[0];
    parts[0] = parts[1] = NULL;
    CHECK(flux_child(m, 0) == first && flux_child(m, 2) == NULL && flux_child(m, -1) == NULL);
    CHECK(flux_dim(flux_call(m, flux_ones(3, 5)), 1) == 5);
    CHECK(flux_param(m, "parts.1.weight") == flux_weight(flux_child(m, 1)));
}

TEST(new_refuses) {
    flux_layer *none[1] = { NULL };
    CHECK_ERROR(flux_new(stack_layer, .parts = none, .count = 1), "new: parts[0] of Stack is NULL");
    CHECK_ERROR(flux_new(stack_layer, .count = 2),
                "new: the field parts of Stack says that it has 2 layers, and has none");
    CHECK_ERROR(flux_new(stack_layer, .parts = none, .count = -1), "says that it has -1 layers");
    CHECK_ERROR(flux_new(picky, .used = (flux_tensor *)(void *)flux_dense(1, 1)),
                "new: the field used of Picky is not a tensor");
    CHECK_ERROR(flux_new(actor_critic, .actor = (flux_layer *)(void *)flux_ones(1)),
                "new: the field actor of ActorCritic is not a layer");
    CHECK_ERROR(flux_new_with(NULL, none), "new: argument type is NULL");
    const flux_layer_type *whole = ((flux_layer *)flux_dense(1, 1))->type;
    CHECK_ERROR(flux_new_with(whole, NULL), "new: argument fields is NULL");
    for (int i = 0; i < 4; i++) {
        flux_layer_type lacks = *whole;
        if (i == 0) lacks.call = NULL;
        if (i == 1) lacks.fields = NULL;
        if (i == 2) lacks.name = NULL;
        if (i == 3) lacks.size = sizeof(flux_layer) - 1;
        CHECK_ERROR(flux_new_with(&lacks, flux_dense(1, 1)), "new: the description of the layer lacks its name, call function, fields or size");
    }
    flux_layer *no_layer[1] = { (flux_layer *)(void *)flux_ones(1) };
    CHECK_ERROR(flux_new(stack_layer, .parts = no_layer, .count = 1), "new: parts[0] of Stack is not a layer");
    CHECK(flux_new(actor_critic, .visits = 1) != NULL);     /* fields may be left out */
}

TEST(new_after_an_error_is_null) {
    flux_on_error(test_silent, NULL);
    flux_layer *m = flux_new(actor_critic, .actor = flux_dense(0, 2), .critic = flux_ones(2));
    CHECK(m == NULL && strstr(flux_error(), "dense: size 1 is 0"));
    m = flux_chain(flux_dense(2, 2), m);
    CHECK(m == NULL && flux_call(m, flux_ones(2)) == NULL);
    CHECK(strstr(flux_error(), "dense: size 1 is 0") != NULL);
    flux_clear();
    flux_on_error(NULL, NULL);
}

TEST(calls_refuse) {
    flux_layer *m = flux_dense(2, 2);
    CHECK_ERROR(flux_call(m, NULL), "call: argument x is NULL");
    CHECK_ERROR(flux_call(NULL, flux_ones(2)), "call: argument model is NULL");
    CHECK_ERROR(flux_call(m, flux_ones(2), NULL), "call: argument x is NULL");
    picky_null p;
    memset(&p, 0, sizeof p);
    CHECK_ERROR(flux_call(flux_new_with(picky_null_type(), &p), flux_ones(2)),
                "Nothing: its call gave NULL");
}

/* ---- walks */

typedef struct visited { int count, trained; char paths[20][64]; } visited;
static void note(flux_tensor *x, const char *path, bool trained, void *user) {
    visited *v = (visited *)user;
    (void)x;
    if (v->count < 20) snprintf(v->paths[v->count], sizeof v->paths[0], "%s", path);
    v->count++;
    v->trained += trained;
}

TEST(visit_gives_paths_in_order) {
    visited v = { 0, 0, { { 0 } } };
    flux_layer *m =
        flux_chain(flux_dense(2, 3), flux_relu,
                   flux_named("head", flux_chain(fresh(), flux_layernorm(FLUX_SHAPE(2)))));
    flux_visit(m, note, &v);
    const char *want[] = { "layers.0.weight",
                           "layers.0.bias",
                           "layers.head.layers.0.actor.weight",
                           "layers.head.layers.0.actor.bias",
                           "layers.head.layers.0.critic",
                           "layers.head.layers.0.seen",
                           "layers.head.layers.1.diag.scale",
                           "layers.head.layers.1.diag.bias" };
    CHECK(v.count == 8 && v.trained == 7);
    for (int i = 0; i < 8; i++) CHECK_STR(v.paths[i], want[i]);
    CHECK(flux_params(m, NULL, 0) == 7 && flux_num_params(m) == 9 + 6 + 2 + 4);
    CHECK_ERROR(flux_visit(NULL, note, &v), "visit: argument model is NULL");
}

TEST(params_fills_at_most_max) {
    flux_layer *m = flux_chain(flux_dense(2, 3), flux_dense(3, 1));
    flux_tensor *p[4] = { NULL, NULL, NULL, NULL };
    CHECK(flux_params(m, p, 2) == 4 && p[0] == flux_weight(m) && p[1] == flux_bias(m) &&
          p[2] == NULL);
    CHECK(flux_params(m, p, 4) == 4 && p[3] == flux_bias(flux_child(m, 1)));
}

TEST(integers_are_not_trained) {
    flux_layer *m = flux_new(picky, .used = flux_to_dtype(flux_ones(3), FLUX_I32));
    CHECK(flux_params(m, NULL, 0) == 0 && flux_num_params(m) == 0);
}

TEST(param_by_path) {
    flux_layer *m = flux_chain(flux_dense(2, 3), flux_named("out", flux_dense(3, 1)));
    CHECK(flux_param(m, "layers.0.bias") == flux_bias(m));
    CHECK(flux_param(m, "layers.out.weight") == flux_weight(flux_child(m, 1)));
    CHECK_ERROR(
        flux_param(m, "layers.1.weight"),
        "Chain has no \"layers.1.weight\"; it has layers.0.weight, layers.0.bias, layers.out.w");
    CHECK_ERROR(flux_param(m, NULL), "param: argument path is NULL");
    CHECK_ERROR(flux_param(flux_dropout(0.1), "p"), "it has no tensors");
}

TEST(weight_and_bias_of_the_first_layer) {
    flux_layer *m = flux_chain(flux_dropout(0.5), flux_chain(flux_dense(2, 3, .bias = FLUX_OFF)),
                               flux_dense(3, 1));
    CHECK(flux_dim(flux_weight(m), 0) == 3);
    CHECK_ERROR(flux_bias(m), "bias: Dense(2 => 3; bias=false) has none");
    CHECK_ERROR(flux_weight(flux_dropout(0.5)), "weight: Dropout(0.5) has none");
    CHECK_ERROR(flux_weight(NULL), "weight: argument model is NULL");
}

TEST(set_param) {
    flux_layer *tied = flux_dense(2, 2), *m = flux_chain(tied, flux_relu, tied);
    flux_tensor *w = flux_eye(2);
    CHECK(flux_set_param(m, "layers.0.weight", w) == 0);
    CHECK(flux_param(m, "layers.0.weight") == w && flux_param(m, "layers.2.weight") == w &&
          flux_weight(tied) == w);
    CHECK(flux_set_param(m, "layers.2.bias", flux_to_dtype(flux_ones(2), FLUX_F64)) == 0);
    CHECK(flux_dtype_of(flux_bias(m)) == FLUX_F32 && flux_item(flux_sum(flux_bias(tied))) == 2);
    CHECK_ERROR(CHECK(flux_set_param(m, "layers.0.weight", flux_ones(2, 3)) != 0),
                "set_param: layers.0.weight is 2x2 f32, the value is 2x3 f32");
    CHECK_ERROR(CHECK(flux_set_param(m, "layers.1.weight", w) != 0),
                "set_param: Chain has no \"layers.1.weight\"");
    CHECK_ERROR(CHECK(flux_set_param(m, "layers.0.weight", NULL) != 0),
                "set_param: argument value is NULL");
    CHECK(flux_param(m, "layers.0.weight") == w);
}

TEST(names) {
    flux_layer *d = flux_dense(1, 1);
    CHECK(flux_named("enc", d) == d && flux_named("enc", d) == d);
    CHECK_STR(d->name, "enc");
    CHECK_ERROR(flux_named("dec", d), "named: this Dense is called \"enc\" already");
    CHECK_ERROR(flux_named("a", NULL), "named: argument model is NULL");
    CHECK_ERROR(flux_named("12", flux_dense(1, 1)), "named: \"12\" is no name");
    CHECK_ERROR(flux_named("a.b", flux_dense(1, 1)), "named: \"a.b\" is no name");
    CHECK_ERROR(flux_named("", d), "named: \"\" is no name");
    CHECK_ERROR(flux_named(NULL, d), "named: argument name is NULL");
    CHECK_ERROR(flux_chain(flux_named("a", flux_dense(1, 1)), flux_named("a", flux_dense(1, 1))),
                "chain: layers 0 and 1 are both called \"a\"");
    CHECK(flux_chain(d, d) != NULL);       /* one layer in two places is no clash */
}

/* ---- fmap */

static int fmap_calls;
static flux_tensor *twice(flux_tensor *x) { fmap_calls++; return flux_mul(x, 2); }
static flux_tensor *same(flux_tensor *x) { return x; }
static flux_tensor *refuse(flux_tensor *x) { return flux_ndim(x) == 1 ? NULL : flux_mul(x, 2); }

TEST(fmap_makes_a_new_model) {
    flux_layer *m = flux_chain(flux_dense(2, 3, flux_tanh),
                               flux_named("mine", flux_new(actor_critic, .actor = flux_dense(3, 2),
                                                           .critic = flux_ones(2), .visits = 5)));
    flux_tensor *w = flux_weight(m);
    double before = norm_of(w);
    fmap_calls = 0;
    flux_layer *n = flux_fmap(twice, m);
    CHECK(fmap_calls == 5 && n != m && flux_weight(m) == w && flux_weight(n) != w);
    CHECK_NEAR(norm_of(flux_weight(n)), 2 * before, 1e-6);
    CHECK_NEAR(norm_of(w), before, 0);
    actor_critic *a = (actor_critic *)flux_child(n, 1);
    CHECK(a->visits == 5 && a->seen == NULL && flux_item(flux_sum(a->critic)) == 4);
    CHECK_STR(a->base.name, "mine");
    CHECK_STR(text_of(flux_child(n, 0)), "Dense(2 => 3, tanh)");
    CHECK(flux_child(flux_mapleaves(same, m), 0) != flux_child(m, 0));
    CHECK(flux_weight(flux_fmap(same, m)) == w);
}

TEST(fmap_keeps_ties) {
    flux_layer *d = flux_dense(3, 3);
    flux_tensor *w = flux_ones(3, 3);
    flux_layer *m = flux_chain(d, flux_relu, d, flux_dense(.weight = w), flux_dense(.weight = w));
    CHECK(flux_num_params(m) == 12 + 9 + 3 + 3);
    fmap_calls = 0;
    flux_layer *n = flux_fmap(twice, m);
    CHECK(fmap_calls == 5);
    CHECK(flux_child(n, 0) == flux_child(n, 2) && flux_child(n, 0) != d);
    CHECK(flux_weight(flux_child(n, 3)) == flux_weight(flux_child(n, 4)) &&
          flux_weight(flux_child(n, 3)) != w);
    CHECK(flux_num_params(n) == flux_num_params(m));
    flux_layer *c = flux_f64(flux_copy_layer(flux_cpu(n)));
    CHECK(flux_child(c, 0) == flux_child(c, 2) &&
          flux_weight(flux_child(c, 3)) == flux_weight(flux_child(c, 4)));
}

static flux_layer *transposed(flux_tensor **w) {     /* one matrix, there and back */
    *w = flux_rand(2, 3);
    return flux_chain(flux_dense(.weight = flux_transpose(*w)), flux_dense(.weight = *w));
}
static bool still_tied(flux_layer *m) {
    flux_tensor *a = flux_weight(flux_child(m, 0)), *b = flux_weight(flux_child(m, 1));
    return flux_dim(a, 0) == 3 && flux_dim(b, 0) == 2 && gap(flux_transpose(a), b) == 0;
}

TEST(fmap_keeps_a_transpose_tied) {
    flux_tensor *w;
    flux_layer *m = transposed(&w);
    fmap_calls = 0;
    flux_layer *n = flux_fmap(twice, m);
    CHECK(fmap_calls == 3);                /* the matrix once, and two biases */
    CHECK(still_tied(n) && gap(flux_weight(flux_child(n, 1)), flux_mul(w, 2)) == 0);
    CHECK(flux_num_params(m) == 6 + 5 && flux_num_params(n) == 11 && flux_params(n, NULL, 0) == 3);
    CHECK(flux_weight(flux_fmap(same, m)) == flux_weight(m));
    flux_tensor *base = flux_weight(flux_child(n, 1));
    flux_grads *g = flux_gradient(flux_sum(flux_call(flux_copy_layer(n), flux_ones(2))), n);
    CHECK(g && !flux_grad(g, base));       /* a copy keeps no graph to what it was made of */
    g = flux_gradient(flux_sum(flux_call(n, flux_ones(2))), n);
    double both = norm_of(flux_grad(g, base)), one = norm_of(flux_grad(g, flux_weight(n)));
    CHECK(both > one && one > 0);
}

TEST(a_transpose_stays_tied_elsewhere) {
    flux_tensor *w;
    flux_layer *m = transposed(&w);
    CHECK(flux_set_param(m, "layers.1.weight", flux_ones(2, 3)) == 0 && still_tied(m));
    CHECK_NEAR(flux_item(flux_sum(flux_weight(m))), 6, 0);
    flux_tensor *flat = flux_destructure(m);
    CHECK(flux_len(flat) == 11);
    flux_layer *n = flux_restructure(m, flux_mul(flux_rand(11), 3));
    CHECK(still_tied(n) && flux_num_params(n) == 11);
    CHECK(still_tied(flux_copy_layer(n)) && flux_num_params(flux_copy_layer(n)) == 11);
    flux_state *s = flux_setup(flux_descent(0.1), m);
    CHECK(flux_update(s, m, flux_gradient(flux_sum(flux_call(m, flux_ones(2))), m)) == 0);
    CHECK(still_tied(m) && flux_item(flux_sum(flux_weight(m))) < 6);
}

TEST(fmap_that_fails_leaks_nothing_and_says_where) {
    flux_layer *m = flux_chain(fresh(), flux_dense(2, 2), flux_dense(2, 2));
    CHECK_ERROR(CHECK(flux_fmap(refuse, m) == NULL),
                "fmap: the function gave NULL for layers.0.actor.bias of Dense");
    CHECK_ERROR(flux_fmap(NULL, m), "fmap: argument f is NULL");
    CHECK_ERROR(flux_fmap(twice, NULL), "fmap: argument model is NULL");
}

static flux_tensor *by_path(flux_tensor *x, const char *path, void *user) {
    visited *v = (visited *)user;
    note(x, path, false, v);
    return strstr(path, "bias") ? flux_add(x, 1) : x;
}
static bool is_head(flux_layer *m, void *user) {
    return (void)user, m->name && !strcmp(m->name, "head");
}

TEST(fmap_with_paths_and_a_choice) {
    visited v = { 0, 0, { { 0 } } };
    flux_layer *head = flux_named("head", flux_dense(3, 1)),
               *m = flux_chain(flux_dense(2, 3), head);
    flux_layer *n = flux_fmap_with(by_path, &v, m, is_head);
    CHECK(v.count == 2 && flux_child(n, 1) == head && flux_child(n, 0) != flux_child(m, 0));
    CHECK(flux_weight(n) == flux_weight(m) && flux_item(flux_sum(flux_bias(n))) == 3);
    n = flux_fmap_with(by_path, &v, m, NULL);
    CHECK(v.count == 6 && flux_child(n, 1) != head);
    CHECK_STR(v.paths[4], "layers.head.weight");
}

TEST(fields_that_nobody_named_stay) {
    flux_tensor *u = flux_ones(2);
    flux_layer *m = flux_new(picky, .used = flux_ones(2), .unused = u);
    fmap_calls = 0;
    CHECK(((picky *)flux_fmap(twice, m))->unused == u && fmap_calls == 1);
}

TEST(fmap_of_nested_sharing_is_not_exponential) {
    flux_layer *m = flux_dense(2, 2);
    for (int i = 0; i < 12; i++) m = flux_chain(m, m);
    fmap_calls = 0;
    flux_layer *n = flux_fmap(twice, m);
    CHECK(fmap_calls == 2 && flux_child(n, 0) == flux_child(n, 1));
    CHECK(flux_num_params(n) == 6);
}

/* ---- copies and conversions */

TEST(copy_is_deep) {
    flux_layer *m = fresh(), *c = flux_copy_layer(m);
    flux_freeze(m);
    flux_layer *f = flux_copy_layer(m);
    CHECK(!c->frozen && f->frozen && flux_child(f, 0)->frozen);
    CHECK(flux_weight(c) != flux_weight(m));
    CHECK_NEAR(gap(flux_weight(c), flux_weight(m)), 0, 0);
    CHECK(flux_set_param(c, "critic", flux_zeros(2)) == 0 &&
          flux_item(flux_sum(((actor_critic *)m)->critic)) == 6);
    CHECK_ERROR(flux_copy_layer(NULL), "copy_layer: argument model is NULL");
}

typedef struct norm_like { flux_layer base; flux_tensor *gain; } norm_like;
static flux_tensor *norm_like_call(flux_layer *self, flux_tensor *x) {
    return flux_mul(x, ((norm_like *)self)->gain);
}
FLUX_LAYER_TRAITS(norm_like, "NormLike", norm_like_call, NULL, FLUX_KEEPS_F32, FLUX_PARAM(gain))

TEST(conversions) {
    flux_layer *m = flux_chain(flux_dense(2, 3), flux_new(norm_like, .gain = flux_ones(3)),
                               flux_new(picky, .used = flux_to_dtype(flux_ones(3), FLUX_I32)));
    flux_layer *h = flux_f16(m), *b = flux_bf16(m), *d = flux_f64(m);
    CHECK(flux_dtype_of(flux_weight(h)) == FLUX_F16 && flux_dtype_of(flux_bias(b)) == FLUX_BF16 &&
          flux_dtype_of(flux_weight(d)) == FLUX_F64);
    CHECK(flux_dtype_of(flux_param(h, "layers.1.gain")) == FLUX_F32 &&
          flux_dtype_of(flux_param(b, "layers.1.gain")) == FLUX_F32);
    CHECK(flux_dtype_of(flux_param(d, "layers.1.gain")) == FLUX_F64 &&
          flux_dtype_of(flux_param(d, "layers.2.used")) == FLUX_I32);
    CHECK(flux_dtype_of(flux_weight(flux_f32(h))) == FLUX_F32);
    CHECK_NEAR(gap(flux_weight(flux_f32(h)), flux_weight(m)), 0, 1e-3);
    flux_tensor *y = flux_call(flux_child(h, 0), flux_to_dtype(flux_ones(2), FLUX_F16));
    CHECK(flux_dtype_of(y) == FLUX_F16);
    CHECK_ERROR(flux_f16(NULL), "f16: argument model is NULL");
}

/* ---- modes, freezing */

/* A layer of one's own that keeps float32 and takes indices, as norms and embeddings do. */
typedef struct lookup { flux_layer base; flux_tensor *table; } lookup;
static flux_tensor *lookup_call(flux_layer *self, flux_tensor *x) {
    if (flux_dtype_of(x) != FLUX_I64) return NULL;
    return flux_gather(((lookup *)self)->table, 1, x);
}
FLUX_LAYER_TRAITS(lookup, "Lookup", lookup_call, NULL, FLUX_KEEPS_F32 | FLUX_TAKES_INDICES,
                  FLUX_PARAM(table))

TEST(traits_of_a_layer) {
    flux_layer *m = flux_chain(flux_new(lookup, .table = flux_ones(4, 9)), flux_dense(4, 2));
    CHECK(flux_outputsize(m, 5, 3).dim[0] == 2);
    CHECK(flux_dtype_of(flux_param(flux_f16(m), "layers.0.table")) == FLUX_F32);
    CHECK(flux_dtype_of(flux_param(flux_f16(m), "layers.1.weight")) == FLUX_F16);
    CHECK(flux_dtype_of(flux_param(flux_f64(m), "layers.0.table")) == FLUX_F64);
    CHECK(!flux_failed());
}

TEST(modes_reach_every_child) {
    flux_layer *m = flux_chain(flux_dense(2, 2), fresh(), flux_chain(flux_dropout(0.5)));
    flux_layer *drop = flux_child(flux_child(m, 2), 0);
    CHECK(flux_training(drop));
    FLUX_NOGRAD { CHECK(!flux_training(drop)); }
    flux_testmode(m, true);
    CHECK(!flux_training(drop) && drop->mode == FLUX_MODE_TEST &&
          flux_child(flux_child(m, 1), 0)->mode == FLUX_MODE_TEST);
    flux_trainmode(m, true);
    FLUX_NOGRAD { CHECK(flux_training(drop)); }
    flux_trainmode(m, false);
    CHECK(drop->mode == FLUX_MODE_AUTO && flux_training(drop));
    CHECK(!flux_training(NULL));
    CHECK_ERROR(flux_testmode(NULL, true), "testmode: argument model is NULL");
}

typedef struct modes_seen { bool drop, inner, in_nograd, in_nested, told; int nested; } modes_seen;

static flux_tensor *sees_modes(flux_layer *m, void *user) {
    modes_seen *s = (modes_seen *)user;
    flux_grads *g = NULL;
    s->drop = flux_training(flux_child(m, 1));
    s->inner = flux_training(flux_child(flux_child(m, 2), 0));
    FLUX_NOGRAD { s->in_nograd = flux_training(flux_child(m, 1)); }
    if (s->nested-- > 0) {
        flux_withgradient(sees_modes, user, m, &g);
        s->in_nested = s->drop;
        s->drop = flux_training(flux_child(m, 1));
    }
    if (s->told) {
        flux_testmode(flux_child(m, 1), true);
        s->in_nested = flux_training(flux_child(m, 1)) || !flux_training(flux_child(m, 0));
    }
    return s->told ? NULL : flux_sum(flux_call(flux_child(m, 0), flux_ones(2)));
}

TEST(modes_come_back_as_they_were) {
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_dropout(0.5), flux_chain(flux_dropout(0.5), flux_dropout(0.1)));
    flux_layer *drop = flux_child(m, 1), *deep = flux_child(m, 2);
    flux_grads *g = NULL;
    modes_seen s = { false, false, true, false, false, 1 };
    flux_testmode(drop, true);            /* each layer its own mode */
    flux_trainmode(flux_child(deep, 0), true);
    CHECK(flux_withgradient(sees_modes, &s, m, &g) && g);
    CHECK(s.drop && s.inner && s.in_nested && !s.in_nograd);
    CHECK(drop->mode == FLUX_MODE_TEST && !flux_training(drop) && m->mode == FLUX_MODE_AUTO);
    CHECK(flux_child(deep, 0)->mode == FLUX_MODE_TRAIN && flux_child(deep, 1)->mode == FLUX_MODE_AUTO);
    FLUX_NOGRAD { CHECK(!flux_training(m) && !flux_training(flux_child(deep, 1))); }

    s.told = true;                        /* what fn sets is set, and holds at once; an error changes nothing */
    flux_testmode(m, true);
    CHECK_ERROR((flux_withgradient(sees_modes, &s, m, &g), flux_zeros(-1)), "-1");
    CHECK(!g && s.drop && !s.in_nested && drop->mode == FLUX_MODE_TEST && !flux_training(drop) && !flux_training(m));
    flux_trainmode(m, false);
    CHECK(flux_training(drop));
}

TEST(freeze_and_thaw_reach_every_child) {
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_chain(flux_dense(2, 2)));
    flux_freeze(flux_child(m, 1));
    CHECK(!m->frozen && !flux_child(m, 0)->frozen && flux_child(flux_child(m, 1), 0)->frozen);
    flux_thaw(m);
    CHECK(!flux_child(flux_child(m, 1), 0)->frozen);
    CHECK_ERROR(flux_freeze(NULL), "freeze: argument model is NULL");
}

/* ---- containers */

static flux_tensor *plus_one(flux_tensor *x) { return flux_add(x, 1); }
static flux_tensor *times(flux_tensor *a, flux_tensor *b) { return flux_mul(a, b); }
static flux_tensor *sum_of_tuple(flux_tensor *t) {
    flux_tensor *y = flux_nth(t, 0);
    for (int i = 1; i < flux_num_items(t); i++) y = flux_add(y, flux_nth(t, i));
    return y;
}
static double at(flux_tensor *x, int i) { return flux_at(x, i); }

TEST(chain_of_layers_and_functions) {
    flux_layer *m = flux_chain(plus_one, flux_square, plus_one);
    CHECK_NEAR(at(flux_call(m, flux_full(2, 3)), 1), 10, 0);
    CHECK_STR(text_of(flux_child(m, 0)), "plus_one");
    CHECK_STR(text_of(flux_child(m, 1)), "square");
    flux_tensor *x = flux_ones(2);
    CHECK_NEAR(gap(flux_call(flux_chain_with(0, NULL, NULL), x), x), 0, 0);
    flux_layer *d = flux_dense(2, 3), *s = flux_chain(d, flux_softmax);
    CHECK_NEAR(flux_item(flux_sum(flux_call(s, flux_ones(2, 4)))), 4, 1e-6);
    CHECK_ERROR(flux_chain_with(-1, NULL, NULL), "chain: -1 layers");
    flux_layer *bad[2] = { d, NULL };
    CHECK_ERROR(flux_chain_with(2, bad, NULL), "chain: layer 1 is NULL");
}

TEST(activations_of_a_chain) {
    flux_tensor *t = flux_activations(flux_chain(plus_one, flux_square, plus_one), flux_full(2, 3));
    CHECK(flux_num_items(t) == 3);
    CHECK(at(flux_nth(t, 0), 0) == 3 && at(flux_nth(t, 1), 0) == 9 && at(flux_nth(t, 2), 0) == 10);
    CHECK_ERROR(flux_activations(flux_dense(2, 2), flux_ones(2)),
                "activations: needs a Chain of at least one layer, not Dense(2 => 2)");
    CHECK_ERROR(flux_activations(flux_chain(plus_one), NULL), "activations: argument x is NULL");
}

TEST(parallel_pairs_inputs_and_layers) {
    flux_tensor *a = flux_full(2, 3), *b = flux_full(5, 3);
    CHECK_NEAR(at(flux_call(flux_parallel(flux_add, plus_one, flux_square), a), 0), 7, 0);
    CHECK_NEAR(at(flux_call(flux_parallel(times, plus_one, flux_square), a, b), 0), 75, 0);
    CHECK_NEAR(at(flux_call(flux_parallel(flux_sub, plus_one), a, b), 0), -3, 0);
    CHECK_NEAR(at(flux_call(flux_parallel(flux_add, plus_one), a), 0), 3, 0);
    CHECK_NEAR(at(flux_call(flux_parallel(sum_of_tuple, plus_one, plus_one, flux_square), a), 0),
               10, 0);
    CHECK_NEAR(at(flux_call(flux_parallel(flux_add, plus_one, plus_one, flux_square), a), 0), 10,
               0);
    flux_tensor *v = flux_call(flux_parallel(flux_vcat, plus_one, flux_square), a);
    CHECK_DATA(v, ((double[]){ 3, 3, 3, 4, 4, 4 }), 0);
    CHECK(flux_num_items(flux_call(flux_parallel(flux_identity, plus_one, flux_square), a)) == 2);
    CHECK_ERROR(flux_call(flux_parallel(flux_add, plus_one, plus_one, plus_one), a, b),
                "Parallel: 3 layers, but 2 inputs");
    flux_layer *none = NULL;
    CHECK_ERROR(flux_parallel_with(none, 1, NULL, NULL), "parallel: argument connection is NULL");
    CHECK_ERROR(flux_parallel_with(flux_function(plus_one, NULL), 0, NULL, NULL),
                "parallel: 0 layers");
    CHECK_STR(text_of(flux_child(flux_parallel(flux_add, plus_one), 0)), "+");
    CHECK_STR(text_of(flux_child(flux_parallel(times, plus_one), 0)), "times");
    CHECK_STR(text_of(flux_child(flux_parallel(times, plus_one), 1)), "plus_one");
}

TEST(skipconnection_joins_input_and_output) {
    flux_tensor *x = flux_full(3, 2);
    CHECK_NEAR(at(flux_call(flux_skipconnection(flux_square, flux_sub), x), 0), 6, 0);
    CHECK_NEAR(at(flux_call(flux_skipconnection(flux_square, sum_of_tuple), x), 0), 12, 0);
    flux_tensor *y = flux_call(flux_skipconnection(flux_dense(2, 3), flux_vcat), x);
    CHECK(flux_dim(y, 0) == 5 && at(y, 3) == 3);
    CHECK_STR(text_of(flux_child(flux_skipconnection(plus_one, times), 0)), "plus_one");
    CHECK_STR(text_of(flux_child(flux_skipconnection(plus_one, times), 1)), "times");
    CHECK_ERROR(flux_skipconnection_with(NULL, flux_function2(times, NULL), NULL),
                "skipconnection: argument layer is NULL");
}

TEST(maxout_takes_the_largest) {
    float v[3] = { -2, 0.5f, 3 };
    CHECK_DATA(flux_call(flux_maxout(flux_square, plus_one), flux_from(v, 3)),
               ((double[]){ 4, 1.5, 9 }), 1e-6);
    flux_layer *m =
        flux_maxout(flux_dense(5, 3, flux_tanh), flux_dense(5, 3, flux_tanh), flux_dense(5, 3));
    CHECK(flux_dim(flux_call(m, flux_ones(5, 2)), 0) == 3 && flux_num_params(m) == 54);
    CHECK_ERROR(flux_maxout_with(0, NULL, NULL), "maxout: 0 layers");
}

TEST(pairwisefusion_hands_results_on) {
    flux_tensor *a = flux_full(2, 1), *b = flux_full(10, 1), *c = flux_full(100, 1);
    flux_layer *m = flux_pairwisefusion(flux_add, plus_one, flux_square, plus_one);
    flux_tensor *t = flux_call(m, a, b, c);      /* 3; (3 + 10)^2; 169 + 100 + 1 */
    CHECK(flux_num_items(t) == 3 && at(flux_nth(t, 0), 0) == 3 && at(flux_nth(t, 1), 0) == 169 &&
          at(flux_nth(t, 2), 0) == 270);
    t = flux_call(m, a);                          /* 3; (3 + 2)^2; 25 + 2 + 1 */
    CHECK(at(flux_nth(t, 1), 0) == 25 && at(flux_nth(t, 2), 0) == 28);
    CHECK_ERROR(flux_call(m, a, b), "PairwiseFusion: 3 layers, but 2 inputs");
}

TEST(functions_as_layers) {
    flux_layer *f = flux_function(plus_one, "inc"), *g = flux_function2(times, "prod");
    CHECK_STR(text_of(f), "inc");
    CHECK_STR(text_of(g), "prod");
    CHECK_NEAR(at(flux_call(g, flux_full(3, 1), flux_full(4, 1)), 0), 12, 0);
    CHECK_ERROR(flux_call(g, flux_ones(1)), "prod takes two inputs, got one");
    CHECK_ERROR(flux_function(NULL, "x"), "function: argument f is NULL");
    flux_fn pick = flux_relu;
    CHECK_STR(text_of(flux_child(flux_chain(pick, flux_sigmoid), 0)), "relu");
    CHECK_STR(text_of(flux_child(flux_chain(flux_dense(2, 3, .bias = FLUX_OFF),
                                            flux_named("a,b\")(", flux_dense(3, 3)), plus_one),
                                 2)),
              "plus_one");
    flux_fn mine = plus_one;
    CHECK_STR(text_of(flux_child(flux_chain(mine), 0)), "mine");
}

TEST(calls_hide_their_temporaries) {
    flux_layer *m =
        flux_chain(flux_dense(3, 3, flux_gelu), flux_layernorm(FLUX_SHAPE(3)), flux_softmax);
    flux_tensor *x = flux_rand(3, 2), *y = flux_call(m, x);
    CHECK(((flux__head *)(void *)y)->refs == 1);              /* the scope's, and nobody else's */
    flux_tensor *z = flux_call(m, x);
    CHECK_NEAR(gap(y, z), 0, 0);
}

/* What a getter gave stays what it is, whatever the model has by then. */
TEST(a_weight_that_is_held_stays_as_it_is) {
    flux_layer *m = flux_chain(flux_dense(3, 2));
    flux_state *opt = flux_setup(flux_descent(0.1), m);
    flux_tensor *x = flux_ones(3, 4), *w[3];
    double was[3];
    flux_times (i, 2) CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_call(m, x)), m)) == 0);
    for (int i = 0; i < 3; i++) {
        w[i] = i == 0 ? flux_weight(m) : i == 1 ? flux_bias(m) : flux_param(m, "layers.0.weight");
        FLUX_SCOPE was[i] = flux_item(flux_sum(w[i]));     /* what it is in does not hold it */
        flux_times (k, 3) CHECK(flux_update(opt, m, flux_gradient(flux_sum(flux_call(m, x)), m)) == 0);
    }
    flux_tensor *last = flux_weight(m);
    CHECK(flux_set_param(m, "layers.0.weight", flux_zeros(2, 3)) == 0);
    for (int i = 0; i < 3; i++) CHECK_NEAR(flux_item(flux_sum(w[i])), was[i], 0);
    CHECK(flux_item(flux_sum(last)) < was[2] && flux_item(flux_sum(flux_weight(m))) == 0);
}

/* ---- outputsize */

static bool is_shape(flux_shape s, int n, int64_t a, int64_t b, int64_t c) {
    return s.ndim == n && (n < 1 || s.dim[0] == a) && (n < 2 || s.dim[1] == b) &&
           (n < 3 || s.dim[2] == c);
}

/* A layer that asks for a size while it is called, as one may that shapes what follows by it. */
typedef struct asking { flux_layer base; flux_layer *inner; } asking;
static flux_tensor *asking_call(flux_layer *self, flux_tensor *x) {
    flux_layer *inner = ((asking *)self)->inner;
    CHECK(is_shape(flux_outputsize(inner, 4, 2), 2, 3, 2, 0));
    return flux_call(inner, x);
}
FLUX_LAYER(asking, "Asking", asking_call, FLUX_CHILD(inner))
TEST(outputsize_within_a_summary) {
    flux_layer *m = flux_chain(flux_new(asking, { 0 }, flux_dense(4, 3)), flux_dense(3, 2));
    CHECK(flux_summary_text(m, FLUX_SHAPE(4, 2), NULL, 0) > 0);
}

TEST(outputsize_without_computing) {
    flux_layer *m = flux_chain(flux_dense(784, 32, flux_relu), flux_dropout(0.5),
                               flux_layernorm(FLUX_SHAPE(32)), flux_dense(32, 10), flux_softmax);
    CHECK(is_shape(flux_outputsize(m, 784, 64), 2, 10, 64, 0));
    CHECK(is_shape(flux_outputsize(m, 784), 1, 10, 0, 0));
    CHECK(is_shape(flux_outputsize(flux_chain(flux_embedding(9, 4), flux_dense(4, 2)), 5, 3), 3, 2,
                   5, 3));
    CHECK_ERROR(CHECK(flux_outputsize(m, 100, 64).ndim == -1),
                "Dense(784 => 32, relu) expects dim 0 of size 784, got 100x64 f32");
    CHECK_ERROR(CHECK(flux_outputsize(NULL, 1).ndim == -1), "outputsize: argument model is NULL");
    CHECK_ERROR(flux_outputsize(flux_parallel(flux_identity, plus_one, plus_one), 3),
                "outputsize: Parallel gives a tuple of 2 tensors");
    CHECK_ERROR(flux_outputsize(m, -1), "-1");
}

/* In train mode a BatchNorm takes no single column: the size is asked of a model that does not train. */
TEST(outputsize_of_one_column_in_train_mode) {
    flux_layer *m = flux_chain(flux_dense(3, 4), flux_batchnorm(4));
    flux_trainmode(m, true);
    flux_shape s = flux_outputsize(m, 3, 1);
    CHECK(s.ndim == 2 && s.dim[0] == 4 && s.dim[1] == 1);
}

TEST(outputsize_changes_nothing) {
    flux_layer *m = fresh(), *d = flux_dropout(0.5);
    flux_trainmode(d, true);
    flux_seed(9);
    double want = flux_item(flux_rand(1));
    flux_seed(9);
    CHECK(flux_outputsize(d, 4, 4).ndim == 2 && is_shape(flux_outputsize(m, 2, 3), 2, 2, 3, 0));
    CHECK_NEAR(flux_item(flux_rand(1)), want, 0);
    CHECK(((actor_critic *)m)->visits == 7 && d->mode == FLUX_MODE_TRAIN);
    CHECK_NEAR(flux_item(((actor_critic *)m)->seen), 0, 0);
}

/* ---- destructure, restructure */

TEST(destructure_and_back) {
    flux_layer *m = flux_chain(flux_dense(2, 3, flux_tanh), fresh());
    flux_tensor *flat = flux_destructure(m);
    CHECK(flux_ndim(flat) == 1 && flux_len(flat) == flux_num_params(m) &&
          flux_num_params(m) == 9 + 6 + 2);
    CHECK_NEAR(flux_at(flat, 1), flux_at(flux_weight(m), 1, 0), 0);
    CHECK_NEAR(flux_at(flat, 16), 3, 0);
    flux_layer *n = flux_restructure(m, flux_mul(flat, 2));
    CHECK_NEAR(gap(flux_weight(n), flux_mul(flux_weight(m), 2)), 0, 1e-6);
    CHECK(((actor_critic *)flux_child(n, 1))->seen == ((actor_critic *)flux_child(m, 1))->seen &&
          ((actor_critic *)flux_child(n, 1))->visits == 7);
    CHECK_NEAR(gap(flux_destructure(n), flux_mul(flat, 2)), 0, 1e-6);
    CHECK_ERROR(flux_restructure(m, flux_ones(16)),
                "restructure: the model has 17 trained numbers, flat is 16-element f32");
    CHECK_ERROR(flux_restructure(m, flux_ones(17, 1)), "flat is 17x1 f32");
    CHECK_ERROR(flux_restructure(NULL, flux_ones(17)), "restructure: argument model is NULL");
    CHECK_ERROR(flux_restructure(m, NULL), "restructure: argument flat is NULL");
    CHECK_ERROR(flux_destructure(NULL), "destructure: argument model is NULL");
}

TEST(destructure_can_be_differentiated) {
    flux_layer *m = flux_chain(flux_dense(2, 2, flux_tanh), flux_dense(2, 1));
    flux_tensor *flat = flux_destructure(m), *x = flux_rand(2, 5);
    flux_tensor *g = grad_of(flux_sum(flux_call(flux_restructure(m, flat), x)), flat);
    flux_grads *direct = flux_gradient(flux_sum(flux_call(m, x)), m);
    CHECK(flux_len(g) == 9);
    CHECK_NEAR(gap(flux_reshape(flux_slice(g, 0, 0, 4), 2, 2), flux_grad(direct, flux_weight(m))),
               0, 1e-6);
    CHECK_NEAR(gap(flux_slice(g, 0, 8, 9), flux_grad(direct, flux_bias(flux_child(m, 1)))), 0,
               1e-6);
    flux_tensor *w = flux_weight(m), *gw = grad_of(flux_sum(flux_square(flux_destructure(m))), w);
    CHECK_NEAR(gap(gw, flux_mul(w, 2)), 0, 1e-6);
}

TEST(destructure_keeps_ties) {
    flux_layer *d = flux_dense(2, 2), *m = flux_chain(d, d);
    CHECK(flux_len(flux_destructure(m)) == 6);
    flux_layer *n = flux_restructure(m, flux_ones(6));
    CHECK(flux_child(n, 0) == flux_child(n, 1) && flux_num_params(n) == 6);
    CHECK_NEAR(at(flux_call(n, flux_ones(2)), 0), 7, 1e-6);
}

TEST(destructure_of_nothing_and_of_mixed_dtypes) {
    CHECK(flux_len(flux_destructure(flux_dropout(0.5))) == 0);
    CHECK(flux_restructure(flux_dropout(0.5), flux_zeros(0)) != NULL);
    flux_layer *m = flux_chain(flux_f64(flux_dense(2, 2)), flux_dense(2, 2));
    CHECK(flux_dtype_of(flux_destructure(m)) == FLUX_F64);
    CHECK(flux_dtype_of(flux_weight(flux_child(flux_restructure(m, flux_destructure(m)), 1))) ==
          FLUX_F32);
}

TEST(destructure_of_many_tensors) {
    flux_layer *parts[200];
    for (int i = 0; i < 200; i++) parts[i] = flux_dense(1, 1);
    flux_layer *m = flux_chain_with(200, parts, NULL);
    flux_tensor *flat = flux_destructure(m);
    CHECK(flux_len(flat) == 400);
    CHECK_NEAR(flux_at(flat, 398), flux_item(flux_weight(parts[199])), 0);
}

/* ---- training of what is tied */

TEST(tied_gradients_add_up) {
    flux_tensor *w = flux_eye(2);
    flux_layer *m = flux_chain(flux_dense(.weight = w, .bias = FLUX_OFF),
                               flux_dense(.weight = w, .bias = FLUX_OFF));
    flux_grads *g = flux_gradient(flux_sum(flux_call(m, flux_ones(2))), m);
    CHECK_DATA(flux_grad(g, w), ((double[]){ 2, 2, 2, 2 }), 0);
}

TEST(a_step_keeps_ties_and_leaves_frozen_layers) {
    flux_layer *d = flux_dense(2, 2), *out = flux_dense(2, 1),
               *m = flux_chain(d, flux_tanh, d, out);
    flux_freeze(out);
    flux_state *s = flux_setup(flux_descent(0.1), m);
    flux_tensor *before = flux_copy(flux_weight(d)), *frozen = flux_copy(flux_weight(out));
    CHECK(before && flux_eval(before) && flux_eval(frozen));
    for (int i = 0; i < 3; i++) FLUX_SCOPE
    CHECK(flux_update(s, m, flux_gradient(flux_sum(flux_square(flux_call(m, flux_ones(2)))), m)) ==
          0);
    CHECK(gap(flux_weight(d), before) > 1e-4);
    CHECK_NEAR(gap(flux_weight(out), frozen), 0, 0);
    CHECK(flux_child(m, 0) == flux_child(m, 2) && flux_num_params(m) == 9);
}

/* ---- nothing leaks, and nothing lives on */

TEST(models_give_their_memory_back) {
    flux_device cpu = { 0, 0 };
    int64_t before = flux_mem_stats(cpu).live;
    for (int i = 0; i < 3; i++) FLUX_SCOPE {
            flux_layer *m = flux_chain(flux_dense(64, 64, flux_relu), fresh(),
                                       flux_embedding(10, 4, .padding_idx = 2));
            flux_layer *n = flux_f64(flux_fmap(twice, flux_copy_layer(m)));
            CHECK(flux_len(flux_destructure(n)) == flux_num_params(m));
            flux_eval(flux_destructure(n));
    }
    CHECK(flux_mem_stats(cpu).live == before);
}

TEST(retained_models_live_on) {
    flux_layer *m = NULL;
    FLUX_SCOPE { m = (flux_layer *)flux_retain(flux_chain(flux_dense(2, 2), plus_one)); }
    CHECK(flux_len(flux_call(m, flux_ones(2))) == 2);
    flux_release(m);
}

TEST(a_layer_within_itself_is_found_out) {
    flux_layer *m = flux_chain(flux_dense(2, 2), plus_one);
    stack_layer *s = (stack_layer *)flux_new(stack_layer, .parts = &m, .count = 1);
    s->parts[0] = &s->base;                /* what no program should do */
    CHECK_ERROR(flux_num_params(&s->base),
                "more than 1000 layers within layers; does it contain itself?");
    CHECK_ERROR(flux_copy_layer(&s->base), "does it contain itself?");
    s->parts[0] = m;
}

static flux_layer *nest(int n) {
    flux_layer *m = flux_dense(2, 2);
    for (int i = 0; i < n && m; i++) m = flux_chain(m, plus_one);
    return m;
}

/* Calls that follow a model down go as deep as it is: how deep is checked where a layer is made. */
TEST(layers_within_layers_are_bounded) {
    flux_layer *m = flux_dense(2, 2);
    while (m->levels < FLUX_MAX_LEVELS) m = flux_chain(m, flux_dense(2, 2));
    CHECK_ERROR(flux_chain(m, plus_one), "Chain: more than 1000 layers within layers");
    CHECK_ERROR(flux_skipconnection(m, flux_add), "more than 1000 layers within layers");
    CHECK_ERROR(flux_parallel(flux_add, m, m), "more than 1000 layers within layers");
    flux_layer *copy = flux_copy_layer(m);
    CHECK(copy && copy->levels == FLUX_MAX_LEVELS && flux_num_params(copy) == 6 * FLUX_MAX_LEVELS);
    CHECK(flux_layer_text(m, NULL, 0) > 1000 && flux_eval(flux_call(m, flux_ones(2))) != NULL);
    CHECK_ERROR(nest(100000), "Chain: more than 1000 layers within layers");
}

TEST(tuples_within_tuples_are_bounded) {
    flux_tensor *x = flux_add(flux_ones(2), 1), *t = flux_tuple(x, x);
    for (int i = 1; i < FLUX_MAX_LEVELS; i++) t = i < 40 ? flux_tuple(t, t) : flux_tuple(t);    /* shared: gone into once */
    CHECK_ERROR(flux_tuple(t, x), "tuple: more than 1000 tuples within tuples");
    CHECK(flux_eval(t) == t);
    flux_tensor *in = t, *three = flux_tuple(flux_tuple(flux_mul(x, 2), x), flux_mul(x, 3));
    while (flux_num_items(in) == 1) in = flux_nth(in, 0);
    CHECK(flux_eval(three) == three && flux_eval(in) == in);
    CHECK_DATA(flux_nth(flux_nth(three, 0), 0), ((double[]){ 4, 4 }), 0);
    CHECK_DATA(flux_nth(three, 1), ((double[]){ 6, 6 }), 0);
}

/* On the CPU there is nothing to compile: the model is not called, nor are its weights made. */
static int calls;
static flux_tensor *counted(flux_tensor *x) { return calls++, x; }
TEST(prewarming_the_cpu_does_nothing) {
    ONLY_ON_CPU();
    flux_layer *m = flux_chain(flux_dense(3, 2), counted);
    const int64_t live = flux_mem_stats(test_device).live;
    CHECK(flux_prewarm(m, 3, 4) == 0 && flux_prewarm(m, 5) == 0 && calls == 0);
    CHECK(flux_mem_stats(test_device).live == live);
    CHECK(flux_eval(flux_call(m, flux_ones(3))) != NULL && calls == 1);
}
TEST_MAIN()
