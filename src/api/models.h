#ifndef FLUX__API_MODELS_H
#define FLUX__API_MODELS_H
#include "operations.h"

/* ------------------------------------------------------------------ models
   A layer is a struct whose first member is a flux_layer, and a description of its fields; gpu, cpu, fmap, gradient,
   update, save, load, print and count need no more. Yours and the built-in ones use the same mechanism:

       typedef struct { flux_layer base; flux_layer *body; flux_tensor *scale; int calls; } my_layer;
       static flux_tensor *my_call(flux_layer *self, flux_tensor *x) {
           my_layer *m = (my_layer *)self;
           return flux_mul(flux_call(m->body, x), m->scale);
       }
       FLUX_LAYER(my_layer, "MyLayer", my_call, FLUX_CHILD(body), FLUX_PARAM(scale))
       ... flux_layer *m = flux_new(my_layer, .body = flux_dense(2, 2), .scale = flux_ones(2));   */

typedef enum flux_field_kind { FLUX__END, FLUX__CHILD_FIELD, FLUX__CHILDREN_FIELD, FLUX__PARAM_FIELD, FLUX__STATE_FIELD } flux_field_kind;
typedef struct flux_field {
    const char *name;
    flux_field_kind kind;
    size_t offset;                        /* of the field in the struct */
    size_t count;                         /* FLUX_CHILDREN: offset of the int that counts them */
} flux_field;

typedef struct flux_layer_type {
    const char *name;                     /* as printed: "Dense" */
    flux_tensor *(*call)(flux_layer *self, flux_tensor *x);   /* x is a flux_tuple where there are several inputs */
    size_t size;                          /* of the struct */
    const flux_field *fields;             /* ends with kind FLUX__END */
    size_t (*text)(flux_layer *self, char *out, size_t n);    /* the one-line form, as snprintf; NULL: a container of its children */
} flux_layer_type;

typedef struct flux__head { int kind, carried; int64_t refs; } flux__head;     /* what every handle starts with */
typedef enum flux_mode { FLUX_MODE_AUTO, FLUX_MODE_TRAIN, FLUX_MODE_TEST } flux_mode;

struct flux_layer {                       /* the first member of every layer's struct; yours to read, not to write */
    flux__head head;
    const flux_layer_type *type;
    flux_mode mode;                       /* see flux_testmode */
    bool frozen;                          /* see flux_freeze */
    short levels;                         /* of layers within layers, itself counted */
    const char *name;                     /* given by flux_named, or NULL */
};
enum { FLUX_MAX_LEVELS = 1000 };          /* of layers within layers, and of tuples within tuples: more is an error when they are made */

/* Describes struct T: printed name, call function, then FLUX_CHILD(field) for a layer, FLUX_CHILDREN(array, count) for
   an array of layers, FLUX_PARAM(field) for a tensor that is trained, FLUX_STATE(field) for one that is moved and
   saved, not trained. Fields that are not named are copied as they are. At file scope, no semicolon needed. */
#define FLUX_LAYER(...) FLUX__LAYER(__VA_ARGS__, FLUX__NO_MORE)      /* T, printed, callfn, and any number of fields */
/* The same with a function that writes the layer's one-line form. */
#define FLUX_LAYER_TEXT(...) FLUX__LAYER_TEXT(__VA_ARGS__, FLUX__NO_MORE)      /* T, printed, callfn, textfn, ... */
#define FLUX__NO_MORE { NULL, FLUX__END, 0, 0 }
#define FLUX__LAYER(T, printed, callfn, ...) FLUX__LAYER_TEXT(T, printed, callfn, NULL, __VA_ARGS__)
#define FLUX__LAYER_TEXT(T, printed, callfn, textfn, ...)                                            \
    FLUX__UNUSED static const flux_layer_type *T##_type(void) {                                      \
        typedef T flux__t;                                                                           \
        static const flux_field fields[] = { __VA_ARGS__ };                                          \
        static const flux_layer_type type = { printed, callfn, sizeof(flux__t), fields, textfn };    \
        return &type;                                                                                \
    }
#define FLUX_CHILD(f) { #f, FLUX__CHILD_FIELD, FLUX__OFFSET(f, flux_layer *, "FLUX_CHILD"), 0 }
#define FLUX_CHILDREN(f, n) { #f, FLUX__CHILDREN_FIELD, FLUX__OFFSET(f, flux_layer **, "FLUX_CHILDREN"), FLUX__OFFSET(n, int, "FLUX_CHILDREN") }
#define FLUX_PARAM(f) { #f, FLUX__PARAM_FIELD, FLUX__OFFSET(f, flux_tensor *, "FLUX_PARAM"), 0 }
#define FLUX_STATE(f) { #f, FLUX__STATE_FIELD, FLUX__OFFSET(f, flux_tensor *, "FLUX_STATE"), 0 }
/* A field's offset, if it is of the type that its description says: an array of layers, which is not a pointer to some, is not. */
#if defined(__cplusplus)
#  define FLUX__OFFSET(f, T, what) (offsetof(flux__t, f) + 0 * sizeof(flux__must_be<T, decltype(flux__t::f)>))
#elif defined(__TINYC__)
#  define FLUX__OFFSET(f, T, what) (offsetof(flux__t, f) + _Generic(&((flux__t *)0)->f, T *: 0))
#else
#  define FLUX__OFFSET(f, T, what) (offsetof(flux__t, f) + 0 * sizeof(struct { char c;                \
    _Static_assert(_Generic(&((flux__t *)0)->f, T *: 1, default: 0), what ": the field " #f " must be declared as " #T); }))
#endif
/* A new layer of struct T, its fields given as in C: flux_new(my_layer, .body = ..., .scale = ...). Takes its own
   references to children and tensors (arrays of FLUX_CHILDREN are copied). NULL if one that was asked for is NULL
   because of a pending error. */
FLUX_API flux_layer *flux_new_layer(const flux_layer_type *type, const void *fields);
#define flux_new(...) FLUX__NEW(__VA_ARGS__, )
#ifdef __cplusplus
}
template <class T> inline flux_layer *flux__new_cpp(const flux_layer_type *type, T fields) { return flux_new_layer(type, &fields); }
#define FLUX__NEW(T, ...) flux__new_cpp<T>(T##_type(), FLUX__OPTS(T, __VA_ARGS__))
template <class T, class F> struct flux__must_be {
    static_assert(sizeof(F) == 0, "a field of FLUX_CHILD must be a flux_layer *, of FLUX_CHILDREN a flux_layer ** and an int, of "
                                  "FLUX_PARAM and FLUX_STATE a flux_tensor *");
};
template <class T> struct flux__must_be<T, T> { char c; };
extern "C" {
#elif defined(__GNUC__)
#define FLUX__NEW(T, ...) flux_new_layer(T##_type(), __extension__ &(T){ __VA_ARGS__ })      /* there may be no field */
#else
#define FLUX__NEW(T, ...) flux_new_layer(T##_type(), &(T){ __VA_ARGS__ })
#endif

FLUX_API flux_tensor *flux_call_layer(flux_layer *m, flux_tensor *x);
FLUX_API flux_tensor *flux_call_all(flux_layer *m, int n, flux_tensor *const *xs);
/* m(x); several inputs, flux_call(m, a, b), reach the layer as one flux_tuple. */
#define flux_call(m, ...) flux_call_all(m, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
FLUX_API flux_layer *flux_fmap(flux_fn f, flux_layer *m);         /* a new model, f applied once to each parameter and state */
FLUX_API flux_layer *flux_mapleaves(flux_fn f, flux_layer *m);    /* its old name */
/* With a context, a path ("layers.0.weight") and a choice: a layer for which exclude gives true is kept as it is. */
typedef flux_tensor *(*flux_fmap_fn)(flux_tensor *x, const char *path, void *user);
FLUX_API flux_layer *flux_fmap_with(flux_fmap_fn f, void *user, flux_layer *m, bool (*exclude)(flux_layer *, void *user));
/* Calls visit for each parameter (trained) and state of a model, in order; a tied tensor once. */
FLUX_API void flux_visit(const flux_layer *m, void (*visit)(flux_tensor *x, const char *path, bool trained, void *user), void *user);
FLUX_API flux_tensor *flux_param(flux_layer *m, const char *path);    /* flux_param(model, "layers.0.weight") */
FLUX_API flux_tensor *flux_weight(flux_layer *m);                 /* the field "weight" of m (or of its first child that has one) */
FLUX_API flux_tensor *flux_bias(flux_layer *m);
FLUX_API int flux_set_param(flux_layer *m, const char *path, flux_tensor *value);   /* same shape; 0: done */
FLUX_API int flux_params(flux_layer *m, flux_tensor **out, int max);   /* how many trained tensors; fills at most max */
FLUX_API int64_t flux_num_params(const flux_layer *m);            /* numbers in trained tensors, tied ones once */
FLUX_API flux_layer *flux_child(flux_layer *m, int i);            /* the i-th child, NULL past the last: walks any model */
FLUX_API flux_layer *flux_named(const char *name, flux_layer *m); /* names a child: flux_chain(flux_named("enc", ...), ...) */
FLUX_API flux_layer *flux_copy_layer(flux_layer *m);              /* a deep copy; ties are kept */
/* Layers that behave otherwise in training (Dropout, ...): auto means training, except inside FLUX_NOGRAD. A mode that you set
   holds until you set another: flux_train and flux_withgradient overrule test mode while they run, and leave it as it was. */
FLUX_API void flux_testmode(flux_layer *m, bool on);              /* on: test mode; off: back to auto. Reaches every child */
FLUX_API void flux_trainmode(flux_layer *m, bool on);
FLUX_API bool flux_training(const flux_layer *m);                 /* for a layer's call: is it to behave as in training? */
FLUX_API void flux_freeze(flux_layer *m);                         /* flux_update leaves it and its children as they are */
FLUX_API void flux_thaw(flux_layer *m);
FLUX_API flux_shape flux_outputsize_of(flux_layer *m, flux_shape in);
#define flux_outputsize(m, ...) flux_outputsize_of(m, FLUX_SHAPE(__VA_ARGS__))   /* nothing is computed; ndim -1 on error */
/* All trained numbers of a model as one vector, tied ones once, and back again; both can be differentiated through. */
FLUX_API flux_tensor *flux_destructure(flux_layer *m);
FLUX_API flux_layer *flux_restructure(flux_layer *m, flux_tensor *flat);   /* a new model like m with these numbers */
FLUX_API flux_layer *flux_f16(flux_layer *m);                     /* converts floating parameters; a new model */
FLUX_API flux_layer *flux_bf16(flux_layer *m);
FLUX_API flux_layer *flux_f32(flux_layer *m);
FLUX_API flux_layer *flux_f64(flux_layer *m);

#endif /* FLUX__API_MODELS_H */
