/* What calls refuse, room by room of src/: each condition of each check is true once while those before it are false, the
   sentence is the one that it is said in, the call gives what a call gives that failed, and nothing has changed: no weight, no
   state of an optimiser, no mode, no place in the stream of random numbers or in a loader, no scope and no block left open.
   Beside a limit stands the last value that is accepted, so that a limit which moves by one is seen from either side.
   A check that is new gets its rows here. `make coverage MISSED=nn/` lists lines of which some operand never decided. */
#define FLUX_IMPLEMENTATION
#include "test.h"

/* ---------------- what no refusal may change */

static flux_tensor *x, *v, *at, *truth, *pair, *none, *one, *cube, *eight, *image, *whole, *nil;
static flux_layer *model;
static flux_state *state;
static flux_loader *loader;
static int nograd_here;

static uint64_t hashed(uint64_t h, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * UINT64_C(1099511628211);
    return h;
}
static uint64_t hashed_tensor(uint64_t h, flux_tensor *y) {
    const void *data = flux_data(y);
    return data ? hashed(h, data, (size_t)flux_len(y) * flux_dtype_size(flux_dtype_of(y))) : h + 1;
}
static uint64_t world(void) {
    const flux__thread *t = flux__self();
    const int64_t thread[] = { (int64_t)t->seed, (int64_t)t->draws, t->nograd, t->hidden, t->held, t->nscopes, t->as_one,
                               (int64_t)(intptr_t)t->training, (int64_t)(intptr_t)t->calling, t->quiet, (int64_t)(intptr_t)t->bar,
                               flux__atomic_load32(&flux__pool.wanted), flux__atomic_load32(&flux__home_at) };
    uint64_t h = hashed(UINT64_C(14695981039346656037), thread, sizeof thread);
    flux_tensor *param[16], *const given[] = { x, v, at, truth, one, cube, image, whole };
    char text[4000];
    const int n = flux_params(model, param, 16);
    for (int i = 0; i < n; i++) h = hashed_tensor(h, param[i]);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) h = hashed_tensor(h, given[i]);
    for (int i = 0; i < state->nleaves * state->nstates; i++) h = hashed_tensor(h, state->s[i]);
    for (int i = 0; i < state->nleaves * state->nrules; i++) h = hashed(h, &state->t[i], sizeof state->t[i]);
    h = hashed(h, text, flux_layer_text(model, text, sizeof text));
    h = hashed(h, text, flux_state_text(state, text, sizeof text));
    h = hashed(h, text, flux_loader_text(loader, text, sizeof text));
    return hashed(h, (const bool[]){ flux_training(model) }, sizeof(bool));
}

/* The tensors and objects that rows are about; a model with a state that has made a step. */
static void begin(void) {
    static const int32_t places[] = { 1, 0 };
    flux_seed(7);
    x = flux_eval(flux_rand(4, 3)), v = flux_eval(flux_rand(3)), at = flux_from(places, 2);
    truth = flux_eval(flux_gt(x, 0.5)), pair = flux_tuple(x, v), none = flux_zeros(0, 3), one = flux_eval(flux_scalar(2));
    cube = flux_eval(flux_rand(2, 3, 4)), eight = flux_ones(1, 1, 1, 1, 1, 1, 1, 1), image = flux_eval(flux_rand(8, 8, 3, 2));
    whole = flux_eval(flux_to_dtype(flux_mul(x, 9), FLUX_I32));
    model = flux_chain(flux_dense(4, 3, flux_tanh), flux_batchnorm(3), flux_dense(3, 2));
    state = flux_setup(flux_adam(0.01), model);
    flux_update(state, model, flux_gradient(flux_sum(flux_square(flux_call(model, x))), model));
    loader = flux_dataloader(cube, .batchsize = 2, .shuffle = true);
}
static uint64_t world_before;
static void call_begins(const char *file, int line) {
    world_before = world();
    test_before_error(file, line);
}
static void after(bool nothing, const char *sentence, const char *file, int line, const char *text) {
    test_error(sentence, file, line, text);
    if (!nothing) test_fail(file, line, text), test_fail(file, line, "failed, but gives what a call gives that did not");
    if (world() != world_before) test_fail(file, line, text), test_fail(file, line, "was refused, but has changed something");
}
#define SAID const char *sentence, const char *file, int line, const char *text
static void after_pointer(const void *p, SAID) { after(p == NULL, sentence, file, line, text); }
static void after_code(int code, SAID) { after(code == -1, sentence, file, line, text); }
static void after_count(int64_t n, SAID) { after(n == -1, sentence, file, line, text); }
static void after_number(double v, SAID) { after(isnan(v), sentence, file, line, text); }
static void after_truth(bool is, SAID) { after(!is, sentence, file, line, text); }
/* CHECK_ERROR of a call that changes nothing; a call of no value is written (call, NULL). The compiler reads `call` twice here
   and seven times there, which is felt where there are hundreds. */
#define REFUSED(call, sentence) do {                                                                 \
        call_begins(__FILE__, __LINE__);                                                                  \
        _Generic((call), int: after_code, int64_t: after_count, double: after_number, bool: after_truth, default: after_pointer)( \
            call, sentence, __FILE__, __LINE__, #call);                                              \
    } while (0)
/* Rules and schedules say of themselves whether they were made. */
#define MADE(rule) ((rule).made ? 0 : -1)
/* Nothing that a call opens for its time is open: no scope, no FLUX_NOGRAD, no training mode. */
static bool left_open(void) {
    const flux__thread *t = flux__self();
    return t->nograd != nograd_here || t->hidden || t->held || t->as_one || t->quiet || t->training || t->calling || t->bar;
}
/* A tensor has a value; anything else is there, and nothing was said. */
#define GIVES(tensor) CHECK(flux_eval(tensor) != NULL && !flux_failed() && !left_open())
#define TAKES(true_thing) CHECK((true_thing) && !flux_failed() && !left_open())

static flux_shape dims(int n) {
    flux_shape s = flux__shape(NULL, 0);
    s.ndim = n;                           /* what stands behind the last dim is nobody's business */
    for (int i = 0; i < FLUX_MAX_DIMS; i++) s.dim[i] = i < n ? 1 : -77;
    return s;
}

static flux_tensor *index_of(int n) { return flux_full_with(dims(n), 0, FLUX_I32); }

/* ---------------- graph/ */

TEST(leaves) {
    begin();
    const int64_t most = (int64_t)FLUX__MOST_ELEMENTS;
    REFUSED(flux_full_with(dims(-1), 1, FLUX_F32), "full: -1 dimensions, but a tensor has at most 8");
    REFUSED(flux_full_with(dims(9), 1, FLUX_F32), "full: 9 dimensions, but a tensor has at most 8");
    GIVES(flux_full_with(dims(0), 1, FLUX_F32));
    GIVES(flux_full_with(dims(8), 1, FLUX_F32));
    REFUSED(flux_zeros(2, -1), "full: dimension 1 is -1");
    GIVES(flux_zeros(2, 0));
    REFUSED(flux_full_with(dims(1), 1, (flux_dtype)-1), "full: -1 is not a dtype");
    REFUSED(flux_full_with(dims(1), 1, FLUX_NUM_DTYPES), "is not a dtype");
    GIVES(flux_full_with(dims(1), 1, (flux_dtype)(FLUX_NUM_DTYPES - 1)));
    REFUSED(flux_zeros(most + 4096), "is too large");
    REFUSED(flux_zeros(0, most + 4096), "is too large");                 /* empty, but for what is made of it */
    TAKES(flux_zeros(most) != NULL);                                     /* nobody looks */
    REFUSED(flux_rand_with(dims(1), FLUX_I32), "rand: random numbers are floating, not i32");
    REFUSED(flux_rand_with(dims(9), FLUX_F32), "rand: 9 dimensions");
    REFUSED(flux_randn_with(dims(1), FLUX_BOOL), "randn: random numbers are floating, not bool");
    REFUSED(flux_arange(0, 1, 0), "arange: from 0 to 1 by 0 is not a range");
    REFUSED(flux_arange(0, 1, NAN), "is not a range");
    REFUSED(flux_arange(0, 1e30, 1), "is not a range");
    REFUSED(flux_arange(0, NAN, 1), "is not a range");
    CHECK(flux_len(flux_arange(3, 0, -1)) == 3 && flux_len(flux_arange(0, -1, 1)) == 0 && flux_len(flux_arange(0, 0.5, 1)) == 1);
    REFUSED(flux_linspace(0, 1, -1), "linspace: -1 numbers from 0 to 1 are not a range");
    REFUSED(flux_linspace(0, 1, INT64_MAX), "are not a range");
    REFUSED(flux_linspace(NAN, 1, 3), "are not a range");
    REFUSED(flux_linspace(-HUGE_VAL, 1, 3), "are not a range");
    REFUSED(flux_linspace(0, HUGE_VAL, 3), "are not a range");
    REFUSED(flux_linspace(0, NAN, 3), "are not a range");
    CHECK(flux_len(flux_linspace(0, 1, 0)) == 0 && flux_item(flux_linspace(3, 9, 1)) == 3);
    REFUSED(flux_values_with(-1, (const double[]){ 1 }), "values: -1 numbers");
    REFUSED(flux_values_with(1, NULL), "values: argument values is NULL");
    CHECK(flux_len(flux_values_with(0, (const double[]){ 1 })) == 0);
    REFUSED(flux_eye(-1), "eye: -1 rows");
    CHECK(flux_len(flux_eye(0)) == 0);
    REFUSED(flux_from_with(NULL, FLUX_F32, dims(1)), "from: argument ptr is NULL");
    REFUSED(flux_borrow_with(NULL, FLUX_F32, dims(1)), "borrow: argument ptr is NULL");
    REFUSED(flux_set_random_state(pair), "set_random_state: ");
    REFUSED(flux_set_random_state(v), "set_random_state: 3-element f32 is not what flux_random_state gives, i64 2");
    REFUSED(flux_set_random_state(flux_zeros(2)), "set_random_state: ");
    REFUSED(flux_set_random_state(flux_full_with(FLUX_SHAPE(2, 1), 1, FLUX_I64)), "set_random_state: ");
    REFUSED(flux_set_random_state(flux_full_with(FLUX_SHAPE(3), 1, FLUX_I64)), "set_random_state: ");
    REFUSED(flux_set_random_state(NULL), "set_random_state: argument ");
}

TEST(draws) {
    begin();
    const int64_t top = INT64_C(1) << 53;
    REFUSED(flux_randint(1, 1, 2), "randint: no integers from 1 below 1");
    REFUSED(flux_randint(-top - 1, 0, 2), "randint: no integers");
    REFUSED(flux_randint(0, top + 1, 2), "randint: no integers");
    REFUSED(flux_randint(-1, top, 2), "randint: no integers");
    CHECK(flux_item(flux_randint(4, 5, 1)) == 4);
    GIVES(flux_randint(0, top, 2));
    GIVES(flux_randint(-top, 0, 2));
    REFUSED(flux_bernoulli(NULL), "bernoulli: argument ");
    REFUSED(flux_bernoulli(pair), "bernoulli: an operand is a tuple");
    REFUSED(flux_categorical(pair), "categorical: an operand is a tuple");
    REFUSED(flux_categorical(one), "categorical: scalar f32 has no classes in dim 0");
    REFUSED(flux_categorical(none), "categorical: 0x3 f32 has no classes in dim 0");
    REFUSED(flux_categorical(x, .temperature = -1), "categorical: .temperature is -1");
    REFUSED(flux_categorical(x, .temperature = NAN), "categorical: .temperature is ");
    REFUSED(flux_categorical(x, .temperature = HUGE_VAL), "categorical: .temperature is ");
    REFUSED(flux_categorical(x, .temperature = 3.5e38), "categorical: .temperature is ");
    REFUSED(flux_categorical(x, .top_k = 0), "categorical: .top_k is 0");
    REFUSED(flux_categorical(x, .top_p = -0.1), "and .top_p -0.1");
    REFUSED(flux_categorical(x, .top_p = 1.1), "and .top_p 1.1");
    REFUSED(flux_categorical(x, .top_p = NAN), "and .top_p ");
    GIVES(flux_categorical(x, .temperature = 3.4e38));
    GIVES(flux_categorical(x, .top_p = 1));
    flux_tensor *likeliest = flux_argmax(x, 0);
    const flux_tensor *const same[] = { flux_categorical(x, .temperature = 0), flux_categorical(x, .temperature = 0, .top_k = 3),
        flux_categorical(x, .top_k = 1), flux_categorical(x, .top_p = 0), flux_categorical(x, .top_k = 4, .top_p = 1e-9) };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        CHECK(flux_item(flux_all(flux_eq((flux_tensor *)(uintptr_t)same[i], flux_reshape(likeliest, 3)))) == 1);
    REFUSED(flux_randperm(-1), "randperm: -1 numbers");
    REFUSED(flux_randperm(INT64_C(1) << 40), "randperm: 1099511627776 numbers, which is not within 0 to 4294967295");
    CHECK(flux_len(flux_randperm(0)) == 0 && flux_item(flux_randperm(1)) == 0);
}

TEST(views) {
    begin();
    REFUSED(flux_reshape(x, 5, 3), "reshape: 4x3 f32 has 12 elements, ");
    REFUSED(flux_reshape(x, -1, 5), "reshape: ");
    REFUSED(flux_reshape(x, -1, -1), "reshape: ");
    REFUSED(flux_reshape_with(x, dims(9)), "reshape: 9 dimensions");
    REFUSED(flux_permute(x, 0), "permute: the order must name each of the 2 dims of 4x3 f32");
    REFUSED(flux_permute(x, 0, 0), "permute: the order must name");
    REFUSED(flux_permute(x, 0, 2), "permute: the order must name");
    REFUSED(flux_permute(x, 0, -1), "permute: the order must name");
    REFUSED(flux_permute(x, 0, 1, 1), "permute: the order must name");
    REFUSED(flux_slice(x, -1, 0, 1), "slice: 4x3 f32 has no dim -1");
    REFUSED(flux_slice(x, 2, 0, 1), "slice: 4x3 f32 has no dim 2");
    REFUSED(flux_slice(x, 0, -1, 1), "slice: -1 to 1 by 1 is not within dim 0 of 4x3 f32");
    REFUSED(flux_slice(x, 0, 3, 2), "slice: 3 to 2 by 1");
    REFUSED(flux_slice(x, 0, 0, 5), "slice: 0 to 5 by 1");
    REFUSED(flux_slice_step(x, 0, 0, 4, 0), "slice: 0 to 4 by 0");
    GIVES(flux_slice(x, 0, 0, 4));
    GIVES(flux_slice(x, 0, 4, 4));
    REFUSED(flux_take(one, 1), "take: scalar f32 does not have 1 observations");
    REFUSED(flux_take(x, -1), "take: 4x3 f32 does not have -1 observations");
    REFUSED(flux_take(x, 4), "take: 4x3 f32 does not have 4 observations");
    REFUSED(flux_drop(x, -1), "drop: ");
    REFUSED(flux_drop(x, 4), "drop: ");
    CHECK(flux_len(flux_take(x, 0)) == 0 && flux_len(flux_take(x, 3)) == 12 && flux_len(flux_drop(x, 3)) == 0);
    REFUSED(flux_select(x, 0, -1), "select: index -1 is not within dim 0");
    REFUSED(flux_select(x, 0, 4), "select: index 4 is not within dim 0");
    REFUSED(flux_select(x, 2, 0), "select: 4x3 f32 has no dim 2");
    GIVES(flux_select(x, 0, 0));
    GIVES(flux_select(x, 0, 3));
    REFUSED(flux_unsqueeze(x, -1), "unsqueeze: no new dim can stand before dim -1");
    REFUSED(flux_unsqueeze(x, 3), "unsqueeze: no new dim can stand before dim 3");
    REFUSED(flux_unsqueeze(eight, 0), "unsqueeze: ");
    CHECK(flux_dim(flux_unsqueeze(x, 0), 0) == 1 && flux_ndim(flux_unsqueeze(x, 2)) == 3);
    REFUSED(flux_broadcast_to(x, 4, 2), "broadcast_to: 4x3 f32 does not stretch to 4x2");
    REFUSED(flux_broadcast_to(x, 4), "broadcast_to: 4x3 f32 does not stretch to ");
    REFUSED(flux_broadcast_to(x, 4, -3), "broadcast_to: dimension 1 is -3");
    GIVES(flux_broadcast_to(flux_ones(4, 1), 4));
    REFUSED(flux_flip_with(x, dims(-1)), "flip: -1 dims");
    REFUSED(flux_flip_with(x, dims(9)), "flip: 9 dims");
    REFUSED(flux_flip(x, -1), "flip: 4x3 f32 has no dim -1");
    REFUSED(flux_flip(x, 2), "flip: 4x3 f32 has no dim 2");
    GIVES(flux_flip(x, 0, 1));
    REFUSED(flux_pad_by(x, 0, dims(-1), dims(0)), "pad: -1 dims to pad");
    REFUSED(flux_pad_by(x, 0, dims(0), dims(-1)), "pad: -1 dims to pad");
    REFUSED(flux_pad_by(x, 0, dims(3), dims(0)), "pad: 3 dims to pad");
    REFUSED(flux_pad_by(x, 0, dims(0), dims(3)), "pad: 3 dims to pad");
    GIVES(flux_pad_by(x, 0, dims(2), dims(0)));
    GIVES(flux_pad_by(x, 0, dims(0), dims(2)));
    REFUSED(flux_pad(x, 0, -1, 0), "pad: negative padding (-1, 0) of dim 0");
    REFUSED(flux_pad(x, 0, 0, -1), "pad: negative padding (0, -1) of dim 0");
    REFUSED(flux_pad(x, 0, 1), "pad: 1 numbers, but each of up to ");
    REFUSED(flux_pad_with(x, 0, dims(-2)), "pad: -2 numbers");
    REFUSED(flux_pad_with(x, 0, dims(10)), "pad: 10 numbers");
    GIVES(flux_pad_with(eight, 0, dims(8)));
    REFUSED(flux_repeat_with(x, dims(-1)), "repeat: -1 dims, at most 8");
    REFUSED(flux_repeat_with(x, dims(9)), "repeat: 9 dims, at most 8");
    REFUSED(flux_repeat(x, 1, -1), "repeat: dim 1 by -1");
    CHECK(flux_len(flux_repeat(x, 0)) == 0);
    GIVES(flux_repeat_with(x, dims(8)));
    flux_tensor *const unchanged[] = { flux_repeat_with(x, dims(0)), flux_flip_with(x, dims(0)),
                                       flux_pad_with(x, 0, dims(0)) };
    for (int i = 0; i < 3; i++) CHECK(flux_item(flux_all(flux_eq(unchanged[i], x))) == 1);
    flux_tensor *many[256];
    for (int i = 0; i < 256; i++) many[i] = v;
    REFUSED(flux_cat_with(0, 0, many), "cat: 0 tensors (1 to 255)");
    REFUSED(flux_cat_with(0, 256, many), "cat: 256 tensors (1 to 255)");
    GIVES(flux_cat_with(0, 255, many));
    REFUSED(flux_cat(-1, v, v), "cat: dim -1");
    REFUSED(flux_cat(8, v, v), "cat: dim 8");
    CHECK(flux_ndim(flux_cat(7, v, v)) == 8 && flux_len(flux_cat(7, v, v)) == 6 && flux_at(flux_cat(1, v, v), 2, 1) == flux_at(v, 2));
    REFUSED(flux_cat(1, x, flux_ones(5, 3)), "cat: along dim 1, 4x3 f32 and 5x3 f32 differ in dim 0");
    REFUSED(flux_cat(0, x, flux_ones(4, 3, 2)), "differ in dim 2");
    REFUSED(flux_cat(0, x, pair), "cat: an operand is a tuple");
    REFUSED(flux_vcat(x, flux_ones(4, 2)), "vcat: along dim 0, 4x3 f32 and 4x2 f32 differ in dim 1");
    REFUSED(flux_vcat(x, nil), "vcat: argument ");
    REFUSED(flux_vcat(x, pair), "vcat: an operand is a tuple");
    REFUSED(flux_expr("hcat(x, v)", x, v), "hcat: along dim 1, 4x3 f32 and 3-element f32 differ in dim 0");
    REFUSED(flux_stack_with(0, 0, many), "stack: 0 tensors (1 to 255)");
    REFUSED(flux_stack_with(0, 256, many), "stack: 256 tensors (1 to 255)");
    GIVES(flux_stack_with(1, 255, many));
    REFUSED(flux_stack(0, x, v), "stack: shapes differ: 4x3 f32 and 3-element f32");
    REFUSED(flux_tuple_with(0, many), "tuple: 0 tensors (1 to 255)");
    REFUSED(flux_tuple_with(256, many), "tuple: 256 tensors (1 to 255)");
    TAKES(flux_num_items(flux_tuple_with(255, many)) == 255);
    REFUSED(flux_tuple(x, nil), "tuple: argument of the list is NULL");
    REFUSED(flux_nth(pair, -1), "nth: no tensor -1 among 2");
    REFUSED(flux_nth(pair, 2), "nth: no tensor 2 among 2");
    REFUSED(flux_nth(NULL, 0), "nth: argument tuple is NULL");
    CHECK(flux_nth(x, 0) == x);
}

TEST(picking) {
    begin();
    REFUSED(flux_gather(x, 2, at), "gather: 4x3 f32 has no dim 2");
    REFUSED(flux_gather(x, -1, at), "gather: 4x3 f32 has no dim -1");
    REFUSED(flux_gather(x, 0, v), "gather: indices must be integers, not 3-element f32");
    REFUSED(flux_gather(x, 0, truth), "gather: indices must be integers, not 4x3 bool");
    REFUSED(flux_gather(x, 0, nil), "gather: argument ");
    REFUSED(flux_gather(eight, 0, index_of(2)), "gather: the result would have 9 dims");
    GIVES(flux_gather(eight, 0, index_of(1)));
    REFUSED(flux_scatter_add(x, 0, at, flux_ones(2)), "scatter_add: src must be 2x3, is 2-element f32");
    REFUSED(flux_scatter_add(x, 0, at, flux_ones(2, 4)), "scatter_add: src must be 2x3, is 2x4 f32");
    REFUSED(flux_scatter_add(x, 2, at, flux_ones(2, 3)), "scatter_add: 4x3 f32 has no dim 2");
    REFUSED(flux_scatter_add(x, 0, at, pair), "scatter_add: an operand is a tuple");
    GIVES(flux_scatter_add(x, 0, at, flux_ones(2, 3)));
    REFUSED(flux_take_along(x, 0, at), "take_along: along dim 0, index 2-element i32 is not within x 4x3 f32");
    REFUSED(flux_take_along(x, 0, flux_full_with(FLUX_SHAPE(5, 4), 0, FLUX_I32)), "take_along: ");
    REFUSED(flux_take_along(x, 2, whole), "take_along: 4x3 f32 has no dim 2");
    REFUSED(flux_take_along(x, 0, x), "take_along: indices must be integers");
    REFUSED(flux_take_along(x, 0, flux_full_with(FLUX_SHAPE(4, 4), 0, FLUX_I32)), "take_along: along dim 0");
    GIVES(flux_take_along(x, 0, flux_full_with(FLUX_SHAPE(9, 3), 0, FLUX_I32)));
    REFUSED(flux_split(x, 2, 1), "split: 4x3 f32 has no dim 2");
    REFUSED(flux_split_with(x, 0, dims(0)), "split: 0 sizes");
    REFUSED(flux_split_with(x, 0, dims(9)), "split: 9 sizes");
    REFUSED(flux_split(x, 0, 0), "split: 1 sizes, 0 in all, do not cut dim 0");
    REFUSED(flux_split(x, 0, 5, -1), "split: 2 sizes, ");
    REFUSED(flux_split(x, 0, 1, 2), "split: 2 sizes, 3 in all, do not cut dim 0 of 4x3 f32");
    REFUSED(flux_split(x, 0, 3, 2), "split: 2 sizes, 5 in all");
    TAKES(flux_num_items(flux_split(x, 0, 4, 0)) == 2 && flux_num_items(flux_split(x, 0, 3)) == 2 && flux_num_items(flux_split(x, 0, 1)) == 4);
    REFUSED(flux_chunk(x, 0, 0), "chunk: 0 pieces");
    REFUSED(flux_chunk(flux_ones(256), 0, 256), "chunk: more than 255 pieces of dim 0 of 256-element f32");
    REFUSED(flux_split(flux_ones(256), 0, 1), "split: more than 255 pieces");
    TAKES(flux_num_items(flux_chunk(flux_ones(255), 0, 255)) == 255 && flux_num_items(flux_chunk(none, 0, 3)) == 1);
    REFUSED(flux_tril(v), "tril: takes a matrix or a batch of them, not 3-element f32");
    REFUSED(flux_triu(one), "triu: takes a matrix or a batch of them, not scalar f32");
    REFUSED(flux_diag(cube), "diag: takes a vector or a matrix, not 2x3x4 f32");
    REFUSED(flux_diag(one), "diag: takes a vector or a matrix, not scalar f32");
    REFUSED(flux_trace(v), "trace: takes a square matrix, not 3-element f32");
    REFUSED(flux_trace(x), "trace: takes a square matrix, not 4x3 f32");
    REFUSED(flux_trace(flux_ones(3, 3, 3)), "trace: takes a square matrix");
    CHECK(flux_item(flux_trace(flux_zeros(0, 0))) == 0);
    REFUSED(flux_topk(x, -1, 0), "topk: -1 of dim 0 of 4x3 f32");
    REFUSED(flux_topk(x, 5, 0), "topk: 5 of dim 0 of 4x3 f32");
    REFUSED(flux_topk(x, 1, 2), "topk: 4x3 f32 has no dim 2");
    TAKES(flux_len(flux_nth(flux_topk(x, 0, 0), 0)) == 0 && flux_len(flux_nth(flux_topk(x, 4, 0), 0)) == 12);
    REFUSED(flux_sort(x, .dim = 2), "sort: 4x3 f32 has no dim 2");
    REFUSED(flux_argsort(x, .dim = -1), "argsort: 4x3 f32 has no dim -1");
}

TEST(reductions) {
    begin();
    REFUSED(flux_sum(x, -1), "sum: 4x3 f32 has no dim -1");
    REFUSED(flux_sum(x, 8), "sum: 4x3 f32 has no dim 8");
    flux_tensor *(*const over[])(int, flux_reduce_opts) = { flux_sum_with, flux_mean_with, flux_var_with, flux_std_with, flux_prod_with, flux_max_with, flux_min_with,
        flux_any_with, flux_all_with, flux_norm_with, flux_logsumexp_with, flux_softmax_with, flux_logsoftmax_with, flux_argmax_with, flux_argmin_with };
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        REFUSED(over[i](9, FLUX_OPTIONS(flux_reduce_opts, x)), ": over 9 dims, but a tensor has at most 8");
        REFUSED(over[i](-1, FLUX_OPTIONS(flux_reduce_opts, x)), ": over -1 dims, but a tensor has at most 8");
        if (i < 13) TAKES(flux_len(over[i](8, FLUX_OPTIONS(flux_reduce_opts, x, 0, 1, 2, 3, 4, 5, 6, 7))) > 0);
    }
    GIVES(flux_sum(x, 7));
    REFUSED(flux_max(none, 0), "max: nothing to choose from in 0x3 f32");
    REFUSED(flux_min((none)), "min: nothing to choose from in 0x3 f32");
    REFUSED(flux_argmax(x, 0, 1), "argmax: over one dim or all, not 2");
    REFUSED(flux_argmin(none, 0), "argmin: nothing to choose from in 0x3 f32");
    CHECK(flux_len(flux_max(none, 1)) == 0 && flux_item(flux_sum((none))) == 0);
    REFUSED(flux_cumsum(x, 0, 1), "cumsum: takes one dim, got 2 for 4x3 f32");
    REFUSED((flux_cumsum)(x), "cumsum: takes one dim, got 0 for 4x3 f32");
    REFUSED(flux_cumprod(x, 2), "cumprod: 4x3 f32 has no dim 2");
    GIVES((flux_cumsum)(v));
    GIVES((flux_cumsum)(one));
    REFUSED(flux_and(x, truth), "and: operands must be bool, not 4x3 f32");
    REFUSED(flux_add(x, flux_ones(4, 2)), "add: shapes do not broadcast: 4x3 f32 with 4x2 f32 differ in dim 1");
    GIVES(flux_add(x, flux_ones(4, 1)));
    GIVES(flux_add(flux_ones(4, 1), x));
    REFUSED(flux_clamp(x, 2, 1), "clamp: the bounds 2 and 1 are not in order");
    REFUSED(flux_clamp(x, NAN, 1), "clamp: the bounds ");
    GIVES(flux_clamp(x, 1, 1));
    REFUSED(flux_to_dtype(x, (flux_dtype)-1), "to_dtype: -1 is not a dtype");
    REFUSED(flux_to_dtype(x, FLUX_NUM_DTYPES), "is not a dtype");
    flux_tensor *bytes = flux_to_dtype(whole, FLUX_U8);
    REFUSED(flux_add(whole, 0.5), "add: the number 0.5 has no place in a tensor of i32");
    REFUSED(flux_add(whole, -2147483649.0), "has no place in a tensor of i32");
    REFUSED(flux_add(whole, 2147483648.0), "has no place in a tensor of i32");
    REFUSED(flux_add(bytes, -1.0), "add: the number -1 has no place in a tensor of u8");
    REFUSED(flux_add(bytes, 256.0), "add: the number 256 has no place in a tensor of u8");
    REFUSED(flux_add(whole, NAN), "has no place in a tensor of i32");
    GIVES(flux_add(whole, -2147483648.0));
    GIVES(flux_add(whole, 2147483647.0));
    GIVES(flux_add(bytes, 255.0));
    GIVES(flux_add(bytes, 0.0));
    REFUSED(flux_read(x, (float[12]){ 0 }, 47), "read: 4x3 f32 is 48 bytes, 47 were asked for");
    REFUSED(flux_read(x, NULL, 48), "read: ");
    TAKES(flux_read(none, NULL, 0) == 0);
    REFUSED(flux_item(v), "item: 3-element f32 is not one number");
    REFUSED(flux_at(x, 0), "at: 1 indices into 4x3 f32");
    REFUSED(flux_at(x, 0, 3), "at: index 3 is not within dim 1 of 4x3 f32");
    REFUSED(flux_at(x, -1, 0), "at: index -1 is not within dim 0 of 4x3 f32");
    CHECK(flux_at(x, 3, 2) >= 0);
}

TEST(products) {
    begin();
    REFUSED(flux_matmul(one, x), "matmul: an operand is a scalar");
    REFUSED(flux_matmul(x, one), "matmul: an operand is a scalar");
    REFUSED(flux_matmul(x, x), "matmul: inner sizes differ: a is 4x3 f32, b is 4x3 f32");
    REFUSED(flux_matmul(pair, x), "matmul: an operand is a tuple");
    REFUSED(flux_matmul(flux_ones(2, 3, 4), flux_ones(3, 2, 5)), "matmul: ");
    REFUSED(flux_outer(x, v), "outer: takes two vectors");
    REFUSED(flux_outer(v, x), "outer: takes two vectors");
    REFUSED(flux_dot(x, v), "dot: takes two vectors");
    REFUSED(flux_dot(v, x), "dot: takes two vectors");
    REFUSED(flux_dot(v, flux_ones(2)), "dot: lengths differ: a is 3-element f32, b is 2-element f32");
    flux_tensor *many[33];
    for (int i = 0; i < 33; i++) many[i] = v;
    REFUSED(flux_einsum_with(NULL, 1, many), "einsum: argument formula is NULL");
    REFUSED(flux_einsum_with("i", 0, many), "einsum: 0 operands (1 to 32)");
    REFUSED(flux_einsum_with("i", 33, many), "einsum: 33 operands (1 to 32)");
    REFUSED(flux_einsum_with("1->", 1, many), "einsum: '1' in \"1->\" is no letter");
    REFUSED(flux_einsum_with("i->?", 1, many), "einsum: '?' in \"i->?\" is no letter");
    GIVES(flux_einsum_with("i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i,i", 32, many));
    REFUSED(flux_einsum("i,j", v), "einsum: \"i,j\" is not of 1 operands");
    REFUSED(flux_einsum("i", v, v), "einsum: \"i\" is not of 2 operands");
    REFUSED(flux_einsum("i-j", v), "einsum: \"i-j\" has a - that is no ->");
    REFUSED(flux_einsum("i->i,j", v), "einsum: \"i->i,j\" has more behind its result");
    REFUSED(flux_einsum("i->j", v), "einsum: j stands in no operand of \"i->j\"");
    REFUSED(flux_einsum("i->ii", v), "einsum: i stands twice in the result of \"i->ii\"");
    REFUSED(flux_einsum("ij", v), "einsum: \"ij\" of \"ij\" names 2 dims, operand 1 is 3-element f32");
    REFUSED(flux_einsum("i,i", v, flux_ones(2)), "einsum: i of \"i,i\" is 3, and in operand 2 it is 2");
    REFUSED(flux_einsum("...,...", v, flux_ones(2)), "einsum: ... of \"...,...\" is 3, and in operand 2 it is 2");
    GIVES(flux_einsum("...,...", v, flux_ones(1)));
    GIVES(flux_einsum("...,...", flux_ones(1), v));
}

TEST(windows) {
    begin();
    flux_tensor *w = flux_ones(3, 3, 3, 2), *turned = flux_ones(3, 3, 2, 3);
    REFUSED(flux_conv(flux_ones(3, 2), flux_ones(3, 2)), "both need 1 to 3 spatial dims and two more");
    REFUSED(flux_conv(flux_ones(2, 2, 2, 2, 3, 2), flux_ones(1, 1, 1, 1, 3, 2)), "both need 1 to 3 spatial dims");
    REFUSED(flux_conv(flux_ones(8, 3, 2), w), "both need 1 to 3 spatial dims");
    REFUSED(flux_conv(image, flux_ones(3, 0, 3, 2)), "conv: weight is 3x0x3x2 f32, whose windows are empty");
    REFUSED(flux_conv(image, w, .stride = FLUX_SHAPE(1, 2, 3)), "conv: stride has 3 numbers for 2 dims");
    REFUSED(flux_conv(image, w, .stride = FLUX_SHAPE(1, 0)), "conv: stride is 0");
    REFUSED(flux_conv(image, w, .dilation = FLUX_SHAPE(0)), "conv: dilation is 0");
    REFUSED(flux_conv(image, w, .dilation = FLUX_SHAPE((1 << 30) + 1)), "conv: dilation is 1073741825");
    REFUSED(flux_conv(image, w, .pad = FLUX_SHAPE(-1)), "conv: pad is -1");
    REFUSED(flux_conv(image, w, .pad = FLUX_SHAPE(-1, 0, 0, 0)), "conv: negative padding (-1, 0)");
    REFUSED(flux_conv(image, w, .pad = FLUX_SHAPE(0, 0, 0, -1)), "conv: negative padding (0, -1)");
    REFUSED(flux_conv(image, w, .pad = FLUX_SHAPE(0, 0, 0)), "conv: pad has 3 numbers for 2 dims");
    REFUSED(flux_conv(image, flux_ones(9, 3, 3, 2)), "conv: a window that reaches over 9 does not fit into dim 0 of 8x8x3x2 f32");
    REFUSED(flux_conv(image, w, .dilation = FLUX_SHAPE(1, 4)), "conv: a window that reaches over 9 does not fit into dim 1");
    GIVES(flux_conv(image, flux_ones(8, 8, 3, 2)));
    GIVES(flux_conv(image, w, .stride = FLUX_SHAPE(1 << 30)));
    REFUSED(flux_conv(image, flux_ones(3, 3, 2, 2)), "conv: channels do not fit: x is 8x8x3x2 f32, weight is 3x3x2x2 f32, groups 1");
    REFUSED(flux_conv(image, w, .groups = 0), "conv: channels do not fit");
    REFUSED(flux_conv(image, w, .groups = 2), "conv: channels do not fit");
    REFUSED(flux_conv(image, flux_ones(3, 3, 1, 2), .groups = 3), "conv: channels do not fit");
    GIVES(flux_conv(image, flux_ones(3, 3, 1, 3), .groups = 3));
    REFUSED(flux_conv_transpose(image, w), "conv_transpose: channels do not fit");
    REFUSED(flux_conv_transpose(image, turned, .groups = 2), "conv_transpose: channels do not fit");
    REFUSED(flux_conv_transpose(image, turned, .pad = FLUX_SHAPE(5)), "conv_transpose: padding leaves nothing of dim 0");
    GIVES(flux_conv_transpose(image, turned, .pad = FLUX_SHAPE(4)));
    REFUSED(flux_maxpool(x, FLUX_SHAPE(2)), "maxpool: x is 4x3 f32, window has 1 dims; needs 1 to 3 spatial dims");
    REFUSED(flux_maxpool(flux_ones(2, 2, 2, 2, 3, 2), FLUX_SHAPE(2)), "maxpool: x is 2x2x2x2x3x2 f32");
    REFUSED(flux_maxpool(image), "maxpool: x is 8x8x3x2 f32, window has 0 dims");
    REFUSED(flux_meanpool(image, FLUX_SHAPE(2, 2, 2)), "meanpool: window has 3 numbers for 2 dims");
    REFUSED(flux_meanpool(image, FLUX_SHAPE(0)), "meanpool: window is 0");
    REFUSED(flux_meanpool(image, FLUX_SHAPE(9)), "meanpool: a window that reaches over 9 does not fit");
    REFUSED(flux_maxpool(image, FLUX_SHAPE(2), .stride = FLUX_SHAPE(0)), "maxpool: stride is 0");
    REFUSED(flux_maxpool(image, FLUX_SHAPE(2), .pad = FLUX_SHAPE(-2)), "maxpool: pad is -2");
    GIVES(flux_maxpool(image, FLUX_SHAPE(8)));
    REFUSED(flux_lpnormpool(image, FLUX_SHAPE(2), .p = 0), "lpnormpool: p is 0");
    REFUSED(flux_lpnormpool(image, FLUX_SHAPE(2), .p = NAN), "lpnormpool: p is ");
}

/* A call that has nothing to do gives its argument, which costs no memory; one element away it does not. */
TEST(nothing_to_do) {
    begin();
    flux_layer *drop = flux_dropout(0.5);
    flux_testmode(drop, true);
    const flux_device cpu = { 0, 0 };
    flux_tensor *const same[] = { flux_slice(x, 0, 0, 4), flux_slice_step(x, 1, 0, 3, 1), flux_take(x, 3), flux_drop(x, 0), flux_broadcast_to(x, 4, 3), flux_pad(x, 7, 0, 0, 0, 0),
                                  flux_to_dtype(x, FLUX_F32), flux_identity(x), flux_to(cpu, x), flux_cpu(x), flux_nth(x, 0), flux_call(drop, x) };
    flux_tensor *const other[] = { flux_slice(x, 0, 0, 3), flux_slice(x, 0, 1, 4), flux_slice_step(x, 0, 0, 4, 2), flux_take(x, 2), flux_drop(x, 1), flux_broadcast_to(x, 4, 3, 1),
                                   flux_pad(x, 7, 0, 0, 0, 1), flux_pad(x, 7, 1, 0), flux_to_dtype(x, FLUX_F64), flux_copy(x), flux_detach(x) };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!CHECK(same[i] == x)) fprintf(stderr, "    case %d\n", (int)i);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (!CHECK(other[i] && other[i] != x)) fprintf(stderr, "    case %d\n", (int)i);
    CHECK(flux_at(flux_pad(x, 7, 0, 0, 0, 1), 1, 3) == 7 && flux_at(flux_pad(x, 7, 1, 0), 0, 2) == 7 && flux_at(flux_pad(x, 7, 1, 0), 4, 2) == flux_at(x, 3, 2));
}

/* ---------------- graph/custom.h, text/own_operations.h */

static flux_tensor *same_tensor(int n, flux_tensor *const *xs, void *user) { return (void)n, (void)user, flux_mul(xs[0], 2); }
static flux_tensor *many_tensors(int n, flux_tensor *const *xs, void *user) {
    flux_tensor *all[255];
    const int count = *(const int *)user;
    (void)n;
    for (int i = 0; i < count; i++) all[i] = xs[0];
    return count ? flux_tuple_with(count, all) : flux_tuple(flux_tuple(xs[0], xs[0]), xs[0]);
}
static flux_tensor *no_tensor(int n, flux_tensor *const *xs, void *user) { return (void)n, (void)xs, (void)user, (flux_tensor *)NULL; }
static void back_wrong(int n, flux_tensor *const *xs, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *user) {
    (void)n, (void)y;
    dx[0] = user ? flux_tuple(g, g) : flux_select(xs[0], 0, 0);
}

TEST(own_operations) {
    begin();
    flux_tensor *many[65];
    int count;
    for (int i = 0; i < 65; i++) many[i] = x;
    REFUSED(flux_custom_with(same_tensor, NULL, NULL, 0, many), "custom: 0 operands; 1 to 64 are possible");
    REFUSED(flux_custom_with(same_tensor, NULL, NULL, 65, many), "custom: 65 operands; 1 to 64 are possible");
    REFUSED(flux_custom_with(same_tensor, NULL, NULL, 1, NULL), "custom: argument operands is NULL");
    REFUSED(flux_custom_with(NULL, NULL, NULL, 1, many), "custom: argument forward is NULL");
    REFUSED(flux_custom_with(same_tensor, NULL, NULL, 1, &pair), "custom: an operand is a tuple");
    REFUSED(flux_custom_with(no_tensor, NULL, NULL, 1, many), "custom: forward returned NULL");
    GIVES(flux_custom_with(same_tensor, NULL, NULL, 64, many));
    count = 0;
    REFUSED(flux_custom_with(many_tensors, NULL, &count, 1, many), "custom: forward returned a tuple that begins with a tuple");
    count = 129;
    REFUSED(flux_custom_with(many_tensors, NULL, &count, 1, many), "custom: forward returned a tuple that has more than 128 tensors");
    count = 128;
    GIVES(flux_custom_with(many_tensors, NULL, &count, 1, many));
    flux_tensor *y = flux_sum(flux_custom_with(same_tensor, back_wrong, NULL, 1, many));
    REFUSED(flux_grad(flux_gradient(y, x), x), "custom: backward wrote 3-element f32 as the gradient by operand 0, which is 4x3 f32");
    y = flux_sum(flux_custom_with(same_tensor, back_wrong, &count, 1, many));
    REFUSED(flux_grad(flux_gradient(y, x), x), "custom: backward wrote a tuple as the gradient by operand 0");
    const char *const formula[] = { "x + y + 1", "1", "1", "1" };
    const flux_operation good = { "own", "x, y", 1, formula }, full = { "own", "x, y", 3, formula },
                         wrong[] = { { NULL, "x, y", 1, formula }, { "own", NULL, 1, formula }, { "own", "x, y", 1, NULL },
                                     { "own", "x", 1, formula }, { "own", "x, y", 2, formula }, { "own", "x, y", 4, formula }, { "own", "x, y", 0, formula } };
    REFUSED(flux_operate(&good, 0, many), "own: 0 operands; 1 to 8 are possible");
    REFUSED(flux_operate(&good, 9, many), "own: 9 operands; 1 to 8 are possible");
    REFUSED(flux_operate(NULL, 0, many), "operate: 0 operands");
    REFUSED(flux_operate(&good, 2, NULL), "own: argument operands is NULL");
    REFUSED(flux_operate(NULL, 2, many), "operate: the operation, or its name, operands or formulas are NULL");
    for (int i = 0; i < 7; i++)
        REFUSED(flux_operate(&wrong[i], 2, many), i < 3 ? "operate: the operation, or its name, operands or formulas are NULL"
                                                        : "give a formula, and no derivative or one for each operand");
    GIVES(flux_operate(&good, 2, many));
    GIVES(flux_operate(&full, 2, many));
}

/* ---------------- nn/: layers */

static flux_tensor *no_weight(flux_shape s) { return (void)s, (flux_tensor *)NULL; }
static flux_tensor *flat_weight(flux_shape s) { return flux_ones(s.dim[0]); }
static flux_tensor *whole_weight(flux_shape s) { return flux_full_with(s, 1, FLUX_I32); }
static flux_tensor *pair_weight(flux_shape s) { return flux_tuple(flux_full_with(s, 1, FLUX_F32), one); }

TEST(dense_layers) {
    begin();
    flux_layer *m = flux_dense(4, 2), *two = flux_bilinear(4, 3, 2);
    flux_tensor *w = flux_ones(2, 4);
    REFUSED(flux_dense(0, 2), "dense: size 1 is 0; sizes are at least 1");
    REFUSED(flux_dense(2, 0), "dense: size 0 is 0; sizes are at least 1");
    REFUSED(flux_dense(2, 2, flux_softmax), "dense: softmax is no activation");
    REFUSED(flux_dense(2, 2, flux_logsoftmax), "dense: logsoftmax is no activation");
    REFUSED(flux_dense(2, 2, .init = no_weight), "dense: .init gave NULL");
    REFUSED(flux_dense(2, 2, .init = flat_weight), "dense: .init gave 2-element f32 where 2x2 floating numbers were asked for");
    REFUSED(flux_dense(2, 2, .init = whole_weight), "dense: .init gave 2x2 i32");
    REFUSED(flux_dense(2, 2, .init = pair_weight), "dense: .init gave ");
    REFUSED(flux_dense(.weight = pair), "dense: .weight must be a floating matrix, out x in, not ");
    REFUSED(flux_dense(.weight = v), "dense: .weight must be a floating matrix");
    REFUSED(flux_dense(.weight = whole), "dense: .weight must be a floating matrix");
    REFUSED(flux_dense(.weight = w, .in = 3), "dense: .weight must be a floating matrix, out x in as given, not 2x4 f32");
    REFUSED(flux_dense(.weight = w, .out = 3), "dense: .weight must be a floating matrix, out x in as given");
    REFUSED(flux_dense(.weight = w, .bias_tensor = pair), "dense: .bias_tensor must be a vector of 2");
    REFUSED(flux_dense(.weight = w, .bias_tensor = w), "dense: .bias_tensor must be a vector of 2");
    REFUSED(flux_dense(.weight = w, .bias_tensor = v), "dense: .bias_tensor must be a vector of 2");
    REFUSED(flux_dense(.weight = w, .bias_tensor = flux_ones(2), .bias = FLUX_OFF), "and .bias not off");
    TAKES(flux_dense(4, 2, .weight = w, .bias_tensor = flux_ones(2)) && flux_dense(1, 1, flux_identity));
    REFUSED(flux_call(m, v), "Dense(4 => 2) expects dim 0 of size 4, got 3-element f32");
    REFUSED(flux_call(m, one), "Dense(4 => 2) expects dim 0 of size 4, got scalar f32");
    REFUSED(flux_call(m, x, x), "Dense(4 => 2) takes one input, got 2");
    REFUSED(flux_call_layer(NULL, x), "call: argument ");
    REFUSED(flux_scale(.init = flux_ones32), "scale: .size is missing");
    REFUSED(flux_scale(FLUX_SHAPE(0)), "scale: size 0 is 0");
    REFUSED(flux_bilinear(0, 1, 1), "bilinear: size ");
    REFUSED(flux_bilinear(1, 0, 1), "bilinear: size ");
    REFUSED(flux_bilinear(1, 1, 0), "bilinear: size ");
    REFUSED(flux_call(two, x, v, v), "takes one or two inputs, got 3");
    REFUSED(flux_call(two, v, v), "expects dim 0 of size 4, got 3-element f32");
    REFUSED(flux_call(two, x, x), "expects dim 0 of size 3, got 4x3 f32");
    REFUSED(flux_call(two, x, v), "its inputs 4x3 f32 and 3-element f32 differ in more than dim 0");
    REFUSED(flux_call(two, x, flux_ones(3, 2)), "its inputs 4x3 f32 and 3x2 f32 differ in more than dim 0");
    GIVES(flux_call(two, x, flux_ones(3, 3)));
}

TEST(embeddings) {
    begin();
    flux_layer *m = flux_embedding(5, 2), *bag = flux_embeddingbag(5, 2);
    flux_tensor *hot = flux_onehot(at, 5), *offsets = flux_to_dtype(flux_values(0, 1), FLUX_I32);
    REFUSED(flux_embedding(0, 2), "embedding: size 1 is 0");
    REFUSED(flux_embedding(5, 2, .padding_idx = -1), "embedding: .padding_idx is -1, indices are 0 to 4");
    REFUSED(flux_embedding(5, 2, .padding_idx = 5), "embedding: .padding_idx is 5, indices are 0 to 4");
    TAKES(flux_embedding(5, 2, .padding_idx = 4) && flux_embedding(5, 2, .padding_idx = 0) && flux_embedding(5, 2, .pad = FLUX_OFF, .padding_idx = 9));
    REFUSED(flux_call(m, pair), "takes integer indices or bool columns, got a tuple");
    REFUSED(flux_call(m, v), "takes integer indices or bool columns, got 3-element f32");
    REFUSED(flux_call(m, truth), "expects dim 0 of size 5, got 4x3 bool");
    REFUSED(flux_embeddingbag(5, 2, .reduction = flux_min), "embeddingbag: ");
    TAKES(flux_embeddingbag(5, 2, .reduction = flux_mean) && flux_embeddingbag(5, 2, .reduction = flux_sum) && flux_embeddingbag(5, 2, .reduction = flux_max));
    REFUSED(flux_call(bag, at, at, at), "takes bags, or indices and offsets, got 3 inputs");
    REFUSED(flux_call(bag, v), "takes bags of integer indices or bool columns, got 3-element f32");
    REFUSED(flux_call(bag, flux_select(at, 0, 0)), "takes bags of integer indices or bool columns");
    REFUSED(flux_call(bag, flux_select(hot, 1, 0)), "takes bags of integer indices or bool columns");
    REFUSED(flux_call(bag, truth), "expects dim 0 of size 5");
    REFUSED(flux_call(bag, whole, offsets), "takes a vector of indices and one of offsets");
    REFUSED(flux_call(bag, at, whole), "takes a vector of indices and one of offsets");
    REFUSED(flux_call(bag, hot, offsets), "takes a vector of indices and one of offsets");
    REFUSED(flux_call(bag, at, v), "takes a vector of indices and one of offsets");
    REFUSED(flux_call(bag, at, flux_gt(v, 0)), "takes a vector of indices and one of offsets");
    REFUSED(flux_call(bag, at, flux_full_with(FLUX_SHAPE(0), 0, FLUX_I32)), "takes a vector of indices and one of offsets");
    REFUSED(flux_call(bag, at, at), "the first offset is 1, not 0");
    REFUSED(flux_call(bag, at, flux_full_with(FLUX_SHAPE(2), 0, FLUX_I32)), "offset 0 is 0, and the next one 0: each bag needs one index at least");
    REFUSED(flux_call(bag, at, flux_to_dtype(flux_values(0, 2), FLUX_I32)), "offset 1 is 2, and there are 2: each bag needs one index");
    GIVES(flux_call(bag, at, offsets));
}

TEST(convolution_layers) {
    begin();
    flux_layer *m = flux_conv_layer(FLUX_SHAPE(3, 3), 3, 2), *shuffle = flux_pixelshuffle(2),
               *line = flux_conv_layer(dims(1), 1, 1), *solid = flux_conv_layer(dims(3), 1, 1);
    const flux_shape w = FLUX_SHAPE(3, 3);
    REFUSED(flux_conv_layer_with(FLUX_OPTIONS(flux_conv_layer_opts, .window = dims(0), .in = 1, .out = 1)), "conv_layer: the window has 0 numbers; 1 to 3 are wanted");
    REFUSED(flux_conv_layer_with(FLUX_OPTIONS(flux_conv_layer_opts, .window = dims(4), .in = 1, .out = 1)), "conv_layer: the window has 4 numbers");
    TAKES(flux_conv_layer(dims(1), 1, 1) && flux_conv_layer(dims(3), 1, 1));
    REFUSED(flux_conv_layer(FLUX_SHAPE(3, 0), 1, 1), "conv_layer: the window is 0");
    REFUSED(flux_conv_layer(w, 0, 1), "conv_layer: size 0 is 0");
    REFUSED(flux_conv_layer(w, 1, 0), "conv_layer: size 1 is 0");
    REFUSED(flux_conv_layer(w, 1, 1, flux_softmax), "conv_layer: softmax is no activation");
    REFUSED(flux_conv_layer(w, 1, 1, .stride = FLUX_SHAPE(0)), "conv_layer: stride is 0");
    REFUSED(flux_conv_layer(w, 1, 1, .dilation = FLUX_SHAPE(0)), "conv_layer: dilation is 0");
    REFUSED(flux_conv_layer(w, 1, 1, .pad = FLUX_SHAPE(-1)), "conv_layer: pad is -1");
    REFUSED(flux_conv_layer(w, 1, 1, .outpad = FLUX_SHAPE(1)), "conv_layer: .outpad is for ConvTranspose only");
    REFUSED(flux_conv_transpose_layer(w, 1, 1, .outpad = FLUX_SHAPE(-1)), "conv_transpose_layer: outpad is -1");
    REFUSED(flux_conv_layer(w, 4, 4, .groups = 0), "conv_layer: .groups is 0, which does not divide 4 channels in and 4 out");
    REFUSED(flux_conv_layer(w, 3, 4, .groups = 2), "conv_layer: .groups is 2, which does not divide 3 channels in");
    REFUSED(flux_conv_layer(w, 4, 3, .groups = 2), "conv_layer: .groups is 2, which does not divide 4 channels in and 3 out");
    REFUSED(flux_depthwiseconv(w, 2, 2, .groups = 2), "depthwiseconv: .groups is the number of channels in, 2");
    REFUSED(flux_depthwiseconv(w, 0, 2), "depthwiseconv: size 0 is 0");
    REFUSED(flux_call(m, x), "expects 2 spatial dims, channels and batch, got 4x3 f32");
    REFUSED(flux_call(line, x), "expects 1 spatial dims, channels and batch");
    REFUSED(flux_call(solid, x), "expects 3 spatial dims, channels and batch");
    REFUSED(flux_call(flux_globalmaxpool(), x), "expects 1 to 3 spatial dims, channels and batch");
    REFUSED(flux_call(flux_globalmeanpool(), flux_ones(1, 1, 1, 1, 1, 1)), "expects 1 to 3 spatial dims");
    GIVES(flux_call(flux_globalmeanpool(), flux_ones(1, 1, 1, 1, 1)));
    GIVES(flux_call(flux_globalmeanpool(), flux_ones(1, 1, 1)));
    REFUSED(flux_maxpool_layer(FLUX_SHAPE(2), .stride = FLUX_SHAPE(0)), "maxpool_layer: stride is 0");
    REFUSED(flux_maxpool_layer(dims(0)), "maxpool_layer: the window has 0 numbers");
    REFUSED(flux_meanpool_layer(FLUX_SHAPE(2), .pad = FLUX_SHAPE(2)), "meanpool_layer: a padding as wide as the window, 2");
    REFUSED(flux_meanpool_layer(FLUX_SHAPE(2), .pad = FLUX_SHAPE(2, 1)), "a padding as wide as the window");
    REFUSED(flux_meanpool_layer(FLUX_SHAPE(2), .pad = FLUX_SHAPE(1, 2)), "a padding as wide as the window");
    TAKES(flux_meanpool_layer(FLUX_SHAPE(2), .pad = FLUX_SHAPE(1, 1)) != NULL);
    REFUSED(flux_lpnormpool_layer(FLUX_SHAPE(2), .p = 0), "lpnormpool_layer: .p is 0");
    REFUSED(flux_lpnormpool_layer(FLUX_SHAPE(2), .p = HUGE_VAL), "lpnormpool_layer: .p is inf");
    REFUSED(flux_globallpnormpool(0), "globallpnormpool: p is 0");
    REFUSED(flux_globallpnormpool(HUGE_VAL), "globallpnormpool: p is inf");
    REFUSED(flux_adaptivemaxpool(dims(4)), "adaptivemaxpool: the window has 4 numbers");
    REFUSED(flux_call(flux_adaptivemeanpool(FLUX_SHAPE(8, 9)), image), "can't make more than there is of dim 1 of 8x8x3x2 f32");
    GIVES(flux_call(flux_adaptivemeanpool(FLUX_SHAPE(8, 8)), image));
    REFUSED(flux_upsample((flux_upsampling)-1, .scale = { 2 }), "upsample: there is no mode -1");
    REFUSED(flux_upsample((flux_upsampling)(FLUX_TRILINEAR + 1), .scale = { 2 }), "upsample: there is no mode ");
    REFUSED(flux_upsample(.scale = { -1 }), "upsample: .scale[0] is -1");
    REFUSED(flux_upsample(.scale = { HUGE_VAL }), "upsample: .scale[0] is inf");
    REFUSED(flux_upsample(.scale = { NAN }), "upsample: .scale[0] is ");
    REFUSED(flux_upsample(.scale = { 0, 2 }), "upsample: .scale[1] is 2");
    REFUSED(flux_upsample(.scale = { 1.5 }), "upsample: .scale[0] is 1.5; nearest takes whole numbers");
    REFUSED(flux_upsample(FLUX_NEAREST), "upsample: one of .scale and .size is to be given");
    REFUSED(flux_upsample(.scale = { 2 }, .size = FLUX_SHAPE(4)), "upsample: one of .scale and .size is to be given");
    REFUSED(flux_upsample(.size = dims(4)), "upsample: .size has 4 numbers for ");
    REFUSED(flux_upsample(FLUX_BILINEAR, .scale = { 2, 2, 2 }), "upsample: .scale has 3 numbers for ");
    REFUSED(flux_upsample(.size = FLUX_SHAPE(0)), "upsample: size 0 is 0");
    TAKES(flux_upsample(FLUX_BILINEAR, .scale = { 1.5, 2 }) && flux_upsample(.size = dims(3)) && flux_upsample(FLUX_TRILINEAR, .scale = { 2, 2, 2 }));
    REFUSED(flux_call(flux_upsample(.size = FLUX_SHAPE(12)), image), "can't make 12 of dim 0 of 8x8x3x2 f32: nearest makes whole multiples");
    REFUSED(flux_call(flux_upsample(.size = FLUX_SHAPE(4)), image), "can't make 4 of dim 0");
    REFUSED(flux_call(flux_upsample(.size = FLUX_SHAPE(4)), flux_ones(0, 1, 1)), "can't make 4 of dim 0");
    REFUSED(flux_call(flux_upsample(FLUX_LINEAR, .scale = { 0.1 }), flux_ones(4, 1, 1)), "can't make 0 of dim 0");
    REFUSED(flux_call(flux_upsample(FLUX_LINEAR, .size = FLUX_SHAPE(4)), flux_ones(0, 1, 1)), "can't make 4 of dim 0");
    GIVES(flux_call(flux_upsample(.size = FLUX_SHAPE(8)), image));
    GIVES(flux_call(flux_upsample(FLUX_LINEAR, .scale = { 0.25 }), flux_ones(4, 1, 1)));
    REFUSED(flux_pixelshuffle(0), "pixelshuffle: r is 0");
    REFUSED(flux_pixelshuffle((1 << 20) + 1), "pixelshuffle: r is 1048577");
    TAKES(flux_pixelshuffle(1) && flux_pixelshuffle(1 << 20));
    REFUSED(flux_call(shuffle, image), "takes a multiple of 2 channels for each of 2 dims, got 8x8x3x2 f32");
    REFUSED(flux_call(shuffle, flux_ones(2, 2, 2, 1)), "takes a multiple of 2 channels for each of 2 dims");
    GIVES(flux_call(shuffle, flux_ones(2, 2, 4, 1)));
}

TEST(norms) {
    begin();
    flux_layer *m = flux_dense(4, 2), *flat = flux_dense(4, 2, .init = flux_zeros32), *plain = flux_dense(4, 2, .bias = FLUX_OFF);
    REFUSED(flux_normalise(x, dims(0), 1e-5), "normalise: 0 dims to normalise over");
    REFUSED(flux_normalise(x, dims(9), 1e-5), "normalise: 9 dims to normalise over");
    REFUSED(flux_normalise(x, FLUX_SHAPE(-1), 1e-5), "normalise: 4x3 f32 has no dim -1");
    REFUSED(flux_normalise(x, FLUX_SHAPE(2), 1e-5), "normalise: 4x3 f32 has no dim 2");
    REFUSED(flux_normalise(x, FLUX_SHAPE(0), -1), "normalise: eps is -1");
    REFUSED(flux_normalise(x, FLUX_SHAPE(0), HUGE_VAL), "normalise: eps is inf");
    GIVES(flux_normalise(x, FLUX_SHAPE(1), 0));
    REFUSED(flux_layernorm(FLUX_SHAPE(4), .eps = -1), "layernorm: .eps is -1");
    REFUSED(flux_layernorm(FLUX_SHAPE(4), .eps = HUGE_VAL), "layernorm: .eps is inf");
    REFUSED(flux_layernorm(dims(0)), "layernorm: .size is missing");
    REFUSED(flux_layernorm(dims(9)), "layernorm: 9 dimensions");
    REFUSED(flux_layernorm(FLUX_SHAPE(0)), "layernorm: size 0 is 0");
    REFUSED(flux_rmsnorm(FLUX_SHAPE(4), .eps = NAN), "rmsnorm: .eps is ");
    REFUSED(flux_rmsnorm(dims(0)), "rmsnorm: .size is missing");
    REFUSED(flux_call(flux_layernorm(FLUX_SHAPE(3)), x), "expects dim 0 of size 3");
    REFUSED(flux_batchnorm(0), "batchnorm: size 0 is 0");
    REFUSED(flux_batchnorm(3, flux_softmax), "batchnorm: softmax is no activation");
    REFUSED(flux_batchnorm(3, .eps = -1), "batchnorm: .eps is -1");
    REFUSED(flux_batchnorm(3, .eps = HUGE_VAL), "batchnorm: .eps is inf");
    REFUSED(flux_batchnorm(3, .momentum = -0.1), "batchnorm: .momentum is -0.1");
    REFUSED(flux_batchnorm(3, .momentum = 1.1), "batchnorm: .momentum is 1.1");
    TAKES(flux_batchnorm(3, .eps = 0, .momentum = 0) && flux_batchnorm(3, .momentum = 1));
    REFUSED(flux_groupnorm(4, 0), "groupnorm: 0 groups do not divide 4 channels");
    REFUSED(flux_groupnorm(4, 3), "groupnorm: 3 groups do not divide 4 channels");
    TAKES(flux_groupnorm(4, 4) && flux_groupnorm(4, 1));
    flux_layer *batch = flux_batchnorm(3);
    flux_trainmode(batch, true);
    REFUSED(flux_call(batch, flux_ones(3, 1)), "has no variance to take of 3x1 f32 in train mode");
    REFUSED(flux_call(batch, x), "expects dim ");
    GIVES(flux_call(batch, flux_ones(3, 2)));
    REFUSED(flux_weightnorm(NULL), "weightnorm: argument layer is NULL");
    REFUSED(flux_weightnorm(m, "scale"), "weightnorm: Dense(4 => 2) has no \"scale\" to normalise");
    REFUSED(flux_weightnorm(plain, "bias"), "has no \"bias\" to normalise");
    REFUSED(flux_weightnorm(m, .dims = FLUX_SHAPE(2)), "weightnorm: weight, 2x4 f32, has no dim 2");
    REFUSED(flux_weightnorm(m, .dims = FLUX_SHAPE(-1)), "weightnorm: weight, 2x4 f32, has no dim -1");
    REFUSED(flux_weightnorm(m, .dims = dims(9)), "weightnorm: 9 dims");
    REFUSED(flux_weightnorm(m, .dims = dims(-1)), "weightnorm: -1 dims");
    REFUSED(flux_weightnorm(flat), "weightnorm: weight of Dense(4 => 2) has no direction");
    TAKES(flux_weightnorm(m, .dims = FLUX_SHAPE(0, 1)) != NULL);
    REFUSED(flux_dropout(-0.1), "dropout: p is -0.1, which is not within 0 to 1");
    REFUSED(flux_dropout(1.1), "dropout: p is 1.1");
    REFUSED(flux_alphadropout(NAN), "alphadropout: p is ");
    REFUSED(flux_dropout(0.5, .dims = dims(-1)), "dropout: .dims names a dim that no tensor has");
    REFUSED(flux_dropout(0.5, .dims = dims(9)), "dropout: .dims names a dim");
    REFUSED(flux_dropout(0.5, .dims = FLUX_SHAPE(-1)), "dropout: .dims names a dim");
    REFUSED(flux_dropout(0.5, .dims = FLUX_SHAPE(8)), "dropout: .dims names a dim");
    TAKES(flux_dropout(0) && flux_dropout(1) && flux_dropout(0.5, .dims = FLUX_SHAPE(0, 7)));
    flux_layer *drop = flux_dropout(0.5, .dims = FLUX_SHAPE(2));
    flux_trainmode(drop, true);
    REFUSED(flux_call(drop, x), "its input is 4x3 and has no dim 2");
}

static flux_tensor *pair_of(flux_tensor *y) { return flux_tuple(y, y, y); }
static flux_tensor *same_and_same(flux_tensor *y) { return flux_tuple(flux_nth(y, 0), flux_nth(y, 0)); }

TEST(recurrent_layers) {
    begin();
    flux_layer *cell = flux_lstmcell(4, 2), *gru = flux_grucell(4, 2), *rnn = flux_rnn(4, 2), *bad = flux_recurrence(flux_function(pair_of, "pair")), *good = flux_recurrence(flux_function(same_and_same, "same"));
    flux_tensor *many[10];
    for (int i = 0; i < 10; i++) many[i] = x;
    REFUSED(flux_lstm(0, 2), "lstm: size 0 is 0");
    REFUSED(flux_lstm(2, 0), "lstm: size 1 is 0");
    REFUSED(flux_rnn(2, 2, flux_softmax), "rnn: softmax is no activation");
    REFUSED(flux_lstm(2, 2, flux_tanh), "lstm: .activation is for rnn");
    REFUSED(flux_lstm(2, 2, .hidden_bias = true), "lstm: .hidden_bias is for gru");
    REFUSED(flux_gru(2, 2, .hidden_bias = true, .bias = FLUX_OFF), "gru: .hidden_bias is for gru, and for one whose .bias is not off");
    REFUSED(flux_grucell(2, 2, .return_state = true), "grucell: .return_state is for gru; a cell always gives it");
    TAKES(flux_gru(2, 2, .hidden_bias = true, .return_state = true) && flux_rnncell(1, 1, flux_relu));
    REFUSED(flux_call(cell, x, v), "takes x, or x and h and c, got 2 inputs");
    REFUSED(flux_call(gru, x, v, v), "takes x, or x and a state, got 3 inputs");
    REFUSED(flux_call(cell, v), "expects dim 0 of size 4");
    REFUSED(flux_call(cell, flux_ones(4, 2, 2)), "takes features (x batch), got 4x2x2 f32");
    REFUSED(flux_call(cell, flux_ones(4, 0)), "takes features (x batch), got 4x0 f32");
    REFUSED(flux_call(rnn, flux_ones(4)), "takes features x steps (x batch), got 4-element f32");
    REFUSED(flux_call(rnn, flux_ones(4, 0)), "takes features x steps (x batch), got 4x0 f32");
    REFUSED(flux_call(rnn, flux_ones(4, 1, 1, 1)), "takes features x steps (x batch), got 4x1x1x1 f32");
    REFUSED(flux_call(rnn, x, one), "its state is 2 x 1 for this input, got scalar f32");
    REFUSED(flux_call(rnn, x, flux_ones(2, 1, 1)), "its state is 2 x 1 for this input, got 2x1x1 f32");
    REFUSED(flux_call(rnn, x, v), "its state is 2 x 1 for this input, got 3-element f32");
    REFUSED(flux_call(rnn, flux_ones(4, 2, 3), flux_ones(2, 2)), "its state is 2 x 3 for this input, got 2x2 f32");
    GIVES(flux_call(rnn, flux_ones(4, 2, 3), flux_ones(2, 1)));
    REFUSED(flux_call_with(good, 9, many), "takes at most 7 states, got 8");
    REFUSED(flux_call(good, v), "takes features x steps (x batch), got 3-element f32");
    REFUSED(flux_call(good, flux_ones(3, 0)), "takes features x steps (x batch), got 3x0 f32");
    REFUSED(flux_call_with(good, 8, many), "its cell gave 2 tensors; it is to give its output and its state, as many as it takes");
    REFUSED(flux_call(bad, x, x), "its cell gave 3 tensors");
    REFUSED(flux_call(flux_recurrence(flux_function(flux_relu, "relu")), x), "its cell gave 1 tensors; it is to give its output and its state");
    GIVES(flux_call(good, x));
}

TEST(attention) {
    begin();
    flux_tensor *q = flux_ones(4, 3), *k = flux_ones(4, 2), *mask = flux_gt(flux_ones(2, 3), 0), *four = flux_ones(4, 3, 1, 1);
    REFUSED(flux_make_causal_mask(v), "make_causal_mask: ");
    REFUSED(flux_dot_product_attention(nil, k, k), "dot_product_attention: argument q is NULL");
    REFUSED(flux_dot_product_attention(q, nil, k), "argument k is NULL");
    REFUSED(flux_dot_product_attention(q, k, nil), "argument v is NULL");
    REFUSED(flux_dot_product_attention(pair, k, k), "q is floating features x steps (x batch), got a tuple");
    REFUSED(flux_dot_product_attention(q, v, k), "k is floating features x steps (x batch), got 3-element f32");
    REFUSED(flux_dot_product_attention(q, k, four), "v is floating features x steps (x batch), got 4x3x1x1 f32");
    REFUSED(flux_dot_product_attention(whole, k, k), "q is floating features x steps (x batch), got 4x3 i32");
    REFUSED(flux_dot_product_attention(q, k, k, .nheads = 0), "0 heads can't share the features of 4x3 f32 and 4x2 f32 evenly");
    REFUSED(flux_dot_product_attention(q, k, k, .nheads = 3), "3 heads can't share");
    REFUSED(flux_dot_product_attention(q, k, flux_ones(3, 2), .nheads = 2), "2 heads can't share");
    REFUSED(flux_dot_product_attention(q, flux_ones(3, 2), k), "q is 4x3 f32, k is 3x2 f32: their features and batch must be the same");
    REFUSED(flux_dot_product_attention(q, flux_ones(4, 2, 2), k), "their features and batch must be the same");
    REFUSED(flux_dot_product_attention(q, k, flux_ones(4, 3)), "k is 4x2 f32, v is 4x3 f32: their steps and batch must be the same");
    REFUSED(flux_dot_product_attention(q, k, flux_ones(4, 2, 2)), "their steps and batch must be the same");
    REFUSED(flux_dot_product_attention(q, k, k, .mask = pair), ".mask must be bool");
    REFUSED(flux_dot_product_attention(q, k, k, .mask = flux_ones(2, 3)), ".mask must be bool");
    REFUSED(flux_dot_product_attention(q, k, k, .mask = flux_not(flux_gt(flux_ones(3, 2), 0))), "mask is 3x2 bool, the scores (keys x queries x heads x batch) are 2x3x1x1 f32");
    REFUSED(flux_dot_product_attention(q, k, k, .bias = pair), "bias is ");
    REFUSED(flux_dot_product_attention(q, k, k, .bias = flux_ones(2, 3, 1, 1, 1)), "bias is 2x3x1x1x1 f32, the scores");
    GIVES(flux_nth(flux_dot_product_attention(q, k, k, .mask = mask, .bias = flux_ones(1, 3, 1, 1)), 0));
    REFUSED(flux_dot_product_attention_scores(q, flux_ones(4, 2, 2)), "their features and batch must be the same");
    REFUSED(flux_multiheadattention(0), "multiheadattention: size 0 is 0");
    REFUSED(flux_multiheadattention(8, .nheads = 0), "multiheadattention: 0 heads can't share 8 query and 8 value features evenly");
    REFUSED(flux_multiheadattention(8, .dropout = -1), "multiheadattention: .dropout is -1, which is not within 0 to 1");
    REFUSED(flux_multiheadattention(8, .nheads = 3), "multiheadattention: 3 heads can't share");
    REFUSED(flux_multiheadattention(8, .nheads = 2, .v = 3), "multiheadattention: 2 heads can't share 8 query and 3 value features");
    REFUSED(flux_multiheadattention(8, .nheads = 4, .kv_heads = 0), "multiheadattention: 0 heads of keys and values for 4 heads of queries");
    REFUSED(flux_multiheadattention(8, .nheads = 4, .kv_heads = 3), "3 heads of keys and values for 4 heads of queries");
    REFUSED(flux_multiheadattention(8, .nheads = 2, .rotary = 1), ".rotary is 1, with 4 features a head");
    REFUSED(flux_multiheadattention(8, .nheads = 2, .rotary = HUGE_VAL), ".rotary is inf");
    REFUSED(flux_multiheadattention(6, .nheads = 2, .rotary = 100), ".rotary is 100, with 3 features a head");
    flux_layer *m = flux_multiheadattention(4, .nheads = 2, .causal = true), *open = flux_multiheadattention(4, .nheads = 2);
    REFUSED(flux_call(m, q, q, q, q, q), "takes x, or q and kv, or q, k, v and perhaps a mask, got 5 inputs");
    REFUSED(flux_call(m, flux_ones(4)), "takes features x steps (x batch), got 4-element f32");
    REFUSED(flux_call(m, four), "takes features x steps (x batch), got 4x3x1x1 f32");
    REFUSED(flux_call(m, q, four), "takes features x steps (x batch), got 4x3x1x1 f32");
    REFUSED(flux_call(m, q, k), "a causal mask needs at least as many keys as queries");
    GIVES(flux_nth(flux_call(m, k, q), 0));
    REFUSED(flux_cache(NULL, 1), "cache: argument model is NULL");
    REFUSED(flux_cache(m, -1), "cache: -1 steps");
    REFUSED(flux_cache(m, (int64_t)INT32_MAX + 1), "cache: 2147483648 steps");
    REFUSED(flux_cache(open, 1), "is not causal");
    REFUSED(flux_cache(model, 1), "cache: the model has no MultiHeadAttention and no PositionEmbedding");
    TAKES(flux_cache(model, 0) == 0 && flux_cache(open, 0) == 0 && flux_cache(m, INT32_MAX) == 0);
    TAKES(flux_cache(m, 3) == 0);
    REFUSED(flux_call(m, k), "has a cache, and is called under FLUX_INFER or FLUX_NOGRAD only");
    FLUX_NOGRAD {
        nograd_here = 1;
        REFUSED(flux_call(m, flux_ones(4, 4)), "its cache of 3 steps has 0, and 4 more do not fit");
        GIVES(flux_nth(flux_call(m, k), 0));
        REFUSED(flux_call(m, k), "its cache of 3 steps has 2, and 2 more do not fit");
        REFUSED(flux_call(m, flux_ones(4, 1, 2)), "its cache is ");
        GIVES(flux_nth(flux_call(m, flux_ones(4, 1)), 0));
        CHECK(flux_cached(m) == 3);
    }
    nograd_here = 0;
    REFUSED(flux_rotary(v), "rotary: x is floating features x steps (x batch), got 3-element f32");
    REFUSED(flux_rotary(four), "rotary: x is floating features x steps (x batch)");
    REFUSED(flux_rotary(whole), "rotary: x is floating features x steps (x batch), got 4x3 i32");
    REFUSED(flux_rotary(q, .nheads = 0), "rotary: 0 heads of an even number of features cannot share those of 4x3 f32");
    REFUSED(flux_rotary(q, .nheads = 3), "rotary: 3 heads");
    REFUSED(flux_rotary(q, .nheads = 4), "rotary: 4 heads");
    REFUSED(flux_rotary(q, .base = 1), "rotary: .base is 1");
    REFUSED(flux_rotary(q, .base = HUGE_VAL), "rotary: .base is inf");
    REFUSED(flux_rotary(q, .positions = pair), "rotary: .positions is ");
    REFUSED(flux_rotary(q, .positions = x), "rotary: .positions is 4x3 f32, x has 3 steps");
    REFUSED(flux_rotary(q, .positions = at), "rotary: .positions is 2-element i32, x has 3 steps");
    GIVES(flux_rotary(q, .nheads = 2));
    REFUSED(flux_positionembedding(0, 3), "positionembedding: size ");
    flux_layer *places = flux_positionembedding(3, 4);
    REFUSED(flux_call(places, flux_ones(4)), "takes features x steps (x batch), at most 3 steps; got 4-element f32");
    REFUSED(flux_call(places, flux_ones(4, 4)), "at most 3 steps; got 4x4 f32");
    REFUSED(flux_call(places, flux_ones(3, 3)), "expects dim 0 of size 4");
    GIVES(flux_call(places, q));
}

TEST(containers) {
    begin();
    flux_layer *many[256], *named = flux_named("one", flux_dense(4, 4)), *also = flux_named("one", flux_dense(4, 4)), *no = NULL,
               *small = flux_dense(1, 1), *norm = flux_batchnorm(2), *plain = flux_dense(2, 2, .bias = FLUX_OFF);
    for (int i = 0; i < 256; i++) many[i] = flux_function(flux_relu, "relu");
    REFUSED(flux_chain_with(-1, many, ""), "chain: -1 layers (0 to 255)");
    REFUSED(flux_chain_with(256, many, ""), "chain: 256 layers (0 to 255)");
    REFUSED(flux_chain_with(1, NULL, ""), "chain: 1 layers (0 to 255)");
    TAKES(flux_chain_with(0, NULL, "") && flux_chain_with(255, many, ""));
    REFUSED(flux_chain(named, no), "chain: layer 1 is NULL");
    REFUSED(flux_chain(named, flux_relu, also), "chain: layers 0 and 2 are both called \"one\"");
    TAKES(flux_chain(named, named) != NULL);
    REFUSED(flux_maxout_with(0, many, ""), "maxout: 0 layers (1 to 255)");
    TAKES(flux_maxout_with(1, many, "") != NULL);
    REFUSED(flux_activations(NULL, x), "activations: argument chain is NULL");
    REFUSED(flux_activations(model, NULL), "activations: argument x is NULL");
    REFUSED(flux_activations(named, x), "activations: needs a Chain of at least one layer, not Dense(4 => 4)");
    REFUSED(flux_activations(flux_chain_with(0, NULL, ""), x), "activations: needs a Chain of at least one layer");
    REFUSED(flux_call(flux_parallel(flux_add, named, flux_relu), x, x, x), "2 layers, but 3 inputs");
    REFUSED(flux_call(flux_pairwisefusion(flux_add, named, flux_relu), x, x, x), "2 layers, but 3 inputs");
    REFUSED(flux_call(flux_function2(flux_add, "add"), x), "takes two inputs, got one");
    REFUSED(flux_named("one", NULL), "named: argument ");
    REFUSED(flux_named(NULL, named), "named: argument ");
    REFUSED(flux_named("two", named), "named: ");
    REFUSED(flux_named("a.b", small), "named: ");
    REFUSED(flux_named("", small), "named: ");
    REFUSED(flux_named("a\tb", small), "named: ");
    TAKES(flux_named("one", named) == named);
    REFUSED(flux_fmap(NULL, model), "fmap: argument ");
    REFUSED(flux_param(model, "layers.9.weight"), "param: Chain has no \"layers.9.weight\"");
    REFUSED(flux_param(model, NULL), "param: argument path is NULL");
    REFUSED(flux_set_param(model, "layers.0.weight", NULL), "set_param: argument value is NULL");
    REFUSED(flux_set_param(model, "layers.0.weight", pair), "set_param: layers.0.weight is 3x4 f32, the value is ");
    REFUSED(flux_set_param(model, "layers.0.weight", x), "set_param: layers.0.weight is 3x4 f32, the value is 4x3 f32");
    REFUSED(flux_weight(norm), "weight: ");
    REFUSED(flux_bias(plain), "bias: Dense(2 => 2; bias=false) has none");
    REFUSED(flux_restructure(model, pair), "restructure: the model has ");
    REFUSED(flux_restructure(model, x), "restructure: the model has ");
    REFUSED(flux_restructure(model, v), "restructure: the model has 29 trained numbers, flat is 3-element f32");
    TAKES(flux_restructure(model, flux_destructure(model)) != NULL);
    TAKES(flux_outputsize(model, 4, 7).dim[0] == 2);
    REFUSED(flux_outputsize(model, 5, 7).ndim, "Dense(4 => 3, tanh) expects dim 0 of size 4, got 5x7 f32");
    REFUSED(flux_outputsize(flux_chain(pair_of), 5, 7).ndim, "outputsize: Chain gives a tuple of 3 tensors");
    flux_tensor *places[] = { flux_ones(2), flux_ones(2) }, **const list[33] = { &places[0], &places[1] };
    REFUSED(flux_variables_with(0, list), "variables: 0 variables (1 to 32)");
    REFUSED(flux_variables_with(33, list), "variables: 33 variables (1 to 32)");
    REFUSED(flux_variables_with(1, NULL), "variables: 0 variables (1 to 32)");
    REFUSED(flux_call(flux_variables_with(2, list), x), "is no function of an input");
}

TEST(initialisers) {
    begin();
    const flux_shape s = FLUX_SHAPE(3, 4);
    REFUSED(flux_init(NULL, s), "init: argument name is NULL");
    REFUSED(flux_init("ortho", s), "init: there is no initialiser \"ortho\"");
    REFUSED(flux_init("zeros", dims(9)), "init: 9 dimensions");
    REFUSED(flux_init("randn", s, .gain = NAN), "init: .gain is ");
    REFUSED(flux_init("randn", s, .mean = HUGE_VAL), "init: .mean is inf");
    REFUSED(flux_init("randn", s, .std = -1), "init: .std is -1");
    REFUSED(flux_init("sparse", s, .sparsity = -1), "init: .sparsity is -1");
    REFUSED(flux_init("truncated_normal", s, .lo = 1, .hi = 1), "init: the bounds 1 and 1 are not in order");
    REFUSED(flux_init("truncated_normal", s, .lo = HUGE_VAL), "init: .lo is inf");
    REFUSED(flux_init("truncated_normal", s, .hi = NAN), "init: .hi is ");
    REFUSED(flux_init("orthogonal", dims(1)), "init: ");
    REFUSED(flux_init("sparse", dims(1)), "init: sparse makes matrices, not tensors of 1 dims");
    REFUSED(flux_init("sparse", dims(3)), "init: sparse makes matrices, not tensors of 3 dims");
    GIVES(flux_init("randn", s, .std = 0, .mean = -1));
    GIVES(flux_init("orthogonal", dims(2)));
    REFUSED(flux_leakyrelu(x, .alpha = NAN), "leakyrelu: .alpha is ");
    REFUSED(flux_celu(x, .alpha = 0), "celu: .alpha is 0");
    REFUSED(flux_rrelu(x, .lo = 0.5, .hi = 0.25), "rrelu: .lo is 0.5 and .hi is 0.25");
    REFUSED(flux_rrelu(x, .lo = NAN), "rrelu: .lo is ");
    REFUSED(flux_rrelu(x, .hi = HUGE_VAL), "rrelu: .lo is ");
    GIVES(flux_rrelu(x, .lo = 0.5, .hi = 0.5));
    REFUSED(flux_glu(x, -1), "glu: dim -1 of 4x3 f32 can't be cut in two halves");
    REFUSED(flux_glu(x, 2), "glu: dim 2 of 4x3 f32");
    REFUSED(flux_glu(x, 1), "glu: dim 1 of 4x3 f32");
    GIVES(flux_glu(x, 0));
}

/* ---------------- nn/: losses and metrics */

static flux_tensor *no_mean(flux_tensor *a, flux_tensor *b) { return (void)a, (void)b, (flux_tensor *)NULL; }
static flux_tensor *wide_mean(flux_tensor *a, flux_tensor *b) { return flux_sub(a, b); }
static flux_tensor *pair_mean(flux_tensor *a, flux_tensor *b) { return flux_tuple(a, b); }

TEST(losses) {
    begin();
    flux_tensor *labels = flux_to_dtype(flux_values(0, 3, 1), FLUX_I32), *p = flux_softmax(x, 0),
                *up = flux_eval(flux_add(labels, 1.0)), *down = flux_eval(flux_sub(labels, 1.0));
    REFUSED(flux_mse(x, v), "mse: yhat is 4x3 f32, y is 3-element f32: their shapes must be the same");
    REFUSED(flux_mse(pair, x), "mse: ");
    REFUSED(flux_mse(x, nil), "mse: argument ");
    REFUSED(flux_huber_loss(x, x, .delta = -1), "huber_loss: .delta is -1");
    REFUSED(flux_huber_loss(x, x, .delta = HUGE_VAL), "huber_loss: .delta is inf");
    REFUSED(flux_crossentropy(p, p, .eps = -1), "crossentropy: .eps is -1");
    REFUSED(flux_crossentropy(p, p, .eps = 1e-39), "crossentropy: .eps is 1e-39, which is 0 in f32");
    REFUSED(flux_focal_loss(p, p, .gamma = NAN), "focal_loss: .gamma is ");
    REFUSED(flux_siamese_contrastive_loss(v, v, .margin = -1), "siamese_contrastive_loss: .margin is -1");
    REFUSED(flux_dice_coeff_loss(x, x, .smooth = -1), "dice_coeff_loss: .smooth is -1");
    REFUSED(flux_tversky_loss(x, x, .beta = 1.5), "tversky_loss: .beta is 1.5, which is not within 0 to 1");
    REFUSED(flux_tversky_loss(x, x, .beta = -0.5), "tversky_loss: .beta is -0.5");
    REFUSED(flux_mse(x, x, .agg = (flux_agg)-1), "mse: .agg is -1");
    REFUSED(flux_mse(x, x, .agg = (flux_agg)(FLUX_NONE + 1)), "mse: .agg is ");
    REFUSED(flux_crossentropy(p, p, .dim = -1), "crossentropy: .dim is -1");
    REFUSED(flux_crossentropy(p, p, .dim = 8), "crossentropy: .dim is 8");
    REFUSED(flux_crossentropy(p, p, .dim = 2), "crossentropy: yhat is 4x3 f32 and has no dim 2 for the classes");
    GIVES(flux_mse(x, x, .agg = FLUX_NONE));
    GIVES(flux_tversky_loss(x, x, .beta = 1));
    GIVES(flux_crossentropy(flux_to_dtype(p, FLUX_F64), p, .eps = 1e-39));
    GIVES(flux_crossentropy(p, p, .dim = 1));
    REFUSED(flux_crossentropy(p, p, .ignore_index = 1), "crossentropy: .ignore_index goes with integer labels, which y is not");
    REFUSED(flux_mse(x, x, .weights = v), "mse: .weights are of classes, which it has not");
    REFUSED(flux_mse(x, x, .lengths = at), "mse: .lengths are for ctc_loss");
    REFUSED(flux_logitcrossentropy(x, labels, .weights = pair), "logitcrossentropy: .weights is a vector of one number a class; it is a tuple, yhat is 4x3 f32");
    REFUSED(flux_logitcrossentropy(x, labels, .weights = x), "it is 4x3 f32, yhat is 4x3 f32");
    REFUSED(flux_logitcrossentropy(x, labels, .weights = v), "it is 3-element f32, yhat is 4x3 f32");
    REFUSED(flux_logitcrossentropy(x, labels, .weights = flux_gt(flux_ones(4), 0)), "it is 4-element bool, yhat is 4x3 f32");
    REFUSED(flux_logitcrossentropy(one, one, .weights = flux_ones(1)), "it is 1-element f32, yhat is scalar f32");
    GIVES(flux_logitcrossentropy(x, labels, .weights = flux_ones(4)));
    REFUSED(flux_logitcrossentropy(x, up), "logitcrossentropy: label 4 at ");
    REFUSED(flux_logitcrossentropy(x, down), "logitcrossentropy: label -1 at ");
    REFUSED(flux_logitcrossentropy(x, up, .ignore_index = 5), "logitcrossentropy: label 4 at ");
    GIVES(flux_logitcrossentropy(x, up, .ignore_index = 4));
    REFUSED(flux_logitcrossentropy(x, at), "their shapes must be the same");
    REFUSED(flux_label_smoothing(x, 0, 0), "label_smoothing: alpha is 0, which is not between 0 and 1");
    REFUSED(flux_label_smoothing(x, 1, 0), "label_smoothing: alpha is 1");
    REFUSED(flux_label_smoothing(x, 0.1, -2), "label_smoothing: 4x3 f32 has no dim -2");
    REFUSED(flux_label_smoothing(x, 0.1, 2), "label_smoothing: 4x3 f32 has no dim 2");
    GIVES(flux_label_smoothing(x, 0.1, -1));
    GIVES(flux_label_smoothing(x, 0.1, 1));
    flux_tensor *steps = flux_ones(3, 4, 2), *texts = flux_full_with(FLUX_SHAPE(2, 2), 0, FLUX_I32);
    REFUSED(flux_ctc_loss(v, at), "ctc_loss: yhat is floating classes x steps (x batch), 2 classes at least, got 3-element f32");
    REFUSED(flux_ctc_loss(flux_ones(3, 4, 2, 1), texts), "2 classes at least, got 3x4x2x1 f32");
    REFUSED(flux_ctc_loss(flux_ones(1, 4), at), "2 classes at least, got 1x4 f32");
    REFUSED(flux_ctc_loss(flux_ones(3, 0), at), "2 classes at least, got 3x0 f32");
    REFUSED(flux_ctc_loss(whole, at), "2 classes at least, got 4x3 i32");
    REFUSED(flux_ctc_loss(flux_ones(3, 4), v), "ctc_loss: y is integer labels (x batch) to yhat's 3x4 f32, got 3-element f32");
    REFUSED(flux_ctc_loss(flux_ones(3, 4), flux_gt(v, 9)), "ctc_loss: y is integer labels (x batch)");
    REFUSED(flux_ctc_loss(flux_ones(3, 4), flux_select(at, 0, 0)), "ctc_loss: y is integer labels (x batch)");
    REFUSED(flux_ctc_loss(flux_ones(3, 4), texts), "ctc_loss: y is integer labels (x batch)");
    REFUSED(flux_ctc_loss(steps, at), "ctc_loss: y is integer labels (x batch) to yhat's 3x4x2 f32");
    REFUSED(flux_ctc_loss(steps, texts, .lengths = v), "ctc_loss: .lengths is one integer a sample, got 3-element f32 for 3x4x2 f32");
    REFUSED(flux_ctc_loss(steps, texts, .lengths = pair), "ctc_loss: an operand is a tuple");
    REFUSED(flux_ctc_loss(steps, texts, .lengths = whole), "ctc_loss: .lengths is one integer a sample, got 4x3 i32");
    REFUSED(flux_ctc_loss(steps, texts, .agg = (flux_agg)9), "ctc_loss: .agg is 9");
    GIVES(flux_ctc_loss(flux_ones(2, 1), flux_full_with(FLUX_SHAPE(1), 0, FLUX_I32)));
}

TEST(metrics) {
    begin();
    flux_tensor *labels = flux_to_dtype(flux_values(0, 3, 1), FLUX_I32), *many = flux_zeros(4097, 1), *most = flux_zeros(4096, 1), *up = flux_eval(flux_add(labels, 1.0));
    flux_layer *m = flux_metric(flux_accuracy), *mean = flux_metric(flux_mse), *none_given = flux_metric(no_mean),
               *wide = flux_metric(wide_mean), *two = flux_metric(pair_mean), *counts = flux_metric(flux_confusion);
    REFUSED(flux_accuracy(nil, x), "accuracy: argument yhat is NULL");
    REFUSED(flux_accuracy(x, nil), "accuracy: argument y is NULL");
    REFUSED(flux_accuracy(cube, v), "accuracy: yhat is 2x3x4 f32, y is 3-element f32: y must be one-hot");
    REFUSED(flux_accuracy(flux_ones(1, 3), labels), "accuracy: yhat is 1x3 f32, which has no two classes in dim 0");
    REFUSED(flux_accuracy(one, one), "accuracy: yhat is scalar f32, which has no two classes in dim 0");
    REFUSED(flux_accuracy(x, at), "accuracy: yhat is 4x3 f32, y is 2-element i32: y must be one-hot");
    REFUSED(flux_accuracy(at, labels), "accuracy: yhat is 2-element i32, y is 3-element i32: y must be one-hot");
    REFUSED(flux_accuracy(x, up), "accuracy: label 4 at ");
    GIVES(flux_accuracy(labels, labels));
    GIVES(flux_accuracy(labels, x));
    const struct { const char *name; flux_fn2 f; } guessing[] = {
        { "topk_accuracy", flux_topk_accuracy }, { "f1", flux_f1 }, { "precision", flux_precision }, { "recall", flux_recall } };
    for (int i = 0; i < 4; i++) {
        char sentence[100];
        snprintf(sentence, sizeof sentence, "%s: yhat is 4x3 f32, y is 2-element i32: y must be one-hot", guessing[i].name);
        REFUSED(i ? guessing[i].f(x, at) : flux_topk_accuracy(x, at, .k = 2), sentence);
        snprintf(sentence, sizeof sentence, "%s: label 4 at ", guessing[i].name);
        REFUSED(i ? guessing[i].f(x, up) : flux_topk_accuracy(x, up, .k = 2), sentence);
    }
    REFUSED(flux_topk_accuracy(labels, labels, .k = 1), "topk_accuracy: yhat is 3-element i32, y is ");
    REFUSED(flux_topk_accuracy(x, labels, .k = 0), "topk_accuracy: k is 0, which is not within 1 to the 4 classes");
    REFUSED(flux_topk_accuracy(x, labels, .k = 5), "topk_accuracy: k is 5, which is not within 1 to the 4 classes");
    GIVES(flux_topk_accuracy(x, labels, .k = 4));
    REFUSED(flux_confusion(labels, labels), "confusion: how many classes there are is not known from labels alone");
    REFUSED(flux_confusion(many, flux_full_with(FLUX_SHAPE(1), 0, FLUX_I32)), "confusion: 4097 classes; 4096 are possible");
    TAKES(flux_confusion(most, flux_full_with(FLUX_SHAPE(1), 0, FLUX_I32)) != NULL);
    CHECK(flux_len(flux_confusion(truth, truth)) == 4);
    REFUSED(flux_confusion(flux_to_dtype(truth, FLUX_I32), truth), "confusion: how many classes there are is not known");
    REFUSED(flux_confusion(truth, flux_to_dtype(truth, FLUX_I32)), "confusion: how many classes there are is not known");
    REFUSED(flux_r2(x, v), "r2: yhat is 4x3 f32, y is 3-element f32: both must have the same shape");
    REFUSED(flux_r2(one, one), "r2: yhat is scalar f32");
    REFUSED(flux_metric(NULL), "metric: argument f is NULL");
    REFUSED(flux_metric(flux_accuracy, .k = 2), "metric: .k goes with flux_topk_accuracy");
    TAKES(flux_metric(flux_topk_accuracy, .k = 2) != NULL);
    REFUSED(flux_metric_add(NULL, x, labels), "metric_add: argument metric is NULL");
    REFUSED(flux_metric_add(model, x, labels), "metric_add: Chain is no metric; flux_metric makes one");
    REFUSED(flux_metric_value(model), "metric_value: Chain is no metric");
    REFUSED(flux_metric_value(m), "metric_value: Metric(accuracy) has met no batch");
    REFUSED(flux_metric_add(none_given, x, x), "metric: the function gave NULL");
    REFUSED(flux_metric_add(wide, x, x), "metric: the function gave 4x3 f32, not one number");
    REFUSED(flux_metric_add(two, x, x), "metric: the function gave ");
    REFUSED(flux_call(m, x), "takes yhat and y");
    REFUSED(flux_call(m, x, x, x), "takes yhat and y");
    TAKES(flux_metric_add(counts, x, labels) == 0 && flux_metric_add(mean, one, one) == 0);
    const double before = flux_item(flux_sum((flux_metric_value(counts))));
    REFUSED(flux_metric_add(counts, flux_ones(3, 3), at), "confusion: ");
    REFUSED(flux_metric_add(counts, flux_ones(3, 2), at), "metric_add: this batch has other classes or outputs than those before it");
    CHECK(flux_item(flux_sum((flux_metric_value(counts)))) == before && before == 3);
}

/* ---------------- nn/: optimisers, gradients, training */

static double half_rate(int64_t t, void *user) { return (void)user, 0.5 / (double)t; }
static double no_rate(int64_t t, void *user) { return (void)user, (void)t, (double)NAN; }
static flux_tensor *sum_loss(flux_layer *m, flux_tensor *a, flux_tensor *b) { return (void)b, flux_sum(flux_square(flux_call(m, a))); }
static flux_tensor *of_squares(flux_tensor *y, void *user) { return (void)user, flux_sum(flux_square(y)); }
static flux_tensor *of_nothing(flux_tensor *y, void *user) { return (void)user, (void)y, (flux_tensor *)NULL; }

/* Every rule with every hyper-parameter: it has its default or what it is given, at both ends of the range and not beyond; one
   that the rule has not is refused, also where the first is given by its name. */
static void rule_with(const flux__rule_row *row, const flux_rule_opts *none, int h, double v, bool good) {
    flux_rule_opts o = *none;
    char sentence[100];
    const int first = row->has[0].hyper;
    const bool has = flux__row_has(row, h);
    flux__hyper_set(&o, first, row->has[0].value > 0 ? row->has[0].value : 1);
    flux__hyper_set(&o, h, v);
    flux_rule r;
    if (has && good) {
        r = flux_rule_with(row->name, o);
        TAKES(r.made && flux__hyper(&r.part[0].o, h) == v);
        for (int i = 1; r.made && i < FLUX__HYPERS; i++)
            CHECK(flux__row_has(row, i) || flux__hyper(&r.part[0].o, i) == 0);
    } else {
        snprintf(sentence, sizeof sentence, has ? "%s: %s%s is " : "%s: %s has no %s", flux__call_name(row).s, has ? "" : row->name,
                 flux__hypers[h].name);
        REFUSED(MADE(flux_rule_with(row->name, o)), sentence);
    }
}
TEST(hyper_parameters) {
    begin();
    flux_rule_opts none = FLUX_OPTIONS(flux_rule_opts, .eta = 1);
    none.eta = FLUX__NO_NUMBER;
    for (int k = 1; k < FLUX__RULE_ROWS; k++) {
        const flux__rule_row *row = &flux__rule_rows[k];
        if (!row->has[0].hyper || (k > 1 && !strcmp(row->name, row[-1].name))) continue;
        for (int h = 1; h < FLUX__HYPERS; h++) {
            const flux__hyper_row *of = &flux__hypers[h];
            if (h == FLUX__GAMMA1 || h == FLUX__GAMMA2) continue;      /* which go together */
            rule_with(row, &none, h, of->least, true);
            rule_with(row, &none, h, h == FLUX__EVERY ? 0 : nextafter(of->least, -1), false);
            rule_with(row, &none, h, of->most, true);
            if (h != FLUX__EVERY && of->most < HUGE_VAL) rule_with(row, &none, h, nextafter(of->most, HUGE_VAL), false);
            if (h != FLUX__EVERY) rule_with(row, &none, h, NAN, false);
        }
    }
}

TEST(rules) {
    begin();
    flux_rule many[17], bad = flux_adam(0.1), chain16;
    bad.made = false;
    for (int i = 0; i < 17; i++) many[i] = flux_descent(0.1);
    REFUSED(MADE(flux_rule_with(NULL, FLUX_OPTIONS(flux_rule_opts, .eta = 1))), "rule: argument name is NULL");
    REFUSED(MADE(flux_rule_with("adam", FLUX_OPTIONS(flux_rule_opts, .eta = 1))), "rule: there is no rule named \"adam\"");
    REFUSED(MADE(flux_adam(-1)), "adam: eta is -1, but must be ");
    REFUSED(MADE(flux_adam(NAN)), "adam: eta is ");
    REFUSED(MADE(flux_adam(0.1, .beta = { 1, 0.9 })), "adam: ");
    REFUSED(MADE(flux_adam(0.1, .beta = { 0.9, -0.1 })), "adam: ");
    REFUSED(MADE(flux_adam(0.1, .rho = 0.9)), "adam: Adam has no rho");
    REFUSED(MADE(flux_adam(0.1, .couple = FLUX_OFF)), "adam: Adam has no couple");
    REFUSED(MADE(flux_adam(0.1, .centred = FLUX_ON)), "adam: Adam has no centred");
    REFUSED(MADE(flux_adam(0.1, .global = FLUX_ON)), "adam: Adam has no global");
    REFUSED(MADE(flux_rprop(0.1, .gamma = { 2, 1 })), "rprop: gamma is (2, 1), not in order");
    TAKES(flux_rprop(0.1, .gamma = { 1, 1 }).made && flux_adam(0).made);
    TAKES(flux_rmsprop(0.1, .centred = FLUX_ON).made && flux_rmsprop(0.1, .centred = FLUX_OFF).made);
    TAKES(flux_adamw(0.1, .couple = FLUX_OFF).made && flux_clipnorm(1, .global = FLUX_ON).made);
    REFUSED(MADE(flux_optimiser_chain(bad, many[0])), "optimiser_chain: this is not a rule");
    REFUSED(MADE(flux_optimiser_chain(many[0], bad)), "optimiser_chain: this is not a rule");
    REFUSED(MADE(flux_optimiser_chain_with(17, many)), "optimiser_chain: a chain has at most 16 rules");
    chain16 = flux_optimiser_chain_with(16, many);
    CHECK(chain16.made && chain16.n == 16);
    REFUSED(MADE(flux_optimiser_chain(chain16, many[0])), "optimiser_chain: a chain has at most 16 rules");
    REFUSED(MADE(flux_accumgrad(0, many[0])), "accumgrad: n is 0, but must be 1 or more");
    REFUSED(MADE(flux_accumgrad(2, bad)), "accumgrad: this is not a rule");
    REFUSED(MADE(flux_mixed_precision(bad)), "mixed_precision: this is not a rule");
    TAKES(flux_accumgrad(1, many[0]).made);
    REFUSED(flux_setup(bad, model), "setup: this is not a rule");
    REFUSED(flux_setup(many[0], NULL), "setup: argument ");
    flux_schedule s = flux_schedule_constant(0.1), no = s, eight[9], never;
    no.made = false;
    for (int i = 0; i < 9; i++) eight[i] = flux_schedule_linear(1, 0, 2);
    REFUSED(MADE(flux_schedule_constant(-1)), "schedule_constant: rate is -1, but must be 0 or more");
    REFUSED(MADE(flux_schedule_exp(HUGE_VAL, 0.9)), "schedule_exp: start is inf, but must be a finite number");
    REFUSED(MADE(flux_schedule_step(1, 0.5, 0)), "schedule_step: period is 0, but must be from 1 to 1e15");
    REFUSED(MADE(flux_schedule_linear(1, 0, 0)), "schedule_linear: steps is 0, but must be 1 or more");
    REFUSED(MADE(flux_schedule_cosine(1, -1, 4)), "schedule_cosine: finish is -1");
    REFUSED(MADE(flux_schedule_of(NULL, NULL)), "schedule_of: argument fn is NULL");
    REFUSED(MADE(flux_schedule_onecycle(1, 1)), "schedule_onecycle: 1 steps, but it takes 2 or more");
    REFUSED(MADE(flux_schedule_onecycle(4, -1)), "schedule_onecycle: most is -1");
    CHECK(flux_schedule_onecycle(2, 1).steps == 2 && flux_schedule_at(flux_schedule_onecycle(8, 1), 3) > flux_schedule_at(flux_schedule_onecycle(8, 1), 4) - 1);
    REFUSED(MADE(flux_schedule_for(0, s)), "schedule_for: steps is 0, but must be 1 or more");
    REFUSED(MADE(flux_schedule_sequence_with(0, eight)), "schedule_sequence: of no schedule");
    REFUSED(MADE(flux_schedule_sequence(s, eight[0])), "schedule_sequence: schedule 0 has no end");
    REFUSED(MADE(flux_schedule_sequence_with(9, eight)), "schedule_sequence: a sequence has at most 8 phases");
    never = flux_schedule_sequence_with(8, eight);
    CHECK(never.made && never.n == 8 && never.steps == 16 && flux_schedule_sequence(eight[0], s).steps == 0);
    REFUSED(flux_schedule_at(s, 0), "schedule_at: t is 0, but counts from 1");
    CHECK(flux_schedule_at(s, 1) == 0.1);
    REFUSED(MADE(flux_scheduled(bad, s)), "scheduled: this is not a rule");
    REFUSED(MADE(flux_scheduled(flux_scheduled(many[0], s), s)), "scheduled: this rule has a schedule already");
    REFUSED(MADE(flux_scheduled(flux_optimiser_chain(many[0], many[1]), s)), "scheduled: several rules of this chain have an eta");
    REFUSED(MADE(flux_scheduled(flux_weightdecay(0.1), s)), "scheduled: no rule of this chain has an eta");
    flux_rule nine[9], full;
    for (int i = 0; i < 9; i++) nine[i] = i ? flux_weightdecay(0.1) : flux_descent(0.1);
    REFUSED(MADE(flux_scheduled(flux_optimiser_chain_with(9, nine), never)), "scheduled: a chain has at most 16 rules and phases");
    full = flux_scheduled(flux_optimiser_chain_with(8, nine), never);
    CHECK(full.made && full.n == 16 && !flux_scheduled(many[0], no).made && !flux_failed());
    flux_state *clip = flux_setup(flux_clipnorm(1), model), *paced = flux_setup(flux_scheduled(flux_adam(1), s), model),
               *w = flux_setup(flux_adamw(0.1), model);
    CHECK(flux_setup(flux_scheduled(flux_descent(1), flux_schedule_of(half_rate, NULL)), model) != NULL && !flux_failed());
    REFUSED(flux_rate(NULL), "rate: argument state is NULL");
    REFUSED(flux_rate(clip), "rate: no rule of this state has an eta");
    REFUSED(MADE(flux_scheduled(flux_descent(1), flux_schedule_of(no_rate, NULL))), "schedule: the rate of step 1 is ");
    REFUSED(flux_adjust(NULL, .eta = 1), "adjust: argument state is NULL");
    REFUSED(flux_adjust(state, .rho = 0.5), "adjust: there is no rho in ");
    REFUSED(flux_adjust(state, .eta = -1), "adjust: eta is -1");
    REFUSED(flux_adjust(paced, .eta = 1), "adjust: eta follows the schedule in ");
    REFUSED(flux_adjust(state, .couple = FLUX_ON), "adjust: there is no couple in ");
    REFUSED(flux_adjust(state, .centred = FLUX_ON), "adjust: centred can't be changed");
    REFUSED(flux_adjust(state, .global = FLUX_ON), "adjust: global can't be changed");
    TAKES(flux_adjust(w, .couple = FLUX_OFF) == 0 && flux_adjust(paced, .beta = { 0.5, 0.5 }) == 0);
    flux_layer *other = flux_dense(2, 2);
    REFUSED(flux_adjust_part_with(NULL, model, FLUX_OPTIONS(flux_rule_opts, .eta = 1)), "adjust_part: argument state is NULL");
    REFUSED(flux_adjust_part_with(state, NULL, FLUX_OPTIONS(flux_rule_opts, .eta = 1)), "adjust_part: argument part is NULL");
    REFUSED(flux_adjust_part_with(state, model, FLUX_OPTIONS(flux_rule_opts, .rho = 1)), "adjust_part: there is no rho in ");
    REFUSED(flux_adjust_part_with(state, other, FLUX_OPTIONS(flux_rule_opts, .eta = 1)), "adjust_part: no parameter of this Dense belongs to the model of the state");
}

TEST(gradients) {
    begin();
    flux_tensor *loss = flux_sum(flux_square(flux_call(model, x)));
    flux_grads *g = flux_gradient(loss, model), *more = flux_gradient(loss, model), *used = flux_gradient(loss, model);
    flux_layer *copy = flux_copy_layer(model), *small = flux_chain(flux_dense(4, 3)), *deep = flux_chain(flux_dense(4, 3, flux_tanh), flux_batchnorm(3), flux_dense(3, 3));
    const int n = flux_num_grads(g);
    flux_state *mixed = flux_setup(flux_mixed_precision(flux_descent(0.1)), flux_f16(flux_dense(4, 2)));
    CHECK(n == 6 && flux_update(flux_setup(flux_descent(0), copy), copy, flux_gradient(flux_sum(flux_call(copy, x)), copy)) == 0);
    REFUSED(flux_gradient(x, model), "gradient: the loss must be one real number, not 4x3 f32");
    REFUSED(flux_gradient(flux_sum((whole)), model), "gradient: the loss must be one real number, not scalar i64");
    REFUSED(flux_grad(NULL, x), "grad: argument g is NULL");
    REFUSED(flux_grad(g, NULL), "grad: argument x is NULL");
    REFUSED(flux_grad_param(g, model, "nothing"), "has no \"nothing\"");
    REFUSED(flux_grad_at(g, -1), "grad_at: there is no gradient -1 among 6");
    REFUSED(flux_grad_at(g, n), "grad_at: there is no gradient 6 among 6");
    REFUSED(flux_grad_name(g, n), "grad_name: there is no gradient 6 among 6");
    CHECK(flux_grad_at(g, 0) && flux_grad_at(g, n - 1));
    REFUSED(flux_clip_value(g, 0), "clip_value: delta is 0, but must be more than 0");
    REFUSED(flux_clip_value(g, NAN), "clip_value: delta is ");
    REFUSED(flux_clip_global(g, 0), "clip_global: omega is 0, but must be more than 0");
    REFUSED(flux_clip_global(g, -1), "clip_global: omega is -1");
    REFUSED(flux_grads_add(NULL, g), "grads_add: argument g is NULL");
    REFUSED(flux_grads_add(g, NULL), "grads_add: argument g is NULL");
    REFUSED(flux_grads_scale(NULL, 2), "grads_scale: argument g is NULL");
    flux_state *s = flux_setup(flux_descent(0), model);
    TAKES(flux_grads_add(g, more) == 0 && flux_update(s, model, used) == 0);
    REFUSED(flux_update(s, model, used), "update: these gradients were used up by an earlier flux_update");
    REFUSED(flux_grad(used, x), "grad: these gradients were used up");
    REFUSED(flux_grad_at(used, 0), "grad_at: these gradients were used up by flux_update");
    REFUSED(flux_num_grads(used), "num_grads: these gradients were used up");
    REFUSED(flux_clip_value(used, 1), "clip_value: these gradients were used up");
    REFUSED(flux_grads_norm(used), "grads_norm: these gradients were used up");
    REFUSED(flux_clip_global(used, 1), "clip_global: these gradients were used up");
    REFUSED(flux_grads_add(g, used), "grads_add: these gradients were used up");
    REFUSED(flux_grads_scale(used, 1), "grads_scale: these gradients were used up");
    loss = flux_sum(flux_call(model, x));
    g = flux_gradient(loss, model);
    REFUSED(flux_update(NULL, model, g), "update: argument ");
    REFUSED(flux_update(state, NULL, g), "update: argument ");
    REFUSED(flux_update(state, model, NULL), "update: argument ");
    REFUSED(flux_update(state, small, g), "update: ");
    REFUSED(flux_update(state, deep, g), "update: layers.2.weight is 3x3 f32, but was 2x3 f32 at flux_setup");
    REFUSED(flux_scaled_loss(NULL, loss), "scaled_loss: argument ");
    REFUSED(flux_scaled_loss(mixed, NULL), "scaled_loss: argument ");
    REFUSED(flux_loss_scale(NULL), "loss_scale: argument ");
    REFUSED(flux_skipped(NULL), "skipped: argument ");
    REFUSED(flux_gradcheck(NULL, NULL, x, 1), "gradcheck: argument fn is NULL");
    REFUSED(flux_gradcheck(of_squares, NULL, NULL, 1), "gradcheck: argument x is NULL");
    REFUSED(flux_gradcheck(of_squares, NULL, pair, 1), "gradcheck: x must be a tensor of floating numbers, not a tuple");
    REFUSED(flux_gradcheck(of_squares, NULL, whole, 1), "gradcheck: x must be a tensor of floating numbers, not i32");
    REFUSED(flux_gradcheck(of_nothing, NULL, x, 1), "gradcheck: the function gave NULL");
    CHECK(flux_gradcheck(of_squares, NULL, x, 0) < 1e-2);
    REFUSED(flux_patience(NULL, true, 1), "patience: argument stopper is NULL");
    REFUSED(flux_early_stopping(NULL, 1, 1, 0), "early_stopping: argument stopper is NULL");
    REFUSED(flux_plateau(NULL, 1, 1, 0), "plateau: argument stopper is NULL");
}

TEST(averages) {
    begin();
    flux_layer *m = flux_averaged(model), *small = flux_chain(flux_dense(4, 3)), *shapes = flux_chain(flux_dense(4, 3), flux_batchnorm(3), flux_dense(3, 3)),
               *kinds = flux_chain(flux_dense(4, 3), flux_dense(3, 3), flux_dense(3, 2)), *loose = flux_chain(flux_dense(3, 3), flux_dense(3, 3)), *tied = flux_copy_layer(loose),
               *longer = flux_chain(flux_dense(4, 3), flux_batchnorm(3), flux_dense(3, 2), flux_dense(2, 2));
    flux_set_param(tied, "layers.1.weight", flux_param(tied, "layers.0.weight"));
    REFUSED(flux_averaged(NULL), "averaged: argument model is NULL");
    REFUSED(flux_averaged(model, .decay = 0.5, .equal = true), "averaged: .decay and .equal are two kinds of average");
    REFUSED(flux_averaged(model, .decay = 1), "averaged: .decay is 1, but must be from 0 to below 1");
    REFUSED(flux_averaged(model, .decay = -0.1), "averaged: .decay is -0.1");
    REFUSED(flux_averaged(model, .decay = NAN), "averaged: .decay is ");
    TAKES(flux_averaged(model, .decay = 0) && flux_averaged(model, .equal = true));
    REFUSED(flux_update_average(model, model), "update_average: Chain is no averaged model; flux_averaged makes one");
    REFUSED(flux_update_average(m, small), "update_average: the one model has more tensors than the other: ");
    REFUSED(flux_update_average(m, shapes), "update_average: layers.2.weight is 2x3 f32 in the one model and 3x3 f32 in the other");
    REFUSED(flux_update_average(m, kinds), "update_average: the one model has ");
    REFUSED(flux_update_average(m, longer), "update_average: the one model has layers.3.weight, where the other has another field or none");
    REFUSED(flux_loadmodel(NULL, model), "loadmodel: argument dst is NULL");
    REFUSED(flux_loadmodel(model, NULL), "loadmodel: argument src is NULL");
    REFUSED(flux_loadmodel(model, small), "loadmodel: the one model has more tensors than the other: 8 and 2");
    REFUSED(flux_loadmodel(model, shapes), "loadmodel: layers.2.weight is 2x3 f32 in the one model and 3x3 f32 in the other");
    REFUSED(flux_loadmodel(tied, loose), "loadmodel: tensors are tied in the one model and not in the other");
    CHECK(flux_loadmodel(loose, tied) == 0 && flux_loadmodel(tied, tied) == 0 && flux_loadmodel(model, flux_copy_layer(model)) == 0 && !flux_failed());
    CHECK(flux_item(flux_sum(flux_abs(flux_sub(flux_param(loose, "layers.1.weight"), flux_param(tied, "layers.0.weight"))))) == 0);
    /* the first update takes all of the model, another in equal shares */
    flux_layer *equal = flux_averaged(loose, .equal = true);
    flux_tensor *w = flux_param(loose, "layers.0.weight");
    for (int i = 0; i < 4; i++) {
        flux_set_param(loose, "layers.0.weight", flux_eval(flux_full_with(flux_shape_of(w), i, FLUX_F32)));
        TAKES(flux_update_average(equal, loose) == 0);
        CHECK_NEAR(flux_item(flux_mean(flux_param(equal, "model.layers.0.weight"))), i / 2.0, 1e-6);
    }
}

TEST(training) {
    begin();
    flux_loader *data = flux_dataloader(flux_eval(flux_rand(4, 6)), flux_ones(2, 6), .batchsize = 3);
    flux_layer *acc = flux_metric(flux_mse), *other = flux_metric(flux_mae);
    REFUSED(flux_train(NULL, model, data, state), "train: argument loss is NULL");
    REFUSED(flux_train(sum_loss, NULL, data, state), "train: argument model is NULL");
    REFUSED(flux_train(sum_loss, model, NULL, state), "train: argument data is NULL");
    REFUSED(flux_train(sum_loss, model, data, NULL), "train: argument state is NULL");
    REFUSED(flux_train(sum_loss, model, data, state, .epochs = 0), "train: .epochs is 0");
    REFUSED(flux_train(sum_loss, model, data, state, .early_stop = 0), "train: .early_stop is 0 epochs");
    REFUSED(flux_train(sum_loss, model, data, state, .min_dist = -1), "train: .min_dist is -1");
    REFUSED(flux_train(sum_loss, model, data, state, .min_dist = NAN), "train: .min_dist is ");
    REFUSED(flux_train(sum_loss, model, data, state, .metrics = { acc }), "train: .metrics are of .validation, which is not given");
    REFUSED(flux_train(sum_loss, model, data, state, .validation = data, .metrics = { model }), "train: Chain is no metric");
    REFUSED(flux_train(sum_loss, model, data, state, .validation = data, .metrics = { acc }, .monitor = other), "train: .monitor is none of .metrics");
    REFUSED(flux_train(sum_loss, model, data, state, .monitor = other), "train: .monitor is none of .metrics");
    REFUSED(flux_train(sum_loss, model, data, state, .resume = true), "train: .resume goes on from .checkpoint");
    REFUSED(flux_train(sum_loss, model, data, state, .averaged = model), "train: .averaged is a Chain, no averaged model; flux_averaged makes one");
}

static flux_tensor *nested(flux_tensor *y) { return flux_tuple(flux_tuple(y, y), y); }
static flux_tensor *drawn(flux_tensor *y) { return flux_add(y, flux_rand(4, 1)); }

/* ---------------- data/ */

static int64_t six(void *user) { return user ? *(int64_t *)user : 6; }
static int no_get(void *user, int64_t i, int n, flux_tensor **out) { return (void)user, (void)n, out[0] = flux_full(1, 2), i == 1 ? 7 : 0; }
static int no_array(void *user, int64_t i, int n, flux_tensor **out) { return (void)user, (void)n, out[0] = i ? NULL : flux_full(1, 2), 0; }
static int uneven(void *user, int64_t i, int n, flux_tensor **out) { return (void)user, (void)n, out[0] = flux_full(1, i + 1), 0; }
static int unlike(void *user, int64_t i, int n, flux_tensor **out) {
    return (void)user, (void)n, out[0] = flux_full_with(FLUX_SHAPE(2), 1, i ? FLUX_I32 : FLUX_F32), 0;
}
static int deep(void *user, int64_t i, int n, flux_tensor **out) { return (void)user, (void)n, (void)i, out[0] = flux_full_with(dims(8), 1, FLUX_F32), 0; }
static flux_batch no_batch(flux_batch b, void *user) { return (void)user, b.x = NULL, b; }
static flux_batch few_items(flux_batch b, void *user) { return (void)user, b.count = 0, b; }

TEST(loaders) {
    begin();
    int64_t count = -1;
    flux_dataset set = { 0 };
    set.length = six, set.get = no_get, set.arrays = 1;
    flux_tensor *w4 = flux_ones(4);
    REFUSED(flux_dataloader(nil), "dataloader: ");
    REFUSED(flux_dataloader(x, nil, v), "dataloader: array 1 is NULL");
    REFUSED(flux_dataloader(one), "dataloader: array 0 has no dimension of observations");
    REFUSED(flux_dataloader(x, one), "dataloader: array 1 has no dimension of observations");
    REFUSED(flux_dataloader(x, cube), "dataloader: array 0 has 3 observations, array 1 has 4");
    REFUSED(flux_dataloader(x, .data = &set), "dataloader: both arrays and .data are given");
    REFUSED(flux_dataloader(x, .batchsize = 0), "dataloader: .batchsize is 0");
    REFUSED(flux_dataloader(x, .ranks = 0), "dataloader: rank 0 of 0 does not exist");
    REFUSED(flux_dataloader(x, .ranks = 2, .rank = -1), "dataloader: rank -1 of 2 does not exist");
    REFUSED(flux_dataloader(x, .ranks = 2, .rank = 2), "dataloader: rank 2 of 2 does not exist");
    REFUSED(flux_dataloader(x, .ranks = 4), "dataloader: 3 observations can't be shared by 4 ranks");
    REFUSED(flux_dataloader(x, .even = (flux_even)-1), "dataloader: .even is -1, which is no FLUX_EVEN_...");
    REFUSED(flux_dataloader(x, .even = (flux_even)(FLUX_EVEN_REPEAT + 1)), "which is no FLUX_EVEN_...");
    REFUSED(flux_dataloader(x, .workers = -1), "dataloader: -1 workers; 0 to 256 are possible");
    REFUSED(flux_dataloader(x, .workers = 257), "dataloader: 257 workers; 0 to 256 are possible");
    TAKES(flux_dataloader(x, .ranks = 3, .rank = 2) && flux_dataloader(x, .workers = 256));
    REFUSED(flux_dataloader(flux_ones(256), .batchsize = 256, .collate = FLUX_COLLATE_NONE), "a batch that is not collated has 255 observations at most, not 256");
    TAKES(flux_dataloader(flux_ones(256), .batchsize = 255, .collate = FLUX_COLLATE_NONE) != NULL);
    REFUSED(flux_dataloader(cube, .weights = pair), "dataloader: .weights is a tuple, not a vector of one number for each of the 4 observations");
    REFUSED(flux_dataloader(cube, .weights = flux_ones(4, 1)), "dataloader: .weights is 4x1 f32, not a vector");
    REFUSED(flux_dataloader(cube, .weights = v), "dataloader: .weights is 3-element f32, not a vector");
    REFUSED(flux_dataloader(cube, .weights = flux_values(1, -1, 1, 1)), "dataloader: the weight of observation 1 is -1");
    REFUSED(flux_dataloader(cube, .weights = flux_values(1, 1, HUGE_VAL, 1)), "dataloader: the weight of observation 2 is inf");
    REFUSED(flux_dataloader(cube, .weights = flux_values(1, 1, 1, NAN)), "dataloader: the weight of observation 3 is ");
    REFUSED(flux_dataloader(cube, .weights = flux_zeros(4)), "dataloader: the sum of .weights is 0");
    REFUSED(flux_dataloader(cube, .weights = flux_full_with(FLUX_SHAPE(4), 1e308, FLUX_F64)), "dataloader: the sum of .weights is inf");
    TAKES(flux_dataloader(cube, .weights = w4) != NULL);
    set.get = NULL;
    REFUSED(flux_dataloader(.data = &set), "dataloader: the data set has no get function");
    set.get = no_get, set.length = NULL;
    REFUSED(flux_dataloader(.data = &set), "dataloader: the data set has no length function");
    set.length = six, set.arrays = 0;
    REFUSED(flux_dataloader(.data = &set), "dataloader: the data set's .arrays is 0");
    set.arrays = 1, set.user = &count;
    REFUSED(flux_dataloader(.data = &set), "dataloader: the data set's length is -1");
    count = 6;
    REFUSED(flux_first(flux_dataloader(.data = &set, .batchsize = 2)).x, "dataloader: the data set's get gave 7 for observation 1");
    set.get = no_array;
    REFUSED(flux_first(flux_dataloader(.data = &set, .batchsize = 2)).x, "of observation 1");
    set.get = uneven;
    REFUSED(flux_first(flux_dataloader(.data = &set, .batchsize = 2)).x, "dataloader: array 0 of observation 1 of a batch ");
    set.get = unlike;
    REFUSED(flux_first(flux_dataloader(.data = &set, .batchsize = 2)).x, "dataloader: array 0 of observation 1 of a batch ");
    set.get = deep;
    REFUSED(flux_first(flux_dataloader(.data = &set, .batchsize = 2)).x, "dataloader: ");
    REFUSED(flux_first(flux_dataloader(x, .transform = no_batch)).x, "dataloader: the transform gave no array for batch 0");
    REFUSED(flux_first(flux_dataloader(x, .transform = few_items)).x, "dataloader: the transform gave no array for batch 0");
    REFUSED(flux_first(NULL).x, "first: argument l is NULL");
    REFUSED(flux_first(flux_dataloader(flux_zeros(3, 0))).x, "first: the loader has no batches");
    REFUSED(flux_mapobs(NULL, loader), "mapobs: argument ");
    REFUSED(flux_mapobs(flux_relu, NULL), "mapobs: argument ");
    REFUSED(flux_onehot(nil, 3), "onehot: argument labels is NULL");
    REFUSED(flux_onehot(v, 3), "onehot: labels are f32, not integers");
    REFUSED(flux_onehot(truth, 3), "onehot: labels are bool, not integers");
    REFUSED(flux_onehot(at, 0), "onehot: 0 classes; 1 to 16777216 are possible");
    REFUSED(flux_onehot(at, (1 << 24) + 1), "onehot: 16777217 classes; 1 to 16777216 are possible");
    TAKES(flux_onehot(at, 1 << 24) != NULL);
    REFUSED(flux_onehot(index_of(8), 3), "onehot: labels have 8 dimensions already");
    GIVES(flux_onehot(index_of(7), 3));
    REFUSED(flux_onehot(at, 1), "onehot: label 1 at (0) is not one of 0 to 0");
    REFUSED(flux_onehot(flux_full_with(FLUX_SHAPE(2), -1, FLUX_I32), 3), "onehot: label -1 at (0) is not one of 0 to 2");
    GIVES(flux_onehot(flux_to_dtype(flux_values(0, 2), FLUX_U8), 3));
    GIVES(flux_onehot(flux_to_dtype(flux_values(0, 2), FLUX_I64), 3));
    REFUSED(flux_onecold(one), "onecold: y has no dimension of classes");
    REFUSED(flux_onecold(none), "onecold: y has no classes");
    REFUSED(flux_onecold(pair), "onecold: y is a tuple; take one tensor with flux_nth");
    GIVES(flux_onecold(flux_ones(1, 3)));
}

TEST(subsets) {
    begin();
    flux_tensor *a = NULL, *b = NULL, *labels = flux_to_dtype(flux_values(0, 1, 1), FLUX_I32);
    REFUSED(flux_splitobs(0.5, NULL, &a, &b), "splitobs: argument x is NULL");
    REFUSED(flux_splitobs(0.5, one, &a, &b), "splitobs: x has no dimension of observations");
    REFUSED(flux_splitobs(0.5, flux_tuple(x, one), &a, &b), "splitobs: an array of the tuple has no dimension of observations");
    REFUSED(flux_splitobs(0.5, flux_tuple(x, pair), &a, &b), "splitobs: an array of the tuple has no dimension");
    REFUSED(flux_splitobs(0.5, flux_tuple(x, cube), &a, &b), "splitobs: array 0 has 3 observations, array 1 has 4");
    REFUSED(flux_splitobs(-0.1, x, &a, &b), "splitobs: the part -0.1 is not between 0 and 1");
    REFUSED(flux_splitobs(1.1, x, &a, &b), "splitobs: the part 1.1 is not between 0 and 1");
    REFUSED(flux_splitobs(NAN, x, &a, &b), "splitobs: the part ");
    CHECK(a == NULL && b == NULL);
    TAKES(flux_splitobs(0, x, &a, NULL) == 0 && flux_dim(a, 1) == 0 && flux_splitobs(1, pair, NULL, &b) == 0 && flux_dim(flux_nth(b, 0), 1) == 0);
    a = b = NULL;
    REFUSED(flux_kfolds(2, 0, x, NULL, &b), "kfolds: argument learn is NULL");
    REFUSED(flux_kfolds(2, 0, x, &a, NULL), "kfolds: argument held is NULL");
    REFUSED(flux_kfolds(1, 0, x, &a, &b), "kfolds: 1 folds of 3 observations");
    REFUSED(flux_kfolds(4, 0, x, &a, &b), "kfolds: 4 folds of 3 observations");
    REFUSED(flux_kfolds(3, -1, x, &a, &b), "kfolds: there is no fold -1 among 3");
    REFUSED(flux_kfolds(3, 3, x, &a, &b), "kfolds: there is no fold 3 among 3");
    CHECK(a == NULL && b == NULL);
    TAKES(flux_kfolds(3, 2, x, &a, &b) == 0 && flux_dim(a, 1) == 2 && flux_dim(b, 1) == 1);
    REFUSED(flux_shuffleobs(one, 1), "shuffleobs: x has no dimension of observations");
    REFUSED(flux_oversample(x, NULL, 1), "oversample: argument labels is NULL");
    REFUSED(flux_oversample(x, pair, 1), "oversample: labels are a vector of integers, or one-hot, classes x observations; these are a tuple");
    REFUSED(flux_oversample(x, index_of(3), 1), "oversample: labels are a vector of integers, or one-hot, classes x observations; these are 1x1x1 i32");
    REFUSED(flux_undersample(x, v, 1), "undersample: labels are a vector of integers, or one-hot, classes x observations; these are 3-element f32");
    REFUSED(flux_undersample(x, flux_gt(v, 0), 1), "these are 3-element bool");
    REFUSED(flux_oversample(x, at, 1), "oversample: 2 labels for 3 observations");
    REFUSED(flux_balanced_weights(v), "balanced_weights: labels are a vector of integers");
    CHECK(flux_dim(flux_oversample(x, labels, 1), 1) == 4 && flux_dim(flux_undersample(x, labels, 1), 1) == 2);
}

/* ---------------- files/, device/, text/ */

/* What a test wrote, gone again. */
static const char *file_of(const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/flux_refusals_%s", test_temp(), name);
    return path;
}

TEST(saving) {
    begin();
    const void *const things[] = { model, x, state };
    const char *const names[] = { "x", "y" };
    char text[64];
    flux_tensor *bf = flux_to_dtype(x, FLUX_BF16);
    REFUSED(flux_save_npy(NULL, "x.npy"), "save_npy: argument ");
    REFUSED(flux_save_npy(pair, "x.npy"), "save_npy: x is a tuple of 2 tensors");
    REFUSED(flux_save_npy(x, NULL), "save_npy: ");
    REFUSED(flux_save_npy(x, ""), "save_npy: the path is empty");
    REFUSED(flux_save_npy(bf, "x.npy"), "save_npy: NumPy has no bf16; convert first");
    REFUSED(flux_load_npy(NULL), "load_npy: argument path is NULL");
    REFUSED(flux_save_npz_with(NULL, 1, "x", &things[1]), "save_npz: argument path is NULL");
    REFUSED(flux_save_npz_with("x.npz", 0, "x", &things[1]), "save_npz: 0 things were given");
    REFUSED(flux_save_npz_with("x.npz", 1, NULL, &things[1]), "save_npz: argument names is NULL");
    REFUSED(flux_save_npz_with("x.npz", 1, "x", NULL), "save_npz: argument items is NULL");
    REFUSED(flux_save_npz_with("x.npz", 1, "model", things), "save_npz: model is no tensor");
    REFUSED(flux_save_npz_with("x.npz", 2, "x", things), "save_npz: \"x\" does not name 2 things");
    REFUSED(flux_save_npz_with("x.npz", 1, "x, y", &things[1]), "save_npz: \"x, y\" does not name 1 things");
    REFUSED(flux_save_npz_with("x.npz", 1, "", &things[1]), "save_npz: \"\" does not name 1 things");
    REFUSED(flux_save_npz("x.npz", nil), "save_npz: argument nil is NULL");
    REFUSED(flux_save_npz("x.npz", bf), "save_npz: NumPy has no bf16; convert first: flux_to_dtype(bf, FLUX_F32)");
    REFUSED(flux_save_npz("x.npz", x, x), "save_npz: two arrays have the name x");
    REFUSED(flux_npz_names("x.npz", NULL, 3), "npz_names: argument out is NULL");
    char *lengthy = (char *)malloc(60002);
    memset(lengthy, 'x', 60001), lengthy[60001] = 0;
    REFUSED(flux_save_npz_with("x.npz", 1, lengthy, &things[1]), "save_npz: a name of 60001 bytes");
    lengthy[60000] = 0;
    TAKES(flux_save_npz_with(file_of("long.npz"), 1, lengthy, &things[1]) == 0 && flux_load_npz(file_of("long.npz"), lengthy) != NULL);
    remove(file_of("long.npz"));
    free(lengthy);
    REFUSED(flux_load_npz(NULL, "x"), "load_npz: ");
    REFUSED(flux_save_all_with("x.flux", 2, "x, x", (const void *const[]){ x, v }), "save_all: two tensors have the name x");
    REFUSED(flux_save_all_with("x.flux", 2, "model, state", (const void *const[]){ model, names }), "save_all: state is no tensor, layer, loader or optimiser state");
    REFUSED(flux_load_all_with("x.flux", 1, "x", &things[1]), "load_all: ");
    REFUSED(flux_load_layer(model, NULL), "load: ");
    REFUSED(flux_load_layer(NULL, "x.flux"), "load: argument ");
    REFUSED(flux_save_layer(NULL, "x.flux"), "save: argument ");
    REFUSED(flux_save_layer(model, NULL), "save: argument path is NULL");
    REFUSED(flux_load_torch(model, "x.pt", "layers.0"), "load_torch: \"layers.0\" in the map is not of the form ours = theirs");
    REFUSED(flux_load_torch(model, "x.pt", "layers.0, b = c"), "load_torch: \"layers.0, b = c\" in the map is not of the form ours = theirs");
    REFUSED(flux_save_torch(model, NULL, NULL), "save_torch: ");
    REFUSED(flux_save_image(v, "x.pgm"), "save_image: x is 3-element f32; a picture is width x height");
    REFUSED(flux_save_image(image, "x.pgm"), "save_image: x is 8x8x3x2 f32");
    REFUSED(flux_save_image(flux_ones(2, 2, 0), "x.pgm"), "save_image: x is 2x2x0 f32");
    REFUSED(flux_save_image(flux_ones(2, 2, 5), "x.pgm"), "save_image: x is 2x2x5 f32");
    REFUSED(flux_save_image(none, "x.pgm"), "save_image: x is 0x3 f32");
    REFUSED(flux_save_image(x, NULL), "save_image: argument path is NULL");
    REFUSED(flux_save_images(x, "x.pgm", 1), "save_images: x is 4x3 f32; pictures are width x height x n");
    REFUSED(flux_save_images(flux_ones(2, 2, 1, 1, 1), "x.pgm", 1), "save_images: x is 2x2x1x1x1 f32");
    REFUSED(flux_save_images(flux_ones(2, 2, 0, 1), "x.pgm", 1), "save_images: x is 2x2x0x1 f32");
    REFUSED(flux_save_images(flux_ones(2, 2, 5, 1), "x.pgm", 1), "save_images: x is 2x2x5x1 f32");
    REFUSED(flux_save_images(flux_ones(2, 2, 0), "x.pgm", 1), "save_images: x is 2x2x0 f32");
    REFUSED(flux_save_images(one, "x.pgm", 1), "save_images: x is scalar f32");
    REFUSED(flux_save_images(cube, "x.pgm", -1), "save_images: -1 columns");
    REFUSED(flux_save_images(cube, NULL, 1), "save_images: argument path is NULL");
    REFUSED(flux_save_image(x, "x.txt"), "save_image: x.txt: the name should end with .pgm (grey) or .ppm");
    REFUSED(flux_load_image("x.pgm", .width = 0), "load_image: .width is 0; 1 to 65536 are possible");
    REFUSED(flux_load_image("x.pgm", .height = 65537), "load_image: .height is 65537; 1 to 65536 are possible");
    REFUSED(flux_load_image("x.pgm", .channels = 5), "load_image: .channels is 5; 1 to 4 are possible");
    TAKES(flux_save_image(x, file_of("x.pgm")) == 0 && flux_dim(flux_load_image(file_of("x.pgm"), .width = 1, .height = 1, .channels = 4), 2) == 4);
    remove(file_of("x.pgm"));
    FILE *f = fopen(file_of("t.csv"), "w");
    REQUIRE(f != NULL);
    fprintf(f, "a,b\n1,red\n2,blue\n");
    fclose(f);
    flux_table *t = flux_load_table(file_of("t.csv"));
    REQUIRE(t != NULL);
    remove(file_of("t.csv"));
    REFUSED(flux_column_name(t, -1), "column_name: column -1 of a table of 2 columns");
    REFUSED(flux_column_name(t, 2), "column_name: column 2 of a table of 2 columns");
    REFUSED(flux_column_name(NULL, 0), "column_name: argument t is NULL");
    REFUSED(flux_columns(t, "a, c"), "columns: the table has no column \"c\"; it has 2: a, b");
    REFUSED(flux_column_label(t, "b", -1), "column_label: b has no label -1; it has 2");
    REFUSED(flux_column_label(t, "b", 2), "column_label: b has no label 2; it has 2");
    REFUSED(flux_column_label(t, "a", 0), "column_label: a has no label 0; it has 0");
    CHECK_STR(flux_column_name(t, 1), "b");
    CHECK_STR(flux_column_label(t, "b", 0), "blue");
    CHECK_STR(flux_column_label(t, "b", 1), "red");
    REFUSED(flux_npz_names("there/is/no/such.npz", text, sizeof text), "npz_names: cannot open ");
}

TEST(sharing) {
    begin();
    const flux_device cpu = { 0, 0 }, nowhere = { 99, 0 };
    double numbers[4] = { 0 };
    static flux__dl_managed m;                 /* given back at the end of the scope */
    int64_t size[9] = { 2, 2, 1, 1, 1, 1, 1, 1, 1 }, step[9] = { 2, 1 };
    REFUSED(flux_pointer(pair), "pointer: an operand is a tuple");
    REFUSED(flux_pointer(flux_transpose(x)), "pointer: the elements of 3x4 f32, a view, do not follow each other");
    REFUSED(flux_borrow_on(nowhere, numbers, FLUX_F64, dims(1), NULL, NULL), "borrow_on: device {99, 0} can't be used here");
    REFUSED(flux_borrow_on(cpu, NULL, FLUX_F64, dims(1), NULL, NULL), "borrow_on: argument ptr is NULL");
    REFUSED(flux_borrow_on(cpu, (const char *)numbers + 4, FLUX_F64, dims(1), NULL, NULL), "borrow_on: the address of the elements, f64, is no multiple of their 8 bytes");
    REFUSED(flux_borrow_on(cpu, numbers, FLUX_F64, dims(9), NULL, NULL), "borrow_on: 9 dimensions");
    GIVES(flux_borrow_on(cpu, NULL, FLUX_F64, FLUX_SHAPE(0), NULL, NULL));
    REFUSED(flux_stream(nowhere), "stream: device {99, 0} can't be used here");
    REFUSED(flux_use_stream(nowhere, NULL), "use_stream: device {99, 0} can't be used here");
    REFUSED(flux_to_dlpack(NULL), "to_dlpack: argument ");
    REFUSED(flux_from_dlpack(NULL), "from_dlpack: argument t is NULL");
    REFUSED(flux_from_dlpack_versioned(NULL), "from_dlpack: argument t is NULL");
#define GIVEN(change) (memset(&m, 0, sizeof m), m.tensor.data = numbers, m.tensor.device_type = 1, m.tensor.ndim = 2, m.tensor.code = 2, \
                       m.tensor.bits = 64, m.tensor.lanes = 1, m.tensor.shape = size, m.tensor.strides = step, (change),                  \
                       flux_from_dlpack((struct DLManagedTensor *)&m))
    REFUSED(GIVEN(m.tensor.ndim = -1), "from_dlpack: it has -1 dimensions, a tensor has 0 to 8");
    REFUSED(GIVEN(m.tensor.ndim = 9), "from_dlpack: it has 9 dimensions, a tensor has 0 to 8");
    REFUSED(GIVEN(m.tensor.shape = NULL), "from_dlpack: it has 2 dimensions");
    REFUSED(GIVEN(m.tensor.device_type = 77), "from_dlpack: memory of DLPack's kind 77 can't be used here");
    REFUSED(GIVEN(m.tensor.code = 9), "from_dlpack: there is no dtype of DLPack's code 9, 64 bits, 1 lanes");
    REFUSED(GIVEN(m.tensor.bits = 24), "from_dlpack: there is no dtype of DLPack's code 2, 24 bits, 1 lanes");
    REFUSED(GIVEN(m.tensor.lanes = 2), "from_dlpack: there is no dtype of DLPack's code 2, 64 bits, 2 lanes");
    REFUSED(GIVEN(step[0] = (INT64_C(1) << 48) + 1), "from_dlpack: a stride of 281474976710657 elements is too long");
    REFUSED(GIVEN(step[0] = -(INT64_C(1) << 48) - 1), "from_dlpack: a stride of -281474976710657 elements is too long");
    REFUSED(GIVEN((step[0] = INT64_C(1) << 48, size[0] = 2)), "from_dlpack: a stride of 281474976710656 elements is too long");
    step[0] = 2;
    REFUSED(GIVEN(m.tensor.data = NULL), "from_dlpack: argument ptr is NULL");
    REFUSED(GIVEN(m.tensor.byte_offset = 4), "from_dlpack: the address of the elements, f64, is no multiple");
    REFUSED(GIVEN(size[0] = -1), "from_dlpack: dimension 1 is -1");
    size[0] = 2;
    flux_tensor *back = GIVEN(m.tensor.ndim = 2);
    CHECK(back && flux_len(back) == 4 && !flux_failed());
    REFUSED((flux_mem_limit(cpu, -1), NULL), "mem_limit: -1 bytes is not a limit (0 means none)");
    REFUSED((flux_mem_stats(nowhere), NULL), "mem_stats: device {99, 0} does not exist");
    REFUSED((flux_threads(-1), NULL), "threads: -1 threads are not possible");
    REFUSED(flux_functional_with("CPU", "cudnn"), "functional_with: CPU has no component \"cudnn\"");
    REFUSED(flux_functional("GPU"), "functional: unknown back end \"GPU\"");
    const flux_device no_device = { 0, FLUX__MAX_IDS };
    REFUSED((flux_mem_stats(no_device), NULL), "mem_stats: device {0, 16} does not exist");
    REFUSED((flux_synchronise_device(nowhere), NULL), "synchronise_device: device {99, 0} can't be used here");
}

TEST(texts) {
    begin();
    REFUSED(flux_prewarm_with(NULL, dims(2)), "prewarm: argument model is NULL");
    REFUSED(flux_prewarm_with(model, dims(9)), "prewarm: 9 dimensions");
    REFUSED(flux_expr(NULL, x), "expr: argument ");
    REFUSED(flux_expr("x +", x), "expr: column 4: ");
    REFUSED(flux_expr_with("x", 1, NULL, (flux_tensor *[]){ x }), "expr: argument names is NULL");
    REFUSED(flux_expr_with("x", 2, "x", (flux_tensor *[]){ x, v }), "expr: variable 1 of 2 in \"x\" is not a plain name");
    REFUSED(flux_expr_with("x", 1, "x, y", (flux_tensor *[]){ x }), "expr: variable 1 of 1 in \"x, y\" is not a plain name");
    REFUSED(flux_expr_with("x", 1, "x + 1", (flux_tensor *[]){ x }), "expr: variable 1 of 1 in \"x + 1\" is not a plain name");
    char text[4000];
    REFUSED((flux_summary_text)(model, FLUX_SHAPE(5, 2), text, sizeof text) == 0 ? NULL : x, "Dense(4 => 3, tanh) expects dim 0 of size 4, got 5x2 f32");
    TAKES(flux_summary_text(model, FLUX_SHAPE(4, 2), text, sizeof text) > 0 && strstr(text, "total"));
    REFUSED((flux_profile(NULL, NULL), NULL), "profile: the function is NULL");
    REFUSED((flux_progress("loss", v), NULL), "progress: loss has 3 elements, not one");
    REFUSED((flux_progress(NULL, v), NULL), "progress: the value has 3 elements, not one");
    REFUSED(flux_graph_dot(NULL, "x.dot"), "graph_dot: argument ");
    REFUSED(flux_graph_dot(x, "no/such/folder/x.dot"), "graph_dot: cannot open no/such/folder/x.dot: ");
    REFUSED(flux_export_c(model, FLUX_SHAPE(4, 1), "x.c", .name = "a b"), "export_c: .name is no identifier of C: \"a b\"");
    REFUSED(flux_export_c(model, FLUX_SHAPE(4, 1), "x.c", .name = "1a"), "export_c: .name is no identifier of C: \"1a\"");
    REFUSED(flux_export_c(model, FLUX_SHAPE(4, 1), ".c"), "export_c: the path \".c\" gives no name; .name can");
    flux_layer *deep_pair = flux_chain(flux_function(nested, "nested")), *random = flux_chain(flux_function(drawn, "drawn"));
    REFUSED(flux_export_c(deep_pair, FLUX_SHAPE(4, 1), "x.c"), "export_c: the model gives a tuple within a tuple");
    REFUSED(flux_export_c(random, FLUX_SHAPE(4, 1), "x.c"), "export_c: the model draws random numbers, also in test mode");
}

/* A checkpoint in which one number, or one tensor, cannot be this training's. */
static void resumed_from(flux_tensor *course, flux_tensor *began, flux_tensor *random, flux_tensor *history, flux_loader *data, const char *sentence) {
    const char *file = file_of("run");
    CHECK(flux_save_all(file, model, state, data, course, began, random, history) == 0);
    REFUSED(flux_train(sum_loss, model, data, state, .epochs = 2, .checkpoint = file, .resume = true), sentence);
}
TEST(checkpoints) {
    begin();
    flux_loader *data = flux_dataloader(flux_eval(flux_rand(4, 6)), flux_ones(2, 6), .batchsize = 3);
    const char *file = file_of("run");
    REQUIRE(flux_train(sum_loss, model, data, state, .checkpoint = file) == 0);
    flux_tensor *course = flux_load_tensor(file, "course"), *began = flux_load_tensor(file, "began"), *random = flux_load_tensor(file, "random"),
                *history = flux_load_tensor(file, "history"), *three = flux_full_with(FLUX_SHAPE(3), 0, FLUX_I64);
    REQUIRE(course && began && random && history);
    double number[8];
    flux_read(course, number, sizeof number);
    CHECK(number[0] == 1 && number[1] == -1 && flux_len(history) == 2);
    static const struct { int at; double value; } wrong[] = { { 0, -1 }, { 0, 0.5 }, { 0, 1e9 }, { 0, NAN }, { 1, -2 }, { 1, 3 }, { 1, 0.5 }, { 1, NAN },
                                                              { 6, -1 }, { 6, 0.5 }, { 6, 1e9 }, { 6, NAN } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        double changed[8];
        memcpy(changed, number, sizeof changed);
        changed[wrong[i].at] = wrong[i].value;
        resumed_from(flux_from(changed, 8), began, random, history, data, "is of another training: it stopped in epoch ");
    }
    resumed_from(flux_to_dtype(course, FLUX_F32), began, random, history, data, "train: course in ");
    resumed_from(flux_slice(course, 0, 0, 7), began, random, history, data, "train: course in ");
    resumed_from(course, three, random, history, data, "train: began in ");
    resumed_from(course, flux_to_dtype(began, FLUX_F64), random, history, data, "train: began in ");
    resumed_from(course, began, three, history, data, "train: random in ");
    resumed_from(course, began, random, flux_cat(1, history, history), data, "train: history in ");
    resumed_from(course, began, random, flux_to_dtype(history, FLUX_F32), data, "train: history in ");
    CHECK(flux_save_all(file, model, state, course, began, random, history) == 0);
    REFUSED(flux_train(sum_loss, model, data, state, .checkpoint = file, .resume = true), "data");
    CHECK(flux_save_all(file, model, state, data, course, began, random) == 0);
    REFUSED(flux_train(sum_loss, model, data, state, .checkpoint = file, .resume = true), "history");
    number[1] = 2, number[6] = 999999999;          /* the last that can be: the epoch's end */
    course = flux_from(number, 8);
    CHECK(flux_save_all(file, model, state, data, course, began, random, history) == 0);
    TAKES(flux_train(sum_loss, model, data, state, .epochs = 2, .checkpoint = file, .resume = true) == 0);
    remove(file);
}

/* ---------------- dist/, and what other rooms ask of ranks: a world of one, and one of two whose other rank agrees to all */

static int second_rank(const flux_comm *c) { return (void)c, 1; }
static int two_ranks(const flux_comm *c) { return (void)c, 2; }
static bool same_everywhere(flux_comm *c, int n, uint8_t *v) { return (void)c, (void)n, (void)v, true; }
static bool nobody_agrees(flux_comm *c, int n, uint8_t *v) { return (void)c, (void)n, (void)v, FLUX__REFUSE("agree: no rank came"); }
static bool failed_elsewhere(flux_comm *c, int n, uint8_t *v) { return (void)c, memset(v, 1, (size_t)n), true; }
static bool given_seed(flux_comm *c, uint64_t mine, uint64_t *seed) { return (void)c, (void)mine, *seed = 42, true; }
static bool no_seed(flux_comm *c, uint64_t mine, uint64_t *seed) { return (void)c, (void)mine, (void)seed, FLUX__REFUSE("seed: no rank came"); }
static double weighed;
static void weigh(flux_comm *c, double weight) { (void)c, weighed = weight; }

TEST(ranks) {
    begin();
    const flux_root_opts root0 = FLUX_OPTIONS(flux_root_opts, .root = 0), root1 = FLUX_OPTIONS(flux_root_opts, .root = 1), below = FLUX_OPTIONS(flux_root_opts, .root = -1);
    flux_comm *c = flux_distributed(), *ended = flux_distributed();
    const long kept = 2;                  /* a communicator is never freed */
    REQUIRE(c && ended && flux_distributed_end(ended) == 0);
    test_kept += kept;
    REFUSED(flux_distributed(.timeout = 0), "distributed: .timeout is 0 s");
    REFUSED(flux_distributed(.timeout = NAN), "distributed: .timeout is ");
    REFUSED(flux_distributed(.backend = "gloo"), "distributed: there is no backend \"gloo\"; there are MPI, NCCL and RCCL");
    REFUSED(flux_rank_of(ended), "rank_of: the communicator was ended");
    REFUSED(flux_distributed_end(ended), "distributed_end: the communicator was ended");
    REFUSED(flux_barrier(NULL), "barrier: argument comm is NULL");
    REFUSED(flux_barrier(ended), "barrier: the communicator was ended");
    REFUSED(flux_allreduce(NULL, x, FLUX_SUM), "allreduce: argument comm is NULL");
    REFUSED(flux_allreduce(ended, x, FLUX_SUM), "allreduce: the communicator was ended");
    REFUSED(flux_allreduce(c, nil, FLUX_SUM), "allreduce: argument x is NULL");
    REFUSED(flux_allreduce(c, x, FLUX_NONE), "allreduce: 2 is none of FLUX_SUM, FLUX_PROD, FLUX_MIN, FLUX_MAX, FLUX_MEAN");
    REFUSED(flux_allreduce(c, x, (flux_agg)(FLUX_MEAN - 1)), "is none of FLUX_SUM");
    REFUSED(flux_allreduce(c, x, (flux_agg)(FLUX_MAX + 1)), "is none of FLUX_SUM");
    REFUSED(flux_reduce(c, x, FLUX_SUM, .root = 1), "reduce: .root is 1; there are ranks 0 to 0");
    REFUSED(flux_broadcast(c, x, .root = -1), "broadcast: .root is -1; there are ranks 0 to 0");
    REFUSED(flux_reduce_scatter(c, one, FLUX_SUM), "reduce_scatter: the last dim of scalar f32 can't be cut into 1 parts");
    REFUSED(flux_reduce_scatter(c, flux_tuple(x, one), FLUX_SUM), "reduce_scatter: the last dim of scalar f32 can't be cut into 1 parts");
    REFUSED(flux_synchronize_tensor(c, nil, root0), "synchronize: argument x is NULL");
    REFUSED(flux_synchronize_tensor(c, x, root1), "synchronize: .root is 1; there are ranks 0 to 0");
    REFUSED(flux_synchronize_layer(c, NULL, root0), "synchronize: argument model is NULL");
    REFUSED(flux_synchronize_layer(c, model, below), "synchronize: .root is -1");
    REFUSED(flux_synchronize_state(c, NULL, root0), "synchronize: argument state is NULL");
    REFUSED(flux_synchronize_state(c, state, root1), "synchronize: .root is 1");
    REFUSED(flux_distributed_save_tensor(ended, x, "x.flux"), "distributed_save: the communicator was ended");
    REFUSED(flux_distributed_save_layer(NULL, model, "x.flux"), "distributed_save: argument comm is NULL");
    REFUSED(flux_distributed_save_state(ended, state, "x.flux"), "distributed_save: the communicator was ended");
    REFUSED(flux_distributed_save_state(c, NULL, "x.flux"), "save: argument ");
    REFUSED(flux_distributed_save_tensor(c, x, "no/such/folder/x.flux"), "no/such/folder/x.flux");
    const flux_rule adam = flux_adam(0.1), full = flux_optimiser_chain(adam, adam, adam, adam, adam, adam, adam, adam, adam, adam, adam, adam, adam, adam),
                    more = flux_optimiser_chain(full, adam), sharded = flux_distributed_optimiser(c, adam, .shard = true);
    REFUSED(MADE(flux_distributed_optimiser(NULL, adam)), "distributed_optimiser: argument comm is NULL");
    REFUSED(MADE(flux_distributed_optimiser(ended, adam)), "distributed_optimiser: the communicator was ended");
    REFUSED(MADE(flux_distributed_optimiser(c, adam, .bucket = 0)), "distributed_optimiser: .bucket is 0 bytes");
    REFUSED(MADE(flux_distributed_optimiser(c, more)), "distributed_optimiser: a chain has at most 14 rules");
    TAKES(flux_distributed_optimiser(c, full, .bucket = 1).made && sharded.made);
    /* alone, each collective is the tensor itself, by value */
    flux_tensor *const same[] = { flux_allreduce(c, x, FLUX_SUM), flux_allreduce(c, x, FLUX_MEAN), flux_reduce(c, x, FLUX_MAX, .root = 0), flux_broadcast(c, x, .root = 0),
                                  flux_allgather(c, x), flux_reduce_scatter(c, x, FLUX_PROD), flux_synchronize_tensor(c, x, root0), flux_nth(flux_allreduce(c, pair, FLUX_MIN), 0) };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) CHECK(same[i] && flux_item(flux_sum(flux_abs(flux_sub(same[i], x)))) == 0);
    CHECK(flux_len(flux_allgather(c, one)) == 1 && flux_ndim(flux_allgather(c, one)) == 1 && flux_synchronize_layer(c, model, root0) == model);
    CHECK(flux_synchronize_state(c, state, root0) == state && flux_barrier(c) == 0 && flux_rank_of(c) == 0 && flux_size_of(c) == 1 && flux_local_rank_of(c) == 0);
    CHECK_STR(flux_comm_name(c), "alone");
    TAKES(flux_distributed_save_layer(c, model, file_of("m")) == 0 && flux_distributed_save_state(c, state, file_of("s")) == 0 && flux_distributed_save_tensor(c, x, file_of("t")) == 0);
    TAKES(flux_load_layer(model, file_of("m")) == 0 && flux_load_state(state, file_of("s")) == 0 && flux_load_tensor(file_of("t"), "tensor") != NULL);
    remove(file_of("m")), remove(file_of("s")), remove(file_of("t"));
    /* of two ranks, the second, whose answers are these */
    const flux__rank_calls *was = flux__ranks;
    flux__rank_calls calls = { second_rank, two_ranks, same_everywhere, given_seed, weigh, was->distribute, was->join, was->gather, was->whole };
    flux_tensor *five = flux_eval(flux_arange(0, 5, 1));
    flux__ranks = &calls;
    REFUSED(flux_dataloader(five, .comm = c, .rank = 1), "dataloader: .comm says which rank this is: .rank and .ranks can't");
    REFUSED(flux_dataloader(five, .comm = c, .ranks = 2), "dataloader: .comm says which rank this is");
    calls.seed = no_seed;
    REFUSED(flux_dataloader(five, .comm = c, .seed = 3), "seed: no rank came");
    calls.seed = given_seed;
    flux_loader *data = flux_dataloader(flux_eval(flux_rand(4, 8)), flux_ones(2, 8), .batchsize = 2, .comm = c), *shared = flux_dataloader(five, .comm = c, .shuffle = true),
                *plain = flux_dataloader(five, .shuffle = true, .seed = 42, .ranks = 2, .rank = 1);
    REQUIRE(data && shared && plain && flux_length(data) == 2);
    CHECK(flux_item(flux_first(shared).x) == flux_item(flux_first(plain).x));              /* by the seed of rank 0 */
    double weights[3] = { 9, 9, 9 };      /* of three batches it has two, and takes part in the third with one that counts nothing */
    flux_each (b, shared) weights[b.index % 3] = weighed;
    CHECK(weights[0] == 1 && weights[1] == 1 && weights[2] == 0 && weighed == 1);
    REFUSED(flux_train(sum_loss, model, data, state, .best = "x.flux"), "train: ranks agree on .best and .early_stop by .validation only");
    REFUSED(flux_train(sum_loss, model, data, state, .early_stop = 2), "train: ranks agree on .best and .early_stop by .validation only");
    REFUSED(flux_train(sum_loss, model, data, state, .validation = data), "train: each rank validates on all data: leave .comm out there");
    flux_loader *all = flux_dataloader(flux_eval(flux_rand(4, 5)), flux_ones(2, 5), .batchsize = 5);
    TAKES(flux_train(sum_loss, model, data, state, .validation = all, .early_stop = 2, .best = "no/such/folder/x.flux") == 0);    /* rank 0 writes */
    calls.agree = failed_elsewhere;
    CHECK_ERROR(flux_train(sum_loss, model, data, state, .validation = all, .best = "x.flux"), "distributed_save: rank 0 could not write the file");
    calls.agree = nobody_agrees;
    CHECK_ERROR(flux_train(sum_loss, model, data, state, .validation = all, .best = "x.flux"), "agree: no rank came");
    flux__ranks = was;
    CHECK(flux_distributed_end(c) == 0);
}

/* ---------------- memory that runs out in each call */

/* ---------------- what calls say that go on */

static char noted[700];
static int notes, noted_level;
static void hear(flux_level level, const char *id, const char *message, void *user) {
    (void)id, (void)user;
    notes++, noted_level = (int)level;
    snprintf(noted, sizeof noted, "%s", message);
}
/* A message of this level and text, once though the call comes twice; or none. */
static void said(const char *text, int level, int times, const char *file, int line, const char *call) {
    char what[1200];
    snprintf(what, sizeof what, "%.200s says %d messages, the last \"%.400s\", not %d, \"%.400s\"", call, notes, noted, times, text ? text : "");
    test_check(notes == times && (!text || (strcmp(noted, text) == 0 && noted_level == level)) && !flux_failed(), file, line, what);
    notes = 0, noted[0] = 0;
    flux_silence(NULL);
}
#define SAYS_ONCE(call, level, text) ((void)(call), (void)(call), said(text, level, 1, __FILE__, __LINE__, #call))
#define SAYS(call, level, text) ((void)(call), said(text, level, 1, __FILE__, __LINE__, #call))
#define SAYS_NOTHING(call) ((void)(call), said(NULL, 0, 0, __FILE__, __LINE__, #call))

typedef struct { flux_layer base; int none; } bare_layer;
static flux_tensor *bare_call(flux_layer *m, flux_tensor *y) { return (void)m, y; }
static const flux_field bare_fields[] = { { NULL, FLUX__END, 0, 0 } };
static const flux_layer_type bare_type = { "Bare", bare_call, sizeof(bare_layer), bare_fields, NULL, 0 };
static void errors_and_clear(int n) {
    flux_on_error(test_silent, NULL);
    for (int i = 0; i < n; i++) (void)flux_add(x, flux_ones(7));
    flux_clear();
    flux_on_error(NULL, NULL);
}
static int scaled_update(flux_state *s, flux_layer *m, double by) {
    return flux_update(s, m, flux_gradient(flux_scaled_loss(s, flux_mul(flux_sum(flux_square(flux_call(m, flux_to_dtype(x, FLUX_F16)))), by)), m));
}

TEST(messages) {
    begin();
    flux_on_log(hear, NULL);
    flux_log_level(FLUX_LOG_DEBUG);
    flux_silence(NULL);
    notes = 0;
    const flux_layer *half = flux_bf16(flux_dense(4, 2)), *dense = flux_dense(4, 2), *frozen = flux_dense(4, 2);
    flux_layer *const narrow = (flux_layer *)(uintptr_t)half, *const plain = (flux_layer *)(uintptr_t)dense, *const still = (flux_layer *)(uintptr_t)frozen;
    SAYS_ONCE(flux_call(narrow, x), FLUX_LOG_WARN, "Dense(4 => 2) turns its f32 input into bf16, which its weights are; this is said once");
    SAYS_ONCE(flux_call(plain, flux_to_dtype(x, FLUX_F64)), FLUX_LOG_WARN, "Dense(4 => 2) turns its f64 input into f32, which its weights are; this is said once");
    SAYS_NOTHING(flux_call(plain, x));
    SAYS_NOTHING(flux_call(plain, flux_to_dtype(x, FLUX_F16)));
    SAYS_NOTHING(flux_call(plain, whole));
    SAYS_ONCE(flux_init("truncated_normal", FLUX_SHAPE(5), .mean = 5.5, .std = 1, .lo = -2, .hi = 3), FLUX_LOG_WARN,
              "truncated_normal: the mean 5.5 is more than two std outside -2 to 3");
    SAYS_ONCE(flux_init("truncated_normal", FLUX_SHAPE(5), .mean = -4.5, .std = 1, .lo = -2, .hi = 3), FLUX_LOG_WARN,
              "truncated_normal: the mean -4.5 is more than two std outside -2 to 3");
    SAYS_NOTHING(flux_init("truncated_normal", FLUX_SHAPE(5), .mean = 5, .std = 1, .lo = -2, .hi = 3));
    SAYS_NOTHING(flux_init("truncated_normal", FLUX_SHAPE(5), .mean = -4, .std = 1, .lo = -2, .hi = 3));
    SAYS_ONCE(flux_dataloader(x, .batchsize = 4), FLUX_LOG_WARN, "dataloader: there are only 3 observations: batchsize 4 becomes 3");
    SAYS_ONCE(flux_dataloader(image, .batchsize = 2, .ranks = 2, .rank = 1), FLUX_LOG_WARN, "dataloader: there are only 1 observations: batchsize 2 becomes 1");
    SAYS_NOTHING(flux_dataloader(x, .batchsize = 3));
    SAYS_NOTHING(flux_dataloader(flux_zeros(2, 0), .batchsize = 4));
    SAYS(flux_setup(flux_adam(), flux_new_with(&bare_type, &(bare_layer){ .none = 0 })), FLUX_LOG_WARN, "setup: this Bare has no trainable parameters");
    SAYS_NOTHING(flux_setup(flux_adam(), plain));
    SAYS_NOTHING(errors_and_clear(1));
    SAYS(errors_and_clear(3), FLUX_LOG_DEBUG, "2 more calls failed for reasons that had been said");
    flux_state *other = flux_setup(flux_descent(), plain);
    SAYS_ONCE(flux_update(other, plain, flux_gradient(flux_sum(flux_square(flux_call(model, x))), plain)), FLUX_LOG_WARN, "update: the loss depends on no parameter of this Dense");
    flux_freeze(still);
    flux_state *asleep = flux_setup(flux_descent(), still);
    SAYS_NOTHING(flux_update(asleep, still, flux_gradient(flux_sum(flux_square(flux_call(model, x))), still)));
    flux_layer *small = flux_f16(flux_dense(4, 2));
    flux_state *scaled = flux_setup(flux_mixed_precision(flux_descent(0.001)), small);
    SAYS_NOTHING(scaled_update(scaled, small, 1e-4));
    SAYS(scaled_update(scaled, small, 100), FLUX_LOG_DEBUG, "update: a gradient is not finite at the loss scale 32768: no step");
    /* of a level that is not asked for nothing is said */
    flux_log_level(FLUX_LOG_WARN);
    SAYS_NOTHING(errors_and_clear(3));
    SAYS(flux_dataloader(x, .batchsize = 4), FLUX_LOG_WARN, "dataloader: there are only 3 observations: batchsize 4 becomes 3");
    flux_log_level(FLUX_LOG_ERROR);
    SAYS_NOTHING(flux_dataloader(x, .batchsize = 4));
    flux_log_level(FLUX_LOG_WARN);
    flux_silence("data.batchsize");
    notes = 0;
    (void)flux_dataloader(x, .batchsize = 4);
    CHECK(notes == 0);
    flux_on_log(NULL, NULL);
    flux_silence(NULL);
}

static void in_each_call(const char *name, flux_tensor *(*call)(void)) {
    const flux_device cpu = { 0, 0 };
    double want = NAN, got = NAN;
    flux_seed(11);
    FLUX_SCOPE want = flux_item(flux_sum(flux_to_dtype(flux_nth(call(), 0), FLUX_F64)));
    const flux__thread was = *flux__self();
    if (!test_check(want == want, __FILE__, __LINE__, name)) return;
    flux_on_error(test_silent, &test_sentences);
    for (long n = 0; n < 2000 && got != got; n++) {
        flux_scope_open();
        flux_mem_trim(cpu);
        flux_seed(11);
        test_sentences = 0;
        flux__test_memory(n);
        flux_tensor *y = call();
        test_check(!y || !flux_failed(), __FILE__, __LINE__, "a call that failed gives nothing");
        flux_tensor *first = y ? flux_eval(flux_nth(y, 0)) : NULL;
        const int refused = flux__test_refused();
        flux__test_memory(-1);
        if (first && !flux_failed()) got = flux_item(flux_sum(flux_to_dtype(first, FLUX_F64)));
        else if (!(refused && test_sentences && strstr(flux_error(), "memory"))) {
            fprintf(stderr, "    %s, allocation %ld: %d sentences: %s\n", name, n, test_sentences, flux_error());
            test_check(false, __FILE__, __LINE__, "memory that runs out is said");
        }
        flux_clear();
        flux_scope_close();
        const flux__thread *t = flux__self();
        if (t->hidden != was.hidden || t->held != was.held || t->nscopes != was.nscopes || t->nograd != was.nograd || t->as_one != was.as_one || t->quiet != was.quiet)
            test_check(false, __FILE__, __LINE__, "a scope, or the like, is closed again where memory runs out");
    }
    flux_on_error(NULL, NULL);
    if (!test_check(got == want, __FILE__, __LINE__, "with memory again the result is that of the first time")) fprintf(stderr, "    %s: %.17g, not %.17g\n", name, got, want);
}
/* Handles on the way to a tensor: each is there, or its call has failed. */
static flux_tensor *first_of(flux_loader *l) {
    test_check(!l || !flux_failed(), __FILE__, __LINE__, "a loader whose call failed is none");
    return l ? flux_first(l).x : NULL;
}
static flux_tensor *numbers_of(flux_layer *m) {
    test_check(!m || !flux_failed(), __FILE__, __LINE__, "a layer whose call failed is none");
    return m ? flux_destructure(m) : NULL;
}
static flux_tensor *fold_of(flux_tensor *t) {
    flux_tensor *learn = NULL, *held = NULL;
    const bool good = flux_kfolds(3, 1, t, &learn, &held) == 0;
    test_check(good == !flux_failed() && good == (learn && held), __FILE__, __LINE__, "both parts, or an error");
    return learn;
}
static flux_tensor *part_of(flux_tensor *t) {
    flux_tensor *first = NULL, *second = NULL;
    const bool good = flux_splitobs(0.5, t, &first, &second) == 0;
    test_check(good == !flux_failed() && good == (first && second), __FILE__, __LINE__, "both parts, or an error");
    return second;
}
static flux_tensor *measured(flux_fn2 f) {
    flux_layer *m = flux_metric(f);
    bool good = m != NULL;
    for (int i = 0; i < 2 && good; i++) good = flux_metric_add(m, x, x) == 0;
    test_check(good == !flux_failed(), __FILE__, __LINE__, "a metric, or an error");
    return good ? flux_metric_value(m) : NULL;
}
static flux_tensor *stepped(flux_rule rule, int steps) {
    flux_layer *m = flux_copy_layer(model);
    flux_state *s = m ? flux_setup(rule, m) : NULL;
    test_check(!s || !flux_failed(), __FILE__, __LINE__, "a state whose call failed is none");
    bool good = s != NULL;
    for (int i = 0; i < steps && good; i++) {
        flux_tensor *loss = flux_sum(flux_square(flux_call(m, x)));
        flux_grads *g = loss ? flux_gradient(loss, m) : NULL;
        good = g && flux_update(s, m, g) == 0;
        test_check(good == !flux_failed(), __FILE__, __LINE__, "a step, or an error");
    }
    return good ? flux_destructure(m) : NULL;
}
#define CALL(name, expression) static flux_tensor *memory_##name(void) { return expression; }
#define CALLS_OF(X)                                                                                  \
    X(randint, flux_randint(0, 9, 5)) X(bernoulli, flux_bernoulli(x)) X(categorical, flux_categorical(x, .top_k = 2, .top_p = 0.9))          \
    X(randperm, flux_randperm(9)) X(rand64, flux_rand_with(FLUX_SHAPE(5), FLUX_F64)) X(randn64, flux_randn_with(FLUX_SHAPE(5), FLUX_F64))   \
    X(arange, flux_arange(0, 5, 1)) X(linspace, flux_linspace(0, 1, 5)) X(eye, flux_eye(3)) X(values, flux_values(1, 2, 3))                 \
    X(var, flux_var(x, 0)) X(std, flux_std(x)) X(norm, flux_norm(x, 0)) X(logsumexp, flux_logsumexp(x, 0)) X(softmax, flux_softmax(x, 0))   \
    X(logsoftmax, flux_logsoftmax(x, 0)) X(cumsum, flux_cumsum(x, 0)) X(cumprod, flux_cumprod(x, 1)) X(argmax, flux_argmax(x, 0))           \
    X(any, flux_any(truth, 0)) X(sort, flux_sort(x, .dim = 1)) X(argsort, flux_argsort(x)) X(topk, flux_topk(x, 2, 0))                      \
    X(tril, flux_tril(x)) X(diag, flux_diag(v)) X(trace, flux_trace(flux_slice(x, 0, 0, 3))) X(split, flux_split(x, 0, 1, 3))               \
    X(take_along, flux_take_along(x, 0, flux_slice(flux_abs(flux_mul(whole, 0.0)), 0, 0, 2))) X(gather, flux_gather(x, 0, at))              \
    X(scatter_add, flux_scatter_add(flux_to_dtype(x, FLUX_F16), 0, at, flux_ones(2, 3))) X(pad, flux_pad(x, 1, 1, 1, 0, 2))                 \
    X(flip, flux_flip(x, 0, 1)) X(repeat, flux_repeat(x, 2, 1, 2)) X(cat, flux_cat(1, x, whole)) X(stack, flux_stack(1, v, v))              \
    X(reshape, flux_reshape(flux_transpose(x), 2, 6)) X(where, flux_where(truth, x, 2.0)) X(clamp, flux_clamp(x, 0, 1))                     \
    X(matmul, flux_matmul(flux_transpose(x), x)) X(outer, flux_outer(v, v)) X(einsum, flux_einsum("ij,kj,j->ik", x, x, v))  \
    X(einsum_each, flux_einsum("ij,ij->i", x, x)) X(einsum_one, flux_einsum("ii->i", flux_slice(x, 0, 0, 3))) X(einsum_rest, flux_einsum("...j,...j->...", x, x)) \
    X(einsum_apart, flux_einsum("ij,kl->kj", x, x)) X(einsum_sums, flux_einsum("ij,kl->", x, x))                                                             \
    X(conv, flux_conv(image, flux_ones(3, 3, 3, 2), .pad = FLUX_SAMEPAD)) X(crosscor, flux_crosscor(image, flux_ones(3, 3, 1, 3), .groups = 3)) \
    X(conv_transpose, flux_conv_transpose(image, flux_ones(3, 3, 2, 3), .stride = FLUX_SHAPE(2))) X(maxpool, flux_maxpool(image, FLUX_SHAPE(2))) \
    X(meanpool, flux_meanpool(image, FLUX_SHAPE(3), .stride = FLUX_SHAPE(2))) X(lpnormpool, flux_lpnormpool(image, FLUX_SHAPE(2)))           \
    X(attention, flux_dot_product_attention(x, x, x, .nheads = 2, .mask = flux_make_causal_mask(x))) X(rotary, flux_rotary(x, .nheads = 2))  \
    X(scores, flux_dot_product_attention_scores(x, x, .bias = flux_ones(3, 3))) X(biased, flux_dot_product_attention(x, x, x, .bias = flux_ones(3, 3))) X(glu, flux_glu(x, 0)) X(normalise, flux_normalise(x, FLUX_SHAPE(0), 1e-5)) \
    X(onehot, flux_onehot(at, 3)) X(onecold, flux_onecold(x)) X(expr, flux_expr("exp.(x) .* sum(v) .+ v'", x, v))                     \
    X(accuracy, flux_accuracy(x, x)) X(topk_accuracy, flux_topk_accuracy(x, x, .k = 2)) X(confusion, flux_confusion(x, x))                  \
    X(f1, flux_f1(x, x)) X(r2, flux_r2(x, flux_mul(x, 2))) X(perplexity, flux_perplexity(x, flux_onecold(x)))                             \
    X(crossentropy, flux_logitcrossentropy(x, flux_onecold(x), .weights = flux_ones(4))) X(tversky, flux_tversky_loss(x, x))              \
    X(focal, flux_focal_loss(flux_softmax(x, 0), x)) X(ctc, flux_ctc_loss(x, at)) X(smoothing, flux_label_smoothing(x, 0.1, 0))             \
    X(orthogonal, flux_init("orthogonal", FLUX_SHAPE(5, 4))) X(sparse, flux_init("sparse", FLUX_SHAPE(5, 4), .sparsity = 0.5))              \
    X(truncated, flux_init("truncated_normal", FLUX_SHAPE(5, 4))) X(identity, flux_init("identity", FLUX_SHAPE(3, 3, 2, 2)))                \
    X(oversample, flux_oversample(cube, flux_from(((const int32_t[]){ 0, 0, 0, 1 }), 4), 3)) X(shuffle, flux_shuffleobs(pair_of_threes, 3)) \
    X(balanced, flux_balanced_weights(flux_from(((const int32_t[]){ 0, 0, 0, 1 }), 4))) X(destructure, flux_destructure(model))             \
    X(averaged, flux_destructure(flux_averaged(model))) X(copied, flux_destructure(flux_copy_layer(model))) X(f64, flux_destructure(flux_f64(model))) \
    X(gradient, flux_grads_norm(flux_gradient(flux_sum(flux_square(flux_call(model, x))), model))) X(batch, first_of(flux_dataloader(x, .batchsize = 2))) \
    X(weighted, first_of(flux_dataloader(x, v, .batchsize = 2, .weights = flux_ones(3), .seed = 1)))                                       \
    X(mapped, first_of(flux_mapobs(flux_square, flux_dataloader(x, .batchsize = 2, .shuffle = true, .seed = 1))))                          \
    X(shared, first_of(flux_dataloader(x, .batchsize = 1, .rank = 1, .ranks = 2, .shuffle = true, .seed = 1)))                              \
    X(undersample, flux_undersample(cube, flux_from(((const int32_t[]){ 0, 0, 0, 1 }), 4), 3)) X(fold, fold_of(x)) X(part, part_of(x))      \
    X(measured, measured(flux_accuracy)) X(measured_f1, measured(flux_f1)) X(measured_mse, measured(flux_mse))                              \
    X(fmapped, numbers_of(flux_fmap(flux_neg, model))) X(weightnorm, numbers_of(flux_weightnorm(flux_dense(3, 2))))                         \
    X(unnormed, numbers_of(flux_remove_weightnorms(flux_weightnorm(flux_dense(3, 2))))) X(recurrent, numbers_of(flux_chain(flux_lstm(2, 3)))) \
    X(attending, numbers_of(flux_multiheadattention(4, .nheads = 2, .bias = true))) X(normed, numbers_of(flux_chain(flux_batchnorm(3))))   \
    X(stepped, stepped(flux_adam(0.1), 2)) X(accumulated, stepped(flux_accumgrad(2, flux_momentum(0.1)), 2))                                \
    X(scheduled, stepped(flux_scheduled(flux_descent(), flux_schedule_exp(0.1, 0.5)), 2))                                                   \
    X(clipped, stepped(flux_optimiser_chain(flux_clipnorm(1, .global = true), flux_rmsprop(0.1, .centred = true)), 2))
static flux_tensor *pair_of_threes;
CALLS_OF(CALL)
TEST(memory_runs_out_in_each_call) {
    begin();
    pair_of_threes = flux_tuple(x, v);
    flux_testmode(model, true);
#define RUN(name, expression) in_each_call(#name, memory_##name);
    CALLS_OF(RUN)
    x = flux_eval(flux_to_dtype(x, FLUX_F16)), v = flux_eval(flux_to_dtype(v, FLUX_F16));     /* computed as f32, and rounded */
    image = flux_eval(flux_to_dtype(image, FLUX_F16)), cube = flux_eval(flux_to_dtype(cube, FLUX_F16)), pair_of_threes = flux_tuple(x, v);
    CALLS_OF(RUN)
}

/* In a formula, an error of an operation names its column, wherever in the operation memory runs out. */
static flux_tensor *square;
static flux_tensor *in_formula(const char *formula) { return flux_expr(formula, square); }
TEST(memory_runs_out_in_a_formula) {
    static const struct { const char *formula; int column; } cases[] = {
        { " square ^ 3", 9 }, { " square * square", 9 }, { " square .* 2.5", 9 }, { " square + square", 9 }, { " square .< 2.5", 9 }, { "  -square", 3 }, { " square'", 8 },
        { " exp.(square)", 2 }, { " sum(square; dims = 1)", 2 }, { " cat(1, square, square)", 2 }, { " clamp.(square, 0, 1)", 2 }, { " softmax(square)", 2 },
        { " 1.5 * square", 6 }, { " square / 3.5", 9 }, { " max.(square, square)", 2 }, { " reshape(square, 16)", 2 }, { " matmul(square, square)", 2 },
    };
    square = flux_eval(flux_rand(4, 4));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[40];
        int named = 0, failures = 0;
        bool done = false;
        snprintf(want, sizeof want, "expr: column %d: out of memory", cases[i].column);
        flux_on_error(test_silent, NULL);
        for (long n = 0; n < 200 && !done; n++) {
            flux_scope_open();
            flux__test_memory(n);
            done = in_formula(cases[i].formula) != NULL;
            flux__test_memory(-1);
            if (!done) failures++, named += strncmp(flux_error(), want, strlen(want)) == 0;
            flux_clear();
            flux_scope_close();
        }
        flux_on_error(NULL, NULL);
        if (!CHECK(done && failures > 0 && named == failures))
            fprintf(stderr, "    \"%s\": %d of %d name column %d\n", cases[i].formula, named, failures, cases[i].column);
    }
}

TEST_MAIN()
