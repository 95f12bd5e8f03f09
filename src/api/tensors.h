#ifndef FLUX__API_TENSORS_H
#define FLUX__API_TENSORS_H
#include "devices.h"

/* ------------------------------------------------------------------ making tensors
   A shape is written as its dimensions: flux_zeros(2, 5) is a 2 x 5 matrix; float32 unless the name says otherwise. */

FLUX_API flux_tensor *flux_full_shape(flux_shape s, double value, flux_dtype t);   /* value as flux_to_dtype makes it of float64 */
FLUX_API flux_tensor *flux_rand_shape(flux_shape s, flux_dtype t);    /* below 1 in every dtype; f64 has 53 random bits, f32 24 */
FLUX_API flux_tensor *flux_randn_shape(flux_shape s, flux_dtype t);
#define flux_zeros(...) flux_full_shape(FLUX_SHAPE(__VA_ARGS__), 0.0, FLUX_F32)
#define flux_ones(...) flux_full_shape(FLUX_SHAPE(__VA_ARGS__), 1.0, FLUX_F32)
#define flux_full(value, ...) flux_full_shape(FLUX_SHAPE(__VA_ARGS__), value, FLUX_F32)
#define flux_rand(...) flux_rand_shape(FLUX_SHAPE(__VA_ARGS__), FLUX_F32)     /* uniform in [0, 1) */
#define flux_randn(...) flux_randn_shape(FLUX_SHAPE(__VA_ARGS__), FLUX_F32)   /* standard normal */
FLUX_API void flux_seed(uint64_t seed);   /* restarts the thread's random numbers; every thread starts with seed 0 */
/* Where the thread's random numbers are, as two int64, to be saved and to go on from there. 0: done. */
FLUX_API flux_tensor *flux_random_state(void);
FLUX_API int flux_set_random_state(flux_tensor *state);
FLUX_API flux_tensor *flux_arange(double start, double stop, double step);  /* float32, start, start+step, ... before stop */
FLUX_API flux_tensor *flux_eye(int64_t n);                        /* n x n identity */
FLUX_API flux_tensor *flux_scalar(double value);                  /* 0-dimensional float32 */
/* From C memory, dim 0 fastest, dtype by the pointer's type: float, double, int32_t, int64_t, uint8_t, bool.
   flux_from copies. flux_borrow does not: the memory must outlive the tensor and must not change. */
#define flux_from(ptr, ...) flux_from_data(ptr, FLUX__DTYPE_OF(ptr), FLUX_SHAPE(__VA_ARGS__))
#define flux_borrow(ptr, ...) flux_borrow_data(ptr, FLUX__DTYPE_OF(ptr), FLUX_SHAPE(__VA_ARGS__))
/* A C array a[rows][cols] as the rows x cols matrix that it looks like (a transposing view of a copy). */
#define flux_from_rows(ptr, rows, cols) flux_transpose(flux_from(ptr, cols, rows))
FLUX_API flux_tensor *flux_from_data(const void *data, flux_dtype t, flux_shape s);
FLUX_API flux_tensor *flux_borrow_data(const void *data, flux_dtype t, flux_shape s);
FLUX_API flux_tensor *flux_copy(flux_tensor *x);                  /* a tensor with memory of its own */

/* ------------------------------------------------------------------ looking at tensors */

FLUX_API double flux_item(flux_tensor *x);                        /* the value of a one-element tensor; NaN on error */
FLUX_API double flux_at_shape(flux_tensor *x, flux_shape index);  /* see flux_at */
#define flux_at(x, ...) flux_at_shape(x, FLUX_SHAPE(__VA_ARGS__)) /* one element: flux_at(w, 2, 0); NaN on error */
FLUX_API const void *flux_data(flux_tensor *x);                   /* its elements in host memory, dim 0 fastest; lives as long as x */
#define flux_floats(x) ((const float *)flux_data(x))              /* of a float32 tensor */
FLUX_API int flux_read(flux_tensor *x, void *out, size_t bytes);  /* copies flux_data; bytes must be its exact size. 0: done */
FLUX_API int flux_ndim(const flux_tensor *x);                     /* -1 for NULL */
FLUX_API int64_t flux_dim(const flux_tensor *x, int dim);         /* 1 past the last dimension; -1 for NULL */
FLUX_API int64_t flux_len(const flux_tensor *x);                  /* number of elements; -1 for NULL */
FLUX_API flux_shape flux_shape_of(const flux_tensor *x);
FLUX_API flux_dtype flux_dtype_of(const flux_tensor *x);
FLUX_API const char *flux_dtype_name(flux_dtype t);               /* "f32", ... */
FLUX_API size_t flux_dtype_size(flux_dtype t);                    /* bytes an element */
FLUX_API flux_tensor *flux_eval(flux_tensor *x);                  /* computes it now; returns it, NULL on error */
FLUX_API int flux_eval_all(int n, flux_tensor *const *xs);        /* several at once; 0: done */
/* The kernels that computing x takes, as Graphviz text for `dot -Tsvg`, to a file (NULL: stdout). Computes nothing; 0: done. */
FLUX_API int flux_graph_dot(flux_tensor *x, const char *path);
FLUX_API void flux_print_tensor(flux_tensor *x);                  /* to stdout */
FLUX_API void flux_print_layer(flux_layer *m);
FLUX_API void flux_print_loader(flux_loader *l);
FLUX_API void flux_print_state(flux_state *s);
/* The text that flux_print would print, as snprintf does: writes at most n bytes, returns the length needed. */
FLUX_API size_t flux_tensor_text(flux_tensor *x, char *out, size_t n);
FLUX_API size_t flux_layer_text(flux_layer *m, char *out, size_t n);
/* What each layer gives for an input of this shape, its parameters, multiply-adds of products, bytes of its output:
   flux_summary(model, 784, 64). Nothing is computed. No line is longer than 80 characters; a * marks parameters that
   flux_freeze holds. */
FLUX_API void flux_summary_of(flux_layer *m, flux_shape in);
#define flux_summary(m, ...) flux_summary_of(m, FLUX_SHAPE(__VA_ARGS__))
FLUX_API size_t flux_summary_text(flux_layer *m, flux_shape in, char *out, size_t n);
FLUX_API size_t flux_loader_text(flux_loader *l, char *out, size_t n);
FLUX_API size_t flux_state_text(flux_state *s, char *out, size_t n);
FLUX_API void flux_print_limits(int rows, int columns);           /* elide what is more; 0, 0: the defaults, 20 and 80 characters */
FLUX_API void flux_print_ascii(bool on);                          /* x for the times sign, sigma, ...; also FLUX_ASCII=1 */
FLUX_API size_t flux_format_bytes(int64_t bytes, char *out, size_t n);   /* "3.004 KiB" */

#endif /* FLUX__API_TENSORS_H */
