#ifndef FLUX__API_LAYERS_H
#define FLUX__API_LAYERS_H
#include "models.h"

/* ------------------------------------------------------------------ initialisers
   Weight-shaped tensors: the last dimension but one, and the last, are fan-out and fan-in of a matrix (out x in), or
   channels in and out after a kernel's window. Formulas as in Flux. */

typedef struct flux_init_opts {
    FLUX__DUMMY
    flux_shape shape FLUX__ZERO;
    flux__double gain FLUX__ZERO; double mean FLUX__ZERO; flux__double std FLUX__ZERO, lo FLUX__ZERO, hi FLUX__ZERO; double sparsity FLUX__ZERO;
    int shift FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_init_opts;
#define FLUX__LEFT_OUT_flux_init_opts .gain = FLUX__NO_NUMBER, .std = FLUX__NO_NUMBER, \
    .lo = FLUX__NO_NUMBER, .hi = FLUX__NO_NUMBER, .marked = true,
typedef flux_tensor *(*flux_init_fn)(flux_shape s);               /* what a layer's .init takes */
FLUX_API flux_tensor *flux_glorot_uniform(flux_shape s);          /* U(-a, a), a = sqrt(6/(fan_in+fan_out)): the default */
FLUX_API flux_tensor *flux_glorot_normal(flux_shape s);           /* std sqrt(2/(fan_in+fan_out)) */
FLUX_API flux_tensor *flux_kaiming_uniform(flux_shape s);         /* U(-a, a), a = sqrt(2) sqrt(3/fan_in) */
FLUX_API flux_tensor *flux_kaiming_normal(flux_shape s);          /* std sqrt(2/fan_in) */
FLUX_API flux_tensor *flux_truncated_normal(flux_shape s);        /* normal, cut at -2 and 2 */
FLUX_API flux_tensor *flux_lecun_normal(flux_shape s);            /* truncated, std sqrt(1/fan_in) */
FLUX_API flux_tensor *flux_orthogonal(flux_shape s);              /* orthonormal rows or columns */
FLUX_API flux_tensor *flux_identity_init(flux_shape s);           /* ones on the diagonal, or at a kernel's centre */
FLUX_API flux_tensor *flux_zeros32(flux_shape s);
FLUX_API flux_tensor *flux_ones32(flux_shape s);
FLUX_API flux_tensor *flux_rand32(flux_shape s);
FLUX_API flux_tensor *flux_randn32(flux_shape s);
/* The same with their parameters: flux_init("kaiming_normal", FLUX_SHAPE(64, 784), .gain = 1); also "sparse"
   (.sparsity = part of each column that is 0, .std = 0.01). */
FLUX_API flux_tensor *flux_init_with(const char *name, flux_init_opts o);
#define flux_init(name, ...) flux_init_with(name, FLUX__OPTS(flux_init_opts, __VA_ARGS__))

/* ------------------------------------------------------------------ layers
   Options after the sizes: flux_dense(10, 5, flux_tanh, .bias = FLUX_OFF). Inputs are features x batch; more trailing
   dimensions count as batch. The input is converted to the weight's dtype (a warning once if that loses precision). */

typedef struct flux_dense_opts {
    FLUX__DUMMY
    flux__int64 in FLUX__ZERO, out FLUX__ZERO;
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux__switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: glorot_uniform */
    flux_tensor *weight FLUX__ZERO, *b FLUX__ZERO;   /* your own, out x in and out; then .in and .out may be left out */
    flux__marked marked FLUX__ZERO;
} flux_dense_opts;
#define FLUX__LEFT_OUT_flux_dense_opts .in = FLUX__NO_INT64, .out = FLUX__NO_INT64, \
    .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_dense_with(flux_dense_opts o);
#define flux_dense(...) flux_dense_with(FLUX__OPTS(flux_dense_opts, __VA_ARGS__))    /* act(W x + b), W out x in */

typedef struct flux_scale_opts {
    FLUX__DUMMY
    flux_shape size FLUX__ZERO;
    flux_fn activation FLUX__ZERO;
    flux__switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: ones */
    flux__marked marked FLUX__ZERO;
} flux_scale_opts;
#define FLUX__LEFT_OUT_flux_scale_opts .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_scale_with(flux_scale_opts o);
#define flux_scale(...) flux_scale_with(FLUX__OPTS(flux_scale_opts, __VA_ARGS__))    /* flux_scale(FLUX_SHAPE(3)): act(s .* x .+ b) */

typedef struct flux_bilinear_opts {
    FLUX__DUMMY
    int64_t in1 FLUX__ZERO, in2 FLUX__ZERO, out FLUX__ZERO;
    flux_fn activation FLUX__ZERO;
    flux__switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_bilinear_opts;
#define FLUX__LEFT_OUT_flux_bilinear_opts .bias = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_bilinear_with(flux_bilinear_opts o);
/* flux_call(m, x, y): z[o] = act(sum_ij x[i] W[o,i,j] y[j] + b[o]); with one input y is x. */
#define flux_bilinear(...) flux_bilinear_with(FLUX__OPTS(flux_bilinear_opts, __VA_ARGS__))

typedef struct flux_embedding_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, out FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: randn32 */
    flux__switch pad FLUX__ZERO;          /* FLUX_ON, or a .padding_idx (default 0): that column is zero and stays so */
    flux__int64 padding_idx FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_embedding_opts;
#define FLUX__LEFT_OUT_flux_embedding_opts .pad = FLUX_DEFAULT, .padding_idx = FLUX__NO_INT64, \
    .marked = true,
FLUX_API flux_layer *flux_embedding_with(flux_embedding_opts o);
/* Integer indices 0 ... in-1 of any shape: out x that shape. Or one-hot columns (bool, in x ...). */
#define flux_embedding(...) flux_embedding_with(FLUX__OPTS(flux_embedding_opts, __VA_ARGS__))

typedef struct flux_embeddingbag_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, out FLUX__ZERO;
    flux_fn reduction FLUX__ZERO;         /* flux_mean (NULL), flux_sum or flux_max */
    flux_init_fn init FLUX__ZERO;         /* NULL: randn32 */
} flux_embeddingbag_opts;
#define FLUX__LEFT_OUT_flux_embeddingbag_opts
FLUX_API flux_layer *flux_embeddingbag_with(flux_embeddingbag_opts o);
/* Integer indices, a bag a column: out x bags. Or flux_call(m, indices, offsets): where in a vector each bag starts. */
#define flux_embeddingbag(...) flux_embeddingbag_with(FLUX__OPTS(flux_embeddingbag_opts, __VA_ARGS__))

/* Recurrent layers: features x steps (x batch) to out x steps (x batch). flux_call(m, x) starts from zero, flux_call(m, x,
   h) (of LSTM: x, h, c) from a state of yours, out (x batch). With .return_state the result is a flux_tuple of the output
   and the last state. A cell makes one step: (y, h) or (y, h, c) from x (features (x batch)) and, if given, the state. */
typedef struct flux_recurrent_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO, out FLUX__ZERO;
    flux_fn activation FLUX__ZERO;        /* rnn: NULL: tanh */
    flux__switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO, init_recurrent FLUX__ZERO;   /* of Wi and of Wh; NULL: glorot_uniform */
    bool return_state FLUX__ZERO;
    bool hidden_bias FLUX__ZERO;          /* gru: the candidate is tanh(Wx + r .* (Wh h + bias_h) + b), as PyTorch has it */
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
#define flux_rnn(...) FLUX__RECURRENT(flux_rnn_with, __VA_ARGS__)           /* h = act(Wi x + Wh h + b) */
#define flux_lstm(...) FLUX__RECURRENT(flux_lstm_with, __VA_ARGS__)         /* rows of Wi, Wh, b: input, forget, cell, output */
#define flux_gru(...) FLUX__RECURRENT(flux_gru_with, __VA_ARGS__)           /* reset, update, candidate tanh(Wx + r .* (Wh h) + b) */
#define flux_gruv3(...) FLUX__RECURRENT(flux_gruv3_with, __VA_ARGS__)       /* its candidate: tanh(Wx + Wh_h (r .* h) + b) */
#define flux_rnncell(...) FLUX__RECURRENT(flux_rnncell_with, __VA_ARGS__)
#define flux_lstmcell(...) FLUX__RECURRENT(flux_lstmcell_with, __VA_ARGS__)
#define flux_grucell(...) FLUX__RECURRENT(flux_grucell_with, __VA_ARGS__)
#define flux_gruv3cell(...) FLUX__RECURRENT(flux_gruv3cell_with, __VA_ARGS__)
typedef struct flux_recurrence_opts { FLUX__DUMMY flux_layer *cell FLUX__ZERO; bool return_state FLUX__ZERO; } flux_recurrence_opts;
#define FLUX__LEFT_OUT_flux_recurrence_opts
FLUX_API flux_layer *flux_recurrence_with(flux_recurrence_opts o);
/* Any cell over a sequence, one of your own too: called with x, then with x and the state, it gives (y, state...). */
#define flux_recurrence(...) flux_recurrence_with(FLUX__OPTS(flux_recurrence_opts, __VA_ARGS__))

/* Attention: flux_call(m, x) of x to itself, flux_call(m, q, kv) or (m, q, k, v), each features x steps (x batch), with a
   fourth input as mask (bool, true: may be seen) or bias (added), which stretch to keys x queries x heads x batch. The
   result is a flux_tuple: y (out x queries x batch) and the scores (keys x queries x heads x batch), which y does without:
   they take time and memory only if they are looked at, or drop out. A query that may see no key, by its mask or a bias of
   -inf, has 0 for its scores, its values (before the output's projection) and their gradients. */
typedef struct flux_multiheadattention_opts {
    FLUX__DUMMY
    int64_t in FLUX__ZERO;                /* features of the queries */
    flux__int nheads FLUX__ZERO;          /* default 8; divides .qk and .v */
    flux__int64 qk FLUX__ZERO, v FLUX__ZERO, out FLUX__ZERO;   /* projected features; default .in, .qk, .in */
    flux__int64 k_in FLUX__ZERO, v_in FLUX__ZERO;              /* features of keys and values; default .in */
    bool bias FLUX__ZERO;
    bool causal FLUX__ZERO;               /* no query sees a later key */
    flux__switch scores FLUX__ZERO;       /* FLUX_OFF: only y comes out, so that it can stand in a chain */
    double dropout FLUX__ZERO;            /* of the scores */
    flux_init_fn init FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_multiheadattention_opts;
#define FLUX__LEFT_OUT_flux_multiheadattention_opts .nheads = FLUX__NO_INT, .qk = FLUX__NO_INT64, \
    .v = FLUX__NO_INT64, .out = FLUX__NO_INT64, .k_in = FLUX__NO_INT64, .v_in = FLUX__NO_INT64, \
    .scores = FLUX_DEFAULT, .marked = true,
FLUX_API flux_layer *flux_multiheadattention_with(flux_multiheadattention_opts o);
#define flux_multiheadattention(...) flux_multiheadattention_with(FLUX__OPTS(flux_multiheadattention_opts, __VA_ARGS__))
typedef struct flux_attention_opts {
    FLUX__DUMMY
    flux_tensor *q FLUX__ZERO, *k FLUX__ZERO, *v FLUX__ZERO;   /* features x steps (x batch) */
    flux__int nheads FLUX__ZERO;           /* default 1 */
    flux_tensor *bias FLUX__ZERO, *mask FLUX__ZERO;
    flux_layer *drop FLUX__ZERO;          /* applied to the scores: a flux_dropout, say */
    bool causal FLUX__ZERO;               /* no query sees a later key */
    flux__marked marked FLUX__ZERO;
} flux_attention_opts;
#define FLUX__LEFT_OUT_flux_attention_opts .nheads = FLUX__NO_INT, .marked = true,
FLUX_API flux_tensor *flux_dot_product_attention_with(flux_attention_opts o);
FLUX_API flux_tensor *flux_dot_product_attention_scores_with(flux_attention_opts o);
/* The same without projections: flux_dot_product_attention(q, k, v, .nheads = 4) gives (y, scores), */
#define flux_dot_product_attention(...) flux_dot_product_attention_with(FLUX__OPTS(flux_attention_opts, __VA_ARGS__))
/* and flux_dot_product_attention_scores(q, k) the scores, softmax over the keys of k'q / sqrt(features). */
#define flux_dot_product_attention_scores(...) flux_dot_product_attention_scores_with(FLUX__OPTS(flux_attention_opts, __VA_ARGS__))
FLUX_API flux_tensor *flux_make_causal_mask(flux_tensor *x);      /* x: features x steps ...; true where key <= query */

typedef struct flux_layernorm_opts {
    FLUX__DUMMY
    flux_shape size FLUX__ZERO;           /* the first dimensions, which are normalised together */
    flux_fn activation FLUX__ZERO;
    flux__switch affine FLUX__ZERO;
    flux__double eps FLUX__ZERO;          /* added to the variance; default 1e-5 */
    flux__marked marked FLUX__ZERO;
} flux_layernorm_opts;
#define FLUX__LEFT_OUT_flux_layernorm_opts .affine = FLUX_DEFAULT, .eps = FLUX__NO_NUMBER, \
    .marked = true,
FLUX_API flux_layer *flux_layernorm_with(flux_layernorm_opts o);
#define flux_layernorm(...) flux_layernorm_with(FLUX__OPTS(flux_layernorm_opts, __VA_ARGS__))   /* flux_layernorm(FLUX_SHAPE(64)) */

typedef struct flux_dropout_opts {
    FLUX__DUMMY
    double p FLUX__ZERO;                  /* the part that is dropped, 0 to 1 */
    flux_shape dims FLUX__ZERO;           /* the dimensions along which the mask varies; default all */
} flux_dropout_opts;
#define FLUX__LEFT_OUT_flux_dropout_opts
FLUX_API flux_layer *flux_dropout_with(flux_dropout_opts o);
FLUX_API flux_layer *flux_alphadropout(double p);                 /* keeps mean and variance under selu */
#define flux_dropout(...) flux_dropout_with(FLUX__OPTS(flux_dropout_opts, __VA_ARGS__))   /* kept values are scaled by 1/(1-p) */

/* Convolution layers. Images are w (x h (x d)) x channels x batch; one number of .stride, .pad or .dilation counts for every
   dimension. Where the function without it is taken by an operation, a layer's name ends in _layer:
   flux_conv_layer(FLUX_SHAPE(3, 3), 1, 8, flux_relu, .pad = FLUX_SAMEPAD). */
typedef struct flux_conv_layer_opts {
    FLUX__DUMMY
    flux_shape window FLUX__ZERO;         /* FLUX_SHAPE(3, 3): its numbers say how many spatial dimensions there are */
    int64_t in FLUX__ZERO, out FLUX__ZERO;
    flux_fn activation FLUX__ZERO;
    flux_shape stride FLUX__ZERO, pad FLUX__ZERO, dilation FLUX__ZERO, outpad FLUX__ZERO;   /* as in flux_conv */
    flux__int groups FLUX__ZERO;
    flux__switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: glorot_uniform */
    flux__marked marked FLUX__ZERO;
} flux_conv_layer_opts;
#define FLUX__LEFT_OUT_flux_conv_layer_opts .groups = FLUX__NO_INT, .bias = FLUX_DEFAULT, \
    .marked = true,
FLUX_API flux_layer *flux_conv_layer_with(flux_conv_layer_opts o);
FLUX_API flux_layer *flux_crosscor_layer_with(flux_conv_layer_opts o);
FLUX_API flux_layer *flux_conv_transpose_layer_with(flux_conv_layer_opts o);
FLUX_API flux_layer *flux_depthwiseconv_with(flux_conv_layer_opts o);
#define flux_conv_layer(...) flux_conv_layer_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))   /* weight k... x in/groups x out */
#define flux_crosscor_layer(...) flux_crosscor_layer_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))
#define flux_conv_transpose_layer(...) flux_conv_transpose_layer_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))  /* weight k... x out/groups x in */
#define flux_depthwiseconv(...) flux_depthwiseconv_with(FLUX__OPTS(flux_conv_layer_opts, __VA_ARGS__))   /* Conv with groups = in */

typedef struct flux_pool_layer_opts {
    FLUX__DUMMY
    flux_shape window FLUX__ZERO;
    flux_shape stride FLUX__ZERO;         /* default: the window */
    flux_shape pad FLUX__ZERO;
    flux__double p FLUX__ZERO;            /* LPNormPool: default 2 */
    flux__marked marked FLUX__ZERO;
} flux_pool_layer_opts;
#define FLUX__LEFT_OUT_flux_pool_layer_opts .p = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_layer *flux_maxpool_layer_with(flux_pool_layer_opts o);
FLUX_API flux_layer *flux_meanpool_layer_with(flux_pool_layer_opts o);
FLUX_API flux_layer *flux_lpnormpool_layer_with(flux_pool_layer_opts o);
#define flux_maxpool_layer(...) flux_maxpool_layer_with(FLUX__OPTS(flux_pool_layer_opts, __VA_ARGS__))    /* flux_maxpool_layer(FLUX_SHAPE(2, 2)) */
#define flux_meanpool_layer(...) flux_meanpool_layer_with(FLUX__OPTS(flux_pool_layer_opts, __VA_ARGS__))
#define flux_lpnormpool_layer(...) flux_lpnormpool_layer_with(FLUX__OPTS(flux_pool_layer_opts, __VA_ARGS__))
FLUX_API flux_layer *flux_adaptivemaxpool(flux_shape out);        /* stride and window such that out comes out */
FLUX_API flux_layer *flux_adaptivemeanpool(flux_shape out);
FLUX_API flux_layer *flux_globalmaxpool(void);                    /* the whole image: 1 x 1 x channels x batch */
FLUX_API flux_layer *flux_globalmeanpool(void);
FLUX_API flux_layer *flux_globallpnormpool(double p);

typedef enum flux_upsampling { FLUX_NEAREST, FLUX_LINEAR, FLUX_BILINEAR, FLUX_TRILINEAR } flux_upsampling;   /* of any, 1, 2, 3 dims */
typedef struct flux_upsample_opts {
    FLUX__DUMMY
    flux_upsampling mode FLUX__ZERO;
    double scale[3] FLUX__ZERO;           /* {2}: every spatial dimension; {2, 3}: one each, whole numbers for FLUX_NEAREST */
    flux_shape size FLUX__ZERO;           /* or the size to reach; with FLUX_NEAREST a multiple of what comes in */
} flux_upsample_opts;
#define FLUX__LEFT_OUT_flux_upsample_opts
FLUX_API flux_layer *flux_upsample_with(flux_upsample_opts o);
/* The linear ones keep the corners: sample i of n comes from i (in-1)/(n-1). flux_upsample(FLUX_BILINEAR, .scale = {2}) */
#define flux_upsample(...) flux_upsample_with(FLUX__OPTS(flux_upsample_opts, __VA_ARGS__))
FLUX_API flux_layer *flux_pixelshuffle(int64_t r);                /* w x h x c r^2 x n to w r x h r x c x n */

/* (x - mean) / sqrt(var + eps), then .* gamma .+ beta and the activation. In train mode mean and var are those of the batch,
   and the running ones come nearer to them; in test mode they are the running ones. */
typedef struct flux_norm_opts {
    FLUX__DUMMY
    int64_t channels FLUX__ZERO;          /* the last dimension but one */
    flux_fn activation FLUX__ZERO;
    flux__switch affine FLUX__ZERO;       /* has gamma and beta; InstanceNorm has not unless said */
    flux__switch track_stats FLUX__ZERO;  /* has a running mean and var; InstanceNorm has not unless said */
    flux__double eps FLUX__ZERO, momentum FLUX__ZERO;/* default 1e-5, 0.1 */
    flux_init_fn init_beta FLUX__ZERO, init_gamma FLUX__ZERO;   /* NULL: zeros, ones */
    flux__marked marked FLUX__ZERO;
} flux_norm_opts;
#define FLUX__LEFT_OUT_flux_norm_opts .affine = FLUX_DEFAULT, .track_stats = FLUX_DEFAULT, \
    .eps = FLUX__NO_NUMBER, .momentum = FLUX__NO_NUMBER, .marked = true,
typedef struct flux_groupnorm_opts {
    FLUX__DUMMY
    int64_t channels FLUX__ZERO, groups FLUX__ZERO;
    flux_fn activation FLUX__ZERO;
    flux__switch affine FLUX__ZERO;
    flux__double eps FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_groupnorm_opts;
#define FLUX__LEFT_OUT_flux_groupnorm_opts .affine = FLUX_DEFAULT, .eps = FLUX__NO_NUMBER, \
    .marked = true,
FLUX_API flux_layer *flux_batchnorm_with(flux_norm_opts o);
FLUX_API flux_layer *flux_instancenorm_with(flux_norm_opts o);
FLUX_API flux_layer *flux_groupnorm_with(flux_groupnorm_opts o);
#define flux_batchnorm(...) flux_batchnorm_with(FLUX__OPTS(flux_norm_opts, __VA_ARGS__))          /* a channel's values in all samples */
#define flux_instancenorm(...) flux_instancenorm_with(FLUX__OPTS(flux_norm_opts, __VA_ARGS__))    /* a channel's values in one sample */
#define flux_groupnorm(...) flux_groupnorm_with(FLUX__OPTS(flux_groupnorm_opts, __VA_ARGS__))     /* flux_groupnorm(8, 2): 2 groups of 4 channels */

typedef struct flux_weightnorm_opts {
    FLUX__DUMMY
    flux_layer *layer FLUX__ZERO;
    const char *which FLUX__ZERO;         /* which of its tensors; NULL: "weight" */
    flux_shape dims FLUX__ZERO;           /* summed over by the norm; default the last */
} flux_weightnorm_opts;
#define FLUX__LEFT_OUT_flux_weightnorm_opts
FLUX_API flux_layer *flux_weightnorm_with(flux_weightnorm_opts o);
/* The layer with g v/sqrt(sum(v^2) + eps) for its weight: length and direction are trained apart. Its own weight becomes v. */
#define flux_weightnorm(...) flux_weightnorm_with(FLUX__OPTS(flux_weightnorm_opts, __VA_ARGS__))
FLUX_API flux_layer *flux_remove_weightnorms(flux_layer *m);      /* a new model that has the products in their place */

/* Layers and plain functions mix: flux_chain(flux_dense(2, 3), flux_relu, flux_named("head", flux_dense(3, 1))). */
FLUX_API flux_layer *flux_chain_of(int n, flux_layer *const *ls, const char *names);   /* names: "a, b", of plain functions; or NULL */
FLUX_API flux_layer *flux_parallel_of(flux_layer *connection, int n, flux_layer *const *ls, const char *names);  /* connection first */
FLUX_API flux_layer *flux_pairwisefusion_of(flux_layer *connection, int n, flux_layer *const *ls, const char *names);
FLUX_API flux_layer *flux_skipconnection_of(flux_layer *body, flux_layer *connection, const char *names);
FLUX_API flux_layer *flux_maxout_of(int n, flux_layer *const *ls, const char *names);
FLUX_API flux_layer *flux_function(flux_fn f, const char *name);  /* a function as a layer */
FLUX_API flux_layer *flux_function2(flux_fn2 f, const char *name);/* of two inputs: a connection */
#define flux_chain(...) flux_chain_of(FLUX__NARG(__VA_ARGS__), FLUX__LAYERS(__VA_ARGS__), #__VA_ARGS__)
/* flux_parallel(flux_add, a, b): connection of the layers' outputs. One input goes to all; n inputs pair up with n layers;
   n inputs to one layer: to it one by one. The connection takes two at a time; flux_identity hands all on as a tuple. */
#define flux_parallel(connection, ...) \
    flux_parallel_of(FLUX__AS_LAYER(connection), FLUX__NARG(__VA_ARGS__), FLUX__LAYERS(__VA_ARGS__), #connection ", " #__VA_ARGS__)
/* y1 = l1(x1), y_i = l_i(connection(y_{i-1}, x_i)); gives all y as a tuple. */
#define flux_pairwisefusion(connection, ...) \
    flux_pairwisefusion_of(FLUX__AS_LAYER(connection), FLUX__NARG(__VA_ARGS__), FLUX__LAYERS(__VA_ARGS__), #connection ", " #__VA_ARGS__)
/* connection(layer(x), x) */
#define flux_skipconnection(layer, connection) \
    flux_skipconnection_of(FLUX__AS_LAYER(layer), FLUX__AS_LAYER(connection), #layer ", " #connection)
#define flux_maxout(...) flux_maxout_of(FLUX__NARG(__VA_ARGS__), FLUX__LAYERS(__VA_ARGS__), #__VA_ARGS__)    /* the elementwise largest output */
FLUX_API flux_tensor *flux_vcat(flux_tensor *a, flux_tensor *b);  /* joined along dim 0: a connection */
FLUX_API flux_tensor *flux_activations(flux_layer *chain, flux_tensor *x);   /* every intermediate output of a chain, as a tuple */
/* (x - mean) / sqrt(var + eps) over the given dimensions; with eps 0, NaN where all are equal. */
FLUX_API flux_tensor *flux_normalise(flux_tensor *x, flux_shape dims, double eps);

#endif /* FLUX__API_LAYERS_H */
