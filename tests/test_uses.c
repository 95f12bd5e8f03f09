/* A line of use for each public name, run as a test, and shown on the page that `make docs` makes (src/docs/page.py); uses.h
   says how the blocks are written. */
#include "uses.h"

#ifdef _WIN32
TEST(uses) { SKIP("its files need a folder made by mkdtemp"); }
#else
/* ---------------- what the blocks call by name */

static flux_tensor *twice(flux_tensor *x) { return flux_mul(x, 2); }
static flux_tensor *squares(flux_tensor *x, void *user) { return flux_sum(flux_square(x)); }
static flux_tensor *loss_of(flux_layer *m, flux_tensor *x, flux_tensor *y) { return flux_mse(flux_call(m, x), y); }
static flux_tensor *size_of_output(flux_layer *m, void *x) { return flux_mean(flux_square(flux_call(m, (flux_tensor *)x))); }
static flux_tensor *forward(int n, flux_tensor *const *x, void *context) { return flux_round(x[0]); }
static void backward(int n, flux_tensor *const *x, flux_tensor *y, flux_tensor *g, flux_tensor **dx, void *context) { dx[0] = g; }
static double halving(int64_t t, void *user) { return 0.1 / (double)t; }
static void hear(const char *message, void *user) { ++*(int *)user; }
static void hear_message(flux_level level, const char *id, const char *message, void *user) {}
static void work(void *x) { flux_eval(flux_exp((flux_tensor *)x)); }
static void count_numbers(flux_tensor *x, const char *path, bool trained, void *user) { *(int64_t *)user += flux_len(x); }
static flux_tensor *scaled(flux_tensor *x, const char *path, void *user) { return flux_mul(x, *(double *)user); }
static bool no_bias(flux_layer *m, void *user) { return false; }
static int64_t hundred(void *user) { return 100; }
static int number_i(void *user, int64_t i, int n, flux_tensor **out) { return out[0] = flux_scalar((double)i), 0; }
static bool stop_at_once(const flux_train_info *at, void *user) { return true; }

FLUX_OP(swish_by, (x, beta), x / (1 + exp(-beta * x)));
typedef struct { flux_layer base; flux_layer *body; flux_tensor *scale, *calls; } my_layer;
static flux_tensor *my_call(flux_layer *self, flux_tensor *x) {
    my_layer *m = (my_layer *)self;
    return flux_mul(flux_call(m->body, x), m->scale);
}
FLUX_LAYER(my_layer, "MyLayer", my_call, FLUX_CHILD(body), FLUX_PARAM(scale), FLUX_STATE(calls))
typedef struct { flux_layer base; int n; flux_layer **parts; } my_list;
static flux_tensor *list_call(flux_layer *self, flux_tensor *x) {
    my_list *m = (my_list *)self;
    for (int i = 0; i < m->n; i++) x = flux_call(m->parts[i], x);
    return x;
}
static size_t list_text(flux_layer *self, char *out, size_t n) { return (size_t)snprintf(out, n, "MyList(%d)", ((my_list *)self)->n); }
FLUX_LAYER_TEXT(my_list, "MyList", list_call, list_text, FLUX_CHILDREN(parts, n))
typedef struct { flux_layer base; flux_tensor *table; } my_table;
static flux_tensor *table_call(flux_layer *self, flux_tensor *x) { return flux_gather(((my_table *)self)->table, 1, x); }
FLUX_LAYER_TRAITS(my_table, "MyTable", table_call, NULL, FLUX_TAKES_INDICES, FLUX_PARAM(table))

/* ---------------- a test for each chapter */

TEST(types) {
    USE(FLUX_VERSION, FLUX_VERSION_STRING) { if (FLUX_VERSION >= 100) printf("made for %s\n", FLUX_VERSION_STRING); }
    USE(flux_version) { IS(flux_version(), FLUX_VERSION); }
    USE(FLUX_MAX_DIMS) { IS(FLUX_MAX_DIMS, 8); }
    USE(FLUX_SHAPE) { flux_tensor *z = flux_full_with(FLUX_SHAPE(3, 4), 0, FLUX_I32); SHAPE(z, 3, 4); }
    USE(FLUX_OPTIONS) { flux_rule rule = flux_rule_with("Adam", FLUX_OPTIONS(flux_rule_opts, .eta = 0)); }
}

TEST(errors) {
    flux_tensor *a = flux_ones(2, 3), *b = flux_ones(4, 5);
    USE(flux_on_error) { int told = 0; flux_on_error(hear, &told); flux_add(a, b); IS(told, 1); flux_clear(); flux_on_error(NULL, NULL); }
    flux_on_error(test_silent, NULL);
    USE(flux_error) { flux_matmul(a, b); printf("it said: %s\n", flux_error()); flux_clear(); }
    USE(flux_failed) { flux_tensor *c = flux_add(a, b); IS(flux_failed(), true); flux_clear(); }
    USE(flux_clear) { if (!flux_add(a, b)) flux_clear(); IS(flux_failed(), false); }
    flux_on_error(NULL, NULL);
    USE(flux_log_level) { flux_log_level(FLUX_LOG_WARN); flux_log_level(FLUX_LOG_INFO); }
    USE(flux_on_log) { flux_on_log(hear_message, NULL); flux_on_log(NULL, NULL); }
    USE(flux_silence) { flux_silence("gpu.none"); flux_silence(NULL); }
}

TEST(memory) {
    flux_tensor *x = flux_ones(3);
    USE(flux_scope_open, flux_scope_close) { flux_scope_open(); flux_tensor *y = flux_exp(x); flux_eval(y); flux_scope_close(); }
    USE(flux_retain, flux_release) { flux_tensor *y = (flux_tensor *)flux_retain(flux_exp(x)); flux_release(y); }
    USE(flux_assign) { flux_tensor *field = NULL; flux_assign(&field, x); flux_assign(&field, NULL); }
    USE(flux_times) { double sum = 0; flux_times (i, 3) sum += flux_item(flux_sum(flux_mul(x, i))); IS(sum, 9); }
    USE(FLUX_SCOPE) { double sum = 0; FLUX_SCOPE { sum = flux_item(flux_sum(flux_exp(x))); } IS(sum, 8.1548); }
    USE(FLUX_NOGRAD) { flux_tensor *y = NULL; FLUX_NOGRAD { y = flux_mul(x, 2); } VALUES(y, 2, 2, 2); }
    USE(FLUX_INFER) { flux_tensor *y = NULL; FLUX_INFER { y = flux_keep(flux_mul(x, 2)); } VALUES(y, 2, 2, 2); }
    USE(flux_keep) { flux_tensor *y = NULL; FLUX_SCOPE { y = flux_keep(flux_mul(x, 2)); } VALUES(y, 2, 2, 2); }
    USE(flux_carry) { flux_tensor *h = x; flux_times (i, 3) h = flux_carry(h, flux_mul(h, 2)); VALUES(h, 8, 8, 8); }
    USE(flux_threads) { flux_threads(2); flux_threads(0); }
}

TEST(devices) {
    flux_device cpu = { 0, 0 };
    flux_tensor *x = flux_ones(3);
    flux_layer *model = flux_dense(3, 2);
    USE(flux_supported_devices) { for (const char *const *name = flux_supported_devices(); *name; name++) puts(*name); }
    USE(flux_functional) { IS(flux_functional("CPU"), true); }
    USE(flux_functional_with) { if (!flux_functional_with("CUDA", "compiler")) puts("no NVRTC"); }
    USE(flux_functional_reason) { puts(flux_functional_reason("CUDA")); }
    USE(flux_device_count) { IS(flux_device_count("CPU"), 1); }
    USE(flux_get_device) { flux_device best = flux_get_device(.verbose = true); }
    USE(flux_get_devices) { flux_device all[8]; int n = flux_get_devices("CPU", all, 8); IS(n, 1); }
    USE(flux_device_name) { puts(flux_device_name(flux_device_of(x))); }
    USE(flux_device_id) { IS(flux_device_id(cpu), 0); }
    USE(flux_device_backend) { puts(flux_device_backend(cpu)); }
    USE(flux_device_equal) { IS(flux_device_equal(cpu, flux_device_of(flux_cpu(x))), true); }
    USE(flux_default_device) { flux_default_device(cpu); }
    flux_default_device(test_device);
    USE(flux_synchronise_device) { flux_synchronise_device(flux_device_of(x)); }
    USE(flux_prewarm) { IS(flux_prewarm(model, 3, 64), 0); }
    USE(flux_gpu_backend) { puts(flux_gpu_backend()); }
    USE(flux_gpu_backend_is_set) { if (!flux_gpu_backend_is_set()) puts("no preference"); }
    USE(flux_allow_tf32) { flux_allow_tf32(false); }
    USE(flux_mem_stats) { flux_mem m = flux_mem_stats(cpu); printf("%lld bytes\n", (long long)m.live); }
    USE(flux_mem_limit) { flux_mem_limit(cpu, 8000000000); flux_mem_limit(cpu, 0); }
    USE(flux_mem_trim) { flux_mem_trim(cpu); }
    USE(flux_gpu) { flux_layer *m = flux_gpu(model); flux_tensor *y = flux_gpu(x); }
    USE(flux_cpu) { flux_tensor *y = flux_cpu(flux_gpu(x)); VALUES(y, 1, 1, 1); }
    USE(flux_cu, flux_roc) { if (flux_functional("CUDA")) flux_print(flux_cu(x)); if (flux_functional("AMDGPU")) flux_print(flux_roc(x)); }
    USE(flux_to) { flux_tensor *y = flux_to(cpu, x); flux_layer *m = flux_to(cpu, model); }
    USE(flux_device_of) { flux_device d = flux_device_of(model); }
}

TEST(making_tensors) {
    USE(flux_zeros) { flux_tensor *z = flux_zeros(2, 5); SHAPE(z, 2, 5); }
    USE(flux_ones) { flux_tensor *o = flux_ones(3); VALUES(o, 1, 1, 1); }
    USE(flux_full) { flux_tensor *f = flux_full(0.5, 2); VALUES(f, 0.5, 0.5); }
    USE(flux_rand) { flux_tensor *r = flux_rand(2, 5); SHAPE(r, 2, 5); }
    USE(flux_randn) { flux_tensor *r = flux_randn(784, 64); SHAPE(r, 784, 64); }
    USE(flux_randint) { flux_tensor *digits = flux_randint(0, 10, 2, 3); SHAPE(digits, 2, 3); }
    USE(flux_randperm) { flux_tensor *order = flux_randperm(5); IS(flux_item(flux_sum(order)), 10); }
    USE(flux_bernoulli) { flux_tensor *coins = flux_bernoulli(flux_full(0.5, 8)); SHAPE(coins, 8); }
    USE(flux_categorical) { flux_tensor *next = flux_categorical(flux_randn(50, 4), .temperature = 0.8, .top_k = 10); SHAPE(next, 4); }
    USE(flux_seed) { flux_seed(42); }
    USE(flux_random_state, flux_set_random_state) { flux_tensor *was = flux_random_state(); flux_rand(3); IS(flux_set_random_state(was), 0); }
    USE(flux_arange) { flux_tensor *r = flux_arange(0, 1, 0.25); VALUES(r, 0, 0.25, 0.5, 0.75); }
    USE(flux_linspace) { flux_tensor *l = flux_linspace(0, 1, 5); VALUES(l, 0, 0.25, 0.5, 0.75, 1); }
    USE(flux_values) { flux_tensor *v = flux_values(1, 2.5, 3); VALUES(v, 1, 2.5, 3); }
    USE(flux_eye) { flux_tensor *i = flux_eye(2); VALUES(i, 1, 0, 0, 1); }
    USE(flux_scalar) { flux_tensor *s = flux_scalar(3); IS(flux_item(s), 3); }
    USE(flux_from) { float a[3][2] = { { 0 } }; flux_tensor *t = flux_from(&a[0][0], 2, 3); SHAPE(t, 2, 3); }
    USE(flux_borrow) { static const float image[28][28]; flux_tensor *t = flux_borrow(&image[0][0], 28, 28); SHAPE(t, 28, 28); }
    USE(flux_from_rows) { double m[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } }; flux_tensor *t = flux_from_rows(&m[0][0], 2, 3); SHAPE(t, 2, 3); }
    USE(flux_copy) { flux_tensor *c = flux_copy(flux_transpose(flux_ones(2, 3))); SHAPE(c, 3, 2); }
}

TEST(looking_at_tensors) {
    flux_tensor *x = flux_reshape(flux_arange(1, 7, 1), 2, 3);   // 1 3 5 over 2 4 6
    flux_layer *model = flux_chain(flux_dense(2, 4, flux_tanh), flux_dense(4, 1));
    flux_loader *data = flux_dataloader(x, .batchsize = 2);
    flux_state *opt = flux_setup(flux_adam(), model);
    char text[1000];
    USE(flux_item) { double sum = flux_item(flux_sum(x)); IS(sum, 21); }
    USE(flux_at) { IS(flux_at(x, 1, 0), 2); }
    USE(flux_data) { const float *numbers = (const float *)flux_data(x); IS(numbers[5], 6); }
    USE(flux_floats) { const float *numbers = flux_floats(x); IS(numbers[2], 3); }
    USE(flux_read) { float out[6]; IS(flux_read(x, out, sizeof out), 0); IS(out[5], 6); }
    USE(flux_ndim) { IS(flux_ndim(x), 2); }
    USE(flux_dim) { IS(flux_dim(x, 1), 3); }
    USE(flux_len) { IS(flux_len(x), 6); }
    USE(flux_shape_of) { flux_tensor *z = flux_full_with(flux_shape_of(x), 0, FLUX_F32); SHAPE(z, 2, 3); }
    USE(flux_dtype_of) { IS(flux_dtype_of(x), FLUX_F32); }
    USE(flux_dtype_name) { puts(flux_dtype_name(flux_dtype_of(x))); }
    USE(flux_dtype_size) { IS(flux_dtype_size(FLUX_F64), 8); }
    USE(flux_eval) { flux_tensor *y = flux_eval(flux_exp(x)); SHAPE(y, 2, 3); }
    USE(flux_eval_all) { flux_tensor *both[] = { flux_sin(x), flux_cos(x) }; IS(flux_eval_all(2, both), 0); }
    USE(flux_graph_dot) { IS(flux_graph_dot(flux_call(model, x), "graph.dot"), 0); }
    USE(flux_print) { flux_print(x); flux_print(model); flux_print(opt); }
    USE(flux_tensor_text) { flux_tensor_text(x, text, sizeof text); puts(text); }
    USE(flux_layer_text) { flux_layer_text(model, text, sizeof text); }
    USE(flux_loader_text) { flux_loader_text(data, text, sizeof text); }
    USE(flux_state_text) { flux_state_text(opt, text, sizeof text); }
    USE(flux_grads_text) { flux_grads_text(flux_gradient(flux_sum(flux_call(model, x)), model), text, sizeof text); }
    USE(flux_summary) { flux_summary(model, 2, 64); }
    USE(flux_summary_text) { flux_summary_text(model, FLUX_SHAPE(2, 64), text, sizeof text); }
    USE(flux_profile) { flux_profile(work, x); }
    USE(flux_profile_start, flux_profile_stop, flux_print_profile) { flux_profile_start(); flux_eval(flux_exp(x)); flux_profile_stop(); flux_print_profile(); }
    USE(flux_profile_text) { flux_profile_text(text, sizeof text); }
    USE(flux_print_limits) { flux_print_limits(10, 120); flux_print_limits(0, 0); }
    USE(flux_print_ascii) { flux_print_ascii(true); flux_print_ascii(false); }
    USE(flux_format_bytes) { flux_format_bytes(3076, text, sizeof text); CHECK_STR(text, "3.004 KiB"); }
}

TEST(elementwise_operations) {
    flux_tensor *a = flux_values(-1, 0, 4), *b = flux_values(2, 2, 2), *c = flux_values(0.5);
    flux_tensor *yes = flux_gt(a, -0.5);
    USE(flux_add) { flux_tensor *y = flux_add(a, b); VALUES(y, 1, 2, 6); y = flux_add(a, 1); }
    USE(flux_sub) { flux_tensor *y = flux_sub(1, a); VALUES(y, 2, 1, -3); }
    USE(flux_mul) { flux_tensor *y = flux_mul(a, 0.5); VALUES(y, -0.5, 0, 2); }
    USE(flux_div) { flux_tensor *y = flux_div(a, b); VALUES(y, -0.5, 0, 2); }
    USE(flux_pow) { flux_tensor *y = flux_pow(a, 2); VALUES(y, 1, 0, 16); }
    USE(flux_max2) { flux_tensor *y = flux_max2(a, 1); VALUES(y, 1, 1, 4); }
    USE(flux_min2) { flux_tensor *y = flux_min2(a, b); VALUES(y, -1, 0, 2); }
    USE(flux_atan2) { flux_tensor *angle = flux_atan2(a, b); VALUES(angle, -0.46365, 0, 1.10715); }
    USE(flux_mod) { flux_tensor *y = flux_mod(a, 3); VALUES(y, 2, 0, 1); }
    USE(flux_eq) { flux_tensor *y = flux_eq(a, 0); VALUES(y, 0, 1, 0); }
    USE(flux_ne) { flux_tensor *y = flux_ne(a, 0); VALUES(y, 1, 0, 1); }
    USE(flux_lt) { flux_tensor *y = flux_lt(a, b); VALUES(y, 1, 1, 0); }
    USE(flux_le) { flux_tensor *y = flux_le(a, 0); VALUES(y, 1, 1, 0); }
    USE(flux_gt) { flux_tensor *y = flux_gt(a, b); VALUES(y, 0, 0, 1); }
    USE(flux_ge) { flux_tensor *y = flux_ge(a, 0); VALUES(y, 0, 1, 1); }
    USE(flux_and) { flux_tensor *y = flux_and(yes, flux_lt(a, 3)); VALUES(y, 0, 1, 0); }
    USE(flux_or) { flux_tensor *y = flux_or(yes, flux_lt(a, 3)); VALUES(y, 1, 1, 1); }
    USE(flux_not) { flux_tensor *y = flux_not(yes); VALUES(y, 1, 0, 0); }
    USE(flux_where) { flux_tensor *y = flux_where(yes, a, 7); VALUES(y, 7, 0, 4); }
    USE(flux_clamp) { flux_tensor *y = flux_clamp(a, 0, 1); VALUES(y, 0, 0, 1); }
    USE(flux_neg) { flux_tensor *y = flux_neg(a); VALUES(y, 1, 0, -4); }
    USE(flux_abs) { flux_tensor *y = flux_abs(a); VALUES(y, 1, 0, 4); }
    USE(flux_sign) { flux_tensor *y = flux_sign(a); VALUES(y, -1, 0, 1); }
    USE(flux_sqrt) { flux_tensor *y = flux_sqrt(b); VALUES(y, 1.4142, 1.4142, 1.4142); }
    USE(flux_rsqrt) { flux_tensor *y = flux_rsqrt(flux_scalar(4)); IS(flux_item(y), 0.5); }
    USE(flux_square) { flux_tensor *y = flux_square(a); VALUES(y, 1, 0, 16); }
    USE(flux_exp) { flux_tensor *y = flux_exp(c); VALUES(y, 1.6487); }
    USE(flux_log) { flux_tensor *y = flux_log(c); VALUES(y, -0.6931); }
    USE(flux_log1p) { flux_tensor *y = flux_log1p(c); VALUES(y, 0.4055); }
    USE(flux_expm1) { flux_tensor *y = flux_expm1(c); VALUES(y, 0.6487); }
    USE(flux_sin) { flux_tensor *y = flux_sin(c); VALUES(y, 0.4794); }
    USE(flux_cos) { flux_tensor *y = flux_cos(c); VALUES(y, 0.8776); }
    USE(flux_tan) { flux_tensor *y = flux_tan(c); VALUES(y, 0.5463); }
    USE(flux_asin) { flux_tensor *y = flux_asin(c); VALUES(y, 0.5236); }
    USE(flux_acos) { flux_tensor *y = flux_acos(c); VALUES(y, 1.0472); }
    USE(flux_atan) { flux_tensor *y = flux_atan(c); VALUES(y, 0.4636); }
    USE(flux_sinh) { flux_tensor *y = flux_sinh(c); VALUES(y, 0.5211); }
    USE(flux_cosh) { flux_tensor *y = flux_cosh(c); VALUES(y, 1.1276); }
    USE(flux_erf) { flux_tensor *y = flux_erf(c); VALUES(y, 0.5205); }
    USE(flux_floor) { flux_tensor *y = flux_floor(flux_values(-1.5, 1.5)); VALUES(y, -2, 1); }
    USE(flux_ceil) { flux_tensor *y = flux_ceil(flux_values(-1.5, 1.5)); VALUES(y, -1, 2); }
    USE(flux_round) { flux_tensor *y = flux_round(flux_values(0.5, 1.5)); VALUES(y, 0, 2); }
    USE(flux_isnan) { flux_tensor *y = flux_isnan(flux_sqrt(a)); VALUES(y, 1, 0, 0); }
    USE(flux_isfinite) { flux_tensor *y = flux_isfinite(flux_div(1, a)); VALUES(y, 1, 0, 1); }
    USE(flux_masked_fill) { flux_tensor *y = flux_masked_fill(a, yes, 9); VALUES(y, -1, 9, 9); }
    USE(flux_detach) { flux_tensor *target = flux_detach(flux_exp(a)); SHAPE(target, 3); }
    USE(flux_to_dtype) { flux_tensor *half = flux_to_dtype(a, FLUX_F16); VALUES(half, -1, 0, 4); }
}

TEST(activations) {
    flux_tensor *x = flux_values(-2, 0, 1);
    USE(flux_identity) { flux_tensor *y = flux_identity(x); VALUES(y, -2, 0, 1); }
    USE(flux_sigmoid) { flux_tensor *y = flux_sigmoid(x); VALUES(y, 0.1192, 0.5, 0.7311); }
    USE(flux_hardsigmoid) { flux_tensor *y = flux_hardsigmoid(x); VALUES(y, 0.1667, 0.5, 0.6667); }
    USE(flux_logsigmoid) { flux_tensor *y = flux_logsigmoid(x); VALUES(y, -2.1269, -0.6931, -0.3133); }
    USE(flux_tanh) { flux_tensor *y = flux_tanh(x); VALUES(y, -0.964, 0, 0.7616); }
    USE(flux_hardtanh) { flux_tensor *y = flux_hardtanh(x); VALUES(y, -1, 0, 1); }
    USE(flux_relu) { flux_tensor *y = flux_relu(x); VALUES(y, 0, 0, 1); }
    USE(flux_relu6) { flux_tensor *y = flux_relu6(x); VALUES(y, 0, 0, 1); }
    USE(flux_selu) { flux_tensor *y = flux_selu(x); VALUES(y, -1.5202, 0, 1.0507); }
    USE(flux_gelu) { flux_layer *m = flux_dense(10, 5, flux_gelu); }
    USE(flux_gelu_tanh) { flux_tensor *y = flux_gelu_tanh(x); VALUES(y, -0.0454, 0, 0.8412); }
    USE(flux_gelu_sigmoid) { flux_tensor *y = flux_gelu_sigmoid(x); VALUES(y, -0.0454, 0, 0.8412); }
    USE(flux_gelu_erf) { flux_tensor *y = flux_gelu_erf(x); VALUES(y, -0.0455, 0, 0.8413); }
    USE(flux_swish) { flux_tensor *y = flux_swish(x); VALUES(y, -0.2384, 0, 0.7311); }
    USE(flux_hardswish) { flux_tensor *y = flux_hardswish(x); VALUES(y, -0.3333, 0, 0.6667); }
    USE(flux_lisht) { flux_tensor *y = flux_lisht(x); VALUES(y, 1.9281, 0, 0.7616); }
    USE(flux_logcosh) { flux_tensor *y = flux_logcosh(x); VALUES(y, 1.325, 0, 0.4338); }
    USE(flux_mish) { flux_tensor *y = flux_mish(x); VALUES(y, -0.2525, 0, 0.8651); }
    USE(flux_softplus) { flux_tensor *y = flux_softplus(x); VALUES(y, 0.1269, 0.6931, 1.3133); }
    USE(flux_softsign) { flux_tensor *y = flux_softsign(x); VALUES(y, -0.6667, 0, 0.5); }
    USE(flux_tanhshrink) { flux_tensor *y = flux_tanhshrink(x); VALUES(y, -1.036, 0, 0.2384); }
    USE(flux_leakyrelu) { flux_tensor *y = flux_leakyrelu(x, .alpha = 0.2); VALUES(y, -0.4, 0, 1); }
    USE(flux_rrelu) { flux_tensor *y = flux_rrelu(x, .lo = 0.1, .hi = 0.2); SHAPE(y, 3); }
    USE(flux_elu) { flux_tensor *y = flux_elu(x); VALUES(y, -0.8647, 0, 1); }
    USE(flux_celu) { flux_tensor *y = flux_celu(x, .alpha = 2); VALUES(y, -1.2642, 0, 1); }
    USE(flux_softshrink) { flux_tensor *y = flux_softshrink(x); VALUES(y, -1.5, 0, 0.5); }
    USE(flux_trelu) { flux_tensor *y = flux_trelu(x, .alpha = 0.5); VALUES(y, 0, 0, 1); }
    USE(flux_glu) { flux_tensor *y = flux_glu(flux_ones(4, 3), 0); SHAPE(y, 2, 3); }
    USE(flux_name_function) { flux_name_function(twice, "twice"); flux_print(flux_dense(2, 2, twice)); }
}

TEST(reductions) {
    flux_tensor *x = flux_reshape(flux_arange(1, 7, 1), 2, 3);   // 1 3 5 over 2 4 6
    flux_tensor *v = flux_values(1, 2, 3);
    USE(flux_sum) { flux_tensor *s = flux_sum(x, 0); SHAPE(s, 1, 3); VALUES(s, 3, 7, 11); }
    USE(flux_mean) { IS(flux_item(flux_mean(x)), 3.5); flux_tensor *m = flux_mean(x, 1); VALUES(m, 3, 4); }
    USE(flux_var) { IS(flux_item(flux_var(v)), 0.6667); }
    USE(flux_std) { IS(flux_item(flux_std(v)), 0.8165); }
    USE(flux_prod) { IS(flux_item(flux_prod(v)), 6); }
    USE(flux_max) { flux_tensor *m = flux_max(x, 1); VALUES(m, 5, 6); }
    USE(flux_min) { IS(flux_item(flux_min(x)), 1); }
    USE(flux_any) { IS(flux_item(flux_any(flux_gt(x, 5))), 1); }
    USE(flux_all) { IS(flux_item(flux_all(flux_gt(x, 5))), 0); }
    USE(flux_norm) { IS(flux_item(flux_norm(v)), 3.7417); }
    USE(flux_logsumexp) { IS(flux_item(flux_logsumexp(v)), 3.4076); }
    USE(flux_argmax) { flux_tensor *i = flux_argmax(x, 1); VALUES(i, 2, 2); }
    USE(flux_argmin) { IS(flux_item(flux_argmin(x)), 0); }
    USE(flux_cumsum) { flux_tensor *c = flux_cumsum(v); VALUES(c, 1, 3, 6); }
    USE(flux_cumprod) { flux_tensor *c = flux_cumprod(x, 1); VALUES(c, 1, 2, 3, 8, 15, 48); }
    USE(flux_softmax) { flux_tensor *p = flux_softmax(v); VALUES(p, 0.09, 0.2447, 0.6652); }
    USE(flux_logsoftmax) { flux_tensor *p = flux_logsoftmax(x, 0); SHAPE(p, 2, 3); }
}

TEST(shapes) {
    flux_tensor *x = flux_reshape(flux_arange(1, 7, 1), 2, 3);   // 1 3 5 over 2 4 6
    flux_tensor *v = flux_values(3, 1, 2), *images = flux_ones(28, 28, 3, 10);
    const int32_t two[] = { 2, 0 };
    flux_tensor *index = flux_from(two, 2);
    USE(flux_reshape) { flux_tensor *y = flux_reshape(x, 3, -1); SHAPE(y, 3, 2); }
    USE(flux_flatten) { flux_tensor *y = flux_flatten(images); SHAPE(y, 2352, 10); }
    USE(flux_permute) { flux_tensor *y = flux_permute(images, 1, 0, 2, 3); SHAPE(y, 28, 28, 3, 10); }
    USE(flux_transpose) { flux_tensor *y = flux_transpose(x); SHAPE(y, 3, 2); }
    USE(flux_slice) { flux_tensor *y = flux_slice(x, 1, 0, 2); VALUES(y, 1, 2, 3, 4); }
    USE(flux_slice_step) { flux_tensor *y = flux_slice_step(x, 1, 0, 3, 2); VALUES(y, 1, 2, 5, 6); }
    USE(flux_take) { flux_tensor *first = flux_take(images, 4); SHAPE(first, 28, 28, 3, 4); }
    USE(flux_drop) { flux_tensor *rest = flux_drop(images, 4); SHAPE(rest, 28, 28, 3, 6); }
    USE(flux_select) { flux_tensor *image = flux_select(images, 3, 0); SHAPE(image, 28, 28, 3); }
    USE(flux_unsqueeze) { flux_tensor *y = flux_unsqueeze(v, 0); SHAPE(y, 1, 3); }
    USE(flux_squeeze) { flux_tensor *y = flux_squeeze(flux_ones(1, 3, 1)); SHAPE(y, 3); }
    USE(flux_broadcast_to) { flux_tensor *y = flux_broadcast_to(v, 3, 4); SHAPE(y, 3, 4); }
    USE(flux_flip) { flux_tensor *y = flux_flip(v, 0); VALUES(y, 2, 1, 3); }
    USE(flux_repeat) { flux_tensor *y = flux_repeat(v, 2); VALUES(y, 3, 1, 2, 3, 1, 2); }
    USE(flux_pad) { flux_tensor *y = flux_pad(v, 0, 1, 2); VALUES(y, 0, 3, 1, 2, 0, 0); }
    USE(flux_pad_by) { flux_tensor *y = flux_pad_by(x, 9, FLUX_SHAPE(0, 1), FLUX_SHAPE(0, 1)); SHAPE(y, 2, 5); }
    USE(flux_cat) { flux_tensor *y = flux_cat(0, v, v); SHAPE(y, 6); }
    USE(flux_stack) { flux_tensor *y = flux_stack(1, v, v); SHAPE(y, 3, 2); }
    USE(flux_gather) { flux_tensor *y = flux_gather(x, 1, index); VALUES(y, 5, 6, 1, 2); }
    USE(flux_take_along) { flux_tensor *y = flux_take_along(v, 0, flux_argsort(v)); VALUES(y, 1, 2, 3); }
    USE(flux_sort) { flux_tensor *y = flux_sort(v, .descending = true); VALUES(y, 3, 2, 1); }
    USE(flux_argsort) { flux_tensor *i = flux_argsort(v); VALUES(i, 1, 2, 0); }
    USE(flux_topk) { flux_tensor *best = flux_topk(v, 2, 0); VALUES(flux_nth(best, 0), 3, 2); VALUES(flux_nth(best, 1), 0, 2); }
    USE(flux_tril) { flux_tensor *y = flux_tril(flux_ones(2, 2)); VALUES(y, 1, 1, 0, 1); }
    USE(flux_triu) { flux_tensor *y = flux_triu(flux_ones(2, 2), 1); VALUES(y, 0, 0, 1, 0); }
    USE(flux_diag) { flux_tensor *m = flux_diag(v); SHAPE(m, 3, 3); flux_tensor *d = flux_diag(m); VALUES(d, 3, 1, 2); }
    USE(flux_trace) { IS(flux_item(flux_trace(flux_eye(3))), 3); }
    USE(flux_split) { flux_tensor *parts = flux_split(x, 1, 1, 2); SHAPE(flux_nth(parts, 1), 2, 2); }
    USE(flux_chunk) { flux_tensor *parts = flux_chunk(images, 3, 2); SHAPE(flux_nth(parts, 0), 28, 28, 3, 5); }
    USE(flux_scatter_add) { flux_tensor *y = flux_scatter_add(flux_zeros(3), 0, index, flux_values(7, 8)); VALUES(y, 8, 0, 7); }
    USE(flux_tuple) { flux_tensor *both = flux_tuple(x, v); SHAPE(flux_nth(both, 1), 3); }
    USE(flux_nth) { flux_tensor *indices = flux_nth(flux_topk(v, 1, 0), 1); VALUES(indices, 0); }
    USE(flux_num_items) { IS(flux_num_items(flux_tuple(x, v)), 2); }
}

TEST(linear_algebra_and_convolution) {
    flux_tensor *W = flux_randn(4, 3), *x = flux_randn(3, 5), *v = flux_values(1, 2, 3);
    flux_tensor *images = flux_randn(28, 28, 3, 10), *kernels = flux_randn(5, 5, 3, 8);
    USE(flux_matmul) { flux_tensor *y = flux_matmul(W, x); SHAPE(y, 4, 5); }
    USE(flux_outer) { flux_tensor *y = flux_outer(v, flux_values(1, 10)); VALUES(y, 1, 2, 3, 10, 20, 30); }
    USE(flux_dot) { IS(flux_item(flux_dot(v, v)), 14); }
    USE(flux_einsum) { flux_tensor *y = flux_einsum("ik,kj->ij", W, x); SHAPE(y, 4, 5); }
    USE(flux_conv) { flux_tensor *y = flux_conv(images, kernels); SHAPE(y, 24, 24, 8, 10); }
    USE(FLUX_SAMEPAD) { flux_tensor *y = flux_conv(images, kernels, .pad = FLUX_SAMEPAD); SHAPE(y, 28, 28, 8, 10); }
    USE(flux_crosscor) { flux_tensor *y = flux_crosscor(images, kernels, .stride = FLUX_SHAPE(2)); SHAPE(y, 12, 12, 8, 10); }
    USE(flux_conv_transpose) { flux_tensor *y = flux_conv_transpose(flux_ones(24, 24, 8, 10), kernels); SHAPE(y, 28, 28, 3, 10); }
    USE(flux_maxpool) { flux_tensor *y = flux_maxpool(images, FLUX_SHAPE(2, 2)); SHAPE(y, 14, 14, 3, 10); }
    USE(flux_meanpool) { flux_tensor *y = flux_meanpool(images, FLUX_SHAPE(3, 3), .stride = FLUX_SHAPE(2)); SHAPE(y, 13, 13, 3, 10); }
    USE(flux_lpnormpool) { flux_tensor *y = flux_lpnormpool(images, FLUX_SHAPE(2, 2), .p = 2); SHAPE(y, 14, 14, 3, 10); }
    USE(flux_expr) { flux_tensor *y = flux_expr("sum((W*x .- 1).^2)", W, x); SHAPE(flux_reshape(y, 1), 1); }
}

TEST(one_hot) {
    const int32_t digits[] = { 0, 2, 1 };
    flux_tensor *labels = flux_from(digits, 3);
    USE(flux_onehot) { flux_tensor *y = flux_onehot(labels, 3); VALUES(y, 1, 0, 0, 0, 0, 1, 0, 1, 0); }
    USE(flux_onecold) { flux_tensor *y = flux_onecold(flux_onehot(labels, 3)); VALUES(y, 0, 2, 1); }
}

TEST(operations_of_your_own) {
    flux_tensor *x = flux_values(0.4, 1.6);
    USE(FLUX_OP) { flux_tensor *y = swish_by(x, flux_scalar(1)); VALUES(y, 0.2395, 1.3312); }
    USE(flux_operate) { const char *f = "2 * x"; flux_operation op = { "double", "x", 1, &f }; flux_tensor *y = flux_operate(&op, 1, &x); VALUES(y, 0.8, 3.2); }
    USE(flux_custom) { flux_tensor *y = flux_custom(forward, backward, x); VALUES(y, 0, 2); }
}

TEST(models) {
    flux_tensor *x = flux_randn(2, 5);
    flux_layer *model = flux_chain(flux_dense(2, 4, flux_tanh), flux_dense(4, 1));
    USE(FLUX_LAYER, FLUX_CHILD, FLUX_PARAM, FLUX_STATE, flux_new) {
        flux_layer *m = flux_new(my_layer, .body = flux_dense(2, 2), .scale = flux_ones(2));
        flux_tensor *y = flux_call(m, x); SHAPE(y, 2, 5);
    }
    USE(FLUX_LAYER_TEXT, FLUX_CHILDREN) {
        flux_layer *two[] = { flux_dense(2, 2), flux_dense(2, 2) };
        flux_layer *m = flux_new(my_list, .n = 2, .parts = two);
    }
    USE(FLUX_LAYER_TRAITS) { flux_layer *m = flux_new(my_table, .table = flux_randn(4, 10)); flux_summary(m, 7); }
    USE(flux_call) { flux_tensor *y = flux_call(model, x); SHAPE(y, 1, 5); }
    USE(flux_call_layer) { flux_tensor *y = flux_call_layer(model, x); SHAPE(y, 1, 5); }
    USE(flux_fmap, flux_mapleaves) { flux_layer *m = flux_fmap(twice, model); m = flux_mapleaves(twice, model); }
    USE(flux_fmap_with) { double by = 0.5; flux_layer *m = flux_fmap_with(scaled, &by, model, no_bias); }
    USE(flux_visit) { int64_t n = 0; flux_visit(model, count_numbers, &n); IS(n, 17); }
    USE(flux_param) { flux_tensor *w = flux_param(model, "layers.0.weight"); SHAPE(w, 4, 2); }
    USE(flux_weight) { flux_tensor *w = flux_weight(model); SHAPE(w, 4, 2); }
    USE(flux_bias) { flux_tensor *b = flux_bias(model); VALUES(b, 0, 0, 0, 0); }
    USE(flux_set_param) { IS(flux_set_param(model, "layers.0.bias", flux_ones(4)), 0); }
    USE(flux_params) { flux_tensor *all[8]; IS(flux_params(model, all, 8), 4); }
    USE(flux_num_params) { IS(flux_num_params(model), 17); }
    USE(flux_child) { for (int i = 0; flux_child(model, i); i++) flux_print(flux_child(model, i)); }
    USE(flux_named) { flux_layer *m = flux_chain(flux_named("enc", flux_dense(2, 3))); SHAPE(flux_param(m, "layers.enc.weight"), 3, 2); }
    USE(flux_copy_layer) { flux_layer *other = flux_copy_layer(model); }
    USE(flux_loadmodel) { IS(flux_loadmodel(flux_copy_layer(model), model), 0); }
    USE(flux_testmode) { flux_testmode(model, true); flux_testmode(model, false); }
    USE(flux_trainmode) { flux_trainmode(model, true); flux_trainmode(model, false); }
    USE(flux_training) { IS(flux_training(model), true); }
    USE(flux_freeze) { flux_freeze(flux_child(model, 0)); }
    USE(flux_thaw) { flux_thaw(model); }
    USE(flux_outputsize) { flux_shape s = flux_outputsize(model, 2, 64); IS(s.dim[0], 1); }
    USE(flux_export_c) { IS(flux_export_c(model, FLUX_SHAPE(2, 1), "net.c"), 0); }
    USE(flux_destructure) { flux_tensor *all = flux_destructure(model); SHAPE(all, 17); }
    USE(flux_restructure) { flux_layer *m = flux_restructure(model, flux_zeros(17)); }
    USE(flux_f16) { flux_layer *half = flux_f16(model); }
    USE(flux_bf16) { flux_layer *half = flux_bf16(model); }
    USE(flux_f32, flux_f64) { flux_layer *exact = flux_f64(model); exact = flux_f32(exact); }
    USE(flux_averaged, flux_update_average) { flux_layer *ema = flux_averaged(model, .decay = 0.999); IS(flux_update_average(ema, model), 0); }
}

TEST(initialisers) {
    USE(flux_glorot_uniform) { flux_layer *m = flux_dense(10, 5, .init = flux_glorot_uniform); }
    USE(flux_glorot_normal) { flux_layer *m = flux_dense(10, 5, .init = flux_glorot_normal); }
    USE(flux_kaiming_uniform) { flux_layer *m = flux_dense(10, 5, flux_relu, .init = flux_kaiming_uniform); }
    USE(flux_kaiming_normal) { flux_tensor *w = flux_kaiming_normal(FLUX_SHAPE(64, 784)); SHAPE(w, 64, 784); }
    USE(flux_truncated_normal) { flux_tensor *w = flux_truncated_normal(FLUX_SHAPE(64, 784)); SHAPE(w, 64, 784); }
    USE(flux_lecun_normal) { flux_tensor *w = flux_lecun_normal(FLUX_SHAPE(64, 784)); SHAPE(w, 64, 784); }
    USE(flux_orthogonal) { flux_tensor *w = flux_orthogonal(FLUX_SHAPE(4, 4)); IS(flux_item(flux_sum(flux_square(w))), 4); }
    USE(flux_identity_init) { flux_tensor *w = flux_identity_init(FLUX_SHAPE(2, 2)); VALUES(w, 1, 0, 0, 1); }
    USE(flux_zeros32, flux_ones32) { flux_layer *m = flux_batchnorm(8, .init_gamma = flux_ones32, .init_beta = flux_zeros32); }
    USE(flux_rand32, flux_randn32) { flux_layer *m = flux_embedding(100, 16, .init = flux_randn32); m = flux_embedding(100, 16, flux_rand32); }
    USE(flux_init) { flux_tensor *w = flux_init("kaiming_normal", FLUX_SHAPE(64, 784), .gain = 1); SHAPE(w, 64, 784); }
}

TEST(layers) {
    flux_tensor *x = flux_randn(10, 6), *steps = flux_randn(10, 7, 2);   // features x batch; x steps x batch
    flux_tensor *images = flux_randn(8, 8, 4, 2), *words = flux_randint(0, 100, 7, 2);
    USE(flux_dense) { flux_layer *m = flux_dense(10, 5, flux_tanh, .bias = false); SHAPE(flux_call(m, x), 5, 6); }
    USE(flux_scale) { flux_layer *m = flux_scale(FLUX_SHAPE(10)); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_bilinear) { flux_layer *m = flux_bilinear(10, 10, 3); SHAPE(flux_call(m, x, x), 3, 6); }
    USE(flux_embedding) { flux_layer *m = flux_embedding(100, 16); SHAPE(flux_call(m, words), 16, 7, 2); }
    USE(flux_embeddingbag) { flux_layer *m = flux_embeddingbag(100, 16, .reduction = flux_sum); SHAPE(flux_call(m, words), 16, 2); }
    USE(flux_rnn) { flux_layer *m = flux_rnn(10, 5); SHAPE(flux_call(m, steps), 5, 7, 2); }
    USE(flux_lstm) { flux_layer *m = flux_lstm(10, 5); SHAPE(flux_call(m, steps), 5, 7, 2); }
    USE(flux_gru) { flux_layer *m = flux_gru(10, 5, .return_state = true); SHAPE(flux_nth(flux_call(m, steps), 1), 5, 2); }
    USE(flux_gruv3) { flux_layer *m = flux_gruv3(10, 5); SHAPE(flux_call(m, steps), 5, 7, 2); }
    USE(flux_rnncell) { flux_layer *m = flux_rnncell(10, 5); SHAPE(flux_nth(flux_call(m, x), 0), 5, 6); }
    USE(flux_lstmcell) { flux_layer *m = flux_lstmcell(10, 5); IS(flux_num_items(flux_call(m, x)), 3); }
    USE(flux_grucell) { flux_layer *m = flux_grucell(10, 5); SHAPE(flux_nth(flux_call(m, x, flux_zeros(5, 6)), 1), 5, 6); }
    USE(flux_gruv3cell) { flux_layer *m = flux_gruv3cell(10, 5); SHAPE(flux_nth(flux_call(m, x), 0), 5, 6); }
    USE(flux_recurrence) { flux_layer *m = flux_recurrence(flux_lstmcell(10, 5)); SHAPE(flux_call(m, steps), 5, 7, 2); }
    USE(flux_multiheadattention) { flux_layer *m = flux_multiheadattention(10, 2, .causal = true); SHAPE(flux_nth(flux_call(m, steps), 0), 10, 7, 2); }
    USE(flux_dot_product_attention) { flux_tensor *y = flux_dot_product_attention(steps, steps, steps, .nheads = 2); SHAPE(flux_nth(y, 0), 10, 7, 2); }
    USE(flux_dot_product_attention_scores) { flux_tensor *s = flux_dot_product_attention_scores(steps, steps, .nheads = 2); SHAPE(s, 7, 7, 2, 2); }
    USE(flux_make_causal_mask) { flux_tensor *mask = flux_make_causal_mask(steps); SHAPE(mask, 7, 7); }
    USE(flux_rotary) { flux_tensor *q = flux_rotary(steps, .nheads = 1); SHAPE(q, 10, 7, 2); }
    USE(flux_positionembedding) { flux_layer *m = flux_positionembedding(64, 10); SHAPE(flux_call(m, steps), 10, 7, 2); }
    USE(flux_cache, flux_cached) {
        flux_layer *m = flux_chain(flux_multiheadattention(10, 2, .causal = true, .scores = FLUX_OFF));
        IS(flux_cache(m, 512), 0);
        FLUX_INFER flux_eval(flux_call(m, steps));
        IS(flux_cached(m), 7); flux_cache(m, 0);
    }
    USE(flux_swiglu) { flux_layer *m = flux_swiglu(10, 40); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_rmsnorm) { flux_layer *m = flux_rmsnorm(FLUX_SHAPE(10)); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_layernorm) { flux_layer *m = flux_layernorm(FLUX_SHAPE(10)); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_dropout) { flux_layer *m = flux_dropout(0.5); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_alphadropout) { flux_layer *m = flux_alphadropout(0.1); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_conv_layer) { flux_layer *m = flux_conv_layer(FLUX_SHAPE(3, 3), 4, 8, flux_relu, .pad = FLUX_SAMEPAD); SHAPE(flux_call(m, images), 8, 8, 8, 2); }
    USE(flux_crosscor_layer) { flux_layer *m = flux_crosscor_layer(FLUX_SHAPE(3, 3), 4, 8); SHAPE(flux_call(m, images), 6, 6, 8, 2); }
    USE(flux_conv_transpose_layer) { flux_layer *m = flux_conv_transpose_layer(FLUX_SHAPE(2, 2), 4, 8, .stride = FLUX_SHAPE(2)); SHAPE(flux_call(m, images), 16, 16, 8, 2); }
    USE(flux_depthwiseconv) { flux_layer *m = flux_depthwiseconv(FLUX_SHAPE(3, 3), 4, 8); SHAPE(flux_call(m, images), 6, 6, 8, 2); }
    USE(flux_maxpool_layer) { flux_layer *m = flux_maxpool_layer(FLUX_SHAPE(2, 2)); SHAPE(flux_call(m, images), 4, 4, 4, 2); }
    USE(flux_meanpool_layer) { flux_layer *m = flux_meanpool_layer(FLUX_SHAPE(2, 2)); SHAPE(flux_call(m, images), 4, 4, 4, 2); }
    USE(flux_lpnormpool_layer) { flux_layer *m = flux_lpnormpool_layer(FLUX_SHAPE(2, 2), .p = 2); SHAPE(flux_call(m, images), 4, 4, 4, 2); }
    USE(flux_adaptivemaxpool) { flux_layer *m = flux_adaptivemaxpool(FLUX_SHAPE(2, 2)); SHAPE(flux_call(m, images), 2, 2, 4, 2); }
    USE(flux_adaptivemeanpool) { flux_layer *m = flux_adaptivemeanpool(FLUX_SHAPE(2, 2)); SHAPE(flux_call(m, images), 2, 2, 4, 2); }
    USE(flux_globalmaxpool) { flux_layer *m = flux_chain(flux_globalmaxpool(), flux_flatten); SHAPE(flux_call(m, images), 4, 2); }
    USE(flux_globalmeanpool) { flux_layer *m = flux_globalmeanpool(); SHAPE(flux_call(m, images), 1, 1, 4, 2); }
    USE(flux_globallpnormpool) { flux_layer *m = flux_globallpnormpool(2); SHAPE(flux_call(m, images), 1, 1, 4, 2); }
    USE(flux_upsample) { flux_layer *m = flux_upsample(FLUX_BILINEAR, .scale = { 2 }); SHAPE(flux_call(m, images), 16, 16, 4, 2); }
    USE(flux_pixelshuffle) { flux_layer *m = flux_pixelshuffle(2); SHAPE(flux_call(m, images), 16, 16, 1, 2); }
    USE(flux_batchnorm) { flux_layer *m = flux_batchnorm(4, flux_relu); SHAPE(flux_call(m, images), 8, 8, 4, 2); }
    USE(flux_instancenorm) { flux_layer *m = flux_instancenorm(4); SHAPE(flux_call(m, images), 8, 8, 4, 2); }
    USE(flux_groupnorm) { flux_layer *m = flux_groupnorm(4, 2); SHAPE(flux_call(m, images), 8, 8, 4, 2); }
    USE(flux_weightnorm, flux_remove_weightnorms) {
        flux_layer *m = flux_chain(flux_weightnorm(flux_dense(10, 5))); SHAPE(flux_call(m, x), 5, 6);
        m = flux_remove_weightnorms(m);
    }
    USE(flux_chain) { flux_layer *m = flux_chain(flux_dense(10, 5), flux_relu, flux_dense(5, 1)); SHAPE(flux_call(m, x), 1, 6); }
    USE(flux_parallel) { flux_layer *m = flux_parallel(flux_add, flux_dense(10, 5), flux_dense(10, 5)); SHAPE(flux_call(m, x), 5, 6); }
    USE(flux_pairwisefusion) { flux_layer *m = flux_pairwisefusion(flux_add, flux_dense(10, 10), flux_dense(10, 10)); IS(flux_num_items(flux_call(m, x, x)), 2); }
    USE(flux_skipconnection) { flux_layer *m = flux_skipconnection(flux_dense(10, 10, flux_relu), flux_add); SHAPE(flux_call(m, x), 10, 6); }
    USE(flux_maxout) { flux_layer *m = flux_maxout(flux_dense(10, 5), flux_dense(10, 5)); SHAPE(flux_call(m, x), 5, 6); }
    USE(flux_function) { flux_layer *m = flux_chain(flux_dense(10, 5), flux_function(twice, "twice")); SHAPE(flux_call(m, x), 5, 6); }
    USE(flux_function2) { flux_layer *m = flux_skipconnection(flux_dense(10, 5), flux_function2(flux_vcat, "vcat")); SHAPE(flux_call(m, x), 15, 6); }
    USE(flux_vcat) { flux_layer *m = flux_skipconnection(flux_dense(10, 5), flux_vcat); SHAPE(flux_call(m, x), 15, 6); }
    USE(flux_activations) { flux_tensor *all = flux_activations(flux_chain(flux_dense(10, 5), flux_dense(5, 2)), x); SHAPE(flux_nth(all, 0), 5, 6); }
    USE(flux_normalise) { flux_tensor *y = flux_normalise(x, FLUX_SHAPE(0), 1e-5); SHAPE(y, 10, 6); }
}

TEST(losses) {
    const int32_t two[] = { 0, 2 };
    flux_tensor *yhat = flux_values(0.5, 0.8), *y = flux_values(0, 1);        // binary, or numbers
    flux_tensor *p = flux_softmax(flux_randn(3, 2)), *logits = flux_randn(3, 2), *labels = flux_from(two, 2);
    USE(flux_mae) { IS(flux_item(flux_mae(yhat, y)), 0.35); }
    USE(flux_mse) { IS(flux_item(flux_mse(yhat, y)), 0.145); flux_tensor *each = flux_mse(yhat, y, .agg = FLUX_NONE); VALUES(each, 0.25, 0.04); }
    USE(flux_msle) { IS(flux_item(flux_msle(flux_values(1, 2), flux_values(2, 1))), 0.4805); }
    USE(flux_huber_loss) { IS(flux_item(flux_huber_loss(yhat, y, .delta = 0.4)), 0.07); }
    USE(flux_crossentropy) { flux_tensor *loss = flux_crossentropy(p, labels); IS(flux_ndim(loss), 0); }
    USE(flux_logitcrossentropy) { flux_tensor *loss = flux_logitcrossentropy(logits, flux_onehot(labels, 3)); IS(flux_ndim(loss), 0); }
    USE(flux_binarycrossentropy) { IS(flux_item(flux_binarycrossentropy(yhat, y)), 0.4581); }
    USE(flux_logitbinarycrossentropy) { IS(flux_item(flux_logitbinarycrossentropy(yhat, y)), 0.6726); }
    USE(flux_kldivergence) { IS(flux_item(flux_kldivergence(p, p)), 0); }
    USE(flux_poisson_loss) { IS(flux_item(flux_poisson_loss(yhat, y)), 0.7616); }
    USE(flux_hinge_loss) { IS(flux_item(flux_hinge_loss(yhat, flux_values(-1, 1))), 0.85); }
    USE(flux_squared_hinge_loss) { IS(flux_item(flux_squared_hinge_loss(yhat, flux_values(-1, 1))), 1.145); }
    USE(flux_dice_coeff_loss) { IS(flux_item(flux_dice_coeff_loss(yhat, y)), 0.1003); }
    USE(flux_tversky_loss) { IS(flux_item(flux_tversky_loss(yhat, y)), 0.1855); }
    USE(flux_focal_loss) { flux_tensor *loss = flux_focal_loss(p, flux_onehot(labels, 3), .gamma = 2); IS(flux_ndim(loss), 0); }
    USE(flux_binary_focal_loss) { IS(flux_item(flux_binary_focal_loss(yhat, y)), 0.0911); }
    USE(flux_siamese_contrastive_loss) { IS(flux_item(flux_siamese_contrastive_loss(yhat, y)), 0.145); }
    USE(flux_ctc_loss) { flux_tensor *loss = flux_ctc_loss(flux_randn(5, 8), labels); IS(flux_ndim(loss), 0); }
    USE(flux_label_smoothing) { flux_tensor *s = flux_label_smoothing(flux_onehot(labels, 3), 0.3, 0); VALUES(s, 0.8, 0.1, 0.1, 0.1, 0.1, 0.8); }
}

TEST(metrics) {
    const int32_t truth[] = { 0, 1, 1, 2 };
    const float score[4][3] = { { 5, 1, 0 }, { 0, 3, 1 }, { 4, 2, 0 }, { 0, 1, 9 } };
    flux_tensor *yhat = flux_from(&score[0][0], 3, 4), *y = flux_from(truth, 4);    // 3 of 4 are right
    USE(flux_accuracy) { IS(flux_item(flux_accuracy(yhat, y)), 0.75); }
    USE(flux_topk_accuracy) { IS(flux_item(flux_topk_accuracy(yhat, y, .k = 2)), 1); }
    USE(flux_confusion) { flux_tensor *count = flux_confusion(yhat, y); VALUES(count, 1, 0, 0, 1, 1, 0, 0, 0, 1); }
    USE(flux_precision) { flux_tensor *of_class = flux_precision(yhat, y); VALUES(of_class, 0.5, 1, 1); }
    USE(flux_recall) { flux_tensor *of_class = flux_recall(yhat, y); VALUES(of_class, 1, 0.5, 1); }
    USE(flux_f1) { IS(flux_item(flux_mean(flux_f1(yhat, y))), 0.7778); }
    USE(flux_r2) { IS(flux_item(flux_r2(flux_values(1, 2, 4), flux_values(1, 2, 3))), 0.5); }
    USE(flux_perplexity) { IS(flux_item(flux_perplexity(flux_zeros(3, 4), y)), 3); }
    USE(flux_metric, flux_metric_add, flux_metric_value, flux_metric_reset) {
        flux_layer *acc = flux_metric(flux_accuracy);
        flux_metric_add(acc, yhat, y); IS(flux_item(flux_metric_value(acc)), 0.75);
        flux_metric_reset(acc);
    }
}

TEST(gradients) {
    flux_tensor *W = flux_randn(1, 2), *x = flux_randn(2, 5), *y = flux_randn(1, 5);
    flux_layer *model = flux_dense(2, 1);
    flux_grads *g = flux_gradient(flux_mse(flux_call(model, x), y), model);
    USE(flux_gradient) { flux_grads *of_both = flux_gradient(flux_sum(flux_square(flux_matmul(W, flux_call(flux_dense(2, 2), x)))), W); }
    USE(flux_grad) { flux_tensor *dW = flux_grad(flux_gradient(flux_sum(flux_matmul(W, x)), W), W); SHAPE(dW, 1, 2); }
    USE(flux_grad_param) { flux_tensor *dw = flux_grad_param(g, model, "weight"); SHAPE(dw, 1, 2); }
    USE(flux_num_grads, flux_grad_at, flux_grad_name) { for (int i = 0; i < flux_num_grads(g); i++) { puts(flux_grad_name(g, i)); flux_print(flux_grad_at(g, i)); } }
    USE(flux_grads_scale) { IS(flux_grads_scale(g, 0.5), 0); }
    USE(flux_grads_add) { IS(flux_grads_add(g, g), 0); }
    USE(flux_clip_value) { IS(flux_clip_value(g, 1), 0); }
    USE(flux_grads_norm) { flux_print(flux_grads_norm(g)); }
    USE(flux_clip_global) { flux_tensor *was = flux_clip_global(g, 0.1); IS(flux_ndim(was), 0); }
    USE(flux_withgradient) { flux_grads *dm; flux_tensor *loss = flux_withgradient(size_of_output, x, model, &dm); SHAPE(flux_grad_param(dm, model, "bias"), 1); }
    USE(flux_gradcheck) { IS(flux_gradcheck(squares, NULL, flux_to_dtype(x, FLUX_F64), 0), 0); }
}

TEST(optimisers) {
    flux_tensor *x = flux_randn(2, 5), *y = flux_randn(1, 5);
    flux_layer *model = flux_chain(flux_dense(2, 4, flux_tanh), flux_dense(4, 1));
    flux_state *opt = flux_setup(flux_adam(1e-3), model);
    USE(flux_setup) { flux_state *s = flux_setup(flux_adam(0.05), model); }
    USE(flux_setup_named) { flux_state *s = flux_setup_named("Adam", 0.05, model); }
    USE(flux_variables, flux_variables_with) {
        flux_tensor *W1 = flux_ones(2), *b1 = flux_scalar(0);
        flux_layer *both = flux_variables(&W1, &b1);
        flux_state *s = flux_setup(flux_descent(0.1), both);
        IS(flux_update(s, both, flux_gradient(flux_add(flux_sum(flux_square(W1)), b1), W1, b1)), 0);
    }
    USE(flux_update) { flux_tensor *loss = flux_mse(flux_call(model, x), y); IS(flux_update(opt, model, flux_gradient(loss, model)), 0); }
    USE(flux_rule_with) { flux_rule rule = flux_rule_with("Adam", FLUX_OPTIONS(flux_rule_opts, .eta = 1e-3)); }
    USE(flux_descent) { flux_state *s = flux_setup(flux_descent(0.1), model); }
    USE(flux_momentum) { flux_state *s = flux_setup(flux_momentum(0.01, .rho = 0.95), model); }
    USE(flux_nesterov) { flux_state *s = flux_setup(flux_nesterov(0.001), model); }
    USE(flux_rmsprop) { flux_state *s = flux_setup(flux_rmsprop(0.001, .centred = true), model); }
    USE(flux_rprop) { flux_state *s = flux_setup(flux_rprop(.ell = { 0.5, 1.2 }), model); }
    USE(flux_adam) { flux_state *s = flux_setup(flux_adam(1e-3, .beta = { 0.9, 0.99 }), model); }
    USE(flux_adamw) { flux_state *s = flux_setup(flux_adamw(1e-3, .lambda = 0.01), model); }
    USE(flux_lion) { flux_state *s = flux_setup(flux_lion(1e-4), model); }
    USE(flux_radam) { flux_state *s = flux_setup(flux_radam(), model); }
    USE(flux_adamax) { flux_state *s = flux_setup(flux_adamax(), model); }
    USE(flux_oadam) { flux_state *s = flux_setup(flux_oadam(), model); }
    USE(flux_adagrad) { flux_state *s = flux_setup(flux_adagrad(), model); }
    USE(flux_adadelta) { flux_state *s = flux_setup(flux_adadelta(.rho = 0.95), model); }
    USE(flux_amsgrad) { flux_state *s = flux_setup(flux_amsgrad(), model); }
    USE(flux_nadam) { flux_state *s = flux_setup(flux_nadam(), model); }
    USE(flux_adabelief) { flux_state *s = flux_setup(flux_adabelief(), model); }
    USE(flux_weightdecay) { flux_rule rule = flux_optimiser_chain(flux_weightdecay(.lambda = 1e-4), flux_adam()); }
    USE(flux_signdecay) { flux_rule rule = flux_optimiser_chain(flux_signdecay(.lambda = 1e-4), flux_adam()); }
    USE(flux_clipgrad) { flux_rule rule = flux_optimiser_chain(flux_clipgrad(.delta = 1), flux_adam()); }
    USE(flux_clipnorm) { flux_rule rule = flux_optimiser_chain(flux_clipnorm(.omega = 1, .global = true), flux_adam()); }
    USE(flux_optimiser_chain) { flux_state *s = flux_setup(flux_optimiser_chain(flux_clipnorm(.omega = 1), flux_adam(1e-3)), model); }
    USE(flux_accumgrad) { flux_state *s = flux_setup(flux_accumgrad(4, flux_adam()), model); }
    USE(flux_schedule_constant) { IS(flux_schedule_at(flux_schedule_constant(0.1), 7), 0.1); }
    USE(flux_schedule_step) { IS(flux_schedule_at(flux_schedule_step(0.1, 0.5, 10), 11), 0.05); }
    USE(flux_schedule_exp) { IS(flux_schedule_at(flux_schedule_exp(0.1, 0.5), 3), 0.025); }
    USE(flux_schedule_restarts) { IS(flux_schedule_at(flux_schedule_restarts(0.1, 0, 10), 11), 0.1); }
    USE(flux_schedule_cosine) { IS(flux_schedule_at(flux_schedule_cosine(0.1, 0, 10), 99), 0); }
    USE(flux_schedule_linear) { flux_schedule warm_up = flux_schedule_linear(0, 0.1, 500); }
    USE(flux_schedule_onecycle) { flux_schedule s = flux_schedule_onecycle(1000, 0.01); }
    USE(flux_schedule_of) { IS(flux_schedule_at(flux_schedule_of(halving, NULL), 2), 0.05); }
    USE(flux_schedule_for) { flux_schedule s = flux_schedule_for(100, flux_schedule_constant(0.1)); }
    USE(flux_schedule_sequence) { flux_schedule s = flux_schedule_sequence(flux_schedule_linear(0, 0.1, 500), flux_schedule_exp(0.1, 0.999)); }
    USE(flux_schedule_at) { IS(flux_schedule_at(flux_schedule_exp(1, 0.5), 2), 0.5); }
    USE(flux_scheduled) { flux_state *s = flux_setup(flux_scheduled(flux_adam(), flux_schedule_cosine(1e-3, 0, 10000)), model); }
    USE(flux_rate) { IS(flux_rate(opt), 1e-3); }
    USE(flux_mixed_precision, flux_scaled_loss, flux_loss_scale, flux_skipped) {
        flux_layer *half = flux_bf16(model);
        flux_state *s = flux_setup(flux_mixed_precision(flux_adam(1e-3)), half);
        flux_tensor *loss = flux_mse(flux_call(half, x), y);
        flux_update(s, half, flux_gradient(flux_scaled_loss(s, loss), half));
        IS(flux_loss_scale(s), 1); IS(flux_skipped(s), 0);
    }
    USE(flux_adjust) { IS(flux_adjust(opt, .eta = 1e-4), 0); }
    USE(flux_adjust_part) { IS(flux_adjust_part(opt, flux_child(model, 0), .eta = 1e-5), 0); }
}

TEST(data) {
    flux_tensor *X = flux_randn(3, 10), *Y = flux_randn(1, 10), *labels = flux_randint(0, 2, 10);
    flux_loader *data = flux_dataloader(X, Y, .batchsize = 4);
    USE(flux_dataloader) { flux_loader *l = flux_dataloader(X, Y, .batchsize = 4, .shuffle = true); IS(flux_length(l), 3); }
    USE(flux_dataset) { flux_dataset mine = { .length = hundred, .get = number_i, .arrays = 1 }; flux_loader *l = flux_dataloader(.data = &mine, .batchsize = 10); IS(flux_length(l), 10); }
    USE(flux_length) { IS(flux_length(data), 3); IS(flux_len(data), 3); }
    USE(flux_first) { flux_batch first = flux_first(data); SHAPE(first.x, 3, 4); }
    USE(flux_cuiterator) { flux_loader *there = flux_functional("CUDA") ? flux_cuiterator(data) : data; }
    USE(flux_mapobs) { flux_loader *doubled = flux_mapobs(twice, data); }
    USE(flux_splitobs) { flux_tensor *a = NULL, *b = NULL; IS(flux_splitobs(0.8, flux_tuple(X, Y), &a, &b), 0); SHAPE(flux_nth(a, 0), 3, 8); }
    USE(flux_shuffleobs) { flux_tensor *s = flux_shuffleobs(flux_tuple(X, Y), 1); SHAPE(flux_nth(s, 0), 3, 10); }
    USE(flux_kfolds) { flux_tensor *a = NULL, *b = NULL; for (int i = 0; i < 5; i++) flux_kfolds(5, i, X, &a, &b); SHAPE(b, 3, 2); }
    USE(flux_oversample) { flux_tensor *more = flux_oversample(X, labels, 1); }
    USE(flux_undersample) { flux_tensor *less = flux_undersample(X, labels, 1); }
    USE(flux_balanced_weights) { flux_tensor *w = flux_balanced_weights(labels); IS(flux_item(flux_mean(w)), 1); }
    USE(flux_each) { int64_t seen = 0; flux_each (batch, data) seen += batch.size; IS(seen, 10); }
    USE(flux_progress, flux_progress_number) { flux_each (batch, data, .progress = "epoch") { flux_progress("loss", flux_mean(batch.x)); flux_progress_number("rate", 0.1); } }
}

TEST(files) {
    flux_layer *model = flux_dense(2, 1);
    flux_state *opt = flux_setup(flux_adam(), model);
    flux_tensor *x = flux_rand(8, 8), *y = flux_arange(0, 3, 1), *images = flux_rand(8, 8, 1, 6);
    use_begins();
    FILE *f = fopen("people.csv", "w"), *idx = fopen("labels.idx", "wb");
    REQUIRE(f && idx && !mkdir("pets", 0700) && !mkdir("pets/cats", 0700) && !flux_save_image(x, "pets/cats/1.pgm"));
    fputs("age,sex\n30,female\n,male\n", f), fclose(f);
    fwrite("\0\0\10\1\0\0\0\2ab", 1, 10, idx), fclose(idx);
    USE(flux_save_npy, flux_load_npy) { IS(flux_save_npy(y, "y.npy"), 0); VALUES(flux_load_npy("y.npy"), 0, 1, 2); }
    USE(flux_load_idx) { flux_tensor *t = flux_load_idx("labels.idx"); SHAPE(t, 2); }
    USE(flux_save_npz, flux_load_npz) { IS(flux_save_npz("run.npz", x, y), 0); VALUES(flux_load_npz("run.npz", "y"), 0, 1, 2); }
    USE(flux_npz_names) { char names[100]; IS(flux_npz_names("run.npz", names, sizeof names), 2); }
    USE(flux_load_csv) { FILE *g = fopen("xy.csv", "w"); fputs("x,y\n1,2\n3,4\n5,6\n", g); fclose(g); SHAPE(flux_load_csv("xy.csv"), 2, 3); }
    flux_table *t = flux_load_table("people.csv");
    USE(flux_load_table) { flux_table *people = flux_load_table("people.csv", .missing = 0); VALUES(flux_columns(people, "age"), 30, 0); }
    USE(flux_table_rows) { IS(flux_table_rows(t), 2); }
    USE(flux_table_columns) { IS(flux_table_columns(t), 2); }
    USE(flux_column_name) { puts(flux_column_name(t, 1)); }
    USE(flux_column_missing) { IS(flux_column_missing(t, "age"), 1); }
    USE(flux_column_labels) { IS(flux_column_labels(t, "sex"), 2); }
    USE(flux_column_label) { puts(flux_column_label(t, "sex", 0)); }
    USE(flux_columns) { flux_tensor *both = flux_columns(t, "age, sex"); SHAPE(both, 2, 2); }
    USE(flux_save_image, flux_load_image) { IS(flux_save_image(x, "x.pgm"), 0); SHAPE(flux_load_image("x.pgm", .width = 4, .height = 4), 4, 4, 1); }
    USE(flux_save_images) { IS(flux_save_images(images, "sheet.pgm", 3), 0); }
    USE(flux_image_folder, flux_folder_data, flux_folder_length, flux_folder_classes, flux_folder_class, flux_folder_path) {
        flux_folder *pets = flux_image_folder("pets", .width = 8, .height = 8);
        flux_loader *l = flux_dataloader(.data = flux_folder_data(pets), .batchsize = 1);
        SHAPE(flux_first(l).x, 8, 8, 1, 1); IS(flux_folder_length(pets), 1); IS(flux_folder_classes(pets), 1);
        puts(flux_folder_class(pets, 0)); puts(flux_folder_path(pets, 0));
    }
    USE(flux_save, flux_load) { IS(flux_save(model, "m.safetensors"), 0); IS(flux_load(model, "m.safetensors"), 0); }
    USE(flux_save_torch, flux_load_torch) { IS(flux_save_torch(model, "torch.safetensors", NULL), 0); IS(flux_load_torch(model, "torch.safetensors", NULL), 0); }
    USE(flux_load_tensor) { flux_save(x, "x.safetensors"); SHAPE(flux_load_tensor("x.safetensors", NULL), 8, 8); }
    USE(flux_save_all, flux_load_all) { IS(flux_save_all("run.safetensors", model, opt), 0); IS(flux_load_all("run.safetensors", model, opt), 0); }
}

TEST(training) {
    flux_tensor *X = flux_randn(2, 20), *Y = flux_randn(1, 20);
    flux_layer *model = flux_dense(2, 1);
    flux_loader *data = flux_dataloader(X, Y, .batchsize = 5);
    flux_state *opt = flux_setup(flux_adam(1e-2), model);
    USE(flux_train) { IS(flux_train(loss_of, model, data, opt, .epochs = 3, .callback = stop_at_once), 0); }
    USE(flux_patience) { flux_stopper s = { 0 }; bool stop = false; for (int i = 0; i < 3; i++) stop = flux_patience(&s, true, 3); IS(stop, true); }
    USE(flux_early_stopping) { flux_stopper s = { 0 }; bool stop = flux_early_stopping(&s, 0.5, 5, 0); IS(stop, false); }
    USE(flux_plateau) { flux_stopper s = { 0 }; bool stop = flux_plateau(&s, 0.5, 3, 0); IS(stop, false); }
    USE(flux_interrupted) { if (flux_interrupted()) flux_save(model, "m.safetensors"); }
}

TEST(several_processes) {
    flux_layer *model = flux_dense(2, 1);
    flux_tensor *x = flux_ones(3);
    flux_comm *comm = flux_distributed(FLUX_ANY);
    USE(flux_distributed, FLUX_ANY) { puts(flux_comm_name(comm)); }
    USE(flux_rank_of) { IS(flux_rank_of(comm), 0); }
    USE(flux_size_of) { IS(flux_size_of(comm), 1); }
    USE(flux_local_rank_of) { IS(flux_local_rank_of(comm), 0); }
    USE(flux_comm_name) { if (flux_rank_of(comm) == 0) puts(flux_comm_name(comm)); }
    USE(flux_allreduce) { flux_tensor *s = flux_allreduce(comm, x, FLUX_SUM); VALUES(s, 1, 1, 1); }
    USE(flux_reduce) { flux_tensor *s = flux_reduce(comm, x, FLUX_SUM, .root = 0); VALUES(s, 1, 1, 1); }
    USE(flux_broadcast) { flux_tensor *s = flux_broadcast(comm, x, .root = 0); VALUES(s, 1, 1, 1); }
    USE(flux_allgather) { flux_tensor *all = flux_allgather(comm, x); SHAPE(all, 3); }
    USE(flux_reduce_scatter) { flux_tensor *part = flux_reduce_scatter(comm, x, FLUX_MEAN); SHAPE(part, 3); }
    USE(flux_barrier) { IS(flux_barrier(comm), 0); }
    USE(flux_synchronize) { flux_layer *same = flux_synchronize(comm, model); }
    USE(flux_distributed_save) { IS(flux_distributed_save(comm, model, "m.safetensors"), 0); }
    USE(flux_distributed_optimiser) { flux_state *opt = flux_setup(flux_distributed_optimiser(comm, flux_adam(1e-3)), model); }
    USE(flux_distributed_end) { IS(flux_distributed_end(comm), 0); }
    test_kept++;                          /* the communicator */
}

TEST(memory_shared_with_others) {
    flux_tensor *x = flux_ones(2, 3);
    flux_device cpu = { 0, 0 };
    static float mine[6];
    USE(flux_pointer) { const void *elements = flux_pointer(x); }
    USE(flux_borrow_on) { flux_tensor *t = flux_borrow_on(cpu, mine, FLUX_F32, FLUX_SHAPE(2, 3), NULL, NULL); SHAPE(t, 2, 3); }
    USE(flux_stream) { if (flux_functional("CUDA")) printf("%p\n", flux_stream(flux_device_of(flux_cu(x)))); }
    USE(flux_use_stream) { if (flux_functional("CUDA")) flux_use_stream(flux_get_device(.backend = "CUDA"), NULL); }
    USE(flux_to_dlpack, flux_from_dlpack) { flux_tensor *t = flux_from_dlpack(flux_to_dlpack(x)); SHAPE(t, 2, 3); }
    USE(flux_to_dlpack_versioned, flux_from_dlpack_versioned) { flux_tensor *t = flux_from_dlpack_versioned(flux_to_dlpack_versioned(x)); SHAPE(t, 2, 3); }
}

TEST(the_end) {
    USE(flux_gpu_backend_set) { IS(flux_gpu_backend_set("CPU"), 0); IS(flux_gpu_backend_set(NULL), 0); }
    USE(flux_shutdown) { flux_shutdown(); }
    flux_scope_open();                    /* which the runner closes */
}
#endif
TEST_MAIN()
