/* Random calls, valid and invalid, of the whole interface: sizes at the ends of int64, zero and negative, NULL, NaN, handles of the
   wrong kind where C lets them pass. No call may crash, hang, pass the memory limit, fail without a sentence, say two, or say
   one and succeed. The calls come in rounds of 300 with a seed each, in a child process; a round that fails is run again
   without this and that call as long as it still fails, and what is left is printed.
       N=1000000 test_calls      so many calls (default 20000), in a build with sanitizers best
       SEED=17 ROUND=5 test_calls      that round alone
   tests/check_calls.sh compares the table with the declarations of flux.h. Not called, for good reason: flux_shutdown (ends
   everything), flux_on_error (counts the sentences), flux_on_log, flux_silence, flux_log_level (are set once),
   flux_gpu_backend_set (writes a file where the test runs). */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#ifdef __linux__
#define _DEFAULT_SOURCE
#endif
#define TEST_SANITIZER "allocator_may_return_null=1:max_allocation_size_mb=4096"
#include "test.h"
#include "../src/graph/table.h"

#ifdef _WIN32
TEST(random_calls) { SKIP("needs fork"); }
#else
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUND = 300, ROUNDS_A_CHILD = 20, TENSORS = 48, LAYERS = 28, OTHERS = 6, LIGHT = 4096 };

/* What a child tells its parent, and which calls of a round it is to leave out. */
typedef struct shared { int64_t round; int call; bool failed, skip[ROUND]; char report[600], words[2000]; const char *called; } shared;
static shared *told;
static bool aloud;                        /* a replay prints each call before it is made */

/* ---------------- random numbers, of a seed, a round and a call */

static uint64_t state;
static uint64_t draw(void) {              /* SplitMix64 */
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static int below(int n) { return (int)(draw() % (uint64_t)n); }
static bool one_in(int n) { return below(n) == 0; }

/* ---------------- what is known of the call that is made */

#define words (told->words)               /* its arguments */
static bool null_in, pending;             /* a handle was NULL; an error was pending before */
static bool scarce, short_of_memory;      /* memory runs out now and then; it may during this call */
static bool stateless;                    /* each call is made by a thread that has no memory for its state */
static bool empty_handed;                 /* half of the handles are NULL */
static bool vast;                         /* most tensors are empty, of a dim of 2^36 to 2^40 */
static int sentences;
static char sentence[2][400];

static void note(const char *format, ...) {
    size_t n = strlen(words);
    va_list args;
    va_start(args, format);
    if (n + 1 < sizeof words) vsnprintf(words + n, sizeof words - n, format, args);
    va_end(args);
}
static void heard(const char *message, void *user) {
    (void)user;
    snprintf(sentence[sentences ? 1 : 0], sizeof sentence[0], "%s", message);
    sentences++;
}
static void unheard(flux_level level, const char *id, const char *message, void *user) { (void)level, (void)id, (void)message, (void)user; }

#define now_called (told->called)         /* and its name */
static void complain(const char *what) {
    if (!told->failed) snprintf(told->report, sizeof told->report, "%s(%.200s) %s%s%.200s%s%.100s", now_called, words, what, sentences ? ": " : "",
                                sentences ? sentence[0] : "", sentences > 1 ? "; then: " : "", sentences > 1 ? sentence[1] : "");
    told->failed = true;
}

/* A call that failed has said why, unless the reason had been said, or what it says of NULL is its result; one that did
   not fail is silent. */
/* Whether an error's first word is the name of the call, or a longer or shorter form of it (print of print_state, conv_layer of
   conv), or one that stands for it here: calls that run models, functions and files of the program's, whose errors name those;
   and what other calls made an argument of. */
static bool is_a_call(const char *word);
static bool names_the_call(const char *said) {
    static const char *const runs[] = { "call", "call_layer", "activations", "gradient", "withgradient", "fmap", "mapleaves", "custom", "train", "summary", "summary_text", "outputsize", "export_c",
        "metric_add", "first", "_each_start", "_each_next", "_each_leave", "loader_text", "print_loader", "setup_named", "rule", "operate", "profile", "swiglu", "multiheadattention" };
    static const char *const others[][2] = { { "grads_text", "print" }, { "state_text", "print" }, { "_layer_of_fn", "function" },
        { "_layer_of_fn2", "function" }, { "plateau", "patience" }, { "early_stopping", "patience" }, { "from_dlpack", "to_dlpack" }, { "from_dlpack_versioned", "to_dlpack" },
        { "topk_accuracy", "onecold" } };
    char word[64], called[64];
    const size_t n = strspn(said, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (n == 0 || n >= sizeof word || said[n] != ':') return true;       /* "Dense(4 => 2) expects", "out of memory" */
    /* seen when a value is computed that was recorded before */
    if (strstr(said, " is not within dim ") || strstr(said, "out of memory")) return true;
    snprintf(word, sizeof word, "%.*s", (int)n, said);
    snprintf(called, sizeof called, "%s", now_called + strlen("flux_"));
    if (strlen(called) > 5 && strcmp(called + strlen(called) - 5, "_with") == 0) called[strlen(called) - 5] = 0;
    if (strstr(called, word) || strstr(word, called) || strcmp(word, "init") == 0) return true;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        if (strcmp(called, runs[i]) == 0) return is_a_call(word);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(called, others[i][0]) == 0 && strcmp(word, others[i][1]) == 0) return true;
    return false;
}

static void judge(bool failed, bool may_be_silent) {
    const bool asks = null_in && strstr("flux__layer_of_layer flux__same flux_shape_of", now_called);
    if (failed && !sentences && !asks && !pending && !may_be_silent) complain("failed without a word");
    if (sentences && !names_the_call(sentence[0])) complain("has an error of another call's name");
    if (short_of_memory) return;          /* its arguments may have failed before it */
    if (!failed && sentences) complain("succeeded, but said");
    if (sentences > 1) complain("said two sentences");
    if (pending && null_in && sentences && strstr(sentence[0], "is NULL")) complain("was not silent about a NULL after an error");
}

/* ---------------- the pool of live handles */

typedef struct slot { void *object; int depth; } slot;
static slot tensors[TENSORS], layers[LAYERS], states[OTHERS], loaders[OTHERS], gradients[OTHERS];
static int depth;

static void *pick(slot *pool, int n, const char *name) {
    int i = below(n);
    if (one_in(empty_handed ? 2 : 25) || !pool[i].object) {
        note("%sNULL", *words ? ", " : "");
        return null_in = true, (void *)NULL;
    }
    note("%s%s%d", *words ? ", " : "", name, i);
    return pool[i].object;
}
static void put(slot *pool, int n, void *object) {
    int i = one_in(12) ? below(n) : n / 2 + below(n - n / 2);     /* the first half are good ones and mostly stay */
    if (!object) return;
    pool[i].object = object, pool[i].depth = depth;
}
static void forget(slot *pool, int n, int deeper_than) {
    for (int i = 0; i < n; i++)
        if (pool[i].depth > deeper_than) pool[i].object = NULL, pool[i].depth = 0;
}

static bool light(flux_tensor *x) {
    if (!x) return false;
    int n = flux_num_items(x);
    if (n < 2 && flux_len(x) > LIGHT) return false;
    for (int i = 0; n > 1 && i < n; i++)
        if (!light(flux_nth(x, i))) return false;
    return true;
}

/* What is handed to the next call is NULL, because of a call before it, which has said why. */
static void handed_on(void) { null_in = true, sentences = 0, pending = flux_failed(); }

/* ---------------- arguments */

static flux_tensor *T(void) { return (flux_tensor *)pick(tensors, TENSORS, "t"); }
static flux_layer *L(void) {
    return (flux_layer *)pick(layers, LAYERS, "m");
}
static flux_state *ST(void) { return (flux_state *)pick(states, OTHERS, "s"); }
static flux_loader *D(void) { return (flux_loader *)pick(loaders, OTHERS, "l"); }
static flux_grads *G(void) { return (flux_grads *)pick(gradients, OTHERS, "g"); }
static const void *O(void) {              /* any handle */
    switch (below(5)) {
    case 0: return T();
    case 1: return L();
    case 2: return ST();
    case 3: return D();
    default: return G();
    }
}
static int64_t size(void) {
    static const int64_t ends[] = { -1, -2, INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1,
        (int64_t)1 << 32, (int64_t)1 << 40, (int64_t)1 << 43, (int64_t)1 << 62, 1 << 20, 1 << 18, 1 << 30, 255, 256, 100 };
    int64_t v = one_in(6) ? ends[below((int)(sizeof ends / sizeof *ends))] : one_in(8) ? below(20) : below(6);
    return v;
}
static int64_t I(void) {
    int64_t v = size();
    note("%s%lld", *words ? ", " : "", (long long)v);
    return v;
}
static int Z(void) {
    int64_t v = size();
    int z = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int)v;
    note("%s%d", *words ? ", " : "", z);
    return z;
}
static double F(void) {
    static const double all[] = { 0, -0.0, 1, -1, 0.5, 1e-3, 2, 3, 1e300, -1e300, 1e-300, 0.1, 0.9, 9.3e18 };
    double v = one_in(4) ? (double)size() : one_in(16) ? (double)NAN : one_in(8) ? one_in(2) ? HUGE_VAL : -HUGE_VAL : all[below((int)(sizeof all / sizeof *all))];
    note("%s%g", *words ? ", " : "", v);
    return v;
}
static flux_shape S(void) {
    static const int odd[] = { 8, 9, -1, INT32_MAX, INT32_MIN, 7 };
    int64_t dims[FLUX_MAX_DIMS];
    bool plain = !one_in(3);
    int n = one_in(15) ? odd[below(6)] : below(5);
    for (int i = 0; i < FLUX_MAX_DIMS; i++) dims[i] = plain ? 1 + below(4) : size();
    flux_shape s = flux__shape(dims, n);
    note("%s{%d:", *words ? ", " : "", n);
    for (int i = 0; i < n && i < FLUX_MAX_DIMS; i++) note(" %lld", (long long)dims[i]);
    note("}");
    return s;
}
static int any_of(int n) {                /* an enumerator, or none */
    static const int odd[] = { -1, 77, INT32_MAX, INT32_MIN };
    int v = one_in(12) ? odd[below(4)] : below(n);
    note("%s%d", *words ? ", " : "", v);
    return v;
}
static flux_dtype E(void) { return (flux_dtype)any_of(8); }
static flux_switch W(void) { return (flux_switch)any_of(3); }
static bool B(void) { return any_of(2) == 1; }
static flux_device V(void) {
    static const flux_device all[] = { { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 7 }, { 1, 0 }, { 2, 0 }, { 3, 0 }, { -1, 0 }, { 4, 0 }, { 99, 5 }, { 0, -1 },
        { INT32_MIN, INT32_MIN }, { INT32_MAX, INT32_MAX } };
    flux_device d = all[below((int)(sizeof all / sizeof *all))];
    note("%s{%d %d}", *words ? ", " : "", d.backend, d.id);
    return d;
}
static const char *N(void) {              /* names, formulas, numbers of things */
    static char lengthy[3000];
    static const char *const all[] = { "", "weight", "layers.0.weight", "layers.1.bias", "x", "x, y", "sum((x .+ 1).^2)", "x*y'", "sum(x", "((((((", "%s%n%d", "Adam",
        "Descent", "CUDA", "CPU", "AMDGPU", "driver", "orthogonal", "identity", "truncated_normal", "sparse", "randn", "layers.0 = conv1, layers.1 =", "\xff\xfe\x01", lengthy };
    int i = below((int)(sizeof all / sizeof *all) + 1);
    memset(lengthy, 'x', sizeof lengthy - 1);
    if (i == (int)(sizeof all / sizeof *all)) return note("%sNULL", *words ? ", " : ""), null_in = true, (const char *)NULL;
    note("%s\"%.40s\"", *words ? ", " : "", all[i]);
    return all[i];
}
static const char *P(void) {              /* a path, of the test's own files or of none */
    static char own[4][300];
    int i = below(7);
    for (int k = 0; k < 4; k++) snprintf(own[k], sizeof own[k], "%s/flux_calls_%ld_%d", test_temp(), (long)getppid(), k);
    if (i == 6) return note("%sNULL", *words ? ", " : ""), null_in = true, (const char *)NULL;
    note("%spath%d", *words ? ", " : "", i);
    return i < 4 ? own[i] : i == 4 ? "" : "/nowhere/at/all";
}

static flux_tensor *gives_nothing(flux_tensor *x) { return (void)x, (flux_tensor *)NULL; }
static flux_tensor *fails(flux_tensor *x) { return flux_reshape(x, 7, 7, 7, 7, 7); }
static flux_tensor *turns(flux_tensor *x) { return flux_transpose(x); }
static flux_tensor *pairs(flux_tensor *x) { return flux_tuple(x, x); }
static flux_fn A(void) {
    static const flux_fn all[] = { NULL, flux_relu, flux_tanh, flux_identity, flux_softmax, (flux_sum), flux_gelu, gives_nothing, fails, turns, pairs, flux_rrelu };
    int i = below((int)(sizeof all / sizeof *all));
    note("%sf%d", *words ? ", " : "", i);
    if (!i) null_in = true;
    return all[i];
}
static flux_fn2 A2(void) {
    static const flux_fn2 all[] = { NULL, (flux_add), flux_vcat, flux_matmul, (flux_mul) };
    int i = below(5);
    if (!i) null_in = true;
    return all[i];
}
static flux_tensor *own_init(flux_shape s) { return one_in(2) ? flux_zeros(2, 2) : flux_rand_with(s, FLUX_F64); }
static flux_tensor *no_init(flux_shape s) { return (void)s, (flux_tensor *)NULL; }
/* A matrix is made orthogonal in as many steps as it has elements, times its columns; a number of a truncated normal takes
   hundreds of operations: large ones took two thirds of this test's time. */
static bool is_large(flux_shape s) {
    int64_t n = 1;
    for (int d = 0; d < s.ndim && d < FLUX_MAX_DIMS; d++)
        if (s.dim[d] < 0 || s.dim[d] > 4096 || (n *= s.dim[d]) > 4096) return true;
    return false;
}
static flux_tensor *few_orthogonal(flux_shape s) { return is_large(s) ? flux_glorot_uniform(s) : flux_orthogonal(s); }
static flux_tensor *few_truncated(flux_shape s) { return is_large(s) ? flux_glorot_uniform(s) : flux_truncated_normal(s); }
static flux_init_fn J(void) {
    static const flux_init_fn all[] = { NULL, NULL, NULL, flux_glorot_uniform, few_orthogonal, flux_identity_init, few_truncated, own_init, no_init };
    return all[below(9)];
}
static flux_tensor *const *TS(int n) {    /* at most 300 of them */
    static flux_tensor *list[300];
    for (int i = 0; i < n && i < 300; i++) list[i] = i < 6 ? T() : list[i - 6];
    return list;
}
static flux_layer *const *LS(int n) {
    static flux_layer *list[300];
    for (int i = 0; i < n && i < 300; i++) list[i] = i < 4 ? L() : list[i - 4];
    return list;
}
static int how_many(void) {
    int n = one_in(20) ? (one_in(2) ? -1 : 300) : below(4);
    note("%sn %d", *words ? ", " : "", n);
    return n;
}
static flux_rule rule(void);

/* Options: each field is left as it is, or drawn; what is left has marks, as the macros' have, or is 0, as in a struct filled by hand. */
#define OPTS(type, name) type name = FLUX_OPTIONS(type, ._ = 0); if (state & 4096) memset((void *)&name, 0, sizeof name)
#define SET(field, value) do { if (!one_in(3)) { bool was = null_in; note(" ." #field); o.field = value; null_in = was; } } while (0)
#define MUST(field, value) (note(" ." #field), o.field = value)
static flux_reduce_opts reduce_o(void) {
    OPTS(flux_reduce_opts, o);
    MUST(x, T()), MUST(d0, Z());
    SET(d1, Z());
    SET(d2, Z());
    return o;
}
static flux_act_opts act_o(void) {
    OPTS(flux_act_opts, o);
    MUST(x, T());
    SET(alpha, F());
    SET(lo, F());
    SET(hi, F());
    return o;
}
static flux_conv_opts conv_o(void) {
    OPTS(flux_conv_opts, o);
    MUST(x, T()), MUST(weight, T());
    SET(stride, S());
    if (one_in(2)) SET(pad, S());
    if (one_in(2)) SET(dilation, S());
    if (one_in(4)) SET(outpad, S());
    if (one_in(2)) SET(groups, Z());
    return o;
}
static flux_export_opts export_o(void) {
    OPTS(flux_export_opts, o);
    MUST(model, L()), MUST(shape, S()), MUST(path, P());
    if (one_in(2)) SET(name, N());
    o.stateless = one_in(2);
    return o;
}
static flux_pool_opts pool_o(void) {
    OPTS(flux_pool_opts, o);
    MUST(x, T()), MUST(window, S());
    SET(stride, S());
    SET(pad, S());
    SET(p, F());
    return o;
}
static flux_shape few(flux_shape s) {     /* see is_large */
    for (int d = 0; d < s.ndim && d < FLUX_MAX_DIMS; d++)
        if (s.dim[d] > 64 && s.dim[d] <= 1 << 20) s.dim[d] = 64;
    return s;
}
static flux_init_opts init_o(void) {
    OPTS(flux_init_opts, o);
    SET(shape, few(S()));
    SET(gain, F());
    SET(mean, F());
    SET(std, F());
    SET(lo, F());
    SET(hi, F());
    SET(sparsity, F());
    SET(shift, Z());
    return o;
}
static flux_dense_opts dense_o(void) {
    OPTS(flux_dense_opts, o);
    MUST(in, I()), MUST(out, I());
    SET(activation, A());
    SET(bias, W());
    SET(init, J());
    if (one_in(4)) SET(weight, T());
    if (one_in(4)) SET(b, T());
    return o;
}
static flux_scale_opts scale_o(void) {
    OPTS(flux_scale_opts, o);
    MUST(size, S());
    SET(activation, A());
    SET(bias, W());
    SET(init, J());
    return o;
}
static flux_bilinear_opts bilinear_o(void) {
    OPTS(flux_bilinear_opts, o);
    MUST(in1, I()), MUST(in2, I()), MUST(out, I());
    SET(activation, A());
    SET(bias, W());
    SET(init, J());
    return o;
}
static flux_embedding_opts embedding_o(void) {
    OPTS(flux_embedding_opts, o);
    MUST(in, I()), MUST(out, I());
    SET(init, J());
    SET(pad, W());
    SET(padding_idx, I());
    return o;
}
static flux_embeddingbag_opts embeddingbag_o(void) {
    OPTS(flux_embeddingbag_opts, o);
    MUST(in, I()), MUST(out, I());
    if (one_in(4)) SET(reduction, A());
    SET(init, J());
    return o;
}
static flux_recurrent_opts recurrent_o(void) {
    OPTS(flux_recurrent_opts, o);
    MUST(in, I()), MUST(out, I());
    if (one_in(4)) SET(activation, A());
    SET(bias, W());
    SET(init, J());
    SET(init_recurrent, J());
    SET(return_state, B());
    if (one_in(4)) SET(hidden_bias, B());
    return o;
}
static flux_recurrence_opts recurrence_o(void) {
    OPTS(flux_recurrence_opts, o);
    MUST(cell, L());
    SET(return_state, B());
    return o;
}
static flux_multiheadattention_opts mha_o(void) {
    OPTS(flux_multiheadattention_opts, o);
    MUST(in, I()), MUST(nheads, Z());
    SET(qk, I());
    SET(v, I());
    SET(out, I());
    SET(k_in, I());
    SET(v_in, I());
    SET(bias, B());
    SET(causal, B());
    SET(scores, W());
    SET(dropout, F());
    SET(init, J());
    SET(kv_heads, Z());
    SET(rotary, F());
    return o;
}
static flux_rotary_opts rotary_o(void) {
    OPTS(flux_rotary_opts, o);
    MUST(x, T());
    SET(nheads, Z());
    SET(base, F());
    if (one_in(3)) SET(positions, T());
    return o;
}
static flux_swiglu_opts swiglu_o(void) {
    OPTS(flux_swiglu_opts, o);
    MUST(in, I()), MUST(hidden, I());
    SET(out, I());
    SET(bias, B());
    SET(init, J());
    return o;
}
static flux_rmsnorm_opts rmsnorm_o(void) {
    OPTS(flux_rmsnorm_opts, o);
    MUST(size, S());
    SET(affine, W());
    SET(eps, F());
    return o;
}
static flux_attention_opts attention_o(void) {
    OPTS(flux_attention_opts, o);
    MUST(q, T()), MUST(k, one_in(2) ? o.q : T()), MUST(v, one_in(2) ? o.k : T());
    SET(nheads, Z());
    if (one_in(3)) SET(bias, T());
    if (one_in(3)) SET(mask, T());
    if (one_in(3)) SET(drop, L());
    SET(causal, B());
    return o;
}
static flux_layernorm_opts layernorm_o(void) {
    OPTS(flux_layernorm_opts, o);
    MUST(size, S());
    SET(activation, A());
    SET(affine, W());
    SET(eps, F());
    return o;
}
static flux_dropout_opts dropout_o(void) {
    OPTS(flux_dropout_opts, o);
    MUST(p, F());
    SET(dims, S());
    return o;
}
static flux_conv_layer_opts conv_layer_o(void) {
    OPTS(flux_conv_layer_opts, o);
    MUST(window, S()), MUST(in, I()), MUST(out, I());
    SET(activation, A());
    SET(stride, S());
    SET(pad, S());
    SET(dilation, S());
    if (one_in(3)) SET(outpad, S());
    if (one_in(3)) SET(groups, Z());
    SET(bias, W());
    SET(init, J());
    return o;
}
static flux_pool_layer_opts pool_layer_o(void) {
    OPTS(flux_pool_layer_opts, o);
    MUST(window, S());
    SET(stride, S());
    SET(pad, S());
    SET(p, F());
    return o;
}
static flux_upsample_opts upsample_o(void) {
    OPTS(flux_upsample_opts, o);
    SET(mode, (flux_upsampling)any_of(4));
    if (one_in(2)) {
        for (int i = 0, n = 1 + below(3); i < n; i++) MUST(scale[i], F());
    } else MUST(size, S());
    return o;
}
static flux_norm_opts norm_o(void) {
    OPTS(flux_norm_opts, o);
    MUST(channels, I());
    SET(activation, A());
    SET(affine, W());
    SET(track_stats, W());
    SET(eps, F());
    SET(momentum, F());
    SET(init_beta, J());
    SET(init_gamma, J());
    return o;
}
static flux_groupnorm_opts groupnorm_o(void) {
    OPTS(flux_groupnorm_opts, o);
    MUST(channels, I()), MUST(groups, I());
    SET(activation, A());
    SET(affine, W());
    SET(eps, F());
    return o;
}
static flux_weightnorm_opts weightnorm_o(void) {
    OPTS(flux_weightnorm_opts, o);
    MUST(layer, L());
    SET(which, N());
    SET(dims, S());
    return o;
}
static flux_tensor *labels_of(flux_tensor *p) { return flux_num_items(p) == 1 && flux_ndim(p) > 0 && one_in(2) ? flux_onecold(p) : T(); }
static flux_topk_opts topk_o(void) {
    OPTS(flux_topk_opts, o);
    MUST(yhat, T()), MUST(y, one_in(2) ? o.yhat : labels_of(o.yhat));
    SET(k, Z());
    return o;
}
static flux_averaged_opts averaged_o(void) {
    OPTS(flux_averaged_opts, o);
    MUST(model, L());
    if (one_in(2)) SET(decay, F());
    if (one_in(4)) SET(equal, B());
    return o;
}
static flux_metric_opts metric_o(void) {
    static const flux_fn2 all[] = { flux_accuracy, flux_f1, flux_r2, flux_mse, flux_add, flux_topk_accuracy };
    OPTS(flux_metric_opts, o);
    o.f = one_in(9) ? (null_in = true, (flux_fn2)NULL) : all[below(6)];
    if (one_in(4)) SET(k, Z());
    return o;
}
static flux_loss_opts loss_o(void) {
    OPTS(flux_loss_opts, o);
    MUST(yhat, T()), MUST(y, one_in(2) ? o.yhat : T());
    SET(agg, (flux_agg)any_of(3));
    SET(dim, Z());
    SET(eps, F());
    SET(delta, F());
    SET(gamma, F());
    SET(margin, F());
    SET(smooth, F());
    SET(beta, F());
    if (one_in(4)) SET(weights, T());
    if (one_in(4)) SET(ignore, W());
    if (one_in(4)) SET(ignore_index, I());
    if (one_in(4)) SET(lengths, T());
    return o;
}
static flux_rule_opts rule_o(void) {
    OPTS(flux_rule_opts, o);
    if (one_in(2)) MUST(eta, 0.1);
    else SET(eta, F());
    if (one_in(2)) return o;
    SET(beta[0], F());
    SET(beta[1], F());
    SET(rho, F());
    SET(eps, F());
    SET(lambda, F());
    SET(delta, F());
    SET(omega, F());
    SET(p, F());
    SET(ell[0], F());
    SET(gamma[1], F());
    SET(n, Z());
    SET(centred, B());
    SET(global, B());
    SET(couple, W());
    return o;
}
static flux_batch drops_y(flux_batch b, void *user) { return (void)user, b.y = NULL, b; }
static flux_batch is_bad(flux_batch b, void *user) { return (void)user, b.x = NULL, b; }
static int64_t length_of(void *user) { return *(int64_t *)user; }
static int get_of(void *user, int64_t i, int n, flux_tensor **out) {
    for (int k = 0; k < n && k < 4; k++) out[k] = *(int64_t *)user % 3 == 2 && i == 1 ? NULL : flux_full((double)i, 2, 1 + i % (*(int64_t *)user % 3 + 1));
    return *(int64_t *)user == 7 || i > 100;      /* no epoch is endless */
}
static flux_loader_opts loader_o(void) {
    static int64_t lengths[] = { 0, 1, 5, 8, 7, -1, INT64_MAX };
    static flux_dataset set;
    OPTS(flux_loader_opts, o);
    if (one_in(3)) {
        set.user = &lengths[below(7)], set.length = one_in(20) ? NULL : length_of, set.get = one_in(20) ? NULL : get_of, set.arrays = one_in(5) ? Z() : 1 + below(3);
        if (set.arrays > 4) set.arrays = 4;
        MUST(data, &set);
    } else {
        MUST(x, T());
        SET(y, T());
        if (one_in(5)) SET(z, T());
        if (one_in(20)) SET(x5, T());
    }
    SET(batchsize, Z());
    SET(shuffle, B());
    SET(partial, W());
    SET(collate, (flux_collate)any_of(3));
    if (one_in(4)) SET(transform, one_in(2) ? drops_y : is_bad);
    if (one_in(6)) SET(workers, one_in(3) ? Z() : 1);
    SET(seed, (uint64_t)size());
    if (one_in(6)) SET(weights, T());
    if (one_in(4)) SET(rank, Z());
    if (one_in(4)) SET(ranks, Z());
    return o;
}
static flux_get_device_opts device_o(void) {
    OPTS(flux_get_device_opts, o);
    SET(backend, N());
    SET(id, Z());
    return o;
}
static flux_rule rule(void) {
    static const char *const names[] = { "Adam", "Descent", "Momentum", "RMSProp", "Rprop", "Lion", "RAdam", "AdaMax", "OAdam", "AdaGrad", "AdaDelta", "AMSGrad", "NAdam",
        "AdaBelief", "AdamW", "Nesterov", "WeightDecay", "SignDecay", "ClipGrad", "ClipNorm", "None" };
    flux_rule none;
    memset(&none, 0, sizeof none);
    if (one_in(20)) return null_in = true, none;
    flux_rule r = flux_rule_with(names[below(21)], rule_o());
    if (r.made && one_in(9)) r = flux_scheduled(r, flux_schedule_exp(0.1, 0.9));
    return r.made ? r : (handed_on(), r);
}
static double falling(int64_t t, void *user) { return (void)user, 1 / (double)t; }
static flux_schedule schedule(void) {
    flux_schedule s;
    switch (below(4)) {
    case 0: s = flux_schedule_cosine(F(), F(), Z()); break;
    case 1: s = flux_schedule_exp(F(), F()); break;
    case 2: s = flux_schedule_onecycle(Z(), F()); break;
    default: s = flux_schedule_of(falling, NULL);
    }
    return s.made ? s : (handed_on(), s);
}
static flux_tensor *loss_of(flux_layer *m, flux_tensor *x, flux_tensor *y) { return y ? flux_mse(flux_call(m, x), y) : flux_sum(flux_call(m, x)); }
static flux_tensor *loss_of_model(flux_layer *m, void *x) { return flux_sum(flux_call(m, (flux_tensor *)x)); }
static flux_tensor *cubes(flux_tensor *x, void *user) { return (void)user, flux_sum(flux_mul(x, flux_square(x))); }
static flux_tensor *leaf_as_it_is(flux_tensor *x, const char *path, void *user) { return (void)path, user ? flux_relu(x) : x; }
static bool excluded(flux_layer *m, void *user) { return (void)user, flux_num_params(m) < 4; }
static void seen(flux_tensor *x, const char *path, bool trained, void *user) { *(int64_t *)user += flux_len(x) + (int64_t)strlen(path) + trained; }

/* ---------------- results */

static void got_T(flux_tensor *y) {
    judge(!y, false);
    if (!light(y)) return;
    put(tensors, TENSORS, y);
    if (!one_in(3)) return;
    sentences = 0, pending = flux_failed();
    note(" and eval");
    bool done = flux_eval(y) || flux_num_items(y) > 1;
    judge(!done && flux_num_items(y) == 1, false);
}
static void got_Q(flux_tensor *y) {       /* NULL may be an answer */
    judge(!y, true);
    if (light(y)) put(tensors, TENSORS, y);
}
static void put_layer(flux_layer *m) {
    if (m && flux_num_params(m) < 16 * LIGHT) put(layers, LAYERS, m);
}
static void got_L(flux_layer *m) { judge(!m, false), put_layer(m); }
static void got_M(flux_layer *m) { judge(!m, true), put_layer(m); }
static void got_S(flux_state *s) { judge(!s, false), put(states, OTHERS, s); }
static void got_D(flux_loader *l) { judge(!l, false), put(loaders, OTHERS, l); }
static void got_G(flux_grads *g) { judge(!g, false), put(gradients, OTHERS, g); }
static void got_I(int code) {             /* 0: done, -1: failed */
    judge(code != 0, false);
    if (code != 0 && code != -1) complain("gave a code that is neither 0 nor -1");
}
static void got_N(int64_t n) { judge(n < 0, true); }              /* a number, negative for NULL */
static void got_Y(int64_t n) { (void)n, judge(sentences > 0, true); }     /* says nothing about failing */
static void got_F(double v) { judge(v != v, true); }
static void got_P(const void *p) { judge(!p, true); }
static void got_V(void) { judge(sentences > 0, true); }
static void got_U(flux_device d) { judge(d.backend < 0, true); }
static void got_H(flux_shape s) { judge(s.ndim < 0, false); }
static void got_R(flux_rule r) { judge(!r.made, false); }
static void got_J(flux_schedule s) { judge(!s.made, false); }

/* ---------------- calls that need more than their arguments */

static char text[300];
static void scopes_open(void) {
    if (depth > 5) return;
    flux_scope_open();
    depth++;
}
static void scopes_close(void) {
    if (!depth) return;
    depth--;
    forget(tensors, TENSORS, depth), forget(layers, LAYERS, depth), forget(states, OTHERS, depth), forget(loaders, OTHERS, depth), forget(gradients, OTHERS, depth);
    flux_scope_close();
}
static void retain_and_release(void) {
    const void *o = O();
    flux_retain(o), flux_release(o);
}
static void keep_one(void) {
    flux_tensor *x = depth ? T() : NULL;
    if (x && flux_keep_object(x))
        for (int i = 0; i < TENSORS; i++)
            if (tensors[i].object == x && tensors[i].depth == depth) tensors[i].depth = depth;
}
static void carry_one(void) {
    flux_tensor *x = T(), *y = NULL;
    flux_times (i, 3) y = flux_carry(y, x);
    if (x && y) put(tensors, TENSORS, y);
}
static void assign_one(void) {
    flux_tensor *field = NULL, *x = T();
    flux_assign(&field, x);
    flux_assign(&field, NULL);
}
static int read_one(void) {
    flux_tensor *x = T();
    size_t bytes = one_in(3) && x ? (size_t)flux_len(x) * flux_dtype_size(flux_dtype_of(x)) : (size_t)size() % 4096;
    char *out = (char *)malloc(bytes < (1 << 20) ? bytes + 1 : 1);
    int code = bytes < (1 << 20) ? flux_read(x, out, bytes) : 0;
    free(out);
    return code;
}
static int devices_of(void) {
    flux_device out[4];
    int n = flux_get_devices(N(), one_in(5) ? NULL : out, 0);
    return n < 0 ? 0 : flux_get_devices("CPU", out, below(5)) < 0;
}
static void epochs(bool stop) {
    flux__each_args a;
    int batches = 0;
    memset((void *)&a, 0, sizeof a);
    a.loader = D(), a.progress = one_in(4) ? "epoch" : NULL;
    flux__each_state e = flux__each_start(a);
    while (flux__each_next(&e, __FILE__, __LINE__)) {
        flux_progress("loss", flux_scalar(1.0)), flux_progress_number("rate", F());
        if (stop || ++batches > 20) break;
        e.inner = 0;
    }
    flux__each_leave(&e);
}
static void some_turns(void) {
    flux__iterations e = flux__times_start(below(4));
    while (flux__times_next(&e, __FILE__, __LINE__)) {
        flux__block b = flux__block_enter(true, one_in(2), __FILE__, __LINE__);
        flux_exp(flux_ones(2));
        flux__block_end(&b, __FILE__, __LINE__);
        flux__block_leave(&b);
        e.inner = 0;
    }
    flux__times_leave(&e);
}
static flux_tensor *with_gradient(void) {
    flux_grads *g = NULL;
    flux_tensor *y = flux_withgradient(loss_of_model, T(), L(), &g);
    put(gradients, OTHERS, g);
    return y;
}
static flux_grads *gradient_of_some(void) {
    const void *what[3] = { O(), O(), O() };
    flux_tensor *x = T(), *loss = x && one_in(2) && flux_num_items(x) == 1 ? flux_sum(x) : x;
    return flux_gradient_with(loss, below(4), what);
}
static flux_grads *gradient_of_layer(void) {
    flux_layer *m = L();
    flux_tensor *y = flux_call_layer(m, T());
    if (!y) handed_on();
    return flux_gradient(flux_sum(flux_square(flux_num_items(y) > 1 ? flux_nth(y, 0) : y)), m);
}
static int step(void) {                   /* of the good model, or not */
    flux_layer *m = one_in(3) ? L() : (flux_layer *)layers[0].object;
    flux_tensor *y = flux_call_layer(m, one_in(3) ? T() : (flux_tensor *)tensors[0].object);
    flux_state *s = one_in(3) ? ST() : (flux_state *)states[0].object;
    flux_grads *g = y ? flux_gradient(flux_sum(flux_square(flux_num_items(y) > 1 ? flux_nth(y, 0) : y)), m) : NULL;
    if (!g) handed_on();
    return flux_update(s, m, g);
}
/* A table of a file of the test's own, which it writes first; or of what else is there. */
static flux_table *TB(void) {
    const char *path = P();
    FILE *f = path && *path && !null_in && one_in(2) ? fopen(path, "w") : NULL;
    if (f) fputs("a,b,name\n1,2,x\n3,,y\n", f), fclose(f);
    flux_table *t = flux_load_table(path, .separator = (char)(one_in(3) ? 0 : one_in(2) ? ',' : below(256)), .heading = (flux_switch)below(4),
        .missing = one_in(2) ? F() : 0);
    if (!t) handed_on();
    return t;
}
static bool told_of(const flux_train_info *at, void *user) { return (void)user, at->epoch_end && at->epoch > 1; }
static flux_train_opts train_o(void) {
    OPTS(flux_train_opts, o);
    o.loss = loss_of;
    MUST(model, L()), MUST(data, D()), MUST(state, ST());
    SET(epochs, one_in(9) ? -below(3) : 1 + below(3));
    if (one_in(2)) SET(validation, D());
    for (int i = 0; i < 8 && one_in(3); i++) o.metrics[i] = flux_metric(one_in(2) ? flux_r2 : flux_mse);
    if (one_in(9)) o.metrics[0] = L();
    if (one_in(4)) SET(averaged, L());
    if (one_in(4)) SET(monitor, o.metrics[0]);
    if (one_in(4)) SET(early_stop, below(3));
    if (one_in(4)) SET(min_dist, F());
    if (one_in(4)) SET(best, P());
    if (one_in(2)) SET(checkpoint, P());
    if (one_in(2)) SET(resume, B());
    if (one_in(2)) o.callback = told_of;
    return o;
}
/* A picture that the test writes first, or what else is there. */
static const char *PIC(void) {
    const char *path = P();
    FILE *f = path && !null_in && one_in(2) ? fopen(path, "w") : NULL;
    if (f) fputs("P6\n2 1\n255\nabcdef", f), fclose(f);
    return path;
}
/* The folder of the test's files has no folders of images: always an error. */
static flux_folder *FO(void) {
    flux_folder *f = flux_image_folder(P(), .width = 3);
    if (!f) handed_on();
    return f;
}
static int splits(void) {
    flux_tensor *a = NULL, *b = NULL;
    int code = flux_splitobs(F(), T(), &a, one_in(9) ? NULL : &b);
    if (light(a)) put(tensors, TENSORS, a);
    return code;
}
static int folds(void) {
    flux_tensor *a = NULL, *b = NULL;
    int code = flux_kfolds(Z(), Z(), T(), &a, one_in(9) ? (null_in = true, (flux_tensor **)NULL) : &b);
    if (light(a)) put(tensors, TENSORS, a);
    return code;
}
static int items(bool save) {
    const void *what[3] = { O(), O(), O() };
    const char *path = P(), *names = one_in(3) ? N() : "a, b", *both = one_in(2) ? "a, b, c" : names;
    int n = one_in(9) ? Z() : 2;
    return n > 3 ? 0 : save ? flux_save_all_with(path, n, both, what) : flux_load_all_with(path, n, both, what);
}
static int arrays(void) {
    const void *what[3] = { T(), T(), O() };
    const char *path = P(), *names = one_in(3) ? N() : "a, b";
    int n = one_in(9) ? Z() : 2;
    return n > 3 ? 0 : flux_save_npz_with(path, n, names, what);
}
static void visits(void) {
    int64_t sum = 0;
    flux_visit(L(), seen, &sum);
}
static int params_of(void) {
    flux_tensor *out[8];
    int most = one_in(3) ? Z() : below(8);
    return flux_params(L(), most < 1 ? NULL : out, most > 8 ? 8 : most);
}
static flux_rule chain_of_rules(void) {
    flux_rule list[20];
    int n = one_in(20) ? 20 : below(4);
    for (int i = 0; i < n; i++) list[i] = rule();
    return flux_optimiser_chain_with(n, list);
}
static flux_schedule sequence_of_some(void) {
    flux_schedule list[12];
    int n = one_in(20) ? 12 : below(4);
    for (int i = 0; i < n; i++) list[i] = one_in(3) ? schedule() : flux_schedule_for(1 + below(9), schedule());
    return flux_schedule_sequence_with(n, list);
}
static void stoppers(void) {
    flux_stopper s;
    memset(&s, 0, sizeof s);
    flux_patience(one_in(9) ? NULL : &s, B(), Z()), flux_early_stopping(&s, F(), Z(), F()), flux_plateau(&s, F(), Z(), F());
}
static flux_tensor *borrowed(void) {
    static const double memory[64];
    flux_shape s = flux_shape_of(T());
    return flux_borrow_with(one_in(9) ? NULL : memory, FLUX_U8, s.ndim >= 0 && s.ndim < 3 && s.dim[0] * (s.ndim > 1 ? s.dim[1] : 1) < 500 ? s : flux__shape(NULL, 0));
}
static flux_tensor *from_some(void) {
    static const double memory[64];
    flux_shape s = S();
    bool small = s.ndim >= 0 && s.ndim <= 4;
    for (int i = 0; i < s.ndim && i < FLUX_MAX_DIMS; i++) small = small && s.dim[i] >= 0 && s.dim[i] <= 2;
    bool refused = s.ndim < 0 || s.ndim > FLUX_MAX_DIMS;
    return flux_from_with(memory, small ? E() : FLUX_F64, small || refused ? s : flux__shape(NULL, 2));
}
static flux_layer *new_one(void) {
    static const flux_field fields[] = { { NULL, FLUX__END, 0, 0 } };
    static const flux_layer_type odd = { "Odd", NULL, 8, fields, NULL, 0 };
    static const char memory[64];
    return flux_new_with(one_in(2) ? NULL : &odd, memory);
}
static void limits_of(void) {
    flux_device cpu = { 0, 0 };
    flux_mem_limit(cpu, -1 - below(100));
    flux_mem_limit(cpu, (int64_t)64 << 20);
}
static void strict_threads(void) {
    static const int all[] = { 0, 1, 2, 3, -5, INT32_MIN, 4 };
    flux_threads(all[below(7)]);
}

/* ---------------- the table: what kind of result, which function, how it is called */

#define UNARY(X, f) X(T, f, (f)(T()))
#define BINARY(X, f) X(T, f, (f)(T(), T()))
#define OVER(X, f) X(T, f, f(one_in(9) ? Z() : 1 + below(3), reduce_o()))
#define LOSS(X, f) X(T, f, (f)(T(), T())) X(T, f##_with, f##_with(loss_o()))
/* The rows of the table of operations, and the losses: CALLS(X) walks them with X_ROW and X_LOSS. */
#define ROW(X, n, call, f) FLUX__PUBLIC_OF_1(n, call, UNARY(X, f)) FLUX__PUBLIC_OF_2(n, call, BINARY(X, f))
#define NUMBER_ROW(NAME, name, n, dt, call, ...) ROW(NUMBER, n, call, flux_##name)
#define TRY_ROW(NAME, name, n, dt, call, ...) ROW(TRY, n, call, flux_##name)
#define NUMBER_LOSS(name, per) LOSS(NUMBER, flux_##name)
#define TRY_LOSS(name, per) LOSS(TRY, flux_##name)
#define CALLS(X) \
    FLUX__ELEMENTWISE(X##_ROW) FLUX__LOSSES(X##_LOSS) \
    UNARY(X, flux_gpu) UNARY(X, flux_cpu) UNARY(X, flux_cu) UNARY(X, flux_roc) UNARY(X, flux_copy) \
    UNARY(X, flux_detach) UNARY(X, flux_identity) UNARY(X, flux_hardsigmoid) \
    UNARY(X, flux_logsigmoid) UNARY(X, flux_hardtanh) UNARY(X, flux_relu6) UNARY(X, flux_selu) \
    UNARY(X, flux_gelu_tanh) UNARY(X, flux_gelu_sigmoid) UNARY(X, flux_gelu_erf) \
    UNARY(X, flux_swish) UNARY(X, flux_hardswish) UNARY(X, flux_lisht) UNARY(X, flux_mish) \
    UNARY(X, flux_softsign) UNARY(X, flux_leakyrelu) UNARY(X, flux_rrelu) UNARY(X, flux_elu) \
    UNARY(X, flux_celu) UNARY(X, flux_softshrink) UNARY(X, flux_trelu) UNARY(X, flux_sum) \
    UNARY(X, flux_mean) UNARY(X, flux_var) UNARY(X, flux_std) UNARY(X, flux_cumsum) UNARY(X, flux_cumprod) UNARY(X, flux_tril) UNARY(X, flux_triu) UNARY(X, flux_diag) \
    UNARY(X, flux_trace) UNARY(X, flux_isnan) UNARY(X, flux_isfinite) UNARY(X, flux_prod) UNARY(X, flux_max) \
    UNARY(X, flux_min) UNARY(X, flux_any) UNARY(X, flux_all) UNARY(X, flux_norm) \
    UNARY(X, flux_logsumexp) UNARY(X, flux_argmax) UNARY(X, flux_argmin) UNARY(X, flux_softmax) \
    UNARY(X, flux_logsoftmax) UNARY(X, flux_flatten) UNARY(X, flux_transpose) \
    UNARY(X, flux_squeeze) UNARY(X, flux_onecold) UNARY(X, flux_make_causal_mask) \
    UNARY(X, flux__same) BINARY(X, flux_matmul) BINARY(X, flux_outer) BINARY(X, flux_dot) \
    BINARY(X, flux_accuracy) BINARY(X, flux_confusion) BINARY(X, flux_precision) BINARY(X, flux_recall) BINARY(X, flux_f1) \
    BINARY(X, flux_r2) BINARY(X, flux_perplexity) BINARY(X, flux_topk_accuracy) \
    X(T, flux_topk_accuracy_with, flux_topk_accuracy_with(topk_o())) X(T, flux_metric_value, flux_metric_value(L())) \
    X(I, flux_metric_add, flux_metric_add(L(), T(), T())) X(V, flux_metric_reset, flux_metric_reset(L())) \
    X(I, flux_loadmodel, flux_loadmodel(L(), L())) X(L, flux_averaged_with, flux_averaged_with(averaged_o())) \
    X(I, flux_update_average, flux_update_average(L(), L())) \
    X(L, flux_metric_with, flux_metric_with(metric_o())) \
    BINARY(X, flux_vcat) OVER(X, flux_sum_with) OVER(X, flux_mean_with) OVER(X, flux_var_with) \
    OVER(X, flux_prod_with) OVER(X, flux_max_with) OVER(X, flux_min_with) OVER(X, flux_any_with) \
    OVER(X, flux_all_with) OVER(X, flux_norm_with) OVER(X, flux_logsumexp_with) \
    OVER(X, flux_std_with) OVER(X, flux_cumsum_with) OVER(X, flux_cumprod_with) OVER(X, flux_tril_with) OVER(X, flux_triu_with) OVER(X, flux_diag_with) \
    OVER(X, flux_argmax_with) OVER(X, flux_argmin_with) OVER(X, flux_softmax_with) \
    OVER(X, flux_logsoftmax_with) LOSS(X, flux_ctc_loss) \
    X(T, flux_label_smoothing, flux_label_smoothing(T(), F(), Z())) \
    X(T, flux_leakyrelu_with, flux_leakyrelu_with(act_o())) \
    X(T, flux_rrelu_with, flux_rrelu_with(act_o())) X(T, flux_elu_with, flux_elu_with(act_o())) \
    X(T, flux_celu_with, flux_celu_with(act_o())) \
    X(T, flux_softshrink_with, flux_softshrink_with(act_o())) \
    X(T, flux_trelu_with, flux_trelu_with(act_o())) \
    X(T, flux_glorot_uniform, flux_glorot_uniform(S())) \
    X(T, flux_glorot_normal, flux_glorot_normal(S())) \
    X(T, flux_kaiming_uniform, flux_kaiming_uniform(S())) \
    X(T, flux_kaiming_normal, flux_kaiming_normal(S())) \
    X(T, flux_truncated_normal, flux_truncated_normal(few(S()))) \
    X(T, flux_lecun_normal, flux_lecun_normal(few(S()))) X(T, flux_orthogonal, flux_orthogonal(few(S()))) \
    X(T, flux_identity_init, flux_identity_init(S())) X(T, flux_zeros32, flux_zeros32(S())) \
    X(T, flux_ones32, flux_ones32(S())) X(T, flux_rand32, flux_rand32(S())) \
    X(T, flux_randn32, flux_randn32(S())) X(T, flux_init_with, flux_init_with(N(), init_o())) \
    X(T, flux_eval, flux_eval(T())) X(T, flux_reshape_with, flux_reshape_with(T(), S())) \
    X(T, flux_permute_with, flux_permute_with(T(), S())) \
    X(T, flux_broadcast_to_with, flux_broadcast_to_with(T(), S())) \
    X(T, flux_flip_with, flux_flip_with(T(), S())) X(T, flux_repeat_with, flux_repeat_with(T(), S())) \
    X(T, flux_glu, flux_glu(T(), Z())) X(T, flux_unsqueeze, flux_unsqueeze(T(), Z())) \
    X(T, flux_nth, flux_nth(T(), Z())) X(T, flux_take, flux_take(T(), I())) \
    X(T, flux_drop, flux_drop(T(), I())) X(T, flux_onehot, flux_onehot(T(), I())) \
    X(T, flux_conv_with, flux_conv_with(conv_o())) \
    X(T, flux_crosscor_with, flux_crosscor_with(conv_o())) \
    X(T, flux_conv_transpose_with, flux_conv_transpose_with(conv_o())) \
    X(T, flux_maxpool_with, flux_maxpool_with(pool_o())) \
    X(T, flux_meanpool_with, flux_meanpool_with(pool_o())) \
    X(T, flux_lpnormpool_with, flux_lpnormpool_with(pool_o())) \
    X(T, flux_rand_with, flux_rand_with(S(), E())) \
    X(T, flux_randn_with, flux_randn_with(S(), E())) \
    X(T, flux_full_with, flux_full_with(S(), F(), E())) \
    X(T, flux_arange, flux_arange(F(), F(), F())) X(T, flux_eye, flux_eye(I())) \
    X(T, flux_scalar, flux_scalar(F())) X(T, flux__number, flux__number(F())) \
    X(T, flux_from_with, from_some()) X(T, flux_borrow_with, borrowed()) \
    X(T, flux_where, (flux_where)(T(), T(), T())) X(T, flux_clamp, flux_clamp(T(), F(), F())) \
    X(T, flux_to_dtype, flux_to_dtype(T(), E())) X(T, flux_slice, flux_slice(T(), Z(), I(), I())) \
    X(T, flux_slice_step, flux_slice_step(T(), Z(), I(), I(), I())) \
    X(T, flux_select, flux_select(T(), Z(), I())) \
    X(T, flux_pad_by, flux_pad_by(T(), F(), S(), S())) \
    X(T, flux_pad_with, flux_pad_with(T(), F(), S())) X(T, flux_gather, flux_gather(T(), Z(), T())) \
    X(T, flux_take_along, flux_take_along(T(), Z(), T())) X(T, flux_masked_fill, flux_masked_fill(T(), T(), F())) \
    X(T, flux_split_with, flux_split_with(T(), Z(), S())) X(T, flux_chunk, flux_chunk(T(), Z(), I())) \
    X(T, flux_linspace, flux_linspace(F(), F(), I())) X(T, flux_values_with, some_values()) \
    X(T, flux_randint_with, flux_randint_with(I(), I(), S())) X(T, flux_bernoulli, flux_bernoulli(T())) \
    X(T, flux_categorical_with, flux_categorical_with(FLUX_OPTIONS(flux_categorical_opts, T(), .temperature = F()))) \
    X(T, flux_topk, flux_topk(T(), I(), Z())) X(T, flux_randperm, flux_randperm(I())) \
    X(T, flux_sort_with, flux_sort_with(FLUX_OPTIONS(flux_sort_opts, T(), Z(), one_in(2)))) \
    X(T, flux_argsort_with, flux_argsort_with(FLUX_OPTIONS(flux_sort_opts, T(), Z(), one_in(2)))) \
    X(T, flux_einsum_with, some_einsum()) \
    X(T, flux_custom_with, some_custom()) X(T, flux_operate, some_operation()) \
    X(T, flux_scatter_add, flux_scatter_add(T(), Z(), T(), T())) \
    X(T, flux_cat_with, many_tensors(flux_cat_with)) \
    X(T, flux_stack_with, many_tensors(flux_stack_with)) X(T, flux_tuple_with, tuple_of_some()) \
    X(T, flux_expr_with, formula()) X(T, flux_call_layer, flux_call_layer(L(), T())) \
    X(T, flux_call_with, call_some()) X(T, flux_activations, flux_activations(L(), T())) \
    X(T, flux_dot_product_attention_with, flux_dot_product_attention_with(attention_o())) \
    X(T, flux_dot_product_attention_scores_with, flux_dot_product_attention_scores_with(attention_o())) \
    X(T, flux_normalise, flux_normalise(T(), S(), F())) X(Q, flux_weight, flux_weight(L())) \
    X(Q, flux_bias, flux_bias(L())) X(T, flux_destructure, flux_destructure(L())) \
    X(T, flux_load_idx, flux_load_idx(P())) X(T, flux_load_npy, flux_load_npy(P())) \
    X(T, flux_load_csv, flux_load_csv(P())) X(T, flux_load_tensor, flux_load_tensor(P(), N())) \
    X(T, flux_load_npz, flux_load_npz(P(), one_in(2) ? NULL : N())) X(I, flux_save_npz_with, arrays()) \
    X(N, flux_npz_names, flux_npz_names(P(), text, (size_t)below(300))) \
    X(P, flux_load_table_with, flux_load_table_with(FLUX_OPTIONS(flux_table_opts, P(), .missing = F()))) \
    X(T, flux_load_image_with, flux_load_image_with(FLUX_OPTIONS(flux_image_opts, PIC(), .width = 1 + below(9), .channels = below(6)))) \
    X(I, flux_save_image, flux_save_image(T(), P())) X(I, flux_save_images, flux_save_images(T(), P(), Z())) \
    X(P, flux_image_folder_with, flux_image_folder_with(FLUX_OPTIONS(flux_image_opts, P(), .height = Z()))) \
    X(P, flux_folder_data, flux_folder_data(FO())) X(N, flux_folder_length, flux_folder_length(FO())) \
    X(N, flux_folder_classes, flux_folder_classes(FO())) X(P, flux_folder_class, flux_folder_class(FO(), Z())) \
    X(P, flux_folder_path, flux_folder_path(FO(), I())) \
    X(N, flux_table_rows, flux_table_rows(TB())) X(N, flux_table_columns, flux_table_columns(TB())) \
    X(P, flux_column_name, flux_column_name(TB(), Z())) X(N, flux_column_missing, flux_column_missing(TB(), N())) \
    X(N, flux_column_labels, flux_column_labels(TB(), N())) X(P, flux_column_label, flux_column_label(TB(), one_in(2) ? "name" : N(), I())) \
    X(T, flux_columns, flux_columns(TB(), one_in(2) ? "name, a" : one_in(3) ? NULL : N())) \
    X(Q, flux_param, flux_param(L(), N())) X(Q, flux_grad, flux_grad(G(), T())) \
    X(Q, flux_grad_param, flux_grad_param(G(), L(), N())) X(Q, flux_grad_at, flux_grad_at(G(), Z())) \
    X(T, flux_grads_norm, flux_grads_norm(G())) X(T, flux_clip_global, flux_clip_global(G(), F())) \
    X(I, flux_grads_scale, flux_grads_scale(G(), F())) X(I, flux_grads_add, flux_grads_add(G(), G())) \
    X(I, flux_clip_value, flux_clip_value(G(), F())) X(N, flux_num_grads, flux_num_grads(G())) \
    X(V, flux_grad_name, (void)flux_grad_name(G(), Z())) \
    X(Y, flux_grads_text, (int64_t)flux_grads_text(G(), text, (size_t)below(300))) \
    X(V, flux_print_grads, flux_print_grads(G())) \
    X(V, flux_profile_start, flux_profile_start()) X(V, flux_profile_stop, flux_profile_stop()) \
    X(V, flux_print_profile, flux_print_profile()) X(V, flux_profile_text, (void)flux_profile_text(NULL, 0)) \
    X(V, flux_profile, flux_profile(one_in(3) ? NULL : profiled, NULL)) \
    X(T, flux_withgradient, with_gradient()) X(T, flux_scaled_loss, flux_scaled_loss(ST(), T())) \
    X(I, flux_kfolds, folds()) X(T, flux_oversample, flux_oversample(T(), T(), (uint64_t)I())) \
    X(T, flux_undersample, flux_undersample(T(), T(), (uint64_t)I())) UNARY(X, flux_balanced_weights) \
    X(T, flux_shuffleobs, flux_shuffleobs(T(), (uint64_t)I())) \
    X(T, flux_to_tensor, flux_to_tensor(V(), T())) X(L, flux_gpu_layer, flux_gpu_layer(L())) \
    X(L, flux_cpu_layer, flux_cpu_layer(L())) X(L, flux_cu_layer, flux_cu_layer(L())) \
    X(L, flux_roc_layer, flux_roc_layer(L())) X(L, flux_to_layer, flux_to_layer(V(), L())) \
    X(L, flux_copy_layer, flux_copy_layer(L())) X(L, flux_f16, flux_f16(L())) \
    X(L, flux_bf16, flux_bf16(L())) X(L, flux_f32, flux_f32(L())) X(L, flux_f64, flux_f64(L())) \
    X(L, flux_remove_weightnorms, flux_remove_weightnorms(L())) \
    X(L, flux__layer_of_layer, flux__layer_of_layer(L())) \
    X(L, flux_rnn_with, flux_rnn_with(recurrent_o())) \
    X(L, flux_lstm_with, flux_lstm_with(recurrent_o())) \
    X(L, flux_gru_with, flux_gru_with(recurrent_o())) \
    X(L, flux_gruv3_with, flux_gruv3_with(recurrent_o())) \
    X(L, flux_rnncell_with, flux_rnncell_with(recurrent_o())) \
    X(L, flux_lstmcell_with, flux_lstmcell_with(recurrent_o())) \
    X(L, flux_grucell_with, flux_grucell_with(recurrent_o())) \
    X(L, flux_gruv3cell_with, flux_gruv3cell_with(recurrent_o())) \
    X(L, flux_recurrence_with, flux_recurrence_with(recurrence_o())) \
    X(L, flux_conv_layer_with, flux_conv_layer_with(conv_layer_o())) \
    X(L, flux_crosscor_layer_with, flux_crosscor_layer_with(conv_layer_o())) \
    X(L, flux_conv_transpose_layer_with, flux_conv_transpose_layer_with(conv_layer_o())) \
    X(L, flux_depthwiseconv_with, flux_depthwiseconv_with(conv_layer_o())) \
    X(L, flux_maxpool_layer_with, flux_maxpool_layer_with(pool_layer_o())) \
    X(L, flux_meanpool_layer_with, flux_meanpool_layer_with(pool_layer_o())) \
    X(L, flux_lpnormpool_layer_with, flux_lpnormpool_layer_with(pool_layer_o())) \
    X(L, flux_adaptivemaxpool, flux_adaptivemaxpool(S())) \
    X(L, flux_adaptivemeanpool, flux_adaptivemeanpool(S())) \
    X(L, flux_globalmaxpool, flux_globalmaxpool()) \
    X(L, flux_globalmeanpool, flux_globalmeanpool()) \
    X(L, flux_globallpnormpool, flux_globallpnormpool(F())) \
    X(L, flux_alphadropout, flux_alphadropout(F())) \
    X(L, flux_batchnorm_with, flux_batchnorm_with(norm_o())) \
    X(L, flux_instancenorm_with, flux_instancenorm_with(norm_o())) \
    X(L, flux_groupnorm_with, flux_groupnorm_with(groupnorm_o())) \
    X(L, flux_dense_with, flux_dense_with(dense_o())) \
    X(L, flux_scale_with, flux_scale_with(scale_o())) \
    X(L, flux_bilinear_with, flux_bilinear_with(bilinear_o())) \
    X(L, flux_embedding_with, flux_embedding_with(embedding_o())) \
    X(L, flux_embeddingbag_with, flux_embeddingbag_with(embeddingbag_o())) \
    X(L, flux_multiheadattention_with, flux_multiheadattention_with(mha_o())) \
    X(L, flux_layernorm_with, flux_layernorm_with(layernorm_o())) \
    X(L, flux_rmsnorm_with, flux_rmsnorm_with(rmsnorm_o())) X(L, flux_swiglu_with, flux_swiglu_with(swiglu_o())) \
    X(L, flux_positionembedding_with, flux_positionembedding_with(FLUX_OPTIONS(flux_positionembedding_opts, I(), I(), J()))) X(T, flux_rotary_with, flux_rotary_with(rotary_o())) \
    X(I, flux_cache, flux_cache(L(), one_in(2) ? 0 : I())) X(V, flux_cached, flux_cached(L())) \
    X(L, flux_dropout_with, flux_dropout_with(dropout_o())) \
    X(L, flux_upsample_with, flux_upsample_with(upsample_o())) \
    X(L, flux_pixelshuffle, flux_pixelshuffle(I())) \
    X(L, flux_weightnorm_with, flux_weightnorm_with(weightnorm_o())) \
    X(L, flux_chain_with, chain_of_some()) X(L, flux_variables_with, variables_of_some()) X(L, flux_maxout_with, maxout_of_some()) \
    X(L, flux_parallel_with, joined(flux_parallel_with)) \
    X(L, flux_pairwisefusion_with, joined(flux_pairwisefusion_with)) \
    X(L, flux_skipconnection_with, flux_skipconnection_with(L(), L(), N())) \
    X(L, flux_function, flux_function(A(), N())) X(L, flux_function2, flux_function2(A2(), N())) \
    X(L, flux__layer_of_fn, flux__layer_of_fn(A())) \
    X(L, flux__layer_of_fn2, flux__layer_of_fn2(A2())) X(L, flux_fmap, flux_fmap(A(), L())) \
    X(L, flux_mapleaves, flux_mapleaves(A(), L())) \
    X(L, flux_fmap_with, flux_fmap_with(leaf_as_it_is, one_in(2) ? words : NULL, L(), one_in(2) ? excluded : NULL)) \
    X(L, flux_new_with, new_one()) X(L, flux_named, flux_named(N(), L())) \
    X(L, flux_restructure, flux_restructure(L(), T())) X(M, flux_child, flux_child(L(), Z())) \
    X(S, flux_gpu_state, flux_gpu_state(ST())) X(S, flux_cpu_state, flux_cpu_state(ST())) \
    X(S, flux_cu_state, flux_cu_state(ST())) X(S, flux_roc_state, flux_roc_state(ST())) \
    X(S, flux_to_state, flux_to_state(V(), ST())) X(S, flux_setup, flux_setup(rule(), L())) \
    X(S, flux_setup_named, flux_setup_named(one_in(2) ? "Adam" : N(), F(), L())) \
    X(D, flux_gpu_loader, flux_gpu_loader(D())) X(D, flux_cpu_loader, flux_cpu_loader(D())) \
    X(D, flux_cu_loader, flux_cu_loader(D())) X(D, flux_roc_loader, flux_roc_loader(D())) \
    X(D, flux_to_loader, flux_to_loader(V(), D())) X(D, flux_cuiterator, flux_cuiterator(D())) \
    X(D, flux_dataloader_with, flux_dataloader_with(loader_o())) \
    X(D, flux_mapobs, flux_mapobs(A(), D())) X(G, flux_gradient_with, gradient_of_some()) \
    X(G, flux_gradient_with, gradient_of_layer()) \
    X(R, flux_rule_with, flux_rule_with(N(), rule_o())) \
    X(R, flux_optimiser_chain_with, chain_of_rules()) X(R, flux_scheduled, flux_scheduled(rule(), schedule())) \
    X(J, flux_schedule_constant, flux_schedule_constant(F())) X(J, flux_schedule_step, flux_schedule_step(F(), F(), Z())) \
    X(J, flux_schedule_exp, flux_schedule_exp(F(), F())) \
    X(J, flux_schedule_restarts, flux_schedule_restarts(F(), F(), Z())) \
    X(J, flux_schedule_cosine, flux_schedule_cosine(F(), F(), Z())) \
    X(J, flux_schedule_linear, flux_schedule_linear(F(), F(), Z())) \
    X(J, flux_schedule_onecycle, flux_schedule_onecycle(Z(), F())) \
    X(J, flux_schedule_of, flux_schedule_of(one_in(4) ? (null_in = true, (flux_schedule_fn)NULL) : falling, NULL)) \
    X(J, flux_schedule_for, flux_schedule_for(Z(), schedule())) X(J, flux_schedule_sequence_with, sequence_of_some()) \
    X(F, flux_schedule_at, flux_schedule_at(schedule(), Z())) X(F, flux_rate, flux_rate(ST())) \
    X(R, flux_accumgrad, flux_accumgrad(Z(), rule())) \
    X(R, flux_mixed_precision, flux_mixed_precision(rule())) X(I, flux_update, step()) \
    X(I, flux_update, flux_update(ST(), L(), G())) \
    X(I, flux_adjust_with, flux_adjust_with(ST(), rule_o())) \
    X(I, flux_adjust_part_with, flux_adjust_part_with(ST(), L(), rule_o())) \
    X(I, flux_train, (flux_train)(loss_of, L(), D(), ST())) X(I, flux_train_with, flux_train_with(train_o())) \
    X(I, flux_splitobs, splits()) \
    X(I, flux_graph_dot, flux_graph_dot(T(), P())) X(I, flux_save_npy, flux_save_npy(T(), P())) \
    X(I, flux_save_tensor, flux_save_tensor(T(), P())) \
    X(I, flux_save_layer, flux_save_layer(L(), P())) \
    X(I, flux_load_layer, flux_load_layer(L(), P())) \
    X(I, flux_save_state, flux_save_state(ST(), P())) \
    X(I, flux_load_state, flux_load_state(ST(), P())) X(I, flux_save_all_with, items(true)) \
    X(I, flux_load_all_with, items(false)) X(I, flux_load_torch, flux_load_torch(L(), P(), N())) \
    X(I, flux_save_torch, flux_save_torch(L(), P(), N())) \
    X(I, flux_eval_all, eval_some()) X(I, flux_read, read_one()) \
    X(I, flux_set_param, flux_set_param(L(), N(), T())) \
    X(I, flux_export_c_with, flux_export_c_with(export_o())) \
    X(I, flux_prewarm_with, flux_prewarm_with(L(), S())) X(Y, flux_get_devices, devices_of()) \
    X(N, flux_ndim, flux_ndim(T())) X(N, flux_num_items, flux_num_items(T())) \
    X(N, flux_dim, flux_dim(T(), Z())) X(N, flux_len, flux_len(T())) \
    X(N, flux_params, params_of()) X(N, flux_num_params, flux_num_params(L())) \
    X(N, flux_skipped, flux_skipped(ST())) X(N, flux_length, flux_length(D())) \
    X(Y, flux_device_count, flux_device_count(N())) X(Y, flux_dtype_of, (int)flux_dtype_of(T())) \
    X(Y, flux_dtype_size, (int64_t)flux_dtype_size(E())) \
    X(Y, flux_device_id, flux_device_id(V())) X(Y, flux_training, flux_training(L())) \
    X(Y, flux_device_equal, flux_device_equal(V(), V())) \
    X(Y, flux_functional, flux_functional(N())) \
    X(Y, flux_functional_with, flux_functional_with(N(), N())) \
    X(Y, flux_gpu_backend_is_set, flux_gpu_backend_is_set()) \
    X(Y, flux_mem_stats, flux_mem_stats(V()).live) X(Y, flux_first, flux_first(D()).size) \
    X(Y, flux_tensor_text, (int64_t)flux_tensor_text(T(), text, (size_t)below(300))) \
    X(Y, flux_layer_text, (int64_t)flux_layer_text(L(), text, (size_t)below(300))) \
    X(Y, flux_loader_text, (int64_t)flux_loader_text(D(), text, (size_t)below(300))) \
    X(Y, flux_state_text, (int64_t)flux_state_text(ST(), text, (size_t)below(300))) \
    X(Y, flux_summary_text, (int64_t)flux_summary_text(L(), S(), text, (size_t)below(300))) \
    X(Y, flux_format_bytes, (int64_t)flux_format_bytes(I(), text, (size_t)below(300))) \
    X(F, flux_item, flux_item(T())) X(F, flux_at_with, flux_at_with(T(), S())) \
    X(F, flux_loss_scale, flux_loss_scale(ST())) \
    X(F, flux_gradcheck, flux_gradcheck(cubes, NULL, T(), Z())) X(P, flux_data, flux_data(T())) \
    X(P, flux_error, flux_error()) X(P, flux_gpu_backend, flux_gpu_backend()) \
    X(Y, flux_device_name, flux_device_name(V()) != NULL) \
    X(Y, flux_device_backend, flux_device_backend(V()) != NULL) \
    X(Y, flux_functional_reason, flux_functional_reason(N()) != NULL) \
    X(P, flux_supported_devices, flux_supported_devices()) \
    X(P, flux_dtype_name, flux_dtype_name(E())) X(H, flux_shape_of, flux_shape_of(T())) \
    X(H, flux_outputsize_with, flux_outputsize_with(L(), S())) \
    X(U, flux_get_device_with, flux_get_device_with(device_o())) \
    X(U, flux_device_of_tensor, flux_device_of_tensor(T())) \
    X(U, flux_device_of_layer, flux_device_of_layer(L())) \
    X(U, flux_device_of_loader, flux_device_of_loader(D())) \
    X(U, flux_device_of_state, flux_device_of_state(ST())) X(Y, flux_version, flux_version()) \
    X(P, flux_pointer, flux_pointer(T())) X(T, flux_from_dlpack, dlpack_there_and_back(false)) \
    X(T, flux_from_dlpack_versioned, dlpack_there_and_back(true)) X(V, flux_to_dlpack, given_away(false)) \
    X(V, flux_to_dlpack_versioned, given_away(true)) \
    X(T, flux_borrow_on, borrowed_on()) X(V, flux_stream, (void)flux_stream(V())) \
    X(I, flux_use_stream, flux_use_stream(V(), NULL)) X(V, flux_failed, (void)flux_failed()) \
    X(V, flux_clear, flux_clear()) X(V, flux_scope_open, scopes_open()) \
    X(V, flux_scope_close, scopes_close()) X(V, flux_retain, retain_and_release()) \
    X(V, flux_release, retain_and_release()) X(V, flux_keep_object, keep_one()) \
    X(V, flux_carry_object, carry_one()) X(V, flux_assign, assign_one()) \
    X(V, flux_threads, strict_threads()) X(V, flux_default_device, flux_default_device(V())) \
    X(V, flux_synchronise_device, flux_synchronise_device(V())) \
    X(V, flux_mem_trim, flux_mem_trim(V())) X(V, flux_mem_limit, limits_of()) \
    X(V, flux_allow_tf32, flux_allow_tf32(B())) X(V, flux_seed, flux_seed((uint64_t)I())) \
    X(T, flux_random_state, flux_random_state()) X(I, flux_set_random_state, flux_set_random_state(T())) \
    X(V, flux_print_tensor, flux_print_tensor(T())) X(V, flux_print_layer, flux_print_layer(L())) \
    X(V, flux_print_loader, flux_print_loader(D())) \
    X(V, flux_print_state, flux_print_state(ST())) \
    X(V, flux_summary_with, flux_summary_with(L(), S())) \
    X(V, flux_print_limits, flux_print_limits(Z(), Z())) \
    X(V, flux_print_ascii, flux_print_ascii(B())) \
    X(V, flux_name_function, flux_name_function(fails, "fails")) \
    X(V, flux_testmode, flux_testmode(L(), B())) X(V, flux_trainmode, flux_trainmode(L(), B())) \
    X(V, flux_freeze, flux_freeze(L())) X(V, flux_thaw, flux_thaw(L())) \
    X(V, flux_visit, visits()) X(V, flux_patience, stoppers()) \
    X(V, flux_early_stopping, stoppers()) X(V, flux_plateau, stoppers()) \
    X(V, flux__each_start, epochs(false)) X(V, flux__each_next, epochs(true)) \
    X(V, flux__each_leave, epochs(true)) X(V, flux_progress, flux_progress(N(), T())) \
    X(V, flux_progress_number, flux_progress_number(N(), F())) \
    X(V, flux__times_start, some_turns()) X(V, flux__times_next, some_turns()) \
    X(V, flux__times_leave, some_turns()) X(V, flux__block_enter, some_turns()) \
    X(V, flux__block_end, some_turns()) X(V, flux__block_leave, some_turns()) \
    X(Y, flux__shape, S().ndim) X(T, flux_allreduce, flux_allreduce(C(), T(), agg())) \
    X(T, flux_reduce_with, flux_reduce_with(C(), T(), agg(), root_o())) \
    X(T, flux_broadcast_with, flux_broadcast_with(C(), T(), root_o())) \
    X(T, flux_allgather, flux_allgather(C(), T())) \
    X(T, flux_reduce_scatter, flux_reduce_scatter(C(), T(), agg())) \
    X(T, flux_synchronize_tensor, flux_synchronize_tensor(C(), T(), root_o())) \
    X(L, flux_synchronize_layer, flux_synchronize_layer(C(), L(), root_o())) \
    X(S, flux_synchronize_state, flux_synchronize_state(C(), ST(), root_o())) \
    X(I, flux_distributed_save_tensor, flux_distributed_save_tensor(C(), T(), P())) \
    X(I, flux_distributed_save_layer, flux_distributed_save_layer(C(), L(), P())) \
    X(I, flux_distributed_save_state, flux_distributed_save_state(C(), ST(), P())) \
    X(R, flux_distributed_optimiser_with, flux_distributed_optimiser_with(C(), rule(), distributed_rule_o())) \
    X(Y, flux_distributed_with, join()) X(Y, flux_distributed_end, join()) \
    X(Y, flux_rank_of, flux_rank_of(world)) X(Y, flux_size_of, flux_size_of(world)) \
    X(Y, flux_local_rank_of, flux_local_rank_of(world)) \
    X(Y, flux_comm_name, flux_comm_name(world) != NULL) X(I, flux_barrier, flux_barrier(C())) \
    X(Y, flux_interrupted_with, flux_interrupted())

/* A world of one, mostly. */
static flux_comm *world;
static flux_comm *C(void) {
    if (!world) world = flux_distributed();
    return one_in(12) ? NULL : world;
}
static flux_agg agg(void) { return (flux_agg)(one_in(20) ? 77 : below(6)); }
static flux_root_opts root_o(void) { return FLUX_OPTIONS(flux_root_opts, one_in(12) ? Z() : 0); }
static flux_distributed_rule_opts distributed_rule_o(void) {
    return FLUX_OPTIONS(flux_distributed_rule_opts, .bucket = one_in(3) ? I() : 1 << 20, .shard = one_in(2));
}
static bool join(void) {
    flux_comm *c = flux_distributed(.backend = one_in(3) ? N() : FLUX_ANY, .timeout = F());
    if (c) flux_distributed_end(c);
    return c != NULL;
}

static flux_tensor *many_tensors(flux_tensor *(*f)(int, int, flux_tensor *const *)) {
    int dim = Z(), n = how_many();
    return f(dim, n, TS(n));
}
static flux_tensor *some_einsum(void) {
    static const char *const formulas[] = { "ij->ji", "ij,jk->ik", "i,i", "ii", "bik,bkj->bij", "ij,ik", "", "->", "a-b", "ab,,", "ij,jk,kl->il", "i...,...->...i", "...j,jk", "...", "..i" };
    int n = 1 + below(3);
    return flux_einsum_with(one_in(20) ? NULL : formulas[below(15)], n, TS(n));
}
/* Forward gives what it is given, nothing, or a tuple; backward whatever there is. */
static flux_tensor *borrowed_on(void) {
    static double memory[64];
    flux_shape s = S();
    bool small = s.ndim >= 0 && s.ndim < 3 && s.dim[0] < 8 && (s.ndim < 2 || s.dim[1] < 8);
    flux_device d = V();
    if (d.backend > 0) d.backend = -1;    /* host memory is not a GPU's */
    return flux_borrow_on(d, one_in(9) ? NULL : memory, E(), small ? s : flux__shape(NULL, 0), NULL, NULL);
}
/* What was given and can't be taken stays the giver's: taken once there is memory, it is freed. */
#define THERE_AND_BACK(type, give, take) do {                                                        \
        struct type *m = give(x);                                                                    \
        y = take(m);                                                                                 \
        if (m && !y) flux__test_memory(-1), y = take(m);                                                   \
    } while (0)
static flux_tensor *dlpack_there_and_back(bool versioned) {
    flux_tensor *x = T(), *y;
    if (versioned) THERE_AND_BACK(DLManagedTensorVersioned, flux_to_dlpack_versioned, flux_from_dlpack_versioned);
    else THERE_AND_BACK(DLManagedTensor, flux_to_dlpack, flux_from_dlpack);
    return y;
}
static void given_away(bool versioned) {
    flux_tensor *x = dlpack_there_and_back(versioned);
    if (x && below(2)) flux_eval(flux_add(x, 1));
}
static flux_tensor *any_forward(int n, flux_tensor *const *x, void *f) {
    flux_fn own = *(flux_fn *)f;
    return own ? own(x[n - 1]) : below(2) ? flux_tuple(x[0], x[n - 1]) : x[0];
}
static void any_backward(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *f) {
    flux_fn own = *(flux_fn *)f;
    for (int i = 0; i < n; i++) dx[i] = own ? own(g) : below(3) ? g : below(2) ? x[0] : y;
}
static void profiled(void *user) {
    (void)user;
    flux_eval(flux_exp(T()));
}
static flux_tensor *some_custom(void) {
    static flux_fn own[8];
    static int at;
    flux_fn *f = &own[at++ % 8];
    int n = how_many();
    *f = A();
    return flux_custom_with(one_in(20) ? NULL : any_forward, one_in(5) ? NULL : any_backward, f, n, TS(n));
}
static flux_tensor *some_operation(void) {
    static const char *const all[] = { "x * y", "x", "y - 1", "exp(-x) ? 1 : y", "1", "x < y && !x", "", "(", "sin(x", "pow(x, y)", "z", NULL };
    static const char *const given[] = { "x + y", "1", "x" };
    const char *one[1];
    int n = 1 + below(3);
    one[0] = all[below(11)];
    static const flux_operation stated = { "stated", "x, y", 3, given };
    const flux_operation op = { one_in(20) ? NULL : "own", n == 1 ? "x" : n == 2 ? "x, y" : "x,", one_in(9) ? 2 : 1, one };
    return one_in(3) ? flux_operate(&stated, n, TS(n)) : flux_operate(one_in(20) ? NULL : &op, n, TS(n));
}
static flux_tensor *some_values(void) {
    static const double values[] = { 1, -2.5, 1e300 };
    int n = below(5) - 1;
    return flux_values_with(n > 3 ? 3 : n, values);
}
static flux_tensor *tuple_of_some(void) {
    int n = how_many();
    return flux_tuple_with(n, TS(n));
}
static flux_tensor *formula(void) {
    flux_tensor *xs[2] = { T(), T() };
    return flux_expr_with(N(), below(3), one_in(3) ? N() : "x, y", xs);
}
static flux_tensor *call_some(void) {
    flux_layer *m = L();
    int n = how_many();
    return flux_call_with(m, n, TS(n));
}
static int eval_some(void) {
    int n = how_many();
    return flux_eval_all(n, TS(n));
}
static flux_layer *chain_of_some(void) {
    int n = how_many();
    return flux_chain_with(n, LS(n), N());
}
static flux_layer *variables_of_some(void) {
    static flux_tensor *at[4];            /* flux_update writes here */
    flux_tensor **places[4];
    for (int i = 0; i < 4; i++) at[i] = T(), places[i] = one_in(20) ? NULL : &at[i];
    return flux_variables_with(one_in(20) ? (one_in(2) ? 33 + below(9) : -below(9)) : 1 + below(4), one_in(20) ? NULL : places);
}
static flux_layer *maxout_of_some(void) {
    int n = how_many();
    return flux_maxout_with(n, LS(n), N());
}
static flux_layer *joined(flux_layer *(*f)(flux_layer *, int, flux_layer *const *, const char *)) {
    flux_layer *m = L();
    int n = how_many();
    return f(m, n, LS(n), N());
}

/* The function `which` of the table, judged. */
#define RUN_T(expr) got_T(expr)
#define RUN_Q(expr) got_Q(expr)
#define RUN_L(expr) got_L(expr)
#define RUN_M(expr) got_M(expr)
#define RUN_S(expr) got_S(expr)
#define RUN_D(expr) got_D(expr)
#define RUN_G(expr) got_G(expr)
#define RUN_R(expr) got_R(expr)
#define RUN_J(expr) got_J(expr)
#define RUN_I(expr) got_I(expr)
#define RUN_N(expr) got_N(expr)
#define RUN_Y(expr) got_Y(expr)
#define RUN_F(expr) got_F(expr)
#define RUN_P(expr) got_P(expr)
#define RUN_H(expr) got_H(expr)
#define RUN_U(expr) got_U(expr)
#define RUN_V(expr) (expr, got_V())
#define NUMBER(kind, f, expr) + 1
#define TRY(kind, f, expr)                                                                           \
    if (which-- == 0) {                                                                              \
        now_called = #f;                                                                             \
        RUN_##kind(expr);                                                                            \
        return;                                                                                      \
    }
enum { CALLS_THERE_ARE = 0 CALLS(NUMBER) };
static void call(int which) { CALLS(TRY) }
/* Whether errors may begin with this word: it names a call, an operation of one's own ("own", "stated"), or a rule, which only a macro names. */
static bool is_a_call(const char *word) {
#define COMPARE(kind, f, expr)                                                                       \
    if (strncmp(#f, "flux_", 5) == 0 && strncmp(#f + 5, word, n) == 0 && (!#f[5 + n] || !strcmp(#f + 5 + n, "_with"))) return true;
#define COMPARE_ROW(NAME, name, n, dt, call, ...) ROW(COMPARE, n, call, flux_##name)
#define COMPARE_LOSS(name, per) LOSS(COMPARE, flux_##name)
    const size_t n = strlen(word);
    CALLS(COMPARE)
    return strcmp(word, "own") == 0 || strcmp(word, "stated") == 0 || strstr("flux_rule_with flux_setup_named", now_called);
}

/* ---------------- a round: the pool filled with good ones, then random calls */

static void put_at(slot *pool, int *n, void *object) {
    pool[*n].object = object, pool[*n].depth = 0;
    ++*n;
}

/* Tensors without elements, over whose other dims no loop may go: it would turn 2^36 times and more. */
static void fill_vast(void) {
    static const int64_t most = (int64_t)1 << 40, many = (int64_t)1 << 36;
    static const flux_dtype dtype[] = { FLUX_F32, FLUX_F32, FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL };
    const flux_shape shape[] = { FLUX_SHAPE(0, most), FLUX_SHAPE(most, 0), FLUX_SHAPE(4, 0, many), FLUX_SHAPE(4, many, 0), FLUX_SHAPE(many, 0, 2, 2), FLUX_SHAPE(0, many, 2, 2),
        FLUX_SHAPE(8, 8, many, 0), FLUX_SHAPE(8, many, 2, 0), FLUX_SHAPE(many, 4, 0), FLUX_SHAPE(5, many, 0), FLUX_SHAPE(1 << 20, 1 << 20, 0), FLUX_SHAPE(0) };
    for (int i = 0; i < 20; i++) {
        const flux_shape s = shape[i < 12 ? i : below(12)];
        const flux_dtype t = dtype[i < 3 ? 0 : below(10)];
        flux_tensor *x = flux_to_dtype(flux_full_with(s, 0, FLUX_F32), t);
        tensors[i].object = one_in(3) && t < FLUX_I32 ? flux_exp(x) : x, tensors[i].depth = 0;
    }
}

static void fill_pool(void) {
    static const int32_t label[] = { 0, 1, 2, 1 };
    int t = 0, m = 0, s = 0, l = 0, g = 0;
    memset(tensors, 0, sizeof tensors), memset(layers, 0, sizeof layers), memset(states, 0, sizeof states);
    memset(loaders, 0, sizeof loaders), memset(gradients, 0, sizeof gradients);
    flux_tensor *x = flux_rand(4, 3), *y = flux_rand(2, 3), *image = flux_rand(8, 8, 2, 2);
    flux_tensor *good[] = { x, y, image, flux_rand(3, 3, 2, 2), flux_rand(5, 4, 2), flux_rand(4), flux_rand(3), flux_scalar(2), flux_rand(4, 4), flux_rand_with(FLUX_SHAPE(4, 3), FLUX_F64),
        flux_rand_with(FLUX_SHAPE(4, 3), FLUX_F16), flux_rand_with(FLUX_SHAPE(3), FLUX_BF16), flux_from(label, 4), flux_to_dtype(flux_from(label, 4), FLUX_I64),
        flux_to_dtype(flux_from(label, 2, 2), FLUX_U8), flux_gt(x, 0.5), flux_zeros(0, 3), flux_tuple(x, y), flux_rand(1, 1), flux_rand(2, 1, 2, 1, 2, 1, 2, 1), flux_transpose(x),
        flux_slice(image, 0, 1, 7), flux_rand(9, 2, 3), flux_exp(x) };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) put_at(tensors, &t, good[i]);
    flux_layer *model = flux_chain(flux_dense(4, 5, flux_tanh), flux_dense(5, 2));
    flux_layer *fine[] = { model, flux_dense(4, 3), flux_conv_layer(FLUX_SHAPE(3, 3), 2, 3, flux_relu, .pad = FLUX_SAMEPAD), flux_lstm(5, 3), flux_batchnorm(2), flux_dropout(0.5),
        flux_multiheadattention(5, 1), flux_embedding(4, 3), flux_maxpool_layer(FLUX_SHAPE(2, 2)), flux_layernorm(FLUX_SHAPE(4)), flux_bilinear(4, 4, 2), flux_upsample(.scale = { 2 }),
        flux_parallel(flux_vcat, flux_dense(4, 2), flux_dense(4, 3)), flux_gru(5, 2), flux_recurrence(flux_lstmcell(5, 3)) };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) put_at(layers, &m, fine[i]);
    put_at(states, &s, flux_setup(flux_adam(0.01), model)), put_at(states, &s, flux_setup(flux_mixed_precision(flux_momentum()), fine[1]));
    put_at(loaders, &l, flux_dataloader(x, y, .batchsize = 2)), put_at(loaders, &l, flux_dataloader(image, .shuffle = true));
    put_at(gradients, &g, flux_gradient(flux_sum(flux_call(model, x)), model));
    if (vast) fill_vast();
}

static void before_call(void) {
    words[0] = 0;
    sentences = 0;
    null_in = false;
    if (!one_in(4)) flux_clear();
    pending = flux_failed();
}

/* Ends the child when a call has had so many seconds of the processor, or waits for 300; 0: no more. Busy machines take long
   for what is not much. */
static void call_may_take(int seconds) {
    const struct itimerval busy = { { 0, 0 }, { seconds, 0 } };
    setitimer(ITIMER_PROF, &busy, NULL);
    alarm(seconds ? 300 : 0);
}

/* The first call of a thread, for whose state there is no memory: it has no place for an error's words. */
static void call_without_a_state(void *which) {
    flux__test_eager(one_in(2));
    flux__test_memory(0);
    pending = short_of_memory = true;
    call(*(int *)which);
    flux__test_memory(-1);
    flux__test_eager(false);
}
static void call_by_a_thread(int which) {
    void *thread = flux__test_thread(call_without_a_state, &which);
    if (thread) flux__test_join(thread);
    else complain("had no thread to be made by");
    depth = 0;                            /* such a thread opens no scope */
}

static void one_call(uint64_t seed, int64_t round, int i) {
    struct rusage use;
    state = seed * 0x9E3779B97F4A7C15u + (uint64_t)round * 0xD1342543DE82EF95u + (uint64_t)i;
    draw();
    told->call = i;
    before_call();
    short_of_memory = scarce && one_in(2);
    call_may_take(vast ? 10 : 300);
    if (short_of_memory) flux__test_memory(below(one_in(4) ? 200 : 20));
    if (stateless) call_by_a_thread(below(CALLS_THERE_ARE));
    else call(below(CALLS_THERE_ARE));
    if (short_of_memory) flux__test_memory(-1);
    call_may_take(0);
    flux_default_device((flux_device){ 0, 0 });
    if (getrusage(RUSAGE_SELF, &use) == 0 && use.ru_maxrss > (int64_t)3 << 20) complain("took more than 3 GiB");
    if (aloud) fprintf(stderr, "    %3d  %s(%s)%s%s\n", i, now_called, words, sentences ? " says " : "", sentences ? sentence[0] : "");
}

static void one_round(uint64_t seed, int64_t round) {
    told->round = round, told->call = -1;
    depth = 0;
    state = seed + (uint64_t)round;
    flux_seed(seed + (uint64_t)round);
    flux_scope_open();
    flux_clear();
    sentences = 0;
    fill_pool();
    now_called = "", words[0] = 0;
    if (sentences) complain("the pool could not be filled");
    for (int i = 0; i < ROUND && !told->failed; i++)
        if (!told->skip[i]) one_call(seed, round, i);
    while (depth) scopes_close();
    flux_scope_close();
    flux_clear();
}

/* In a child, so that whatever happens can be told. 0: all is well. */
static int rounds_in_child(uint64_t seed, int64_t first, int64_t n) {
    int status = 0;
    told->failed = false, told->report[0] = 0, told->round = first;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        flux_device cpu = { 0, 0 };
        FILE *quiet = freopen("/dev/null", "w", stdout);
        if (!aloud) quiet = freopen("/dev/null", "w", stderr) ? quiet : NULL;
        flux_mem_limit(cpu, (int64_t)64 << 20);
        flux_on_error(heard, NULL);
        flux_on_log(unheard, NULL);
        for (int64_t i = 0; i < n && quiet && !told->failed; i++) one_round(seed, first + i);
        exit(told->failed ? 3 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return status;
}

static int replays(uint64_t seed, int64_t round) {
    int status = rounds_in_child(seed, round, 1);
    return status;
}

/* Leaves out stretches of calls, shorter and shorter ones, as long as the round fails without them. */
static void shrink(uint64_t seed, int64_t round, int last) {
    int tries = 0;
    for (int i = last + 1; i < ROUND; i++) told->skip[i] = true;
    for (int n = last; n >= 1 && tries < 200; n /= 2)
        for (int i = 0; i + n <= last && tries < 200; i += n) {
            bool before[ROUND], there = false;
            memcpy(before, told->skip, sizeof before);
            for (int k = i; k < i + n; k++) there = there || !told->skip[k], told->skip[k] = true;
            if (there && (tries++, replays(seed, round) == 0)) memcpy(told->skip, before, sizeof before);
        }
}

static void tell_failure(uint64_t seed, int64_t round, int status) {
    if (WIFSIGNALED(status))
        fprintf(stderr, "round %lld of seed %llu ended by signal %d at call %d, %s(%s)\n", (long long)round, (unsigned long long)seed, WTERMSIG(status), told->call, now_called, words);
    else fprintf(stderr, "round %lld of seed %llu: %s (status %d, call %d)\n", (long long)round, (unsigned long long)seed, told->report, WEXITSTATUS(status), told->call);
    if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGPROF)) return;      /* to shrink it would take as long for each try */
    shrink(seed, round, told->call < 0 ? ROUND - 1 : told->call);
    aloud = true;
    status = replays(seed, round);
    if (told->failed) fprintf(stderr, "    %s\n", told->report);
    if (WIFSIGNALED(status)) fprintf(stderr, "    signal %d in call %d\n", WTERMSIG(status), told->call);
    aloud = false;
    memset(told->skip, 0, sizeof told->skip);
}

static int64_t from_environment(const char *name, int64_t otherwise) { return getenv(name) ? strtoll(getenv(name), NULL, 10) : otherwise; }

/* Runs N calls, 20,000 unless the environment says how many, or one `part`-th of that. */
static void run_calls(int part) {
    told = (shared *)mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(told != MAP_FAILED);
    const uint64_t seed = (uint64_t)from_environment("SEED", 1);
    const int64_t only = from_environment("ROUND", -1), rounds = only < 0 ? from_environment("N", 20000) / part / ROUND + 1 : 1;
    int failures = 0;
    for (int64_t at = only < 0 ? 0 : only, end = at + rounds; at < end && failures < from_environment("FAILURES", 3);) {
        int64_t n = end - at < ROUNDS_A_CHILD ? end - at : ROUNDS_A_CHILD;
        int status = rounds_in_child(seed, at, n);
        if (status == 0) at += n;
        else tell_failure(seed, told->round, status), at = told->round + 1, failures++;
    }
    for (int k = 0; k < 4; k++) {
        char path[300];
        snprintf(path, sizeof path, "%s/flux_calls_%ld_%d", test_temp(), (long)getpid(), k);
        remove(path);
    }
    CHECK(failures == 0);
    munmap(told, sizeof *told);
}
TEST(random_calls) { run_calls(1); }

/* The same while, during every second call, memory runs out after some allocations. */
TEST(random_calls_without_memory) {
    scarce = true;
    run_calls(4);
    scarce = false;
}

/* The same by threads for whose state there is no memory. */
TEST(random_calls_by_threads_without_a_state) {
    stateless = true;
    run_calls(4);
    stateless = false;
}

/* The same of nothing: each call that there is gets a NULL for each of its handles. */
TEST(random_calls_of_nothing) {
    empty_handed = true;
    run_calls(2);
    empty_handed = false;
}

/* The same of tensors that are empty though their dims are large: a call that ends late has gone over one of them. */
TEST(random_calls_of_vast_empty_tensors) {
    vast = true;
    run_calls(4);
    vast = false;
}
#endif
TEST_MAIN()
