#ifndef FLUX__NN_LAYERS_H
#define FLUX__NN_LAYERS_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../graph/views.h"
#include "../graph/products.h"
#include "../schedule/looking.h"
#include "fields.h"
#include "functions.h"
#include "activations.h"

/* ---------------------------------------------------------------------- nn/layers.h
   The simple layers: Dense, Scale, Bilinear, Embedding, EmbeddingBag; and what
   all layers share: making weights and biases, and the checks of sizes,
   activations and inputs. A layer is a struct, a call function, a text function
   and a constructor.

   Invariant: a constructor makes weights inside flux__hide, so that only the
   layer owns them and flux_update can write the new values into the same memory.
   A call checks its input once, against the weights as they are now; in errors a
   layer is named as it is printed. The input is converted to the dtype of the
   weights (flux__input), with one warning if that loses precision. Dim 0 is
   features, all further dims are batch. softmax is refused as an activation,
   since it needs whole columns. The padding column of an Embedding gets no
   gradient, because its outputs are replaced by 0. */

FLUX__BEGIN_COLD

/* f(x), or x itself if f is NULL. */
static flux_tensor *flux__activate(flux_fn f, flux_tensor *x) { return f && x ? f(x) : x; }

/* f(y + bias), each of which may be NULL: what a layer does with its product. */
static flux_tensor *flux__add_bias(flux_tensor *y, flux_tensor *bias, flux_fn f) {
    return flux__activate(f, y && bias ? flux_add(y, bias) : y);
}

/* Begins the text of a layer: its name and the sizes of its weight, which is out x in. */
static void flux__put_in_out(flux__sink *s, const flux_layer *m, const flux_tensor *weight) {
    flux__putf(s, "%s(%lld => %lld", m->type->name, (long long)weight->dim[1],
               (long long)weight->dim[0]);
}

/* Ends the text of a layer: its activation, and whether it has no bias. */
static size_t flux__put_activation(flux__sink *s, flux_fn f, const flux_tensor *bias) {
    if (f) flux__putf(s, ", %s", flux__fn_name(f));
    flux__put(s, bias ? ")" : "; bias=false)");
    return flux__sink_end(s);
}

/* Refuses softmax and logsoftmax as activations: they need whole columns, where an activation works
   on single numbers and, fused, sees less than a column. identity becomes NULL. */
static bool flux__check_activation(const char *call, flux_fn *f) {
    if (*f == flux_identity) *f = NULL;
    if (*f != flux_softmax && *f != flux_logsoftmax) return true;
    const char *name = flux__fn_name(*f);
    return FLUX__REFUSE("%s: %s is no activation: it works on columns, not on single numbers; "
                        "make it a layer of its own, flux_chain(flux_%s(...), flux_%s)",
                        call, name, call, name);
}

static bool flux__check_sizes(const char *call, int n, const int64_t *size) {
    for (int i = 0; i < n; i++)
        if (size[i] < 1)
            return FLUX__REFUSE("%s: size %d is %lld; sizes are at least 1", call, i,
                                (long long)size[i]);
    return true;
}

/* A weight of shape s from an initialiser, whose result is checked, as it may be a
   user's function. */
static flux_tensor *flux__make_weight(const char *call, flux_init_fn init, flux_shape s) {
    if (!flux__check_shape(call, &s)) return NULL;
    int64_t failures = flux__failures();
    flux_tensor *w = init(s), *like = w ? flux__placeholder(s, FLUX_F32) : NULL;
    if (!w && !flux__failed_since(failures))
        return (flux_tensor *)flux__fail("%s: .init gave NULL", call);
    if (!like || (w->op != FLUX__TUPLE && flux__same_dims(w, like) && flux__dtypes[w->dtype].real))
        return like ? w : NULL;
    return (flux_tensor *)flux__fail("%s: .init gave %s where %s floating numbers were asked for",
                                     call, flux__describe(w).s, flux__shape_text(&s).s);
}

/* A bias of zeros of shape s in the weight's dtype; NULL if it is off, or if there is no weight. */
static flux_tensor *flux__make_bias(flux_switch bias, const flux_tensor *weight, flux_shape s) {
    return bias == FLUX_OFF || !weight ? NULL : flux_full_with(s, 0.0, (flux_dtype)weight->dtype);
}

/* Makes a weight of shape s and its bias of shape `wide`; false is an error. */
static bool flux__make_affine(const char *call, flux_init_fn init, flux_shape s, flux_shape wide,
                              flux_switch bias, flux_tensor **weight, flux_tensor **b) {
    *weight = flux__make_weight(call, init, s);
    *b = flux__make_bias(bias, *weight, wide);
    return *weight && (*b || bias == FLUX_OFF);
}

/* The end of a constructor that made weights since flux__hide, which returned h: the layer with
   these fields, which owns them, or NULL if they are not `good`. */
static flux_layer *flux__layer_made(int h, bool good, const flux_layer_type *type,
                                    const void *fields) {
    return (flux_layer *)flux__reveal_object(h, good ? flux__layer_new(type, fields) : NULL);
}

/* The dtype of x if it is a floating one, else f32. */
static flux_dtype flux__real_dtype(const flux_tensor *x) {
    return x->op != FLUX__TUPLE && flux__dtypes[x->dtype].real ? (flux_dtype)x->dtype : FLUX_F32;
}

/* Ends the text of a layer that acts otherwise in training: whether its mode is set. */
static size_t flux__put_mode(flux__sink *s, const flux_layer *self) {
    if (self->mode != FLUX_MODE_AUTO)
        flux__putf(s, ", active=%s", self->mode == FLUX_MODE_TRAIN ? "true" : "false");
    flux__put(s, ")");
    return flux__sink_end(s);
}

/* The input x of a layer converted to `want`, the dtype of its weights; NULL, with an
   error, for a tuple. */
static flux_tensor *flux__input(flux_layer *m, flux_tensor *x, flux_dtype want) {
    if (x->op == FLUX__TUPLE)
        return (flux_tensor *)flux__fail("%s takes one input, got %d", flux__line_of(m).s, x->nin);
    const flux__dtype_row *have = &flux__dtypes[x->dtype], *to = &flux__dtypes[want];
    if (have->real && to->real && have->epsilon < to->epsilon)
        flux__note(FLUX_LOG_WARN, "layer.dtype", true,
                   "%s turns its %s input into %s, which its weights are; this is said once",
                   flux__line_of(m).s, have->name, to->name);
    return flux_to_dtype(x, want);
}

/* Whether dim `dim` of the input x has the size that m's weights need; if not, an error. */
static bool flux__expect_dim(flux_layer *m, const flux_tensor *x, int dim, int64_t size) {
    if (dim < x->ndim && x->dim[dim] == size) return true;
    return FLUX__REFUSE("%s expects dim %d of size %lld, got %s", flux__line_of(m).s, dim,
                        (long long)size, flux__describe(x).s);
}

/* x reshaped to a matrix: dim 0 stays, all other dims are merged into dim 1. */
static flux_tensor *flux__as_columns(flux_tensor *x) {
    int64_t dims[2] = { x->dim[0], 1 };
    for (int i = 1; i < x->ndim; i++) dims[1] *= x->dim[i];
    return flux_reshape_with(x, flux__shape(dims, 2));
}

/* The reverse for a result y: a matrix, reshaped to x's dims with y's own size of dim 0. */
static flux_tensor *flux__as_before(flux_tensor *y, const flux_tensor *x) {
    flux_shape s = flux__dims(x);
    if (!y || s.ndim == 2) return y;
    s.dim[0] = y->dim[0];
    return flux_reshape_with(y, s);
}

/* ---------------- Dense */

typedef struct flux__dense_layer {
    flux_layer base;
    flux_tensor *weight, *bias;           /* out x in; out, or NULL */
    flux_fn activation;
} flux__dense_layer;

/* activation(weight x + bias): x, in x batch dims, gives out x batch dims. Several batch dims are
   merged for the product. */
static flux_tensor *flux__dense_call(flux_layer *self, flux_tensor *x) {
    flux__dense_layer *m = (flux__dense_layer *)self;
    flux_tensor *in = flux__input(self, x, (flux_dtype)m->weight->dtype);
    if (!in || !flux__expect_dim(self, x, 0, m->weight->dim[1])) return NULL;
    flux_tensor *y = flux_matmul(m->weight, in->ndim > 2 ? flux__as_columns(in) : in);
    y = flux__add_bias(y, m->bias, m->activation);
    return in->ndim > 2 ? flux__as_before(y, in) : y;
}

static size_t flux__dense_text(flux_layer *self, char *out, size_t n) {
    const flux__dense_layer *m = (const flux__dense_layer *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__put_in_out(&s, self, m->weight);
    return flux__put_activation(&s, m->activation, m->bias);
}
FLUX_LAYER_TEXT(flux__dense_layer, "Dense", flux__dense_call, flux__dense_text, FLUX_PARAM(weight),
                FLUX_PARAM(bias))

/* Checks .weight and .bias_tensor, tensors that the user gives, against each other and against .in
   and .out, and sets .in and .out from them. */
static bool flux__check_own(flux_dense_opts *o) {
    flux_tensor *w = o->weight, *b = o->bias_tensor;
    bool in_given = flux__is_given_int(o->in, o->marked),
         out_given = flux__is_given_int(o->out, o->marked);
    o->in = flux__given_int(o->in, o->marked, 0);
    o->out = flux__given_int(o->out, o->marked, 0);
    int64_t out = w && w->op != FLUX__TUPLE && w->ndim == 2 ? w->dim[0] : (int64_t)o->out;
    if (w && (w->op == FLUX__TUPLE || w->ndim != 2 || !flux__dtypes[w->dtype].real ||
              (in_given && o->in != w->dim[1]) || (out_given && o->out != w->dim[0])))
        return FLUX__REFUSE("dense: .weight must be a floating matrix, out x in%s, not %s",
                            in_given || out_given ? " as given" : "", flux__describe(w).s);
    if (b && (b->op == FLUX__TUPLE || b->ndim != 1 || b->dim[0] != out || o->bias == FLUX_OFF))
        return FLUX__REFUSE("dense: .bias_tensor must be a vector of %lld, and .bias not off; "
                            "it is %s", (long long)out, flux__describe(b).s);
    if (w) o->in = w->dim[1];
    o->out = out;
    return true;
}

/* A Dense layer from sizes and an initialiser, or from the tensors .weight and .bias_tensor. */
FLUX_DEF flux_layer *flux_dense_with(flux_dense_opts o) {
    FLUX__ZEROED(flux__dense_layer, m);
    o.bias = flux__given_switch(o.bias, o.marked);
    if (!flux__check_own(&o)) return NULL;
    int64_t size[2] = { o.out, o.in };
    m.activation = o.activation;
    if (!flux__check_activation("dense", &m.activation) || !flux__check_sizes("dense", 2, size))
        return NULL;
    int h = flux__hide();
    m.weight = o.weight ? o.weight
                        : flux__make_weight("dense", o.init ? o.init : flux_glorot_uniform,
                                            flux__shape(size, 2));
    m.bias = o.bias_tensor && m.weight
                 ? flux_to_dtype(o.bias_tensor, (flux_dtype)m.weight->dtype)
                 : flux__make_bias(o.bias, m.weight, flux__shape(size, 1));
    return flux__layer_made(h, m.weight && (m.bias || o.bias == FLUX_OFF),
                            flux__dense_layer_type(), &m);
}

/* ---------------- Scale */

typedef struct flux__scale {
    flux_layer base;
    flux_tensor *scale, *bias;
    flux_fn activation;
} flux__scale;

/* activation(x * scale + bias), broadcast. Where scale has more than one number along a dim, x must
   have as many, or one. */
static flux_tensor *flux__scale_call(flux_layer *self, flux_tensor *x) {
    flux__scale *m = (flux__scale *)self;
    flux_tensor *in = flux__input(self, x, (flux_dtype)m->scale->dtype);
    for (int i = 0; in && i < m->scale->ndim; i++) {
        int64_t want = m->scale->dim[i], have = i < in->ndim ? in->dim[i] : 1;
        if (want != 1 && have != 1 && !flux__expect_dim(self, in, i, want)) return NULL;
    }
    return flux__add_bias(in ? flux_mul(in, m->scale) : NULL, m->bias, m->activation);
}

static size_t flux__scale_text(flux_layer *self, char *out, size_t n) {
    const flux__scale *m = (const flux__scale *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__putf(&s, "Scale(");
    flux__put_dims(&s, m->scale->dim, m->scale->ndim);
    return flux__put_activation(&s, m->activation, m->bias);
}
FLUX_LAYER_TEXT(flux__scale, "Scale", flux__scale_call, flux__scale_text, FLUX_PARAM(scale),
                FLUX_PARAM(bias))

/* The Scale within a LayerNorm. */
typedef flux__scale flux__norm_scale;
FLUX_LAYER_TRAITS(flux__norm_scale, "Scale", flux__scale_call, flux__scale_text, FLUX_KEEPS_F32,
                  FLUX_PARAM(scale), FLUX_PARAM(bias))

/* A Scale of shape .size: scale starts as ones, unless .init is given, and bias as zeros. */
static flux_layer *flux__scale_new(const flux_layer_type *type, flux_scale_opts o) {
    FLUX__ZEROED(flux__scale, m);
    m.activation = o.activation;
    o.bias = flux__given_switch(o.bias, o.marked);
    if (o.size.ndim < 1)
        return (flux_layer *)flux__fail("scale: .size is missing, as in flux_scale(FLUX_SHAPE(3))");
    if (!flux__check_shape("scale", &o.size) ||
        !flux__check_sizes("scale", o.size.ndim, o.size.dim))
        return NULL;
    if (!flux__check_activation("scale", &m.activation)) return NULL;
    int h = flux__hide();
    bool good = flux__make_affine("scale", o.init ? o.init : flux_ones32, o.size, o.size, o.bias,
                                  &m.scale, &m.bias);
    return flux__layer_made(h, good, type, &m);
}

FLUX_DEF flux_layer *flux_scale_with(flux_scale_opts o) {
    return flux__scale_new(flux__scale_type(), o);
}

/* ---------------- Bilinear */

typedef struct flux__bilinear {
    flux_layer base;
    flux_tensor *weight, *bias;           /* out x in1 x in2; out, or NULL */
    flux_fn activation;
} flux__bilinear;

/* W, out x in1 x in2, applied to x, in1 x n, and y, in2 x n: out x n. The first product
   contracts W with y to an out x in1 matrix for each column; the second, batched, multiplies it
   by the column of x. */
static flux_tensor *flux__bilinear_columns(flux_tensor *w, flux_tensor *x, flux_tensor *y) {
    if (!x || !y) return NULL;
    const int64_t out = w->dim[0], in = w->dim[1], n = x->dim[1];
    flux_tensor *wy = flux_matmul(flux_reshape(w, flux__times(out, in), w->dim[2]), y);
    flux_tensor *z = flux_matmul(flux_reshape(wy, out, in, n), flux_reshape(x, in, 1, n));
    return flux_reshape(z, out, n);
}

/* Bilinear of a tuple of two inputs, in1 x batch and in2 x batch, or of one input that
   serves as both. */
static flux_tensor *flux__bilinear_call(flux_layer *self, flux_tensor *x) {
    flux__bilinear *m = (flux__bilinear *)self;
    flux_tensor *a = flux_nth(x, 0), *b = flux_num_items(x) > 1 ? flux_nth(x, 1) : a;
    if (flux_num_items(x) > 2)
        return (flux_tensor *)flux__fail("%s takes one or two inputs, got %d",
                                         flux__line_of(self).s, flux_num_items(x));
    a = a ? flux__input(self, a, (flux_dtype)m->weight->dtype) : NULL;
    b = a && b ? flux__input(self, b, (flux_dtype)m->weight->dtype) : NULL;
    if (!b || !flux__expect_dim(self, a, 0, m->weight->dim[1]) ||
        !flux__expect_dim(self, b, 0, m->weight->dim[2]))
        return NULL;
    bool same = a->ndim == b->ndim;
    for (int i = 1; i < a->ndim && same; i++) same = a->dim[i] == b->dim[i];
    if (!same)
        return (flux_tensor *)flux__fail("%s: its inputs %s and %s differ in more than dim 0",
                                         flux__line_of(self).s, flux__describe(a).s,
                                         flux__describe(b).s);
    flux_tensor *z = flux__bilinear_columns(m->weight, flux__as_columns(a), flux__as_columns(b));
    return flux__as_before(flux__add_bias(z, m->bias, m->activation), a);
}

static size_t flux__bilinear_text(flux_layer *self, char *out, size_t n) {
    const flux__bilinear *m = (const flux__bilinear *)self;
    const int64_t *d = m->weight->dim;
    flux__sink s = flux__sink_to(out, n);
    if (d[1] == d[2]) flux__put_in_out(&s, self, m->weight);
    else
        flux__putf(&s, "Bilinear((%lld, %lld) => %lld", (long long)d[1], (long long)d[2],
                  (long long)d[0]);
    return flux__put_activation(&s, m->activation, m->bias);
}
FLUX_LAYER_TEXT(flux__bilinear, "Bilinear", flux__bilinear_call, flux__bilinear_text,
                FLUX_PARAM(weight), FLUX_PARAM(bias))

/* A Bilinear from .in1, .in2 and .out features. */
FLUX_DEF flux_layer *flux_bilinear_with(flux_bilinear_opts o) {
    FLUX__ZEROED(flux__bilinear, m);
    int64_t size[3] = { o.out, o.in1, o.in2 };
    m.activation = o.activation;
    o.bias = flux__given_switch(o.bias, o.marked);
    if (!flux__check_activation("bilinear", &m.activation) ||
        !flux__check_sizes("bilinear", 3, size))
        return NULL;
    int h = flux__hide();
    bool good = flux__make_affine("bilinear", o.init ? o.init : flux_glorot_uniform,
                                  flux__shape(size, 3), flux__shape(size, 1), o.bias, &m.weight,
                                  &m.bias);
    return flux__layer_made(h, good, flux__bilinear_type(), &m);
}

/* ---------------- Embedding */

typedef struct flux__embedding {
    flux_layer base;
    flux_tensor *weight;                  /* out x in: a column for each index */
    int64_t padding;                      /* index of the padding column; -1: none */
} flux__embedding;

/* A bool vector along dim `dim` of size n: false at index `which`, true elsewhere. */
static flux_tensor *flux__all_but(int64_t n, int dim, int64_t which) {
    return flux_ne(flux__iota(n, dim), (double)which);
}

/* The columns of the weight at integer indices x, out x (dims of x), or its product with
   bool columns x, in x batch. The padding column gets no gradient, because its outputs
   are replaced by 0. */
static flux_tensor *flux__embedding_call(flux_layer *self, flux_tensor *x) {
    flux__embedding *m = (flux__embedding *)self;
    flux_dtype t = (flux_dtype)m->weight->dtype;
    bool masked = m->padding >= 0;
    if (x->op == FLUX__TUPLE || flux__dtypes[x->dtype].real)
        return (flux_tensor *)flux__fail("%s takes integer indices or bool columns, got %s",
                                         flux__line_of(self).s,
                                         x->op == FLUX__TUPLE ? "a tuple" : flux__describe(x).s);
    if (x->dtype == FLUX_BOOL) {
        if (!flux__expect_dim(self, x, 0, m->weight->dim[1])) return NULL;
        flux_tensor *in = x->ndim > 2 ? flux__as_columns(x) : x;
        if (masked && in)
            in = flux_and(
                in, flux_to_tensor(x->device, flux__all_but(m->weight->dim[1], 0, m->padding)));
        flux_tensor *y = flux_matmul(m->weight, flux_to_dtype(in, t));
        return x->ndim > 2 ? flux__as_before(y, x) : y;
    }
    flux_tensor *y = flux_gather(m->weight, 1, x);
    return masked && y ? flux_where(flux_unsqueeze(flux_ne(x, (double)m->padding), 0), y, 0.0) : y;
}

static size_t flux__embedding_text(flux_layer *self, char *out, size_t n) {
    const flux__embedding *m = (const flux__embedding *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__put_in_out(&s, self, m->weight);
    if (m->padding >= 0) flux__putf(&s, ", padding_idx=%lld", (long long)m->padding);
    flux__put(&s, ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TRAITS(flux__embedding, "Embedding", flux__embedding_call, flux__embedding_text,
                  FLUX_TAKES_INDICES, FLUX_PARAM(weight))

/* An Embedding; its padding column, if there is one, starts as zeros. */
FLUX_DEF flux_layer *flux_embedding_with(flux_embedding_opts o) {
    FLUX__ZEROED(flux__embedding, m);
    int64_t size[2] = { o.out, o.in };
    o.pad = flux__given_switch(o.pad, o.marked);
    bool padded =
        o.pad == FLUX_ON || (o.pad == FLUX_DEFAULT && flux__is_given_int(o.padding_idx, o.marked));
    o.padding_idx = flux__given_int(o.padding_idx, o.marked, 0);
    if (!flux__check_sizes("embedding", 2, size)) return NULL;
    if (padded && (o.padding_idx < 0 || o.padding_idx >= o.in))
        return (flux_layer *)flux__fail("embedding: .padding_idx is %lld, indices are 0 to %lld",
                                        (long long)o.padding_idx, (long long)o.in - 1);
    m.padding = padded ? (int64_t)o.padding_idx : -1;
    int h = flux__hide();
    m.weight = flux__make_weight("embedding", o.init ? o.init : flux_randn32, flux__shape(size, 2));
    if (m.weight && padded) {
        const int b = flux__nograd_enter();
        m.weight = flux_where(
            flux_to_tensor(m.weight->device, flux__all_but(o.in, 1, o.padding_idx)), m.weight, 0.0);
        flux__nograd_leave(b);
    }
    return flux__layer_made(h, m.weight != NULL, flux__embedding_type(), &m);
}

/* ---------------- EmbeddingBag */

/* weight: out x in; reduction: flux_mean, flux_sum or flux_max. */
typedef struct flux__embeddingbag {
    flux_layer base;
    flux_tensor *weight;
    flux_fn reduction;
} flux__embeddingbag;

/* Cuts the vector `data` into bags that start at `offsets`: a matrix, longest bag x bags, with a
   bag in each column. Shorter bags are padded with the first number of data; *real, bool of 1 x
   longest x bags, is false there. NULL, with an error, if an offset is out of order. */
static flux_tensor *flux__bag_columns(const char *line, flux_tensor *data, flux_tensor *offsets,
                                      flux_tensor **real) {
    int64_t bags = offsets->dim[0], n = data->dim[0], longest = 0;
    flux_tensor *starts = flux_to_dtype(offsets, FLUX_I64), *index = NULL;
    const int64_t *at = starts ? (const int64_t *)flux_data(starts) : NULL;
    for (int64_t i = 0; at && i < bags; i++) {
        int64_t end = i + 1 < bags ? at[i + 1] : n;
        if (i == 0 && at[0] != 0)
            return (flux_tensor *)flux__fail("%s: the first offset is %lld, not 0", line,
                                             (long long)at[0]);
        if (end <= at[i])
            return (flux_tensor *)flux__fail(
                "%s: offset %lld is %lld, and %s %lld: each bag needs one index at least", line,
                (long long)i, (long long)at[i], i + 1 < bags ? "the next one" : "there are",
                (long long)end);
        if (end - at[i] > longest) longest = end - at[i];
    }
    int64_t *place = at && longest <= INT64_MAX / 16 / bags
                         ? (int64_t *)flux__malloc((size_t)(longest * bags) * sizeof *place)
                         : NULL;
    if (!place) return NULL;
    for (int64_t i = 0; i < longest * bags; i++) {
        int64_t bag = i / longest, first = at[bag], k = first + i % longest;
        place[i] = k < (bag + 1 < bags ? at[bag + 1] : n) ? k : -1;
    }
    index = flux_to_tensor(data->device,
                           flux_from_with(place, FLUX_I64, FLUX_SHAPE(longest, bags)));
    flux__free(place);
    *real = index ? flux_unsqueeze(flux_ge(index, 0.0), 0) : NULL;
    return *real ? flux_gather(data, 0, flux_max2(index, 0.0)) : NULL;
}

/* Reduces the embeddings of each bag to one column. x: integer indices, bag x batch, each column a
   bag; or bool columns, in x bag x batch; or a tuple of a vector of indices and one of offsets at
   which the bags start. Returns out x batch. */
static flux_tensor *flux__embeddingbag_call(flux_layer *self, flux_tensor *x) {
    flux__embeddingbag *m = (flux__embeddingbag *)self;
    flux_tensor *data = flux_nth(x, 0), *offsets = flux_num_items(x) > 1 ? flux_nth(x, 1) : NULL,
                *real = NULL, *y;
    flux__text got = flux__describe(data);
    bool hot = data->dtype == FLUX_BOOL;
    if (flux_num_items(x) > 2)
        return (flux_tensor *)flux__fail("%s takes bags, or indices and offsets, got %d inputs",
                                         flux__line_of(self).s, flux_num_items(x));
    if (flux__dtypes[data->dtype].real || data->ndim < (hot ? 2 : 1))
        return (flux_tensor *)flux__fail("%s takes bags of integer indices or bool columns, got %s",
                                         flux__line_of(self).s, got.s);
    if (offsets &&
        (data->ndim != 1 || offsets->ndim != 1 || hot || flux__dtypes[offsets->dtype].real ||
         offsets->dtype == FLUX_BOOL || !flux__size(offsets)))
        return (flux_tensor *)flux__fail(
            "%s takes a vector of indices and one of offsets, got %s and %s", flux__line_of(self).s,
            got.s, flux__describe(offsets).s);
    if (hot && !flux__expect_dim(self, data, 0, m->weight->dim[1])) return NULL;
    if (hot)
        y = flux__as_before(flux_matmul(m->weight, flux_to_dtype(flux__as_columns(data),
                                                                 (flux_dtype)m->weight->dtype)),
                            data);
    else if (!offsets || !(x = flux__bag_columns(flux__line_of(self).s, data, offsets, &real)))
        y = offsets ? NULL : flux_gather(m->weight, 1, data);
    else y = flux_gather(m->weight, 1, x);
    if (!y || (offsets && !real)) return NULL;
    if (real) y = flux_where(real, y, m->reduction == flux_max ? -HUGE_VAL : 0.0);
    bool mean = m->reduction == flux_mean;
    flux_shape s = flux__dims(y);
    flux_tensor *sum = m->reduction == flux_max ? flux_max(y, 1)
                       : mean && !real          ? flux_mean(y, 1)
                       : !mean                  ? flux_sum(y, 1)
                                                : NULL;
    if (mean && real)
        sum = flux__narrow(
            flux_div(flux_sum(flux__widened(y), 1), flux_sum(flux_to_dtype(real, FLUX_F32), 1)),
            y->dtype);
    for (int i = 1; i + 1 < s.ndim; i++) s.dim[i] = s.dim[i + 1];
    s.ndim--;
    return flux_reshape_with(sum, s);
}

static size_t flux__embeddingbag_text(flux_layer *self, char *out, size_t n) {
    const flux__embeddingbag *m = (const flux__embeddingbag *)self;
    flux__sink s = flux__sink_to(out, n);
    flux__put_in_out(&s, self, m->weight);
    flux__put(&s, m->reduction == flux_sum ? ", sum)" : m->reduction == flux_max ? ", max)" : ")");
    return flux__sink_end(&s);
}
FLUX_LAYER_TRAITS(flux__embeddingbag, "EmbeddingBag", flux__embeddingbag_call,
                  flux__embeddingbag_text, FLUX_TAKES_INDICES, FLUX_PARAM(weight))

/* An EmbeddingBag of .in indices and .out features; .reduction is flux_mean by default. */
FLUX_DEF flux_layer *flux_embeddingbag_with(flux_embeddingbag_opts o) {
    FLUX__ZEROED(flux__embeddingbag, m);
    int64_t size[2] = { o.out, o.in };
    m.reduction = o.reduction ? o.reduction : flux_mean;
    if (!flux__check_sizes("embeddingbag", 2, size)) return NULL;
    if (m.reduction != flux_mean && m.reduction != flux_sum && m.reduction != flux_max)
        return (flux_layer *)flux__fail(
            "embeddingbag: .reduction must be flux_mean, flux_sum or flux_max");
    int h = flux__hide();
    m.weight =
        flux__make_weight("embeddingbag", o.init ? o.init : flux_randn32, flux__shape(size, 2));
    return flux__layer_made(h, m.weight != NULL, flux__embeddingbag_type(), &m);
}

FLUX__END_COLD

#endif /* FLUX__NN_LAYERS_H */
