/* Layers and losses of sequences: PyTorch's values and gradients, finite differences in both modes, gradients of
   gradients, what must be refused; and what a model's summary, picture and trace say. */
#include "test.h"
#include "fixtures/seq.h"
#include "fixtures/torch_seq.h"

static flux_tensor *fill(flux_shape s, double a, double k) {
    double v[400];
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    for (int64_t i = 0; i < n; i++) v[i] = k * sin(a + (double)i);
    return flux_from_with(v, FLUX_F64, s);
}
#define FILL(a, k, ...) fill(FLUX_SHAPE(__VA_ARGS__), a, k)
#define CHECK_GRAD(g, x, want) CHECK_DATA(flux_grad(g, x), want, 2e-9)

static flux_tensor *squares(flux_tensor *x) {
    flux_tensor *sum = NULL;
    for (int i = 0; i < flux_num_items(x); i++) {
        flux_tensor *s = flux_sum(flux_square(flux_nth(x, i)));
        sum = sum ? flux_add(sum, s) : s;
    }
    return sum;
}

static bool same_shape(flux_tensor *x, flux_shape s) {
    bool same = flux_ndim(x) == s.ndim;
    for (int i = 0; i < s.ndim && same; i++) same = flux_dim(x, i) == s.dim[i];
    return same;
}
#define CHECK_SHAPE(x, ...) CHECK(same_shape(x, FLUX_SHAPE(__VA_ARGS__)))

/* ---- recurrence */

enum { RNN, LSTM, GRU, GRUV3, KINDS };

static flux_layer *layer_of(int kind, bool cell, int64_t in, int64_t out, bool state) {
    if (kind == RNN) return cell ? flux_rnncell(in, out) : flux_rnn(in, out, .return_state = state);
    if (kind == LSTM) return cell ? flux_lstmcell(in, out) : flux_lstm(in, out, .return_state = state);
    if (kind == GRU) return cell ? flux_grucell(in, out) : flux_gru(in, out, .return_state = state);
    return cell ? flux_gruv3cell(in, out) : flux_gruv3(in, out, .return_state = state);
}

static int gates_of(int kind) { return kind == RNN ? 1 : kind == LSTM ? 4 : 3; }

/* The layer of the fixtures, in float64. */
static flux_layer *fixture(int kind) {
    flux_layer *m = flux_f64(layer_of(kind, false, 3, 4, true));
    int g = gates_of(kind);
    flux_set_param(m, "cell.Wi", FILL(0.2, 0.7, 4 * g, 3));
    flux_set_param(m, "cell.Wh", FILL(0.9, 0.6, kind == GRUV3 ? 8 : 4 * g, 4));
    flux_set_param(m, "cell.bias", FILL(0.4, 0.5, 4 * g));
    if (kind == GRUV3) flux_set_param(m, "cell.Wh_h", FILL(0.6, 0.5, 4, 4));
    return m;
}

TEST(recurrent_layers_as_pytorch) {
    const double *want[KINDS][7] = { { seq_rnn, seq_rnn_gx, seq_rnn_gWi, seq_rnn_gWh, seq_rnn_gb, seq_rnn_gh, NULL },
                                     { seq_lstm, seq_lstm_gx, seq_lstm_gWi, seq_lstm_gWh, seq_lstm_gb, seq_lstm_gh, seq_lstm_gc },
                                     { seq_gru, seq_gru_gx, seq_gru_gWi, seq_gru_gWh, seq_gru_gb, seq_gru_gh, NULL },
                                     { seq_gruv3, seq_gruv3_gx, seq_gruv3_gWi, seq_gruv3_gWh, seq_gruv3_gb, seq_gruv3_gh, NULL } };
    for (int k = 0; k < KINDS; k++) {
        flux_layer *m = fixture(k);
        flux_tensor *x = FILL(0.3, 1.1, 3, 5, 2), *h = FILL(1.3, 0.8, 4, 2), *c = FILL(2.1, 0.9, 4, 2);
        flux_tensor *y = k == LSTM ? flux_call(m, x, h, c) : flux_call(m, x, h);
        CHECK(flux_num_items(y) == (k == LSTM ? 3 : 2));
        test_data(flux_nth(y, 0), want[k][0], 40, 2e-9, __FILE__, __LINE__, "output");
        CHECK_SHAPE(flux_nth(y, 1), 4, 2);
        flux_grads *g = flux_gradient(squares(y), m, x, h, c);
        int rows = 4 * gates_of(k);
        test_data(flux_grad(g, x), want[k][1], 30, 2e-9, __FILE__, __LINE__, "by x");
        test_data(flux_grad_param(g, m, "cell.Wi"), want[k][2], rows * 3, 2e-9, __FILE__, __LINE__, "by Wi");
        test_data(flux_grad_param(g, m, "cell.Wh"), want[k][3], (k == GRUV3 ? 8 : rows) * 4, 2e-9, __FILE__, __LINE__, "by Wh");
        test_data(flux_grad_param(g, m, "cell.bias"), want[k][4], rows, 2e-9, __FILE__, __LINE__, "by bias");
        test_data(flux_grad(g, h), want[k][5], 8, 2e-9, __FILE__, __LINE__, "by h");
        if (k == LSTM) CHECK_GRAD(g, c, seq_lstm_gc);
        if (k == LSTM) CHECK_DATA(flux_nth(y, 2), seq_lstm_c, 2e-9);
        if (k == GRUV3) CHECK_DATA(flux_grad_param(g, m, "cell.Wh_h"), seq_gruv3_gWn, 2e-9);
    }
}

TEST(a_layer_does_what_its_cell_does_step_by_step) {
    for (int k = 0; k < KINDS; k++) {
        flux_layer *m = layer_of(k, false, 3, 4, true), *cell = flux_child(m, 0);
        flux_tensor *x = flux_randn(3, 6, 2), *all = flux_call(m, x), *y = NULL, *s = NULL;
        for (int t = 0; t < 6; t++) {
            flux_tensor *now = flux_select(x, 1, t);
            s = t == 0 ? flux_call(cell, now) : k == LSTM ? flux_call(cell, now, flux_nth(s, 1), flux_nth(s, 2)) : flux_call(cell, now, flux_nth(s, 1));
            y = flux_select(flux_nth(all, 0), 1, t);
            CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(y, flux_nth(s, 0))))), 0, 1e-6);
        }
        for (int i = 1; i < flux_num_items(s); i++) CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_nth(all, i), flux_nth(s, i))))), 0, 1e-6);
        flux_tensor *r = flux_call(flux_recurrence(cell), x);             /* the same through the layer of any cell */
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(r, flux_nth(all, 0))))), 0, 1e-6);
    }
}

TEST(without_a_batch_states_are_vectors) {
    for (int k = 0; k < KINDS; k++) {
        flux_layer *m = layer_of(k, false, 3, 4, true);
        flux_tensor *x = flux_randn(3, 5), *y = flux_call(m, x), *wide = flux_call(m, flux_unsqueeze(x, 2));
        CHECK_SHAPE(flux_nth(y, 0), 4, 5);
        CHECK_SHAPE(flux_nth(y, 1), 4);
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_nth(y, 0), flux_select(flux_nth(wide, 0), 2, 0))))), 0, 1e-6);
        flux_layer *cell = flux_child(m, 0);
        CHECK_SHAPE(flux_nth(flux_call(cell, flux_randn(3)), 0), 4);
        CHECK_SHAPE(flux_nth(flux_call(cell, flux_randn(3, 7)), 1), 4, 7);
    }
    flux_layer *m = flux_rnn(3, 4);                                       /* one state for the whole batch */
    CHECK_SHAPE(flux_call(m, flux_randn(3, 5, 2), flux_ones(4)), 4, 5, 2);
}

typedef struct run { flux_layer *m; const char *path; flux_tensor *x; } run;

/* The loss as a function of one parameter, or of the input. */
static flux_tensor *loss_of(flux_tensor *p, void *user) {
    run *r = (run *)user;
    if (!r->path) return squares(flux_call(r->m, p));
    flux_set_param(r->m, r->path, p);
    return squares(flux_call(r->m, r->x));
}

static void check_layer(flux_layer *m, flux_tensor *x, bool x_too, const char *const *paths, int n) {
    for (int mode = 0; mode < 2; mode++) {
        if (mode) flux_testmode(m, true);
        else flux_trainmode(m, true);
        run r = { m, NULL, x };
        if (x_too) CHECK_NEAR(flux_gradcheck(loss_of, &r, x, 0), 0, 5e-9);
        for (int i = 0; i < n; i++) {
            flux_tensor *p = (flux_tensor *)flux_retain(flux_param(m, paths[i]));   /* the layer lets go of it */
            r.path = paths[i];
            CHECK_NEAR(flux_gradcheck(loss_of, &r, p, 12), 0, 1e-7);
            flux_set_param(m, paths[i], p);
            flux_release(p);
        }
    }
}

TEST(recurrent_gradients_against_differences) {
    static const char *const paths[] = { "cell.Wi", "cell.Wh", "cell.bias", "cell.Wh_h" };
    for (int k = 0; k < KINDS; k++) check_layer(fixture(k), FILL(0.3, 1.1, 3, 5, 2), true, paths, k == GRUV3 ? 4 : 3);
}

static flux_tensor *slope(flux_tensor *x, void *user) {   /* a function of a gradient: its gradient is a second one */
    return squares(flux_grad(flux_gradient(squares(flux_call((flux_layer *)user, x)), x), x));
}

TEST(second_derivatives) {
    for (int k = 0; k < KINDS; k++) CHECK_NEAR(flux_gradcheck(slope, fixture(k), FILL(0.3, 1.1, 3, 5, 2), 6), 0, 5e-9);
    flux_layer *m = flux_f64(flux_multiheadattention(6, .nheads = 2, .causal = true, .scores = FLUX_OFF));
    CHECK_NEAR(flux_gradcheck(slope, m, FILL(0.3, 1.0, 6, 4, 2), 6), 0, 5e-9);
}

/* A cell of one's own: keeps a running mean of what it sees, and how many it has seen. */
typedef struct averager { flux_layer base; flux_tensor *gain; } averager;
static flux_tensor *averager_call(flux_layer *self, flux_tensor *x) {
    flux_tensor *now = flux_nth(x, 0), *sum = flux_num_items(x) > 1 ? flux_add(flux_nth(x, 1), now) : now;
    flux_tensor *n = flux_num_items(x) > 1 ? flux_add(flux_nth(x, 2), 1.0) : flux_ones(1);
    return flux_tuple(flux_mul(flux_div(sum, n), ((averager *)self)->gain), sum, n);
}
FLUX_LAYER(averager, "Averager", averager_call, FLUX_PARAM(gain))



TEST(recurrence_of_a_cell_of_ones_own) {
    const float v[] = { 1, 3, 5, 7 };
    const double want[] = { 2, 4, 6, 8 };
    flux_layer *m = flux_recurrence(flux_new(averager, .gain = flux_full(2.0, 1)), .return_state = true);
    flux_tensor *y = flux_call(m, flux_from(v, 1, 4));
    CHECK_DATA(flux_nth(y, 0), want, 1e-6);
    CHECK(flux_num_items(y) == 3 && flux_item(flux_nth(y, 1)) == 16 && flux_item(flux_nth(y, 2)) == 4);
    CHECK_NEAR(flux_item(flux_grad_param(flux_gradient(flux_sum(flux_nth(y, 0)), m), m, "cell.gain")), 10, 1e-6);
}

TEST(recurrence_over_one_step) {
    const float v[] = { 3, 5 };
    const double want[] = { 6, 10 };
    flux_layer *own = flux_new(averager, .gain = flux_full(2.0, 1)), *cell = flux_rnncell(2, 3);
    flux_tensor *y = flux_call(flux_recurrence(own, .return_state = true), flux_from(v, 1, 1, 2));
    flux_tensor *x = flux_from(v, 2), *once = flux_nth(flux_call(cell, x), 0);
    CHECK_SHAPE(flux_nth(y, 0), 1, 1, 2);
    CHECK_DATA(flux_nth(y, 0), want, 1e-6);
    flux_tensor *all = flux_call(flux_recurrence(cell), flux_reshape(x, 2, 1));
    CHECK_SHAPE(all, 3, 1);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_reshape(all, 3), once)))) < 1e-6);
}

TEST(recurrent_text_and_sizes) {
    char text[400];
    static const char *const want[] = { "RNN(3 => 4, tanh)   # 32 parameters", "LSTM(3 => 4)        # 128 parameters", "GRU(3 => 4)         # 96 parameters",
                                        "GRUv3(3 => 4)       # 96 parameters" };
    for (int k = 0; k < KINDS; k++) {
        flux_layer *m = layer_of(k, false, 3, 4, false);
        flux_layer_text(m, text, sizeof text);
        text[strcspn(text, "(") + 60] = 0;
        CHECK_STR(text, want[k]);
        flux_shape s = flux_outputsize(m, 3, 7, 2);
        CHECK(s.ndim == 3 && s.dim[0] == 4 && s.dim[1] == 7 && s.dim[2] == 2);
        CHECK(flux_item(flux_max(flux_abs(flux_param(m, "cell.bias")))) == 0);
    }
    CHECK(flux_num_params(flux_lstm(3, 4, .bias = FLUX_OFF)) == 16 * 7);
    flux_layer *deep = flux_chain(flux_lstm(3, 4), flux_gru(4, 5), flux_dense(5, 2));
    CHECK_SHAPE(flux_call(deep, flux_randn(3, 6, 2)), 2, 6, 2);
    CHECK(flux_dtype_of(flux_call(flux_bf16(deep), flux_to_dtype(flux_randn(3, 6, 2), FLUX_BF16))) == FLUX_BF16);
}

TEST(a_long_sequence) {                                    /* more steps than flux_cat takes tensors */
    if (test_left_out(1, 2)) SKIP("the long form runs it: it makes hundreds of kernels");
    flux_layer *m = flux_rnn(2, 3);
    flux_tensor *x = flux_randn(2, 600, 2), *y = flux_call(m, x);
    CHECK_SHAPE(y, 3, 600, 2);
    flux_grads *g = flux_gradient(squares(y), m, x);
    CHECK(flux_item(flux_norm(flux_grad(g, x))) > 0 && flux_item(flux_norm(flux_grad_param(g, m, "cell.Wh"))) > 0);
}

TEST(wrong_recurrent_calls) {
    flux_layer *m = flux_lstm(3, 4), *c = flux_lstmcell(3, 4), *g = flux_gru(3, 4);
    flux_tensor *x = flux_ones(3, 5, 2);
    CHECK_ERROR(flux_lstm(0, 4), "lstm: size 0 is 0; sizes are at least 1");
    CHECK_ERROR(flux_grucell(3, -1), "grucell: size 1 is -1");
    CHECK_ERROR(flux_gru(3, 4, flux_relu), "gru: .activation is for rnn; here they are sigmoid and tanh");
    CHECK_ERROR(flux_rnn(3, 4, flux_softmax), "rnn: softmax is no activation");
    CHECK_ERROR(flux_rnncell(3, 4, .return_state = true), "rnncell: .return_state is for rnn; a cell always gives it");
    CHECK_ERROR(flux_call(m, flux_ones(2, 5, 2)), "LSTM(3 => 4) expects dim 0 of size 3, got 2x5x2 f32");
    CHECK_ERROR(flux_call(m, flux_ones(3)), "LSTM(3 => 4) takes features x steps (x batch), got 3-element f32");
    CHECK_ERROR(flux_call(c, x), "LSTMCell(3 => 4) takes features (x batch), got 3x5x2 f32");
    CHECK_ERROR(flux_call(m, x, flux_ones(4, 2)), "LSTM(3 => 4) takes x, or x and h and c, got 2 inputs");
    CHECK_ERROR(flux_call(g, x, flux_ones(4, 3)), "GRU(3 => 4): its state is 4 x 2 for this input, got 4x3 f32");
    CHECK_ERROR(flux_call(m, x, flux_ones(5), flux_ones(5)), "its state is 4 x 2 for this input, got 5-element f32");
    CHECK_ERROR(flux_recurrence(NULL), "recurrence: argument cell is NULL");
    CHECK_ERROR(flux_call(flux_recurrence(flux_dense(3, 2)), x), "Recurrence: its cell gave 1 tensors; it is to give its output and its state");
    CHECK_ERROR(flux_call(flux_recurrence(c), flux_ones(3)), "Recurrence takes features x steps (x batch), got 3-element f32");
}

/* ---- attention */

static flux_layer *mha_fixture(void) {
    static const char *const parts[] = { "q_proj", "k_proj", "v_proj", "out_proj" };
    flux_layer *m = flux_f64(flux_multiheadattention(6, .nheads = 2, .bias = true));
    char path[40];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s.weight", parts[i]);
        flux_set_param(m, path, FILL(0.2 + i, 0.6, 6, 6));
        snprintf(path, sizeof path, "%s.bias", parts[i]);
        flux_set_param(m, path, FILL(0.5 + i, 0.2, 6));
    }
    return m;
}

TEST(attention_as_pytorch) {
    flux_layer *m = mha_fixture();
    flux_tensor *q = FILL(0.3, 1.0, 6, 4, 2), *k = FILL(0.8, 0.9, 6, 3, 2), *y = flux_call(m, q, k);
    CHECK_SHAPE(flux_nth(y, 1), 3, 4, 2, 2);
    CHECK_DATA(flux_nth(y, 0), seq_mha, 2e-9);
    CHECK_DATA(flux_nth(y, 1), seq_mha_scores, 2e-9);
    flux_grads *g = flux_gradient(squares(flux_nth(y, 0)), m, q, k);
    CHECK_GRAD(g, q, seq_mha_gq);
    CHECK_GRAD(g, k, seq_mha_gk);
    CHECK_DATA(flux_grad_param(g, m, "q_proj.weight"), seq_mha_gWq, 2e-9);
    CHECK_DATA(flux_grad_param(g, m, "k_proj.weight"), seq_mha_gWk, 2e-9);
    CHECK_DATA(flux_grad_param(g, m, "v_proj.weight"), seq_mha_gWv, 2e-9);
    CHECK_DATA(flux_grad_param(g, m, "out_proj.weight"), seq_mha_gWo, 2e-9);
    CHECK_DATA(flux_grad_param(g, m, "q_proj.bias"), seq_mha_gbq, 2e-9);
}

TEST(causal_attention_as_pytorch) {
    flux_layer *m = mha_fixture();
    flux_tensor *x = FILL(0.3, 1.0, 6, 4, 2), *y = flux_call(m, x, x, x, flux_make_causal_mask(x));
    CHECK_DATA(flux_nth(y, 0), seq_causal, 2e-9);
    CHECK_DATA(flux_nth(y, 1), seq_causal_scores, 2e-9);
    flux_grads *g = flux_gradient(squares(flux_nth(y, 0)), m, x);
    CHECK_GRAD(g, x, seq_causal_gx);
    CHECK_DATA(flux_grad_param(g, m, "k_proj.weight"), seq_causal_gWk, 2e-9);
}

TEST(causal_mask) {
    const double want[] = { 1, 0, 0, 1, 1, 0, 1, 1, 1 };   /* key i <= query j */
    CHECK_DATA(flux_to_dtype(flux_make_causal_mask(flux_ones(2, 3)), FLUX_F32), want, 0);
    flux_layer *m = flux_multiheadattention(4, .nheads = 2, .causal = true, .scores = FLUX_OFF);
    flux_tensor *a = flux_randn(4, 5, 1), *b = flux_cat(1, flux_slice(a, 1, 0, 3), flux_randn(4, 2, 1));
    flux_tensor *ya = flux_call(m, a), *yb = flux_call(m, b);              /* what comes later changes nothing before */
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_slice(flux_sub(ya, yb), 1, 0, 3)))), 0, 1e-6);
    CHECK(flux_item(flux_max(flux_abs(flux_slice(flux_sub(ya, yb), 1, 3, 5)))) > 1e-3);
}

TEST(attention_gradients_against_differences) {
    static const char *const paths[] = { "q_proj.weight", "k_proj.weight", "v_proj.bias", "out_proj.weight" };
    check_layer(mha_fixture(), FILL(0.3, 1.0, 6, 4, 2), true, paths, 4);
    flux_layer *m = flux_f64(flux_multiheadattention(6, .nheads = 3, .dropout = 0.4, .causal = true));
    check_layer(m, FILL(0.3, 1.0, 6, 4, 2), true, paths, 2);
}

TEST(attention_shapes_modes_and_masks) {
    flux_layer *m = flux_multiheadattention(8, .nheads = 2, .qk = 4, .v = 6, .out = 5, .k_in = 7, .v_in = 3);
    flux_tensor *y = flux_call(m, flux_randn(8, 4, 2), flux_randn(7, 9, 2), flux_randn(3, 9, 2));
    CHECK_SHAPE(flux_nth(y, 0), 5, 4, 2);
    CHECK_SHAPE(flux_nth(y, 1), 9, 4, 2, 2);
    char text[200];
    flux_layer_text(m, text, sizeof text);
    CHECK(strstr(text, "MultiHeadAttention((8, 7, 3) => (4, 6) => 5; nheads=2)") == text);
    m = flux_multiheadattention(8, .dropout = 0.5);
    flux_layer_text(m, text, sizeof text);
    CHECK(strstr(text, "MultiHeadAttention(8; nheads=8, dropout_prob=0.5)") == text);
    flux_tensor *x = flux_randn(8, 4);                                     /* no batch */
    flux_testmode(m, true);
    y = flux_call(m, x);
    CHECK_SHAPE(flux_nth(y, 0), 8, 4);
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(flux_sum(flux_nth(y, 1), 0), 1.0)))), 0, 1e-6);
    flux_trainmode(m, true);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_sum(flux_nth(flux_call(m, x), 1), 0), 1.0)))) > 1e-3);
    flux_tensor *q = flux_randn(4, 3, 2), *none = flux_full_with(FLUX_SHAPE(3, 3), 0, FLUX_BOOL);
    y = flux_dot_product_attention(q, q, q, .nheads = 2, .mask = none);    /* a query that sees nothing has nothing */
    CHECK(flux_item(flux_max(flux_abs(flux_nth(y, 0)))) == 0 && flux_item(flux_max(flux_abs(flux_nth(y, 1)))) == 0);
    flux_tensor *far = flux_mul(flux_to_dtype(flux_not(flux_make_causal_mask(q)), FLUX_F32), -1e9);
    flux_tensor *a = flux_dot_product_attention_scores(q, q, .bias = far), *b = flux_dot_product_attention_scores(q, q, .mask = flux_make_causal_mask(q));
    CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(a, b)))), 0, 1e-6);
}

/* As PyTorch's attention has it: 0, and no gradient from it; by one kernel and with its scores, by a mask and by a bias. */
TEST(a_query_that_sees_nothing) {
    const bool may[9] = { true, true, false, false, false, false, true, true, true };
    float add[9];
    for (int i = 0; i < 9; i++) add[i] = may[i] ? 0 : -HUGE_VALF;
    for (int t = FLUX_F32; t <= FLUX_BF16; t++)
        for (int way = 0; way < 4; way++) {
            flux_tensor *q = flux_to_dtype(FILL(0.3, 1.0, 4, 3, 2), (flux_dtype)t), *k = flux_to_dtype(FILL(0.7, 1.0, 4, 3, 2), (flux_dtype)t);
            flux_tensor *v = flux_to_dtype(FILL(1.1, 1.0, 4, 3, 2), (flux_dtype)t), *mask = flux_from(may, 3, 3), *bias = flux_to_dtype(flux_from(add, 3, 3), (flux_dtype)t);
            flux_layer *drop = way == 3 ? flux_chain(flux_identity) : NULL;        /* the scores are looked at */
            flux_tensor *y = flux_dot_product_attention(q, k, v, .nheads = 2, .mask = way == 1 ? NULL : mask, .bias = way == 1 ? bias : NULL,
                                                        .causal = way == 2, .drop = drop);
            flux_tensor *blind = flux_slice(flux_nth(y, 0), 1, 1, 2), *p = flux_slice(flux_nth(y, 1), 1, 1, 2);
            CHECK(flux_item(flux_max(flux_abs(blind))) == 0 && flux_item(flux_max(flux_abs(p))) == 0);
            flux_grads *g = flux_gradient(flux_sum(flux_exp(blind)), q, k, v);
            CHECK(flux_item(flux_max(flux_abs(flux_grad(g, q)))) == 0 && flux_item(flux_max(flux_abs(flux_grad(g, k)))) == 0);
            CHECK(flux_item(flux_max(flux_abs(flux_grad(g, v)))) == 0);
            g = flux_gradient(flux_sum(flux_mul(flux_nth(y, 0), v)), k);
            CHECK(flux_item(flux_max(flux_abs(flux_grad(g, k)))) > 0.01);
        }
    float none[3] = { -HUGE_VALF, -HUGE_VALF, -HUGE_VALF };
    CHECK_NEAR(flux_at(flux_softmax(flux_from(none, 3)), 1), 1.0 / 3, 1e-7);
}

TEST(wrong_attention_calls) {
    flux_layer *m = flux_multiheadattention(8, .nheads = 2);
    flux_tensor *x = flux_ones(8, 4, 2), *mask = flux_make_causal_mask(x);
    CHECK_ERROR(flux_multiheadattention(8, .nheads = 3), "multiheadattention: 3 heads can't share 8 query and 8 value features evenly");
    CHECK_ERROR(flux_multiheadattention(0), "multiheadattention: size 0 is 0");
    CHECK_ERROR(flux_multiheadattention(8, .dropout = 2), "multiheadattention: .dropout is 2");
    CHECK_ERROR(flux_call(m, flux_ones(7, 4, 2)), "Dense(8 => 8; bias=false) expects dim 0 of size 8, got 7x4x2 f32");
    CHECK_ERROR(flux_call(m, flux_ones(8)), "takes features x steps (x batch), got 8-element f32");
    CHECK_ERROR(flux_call(m, x, x, x, x, x), "got 5 inputs");
    CHECK_ERROR(flux_call(m, x, flux_ones(8, 4, 3)), "q is 8x4x2 f32, k is 8x4x3 f32: their features and batch must be the same");
    CHECK_ERROR(flux_call(m, x, flux_ones(8, 4, 2), flux_ones(8, 5, 2)), "k is 8x4x2 f32, v is 8x5x2 f32: their steps and batch must be the same");
    CHECK_ERROR(flux_call(m, x, flux_ones(8, 5, 2), flux_ones(8, 5, 2), mask), ".mask is 4x4 bool, the scores (keys x queries x heads x batch) are 5x4x2x2 f32");
    CHECK_ERROR(flux_call(flux_multiheadattention(8, .nheads = 2, .causal = true), x, flux_ones(8, 3, 2)), "a causal mask needs at least as many keys as queries");
    CHECK_ERROR(flux_dot_product_attention(x, x, NULL), "dot_product_attention: argument v is NULL");
    CHECK_ERROR(flux_dot_product_attention(x, x, x, .mask = x), "dot_product_attention: .mask must be bool");
    CHECK_ERROR(flux_dot_product_attention_scores(x, x, .nheads = 5), "dot_product_attention_scores: 5 heads can't share the features");
    CHECK_ERROR(flux_make_causal_mask(flux_ones(3)), "make_causal_mask: x is features x steps (x batch), got 3-element f32");
    CHECK_ERROR(flux_make_causal_mask(NULL), "make_causal_mask: argument x is NULL");
}

/* ---- attention as one operation, beside the same in plain ones */

/* The same by products and a softmax in float64 on the processor, of what lies anywhere in any precision. keep: the weights that
   dropout leaves. */
static flux_tensor *plain_attention(flux_tensor *q, flux_tensor *k, flux_tensor *v, int heads, flux_tensor *mask, flux_tensor *bias, bool causal,
                                    flux_tensor *keep, double dropped) {
    flux_tensor *x[3] = { q, k, v };
    for (int i = 0; i < 3; i++) {
        x[i] = flux_to_dtype(flux_cpu(x[i]), FLUX_F64);
        x[i] = flux_permute(flux_reshape(x[i], flux_dim(x[i], 0) / heads, heads, flux_dim(x[i], 1), flux_dim(x[i], 2)), 0, 2, 1, 3);
    }
    flux_tensor *l = flux_div(flux_matmul(flux_transpose(x[1]), x[0]), sqrt((double)flux_dim(x[0], 0)));
    flux_tensor *key = flux_reshape(flux_arange(0, (double)flux_dim(k, 1), 1), flux_dim(k, 1), 1), *query = flux_reshape(flux_arange(0, (double)flux_dim(q, 1), 1), 1, flux_dim(q, 1));
    if (bias) l = flux_add(l, flux_cpu(bias));
    if (mask) l = flux_where(flux_cpu(mask), l, -HUGE_VAL);
    if (causal) l = flux_where(flux_cpu(flux_le(key, flux_add(query, (double)(flux_dim(k, 1) - flux_dim(q, 1))))), l, -HUGE_VAL);
    flux_tensor *p = flux_softmax(l);
    if (mask || causal) p = flux_where(flux_gt(l, -HUGE_VAL), p, 0.0);               /* a query that sees nothing */
    if (keep) p = flux_where(flux_cpu(keep), flux_div(p, 1 - dropped), 0.0);
    flux_tensor *y = flux_permute(flux_matmul(x[2], p), 0, 2, 1, 3);
    return flux_reshape(y, flux_dim(v, 0), flux_dim(q, 1), flux_dim(q, 2));
}

static double furthest(flux_tensor *a, flux_tensor *b) {
    return flux_item(flux_max(flux_abs(flux_sub(flux_to_dtype(flux_cpu(a), FLUX_F64), flux_to_dtype(flux_cpu(b), FLUX_F64)))));
}

static flux_layer *dropping(double p) {
    flux_layer *m = flux_dropout(p);
    flux_trainmode(m, true);
    return m;
}

/* batch 0: tensors without that dim */
typedef struct attend_case { int64_t d, dv, heads, queries, keys, batch; int mask; bool bias, causal; double dropped; } attend_case;
static const attend_case attend_cases[] = {
    { 2, 3, 1, 1, 1, 1, 0, false, false, 0 },  { 8, 8, 2, 5, 7, 2, 0, false, false, 0 },   { 6, 4, 2, 33, 40, 1, 0, false, true, 0 },
    { 16, 16, 1, 65, 65, 2, 0, false, true, 0 }, { 70, 66, 1, 20, 50, 1, 1, false, false, 0 }, { 4, 6, 2, 34, 35, 3, 2, false, false, 0 },
    { 8, 4, 4, 9, 70, 1, 3, false, false, 0 }, { 4, 4, 2, 40, 33, 2, 0, true, false, 0 },  { 4, 8, 2, 12, 12, 2, 1, true, true, 0 },
    { 3, 3, 3, 100, 90, 1, 0, true, true, 0 },  { 8, 8, 2, 1, 70, 2, 0, false, true, 0 },   { 5, 5, 1, 37, 130, 2, 0, false, true, 0 },
    { 4, 4, 2, 70, 20, 1, 2, false, true, 0 },  { 4, 4, 2, 50, 33, 2, 0, false, true, 0 },
    { 1, 1, 2, 5, 9, 2, 0, false, false, 0 },   { 1, 1, 1, 3, 4, 1, 0, false, true, 0 },    { 16, 16, 4, 1, 16, 0, 0, false, false, 0 },
    { 128, 64, 1, 8, 5, 1, 0, false, true, 0 }, { 64, 160, 1, 9, 6, 1, 0, false, true, 0 }, { 192, 128, 1, 7, 5, 1, 0, false, false, 0 },
    { 16, 16, 4, 1, 16, 0, 0, false, true, 0 }, { 16, 8, 1, 9, 1, 0, 0, false, false, 0 },  { 16, 16, 1, 20, 1, 0, 0, false, false, 0 },
    { 6, 4, 2, 33, 40, 1, 0, false, true, 0.3 }, { 4, 6, 2, 34, 35, 3, 2, false, false, 0.5 }, { 3, 3, 3, 100, 90, 1, 0, true, true, 0.1 } };
enum { ATTEND_CASES = sizeof attend_cases / sizeof *attend_cases };

static flux_tensor *mask_of(const attend_case *c) {        /* 1: keys x queries, of which one sees nothing; 2: of every score; 3: of keys and samples */
    flux_shape s = c->mask == 1 ? FLUX_SHAPE(c->keys, c->queries) : c->mask == 2 ? FLUX_SHAPE(c->keys, c->queries, c->heads, c->batch) : FLUX_SHAPE(c->keys, 1, 1, c->batch);
    flux_tensor *m = flux_gt(flux_rand_with(s, FLUX_F32), 0.4);
    if (c->mask == 1) m = flux_and(m, flux_ne(flux_reshape(flux_arange(0, (double)c->queries, 1), 1, c->queries), 3.0));
    return c->mask ? flux_eval(m) : NULL;
}

static flux_tensor *without_batch(flux_tensor *x, const attend_case *c) { return c->batch ? x : flux_reshape(x, flux_dim(x, 0), flux_dim(x, 1)); }
static void attend_as_plain(const attend_case *c, flux_dtype t, double tol) {
    const int64_t batch = c->batch ? c->batch : 1;
    flux_tensor *q = flux_to_dtype(flux_randn(c->d * c->heads, c->queries, batch), t), *k = flux_to_dtype(flux_randn(c->d * c->heads, c->keys, batch), t);
    flux_tensor *v = flux_to_dtype(flux_randn(c->dv * c->heads, c->keys, batch), t), *w = flux_randn(c->dv * c->heads, c->queries, batch);
    flux_tensor *mask = mask_of(c), *bias = c->bias ? flux_randn(c->keys, c->queries, c->heads) : NULL, *all[4] = { q, k, v, w };
    REQUIRE(flux_eval_all(4, all) == 0);
    flux_layer *drop = c->dropped > 0 ? dropping(c->dropped) : NULL;
    flux_tensor *both = flux_dot_product_attention(without_batch(q, c), without_batch(k, c), without_batch(v, c), .nheads = (int)c->heads,
                                                   .mask = mask, .bias = bias, .causal = c->causal, .drop = drop);
    flux_tensor *y = flux_reshape_with(flux_nth(both, 0), flux_shape_of(w)), *keep = drop ? flux_ne(flux_nth(both, 1), 0.0) : NULL;
    flux_tensor *want = plain_attention(q, k, v, (int)c->heads, mask, bias, c->causal, keep, c->dropped);
    CHECK(flux_dtype_of(y) == t);
    CHECK_NEAR(furthest(y, want), 0, tol);
    flux_grads *g = bias ? flux_gradient(flux_sum(flux_mul(flux_to_dtype(y, FLUX_F64), w)), q, k, v, bias) : flux_gradient(flux_sum(flux_mul(flux_to_dtype(y, FLUX_F64), w)), q, k, v);
    flux_grads *f = bias ? flux_gradient(flux_sum(flux_mul(want, flux_cpu(w))), q, k, v, bias) : flux_gradient(flux_sum(flux_mul(want, flux_cpu(w))), q, k, v);
    CHECK_NEAR(furthest(flux_grad(g, q), flux_grad(f, q)), 0, 5 * tol);
    CHECK_NEAR(furthest(flux_grad(g, k), flux_grad(f, k)), 0, 5 * tol);
    CHECK_NEAR(furthest(flux_grad(g, v), flux_grad(f, v)), 0, 5 * tol);
    if (bias) CHECK_NEAR(furthest(flux_grad(g, bias), flux_grad(f, bias)), 0, 5 * tol);
    if (bias) g = flux_gradient(flux_sum(flux_mul(flux_to_dtype(y, FLUX_F64), w)), bias);   /* nobody wants the others */
    if (bias) CHECK_NEAR(furthest(flux_grad(g, bias), flux_grad(f, bias)), 0, 5 * tol);
}

TEST(attention_as_in_plain_operations) {
    for (int i = 0; i < ATTEND_CASES; i++) {
        if (!test_left_out(i, 2)) FLUX_SCOPE attend_as_plain(&attend_cases[i], FLUX_F64, 2e-14);
        if (!test_left_out(i + 1, 2)) FLUX_SCOPE attend_as_plain(&attend_cases[i], FLUX_F32, 5e-6);
    }
    FLUX_SCOPE attend_as_plain(&attend_cases[2], FLUX_F16, 4e-3);
    FLUX_SCOPE attend_as_plain(&attend_cases[2], FLUX_BF16, 3e-2);
}

/* What tensor cores multiply: tiles that are full and not, of 16 to 128 features, in each format that they have. */
TEST(attention_of_half_formats_as_in_plain_operations) {
    static const attend_case wide[] = {
        { 64, 64, 2, 150, 150, 1, 0, false, true, 0 },  { 128, 128, 1, 70, 100, 1, 0, false, true, 0 }, { 32, 32, 2, 64, 64, 2, 2, false, false, 0 },
        { 64, 32, 1, 40, 130, 2, 0, true, false, 0 },   { 72, 104, 1, 33, 90, 1, 1, true, true, 0 },    { 32, 32, 65, 130, 70, 1, 3, false, false, 0 },
        { 48, 16, 1, 1, 200, 2, 0, false, true, 0 },    { 64, 64, 2, 150, 150, 1, 0, false, true, 0.2 }, { 72, 104, 1, 33, 90, 1, 1, true, true, 0.6 },
        { 32, 32, 2, 70, 130, 2, 0, false, false, 0.2 } };
    const int n = getenv("EMULATED") ? 3 : (int)(sizeof wide / sizeof *wide);      /* a processor has no such tiles */
    for (int i = 0; i < n; i++) {
        if (!test_left_out(i, 3)) FLUX_SCOPE attend_as_plain(&wide[i], FLUX_F16, 4e-3);
        if (!test_left_out(i + 1, 3)) FLUX_SCOPE attend_as_plain(&wide[i], FLUX_BF16, 3e-2);
        flux_allow_tf32(true);
        if (!test_left_out(i + 2, 3)) FLUX_SCOPE attend_as_plain(&wide[i], FLUX_F32, 4e-3);
        flux_allow_tf32(false);
    }
    for (int i = 0; i < ATTEND_CASES; i++)
        if (!test_left_out(i / 2, 2)) FLUX_SCOPE attend_as_plain(&attend_cases[i], i % 2 ? FLUX_BF16 : FLUX_F16, i % 2 ? 3e-2 : 4e-3);
}

/* Heads to which sm_90 attends by warpgroups, where a real compiler's PTX is run or on a card: whole and cut tiles, one and several of
   them, operands that are slices of one tensor. A software GPU that has source takes another text, and one case of these. */
TEST(attention_of_warpgroups) {
    static const attend_case all[] = {
        { 64, 64, 2, 150, 200, 2, 0, false, true, 0 },  { 128, 128, 1, 150, 150, 1, 0, false, true, 0 }, { 64, 128, 1, 70, 130, 2, 0, false, false, 0 },
        { 128, 64, 2, 64, 64, 1, 0, false, false, 0 },  { 64, 64, 1, 64, 300, 1, 0, false, false, 0 },   { 128, 128, 1, 64, 200, 1, 0, false, true, 0 } };
    if (!test_device.backend) SKIP("about GPUs");
    const bool source = getenv("SOFTGPU") && !getenv("SOFTGPU_PTX");
    for (int i = 0; i < (source ? 1 : (int)(sizeof all / sizeof *all)); i++) {
        if (!test_left_out(i, 2)) FLUX_SCOPE attend_as_plain(&all[i], FLUX_F16, 4e-3);
        if (!test_left_out(i + 1, 2)) FLUX_SCOPE attend_as_plain(&all[i], FLUX_BF16, 3e-2);
    }
    flux_tensor *x = flux_eval(flux_to_dtype(flux_randn(3 * 128, 70, 2), FLUX_F16)), *part[3];
    for (int i = 0; i < 3; i++) part[i] = flux_slice(x, 0, 128 * i, 128 * (i + 1));
    flux_tensor *y = flux_nth(flux_dot_product_attention(part[0], part[1], part[2], .nheads = 2), 0);
    flux_tensor *want = plain_attention(part[0], part[1], part[2], 2, NULL, NULL, false, NULL, 0);
    CHECK_NEAR(furthest(y, want), 0, 4e-3);
    CHECK_NEAR(furthest(flux_grad(flux_gradient(flux_sum(flux_to_dtype(y, FLUX_F32)), x), x), flux_grad(flux_gradient(flux_sum(want), x), x)), 0, 2e-2);
}

/* The same on AMD's chips whose instructions are wmma, in a process each, which runs this test as one of them. */
TEST(attention_with_other_matrix_cores) {
    static const char *const chips[] = { "gfx1100", "gfx1201" };
    static const attend_case some[] = { { 128, 128, 1, 40, 70, 1, 0, false, true, 0 }, { 40, 32, 1, 33, 90, 2, 1, true, true, 0.3 } };
    const char *backend = getenv("FLUX_TEST_DEVICE");
    if (!getenv("SOFTGPU") || !backend || strcmp(backend, "AMDGPU")) SKIP("about AMD's software GPU");
    for (int i = 0; i < 2 && getenv("SOFTGPU_ARCH"); i++) {
        FLUX_SCOPE attend_as_plain(&some[i], FLUX_F16, 4e-3);
        FLUX_SCOPE attend_as_plain(&some[i], FLUX_BF16, 3e-2);
    }
    for (int i = 0; i < 2 && !getenv("SOFTGPU_ARCH"); i++)
        if (!test_left_out(i, 2)) CHECK(test_as_chip(chips[i], "attention_with_other_matrix_cores", true));
}

TEST(attention_of_views) {                                 /* one projection for all, steps in the wrong order, a sum's gradient */
    flux_tensor *x = flux_eval(flux_randn(5, 24, 2)), *all = flux_permute(x, 1, 0, 2);
    flux_tensor *q = flux_slice(all, 0, 0, 8), *k = flux_slice(all, 0, 8, 16), *v = flux_slice(all, 0, 16, 24);
    flux_tensor *y = flux_nth(flux_dot_product_attention(q, k, v, .nheads = 2), 0), *want = plain_attention(q, k, v, 2, NULL, NULL, false, NULL, 0);
    CHECK_NEAR(furthest(y, want), 0, 2e-6);
    CHECK_NEAR(furthest(flux_grad(flux_gradient(flux_sum(y), x), x), flux_grad(flux_gradient(flux_sum(want), x), x)), 0, 2e-5);
    flux_tensor *flat = flux_nth(flux_dot_product_attention(flux_ones(4, 3), flux_ones(4, 5), flux_full_with(FLUX_SHAPE(4, 5), 2, FLUX_F32)), 0);
    CHECK(flux_ndim(flat) == 2 && fabs(flux_item(flux_min(flat)) - 2) < 1e-6);
    CHECK(flux_dtype_of(flux_nth(flux_dot_product_attention(flux_ones(4, 3), flux_to_dtype(flux_ones(4, 5), FLUX_F64), flux_ones(4, 5)), 0)) == FLUX_F64);
}

/* The sum of a gradient's squares: its own gradient goes through the second derivatives of attention. */
static flux_tensor *steepness(flux_tensor **x, int heads, bool causal, flux_layer *drop) {
    if (drop) flux_seed(4);                                 /* the same weights are dropped each time */
    flux_tensor *y = flux_nth(flux_dot_product_attention(x[0], x[1], x[2], .nheads = heads, .causal = causal, .drop = drop), 0);
    flux_grads *g = flux_gradient(flux_sum(flux_square(y)), x[0], x[1], x[2]);
    flux_tensor *sum = NULL;
    for (int i = 0; i < 3; i++) {
        flux_tensor *s = flux_sum(flux_square(flux_grad(g, x[i])));
        sum = sum ? flux_add(sum, s) : s;
    }
    return sum;
}

TEST(second_derivatives_of_attention_against_differences) {
    for (int way = 0; way < 3; way++) FLUX_SCOPE {
        const bool causal = way == 1;
        flux_layer *drop = way == 2 ? dropping(0.4) : NULL;
        flux_tensor *x[3] = { FILL(0.3, 1.0, 4, 3, 2), FILL(0.8, 0.9, 4, 3, 2), FILL(1.7, 0.8, 4, 3, 2) };
        flux_grads *g = flux_gradient(steepness(x, 2, causal, drop), x[0], x[1], x[2]);
        for (int i = 0; i < 3; i++) {
            const double *d = (const double *)flux_data(flux_cpu(flux_grad(g, x[i])));
            REQUIRE(d != NULL);
            for (int e = 0; e < 24; e += 5) FLUX_SCOPE {
                double at[24], v[2];
                flux_tensor *keep = x[i];
                memcpy(at, flux_data(flux_cpu(keep)), sizeof at);
                for (int side = 0; side < 2; side++) {
                    at[e] += side ? -2e-5 : 1e-5;
                    x[i] = flux_from_with(at, FLUX_F64, FLUX_SHAPE(4, 3, 2));
                    v[side] = flux_item(steepness(x, 2, causal, drop));
                }
                x[i] = keep;
                CHECK_NEAR((v[0] - v[1]) / 2e-5, d[e], 3e-9 + 3e-9 * fabs(d[e]));
            }
        }
    }
}

/* The scores would be 2 x 700 x 700 here, 3.9 MB; dropout's mask is 1 MB, all else 0.2. */
TEST(attention_takes_no_memory_for_its_scores) {
    flux_tensor *q = flux_randn(16, 700, 1), *k = flux_randn(16, 700, 1), *v = flux_randn(16, 700, 1), *all[3] = { q, k, v };
    if (getenv("FLUX_EAGER")) SKIP("FLUX_EAGER computes the scores that nobody looks at");
    REQUIRE(flux_eval_all(3, all) == 0);
    flux_device d = flux_device_of(q);
    flux_mem_trim(d);
    int64_t before = flux_mem_stats(d).reserved;
    for (int drops = 0; drops < 2; drops++) FLUX_SCOPE {
        flux_mem_trim(d);
        flux_tensor *both = flux_dot_product_attention(q, k, v, .nheads = 2, .causal = true, .drop = drops ? dropping(0.1) : NULL);
        flux_grads *g = flux_gradient(flux_sum(flux_square(flux_nth(both, 0))), q, k, v);
        flux_tensor *out[3] = { flux_grad(g, q), flux_grad(g, k), flux_grad(g, v) };
        REQUIRE(flux_eval_all(3, out) == 0);
        CHECK(flux_mem_stats(d).reserved - before < 1000000 + drops * 1500000);
        CHECK(flux_item(flux_sum(flux_nth(both, 1))) > 1399 - drops * 100 && flux_mem_stats(d).reserved - before > 3900000);   /* looked at: now they are there */
    }
}

TEST(attention_is_the_same_for_any_number_of_threads) {
    float first[3][8 * 70 * 3];
    flux_tensor *x[3] = { flux_randn(8, 70, 3), flux_randn(8, 70, 3), flux_randn(8, 70, 3) };
    REQUIRE(flux_eval_all(3, x) == 0);
    for (int threads = 1; threads < 5; threads++) FLUX_SCOPE {
        flux_threads(threads);
        flux_tensor *y = flux_nth(flux_dot_product_attention(x[0], x[1], x[2], .nheads = 2, .causal = true), 0);
        flux_grads *g = flux_gradient(flux_sum(flux_square(y)), x[0], x[1]);
        flux_tensor *out[3] = { y, flux_grad(g, x[0]), flux_grad(g, x[1]) };
        for (int i = 0; i < 3; i++) {
            const void *now = flux_data(out[i]);
            REQUIRE(now != NULL);
            if (threads == 1) memcpy(first[i], now, sizeof first[i]);
            else CHECK(memcmp(first[i], now, sizeof first[i]) == 0);
        }
    }
    flux_threads(0);
}

/* ---- bags */

static const int32_t bag_words[] = { 0, 2, 2, 4, 1, 3 }, bag_starts[] = { 0, 3, 4 };

static flux_layer *bag_fixture(flux_fn f) {
    flux_layer *m = flux_f64(flux_embeddingbag(5, 3, f));
    flux_set_param(m, "weight", FILL(0.4, 1.3, 3, 5));
    return m;
}

TEST(bags_as_pytorch) {
    const flux_fn f[] = { flux_mean, flux_sum, flux_max };
    const double *want[][2] = { { seq_bag_mean, seq_bag_mean_gW }, { seq_bag_sum, seq_bag_sum_gW }, { seq_bag_max, seq_bag_max_gW } };
    for (int i = 0; i < 3; i++) {
        flux_layer *m = bag_fixture(f[i]);
        flux_tensor *y = flux_call(m, flux_from(bag_words, 6), flux_from(bag_starts, 3));
        test_data(y, want[i][0], 9, 2e-9, __FILE__, __LINE__, "bags");
        test_data(flux_grad(flux_gradient(squares(y), m), flux_weight(m)), want[i][1], 15, 2e-9, __FILE__, __LINE__, "by weight");
        flux_tensor *grid = flux_call(m, flux_from(bag_words, 3, 2)), *one = flux_call(m, flux_from(bag_words, 3));
        CHECK_SHAPE(grid, 3, 2);
        CHECK_SHAPE(one, 3);
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(one, flux_select(y, 1, 0))))), 0, 1e-12);
        flux_tensor *hot = flux_call(m, flux_onehot(flux_from(bag_words, 3, 2), 5));
        CHECK_NEAR(flux_item(flux_max(flux_abs(flux_sub(hot, grid)))), 0, 1e-12);
    }
    flux_shape s = flux_outputsize(flux_embeddingbag(5, 3), 4, 2);
    CHECK(s.ndim == 2 && s.dim[0] == 3 && s.dim[1] == 2);
}

TEST(wrong_bags) {
    flux_layer *m = flux_embeddingbag(5, 3);
    const int32_t bad[] = { 1, 3 }, twice[] = { 0, 2, 2 }, past[] = { 0, 6 };
    flux_tensor *words = flux_from(bag_words, 6);
    CHECK_ERROR(flux_embeddingbag(5, 0), "embeddingbag: size 0 is 0");
    CHECK_ERROR(flux_embeddingbag(5, 3, flux_relu), "embeddingbag: .reduction must be flux_mean, flux_sum or flux_max");
    CHECK_ERROR(flux_call(m, flux_ones(3)), "EmbeddingBag(5 => 3) takes bags of integer indices or bool columns, got 3-element f32");
    CHECK_ERROR(flux_call(m, words, flux_from(bad, 2)), "EmbeddingBag(5 => 3): the first offset is 1, not 0");
    CHECK_ERROR(flux_call(m, words, flux_from(twice, 3)), "offset 1 is 2, and the next one 2: each bag needs one index at least");
    CHECK_ERROR(flux_call(m, words, flux_from(past, 2)), "offset 1 is 6, and there are 6: each bag needs one index at least");
    CHECK_ERROR(flux_call(m, words, words, words), "takes bags, or indices and offsets, got 3 inputs");
    CHECK_ERROR(flux_call(m, words, flux_ones(2)), "takes a vector of indices and one of offsets");
}

/* ---- PyTorch's own files */

static const char torch_file[] = "tests/fixtures/torch_seq.safetensors";
static const char torch_map[] = "layers.1 = lstm.*_l0, layers.2 = lstm.*_l1, layers.0 = rnn, layers.3 = gru, layers.4 = cell, layers.5 = attn";

static flux_tensor *wave(flux_shape s, double a) {
    float v[100];
    for (int i = 0; i < 100; i++) v[i] = (float)sin(a + 0.71 * i);
    return flux_from_with(v, FLUX_F32, s);
}
static flux_layer *torch_net(bool hidden_bias, flux_layer **part) {
    part[0] = flux_rnn(4, 5), part[1] = flux_lstm(5, 6), part[2] = flux_lstm(6, 6);
    part[3] = flux_gru(6, 4, .hidden_bias = hidden_bias);
    part[4] = flux_grucell(4, 4, .hidden_bias = hidden_bias);
    part[5] = flux_multiheadattention(4, .nheads = 2, .bias = true, .scores = FLUX_OFF);
    part[6] = flux_named("cross", flux_multiheadattention(4, .nheads = 2, .k_in = 6, .v_in = 3, .scores = FLUX_OFF));
    part[7] = flux_named("bag", flux_embeddingbag(7, 4));
    return flux_chain(part[0], part[1], part[2], part[3], part[4], part[5], part[6], part[7]);
}

TEST(sequence_models_of_pytorch_give_its_predictions) {
    flux_layer *part[8], *m = torch_net(true, part);
    const int32_t words[] = { 0, 3, 6, 1, 1, 5 };
    REQUIRE(flux_load_torch(m, torch_file, torch_map) == 0);
    flux_tensor *a = flux_call(part[0], wave(FLUX_SHAPE(4, 5, 2), 0.5)), *b = flux_call(part[2], flux_call(part[1], a)), *c = flux_call(part[3], b);
    flux_tensor *last = flux_select(c, 1, 4), *first = flux_select(c, 1, 0), *d = flux_nth(flux_call(part[4], last, first), 0), *e = flux_call(part[5], c);
    CHECK_DATA(a, torch_rnn, 1e-6);
    CHECK_DATA(b, torch_lstm, 1e-6);
    CHECK_DATA(c, torch_gru, 1e-6);
    CHECK_DATA(d, torch_cell, 1e-6);
    CHECK_DATA(e, torch_attn, 1e-6);
    CHECK_DATA(flux_call(part[6], e, wave(FLUX_SHAPE(6, 3, 2), 0.2), wave(FLUX_SHAPE(3, 3, 2), 0.9)), torch_cross, 1e-6);
    CHECK_DATA(flux_call(part[7], flux_from(words, 3, 2)), torch_bag, 1e-6);
}

TEST(sequence_models_of_pytorch_that_do_not_fit) {
    flux_layer *part[8], *m = torch_net(false, part);
    CHECK_ERROR(flux_load_torch(m, torch_file, torch_map), "gru.bias_hh_l0 adds to the candidate before the reset gate: gru needs .hidden_bias = true");
    flux_layer *one = flux_chain(flux_named("rnn", flux_rnn(4, 5, .bias = FLUX_OFF)));
    CHECK_ERROR(flux_load_torch(one, torch_file, "= lstm, = gru, = cell, = attn, = cross, = bag"), "it has \"rnn.bias_hh_l0\", which nothing here takes");
    one = flux_chain(flux_named("lstm", flux_lstm(5, 6)));
    CHECK_ERROR(flux_load_torch(one, torch_file, "= rnn, = gru, = cell, = attn, = cross, = bag"), "it has \"lstm.bias_hh_l1\", which nothing here takes");
    one = flux_chain(flux_named("gru", flux_gruv3(6, 4)));
    CHECK_ERROR(flux_load_torch(one, torch_file, "= rnn, = lstm, = cell, = attn, = cross, = bag"), "PyTorch has no GRUv3, which layers.gru.cell.Wi is of");
    one = flux_chain(flux_named("cross", flux_multiheadattention(4, .nheads = 2, .bias = true, .k_in = 6, .v_in = 3)));
    CHECK_ERROR(flux_load_torch(one, torch_file, NULL), "it has no \"cross.in_proj_bias\", which would be layers.cross.q_proj.bias here");
    one = flux_chain(flux_named("attn", flux_multiheadattention(6, .nheads = 2, .bias = true)));
    CHECK_ERROR(flux_load_torch(one, torch_file, NULL), "attn.in_proj_weight is 12x4 f32 there, in our order, but layers.attn.q_proj.weight is 6x6 f32 here");
    CHECK_ERROR(flux_lstm(3, 4, .hidden_bias = true), "lstm: .hidden_bias is for gru");
}

/* What PyTorch wrote, loaded and saved again, has its names, shapes and bits; only the two biases of a recurrent layer, which are
   one here, are another pair with the same sum. */
TEST(sequence_models_are_saved_as_pytorch_saves_them) {
    static const char *const names[] = { "rnn.weight_ih_l0", "rnn.weight_hh_l0", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.weight_ih_l1",
        "lstm.weight_hh_l1", "gru.weight_ih_l0", "gru.weight_hh_l0", "cell.weight_ih", "cell.weight_hh", "attn.in_proj_weight",
        "attn.in_proj_bias", "attn.out_proj.weight", "attn.out_proj.bias", "cross.q_proj_weight", "cross.k_proj_weight",
        "cross.v_proj_weight", "cross.out_proj.weight", "bag.weight" };
    static const char *const biases[] = { "rnn.bias_%sh_l0", "lstm.bias_%sh_l0", "lstm.bias_%sh_l1", "gru.bias_%sh_l0", "cell.bias_%sh" };
    flux_layer *part[8], *m = torch_net(true, part);
    REQUIRE(flux_load_torch(m, torch_file, torch_map) == 0);
    REQUIRE(flux_save_torch(m, "build/seq_saved.safetensors", torch_map) == 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        flux_tensor *a = flux_cpu(flux_load_tensor(torch_file, names[i])), *b = flux_cpu(flux_load_tensor("build/seq_saved.safetensors", names[i]));
        REQUIRE(a && b && flux_ndim(a) == flux_ndim(b) && flux_dim(a, 0) == flux_dim(b, 0) && flux_dim(a, 1) == flux_dim(b, 1));
        CHECK(memcmp(flux_data(a), flux_data(b), (size_t)flux_len(a) * sizeof(float)) == 0);
    }
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        flux_tensor *b[4];
        for (int k = 0; k < 4; k++) {
            char name[40];
            snprintf(name, sizeof name, biases[i], k & 1 ? "h" : "i");
            b[k] = flux_load_tensor(k < 2 ? torch_file : "build/seq_saved.safetensors", name);
            REQUIRE(b[k] != NULL);
        }
        CHECK(flux_len(b[3]) == flux_len(b[1]));
        CHECK(flux_item(flux_max(flux_abs(flux_sub(flux_add(b[0], b[1]), flux_add(b[2], b[3]))))) <= 0);
    }
    int64_t last = flux_len(flux_bias(part[4])) / 3;
    flux_tensor *there = flux_slice(flux_load_tensor(torch_file, "cell.bias_hh"), 0, 2 * last, 3 * last);
    flux_tensor *here = flux_slice(flux_load_tensor("build/seq_saved.safetensors", "cell.bias_hh"), 0, 2 * last, 3 * last);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(there, here)))) <= 0);
    remove("build/seq_saved.safetensors");
    CHECK_ERROR(flux_save_torch(flux_gruv3(2, 3), "build/seq_saved.safetensors", NULL), "save_torch: PyTorch has no GRUv3, which cell.Wi is of");
    m = flux_multiheadattention(4, .nheads = 2, .qk = 6, .v = 8, .out = 4, .bias = true);
    CHECK_ERROR(flux_save_torch(m, "build/seq_saved.safetensors", NULL), "save_torch: in_proj_bias has 3 equal parts in PyTorch, but not here");
    CHECK_ERROR(flux_save_torch(flux_gru(2, 3, .hidden_bias = true), "build/seq_saved.safetensors", "cell.bias_h ="),
                "save_torch: bias_hh_l0 has 3 equal parts in PyTorch, but not here");
}

/* A layer of one's own whose children have the names that PyTorch's attention and recurrent layers would have in ours. */
typedef struct wrapped { flux_layer base, *cell, *q_proj; flux_tensor *scale; } wrapped;
static flux_tensor *wrapped_call(flux_layer *self, flux_tensor *x) { return flux_mul(x, ((wrapped *)self)->scale); }
FLUX_LAYER(wrapped, "Wrapped", wrapped_call, FLUX_CHILD(cell), FLUX_CHILD(q_proj), FLUX_PARAM(scale))

static flux_tensor *drawn(flux_tensor *x) {
    flux_shape s = flux_shape_of(x);
    return flux_to_dtype(flux_add(flux_rand_with(s, FLUX_F32), 0.5), flux_dtype_of(x));
}
static flux_layer *one_of_each(int i) {
    flux_tensor *w = flux_ones(3, 3);
    switch (i) {
    case 0: return flux_chain(flux_dense(3, 4, flux_relu), flux_dense(4, 2, .bias = FLUX_OFF), flux_scale(FLUX_SHAPE(2)), flux_bilinear(2, 3, 4));
    case 1: return flux_chain(flux_embedding(7, 3), flux_embeddingbag(5, 2), flux_layernorm(FLUX_SHAPE(3)), flux_layernorm(FLUX_SHAPE(2, 5)));
    case 2: return flux_chain(flux_conv_layer(FLUX_SHAPE(3, 2), 2, 4), flux_conv_layer(FLUX_SHAPE(3), 2, 2, .bias = FLUX_OFF),
                              flux_crosscor_layer(FLUX_SHAPE(2, 3), 2, 3), flux_conv_transpose_layer(FLUX_SHAPE(2, 3, 2), 2, 3));
    case 3: return flux_chain(flux_batchnorm(3), flux_batchnorm(3, .affine = FLUX_OFF), flux_batchnorm(2, .track_stats = FLUX_OFF),
                              flux_instancenorm(2, .affine = FLUX_ON, .track_stats = FLUX_ON), flux_groupnorm(4, 2));
    case 4: return flux_chain(flux_rnn(2, 3), flux_lstm(3, 4), flux_gru(4, 2), flux_gru(2, 3, .hidden_bias = true), flux_lstm(2, 2, .bias = FLUX_OFF));
    case 5: return flux_chain(flux_rnncell(2, 3), flux_lstmcell(3, 4), flux_grucell(4, 2), flux_grucell(2, 3, .hidden_bias = true));
    case 6: return flux_chain(flux_multiheadattention(4, .nheads = 2, .bias = true), flux_multiheadattention(4, .nheads = 2),
                              flux_multiheadattention(4, .nheads = 2, .k_in = 6, .v_in = 3, .bias = true));
    case 7: return flux_new(wrapped, .cell = flux_lstmcell(2, 3), .q_proj = flux_dense(2, 3), .scale = flux_ones(2));
    case 8: return flux_chain(flux_parallel(flux_add, flux_dense(2, 2), flux_skipconnection(flux_dense(2, 2), flux_add)),
                              flux_maxout(flux_dense(2, 2), flux_dense(2, 2)), flux_weightnorm(flux_dense(2, 3)));
    case 9: return flux_chain(flux_dense(.weight = w), flux_dense(.weight = w), flux_recurrence(flux_lstmcell(2, 3)));
    case 10: return flux_f64(flux_chain(flux_dense(3, 4), flux_gru(4, 2)));
    default: return flux_bf16(flux_chain(flux_conv_layer(FLUX_SHAPE(3, 2), 2, 4), flux_batchnorm(4), flux_gru(4, 2)));
    }
}
static const char *bits_of(flux_tensor *x, size_t *n) {
    *n = (size_t)flux_len(x) * flux_dtype_size(flux_dtype_of(x));
    return (const char *)flux_data(flux_cpu(x));
}
static void same_bits(flux_tensor *x, const char *path, bool trained, void *other) {
    size_t n, k;
    (void)trained;
    const char *a = bits_of(x, &n), *b = bits_of(flux_param((flux_layer *)other, path), &k);
    if (!a || !b || n != k || memcmp(a, b, n) != 0) fprintf(stderr, "    %s\n", path);
    CHECK(a && b && n == k && memcmp(a, b, n) == 0);
}
TEST(what_is_saved_for_pytorch_is_loaded_as_it_was) {
    for (int i = 0; i < 12; i++) FLUX_SCOPE {
        flux_layer *m = flux_fmap(drawn, one_of_each(i)), *again = one_of_each(i);
        CHECK(flux_save_torch(m, "build/each_saved.safetensors", "scale = factor") == 0);
        CHECK(flux_load_torch(again, "build/each_saved.safetensors", "scale = factor") == 0);
        flux_visit(m, same_bits, again);
    }
    remove("build/each_saved.safetensors");
}

TEST(a_hidden_bias_against_differences) {
    static const char *const paths[] = { "cell.Wi", "cell.Wh", "cell.bias", "cell.bias_h" };
    flux_layer *m = flux_f64(flux_gru(3, 4, .hidden_bias = true));
    flux_set_param(m, "cell.bias_h", FILL(0.7, 0.5, 4));
    check_layer(m, FILL(0.3, 1.1, 3, 4, 2), true, paths, 4);
}

/* ---- losses */

static const int32_t ce_labels[] = { 1, 3, 0, 2, 2, 3 };
static const double ce_weights[] = { 0.5, 1, 2, 0.25 };

TEST(labels_as_pytorch) {
    flux_tensor *x = FILL(0.7, 2.0, 4, 3, 2), *y = flux_from(ce_labels, 3, 2), *w = flux_from(ce_weights, 4);
    flux_tensor *loss[] = { flux_logitcrossentropy(x, y), flux_logitcrossentropy(x, y, .weights = w), flux_logitcrossentropy(x, y, .ignore_index = 2),
                            flux_logitcrossentropy(x, y, .weights = w, .ignore_index = 3) };
    const double *want[][2] = { { seq_ce, seq_ce_gx }, { seq_ce_w, seq_ce_w_gx }, { seq_ce_i, seq_ce_i_gx }, { seq_ce_wi, seq_ce_wi_gx } };
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(flux_item(loss[i]), want[i][0][0], 1e-9);
        test_data(flux_grad(flux_gradient(loss[i], x), x), want[i][1], 24, 2e-9, __FILE__, __LINE__, "by x");
    }
}

TEST(labels_are_one_hot_columns) {
    flux_tensor *x = FILL(0.7, 2.0, 4, 3, 2), *y = flux_from(ce_labels, 3, 2), *hot = flux_onehot(y, 4), *p = flux_softmax(x);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(x, y)), flux_item(flux_logitcrossentropy(x, hot)), 1e-12);
    CHECK_NEAR(flux_item(flux_crossentropy(p, y)), flux_item(flux_crossentropy(p, hot)), 1e-12);
    CHECK_NEAR(flux_item(flux_focal_loss(p, y)), flux_item(flux_focal_loss(p, hot)), 1e-12);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(x, y, .agg = FLUX_SUM)), flux_item(flux_logitcrossentropy(x, hot, .agg = FLUX_SUM)), 1e-12);
    CHECK_SHAPE(flux_logitcrossentropy(x, y, .agg = FLUX_NONE), 1, 3, 2);
    flux_tensor *turned = flux_permute(x, 1, 0, 2);                       /* classes along dim 1 */
    CHECK_NEAR(flux_item(flux_logitcrossentropy(turned, y, .dim = 1)), seq_ce[0], 1e-9);
    flux_tensor *w = flux_from(ce_weights, 4);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(x, hot, .weights = w)), seq_ce_w[0], 1e-9);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(x, flux_to_dtype(y, FLUX_U8))), seq_ce[0], 1e-9);
    CHECK_NEAR(flux_item(flux_logitcrossentropy(x, flux_to_dtype(y, FLUX_I64), .ignore = FLUX_ON)),
               flux_item(flux_div(flux_sum(flux_mul(flux_logitcrossentropy(x, y, .agg = FLUX_NONE), flux_unsqueeze(flux_to_dtype(flux_ne(y, 0), FLUX_F64), 0))), 5.0)), 1e-9);
}

static const int32_t ctc_labels[] = { 1, 1, 2, 0, 3, -1, 2, -1, -1 }, ctc_lengths[] = { 7, 7, 5 };

TEST(ctc_as_pytorch) {
    flux_tensor *x = FILL(0.9, 1.5, 5, 7, 3), *y = flux_from(ctc_labels, 3, 3), *n = flux_from(ctc_lengths, 3);
    CHECK_DATA(flux_ctc_loss(x, y, .lengths = n, .agg = FLUX_NONE), seq_ctc, 2e-9);
    flux_tensor *loss = flux_ctc_loss(x, y, .lengths = n);
    CHECK_NEAR(flux_item(loss), (seq_ctc[0] + seq_ctc[1] + seq_ctc[2]) / 3, 1e-9);
    CHECK_GRAD(flux_gradient(loss, x), x, seq_ctc_gx);
    CHECK_NEAR(flux_item(flux_ctc_loss(flux_select(x, 2, 0), flux_select(y, 1, 0))), seq_ctc[0], 2e-9);
    CHECK_NEAR(flux_item(flux_ctc_loss(flux_to_dtype(x, FLUX_F32), y, .lengths = n, .agg = FLUX_SUM)), seq_ctc[0] + seq_ctc[1] + seq_ctc[2], 1e-5);
}

/* Labels that are yet to be computed: one that is no class makes its sample NaN, and leaves the others. */
TEST(ctc_of_labels_that_are_no_classes) {
    flux_tensor *x = FILL(0.9, 1.5, 5, 7, 3), *y = flux_from(ctc_labels, 3, 3);
    for (int64_t wrong = 4; wrong < 1000; wrong += 100) {      /* 4 is the blank */
        flux_tensor *late = flux_where(flux_and(flux_eq(y, 3.0), flux_lt(flux_rand(3, 3), 2.0)), (double)wrong, y);
        flux_tensor *loss = flux_ctc_loss(x, late, .agg = FLUX_NONE);
        CHECK_NEAR(flux_item(flux_select(loss, 0, 0)), seq_ctc[0], 2e-9);
        CHECK(isnan(flux_item(flux_select(loss, 0, 1))));
        CHECK(!isnan(flux_item(flux_select(loss, 0, 2))));
    }
    CHECK(!flux_failed());
}

static flux_tensor *ctc_of(flux_tensor *x, void *user) { return flux_ctc_loss(x, (flux_tensor *)user); }
static flux_tensor *ctc_slope(flux_tensor *x, void *user) { return squares(flux_grad(flux_gradient(ctc_of(x, user), x), x)); }

TEST(ctc_against_differences) {
    flux_tensor *x = FILL(0.9, 1.5, 5, 7, 3), *y = flux_from(ctc_labels, 3, 3);
    CHECK_NEAR(flux_gradcheck(ctc_of, y, x, 0), 0, 1e-8);
    CHECK_NEAR(flux_gradcheck(ctc_slope, y, x, 8), 0, 5e-9);
}

TEST(ctc_by_hand) {
    flux_tensor *even = flux_zeros(3, 2);                  /* each class 1/3 at each of 2 steps */
    const int32_t one[] = { 0 }, two[] = { 0, 0 }, none[] = { -1 };
    CHECK_NEAR(flux_item(flux_ctc_loss(even, flux_from(one, 1))), -log(3.0 / 9), 1e-6);     /* a a, a -, - a */
    CHECK_NEAR(flux_item(flux_ctc_loss(even, flux_from(none, 1))), -log(1.0 / 9), 1e-6);    /* - - */
    CHECK(flux_item(flux_ctc_loss(even, flux_from(two, 2))) == HUGE_VAL);                   /* a - a needs 3 steps */
    CHECK_NEAR(flux_item(flux_ctc_loss(even, flux_slice(flux_from(one, 1), 0, 0, 0))), -log(1.0 / 9), 1e-6);      /* no label: - - */
    flux_tensor *(*const plain)(flux_tensor *, flux_tensor *) = flux_ctc_loss;              /* as a loss without options */
    CHECK_NEAR(flux_item(plain(even, flux_from(one, 1))), -log(3.0 / 9), 1e-6);
}

/* Steps beyond a sample's length don't count, whatever lies there; none at all can give only the empty target. */
TEST(ctc_lengths) {
    flux_tensor *x = FILL(0.9, 1.5, 5, 7, 3), *y = flux_from(ctc_labels, 3, 3), *e;
    for (int32_t n = 1; n <= 7; n++) {
        const int32_t all[] = { n, n, n };
        e = flux_ctc_loss(x, y, .lengths = flux_from(all, 3), .agg = FLUX_NONE);
        flux_tensor *want = flux_ctc_loss(flux_slice(x, 1, 0, n), y, .agg = FLUX_NONE);
        for (int i = 0; i < 3; i++) CHECK_NEAR(flux_at(e, i), flux_at(want, i), 1e-12);
    }
    const int32_t some[] = { 0, 0, 7 }, targets[] = { 1, -1, -1, -1, 2, -1 }, over[] = { 7, 8, 7 }, under[] = { 7, 7, -1 };
    flux_tensor *few = flux_from(targets, 2, 3);
    e = flux_ctc_loss(x, few, .lengths = flux_from(some, 3), .agg = FLUX_NONE);
    CHECK(flux_at(e, 0) == HUGE_VAL && flux_at(e, 1) == 0 && flux_at(e, 2) > 0 && flux_at(e, 2) < 100);
    flux_tensor *g = flux_grad(flux_gradient(flux_at(e, 0) > 0 ? flux_select(e, 0, 1) : NULL, x), x);
    CHECK(flux_item(flux_max(flux_abs(g))) == 0);
    if (flux_device_of(x).backend == 0) {
        CHECK_ERROR(flux_ctc_loss(x, y, .lengths = flux_from(over, 3)), "ctc_loss: length 8 at (1) is not one of 0 to 7");
        CHECK_ERROR(flux_ctc_loss(x, y, .lengths = flux_from(under, 3)), "ctc_loss: length -1 at (2) is not one of 0 to 7");
    }
    e = flux_ctc_loss(x, y, .lengths = flux_mul(flux_from(over, 3), 1), .agg = FLUX_NONE);    /* not looked at */
    const int32_t gap[] = { -1, 1 };
    double behind = flux_item(flux_ctc_loss(flux_ones(5, 7), flux_from(gap, 2)));
    CHECK(behind != behind);
    if (getenv("FLUX_EAGER")) flux_clear();
    else CHECK(flux_at(e, 0) == flux_at(e, 0) && flux_at(e, 1) != flux_at(e, 1));
}

/* Of a sample's log probabilities at its first `length` steps: the sum over all paths, written out, that give the labels y,
   of which -1 is none, when repetitions and then blanks are left out. */
static double ctc_by_paths(const double *p, int classes, int length, const int32_t *y, int labels) {
    double sum = 0;
    int n = 0, paths = 1;
    for (int t = 0; t < length; t++) paths *= classes;
    while (n < labels && y[n] >= 0) n++;
    for (int path = 0; path < paths; path++) {
        double log_of = 0;
        bool same = true;
        int met = 0, last = classes - 1, rest = path;
        for (int t = 0; t < length; t++, rest /= classes) {
            const int now = rest % classes;
            if (now != last && now < classes - 1) same = same && met < n && y[met] == now, met++;
            log_of += p[t * classes + now], last = now;
        }
        if (same && met == n) sum += exp(log_of);
    }
    return -log(sum);
}
TEST(ctc_is_a_sum_over_paths) {
    enum { N = 7 };
    for (int classes = 2, k = 0; classes < 4; classes++) for (int steps = 1; steps < 5; steps++) for (int labels = 0; labels < 4; labels++, k++) FLUX_SCOPE {
        if (test_left_out(k, 8)) continue;
        int32_t y[N * 4], lengths[N];
        for (int s = 0; s < N; s++) {
            lengths[s] = (s + k) % (steps + 1);
            for (int i = 0; i < labels; i++) y[s * labels + i] = i < (s / 2 + k) % (labels + 1) ? (s + i * (s + k)) % (classes - 1) : -1;
        }
        flux_tensor *x = flux_logsoftmax(FILL(0.3 * k, 1.5, classes, steps, N)), *at = flux_from(y, labels, N), *n = flux_from(lengths, N);
        const double *p = (const double *)flux_data(x);
        flux_tensor *e = flux_ctc_loss(x, at, .lengths = n, .agg = FLUX_NONE), *all = flux_ctc_loss(x, at, .agg = FLUX_NONE);
        for (int s = 0; s < N && p; s++) {
            const double want = ctc_by_paths(p + s * steps * classes, classes, lengths[s], y + s * labels, labels);
            CHECK_NEAR(flux_at(e, s), want, 1e-12);
            CHECK_NEAR(flux_at(all, s), ctc_by_paths(p + s * steps * classes, classes, steps, y + s * labels, labels), 1e-12);
        }
    }
}

TEST(wrong_losses) {
    flux_tensor *x = flux_ones(4, 3), *y = flux_from(ce_labels, 3);
    const int32_t bad[] = { 1, 4, 0 }, blank[] = { 1, 3, 0 };
    bool here = flux_device_of(x).backend == 0;            /* on a device labels are not looked at: see below */
    if (here) CHECK_ERROR(flux_logitcrossentropy(x, flux_from(bad, 3)), "logitcrossentropy: label 4 at (1) is not one of 0 to 3");
    CHECK_ERROR(flux_logitcrossentropy(x, flux_from(ce_labels, 4)), "logitcrossentropy: yhat is 4x3 f32, y is 4-element i32: their shapes must be the same");
    CHECK_ERROR(flux_logitcrossentropy(x, flux_ones(4, 3), .ignore_index = 1), "logitcrossentropy: .ignore_index goes with integer labels, which y is not");
    CHECK_ERROR(flux_logitcrossentropy(x, y, .weights = flux_ones(3)), ".weights is a vector of one number a class; it is 3-element f32, yhat is 4x3 f32");
    CHECK_ERROR(flux_mse(x, x, .weights = flux_ones(4)), "mse: .weights are of classes, which it has not");
    CHECK_ERROR(flux_logitcrossentropy(x, y, .lengths = y), "logitcrossentropy: .lengths are for ctc_loss");
    flux_tensor *far = flux_mul(y, 3);                     /* not looked at before it is computed: no number comes of it */
    double nan = flux_item(flux_logitcrossentropy(x, far));
    if (getenv("FLUX_EAGER")) flux_clear();               /* there it has been looked at */
    else CHECK(nan != nan);
    flux_tensor *p = flux_ones(4, 6, 2);
    CHECK_ERROR(flux_ctc_loss(flux_ones(4), y), "ctc_loss: yhat is floating classes x steps (x batch), 2 classes at least, got 4-element f32");
    CHECK_ERROR(flux_ctc_loss(p, flux_ones(3, 2)), "ctc_loss: y is integer labels (x batch) to yhat's 4x6x2 f32, got 3x2 f32");
    CHECK_ERROR(flux_ctc_loss(p, y), "ctc_loss: y is integer labels (x batch) to yhat's 4x6x2 f32, got 3-element i32");
    if (here) CHECK_ERROR(flux_ctc_loss(flux_ones(4, 6), flux_from(blank, 3)), "ctc_loss: label 3 at (1) is not one of 0 to 2");
    CHECK_ERROR(flux_ctc_loss(p, flux_from(ce_labels, 1, 2), .lengths = y), "ctc_loss: .lengths is one integer a sample, got 3-element i32");
    CHECK_ERROR(flux_ctc_loss(NULL, y), "ctc_loss: argument yhat is NULL");
}

/* ---- summary, picture, trace */

static flux_layer *small_model(void) {
    return flux_chain(flux_embedding(10, 8), flux_skipconnection(flux_chain(flux_layernorm(FLUX_SHAPE(8)),
                      flux_multiheadattention(8, .nheads = 2, .scores = FLUX_OFF)), flux_add), flux_lstm(8, 4), flux_named("head", flux_dense(4, 3)));
}

TEST(summary_of_a_model) {
    char text[3000];
    flux_layer *m = small_model();
    CHECK(flux_summary_text(m, FLUX_SHAPE(5, 2), text, sizeof text) < sizeof text);
    CHECK(strstr(text, "Embedding(10 => 8)") && strstr(text, "8x5x2") && strstr(text, "4x5x2") && strstr(text, "head = Dense(4 => 3)"));
    CHECK(strstr(text, "      MultiHeadAttention(8; nheads=2)") != NULL);
    char total[40];
    long long sum = 0;
    snprintf(total, sizeof total, "%lld", (long long)flux_num_params(m));
    CHECK(strstr(text, total) != NULL);                    /* 607 */
    for (const char *at = strstr(text, "head = "); at && sum == 0; at = NULL) sum = strstr(at, "120") ? 120 : 0;   /* 3 x 4 x 10 */
    CHECK(sum == 120);
    int lines = 0, full = 0;              /* a head, eight layers, the total, the parameters' bytes */
    for (const char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
        lines++, full += end - at > 20;
    CHECK(lines == 11 && full == lines && text[strlen(text) - 1] == '\n');
    flux_layer *tied = flux_dense(4, 4);
    flux_summary_text(flux_chain(tied, tied), FLUX_SHAPE(4, 1), text, sizeof text);
    CHECK(strstr(text, "total") && strstr(strstr(text, "total"), "20") != NULL);
    CHECK_ERROR(flux_summary_text(m, FLUX_SHAPE(0), text, sizeof text) , "");
    CHECK_ERROR(flux_summary_text(flux_dense(4, 3), FLUX_SHAPE(5, 2), text, sizeof text), "Dense(4 => 3) expects dim 0 of size 4");
    CHECK_ERROR(flux_summary(NULL, 3), "summary: argument model is NULL");
}

typedef struct { flux_layer base; flux_layer *inner, *unused; flux_tensor *gain; } gate;
static flux_tensor *gate_call(flux_layer *self, flux_tensor *x) {
    gate *g = (gate *)self;
    return flux_mul(flux_call(g->inner, x), g->gain);
}
FLUX_LAYER(gate, "Gate", gate_call, FLUX_CHILD(inner), FLUX_CHILD(unused), FLUX_PARAM(gain))

/* The number that the summary has in its line of total. */
static int64_t summary_total(flux_layer *m, char *text, size_t n) {
    flux_summary_text(m, FLUX_SHAPE(8, 2), text, n);
    const char *at = strstr(text, "\ntotal");
    return at ? (int64_t)atoi(at + 6) : -1;
}

/* A container's own parameters count, those of layers that were not called as well, and frozen ones are marked. */
TEST(summary_counts_all_parameters) {
    static char text[6000];
    flux_layer *g = flux_new(gate, .inner = flux_dense(8, 8), .unused = flux_dense(8, 9), .gain = flux_ones(8));
    flux_layer *m = flux_chain(flux_dense(8, 8), g);
    CHECK(summary_total(m, text, sizeof text) == flux_num_params(m) && flux_num_params(m) == 72 + 72 + 81 + 8);
    CHECK(strstr(text, "  Gate") && strstr(text, "not called") && !strchr(text, '*') && !strstr(text, "frozen"));
    flux_freeze(flux_child(m, 0));
    CHECK(summary_total(m, text, sizeof text) == flux_num_params(m));
    CHECK(strstr(text, " 72*") && strstr(text, "\n* frozen: flux_update leaves 72 parameters as they are\n"));
    flux_freeze(g);
    CHECK(summary_total(m, text, sizeof text) == flux_num_params(m));
    CHECK(strstr(text, " 8*\n") && strstr(text, "leaves 233 parameters"));
}

/* Dense(8 => 3) has 8 * 3 + 3 parameters of 4 bytes, multiplies 8 * 3 times for each of 2 samples, and gives 3 * 2 * 4 bytes. */
TEST(summary_word_for_word) {
    char text[2000];
    flux_summary_text(flux_chain(flux_dense(8, 3, flux_relu), flux_dense(3, 1)), FLUX_SHAPE(8, 2), text, sizeof text);
    CHECK_STR(text, "layer                  output  parameters  mul-adds     bytes\n"
                    "Chain                  1x2\n"
                    "  Dense(8 => 3, relu)  3x2             27        48  24 bytes\n"
                    "  Dense(3 => 1)        1x2              4         6   8 bytes\n"
                    "total                                  31        54  32 bytes\n"
                    "its parameters take 124 bytes\n");
}

/* Of any number of rows: all layers in a row stand two columns in, each with its numbers. */
TEST(summary_of_any_number_of_layers) {
    static char text[20000];
    for (int n = 1; n <= 40; n++) {
        flux_layer *layers[40];
        for (int i = 0; i < n; i++) layers[i] = flux_dense(8, 8);
        CHECK(flux_summary_text(flux_chain_with(n, layers, NULL), FLUX_SHAPE(8, 2), text, sizeof text) < sizeof text);
        int rows = 0;
        for (const char *at = text; (at = strstr(at, "\n  Dense(8 => 8)  8x2 ")) != NULL; at++) rows++;
        CHECK(rows == n);
    }
}

/* Deep, with long names, many outputs or large numbers: no line is longer than 80 characters. */
TEST(summary_fits_eighty_columns) {
    static char text[20000];
    for (int deep = 0; deep <= 100; deep += 10)
        for (int kind = 0; kind < 3; kind++) {
            flux_layer *m = kind == 0 ? flux_dense(8, 8, flux_tanh) : kind == 1 ? flux_multiheadattention(8, .nheads = 2) : flux_dense(8, 8);
            m = flux_named("a name that is long, \xc3\xa9 is one character, and so it goes on", m);
            for (int i = 0; i < deep; i++) m = flux_chain(m);
            for (int ascii = 0; ascii < 2; ascii++) {
                flux_print_ascii(ascii != 0);
                CHECK(flux_summary_text(m, FLUX_SHAPE(8, 7, kind < 2 || getenv("FLUX_EAGER") ? 1 : 100000000000), text, sizeof text) < sizeof text);
                int n = 0;
                for (const char *p = text; *p; p++) {
                    n = *p == '\n' ? 0 : n + (((unsigned char)*p & 0xC0) != 0x80);
                    if (n > 80) break;
                }
                if (!CHECK(n == 0)) fprintf(stderr, "%s", text);
                CHECK(strstr(text, "parameters  ") && strstr(text, "mul-adds  ") && strstr(text, "a name "));
            }
            flux_print_ascii(false);
        }
}

typedef struct { flux_layer base; flux_tensor *limit; } peek;
static flux_tensor *peek_call(flux_layer *self, flux_tensor *x) {
    return flux_item(flux_max(x)) > 0 ? flux_mul(x, ((peek *)self)->limit) : x;
}
FLUX_LAYER(peek, "Peek", peek_call, FLUX_PARAM(limit))

/* A layer that looks at numbers can't be called with a shape alone: the sentence says which one it is. */
TEST(layers_that_look_at_values_are_named) {
    char text[3000];
    if (getenv("FLUX_EAGER")) SKIP("all is computed here, on zeros");
    flux_layer *m = flux_chain(flux_dense(4, 4), flux_chain(flux_dense(4, 4), flux_named("second", flux_new(peek, .limit = flux_ones(1)))));
    CHECK_ERROR(flux_outputsize(m, 4, 2), "second = Peek(1-element f32) looks at a value, but a placeholder (4x2 f32) has no value: ");
    CHECK_ERROR(flux_summary_text(m, FLUX_SHAPE(4, 2), text, sizeof text), "second = Peek(1-element f32) looks at a value");
    CHECK(flux_outputsize(flux_dense(4, 3), 4, 2).dim[0] == 3);
}

TEST(sequence_models_save_load_and_copy) {
    const char *path = "build/test_layers_seq.safetensors";
    flux_layer *m = small_model(), *n = small_model(), *c = flux_copy_layer(m);
    const int32_t words[] = { 1, 5, 9, 0, 7, 3 };
    flux_tensor *x = flux_from(words, 3, 2), *y = flux_call(m, x);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(y, flux_call(n, x))))) > 0);
    CHECK(flux_save(m, path) == 0 && flux_load(n, path) == 0);
    remove(path);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(y, flux_call(n, x))))) == 0);
    CHECK(flux_item(flux_max(flux_abs(flux_sub(y, flux_call(c, x))))) == 0);
    flux_layer *back = flux_restructure(m, flux_destructure(m));
    CHECK(flux_item(flux_max(flux_abs(flux_sub(y, flux_call(back, x))))) == 0);
}

TEST(picture_of_a_schedule) {
    char text[4000] = "";
    if (getenv("FLUX_EAGER")) SKIP("with FLUX_EAGER all is computed already");
    const char *path = "build/test_layers_seq.dot";
    flux_tensor *x = flux_randn(4, 3), *y = flux_sum(flux_call(flux_dense(4, 2, flux_tanh), x));
    CHECK(flux_graph_dot(y, path) == 0);
    FILE *f = fopen(path, "r");
    REQUIRE(f != NULL);
    CHECK(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    remove(path);
    CHECK(strstr(text, "digraph schedule {") == text && strstr(text, "product 2x3 inner 4:") && strstr(text, "fused 2x3: add tanh sum") && strstr(text, "->"));
    CHECK_ERROR(flux_graph_dot(NULL, path), "graph_dot: argument x is NULL");
    CHECK_ERROR(flux_graph_dot(y, "build/no/such/folder.dot"), "graph_dot: cannot open build/no/such/folder.dot");
}

/* A layer without a bias is the one whose bias is 0, which it is at the start. */
static flux_layer *biased(int i, bool on) {
    const flux_switch bias = on ? FLUX_ON : FLUX_OFF;
    switch (i) {
    case 0: return flux_dense(3, 4, flux_tanh, .bias = bias);
    case 1: return flux_scale(FLUX_SHAPE(3), flux_tanh, .bias = bias);
    case 2: return flux_bilinear(3, 3, 4, flux_tanh, .bias = bias);
    case 3: return flux_rnncell(3, 4, .bias = bias);
    case 4: return flux_lstmcell(3, 4, .bias = bias);
    case 5: return flux_grucell(3, 4, .bias = bias);
    case 6: return flux_gruv3cell(3, 4, .bias = bias);
    case 7: return flux_rnn(3, 4, .bias = bias);
    case 8: return flux_lstm(3, 4, .bias = bias);
    case 9: return flux_gru(3, 4, .bias = bias);
    case 10: return flux_gruv3(3, 4, .bias = bias);
    case 11: return flux_multiheadattention(3, .nheads = 1, .bias = on);
    case 12: return flux_swiglu(3, 4, .bias = on);
    case 13: return flux_conv_layer(FLUX_SHAPE(2), 5, 4, flux_tanh, .bias = bias);
    case 14: return flux_crosscor_layer(FLUX_SHAPE(2), 5, 4, .bias = bias);
    case 15: return flux_depthwiseconv(FLUX_SHAPE(2), 5, 5, .bias = bias);
    default: return flux_conv_transpose_layer(FLUX_SHAPE(2), 5, 4, .bias = bias);
    }
}
TEST(no_bias_is_a_bias_of_0) {
    for (int i = 0; i <= 16; i++) FLUX_SCOPE {
        flux_tensor *x = flux_reshape(flux_sin(flux_arange(0, 15, 1)), 3, 5), *y[2], *g[2];
        if (i > 12) x = flux_reshape(x, 3, 5, 1);
        int64_t numbers[2];
        for (int on = 0; on < 2; on++) {
            flux_seed(3);
            flux_layer *m = flux_to(test_device, biased(i, on));
            numbers[on] = flux_num_params(m);
            y[on] = flux_nth(flux_call(m, flux_to(test_device, x)), 0);
            flux_tensor *at = flux_to(test_device, flux_copy(x));
            g[on] = flux_grad(flux_gradient(flux_sum(flux_square(flux_nth(flux_call(m, at), 0))), at), at);
        }
        const bool same = y[0] && y[1] && g[0] && g[1] && flux_item(flux_max(flux_abs(flux_sub(y[0], y[1])))) == 0 &&
                          flux_item(flux_max(flux_abs(flux_sub(g[0], g[1])))) <= 1e-6;
        if (!CHECK(same && numbers[1] > numbers[0])) fprintf(stderr, "    layer %d\n", i);
    }
}

TEST(scaled_loss_needs_its_arguments) {
    CHECK_ERROR(flux_scaled_loss(NULL, flux_ones(1)), "scaled_loss: argument state is NULL");
    CHECK_ERROR(flux_loss_scale(NULL), "loss_scale: argument state is NULL");
    CHECK_ERROR(flux_skipped(NULL), "skipped: argument state is NULL");
}
TEST_MAIN()
