/* flux.h - deep learning in one C header.                       public domain or MIT, see the end

   Drop this file into a project. In ONE source file write

       #define FLUX_IMPLEMENTATION
       #include "flux.h"

   and compile with `cc prog.c -lm`. Every other file just includes it.

   A first program: learn XOR.

       #define FLUX_IMPLEMENTATION
       #include "flux.h"

       int main(void) {
           float in[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}}, out[4] = {0, 1, 1, 0};
           flux_tensor *x = flux_from(&in[0][0], 2, 4);          // 2 features x 4 samples
           flux_tensor *y = flux_from(out, 1, 4);
           flux_layer *m = flux_chain(flux_dense(2, 8, flux_tanh), flux_dense(8, 1));
           flux_state *opt = flux_setup(flux_adam(0.05), m);
           for (int i = 0; i < 300; i++) FLUX_SCOPE {
               flux_tensor *loss = flux_logitbinarycrossentropy(flux_call(m, x), y);
               flux_update(opt, m, flux_gradient(loss, m));
           }
           flux_print(flux_sigmoid(flux_call(m, x)));
           return flux_failed();
       }

   HOW IT WORKS, IN FIVE RULES

   1. Operations record, looking computes. flux_add(a, b) checks shapes and dtypes there and then and
      returns at once; numbers are computed when somebody looks (flux_item, flux_data, flux_print,
      flux_save, flux_update, flux_eval), fused into as few passes over memory as can be.
   2. Tensors are values. Nothing that you hold ever changes: an operation makes a new tensor.
      (flux_update reuses the memory of weights that nobody else holds.)
   3. Memory has a scope. What a call returns belongs to the innermost open scope (FLUX_SCOPE, an
      iteration of flux_each, or the program) and goes when that closes. flux_keep hands a value to
      the scope outside; flux_retain and flux_release are the manual way. A value keeps what it was
      computed from, for its gradient, until flux_detach or flux_update lets that go.
   4. Errors are values. A call that can't be done returns NULL (or non-zero, or NaN), says why in one
      sentence (printed once to stderr, kept in flux_error()), and changes nothing. NULL in gives
      NULL out silently, so a chain of calls is checked once, at its end, with flux_failed().
   5. Column-major, features first, batch last. Dimension 0 varies fastest: C's `float img[N][H][W]` is
      the tensor W x H x N, with no copy. Indices, dimensions and device ids count from 0.

   OPTIONS BEFORE THE #include
       FLUX_IMPLEMENTATION   the code, in one file
       FLUX_STATIC           everything static: private to the file that includes it
       FLUX_NO_THREADS       no worker threads, no thread-local state
       FLUX_MALLOC(n), FLUX_REALLOC(p, n), FLUX_FREE(p)      your own allocator; define all three

   ENVIRONMENT
       FLUX_NUM_THREADS=n    threads for CPU work, 1 for none but yours (default: the processors there are)
       FLUX_EAGER=1          compute each operation when it is called: same numbers, for a debugger
       FLUX_ERROR=abort      stop in the debugger at the first error
       FLUX_LOG=level        error, warn, info (default), debug; or "schedule" to list kernels as they are planned
       FLUX_GPU_BACKEND      CUDA, AMDGPU, Metal or CPU: overrides LocalPreferences.toml
       FLUX_PREFERENCES      path of the preferences file, in place of LocalPreferences.toml
       FLUX_ASCII=1          print x and s in place of the Unicode signs
       FLUX_SIMD=name        use no better instruction set than: base, avx2, avx512 (to compare or debug)

   CONTENTS
     1. Platform
     2. Objects, threads' state, errors
     3. What a back end is
     4. Worker threads
     5. The table of operations
     6. The graph
     7. Gradients
     8. The schedule
     9. CPU: loops
     10. Matrix product
     11. The CPU back end
     12. Devices
     13. Printing tensors
     14. Models
     15. Names of functions
     16. Initialisers
     17. Layers
     18. Activations
     19. Losses
     20. Optimisers
     21. Printing models
     22. Data
     23. Files
     24. Formulas
*/
#ifndef FLUX_H
#define FLUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef FLUX_STATIC
#  if defined(__GNUC__)
#    define FLUX_API static __attribute__((unused))
#  else
#    define FLUX_API static
#  endif
#else
#  define FLUX_API extern
#endif

#ifdef __cplusplus
#  define FLUX__DUMMY                  /* C++ has no positional arguments beside designated ones */
#  if __cplusplus >= 201402L
#    define FLUX__ZERO = {}            /* default member initialisers keep -Wextra quiet */
#  else
#    define FLUX__ZERO
#  endif
#  if defined(__clang__)
#    pragma clang diagnostic push         /* structs with defaults are returned by value; C sees them without */
#    pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#  endif
extern "C" {
#else
#  define FLUX__DUMMY char _;          /* `{ ._ = 0, __VA_ARGS__ }` may then be empty, positional or named */
#  define FLUX__ZERO
#endif

#define FLUX_MAX_DIMS 8

/* ------------------------------------------------------------------ types */

typedef struct flux_tensor flux_tensor;   /* an immutable array of numbers, computed when looked at */
typedef struct flux_layer flux_layer;     /* a model or a part of one */
typedef struct flux_loader flux_loader;   /* hands out a data set in batches */
typedef struct flux_state flux_state;     /* an optimiser's state for one model */
typedef struct flux_grads flux_grads;     /* gradients, found by the tensor they belong to */

typedef enum flux_dtype {                 /* element type of a tensor */
    FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL, FLUX_NUM_DTYPES
} flux_dtype;

typedef enum flux_switch { FLUX_DEFAULT, FLUX_ON, FLUX_OFF } flux_switch;   /* an option that is on unless said */

typedef struct flux_shape { int ndim; int64_t dim[FLUX_MAX_DIMS]; } flux_shape;
typedef struct flux_device { int backend, id; } flux_device;                /* {0, 0} is the CPU */

typedef flux_tensor *(*flux_fn)(flux_tensor *);                             /* an activation, say */
typedef flux_tensor *(*flux_fn2)(flux_tensor *, flux_tensor *);             /* a connection, say flux_add */

/* ------------------------------------------------------------------ errors and messages
   Pending errors belong to the thread that made them. */

FLUX_API const char *flux_error(void);    /* the first pending error's sentence, or "" */
FLUX_API bool flux_failed(void);          /* whether an error is pending; main can return it */
FLUX_API void flux_clear(void);           /* forget the pending error */
typedef void (*flux_error_fn)(const char *message, void *user);
FLUX_API void flux_on_error(flux_error_fn handler, void *user);   /* called in place of printing; NULL: print again */

typedef enum flux_level { FLUX_LOG_ERROR, FLUX_LOG_WARN, FLUX_LOG_INFO, FLUX_LOG_DEBUG } flux_level;
typedef void (*flux_log_fn)(flux_level level, const char *id, const char *message, void *user);
FLUX_API void flux_log_level(flux_level most);                    /* messages above this level are dropped */
FLUX_API void flux_on_log(flux_log_fn handler, void *user);       /* called in place of printing; NULL: print again */
FLUX_API void flux_silence(const char *id);  /* never show the message of this id ("gpu.none", ...); NULL: show all again,
                                                and once-only ones once more */

/* ------------------------------------------------------------------ memory */

FLUX_API void flux_scope_open(void);      /* what is made from here on belongs to this scope */
FLUX_API void flux_scope_close(void);     /* frees it; scopes left open inside are closed too */
FLUX_API void *flux_retain(const void *object);    /* one more owner: any handle; returns it. NULL is fine */
FLUX_API void flux_release(const void *object);    /* one owner less; the last one frees it */
FLUX_API void *flux_keep_object(const void *object);      /* see flux_keep */
FLUX_API void flux_assign(flux_tensor **field, flux_tensor *value);  /* field = value, owners counted: for a layer's state */

/* FLUX_SCOPE { ... }: temporaries made inside are freed at its end. `break` leaves the scope; `return` is fine
   with gcc, clang and C++ (elsewhere the scope outside cleans up). */
#define FLUX_SCOPE FLUX__BLOCK(flux__scope_enter, flux__scope_leave)
/* FLUX_NOGRAD { ... }: what is recorded inside keeps no graph, so memory goes at once; layers are in test mode. */
#define FLUX_NOGRAD FLUX__BLOCK(flux__nograd_enter, flux__nograd_leave)
/* flux_keep(x): hands x (tensor, layer, ...) from the innermost scope to the one outside, and returns it. */
#define flux_keep(x) FLUX__SAME_TYPE(x, flux_keep_object(x))

FLUX_API void flux_threads(int n);        /* threads for CPU work from now on, yours included; 0: as many as processors */
FLUX_API void flux_shutdown(void);        /* frees everything that is still alive; called at exit, and harmless twice */

/* ------------------------------------------------------------------ devices
   Names of back ends, in the order of preference: CUDA, AMDGPU, Metal, CPU. */

FLUX_API const char *const *flux_supported_devices(void);         /* those four names, NULL at the end, on any machine */
FLUX_API bool flux_functional(const char *backend);               /* can it be used here? never an error for the four names */
FLUX_API bool flux_functional_with(const char *backend, const char *component);  /* "driver", "compiler", "NCCL", "MIOpen", ... */
FLUX_API const char *flux_functional_reason(const char *backend); /* one sentence: why not, or "functional" */
FLUX_API int flux_device_count(const char *backend);              /* devices of it that can be used, 0 if none */

typedef struct flux_get_device_opts {
    FLUX__DUMMY
    const char *backend FLUX__ZERO;       /* NULL: by preference, then the first that works */
    int id FLUX__ZERO;                    /* 0 ... count-1; ignored for the CPU */
    bool verbose FLUX__ZERO;              /* say on stderr what was chosen, and why */
} flux_get_device_opts;
FLUX_API flux_device flux_get_device_with(flux_get_device_opts opts);
/* flux_get_device(.backend = "CUDA", .id = 1), or flux_get_device() for the best one there is (the CPU at worst).
   On error (unknown or unavailable back end, bad id): .backend is -1. */
#define flux_get_device(...) flux_get_device_with(FLUX__OPTS(flux_get_device_opts, __VA_ARGS__))
FLUX_API int flux_get_devices(const char *backend, flux_device *out, int max);   /* how many there are; fills at most max */
FLUX_API const char *flux_device_name(flux_device d);             /* "CPU", "CUDA device 0: NVIDIA H200", ... */
FLUX_API int flux_device_id(flux_device d);
FLUX_API const char *flux_device_backend(flux_device d);          /* "CPU", "CUDA", ... */
FLUX_API bool flux_device_equal(flux_device a, flux_device b);
FLUX_API void flux_synchronise_device(flux_device d);             /* waits until all work there is done */

FLUX_API const char *flux_gpu_backend(void);             /* the preferred back end, "CUDA" when none is set */
FLUX_API bool flux_gpu_backend_is_set(void);
/* Stores the preference in LocalPreferences.toml (table [Flux], key gpu_backend), at once and for later runs.
   NULL or "": forget it. Returns 0, or non-zero for an unknown name or a file that can't be written. */
FLUX_API int flux_gpu_backend_set(const char *backend);

typedef struct flux_mem { int64_t live, peak, reserved, limit; } flux_mem;   /* bytes */
FLUX_API flux_mem flux_mem_stats(flux_device d);         /* in tensors now, the most so far, held by the pool, the limit (0: none) */
FLUX_API void flux_mem_limit(flux_device d, int64_t bytes);       /* allocations beyond are errors; 0: none */
FLUX_API void flux_mem_trim(flux_device d);              /* gives the pool's unused memory back */

/* Moves: a tensor, layer, loader or optimiser state. What is there already is returned as it is.
   flux_gpu   to the preferred GPU, float64 becoming float32; without one says once why, and returns its argument
   flux_cpu   to host memory
   flux_to    to a device: flux_to(device, x)
   flux_cu, flux_roc   to a CUDA or AMD GPU as flux_gpu does. Where that back end does not work they also return their
              argument, with a warning: a program that needs the GPU asks flux_functional. */
FLUX_API flux_tensor *flux_gpu(flux_tensor *x);
FLUX_API flux_tensor *flux_cpu(flux_tensor *x);
FLUX_API flux_tensor *flux_cu(flux_tensor *x);
FLUX_API flux_tensor *flux_roc(flux_tensor *x);
FLUX_API flux_tensor *flux_to_tensor(flux_device d, flux_tensor *x);
FLUX_API flux_layer *flux_gpu_layer(flux_layer *m);
FLUX_API flux_layer *flux_cpu_layer(flux_layer *m);
FLUX_API flux_layer *flux_cu_layer(flux_layer *m);
FLUX_API flux_layer *flux_roc_layer(flux_layer *m);
FLUX_API flux_layer *flux_to_layer(flux_device d, flux_layer *m);
FLUX_API flux_loader *flux_gpu_loader(flux_loader *l);
FLUX_API flux_loader *flux_cpu_loader(flux_loader *l);
FLUX_API flux_loader *flux_cu_loader(flux_loader *l);
FLUX_API flux_loader *flux_roc_loader(flux_loader *l);
FLUX_API flux_loader *flux_to_loader(flux_device d, flux_loader *l);
FLUX_API flux_state *flux_gpu_state(flux_state *s);
FLUX_API flux_state *flux_cpu_state(flux_state *s);
FLUX_API flux_state *flux_cu_state(flux_state *s);
FLUX_API flux_state *flux_roc_state(flux_state *s);
FLUX_API flux_state *flux_to_state(flux_device d, flux_state *s);
FLUX_API flux_device flux_device_of_tensor(const flux_tensor *x);
FLUX_API flux_device flux_device_of_layer(const flux_layer *m);  /* of its tensors; .backend -1 and an error when they differ */
FLUX_API flux_device flux_device_of_loader(const flux_loader *l);
FLUX_API flux_device flux_device_of_state(const flux_state *s);

/* ------------------------------------------------------------------ making tensors
   A shape is written as its dimensions: flux_zeros(2, 5) is a 2 x 5 matrix; float32 unless the name says otherwise. */

FLUX_API flux_tensor *flux_full_shape(flux_shape s, double value, flux_dtype t);
FLUX_API flux_tensor *flux_rand_shape(flux_shape s, flux_dtype t);
FLUX_API flux_tensor *flux_randn_shape(flux_shape s, flux_dtype t);
#define flux_zeros(...) flux_full_shape(FLUX_SHAPE(__VA_ARGS__), 0.0, FLUX_F32)
#define flux_ones(...) flux_full_shape(FLUX_SHAPE(__VA_ARGS__), 1.0, FLUX_F32)
#define flux_full(value, ...) flux_full_shape(FLUX_SHAPE(__VA_ARGS__), value, FLUX_F32)
#define flux_rand(...) flux_rand_shape(FLUX_SHAPE(__VA_ARGS__), FLUX_F32)     /* uniform in [0, 1) */
#define flux_randn(...) flux_randn_shape(FLUX_SHAPE(__VA_ARGS__), FLUX_F32)   /* standard normal */
FLUX_API void flux_seed(uint64_t seed);   /* restarts the thread's random numbers; every thread starts with seed 0 */
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
FLUX_API void flux_print_tensor(flux_tensor *x);                  /* to stdout */
FLUX_API void flux_print_layer(flux_layer *m);
FLUX_API void flux_print_loader(flux_loader *l);
FLUX_API void flux_print_state(flux_state *s);
/* The text that flux_print would print, as snprintf does: writes at most n bytes, returns the length needed. */
FLUX_API size_t flux_tensor_text(flux_tensor *x, char *out, size_t n);
FLUX_API size_t flux_layer_text(flux_layer *m, char *out, size_t n);
FLUX_API size_t flux_loader_text(flux_loader *l, char *out, size_t n);
FLUX_API size_t flux_state_text(flux_state *s, char *out, size_t n);
FLUX_API void flux_print_limits(int rows, int columns);           /* elide what is more; 0, 0: the defaults, 20 and 80 characters */
FLUX_API void flux_print_ascii(bool on);                          /* x for the times sign, sigma, ...; also FLUX_ASCII=1 */
FLUX_API size_t flux_format_bytes(int64_t bytes, char *out, size_t n);   /* "3.004 KiB" */

/* ------------------------------------------------------------------ elementwise operations
   Shapes broadcast as in Julia: aligned at dim 0, a dimension of 1 (or one that is missing at the end) stretches.
   Dtypes meet at the wider one (float over int over bool; f16 with bf16 gives f32). A plain number may stand for
   either operand and takes the other's dtype. Comparisons give bool. */

FLUX_API flux_tensor *flux_add(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_sub(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_mul(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_div(flux_tensor *a, flux_tensor *b);   /* of integers: float32 */
FLUX_API flux_tensor *flux_pow(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_max2(flux_tensor *a, flux_tensor *b);  /* the larger; NaN if either is */
FLUX_API flux_tensor *flux_min2(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_eq(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_ne(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_lt(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_le(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_gt(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_ge(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_and(flux_tensor *a, flux_tensor *b);   /* of bools, as are or, not */
FLUX_API flux_tensor *flux_or(flux_tensor *a, flux_tensor *b);
FLUX_API flux_tensor *flux_not(flux_tensor *a);
FLUX_API flux_tensor *flux_where(flux_tensor *cond, flux_tensor *a, flux_tensor *b);   /* cond ? a : b */
FLUX_API flux_tensor *flux_clamp(flux_tensor *x, double lo, double hi);
FLUX_API flux_tensor *flux_neg(flux_tensor *x);
FLUX_API flux_tensor *flux_abs(flux_tensor *x);
FLUX_API flux_tensor *flux_sign(flux_tensor *x);
FLUX_API flux_tensor *flux_sqrt(flux_tensor *x);
FLUX_API flux_tensor *flux_rsqrt(flux_tensor *x);                 /* 1/sqrt(x) */
FLUX_API flux_tensor *flux_square(flux_tensor *x);
FLUX_API flux_tensor *flux_exp(flux_tensor *x);
FLUX_API flux_tensor *flux_log(flux_tensor *x);
FLUX_API flux_tensor *flux_log1p(flux_tensor *x);                 /* log(1+x) */
FLUX_API flux_tensor *flux_expm1(flux_tensor *x);                 /* exp(x)-1 */
FLUX_API flux_tensor *flux_sin(flux_tensor *x);
FLUX_API flux_tensor *flux_cos(flux_tensor *x);
FLUX_API flux_tensor *flux_erf(flux_tensor *x);
FLUX_API flux_tensor *flux_floor(flux_tensor *x);
FLUX_API flux_tensor *flux_ceil(flux_tensor *x);
FLUX_API flux_tensor *flux_round(flux_tensor *x);                 /* halves to even */
FLUX_API flux_tensor *flux_detach(flux_tensor *x);                /* the same value, no gradient through it */
FLUX_API flux_tensor *flux_to_dtype(flux_tensor *x, flux_dtype t);

/* ------------------------------------------------------------------ activations (NNlib's definitions)
   Each is also a value to hand to a layer: flux_dense(10, 5, flux_gelu). Those with a parameter take it as an option:
   flux_leakyrelu(x, .alpha = 0.2). */

FLUX_API flux_tensor *flux_identity(flux_tensor *x);
FLUX_API flux_tensor *flux_sigmoid(flux_tensor *x);               /* 1/(1+exp(-x)) */
FLUX_API flux_tensor *flux_hardsigmoid(flux_tensor *x);           /* clamp((x+3)/6, 0, 1) */
FLUX_API flux_tensor *flux_logsigmoid(flux_tensor *x);            /* log(sigmoid(x)) */
FLUX_API flux_tensor *flux_tanh(flux_tensor *x);
FLUX_API flux_tensor *flux_hardtanh(flux_tensor *x);              /* clamp(x, -1, 1) */
FLUX_API flux_tensor *flux_relu(flux_tensor *x);
FLUX_API flux_tensor *flux_relu6(flux_tensor *x);                 /* clamp(x, 0, 6) */
FLUX_API flux_tensor *flux_selu(flux_tensor *x);
FLUX_API flux_tensor *flux_gelu(flux_tensor *x);                  /* tanh form: x/2 (1+tanh(sqrt(2/pi)(x+0.044715x^3))) */
FLUX_API flux_tensor *flux_gelu_tanh(flux_tensor *x);             /* the same */
FLUX_API flux_tensor *flux_gelu_sigmoid(flux_tensor *x);          /* x sigmoid(sqrt(8/pi)(x+0.044715x^3)) */
FLUX_API flux_tensor *flux_gelu_erf(flux_tensor *x);              /* x/2 (1+erf(x/sqrt 2)) */
FLUX_API flux_tensor *flux_swish(flux_tensor *x);                 /* x sigmoid(x) */
FLUX_API flux_tensor *flux_hardswish(flux_tensor *x);             /* x hardsigmoid(x) */
FLUX_API flux_tensor *flux_lisht(flux_tensor *x);                 /* x tanh(x) */
FLUX_API flux_tensor *flux_logcosh(flux_tensor *x);               /* log(cosh(x)) */
FLUX_API flux_tensor *flux_mish(flux_tensor *x);                  /* x tanh(softplus(x)) */
FLUX_API flux_tensor *flux_softplus(flux_tensor *x);              /* log(1+exp(x)) */
FLUX_API flux_tensor *flux_softsign(flux_tensor *x);              /* x/(1+|x|) */
FLUX_API flux_tensor *flux_tanhshrink(flux_tensor *x);            /* x-tanh(x) */
FLUX_API flux_tensor *flux_leakyrelu(flux_tensor *x);             /* x>0 ? x : alpha x, alpha 0.01 */
FLUX_API flux_tensor *flux_rrelu(flux_tensor *x);                 /* leaky with random slopes in [lo, hi), 1/8 and 1/3 */
FLUX_API flux_tensor *flux_elu(flux_tensor *x);                   /* x>0 ? x : alpha (exp(x)-1), alpha 1 */
FLUX_API flux_tensor *flux_celu(flux_tensor *x);                  /* max(0,x) + min(0, alpha (exp(x/alpha)-1)), alpha 1 */
FLUX_API flux_tensor *flux_softshrink(flux_tensor *x);            /* sign(x) max(|x|-alpha, 0), alpha 0.5 */
FLUX_API flux_tensor *flux_trelu(flux_tensor *x);                 /* x>alpha ? x : 0, alpha 1 */
typedef struct flux_act_opts { flux_tensor *x FLUX__ZERO; double alpha FLUX__ZERO, lo FLUX__ZERO, hi FLUX__ZERO; FLUX__DUMMY } flux_act_opts;
FLUX_API flux_tensor *flux_leakyrelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_rrelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_elu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_celu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_softshrink_with(flux_act_opts o);
FLUX_API flux_tensor *flux_trelu_with(flux_act_opts o);
FLUX_API flux_tensor *flux_glu(flux_tensor *x, int dim);          /* first half of dim times sigmoid of the second */
FLUX_API void flux_name_function(flux_fn f, const char *name);    /* how a function of yours prints inside a layer */

/* ------------------------------------------------------------------ reductions
   Over all dimensions, flux_sum(x), giving a 0-dimensional tensor; or over given ones, which stay with size 1:
   flux_sum(x, 0), flux_sum(x, 0, 2). */

typedef struct flux_reduce_opts {
    flux_tensor *x FLUX__ZERO;
    int d0 FLUX__ZERO, d1 FLUX__ZERO, d2 FLUX__ZERO, d3 FLUX__ZERO, d4 FLUX__ZERO, d5 FLUX__ZERO, d6 FLUX__ZERO, d7 FLUX__ZERO;
    FLUX__DUMMY
} flux_reduce_opts;
#define FLUX__REDUCE(f, ...) f(FLUX__NARG(__VA_ARGS__) - 1, FLUX__REDUCE_OPTS(__VA_ARGS__))
FLUX_API flux_tensor *flux_sum_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_mean_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_var_over(int n, flux_reduce_opts o);   /* divided by n, not n-1 */
FLUX_API flux_tensor *flux_prod_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_max_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_min_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_any_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_all_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_norm_over(int n, flux_reduce_opts o);  /* square root of the sum of squares */
FLUX_API flux_tensor *flux_logsumexp_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_argmax_over(int n, flux_reduce_opts o);   /* int64, the first of equals; one dim or all */
FLUX_API flux_tensor *flux_argmin_over(int n, flux_reduce_opts o);
FLUX_API flux_tensor *flux_softmax_over(int n, flux_reduce_opts o);     /* exp(x)/sum(exp(x)); over dim 0 if none is given */
FLUX_API flux_tensor *flux_logsoftmax_over(int n, flux_reduce_opts o);  /* log of that */
FLUX_API flux_tensor *flux_sum(flux_tensor *x);
FLUX_API flux_tensor *flux_mean(flux_tensor *x);
FLUX_API flux_tensor *flux_var(flux_tensor *x);
FLUX_API flux_tensor *flux_prod(flux_tensor *x);
FLUX_API flux_tensor *flux_max(flux_tensor *x);
FLUX_API flux_tensor *flux_min(flux_tensor *x);
FLUX_API flux_tensor *flux_any(flux_tensor *x);
FLUX_API flux_tensor *flux_all(flux_tensor *x);
FLUX_API flux_tensor *flux_norm(flux_tensor *x);
FLUX_API flux_tensor *flux_logsumexp(flux_tensor *x);
FLUX_API flux_tensor *flux_argmax(flux_tensor *x);
FLUX_API flux_tensor *flux_argmin(flux_tensor *x);
FLUX_API flux_tensor *flux_softmax(flux_tensor *x);               /* over dim 0 */
FLUX_API flux_tensor *flux_logsoftmax(flux_tensor *x);            /* over dim 0 */

/* ------------------------------------------------------------------ shapes
   Views cost nothing: no data moves until somebody needs it in order. */

FLUX_API flux_tensor *flux_reshape_to(flux_tensor *x, flux_shape s);      /* one dimension may be -1: what is left */
#define flux_reshape(x, ...) flux_reshape_to(x, FLUX_SHAPE(__VA_ARGS__))
FLUX_API flux_tensor *flux_flatten(flux_tensor *x);               /* all but the last dimension become one */
FLUX_API flux_tensor *flux_permute_to(flux_tensor *x, flux_shape order);
#define flux_permute(x, ...) flux_permute_to(x, FLUX_SHAPE(__VA_ARGS__))  /* dim i of the result is dim order[i] of x */
FLUX_API flux_tensor *flux_transpose(flux_tensor *x);             /* swaps dims 0 and 1; a vector becomes a 1 x n row */
FLUX_API flux_tensor *flux_slice(flux_tensor *x, int dim, int64_t start, int64_t stop);   /* start <= i < stop */
FLUX_API flux_tensor *flux_slice_step(flux_tensor *x, int dim, int64_t start, int64_t stop, int64_t step);
FLUX_API flux_tensor *flux_take(flux_tensor *x, int64_t n);       /* the first n observations (last dimension) */
FLUX_API flux_tensor *flux_drop(flux_tensor *x, int64_t n);       /* all but the first n */
FLUX_API flux_tensor *flux_select(flux_tensor *x, int dim, int64_t index);   /* that index; the dimension goes */
FLUX_API flux_tensor *flux_unsqueeze(flux_tensor *x, int dim);    /* a new dimension of 1 before dim */
FLUX_API flux_tensor *flux_squeeze(flux_tensor *x);               /* drops every dimension of 1 */
FLUX_API flux_tensor *flux_broadcast_to_shape(flux_tensor *x, flux_shape s);
#define flux_broadcast_to(x, ...) flux_broadcast_to_shape(x, FLUX_SHAPE(__VA_ARGS__))
FLUX_API flux_tensor *flux_flip_dims(flux_tensor *x, flux_shape dims);
#define flux_flip(x, ...) flux_flip_dims(x, FLUX_SHAPE(__VA_ARGS__))      /* reverses these dims */
FLUX_API flux_tensor *flux_repeat_by(flux_tensor *x, flux_shape times);
#define flux_repeat(x, ...) flux_repeat_by(x, FLUX_SHAPE(__VA_ARGS__))    /* tiles: times along each dim */
FLUX_API flux_tensor *flux_pad_by(flux_tensor *x, double value, flux_shape lo, flux_shape hi);
FLUX_API flux_tensor *flux_pad_all(flux_tensor *x, double value, flux_shape lo_hi);
#define flux_pad(x, value, ...) flux_pad_all(x, value, FLUX_SHAPE(__VA_ARGS__))   /* lo0, hi0, lo1, hi1, ... */
FLUX_API flux_tensor *flux_cat_all(int dim, int n, flux_tensor *const *xs);
#define flux_cat(dim, ...) flux_cat_all(dim, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))      /* joined along dim */
FLUX_API flux_tensor *flux_stack_all(int dim, int n, flux_tensor *const *xs);
#define flux_stack(dim, ...) flux_stack_all(dim, FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))  /* along a new dim */
/* Rows of dim picked by an integer tensor: the result has index's dimensions in place of dim. */
FLUX_API flux_tensor *flux_gather(flux_tensor *x, int dim, flux_tensor *index);
/* x with src (shaped as flux_gather(x, dim, index)) added at those places, in order, repeated ones summed. */
FLUX_API flux_tensor *flux_scatter_add(flux_tensor *x, int dim, flux_tensor *index, flux_tensor *src);
/* Several tensors as one value, for layers with more than one input or output; flux_nth takes one out again. */
FLUX_API flux_tensor *flux_tuple_of(int n, flux_tensor *const *xs);
#define flux_tuple(...) flux_tuple_of(FLUX__NARG(__VA_ARGS__), FLUX__TENSORS(__VA_ARGS__))
FLUX_API flux_tensor *flux_nth(flux_tensor *tuple, int i);
FLUX_API int flux_count(const flux_tensor *tuple);                /* its tensors; 1 for a plain tensor */

/* ------------------------------------------------------------------ linear algebra and convolution */

FLUX_API flux_tensor *flux_matmul(flux_tensor *a, flux_tensor *b); /* m x k (x batch) by k x n (x batch); a vector is a column,
                                                                      or on the left a row of its own length */
FLUX_API flux_tensor *flux_outer(flux_tensor *a, flux_tensor *b);  /* vectors of m and n: m x n */
FLUX_API flux_tensor *flux_dot(flux_tensor *a, flux_tensor *b);    /* sum of products: 0-dimensional */
typedef struct flux_conv_opts {            /* x: w (x h (x d)) x channels x batch; weight: k... x in/groups x out */
    flux_tensor *x FLUX__ZERO, *weight FLUX__ZERO;
    flux_shape stride FLUX__ZERO;          /* FLUX_SHAPE(2) or FLUX_SHAPE(2, 1); default 1 */
    flux_shape pad FLUX__ZERO;             /* one number, one a dimension, or lo and hi of each; default 0 */
    flux_shape dilation FLUX__ZERO;        /* default 1 */
    flux_shape outpad FLUX__ZERO;          /* conv_transpose only */
    int groups FLUX__ZERO;
    FLUX__DUMMY
} flux_conv_opts;
FLUX_API flux_tensor *flux_conv_with(flux_conv_opts o);           /* true convolution: the kernel is flipped, as in Flux */
FLUX_API flux_tensor *flux_crosscor_with(flux_conv_opts o);       /* not flipped, as in PyTorch */
FLUX_API flux_tensor *flux_conv_transpose_with(flux_conv_opts o); /* the gradient of flux_conv by its input */
#define flux_conv(...) flux_conv_with(FLUX__OPTS_LAST(flux_conv_opts, __VA_ARGS__))
#define flux_crosscor(...) flux_crosscor_with(FLUX__OPTS_LAST(flux_conv_opts, __VA_ARGS__))
#define flux_conv_transpose(...) flux_conv_transpose_with(FLUX__OPTS_LAST(flux_conv_opts, __VA_ARGS__))
typedef struct flux_pool_opts {
    flux_tensor *x FLUX__ZERO;
    flux_shape window FLUX__ZERO;          /* FLUX_SHAPE(2, 2): one a spatial dimension */
    flux_shape stride FLUX__ZERO;          /* default: the window */
    flux_shape pad FLUX__ZERO;             /* as in flux_conv */
    double p FLUX__ZERO;                   /* lpnormpool: default 2 */
    FLUX__DUMMY
} flux_pool_opts;
FLUX_API flux_tensor *flux_maxpool_with(flux_pool_opts o);        /* padding is never chosen */
FLUX_API flux_tensor *flux_meanpool_with(flux_pool_opts o);       /* padding counts in the divisor */
FLUX_API flux_tensor *flux_lpnormpool_with(flux_pool_opts o);     /* (sum x^p)^(1/p) */
#define flux_maxpool(...) flux_maxpool_with(FLUX__OPTS_LAST(flux_pool_opts, __VA_ARGS__))
#define flux_meanpool(...) flux_meanpool_with(FLUX__OPTS_LAST(flux_pool_opts, __VA_ARGS__))
#define flux_lpnormpool(...) flux_lpnormpool_with(FLUX__OPTS_LAST(flux_pool_opts, __VA_ARGS__))

/* A formula in Julia's spelling: flux_expr("sum((W*x .+ b .- y).^2)", W, x, b, y). Dotted operators (.+ .- .* ./ .^ .== .< ...)
   and calls f.(x) are elementwise, * is the matrix product (or scales by a number), ' the transpose; functions go by
   their names here without flux_. Names are bound to the C variables written after it, which must be plain names. */
FLUX_API flux_tensor *flux_expr_with(const char *formula, int n, const char *names, flux_tensor *const *values);  /* names: "W, x" */
#define flux_expr(formula, ...) flux_expr_with(formula, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__TENSORS(__VA_ARGS__))

/* ------------------------------------------------------------------ one-hot */

FLUX_API flux_tensor *flux_onehot(flux_tensor *labels, int64_t classes);   /* integer labels of shape s: bool, classes x s */
FLUX_API flux_tensor *flux_onecold(flux_tensor *y);                        /* argmax along dim 0, that dimension dropped: int64 */

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

typedef struct flux__head { int kind; int edges; int64_t refs; } flux__head;     /* what every handle starts with */
typedef enum flux_mode { FLUX_MODE_AUTO, FLUX_MODE_TRAIN, FLUX_MODE_TEST } flux_mode;

struct flux_layer {                       /* the first member of every layer's struct; yours to read, not to write */
    flux__head head;
    const flux_layer_type *type;
    flux_mode mode;                       /* see flux_testmode */
    bool frozen;                          /* see flux_freeze */
    const char *name;                     /* given by flux_named, or NULL */
};

/* Describes struct T: printed name, call function, then FLUX_CHILD(field) for a layer, FLUX_CHILDREN(array, count) for
   an array of layers, FLUX_PARAM(field) for a tensor that is trained, FLUX_STATE(field) for one that is moved and
   saved, not trained. Fields that are not named are copied as they are. At file scope, no semicolon needed. */
#define FLUX_LAYER(T, printed, callfn, ...) FLUX_LAYER_TEXT(T, printed, callfn, NULL, __VA_ARGS__)
/* The same with a function that writes the layer's one-line form. */
#define FLUX_LAYER_TEXT(T, printed, callfn, textfn, ...)                                             \
    FLUX__UNUSED static const flux_layer_type *T##_type(void) {                                      \
        typedef T flux__t;                                                                           \
        static const flux_field fields[] = { __VA_ARGS__, { NULL, FLUX__END, 0, 0 } };               \
        static const flux_layer_type type = { printed, callfn, sizeof(flux__t), fields, textfn };    \
        return &type;                                                                                \
    }
#define FLUX_CHILD(f) { #f, FLUX__CHILD_FIELD, offsetof(flux__t, f), 0 }
#define FLUX_CHILDREN(f, n) { #f, FLUX__CHILDREN_FIELD, offsetof(flux__t, f), offsetof(flux__t, n) }
#define FLUX_PARAM(f) { #f, FLUX__PARAM_FIELD, offsetof(flux__t, f), 0 }
#define FLUX_STATE(f) { #f, FLUX__STATE_FIELD, offsetof(flux__t, f), 0 }
/* A new layer of struct T, its fields given as in C: flux_new(my_layer, .body = ..., .scale = ...). Takes its own
   references to children and tensors (arrays of FLUX_CHILDREN are copied). NULL if one that was asked for is NULL
   because of a pending error. */
FLUX_API flux_layer *flux_new_layer(const flux_layer_type *type, const void *fields);
#ifdef __cplusplus
}
template <class T> inline flux_layer *flux__new_cpp(const flux_layer_type *type, T fields) { return flux_new_layer(type, &fields); }
#define flux_new(T, ...) flux__new_cpp<T>(T##_type(), T{ __VA_ARGS__ })
extern "C" {
#else
#define flux_new(T, ...) flux_new_layer(T##_type(), &(T){ __VA_ARGS__ })
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
/* Layers that behave otherwise in training (Dropout, ...): auto means training, except inside FLUX_NOGRAD. */
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

/* ------------------------------------------------------------------ initialisers
   Weight-shaped tensors: the last dimension but one, and the last, are fan-out and fan-in of a matrix (out x in), or
   channels in and out after a kernel's window. Formulas as in Flux. */

typedef struct flux_init_opts {
    FLUX__DUMMY
    double gain FLUX__ZERO, mean FLUX__ZERO, std FLUX__ZERO, lo FLUX__ZERO, hi FLUX__ZERO, sparsity FLUX__ZERO;
    int shift FLUX__ZERO;
} flux_init_opts;
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
FLUX_API flux_tensor *flux_init_with(const char *name, flux_shape s, flux_init_opts o);
#ifdef __cplusplus
#define flux_init(name, shape) flux_init_with(name, shape, flux_init_opts())
#else
#define flux_init(name, ...) flux__init_args(name, (flux__init_call){ __VA_ARGS__, ._ = 0 })
typedef struct flux__init_call { flux_shape shape; double gain, mean, std, lo, hi, sparsity; int shift; char _; } flux__init_call;
FLUX_API flux_tensor *flux__init_args(const char *name, flux__init_call c);
#endif

/* ------------------------------------------------------------------ layers
   Options after the sizes: flux_dense(10, 5, flux_tanh, .bias = FLUX_OFF). Inputs are features x batch; more trailing
   dimensions count as batch. The input is converted to the weight's dtype (a warning once if that loses precision). */

typedef struct flux_dense_opts {
    int64_t in FLUX__ZERO, out FLUX__ZERO;
    flux_fn activation FLUX__ZERO;        /* NULL: identity */
    flux_switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: glorot_uniform */
    flux_tensor *weight FLUX__ZERO, *b FLUX__ZERO;   /* your own, out x in and out; then .in and .out may be left out */
    FLUX__DUMMY
} flux_dense_opts;
FLUX_API flux_layer *flux_dense_with(flux_dense_opts o);
#define flux_dense(...) flux_dense_with(FLUX__OPTS_LAST(flux_dense_opts, __VA_ARGS__))    /* act(W x + b), W out x in */

typedef struct flux_scale_opts {
    flux_shape size FLUX__ZERO;
    flux_fn activation FLUX__ZERO;
    flux_switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: ones */
    FLUX__DUMMY
} flux_scale_opts;
FLUX_API flux_layer *flux_scale_with(flux_scale_opts o);
#define flux_scale(...) flux_scale_with(FLUX__OPTS_LAST(flux_scale_opts, __VA_ARGS__))    /* flux_scale(FLUX_SHAPE(3)): act(s .* x .+ b) */

typedef struct flux_bilinear_opts {
    int64_t in1 FLUX__ZERO, in2 FLUX__ZERO, out FLUX__ZERO;
    flux_fn activation FLUX__ZERO;
    flux_switch bias FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;
    FLUX__DUMMY
} flux_bilinear_opts;
FLUX_API flux_layer *flux_bilinear_with(flux_bilinear_opts o);
/* flux_call(m, x, y): z[o] = act(sum_ij x[i] W[o,i,j] y[j] + b[o]); with one input y is x. */
#define flux_bilinear(...) flux_bilinear_with(FLUX__OPTS_LAST(flux_bilinear_opts, __VA_ARGS__))

typedef struct flux_embedding_opts {
    int64_t in FLUX__ZERO, out FLUX__ZERO;
    flux_init_fn init FLUX__ZERO;         /* NULL: randn32 */
    flux_switch pad FLUX__ZERO;           /* FLUX_ON: column .padding_idx is zero and stays so */
    int64_t padding_idx FLUX__ZERO;
    FLUX__DUMMY
} flux_embedding_opts;
FLUX_API flux_layer *flux_embedding_with(flux_embedding_opts o);
/* Integer indices 0 ... in-1 of any shape: out x that shape. Or one-hot columns (bool, in x ...). */
#define flux_embedding(...) flux_embedding_with(FLUX__OPTS_LAST(flux_embedding_opts, __VA_ARGS__))

typedef struct flux_layernorm_opts {
    flux_shape size FLUX__ZERO;           /* the first dimensions, which are normalised together */
    flux_fn activation FLUX__ZERO;
    flux_switch affine FLUX__ZERO;
    double eps FLUX__ZERO;                /* added to the variance; default 1e-5 */
    FLUX__DUMMY
} flux_layernorm_opts;
FLUX_API flux_layer *flux_layernorm_with(flux_layernorm_opts o);
#define flux_layernorm(...) flux_layernorm_with(FLUX__OPTS_LAST(flux_layernorm_opts, __VA_ARGS__))   /* flux_layernorm(FLUX_SHAPE(64)) */

typedef struct flux_dropout_opts {
    double p FLUX__ZERO;                  /* the part that is dropped, 0 to 1 */
    flux_shape dims FLUX__ZERO;           /* the dimensions along which the mask varies; default all */
    FLUX__DUMMY
} flux_dropout_opts;
FLUX_API flux_layer *flux_dropout_with(flux_dropout_opts o);
FLUX_API flux_layer *flux_alphadropout(double p);                 /* keeps mean and variance under selu */
#define flux_dropout(...) flux_dropout_with(FLUX__OPTS_LAST(flux_dropout_opts, __VA_ARGS__))   /* kept values are scaled by 1/(1-p) */

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
/* (x - mean) / sqrt(var + eps) over the given dimensions. */
FLUX_API flux_tensor *flux_normalise(flux_tensor *x, flux_shape dims, double eps);

/* ------------------------------------------------------------------ losses
   loss(y_predicted, y, options): the mean over all elements, or over the batch where a formula sums over classes.
   .agg = FLUX_SUM sums, FLUX_NONE leaves them. Shapes must agree. Formulas: Flux.Losses. */

typedef enum flux_agg { FLUX_MEAN, FLUX_SUM, FLUX_NONE } flux_agg;
typedef struct flux_loss_opts {
    flux_tensor *yhat FLUX__ZERO, *y FLUX__ZERO;
    flux_agg agg FLUX__ZERO;
    int dim FLUX__ZERO;                   /* the class dimension; default 0 */
    double epsilon FLUX__ZERO;            /* keeps log finite; default the dtype's epsilon */
    double delta FLUX__ZERO;              /* huber_loss: 1 */
    double gamma FLUX__ZERO;              /* focal losses: 2 */
    double margin FLUX__ZERO;             /* siamese_contrastive_loss: 1 */
    double smooth FLUX__ZERO;             /* dice_coeff_loss: 1 */
    double beta FLUX__ZERO;               /* tversky_loss: 0.7 */
    FLUX__DUMMY
} flux_loss_opts;
#define FLUX__LOSSES(X)                                                                              \
    X(mae)                        /* |yhat - y| */                                                   \
    X(mse)                        /* (yhat - y)^2 */                                                 \
    X(msle)                       /* log((yhat + eps)/(y + eps))^2 */                                \
    X(huber_loss)                 /* e = |yhat - y|; e < delta ? e^2/2 : delta (e - delta/2) */       \
    X(crossentropy)               /* -sum_classes y log(yhat + eps) */                               \
    X(logitcrossentropy)          /* -sum_classes y logsoftmax(yhat) */                              \
    X(binarycrossentropy)         /* -y log(yhat + eps) - (1-y) log(1 - yhat + eps) */               \
    X(logitbinarycrossentropy)    /* (1-y) yhat - logsigmoid(yhat) */                                \
    X(kldivergence)               /* sum_classes y log(y) + crossentropy */                          \
    X(poisson_loss)               /* yhat - y log(yhat) */                                           \
    X(hinge_loss)                 /* max(0, 1 - yhat y) */                                           \
    X(squared_hinge_loss)         /* max(0, 1 - yhat y)^2 */                                         \
    X(dice_coeff_loss)            /* 1 - (2 sum(y yhat) + s)/(sum(y^2) + sum(yhat^2) + s) */          \
    X(tversky_loss)               /* 1 - (sum(y yhat)+1)/(sum(y yhat + b (1-y) yhat + (1-b) y (1-yhat))+1) */ \
    X(focal_loss)                 /* -sum_classes y (1 - yhat - eps)^gamma log(yhat + eps) */         \
    X(binary_focal_loss)          /* p = y yhat + (1-y)(1-yhat) (+eps); -(1-p)^gamma log(p) */        \
    X(siamese_contrastive_loss)   /* (1-y) yhat^2 + y max(0, margin - yhat)^2 */
#define FLUX__DECLARE_LOSS(name)                                                \
    FLUX_API flux_tensor *flux_##name(flux_tensor *yhat, flux_tensor *y);       \
    FLUX_API flux_tensor *flux_##name##_with(flux_loss_opts o);
FLUX__LOSSES(FLUX__DECLARE_LOSS)
FLUX_API flux_tensor *flux_label_smoothing(flux_tensor *y, double alpha, int dim);  /* y (1-a) + a/size(y, dim); dim -1: binary, a/2 */

/* ------------------------------------------------------------------ gradients */

/* Gradients of a one-element loss by models and tensors: flux_gradient(loss, model, W). Each can be looked up with
   flux_grad, differentiated again, or handed to flux_update. NULL on error. */
FLUX_API flux_grads *flux_gradient_of(flux_tensor *loss, int n, const void *const *what);
#define flux_gradient(loss, ...) flux_gradient_of(loss, FLUX__NARG(__VA_ARGS__), FLUX__OBJECTS(__VA_ARGS__))
FLUX_API flux_tensor *flux_grad(flux_grads *g, flux_tensor *x);   /* NULL, without an error, where the loss does not depend on x */
FLUX_API flux_tensor *flux_grad_param(flux_grads *g, flux_layer *m, const char *path);
/* Calls fn in train mode: its value, and the gradients by m's parameters in *g. */
FLUX_API flux_tensor *flux_withgradient(flux_tensor *(*fn)(flux_layer *m, void *user), void *user, flux_layer *m, flux_grads **g);
/* Compares flux_gradient with finite differences of fn(x): the largest difference, relative to the gradient's largest
   magnitude, over at most `probes` elements (0: all). NaN on error. x should be float64. */
FLUX_API double flux_gradcheck(flux_tensor *(*fn)(flux_tensor *x, void *user), void *user, flux_tensor *x, int probes);

/* ------------------------------------------------------------------ optimisers (Optimisers.jl's definitions)
   Rules are values: flux_adam(1e-3, .beta = {0.9, 0.99}). State per parameter lives in what flux_setup returns. */

typedef struct flux_rule_opts {
    FLUX__DUMMY
    double eta FLUX__ZERO;                /* learning rate */
    double beta[2] FLUX__ZERO;            /* decay of the moments */
    double rho FLUX__ZERO;                /* momentum or decay */
    double epsilon FLUX__ZERO;
    double lambda FLUX__ZERO;             /* weight decay */
    double delta FLUX__ZERO;              /* clipgrad: bound */
    double omega FLUX__ZERO, p FLUX__ZERO;/* clipnorm: bound, which norm */
    double ell[2] FLUX__ZERO, gamma[2] FLUX__ZERO;   /* rprop: factors, bounds of the step */
    int n FLUX__ZERO;                     /* accumgrad: how many */
    bool centred FLUX__ZERO;              /* rmsprop */
    flux_switch couple FLUX__ZERO;        /* adamw: lambda is multiplied by eta; on by default */
} flux_rule_opts;
typedef struct flux_rule { int kind; flux_rule_opts o; void *parts; } flux_rule;
FLUX_API flux_rule flux_rule_with(const char *name, flux_rule_opts o);
#define FLUX__RULE(name, ...) flux_rule_with(name, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
#define flux_descent(...) FLUX__RULE("Descent", __VA_ARGS__)      /* eta 0.1: eta g */
#define flux_momentum(...) FLUX__RULE("Momentum", __VA_ARGS__)    /* eta 0.01, rho 0.9 */
#define flux_nesterov(...) FLUX__RULE("Nesterov", __VA_ARGS__)    /* eta 0.001, rho 0.9 */
#define flux_rmsprop(...) FLUX__RULE("RMSProp", __VA_ARGS__)      /* eta 0.001, rho 0.9, epsilon 1e-8, centred */
#define flux_rprop(...) FLUX__RULE("Rprop", __VA_ARGS__)          /* eta 0.001, ell {0.5, 1.2}, gamma {1e-6, 50} */
#define flux_adam(...) FLUX__RULE("Adam", __VA_ARGS__)            /* eta 0.001, beta {0.9, 0.999}, epsilon 1e-8 */
#define flux_adamw(...) FLUX__RULE("AdamW", __VA_ARGS__)          /* and lambda 0, couple */
#define flux_lion(...) FLUX__RULE("Lion", __VA_ARGS__)
#define flux_radam(...) FLUX__RULE("RAdam", __VA_ARGS__)
#define flux_adamax(...) FLUX__RULE("AdaMax", __VA_ARGS__)
#define flux_oadam(...) FLUX__RULE("OAdam", __VA_ARGS__)          /* beta {0.5, 0.9} */
#define flux_adagrad(...) FLUX__RULE("AdaGrad", __VA_ARGS__)      /* eta 0.1 */
#define flux_adadelta(...) FLUX__RULE("AdaDelta", __VA_ARGS__)    /* rho 0.9 */
#define flux_amsgrad(...) FLUX__RULE("AMSGrad", __VA_ARGS__)
#define flux_nadam(...) FLUX__RULE("NAdam", __VA_ARGS__)
#define flux_adabelief(...) FLUX__RULE("AdaBelief", __VA_ARGS__)  /* epsilon 1e-16 */
/* Parts of a chain: they change the gradient for the rule that follows. */
#define flux_weightdecay(...) FLUX__RULE("WeightDecay", __VA_ARGS__)   /* g + lambda p; flux_weightdecay(.lambda = 5e-4) */
#define flux_signdecay(...) FLUX__RULE("SignDecay", __VA_ARGS__)       /* g + lambda sign(p); lambda 1e-3 */
#define flux_clipgrad(...) FLUX__RULE("ClipGrad", __VA_ARGS__)         /* each element to [-delta, delta]; delta 10 */
#define flux_clipnorm(...) FLUX__RULE("ClipNorm", __VA_ARGS__)         /* each tensor to norm omega; omega 10, p 2 */
FLUX_API flux_rule flux_optimiser_chain_of(int n, const flux_rule *rules);
#define flux_optimiser_chain(...) flux_optimiser_chain_of(FLUX__NARG(__VA_ARGS__), FLUX__ARRAY(const flux_rule, __VA_ARGS__))
FLUX_API flux_rule flux_accumgrad(int n, flux_rule rule);         /* applies the mean of n gradients at every n-th call */
FLUX_API flux_rule flux_mixed_precision(flux_rule rule);          /* keeps float32 masters of f16 and bf16 parameters */

/* State for every trained tensor of a model (tied ones share it). Move the model to its device first. */
FLUX_API flux_state *flux_setup(flux_rule rule, flux_layer *model);
/* One step: replaces the model's parameters; those without a gradient are left alone entirely. The loss's graph is
   used up: its value can still be looked at, its gradient not taken again. 0: done. */
FLUX_API int flux_update(flux_state *s, flux_layer *model, flux_grads *g);
/* Changes hyper-parameters from now on: flux_adjust(opt, .eta = 1e-4). Fields left out stay. A field that the
   rule does not have is an error. 0: done. */
FLUX_API int flux_adjust_with(flux_state *s, flux_rule_opts o);
#define flux_adjust(s, ...) flux_adjust_with(s, FLUX__OPTS(flux_rule_opts, __VA_ARGS__))
FLUX_API int flux_adjust_layer(flux_state *s, flux_layer *part, flux_rule_opts o);   /* only for this part of the model */
/* Trains over the loader once, in train mode; a loss that is not finite stops it before the update, as an error. 0: done. */
typedef flux_tensor *(*flux_loss_fn)(flux_layer *model, flux_tensor *x, flux_tensor *y);
FLUX_API int flux_train(flux_loss_fn loss, flux_layer *model, flux_loader *data, flux_state *s);
/* Training helpers: each keeps its state in a struct of yours that starts as {0}. */
typedef struct flux_stopper { double best; int count; bool started; } flux_stopper;
FLUX_API bool flux_patience(flux_stopper *s, bool condition, int n);           /* true after n trues in a row */
FLUX_API bool flux_early_stopping(flux_stopper *s, double score, int delay, double min_dist);   /* no better by min_dist in delay calls */
FLUX_API bool flux_plateau(flux_stopper *s, double score, int width, double min_dist);          /* within min_dist for width calls */

/* ------------------------------------------------------------------ data */

typedef struct flux_batch {
    flux_tensor *x, *y;                   /* the first and the second array's part (y NULL if there is one array) */
    flux_tensor *const *item;             /* all of them */
    int count;                            /* how many */
    int64_t index, size;                  /* which batch, and how many observations it has */
} flux_batch;

typedef struct flux_dataset {             /* a data set of your own: flux_dataloader(.data = &mine) */
    void *user;
    int64_t (*length)(void *user);        /* observations */
    int (*get)(void *user, int64_t i, int n, flux_tensor **out);   /* makes observation i's n arrays; non-zero: failed */
    int arrays;                           /* how many arrays an observation has */
} flux_dataset;
typedef enum flux_collate { FLUX_COLLATE_DEFAULT, FLUX_COLLATE_BATCH, FLUX_COLLATE_NONE } flux_collate;

typedef struct flux_loader_opts {
    flux_tensor *x FLUX__ZERO, *y FLUX__ZERO, *z FLUX__ZERO, *x3 FLUX__ZERO, *x4 FLUX__ZERO, *x5 FLUX__ZERO, *x6 FLUX__ZERO, *x7 FLUX__ZERO;
    int batchsize FLUX__ZERO;             /* default 1; negative: single observations, without a batch dimension */
    bool shuffle FLUX__ZERO;              /* a new order every epoch */
    flux_switch partial FLUX__ZERO;       /* FLUX_OFF drops a short last batch */
    flux_collate collate FLUX__ZERO;      /* NONE: each item of a batch is a tuple of its observations */
    flux_batch (*transform)(flux_batch b, void *user) FLUX__ZERO;   /* applied to every batch; may run on a worker */
    void *user FLUX__ZERO;
    int workers FLUX__ZERO;               /* threads that prepare batches ahead, in the same order; 0: none */
    uint64_t seed FLUX__ZERO;             /* of the shuffling; 0: drawn from flux_seed's stream */
    const flux_dataset *data FLUX__ZERO;  /* in place of arrays */
    int rank FLUX__ZERO, ranks FLUX__ZERO;/* this process's share: sizes differ by at most one, as many batches for each */
    FLUX__DUMMY
} flux_loader_opts;
FLUX_API flux_loader *flux_dataloader_with(flux_loader_opts o);
/* Arrays of equal last dimension, then options: flux_dataloader(X, Y, .batchsize = 64, .shuffle = true). */
#define flux_dataloader(...) flux_dataloader_with(FLUX__OPTS_LAST(flux_loader_opts, __VA_ARGS__))
FLUX_API int64_t flux_length(const flux_loader *l);               /* batches in an epoch */
FLUX_API flux_batch flux_first(flux_loader *l);                   /* the batch an epoch would start with, in order */
FLUX_API flux_loader *flux_cuiterator(flux_loader *l);            /* as flux_cu, but float64 stays */
FLUX_API flux_loader *flux_mapobs(flux_fn f, flux_loader *l);     /* f applied to every array of every batch */
FLUX_API int flux_splitobs(double part, flux_tensor *x, flux_tensor **first, flux_tensor **second);   /* along the last dimension */
FLUX_API flux_tensor *flux_shuffleobs(flux_tensor *x, uint64_t seed);   /* the same seed gives the same order */

/* flux_each (b, loader) { ... b.x ... b.y ... }: one epoch. Each iteration is a scope; none follows an error.
   flux_each (b, loader, .progress = "label") draws a bar with samples per second on stderr. */
#define flux_each(b, ...) FLUX__EACH(b, __VA_ARGS__)
FLUX_API void flux_progress(const char *label, flux_tensor *value);     /* shows a value beside the innermost bar */
FLUX_API void flux_progress_number(const char *label, double value);

/* Files. A failed load returns NULL (or non-zero), says what is wrong with the file and where, and changes nothing. */
FLUX_API flux_tensor *flux_load_idx(const char *path);            /* MNIST's format; dims in reverse: 28 x 28 x N */
FLUX_API flux_tensor *flux_load_npy(const char *path);            /* NumPy's shape, whichever order the file has */
FLUX_API int flux_save_npy(flux_tensor *x, const char *path);     /* read by numpy.load with the same shape */
FLUX_API flux_tensor *flux_load_csv(const char *path);            /* numbers: columns x lines, float32; a heading line is skipped */
/* safetensors, one file, read by Python's library (dimensions in reverse there, as memory is row-major).
   flux_save(model, "m.safetensors") writes whole or not at all; flux_load needs the same names, shapes and dtypes.
   flux_load_all looks only at the names of the things it is given: a file may hold more. */
FLUX_API int flux_save_tensor(flux_tensor *x, const char *path);
FLUX_API int flux_save_layer(flux_layer *m, const char *path);
FLUX_API int flux_save_state(flux_state *s, const char *path);
FLUX_API int flux_load_layer(flux_layer *m, const char *path);
FLUX_API int flux_load_state(flux_state *s, const char *path);
FLUX_API flux_tensor *flux_load_tensor(const char *path, const char *name);  /* one tensor; name NULL: the only one */
/* Several things in one file, by their C names: flux_save_all("run.safetensors", model, opt), and back. */
FLUX_API int flux_save_items(const char *path, int n, const char *names, const void *const *items);   /* names: "model, opt" */
FLUX_API int flux_load_items(const char *path, int n, const char *names, const void *const *items);
#define flux_save_all(path, ...) flux_save_items(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))
#define flux_load_all(path, ...) flux_load_items(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))

/* ------------------------------------------------------------------ how the calls above are made; no need to read on */

typedef struct flux__block { int live, depth; } flux__block;
FLUX_API flux__block flux__scope_enter(void);
FLUX_API void flux__scope_leave(flux__block *b);
FLUX_API flux__block flux__nograd_enter(void);
FLUX_API void flux__nograd_leave(flux__block *b);
typedef struct flux__each_args { flux_loader *loader FLUX__ZERO; const char *progress FLUX__ZERO; FLUX__DUMMY } flux__each_args;
typedef struct flux__each_state { flux_batch batch; void *run; int inner; } flux__each_state;
FLUX_API bool flux__each_next(flux__each_state *e);
FLUX_API void flux__each_leave(flux__each_state *e);
FLUX_API flux__each_state flux__each_start(flux__each_args a);
FLUX_API flux_layer *flux__layer_of_fn(flux_fn f);
FLUX_API flux_layer *flux__layer_of_fn2(flux_fn2 f);
FLUX_API flux_layer *flux__layer_of_layer(flux_layer *l);
FLUX_API flux_tensor *flux__number(double v);   /* a number among tensors: takes the other operand's dtype */
FLUX_API flux_tensor *flux__same(flux_tensor *x);
FLUX_API flux_shape flux__shape(const int64_t *dims, int n);

#if defined(__GNUC__)
#  define FLUX__UNUSED __attribute__((unused))
#else
#  define FLUX__UNUSED
#endif
#if defined(__GNUC__) && !defined(__TINYC__)
#  define FLUX__CLEANUP(f) __attribute__((cleanup(f)))
#else
#  define FLUX__CLEANUP(f)
#endif

#define FLUX__CAT_(a, b) a##b
#define FLUX__CAT(a, b) FLUX__CAT_(a, b)
/* The leave function runs twice where the compiler knows cleanup; the second time does nothing. */
#define FLUX__BLOCK(enter, leave) FLUX__BLOCK_(FLUX__CAT(flux__block_, __LINE__), FLUX__CAT(flux__once_, __LINE__), enter, leave)
#define FLUX__BLOCK_(b, once, enter, leave)                                              \
    for (flux__block b FLUX__CLEANUP(leave) = enter(); b.live; leave(&b))                \
        for (int once = 1; once; once = 0)

#define FLUX__EACH(b, ...)                                                                                     \
    for (flux__each_state b##_each FLUX__CLEANUP(flux__each_leave) =                                            \
             flux__each_start(FLUX__OPTS_LAST(flux__each_args, __VA_ARGS__)); flux__each_next(&b##_each);)      \
        for (FLUX__UNUSED flux_batch b = b##_each.batch; b##_each.inner; b##_each.inner = 0)

#define FLUX__NARG(...) FLUX__NARG_(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define FLUX__NARG_(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, n, ...) n
#define FLUX__MAP(f, ...) FLUX__CAT(FLUX__MAP_, FLUX__NARG(__VA_ARGS__))(f, __VA_ARGS__)
#define FLUX__MAP_1(f, x) f(x)
#define FLUX__MAP_2(f, x, ...) f(x), FLUX__MAP_1(f, __VA_ARGS__)
#define FLUX__MAP_3(f, x, ...) f(x), FLUX__MAP_2(f, __VA_ARGS__)
#define FLUX__MAP_4(f, x, ...) f(x), FLUX__MAP_3(f, __VA_ARGS__)
#define FLUX__MAP_5(f, x, ...) f(x), FLUX__MAP_4(f, __VA_ARGS__)
#define FLUX__MAP_6(f, x, ...) f(x), FLUX__MAP_5(f, __VA_ARGS__)
#define FLUX__MAP_7(f, x, ...) f(x), FLUX__MAP_6(f, __VA_ARGS__)
#define FLUX__MAP_8(f, x, ...) f(x), FLUX__MAP_7(f, __VA_ARGS__)
#define FLUX__MAP_9(f, x, ...) f(x), FLUX__MAP_8(f, __VA_ARGS__)
#define FLUX__MAP_10(f, x, ...) f(x), FLUX__MAP_9(f, __VA_ARGS__)
#define FLUX__MAP_11(f, x, ...) f(x), FLUX__MAP_10(f, __VA_ARGS__)
#define FLUX__MAP_12(f, x, ...) f(x), FLUX__MAP_11(f, __VA_ARGS__)
#define FLUX__MAP_13(f, x, ...) f(x), FLUX__MAP_12(f, __VA_ARGS__)
#define FLUX__MAP_14(f, x, ...) f(x), FLUX__MAP_13(f, __VA_ARGS__)
#define FLUX__MAP_15(f, x, ...) f(x), FLUX__MAP_14(f, __VA_ARGS__)
#define FLUX__MAP_16(f, x, ...) f(x), FLUX__MAP_15(f, __VA_ARGS__)
#define FLUX__MAP_17(f, x, ...) f(x), FLUX__MAP_16(f, __VA_ARGS__)
#define FLUX__MAP_18(f, x, ...) f(x), FLUX__MAP_17(f, __VA_ARGS__)
#define FLUX__MAP_19(f, x, ...) f(x), FLUX__MAP_18(f, __VA_ARGS__)
#define FLUX__MAP_20(f, x, ...) f(x), FLUX__MAP_19(f, __VA_ARGS__)
#define FLUX__MAP_21(f, x, ...) f(x), FLUX__MAP_20(f, __VA_ARGS__)
#define FLUX__MAP_22(f, x, ...) f(x), FLUX__MAP_21(f, __VA_ARGS__)
#define FLUX__MAP_23(f, x, ...) f(x), FLUX__MAP_22(f, __VA_ARGS__)
#define FLUX__MAP_24(f, x, ...) f(x), FLUX__MAP_23(f, __VA_ARGS__)
#define FLUX__MAP_25(f, x, ...) f(x), FLUX__MAP_24(f, __VA_ARGS__)
#define FLUX__MAP_26(f, x, ...) f(x), FLUX__MAP_25(f, __VA_ARGS__)
#define FLUX__MAP_27(f, x, ...) f(x), FLUX__MAP_26(f, __VA_ARGS__)
#define FLUX__MAP_28(f, x, ...) f(x), FLUX__MAP_27(f, __VA_ARGS__)
#define FLUX__MAP_29(f, x, ...) f(x), FLUX__MAP_28(f, __VA_ARGS__)
#define FLUX__MAP_30(f, x, ...) f(x), FLUX__MAP_29(f, __VA_ARGS__)
#define FLUX__MAP_31(f, x, ...) f(x), FLUX__MAP_30(f, __VA_ARGS__)
#define FLUX__MAP_32(f, x, ...) f(x), FLUX__MAP_31(f, __VA_ARGS__)

#ifdef __cplusplus
#  define FLUX__OPTS(T, ...) T{ __VA_ARGS__ }
#  define FLUX__OPTS_LAST(T, ...) T{ __VA_ARGS__ }
#else
#  define FLUX__OPTS(T, ...) ((T){ ._ = 0, __VA_ARGS__ })
#  define FLUX__OPTS_LAST(T, ...) ((T){ __VA_ARGS__, ._ = 0 })
#endif

#ifndef __cplusplus
#define FLUX__REDUCE_OPTS(...) FLUX__OPTS_LAST(flux_reduce_opts, __VA_ARGS__)
#define FLUX__ARRAY(T, ...) ((T[]){ __VA_ARGS__ })
#define FLUX_SHAPE(...) flux__shape(FLUX__ARRAY(const int64_t, __VA_ARGS__), (int)(sizeof(FLUX__ARRAY(const int64_t, __VA_ARGS__)) / sizeof(int64_t)))
#define FLUX__TENSORS(...) ((flux_tensor *const[]){ FLUX__MAP(FLUX__TENSOR, __VA_ARGS__) })
#define FLUX__TENSOR(x) (x)
#define FLUX__OBJECTS(...) ((const void *const[]){ FLUX__MAP(FLUX__OBJECT, __VA_ARGS__) })
#define FLUX__OBJECT(x) _Generic((x), flux_tensor *: (x), flux_layer *: (x), flux_state *: (x), flux_loader *: (x))
#define FLUX__LAYERS(...) ((flux_layer *const[]){ FLUX__MAP(FLUX__AS_LAYER, __VA_ARGS__) })
#define FLUX__AS_LAYER(x) _Generic(&*(x), flux_layer *: flux__layer_of_layer, flux_fn: flux__layer_of_fn, flux_fn2: flux__layer_of_fn2)(x)
#define FLUX__SAME_TYPE(x, value) _Generic((x), flux_tensor *: (flux_tensor *)(value), flux_layer *: (flux_layer *)(value), \
    flux_loader *: (flux_loader *)(value), flux_state *: (flux_state *)(value), flux_grads *: (flux_grads *)(value))
#define FLUX__DTYPE_OF(p) _Generic(&*(p), float *: FLUX_F32, const float *: FLUX_F32, double *: FLUX_F64, const double *: FLUX_F64, \
    int32_t *: FLUX_I32, const int32_t *: FLUX_I32, int64_t *: FLUX_I64, const int64_t *: FLUX_I64,                         \
    uint8_t *: FLUX_U8, const uint8_t *: FLUX_U8, bool *: FLUX_BOOL, const bool *: FLUX_BOOL)

#define FLUX__MOVES(f, x) _Generic((x), flux_tensor *: (f), flux_layer *: FLUX__CAT(f, _layer), flux_loader *: FLUX__CAT(f, _loader), flux_state *: FLUX__CAT(f, _state))(x)
#define flux_gpu(x) FLUX__MOVES(flux_gpu, x)
#define flux_cpu(x) FLUX__MOVES(flux_cpu, x)
#define flux_cu(x) FLUX__MOVES(flux_cu, x)
#define flux_roc(x) FLUX__MOVES(flux_roc, x)
#define FLUX__BY_TYPE(f, x) _Generic((x), flux_tensor *: f##_tensor, flux_layer *: f##_layer, flux_loader *: f##_loader, flux_state *: f##_state)
#define flux_to(device, x) FLUX__BY_TYPE(flux_to, x)(device, x)
#define flux_device_of(x) FLUX__BY_TYPE(flux_device_of, x)(x)
#define flux_print(x) FLUX__BY_TYPE(flux_print, x)(x)
#define FLUX__SAVES(f, x) _Generic((x), flux_tensor *: f##_tensor, flux_layer *: f##_layer, flux_state *: f##_state)
#define flux_save(x, path) FLUX__SAVES(flux_save, x)(x, path)
#define flux_load(x, path) _Generic((x), flux_layer *: flux_load_layer, flux_state *: flux_load_state)(x, path)

#define FLUX__OPERAND(x) _Generic((x), flux_tensor *: flux__same, default: flux__number)(x)
#define flux_add(a, b) flux_add(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_sub(a, b) flux_sub(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_mul(a, b) flux_mul(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_div(a, b) flux_div(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_pow(a, b) flux_pow(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_max2(a, b) flux_max2(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_min2(a, b) flux_min2(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_eq(a, b) flux_eq(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_ne(a, b) flux_ne(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_lt(a, b) flux_lt(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_le(a, b) flux_le(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_gt(a, b) flux_gt(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_ge(a, b) flux_ge(FLUX__OPERAND(a), FLUX__OPERAND(b))
#define flux_where(c, a, b) flux_where(c, FLUX__OPERAND(a), FLUX__OPERAND(b))

#define FLUX__ACT(f, ...) f(FLUX__OPTS_LAST(flux_act_opts, __VA_ARGS__))
#define flux_leakyrelu(...) FLUX__ACT(flux_leakyrelu_with, __VA_ARGS__)
#define flux_rrelu(...) FLUX__ACT(flux_rrelu_with, __VA_ARGS__)
#define flux_elu(...) FLUX__ACT(flux_elu_with, __VA_ARGS__)
#define flux_celu(...) FLUX__ACT(flux_celu_with, __VA_ARGS__)
#define flux_softshrink(...) FLUX__ACT(flux_softshrink_with, __VA_ARGS__)
#define flux_trelu(...) FLUX__ACT(flux_trelu_with, __VA_ARGS__)

#define FLUX__LOSS(f, ...) f(FLUX__OPTS_LAST(flux_loss_opts, __VA_ARGS__))
#define flux_mae(...) FLUX__LOSS(flux_mae_with, __VA_ARGS__)
#define flux_mse(...) FLUX__LOSS(flux_mse_with, __VA_ARGS__)
#define flux_msle(...) FLUX__LOSS(flux_msle_with, __VA_ARGS__)
#define flux_huber_loss(...) FLUX__LOSS(flux_huber_loss_with, __VA_ARGS__)
#define flux_crossentropy(...) FLUX__LOSS(flux_crossentropy_with, __VA_ARGS__)
#define flux_logitcrossentropy(...) FLUX__LOSS(flux_logitcrossentropy_with, __VA_ARGS__)
#define flux_binarycrossentropy(...) FLUX__LOSS(flux_binarycrossentropy_with, __VA_ARGS__)
#define flux_logitbinarycrossentropy(...) FLUX__LOSS(flux_logitbinarycrossentropy_with, __VA_ARGS__)
#define flux_kldivergence(...) FLUX__LOSS(flux_kldivergence_with, __VA_ARGS__)
#define flux_poisson_loss(...) FLUX__LOSS(flux_poisson_loss_with, __VA_ARGS__)
#define flux_hinge_loss(...) FLUX__LOSS(flux_hinge_loss_with, __VA_ARGS__)
#define flux_squared_hinge_loss(...) FLUX__LOSS(flux_squared_hinge_loss_with, __VA_ARGS__)
#define flux_dice_coeff_loss(...) FLUX__LOSS(flux_dice_coeff_loss_with, __VA_ARGS__)
#define flux_tversky_loss(...) FLUX__LOSS(flux_tversky_loss_with, __VA_ARGS__)
#define flux_focal_loss(...) FLUX__LOSS(flux_focal_loss_with, __VA_ARGS__)
#define flux_binary_focal_loss(...) FLUX__LOSS(flux_binary_focal_loss_with, __VA_ARGS__)
#define flux_siamese_contrastive_loss(...) FLUX__LOSS(flux_siamese_contrastive_loss_with, __VA_ARGS__)
#endif

#define flux_sum(...) FLUX__REDUCE(flux_sum_over, __VA_ARGS__)
#define flux_mean(...) FLUX__REDUCE(flux_mean_over, __VA_ARGS__)
#define flux_var(...) FLUX__REDUCE(flux_var_over, __VA_ARGS__)
#define flux_prod(...) FLUX__REDUCE(flux_prod_over, __VA_ARGS__)
#define flux_max(...) FLUX__REDUCE(flux_max_over, __VA_ARGS__)
#define flux_min(...) FLUX__REDUCE(flux_min_over, __VA_ARGS__)
#define flux_any(...) FLUX__REDUCE(flux_any_over, __VA_ARGS__)
#define flux_all(...) FLUX__REDUCE(flux_all_over, __VA_ARGS__)
#define flux_norm(...) FLUX__REDUCE(flux_norm_over, __VA_ARGS__)
#define flux_logsumexp(...) FLUX__REDUCE(flux_logsumexp_over, __VA_ARGS__)
#define flux_argmax(...) FLUX__REDUCE(flux_argmax_over, __VA_ARGS__)
#define flux_argmin(...) FLUX__REDUCE(flux_argmin_over, __VA_ARGS__)
#define flux_softmax(...) FLUX__REDUCE(flux_softmax_over, __VA_ARGS__)
#define flux_logsoftmax(...) FLUX__REDUCE(flux_logsoftmax_over, __VA_ARGS__)

#ifdef __cplusplus
}
inline flux_reduce_opts flux__reduce_opts(flux_tensor *x, int a = 0, int b = 0, int c = 0, int d = 0, int e = 0, int f = 0, int g = 0, int h = 0) {
    flux_reduce_opts o = flux_reduce_opts();
    o.x = x, o.d0 = a, o.d1 = b, o.d2 = c, o.d3 = d, o.d4 = e, o.d5 = f, o.d6 = g, o.d7 = h;
    return o;
}
#define FLUX__REDUCE_OPTS(...) flux__reduce_opts(__VA_ARGS__)
template <class T, int N> struct flux__array { T at[N]; operator const T *() const { return at; } };
#define FLUX__ARRAY(T, ...) (flux__array<typename flux__bare<T>::type, FLUX__NARG(__VA_ARGS__)>{ { __VA_ARGS__ } })
template <class T> struct flux__bare { typedef T type; };
template <class T> struct flux__bare<const T> { typedef T type; };
template <class... T> inline flux_shape flux__shape_cpp(T... d) {
    const int64_t dims[] = { (int64_t)d... };
    return flux__shape(dims, (int)sizeof...(d));
}
#define FLUX_SHAPE(...) flux__shape_cpp(__VA_ARGS__)
typedef flux_tensor *flux__tensor_p;
typedef flux_layer *flux__layer_p;
typedef const void *flux__object_p;
#define FLUX__TENSORS(...) FLUX__ARRAY(flux__tensor_p, __VA_ARGS__)
#define FLUX__OBJECT(x) flux__object(x)
#define FLUX__OBJECTS(...) FLUX__ARRAY(flux__object_p, FLUX__MAP(FLUX__OBJECT, __VA_ARGS__))
#define FLUX__AS_LAYER(x) flux__as_layer(x)
#define FLUX__LAYERS(...) FLUX__ARRAY(flux__layer_p, FLUX__MAP(FLUX__AS_LAYER, __VA_ARGS__))
#define FLUX__SAME_TYPE(x, value) flux__like(x, value)
#define FLUX__DTYPE_OF(p) flux__dtype_of(p)
inline const void *flux__object(flux_tensor *x) { return x; }
inline const void *flux__object(flux_layer *x) { return x; }
inline const void *flux__object(flux_loader *x) { return x; }
inline const void *flux__object(flux_state *x) { return x; }
inline flux_layer *flux__as_layer(flux_layer *l) { return l; }
inline flux_layer *flux__as_layer(flux_fn f) { return flux__layer_of_fn(f); }
inline flux_layer *flux__as_layer(flux_fn2 f) { return flux__layer_of_fn2(f); }
template <class T> inline T *flux__like(T *, void *value) { return static_cast<T *>(value); }
inline flux_dtype flux__dtype_of(const float *) { return FLUX_F32; }
inline flux_dtype flux__dtype_of(const double *) { return FLUX_F64; }
inline flux_dtype flux__dtype_of(const int32_t *) { return FLUX_I32; }
inline flux_dtype flux__dtype_of(const int64_t *) { return FLUX_I64; }
inline flux_dtype flux__dtype_of(const uint8_t *) { return FLUX_U8; }
inline flux_dtype flux__dtype_of(const bool *) { return FLUX_BOOL; }
#define FLUX__OVERLOADS(T, kind)                                                                     \
    inline T *flux_gpu(T *x) { return flux_gpu_##kind(x); }                                          \
    inline T *flux_cpu(T *x) { return flux_cpu_##kind(x); }                                          \
    inline T *flux_cu(T *x) { return flux_cu_##kind(x); }                                            \
    inline T *flux_roc(T *x) { return flux_roc_##kind(x); }
#define FLUX__OVERLOADS_ALL(T, kind)                                                                 \
    inline T *flux_to(flux_device d, T *x) { return flux_to_##kind(d, x); }                          \
    inline flux_device flux_device_of(const T *x) { return flux_device_of_##kind(x); }               \
    inline void flux_print(T *x) { flux_print_##kind(x); }
FLUX__OVERLOADS(flux_layer, layer)
FLUX__OVERLOADS(flux_loader, loader)
FLUX__OVERLOADS(flux_state, state)
FLUX__OVERLOADS_ALL(flux_tensor, tensor)
FLUX__OVERLOADS_ALL(flux_layer, layer)
FLUX__OVERLOADS_ALL(flux_loader, loader)
FLUX__OVERLOADS_ALL(flux_state, state)
inline int flux_save(flux_tensor *x, const char *path) { return flux_save_tensor(x, path); }
inline int flux_save(flux_layer *x, const char *path) { return flux_save_layer(x, path); }
inline int flux_save(flux_state *x, const char *path) { return flux_save_state(x, path); }
inline int flux_load(flux_layer *x, const char *path) { return flux_load_layer(x, path); }
inline int flux_load(flux_state *x, const char *path) { return flux_load_state(x, path); }
#define FLUX__NUMBERS(f)                                                                             \
    template <class N> inline flux_tensor *f(flux_tensor *a, N b) { return f(a, flux__number((double)b)); } \
    template <class N> inline flux_tensor *f(N a, flux_tensor *b) { return f(flux__number((double)a), b); }
template <class N> inline flux_tensor *flux_where(flux_tensor *c, flux_tensor *a, N b) { return flux_where(c, a, flux__number((double)b)); }
template <class N> inline flux_tensor *flux_where(flux_tensor *c, N a, flux_tensor *b) { return flux_where(c, flux__number((double)a), b); }
FLUX__NUMBERS(flux_add) FLUX__NUMBERS(flux_sub) FLUX__NUMBERS(flux_mul) FLUX__NUMBERS(flux_div)
FLUX__NUMBERS(flux_pow) FLUX__NUMBERS(flux_max2) FLUX__NUMBERS(flux_min2) FLUX__NUMBERS(flux_eq)
FLUX__NUMBERS(flux_ne) FLUX__NUMBERS(flux_lt) FLUX__NUMBERS(flux_le) FLUX__NUMBERS(flux_gt) FLUX__NUMBERS(flux_ge)
#define FLUX__LOSS_CPP(name) inline flux_tensor *flux_##name(flux_loss_opts o) { return flux_##name##_with(o); }
FLUX__LOSSES(FLUX__LOSS_CPP)
#if defined(__clang__)
#  pragma clang diagnostic pop
#endif
#endif

#endif /* FLUX_H */

/* ======================================================================================================
   The interface ends here. What follows is the implementation; you need not read it to use the library.
   ====================================================================================================== */
#if defined(FLUX_IMPLEMENTATION) && !defined(FLUX__IMPLEMENTED)
#define FLUX__IMPLEMENTED

/* ------------------------------------------------------------------ 1. Platform
   What differs between compilers and systems: attributes, atomics, threads, thread-local state, the clock, files,
   shared libraries, the terminal. Nothing below asks which system it runs on. Systems: POSIX and Windows; compilers:
   gcc, clang, MSVC, tcc (which has no intrinsics, no atomics and no thread-local variables).
   With -std=c11 a C library hides what ISO C lacks, and the user may have included its headers before us, too late for
   a feature macro: so the few POSIX functions that it hides are declared here.
   Rejected: C11's <threads.h> and <stdatomic.h>, which C++11, tcc and older MSVC do not have.                        */

#if defined(_WIN32)
#  ifndef WIN32_LEAN_AND_MEAN
#    define WIN32_LEAN_AND_MEAN
#  endif
#  ifndef NOMINMAX
#    define NOMINMAX
#  endif
#  include <windows.h>
#  undef near                             /* relics that take names from those who come after */
#  undef far
#  undef small
#  undef interface
#  include <fcntl.h>
#  include <io.h>
#  include <process.h>
#  include <sys/stat.h>
#else
#  include <dlfcn.h>
#  include <fcntl.h>
#  include <pthread.h>
#  include <sched.h>
#  include <sys/ioctl.h>
#  include <sys/stat.h>
#  include <sys/types.h>
#  include <time.h>
#  include <unistd.h>
#endif
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#  pragma warning(disable : 4996 4200 4127 4324)  /* "deprecated" ISO C functions, and the like */
#  include <intrin.h>
#endif

#if defined(CLOCK_MONOTONIC)
#  define FLUX__CLOCK CLOCK_MONOTONIC
#elif defined(__APPLE__)
#  define FLUX__CLOCK 6
#else
#  define FLUX__CLOCK 1
#endif
#if !defined(_WIN32) && !defined(CLOCK_MONOTONIC)   /* strict ISO C: declare what was hidden */
extern int clock_gettime(int clock, struct timespec *t);
extern int fsync(int fd);
extern int fchmod(int fd, mode_t mode);
extern char *realpath(const char *path, char *out);
#endif

#ifndef FLUX_MALLOC
#  define FLUX_MALLOC(bytes) malloc(bytes)
#  define FLUX_REALLOC(p, bytes) realloc(p, bytes)
#  define FLUX_FREE(p) free(p)
#endif

#if defined(__GNUC__) || defined(__clang__)
#  define FLUX__UNUSED __attribute__((unused))
#  define FLUX__NOINLINE __attribute__((noinline))
#  define FLUX__INLINE inline __attribute__((always_inline))
#  define FLUX__PRINTF(a, b) __attribute__((format(printf, a, b)))
#elif defined(_MSC_VER)
#  define FLUX__UNUSED
#  define FLUX__NOINLINE __declspec(noinline)
#  define FLUX__INLINE __forceinline
#  define FLUX__PRINTF(a, b)
#else
#  define FLUX__UNUSED
#  define FLUX__NOINLINE
#  define FLUX__INLINE inline
#  define FLUX__PRINTF(a, b)
#endif

/* How hard gcc tries, part by part; every build of a program waits for it. The loops over numbers say what they need
   themselves, in a user's -O0 build too (FLUX__O2, and sections 9 and 10). What records and plans is LEAN: -O1 less the
   passes that cost a third of its time and change no figure. What runs once or waits for a file or a person is COLD. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__)
#  define FLUX__O2 __attribute__((optimize("O2")))
#else
#  define FLUX__O2
#endif
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && !defined(__TINYC__)
#  define FLUX__LEAN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O1\", \
      \"no-tree-pta\", \"no-tree-dominator-opts\", \"no-ivopts\", \"no-tree-loop-optimize\", \"no-tree-sra\", \
      \"no-tree-slsr\", \"no-tree-sink\", \"no-tree-bit-ccp\", \"no-if-conversion\", \"no-if-conversion2\", \
      \"no-forward-propagate\", \"no-dse\", \"no-dce\", \"no-cprop-registers\", \"no-compare-elim\", \
      \"no-combine-stack-adjustments\", \"no-shrink-wrap\", \"no-ipa-profile\", \"no-ipa-reference\", \
      \"no-ipa-pure-const\", \"no-move-loop-invariants\", \"no-guess-branch-probability\", \
      \"no-reorder-blocks\", \"no-auto-inc-dec\", \"no-branch-count-reg\", \"no-ssa-phiopt\", \"no-tree-ter\", \
      \"no-tree-coalesce-vars\", \"no-tree-builtin-call-dce\")")
#  define FLUX__COLD _Pragma("GCC push_options") _Pragma("GCC optimize(\"O0\")")
#  define FLUX__ASBEFORE _Pragma("GCC pop_options")
#else
#  define FLUX__LEAN
#  define FLUX__COLD
#  define FLUX__ASBEFORE
#endif

/* Vector code for x86-64 chosen at run time: FLUX__X86 says that the compiler can make it, FLUX__AVX2 and FLUX__AVX512
   mark a function that uses it, so that no -m option is needed. */
#if (defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)) || \
    (defined(_M_X64) && defined(_MSC_VER))
#  define FLUX__X86 1
#else
#  define FLUX__X86 0
#endif
#if FLUX__X86 && !defined(_MSC_VER)
#  define FLUX__AVX2 __attribute__((target("avx2,fma,f16c")))
#  define FLUX__AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#else
#  define FLUX__AVX2
#  define FLUX__AVX512
#endif

#if FLUX__X86 && !(defined(_MSC_VER) && !defined(__clang__))
#  include <cpuid.h>
#endif

#ifdef FLUX_STATIC
#  define FLUX_DEF static FLUX__UNUSED
#else
#  define FLUX_DEF
#endif

static void *flux__fail(const char *format, ...) FLUX__PRINTF(1, 2);
static void *flux__malloc(size_t bytes);

/* ---- locks, threads */

#if defined(FLUX_NO_THREADS)
typedef int flux__mutex, flux__cond;
typedef struct flux__os_thread { int none; } flux__os_thread;
#  define FLUX__MUTEX_INIT 0
#  define FLUX__COND_INIT 0
FLUX__UNUSED static void flux__mutex_lock(flux__mutex *m) { (void)m; }
FLUX__UNUSED static void flux__mutex_unlock(flux__mutex *m) { (void)m; }
FLUX__UNUSED static void flux__cond_wait(flux__cond *c, flux__mutex *m) { (void)c, (void)m; }
FLUX__UNUSED static void flux__cond_signal(flux__cond *c) { (void)c; }
FLUX__UNUSED static void flux__cond_broadcast(flux__cond *c) { (void)c; }
FLUX__UNUSED static void flux__thread_yield(void) {}
FLUX__UNUSED static bool flux__thread_start(flux__os_thread *t, void (*fn)(void *), void *arg) {
    (void)t, (void)fn, (void)arg;
    return false;
}
FLUX__UNUSED static void flux__thread_join(flux__os_thread *t) { (void)t; }

#elif defined(_WIN32)
typedef SRWLOCK flux__mutex;
typedef CONDITION_VARIABLE flux__cond;
typedef struct flux__os_thread {
    HANDLE id;
    void (*fn)(void *);
    void *arg;
} flux__os_thread;
#  define FLUX__MUTEX_INIT SRWLOCK_INIT
#  define FLUX__COND_INIT CONDITION_VARIABLE_INIT
FLUX__UNUSED static void flux__mutex_lock(flux__mutex *m) { AcquireSRWLockExclusive(m); }
FLUX__UNUSED static void flux__mutex_unlock(flux__mutex *m) { ReleaseSRWLockExclusive(m); }
FLUX__UNUSED static void flux__cond_wait(flux__cond *c, flux__mutex *m) { SleepConditionVariableSRW(c, m, INFINITE, 0); }
FLUX__UNUSED static void flux__cond_signal(flux__cond *c) { WakeConditionVariable(c); }
FLUX__UNUSED static void flux__cond_broadcast(flux__cond *c) { WakeAllConditionVariable(c); }
FLUX__UNUSED static void flux__thread_yield(void) { SwitchToThread(); }
static unsigned __stdcall flux__thread_main(void *p) {
    flux__os_thread *t = (flux__os_thread *)p;
    t->fn(t->arg);
    return 0;
}
/* Starts fn(arg); *t must stay where it is until joined. False: the system refused, nothing was started. */
FLUX__UNUSED static bool flux__thread_start(flux__os_thread *t, void (*fn)(void *), void *arg) {
    t->fn = fn;
    t->arg = arg;
    t->id = (HANDLE)_beginthreadex(NULL, 0, flux__thread_main, t, 0, NULL);
    return t->id != NULL;
}
FLUX__UNUSED static void flux__thread_join(flux__os_thread *t) {
    WaitForSingleObject(t->id, INFINITE);
    CloseHandle(t->id);
}

#else
typedef pthread_mutex_t flux__mutex;
typedef pthread_cond_t flux__cond;
typedef struct flux__os_thread {
    pthread_t id;
    void (*fn)(void *);
    void *arg;
} flux__os_thread;
#  define FLUX__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#  define FLUX__COND_INIT PTHREAD_COND_INITIALIZER
FLUX__UNUSED static void flux__mutex_lock(flux__mutex *m) { pthread_mutex_lock(m); }
FLUX__UNUSED static void flux__mutex_unlock(flux__mutex *m) { pthread_mutex_unlock(m); }
FLUX__UNUSED static void flux__cond_wait(flux__cond *c, flux__mutex *m) { pthread_cond_wait(c, m); }
FLUX__UNUSED static void flux__cond_signal(flux__cond *c) { pthread_cond_signal(c); }
FLUX__UNUSED static void flux__cond_broadcast(flux__cond *c) { pthread_cond_broadcast(c); }
FLUX__UNUSED static void flux__thread_yield(void) { sched_yield(); }
static void *flux__thread_main(void *p) {
    flux__os_thread *t = (flux__os_thread *)p;
    t->fn(t->arg);
    return NULL;
}
/* Starts fn(arg); *t must stay where it is until joined. False: the system refused, nothing was started. */
FLUX__UNUSED static bool flux__thread_start(flux__os_thread *t, void (*fn)(void *), void *arg) {
    t->fn = fn;
    t->arg = arg;
    return pthread_create(&t->id, NULL, flux__thread_main, t) == 0;
}
FLUX__UNUSED static void flux__thread_join(flux__os_thread *t) { pthread_join(t->id, NULL); }
#endif

/* ---- atomics: sequentially consistent, for counters and flags; add gives the new value */

#if defined(FLUX_NO_THREADS)
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    FLUX__UNUSED static T add(T *p, T v) { return *p += v; }                                  \
    FLUX__UNUSED static T load(const T *p) { return *p; }                                     \
    FLUX__UNUSED static void store(T *p, T v) { *p = v; }                                     \
    FLUX__UNUSED static bool cas(T *p, T was, T v) {                                          \
        if (*p != was) return false;                                                          \
        *p = v;                                                                               \
        return true;                                                                          \
    }
#elif (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    FLUX__UNUSED static T add(T *p, T v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); } \
    FLUX__UNUSED static T load(const T *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }   \
    FLUX__UNUSED static void store(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }   \
    FLUX__UNUSED static bool cas(T *p, T was, T v) {                                          \
        return __atomic_compare_exchange_n(p, &was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
#elif defined(_MSC_VER)
#  define FLUX__ATOMIC_OP(T, name) (sizeof(T) == 8 ? (T)_Interlocked##name##64 : (T)_Interlocked##name)
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    static T add(T *p, T v) {                                                                 \
        return (sizeof(T) == 8 ? (T)_InterlockedExchangeAdd64((volatile __int64 *)p, v)       \
                               : (T)_InterlockedExchangeAdd((volatile long *)p, (long)v)) + v; \
    }                                                                                         \
    static bool cas(T *p, T was, T v) {                                                       \
        return (sizeof(T) == 8                                                                \
                    ? (T)_InterlockedCompareExchange64((volatile __int64 *)p, v, was)         \
                    : (T)_InterlockedCompareExchange((volatile long *)p, (long)v, (long)was)) == was; \
    }                                                                                         \
    static T load(const T *p) { return add((T *)p, 0); }                                      \
    static void store(T *p, T v) {                                                            \
        while (!cas(p, load(p), v)) {}                                                        \
    }
#else
static flux__mutex flux__atomic_lock = FLUX__MUTEX_INIT;   /* a compiler without atomics: one lock for all of them */
#  define FLUX__ATOMICS(T, add, load, store, cas)                                             \
    static T add(T *p, T v) {                                                                 \
        flux__mutex_lock(&flux__atomic_lock);                                                 \
        v = *p += v;                                                                          \
        flux__mutex_unlock(&flux__atomic_lock);                                               \
        return v;                                                                             \
    }                                                                                         \
    static bool cas(T *p, T was, T v) {                                                       \
        bool same;                                                                            \
        flux__mutex_lock(&flux__atomic_lock);                                                 \
        same = *p == was;                                                                     \
        if (same) *p = v;                                                                     \
        flux__mutex_unlock(&flux__atomic_lock);                                               \
        return same;                                                                          \
    }                                                                                         \
    static T load(const T *p) { return add((T *)p, 0); }                                      \
    static void store(T *p, T v) {                                                            \
        flux__mutex_lock(&flux__atomic_lock);                                                 \
        *p = v;                                                                               \
        flux__mutex_unlock(&flux__atomic_lock);                                               \
    }
#endif
FLUX__ATOMICS(int64_t, flux__atomic_add, flux__atomic_load, flux__atomic_store, flux__atomic_cas)
FLUX__ATOMICS(int, flux__atomic_add32, flux__atomic_load32, flux__atomic_store32, flux__atomic_cas32)

/* What a loop does that waits for a moment: tells the processor so. */
FLUX__UNUSED static void flux__relax(void) {
#if FLUX__X86 && defined(_MSC_VER)
    _mm_pause();
#elif FLUX__X86
    __builtin_ia32_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("yield");
#endif
}

/* Runs fn once, whoever asks first; the others wait until it is done. Zeroed but for the lock: {FLUX__MUTEX_INIT, 0}. */
typedef struct flux__once_flag { flux__mutex lock; int done; } flux__once_flag;
#define FLUX__ONCE_INIT {FLUX__MUTEX_INIT, 0}
FLUX__UNUSED static void flux__once(flux__once_flag *o, void (*fn)(void)) {
    if (flux__atomic_load32(&o->done)) return;
    flux__mutex_lock(&o->lock);
    if (!flux__atomic_load32(&o->done)) {
        fn();
        flux__atomic_store32(&o->done, 1);
    }
    flux__mutex_unlock(&o->lock);
}

/* ---- a thread's own pointer
   flux__tls_set's at_thread_end runs when a thread that set one ends (not the main thread, whose end is exit), and may
   still call flux__tls_get. It is the same function in every call. */

#if defined(FLUX_NO_THREADS)
static void *flux__tls_value;
static void *flux__tls_get(void) { return flux__tls_value; }
static bool flux__tls_set(void *p, void (*at_thread_end)(void *)) {
    (void)at_thread_end;
    flux__tls_value = p;
    return true;
}

#else
static flux__mutex flux__tls_lock = FLUX__MUTEX_INIT;
static bool flux__tls_ready;
static void (*flux__tls_end)(void *);
#  if defined(_WIN32)
typedef DWORD flux__tls_key;
#    define FLUX__TLS_CREATE(key, end) (((key) = FlsAlloc(end)) != FLS_OUT_OF_INDEXES)
#    define FLUX__TLS_STORE(key, p) (FlsSetValue(key, p) != 0)
#    define FLUX__TLS_LOAD(key) FlsGetValue(key)
#    define FLUX__TLS_CALL WINAPI
#  else
typedef pthread_key_t flux__tls_key;
#    define FLUX__TLS_CREATE(key, end) (pthread_key_create(&(key), end) == 0)
#    define FLUX__TLS_STORE(key, p) (pthread_setspecific(key, p) == 0)
#    define FLUX__TLS_LOAD(key) pthread_getspecific(key)
#    define FLUX__TLS_CALL
#  endif
static flux__tls_key flux__tls_slot;

/* The system's key runs the function at the thread's end; a thread-local variable, where the compiler has them, is faster to read. */
#  if defined(__TINYC__)
static int flux__tls_made;
static void *flux__tls_get(void) { return flux__atomic_load32(&flux__tls_made) ? FLUX__TLS_LOAD(flux__tls_slot) : NULL; }
static bool flux__tls_put(void *p) {
    flux__atomic_store32(&flux__tls_made, 1);
    return FLUX__TLS_STORE(flux__tls_slot, p);
}
#  else
#    if defined(_MSC_VER)
static __declspec(thread) void *flux__tls_value;
#    else
static __thread void *flux__tls_value;
#    endif
static void *flux__tls_get(void) { return flux__tls_value; }
static bool flux__tls_put(void *p) {
    if (!FLUX__TLS_STORE(flux__tls_slot, p)) return false;
    flux__tls_value = p;
    return true;
}
#  endif

static void FLUX__TLS_CALL flux__tls_ended(void *p) {
    if (!p || !flux__tls_put(p)) return;   /* the system has cleared the key: set it again while the function runs */
    flux__tls_end(p);
    flux__tls_put(NULL);
}

static bool flux__tls_set(void *p, void (*at_thread_end)(void *)) {
    bool ready;
    flux__mutex_lock(&flux__tls_lock);
    if (!flux__tls_ready) {
        flux__tls_end = at_thread_end;
        flux__tls_ready = FLUX__TLS_CREATE(flux__tls_slot, flux__tls_ended);
    }
    ready = flux__tls_ready;
    flux__mutex_unlock(&flux__tls_lock);
    return ready && flux__tls_put(p);
}
#endif

/* ---- the clock, the environment, the terminal */

static double flux__now(void) {           /* seconds since some moment; never goes back */
#if defined(_WIN32)
    LARGE_INTEGER count, rate;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    return (double)count.QuadPart / (double)rate.QuadPart;
#else
    struct timespec t;
    clock_gettime(FLUX__CLOCK, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

static const char *flux__env(const char *name) {   /* NULL: unset or empty */
    const char *s = getenv(name);
    return s && *s ? s : NULL;
}

FLUX__UNUSED static bool flux__is_terminal(FILE *f) {   /* stdout and stderr only: any other file says no */
    int fd = f == stdout ? 1 : f == stderr ? 2 : -1;
#if defined(_WIN32)
    return fd > 0 && _isatty(fd) != 0;
#else
    return fd > 0 && isatty(fd) != 0;
#endif
}

FLUX__UNUSED static int flux__terminal_width(FILE *f) {   /* columns; 80 when nobody knows */
    const char *s = flux__env("COLUMNS");
    int width = s ? atoi(s) : 0;
#if defined(_WIN32)
    CONSOLE_SCREEN_BUFFER_INFO info;
    HANDLE console = GetStdHandle(f == stderr ? STD_ERROR_HANDLE : STD_OUTPUT_HANDLE);
    if (GetConsoleScreenBufferInfo(console, &info)) width = info.srWindow.Right - info.srWindow.Left + 1;
#elif defined(TIOCGWINSZ)
    struct winsize size;
    if (ioctl(f == stderr ? 2 : 1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width = size.ws_col;
#else
    (void)f;
#endif
    return width > 0 ? width : 80;
}

/* ---- shared libraries: opened when wanted, never closed (drivers do not survive it) */

FLUX__UNUSED static void *flux__library_open(const char *name) {   /* NULL: not there. name NULL: the program itself */
#if defined(_WIN32)
    return name ? (void *)LoadLibraryA(name) : (void *)GetModuleHandleA(NULL);
#else
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
#endif
}

/* Copies the address of a function into *fn, a pointer to function: no cast between kinds of pointers, which ISO C lacks. */
FLUX__UNUSED static bool flux__library_symbol(void *library, const char *name, void *fn, size_t size) {
#if defined(_WIN32)
    FARPROC p = GetProcAddress((HMODULE)library, name);
#else
    void *p = dlsym(library, name);
#endif
    if (!p || size != sizeof p) return false;
    memcpy(fn, &p, sizeof p);
    return true;
}

/* ---- processors */

#if defined(__linux__)
/* A container's share of the processors' time, rounded up: threads beyond it would only wait for each other. */
static int flux__cgroup_processors(void) {
    long quota = 0, period = 0;
    int n = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0) n = (int)((quota + period - 1) / period);
    fclose(f);
    return n;
}

/* Processors this process may run on. The C library hides the call unless a GNU program asks, so it is looked up. */
static int flux__allowed_processors(void) {
    unsigned char mask[1024];
    int (*affinity)(int pid, size_t bytes, void *mask);
    int n = 0;
    size_t i;
    memset(mask, 0, sizeof mask);
    if (!flux__library_symbol(flux__library_open(NULL), "sched_getaffinity", &affinity, sizeof affinity)) return 0;
    if (affinity(0, sizeof mask, mask) != 0) return 0;
    for (i = 0; i < 8 * sizeof mask; i++) n += mask[i / 8] >> i % 8 & 1;
    return n;
}
#endif

static int flux__processors(void) {
    int n;
#if defined(_WIN32)
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    n = (int)info.dwNumberOfProcessors;
#else
    n = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
#if defined(__linux__)
    {
        int allowed = flux__allowed_processors(), share = flux__cgroup_processors();
        if (allowed > 0 && allowed < n) n = allowed;
        if (share > 0 && share < n) n = share;
    }
#endif
    return n > 0 ? n : 1;
}

/* The instruction set in use: 0 base, 1 AVX2 with FMA, 2 AVX-512 (F, BW, DQ, VL). FLUX_SIMD caps it. */
static void flux__cpuid(unsigned leaf, unsigned *r) {   /* eax, ebx, ecx, edx; zeros where there is none */
    r[0] = r[1] = r[2] = r[3] = 0;
#if FLUX__X86 && defined(_MSC_VER) && !defined(__clang__)
    int v[4];
    __cpuidex(v, 0, 0);
    if ((unsigned)v[0] < leaf) return;
    __cpuidex(v, (int)leaf, 0);
    memcpy(r, v, sizeof v);
#elif FLUX__X86
    if ((unsigned)__get_cpuid_max(0, NULL) >= leaf) __cpuid_count(leaf, 0, r[0], r[1], r[2], r[3]);
#else
    (void)leaf;
#endif
}

static unsigned flux__xcr0(void) {        /* which registers the system saves; only where OSXSAVE is set */
#if FLUX__X86 && defined(_MSC_VER) && !defined(__clang__)
    return (unsigned)_xgetbv(0);
#elif FLUX__X86
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
#else
    return 0;
#endif
}

/* Asked of the processor itself: the compilers' own test needs a library that some systems' linkers do not find. */
static int flux__simd_detect(void) {
    const unsigned basic = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;      /* FMA, OSXSAVE, AVX, F16C */
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;     /* F, DQ, BW, VL */
    unsigned one[4], seven[4], saved;
    flux__cpuid(1, one);
    if ((one[2] & basic) != basic) return 0;
    saved = flux__xcr0();
    flux__cpuid(7, seven);
    if ((saved & 6) != 6 || !(seven[1] & 1u << 5)) return 0;
    return (saved & 0xe6) == 0xe6 && (seven[1] & avx512) == avx512 ? 2 : 1;
}

static int flux__simd_known;              /* level + 1, once it has been found out */
FLUX__UNUSED static int flux__simd(void) {
    int level = flux__atomic_load32(&flux__simd_known) - 1;
    if (level < 0) {
        const char *cap = flux__env("FLUX_SIMD");
        level = flux__simd_detect();
        if (cap && !strcmp(cap, "avx2") && level > 1) level = 1;
        if (cap && !strcmp(cap, "base")) level = 0;
        flux__atomic_store32(&flux__simd_known, level + 1);
    }
    return level;
}

/* ---- files */

#if defined(_WIN32)
static wchar_t *flux__wide(const char *path) {     /* names are UTF-8 here, UTF-16 there */
    int n = MultiByteToWideChar(CP_UTF8, 0, path, -1, NULL, 0);
    wchar_t *w = n > 0 ? (wchar_t *)FLUX_MALLOC((size_t)n * sizeof(wchar_t)) : NULL;
    if (w) MultiByteToWideChar(CP_UTF8, 0, path, -1, w, n);
    else errno = EINVAL;
    return w;
}
static FILE *flux__fopen(const char *path, const char *mode) {
    wchar_t m[8], *w = flux__wide(path);
    FILE *f = NULL;
    size_t i;
    for (i = 0; mode[i] && i < 7; i++) m[i] = (wchar_t)mode[i];
    m[i] = 0;
    if (w) f = _wfopen(w, m);
    FLUX_FREE(w);
    return f;
}
static int flux__file_create(const char *path, bool exclusive, int mode) {
    wchar_t *w = flux__wide(path);
    int fd = -1;
    (void)mode;
    if (w) fd = _wopen(w, _O_WRONLY | _O_BINARY | (exclusive ? _O_CREAT | _O_EXCL : 0), _S_IREAD | _S_IWRITE);
    FLUX_FREE(w);
    return fd;
}
static bool flux__file_replace(const char *from, const char *to) {
    wchar_t *f = flux__wide(from), *t = flux__wide(to);
    bool done = f && t && MoveFileExW(f, t, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH);
    if (!done) errno = EACCES;
    FLUX_FREE(f);
    FLUX_FREE(t);
    return done;
}
static void flux__file_remove(const char *path) {
    wchar_t *w = flux__wide(path);
    if (w) _wunlink(w);
    FLUX_FREE(w);
}
static int64_t flux__file_put(int fd, const void *data, size_t bytes) {
    return _write(fd, data, bytes < 1 << 30 ? (unsigned)bytes : 1u << 30);
}
static bool flux__file_sync(int fd) { return _commit(fd) == 0; }
static bool flux__file_close(int fd) { return _close(fd) == 0; }
static int flux__process_id(void) { return (int)GetCurrentProcessId(); }
static void flux__folder_sync(const char *folder) { (void)folder; }
static bool flux__is_separator(char c) { return c == '/' || c == '\\' || c == ':'; }
/* What stands at path: 0 nothing, 1 a file that we may replace, 2 something to write into as it is, -1 neither (errno). */
static int flux__file_kind(const char *path, int *mode) {
    wchar_t *w = flux__wide(path);
    DWORD a = w ? GetFileAttributesW(w) : 0;
    FLUX_FREE(w);
    *mode = 0;
    if (!w) return -1;
    if (a == INVALID_FILE_ATTRIBUTES) return 0;
    errno = a & FILE_ATTRIBUTE_DIRECTORY ? EISDIR : EACCES;
    return a & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_READONLY) ? -1 : a & FILE_ATTRIBUTE_DEVICE ? 2 : 1;
}
static char *flux__file_target(const char *path) { (void)path; return NULL; }

#else
#  ifdef O_CLOEXEC
#    define FLUX__CLOEXEC O_CLOEXEC
#  else
#    define FLUX__CLOEXEC 0
#  endif
static FILE *flux__fopen(const char *path, const char *mode) { return fopen(path, mode); }
static int flux__file_create(const char *path, bool exclusive, int mode) {
    return open(path, O_WRONLY | FLUX__CLOEXEC | (exclusive ? O_CREAT | O_EXCL : 0), mode ? mode : 0666);
}
static bool flux__file_replace(const char *from, const char *to) { return rename(from, to) == 0; }
static void flux__file_remove(const char *path) { unlink(path); }
static int64_t flux__file_put(int fd, const void *data, size_t bytes) {
    return (int64_t)write(fd, data, bytes < 1 << 30 ? bytes : 1 << 30);
}
static bool flux__file_sync(int fd) { return fsync(fd) == 0 || errno == EINVAL || errno == EROFS; }   /* pipes can't */
static bool flux__file_close(int fd) { return close(fd) == 0; }
static int flux__process_id(void) { return (int)getpid(); }
static void flux__folder_sync(const char *folder) {     /* so that the new name survives a power cut; some systems refuse */
    int fd = open(folder, O_RDONLY | FLUX__CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}
static bool flux__is_separator(char c) { return c == '/'; }
/* What stands at path: 0 nothing, 1 a file that we may replace, 2 something to write into as it is, -1 neither (errno). */
static int flux__file_kind(const char *path, int *mode) {
    struct stat s;
    *mode = 0;
    if (stat(path, &s) != 0) return errno == ENOENT ? 0 : -1;
    if (S_ISDIR(s.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    if (access(path, W_OK) != 0) return -1;
    *mode = (int)(s.st_mode & 07777);
    return S_ISREG(s.st_mode) ? 1 : 2;
}
static char *flux__file_target(const char *path) { return realpath(path, NULL); }   /* behind links; NULL: as it is; free() it */
#endif

/* The whole file, with a 0 after its end, to be given to FLUX_FREE; NULL is an error named after `call`. */
FLUX__UNUSED static void *flux__read_file(const char *path, size_t *size, const char *call) {
    FILE *f = path ? flux__fopen(path, "rb") : NULL;
    size_t n = 0, room = 1 << 16;
    char *data = NULL, *more;
    const char *why = NULL;
    *size = 0;
    if (!path) return flux__fail("%s: the path is NULL", call);
    if (!f) return flux__fail("%s: cannot open %s: %s", call, path, strerror(errno));
    while (!why) {
        more = room <= SIZE_MAX / 4 ? (char *)FLUX_REALLOC(data, room + 1) : NULL;
        if (!more) {
            why = "out of memory";
            break;
        }
        data = more;
        errno = 0;
        n += fread(data + n, 1, room - n, f);
        if (ferror(f)) why = errno ? strerror(errno) : "read error";
        else if (n < room) break;
        room *= 2;
    }
    fclose(f);
    if (why) {
        FLUX_FREE(data);
        return flux__fail("%s: cannot read %s: %s", call, path, why);
    }
    more = (char *)FLUX_REALLOC(data, n + 1);   /* give back what was too much */
    if (more) data = more;
    data[n] = 0;
    *size = n;
    return data;
}

/* A file that comes to be whole or not at all: written under another name in the same folder, moved over the old one
   by flux__out_commit. Devices and pipes are written as they are. An error is recorded where it happens; after one,
   writes do nothing, commit does what abort does and says false. NULL is such an error. commit and abort free it. */
typedef struct flux__out {
    int fd;
    bool aside, failed;
    const char *call;
    char *path, *temporary;               /* path: where it will be, links followed; both within one allocation */
    size_t folder, used;                  /* length of the folder's name in path; bytes waiting in buffer */
    char buffer[1 << 14];
} flux__out;

static bool flux__out_fail(flux__out *o) {
    if (!o->failed) flux__fail("%s: cannot write %s: %s", o->call, o->path, strerror(errno));
    o->failed = true;
    return false;
}

static bool flux__out_name(flux__out *o, int mode) {    /* opens a file that was not there before */
    static int64_t serial;
    int tries;
    for (tries = 0; tries < 1000; tries++) {
        sprintf(o->temporary + o->folder, ".flux-%d-%lld.tmp", flux__process_id(), (long long)flux__atomic_add(&serial, 1));
        o->fd = flux__file_create(o->temporary, true, mode & 0777);
        if (o->fd >= 0 || errno != EEXIST) break;
    }
    return o->fd >= 0;
}

FLUX__UNUSED static flux__out *flux__out_open(const char *path, const char *call) {
    char *target = path && *path ? flux__file_target(path) : NULL;
    const char *real = target ? target : path;
    size_t n = real ? strlen(real) : 0;
    flux__out *o;
    int kind, mode;
    if (n == 0) return (flux__out *)flux__fail("%s: the path is %s", call, path ? "empty" : "NULL");
    o = (flux__out *)flux__malloc(sizeof *o + 2 * n + 64);
    if (!o) {
        free(target);
        return NULL;
    }
    o->call = call;
    o->fd = -1;
    o->failed = false;
    o->used = 0;
    o->path = (char *)(o + 1);
    o->temporary = o->path + n + 1;
    memcpy(o->path, real, n + 1);
    memcpy(o->temporary, real, n + 1);
    free(target);
    for (o->folder = n; o->folder > 0 && !flux__is_separator(o->path[o->folder - 1]);) o->folder--;
    kind = flux__file_kind(o->path, &mode);
    o->aside = kind == 0 || kind == 1;
    if (o->aside) flux__out_name(o, mode);
    else if (kind == 2) o->fd = flux__file_create(o->path, false, 0);
    if (o->fd < 0) {
        flux__out_fail(o);
        FLUX_FREE(o);
        return NULL;
    }
#if !defined(_WIN32)
    if (kind == 1) (void)(fchmod(o->fd, (mode_t)mode) == 0);   /* not ours to change: the file keeps what we could give */
#endif
    return o;
}

static bool flux__out_flush(flux__out *o, const char *data, size_t bytes) {
    while (bytes > 0) {
        int64_t n = flux__file_put(o->fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) return flux__out_fail(o);
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

FLUX__UNUSED static bool flux__out_write(flux__out *o, const void *data, size_t bytes) {
    if (!o || o->failed) return false;
    if (bytes > sizeof o->buffer - o->used) {
        if (!flux__out_flush(o, o->buffer, o->used)) return false;
        o->used = 0;
        if (bytes > sizeof o->buffer) return flux__out_flush(o, (const char *)data, bytes);
    }
    if (bytes) memcpy(o->buffer + o->used, data, bytes);
    o->used += bytes;
    return true;
}

FLUX__UNUSED static void flux__out_abort(flux__out *o) {
    if (!o) return;
    if (o->fd >= 0) flux__file_close(o->fd);
    if (o->aside) flux__file_remove(o->temporary);
    FLUX_FREE(o);
}

FLUX__UNUSED static bool flux__out_commit(flux__out *o) {
    bool good;
    if (!o) return false;
    if (!o->failed && flux__out_flush(o, o->buffer, o->used)) {
        good = flux__file_sync(o->fd);
        if (!good) flux__out_fail(o);
        if (!flux__file_close(o->fd) && good) flux__out_fail(o);
        o->fd = -1;
        if (!o->failed && o->aside && !flux__file_replace(o->temporary, o->path)) flux__out_fail(o);
    }
    good = !o->failed;
    if (good && o->aside) {
        o->path[o->folder] = 0;
        flux__folder_sync(o->folder ? o->path : ".");
        o->aside = false;                 /* what was the temporary file is the file now */
    }
    flux__out_abort(o);
    return good;
}

FLUX__LEAN

/* ------------------------------------------------------------------ 2. Objects, threads' state, errors
   Every handle starts with a flux__head: what it is, who owns it. A reference is held by a scope, by the user
   (flux_retain), by another object, or by an edge of the graph; edges are counted apart, so that a tensor which only
   the graph still needs (nobody can look at it) is known as hidden: refs == edges.
   All that is not shared between threads stands in one struct per thread. */

enum { FLUX__TENSOR = 0x7e01, FLUX__LAYER, FLUX__LOADER, FLUX__STATE, FLUX__GRADS, FLUX__RULES };

typedef struct flux__buffer {             /* memory on a device, shared by the tensors that lie in it */
    int64_t refs;
    flux_device device;
    size_t bytes;                         /* as asked for; the pool may have given more */
    size_t room;
    void *ptr;
    bool borrowed;                        /* the user's own: never written, never freed */
} flux__buffer;

struct flux_tensor {                      /* a node of the graph; with buf set, also its value */
    flux__head head;
    uint16_t op;
    uint8_t dtype, ndim, nin, flags;
    uint32_t mark, walk_mark;             /* the schedule's, and a gradient's: which walk saw it, */
    int32_t index, walk_index;            /* and under which number */
    flux_device device;
    int64_t dim[FLUX_MAX_DIMS];
    flux_tensor **in, *slot[3];           /* operands: in points to slot, or to memory of its own */
    flux__buffer *buf;                    /* the value: elements in order, dim 0 fastest */
    flux_tensor *base;                    /* a view's: whose elements it shows (not itself a view), from .offset by .stride */
    int64_t offset, stride[FLUX_MAX_DIMS];
    int64_t rel;                          /* FLUX__STRIDED, FLUX__SPREAD: where arg.i strides start, in the operand in order */
    union { double num; int64_t i[FLUX_MAX_DIMS]; uint64_t u[FLUX_MAX_DIMS]; } arg;   /* the operation's own parameters */
    flux_tensor *dense;                   /* a view's elements in order, once flux_data asked for them */
};
enum { FLUX__WEAK = 1, FLUX__CONSUMED = 2, FLUX__FIXED = 4 };  /* a bare number; graph used up by flux_update; no graph kept */

typedef struct flux__pending { char text[512]; bool set; int repeated; } flux__pending;

typedef struct flux__thread {             /* a thread's own state */
    flux__pending error;
    int (*where)(const void *place, char *out, size_t n);   /* writes what errors are to name first; or NULL */
    const void *place;
    void **owned;                         /* what the open scopes hold, oldest first */
    int nowned, room;
    int *scope, nscopes, scope_room;      /* where each scope starts in owned */
    int nograd;                           /* depth of FLUX_NOGRAD */
    uint64_t seed, draws;                 /* random numbers: key, and how many tensors were drawn */
    uint32_t walk;                        /* the last mark given */
    bool main;                            /* its scopes close at exit, not when the thread ends */
    flux_tensor *spare;                   /* freed nodes, chained by in */
    int nspare;
    struct flux__plans *plans;            /* schedules found before */
    void *scratch;                        /* memory of the kernels it runs */
    size_t scratch_bytes;
    struct flux__progress *bar;           /* the innermost progress bar */
} flux__thread;
static void flux__threads_stop(void);
static flux__thread *flux__self(void);    /* this thread's; NULL only when memory has run out */

static void *flux__fail(const char *format, ...) FLUX__PRINTF(1, 2);   /* an error: keeps the sentence, returns NULL */
static void flux__note(flux_level level, const char *id, bool once, const char *format, ...) FLUX__PRINTF(4, 5);
static void *flux__malloc(size_t bytes);  /* NULL is already an error: "out of memory: N bytes for ..." */
static void *flux__zalloc(size_t bytes);
static void *flux__grow(void *array, int *room, int want, size_t size);   /* array with room for `want`; NULL: as it was */
static void *flux__own(void *object);     /* gives a new object (refs 1) to the innermost scope; returns it */
#define FLUX__VISIBLE(t) ((t)->head.refs > (t)->head.edges)

/* ------------------------------------------------------------------ 3. What a back end is
   A back end is one table of calls: is it there, does it work, how many devices, memory, copies. The CPU is entry 0 of
   the registry and needs no driver; every other entry is found out about once per process (section "Devices").

   Invariant: a call that takes a device id gets one from 0 to count() - 1, and only after functional() said true. Calls
   that return int give 0 when they are done; the caller words the error, since it knows what was being moved.

   Rejected: a table per device (they differ by a number only), and calls that open the driver on their own (a program
   that never asks for a GPU would pay for it). */

typedef struct flux__backend {
    const char *name;                                        /* "CUDA" */
    bool (*available)(char *why, size_t n);                  /* driver library opened, symbols found; else why not */
    bool (*functional)(char *why, size_t n);                 /* initialised, a device, a compiler; else why not */
    int (*count)(void);                                      /* devices */
    void (*device_name)(int id, char *out, size_t n);        /* as its maker calls it: "NVIDIA H200" */
    bool (*component)(const char *name, bool *known);        /* "driver", "compiler", "NCCL", "MIOpen", ... */
    void *(*alloc)(int id, size_t bytes);                    /* NULL: no room, without a message */
    void (*free)(int id, void *p, size_t bytes);
    int (*upload)(int id, void *dst, const void *src, size_t bytes);      /* from host memory */
    int (*download)(int id, void *dst, const void *src, size_t bytes);    /* to host memory */
    int (*copy)(int to, void *dst, int from, const void *src, size_t bytes);   /* between its own devices */
    int (*wait)(int id);                                     /* until all work there is done */
} flux__backend;

enum { FLUX__CPU_BACKEND, FLUX__CUDA_BACKEND, FLUX__AMDGPU_BACKEND, FLUX__METAL_BACKEND, FLUX__BACKENDS };   /* flux_device.backend */

static const flux__backend *flux__backend_of(int index);     /* never NULL for 0 <= index < FLUX__BACKENDS */
FLUX__UNUSED static void flux__backend_set(int index, const flux__backend *b);   /* a test's own; NULL: the built-in one again */

/* Host memory in 64-byte lines, so that vector loops need no head and no two tensors share a line. The block's true
   start stands just before what is handed out. */
static void *flux__cpu_alloc(int id, size_t bytes) {
    (void)id;
    if (bytes > SIZE_MAX - 64 - sizeof(void *)) return NULL;
    char *base = (char *)FLUX_MALLOC(bytes + 64 + sizeof(void *));
    if (!base) return NULL;
    char *p = base + sizeof(void *) + 63;
    p -= (uintptr_t)p & 63;
    memcpy(p - sizeof(void *), &base, sizeof(void *));
    return p;
}

static void flux__cpu_free(int id, void *p, size_t bytes) {
    (void)id, (void)bytes;
    if (!p) return;
    char *base;
    memcpy(&base, (char *)p - sizeof(void *), sizeof(void *));
    FLUX_FREE(base);
}

/* ---------------- the thread's state and its errors */

typedef struct flux__settings {           /* the process's: changed rarely, under flux__lock */
    flux_error_fn on_error;
    void *error_user;
    flux_log_fn on_log;
    void *log_user;
    int level;                            /* -1: not read from FLUX_LOG yet */
    int schedules;                        /* FLUX_LOG=schedule */
    char ids[64][40];                     /* messages shown that are shown once, and silenced ones */
    bool silenced[64];
    int nids;
} flux__settings;
static flux__settings flux__set = { NULL, NULL, NULL, NULL, -1, 0, { { 0 } }, { 0 }, 0 };
static flux__mutex flux__lock = FLUX__MUTEX_INIT;
static int flux__exit_known;

static void flux__thread_free(void *state);

static flux__thread *flux__self(void) {
    flux__thread *t = (flux__thread *)flux__tls_get();
    if (t) return t;
    t = (flux__thread *)FLUX_MALLOC(sizeof *t);
    if (!t) return NULL;
    memset(t, 0, sizeof *t);
    t->scope = (int *)FLUX_MALLOC(16 * sizeof(int));
    if (!t->scope || !flux__tls_set(t, flux__thread_free)) {
        if (t->scope) FLUX_FREE(t->scope);
        FLUX_FREE(t);
        return NULL;
    }
    t->scope_room = 16;
    t->scope[0] = 0;                      /* the outermost scope: the program, or the thread's life */
    t->nscopes = 1;
    flux__mutex_lock(&flux__lock);
    if (!flux__exit_known) {
        flux__exit_known = 1;
        atexit(flux_shutdown);
    }
    flux__mutex_unlock(&flux__lock);
    return t;
}

static void flux__say_error(const char *text) {
    flux__mutex_lock(&flux__lock);
    flux_error_fn handler = flux__set.on_error;
    void *user = flux__set.error_user;
    flux__mutex_unlock(&flux__lock);
    if (handler) handler(text, user);
    else fprintf(stderr, "flux: %s\n", text);
    const char *mode = flux__env("FLUX_ERROR");
    if (mode && strcmp(mode, "abort") == 0) abort();
}

static void *flux__fail(const char *format, ...) {
    flux__thread *t = flux__self();
    if (!t) {
        fprintf(stderr, "flux: out of memory\n");
        return NULL;
    }
    if (t->error.set) {
        t->error.repeated++;
        return NULL;
    }
    va_list args;
    va_start(args, format);
    int n = t->where ? t->where(t->place, t->error.text, sizeof t->error.text) : 0;
    vsnprintf(t->error.text + n, sizeof t->error.text - (size_t)n, format, args);
    va_end(args);
    t->error.set = true;
    t->error.repeated = 0;
    flux__say_error(t->error.text);
    return NULL;
}

FLUX_DEF const char *flux_error(void) {
    flux__thread *t = flux__self();
    return t ? (t->error.set ? t->error.text : "") : "out of memory";
}

FLUX_DEF bool flux_failed(void) {
    flux__thread *t = flux__self();
    return !t || t->error.set;
}

FLUX_DEF void flux_clear(void) {
    flux__thread *t = flux__self();
    if (!t) return;
    if (t->error.set && t->error.repeated)
        flux__note(FLUX_LOG_DEBUG, "error.repeated", false, "%d more errors followed the first", t->error.repeated);
    t->error.set = false;
    t->error.text[0] = 0;
}

FLUX_DEF void flux_on_error(flux_error_fn handler, void *user) {
    flux__mutex_lock(&flux__lock);
    flux__set.on_error = handler;
    flux__set.error_user = user;
    flux__mutex_unlock(&flux__lock);
}

/* A NULL handle: silent after an error (NULL in, NULL out), else the mistake of this call. */
static void *flux__null(const char *call, const char *arg, const void *p) {
    if (!p && !flux_failed()) flux__fail("%s: argument %s is NULL", call, arg);
    return NULL;
}

/* ---------------- messages that are not errors */

static void flux__read_level(void) {
    static const char *const names[] = { "error", "warn", "info", "debug" };
    const char *text = flux__env("FLUX_LOG");
    flux__set.level = FLUX_LOG_INFO;
    for (int i = 0; text && i < 4; i++)
        if (strstr(text, names[i])) flux__set.level = i;
    flux__set.schedules = text && strstr(text, "schedule");
}

/* Whether a message may appear: not silenced, and not shown before if it appears once. */
static bool flux__may_show(const char *id, bool once) {
    for (int i = 0; i < flux__set.nids; i++)
        if (strcmp(flux__set.ids[i], id) == 0) return !once && !flux__set.silenced[i];
    if (once && flux__set.nids < 64) {
        snprintf(flux__set.ids[flux__set.nids], sizeof flux__set.ids[0], "%s", id);
        flux__set.silenced[flux__set.nids++] = false;
    }
    return true;
}

static void flux__note(flux_level level, const char *id, bool once, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    flux__mutex_lock(&flux__lock);
    if (flux__set.level < 0) flux__read_level();
    bool show = (int)level <= flux__set.level && flux__may_show(id, once);
    flux_log_fn handler = flux__set.on_log;
    void *user = flux__set.log_user;
    flux__mutex_unlock(&flux__lock);
    if (!show) return;
    if (handler) handler(level, id, text, user);
    else fprintf(stderr, "flux: %s%s\n", level == FLUX_LOG_WARN ? "warning: " : "", text);
}

FLUX_DEF void flux_log_level(flux_level most) {
    flux__mutex_lock(&flux__lock);
    if (flux__set.level < 0) flux__read_level();
    flux__set.level = (int)most;
    flux__mutex_unlock(&flux__lock);
}

FLUX_DEF void flux_on_log(flux_log_fn handler, void *user) {
    flux__mutex_lock(&flux__lock);
    flux__set.on_log = handler;
    flux__set.log_user = user;
    flux__mutex_unlock(&flux__lock);
}

FLUX_DEF void flux_silence(const char *id) {
    flux__mutex_lock(&flux__lock);
    if (!id) flux__set.nids = 0;
    int i = 0;
    while (i < flux__set.nids && strcmp(flux__set.ids[i], id) != 0) i++;
    if (id && i < 64) {
        snprintf(flux__set.ids[i], sizeof flux__set.ids[0], "%s", id);
        flux__set.silenced[i] = true;
        if (i == flux__set.nids) flux__set.nids++;
    }
    flux__mutex_unlock(&flux__lock);
}

static bool flux__log_schedules(void) {
    flux__mutex_lock(&flux__lock);
    if (flux__set.level < 0) flux__read_level();
    bool on = flux__set.schedules != 0;
    flux__mutex_unlock(&flux__lock);
    return on;
}

/* ---------------- host memory of the library's own */

static void *flux__malloc(size_t bytes) {
    void *p = FLUX_MALLOC(bytes ? bytes : 1);
    if (!p) flux__fail("out of memory: %zu bytes", bytes);
    return p;
}

static void *flux__zalloc(size_t bytes) {
    void *p = flux__malloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static void *flux__grow(void *array, int *room, int want, size_t size) {
    if (want <= *room) return array;
    int more = *room < 32 ? 64 : *room * 2;
    if (more < want) more = want;
    void *p = FLUX_REALLOC(array, (size_t)more * size);
    if (!p) return flux__fail("out of memory: %zu bytes", (size_t)more * size);
    *room = more;
    return p;
}

/* ---------------- buffers: a pool for each device
   A freed buffer stays in its device's pool, by size class, so a step that repeats allocates nothing. */

#define FLUX__MAX_IDS 16
#define FLUX__SIZES 256

typedef struct flux__arena {
    flux__buffer *spare[FLUX__SIZES];     /* chained by their first pointer-sized word: ptr's owner struct */
    flux_mem stats;
} flux__arena;
static flux__arena flux__arenas[FLUX__BACKENDS][FLUX__MAX_IDS];
static flux__mutex flux__arena_lock = FLUX__MUTEX_INIT;

/* Sizes grow in eighths of a power of two, from 64 bytes: at most an eighth is wasted. */
static int flux__size_class(size_t bytes, size_t *room) {
    size_t unit = (bytes + 63) / 64, top = 1;
    int power = 0;
    if (unit == 0) unit = 1;
    while (top * 2 <= unit) top *= 2, power++;
    size_t step = top < 8 ? 1 : top / 8, k = (unit - top + step - 1) / step;
    if (k == 8 || (step == 1 && k == top)) k = 0, power++, top *= 2, step = top < 8 ? 1 : top / 8;
    *room = (top + k * step) * 64;
    return power * 8 + (int)k;
}

static void flux__arena_trim(flux_device d, flux__arena *pool) {
    for (int i = 0; i < FLUX__SIZES; i++)
        while (pool->spare[i]) {
            flux__buffer *b = pool->spare[i];
            pool->spare[i] = (flux__buffer *)(intptr_t)b->refs;   /* a spare buffer has no owners: refs chains it */
            pool->stats.reserved -= (int64_t)b->room;
            flux__backend_of(d.backend)->free(d.id, b->ptr, b->room);
            FLUX_FREE(b);
        }
}

static flux__buffer *flux__arena_take(flux_device d, flux__arena *pool, int cls, size_t room) {
    flux__buffer *b = pool->spare[cls];
    if (b) {
        pool->spare[cls] = (flux__buffer *)(intptr_t)b->refs;
        return b;
    }
    int64_t limit = pool->stats.limit;
    if (limit && pool->stats.reserved + (int64_t)room > limit) flux__arena_trim(d, pool);
    if (limit && pool->stats.reserved + (int64_t)room > limit) return NULL;
    b = (flux__buffer *)FLUX_MALLOC(sizeof *b);
    if (!b) return NULL;
    b->ptr = flux__backend_of(d.backend)->alloc(d.id, room);
    if (!b->ptr) {
        flux__arena_trim(d, pool);
        b->ptr = flux__backend_of(d.backend)->alloc(d.id, room);
    }
    if (!b->ptr) {
        FLUX_FREE(b);
        return NULL;
    }
    pool->stats.reserved += (int64_t)room;
    b->room = room;
    return b;
}

static flux__buffer *flux__buffer_new(flux_device d, size_t bytes) {
    size_t room;
    int cls = flux__size_class(bytes, &room);
    if (bytes > (size_t)1 << 46 || cls >= FLUX__SIZES || d.id < 0 || d.id >= FLUX__MAX_IDS)
        return (flux__buffer *)flux__fail("out of memory: a tensor of %.3g bytes was asked for", (double)bytes);
    flux__mutex_lock(&flux__arena_lock);
    flux__arena *pool = &flux__arenas[d.backend][d.id];
    flux__buffer *b = flux__arena_take(d, pool, cls, room);
    flux_mem now = pool->stats;
    if (b) {
        pool->stats.live += (int64_t)room;
        if (pool->stats.live > pool->stats.peak) pool->stats.peak = pool->stats.live;
    }
    flux__mutex_unlock(&flux__arena_lock);
    if (!b)
        return (flux__buffer *)flux__fail("out of memory on %s: %zu bytes asked for, %lld in use%s", flux_device_name(d), bytes,
                                          (long long)now.live, now.limit ? " under the limit of flux_mem_limit" : "");
    b->refs = 1;
    b->device = d;
    b->bytes = bytes;
    b->borrowed = false;
    return b;
}

static void flux__buffer_release(flux__buffer *b) {
    if (!b || flux__atomic_add(&b->refs, -1) > 0) return;
    if (b->borrowed) {
        FLUX_FREE(b);
        return;
    }
    size_t room;
    int cls = flux__size_class(b->room, &room);
    flux__mutex_lock(&flux__arena_lock);
    flux__arena *pool = &flux__arenas[b->device.backend][b->device.id];
    pool->stats.live -= (int64_t)b->room;
    b->refs = (int64_t)(intptr_t)pool->spare[cls];
    pool->spare[cls] = b;
    flux__mutex_unlock(&flux__arena_lock);
}

static flux__arena *flux__arena_of(flux_device d, const char *call) {
    if (d.backend >= 0 && d.backend < FLUX__BACKENDS && d.id >= 0 && d.id < FLUX__MAX_IDS) return &flux__arenas[d.backend][d.id];
    return (flux__arena *)flux__fail("%s: device {%d, %d} does not exist", call, d.backend, d.id);
}

FLUX_DEF flux_mem flux_mem_stats(flux_device d) {
    flux_mem none = { 0, 0, 0, 0 };
    flux__arena *pool = flux__arena_of(d, "mem_stats");
    if (!pool) return none;
    flux__mutex_lock(&flux__arena_lock);
    none = pool->stats;
    flux__mutex_unlock(&flux__arena_lock);
    return none;
}

FLUX_DEF void flux_mem_limit(flux_device d, int64_t bytes) {
    flux__arena *pool = flux__arena_of(d, "mem_limit");
    if (!pool) return;
    if (bytes < 0) {
        flux__fail("mem_limit: %lld bytes is not a limit (0 means none)", (long long)bytes);
        return;
    }
    flux__mutex_lock(&flux__arena_lock);
    pool->stats.limit = bytes;
    flux__mutex_unlock(&flux__arena_lock);
}

FLUX_DEF void flux_mem_trim(flux_device d) {
    flux__arena *pool = flux__arena_of(d, "mem_trim");
    if (!pool) return;
    flux__mutex_lock(&flux__arena_lock);
    flux__arena_trim(d, pool);
    flux__mutex_unlock(&flux__arena_lock);
}

/* ---------------- ownership and scopes */

static void flux__layer_free(flux_layer *m);
static void flux__loader_free(flux_loader *l);
static void flux__state_free(flux_state *s);
static void flux__grads_free(flux_grads *g);
static void flux__rules_free(void *rules);
static void flux__plans_free(struct flux__plans *plans);
static void flux__tensor_free(flux_tensor *t);

FLUX_DEF void *flux_retain(const void *object) {
    flux__head *h = (flux__head *)(intptr_t)object;
    if (h) flux__atomic_add(&h->refs, 1);
    return h;
}

FLUX_DEF void flux_release(const void *object) {
    flux__head *h = (flux__head *)(intptr_t)object;
    if (!h || flux__atomic_add(&h->refs, -1) > 0) return;
    switch (h->kind) {
    case FLUX__TENSOR: flux__tensor_free((flux_tensor *)h); break;
    case FLUX__LAYER: flux__layer_free((flux_layer *)h); break;
    case FLUX__LOADER: flux__loader_free((flux_loader *)h); break;
    case FLUX__STATE: flux__state_free((flux_state *)h); break;
    case FLUX__GRADS: flux__grads_free((flux_grads *)h); break;
    default: flux__rules_free(h); break;
    }
}

FLUX_DEF void flux_assign(flux_tensor **field, flux_tensor *value) {
    flux_tensor *old = *field;
    *field = (flux_tensor *)flux_retain(value);
    flux_release(old);
}

static void *flux__own(void *object) {
    flux__thread *t = flux__self();
    if (!object || !t) return object;
    void **owned = (void **)flux__grow(t->owned, &t->room, t->nowned + 1, sizeof *owned);
    if (!owned) {
        flux_release(object);
        return NULL;
    }
    t->owned = owned;
    t->owned[t->nowned++] = object;
    return object;
}

FLUX_DEF void flux_scope_open(void) {
    flux__thread *t = flux__self();
    if (!t) return;
    int *scope = (int *)flux__grow(t->scope, &t->scope_room, t->nscopes + 1, sizeof *scope);
    if (!scope) return;                   /* what follows then belongs to the scope outside */
    t->scope = scope;
    t->scope[t->nscopes++] = t->nowned;
}

/* Closes the scopes from number `depth` on (the program's own is 0 and stays). */
static void flux__scope_close_to(flux__thread *t, int depth) {
    if (depth < 1 || t->nscopes <= depth) return;
    int start = t->scope[depth];
    t->nscopes = depth;
    while (t->nowned > start) flux_release(t->owned[--t->nowned]);
}

FLUX_DEF void flux_scope_close(void) {
    flux__thread *t = flux__self();
    if (!t) return;
    if (t->nscopes <= 1) flux__fail("scope_close: no scope is open");
    else flux__scope_close_to(t, t->nscopes - 1);
}

FLUX_DEF void *flux_keep_object(const void *object) {
    flux__thread *t = flux__self();
    void *p = (void *)(intptr_t)object;
    if (!p || !t || t->nscopes <= 1) return p;
    int start = t->scope[t->nscopes - 1], i = t->nowned - 1;
    while (i >= start && t->owned[i] != p) i--;
    if (i < start) return p;              /* it belongs to a scope further out already */
    t->owned[i] = t->owned[start];        /* to the boundary, which then moves past it */
    t->owned[start] = p;
    t->scope[t->nscopes - 1]++;
    return p;
}

FLUX_DEF flux__block flux__scope_enter(void) {
    flux__thread *t = flux__self();
    flux__block b = { 1, t ? t->nscopes : 0 };
    flux_scope_open();
    return b;
}

FLUX_DEF void flux__scope_leave(flux__block *b) {
    flux__thread *t = flux__self();
    if (b->live && t) flux__scope_close_to(t, b->depth);
    b->live = 0;
}

FLUX_DEF flux__block flux__nograd_enter(void) {
    flux__thread *t = flux__self();
    flux__block b = { 1, t ? t->nograd++ : 0 };
    return b;
}

FLUX_DEF void flux__nograd_leave(flux__block *b) {
    flux__thread *t = flux__self();
    if (b->live && t) t->nograd = b->depth;
    b->live = 0;
}

/* A composite operation hides its temporaries: int s = flux__hide(); ...; return flux__reveal(s, y). Nothing but the
   graph refers to them then, so that they can be fused away. */
static int flux__hide(void) {
    flux__thread *t = flux__self();
    int depth = t ? t->nscopes : 0;
    flux_scope_open();
    return depth;
}

static void *flux__reveal_object(int depth, void *object) {
    flux__thread *t = flux__self();
    if (!t) return object;
    flux_retain(object);
    flux__scope_close_to(t, depth);
    return flux__own(object);
}
#define flux__reveal(depth, y) ((flux_tensor *)flux__reveal_object(depth, y))

/* ---------------- the end of a thread, and of the program */

static void flux__thread_free(void *state) {
    flux__thread *t = (flux__thread *)state;
    if (!t) return;
    t->nscopes = 0;
    while (t->nowned > 0) flux_release(t->owned[--t->nowned]);
    if (t->plans) flux__plans_free(t->plans);
    t->plans = NULL;
    while (t->spare) {
        flux_tensor *node = t->spare;
        t->spare = node->base;
        FLUX_FREE(node);
    }
    t->nspare = 0;
    flux__tls_set(NULL, NULL);
    if (t->scratch) FLUX_FREE(t->scratch);
    if (t->owned) FLUX_FREE(t->owned);
    FLUX_FREE(t->scope);
    FLUX_FREE(t);
}

FLUX_DEF void flux_shutdown(void) {
    flux__thread *t = (flux__thread *)flux__tls_get();
    if (t) flux__thread_free(t);
    flux__threads_stop();
    flux__mutex_lock(&flux__arena_lock);
    for (int b = 0; b < FLUX__BACKENDS; b++)
        for (int i = 0; i < FLUX__MAX_IDS; i++) {
            flux_device d = { b, i };
            flux__arena_trim(d, &flux__arenas[b][i]);
        }
    flux__mutex_unlock(&flux__arena_lock);
}

/* ------------------------------------------------------------------ 4. Worker threads
   One pool for the process. flux__parallel hands out the numbers 0 ... n-1 one by one to whoever asks: the caller and
   any worker that is awake. Who does what is therefore chance, so a piece of work must not depend on its worker: cut
   work by its size alone and results are the same for any number of threads.
   The caller waits only for workers that took part: the gate counts them, and closes when nothing is left, so that a
   worker which wakes late costs nothing. Workers spin for a moment after each job, because a wake takes 20 us or more
   and a training step has a job every few; then they sleep.
   The pool serves one caller at a time. A second thread, and a call from within a job, run their work themselves.  */

enum { FLUX__MAX_THREADS = 1024, FLUX__GATE_SHUT = 1 << 30 };

typedef struct flux__memory {             /* a piece of scratch memory: this stands right before its first byte */
    struct flux__memory *next;
    size_t bytes;
    void *start;                          /* what the allocator gave */
} flux__memory;

static struct flux__pool {
    int wanted;                           /* threads, the caller's included; 0: not yet decided */
    int busy;                             /* a job is on, or the pool is being changed */
    int nworkers, stop;
    flux__os_thread *worker;
    void (*fn)(void *ctx, int worker, int64_t i);
    void *ctx;
    int64_t n;
    char line1[64];                       /* each of the next on a cache line of its own */
    int64_t next;
    char line2[64];
    int gate;                             /* workers in the job; FLUX__GATE_SHUT more when none may join */
    char line3[64];
    int round, sleepers;                  /* round: the number of the job, told to those who spin */
    flux__mutex lock;
    flux__cond wake;
    flux__mutex memory_lock;
    flux__memory *memory;
} flux__pool = {0, 0, 0, 0, NULL, NULL, NULL, 0, {0}, 0, {0}, FLUX__GATE_SHUT, {0}, 0, 0,
                FLUX__MUTEX_INIT, FLUX__COND_INIT, FLUX__MUTEX_INIT, NULL};

static int flux__num_threads(void) {
    int n = flux__atomic_load32(&flux__pool.wanted);
    if (n == 0) {
        const char *s = flux__env("FLUX_NUM_THREADS");
        n = s ? atoi(s) : 0;
        if (s && n <= 0)
            flux__note(FLUX_LOG_WARN, "threads", true, "FLUX_NUM_THREADS=%s is not a number above 0: ignored", s);
        if (n <= 0) n = flux__processors();
        if (n > FLUX__MAX_THREADS) n = FLUX__MAX_THREADS;
        flux__atomic_store32(&flux__pool.wanted, n);
    }
#ifdef FLUX_NO_THREADS
    n = 1;
#endif
    return n;
}

/* ---- scratch memory: what packing and the like need for a moment, kept for the next time. Any thread may give back
   what another took. */

static void *flux__scratch(size_t bytes) {         /* on a 64-byte line; NULL: none left; no error is recorded */
    flux__memory *m, **p, **best = NULL;
    char *start;
    flux__mutex_lock(&flux__pool.memory_lock);
    for (p = &flux__pool.memory; *p; p = &(*p)->next)
        if ((*p)->bytes >= bytes && (!best || (*p)->bytes < (*best)->bytes)) best = p;
    if (!best && flux__pool.memory) best = &flux__pool.memory;   /* too small: makes way for a larger one */
    m = best ? *best : NULL;
    if (m) *best = m->next;
    flux__mutex_unlock(&flux__pool.memory_lock);
    if (m && m->bytes >= bytes) return m + 1;
    if (m) FLUX_FREE(m->start);
    start = bytes < SIZE_MAX / 2 ? (char *)FLUX_MALLOC(bytes + sizeof *m + 64) : NULL;
    if (!start) return NULL;
    m = (flux__memory *)(void *)(start + sizeof *m + (63 & (0 - ((uintptr_t)start + sizeof *m)))) - 1;
    m->start = start;
    m->bytes = bytes;
    return m + 1;
}

static void flux__scratch_done(void *data) {       /* NULL is fine */
    flux__memory *m;
    if (!data) return;
    m = (flux__memory *)data - 1;
    flux__mutex_lock(&flux__pool.memory_lock);
    m->next = flux__pool.memory;
    flux__pool.memory = m;
    flux__mutex_unlock(&flux__pool.memory_lock);
}

/* ---- the workers */

static void flux__pool_work(int worker) {          /* takes numbers until there are none */
    int64_t i, n = flux__pool.n;
    void (*fn)(void *, int, int64_t) = flux__pool.fn;
    void *ctx = flux__pool.ctx;
    while ((i = flux__atomic_add(&flux__pool.next, 1) - 1) < n) fn(ctx, worker, i);
}

static int flux__pool_wait(int seen) {             /* until the round is another; gives it */
    double until = flux__now() + 50e-6;
    int round, i = 0;
    while ((round = flux__atomic_load32(&flux__pool.round)) == seen) {
        flux__relax();
        if (++i % 32 == 0 && flux__now() > until) break;
    }
    if (round != seen) return round;
    flux__mutex_lock(&flux__pool.lock);
    flux__atomic_add32(&flux__pool.sleepers, 1);
    while ((round = flux__atomic_load32(&flux__pool.round)) == seen) flux__cond_wait(&flux__pool.wake, &flux__pool.lock);
    flux__atomic_add32(&flux__pool.sleepers, -1);
    flux__mutex_unlock(&flux__pool.lock);
    return round;
}

static void flux__pool_main(void *arg) {
    int worker = (int)((flux__os_thread *)arg - flux__pool.worker) + 1, seen = 0, gate;
    while (!flux__atomic_load32(&flux__pool.stop)) {
        gate = flux__atomic_load32(&flux__pool.gate);
        if (gate < FLUX__GATE_SHUT) {
            if (!flux__atomic_cas32(&flux__pool.gate, gate, gate + 1)) continue;
            seen = flux__atomic_load32(&flux__pool.round);   /* cannot change while we are in */
            flux__pool_work(worker);
            flux__atomic_add32(&flux__pool.gate, -1);
        }
        seen = flux__pool_wait(seen);
    }
}

static void flux__pool_tell(int64_t n) {           /* a new round; wakes n of those who sleep */
    int sleepers;
    flux__atomic_add32(&flux__pool.round, 1);
    if (flux__atomic_load32(&flux__pool.sleepers) == 0) return;
    flux__mutex_lock(&flux__pool.lock);
    sleepers = flux__atomic_load32(&flux__pool.sleepers);
    if (n >= sleepers) flux__cond_broadcast(&flux__pool.wake);
    else while (n-- > 0) flux__cond_signal(&flux__pool.wake);
    flux__mutex_unlock(&flux__pool.lock);
}

static void flux__pool_stop(void) {                /* the caller holds busy */
    int i;
    flux__atomic_store32(&flux__pool.stop, 1);
    flux__pool_tell(FLUX__MAX_THREADS);
    for (i = 0; i < flux__pool.nworkers; i++) flux__thread_join(&flux__pool.worker[i]);
    flux__atomic_store32(&flux__pool.stop, 0);
    FLUX_FREE(flux__pool.worker);
    flux__pool.worker = NULL;
    flux__pool.nworkers = 0;
}

/* Workers for `threads` threads, or as many as the system grants: fewer is no error. */
static void flux__pool_start(int threads) {
    int i;
    if (flux__pool.nworkers) return;
    flux__pool.worker = (flux__os_thread *)FLUX_MALLOC((size_t)(threads - 1) * sizeof *flux__pool.worker);
    if (!flux__pool.worker) return;
    for (i = 0; i < threads - 1; i++) {
        if (!flux__thread_start(&flux__pool.worker[i], flux__pool_main, &flux__pool.worker[i])) break;
        flux__pool.nworkers = i + 1;
    }
    if (i == 0) {
        FLUX_FREE(flux__pool.worker);
        flux__pool.worker = NULL;
    }
}

/* Runs fn(ctx, worker, i) for i in 0 ... n-1, spread over the threads. No two calls that run at once share a worker's
   number, which is below FLUX__MAX_THREADS, and 0 where the caller does all. */
static void flux__parallel_workers(int64_t n, void (*fn)(void *ctx, int worker, int64_t i), void *ctx) {
    int threads = flux__num_threads(), spins = 0;
    int64_t i;
    if (n <= 1 || threads <= 1 || !flux__atomic_cas32(&flux__pool.busy, 0, 1)) {
        for (i = 0; i < n; i++) fn(ctx, 0, i);
        return;
    }
    flux__pool_start(threads);
    flux__pool.fn = fn;
    flux__pool.ctx = ctx;
    flux__pool.n = n;
    flux__atomic_store(&flux__pool.next, 0);
    flux__atomic_store32(&flux__pool.gate, 0);
    flux__pool_tell(n - 1);
    flux__pool_work(0);
    flux__atomic_add32(&flux__pool.gate, FLUX__GATE_SHUT);
    while (flux__atomic_load32(&flux__pool.gate) != FLUX__GATE_SHUT) {
        flux__relax();
        if (++spins % 256 == 0) flux__thread_yield();   /* a worker in need of our processor, perhaps */
    }
    flux__atomic_store32(&flux__pool.busy, 0);
}

typedef struct flux__parallel_job { void (*fn)(void *ctx, int64_t i); void *ctx; } flux__parallel_job;
static void flux__parallel_run(void *p, int worker, int64_t i) {
    flux__parallel_job *j = (flux__parallel_job *)p;
    (void)worker;
    j->fn(j->ctx, i);
}
FLUX__UNUSED static void flux__parallel(int64_t n, void (*fn)(void *ctx, int64_t i), void *ctx) {
    flux__parallel_job j;
    j.fn = fn;
    j.ctx = ctx;
    flux__parallel_workers(n, flux__parallel_run, &j);
}

static void flux__pool_take(void) {
    while (!flux__atomic_cas32(&flux__pool.busy, 0, 1)) flux__thread_yield();
}

/* Ends the workers and frees the scratch memory. They come back when there is work. */
FLUX__UNUSED static void flux__threads_stop(void) {
    flux__memory *m;
    flux__pool_take();
    flux__pool_stop();
    flux__mutex_lock(&flux__pool.memory_lock);
    while ((m = flux__pool.memory) != NULL) {
        flux__pool.memory = m->next;
        FLUX_FREE(m->start);
    }
    flux__mutex_unlock(&flux__pool.memory_lock);
    flux__atomic_store32(&flux__pool.busy, 0);
}

FLUX_DEF void flux_threads(int n) {
    if (n < 0) {
        flux__fail("threads: %d threads are not possible", n);
        return;
    }
    if (n == 0) n = flux__processors();
    if (n > FLUX__MAX_THREADS) n = FLUX__MAX_THREADS;
    flux__pool_take();
    flux__pool_stop();
    flux__atomic_store32(&flux__pool.wanted, n);
    flux__atomic_store32(&flux__pool.busy, 0);
}

/* ------------------------------------------------------------------ 5. The table of operations
   Each elementwise operation stands here once: its number of operands, which dtypes it takes and gives, its formula,
   its gradient. The formula is C over a, b, c that the CPU compiles for every instruction set (where a may be a vector
   of numbers) and the GPU gets as a string. It may use + - * / unary-, FLUX__K(number) for a constant, comparisons
   only inside FLUX__IF(comparison, x, y), and the functions FLUX__F(exp) ... that each target defines:
       abs sqrt exp log log1p expm1 sin cos tanh erf floor ceil round pow fmax fmin sign sigmoid softplus
   The gradient is written with public operations: g is the gradient of the result y; by operand a, b and c in turn.

   dtypes:  N  numbers: result as the operands;  F  floating: integers become f32;  C  compares: result bool;
            B  bool to bool;  S  first operand bool, the others and the result numbers (select);  X  special.          */

#define FLUX__ELEMENTWISE(X)                                                                                          \
/*  NAME        name        n dt  formula                                        gradient by a, b, c               */ \
X(ADD,          add,        2, N, a + b,                                         g, g, 0)                             \
X(SUB,          sub,        2, N, a - b,                                         g, flux_neg(g), 0)                   \
X(MUL,          mul,        2, N, a * b,                                         flux_mul(g, b), flux_mul(g, a), 0)   \
X(DIV,          div,        2, F, a / b,                                         flux_div(g, b), flux_neg(flux_div(flux_mul(g, y), b)), 0) \
X(POW,          pow,        2, N, FLUX__F(pow)(a, b),                            flux__grad_pow_a(g, a, b), flux__grad_pow_b(g, a, b, y), 0) \
X(MAX2,         max2,       2, N, FLUX__F(fmax)(a, b),                           flux_where(flux_ge(a, b), g, 0.0), flux_where(flux_ge(a, b), 0.0, g), 0) \
X(MIN2,         min2,       2, N, FLUX__F(fmin)(a, b),                           flux_where(flux_le(a, b), g, 0.0), flux_where(flux_le(a, b), 0.0, g), 0) \
X(SUBMAX,       submax,     2, F, FLUX__IF(a == b, FLUX__K(0), a - b),           g, flux_neg(g), 0) /* inf - inf is 0 */ \
X(EQ,           eq,         2, C, FLUX__IF(a == b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(NE,           ne,         2, C, FLUX__IF(a != b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(LT,           lt,         2, C, FLUX__IF(a < b, FLUX__K(1), FLUX__K(0)),       0, 0, 0)                             \
X(LE,           le,         2, C, FLUX__IF(a <= b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(GT,           gt,         2, C, FLUX__IF(a > b, FLUX__K(1), FLUX__K(0)),       0, 0, 0)                             \
X(GE,           ge,         2, C, FLUX__IF(a >= b, FLUX__K(1), FLUX__K(0)),      0, 0, 0)                             \
X(AND,          and,        2, B, a * b,                                         0, 0, 0)                             \
X(OR,           or,         2, B, FLUX__F(fmax)(a, b),                           0, 0, 0)                             \
X(NOT,          not,        1, B, FLUX__K(1) - a,                                0, 0, 0)                             \
X(WHERE,        where,      3, S, FLUX__IF(a != FLUX__K(0), b, c),               0, flux_where(a, g, 0.0), flux_where(a, 0.0, g)) \
X(NEG,          neg,        1, N, -a,                                            flux_neg(g), 0, 0)                   \
X(ABS,          abs,        1, N, FLUX__F(abs)(a),                               flux_mul(g, flux_sign(a)), 0, 0)     \
X(SIGN,         sign,       1, N, FLUX__F(sign)(a),                              0, 0, 0)                             \
X(SQUARE,       square,     1, N, a * a,                                         flux_mul(g, flux_mul(a, 2)), 0, 0)   \
X(SQRT,         sqrt,       1, F, FLUX__F(sqrt)(a),                              flux_div(flux_mul(g, 0.5), y), 0, 0) \
X(RSQRT,        rsqrt,      1, F, FLUX__K(1) / FLUX__F(sqrt)(a),                 flux_mul(flux_mul(g, -0.5), flux_mul(y, flux_square(y))), 0, 0) \
X(EXP,          exp,        1, F, FLUX__F(exp)(a),                               flux_mul(g, y), 0, 0)                \
X(LOG,          log,        1, F, FLUX__F(log)(a),                               flux_div(g, a), 0, 0)                \
X(LOG1P,        log1p,      1, F, FLUX__F(log1p)(a),                             flux_div(g, flux_add(a, 1)), 0, 0)   \
X(EXPM1,        expm1,      1, F, FLUX__F(expm1)(a),                             flux_mul(g, flux_add(y, 1)), 0, 0)   \
X(SIN,          sin,        1, F, FLUX__F(sin)(a),                               flux_mul(g, flux_cos(a)), 0, 0)      \
X(COS,          cos,        1, F, FLUX__F(cos)(a),                               flux_neg(flux_mul(g, flux_sin(a))), 0, 0) \
X(TANH,         tanh,       1, F, FLUX__F(tanh)(a),                              flux_mul(g, flux_sub(1, flux_square(y))), 0, 0) \
X(ERF,          erf,        1, F, FLUX__F(erf)(a),                               flux_mul(g, flux_mul(flux_exp(flux_neg(flux_square(a))), 1.1283791670955126)), 0, 0) \
X(FLOOR,        floor,      1, N, FLUX__F(floor)(a),                             0, 0, 0)                             \
X(CEIL,         ceil,       1, N, FLUX__F(ceil)(a),                              0, 0, 0)                             \
X(ROUND,        round,      1, N, FLUX__F(round)(a),                             0, 0, 0)                             \
X(SIGMOID,      sigmoid,    1, F, FLUX__F(sigmoid)(a),                           flux_mul(g, flux_mul(y, flux_sub(1, y))), 0, 0) \
X(SOFTPLUS,     softplus,   1, F, FLUX__F(softplus)(a),                          flux_mul(g, flux_sigmoid(a)), 0, 0)  \
X(RELU,         relu,       1, N, FLUX__IF(a <= FLUX__K(0), FLUX__K(0), a),      flux_where(flux_gt(y, 0.0), g, 0.0), 0, 0) \
X(LERP,         lerp,       3, F, a + c * (b - a),                               flux_mul(g, flux_sub(1, c)), flux_mul(g, c), flux_mul(g, flux_sub(b, a))) \
X(FMA,          fma,        3, N, a * b + c,                                     flux_mul(g, b), flux_mul(g, a), g)

/* Activations that are one formula but have a longer gradient: value by formula, gradient by composing the above. */

/* ------------------------------------------------------------------ 6. The graph
   A tensor is a node: an operation, its operands, and once it has been computed a buffer. This part makes nodes: it
   checks shapes, dtypes and devices, and does nothing else. Invariants: a buffer holds its tensor's elements in order,
   dim 0 fastest; a view (reshape, permute, slice, ...) has no buffer but names a base that is not a view, an offset and
   strides; a node that is not computed yet belongs to the thread that made it. Nodes come from a list that each thread
   keeps, since a small training step makes a hundred. */

#define FLUX__OP_ENUM(NAME, ...) FLUX__OP_##NAME,
enum flux__op {
    FLUX__ELEMENTWISE(FLUX__OP_ENUM)
    FLUX__ELEMENTWISE_COUNT,
    FLUX__LEAF = FLUX__ELEMENTWISE_COUNT, /* has its buffer from the start, or is a placeholder without one */
    FLUX__NUMBER,                         /* arg.num in every element */
    FLUX__CAST, FLUX__COPY,
    FLUX__IOTA,                           /* int64: each element's own number */
    FLUX__RANDOM,                         /* arg.u: key, stream, kind */
    FLUX__REDUCE,                         /* arg.i: which (flux__red), mask of dims that go */
    FLUX__ARGREDUCE,                      /* arg.i: 1 for max, mask */
    FLUX__VIEWS,
    FLUX__RESHAPE = FLUX__VIEWS,
    FLUX__PERMUTE,                        /* arg.i: order */
    FLUX__STRIDED,                        /* rel and arg.i: offset and strides in the operand as if it lay in order */
    FLUX__BROADCAST,
    FLUX__DETACH,
    FLUX__VIEWS_END,
    FLUX__MATMUL = FLUX__VIEWS_END,
    FLUX__GATHER, FLUX__SCATTER,          /* arg.i: dim */
    FLUX__SPREAD,                         /* the reverse of STRIDED: operand added into zeros, or put into stride[0]... see flux__spread */
    FLUX__CAT,                            /* arg.i: dim */
    FLUX__MOVE,                           /* to another device */
    FLUX__TUPLE
};
static const char *const flux__op_names[] = {
#define FLUX__OP_NAME(NAME, name, ...) #name,
    FLUX__ELEMENTWISE(FLUX__OP_NAME)
    "leaf", "number", "cast", "copy", "iota", "random", "reduce", "argreduce", "reshape", "permute", "slice", "broadcast",
    "detach", "matmul", "gather", "scatter_add", "spread", "cat", "move", "tuple"
};
static const unsigned char flux__arity[] = {
#define FLUX__OP_ARITY(NAME, name, n, ...) n,
    FLUX__ELEMENTWISE(FLUX__OP_ARITY)
};
static const char flux__rules[] = {       /* the dtype rule's letter */
#define FLUX__OP_RULE(NAME, name, n, dt, ...) #dt[0],
    FLUX__ELEMENTWISE(FLUX__OP_RULE)
};
#define FLUX__IS_VIEW(t) ((t)->op >= FLUX__VIEWS && (t)->op < FLUX__VIEWS_END)
enum { FLUX__UNIFORM, FLUX__NORMAL };
enum flux__class { FLUX__F32C, FLUX__F64C, FLUX__I32C, FLUX__I64C, FLUX__CLASSES };   /* what kernels compute in */

/* ---------------- dtypes and shapes */

typedef struct flux__dtype_row { const char *name; uint8_t size; bool real; int rank; double epsilon; } flux__dtype_row;
static const flux__dtype_row flux__dtypes[FLUX_NUM_DTYPES] = {
    { "f32", 4, true, 7, 1.1920928955078125e-7 }, { "f64", 8, true, 8, 2.220446049250313e-16 },
    { "f16", 2, true, 5, 9.765625e-4 }, { "bf16", 2, true, 5, 7.8125e-3 },
    { "i32", 4, false, 3, 0 }, { "i64", 8, false, 4, 0 }, { "u8", 1, false, 2, 0 }, { "bool", 1, false, 1, 0 }
};

FLUX_DEF const char *flux_dtype_name(flux_dtype t) { return (unsigned)t < FLUX_NUM_DTYPES ? flux__dtypes[t].name : "?"; }
FLUX_DEF size_t flux_dtype_size(flux_dtype t) { return (unsigned)t < FLUX_NUM_DTYPES ? flux__dtypes[t].size : 0; }

/* The dtype at which two meet: the higher rank; of the two half formats, f32. */
static flux_dtype flux__promote(flux_dtype a, flux_dtype b) {
    if (a == b) return a;
    if (flux__dtypes[a].rank == flux__dtypes[b].rank) return FLUX_F32;
    return flux__dtypes[a].rank > flux__dtypes[b].rank ? a : b;
}

FLUX_DEF flux_shape flux__shape(const int64_t *dims, int n) {
    flux_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = n;
    for (int i = 0; dims && i < n && i < FLUX_MAX_DIMS; i++) s.dim[i] = dims[i];
    return s;
}

static flux_shape flux__dims(const flux_tensor *t) { return flux__shape(t->dim, t->ndim); }

static int64_t flux__count(const flux_shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->ndim; i++) n *= s->dim[i];
    return n;
}

static int64_t flux__size(const flux_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

static bool flux__same_dims(const flux_tensor *a, const flux_tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

/* A shape is usable when its element count, in bytes of the widest dtype, fits. An empty tensor is fine. */
static bool flux__check_shape(const char *call, const flux_shape *s) {
    double n = 8;
    if (s->ndim < 0 || s->ndim > FLUX_MAX_DIMS) {
        flux__fail("%s: %d dimensions, but a tensor has at most %d", call, s->ndim, FLUX_MAX_DIMS);
        return false;
    }
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] < 0) {
            flux__fail("%s: dimension %d is %lld", call, i, (long long)s->dim[i]);
            return false;
        }
        n *= s->dim[i] > 0 ? (double)s->dim[i] : 1.0;
    }
    if (n > 7e13) flux__fail("%s: a tensor of %.3g elements is too large", call, n / 8);
    return n <= 7e13;
}

typedef struct flux__text { char s[112]; } flux__text;    /* "64x128 f32", for messages */

static flux__text flux__shape_text(const flux_shape *s) {
    flux__text t;
    int at = 0;
    t.s[0] = 0;
    if (s->ndim == 0) snprintf(t.s, sizeof t.s, "scalar");
    if (s->ndim == 1) snprintf(t.s, sizeof t.s, "%lld-element", (long long)s->dim[0]);
    for (int i = 0; s->ndim > 1 && i < s->ndim && at < 90; i++)
        at += snprintf(t.s + at, sizeof t.s - (size_t)at, i ? "x%lld" : "%lld", (long long)s->dim[i]);
    return t;
}

static flux__text flux__describe(const flux_tensor *x) {
    flux_shape s = flux__dims(x);
    flux__text t = flux__shape_text(&s);
    size_t n = strlen(t.s);
    snprintf(t.s + n, sizeof t.s - n, " %s", flux__dtypes[x->dtype].name);
    return t;
}

/* ---------------- nodes */

static void flux__edge(flux_tensor **slot, flux_tensor *x) {
    *slot = x;
    flux__atomic_add(&x->head.refs, 1);
    flux__atomic_add32(&x->head.edges, 1);
}

/* Takes an edge away; true when that was the last reference and the node is to be freed. */
static bool flux__unedge(flux_tensor *x) {
    flux__atomic_add32(&x->head.edges, -1);
    return flux__atomic_add(&x->head.refs, -1) == 0;
}

/* Frees nodes, and those only they referred to; the dead are chained by base, so that a long graph needs no stack. */
static void flux__tensor_free(flux_tensor *t) {
    flux__thread *self = flux__self();
    flux_tensor *dead = t, *base = t->base;
    t->base = NULL;
    if (base && flux__unedge(base)) flux__tensor_free(base);
    while (dead) {
        t = dead;
        dead = t->base;
        for (int i = 0; i < t->nin; i++) {
            flux_tensor *x = t->in[i];
            if (!x || !flux__unedge(x)) continue;
            flux_tensor *b = x->base;
            x->base = dead;
            dead = x;
            if (b && flux__unedge(b)) {  /* a base is no view: it has no base of its own */
                b->base = dead;
                dead = b;
            }
        }
        if (t->in != t->slot && t->in) FLUX_FREE(t->in);
        flux__buffer_release(t->buf);
        if (t->dense) flux_release(t->dense);
        if (self && self->nspare < 4096) {
            t->base = self->spare;
            self->spare = t;
            self->nspare++;
        } else FLUX_FREE(t);
    }
}

/* Cuts a node off from what it was made of; its value (buf, or a view's base) stays. */
static void flux__cut(flux_tensor *t) {
    for (int i = 0; i < t->nin; i++)
        if (t->in[i] && flux__unedge(t->in[i])) flux__tensor_free(t->in[i]);
    if (t->in != t->slot && t->in) FLUX_FREE(t->in);
    t->in = t->slot;
    t->nin = 0;
}

static flux_tensor *flux__node_raw(int op, flux_dtype dtype, const flux_shape *s, flux_device d, int nin) {
    flux__thread *self = flux__self();
    flux_tensor *t = self ? self->spare : NULL;
    if (t) {
        self->spare = t->base;
        self->nspare--;
    } else if (!(t = (flux_tensor *)flux__malloc(sizeof *t))) return NULL;
    memset(t, 0, offsetof(flux_tensor, offset));
    memset(&t->arg, 0, sizeof t->arg);
    t->dense = NULL;
    t->head.kind = FLUX__TENSOR;
    t->head.refs = 1;
    t->op = (uint16_t)op;
    t->dtype = (uint8_t)dtype;
    t->ndim = (uint8_t)s->ndim;
    t->device = d;
    t->in = t->slot;
    if (self && self->nograd) t->flags = FLUX__FIXED;
    for (int i = 0; i < s->ndim; i++) t->dim[i] = s->dim[i];
    if (nin > 3 && !(t->in = (flux_tensor **)flux__zalloc((size_t)nin * sizeof *t->in))) {
        t->in = t->slot;
        flux_release(t);
        return NULL;
    }
    t->nin = (uint8_t)nin;
    return t;
}

/* A new node of up to three operands, owned by nobody yet. */
static flux_tensor *flux__node(int op, flux_dtype dtype, const flux_shape *s, flux_tensor *a, flux_tensor *b, flux_tensor *c) {
    static const flux_device cpu = { 0, 0 };
    flux_tensor *t = flux__node_raw(op, dtype, s, a ? a->device : cpu, a ? b ? c ? 3 : 2 : 1 : 0);
    if (!t) return NULL;
    if (a) flux__edge(&t->in[0], a);
    if (b) flux__edge(&t->in[1], b);
    if (c) flux__edge(&t->in[2], c);
    return t;
}

static bool flux__eager(void);

/* Hands a finished node to the innermost scope (and computes it at once under FLUX_EAGER). */
static flux_tensor *flux__done(flux_tensor *t) {
    t = (flux_tensor *)flux__own(t);
    if (t && flux__eager() && t->op != FLUX__TUPLE && !(t->flags & FLUX__WEAK)) return flux_eval(t);
    return t;
}

static bool flux__is_number(const flux_tensor *t) { return t->op == FLUX__NUMBER; }

/* Operands must be real tensors on one device; numbers are everywhere. */
static bool flux__check_operands(const char *call, int n, flux_tensor *const *xs) {
    static const char *const names[] = { "a", "b", "c" };
    const flux_tensor *first = NULL;
    for (int i = 0; i < n; i++) {
        if (!xs[i]) {
            flux__null(call, n == 1 ? "x" : i < 3 ? names[i] : "of the list", xs[i]);
            return false;
        }
        if (xs[i]->op == FLUX__TUPLE) {
            flux__fail("%s: an operand is a tuple of %d tensors; take one with flux_nth", call, xs[i]->nin);
            return false;
        }
        if (flux__is_number(xs[i])) continue;
        if (first && !flux_device_equal(first->device, xs[i]->device)) {
            flux__text ta = flux__describe(first), tb = flux__describe(xs[i]);
            char where[96];
            snprintf(where, sizeof where, "%s", flux_device_name(first->device));
            flux__fail("%s: operands are on two devices: %s on %s, %s on %s; move one with flux_to", call, ta.s, where, tb.s,
                       flux_device_name(xs[i]->device));
            return false;
        }
        if (!first) first = xs[i];
    }
    return true;
}

static flux_device flux__place(int n, flux_tensor *const *xs) {
    for (int i = 0; i < n; i++)
        if (!flux__is_number(xs[i])) return xs[i]->device;
    return xs[0]->device;
}

/* ---------------- leaves */

static flux_tensor *flux__leaf(flux_shape s, flux_dtype t, flux_device d) {
    flux_tensor *x = flux__node_raw(FLUX__LEAF, t, &s, d, 0);
    if (!x) return NULL;
    x->buf = flux__buffer_new(d, (size_t)flux__count(&s) * flux__dtypes[t].size);
    if (!x->buf) {
        flux_release(x);
        return NULL;
    }
    return (flux_tensor *)flux__own(x);
}

/* A leaf that is never computed: to find out shapes. */
static flux_tensor *flux__placeholder(flux_shape s, flux_dtype t) {
    flux_device cpu = { 0, 0 };
    if (!flux__check_shape("outputsize", &s)) return NULL;
    return (flux_tensor *)flux__own(flux__node_raw(FLUX__LEAF, t, &s, cpu, 0));
}

static bool flux__check_make(const char *call, const flux_shape *s, flux_dtype t) {
    if ((unsigned)t >= FLUX_NUM_DTYPES) {
        flux__fail("%s: %d is not a dtype", call, (int)t);
        return false;
    }
    return flux__check_shape(call, s);
}

FLUX_DEF flux_tensor *flux_from_data(const void *data, flux_dtype t, flux_shape s) {
    flux_device cpu = { 0, 0 };
    if (!flux__check_make("from", &s, t)) return NULL;
    if (!data && flux__count(&s) > 0) return (flux_tensor *)flux__null("from", "ptr", data);
    flux_tensor *x = flux__leaf(s, t, cpu);
    if (x && flux__count(&s)) memcpy(x->buf->ptr, data, x->buf->bytes);
    return x;
}

FLUX_DEF flux_tensor *flux_borrow_data(const void *data, flux_dtype t, flux_shape s) {
    flux_device cpu = { 0, 0 };
    if (!flux__check_make("borrow", &s, t)) return NULL;
    if (!data) return (flux_tensor *)flux__null("borrow", "ptr", data);
    flux_tensor *x = flux__node_raw(FLUX__LEAF, t, &s, cpu, 0);
    flux__buffer *b = x ? (flux__buffer *)flux__zalloc(sizeof *b) : NULL;
    if (!b) {
        flux_release(x);
        return NULL;
    }
    b->refs = 1;
    b->bytes = (size_t)flux__count(&s) * flux__dtypes[t].size;
    b->ptr = (void *)(intptr_t)data;
    b->borrowed = true;
    x->buf = b;
    return (flux_tensor *)flux__own(x);
}

FLUX_DEF flux_tensor *flux_full_shape(flux_shape s, double value, flux_dtype t) {
    if (!flux__check_make("full", &s, t)) return NULL;
    flux_tensor *x = flux__node(FLUX__NUMBER, t, &s, NULL, NULL, NULL);
    if (x) x->arg.num = value;
    return x ? flux__done(x) : NULL;
}

FLUX_DEF flux_tensor *flux_scalar(double value) {
    flux_shape s = flux__shape(NULL, 0);
    return flux_full_shape(s, value, FLUX_F32);
}

FLUX_DEF flux_tensor *flux__number(double value) {
    flux_shape none = flux__shape(NULL, 0);
    flux_tensor *x = flux__node(FLUX__NUMBER, FLUX_F32, &none, NULL, NULL, NULL);
    if (!x) return NULL;
    x->arg.num = value;
    x->flags |= FLUX__WEAK;               /* before flux__done: FLUX_EAGER must not round it to f32 */
    return flux__done(x);
}

FLUX_DEF flux_tensor *flux__same(flux_tensor *x) { return x; }

FLUX_DEF void flux_seed(uint64_t seed) {
    flux__thread *t = flux__self();
    if (!t) return;
    t->seed = seed;
    t->draws = 0;
}

/* The number of the next random tensor of this thread: with the seed it names a stream of numbers. */
static uint64_t flux__draw(void) {
    flux__thread *t = flux__self();
    return t ? t->draws++ : 0;
}

static flux_tensor *flux__random(flux_shape s, flux_dtype t, int kind, const char *call) {
    flux__thread *self = flux__self();
    if (!self || !flux__check_make(call, &s, t)) return NULL;
    if (!flux__dtypes[t].real)
        return (flux_tensor *)flux__fail("%s: random numbers are floating, not %s", call, flux__dtypes[t].name);
    flux_tensor *x = flux__node(FLUX__RANDOM, FLUX_F32, &s, NULL, NULL, NULL);
    if (!x) return NULL;
    x->arg.u[0] = self->seed;
    x->arg.u[1] = flux__draw();
    x->arg.u[2] = (uint64_t)kind;
    return flux_to_dtype(flux__done(x), t);
}

FLUX_DEF flux_tensor *flux_rand_shape(flux_shape s, flux_dtype t) { return flux__random(s, t, FLUX__UNIFORM, "rand"); }
FLUX_DEF flux_tensor *flux_randn_shape(flux_shape s, flux_dtype t) { return flux__random(s, t, FLUX__NORMAL, "randn"); }

/* 0, 1, 2, ... along one dimension of an int64 tensor that is 1 in the others. */
static flux_tensor *flux__iota(int64_t n, int dim) {
    flux_shape s = flux__shape(NULL, 0);
    for (s.ndim = 0; s.ndim <= dim; s.ndim++) s.dim[s.ndim] = s.ndim == dim ? n : 1;
    flux_tensor *x = flux__node(FLUX__IOTA, FLUX_I64, &s, NULL, NULL, NULL);
    return x ? flux__done(x) : NULL;
}

FLUX_DEF flux_tensor *flux_arange(double start, double stop, double step) {
    double n = ceil((stop - start) / step);
    if (!(step < 0 || step > 0) || !(n <= 7e13) || n != n)
        return (flux_tensor *)flux__fail("arange: from %g to %g by %g is not a range", start, stop, step);
    int h = flux__hide();
    flux_tensor *i = flux_to_dtype(flux__iota(n > 0 ? (int64_t)n : 0, 0), FLUX_F64);
    return flux__reveal(h, flux_to_dtype(flux_add(flux_mul(i, step), start), FLUX_F32));
}

FLUX_DEF flux_tensor *flux_eye(int64_t n) {
    int h = flux__hide();
    if (n < 0) flux__fail("eye: %lld rows", (long long)n);
    flux_tensor *same = n < 0 ? NULL : flux_eq(flux__iota(n, 0), flux__iota(n, 1));
    return flux__reveal(h, same ? flux_to_dtype(same, FLUX_F32) : NULL);
}

/* ---------------- elementwise operations */

/* The shape that operands broadcast to; false, with an error, if they don't. */
static bool flux__broadcast(const char *call, int n, flux_tensor *const *xs, flux_shape *out) {
    *out = flux__dims(xs[0]);
    for (int i = 1; i < n; i++) {
        const flux_tensor *x = xs[i];
        for (int d = 0; d < x->ndim; d++) {
            int64_t have = d < out->ndim ? out->dim[d] : 1;
            if (have != x->dim[d] && have != 1 && x->dim[d] != 1) {
                flux__text ta = flux__describe(xs[0]), tb = flux__describe(x);
                flux__fail("%s: shapes do not broadcast: %s with %s differ in dim %d (%lld and %lld)", call, ta.s, tb.s, d,
                           (long long)have, (long long)x->dim[d]);
                return false;
            }
            if (d >= out->ndim || have == 1) out->dim[d] = x->dim[d];
        }
        if (x->ndim > out->ndim) out->ndim = x->ndim;
    }
    return true;
}

/* The dtype at which operands meet. A bare number adapts to the rest, if it can be said in that dtype. */
static int flux__meet(const char *call, int n, flux_tensor *const *xs) {
    int t = -1;
    for (int i = 0; i < n; i++)
        if (!(xs[i]->flags & FLUX__WEAK)) t = t < 0 ? xs[i]->dtype : (int)flux__promote((flux_dtype)t, (flux_dtype)xs[i]->dtype);
    if (t < 0) return FLUX_F32;
    for (int i = 0; i < n; i++) {
        double v = xs[i]->arg.num;
        if (!(xs[i]->flags & FLUX__WEAK) || flux__dtypes[t].real) continue;
        bool whole = v == floor(v) && v >= -9.2e18 && v <= 9.2e18;
        if (t == FLUX_BOOL) t = whole ? FLUX_I32 : FLUX_F32;
        else if (!whole || (t == FLUX_U8 && (v < 0 || v > 255)) || (t == FLUX_I32 && (v < -2147483648.0 || v > 2147483647.0))) {
            flux__fail("%s: the number %g has no place in a tensor of %s; convert that with flux_to_dtype first", call, v,
                       flux__dtypes[t].name);
            return -1;
        }
    }
    return t;
}

/* The dtypes an elementwise operation computes in and gives, by its rule. -1: an error was told. */
static int flux__compute_dtype(int op, int n, flux_tensor *const *xs, flux_dtype *result) {
    const char *call = flux__op_names[op];
    char rule = flux__rules[op];
    int t = rule == 'S' ? flux__meet(call, n - 1, xs + 1) : flux__meet(call, n, xs);
    if (t < 0) return t;
    if (rule == 'F' && !flux__dtypes[t].real) t = FLUX_F32;
    if (rule == 'N' && t == FLUX_BOOL) t = FLUX_I32;
    if (rule == 'B' && t != FLUX_BOOL) {
        flux__text text = flux__describe(xs[0]);
        flux__fail("%s: operands must be bool, not %s; compare first, as in flux_gt(x, 0)", call, text.s);
        return -1;
    }
    *result = rule == 'C' ? FLUX_BOOL : (flux_dtype)t;
    return t;
}

static flux_tensor *flux__cast(flux_tensor *x, flux_dtype t) {
    if (!x || x->dtype == t || (x->flags & FLUX__WEAK)) return x;
    flux_shape s = flux__dims(x);
    if (flux__is_number(x) && t == FLUX_F64) return flux_full_shape(s, x->arg.num, t);
    flux_tensor *y = flux__node(FLUX__CAST, t, &s, x, NULL, NULL);
    return y ? flux__done(y) : NULL;
}

static flux_tensor *flux__elementwise(int op, flux_tensor *a, flux_tensor *b, flux_tensor *c) {
    flux_tensor *xs[3] = { a, b, c };
    int n = flux__arity[op];
    flux_dtype result = FLUX_F32;
    flux_shape s;
    if (!flux__check_operands(flux__op_names[op], n, xs)) return NULL;
    int t = flux__compute_dtype(op, n, xs, &result);
    if (t < 0 || !flux__broadcast(flux__op_names[op], n, xs, &s)) return NULL;
    for (int i = 0; i < n; i++)
        if (!(xs[i] = flux__cast(xs[i], flux__rules[op] == 'S' && i == 0 ? FLUX_BOOL : (flux_dtype)t))) return NULL;
    flux_device d = flux__place(n, xs);
    flux_tensor *y = flux__node(op, result, &s, xs[0], n > 1 ? xs[1] : NULL, n > 2 ? xs[2] : NULL);
    if (!y) return NULL;
    y->device = d;
    return flux__done(y);
}

#define FLUX__PUBLIC_1(NAME, name) FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *x) { return flux__elementwise(FLUX__OP_##NAME, x, NULL, NULL); }
#define FLUX__PUBLIC_2(NAME, name) FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *a, flux_tensor *b) { return flux__elementwise(FLUX__OP_##NAME, a, b, NULL); }
FLUX__PUBLIC_2(SUB, sub) FLUX__PUBLIC_2(DIV, div) FLUX__PUBLIC_2(POW, pow) FLUX__PUBLIC_2(MAX2, max2)
FLUX__PUBLIC_2(MIN2, min2) FLUX__PUBLIC_2(EQ, eq) FLUX__PUBLIC_2(NE, ne) FLUX__PUBLIC_2(LT, lt) FLUX__PUBLIC_2(LE, le)
FLUX__PUBLIC_2(GT, gt) FLUX__PUBLIC_2(GE, ge) FLUX__PUBLIC_2(AND, and) FLUX__PUBLIC_2(OR, or) FLUX__PUBLIC_1(NOT, not)
FLUX__PUBLIC_1(NEG, neg) FLUX__PUBLIC_1(ABS, abs) FLUX__PUBLIC_1(SIGN, sign) FLUX__PUBLIC_1(SQUARE, square)
FLUX__PUBLIC_1(SQRT, sqrt) FLUX__PUBLIC_1(RSQRT, rsqrt) FLUX__PUBLIC_1(EXP, exp) FLUX__PUBLIC_1(LOG, log)
FLUX__PUBLIC_1(LOG1P, log1p) FLUX__PUBLIC_1(EXPM1, expm1) FLUX__PUBLIC_1(SIN, sin) FLUX__PUBLIC_1(COS, cos)
FLUX__PUBLIC_1(TANH, tanh) FLUX__PUBLIC_1(ERF, erf) FLUX__PUBLIC_1(FLOOR, floor) FLUX__PUBLIC_1(CEIL, ceil)
FLUX__PUBLIC_1(ROUND, round) FLUX__PUBLIC_1(SIGMOID, sigmoid) FLUX__PUBLIC_1(SOFTPLUS, softplus) FLUX__PUBLIC_1(RELU, relu)

/* x + 0 and x * 1, which gradients make, are x; the shape must be x's already. */
static bool flux__neutral(const flux_tensor *x, const flux_tensor *number, double value) {
    return x && number && number->op == FLUX__NUMBER && (number->flags & FLUX__WEAK || number->dtype == x->dtype) &&
           number->arg.num == value && number->ndim == 0 && x->op != FLUX__TUPLE && !(x->flags & FLUX__WEAK) &&
           flux__dtypes[x->dtype].real;
}

FLUX_DEF flux_tensor *(flux_add)(flux_tensor *a, flux_tensor *b) { return flux__elementwise(FLUX__OP_ADD, a, b, NULL); }

FLUX_DEF flux_tensor *(flux_mul)(flux_tensor *a, flux_tensor *b) {
    if (flux__neutral(a, b, 1)) return a;
    if (flux__neutral(b, a, 1)) return b;
    return flux__elementwise(FLUX__OP_MUL, a, b, NULL);
}

FLUX_DEF flux_tensor *(flux_where)(flux_tensor *cond, flux_tensor *a, flux_tensor *b) {
    return flux__elementwise(FLUX__OP_WHERE, cond, a, b);
}

static flux_tensor *flux__lerp(flux_tensor *a, flux_tensor *b, flux_tensor *t) { return flux__elementwise(FLUX__OP_LERP, a, b, t); }
static flux_tensor *flux__fma(flux_tensor *a, flux_tensor *b, flux_tensor *c) { return flux__elementwise(FLUX__OP_FMA, a, b, c); }

FLUX_DEF flux_tensor *flux_clamp(flux_tensor *x, double lo, double hi) {
    if (!(lo <= hi)) return (flux_tensor *)flux__fail("clamp: the bounds %g and %g are not in order", lo, hi);
    int h = flux__hide();
    return flux__reveal(h, flux_min2(flux_max2(x, lo), hi));
}

FLUX_DEF flux_tensor *flux_to_dtype(flux_tensor *x, flux_dtype t) {
    if (!flux__check_operands("to_dtype", 1, &x)) return NULL;
    if ((unsigned)t >= FLUX_NUM_DTYPES) return (flux_tensor *)flux__fail("to_dtype: %d is not a dtype", (int)t);
    return flux__cast(x, t);
}

FLUX_DEF flux_tensor *flux_copy(flux_tensor *x) {
    if (!flux__check_operands("copy", 1, &x)) return NULL;
    flux_shape s = flux__dims(x);
    flux_tensor *y = flux__node(FLUX__COPY, (flux_dtype)x->dtype, &s, x, NULL, NULL);
    return y ? flux__done(y) : NULL;
}

/* ---------------- views */

static void flux__natural(const flux_shape *s, int64_t *stride) {
    int64_t step = 1;
    for (int i = 0; i < s->ndim; i++) {
        stride[i] = step;
        step *= s->dim[i];
    }
}

/* Where x's elements lie: in which base, from which offset, by which strides. */
static flux_tensor *flux__layout(flux_tensor *x, int64_t *offset, int64_t *stride) {
    if (!FLUX__IS_VIEW(x)) {
        flux_shape s = flux__dims(x);
        *offset = 0;
        flux__natural(&s, stride);
        return x;
    }
    *offset = x->offset;
    memcpy(stride, x->stride, sizeof x->stride);
    return x->base;
}

/* Whether elements of such dims and strides lie in order without holes. */
static bool flux__in_order(const flux_shape *s, const int64_t *stride) {
    int64_t step = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (s->dim[i] != 1 && stride[i] != step) return false;
        step *= s->dim[i];
    }
    return true;
}

static flux_tensor *flux__view(int op, flux_tensor *x, const flux_shape *s, flux_tensor *base, int64_t offset, const int64_t *stride) {
    flux_tensor *y = flux__node(op, (flux_dtype)x->dtype, s, x, NULL, NULL);
    if (!y) return NULL;
    flux__edge(&y->base, base);
    y->offset = offset;
    for (int i = 0; i < s->ndim; i++) y->stride[i] = stride[i];
    return y;
}

/* The strides of a reshape without moving data (each run of old dims that lie together is cut anew); false: not possible. */
static bool flux__reshape_strides(const flux_shape *from, const int64_t *have, const flux_shape *to, int64_t *want) {
    int i = 0, j = 0;
    while (j < to->ndim || i < from->ndim) {
        int64_t a = 1, b = 1, step;
        while (i < from->ndim && from->dim[i] == 1) i++;
        while (j < to->ndim && to->dim[j] == 1) want[j++] = 1;
        if (i >= from->ndim || j >= to->ndim) return true;
        int j0 = j;
        step = have[i];
        a = from->dim[i++];
        b = to->dim[j++];
        while (a != b) {
            if (a < b) {
                while (i < from->ndim && from->dim[i] == 1) i++;
                if (i >= from->ndim || have[i] != step * a) return false;   /* a is the run's length so far */
                a *= from->dim[i++];
            } else {
                if (j >= to->ndim) return false;
                b *= to->dim[j++];
            }
        }
        for (int k = j0; k < j; k++) {
            want[k] = step;
            step *= to->dim[k];
        }
    }
    return true;
}

FLUX_DEF flux_tensor *flux_reshape_to(flux_tensor *x, flux_shape s) {
    if (!flux__check_operands("reshape", 1, &x)) return NULL;
    int64_t n = flux__size(x), known = 1, offset, have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS];
    int open = -1, opens = 0;
    for (int i = 0; i < s.ndim && i < FLUX_MAX_DIMS; i++)
        if (s.dim[i] == -1) open = i, opens++;
        else known *= s.dim[i];
    if (opens == 1 && known > 0) s.dim[open] = n / known;
    if (!flux__check_shape("reshape", &s)) return NULL;
    if (flux__count(&s) != n) {
        flux__text a = flux__describe(x), b = flux__shape_text(&s);
        return (flux_tensor *)flux__fail("reshape: %s has %lld elements, %s has %lld", a.s, (long long)n, b.s, (long long)flux__count(&s));
    }
    flux_shape from = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, have);
    if (n == 0) flux__natural(&s, want);
    else if (!flux__reshape_strides(&from, have, &s, want)) {
        int h = flux__hide();
        return flux__reveal(h, flux_reshape_to(flux_copy(x), s));
    }
    flux_tensor *y = flux__view(FLUX__RESHAPE, x, &s, base, offset, want);
    return y ? flux__done(y) : NULL;
}

FLUX_DEF flux_tensor *flux_flatten(flux_tensor *x) {
    if (!flux__check_operands("flatten", 1, &x)) return NULL;
    int64_t n = x->ndim ? x->dim[x->ndim - 1] : 1, dims[2] = { 1, n };
    for (int i = 0; i + 1 < x->ndim; i++) dims[0] *= x->dim[i];
    return flux_reshape_to(x, flux__shape(dims, 2));
}

FLUX_DEF flux_tensor *flux_permute_to(flux_tensor *x, flux_shape order) {
    if (!flux__check_operands("permute", 1, &x)) return NULL;
    int64_t offset, have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    unsigned seen = 0;
    for (int i = 0; i < order.ndim && i < FLUX_MAX_DIMS; i++)
        if (order.dim[i] >= 0 && order.dim[i] < x->ndim) seen |= 1u << order.dim[i];
    if (order.ndim != x->ndim || seen != (1u << x->ndim) - 1) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("permute: the order must name each of the %d dims of %s once", x->ndim, t.s);
    }
    flux_tensor *base = flux__layout(x, &offset, have);
    for (int i = 0; i < x->ndim; i++) {
        s.dim[i] = x->dim[order.dim[i]];
        want[i] = have[order.dim[i]];
    }
    flux_tensor *y = flux__view(FLUX__PERMUTE, x, &s, base, offset, want);
    if (!y) return NULL;
    for (int i = 0; i < x->ndim; i++) y->arg.i[i] = order.dim[i];
    return flux__done(y);
}

FLUX_DEF flux_tensor *flux_transpose(flux_tensor *x) {
    if (!flux__check_operands("transpose", 1, &x)) return NULL;
    int64_t order[FLUX_MAX_DIMS], row[2] = { 1, x->ndim ? x->dim[0] : 1 };
    if (x->ndim < 2) return flux_reshape_to(x, flux__shape(row, 2));
    for (int i = 0; i < x->ndim; i++) order[i] = i < 2 ? 1 - i : i;
    return flux_permute_to(x, flux__shape(order, x->ndim));
}

/* The view of shape s that starts at rel and walks by step, both said in x as if x lay in order (so that its gradient
   is a SPREAD); `from` tells which dim of x each of the new ones walks (-1: none), by how many of its elements. */
static flux_tensor *flux__strided(flux_tensor *x, const flux_shape *s, int64_t rel, const int64_t *step, int64_t start_at,
                                  const int64_t *stride_at, flux_tensor *base) {
    flux_tensor *y = flux__view(FLUX__STRIDED, x, s, base, start_at, stride_at);
    if (!y) return NULL;
    y->rel = rel;
    for (int i = 0; i < s->ndim; i++) y->arg.i[i] = step[i];
    return flux__done(y);
}

static bool flux__check_dim(const char *call, const flux_tensor *x, int dim) {
    if (dim >= 0 && dim < x->ndim) return true;
    flux__text t = flux__describe(x);
    flux__fail("%s: %s has no dim %d", call, t.s, dim);
    return false;
}

/* Walks of x's own dims: start[d] + i*step[d], n[d] of them. */
static flux_tensor *flux__walk_view(flux_tensor *x, const int64_t *start, const int64_t *step, const flux_shape *s) {
    int64_t natural[FLUX_MAX_DIMS], have[FLUX_MAX_DIMS], rel = 0, offset, rels[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS];
    flux_shape from = flux__dims(x);
    flux__natural(&from, natural);
    flux_tensor *base = flux__layout(x, &offset, have);
    for (int d = 0; d < x->ndim; d++) {
        rel += start[d] * natural[d];
        offset += start[d] * have[d];
        rels[d] = step[d] * natural[d];
        want[d] = step[d] * have[d];
    }
    return flux__strided(x, s, rel, rels, offset, want, base);
}

FLUX_DEF flux_tensor *flux_slice_step(flux_tensor *x, int dim, int64_t start, int64_t stop, int64_t step) {
    if (!flux__check_operands("slice", 1, &x) || !flux__check_dim("slice", x, dim)) return NULL;
    int64_t starts[FLUX_MAX_DIMS] = { 0 }, steps[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    if (start < 0 || stop < start || stop > x->dim[dim] || step < 1) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("slice: %lld to %lld by %lld is not within dim %d of %s", (long long)start, (long long)stop,
                                         (long long)step, dim, t.s);
    }
    if (start == 0 && stop == x->dim[dim] && step == 1) return x;
    for (int i = 0; i < x->ndim; i++) steps[i] = 1;
    starts[dim] = stop > start ? start : 0;
    steps[dim] = step;
    s.dim[dim] = (stop - start + step - 1) / step;
    return flux__walk_view(x, starts, steps, &s);
}

FLUX_DEF flux_tensor *flux_slice(flux_tensor *x, int dim, int64_t start, int64_t stop) { return flux_slice_step(x, dim, start, stop, 1); }

static flux_tensor *flux__split(const char *call, flux_tensor *x, int64_t n, bool first) {
    if (!flux__check_operands(call, 1, &x)) return NULL;
    int last = x->ndim - 1;
    if (last < 0 || n < 0 || n > x->dim[last]) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("%s: %s does not have %lld observations in its last dim", call, t.s, (long long)n);
    }
    return first ? flux_slice(x, last, 0, n) : flux_slice(x, last, n, x->dim[last]);
}

FLUX_DEF flux_tensor *flux_take(flux_tensor *x, int64_t n) { return flux__split("take", x, n, true); }
FLUX_DEF flux_tensor *flux_drop(flux_tensor *x, int64_t n) { return flux__split("drop", x, n, false); }

FLUX_DEF flux_tensor *flux_select(flux_tensor *x, int dim, int64_t index) {
    if (!flux__check_operands("select", 1, &x) || !flux__check_dim("select", x, dim)) return NULL;
    if (index < 0 || index >= x->dim[dim]) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("select: index %lld is not within dim %d of %s", (long long)index, dim, t.s);
    }
    flux_shape s = flux__dims(x);
    for (int i = dim; i + 1 < s.ndim; i++) s.dim[i] = s.dim[i + 1];
    s.ndim--;
    int h = flux__hide();
    return flux__reveal(h, flux_reshape_to(flux_slice(x, dim, index, index + 1), s));
}

FLUX_DEF flux_tensor *flux_unsqueeze(flux_tensor *x, int dim) {
    if (!flux__check_operands("unsqueeze", 1, &x)) return NULL;
    if (dim < 0 || dim > x->ndim || x->ndim == FLUX_MAX_DIMS) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("unsqueeze: no new dim can stand before dim %d of %s", dim, t.s);
    }
    flux_shape s = flux__dims(x);
    for (int i = s.ndim++; i > dim; i--) s.dim[i] = s.dim[i - 1];
    s.dim[dim] = 1;
    return flux_reshape_to(x, s);
}

FLUX_DEF flux_tensor *flux_squeeze(flux_tensor *x) {
    if (!flux__check_operands("squeeze", 1, &x)) return NULL;
    flux_shape s = flux__shape(NULL, 0);
    for (int i = 0; i < x->ndim; i++)
        if (x->dim[i] != 1) s.dim[s.ndim++] = x->dim[i];
    return flux_reshape_to(x, s);
}

FLUX_DEF flux_tensor *flux_broadcast_to_shape(flux_tensor *x, flux_shape s) {
    if (!flux__check_operands("broadcast_to", 1, &x) || !flux__check_shape("broadcast_to", &s)) return NULL;
    int64_t offset, have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS];
    flux_tensor *base = flux__layout(x, &offset, have);
    bool same = x->ndim == s.ndim;
    for (int i = 0; i < s.ndim; i++) {
        int64_t n = i < x->ndim ? x->dim[i] : 1;
        want[i] = n == 1 ? 0 : have[i];
        if (n != s.dim[i]) same = false;
        if (n != s.dim[i] && n != 1) {
            flux__text a = flux__describe(x), b = flux__shape_text(&s);
            return (flux_tensor *)flux__fail("broadcast_to: %s does not stretch to %s", a.s, b.s);
        }
    }
    for (int i = s.ndim; i < x->ndim; i++)
        if (x->dim[i] != 1) {
            flux__text a = flux__describe(x), b = flux__shape_text(&s);
            return (flux_tensor *)flux__fail("broadcast_to: %s does not stretch to %s", a.s, b.s);
        }
    if (same) return x;
    if (flux__is_number(x)) return flux_full_shape(s, x->arg.num, (flux_dtype)x->dtype);
    flux_tensor *y = flux__view(FLUX__BROADCAST, x, &s, base, offset, want);
    return y ? flux__done(y) : NULL;
}

FLUX_DEF flux_tensor *flux_flip_dims(flux_tensor *x, flux_shape dims) {
    if (!flux__check_operands("flip", 1, &x)) return NULL;
    int64_t start[FLUX_MAX_DIMS] = { 0 }, step[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    for (int i = 0; i < x->ndim; i++) step[i] = 1;
    for (int i = 0; i < dims.ndim && i < FLUX_MAX_DIMS; i++) {
        int d = (int)dims.dim[i];
        if (!flux__check_dim("flip", x, d)) return NULL;
        start[d] = x->dim[d] ? x->dim[d] - 1 : 0;
        step[d] = -1;
    }
    return flux__walk_view(x, start, step, &s);
}

/* Of a finished tensor: another that shares its memory and nothing else, so that what it came from can go. */
static flux_tensor *flux__share(flux_tensor *x) {
    flux_shape s = flux__dims(x);
    flux_tensor *y = flux__node_raw(FLUX__LEAF, (flux_dtype)x->dtype, &s, x->device, 0);
    if (!y) return NULL;
    flux__atomic_add(&x->buf->refs, 1);
    y->buf = x->buf;
    return (flux_tensor *)flux__own(y);
}

FLUX_DEF flux_tensor *flux_detach(flux_tensor *x) {
    if (!flux__check_operands("detach", 1, &x)) return NULL;
    if (x->buf) return flux__share(x);
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, stride);
    flux_tensor *y = flux__view(FLUX__DETACH, x, &s, base, offset, stride);
    return y ? flux__done(y) : NULL;
}

/* The reverse of a strided view: x's elements added (or, where none meet, put) into a tensor of shape s filled with
   `fill`, from rel by step. */
static flux_tensor *flux__spread(flux_tensor *x, const flux_shape *s, int64_t rel, const int64_t *step, double fill, bool meet) {
    flux_tensor *y = flux__node(FLUX__SPREAD, (flux_dtype)x->dtype, s, x, NULL, NULL);
    if (!y) return NULL;
    y->rel = rel;
    y->arg.num = fill;
    y->arg.i[1] = meet;
    for (int i = 0; i < FLUX_MAX_DIMS; i++) y->stride[i] = i < x->ndim ? step[i] : 0;
    return flux__done(y);
}

FLUX_DEF flux_tensor *flux_pad_by(flux_tensor *x, double value, flux_shape lo, flux_shape hi) {
    if (!flux__check_operands("pad", 1, &x)) return NULL;
    flux_shape s = flux__dims(x);
    int64_t natural[FLUX_MAX_DIMS], rel = 0;
    bool none = true;
    if (lo.ndim > s.ndim || hi.ndim > s.ndim) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("pad: %d dims to pad, but x is %s", lo.ndim > hi.ndim ? lo.ndim : hi.ndim, t.s);
    }
    for (int i = 0; i < s.ndim; i++) {
        int64_t l = i < lo.ndim ? lo.dim[i] : 0, r = i < hi.ndim ? hi.dim[i] : 0;
        if (l < 0 || r < 0) return (flux_tensor *)flux__fail("pad: negative padding (%lld, %lld) of dim %d", (long long)l, (long long)r, i);
        s.dim[i] += l + r;
        if (l + r) none = false;
    }
    if (none) return x;
    if (!flux__check_shape("pad", &s)) return NULL;
    flux__natural(&s, natural);
    for (int i = 0; i < lo.ndim; i++) rel += lo.dim[i] * natural[i];
    return flux__spread(x, &s, rel, natural, value, false);
}

FLUX_DEF flux_tensor *flux_pad_all(flux_tensor *x, double value, flux_shape lo_hi) {
    flux_shape lo = flux__shape(NULL, 0), hi = lo;
    if (lo_hi.ndim % 2 || lo_hi.ndim > FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("pad: %d numbers, but each of up to %d dims needs two", lo_hi.ndim, FLUX_MAX_DIMS / 2);
    for (int i = 0; i < lo_hi.ndim; i += 2) {
        lo.dim[lo.ndim++] = lo_hi.dim[i];
        hi.dim[hi.ndim++] = lo_hi.dim[i + 1];
    }
    return flux_pad_by(x, value, lo, hi);
}

/* Tiles by broadcasting a dim of its own after each dim of x. */
FLUX_DEF flux_tensor *flux_repeat_by(flux_tensor *x, flux_shape times) {
    if (!flux__check_operands("repeat", 1, &x)) return NULL;
    int nd = x->ndim > times.ndim ? x->ndim : times.ndim;
    flux_shape out = flux__shape(NULL, 0);
    if (nd > FLUX_MAX_DIMS) return (flux_tensor *)flux__fail("repeat: %d dims, at most %d", nd, FLUX_MAX_DIMS);
    int h = flux__hide();
    flux_tensor *y = x;
    for (int d = 0; d < nd && y; d++) {
        int64_t have = d < x->ndim ? x->dim[d] : 1, by = d < times.ndim ? times.dim[d] : 1, split[3] = { 1, 1, 1 }, rest = 1;
        if (by < 0) y = (flux_tensor *)flux__fail("repeat: dim %d by %lld", d, (long long)by);
        for (int i = 0; i < d; i++) rest *= out.dim[i];
        out.dim[out.ndim++] = have * by;
        if (by == 1 || !y) continue;
        split[0] = rest * have;
        split[2] = flux__size(y) / (split[0] > 0 ? split[0] : 1);
        y = flux_reshape_to(y, flux__shape(split, 3));
        split[1] = by;
        y = y ? flux_copy(flux_broadcast_to_shape(y, flux__shape(split, 3))) : NULL;
    }
    return flux__reveal(h, y ? flux_reshape_to(y, out) : NULL);
}

FLUX_DEF flux_tensor *flux_cat_all(int dim, int n, flux_tensor *const *xs) {
    if (n < 1 || n > 255) return (flux_tensor *)flux__fail("cat: %d tensors (1 to 255)", n);
    if (!flux__check_operands("cat", n, xs)) return NULL;
    flux_shape s = flux__dims(xs[0]);
    int t = flux__meet("cat", n, xs);
    if (dim < 0 || dim >= FLUX_MAX_DIMS) return (flux_tensor *)flux__fail("cat: dim %d", dim);
    for (; s.ndim <= dim; s.ndim++) s.dim[s.ndim] = 1;
    int64_t total = 0;
    for (int k = 0; k < n; k++) {
        for (int d = 0; d < s.ndim || d < xs[k]->ndim; d++) {
            int64_t a = d < s.ndim ? s.dim[d] : 1, b = d < xs[k]->ndim ? xs[k]->dim[d] : 1;
            if (d == dim) total += b;
            else if (a != b) {
                flux__text ta = flux__describe(xs[0]), tb = flux__describe(xs[k]);
                return (flux_tensor *)flux__fail("cat: along dim %d, %s and %s differ in dim %d", dim, ta.s, tb.s, d);
            }
        }
    }
    s.dim[dim] = total;
    if (!flux__check_shape("cat", &s)) return NULL;
    int h = flux__hide();
    flux_tensor *y = flux__node_raw(FLUX__CAT, (flux_dtype)t, &s, flux__place(n, xs), n);
    for (int k = 0; y && k < n; k++) {
        flux_tensor *x = flux__cast(xs[k], (flux_dtype)t);
        if (x) flux__edge(&y->in[k], x);
        else {
            flux_release(y);
            y = NULL;
        }
    }
    if (y) y->arg.i[0] = dim;
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

FLUX_DEF flux_tensor *flux_stack_all(int dim, int n, flux_tensor *const *xs) {
    if (n < 1 || n > 255) return (flux_tensor *)flux__fail("stack: %d tensors (1 to 255)", n);
    if (!flux__check_operands("stack", n, xs)) return NULL;
    flux_tensor *rows[255];
    int h = flux__hide();
    for (int i = 0; i < n; i++) {
        if (!flux__same_dims(xs[i], xs[0])) {
            flux__text a = flux__describe(xs[0]), b = flux__describe(xs[i]);
            flux__fail("stack: shapes differ: %s and %s", a.s, b.s);
        }
        rows[i] = flux_failed() ? NULL : flux_unsqueeze(xs[i], dim);
        if (!rows[i]) return flux__reveal(h, NULL);
    }
    return flux__reveal(h, flux_cat_all(dim, n, rows));
}

static bool flux__check_index(const char *call, const flux_tensor *index) {
    if (!flux__dtypes[index->dtype].real && index->dtype != FLUX_BOOL) return true;
    flux__text t = flux__describe(index);
    flux__fail("%s: indices must be integers, not %s", call, t.s);
    return false;
}

static bool flux__gather_shape(const char *call, const flux_tensor *x, int dim, const flux_tensor *index, flux_shape *s) {
    if (!flux__check_dim(call, x, dim) || !flux__check_index(call, index)) return false;
    *s = flux__shape(x->dim, dim);
    if (x->ndim - 1 + index->ndim > FLUX_MAX_DIMS) {
        flux__fail("%s: the result would have %d dims", call, x->ndim - 1 + index->ndim);
        return false;
    }
    for (int i = 0; i < index->ndim; i++) s->dim[s->ndim++] = index->dim[i];
    for (int i = dim + 1; i < x->ndim; i++) s->dim[s->ndim++] = x->dim[i];
    return flux__check_shape(call, s);
}

FLUX_DEF flux_tensor *flux_gather(flux_tensor *x, int dim, flux_tensor *index) {
    flux_tensor *xs[2] = { x, index };
    flux_shape s;
    if (!flux__check_operands("gather", 2, xs) || !flux__gather_shape("gather", x, dim, index, &s)) return NULL;
    int h = flux__hide();
    index = flux__cast(index, FLUX_I64);
    flux_tensor *y = index ? flux__node(FLUX__GATHER, (flux_dtype)x->dtype, &s, x, index, NULL) : NULL;
    if (y) y->arg.i[0] = dim;
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

FLUX_DEF flux_tensor *flux_scatter_add(flux_tensor *x, int dim, flux_tensor *index, flux_tensor *src) {
    flux_tensor *xs[3] = { x, index, src };
    flux_shape s, out;
    if (!flux__check_operands("scatter_add", 3, xs) || !flux__gather_shape("scatter_add", x, dim, index, &s)) return NULL;
    flux_shape have = flux__dims(src);
    if (have.ndim != s.ndim || memcmp(have.dim, s.dim, (size_t)s.ndim * sizeof s.dim[0]) != 0) {
        flux__text a = flux__shape_text(&s), b = flux__describe(src);
        return (flux_tensor *)flux__fail("scatter_add: src must be %s, is %s", a.s, b.s);
    }
    int h = flux__hide();
    index = flux__cast(index, FLUX_I64);
    src = flux__cast(src, (flux_dtype)x->dtype);
    out = flux__dims(x);
    flux_tensor *y = index && src ? flux__node(FLUX__SCATTER, (flux_dtype)x->dtype, &out, x, index, src) : NULL;
    if (y) y->arg.i[0] = dim, y->device = flux__place(3, xs);
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

FLUX_DEF flux_tensor *flux_tuple_of(int n, flux_tensor *const *xs) {
    flux_shape none = flux__shape(NULL, 0);
    if (n < 1 || n > 255) return (flux_tensor *)flux__fail("tuple: %d tensors (1 to 255)", n);
    for (int i = 0; i < n; i++)
        if (!xs[i]) return (flux_tensor *)flux__null("tuple", "of the list", xs[i]);
    flux_tensor *t = flux__node_raw(FLUX__TUPLE, FLUX_F32, &none, xs[0]->device, n);
    for (int i = 0; t && i < n; i++) flux__edge(&t->in[i], xs[i]);
    return t ? flux__done(t) : NULL;
}

FLUX_DEF flux_tensor *flux_nth(flux_tensor *tuple, int i) {
    if (!tuple) return (flux_tensor *)flux__null("nth", "tuple", tuple);
    int n = flux_count(tuple);
    if (i < 0 || i >= n) return (flux_tensor *)flux__fail("nth: no tensor %d among %d", i, n);
    if (tuple->op != FLUX__TUPLE) return tuple;
    return (flux_tensor *)flux__own(flux_retain(tuple->in[i]));
}

FLUX_DEF int flux_count(const flux_tensor *tuple) { return !tuple ? 0 : tuple->op == FLUX__TUPLE ? tuple->nin : 1; }

static flux_tensor *flux__move(flux_tensor *x, flux_device d) {
    if (!flux__check_operands("to", 1, &x)) return NULL;
    if (flux_device_equal(x->device, d)) return x;
    flux_shape s = flux__dims(x);
    if (flux__is_number(x)) {
        flux_tensor *y = flux_full_shape(s, x->arg.num, (flux_dtype)x->dtype);
        if (y) y->device = d;
        return y;
    }
    int h = flux__hide();
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux__layout(x, &offset, stride);
    if (FLUX__IS_VIEW(x) && (!flux__in_order(&s, stride))) x = flux_copy(x);
    flux_tensor *y = x ? flux__node(FLUX__MOVE, (flux_dtype)x->dtype, &s, x, NULL, NULL) : NULL;
    if (y) y->device = d;
    return flux__reveal(h, y ? flux__done(y) : NULL);
}

/* ---------------- facts */

FLUX_DEF int flux_ndim(const flux_tensor *x) { return x ? x->ndim : -1; }
FLUX_DEF int64_t flux_dim(const flux_tensor *x, int dim) { return !x || dim < 0 ? -1 : dim < x->ndim ? x->dim[dim] : 1; }
FLUX_DEF int64_t flux_len(const flux_tensor *x) { return x ? flux__size(x) : -1; }
FLUX_DEF flux_dtype flux_dtype_of(const flux_tensor *x) { return x ? (flux_dtype)x->dtype : FLUX_F32; }

FLUX_DEF flux_shape flux_shape_of(const flux_tensor *x) {
    flux_shape none = flux__shape(NULL, 0);
    if (!x) none.ndim = -1;
    return x ? flux__dims(x) : none;
}

/* ---------------- reductions */

enum flux__red { FLUX__RED_SUM, FLUX__RED_PROD, FLUX__RED_MAX, FLUX__RED_MIN };

/* The dims named in a call's options as a bit mask; all of them when none is named. False: an error was told. */
static bool flux__mask(const char *call, int n, const flux_reduce_opts *o, unsigned *mask) {
    int d[8];
    d[0] = o->d0, d[1] = o->d1, d[2] = o->d2, d[3] = o->d3, d[4] = o->d4, d[5] = o->d5, d[6] = o->d6, d[7] = o->d7;
    flux_tensor *x = o->x;
    if (!flux__check_operands(call, 1, &x)) return false;
    *mask = n > 0 ? 0 : (1u << x->ndim) - 1;
    for (int i = 0; i < n && i < 8; i++) {
        if (d[i] < 0 || d[i] >= FLUX_MAX_DIMS) return flux__check_dim(call, x, d[i]);
        if (d[i] < x->ndim) *mask |= 1u << d[i];     /* a dim past the last is of size 1: nothing to do */
    }
    return true;
}

/* x reduced over the dims of mask, which stay as 1 up to out_ndim. */
static flux_tensor *flux__reduce_node(flux_tensor *x, int red, unsigned mask, int out_ndim) {
    flux_shape s = flux__shape(NULL, out_ndim);
    for (int i = 0; i < out_ndim; i++) s.dim[i] = i >= x->ndim || (mask >> i & 1) ? 1 : x->dim[i];
    flux_tensor *y = flux__node(FLUX__REDUCE, (flux_dtype)x->dtype, &s, x, NULL, NULL);
    if (!y) return NULL;
    y->arg.i[0] = red;
    y->arg.i[1] = (int64_t)mask;
    return flux__done(y);
}

static int64_t flux__reduced_count(const flux_tensor *x, unsigned mask) {
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1) n *= x->dim[i];
    return n;
}

static flux_tensor *flux__reduce_call(const char *call, int red, int n, const flux_reduce_opts *o) {
    unsigned mask = 0;
    flux_tensor *x = o->x;
    if (!flux__mask(call, n, o, &mask)) return NULL;
    if (red >= FLUX__RED_MAX && flux__reduced_count(x, mask) == 0) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("%s: nothing to choose from in %s", call, t.s);
    }
    int h = flux__hide();
    if (red < FLUX__RED_MAX && !flux__dtypes[x->dtype].real) x = flux__cast(x, FLUX_I64);
    return flux__reveal(h, x ? flux__reduce_node(x, red, mask, n ? x->ndim : 0) : NULL);
}

FLUX_DEF flux_tensor *flux_sum_over(int n, flux_reduce_opts o) { return flux__reduce_call("sum", FLUX__RED_SUM, n, &o); }
FLUX_DEF flux_tensor *flux_prod_over(int n, flux_reduce_opts o) { return flux__reduce_call("prod", FLUX__RED_PROD, n, &o); }
FLUX_DEF flux_tensor *flux_max_over(int n, flux_reduce_opts o) { return flux__reduce_call("max", FLUX__RED_MAX, n, &o); }
FLUX_DEF flux_tensor *flux_min_over(int n, flux_reduce_opts o) { return flux__reduce_call("min", FLUX__RED_MIN, n, &o); }

static flux_tensor *flux__truth(const char *call, int red, int n, flux_reduce_opts *o) {
    unsigned mask;
    if (!flux__mask(call, n, o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__cast(o->x, FLUX_BOOL);
    return flux__reveal(h, x ? flux__reduce_node(x, red, mask, n ? x->ndim : 0) : NULL);
}

FLUX_DEF flux_tensor *flux_any_over(int n, flux_reduce_opts o) { return flux__truth("any", FLUX__RED_MAX, n, &o); }
FLUX_DEF flux_tensor *flux_all_over(int n, flux_reduce_opts o) { return flux__truth("all", FLUX__RED_MIN, n, &o); }

static flux_tensor *flux__floating(flux_tensor *x) { return flux__dtypes[x->dtype].real ? x : flux__cast(x, FLUX_F32); }

FLUX_DEF flux_tensor *flux_mean_over(int n, flux_reduce_opts o) {
    unsigned mask = 0;
    if (!flux__mask("mean", n, &o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__floating(o.x), *s = x ? flux__reduce_node(x, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL;
    return flux__reveal(h, s ? flux_mul(s, 1.0 / (double)flux__reduced_count(x, mask)) : NULL);
}

FLUX_DEF flux_tensor *flux_var_over(int n, flux_reduce_opts o) {
    unsigned mask = 0;
    if (!flux__mask("var", n, &o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__floating(o.x), *m = x ? flux__reduce_node(x, FLUX__RED_SUM, mask, x->ndim) : NULL;
    double scale = x ? 1.0 / (double)flux__reduced_count(x, mask) : 0;
    flux_tensor *e = m ? flux_square(flux_sub(x, flux_mul(m, scale))) : NULL;
    flux_tensor *s = e ? flux__reduce_node(e, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL;
    return flux__reveal(h, s ? flux_mul(s, scale) : NULL);
}

FLUX_DEF flux_tensor *flux_norm_over(int n, flux_reduce_opts o) {
    int h = flux__hide();
    unsigned mask = 0;
    if (!flux__mask("norm", n, &o, &mask)) return flux__reveal(h, NULL);
    o.x = flux_square(flux__floating(o.x));
    return flux__reveal(h, o.x ? flux_sqrt(flux_sum_over(n, o)) : NULL);
}

/* x less its largest along mask (which takes no part in the gradient: it cancels). */
static flux_tensor *flux__shifted(flux_tensor *x, unsigned mask, flux_tensor **top) {
    flux_tensor *m = flux__reduce_node(x, FLUX__RED_MAX, mask, x->ndim);
    *top = m ? flux_detach(m) : NULL;
    return *top ? flux__elementwise(FLUX__OP_SUBMAX, x, *top, NULL) : NULL;
}

FLUX_DEF flux_tensor *flux_logsumexp_over(int n, flux_reduce_opts o) {
    unsigned mask = 0;
    flux_tensor *top;
    if (!flux__mask("logsumexp", n, &o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__floating(o.x), *s = x ? flux__shifted(x, mask, &top) : NULL;
    flux_tensor *e = s ? flux_exp(s) : NULL, *sum = e ? flux__reduce_node(e, FLUX__RED_SUM, mask, n ? x->ndim : 0) : NULL;
    if (sum && !n) top = flux_reshape_to(top, flux__shape(NULL, 0));
    return flux__reveal(h, sum ? flux_add(flux_log(sum), top) : NULL);
}

static flux_tensor *flux__softmax(const char *call, int n, flux_reduce_opts *o, bool logarithm) {
    unsigned mask = 0;
    flux_tensor *top;
    if (n == 0) o->d0 = 0;
    if (!flux__mask(call, n ? n : 1, o, &mask)) return NULL;
    int h = flux__hide();
    flux_tensor *x = flux__floating(o->x), *s = x ? flux__shifted(x, mask, &top) : NULL;
    flux_tensor *e = s ? flux_exp(s) : NULL, *sum = e ? flux__reduce_node(e, FLUX__RED_SUM, mask, x->ndim) : NULL;
    if (!sum) return flux__reveal(h, NULL);
    return flux__reveal(h, logarithm ? flux_sub(s, flux_log(sum)) : flux_div(e, sum));
}

FLUX_DEF flux_tensor *flux_softmax_over(int n, flux_reduce_opts o) { return flux__softmax("softmax", n, &o, false); }
FLUX_DEF flux_tensor *flux_logsoftmax_over(int n, flux_reduce_opts o) { return flux__softmax("logsoftmax", n, &o, true); }

static flux_tensor *flux__argreduce_node(flux_tensor *x, bool max, unsigned mask, int out_ndim) {
    flux_shape s = flux__shape(NULL, out_ndim);
    for (int i = 0; i < out_ndim; i++) s.dim[i] = mask >> i & 1 ? 1 : x->dim[i];
    flux_tensor *y = flux__node(FLUX__ARGREDUCE, FLUX_I64, &s, x, NULL, NULL);
    if (!y) return NULL;
    y->arg.i[0] = max;
    y->arg.i[1] = (int64_t)mask;
    return flux__done(y);
}

static flux_tensor *flux__arg(const char *call, bool max, int n, flux_reduce_opts *o) {
    unsigned mask = 0;
    if (!flux__mask(call, n, o, &mask)) return NULL;
    if (n > 1) return (flux_tensor *)flux__fail("%s: over one dim or all, not %d", call, n);
    if (flux__reduced_count(o->x, mask) == 0) {
        flux__text t = flux__describe(o->x);
        return (flux_tensor *)flux__fail("%s: nothing to choose from in %s", call, t.s);
    }
    return flux__argreduce_node(o->x, max, mask, n ? o->x->ndim : 0);
}

FLUX_DEF flux_tensor *flux_argmax_over(int n, flux_reduce_opts o) { return flux__arg("argmax", true, n, &o); }
FLUX_DEF flux_tensor *flux_argmin_over(int n, flux_reduce_opts o) { return flux__arg("argmin", false, n, &o); }

#define FLUX__PUBLIC_RED(name)                                       \
    FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *x) {            \
        flux_reduce_opts o;                                          \
        memset((void *)&o, 0, sizeof o);                             \
        o.x = x;                                                     \
        return flux_##name##_over(0, o);                             \
    }
FLUX__PUBLIC_RED(sum) FLUX__PUBLIC_RED(mean) FLUX__PUBLIC_RED(var) FLUX__PUBLIC_RED(prod) FLUX__PUBLIC_RED(max)
FLUX__PUBLIC_RED(min) FLUX__PUBLIC_RED(any) FLUX__PUBLIC_RED(all) FLUX__PUBLIC_RED(norm) FLUX__PUBLIC_RED(logsumexp)
FLUX__PUBLIC_RED(argmax) FLUX__PUBLIC_RED(argmin) FLUX__PUBLIC_RED(softmax) FLUX__PUBLIC_RED(logsoftmax)

/* ---------------- matrix products */

static bool flux__no_product(const char *why, const flux_tensor *a, const flux_tensor *b) {
    flux__text ta = flux__describe(a), tb = flux__describe(b);
    return flux__fail("matmul: %s: a is %s, b is %s", why, ta.s, tb.s) != NULL;
}

/* The element counts m, n, k of a product and the result's shape; a vector is a column, on the left a row. */
static bool flux__product_shape(const flux_tensor *a, const flux_tensor *b, int64_t *mnk, flux_shape *s) {
    mnk[0] = a->ndim > 1 ? a->dim[0] : 1;
    mnk[1] = b->ndim > 1 ? b->dim[1] : 1;
    mnk[2] = a->dim[a->ndim > 1 ? 1 : 0];
    if (mnk[2] != b->dim[0]) return flux__no_product("inner sizes differ", a, b);
    *s = flux__shape(NULL, 0);
    if (a->ndim > 1) s->dim[s->ndim++] = mnk[0];
    if (b->ndim > 1) s->dim[s->ndim++] = mnk[1];
    int nd = a->ndim > b->ndim ? a->ndim : b->ndim;
    if (nd > 2 && s->ndim < 2) return flux__no_product("batches of products need matrices on both sides", a, b);
    for (int d = 2; d < nd; d++) {
        int64_t x = d < a->ndim ? a->dim[d] : 1, y = d < b->ndim ? b->dim[d] : 1;
        if (x != y && x != 1 && y != 1) return flux__no_product("batch dims differ", a, b);
        s->dim[s->ndim++] = x == 1 ? y : x;
    }
    return flux__check_shape("matmul", s);
}

FLUX_DEF flux_tensor *flux_matmul(flux_tensor *a, flux_tensor *b) {
    flux_tensor *xs[2] = { a, b };
    int64_t mnk[3];
    flux_shape s;
    if (!flux__check_operands("matmul", 2, xs)) return NULL;
    if (a->ndim == 0 || b->ndim == 0) return (flux_tensor *)flux__fail("matmul: an operand is a scalar; flux_mul scales");
    int t = flux__meet("matmul", 2, xs);
    if (t < 0 || !flux__product_shape(a, b, mnk, &s)) return NULL;
    int h = flux__hide();
    if (!flux__dtypes[t].real) t = FLUX_F32;
    a = flux__cast(a, (flux_dtype)t);
    b = flux__cast(b, (flux_dtype)t);
    flux_tensor *y = a && b ? flux__node(FLUX__MATMUL, (flux_dtype)t, &s, a, b, NULL) : NULL;
    if (!y) return flux__reveal(h, NULL);
    y->device = flux__place(2, xs);
    for (int i = 0; i < 3; i++) y->arg.i[i] = mnk[i];
    return flux__reveal(h, flux__done(y));
}

static bool flux__check_vectors(const char *call, flux_tensor *a, flux_tensor *b) {
    flux_tensor *xs[2] = { a, b };
    if (!flux__check_operands(call, 2, xs)) return false;
    if (a->ndim == 1 && b->ndim == 1) return true;
    flux__text ta = flux__describe(a), tb = flux__describe(b);
    flux__fail("%s: takes two vectors, not %s and %s", call, ta.s, tb.s);
    return false;
}

FLUX_DEF flux_tensor *flux_outer(flux_tensor *a, flux_tensor *b) {
    if (!flux__check_vectors("outer", a, b)) return NULL;
    int h = flux__hide();
    return flux__reveal(h, flux_mul(flux_reshape(a, -1, 1), flux_transpose(b)));
}

FLUX_DEF flux_tensor *flux_dot(flux_tensor *a, flux_tensor *b) {
    if (!flux__check_vectors("dot", a, b)) return NULL;
    if (a->dim[0] != b->dim[0]) {
        flux__text ta = flux__describe(a), tb = flux__describe(b);
        return (flux_tensor *)flux__fail("dot: lengths differ: a is %s, b is %s", ta.s, tb.s);
    }
    int h = flux__hide();
    return flux__reveal(h, flux_sum(flux_mul(a, b)));
}

/* ---------------- convolution and pooling
   A window view shows each output position's window as dims of their own, without copying: [window..., positions...,
   channels, batch]. Convolution is then a matrix product over window and channels, pooling a reduction over the window. */

typedef struct flux__window { int nd; int64_t size[3], stride[3], dilation[3], lo[3], hi[3], out[3]; } flux__window;

/* One number a spatial dim, or one for all, or the default. */
static bool flux__per_dim(const char *call, const char *what, const flux_shape *s, int nd, int64_t otherwise, int64_t least, int64_t *out) {
    if (s->ndim != 0 && s->ndim != 1 && s->ndim != nd) {
        flux__fail("%s: %s has %d numbers for %d dims", call, what, s->ndim, nd);
        return false;
    }
    for (int i = 0; i < nd; i++) {
        out[i] = s->ndim == 0 ? otherwise : s->dim[s->ndim == 1 ? 0 : i];
        if (out[i] < least || out[i] > (1 << 30)) {
            flux__fail("%s: %s is %lld", call, what, (long long)out[i]);
            return false;
        }
    }
    return true;
}

static bool flux__paddings(const char *call, const flux_shape *pad, flux__window *w) {
    if (pad->ndim == 2 * w->nd && w->nd > 0 && pad->ndim != 1) {
        for (int i = 0; i < w->nd; i++) {
            w->lo[i] = pad->dim[2 * i];
            w->hi[i] = pad->dim[2 * i + 1];
            if (w->lo[i] < 0 || w->hi[i] < 0) {
                flux__fail("%s: negative padding (%lld, %lld)", call, (long long)w->lo[i], (long long)w->hi[i]);
                return false;
            }
        }
        return true;
    }
    if (!flux__per_dim(call, "pad", pad, w->nd, 0, 0, w->lo)) return false;
    memcpy(w->hi, w->lo, sizeof w->hi);
    return true;
}

static bool flux__window_out(const char *call, const flux_tensor *x, flux__window *w) {
    for (int i = 0; i < w->nd; i++) {
        int64_t reach = (w->size[i] - 1) * w->dilation[i] + 1, have = x->dim[i] + w->lo[i] + w->hi[i];
        if (reach > have || w->size[i] < 1) {
            flux__text t = flux__describe(x);
            flux__fail("%s: a window that reaches over %lld does not fit into dim %d of %s, padded to %lld", call, (long long)reach, i,
                       t.s, (long long)have);
            return false;
        }
        w->out[i] = (have - reach) / w->stride[i] + 1;
    }
    return true;
}

static flux_tensor *flux__pad_window(flux_tensor *x, const flux__window *w, double value) {
    return flux_pad_by(x, value, flux__shape(w->lo, w->nd), flux__shape(w->hi, w->nd));
}

/* The dims of a window view, and its strides in the padded image. */
static flux_shape flux__window_dims(const flux__window *w, const flux_shape *image, int64_t *step) {
    flux_shape s = flux__shape(NULL, 0);
    int64_t natural[FLUX_MAX_DIMS];
    flux__natural(image, natural);
    for (int i = 0; i < w->nd; i++) {
        step[s.ndim] = natural[i] * w->dilation[i];
        s.dim[s.ndim++] = w->size[i];
    }
    for (int i = 0; i < w->nd; i++) {
        step[s.ndim] = natural[i] * w->stride[i];
        s.dim[s.ndim++] = w->out[i];
    }
    for (int i = w->nd; i < image->ndim; i++) {
        step[s.ndim] = natural[i];
        s.dim[s.ndim++] = image->dim[i];
    }
    return s;
}

static flux_tensor *flux__windows(flux_tensor *x, const flux__window *w) {
    int64_t step[FLUX_MAX_DIMS], have[FLUX_MAX_DIMS], want[FLUX_MAX_DIMS], offset;
    if (!x) return NULL;
    flux_shape image = flux__dims(x), s = flux__window_dims(w, &image, step);
    flux_tensor *base = flux__layout(x, &offset, have);
    for (int i = 0; i < w->nd; i++) {
        want[i] = have[i] * w->dilation[i];
        want[w->nd + i] = have[i] * w->stride[i];
    }
    for (int i = w->nd; i < image.ndim; i++) want[w->nd + i] = have[i];
    return flux__strided(x, &s, 0, step, offset, want, base);
}

static bool flux__conv_window(const char *call, flux_conv_opts *o, flux__window *w) {
    flux_tensor *xs[2] = { o->x, o->weight };
    if (!flux__check_operands(call, 2, xs)) return false;
    memset(w, 0, sizeof *w);
    w->nd = o->weight->ndim - 2;
    if (o->groups == 0) o->groups = 1;
    if (w->nd < 1 || w->nd > 3 || o->x->ndim != o->weight->ndim) {
        flux__text a = flux__describe(o->x), b = flux__describe(o->weight);
        flux__fail("%s: x is %s, weight is %s; both need 1 to 3 spatial dims and two more", call, a.s, b.s);
        return false;
    }
    for (int i = 0; i < w->nd; i++) w->size[i] = o->weight->dim[i];
    return flux__per_dim(call, "stride", &o->stride, w->nd, 1, 1, w->stride) &&
           flux__per_dim(call, "dilation", &o->dilation, w->nd, 1, 1, w->dilation) && flux__paddings(call, &o->pad, w);
}

static int64_t flux__product(const int64_t *v, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= v[i];
    return p;
}

static bool flux__check_channels(const char *call, const flux_conv_opts *o, int nd, bool transposed) {
    int64_t in = o->x->dim[nd], a = o->weight->dim[nd], b = o->weight->dim[nd + 1], g = o->groups;
    if (g >= 1 && (transposed ? b == in && in % g == 0 : a * g == in && b % g == 0)) return true;
    flux__text tx = flux__describe(o->x), tw = flux__describe(o->weight);
    flux__fail("%s: channels do not fit: x is %s, weight is %s, groups %d", call, tx.s, tw.s, o->groups);
    return false;
}

static flux_tensor *flux__flip_kernel(flux_tensor *w, int nd) {
    int64_t dims[3] = { 0, 1, 2 };
    return flux_flip_dims(w, flux__shape(dims, nd));
}

/* [positions, window x channels / groups, groups, batch] times [window x channels / groups, out / groups, groups]. */
static flux_tensor *flux__convolve(const char *call, flux_conv_opts o, bool flip) {
    flux__window w;
    if (!flux__conv_window(call, &o, &w) || !flux__check_channels(call, &o, w.nd, false) || !flux__window_out(call, o.x, &w)) return NULL;
    int h = flux__hide(), nd = w.nd;
    int64_t g = o.groups, in = o.x->dim[nd], out = o.weight->dim[nd + 1], n = o.x->dim[nd + 1], k = flux__product(w.size, nd);
    int64_t order[FLUX_MAX_DIMS], shape[5];
    for (int i = 0; i < nd; i++) order[i] = nd + i, order[nd + i] = i;
    order[2 * nd] = 2 * nd, order[2 * nd + 1] = 2 * nd + 1;
    flux_tensor *win = flux__windows(flux__pad_window(o.x, &w, 0), &w);
    win = win ? flux_permute_to(win, flux__shape(order, 2 * nd + 2)) : NULL;
    flux_tensor *cols = win ? flux_reshape(win, flux__product(w.out, nd), k * (in / g), g, n) : NULL;
    flux_tensor *weight = flip ? flux__flip_kernel(o.weight, nd) : o.weight;
    weight = weight ? flux_reshape(weight, k * (in / g), out / g, g) : NULL;
    flux_tensor *y = cols && weight ? flux_matmul(cols, weight) : NULL;
    memcpy(shape, w.out, sizeof w.out);
    shape[nd] = out, shape[nd + 1] = n;
    return flux__reveal(h, y ? flux_reshape_to(y, flux__shape(shape, nd + 2)) : NULL);
}

FLUX_DEF flux_tensor *flux_conv_with(flux_conv_opts o) { return flux__convolve("conv", o, true); }
FLUX_DEF flux_tensor *flux_crosscor_with(flux_conv_opts o) { return flux__convolve("crosscor", o, false); }

/* The product of the convolution's gradient, laid out as windows, then added back into the image. */
FLUX_DEF flux_tensor *flux_conv_transpose_with(flux_conv_opts o) {
    flux__window w;
    int64_t extra[3], shape[5], order[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS], split[FLUX_MAX_DIMS];
    if (!flux__conv_window("conv_transpose", &o, &w) || !flux__check_channels("conv_transpose", &o, w.nd, true) ||
        !flux__per_dim("conv_transpose", "outpad", &o.outpad, w.nd, 0, 0, extra)) return NULL;
    int h = flux__hide(), nd = w.nd;
    int64_t g = o.groups, in = o.x->dim[nd], each = o.weight->dim[nd], n = o.x->dim[nd + 1], k = flux__product(w.size, nd), p = 1;
    for (int i = 0; i < nd; i++) {
        w.out[i] = o.x->dim[i];
        shape[i] = (w.out[i] - 1) * w.stride[i] + (w.size[i] - 1) * w.dilation[i] + 1 + extra[i];
        if (shape[i] - w.lo[i] - w.hi[i] < 1)
            return flux__reveal(h, (flux_tensor *)flux__fail("conv_transpose: padding leaves nothing of dim %d", i));
        p *= w.out[i];
    }
    shape[nd] = each * g, shape[nd + 1] = n;
    flux_tensor *weight = flux__flip_kernel(o.weight, nd), *x = flux_reshape(o.x, p, in / g, g, n);
    weight = weight ? flux_permute(flux_reshape(weight, k * each, in / g, g), 1, 0, 2) : NULL;
    flux_tensor *cols = x && weight ? flux_matmul(x, weight) : NULL;      /* [positions, window x each, groups, batch] */
    for (int i = 0; i < nd; i++) {
        split[i] = w.out[i], split[nd + i] = w.size[i];
        order[i] = nd + i, order[nd + i] = i;
    }
    split[2 * nd] = each * g, split[2 * nd + 1] = n;
    order[2 * nd] = 2 * nd, order[2 * nd + 1] = 2 * nd + 1;
    flux_shape image = flux__shape(shape, nd + 2);
    flux__window_dims(&w, &image, step);
    flux_tensor *win = cols ? flux_permute_to(flux_reshape_to(cols, flux__shape(split, 2 * nd + 2)), flux__shape(order, 2 * nd + 2)) : NULL;
    flux_tensor *y = win ? flux__spread(win, &image, 0, step, 0, true) : NULL;
    for (int i = 0; i < nd && y; i++) y = flux_slice(y, i, w.lo[i], shape[i] - w.hi[i]);
    return flux__reveal(h, y);
}

/* The window view of a pooling's input, padded with value; *mask names the window's dims. */
static flux_tensor *flux__pool_windows(const char *call, flux_pool_opts *o, double value, flux__window *w, unsigned *mask) {
    flux_tensor *x = o->x;
    if (!flux__check_operands(call, 1, &x)) return NULL;
    memset(w, 0, sizeof *w);
    w->nd = x->ndim - 2;
    if (w->nd < 1 || w->nd > 3 || o->window.ndim == 0) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("%s: x is %s, window has %d dims; needs 1 to 3 spatial dims and two more", call, t.s, o->window.ndim);
    }
    flux_shape none = flux__shape(NULL, 0);
    if (!flux__per_dim(call, "window", &o->window, w->nd, 1, 1, w->size) || !flux__paddings(call, &o->pad, w) ||
        !flux__per_dim(call, "stride", o->stride.ndim ? &o->stride : &o->window, w->nd, 1, 1, w->stride) ||
        !flux__per_dim(call, "dilation", &none, w->nd, 1, 1, w->dilation) || !flux__window_out(call, x, w)) return NULL;
    *mask = (1u << w->nd) - 1;
    return flux__windows(flux__pad_window(x, w, value), w);
}

static flux_tensor *flux__unwindow(flux_tensor *y, const flux__window *w) {
    flux_shape s = flux__shape(NULL, 0);
    for (int i = w->nd; y && i < y->ndim; i++) s.dim[s.ndim++] = y->dim[i];
    return y ? flux_reshape_to(y, s) : NULL;
}

static flux_tensor *flux__pool_reduce(const char *call, flux_pool_opts *o, double pad, int red, double power) {
    flux__window w;
    unsigned mask = 0;
    int h = flux__hide();
    flux_tensor *win = flux__pool_windows(call, o, pad, &w, &mask);
    if (win && !flux__dtypes[win->dtype].real) win = flux__cast(win, FLUX_F32);
    if (win && power > 0) win = flux_pow(win, power);
    flux_tensor *y = win ? flux__reduce_node(win, red, mask, win->ndim) : NULL;
    if (y && power > 0) y = flux_pow(y, 1 / power);
    else if (y && red == FLUX__RED_SUM) y = flux_mul(y, 1.0 / (double)flux__product(w.size, w.nd));
    return flux__reveal(h, flux__unwindow(y, &w));
}

FLUX_DEF flux_tensor *flux_maxpool_with(flux_pool_opts o) { return flux__pool_reduce("maxpool", &o, -HUGE_VAL, FLUX__RED_MAX, 0); }
FLUX_DEF flux_tensor *flux_meanpool_with(flux_pool_opts o) { return flux__pool_reduce("meanpool", &o, 0, FLUX__RED_SUM, 0); }

FLUX_DEF flux_tensor *flux_lpnormpool_with(flux_pool_opts o) {
    double p = o.p > 0 || o.p < 0 || o.p != o.p ? o.p : 2;
    if (!(p > 0)) return (flux_tensor *)flux__fail("lpnormpool: p is %g", p);
    return flux__pool_reduce("lpnormpool", &o, 0, FLUX__RED_SUM, p);
}

/* ------------------------------------------------------------------ 7. Gradients
   The reverse walk: from the loss back along the edges, each operation's gradient written with operations, so that the
   result is a graph like any other (and has a gradient itself). Contributions to one tensor are summed in the order in
   which the graph was recorded, which makes the result reproducible. */

struct flux_grads {
    flux__head head;
    flux_tensor *loss;
    int n;
    bool used;                            /* up, by flux_update */
    flux_tensor **of, **grad;             /* the tensors asked for, and their gradients (NULL: none) */
};

static void flux__grads_free(flux_grads *g) {
    for (int i = 0; i < g->n; i++) {
        flux_release(g->of[i]);
        if (g->grad) flux_release(g->grad[i]);
    }
    flux_release(g->loss);
    if (g->of) FLUX_FREE(g->of);
    if (g->grad) FLUX_FREE(g->grad);
    FLUX_FREE(g);
}

static flux_tensor *flux__grad_pow_a(flux_tensor *g, flux_tensor *a, flux_tensor *b) {
    return flux_mul(g, flux_mul(b, flux_pow(a, flux_sub(b, 1.0))));
}

/* y log a, and 0 where a is 0 (NNlib's rule for 0^b). */
static flux_tensor *flux__grad_pow_b(flux_tensor *g, flux_tensor *a, flux_tensor *b, flux_tensor *y) {
    (void)b;
    return flux_mul(g, flux_where(flux_gt(a, 0.0), flux_mul(y, flux_log(a)), 0.0));
}

/* One row of the table: the gradients by a, b, c that are needed (bits of need), at the result's shape. */
static void flux__row_gradient(flux_tensor *y, flux_tensor *g, unsigned need, flux_tensor **out) {
    flux_tensor *a = y->in[0], *b = y->nin > 1 ? y->in[1] : NULL, *c = y->nin > 2 ? y->in[2] : NULL;
    (void)a, (void)b, (void)c;
    switch (y->op) {
#define FLUX__GRADIENT_CASE(NAME, name, n, dt, formula, ga, gb, gc) \
    case FLUX__OP_##NAME:                                           \
        if (need & 1) out[0] = ga;                                  \
        if (need & 2) out[1] = gb;                                  \
        if (need & 4) out[2] = gc;                                  \
        break;
        FLUX__ELEMENTWISE(FLUX__GRADIENT_CASE)
    default: break;
    }
}

/* g summed over the dims along which x was stretched to g's shape. */
static flux_tensor *flux__unbroadcast(flux_tensor *g, const flux_tensor *x) {
    unsigned mask = 0;
    if (!g) return NULL;
    for (int d = 0; d < g->ndim; d++)
        if ((d < x->ndim ? x->dim[d] : 1) != g->dim[d]) mask |= 1u << d;
    if (!mask && g->ndim == x->ndim) return g;
    if (!mask) return flux_reshape_to(g, flux__dims(x));
    return flux__reduce_node(g, FLUX__RED_SUM, mask, x->ndim);
}

static flux_tensor *flux__matrix_of(flux_tensor *x, int64_t rows, int64_t cols) {
    flux_shape s = flux__dims(x);
    if (s.ndim >= 2) return x;
    s.ndim = 2, s.dim[0] = rows, s.dim[1] = cols;
    return flux_reshape_to(x, s);
}

static flux_tensor *flux__swap01(flux_tensor *x) { return x ? flux_transpose(x) : NULL; }

/* Back to x's shape: batch dims that were stretched are summed, vectors restored. */
static flux_tensor *flux__fit(flux_tensor *g, const flux_tensor *x) {
    unsigned mask = 0;
    if (!g) return NULL;
    for (int d = 2; d < g->ndim; d++)
        if ((d < x->ndim ? x->dim[d] : 1) != g->dim[d]) mask |= 1u << d;
    if (mask) g = flux__reduce_node(g, FLUX__RED_SUM, mask, g->ndim);
    return g && !flux__same_dims(g, x) ? flux_reshape_to(g, flux__dims(x)) : g;
}

static void flux__matmul_gradient(flux_tensor *y, flux_tensor *g, unsigned need, flux_tensor **out) {
    int64_t m = y->arg.i[0], n = y->arg.i[1], k = y->arg.i[2];
    flux_tensor *a = flux__matrix_of(y->in[0], m, k), *b = flux__matrix_of(y->in[1], k, n);
    g = flux__matrix_of(g, m, n);
    if (need & 1) out[0] = flux__fit(flux_matmul(g, flux__swap01(b)), y->in[0]);
    if (need & 2) out[1] = flux__fit(flux_matmul(flux__swap01(a), g), y->in[1]);
}

/* Each element's number along the dims of mask, counted as ARGREDUCE counts. */
static flux_tensor *flux__iota_over(const flux_tensor *x, unsigned mask) {
    flux_tensor *sum = NULL;
    int64_t step = 1;
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1)) continue;
        flux_tensor *i = flux__iota(x->dim[d], d);
        if (step != 1) i = flux_mul(i, (double)step);
        sum = sum ? flux_add(sum, i) : i;
        step *= x->dim[d];
    }
    return sum;
}

/* A result with all of x's dims, those that were reduced being 1. */
static flux_tensor *flux__keepdims(flux_tensor *r, const flux_tensor *x, unsigned mask) {
    flux_shape s = flux__dims(x);
    for (int d = 0; d < s.ndim; d++)
        if (mask >> d & 1) s.dim[d] = 1;
    return r && r->ndim != s.ndim ? flux_reshape_to(r, s) : r;
}

/* Of a product: y/x, which zeros among the factors need told apart (one zero: the product of the others; more: 0). */
static flux_tensor *flux__prod_gradient(flux_tensor *x, flux_tensor *g, unsigned mask) {
    flux_tensor *zero = flux_eq(x, 0.0), *others = flux_where(zero, 1.0, x);
    flux_tensor *p = flux__reduce_node(others, FLUX__RED_PROD, mask, x->ndim);
    flux_tensor *zeros = flux__reduce_node(flux_to_dtype(zero, (flux_dtype)x->dtype), FLUX__RED_SUM, mask, x->ndim);
    flux_tensor *none = flux_where(flux_eq(zeros, 0.0), flux_div(p, others), 0.0);
    return flux_mul(g, flux_where(zero, flux_where(flux_eq(zeros, 1.0), p, 0.0), none));
}

static flux_tensor *flux__reduce_gradient(flux_tensor *y, flux_tensor *g) {
    flux_tensor *x = y->in[0];
    unsigned mask = (unsigned)y->arg.i[1];
    g = flux__keepdims(g, x, mask);
    if (!g) return NULL;
    if (y->arg.i[0] == FLUX__RED_SUM) return flux_broadcast_to_shape(g, flux__dims(x));
    if (y->arg.i[0] == FLUX__RED_PROD) return flux__prod_gradient(x, g, mask);
    flux_tensor *win = flux__argreduce_node(x, y->arg.i[0] == FLUX__RED_MAX, mask, x->ndim);
    flux_tensor *i = mask ? flux__iota_over(x, mask) : NULL;
    return !i ? g : flux_where(flux_eq(i, win), g, 0.0);
}

static flux_tensor *flux__strided_gradient(flux_tensor *y, flux_tensor *g) {
    flux_shape s = flux__dims(y->in[0]);
    int64_t step[FLUX_MAX_DIMS], reach[FLUX_MAX_DIMS];
    bool meet = false;
    int n = 0;
    for (int d = 0; d < y->ndim; d++) step[d] = y->arg.i[d];
    /* Positions may meet unless each dim's step passes over all that the smaller steps reach. */
    int64_t covered = 0;
    for (int d = 0; d < y->ndim; d++) reach[d] = 0;
    for (; n < y->ndim; n++) {
        int least = -1;
        for (int d = 0; d < y->ndim; d++) {
            int64_t a = step[d] < 0 ? -step[d] : step[d];
            if (!reach[d] && (least < 0 || a < (step[least] < 0 ? -step[least] : step[least]))) least = d;
        }
        int64_t a = step[least] < 0 ? -step[least] : step[least];
        if (y->dim[least] > 1 && a <= covered) meet = true;
        covered += (y->dim[least] - 1) * a;
        reach[least] = 1;
    }
    return flux__spread(g, &s, y->rel, step, 0, meet);
}

static flux_tensor *flux__spread_gradient(flux_tensor *y, flux_tensor *g) {
    flux_shape s = flux__dims(y->in[0]), order = flux__dims(y);
    int64_t offset, have[FLUX_MAX_DIMS];
    flux_tensor *base = flux__layout(g, &offset, have);
    if (!flux__in_order(&order, have) || offset != 0) {
        g = flux_copy(g);
        base = g;
    }
    return g ? flux__strided(g, &s, y->rel, y->stride, y->rel, y->stride, base) : NULL;
}

static void flux__cat_gradient(flux_tensor *y, flux_tensor *g, const bool *need, flux_tensor **out) {
    int dim = (int)y->arg.i[0];
    int64_t at = 0;
    for (int k = 0; k < y->nin; k++) {
        flux_tensor *x = y->in[k];
        int64_t n = dim < x->ndim ? x->dim[dim] : 1;
        flux_tensor *part = need[k] ? flux_slice(g, dim, at, at + n) : NULL;
        out[k] = part && !flux__same_dims(part, x) ? flux_reshape_to(part, flux__dims(x)) : part;
        at += n;
    }
}

static flux_tensor *flux__unpermute(flux_tensor *y, flux_tensor *g) {
    int64_t order[FLUX_MAX_DIMS];
    for (int i = 0; i < y->ndim; i++) order[y->arg.i[i]] = i;
    return flux_permute_to(g, flux__shape(order, y->ndim));
}

static void flux__index_gradient(flux_tensor *y, flux_tensor *g, const bool *need, flux_tensor **out) {
    int dim = (int)y->arg.i[0];
    flux_tensor *x = y->in[0];
    if (y->op == FLUX__SCATTER) {
        out[0] = g;
        out[2] = need[2] ? flux_gather(g, dim, y->in[1]) : NULL;
    } else out[0] = flux_scatter_add(flux_full_shape(flux__dims(x), 0, (flux_dtype)x->dtype), dim, y->in[1], g);
}

/* The gradients of y's operands, given y's own. out has room for all operands and starts as NULLs. */
static void flux__gradient_of(flux_tensor *y, flux_tensor *g, const bool *need, flux_tensor **out) {
    unsigned bits = (need[0] ? 1u : 0) | (y->nin > 1 && need[1] ? 2u : 0) | (y->nin > 2 && need[2] ? 4u : 0);
    if (y->op < FLUX__ELEMENTWISE_COUNT) {
        flux__row_gradient(y, g, bits, out);
        for (int i = 0; i < y->nin; i++) out[i] = flux__unbroadcast(out[i], y->in[i]);
        return;
    }
    switch (y->op) {
    case FLUX__CAST: out[0] = flux_to_dtype(g, (flux_dtype)y->in[0]->dtype); break;
    case FLUX__COPY: out[0] = g; break;
    case FLUX__REDUCE: out[0] = flux__reduce_gradient(y, g); break;
    case FLUX__RESHAPE: out[0] = flux_reshape_to(g, flux__dims(y->in[0])); break;
    case FLUX__PERMUTE: out[0] = flux__unpermute(y, g); break;
    case FLUX__STRIDED: out[0] = flux__strided_gradient(y, g); break;
    case FLUX__BROADCAST: out[0] = flux__unbroadcast(g, y->in[0]); break;
    case FLUX__MATMUL: flux__matmul_gradient(y, g, bits, out); break;
    case FLUX__GATHER:
    case FLUX__SCATTER: flux__index_gradient(y, g, need, out); break;
    case FLUX__SPREAD: out[0] = flux__spread_gradient(y, g); break;
    case FLUX__CAT: flux__cat_gradient(y, g, need, out); break;
    case FLUX__MOVE: out[0] = flux__move(g, y->in[0]->device); break;
    default: break;                       /* detach, argmax, random, ...: no gradient */
    }
}

/* ---------------- the walk */

/* A map from tensors to numbers that does not write to them: finished ones may be shared between threads. */
typedef struct flux__map { flux_tensor **key; int *value; int n, room; } flux__map;

typedef struct flux__walk {
    flux_tensor **node, **grad;           /* in the order of recording: operands before results */
    bool *wanted;                         /* depends on something asked for */
    int n, room;
    flux_tensor **stack;
    int top, stack_room;
    flux__map shared;
    uint32_t id;
    bool whole;                           /* also what no gradient passes: behind nodes of FLUX_NOGRAD */
} flux__walk;

static int *flux__map_slot(const flux__map *m, const flux_tensor *t) {
    uint64_t hash = ((uint64_t)(uintptr_t)t >> 4) * 0x9e3779b97f4a7c15u;
    int i = (int)(hash >> 40) & (m->room - 1);
    while (m->key[i] && m->key[i] != t) i = (i + 1) & (m->room - 1);
    return &m->value[i];
}

static bool flux__map_grow(flux__map *m) {
    flux__map big;
    if (m->n * 2 < m->room) return true;
    big.room = m->room ? m->room * 2 : 64;
    big.n = m->n;
    big.key = (flux_tensor **)flux__zalloc((size_t)big.room * sizeof *big.key);
    big.value = (int *)flux__malloc((size_t)big.room * sizeof *big.value);
    if (!big.key || !big.value) {
        if (big.key) FLUX_FREE(big.key);
        if (big.value) FLUX_FREE(big.value);
        return false;
    }
    for (int i = 0; i < m->room; i++)
        if (m->key[i]) {
            int *slot = flux__map_slot(&big, m->key[i]);
            *slot = m->value[i];
            big.key[slot - big.value] = m->key[i];
        }
    if (m->key) FLUX_FREE(m->key), FLUX_FREE(m->value);
    *m = big;
    return true;
}

/* The number of t, or -1 when it has none. */
static int flux__map_get(const flux__map *m, const flux_tensor *t) {
    if (!m->room) return -1;
    int *slot = flux__map_slot(m, t);
    return m->key[slot - m->value] ? *slot : -1;
}

static bool flux__map_put(flux__map *m, flux_tensor *t, int value) {
    if (!flux__map_grow(m)) return false;
    int *slot = flux__map_slot(m, t);
    if (!m->key[slot - m->value]) m->n++;
    m->key[slot - m->value] = t;
    *slot = value;
    return true;
}

static void flux__map_free(flux__map *m) {
    if (m->key) FLUX_FREE(m->key);
    if (m->value) FLUX_FREE(m->value);
}

/* An unfinished node belongs to its thread, so that its number can stand in it. */
static bool flux__unshared(const flux_tensor *t) {
    const flux_tensor *b = FLUX__IS_VIEW(t) ? t->base : t;
    return !b->buf && b->op != FLUX__LEAF;
}

static int flux__walk_get(const flux__walk *w, const flux_tensor *t) {
    if (flux__unshared(t)) return t->walk_mark == w->id ? t->walk_index : -1;
    return flux__map_get(&w->shared, t);
}

static bool flux__walk_put(flux__walk *w, flux_tensor *t, int number) {
    if (!flux__unshared(t)) return flux__map_put(&w->shared, t, number);
    t->walk_mark = w->id;
    t->walk_index = number;
    return true;
}

static bool flux__walk_start(flux__walk *w) {
    flux__thread *t = flux__self();
    memset(w, 0, sizeof *w);
    if (!t) return false;
    if (++t->walk == 0) ++t->walk;
    w->id = t->walk;
    return true;
}

static bool flux__walk_push(flux__walk *w, flux_tensor *t) {
    flux_tensor **s = (flux_tensor **)flux__grow(w->stack, &w->stack_room, w->top + 1, sizeof *s);
    if (!s) return false;
    w->stack = s;
    w->stack[w->top++] = t;
    return true;
}

/* How many operands a gradient passes on to: none from what FLUX_NOGRAD recorded, computed or not. */
static int flux__behind(const flux_tensor *t) { return t->flags & FLUX__FIXED ? 0 : t->nin; }

/* All that the loss depends on, operands first (depth first, without recursion); what a gradient passes only, unless the
   walk is of the whole. */
static bool flux__walk_collect(flux__walk *w, flux_tensor *loss) {
    if (!flux__walk_push(w, loss)) return false;
    while (w->top) {
        flux_tensor *t = w->stack[w->top - 1];
        if (flux__walk_get(w, t) >= 0) {
            w->top--;
            continue;
        }
        int before = w->top;
        for (int i = (w->whole ? t->nin : flux__behind(t)) - 1; i >= 0; i--)
            if (flux__walk_get(w, t->in[i]) < 0 && !flux__walk_push(w, t->in[i])) return false;
        if (w->top > before) continue;    /* its operands come first */
        w->top--;
        flux_tensor **node = (flux_tensor **)flux__grow(w->node, &w->room, w->n + 1, sizeof *node);
        if (!node) return false;
        w->node = node;
        if (!flux__walk_put(w, t, w->n)) return false;
        w->node[w->n++] = t;
    }
    return true;
}

static void flux__mark_wanted(flux__walk *w, const flux_grads *g) {
    for (int i = 0; i < g->n; i++) {
        int k = flux__walk_get(w, g->of[i]);
        if (k >= 0) w->wanted[k] = true;
    }
    for (int k = 0; k < w->n; k++)
        for (int i = 0; i < flux__behind(w->node[k]) && !w->wanted[k]; i++)
            w->wanted[k] = w->wanted[flux__walk_get(w, w->node[k]->in[i])];
}

static bool flux__walk_back(flux__walk *w, int k) {
    flux_tensor *y = w->node[k], *out[255];
    bool need[255];
    if (y->op == FLUX__TUPLE || !flux__behind(y)) return true;
    if (!flux__dtypes[y->dtype].real) return true;
    for (int i = 0; i < y->nin; i++) {
        out[i] = NULL;
        need[i] = w->wanted[flux__walk_get(w, y->in[i])] && flux__dtypes[y->in[i]->dtype].real;
    }
    for (int i = y->nin; i < 3; i++) out[i] = NULL, need[i] = false;
    flux__gradient_of(y, w->grad[k], need, out);
    for (int i = 0; i < y->nin; i++) {
        if (!need[i] || !out[i]) continue;
        int at = flux__walk_get(w, y->in[i]);
        w->grad[at] = w->grad[at] ? flux_add(w->grad[at], out[i]) : out[i];
    }
    return !flux_failed();
}

static void flux__walk_free(flux__walk *w) {
    if (w->node) FLUX_FREE(w->node);
    if (w->grad) FLUX_FREE(w->grad);
    if (w->wanted) FLUX_FREE(w->wanted);
    if (w->stack) FLUX_FREE(w->stack);
    flux__map_free(&w->shared);
}

static bool flux__backward(flux_grads *g) {
    flux__walk w;
    bool ok = flux__walk_start(&w) && flux__walk_collect(&w, g->loss);
    if (ok) {
        w.grad = (flux_tensor **)flux__zalloc((size_t)w.n * sizeof *w.grad);
        w.wanted = (bool *)flux__zalloc((size_t)w.n);
        ok = w.grad && w.wanted;
    }
    if (ok) {
        flux__mark_wanted(&w, g);
        w.grad[w.n - 1] = flux_full_shape(flux__dims(g->loss), 1, (flux_dtype)g->loss->dtype);
        for (int k = w.n - 1; k >= 0 && ok; k--)
            if (w.grad[k] && w.wanted[k]) ok = flux__walk_back(&w, k);
    }
    for (int i = 0; i < g->n && ok; i++) {
        int k = flux__walk_get(&w, g->of[i]);
        flux_tensor *d = k < 0 ? NULL : w.grad[k];
        g->grad[i] = (flux_tensor *)flux_retain(d);
    }
    flux__walk_free(&w);
    return ok && !flux_failed();
}

/* ---------------- what is asked for: tensors, and models' trained tensors */

typedef struct flux__wanted { flux_grads *g; int room; bool ok; } flux__wanted;

static void flux__want(flux__wanted *w, flux_tensor *t) {
    for (int i = 0; i < w->g->n; i++)
        if (w->g->of[i] == t) return;
    flux_tensor **of = (flux_tensor **)flux__grow(w->g->of, &w->room, w->g->n + 1, sizeof *of);
    if (!of) {
        w->ok = false;
        return;
    }
    w->g->of = of;
    of[w->g->n++] = (flux_tensor *)flux_retain(t);
}

static void flux__want_visit(flux_tensor *x, const char *path, bool trained, void *user) {
    (void)path;
    if (trained) flux__want((flux__wanted *)user, x);
}

static bool flux__check_loss(flux_tensor *loss) {
    if (!flux__check_operands("gradient", 1, &loss)) return false;
    if (flux__size(loss) != 1 || !flux__dtypes[loss->dtype].real) {
        flux__text t = flux__describe(loss);
        flux__fail("gradient: the loss must be one real number, not %s", t.s);
    } else if (loss->flags & FLUX__CONSUMED)
        flux__fail("gradient: this loss's graph was used up by flux_update; record the loss again");
    return !flux_failed();
}

FLUX_DEF flux_grads *flux_gradient_of(flux_tensor *loss, int n, const void *const *what) {
    if (!flux__check_loss(loss)) return NULL;
    flux_grads *g = (flux_grads *)flux__zalloc(sizeof *g);
    if (!g) return NULL;
    g->head.kind = FLUX__GRADS;
    g->head.refs = 1;
    g->loss = (flux_tensor *)flux_retain(loss);
    flux__wanted w;
    w.g = g, w.room = 0, w.ok = true;
    for (int i = 0; i < n; i++) {
        flux__head *h = (flux__head *)(intptr_t)what[i];
        if (!h) flux__null("gradient", "of the list", h), w.ok = false;
        else if (h->kind == FLUX__TENSOR) flux__want(&w, (flux_tensor *)h);
        else if (h->kind == FLUX__LAYER) flux_visit((flux_layer *)h, flux__want_visit, &w);
        else flux__fail("gradient: by models and tensors only"), w.ok = false;
    }
    g->grad = (flux_tensor **)flux__zalloc((size_t)(g->n + 1) * sizeof *g->grad);
    int depth = flux__hide();
    bool ok = w.ok && g->grad && flux__backward(g);
    flux__thread *t = flux__self();
    if (t) flux__scope_close_to(t, depth);
    if (!ok) {
        flux_release(g);
        return NULL;
    }
    return (flux_grads *)flux__own(g);
}

FLUX_DEF flux_tensor *flux_grad(flux_grads *g, flux_tensor *x) {
    if (!g || !x) return (flux_tensor *)flux__null("grad", g ? "x" : "g", g ? (void *)x : (void *)g);
    if (g->used) return (flux_tensor *)flux__fail("grad: these gradients were used up by flux_update; look at them before");
    for (int i = 0; i < g->n; i++)
        if (g->of[i] == x) return g->grad[i] ? (flux_tensor *)flux__own(flux_retain(g->grad[i])) : NULL;
    return NULL;
}

FLUX_DEF flux_tensor *flux_grad_param(flux_grads *g, flux_layer *m, const char *path) {
    flux_tensor *x = flux_param(m, path);
    return x && g ? flux_grad(g, x) : (flux_tensor *)flux__null("grad_param", "g", g);
}

FLUX_DEF flux_tensor *flux_withgradient(flux_tensor *(*fn)(flux_layer *m, void *user), void *user, flux_layer *m, flux_grads **g) {
    if (g) *g = NULL;
    if (!m || !fn || !g) return (flux_tensor *)flux__null("withgradient", !m ? "m" : !fn ? "fn" : "g", NULL);
    flux_trainmode(m, true);
    flux_tensor *loss = fn(m, user);
    if (loss) *g = flux_gradient(loss, m);
    return *g ? loss : NULL;
}

/* ------------------------------------------------------------------ 8. The schedule
   Somebody looks at tensors: their unfinished graph becomes a plan, a list of kernels in order. A kernel is one pass over
   an index space `full`, some of whose dims (mask `reduced`) are summed or otherwise reduced away, running a small
   program of values. A value is inner (one for each point of the space) or outer (one for each point of what is left when
   the reduced dims are gone); a reduction turns an inner value into an outer one, and outer values may be used by inner
   ones again, so that softmax, its gradient and what surrounds them are one kernel. A matrix product is a kernel whose
   program is its epilogue.

   Nodes are grouped from results to operands: a node joins the group of the nodes that use it, if it is used point by
   point there and no circle comes of it. What other groups use is stored as well. Rejected: grouping from operands to
   results, which computes cheap masks early and then has to store them.

   The plan depends on shapes, dtypes and connections, not on addresses, numbers or seeds, so it is kept under the graph's
   description (the key) and found again at the next step. */

enum { FLUX__K_FUSED, FLUX__K_MATMUL, FLUX__K_GATHER, FLUX__K_SCATTER, FLUX__K_SPREAD, FLUX__K_CAT, FLUX__K_MOVE };
enum flux__value_kind { FLUX__V_LOAD, FLUX__V_NUMBER, FLUX__V_IOTA, FLUX__V_RANDOM, FLUX__V_OP, FLUX__V_CONVERT, FLUX__V_ROUND,
                        FLUX__V_WRAP, FLUX__V_REDUCE, FLUX__V_ARGREDUCE, FLUX__V_PRODUCT };

typedef struct flux__operand {            /* a tensor that a kernel reads */
    int src;                              /* its slot: leaves first, then the plan's nodes */
    uint8_t dtype;
    int64_t offset, stride[FLUX_MAX_DIMS];/* over the kernel's dims; of a whole-tensor kernel, over its own */
    flux_shape shape;                     /* its own */
} flux__operand;

typedef struct flux__value {              /* a line of a kernel's program */
    uint8_t kind, op, cls, dtype;         /* op: of the table, or the reduction; dtype: as stored */
    bool outer;
    int16_t a, b, c;                      /* values used, -1: none */
    int16_t operand;                      /* LOAD, IOTA, RANDOM: which operand (for its strides) */
    int16_t phase;                        /* how many reductions must be complete before it */
    int node;                             /* NUMBER, RANDOM: whose arguments; REDUCE: whose mask */
    int out;                              /* slot that it is stored to, or -1 */
} flux__value;

typedef struct flux__kernel {
    int kind, node;                       /* node: the plan's node that gave it its kind */
    int64_t full[FLUX_MAX_DIMS];          /* all 8: 1 past the last */
    unsigned reduced;
    flux__value *value;
    int nvalue, value_room;
    flux__operand *operand;
    int noperand, operand_room;
    int *outs, nouts;                     /* nodes that it stores */
    int *frees, nfrees;                   /* nodes that nobody reads after it */
    int64_t mnk[3];
    void *ready;                          /* what the back end made of it */
} flux__kernel;

typedef struct flux__slot_info { flux_device device; int64_t bytes; int out_kernel, last_kernel; int donor; bool keep, stored; } flux__slot_info;

typedef struct flux__plan {
    uint64_t hash;
    int64_t *key;
    int key_words;
    int nleaf, nnode, nkernel;
    flux__kernel *kernel;
    flux__slot_info *slot;                /* of the nodes, by number */
    struct flux__plan *next;              /* in its bucket */
    uint32_t used;                        /* when last, for throwing old ones away */
} flux__plan;

#define FLUX__BUCKETS 256
typedef struct flux__plans { flux__plan *bucket[FLUX__BUCKETS]; int count; uint32_t clock; } flux__plans;

static void flux__load(int cls, void *dst, int dtype, const void *src, int64_t stride, int64_t n);

/* ---------------- describing the graph: one walk gives the nodes in order and the plan's key */

enum { FLUX__ROOT = 1, FLUX__KEEP = 2, FLUX__SEEN = 4 };   /* must be stored; stays after the plan has run; can be looked at */

typedef struct flux__graph {
    flux_tensor **node, **leaf;
    uint8_t *flag;                        /* of nodes */
    int *donor;                           /* of nodes: the leaf whose memory it may take over, or -1 */
    int nnode, node_room, flag_room, donor_room, nleaf, leaf_room;
    int64_t *key;
    int nkey, key_room;
    flux__map leaves;
    flux_tensor **stack;
    int top, stack_room;
    uint32_t walk;
    bool cut;                             /* nodes are cut off from their operands afterwards, hidden ones not kept */
    bool ok;
} flux__graph;

static bool flux__finished(const flux_tensor *t) { return t->buf || (t->op == FLUX__LEAF); }
static flux_tensor *flux__base(flux_tensor *t) { return FLUX__IS_VIEW(t) ? t->base : t; }

static bool flux__is_map(const flux_tensor *t) {
    return t->op < FLUX__ELEMENTWISE_COUNT || t->op == FLUX__CAST || t->op == FLUX__COPY || t->op == FLUX__IOTA ||
           t->op == FLUX__RANDOM || t->op == FLUX__NUMBER;
}
static bool flux__is_reduce(const flux_tensor *t) { return t->op == FLUX__REDUCE || t->op == FLUX__ARGREDUCE; }

static void flux__graph_push(flux__graph *g, flux_tensor *t) {
    flux_tensor **s = (flux_tensor **)flux__grow(g->stack, &g->stack_room, g->top + 1, sizeof *s);
    if (!s) g->ok = false;
    else g->stack = s, g->stack[g->top++] = t;
}

static void flux__graph_leaf(flux__graph *g, flux_tensor *t) {
    if (flux__map_get(&g->leaves, t) >= 0) return;
    flux_tensor **leaf = (flux_tensor **)flux__grow(g->leaf, &g->leaf_room, g->nleaf + 1, sizeof *leaf);
    if (leaf) g->leaf = leaf;
    if (leaf) g->leaf = leaf;
    if (!leaf || !flux__map_put(&g->leaves, t, g->nleaf)) {
        g->ok = false;
        return;
    }
    leaf[g->nleaf++] = t;
    if (!t->buf) {
        flux__text text = flux__describe(t);
        flux__fail(t->flags & FLUX__CONSUMED ? "a tensor's memory was taken over by flux_update; keep a copy with flux_copy (%s)"
                                             : "a placeholder (%s) has no value", text.s);
        g->ok = false;
    }
}

static void flux__graph_add(flux__graph *g, flux_tensor *t) {
    flux_tensor **node = (flux_tensor **)flux__grow(g->node, &g->node_room, g->nnode + 1, sizeof *node);
    if (node) g->node = node;
    uint8_t *flag = (uint8_t *)flux__grow(g->flag, &g->flag_room, g->nnode + 1, 1);
    if (flag) g->flag = flag;
    int *donor = (int *)flux__grow(g->donor, &g->donor_room, g->nnode + 1, sizeof *donor);
    if (donor) g->donor = donor;
    if (!node || !flag || !donor) {
        g->ok = false;
        return;
    }
    t->mark = g->walk;
    t->index = g->nnode;
    flag[g->nnode] = 0;
    donor[g->nnode] = -1;
    node[g->nnode++] = t;
}

/* Depth first from t over what is unfinished; operands get lower numbers than results. */
static void flux__graph_visit(flux__graph *g, flux_tensor *t) {
    flux__graph_push(g, flux__base(t));
    while (g->top && g->ok) {
        t = g->stack[g->top - 1];
        if (flux__finished(t) || t->mark == g->walk) {
            if (flux__finished(t)) flux__graph_leaf(g, t);
            g->top--;
            continue;
        }
        int before = g->top;
        for (int i = t->nin - 1; i >= 0; i--) {
            flux_tensor *x = flux__base(t->in[i]);
            if (x->op == FLUX__NUMBER && !x->buf && (flux__is_map(t) || flux__is_reduce(t))) continue;
            if (flux__finished(x)) flux__graph_leaf(g, x);
            else if (x->mark != g->walk) flux__graph_push(g, x);
        }
        if (g->top > before) continue;
        g->top--;
        flux__graph_add(g, t);
    }
}

/* Room for a node of so many operands; what is added for it then needs no check. */
static bool flux__key_room(flux__graph *g, int operands) {
    int64_t *key = (int64_t *)flux__grow(g->key, &g->key_room, g->nkey + 32 + 20 * operands, sizeof *key);
    if (key) g->key = key;
    else g->ok = false;
    return key != NULL;
}

static void flux__key_word(flux__graph *g, int64_t w) { g->key[g->nkey++] = w; }

static void flux__key_dims(flux__graph *g, const int64_t *v, int n) {
    for (int i = 0; i < n; i++) flux__key_word(g, v[i]);
}

/* An operand in the key: what it is, its number, and of a view how it looks at its base. */
static void flux__key_operand(flux__graph *g, flux_tensor *x) {
    flux_tensor *b = flux__base(x);
    bool number = b->op == FLUX__NUMBER && !b->buf && b->mark != g->walk;
    int64_t id = number ? 0 : flux__finished(b) ? flux__map_get(&g->leaves, b) : b->index;
    int64_t kind = number ? 2 : flux__finished(b) ? 0 : 1;
    flux__key_word(g, kind | (int64_t)x->dtype << 4 | (int64_t)x->ndim << 8 | (int64_t)(x != b) << 12 | id << 16);
    flux__key_dims(g, x->dim, x->ndim);
    if (x == b) return;
    flux__key_word(g, x->offset);
    flux__key_dims(g, x->stride, x->ndim);
}

static int64_t flux__device_word(flux_device d) { return (int64_t)d.backend << 56 | (int64_t)d.id << 48; }

static void flux__key_node(flux__graph *g, int i) {
    flux_tensor *t = g->node[i];
    if (!flux__key_room(g, t->nin)) return;
    flux__key_word(g, t->op | (int64_t)t->dtype << 16 | (int64_t)t->ndim << 20 | (int64_t)t->nin << 24 |
                          (int64_t)(g->flag[i] & ~FLUX__SEEN) << 32 | flux__device_word(t->device));
    flux__key_word(g, g->donor[i]);
    flux__key_dims(g, t->dim, t->ndim);
    for (int k = 0; k < t->nin; k++) flux__key_operand(g, t->in[k]);
    if (t->op == FLUX__REDUCE || t->op == FLUX__ARGREDUCE) flux__key_dims(g, t->arg.i, 2);
    if (t->op == FLUX__GATHER || t->op == FLUX__SCATTER || t->op == FLUX__CAT) flux__key_word(g, t->arg.i[0]);
    if (t->op == FLUX__RANDOM) flux__key_word(g, t->arg.i[2]);
    if (t->op == FLUX__SPREAD) {
        flux__key_dims(g, t->arg.i, 2);
        flux__key_word(g, t->rel);
        flux__key_dims(g, t->stride, FLUX_MAX_DIMS);
    }
}

static void flux__graph_key(flux__graph *g) {
    if (!flux__key_room(g, g->nleaf)) return;
    flux__key_word(g, (int64_t)g->nleaf << 32 | g->nnode);
    for (int i = 0; i < g->nleaf; i++) flux__key_word(g, g->leaf[i]->dtype | flux__device_word(g->leaf[i]->device));
    for (int i = 0; i < g->nnode; i++) flux__key_node(g, i);
}

static void flux__graph_free(flux__graph *g) {
    if (g->node) FLUX_FREE(g->node);
    if (g->flag) FLUX_FREE(g->flag);
    if (g->donor) FLUX_FREE(g->donor);
    if (g->leaf) FLUX_FREE(g->leaf);
    if (g->key) FLUX_FREE(g->key);
    if (g->stack) FLUX_FREE(g->stack);
    flux__map_free(&g->leaves);
}

/* ---------------- grouping nodes into kernels */

typedef struct flux__group {
    int kind, product;                    /* product: the node of the matrix product, or -1 */
    int64_t full[FLUX_MAX_DIMS];
    unsigned reduced;
    bool reduces;                         /* has a reduction already */
    int members, last;                    /* how many nodes; the highest number */
} flux__group;

typedef struct flux__planner {
    flux__graph *g;
    int n;                                /* nodes */
    int *group_of;                        /* by node */
    flux__group *group;
    int ngroup;
    uint8_t *needs;                       /* ngroup x ngroup: group a uses what group b makes */
    int *use, *use_start;                 /* uses of node i: use[use_start[i] ... use_start[i+1]-1] = node * 256 + operand */
} flux__planner;

static void flux__dims8(const flux_tensor *t, int64_t *out) {
    for (int d = 0; d < FLUX_MAX_DIMS; d++) out[d] = d < t->ndim ? t->dim[d] : 1;
}

static bool flux__same8(const int64_t *a, const int64_t *b) { return memcmp(a, b, FLUX_MAX_DIMS * sizeof *a) == 0; }

/* The strides by which a use reads its operand over the user's points; false if x's dims don't fit those. */
static void flux__use_strides(flux_tensor *x, const int64_t *points, int64_t *offset, int64_t *stride) {
    int64_t have[FLUX_MAX_DIMS];
    flux__layout(x, offset, have);
    for (int d = 0; d < FLUX_MAX_DIMS; d++) stride[d] = d < x->ndim && x->dim[d] == points[d] && points[d] > 1 ? have[d] : 0;
}

/* Whether user reads operand k point by point: element (i, j, ...) of the node at point (i, j, ...), stretched dims aside. */
static bool flux__pointwise(flux_tensor *user, int k, const flux_tensor *node) {
    int64_t points[FLUX_MAX_DIMS], offset, stride[FLUX_MAX_DIMS], step = 1;
    flux__dims8(flux__is_reduce(user) ? user->in[0] : user, points);
    flux__use_strides(user->in[k], points, &offset, stride);
    if (offset != 0) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        int64_t n = d < node->ndim ? node->dim[d] : 1;
        if (n != 1 && n != points[d]) return false;
        if (stride[d] != (n > 1 ? step : 0)) return false;
        step *= n;
    }
    return true;
}

static void flux__outer_dims(const flux__group *G, int64_t *out) {
    for (int d = 0; d < FLUX_MAX_DIMS; d++) out[d] = G->reduced >> d & 1 ? 1 : G->full[d];
}

static int64_t flux__count8(const int64_t *v) { return flux__product(v, FLUX_MAX_DIMS); }

/* Whether group a uses, over any way, what group b makes. */
static bool flux__group_reaches(flux__planner *p, int a, int b, uint8_t *seen) {
    if (a == b) return true;
    if (seen[a]) return false;
    seen[a] = 1;
    for (int k = 0; k < p->ngroup; k++)
        if (p->needs[a * p->n + k] && flux__group_reaches(p, k, b, seen)) return true;
    return false;
}

static bool flux__no_circle(flux__planner *p, int node, int G) {
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        int K = p->group_of[p->use[u] >> 8];
        if (K == G) continue;
        uint8_t *seen = p->needs + (size_t)p->n * (size_t)p->n;   /* scratch behind the matrix */
        memset(seen, 0, (size_t)p->n);
        if (flux__group_reaches(p, G, K, seen)) return false;
    }
    return true;
}

/* The dims that a reduction really reduces: those that are not 1 anyway. */
static unsigned flux__real_mask(const flux_tensor *t) {
    unsigned real = 0;
    for (int d = 0; d < t->in[0]->ndim; d++)
        if ((t->arg.i[1] >> d & 1) && t->in[0]->dim[d] != 1) real |= 1u << d;
    return real;
}

/* A map joins if its points are the group's, or are the outer ones (perhaps by declaring dims reduced). */
static bool flux__map_fits(flux__group *G, const flux_tensor *t, bool commit) {
    int64_t s[FLUX_MAX_DIMS], outer[FLUX_MAX_DIMS];
    unsigned mask = 0;
    flux__dims8(t, s);
    flux__outer_dims(G, outer);
    if (flux__same8(s, G->full) || (G->reduced && flux__same8(s, outer))) return true;
    if (G->kind != FLUX__K_FUSED || G->reduced) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (s[d] != 1 && s[d] != G->full[d]) return false;
        if (s[d] != G->full[d]) mask |= 1u << d;
    }
    if (commit) G->reduced = mask;
    return true;
}

/* Few outer points and many inner ones are better spread over threads, in kernels of one phase each: there a reduction
   joins only those that go on with its result. */
static bool flux__too_deep(flux__planner *p, int node, const int64_t *full, unsigned mask) {
    int64_t outer = 1, s[FLUX_MAX_DIMS], other[FLUX_MAX_DIMS];
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (!(mask >> d & 1)) outer *= full[d];
    if (outer >= 4 || flux__count8(full) <= 65536) return false;
    flux__dims8(p->g->node[node], s);
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        flux__dims8(p->g->node[p->use[u] >> 8], other);
        if (!flux__same8(s, other)) return true;
    }
    return false;
}

static bool flux__reduce_fits(flux__planner *p, int node, flux__group *G, bool commit) {
    const flux_tensor *t = p->g->node[node];
    int64_t full[FLUX_MAX_DIMS], s[FLUX_MAX_DIMS];
    unsigned real = flux__real_mask(t);
    flux__dims8(t->in[0], full);
    flux__dims8(t, s);
    if (G->kind != FLUX__K_FUSED || flux__too_deep(p, node, full, real)) return false;
    bool same = flux__same8(G->full, full);
    if (same && G->reduced == real) return true;
    if (same && !G->reduced) {
        if (commit) G->reduced = real;
        return true;
    }
    if (G->reduced || G->reduces || !flux__same8(G->full, s) || !real) return false;
    if (commit) {                         /* the group worked on the result alone: its points become the outer ones */
        memcpy(G->full, full, sizeof full);
        G->reduced = real;
    }
    return true;
}

static bool flux__product_fits(const flux__group *G, const flux_tensor *t) {
    int64_t s[FLUX_MAX_DIMS];
    flux__dims8(t, s);
    return G->kind == FLUX__K_FUSED && G->product < 0 && !G->reduced && !G->reduces && flux__same8(G->full, s) && G->members <= 24;
}

static bool flux__fits(flux__planner *p, int node, int G, bool commit) {
    flux_tensor *t = p->g->node[node];
    flux__group *group = &p->group[G];
    if (group->kind != FLUX__K_FUSED && group->kind != FLUX__K_MATMUL) return false;
    if (group->members >= 60) return false;
    if (flux__is_map(t)) return group->kind == FLUX__K_MATMUL && group->members > 24 ? false : flux__map_fits(group, t, commit);
    if (flux__is_reduce(t)) return flux__reduce_fits(p, node, group, commit);
    if (t->op == FLUX__MATMUL) return flux__product_fits(group, t);
    return false;
}

static int flux__own_kind(const flux_tensor *t) {
    switch (t->op) {
    case FLUX__MATMUL: return FLUX__K_MATMUL;
    case FLUX__GATHER: return FLUX__K_GATHER;
    case FLUX__SCATTER: return FLUX__K_SCATTER;
    case FLUX__SPREAD: return FLUX__K_SPREAD;
    case FLUX__CAT: return FLUX__K_CAT;
    case FLUX__MOVE: return FLUX__K_MOVE;
    default: return FLUX__K_FUSED;
    }
}

static int flux__new_group(flux__planner *p, int node) {
    flux_tensor *t = p->g->node[node];
    flux__group *G = &p->group[p->ngroup];
    memset(G, 0, sizeof *G);
    G->kind = flux__own_kind(t);
    G->product = t->op == FLUX__MATMUL ? node : -1;
    flux__dims8(flux__is_reduce(t) ? t->in[0] : t, G->full);
    if (flux__is_reduce(t)) G->reduced = flux__real_mask(t);
    return p->ngroup++;
}

/* The group for a node: one of its users', if all is well, else a new one. Users have theirs already. */
static int flux__choose_group(flux__planner *p, int node) {
    flux_tensor *t = p->g->node[node];
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        int user = p->use[u] >> 8, G = p->group_of[user];
        bool all = true;
        if (!flux__fits(p, node, G, false)) continue;
        for (int v = p->use_start[node]; v < p->use_start[node + 1] && all; v++)
            if (p->group_of[p->use[v] >> 8] == G) all = flux__pointwise(p->g->node[p->use[v] >> 8], p->use[v] & 255, t);
        for (int v = p->use_start[node]; v < p->use_start[node + 1] && all; v++)
            if (p->use[v] >> 8 == p->group[G].product) all = false;
        if (all && flux__no_circle(p, node, G)) return flux__fits(p, node, G, true) ? G : -1;
    }
    return -1;
}

static void flux__assign_groups(flux__planner *p) {
    for (int i = p->n - 1; i >= 0; i--) {
        flux_tensor *t = p->g->node[i];
        int G = flux__choose_group(p, i);
        if (G < 0) G = flux__new_group(p, i);
        flux__group *group = &p->group[G];
        p->group_of[i] = G;
        group->members++;
        if (i > group->last) group->last = i;
        if (flux__is_reduce(t)) group->reduces = true;
        if (t->op == FLUX__MATMUL) group->kind = FLUX__K_MATMUL, group->product = i;
        for (int u = p->use_start[i]; u < p->use_start[i + 1]; u++) {
            int K = p->group_of[p->use[u] >> 8];
            if (K != G) p->needs[K * p->n + G] = 1;
        }
    }
}

static bool flux__find_uses(flux__planner *p) {
    int *count = p->use_start, total = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < p->n; i++) {
            flux_tensor *t = p->g->node[i];
            for (int k = 0; k < t->nin; k++) {
                flux_tensor *b = flux__base(t->in[k]);
                if (flux__finished(b) || (b->op == FLUX__NUMBER && b->mark != p->g->walk)) continue;
                if (pass == 0) count[b->index + 1]++, total++;
                else p->use[count[b->index]++] = i << 8 | k;
            }
        }
        if (pass == 1) break;
        for (int i = 0; i < p->n; i++) count[i + 1] += count[i];
        p->use = (int *)flux__malloc((size_t)(total + 1) * sizeof *p->use);
        if (!p->use) return false;
    }
    for (int i = p->n; i > 0; i--) count[i] = count[i - 1];
    count[0] = 0;
    return true;
}

/* ---------------- from a group to a kernel's program */

static int flux__class_of(int dtype) {
    switch (dtype) {
    case FLUX_F64: return FLUX__F64C;
    case FLUX_I64: return FLUX__I64C;
    case FLUX_I32: case FLUX_U8: case FLUX_BOOL: return FLUX__I32C;
    default: return FLUX__F32C;
    }
}

typedef struct flux__builder {
    flux__planner *p;
    flux__kernel *k;
    int *value_of;                        /* by node: its value in this kernel, or -1 */
    bool ok;
} flux__builder;

static int flux__emit(flux__builder *b, const flux__value *v) {
    flux__kernel *k = b->k;
    for (int i = 0; i < k->nvalue; i++) { /* the same line twice is the same value */
        const flux__value *w = &k->value[i];
        if (w->kind == v->kind && w->op == v->op && w->cls == v->cls && w->dtype == v->dtype && w->outer == v->outer && w->a == v->a &&
            w->b == v->b && w->c == v->c && w->operand == v->operand && w->node == v->node) return i;
    }
    flux__value *value = (flux__value *)flux__grow(k->value, &k->value_room, k->nvalue + 1, sizeof *value);
    if (!value || k->nvalue > 30000) {
        b->ok = false;
        return 0;
    }
    k->value = value;
    value[k->nvalue] = *v;
    return k->nvalue++;
}

static flux__value flux__line(int kind, int op, int cls, int dtype) {
    flux__value v;
    memset(&v, 0, sizeof v);
    v.kind = (uint8_t)kind, v.op = (uint8_t)op, v.cls = (uint8_t)cls, v.dtype = (uint8_t)dtype;
    v.a = v.b = v.c = v.operand = -1;
    v.node = v.out = -1;
    return v;
}

static int flux__add_operand(flux__builder *b, const flux__operand *o) {
    flux__kernel *k = b->k;
    for (int i = 0; i < k->noperand; i++)
        if (memcmp(&k->operand[i], o, sizeof *o) == 0) return i;
    flux__operand *operand = (flux__operand *)flux__grow(k->operand, &k->operand_room, k->noperand + 1, sizeof *operand);
    if (!operand) {
        b->ok = false;
        return 0;
    }
    k->operand = operand;
    operand[k->noperand] = *o;
    return k->noperand++;
}

static int flux__slot_of(flux__builder *b, flux_tensor *base) {
    return flux__finished(base) ? flux__map_get(&b->p->g->leaves, base) : b->p->g->nleaf + base->index;
}

/* Whether a value that changes with none of the reduced dims: it is the same for a whole row. */
static bool flux__is_outer(const flux__kernel *k, const int64_t *stride) {
    if (!k->reduced) return false;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if ((k->reduced >> d & 1) && stride[d]) return false;
    return true;
}

static int flux__emit_load(flux__builder *b, flux_tensor *x, const int64_t *points) {
    flux__operand o;
    memset(&o, 0, sizeof o);
    flux_tensor *base = flux__base(x);
    o.src = flux__slot_of(b, base);
    o.dtype = base->dtype;
    o.shape = flux__dims(x);
    flux__use_strides(x, points, &o.offset, o.stride);
    flux__value v = flux__line(FLUX__V_LOAD, 0, flux__class_of(o.dtype), o.dtype);
    v.outer = flux__is_outer(b->k, o.stride);
    v.operand = (int16_t)flux__add_operand(b, &o);
    return flux__emit(b, &v);
}

/* Values that come from a node's place in its own shape: counting and random numbers. */
static int flux__emit_index(flux__builder *b, flux_tensor *t, int node, int kind) {
    flux__operand o;
    int64_t points[FLUX_MAX_DIMS];
    memset(&o, 0, sizeof o);
    o.src = -1;
    o.dtype = FLUX_I64;
    o.shape = flux__dims(t);
    flux__dims8(t, points);
    flux__use_strides(t, points, &o.offset, o.stride);
    flux__value v = flux__line(kind, kind == FLUX__V_RANDOM ? (int)t->arg.i[2] : 0, kind == FLUX__V_RANDOM ? FLUX__F32C : FLUX__I64C, t->dtype);
    v.outer = flux__is_outer(b->k, o.stride);
    v.operand = (int16_t)flux__add_operand(b, &o);
    v.node = kind == FLUX__V_RANDOM ? node : -1;
    return flux__emit(b, &v);
}

static int flux__emit_number(flux__builder *b, int cls, int user, int operand) {
    flux__value v = flux__line(FLUX__V_NUMBER, 0, cls, FLUX_F32);
    v.outer = b->k->reduced != 0;
    v.node = user << 8 | operand;         /* operand 255: the node itself is the number */
    return flux__emit(b, &v);
}

static int flux__emit_literal(flux__builder *b, int cls, int code) {
    flux__value v = flux__line(FLUX__V_NUMBER, 1, cls, FLUX_F32);
    v.outer = b->k->reduced != 0;
    v.node = code;
    return flux__emit(b, &v);
}

static int flux__emit_use(flux__builder *b, int kind, int op, int cls, int dtype, int a, int x, int c) {
    flux__value v = flux__line(kind, op, cls, dtype);
    v.a = (int16_t)a, v.b = (int16_t)x, v.c = (int16_t)c;
    v.outer = b->k->reduced != 0 && b->k->value[a].outer && (x < 0 || b->k->value[x].outer) && (c < 0 || b->k->value[c].outer);
    return flux__emit(b, &v);
}

static int flux__as_class(flux__builder *b, int v, int cls) {
    if (!b->ok || b->k->value[v].cls == cls) return v;
    return flux__emit_use(b, FLUX__V_CONVERT, 0, cls, b->k->value[v].dtype, v, -1, -1);
}

/* The value of operand k of a node: from this kernel, from memory, or a number of class cls. */
static int flux__emit_operand(flux__builder *b, flux_tensor *user, int user_node, int k, int cls) {
    flux_tensor *x = user->in[k], *base = flux__base(x);
    int64_t points[FLUX_MAX_DIMS];
    if (base->op == FLUX__NUMBER && !base->buf && (base->mark != b->p->g->walk || b->p->group_of[base->index] != b->p->group_of[user_node]))
        return flux__emit_number(b, cls, user_node, k);
    if (!flux__finished(base) && b->value_of[base->index] >= 0) return flux__as_class(b, b->value_of[base->index], cls);
    flux__dims8(flux__is_reduce(user) ? user->in[0] : user, points);
    return flux__as_class(b, flux__emit_load(b, x, points), cls);
}

/* What keeps a value in its dtype: half formats are rounded, small integers wrapped. */
static int flux__settle(flux__builder *b, int v, int dtype) {
    if (!b->ok) return v;
    if (dtype == FLUX_F16 || dtype == FLUX_BF16) return flux__emit_use(b, FLUX__V_ROUND, dtype, b->k->value[v].cls, dtype, v, -1, -1);
    if (dtype == FLUX_U8) return flux__emit_use(b, FLUX__V_WRAP, dtype, b->k->value[v].cls, dtype, v, -1, -1);
    return v;
}

static int flux__emit_cast(flux__builder *b, flux_tensor *t, int node) {
    flux_tensor *x = t->in[0];
    int from = flux__class_of(x->dtype), to = flux__class_of(t->dtype), v = flux__emit_operand(b, t, node, 0, from);
    if (t->dtype == FLUX_BOOL)
        return flux__emit_use(b, FLUX__V_OP, FLUX__OP_NE, b->k->value[v].cls, FLUX_BOOL, v, flux__emit_literal(b, b->k->value[v].cls, 0), -1);
    if (t->dtype == FLUX_U8 && flux__dtypes[x->dtype].real) {
        v = flux__emit_use(b, FLUX__V_OP, FLUX__OP_MAX2, from, x->dtype, v, flux__emit_literal(b, from, 0), -1);
        v = flux__emit_use(b, FLUX__V_OP, FLUX__OP_MIN2, from, x->dtype, v, flux__emit_literal(b, from, 255), -1);
    }
    return flux__settle(b, flux__as_class(b, v, to), t->dtype);
}

static int flux__emit_elementwise(flux__builder *b, flux_tensor *t, int node) {
    int v[3] = { -1, -1, -1 }, cls = flux__class_of(t->dtype);
    char rule = flux__rules[t->op];
    if (rule == 'C') cls = flux__class_of(t->in[0]->flags & FLUX__WEAK && t->nin > 1 ? t->in[1]->dtype : t->in[0]->dtype);
    for (int k = 0; k < t->nin && b->ok; k++) v[k] = flux__emit_operand(b, t, node, k, cls);
    if (!b->ok) return 0;
    return flux__settle(b, flux__emit_use(b, FLUX__V_OP, t->op, cls, t->dtype, v[0], v[1], v[2]), t->dtype);
}

static int flux__emit_reduce(flux__builder *b, flux_tensor *t, int node) {
    int cls = flux__class_of(t->in[0]->dtype), x = flux__emit_operand(b, t, node, 0, cls);
    bool arg = t->op == FLUX__ARGREDUCE;
    if (!b->ok) return 0;
    if (!flux__real_mask(t)) return arg ? flux__emit_literal(b, FLUX__I64C, 0) : x;   /* over dims of 1 */
    flux__value v = flux__line(arg ? FLUX__V_ARGREDUCE : FLUX__V_REDUCE, (int)t->arg.i[0], arg ? FLUX__I64C : cls, t->dtype);
    v.a = (int16_t)x;
    v.outer = true;
    return flux__settle(b, flux__emit(b, &v), t->dtype);
}

static int flux__emit_node(flux__builder *b, int node) {
    flux_tensor *t = b->p->g->node[node];
    flux__value v;
    if (t->op < FLUX__ELEMENTWISE_COUNT) return flux__emit_elementwise(b, t, node);
    switch (t->op) {
    case FLUX__CAST: return flux__emit_cast(b, t, node);
    case FLUX__COPY: return flux__emit_operand(b, t, node, 0, flux__class_of(t->dtype));
    case FLUX__NUMBER: return flux__emit_number(b, flux__class_of(t->dtype), node, 255);
    case FLUX__IOTA: return flux__emit_index(b, t, node, FLUX__V_IOTA);
    case FLUX__RANDOM: return flux__emit_index(b, t, node, FLUX__V_RANDOM);
    case FLUX__MATMUL:
        v = flux__line(FLUX__V_PRODUCT, 0, flux__class_of(t->dtype), t->dtype);
        return flux__settle(b, flux__emit(b, &v), t->dtype);
    default: return flux__emit_reduce(b, t, node);
    }
}

/* A whole-tensor operand: as it lies, over its own dims. */
static void flux__plain_operand(flux__builder *b, flux_tensor *x) {
    flux__operand o, *operand;
    flux__kernel *k = b->k;
    memset(&o, 0, sizeof o);
    o.src = flux__slot_of(b, flux__base(x));
    o.dtype = x->dtype;
    o.shape = flux__dims(x);
    flux__layout(x, &o.offset, o.stride);
    operand = (flux__operand *)flux__grow(k->operand, &k->operand_room, k->noperand + 1, sizeof *operand);
    if (!operand) {
        b->ok = false;
        return;
    }
    k->operand = operand;
    operand[k->noperand++] = o;
}

static void flux__set_phases(flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++) {
        flux__value *v = &k->value[i];
        int use[3], phase = 0;
        use[0] = v->a, use[1] = v->b, use[2] = v->c;
        for (int j = 0; j < 3; j++) {
            if (use[j] < 0) continue;
            const flux__value *w = &k->value[use[j]];
            int after = w->phase + (w->kind == FLUX__V_REDUCE || w->kind == FLUX__V_ARGREDUCE);
            if (after > phase) phase = after;
        }
        v->phase = (int16_t)phase;
    }
}

/* Whether a node's numbers must go to memory: looked at later, or used by another kernel or not point by point. */
static bool flux__must_store(flux__planner *p, int node) {
    if (p->g->flag[node] & FLUX__ROOT) return true;
    for (int u = p->use_start[node]; u < p->use_start[node + 1]; u++) {
        const flux_tensor *user = p->g->node[p->use[u] >> 8];
        bool apart = p->group_of[p->use[u] >> 8] != p->group_of[node];
        if (apart && (p->g->node[node]->op != FLUX__NUMBER || !(flux__is_map(user) || flux__is_reduce(user)))) return true;
    }
    return false;
}

/* Whether a node of this kernel has one element for each outer point, not for every point. */
static bool flux__outer_shaped(const flux__kernel *k, const flux_tensor *t) {
    int64_t s[FLUX_MAX_DIMS];
    flux__dims8(t, s);
    return k->reduced != 0 && !flux__same8(s, k->full);
}

/* The value to store for a node: of its own, if v is stored for another node, has the strides of where it comes from, or
   is the same for a whole row of a node that has every point. */
static int flux__storable(flux__builder *b, int v, const flux_tensor *t) {
    const flux__value *w = &b->k->value[v];
    bool outer = flux__outer_shaped(b->k, t), source = w->kind <= FLUX__V_RANDOM && w->kind != FLUX__V_NUMBER;
    if (!b->ok || (w->out < 0 && !source && w->outer == outer)) return v;
    flux__value line = flux__line(FLUX__V_CONVERT, 1, w->cls, t->dtype);
    line.a = (int16_t)v, line.outer = outer;
    line.node = b->k->nvalue;             /* unlike any other */
    return flux__emit(b, &line);
}

static bool flux__build_kernel(flux__planner *p, int G, flux__kernel *k, flux__plan *plan) {
    flux__builder b;
    flux__group *group = &p->group[G];
    b.p = p, b.k = k, b.ok = true;
    b.value_of = (int *)flux__malloc((size_t)p->n * sizeof(int));
    if (!b.value_of) return false;
    memset(b.value_of, -1, (size_t)p->n * sizeof(int));
    memset(k, 0, sizeof *k);
    k->kind = group->kind;
    k->node = -1;
    if (group->kind != FLUX__K_FUSED) {   /* its operands come first in the list */
        k->node = group->product >= 0 ? group->product : group->last;
        const flux_tensor *t = p->g->node[k->node];
        memcpy(k->mnk, t->arg.i, sizeof k->mnk);
        for (int j = 0; j < t->nin; j++) flux__plain_operand(&b, t->in[j]);
    }
    k->reduced = group->reduced;
    memcpy(k->full, group->full, sizeof k->full);
    for (int i = 0; i < p->n && b.ok; i++) {
        if (p->group_of[i] != G) continue;
        flux_tensor *t = p->g->node[i];
        bool fused = group->kind == FLUX__K_FUSED || group->kind == FLUX__K_MATMUL;
        bool store = flux__must_store(p, i);
        if (fused && b.ok) {
            int v = flux__emit_node(&b, i);
            b.value_of[i] = v;
            if (store && b.ok) v = flux__storable(&b, v, t), k->value[v].out = p->g->nleaf + i, k->value[v].dtype = t->dtype;
        }
        if (store || !fused) plan->slot[i].stored = true;
    }
    flux__set_phases(k);
    FLUX_FREE(b.value_of);
    return b.ok;
}

/* ---------------- order, life of buffers */

/* Kernels in an order in which operands come first; of those that could come next, the one recorded first. So updates
   of weights come after all that reads the old ones. */
static bool flux__order_groups(flux__planner *p, int *order) {
    uint8_t *done = (uint8_t *)flux__zalloc((size_t)p->n);
    if (!done) return false;
    for (int at = 0; at < p->ngroup; at++) {
        int best = -1;
        for (int G = 0; G < p->ngroup; G++) {
            bool ready = !done[G];
            for (int K = 0; K < p->ngroup && ready; K++)
                if (p->needs[G * p->n + K] && !done[K]) ready = false;
            if (ready && (best < 0 || p->group[G].last < p->group[best].last)) best = G;
        }
        if (best < 0) {
            FLUX_FREE(done);
            return flux__fail("schedule: kernels depend on each other in a circle") != NULL;
        }
        order[at] = best;
        done[best] = 1;
    }
    FLUX_FREE(done);
    return true;
}

/* Whether line x of a kernel runs after line y: by phase, outer ones first, in order. */
static bool flux__runs_after(const flux__kernel *k, int x, int y) {
    int px = k->value[x].phase * 2 + !k->value[x].outer, py = k->value[y].phase * 2 + !k->value[y].outer;
    return px != py ? px > py : x > y;
}

/* Whether a line that runs after line `store` still needs what it loads from the leaf. */
static bool flux__read_later(const flux__kernel *k, int leaf, int store) {
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        if (v->kind != FLUX__V_LOAD || k->operand[v->operand].src != leaf) continue;
        if (flux__runs_after(k, i, store)) return true;
        for (int u = 0; u < k->nvalue; u++) {
            const flux__value *w = &k->value[u];
            if ((w->a == i || w->b == i || w->c == i) && flux__runs_after(k, u, store)) return true;
        }
    }
    return false;
}

/* In kernel k, node's value may overwrite the donor leaf if every read of that is at the very same point, before. */
static bool flux__may_overwrite(const flux__plan *plan, int at, int slot, int leaf) {
    const flux__kernel *k = &plan->kernel[at];
    for (int j = at + 1; j < plan->nkernel; j++)
        for (int o = 0; o < plan->kernel[j].noperand; o++)
            if (plan->kernel[j].operand[o].src == leaf) return false;
    if (k->kind != FLUX__K_FUSED && k->kind != FLUX__K_MATMUL) return false;
    bool outer = false;
    for (int v = 0; v < k->nvalue; v++)
        if (k->value[v].out == plan->nleaf + slot) {
            outer = k->value[v].outer;
            if (flux__read_later(k, leaf, v)) return false;
        }
    if (k->reduced && !outer) return false;
    int first = k->kind == FLUX__K_MATMUL ? 2 : 0;
    for (int o = 0; o < k->noperand; o++) {
        if (k->operand[o].src != leaf) continue;
        if (o < first || k->operand[o].offset) return false;
        int64_t step = 1;
        for (int d = 0; d < FLUX_MAX_DIMS; d++) {
            bool gone = k->reduced >> d & 1;
            if (k->operand[o].stride[d] != (k->full[d] > 1 && !gone ? step : 0)) return false;
            if (!gone) step *= k->full[d];
        }
    }
    return true;
}

static void flux__find_lives(flux__plan *plan, flux__graph *g) {
    for (int k = 0; k < plan->nkernel; k++) {
        flux__kernel *kernel = &plan->kernel[k];
        for (int v = 0; v < kernel->nvalue; v++)
            if (kernel->value[v].out >= 0) plan->slot[kernel->value[v].out - plan->nleaf].out_kernel = k;
        if (kernel->kind > FLUX__K_MATMUL) plan->slot[kernel->node].out_kernel = k;
        for (int o = 0; o < kernel->noperand; o++)
            if (kernel->operand[o].src >= plan->nleaf) plan->slot[kernel->operand[o].src - plan->nleaf].last_kernel = k;
    }
    for (int i = 0; i < plan->nnode; i++) {
        flux__slot_info *s = &plan->slot[i];
        if (s->last_kernel < s->out_kernel) s->last_kernel = s->out_kernel;
        s->bytes = flux__size(g->node[i]) * (int64_t)flux__dtypes[g->node[i]->dtype].size;
        s->keep = (g->flag[i] & FLUX__KEEP) != 0;
        s->device = g->node[i]->device;
        s->donor = s->stored && g->donor[i] >= 0 && flux__may_overwrite(plan, s->out_kernel, i, g->donor[i]) ? g->donor[i] : -1;
    }
}

static bool flux__find_frees(flux__plan *plan) {
    for (int k = 0; k < plan->nkernel; k++) {
        flux__kernel *kernel = &plan->kernel[k];
        size_t most = (size_t)(kernel->noperand + kernel->nvalue + 1);
        kernel->frees = (int *)flux__malloc(most * sizeof(int));
        kernel->outs = (int *)flux__malloc(most * sizeof(int));
        if (!kernel->frees || !kernel->outs) return false;
        for (int i = 0; i < plan->nnode; i++) {
            if (!plan->slot[i].stored) continue;
            if (plan->slot[i].out_kernel == k) kernel->outs[kernel->nouts++] = i;
            if (!plan->slot[i].keep && plan->slot[i].last_kernel == k) kernel->frees[kernel->nfrees++] = i;
        }
    }
    return true;
}

static void flux__kernel_unready(flux__kernel *k);

static void flux__plan_free(flux__plan *plan) {
    for (int i = 0; plan->kernel && i < plan->nkernel; i++) {
        flux__kernel *k = &plan->kernel[i];
        flux__kernel_unready(k);
        if (k->value) FLUX_FREE(k->value);
        if (k->operand) FLUX_FREE(k->operand);
        if (k->frees) FLUX_FREE(k->frees);
        if (k->outs) FLUX_FREE(k->outs);
    }
    if (plan->kernel) FLUX_FREE(plan->kernel);
    if (plan->slot) FLUX_FREE(plan->slot);
    if (plan->key) FLUX_FREE(plan->key);
    FLUX_FREE(plan);
}

static bool flux__kernel_ready(flux__plan *plan, flux__kernel *k);
static void flux__log_plan(const flux__plan *plan, flux__graph *g);

static bool flux__plan_kernels(flux__planner *p, flux__plan *plan, int *order) {
    plan->kernel = (flux__kernel *)flux__zalloc((size_t)(p->ngroup + 1) * sizeof *plan->kernel);
    plan->slot = (flux__slot_info *)flux__zalloc((size_t)(p->n + 1) * sizeof *plan->slot);
    if (!plan->kernel || !plan->slot || !flux__order_groups(p, order)) return false;
    for (int i = 0; i < p->ngroup; i++) {
        plan->nkernel = i + 1;
        if (!flux__build_kernel(p, order[i], &plan->kernel[i], plan)) return false;
    }
    flux__find_lives(plan, p->g);
    if (!flux__find_frees(plan)) return false;
    for (int i = 0; i < plan->nkernel; i++)
        if (!flux__kernel_ready(plan, &plan->kernel[i])) return false;
    return true;
}

static flux__plan *flux__make_plan(flux__graph *g) {
    flux__planner p;
    flux__plan *plan = (flux__plan *)flux__zalloc(sizeof *plan);
    size_t n = (size_t)g->nnode + 1;
    memset(&p, 0, sizeof p);
    p.g = g, p.n = g->nnode;
    p.group_of = (int *)flux__zalloc(n * sizeof(int));
    p.group = (flux__group *)flux__zalloc(n * sizeof *p.group);
    p.needs = (uint8_t *)flux__zalloc(n * n + n);
    p.use_start = (int *)flux__zalloc((n + 1) * sizeof(int));
    int *order = (int *)flux__zalloc(n * sizeof(int));
    bool ok = plan && p.group_of && p.group && p.needs && p.use_start && order && flux__find_uses(&p);
    if (ok) {
        plan->nleaf = g->nleaf, plan->nnode = g->nnode;
        flux__assign_groups(&p);
        ok = flux__plan_kernels(&p, plan, order);
    }
    if (ok && flux__log_schedules()) flux__log_plan(plan, g);
    if (p.group_of) FLUX_FREE(p.group_of);
    if (p.group) FLUX_FREE(p.group);
    if (p.needs) FLUX_FREE(p.needs);
    if (p.use_start) FLUX_FREE(p.use_start);
    if (p.use) FLUX_FREE(p.use);
    if (order) FLUX_FREE(order);
    if (!ok && plan) {
        flux__plan_free(plan);
        plan = NULL;
    }
    return plan;
}

/* FLUX_LOG=schedule: one line a kernel, as in "3. product 256x64x784 + add relu -> 256x64". */
static void flux__log_plan(const flux__plan *plan, flux__graph *g) {
    static const char *const kinds[] = { "fused", "product", "gather", "scatter_add", "spread", "cat", "move" };
    static const char *const reds[] = { "sum", "prod", "max", "min" };
    fprintf(stderr, "flux: schedule of %d operations in %d kernels\n", plan->nnode, plan->nkernel);
    for (int i = 0; i < plan->nkernel; i++) {
        const flux__kernel *k = &plan->kernel[i];
        flux_shape s = flux__shape(k->full, FLUX_MAX_DIMS);
        while (s.ndim > 1 && s.dim[s.ndim - 1] == 1) s.ndim--;
        flux__text t = flux__shape_text(&s);
        fprintf(stderr, "  %2d. %s %s", i + 1, kinds[k->kind], t.s);
        if (k->kind == FLUX__K_MATMUL) fprintf(stderr, " inner %lld", (long long)k->mnk[2]);
        if (k->reduced) fprintf(stderr, ", reduced dims %#x", k->reduced);
        fprintf(stderr, ":");
        for (int v = 0; v < k->nvalue; v++) {
            if (k->value[v].kind == FLUX__V_OP) fprintf(stderr, " %s", flux__op_names[k->value[v].op]);
            if (k->value[v].kind == FLUX__V_REDUCE) fprintf(stderr, " %s", reds[k->value[v].op]);
            if (k->value[v].kind == FLUX__V_ARGREDUCE) fprintf(stderr, " arg");
            if (k->value[v].out >= 0) {
                flux__text o = flux__describe(g->node[k->value[v].out - plan->nleaf]);
                fprintf(stderr, "->[%s%s]", o.s, plan->slot[k->value[v].out - plan->nleaf].donor >= 0 ? ", in place" : "");
            }
        }
        fprintf(stderr, "\n");
    }
}

/* ---------------- the cache of plans */

static void flux__plans_free(flux__plans *plans) {
    for (int i = 0; i < FLUX__BUCKETS; i++)
        while (plans->bucket[i]) {
            flux__plan *plan = plans->bucket[i];
            plans->bucket[i] = plan->next;
            flux__plan_free(plan);
        }
    FLUX_FREE(plans);
}

/* Forgets the older half when there are many, so that ever new shapes don't fill the memory. */
static void flux__plans_trim(flux__plans *plans) {
    if (plans->count < 512) return;
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (flux__plan **at = &plans->bucket[i]; *at;) {
            flux__plan *plan = *at;
            if (plans->clock - plan->used < 256) at = &plan->next;
            else {
                *at = plan->next;
                plans->count--;
                flux__plan_free(plan);
            }
        }
}

static flux__plan *flux__find_plan(flux__graph *g) {
    flux__thread *t = flux__self();
    uint64_t hash = 1469598103934665603u;
    if (!t->plans && !(t->plans = (flux__plans *)flux__zalloc(sizeof *t->plans))) return NULL;
    flux__plans *plans = t->plans;
    for (int i = 0; i < g->nkey; i++) hash = (hash ^ (uint64_t)g->key[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
    flux__plan **bucket = &plans->bucket[hash >> 56];
    plans->clock++;
    for (flux__plan *plan = *bucket; plan; plan = plan->next)
        if (plan->hash == hash && plan->key_words == g->nkey && memcmp(plan->key, g->key, (size_t)g->nkey * sizeof *g->key) == 0) {
            plan->used = plans->clock;
            return plan;
        }
    flux__plans_trim(plans);
    flux__plan *plan = flux__make_plan(g);
    if (!plan) return NULL;
    plan->hash = hash;
    plan->key = g->key;                   /* the plan takes the key over */
    plan->key_words = g->nkey;
    g->key = NULL;
    plan->used = plans->clock;
    plan->next = *bucket;
    *bucket = plan;
    plans->count++;
    return plan;
}

/* ---------------- running a plan */

typedef struct flux__run {
    flux__plan *plan;
    flux__graph *g;
    flux__buffer **buffer;                /* by node */
    void **ptr;                           /* by slot */
    void *extra[3];                       /* what kernels need for a moment: see flux__kernel_extra */
} flux__run;

static int flux__kernel_run(flux__run *r, flux__kernel *k);
static void flux__kernel_extra(const flux__run *r, const flux__kernel *k, size_t *bytes);
static bool flux__kernels_prepare(const flux__plan *plan);

/* The memory that kernels need beside their results: one piece of each kind serves them all, one after the other. */
static bool flux__allocate_extra(flux__run *r) {
    size_t most[3] = { 0, 0, 0 };
    for (int k = 0; k < r->plan->nkernel; k++) flux__kernel_extra(r, &r->plan->kernel[k], most);
    for (int i = 0; i < 3; i++)
        if (most[i] && !(r->extra[i] = flux__malloc(most[i]))) return false;
    return flux__kernels_prepare(r->plan);
}

/* All memory is found before the first kernel runs, so that a failure leaves everything as it was. Buffers whose life
   ends are used again at once by later kernels. */
static bool flux__allocate(flux__run *r) {
    flux__plan *plan = r->plan;
    flux__buffer **spare = r->buffer + plan->nnode;      /* given up within this plan */
    int nspare = 0;
    bool ok = true;
    for (int i = 0; i < plan->nleaf; i++) r->ptr[i] = r->g->leaf[i]->buf->ptr;
    for (int k = 0; k < plan->nkernel && ok; k++) {
        for (int n = 0; n < plan->kernel[k].nouts && ok; n++) {
            int i = plan->kernel[k].outs[n];
            flux__slot_info *s = &plan->slot[i];
            if (s->donor >= 0) {
                r->buffer[i] = r->g->leaf[s->donor]->buf;
                flux__atomic_add(&r->buffer[i]->refs, 1);
            } else {
                for (int j = 0; j < nspare && !r->buffer[i]; j++)
                    if (flux_device_equal(spare[j]->device, s->device) && spare[j]->room >= (size_t)s->bytes && spare[j]->room / 2 <= (size_t)s->bytes) {
                        r->buffer[i] = spare[j];
                        r->buffer[i]->bytes = (size_t)s->bytes;
                        flux__atomic_add(&r->buffer[i]->refs, 1);
                        spare[j] = spare[--nspare];
                    }
                if (!r->buffer[i]) r->buffer[i] = flux__buffer_new(s->device, (size_t)s->bytes);
            }
            ok = r->buffer[i] != NULL;
            if (ok) r->ptr[plan->nleaf + i] = r->buffer[i]->ptr;
        }
        for (int j = 0; j < plan->kernel[k].nfrees && ok; j++) {
            int i = plan->kernel[k].frees[j];
            if (plan->slot[i].donor < 0) spare[nspare++] = r->buffer[i];
        }
    }
    return ok;
}

/* Gives finished nodes their buffers; in a cutting run they and all hidden nodes let go of their operands. */
static void flux__settle_nodes(flux__run *r) {
    flux__plan *plan = r->plan;
    flux__graph *g = r->g;
    for (int i = 0; i < plan->nnode; i++) {
        if (!plan->slot[i].keep || !r->buffer[i]) continue;
        g->node[i]->buf = r->buffer[i];
        r->buffer[i] = NULL;
        if (plan->slot[i].donor >= 0) {
            flux_tensor *old = g->leaf[plan->slot[i].donor];
            flux__buffer_release(old->buf);
            old->buf = NULL;
            old->flags |= FLUX__CONSUMED;
        }
    }
}

static int flux__run_plan(flux__plan *plan, flux__graph *g) {
    flux__run r;
    size_t n = (size_t)plan->nnode * 2 + 1;
    memset(&r, 0, sizeof r);
    r.plan = plan, r.g = g;
    r.buffer = (flux__buffer **)flux__zalloc(n * sizeof *r.buffer);
    r.ptr = (void **)flux__zalloc((size_t)(plan->nleaf + plan->nnode + 1) * sizeof *r.ptr);
    bool ok = r.buffer && r.ptr && flux__allocate(&r) && flux__allocate_extra(&r);
    for (int k = 0; k < plan->nkernel && ok; k++) ok = flux__kernel_run(&r, &plan->kernel[k]) == 0;
    if (ok) flux__settle_nodes(&r);
    for (int i = 0; r.buffer && i < plan->nnode; i++) flux__buffer_release(r.buffer[i]);
    for (int i = 0; i < 3; i++)
        if (r.extra[i]) FLUX_FREE(r.extra[i]);
    if (r.buffer) FLUX_FREE(r.buffer);
    if (r.ptr) FLUX_FREE(r.ptr);
    return ok ? 0 : -1;
}

/* ---------------- looking */

static bool flux__eager(void) {
    static int known;
    if (!flux__atomic_load32(&known)) {
        const char *e = flux__env("FLUX_EAGER");
        flux__atomic_store32(&known, e && strcmp(e, "0") != 0 ? 2 : 1);
    }
    return flux__atomic_load32(&known) == 2;
}

static void flux__graph_start(flux__graph *g) {
    flux__thread *t = flux__self();
    memset(g, 0, sizeof *g);
    g->ok = t != NULL;
    g->walk = t ? ++t->walk : 0;
    if (t && t->walk == 0) g->walk = ++t->walk;
}

/* Which nodes stay when the plan has run: all that are stored, or, where graphs are cut, those somebody can look at. */
static void flux__set_flags(flux__graph *g) {
    for (int i = 0; i < g->nnode; i++) {
        flux_tensor *t = g->node[i];
        bool seen = g->cut ? (g->flag[i] & FLUX__SEEN) != 0 : FLUX__VISIBLE(t);
        if (!(g->cut || (t->flags & FLUX__FIXED)) || seen || (g->flag[i] & FLUX__ROOT)) g->flag[i] |= FLUX__KEEP;
    }
}

/* What was recorded under FLUX_NOGRAD lets go of its operands once it is computed. */
static void flux__cut_fixed(flux__graph *g) {
    int n = 0;
    for (int i = 0; i < g->nnode; i++)
        if ((g->node[i]->flags & FLUX__FIXED) && g->node[i]->buf) g->node[n++] = (flux_tensor *)flux_retain(g->node[i]);
    for (int i = 0; i < n; i++) flux__cut(g->node[i]);
    for (int i = 0; i < n; i++) flux_release(g->node[i]);
}

static int flux__evaluate(flux__graph *g) {
    if (!g->ok) return -1;
    if (g->nnode == 0) return 0;
    flux__set_flags(g);
    flux__graph_key(g);
    flux__plan *plan = g->ok ? flux__find_plan(g) : NULL;
    if (!plan || flux__run_plan(plan, g) != 0) return -1;
    if (!g->cut) flux__cut_fixed(g);
    return 0;
}

FLUX_DEF int flux_eval_all(int n, flux_tensor *const *xs) {
    flux__graph g;
    for (int i = 0; i < n; i++)
        if (!xs[i]) return flux__null("eval", "x", xs[i]), -1;
    bool work = false;
    for (int i = 0; i < n; i++)
        if (xs[i]->op == FLUX__TUPLE || !flux__base(xs[i])->buf) work = true;
    if (!work) return 0;
    flux__graph_start(&g);
    for (int i = 0; i < n && g.ok; i++)
        for (int j = 0; j < flux_count(xs[i]) && g.ok; j++) {
            flux_tensor *x = flux__base(xs[i]->op == FLUX__TUPLE ? xs[i]->in[j] : xs[i]);
            flux__graph_visit(&g, x);
            if (g.ok && !flux__finished(x)) g.flag[x->index] |= FLUX__ROOT;
        }
    int rc = flux__evaluate(&g);
    flux__graph_free(&g);
    return rc;
}

FLUX_DEF flux_tensor *flux_eval(flux_tensor *x) {
    if (!x) return (flux_tensor *)flux__null("eval", "x", x);
    return flux_eval_all(1, &x) == 0 ? x : NULL;
}

/* x computed and its elements in order in one buffer: itself, or the copy it then keeps. */
static flux_tensor *flux__dense(const char *call, flux_tensor *x) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    if (!flux__check_operands(call, 1, &x)) return NULL;
    flux_shape s = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, stride);
    if (flux__in_order(&s, stride)) return flux_eval(base) ? x : NULL;
    if (!x->dense) {
        int h = flux__hide();
        flux_tensor *copy = flux_copy(x);
        if (copy && flux_eval(copy)) {
            x->dense = (flux_tensor *)flux_retain(copy);
            flux__cut(copy);
        }
        flux__thread *t = flux__self();
        if (t) flux__scope_close_to(t, h);
    }
    return x->dense;
}

FLUX_DEF const void *flux_data(flux_tensor *x) {
    flux_tensor *d = flux__dense("data", x);
    if (!d) return NULL;
    flux__buffer *b = flux__base(d)->buf;
    if (b->device.backend == FLUX__CPU_BACKEND) return (const char *)b->ptr + (FLUX__IS_VIEW(d) ? (size_t)d->offset * flux__dtypes[d->dtype].size : 0);
    flux_device cpu = { 0, 0 };
    if (!x->dense || x->dense == d) {
        int h = flux__hide();
        flux_tensor *host = flux__move(d, cpu);
        if (host && flux_eval(host)) {
            flux_tensor *old = x->dense;
            x->dense = (flux_tensor *)flux_retain(host);
            flux__cut(host);
            flux_release(old);
        }
        flux__scope_close_to(flux__self(), h);
    }
    return x->dense && x->dense->buf ? x->dense->buf->ptr : NULL;
}

FLUX_DEF int flux_read(flux_tensor *x, void *out, size_t bytes) {
    const void *p = flux_data(x);
    if (!p) return -1;
    size_t have = (size_t)flux__size(x) * flux__dtypes[x->dtype].size;
    if (bytes != have || (!out && bytes)) {
        flux__text t = flux__describe(x);
        flux__fail("read: %s is %zu bytes, %zu were asked for", t.s, have, bytes);
        return -1;
    }
    if (bytes) memcpy(out, p, bytes);
    return 0;
}

static double flux__number_at(flux_tensor *x, int64_t i) {
    const char *p = (const char *)flux_data(x);
    double out[1];
    if (!p) return (double)NAN;
    flux__load(FLUX__F64C, out, x->dtype, p + (size_t)i * flux__dtypes[x->dtype].size, 1, 1);
    return out[0];
}

FLUX_DEF double flux_item(flux_tensor *x) {
    if (!flux__check_operands("item", 1, &x)) return (double)NAN;
    if (flux__size(x) != 1) {
        flux__text t = flux__describe(x);
        flux__fail("item: %s is not one number; flux_at takes an index", t.s);
        return (double)NAN;
    }
    return flux__number_at(x, 0);
}

FLUX_DEF double flux_at_shape(flux_tensor *x, flux_shape index) {
    if (!flux__check_operands("at", 1, &x)) return (double)NAN;
    int64_t at = 0, step = 1;
    flux__text t = flux__describe(x);
    if (index.ndim != x->ndim) {
        flux__fail("at: %d indices into %s", index.ndim, t.s);
        return (double)NAN;
    }
    for (int d = 0; d < x->ndim; d++) {
        if (index.dim[d] < 0 || index.dim[d] >= x->dim[d]) {
            flux__fail("at: index %lld is not within dim %d of %s", (long long)index.dim[d], d, t.s);
            return (double)NAN;
        }
        at += index.dim[d] * step;
        step *= x->dim[d];
    }
    return flux__number_at(x, at);
}

/* ---------------- an optimiser's step
   An update takes the memory of the old weights over where nobody can tell: nobody but the caller (who is about to drop
   them), the graph of this step and its gradients may refer to them. All references are counted: the graph's nodes and
   views, and the loss's whole history, are found by walking; if the sum is the reference count, the tensor is ours. */

typedef struct flux__history {            /* all that the news and the loss come from, finished or not */
    flux__walk walk;
    int *refs;                            /* by node: references found */
    bool *old;                            /* depends on a tensor that is to be replaced */
} flux__history;

static void flux__history_free(flux__history *h) {
    flux__walk_free(&h->walk);
    if (h->refs) FLUX_FREE(h->refs);
    if (h->old) FLUX_FREE(h->old);
}

static void flux__history_count(flux__history *h, const flux_tensor *x, int by) {
    int k = x ? flux__walk_get(&h->walk, x) : -1;
    if (k >= 0) h->refs[k] += by;
}

static bool flux__history_find(flux__history *h, flux_grads *g, int n, flux_tensor *const *olds, flux_tensor *const *news, const int *owners) {
    memset(h, 0, sizeof *h);
    if (!flux__walk_start(&h->walk)) return false;
    h->walk.whole = true;
    if (g && !flux__walk_collect(&h->walk, g->loss)) return false;
    for (int i = 0; i < n; i++)
        if (!flux__walk_collect(&h->walk, news[i])) return false;
    size_t count = (size_t)h->walk.n + 1;
    h->refs = (int *)flux__zalloc(count * sizeof(int));
    h->old = (bool *)flux__zalloc(count);
    if (!h->refs || !h->old) return false;
    for (int i = 0; i < h->walk.n; i++) {
        flux_tensor *t = h->walk.node[i];
        for (int k = 0; k < t->nin; k++) flux__history_count(h, t->in[k], 1);
        flux__history_count(h, t->base, 1);
    }
    for (int i = 0; i < n; i++) {
        int k = flux__walk_get(&h->walk, olds[i]);
        if (k >= 0) h->old[k] = true;
        flux__history_count(h, olds[i], owners[i]);
    }
    for (int i = 0; g && i < g->n; i++) {
        flux__history_count(h, g->of[i], 1);
        flux__history_count(h, g->grad[i], 1);
    }
    for (int i = 0; i < h->walk.n; i++)
        for (int k = 0; k < h->walk.node[i]->nin && !h->old[i]; k++)
            h->old[i] = h->old[flux__walk_get(&h->walk, h->walk.node[i]->in[k])];
    return true;
}

/* Whether somebody outside of the step can look at node number k. */
static bool flux__history_seen(const flux__history *h, int k) {
    return flux__atomic_load(&h->walk.node[k]->head.refs) > h->refs[k];
}

/* Nodes that can be looked at later: those that are computed on the way get stored, if that is cheap beside what updating
   in place saves; views of old tensors, and all if it is not cheap, forbid taking memory over. */
static bool flux__keep_seen(flux__graph *g, const flux__history *h, int n, flux_tensor *const *olds) {
    int64_t cost = 0, gain = 65536;
    bool possible = true;
    for (int i = 0; i < n; i++) gain += flux__size(olds[i]) * (int64_t)flux__dtypes[olds[i]->dtype].size * 2;
    for (int k = 0; k < h->walk.n; k++) {
        flux_tensor *t = h->walk.node[k], *b = flux__base(t);
        if (!flux__history_seen(h, k)) continue;
        if (b->mark == g->walk && !flux__finished(b)) {
            g->flag[b->index] |= FLUX__SEEN;
            if (h->old[k] && !(g->flag[b->index] & FLUX__ROOT)) cost += flux__size(b) * (int64_t)flux__dtypes[b->dtype].size;
        } else if (h->old[k] && !b->buf) possible = false;
        else if (h->old[k] && FLUX__IS_VIEW(t) && b->op == FLUX__LEAF) possible = false;
    }
    if (!possible || cost > gain) return false;
    for (int i = 0; i < g->nnode; i++)
        if (g->flag[i] & FLUX__SEEN) g->flag[i] |= FLUX__ROOT;
    return true;
}

static void flux__set_donors(flux__graph *g, const flux__history *h, int n, flux_tensor *const *olds, flux_tensor *const *news) {
    for (int i = 0; i < n; i++) {
        flux_tensor *old = olds[i], *fresh = news[i];
        int leaf = flux__map_get(&g->leaves, old), k = flux__walk_get(&h->walk, old);
        if (leaf < 0 || k < 0 || !old->buf || old->buf->borrowed || fresh->mark != g->walk || flux__finished(fresh)) continue;
        bool alike = old->dtype == fresh->dtype && flux__size(old) == flux__size(fresh) && flux_device_equal(old->device, fresh->device);
        bool sole = !flux__history_seen(h, k) && flux__atomic_load(&old->buf->refs) == 1;
        if (alike && sole) g->donor[fresh->index] = leaf;
    }
}

/* After the update the old graph is no use: what is stored becomes a plain value, the rest goes. */
static void flux__cut_history(flux__history *h, flux_grads *g) {
    for (int k = 0; k < h->walk.n; k++) flux_retain(h->walk.node[k]);
    for (int k = 0; k < h->walk.n; k++) {
        flux_tensor *t = h->walk.node[k];
        if (!h->old[k] || !flux__base(t)->buf) continue;
        if (t->nin) t->flags |= FLUX__CONSUMED;
        flux__cut(t);
    }
    for (int k = 0; k < h->walk.n; k++) flux_release(h->walk.node[k]);
    for (int i = 0; g && i < g->n; i++) {
        flux_release(g->of[i]);
        flux_release(g->grad[i]);
    }
    if (g) g->n = 0, g->used = true;
}

/* Computes the news of an update, in the memory of the olds where nobody else can see those, and uses the loss's graph up.
   owners[i]: references to olds[i] that the caller is about to drop. Nothing has changed if it fails. */
static int flux__update_eval(flux_grads *grads, int n, flux_tensor *const *olds, flux_tensor *const *news, const int *owners) {
    flux__graph g;
    flux__history h;
    flux__graph_start(&g);
    g.cut = true;
    if (grads && g.ok) flux__graph_visit(&g, grads->loss);
    for (int i = 0; i < n && g.ok; i++) {
        flux_tensor *x = flux__base(news[i]);
        flux__graph_visit(&g, x);
        if (g.ok && !flux__finished(x)) g.flag[x->index] |= FLUX__ROOT;
    }
    bool walked = g.ok, ok = walked && flux__history_find(&h, grads, n, olds, news, owners);
    flux_tensor *loss = grads ? flux__base(grads->loss) : NULL;
    if (ok && loss && loss->mark == g.walk && !flux__finished(loss)) g.flag[loss->index] |= FLUX__ROOT;
    if (ok && flux__keep_seen(&g, &h, n, olds)) flux__set_donors(&g, &h, n, olds, news);
    int rc = ok ? flux__evaluate(&g) : -1;
    if (rc == 0) flux__cut_history(&h, grads);
    if (walked) flux__history_free(&h);
    flux__graph_free(&g);
    return rc;
}

/* ------------------------------------------------------------------ 9. CPU: loops
   The innermost loops of the processor. What they work on is a tile: some hundred elements of one
   class, in the first-level cache. Each row of the table of operations becomes a function for
   every class, and for float32 one for every instruction set, in vectors of 16, 8 or 4 lanes; the
   right one is taken when the program runs, so that no -m option is needed. gcc optimises this
   part in a user's -O0 build too.

   Invariants: an element's result depends neither on its place nor on its neighbours, since what
   is left over at the end of a tile goes through the same vector code. A sum's order depends on
   its length alone. Random numbers are made without fused multiply-adds: with the same bits on
   every machine. A result may lie where an operand of stride 1 does.

   Rejected: leaving f32 to the compiler's own vectorising (ten times slower where the formula is
   a function); libm (20 ns an element); including this file again for each instruction set, which
   fails once it is renamed or pasted elsewhere. Hence functions inside macros below. */

/* y[i] = f(a[i], b[i], c[i]). A stride of 1 walks along the operand, 0 repeats its first element. */
typedef void (*flux__loop)(int64_t n, void *y, const void *a, const void *b, const void *c,
                           int sa, int sb, int sc);
typedef void (*flux__run_loop)(flux__loop f, int64_t n, void *y, const void *a, const void *b, const void *c,
                               int sa, int sb, int sc);
typedef void (*flux__fold_fn)(void *acc, const void *x, int64_t n);
typedef void (*flux__cast_fn)(int64_t n, void *y, const void *x);
typedef void (*flux__random_fn)(uint64_t key, uint64_t stream, uint64_t counter, int64_t blocks,
                                float *out, int kind);

#ifndef FLUX__VECTORS                     /* does the compiler have vector types? */
#  if !defined(_MSC_VER) && !defined(__TINYC__) && \
      (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9))
#    define FLUX__VECTORS 1
#  else
#    define FLUX__VECTORS 0
#  endif
#endif
#if FLUX__VECTORS && FLUX__X86
#  include <emmintrin.h>
#endif
#if FLUX__VECTORS && defined(__clang__)   /* also in a user's -ffast-math build */
#  pragma float_control(push)
#  pragma float_control(precise, on)
#  pragma clang fp contract(off)
#elif FLUX__VECTORS
#  pragma GCC push_options
#  pragma GCC optimize("O1", "expensive-optimizations", "no-fast-math", "fp-contract=off")
#endif

/* Names: FLUX__F(exp) is flux__exp_f64, flux__exp_x16, ... and FLUX__P(FMA) FLUX__FMA_x16, ... as
   FLUX__KIND says: f64, i32, i64, or for f32 the number of lanes, x16, x8, x4 (x1 for a compiler
   without vectors). FLUX__T is an element as it is stored, FLUX__V what formulas compute with. */
#define FLUX__F_(name, kind) flux__##name##_##kind
#define FLUX__F__(name, kind) FLUX__F_(name, kind)
#define FLUX__F(name) FLUX__F__(name, FLUX__KIND)
#define FLUX__P_(name, kind) FLUX__##name##_##kind
#define FLUX__P__(name, kind) FLUX__P_(name, kind)
#define FLUX__P(name) FLUX__P__(name, FLUX__KIND)
#define FLUX__T FLUX__F(t)
#define FLUX__V FLUX__F(v)

/* The first n elements repeated until there are `all`. */
static void *flux__fill(void *out, const void *p, size_t size, size_t n, size_t all) {
    memcpy(out, p, size * n);
    for (size_t have = n; have < all; have *= 2)
        memcpy((char *)out + size * have, out, size * (have < all - have ? have : all - have));
    return out;
}

/* A formula's loop, in vectors and element by element; a, b and c are the formula's operands. The
   vectors' takes whole steps, and of an operand with stride 0 a vector full of it: FLUX__F(run) sees
   to that, once for all formulas, of which there are many. */
#define FLUX__VECTOR_LOOP(NAME, count, formula)                                                      \
static void FLUX__F(loop_##NAME)(int64_t n, void *y, const void *pa, const void *pb,                 \
                                 const void *pc, int sa, int sb, int sc) {                           \
    const float *p = (const float *)pa, *q = (const float *)pb, *r = (const float *)pc;              \
    for (float *to = (float *)y; n > 0; n -= FLUX__LANES, to += FLUX__LANES) {                       \
        FLUX__V a = FLUX__F(at)(p), b, c, out;                                                       \
        if (count > 1) b = FLUX__F(at)(q);                                                           \
        if (count > 2) c = FLUX__F(at)(r);                                                           \
        out = formula;                                                                               \
        memcpy(to, &out, sizeof out), (void)b, (void)c;                                              \
        p += FLUX__LANES * sa, q += FLUX__LANES * sb, r += FLUX__LANES * sc;                         \
    }                                                                                                \
}
#define FLUX__VECTOR_RUN                                                                             \
static void FLUX__F(run)(flux__loop f, int64_t n, void *y, const void *a, const void *b,             \
                         const void *c, int sa, int sb, int sc) {                                    \
    FLUX__V full[3];                                                                                 \
    if (n <= 0) return;                                                                              \
    if (!sa) full[0] = FLUX__K(*(const float *)a), a = &full[0];                                     \
    if (!sb && b) full[1] = FLUX__K(*(const float *)b), b = &full[1];                                \
    if (!sc && c) full[2] = FLUX__K(*(const float *)c), c = &full[2];                                \
    if (n >= FLUX__LANES) f(n - n % FLUX__LANES, y, a, b, c, sa, sb, sc);                            \
    if (n % FLUX__LANES) flux__run_rest(f, FLUX__LANES, n, (float *)y, a, b, c, sa, sb, sc);         \
}
#if FLUX__VECTORS
/* The elements left over at the end are filled up to a whole step. */
static void flux__run_rest(flux__loop f, int lanes, int64_t n, float *y, const void *a, const void *b,
                           const void *c, int sa, int sb, int sc) {
    float pad[4][16];
    const float *in[3] = { (const float *)a, (const float *)b, (const float *)c };
    const int stride[3] = { sa, sb, sc };
    const size_t left = (size_t)(n % lanes), whole = (size_t)n - left;
    for (int k = 0; k < 3; k++)
        if (stride[k]) in[k] = (float *)flux__fill(pad[k], in[k] + whole, 4, left, (size_t)lanes);
    f(lanes, pad[3], in[0], in[1], in[2], sa, sb, sc);
    memcpy(y + whole, pad[3], left * sizeof(float));
}
#else
static void flux__run_x1(flux__loop f, int64_t n, void *y, const void *a, const void *b, const void *c,
                         int sa, int sb, int sc) {
    f(n, y, a, b, c, sa, sb, sc);
}
#endif
#define FLUX__SCALAR_LOOP(NAME, count, formula)                                                      \
static void FLUX__F(loop_##NAME)(int64_t n, void *y, const void *pa, const void *pb,                 \
                                 const void *pc, int sa, int sb, int sc) {                           \
    const FLUX__T *p = (const FLUX__T *)pa, *q = count > 1 ? (const FLUX__T *)pb : p;                \
    const FLUX__T *r = count > 2 ? (const FLUX__T *)pc : p;                                          \
    for (FLUX__T *to = (FLUX__T *)y; n > 0; n--, to++) {                                             \
        FLUX__V a = *p, b = *q, c = *r;                                                              \
        *to = (FLUX__T)(formula), (void)a, (void)b, (void)c;                                         \
        p += sa, q += sb, r += sc;                                                                   \
    }                                                                                                \
}

/* A class's loops, by the table: of an F row (floating) the integers have none. */
#define FLUX__WHEN_N(yes, no) yes
#define FLUX__WHEN_C(yes, no) yes
#define FLUX__WHEN_B(yes, no) yes
#define FLUX__WHEN_S(yes, no) yes
#define FLUX__WHEN_F(yes, no) FLUX__P(FLOATING)(yes, no)
#define FLUX__WHEN_X(yes, no) no
#define FLUX__NO_LOOP(NAME, count, formula)
#define FLUX__LOOP_ROW(NAME, name, count, dt, formula, ...) \
    FLUX__WHEN_##dt(FLUX__LOOP, FLUX__NO_LOOP)(NAME, count, formula)
#define FLUX__POINTER_ROW(NAME, name, count, dt, ...) FLUX__WHEN_##dt(FLUX__F(loop_##NAME), NULL),
#define FLUX__LOOPS                                                                                  \
FLUX__ELEMENTWISE(FLUX__LOOP_ROW)                                                                    \
static const flux__loop FLUX__F(loops)[] = { FLUX__ELEMENTWISE(FLUX__POINTER_ROW) };

/* acc = acc op x[0] op x[1] ...: from 16 elements on in lanes, element i going to lane i mod `all`,
   that are joined as a tree at the end; vop joins two V of one or more lanes, op two elements. */
#define FLUX__FOLD(name, T, V, all, vop, op, identity)                                               \
static void FLUX__F(name)(void *acc, const void *in, int64_t n) {                                    \
    enum { one = sizeof(V) / sizeof(T), few = 16 / one, every = all / one };                         \
    const T *x = (const T *)in;                                                                      \
    T lane[16], sum;                                                                                 \
    V s[every], v;                                                                                   \
    int i, h, k = 0;                                                                                 \
    memcpy(&sum, acc, sizeof sum);                                                                   \
    if (n < 16) {                                                                                    \
        for (i = 0; i < n; i++) sum = op(sum, x[i]);                                                 \
    } else {                                                                                         \
        for (i = 0; i < every; i++) s[i] = identity;                                                 \
        for (; n >= all; n -= all)                                                                   \
            for (i = 0; i < every; i++, x += one) memcpy(&v, x, sizeof v), s[i] = vop(s[i], v);      \
        for (; n >= 16; n -= 16)                                                                     \
            for (i = 0; i < few; i++, k++, x += one) memcpy(&v, x, sizeof v), s[k] = vop(s[k], v);   \
        for (h = every / 2; h >= few; h /= 2)                                                        \
            for (i = 0; i < h; i++) s[i] = vop(s[i], s[i + h]);                                      \
        memcpy(lane, s, sizeof lane);                                                                \
        for (i = 0; i < n; i++) lane[i] = op(lane[i], x[i]);                                         \
        for (h = 8; h > 0; h /= 2)                                                                   \
            for (i = 0; i < h; i++) lane[i] = op(lane[i], lane[i + h]);                              \
        sum = op(sum, lane[0]);                                                                      \
    }                                                                                                \
    memcpy(acc, &sum, sizeof sum);                                                                   \
}
#define FLUX__SUM_OF(a, b) ((a) + (b))
#define FLUX__PROD_OF(a, b) ((a) * (b))
#define FLUX__MAX_OF(a, b) ((a) != (a) ? (a) : (a) > (b) ? (a) : (b))  /* NaN if either is */
#define FLUX__MIN_OF(a, b) ((a) != (a) ? (a) : (a) < (b) ? (a) : (b))
#define FLUX__MAX_VOF(a, b) FLUX__F(fmax)(a, b)
#define FLUX__MIN_VOF(a, b) FLUX__F(fmin)(a, b)
#define FLUX__FOLD_TABLE                                                                             \
static const flux__fold_fn FLUX__F(folds)[] = {                                                      \
    FLUX__F(fold_sum), FLUX__F(fold_prod), FLUX__F(fold_max), FLUX__F(fold_min) };
#define FLUX__SCALAR_FOLDS(T, U, lowest, highest)                                                    \
FLUX__FOLD(fold_sum, U, U, 16, FLUX__SUM_OF, FLUX__SUM_OF, 0)                                        \
FLUX__FOLD(fold_prod, U, U, 16, FLUX__PROD_OF, FLUX__PROD_OF, 1)                                     \
FLUX__FOLD(fold_max, T, T, 16, FLUX__MAX_OF, FLUX__MAX_OF, lowest)                                   \
FLUX__FOLD(fold_min, T, T, 16, FLUX__MIN_OF, FLUX__MIN_OF, highest)                                  \
FLUX__FOLD_TABLE
#define FLUX__VECTOR_FOLDS                                                                           \
FLUX__FOLD(fold_sum, float, FLUX__V, 64, FLUX__SUM_OF, FLUX__SUM_OF, FLUX__K(0))                     \
FLUX__FOLD(fold_prod, float, FLUX__V, 64, FLUX__PROD_OF, FLUX__PROD_OF, FLUX__K(1))                  \
FLUX__FOLD(fold_max, float, FLUX__V, 64, FLUX__MAX_VOF, FLUX__MAX_OF, FLUX__K(-INFINITY))            \
FLUX__FOLD(fold_min, float, FLUX__V, 64, FLUX__MIN_VOF, FLUX__MIN_OF, FLUX__K(INFINITY))             \
FLUX__FOLD_TABLE

/* ---- f64, by libm, and the integers
   Integers are computed twice as wide where there is such a type, and cut back: so they wrap, and
   nothing overflows. */

#define FLUX__LOOP FLUX__SCALAR_LOOP
#define FLUX__IF(cond, x, y) ((cond) ? (x) : (y))
#define FLUX__K(v) ((FLUX__V)(v))
#define FLUX__FLOATING_f64(yes, no) yes
#define FLUX__FLOATING_i32(yes, no) no
#define FLUX__FLOATING_i64(yes, no) no
typedef double flux__t_f64, flux__v_f64;
typedef int32_t flux__t_i32;
typedef int64_t flux__v_i32, flux__t_i64;
#if defined(__SIZEOF_INT128__)
__extension__ typedef __int128 flux__v_i64;
#else
typedef int64_t flux__v_i64;
#endif

#define FLUX__LIBM(name, call) \
    static FLUX__INLINE double flux__##name##_f64(double x) { return call(x); }
FLUX__LIBM(abs, fabs)
FLUX__LIBM(sqrt, sqrt)
FLUX__LIBM(exp, exp)
FLUX__LIBM(log, log)
FLUX__LIBM(log1p, log1p)
FLUX__LIBM(expm1, expm1)
FLUX__LIBM(sin, sin)
FLUX__LIBM(cos, cos)
FLUX__LIBM(tanh, tanh)
FLUX__LIBM(erf, erf)
FLUX__LIBM(floor, floor)
FLUX__LIBM(ceil, ceil)
FLUX__LIBM(round, rint)
static FLUX__INLINE double flux__pow_f64(double x, double y) { return pow(x, y); }
static FLUX__INLINE double flux__fmax_f64(double a, double b) { return FLUX__MAX_OF(a, b); }
static FLUX__INLINE double flux__fmin_f64(double a, double b) { return FLUX__MIN_OF(a, b); }
static FLUX__INLINE double flux__sign_f64(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static FLUX__INLINE double flux__sigmoid_f64(double x) {
    double e = exp(-fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}
static FLUX__INLINE double flux__softplus_f64(double x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

/* a^b, wrapping; of a negative power the whole part */
static int64_t flux__whole_power(int64_t a, int64_t b) {
    uint64_t x = (uint64_t)a, y = 1;
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (; b; b >>= 1, x *= x)
        if (b & 1) y *= x;
    return (int64_t)y;
}
#define FLUX__FN(name) static FLUX__INLINE FLUX__V FLUX__F(name)
#define FLUX__INTEGER_MATH                                                                           \
FLUX__FN(abs)(FLUX__V x) { return x < 0 ? -x : x; }                                                  \
FLUX__FN(sign)(FLUX__V x) { return (x > 0) - (x < 0); }                                              \
FLUX__FN(floor)(FLUX__V x) { return x; }                                                             \
FLUX__FN(ceil)(FLUX__V x) { return x; }                                                              \
FLUX__FN(round)(FLUX__V x) { return x; }                                                             \
FLUX__FN(fmax)(FLUX__V a, FLUX__V b) { return a > b ? a : b; }                                       \
FLUX__FN(fmin)(FLUX__V a, FLUX__V b) { return a < b ? a : b; }                                       \
FLUX__FN(pow)(FLUX__V a, FLUX__V b) { return flux__whole_power((int64_t)a, (int64_t)b); }

#define FLUX__KIND f64
FLUX__LOOPS
FLUX__SCALAR_FOLDS(double, double, -HUGE_VAL, HUGE_VAL)
#undef FLUX__KIND
#define FLUX__KIND i32
FLUX__INTEGER_MATH
FLUX__LOOPS
FLUX__SCALAR_FOLDS(int32_t, uint32_t, INT32_MIN, INT32_MAX)
#undef FLUX__KIND
#define FLUX__KIND i64
FLUX__INTEGER_MATH
FLUX__LOOPS
FLUX__SCALAR_FOLDS(int64_t, uint64_t, INT64_MIN, INT64_MAX)
#undef FLUX__KIND
#undef FLUX__LOOP
#undef FLUX__IF
#undef FLUX__K

/* ---- f32: functions, for any number of lanes
   FLUX__VU and FLUX__VI are as many 32-bit integers, FLUX__VD, FLUX__VUL and FLUX__VL doubles and
   64-bit integers in a vector of that size, so half as many. A number may stand for a vector but
   in FLUX__FMA and FLUX__IF, where it is FLUX__K(number). A comparison gives a lane of bits all
   set, or 1 where there is but one lane: FLUX__IF, & and | take both. */

#define FLUX__VI FLUX__F(vi)
#define FLUX__VU FLUX__F(vu)
#define FLUX__VD FLUX__F(vd)
#define FLUX__VL FLUX__F(vl)
#define FLUX__VUL FLUX__F(vul)
#define FLUX__MAGIC 12582912.0f           /* 1.5 2^23: x + MAGIC has round(x) in its low bits */
#define FLUX__MAGIC_D 6755399441055744.0  /* 1.5 2^52: the same in double */

/* FLUX__POLY(3, x, c): c[0] + c[1] x + c[2] x^2, by fused steps; _PLAIN by sums and products, _D in double */
#define FLUX__POLY(n, x, c) FLUX__POLY##n(FLUX__FUSED, x, c, 0)
#define FLUX__POLY_PLAIN(n, x, c) FLUX__POLY##n(FLUX__PLAIN, x, c, 0)
#define FLUX__POLY_D(n, x, c) FLUX__POLY##n(FLUX__DOUBLES, x, c, 0)
#define FLUX__FUSED(y, x, c) FLUX__FMA(y, x, FLUX__K(c))
#define FLUX__PLAIN(y, x, c) ((y) * (x) + FLUX__K(c))
#define FLUX__DOUBLES(y, x, c) FLUX__FMAD(y, x, FLUX__KD(c))
#define FLUX__FUSED_(c) FLUX__K(c)
#define FLUX__PLAIN_(c) FLUX__K(c)
#define FLUX__DOUBLES_(c) FLUX__KD(c)
#define FLUX__POLY1(step, x, c, i) step##_((c)[i])
#define FLUX__POLY2(step, x, c, i) step(FLUX__POLY1(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY3(step, x, c, i) step(FLUX__POLY2(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY4(step, x, c, i) step(FLUX__POLY3(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY5(step, x, c, i) step(FLUX__POLY4(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY6(step, x, c, i) step(FLUX__POLY5(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY7(step, x, c, i) step(FLUX__POLY6(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY8(step, x, c, i) step(FLUX__POLY7(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY9(step, x, c, i) step(FLUX__POLY8(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY10(step, x, c, i) step(FLUX__POLY9(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY11(step, x, c, i) step(FLUX__POLY10(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY12(step, x, c, i) step(FLUX__POLY11(step, x, c, (i) + 1), x, (c)[i])
#define FLUX__POLY13(step, x, c, i) step(FLUX__POLY12(step, x, c, (i) + 1), x, (c)[i])

/* Coefficients: minimax fits (pow's: Chebyshev) on the interval beside each, within 2^-27 or better. */
static const float flux__exp_c[] = {      /* e^r, |r| < 0.35 */
    1.0f, 1.0f, 0.49999997f, 0.166665256f, 0.041667711f, 0.00836828537f, 0.00138460414f };
static const float flux__log_c[] = {      /* (log(1+f) - f + f^2/2) / f^3, 0.707 < 1+f < 1.414 */
    0.333333313f, -0.25000003f, 0.200011224f, -0.16667816f, 0.142361864f, -0.124151088f,
    0.117893502f, -0.116004936f, 0.0686802641f };
static const float flux__tanh_c[] = {     /* (tanh(x)/x - 1) / x^2 in x^2, x < 0.625 */
    -0.333332717f, 0.133311644f, -0.0537171997f, 0.0205693971f, -0.00563203404f };
static const float flux__erf_c[] = {      /* erf(x)/x - 1 in x^2, x < 0.9 */
    0.128379166f, -0.37612623f, 0.112834498f, -0.0268439967f, 0.00516141159f, -0.000769319828f,
    6.5026732e-05f };
static const float flux__erfc_c[] = {     /* -log(1 - erf(x)), 0.9 < x < 3.95 */
    -0.000116526768f, 1.12924385f, 0.633873641f, 0.10772685f, -0.0247795694f, 0.00404843967f,
    -0.000410227338f, 1.90501287e-05f };
static const float flux__sin_c[] = {      /* (sin(r)/r - 1) / r^2 in r^2, |r| < pi/4 */
    -0.166666672f, 0.00833336543f, -0.000198463487f, 2.75806656e-06f };
static const float flux__cos_c[] = {      /* (cos(r) - 1 + r^2/2) / r^4 in r^2 */
    0.0416666679f, -0.00138882315f, 2.45242463e-05f };
static const double flux__log2_c[] = {    /* log2(1+f) / f, 0.707 < 1+f < 1.414 */
    1.4426950408708787, -0.7213475209631692, 0.4808983601767402, -0.3606736553138975,
    0.2885373943295742, -0.24045433701134736, 0.20617283396742422, -0.18027102681134222,
    0.15878354491828683, -0.1434903553934768, 0.14495062987640134, -0.14144815266231964,
    0.07553804942107636 };
static const double flux__exp2_c[] = {    /* 2^x, |x| < 0.5 */
    1.0, 0.6931472067028326, 0.24022650922288757, 0.05550327226670302, 0.009618056678524637,
    0.0013400428177615838, 0.0001546144469856913 };

#define FLUX__VECTOR_BASICS                                                                          \
FLUX__FN(at)(const void *p) {                                                                        \
    FLUX__V v;                                                                                       \
    memcpy(&v, p, sizeof v);                                                                         \
    return v;                                                                                        \
}                                                                                                    \
FLUX__FN(abs)(FLUX__V x) { return FLUX__FLOAT(FLUX__BITS(x) & 0x7fffffffu); }                        \
/* y with the sign of x, where y has that sign or is a zero that lost it */                          \
FLUX__FN(like)(FLUX__V y, FLUX__V x) {                                                               \
    return FLUX__FLOAT(FLUX__BITS(y) | (FLUX__BITS(x) & 0x80000000u));                               \
}                                                                                                    \
/* Of MIN and MAX the second operand is the result if one is NaN */                                  \
FLUX__FN(clamp)(FLUX__V x, float lo, float hi) {                                                     \
    return FLUX__MAX(FLUX__K(lo), FLUX__MIN(FLUX__K(hi), x));                                        \
}                                                                                                    \
FLUX__FN(fmax)(FLUX__V a, FLUX__V b) { return FLUX__IF(a != a, a, FLUX__MAX(a, b)); }                \
FLUX__FN(fmin)(FLUX__V a, FLUX__V b) { return FLUX__IF(a != a, a, FLUX__MIN(a, b)); }                \
FLUX__FN(sqrt)(FLUX__V x) { return FLUX__SQRT(x); }                                                  \
FLUX__FN(sign)(FLUX__V x) {                                                                          \
    return FLUX__IF(x > 0.0f, FLUX__K(1), FLUX__IF(x < 0.0f, FLUX__K(-1), x));                       \
}                                                                                                    \
FLUX__FN(round)(FLUX__V x) {                                                                         \
    FLUX__V a = FLUX__F(abs)(x), r = (a + 8388608.0f) - 8388608.0f;                                  \
    return FLUX__F(like)(FLUX__IF(a < 8388608.0f, r, a), x);                                         \
}                                                                                                    \
FLUX__FN(floor)(FLUX__V x) {                                                                         \
    FLUX__V r = FLUX__F(round)(x);                                                                   \
    return r - FLUX__IF(r > x, FLUX__K(1), FLUX__K(0));                                              \
}                                                                                                    \
FLUX__FN(ceil)(FLUX__V x) { return -FLUX__F(floor)(-x); }

#define FLUX__VECTOR_EXP                                                                             \
/* x = n ln 2 + r with |r| < 0.35: gives r, and n + MAGIC in *t */                                   \
FLUX__FN(part)(FLUX__V x, FLUX__V *t) {                                                              \
    *t = FLUX__FMA(x, FLUX__K(1.44269504f), FLUX__K(FLUX__MAGIC));                                   \
    FLUX__V n = *t - FLUX__MAGIC, r = FLUX__FMA(n, FLUX__K(-0.693145752f), x);                       \
    return FLUX__FMA(n, FLUX__K(-1.42860677e-6f), r);                                                \
}                                                                                                    \
/* the same, but gives e^r - 1 */                                                                    \
FLUX__FN(exp_part)(FLUX__V x, FLUX__V *t) {                                                          \
    FLUX__V r = FLUX__F(part)(x, t);                                                                 \
    return FLUX__FMA(r * r, FLUX__POLY(5, r, flux__exp_c + 2), r);                                   \
}                                                                                                    \
/* 2^n for t = n + MAGIC, -127 < n < 128 */                                                          \
FLUX__FN(power)(FLUX__V t) { return FLUX__FLOAT((FLUX__BITS(t) << 23) + 0x3f800000u); }              \
/* x 2^n in two steps, so that n may lead to a denormal or past the largest number */                \
FLUX__FN(scale)(FLUX__V x, FLUX__V t) {                                                              \
    FLUX__VU n = FLUX__BITS(t) - 0x4b400000u, h = (FLUX__VU)((FLUX__VI)n >> 1);                      \
    return x * FLUX__F(power)(FLUX__FLOAT(h)) * FLUX__F(power)(FLUX__FLOAT(n - h));                  \
}                                                                                                    \
FLUX__FN(exp)(FLUX__V x) {                                                                           \
    FLUX__V t, r = FLUX__F(part)(FLUX__F(clamp)(x, -104, 89), &t);                                   \
    return FLUX__SCALE(FLUX__POLY(7, r, flux__exp_c), t);                                            \
}                                                                                                    \
FLUX__FN(expm1)(FLUX__V x) {                                                                         \
    FLUX__V t, s = FLUX__F(exp_part)(FLUX__F(clamp)(x, -18, 89), &t);                                \
    FLUX__V p = FLUX__F(power)(t - 1.0f), y = FLUX__FMA(s, p, p - 0.5f);                             \
    return FLUX__F(like)(FLUX__IF(t == FLUX__MAGIC, s, y + y), x);                                   \
}                                                                                                    \
/* 1/(1+e^-x): with -x = n ln 2 + r, w = 2^-|n| and s = e^r - 1 the denominator is 1+w+ws, or if     \
   n > 0, times 2^n, 1+w+s. What its last sum rounds away is put back after the division */          \
FLUX__FN(sigmoid)(FLUX__V x) {                                                                       \
    FLUX__V n, s = FLUX__F(exp_part)(FLUX__F(clamp)(-x, -30, 104), &n);                              \
    FLUX__V one = FLUX__K(1), none = FLUX__K(FLUX__MAGIC);                                           \
    FLUX__V down = FLUX__IF(n > none, none + none - n, n), w = FLUX__SCALE(one, down);               \
    FLUX__V t = FLUX__FMA(FLUX__IF(n > none, one, w), s, w), d = t + one, q = one / d;               \
    q = FLUX__FMA(-q * (t - (d - one)), q, q);                                                       \
    return FLUX__SCALE(q, FLUX__IF(n > none, down, none));                                           \
}                                                                                                    \
FLUX__FN(tanh)(FLUX__V x) {                                                                          \
    FLUX__V a = FLUX__F(abs)(x), z = a * a;                                                          \
    FLUX__V t, s = FLUX__F(exp_part)(FLUX__F(clamp)(a + a, 0, 20), &t), p = FLUX__F(power)(t);       \
    FLUX__V large = 1.0f - 2.0f / FLUX__FMA(s, p, p + 1.0f);                                         \
    FLUX__V small = FLUX__FMA(z * a, FLUX__POLY(5, z, flux__tanh_c), a);                             \
    return FLUX__F(like)(FLUX__IF(a < 0.625f, small, large), x);                                     \
}                                                                                                    \
FLUX__FN(erf)(FLUX__V x) {                                                                           \
    FLUX__V a = FLUX__F(clamp)(FLUX__F(abs)(x), 0, 4), z = a * a;                                    \
    FLUX__V t, s = FLUX__F(exp_part)(-FLUX__POLY(8, a, flux__erfc_c), &t);                           \
    FLUX__V p = FLUX__F(power)(t), large = 1.0f - p - s * p;                                         \
    FLUX__V small = FLUX__FMA(a, FLUX__POLY(7, z, flux__erf_c), a);                                  \
    return FLUX__F(like)(FLUX__IF(a < 0.9f, small, large), x);                                       \
}

#define FLUX__VECTOR_LOG                                                                             \
/* x = 2^e m with 0.707 < m < 1.414: gives m */                                                      \
FLUX__FN(split)(FLUX__V x, FLUX__V *e) {                                                             \
    FLUX__VU i = FLUX__BITS(x) - 0x3f3504f3u;                                                        \
    *e = FLUX__TOFLOAT((FLUX__VI)i >> 23);                                                           \
    return FLUX__FLOAT((i & 0x7fffffu) + 0x3f3504f3u);                                               \
}                                                                                                    \
/* log(1+f) + e ln 2 + c, for a small c */                                                           \
FLUX__FN(log_sum)(FLUX__V f, FLUX__V e, FLUX__V c) {                                                 \
    FLUX__V z = f * f, y = FLUX__FMA(e, FLUX__K(-2.12194440e-4f), c);                                \
    y = FLUX__FMA(z * f, FLUX__POLY(9, f, flux__log_c), y);                                          \
    return FLUX__FMA(e, FLUX__K(0.693359375f), f + FLUX__FMA(z, FLUX__K(-0.5f), y));                 \
}                                                                                                    \
FLUX__FN(log)(FLUX__V x) {                                                                           \
    FLUX__V tiny = FLUX__IF(x < FLT_MIN, FLUX__K(23), FLUX__K(0)), e;                                \
    FLUX__V m = FLUX__F(split)(FLUX__IF(x < FLT_MIN, x * 8388608.0f, x), &e);                        \
    FLUX__V y = FLUX__F(log_sum)(m - 1.0f, e - tiny, FLUX__K(0));                                    \
    y = FLUX__IF(x < FLUX__K(INFINITY), y, x);                                                       \
    return FLUX__IF(x > 0.0f, y, FLUX__IF(x == 0.0f, FLUX__K(-INFINITY), FLUX__K(NAN)));             \
}                                                                                                    \
/* log(1+x) for -1 < x < inf: what 1+x rounds away comes back as c */                                \
FLUX__FN(log_of_1p)(FLUX__V x) {                                                                     \
    FLUX__V u = x + 1.0f, e, m = FLUX__F(split)(u, &e);                                              \
    FLUX__V c = FLUX__IF(e == 0.0f, FLUX__K(0), (x - (u - 1.0f)) / u);                               \
    return FLUX__F(log_sum)(FLUX__IF(e == 0.0f, x, m - 1.0f), e, c);                                 \
}                                                                                                    \
FLUX__FN(log1p)(FLUX__V x) {                                                                         \
    FLUX__V y = FLUX__F(like)(FLUX__F(log_of_1p)(x), x);                                             \
    y = FLUX__IF(x < FLUX__K(INFINITY), y, x);                                                       \
    return FLUX__IF(x > -1.0f, y, FLUX__IF(x == -1.0f, FLUX__K(-INFINITY), FLUX__K(NAN)));           \
}                                                                                                    \
FLUX__FN(softplus)(FLUX__V x) {                                                                      \
    FLUX__V e = FLUX__F(exp)(-FLUX__F(abs)(x));                                                      \
    return FLUX__IF(x > 0.0f, x, FLUX__K(0)) + FLUX__F(log_of_1p)(e);                                \
}

/* Angles past 1e5, one by one. */
static FLUX__NOINLINE void flux__far_angles(void *y, const void *x, int n, double (*f)(double)) {
    const float *in = (const float *)x;
    float *out = (float *)y;
    for (int i = 0; i < n; i++)
        if (!(fabsf(in[i]) < 1e5f)) out[i] = (float)f((double)in[i]);
}

#define FLUX__VECTOR_TRIG                                                                            \
/* x - n pi/2, in two floats: n < 2^17 times the 33 bits of the first part is exact in double */     \
FLUX__FN(turn)(FLUX__V x, FLUX__V n, FLUX__V *low) {                                                 \
    FLUX__VD d[2], k;                                                                                \
    for (int h = 0; h < FLUX__HALVES; h++) {                                                         \
        k = FLUX__F(widen)(n, h);                                                                    \
        d[h] = FLUX__F(widen)(x, h) - k * 1.57079632673412561417 - k * 6.07710050650619224932e-11;   \
    }                                                                                                \
    FLUX__V r = FLUX__F(narrow)(d);                                                                  \
    for (int h = 0; h < FLUX__HALVES; h++) d[h] = d[h] - FLUX__F(widen)(r, h);                       \
    *low = FLUX__F(narrow)(d);                                                                       \
    return r;                                                                                        \
}                                                                                                    \
/* sin(x + quarter pi/2); f is the same in double */                                                 \
FLUX__FN(trig)(FLUX__V x, uint32_t quarter, double (*f)(double)) {                                   \
    FLUX__V t = FLUX__FMA(x, FLUX__K(0.636619772f), FLUX__K(FLUX__MAGIC));                           \
    FLUX__V l, r = FLUX__F(turn)(x, t - FLUX__MAGIC, &l), z = r * r;                                 \
    FLUX__V s = r + FLUX__FMA(z * r, FLUX__POLY(4, z, flux__sin_c), l);                              \
    FLUX__V w = FLUX__FMA(z, FLUX__K(-0.5f), FLUX__K(1));                                            \
    FLUX__V c = FLUX__FMA(z, FLUX__K(-0.5f), 1.0f - w) - r * l;                                      \
    c = w + FLUX__FMA(z * z, FLUX__POLY(3, z, flux__cos_c), c);                                      \
    FLUX__VU j = FLUX__BITS(t) + quarter;                                                            \
    FLUX__V y = FLUX__FLOAT(FLUX__BITS(FLUX__IF((j & 1u) != 0u, c, s)) ^ ((j & 2u) << 30));          \
    FLUX__VI near = (FLUX__VI)(FLUX__F(abs)(x) < 1e5f);                                              \
    if (!FLUX__ALL(near)) {                                                                          \
        FLUX__V in = x, out = y;                                                                     \
        flux__far_angles(&out, &in, (int)(sizeof in / sizeof(float)), f);                            \
        y = out;                                                                                     \
    }                                                                                                \
    return y;                                                                                        \
}                                                                                                    \
FLUX__FN(sin)(FLUX__V x) { return FLUX__IF(x == 0.0f, x, FLUX__F(trig)(x, 0, sin)); }                \
FLUX__FN(cos)(FLUX__V x) { return FLUX__F(trig)(x, 1, cos); }

#define FLUX__VECTOR_POW                                                                             \
/* log2 of x >= 0; of 0 and inf a very large number */                                               \
static FLUX__INLINE FLUX__VD FLUX__F(log2)(FLUX__VD x) {                                             \
    const uint64_t root = UINT64_C(0x3fe6a09e667f3bcd), one = UINT64_C(0x3ff0000000000000);          \
    FLUX__VUL i = FLUX__DBITS(x) + (one - root);                                                     \
    FLUX__VD e = FLUX__DOUBLE((i >> 52) | UINT64_C(0x4330000000000000)) - (4503599627370496.0 + 1023); \
    FLUX__VD f = FLUX__DOUBLE((i & UINT64_C(0xfffffffffffff)) + root) - 1.0;                         \
    FLUX__VD y = e + f * FLUX__POLY_D(13, f, flux__log2_c);                                          \
    return FLUX__IFD(x + x == x, y * 1e60, y);                                                       \
}                                                                                                    \
static FLUX__INLINE FLUX__VD FLUX__F(exp2)(FLUX__VD x) {                                             \
    FLUX__VD y = FLUX__IFD(x > 200.0, FLUX__KD(200), x);                                             \
    y = FLUX__IFD(y < -200.0, FLUX__KD(-200), y);                                                    \
    FLUX__VD t = y + FLUX__MAGIC_D, f = y - (t - FLUX__MAGIC_D);                                     \
    return FLUX__DOUBLE(FLUX__DBITS(FLUX__POLY_D(7, f, flux__exp2_c)) + (FLUX__DBITS(t) << 52));     \
}                                                                                                    \
/* |a|^b = 2^(b log2 |a|) in double; then the sign, and C's special values */                        \
FLUX__FN(pow)(FLUX__V a, FLUX__V b) {                                                                \
    FLUX__V x = FLUX__F(abs)(a), y = FLUX__F(clamp)(b, -3e38f, 3e38f), half = y * 0.5f, r, s;        \
    FLUX__VD d[2];                                                                                   \
    for (int h = 0; h < FLUX__HALVES; h++)                                                           \
        d[h] = FLUX__F(exp2)(FLUX__F(widen)(y, h) * FLUX__F(log2)(FLUX__F(widen)(x, h)));            \
    r = FLUX__F(narrow)(d);                                                                          \
    s = FLUX__IF(FLUX__F(round)(half) != half, -r, r);             /* a < 0: is b odd? whole? */     \
    s = FLUX__IF(FLUX__F(round)(y) == y, s, FLUX__IF(x + x == x, r, FLUX__K(NAN)));                  \
    r = FLUX__IF((FLUX__BITS(a) & 0x80000000u) != 0u, s, r);                                         \
    r = FLUX__IF((a != a) | (b != b), a + b, r);                                                     \
    return FLUX__IF((a == 1.0f) | (b == 0.0f), FLUX__K(1), r);                                       \
}

/* Random numbers by Philox 4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw 2011). Element i is
   word i mod 4 of the block at counter (i div 4, stream): no state, any order, any number of
   threads. Normal numbers follow by Box and Muller from the words 0 and 1, 2 and 3. Between the
   words and the numbers stand only sums, products and a square root, rounded one by one. */
#define FLUX__RANDOM_BLOCK 64             /* elements made at once: 16 counters */
static const float flux__normal_c[] = {   /* as flux__log_c */
    0.333333403f, -0.250007987f, 0.200008228f, -0.166237861f, 0.142079964f, -0.131613865f,
    0.127297074f, -0.0759919658f };

#define FLUX__VECTOR_RANDOM                                                                          \
FLUX__FN(uniform)(FLUX__VU w) { return FLUX__TOFLOAT((FLUX__VI)(w >> 8)) * 5.9604644775390625e-8f; } \
/* sqrt(-2 log u), u = (w div 2 + 1) / 2^31 */                                                       \
FLUX__FN(radius)(FLUX__VU w) {                                                                       \
    FLUX__V e, u = (FLUX__TOFLOAT((FLUX__VI)(w >> 1)) + 1.0f) * 4.65661287e-10f;                     \
    FLUX__V f = FLUX__F(split)(u, &e) - 1.0f, z = f * f;                                             \
    FLUX__V y = z * -0.5f + z * f * FLUX__POLY_PLAIN(8, f, flux__normal_c);                          \
    return FLUX__SQRT((e * 0.693147182f + (f + y)) * -2.0f);                                         \
}                                                                                                    \
/* sine of the part w/2^32 of a full circle, and so many quarters: with one the cosine */            \
FLUX__FN(circle)(FLUX__VU w, uint32_t quarters) {                                                    \
    FLUX__VU j = (w + 0x20000000u) >> 30, k = j + quarters;                                          \
    FLUX__V r = FLUX__TOFLOAT((FLUX__VI)(w - (j << 30))) * 1.46291807e-9f, z = r * r;                \
    FLUX__V s = r + z * r * FLUX__POLY_PLAIN(4, z, flux__sin_c);                                     \
    FLUX__V c = 1.0f + (z * -0.5f + z * z * FLUX__POLY_PLAIN(3, z, flux__cos_c));                    \
    return FLUX__FLOAT(FLUX__BITS(FLUX__IF((k & 1u) != 0u, c, s)) ^ ((k & 2u) << 30));               \
}                                                                                                    \
/* Words 0 and 2 of the counters in *e, 1 and 3 in *o; a counter has a lane of 64 bits */            \
static FLUX__INLINE void FLUX__F(words)(const FLUX__VUL *key, FLUX__VUL c0, FLUX__VUL c2, FLUX__VUL *e, FLUX__VUL *o) { \
    FLUX__VUL c1 = c0 >> 32, c3 = c2 >> 32, k0 = key[0], k1 = key[1];                                \
    const uint64_t low = 0xffffffff;                                                                 \
    for (int round = 0; round < 10; round++, k0 += key[2], k1 += key[3]) {                           \
        FLUX__VUL p = FLUX__MUL32(c0, key[4]), q = FLUX__MUL32(c2, key[5]);                          \
        c0 = (q >> 32) ^ c1 ^ k0, c2 = (p >> 32) ^ c3 ^ k1, c1 = q, c3 = p;                          \
    }                                                                                                \
    *e = (c0 & low) | (c2 << 32), *o = (c1 & low) | (c3 << 32);                                      \
}                                                                                                    \
static void FLUX__F(random)(uint64_t key, uint64_t stream, uint64_t counter, int64_t blocks,         \
                            float *out, int kind) {                                                  \
    enum { many = sizeof(FLUX__VUL) / sizeof(uint64_t) };          /* counters at once */            \
    static const uint64_t iota[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };                                      \
    const uint64_t low = 0xffffffff;                                                                 \
    FLUX__VUL first, zero = { 0 }, u[2], v[2], keys[6];                                              \
    uint64_t pair[2][many];                                                                          \
    memcpy(&first, iota, sizeof first);                                                              \
    keys[0] = zero + key, keys[1] = zero + (key >> 32);                                              \
    keys[2] = FLUX__HELD(zero + 0x9E3779B9u), keys[3] = FLUX__HELD(zero + 0xBB67AE85u);              \
    keys[4] = FLUX__HELD(zero + 0xD2511F53u), keys[5] = FLUX__HELD(zero + 0xCD9E8D57u);              \
    for (blocks *= FLUX__RANDOM_BLOCK / 4 / many; blocks > 0; blocks--, counter += many) {           \
        FLUX__F(words)(keys, first + counter, zero + stream, &u[0], &u[1]);                           \
        for (size_t at = 0; at < sizeof first; at += sizeof(FLUX__V)) {                              \
            FLUX__VU a, b;                                                                           \
            FLUX__V x, y;                                                                            \
            memcpy(&a, (char *)u + at, sizeof a), memcpy(&b, (char *)(u + 1) + at, sizeof b);        \
            if (kind) x = FLUX__F(radius)(a), y = x * FLUX__F(circle)(b, 0), x = x * FLUX__F(circle)(b, 1); \
            else x = FLUX__F(uniform)(a), y = FLUX__F(uniform)(b);                                   \
            memcpy((char *)v + at, &x, sizeof x), memcpy((char *)(v + 1) + at, &y, sizeof y);        \
        }                                                                                            \
        u[0] = (v[0] & low) | (v[1] << 32), u[1] = (v[0] >> 32) | (v[1] & (low << 32));              \
        memcpy(pair, u, sizeof pair);                                                                \
        for (int l = 0; l < many; l++, out += 4)                                                     \
            memcpy(out, &pair[0][l], 8), memcpy(out + 2, &pair[1][l], 8);                            \
    }                                                                                                \
}

typedef struct flux__section {
    const flux__loop *loops;
    flux__run_loop run;                   /* runs one of them */
    const flux__fold_fn *folds;
    flux__random_fn random;
} flux__section;
#define FLUX__VECTOR_SECTION                                                                         \
FLUX__VECTOR_BASICS                                                                                  \
FLUX__VECTOR_EXP                                                                                     \
FLUX__VECTOR_LOG                                                                                     \
FLUX__VECTOR_TRIG                                                                                    \
FLUX__VECTOR_POW                                                                                     \
FLUX__VECTOR_RANDOM                                                                                  \
FLUX__LOOPS                                                                                          \
FLUX__VECTOR_FOLDS                                                                                   \
static const flux__section FLUX__F(section) = {                                                \
    FLUX__F(loops), FLUX__F(run), FLUX__F(folds), FLUX__F(random) };

/* ---- f32: instruction sets */

#define FLUX__LANES FLUX__P(LANES)
#define FLUX__SQRT(x) FLUX__P(SQRT)(x)
#define FLUX__FMA(a, b, c) FLUX__P(FMA)(a, b, c)
#define FLUX__FMAD(a, b, c) FLUX__P(FMAD)(a, b, c)
#define FLUX__MIN(a, b) FLUX__P(MIN)(a, b)
#define FLUX__MAX(a, b) FLUX__P(MAX)(a, b)
#define FLUX__SCALE(x, t) FLUX__P(SCALE)(x, t)
#define FLUX__ALL(mask) FLUX__P(ALL)(mask)
#define FLUX__HELD(x) FLUX__P(HELD)(x)          /* x, in a register: gcc makes constants anew at each use */
#define FLUX__MUL32(x, m) FLUX__P(MUL32)(x, m)  /* products of 64-bit lanes whose m is below 2^32, and of x the low halves */

#if !FLUX__VECTORS
typedef float flux__t_x1, flux__v_x1;
typedef double flux__vd_x1;
typedef int32_t flux__vi_x1;
typedef uint32_t flux__vu_x1;
typedef int64_t flux__vl_x1;
typedef uint64_t flux__vul_x1;
#define FLUX__SAME_BITS(name, to, from)                                                              \
static FLUX__INLINE to name(from x) {                                                                \
    to y;                                                                                            \
    memcpy(&y, &x, sizeof y);                                                                        \
    return y;                                                                                        \
}
FLUX__SAME_BITS(flux__bits, uint32_t, float)
FLUX__SAME_BITS(flux__of_bits, float, uint32_t)
FLUX__SAME_BITS(flux__bits64, uint64_t, double)
FLUX__SAME_BITS(flux__of_bits64, double, uint64_t)
static FLUX__INLINE double flux__widen_x1(float x, int h) { return (double)x + 0 * h; }
static FLUX__INLINE float flux__narrow_x1(const double *x) { return (float)*x; }
#  define FLUX__LOOP FLUX__SCALAR_LOOP
#  define FLUX__HALVES 1
#  define FLUX__K(v) ((float)(v))
#  define FLUX__KD(v) ((double)(v))
#  define FLUX__BITS(x) flux__bits(x)
#  define FLUX__FLOAT(i) flux__of_bits(i)
#  define FLUX__DBITS(x) flux__bits64(x)
#  define FLUX__DOUBLE(i) flux__of_bits64(i)
#  define FLUX__TOFLOAT(i) ((float)(i))
#  define FLUX__IF(cond, x, y) ((cond) ? (x) : (y))
#  define FLUX__IFD(cond, x, y) ((cond) ? (x) : (y))
#  define FLUX__FLOATING_x1(yes, no) yes
#  define FLUX__LANES_x1 1
#  define FLUX__SQRT_x1(x) sqrtf(x)
#  define FLUX__FMA_x1(a, b, c) ((a) * (b) + (c))
#  define FLUX__FMAD_x1(a, b, c) ((a) * (b) + (c))
#  define FLUX__MIN_x1(a, b) ((a) < (b) ? (a) : (b))
#  define FLUX__MAX_x1(a, b) ((a) > (b) ? (a) : (b))
#  define FLUX__SCALE_x1(x, t) flux__scale_x1(x, t)
#  define FLUX__ALL_x1(mask) (mask)
#  define FLUX__HELD_x1(x) (x)
#  define FLUX__MUL32_x1(x, m) (((x) & 0xffffffff) * (m))
#  define FLUX__KIND x1
FLUX__VECTOR_SECTION

#else
#  define FLUX__LOOP FLUX__VECTOR_LOOP
#  define FLUX__HALVES 2
#  define FLUX__K(v) ((float)(v) - FLUX__F(zero))
#  define FLUX__KD(v) ((double)(v) - FLUX__F(zerod))
#  define FLUX__BITS(x) ((FLUX__VU)(x))
#  define FLUX__FLOAT(i) ((FLUX__V)(i))
#  define FLUX__DBITS(x) ((FLUX__VUL)(x))
#  define FLUX__DOUBLE(i) ((FLUX__VD)(i))
#  define FLUX__TOFLOAT(i) __builtin_convertvector(i, FLUX__V)
#  define FLUX__IF(cond, x, y) \
    ((FLUX__V)FLUX__F(pick)((FLUX__VI)(cond), (FLUX__VI)(x), (FLUX__VI)(y)))
#  define FLUX__IFD(cond, x, y) \
    ((FLUX__VD)FLUX__F(pickd)((FLUX__VL)(cond), (FLUX__VL)(x), (FLUX__VL)(y)))
#  define FLUX__VECTOR __attribute__((vector_size(4 * FLUX__LANES)))
#define FLUX__VECTOR_TYPES                                                                           \
typedef float FLUX__V FLUX__VECTOR;                                                                  \
typedef int32_t FLUX__VI FLUX__VECTOR;                                                               \
typedef uint32_t FLUX__VU FLUX__VECTOR;                                                              \
typedef double FLUX__VD FLUX__VECTOR;                                                                \
typedef int64_t FLUX__VL FLUX__VECTOR;                                                               \
typedef uint64_t FLUX__VUL FLUX__VECTOR;                                                             \
static const FLUX__V FLUX__F(zero) = { 0 };                                                          \
static const FLUX__VD FLUX__F(zerod) = { 0 };                                                        \
static FLUX__INLINE FLUX__VI FLUX__F(pick)(FLUX__VI m, FLUX__VI x, FLUX__VI y) {                     \
    return (x & m) | (y & ~m);                                                                       \
}                                                                                                    \
static FLUX__INLINE FLUX__VL FLUX__F(pickd)(FLUX__VL m, FLUX__VL x, FLUX__VL y) {                    \
    return (x & m) | (y & ~m);                                                                       \
}
#define FLUX__VECTOR_WIDTHS                                                                          \
static FLUX__INLINE FLUX__VD FLUX__F(widen)(FLUX__V x, int h) {                                      \
    return h ? FLUX__P(HIGH)(x) : FLUX__P(LOW)(x);                                                   \
}                                                                                                    \
FLUX__FN(narrow)(const FLUX__VD *x) { return FLUX__P(JOIN)(x[0], x[1]); }                            \
FLUX__VECTOR_RUN

/* What every machine has that the compiler was told of; on x86-64 SSE2. */
#  define FLUX__FLOATING_x4(yes, no) yes
#  define FLUX__LANES_x4 4
#  define FLUX__FMA_x4(a, b, c) ((a) * (b) + (c))
#  define FLUX__FMAD_x4(a, b, c) ((a) * (b) + (c))
#  define FLUX__MIN_x4(a, b) FLUX__IF((a) < (b), a, b)
#  define FLUX__MAX_x4(a, b) FLUX__IF((a) > (b), a, b)
#  define FLUX__HELD_x4(x) (x)
#  define FLUX__SCALE_x4(x, t) flux__scale_x4(x, t)
#  if FLUX__X86
#    define FLUX__SQRT_x4(x) ((FLUX__V)_mm_sqrt_ps((__m128)(x)))
#    define FLUX__LOW_x4(x) ((FLUX__VD)_mm_cvtps_pd((__m128)(x)))
#    define FLUX__HIGH_x4(x) ((FLUX__VD)_mm_cvtps_pd(_mm_movehl_ps((__m128)(x), (__m128)(x))))
#    define FLUX__JOIN_x4(x, y) \
        ((FLUX__V)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)(x)), _mm_cvtpd_ps((__m128d)(y))))
#    define FLUX__ALL_x4(mask) (_mm_movemask_ps((__m128)(mask)) == 15)
#    define FLUX__MUL32_x4(x, m) ((FLUX__VUL)_mm_mul_epu32((__m128i)(x), (__m128i)(m)))
#  else
#define FLUX__OF_LANES(type, name, args, ...)                                                        \
static FLUX__INLINE type name args {                                                                 \
    type v = { __VA_ARGS__ };                                                                        \
    return v;                                                                                        \
}
typedef float flux__four __attribute__((vector_size(16)));
typedef double flux__two __attribute__((vector_size(16)));
FLUX__OF_LANES(flux__four, flux__roots, (flux__four x), sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3]))
FLUX__OF_LANES(flux__two, flux__wide_lanes, (flux__four x, int i), (double)x[i], (double)x[i + 1])
FLUX__OF_LANES(flux__four, flux__joined, (flux__two x, flux__two y), (float)x[0], (float)x[1], (float)y[0], (float)y[1])
#    define FLUX__SQRT_x4(x) flux__roots(x)
#    define FLUX__LOW_x4(x) flux__wide_lanes(x, 0)
#    define FLUX__HIGH_x4(x) flux__wide_lanes(x, 2)
#    define FLUX__JOIN_x4(x, y) flux__joined(x, y)
#    define FLUX__ALL_x4(mask) ((mask)[0] & (mask)[1] & (mask)[2] & (mask)[3])
#    define FLUX__MUL32_x4(x, m) (((x) & (uint64_t)0xffffffff) * (m))
#  endif
#  define FLUX__KIND x4
FLUX__VECTOR_TYPES
FLUX__VECTOR_WIDTHS
FLUX__VECTOR_SECTION

#  if FLUX__X86
/* The instructions that the vector types have no operator for, as text: immintrin.h takes a compiler longer to read than
   a whole section. Operands stand in both orders, for -masm=intel. `in` says which registers it may be (AVX2's own
   instructions can't name those that AVX-512 adds), `half` is the letter of half a register. */
#define FLUX__INSTRUCTION(type, name, args, text, in, ...)                                           \
static FLUX__INLINE type FLUX__F(name) args {                                                        \
    type y;                                                                                          \
    __asm__(text : "=" in(y) : __VA_ARGS__);                                                         \
    return y;                                                                                        \
}
#if defined(__clang__)                    /* it can be told to fuse these, and then has its choice of operands */
#  define FLUX__FUSED_STEP(type, name, text, in)                                                     \
static FLUX__INLINE type FLUX__F(name)(type a, type b, type c) {                                     \
    _Pragma("STDC FP_CONTRACT ON")                                                                   \
    return a * b + c;                                                                                \
}
#else
#  define FLUX__FUSED_STEP(type, name, text, in)                                                     \
FLUX__INSTRUCTION(type, name, (type a, type b, type c), text, in, "0"(a), in(b), in(c))
#endif
#define FLUX__VECTOR_INSTRUCTIONS(in, half, extract, insert)                                         \
FLUX__INSTRUCTION(FLUX__V, vsqrt, (FLUX__V x), "vsqrtps {%1, %0|%0, %1}", in, in(x))                 \
FLUX__INSTRUCTION(FLUX__V, vmin, (FLUX__V a, FLUX__V b), "vminps {%2, %1, %0|%0, %1, %2}", in, in(a), in(b)) \
FLUX__INSTRUCTION(FLUX__V, vmax, (FLUX__V a, FLUX__V b), "vmaxps {%2, %1, %0|%0, %1, %2}", in, in(a), in(b)) \
FLUX__FUSED_STEP(FLUX__V, vfma, "vfmadd213ps {%3, %2, %0|%0, %2, %3}", in)                           \
FLUX__FUSED_STEP(FLUX__VD, vfmad, "vfmadd213pd {%3, %2, %0|%0, %2, %3}", in)                         \
FLUX__INSTRUCTION(FLUX__VUL, vmul32, (FLUX__VUL a, FLUX__VUL b),                                     \
                  "vpmuludq {%2, %1, %0|%0, %1, %2}", in, in(a), in(b))                              \
FLUX__INSTRUCTION(FLUX__VUL, held, (FLUX__VUL x), "", in, "0"(x))                                    \
FLUX__INSTRUCTION(FLUX__VD, low, (FLUX__V x), "vcvtps2pd {%" half "1, %0|%0, %" half "1}", in, in(x)) \
FLUX__INSTRUCTION(FLUX__VD, high, (FLUX__V x), extract " {$1, %1, %" half "0|%" half "0, %1, 1}\n\t" \
                  "vcvtps2pd {%" half "0, %0|%0, %" half "0}", in, in(x))                            \
FLUX__INSTRUCTION(FLUX__V, thin, (FLUX__VD x), "vcvtpd2ps {%1, %" half "0|%" half "0, %1}", in, in(x)) \
FLUX__INSTRUCTION(FLUX__V, vjoin, (FLUX__V a, FLUX__V b),                                            \
                  insert " {$1, %" half "2, %1, %0|%0, %1, %" half "2, 1}", in, in(a), in(b))

#    define FLUX__FLOATING_x8(yes, no) yes
#    define FLUX__LANES_x8 8
#    define FLUX__SQRT_x8(x) flux__vsqrt_x8(x)
#    define FLUX__FMA_x8(a, b, c) flux__vfma_x8(a, b, c)
#    define FLUX__FMAD_x8(a, b, c) flux__vfmad_x8(a, b, c)
#    define FLUX__MIN_x8(a, b) flux__vmin_x8(a, b)
#    define FLUX__MAX_x8(a, b) flux__vmax_x8(a, b)
#    define FLUX__HELD_x8(x) flux__held_x8(x)
#    define FLUX__SCALE_x8(x, t) flux__scale_x8(x, t)
#    define FLUX__LOW_x8(x) flux__low_x8(x)
#    define FLUX__HIGH_x8(x) flux__high_x8(x)
#    define FLUX__JOIN_x8(x, y) flux__vjoin_x8(flux__thin_x8(x), flux__thin_x8(y))
#    define FLUX__ALL_x8(mask) (flux__signs_x8(mask) == 255)
#    define FLUX__MUL32_x8(x, m) flux__vmul32_x8(x, m)
#    undef FLUX__KIND
#    define FLUX__KIND x8
#    if defined(__clang__)
#      pragma clang attribute push(FLUX__AVX2, apply_to = function)
#    else
#      pragma GCC push_options
#      pragma GCC target("avx2,fma,f16c")
#    endif
FLUX__VECTOR_TYPES
FLUX__VECTOR_INSTRUCTIONS("x", "x", "vextractf128", "vinsertf128")
FLUX__VECTOR_WIDTHS
static FLUX__INLINE int flux__signs_x8(FLUX__VI mask) {
    int y;
    __asm__("vmovmskps {%1, %0|%0, %1}" : "=r"(y) : "x"(mask));
    return y;
}
FLUX__VECTOR_SECTION
typedef uint16_t flux__halves __attribute__((vector_size(16)));
static void flux__half_load_x8(int64_t n, void *y, const void *x) {
    float *out = (float *)y, tail[8];
    const uint16_t *in = (const uint16_t *)x;
    flux__halves h;
    FLUX__V v;
    for (; n > 0; n -= 8, in += 8, out += 8) {
        memcpy(&h, n < 8 ? flux__fill(tail, in, 2, (size_t)n, 8) : in, sizeof h);
        __asm__("vcvtph2ps {%1, %0|%0, %1}" : "=x"(v) : "x"(h));
        if (n < 8) memcpy(tail, &v, sizeof v), memcpy(out, tail, (size_t)n * 4);
        else memcpy(out, &v, sizeof v);
    }
}
static void flux__half_store_x8(int64_t n, void *y, const void *x) {
    uint16_t *out = (uint16_t *)y;
    const float *in = (const float *)x;
    float tail[8];
    flux__halves h;
    FLUX__V v;
    for (; n > 0; n -= 8, in += 8, out += 8) {
        memcpy(&v, n < 8 ? flux__fill(tail, in, 4, (size_t)n, 8) : in, sizeof v);
        __asm__("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=x"(h) : "x"(v));
        if (n < 8) memcpy(tail, &h, sizeof h), memcpy(out, tail, (size_t)n * 2);
        else memcpy(out, &h, sizeof h);
    }
}
#    if defined(__clang__)
#      pragma clang attribute pop
#    else
#      pragma GCC pop_options
#    endif

#    undef FLUX__KIND
#    define FLUX__FLOATING_x16(yes, no) yes
#    define FLUX__LANES_x16 16
#    define FLUX__SQRT_x16(x) flux__vsqrt_x16(x)
#    define FLUX__FMA_x16(a, b, c) flux__vfma_x16(a, b, c)
#    define FLUX__FMAD_x16(a, b, c) flux__vfmad_x16(a, b, c)
#    define FLUX__MIN_x16(a, b) flux__vmin_x16(a, b)
#    define FLUX__MAX_x16(a, b) flux__vmax_x16(a, b)
#    define FLUX__HELD_x16(x) flux__held_x16(x)
#    define FLUX__SCALE_x16(x, t) flux__vscale_x16(x, (t) - FLUX__MAGIC)
#    define FLUX__LOW_x16(x) flux__low_x16(x)
#    define FLUX__HIGH_x16(x) flux__high_x16(x)
#    define FLUX__JOIN_x16(x, y) flux__vjoin_x16(flux__thin_x16(x), flux__thin_x16(y))
#    define FLUX__ALL_x16(mask) (flux__signs_x16(mask) == 65535)
#    define FLUX__MUL32_x16(x, m) flux__vmul32_x16(x, m)
#    define FLUX__KIND x16
#    if defined(__clang__)
#      pragma clang attribute push(FLUX__AVX512, apply_to = function)
#    else
#      pragma GCC push_options
#      pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#    endif
FLUX__VECTOR_TYPES
FLUX__VECTOR_INSTRUCTIONS("v", "t", "vextractf32x8", "vinsertf32x8")
FLUX__VECTOR_WIDTHS
FLUX__INSTRUCTION(FLUX__V, vscale, (FLUX__V x, FLUX__V n), "vscalefps {%2, %1, %0|%0, %1, %2}", "v", "v"(x), "v"(n))
static FLUX__INLINE uint16_t flux__signs_x16(FLUX__VI mask) {
    uint16_t y;
    __asm__("vpmovd2m {%1, %0|%0, %1}" : "=Yk"(y) : "v"(mask));
    return y;
}
FLUX__VECTOR_SECTION
#    if defined(__clang__)
#      pragma clang attribute pop
#    else
#      pragma GCC pop_options
#    endif
static const flux__section *const flux__sections[] = {
    &flux__section_x4, &flux__section_x8, &flux__section_x16 };
#  endif
#endif

static const flux__section *flux__section_now(void) {
#if FLUX__VECTORS && FLUX__X86
    return flux__sections[flux__simd()];
#else
    return &FLUX__F(section);
#endif
}

/* The loop of an operation of the table, or NULL where its dtype rule leaves none. */
static flux__loop flux__loop_for(int cls, int op) {
    static const flux__loop *const tables[] = { NULL, flux__loops_f64, flux__loops_i32, flux__loops_i64 };
    if (cls < 0 || cls >= FLUX__CLASSES || op < 0 || op >= FLUX__ELEMENTWISE_COUNT) return NULL;
    return cls == FLUX__F32C ? flux__section_now()->loops[op] : tables[cls][op];
}

/* Runs one of them. A loop for vectors is called as it is only where there is nothing to fill up. */
static FLUX__INLINE void flux__loop_run(int cls, flux__loop f, int64_t n, void *y, const void *a, const void *b, const void *c,
                           int sa, int sb, int sc) {
    if (cls == FLUX__F32C && (n % 16 || !(sa & sb & sc))) flux__section_now()->run(f, n, y, a, b, c, sa, sb, sc);
    else f(n, y, a, b, c, sa, sb, sc);
}

/* ---- casts: between a tensor's elements, of any dtype and stride, and a tile of one class
   Each dtype has its own class, in which it is read and written; others are reached through that. */

static const uint8_t flux__loop_class[FLUX_NUM_DTYPES] = {
    FLUX__F32C, FLUX__F64C, FLUX__F32C, FLUX__F32C, FLUX__I32C, FLUX__I64C, FLUX__I32C, FLUX__I32C };
static const uint8_t flux__class_size[FLUX__CLASSES] = { 4, 8, 4, 8 };

#if FLUX__VECTORS && !defined(__clang__)
#  define FLUX__FAST __attribute__((optimize("O3")))      /* casts worth the compiler's time */
#else
#  define FLUX__FAST
#endif
#define FLUX__CASTING(name, Y, X, value)                                                             \
static void name(int64_t n, void *out, const void *in) {                                             \
    const X *x = (const X *)in;                                                                      \
    Y *y = (Y *)out;                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                                \
        const X v = x[i];                                                                            \
        y[i] = value;                                                                                \
    }                                                                                                \
}
/* a float as an integer: towards zero, the nearest there is if out of range, 0 for NaN */
#define FLUX__WHOLE(T, v, least, beyond, most) \
    ((v) >= (beyond) ? (most) : (v) > (least) ? (T)(v) : (v) <= (least) ? (T)(least) : (T)0)
#define FLUX__2_31 2147483648.0f
#define FLUX__2_63 9223372036854775808.0f
FLUX__FAST FLUX__CASTING(flux__f32_f64, double, float, (double)v)
FLUX__FAST FLUX__CASTING(flux__f64_f32, float, double, (float)v)
FLUX__FAST FLUX__CASTING(flux__i32_f32, float, int32_t, (float)v)
FLUX__FAST FLUX__CASTING(flux__u8_i32, int32_t, uint8_t, v)
FLUX__CASTING(flux__bool_i32, int32_t, uint8_t, v != 0)
FLUX__CASTING(flux__i32_f64, double, int32_t, (double)v)
FLUX__CASTING(flux__i32_i64, int64_t, int32_t, (int64_t)v)
FLUX__CASTING(flux__i64_f32, float, int64_t, (float)v)
FLUX__CASTING(flux__i64_f64, double, int64_t, (double)v)
FLUX__CASTING(flux__i64_i32, int32_t, int64_t, (int32_t)v)
FLUX__CASTING(flux__f32_i32, int32_t, float, FLUX__WHOLE(int32_t, v, -FLUX__2_31, FLUX__2_31, INT32_MAX))
FLUX__CASTING(flux__f64_i32, int32_t, double, FLUX__WHOLE(int32_t, v, -2147483648.0, 2147483647.0, INT32_MAX))
FLUX__CASTING(flux__f32_i64, int64_t, float, FLUX__WHOLE(int64_t, v, -FLUX__2_63, FLUX__2_63, INT64_MAX))
FLUX__CASTING(flux__f64_i64, int64_t, double,
              FLUX__WHOLE(int64_t, v, -(double)FLUX__2_63, (double)FLUX__2_63, INT64_MAX))
FLUX__CASTING(flux__f32_u8, uint8_t, float, FLUX__WHOLE(uint8_t, v, 0, 255, 255))
FLUX__CASTING(flux__f64_u8, uint8_t, double, FLUX__WHOLE(uint8_t, v, 0, 255, 255))
FLUX__CASTING(flux__i32_u8, uint8_t, int32_t, (uint8_t)v)
FLUX__CASTING(flux__f32_bool, uint8_t, float, v != 0)
FLUX__CASTING(flux__f64_bool, uint8_t, double, v != 0)
FLUX__CASTING(flux__i32_bool, uint8_t, int32_t, v != 0)
FLUX__CASTING(flux__i64_bool, uint8_t, int64_t, v != 0)

static FLUX__INLINE float flux__from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static FLUX__INLINE uint32_t flux__to_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
/* to the nearest, a half to even; NaN becomes 0x7fc0 */
static FLUX__INLINE uint16_t flux__bf16_of(float x) {
    uint32_t u = flux__to_bits(x);
    return (uint16_t)(x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
/* a product moves the exponent by 112, and denormals survive it */
static FLUX__INLINE float flux__half_value(uint16_t h) {
    float x = flux__from_bits((uint32_t)(h & 0x7fff) << 13) * 5.192296858534828e33f;
    uint32_t u = flux__to_bits(x) | (x >= 65536 ? 0x7f800000u : 0);
    if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) u |= 0x400000;
    return flux__from_bits(u | (uint32_t)(h & 0x8000) << 16);
}
/* as the processor's own: a NaN stays one, with what fits of its bits; adding 0.5 rounds a denormal */
static FLUX__INLINE uint16_t flux__half_of(float x) {
    uint32_t u = flux__to_bits(x) & 0x7fffffff, sign = (flux__to_bits(x) >> 16) & 0x8000, h;
    if (u > 0x7f800000) h = 0x7e00 | ((u >> 13) & 0x3ff);
    else if (u < 0x38800000) h = flux__to_bits(flux__from_bits(u) + 0.5f) - 0x3f000000;
    else h = (u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13;
    return (uint16_t)((u <= 0x7f800000 && h > 0x7c00 ? 0x7c00 : h) | sign);
}
FLUX__FAST FLUX__CASTING(flux__bf16_f32, float, uint16_t, flux__from_bits((uint32_t)v << 16))
FLUX__FAST FLUX__CASTING(flux__f32_bf16, uint16_t, float, flux__bf16_of(v))
FLUX__CASTING(flux__f16_f32, float, uint16_t, flux__half_value(v))
FLUX__CASTING(flux__f32_f16, uint16_t, float, flux__half_of(v))

#define FLUX__COPIES(name, size)                                                                     \
static void name(int64_t n, void *dst, int64_t to, const void *src, int64_t from) {                  \
    char *y = (char *)dst;                                                                           \
    const char *x = (const char *)src;                                                               \
    for (int64_t i = 0; i < n; i++) memcpy(y + i * to * size, x + i * from * size, size);            \
}
FLUX__COPIES(flux__copies1, 1)
FLUX__COPIES(flux__copies2, 2)
FLUX__COPIES(flux__copies4, 4)
FLUX__COPIES(flux__copies8, 8)
/* n elements of so many bytes: `from` elements apart, to where they stand `to` apart */
static void flux__copies(size_t size, int64_t n, void *dst, int64_t to, const void *src, int64_t from) {
    if (n <= 0) return;
    if (to == 1 && from == 1) memcpy(dst, src, size * (size_t)n);
    else if (to == 1 && from == 0) flux__fill(dst, src, size, 1, (size_t)n);
    else if (size == 1) flux__copies1(n, dst, to, src, from);
    else if (size == 2) flux__copies2(n, dst, to, src, from);
    else if (size == 4) flux__copies4(n, dst, to, src, from);
    else flux__copies8(n, dst, to, src, from);
}

static void flux__convert(int to_cls, void *dst, int from_cls, const void *src, int64_t n) {
    static const flux__cast_fn table[FLUX__CLASSES][FLUX__CLASSES] = {    /* [from][to] */
        { NULL, flux__f32_f64, flux__f32_i32, flux__f32_i64 },
        { flux__f64_f32, NULL, flux__f64_i32, flux__f64_i64 },
        { flux__i32_f32, flux__i32_f64, NULL, flux__i32_i64 },
        { flux__i64_f32, flux__i64_f64, flux__i64_i32, NULL } };
    if (to_cls == from_cls) memcpy(dst, src, flux__class_size[to_cls] * (size_t)n);
    else table[from_cls][to_cls](n, dst, src);
}

/* From a dtype's elements to its own class. NULL: they are that already. */
static flux__cast_fn flux__reader(int dtype) {
#if FLUX__VECTORS && FLUX__X86
    if (dtype == FLUX_F16 && flux__simd() > 0) return flux__half_load_x8;
#endif
    switch (dtype) {
    case FLUX_F16: return flux__f16_f32;
    case FLUX_BF16: return flux__bf16_f32;
    case FLUX_U8: return flux__u8_i32;
    case FLUX_BOOL: return flux__bool_i32;
    default: return NULL;
    }
}
/* To a dtype's elements, from this class where that matters (a truth, a byte's range), else from
   its own, which *cls then is. NULL: they are that already. */
static flux__cast_fn flux__writer(int dtype, int *cls) {
    static const flux__cast_fn truth[] = { flux__f32_bool, flux__f64_bool, flux__i32_bool, flux__i64_bool };
    if (dtype == FLUX_BOOL) return truth[*cls];
    if (dtype == FLUX_U8 && *cls == FLUX__F32C) return flux__f32_u8;
    if (dtype == FLUX_U8 && *cls == FLUX__F64C) return flux__f64_u8;
    *cls = flux__loop_class[dtype];
#if FLUX__VECTORS && FLUX__X86
    if (dtype == FLUX_F16 && flux__simd() > 0) return flux__half_store_x8;
#endif
    switch (dtype) {
    case FLUX_F16: return flux__f32_f16;
    case FLUX_BF16: return flux__f32_bf16;
    case FLUX_U8: return flux__i32_u8;
    default: return NULL;
    }
}

#define FLUX__CAST_TILE 256               /* elements a step, where something lies between */

/* n elements of a tensor, `stride` elements apart (0, 1, any), as a tile; and back. */
static void flux__load(int cls, void *dst, int dtype, const void *src, int64_t stride, int64_t n) {
    const flux__cast_fn read = flux__reader(dtype);
    const int own = flux__loop_class[dtype];
    const int64_t size = (int64_t)flux_dtype_size((flux_dtype)dtype), width = flux__class_size[cls];
    double a[FLUX__CAST_TILE], b[FLUX__CAST_TILE];
    if (!read && own == cls) {
        flux__copies((size_t)size, n, dst, 1, src, stride);
        return;
    }
    for (int64_t i = 0; i < n; i += FLUX__CAST_TILE) {
        const int64_t m = n - i < FLUX__CAST_TILE ? n - i : FLUX__CAST_TILE;
        const void *x = (const char *)src + i * stride * size;
        void *y = (char *)dst + i * width;
        if (stride != 1) flux__copies((size_t)size, m, a, 1, x, stride), x = a;
        if (read) read(m, own == cls ? y : b, x), x = b;
        if (own != cls) flux__convert(cls, y, own, x, m);
    }
}

static void flux__store(int dtype, void *dst, int64_t stride, int cls, const void *src, int64_t n) {
    int needs = cls;
    const flux__cast_fn write = flux__writer(dtype, &needs);
    const int64_t size = (int64_t)flux_dtype_size((flux_dtype)dtype), width = flux__class_size[cls];
    double a[FLUX__CAST_TILE], b[FLUX__CAST_TILE];
    if (!write && needs == cls) {
        flux__copies((size_t)size, n, dst, stride, src, 1);
        return;
    }
    for (int64_t i = 0; i < n; i += FLUX__CAST_TILE) {
        const int64_t m = n - i < FLUX__CAST_TILE ? n - i : FLUX__CAST_TILE;
        const void *x = (const char *)src + i * width;
        void *y = (char *)dst + i * stride * size;
        if (needs != cls) flux__convert(needs, !write && stride == 1 ? y : a, cls, x, m), x = a;
        if (write) write(m, stride == 1 ? y : b, x), x = b;
        if (stride != 1) flux__copies((size_t)size, m, y, stride, x, 1);
    }
}

/* Rounds or wraps what a tile holds to what the dtype can. */
static void flux__wrap(int dtype, int cls, void *x, int64_t n) {
    double tile[FLUX__CAST_TILE];
    if (dtype <= FLUX_F64 || (dtype == FLUX_I32 && cls == FLUX__I32C) || (dtype == FLUX_I64 && cls == FLUX__I64C))
        return;
    for (int64_t i = 0; i < n; i += FLUX__CAST_TILE) {
        const int64_t m = n - i < FLUX__CAST_TILE ? n - i : FLUX__CAST_TILE;
        void *part = (char *)x + i * flux__class_size[cls];
        flux__store(dtype, tile, 1, cls, part, m);
        flux__load(cls, part, dtype, tile, 1, m);
    }
}
FLUX__UNUSED static void flux__round_half(int dtype, float *x, int64_t n) {
    flux__wrap(dtype, FLUX__F32C, x, n);
}

/* ---- reductions */

/* What changes nothing when joined. */
static void flux__identity(int cls, int red, void *out) {
    const bool narrow = cls == FLUX__I32C;
    const double real[] = { 0, 1, -HUGE_VAL, HUGE_VAL };
    const int64_t whole[] = { 0, 1, narrow ? INT32_MIN : INT64_MIN, narrow ? INT32_MAX : INT64_MAX };
    if (cls <= FLUX__F64C) flux__convert(cls, out, FLUX__F64C, real + red, 1);
    else flux__convert(cls, out, FLUX__I64C, whole + red, 1);
}

/* acc[i] = acc[i] op x[i] */
static void flux__accumulate(int cls, int red, void *acc, const void *x, int64_t n) {
    static const int op[] = { FLUX__OP_ADD, FLUX__OP_MUL, FLUX__OP_MAX2, FLUX__OP_MIN2 };
    flux__loop_run(cls, flux__loop_for(cls, op[red]), n, acc, acc, x, acc, 1, 1, 1);
}

/* acc = acc op x[0] op ... op x[n-1]. Long rows are halved, so that a sum's error hardly grows. */
static void flux__reduce(int cls, int red, void *acc, const void *x, int64_t n) {
    static const flux__fold_fn *const tables[] = { NULL, flux__folds_f64, flux__folds_i32, flux__folds_i64 };
    if (n > 4096) {
        const int64_t half = (n / 2 + 4095) / 4096 * 4096;
        double part;
        flux__identity(cls, red, &part);
        flux__reduce(cls, red, &part, x, half);
        flux__reduce(cls, red, &part, (const char *)x + half * flux__class_size[cls], n - half);
        flux__accumulate(cls, red, acc, &part, 1);
    } else {
        (cls == FLUX__F32C ? flux__section_now()->folds : tables[cls])[red](acc, x, n);
    }
}

/* Where the largest or smallest stands: the first of equals, but the first NaN before all others.
   An index below 0 says that there is none yet. */
#define FLUX__ARG(name, T, cls)                                                                      \
static FLUX__INLINE bool flux__beats_##name(T x, T best, bool max) {                                 \
    return best == best && (x != x || (max ? x > best : x < best));                                  \
}                                                                                                    \
static void flux__argreduce_##name(bool max, void *acc, int64_t *index, const void *in, int64_t n,   \
                                   int64_t first) {                                                  \
    const T *x = (const T *)in;                                                                      \
    T *best = (T *)acc, top;                                                                         \
    int64_t i = 0;                                                                                   \
    if (n <= 0) return;                                                                              \
    memcpy(&top, x, sizeof top);                                                                     \
    flux__reduce(cls, max ? FLUX__RED_MAX : FLUX__RED_MIN, &top, x, n);                              \
    if (*index >= 0 && !flux__beats_##name(top, *best, max)) return;                                 \
    while (top == top ? x[i] != top : x[i] == x[i]) i++;                                             \
    *best = x[i];                                                                                    \
    *index = first + i;                                                                              \
}                                                                                                    \
static void flux__argaccumulate_##name(bool max, void *acc, int64_t *index, const void *in,          \
                                       int64_t n, int64_t now) {                                     \
    const T *x = (const T *)in;                                                                      \
    T *best = (T *)acc;                                                                              \
    for (int64_t i = 0; i < n; i++)                                                                  \
        if (index[i] < 0 || flux__beats_##name(x[i], best[i], max)) best[i] = x[i], index[i] = now;  \
}
FLUX__ARG(f32, float, FLUX__F32C)
FLUX__ARG(f64, double, FLUX__F64C)
FLUX__ARG(i32, int32_t, FLUX__I32C)
FLUX__ARG(i64, int64_t, FLUX__I64C)
typedef void (*flux__arg_fn)(bool max, void *best, int64_t *index, const void *x, int64_t n, int64_t at);

/* best and index over x, whose first element is number `first`. */
FLUX__UNUSED static void flux__argreduce(int cls, bool max, void *best, int64_t *index, const void *x,
                                         int64_t n, int64_t first) {
    static const flux__arg_fn table[] = { flux__argreduce_f32, flux__argreduce_f64,
                                          flux__argreduce_i32, flux__argreduce_i64 };
    table[cls](max, best, index, x, n, first);
}
/* best[i] and index[i] with x[i]; all x are number `now` of their row. */
FLUX__UNUSED static void flux__argaccumulate(int cls, bool max, void *best, int64_t *index,
                                             const void *x, int64_t n, int64_t now) {
    static const flux__arg_fn table[] = { flux__argaccumulate_f32, flux__argaccumulate_f64,
                                          flux__argaccumulate_i32, flux__argaccumulate_i64 };
    table[cls](max, best, index, x, n, now);
}

/* ---- random numbers: kind 0 uniform in [0, 1) with 24 bits, 1 standard normal */

/* Number `first` of a stream and those after it. */
static void flux__philox_run(uint64_t key, uint64_t stream, int64_t first, int64_t n, float *out, int kind) {
    const flux__random_fn make = flux__section_now()->random;
    float part[FLUX__RANDOM_BLOCK];
    while (n > 0) {
        const int64_t skip = first % FLUX__RANDOM_BLOCK, blocks = skip ? 0 : n / FLUX__RANDOM_BLOCK;
        int64_t m = blocks ? blocks * FLUX__RANDOM_BLOCK : FLUX__RANDOM_BLOCK - skip;
        if (m > n) m = n;
        make(key, stream, (uint64_t)(first - skip) / 4, blocks ? blocks : 1, blocks ? out : part, kind);
        if (!blocks) memcpy(out, part + skip, (size_t)m * sizeof *out);
        first += m, n -= m, out += m;
    }
}

/* Those of the numbers index[i], none negative, in any order. */
FLUX__UNUSED static void flux__philox(uint64_t key, uint64_t stream, const int64_t *index, int64_t n,
                                      float *out, int kind) {
    for (int64_t i = 0, m; i < n; i += m) {
        for (m = 1; i + m < n && index[i + m] == index[i] + m;) m++;
        flux__philox_run(key, stream, index[i], m, out + i, kind);
    }
}

#if FLUX__VECTORS && defined(__clang__)
#  pragma float_control(pop)
#elif FLUX__VECTORS
#  pragma GCC pop_options
#endif

/* ------------------------------------------------------------------ 10. Matrix product
   C = A B, in f32 or f64, for any strides. A tile of C stays in registers: vectors run down the
   columns of A and C, single elements of B are broadcast: 32 rows by 12 columns with AVX-512.
   Both operands are read where they lie when that is fast enough; else blocks of them are copied:
   A into panels as high as a tile, turned on the way if its columns are strided, B column by
   column to a distance at which columns do not crowd into one set of the cache.

   Threads share out blocks of C. k is cut into chunks by its own length alone, and chunks are added
   in order: an element's sum is the same for any number of threads, any block and any tile. Where
   A has few rows and B many columns the roles are swapped, and a block of C is turned at its end.

   One macro makes the kernels of every instruction set, for several numbers of columns, so that
   little work goes into padding. Vectors are the compiler's own type.
   Rejected: intrinsics (immintrin.h alone takes half as long to compile as all of this); packing
   all of A and B (twice the memory, and slower for the flat matrices of a training step).       */

typedef struct flux__gemm_job {
    int64_t m, n, k;
    const void *a;                        /* A, m x k, and its strides in elements: */
    int64_t a_row, a_col;                 /* from row to row, from column to column */
    const void *b;                        /* B, k x n */
    int64_t b_row, b_col;
    void *c;                              /* C, m x n, its columns ldc apart */
    int64_t ldc;                          /* c NULL: only the epilogue sees C */
    /* May be NULL. Called once for each finished piece of C, from any thread, while it is in the
       cache: rows i0 ... i0+mb-1, columns j0 ... j0+nb-1, its (i, j) at block[i + j * ld]. */
    void (*epilogue)(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb,
                     void *block, int64_t ld);
    void *ctx;
} flux__gemm_job;

/* A kernel adds up k products for one tile: of A as many rows as the tile has, columns a_step apart. */
typedef void (*flux__gemm_kernel)(int64_t k, const void *a, int64_t a_step, const void *b,
                                  int64_t b_row, int64_t b_col, void *c, int64_t ldc, bool add);

/* Rows of A, contiguous, times one column: y[i * y_step] for each. */
typedef void (*flux__gemm_dots)(int64_t k, const void *a, int64_t a_row, const void *x, void *y,
                                int64_t y_step, int64_t rows);

typedef struct flux__gemm_set {           /* the kernels for one element type and instruction set */
    int lanes, columns;                   /* elements of a vector; most columns of a tile */
    const flux__gemm_kernel *one, *two;   /* one and two vectors high; of 1, 2, 3, 4, 6, ... columns */
    flux__gemm_dots dots;
} flux__gemm_set;

/* Column j of B is read through pointer j / 3, at 0, 1 or 2 column strides from it: what an address
   can hold. */
#define FLUX__COLUMNS1(X) X(0, 0, 0)
#define FLUX__COLUMNS2(X) FLUX__COLUMNS1(X) X(1, 0, 1)
#define FLUX__COLUMNS3(X) FLUX__COLUMNS2(X) X(2, 0, 2)
#define FLUX__COLUMNS4(X) FLUX__COLUMNS3(X) X(3, 1, 0)
#define FLUX__COLUMNS5(X) FLUX__COLUMNS4(X) X(4, 1, 1)
#define FLUX__COLUMNS6(X) FLUX__COLUMNS5(X) X(5, 1, 2)
#define FLUX__COLUMNS7(X) FLUX__COLUMNS6(X) X(6, 2, 0)
#define FLUX__COLUMNS8(X) FLUX__COLUMNS7(X) X(7, 2, 1)
#define FLUX__COLUMNS9(X) FLUX__COLUMNS8(X) X(8, 2, 2)
#define FLUX__COLUMNS10(X) FLUX__COLUMNS9(X) X(9, 3, 0)
#define FLUX__COLUMNS11(X) FLUX__COLUMNS10(X) X(10, 3, 1)
#define FLUX__COLUMNS12(X) FLUX__COLUMNS11(X) X(11, 3, 2)

#if (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#  define FLUX__GEMM_VECTORS 1
#else
#  define FLUX__GEMM_VECTORS 0
#endif

#if FLUX__GEMM_VECTORS
#  if defined(__clang__)
#    define FLUX__GEMM_FN(target) static target
#    define FLUX__GEMM_FUSE _Pragma("STDC FP_CONTRACT ON")
#  else
#    define FLUX__GEMM_FN(target) /* as fast as "O2" here, and compiled in less time */            \
        static __attribute__((optimize("O1", "expensive-optimizations", "fp-contract=fast"))) target
#    define FLUX__GEMM_FUSE
#  endif
#  define FLUX__GEMM_TYPES(bytes)                                                                  \
    typedef float flux__gemm_f##bytes __attribute__((vector_size(bytes), aligned(4), may_alias));  \
    typedef double flux__gemm_d##bytes __attribute__((vector_size(bytes), aligned(8), may_alias));
FLUX__GEMM_TYPES(16)
FLUX__GEMM_TYPES(32)
FLUX__GEMM_TYPES(64)

#  define FLUX__K_ZERO1(j, q, r) x##j = zero;
#  define FLUX__K_ZERO2(j, q, r) x##j = y##j = zero;
#  define FLUX__K_VAR1(j, q, r) , x##j
#  define FLUX__K_VAR2(j, q, r) , x##j, y##j
#  define FLUX__K_MUL1(j, q, r) x##j += u * (b##q[r * b_col] - zero);
#  define FLUX__K_MUL2(j, q, r) w = b##q[r * b_col] - zero; x##j += u * w; y##j += v * w;
#  define FLUX__K_ADD1(j, q, r) x##j += at[0]; at = FLUX__K_NEXT(at);
#  define FLUX__K_ADD2(j, q, r) x##j += at[0]; y##j += at[1]; at = FLUX__K_NEXT(at);
#  define FLUX__K_PUT1(j, q, r) at[0] = x##j; at = FLUX__K_NEXT(at);
#  define FLUX__K_PUT2(j, q, r) at[0] = x##j; at[1] = y##j; at = FLUX__K_NEXT(at);
#  define FLUX__K_SEE1(j, q, r) __builtin_prefetch(at, 1); at = FLUX__K_NEXT(at);
#  define FLUX__K_SEE2(j, q, r) __builtin_prefetch(at + 1, 1); FLUX__K_SEE1(j, q, r)
#  define FLUX__K_NEXT(at) (V *)(void *)((T *)(void *)at + ldc)

#  define FLUX__GEMM_KERNEL(name, type, vec, high, wide, target)                                   \
    FLUX__GEMM_FN(target) void name##_##high##x##wide(                                             \
        int64_t k, const void *a, int64_t a_step, const void *b, int64_t b_row, int64_t b_col,     \
        void *c, int64_t ldc, bool add) {                                                          \
        FLUX__GEMM_FUSE                                                                            \
        typedef vec V;                                                                             \
        typedef type T;                                                                            \
        const T *b0 = (const T *)b, *b1 = wide > 3 ? b0 + 3 * b_col : b0,                          \
                *b2 = wide > 6 ? b1 + 3 * b_col : b0, *b3 = wide > 9 ? b2 + 3 * b_col : b0;        \
        const T *p = (const T *)a;                                                                 \
        V *at, u, v, w, zero = {0} FLUX__COLUMNS##wide(FLUX__K_VAR##high);                         \
        at = (V *)c;                                                                               \
        FLUX__COLUMNS##wide(FLUX__K_SEE##high)                                                     \
        FLUX__COLUMNS##wide(FLUX__K_ZERO##high)                                                    \
        for (; k > 0; k--) {                                                                       \
            u = ((const V *)(const void *)p)[0];                                                   \
            if (high == 2) v = ((const V *)(const void *)p)[high - 1];                             \
            FLUX__COLUMNS##wide(FLUX__K_MUL##high)                                                 \
            p += a_step, b0 += b_row, b1 += b_row, b2 += b_row, b3 += b_row;                       \
        }                                                                                          \
        at = (V *)c;                                                                               \
        if (add) { FLUX__COLUMNS##wide(FLUX__K_ADD##high) }                                        \
        at = (V *)c;                                                                               \
        FLUX__COLUMNS##wide(FLUX__K_PUT##high)                                                     \
        (void)v, (void)w, (void)b3;                                                                \
    }
#  define FLUX__GEMM_HIGH6(name, type, vec, high, target)                                          \
    FLUX__GEMM_KERNEL(name, type, vec, high, 1, target)                                            \
    FLUX__GEMM_KERNEL(name, type, vec, high, 2, target)                                            \
    FLUX__GEMM_KERNEL(name, type, vec, high, 3, target)                                            \
    FLUX__GEMM_KERNEL(name, type, vec, high, 4, target)                                            \
    FLUX__GEMM_KERNEL(name, type, vec, high, 6, target)
#  define FLUX__GEMM_HIGH8(name, type, vec, high, target)                                          \
    FLUX__GEMM_HIGH6(name, type, vec, high, target)                                                \
    FLUX__GEMM_KERNEL(name, type, vec, high, 8, target)
#  define FLUX__GEMM_HIGH12(name, type, vec, high, target)                                         \
    FLUX__GEMM_HIGH8(name, type, vec, high, target)                                                \
    FLUX__GEMM_KERNEL(name, type, vec, high, 10, target)                                           \
    FLUX__GEMM_KERNEL(name, type, vec, high, 12, target)
#  define FLUX__GEMM_LIST6(n) n##1, n##2, n##3, n##4, n##6
#  define FLUX__GEMM_LIST8(n) FLUX__GEMM_LIST6(n), n##8
#  define FLUX__GEMM_LIST12(n) FLUX__GEMM_LIST8(n), n##10, n##12
#  define FLUX__GEMM_DOTS(name, type, vec, target)                                                 \
    FLUX__GEMM_FN(target) void name##_dots(int64_t k, const void *a, int64_t a_row, const void *x, \
                                           void *y, int64_t y_step, int64_t rows) {                \
        FLUX__GEMM_FUSE                                                                            \
        enum { lanes = (int)(sizeof(vec) / sizeof(type)) };                                        \
        int64_t r, i;                                                                              \
        int h, l;                                                                                  \
        for (r = 0; r < rows; r++) {                                                               \
            const type *p = (const type *)a + r * a_row, *q = (const type *)x;                     \
            vec s = {0}, t = {0}, u = {0}, v = {0};                                                \
            type part[lanes], rest = 0;                                                            \
            for (i = k; i >= 4 * lanes; i -= 4 * lanes, p += 4 * lanes, q += 4 * lanes) {          \
                const vec *f = (const vec *)(const void *)p, *g = (const vec *)(const void *)q;    \
                s += f[0] * g[0], t += f[1] * g[1], u += f[2] * g[2], v += f[3] * g[3];            \
            }                                                                                      \
            for (; i >= lanes; i -= lanes, p += lanes, q += lanes)                                 \
                s += *(const vec *)(const void *)p * *(const vec *)(const void *)q;                \
            for (; i > 0; i--) rest += *p++ * *q++;                                                \
            s = (s + t) + (u + v);                                                                 \
            memcpy(part, &s, sizeof part);                                                         \
            for (h = lanes / 2; h > 0; h /= 2)                                                     \
                for (l = 0; l < h; l++) part[l] += part[l + h];                                    \
            ((type *)y)[r * y_step] = part[0] + rest;                                              \
        }                                                                                          \
    }
#  define FLUX__GEMM_SET(name, type, vec, bytes, wide, target)                                     \
    FLUX__GEMM_HIGH##wide(name, type, vec, 1, target)                                              \
    FLUX__GEMM_HIGH##wide(name, type, vec, 2, target)                                              \
    FLUX__GEMM_DOTS(name, type, vec, target)                                                       \
    static const flux__gemm_kernel name##_one[] = {FLUX__GEMM_LIST##wide(name##_1x)};              \
    static const flux__gemm_kernel name##_two[] = {FLUX__GEMM_LIST##wide(name##_2x)};              \
    static const flux__gemm_set name = {bytes / (int)sizeof(type), wide, name##_one, name##_two,   \
                                        name##_dots};

#  if defined(__aarch64__)
FLUX__GEMM_SET(flux__gemm_f32_base, float, flux__gemm_f16, 16, 8, )
FLUX__GEMM_SET(flux__gemm_f64_base, double, flux__gemm_d16, 16, 8, )
#  else
FLUX__GEMM_SET(flux__gemm_f32_base, float, flux__gemm_f16, 16, 6, )
FLUX__GEMM_SET(flux__gemm_f64_base, double, flux__gemm_d16, 16, 6, )
#  endif
#  if FLUX__X86
FLUX__GEMM_SET(flux__gemm_f32_avx2, float, flux__gemm_f32, 32, 6, FLUX__AVX2)
FLUX__GEMM_SET(flux__gemm_f64_avx2, double, flux__gemm_d32, 32, 6, FLUX__AVX2)
FLUX__GEMM_SET(flux__gemm_f32_avx512, float, flux__gemm_f64, 64, 12, FLUX__AVX512)
FLUX__GEMM_SET(flux__gemm_f64_avx512, double, flux__gemm_d64, 64, 8, FLUX__AVX512)
#  endif

#else
/* A compiler without vectors: the same interface, four rows to a "vector", four columns at most. */
#  define FLUX__GEMM_FN(target) static
#  define FLUX__GEMM_KERNEL(name, type, high, wide)                                                \
    static void name##_##high##x##wide(int64_t k, const void *a, int64_t a_step, const void *b,    \
                                       int64_t b_row, int64_t b_col, void *c, int64_t ldc, bool add) { \
        type x[wide][4 * high] = {{0}}, *to = (type *)c, w;                                        \
        const type *f = (const type *)a, *g = (const type *)b;                                     \
        int64_t i, j;                                                                              \
        for (; k > 0; k--, f += a_step, g += b_row)                                                \
            for (j = 0; j < wide; j++)                                                             \
                for (i = 0, w = g[j * b_col]; i < 4 * high; i++) x[j][i] += f[i] * w;              \
        for (j = 0; j < wide; j++, to += ldc)                                                      \
            for (i = 0; i < 4 * high; i++) to[i] = x[j][i] + (add ? to[i] : 0);                    \
    }
#  define FLUX__GEMM_HIGH(name, type, high)                                                        \
    FLUX__GEMM_KERNEL(name, type, high, 1) FLUX__GEMM_KERNEL(name, type, high, 2)                  \
    FLUX__GEMM_KERNEL(name, type, high, 3) FLUX__GEMM_KERNEL(name, type, high, 4)
#  define FLUX__GEMM_DOTS(name, type)                                                              \
    static void name##_dots(int64_t k, const void *a, int64_t a_row, const void *x, void *y,       \
                            int64_t y_step, int64_t rows) {                                        \
        const type *f = (const type *)a, *g = (const type *)x;                                     \
        int64_t r, i;                                                                              \
        for (r = 0; r < rows; r++, f += a_row) {                                                   \
            type sum = 0;                                                                          \
            for (i = 0; i < k; i++) sum += f[i] * g[i];                                            \
            ((type *)y)[r * y_step] = sum;                                                         \
        }                                                                                          \
    }
#  define FLUX__GEMM_SET(name, type)                                                               \
    FLUX__GEMM_HIGH(name, type, 1)                                                                 \
    FLUX__GEMM_HIGH(name, type, 2)                                                                 \
    FLUX__GEMM_DOTS(name, type)                                                                    \
    static const flux__gemm_kernel name##_one[] = {name##_1x1, name##_1x2, name##_1x3, name##_1x4}; \
    static const flux__gemm_kernel name##_two[] = {name##_2x1, name##_2x2, name##_2x3, name##_2x4}; \
    static const flux__gemm_set name = {4, 4, name##_one, name##_two, name##_dots};
FLUX__GEMM_SET(flux__gemm_f32_base, float)
FLUX__GEMM_SET(flux__gemm_f64_base, double)
#endif

static const flux__gemm_set *flux__gemm_kernels(bool f64) {
#if FLUX__GEMM_VECTORS && FLUX__X86
    int level = flux__simd();
    if (level == 2) return f64 ? &flux__gemm_f64_avx512 : &flux__gemm_f32_avx512;
    if (level == 1) return f64 ? &flux__gemm_f64_avx2 : &flux__gemm_f32_avx2;
#endif
    return f64 ? &flux__gemm_f64_base : &flux__gemm_f32_base;
}

/* ---- copying operands */

static int64_t flux__gemm_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t flux__gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }

#if FLUX__GEMM_VECTORS
#  define FLUX__PREFETCH(p) __builtin_prefetch(p);
#  define FLUX__PREFETCH_LATER(p) __builtin_prefetch(p, 0, 2);
#else
#  define FLUX__PREFETCH(p) (void)(p);
#  define FLUX__PREFETCH_LATER(p) (void)(p);
#endif
#define FLUX__GEMM_MOVE(vec, to, from) *(vec *)(void *)(to) = *(const vec *)(const void *)(from);

/* Copies rows of `columns` contiguous elements, from_step apart, to rows to_step apart. */
#define FLUX__GEMM_COPY(name, type, vec, n)                                                        \
    FLUX__GEMM_FN() void name(const void *from, int64_t from_step, void *to, int64_t to_step,      \
                              int64_t rows, int64_t columns) {                                     \
        const int64_t line = 64 / (int)sizeof(type);                                               \
        int64_t r, i, q;                                                                           \
        for (r = 0; r < rows; r++) {                                                               \
            const type *s = (const type *)from + r * from_step;                                    \
            type *d = (type *)to + r * to_step;                                                    \
            for (i = 0; i + line <= columns; i += line) {                                          \
                FLUX__PREFETCH(r + 1 < rows ? s + from_step + i : s)                               \
                for (q = i; q < i + line; q += n) FLUX__GEMM_MOVE(vec, d + q, s + q)               \
            }                                                                                      \
            for (; i < columns; i++) d[i] = s[i];                                                  \
        }                                                                                          \
    }
/* columns x whole panels of `tall` rows: each panel goes to a place of its own, `columns` x `tall`
   elements from the last, so that A is read in the order in which it lies. */
#define FLUX__GEMM_PANELS(name, type, vec, n)                                                      \
    FLUX__GEMM_FN() void name(const void *from, int64_t from_step, void *to, int64_t tall,         \
                              int64_t panels, int64_t columns) {                                   \
        const int64_t line = 64 / (int)sizeof(type);                                               \
        int64_t c, q, i;                                                                           \
        for (c = 0; c < columns; c++) {                                                            \
            const type *s = (const type *)from + c * from_step;                                    \
            type *d = (type *)to + c * tall;                                                       \
            for (q = 0; q < panels; q++, s += tall, d += columns * tall)                           \
                for (i = 0; i < tall; i += n) {                                                    \
                    if (i % line == 0) FLUX__PREFETCH(c + 2 < columns ? s + 2 * from_step + i : s) \
                    FLUX__GEMM_MOVE(vec, d + i, s + i)                                             \
                }                                                                                  \
        }                                                                                          \
    }
/* Element by element, for any strides: rows end up 1 apart, columns to_step apart. */
#define FLUX__GEMM_GATHER(name, type)                                                              \
    FLUX__GEMM_FN() void name(const void *from, int64_t row, int64_t column, void *to,             \
                              int64_t to_step, int64_t rows, int64_t columns) {                    \
        int64_t r, i;                                                                              \
        for (i = 0; i < columns; i++)                                                              \
            for (r = 0; r < rows; r++)                                                             \
                ((type *)to)[r + i * to_step] = ((const type *)from)[r * row + i * column];        \
    }
FLUX__GEMM_GATHER(flux__gemm_gather4, float)
FLUX__GEMM_GATHER(flux__gemm_gather8, double)

#if FLUX__GEMM_VECTORS
FLUX__GEMM_COPY(flux__gemm_copy4, float, flux__gemm_f16, 4)
FLUX__GEMM_COPY(flux__gemm_copy8, double, flux__gemm_d16, 2)
FLUX__GEMM_PANELS(flux__gemm_panels4, float, flux__gemm_f16, 4)
FLUX__GEMM_PANELS(flux__gemm_panels8, double, flux__gemm_d16, 2)
#  if defined(__clang__)
#    define FLUX__SHUFFLE4(out, a, b, i, j, k, l) out = __builtin_shufflevector(a, b, i, j, k, l);
#    define FLUX__SHUFFLE2(out, a, b, i, j) out = __builtin_shufflevector(a, b, i, j);
#  else
typedef int flux__gemm_i16 __attribute__((vector_size(16)));
typedef int64_t flux__gemm_l16 __attribute__((vector_size(16)));
#    define FLUX__SHUFFLE4(out, a, b, i, j, k, l)                                                  \
        { flux__gemm_i16 mask = {i, j, k, l}; out = __builtin_shuffle(a, b, mask); }
#    define FLUX__SHUFFLE2(out, a, b, i, j)                                                        \
        { flux__gemm_l16 mask = {i, j}; out = __builtin_shuffle(a, b, mask); }
#  endif
/* Turns contiguous rows, from_step apart, into columns to_step apart: 4 by 4 (2 by 2) elements in
   registers, and in an order in which whole lines are written. */
FLUX__GEMM_FN() void flux__gemm_turn4(const float *from, int64_t from_step, float *to,
                                      int64_t to_step, int64_t rows, int64_t columns) {
    typedef flux__gemm_f16 V;
    int64_t r, i, r4 = rows & ~(int64_t)3, c4 = columns & ~(int64_t)3, first, end;
    for (first = 0; first < r4; first = end) {
        end = flux__gemm_min(first + 16, r4);
        for (i = 0; i < c4; i += 4)
            for (r = first; r < end; r += 4) {
                const float *s = from + r * from_step + i;
                float *d = to + i * to_step + r;
                V a = *(const V *)(const void *)s, b = *(const V *)(const void *)(s + from_step);
                V c = *(const V *)(const void *)(s + 2 * from_step), ab, cd, x;
                V e = *(const V *)(const void *)(s + 3 * from_step);
                FLUX__SHUFFLE4(ab, a, b, 0, 4, 1, 5)
                FLUX__SHUFFLE4(cd, c, e, 0, 4, 1, 5)
                FLUX__SHUFFLE4(x, ab, cd, 0, 1, 4, 5)
                *(V *)(void *)d = x;
                FLUX__SHUFFLE4(x, ab, cd, 2, 3, 6, 7)
                *(V *)(void *)(d + to_step) = x;
                FLUX__SHUFFLE4(ab, a, b, 2, 6, 3, 7)
                FLUX__SHUFFLE4(cd, c, e, 2, 6, 3, 7)
                FLUX__SHUFFLE4(x, ab, cd, 0, 1, 4, 5)
                *(V *)(void *)(d + 2 * to_step) = x;
                FLUX__SHUFFLE4(x, ab, cd, 2, 3, 6, 7)
                *(V *)(void *)(d + 3 * to_step) = x;
            }
    }
    flux__gemm_gather4(from + c4, from_step, 1, to + c4 * to_step, to_step, r4, columns - c4);
    flux__gemm_gather4(from + r4 * from_step, from_step, 1, to + r4, to_step, rows - r4, columns);
}
FLUX__GEMM_FN() void flux__gemm_turn8(const double *from, int64_t from_step, double *to,
                                      int64_t to_step, int64_t rows, int64_t columns) {
    typedef flux__gemm_d16 V;
    int64_t r, i, r2 = rows & ~(int64_t)1, c2 = columns & ~(int64_t)1, first, end;
    for (first = 0; first < r2; first = end) {
        end = flux__gemm_min(first + 8, r2);
        for (i = 0; i < c2; i += 2)
            for (r = first; r < end; r += 2) {
                const double *s = from + r * from_step + i;
                double *d = to + i * to_step + r;
                V a = *(const V *)(const void *)s, x;
                V b = *(const V *)(const void *)(s + from_step);
                FLUX__SHUFFLE2(x, a, b, 0, 2)
                *(V *)(void *)d = x;
                FLUX__SHUFFLE2(x, a, b, 1, 3)
                *(V *)(void *)(d + to_step) = x;
            }
    }
    flux__gemm_gather8(from + c2, from_step, 1, to + c2 * to_step, to_step, r2, columns - c2);
    flux__gemm_gather8(from + r2 * from_step, from_step, 1, to + r2, to_step, rows - r2, columns);
}
#else
FLUX__GEMM_COPY(flux__gemm_copy4, float, float, 1)
FLUX__GEMM_COPY(flux__gemm_copy8, double, double, 1)
FLUX__GEMM_PANELS(flux__gemm_panels4, float, float, 1)
FLUX__GEMM_PANELS(flux__gemm_panels8, double, double, 1)
static void flux__gemm_turn4(const float *from, int64_t from_step, float *to, int64_t to_step,
                             int64_t rows, int64_t columns) {
    flux__gemm_gather4(from, from_step, 1, to, to_step, rows, columns);
}
static void flux__gemm_turn8(const double *from, int64_t from_step, double *to, int64_t to_step,
                             int64_t rows, int64_t columns) {
    flux__gemm_gather8(from, from_step, 1, to, to_step, rows, columns);
}
#endif

/* Copies rows x columns of a matrix with any strides to where rows are 1 and columns to_step apart,
   the fastest way there is. */
static void flux__gemm_copy(int64_t size, const void *from, int64_t row, int64_t column, void *to,
                            int64_t to_step, int64_t rows, int64_t columns) {
    const float *f = (const float *)from;
    const double *d = (const double *)from;
    if (size == 4 && row == 1) flux__gemm_copy4(f, column, to, to_step, columns, rows);
    else if (size == 4 && column == 1) flux__gemm_turn4(f, row, (float *)to, to_step, rows, columns);
    else if (size == 4) flux__gemm_gather4(f, row, column, to, to_step, rows, columns);
    else if (row == 1) flux__gemm_copy8(d, column, to, to_step, columns, rows);
    else if (column == 1) flux__gemm_turn8(d, row, (double *)to, to_step, rows, columns);
    else flux__gemm_gather8(d, row, column, to, to_step, rows, columns);
}

/* ---- the plan of a product, and one thread's share of it */

typedef struct flux__gemm_plan {
    const flux__gemm_job *job;
    const flux__gemm_set *set;
    int64_t size;                         /* bytes of an element */
    bool flip, copy_a, copy_b;            /* flip: a is B turned, b A turned, and C comes out turned */
    int64_t m, n, k;
    const char *a, *b;
    int64_t a_row, a_col, b_row, b_col;
    int64_t rows, columns, down;          /* of C in one task; tasks from top to bottom */
    int64_t sub;                          /* rows at a time: their part of A stays in the second cache */
    int64_t chunk;                        /* of k */
    int failed;
} flux__gemm_plan;

typedef struct flux__gemm_task {          /* one block of C */
    const flux__gemm_plan *plan;
    int worker;
    int64_t i0, j0, mb, nb, k0, kb;       /* where in C and in k */
    int64_t i, ib;                        /* its rows that are being multiplied, i0 not counted */
    char *a, *b;                          /* scratch: copied operands, */
    char *edge, *out;                     /* a tile that is not all ours, C where it may not go yet */
    int64_t out_from;                     /* the column that is out's first */
    int64_t b_step;                       /* distance of the copied b's columns, in elements */
    char *block;                          /* C's element (i0, j0), or out's first */
    int64_t ld;
} flux__gemm_task;

#define FLUX__GEMM_CHUNK 2048             /* bytes of a column of B: a tile's fit the first cache */
#define FLUX__GEMM_TILES 16               /* in a block's height: 1 MB of A at most, of the second cache */
#define FLUX__GEMM_COLUMNS 512            /* in a block's width */
#define FLUX__GEMM_PIECE 4096             /* elements of C at a time for the epilogue, or some more */

/* n by parts, rounded up to units */
static int64_t flux__gemm_split(int64_t n, int64_t parts, int64_t unit) {
    return flux__gemm_up((n + parts - 1) / parts, unit);
}

/* Copies the panels of A that must be: all of them, or only the last when the rows end within it. */
static void flux__gemm_pack_a(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, tall = 2 * lanes, i = t->ib / tall, high, rows, size = p->size;
    const char *from = p->a + ((t->i0 + t->i) * p->a_row + t->k0 * p->a_col) * size;
    if (p->copy_a && p->a_row == 1) {     /* column by column over all whole panels */
        if (size == 4) flux__gemm_panels4(from, p->a_col, t->a, tall, i, t->kb);
        else flux__gemm_panels8(from, p->a_col, t->a, tall, i, t->kb);
    }
    for (i = p->copy_a && p->a_row != 1 ? 0 : i * tall; i < t->ib; i += tall) {
        char *to = t->a;
        rows = flux__gemm_min(t->ib - i, tall);
        high = rows > lanes ? tall : lanes;
        if (!p->copy_a && rows == high) return;
        if (p->copy_a) to += i * t->kb * size;
        if (rows < high) memset(to, 0, (size_t)(high * t->kb * size));
        flux__gemm_copy(size, from + i * p->a_row * size, p->a_row, p->a_col, to, high, rows, t->kb);
    }
}

/* c += tile, or c = tile */
static void flux__gemm_add_tile(int64_t size, char *c, int64_t ldc, const char *tile, int64_t ld,
                                int64_t rows, int64_t columns, bool add) {
    int64_t i, j;
    for (j = 0; j < columns; j++, c += ldc * size, tile += ld * size) {
        float *f = (float *)(void *)c;
        double *d = (double *)(void *)c;
        if (!add) memcpy(c, tile, (size_t)(rows * size));
        else if (size == 4) for (i = 0; i < rows; i++) f[i] += ((const float *)(const void *)tile)[i];
        else for (i = 0; i < rows; i++) d[i] += ((const double *)(const void *)tile)[i];
    }
}

/* Multiplies one panel of A (rows from i on) with columns j ... j+wide-1. */
static void flux__gemm_tile(flux__gemm_task *t, int64_t i, int64_t j, int64_t wide) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, rows = flux__gemm_min(t->ib - i, 2 * lanes), size = p->size;
    int64_t high = rows > lanes ? 2 * lanes : lanes, a_step = high;
    bool add = t->k0 > 0, edge = rows < high && !t->out;
    flux__gemm_kernel kernel =
        (high > lanes ? p->set->two : p->set->one)[wide <= 4 ? wide - 1 : wide / 2 + 1];
    const char *a = t->a, *b = p->b + (t->k0 * p->b_row + (t->j0 + j) * p->b_col) * size;
    char *c = t->block + (t->i + i + (j - t->out_from) * t->ld) * size;
    if (p->copy_a) a += i * t->kb * size;
    else if (rows == high) {
        a = p->a + (t->i0 + t->i + i + t->k0 * p->a_col) * size;
        a_step = p->a_col;
    }
    if (p->copy_b) b = t->b + j * t->b_step * size;
    kernel(t->kb, a, a_step, b, p->copy_b ? 1 : p->b_row, p->copy_b ? t->b_step : p->b_col,
           edge ? t->edge : c, edge ? high : t->ld, add && !edge);
    if (edge) flux__gemm_add_tile(size, c, t->ld, t->edge, high, rows, wide, add);
}

/* Columns j ... j+n-1 of the rows at hand are done: puts them where they belong, and shows them. */
static void flux__gemm_finish(flux__gemm_task *t, int64_t j, int64_t n) {
    const flux__gemm_plan *p = t->plan;
    const flux__gemm_job *job = p->job;
    char *block = t->block + (t->i + (j - t->out_from) * t->ld) * p->size, *to;
    int64_t i0 = t->i0 + t->i, j0 = t->j0 + j, mb = t->ib, nb = n, ld = t->ld;
    if (p->flip) {
        i0 = t->j0 + j, j0 = t->i0 + t->i, mb = n, nb = t->ib;
        ld = job->c ? job->ldc : n;
        to = job->c ? (char *)job->c + (i0 + j0 * ld) * p->size : t->edge;
        flux__gemm_copy(p->size, block, t->ld, 1, to, ld, mb, nb);
        block = to;
    }
    if (job->epilogue) job->epilogue(job->ctx, t->worker, i0, j0, mb, nb, block, ld);
}

/* How many of n columns to take next: panels are about as wide, and of widths with a kernel. */
static int64_t flux__gemm_wide(int64_t n, int64_t most) {
    int64_t panels = (n + most - 1) / most;
    if (n <= 4) return n;
    return n % 2 ? 3 : flux__gemm_up((n + panels - 1) / panels, 2);
}

/* Adds one chunk of k to the rows at hand. A panel of B stays in the first cache while A's pass. */
static void flux__gemm_rows(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t i, j, done = 0, wide;
    flux__gemm_pack_a(t);
    for (j = 0; j < t->nb; j += wide) {
        wide = flux__gemm_wide(t->nb - j, p->set->columns);
        for (i = 0; i < t->ib; i += 2 * p->set->lanes) flux__gemm_tile(t, i, j, wide);
        if (t->k0 + t->kb < p->k) continue;
        if (j + wide < t->nb && (j + wide - done) * t->ib < FLUX__GEMM_PIECE) continue;
        flux__gemm_finish(t, done, j + wide - done);
        done = j + wide;
        if (t->out && !p->flip && p->chunk >= p->k) t->out_from = done;
    }
    t->out_from = 0;
}

static void flux__gemm_chunk(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    const char *b = p->b + (t->k0 * p->b_row + t->j0 * p->b_col) * p->size;
    if (p->copy_b) flux__gemm_copy(p->size, b, p->b_row, p->b_col, t->b, t->b_step, t->kb, t->nb);
    for (t->i = 0; t->i < t->mb; t->i += t->ib) {
        t->ib = flux__gemm_min(t->mb - t->i, p->sub);
        flux__gemm_rows(t);
    }
}

/* Scratch memory for a task; false: there is none. */
static bool flux__gemm_room(flux__gemm_task *t) {
    const flux__gemm_plan *p = t->plan;
    int64_t lanes = p->set->lanes, tall = 2 * lanes, high = flux__gemm_up(t->mb, lanes), total;
    bool part = high != t->mb;            /* the last tile has rows that are not ours */
    int64_t a = p->copy_a ? flux__gemm_up(p->sub, lanes) : part ? tall : 0;
    int64_t b = p->copy_b ? t->nb * t->b_step : 0;
    int64_t edge = p->flip ? p->sub * t->nb : part ? tall * p->set->columns : 0;
    bool passing = !p->flip && p->chunk >= p->k;   /* C's columns leave out for good as they are shown */
    int64_t last = t->mb % p->sub ? t->mb % p->sub : p->sub;   /* the fewest rows that are shown at once */
    int64_t kept = passing ? flux__gemm_min(t->nb, FLUX__GEMM_PIECE / last + p->set->columns) : t->nb;
    int64_t out = p->flip || !p->job->c ? high * kept : 0;
    a = flux__gemm_up(a * p->chunk * p->size, 64);
    b = flux__gemm_up(b * p->size, 64);
    edge = flux__gemm_up(edge * p->size, 64);
    total = a + b + edge + out * p->size;
    t->a = t->b = t->edge = t->out = NULL;
    t->out_from = 0;
    t->block = (char *)p->job->c;
    t->ld = p->job->ldc;
    if (total > 0 && (t->a = (char *)flux__scratch((size_t)total)) == NULL) return false;
    if (total > 0) t->b = t->a + a, t->edge = t->b + b;
    if (!out) t->block += (t->i0 + t->j0 * t->ld) * p->size;
    else t->block = t->out = t->edge + edge, t->ld = high;
    return true;
}

static void flux__gemm_task_run(void *ctx, int worker, int64_t number) {
    flux__gemm_plan *p = (flux__gemm_plan *)ctx;
    flux__gemm_task t;
    t.plan = p;
    t.worker = worker;
    t.i0 = number % p->down * p->rows;
    t.j0 = number / p->down * p->columns;
    t.mb = flux__gemm_min(p->m - t.i0, p->rows);
    t.nb = flux__gemm_min(p->n - t.j0, p->columns);
    t.b_step = (flux__gemm_up(p->chunk * p->size, 64) | 64) / p->size;   /* an odd number of lines */
    if (!flux__gemm_room(&t)) {
        flux__atomic_store32(&p->failed, 1);
        return;
    }
    t.k0 = 0;
    do {                                  /* once even for k = 0, which gives zeros */
        t.kb = flux__gemm_min(p->k - t.k0, p->chunk);
        flux__gemm_chunk(&t);
        t.k0 += t.kb;
    } while (t.k0 < p->k);
    flux__scratch_done(t.a);
}

/* A block of rows, contiguous in k, times a single column: nothing to gain from tiles. */
static void flux__gemm_dots_run(void *ctx, int worker, int64_t number) {
    const flux__gemm_plan *p = (const flux__gemm_plan *)ctx;
    const flux__gemm_job *job = p->job;
    double piece[256];
    int64_t i = number * p->rows, end = flux__gemm_min(i + p->rows, p->m), n;
    int64_t step = p->flip && job->c ? job->ldc : 1;
    for (; i < end; i += n) {
        char *y = job->c ? (char *)job->c + i * step * p->size : (char *)piece;
        n = flux__gemm_min(end - i, 256);
        p->set->dots(p->k, p->a + i * p->a_row * p->size, p->a_row, p->b, y, step, n);
        if (!job->epilogue) continue;
        if (p->flip) job->epilogue(job->ctx, worker, 0, i, 1, n, y, step);
        else job->epilogue(job->ctx, worker, i, 0, n, 1, y, job->c ? job->ldc : n);
    }
}

static void flux__gemm_orient(flux__gemm_plan *p, const flux__gemm_job *j, bool flip) {
    p->flip = flip;
    p->m = flip ? j->n : j->m;
    p->n = flip ? j->m : j->n;
    p->a = (const char *)(flip ? j->b : j->a);
    p->b = (const char *)(flip ? j->a : j->b);
    p->a_row = flip ? j->b_col : j->a_row;
    p->a_col = flip ? j->b_row : j->a_col;
    p->b_row = flip ? j->a_col : j->b_row;
    p->b_col = flip ? j->a_row : j->b_col;
}

/* Roughly the cycles a product takes this way round. */
static double flux__gemm_cost(const flux__gemm_plan *p) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, lanes = p->set->lanes;
    double c = (double)flux__gemm_up(p->m, p->set->lanes) * n * k / (2 * lanes);
    double copy = p->a_row == 1 ? (m < lanes || n > 128 ? 0.1 : 0) : p->a_col == 1 ? 0.3 : 1.5;
    return c + copy * m * k + (p->flip ? 0.4 * m * n : 0);
}

/* Whether to copy the operands. Measured: B as it lies is fine until its columns (rows, if they are
   the contiguous ones) crowd into one set of the cache; A, until it outgrows the second cache, or
   each of its columns is on a page of its own and is read often. */
static void flux__gemm_copies(flux__gemm_plan *p) {
    int64_t a_step = p->a_col * p->size, b_step = (p->b_row == 1 ? p->b_col : p->b_row) * p->size;
    bool large = p->m * p->k * p->size > 2 << 20 && p->columns > p->set->columns;
    bool often = p->columns > 8 * p->set->columns && a_step >= 2000 && p->k > 64;
    bool crowded = p->rows > 2 * p->set->lanes && b_step % (p->b_row == 1 ? 8192 : 256 * p->set->lanes) == 0;
    p->copy_a = p->a_row != 1 || large || often;
    p->copy_b = crowded || (p->b_row != 1 && p->b_col != 1);
}

/* Cuts C into blocks: as large as they may be, but enough of them for the threads. How many never
   shows in the result. */
static int64_t flux__gemm_blocks(flux__gemm_plan *p, int64_t threads) {
    int64_t tall = 2 * p->set->lanes, bytes = p->chunk * p->size, tasks;
    int64_t flat = bytes * 4 <= FLUX__GEMM_CHUNK ? 4 : bytes * 2 <= FLUX__GEMM_CHUNK ? 2 : 1;
    int64_t high = flat * FLUX__GEMM_TILES * tall;         /* whole columns of C, if k is so short, lie together */
    int64_t limit = p->flip || !p->job->c ? 1 : 4;         /* where C takes scratch memory: not much */
    int64_t rows = limit * high, columns = limit * FLUX__GEMM_COLUMNS;
    p->rows = flux__gemm_split(p->m, (p->m + rows - 1) / rows, tall);
    p->columns = flux__gemm_split(p->n, (p->n + columns - 1) / columns, 1);
    for (;;) {
        p->down = (p->m + p->rows - 1) / p->rows;
        tasks = p->down * ((p->n + p->columns - 1) / p->columns);
        if (tasks >= (threads > 1 ? 2 * threads : 1)) break;
        if (p->rows > tall && p->rows >= 2 * p->columns) p->rows = flux__gemm_split(p->rows, 2, tall);
        else if (p->columns >= 2 * p->set->columns) p->columns = (p->columns + 1) / 2;
        else break;
    }
    p->sub = flux__gemm_split(p->rows, (p->rows + high - 1) / high, tall);
    return tasks;
}

/* Which way round, and in which chunks. */
static void flux__gemm_plan_for(flux__gemm_plan *p, bool f64, const flux__gemm_job *job) {
    double flipped;
    int64_t chunks;
    p->job = job;
    p->set = flux__gemm_kernels(f64);
    p->size = f64 ? 8 : 4;
    p->k = job->k > 0 ? job->k : 0;
    p->failed = 0;
    flux__gemm_orient(p, job, true);
    flipped = flux__gemm_cost(p);
    flux__gemm_orient(p, job, false);
    if (flipped < flux__gemm_cost(p)) flux__gemm_orient(p, job, true);
    chunks = (p->k * p->size + FLUX__GEMM_CHUNK - 1) / FLUX__GEMM_CHUNK;
    p->chunk = chunks > 1 ? flux__gemm_split(p->k, chunks, 8) : p->k > 0 ? p->k : 1;
}

/* 0, or -1 with an error recorded: out of memory. */
static int flux__gemm(bool f64, const flux__gemm_job *job) {
    flux__gemm_plan p;
    int64_t threads, tasks;
    if (job->m <= 0 || job->n <= 0) return 0;
    flux__gemm_plan_for(&p, f64, job);
    threads = (double)p.m * (double)p.n * (double)p.k > 4e5 ? flux__num_threads() : 1;
    if (p.n == 1 && p.a_col == 1 && p.b_row == 1) {
        p.rows = flux__gemm_split(p.m, 2 * threads, 16);
        flux__parallel_workers((p.m + p.rows - 1) / p.rows, flux__gemm_dots_run, &p);
        return 0;
    }
    tasks = flux__gemm_blocks(&p, threads);
    flux__gemm_copies(&p);
    flux__parallel_workers(tasks, flux__gemm_task_run, &p);
    if (!flux__atomic_load32(&p.failed)) return 0;
    flux__fail("matmul: out of memory for a product of %lldx%lld by %lldx%lld", (long long)job->m,
               (long long)job->k, (long long)job->k, (long long)job->n);
    return -1;
}

/* ------------------------------------------------------------------ 11. The CPU back end
   A fused kernel runs block by block: some outer points times some reduced ones, together about a thousand, so that the
   registers of its program (a block's numbers each) stay in the first-level cache while the loops of section 9 pass over
   them. In a block either the reduced points or the outer ones lie next to each other, whichever is so in memory. If all
   reduced points fit into one block, values live on from phase to phase; else each phase computes anew what it needs.
   Blocks depend on the shape alone, never on the number of threads, and so do the sums. */

#define FLUX__TILE 1024
#define FLUX__LARGE (1 << 19)             /* elements: more than a second cache holds */

typedef struct flux__axes { int nd; int64_t dim[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS]; } flux__axes;   /* merged dims */

typedef struct flux__phase { int *line, n, *late, nlate; } flux__phase;   /* values by number: inner ones; outer ones before */

typedef struct flux__cpu {                /* a kernel made ready for the CPU */
    int64_t outer, inner;                 /* points */
    bool inner_first;                     /* reduced points lie together in a block, else the outer ones do */
    int64_t w, rt;                        /* outer and reduced points a block */
    bool resident;                        /* rt is all of inner */
    int nphase, nreg, width;              /* registers, bytes of an element there */
    flux__phase *phase;
    flux__axes *outer_axes, *inner_axes;  /* by value: of what it loads or stores */
    int *reg;                             /* by value: its register, -1 */
    bool *expand;                         /* by value: outer, and used by inner ones */
    int *expand_reg;
    flux__loop *loop;                     /* by value */
    int nreduce, splits;                  /* splits > 1: the reduced points in so many parts, combined in order */
    int *reduce_at;                       /* by value: its number among the reductions */
} flux__cpu;

/* ---------------- merging dims */

static void flux__merge_axes(flux__axes *x, const int64_t *dim, const int64_t *step, unsigned mask, bool in) {
    x->nd = 0;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        if (((mask >> d & 1) != 0) != in || dim[d] == 1) continue;
        int last = x->nd - 1;
        if (last >= 0 && step[d] == x->step[last] * x->dim[last]) x->dim[last] *= dim[d];
        else {
            x->dim[x->nd] = dim[d];
            x->step[x->nd++] = step[d];
        }
    }
    if (x->nd == 0) {
        x->nd = 1;
        x->dim[0] = 1;
        x->step[0] = 0;
    }
}

static int64_t flux__axes_at(const flux__axes *x, int64_t flat) {
    int64_t at = 0;
    if (x->nd == 1) return flat * x->step[0];
    for (int d = 0; d < x->nd; d++) {
        at += flat % x->dim[d] * x->step[d];
        flat /= x->dim[d];
    }
    return at;
}

/* ---------------- making a kernel ready */

static bool flux__is_source(const flux__value *v) { return v->kind == FLUX__V_LOAD || v->kind == FLUX__V_IOTA || v->kind == FLUX__V_RANDOM; }

static void flux__value_strides(const flux__kernel *k, const flux__value *v, int64_t *step) {
    if (flux__is_source(v)) {
        memcpy(step, k->operand[v->operand].stride, FLUX_MAX_DIMS * sizeof *step);
        return;
    }
    int64_t at = 1;                       /* a stored value lies in order; an outer one has no reduced dims */
    for (int d = 0; d < FLUX_MAX_DIMS; d++) {
        bool gone = v->outer && (k->reduced >> d & 1);
        step[d] = gone || k->full[d] == 1 ? 0 : at;
        if (!gone) at *= k->full[d];
    }
}

/* Which points lie together in most of what is read and written? */
static bool flux__prefer_inner(const flux__kernel *k) {
    int votes = 0;
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        int64_t step[FLUX_MAX_DIMS], least = INT64_MAX;
        int at = -1;
        if (v->outer || (v->kind != FLUX__V_LOAD && v->out < 0)) continue;
        flux__value_strides(k, v, step);
        for (int d = 0; d < FLUX_MAX_DIMS; d++) {
            int64_t s = step[d] < 0 ? -step[d] : step[d];
            if (s && k->full[d] > 1 && s < least) least = s, at = d;
        }
        if (at >= 0) votes += k->reduced >> at & 1 ? 1 : -1;
    }
    if (votes) return votes > 0;
    return (k->reduced & 1) != 0 && k->full[0] > 1;
}

static bool flux__reducing(const flux__value *v) { return v->kind == FLUX__V_REDUCE || v->kind == FLUX__V_ARGREDUCE; }

/* Nothing is done at the reduced points once a reduction is complete? */
static bool flux__one_pass(const flux__kernel *k) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase > 0 && (flux__reducing(&k->value[i]) || !k->value[i].outer)) return false;
    return true;
}

static void flux__choose_blocks(const flux__kernel *k, flux__cpu *c) {
    c->outer = c->inner = 1;
    for (int d = 0; d < FLUX_MAX_DIMS; d++)
        if (k->reduced >> d & 1) c->inner *= k->full[d];
        else c->outer *= k->full[d];
    c->inner_first = k->reduced && flux__prefer_inner(k);
    if (c->inner == 0) c->rt = 0, c->w = c->outer < FLUX__TILE ? c->outer : FLUX__TILE;
    else if (c->inner == 1 || c->inner <= (c->inner_first ? FLUX__TILE : flux__one_pass(k) ? 4 : FLUX__TILE / 16)) {
        c->rt = c->inner;
        c->w = FLUX__TILE / c->inner;
        if (c->w > c->outer) c->w = c->outer;
    } else if (c->inner_first) c->w = 1, c->rt = FLUX__TILE;
    else {
        c->w = c->outer < 256 ? c->outer : 256;
        if (c->w < 1) c->w = 1;
        c->rt = FLUX__TILE / c->w < c->inner ? FLUX__TILE / c->w : c->inner;
    }
    if (c->w < 1) c->w = 1;
    c->resident = c->rt == c->inner;
}

static void flux__need(const flux__kernel *k, bool *need, int v) {
    if (v < 0 || need[v] || k->value[v].outer) return;
    need[v] = true;
    flux__need(k, need, k->value[v].a);
    flux__need(k, need, k->value[v].b);
    flux__need(k, need, k->value[v].c);
}

/* The lines of each phase: inner values that its reductions and stores need, outer ones that its inner ones may use. */
static bool flux__split_phases(flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].phase >= c->nphase) c->nphase = k->value[i].phase + 1;
    c->phase = (flux__phase *)flux__zalloc((size_t)(c->nphase + 1) * sizeof *c->phase);
    bool *need = (bool *)flux__malloc((size_t)k->nvalue + 1);
    bool ok = c->phase && need;
    for (int p = 0; p < c->nphase && ok; p++) {
        flux__phase *ph = &c->phase[p];
        ph->line = (int *)flux__malloc((size_t)(k->nvalue + 1) * sizeof(int));
        ph->late = (int *)flux__malloc((size_t)(k->nvalue + 1) * sizeof(int));
        if (!ph->line || !ph->late) ok = false;
        memset(need, 0, (size_t)k->nvalue);
        for (int i = 0; i < k->nvalue && ok; i++) {
            const flux__value *v = &k->value[i];
            if (v->phase != p) continue;
            if (flux__reducing(v)) flux__need(k, need, v->a);
            else if (v->outer) ph->late[ph->nlate++] = i;
            else if (v->out >= 0 || c->resident) flux__need(k, need, i);
        }
        for (int i = 0; i < k->nvalue && ok; i++) {
            const flux__value *v = &k->value[i];
            bool now = c->resident ? v->phase == p : true;
            if ((need[i] && now) || (flux__reducing(v) && v->phase == p)) ph->line[ph->n++] = i;
        }
    }
    if (need) FLUX_FREE(need);
    return ok;
}

static bool flux__needs_register(const flux__value *v) { return v->kind != FLUX__V_NUMBER; }

/* Registers by last use. In a block that holds whole rows a value lives from its own line to its last use in any phase;
   else it lives within a phase. Outer values keep theirs. */
static void flux__assign_registers(flux__kernel *k, flux__cpu *c, int *last, bool *taken) {
    int clock = 0;
    memset(last, -1, (size_t)k->nvalue * sizeof(int));
    for (int p = 0; p < c->nphase; p++)
        for (int j = 0; j < c->phase[p].n; j++, clock++) {
            const flux__value *v = &k->value[c->phase[p].line[j]];
            int use[4];
            use[0] = v->a, use[1] = v->b, use[2] = v->c, use[3] = c->phase[p].line[j];
            for (int u = 0; u < 4; u++)
                if (use[u] >= 0) last[use[u]] = clock;
        }
    for (int i = 0; i < k->nvalue; i++) c->reg[i] = -1, c->expand_reg[i] = -1;
    for (int i = 0; i < k->nvalue; i++)
        if (k->value[i].outer && flux__needs_register(&k->value[i])) {
            c->reg[i] = c->nreg++;
            if (c->expand[i]) c->expand_reg[i] = c->nreg++;
        }
    int fixed = c->nreg, top = c->nreg;
    memset(taken, 0, (size_t)k->nvalue * 3 + 3);
    clock = 0;
    for (int p = 0; p < c->nphase; p++)
        for (int j = 0; j < c->phase[p].n; j++, clock++) {
            int at = c->phase[p].line[j];
            const flux__value *v = &k->value[at];
            if (!v->outer && flux__needs_register(v) && c->reg[at] < 0) {
                int r = fixed;
                while (taken[r]) r++;
                taken[r] = true;
                c->reg[at] = r;
                if (r >= top) top = r + 1;
            }
            int use[4];
            use[0] = v->a, use[1] = v->b, use[2] = v->c, use[3] = at;
            for (int u = 0; u < 4; u++)
                if (use[u] >= 0 && !k->value[use[u]].outer && last[use[u]] == clock && c->reg[use[u]] >= 0) taken[c->reg[use[u]]] = false;
        }
    c->nreg = top;
}

static void flux__find_expands(const flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++) {
        const flux__value *v = &k->value[i];
        int use[3];
        use[0] = v->a, use[1] = v->b, use[2] = v->c;
        for (int j = 0; j < 3; j++)
            if (use[j] >= 0 && (!v->outer || flux__reducing(v)) && k->value[use[j]].outer && k->value[use[j]].kind != FLUX__V_NUMBER)
                c->expand[use[j]] = true;
    }
}

static bool flux__bind_loops(flux__kernel *k, flux__cpu *c) {
    for (int i = 0; i < k->nvalue; i++) {
        flux__value *v = &k->value[i];
        int64_t step[FLUX_MAX_DIMS];
        c->reduce_at[i] = flux__reducing(v) ? c->nreduce++ : -1;
        if (v->cls == FLUX__F64C || v->cls == FLUX__I64C || v->kind == FLUX__V_IOTA || v->kind == FLUX__V_RANDOM) c->width = 8;
        if (v->kind == FLUX__V_OP && !(c->loop[i] = flux__loop_for(v->cls, v->op)))
            return flux__fail("%s: no kernel for %s", flux__op_names[v->op], flux__dtypes[v->dtype].name) != NULL;
        if (!flux__is_source(v) && v->out < 0) continue;
        flux__value_strides(k, v, step);
        flux__merge_axes(&c->outer_axes[i], k->full, step, k->reduced, false);
        flux__merge_axes(&c->inner_axes[i], k->full, step, k->reduced, true);
    }
    return true;
}

/* Long reductions to few results are cut into parts, so that threads can share them. */
static void flux__choose_splits(const flux__kernel *k, flux__cpu *c) {
    c->splits = 1;
    if (!flux__one_pass(k)) return;
    int64_t blocks = (c->outer + c->w - 1) / c->w, work = c->outer * c->inner;
    if (c->nreduce == 0 || blocks >= 8 || work < 65536 || c->resident || c->outer > 4096) return;
    int64_t parts = work / 32768;
    if (parts > 32) parts = 32;
    if (parts > c->inner / c->rt) parts = c->inner / c->rt;
    if (parts > 1) c->splits = (int)parts;
}

static void flux__cpu_drop(flux__cpu *c) {
    for (int p = 0; c->phase && p < c->nphase; p++) {
        if (c->phase[p].line) FLUX_FREE(c->phase[p].line);
        if (c->phase[p].late) FLUX_FREE(c->phase[p].late);
    }
    if (c->phase) FLUX_FREE(c->phase);
    if (c->outer_axes) FLUX_FREE(c->outer_axes);
    if (c->inner_axes) FLUX_FREE(c->inner_axes);
    if (c->reg) FLUX_FREE(c->reg);
    if (c->expand) FLUX_FREE(c->expand);
    if (c->expand_reg) FLUX_FREE(c->expand_reg);
    if (c->loop) FLUX_FREE(c->loop);
    if (c->reduce_at) FLUX_FREE(c->reduce_at);
    FLUX_FREE(c);
}

static void flux__kernel_unready(flux__kernel *k) {
    if (k->ready) flux__cpu_drop((flux__cpu *)k->ready);
    k->ready = NULL;
}

static bool flux__kernel_ready(flux__plan *plan, flux__kernel *k) {
    (void)plan;
    if (k->kind > FLUX__K_MATMUL) return true;
    flux__cpu *c = (flux__cpu *)flux__zalloc(sizeof *c);
    size_t n = (size_t)k->nvalue + 1;
    if (!c) return false;
    k->ready = c;
    c->width = 4;
    flux__choose_blocks(k, c);
    c->outer_axes = (flux__axes *)flux__zalloc(n * sizeof *c->outer_axes);
    c->inner_axes = (flux__axes *)flux__zalloc(n * sizeof *c->inner_axes);
    c->reg = (int *)flux__zalloc(n * sizeof(int));
    c->expand = (bool *)flux__zalloc(n);
    c->expand_reg = (int *)flux__zalloc(n * sizeof(int));
    c->loop = (flux__loop *)flux__zalloc(n * sizeof *c->loop);
    c->reduce_at = (int *)flux__zalloc(n * sizeof(int));
    int *last = (int *)flux__zalloc(n * sizeof(int));
    bool *taken = (bool *)flux__zalloc(n * 3 + 8);
    bool ok = c->outer_axes && c->inner_axes && c->reg && c->expand && c->expand_reg && c->loop && c->reduce_at && last && taken;
    ok = ok && flux__split_phases(k, c) && flux__bind_loops(k, c);
    if (ok) {
        flux__find_expands(k, c);
        flux__assign_registers(k, c, last, taken);
        flux__choose_splits(k, c);
    }
    if (last) FLUX_FREE(last);
    if (taken) FLUX_FREE(taken);
    return ok;
}

/* ---------------- a block's run */

typedef struct flux__block_run {          /* one thread's view of a running kernel */
    flux__run *run;
    flux__kernel *k;
    flux__cpu *c;
    char *memory;                         /* registers, then the reductions' results and indices */
    void **at;                            /* by value: where its numbers are now */
    uint8_t *walk;                        /* by value: 1, or 0 where one number serves all */
    int64_t o0, w, r0, rt;                /* the block: outer points from o0, w of them (in each segment); reduced ones */
    int64_t segments, segment_step;       /* a product's block is several columns: w points each, so far apart */
    const char *product;
    int64_t product_ld;
    bool fresh;                           /* the first reduced block of a pass: accumulators start */
} flux__block_run;


static const int flux__own_dtype[FLUX__CLASSES] = { FLUX_F32, FLUX_F64, FLUX_I32, FLUX_I64 };

static char *flux__reg(flux__block_run *b, int reg) { return b->memory + (size_t)reg * FLUX__TILE * (size_t)b->c->width; }

static int64_t flux__block_count(const flux__block_run *b, const flux__value *v) {
    int64_t outer = b->w * b->segments;
    return v->outer ? outer : outer * b->rt;
}

typedef void (*flux__run_fn)(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n);

/* Calls fn for each run of points that lie evenly: the flat range [f0, f0 + n) of axes, to block positions from at on. */
static void flux__each_run(const flux__axes *x, int64_t base, int64_t f0, int64_t n, int64_t at, flux__run_fn fn, void *ctx) {
    while (n > 0) {
        int64_t pos = x->nd == 1 ? f0 : f0 % x->dim[0], len = x->nd == 1 ? n : x->dim[0] - pos;
        if (len > n) len = n;
        fn(ctx, base + flux__axes_at(x, f0), x->step[0], at, len);
        f0 += len, at += len, n -= len;
    }
}

/* All runs of a value's block: along the points that lie together, for each of the others. */
static void flux__each_run_of(flux__block_run *b, int i, flux__run_fn fn, void *ctx) {
    const flux__value *v = &b->k->value[i];
    const flux__axes *out = &b->c->outer_axes[i], *in = &b->c->inner_axes[i];
    int64_t base = flux__is_source(v) ? b->k->operand[v->operand].offset : 0, at = 0;
    for (int64_t s = 0; s < b->segments; s++) {
        int64_t o0 = b->o0 + s * b->segment_step;
        if (v->outer) {
            flux__each_run(out, base, o0, b->w, at, fn, ctx);
            at += b->w;
        } else if (b->c->inner_first)
            for (int64_t o = 0; o < b->w; o++, at += b->rt) flux__each_run(in, base + flux__axes_at(out, o0 + o), b->r0, b->rt, at, fn, ctx);
        else
            for (int64_t r = 0; r < b->rt; r++, at += b->w) flux__each_run(out, base + flux__axes_at(in, b->r0 + r), o0, b->w, at, fn, ctx);
    }
}

/* If the whole block lies in order in memory: where, else NULL (dtype must be its class's own). */
static char *flux__in_place(flux__block_run *b, int i, char *memory, int dtype) {
    const flux__value *v = &b->k->value[i];
    const flux__axes *out = &b->c->outer_axes[i], *in = &b->c->inner_axes[i];
    if (flux__own_dtype[v->cls] != dtype || out->nd > 1 || in->nd > 1) return NULL;
    int64_t outer = b->w * b->segments, base = flux__is_source(v) ? b->k->operand[v->operand].offset : 0;
    if (b->segments > 1 && b->segment_step != b->w) return NULL;
    bool o_ok = outer == 1, r_ok = v->outer || b->rt == 1;
    if (b->c->inner_first) {
        r_ok = r_ok || in->step[0] == 1;
        o_ok = o_ok || out->step[0] == (v->outer ? 1 : b->rt);
    } else {
        o_ok = o_ok || out->step[0] == 1;
        r_ok = r_ok || in->step[0] == outer;
    }
    if (!o_ok || !r_ok) return NULL;
    int64_t at = base + flux__axes_at(out, b->o0) + (v->outer ? 0 : flux__axes_at(in, b->r0));
    return memory + (size_t)at * flux__dtypes[dtype].size;
}

typedef struct flux__transfer { const char *src; char *dst; int cls, dtype; size_t wide, narrow; } flux__transfer;

static void flux__load_run(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    flux__transfer *t = (flux__transfer *)ctx;
    flux__load(t->cls, t->dst + (size_t)at * t->wide, t->dtype, t->src + (ptrdiff_t)offset * (ptrdiff_t)t->narrow, step, n);
}

static void flux__store_run(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    flux__transfer *t = (flux__transfer *)ctx;
    flux__store(t->dtype, t->dst + (ptrdiff_t)offset * (ptrdiff_t)t->narrow, step, t->cls, t->src + (size_t)at * t->wide, n);
}

static void flux__index_run(void *ctx, int64_t offset, int64_t step, int64_t at, int64_t n) {
    int64_t *out = (int64_t *)ctx + at;
    for (int64_t i = 0; i < n; i++) out[i] = offset + i * step;
}

/* Of a large tensor the next block, most likely behind this one, comes to the second cache meanwhile: a block is a page or
   less, and the processor's own look-ahead begins anew with each page of each operand. */
static void flux__fetch_ahead(const flux__block_run *b, const flux__value *v, const char *there) {
    const int64_t bytes = flux__block_count(b, v) * (int64_t)flux__class_size[v->cls];
    if (b->c->outer * b->c->inner < FLUX__LARGE) return;
    for (int64_t at = 0; at < bytes; at += 64) FLUX__PREFETCH_LATER(there + bytes + at)
}

static void flux__do_load(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    const flux__operand *o = &b->k->operand[v->operand];
    char *src = (char *)b->run->ptr[o->src], *there = flux__in_place(b, i, src, o->dtype);
    b->walk[i] = 1;
    b->at[i] = there ? there : (void *)flux__reg(b, b->c->reg[i]);
    if (there) {
        flux__fetch_ahead(b, v, there);
        return;
    }
    flux__transfer t = { src, (char *)b->at[i], v->cls, o->dtype, flux__class_size[v->cls], flux__dtypes[o->dtype].size };
    flux__each_run_of(b, i, flux__load_run, &t);
}

static void flux__do_store(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    char *dst = (char *)b->run->ptr[v->out];
    int64_t n = flux__block_count(b, v);
    char *there = flux__in_place(b, i, dst, v->dtype);
    if (there == (char *)b->at[i] && b->walk[i]) return;
    if (there && b->walk[i]) {
        memcpy(there, b->at[i], (size_t)n * flux__class_size[v->cls]);
        return;
    }
    const char *src = (const char *)b->at[i];
    if (!b->walk[i]) {                    /* one number for all */
        char *fill = flux__reg(b, b->c->nreg);
        flux__load(v->cls, fill, flux__own_dtype[v->cls], src, 0, n);
        src = fill;
    }
    flux__transfer t = { src, dst, v->cls, v->dtype, flux__class_size[v->cls], flux__dtypes[v->dtype].size };
    flux__each_run_of(b, i, flux__store_run, &t);
}

static double flux__number_value(const flux__block_run *b, const flux__value *v) {
    if (v->op == 1) return v->node;       /* a literal */
    flux_tensor *user = b->run->g->node[v->node >> 8];
    if ((v->node & 255) == 255) return user->arg.num;
    return flux__base(user->in[v->node & 255])->arg.num;
}

static void flux__set_number(int cls, void *out, double x) {
    double d[1];
    d[0] = x;
    flux__convert(cls, out, FLUX__F64C, d, 1);
}

static void flux__do_random(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    const flux_tensor *t = b->run->g->node[v->node];
    int64_t *index = (int64_t *)(void *)flux__reg(b, b->c->nreg);
    flux__each_run_of(b, i, flux__index_run, index);
    b->walk[i] = 1;
    b->at[i] = flux__reg(b, b->c->reg[i]);
    flux__philox(t->arg.u[0], t->arg.u[1], index, flux__block_count(b, v), (float *)b->at[i], (int)t->arg.u[2]);
}

/* An outer value spread over the block's reduced points, for inner ones to use. */
static void flux__expand_value(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    int64_t outer = b->w * b->segments;
    size_t size = flux__class_size[v->cls];
    char *out = flux__reg(b, b->c->expand_reg[i]);
    const char *in = (const char *)b->at[i];
    int dtype = flux__own_dtype[v->cls];
    if (outer == 1 || b->rt == 1) return;
    if (b->c->inner_first)
        for (int64_t o = 0; o < outer; o++) flux__load(v->cls, out + (size_t)(o * b->rt) * size, dtype, in + (size_t)o * size, 0, b->rt);
    else
        for (int64_t r = 0; r < b->rt; r++) memcpy(out + (size_t)(r * outer) * size, in, (size_t)outer * size);
}

/* Where an inner line finds operand x, and whether it walks there. */
static const void *flux__operand_at(flux__block_run *b, const flux__value *user, int x, int *walk) {
    const flux__value *v = &b->k->value[x];
    *walk = b->walk[x];
    if (!v->outer || v->kind == FLUX__V_NUMBER || (user->outer && !flux__reducing(user))) return b->at[x];
    if (b->w * b->segments == 1) *walk = 0;
    else if (b->rt != 1) return flux__reg(b, b->c->expand_reg[x]);
    return b->at[x];
}

static void flux__do_reduce(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    int64_t outer = b->w * b->segments;
    int walk, cls = b->k->value[v->a].cls;
    size_t size = flux__class_size[cls];
    const char *x = (const char *)flux__operand_at(b, v, v->a, &walk);
    char *acc = flux__reg(b, b->c->reg[i]);
    if (!walk) {                          /* the same number at every point */
        char *fill = flux__reg(b, b->c->nreg);
        int dtype = flux__own_dtype[cls];
        flux__load(cls, fill, dtype, x, 0, outer * b->rt);
        x = fill;
    }
    if (b->fresh)
        for (int64_t o = 0; o < outer; o++) flux__identity(cls, v->op, acc + (size_t)o * size);
    if (b->c->inner_first)
        for (int64_t o = 0; o < outer; o++) flux__reduce(cls, v->op, acc + (size_t)o * size, x + (size_t)(o * b->rt) * size, b->rt);
    else
        for (int64_t r = 0; r < b->rt; r++) flux__accumulate(cls, v->op, acc, x + (size_t)(r * outer) * size, outer);
    b->at[i] = acc;
    b->walk[i] = 1;
}

static void flux__do_argreduce(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    int64_t outer = b->w * b->segments;
    int walk, cls = b->k->value[v->a].cls;
    size_t size = flux__class_size[cls];
    const char *x = (const char *)flux__operand_at(b, v, v->a, &walk);
    int64_t *index = (int64_t *)(void *)flux__reg(b, b->c->reg[i]);
    char *best = flux__reg(b, b->c->nreg + 1 + b->c->reduce_at[i]);
    for (int64_t o = 0; b->fresh && o < outer; o++) index[o] = -1;
    if (!walk) {
        for (int64_t o = 0; o < outer; o++) index[o] = 0;
    } else if (b->c->inner_first)
        for (int64_t o = 0; o < outer; o++)
            flux__argreduce(cls, v->op != 0, best + (size_t)o * size, index + o, x + (size_t)(o * b->rt) * size, b->rt, b->r0);
    else
        for (int64_t r = 0; r < b->rt; r++) flux__argaccumulate(cls, v->op != 0, best, index, x + (size_t)(r * outer) * size, outer, b->r0 + r);
    b->at[i] = index;
    b->walk[i] = 1;
}

/* Where a line may write its result: straight to the tensor's memory, if the block lies in order there. */
static void *flux__result_at(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    char *there = v->out >= 0 ? flux__in_place(b, i, (char *)b->run->ptr[v->out], v->dtype) : NULL;
    return there ? (void *)there : (void *)flux__reg(b, b->c->reg[i]);
}

static void flux__do_line(flux__block_run *b, int i) {
    const flux__value *v = &b->k->value[i];
    int64_t n = flux__block_count(b, v);
    int sa = 1, sb = 1, sc = 1;
    switch (v->kind) {
    case FLUX__V_LOAD: flux__do_load(b, i); break;
    case FLUX__V_NUMBER: break;           /* set before the first block */
    case FLUX__V_IOTA:
        b->at[i] = flux__reg(b, b->c->reg[i]);
        b->walk[i] = 1;
        flux__each_run_of(b, i, flux__index_run, b->at[i]);
        break;
    case FLUX__V_RANDOM: flux__do_random(b, i); break;
    case FLUX__V_REDUCE: flux__do_reduce(b, i); return;
    case FLUX__V_ARGREDUCE: flux__do_argreduce(b, i); return;
    case FLUX__V_PRODUCT: {
        int64_t rows = b->w;
        size_t size = flux__class_size[v->cls];
        b->walk[i] = 1;
        b->at[i] = (void *)(intptr_t)b->product;
        if (b->product_ld == rows || b->segments == 1) break;
        b->at[i] = flux__reg(b, b->c->reg[i]);
        for (int64_t s = 0; s < b->segments; s++)
            memcpy((char *)b->at[i] + (size_t)(s * rows) * size, b->product + (size_t)(s * b->product_ld) * size, (size_t)rows * size);
        break;
    }
    default: {
        const void *a = flux__operand_at(b, v, v->a, &sa);
        const void *x = v->b >= 0 ? flux__operand_at(b, v, v->b, &sb) : a;    /* what there is not, is not read */
        const void *y = v->c >= 0 ? flux__operand_at(b, v, v->c, &sc) : a;
        void *out = flux__result_at(b, i);
        b->at[i] = out;
        b->walk[i] = 1;
        if (v->kind == FLUX__V_OP) flux__loop_run(v->cls, b->c->loop[i], n, out, a, x, y, sa, sb, sc);
        else {
            int from = b->k->value[v->a].cls;
            if (!sa) n = 1, b->walk[i] = 0, b->at[i] = out = flux__reg(b, b->c->reg[i]);
            if (v->kind == FLUX__V_CONVERT && from != v->cls) flux__convert(v->cls, out, from, a, n);
            else if (out != a) memcpy(out, a, (size_t)n * flux__class_size[v->cls]);
            if (v->kind == FLUX__V_ROUND) flux__round_half(v->op, (float *)out, n);
            if (v->kind == FLUX__V_WRAP) flux__wrap(v->op, v->cls, out, n);
        }
    }
    }
    if (v->out >= 0) flux__do_store(b, i);
}

static void flux__start_numbers(flux__block_run *b) {
    char *numbers = flux__reg(b, b->c->nreg + 1 + b->c->nreduce);
    for (int i = 0; i < b->k->nvalue; i++) {
        const flux__value *v = &b->k->value[i];
        if (v->kind != FLUX__V_NUMBER) continue;
        b->at[i] = numbers + (size_t)i * 8;
        b->walk[i] = 0;
        flux__set_number(v->cls, b->at[i], flux__number_value(b, v));
    }
}

/* Numbers that are stored (a filled tensor) have no line of their own. */
static void flux__store_numbers(flux__block_run *b) {
    for (int i = 0; i < b->k->nvalue; i++)
        if (b->k->value[i].kind == FLUX__V_NUMBER && b->k->value[i].out >= 0) flux__do_store(b, i);
}

static void flux__do_late(flux__block_run *b, int p) {
    const flux__phase *ph = &b->c->phase[p];
    int64_t rt = b->rt;
    b->rt = 1;
    for (int j = 0; j < ph->nlate; j++) flux__do_line(b, ph->late[j]);
    b->rt = rt;
}

static void flux__expand_all(flux__block_run *b, int p) {
    for (int i = 0; i < b->k->nvalue; i++) {
        const flux__value *v = &b->k->value[i];
        bool ready = flux__reducing(v) ? v->phase < p : v->phase <= p;
        if (b->c->expand[i] && ready) flux__expand_value(b, i);
    }
}

/* One phase over reduced points [r_from, r_to). */
static void flux__do_phase(flux__block_run *b, int p, int64_t r_from, int64_t r_to) {
    const flux__phase *ph = &b->c->phase[p];
    b->fresh = true;
    if (ph->n == 0) return;
    int64_t step = b->c->rt > 0 ? b->c->rt : 1, expanded = -1;
    for (b->r0 = r_from; b->r0 < r_to || b->fresh; b->r0 += step) {
        b->rt = r_to - b->r0 < step ? r_to - b->r0 : step;
        if (b->rt < 0) b->rt = 0;
        if (b->rt != expanded) flux__expand_all(b, p);
        expanded = b->rt;
        for (int j = 0; j < ph->n; j++) flux__do_line(b, ph->line[j]);
        b->fresh = false;
    }
}

/* Reductions have no store of their own until they are complete. */
static void flux__store_reductions(flux__block_run *b, int p) {
    b->rt = 1;
    for (int i = 0; i < b->k->nvalue; i++)
        if (flux__reducing(&b->k->value[i]) && b->k->value[i].phase == p && b->k->value[i].out >= 0) flux__do_store(b, i);
}

static void flux__do_block(flux__block_run *b) {
    b->rt = b->c->inner;                  /* for numbers that are stored, inner ones included */
    for (int p = 0; p < b->c->nphase; p++) {
        flux__do_late(b, p);
        flux__do_phase(b, p, 0, b->c->inner);
        flux__store_reductions(b, p);
    }
    b->r0 = 0;
    b->rt = b->c->rt;
    flux__store_numbers(b);
}

/* ---------------- a kernel's run over threads */

typedef struct flux__job { flux__run *run; flux__kernel *k; int64_t per_task, tasks; char *partial; int failed; int64_t batch; } flux__job;

static size_t flux__memory_bytes(const flux__kernel *k, const flux__cpu *c) {
    size_t regs = (size_t)(c->nreg + 1 + c->nreduce) * FLUX__TILE * (size_t)c->width + FLUX__TILE * 8;
    return regs + (size_t)k->nvalue * (8 + sizeof(void *) + 1) + 192;
}

/* This thread's memory for kernels, kept for the next. */
static char *flux__kernel_memory(size_t bytes) {
    flux__thread *t = flux__self();
    if (!t) return NULL;
    if (t->scratch_bytes < bytes) {
        if (t->scratch) FLUX_FREE(t->scratch);
        t->scratch_bytes = 0;
        t->scratch = flux__malloc(bytes);
        if (!t->scratch) return NULL;
        t->scratch_bytes = bytes;
    }
    return (char *)(((uintptr_t)t->scratch + 63) & ~(uintptr_t)63);
}

/* Whether all of a kernel's tasks found their memory; the error of one on another thread is told on this one. */
static bool flux__job_ok(const flux__job *job) {
    if (!flux__atomic_load32(&job->failed)) return true;
    if (!flux_failed()) flux__fail("out of memory: a worker's scratch for a kernel");
    return false;
}

static bool flux__block_start(flux__block_run *b, flux__run *run, flux__kernel *k) {
    flux__cpu *c = (flux__cpu *)k->ready;
    memset(b, 0, sizeof *b);
    b->run = run, b->k = k, b->c = c;
    b->segments = 1, b->rt = 1;
    b->memory = flux__kernel_memory(flux__memory_bytes(k, c) + 64);
    if (!b->memory) return false;
    char *end = flux__reg(b, c->nreg + 1 + c->nreduce) + (size_t)k->nvalue * 8 + 64;
    b->at = (void **)(void *)end;
    b->walk = (uint8_t *)(end + (size_t)k->nvalue * sizeof(void *));
    flux__start_numbers(b);
    return true;
}

static void flux__block_task(void *ctx, int64_t task) {
    flux__job *job = (flux__job *)ctx;
    flux__block_run b;
    if (!flux__block_start(&b, job->run, job->k)) {
        flux__atomic_store32(&job->failed, 1);
        return;
    }
    int64_t from = task * job->per_task * b.c->w, to = (task + 1) * job->per_task * b.c->w;
    if (to > b.c->outer) to = b.c->outer;
    for (b.o0 = from; b.o0 < to; b.o0 += b.c->w) {
        b.w = to - b.o0 < b.c->w ? to - b.o0 : b.c->w;
        flux__do_block(&b);
    }
}

/* A part of the reduced points for all outer ones; results go to the part's row of partial. */
static void flux__split_task(void *ctx, int64_t part) {
    flux__job *job = (flux__job *)ctx;
    flux__block_run b;
    if (!flux__block_start(&b, job->run, job->k)) {
        flux__atomic_store32(&job->failed, 1);
        return;
    }
    flux__cpu *c = b.c;
    int64_t blocks = (c->inner + c->rt - 1) / c->rt;
    int64_t from = blocks * part / c->splits * c->rt, to = blocks * (part + 1) / c->splits * c->rt;
    if (to > c->inner) to = c->inner;
    for (b.o0 = 0; b.o0 < c->outer; b.o0 += c->w) {
        b.w = c->outer - b.o0 < c->w ? c->outer - b.o0 : c->w;
        flux__do_late(&b, 0);
        flux__do_phase(&b, 0, from, to);
        for (int i = 0; i < job->k->nvalue; i++) {
            const flux__value *v = &job->k->value[i];
            if (!flux__reducing(v)) continue;
            size_t size = flux__class_size[v->cls], row = (size_t)(part * c->nreduce + c->reduce_at[i]) * 2 * (size_t)c->outer * 8;
            memcpy(job->partial + row + (size_t)b.o0 * 8, b.at[i], (size_t)b.w * size);
            if (v->kind == FLUX__V_ARGREDUCE)
                memcpy(job->partial + row + (size_t)(c->outer + b.o0) * 8, flux__reg(&b, c->nreg + 1 + c->reduce_at[i]), (size_t)b.w * flux__class_size[job->k->value[v->a].cls]);
        }
    }
}

/* Puts the parts of a split reduction together, in order. */
static void flux__combine(flux__block_run *b, flux__job *job, int i) {
    const flux__value *v = &job->k->value[i];
    flux__cpu *c = b->c;
    size_t size = flux__class_size[v->cls], wide = flux__class_size[job->k->value[v->a].cls];
    char *acc = flux__reg(b, c->reg[i]), *best = flux__reg(b, c->nreg + 1 + c->reduce_at[i]);
    b->at[i] = acc;
    b->walk[i] = 1;
    for (int part = 0; part < c->splits; part++) {
        size_t row = (size_t)(part * c->nreduce + c->reduce_at[i]) * 2 * (size_t)c->outer * 8;
        const char *x = job->partial + row + (size_t)b->o0 * 8, *y = job->partial + row + (size_t)(c->outer + b->o0) * 8;
        if (part == 0) {
            memcpy(acc, x, (size_t)b->w * size);
            memcpy(best, y, (size_t)b->w * wide);
        } else if (v->kind == FLUX__V_REDUCE) flux__accumulate(v->cls, v->op, acc, x, b->w);
        else
            for (int64_t o = 0; o < b->w; o++) {
                int64_t won = 0;          /* becomes 1 if the later part has the better one */
                flux__argreduce(job->k->value[v->a].cls, v->op != 0, best + (size_t)o * wide, &won, y + (size_t)o * wide, 1, 1);
                if (won) memcpy(acc + (size_t)o * 8, x + (size_t)o * 8, 8);
            }
    }
}

static int flux__run_split(flux__job *job) {
    flux__cpu *c = (flux__cpu *)job->k->ready;
    flux__block_run b;
    job->partial = (char *)job->run->extra[2];
    flux__parallel(c->splits, flux__split_task, job);
    bool ok = flux__job_ok(job) && flux__block_start(&b, job->run, job->k);
    for (int64_t o0 = 0; ok && o0 < c->outer; o0 += c->w) {
        b.o0 = o0;
        b.w = c->outer - o0 < c->w ? c->outer - o0 : c->w;
        b.rt = 1;
        flux__do_late(&b, 0);
        for (int i = 0; i < job->k->nvalue; i++)
            if (flux__reducing(&job->k->value[i])) flux__combine(&b, job, i);
        flux__store_reductions(&b, 0);
        for (int p = 1; p < c->nphase; p++) flux__do_late(&b, p);
    }
    return ok ? 0 : -1;
}

static int flux__run_fused(flux__run *run, flux__kernel *k) {
    flux__cpu *c = (flux__cpu *)k->ready;
    flux__job job;
    memset(&job, 0, sizeof job);
    job.run = run, job.k = k;
    if (c->outer == 0) return 0;
    if (c->splits > 1) return flux__run_split(&job);
    int64_t blocks = (c->outer + c->w - 1) / c->w, work = c->outer * (c->inner > 0 ? c->inner : 1) * k->nvalue;
    int64_t tasks = work / 131072 + 1;    /* too little work for a second thread is done here */
    if (tasks > 256) tasks = 256;
    if (tasks > blocks) tasks = blocks;
    job.per_task = (blocks + tasks - 1) / tasks;
    job.tasks = (blocks + job.per_task - 1) / job.per_task;
    flux__parallel(job.tasks, flux__block_task, &job);
    return flux__job_ok(&job) ? 0 : -1;
}

/* ---------------- matrix products */

/* A block of the result comes by while it is hot: the kernel's program runs over it, in pieces that fit a register. */
static void flux__epilogue(void *ctx, int worker, int64_t i0, int64_t j0, int64_t mb, int64_t nb, void *block, int64_t ld) {
    flux__job *job = (flux__job *)ctx;
    flux__block_run b;
    (void)worker;
    if (!flux__block_start(&b, job->run, job->k)) {
        flux__atomic_store32(&job->failed, 1);
        return;
    }
    int64_t m = job->k->mnk[0], n = job->k->mnk[1];
    size_t size = job->k->operand[0].dtype == FLUX_F64 ? 8 : 4;
    int64_t rows = mb < FLUX__TILE ? mb : FLUX__TILE, cols = FLUX__TILE / rows;
    for (int64_t j = 0; j < nb; j += cols)
        for (int64_t i = 0; i < mb; i += rows) {
            b.w = mb - i < rows ? mb - i : rows;
            b.segments = nb - j < cols ? nb - j : cols;
            b.segment_step = m;
            b.o0 = job->batch * m * n + (j0 + j) * m + i0 + i;
            b.r0 = 0, b.rt = 1;
            b.product = (const char *)block + (size_t)(i + j * ld) * size;
            b.product_ld = ld;
            for (int p = 0; p < b.c->nphase; p++) {
                flux__do_late(&b, p);
                for (int l = 0; l < b.c->phase[p].n; l++) flux__do_line(&b, b.c->phase[p].line[l]);
            }
            flux__store_numbers(&b);
        }
}

/* The only thing done is to store the product itself? Then the product writes it where it belongs. */
static bool flux__bare_product(const flux__kernel *k) {
    return k->nvalue == 1 && k->value[0].kind == FLUX__V_PRODUCT && (k->value[0].dtype == FLUX_F32 || k->value[0].dtype == FLUX_F64);
}

static int64_t flux__batch_offset(const flux__kernel *k, const flux__operand *o, int64_t batch) {
    int64_t at = o->offset;
    int first = k->mnk[0] < 0 ? 0 : 2;
    for (int d = first; d < FLUX_MAX_DIMS; d++) {
        int64_t n = k->full[d], i = n > 0 ? batch % n : 0;
        if (n > 0) batch /= n;
        if (d < o->shape.ndim && o->shape.dim[d] > 1) at += i * o->stride[d];
    }
    return at;
}

/* An operand of a half format as f32, in order. */
static float *flux__widen(const flux__operand *o, const void *src, void *memory) {
    int64_t n = flux__count(&o->shape);
    flux__axes x;
    int64_t dim[FLUX_MAX_DIMS], step[FLUX_MAX_DIMS];
    float *out = (float *)memory;
    for (int d = 0; d < FLUX_MAX_DIMS; d++) dim[d] = d < o->shape.ndim ? o->shape.dim[d] : 1, step[d] = d < o->shape.ndim ? o->stride[d] : 0;
    flux__merge_axes(&x, dim, step, 0, false);
    flux__transfer t = { (const char *)src, (char *)out, FLUX__F32C, o->dtype, 4, 2 };
    flux__each_run(&x, o->offset, 0, n, 0, flux__load_run, &t);
    return out;
}

typedef struct flux__matrix { const char *at; int64_t row, col; flux__operand o; } flux__matrix;

static bool flux__is_half(int dtype) { return dtype == FLUX_F16 || dtype == FLUX_BF16; }

static void flux__matrix_operand(flux__run *run, flux__kernel *k, int i, flux__matrix *m) {
    m->o = k->operand[i];
    m->at = (const char *)run->ptr[m->o.src];
    if (flux__is_half(m->o.dtype)) {
        m->at = (const char *)flux__widen(&m->o, m->at, run->extra[i]);
        m->o.offset = 0;
        flux__natural(&m->o.shape, m->o.stride);
    }
    bool vector = m->o.shape.ndim == 1;
    m->row = vector && i == 0 ? 0 : m->o.stride[0];
    m->col = vector ? (i == 0 ? m->o.stride[0] : 0) : m->o.stride[1];
}

static int flux__run_product(flux__run *run, flux__kernel *k) {
    bool f64 = k->operand[0].dtype == FLUX_F64, bare = flux__bare_product(k);
    size_t size = f64 ? 8 : 4;
    flux__matrix a, b;
    flux__job job;
    flux__gemm_job g;
    int64_t batches = 1;
    for (int d = 2; d < FLUX_MAX_DIMS; d++) batches *= k->full[d];
    if (k->mnk[0] * k->mnk[1] * batches == 0) return 0;
    memset(&job, 0, sizeof job);
    memset(&g, 0, sizeof g);
    job.run = run, job.k = k;
    bool ok = true;
    flux__matrix_operand(run, k, 0, &a);
    flux__matrix_operand(run, k, 1, &b);
    g.m = k->mnk[0], g.n = k->mnk[1], g.k = k->mnk[2];
    g.a_row = a.row, g.a_col = a.col, g.b_row = b.row, g.b_col = b.col, g.ldc = g.m;
    g.ctx = &job;
    if (!bare) g.epilogue = flux__epilogue;
    for (job.batch = 0; job.batch < batches && ok; job.batch++) {
        g.a = a.at + flux__batch_offset(k, &a.o, job.batch) * (int64_t)size;
        g.b = b.at + flux__batch_offset(k, &b.o, job.batch) * (int64_t)size;
        if (bare) g.c = (char *)run->ptr[k->value[0].out] + (size_t)(job.batch * g.m * g.n) * size;
        ok = flux__gemm(f64, &g) == 0 && flux__job_ok(&job);
    }
    return ok ? 0 : -1;
}

/* ---------------- whole-tensor kernels */

/* Moves elements between two strided layouts of the same shape, adding if asked. */
static void flux__copy_elements(int t, const flux_shape *s, char *dst, const int64_t *dst_step, const char *src, const int64_t *src_step, bool add);

static void flux__copy_row(int t, int64_t n, char *dst, int64_t ds, const char *src, int64_t ss, bool add) {
    size_t size = flux__dtypes[t].size;
    if (!add && ds == 1 && ss == 1) {
        memcpy(dst, src, (size_t)n * size);
        return;
    }
    if (!add) {                           /* bytes as they are */
        for (int64_t i = 0; i < n; i++, dst += ds * (int64_t)size, src += ss * (int64_t)size) memcpy(dst, src, size);
        return;
    }
    int cls = flux__class_of(t);
    char a[256 * 8], b[256 * 8];
    for (int64_t i = 0; i < n; i += 256) {
        int64_t m = n - i < 256 ? n - i : 256;
        char *to = dst + (ptrdiff_t)(i * ds) * (ptrdiff_t)size;
        flux__load(cls, a, t, src + (ptrdiff_t)(i * ss) * (ptrdiff_t)size, ss, m);
        flux__load(cls, b, t, to, ds, m);
        flux__accumulate(cls, FLUX__RED_SUM, b, a, m);
        flux__store(t, to, ds, cls, b, m);
    }
}

static void flux__copy_elements(int t, const flux_shape *s, char *dst, const int64_t *dst_step, const char *src, const int64_t *src_step, bool add) {
    int64_t at[FLUX_MAX_DIMS] = { 0 }, n = s->ndim ? s->dim[0] : 1;
    ptrdiff_t size = (ptrdiff_t)flux__dtypes[t].size;
    if (flux__count(s) == 0) return;
    for (;;) {
        flux__copy_row(t, n, dst, s->ndim ? dst_step[0] : 1, src, s->ndim ? src_step[0] : 1, add);
        int d = 1;
        for (; d < s->ndim; d++) {
            dst += dst_step[d] * size, src += src_step[d] * size;
            if (++at[d] < s->dim[d]) break;
            dst -= dst_step[d] * size * s->dim[d], src -= src_step[d] * size * s->dim[d];
            at[d] = 0;
        }
        if (d >= s->ndim) return;
    }
}

static const char *flux__operand_ptr(flux__run *run, const flux__operand *o) {
    return (const char *)run->ptr[o->src] + (ptrdiff_t)o->offset * (ptrdiff_t)flux__dtypes[o->dtype].size;
}

static void flux__fill_with(int t, void *dst, int64_t n, double value) {
    char one[8];
    int cls = flux__class_of(t);
    char tile[256 * 8];
    int own = flux__own_dtype[cls];
    flux__set_number(cls, one, value);
    flux__load(cls, tile, own, one, 0, 256);
    for (int64_t i = 0; i < n; i += 256)
        flux__store(t, (char *)dst + (size_t)i * flux__dtypes[t].size, 1, cls, tile, n - i < 256 ? n - i : 256);
}

/* Elements that meet are added with the additions of a float's own format; f16 and bf16 sums are taken in f32. */
static int flux__run_spread(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    const flux__operand *o = &k->operand[0];
    char *dst = (char *)run->ptr[run->plan->nleaf + k->node];
    bool half = t->arg.i[1] && flux__is_half(t->dtype);
    int64_t n = flux__size(t);
    if (!half) {
        flux__fill_with(t->dtype, dst, n, t->arg.i[1] ? 0 : t->arg.num);
        flux__copy_elements(t->dtype, &o->shape, dst + (ptrdiff_t)t->rel * (ptrdiff_t)flux__dtypes[t->dtype].size, t->stride,
                            flux__operand_ptr(run, o), o->stride, t->arg.i[1] != 0);
        return 0;
    }
    float *sum = (float *)run->extra[1], *wide = flux__widen(o, run->ptr[o->src], run->extra[0]);
    int64_t natural[FLUX_MAX_DIMS];
    flux__natural(&o->shape, natural);
    memset(sum, 0, (size_t)n * sizeof *sum);
    flux__copy_elements(FLUX_F32, &o->shape, (char *)(sum + t->rel), t->stride, (const char *)wide, natural, true);
    flux__store(t->dtype, dst, 1, FLUX__F32C, sum, n);
    return 0;
}

static int flux__run_cat(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    int64_t natural[FLUX_MAX_DIMS], at = 0;
    int dim = (int)t->arg.i[0];
    flux_shape s = flux__dims(t);
    flux__natural(&s, natural);
    for (int i = 0; i < k->noperand; i++) {
        const flux__operand *o = &k->operand[i];
        char *dst = (char *)run->ptr[run->plan->nleaf + k->node] + (ptrdiff_t)(at * natural[dim]) * (ptrdiff_t)flux__dtypes[t->dtype].size;
        flux__copy_elements(t->dtype, &o->shape, dst, natural, flux__operand_ptr(run, o), o->stride, false);
        at += dim < o->shape.ndim ? o->shape.dim[dim] : 1;
    }
    return 0;
}

/* One index after the other: of x the points before and after dim, moved to or from the result. */
static int flux__run_index(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    bool scatter = t->op == FLUX__SCATTER;
    const flux__operand *x = &k->operand[0], *index = &k->operand[1], *src = scatter ? &k->operand[2] : NULL;
    int dim = (int)t->arg.i[0];
    int dt = t->dtype;
    ptrdiff_t size = (ptrdiff_t)flux__dtypes[dt].size;
    char *out = (char *)run->ptr[run->plan->nleaf + k->node];
    int64_t n = flux__count(&index->shape), rows = x->shape.dim[dim], natural[FLUX_MAX_DIMS], picked[FLUX_MAX_DIMS];
    flux_shape slice = flux__shape(NULL, 0), whole = flux__dims(t), is = index->shape;
    int64_t big_step[FLUX_MAX_DIMS], small_step[FLUX_MAX_DIMS], index_out[FLUX_MAX_DIMS];
    flux__natural(&whole, natural);
    const int64_t *big = scatter ? natural : x->stride, *small = scatter ? src->stride : natural;
    for (int d = 0; d < x->shape.ndim; d++) {
        if (d == dim) continue;
        big_step[slice.ndim] = big[d];
        small_step[slice.ndim] = small[d < dim ? d : d - 1 + is.ndim];
        slice.dim[slice.ndim++] = x->shape.dim[d];
    }
    for (int d = 0; d < is.ndim; d++) index_out[d] = small[dim + d];
    if (scatter) flux__copy_elements(dt, &x->shape, out, natural, flux__operand_ptr(run, x), x->stride, false);
    const int64_t *ids = (const int64_t *)(const void *)flux__operand_ptr(run, index);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = 0, place = 0, rest = i;
        for (int d = 0; d < is.ndim; d++) {
            picked[d] = rest % is.dim[d];
            rest /= is.dim[d];
            at += picked[d] * index->stride[d];
            place += picked[d] * index_out[d];
        }
        int64_t id = ids[at];
        if (id < 0 || id >= rows) {
            flux__fail("%s: index %lld (number %lld) is not within dim %d of size %lld", flux__op_names[t->op], (long long)id,
                       (long long)i, dim, (long long)rows);
            return -1;
        }
        if (scatter)
            flux__copy_elements(dt, &slice, out + (ptrdiff_t)(id * natural[dim]) * size, big_step,
                                flux__operand_ptr(run, src) + (ptrdiff_t)place * size, small_step, true);
        else
            flux__copy_elements(dt, &slice, out + (ptrdiff_t)place * size, small_step,
                                flux__operand_ptr(run, x) + (ptrdiff_t)(id * x->stride[dim]) * size, big_step, false);
    }
    return 0;
}

/* Between devices: up, down, or across by way of the host. */
static int flux__move_bytes(flux_device to, void *dst, flux_device from, const void *src, size_t bytes) {
    if (bytes == 0) return 0;
    if (from.backend == to.backend) return flux__backend_of(to.backend)->copy(to.id, dst, from.id, src, bytes);
    if (from.backend == FLUX__CPU_BACKEND) return flux__backend_of(to.backend)->upload(to.id, dst, src, bytes);
    if (to.backend == FLUX__CPU_BACKEND) return flux__backend_of(from.backend)->download(from.id, dst, src, bytes);
    void *host = flux__malloc(bytes);
    int rc = host ? flux__backend_of(from.backend)->download(from.id, host, src, bytes) : -1;
    if (rc == 0) rc = flux__backend_of(to.backend)->upload(to.id, dst, host, bytes);
    if (host) FLUX_FREE(host);
    return rc;
}

static int flux__run_move(flux__run *run, flux__kernel *k) {
    flux_tensor *t = run->g->node[k->node];
    const flux__operand *o = &k->operand[0];
    flux_device from = t->in[0]->device, to = t->device;
    size_t bytes = (size_t)flux__size(t) * flux__dtypes[t->dtype].size;
    void *dst = run->ptr[run->plan->nleaf + k->node];
    int rc = flux__move_bytes(to, dst, from, flux__operand_ptr(run, o), bytes);
    if (rc != 0) {
        char there[96];
        snprintf(there, sizeof there, "%s", flux_device_name(from));
        flux__fail("to: %zu bytes could not be copied from %s to %s", bytes, there, flux_device_name(to));
    }
    return rc;
}

static void flux__at_least(size_t *bytes, int64_t n) {
    if (*bytes < (size_t)n) *bytes = (size_t)n;
}

/* Half formats as f32 (0: the first operand, 1: the second, or a sum), and the parts of split reductions (2). */
static void flux__kernel_extra(const flux__run *r, const flux__kernel *k, size_t *bytes) {
    const flux__cpu *c = (const flux__cpu *)k->ready;
    if (k->kind == FLUX__K_FUSED && c->splits > 1) flux__at_least(&bytes[2], (int64_t)c->splits * c->nreduce * 2 * c->outer * 8);
    for (int i = 0; i < 2 && k->kind == FLUX__K_MATMUL; i++)
        if (flux__is_half(k->operand[i].dtype)) flux__at_least(&bytes[i], flux__count(&k->operand[i].shape) * 4);
    if (k->kind == FLUX__K_SPREAD && flux__is_half(k->operand[0].dtype)) {
        flux__at_least(&bytes[0], flux__count(&k->operand[0].shape) * 4);
        flux__at_least(&bytes[1], flux__size(r->g->node[k->node]) * 4);
    }
}

/* Finds this thread's memory for the largest of the plan's programs. */
static bool flux__kernels_prepare(const flux__plan *plan) {
    size_t most = 0;
    for (int k = 0; k < plan->nkernel; k++)
        if (plan->kernel[k].kind <= FLUX__K_MATMUL)
            flux__at_least(&most, (int64_t)flux__memory_bytes(&plan->kernel[k], (const flux__cpu *)plan->kernel[k].ready) + 64);
    return most == 0 || flux__kernel_memory(most) != NULL;
}

static int flux__kernel_run(flux__run *r, flux__kernel *k) {
    switch (k->kind) {
    case FLUX__K_FUSED: return flux__run_fused(r, k);
    case FLUX__K_MATMUL: return flux__run_product(r, k);
    case FLUX__K_SPREAD: return flux__run_spread(r, k);
    case FLUX__K_CAT: return flux__run_cat(r, k);
    case FLUX__K_MOVE: return flux__run_move(r, k);
    default: return flux__run_index(r, k);
    }
}

FLUX__ASBEFORE
FLUX__COLD

/* ------------------------------------------------------------------ 12. Devices
   Which back ends there are, which of them work here, which one is meant, and the file that keeps the preference. A back
   end is asked once per process whether it works; the answer stays, with its reason, because every fallback must be able
   to say why. Choosing follows the preference if there is one and else the order CUDA, AMDGPU, Metal, CPU; the CPU
   always works, so there is always a choice.

   Invariant: nothing here changes a device, or which one is current; and nobody's function (a log or error handler) is
   called while flux__device_lock is held.

   In the preferences file only one value is ever touched, as a range of bytes: everything else, comments and line ends
   included, is somebody else's. Rejected: reading it into tables and printing them again, which loses just that. */

static flux__mutex flux__device_lock = FLUX__MUTEX_INIT;

/* ---------------- the registry */

static bool flux__yes(char *why, size_t n) {
    snprintf(why, n, "functional");
    return true;
}
static bool flux__not_built(char *why, size_t n) {
    snprintf(why, n, "not part of this build");
    return false;
}
static int flux__count_one(void) { return 1; }
static int flux__count_none(void) { return 0; }
static void flux__cpu_name(int id, char *out, size_t n) {
    (void)id;
    snprintf(out, n, "CPU");
}

/* Components by name, so that a misspelt one is an error on every machine. The CPU needs neither driver nor compiler. */
static bool flux__in_list(const char *name, const char *const *list) {
    while (*list && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}
static const char *const flux__parts_cpu[] = { "all", "driver", "compiler", NULL };
static const char *const flux__parts_cuda[] = { "all", "driver", "compiler", "NVRTC", "NCCL", "cuBLAS", "cuDNN", NULL };
static const char *const flux__parts_amd[] = { "all", "driver", "compiler", "hip", "hiprtc", "lld", "device_libs", "RCCL", "NCCL",
    "rocblas", "rocsolver", "rocsparse", "rocrand", "rocfft", "hiptensor", "MIOpen", NULL };
static const char *const flux__parts_metal[] = { "all", "driver", "compiler", NULL };
static bool flux__cpu_component(const char *name, bool *known) { return *known = flux__in_list(name, flux__parts_cpu); }
static bool flux__cuda_component(const char *name, bool *known) { return *known = flux__in_list(name, flux__parts_cuda), false; }
static bool flux__amd_component(const char *name, bool *known) { return *known = flux__in_list(name, flux__parts_amd), false; }
static bool flux__metal_component(const char *name, bool *known) { return *known = flux__in_list(name, flux__parts_metal), false; }

static int flux__cpu_move(int id, void *dst, const void *src, size_t bytes) {
    (void)id;
    memcpy(dst, src, bytes);
    return 0;
}
static int flux__cpu_copy(int to, void *dst, int from, const void *src, size_t bytes) {
    (void)from;
    return flux__cpu_move(to, dst, src, bytes);
}
static int flux__cpu_wait(int id) { return (void)id, 0; }         /* work is done when a look at it returns */

static void flux__no_name(int id, char *out, size_t n) { snprintf(out, n, "device %d", id); }
static void *flux__no_alloc(int id, size_t bytes) { return (void)id, (void)bytes, (void *)NULL; }
static void flux__no_free(int id, void *p, size_t bytes) { (void)id, (void)p, (void)bytes; }
static int flux__no_move(int id, void *dst, const void *src, size_t bytes) { return (void)id, (void)dst, (void)src, (void)bytes, -1; }
static int flux__no_copy(int to, void *dst, int from, const void *src, size_t bytes) { return (void)from, flux__no_move(to, dst, src, bytes); }
static int flux__no_wait(int id) { return (void)id, -1; }

#define FLUX__ABSENT(name, component) { name, flux__not_built, flux__not_built, flux__count_none, flux__no_name, component, \
    flux__no_alloc, flux__no_free, flux__no_move, flux__no_move, flux__no_copy, flux__no_wait }
static const flux__backend flux__backends[FLUX__BACKENDS] = {     /* in the order of FLUX__CPU_BACKEND ... */
    { "CPU", flux__yes, flux__yes, flux__count_one, flux__cpu_name, flux__cpu_component,
      flux__cpu_alloc, flux__cpu_free, flux__cpu_move, flux__cpu_move, flux__cpu_copy, flux__cpu_wait },
    FLUX__ABSENT("CUDA", flux__cuda_component),
    FLUX__ABSENT("AMDGPU", flux__amd_component),
    FLUX__ABSENT("Metal", flux__metal_component)
};
static const int flux__order[FLUX__BACKENDS] = { FLUX__CUDA_BACKEND, FLUX__AMDGPU_BACKEND, FLUX__METAL_BACKEND, FLUX__CPU_BACKEND };
#define FLUX__BACKEND_NAMES "CUDA, AMDGPU, Metal and CPU"

typedef struct flux__probe {              /* what asking a back end gave */
    bool known, available, functional;
    int count;
    char why[320];                        /* "functional", or why not */
    char device[FLUX__MAX_IDS][112];      /* "CUDA device 0: NVIDIA H200", once asked for */
} flux__probe;
static flux__probe flux__probes[FLUX__BACKENDS];
static const flux__backend *flux__replaced[FLUX__BACKENDS];

static const flux__backend *flux__backend_of(int index) {
    if (index < 0 || index >= FLUX__BACKENDS) index = FLUX__CPU_BACKEND;
    return flux__replaced[index] ? flux__replaced[index] : &flux__backends[index];
}

static void flux__backend_set(int index, const flux__backend *b) {
    flux__mutex_lock(&flux__device_lock);
    flux__replaced[index] = b;
    memset(&flux__probes[index], 0, sizeof flux__probes[index]);
    flux__mutex_unlock(&flux__device_lock);
}

/* What hides devices from a driver is part of the reason, where it is set. */
static void flux__add_visibility(int index, char *why, size_t n) {
    static const char *const names[FLUX__BACKENDS][4] = {
        { NULL, NULL, NULL, NULL }, { "CUDA_VISIBLE_DEVICES", NULL, NULL, NULL },
        { "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL" }, { NULL, NULL, NULL, NULL }
    };
    for (int i = 0; i < 4 && names[index][i]; i++) {
        const char *value = getenv(names[index][i]);
        size_t used = strlen(why);
        if (value) snprintf(why + used, n - used, "; %s is \"%.40s\"", names[index][i], value);
        for (char *c = why + used; *c; c++)
            if ((unsigned char)*c < ' ') *c = '?';
    }
}

static void flux__find_out(int index, flux__probe *p) {
    const flux__backend *b = flux__backend_of(index);
    p->available = b->available(p->why, sizeof p->why);
    p->functional = p->available && b->functional(p->why, sizeof p->why);
    p->count = p->functional ? b->count() : 0;
    if (p->functional && p->count < 1) {
        p->functional = false;
        p->count = 0;
        snprintf(p->why, sizeof p->why, "no device");
    }
    if (p->count > FLUX__MAX_IDS) p->count = FLUX__MAX_IDS;
    if (p->functional) snprintf(p->why, sizeof p->why, "functional");
    else flux__add_visibility(index, p->why, sizeof p->why);
    p->known = true;
}

static const flux__probe *flux__probe_of(int index) {
    flux__mutex_lock(&flux__device_lock);
    if (!flux__probes[index].known) flux__find_out(index, &flux__probes[index]);
    flux__mutex_unlock(&flux__device_lock);
    return &flux__probes[index];
}

/* ---------------- names and what can be asked of them */

/* The number of a back end, -1 for a name that is none. */
static int flux__backend_number(const char *name) {
    if (strcmp(name, "AMD") == 0) {
        flux__note(FLUX_LOG_INFO, "device.amd", true, "the back end for AMD's GPUs is called AMDGPU; AMD is taken to mean it");
        return FLUX__AMDGPU_BACKEND;
    }
    for (int i = 0; i < FLUX__BACKENDS; i++)
        if (strcmp(name, flux__backends[i].name) == 0) return i;
    return -1;
}

/* The same for a call's argument: a name that is none is an error. */
static int flux__backend_arg(const char *call, const char *name) {
    int b = name ? flux__backend_number(name) : -1;
    if (!name) flux__fail("%s: argument backend is NULL", call);
    else if (b < 0) flux__fail("%s: unknown back end \"%.60s\"; there are " FLUX__BACKEND_NAMES, call, name);
    return b;
}

static bool flux__device_is(flux_device d) {
    return d.backend >= 0 && d.backend < FLUX__BACKENDS && d.id >= 0 && d.id < flux__probe_of(d.backend)->count;
}

FLUX_DEF const char *const *flux_supported_devices(void) {
    static const char *const names[] = { "CUDA", "AMDGPU", "Metal", "CPU", NULL };
    return names;
}

FLUX_DEF bool flux_functional(const char *backend) {
    int b = flux__backend_arg("functional", backend);
    return b >= 0 && flux__probe_of(b)->functional;
}

FLUX_DEF const char *flux_functional_reason(const char *backend) {
    int b = flux__backend_arg("functional_reason", backend);
    return b >= 0 ? flux__probe_of(b)->why : "there is no such back end";
}

FLUX_DEF bool flux_functional_with(const char *backend, const char *component) {
    int b = flux__backend_arg("functional_with", backend);
    if (b < 0) return false;
    if (!component) return flux__fail("functional_with: argument component is NULL") != NULL;
    bool known = false, there = flux__backend_of(b)->component(component, &known);
    if (!known) flux__fail("functional_with: %s has no component \"%.60s\"", flux__backends[b].name, component);
    return known && there;
}

FLUX_DEF int flux_device_count(const char *backend) {
    int b = flux__backend_arg("device_count", backend);
    return b >= 0 ? flux__probe_of(b)->count : 0;
}

FLUX_DEF int flux_get_devices(const char *backend, flux_device *out, int max) {
    int b = flux__backend_arg("get_devices", backend), n = b >= 0 ? flux__probe_of(b)->count : 0;
    for (int i = 0; out && i < n && i < max; i++) {
        out[i].backend = b;
        out[i].id = i;
    }
    return n;
}

FLUX_DEF const char *flux_device_name(flux_device d) {
    if (d.backend < 0 || d.backend >= FLUX__BACKENDS) return "no device";
    if (d.backend == FLUX__CPU_BACKEND) return "CPU";
    if (!flux__device_is(d)) return flux__backends[d.backend].name;
    char *name = flux__probes[d.backend].device[d.id];
    flux__mutex_lock(&flux__device_lock);
    if (!*name) {
        char model[72] = "";
        flux__backend_of(d.backend)->device_name(d.id, model, sizeof model);
        snprintf(name, sizeof flux__probes[0].device[0], "%s device %d: %s", flux__backends[d.backend].name, d.id, model);
    }
    flux__mutex_unlock(&flux__device_lock);
    return name;
}

FLUX_DEF int flux_device_id(flux_device d) { return d.id; }

FLUX_DEF const char *flux_device_backend(flux_device d) {
    return d.backend >= 0 && d.backend < FLUX__BACKENDS ? flux__backends[d.backend].name : "none";
}

FLUX_DEF bool flux_device_equal(flux_device a, flux_device b) {
    return a.backend == b.backend && (a.id == b.id || a.backend == FLUX__CPU_BACKEND);
}

FLUX_DEF void flux_synchronise_device(flux_device d) {
    if (!flux__device_is(d)) flux__fail("synchronise_device: device {%d, %d} can't be used here", d.backend, d.id);
    else if (flux__backend_of(d.backend)->wait(d.id) != 0)
        flux__fail("synchronise_device: work on %s has failed", flux_device_name(d));
}

/* ---------------- the preferences file: TOML, read
   A walk over the whole text, which must be TOML, looking for one key of one table wherever TOML lets it stand:
   under [Flux], as Flux.gpu_backend, or within Flux = { ... }. What is remembered are places in the text. */

#define FLUX__TOML_DEPTH 32
#define FLUX__TOML_MAX (1 << 20)          /* bytes: a longer file is no preferences file */

typedef struct flux__path { char text[120]; size_t len; } flux__path;     /* "Flux", "a.b": parts joined by byte 1 */

typedef struct flux__toml {
    const char *s;
    size_t n, at;
    const char *table, *key;              /* looked for */
    const char *wrong;                    /* why the text is not TOML at .at, or NULL */
    size_t start;                         /* of the statement being read */
    size_t value, value_end;              /* the value's place; value_end 0: the key is not there */
    size_t line, line_end;                /* its statement's lines */
    size_t header_end, dotted_end, whole; /* after the line [table]; after the last `table.x = y`; where `table = ...` starts */
    int dotted;                           /* how many `table.x = y` there are */
    bool header, fixed;                   /* is there a line [table]; fixed: the table is inline, or a list of tables */
    bool in_braces, is_string;            /* the value is inside { }; it is a string, whose text is: */
    char text[64];
} flux__toml;

static bool flux__toml_wrong(flux__toml *t, size_t at, const char *what) {
    if (!t->wrong) {
        t->wrong = what;
        t->at = at;
    }
    return false;
}

static int flux__toml_line(const flux__toml *t, size_t at) {
    int line = 1;
    for (size_t i = 0; i < at && i < t->n; i++) line += t->s[i] == '\n';
    return line;
}

static char flux__toml_peek(const flux__toml *t, size_t ahead) {
    return t->at + ahead < t->n ? t->s[t->at + ahead] : '\0';
}
static bool flux__toml_is(const flux__toml *t, const char *what) {
    size_t n = strlen(what);
    return t->n - t->at >= n && memcmp(t->s + t->at, what, n) == 0;
}
static bool flux__toml_white(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
static void flux__toml_space(flux__toml *t) {
    while (flux__toml_peek(t, 0) == ' ' || flux__toml_peek(t, 0) == '\t') t->at++;
}
static bool flux__toml_newline(flux__toml *t) {
    size_t n = flux__toml_is(t, "\r\n") ? 2 : flux__toml_is(t, "\n") ? 1 : 0;
    t->at += n;
    return n > 0;
}
static void flux__toml_comment(flux__toml *t) {
    if (flux__toml_peek(t, 0) == '#')
        while (t->at < t->n && !flux__toml_is(t, "\n") && !flux__toml_is(t, "\r\n")) t->at++;
}
static bool flux__toml_end_of_line(flux__toml *t) {
    flux__toml_space(t);
    flux__toml_comment(t);
    return t->at == t->n || flux__toml_newline(t) || flux__toml_wrong(t, t->at, "more text where the line should end");
}
static void flux__toml_blank(flux__toml *t) {       /* between the elements of a list */
    do {
        flux__toml_space(t);
        flux__toml_comment(t);
    } while (flux__toml_newline(t));
}

/* One character of a string in double quotes, or of an escape in it; false: the escape is none. */
static bool flux__toml_char(flux__toml *t, char *c) {
    static const char from[] = "btnfre\"\\", to[] = "\b\t\n\f\r\033\"\\";
    *c = t->s[t->at++];
    if (*c != '\\') return true;
    char e = flux__toml_peek(t, 0);
    const char *known = e ? strchr(from, e) : NULL;
    if (known) {
        *c = to[known - from];
        t->at++;
        return true;
    }
    int digits = e == 'u' ? 4 : e == 'U' ? 8 : 0;
    unsigned long code = 0;
    for (int i = 1; i <= digits; i++) {
        const char *hex = "0123456789abcdef0123456789ABCDEF", d = flux__toml_peek(t, (size_t)i);
        const char *p = d ? strchr(hex, d) : NULL;
        if (!p) return false;
        code = code * 16 + (unsigned long)((p - hex) & 15);
    }
    *c = code < 128 ? (char)code : '?';             /* our names are ASCII: any other character is only not one of them */
    t->at += digits ? (size_t)digits + 1 : 0;
    return digits > 0;
}

/* A string of any of the four kinds; its text, cut to n - 1 bytes, goes to out. */
static bool flux__toml_string(flux__toml *t, char *out, size_t n, bool one_line) {
    size_t start = t->at, used = 0;
    char quote = t->s[start], three[4] = { quote, quote, quote, 0 };
    bool many = flux__toml_is(t, three);
    if (many && one_line) return flux__toml_wrong(t, start, "a key can't be of several lines");
    t->at += many ? 3 : 1;
    if (many) flux__toml_newline(t);
    while (t->at < t->n) {
        char c = t->s[t->at];
        if (many ? flux__toml_is(t, three) && flux__toml_peek(t, 3) != quote : c == quote) {
            t->at += many ? 3 : 1;
            if (out) out[used] = '\0';
            return true;
        }
        if (!many && c == '\n') break;
        if (quote == '"' && many && c == '\\' && flux__toml_white(flux__toml_peek(t, 1))) {
            for (t->at++; flux__toml_white(flux__toml_peek(t, 0));) t->at++;    /* a line that goes on in the next */
            continue;
        }
        if (quote == '\'') t->at++;
        else if (!flux__toml_char(t, &c)) return flux__toml_wrong(t, t->at, "an unknown escape in a string");
        if (out && used + 1 < n) out[used++] = c;
    }
    return flux__toml_wrong(t, start, "a string without its closing quote");
}

static bool flux__toml_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static void flux__path_add(flux__path *p, const char *part) {
    int n = snprintf(p->text + p->len, sizeof p->text - p->len, "%s%s", p->len ? "\001" : "", part);
    p->len += (size_t)n < sizeof p->text - p->len ? (size_t)n : sizeof p->text - p->len - 1;   /* too long to be ours */
}

/* A key, dotted or not: its parts go to the end of path. Gives how many there are, 0 on error. */
static int flux__toml_key(flux__toml *t, flux__path *path) {
    for (int parts = 1;; parts++) {
        char part[80];
        size_t used = 0;
        flux__toml_space(t);
        char c = flux__toml_peek(t, 0);
        if (c == '"' || c == '\'') {
            if (!flux__toml_string(t, part, sizeof part, true)) return 0;
        } else {
            if (!flux__toml_bare(c)) return flux__toml_wrong(t, t->at, "a key or [table] should stand there");
            for (; flux__toml_bare(flux__toml_peek(t, 0)); t->at++)
                if (used + 1 < sizeof part) part[used++] = t->s[t->at];
            part[used] = '\0';
        }
        flux__path_add(path, part);
        flux__toml_space(t);
        if (flux__toml_peek(t, 0) != '.') return parts;
        t->at++;
    }
}

static bool flux__path_in(const flux__path *p, const char *table) {      /* something within that table */
    size_t n = strlen(table);
    return strncmp(p->text, table, n) == 0 && p->text[n] == '\001';
}
static bool flux__path_is(const flux__path *p, const char *table, const char *key) {
    return key ? flux__path_in(p, table) && strcmp(p->text + strlen(table) + 1, key) == 0 : strcmp(p->text, table) == 0;
}

/* true, a number, a date: whatever is made of such characters and is no bare word. */
static bool flux__toml_plain(flux__toml *t) {
    size_t start = t->at;
    while (flux__toml_bare(flux__toml_peek(t, 0)) || (flux__toml_peek(t, 0) && strchr("+.:", flux__toml_peek(t, 0)))) t->at++;
    size_t n = t->at - start;
    const char *s = t->s + start, *words[] = { "true", "false", "inf", "nan", "+inf", "-inf", "+nan", "-nan" };
    if (n == 10 && s[4] == '-' && flux__toml_peek(t, 0) == ' ' && flux__toml_peek(t, 1) >= '0' && flux__toml_peek(t, 1) <= '9') {
        t->at++;                                    /* a date and a time with a space between */
        return flux__toml_plain(t);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n == strlen(words[i]) && memcmp(s, words[i], n) == 0) return true;
    size_t sign = n > 0 && (s[0] == '+' || s[0] == '-');
    if (n > sign && s[sign] >= '0' && s[sign] <= '9') return true;
    return flux__toml_wrong(t, start, n ? "a value that is a word should stand in quotes" : "a value is missing");
}

static bool flux__toml_assign(flux__toml *t, const flux__path *prefix, int depth);

static bool flux__toml_list(flux__toml *t, const flux__path *path, int depth);

static bool flux__toml_braces(flux__toml *t, const flux__path *path, int depth) {
    t->at++;
    flux__toml_space(t);
    if (flux__toml_peek(t, 0) == '}') return t->at++, true;
    for (;;) {
        if (!flux__toml_assign(t, path, depth)) return false;
        flux__toml_space(t);
        char c = flux__toml_peek(t, 0);
        if (c != ',' && c != '}') return flux__toml_wrong(t, t->at, "a table in braces should go on with , or end with }");
        t->at++;
        if (c == '}') return true;
    }
}

static bool flux__toml_value(flux__toml *t, const flux__path *path, int depth, char *text, size_t n) {
    char c = flux__toml_peek(t, 0);
    if (depth > FLUX__TOML_DEPTH) return flux__toml_wrong(t, t->at, "nested too deep");
    if (c == '"' || c == '\'') return flux__toml_string(t, text, n, false);
    if (c == '[') return flux__toml_list(t, path, depth + 1);
    if (c == '{') return flux__toml_braces(t, path, depth + 1);
    return flux__toml_plain(t);
}

static bool flux__toml_list(flux__toml *t, const flux__path *path, int depth) {
    flux__path inside = *path;
    flux__path_add(&inside, "[]");                  /* a table in a list is not the one looked for */
    t->at++;
    for (;;) {
        flux__toml_blank(t);
        if (flux__toml_peek(t, 0) == ']') return t->at++, true;
        if (!flux__toml_value(t, &inside, depth, NULL, 0)) return false;
        flux__toml_blank(t);
        char c = flux__toml_peek(t, 0);
        if (c != ',' && c != ']') return flux__toml_wrong(t, t->at, "a list should go on with , or end with ]");
        if (c == ',') t->at++;
    }
}

/* key = value, by itself or within braces (depth > 0). */
static bool flux__toml_assign(flux__toml *t, const flux__path *prefix, int depth) {
    flux__path path = *prefix;
    int parts = flux__toml_key(t, &path);
    if (!parts) return false;
    if (flux__toml_peek(t, 0) != '=') return flux__toml_wrong(t, t->at, "= is missing after a key");
    t->at++;
    flux__toml_space(t);
    size_t value = t->at;
    char text[64] = "", first = flux__toml_peek(t, 0);
    if (!flux__toml_value(t, &path, depth, text, sizeof text)) return false;
    if (flux__path_is(&path, t->table, NULL)) {     /* table = { ... } */
        t->fixed = true;
        t->whole = value;
    }
    if (prefix->len == 0 && parts > 1 && flux__path_in(&path, t->table)) t->dotted++;
    if (!flux__path_is(&path, t->table, t->key)) return true;
    if (t->value_end) return flux__toml_wrong(t, value, "the same key for the second time");
    t->value = value;
    t->value_end = t->at;
    t->line = t->start;
    t->in_braces = depth > 0;
    t->is_string = first == '"' || first == '\'';
    memcpy(t->text, text, sizeof text);
    return true;
}

/* [table] or [[table]]: what follows belongs to it. */
static bool flux__toml_header(flux__toml *t, flux__path *prefix) {
    size_t start = t->at;
    int marks = flux__toml_is(t, "[[") ? 2 : 1;
    t->at += (size_t)marks;
    prefix->len = 0;
    prefix->text[0] = '\0';
    if (!flux__toml_key(t, prefix)) return false;
    if (!flux__toml_is(t, marks == 2 ? "]]" : "]")) return flux__toml_wrong(t, t->at, "] is missing after a table's name");
    t->at += (size_t)marks;
    if (!flux__toml_end_of_line(t)) return false;
    bool ours = flux__path_is(prefix, t->table, NULL);
    if (marks == 2) flux__path_add(prefix, "[]");
    if (ours && (t->header || t->dotted)) return flux__toml_wrong(t, start, "the same table for the second time");
    if (ours && marks == 1) {
        t->header = true;
        t->header_end = t->at;
    } else if (ours) {
        t->fixed = true;
        t->whole = start;
    }
    return true;
}

/* Reads the text for one key; false: it is not TOML, .wrong and .at say why and where. */
static bool flux__toml_read(flux__toml *t, const char *s, size_t n, const char *table, const char *key) {
    flux__path prefix = { "", 0 };
    memset(t, 0, sizeof *t);
    t->s = s, t->n = n, t->table = table, t->key = key;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' && !strchr("\t\n\r", s[i] ? s[i] : 'x')) return flux__toml_wrong(t, i, "a control character");
    if (flux__toml_is(t, "\xEF\xBB\xBF")) t->at = 3;           /* a byte order mark */
    for (;;) {
        flux__toml_blank(t);
        if (t->at == n) return true;
        t->start = t->at;
        if (flux__toml_peek(t, 0) == '[') {
            if (!flux__toml_header(t, &prefix)) return false;
            continue;
        }
        bool found = t->value_end != 0;
        int dotted = t->dotted;
        if (!flux__toml_assign(t, &prefix, 0) || !flux__toml_end_of_line(t)) return false;
        if (t->value_end && !found) t->line_end = t->at;
        if (t->dotted > dotted) t->dotted_end = t->at;
    }
}

/* ---------------- the preferences file: found, used, changed
   It is the one that FLUX_PREFERENCES names, else LocalPreferences.toml in the working directory, else the nearest above
   it, no further than a folder that has .git. It is read once, and again after a change of ours. */

#define FLUX__PREFS_NAME "LocalPreferences.toml"
#define FLUX__PREFS_UP 40                 /* folders to look in */

typedef struct flux__prefs {
    bool known, given;                    /* given: the path is FLUX_PREFERENCES's */
    char path[1024];                      /* the file in use, or the one to be made */
    char value[64];                       /* gpu_backend; "": not set */
} flux__prefs;
static flux__prefs flux__pref;

static void flux__prefs_find(char *path, size_t n) {
    char up[3 * FLUX__PREFS_UP + 1] = "", git[sizeof up + 4];
    for (int i = 0, mode; i < FLUX__PREFS_UP; i++) {
        snprintf(path, n, "%s" FLUX__PREFS_NAME, up);
        FILE *f = flux__fopen(path, "rb");
        if (f) {
            fclose(f);
            return;
        }
        snprintf(git, sizeof git, "%s.git", up);
        if (flux__file_kind(git, &mode) != 0) break;
        strcpy(up + 3 * i, "../");
    }
    snprintf(path, n, FLUX__PREFS_NAME);
}

/* The file's text, to be given to FLUX_FREE. NULL: there is none, or *why says why it can't be read. */
static char *flux__prefs_load(const char *path, size_t *n, const char **why) {
    *n = 0;
    *why = NULL;
    errno = 0;
    FILE *f = flux__fopen(path, "rb");
    if (!f) {
        if (errno != ENOENT && errno != ENOTDIR) *why = strerror(errno);
        return NULL;
    }
    char *text = (char *)FLUX_MALLOC(FLUX__TOML_MAX + 1);
    if (text) *n = fread(text, 1, FLUX__TOML_MAX + 1, f);
    if (!text) *why = "out of memory";
    else if (ferror(f)) *why = strerror(errno);
    else if (*n > FLUX__TOML_MAX) *why = "longer than 1 MiB";
    fclose(f);
    if (!*why) return text;
    FLUX_FREE(text);
    return NULL;
}

/* Reads gpu_backend from the file at p->path; what is wrong with the file goes to warning. */
static void flux__prefs_read(flux__prefs *p, char *warning, size_t n) {
    static const char *const tables[] = { "Flux", "MLDataDevices" };   /* the second is what newer programs of Flux's family write */
    const char *why;
    size_t size;
    char *text = flux__prefs_load(p->path, &size, &why);
    flux__toml t;
    p->value[0] = '\0';
    if (why) snprintf(warning, n, "%s can't be read (%s): no preference is taken from it", p->path, why);
    for (int i = 0; text && i < 2 && !p->value[0]; i++) {
        if (!flux__toml_read(&t, text, size, tables[i], "gpu_backend")) {
            snprintf(warning, n, "%s, line %d: %s: no preference is taken from it", p->path, flux__toml_line(&t, t.at), t.wrong);
            break;
        }
        if (t.value_end && !t.is_string)
            snprintf(warning, n, "%s, line %d: gpu_backend should be a string, such as \"CUDA\"", p->path, flux__toml_line(&t, t.value));
        else memcpy(p->value, t.text, sizeof p->value);
    }
    if (text) FLUX_FREE(text);
}

/* Brings flux__pref up to date (called with the lock held). */
static void flux__prefs_update(flux__prefs *p, char *warning, size_t n) {
    const char *given = flux__env("FLUX_PREFERENCES");
    if (p->known && (given ? p->given && strcmp(p->path, given) == 0 : !p->given)) return;
    p->known = true;
    p->given = given != NULL;
    if (given) snprintf(p->path, sizeof p->path, "%s", given);
    else flux__prefs_find(p->path, sizeof p->path);
    flux__prefs_read(p, warning, n);
}

/* The preferred back end's name: from FLUX_GPU_BACKEND, or the file; NULL: none is set. */
static const char *flux__preference(void) {
    const char *name = flux__env("FLUX_GPU_BACKEND");
    if (name) return name;
    char warning[800] = "";
    flux__mutex_lock(&flux__device_lock);
    flux__prefs_update(&flux__pref, warning, sizeof warning);
    name = flux__pref.value[0] ? flux__pref.value : NULL;
    for (int i = 0; name && i < FLUX__BACKENDS; i++)
        if (strcmp(name, flux__backends[i].name) == 0) name = flux__backends[i].name;   /* stays valid for good */
    flux__mutex_unlock(&flux__device_lock);
    if (warning[0]) flux__note(FLUX_LOG_WARN, "preferences", true, "%s", warning);
    return name;
}

FLUX_DEF const char *flux_gpu_backend(void) {
    const char *name = flux__preference();
    return name ? name : "CUDA";
}

FLUX_DEF bool flux_gpu_backend_is_set(void) { return flux__preference() != NULL; }

/* One change to a text: the bytes from a to b become .put. */
typedef struct flux__edit { size_t a, b; char put[96]; } flux__edit;

/* The change that sets the key to name (NULL: takes it away). False: the table is written in a way that leaves no room. */
static bool flux__prefs_edit(const flux__toml *t, const char *name, flux__edit *e) {
    const char *nl = memchr(t->s, '\n', t->n) ? (const char *)memchr(t->s, '\n', t->n) : t->s;
    const char *eol = nl > t->s && nl[-1] == '\r' ? "\r\n" : "\n";      /* as the file's first line ends */
    e->put[0] = '\0';
    if (t->value_end && !name && t->in_braces) return false;
    if (t->value_end) {
        e->a = name ? t->value : t->line;
        e->b = name ? t->value_end : t->line_end;
        if (name) snprintf(e->put, sizeof e->put, "\"%s\"", name);
        while (!name && e->a > 0 && (t->s[e->a - 1] == ' ' || t->s[e->a - 1] == '\t')) e->a--;   /* the whole line goes */
        return true;
    }
    if (t->fixed) return false;
    bool dotted = t->dotted > 0 && !t->header, fresh = !t->header && !dotted;
    e->a = e->b = t->header ? t->header_end : dotted ? t->dotted_end : t->n;
    bool open = e->a > 0 && t->s[e->a - 1] != '\n';           /* the line before has no end */
    snprintf(e->put, sizeof e->put, "%s%s%s%s%s%s = \"%s\"%s", open ? eol : "", fresh && t->n ? eol : "", fresh ? "[Flux]" : "",
             fresh ? eol : "", dotted ? "Flux." : "", t->key, name, eol);
    return true;
}

static bool flux__prefs_write(const char *path, const char *text, size_t n, const flux__edit *e) {
    flux__out *o = flux__out_open(path, "gpu_backend_set");
    flux__out_write(o, text, e->a);
    flux__out_write(o, e->put, strlen(e->put));
    flux__out_write(o, text + e->b, n - e->b);
    return flux__out_commit(o);
}

static void flux__prefs_say(const char *name, const char *path, bool same) {
    const char *env = flux__env("FLUX_GPU_BACKEND");
    const char *over = env && (!name || strcmp(env, name) != 0) ? "; FLUX_GPU_BACKEND in the environment overrides it" : "";
    if (same && name) flux__note(FLUX_LOG_INFO, "preference.same", false, "the preferred back end is %s already (%s): nothing to do%s", name, path, over);
    else if (same) flux__note(FLUX_LOG_INFO, "preference.same", false, "no preferred back end is set in %s: nothing to do", path);
    else if (name) flux__note(FLUX_LOG_INFO, "preference.set", false, "the preferred back end is now %s, at once and for later runs (%s)%s", name, path, over);
    else flux__note(FLUX_LOG_INFO, "preference.set", false, "no back end is preferred any more (%s)%s", path, over);
}

/* Sets or takes away the key in a file whose text is given. */
static int flux__prefs_change(const char *path, const char *text, size_t n, const char *name) {
    flux__toml t;
    flux__edit e;
    if (!flux__toml_read(&t, text, n, "Flux", "gpu_backend")) {
        flux__fail("gpu_backend_set: %s, line %d: %s; the file is left as it is", path, flux__toml_line(&t, t.at), t.wrong);
        return -1;
    }
    bool same = name ? t.value_end && t.is_string && strcmp(t.text, name) == 0 : !t.value_end;
    if (!same && !flux__prefs_edit(&t, name, &e)) {
        flux__fail("gpu_backend_set: %s, line %d: Flux is no plain table [Flux] there; please change that line by hand", path,
                   flux__toml_line(&t, t.value_end ? t.value : t.whole));
        return -1;
    }
    if (!same && !flux__prefs_write(path, text, n, &e)) return -1;
    flux__mutex_lock(&flux__device_lock);
    flux__pref.known = false;
    flux__mutex_unlock(&flux__device_lock);
    flux__prefs_say(name, path, same);
    return 0;
}

FLUX_DEF int flux_gpu_backend_set(const char *backend) {
    const char *why = NULL;
    size_t n = 0;
    int b = -1;
    if (backend && *backend) {
        b = flux__backend_arg("gpu_backend_set", backend);
        if (b < 0) return -1;
    }
    flux__preference();                   /* for a warning about the file, and its path */
    char path[sizeof flux__pref.path], warning[800];
    flux__mutex_lock(&flux__device_lock);
    flux__prefs_update(&flux__pref, warning, sizeof warning);
    memcpy(path, flux__pref.path, sizeof path);
    flux__mutex_unlock(&flux__device_lock);
    char *text = flux__prefs_load(path, &n, &why);
    if (why) {
        flux__fail("gpu_backend_set: %s can't be read: %s", path, why);
        return -1;
    }
    int rc = flux__prefs_change(path, text ? text : "", n, b >= 0 ? flux__backends[b].name : NULL);
    if (text) FLUX_FREE(text);
    return rc;
}

/* ---------------- choosing a device */

/* Why no GPU can be used: "CUDA, AMDGPU: not part of this build; Metal: ..." */
static void flux__why_none(char *out, size_t n) {
    const char *last = "";
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < FLUX__BACKENDS - 1 && at < n; i++) {
        int b = flux__order[i];
        const char *why = flux__probe_of(b)->why;
        const char *next = i + 2 < FLUX__BACKENDS ? flux__probe_of(flux__order[i + 1])->why : "";
        bool group = strcmp(why, next) == 0;
        at += (size_t)snprintf(out + at, n - at, "%s%s%s%.200s", i == 0 ? "" : strcmp(last, why) == 0 ? ", " : "; ",
                               flux__backends[b].name, group ? "" : ": ", group ? "" : why);
        last = why;
    }
}

/* The back end to use: the preferred one, else the first that works. `warn`: says so when the preference can't be followed. */
static int flux__choose(bool verbose, bool warn) {
    const char *want = flux__preference();
    int b = want ? flux__backend_number(want) : -1;
    if (want && b < 0)
        flux__note(FLUX_LOG_WARN, "device.preference", true, "the preference gpu_backend is \"%.60s\", but there are only "
                   FLUX__BACKEND_NAMES ": a device is chosen automatically", want);
    if (b >= 0) {
        const flux__probe *p = flux__probe_of(b);
        const char *name = flux__backends[b].name;
        if (verbose) flux__note(FLUX_LOG_INFO, "device.preferred", false, "get_device: following the preference %s", name);
        if (p->functional) return b;
        if (warn && !p->available)
            flux__note(FLUX_LOG_WARN, "device.unavailable", false, "the preferred back end %s is not available here (%s): "
                       "a device is chosen automatically", name, p->why);
        else if (warn)
            flux__note(FLUX_LOG_WARN, "device.not_functional", false, "the preferred back end %s is there but does not work (%s): "
                       "a device is chosen automatically", name, p->why);
    }
    int i = 0;
    while (flux__order[i] != FLUX__CPU_BACKEND && !flux__probe_of(flux__order[i])->functional) i++;
    b = flux__order[i];
    char why[640] = "";
    if (b == FLUX__CPU_BACKEND) flux__why_none(why, sizeof why);
    if (verbose) flux__note(FLUX_LOG_INFO, "device.chosen", false, "get_device: using %s%s%s", flux__backends[b].name, *why ? ": " : "", why);
    return b;
}

/* The back end that was asked for by name, when it can be used; -1 and an error when not. */
static int flux__named_backend(const char *call, const char *name) {
    int b = flux__backend_arg(call, name);
    if (b < 0) return -1;
    const flux__probe *p = flux__probe_of(b);
    if (p->functional) return b;
    if (!p->available) flux__fail("%s: back end %s is unavailable: %s", call, flux__backends[b].name, p->why);
    else flux__fail("%s: back end %s does not work here: %s", call, flux__backends[b].name, p->why);
    return -1;
}

FLUX_DEF flux_device flux_get_device_with(flux_get_device_opts opts) {
    flux_device d = { -1, 0 };
    int b = opts.backend ? flux__named_backend("get_device", opts.backend) : flux__choose(opts.verbose, true);
    if (b < 0) return d;
    int count = flux__probe_of(b)->count, id = b == FLUX__CPU_BACKEND ? 0 : opts.id;
    if (id < 0 || id >= count) {
        flux__fail("get_device: %s has no device %d: there %s %d, from 0 to %d", flux__backends[b].name, id, count == 1 ? "is" : "are",
                   count, count - 1);
        return d;
    }
    d.backend = b;
    d.id = id;
    if (opts.verbose && opts.backend) flux__note(FLUX_LOG_INFO, "device.chosen", false, "get_device: using %s, as asked", flux_device_name(d));
    return d;
}

/* ------------------------------------------------------------------ 13. Printing tensors
   How values look as text. All text goes through one sink, which works as
   snprintf does (writes what fits, counts all) or writes to a file: flux_print
   and the *_text functions are the same code, and need no memory for the text.
   Tensors look as in Julia: a header with shape, device and dtype, then a row
   a line, columns aligned on the decimal point, what does not fit left out. A
   vector shows the fewest digits that read back as the same number, a matrix
   six at most. A large tensor is cut down where it lies before its elements
   are fetched, so that printing costs the same for any size on any device, and
   changes nothing about the tensor or the device.
   Digits come from printf's %e, of which only digits and exponent are used: a
   comma as the locale's decimal point does not show. Rejected: %g (it pads, and
   can't say which digits matter), an algorithm of our own for shortest digits
   (a page of tables for text that a person reads). */

typedef struct flux__sink {
    char *out;                            /* at most n bytes go here, a 0 among them */
    size_t n, len, chars;                 /* len: bytes needed; chars: characters, to align by */
    FILE *file;                           /* in place of out */
    bool colour;
} flux__sink;

static flux__sink flux__sink_to(char *out, size_t n) {
    flux__sink s = { out, out ? n : 0, 0, 0, NULL, false };
    return s;
}

/* Standard output; in colour where a person looks at it (https://no-color.org). */
static flux__sink flux__sink_stdout(void) {
    flux__sink s = { NULL, 0, 0, 0, stdout, false };
    const char *term = flux__env("TERM");
    s.colour = flux__is_terminal(stdout) && !flux__env("NO_COLOR") &&
               (term ? strcmp(term, "dumb") != 0 : flux__env("WT_SESSION") != NULL);
    return s;
}

static void flux__put_bytes(flux__sink *s, const char *text, size_t n) {
    if (s->file) fwrite(text, 1, n, s->file);
    else if (s->len + 1 < s->n)
        memcpy(s->out + s->len, text, n < s->n - 1 - s->len ? n : s->n - 1 - s->len);
    s->len += n;
    for (size_t i = 0; i < n; i++)        /* UTF-8: not those bytes that continue a character */
        if (((unsigned char)text[i] & 0xC0) != 0x80) s->chars++;
}

static void flux__put(flux__sink *s, const char *text) { flux__put_bytes(s, text, strlen(text)); }

static void flux__put_pad(flux__sink *s, int64_t n) {
    for (; n > 0; n -= 16) flux__put_bytes(s, "                ", n < 16 ? (size_t)n : 16);
}

/* A terminal's colour from here on ("90" grey, "31" red, "36" cyan, "0" back); takes no column. */
static void flux__put_colour(flux__sink *s, const char *code) {
    size_t chars = s->chars;
    if (!s->colour) return;
    flux__put(s, "\033[");
    flux__put(s, code);
    flux__put(s, "m");
    s->chars = chars;
}

/* Ends the text; the length that the whole of it needs, without the 0. */
static size_t flux__sink_end(flux__sink *s) {
    if (s->n) s->out[s->len < s->n ? s->len : s->n - 1] = 0;
    return s->len;
}

/* ---- settings */

static int flux__print_rows, flux__print_columns;    /* 0: the defaults */
static int flux__print_plain;                         /* 0: by FLUX_ASCII, 1: ASCII, 2: Unicode */

FLUX_DEF void flux_print_limits(int rows, int columns) {
    flux__atomic_store32(&flux__print_rows, rows > 0 ? rows : 0);
    flux__atomic_store32(&flux__print_columns, columns > 0 ? columns : 0);
}

FLUX_DEF void flux_print_ascii(bool on) { flux__atomic_store32(&flux__print_plain, on ? 1 : 2); }

static bool flux__ascii(void) {
    int plain = flux__atomic_load32(&flux__print_plain);
    const char *wish = plain ? NULL : flux__env("FLUX_ASCII");
    return plain ? plain == 1 : wish && strcmp(wish, "0") != 0;
}

enum { FLUX__TIMES, FLUX__ROWS_LEFT_OUT, FLUX__COLUMNS_LEFT_OUT, FLUX__DOT };
static const char *flux__glyph(int which) {
    static const char *const glyphs[][2] = {
        { "\xC3\x97", "x" }, { "\xE2\x8B\xAE", ":" }, { "\xE2\x80\xA6", "..." },
        { "\xE2\x8B\x85", "." }
    };
    return glyphs[which][flux__ascii()];
}

/* ---- numbers */

/* v in decimal, with _ between groups of three digits on request; out has 32 bytes. The length. */
static int flux__integer_text(int64_t v, bool groups, char *out) {
    char back[32];
    int n = 0, digits = 0;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        if (groups && digits && digits % 3 == 0) back[n++] = '_';
        back[n++] = (char)('0' + (int)(u % 10));
        u /= 10;
        digits++;
    } while (u);
    if (v < 0) back[n++] = '-';
    for (int i = 0; i < n; i++) out[i] = back[n - 1 - i];
    out[n] = 0;
    return n;
}

static void flux__put_integer(flux__sink *s, int64_t v, bool groups) {
    char text[32];
    flux__put_bytes(s, text, (size_t)flux__integer_text(v, groups, text));
}

FLUX_DEF size_t flux_format_bytes(int64_t bytes, char *out, size_t n) {
    static const char *const units[] = { " KiB", " MiB", " GiB", " TiB", " PiB", " EiB" };
    flux__sink s = flux__sink_to(out, n);
    if (bytes < 1024) {
        flux__put_integer(&s, bytes, false);
        flux__put(&s, bytes == 1 ? " byte" : " bytes");
        return flux__sink_end(&s);
    }
    int u = 0;
    int64_t unit = 1024, part;
    char text[32];
    while (u < 5 && bytes / unit >= 1024) unit *= 1024, u++;
    part = (int64_t)((double)(bytes % unit) * 1000.0 / (double)unit + 0.5);      /* thousandths */
    flux__put_integer(&s, bytes / unit + part / 1000, false);
    flux__integer_text(1000 + part % 1000, false, text);
    text[0] = '.';
    flux__put(&s, text);
    flux__put(&s, units[u]);
    return flux__sink_end(&s);
}

/* Whether r is nearer to v than to any other number of v's dtype; neither is negative. */
static bool flux__reads_back(double r, double v, flux_dtype t) {
    static const int bits[] = { 24, 53, 11, 8 };             /* of f32, f64, f16, bf16 */
    static const int lowest[] = { -149, -1074, -24, -133 };
    int e;
    double m = frexp(v, &e), gap = ldexp(1.0, e - bits[t] > lowest[t] ? e - bits[t] : lowest[t]);
    /* below a power of two numbers lie twice as close */
    bool narrow = m == 0.5 && r < v && e - bits[t] > lowest[t];
    return r == v || fabs(r - v) < (narrow ? gap / 4 : gap / 2);
}

/* The decimal digits of v: d[0].d[1]d[2]... times ten to the *power; as few as read back, at most
   `most`. *exact says whether they are v and no rounding of it. Their count. */
static int flux__decimal(double v, flux_dtype t, int most, char *d, int *power, bool *exact) {
    char text[40];
    double r = 0;
    for (int p = 1; p <= most; p++) {
        snprintf(text, sizeof text, "%.*e", p - 1, fabs(v));
        r = strtod(text, NULL);
        if (flux__reads_back(r, fabs(v), t)) break;
    }
    int n = 0;
    const char *at = text;
    for (; *at && *at != 'e'; at++)
        if (*at >= '0' && *at <= '9') d[n++] = *at;
    *power = *at ? atoi(at + 1) : 0;
    *exact = r == fabs(v);
    while (n > 1 && d[n - 1] == '0') n--;
    return n;
}

/* A floating number as Julia shows it: 0.5, 100.0, 1.0e6, 1.5e-5, NaN, -Inf. out has 40 bytes. */
static void flux__real_text(double v, flux_dtype t, int most, char *out) {
    char d[24], *at = out;
    int power, n;
    bool exact;
    if (v != v || v - v != 0) {
        strcpy(out, v != v ? "NaN" : v > 0 ? "Inf" : "-Inf");
        return;
    }
    if (signbit(v)) *at++ = '-';
    if (v == 0) {
        strcpy(at, "0.0");
        return;
    }
    n = flux__decimal(v, t, most, d, &power, &exact);
    int point = power + 1;                /* digits before the point */
    if (point <= -4 || point > 6 || (point >= n && !exact)) {
        *at++ = d[0];
        *at++ = '.';
        for (int i = 1; i < n; i++) *at++ = d[i];
        if (n == 1) *at++ = '0';
        *at++ = 'e';
        flux__integer_text(power, false, at);
        return;
    }
    int last = point + 1 > n ? point + 1 : n;      /* digits, and zeros to one after the point */
    for (int i = point < 1 ? point - 1 : 0; i < last; i++) {
        if (i == point) *at++ = '.';
        *at++ = i >= 0 && i < n ? d[i] : '0';
    }
    *at = 0;
}

/* ---- tensors */

/* An element as text; left and right: its characters before the point, and from there on. */
typedef struct flux__cell { char text[40]; int left, right; } flux__cell;

/* Of n things, those from both ends that are shown; have: how many of n were fetched. */
typedef struct flux__ends { int64_t n, head, tail, have; } flux__ends;

static flux__ends flux__ends_of(int64_t n, int64_t most, int64_t head, int64_t tail) {
    flux__ends e = { n, n, 0, n };
    if (n > most) e.head = head, e.tail = tail;
    return e;
}

static int64_t flux__shown(const flux__ends *e) { return e->head + e->tail; }
static int64_t flux__end_at(const flux__ends *e, int64_t i) {
    return i < e->head ? i : e->have - flux__shown(e) + i;
}

/* What is shown of x, which has three dims, cut along dims 0 to `dim` and joined. It slices all the
   way down before it joins, so that no more than what is shown is ever copied. */
static flux_tensor *flux__cut_dims(flux_tensor *x, int dim, flux__ends *const *ends) {
    if (!x || dim < 0) return x;
    flux__ends *e = ends[dim];
    if (flux__shown(e) == e->n) return flux__cut_dims(x, dim - 1, ends);
    e->have = flux__shown(e);
    flux_tensor *parts[2] = { flux__cut_dims(flux_slice(x, dim, 0, e->head), dim - 1, ends), NULL };
    if (!e->tail) return parts[0];
    parts[1] = flux__cut_dims(flux_slice(x, dim, e->n - e->tail, e->n), dim - 1, ends);
    return parts[0] && parts[1] ? flux_cat_all(dim, 2, parts) : NULL;
}

typedef struct flux__grid {               /* what is shown of a tensor: rows x columns x pages */
    flux__ends rows, columns, pages;
    const void *data;
    flux_dtype dtype, stored;             /* stored: of data, where half formats have become f32 */
    int most;                             /* digits */
    bool dots;                            /* zeros as dots: a one-hot matrix is easier to see */
    int limit;                            /* characters a line */
} flux__grid;

/* Fetches what is to be shown. False: an error was told. */
static bool flux__grid_of(flux__grid *g, flux_tensor *x) {
    int rows = flux__atomic_load32(&flux__print_rows);
    g->limit = flux__atomic_load32(&flux__print_columns);
    if (!rows) rows = 20;
    if (!g->limit) g->limit = 80;
    int64_t d0 = x->ndim ? x->dim[0] : 1, d1 = x->ndim > 1 ? x->dim[1] : 1, fit = g->limit / 3 + 1;
    g->rows = flux__ends_of(d0, rows, rows > 1 ? rows / 2 : 1, (rows - 1) / 2);
    g->columns = flux__ends_of(d1, 2 * fit, fit, fit);
    g->pages = flux__ends_of(d0 && d1 ? flux__size(x) / d0 / d1 : 0, 10, 3, 3);
    g->dtype = (flux_dtype)x->dtype;
    g->dots = g->dtype == FLUX_BOOL && x->ndim > 1;
    g->most = d1 > 1 ? 6 : 17;
    if (!flux__size(x)) return true;
    if (!(x = flux_eval(x))) return false;
    if (flux__size(x) > 4096) {
        int64_t dims[3] = { d0, d1, g->pages.n };
        flux__ends *const ends[3] = { &g->rows, &g->columns, &g->pages };
        x = flux__cut_dims(flux_reshape_to(x, flux__shape(dims, 3)), 2, ends);
    }
    if (x && (g->dtype == FLUX_F16 || g->dtype == FLUX_BF16)) x = flux_to_dtype(x, FLUX_F32);
    g->stored = x ? (flux_dtype)x->dtype : FLUX_F32;
    return x && (g->data = flux_data(x)) != NULL;
}

static int64_t flux__whole_at(const void *data, flux_dtype t, int64_t i) {
    const uint8_t *bytes = (const uint8_t *)data;
    if (t == FLUX_I32) return ((const int32_t *)data)[i];
    if (t == FLUX_I64) return ((const int64_t *)data)[i];
    return t == FLUX_BOOL ? bytes[i] != 0 : bytes[i];
}

/* What stands in row i, column j of page k, as text. */
static void flux__grid_cell(const flux__grid *g, flux__cell *c, int64_t i, int64_t j, int64_t k) {
    int64_t at = flux__end_at(&g->pages, k);
    at = flux__end_at(&g->columns, j) + g->columns.have * at;
    at = flux__end_at(&g->rows, i) + g->rows.have * at;
    c->right = 0;
    if (flux__dtypes[g->dtype].real) {
        double v = g->stored == FLUX_F64 ? ((const double *)g->data)[at]
                                         : (double)((const float *)g->data)[at];
        flux__real_text(v, g->dtype, g->most, c->text);
        const char *point = strchr(c->text, '.');
        c->right = point ? (int)strlen(point) : 0;
    } else flux__integer_text(flux__whole_at(g->data, g->dtype, at), false, c->text);
    c->left = (int)strlen(c->text) - c->right;
    if (g->dots && c->text[0] == '0') strcpy(c->text, flux__glyph(FLUX__DOT));
}

/* Finds the columns' widths on page k, and keeps as many from both sides as fit in a line. */
static void flux__grid_fit(flux__grid *g, flux__cell *widths, int64_t k) {
    int64_t total = flux__shown(&g->columns), head = 0, tail = 0, used = 1, all = 1;
    flux__cell c;
    for (int64_t j = 0; j < total; j++) {
        widths[j].left = widths[j].right = 0;
        for (int64_t i = 0; i < flux__shown(&g->rows); i++) {
            flux__grid_cell(g, &c, i, j, k);
            if (c.left > widths[j].left) widths[j].left = c.left;
            if (c.right > widths[j].right) widths[j].right = c.right;
        }
        all += widths[j].left + widths[j].right + (j ? 2 : 0);
    }
    if (all <= g->limit && total == g->columns.n) return;
    for (;;) {                            /* one more from the left, or the right */
        bool right = tail < head;
        if (head + tail == total) break;
        const flux__cell *w = &widths[right ? total - 1 - tail : head];
        used += w->left + w->right + 2;
        if (head && used + (flux__ascii() ? 3 : 1) > g->limit) break;
        if (right) tail++;
        else head++;
    }
    memmove(widths + head, widths + total - tail, (size_t)tail * sizeof *widths);
    g->columns.head = head;
    g->columns.tail = tail;
}

static void flux__put_row(flux__sink *s, const flux__grid *g, const flux__cell *widths, int64_t i,
                          int64_t k) {
    int64_t shown = flux__shown(&g->columns);
    flux__cell c;
    for (int64_t j = 0; j < shown; j++) {
        bool gap = j == g->columns.head && shown < g->columns.n;
        if (gap) flux__put(s, i % 5 == 0 ? "  " : "   ");
        if (gap && i % 5 == 0) flux__put(s, flux__glyph(FLUX__COLUMNS_LEFT_OUT));
        else if (gap && flux__ascii()) flux__put(s, "  ");
        flux__put(s, j ? "  " : " ");
        flux__grid_cell(g, &c, i, j, k);
        flux__put_pad(s, widths[j].left - c.left);
        flux__put(s, c.text);
        if (j + 1 < shown) flux__put_pad(s, widths[j].right - c.right);
    }
    if (g->columns.tail == 0 && shown < g->columns.n && i % 5 == 0) {
        flux__put_pad(s, widths[shown - 1].right - c.right + 2);
        flux__put(s, flux__glyph(FLUX__COLUMNS_LEFT_OUT));
    }
}

/* The line that stands for rows left out: a sign at the units of the first column. */
static void flux__put_rows_left_out(flux__sink *s, const flux__cell *widths) {
    flux__put_pad(s, widths[0].left);
    flux__put(s, flux__glyph(FLUX__ROWS_LEFT_OUT));
}

static void flux__put_page(flux__sink *s, const flux__grid *whole, flux__cell *widths, int64_t k) {
    flux__grid g = *whole;
    flux__grid_fit(&g, widths, k);
    for (int64_t i = 0; i < flux__shown(&g.rows); i++) {
        if (i == g.rows.head) {
            flux__put(s, "\n");
            flux__put_rows_left_out(s, widths);
        }
        flux__put(s, "\n");
        flux__put_row(s, &g, widths, i, k);
    }
    if (g.rows.tail == 0 && flux__shown(&g.rows) < g.rows.n) {
        flux__put(s, "\n");
        flux__put_rows_left_out(s, widths);
    }
}

/* "[:, :, 0, 2] =" above page `at` of a tensor with more than two dimensions. */
static void flux__put_page_name(flux__sink *s, const flux_tensor *x, int64_t at) {
    flux__put(s, "\n[:, :");
    for (int d = 2; d < x->ndim; d++) {
        flux__put(s, ", ");
        flux__put_integer(s, at % x->dim[d], false);
        at /= x->dim[d];
    }
    flux__put(s, "] =");
}

static void flux__put_pages(flux__sink *s, const flux_tensor *x, const flux__grid *g,
                            flux__cell *widths) {
    for (int64_t k = 0; k < flux__shown(&g->pages); k++) {
        int64_t at = k < g->pages.head ? k : g->pages.n - flux__shown(&g->pages) + k;
        if (k && x->ndim > 2) flux__put(s, "\n");
        if (k && k == g->pages.head) {
            flux__put(s, "\n");
            flux__put(s, flux__glyph(FLUX__ROWS_LEFT_OUT));
            flux__put(s, "\n");
        }
        if (x->ndim > 2) flux__put_page_name(s, x, at);
        flux__put_page(s, g, widths, k);
    }
}

/* "3x2", or "5-element": a tensor's shape in words. */
static void flux__put_shape(flux__sink *s, const flux_tensor *x) {
    for (int d = 0; d < x->ndim; d++) {
        if (d) flux__put(s, flux__glyph(FLUX__TIMES));
        flux__put_integer(s, x->dim[d], false);
    }
    if (x->ndim == 1) flux__put(s, "-element");
    if (x->ndim == 0) flux__put(s, "scalar");
}

static void flux__put_place(flux__sink *s, const flux_tensor *x) {
    flux__put(s, " ");
    flux__put(s, flux_device_backend(x->device));
    if (x->device.backend != FLUX__CPU_BACKEND) {
        flux__put(s, "(");
        flux__put_integer(s, x->device.id, false);
        flux__put(s, ")");
    }
    flux__put(s, " ");
    flux__put(s, flux__dtypes[x->dtype].name);
}

static bool flux__put_array(flux__sink *s, flux_tensor *x) {
    flux__grid g;
    flux__cell c, *widths;
    memset(&g, 0, sizeof g);
    int h = flux__hide();
    widths = flux__grid_of(&g, x)
                 ? (flux__cell *)flux__malloc((size_t)flux__shown(&g.columns) * sizeof *widths)
                 : NULL;
    if (widths && x->ndim == 0) {         /* a scalar: the number, where and what it is */
        flux__grid_cell(&g, &c, 0, 0, 0);
        flux__put(s, c.text);
        flux__put_place(s, x);
    } else if (widths) {
        flux__put_shape(s, x);
        flux__put_place(s, x);
        if (flux__size(x)) flux__put(s, ":");
        flux__put_pages(s, x, &g, widths);
    }
    if (widths) FLUX_FREE(widths);
    flux__reveal(h, NULL);
    return widths != NULL;
}

static bool flux__put_tensor(flux__sink *s, flux_tensor *x) {
    if (x->op != FLUX__TUPLE) return flux__put_array(s, x);
    flux__put_integer(s, x->nin, false);
    flux__put(s, "-element tuple:");
    for (int i = 0; i < x->nin; i++) {
        flux__put(s, "\n[");
        flux__put_integer(s, i, false);
        flux__put(s, "] ");
        if (!flux__put_tensor(s, x->in[i])) return false;
    }
    return true;
}

FLUX_DEF size_t flux_tensor_text(flux_tensor *x, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (!x) flux__null("tensor_text", "x", x);
    else if (!flux__put_tensor(&s, x)) s.len = 0;
    return flux__sink_end(&s);
}

FLUX_DEF void flux_print_tensor(flux_tensor *x) {
    flux__sink s = flux__sink_stdout();
    if (!x) flux__null("print", "x", x);
    else if (flux__put_tensor(&s, x)) flux__put(&s, "\n");
}

FLUX__ASBEFORE
FLUX__LEAN

/* ------------------------------------------------------------------ 14. Models
   A layer is a struct that starts with a flux_layer and a list that names its
   fields. Everything that a model can do beyond being called is one of two things: a
   walk over those fields (visit, params, freeze, modes, save, count), or a map,
   which clones each layer and puts other tensors into the clone's fields (fmap, gpu,
   f16, copy, restructure).

   Invariants: a layer owns one reference to whatever its fields hold, and its arrays
   of children and its name are its own memory. Walk and map go depth first in the
   order of the fields, so a model's tensors have one order everywhere. A map sees
   each tensor and each layer once, by identity: what was shared stays shared.

   Rejected: a virtual table of clone/walk/free functions for each layer (every
   user's layer would have to write them), and building a new model by calling
   constructors (fields that nobody named would be lost). */

typedef void (*flux__field_fn)(flux_tensor **slot, const char *path, bool trained,
                               const flux_layer *owner, void *user);

/* ---------------- one-line forms of layers */

typedef struct flux__words { char s[400]; } flux__words;

static void flux__say(flux__words *l, const char *format, ...) FLUX__PRINTF(2, 3);
static void flux__say(flux__words *l, const char *format, ...) {
    size_t used = strlen(l->s);
    va_list args;
    va_start(args, format);
    vsnprintf(l->s + used, sizeof l->s - used, format, args);
    va_end(args);
}

static size_t flux__line_out(const flux__words *l, char *out, size_t n) {
    int length = snprintf(out, n, "%s", l->s);
    return length > 0 ? (size_t)length : 0;
}

static flux__words flux__line_of(flux_layer *m) {
    flux__words l;
    l.s[0] = 0;
    if (m->type->text) m->type->text(m, l.s, sizeof l.s);
    else flux__say(&l, "%s", m->type->name);
    l.s[sizeof l.s - 1] = 0;
    return l;
}

static void flux__say_dims(flux__words *l, const int64_t *dim, int n) {
    for (int i = 0; i < n; i++) flux__say(l, i ? ", %lld" : "%lld", (long long)dim[i]);
}

/* ---------------- a table by address */

typedef struct flux__pair { const void *key; void *value; } flux__pair;
typedef struct flux__pairs { flux__pair *at; size_t room, count; } flux__pairs;   /* room: 2^k */

static flux__pair *flux__pairs_find(const flux__pairs *p, const void *key) {
    size_t i = (size_t)(((uint64_t)(uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 20);
    while (p->at[i & (p->room - 1)].key && p->at[i & (p->room - 1)].key != key) i++;
    return &p->at[i & (p->room - 1)];
}

static bool flux__pairs_has(const flux__pairs *p, const void *key) {
    return p->at && flux__pairs_find(p, key)->key;
}
static void *flux__pairs_get(const flux__pairs *p, const void *key) {
    return p->at ? flux__pairs_find(p, key)->value : NULL;
}

/* The pair of this key, made if it is not there (*fresh says so, and its value is
   NULL). NULL: out of memory. */
static flux__pair *flux__pairs_at(flux__pairs *p, const void *key, bool *fresh) {
    if (2 * (p->count + 1) > p->room) {
        flux__pairs more;
        more.room = p->room ? 2 * p->room : 32;
        more.count = p->count;
        more.at = (flux__pair *)flux__zalloc(more.room * sizeof *more.at);
        if (!more.at) return NULL;
        for (size_t i = 0; i < p->room; i++)
            if (p->at[i].key) *flux__pairs_find(&more, p->at[i].key) = p->at[i];
        if (p->at) FLUX_FREE(p->at);
        *p = more;
    }
    flux__pair *pair = flux__pairs_find(p, key);
    *fresh = !pair->key;
    if (*fresh) {
        pair->key = key;
        p->count++;
    }
    return pair;
}

static void flux__pairs_free(flux__pairs *p) {
    if (p->at) FLUX_FREE(p->at);
    memset(p, 0, sizeof *p);
}

/* ---------------- fields */

static flux_tensor **flux__tensor_slot(flux_layer *m, const flux_field *f) {
    return (flux_tensor **)(void *)((char *)m + f->offset);
}

static bool flux__is_tensor_field(const flux_field *f) {
    return f->kind == FLUX__PARAM_FIELD || f->kind == FLUX__STATE_FIELD;
}

/* The layers that a field holds, *n of them (0 for a field of a tensor). */
static flux_layer **flux__kids(const flux_layer *m, const flux_field *f, int *n) {
    char *at = (char *)(intptr_t)m;
    *n = f->kind == FLUX__CHILD_FIELD      ? 1
         : f->kind == FLUX__CHILDREN_FIELD ? *(int *)(void *)(at + f->count)
                                           : 0;
    if (f->kind == FLUX__CHILDREN_FIELD) return *(flux_layer ***)(void *)(at + f->offset);
    return (flux_layer **)(void *)(at + f->offset);
}

/* A tensor that shows another's elements, as W' does W's: where both stand in a model, they
   are tied. */
static bool flux__is_tie(const flux_tensor *x) { return FLUX__IS_VIEW(x) && x->op != FLUX__DETACH; }

/* x's view of its base, made of another tensor of the base's shape; NULL if that does not lie in
   order. */
static flux_tensor *flux__view_like(flux_tensor *x, flux_tensor *base) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    flux_shape s = flux__dims(x), all = flux__dims(base);
    flux_tensor *root = flux__layout(base, &offset, stride);
    if (!flux__same_dims(base, x->base) || !flux__in_order(&all, stride)) return NULL;
    return flux__strided(base, &s, x->offset, x->stride, offset + x->offset, x->stride, root);
}

static void flux__layer_free(flux_layer *m) {
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++) {
        int n;
        flux_layer **kids = flux__kids(m, f, &n);
        if (flux__is_tensor_field(f)) flux_release(*flux__tensor_slot(m, f));
        for (int i = 0; i < n; i++) flux_release(kids[i]);
        if (f->kind == FLUX__CHILDREN_FIELD && kids) FLUX_FREE(kids);
    }
    if (m->name) FLUX_FREE((void *)(intptr_t)m->name);
    FLUX_FREE(m);
}

/* Takes over one field of the struct `from` into m, where it is still NULL. */
static bool flux__take_field(flux_layer *m, const void *from, const flux_field *f) {
    int n;
    flux_layer **kids = flux__kids((const flux_layer *)from, f, &n);
    if (flux__is_tensor_field(f)) {
        flux_assign(flux__tensor_slot(m, f), *flux__tensor_slot((flux_layer *)(intptr_t)from, f));
        return true;
    }
    if (f->kind == FLUX__CHILD_FIELD) {
        memcpy((char *)m + f->offset, &kids[0], sizeof kids[0]);
        flux_retain(kids[0]);
        return true;
    }
    flux_layer **own = n > 0 ? (flux_layer **)flux__malloc((size_t)n * sizeof *own) : NULL;
    if (n > 0 && !own) return false;
    for (int i = 0; i < n; i++) own[i] = (flux_layer *)flux_retain(kids[i]);
    memcpy((char *)m + f->offset, &own, sizeof own);
    memcpy((char *)m + f->count, &n, sizeof n);
    return true;
}

/* A layer with the same fields as the struct `from`; its one reference is the
   caller's. */
static flux_layer *flux__layer_clone(const flux_layer_type *type, const void *from) {
    static const flux_layer blank = { { FLUX__LAYER, 0, 1 }, NULL, FLUX_MODE_AUTO, false, NULL };
    flux_layer *m = (flux_layer *)flux__malloc(type->size);
    if (!m) return NULL;
    memcpy(m, from, type->size);
    *m = blank;
    m->type = type;
    for (const flux_field *f = type->fields; f->kind != FLUX__END; f++) {
        memset((char *)m + f->offset, 0, sizeof(void *));
        if (f->kind == FLUX__CHILDREN_FIELD) memset((char *)m + f->count, 0, sizeof(int));
    }
    for (const flux_field *f = type->fields; f->kind != FLUX__END; f++)
        if (!flux__take_field(m, from, f)) {
            flux__layer_free(m);
            return NULL;
        }
    return m;
}

/* A new layer for the innermost scope, of fields that have been checked. */
static flux_layer *flux__layer_new(const flux_layer_type *type, const void *fields) {
    flux_layer *m = flux__layer_clone(type, fields);
    return m ? (flux_layer *)flux__own(m) : NULL;
}

/* Whether a field of a struct handed to flux_new_layer can be taken over; false also
   after an error somewhere before. */
static bool flux__check_field(const flux_layer_type *type, const void *fields,
                              const flux_field *f) {
    int n;
    flux_layer **kids = flux__kids((const flux_layer *)fields, f, &n);
    const void *one = *(void *const *)(const void *)((const char *)fields + f->offset);
    if (f->kind != FLUX__CHILDREN_FIELD) {
        int kind = flux__is_tensor_field(f) ? FLUX__TENSOR : FLUX__LAYER;
        if (!one) return !flux_failed();
        if (((const flux__head *)one)->kind == kind) return true;
        flux__fail("new: the field %s of %s is not a %s", f->name, type->name,
                   kind == FLUX__TENSOR ? "tensor" : "layer");
        return false;
    }
    if (n < 0 || (n > 0 && !kids)) {
        flux__fail("new: the field %s of %s says that it has %d layers, and %s", f->name,
                   type->name, n, kids ? "has some" : "has none");
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (kids[i] && kids[i]->head.kind == FLUX__LAYER) continue;
        if (kids[i] || !flux_failed())
            flux__fail("new: %s[%d] of %s is %s", f->name, i, type->name,
                       kids[i] ? "not a layer" : "NULL");
        return false;
    }
    return true;
}

FLUX_DEF flux_layer *flux_new_layer(const flux_layer_type *type, const void *fields) {
    if (!type || !fields) return (flux_layer *)flux__null("new", type ? "fields" : "type", NULL);
    if (!type->call || !type->fields || !type->name || type->size < sizeof(flux_layer))
        return (flux_layer *)flux__fail(
            "new: the description of the layer lacks its name, call function, fields or size");
    for (const flux_field *f = type->fields; f->kind != FLUX__END; f++)
        if (!flux__check_field(type, fields, f)) return NULL;
    return flux__layer_new(type, fields);
}

/* ---------------- the walk */

#define FLUX__DEEPEST 4000    /* layers within layers: more can only be one that contains itself */

typedef struct flux__trail { char *s; int room, length, depth; } flux__trail; /* where a walk is */

/* Adds ".name" (or an index) to the path; the caller sets length back. */
static bool flux__trail_add(flux__trail *t, const char *name, int index) {
    char number[16];
    if (!name) snprintf(number, sizeof number, "%d", index);
    const char *part = name ? name : number;
    size_t n = strlen(part);
    char *s = (char *)flux__grow(t->s, &t->room, t->length + (int)n + 2, 1);
    if (!s) return false;
    t->s = s;
    if (t->length) s[t->length++] = '.';
    memcpy(s + t->length, part, n + 1);
    t->length += (int)n;
    return true;
}

static void flux__trail_back(flux__trail *t, int length) {
    t->length = length;
    if (t->s) t->s[length] = 0;
}

static bool flux__trail_down(flux__trail *t, const flux_layer *m) {
    if (++t->depth <= FLUX__DEEPEST) return true;
    flux__fail("a %s has more than %d layers within layers; does it contain itself?", m->type->name,
               FLUX__DEEPEST);
    return false;
}

static bool flux__is_trained(const flux_field *f, const flux_tensor *x) {
    return f->kind == FLUX__PARAM_FIELD && flux__dtypes[x->dtype].real;
}

typedef struct flux__walker {
    flux__field_fn field;                 /* called for each tensor, or NULL */
    void (*layer)(flux_layer *m, void *user);   /* for each layer before its fields, or NULL */
    void *user;
    flux__trail path;
} flux__walker;

static bool flux__walk_layer(flux__walker *w, flux_layer *m);

static bool flux__walk_field(flux__walker *w, flux_layer *m, const flux_field *f) {
    int n;
    flux_layer **kids = flux__kids(m, f, &n);
    if (!flux__trail_add(&w->path, f->name, 0)) return false;
    if (flux__is_tensor_field(f)) {
        flux_tensor **slot = flux__tensor_slot(m, f);
        if (*slot && w->field) w->field(slot, w->path.s, flux__is_trained(f, *slot), m, w->user);
    }
    for (int i = 0, at = w->path.length; i < n; i++) {
        if (!kids[i]) continue;
        if (f->kind == FLUX__CHILDREN_FIELD && !flux__trail_add(&w->path, kids[i]->name, i))
            return false;
        if (!flux__walk_layer(w, kids[i])) return false;
        flux__trail_back(&w->path, at);
    }
    return true;
}

static bool flux__walk_layer(flux__walker *w, flux_layer *m) {
    if (!flux__trail_down(&w->path, m)) return false;
    if (w->layer) w->layer(m, w->user);
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++) {
        int at = w->path.length;
        if (!flux__walk_field(w, m, f)) return false;
        flux__trail_back(&w->path, at);
    }
    w->path.depth--;
    return true;
}

static bool flux__walk_all(const flux_layer *m, flux__field_fn field,
                           void (*layer)(flux_layer *m, void *user), void *user) {
    flux__walker w;
    memset(&w, 0, sizeof w);
    w.field = field;
    w.layer = layer;
    w.user = user;
    bool done = flux__walk_layer(&w, (flux_layer *)(intptr_t)m);
    if (w.path.s) FLUX_FREE(w.path.s);
    return done;
}

/* Every tensor of a model that is there, in order; tied ones as often as they stand
   there. */
static void flux__fields(flux_layer *m, flux__field_fn f, void *user) {
    flux__walk_all(m, f, NULL, user);
}

typedef struct flux__visiting {
    void (*visit)(flux_tensor *x, const char *path, bool trained, void *user);
    void *user;
    flux__pairs seen;
    bool done;
} flux__visiting;

static void flux__visit_once(flux_tensor **slot, const char *path, bool trained,
                             const flux_layer *owner, void *user) {
    flux__visiting *v = (flux__visiting *)user;
    bool fresh = false;
    (void)owner;
    if (!flux__pairs_at(&v->seen, *slot, &fresh)) v->done = false;
    else if (fresh && v->visit) v->visit(*slot, path, trained, v->user);
}

/* Each tensor once; false, with an error, if not all could be visited. The caller
   frees v->seen. */
static bool flux__visit_all(flux__visiting *v, const flux_layer *m) {
    memset(&v->seen, 0, sizeof v->seen);
    v->done = true;
    return flux__walk_all(m, flux__visit_once, NULL, v) && v->done;
}

static bool flux__visit(const char *call, const flux_layer *m,
                        void (*visit)(flux_tensor *, const char *, bool, void *), void *user) {
    flux__visiting v;
    if (!m || !visit) {
        flux__null(call, m ? "visit" : "model", NULL);
        return false;
    }
    v.visit = visit;
    v.user = user;
    bool done = flux__visit_all(&v, m);
    flux__pairs_free(&v.seen);
    return done;
}

FLUX_DEF void flux_visit(const flux_layer *m,
                         void (*visit)(flux_tensor *x, const char *path, bool trained, void *user),
                         void *user) {
    flux__visit("visit", m, visit, user);
}

typedef struct flux__tally {
    flux_tensor **out;
    int max, count;
    int64_t numbers;
    const flux__pairs *there;             /* the model's tensors: what is tied to one counts not */
    bool ties;                            /* there was such a one */
} flux__tally;

static void flux__tally_one(flux_tensor *x, const char *path, bool trained, void *user) {
    flux__tally *t = (flux__tally *)user;
    (void)path;
    bool tied = flux__is_tie(x) && flux__pairs_has(t->there, x->base);
    t->ties = t->ties || tied;
    if (!trained || tied) return;
    if (t->out && t->count < t->max) t->out[t->count] = x;
    t->count++;
    t->numbers += flux__size(x);
}

static bool flux__tally_all(const char *call, const flux_layer *m, flux__tally *t) {
    flux__visiting v;
    memset(&v, 0, sizeof v);
    if (!m) flux__null(call, "model", m);
    bool done = m && flux__visit_all(&v, m);
    t->there = &v.seen;
    done = done && flux__visit(call, m, flux__tally_one, t);
    flux__pairs_free(&v.seen);
    return done;
}

FLUX_DEF int flux_params(flux_layer *m, flux_tensor **out, int max) {
    flux__tally t = { out, max, 0, 0, NULL, false };
    return flux__tally_all("params", m, &t) ? t.count : -1;
}

FLUX_DEF int64_t flux_num_params(const flux_layer *m) {
    flux__tally t = { NULL, 0, 0, 0, NULL, false };
    return flux__tally_all("num_params", m, &t) ? t.numbers : -1;
}

/* ---------------- one tensor of a model */

typedef struct flux__sought {
    const char *path;
    flux_tensor *found;                   /* the first there */
    flux_tensor *value;                   /* for set_param: what takes its place */
    flux__words have;                      /* paths that there are, for a message */
} flux__sought;

static void flux__match_path(flux_tensor **slot, const char *path, bool trained,
                             const flux_layer *owner, void *user) {
    flux__sought *w = (flux__sought *)user;
    (void)trained, (void)owner;
    if (!w->found && strcmp(path, w->path) == 0) w->found = *slot;
    size_t used = strlen(w->have.s);
    if (used < 300) flux__say(&w->have, "%s%.80s", used ? ", " : "", path);
    else if (used < 380 && w->have.s[used - 1] != '.') flux__say(&w->have, ", ...");
}

static bool flux__find_param(const char *call, flux_layer *m, const char *path, flux__sought *w) {
    memset(w, 0, sizeof *w);
    if (!m || !path) {
        flux__null(call, m ? "path" : "model", NULL);
        return false;
    }
    w->path = path;
    if (!flux__walk_all(m, flux__match_path, NULL, w)) return false;
    if (!w->found)
        flux__fail("%s: %s has no \"%.80s\"; it has %s", call, m->type->name, path,
                   w->have.s[0] ? w->have.s : "no tensors");
    return w->found != NULL;
}

FLUX_DEF flux_tensor *flux_param(flux_layer *m, const char *path) {
    flux__sought w;
    return flux__find_param("param", m, path, &w) ? w.found : NULL;
}

static void flux__replace(flux_tensor **slot, const char *path, bool trained,
                          const flux_layer *owner, void *user) {
    flux__sought *w = (flux__sought *)user;
    (void)path, (void)trained, (void)owner;
    flux_tensor *x = *slot, *y = w->value;
    if (x != w->found) y = flux__is_tie(x) && x->base == w->found ? flux__view_like(x, y) : NULL;
    if (y) flux_assign(slot, y);
}

FLUX_DEF int flux_set_param(flux_layer *m, const char *path, flux_tensor *value) {
    flux__sought w;
    if (!value) flux__null("set_param", "value", value);
    if (!value || !flux__find_param("set_param", m, path, &w)) return -1;
    if (value->op == FLUX__TUPLE || !flux__same_dims(w.found, value)) {
        flux__text a = flux__describe(w.found), b = flux__describe(value);
        flux__fail("set_param: %.80s is %s, the value is %s", path, a.s,
                   value->op == FLUX__TUPLE ? "a tuple" : b.s);
        return -1;
    }
    int h = flux__hide();
    w.value = flux_to_tensor(w.found->device, flux_to_dtype(value, (flux_dtype)w.found->dtype));
    flux_retain(w.found);                 /* the walk compares with it until its end */
    if (w.value) flux__fields(m, flux__replace, &w);
    flux_release(w.found);
    flux__reveal_object(h, NULL);
    return w.value ? 0 : -1;
}

/* The first layer, from m downwards, whose description has a tensor of this name;
   *slot is where it stands. */
static flux_layer *flux__declares(flux_layer *m, const char *name, flux_tensor ***slot, int depth) {
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++)
        if (flux__is_tensor_field(f) && strcmp(f->name, name) == 0) {
            *slot = flux__tensor_slot(m, f);
            return m;
        }
    for (const flux_field *f = m->type->fields; depth < FLUX__DEEPEST && f->kind != FLUX__END;
         f++) {
        int n;
        flux_layer **kids = flux__kids(m, f, &n), *found = NULL;
        for (int i = 0; i < n && !found; i++)
            if (kids[i]) found = flux__declares(kids[i], name, slot, depth + 1);
        if (found) return found;
    }
    return NULL;
}

static flux_tensor *flux__first_of(const char *name, flux_layer *m) {
    flux_tensor **slot = NULL;
    if (!m) return (flux_tensor *)flux__null(name, "model", m);
    flux_layer *owner = flux__declares(m, name, &slot, 0);
    if (owner && *slot) return *slot;
    flux__words line = flux__line_of(owner ? owner : m);
    return (flux_tensor *)flux__fail("%s: %s has none", name, line.s);
}

FLUX_DEF flux_tensor *flux_weight(flux_layer *m) { return flux__first_of("weight", m); }
FLUX_DEF flux_tensor *flux_bias(flux_layer *m) { return flux__first_of("bias", m); }

FLUX_DEF flux_layer *flux_child(flux_layer *m, int i) {
    if (!m) return (flux_layer *)flux__null("child", "model", m);
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++) {
        int n;
        flux_layer **kids = flux__kids(m, f, &n);
        for (int k = 0; k < n; k++)
            if (kids[k] && i-- == 0) return kids[k];
    }
    return NULL;
}

/* ---------------- the map */

typedef flux_tensor *(*flux__map_fn)(flux_tensor *x, const char *path, bool trained,
                                     const flux_layer *owner, void *user);

typedef struct flux__mapping {
    flux__map_fn f;
    void *user;
    bool (*exclude)(flux_layer *m, void *user);
    void *exclude_user;
    flux__pairs tensors, layers;          /* old to new */
    flux__visiting there;                 /* .seen: the tensors of the model */
    flux__trail path;
    bool changed;
} flux__mapping;

static flux_tensor *flux__map_apply(flux__mapping *p, flux_tensor *x, bool trained,
                                    const flux_layer *owner) {
    bool fresh = false;
    flux__pair *seen = flux__pairs_at(&p->tensors, x, &fresh);
    if (!seen) return NULL;
    if (!fresh) return (flux_tensor *)seen->value;
    flux_tensor *y = p->f(x, p->path.s, trained, owner, p->user);
    if (!y && !flux_failed())
        flux__fail("fmap: the function gave NULL for %s of %s", p->path.s, owner->type->name);
    if (y != x) p->changed = true;
    seen = flux__pairs_at(&p->tensors, x, &fresh);
    if (seen) seen->value = y;
    return y;
}

/* What is tied to another field's tensor becomes the same view of the new one. */
static flux_tensor *flux__map_view(flux__mapping *p, flux_tensor *x, bool trained,
                                   const flux_layer *owner) {
    flux_tensor *base = flux__map_apply(p, x->base, trained, owner);
    bool fresh = false;
    if (!base || base == x->base) return base ? x : NULL;
    flux__pair *seen = flux__pairs_at(&p->tensors, x, &fresh);
    if (!seen || !fresh) return seen ? (flux_tensor *)seen->value : NULL;
    flux_tensor *y = flux__view_like(x, base);
    if (!y && !flux_failed()) y = p->f(x, p->path.s, trained, owner, p->user);
    return (flux_tensor *)(seen->value = y);
}

static bool flux__map_tensor(flux__mapping *p, flux_tensor **slot, bool trained,
                             const flux_layer *owner) {
    flux_tensor *x = *slot;
    bool tied = flux__is_tie(x) && flux__pairs_has(&p->there.seen, x->base);
    flux_tensor *y =
        tied ? flux__map_view(p, x, trained, owner) : flux__map_apply(p, x, trained, owner);
    if (y) flux_assign(slot, y);
    return y != NULL;
}

static flux_layer *flux__map_one(flux__mapping *p, flux_layer *m);

static bool flux__map_field(flux__mapping *p, flux_layer *copy, const flux_field *f) {
    int n;
    flux_layer **kids = flux__kids(copy, f, &n);
    if (!flux__trail_add(&p->path, f->name, 0)) return false;
    if (flux__is_tensor_field(f)) {
        flux_tensor **slot = flux__tensor_slot(copy, f);
        if (*slot && !flux__map_tensor(p, slot, flux__is_trained(f, *slot), copy)) return false;
    }
    for (int i = 0, at = p->path.length; i < n; i++) {
        if (!kids[i]) continue;
        if (f->kind == FLUX__CHILDREN_FIELD && !flux__trail_add(&p->path, kids[i]->name, i))
            return false;
        flux_layer *y = flux__map_one(p, kids[i]);
        if (!y) return false;
        flux_release(kids[i]);
        kids[i] = y;
        flux__trail_back(&p->path, at);
    }
    return true;
}

static bool flux__copy_base(flux_layer *to, const flux_layer *from) {
    to->mode = from->mode;
    to->frozen = from->frozen;
    if (!from->name) return true;
    size_t n = strlen(from->name) + 1;
    char *name = (char *)flux__malloc(n);
    if (name) to->name = (const char *)memcpy(name, from->name, n);
    return name != NULL;
}

/* The new layer for an old one; the reference is the caller's. */
static flux_layer *flux__map_one(flux__mapping *p, flux_layer *m) {
    bool fresh = false;
    if (p->exclude && p->exclude(m, p->exclude_user)) return (flux_layer *)flux_retain(m);
    flux__pair *seen = flux__pairs_at(&p->layers, m, &fresh);
    if (!seen || !flux__trail_down(&p->path, m)) return NULL;
    if (!fresh && seen->value) {
        p->path.depth--;
        return (flux_layer *)flux_retain(seen->value);
    }
    flux_layer *y = flux__layer_clone(m->type, m);
    bool good = y && flux__copy_base(y, m);
    for (const flux_field *f = m->type->fields; good && f->kind != FLUX__END; f++) {
        int at = p->path.length;
        good = flux__map_field(p, y, f);
        flux__trail_back(&p->path, at);
    }
    if (good && (seen = flux__pairs_at(&p->layers, m, &fresh)) != NULL) {
        seen->value = y;
        p->path.depth--;
        return y;
    }
    flux_release(y);
    return NULL;
}

/* A new model with f's results in place of m's tensors, owned by the innermost
   scope. With `same`, m itself where nothing has changed. */
static flux_layer *flux__map_model(flux__mapping *p, flux_layer *m, bool same) {
    int h = flux__hide();
    flux_layer *y = NULL;
    if (flux__visit_all(&p->there, m)) y = flux__map_one(p, m);
    flux__pairs_free(&p->tensors);
    flux__pairs_free(&p->layers);
    flux__pairs_free(&p->there.seen);
    if (p->path.s) FLUX_FREE(p->path.s);
    flux_layer *out = (flux_layer *)flux__reveal_object(h, y && same && !p->changed ? NULL : y);
    if (y) flux_release(y);               /* reveal took a reference of its own */
    return y && same && !p->changed ? m : out;
}

typedef struct flux__fmap_args { flux_fn fn; flux_fmap_fn with; void *user; } flux__fmap_args;

static flux_tensor *flux__fmap_call(flux_tensor *x, const char *path, bool trained,
                                    const flux_layer *owner, void *user) {
    flux__fmap_args *a = (flux__fmap_args *)user;
    (void)trained, (void)owner;
    return a->fn ? a->fn(x) : a->with(x, path, a->user);
}

static flux_layer *flux__fmap(flux__fmap_args a, flux_layer *m,
                              bool (*exclude)(flux_layer *, void *), bool same) {
    flux__mapping p;
    if (!m || (!a.fn && !a.with)) return (flux_layer *)flux__null("fmap", m ? "f" : "model", NULL);
    memset(&p, 0, sizeof p);
    p.f = flux__fmap_call;
    p.user = &a;
    p.exclude = exclude;
    p.exclude_user = a.user;
    return flux__map_model(&p, m, same);
}

FLUX_DEF flux_layer *flux_fmap(flux_fn f, flux_layer *m) {
    flux__fmap_args a = { f, NULL, NULL };
    return flux__fmap(a, m, NULL, false);
}

FLUX_DEF flux_layer *flux_mapleaves(flux_fn f, flux_layer *m) { return flux_fmap(f, m); }

FLUX_DEF flux_layer *flux_fmap_with(flux_fmap_fn f, void *user, flux_layer *m,
                                    bool (*exclude)(flux_layer *, void *user)) {
    flux__fmap_args a = { NULL, f, user };
    return flux__fmap(a, m, exclude, false);
}

/* For moves and conversions: values only, so the new model's tensors keep no graph
   to the old ones. */
static flux_layer *flux__map_layer(flux_fmap_fn f, void *user, flux_layer *m,
                                   bool same_if_unchanged) {
    flux__fmap_args a = { NULL, f, user };
    flux__block b = flux__nograd_enter();
    flux_layer *y = flux__fmap(a, m, NULL, same_if_unchanged);
    flux__nograd_leave(&b);
    return y;
}

static flux_tensor *flux__copy_leaf(flux_tensor *x, const char *path, void *user) {
    (void)path, (void)user;
    return flux_copy(x);
}

FLUX_DEF flux_layer *flux_copy_layer(flux_layer *m) {
    return m ? flux__map_layer(flux__copy_leaf, NULL, m, false)
             : (flux_layer *)flux__null("copy_layer", "model", m);
}

/* Norm layers keep their parameters and statistics in float32: half formats lose too
   much of a variance. */
static bool flux__keeps_f32(const flux_layer *m) {
    static const char *const names[] = { "BatchNorm", "InstanceNorm", "GroupNorm" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(m->type->name, names[i]) == 0) return true;
    return false;
}

static flux_tensor *flux__convert_leaf(flux_tensor *x, const char *path, bool trained,
                                       const flux_layer *owner, void *user) {
    flux_dtype want = *(flux_dtype *)user;
    (void)path, (void)trained;
    if (!flux__dtypes[x->dtype].real) return x;
    if ((want == FLUX_F16 || want == FLUX_BF16) && flux__keeps_f32(owner)) want = FLUX_F32;
    return flux_to_dtype(x, want);
}

static flux_layer *flux__convert_layer(const char *call, flux_layer *m, flux_dtype t) {
    flux__mapping p;
    if (!m) return (flux_layer *)flux__null(call, "model", m);
    memset(&p, 0, sizeof p);
    p.f = flux__convert_leaf;
    p.user = &t;
    flux__block b = flux__nograd_enter();
    flux_layer *y = flux__map_model(&p, m, false);
    flux__nograd_leave(&b);
    return y;
}

FLUX_DEF flux_layer *flux_f16(flux_layer *m) { return flux__convert_layer("f16", m, FLUX_F16); }
FLUX_DEF flux_layer *flux_bf16(flux_layer *m) { return flux__convert_layer("bf16", m, FLUX_BF16); }
FLUX_DEF flux_layer *flux_f32(flux_layer *m) { return flux__convert_layer("f32", m, FLUX_F32); }
FLUX_DEF flux_layer *flux_f64(flux_layer *m) { return flux__convert_layer("f64", m, FLUX_F64); }

/* ---------------- all trained numbers as one vector */

typedef struct flux__flat {
    flux_tensor **part;                   /* the trained tensors, then the pieces in their place */
    int count;
    int64_t total;
    flux_dtype dtype;
    bool ties;                            /* some tensor is a view of another of the model's */
    flux__pairs where;                    /* trained tensor: its number, from 1 */
} flux__flat;

static void flux__flat_free(flux__flat *f) {
    if (f->part) FLUX_FREE(f->part);
    flux__pairs_free(&f->where);
}

static bool flux__flat_make(flux__flat *f, flux_layer *m) {
    flux__tally t = { NULL, 0, 0, 0, NULL, false };
    memset(f, 0, sizeof *f);
    if (!flux__tally_all("destructure", m, &t)) return false;
    f->count = t.count;
    f->ties = t.ties;
    f->part = (flux_tensor **)flux__malloc(((size_t)f->count + 1) * sizeof *f->part);
    if (!f->part || flux_params(m, f->part, f->count) != f->count) return false;
    for (int i = 0; i < f->count; i++) {
        bool fresh;
        flux__pair *p = flux__pairs_at(&f->where, f->part[i], &fresh);
        if (!p) return false;
        p->value = (void *)(intptr_t)(i + 1);
        f->total += flux__size(f->part[i]);
        f->dtype = i ? flux__promote(f->dtype, (flux_dtype)f->part[i]->dtype)
                     : (flux_dtype)f->part[i]->dtype;
    }
    return true;
}

/* Joins any number of vectors: flux_cat takes 255 at a time. */
static flux_tensor *flux__join_all(flux_tensor **x, int n) {
    while (n > 1) {
        int groups = 0;
        for (int i = 0; i < n; i += 255)
            x[groups++] = flux_cat_all(0, n - i < 255 ? n - i : 255, x + i);
        n = groups;
    }
    return n ? x[0] : NULL;
}

FLUX_DEF flux_tensor *flux_destructure(flux_layer *m) {
    flux__flat f;
    if (!m) return (flux_tensor *)flux__null("destructure", "model", m);
    int h = flux__hide();
    flux_tensor *y = NULL;
    if (flux__flat_make(&f, m)) {
        for (int i = 0; i < f.count; i++) {
            int64_t n = flux__size(f.part[i]);
            f.part[i] = flux_reshape_to(flux_to_dtype(f.part[i], f.dtype), flux__shape(&n, 1));
        }
        y = f.count ? flux__join_all(f.part, f.count)
                    : flux_full_shape(flux__shape(&f.total, 1), 0.0, FLUX_F32);
    }
    flux__flat_free(&f);
    return flux__reveal(h, y);
}

static flux_tensor *flux__flat_piece(flux_tensor *x, const char *path, bool trained,
                                     const flux_layer *owner, void *user) {
    flux__flat *f = (flux__flat *)user;
    (void)path, (void)trained, (void)owner;
    intptr_t i = (intptr_t)flux__pairs_get(&f->where, x);
    return i ? f->part[i - 1] : x;
}

FLUX_DEF flux_layer *flux_restructure(flux_layer *m, flux_tensor *flat) {
    flux__flat f;
    flux__mapping p;
    if (!m || !flat) return (flux_layer *)flux__null("restructure", m ? "flat" : "model", NULL);
    memset(&p, 0, sizeof p);
    p.f = flux__flat_piece;
    p.user = &f;
    int h = flux__hide();
    bool good = flux__flat_make(&f, m);
    if (good && (flat->op == FLUX__TUPLE || flat->ndim != 1 || flat->dim[0] != f.total)) {
        flux__text t = flux__describe(flat);
        flux__fail("restructure: the model has %lld trained numbers, flat is %s",
                   (long long)f.total, flat->op == FLUX__TUPLE ? "a tuple" : t.s);
        good = false;
    }
    int64_t at = 0;
    for (int i = 0; good && i < f.count; i++) {
        flux_shape s = flux__dims(f.part[i]);
        int64_t n = flux__size(f.part[i]);
        f.part[i] = flux_to_dtype(flux_reshape_to(flux_slice(flat, 0, at, at + n), s),
                                  (flux_dtype)f.part[i]->dtype);
        if (f.ties) f.part[i] = flux_copy(f.part[i]);   /* what ties go by is no view itself */
        at += n;
        good = f.part[i] != NULL;
    }
    flux_layer *y = good ? flux__map_model(&p, m, false) : NULL;
    flux__flat_free(&f);
    return (flux_layer *)flux__reveal_object(h, y);
}

/* ---------------- modes, freezing, names */

static void flux__set_train(flux_layer *m, void *user) { (void)user, m->mode = FLUX_MODE_TRAIN; }
static void flux__set_test(flux_layer *m, void *user) { (void)user, m->mode = FLUX_MODE_TEST; }
static void flux__set_auto(flux_layer *m, void *user) { (void)user, m->mode = FLUX_MODE_AUTO; }
static void flux__set_frozen(flux_layer *m, void *user) { (void)user, m->frozen = true; }
static void flux__set_thawed(flux_layer *m, void *user) { (void)user, m->frozen = false; }

static void flux__set_all(const char *call, flux_layer *m, void (*set)(flux_layer *m, void *user)) {
    if (m) flux__walk_all(m, NULL, set, NULL);
    else flux__null(call, "model", m);
}

FLUX_DEF void flux_testmode(flux_layer *m, bool on) {
    flux__set_all("testmode", m, on ? flux__set_test : flux__set_auto);
}
FLUX_DEF void flux_trainmode(flux_layer *m, bool on) {
    flux__set_all("trainmode", m, on ? flux__set_train : flux__set_auto);
}
FLUX_DEF void flux_freeze(flux_layer *m) { flux__set_all("freeze", m, flux__set_frozen); }
FLUX_DEF void flux_thaw(flux_layer *m) { flux__set_all("thaw", m, flux__set_thawed); }

FLUX_DEF bool flux_training(const flux_layer *m) {
    if (m && m->mode != FLUX_MODE_AUTO) return m->mode == FLUX_MODE_TRAIN;
    flux__thread *t = flux__self();
    return m && t && t->nograd == 0;
}

/* A name is a part of a path, in place of an index. */
static bool flux__check_name(const char *name) {
    size_t n = strlen(name), digits = strspn(name, "0123456789");
    bool good = n > 0 && n < 64 && digits < n && !strchr(name, '.');
    for (size_t i = 0; i < n && i < 64; i++)
        if ((unsigned char)name[i] < ' ') good = false;
    if (!good)
        flux__fail(
            "named: \"%.64s\" is no name: 1 to 63 characters, not only digits, without a dot",
            name);
    return good;
}

FLUX_DEF flux_layer *flux_named(const char *name, flux_layer *m) {
    if (!name || !m) return (flux_layer *)flux__null("named", name ? "model" : "name", NULL);
    if (!flux__check_name(name)) return NULL;
    if (m->name && strcmp(m->name, name) == 0) return m;
    if (m->name)
        return (flux_layer *)flux__fail(
            "named: this %s is called \"%s\" already; \"%s\" would rename it wherever it is used",
            m->type->name, m->name, name);
    size_t n = strlen(name) + 1;
    char *copy = (char *)flux__malloc(n);
    if (!copy) return NULL;
    m->name = (const char *)memcpy(copy, name, n);
    return m;
}

/* ---------------- calls */

FLUX_DEF flux_tensor *flux_call_layer(flux_layer *m, flux_tensor *x) {
    if (!m || !x) return (flux_tensor *)flux__null("call", m ? "x" : "model", NULL);
    int h = flux__hide();
    flux_tensor *y = m->type->call(m, x);
    if (!y && !flux_failed()) flux__fail("%s: its call gave NULL", m->type->name);
    return flux__reveal(h, y);
}

FLUX_DEF flux_tensor *flux_call_all(flux_layer *m, int n, flux_tensor *const *xs) {
    if (!m || n < 1 || !xs) return (flux_tensor *)flux__null("call", m ? "x" : "model", NULL);
    if (n == 1) return flux_call_layer(m, xs[0]);
    for (int i = 0; i < n; i++)
        if (!xs[i]) return (flux_tensor *)flux__null("call", "x", NULL);
    int h = flux__hide();
    return flux__reveal(h, flux_call_layer(m, flux_tuple_of(n, xs)));
}

static const flux_layer_type *flux__embedding_type(void);

static void flux__first_tensor(flux_tensor **slot, const char *path, bool trained,
                               const flux_layer *owner, void *user) {
    flux_tensor **first = (flux_tensor **)user;
    (void)path, (void)trained, (void)owner;
    if (!*first) *first = *slot;
}

/* What a model's first layer takes: indices if it is an Embedding, else what its
   weights are made of. */
static flux_tensor *flux__sample(flux_layer *m, flux_shape s) {
    flux_tensor *first = NULL;
    flux_layer *leaf = m, *below;
    flux__fields(m, flux__first_tensor, &first);
    for (int depth = 0; depth < FLUX__DEEPEST && (below = flux_child(leaf, 0)) != NULL; depth++)
        leaf = below;
    flux_dtype t = leaf->type == flux__embedding_type() ? FLUX_I64
                   : first                              ? (flux_dtype)first->dtype
                                                        : FLUX_F32;
    /* FLUX_EAGER computes all the same, so on zeros. */
    flux_tensor *x = flux__eager() ? flux_full_shape(s, 0.0, t) : flux__placeholder(s, t);
    if (x && first && !x->buf) x->device = first->device;
    return x && first ? flux_to_tensor(first->device, x) : x;
}

static flux_tensor *flux__keep_leaf(flux_tensor *x, const char *path, void *user) {
    (void)path, (void)user;
    return x;
}

/* Calls a copy, so that modes and whatever a layer's call changes stay as they are;
   no random number is used up. */
FLUX_DEF flux_shape flux_outputsize_of(flux_layer *m, flux_shape in) {
    flux_shape none;
    flux__thread *t = flux__self();
    memset(&none, 0, sizeof none);
    none.ndim = -1;
    if (!m || !t) {
        flux__null("outputsize", "model", m);
        return none;
    }
    uint64_t draws = t->draws;
    int h = flux__hide();
    flux_layer *copy = flux__map_layer(flux__keep_leaf, NULL, m, false);
    if (copy) flux_testmode(copy, true);
    flux__block b = flux__nograd_enter();
    flux_tensor *y = copy ? flux_call_layer(copy, flux__sample(copy, in)) : NULL;
    flux__nograd_leave(&b);
    if (y && y->op == FLUX__TUPLE)
        y = (flux_tensor *)flux__fail("outputsize: %s gives a tuple of %d tensors", m->type->name,
                                      y->nin);
    if (y) none = flux__dims(y);
    flux__reveal_object(h, NULL);
    t->draws = draws;
    return none;
}

FLUX__ASBEFORE
FLUX__COLD

/* ------------------------------------------------------------------ 15. Names of functions
   Activations and connections are C functions. They print by a table of those that
   there are, by what flux_name_function said, or by the text of the call that a
   container's macro kept. */

#define FLUX__UNARY_NAMES(X)                                                                  \
    X(identity) X(hardsigmoid) X(logsigmoid) X(tanh) X(hardtanh) X(relu) X(relu6) X(selu)     \
    X(gelu) X(gelu_tanh) X(gelu_sigmoid) X(gelu_erf) X(swish) X(hardswish) X(lisht)           \
    X(logcosh) X(mish) X(softplus) X(softsign) X(tanhshrink) X(leakyrelu) X(rrelu) X(elu)     \
    X(celu) X(softshrink) X(trelu) X(softmax) X(logsoftmax) X(flatten) X(neg) X(abs) X(sign)  \
    X(sqrt) X(rsqrt) X(square) X(exp) X(log) X(log1p) X(expm1) X(sin) X(cos) X(erf) X(floor)  \
    X(ceil) X(round) X(not) X(detach) X(copy) X(transpose) X(squeeze) X(sum) X(mean) X(var)   \
    X(prod) X(max) X(min) X(any) X(all) X(norm) X(logsumexp) X(argmax) X(argmin) X(onecold)   \
    X(gpu) X(cpu) X(cu) X(roc)
typedef struct flux__named_fn { flux_fn f; const char *name; } flux__named_fn;
typedef struct flux__named_fn2 { flux_fn2 f; const char *name; } flux__named_fn2;

static const flux__named_fn flux__fn_names[] = {
#define FLUX__FN_ROW(name) { flux_##name, #name },
    FLUX__UNARY_NAMES(FLUX__FN_ROW)
};
static const flux__named_fn2 flux__fn2_names[] = {
    { flux_add, "+" },     { flux_sub, "-" },    { flux_mul, "*" },      { flux_div, "/" },
    { flux_pow, "^" },     { flux_max2, "max" }, { flux_min2, "min" },   { flux_matmul, "matmul" },
    { flux_vcat, "vcat" }, { flux_dot, "dot" },  { flux_outer, "outer" }
};

#define FLUX__USER_NAMES 200
/* What flux_name_function was told, under flux__lock. */
static struct { flux_fn f; char name[64]; } flux__user_names[FLUX__USER_NAMES];
static int flux__user_named;

FLUX_DEF void flux_name_function(flux_fn f, const char *name) {
    if (!f || !name) {
        flux__null("name_function", f ? "name" : "f", NULL);
        return;
    }
    flux__mutex_lock(&flux__lock);
    int i = 0;
    while (i < flux__user_named && flux__user_names[i].f != f) i++;
    if (i < FLUX__USER_NAMES) {
        flux__user_names[i].f = f;
        snprintf(flux__user_names[i].name, sizeof flux__user_names[i].name, "%s", name);
        if (i == flux__user_named) flux__user_named++;
    }
    flux__mutex_unlock(&flux__lock);
    if (i == FLUX__USER_NAMES)
        flux__fail("name_function: %d functions have names already, no room for \"%.60s\"", i,
                   name);
}

/* NULL for a function that nobody has named. */
static const char *flux__known_name(flux_fn f) {
    const char *name = NULL;
    flux__mutex_lock(&flux__lock);
    for (int i = 0; i < flux__user_named && !name; i++)
        if (flux__user_names[i].f == f) name = flux__user_names[i].name;
    flux__mutex_unlock(&flux__lock);
    if (!name && f == flux_sigmoid) name = flux__ascii() ? "sigmoid" : "\xcf\x83";
    for (size_t i = 0; i < sizeof flux__fn_names / sizeof *flux__fn_names && !name; i++)
        if (flux__fn_names[i].f == f) name = flux__fn_names[i].name;
    return name;
}

static const char *flux__fn_name(flux_fn f) {
    const char *name = flux__known_name(f);
    return name ? name : "function";
}

static const char *flux__fn2_name(flux_fn2 f) {
    for (size_t i = 0; i < sizeof flux__fn2_names / sizeof *flux__fn2_names; i++)
        if (flux__fn2_names[i].f == f) return flux__fn2_names[i].name;
    return NULL;
}

/* ---------------- functions as layers */

static const flux_field flux__no_fields[] = { { NULL, FLUX__END, 0, 0 } };

typedef struct flux__function {
    flux_layer base;
    flux_fn f;                            /* one of the two */
    flux_fn2 f2;
    char label[64];                       /* "": by the tables above */
} flux__function;

/* All of them by a function of two: f(f(x0, x1), x2) ... */
static flux_tensor *flux__fold(flux_fn2 f, int n, flux_tensor *const *xs) {
    flux_tensor *y = xs[0];
    for (int i = 1; i < n && y; i++) y = f(y, xs[i]);
    return y;
}

static bool flux__untuple(flux_tensor *x, flux_tensor **out) {
    int n = flux_count(x);
    for (int i = 0; i < n; i++)
        if (!(out[i] = flux_nth(x, i))) return false;
    return true;
}

static flux_tensor *flux__function_call(flux_layer *self, flux_tensor *x) {
    flux__function *m = (flux__function *)self;
    flux_tensor *xs[255];
    if (m->f) return m->f(x);
    if (flux_count(x) >= 2)
        return flux__untuple(x, xs) ? flux__fold(m->f2, flux_count(x), xs) : NULL;
    flux__words line = flux__line_of(self);
    return (flux_tensor *)flux__fail("%s takes two inputs, got one", line.s);
}

static size_t flux__function_text(flux_layer *self, char *out, size_t n) {
    const flux__function *m = (const flux__function *)self;
    flux__words l;
    const char *name = m->label[0] ? m->label
                       : m->f      ? flux__known_name(m->f)
                                   : flux__fn2_name(m->f2);
    l.s[0] = 0;
    flux__say(&l, "%s", name ? name : "function");
    return flux__line_out(&l, out, n);
}

static const flux_layer_type *flux__function_type(void) {
    static const flux_layer_type type = { "Function", flux__function_call, sizeof(flux__function),
                                          flux__no_fields, flux__function_text };
    return &type;
}

static flux_layer *flux__function_new(flux_fn f, flux_fn2 f2, const char *name) {
    flux__function m;
    memset(&m, 0, sizeof m);
    if (!f && !f2) return (flux_layer *)flux__null("function", "f", NULL);
    m.f = f;
    m.f2 = f2;
    if (name) snprintf(m.label, sizeof m.label, "%s", name);
    return flux__layer_new(flux__function_type(), &m);
}

FLUX_DEF flux_layer *flux_function(flux_fn f, const char *name) {
    return flux__function_new(f, NULL, name);
}
FLUX_DEF flux_layer *flux_function2(flux_fn2 f, const char *name) {
    return flux__function_new(NULL, f, name);
}
FLUX_DEF flux_layer *flux__layer_of_fn(flux_fn f) { return flux__function_new(f, NULL, NULL); }
FLUX_DEF flux_layer *flux__layer_of_fn2(flux_fn2 f) { return flux__function_new(NULL, f, NULL); }
FLUX_DEF flux_layer *flux__layer_of_layer(flux_layer *l) { return l; }

/* The i-th part of "flux_dense(2, 3), my_act": parts end at commas outside brackets
   and strings. */
static const char *flux__part_of(const char *names, int i, size_t *length) {
    int depth = 0;
    const char *start = names, *s = names;
    for (; *s; s++) {
        if (*s == '"' || *s == '\'') {
            char quote = *s;
            while (s[1] && s[1] != quote) s += s[1] == '\\' && s[2] ? 2 : 1;
            if (s[1]) s++;
        } else if (strchr("([{", *s)) depth++;
        else if (strchr(")]}", *s)) depth--;
        else if (*s == ',' && depth == 0) {
            if (i-- == 0) break;
            start = s + 1;
        }
    }
    if (i > 0) return NULL;
    while (start < s && (*start == ' ' || *start == '&')) start++;
    while (s > start && s[-1] == ' ') s--;
    *length = (size_t)(s - start);
    return start;
}

/* A function of the user's, unnamed so far, is called as in the text of the call. */
static void flux__label(flux_layer *l, const char *names, int i) {
    flux__function *m = (flux__function *)l;
    size_t n = 0;
    if (!l || l->type != flux__function_type() || !names || m->label[0]) return;
    if (m->f ? flux__known_name(m->f) != NULL : flux__fn2_name(m->f2) != NULL) return;
    const char *part = flux__part_of(names, i, &n);
    if (!part || n == 0) return;
    for (size_t k = 0; k < n; k++)
        if (!isalnum((unsigned char)part[k]) && part[k] != '_') return;
    if (n > 5 && strncmp(part, "flux_", 5) == 0) part += 5, n -= 5;
    snprintf(m->label, sizeof m->label, "%.*s", (int)n, part);
}

/* ---------------- containers */

static bool flux__check_layers(const char *call, int n, int least, flux_layer *const *ls) {
    if (n < least || n > 255 || (n > 0 && !ls)) {
        flux__fail("%s: %d layers (%d to 255)", call, n, least);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!ls[i]) {
            if (!flux_failed()) flux__fail("%s: layer %d is NULL", call, i);
            return false;
        }
        for (int k = 0; k < i; k++)
            if (ls[k] != ls[i] && ls[k]->name && ls[i]->name &&
                strcmp(ls[k]->name, ls[i]->name) == 0) {
                flux__fail("%s: layers %d and %d are both called \"%s\"", call, k, i, ls[i]->name);
                return false;
            }
    }
    return true;
}

/* Chain, Parallel, PairwiseFusion and Maxout hold the same: what differs is how they
   are called. */
typedef struct flux__container {
    flux_layer base;
    flux_layer *connection;
    flux_layer **layers;
    int count;
} flux__container;

static flux_layer *flux__group_new(const char *call, const flux_layer_type *type,
                                   flux_layer *connection, int n, flux_layer *const *ls,
                                   const char *names, int least) {
    flux__container m;
    memset(&m, 0, sizeof m);
    if (!flux__check_layers(call, n, least, ls)) return NULL;
    if (connection) flux__label(connection, names, 0);
    for (int i = 0; i < n; i++) flux__label(ls[i], names, i + (connection ? 1 : 0));
    m.connection = connection;
    m.layers = (flux_layer **)(intptr_t)ls;
    m.count = n;
    return flux__layer_new(type, &m);
}

static flux_tensor *flux__chain_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    for (int i = 0; i < m->count && x; i++) x = flux_call_layer(m->layers[i], x);
    return x;
}
typedef flux__container flux__chain_layer;
FLUX_LAYER(flux__chain_layer, "Chain", flux__chain_call, FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_chain_of(int n, flux_layer *const *ls, const char *names) {
    return flux__group_new("chain", flux__chain_layer_type(), NULL, n, ls, names, 0);
}

FLUX_DEF flux_tensor *flux_activations(flux_layer *chain, flux_tensor *x) {
    flux_tensor *ys[255];
    if (!chain || !x) return (flux_tensor *)flux__null("activations", chain ? "x" : "chain", NULL);
    flux__container *m = (flux__container *)chain;
    if (chain->type != flux__chain_layer_type() || m->count < 1) {
        flux__words line = flux__line_of(chain);
        return (flux_tensor *)flux__fail("activations: needs a Chain of at least one layer, not %s",
                                         line.s);
    }
    int h = flux__hide();
    for (int i = 0; i < m->count; i++) ys[i] = x = flux_call_layer(m->layers[i], x);
    return flux__reveal(h, x ? flux_tuple_of(m->count, ys) : NULL);
}

/* The connection of several outputs: a function of two takes them one by one, a
   layer gets all. */
static flux_tensor *flux__connect(flux_layer *connection, int n, flux_tensor *const *ys) {
    const flux__function *f = (const flux__function *)connection;
    if (connection->type == flux__function_type() && f->f2) return flux__fold(f->f2, n, ys);
    return flux_call_all(connection, n, ys);
}

static flux_tensor *flux__mismatch(const char *type, int layers, int inputs) {
    return (flux_tensor *)flux__fail("%s: %d layers, but %d inputs", type, layers, inputs);
}

static flux_tensor *flux__parallel_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    int inputs = flux_count(x), n = m->count > inputs ? m->count : inputs;
    flux_tensor *xs[255], *ys[255];
    if (inputs != 1 && m->count != 1 && inputs != m->count)
        return flux__mismatch("Parallel", m->count, inputs);
    if (!flux__untuple(x, xs)) return NULL;
    for (int i = 0; i < n; i++)
        if (!(ys[i] = flux_call_layer(m->layers[m->count > 1 ? i : 0], xs[inputs > 1 ? i : 0])))
            return NULL;
    return flux__connect(m->connection, n, ys);
}
typedef flux__container flux__parallel_layer;
FLUX_LAYER(flux__parallel_layer, "Parallel", flux__parallel_call, FLUX_CHILD(connection),
           FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_parallel_of(flux_layer *connection, int n, flux_layer *const *ls,
                                      const char *names) {
    if (!connection) return (flux_layer *)flux__null("parallel", "connection", NULL);
    return flux__group_new("parallel", flux__parallel_layer_type(), connection, n, ls, names, 1);
}

static flux_tensor *flux__fusion_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    int inputs = flux_count(x);
    flux_tensor *xs[255], *ys[255], *pair[2];
    if (inputs != 1 && inputs != m->count)
        return flux__mismatch("PairwiseFusion", m->count, inputs);
    if (!flux__untuple(x, xs)) return NULL;
    for (int i = 0; i < m->count; i++) {
        flux_tensor *in = xs[inputs > 1 ? i : 0];
        if (i > 0) {
            pair[0] = ys[i - 1];
            pair[1] = in;
            in = flux__connect(m->connection, 2, pair);
        }
        if (!(ys[i] = flux_call_layer(m->layers[i], in))) return NULL;
    }
    return flux_tuple_of(m->count, ys);
}
typedef flux__container flux__fusion;
FLUX_LAYER(flux__fusion, "PairwiseFusion", flux__fusion_call, FLUX_CHILD(connection),
           FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_pairwisefusion_of(flux_layer *connection, int n, flux_layer *const *ls,
                                            const char *names) {
    if (!connection) return (flux_layer *)flux__null("pairwisefusion", "connection", NULL);
    return flux__group_new("pairwisefusion", flux__fusion_type(), connection, n, ls, names, 1);
}

static flux_tensor *flux__maxout_call(flux_layer *self, flux_tensor *x) {
    flux__container *m = (flux__container *)self;
    flux_tensor *y = flux_call_layer(m->layers[0], x);
    for (int i = 1; i < m->count && y; i++) y = flux_max2(y, flux_call_layer(m->layers[i], x));
    return y;
}
typedef flux__container flux__maxout;
FLUX_LAYER(flux__maxout, "Maxout", flux__maxout_call, FLUX_CHILDREN(layers, count))

FLUX_DEF flux_layer *flux_maxout_of(int n, flux_layer *const *ls, const char *names) {
    return flux__group_new("maxout", flux__maxout_type(), NULL, n, ls, names, 1);
}

typedef struct flux__skip { flux_layer base; flux_layer *layers, *connection; } flux__skip;

static flux_tensor *flux__skip_call(flux_layer *self, flux_tensor *x) {
    flux__skip *m = (flux__skip *)self;
    flux_tensor *pair[2];
    pair[0] = flux_call_layer(m->layers, x);
    pair[1] = x;
    return pair[0] ? flux__connect(m->connection, 2, pair) : NULL;
}
FLUX_LAYER(flux__skip, "SkipConnection", flux__skip_call, FLUX_CHILD(layers),
           FLUX_CHILD(connection))

FLUX_DEF flux_layer *flux_skipconnection_of(flux_layer *body, flux_layer *connection,
                                            const char *names) {
    flux__skip m;
    memset(&m, 0, sizeof m);
    if (!body || !connection)
        return (flux_layer *)flux__null("skipconnection", body ? "connection" : "layer", NULL);
    flux__label(body, names, 0);
    flux__label(connection, names, 1);
    m.layers = body;
    m.connection = connection;
    return flux__layer_new(flux__skip_type(), &m);
}

FLUX_DEF flux_tensor *flux_vcat(flux_tensor *a, flux_tensor *b) {
    flux_tensor *both[2];
    both[0] = a;
    both[1] = b;
    return flux_cat_all(0, 2, both);
}

/* ------------------------------------------------------------------ 16. Initialisers
   Uniform and normal ones are expressions of flux_rand and flux_randn, computed when
   somebody looks. Those that need all their numbers at once (orthogonal, truncated,
   sparse, identity) are made on the host, in double precision, from the same random
   tensors: so a seed gives the same weights everywhere. */

typedef struct flux__init_row {
    const char *name;
    flux_tensor *(*make)(flux_shape s, const flux_init_opts *o);
    double gain, std;                     /* defaults */
} flux__init_row;

/* Fan-in and fan-out: of a vector (1, n), of a matrix its columns and rows, else
   channels times the window. */
static void flux__fans(const flux_shape *s, double *in, double *out) {
    double window = 1;
    for (int i = 0; i + 2 < s->ndim; i++) window *= (double)s->dim[i];
    double a = s->ndim > 1 ? (double)s->dim[s->ndim - 2] : 1,
           b = s->ndim > 0 ? (double)s->dim[s->ndim - 1] : 1;
    *in = s->ndim == 2 ? b : a * window;
    *out = s->ndim == 2 ? a : b * window;
}

static flux_tensor *flux__uniform(flux_shape s, double width) {
    return flux_mul(flux_sub(flux_rand_shape(s, FLUX_F32), 0.5), width);
}

static flux_tensor *flux__init_glorot_uniform(flux_shape s, const flux_init_opts *o) {
    double in, out;
    flux__fans(&s, &in, &out);
    return flux__uniform(s, o->gain * sqrt(24 / (in + out)));
}

static flux_tensor *flux__init_glorot_normal(flux_shape s, const flux_init_opts *o) {
    double in, out;
    flux__fans(&s, &in, &out);
    return flux_mul(flux_randn_shape(s, FLUX_F32), o->gain * sqrt(2 / (in + out)));
}

static flux_tensor *flux__init_kaiming_uniform(flux_shape s, const flux_init_opts *o) {
    double in, out;
    flux__fans(&s, &in, &out);
    return flux__uniform(s, 2 * o->gain * sqrt(3 / in));
}

static flux_tensor *flux__init_kaiming_normal(flux_shape s, const flux_init_opts *o) {
    double in, out;
    flux__fans(&s, &in, &out);
    return flux_mul(flux_randn_shape(s, FLUX_F32), o->gain / sqrt(in));
}

static flux_tensor *flux__init_zeros(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_full_shape(s, 0.0, FLUX_F32);
}
static flux_tensor *flux__init_ones(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_full_shape(s, 1.0, FLUX_F32);
}
static flux_tensor *flux__init_rand(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_rand_shape(s, FLUX_F32);
}
static flux_tensor *flux__init_randn(flux_shape s, const flux_init_opts *o) {
    return (void)o, flux_randn_shape(s, FLUX_F32);
}

/* The x at which a normal distribution has come to p. First the inverse error
   function of M. Giles, "Approximating the erfinv function", GPU Computing Gems 2
   (2010), good to single precision; one step of Halley's method makes it double. */
static double flux__normal_quantile(double p) {
    static const double middle[] = { 2.81022636e-08,  3.43273939e-07, -3.5233877e-06,
                                     -4.39150654e-06, 0.00021858087,  -0.00125372503,
                                     -0.00417768164,  0.246640727,    1.50140941 };
    static const double tails[] = { -0.000200214257, 0.000100950558, 0.00134934322,
                                    -0.00367342844,  0.00573950773,  -0.0076224613,
                                    0.00943887047,   1.00167406,     2.83297682 };
    double y = 2 * p - 1, w = -log(4 * p * (1 - p)), x = 0;
    if (!(p > 0 && p < 1)) return p <= 0 ? -HUGE_VAL : HUGE_VAL;
    const double *c = w < 5 ? middle : tails;
    w = w < 5 ? w - 2.5 : sqrt(w) - 3;
    for (int i = 0; i < 9; i++) x = x * w + c[i];
    x *= y * 1.4142135623730951;
    double miss = (0.5 * erfc(-x / 1.4142135623730951) - p) * 2.5066282746310002 * exp(x * x / 2);
    return x - miss / (1 + x * miss / 2);
}

static double flux__normal_below(double x) { return 0.5 * erfc(-x / 1.4142135623730951); }

static flux_tensor *flux__truncated(flux_shape s, double mean, double std, double lo, double hi) {
    if (mean < lo - 2 * std || mean > hi + 2 * std)
        flux__note(FLUX_LOG_WARN, "init.truncated", true,
                   "truncated_normal: the mean %g is more than two std outside %g to %g", mean, lo,
                   hi);
    flux_tensor *u = flux_rand_shape(s, FLUX_F32);
    const float *from = u ? (const float *)flux_data(u) : NULL;
    int64_t n = from ? flux__count(&s) : 0;
    float *x = from ? (float *)flux__malloc((size_t)n * sizeof *x) : NULL;
    if (!x) return NULL;
    double a = flux__normal_below((lo - mean) / std), b = flux__normal_below((hi - mean) / std);
    for (int64_t i = 0; i < n; i++) {     /* half a step of u more: neither 0 nor 1 */
        double y = mean + std * flux__normal_quantile(
                                    a + ((double)from[i] + 2.9802322387695312e-8) * (b - a));
        x[i] = (float)(y < lo ? lo : y > hi ? hi : y);
    }
    flux_tensor *y = flux_from_data(x, FLUX_F32, s);
    FLUX_FREE(x);
    return y;
}

static flux_tensor *flux__init_truncated(flux_shape s, const flux_init_opts *o) {
    bool given = o->lo < 0 || o->lo > 0 || o->hi < 0 || o->hi > 0;
    double lo = given ? o->lo : -2, hi = given ? o->hi : 2;
    if (!(lo < hi))
        return (flux_tensor *)flux__fail("init: the bounds %g and %g are not in order", lo, hi);
    return flux__truncated(s, o->mean, o->std, lo, hi);
}

static flux_tensor *flux__init_lecun(flux_shape s, const flux_init_opts *o) {
    double in, out;
    flux__fans(&s, &in, &out);
    return flux__truncated(s, 0, o->gain / sqrt(in), -2, 2);
}

/* Gram and Schmidt's method, each column against those before it, twice, which is
   enough (Giraud, Langou, Rozloznik 2005). Its R has a positive diagonal, so no
   signs are to be put right. */
static FLUX__O2 void flux__orthonormalise(double *q, int64_t rows, int64_t cols) {
    for (int64_t k = 0; k < cols; k++) {
        double *v = q + k * rows, sum = 0;
        for (int64_t j = 0; j < 2 * k; j++) {
            const double *u = q + (j % k) * rows;
            double dot = 0;
            for (int64_t i = 0; i < rows; i++) dot += u[i] * v[i];
            for (int64_t i = 0; i < rows; i++) v[i] -= dot * u[i];
        }
        for (int64_t i = 0; i < rows; i++) sum += v[i] * v[i];
        for (int64_t i = 0; i < rows && sum > 0; i++) v[i] /= sqrt(sum);
    }
}

static flux_tensor *flux__init_orthogonal(flux_shape s, const flux_init_opts *o) {
    if (s.ndim < 2)
        return (flux_tensor *)flux__fail(
            "init: orthogonal makes matrices and more, not tensors of %d dims", s.ndim);
    int64_t cols = s.dim[s.ndim - 1], rows = cols ? flux__count(&s) / cols : 0, n = rows * cols;
    bool wide = rows < cols;              /* then its transpose is made orthonormal */
    int64_t tall[2] = { wide ? cols : rows, wide ? rows : cols };
    flux_tensor *g = flux_randn_shape(flux__shape(tall, 2), FLUX_F32);
    const float *from = g ? (const float *)flux_data(g) : NULL;
    double *q = from ? (double *)flux__malloc((size_t)n * sizeof *q) : NULL;
    float *x = q ? (float *)flux__malloc((size_t)n * sizeof *x) : NULL;
    flux_tensor *y = NULL;
    if (x) {
        for (int64_t i = 0; i < n; i++) q[i] = (double)from[i];
        flux__orthonormalise(q, tall[0], tall[1]);
        for (int64_t j = 0; j < cols; j++)
            for (int64_t i = 0; i < rows; i++)
                x[j * rows + i] = (float)(o->gain * (wide ? q[i * cols + j] : q[j * rows + i]));
        y = flux_from_data(x, FLUX_F32, s);
    }
    if (q) FLUX_FREE(q);
    if (x) FLUX_FREE(x);
    return y;
}

/* Normal numbers, of which in each column `zeros` at random places are 0. */
static flux_tensor *flux__init_sparse(flux_shape s, const flux_init_opts *o) {
    if (s.ndim != 2)
        return (flux_tensor *)flux__fail("init: sparse makes matrices, not tensors of %d dims",
                                         s.ndim);
    int64_t rows = s.dim[0],
            zeros = (int64_t)ceil((o->sparsity < 1 ? o->sparsity : 1) * (double)rows);
    flux_tensor *u = flux_rand_shape(s, FLUX_F32),
                *w = flux_mul(flux_randn_shape(s, FLUX_F32), o->std);
    const float *pick = u ? (const float *)flux_data(u) : NULL,
                *from = pick ? (const float *)flux_data(w) : NULL;
    float *x = from ? (float *)flux__malloc((size_t)(flux__count(&s) + 1) * sizeof *x) : NULL;
    int64_t *order = x ? (int64_t *)flux__malloc((size_t)(rows + 1) * sizeof *order) : NULL;
    flux_tensor *y = NULL;
    if (order) {
        for (int64_t i = 0; i < rows * s.dim[1]; i++) x[i] = from[i];
        for (int64_t j = 0; j < s.dim[1]; j++) {
            for (int64_t i = 0; i < rows; i++) order[i] = i;
            for (int64_t i = 0; i < zeros; i++) {
                int64_t k = i + (int64_t)((double)pick[j * rows + i] * (double)(rows - i)),
                        place = order[k];
                order[k] = order[i];
                x[j * rows + place] = 0;
            }
        }
        y = flux_from_data(x, FLUX_F32, s);
    }
    if (x) FLUX_FREE(x);
    if (order) FLUX_FREE(order);
    return y;
}

/* Ones on the diagonal, or channel i to channel i at the window's centre; .shift
   moves them along dim 0, around. */
static flux_tensor *flux__init_identity(flux_shape s, const flux_init_opts *o) {
    if (s.ndim < 2) return flux_full_shape(s, 0.0, FLUX_F32);
    float *x = (float *)flux__zalloc((size_t)(flux__count(&s) + 1) * sizeof *x);
    if (!x) return NULL;
    int64_t a = s.dim[s.ndim - 2], b = s.dim[s.ndim - 1], first = s.dim[0];
    for (int64_t i = 0; i < a && i < b && first; i++) {
        int64_t at = 0, step = 1;
        for (int d = 0; d < s.ndim; d++) {
            int64_t k = d >= s.ndim - 2 ? i : (s.dim[d] + 1) / 2 - 1;
            if (d == 0) k = ((k + o->shift) % first + first) % first;
            at += k * step;
            step *= s.dim[d];
        }
        if (flux__count(&s)) x[at] = (float)o->gain;
    }
    flux_tensor *y = flux_from_data(x, FLUX_F32, s);
    FLUX_FREE(x);
    return y;
}

static const flux__init_row flux__inits[] = {
    { "glorot_uniform", flux__init_glorot_uniform, 1, 1 },
    { "glorot_normal", flux__init_glorot_normal, 1, 1 },
    { "kaiming_uniform", flux__init_kaiming_uniform, 1.4142135623730951, 1 },
    { "kaiming_normal", flux__init_kaiming_normal, 1.4142135623730951, 1 },
    { "truncated_normal", flux__init_truncated, 1, 1 },
    { "lecun_normal", flux__init_lecun, 1, 1 },
    { "orthogonal", flux__init_orthogonal, 1, 1 },
    { "sparse", flux__init_sparse, 1, 0.01 },
    { "identity", flux__init_identity, 1, 1 },
    { "zeros", flux__init_zeros, 1, 1 },
    { "ones", flux__init_ones, 1, 1 },
    { "rand", flux__init_rand, 1, 1 },
    { "randn", flux__init_randn, 1, 1 }
};

static bool flux__finite(double x) { return x - x == 0; }

static bool flux__check_init(const flux_init_opts *o) {
    const struct { const char *name; double value; bool least0;
    } all[] = { { "gain", o->gain, false }, { "mean", o->mean, false },
                { "std", o->std, true },    { "lo", o->lo, false },
                { "hi", o->hi, false },     { "sparsity", o->sparsity, true } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!flux__finite(all[i].value) || (all[i].least0 && all[i].value < 0)) {
            flux__fail("init: .%s is %g", all[i].name, all[i].value);
            return false;
        }
    return true;
}

FLUX_DEF flux_tensor *flux_init_with(const char *name, flux_shape s, flux_init_opts o) {
    const flux__init_row *row = flux__inits, *end = row + sizeof flux__inits / sizeof *flux__inits;
    if (!name) return (flux_tensor *)flux__null("init", "name", name);
    while (row < end && strcmp(row->name, name) != 0) row++;
    if (row == end)
        return (flux_tensor *)flux__fail("init: there is no initialiser \"%.60s\"", name);
    if (!flux__check_shape("init", &s) || !flux__check_init(&o)) return NULL;
    if (!(o.gain < 0 || o.gain > 0)) o.gain = row->gain;
    if (!(o.std > 0)) o.std = row->std;
    int h = flux__hide();
    flux__block b = flux__nograd_enter();
    flux_tensor *y = row->make(s, &o);
    flux__nograd_leave(&b);
    return flux__reveal(h, y);
}

#ifndef __cplusplus
FLUX_DEF flux_tensor *flux__init_args(const char *name, flux__init_call c) {
    flux_init_opts o;
    memset((void *)&o, 0, sizeof o);
    o.gain = c.gain, o.mean = c.mean, o.std = c.std, o.lo = c.lo, o.hi = c.hi,
    o.sparsity = c.sparsity, o.shift = c.shift;
    return flux_init_with(name, c.shape, o);
}
#endif

#define FLUX__INIT(function, name)                                                      \
    FLUX_DEF flux_tensor *flux_##function(flux_shape s) {                               \
        flux_init_opts o;                                                               \
        memset((void *)&o, 0, sizeof o);                                                        \
        return flux_init_with(name, s, o);                                              \
    }
FLUX__INIT(glorot_uniform, "glorot_uniform")
FLUX__INIT(glorot_normal, "glorot_normal")
FLUX__INIT(kaiming_uniform, "kaiming_uniform")
FLUX__INIT(kaiming_normal, "kaiming_normal")
FLUX__INIT(truncated_normal, "truncated_normal")
FLUX__INIT(lecun_normal, "lecun_normal")
FLUX__INIT(orthogonal, "orthogonal")
FLUX__INIT(identity_init, "identity")
FLUX__INIT(zeros32, "zeros")
FLUX__INIT(ones32, "ones")
FLUX__INIT(rand32, "rand")
FLUX__INIT(randn32, "randn")

FLUX__ASBEFORE
FLUX__LEAN

/* ------------------------------------------------------------------ 17. Layers
   Each is a struct, its text, its call and its constructor. A constructor makes
   weights inside flux__hide, so that the layer alone owns them and flux_update may
   write the new values where the old ones lie. A call checks its input once, against
   the weights as they are now, and names itself as it is printed. */

static flux_tensor *flux__activate(flux_fn f, flux_tensor *x) { return f && x ? f(x) : x; }

/* softmax needs whole columns, an activation sees single numbers (or, fused, less
   than a column). */
static bool flux__check_activation(const char *call, flux_fn *f) {
    if (*f == flux_identity) *f = NULL;
    if (*f != flux_softmax && *f != flux_logsoftmax) return true;
    const char *name = flux__fn_name(*f);
    flux__fail(
        "%s: %s is no activation: it works on columns, not on single numbers; "
        "make it a layer of its own, flux_chain(flux_%s(...), flux_%s)",
        call, name, call, name);
    return false;
}

static bool flux__check_sizes(const char *call, int n, const int64_t *size) {
    for (int i = 0; i < n; i++)
        if (size[i] < 1) {
            flux__fail("%s: size %d is %lld; sizes are at least 1", call, i, (long long)size[i]);
            return false;
        }
    return true;
}

/* A weight of shape s by an initialiser, a user's own perhaps. */
static flux_tensor *flux__make_weight(const char *call, flux_init_fn init, flux_shape s) {
    if (!flux__check_shape(call, &s)) return NULL;
    flux_tensor *w = init(s), *like = w ? flux__placeholder(s, FLUX_F32) : NULL;
    if (!w && !flux_failed()) return (flux_tensor *)flux__fail("%s: .init gave NULL", call);
    if (!like || (w->op != FLUX__TUPLE && flux__same_dims(w, like) && flux__dtypes[w->dtype].real))
        return like ? w : NULL;
    flux__text want = flux__shape_text(&s), have = flux__describe(w);
    return (flux_tensor *)flux__fail("%s: .init gave %s where %s floating numbers were asked for",
                                     call, have.s, want.s);
}

static flux_tensor *flux__make_bias(flux_switch bias, flux_shape s, flux_dtype t) {
    return bias == FLUX_OFF ? NULL : flux_full_shape(s, 0.0, t);
}

/* An input as a layer of dtype `want` takes it; NULL, with an error, for a tuple. */
static flux_tensor *flux__input(flux_layer *m, flux_tensor *x, flux_dtype want) {
    if (x->op == FLUX__TUPLE) {
        flux__words line = flux__line_of(m);
        return (flux_tensor *)flux__fail("%s takes one input, got %d", line.s, x->nin);
    }
    const flux__dtype_row *have = &flux__dtypes[x->dtype], *to = &flux__dtypes[want];
    if (have->real && to->real && have->epsilon < to->epsilon) {
        flux__words line = flux__line_of(m);
        flux__note(FLUX_LOG_WARN, "layer.dtype", true,
                   "%s turns its %s input into %s, which its weights are; this is said once",
                   line.s, have->name, to->name);
    }
    return flux_to_dtype(x, want);
}

static bool flux__expect_dim(flux_layer *m, const flux_tensor *x, int dim, int64_t size) {
    if (dim < x->ndim && x->dim[dim] == size) return true;
    flux__words line = flux__line_of(m);
    flux__text got = flux__describe(x);
    flux__fail("%s expects dim %d of size %lld, got %s", line.s, dim, (long long)size, got.s);
    return false;
}

/* dim 0 stays, all others become one. */
static flux_tensor *flux__as_columns(flux_tensor *x) {
    int64_t dims[2] = { x->dim[0], 1 };
    for (int i = 1; i < x->ndim; i++) dims[1] *= x->dim[i];
    return flux_reshape_to(x, flux__shape(dims, 2));
}

/* Columns back to the shape of the input x, with another dim 0. */
static flux_tensor *flux__as_before(flux_tensor *y, const flux_tensor *x) {
    flux_shape s = flux__dims(x);
    if (!y || s.ndim == 2) return y;
    s.dim[0] = y->dim[0];
    return flux_reshape_to(y, s);
}

/* ---------------- Dense */

typedef struct flux__dense_layer {
    flux_layer base;
    flux_tensor *weight, *bias;
    flux_fn activation;
} flux__dense_layer;

static flux_tensor *flux__dense_call(flux_layer *self, flux_tensor *x) {
    flux__dense_layer *m = (flux__dense_layer *)self;
    flux_tensor *in = flux__input(self, x, (flux_dtype)m->weight->dtype);
    if (!in || !flux__expect_dim(self, x, 0, m->weight->dim[1])) return NULL;
    flux_tensor *y = flux_matmul(m->weight, in->ndim > 2 ? flux__as_columns(in) : in);
    if (m->bias && y) y = flux_add(y, m->bias);
    y = flux__activate(m->activation, y);
    return in->ndim > 2 ? flux__as_before(y, in) : y;
}

static size_t flux__dense_text(flux_layer *self, char *out, size_t n) {
    const flux__dense_layer *m = (const flux__dense_layer *)self;
    flux__words l;
    l.s[0] = 0;
    flux__say(&l, "Dense(%lld => %lld", (long long)m->weight->dim[1], (long long)m->weight->dim[0]);
    if (m->activation) flux__say(&l, ", %s", flux__fn_name(m->activation));
    flux__say(&l, m->bias ? ")" : "; bias=false)");
    return flux__line_out(&l, out, n);
}
FLUX_LAYER_TEXT(flux__dense_layer, "Dense", flux__dense_call, flux__dense_text, FLUX_PARAM(weight),
                FLUX_PARAM(bias))

/* A weight or bias of the user's own must fit what was said besides. */
static bool flux__check_own(flux_dense_opts *o) {
    flux_tensor *w = o->weight, *b = o->b;
    int64_t out = w && w->op != FLUX__TUPLE && w->ndim == 2 ? w->dim[0] : o->out;
    if (w && (w->op == FLUX__TUPLE || w->ndim != 2 || !flux__dtypes[w->dtype].real ||
              (o->in && o->in != w->dim[1]) || (o->out && o->out != w->dim[0]))) {
        flux__text t = flux__describe(w);
        flux__fail("dense: .weight must be a floating matrix, out x in%s, not %s",
                   o->in || o->out ? " as given" : "", t.s);
        return false;
    }
    if (b && (b->op == FLUX__TUPLE || b->ndim != 1 || b->dim[0] != out || o->bias == FLUX_OFF)) {
        flux__text t = flux__describe(b);
        flux__fail("dense: .b must be a vector of %lld, and .bias not off; it is %s",
                   (long long)out, t.s);
        return false;
    }
    if (w) o->in = w->dim[1];
    o->out = out;
    return true;
}

FLUX_DEF flux_layer *flux_dense_with(flux_dense_opts o) {
    flux__dense_layer m;
    memset(&m, 0, sizeof m);
    if (!flux__check_own(&o)) return NULL;
    int64_t size[2] = { o.out, o.in };
    m.activation = o.activation;
    if (!flux__check_activation("dense", &m.activation) || !flux__check_sizes("dense", 2, size))
        return NULL;
    int h = flux__hide();
    m.weight = o.weight ? o.weight
                        : flux__make_weight("dense", o.init ? o.init : flux_glorot_uniform,
                                            flux__shape(size, 2));
    flux_dtype t = m.weight ? (flux_dtype)m.weight->dtype : FLUX_F32;
    m.bias = o.b ? flux_to_dtype(o.b, t) : flux__make_bias(o.bias, flux__shape(size, 1), t);
    bool good = m.weight && (m.bias || o.bias == FLUX_OFF);
    return (flux_layer *)flux__reveal_object(h, good ? flux__layer_new(flux__dense_layer_type(), &m)
                                                     : NULL);
}

/* ---------------- Scale */

typedef struct flux__scale {
    flux_layer base;
    flux_tensor *scale, *bias;
    flux_fn activation;
} flux__scale;

static flux_tensor *flux__scale_call(flux_layer *self, flux_tensor *x) {
    flux__scale *m = (flux__scale *)self;
    flux_tensor *in = flux__input(self, x, (flux_dtype)m->scale->dtype);
    for (int i = 0; in && i < m->scale->ndim; i++) {
        int64_t want = m->scale->dim[i], have = i < in->ndim ? in->dim[i] : 1;
        if (want != 1 && have != 1 && !flux__expect_dim(self, in, i, want)) return NULL;
    }
    flux_tensor *y = in ? flux_mul(in, m->scale) : NULL;
    if (m->bias && y) y = flux_add(y, m->bias);
    return flux__activate(m->activation, y);
}

static size_t flux__scale_text(flux_layer *self, char *out, size_t n) {
    const flux__scale *m = (const flux__scale *)self;
    flux__words l;
    l.s[0] = 0;
    flux__say(&l, "Scale(");
    flux__say_dims(&l, m->scale->dim, m->scale->ndim);
    if (m->activation) flux__say(&l, ", %s", flux__fn_name(m->activation));
    flux__say(&l, m->bias ? ")" : "; bias=false)");
    return flux__line_out(&l, out, n);
}
FLUX_LAYER_TEXT(flux__scale, "Scale", flux__scale_call, flux__scale_text, FLUX_PARAM(scale),
                FLUX_PARAM(bias))

FLUX_DEF flux_layer *flux_scale_with(flux_scale_opts o) {
    flux__scale m;
    memset(&m, 0, sizeof m);
    m.activation = o.activation;
    if (o.size.ndim < 1)
        return (flux_layer *)flux__fail("scale: .size is missing, as in flux_scale(FLUX_SHAPE(3))");
    if (!flux__check_shape("scale", &o.size) ||
        !flux__check_sizes("scale", o.size.ndim, o.size.dim))
        return NULL;
    if (!flux__check_activation("scale", &m.activation)) return NULL;
    int h = flux__hide();
    m.scale = flux__make_weight("scale", o.init ? o.init : flux_ones32, o.size);
    m.bias = flux__make_bias(o.bias, o.size, m.scale ? (flux_dtype)m.scale->dtype : FLUX_F32);
    bool good = m.scale && (m.bias || o.bias == FLUX_OFF);
    return (flux_layer *)flux__reveal_object(h,
                                             good ? flux__layer_new(flux__scale_type(), &m) : NULL);
}

/* ---------------- Bilinear */

typedef struct flux__bilinear {
    flux_layer base;
    flux_tensor *weight, *bias;
    flux_fn activation;
} flux__bilinear;

/* For each column, W folded with y is an out x in1 matrix, which x is multiplied by:
   two products, the second batched. */
static flux_tensor *flux__bilinear_columns(flux_tensor *w, flux_tensor *x, flux_tensor *y) {
    int64_t out = w->dim[0], in = w->dim[1], n = x->dim[1];
    int64_t flat[2] = { out * in, w->dim[2] }, three[3] = { out, in, n }, column[3] = { in, 1, n },
            two[2] = { out, n };
    flux_tensor *wy = flux_matmul(flux_reshape_to(w, flux__shape(flat, 2)), y);
    flux_tensor *z = flux_matmul(flux_reshape_to(wy, flux__shape(three, 3)),
                                 flux_reshape_to(x, flux__shape(column, 3)));
    return flux_reshape_to(z, flux__shape(two, 2));
}

static flux_tensor *flux__bilinear_call(flux_layer *self, flux_tensor *x) {
    flux__bilinear *m = (flux__bilinear *)self;
    flux_tensor *a = flux_nth(x, 0), *b = flux_count(x) > 1 ? flux_nth(x, 1) : a;
    flux__words line = flux__line_of(self);
    if (flux_count(x) > 2)
        return (flux_tensor *)flux__fail("%s takes one or two inputs, got %d", line.s,
                                         flux_count(x));
    a = a ? flux__input(self, a, (flux_dtype)m->weight->dtype) : NULL;
    b = a && b ? flux__input(self, b, (flux_dtype)m->weight->dtype) : NULL;
    if (!b || !flux__expect_dim(self, a, 0, m->weight->dim[1]) ||
        !flux__expect_dim(self, b, 0, m->weight->dim[2]))
        return NULL;
    bool same = a->ndim == b->ndim;
    for (int i = 1; i < a->ndim && same; i++) same = a->dim[i] == b->dim[i];
    if (!same) {
        flux__text ta = flux__describe(a), tb = flux__describe(b);
        return (flux_tensor *)flux__fail("%s: its inputs %s and %s differ in more than dim 0",
                                         line.s, ta.s, tb.s);
    }
    flux_tensor *z = flux__bilinear_columns(m->weight, flux__as_columns(a), flux__as_columns(b));
    if (m->bias && z) z = flux_add(z, m->bias);
    return flux__as_before(flux__activate(m->activation, z), a);
}

static size_t flux__bilinear_text(flux_layer *self, char *out, size_t n) {
    const flux__bilinear *m = (const flux__bilinear *)self;
    const int64_t *d = m->weight->dim;
    flux__words l;
    l.s[0] = 0;
    if (d[1] == d[2]) flux__say(&l, "Bilinear(%lld => %lld", (long long)d[1], (long long)d[0]);
    else
        flux__say(&l, "Bilinear((%lld, %lld) => %lld", (long long)d[1], (long long)d[2],
                  (long long)d[0]);
    if (m->activation) flux__say(&l, ", %s", flux__fn_name(m->activation));
    flux__say(&l, m->bias ? ")" : "; bias=false)");
    return flux__line_out(&l, out, n);
}
FLUX_LAYER_TEXT(flux__bilinear, "Bilinear", flux__bilinear_call, flux__bilinear_text,
                FLUX_PARAM(weight), FLUX_PARAM(bias))

FLUX_DEF flux_layer *flux_bilinear_with(flux_bilinear_opts o) {
    flux__bilinear m;
    memset(&m, 0, sizeof m);
    int64_t size[3] = { o.out, o.in1, o.in2 };
    m.activation = o.activation;
    if (!flux__check_activation("bilinear", &m.activation) ||
        !flux__check_sizes("bilinear", 3, size))
        return NULL;
    int h = flux__hide();
    m.weight =
        flux__make_weight("bilinear", o.init ? o.init : flux_glorot_uniform, flux__shape(size, 3));
    m.bias = flux__make_bias(o.bias, flux__shape(size, 1),
                             m.weight ? (flux_dtype)m.weight->dtype : FLUX_F32);
    bool good = m.weight && (m.bias || o.bias == FLUX_OFF);
    return (flux_layer *)flux__reveal_object(h, good ? flux__layer_new(flux__bilinear_type(), &m)
                                                     : NULL);
}

/* ---------------- Embedding */

typedef struct flux__embedding {
    flux_layer base;
    flux_tensor *weight;
    int64_t padding;                      /* -1: none */
} flux__embedding;

/* Whether each number of 0 ... n-1, along dim, is not `which`: bool. */
static flux_tensor *flux__all_but(int64_t n, int dim, int64_t which) {
    return flux_ne(flux__iota(n, dim), (double)which);
}

/* The padding column gets no gradient because what comes out of it is set to 0. */
static flux_tensor *flux__embedding_call(flux_layer *self, flux_tensor *x) {
    flux__embedding *m = (flux__embedding *)self;
    flux_dtype t = (flux_dtype)m->weight->dtype;
    bool masked = m->padding >= 0;
    if (x->op == FLUX__TUPLE || flux__dtypes[x->dtype].real) {
        flux__words line = flux__line_of(self);
        flux__text got = flux__describe(x);
        return (flux_tensor *)flux__fail("%s takes integer indices or bool columns, got %s", line.s,
                                         x->op == FLUX__TUPLE ? "a tuple" : got.s);
    }
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
    flux__words l;
    l.s[0] = 0;
    flux__say(&l, "Embedding(%lld => %lld", (long long)m->weight->dim[1],
              (long long)m->weight->dim[0]);
    if (m->padding >= 0) flux__say(&l, ", padding_idx=%lld", (long long)m->padding);
    flux__say(&l, ")");
    return flux__line_out(&l, out, n);
}
FLUX_LAYER_TEXT(flux__embedding, "Embedding", flux__embedding_call, flux__embedding_text,
                FLUX_PARAM(weight))

FLUX_DEF flux_layer *flux_embedding_with(flux_embedding_opts o) {
    flux__embedding m;
    memset(&m, 0, sizeof m);
    int64_t size[2] = { o.out, o.in };
    bool padded = o.pad == FLUX_ON || (o.pad == FLUX_DEFAULT && o.padding_idx != 0);
    if (!flux__check_sizes("embedding", 2, size)) return NULL;
    if (padded && (o.padding_idx < 0 || o.padding_idx >= o.in))
        return (flux_layer *)flux__fail("embedding: .padding_idx is %lld, indices are 0 to %lld",
                                        (long long)o.padding_idx, (long long)o.in - 1);
    m.padding = padded ? o.padding_idx : -1;
    int h = flux__hide();
    m.weight = flux__make_weight("embedding", o.init ? o.init : flux_randn32, flux__shape(size, 2));
    if (m.weight && padded) {
        flux__block b = flux__nograd_enter();
        m.weight = flux_where(
            flux_to_tensor(m.weight->device, flux__all_but(o.in, 1, o.padding_idx)), m.weight, 0.0);
        flux__nograd_leave(&b);
    }
    return (flux_layer *)flux__reveal_object(
        h, m.weight ? flux__layer_new(flux__embedding_type(), &m) : NULL);
}

/* ---------------- LayerNorm */

static flux_reduce_opts flux__over(flux_tensor *x, const flux_shape *dims) {
    flux_reduce_opts o;
    int d[FLUX_MAX_DIMS] = { 0 };
    memset((void *)&o, 0, sizeof o);
    for (int i = 0; i < dims->ndim && i < FLUX_MAX_DIMS; i++) d[i] = (int)dims->dim[i];
    o.x = x;
    o.d0 = d[0], o.d1 = d[1], o.d2 = d[2], o.d3 = d[3], o.d4 = d[4], o.d5 = d[5], o.d6 = d[6],
    o.d7 = d[7];
    return o;
}

/* Half formats are normalised in float32, integers too: a variance of them would
   overflow. */
FLUX_DEF flux_tensor *flux_normalise(flux_tensor *x, flux_shape dims, double eps) {
    if (!flux__check_operands("normalise", 1, &x)) return NULL;
    if (!(eps >= 0) || !flux__finite(eps))
        return (flux_tensor *)flux__fail("normalise: eps is %g", eps);
    if (dims.ndim < 1 || dims.ndim > FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("normalise: %d dims to normalise over", dims.ndim);
    for (int i = 0; i < dims.ndim; i++)
        if (dims.dim[i] < 0 || dims.dim[i] >= x->ndim) {
            flux__text t = flux__describe(x);
            return (flux_tensor *)flux__fail("normalise: %s has no dim %lld", t.s,
                                             (long long)dims.dim[i]);
        }
    flux_dtype t = flux__dtypes[x->dtype].real ? (flux_dtype)x->dtype : FLUX_F32;
    int h = flux__hide();
    flux_tensor *in = flux_to_dtype(x, t == FLUX_F64 ? FLUX_F64 : FLUX_F32);
    flux_tensor *centred = flux_sub(in, flux_mean_over(dims.ndim, flux__over(in, &dims)));
    flux_tensor *var = flux_mean_over(dims.ndim, flux__over(flux_square(centred), &dims));
    return flux__reveal(h, flux_to_dtype(flux_mul(centred, flux_rsqrt(flux_add(var, eps))), t));
}

typedef struct flux__layernorm {
    flux_layer base;
    flux_layer *diag;
    flux_fn activation;
    double eps;
    flux_shape size;
} flux__layernorm;

static flux_tensor *flux__layernorm_call(flux_layer *self, flux_tensor *x) {
    flux__layernorm *m = (flux__layernorm *)self;
    const flux__scale *diag = (const flux__scale *)m->diag;
    flux_dtype own = diag                          ? (flux_dtype)diag->scale->dtype
                     : flux__dtypes[x->dtype].real ? (flux_dtype)x->dtype
                                                   : FLUX_F32;
    flux_tensor *in = flux__input(self, x, own);
    flux_shape dims = flux__shape(NULL, 0);
    for (int i = 0; in && i < m->size.ndim; i++) {
        if (!flux__expect_dim(self, in, i, m->size.dim[i])) return NULL;
        dims.dim[dims.ndim++] = i;
    }
    flux_tensor *y = in ? flux_normalise(in, dims, m->eps) : NULL;
    return m->diag && y ? flux_call_layer(m->diag, y) : flux__activate(m->activation, y);
}

static size_t flux__layernorm_text(flux_layer *self, char *out, size_t n) {
    const flux__layernorm *m = (const flux__layernorm *)self;
    flux__words l;
    l.s[0] = 0;
    flux__say(&l, "LayerNorm(");
    flux__say_dims(&l, m->size.dim, m->size.ndim);
    if (m->activation) flux__say(&l, ", %s", flux__fn_name(m->activation));
    flux__say(&l, m->diag ? ")" : ", affine=false)");
    return flux__line_out(&l, out, n);
}
FLUX_LAYER_TEXT(flux__layernorm, "LayerNorm", flux__layernorm_call, flux__layernorm_text,
                FLUX_CHILD(diag))

FLUX_DEF flux_layer *flux_layernorm_with(flux_layernorm_opts o) {
    flux__layernorm m;
    flux_scale_opts affine;
    memset(&m, 0, sizeof m);
    memset((void *)&affine, 0, sizeof affine);
    m.activation = affine.activation = o.activation;
    m.size = affine.size = o.size;
    m.eps = o.eps > 0 || o.eps < 0 ? o.eps : 1e-5;
    if (!(o.eps >= 0) || !flux__finite(o.eps))
        return (flux_layer *)flux__fail("layernorm: .eps is %g", o.eps);
    if (o.size.ndim < 1)
        return (flux_layer *)flux__fail(
            "layernorm: .size is missing, as in flux_layernorm(FLUX_SHAPE(64))");
    if (!flux__check_shape("layernorm", &o.size) ||
        !flux__check_sizes("layernorm", o.size.ndim, o.size.dim))
        return NULL;
    if (!flux__check_activation("layernorm", &m.activation)) return NULL;
    int h = flux__hide();
    m.diag = o.affine == FLUX_OFF ? NULL : flux_scale_with(affine);
    bool good = m.diag || o.affine == FLUX_OFF;
    return (flux_layer *)flux__reveal_object(h, good ? flux__layer_new(flux__layernorm_type(), &m)
                                                     : NULL);
}

/* ---------------- Dropout and AlphaDropout */

typedef struct flux__dropout { flux_layer base; double p; flux_shape dims; } flux__dropout;

/* Which numbers of x are kept, each with probability 1-p; equal along the dims that
   are not named. */
static flux_tensor *flux__dropout_mask(flux__dropout *m, const flux_tensor *x) {
    flux_shape s = flux__dims(x);
    for (int i = 0; i < s.ndim && m->dims.ndim; i++) {
        bool varies = false;
        for (int k = 0; k < m->dims.ndim; k++) varies = varies || m->dims.dim[k] == i;
        if (!varies) s.dim[i] = 1;
    }
    for (int k = 0; k < m->dims.ndim; k++)
        if (m->dims.dim[k] >= s.ndim) {
            flux__words line = flux__line_of(&m->base);
            flux__text t = flux__describe(x);
            return (flux_tensor *)flux__fail("%s: the input %s has no dim %lld", line.s, t.s,
                                             (long long)m->dims.dim[k]);
        }
    return flux_gt(flux_to_tensor(x->device, flux_rand_shape(s, FLUX_F32)), m->p);
}

/* A float of what is dropped out of; NULL after an error, *active false where the
   layer is to do nothing. */
static flux_tensor *flux__dropout_input(flux__dropout *m, flux_tensor *x, bool *active) {
    *active = m->p > 0 && flux_training(&m->base);
    if (!*active) return x;
    return flux__input(&m->base, x, flux__dtypes[x->dtype].real ? (flux_dtype)x->dtype : FLUX_F32);
}

static flux_tensor *flux__dropout_call(flux_layer *self, flux_tensor *x) {
    flux__dropout *m = (flux__dropout *)self;
    bool active;
    x = flux__dropout_input(m, x, &active);
    if (!active || !x) return x;
    flux_tensor *keep =
        m->p < 1 ? flux__dropout_mask(m, x) : flux_full_shape(flux__shape(NULL, 0), 0.0, FLUX_BOOL);
    return keep ? flux_where(keep, m->p < 1 ? flux_mul(x, 1 / (1 - m->p)) : x, 0.0) : NULL;
}

/* What selu gives far below zero stands in for the dropped; a and b put mean and
   variance right again. */
static flux_tensor *flux__alphadropout_call(flux_layer *self, flux_tensor *x) {
    flux__dropout *m = (flux__dropout *)self;
    const double low = -1.7580993408473766;
    double p = m->p, a = 1 / sqrt((1 - p) * (1 + p * low * low)), b = -a * low * p;
    bool active;
    x = flux__dropout_input(m, x, &active);
    if (!active || !x) return x;
    if (!(p < 1)) return flux_where(flux_full_shape(flux__shape(NULL, 0), 0.0, FLUX_BOOL), x, 0.0);
    flux_tensor *keep = flux__dropout_mask(m, x);
    return keep ? flux_add(flux_mul(flux_where(keep, x, low), a), b) : NULL;
}

static size_t flux__dropout_text(flux_layer *self, char *out, size_t n) {
    const flux__dropout *m = (const flux__dropout *)self;
    flux__words l;
    l.s[0] = 0;
    flux__say(&l, "%s(%.10g", self->type->name, m->p);
    if (m->dims.ndim) flux__say(&l, m->dims.ndim > 1 ? ", dims=(" : ", dims=");
    flux__say_dims(&l, m->dims.dim, m->dims.ndim);
    if (m->dims.ndim > 1) flux__say(&l, ")");
    if (self->mode != FLUX_MODE_AUTO)
        flux__say(&l, ", active=%s", self->mode == FLUX_MODE_TRAIN ? "true" : "false");
    flux__say(&l, ")");
    return flux__line_out(&l, out, n);
}

static const flux_layer_type *flux__dropout_type(bool alpha) {
    static const flux_layer_type type = { "Dropout", flux__dropout_call, sizeof(flux__dropout),
                                          flux__no_fields, flux__dropout_text };
    static const flux_layer_type other = { "AlphaDropout", flux__alphadropout_call,
                                           sizeof(flux__dropout), flux__no_fields,
                                           flux__dropout_text };
    return alpha ? &other : &type;
}

static flux_layer *flux__dropout_new(const char *call, bool alpha, double p, flux_shape dims) {
    flux__dropout m;
    memset(&m, 0, sizeof m);
    if (!(p >= 0 && p <= 1))
        return (flux_layer *)flux__fail("%s: p is %g, which is not within 0 to 1", call, p);
    for (int i = 0; i < dims.ndim || dims.ndim < 0; i++)
        if (dims.ndim < 0 || dims.ndim > FLUX_MAX_DIMS || dims.dim[i] < 0 ||
            dims.dim[i] >= FLUX_MAX_DIMS)
            return (flux_layer *)flux__fail("%s: .dims names a dim that no tensor has", call);
    m.p = p;
    m.dims = dims;
    return flux__layer_new(flux__dropout_type(alpha), &m);
}

FLUX_DEF flux_layer *flux_dropout_with(flux_dropout_opts o) {
    return flux__dropout_new("dropout", false, o.p, o.dims);
}
FLUX_DEF flux_layer *flux_alphadropout(double p) {
    return flux__dropout_new("alphadropout", true, p, flux__shape(NULL, 0));
}

/* ------------------------------------------------------------------ 18. Activations
   Those that are not an operation of the table: compositions of operations, which
   the schedule fuses into one pass. Each keeps NaN, and none lets a branch that was
   not taken into the gradient (where(x > 0, x, exp(x) - 1) would: its other branch
   overflows, and 0 times infinity is NaN; so the branch sees min(x, 0)). */

/* An activation's input: floating; NULL, with an error, for NULL. */
static flux_tensor *flux__act_input(const char *call, flux_tensor *x) {
    if (!flux__check_operands(call, 1, &x)) return NULL;
    return flux__dtypes[x->dtype].real ? x : flux_to_dtype(x, FLUX_F32);
}

FLUX_DEF flux_tensor *flux_identity(flux_tensor *x) {
    return x ? x : (flux_tensor *)flux__null("identity", "x", x);
}

/* Functions of x alone: the name, and the value as an expression of x. */
#define FLUX__COMPOSED(name, value)                                                   \
    FLUX_DEF flux_tensor *flux_##name(flux_tensor *x) {                                 \
        int h = flux__hide();                                                           \
        x = flux__act_input(#name, x);                                                  \
        return flux__reveal(h, x ? value : NULL);                                       \
    }

/* scale (exp(min(x, 0) by) - 1) for x <= 0, else gain x. */
static flux_tensor *flux__exp_linear(flux_tensor *x, double scale, double by, double gain) {
    flux_tensor *low = flux_mul(flux_expm1(flux_mul(flux_min2(x, 0.0), by)), scale);
    return flux_where(flux_gt(x, 0.0), flux_mul(x, gain), low);
}

/* factor (x + 0.044715 x^3): what the two fast forms of gelu are functions of. Both
   are flat beyond 10. */
static flux_tensor *flux__gelu_inner(flux_tensor *x, double factor) {
    flux_tensor *c = flux_clamp(x, -10, 10);
    return flux_mul(c, flux_add(flux_mul(flux_square(c), 0.044715 * factor), factor));
}

FLUX__COMPOSED(hardsigmoid, flux_clamp(flux_div(flux_add(x, 3.0), 6.0), 0, 1))
FLUX__COMPOSED(logsigmoid, flux_neg(flux_softplus(flux_neg(x))))
FLUX__COMPOSED(hardtanh, flux_clamp(x, -1, 1))
FLUX__COMPOSED(relu6, flux_clamp(x, 0, 6))
FLUX__COMPOSED(selu,
               flux__exp_linear(x, 1.0507009873554805 * 1.6732632423543772, 1, 1.0507009873554805))
FLUX__COMPOSED(gelu_tanh,
               flux_mul(flux_mul(x, 0.5),
                        flux_add(flux_tanh(flux__gelu_inner(x, 0.7978845608028654)), 1.0)))
FLUX__COMPOSED(gelu_sigmoid, flux_mul(x, flux_sigmoid(flux__gelu_inner(x, 1.5957691216057308))))
FLUX__COMPOSED(gelu_erf,
               flux_mul(flux_mul(x, 0.5), flux_add(flux_erf(flux_mul(x, 0.7071067811865476)), 1.0)))
FLUX__COMPOSED(swish, flux_mul(x, flux_sigmoid(x)))
FLUX__COMPOSED(hardswish, flux_mul(x, flux_hardsigmoid(x)))
FLUX__COMPOSED(lisht, flux_mul(x, flux_tanh(x)))
FLUX__COMPOSED(logcosh, flux_sub(flux_add(x, flux_softplus(flux_mul(x, -2.0))), 0.6931471805599453))
FLUX__COMPOSED(mish, flux_mul(x, flux_tanh(flux_softplus(x))))
FLUX__COMPOSED(softsign, flux_div(x, flux_add(flux_abs(x), 1.0)))
FLUX__COMPOSED(tanhshrink, flux_sub(x, flux_tanh(x)))

FLUX_DEF flux_tensor *flux_gelu(flux_tensor *x) { return flux_gelu_tanh(x); }

/* Those with a parameter: in `value`, a is .alpha or its default. */
#define FLUX__COMPOSED_WITH(name, fallback, good, value)                                           \
    FLUX_DEF flux_tensor *flux_##name##_with(flux_act_opts o) {                                    \
        double a = o.alpha < 0 || o.alpha > 0 ? o.alpha : fallback;                                \
        if (!flux__finite(o.alpha) || !(good))                                                     \
            return (flux_tensor *)flux__fail(#name ": .alpha is %g", o.alpha);                     \
        int h = flux__hide();                                                                      \
        flux_tensor *x = flux__act_input(#name, o.x);                                              \
        return flux__reveal(h, x ? value : NULL);                                                  \
    }                                                                                              \
    FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *x) {                                         \
        return flux_##name##_with(flux__act_of(x));                                                \
    }

static flux_act_opts flux__act_of(flux_tensor *x) {
    flux_act_opts o;
    memset((void *)&o, 0, sizeof o);
    o.x = x;
    return o;
}

FLUX__COMPOSED_WITH(leakyrelu, 0.01, true, flux_where(flux_gt(x, 0.0), x, flux_mul(x, a)))
FLUX__COMPOSED_WITH(elu, 1.0, true, flux__exp_linear(x, a, 1, 1))
FLUX__COMPOSED_WITH(celu, 1.0, a > 0, flux__exp_linear(x, a, 1 / a, 1))
FLUX__COMPOSED_WITH(softshrink, 0.5, a > 0, flux_sub(x, flux_clamp(x, -a, a)))
FLUX__COMPOSED_WITH(trelu, 1.0, true, flux_where(flux_le(x, a), 0.0, x))

FLUX_DEF flux_tensor *flux_rrelu_with(flux_act_opts o) {
    bool given = o.lo < 0 || o.lo > 0 || o.hi < 0 || o.hi > 0;
    double lo = given ? o.lo : 1.0 / 8, hi = given ? o.hi : 1.0 / 3;
    if (!flux__finite(o.lo) || !flux__finite(o.hi) || lo > hi)
        return (flux_tensor *)flux__fail("rrelu: .lo is %g and .hi is %g", o.lo, o.hi);
    int h = flux__hide();
    flux_tensor *x = flux__act_input("rrelu", o.x);
    if (!x) return flux__reveal(h, NULL);
    flux_tensor *u = flux_to_dtype(
        flux_to_tensor(x->device, flux_rand_shape(flux__dims(x), FLUX_F32)), (flux_dtype)x->dtype);
    return flux__reveal(
        h, flux_where(flux_gt(x, 0.0), x, flux_mul(x, flux_add(flux_mul(u, hi - lo), lo))));
}

FLUX_DEF flux_tensor *(flux_rrelu)(flux_tensor *x) { return flux_rrelu_with(flux__act_of(x)); }

FLUX_DEF flux_tensor *flux_glu(flux_tensor *x, int dim) {
    if (!flux__check_operands("glu", 1, &x)) return NULL;
    if (dim < 0 || dim >= x->ndim || x->dim[dim] % 2) {
        flux__text t = flux__describe(x);
        return (flux_tensor *)flux__fail("glu: dim %d of %s can't be cut in two halves", dim, t.s);
    }
    int h = flux__hide();
    int64_t n = x->dim[dim];
    x = flux__act_input("glu", x);
    return flux__reveal(
        h, flux_mul(flux_slice(x, dim, 0, n / 2), flux_sigmoid(flux_slice(x, dim, n / 2, n))));
}

/* ------------------------------------------------------------------ 19. Losses
   A loss is a row: its name, its formula, and over what the formula has summed
   already. Defaults, checks, conversion of y and the aggregate stand in one function
   for all of them. Formulas see p = yhat and y, both of yhat's dtype, and never give
   0 * log(0), nor NaN in the gradient for it. */

typedef enum flux__loss_kind {
    FLUX__EACH_ELEMENT,
    FLUX__EACH_SAMPLE,
    FLUX__ONE_NUMBER
} flux__loss_kind;

typedef struct flux__loss_row {
    const char *name;
    flux_tensor *(*formula)(flux_tensor *p, flux_tensor *y, const flux_loss_opts *o);
    flux__loss_kind kind;                 /* EACH_SAMPLE: to be summed over the class dimension */
} flux__loss_row;

/* y log(q), which is 0 where y is 0 and q is not positive. */
static flux_tensor *flux__ylog(flux_tensor *y, flux_tensor *q) {
    flux_tensor *nothing = flux_and(flux_eq(y, 0.0), flux_le(q, 0.0));
    return flux_mul(y, flux_log(flux_where(nothing, 1.0, q)));
}

static flux_tensor *flux__one_minus(flux_tensor *x) { return flux_sub(1.0, x); }
static flux_tensor *flux__above0(flux_tensor *x) { return flux_max2(x, 0.0); }

#define FLUX__FORMULA(name, value)                                                            \
    static flux_tensor *flux__loss_##name(flux_tensor *p, flux_tensor *y,                     \
                                          const flux_loss_opts *o) {                          \
        (void)o;                                                                              \
        return value;                                                                         \
    }
FLUX__FORMULA(mae, flux_abs(flux_sub(p, y)))
FLUX__FORMULA(mse, flux_square(flux_sub(p, y)))
FLUX__FORMULA(msle,
              flux_square(flux_log(flux_div(flux_add(p, o->epsilon), flux_add(y, o->epsilon)))))
FLUX__FORMULA(crossentropy, flux_neg(flux__ylog(y, flux_add(p, o->epsilon))))
FLUX__FORMULA(logitbinarycrossentropy,
              flux_add(flux_mul(flux__one_minus(y), p), flux_softplus(flux_neg(p))))
FLUX__FORMULA(kldivergence, flux_sub(flux__ylog(y, y), flux__ylog(y, flux_add(p, o->epsilon))))
FLUX__FORMULA(poisson_loss, flux_sub(p, flux__ylog(y, p)))
FLUX__FORMULA(hinge_loss, flux_relu(flux__one_minus(flux_mul(p, y))))
FLUX__FORMULA(squared_hinge_loss, flux_square(flux_relu(flux__one_minus(flux_mul(p, y)))))

static flux_tensor *flux__loss_huber_loss(flux_tensor *p, flux_tensor *y, const flux_loss_opts *o) {
    flux_tensor *e = flux_abs(flux_sub(p, y)),
                *line = flux_mul(flux_sub(e, o->delta / 2), o->delta);
    return flux_where(flux_lt(e, o->delta), flux_mul(flux_square(e), 0.5), line);
}

/* A class that is masked out by a logit of -inf and has y = 0 costs nothing. */
static flux_tensor *flux__loss_logitcrossentropy(flux_tensor *p, flux_tensor *y,
                                                 const flux_loss_opts *o) {
    flux_shape dims = flux__shape(NULL, 0);
    dims.dim[dims.ndim++] = o->dim;
    flux_tensor *l = flux_logsoftmax_over(1, flux__over(p, &dims));
    flux_tensor *nothing = flux_and(flux_eq(y, 0.0), flux_le(l, -1e30));
    return flux_neg(flux_mul(y, flux_where(nothing, 0.0, l)));
}

static flux_tensor *flux__loss_binarycrossentropy(flux_tensor *p, flux_tensor *y,
                                                  const flux_loss_opts *o) {
    flux_tensor *yes = flux__ylog(y, flux_add(p, o->epsilon));
    return flux_neg(
        flux_add(yes, flux__ylog(flux__one_minus(y), flux_add(flux__one_minus(p), o->epsilon))));
}

static flux_tensor *flux__loss_focal_loss(flux_tensor *p, flux_tensor *y, const flux_loss_opts *o) {
    flux_tensor *q = flux_add(p, o->epsilon);
    flux_tensor *weight = flux_pow(flux__above0(flux__one_minus(q)), o->gamma);
    return flux_neg(flux_mul(weight, flux__ylog(y, q)));
}

static flux_tensor *flux__loss_binary_focal_loss(flux_tensor *p, flux_tensor *y,
                                                 const flux_loss_opts *o) {
    flux_tensor *right = flux_add(flux_mul(y, p), flux_mul(flux__one_minus(y), flux__one_minus(p)));
    right = flux_add(right, o->epsilon);
    return flux_neg(
        flux_mul(flux_pow(flux__above0(flux__one_minus(right)), o->gamma), flux_log(right)));
}

static flux_tensor *flux__loss_siamese_contrastive_loss(flux_tensor *p, flux_tensor *y,
                                                        const flux_loss_opts *o) {
    flux_tensor *apart = flux_square(flux__above0(flux_sub(o->margin, p)));
    return flux_add(flux_mul(flux__one_minus(y), flux_square(p)), flux_mul(y, apart));
}

static flux_tensor *flux__loss_dice_coeff_loss(flux_tensor *p, flux_tensor *y,
                                               const flux_loss_opts *o) {
    flux_tensor *both = flux_add(flux_mul((flux_sum)(flux_mul(y, p)), 2.0), o->smooth);
    flux_tensor *all = flux_add((flux_sum)(flux_add(flux_square(y), flux_square(p))), o->smooth);
    return flux__one_minus(flux_div(both, all));
}

static flux_tensor *flux__loss_tversky_loss(flux_tensor *p, flux_tensor *y,
                                            const flux_loss_opts *o) {
    flux_tensor *both = flux_mul(y, p);
    flux_tensor *wrong = flux_add(flux_mul(flux_mul(flux__one_minus(y), p), o->beta),
                                  flux_mul(flux_mul(y, flux__one_minus(p)), 1 - o->beta));
    return flux__one_minus(flux_div(flux_add((flux_sum)(both), 1.0),
                                    flux_add((flux_sum)(flux_add(both, wrong)), 1.0)));
}

static const flux__loss_row flux__losses[] = {
    { "mae", flux__loss_mae, FLUX__EACH_ELEMENT },
    { "mse", flux__loss_mse, FLUX__EACH_ELEMENT },
    { "msle", flux__loss_msle, FLUX__EACH_ELEMENT },
    { "huber_loss", flux__loss_huber_loss, FLUX__EACH_ELEMENT },
    { "crossentropy", flux__loss_crossentropy, FLUX__EACH_SAMPLE },
    { "logitcrossentropy", flux__loss_logitcrossentropy, FLUX__EACH_SAMPLE },
    { "binarycrossentropy", flux__loss_binarycrossentropy, FLUX__EACH_ELEMENT },
    { "logitbinarycrossentropy", flux__loss_logitbinarycrossentropy, FLUX__EACH_ELEMENT },
    { "kldivergence", flux__loss_kldivergence, FLUX__EACH_SAMPLE },
    { "poisson_loss", flux__loss_poisson_loss, FLUX__EACH_ELEMENT },
    { "hinge_loss", flux__loss_hinge_loss, FLUX__EACH_ELEMENT },
    { "squared_hinge_loss", flux__loss_squared_hinge_loss, FLUX__EACH_ELEMENT },
    { "dice_coeff_loss", flux__loss_dice_coeff_loss, FLUX__ONE_NUMBER },
    { "tversky_loss", flux__loss_tversky_loss, FLUX__ONE_NUMBER },
    { "focal_loss", flux__loss_focal_loss, FLUX__EACH_SAMPLE },
    { "binary_focal_loss", flux__loss_binary_focal_loss, FLUX__EACH_ELEMENT },
    { "siamese_contrastive_loss", flux__loss_siamese_contrastive_loss, FLUX__EACH_ELEMENT }
};
#define FLUX__LOSS_NUMBER(name) FLUX__LOSS_##name,
enum { FLUX__LOSSES(FLUX__LOSS_NUMBER) FLUX__LOSS_COUNT };   /* the rows stand in this order */

static double flux__or(double given, double fallback) {
    return given < 0 || given > 0 ? given : fallback;
}

static bool flux__check_loss_opts(const char *call, const flux_loss_opts *o, flux_dtype t) {
    const struct {
        const char *name;
        double value;
    } all[] = { { "epsilon", o->epsilon }, { "delta", o->delta },   { "gamma", o->gamma },
                { "margin", o->margin },   { "smooth", o->smooth }, { "beta", o->beta } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!flux__finite(all[i].value) || all[i].value < 0) {
            flux__fail("%s: .%s is %g", call, all[i].name, all[i].value);
            return false;
        }
    if (o->beta > 1) flux__fail("%s: .beta is %g, which is not within 0 to 1", call, o->beta);
    if ((unsigned)o->agg > FLUX_NONE) flux__fail("%s: .agg is %d", call, (int)o->agg);
    if (o->dim < 0 || o->dim >= FLUX_MAX_DIMS) flux__fail("%s: .dim is %d", call, o->dim);
    bool tiny = o->epsilon > 0 &&
                ((t == FLUX_F32 && o->epsilon < 1.2e-38) ||
                 (t == FLUX_BF16 && o->epsilon < 1.2e-38) || (t == FLUX_F16 && o->epsilon < 6e-8));
    if (tiny)
        flux__fail("%s: .epsilon is %g, which is 0 in %s", call, o->epsilon, flux__dtypes[t].name);
    return !(o->beta > 1 || (unsigned)o->agg > FLUX_NONE || o->dim < 0 || o->dim >= FLUX_MAX_DIMS ||
             tiny);
}

/* Trailing dimensions of 1 don't matter; a class dimension must be there. */
static bool flux__check_pair(const flux__loss_row *row, const flux_loss_opts *o) {
    const flux_tensor *p = o->yhat, *y = o->y;
    bool same = true;
    for (int i = 0; i < p->ndim || i < y->ndim; i++)
        same = same && flux_dim(p, i) == flux_dim(y, i);
    bool classes = row->kind != FLUX__EACH_SAMPLE || o->dim < p->ndim || o->dim >= FLUX_MAX_DIMS || p->ndim == 0;
    if (same && classes) return true;
    flux__text a = flux__describe(p), b = flux__describe(y);
    if (!same)
        flux__fail("%s: yhat is %s, y is %s: their shapes must be the same", row->name, a.s, b.s);
    else flux__fail("%s: yhat is %s and has no dim %d for the classes", row->name, a.s, o->dim);
    return false;
}

static flux_tensor *flux__loss(const flux__loss_row *row, flux_loss_opts o) {
    flux_tensor *both[2] = { o.yhat, o.y };
    if (!o.yhat || !o.y) return (flux_tensor *)flux__null(row->name, o.yhat ? "y" : "yhat", NULL);
    if (!flux__check_operands(row->name, 2, both)) return NULL;
    flux_dtype t = flux__dtypes[o.yhat->dtype].real ? (flux_dtype)o.yhat->dtype : FLUX_F32;
    if (!flux__check_pair(row, &o) || !flux__check_loss_opts(row->name, &o, t)) return NULL;
    o.epsilon = flux__or(o.epsilon, flux__dtypes[t].epsilon);
    o.delta = flux__or(o.delta, 1);
    o.gamma = flux__or(o.gamma, 2);
    o.margin = flux__or(o.margin, 1);
    o.smooth = flux__or(o.smooth, 1);
    o.beta = flux__or(o.beta, 0.7);
    int h = flux__hide();
    flux_tensor *p = flux_to_dtype(o.yhat, t), *y = flux_to_dtype(o.y, t);
    flux_tensor *e = p && y ? row->formula(p, y, &o) : NULL;
    flux_shape dims = flux__shape(NULL, 0);
    dims.dim[dims.ndim++] = o.dim;
    if (e && row->kind == FLUX__EACH_SAMPLE && e->ndim > 0)
        e = flux_sum_over(1, flux__over(e, &dims));
    if (e && row->kind != FLUX__ONE_NUMBER && o.agg != FLUX_NONE)
        e = o.agg == FLUX_SUM ? (flux_sum)(e) : (flux_mean)(e);
    return flux__reveal(h, e);
}

#define FLUX__DEFINE_LOSS(name)                                                               \
    FLUX_DEF flux_tensor *flux_##name##_with(flux_loss_opts o) {                              \
        return flux__loss(&flux__losses[FLUX__LOSS_##name], o);                               \
    }                                                                                         \
    FLUX_DEF flux_tensor *(flux_##name)(flux_tensor *yhat, flux_tensor *y) {                  \
        flux_loss_opts o;                                                                     \
        memset((void *)&o, 0, sizeof o);                                                              \
        o.yhat = yhat;                                                                        \
        o.y = y;                                                                              \
        return flux_##name##_with(o);                                                         \
    }
FLUX__LOSSES(FLUX__DEFINE_LOSS)

FLUX_DEF flux_tensor *flux_label_smoothing(flux_tensor *y, double alpha, int dim) {
    if (!flux__check_operands("label_smoothing", 1, &y)) return NULL;
    if (!(alpha > 0 && alpha < 1))
        return (flux_tensor *)flux__fail(
            "label_smoothing: alpha is %g, which is not between 0 and 1", alpha);
    if (dim < -1 || dim >= y->ndim) {
        flux__text t = flux__describe(y);
        return (flux_tensor *)flux__fail("label_smoothing: %s has no dim %d", t.s, dim);
    }
    int h = flux__hide();
    double share = alpha / (dim < 0 ? 2.0 : (double)(y->dim[dim] > 0 ? y->dim[dim] : 1));
    flux_tensor *x = flux__act_input("label_smoothing", y);
    return flux__reveal(h, x ? flux_add(flux_mul(x, 1 - alpha), share) : NULL);
}

/* ------------------------------------------------------------------ 20. Optimisers
   A rule is a row of a table: its hyper-parameters with their defaults, the tensors it keeps for each parameter, and a
   function that turns a gradient into what is to be subtracted, written with operations. The definitions are those of
   Optimisers.jl. A chain is a flat list of rows through which the gradient passes from left to right.
   A step says its result as scale * d: learning rates and bias corrections are numbers known before anything is
   computed, so they cost no pass over memory, and p - scale*d is one operation. Powers of beta are taken here in
   double from the step's count, so that two steps differ only in numbers and the schedule of the first serves all.

   Invariant: flux_update builds the new parameters and states of the whole model as one graph, has them computed
   together, and only then puts them in their places; whatever fails before that leaves model and state as they were.
   States are float32, or float64 for float64 parameters: in float16 the square of a small gradient is 0.
   Rejected: a fused loop per rule (the schedule fuses), states kept in the layers (a rule is not the model's concern),
   an update per parameter (a small model has many small ones). */

/* ---------------- hyper-parameters */

enum { FLUX__NONE, FLUX__ETA, FLUX__BETA1, FLUX__BETA2, FLUX__RHO, FLUX__LAMBDA, FLUX__EPSILON, FLUX__DELTA,
       FLUX__OMEGA, FLUX__NORM_P, FLUX__ELL1, FLUX__ELL2, FLUX__GAMMA1, FLUX__GAMMA2, FLUX__EVERY, FLUX__HYPERS };

typedef struct flux__hyper_row { const char *name; size_t at; double least, most; const char *want; } flux__hyper_row;
static const flux__hyper_row flux__hypers[FLUX__HYPERS] = {
    { "", 0, 0, 0, "" },
    { "eta", offsetof(flux_rule_opts, eta), 0, DBL_MAX, "0 or more" },
    { "beta", offsetof(flux_rule_opts, beta), 0, 1 - DBL_EPSILON, "at least 0 and less than 1" },
    { "beta", offsetof(flux_rule_opts, beta) + sizeof(double), 0, 1 - DBL_EPSILON, "at least 0 and less than 1" },
    { "rho", offsetof(flux_rule_opts, rho), 0, 1, "from 0 to 1" },
    { "lambda", offsetof(flux_rule_opts, lambda), 0, DBL_MAX, "0 or more" },
    { "epsilon", offsetof(flux_rule_opts, epsilon), 0, DBL_MAX, "0 or more" },
    { "delta", offsetof(flux_rule_opts, delta), DBL_MIN, HUGE_VAL, "more than 0" },
    { "omega", offsetof(flux_rule_opts, omega), DBL_MIN, HUGE_VAL, "more than 0" },
    { "p", offsetof(flux_rule_opts, p), DBL_MIN, HUGE_VAL, "more than 0" },
    { "ell", offsetof(flux_rule_opts, ell), DBL_MIN, 1, "more than 0 and at most 1" },
    { "ell", offsetof(flux_rule_opts, ell) + sizeof(double), 1, DBL_MAX, "1 or more" },
    { "gamma", offsetof(flux_rule_opts, gamma), 0, DBL_MAX, "0 or more" },
    { "gamma", offsetof(flux_rule_opts, gamma) + sizeof(double), DBL_MIN, HUGE_VAL, "more than 0" },
    { "n", 0, 1, INT_MAX, "1 or more" }
};

static double flux__hyper(const flux_rule_opts *o, int h) {
    double v;
    if (h == FLUX__EVERY) return o->n;
    memcpy(&v, (const char *)o + flux__hypers[h].at, sizeof v);
    return v;
}

static void flux__hyper_set(flux_rule_opts *o, int h, double v) {
    if (h == FLUX__EVERY) o->n = (int)v;
    else memcpy((char *)o + flux__hypers[h].at, &v, sizeof v);
}

/* ---------------- steps */

typedef struct flux__constants {          /* the numbers of one update, as operands */
    double v[24];
    flux_tensor *x[24];
    int n;
} flux__constants;

typedef struct flux__step {               /* of one rule for one parameter */
    flux_rule_opts o;
    flux__constants *shared;
    flux_tensor *p;                       /* the parameter, in the dtype of its states */
    flux_tensor *d;                       /* the gradient so far is scale * d; NULL: there is nothing to apply yet */
    double scale;
    bool measured;                        /* scale came from data: multiply always, so that the graph keeps its shape */
    int64_t t;                            /* 1 in the first step; what the step leaves here is kept */
    flux_tensor **s, **next;              /* the rule's states before and after (next NULL: unchanged) */
    flux_tensor *norm;                    /* ClipNorm's question */
} flux__step;

/* v as an operand; parameters mostly ask for the same few. */
static flux_tensor *flux__constant(const flux__step *k, double v) {
    flux__constants *c = k->shared;
    for (int i = 0; i < c->n; i++)
        if (c->v[i] == v) return c->x[i];
    flux_tensor *x = flux__number(v);
    if (x && c->n < 24) c->v[c->n] = v, c->x[c->n++] = x;
    return x;
}

/* The gradient as one tensor. */
static flux_tensor *flux__gradient_now(flux__step *k) {
    if (k->measured || k->scale != 1) k->d = flux__elementwise(FLUX__OP_MUL, k->d, flux__constant(k, k->scale), NULL);
    k->scale = 1;
    k->measured = false;
    return k->d;
}

/* keep old + (1 - keep) x, and a scale + b */
static flux_tensor *flux__blend(flux__step *k, flux_tensor *old, flux_tensor *x, double keep) {
    return flux__lerp(old, x, flux__constant(k, 1 - keep));
}
static flux_tensor *flux__scaled_sum(flux__step *k, flux_tensor *a, double scale, flux_tensor *b) {
    return flux__fma(a, flux__constant(k, scale), b);
}

static void flux__step_descent(flux__step *k) { k->scale *= k->o.eta; }

static void flux__step_momentum(flux__step *k) {
    k->scale *= k->o.eta;
    k->d = k->next[0] = flux__scaled_sum(k, k->s[0], k->o.rho, flux__gradient_now(k));
}

static void flux__step_nesterov(flux__step *k) {
    double rho = k->o.rho;
    k->scale *= k->o.eta;
    flux_tensor *g = flux__gradient_now(k);
    k->d = flux__scaled_sum(k, k->s[0], -rho * rho, flux_mul(g, 1 + rho));
    k->next[0] = flux_sub(flux_mul(k->s[0], rho), g);
}

static void flux__step_rmsprop(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *q = flux__blend(k, k->s[0], flux_square(g), k->o.rho);
    k->next[0] = q;
    k->d = flux_div(g, flux_add(flux_sqrt(q), flux__constant(k, k->o.epsilon)));
    k->scale = k->o.eta;
}

static void flux__step_rmsprop_centred(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *q = flux__blend(k, k->s[0], flux_square(g), k->o.rho);
    flux_tensor *l = flux__blend(k, k->s[1], g, k->o.rho), *spread = flux_max2(flux_sub(q, flux_square(l)), 0.0);
    k->next[0] = q;                       /* the spread of equal gradients rounds to less than 0: hence max2 */
    k->next[1] = l;
    k->d = flux_div(g, flux_add(flux_sqrt(spread), flux__constant(k, k->o.epsilon)));
    k->scale = k->o.eta;
}

static void flux__step_rprop(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *same = flux_mul(k->s[0], g), *step = k->s[1];
    flux_tensor *turned = flux_lt(same, 0.0);
    flux_tensor *more = flux_min2(flux_mul(step, k->o.ell[1]), k->o.gamma[1]);
    flux_tensor *less = flux_max2(flux_mul(step, k->o.ell[0]), k->o.gamma[0]);
    k->next[0] = flux_where(turned, 0.0, g);
    k->next[1] = flux_where(flux_gt(same, 0.0), more, flux_where(turned, less, step));
    k->d = flux_mul(k->next[1], flux_sign(k->next[0]));
}

/* 1 - beta^t for both betas: what the moments lack in their first steps. */
static double flux__lack(const flux__step *k, int which) { return 1 - pow(k->o.beta[which], (double)k->t); }

/* Adam's two moments into next[0] and next[1]; the gradient. */
static flux_tensor *flux__moments(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    k->next[0] = flux__blend(k, k->s[0], g, k->o.beta[0]);
    k->next[1] = flux__blend(k, k->s[1], flux_square(g), k->o.beta[1]);
    return g;
}

/* eta (m/c1) / (sqrt(v/c2) + epsilon), as eta sqrt(c2)/c1 times m / (sqrt(v) + epsilon sqrt(c2)). */
static void flux__adam_ratio(flux__step *k, flux_tensor *m, double c1, flux_tensor *v, double c2) {
    k->d = flux_div(m, flux_add(flux_sqrt(v), flux__constant(k, k->o.epsilon * sqrt(c2))));
    k->scale = k->o.eta * sqrt(c2) / c1;
}

static void flux__step_adam(flux__step *k) {
    flux__moments(k);
    flux__adam_ratio(k, k->next[0], flux__lack(k, 0), k->next[1], flux__lack(k, 1));
}

static void flux__step_adamw(flux__step *k) {
    double lambda = k->o.lambda;
    flux__step_adam(k);
    if (lambda == 0) return;
    if (k->o.couple != FLUX_OFF) lambda *= k->o.eta;
    k->d = flux__scaled_sum(k, k->p, lambda, flux__gradient_now(k));
}

static void flux__step_lion(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    double b1 = k->o.beta[0], b2 = k->o.beta[1];
    k->next[0] = flux__blend(k, g, k->s[0], b2);                  /* beta2 weighs the gradient, as in Optimisers.jl */
    k->d = flux_sign(flux__scaled_sum(k, g, b2 - b1, flux_mul(k->next[0], b1)));
    k->scale = k->o.eta;
}

static void flux__step_radam(flux__step *k) {
    double b2 = pow(k->o.beta[1], (double)k->t), most = 2 / (1 - k->o.beta[1]) - 1;
    double rho = most - 2 * (double)k->t * b2 / (1 - b2);
    flux__moments(k);
    if (rho > 4) {
        flux__adam_ratio(k, k->next[0], flux__lack(k, 0), k->next[1], 1 - b2);
        k->scale *= sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
    } else {
        k->d = k->next[0];
        k->scale = k->o.eta / flux__lack(k, 0);
    }
}

static void flux__step_adamax(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    k->next[0] = flux__blend(k, k->s[0], g, k->o.beta[0]);
    k->next[1] = flux_max2(flux_mul(k->s[1], k->o.beta[1]), flux_abs(g));
    k->d = flux_div(k->next[0], flux_add(k->next[1], flux__constant(k, k->o.epsilon)));
    k->scale = k->o.eta / flux__lack(k, 0);
}

static void flux__step_oadam(flux__step *k) {
    flux__step_adam(k);
    k->next[2] = flux__gradient_now(k);
    k->d = flux_sub(flux_mul(k->next[2], 2), k->s[2]);
}

static void flux__step_adagrad(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k);
    k->next[0] = flux__fma(g, g, k->s[0]);
    k->d = flux_div(g, flux_add(flux_sqrt(k->next[0]), flux__constant(k, k->o.epsilon)));
    k->scale = k->o.eta;
}

static void flux__step_adadelta(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *q = flux__blend(k, k->s[0], flux_square(g), k->o.rho);
    flux_tensor *e = flux__constant(k, k->o.epsilon);
    k->next[0] = q;
    k->d = flux_mul(g, flux_sqrt(flux_div(flux_add(k->s[1], e), flux_add(q, e))));
    k->next[1] = flux__blend(k, k->s[1], flux_square(k->d), k->o.rho);
}

static void flux__step_amsgrad(flux__step *k) {
    flux__moments(k);
    k->next[2] = flux_max2(k->s[2], k->next[1]);
    flux__adam_ratio(k, k->next[0], 1, k->next[2], 1);
}

static void flux__step_nadam(flux__step *k) {
    double b1 = k->o.beta[0], next = 1 - pow(b1, (double)k->t + 1);
    flux_tensor *g = flux__moments(k);
    flux_tensor *m = flux__scaled_sum(k, k->next[0], b1 / next, flux_mul(g, (1 - b1) / flux__lack(k, 0)));
    flux__adam_ratio(k, m, 1, k->next[1], flux__lack(k, 1) / k->o.beta[1]);
}

static void flux__step_adabelief(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *m = flux__blend(k, k->s[0], g, k->o.beta[0]);
    k->next[0] = m;
    flux_tensor *s = flux__blend(k, k->s[1], flux_square(flux_sub(g, m)), k->o.beta[1]);
    k->next[1] = flux_add(s, flux__constant(k, k->o.epsilon));
    flux__adam_ratio(k, m, flux__lack(k, 0), k->next[1], flux__lack(k, 1));
}

static void flux__step_weightdecay(flux__step *k) {
    k->d = flux__scaled_sum(k, k->p, k->o.lambda, flux__gradient_now(k));
}

static void flux__step_signdecay(flux__step *k) {
    k->d = flux__scaled_sum(k, flux_sign(k->p), k->o.lambda, flux__gradient_now(k));
}

static void flux__step_clipgrad(flux__step *k) {
    k->d = flux_clamp(flux__gradient_now(k), -k->o.delta, k->o.delta);
}

/* Only asks for the norm; flux__clip_norms answers, once all norms have been computed together. */
static void flux__step_clipnorm(flux__step *k) {
    double p = k->o.p;
    flux_tensor *size = p == 2 ? k->d : flux_abs(k->d);
    if (p == 2) k->norm = (flux_norm)(size);
    else if (p > DBL_MAX) k->norm = (flux_max)(size);
    else k->norm = flux_pow((flux_sum)(flux_pow(size, p)), 1 / p);
}

static void flux__step_accumgrad(flux__step *k) {
    flux_tensor *g = flux__gradient_now(k), *sum = k->t > 1 ? flux_add(k->s[0], g) : k->o.n > 1 ? flux_copy(g) : g;
    k->d = k->t >= k->o.n ? sum : NULL;
    k->scale = 1 / (double)k->t;
    if (k->d) k->t = 0;                   /* the next one starts afresh, whatever the sum holds */
    else k->next[0] = sum;
}

/* ---------------- the table of rules */

typedef struct flux__rule_row {
    const char *name;
    void (*step)(flux__step *k);
    bool counts;                          /* needs to know which step it is */
    struct { const char *name; int start; } state[3];   /* kept per parameter; starts at that hyper-parameter, or 0 */
    struct { int hyper; double value; } has[7];   /* defaults, in printed order; the first prints without its name */
} flux__rule_row;

#define FLUX__M_V { { "m", 0 }, { "v", 0 }, { NULL, 0 } }
#define FLUX__BETAS(beta1, beta2) { FLUX__BETA1, beta1 }, { FLUX__BETA2, beta2 }
#define FLUX__ADAM_HAS(beta1, beta2, epsilon) \
    { { FLUX__ETA, 1e-3 }, FLUX__BETAS(beta1, beta2), { FLUX__EPSILON, epsilon }, { 0, 0 } }
#define FLUX__NO_STATE { { NULL, 0 } }
#define FLUX__RMS_HAS { { FLUX__ETA, 1e-3 }, { FLUX__RHO, 0.9 }, { FLUX__EPSILON, 1e-8 }, { 0, 0 } }

static const flux__rule_row flux__rule_rows[] = {
    { "", NULL, false, FLUX__NO_STATE, { { 0, 0 } } },
    { "Descent", flux__step_descent, false, FLUX__NO_STATE, { { FLUX__ETA, 0.1 }, { 0, 0 } } },
    { "Momentum", flux__step_momentum, false, { { "velocity", 0 } }, { { FLUX__ETA, 0.01 }, { FLUX__RHO, 0.9 }, { 0, 0 } } },
    { "Nesterov", flux__step_nesterov, false, { { "velocity", 0 } }, { { FLUX__ETA, 1e-3 }, { FLUX__RHO, 0.9 }, { 0, 0 } } },
    { "RMSProp", flux__step_rmsprop, false, { { "square", 0 } }, FLUX__RMS_HAS },
    { "RMSProp", flux__step_rmsprop_centred, false, { { "square", 0 }, { "mean", 0 } }, FLUX__RMS_HAS },
    { "Rprop", flux__step_rprop, false, { { "gradient", 0 }, { "step", FLUX__ETA } },
      { { FLUX__ETA, 1e-3 }, { FLUX__ELL1, 0.5 }, { FLUX__ELL2, 1.2 }, { FLUX__GAMMA1, 1e-6 },
        { FLUX__GAMMA2, 50 }, { 0, 0 } } },
    { "Adam", flux__step_adam, true, FLUX__M_V, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "AdamW", flux__step_adamw, true, FLUX__M_V,
      { { FLUX__ETA, 1e-3 }, FLUX__BETAS(0.9, 0.999), { FLUX__LAMBDA, 0 }, { FLUX__EPSILON, 1e-8 }, { 0, 0 } } },
    { "Lion", flux__step_lion, false, { { "m", 0 } }, { { FLUX__ETA, 1e-3 }, FLUX__BETAS(0.9, 0.999), { 0, 0 } } },
    { "RAdam", flux__step_radam, true, FLUX__M_V, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "AdaMax", flux__step_adamax, true, { { "m", 0 }, { "u", 0 } }, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "OAdam", flux__step_oadam, true, { { "m", 0 }, { "v", 0 }, { "last", 0 } }, FLUX__ADAM_HAS(0.5, 0.9, 1e-8) },
    { "AdaGrad", flux__step_adagrad, false, { { "square", FLUX__EPSILON } },
      { { FLUX__ETA, 0.1 }, { FLUX__EPSILON, 1e-8 }, { 0, 0 } } },
    { "AdaDelta", flux__step_adadelta, false, { { "square", 0 }, { "delta", 0 } },
      { { FLUX__RHO, 0.9 }, { FLUX__EPSILON, 1e-8 }, { 0, 0 } } },
    { "AMSGrad", flux__step_amsgrad, false, { { "m", FLUX__EPSILON }, { "v", FLUX__EPSILON }, { "vmax", FLUX__EPSILON } },
      FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "NAdam", flux__step_nadam, true, FLUX__M_V, FLUX__ADAM_HAS(0.9, 0.999, 1e-8) },
    { "AdaBelief", flux__step_adabelief, true, { { "m", 0 }, { "s", 0 } }, FLUX__ADAM_HAS(0.9, 0.999, 1e-16) },
    { "WeightDecay", flux__step_weightdecay, false, FLUX__NO_STATE, { { FLUX__LAMBDA, 5e-4 }, { 0, 0 } } },
    { "SignDecay", flux__step_signdecay, false, FLUX__NO_STATE, { { FLUX__LAMBDA, 1e-3 }, { 0, 0 } } },
    { "ClipGrad", flux__step_clipgrad, false, FLUX__NO_STATE, { { FLUX__DELTA, 10 }, { 0, 0 } } },
    { "ClipNorm", flux__step_clipnorm, false, FLUX__NO_STATE, { { FLUX__OMEGA, 10 }, { FLUX__NORM_P, 2 }, { 0, 0 } } },
    { "AccumGrad", flux__step_accumgrad, true, { { "sum", 0 } }, { { FLUX__EVERY, 1 }, { 0, 0 } } }
};

/* Kinds: a row's number (0: a rule that was never made), or a chain, whose parts are a flat list of rows; in front of
   them stands FLUX__RULE_MIXED if parameters of 16 bits are to have float32 masters. */
enum { FLUX__RULE_ROWS = sizeof flux__rule_rows / sizeof flux__rule_rows[0] };
enum { FLUX__RULE_CHAIN = FLUX__RULE_ROWS, FLUX__RULE_MIXED };

typedef struct flux__rule_list { flux__head head; int n; flux_rule at[1]; } flux__rule_list;

static void flux__rules_free(void *rules) { FLUX_FREE(rules); }

static flux_rule flux__bad_rule(void) {
    flux_rule r;
    memset((void *)&r, 0, sizeof r);
    r.kind = -1;
    return r;
}

/* ---------------- making rules */

static flux__text flux__call_name(const flux__rule_row *row) {      /* "Adam" is made by flux_adam */
    flux__text t;
    int i = 0;
    for (; row->name[i] && i < 20; i++) t.s[i] = (char)tolower((unsigned char)row->name[i]);
    t.s[i] = 0;
    return t;
}

static bool flux__row_has(const flux__rule_row *row, int h) {
    for (int i = 0; i < 7 && row->has[i].hyper; i++)
        if (row->has[i].hyper == h) return true;
    return false;
}

static bool flux__check_hyper(const char *call, const flux_rule_opts *o, int h) {
    double v = flux__hyper(o, h);
    const flux__hyper_row *row = &flux__hypers[h];
    if (v >= row->least && v <= row->most) return true;
    flux__fail("%s: %s is %g, but must be %s", call, row->name, v, row->want);
    return false;
}

/* Fills in defaults; false, with an error, for a value out of range or a field that the rule does not have. The first
   number may come without its name, and then arrives as eta: flux_clipnorm(1). */
static bool flux__resolve(flux_rule *r) {
    const flux__rule_row *row = &flux__rule_rows[r->kind];
    flux__text call = flux__call_name(row);
    int first = row->has[0].hyper;
    if (!flux__row_has(row, FLUX__ETA) && r->o.eta != 0 && flux__hyper(&r->o, first) == 0) {
        flux__hyper_set(&r->o, first, r->o.eta);
        r->o.eta = 0;
    }
    for (int h = 1; h < FLUX__HYPERS; h++)
        if (flux__hyper(&r->o, h) != 0 && !flux__row_has(row, h)) {
            flux__fail("%s: %s has no %s", call.s, row->name, flux__hypers[h].name);
            return false;
        }
    for (int i = 0; i < 7 && row->has[i].hyper; i++) {
        int h = row->has[i].hyper;
        if (flux__hyper(&r->o, h) == 0) flux__hyper_set(&r->o, h, row->has[i].value);
        else if (!flux__check_hyper(call.s, &r->o, h)) return false;
    }
    if (r->o.gamma[0] > r->o.gamma[1])
        flux__fail("%s: gamma is (%g, %g), not in order", call.s, r->o.gamma[0], r->o.gamma[1]);
    else if (r->o.couple && row->step != flux__step_adamw) flux__fail("%s: %s has no couple", call.s, row->name);
    else if (r->o.centred && row->step != flux__step_rmsprop_centred) flux__fail("%s: %s has no centred", call.s, row->name);
    else return true;
    return false;
}

FLUX_DEF flux_rule flux_rule_with(const char *name, flux_rule_opts o) {
    flux_rule r;
    if (!name) flux__null("rule", "name", name);
    r.parts = NULL;
    r.o = o;
    r.kind = 1;
    while (name && r.kind < FLUX__RULE_ROWS && strcmp(flux__rule_rows[r.kind].name, name) != 0) r.kind++;
    if (r.kind == FLUX__RULE_ROWS) flux__fail("rule: there is no rule named \"%.60s\"", name);
    if (!name || r.kind == FLUX__RULE_ROWS) return flux__bad_rule();
    if (o.centred && flux__rule_rows[r.kind].step == flux__step_rmsprop) r.kind++;
    return flux__resolve(&r) ? r : flux__bad_rule();
}

/* The rows that a rule stands for: how many, and where they are. -1, with an error: none. */
static int flux__rule_parts(const char *call, const flux_rule *r, const flux_rule **first) {
    *first = r;
    if (r->kind > 0 && r->kind < FLUX__RULE_ROWS) return 1;
    if (r->kind == FLUX__RULE_CHAIN && r->parts) {
        flux__rule_list *list = (flux__rule_list *)r->parts;
        *first = list->at;
        return list->n;
    }
    if (!flux_failed()) flux__fail("%s: this is not a rule (rules are made by flux_adam() and the like)", call);
    return -1;
}

static flux_rule flux__chain_rules(const char *call, int n, const flux_rule *rules, bool mixed) {
    const flux_rule *part;
    flux_rule r = flux__bad_rule();
    int total = 1;
    for (int i = 0; i < n; i++) {
        int k = flux__rule_parts(call, &rules[i], &part);
        if (k < 0) return r;
        total += k;
    }
    flux__rule_list *list = (flux__rule_list *)flux__zalloc(sizeof *list + (size_t)total * sizeof list->at[0]);
    if (!list) return r;
    list->head.kind = FLUX__RULES;
    list->head.refs = 1;
    for (int i = 0; i < n; i++)
        for (int k = flux__rule_parts(call, &rules[i], &part); k > 0; k--, part++)
            if (part->kind == FLUX__RULE_MIXED) mixed = true;
    if (mixed) list->at[list->n++].kind = FLUX__RULE_MIXED;
    for (int i = 0; i < n; i++)
        for (int k = flux__rule_parts(call, &rules[i], &part); k > 0; k--, part++)
            if (part->kind != FLUX__RULE_MIXED) list->at[list->n++] = *part;
    r.parts = flux__own(list);
    if (r.parts) r.kind = FLUX__RULE_CHAIN;
    return r;
}

FLUX_DEF flux_rule flux_optimiser_chain_of(int n, const flux_rule *rules) {
    return flux__chain_rules("optimiser_chain", n, rules, false);
}

FLUX_DEF flux_rule flux_accumgrad(int n, flux_rule rule) {
    flux_rule two[2];
    memset((void *)two, 0, sizeof two);
    two[0].o.n = n;
    if (n < 1) {
        flux__fail("accumgrad: n is %d, but must be 1 or more", n);
        return flux__bad_rule();
    }
    two[0] = flux_rule_with("AccumGrad", two[0].o);
    two[1] = rule;
    return flux__chain_rules("accumgrad", 2, two, false);
}

FLUX_DEF flux_rule flux_mixed_precision(flux_rule rule) { return flux__chain_rules("mixed_precision", 1, &rule, true); }

/* ---------------- the state of a model */

typedef struct flux__spot {               /* a place in the model that holds a trained tensor, in the order of the walk */
    char *path;
    flux_tensor **slot;                   /* as of the last walk */
    int leaf;
    bool view;                            /* holds a view of the leaf's tensor (a tied, transposed weight) */
    flux_tensor *next;                    /* during an update: the view that takes its place */
} flux__spot;

typedef struct flux__trainee {            /* a distinct trained tensor; its states and counts lie in arrays of the state */
    int spot;                             /* the first place that holds it, which names it */
    flux_tensor *p;                       /* as it was set up, or last updated */
    flux_tensor *master, *master_seen;    /* float32, of 16 bits; seen: as flux__state_fields last showed it */
    flux_tensor *steps;                   /* the counts as flux__state_fields showed them; where set, it holds them */
    flux_tensor *now, *next, *next_master;/* during an update: the parameter, and what takes its place */
    int owners;                           /* how many places of the model hold it */
    bool frozen;
} flux__trainee;

struct flux_state {
    flux__head head;
    int nrules, nspots, nleaves, nstates; /* nstates: of each leaf, over all rules */
    bool mixed, counts;
    flux_rule *rule;                      /* nrules of them, as flux_setup was given them */
    flux__spot *spot;
    flux__trainee *leaf;
    flux_rule_opts *o;                    /* leaf x rule: changed for a part of the model by flux_adjust_layer */
    int64_t *t, *t_next;                  /* leaf x rule: steps made, and after this one */
    flux_tensor **s, **next;              /* leaf x state, now and after the step */
    flux__step *step;                     /* by leaf */
    flux__constants constants;
    flux_tensor **olds, **news;           /* what flux__update_eval is given; room for all parameters and states */
    int *owners;
    char *path;                           /* room for the longest name of a state */
    size_t path_room;
};

static void flux__state_free(flux_state *s) {
    for (int i = 0; s->leaf && i < s->nleaves; i++) {
        flux_release(s->leaf[i].p);
        flux_release(s->leaf[i].master);
        flux_release(s->leaf[i].master_seen);
        flux_release(s->leaf[i].steps);
    }
    for (int i = 0; s->s && i < s->nleaves * s->nstates; i++) flux_release(s->s[i]);
    for (int i = 0; s->spot && i < s->nspots; i++)
        if (s->spot[i].path) FLUX_FREE(s->spot[i].path);
    void *arrays[] = { s->rule, s->spot, s->leaf, s->o, s->t, s->t_next, s->s, s->next, s->step,
                       s->olds, s->news, s->owners, s->path };
    for (int i = 0; i < (int)(sizeof arrays / sizeof *arrays); i++)
        if (arrays[i]) FLUX_FREE(arrays[i]);
    FLUX_FREE(s);
}

static const char *flux__leaf_path(const flux_state *s, int leaf) { return s->spot[s->leaf[leaf].spot].path; }

/* ---------------- setup */

typedef struct flux__spotting { flux_state *s; int room; bool ok; } flux__spotting;

static void flux__spot_add(flux_tensor **slot, const char *path, bool trained, const flux_layer *owner, void *user) {
    flux__spotting *w = (flux__spotting *)user;
    (void)owner;
    if (!trained || !w->ok) return;
    flux__spot *spot = (flux__spot *)flux__grow(w->s->spot, &w->room, w->s->nspots + 1, sizeof *spot);
    char *copy = spot ? (char *)flux__malloc(strlen(path) + 1) : NULL;
    if (spot) w->s->spot = spot;
    w->ok = copy != NULL;
    if (!copy) return;
    strcpy(copy, path);
    if (strlen(path) + 64 > w->s->path_room) w->s->path_room = strlen(path) + 64;
    spot += w->s->nspots++;
    spot->path = copy;
    spot->slot = slot;
    spot->view = false;
    spot->next = NULL;
    spot->leaf = -1;
}

/* The tensor that decides: what stands there, or the one that it is a view of and that stands elsewhere in the model. */
static flux_tensor *flux__spot_tensor(const flux_state *s, flux__pairs *there, int i) {
    flux_tensor *x = *s->spot[i].slot;
    bool tied = FLUX__IS_VIEW(x) && x->op != FLUX__DETACH && flux__pairs_find(there, x->base)->key;
    return tied ? x->base : x;
}

/* Gives each distinct tensor a leaf, in the order of the walk. */
static bool flux__find_leaves(flux_state *s) {
    flux__pairs there;
    bool fresh = false, ok = true;
    memset(&there, 0, sizeof there);
    for (int i = 0; i < s->nspots && ok; i++) ok = flux__pairs_at(&there, *s->spot[i].slot, &fresh) != NULL;
    s->leaf = (flux__trainee *)flux__zalloc((size_t)(s->nspots + 1) * sizeof *s->leaf);
    ok = ok && s->leaf;
    for (int i = 0; i < s->nspots && ok; i++) {          /* first those that hold the tensor itself: they name it */
        flux_tensor *x = *s->spot[i].slot;
        flux__pair *pair = flux__pairs_find(&there, x);
        if (flux__spot_tensor(s, &there, i) != x) continue;
        if (!pair->value) {
            s->leaf[s->nleaves].spot = i;
            s->leaf[s->nleaves].p = (flux_tensor *)flux_retain(x);
            pair->value = &s->leaf[s->nleaves++];
        }
        s->spot[i].leaf = (int)((flux__trainee *)pair->value - s->leaf);
    }
    for (int i = 0; i < s->nspots && ok; i++) {
        if (s->spot[i].leaf >= 0) continue;
        s->spot[i].view = true;
        s->spot[i].leaf = (int)((flux__trainee *)flux__pairs_find(&there, (*s->spot[i].slot)->base)->value - s->leaf);
    }
    flux__pairs_free(&there);
    return ok;
}

static bool flux__half(const flux_tensor *x) { return x->dtype == FLUX_F16 || x->dtype == FLUX_BF16; }
static flux_dtype flux__state_dtype(const flux_tensor *p) { return p->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32; }

/* A tensor of p's shape and place with v in every element. */
static flux_tensor *flux__full_like(flux_tensor *p, double v) {
    int h = flux__hide();
    flux_tensor *x = flux_full_shape(flux__dims(p), v, flux__state_dtype(p));
    x = x ? flux__move(x, p->device) : NULL;
    return flux__reveal(h, x ? flux_copy(x) : NULL);     /* a copy has memory, which updates can go on using */
}

/* Rule r's hyper-parameters for a leaf. In float16 a smaller epsilon would be 0. */
static flux_rule_opts flux__opts_of(const flux_state *s, int leaf, int r) {
    flux_rule_opts o = s->o[leaf * s->nrules + r];
    if (s->leaf[leaf].p->dtype == FLUX_F16 && !s->mixed && o.epsilon > 0 && o.epsilon < 1e-7) o.epsilon = 1e-7;
    return o;
}

static int flux__row_states(const flux__rule_row *row) {
    int n = 0;
    while (n < 3 && row->state[n].name) n++;
    return n;
}

/* Where each rule's states of a leaf start. */
static bool flux__start_leaf(flux_state *s, int leaf) {
    flux__trainee *l = &s->leaf[leaf];
    flux_tensor **at = s->s + (size_t)leaf * (size_t)s->nstates;
    for (int r = 0; r < s->nrules; r++) {
        const flux__rule_row *row = &flux__rule_rows[s->rule[r].kind];
        s->o[leaf * s->nrules + r] = s->rule[r].o;
        flux_rule_opts o = flux__opts_of(s, leaf, r);
        for (int i = 0; i < 3 && row->state[i].name; i++, at++) {
            double start = row->state[i].start ? flux__hyper(&o, row->state[i].start) : 0;
            *at = (flux_tensor *)flux_retain(flux__full_like(l->p, start));
            if (!*at) return false;
        }
    }
    if (!s->mixed || !flux__half(l->p)) return true;
    l->master = (flux_tensor *)flux_retain(flux_copy(flux_to_dtype(flux_detach(l->p), FLUX_F32)));
    return l->master != NULL;
}

static bool flux__state_arrays(flux_state *s) {
    size_t leaves = (size_t)s->nleaves + 1, rules = (size_t)s->nrules + 1, states = (size_t)s->nstates + 1;
    s->o = (flux_rule_opts *)flux__zalloc(leaves * rules * sizeof *s->o);
    s->t = (int64_t *)flux__zalloc(leaves * rules * sizeof *s->t);
    s->t_next = (int64_t *)flux__zalloc(leaves * rules * sizeof *s->t);
    s->s = (flux_tensor **)flux__zalloc(leaves * states * sizeof *s->s);
    s->next = (flux_tensor **)flux__zalloc(leaves * states * sizeof *s->next);
    s->step = (flux__step *)flux__zalloc(leaves * sizeof *s->step);
    s->olds = (flux_tensor **)flux__zalloc(leaves * (states + 2) * sizeof *s->olds);
    s->news = (flux_tensor **)flux__zalloc(leaves * (states + 2) * sizeof *s->news);
    s->owners = (int *)flux__zalloc(leaves * (states + 2) * sizeof *s->owners);
    s->path = (char *)flux__malloc(s->path_room + 1);
    return s->o && s->t && s->t_next && s->s && s->next && s->step && s->olds && s->news && s->owners && s->path;
}

/* Parameters and states have their values from the start: the second step then finds what the first one found. */
static bool flux__start_values(flux_state *s) {
    int n = 0, h = flux__hide();
    bool ok = true;
    for (int i = 0; i < s->nleaves && ok; i++) {
        ok = flux__start_leaf(s, i);
        s->olds[n++] = s->leaf[i].p;
        if (s->leaf[i].master) s->olds[n++] = s->leaf[i].master;
        for (int k = 0; k < s->nstates; k++) s->olds[n++] = s->s[i * s->nstates + k];
    }
    ok = ok && flux_eval_all(n, s->olds) == 0;
    flux__reveal_object(h, NULL);
    return ok;
}

static bool flux__take_rules(flux_state *s, const flux_rule *rule) {
    const flux_rule *part;
    int n = flux__rule_parts("setup", rule, &part);
    s->rule = n < 0 ? NULL : (flux_rule *)flux__zalloc((size_t)(n + 1) * sizeof *s->rule);
    for (int i = 0; i < n && s->rule; i++) {
        if (part[i].kind == FLUX__RULE_MIXED) {
            s->mixed = true;
            continue;
        }
        s->counts |= flux__rule_rows[part[i].kind].counts;
        s->nstates += flux__row_states(&flux__rule_rows[part[i].kind]);
        s->rule[s->nrules++] = part[i];
    }
    return s->rule != NULL;
}

FLUX_DEF flux_state *flux_setup(flux_rule rule, flux_layer *model) {
    if (!model) return (flux_state *)flux__null("setup", "model", model);
    flux_state *s = (flux_state *)flux__zalloc(sizeof *s);
    if (!s) return NULL;
    s->head.kind = FLUX__STATE;
    s->head.refs = 1;
    flux__spotting w = { s, 0, true };
    bool ok = flux__take_rules(s, &rule) && flux__walk_all(model, flux__spot_add, NULL, &w) && w.ok;
    ok = ok && flux__find_leaves(s) && flux__state_arrays(s) && flux__start_values(s);
    if (!ok) {
        flux__state_free(s);
        return NULL;
    }
    if (!s->nleaves)
        flux__note(FLUX_LOG_WARN, "setup.empty", false, "setup: this %s has no trainable parameters", model->type->name);
    return (flux_state *)flux__own(s);
}

/* ---------------- update: what the model holds now */

typedef struct flux__meeting { flux_state *s; int at; } flux__meeting;

static void flux__spot_meet(flux_tensor **slot, const char *path, bool trained, const flux_layer *owner, void *user) {
    flux__meeting *w = (flux__meeting *)user;
    flux_state *s = w->s;
    int i = w->at;
    if (!trained || flux_failed()) return;
    if (i >= s->nspots || strcmp(s->spot[i].path, path) != 0) {
        flux__fail("update: this model has the parameter %.100s where the one of flux_setup had %.100s", path,
                   i < s->nspots ? s->spot[i].path : "no more");
        return;
    }
    s->spot[i].slot = slot;
    if (owner->frozen) s->leaf[s->spot[i].leaf].frozen = true;
    w->at++;
}

/* Whether a layer that stands in the model twice has brought us to this very field before. */
static bool flux__spot_again(const flux_state *s, int spot) {
    for (int i = s->leaf[s->spot[spot].leaf].spot; i < spot; i++)
        if (s->spot[i].slot == s->spot[spot].slot) return true;
    return false;
}

/* Each leaf's tensor, and whether tied places still hold one tensor. */
static bool flux__check_ties(flux_state *s) {
    for (int i = 0; i < s->nleaves; i++) s->leaf[i].now = *s->spot[s->leaf[i].spot].slot;
    for (int i = 0; i < s->nspots; i++) {
        flux__trainee *l = &s->leaf[s->spot[i].leaf];
        flux_tensor *x = *s->spot[i].slot;
        if ((s->spot[i].view ? x->base : x) != l->now) {
            flux__fail("update: %.100s was tied to %.100s at flux_setup and is not any more", s->spot[i].path,
                       s->spot[l->spot].path);
            return false;
        }
        if (!s->spot[i].view && !flux__spot_again(s, i)) l->owners++;
    }
    return true;
}

/* Some tensor of the leaf's state, or NULL: tells where the state is. */
static flux_tensor *flux__state_sample(const flux_state *s, int leaf) {
    return s->leaf[leaf].master ? s->leaf[leaf].master : s->nstates ? s->s[leaf * s->nstates] : NULL;
}

/* A parameter that somebody has replaced since the last update must still fit its state. */
static bool flux__check_replaced(const flux_state *s, int leaf) {
    const flux__trainee *l = &s->leaf[leaf];
    flux__text a = flux__describe(l->p), b = flux__describe(l->now);
    if (!flux__same_dims(l->p, l->now) || l->p->dtype != l->now->dtype)
        flux__fail("update: %.100s is %s, but was %s at flux_setup", flux__leaf_path(s, leaf), b.s, a.s);
    for (int i = 0; i < s->nleaves; i++)
        if (i != leaf && s->leaf[i].now == l->now)
            flux__fail("update: %.100s is tied to %.100s now, and was not at flux_setup", flux__leaf_path(s, leaf),
                       flux__leaf_path(s, i));
    return !flux_failed();
}

static bool flux__check_device(const flux_state *s, int leaf) {
    const flux_tensor *held = flux__state_sample(s, leaf), *now = s->leaf[leaf].now;
    char where[96];
    if (!held || flux_device_equal(now->device, held->device)) return true;
    snprintf(where, sizeof where, "%s", flux_device_name(held->device));
    flux__fail("update: %.100s is on %s, but its optimiser state on %s; move the state with flux_to", flux__leaf_path(s, leaf),
               flux_device_name(now->device), where);
    return false;
}

/* What the model holds, leaf by leaf, and that it is the model of flux_setup. */
static bool flux__meet_model(flux_state *s, flux_layer *model) {
    flux__meeting w = { s, 0 };
    for (int i = 0; i < s->nleaves; i++) s->leaf[i].frozen = false, s->leaf[i].owners = 0;
    if (!flux__walk_all(model, flux__spot_meet, NULL, &w) || flux_failed()) return false;
    if (w.at < s->nspots) {
        flux__fail("update: this model has no parameter %.100s, which the one of flux_setup had", s->spot[w.at].path);
        return false;
    }
    if (!flux__check_ties(s)) return false;
    for (int i = 0; i < s->nleaves; i++)
        if (!flux__check_device(s, i) || (s->leaf[i].now != s->leaf[i].p && !flux__check_replaced(s, i))) return false;
    return true;
}

/* Counts that flux__state_fields has shown may have been loaded since: they are taken back. */
static bool flux__take_counts(flux_state *s) {
    for (int i = 0; i < s->nleaves; i++) {
        flux__trainee *l = &s->leaf[i];
        int64_t *t = &s->t[i * s->nrules];
        if (!l->steps) continue;
        if (flux_read(l->steps, t, (size_t)s->nrules * sizeof *t) != 0) return false;
        flux_assign(&l->steps, NULL);
        for (int r = 0; r < s->nrules; r++)
            if (t[r] < 0) t[r] = 0;
    }
    return true;
}

/* ---------------- update: the step */

/* The gradient by x, which likely stands at number `guess`. */
static flux_tensor *flux__gradient_by(const flux_grads *g, const flux_tensor *x, int guess) {
    if (guess < g->n && g->of[guess] == x) return g->grad[guess];
    for (int i = 0; i < g->n; i++)
        if (g->of[i] == x) return g->grad[i];
    return NULL;
}

/* A parameter that was replaced by another (loaded, say) while its master was not: the master is out of date. */
static bool flux__master_stale(const flux__trainee *l) {
    return l->now != l->p && (!l->master_seen || l->master_seen == l->master);
}

static bool flux__start_step(flux_state *s, int leaf, const flux_grads *g) {
    flux__trainee *l = &s->leaf[leaf];
    flux__step *k = &s->step[leaf];
    flux_tensor *d = l->frozen ? NULL : flux__gradient_by(g, l->now, leaf);
    memset((void *)k, 0, sizeof *k);
    k->shared = &s->constants;
    l->next = l->next_master = NULL;
    for (int i = 0; i < s->nstates; i++) s->next[leaf * s->nstates + i] = NULL;
    if (!d) return true;
    flux_dtype t = flux__state_dtype(l->now);
    k->d = flux_to_dtype(d, t);
    k->p = l->master && !flux__master_stale(l) ? l->master : flux_to_dtype(l->now, t);
    k->scale = 1;
    return k->d && k->p;
}

/* The norms that ClipNorm asked for, computed together; each gradient longer than omega is scaled down to it. */
static bool flux__clip_norms(flux_state *s) {
    int n = 0;
    for (int i = 0; i < s->nleaves; i++)
        if (s->step[i].norm) s->news[n++] = s->step[i].norm;
    if (flux_eval_all(n, s->news) != 0) return false;
    for (int i = 0; i < s->nleaves; i++) {
        flux__step *k = &s->step[i];
        if (!k->norm) continue;
        double norm = flux_item(k->norm) * fabs(k->scale);
        if (!(norm - norm == 0)) {
            flux__fail("clipnorm: the gradient of %.100s has the %g-norm %g", flux__leaf_path(s, i), k->o.p, norm);
            return false;
        }
        if (norm > k->o.omega) k->scale *= k->o.omega / norm;
        k->measured = true;
        k->norm = NULL;
    }
    return true;
}

/* Passes all gradients through rule number r, whose states are from number `at` on. */
static bool flux__apply_rule(flux_state *s, int r, int at) {
    const flux__rule_row *row = &flux__rule_rows[s->rule[r].kind];
    for (int i = 0; i < s->nleaves; i++) {
        flux__step *k = &s->step[i];
        if (!k->d) continue;
        k->o = flux__opts_of(s, i, r);
        k->t = s->t[i * s->nrules + r] + 1;
        k->s = &s->s[i * s->nstates + at];
        k->next = &s->next[i * s->nstates + at];
        row->step(k);
        s->t_next[i * s->nrules + r] = k->t;
        if (flux_failed()) return false;
    }
    return row->step != flux__step_clipnorm || flux__clip_norms(s);
}

/* p - scale*d, in p's dtype. */
static bool flux__finish_step(flux_state *s, int leaf) {
    flux__trainee *l = &s->leaf[leaf];
    flux__step *k = &s->step[leaf];
    if (!k->d) return true;
    flux_tensor *p = flux__scaled_sum(k, k->d, -k->scale, k->p);
    if (l->master) l->next_master = p;
    l->next = p ? flux_to_dtype(p, (flux_dtype)l->now->dtype) : NULL;
    return l->next != NULL;
}

/* The same view of the leaf's new tensor, where a place of the model held one of the old. */
static bool flux__finish_view(flux_state *s, flux__spot *spot) {
    flux__trainee *l = &s->leaf[spot->leaf];
    flux_tensor *x = *spot->slot;
    spot->next = NULL;
    if (!spot->view || !l->next) return true;
    flux_shape dims = flux__dims(x);
    spot->next = flux__strided(l->next, &dims, x->offset, x->stride, x->offset, x->stride, l->next);
    return spot->next != NULL;
}

static bool flux__build_update(flux_state *s, const flux_grads *g) {
    memcpy(s->t_next, s->t, (size_t)(s->nleaves * s->nrules) * sizeof *s->t);
    s->constants.n = 0;
    for (int i = 0; i < s->nleaves; i++)
        if (!flux__start_step(s, i, g)) return false;
    for (int r = 0, at = 0; r < s->nrules; r++) {
        if (!flux__apply_rule(s, r, at)) return false;
        at += flux__row_states(&flux__rule_rows[s->rule[r].kind]);
    }
    for (int i = 0; i < s->nleaves; i++)
        if (!flux__finish_step(s, i)) return false;
    for (int i = 0; i < s->nspots; i++)
        if (!flux__finish_view(s, &s->spot[i])) return false;
    return true;
}

static int flux__list_new(flux_state *s, int n, flux_tensor *old, flux_tensor *fresh, int owners) {
    if (!fresh) return n;
    s->olds[n] = old;
    s->news[n] = (flux_tensor *)flux_retain(fresh);
    s->owners[n] = owners;
    return n + 1;
}

/* All that is to be computed, with who lets go of what it replaces. */
static int flux__list_news(flux_state *s) {
    int n = 0;
    for (int i = 0; i < s->nleaves; i++) {
        flux__trainee *l = &s->leaf[i];
        n = flux__list_new(s, n, l->now, l->next, l->owners + (l->now == l->p));
        if (l->next_master != l->next) n = flux__list_new(s, n, l->master, l->next_master, 1);
        for (int k = i * s->nstates; k < (i + 1) * s->nstates; k++)
            n = flux__list_new(s, n, s->s[k], s->next[k], 1);
    }
    return n;
}

/* Puts everything in its place; nothing here can fail. */
static void flux__commit(flux_state *s) {
    for (int i = 0; i < s->nspots; i++) {
        flux__spot *spot = &s->spot[i];
        flux_tensor *fresh = spot->view ? spot->next : s->leaf[spot->leaf].next;
        if (fresh) flux_assign(spot->slot, fresh);
    }
    for (int i = 0; i < s->nleaves; i++) {
        flux__trainee *l = &s->leaf[i];
        if (l->next) flux_assign(&l->p, l->next);
        if (l->next_master) flux_assign(&l->master, l->next_master);
        flux_assign(&l->master_seen, NULL);
    }
    for (int i = 0; i < s->nleaves * s->nstates; i++)
        if (s->next[i]) flux_assign(&s->s[i], s->next[i]);
    memcpy(s->t, s->t_next, (size_t)(s->nleaves * s->nrules) * sizeof *s->t);
}

static bool flux__any_awake(const flux_state *s) {
    for (int i = 0; i < s->nleaves; i++)
        if (!s->leaf[i].frozen) return true;
    return false;
}

FLUX_DEF int flux_update(flux_state *s, flux_layer *model, flux_grads *g) {
    if (!s || !model || !g) return flux__null("update", !s ? "state" : !model ? "model" : "gradients", NULL), -1;
    if (g->used) flux__fail("update: these gradients were used up by an earlier flux_update; record the loss again");
    if (flux_failed() || !flux__take_counts(s) || !flux__meet_model(s, model)) return -1;
    int h = flux__hide();
    bool ok = flux__build_update(s, g);
    int n = ok ? flux__list_news(s) : 0;
    if (ok && !n && flux__any_awake(s))
        flux__note(FLUX_LOG_WARN, "update.nothing", true, "update: the loss depends on no parameter of this %s",
                   model->type->name);
    for (int i = 0; i < s->nspots && ok; i++) flux_retain(s->spot[i].next);
    flux__reveal_object(h, NULL);         /* only now is what lies between hidden, and can be fused away */
    if (ok && n) ok = flux__update_eval(g, n, s->olds, s->news, s->owners) == 0;
    if (ok) flux__commit(s);
    for (int i = 0; i < n; i++) flux_release(s->news[i]);
    for (int i = 0; i < s->nspots && n; i++) flux_release(s->spot[i].next);
    return ok ? 0 : -1;
}

/* ---------------- adjust */

static bool flux__some_rule_has(const flux_state *s, int h) {
    for (int r = 0; r < s->nrules; r++)
        if (flux__row_has(&flux__rule_rows[s->rule[r].kind], h)) return true;
    return false;
}

static size_t flux__rules_text(const flux_state *s, const flux_rule_opts *o, char *out, size_t n);

static bool flux__check_adjust(const flux_state *s, const char *call, const flux_rule_opts *o) {
    char text[200];
    bool couple = false;
    flux__rules_text(s, NULL, text, sizeof text);
    for (int r = 0; r < s->nrules; r++) couple |= flux__rule_rows[s->rule[r].kind].step == flux__step_adamw;
    for (int h = 1; h < FLUX__HYPERS; h++) {
        if (flux__hyper(o, h) == 0) continue;
        if (flux__some_rule_has(s, h)) {
            if (!flux__check_hyper(call, o, h)) return false;
        } else flux__fail("%s: there is no %s in %s", call, flux__hypers[h].name, text);
    }
    if (o->couple && !couple) flux__fail("%s: there is no couple in %s", call, text);
    if (o->centred) flux__fail("%s: centred can't be changed: it decides which states there are", call);
    return !flux_failed();
}

static void flux__adjust_one(flux_rule_opts *to, int kind, const flux_rule_opts *o) {
    const flux__rule_row *row = &flux__rule_rows[kind];
    for (int h = 1; h < FLUX__HYPERS; h++)
        if (flux__hyper(o, h) != 0 && flux__row_has(row, h)) flux__hyper_set(to, h, flux__hyper(o, h));
    if (o->couple && row->step == flux__step_adamw) to->couple = o->couple;
}

static void flux__adjust_leaf(flux_state *s, int leaf, const flux_rule_opts *o) {
    for (int r = 0; r < s->nrules; r++) flux__adjust_one(&s->o[leaf * s->nrules + r], s->rule[r].kind, o);
}

FLUX_DEF int flux_adjust_with(flux_state *s, flux_rule_opts o) {
    if (!s) return flux__null("adjust", "state", s), -1;
    if (flux_failed() || !flux__check_adjust(s, "adjust", &o)) return -1;
    for (int r = 0; r < s->nrules; r++) flux__adjust_one(&s->rule[r].o, s->rule[r].kind, &o);
    for (int i = 0; i < s->nleaves; i++) flux__adjust_leaf(s, i, &o);
    return 0;
}

typedef struct flux__adjusting { flux_state *s; const flux_rule_opts *o; int found; } flux__adjusting;

/* A field of the part is known by where it is, or by what it holds. */
static void flux__adjust_slot(flux_tensor **slot, const char *path, bool trained, const flux_layer *owner, void *user) {
    flux__adjusting *w = (flux__adjusting *)user;
    (void)path, (void)owner;
    for (int i = 0; i < w->s->nspots && trained; i++) {
        const flux__spot *spot = &w->s->spot[i];
        if (spot->slot != slot && w->s->leaf[spot->leaf].p != *slot) continue;
        flux__adjust_leaf(w->s, spot->leaf, w->o);
        w->found++;
        return;
    }
}

FLUX_DEF int flux_adjust_layer(flux_state *s, flux_layer *part, flux_rule_opts o) {
    if (!s || !part) return flux__null("adjust_layer", s ? "part" : "state", NULL), -1;
    if (flux_failed() || !flux__check_adjust(s, "adjust_layer", &o)) return -1;
    flux__adjusting w = { s, &o, 0 };
    if (!flux__walk_all(part, flux__adjust_slot, NULL, &w)) return -1;
    if (!w.found) flux__fail("adjust_layer: no parameter of this %s belongs to the model of the state", part->type->name);
    return w.found ? 0 : -1;
}

/* ---------------- a state as text, and as tensors */

/* v in the fewest digits that read back as v: 0.001, 1e-08, 50. */
static void flux__put_short(flux__sink *out, double v) {
    char text[40];
    int least = fabs(v) >= 1 && fabs(v) < 1e6 ? (int)log10(fabs(v)) + 1 : 1;
    for (int digits = least; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.';          /* the locale's decimal point */
    flux__put(out, text);
}

/* Adam(0.001, beta=(0.9, 0.999), epsilon=1e-08) */
static void flux__put_rule(flux__sink *out, int kind, const flux_rule_opts *o) {
    const flux__rule_row *row = &flux__rule_rows[kind];
    flux__put(out, row->name);
    flux__put(out, "(");
    for (int i = 0; i < 7 && row->has[i].hyper; i++) {
        int h = row->has[i].hyper;
        bool pair = i < 6 && strcmp(flux__hypers[row->has[i + 1].hyper].name, flux__hypers[h].name) == 0;
        if (i) {
            flux__put(out, ", ");
            flux__put(out, flux__hypers[h].name);
            flux__put(out, pair ? "=(" : "=");
        }
        flux__put_short(out, flux__hyper(o, h));
        if (!pair) continue;
        flux__put(out, ", ");
        flux__put_short(out, flux__hyper(o, row->has[++i].hyper));
        flux__put(out, ")");
    }
    if (row->step == flux__step_rmsprop_centred) flux__put(out, ", centred=true");
    if (row->step == flux__step_adamw && o->couple == FLUX_OFF) flux__put(out, ", couple=false");
    flux__put(out, ")");
}

/* The rules of a state, with the hyper-parameters of o (one for each rule) or, if that is NULL, those of the whole. */
static void flux__put_rules(flux__sink *out, const flux_state *s, const flux_rule_opts *o) {
    if (s->mixed) flux__put(out, "MixedPrecision(");
    if (s->nrules != 1) flux__put(out, "OptimiserChain(");
    for (int r = 0; r < s->nrules; r++) {
        if (r) flux__put(out, ", ");
        flux__put_rule(out, s->rule[r].kind, o ? &o[r] : &s->rule[r].o);
    }
    if (s->nrules != 1) flux__put(out, ")");
    if (s->mixed) flux__put(out, ")");
}

static size_t flux__rules_text(const flux_state *s, const flux_rule_opts *o, char *out, size_t n) {
    flux__sink sink = flux__sink_to(out, n);
    flux__put_rules(&sink, s, o);
    return flux__sink_end(&sink);
}

/* Whether a leaf has been adjusted apart from the rest. */
static bool flux__leaf_differs(const flux_state *s, int leaf) {
    for (int r = 0; r < s->nrules; r++) {
        const flux_rule_opts *a = &s->o[leaf * s->nrules + r];
        const flux_rule_opts *b = &s->rule[r].o;
        for (int h = 1; h < FLUX__HYPERS; h++)
            if (flux__hyper(a, h) != flux__hyper(b, h)) return true;
        if (a->couple != b->couple) return true;
    }
    return false;
}

/* The rule; the leaves of which another one holds. */
FLUX_DEF size_t flux_state_text(flux_state *s, char *out, size_t n) {
    flux__sink sink = flux__sink_to(out, n);
    int64_t numbers = 0;
    if (!s) return flux__null("print", "state", s), flux__sink_end(&sink);
    flux__put_rules(&sink, s, NULL);
    for (int i = 0; i < s->nleaves; i++) numbers += flux__size(s->leaf[i].p);
    flux__put(&sink, "  # of ");
    flux__put_integer(&sink, s->nleaves, true);
    flux__put(&sink, s->nleaves == 1 ? " array, " : " arrays, ");
    flux__put_integer(&sink, numbers, true);
    flux__put(&sink, " parameters");
    for (int i = 0; i < s->nleaves; i++) {
        if (!flux__leaf_differs(s, i)) continue;
        flux__put(&sink, "\n  ");
        flux__put(&sink, flux__leaf_path(s, i));
        flux__put(&sink, ": ");
        flux__put_rules(&sink, s, &s->o[i * s->nrules]);
    }
    return flux__sink_end(&sink);
}

/* What sets a rule's state apart from one of the same name of an earlier rule: m, m2, ... */
static int flux__state_copy_number(const flux_state *s, int rule, const char *name) {
    int n = 1;
    for (int r = 0; r < rule; r++)
        for (int i = 0; i < 3 && flux__rule_rows[s->rule[r].kind].state[i].name; i++)
            if (strcmp(flux__rule_rows[s->rule[r].kind].state[i].name, name) == 0) n++;
    return n;
}

static void flux__show_state(flux_state *s, int leaf, flux__field_fn f, void *user) {
    const char *path = flux__leaf_path(s, leaf);
    flux_tensor **at = &s->s[leaf * s->nstates];
    for (int r = 0; r < s->nrules; r++) {
        const flux__rule_row *row = &flux__rule_rows[s->rule[r].kind];
        for (int i = 0; i < 3 && row->state[i].name; i++, at++) {
            int number = flux__state_copy_number(s, r, row->state[i].name);
            if (number > 1) snprintf(s->path, s->path_room, "%s.%s%d", path, row->state[i].name, number);
            else snprintf(s->path, s->path_room, "%s.%s", path, row->state[i].name);
            f(at, s->path, false, NULL, user);
        }
    }
}

/* Every tensor of a state, with a path like "layers.0.weight.m". The steps made are "layers.0.weight.steps", an int64
   vector with one count for each rule; for f16 and bf16 with masters there is "layers.0.weight.master". Like a layer's
   fields, the slots stay where they are, and may be given other tensors with flux_assign, then or later. */
static void flux__state_fields(flux_state *s, flux__field_fn f, void *user) {
    for (int i = 0; i < s->nleaves; i++) {
        flux__trainee *l = &s->leaf[i];
        flux__show_state(s, i, f, user);
        if (l->master) {
            if (!l->master_seen) flux_assign(&l->master_seen, l->master);
            snprintf(s->path, s->path_room, "%s.master", flux__leaf_path(s, i));
            f(&l->master, s->path, false, NULL, user);
        }
        if (!s->counts) continue;
        int64_t n = s->nrules;
        int h = flux__hide();
        if (!l->steps) flux_assign(&l->steps, flux_from_data(&s->t[i * s->nrules], FLUX_I64, flux__shape(&n, 1)));
        flux__reveal_object(h, NULL);
        snprintf(s->path, s->path_room, "%s.steps", flux__leaf_path(s, i));
        if (l->steps) f(&l->steps, s->path, false, NULL, user);
    }
}

static bool flux__copy_leaves(flux_state *s, const flux_state *from) {
    s->spot = (flux__spot *)flux__zalloc((size_t)(from->nspots + 1) * sizeof *s->spot);
    s->leaf = (flux__trainee *)flux__zalloc((size_t)(from->nspots + 1) * sizeof *s->leaf);
    if (!s->spot || !s->leaf) return false;
    for (int i = 0; i < from->nspots; i++) {
        s->spot[i] = from->spot[i];
        s->spot[i].path = (char *)flux__malloc(strlen(from->spot[i].path) + 1);
        s->nspots = i + 1;
        if (!s->spot[i].path) return false;
        strcpy(s->spot[i].path, from->spot[i].path);
    }
    for (int i = 0; i < from->nleaves; i++) {
        s->leaf[i] = from->leaf[i];
        flux_retain(s->leaf[i].p);
        flux_retain(s->leaf[i].master);
        flux_retain(s->leaf[i].master_seen);
        flux_retain(s->leaf[i].steps);
    }
    s->nleaves = from->nleaves;
    return true;
}

/* A state with the same tensors, whose slots can then be given others: owned by the innermost scope. */
static flux_state *flux__state_copy(const flux_state *from) {
    flux_state *s = (flux_state *)flux__zalloc(sizeof *s);
    if (!s) return NULL;
    s->head.kind = FLUX__STATE;
    s->head.refs = 1;
    s->nrules = from->nrules;
    s->nstates = from->nstates;
    s->mixed = from->mixed;
    s->counts = from->counts;
    s->path_room = from->path_room;
    s->rule = (flux_rule *)flux__malloc((size_t)(s->nrules + 1) * sizeof *s->rule);
    if (!s->rule || !flux__copy_leaves(s, from) || !flux__state_arrays(s)) {
        flux__state_free(s);
        return NULL;
    }
    int counts = s->nleaves * s->nrules;
    for (int r = 0; r < s->nrules; r++) s->rule[r] = from->rule[r];
    for (int i = 0; i < counts; i++) s->o[i] = from->o[i], s->t[i] = from->t[i];
    for (int i = 0; i < s->nleaves * s->nstates; i++) s->s[i] = (flux_tensor *)flux_retain(from->s[i]);
    return (flux_state *)flux__own(s);
}

/* ---------------- training */

/* The loss and all gradients, computed together, so that the loss can be looked at before the step is made. */
static double flux__loss_now(flux_tensor *loss, const flux_grads *g) {
    flux_tensor **all = (flux_tensor **)flux__malloc((size_t)(g->n + 1) * sizeof *all);
    int n = 0;
    if (!all) return (double)NAN;
    all[n++] = loss;
    for (int i = 0; i < g->n; i++)
        if (g->grad[i]) all[n++] = g->grad[i];
    bool ok = flux_eval_all(n, all) == 0;
    FLUX_FREE(all);
    return ok ? flux_item(loss) : (double)NAN;
}

static int flux__train_batch(flux_tensor *loss, flux_layer *model, flux_state *s, int64_t index) {
    const void *what[1] = { model };
    if (!loss && !flux_failed()) flux__fail("train: the loss function gave NULL at batch %lld", (long long)index);
    flux_grads *g = loss ? flux_gradient_of(loss, 1, what) : NULL;
    double value = g ? flux__loss_now(loss, g) : 0;
    if (!g || flux_failed()) return -1;
    if (value - value == 0) return flux_update(s, model, g);
    flux__fail("train: the loss is %g at batch %lld", value, (long long)index);
    return -1;
}

FLUX_DEF int flux_train(flux_loss_fn loss, flux_layer *model, flux_loader *data, flux_state *s) {
    if (!loss || !model || !data || !s)
        return flux__null("train", !loss ? "loss" : !model ? "model" : !data ? "data" : "state", NULL), -1;
    if (flux_failed()) return -1;
    flux__each_args a;
    memset((void *)&a, 0, sizeof a);
    a.loader = data;
    flux_trainmode(model, true);
    flux__each_state e = flux__each_start(a);
    while (flux__each_next(&e)) {
        if (flux__train_batch(loss(model, e.batch.x, e.batch.y), model, s, e.batch.index) != 0) break;
        e.inner = 0;                      /* the body came to its end */
    }
    flux__each_leave(&e);
    flux_trainmode(model, false);         /* back to auto: training, except inside FLUX_NOGRAD */
    return flux_failed() ? -1 : 0;
}

FLUX_DEF bool flux_patience(flux_stopper *s, bool condition, int n) {
    if (!s) return flux__null("patience", "stopper", s), false;
    s->count = condition ? s->count + 1 : 0;
    return s->count >= n;
}

/* Flux's definition: `count` calls in a row have not brought the score min_dist below the best one. NaN is no better. */
FLUX_DEF bool flux_early_stopping(flux_stopper *s, double score, int delay, double min_dist) {
    if (!s) return flux__null("early_stopping", "stopper", s), false;
    double better = s->started ? s->best - score : HUGE_VAL;
    if (!s->started || better >= 0) s->best = score == score ? score : HUGE_VAL;
    s->started = true;
    return flux_patience(s, !(better >= min_dist), delay);
}

FLUX_DEF bool flux_plateau(flux_stopper *s, double score, int width, double min_dist) {
    if (!s) return flux__null("plateau", "stopper", s), false;
    double moved = s->started ? fabs(s->best - score) : HUGE_VAL;
    s->best = score;                      /* here: the last one */
    s->started = true;
    return flux_patience(s, moved < (min_dist > 0 ? min_dist : 1e-6), width);
}

/* ---------------- gradients against finite differences */

typedef struct flux__probe_fn {
    flux_tensor *(*fn)(flux_tensor *x, void *user);
    void *user;
    flux_tensor *x;
    uint64_t draws;                       /* every call draws the same random numbers */
} flux__probe_fn;

/* fn's value where element i of x (whose elements are `at`) is v instead. */
static double flux__probe_at(const flux__probe_fn *p, double *at, int64_t i, double v) {
    double old = at[i];
    int h = flux__hide();
    at[i] = v;
    flux_tensor *x = flux_to_dtype(flux_from_data(at, FLUX_F64, flux__dims(p->x)), (flux_dtype)p->x->dtype);
    at[i] = old;
    flux__self()->draws = p->draws;
    flux_tensor *y = x && (x = flux__move(x, p->x->device)) != NULL ? p->fn(x, p->user) : NULL;
    double value = y ? flux_item(y) : (double)NAN;
    flux__reveal_object(h, NULL);
    return value;
}

/* The difference quotient by element i. */
static double flux__quotient(const flux__probe_fn *p, double *at, int64_t i) {
    double step = cbrt(flux__dtypes[p->x->dtype].epsilon) * (fabs(at[i]) > 1 ? fabs(at[i]) : 1);
    double hi = at[i] + step, lo = at[i] - step;
    if (p->x->dtype == FLUX_F32) hi = (double)(float)hi, lo = (double)(float)lo;
    double up = flux__probe_at(p, at, i, hi), down = flux__probe_at(p, at, i, lo);
    return (up - down) / (hi - lo);
}

/* A copy of x's elements as double, to be freed. */
static double *flux__doubles(flux_tensor *x) {
    size_t bytes = (size_t)flux__size(x) * sizeof(double);
    double *out = (double *)flux__malloc(bytes);
    int h = flux__hide();
    bool ok = out && flux_read(flux_to_dtype(flux_detach(x), FLUX_F64), out, bytes) == 0;
    flux__reveal_object(h, NULL);
    if (!ok && out) FLUX_FREE(out);
    return ok ? out : NULL;
}

static double flux__compare_gradient(const flux__probe_fn *p, double *at, const double *want, int probes) {
    int64_t n = flux__size(p->x);
    int64_t count = probes > 0 && probes < n ? probes : n;
    double worst = 0, largest = 0, place = 0;
    for (int64_t k = 0; k < n; k++)
        if (want && fabs(want[k]) > largest) largest = fabs(want[k]);
    for (int64_t k = 0; k < count; k++) {
        int64_t i = count == n ? k : (int64_t)(place * (double)n);
        double is = flux__quotient(p, at, i), error = fabs(is - (want ? want[i] : 0));
        if (error != error) return (double)NAN;
        if (error > worst) worst = error;
        if (fabs(is) > largest) largest = fabs(is);
        place += 0.6180339887498949;      /* by the golden section: spread evenly, in step with no dimension */
        place -= floor(place);
    }
    return largest > 0 ? worst / largest : 0;
}

FLUX_DEF double flux_gradcheck(flux_tensor *(*fn)(flux_tensor *x, void *user), void *user, flux_tensor *x, int probes) {
    if (!fn || !x) return flux__null("gradcheck", fn ? "x" : "fn", NULL), (double)NAN;
    const char *what_it_is = x->op == FLUX__TUPLE ? "a tuple" : flux__dtypes[x->dtype].name;
    if (x->op == FLUX__TUPLE || !flux__dtypes[x->dtype].real)
        return flux__fail("gradcheck: x must be a tensor of floating numbers, not %s", what_it_is), (double)NAN;
    flux__thread *t = flux__self();
    const void *what[1] = { x };
    flux__probe_fn p = { fn, user, x, t ? t->draws : 0 };
    int h = flux__hide();
    flux_tensor *y = fn(x, user);
    flux_grads *g = y ? flux_gradient_of(y, 1, what) : NULL;
    flux_tensor *d = g ? flux_grad(g, x) : NULL;
    double *want = d ? flux__doubles(d) : NULL, *at = g && (!d || want) ? flux__doubles(x) : NULL;
    if (!y && !flux_failed()) flux__fail("gradcheck: the function gave NULL");
    double result = at ? flux__compare_gradient(&p, at, want, probes) : (double)NAN;
    if (want) FLUX_FREE(want);
    if (at) FLUX_FREE(at);
    flux__reveal_object(h, NULL);
    return flux_failed() ? (double)NAN : result;
}

FLUX__ASBEFORE
FLUX__COLD

/* ------------------------------------------------------------------ 21. Printing models
   A model prints as in Flux.jl: a layer on one line, a container as its
   children between brackets, and behind each line how many numbers it holds.
   This stands on nothing but a type's description of its fields, so a layer of
   the user's own needs no more. What has a text function is a line of its own;
   what has none is a container:

       ActorCritic(
         Dense(2 => 2),                        # 6 parameters
         2-element f32,                        # 2 parameters
       )                   # Total: 3 arrays, 8 parameters, 32 bytes.

   A tensor that stands in a container is a line too, as `critic` above. A type
   without text that holds nothing but tensors is one line, Affine(5x2 f32,
   5-element f32), and so is a container of plain functions, Chain(relu, +).
   Parameters that a line above has shown are called tied, and totals count
   them once. Bytes are those of the memory the tensors lie in, on whatever
   device; memory that two of them share counts once. A flag marks a line whose
   parameters are all zero, or hold a NaN or Inf: one reduction each, where
   they lie. */

typedef struct flux__shown_model {        /* one printing of a model */
    flux__sink *sink;
    flux__pairs seen;                     /* parameters of the lines above; or memory counted */
} flux__shown_model;

typedef struct flux__summary {              /* of one line, or of the whole model */
    flux__shown_model *shown;
    int64_t arrays, numbers, tied, states, state_numbers, bytes;
    bool zero, nan, inf;                  /* the flags */
    bool total;                           /* of the whole model: bytes, no flags */
} flux__summary;

/* Whether p comes for the first time. */
static bool flux__first_sight(flux__shown_model *shown, const void *p) {
    bool fresh = true;
    (void)flux__pairs_at(&shown->seen, p, &fresh);
    return fresh;
}

/* The largest magnitude tells all three flags: 0, NaN, Inf. */
static void flux__summary_flags(flux__summary *t, flux_tensor *x) {
    if (!flux__size(x)) return;
    double most = 1;                      /* what a failure leaves: no flag, but a pending error */
    int h = flux__hide();
    flux_tensor *v = flux__dtypes[x->dtype].real ? flux_detach(x) : flux_to_dtype(x, FLUX_F32);
    v = flux_to_dtype((flux_max)(flux_abs(v)), FLUX_F64);
    if (v) flux_read(v, &most, sizeof most);
    flux__reveal(h, NULL);
    if (most != 0) t->zero = false;
    if (most != most) t->nan = true;
    if (most - most != 0 && most == most) t->inf = true;
}

static void flux__summary_tensor(flux_tensor *x, const char *path, bool trained, void *user) {
    flux__summary *t = (flux__summary *)user;
    const flux_tensor *memory = x->base ? x->base : x;
    int64_t n = flux__size(x);
    (void)path;
    if (trained) t->arrays++, t->numbers += n;
    else t->states++, t->state_numbers += n;
    if (t->total) {
        if (flux__first_sight(t->shown, memory))
            t->bytes += flux__size(memory) * flux__dtypes[memory->dtype].size;
    } else if (trained) {
        if (!flux__first_sight(t->shown, x)) t->tied += n;
        flux__summary_flags(t, x);
    }
}

static flux__summary flux__summary_start(flux__shown_model *shown) {
    flux__summary t = { shown, 0, 0, 0, 0, 0, 0, true, false, false, false };
    return t;
}

static void flux__put_number(flux__sink *s, const char *before, int64_t n, const char *after) {
    flux__put(s, before);
    flux__put_integer(s, n, true);
    flux__put(s, after);
}

/* The comment behind a line that is `width` characters long: "# 6 parameters, plus 6". */
static void flux__put_summary(flux__sink *s, const flux__summary *t, int indent, int64_t width,
                              bool alone) {
    int64_t pad = (indent ? 39 - indent : 20) - width;
    if (!t->arrays && !alone) return;     /* of a layer without parameters nothing is said */
    flux__put_pad(s, pad > 2 ? pad : 2);
    flux__put_colour(s, "90");
    if (t->arrays) flux__put_number(s, "# ", t->numbers, " parameters");
    else flux__put_number(s, "# ", t->state_numbers, " non-trainable");
    if (t->arrays && t->state_numbers)
        flux__put_number(s, ", plus ", t->state_numbers, indent ? "" : " non-trainable");
    if (t->tied) {
        if (t->tied < t->numbers) flux__put_number(s, ", ", t->tied, "");
        else flux__put(s, ",");
        flux__put(s, " tied");
    }
    bool flag = t->numbers && (t->zero || t->nan || t->inf);
    if (flag) flux__put_colour(s, t->zero ? "36" : "31");
    if (flag) flux__put(s, t->zero ? "  (all zero)" : t->nan ? "  (some NaN)" : "  (some Inf)");
    flux__put_colour(s, "0");
}

/* ---- the fields of a layer, one by one */

typedef struct flux__item { flux_layer *layer; flux_tensor *tensor; bool trained; } flux__item;

/* What stands as number `at` among a layer's children and tensors; false past the last. */
static bool flux__item_of(const flux_layer *m, int at, flux__item *item) {
    for (const flux_field *f = m->type->fields; f->kind != FLUX__END; f++) {
        bool tensor = flux__is_tensor_field(f);
        int n;
        flux_layer **kids = flux__kids(m, f, &n);
        if (tensor) n = 1;
        if (at < n) {
            item->layer = tensor ? NULL : kids[at];
            item->tensor = tensor ? *flux__tensor_slot((flux_layer *)(intptr_t)m, f) : NULL;
            item->trained = f->kind == FLUX__PARAM_FIELD;
            return true;
        }
        at -= n;
    }
    return false;
}

static bool flux__bare_function(const flux_layer *m) {    /* prints as a name: softmax, + */
    char text[64];
    if (!m->type->text || m->type->fields->kind != FLUX__END) return false;
    size_t n = m->type->text((flux_layer *)(intptr_t)m, text, sizeof text);
    return n < sizeof text && !strchr(text, '(');
}

/* Whether it takes one line: it has a text, or no child but plain functions. */
static bool flux__one_line(const flux_layer *m) {
    flux__item item;
    for (int i = 0; !m->type->text && flux__item_of(m, i, &item); i++)
        if (item.layer && !flux__bare_function(item.layer)) return false;
    return true;
}

static void flux__put_own_text(flux__sink *s, flux_layer *m) {
    char text[256], *all;
    size_t n = m->type->text(m, text, sizeof text);
    if (n < sizeof text) {
        flux__put(s, text);
        return;
    }
    /* more than that is a mistake: the name will do */
    all = n < 65536 ? (char *)flux__malloc(n + 1) : NULL;
    if (!all) {
        flux__put(s, m->type->name);
        return;
    }
    all[0] = 0;
    m->type->text(m, all, n + 1);
    all[n] = 0;
    flux__put(s, all);
    FLUX_FREE(all);
}

static void flux__put_kind(flux__sink *s, const flux_tensor *x) {      /* "5x2 f32" */
    flux__put_shape(s, x);
    flux__put(s, " ");
    flux__put(s, flux__dtypes[x->dtype].name);
}

static void flux__put_line(flux__sink *s, flux_layer *m) {
    flux__item item;
    bool first = true;
    if (m->type->text) {
        flux__put_own_text(s, m);
        return;
    }
    flux__put(s, m->type->name);
    flux__put(s, "(");
    for (int i = 0; flux__item_of(m, i, &item); i++) {
        if (!item.layer && !item.tensor) continue;
        if (!first) flux__put(s, ", ");
        first = false;
        if (item.layer && item.layer->type->text) flux__put_own_text(s, item.layer);
        else if (item.layer) flux__put(s, item.layer->type->name);
        else flux__put_kind(s, item.tensor);
    }
    flux__put(s, ")");
}

/* ---- lines */

static void flux__put_leaf(flux__shown_model *shown, flux_layer *m, int indent) {
    flux__sink *s = shown->sink;
    flux__summary t = flux__summary_start(shown);
    size_t start = s->chars;
    flux__put_pad(s, indent);
    if (indent && m->name) {
        flux__put(s, m->name);
        flux__put(s, " = ");
    }
    flux__put_line(s, m);
    int64_t width = (int64_t)(s->chars - start) - indent;
    if (indent) flux__put(s, ",");
    flux_visit(m, flux__summary_tensor, &t);
    flux__put_summary(s, &t, indent, width, false);
}

static void flux__put_tensor_line(flux__shown_model *shown, const flux__item *item, int indent) {
    flux__sink *s = shown->sink;
    flux__summary t = flux__summary_start(shown);
    size_t start = s->chars;
    flux__put_pad(s, indent);
    flux__put_kind(s, item->tensor);
    int64_t width = (int64_t)(s->chars - start) - indent;
    flux__put(s, ",");
    flux__summary_tensor(item->tensor, "", item->trained, &t);
    flux__put_summary(s, &t, indent, width, true);
}

static void flux__put_totals(flux__shown_model *shown, flux_layer *m) {
    flux__sink *s = shown->sink;
    flux__summary t = flux__summary_start(shown);
    char bytes[32];
    flux__pairs_free(&shown->seen);       /* from here on it knows memory, not parameters */
    t.total = true;
    flux_visit(m, flux__summary_tensor, &t);
    flux_format_bytes(t.bytes, bytes, sizeof bytes);
    if (t.arrays <= 2) return;
    flux__put_pad(s, t.states ? 8 : 18);
    flux__put_colour(s, "90");
    flux__put_number(s, "# Total: ", t.arrays, t.states ? " trainable arrays, " : " arrays, ");
    flux__put_number(s, "", t.numbers, " parameters,");
    if (t.states) {
        flux__put_number(s, "\n          # plus ", t.states, " non-trainable, ");
        flux__put_number(s, "", t.state_numbers, " parameters, summarysize");
    }
    flux__put(s, " ");
    flux__put(s, bytes);
    flux__put(s, ".");
    flux__put_colour(s, "0");
}

static void flux__put_model(flux__shown_model *shown, flux_layer *m, int indent) {
    flux__sink *s = shown->sink;
    flux__item item;
    if (flux__one_line(m) || indent > 400) {     /* so deep, its children are not shown */
        flux__put_leaf(shown, m, indent);
        if (indent) flux__put(s, "\n");
        return;
    }
    flux__put_pad(s, indent);
    if (indent && m->name) {
        flux__put(s, m->name);
        flux__put(s, " = ");
    }
    flux__put(s, m->type->name);
    flux__put(s, "(\n");
    for (int i = 0; flux__item_of(m, i, &item); i++)
        if (item.layer) flux__put_model(shown, item.layer, indent + 2);
        else if (item.tensor) {
            flux__put_tensor_line(shown, &item, indent + 2);
            flux__put(s, "\n");
        }
    flux__put_pad(s, indent);
    flux__put(s, indent ? "),\n" : ") ");
    if (!indent) flux__put_totals(shown, m);
}

static void flux__put_whole_model(flux__sink *s, flux_layer *m) {
    flux__shown_model shown = { s, { NULL, 0, 0 } };
    flux__put_model(&shown, m, 0);
    flux__pairs_free(&shown.seen);
}

FLUX_DEF size_t flux_layer_text(flux_layer *m, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (!m) flux__null("layer_text", "m", m);
    else flux__put_whole_model(&s, m);
    return flux__sink_end(&s);
}

FLUX_DEF void flux_print_layer(flux_layer *m) {
    flux__sink s = flux__sink_stdout();
    if (!m) {
        flux__null("print", "m", m);
        return;
    }
    flux__put_whole_model(&s, m);
    flux__put(&s, "\n");
}

/* Prints what a text function gives for object; it is asked for the length first. */
static void flux__print_text(size_t n, void *object,
                             size_t (*text)(void *object, char *out, size_t n)) {
    char *all = n ? (char *)flux__malloc(n + 1) : NULL;
    if (!all) return;
    text(object, all, n + 1);
    flux__sink s = flux__sink_stdout();
    flux__put(&s, all);
    flux__put(&s, "\n");
    FLUX_FREE(all);
}

static size_t flux__text_of_loader(void *l, char *out, size_t n) {
    return flux_loader_text((flux_loader *)l, out, n);
}
static size_t flux__text_of_state(void *s, char *out, size_t n) {
    return flux_state_text((flux_state *)s, out, n);
}
FLUX_DEF void flux_print_loader(flux_loader *l) {
    flux__print_text(flux_loader_text(l, NULL, 0), l, flux__text_of_loader);
}
FLUX_DEF void flux_print_state(flux_state *s) {
    flux__print_text(flux_state_text(s, NULL, 0), s, flux__text_of_state);
}

/* ------------------------------------------------------------------ 22. Data
   One-hot labels, loaders, flux_each and its progress bar.
   A loader is a description: arrays or a data set, how they are cut into batches, and stages
   (transform, function, move to a device) that each batch passes. It changes nothing but its
   count of epochs. An epoch under way is a flux__epoch: the order drawn for it, the batch
   that is out, the one prepared ahead for a device, and the workers with their ring of
   batches. So one loader can be walked any number of times, nested too, and a loop that is
   left by `break` takes everything with it. A run is held by a second loader object, its
   cursor, that belongs to the scope around the loop: where the compiler can't clean up after
   `return`, that scope does.
   Invariant: batch i depends on the loader, the epoch's key and i, never on who makes it:
   random numbers drawn while it is made are keyed by (epoch, i). Workers claim batches in
   order and put batch i into slot i mod depth, so they come out in order, and only a batch's
   last owner frees it: values that cross threads are computed and carry no graph.
   Rejected: an unordered queue (a run would not repeat), and one buffer for all batches (one
   that is kept would change under its owner). */

#define FLUX__REFUSE(...) (flux__fail(__VA_ARGS__), false)

typedef enum { FLUX__STAGE_TRANSFORM, FLUX__STAGE_MAP, FLUX__STAGE_MOVE } flux__stage_kind;
typedef struct flux__stage {
    flux__stage_kind kind;
    flux_batch (*transform)(flux_batch b, void *user);
    void *user;
    flux_fn map;
    flux_device device;
    bool keep_f64;
} flux__stage;

struct flux_loader {
    flux__head head;
    flux_tensor **array;                  /* arrays of equal last dimension; none with a data set */
    const char **host;  /* their elements in host memory; NULL for one that lies on a device */
    int arrays;                           /* how many; 0 with a data set */
    flux_dataset set;                     /* .get NULL: arrays */
    int64_t total, begin, share;          /* observations: all, this rank's first, and how many */
    int64_t batch, batches;               /* observations a batch, batches an epoch */
    bool single, shuffle, partial;
    flux_collate collate;
    int workers, rank, ranks;
    uint64_t seed;
    int64_t epoch;
    flux__stage *stage;
    int stages;
    flux_tensor **first;                  /* flux_first's items */
    struct flux__epoch *run;                /* a cursor's: it has nothing else */
};

typedef struct flux__made {               /* a batch, its items retained */
    flux_tensor **item;
    int count, room;
    int64_t index, size;
    int stage;                            /* the next one to be applied */
    bool ready;                           /* in the ring: only under the lock */
    char error[512];                      /* why there is none */
} flux__made;

typedef struct flux__epoch {
    flux_loader *loader;
    int64_t *order;  /* the share's observations as they come; NULL: as they stand */
    uint64_t key;
    int64_t next;                         /* the batch to be handed out next */
    flux__made now, ahead;
    flux__block scope;                    /* the iteration's */
    struct flux__progress *bar;
    flux__made *ring;
    int depth, threads;
    flux__os_thread *thread;
    flux__mutex lock;                     /* guards what follows, and .ready in the ring */
    flux__cond changed;
    int64_t claimed, taken;
    bool stop;
} flux__epoch;

/* ---- orders: random numbers of a key */

static uint64_t flux__scramble(uint64_t z) {  /* SplitMix64's finaliser (Steele, Lea, Flood 2014) */
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* A key out of the thread's stream of random numbers, which goes on by one draw. */
static uint64_t flux__draw_key(void) {
    flux__thread *t = flux__self();
    return t ? flux__scramble(t->seed ^ flux__scramble(0x5EED + t->draws++)) : 0;
}

/* A number below `bound` (at most 2^32), each as likely as the others: Lemire 2019, a
   multiplication in place of a division. */
static uint64_t flux__below(uint64_t bound, uint64_t *key) {
    uint64_t m = (flux__scramble((*key)++) >> 32) * bound;
    if ((m & 0xFFFFFFFFu) < bound) {
        uint64_t least = (((uint64_t)1 << 32) - bound) % bound;
        while ((m & 0xFFFFFFFFu) < least) m = (flux__scramble((*key)++) >> 32) * bound;
    }
    return m >> 32;
}

/* The integers from `begin`, n of them, in the order that belongs to the key (Fisher and
   Yates). NULL: out of memory. */
static int64_t *flux__new_order(int64_t begin, int64_t n, uint64_t key) {
    if (n >= (int64_t)1 << 32)
        return (int64_t *)flux__fail("shuffle: %lld observations; 4294967295 are possible",
                                     (long long)n);
    int64_t *order = (int64_t *)flux__malloc((size_t)n * sizeof *order);
    if (!order) return NULL;
    for (int64_t i = 0; i < n; i++) order[i] = begin + i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)flux__below((uint64_t)i + 1, &key), old = order[i];
        order[i] = order[j];
        order[j] = old;
    }
    return order;
}

/* ---- one-hot */

static int64_t flux__integer_at(const void *p, flux_dtype t, int64_t i) {
    if (t == FLUX_U8) return ((const uint8_t *)p)[i];
    if (t == FLUX_I32) return ((const int32_t *)p)[i];
    return ((const int64_t *)p)[i];
}

/* "(3)" or "(1, 2)": where element i of x stands. */
static void flux__place_text(const flux_tensor *x, int64_t i, char *out, size_t n) {
    size_t len = 0;
    for (int d = 0; d < x->ndim && len < n; i /= x->dim[d++])
        len += (size_t)snprintf(out + len, n - len, "%s%lld", d ? ", " : "(",
                                (long long)(i % x->dim[d]));
    if (len < n) snprintf(out + len, n - len, "%s", x->ndim ? ")" : "()");
}

/* Labels are data, so they are looked at right here: a wrong one is an error with its place,
   not a column of zeros. */
static bool flux__labels_good(flux_tensor *labels, int64_t classes) {
    char place[200];
    const void *p = flux_data(labels);
    int64_t n = flux_len(labels);
    if (!p && n > 0) return false;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = flux__integer_at(p, (flux_dtype)labels->dtype, i);
        if (v >= 0 && v < classes) continue;
        flux__place_text(labels, i, place, sizeof place);
        flux__fail("onehot: label %lld at %s is not one of 0 to %lld", (long long)v, place,
                   (long long)(classes - 1));
        return false;
    }
    return true;
}

FLUX_DEF flux_tensor *flux_onehot(flux_tensor *labels, int64_t classes) {
    if (!labels) return (flux_tensor *)flux__null("onehot", "labels", labels);
    if (labels->dtype != FLUX_U8 && labels->dtype != FLUX_I32 && labels->dtype != FLUX_I64)
        return (flux_tensor *)flux__fail(
            "onehot: labels are %s, not integers; flux_to_dtype converts them",
            flux_dtype_name((flux_dtype)labels->dtype));
    if (classes < 1 || classes > 1 << 24)      /* as far as float32, in which arange counts */
        return (flux_tensor *)flux__fail("onehot: %lld classes; 1 to 16777216 are possible",
                                         (long long)classes);
    if (labels->ndim == FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail("onehot: labels have %d dimensions already",
                                         FLUX_MAX_DIMS);
    if (!flux__labels_good(labels, classes)) return NULL;
    flux_shape row = flux_shape_of(labels);
    memmove(row.dim + 1, row.dim, sizeof row.dim - sizeof row.dim[0]);
    row.dim[0] = 1;
    row.ndim++;
    int s = flux__hide();
    flux_tensor *column = flux_to_dtype(flux_arange(0, (double)classes, 1), FLUX_I32);
    column = flux_to_tensor(labels->device, column);
    return flux__reveal(s, (flux_eq)(column, flux_reshape_to(labels, row)));
}

FLUX_DEF flux_tensor *flux_onecold(flux_tensor *y) {
    if (!y) return (flux_tensor *)flux__null("onecold", "y", y);
    if (y->ndim < 1 || y->dim[0] < 1)
        return (flux_tensor *)flux__fail("onecold: y has no %s",
                                         y->ndim ? "classes" : "dimension of classes");
    if (y->op == FLUX__TUPLE)
        return (flux_tensor *)flux__fail("onecold: y is a tuple; take one tensor with flux_nth");
    flux_shape rest = flux_shape_of(y);
    rest.ndim--;
    memmove(rest.dim, rest.dim + 1, sizeof rest.dim - sizeof rest.dim[0]);
    int s = flux__hide();
    flux_tensor *number = y->dtype == FLUX_BOOL ? flux_to_dtype(y, FLUX_U8) : y;
    flux_tensor *at = number ? flux__argreduce_node(number, true, 1, number->ndim) : NULL;
    return flux__reveal(s, at ? flux_reshape_to(at, rest) : NULL);
}

/* ---- splitting and shuffling an array */

FLUX_DEF int flux_splitobs(double part, flux_tensor *x, flux_tensor **first, flux_tensor **second) {
    if (!x) return flux__null("splitobs", "x", x), -1;
    if (x->ndim < 1) return flux__fail("splitobs: x has no dimension of observations"), -1;
    if (!(part >= 0 && part <= 1))
        return flux__fail("splitobs: the part %g is not between 0 and 1", part), -1;
    int64_t n = x->dim[x->ndim - 1], cut = (int64_t)rint(part * (double)n);
    flux_tensor *a = first ? flux_slice(x, x->ndim - 1, 0, cut) : x;
    flux_tensor *b = second ? flux_slice(x, x->ndim - 1, cut, n) : x;
    if (!a || !b) return -1;
    if (first) *first = a;
    if (second) *second = b;
    return 0;
}

/* An index tensor on device d: these integers. */
static flux_tensor *flux__index_tensor(const int64_t *order, int64_t begin, int64_t n,
                                       flux_device d) {
    flux_device cpu = { 0, 0 };
    flux_shape s = flux__shape(&n, 1);
    flux_tensor *index = flux__leaf(s, FLUX_I64, cpu);
    if (!index) return NULL;
    int64_t *p = (int64_t *)index->buf->ptr;
    for (int64_t i = 0; i < n; i++) p[i] = order ? order[i] : begin + i;
    return flux_to_tensor(d, index);
}

FLUX_DEF flux_tensor *flux_shuffleobs(flux_tensor *x, uint64_t seed) {
    if (!x) return (flux_tensor *)flux__null("shuffleobs", "x", x);
    if (x->ndim < 1)
        return (flux_tensor *)flux__fail("shuffleobs: x has no dimension of observations");
    int64_t n = x->dim[x->ndim - 1], *order = flux__new_order(0, n, flux__scramble(seed));
    if (!order) return NULL;
    int s = flux__hide();
    flux_tensor *index = flux__index_tensor(order, 0, n, x->device);
    FLUX_FREE(order);
    return flux__reveal(s, flux_gather(x, x->ndim - 1, index));
}

/* ---- making a loader */

static void flux__made_empty(flux__made *m) {
    for (int i = 0; i < m->count; i++) flux_release(m->item[i]);
    m->count = 0;
    m->error[0] = 0;
}

static void flux__made_free(flux__made *m) {
    flux__made_empty(m);
    if (m->item) FLUX_FREE(m->item);
    m->item = NULL;
    m->room = 0;
}

static void flux__epoch_free(flux__epoch *r);

static void flux__loader_free(flux_loader *l) {
    if (l->run) flux__epoch_free(l->run);
    for (int i = 0; i < l->arrays; i++) flux_release(l->array[i]);
    if (l->array) FLUX_FREE(l->array);
    if (l->host) FLUX_FREE((void *)(intptr_t)l->host);
    if (l->stage) FLUX_FREE(l->stage);
    if (l->first) FLUX_FREE(l->first);
    FLUX_FREE(l);
}

static flux_loader *flux__loader_new(void) {
    flux_loader *l = (flux_loader *)flux__zalloc(sizeof *l);
    if (!l) return NULL;
    l->head.kind = FLUX__LOADER;
    l->head.refs = 1;
    return l;
}

static bool flux__in_host_memory(const flux_tensor *x) {
    return x->device.backend == FLUX__CPU_BACKEND;
}

/* Takes n arrays: computed once, here, so that a batch costs a copy. False: out of memory, or
   they have no value. */
static bool flux__loader_hold(flux_loader *l, int n, flux_tensor *const *xs) {
    l->array = (flux_tensor **)flux__zalloc((size_t)(n ? n : 1) * sizeof *l->array);
    l->host = (const char **)flux__zalloc((size_t)(n ? n : 1) * sizeof *l->host);
    if (!l->array || !l->host) return false;
    for (int i = 0; i < n; i++) l->array[l->arrays++] = (flux_tensor *)flux_retain(xs[i]);
    for (int i = 0; i < n; i++) {
        if (!flux_eval(xs[i])) return false;
        if (flux__in_host_memory(xs[i])) l->host[i] = (const char *)flux_data(xs[i]);
        if (flux__in_host_memory(xs[i]) && !l->host[i] && flux_len(xs[i]) > 0) return false;
    }
    return true;
}

/* The options' arrays, tuples taken apart; NULL ends them. Gives the number, -1 on error. */
static int flux__loader_arrays(const flux_loader_opts *o, flux_tensor ***out) {
    flux_tensor *given[] = { o->x, o->y, o->z, o->x3, o->x4, o->x5, o->x6, o->x7 };
    int n = 0, room = 0, last = 7;
    while (last > 0 && !given[last]) last--;
    for (int i = 0; i <= last; i++) {
        if (!given[i] && i && !flux_failed()) flux__fail("dataloader: array %d is NULL", i);
        if (!given[i]) return flux__null("dataloader", "x", NULL), -1;
        int parts = flux_count(given[i]);
        bool tuple = given[i]->op == FLUX__TUPLE;
        flux_tensor **xs = (flux_tensor **)flux__grow(*out, &room, n + parts, sizeof *xs);
        if (!xs) return -1;
        *out = xs;
        for (int k = 0; k < parts; k++) xs[n++] = tuple ? given[i]->in[k] : given[i];
    }
    return n;
}

static bool flux__arrays_agree(int n, flux_tensor *const *xs) {
    for (int i = 0; i < n; i++) {
        if (!xs[i]) return false;
        if (xs[i]->ndim < 1)
            return FLUX__REFUSE("dataloader: array %d has no dimension of observations", i);
        int64_t have = xs[i]->dim[xs[i]->ndim - 1], want = xs[0]->dim[xs[0]->ndim - 1];
        if (have != want)
            return FLUX__REFUSE("dataloader: array 0 has %lld observations, array %d has %lld (the "
                                "last dimension counts them)",
                                (long long)want, i, (long long)have);
    }
    return true;
}

static bool flux__loader_source(flux_loader *l, const flux_loader_opts *o) {
    if (!o->data) {
        flux_tensor **xs = NULL;
        int n = flux__loader_arrays(o, &xs);
        bool good = n > 0 && flux__arrays_agree(n, xs) && flux__loader_hold(l, n, xs);
        if (good) l->total = xs[0]->dim[xs[0]->ndim - 1];
        if (xs) FLUX_FREE(xs);
        return good;
    }
    if (o->x) return FLUX__REFUSE("dataloader: both arrays and .data are given");
    if (!o->data->get || !o->data->length)
        return FLUX__REFUSE("dataloader: the data set has no %s function",
                            o->data->get ? "length" : "get");
    if (o->data->arrays < 1)
        return FLUX__REFUSE("dataloader: the data set's .arrays is %d", o->data->arrays);
    l->set = *o->data;
    l->total = l->set.length(l->set.user);
    if (flux_failed()) return false;
    if (l->total < 0)
        return FLUX__REFUSE("dataloader: the data set's length is %lld", (long long)l->total);
    return true;
}

/* This rank's share of the observations, and its batches: shares differ by one at most, and
   since collectives wait for each other every rank gets the number of batches that the largest
   share (or, without partial ones, the smallest) needs. */
static bool flux__loader_cut(flux_loader *l, int batchsize) {
    int64_t least = l->total / l->ranks, over = l->total % l->ranks, most = least + (over > 0);
    if (l->ranks > 1 && least < 1)
        return FLUX__REFUSE("dataloader: %lld observations can't be shared by %d ranks",
                            (long long)l->total, l->ranks);
    l->begin = l->rank * least + (l->rank < over ? l->rank : over);
    l->share = least + (l->rank < over);
    l->single = batchsize < 0;
    l->batch = batchsize < 1 ? 1 : batchsize;
    int64_t limit = l->partial ? most : least;
    if (l->batch > limit && l->total > 0) {
        flux__note(FLUX_LOG_WARN, "data.batchsize", true,
                   "dataloader: there are only %lld observations: batchsize %lld becomes %lld",
                   (long long)limit, (long long)l->batch, (long long)limit);
        l->batch = limit;
    }
    if (l->collate == FLUX_COLLATE_NONE && l->batch > 255)       /* a tuple's most */
        return FLUX__REFUSE(
            "dataloader: a batch that is not collated has 255 observations at most, not %lld",
            (long long)l->batch);
    l->batches = l->partial ? (most + l->batch - 1) / l->batch : least / l->batch;
    return true;
}

static bool flux__add_stage(flux_loader *l, flux__stage s) {
    flux__stage *more = (flux__stage *)flux__malloc((size_t)(l->stages + 1) * sizeof *more);
    if (!more) return false;
    if (l->stages) memcpy(more, l->stage, (size_t)l->stages * sizeof *more);
    if (l->stage) FLUX_FREE(l->stage);
    l->stage = more;
    l->stage[l->stages++] = s;
    return true;
}

static bool flux__loader_fill(flux_loader *l, const flux_loader_opts *o) {
    if (o->ranks < 0 || o->rank < 0 || o->rank >= (o->ranks ? o->ranks : 1))
        return FLUX__REFUSE("dataloader: rank %d of %d does not exist", o->rank,
                            o->ranks ? o->ranks : 1);
    if (o->workers < 0 || o->workers > 256)
        return FLUX__REFUSE("dataloader: %d workers; 0 to 256 are possible", o->workers);
    l->ranks = o->ranks ? o->ranks : 1;
    l->rank = o->rank;
    l->shuffle = o->shuffle;
    l->partial = o->partial != FLUX_OFF;
    l->collate = o->collate;
    l->workers = o->workers;
    l->seed = o->seed;
    if (!flux__loader_source(l, o) || !flux__loader_cut(l, o->batchsize)) return false;
    flux__stage s;
    memset(&s, 0, sizeof s);
    s.kind = FLUX__STAGE_TRANSFORM;
    s.transform = o->transform;
    s.user = o->user;
    return !o->transform || flux__add_stage(l, s);
}

FLUX_DEF flux_loader *flux_dataloader_with(flux_loader_opts o) {
    flux_loader *l = flux__loader_new();
    if (!l) return NULL;
    if (flux__loader_fill(l, &o)) return (flux_loader *)flux__own(l);
    flux__loader_free(l);
    return NULL;
}

/* A loader of the same data with one stage more. It counts its epochs from the start. */
static flux_loader *flux__loader_with(const flux_loader *l, flux__stage s, bool replace) {
    flux_loader *copy = flux__loader_new();
    if (!copy) return NULL;
    flux__head head = copy->head;
    *copy = *l;
    copy->head = head;
    copy->epoch = 0;
    copy->array = NULL;
    copy->host = NULL;
    copy->stage = NULL;
    copy->first = NULL;
    copy->run = NULL;
    copy->arrays = copy->stages = 0;
    bool good = flux__loader_hold(copy, l->arrays, l->array);
    for (int i = 0; good && i < l->stages - replace; i++) good = flux__add_stage(copy, l->stage[i]);
    if (good && flux__add_stage(copy, s)) return (flux_loader *)flux__own(copy);
    flux__loader_free(copy);
    return NULL;
}

/* The loader whose batches are on d: the data stays where it is. A move that was the last stage
   is replaced. */
static flux_loader *flux__loader_on(flux_loader *l, flux_device d, bool keep_f64) {
    flux__stage s;
    if (!l) return (flux_loader *)flux__null("to", "loader", l);
    memset(&s, 0, sizeof s);
    s.kind = FLUX__STAGE_MOVE;
    s.device = d;
    s.keep_f64 = keep_f64;
    return flux__loader_with(l, s, l->stages && l->stage[l->stages - 1].kind == FLUX__STAGE_MOVE);
}

/* Where a loader's batches lie: the last move's device, else the arrays'. */
static flux_device flux__loader_device(const flux_loader *l) {
    flux_device cpu = { 0, 0 };
    for (int i = l->stages - 1; i >= 0; i--)
        if (l->stage[i].kind == FLUX__STAGE_MOVE) return l->stage[i].device;
    return l->arrays ? l->array[0]->device : cpu;
}

FLUX_DEF flux_loader *flux_cuiterator(flux_loader *l) {
    if (!l) return (flux_loader *)flux__null("cuiterator", "l", l);
    if (!flux_functional("CUDA")) return flux_cu_loader(l);      /* which says why, and gives l */
    flux_device d = { FLUX__CUDA_BACKEND, 0 };
    return flux__loader_on(l, d, true);
}

FLUX_DEF flux_loader *flux_mapobs(flux_fn f, flux_loader *l) {
    flux__stage s;
    if (!l) return (flux_loader *)flux__null("mapobs", "l", l);
    if (!f) return (flux_loader *)flux__fail("mapobs: argument f is NULL");
    typedef flux_loader *(*whole)(flux_loader *l);
    static const flux_fn move[] = { flux_gpu, flux_cpu, flux_cu, flux_roc };
    static const whole all[] = { flux_gpu_loader, flux_cpu_loader, flux_cu_loader,
                                 flux_roc_loader };
    for (int i = 0; i < 4; i++)
        if (f == move[i]) return all[i](l);    /* a move can be made ahead, a function can't */
    memset(&s, 0, sizeof s);
    s.kind = FLUX__STAGE_MAP;
    s.map = f;
    return flux__loader_with(l, s, false);
}

FLUX_DEF int64_t flux_length(const flux_loader *l) {
    if (!l) return flux__null("length", "l", l), -1;
    return l->batches;
}

/* ---- making a batch */

/* Which observations of the share batch i has. A share that is one short of a multiple of the
   batchsize still has as many batches as the others': its last two divide what the last full
   one has. Where that is one observation, it comes twice. */
static int64_t flux__batch_span(const flux_loader *l, int64_t i, int64_t *from) {
    bool lacking = l->partial && l->batches > 1 && (l->batches - 1) * l->batch >= l->share;
    int64_t start = i * l->batch, stop = start + l->batch;
    if (lacking && l->batch > 1 && i == l->batches - 2) stop = l->share - 1;
    if (lacking && i == l->batches - 1) start = l->share - 1;
    if (stop > l->share) stop = l->share;
    *from = start;
    return stop - start;
}

/* Copies observations of `row` bytes each, in the given order (or as they stand, from `begin`
   on). */
static void flux__copy_observations(char *to, const char *from, size_t row, const int64_t *order,
                                    int64_t begin, int64_t n) {
    if (!order) memcpy(to, from + (size_t)begin * row, (size_t)n * row);
    else if (row == 1)
        for (int64_t i = 0; i < n; i++) to[i] = from[order[i]];
    else if (row == 4)
        for (int64_t i = 0; i < n; i++) memcpy(to + 4 * i, from + 4 * order[i], 4);
    else if (row == 8)
        for (int64_t i = 0; i < n; i++) memcpy(to + 8 * i, from + 8 * order[i], 8);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + (size_t)i * row, from + (size_t)order[i] * row, row);
}

/* n observations of array k as one tensor, or without the last dimension where n is -1. */
static flux_tensor *flux__pick_host(const flux_loader *l, int k, const int64_t *order,
                                    int64_t begin, int64_t n) {
    flux_tensor *x = l->array[k];
    if (!order && begin == 0 && n == l->total) return x;         /* all of it */
    flux_shape s = flux_shape_of(x);
    size_t row = flux_dtype_size((flux_dtype)x->dtype);
    for (int i = 0; i < s.ndim - 1; i++) row *= (size_t)s.dim[i];
    if (n < 0) s.ndim--;
    else s.dim[s.ndim - 1] = n;
    flux_tensor *part = flux__leaf(s, (flux_dtype)x->dtype, x->device);
    if (part && row)
        flux__copy_observations((char *)part->buf->ptr, l->host[k], row, order, begin,
                                n < 0 ? 1 : n);
    return part;
}

/* The same of an array on a device: gathered there, no element comes to the host. */
static flux_tensor *flux__pick_device(const flux_loader *l, int k, const int64_t *order,
                                      int64_t begin, int64_t n) {
    flux_tensor *x = l->array[k];
    int last = x->ndim - 1;
    if (n < 0) return flux_select(x, last, order ? order[0] : begin);
    if (!order) return flux_slice(x, last, begin, begin + n);
    return flux_gather(x, last, flux__index_tensor(order, begin, n, x->device));
}

static flux_tensor *flux__pick(const flux_loader *l, int k, const int64_t *order, int64_t begin,
                               int64_t n) {
    if (flux__in_host_memory(l->array[k])) return flux__pick_host(l, k, order, begin, n);
    return flux__pick_device(l, k, order, begin, n);
}

static flux_tensor *flux__pick_tuple(const flux_loader *l, int k, const int64_t *order,
                                     int64_t begin, int64_t n) {
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs);
    if (!xs) return NULL;
    for (int64_t i = 0; i < n; i++)
        xs[i] = flux__pick(l, k, order ? order + i : NULL, begin + i, -1);
    flux_tensor *tuple = flux_tuple_of((int)n, xs);
    FLUX_FREE(xs);
    return tuple;
}

/* Array k of n observations of a data set, of which `obs` has all arrays, as one tensor: joined
   along a new last dimension. */
static flux_tensor *flux__batch_join(const flux_loader *l, int k, flux_tensor **obs, int64_t n) {
    flux_tensor *a = obs[k], *whole = NULL;
    flux_shape s = flux_shape_of(a);
    int64_t step = l->set.arrays;
    bool host = true;
    if (s.ndim == FLUX_MAX_DIMS)
        return (flux_tensor *)flux__fail(
            "dataloader: array %d of an observation has %d dimensions: no room for the batch's", k,
            s.ndim);
    for (int64_t i = 0; i < n; i++) {
        flux_tensor *b = obs[i * step + k];
        flux_shape t = flux_shape_of(b);
        if (t.ndim != s.ndim || memcmp(t.dim, s.dim, (size_t)s.ndim * sizeof s.dim[0]) != 0 ||
            b->dtype != a->dtype)
            return (flux_tensor *)flux__fail("dataloader: array %d of observation %lld of a batch "
                                             "has another shape or dtype than that of its first",
                                             k, (long long)i);
        if (!flux__in_host_memory(b)) host = false;
    }
    s.dim[s.ndim++] = n;
    if (!host) {
        flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs);
        for (int64_t i = 0; xs && i < n; i++) xs[i] = obs[i * step + k];
        if (xs) whole = flux_stack_all(s.ndim - 1, (int)n, xs);
        if (xs) FLUX_FREE(xs);
        return whole;
    }
    whole = flux__leaf(s, (flux_dtype)a->dtype, a->device);
    size_t row = (size_t)flux_len(a) * flux_dtype_size((flux_dtype)a->dtype);
    for (int64_t i = 0; whole && row && i < n; i++) {
        const void *p = flux_data(obs[i * step + k]);
        if (!p) return NULL;
        memcpy((char *)whole->buf->ptr + (size_t)i * row, p, row);
    }
    return whole;
}

/* Observation i of the user's data set, its arrays into out. */
static bool flux__observation(const flux_loader *l, int64_t i, flux_tensor **out) {
    int width = l->set.arrays;
    for (int k = 0; k < width; k++) out[k] = NULL;
    int code = l->set.get(l->set.user, i, width, out);
    if (flux_failed()) return false;
    if (code)
        return FLUX__REFUSE("dataloader: the data set's get gave %d for observation %lld", code,
                            (long long)i);
    for (int k = 0; k < width; k++)
        if (!out[k])
            return FLUX__REFUSE(
                "dataloader: the data set's get left array %d of observation %lld NULL", k,
                (long long)i);
    return true;
}

static bool flux__batch_own(const flux_loader *l, const int64_t *order, int64_t begin, int64_t n,
                            flux__made *m) {
    int64_t step = l->set.arrays;
    flux_tensor **obs = (flux_tensor **)flux__malloc((size_t)(n * step) * sizeof *obs);
    flux_tensor **one = (flux_tensor **)flux__malloc((size_t)n * sizeof *one);
    bool good = obs && one;
    for (int64_t i = 0; good && i < n; i++)
        good = flux__observation(l, order ? order[i] : begin + i, obs + i * step);
    for (int k = 0; good && k < l->set.arrays; k++) {
        for (int64_t i = 0; i < n; i++) one[i] = obs[i * step + k];
        if (l->single) m->item[k] = one[0];
        else if (l->collate == FLUX_COLLATE_NONE) m->item[k] = flux_tuple_of((int)n, one);
        else m->item[k] = flux__batch_join(l, k, obs, n);
        good = m->item[k] != NULL;
    }
    if (obs) FLUX_FREE(obs);
    if (one) FLUX_FREE(one);
    return good;
}

static bool flux__batch_arrays(const flux_loader *l, const int64_t *order, int64_t begin, int64_t n,
                               flux__made *m) {
    for (int k = 0; k < l->arrays; k++) {
        if (l->single) m->item[k] = flux__pick(l, k, order, begin, -1);
        else if (l->collate == FLUX_COLLATE_NONE)
            m->item[k] = flux__pick_tuple(l, k, order, begin, n);
        else m->item[k] = flux__pick(l, k, order, begin, n);
        if (!m->item[k]) return false;
    }
    return true;
}

static flux_batch flux__as_batch(const flux__made *m) {
    flux_batch b;
    b.x = m->count > 0 ? m->item[0] : NULL;
    b.y = m->count > 1 ? m->item[1] : NULL;
    b.item = m->item;
    b.count = m->count;
    b.index = m->index;
    b.size = m->size;
    return b;
}

/* What a transform gave: its items, with x and y where it set those. */
static bool flux__stage_transform(const flux__stage *s, flux__made *m) {
    flux_batch was = flux__as_batch(m), b = s->transform(was, s->user);
    int n = b.count;
    if (flux_failed()) return false;
    if (n == was.count && n == 1 && b.y) n = 2;  /* a second array was added, or taken away */
    if (n == was.count && n == 2 && was.y && !b.y) n = 1;
    if (n < 1 || !b.x || !b.item)
        return FLUX__REFUSE("dataloader: the transform gave no array for batch %lld",
                            (long long)m->index);
    flux_tensor **item = (flux_tensor **)flux__malloc((size_t)n * sizeof *item);
    if (!item) return false;
    for (int i = 0; i < n; i++) item[i] = i < b.count ? b.item[i] : NULL;
    if (b.x != was.x || !item[0]) item[0] = b.x;
    if (n > 1 && (b.y != was.y || !item[1])) item[1] = b.y;
    flux_tensor **grown = (flux_tensor **)flux__grow(m->item, &m->room, n, sizeof *grown);
    bool good = grown != NULL;
    if (good) m->item = grown;
    for (int i = 0; good && i < n; i++) {
        m->item[i] = item[i];
        if (item[i]) continue;
        good = FLUX__REFUSE("dataloader: the transform left array %d of batch %lld NULL", i,
                            (long long)m->index);
    }
    m->count = good ? n : 0;
    m->size = b.size;
    FLUX_FREE(item);
    return good;
}

static flux_tensor *flux__stage_one(const flux__stage *s, flux_tensor *x) {
    if (s->kind == FLUX__STAGE_MAP) return s->map(x);
    if (x->dtype == FLUX_F64 && !s->keep_f64 && s->device.backend != FLUX__CPU_BACKEND)
        x = flux_to_dtype(x, FLUX_F32);
    return flux_device_equal(x->device, s->device) ? x : flux__move(x, s->device);
}

static flux_tensor *flux__stage_each(const flux__stage *s, flux_tensor *x) {
    int n = flux_count(x);
    if (x->op != FLUX__TUPLE) return flux__stage_one(s, x);
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)n * sizeof *xs);
    if (!xs) return NULL;
    for (int i = 0; i < n; i++) xs[i] = flux__stage_one(s, flux_nth(x, i));
    flux_tensor *tuple = flux_tuple_of(n, xs);
    FLUX_FREE(xs);
    return tuple;
}

/* Stages from m->stage on: all of them, or, on a worker, those before the first move. */
static bool flux__batch_stages(const flux_loader *l, flux__made *m, bool worker) {
    for (; m->stage < l->stages; m->stage++) {
        const flux__stage *s = &l->stage[m->stage];
        if (worker && s->kind == FLUX__STAGE_MOVE) break;
        if (s->kind == FLUX__STAGE_TRANSFORM) {
            if (!flux__stage_transform(s, m)) return false;
            continue;
        }
        for (int k = 0; k < m->count; k++) {
            m->item[k] = flux__stage_each(s, m->item[k]);
            if (!m->item[k] && !flux_failed())
                flux__fail("mapobs: the function gave NULL for array %d", k);
            if (!m->item[k]) return false;
        }
    }
    return true;
}

static bool flux__batch_items(const flux_loader *l, const int64_t *order, int64_t index,
                              flux__made *m) {
    int width = l->set.get ? l->set.arrays : l->arrays;
    flux_tensor **item = (flux_tensor **)flux__grow(m->item, &m->room, width, sizeof *item);
    if (!item) return false;
    int64_t from, n = flux__batch_span(l, index, &from);
    const int64_t *own = order ? order + from : NULL;
    m->item = item;
    m->index = index;
    m->size = n;
    m->stage = 0;
    m->count = width;
    return (l->set.get ? flux__batch_own : flux__batch_arrays)(l, own, l->begin + from, n, m);
}

/* A value that goes to another thread must be there: a node that is still to be computed
   belongs to its thread. One that goes to a device is sent off now, not when it is needed. */
static bool flux__batch_computed(flux_tensor *x) {
    bool good = x->op == FLUX__TUPLE || flux_eval(x) != NULL;
    for (int i = 0; good && x->op == FLUX__TUPLE && i < x->nin; i++)
        good = flux_eval(x->in[i]) != NULL;
    return good;
}

/* Batch `index` of the epoch that order and key stand for, or (a worker's batch that is to go
   on) its remaining stages. What is made on the way is freed, the items are retained; on error
   none is there. No graph is kept. */
static bool flux__batch_make(const flux_loader *l, const int64_t *order, uint64_t key,
                             int64_t index, bool worker, bool go_on, flux__made *m) {
    flux__thread *t = flux__self();
    bool good = true, moves = l->stages && l->stage[l->stages - 1].kind == FLUX__STAGE_MOVE;
    if (!t) return false;
    uint64_t seed = t->seed, draws = t->draws;
    flux__block scope = flux__scope_enter(), nograd = flux__nograd_enter();
    t->seed = flux__scramble(key + (uint64_t)index);
    t->draws = go_on ? (uint64_t)1 << 32 : 0;  /* another part of the batch's own stream */
    for (int i = 0; go_on && i < m->count; i++)  /* the scope has the old ones from here on */
        if (!flux__own(m->item[i])) good = false;
    good = good && (go_on || flux__batch_items(l, order, index, m)) &&
           flux__batch_stages(l, m, worker);
    for (int i = 0; good && (worker || moves) && i < m->count; i++)
        good = flux__batch_computed(m->item[i]);
    if (!good) m->count = 0;
    for (int i = 0; i < m->count; i++) flux_retain(m->item[i]);
    flux__nograd_leave(&nograd);
    flux__scope_leave(&scope);
    t->seed = seed;
    t->draws = draws;
    return good;
}

FLUX_DEF flux_batch flux_first(flux_loader *l) {
    flux__made m;
    flux_batch none;
    memset(&none, 0, sizeof none);
    memset(&m, 0, sizeof m);
    if (!l) return flux__null("first", "l", l), none;
    if (flux_failed()) return none;
    if (l->batches < 1) return flux__fail("first: the loader has no batches"), none;
    if (flux__batch_make(l, NULL, flux__scramble(l->seed), 0, false, false, &m)) {
        if (l->first) FLUX_FREE(l->first);
        l->first = m.item;
        for (int i = 0; i < m.count; i++) flux__own(m.item[i]);
        return flux__as_batch(&m);
    }
    flux__made_free(&m);
    return none;
}

/* ---- a loader as text */

/* "2x3 f32", or "4-element tuple of 2 f32"; of an array that a loader holds, the last dimension
   counts observations. */
static void flux__put_part(flux__sink *s, const flux_tensor *x) {
    bool tuple = x->op == FLUX__TUPLE;
    if (tuple) {
        flux__put_integer(s, x->nin, false);
        flux__put(s, "-element tuple of ");
        x = x->in[0];
    }
    for (int d = 0; d < x->ndim; d++) {
        if (d) flux__put(s, flux__glyph(FLUX__TIMES));
        flux__put_integer(s, x->dim[d], false);
    }
    flux__put(s, x->ndim ? " " : "scalar ");
    flux__put(s, flux_dtype_name((flux_dtype)x->dtype));
}

static void flux__put_option(flux__sink *s, const char *name, int64_t number, bool shown) {
    if (!shown) return;
    flux__put(s, ", ");
    flux__put(s, name);
    if (number >= 0) flux__put_integer(s, number, false);
}

static void flux__put_options(flux__sink *s, const flux_loader *l) {
    flux_device d = flux__loader_device(l);
    if (l->single) flux__put(s, ", batchsize=-1");
    else flux__put_option(s, "batchsize=", l->batch, true);
    flux__put_option(s, "shuffle=true", -1, l->shuffle);
    flux__put_option(s, "partial=false", -1, !l->partial);
    flux__put_option(s, "collate=none", -1, l->collate == FLUX_COLLATE_NONE);
    flux__put_option(s, "workers=", l->workers, l->workers > 0);
    flux__put_option(s, "rank=", l->rank, l->ranks > 1);
    flux__put_option(s, "ranks=", l->ranks, l->ranks > 1);
    flux__put_option(s, "device=", -1, d.backend != FLUX__CPU_BACKEND);
    if (d.backend == FLUX__CPU_BACKEND) return;
    flux__put(s, flux_device_backend(d));
    flux__put(s, "(");
    flux__put_integer(s, d.id, false);
    flux__put(s, ")");
}

static bool flux__put_loader(flux__sink *s, flux_loader *l) {
    flux__made m;
    memset(&m, 0, sizeof m);
    flux__put_integer(s, l->batches, false);
    flux__put(s, "-element DataLoader(");
    for (int i = 0; i < l->arrays; i++) {
        if (i) flux__put(s, ", ");
        flux__put_part(s, l->array[i]);
    }
    if (l->set.get) flux__put_integer(s, l->total, false);
    if (l->set.get) flux__put(s, " observations");
    flux__put_options(s, l);
    flux__put(s, ")");
    if (l->batches < 1) return true;
    bool good = flux__batch_make(l, NULL, flux__scramble(l->seed), 0, false, false, &m);
    flux__put(s, "\n  with first element:\n  ");
    for (int i = 0; i < m.count; i++) {
        if (i) flux__put(s, ", ");
        flux__put_part(s, m.item[i]);
    }
    flux__made_free(&m);
    return good;
}

FLUX_DEF size_t flux_loader_text(flux_loader *l, char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    if (!l) flux__null("loader_text", "l", l);
    else if (!flux__put_loader(&s, l)) s.len = 0;
    return flux__sink_end(&s);
}

/* ---- an epoch */

/* The thread's error becomes the batch's: it counts when that batch's turn comes, if it does. */
static void flux__made_fail(flux__made *m) {
    snprintf(m->error, sizeof m->error, "%s",
             flux_failed() ? flux_error() : "dataloader: no batch was made");
    flux_clear();
}

static void flux__made_error(flux__made *m) {      /* said already, by the thread that met it */
    flux__thread *t = flux__self();
    if (!t || t->error.set) return;
    memcpy(t->error.text, m->error, sizeof t->error.text);
    t->error.set = true;
    t->error.repeated = 0;
}

static void flux__made_swap(flux__made *a, flux__made *b) {
    flux__made c = *a;
    *a = *b;
    *b = c;
}

static void flux__epoch_worker(void *arg) {
    flux__epoch *r = (flux__epoch *)arg;
    flux_loader *l = r->loader;
    flux__mutex_lock(&r->lock);
    while (!r->stop && r->claimed < l->batches) {
        if (r->claimed - r->taken >= r->depth) {
            flux__cond_wait(&r->changed, &r->lock);
            continue;
        }
        int64_t i = r->claimed++;
        flux__made *m = &r->ring[i % r->depth];  /* nobody else touches it until it is ready */
        flux__mutex_unlock(&r->lock);
        flux__made_empty(m);
        if (!flux__batch_make(l, r->order, r->key, i, true, false, m)) flux__made_fail(m);
        flux__mutex_lock(&r->lock);
        m->ready = true;
        flux__cond_broadcast(&r->changed);
    }
    flux__mutex_unlock(&r->lock);
}

/* As many workers as the system gives; with none, the batches are made by who asks for them. */
static void flux__epoch_hire(flux__epoch *r) {
    static const flux__mutex lock = FLUX__MUTEX_INIT;
    static const flux__cond changed = FLUX__COND_INIT;
    int want = r->loader->workers;
    for (int k = 0; k < r->loader->arrays; k++)    /* a device makes its batches itself */
        if (!flux__in_host_memory(r->loader->array[k])) want = 0;
    if (want > r->loader->batches) want = (int)r->loader->batches;
    if (want < 1) return;
    memcpy(&r->lock, &lock, sizeof lock);
    memcpy(&r->changed, &changed, sizeof changed);
    r->depth = 2 * want;
    r->ring = (flux__made *)flux__zalloc((size_t)r->depth * sizeof *r->ring);
    r->thread = (flux__os_thread *)flux__zalloc((size_t)want * sizeof *r->thread);
    while (r->ring && r->thread && r->threads < want &&
           flux__thread_start(&r->thread[r->threads], flux__epoch_worker, r))
        r->threads++;
    if (r->ring && r->thread && r->threads < want)
        flux__note(FLUX_LOG_DEBUG, "data.workers", true,
                   "dataloader: %d of %d workers could be started", r->threads, want);
}

static flux__epoch *flux__epoch_new(flux_loader *l) {
    flux__epoch *r = (flux__epoch *)flux__zalloc(sizeof *r);
    if (!r) return NULL;
    r->loader = (flux_loader *)flux_retain(l);
    int64_t epoch = l->epoch++;
    if (l->seed) r->key = flux__scramble(l->seed + flux__scramble((uint64_t)epoch));
    else if (l->shuffle || l->set.get || l->stages) r->key = flux__draw_key();
    if (l->shuffle) r->order = flux__new_order(l->begin, l->share, r->key);
    if (!l->shuffle || r->order) flux__epoch_hire(r);
    return r;
}

static void flux__bar_free(struct flux__progress *bar);

static void flux__epoch_free(flux__epoch *r) {
    if (r->threads) {
        flux__mutex_lock(&r->lock);
        r->stop = true;
        flux__cond_broadcast(&r->changed);
        flux__mutex_unlock(&r->lock);
    }
    for (int i = 0; i < r->threads; i++) flux__thread_join(&r->thread[i]);
    for (int i = 0; r->ring && i < r->depth; i++) flux__made_free(&r->ring[i]);
    flux__made_free(&r->now);
    flux__made_free(&r->ahead);
    flux__bar_free(r->bar);
    if (r->ring) FLUX_FREE(r->ring);
    if (r->thread) FLUX_FREE(r->thread);
    if (r->order) FLUX_FREE(r->order);
    flux_release(r->loader);
    FLUX_FREE(r);
}

/* Batch i out of the ring. False: it is not there yet, and we are not to wait. */
static bool flux__ring_take(flux__epoch *r, int64_t i, bool wait, flux__made *out) {
    flux__made *m = &r->ring[i % r->depth];
    flux__mutex_lock(&r->lock);
    while (wait && !m->ready) flux__cond_wait(&r->changed, &r->lock);
    bool there = m->ready;
    if (there) {
        flux__made_swap(out, m);
        m->ready = false;
        r->taken = i + 1;
        flux__cond_broadcast(&r->changed);
    }
    flux__mutex_unlock(&r->lock);
    return there;
}

/* Batch i into m, with all its stages done; or why not in m->error. */
static void flux__epoch_make(flux__epoch *r, int64_t i, bool wait, flux__made *m) {
    bool good = true;
    flux__made_empty(m);
    m->ready = false;
    if (r->threads) {
        if (!flux__ring_take(r, i, wait, m)) return;
        if (m->error[0]) return;
        if (m->stage < r->loader->stages)
            good = flux__batch_make(r->loader, r->order, r->key, i, false, true, m);
    } else good = flux__batch_make(r->loader, r->order, r->key, i, false, false, m);
    if (!good) flux__made_fail(m);
    m->ready = true;
}

/* The next batch into r->now. False: an error, now pending. */
static bool flux__epoch_next(flux__epoch *r) {
    if (r->ahead.ready) {
        flux__made_swap(&r->now, &r->ahead);
        r->ahead.ready = false;
    } else flux__epoch_make(r, r->next, true, &r->now);
    if (r->now.error[0]) {
        flux__made_error(&r->now);
        return false;
    }
    r->next++;
    return true;
}

/* While the device works on this batch, the next one travels. */
static void flux__epoch_ahead(flux__epoch *r) {
    flux_loader *l = r->loader;
    bool moves = l->stages && flux__loader_device(l).backend != FLUX__CPU_BACKEND;
    if (moves && r->next < l->batches) flux__epoch_make(r, r->next, false, &r->ahead);
}

static struct flux__progress *flux__bar_new(const char *label, int64_t batches);
static void flux__bar_step(struct flux__progress *bar, int64_t done, int64_t size);
static void flux__bar_end(struct flux__progress *bar);

FLUX_DEF flux__each_state flux__each_start(flux__each_args a) {
    flux__each_state e;
    memset(&e, 0, sizeof e);
    if (!a.loader) return flux__null("each", "loader", a.loader), e;
    if (flux_failed()) return e;
    flux_loader *cursor = flux__loader_new();
    if (!cursor) return e;
    cursor->run = flux__epoch_new(a.loader);
    if (cursor->run && a.progress && !flux_failed())
        cursor->run->bar = flux__bar_new(a.progress, a.loader->batches);
    if (!cursor->run || flux_failed()) flux_release(cursor);
    else e.run = flux__own(cursor);
    return e;
}

/* Hands the batch to the iteration's scope. The array of items stays the run's. */
static bool flux__each_batch(flux__each_state *e, flux__epoch *r) {
    bool good = true;
    e->batch = flux__as_batch(&r->now);
    r->scope = flux__scope_enter();
    for (int i = 0; i < r->now.count; i++)
        if (!flux__own(r->now.item[i])) good = false;
    r->now.count = 0;
    return good;
}

FLUX_DEF bool flux__each_next(flux__each_state *e) {
    flux_loader *cursor = (flux_loader *)e->run;
    if (!cursor) return false;
    flux__epoch *r = cursor->run;
    bool left = e->inner != 0;                                   /* by break */
    e->inner = 0;
    flux__scope_leave(&r->scope);
    if (r->bar && r->next) flux__bar_step(r->bar, r->next, e->batch.size);
    if (left || flux_failed() || r->next >= r->loader->batches || !flux__epoch_next(r) ||
        !flux__each_batch(e, r)) {
        flux__each_leave(e);
        return false;
    }
    flux__epoch_ahead(r);
    e->inner = 1;
    return true;
}

/* Takes an object back from the scope that owns it. */
static void flux__disown(void *object) {
    flux__thread *t = flux__self();
    int i = t ? t->nowned - 1 : -1;
    while (i >= 0 && t->owned[i] != object) i--;
    if (i < 0) return;
    memmove(t->owned + i, t->owned + i + 1, (size_t)(t->nowned - i - 1) * sizeof *t->owned);
    t->nowned--;
    for (int s = t->nscopes - 1; s > 0 && t->scope[s] > i; s--) t->scope[s]--;
}

FLUX_DEF void flux__each_leave(flux__each_state *e) {
    flux_loader *cursor = (flux_loader *)e->run;
    if (!cursor) return;
    e->run = NULL;
    flux__scope_leave(&cursor->run->scope);
    if (cursor->run->bar) flux__bar_end(cursor->run->bar);
    flux__disown(cursor);
    flux_release(cursor);
}

/* ---- progress
   A bar looks at the values shown beside it only when it is drawn, ten times a second at
   most, so a loss that nobody else looks at is not computed for it at every step. On a
   terminal one line is drawn over and over; elsewhere (a file, a log) an epoch leaves one
   line at its end. */

typedef struct flux__progress {
    struct flux__progress *outer;
    char label[64];
    int64_t done, total, samples;
    double start, drawn;
    bool terminal;
    int values, width;                    /* width: columns of the line that stands there */
    struct { char label[24]; flux_tensor *x; double number; } value[6];
} flux__progress;

static flux__progress *flux__bar_new(const char *label, int64_t batches) {
    flux__progress *bar = (flux__progress *)flux__zalloc(sizeof *bar);
    flux__thread *t = flux__self();
    if (!bar || !t) return bar;
    snprintf(bar->label, sizeof bar->label, "%s", label);
    bar->total = batches;
    bar->terminal = flux__is_terminal(stderr);
    bar->start = bar->drawn = flux__now();
    bar->outer = t->bar;
    t->bar = bar;
    return bar;
}

static void flux__bar_free(flux__progress *bar) {
    flux__thread *t = flux__self();
    if (!bar) return;
    flux__progress **link = t ? &t->bar : NULL;
    while (link && *link && *link != bar) link = &(*link)->outer;
    if (link && *link) *link = bar->outer;
    for (int i = 0; i < bar->values; i++) flux_release(bar->value[i].x);
    FLUX_FREE(bar);
}

static size_t flux__rate_text(double rate, char *out, size_t n) {
    if (rate >= 1e6) return (size_t)snprintf(out, n, "%.1fM", rate / 1e6);
    if (rate >= 1e4) return (size_t)snprintf(out, n, "%.1fk", rate / 1e3);
    return (size_t)snprintf(out, n, "%.0f", rate);
}

static void flux__time_text(double seconds, char *out, size_t n) {
    int64_t s = seconds < 0 || !(seconds < 1e8) ? 0 : (int64_t)(seconds + 0.5);
    if (s < 3600) snprintf(out, n, "%d:%02d", (int)(s / 60), (int)(s % 60));
    else snprintf(out, n, "%d:%02d:%02d", (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
}

/* "  loss 0.3456": the values as they are now. */
static void flux__bar_values(flux__progress *bar, const char *gap, char *out, size_t n) {
    size_t len = 0;
    out[0] = 0;
    for (int i = 0; i < bar->values && len < n; i++) {
        if (bar->value[i].x && !flux_failed()) bar->value[i].number = flux_item(bar->value[i].x);
        flux_assign(&bar->value[i].x, NULL);       /* looked at: no need to hold its graph */
        len += (size_t)snprintf(out + len, n - len, "%s%s %.4g", gap, bar->value[i].label,
                                bar->value[i].number);
    }
}

static void flux__bar_draw(flux__progress *bar, bool last) {
    char values[300], rate[32], time[32], tail[480], line[32];
    double now = flux__now(), spent = now - bar->start, done = (double)bar->done;
    double left = bar->done > 0 ? spent / done * ((double)bar->total - done) : 0;
    flux__bar_values(bar, "  ", values, sizeof values);
    flux__rate_text(spent > 0 ? (double)bar->samples / spent : 0, rate, sizeof rate);
    flux__time_text(last ? spent : left, time, sizeof time);
    int len = snprintf(tail, sizeof tail, " %lld/%lld  %s samples/s  %s %s%s", (long long)bar->done,
                       (long long)bar->total, rate, last ? "time" : "eta", time, values);
    int head = (int)strlen(bar->label) + 7, columns = flux__terminal_width(stderr) - 1;
    int room = columns - head - len, percent = 100, full, old = bar->width;
    room = room < 0 ? 0 : room > 30 ? 30 : room;
    full = bar->total > 0 ? (int)(room * bar->done / bar->total) : room;
    if (bar->total > 0) percent = (int)(100 * bar->done / bar->total);
    for (int i = 0; i < room; i++) line[i] = i < full ? '#' : '.';
    line[room] = 0;
    if (len > columns - head) len = columns > head ? columns - head : 0;
    bar->width = head + room + len;
    bar->drawn = now;
    fprintf(stderr, "\r%s %3d%% %s%.*s%*s", bar->label, percent, line, len, tail,
            old > bar->width ? old - bar->width : 0, "");
    fflush(stderr);
}

/* `done` batches are over, the last of them with `size` observations. */
static void flux__bar_step(flux__progress *bar, int64_t done, int64_t size) {
    if (done <= bar->done) return;
    bar->done = done;
    bar->samples += size;
    if (bar->terminal && flux__now() - bar->drawn >= 0.1) flux__bar_draw(bar, false);
}

static void flux__bar_end(flux__progress *bar) {
    char values[300], rate[32], of[32];
    double spent = flux__now() - bar->start;
    if (bar->terminal) {
        flux__bar_draw(bar, true);
        if (!bar->outer) fputc('\n', stderr);
        else fprintf(stderr, "\r%*s\r", bar->width, "");  /* the bar around it draws there again */
        fflush(stderr);
        return;
    }
    flux__bar_values(bar, ", ", values, sizeof values);
    flux__rate_text(spent > 0 ? (double)bar->samples / spent : 0, rate, sizeof rate);
    snprintf(of, sizeof of, " of %lld", (long long)bar->total);
    fprintf(stderr, "%s: %lld%s batches, %lld samples in %.2f s, %s samples/s%s\n", bar->label,
            (long long)bar->done, bar->done < bar->total ? of : "", (long long)bar->samples, spent,
            rate, values);
}

/* The place of a label on the innermost bar; what it held is let go. NULL: no bar, or no room. */
static int flux__bar_place(const char *label, flux__progress **out) {
    flux__thread *t = flux__self();
    flux__progress *bar = t ? t->bar : NULL;
    int i = 0;
    *out = bar;
    if (!bar || !label) return -1;
    while (i < bar->values &&
           strncmp(bar->value[i].label, label, sizeof bar->value[i].label - 1) != 0)
        i++;
    if (i >= 6) return -1;
    if (i == bar->values) {
        snprintf(bar->value[i].label, sizeof bar->value[i].label, "%s", label);
        bar->values++;
    }
    flux_assign(&bar->value[i].x, NULL);
    return i;
}

FLUX_DEF void flux_progress(const char *label, flux_tensor *value) {
    flux__progress *bar;
    if (!value) flux__null("progress", "value", value);
    if (!value) return;
    if (flux_len(value) != 1) {
        flux__fail("progress: %s has %lld elements, not one", label ? label : "the value",
                   (long long)flux_len(value));
        return;
    }
    int i = flux__bar_place(label, &bar);
    if (i >= 0) bar->value[i].x = (flux_tensor *)flux_retain(value);
}

FLUX_DEF void flux_progress_number(const char *label, double value) {
    flux__progress *bar;
    int i = flux__bar_place(label, &bar);
    if (i >= 0) bar->value[i].number = value;
}

/* ------------------------------------------------------------------ 23. Files
   Readers of IDX (MNIST's format), NumPy's .npy, CSV and safetensors, writers of the second and
   the last.
   Readers work on a flux__source: a file, or bytes in memory in its place, so that a test can
   hand them anything.
   Invariants: nothing that a file says is used before it is checked; no memory is asked for on
   the word of a heading before the bytes that it promises are known to be there; what is in
   memory, or on the disk under the name asked for, changes at the very end of a call or not at
   all. Files are little-endian (IDX and some .npy are not) and row-major: a tensor's memory is
   the file's, and its dimensions stand there in reverse, so that no data are shuffled.
   Rejected: mapping files into memory (a file that shrinks meanwhile kills the process), and a
   JSON parser for more than safetensors allows: three fixed levels need no recursion. */

/* Element types as files name them. The first ones stand in flux_dtype's order: what we write.
   The others are read into the next wider type we have. */
typedef struct flux__element {
    const char *name;                     /* safetensors' */
    char letter;                          /* NumPy's; 0: it has none */
    uint8_t idx;                          /* IDX's number; 0: it has none */
    uint8_t size;                         /* bytes in the file */
    uint8_t dtype;                        /* ours */
} flux__element;
static const flux__element flux__elements[] = {
    { "F32", 'f', 0x0D, 4, FLUX_F32 }, { "F64", 'f', 0x0E, 8, FLUX_F64 },
    { "F16", 'f', 0, 2, FLUX_F16 },    { "BF16", 0, 0, 2, FLUX_BF16 },
    { "I32", 'i', 0x0C, 4, FLUX_I32 }, { "I64", 'i', 0, 8, FLUX_I64 },
    { "U8", 'u', 0x08, 1, FLUX_U8 },   { "BOOL", 'b', 0, 1, FLUX_BOOL },
    { "I8", 'i', 0x09, 1, FLUX_I32 },  { "I16", 'i', 0x0B, 2, FLUX_I32 },
    { "U16", 'u', 0, 2, FLUX_I32 },    { "U32", 'u', 0, 4, FLUX_I64 }
};
enum { FLUX__NUM_ELEMENTS = (int)(sizeof flux__elements / sizeof *flux__elements) };

/* ---------------- sources */

typedef struct flux__source {
    const char *call, *path;              /* for messages */
    FILE *file;                           /* NULL: memory */
    const unsigned char *bytes;
    uint64_t size;                        /* of bytes */
} flux__source;

/* The end of a long path says more than its start, and messages have a length. */
static const char *flux__short_path(const char *path) {
    size_t n = strlen(path);
    return n > 120 ? path + n - 120 : path;
}

static void *flux__bad(const flux__source *s, const char *format, ...) FLUX__PRINTF(2, 3);
static void *flux__bad(const flux__source *s, const char *format, ...) {
    char why[400];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return flux__fail("%s: %s: %s", s->call, flux__short_path(s->path), why);
}

#define flux__refuse(...) ((flux_tensor *)flux__bad(__VA_ARGS__))

/* In steps that a 32-bit long can say, each of them proved to lie in the file before the next. */
static bool flux__seek(FILE *f, uint64_t at) {
    if (fseek(f, 0, SEEK_SET) != 0) return false;
    while (at > (uint64_t)LONG_MAX) {
        if (fseek(f, LONG_MAX, SEEK_CUR) != 0 || fgetc(f) == EOF) return false;
        at -= (uint64_t)LONG_MAX + 1;
    }
    return fseek(f, (long)at, SEEK_CUR) == 0;
}

/* Reads n bytes from position `at`; false, without an error, where the file ends before. */
static bool flux__peek(flux__source *s, uint64_t at, void *out, size_t n) {
    if (s->file) return flux__seek(s->file, at) && fread(out, 1, n, s->file) == n;
    if (at > s->size || n > s->size - at) return false;
    if (n) memcpy(out, s->bytes + at, n);
    return true;
}

/* Whether the file has at least n bytes. */
static bool flux__reaches(flux__source *s, uint64_t n) {
    char last;
    return n == 0 || flux__peek(s, n - 1, &last, 1);
}

/* Whether the file has exactly n bytes; an error if not. */
static bool flux__exactly(flux__source *s, uint64_t n, const char *what) {
    if (!flux__reaches(s, n))
        flux__bad(s, "it ends before its data do: %s needs %llu bytes", what,
                  (unsigned long long)n);
    else if (flux__reaches(s, n + 1))
        flux__bad(s, "it goes on after its data: %s needs %llu bytes", what, (unsigned long long)n);
    else return true;
    return false;
}

static bool flux__source_open(flux__source *s, const char *call, const char *path) {
    char first;
    s->call = call;
    s->path = path;
    s->bytes = NULL;
    s->size = 0;
    s->file = NULL;
    if (!path) {
        flux__null(call, "path", path);
        return false;
    }
    s->file = flux__fopen(path, "rb");
    if (!s->file)
        flux__fail("%s: cannot open %s: %s", call, flux__short_path(path), strerror(errno));
    else if (fread(&first, 1, 1, s->file) != 1) {
        if (ferror(s->file)) flux__bad(s, "cannot read it: %s", strerror(errno));
        else flux__bad(s, "it is empty");
    } else if (fseek(s->file, 0, SEEK_SET) != 0)
        flux__bad(s, "cannot seek in it: %s", strerror(errno));
    else return true;
    if (s->file) fclose(s->file);
    s->file = NULL;
    return false;
}

static void flux__source_close(flux__source *s) {
    if (s->file) fclose(s->file);
    s->file = NULL;
}

/* Files that are something else than they were taken for, by how they begin. */
typedef struct flux__magic { const char *bytes; size_t n; const char *what; } flux__magic;

static bool flux__foreign(flux__source *s) {
    static const flux__magic known[] = {
        { "\x1f\x8b", 2, "compressed by gzip: unpack it first (gunzip)" },
        { "PK\3\4", 4, "a zip archive (as .npz files are): unpack it first, and load a member" },
        { "\xff\xfe", 2, "UTF-16 text: save it as UTF-8" },
        { "\x89HDF", 4, "an HDF5 file, which is not read here" },
        { "\x80\x02", 2, "a Python pickle, which is not read here: save as safetensors" }
    };
    char head[4] = { 0, 0, 0, 0 };
    size_t n = 4;
    while (n > 0 && !flux__peek(s, 0, head, n)) n--;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (n >= known[i].n && memcmp(head, known[i].bytes, known[i].n) == 0) {
            flux__bad(s, "it is %s", known[i].what);
            return true;
        }
    return false;
}

/* ---------------- elements, from the file's form to ours and back */

static bool flux__big_endian(void) {
    const uint16_t one = 1;
    unsigned char low;
    memcpy(&low, &one, 1);
    return low == 0;
}

static void flux__put_element(unsigned char *to, uint64_t v, size_t size) {
    if (size == 1) *to = (unsigned char)v;
    if (size == 2) { uint16_t w = (uint16_t)v; memcpy(to, &w, 2); }
    if (size == 4) { uint32_t w = (uint32_t)v; memcpy(to, &w, 4); }
    if (size == 8) memcpy(to, &v, 8);
}

/* Turns n elements, lying as the file has them at the end of the room for ours, into ours in
   place: bytes in this machine's order, small integers widened (the front never overtakes the
   rest), bools 0 or 1. */
static void flux__decode(unsigned char *to, size_t n, const flux__element *e, bool big) {
    size_t size = e->size, wide = flux__dtypes[e->dtype].size;
    const unsigned char *from = to + n * (wide - size);
    uint64_t sign = e->letter == 'i' && wide > size ? (uint64_t)1 << (8 * size - 1) : 0;
    if (wide == size && e->dtype != FLUX_BOOL && (size == 1 || big == flux__big_endian())) return;
    for (size_t i = 0; i < n; i++, from += size, to += wide) {
        uint64_t v = 0;
        for (size_t k = 0; k < size; k++) v |= (uint64_t)from[big ? size - 1 - k : k] << (8 * k);
        v = (v ^ sign) - sign;            /* spreads the sign bit */
        flux__put_element(to, e->dtype == FLUX_BOOL ? v != 0 : v, wide);
    }
}

/* The bytes that a tensor takes in the file; false, with an error, where they could not be
   counted or had. */
static bool flux__file_bytes(const flux__source *s, const flux__element *e, const flux_shape *shape,
                             uint64_t *bytes) {
    uint64_t n = 1, most = (uint64_t)7e13 / 8;         /* as flux__check_shape has it */
    if (most > SIZE_MAX / 8) most = SIZE_MAX / 8;
    for (int i = 0; i < shape->ndim; i++) {
        uint64_t d = shape->dim[i] > 0 ? (uint64_t)shape->dim[i] : 1;
        if (d > most / n) {
            flux__bad(s, "a tensor of that shape is too large (dimension %d is %lld)", i,
                      (long long)shape->dim[i]);
            return false;
        }
        n *= d;
    }
    *bytes = flux__count(shape) > 0 ? n * e->size : 0;
    return true;
}

/* A tensor of the elements that lie at position `at`. */
static flux_tensor *flux__read_tensor(flux__source *s, uint64_t at, const flux__element *e,
                                      flux_shape shape, bool big) {
    flux_device cpu = { 0, 0 };
    flux_tensor *t = flux__leaf(shape, (flux_dtype)e->dtype, cpu);
    if (!t) return NULL;
    size_t n = (size_t)flux__count(&shape);
    unsigned char *p = (unsigned char *)t->buf->ptr;
    if (n &&
        !flux__peek(s, at, p + n * ((size_t)flux__dtypes[e->dtype].size - e->size), n * e->size))
        return flux__refuse(s, "cannot read %llu bytes at position %llu: %s",
                            (unsigned long long)n * e->size, (unsigned long long)at,
                            s->file && ferror(s->file) ? strerror(errno) : "it is shorter now");
    flux__decode(p, n, e, big);
    return t;
}

/* Writes n elements of `size` bytes each, least significant byte first. */
static bool flux__write_elements(flux__out *o, const void *data, uint64_t n, size_t size) {
    const unsigned char *p = (const unsigned char *)data;
    unsigned char turned[1024];
    if (!flux__big_endian() || size == 1) return flux__out_write(o, data, (size_t)n * size);
    for (size_t part = 0; n > 0; n -= part, p += part * size) {
        part = n < sizeof turned / size ? (size_t)n : sizeof turned / size;
        for (size_t i = 0; i < part * size; i++) turned[i] = p[i - i % size + size - 1 - i % size];
        if (!flux__out_write(o, turned, part * size)) return false;
    }
    return true;
}

/* ---------------- IDX: 0 0 type ndim, sizes as 32-bit numbers, elements; all big-endian */

static flux_tensor *flux__parse_idx(flux__source *s) {
    unsigned char head[4 + 4 * FLUX_MAX_DIMS];
    const flux__element *e = NULL;
    uint64_t bytes;
    if (flux__foreign(s)) return NULL;
    if (!flux__peek(s, 0, head, 4)) return flux__refuse(s, "it is too short for an IDX file");
    if (head[0] || head[1])
        return flux__refuse(s, "it is no IDX file: it begins with bytes %d %d, not 0 0", head[0],
                            head[1]);
    for (int i = 0; i < FLUX__NUM_ELEMENTS; i++)
        if (head[2] && flux__elements[i].idx == head[2]) e = &flux__elements[i];
    if (!e)
        return flux__refuse(s, "element type 0x%02x is not one that IDX has (8, 9, B, C, D, E)",
                            head[2]);
    if (head[3] > FLUX_MAX_DIMS)
        return flux__refuse(s, "it has %d dimensions, but a tensor has at most %d", head[3],
                            FLUX_MAX_DIMS);
    size_t n = head[3], start = 4 + 4 * n;
    if (!flux__peek(s, 0, head, start))
        return flux__refuse(s, "it ends within its %d sizes", (int)n);
    flux_shape shape = flux__shape(NULL, 0);
    shape.ndim = (int)n;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *p = head + 4 + 4 * i;
        shape.dim[n - 1 - i] = (int64_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
    }
    if (!flux__file_bytes(s, e, &shape, &bytes)) return NULL;
    flux__text text = flux__shape_text(&shape);
    if (!flux__exactly(s, start + bytes, text.s)) return NULL;
    return flux__read_tensor(s, start, e, shape, true);
}

/* Runs a parser over a file, its temporaries hidden. */
static flux_tensor *flux__load_with(flux_tensor *(*parse)(flux__source *), const char *call,
                                    const char *path) {
    flux__source s;
    if (!flux__source_open(&s, call, path)) return NULL;
    int h = flux__hide();
    flux_tensor *t = parse(&s);
    flux__source_close(&s);
    return flux__reveal(h, t);
}

FLUX_DEF flux_tensor *flux_load_idx(const char *path) {
    return flux__load_with(flux__parse_idx, "load_idx", path);
}

/* ---------------- text headings: a cursor that both JSON and NumPy's dictionary are read with */

typedef struct flux__cursor {
    const flux__source *source;
    char *start, *at, *end;
    uint64_t offset;                      /* of start in the file */
} flux__cursor;

static bool flux__cursor_bad(const flux__cursor *c, const char *what) {
    flux__bad(c->source, "its heading is broken at byte %llu: %s",
              (unsigned long long)(c->at - c->start) + c->offset, what);
    return false;
}

static void flux__blanks(flux__cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

/* Steps over that character, if it comes next. */
static bool flux__next_is(flux__cursor *c, char want) {
    flux__blanks(c);
    if (c->at >= c->end || *c->at != want) return false;
    c->at++;
    return true;
}

static bool flux__expect(flux__cursor *c, char want) {
    char what[32];
    if (flux__next_is(c, want)) return true;
    snprintf(what, sizeof what, "'%c' should stand there", want);
    return flux__cursor_bad(c, what);
}

/* A whole number from 0 to 2^63-1, without sign or leading zeros. */
static bool flux__whole(flux__cursor *c, int64_t *out) {
    flux__blanks(c);
    char *start = c->at;
    int64_t v = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        int digit = *c->at - '0';
        if (v > (INT64_MAX - digit) / 10) return flux__cursor_bad(c, "that number is too large");
        v = v * 10 + digit;
    }
    if (c->at == start)
        return flux__cursor_bad(c, "a whole number that is not negative should stand there");
    if (*start == '0' && c->at > start + 1) return flux__cursor_bad(c, "a number begins with 0");
    *out = v;
    return true;
}

/* ---------------- .npy: "\x93NUMPY", version, length, a Python dictionary as text, elements */

typedef struct flux__npy {
    const flux__element *type;
    bool big, fortran;
    flux_shape shape;
    int seen;                             /* bits: descr, fortran_order, shape */
} flux__npy;

/* A Python string without escapes; NUL-terminated where it stands. */
static char *flux__npy_string(flux__cursor *c) {
    flux__blanks(c);
    char quote = c->at < c->end ? *c->at : 0, *start = c->at + 1;
    if (quote != '\'' && quote != '"') {
        flux__cursor_bad(c, "a string should stand there");
        return NULL;
    }
    for (c->at = start; c->at < c->end && *c->at != quote; c->at++)
        if ((unsigned char)*c->at < 32 || *c->at == '\\') break;
    if (c->at >= c->end || *c->at != quote) {
        flux__cursor_bad(c, "a string does not end");
        return NULL;
    }
    *c->at++ = 0;
    return start;
}

/* NumPy's name of a dtype: byte order, letter, bytes: "<f4". */
static bool flux__npy_dtype(flux__cursor *c, flux__npy *npy) {
    flux__blanks(c);
    if (c->at < c->end && *c->at == '[') {
        flux__bad(c->source, "its dtype is a record of several fields; save each field on its own");
        return false;
    }
    const char *name = flux__npy_string(c), *p = name;
    if (!name) return false;
    char order = *p && strchr("<>=|", *p) ? *p++ : '=', letter = *p ? *p++ : '0';
    int size = 0;
    for (; *p >= '0' && *p <= '9' && size < 1000; p++) size = size * 10 + (*p - '0');
    for (int i = 0; i < FLUX__NUM_ELEMENTS && *p == 0; i++)
        if (flux__elements[i].letter == letter && flux__elements[i].size == size)
            npy->type = &flux__elements[i];
    if (!npy->type || (order == '|' && size > 1)) {
        flux__bad(c->source,
                  "its dtype is '%.40s'; f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 b1 can be read: use astype",
                  name);
        return false;
    }
    npy->big = order == '>' || (order != '<' && flux__big_endian());
    return true;
}

static bool flux__npy_bool(flux__cursor *c, bool *out) {
    flux__blanks(c);
    size_t left = (size_t)(c->end - c->at);
    *out = left >= 4 && memcmp(c->at, "True", 4) == 0;
    if (!*out && (left < 5 || memcmp(c->at, "False", 5) != 0))
        return flux__cursor_bad(c, "True or False should stand there");
    c->at += *out ? 4 : 5;
    return true;
}

static bool flux__npy_shape(flux__cursor *c, flux__npy *npy) {
    int n = 0;
    bool comma = true;
    int64_t d;
    if (!flux__expect(c, '(')) return false;
    while (!flux__next_is(c, ')')) {
        if (!comma) return flux__cursor_bad(c, "',' or ')' should stand there");
        if (!flux__whole(c, &d)) return false;
        if (c->at < c->end && *c->at == 'L') c->at++;  /* Python 2's long */
        if (n < FLUX_MAX_DIMS) npy->shape.dim[n] = d;
        n++;
        comma = flux__next_is(c, ',');
    }
    if (n == 1 && !comma) return flux__cursor_bad(c, "a shape of one dimension is written (n,)");
    if (n > FLUX_MAX_DIMS)
        flux__bad(c->source, "it has %d dimensions, but a tensor has at most %d", n, FLUX_MAX_DIMS);
    npy->shape.ndim = n;
    return n <= FLUX_MAX_DIMS;
}

static bool flux__npy_heading(flux__cursor *c, flux__npy *npy) {
    static const char *const keys[] = { "descr", "fortran_order", "shape" };
    bool comma = true;
    if (!flux__expect(c, '{')) return false;
    while (!flux__next_is(c, '}')) {
        if (!comma) return flux__cursor_bad(c, "',' or '}' should stand there");
        const char *key = flux__npy_string(c);
        if (!key || !flux__expect(c, ':')) return false;
        int k = 0;
        while (k < 3 && strcmp(key, keys[k]) != 0) k++;
        if (k == 3)
            return flux__cursor_bad(c, "that key is not one of descr, fortran_order, shape");
        if (npy->seen & 1 << k) return flux__cursor_bad(c, "that key stands there twice");
        npy->seen |= 1 << k;
        if (k == 0 && !flux__npy_dtype(c, npy)) return false;
        if (k == 1 && !flux__npy_bool(c, &npy->fortran)) return false;
        if (k == 2 && !flux__npy_shape(c, npy)) return false;
        comma = flux__next_is(c, ',');
    }
    flux__blanks(c);
    if (npy->seen != 7) return flux__cursor_bad(c, "descr, fortran_order or shape is missing");
    return c->at == c->end || flux__cursor_bad(c, "something follows the dictionary");
}

/* Data in C order are those of the tensor of reversed dimensions, so that is read, and its
   transpose handed out. */
static flux_tensor *flux__npy_tensor(flux__source *s, uint64_t at, flux__npy *npy) {
    uint64_t bytes;
    flux_shape shape = npy->shape, back = npy->shape, order = npy->shape;
    int n = shape.ndim, wide = 0;
    if (!flux__file_bytes(s, npy->type, &shape, &bytes)) return NULL;
    flux__text text = flux__shape_text(&shape);
    if (!flux__exactly(s, at + bytes, text.s)) return NULL;
    for (int i = 0; i < n; i++) {
        order.dim[i] = n - 1 - i;
        back.dim[n - 1 - i] = shape.dim[i];
        wide += shape.dim[i] != 1;
    }
    if (npy->fortran || wide <= 1) return flux__read_tensor(s, at, npy->type, shape, npy->big);
    flux_tensor *t = flux__read_tensor(s, at, npy->type, back, npy->big);
    return t ? flux_permute_to(t, order) : NULL;
}

static flux_tensor *flux__parse_npy(flux__source *s) {
    unsigned char head[12];
    flux__npy npy;
    memset(&npy, 0, sizeof npy);
    if (flux__foreign(s)) return NULL;
    if (!flux__peek(s, 0, head, 10) || memcmp(head, "\x93NUMPY", 6) != 0)
        return flux__refuse(s, "it is no .npy file: it does not begin with \\x93NUMPY");
    if (head[6] < 1 || head[6] > 3 || head[7] != 0)
        return flux__refuse(s, "it has version %d.%d of the format; 1 to 3 can be read", head[6],
                            head[7]);
    size_t start = head[6] == 1 ? 10 : 12, n = (size_t)head[8] | (size_t)head[9] << 8;
    if (start == 12) {
        if (!flux__peek(s, 0, head, 12)) return flux__refuse(s, "it ends within its heading");
        n |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    }
    if (n > 1 << 20)
        return flux__refuse(s, "its heading has %llu bytes: too many", (unsigned long long)n);
    if (!flux__reaches(s, start + n))
        return flux__refuse(s, "it ends within its heading of %d bytes", (int)n);
    char *text = (char *)flux__malloc(n + 1);
    if (!text) return NULL;
    flux__cursor c = { s, text, text, text + n, start };
    bool good = flux__peek(s, start, text, n) && flux__npy_heading(&c, &npy);
    FLUX_FREE(text);
    return good ? flux__npy_tensor(s, start + n, &npy) : NULL;
}

FLUX_DEF flux_tensor *flux_load_npy(const char *path) {
    return flux__load_with(flux__parse_npy, "load_npy", path);
}

/* The heading for x, with the data beginning at a multiple of 64; its length. */
static size_t flux__npy_head(char *out, size_t room, const flux__element *e,
                             const flux_shape *shape) {
    size_t n = 10, total;
    n += (size_t)snprintf(out + n, room - n, "{'descr': '%c%c%d', 'fortran_order': %s, 'shape': (",
                          e->size > 1 ? '<' : '|', e->letter, e->size,
                          shape->ndim > 1 ? "True" : "False");
    for (int i = 0; i < shape->ndim; i++)
        n += (size_t)snprintf(out + n, room - n, i ? ", %lld" : "%lld", (long long)shape->dim[i]);
    n += (size_t)snprintf(out + n, room - n, shape->ndim == 1 ? ",), }" : "), }");
    total = (n + 1 + 63) / 64 * 64;
    memset(out + n, ' ', total - n - 1);
    out[total - 1] = '\n';
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    return total;
}

/* x, dtype and all, on that device (flux_to would make a float64 on its way to a GPU a float32). */
static flux_tensor *flux__placed(flux_tensor *x, flux_device d) {
    return flux_device_equal(x->device, d) ? x : flux__move(x, d);
}

/* Its elements in host memory. */
static const void *flux__host_data(flux_tensor *x) {
    flux_device cpu = { 0, 0 };
    flux_tensor *y = flux__placed(x, cpu);
    return y ? flux_data(y) : NULL;
}

static bool flux__plain(const char *call, const char *arg, const flux_tensor *x) {
    if (!x) flux__null(call, arg, x);
    else if (x->op == FLUX__TUPLE)
        flux__fail("%s: %s is a tuple of %d tensors; take one with flux_nth", call, arg, x->nin);
    else return true;
    return false;
}

FLUX_DEF int flux_save_npy(flux_tensor *x, const char *path) {
    char head[512];
    if (!flux__plain("save_npy", "x", x)) return -1;
    const flux__element *e = &flux__elements[x->dtype];
    if (!e->letter) {
        flux__fail("save_npy: NumPy has no %s; convert first: flux_to_dtype(x, FLUX_F32)",
                   flux__dtypes[x->dtype].name);
        return -1;
    }
    if (!path) {
        flux__null("save_npy", "path", path);
        return -1;
    }
    int h = flux__hide();
    flux_shape shape = flux__dims(x);
    const void *data = flux__host_data(x);
    flux__out *o = data ? flux__out_open(path, "save_npy") : NULL;
    bool good = o != NULL;
    if (good) {
        flux__out_write(o, head, flux__npy_head(head, sizeof head, e, &shape));
        flux__write_elements(o, data, (uint64_t)flux__count(&shape), e->size);
        good = flux__out_commit(o);
    }
    flux__reveal(h, NULL);
    return good ? 0 : -1;
}

/* ---------------- CSV: lines of numbers */

static bool flux__digit(char c) { return c >= '0' && c <= '9'; }

/* Whether the text is `word`, letters of either case. */
static bool flux__word(const char *p, const char *end, const char *word) {
    for (; p < end && *word && (*p | 32) == *word; p++) word++;
    return p == end && *word == 0;
}

/* The digits of a number without its point, and the power of ten that this takes: "12.50" is
   1250 and -2. Of those past the 780th only matters whether one is not 0. */
typedef struct flux__digits { char text[800]; int n; int64_t power; uint64_t value; } flux__digits;

static bool flux__take_digits(const char *p, const char *end, flux__digits *d) {
    bool point = false, any = false, minus;
    d->n = 0, d->power = 0, d->value = 0;
    for (; p < end && (flux__digit(*p) || (*p == '.' && !point)); p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        any = true;
        if (d->n == 0 && *p == '0') d->power -= point;     /* leading zeros are none */
        else if (d->n < 780) {
            d->text[d->n++] = *p;
            if (d->n < 20) d->value = d->value * 10 + (uint64_t)(*p - '0');
            d->power -= point;
        } else {
            if (*p != '0') d->text[d->n - 1] = (char)(d->text[d->n - 1] | 1);
            d->power += !point;
        }
    }
    if (!any || p == end) return any;
    if ((*p++ | 32) != 'e') return false;
    minus = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    int64_t e = 0;
    const char *start = p;
    for (; p < end && flux__digit(*p); p++) e = e < 1000000 ? e * 10 + (*p - '0') : e;
    d->power += minus ? -e : e;
    return p == end && p > start;
}

/* Reads 1250 and -2 as 12.5. Up to 19 digits make a double that is right but for its last bit
   or two; unless that leaves it open on which side of the middle between two float32 the number
   lies, it is rounded once more. Else strtof decides, which sees only "1250e-2", whatever the
   locale's point. */
static float flux__round_digits(flux__digits *d) {
    static const double ten[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    if (d->n == 0) return 0;
    if (d->n < 20 && d->power >= -22 && d->power <= 22) {
        double v = d->power < 0 ? (double)d->value / ten[-d->power]
                                : (double)d->value * ten[d->power];
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        bits = (bits & 0x1FFFFFFF) - 0x10000000 + 8;   /* what goes; 0 to 16: near the middle */
        if (bits > 16 && v < 3e38) return (float)v;
    }
    snprintf(d->text + d->n, sizeof d->text - (size_t)d->n, "e%lld", (long long)d->power);
    return strtof(d->text, NULL);
}

/* A decimal number (1), or inf or nan (2). 0 if the text as a whole is none of them. */
static int flux__number_of(const char *p, const char *end, float *out) {
    flux__digits d;
    int kind = 2;
    bool minus = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (flux__word(p, end, "inf") || flux__word(p, end, "infinity")) *out = HUGE_VALF;
    else if (flux__word(p, end, "nan")) *out = NAN;
    else if (flux__take_digits(p, end, &d)) *out = flux__round_digits(&d), kind = 1;
    else return 0;
    if (minus) *out = -*out;
    return kind;
}

typedef struct flux__csv {
    flux__source *source;
    const char *at, *end;
    int64_t line;                         /* number of the line that was read last, from 1 */
    char separator;                       /* ' ': any run of blanks */
} flux__csv;

static bool flux__is_blank(char c) { return c == ' ' || c == '\t'; }

static void flux__trim(const char **p, const char **end) {
    while (*p < *end && flux__is_blank(**p)) ++*p;
    while (*p < *end && flux__is_blank((*end)[-1])) --*end;
}

/* The next line that has something on it, without its comment. */
static FLUX__O2 bool flux__csv_line(flux__csv *c, const char **start, const char **stop) {
    while (c->at < c->end) {
        const char *p = c->at, *q = p, *comment;
        while (q < c->end && *q != '\n' && *q != '\r') q++;
        c->at = q < c->end ? q + 1 : q;
        if (c->at < c->end && *q == '\r' && *c->at == '\n') c->at++;
        c->line++;
        comment = (const char *)memchr(p, '#', (size_t)(q - p));
        if (comment) q = comment;
        *start = p;
        *stop = q;
        flux__trim(&p, &q);
        if (p < q) return true;
    }
    return false;
}

/* Takes the next field, a to b, off the line that goes on at *p (NULL: it does not). */
static FLUX__O2 bool flux__csv_field(const flux__csv *c, const char **p, const char *end, const char **a,
                            const char **b) {
    const char *q;
    if (!*p) return false;
    if (c->separator == ' ') flux__trim(p, &end);
    if (c->separator == ' ' && *p == end) return false;
    for (q = *p; q < end && (c->separator == ' ' ? !flux__is_blank(*q) : *q != c->separator);) q++;
    *a = *p;
    *b = q;
    flux__trim(a, b);
    *p = q < end ? q + 1 : NULL;
    return true;
}

static int64_t flux__csv_bad(const flux__csv *c, int64_t column, const char *a, const char *b,
                             const char *why) {
    char shown[28];
    int n = 0;
    for (; n < 24 && a + n < b; n++) shown[n] = (unsigned char)a[n] < 32 ? '?' : a[n];
    snprintf(shown + n, sizeof shown - (size_t)n, "%s", a + n < b ? "..." : "");
    flux__bad(c->source, "line %lld, column %lld: \"%s\" %s", (long long)c->line, (long long)column,
              shown, why);
    return -1;
}

/* The numbers of a line, of which `most` fit into out (NULL: they are only counted); how many,
   or -1 with an error. */
static FLUX__O2 int64_t flux__csv_numbers(const flux__csv *c, const char *p, const char *end, float *out,
                                 int64_t most) {
    const char *a, *b;
    int64_t n = 0;
    float v = 0;
    for (; flux__csv_field(c, &p, end, &a, &b); n++) {
        if (!out) continue;
        int kind = flux__number_of(a, b, &v);
        if (a == b) return flux__csv_bad(c, n + 1, a, b, "should be a number");
        if (!kind && memchr(a, ',', (size_t)(b - a)))
            return flux__csv_bad(c, n + 1, a, b, "is not a number: a point is needed");
        if (!kind) return flux__csv_bad(c, n + 1, a, b, "is not a number");
        if (kind == 1 && (v > FLT_MAX || v < -FLT_MAX))
            return flux__csv_bad(c, n + 1, a, b, "is too large for float32");
        if (n < most) out[n] = v;
    }
    return n;
}

/* Skips the heading, finds the separator, counts columns and lines; c then stands before the
   first line of numbers. */
static bool flux__csv_survey(flux__csv *c, int64_t *columns, int64_t *lines) {
    const char *a, *b, *q;
    float v;
    flux__csv before = *c;
    bool have = flux__csv_line(c, &a, &b);
    if (have) {
        while (a < b && flux__is_blank(*a)) a++;
        for (q = a; q < b && *q != ',' && *q != ';' && !flux__is_blank(*q);) q++;
        if (!flux__number_of(a, q, &v)) {              /* a heading, then */
            before = *c;
            have = flux__csv_line(c, &a, &b);
        }
    }
    if (!have) {
        flux__bad(c->source, "it has no line of numbers");
        return false;
    }
    const char *from = a, *to = b;
    flux__trim(&from, &to);
    size_t n = (size_t)(to - from);
    for (q = ";,\t "; *q != ' ' && !memchr(from, *q, n);) q++;
    c->separator = *q;
    *columns = flux__csv_numbers(c, a, b, NULL, 0);
    for (*lines = 1; flux__csv_line(c, &a, &b);) ++*lines;
    before.separator = c->separator;
    *c = before;
    return true;
}

/* Reads all lines into out, or if that is NULL only compares their lengths. */
static bool flux__csv_fill(flux__csv *c, float *out, int64_t columns) {
    const char *a, *b;
    int64_t first = 0;
    while (flux__csv_line(c, &a, &b)) {
        int64_t n = flux__csv_numbers(c, a, b, out, columns);
        if (n < 0) return false;
        if (!first) first = c->line;
        if (n != columns) {
            flux__bad(c->source, "line %lld has %lld numbers, but line %lld has %lld",
                      (long long)c->line, (long long)n, (long long)first, (long long)columns);
            return false;
        }
        if (out) out += columns;
    }
    return true;
}

static flux_tensor *flux__parse_csv(flux__source *s) {
    int64_t size[2];
    flux_device cpu = { 0, 0 };
    const char *text = (const char *)s->bytes;
    flux__csv c = { s, text, text + s->size, 0, ',' };
    if (flux__foreign(s)) return NULL;
    if (s->size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) c.at += 3; /* the mark of UTF-8 */
    if (!flux__csv_survey(&c, &size[0], &size[1])) return NULL;
    if ((uint64_t)size[1] > (s->size + 1) / (uint64_t)size[0] && !flux__csv_fill(&c, NULL, size[0]))
        return NULL;
    flux_tensor *t = flux__leaf(flux__shape(size, 2), FLUX_F32, cpu);
    return t && flux__csv_fill(&c, (float *)t->buf->ptr, size[0]) ? t : NULL;
}

FLUX_DEF flux_tensor *flux_load_csv(const char *path) {
    size_t size;
    if (!path) return (flux_tensor *)flux__null("load_csv", "path", path);
    void *text = flux__read_file(path, &size, "load_csv");
    if (!text) return NULL;
    flux__source s = { "load_csv", path, NULL, (const unsigned char *)text, size };
    int h = flux__hide();
    flux_tensor *t = flux__parse_csv(&s);
    FLUX_FREE(text);
    return flux__reveal(h, t);
}

/* ---------------- safetensors: the heading
   8 bytes say how long the heading is; it is JSON, {"name": {"dtype": "F32", "shape": [2, 3],
   "data_offsets": [0, 24]}, ..., "__metadata__": {"any": "text"}}; the data follow, without a
   hole or an overlap. */

#define FLUX__MAX_HEADING 100000000       /* bytes: what Python's library allows */

typedef struct flux__entry {              /* a tensor in the file */
    const char *name, *dtype;
    const flux__element *type;            /* NULL: one that we don't have */
    int ndim;                             /* may be more than a flux_shape has room for */
    int64_t dim[FLUX_MAX_DIMS];           /* in the file's order */
    uint64_t begin, end;                  /* among the data */
    bool used;
} flux__entry;
typedef struct flux__remark { const char *key, *value; bool used; } flux__remark;

typedef struct flux__archive {            /* a safetensors file, its heading read and checked */
    flux__source source;
    char *heading;                        /* the names' memory */
    uint64_t data;                        /* where the data begin */
    flux__entry *entry;                   /* sorted by name, as pairs are */
    flux__remark *pair;
    int entries, entry_room, pairs, pair_room;
} flux__archive;

/* Whether the bytes are UTF-8: no overlong form, no half of a surrogate pair, nothing past
   U+10FFFF. */
static bool flux__utf8(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (p < end) {
        unsigned c = *p++, low = 0x80, high = 0xBF;
        int more = c < 0x80 ? 0 : c < 0xC2 ? -1 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : c < 0xF5 ? 3 : -1;
        if (more < 0 || end - p < more) return false;
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
        for (; more > 0; more--, low = 0x80, high = 0xBF)
            if (*p < low || *p++ > high) return false;
    }
    return true;
}

static int flux__hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i] | 32, d = -1;
        if (flux__digit(p[i])) d = p[i] - '0';
        if (c >= 'a' && c <= 'f') d = c - 'a' + 10;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The character after a backslash, written to *out as UTF-8; it never takes more room there
   than its escape did. */
static bool flux__json_escape(flux__cursor *c, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = c->at < c->end && *c->at ? strchr(from, *c->at) : NULL;
    char *o = *out;
    if (known) {
        *o = to[known - from];
        *out = o + 1;
        c->at++;
        return true;
    }
    long v = c->end - c->at >= 5 && *c->at == 'u' ? flux__hex4(c->at + 1) : -1;
    if (v <= 0 || (v >= 0xDC00 && v < 0xE000))
        return flux__cursor_bad(c, "that escape is not one that JSON has, or U+0000");
    c->at += 5;
    if (v >= 0xD800 && v < 0xDC00) {
        long low = c->end - c->at >= 6 && c->at[0] == '\\' && c->at[1] == 'u'
                       ? flux__hex4(c->at + 2)
                       : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return flux__cursor_bad(c, "half a character is escaped there");
        v = 0x10000 + (v - 0xD800) * 0x400 + (low - 0xDC00);
        c->at += 6;
    }
    if (v < 0x80) *o++ = (char)v;
    else {
        int more = v < 0x800 ? 1 : v < 0x10000 ? 2 : 3;
        *o++ = (char)((0xF80 >> more & 0xF0) | v >> 6 * more);
        while (more-- > 0) *o++ = (char)(0x80 | (v >> 6 * more & 0x3F));
    }
    *out = o;
    return true;
}

/* A JSON string, unescaped and NUL-terminated where it stands. */
static char *flux__json_string(flux__cursor *c) {
    if (!flux__expect(c, '"')) return NULL;
    char *start = c->at, *o = start;
    while (c->at < c->end && *c->at != '"' && (unsigned char)*c->at >= 32) {
        if (*c->at != '\\') {
            *o++ = *c->at++;
            continue;
        }
        c->at++;
        if (!flux__json_escape(c, &o)) return NULL;
    }
    if (c->at >= c->end || *c->at != '"')
        flux__cursor_bad(c, "a string does not end, or holds a control character");
    else if (!flux__utf8(start, (size_t)(o - start)))
        flux__cursor_bad(c, "that string is not UTF-8");
    else {
        c->at++;
        *o = 0;
        return start;
    }
    return NULL;
}

/* Steps from one member of an object or array to the next: 1 there is one, 0 it ended, -1
   broken. */
static int flux__json_next(flux__cursor *c, bool first, char close) {
    if (flux__next_is(c, close)) return 0;
    if (!first && !flux__expect(c, ',')) return -1;
    return 1;
}

/* Numbers in brackets; how many, or -1. Those past `most` are checked and counted. */
static int flux__json_numbers(flux__cursor *c, int64_t *out, int most) {
    int n = 0, more;
    int64_t v;
    if (!flux__expect(c, '[')) return -1;
    for (; (more = flux__json_next(c, n == 0, ']')) > 0; n++) {
        if (!flux__whole(c, &v)) return -1;
        if (n < most) out[n] = v;
    }
    return more < 0 ? -1 : n;
}

/* The object that describes one tensor. */
static bool flux__json_entry(flux__cursor *c, flux__entry *e) {
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    int64_t at[2] = { 0, 0 };
    int more, seen = 0, n = 0;
    if (!flux__expect(c, '{')) return false;
    while ((more = flux__json_next(c, seen == 0, '}')) > 0) {
        const char *key = flux__json_string(c);
        int k = 0;
        if (!key || !flux__expect(c, ':')) return false;
        while (k < 3 && strcmp(key, keys[k]) != 0) k++;
        if (k == 3) return flux__cursor_bad(c, "a tensor has no such key");
        if (seen & 1 << k) return flux__cursor_bad(c, "that key stands there twice");
        seen |= 1 << k;
        if (k == 0 && !(e->dtype = flux__json_string(c))) return false;
        if (k == 1 && (e->ndim = flux__json_numbers(c, e->dim, FLUX_MAX_DIMS)) < 0) return false;
        if (k == 2 && (n = flux__json_numbers(c, at, 2)) < 0) return false;
    }
    if (more < 0) return false;
    if (seen != 7) return flux__cursor_bad(c, "dtype, shape or data_offsets is missing");
    if (n != 2 || at[0] > at[1])
        return flux__cursor_bad(c, "data_offsets are not a beginning and an end");
    e->begin = (uint64_t)at[0];
    e->end = (uint64_t)at[1];
    for (int i = 0; i < FLUX__NUM_ELEMENTS; i++)
        if (strcmp(flux__elements[i].name, e->dtype) == 0) e->type = &flux__elements[i];
    return true;
}

static bool flux__json_metadata(flux__cursor *c, flux__archive *z) {
    int more;
    if (!flux__expect(c, '{')) return false;
    for (bool first = true; (more = flux__json_next(c, first, '}')) > 0; first = false) {
        flux__remark *p = (flux__remark *)flux__grow(z->pair, &z->pair_room, z->pairs + 1,
                                                     sizeof *p);
        if (!p) return false;
        z->pair = p;
        p += z->pairs;
        p->used = false;
        if (!(p->key = flux__json_string(c)) || !flux__expect(c, ':') ||
            !(p->value = flux__json_string(c)))
            return false;
        z->pairs++;
    }
    return more == 0;
}

static bool flux__json_archive(flux__cursor *c, flux__archive *z) {
    int more;
    bool metadata = false;
    if (c->at == c->end || *c->at++ != '{') return flux__cursor_bad(c, "it does not begin with {");
    for (bool first = true; (more = flux__json_next(c, first, '}')) > 0; first = false) {
        const char *name = flux__json_string(c);
        if (!name || !flux__expect(c, ':')) return false;
        if (strcmp(name, "__metadata__") == 0) {
            if (metadata) return flux__cursor_bad(c, "__metadata__ stands there twice");
            metadata = true;
            if (!flux__json_metadata(c, z)) return false;
            continue;
        }
        flux__entry *e = (flux__entry *)flux__grow(z->entry, &z->entry_room, z->entries + 1,
                                                   sizeof *e);
        if (!e) return false;
        z->entry = e;
        e += z->entries;
        memset(e, 0, sizeof *e);
        e->name = name;
        if (!flux__json_entry(c, e)) return false;
        z->entries++;
    }
    if (more < 0) return false;
    flux__blanks(c);
    return c->at == c->end || flux__cursor_bad(c, "something follows the last }");
}

static int flux__by_place(const void *a, const void *b) {
    const flux__entry *x = (const flux__entry *)a, *y = (const flux__entry *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}
static int flux__by_name(const void *a, const void *b) {
    return strcmp(((const flux__entry *)a)->name, ((const flux__entry *)b)->name);
}
static int flux__by_key(const void *a, const void *b) {
    return strcmp(((const flux__remark *)a)->key, ((const flux__remark *)b)->key);
}

/* Whether a tensor's shape, dtype and place agree. What we have no type or no room for is taken
   by its place alone. */
static bool flux__check_entry(const flux__source *s, const flux__entry *e) {
    uint64_t bytes;
    flux_shape shape = flux__shape(e->dim, e->ndim < FLUX_MAX_DIMS ? e->ndim : FLUX_MAX_DIMS);
    if (!e->type || e->ndim > FLUX_MAX_DIMS) return true;
    if (!flux__file_bytes(s, e->type, &shape, &bytes)) return false;
    flux__text text = flux__shape_text(&shape);
    if (bytes != e->end - e->begin)
        flux__bad(s, "%.80s, %s of %s, takes %llu bytes, not the %llu that its data_offsets give",
                  e->name, text.s, e->dtype, (unsigned long long)bytes,
                  (unsigned long long)(e->end - e->begin));
    return bytes == e->end - e->begin;
}

/* Tensors follow upon each other to the file's end, and no name is there twice. */
static bool flux__check_archive(flux__archive *z) {
    flux__source *s = &z->source;
    uint64_t at = 0;
    if (z->entries) qsort(z->entry, (size_t)z->entries, sizeof *z->entry, flux__by_place);
    for (int i = 0; i < z->entries; at = z->entry[i++].end) {
        const flux__entry *e = &z->entry[i];
        if (!flux__check_entry(s, e)) return false;
        if (e->begin == at) continue;
        flux__bad(s, "its data have %s before %.80s: at byte %llu, not %llu",
                  e->begin > at ? "a hole" : "an overlap", e->name, (unsigned long long)e->begin,
                  (unsigned long long)at);
        return false;
    }
    if (!flux__exactly(s, z->data + at, "its heading")) return false;
    if (z->entries) qsort(z->entry, (size_t)z->entries, sizeof *z->entry, flux__by_name);
    if (z->pairs) qsort(z->pair, (size_t)z->pairs, sizeof *z->pair, flux__by_key);
    const char *twice = NULL;
    for (int i = 1; i < z->entries; i++)
        if (strcmp(z->entry[i - 1].name, z->entry[i].name) == 0) twice = z->entry[i].name;
    for (int i = 1; i < z->pairs; i++)
        if (strcmp(z->pair[i - 1].key, z->pair[i].key) == 0) twice = z->pair[i].key;
    if (twice) flux__bad(s, "the name %.100s stands there twice", twice);
    return !twice;
}

static bool flux__read_heading(flux__archive *z) {
    flux__source *s = &z->source;
    unsigned char head[8];
    uint64_t n = 0;
    if (flux__foreign(s)) return false;
    bool good = flux__peek(s, 0, head, 8);
    for (int i = 7; good && i >= 0; i--) n = n << 8 | head[i];
    if (!good) flux__bad(s, "it is too short for a safetensors file");
    else if (n > FLUX__MAX_HEADING)
        flux__bad(s, "it is no safetensors file: a heading of %llu bytes is too long",
                  (unsigned long long)n);
    else if (!flux__reaches(s, 8 + n))
        flux__bad(s, "it ends within its heading of %llu bytes", (unsigned long long)n);
    else if ((z->heading = (char *)flux__malloc((size_t)n + 1)) != NULL) {
        flux__cursor c = { s, z->heading, z->heading, z->heading + n, 8 };
        z->data = 8 + n;
        if (flux__peek(s, 8, z->heading, (size_t)n))
            return flux__json_archive(&c, z) && flux__check_archive(z);
        flux__bad(s, "cannot read its heading");
    }
    return false;
}

static void flux__archive_close(flux__archive *z) {
    flux__source_close(&z->source);
    if (z->heading) FLUX_FREE(z->heading);
    if (z->entry) FLUX_FREE(z->entry);
    if (z->pair) FLUX_FREE(z->pair);
    memset(z, 0, sizeof *z);
}

/* Opens a file, or bytes in memory where that is given. False: an error, and nothing to close. */
static bool flux__archive_open(flux__archive *z, const char *call, const char *path,
                               const flux__source *memory) {
    memset(z, 0, sizeof *z);
    if (memory) z->source = *memory;
    else if (!flux__source_open(&z->source, call, path)) return false;
    if (flux__read_heading(z)) return true;
    flux__archive_close(z);
    return false;
}

static flux_shape flux__entry_shape(const flux__entry *e) {
    flux_shape s = flux__shape(NULL, 0);
    s.ndim = e->ndim < FLUX_MAX_DIMS ? e->ndim : FLUX_MAX_DIMS;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = e->dim[s.ndim - 1 - i];
    return s;
}

/* A tensor of the file, in host memory. */
static flux_tensor *flux__entry_read(flux__archive *z, const flux__entry *e) {
    if (!e->type)
        return flux__refuse(&z->source, "%.100s has dtype %.20s, which flux does not have", e->name,
                            e->dtype);
    if (e->ndim > FLUX_MAX_DIMS)
        return flux__refuse(&z->source, "%.100s has %d dimensions, but a tensor has at most %d",
                            e->name, e->ndim, FLUX_MAX_DIMS);
    return flux__read_tensor(&z->source, z->data + e->begin, e->type, flux__entry_shape(e), false);
}

/* Where a name of ours is found in a file, in this one place: as it is; else through a tie,
   "tie:name" in the metadata of our files, plain "name" in those of PyTorch's save_model. */
static flux__remark *flux__archive_pair(const flux__archive *z, const char *before,
                                        const char *name) {
    size_t n = strlen(before);
    int lo = 0, hi = z->pairs;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, order = strncmp(z->pair[mid].key, before, n);
        if (order == 0) order = strcmp(z->pair[mid].key + n, name);
        if (order == 0) return &z->pair[mid];
        if (order < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}
static flux__entry *flux__archive_entry(const flux__archive *z, const char *name) {
    flux__entry key;
    key.name = name;
    return z->entries ? (flux__entry *)bsearch(&key, z->entry, (size_t)z->entries, sizeof key,
                                               flux__by_name)
                      : NULL;
}
static flux__entry *flux__find(const flux__archive *z, const char *name) {
    flux__entry *e = flux__archive_entry(z, name);
    flux__remark *p = flux__archive_pair(z, "tie:", name);
    if (p) p->used = true;
    if (!p) p = flux__archive_pair(z, "", name);
    return e || !p ? e : flux__archive_entry(z, p->value);
}

/* ---------------- safetensors: what is saved and loaded
   A flux__list names the tensors of the things that a call is given, in the order in which they
   are visited. Those that are one tensor are known by `first`, the number of the place where it
   was met first: it is written once, under that name, and the other names become ties. */

typedef struct flux__stored {
    char *name;
    flux_tensor **field, *x;              /* where it is held (or NULL), the tensor */
    int number, first;                    /* of this place; of the first one with the same tensor */
    bool ties;                            /* to be one tensor means something, as in layers */
    uint64_t begin;                       /* among the file's data */
    flux_tensor *loaded;
} flux__stored;

typedef struct flux__list {
    const char *call;
    flux__stored *item;
    int items, room;
    const char *prefix;                   /* of what is visited now; "": none */
    int prefix_length;
    bool ties, failed;
} flux__list;

static void flux__list_add(flux__list *l, const char *path, flux_tensor **field, flux_tensor *x) {
    size_t n = strlen(path), before = (size_t)l->prefix_length, dot = before && n;
    if (l->failed || !x) return;
    flux__stored *it = (flux__stored *)flux__grow(l->item, &l->room, l->items + 1, sizeof *it);
    if (it) l->item = it;
    char *name = it ? (char *)flux__malloc(before + dot + n + 1) : NULL;
    l->failed = !name;
    if (!name) return;
    if (before) memcpy(name, l->prefix, before);
    if (dot) name[before] = '.';
    memcpy(name + before + dot, path, n + 1);
    it += l->items;
    memset(it, 0, sizeof *it);
    it->name = name;
    it->field = field;
    it->x = x;
    it->ties = l->ties;
    it->number = it->first = l->items++;
}

static void flux__list_free(flux__list *l) {
    for (int i = 0; i < l->items; i++) FLUX_FREE(l->item[i].name);
    if (l->item) FLUX_FREE(l->item);
}

static int flux__by_tensor(const void *a, const void *b) {
    const flux__stored *x = (const flux__stored *)a, *y = (const flux__stored *)b;
    if (x->ties != y->ties) return x->ties - y->ties;
    if (x->x != y->x) return (uintptr_t)x->x < (uintptr_t)y->x ? -1 : 1;
    return x->number - y->number;
}
static int flux__by_number(const void *a, const void *b) {
    return ((const flux__stored *)a)->number - ((const flux__stored *)b)->number;
}
static int flux__by_item_name(const void *a, const void *b) {
    return strcmp(((const flux__stored *)a)->name, ((const flux__stored *)b)->name);
}

/* Finds out which places hold one tensor, and that no two have one name. */
static bool flux__list_finish(flux__list *l) {
    if (l->failed || !l->items) return !l->failed;
    qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_tensor);
    for (int i = 1; i < l->items; i++)
        if (l->item[i].ties && l->item[i].x == l->item[i - 1].x)
            l->item[i].first = l->item[i - 1].first;
    qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_item_name);
    for (int i = 1; i < l->items; i++)
        if (strcmp(l->item[i].name, l->item[i - 1].name) == 0) {
            flux__fail("%s: two tensors have the name %.200s", l->call, l->item[i].name);
            return false;
        }
    qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_number);
    return true;
}

/* ---------------- safetensors: writing */

typedef struct flux__json { char *at; int n, room; bool failed; } flux__json;

static void flux__json_add(flux__json *j, const char *text, size_t n) {
    char *at = NULL;
    if (j->failed) return;
    if (n > (size_t)(FLUX__MAX_HEADING - 64 - j->n))
        flux__fail("save: the names and shapes take more than the %d bytes that safetensors allows",
                   FLUX__MAX_HEADING);
    else at = (char *)flux__grow(j->at, &j->room, j->n + (int)n, 1);
    j->failed = !at;
    if (!at) return;
    j->at = at;
    memcpy(at + j->n, text, n);
    j->n += (int)n;
}

static void flux__json_text(flux__json *j, const char *text) {
    flux__json_add(j, text, strlen(text));
}

static void flux__json_quoted(flux__json *j, const char *before, const char *text) {
    char escape[8];
    flux__json_text(j, "\"");
    flux__json_text(j, before);
    for (; *text; text++) {
        bool plain = (unsigned char)*text >= 32 && *text != '"' && *text != '\\';
        if (!plain) snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*text);
        if (plain) flux__json_add(j, text, 1);
        else flux__json_text(j, escape);
    }
    flux__json_text(j, "\"");
}

/* "before" and numbers, separated by commas, the last one first. */
static void flux__json_reversed(flux__json *j, const char *before, const int64_t *v, int n) {
    char number[24];
    flux__json_text(j, before);
    for (int i = n - 1; i >= 0; i--) {
        snprintf(number, sizeof number, i ? "%lld," : "%lld", (long long)v[i]);
        flux__json_text(j, number);
    }
    flux__json_text(j, "]");
}

/* Data order: wide elements before narrow ones, so that each tensor lies at a multiple of its
   element size; then by name. Ties come last: they have no data. */
static int flux__by_layout(const void *a, const void *b) {
    const flux__stored *x = (const flux__stored *)a, *y = (const flux__stored *)b;
    int tied = (x->first != x->number) - (y->first != y->number);
    int size = flux__dtypes[y->x->dtype].size - flux__dtypes[x->x->dtype].size;
    return tied ? tied : size ? size : strcmp(x->name, y->name);
}

/* The heading, padded so that the data begin at a multiple of 64. `names` says what each number
   of a first place is called. */
static void flux__json_heading(flux__json *j, flux__list *l, const char *const *names) {
    uint64_t at = 0;
    flux__json_text(j, "{\"__metadata__\":{\"flux.h\":\"1\"");
    for (int i = 0; i < l->items; i++) {
        if (l->item[i].first == l->item[i].number) continue;
        flux__json_text(j, ",");
        flux__json_quoted(j, "tie:", l->item[i].name);
        flux__json_text(j, ":");
        flux__json_quoted(j, "", names[l->item[i].first]);
    }
    flux__json_text(j, "}");
    for (int i = 0; i < l->items && l->item[i].first == l->item[i].number; i++) {
        flux__stored *it = &l->item[i];
        uint64_t bytes = (uint64_t)flux__size(it->x) * flux__dtypes[it->x->dtype].size;
        int64_t place[2] = { (int64_t)(at + bytes), (int64_t)at };
        it->begin = at;
        at += bytes;
        flux__json_text(j, ",");
        flux__json_quoted(j, "", it->name);
        flux__json_text(j, ":{\"dtype\":\"");
        flux__json_text(j, flux__elements[it->x->dtype].name);
        flux__json_reversed(j, "\",\"shape\":[", it->x->dim, it->x->ndim);
        flux__json_reversed(j, ",\"data_offsets\":[", place, 2);
        flux__json_text(j, "}");
    }
    flux__json_text(j, "}");
    while (!j->failed && (j->n + 8) % 64) flux__json_add(j, " ", 1);
}

static bool flux__save_check(const flux__list *l) {
    for (int i = 0; i < l->items; i++) {
        const flux__stored *it = &l->item[i];
        if (!flux__plain(l->call, it->name, it->x)) return false;
        if (flux__utf8(it->name, strlen(it->name)) && strcmp(it->name, "__metadata__") != 0)
            continue;
        flux__fail("%s: a tensor can't have the name %.200s in a safetensors file", l->call,
                   it->name);
        return false;
    }
    return true;
}

/* Computes what is not computed yet, all at once, so that nothing has been written when that
   fails. */
static bool flux__save_compute(const flux__list *l) {
    flux_tensor **xs = (flux_tensor **)flux__malloc((size_t)l->items * sizeof *xs);
    for (int i = 0; xs && i < l->items; i++) xs[i] = l->item[i].x;
    bool good = xs && flux_eval_all(l->items, xs) == 0;
    if (xs) FLUX_FREE(xs);
    return good;
}

static bool flux__save_data(flux__out *o, const flux__stored *it) {
    int h = flux__hide();
    const void *data = flux__host_data(it->x);
    bool good = data && flux__write_elements(o, data, (uint64_t)flux__size(it->x),
                                             flux__dtypes[it->x->dtype].size);
    flux__reveal(h, NULL);
    return good;
}

static bool flux__save_list(flux__list *l, const char *path) {
    flux__json j = { NULL, 0, 0, false };
    unsigned char length[8];
    const char **names = (const char **)flux__malloc((size_t)l->items * sizeof *names);
    bool good = names && flux__save_check(l) && flux__save_compute(l);
    if (good) {
        for (int i = 0; i < l->items; i++) names[i] = l->item[i].name;
        if (l->items) qsort(l->item, (size_t)l->items, sizeof *l->item, flux__by_layout);
        flux__json_heading(&j, l, names);
    }
    if (names) FLUX_FREE(names);
    flux__out *o = good && !j.failed ? flux__out_open(path, l->call) : NULL;
    good = o != NULL;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)j.n >> (8 * i));
    good = good && flux__out_write(o, length, 8) && flux__out_write(o, j.at, (size_t)j.n);
    for (int i = 0; good && i < l->items && l->item[i].first == l->item[i].number; i++)
        good = flux__save_data(o, &l->item[i]);
    if (good) good = flux__out_commit(o);
    else flux__out_abort(o);
    if (j.at) FLUX_FREE(j.at);
    return good;
}

/* ---------------- safetensors: loading */

/* What is wrong with a file for these targets, gathered so that one sentence can say it all. */
typedef struct flux__misfit {
    char first[320];                      /* the first tensor that differs, in words */
    int differ, missing, unexpected;
    const char *missing_name, *unexpected_name;
} flux__misfit;

static void flux__compare_item(const flux__archive *z, const flux__stored *it, flux__misfit *m) {
    flux__entry *e = flux__find(z, it->name);
    if (!e) {
        if (!m->missing++) m->missing_name = it->name;
        return;
    }
    e->used = true;
    flux_shape here = flux__dims(it->x), there = flux__entry_shape(e);
    bool same = e->ndim == here.ndim && e->type == &flux__elements[it->x->dtype];
    for (int i = 0; same && i < here.ndim; i++) same = here.dim[i] == there.dim[i];
    if (same || m->differ++) return;
    flux__text a = flux__shape_text(&here), b = flux__shape_text(&there);
    snprintf(m->first, sizeof m->first, "%.80s is %.90s %s here and %.90s%s %.16s there", it->name,
             a.s, flux__elements[it->x->dtype].name, b.s, e->ndim > FLUX_MAX_DIMS ? "x..." : "",
             e->dtype);
}

/* Names in the file that belong to what was asked for but to no tensor of it. `things` are the
   prefixes asked for, each as long as said; none: everything in the file. */
typedef struct flux__thing { const char *name; int length; const void *object; } flux__thing;

static void flux__compare_name(const char *name, const flux__thing *things, int n,
                               flux__misfit *m) {
    bool ours = n == 0;
    for (int i = 0; i < n; i++) {
        size_t length = (size_t)things[i].length;
        if (strncmp(name, things[i].name, length) == 0 &&
            (name[length] == '.' || name[length] == 0))
            ours = true;
    }
    if (ours && !m->unexpected++) m->unexpected_name = name;
}

static bool flux__compare(const flux__archive *z, const flux__list *l, const flux__thing *things,
                          int n) {
    flux__misfit m;
    char text[720];                       /* room for the longest of each part */
    int at = 0;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < l->items; i++) flux__compare_item(z, &l->item[i], &m);
    for (int i = 0; i < z->entries; i++)
        if (!z->entry[i].used) flux__compare_name(z->entry[i].name, things, n, &m);
    for (int i = 0; i < z->pairs; i++)
        if (strncmp(z->pair[i].key, "tie:", 4) == 0 && !z->pair[i].used)
            flux__compare_name(z->pair[i].key + 4, things, n, &m);
    if (!m.differ && !m.missing && !m.unexpected) return true;
    if (m.differ) at += snprintf(text, sizeof text, "%s", m.first);
    if (m.differ > 1)
        at += snprintf(text + at, sizeof text - (size_t)at, " (and %d more differ)", m.differ - 1);
    if (m.missing)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%d missing there (%.60s%s)",
                       at ? "; " : "", m.missing, m.missing_name, m.missing > 1 ? ", ..." : "");
    if (m.unexpected)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%d unknown here (%.60s%s)",
                       at ? "; " : "", m.unexpected, m.unexpected_name,
                       m.unexpected > 1 ? ", ..." : "");
    flux__bad(&z->source, "it does not fit: %s", text);
    return false;
}

/* The tensor of that entry, on the device of the one whose place it takes. */
static flux_tensor *flux__load_placed(flux__archive *z, const flux__entry *e,
                                      const flux_tensor *old) {
    int h = flux__hide();
    flux_tensor *read = flux__entry_read(z, e), *t = read ? flux__placed(read, old->device) : NULL;
    t = t ? flux_eval(t) : NULL;
    if (read && !t && !flux_failed())
        flux__bad(&z->source, "%.100s could not be moved to %s", e->name,
                  flux_device_name(old->device));
    return flux__reveal(h, t);
}

/* Reads the tensor that comes into the place of it->x, or, where an earlier place has done so,
   sees that the file has the same for this one. */
static bool flux__load_item(flux__archive *z, flux__list *l, flux__stored *it) {
    const flux__stored *first = &l->item[it->first];
    const flux__entry *e = flux__find(z, it->name), *before = flux__find(z, first->name);
    if (it == first) return (it->loaded = flux__load_placed(z, e, it->x)) != NULL;
    if (e == before) return true;
    int h = flux__hide();
    const flux_tensor *a = flux__entry_read(z, before), *b = a ? flux__entry_read(z, e) : NULL;
    bool same = b && memcmp(a->buf->ptr, b->buf->ptr, a->buf->bytes) == 0;
    flux__reveal(h, NULL);
    if (b && !same)
        flux__bad(&z->source, "%.100s and %.100s are one tensor here, but differ there",
                  first->name, it->name);
    return same;
}

/* All or nothing: everything is compared, then read and moved, before the first field changes. */
static bool flux__load_archive(flux__archive *z, flux__list *l, const flux__thing *things, int n) {
    int h = flux__hide();
    bool good = flux__compare(z, l, things, n);
    for (int i = 0; good && i < l->items; i++) good = flux__load_item(z, l, &l->item[i]);
    for (int i = 0; good && i < l->items; i++)
        flux_assign(l->item[i].field, l->item[l->item[i].first].loaded);
    flux__reveal(h, NULL);
    return good;
}

static bool flux__load_list(flux__list *l, const char *path, const flux__thing *things, int n) {
    flux__archive z;
    if (!flux__archive_open(&z, l->call, path, NULL)) return false;
    bool good = flux__load_archive(&z, l, things, n);
    flux__archive_close(&z);
    return good;
}

/* ---------------- safetensors: the calls */

static void flux__list_field(flux_tensor **field, const char *path, bool trained,
                             const flux_layer *owner, void *list) {
    (void)trained, (void)owner;
    flux__list_add((flux__list *)list, path, field, *field);
}

/* Adds what one thing holds. A tensor can't be loaded into: it is a value. */
static bool flux__list_visit(flux__list *l, const flux__thing *t, bool load) {
    const flux__head *head = (const flux__head *)t->object;
    void *object = (void *)(intptr_t)t->object;
    bool before = flux_failed();
    l->prefix = t->name;
    l->prefix_length = t->length;
    l->ties = head->kind != FLUX__STATE;
    if (head->kind == FLUX__LAYER)
        l->failed |= !flux__walk_all((flux_layer *)object, flux__list_field, NULL, l);
    else if (head->kind == FLUX__STATE)
        flux__state_fields((flux_state *)object, flux__list_field, l);
    else if (head->kind == FLUX__TENSOR && !load)
        flux__list_add(l, "", NULL, (flux_tensor *)object);
    else {
        l->failed = true;
        if (head->kind != FLUX__TENSOR)
            flux__fail("%s: %.*s is no tensor, layer or optimiser state", l->call, t->length,
                       t->name);
        else
            flux__fail("%s: %.*s is a tensor, which never changes: "
                       "flux_load_tensor(path, \"%.*s\") makes a new one",
                       l->call, t->length, t->name, t->length, t->name);
    }
    return !l->failed && flux_failed() == before;  /* counts may have found no memory */
}

static int flux__files_items(const char *call, const char *path, const flux__thing *things, int n,
                             bool load) {
    flux__list l = { call, NULL, 0, 0, "", 0, true, false };
    bool good = true;
    if (!path) {
        flux__null(call, "path", path);
        return -1;
    }
    for (int i = 0; good && i < n; i++) good = flux__list_visit(&l, &things[i], load);
    good = good && flux__list_finish(&l);
    if (!things[0].length) n = 0;          /* one thing without a name: the file is all its own */
    if (good && load) good = flux__load_list(&l, path, things, n);
    else if (good) good = flux__save_list(&l, path);
    flux__list_free(&l);
    return good ? 0 : -1;
}

static int flux__files_one(const char *call, const char *arg, const char *name, const void *object,
                           const char *path, bool load) {
    flux__thing t = { name, (int)strlen(name), object };
    if (object) return flux__files_items(call, path, &t, 1, load);
    flux__null(call, arg, object);
    return -1;
}

FLUX_DEF int flux_save_tensor(flux_tensor *x, const char *path) {
    return flux__files_one("save", "x", "tensor", x, path, false);
}
FLUX_DEF int flux_save_layer(flux_layer *m, const char *path) {
    return flux__files_one("save", "m", "", m, path, false);
}
FLUX_DEF int flux_save_state(flux_state *s, const char *path) {
    return flux__files_one("save", "s", "", s, path, false);
}
FLUX_DEF int flux_load_layer(flux_layer *m, const char *path) {
    return flux__files_one("load", "m", "", m, path, true);
}
FLUX_DEF int flux_load_state(flux_state *s, const char *path) {
    return flux__files_one("load", "s", "", s, path, true);
}

/* The end of the C expression that begins at p: the comma that stands in no bracket, or the end
   of the text. */
static const char *flux__expression_end(const char *p) {
    char quote = 0;
    for (int depth = 0; *p; p++) {
        if (quote && *p == '\\' && p[1]) p++;
        else if (quote) quote = *p == quote ? 0 : quote;
        else if (*p == '"' || *p == '\'') quote = *p;
        else if (*p == '(' || *p == '[' || *p == '{') depth++;
        else if (*p == ')' || *p == ']' || *p == '}') depth--;
        else if (*p == ',' && depth <= 0) break;
    }
    return p;
}

/* The things with the names of the call's text, "model, opt"; NULL is an error. To be freed. */
static flux__thing *flux__things(const char *call, int n, const char *names,
                                 const void *const *objects) {
    const char *p = names, *end, *next;
    char shown[80];
    if (!names || !objects || n < 1) {
        if (n < 1) flux__fail("%s: %d things were given", call, n);
        else flux__null(call, names ? "items" : "names", NULL);
        return NULL;
    }
    flux__thing *t = (flux__thing *)flux__malloc((size_t)n * sizeof *t);
    bool good = t != NULL;
    for (int i = 0; good && i < n; i++, p = *next ? next + 1 : next) {
        end = next = flux__expression_end(p);
        flux__trim(&p, &end);
        t[i].name = p;
        t[i].length = (int)(end - p);
        t[i].object = objects[i];
        snprintf(shown, sizeof shown, "%.*s", t[i].length, p);
        good = t[i].length > 0 && (*next != 0) == (i + 1 < n);
        if (!good) flux__fail("%s: \"%.200s\" does not name %d things", call, names, n);
        else if (!objects[i]) flux__null(call, shown, NULL);
        good = good && objects[i];
    }
    if (good) return t;
    if (t) FLUX_FREE(t);
    return NULL;
}

static int flux__files_all(const char *call, const char *path, int n, const char *names,
                           const void *const *objects, bool load) {
    flux__thing *things = flux__things(call, n, names, objects);
    if (!things) return -1;
    int result = flux__files_items(call, path, things, n, load);
    FLUX_FREE(things);
    return result;
}

FLUX_DEF int flux_save_items(const char *path, int n, const char *names, const void *const *items) {
    return flux__files_all("save_all", path, n, names, items, false);
}
FLUX_DEF int flux_load_items(const char *path, int n, const char *names, const void *const *items) {
    return flux__files_all("load_all", path, n, names, items, true);
}

/* The entry that is asked for; an error if there is none, or more than one to choose from. */
static const flux__entry *flux__entry_wanted(const flux__archive *z, const char *name) {
    const flux__entry *e = name ? flux__find(z, name) : z->entries == 1 ? z->entry : NULL;
    char list[200];
    int at = 0, i;
    if (e) return e;
    for (i = 0; i < z->entries && at < 120; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, "%s%.60s", i ? ", " : "",
                       z->entry[i].name);
    snprintf(list + at, sizeof list - (size_t)at, "%s", i < z->entries ? ", ..." : "");
    if (z->entries == 0) flux__bad(&z->source, "it holds no tensor");
    else if (name)
        flux__bad(&z->source, "it holds no tensor %.80s; it has %d: %s", name, z->entries, list);
    else flux__bad(&z->source, "it holds %d tensors, so one must be named: %s", z->entries, list);
    return NULL;
}

FLUX_DEF flux_tensor *flux_load_tensor(const char *path, const char *name) {
    flux__archive z;
    if (!flux__archive_open(&z, "load_tensor", path, NULL)) return NULL;
    int h = flux__hide();
    const flux__entry *e = flux__entry_wanted(&z, name);
    flux_tensor *t = e ? flux__entry_read(&z, e) : NULL;
    flux__archive_close(&z);
    return flux__reveal(h, t);
}

FLUX__ASBEFORE
FLUX__LEAN

/* ------------------------------------------------------------------ 24. Formulas
   flux_expr reads a formula in Julia's spelling and calls the operations that
   it names while it reads: there is no tree. Precedence and strictness are
   Julia's: * between arrays is the matrix product, + and - want equal shapes,
   a function of one number is applied to an array only by its dot, exp.(x),
   and -x^2 is -(x^2). Where Julia would refuse, so does this, and says what to
   write. Two things are ours: dims count from 0, sum(x, dims=0), and functions
   have the names of this library (var divides by n), beside Julia's where
   these differ: abs2, maximum, σ.
   Numbers stay plain numbers, computed in double, until they meet a tensor,
   whose dtype they take. A vector transposed is remembered as a row, as in
   Julia, so that x'*y is a number and y*x' an outer product.
   All goes by two tables, of operators and of functions. Nesting is limited,
   since each level takes stack. */

enum { FLUX__NESTING = 200, FLUX__ARGUMENTS = 3 };

typedef struct flux__term {              /* what an expression came to */
    flux_tensor *t;                       /* NULL: a plain number */
    double num;
    bool row;                             /* a vector transposed */
} flux__term;

typedef struct flux__expr {
    const char *text, *at;                /* the formula, and how far it is read */
    const char *names;                    /* "W, x" */
    flux_tensor *const *values;
    int n, depth;
    bool failed;
    const char *called;                   /* where the operation that is being recorded was called */
} flux__expr;

/* ---- errors */

static int flux__column(const flux__expr *p, const char *at) {     /* from 1, in characters */
    int column = 1;
    for (const char *s = p->text; s < at; s++)
        if (((unsigned char)*s & 0xC0) != 0x80) column++;
    return column;
}

static void flux__expr_fail(flux__expr *p, const char *at, const char *format, ...)
    FLUX__PRINTF(3, 4);
static void flux__expr_fail(flux__expr *p, const char *at, const char *format, ...) {
    char text[400];
    va_list args;
    if (p->failed) return;
    p->failed = true;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    flux__fail("expr: column %d: %s", flux__column(p, at), text);
}

/* Errors of an operation start with the column of what called it. */
static int flux__expr_where(const void *place, char *out, size_t n) {
    const flux__expr *p = (const flux__expr *)place;
    return snprintf(out, n, "expr: column %d: ", flux__column(p, p->called));
}

static void flux__expr_enter(flux__expr *p, const char *at) {
    flux__thread *self = flux__self();
    p->called = at;
    if (self) self->where = flux__expr_where, self->place = p;
}

static flux__term flux__expr_leave(flux__expr *p, flux_tensor *t) {
    flux__term v = { t, 0, false };
    flux__thread *self = flux__self();
    if (self) self->where = NULL;
    if (!t) p->failed = true;
    return v;
}
/* The result of an operation that is called at some place in the text. */
#define FLUX__EXPR_AT(p, at, call) (flux__expr_enter(p, at), flux__expr_leave(p, call))

static flux__term flux__expr_number(double num) {
    flux__term v = { NULL, num, false };
    return v;
}

/* ---- characters */

static bool flux__is_digit(char c) { return c >= '0' && c <= '9'; }

/* The bytes of the UTF-8 character at s; 0 at the end, or if it is none. */
static int flux__char_size(const char *s) {
    unsigned char c = (unsigned char)*s;
    int n = c == 0 ? 0 : c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    for (int i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
    return n && flux__utf8(s, (size_t)n) ? n : 0;
}

static bool flux__starts(const char *s, const char *sign) {
    while (*sign && *s == *sign) s++, sign++;
    return !*sign;
}

/* Signs that stand for operators, and so not in a name: ≤ ≥ ≠ ⋅ √ × */
static bool flux__is_sign(const char *s) {
    static const char *const signs[] = { "\xE2\x89\xA4", "\xE2\x89\xA5", "\xE2\x89\xA0",
                                         "\xE2\x8B\x85", "\xE2\x88\x9A", "\xC3\x97" };
    for (int i = 0; i < 6; i++)
        if (flux__starts(s, signs[i])) return true;
    return false;
}

/* The length of the name at s, 0 if there is none. */
static int flux__name_size(const char *s) {
    int n = 0;
    while (s[n]) {
        char c = s[n];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        int size = (unsigned char)c >= 0x80 && !flux__is_sign(s + n) ? flux__char_size(s + n) : 0;
        if (!letter && !size && !(n && flux__is_digit(c))) break;
        n += size ? size : 1;
    }
    return n;
}

/* Whether the name of this size is `word`. */
static bool flux__is_name(const char *word, const char *name, int size) {
    return *word == *name && strncmp(word, name, (size_t)size) == 0 && !word[size];
}

static void flux__expr_space(flux__expr *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r') p->at++;
}

static bool flux__expr_take(flux__expr *p, const char *sign) {
    flux__expr_space(p);
    if (!flux__starts(p->at, sign)) return false;
    p->at += strlen(sign);
    return true;
}

/* What stands at s, for a message: 'name', the end, byte 0x80. */
static const char *flux__expr_found(const char *s, char *out, size_t n) {
    int name = flux__name_size(s), size = name ? name : flux__char_size(s);
    if (name > 40) {                      /* cut, between two characters */
        name = size = 40;
        while (((unsigned char)s[size] & 0xC0) == 0x80) size--;
    }
    if (!*s) snprintf(out, n, "the end");
    else if (!size || (unsigned char)*s < 0x20 || *s == 0x7F)
        snprintf(out, n, "byte 0x%02X", (unsigned)(unsigned char)*s);
    else snprintf(out, n, "'%.*s'", size, s);
    return out;
}

static void flux__expr_expected(flux__expr *p, const char *what) {
    char found[64];
    flux__expr_space(p);
    flux__expr_fail(p, p->at, "expected %s, found %s", what,
                    flux__expr_found(p->at, found, sizeof found));
}

/* ---- operators: sign, how tightly it binds, what it does to elements, and to two numbers */

enum { FLUX__BIND_CHOICE = 1, FLUX__BIND_OR, FLUX__BIND_AND, FLUX__BIND_COMPARE, FLUX__BIND_SUM,
       FLUX__BIND_PRODUCT, FLUX__BIND_UNARY, FLUX__BIND_JUXTAPOSED, FLUX__BIND_POWER };

typedef struct flux__infix { const char *sign; int bind; flux_fn2 each; char fold; } flux__infix;
static const flux__infix flux__infixes[] = {      /* a sign before those it begins with */
    { "||", FLUX__BIND_OR, flux_or, '|' }, { "&&", FLUX__BIND_AND, flux_and, '&' },
    { "==", FLUX__BIND_COMPARE, flux_eq, '=' }, { "!=", FLUX__BIND_COMPARE, flux_ne, '!' },
    { "<=", FLUX__BIND_COMPARE, flux_le, 'l' }, { ">=", FLUX__BIND_COMPARE, flux_ge, 'g' },
    { "<", FLUX__BIND_COMPARE, flux_lt, '<' }, { ">", FLUX__BIND_COMPARE, flux_gt, '>' },
    { "\xE2\x89\xA4", FLUX__BIND_COMPARE, flux_le, 'l' },
    { "\xE2\x89\xA5", FLUX__BIND_COMPARE, flux_ge, 'g' },
    { "\xE2\x89\xA0", FLUX__BIND_COMPARE, flux_ne, '!' },
    { "|", FLUX__BIND_SUM, flux_or, '|' }, { "&", FLUX__BIND_PRODUCT, flux_and, '&' },
    { "+", FLUX__BIND_SUM, flux_add, '+' }, { "-", FLUX__BIND_SUM, flux_sub, '-' },
    { "*", FLUX__BIND_PRODUCT, flux_mul, '*' }, { "/", FLUX__BIND_PRODUCT, flux_div, '/' },
    { "\xE2\x8B\x85", FLUX__BIND_PRODUCT, flux_dot, '.' }, { "^", FLUX__BIND_POWER, flux_pow, '^' }
};

static double flux__expr_fold(char fold, double a, double b) {
    switch (fold) {
    case '|': return a != 0 || b != 0;
    case '&': return a != 0 && b != 0;
    case '=': return a == b;
    case '!': return a != b;
    case 'l': return a <= b;
    case 'g': return a >= b;
    case '<': return a < b;
    case '>': return a > b;
    case '+': return a + b;
    case '-': return a - b;
    case '/': return a / b;
    case '^': return pow(a, b);
    default: return a * b;                /* * and the dot product of two numbers */
    }
}

static bool flux__is_scalar(const flux__term *v) { return !v->t || v->t->ndim == 0; }
static flux_tensor *flux__as_tensor(const flux__term *v) {
    return v->t ? v->t : flux__number(v->num);
}

/* "a 2x5 f32 matrix", "a number" */
static flux__text flux__expr_kind(const flux__term *v) {
    static const char *const names[] = { "number", "vector", "matrix" };
    flux__text t, about;
    if (flux__is_scalar(v)) {
        snprintf(t.s, sizeof t.s, "a number");
        return t;
    }
    about = flux__describe(v->t);
    snprintf(t.s, sizeof t.s, "a %.90s %s", about.s, v->t->ndim < 3 ? names[v->t->ndim] : "array");
    return t;
}

/* Whether something done to these element by element is a row: all are rows or numbers. */
static bool flux__are_row(const flux__term *a, int n) {
    bool row = false;
    for (int i = 0; i < n; i++) {
        if (!a[i].row && !flux__is_scalar(&a[i])) return false;
        row = row || a[i].row;
    }
    return row;
}

static void flux__expr_refuse(flux__expr *p, const char *at, const char *sign, const flux__term *a,
                              const flux__term *b, const char *advice) {
    flux__text ta = flux__expr_kind(a), tb = flux__expr_kind(b);
    flux__expr_fail(p, at, "%s of %s and %s: %s", sign, ta.s, tb.s, advice);
}

/* a op b, element by element. A plain number beside a bool decides, or leaves the bool as it is. */
static flux__term flux__expr_each(flux__expr *p, const char *at, const flux__infix *op,
                                  flux__term a, flux__term b) {
    const flux__term *num = a.t ? &b : &a, *other = a.t ? &a : &b;
    if (!a.t && !b.t) return flux__expr_number(flux__expr_fold(op->fold, a.num, b.num));
    if (!num->t && (op->fold == '&' || op->fold == '|'))
        return (num->num != 0) == (op->fold == '&') ? *other : *num;
    const flux__term both[2] = { a, b };
    bool square = op->fold == '^' && !b.t && b.num == 2;
    flux__expr_enter(p, at);
    flux_tensor *y = square ? flux_square(a.t) : op->each(flux__as_tensor(&a), flux__as_tensor(&b));
    flux__term v = flux__expr_leave(p, y);
    v.row = y && flux__are_row(both, 2);
    return v;
}

static flux_tensor *flux__unrow(const flux__term *v) {    /* a row as the vector that it was */
    return v->row ? flux_reshape(v->t, -1) : flux__as_tensor(v);
}

static flux__term flux__expr_transpose(flux__expr *p, const char *at, flux__term v) {
    if (flux__is_scalar(&v)) return v;
    if (v.t->ndim > 2) {
        flux__text t = flux__expr_kind(&v);
        flux__expr_fail(p, at, "' of %s: it takes a vector or a matrix; see flux_permute", t.s);
        return v;
    }
    bool row = v.t->ndim == 1;
    v = FLUX__EXPR_AT(p, at, v.row ? flux__unrow(&v) : flux_transpose(v.t));
    v.row = row;
    return v;
}

static flux__term flux__expr_times(flux__expr *p, const char *at, flux__term a, flux__term b) {
    flux__term v;
    if (flux__is_scalar(&a) || flux__is_scalar(&b)) {
        v = FLUX__EXPR_AT(p, at, flux_mul(flux__as_tensor(&a), flux__as_tensor(&b)));
        v.row = a.row || b.row;           /* a scalar is no row */
        return v;
    }
    if (a.row && b.t->ndim == 1) return FLUX__EXPR_AT(p, at, flux_dot(flux__unrow(&a), b.t));
    if (a.t->ndim == 1 && b.t->ndim == 2 && b.t->dim[0] == 1)
        return FLUX__EXPR_AT(p, at, flux_outer(a.t, flux_reshape(b.t, -1)));
    v = FLUX__EXPR_AT(p, at, flux_matmul(a.t, b.t));
    v.row = a.row && b.t->ndim == 2 && !p->failed;
    return v;
}

/* A square matrix times itself, by repeated squaring. */
static flux__term flux__expr_matrix_power(flux__expr *p, const char *at, flux__term a,
                                          flux__term b) {
    bool square = a.t->ndim == 2 && a.t->dim[0] == a.t->dim[1];
    bool whole = !b.t && b.num >= 1 && b.num <= 1e9 && b.num == floor(b.num);
    if (!square || !whole) {
        flux__expr_refuse(p, at, "^", &a, &b,
                          "only a square matrix has powers, whole ones; for each element write .^");
        return a;
    }
    flux_tensor *y = NULL, *x = a.t;
    flux__expr_enter(p, at);
    for (int n = (int)b.num; n && x; n /= 2) {
        if (n % 2) y = y ? flux_matmul(y, x) : x;
        if (n > 1) x = flux_matmul(x, x);
    }
    return flux__expr_leave(p, x ? y : NULL);
}

static flux__term flux__expr_infix(flux__expr *p, const char *at, const flux__infix *op, bool dot,
                                   flux__term a, flux__term b) {
    bool left = flux__is_scalar(&a), right = flux__is_scalar(&b);
    char advice[96];
    if (p->failed || dot || (!a.t && !b.t)) return p->failed ? a : flux__expr_each(p, at, op, a, b);
    if (op->fold == '*') return flux__expr_times(p, at, a, b);
    if (op->fold == '.' && !left && !right)
        return FLUX__EXPR_AT(p, at, flux_dot(flux__unrow(&a), flux__unrow(&b)));
    if (op->fold == '^' && !left) return flux__expr_matrix_power(p, at, a, b);
    bool sum = op->fold == '+' || op->fold == '-';
    bool same = !left && !right && flux__same_dims(a.t, b.t);
    if ((left && right) || (op->fold == '/' && right) || (sum && same))
        return flux__expr_each(p, at, op, a, b);
    snprintf(advice, sizeof advice, "%swrite .%s for each element",
             sum && !left && !right ? "the shapes differ; " : "", op->sign);
    flux__expr_refuse(p, at, op->sign, &a, &b, advice);
    return a;
}

/* The operator that comes next, after a dot or not; NULL if none does. Does not go on. */
static const flux__infix *flux__expr_next(flux__expr *p, bool *dot, int *size) {
    flux__expr_space(p);
    const char *s = p->at;
    *dot = *s == '.';
    if (*dot) s++;
    for (size_t i = 0; i < sizeof flux__infixes / sizeof *flux__infixes; i++)
        if (flux__starts(s, flux__infixes[i].sign)) {
            *size = (int)(s - p->at) + (int)strlen(flux__infixes[i].sign);
            return &flux__infixes[i];
        }
    return NULL;
}

/* ---- functions */

static flux_tensor *flux__expr_clamp(flux_tensor *x, flux_tensor *lo, flux_tensor *hi) {
    return (flux_min2)((flux_max2)(x, lo), hi);
}
static flux_tensor *flux__expr_glu(int n, flux_reduce_opts o) {
    return flux_glu(o.x, n ? o.d0 : 0);
}
static flux_tensor *flux__expr_hcat(flux_tensor *a, flux_tensor *b) {
    flux_tensor *both[2] = { a, b };
    return flux_cat_all(1, 2, both);
}
/* The sum of the diagonal, which is every (n+1)-th element. */
static flux_tensor *flux__expr_trace(flux_tensor *x) {
    if (!flux__check_operands("tr", 1, &x)) return NULL;
    flux__text t = flux__describe(x);
    if (x->ndim != 2 || x->dim[0] != x->dim[1])
        return (flux_tensor *)flux__fail("tr: takes a square matrix, not %s", t.s);
    int64_t n = x->dim[0];
    return n ? (flux_sum)(flux_slice_step(flux_reshape(x, -1), 0, 0, n * n, n + 1)) : (flux_sum)(x);
}

/* EACH, PAIR and TRIPLE take one, two and three operands element by element, and so want a dot for
   arrays; REDUCE takes dims=; WHOLE and BOTH take one and two arrays as they are; LENGTH and SIZE
   give plain numbers. */
enum { FLUX__FN_EACH, FLUX__FN_PAIR, FLUX__FN_TRIPLE, FLUX__FN_REDUCE, FLUX__FN_WHOLE,
       FLUX__FN_BOTH, FLUX__FN_LENGTH, FLUX__FN_SIZE };
static const int flux__fn_operands[] = { 1, 2, 3, 1, 1, 2, 1, 2 };

typedef struct flux__expr_fn {
    const char *name;
    int kind;
    flux_fn one;
    flux_fn2 two;
    flux_tensor *(*three)(flux_tensor *, flux_tensor *, flux_tensor *);
    flux_tensor *(*reduce)(int n, flux_reduce_opts o);
} flux__expr_fn;

/* Those that have the name of their flux_ function ... */
#define FLUX__EACH_NAMES(X)                                                                      \
    X(abs) X(sqrt) X(rsqrt) X(exp) X(log) X(log1p) X(expm1) X(sin) X(cos) X(tanh) X(erf) X(floor)\
    X(ceil) X(round) X(neg) X(sign) X(square) X(not) X(identity) X(sigmoid) X(hardsigmoid)       \
    X(logsigmoid) X(hardtanh) X(relu) X(relu6) X(selu) X(gelu) X(gelu_tanh) X(gelu_sigmoid)      \
    X(gelu_erf) X(swish) X(hardswish) X(lisht) X(logcosh) X(mish) X(softplus) X(softsign)        \
    X(tanhshrink) X(leakyrelu) X(rrelu) X(elu) X(celu) X(softshrink) X(trelu)
#define FLUX__PAIR_NAMES(X)                                                                      \
    X(add) X(sub) X(mul) X(div) X(pow) X(max2) X(min2) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)      \
    X(and) X(or)
#define FLUX__REDUCE_NAMES(X)                                                                    \
    X(sum) X(mean) X(var) X(prod) X(max) X(min) X(any) X(all) X(norm) X(logsumexp) X(argmax)     \
    X(argmin) X(softmax) X(logsoftmax)
#define FLUX__WHOLE_NAMES(X) X(transpose) X(flatten) X(squeeze) X(copy) X(detach) X(onecold)
#define FLUX__BOTH_NAMES(X) X(matmul) X(outer) X(dot) X(vcat)

#define FLUX__EACH_ROW(f) { #f, FLUX__FN_EACH, flux_##f, NULL, NULL, NULL },
#define FLUX__PAIR_ROW(f) { #f, FLUX__FN_PAIR, NULL, flux_##f, NULL, NULL },
#define FLUX__REDUCE_ROW(f) { #f, FLUX__FN_REDUCE, NULL, NULL, NULL, flux_##f##_over },
#define FLUX__WHOLE_ROW(f) { #f, FLUX__FN_WHOLE, flux_##f, NULL, NULL, NULL },
#define FLUX__BOTH_ROW(f) { #f, FLUX__FN_BOTH, NULL, flux_##f, NULL, NULL },

static const flux__expr_fn flux__expr_fns[] = {
    FLUX__EACH_NAMES(FLUX__EACH_ROW)
    FLUX__PAIR_NAMES(FLUX__PAIR_ROW)
    FLUX__REDUCE_NAMES(FLUX__REDUCE_ROW)
    FLUX__WHOLE_NAMES(FLUX__WHOLE_ROW)
    FLUX__BOTH_NAMES(FLUX__BOTH_ROW)
    FLUX__LOSSES(FLUX__BOTH_ROW)
    /* ... and those that have another, mostly Julia's. */
    { "abs2", FLUX__FN_EACH, flux_square, NULL, NULL, NULL },
    { "\xCF\x83", FLUX__FN_EACH, flux_sigmoid, NULL, NULL, NULL },
    { "hard\xCF\x83", FLUX__FN_EACH, flux_hardsigmoid, NULL, NULL, NULL },
    { "log\xCF\x83", FLUX__FN_EACH, flux_logsigmoid, NULL, NULL, NULL },
    { "max", FLUX__FN_PAIR, NULL, flux_max2, NULL, NULL },
    { "min", FLUX__FN_PAIR, NULL, flux_min2, NULL, NULL },
    { "where", FLUX__FN_TRIPLE, NULL, NULL, flux_where, NULL },
    { "ifelse", FLUX__FN_TRIPLE, NULL, NULL, flux_where, NULL },
    { "clamp", FLUX__FN_TRIPLE, NULL, NULL, flux__expr_clamp, NULL },
    { "maximum", FLUX__FN_REDUCE, NULL, NULL, NULL, flux_max_over },
    { "minimum", FLUX__FN_REDUCE, NULL, NULL, NULL, flux_min_over },
    { "glu", FLUX__FN_REDUCE, NULL, NULL, NULL, flux__expr_glu },
    { "adjoint", FLUX__FN_WHOLE, flux_transpose, NULL, NULL, NULL },
    { "tr", FLUX__FN_WHOLE, flux__expr_trace, NULL, NULL, NULL },
    { "hcat", FLUX__FN_BOTH, NULL, flux__expr_hcat, NULL, NULL },
    { "length", FLUX__FN_LENGTH, NULL, NULL, NULL, NULL },
    { "len", FLUX__FN_LENGTH, NULL, NULL, NULL, NULL },
    { "size", FLUX__FN_SIZE, NULL, NULL, NULL, NULL },
    { "dim", FLUX__FN_SIZE, NULL, NULL, NULL, NULL }
};
enum { FLUX__FUNCTIONS = sizeof flux__expr_fns / sizeof *flux__expr_fns };

/* The function of this name that takes so many operands (-1: any); NULL if there is none. */
static const flux__expr_fn *flux__expr_find(const char *name, int size, int operands) {
    for (int i = 0; i < (int)FLUX__FUNCTIONS; i++) {
        const flux__expr_fn *f = &flux__expr_fns[i];
        if (operands >= 0 && flux__fn_operands[f->kind] != operands) continue;
        if (flux__is_name(f->name, name, size)) return f;
    }
    return NULL;
}

typedef struct flux__call {               /* f.(a, b, dims=0), as read */
    const char *name;                     /* where it stands in the formula */
    int size;
    bool dot;
    const flux__expr_fn *first;          /* sum(abs2, x): the function applied first */
    flux__term arg[FLUX__ARGUMENTS];
    int n, dims[FLUX_MAX_DIMS], ndims;
} flux__call;

static flux__term flux__expr_parse(flux__expr *p, int bind);

/* A whole number from 0 to 7 as one of the dims of a call. */
static void flux__expr_dim(flux__expr *p, flux__call *c) {
    flux__expr_space(p);
    bool digit = flux__is_digit(*p->at) && !flux__is_digit(p->at[1]) && p->at[1] != '.';
    if (!digit || *p->at - '0' >= FLUX_MAX_DIMS || c->ndims == FLUX_MAX_DIMS) {
        flux__expr_expected(p, "a dim from 0 to 7");
        return;
    }
    c->dims[c->ndims++] = *p->at++ - '0';
}

/* dims=1 or dims=(0, 1). False: something else stands here. */
static bool flux__expr_dims(flux__expr *p, flux__call *c) {
    const char *start = p->at;
    if (!flux__is_name("dims", p->at, flux__name_size(p->at))) return false;
    p->at += 4;
    flux__expr_space(p);
    if (*p->at != '=' || p->at[1] == '=') {
        p->at = start;
        return false;
    }
    p->at++;
    if (c->ndims) flux__expr_fail(p, start, "dims is given twice");
    bool list = flux__expr_take(p, "(");
    do flux__expr_dim(p, c);
    while (list && !p->failed && flux__expr_take(p, ",") && !flux__starts(p->at, ")"));
    if (list && !p->failed && !flux__expr_take(p, ")")) flux__expr_expected(p, ", or )");
    return true;
}

static int flux__expr_bound(const flux__expr *p, const char *name, int size);

/* sum(abs2, x): a name of a function of one number before the first comma. */
static bool flux__expr_first(flux__expr *p, flux__call *c) {
    int size = flux__name_size(p->at);
    const char *after = p->at + size;
    const flux__expr_fn *f = size ? flux__expr_find(p->at, size, 1) : NULL;
    while (*after == ' ') after++;
    if (!f || f->kind != FLUX__FN_EACH || *after != ',' || c->n || c->first) return false;
    if (flux__expr_bound(p, p->at, size) >= 0) return false;
    c->first = f;
    p->at = after + 1;
    return true;
}

/* What stands between a call's brackets. */
static void flux__expr_arguments(flux__expr *p, flux__call *c) {
    if (flux__expr_take(p, ")")) return;
    while (!p->failed) {
        flux__expr_space(p);
        if (!flux__expr_dims(p, c) && !flux__expr_first(p, c)) {
            if (c->n == FLUX__ARGUMENTS) {
                flux__expr_fail(p, p->at, "%.*s takes no more than %d operands", c->size, c->name,
                                FLUX__ARGUMENTS);
                return;
            }
            c->arg[c->n] = flux__expr_parse(p, 0);
            c->n++;
        } else if (c->first && !c->n) continue;
        if (p->failed || flux__expr_take(p, ")")) return;
        if (!flux__expr_take(p, ",") && !flux__expr_take(p, ";"))
            flux__expr_expected(p, ", or ) or an operator");
    }
}

/* Whether the call is spelled as its function wants it: operands, dot, dims. */
static bool flux__expr_check_call(flux__expr *p, const flux__call *c, const flux__expr_fn *f) {
    const flux__expr_fn *any = f ? f : flux__expr_find(c->name, c->size, -1);
    bool each = f && f->kind <= FLUX__FN_TRIPLE;
    if (any->kind != FLUX__FN_REDUCE && (c->ndims || c->first))
        flux__expr_fail(p, c->name, "%s takes no %s", any->name,
                        c->ndims ? "dims" : "function as an operand");
    else if (!f)
        flux__expr_fail(p, c->name, "%s takes %d operand%s, not %d", any->name,
                        flux__fn_operands[any->kind], flux__fn_operands[any->kind] == 1 ? "" : "s",
                        c->n);
    else if (c->dot && !each)
        flux__expr_fail(p, c->name, "%s.(...) would take single elements: write %s(...)", f->name,
                        f->name);
    for (int i = 0; i < c->n && each && !c->dot && !p->failed; i++)
        if (!flux__is_scalar(&c->arg[i])) {
            flux__text t = flux__expr_kind(&c->arg[i]);
            flux__expr_fail(p, c->name, "%s of %s: write %s.(...) for each element", f->name, t.s,
                            f->name);
        }
    return !p->failed;
}

/* length(x), size(x, 0) */
static flux__term flux__expr_count(flux__expr *p, const flux__call *c, const flux__expr_fn *f) {
    const flux_tensor *x = c->arg[0].t;
    double d = f->kind == FLUX__FN_SIZE ? c->arg[1].num : 0;
    if (f->kind == FLUX__FN_LENGTH) return flux__expr_number(x ? (double)flux__size(x) : 1);
    if (c->arg[1].t || d < 0 || d >= FLUX_MAX_DIMS || d != floor(d))
        flux__expr_fail(p, c->name, "%s takes a tensor and one of its dims, from 0 to 7", f->name);
    return flux__expr_number(x && !p->failed ? (double)flux_dim(x, (int)d) : 1);
}

static flux_tensor *flux__expr_reduce(const flux__call *c, const flux__expr_fn *f, flux_tensor *x) {
    flux_reduce_opts o;
    o.x = c->first ? c->first->one(x) : x;
    o.d0 = c->dims[0], o.d1 = c->dims[1], o.d2 = c->dims[2], o.d3 = c->dims[3];
    o.d4 = c->dims[4], o.d5 = c->dims[5], o.d6 = c->dims[6], o.d7 = c->dims[7];
    return f->reduce(c->ndims, o);
}

/* An operand as the tensor that the function takes; in a call of numbers alone, a float64. */
static flux_tensor *flux__expr_operand_of(const flux__term *a, const flux__expr_fn *f, bool plain) {
    if (plain) return flux_full_shape(flux__shape(NULL, 0), a->num, FLUX_F64);
    return f->two == flux_dot ? flux__unrow(a) : flux__as_tensor(a);
}

/* Calls the function. Of numbers alone it gives a plain number, computed at once and in double. */
static flux__term flux__expr_apply(flux__expr *p, const flux__call *c) {
    const flux__expr_fn *f = flux__expr_find(c->name, c->size, c->n);
    flux_tensor *t[FLUX__ARGUMENTS] = { NULL, NULL, NULL }, *y;
    bool plain = true;
    double num;
    if (!flux__expr_check_call(p, c, f)) return flux__expr_number(0);
    if (f->kind >= FLUX__FN_LENGTH) return flux__expr_count(p, c, f);
    for (int i = 0; i < c->n; i++)
        if (c->arg[i].t) plain = false;
    for (int i = 0; i < c->n; i++) t[i] = flux__expr_operand_of(&c->arg[i], f, plain);
    flux__expr_enter(p, c->name);
    if (f->one) y = f->one(t[0]);
    else if (f->two) y = f->two(t[0], t[1]);
    else y = f->three ? f->three(t[0], t[1], t[2]) : flux__expr_reduce(c, f, t[0]);
    if (!plain || !y || y->ndim) {
        flux__term v = flux__expr_leave(p, y);
        v.row = y && f->kind <= FLUX__FN_TRIPLE && flux__are_row(c->arg, c->n);
        return v;
    }
    bool got = flux_read(flux_to_dtype(y, FLUX_F64), &num, sizeof num) == 0;
    return flux__expr_leave(p, got ? y : NULL).t ? flux__expr_number(num) : flux__expr_number(0);
}

/* ---- reading */

/* The number of the bound variable of this name; -1 if there is none. */
static int flux__expr_bound(const flux__expr *p, const char *name, int size) {
    const char *s = p->names;
    for (int i = 0; i < p->n; i++) {
        while (*s == ' ' || *s == ',') s++;
        int have = flux__name_size(s);
        if (have == size && memcmp(s, name, (size_t)size) == 0) return i;
        s += have;
    }
    return -1;
}

static bool flux__expr_constant(const char *name, int size, double *num) {
    static const double pi = 3.14159265358979323846, e = 2.71828182845904523536;
    static const char *const names[] = { "pi", "\xCF\x80", "\xE2\x84\xAF",
                                         "Inf", "NaN", "true", "false" };
    const double values[] = { pi, pi, e, HUGE_VAL, HUGE_VAL - HUGE_VAL, 1, 0 };
    for (int i = 0; i < 7; i++)
        if (flux__is_name(names[i], name, size)) {
            *num = values[i];
            return true;
        }
    return false;
}

/* Whether a dot before s is that of an operator or a call, not of a number before it: 2.*x, 2.^x */
static bool flux__dots(const char *s) {
    return (*s && strchr("+-*/^=!<>&|'(", *s)) || flux__is_sign(s);
}

/* 1, 2.5, .5, 1e-3, 1f0, 1_000. strtod gets digits without a point, as its sign is the locale's. */
static double flux__expr_literal(flux__expr *p) {
    char digits[64];
    int n = 0;
    long power = 0, e = 0;
    bool point = false, single = false;
    for (;; p->at++) {
        const char *s = p->at;
        if (flux__is_digit(*s)) {
            if (n == 40) power++;         /* more digits than matter */
            else if (n || *s != '0') digits[n++] = *s;
            if (point) power--;
        } else if (*s == '.' && !point && !flux__dots(s + 1)) point = true;
        else if (*s != '_' || !flux__is_digit(s[1]) || !flux__is_digit(s[-1])) break;
    }
    if (*p->at == 'e' || *p->at == 'E' || *p->at == 'f') {
        const char *s = p->at + 1, sign = *s;
        if (sign == '-' || sign == '+') s++;
        single = *p->at == 'f' && flux__is_digit(*s);
        if (flux__is_digit(*s)) p->at = s;
        for (; p->at == s && flux__is_digit(*s); p->at = ++s)
            if (e < 100000) e = 10 * e + (*s - '0');
        power += sign == '-' ? -e : e;
    }
    if (!n) digits[n++] = '0';
    if (power > 9999 || power < -9999) power = power < 0 ? -9999 : 9999;
    snprintf(digits + n, sizeof digits - (size_t)n, "e%ld", power);
    double v = strtod(digits, NULL);
    return single ? (double)(float)v : v;
}

static flux__term flux__expr_name(flux__expr *p) {
    flux__call c;
    memset(&c, 0, sizeof c);
    c.name = p->at;
    c.size = flux__name_size(p->at);
    p->at += c.size;
    c.dot = p->at[0] == '.' && p->at[1] == '(';
    bool call = c.dot || *p->at == '(';
    int bound = flux__expr_bound(p, c.name, c.size);
    flux__term v = { bound >= 0 ? p->values[bound] : NULL, 0, false };
    if (!call && (v.t || flux__expr_constant(c.name, c.size, &v.num))) return v;
    const flux__expr_fn *f = flux__expr_find(c.name, c.size, -1);
    if (call && f) {
        p->at += c.dot ? 2 : 1;
        flux__expr_arguments(p, &c);
        return p->failed ? v : flux__expr_apply(p, &c);
    }
    char found[64];
    flux__expr_found(c.name, found, sizeof found);
    const char *names = p->n ? p->names : "none";
    if (call && v.t) flux__expr_fail(p, c.name, "%s is a variable, not a function", found);
    else if (call) flux__expr_fail(p, c.name, "unknown function %s", found);
    else if (f) flux__expr_fail(p, c.name, "%s is a function: write %s(...)", found, f->name);
    else flux__expr_fail(p, c.name, "unknown name %s (bound: %.300s)", found, names);
    return v;
}

/* A number, a name, a call or a bracket, and a ' behind it; or a number and its factor, as in 2x. */
static flux__term flux__expr_operand(flux__expr *p) {
    flux__term v = flux__expr_number(0);
    const char *start;
    flux__expr_space(p);
    start = p->at;
    if (flux__is_digit(*start) || (*start == '.' && flux__is_digit(start[1]))) {
        v.num = flux__expr_literal(p);
        if (*p->at == '(' || flux__name_size(p->at)) {
            flux__term factor = flux__expr_parse(p, FLUX__BIND_JUXTAPOSED);
            if (p->failed) return v;
            return factor.t ? flux__expr_times(p, start, v, factor)
                            : flux__expr_number(v.num * factor.num);
        }
    } else if (*start == '(') {
        p->at++;
        v = flux__expr_parse(p, 0);
        if (!p->failed && !flux__expr_take(p, ")")) flux__expr_expected(p, ") or an operator");
    } else if (flux__name_size(start)) v = flux__expr_name(p);
    else flux__expr_expected(p, "a number, a name or (");
    for (; !p->failed && *p->at == '\''; p->at++) v = flux__expr_transpose(p, p->at, v);
    return v;
}

/* - + ! and the root sign before what they bind to. */
static flux__term flux__expr_prefix(flux__expr *p) {
    static const char *const signs[] = { "-", "+", "!", "\xE2\x88\x9A" };
    flux__expr_space(p);
    const char *start = p->at, *s = *start == '.' ? start + 1 : start;
    int which = 0;
    while (which < 4 && !flux__starts(s, signs[which])) which++;
    if (which == 4) return flux__expr_operand(p);
    p->at = s + strlen(signs[which]);
    bool call = p->at[0] == '.' && p->at[1] == '(';        /* !.(x) */
    bool dot = call || s != start;
    if (call) p->at++;
    flux__term v = call ? flux__expr_operand(p) : flux__expr_parse(p, FLUX__BIND_UNARY);
    if (p->failed || which == 1) return v;
    if (!v.t) return flux__expr_number(which == 0 ? -v.num : which == 2 ? v.num == 0 : sqrt(v.num));
    bool row = v.row;
    if (which > 1 && !dot && !flux__is_scalar(&v)) {
        flux__text t = flux__expr_kind(&v);
        flux__expr_fail(p, start, "%s of %s: write .%s for each element", signs[which], t.s,
                        signs[which]);
        return v;
    }
    flux_fn f = which == 0 ? flux_neg : which == 2 ? flux_not : flux_sqrt;
    v = FLUX__EXPR_AT(p, start, f(v.t));
    v.row = row && !p->failed;
    return v;
}

/* c ? a : b, from the ? on. Both sides are recorded; a plain number chooses one of them at once. */
static flux__term flux__expr_choice(flux__expr *p, flux__term c) {
    const char *at = p->at++;
    flux__term a = flux__expr_parse(p, FLUX__BIND_CHOICE), b;
    if (!p->failed && !flux__expr_take(p, ":")) flux__expr_expected(p, ":");
    if (p->failed) return a;
    b = flux__expr_parse(p, FLUX__BIND_CHOICE);
    if (p->failed) return a;
    if (!flux__is_scalar(&c)) {
        flux__text t = flux__expr_kind(&c);
        flux__expr_fail(p, at, "? after %s: write ifelse.(c, a, b) for each element", t.s);
        return a;
    }
    if (!c.t) return c.num != 0 ? a : b;
    return FLUX__EXPR_AT(p, at, (flux_where)(c.t, flux__as_tensor(&a), flux__as_tensor(&b)));
}

/* Reads what binds at least as tightly as `bind`. */
static flux__term flux__expr_parse(flux__expr *p, int bind) {
    flux__term v = flux__expr_number(0);
    bool dot, compared = false;
    int size = 0;
    if (++p->depth > FLUX__NESTING)
        flux__expr_fail(p, p->at, "nested more than %d deep", FLUX__NESTING);
    if (!p->failed) v = flux__expr_prefix(p);
    while (!p->failed) {
        const flux__infix *op = flux__expr_next(p, &dot, &size);
        const char *at = p->at;
        if (!op || op->bind < bind) break;
        bool compares = op->bind == FLUX__BIND_COMPARE;
        if (compares && compared) {
            flux__expr_fail(p, at, "comparisons do not chain here: write (a .< b) .&& (b .< c)");
            break;
        }
        compared = compares;
        p->at += size;
        int tighter = op->bind == FLUX__BIND_POWER ? 0 : 1;     /* 2^3^2 is 2^(3^2) */
        v = flux__expr_infix(p, at, op, dot, v, flux__expr_parse(p, op->bind + tighter));
    }
    if (!p->failed && bind <= FLUX__BIND_CHOICE && *p->at == '?') v = flux__expr_choice(p, v);
    p->depth--;
    return v;
}

/* Names must be n plain names; values tensors. */
static bool flux__expr_check(const flux__expr *p) {
    const char *s = p->names ? p->names : "";
    for (int i = 0; i < p->n; i++) {
        while (*s == ' ') s++;
        int size = flux__name_size(s);
        const char *end = s + size;
        while (*end == ' ') end++;
        if (!size || *end != (i + 1 < p->n ? ',' : 0)) {
            flux__fail("expr: variable %d of %d in \"%.200s\" is not a plain name", i + 1, p->n,
                       p->names ? p->names : "");
            return false;
        }
        if (!p->values || !p->values[i]) {
            char name[48];
            snprintf(name, sizeof name, "%.*s", size < 40 ? size : 40, s);
            flux__null("expr", name, NULL);
            return false;
        }
        s = end + 1;
    }
    return true;
}

FLUX_DEF flux_tensor *flux_expr_with(const char *formula, int n, const char *names,
                                     flux_tensor *const *values) {
    flux__expr p = { formula, formula, names, values, n, 0, false, NULL };
    if (!formula) return (flux_tensor *)flux__null("expr", "formula", formula);
    if (!flux__expr_check(&p)) return NULL;
    int h = flux__hide();
    flux__term v = flux__expr_parse(&p, 0);
    flux__expr_space(&p);
    if (!p.failed && *p.at == '[')
        flux__expr_fail(&p, p.at, "no indexing in formulas: flux_slice and flux_select do that");
    if (!p.failed && *p.at == ')') flux__expr_fail(&p, p.at, ") without a (");
    if (!p.failed && *p.at) flux__expr_expected(&p, "an operator or the end");
    return flux__reveal(h, p.failed ? NULL : v.t ? v.t : flux_scalar(v.num));
}

/* ---------------- Moves
   gpu, cpu, cu, roc and to, for tensors and for everything that holds tensors. One function decides what becomes of a
   tensor: float64 becomes float32 on its way to a GPU, every other dtype stays, and what is there already is returned
   as it is. Models, loaders and states only pass it on to their tensors, so that tied ones stay tied and a gradient
   finds its way back. flux_gpu asks for no GPU: where there is none it says why, once, and does nothing.

   Invariant: a call that moves nothing returns the very object it was given. Rejected: moving in place, which would
   pull tensors from under the graphs that use them. */

typedef struct flux__trip {
    flux_device to;
    bool any;                             /* gpu, cu, roc: any device of that back end will do, but float64 will not */
} flux__trip;

static bool flux__there(flux_device at, const flux__trip *trip) {
    return flux_device_equal(at, trip->to) || (trip->any && at.backend == trip->to.backend);
}

/* Whether a tensor of this dtype, lying there, becomes float32: when it enters a GPU, or was meant to have done so. */
static bool flux__narrows(int dtype, flux_device at, const flux__trip *trip) {
    return dtype == FLUX_F64 && trip->to.backend != FLUX__CPU_BACKEND && (trip->any || at.backend == FLUX__CPU_BACKEND);
}

static flux_tensor *flux__travel(flux_tensor *x, const flux__trip *trip) {
    bool narrows = flux__narrows(x->dtype, x->device, trip), there = flux__there(x->device, trip);
    if (there && !narrows) return x;
    int h = flux__hide();
    flux_tensor *y = narrows ? flux_to_dtype(x, FLUX_F32) : x;
    return flux__reveal(h, !y || there ? y : flux__move(y, trip->to));
}

/* A tuple moves as its tensors do; it stays the same object if all of them do. */
static flux_tensor *flux__travel_any(flux_tensor *x, const flux__trip *trip) {
    if (x->op != FLUX__TUPLE) return flux__travel(x, trip);
    int n = flux_count(x), h = flux__hide();
    flux_tensor **parts = (flux_tensor **)flux__malloc((size_t)n * sizeof *parts), *y = NULL;
    bool good = parts != NULL, same = true;
    for (int i = 0; good && i < n; i++) {
        parts[i] = flux__travel(flux_nth(x, i), trip);
        good = parts[i] != NULL;
        same = same && good && parts[i] == flux_nth(x, i);
    }
    if (good) y = same ? x : flux_tuple_of(n, parts);
    if (parts) FLUX_FREE(parts);
    if (y != x) return flux__reveal(h, y);
    flux__reveal(h, NULL);
    return x;
}

static flux_tensor *flux__travel_leaf(flux_tensor *x, const char *path, void *trip) {
    (void)path;
    return flux__travel(x, (const flux__trip *)trip);
}

/* ---- where a call's argument is to go: true, or false when it stays as it is */

/* Where flux_gpu moves to: the preferred GPU, else the first that works. Without one, says so; CPU as the preference is
   obeyed in silence. */
static bool flux__to_gpu(flux__trip *trip) {
    const char *want = flux__preference();
    int b = flux__choose(false, false), wanted = want ? flux__backend_number(want) : b;
    trip->to.backend = b;
    trip->to.id = 0;
    trip->any = true;
    if (b == FLUX__CPU_BACKEND && wanted == FLUX__CPU_BACKEND && want) return true;
    if (b == FLUX__CPU_BACKEND) {
        char why[640];
        flux__why_none(why, sizeof why);
        flux__note(FLUX_LOG_INFO, "gpu.none", true, "gpu: no GPU can be used, so everything stays where it is (%s)", why);
        return false;
    }
    if (wanted >= 0 && wanted != b)
        flux__note(FLUX_LOG_WARN, "gpu.other", true, "gpu: the preferred back end %s can't be used (%s): moving to %s",
                   flux__backends[wanted].name, flux__probe_of(wanted)->why, flux__backends[b].name);
    return true;
}

/* For flux_cu and flux_roc: that back end, else a warning. */
static bool flux__to_named(flux__trip *trip, int b, const char *call) {
    char id[24];
    trip->to.backend = b;
    trip->to.id = 0;
    trip->any = true;
    if (flux__probe_of(b)->functional) return true;
    snprintf(id, sizeof id, "%s.none", call);
    flux__note(FLUX_LOG_WARN, id, true, "%s: %s can't be used, so everything stays where it is (%s)", call, flux__backends[b].name,
               flux__probe_of(b)->why);
    return false;
}
static bool flux__to_cu(flux__trip *trip) { return flux__to_named(trip, FLUX__CUDA_BACKEND, "cu"); }
static bool flux__to_roc(flux__trip *trip) { return flux__to_named(trip, FLUX__AMDGPU_BACKEND, "roc"); }

static bool flux__to_cpu(flux__trip *trip) {
    memset(trip, 0, sizeof *trip);
    return true;
}

/* For flux_to: any device that can be used. Anything else is an error. */
static bool flux__to_device(flux__trip *trip, flux_device d) {
    trip->to = d;
    trip->any = false;
    if (d.backend == FLUX__CPU_BACKEND) trip->to.id = 0;
    if (flux__device_is(trip->to)) return true;
    bool named = d.backend >= 0 && d.backend < FLUX__BACKENDS;
    if (!named) flux__fail("to: there is no device {%d, %d}", d.backend, d.id);
    else if (flux__probe_of(d.backend)->functional)
        flux__fail("to: %s has no device %d: ids go from 0 to %d", flux__backends[d.backend].name, d.id, flux__probe_of(d.backend)->count - 1);
    else flux__fail("to: %s can't be used: %s", flux__backends[d.backend].name, flux__probe_of(d.backend)->why);
    return false;
}

/* ---- the four kinds of things that move */

static flux_layer *flux__travel_layer(flux_layer *m, const flux__trip *trip) {
    flux__trip copy = *trip;
    return flux__map_layer(flux__travel_leaf, &copy, m, true);
}

/* A loader moves its batches, not its data; when those come out right as they are, it stays as it is. */
static flux_loader *flux__travel_loader(flux_loader *l, const flux__trip *trip) {
    bool right = flux__there(flux__loader_device(l), trip), to_host = trip->to.backend == FLUX__CPU_BACKEND;
    const flux__stage *last = l->stages ? &l->stage[l->stages - 1] : NULL;
    if (last && last->kind == FLUX__STAGE_MOVE) right = right && (to_host || !last->keep_f64 || !trip->any);
    for (int i = 0; !last && i < l->arrays; i++)
        right = right && flux__there(l->array[i]->device, trip) && !flux__narrows(l->array[i]->dtype, l->array[i]->device, trip);
    return right ? l : flux__loader_on(l, trip->to, to_host);
}

typedef struct flux__state_trip { const flux__trip *trip; bool look, moves, failed; } flux__state_trip;   /* look: only ask what moves */

static void flux__travel_slot(flux_tensor **slot, const char *path, bool trained, const flux_layer *owner, void *user) {
    flux__state_trip *t = (flux__state_trip *)user;
    flux_tensor *x = *slot;
    (void)path, (void)trained, (void)owner;
    if (t->failed || !flux__dtypes[x->dtype].real) return;          /* counts of steps are read here, and stay */
    if (flux__there(x->device, t->trip) && !flux__narrows(x->dtype, x->device, t->trip)) return;
    t->moves = true;
    if (t->look) return;
    x = flux__travel(x, t->trip);
    if (x) flux_assign(slot, x);
    else t->failed = true;
}

static flux_state *flux__travel_state(flux_state *s, const flux__trip *trip) {
    flux__state_trip t = { trip, true, false, false };
    flux__state_fields(s, flux__travel_slot, &t);
    if (!t.moves) return s;
    int h = flux__hide();
    flux__block b = flux__nograd_enter();
    flux_state *copy = flux__state_copy(s);
    t.look = false;
    if (copy) flux__state_fields(copy, flux__travel_slot, &t);
    for (int i = 0; copy && i < copy->nleaves; i++) {               /* the dtype that its parameters will have there */
        flux_tensor *p = copy->leaf[i].p;
        if (!t.failed && flux__narrows(p->dtype, p->device, trip)) flux_assign(&copy->leaf[i].p, flux_to_dtype(p, FLUX_F32));
        t.failed = t.failed || !copy->leaf[i].p;
    }
    flux__nograd_leave(&b);
    return (flux_state *)flux__reveal_object(h, t.failed ? NULL : copy);
}

#define FLUX__DEFINE_MOVE(T, name, suffix, travel, find)                                                    \
    FLUX_DEF T *(flux_##name##suffix)(T *x) {                                                        \
        flux__trip trip;                                                                             \
        if (!x) return (T *)flux__null(#name, "x", x);                                               \
        return find(&trip) ? travel(x, &trip) : x;                                                   \
    }
#define FLUX__DEFINE_MOVES(T, suffix, to_suffix, travel)                                                 \
    FLUX__DEFINE_MOVE(T, gpu, suffix, travel, flux__to_gpu)                                                 \
    FLUX__DEFINE_MOVE(T, cpu, suffix, travel, flux__to_cpu)                                                 \
    FLUX__DEFINE_MOVE(T, cu, suffix, travel, flux__to_cu)                                                   \
    FLUX__DEFINE_MOVE(T, roc, suffix, travel, flux__to_roc)                                                 \
    FLUX_DEF T *flux_to##to_suffix(flux_device d, T *x) {                                            \
        flux__trip trip;                                                                             \
        if (!x) return (T *)flux__null("to", "x", x);                                                \
        return flux__to_device(&trip, d) ? travel(x, &trip) : NULL;                                  \
    }
FLUX__DEFINE_MOVES(flux_tensor, , _tensor, flux__travel_any)
FLUX__DEFINE_MOVES(flux_layer, _layer, _layer, flux__travel_layer)
FLUX__DEFINE_MOVES(flux_loader, _loader, _loader, flux__travel_loader)
FLUX__DEFINE_MOVES(flux_state, _state, _state, flux__travel_state)

/* ---- where something is */

typedef struct flux__whereabouts {              /* the first device met, and what was there */
    flux_device at;
    bool met, mixed;
    char path[160];
} flux__whereabouts;

/* Meets one more tensor; the first that is elsewhere is an error that names both. */
static void flux__whereabouts_meet(flux__whereabouts *p, flux_device at, const char *path) {
    if (!p->met) {
        p->at = at;
        p->met = true;
        snprintf(p->path, sizeof p->path, "%s", path);
    } else if (!p->mixed && !flux_device_equal(p->at, at)) {
        p->mixed = true;
        flux__fail("device_of: on several devices: %s is on %s, %.150s on %s", p->path, flux_device_name(p->at), path, flux_device_name(at));
    }
}

static flux_device flux__whereabouts_of(const flux__whereabouts *p) {
    flux_device none = { -1, 0 };
    return p->mixed ? none : p->at;       /* the CPU, where there is no tensor at all */
}

static void flux__whereabouts_visit(flux_tensor *x, const char *path, bool trained, void *user) {
    (void)trained;
    flux__whereabouts_meet((flux__whereabouts *)user, x->device, path);
}

static void flux__whereabouts_number(flux__whereabouts *p, const flux_tensor *x, const char *what, int i) {
    char path[40];
    snprintf(path, sizeof path, "%s %d", what, i);
    flux__whereabouts_meet(p, x->device, path);
}

static flux_device flux__nowhere(const void *x) {
    flux_device none = { -1, 0 };
    flux__null("device_of", "x", x);
    return none;
}

FLUX_DEF flux_device flux_device_of_tensor(const flux_tensor *x) {
    flux__whereabouts p;
    memset(&p, 0, sizeof p);
    if (!x) return flux__nowhere(x);
    if (x->op != FLUX__TUPLE) return x->device;
    for (int i = 0; i < x->nin; i++) flux__whereabouts_number(&p, x->in[i], "tensor", i);
    return flux__whereabouts_of(&p);
}

FLUX_DEF flux_device flux_device_of_layer(const flux_layer *m) {
    flux__whereabouts p;
    memset(&p, 0, sizeof p);
    if (!m) return flux__nowhere(m);
    flux_visit(m, flux__whereabouts_visit, &p);
    return flux__whereabouts_of(&p);
}

FLUX_DEF flux_device flux_device_of_loader(const flux_loader *l) {
    flux__whereabouts p;
    memset(&p, 0, sizeof p);
    if (!l) return flux__nowhere(l);
    for (int i = 0; i < l->stages; i++)
        if (l->stage[i].kind == FLUX__STAGE_MOVE) return flux__loader_device(l);
    for (int i = 0; i < l->arrays; i++) flux__whereabouts_number(&p, l->array[i], "array", i);
    return flux__whereabouts_of(&p);
}

static void flux__whereabouts_slot(flux_tensor **slot, const char *path, bool trained, const flux_layer *owner, void *user) {
    (void)trained, (void)owner;
    if (flux__dtypes[(*slot)->dtype].real) flux__whereabouts_meet((flux__whereabouts *)user, (*slot)->device, path);
}

FLUX_DEF flux_device flux_device_of_state(const flux_state *s) {
    flux__whereabouts p;
    memset(&p, 0, sizeof p);
    if (!s) return flux__nowhere(s);
    flux__state_fields((flux_state *)(intptr_t)s, flux__whereabouts_slot, &p);
    return flux__whereabouts_of(&p);
}

FLUX__ASBEFORE
#endif /* FLUX_IMPLEMENTATION */
