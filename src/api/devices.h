#ifndef FLUX__API_DEVICES_H
#define FLUX__API_DEVICES_H
#include "memory.h"

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
#define FLUX__LEFT_OUT_flux_get_device_opts
FLUX_API flux_device flux_get_device_with(flux_get_device_opts opts);
/* flux_get_device(.backend = "CUDA", .id = 1), or flux_get_device() for the best one there is (the CPU at worst).
   On error (unknown or unavailable back end, bad id): .backend is -1. */
#define flux_get_device(...) flux_get_device_with(FLUX__OPTS(flux_get_device_opts, __VA_ARGS__))
FLUX_API int flux_get_devices(const char *backend, flux_device *out, int max);   /* how many there are; fills at most max */
FLUX_API const char *flux_device_name(flux_device d);             /* "CPU", "CUDA device 0: NVIDIA H200", ... */
FLUX_API int flux_device_id(flux_device d);
FLUX_API const char *flux_device_backend(flux_device d);          /* "CPU", "CUDA", ... */
FLUX_API bool flux_device_equal(flux_device a, flux_device b);
FLUX_API void flux_default_device(flux_device d);                 /* where flux_from, flux_rand, flux_zeros ... and initialisers make
                                                                     tensors from now on; the CPU until then. For all threads */
FLUX_API void flux_synchronise_device(flux_device d);             /* waits until all work there is done */
/* Compiles ahead, on several threads, what a model on a GPU needs for inputs of this size: its forward pass in test mode, and
   in training forward and backward. Nothing is run and the model stays as it is. What a loss and an optimiser add is compiled
   when they first run. On the CPU there is nothing to do. Non-zero: an error. */
FLUX_API int flux_prewarm_of(flux_layer *m, flux_shape in);
#define flux_prewarm(m, ...) flux_prewarm_of(m, FLUX_SHAPE(__VA_ARGS__))

FLUX_API const char *flux_gpu_backend(void);             /* the preferred back end, "CUDA" when none is set */
FLUX_API bool flux_gpu_backend_is_set(void);
/* Stores the preference in LocalPreferences.toml (table [Flux], key gpu_backend), at once and for later runs.
   NULL or "": forget it. Returns 0, or non-zero for an unknown name or a file that can't be written. */
FLUX_API int flux_gpu_backend_set(const char *backend);

/* Lets NVIDIA's tensor cores (sm_80 and later) multiply float32 matrices as TF32: ten bits behind the point of each factor, sums
   in float32. Off at first; for what is computed from now on, on all devices. */
FLUX_API void flux_allow_tf32(bool on);

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

#endif /* FLUX__API_DEVICES_H */
