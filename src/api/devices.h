#ifndef FLUX__API_DEVICES_H
#define FLUX__API_DEVICES_H
#include "memory.h"

/* ------------------------------------------------------------------ devices
   A back end is a kind of device, given by name: CUDA, AMDGPU, Metal or CPU, in the order of
   preference. Any other name is an error. A device is a back end and an id, counted from 0. */

/* The four names, on any machine, with NULL at the end. */
FLUX_API const char *const *flux_supported_devices(void);
/* Whether the back end can be used on this machine; for the four names this is never an error. */
FLUX_API bool flux_functional(const char *backend);
/* Whether a part of the back end is there: "driver", "compiler", "NCCL", "MIOpen", ... A component
   that the back end does not have at all is an error. */
FLUX_API bool flux_functional_with(const char *backend, const char *component);
/* One sentence that says why the back end can't be used, or "functional". */
FLUX_API const char *flux_functional_reason(const char *backend);
/* usable devices of it, 0 if none */
FLUX_API int flux_device_count(const char *backend);

typedef struct flux_get_device_opts {
    FLUX__DUMMY
    const char *backend FLUX__ZERO;       /* NULL: the preferred one, else the first that works */
    int id FLUX__ZERO;                    /* 0 ... count-1; ignored for the CPU */
    bool verbose FLUX__ZERO;              /* says on stderr what was chosen, and why */
} flux_get_device_opts;
#define FLUX__LEFT_OUT_flux_get_device_opts
FLUX_API flux_device flux_get_device_with(flux_get_device_opts opts);
#define flux_get_device(...) \
    /* flux_get_device(.backend = "CUDA", .id = 1), or flux_get_device() for the best device there
       is, which is the CPU if there is no other. On error (unknown or unavailable back end, id
       out of range) the result's .backend is -1. It only answers: the default device stays as it
       is. */ \
    flux_get_device_with(FLUX__OPTS(flux_get_device_opts, __VA_ARGS__))
/* Writes the back end's devices to out, at most max of them (out may be NULL). Returns how many
   there are. */
FLUX_API int flux_get_devices(const char *backend, flux_device *out, int max);
/* "CPU", "CUDA device 0: NVIDIA H200", ... */
FLUX_API const char *flux_device_name(flux_device d);
/* The device's number among those of its back end, from 0. */
FLUX_API int flux_device_id(flux_device d);
/* "CPU", "CUDA", ..., or "none" */
FLUX_API const char *flux_device_backend(flux_device d);
/* Whether two are the same device. */
FLUX_API bool flux_device_equal(flux_device a, flux_device b);
/* Sets where flux_from, flux_rand, flux_zeros ... and initialisers make tensors from now on, in all
   threads. It is the CPU at the start. A device that can't be used is an error. */
FLUX_API void flux_default_device(flux_device d);
/* Waits until all work on the device is done; work that failed there is an error. */
FLUX_API void flux_synchronise_device(flux_device d);
/* Compiles ahead, on several threads, the kernels that a model on a GPU needs for an input of this
   shape: for its forward pass in test mode, and for forward and backward in training. Nothing is
   run and the model stays as it is. What a loss and an optimiser add is compiled when they first
   run. On the CPU there is nothing to do. Returns 0, or non-zero on error. */
FLUX_API int flux_prewarm_with(flux_layer *m, flux_shape in);
#define flux_prewarm(m, ...) \
    /* Compiles what a model needs on a GPU for an input of these dims: flux_prewarm(model, 784,
       64). */ \
    flux_prewarm_with(m, FLUX_SHAPE(__VA_ARGS__))

/* The preferred back end; "CUDA" if none is set. */
FLUX_API const char *flux_gpu_backend(void);
/* Whether a preference is set. */
FLUX_API bool flux_gpu_backend_is_set(void);
/* Sets the preferred back end, at once and, in LocalPreferences.toml (table [Flux], key
   gpu_backend), for later runs. NULL or "" removes the preference. Returns 0, or non-zero for an
   unknown name or a file that can't be written. */
FLUX_API int flux_gpu_backend_set(const char *backend);

/* Lets NVIDIA's tensor cores (sm_80 and later) multiply float32 matrices as TF32, which keeps ten
   fraction bits of each factor and sums in float32. It is off at the start; a change holds for what
   is computed from now on, on all devices. */
FLUX_API void flux_allow_tf32(bool on);

/* A device's memory in bytes: live, what tensors hold now, and on the CPU the packed copies of
   weights (at most 256 MB) that products keep from call to call; peak, the most they held so far;
   reserved, what the pool holds; limit, that of flux_mem_limit (0: none). */
typedef struct flux_mem { int64_t live, peak, reserved, limit; } flux_mem;
/* A device's memory, in bytes. */
FLUX_API flux_mem flux_mem_stats(flux_device d);
/* From now on an allocation that would exceed this many bytes is an error. 0: no limit. Under a
   limit no copies of weights are kept. */
FLUX_API void flux_mem_limit(flux_device d, int64_t bytes);
/* Gives the pool's unused memory back. */
FLUX_API void flux_mem_trim(flux_device d);

/* Moves of a tensor, layer, loader or optimiser state. Each returns the moved object; what is on
   the device already is returned as it is. A loader moves its batches, not its data. Tied
   parameters stay tied, and gradients pass through a move.
   flux_gpu   to the preferred GPU; float64 becomes float32. Without a GPU it says once why, and
              returns its argument.
   flux_cpu   to host memory
   flux_to    to the given device: flux_to(device, x). A device that can't be used is an error.
              float64 from host memory becomes float32 on a GPU.
   flux_cu, flux_roc   to a CUDA or AMD GPU, as flux_gpu does. Where that back end does not work,
              they warn and return their argument: a program that needs the GPU asks
              flux_functional. */
FLUX_API flux_tensor *flux_gpu(flux_tensor *x);
/* In host memory. */
FLUX_API flux_tensor *flux_cpu(flux_tensor *x);
/* On a CUDA GPU, if one works. */
FLUX_API flux_tensor *flux_cu(flux_tensor *x);
/* On an AMD GPU, if one works. */
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
/* The device of its tensors. If they differ, it is an error, and the .backend is -1. */
FLUX_API flux_device flux_device_of_layer(const flux_layer *m);
FLUX_API flux_device flux_device_of_loader(const flux_loader *l);
FLUX_API flux_device flux_device_of_state(const flux_state *s);

#endif /* FLUX__API_DEVICES_H */
