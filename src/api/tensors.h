#ifndef FLUX__API_TENSORS_H
#define FLUX__API_TENSORS_H
#include "devices.h"

/* ------------------------------------------------------------------ making tensors
   A shape is written as its dimensions: flux_zeros(2, 5) is a 2 x 5 matrix. A tensor has 0 to 8
   dimensions of size 0 or more; any other shape is an error. The element type is float32 unless the
   name says otherwise. Tensors are made on the device that flux_default_device set. */

/* Every element is `value`, converted from float64 as by flux_to_dtype. */
FLUX_API flux_tensor *flux_full_with(flux_shape s, double value, flux_dtype t);
/* Random numbers, uniform in [0, 1) and standard normal; a dtype that is not floating is an error.
   A uniform number is below 1 in every dtype; in f64 it has 53 random bits, in f32 24. */
FLUX_API flux_tensor *flux_rand_with(flux_shape s, flux_dtype t);
FLUX_API flux_tensor *flux_randn_with(flux_shape s, flux_dtype t);
#define flux_zeros(...) \
    /* A float32 tensor of these dims, all 0. */ \
    flux_full_with(FLUX_SHAPE(__VA_ARGS__), 0.0, FLUX_F32)
#define flux_ones(...) \
    /* A float32 tensor of these dims, all 1. */ \
    flux_full_with(FLUX_SHAPE(__VA_ARGS__), 1.0, FLUX_F32)
#define flux_full(value, ...) \
    /* A float32 tensor of these dims, every element `value`. */ \
    flux_full_with(FLUX_SHAPE(__VA_ARGS__), value, FLUX_F32)
#define flux_rand(...) \
    /* A float32 tensor of these dims, uniform in [0, 1). */ \
    flux_rand_with(FLUX_SHAPE(__VA_ARGS__), FLUX_F32)
#define flux_randn(...) \
    /* A float32 tensor of these dims, standard normal. */ \
    flux_randn_with(FLUX_SHAPE(__VA_ARGS__), FLUX_F32)
/* int64 numbers from lo to hi-1, all equally likely: flux_randint(0, 10, 2, 3) is a 2 x 3 matrix of
   digits. lo >= hi is an error, and so are numbers beyond 2^53. */
FLUX_API flux_tensor *flux_randint_with(int64_t lo, int64_t hi, flux_shape s);
#define flux_randint(lo, hi, ...) \
    /* int64 numbers from lo to hi-1: flux_randint(0, 10, 2, 3) is a 2 x 3 matrix of digits. */ \
    flux_randint_with(lo, hi, FLUX_SHAPE(__VA_ARGS__))
/* The int64 numbers from 0 to n-1 in random order. */
FLUX_API flux_tensor *flux_randperm(int64_t n);
/* 1 with the probability that p has at this place, else 0: flux_bernoulli(flux_full(0.3, 5)). In
   the shape and dtype of p, without a gradient. */
FLUX_API flux_tensor *flux_bernoulli(flux_tensor *p);
typedef struct flux_categorical_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO;            /* logits, classes x batch... */
    flux__double temperature FLUX__ZERO;   /* default 1 */
    flux__int64 top_k FLUX__ZERO;         /* from so many classes; default all */
    flux__double top_p FLUX__ZERO;        /* from as few as have this probability together, 0 to 1,
                                             at least one (Holtzman et al. 2020); default 1 */
    flux__marked marked FLUX__ZERO;
} flux_categorical_opts;
#define FLUX__LEFT_OUT_flux_categorical_opts .temperature = FLUX__NO_NUMBER, \
    .top_k = FLUX__NO_INT64, .top_p = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_tensor *flux_categorical_with(flux_categorical_opts o);
#define flux_categorical(...) \
    /* Classes drawn by their logits x, classes x batch...: int64 numbers of the dims behind dim
       0. The probability is softmax(x / temperature); at temperature 0 it is the largest logit's
       class. A class whose logit is -inf is not drawn unless all are. .top_k and .top_p draw from
       the likeliest classes alone (of equal ones all or none), first by .top_k. */ \
    flux_categorical_with(FLUX__OPTS(flux_categorical_opts, __VA_ARGS__))
/* Restarts this thread's random numbers; each thread starts with seed 0. */
FLUX_API void flux_seed(uint64_t seed);
/* The position in this thread's random numbers, an int64 vector of 2, to be saved and set again
   later. flux_set_random_state returns 0, or non-zero if state is no such vector. */
FLUX_API flux_tensor *flux_random_state(void);
/* Goes on from a position that flux_random_state gave. 0, or non-zero if state is none. */
FLUX_API int flux_set_random_state(flux_tensor *state);
/* The float32 vector start, start+step, ..., of the numbers before stop. A step of 0 is an
   error. */
FLUX_API flux_tensor *flux_arange(double start, double stop, double step);
/* The float32 vector of n numbers from start to stop, both included, at equal distances. */
FLUX_API flux_tensor *flux_linspace(double start, double stop, int64_t n);
#define flux_values(...) \
    /* The float32 vector of up to 32 numbers: flux_values(1, 2.5, 3). */ \
    flux_values_with(FLUX__NARG(__VA_ARGS__), FLUX__DOUBLES_OF(__VA_ARGS__))
FLUX_API flux_tensor *flux_values_with(int n, const double *values);
/* The n x n identity matrix. */
FLUX_API flux_tensor *flux_eye(int64_t n);
/* A 0-dimensional float32 tensor. */
FLUX_API flux_tensor *flux_scalar(double value);
/* A tensor from C memory, whose dimension 0 varies fastest. The dtype follows from the pointer's
   type: float, double, int32_t, int64_t, uint8_t or bool. flux_from copies the memory.
   A literal array needs brackets of its own, since a macro's argument ends at any comma that stands
   in none: flux_from(((float[]){1, 2, 3, 4}), 2, 2). Numbers alone: flux_values(1, 2, 3, 4).
   flux_borrow does not copy: the memory must outlive the tensor and must not change. */
#define flux_from(ptr, ...) \
    /* A tensor of these dims, dim 0 fastest, with a copy of C memory: flux_from(&a[0][0], 2,
       3). */ \
    flux_from_with(ptr, FLUX__DTYPE_OF(ptr), FLUX_SHAPE(__VA_ARGS__))
#define flux_borrow(ptr, ...) \
    /* The same without a copy: the memory must outlive the tensor and stay as it is. */ \
    flux_borrow_with(ptr, FLUX__DTYPE_OF(ptr), FLUX_SHAPE(__VA_ARGS__))
#define flux_from_rows(ptr, rows, cols) \
    /* A C array a[rows][cols] as the rows x cols matrix that it looks like: a transposing view of
       a copy. */ \
    flux_transpose(flux_from(ptr, cols, rows))
FLUX_API flux_tensor *flux_from_with(const void *data, flux_dtype t, flux_shape s);
FLUX_API flux_tensor *flux_borrow_with(const void *data, flux_dtype t, flux_shape s);
/* The same values in new memory. */
FLUX_API flux_tensor *flux_copy(flux_tensor *x);

/* ------------------------------------------------------------------ looking at tensors */

/* The value of a tensor that has one element, of any shape. NaN on error. */
FLUX_API double flux_item(flux_tensor *x);
/* See flux_at. */
FLUX_API double flux_at_with(flux_tensor *x, flux_shape index);
#define flux_at(x, ...) \
    /* One element: flux_at(w, 2, 0). NaN on error: an index for each dimension is needed, from
       0. */ \
    flux_at_with(x, FLUX_SHAPE(__VA_ARGS__))
/* The elements in host memory, contiguous, dimension 0 fastest; valid as long as x lives. NULL on
   error. */
FLUX_API const void *flux_data(flux_tensor *x);
#define flux_floats(x) \
    /* flux_data of a tensor that must be float32, which is not checked. */ \
    ((const float *)flux_data(x))
/* Copies the elements to out, as flux_data has them. bytes must be exactly their size. Returns 0,
   or non-zero on error. */
FLUX_API int flux_read(flux_tensor *x, void *out, size_t bytes);
/* How many dimensions x has; -1 for NULL. */
FLUX_API int flux_ndim(const flux_tensor *x);
/* The size of one dimension: 1 if dim is past the last one; -1 for NULL. */
FLUX_API int64_t flux_dim(const flux_tensor *x, int dim);
/* How long x is: a tensor's elements, a loader's batches in an epoch (flux_length) or a folder's
   images (flux_folder_length); -1 for NULL. */
FLUX_API int64_t flux_len(const flux_tensor *x);
/* The sizes of x; .ndim is -1 for NULL. */
FLUX_API flux_shape flux_shape_of(const flux_tensor *x);
/* The element type of x; FLUX_F32 for NULL. */
FLUX_API flux_dtype flux_dtype_of(const flux_tensor *x);
/* "f32", "bool", ... */
FLUX_API const char *flux_dtype_name(flux_dtype t);
/* Bytes of one element. */
FLUX_API size_t flux_dtype_size(flux_dtype t);
/* Computes x now. Returns x, or NULL on error. */
FLUX_API flux_tensor *flux_eval(flux_tensor *x);
/* Computes several now. 0, or non-zero on error. */
FLUX_API int flux_eval_all(int n, flux_tensor *const *xs);
/* Writes the kernels that computing x takes as Graphviz text, for `dot -Tsvg`, to a file (NULL:
   stdout). Computes nothing. Returns 0, or non-zero on error. */
FLUX_API int flux_graph_dot(flux_tensor *x, const char *path);
/* The functions behind flux_print(x), by the type of x. They print to stdout. */
FLUX_API void flux_print_tensor(flux_tensor *x);
FLUX_API void flux_print_layer(flux_layer *m);
FLUX_API void flux_print_loader(flux_loader *l);
FLUX_API void flux_print_state(flux_state *s);
/* Names, norms, largest, NaN and Inf. */
FLUX_API void flux_print_grads(flux_grads *g);
/* The ..._text functions give the text that flux_print would print, as snprintf does: they write at
   most n bytes to out, the final 0 included, and return the length of the whole text. */
FLUX_API size_t flux_tensor_text(flux_tensor *x, char *out, size_t n);
/* Of a layer; the length of the whole text. */
FLUX_API size_t flux_layer_text(flux_layer *m, char *out, size_t n);
/* Prints a table of a model's layers for an input of this shape: what each gives, its parameters,
   the multiply-adds of its products, the bytes of its output: flux_summary(model, 784, 64). Nothing
   is computed. No line is longer than 80 characters. A * marks parameters that are frozen. */
FLUX_API void flux_summary_with(flux_layer *m, flux_shape in);
#define flux_summary(m, ...) \
    /* Prints a model's layers, for an input of these dims: flux_summary(model, 784, 64). */ \
    flux_summary_with(m, FLUX_SHAPE(__VA_ARGS__))
/* What flux_summary prints, as snprintf gives it. */
FLUX_API size_t flux_summary_text(flux_layer *m, flux_shape in, char *out, size_t n);
/* Where the time goes. flux_profile(f, user) calls f(user) and prints what was computed meanwhile:
   a row for each layer and kind of kernel, the slowest first, with its time and share, how often
   it ran, multiply-adds of products and attention, and bytes read and written, by the second, and
   the bytes of its result. A row belongs to the layer whose call recorded it ("layers.2 Dense"),
   or whose gradient it is ("layers.2 Dense backward"); a kernel of several fused operations to
   that of its product, or else of its result. Kernels run one by one meanwhile, waited for each,
   so that a GPU takes longer in all. flux_profile_start and flux_profile_stop begin and end the
   same for the calls between them; flux_print_profile and flux_profile_text give what was measured
   since the last start. FLUX_PROFILE=1 in the environment measures the whole program and prints to
   stderr at its end; a FLUX_TRACE has the same names. */
FLUX_API void flux_profile(void (*f)(void *user), void *user);
/* Measures from here on. */
FLUX_API void flux_profile_start(void);
/* Measures no more. */
FLUX_API void flux_profile_stop(void);
/* Prints what was measured since the last flux_profile_start. */
FLUX_API void flux_print_profile(void);
/* The same as text, as snprintf gives it. */
FLUX_API size_t flux_profile_text(char *out, size_t n);
/* Of a loader; the length of the whole text. */
FLUX_API size_t flux_loader_text(flux_loader *l, char *out, size_t n);
/* Of an optimiser's state; the length of the whole text. */
FLUX_API size_t flux_state_text(flux_state *s, char *out, size_t n);
/* Of gradients; the length of the whole text. */
FLUX_API size_t flux_grads_text(flux_grads *g, char *out, size_t n);
/* Sets how many rows, and characters of a line, a printed tensor takes before it is elided. 0 means
   the default: 20 rows, 80 characters. */
FLUX_API void flux_print_limits(int rows, int columns);
/* Whether to print ASCII only, as FLUX_ASCII=1 does: x for the times sign, sigmoid for sigma. */
FLUX_API void flux_print_ascii(bool on);
/* A number of bytes as people read it, as snprintf does: "3.004 KiB". */
FLUX_API size_t flux_format_bytes(int64_t bytes, char *out, size_t n);

#endif /* FLUX__API_TENSORS_H */
