/* Models as files of C: one of every family of layers is written, all files are compiled into one program by the C
   compiler that is here (CC, else cc), and what it computes is compared with flux_call. States go on from call to
   call; what can't be written is an error; the locale changes nothing. */
#include "scarce.h"
#include <locale.h>
#include <time.h>

#define S FLUX_SHAPE

/* ---- layers of our own */

typedef struct residual { flux_layer base; flux_layer *body; flux_tensor *gain; } residual;
static flux_tensor *residual_call(flux_layer *self, flux_tensor *x) {
    residual *m = (residual *)self;
    return flux_add(flux_mul(flux_call(m->body, x), m->gain), flux_where(flux_gt(x, 0.1), x, flux_sin(x)));
}
FLUX_LAYER(residual, "Residual", residual_call, FLUX_CHILD(body), FLUX_PARAM(gain))

/* Its weight has a row for each input, so that what is summed lies together. */
typedef struct turned { flux_layer base; flux_tensor *weight; } turned;
static flux_tensor *turned_call(flux_layer *self, flux_tensor *x) {
    return flux_tanh(flux_matmul(flux_transpose(((turned *)self)->weight), x));
}
FLUX_LAYER(turned, "Turned", turned_call, FLUX_PARAM(weight))

typedef struct plain { flux_layer base; } plain;
FLUX_OP(hill, (x), x * x / (1 + x * x));
static flux_tensor *plain_call(flux_layer *self, flux_tensor *x) {
    (void)self;
    return hill(flux_cat(1, flux_slice(x, 1, 1, 3), flux_pad(x, 0.5, 0, 0, 1, 2)));
}
FLUX_LAYER(plain, "Plain", plain_call)
static flux_tensor *several_call(flux_layer *self, flux_tensor *x) {
    (void)self;
    return flux_tuple(flux_argmax(x, 0), flux_sum(x, 1), flux_permute(x, 1, 0), flux_gt(x, 0.0), x,
                      flux_max(x), flux_ones(3));
}
typedef plain several;
FLUX_LAYER(several, "Several", several_call)
/* What it makes of its weight is larger than that. */
static flux_tensor *spread_call(flux_layer *self, flux_tensor *x) {
    flux_tensor *w = ((turned *)self)->weight;
    return flux_add(flux_matmul(w, flux_transpose(w)), x);
}
typedef turned spread;
FLUX_LAYER(spread, "Spread", spread_call, FLUX_PARAM(weight))
/* Products of every kind: of vectors, of matrices turned and cut, in batches. x is 6 x 5 x 3, the weight 6 x 4. */
static flux_tensor *multiplies_call(flux_layer *self, flux_tensor *x) {
    flux_tensor *w = ((turned *)self)->weight, *m = flux_select(x, 2, 1), *v = flux_select(m, 1, 2), *u = flux_select(w, 1, 3), *row = flux_select(m, 0, 4);
    return flux_tuple(flux_dot(u, v), flux_outer(v, u), flux_outer(row, flux_select(w, 0, 1)), flux_matmul(flux_transpose(w), m), flux_matmul(flux_transpose(m), w),
                      flux_matmul(flux_transpose(flux_slice(w, 1, 1, 3)), flux_slice(m, 1, 0, 4)), flux_matmul(flux_transpose(w), v), flux_matmul(m, flux_transpose(m)));
}
typedef turned multiplies;
FLUX_LAYER(multiplies, "Multiplies", multiplies_call, FLUX_PARAM(weight))
static flux_tensor *contracts_call(flux_layer *self, flux_tensor *x) {
    flux_tensor *w = ((turned *)self)->weight, *m = flux_select(x, 2, 1), *v = flux_select(m, 1, 2);
    return flux_tuple(flux_einsum("ijk,il->jkl", x, w), flux_einsum("ijk,ilk->jlk", x, x), flux_einsum("i,ij->j", v, w), flux_einsum("ij,ij->", m, m),
                      flux_matmul(v, w), flux_matmul(v, flux_select(w, 1, 0)), flux_matmul(flux_select(m, 0, 2), flux_transpose(m)));
}
typedef turned contracts;
FLUX_LAYER(contracts, "Contracts", contracts_call, FLUX_PARAM(weight))
/* Integers of each size: what is computed in them, reduced, counted, turned into bytes and back. */
static flux_tensor *integers_call(flux_layer *self, flux_tensor *x) {
    (void)self;
    flux_tensor *i = flux_to_dtype(flux_floor(flux_mul(x, 10)), FLUX_I32), *j = flux_to_dtype(i, FLUX_I64);
    flux_tensor *bytes = flux_to_dtype(flux_clamp(flux_abs(i), 0, 200), FLUX_U8), *odd = flux_eq(flux_mod(i, 2), 1);
    return flux_tuple(flux_max(i, 0), flux_min(j, 1), flux_prod(flux_add(flux_mod(j, 3), 1), 0), flux_add(flux_mul(bytes, 2), 1),
                      flux_sum(flux_where(odd, flux_neg(j), flux_mul(j, j)), 0), flux_add(i, flux_to_dtype(flux_arange(0, 5, 1), FLUX_I32)),
                      flux_mul(flux_to_dtype(bytes, FLUX_F32), 0.5), flux_any(flux_gt(j, flux_to_dtype(bytes, FLUX_I64)), 0));
}
static flux_tensor *integers_too_call(flux_layer *self, flux_tensor *x) {
    (void)self;
    flux_tensor *i = flux_to_dtype(flux_floor(flux_mul(x, 10)), FLUX_I32), *bytes = flux_to_dtype(flux_abs(i), FLUX_U8);
    return flux_tuple(flux_argmin(i, 1), flux_argmax(flux_to_dtype(bytes, FLUX_I64), 0), flux_cat(0, bytes, bytes), flux_permute(flux_to_dtype(i, FLUX_I64), 1, 0),
                      flux_gather(i, 0, flux_argmax(x, 0)), flux_tril(i), flux_flip(flux_max(bytes, 1), 0), flux_cumsum(i, 0));
}
typedef plain integers;
FLUX_LAYER(integers, "Integers", integers_call)
typedef plain integers_too;
FLUX_LAYER(integers_too, "IntegersToo", integers_too_call)
static flux_tensor *draws_call(flux_layer *self, flux_tensor *x) { (void)self; return flux_add(x, flux_rand(2)); }
typedef plain draws;
FLUX_LAYER(draws, "Draws", draws_call)
static flux_tensor *sorts_call(flux_layer *self, flux_tensor *x) { (void)self; return flux_argsort(x); }
typedef plain sorts;
FLUX_LAYER(sorts, "Sorts", sorts_call)
static flux_tensor *doubles_call(flux_layer *self, flux_tensor *x) { (void)self; return flux_exp(flux_to_dtype(x, FLUX_F64)); }
typedef plain doubles;
FLUX_LAYER(doubles, "Doubles", doubles_call)
static flux_tensor *within_call(flux_layer *self, flux_tensor *x) { return flux_to_dtype(doubles_call(self, x), FLUX_F32); }
typedef plain within;
FLUX_LAYER(within, "Within", within_call)
static flux_tensor *halved_call(flux_layer *self, flux_tensor *x) { (void)self; return flux_exp(flux_to_dtype(flux_to_dtype(flux_square(x), FLUX_BF16), FLUX_F32)); }
typedef plain halved;
FLUX_LAYER(halved, "Halved", halved_call)
static flux_tensor *looks_call(flux_layer *self, flux_tensor *x) { (void)self; return flux_mul(x, flux_item(flux_sum(x))); }
typedef plain looks;
FLUX_LAYER(looks, "Looks", looks_call)

static flux_tensor *squashed(flux_tensor *x) { return flux_mul(flux_erf(x), flux_log(flux_add(flux_square(x), 1.5))); }

static flux_layer *block(int64_t width) {
    return flux_chain(
        flux_skipconnection(flux_chain(flux_layernorm(S(width)), flux_multiheadattention(width, .nheads = 2, .causal = true, .scores = FLUX_OFF)), flux_add),
        flux_skipconnection(flux_chain(flux_layernorm(S(width)), flux_dense(width, 4 * width, flux_gelu), flux_dense(4 * width, width)), flux_add));
}

/* ---- the models: name, what makes it, the input's shape; I: it takes indices below 7 */


#define MODELS(X)                                                                                                     \
    X(dense, flux_chain(flux_dense(20, 33, flux_tanh), flux_dense(33, 5)), S(20, 7), 0)                               \
    X(one, flux_chain(flux_dense(20, 133, flux_sigmoid), flux_dense(133, 5, flux_relu), flux_softmax), S(20), 0)       \
    X(one_number, flux_dense(70, 1, flux_tanh), S(70, 1), 0)                                                           \
    X(one_row, flux_dense(70, 1, flux_tanh), S(70, 9), 0)                                                              \
    X(turned_column, flux_new(turned, .weight = flux_randn(70, 13)), S(70, 1), 0)                                                                   \
    X(turned_columns, flux_new(turned, .weight = flux_randn(70, 13)), S(70, 9), 0)                                                                  \
    X(one_column, flux_chain(flux_dense(70, 74, flux_swish), flux_dense(74, 10), flux_logsoftmax), S(70, 1), 0)        \
    X(activations, flux_chain(flux_dense(6, 20, flux_gelu), flux_dense(20, 20, flux_elu), flux_dense(20, 20, flux_softplus),       \
                              flux_dense(20, 20, flux_mish), flux_dense(20, 20, flux_leakyrelu), flux_dense(20, 20, flux_selu),    \
                              flux_dense(20, 9, flux_hardswish), flux_function(squashed, "squashed")), S(6, 9), 0)                  \
    X(scale, flux_chain(flux_scale(S(6), flux_softsign), flux_layernorm(S(6)), flux_dropout(0.5), flux_alphadropout(0.5)), S(6, 4), 0)  \
    X(bilinear, flux_chain(flux_bilinear(6, 6, 5, flux_tanh)), S(6, 4), 0)                                           \
    X(maxout, flux_maxout(flux_dense(6, 5), flux_dense(6, 5, flux_tanh), flux_dense(6, 5)), S(6, 4), 0)               \
    X(parallel, flux_parallel(flux_add, flux_dense(6, 5), flux_chain(flux_dense(6, 8, flux_relu), flux_dense(8, 5))), S(6, 4), 0) \
    X(embedding, flux_chain(flux_embedding(7, 6), flux_dense(6, 5)), S(4, 3), 1)                                     \
    X(embeddingbag, flux_chain(flux_embeddingbag(7, 6), flux_dense(6, 5)), S(4, 3), 1)                                \
    X(conv, flux_chain(flux_conv_layer(S(3, 3), 2, 7, flux_relu), flux_conv_layer(S(3, 2), 7, 5, flux_tanh)), S(14, 12, 2, 2), 0)      \
    X(conv_large, flux_chain(flux_conv_layer(S(5, 5), 1, 6, flux_relu), flux_conv_layer(S(3, 3), 6, 9, flux_relu)), S(40, 36, 1, 1), 0) \
    X(conv_pad, flux_chain(flux_conv_layer(S(3, 3), 2, 4, flux_relu, .pad = S(1)), \
                           flux_conv_layer(S(3, 3), 4, 4, .pad = S(2), .dilation = S(2))), S(20, 21, 2, 2), 0) \
    X(conv_stride, flux_conv_layer(S(3, 3), 2, 4, flux_relu, .stride = S(2), .pad = FLUX_SAMEPAD), S(15, 12, 2, 2), 0) \
    X(conv_groups, flux_conv_layer(S(3, 3), 4, 8, .groups = 2), S(9, 8, 4, 2), 0)                                     \
    X(conv1, flux_conv_layer(S(3), 2, 40), S(50, 2, 3), 0)                                                            \
    X(conv_point, flux_conv_layer(S(1, 1), 3, 40), S(8, 9, 3, 2), 0)                                                  \
    X(conv3, flux_conv_layer(S(3, 2, 2), 2, 3), S(5, 4, 6, 2, 2), 0)                                                  \
    X(crosscor, flux_crosscor_layer(S(3, 3), 2, 4), S(9, 8, 2, 2), 0)                                                 \
    X(transposed, flux_conv_transpose_layer(S(3, 3), 2, 4, .stride = S(2)), S(5, 6, 2, 2), 0)                         \
    X(transposed_plain, flux_conv_transpose_layer(S(3, 3), 2, 4, .pad = S(1)), S(5, 6, 2, 2), 0)                      \
    X(depthwise, flux_depthwiseconv(S(3, 3), 4, 8), S(20, 9, 4, 2), 0)                                                \
    X(pools, flux_chain(flux_maxpool_layer(S(2, 2)), flux_meanpool_layer(S(3, 3), .stride = S(1), .pad = S(1)), \
                        flux_lpnormpool_layer(S(2, 2), .p = 2.0)), S(14, 12, 3, 2), 0) \
    X(adaptive, flux_chain(flux_adaptivemaxpool(S(6, 4)), flux_adaptivemeanpool(S(3, 2))), S(13, 9, 3, 2), 0)         \
    X(global, flux_chain(flux_globalmaxpool(), flux_flatten), S(13, 9, 3, 2), 0)                                      \
    X(global_mean, flux_chain(flux_globalmeanpool(), flux_flatten), S(13, 9, 3, 2), 0)                                \
    X(upsample, flux_chain(flux_upsample(FLUX_NEAREST, .scale = { 2 }), flux_upsample(FLUX_BILINEAR, .scale = { 2, 3 })), S(5, 4, 3, 2), 0)            \
    X(shuffle, flux_pixelshuffle(2), S(5, 4, 8, 2), 0)                                                                \
    X(norms, flux_chain(flux_batchnorm(4, flux_relu), flux_instancenorm(4), flux_groupnorm(4, 2)), S(6, 5, 4, 3), 0)  \
    X(weightnorm, flux_weightnorm(flux_dense(6, 5)), S(6, 4), 0)                                                      \
    X(conv_norm, flux_chain(flux_conv_layer(S(3, 3), 2, 4, .bias = FLUX_OFF), flux_batchnorm(4, flux_relu), \
                            flux_maxpool_layer(S(2, 2)), flux_flatten, flux_dense(140, 9)), S(16, 12, 2, 1), 0) \
    X(rnn, flux_chain(flux_rnn(5, 8), flux_dense(8, 3)), S(5, 6, 3), 0)                                               \
    X(lstm, flux_chain(flux_lstm(5, 18), flux_dense(18, 3)), S(5, 6, 3), 0)                                           \
    X(gru, flux_chain(flux_gru(5, 33, .hidden_bias = true), flux_dense(33, 3)), S(5, 6, 1), 0)                        \
    X(gruv3, flux_chain(flux_gruv3(5, 8), flux_gru(8, 4)), S(5, 6), 0)                                                \
    X(cell, flux_lstmcell(5, 8), S(5, 3), 0)                                                                          \
    X(last_state, flux_gru(5, 8, .return_state = true), S(5, 4, 3), 0)                                                \
    X(recurrence, flux_recurrence(flux_grucell(5, 8)), S(5, 4, 3), 0)                                                 \
    X(attention, flux_multiheadattention(16, .nheads = 4, .scores = FLUX_OFF), S(16, 9, 2), 0)                        \
    X(attention_scores, flux_multiheadattention(16, .nheads = 4), S(16, 9, 2), 0)                                     \
    X(transformer, flux_chain(flux_embedding(7, 16), block(16), block(16), flux_dense(16, 7)), S(9, 2), 1)            \
    X(residual, flux_new(residual, .body = flux_dense(6, 6), .gain = flux_full(0.3, 6, 1)), S(6, 4), 0)               \
    X(nothing, flux_chain(flux_dropout(0.5)), S(6, 4), 0)                                                             \
    X(spread, flux_new(spread, .weight = flux_randn(100, 1)), S(100, 1), 0)                                             \
    X(multiplies, flux_new(multiplies, .weight = flux_randn(6, 4)), S(6, 5, 3), 0)                                      \
    X(contracts, flux_new(contracts, .weight = flux_randn(6, 4)), S(6, 5, 3), 0)                                        \
    X(plain, flux_new(plain), S(6, 5), 0)                                                                             \
    X(several, flux_new(several), S(6, 5), 0)                                                                         \
    X(integers, flux_new(integers), S(5, 6), 0)                                                                       \
    X(integers_too, flux_new(integers_too), S(5, 6), 0)                                                               \
    X(recurrence_of_a_chain, flux_recurrence(flux_chain(flux_lstmcell(5, 8))), S(5, 4, 3), 0)

#define MAKE(name, layer, shape, indices)                                                                             \
    static flux_layer *make_##name(void) { return layer; }                                                            \
    static flux_shape shape_##name(void) { return shape; }
MODELS(MAKE)
static const struct { const char *name; flux_layer *(*make)(void); flux_shape (*shape)(void); bool indices; } models[] = {
#define ROW(name, layer, shape, indices) { #name, make_##name, shape_##name, indices != 0 },
    MODELS(ROW)
};
enum { COUNT = (int)(sizeof models / sizeof *models) };

/* Parameters and running statistics other than those that layers begin with. */
static flux_tensor *shaken(flux_tensor *x, const char *path, void *user) {
    (void)path, (void)user;
    return flux_add(flux_mul(x, 0.9), flux_mul(flux_rand_with(flux_shape_of(x), FLUX_F32), 0.3));
}

static char folder[300];
static void path_of(char *out, size_t n, const char *file) { snprintf(out, n, "%s/%s", folder, file); }

/* Compiles folder/main.c; 0: done, 1: no compiler here, 2: it does not compile. */
static int compiled(const char *flags) {
    char command[1400], log[400];
    const char *cc = getenv("CC");
    if (!cc || !*cc) cc = "cc";
    snprintf(command, sizeof command, "%.200s --version >/dev/null 2>&1 || %.200s -v >/dev/null 2>&1", cc, cc);
    if (system(command) != 0) return 1;
    snprintf(command, sizeof command, "cd '%s' && %.200s %s -o main main.c -lm >log 2>&1", folder, cc, flags);
    if (system(command) == 0) return 0;
    path_of(log, sizeof log, "log");
    FILE *f = fopen(log, "r");
    for (int c, n = 0; f && n < 2000 && (c = fgetc(f)) != EOF; n++) fputc(c, stderr);
    if (f) fclose(f);
    return 2;
}
static bool run(void) {
    char command[700];
    snprintf(command, sizeof command, "cd '%s' && ./main", folder);
    return system(command) == 0;
}

static bool begin(void) {
    char command[700];
    snprintf(folder, sizeof folder, "%s/flux_export_%ld", test_temp(), (long)time(NULL) % 100000 * 1000 + (long)(clock() % 1000));
    snprintf(command, sizeof command, "mkdir -p '%s'", folder);
    return system(command) == 0;
}
static void end(void) {
    char command[700];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    CHECK(system(command) == 0);
}

static const char *element(flux_dtype t) {
    return t == FLUX_F32 ? "float" : t == FLUX_I32 ? "int" : t == FLUX_I64 ? "long long" : "unsigned char";
}
static void numbers(FILE *f, flux_tensor *x) {
    const double *v = (const double *)flux_data(flux_cpu(flux_to_dtype(x, FLUX_F64)));
    for (int64_t i = 0; v && i < flux_len(x); i++) fprintf(f, "%s%.9g", i ? ", " : "", v[i]);
}

/* Writes the call of one model to main.c: its input, and a comparison with its outputs, y. */
static void write_call(FILE *f, const char *name, bool state, flux_tensor *x, flux_tensor *y) {
    const char *type = element(flux_dtype_of(x));
    fprintf(f, "static void call_%s(void) {\n    static const double given[] = {", name);
    numbers(f, x);
    fprintf(f, "};\n    static %s x[%lld];\n", type, (long long)flux_len(x));
    fprintf(f, "    for (int i = 0; i < %lld; i++) x[i] = (%s)given[i];\n", (long long)flux_len(x), type);
    for (int i = 0; i < flux_num_items(y); i++) {
        fprintf(f, "    static const double want%d[] = {", i);
        numbers(f, flux_nth(y, i));
        fprintf(f, "};\n    static %s y%d[%lld];\n", element(flux_dtype_of(flux_nth(y, i))), i, (long long)flux_len(flux_nth(y, i)));
    }
    if (state) fprintf(f, "    static %s_state state;\n    %s_reset(&state);\n", name, name);
    fprintf(f, "    %s(%sx", name, state ? "&state, " : "");
    for (int i = 0; i < flux_num_items(y); i++) fprintf(f, ", y%d", i);
    fprintf(f, ");\n");
    for (int i = 0; i < flux_num_items(y); i++)
        fprintf(f, "    for (int i = 0; i < %lld; i++) check(\"%s\", %d, i, (double)y%d[i], want%d[i]);\n",
                (long long)flux_len(flux_nth(y, i)), name, i, i, i);
    fprintf(f, "}\n");
}

static bool has(const char *path, const char *text) {
    char line[4096];
    bool found = false;
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, text) != NULL;
    if (f) fclose(f);
    return found;
}

static long length_of(const char *path) {
    FILE *f = fopen(path, "rb");
    long n = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (f) fclose(f);
    return n;
}
/* Whether all lines are indented by the braces that are open, but for those that go on, comments and the preprocessor's. */
static bool indented(const char *path) {
    static char line[1 << 16];
    FILE *f = fopen(path, "r");
    int depth = 0, bad = 0;
    bool goes_on = false, comment = false;
    while (f && fgets(line, sizeof line, f)) {
        const int want = 4 * (depth - (line[strspn(line, " ")] == '}')), have = (int)strspn(line, " ");
        const size_t n = strlen(line);
        const char last = n > 1 ? line[n - 2] : ';';
        comment = comment || !strncmp(line, "/*", 2);
        if (!strncmp(line, "#if defined(__cplusplus", 23)) while (fgets(line, sizeof line, f) && *line != '#');
        if (!comment && !goes_on && *line != '#' && n > 1 && have != want && bad++ < 3) fprintf(stderr, "    %s: %d spaces, not %d: %.60s\n", path, have, want, line);
        if (!comment) for (const char *s = line; *s; s++) depth += (*s == '{') - (*s == '}');
        goes_on = n > 1 && *line != '#' && !strchr(";{}", last);
        if (strstr(line, "*/")) comment = goes_on = false;
    }
    if (f) fclose(f);
    return f && !bad && depth == 0;
}

TEST(every_family) {
    char path[400];
    REQUIRE(begin());
    flux_seed(7);
    path_of(path, sizeof path, "main.c");
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    for (int i = 0; i < COUNT; i++) fprintf(f, "#include \"%s.c\"\n", models[i].name);
    fprintf(f, "#include <stdio.h>\nstatic int bad;\nstatic void check(const char *name, int k, int i, double got, double want) {\n"
               "    const double d = got - want, size = want < 0 ? -want : want, most = 1e-5 * (size > 1 ? size : 1);\n"
               "    if (!(d <= most && d >= -most) && bad++ < 20) printf(\"%%s, result %%d: element %%d is %%.9g, not %%.9g\\n\", name, k, i, got, want);\n}\n");
    for (int i = 0; i < COUNT; i++) FLUX_INFER {
        char file[100];
        flux_layer *m = flux_fmap_with(shaken, NULL, models[i].make(), NULL);
        flux_shape s = models[i].shape();
        flux_tensor *x = models[i].indices ? flux_to_dtype(flux_floor(flux_mul(flux_rand_with(s, FLUX_F32), 7)), FLUX_I32)
                                           : flux_randn_with(s, FLUX_F32);
        if (!x || !m) test_fail(__FILE__, __LINE__, models[i].name);
        snprintf(file, sizeof file, "%s.c", models[i].name);
        path_of(path, sizeof path, file);
        if (!CHECK(flux_export_c(m, s, path) == 0)) test_fail(__FILE__, __LINE__, models[i].name);
        CHECK(indented(path));
        /* a number takes up to 20 bytes, and what was computed of weights is written only where it is few */
        if (!CHECK(length_of(path) < 30000 + 25 * flux_num_params(m)))
            fprintf(stderr, "    %s.c: %ld bytes, %ld parameters\n", models[i].name, length_of(path), (long)flux_num_params(m));
        flux_tensor *y = flux_call(m, x);
        if (y) write_call(f, models[i].name, has(path, "_reset("), x, y);
    }
    fprintf(f, "int main(void) {\n");
    for (int i = 0; i < COUNT; i++) fprintf(f, "    call_%s();\n", models[i].name);
    fprintf(f, "    return bad != 0;\n}\n");
    fclose(f);
    const int rc = compiled("-O1 -Wall -Wextra -Wconversion -Wshadow -Wdouble-promotion -Werror");
    if (rc == 1) end();
    if (rc == 1) SKIP("no C compiler here (CC)");
    CHECK(rc == 0);
    if (rc == 0) CHECK(run());
    if (!getenv("KEEP")) end();
}

/* Three calls of a model of one step are a call of three steps; reset begins anew, and a stateless file always does. */
TEST(states_go_on) {
    char path[400];
    flux_seed(3);
    flux_layer *m = flux_fmap_with(shaken, NULL, flux_chain(flux_lstm(4, 6), flux_gru(6, 5), flux_dense(5, 2)), NULL);
    flux_tensor *x = flux_randn(4, 3, 2), *y = NULL;
    FLUX_INFER y = flux_keep(flux_call(m, x));
    REQUIRE(y && begin());
    path_of(path, sizeof path, "step.c");
    CHECK(flux_export_c(m, S(4, 1, 2), path) == 0);
    CHECK(has(path, "} step_state;"));
    path_of(path, sizeof path, "anew.c");
    CHECK(flux_export_c(m, S(4, 3, 2), path, .name = "again", .stateless = true) == 0);
    CHECK(has(path, "void again(const float *in, float *out)") && !has(path, "again_reset"));
    path_of(path, sizeof path, "main.c");
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    fprintf(f, "#define step_DECLARE\n#include \"step.c\"\n#undef step_DECLARE\n#include \"step.c\"\n#include \"anew.c\"\nint main(void) {\n"
               "    int bad = 0;\n    static step_state s;\n    float out[4], all[12], in[8];\n    static const double x[] = {");
    numbers(f, flux_permute(x, 0, 2, 1));
    fprintf(f, "}, ordered[] = {");
    numbers(f, x);
    fprintf(f, "}, y[] = {");
    numbers(f, flux_permute(y, 0, 2, 1));
    fprintf(f, "}, whole[] = {");
    numbers(f, y);
    fprintf(f, "};\n    float given[24];\n    for (int i = 0; i < 24; i++) given[i] = (float)ordered[i];\n"
               "    for (int k = 0; k < 6; k++) {\n        if (k %% 3 == 0) step_reset(&s);\n"
               "        for (int i = 0; i < 8; i++) in[i] = (float)x[8 * (k %% 3) + i];\n        step(&s, in, out);\n"
               "        for (int i = 0; i < 4; i++) bad += !(fabs((double)out[i] - y[4 * (k %% 3) + i]) < 1e-5);\n    }\n"
               "    for (int k = 0; k < 2; k++) {\n        again(given, all);\n"
               "        for (int i = 0; i < 12; i++) bad += !(fabs((double)all[i] - whole[i]) < 1e-5);\n    }\n    return bad;\n}\n");
    fclose(f);
    const int rc = compiled("-O1");
    if (rc == 1) end();
    if (rc == 1) SKIP("no C compiler here (CC)");
    CHECK(rc == 0 && run());
    end();
}

/* A recurrence over a cell of the user's begins anew in each call, whatever cells that one is made of. */
TEST(a_cell_of_ones_own_begins_anew) {
    char path[400];
    REQUIRE(begin());
    path_of(path, sizeof path, "own.c");
    CHECK(flux_export_c(flux_recurrence(flux_chain(flux_grucell(3, 2))), S(3, 4, 1), path) == 0 && !has(path, "_reset"));
    CHECK(flux_export_c(flux_recurrence(flux_grucell(3, 2)), S(3, 4, 1), path) == 0 && has(path, "own_reset"));
    flux_layer *both = flux_chain(flux_recurrence(flux_chain(flux_grucell(3, 2))), flux_gru(2, 2));   /* the second goes on */
    CHECK(flux_export_c(both, S(3, 4, 1), path) == 0 && has(path, "own_reset"));
    end();
}

/* What can't be written is named, the file that was there stays, and the model is as it was. */
TEST(refused) {
    char path[400];
    REQUIRE(begin());
    path_of(path, sizeof path, "net.c");
    flux_layer *m = flux_chain(flux_dense(2, 2), flux_dropout(0.5));
    flux_trainmode(m, true);
    CHECK(flux_export_c(m, S(2, 1), path) == 0);
    CHECK(flux_training(flux_child(m, 1)));
    CHECK(has(path, "Dense(2 => 2)") && has(path, "float in[1][2]"));
    const bool here = !test_device.backend;       /* its layers draw where tensors are made; a file is made on the CPU */
    if (here) CHECK_ERROR(flux_export_c(flux_new(draws), S(2), path) == 0 ? m : NULL, "random numbers");
    CHECK_ERROR(flux_export_c(flux_new(sorts), S(2), path) == 0 ? m : NULL, "sort");
    CHECK_ERROR(flux_export_c(flux_new(doubles), S(2), path) == 0 ? m : NULL, "export_c: the model computes values (fused) in other floats than float32");
    CHECK_ERROR(flux_export_c(flux_new(within), S(2), path) == 0 ? m : NULL, "export_c: the model computes values (fused) in other floats than float32");      /* though what is stored is float32 */
    CHECK_ERROR(flux_export_c(flux_new(halved), S(2), path) == 0 ? m : NULL, "export_c: the model computes square (fused) in other floats than float32");
    CHECK_ERROR(flux_export_c(flux_new(looks), S(2), path) == 0 ? m : NULL, "Looks() looks at a value");
    CHECK_ERROR(flux_export_c(m, S(3), path) == 0 ? m : NULL, "Dense");
    CHECK_ERROR(flux_export_c(NULL, S(3), path) == 0 ? m : NULL, "model");
    CHECK_ERROR(flux_export_c(m, S(2), NULL) == 0 ? m : NULL, "path");
    CHECK_ERROR(flux_export_c(m, S(2), "") == 0 ? m : NULL, "name");
    CHECK_ERROR(flux_export_c(m, S(2), path, .name = "2x") == 0 ? m : NULL, "identifier");
    CHECK_ERROR(flux_export_c(m, S(2), path, .name = "a-b") == 0 ? m : NULL, "identifier");
    CHECK_ERROR(flux_export_c(m, S(2), "/no/such/folder/net.c") == 0 ? m : NULL, "cannot write");
    CHECK(has(path, "Dense(2 => 2)"));
    path_of(path, sizeof path, "2 nets-a.x.c");
    CHECK(flux_export_c(m, S(2, 1), path) == 0 && has(path, "void _2_nets_a(const float *in, float *out)"));
    end();
}

/* What a file holds, up to its end. */
static char *text_of(const char *path, int i) {
    static char text[2][1 << 16];
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(text[i], 1, sizeof text[i] - 1, f) : 0;
    if (f) fclose(f);
    text[i][n] = 0;
    return text[i];
}

/* Wherever memory runs out: there is a file, or the one that was there and an error. */
static bool exported(flux_layer *m, flux_shape s, const char *path) {
    const bool good = flux_export_c(m, s, path) == 0;
    CHECK(good == !flux_failed() && has(path, good ? "Dense(4 => 2)" : "no more than this"));
    return good;
}
TEST(memory_runs_out) {
    char path[400];
    REQUIRE(begin());
    path_of(path, sizeof path, "scarce.c");
    flux_layer *const models[] = { flux_chain(flux_dense(3, 4, flux_tanh), flux_dense(4, 2)),
                                   flux_chain(flux_weightnorm(flux_dense(3, 4)), flux_recurrence(flux_grucell(4, 4)), flux_dense(4, 2)) };
    for (int i = 0; i < 2; i++) {
        REQUIRE(flux_export_c(models[i], i ? S(3, 1, 1) : S(3, 2), path) == 0);    /* what is kept between calls is there */
        FILE *f = fopen(path, "w");
        REQUIRE(f && fputs("no more than this\n", f) >= 0 && fclose(f) == 0);
        SCARCE(exported(models[i], i ? S(3, 1, 1) : S(3, 2), path), 50, 1);
    }
    end();
}
/* Where one allocation alone fails, there is the whole file, without a word, or an error. */
TEST(memory_fails_once) {
    char path[400];
    REQUIRE(begin());
    path_of(path, sizeof path, "scarce.c");
    flux_layer *const m = flux_chain(flux_weightnorm(flux_dense(3, 4)), flux_recurrence(flux_grucell(4, 4)), flux_dense(4, 2));
    REQUIRE(flux_export_c(m, S(3, 1, 1), path) == 0);
    const char *want = text_of(path, 0);
    bool refused = true;
    flux_on_error(test_silent, NULL);
    for (long k = 0; refused && k < 4000; k++) {
        const flux_device cpu = { 0, 0 };
        flux_scope_open();
        flux_mem_trim(cpu);
        flux__test_memory_once(k);
        const bool good = flux_export_c(m, S(3, 1, 1), path) == 0;
        refused = flux__test_refused() > 0;
        flux__test_memory(-1);
        CHECK(good == !flux_failed());
        if (good) CHECK_STR(text_of(path, 1), want);
        flux_clear();
        flux_scope_close();
    }
    flux_on_error(NULL, NULL);
    CHECK(!refused);
    end();
}

/* A model is written in test mode, whatever mode it is in, which it is in afterwards. */
TEST(modes) {
    char path[400];
    REQUIRE(begin());
    path_of(path, sizeof path, "modes.c");
    flux_layer *const m = flux_chain(flux_batchnorm(3), flux_dense(3, 4), flux_dropout(0.5), flux_alphadropout(0.5));
    REQUIRE(flux_export_c(m, S(3, 2), path) == 0);
    const char *want = strstr(text_of(path, 0), "*/\n");         /* behind the model's words */
    flux_trainmode(m, true);
    CHECK(flux_export_c(m, S(3, 2), path) == 0);
    CHECK_STR(strstr(text_of(path, 1), "*/\n"), want);
    CHECK(m->mode == FLUX_MODE_TRAIN);
    end();
}

/* A name that would end the comment, and numbers under a locale whose decimal point is a comma. */
TEST(text_of_the_file) {
    char path[400];
    static const float odd[] = { 0.1f, -0.0f, 3, 1e-30f, INFINITY, -1e20f };
    REQUIRE(begin());
    path_of(path, sizeof path, "net.c");
    const char *comma = setlocale(LC_NUMERIC, "de_DE.UTF-8");
    flux_layer *m = flux_chain(flux_named("*/ /*", flux_dense(2, 3)));
    CHECK(flux_set_param(m, "layers.*/ /*.weight", flux_from_with(odd, FLUX_F32, S(3, 2))) == 0);
    CHECK(flux_export_c(m, S(2, 1), path) == 0);
    if (comma) setlocale(LC_NUMERIC, "C");
    CHECK(has(path, "* / / * = Dense(2 => 3)"));
    CHECK(has(path, "0.100000001f, -0.0f, 3.0f, 1e-30f, INFINITY, -1.00000002e+20f"));
    end();
}

/* What a file says of itself, and its calls with the words that stand before each. */
TEST(a_file_in_words) {
    static const char *const want[] = {
        "/* told.c: a model, written by flux.h's flux_export_c\n"
        "\n"
        "   Chain(\n"
        "     Dense(3 => 4, tanh),                  # 16 parameters\n"
        "     Dense(4 => 2),                        # 10 parameters\n"
        "     softmax,\n"
        "   )                   # Total: 4 arrays, 26 parameters, 104 bytes.\n"
        "\n"
        "   In and out, the last index running fastest; they may not overlap:\n"
        "   float in[2][3], a tensor of 3 x 2\n"
        "   float out[2][2], a tensor of 2 x 2\n"
        "\n"
        "   Working memory, static: 48 bytes and 32 more (128 with SSE or NEON, 256 with AVX, 512 with AVX-512).\n"
        "   Weights, constant, so that they stay in flash: 104 bytes.\n"
        "   Not for several threads at once.\n"
        "\n"
        "   Compile: cc -O3 -march=native -c told.c (and link with -lm), but without -ffast-math.\n"
        "   To declare it elsewhere: #define told_DECLARE and #include this file.\n"
        "*/\n"
        "\n"
        "void told(const float *in, float *out) {\n"
        "    /* product: add tanh */\n"
        "    told_k0(told_w1, in, told_w3, told_floats + 0);\n"
        "    /* product: */\n"
        "    told_k1(told_w0, told_floats + 0, told_floats + 8);\n"
        "    /* fused: add max submax exp sum div */\n"
        "    told_k2(told_floats + 8, told_w4, out);\n"
        "    (void)in;\n"
        "}\n"
        "#endif\n",
        "/* told.c: a model, written by flux.h's flux_export_c\n"
        "\n"
        "   Chain(\n"
        "     Recurrence(\n"
        "       LSTMCell(3 => 4),                   # 128 parameters\n"
        "     ),\n"
        "     Dense(4 => 2),                        # 10 parameters\n"
        "   )                   # Total: 5 arrays, 138 parameters, 552 bytes.\n"
        "\n"
        "   In and out, the last index running fastest; they may not overlap:\n"
        "   float in[1][1][3], a tensor of 3 x 1 x 1\n"
        "   float out[1][1][2], a tensor of 2 x 1 x 1\n"
        "\n"
        "   Working memory, static: 128 bytes.\n"
        "   Weights, constant, so that they stay in flash: 552 bytes.\n"
        "   Not for several threads at once.\n"
        "\n"
        "   Compile: cc -O3 -march=native -c told.c (and link with -lm), but without -ffast-math.\n"
        "   To declare it elsewhere: #define told_DECLARE and #include this file.\n"
        "   told_reset begins a new sequence; told goes on from call to call.\n"
        "*/\n"
        "\n"
        "void told(told_state *state, const float *in, float *out) {\n"
        "    /* product: */\n"
        "    told_k0(told_w1, state->s0, told_floats + 0);\n"
        "    /* product: add add */\n"
        "    told_k1(told_w3, in, told_w5, told_floats + 0, told_floats + 16);\n"
        "    /* fused: sigmoid sigmoid sigmoid tanh mul fma tanh mul */\n"
        "    told_k2(told_floats + 16 + 12, told_floats + 16 + 4, told_floats + 16, told_floats + 16 + 8, state->s1, told_floats + 0, told_floats + 4, told_floats + 8);\n"
        "    /* product: add */\n"
        "    told_k3(told_w0, told_floats + 4, told_w7, out);\n"
        "    /* fused: */\n"
        "    told_k4(told_floats + 0, told_floats + 4);\n"
        "    memcpy(state->s0, told_floats + 8, sizeof state->s0);\n"
        "    memcpy(state->s1, told_floats + 4, sizeof state->s1);\n"
        "    (void)in;\n"
        "}\n"
        "#endif\n",
        "/* told.c: a model, written by flux.h's flux_export_c\n"
        "\n"
        "   Chain(\n"
        "     Embedding(5 => 3),                    # 15 parameters\n"
        "     GRU(3 => 4),                          # 96 parameters\n"
        "   )                   # Total: 4 arrays, 111 parameters, 444 bytes.\n"
        "\n"
        "   In and out, the last index running fastest; they may not overlap:\n"
        "   int in[2], a tensor of 2\n"
        "   float out[2][4], a tensor of 4 x 2\n"
        "   float out1[4], a tensor of 4\n"
        "\n"
        "   Working memory, static: 208 bytes and 24 more (96 with SSE or NEON, 192 with AVX, 384 with AVX-512).\n"
        "   Weights, constant, so that they stay in flash: 444 bytes.\n"
        "   Not for several threads at once.\n"
        "\n"
        "   Compile: cc -O3 -march=native -c told.c (and link with -lm), but without -ffast-math.\n"
        "   To declare it elsewhere: #define told_DECLARE and #include this file.\n"
        "   told_reset begins a new sequence; told goes on from call to call.\n"
        "*/\n"
        "\n"
        "void told(told_state *state, const int *in, float *out, float *out1) {\n"
        "    /* fused: */\n"
        "    told_k0(in, told_longs + 0);\n"
        "    /* gather: */\n"
        "    told_k1(told_floats + 24, told_w1, told_longs + 0);\n"
        "    /* product: add */\n"
        "    told_k2(told_w0, told_floats + 24, told_w3, told_floats + 0);\n"
        "    /* product: */\n"
        "    told_k3(told_w4, state->s0, told_floats + 24);\n"
        "    /* fused: add sigmoid fma tanh add sigmoid lerp */\n"
        "    told_k4(told_floats + 0, told_floats + 24, told_floats + 24 + 8, told_floats + 0 + 8, told_floats + 0 + 4, told_floats + 24 + 4, state->s0, told_floats + 36);\n"
        "    /* product: */\n"
        "    told_k3(told_w4, told_floats + 36, told_floats + 24);\n"
        "    /* fused: add sigmoid fma tanh add sigmoid lerp */\n"
        "    told_k5(told_floats + 0 + 12, told_floats + 24, told_floats + 24 + 8, told_floats + 0 + 20, told_floats + 0 + 16, told_floats + 24 + 4, told_floats + 36, out1, told_floats + 40);\n"
        "    /* cat: */\n"
        "    told_k6(out, told_floats + 36, out1);\n"
        "    memcpy(state->s0, told_floats + 40, sizeof state->s0);\n"
        "    (void)in;\n"
        "}\n"
        "#endif\n"
    };
    char path[400];
    REQUIRE(begin());
    path_of(path, sizeof path, "told.c");
    for (int i = 0; i < 3; i++) {
        flux_layer *m = i == 0 ? flux_chain(flux_dense(3, 4, flux_tanh), flux_dense(4, 2), flux_softmax)
                      : i == 1 ? flux_chain(flux_recurrence(flux_lstmcell(3, 4)), flux_dense(4, 2))
                               : flux_chain(flux_embedding(5, 3), flux_gru(3, 4, .return_state = true));
        REQUIRE(flux_export_c(m, i == 0 ? S(3, 2) : i == 1 ? S(3, 1, 1) : S(2), path) == 0);
        char *const text = text_of(path, 0);
        char *end = strstr(text, "*/\n"), *last = end;
        for (char *s = text; (s = strstr(s, "\nvoid told(")) != NULL; s++) last = s;
        REQUIRE(end && last > end);
        memmove(end + 3, last, strlen(last) + 1);
        CHECK_STR(text, want[i]);
    }
    end();
}

TEST_MAIN()
