#ifndef FLUX__API_LAYERS_H
#define FLUX__API_LAYERS_H
#include "models.h"

/* ------------------------------------------------------------------ initialisers
   Each makes a float32 tensor of the given shape, with Flux's formulas. Fan-in and fan-out depend
   on the shape: n and 1 for a vector are (1, n); for a matrix out x in they are in and out; for a
   kernel window... x in x out they are in and out times the size of the window. U(a, b) is uniform
   from a to b, N normal with mean 0. */

typedef struct flux_init_opts {
    FLUX__DUMMY
    flux_shape shape FLUX__ZERO;          /* as for the layer's weight */
    flux__double gain FLUX__ZERO;         /* scales all with a fan-in, orthogonal, identity */
    double mean FLUX__ZERO;   /* of truncated_normal, with its .std and bounds .lo, .hi */
    flux__double std FLUX__ZERO, lo FLUX__ZERO, hi FLUX__ZERO;
    double sparsity FLUX__ZERO;           /* sparse: the part of each column that is 0, 0 to 1 */
    int shift FLUX__ZERO;                 /* identity_init: how far the ones are shifted */
    flux__marked marked FLUX__ZERO;
} flux_init_opts;
#define FLUX__LEFT_OUT_flux_init_opts .gain = FLUX__NO_NUMBER, .std = FLUX__NO_NUMBER, \
    .lo = FLUX__NO_NUMBER, .hi = FLUX__NO_NUMBER, .marked = true,
typedef flux_tensor *(*flux_init_fn)(flux_shape s);               /* the type of a layer's .init */
/* U(-a, a), a = sqrt(6/(fan_in+fan_out)) */
FLUX_API flux_tensor *flux_glorot_uniform(flux_shape s);
/* N, std sqrt(2/(fan_in+fan_out)) */
FLUX_API flux_tensor *flux_glorot_normal(flux_shape s);
/* U(-a, a), a = sqrt(6/fan_in) */
FLUX_API flux_tensor *flux_kaiming_uniform(flux_shape s);
/* N, std sqrt(2/fan_in) */
FLUX_API flux_tensor *flux_kaiming_normal(flux_shape s);
/* N, std 1, cut at -2 and 2 */
FLUX_API flux_tensor *flux_truncated_normal(flux_shape s);
/* truncated N, std sqrt(1/fan_in) */
FLUX_API flux_tensor *flux_lecun_normal(flux_shape s);
/* orthonormal rows or columns */
FLUX_API flux_tensor *flux_orthogonal(flux_shape s);
/* 1 on the diagonal or, for a kernel, at its centre from channel i to channel i; 0 elsewhere. */
FLUX_API flux_tensor *flux_identity_init(flux_shape s);
/* Zeros. */
FLUX_API flux_tensor *flux_zeros32(flux_shape s);
/* Ones. */
FLUX_API flux_tensor *flux_ones32(flux_shape s);
/* Uniform in [0, 1). */
FLUX_API flux_tensor *flux_rand32(flux_shape s);
/* Standard normal. */
FLUX_API flux_tensor *flux_randn32(flux_shape s);
/* An initialiser by name, with parameters:
   flux_init("kaiming_normal", FLUX_SHAPE(64, 784), .gain = 1). "sparse" is available only here: a
   normal matrix (.std 0.01 by default) in which the part .sparsity of each column is 0. An unknown
   name, or a value that makes no sense, is an error. */
FLUX_API flux_tensor *flux_init_with(const char *name, flux_init_opts o);
#define flux_init(name, ...) \
    /* An initialiser by name: flux_init("kaiming_normal", FLUX_SHAPE(64, 784), .gain = 1). */ \
    flux_init_with(name, FLUX__OPTS(flux_init_opts, __VA_ARGS__))

/* ------------------------------------------------------------------ layers
   Each call makes a layer, for flux_call(layer, x) and flux_chain; NULL on error (a size below 1,
   an option that does not fit). Sizes come first, then options:
   flux_dense(10, 5, flux_tanh, .bias = FLUX_OFF). Unless the field says otherwise, .bias is on by
   default, .init NULL means flux_glorot_uniform, and .activation NULL the identity.
   Inputs are features x batch; further trailing dimensions count as batch. The input is converted
   to the dtype of the weight (with a warning, once, if that loses precision). An input of the wrong
   size is an error when the layer is called. */

typedef struct flux_dense_opts {
    FLUX__DUMMY
    flux__int64 in FLUX__ZERO, out FLUX__ZERO; /* features in and out */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch bias FLUX__ZERO;         /* adds b; on by default */
    flux_init_fn init FLUX__ZERO;         /* of the weight; NULL: flux_glorot_uniform */
    /* Your own weight (out x in) and bias (out); with a weight, .in and .out may be left out. */
    flux_tensor *weight FLUX__ZERO;
    FLUX__RENAMED(flux_tensor *, bias_tensor, b);
    flux__marked marked FLUX__ZERO;
} flux_dense_opts;
#define FLUX__LEFT_OUT_flux_dense_opts .in = FLUX__NO_INT64, .out = FLUX__NO_INT64, \
    .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_dense_with(flux_dense_opts o);
#define flux_dense(...) \
    /* in x batch... to out x batch...: activation(W x + b), W being out x in. */ \
    flux_dense_with(FLUX__OPTS(flux_dense_opts, __VA_ARGS__))

typedef struct flux_scale_opts {
    FLUX__DUMMY
    flux_shape size FLUX__ZERO;           /* of s and b, broadcast with the input */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch bias FLUX__ZERO;         /* adds b; on by default */
    flux_init_fn init FLUX__ZERO;         /* NULL: ones */
    flux__marked marked FLUX__ZERO;
} flux_scale_opts;
#define FLUX__LEFT_OUT_flux_scale_opts .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_scale_with(flux_scale_opts o);
#define flux_scale(...) \
    /* activation(s .* x .+ b), elementwise: flux_scale(FLUX_SHAPE(3)). */ \
    flux_scale_with(FLUX__OPTS(flux_scale_opts, __VA_ARGS__))

typedef struct flux_bilinear_opts {
    FLUX__DUMMY
    int64_t in1 FLUX__ZERO, in2 FLUX__ZERO, out FLUX__ZERO; /* features of x, y and z */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch bias FLUX__ZERO;         /* adds b; on by default */
    flux_init_fn init FLUX__ZERO;         /* of W; NULL: flux_glorot_uniform */
    flux__marked marked FLUX__ZERO;
} flux_bilinear_opts;
#define FLUX__LEFT_OUT_flux_bilinear_opts .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_bilinear_with(flux_bilinear_opts o);
#define flux_bilinear(...) \
    /* flux_call(m, x, y): z[o] = activation(sum_ij x[i] W[o,i,j] y[j] + b[o]), for each sample; x
       is in1 x batch..., y in2 x batch..., z out x batch.... With one input, y is x. */ \
    flux_bilinear_with(FLUX__OPTS(flux_bilinear_opts, __VA_ARGS__))

typedef struct flux_embedding_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, out FLUX__ZERO; /* how many vectors, and of what length */
    flux_init_fn init FLUX__ZERO;         /* NULL: randn32 */
    flux__switch pad FLUX__ZERO;          /* the column .padding_idx is zero and stays so; on if a
                                             .padding_idx is given */
    flux__int64 padding_idx FLUX__ZERO;   /* default 0 */
    flux__marked marked FLUX__ZERO;
} flux_embedding_opts;
#define FLUX__LEFT_OUT_flux_embedding_opts .pad = FLUX_DEFAULT, .padding_idx = FLUX__NO_INT64, \
    .marked = true,
FLUX_API flux_layer *flux_embedding_with(flux_embedding_opts o);
#define flux_embedding(...) \
    /* A table of `in` vectors of `out` numbers. Integer indices 0 ... in-1 of any shape give out
       x that shape; one-hot columns (bool, in x ...) give out x .... */ \
    flux_embedding_with(FLUX__OPTS(flux_embedding_opts, __VA_ARGS__))

typedef struct flux_embeddingbag_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, out FLUX__ZERO; /* how many vectors, and of what length */
    flux_fn reduction FLUX__ZERO;         /* flux_mean (NULL), flux_sum or flux_max */
    flux_init_fn init FLUX__ZERO;         /* NULL: randn32 */
} flux_embeddingbag_opts;
#define FLUX__LEFT_OUT_flux_embeddingbag_opts
FLUX_API flux_layer *flux_embeddingbag_with(flux_embeddingbag_opts o);
#define flux_embeddingbag(...) \
    /* An embedding reduced over bags. A matrix of integer indices, each column a bag, gives out x
       bags; so does flux_call(m, indices, offsets): a vector of indices, and for each bag where
       it starts there (the first offset is 0, and each bag has at least one index). */ \
    flux_embeddingbag_with(FLUX__OPTS(flux_embeddingbag_opts, __VA_ARGS__))

/* Recurrent layers map in x steps (x batch) to out x steps (x batch). flux_call(m, x) starts from a
   state of zeros; flux_call(m, x, h), for an LSTM flux_call(m, x, h, c), starts from your own
   state, each out (x batch). With .return_state the result is a flux_tuple of the output and the
   last state. A cell makes one step: it takes x, in (x batch), and perhaps the state, and gives the
   tuple (y, h), or (y, h, c) for an LSTM. Wi (n out x in), Wh (n out x out) and b (n out) hold the
   rows of n gates, in the order given below. The formulas are Flux's. */
typedef struct flux_recurrent_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, out FLUX__ZERO; /* features in, and of the state */
    flux_fn activation FLUX__ZERO;        /* rnn only; NULL: tanh */
    flux__switch bias FLUX__ZERO;         /* adds b; on by default */
    flux_init_fn init FLUX__ZERO, init_recurrent FLUX__ZERO;   /* of Wi and of Wh */
    bool return_state FLUX__ZERO;         /* not for cells, which always give it */
    bool hidden_bias FLUX__ZERO;          /* gru: its candidate is tanh(Wi x + r .* (Wh h + bias_h)
                                             + b), as in PyTorch */
    flux__marked marked FLUX__ZERO;
} flux_recurrent_opts;
#define FLUX__LEFT_OUT_flux_recurrent_opts .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_rnn_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_lstm_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_gru_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_gruv3_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_rnncell_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_lstmcell_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_grucell_with(flux_recurrent_opts o);
FLUX_API flux_layer *flux_gruv3cell_with(flux_recurrent_opts o);
#define FLUX__RECURRENT(f, ...) f(FLUX__OPTS(flux_recurrent_opts, __VA_ARGS__))
#define flux_rnn(...) \
    /* RNN over steps, in x steps (x batch) to out x steps (x batch): h = activation(Wi x + Wh h +
       b). */ \
    FLUX__RECURRENT(flux_rnn_with, __VA_ARGS__)
#define flux_lstm(...) \
    /* LSTM over steps, in x steps (x batch) to out x steps (x batch); gates: input, forget, cell,
       output. */ \
    FLUX__RECURRENT(flux_lstm_with, __VA_ARGS__)
/* Gates: reset r, update, candidate. The candidate is tanh(Wi x + r .* (Wh h) + b). In gruv3 it is
   tanh(Wi x + Wh_h (r .* h) + b), Wh_h being a matrix of its own, out x out. */
#define flux_gru(...) \
    /* GRU over steps, in x steps (x batch) to out x steps (x batch). */ \
    FLUX__RECURRENT(flux_gru_with, __VA_ARGS__)
#define flux_gruv3(...) \
    /* GRU in its third version (Cho et al. 2014, v3), over steps. */ \
    FLUX__RECURRENT(flux_gruv3_with, __VA_ARGS__)
#define flux_rnncell(...) \
    /* One step of flux_rnn: x and h to the tuple (y, h). */ \
    FLUX__RECURRENT(flux_rnncell_with, __VA_ARGS__)
#define flux_lstmcell(...) \
    /* One step of flux_lstm: x, h and c to the tuple (y, h, c). */ \
    FLUX__RECURRENT(flux_lstmcell_with, __VA_ARGS__)
#define flux_grucell(...) \
    /* One step of flux_gru: x and h to the tuple (y, h). */ \
    FLUX__RECURRENT(flux_grucell_with, __VA_ARGS__)
#define flux_gruv3cell(...) \
    /* One step of flux_gruv3: x and h to the tuple (y, h). */ \
    FLUX__RECURRENT(flux_gruv3cell_with, __VA_ARGS__)
typedef struct flux_recurrence_opts {
    FLUX__DUMMY
    flux_layer *cell FLUX__ZERO;          /* what makes one step */
    bool return_state FLUX__ZERO;         /* gives the tuple (y, state...) */
} flux_recurrence_opts;
#define FLUX__LEFT_OUT_flux_recurrence_opts
FLUX_API flux_layer *flux_recurrence_with(flux_recurrence_opts o);
#define flux_recurrence(...) \
    /* Runs any cell, also one of your own, over features x steps (x batch). The cell is called
       with the x of the first step, then with x and the state, and gives a tuple (y, state...),
       of up to 7 states. */ \
    flux_recurrence_with(FLUX__OPTS(flux_recurrence_opts, __VA_ARGS__))

typedef struct flux_multiheadattention_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO;                /* features of the queries */
    flux__int nheads FLUX__ZERO;          /* default 8; must divide .qk and .v */
    /* Features after projection: of queries and keys (default .in), of values (default .qk), and of
       the result (default .in). */
    flux__int64 qk FLUX__ZERO, v FLUX__ZERO, out FLUX__ZERO;
    flux__int64 k_in FLUX__ZERO, v_in FLUX__ZERO;   /* features of keys and values; default .in */
    bool bias FLUX__ZERO;                 /* of the projections; off by default */
    /* No query sees a later key. With more keys than queries the queries are the last steps: the
       last of them sees all keys. */
    bool causal FLUX__ZERO;
    flux__switch scores FLUX__ZERO;   /* FLUX_OFF: gives y alone, so that it fits into a chain */
    double dropout FLUX__ZERO;            /* the part of the scores that is dropped in training */
    flux_init_fn init FLUX__ZERO;         /* of the projections; NULL: flux_glorot_uniform */
    /* Keys and values have so many heads, each for .nheads / .kv_heads heads of queries (grouped
       heads, Ainslie et al. 2023); default .nheads. It must divide .nheads. */
    flux__int kv_heads FLUX__ZERO;
    double rotary FLUX__ZERO;   /* the base of rotary positions (flux_rotary), 10000; 0: none */
    flux__marked marked FLUX__ZERO;
} flux_multiheadattention_opts;
#define FLUX__LEFT_OUT_flux_multiheadattention_opts .nheads = FLUX__NO_INT, .qk = FLUX__NO_INT64, \
    .v = FLUX__NO_INT64, .out = FLUX__NO_INT64, .k_in = FLUX__NO_INT64, .v_in = FLUX__NO_INT64,   \
    .scores = FLUX_DEFAULT, .kv_heads = FLUX__NO_INT, .marked = true,
FLUX_API flux_layer *flux_multiheadattention_with(flux_multiheadattention_opts o);
#define flux_multiheadattention(...) \
    /* Multi-head attention (Vaswani et al. 2017). flux_call(m, x) attends from x to itself;
       flux_call(m, q, kv) and flux_call(m, q, k, v) from the queries q to the keys k and values
       v, each features x steps (x batch). A fourth input is a mask (bool, true where a key may be
       seen) or a bias (added to the logits), which broadcasts to keys x queries x heads x batch.
       The result is a flux_tuple: y (out x queries x batch) and the scores (keys x queries x
       heads x batch). y is computed without storing the scores; they take time and memory only if
       they are looked at. Dropout of the scores takes a byte for each. For a query that may see no
       key, because of its mask or a bias of -inf, the scores, the values (before the output
       projection) and their gradients are 0. */ \
    flux_multiheadattention_with(FLUX__OPTS(flux_multiheadattention_opts, __VA_ARGS__))
typedef struct flux_attention_opts {
    FLUX__DUMMY
    flux_tensor *q FLUX__ZERO, *k FLUX__ZERO, *v FLUX__ZERO;   /* features x steps (x batch) */
    flux__int nheads FLUX__ZERO;           /* default 1 */
    flux_tensor *bias FLUX__ZERO, *mask FLUX__ZERO;   /* as above */
    flux_layer *drop FLUX__ZERO;          /* applied to the scores: a flux_dropout, or another
                                             layer, for which all scores are stored */
    bool causal FLUX__ZERO;   /* as above; with fewer keys than queries the first see none */
    flux__marked marked FLUX__ZERO;
} flux_attention_opts;
#define FLUX__LEFT_OUT_flux_attention_opts .nheads = FLUX__NO_INT, .marked = true,
FLUX_API flux_tensor *flux_dot_product_attention_with(flux_attention_opts o);
FLUX_API flux_tensor *flux_dot_product_attention_scores_with(flux_attention_opts o);
#define flux_dot_product_attention(...) \
    /* Attention without projections, as an operation: flux_dot_product_attention(q, k, v, .nheads
       = 4) gives the tuple (y, scores), y being (features of v) x queries x batch. */ \
    flux_dot_product_attention_with(FLUX__OPTS(flux_attention_opts, __VA_ARGS__))
#define flux_dot_product_attention_scores(...) \
    /* The scores alone, keys x queries x heads x batch: the softmax over the keys of k'q /
       sqrt(n), where n is the number of features of a head. */ \
    flux_dot_product_attention_scores_with(FLUX__OPTS(flux_attention_opts, __VA_ARGS__))
/* The bool mask steps x steps for x, features x steps (x batch): true where key <= query. */
FLUX_API flux_tensor *flux_make_causal_mask(flux_tensor *x);

typedef struct flux_rotary_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;            /* features x steps (x batch) */
    flux__int nheads FLUX__ZERO;          /* default 1; each has an even number of features */
    flux__double base FLUX__ZERO;         /* default 10000 */
    flux_tensor *positions FLUX__ZERO;    /* of the steps, a vector; default 0, 1, ... */
    flux__marked marked FLUX__ZERO;
} flux_rotary_opts;
#define FLUX__LEFT_OUT_flux_rotary_opts .nheads = FLUX__NO_INT, .base = FLUX__NO_NUMBER, \
    .marked = true,
FLUX_API flux_tensor *flux_rotary_with(flux_rotary_opts o);
#define flux_rotary(...) \
    /* Positions by turning (Su et al. 2021): x, features x steps (x batch), with the features of
       each head taken as pairs, (i, i + half of them), turned by the angle position * base^(-2i /
       features of a head). The scores of queries and keys turned so depend on the distance of
       their steps. flux_rotary(q, .nheads = 8). */ \
    flux_rotary_with(FLUX__OPTS(flux_rotary_opts, __VA_ARGS__))

typedef struct flux_positionembedding_opts {
    FLUX__DUMMY
    int64_t steps FLUX__ZERO, features FLUX__ZERO; /* at most so many steps; of each */
    flux_init_fn init FLUX__ZERO;         /* NULL: randn32 */
} flux_positionembedding_opts;
#define FLUX__LEFT_OUT_flux_positionembedding_opts
FLUX_API flux_layer *flux_positionembedding_with(flux_positionembedding_opts o);
#define flux_positionembedding(...) \
    /* Learnt positions: x, features x steps (x batch), plus a vector for each step:
       flux_positionembedding(64, 10). */ \
    flux_positionembedding_with(FLUX__OPTS(flux_positionembedding_opts, __VA_ARGS__))

/* Writing on: a model of text that is called step after step, without doing again what it did for
   the steps before.
       flux_cache(model, 512);
       FLUX_INFER flux_call(model, prompt);            features or indices x steps (x batch)
       flux_times (i, n) FLUX_INFER ... flux_call(model, one step) ...
   From flux_cache on each call, under FLUX_INFER or FLUX_NOGRAD, takes the steps that follow those
   of the calls before, and gives the results of these: causal MultiHeadAttentions keep the keys and
   values of earlier steps in their state, and learnt and rotary positions go on. More than `steps`
   in all are an error. flux_cache again begins a text anew; steps = 0 ends it, as is wanted before
   training and saving. 0, or non-zero on an error, as for an attention to itself that is not
   causal. flux_cached: how many steps were taken since; 0 without a cache. */
FLUX_API int flux_cache(flux_layer *model, int64_t steps);
/* How many steps were taken since flux_cache; 0 without a cache. */
FLUX_API int64_t flux_cached(flux_layer *model);

typedef struct flux_swiglu_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, hidden FLUX__ZERO; /* features in and between */
    flux__int64 out FLUX__ZERO;           /* default .in */
    bool bias FLUX__ZERO;                 /* of the Dense layers; off by default */
    flux_init_fn init FLUX__ZERO;         /* of the weights; NULL: flux_glorot_uniform */
    flux__marked marked FLUX__ZERO;
} flux_swiglu_opts;
#define FLUX__LEFT_OUT_flux_swiglu_opts .out = FLUX__NO_INT64, .marked = true,
FLUX_API flux_layer *flux_swiglu_with(flux_swiglu_opts o);
#define flux_swiglu(...) \
    /* down(swish(gate(x)) * up(x)) (Shazeer 2020) with three Dense layers, `in => hidden` twice
       and `hidden => out`: flux_swiglu(64, 256). */ \
    flux_swiglu_with(FLUX__OPTS(flux_swiglu_opts, __VA_ARGS__))

typedef struct flux_rmsnorm_opts {
    FLUX__DUMMY
    flux_shape size FLUX__ZERO;           /* of the first dimensions, normalised together */
    flux__switch affine FLUX__ZERO;       /* has a scale of that size; on by default */
    flux__double eps FLUX__ZERO;          /* default 1e-6 */
    flux__marked marked FLUX__ZERO;
} flux_rmsnorm_opts;
#define FLUX__LEFT_OUT_flux_rmsnorm_opts .affine = FLUX_DEFAULT, .eps = FLUX__NO_NUMBER, \
    .marked = true,
FLUX_API flux_layer *flux_rmsnorm_with(flux_rmsnorm_opts o);
#define flux_rmsnorm(...) \
    /* x / sqrt(mean(x^2) + eps) of each sample over its first dims, times a scale (Zhang and
       Sennrich 2019): flux_rmsnorm(FLUX_SHAPE(64)). */ \
    flux_rmsnorm_with(FLUX__OPTS(flux_rmsnorm_opts, __VA_ARGS__))

typedef struct flux_layernorm_opts {
    FLUX__DUMMY
    flux_shape size FLUX__ZERO;           /* of the first dimensions, normalised together */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch affine FLUX__ZERO;       /* has a scale and a bias of that size; on by default */
    flux__double eps FLUX__ZERO;          /* added to the variance; default 1e-5 */
    flux__marked marked FLUX__ZERO;
} flux_layernorm_opts;
#define FLUX__LEFT_OUT_flux_layernorm_opts .affine = FLUX_DEFAULT, .eps = FLUX__NO_NUMBER, \
    .marked = true,
FLUX_API flux_layer *flux_layernorm_with(flux_layernorm_opts o);
#define flux_layernorm(...) \
    /* (x - mean) / sqrt(var + eps) of each sample: flux_layernorm(FLUX_SHAPE(64)). */ \
    flux_layernorm_with(FLUX__OPTS(flux_layernorm_opts, __VA_ARGS__))

typedef struct flux_dropout_opts {
    FLUX__DUMMY
    double p FLUX__ZERO;                  /* the probability that a value is dropped, 0 to 1 */
    flux_shape dims FLUX__ZERO;   /* the dimensions along which the mask varies; default all */
} flux_dropout_opts;
#define FLUX__LEFT_OUT_flux_dropout_opts
FLUX_API flux_layer *flux_dropout_with(flux_dropout_opts o);
/* Keeps mean and variance under selu. */
FLUX_API flux_layer *flux_alphadropout(double p);
#define flux_dropout(...) \
    /* In training, sets values to 0 at random and scales the others by 1/(1-p); in test mode, the
       identity. */ \
    flux_dropout_with(FLUX__OPTS(flux_dropout_opts, __VA_ARGS__))

/* Convolution layers. Images are w (x h (x d)) x channels x batch; one number of .stride, .pad or
   .dilation counts for every spatial dimension. The name of a layer ends in _layer where an
   operation has the name without it: flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8, flux_relu). Where the
   first argument is a FLUX_SHAPE(...), as here, the name without _layer is the layer, too:
   flux_conv(FLUX_SHAPE(3, 3), 1, 8, flux_relu), flux_maxpool(FLUX_SHAPE(2, 2)). A shape in a
   variable, which a macro can't tell from a tensor, needs the full name:
   flux_conv_layer(w, 1, 8). */
typedef struct flux_conv_layer_opts {
    FLUX__DUMMY
    flux_shape window FLUX__ZERO;         /* FLUX_SHAPE(3, 3): one number per spatial dimension */
    int64_t in FLUX__ZERO, out FLUX__ZERO;   /* channels */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    /* As in flux_conv_opts. */
    flux_shape stride FLUX__ZERO, pad FLUX__ZERO, dilation FLUX__ZERO, outpad FLUX__ZERO;
    flux__int groups FLUX__ZERO;          /* default 1; divides both channels */
    flux__switch bias FLUX__ZERO;         /* adds b, one number a channel; on by default */
    flux_init_fn init FLUX__ZERO;         /* of the weight; NULL: flux_glorot_uniform */
    flux__marked marked FLUX__ZERO;
} flux_conv_layer_opts;
#define FLUX__LEFT_OUT_flux_conv_layer_opts .groups = FLUX__NO_INT, .bias = FLUX_DEFAULT, \
    .marked = true,
FLUX_API flux_layer *flux_conv_layer_with(flux_conv_layer_opts o);
FLUX_API flux_layer *flux_crosscor_layer_with(flux_conv_layer_opts o);
FLUX_API flux_layer *flux_conv_transpose_layer_with(flux_conv_layer_opts o);
FLUX_API flux_layer *flux_depthwiseconv_with(flux_conv_layer_opts o);
/* activation(conv(x) + b); the weight is window... x in/groups x out, in conv_transpose_layer
   window... x out/groups x in. depthwiseconv is conv_layer with .groups = in. */
#define flux_conv_layer(...) \
    /* activation(conv(x) + b), kernels flipped: flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8). */ \
    flux_conv_layer_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))
#define flux_crosscor_layer(...) \
    /* activation(crosscor(x) + b), kernels as they are, as PyTorch's Conv. */ \
    flux_crosscor_layer_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))
#define flux_conv_transpose_layer(...) \
    /* activation(conv_transpose(x) + b), to larger images. */ \
    flux_conv_transpose_layer_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))
#define flux_depthwiseconv(...) \
    /* flux_conv_layer with .groups = in: each channel by itself. */ \
    flux_depthwiseconv_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))

typedef struct flux_pool_layer_opts {
    FLUX__DUMMY
    flux_shape window FLUX__ZERO;         /* one number per spatial dimension */
    flux_shape stride FLUX__ZERO;         /* default: the window */
    flux_shape pad FLUX__ZERO;            /* as in flux_conv_opts */
    flux__double p FLUX__ZERO;            /* lpnormpool_layer only: default 2 */
    flux__marked marked FLUX__ZERO;
} flux_pool_layer_opts;
#define FLUX__LEFT_OUT_flux_pool_layer_opts .p = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_layer *flux_maxpool_layer_with(flux_pool_layer_opts o);
FLUX_API flux_layer *flux_meanpool_layer_with(flux_pool_layer_opts o);
FLUX_API flux_layer *flux_lpnormpool_layer_with(flux_pool_layer_opts o);
/* Pooling as by flux_maxpool and its siblings: flux_maxpool_layer(FLUX_SHAPE(2, 2)). */
#define flux_maxpool_layer(...) \
    /* The largest value of each window: flux_maxpool_layer(FLUX_SHAPE(2, 2)). */ \
    flux_maxpool_layer_with(FLUX__OPTS(flux_pool_layer_opts, __VA_ARGS__))
#define flux_meanpool_layer(...) \
    /* The mean of each window. */ \
    flux_meanpool_layer_with(FLUX__OPTS(flux_pool_layer_opts, __VA_ARGS__))
#define flux_lpnormpool_layer(...) \
    /* (sum x^p)^(1/p) of each window. */ \
    flux_lpnormpool_layer_with(FLUX__OPTS(flux_pool_layer_opts, __VA_ARGS__))
/* Pooling with the stride and window for which the result's spatial size is out. */
FLUX_API flux_layer *flux_adaptivemaxpool(flux_shape out);
/* Mean pooling to the spatial size out. */
FLUX_API flux_layer *flux_adaptivemeanpool(flux_shape out);
/* Pooling over the whole image, to 1 (x 1 (x 1)) x channels x batch. */
FLUX_API flux_layer *flux_globalmaxpool(void);
/* The mean of each channel, 1 (x 1 (x 1)) x channels x batch. */
FLUX_API flux_layer *flux_globalmeanpool(void);
/* (sum x^p)^(1/p) of each channel. */
FLUX_API flux_layer *flux_globallpnormpool(double p);

/* FLUX_NEAREST works on 1 to 3 spatial dimensions, FLUX_LINEAR on 1, FLUX_BILINEAR on 2 and
   FLUX_TRILINEAR on 3. */
typedef enum flux_upsampling {
    FLUX_NEAREST, FLUX_LINEAR, FLUX_BILINEAR, FLUX_TRILINEAR
} flux_upsampling;
typedef struct flux_upsample_opts {
    FLUX__DUMMY
    flux_upsampling mode FLUX__ZERO;      /* default FLUX_NEAREST */
    double scale[3] FLUX__ZERO;           /* {2}: for every spatial dimension; {2, 3}: one for each;
                                             with FLUX_NEAREST, integers */
    flux_shape size FLUX__ZERO;           /* or the spatial size to reach; with FLUX_NEAREST, a
                                             multiple of the input's; give one of the two */
} flux_upsample_opts;
#define FLUX__LEFT_OUT_flux_upsample_opts
FLUX_API flux_layer *flux_upsample_with(flux_upsample_opts o);
#define flux_upsample(...) \
    /* flux_upsample(FLUX_BILINEAR, .scale = {2}). The linear modes keep the corners: sample i of
       n is taken at the place i (in-1)/(n-1) of the `in` input samples. */ \
    flux_upsample_with(FLUX__OPTS(flux_upsample_opts, __VA_ARGS__))
/* w x h x c r^2 x batch becomes w r x h r x c x batch. */
FLUX_API flux_layer *flux_pixelshuffle(int64_t r);

/* Normalisation over batch, sample or group: (x - mean) / sqrt(var + eps), then .* gamma .+ beta
   and the activation; the shape stays. In train mode mean and var are those of the input, and the
   running ones move towards them by .momentum; in test mode the running ones are used. */
typedef struct flux_norm_opts {
    FLUX__DUMMY
    int64_t channels FLUX__ZERO;          /* the size of the last dimension but one */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch affine FLUX__ZERO;       /* has gamma and beta; default on, of instancenorm off */
    flux__switch track_stats FLUX__ZERO;  /* has a running mean and var; default as .affine's */
    flux__double eps FLUX__ZERO, momentum FLUX__ZERO;   /* default 1e-5, 0.1 */
    flux_init_fn init_beta FLUX__ZERO, init_gamma FLUX__ZERO;   /* NULL: zeros, ones */
    flux__marked marked FLUX__ZERO;
} flux_norm_opts;
#define FLUX__LEFT_OUT_flux_norm_opts .affine = FLUX_DEFAULT, .track_stats = FLUX_DEFAULT, \
    .eps = FLUX__NO_NUMBER, .momentum = FLUX__NO_NUMBER, .marked = true,
typedef struct flux_groupnorm_opts {
    FLUX__DUMMY
    int64_t channels FLUX__ZERO, groups FLUX__ZERO;   /* groups must divide channels */
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch affine FLUX__ZERO;       /* has gamma and beta; on by default */
    flux__double eps FLUX__ZERO;          /* default 1e-5 */
    flux__marked marked FLUX__ZERO;
} flux_groupnorm_opts;
#define FLUX__LEFT_OUT_flux_groupnorm_opts .affine = FLUX_DEFAULT, .eps = FLUX__NO_NUMBER, \
    .marked = true,
FLUX_API flux_layer *flux_batchnorm_with(flux_norm_opts o);
FLUX_API flux_layer *flux_instancenorm_with(flux_norm_opts o);
FLUX_API flux_layer *flux_groupnorm_with(flux_groupnorm_opts o);
#define flux_batchnorm(...) \
    /* Normalises the values of a channel in all samples of a batch. */ \
    flux_batchnorm_with(FLUX__OPTS(flux_norm_opts, __VA_ARGS__))
#define flux_instancenorm(...) \
    /* Normalises the values of a channel in one sample. */ \
    flux_instancenorm_with(FLUX__OPTS(flux_norm_opts, __VA_ARGS__))
#define flux_groupnorm(...) \
    /* Normalises a group of channels in one sample: flux_groupnorm(8, 2) has 2 groups of 4
       channels. x has 1 to 3 spatial dims, then channels and batch. */ \
    flux_groupnorm_with(FLUX__OPTS(flux_groupnorm_opts, __VA_ARGS__))

typedef struct flux_weightnorm_opts {
    FLUX__DUMMY
    flux_layer *layer FLUX__ZERO;         /* whose weight it is */
    const char *which FLUX__ZERO;         /* which of its tensors; NULL: "weight" */
    flux_shape dims FLUX__ZERO;   /* the dimensions over which the norm sums; default: the last */
} flux_weightnorm_opts;
#define FLUX__LEFT_OUT_flux_weightnorm_opts
FLUX_API flux_layer *flux_weightnorm_with(flux_weightnorm_opts o);
#define flux_weightnorm(...) \
    /* A layer that uses g v/sqrt(sum(v^2) + eps) in place of the given layer's weight, so that
       length g and direction v are trained separately (Salimans and Kingma 2016). The weight of
       that layer becomes v. */ \
    flux_weightnorm_with(FLUX__OPTS(flux_weightnorm_opts, __VA_ARGS__))
/* A new model in which each weightnorm is replaced by its layer, with the product as its weight. */
FLUX_API flux_layer *flux_remove_weightnorms(flux_layer *m);

/* Containers, of 255 layers at most. Layers and plain functions mix:
   flux_chain(flux_dense(2, 3), flux_relu, flux_named("head", flux_dense(3, 1))). In the ..._with
   functions, names are the C names of the arguments, "a, b", the connection's first, by which plain
   functions are printed; or NULL. */
FLUX_API flux_layer *flux_chain_with(int n, flux_layer *const *ls, const char *names);
FLUX_API flux_layer *flux_parallel_with(flux_layer *connection, int n, flux_layer *const *ls,
                                      const char *names);
FLUX_API flux_layer *flux_pairwisefusion_with(flux_layer *connection, int n, flux_layer *const *ls,
                                            const char *names);
FLUX_API flux_layer *flux_skipconnection_with(flux_layer *body, flux_layer *connection,
                                            const char *names);
FLUX_API flux_layer *flux_maxout_with(int n, flux_layer *const *ls, const char *names);
/* A function as a layer; one of two inputs serves as a connection. name: as printed. */
FLUX_API flux_layer *flux_function(flux_fn f, const char *name);
/* A function of two inputs as a layer, as a connection. name: as printed. */
FLUX_API flux_layer *flux_function2(flux_fn2 f, const char *name);
#define flux_chain(...) \
    /* Each layer is called with the output of the one before. */ \
    FLUX__MADE(flux_layer *, \
               flux_chain_with(FLUX__NARG(__VA_ARGS__), FLUX__LAYERS(__VA_ARGS__), #__VA_ARGS__))
#define flux_parallel(connection, ...) \
    /* flux_parallel(flux_add, a, b): the connection of the layers' outputs. One input goes to all
       layers; n inputs go to n layers, one to each; n inputs to a single layer are passed to it
       one after the other. Other numbers of inputs are an error. A connection of two arguments
       takes the outputs two at a time, from the left; flux_identity gives them all as a tuple. */ \
    FLUX__MADE(flux_layer *, \
               flux_parallel_with(FLUX__AS_LAYER(connection), FLUX__NARG(__VA_ARGS__), \
                                FLUX__LAYERS(__VA_ARGS__), #connection ", " #__VA_ARGS__))
#define flux_pairwisefusion(connection, ...) \
    /* y_1 = l_1(x_1), then y_i = l_i(connection(y_{i-1}, x_i)); gives all y as a tuple. */ \
    FLUX__MADE(flux_layer *, \
               flux_pairwisefusion_with(FLUX__AS_LAYER(connection), FLUX__NARG(__VA_ARGS__), \
                                      FLUX__LAYERS(__VA_ARGS__), #connection ", " #__VA_ARGS__))
#define flux_skipconnection(layer, connection) \
    /* connection(layer(x), x) */ \
    FLUX__MADE(flux_layer *, \
               flux_skipconnection_with(FLUX__AS_LAYER(layer), FLUX__AS_LAYER(connection), \
                                      #layer ", " #connection))
#define flux_maxout(...) \
    /* The elementwise largest of the layers' outputs. */ \
    FLUX__MADE(flux_layer *, \
               flux_maxout_with(FLUX__NARG(__VA_ARGS__), FLUX__LAYERS(__VA_ARGS__), #__VA_ARGS__))
/* Concatenates along dimension 0; made to serve as a connection. */
FLUX_API flux_tensor *flux_vcat(flux_tensor *a, flux_tensor *b);
/* The outputs of all layers of a chain for the input x, as a tuple. */
FLUX_API flux_tensor *flux_activations(flux_layer *chain, flux_tensor *x);
/* (x - mean) / sqrt(var + eps), with mean and var over the given dimensions, in the shape of x.
   With eps 0, it is NaN where all elements are equal. */
FLUX_API flux_tensor *flux_normalise(flux_tensor *x, flux_shape dims, double eps);

#endif /* FLUX__API_LAYERS_H */
