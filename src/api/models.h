#ifndef FLUX__API_MODELS_H
#define FLUX__API_MODELS_H
#include "custom.h"

/* ------------------------------------------------------------------ models
   A layer is a struct whose first member is a flux_layer, together with a description of its
   fields. Moving to a device, flux_fmap, gradients, updates, saving, loading, printing and counting
   need nothing more. Your layers and the built-in ones use the same mechanism:

       typedef struct {
           flux_layer base;
           flux_layer *body;
           flux_tensor *scale;
           int calls;
       } my_layer;
       static flux_tensor *my_call(flux_layer *self, flux_tensor *x) {
           my_layer *m = (my_layer *)self;
           return flux_mul(flux_call(m->body, x), m->scale);
       }
       FLUX_LAYER(my_layer, "MyLayer", my_call, FLUX_CHILD(body), FLUX_PARAM(scale))
       ... flux_layer *m = flux_new(my_layer, .body = flux_dense(2, 2), .scale = flux_ones(2));   */

typedef enum flux_field_kind {
    FLUX__END, FLUX__CHILD_FIELD, FLUX__CHILDREN_FIELD, FLUX__PARAM_FIELD, FLUX__STATE_FIELD
} flux_field_kind;
typedef struct flux_field {               /* of a layer's struct; FLUX_PARAM and its kin make it */
    const char *name;
    flux_field_kind kind;
    size_t offset;                        /* of the field in the struct */
    size_t count;                         /* FLUX_CHILDREN: offset of the int that counts them */
} flux_field;

/* What a layer's type says of itself beyond its fields. */
typedef enum flux_layer_trait {
    FLUX_KEEPS_F32 = 1,                   /* its tensors stay float32 in a model of half
                                             formats (flux_f16, flux_bf16) */
    FLUX_TAKES_INDICES = 2                /* its input is integers: such is what flux_outputsize
                                             and flux_summary call it with */
} flux_layer_trait;

typedef struct flux_layer_type {
    const char *name;                     /* as printed: "Dense" */
    /* The layer's output for x, which is a flux_tuple if there are several inputs. */
    flux_tensor *(*call)(flux_layer *self, flux_tensor *x);
    size_t size;                          /* of the struct, in bytes */
    const flux_field *fields;             /* ends with kind FLUX__END */
    /* Writes the layer's one-line form, as snprintf does. NULL: printed as a container of its
       children. */
    size_t (*text)(flux_layer *self, char *out, size_t n);
    int traits;                           /* of flux_layer_trait, joined by |; 0: none */
} flux_layer_type;

/* The start of every handle: what it is, whether flux_carry took it along, how many owners it
   has. */
typedef struct flux__head { int kind, carried; int64_t refs; } flux__head;
typedef enum flux_mode { FLUX_MODE_AUTO, FLUX_MODE_TRAIN, FLUX_MODE_TEST } flux_mode;

/* The first member of every layer's struct: you may read it, but not write it. */
struct flux_layer {
    flux__head head;
    const flux_layer_type *type;
    flux_mode mode;                       /* see flux_testmode */
    bool frozen;                          /* see flux_freeze */
    short levels;                         /* depth of layers within layers, itself counted */
    const char *name;                     /* given by flux_named, or NULL */
};
/* The greatest depth of layers within layers, and of tuples within tuples. Making a deeper one is
   an error. */
enum { FLUX_MAX_LEVELS = 1000 };

#define FLUX_LAYER(...) \
    /* FLUX_LAYER(T, name, call, fields...) describes struct T: its printed name and its call
       function (see flux_layer_type), then FLUX_CHILD(field) for a layer, FLUX_CHILDREN(array,
       count) for an array of layers, FLUX_PARAM(field) for a tensor that is trained, and
       FLUX_STATE(field) for one that is moved and saved, but not trained. Fields that are not
       named are copied as they are. It stands at file scope and needs no semicolon. */ \
    FLUX__LAYER(__VA_ARGS__, FLUX__NO_MORE)
#define FLUX_LAYER_TEXT(...) \
    /* FLUX_LAYER_TEXT(T, name, call, text, fields...): the same, with a function for the one-line
       form. */ \
    FLUX__LAYER_TEXT(__VA_ARGS__, FLUX__NO_MORE)
#define FLUX_LAYER_TRAITS(...) \
    /* FLUX_LAYER_TRAITS(T, name, call, text, traits, fields...): the same, with traits such as
       FLUX_KEEPS_F32; text may be NULL. */ \
    FLUX__LAYER_TRAITS(__VA_ARGS__, FLUX__NO_MORE)
#define FLUX__NO_MORE { NULL, FLUX__END, 0, 0 }
#define FLUX__LAYER(T, printed, callfn, ...) FLUX__LAYER_TEXT(T, printed, callfn, NULL, __VA_ARGS__)
#define FLUX__LAYER_TEXT(T, printed, callfn, textfn, ...) \
    FLUX__LAYER_TRAITS(T, printed, callfn, textfn, 0, __VA_ARGS__)
#define FLUX__LAYER_TRAITS(T, printed, callfn, textfn, traits, ...)                                \
    FLUX__UNUSED static const flux_layer_type *T##_type(void) {                                    \
        typedef T flux__t;                                                                         \
        static const flux_field fields[] = { __VA_ARGS__ };                                        \
        static const flux_layer_type type = { printed, callfn, sizeof(flux__t), fields, textfn,    \
                                              traits };                                            \
        return &type;                                                                              \
    }
#define FLUX_CHILD(f) \
    /* A field of type flux_layer *, for FLUX_LAYER. */ \
    { #f, FLUX__CHILD_FIELD, FLUX__OFFSET(f, flux_layer *, "FLUX_CHILD"), 0 }
#define FLUX_CHILDREN(f, n) \
    /* A field of type flux_layer **, and the int that counts them. */ \
    { #f, FLUX__CHILDREN_FIELD, \
    FLUX__OFFSET(f, flux_layer **, "FLUX_CHILDREN"), FLUX__OFFSET(n, int, "FLUX_CHILDREN") }
#define FLUX_PARAM(f) \
    /* A field of type flux_tensor * that is trained. */ \
    { #f, FLUX__PARAM_FIELD, FLUX__OFFSET(f, flux_tensor *, "FLUX_PARAM"), 0 }
#define FLUX_STATE(f) \
    /* A field of type flux_tensor * that is moved and saved, not trained. */ \
    { #f, FLUX__STATE_FIELD, FLUX__OFFSET(f, flux_tensor *, "FLUX_STATE"), 0 }
/* The offset of a field, which does not compile unless the field has exactly the type T that its
   description calls for. An array flux_layer *f[3] is no flux_layer **, for example. */
#if defined(__cplusplus)
#  define FLUX__OFFSET(f, T, what) \
    (offsetof(flux__t, f) + 0 * sizeof(flux__must_be<T, decltype(flux__t::f)>))
#elif defined(__TINYC__)
#  define FLUX__OFFSET(f, T, what) (offsetof(flux__t, f) + _Generic(&((flux__t *)0)->f, T *: 0))
#else
#  define FLUX__OFFSET(f, T, what) (offsetof(flux__t, f) + 0 * sizeof(struct { char c;             \
    _Static_assert(_Generic(&((flux__t *)0)->f, T *: 1, default: 0),                               \
                   what ": the field " #f " must be declared as " #T); }))
#endif
/* A new layer of struct T, whose fields are given as in C:
   flux_new(my_layer, .body = ..., .scale = ...). It becomes an owner of its children and tensors,
   and copies the arrays of FLUX_CHILDREN. If a described field is NULL because of a pending error,
   the result is NULL. */
FLUX_API flux_layer *flux_new_with(const flux_layer_type *type, const void *fields);
#define flux_new(...) \
    /* A layer of struct T: flux_new(my_layer, .body = flux_dense(2, 2)). NULL on error. */ \
    FLUX__NEW(__VA_ARGS__, )
#ifdef __cplusplus
}
template <class T> inline flux_layer *flux__new_cpp(const flux_layer_type *type, T fields) {
    return flux_new_with(type, &fields);
}
#define FLUX__NEW(T, ...) flux__new_cpp<T>(T##_type(), FLUX__OPTS(T, __VA_ARGS__))
template <class T, class F> struct flux__must_be {
    static_assert(sizeof(F) == 0,
                  "a field of FLUX_CHILD must be a flux_layer *, of FLUX_CHILDREN a flux_layer ** "
                  "and an int, of FLUX_PARAM and FLUX_STATE a flux_tensor *");
};
template <class T> struct flux__must_be<T, T> { char c; };
extern "C" {
#elif defined(__GNUC__)
/* may be {} */
#define FLUX__NEW(T, ...) \
    /* Without any field it is (T){}, which is an extension to C11. */ \
    flux_new_with(T##_type(), __extension__ &(T){ __VA_ARGS__ })
#else
#define FLUX__NEW(T, ...) flux_new_with(T##_type(), &(T){ __VA_ARGS__ })
#endif

/* The output of layer m for x. Several inputs, flux_call(m, a, b), reach the layer as one
   flux_tuple. Which shapes it takes and gives depends on the layer. NULL on error. */
FLUX_API flux_tensor *flux_call_layer(flux_layer *m, flux_tensor *x);
FLUX_API flux_tensor *flux_call_with(flux_layer *m, int n, flux_tensor *const *xs);
#define flux_call(m, ...) \
    /* The output of a layer for one input or several: flux_call(model, x). NULL on error. */ \
    FLUX__MADE(flux_tensor *, \
               flux_call_with(m, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__)))
/* A new model, in which each parameter and state is f of the old one; f is called once for a tied
   tensor. flux_mapleaves is its old name. */
FLUX_API flux_layer *flux_fmap(flux_fn f, flux_layer *m);
/* The old name of flux_fmap. */
FLUX_API flux_layer *flux_mapleaves(flux_fn f, flux_layer *m);
/* The same, where f also gets the tensor's path ("layers.0.weight") and user. A layer for which
   exclude returns true is kept as it is; exclude may be NULL. */
typedef flux_tensor *(*flux_fmap_fn)(flux_tensor *x, const char *path, void *user);
/* flux_fmap by a function that is told each path; layers for which exclude is true are kept. */
FLUX_API flux_layer *flux_fmap_with(flux_fmap_fn f, void *user, flux_layer *m,
                                    bool (*exclude)(flux_layer *, void *user));
/* Calls visit for each parameter (trained) and state (not trained) of a model, in order; once for a
   tied tensor. */
FLUX_API void flux_visit(const flux_layer *m,
                         void (*visit)(flux_tensor *x, const char *path, bool trained, void *user),
                         void *user);
/* The parameter at a path: flux_param(model, "layers.0.weight"). An error if there is none. What
   these three give stays as it is up to the end of the scope, also when flux_update or
   flux_set_param puts another in its place. */
FLUX_API flux_tensor *flux_param(flux_layer *m, const char *path);
/* The field "weight", or "bias", of m or of its first child that has one. An error if none has. */
FLUX_API flux_tensor *flux_weight(flux_layer *m);
/* The field "bias" of m or of its first child that has one. An error if none has. */
FLUX_API flux_tensor *flux_bias(flux_layer *m);
/* Replaces a parameter by a value of the same shape, converted to its dtype and device. Returns 0,
   or -1 on error. */
FLUX_API int flux_set_param(flux_layer *m, const char *path, flux_tensor *value);
/* Writes the trained tensors to out, at most max of them. Returns how many there are, -1 on
   error. */
FLUX_API int flux_params(flux_layer *m, flux_tensor **out, int max);
/* How many numbers the trained tensors have, tied ones counted once; -1 on error. */
FLUX_API int64_t flux_num_params(const flux_layer *m);
/* Child number i, from 0, of any layer; NULL after the last one, so that a loop can go over
   them. */
FLUX_API flux_layer *flux_child(flux_layer *m, int i);
/* Names a layer and returns it: flux_chain(flux_named("enc", ...), ...). The name stands for its
   number in paths. A layer that has another name already is an error. */
FLUX_API flux_layer *flux_named(const char *name, flux_layer *m);
/* A deep copy; ties are kept. */
FLUX_API flux_layer *flux_copy_layer(flux_layer *m);
/* Copies all parameters and states of src into dst, a model of the same kind: paths and shapes are
   the same, dtypes and devices stay those of dst. Returns 0, or -1 on error, which changes none. */
FLUX_API int flux_loadmodel(flux_layer *dst, flux_layer *src);
/* The mode of layers that behave differently in training (Dropout, ...), set for m and all its
   children. The mode is auto at first: it means training, except inside FLUX_NOGRAD. A mode that
   you set holds until you set another; flux_train and flux_withgradient overrule test mode while
   they run, and leave it as it was. on false: back to auto. */
FLUX_API void flux_testmode(flux_layer *m, bool on);
/* m and its children behave as in training; on false: back to auto. */
FLUX_API void flux_trainmode(flux_layer *m, bool on);
/* For the call function of a layer: whether it should behave as in training. */
FLUX_API bool flux_training(const flux_layer *m);
/* From now on flux_update leaves m and its children as they are; flux_thaw ends that. */
FLUX_API void flux_freeze(flux_layer *m);
/* Ends flux_freeze, for m and its children. */
FLUX_API void flux_thaw(flux_layer *m);
/* The shape of a model's output for an input of shape in. Nothing is computed. ndim -1 on error. */
FLUX_API flux_shape flux_outputsize_with(flux_layer *m, flux_shape in);
#define flux_outputsize(m, ...) \
    /* The shape of a model's output for an input of these dims: flux_outputsize(m, 784, 64). */ \
    flux_outputsize_with(m, FLUX_SHAPE(__VA_ARGS__))
typedef struct flux_export_opts {
    FLUX__DUMMY
    flux_layer *model FLUX__ZERO;         /* in test mode */
    flux_shape shape FLUX__ZERO;          /* of the input, batch included */
    const char *path FLUX__ZERO;          /* of the file of C */
    const char *name FLUX__ZERO;          /* of the function; NULL: that of the file */
    bool stateless FLUX__ZERO;            /* each call starts from states of zeros */
} flux_export_opts;
#define FLUX__LEFT_OUT_flux_export_opts
FLUX_API int flux_export_c_with(flux_export_opts o);
#define flux_export_c(...) \
    /* Writes a model as one file of C, for an input of this shape, batch included:
       flux_export_c(model, FLUX_SHAPE(28, 28, 1, 1), "net.c"). The file has the weights as
       `static const float` and void net(const float *in, float *out), which computes in float32
       what flux_call does in test mode; it needs libm, and neither this library nor malloc.
       Elements lie as in the tensors, dimension 0 fastest; a model that takes indices has const
       int *in, and one that gives a tuple has out, out1, ... The comment at the file's start
       tells sizes, working memory and how to compile it. RNN, LSTM, GRU and GRUv3 layers and
       cells that are given no state keep it in a struct: void net(net_state *state, const float
       *in, float *out), where net_reset(&state) begins anew, so that a model of one step may be
       called step by step. Returns 0, or -1 on error: what the file can't do is named (draws of
       random numbers, sorting, float64, communication). */ \
    flux_export_c_with(FLUX__OPTS(flux_export_opts, __VA_ARGS__))
/* All trained numbers of a model as one vector, tied ones once; and a new model like m with the
   numbers of such a vector. Gradients go through both. A vector of another length is an error. */
FLUX_API flux_tensor *flux_destructure(flux_layer *m);
/* A new model like m with the numbers of a vector, as flux_destructure gives it. */
FLUX_API flux_layer *flux_restructure(flux_layer *m, flux_tensor *flat);
/* A new model whose floating parameters are of this type. In f16 and bf16, norm layers keep theirs
   in float32. */
FLUX_API flux_layer *flux_f16(flux_layer *m);
/* A new model with parameters of bfloat16. */
FLUX_API flux_layer *flux_bf16(flux_layer *m);
/* A new model with parameters of float32. */
FLUX_API flux_layer *flux_f32(flux_layer *m);
/* A new model with parameters of float64. */
FLUX_API flux_layer *flux_f64(flux_layer *m);

typedef struct flux_averaged_opts {
    FLUX__DUMMY
    flux_layer *model FLUX__ZERO;         /* it is copied, and stays as it is */
    flux__double decay FLUX__ZERO;        /* default 0.999; from 0 to below 1 */
    bool equal FLUX__ZERO;                /* the mean of all updates (SWA) */
    flux__marked marked FLUX__ZERO;
} flux_averaged_opts;
#define FLUX__LEFT_OUT_flux_averaged_opts .decay = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_layer *flux_averaged_with(flux_averaged_opts o);
#define flux_averaged(...) \
    /* A model whose parameters are averages of those that another one had in training:
           flux_layer *ema = flux_averaged(model, .decay = 0.999);    // after each flux_update:
           ... flux_update(opt, model, g); flux_update_average(ema, model);
       With decay, exponential ones (EMA): a = decay a + (1 - decay) p; with .equal = true the
       mean of all (SWA), of the models after each of the last epochs, say. The first update takes
       p as it is. The result is a layer, to be called, moved, saved and loaded as any other; its
       child, flux_child(ema, 0), is the averaged model itself, for flux_loadmodel(model,
       flux_child(ema, 0)). Averages of f16 and bf16 are kept in f32. States are no averages, but
       copied from the model at each update, the statistics of BatchNorm too: those of an equal
       average are then not its own, so pass data through it in train mode before it is judged. */ \
    flux_averaged_with(FLUX__OPTS(flux_averaged_opts, __VA_ARGS__))
/* Takes the model's parameters in, without waiting for a device. Returns 0, or -1 on error. */
FLUX_API int flux_update_average(flux_layer *averaged, flux_layer *model);

#endif /* FLUX__API_MODELS_H */
