#ifndef FLUX__BASE_BACKEND_H
#define FLUX__BASE_BACKEND_H
#include "platform.h"

/* ---------------------------------------------------------------------- base/backend.h
   The interface of a back end: one table of calls, flux__backend. Its calls say
   whether the back end is installed (available) and works (functional), and how
   many devices it has; others allocate, copy, wait, and run kernels. The CPU is
   entry 0 of the registry and needs no driver; every other back end is asked
   once per process whether it works (device/registry.h).

   Invariant: a call that takes a device id gets one from 0 to count() - 1, and
   only after functional() returned true. Calls that return int return 0 when
   they succeed (but run); the caller words the error, since it knows what was
   being moved. No row lacks a call, but memory, fill and stream may be NULL.

   Rejected: a table per device (the tables would differ by a number only), and
   calls that open the driver on their own (a program that never asks for a GPU
   would pay for it). */

FLUX__BEGIN_LEAN

struct flux__plan;
struct flux__graph;
struct flux__run;
struct flux__kernel;

enum { FLUX__PIECE = 1 << 20 };           /* bytes that are copied to a device at a time */

/* Writes bytes at ... at + n - 1 of some data to `to`; at and n are multiples of fill's unit. */
typedef void (*flux__filler)(const void *ctx, char *to, size_t at, size_t n);

/* What a back end is good at, and does: flux__backend.traits, data by which kernels are chosen and
   run. No code asks which back end it has before it. */
enum {
    FLUX__COMPILES = 1,                   /* ready calls a compiler, which flux_prewarm does ahead */
    FLUX__STOPS_MIDWAY = 2,               /* a kernel that fails may have written part of a result */
    /* a product packs rows in another order as fast as it would pack a copy in which they were put
       in order (flux__find_gathers) */
    FLUX__GATHERS_ROWS = 4,
    /* of the gradients of a convolution: windows that are added up take less time than a
       convolution with zeros between (flux__conv_adds); one product over all samples less than a
       product each (flux__conv_by_weight) */
    FLUX__ADDS_WINDOWS = 8,
    FLUX__LONG_PRODUCTS = 16,
    /* a product reads a convolution's windows of the image itself, without its padding
       (flux__find_gathers) and by 16 bytes of channels (flux__channels_lead) */
    FLUX__READS_IMAGES = 32,
    /* a product pads an image itself that it alone reads, a part at a time (cpu/padding.h) */
    FLUX__PADS_IMAGES = 64
};

/* available and functional write to `why` why not; component gives in *known whether the back end
   has such a component: "driver", "compiler", "NCCL", "MIOpen", ... */
typedef struct flux__backend {
    const char *name;                                       /* "CUDA" */
    unsigned traits;                                        /* FLUX__COMPILES, ... */
    bool (*available)(char *why, size_t n);                 /* driver library and symbols found? */
    bool (*functional)(char *why, size_t n);                /* started, with device and compiler? */
    int (*count)(void);                                     /* number of devices */
    void (*device_name)(int id, char *out, size_t n);       /* its maker's name: "NVIDIA H200" */
    bool (*component)(const char *name, bool *known);       /* does "driver", "NCCL", ... work? */
    void *(*alloc)(int id, size_t bytes);                   /* NULL: no memory, without an error */
    void (*free)(int id, void *p, size_t bytes);
    /* Copies of host memory to the device, of device memory to the host, and between its
       devices. */
    int (*upload)(int id, void *dst, const void *src, size_t bytes);
    int (*download)(int id, void *dst, const void *src, size_t bytes);
    int (*copy)(int to, void *dst, int from, const void *src, size_t bytes);
    int (*wait)(int id);                                    /* until all its work is done */
    int (*memory)(int id, size_t *available, size_t *total);  /* bytes; may be NULL: not known */
    /* Makes the plan's kernels for this device ready to run: fills ready and scratch of each.
       False: they can't be, which is an error. */
    bool (*ready)(flux_device d, struct flux__plan *plan, struct flux__graph *g);
    /* Runs the n kernels from k on, in order; returns how many of them it started. */
    int (*run)(struct flux__run *run, struct flux__kernel *k, int n);
    void (*drop)(void *ready);                              /* frees what ready() made */
    /* An upload of data that `put` writes piece by piece, each of whole units; may be NULL. */
    int (*fill)(int id, void *dst, size_t bytes, size_t unit, flux__filler put, const void *ctx);
    /* Gives in *stream the stream on which work is queued; with `set`, after work is queued on
       *stream, or on the back end's own if that is NULL. NULL: there are no streams. */
    int (*stream)(int id, void **stream, bool set);
} flux__backend;

/* A function that a plan calls between its kernels, whichever device its operands are on: the
   collectives of several processes. Its node is a FLUX__CALL. */
typedef struct flux__plan_call {
    const char *name;                     /* "allreduce": what schedules and traces say */
    /* The operands are packed where the result will be, one behind the other: what nobody else
       reads is computed there from the start. */
    bool in_place;
    /* Reads the operands of kernel k, which are contiguous, and begins to write its result. When it
       returns, the operands' memory may be used again by what the device runs next. */
    int (*start)(struct flux__run *run, struct flux__kernel *k);
    /* Ends what start began, so that kernels may read the result. It is called once for each start
       that returned 0, in the same order, even if a kernel has failed meanwhile. */
    int (*finish)(struct flux__run *run, struct flux__kernel *k);
    /* Asked of a plan's first call, unless NULL. replay runs all of the plan at once: 1: it is
       done; -1: an error was told; 0: it is to be run kernel by kernel, after which `ran` is
       called, that gives whether all is well. forget frees plan->replay. */
    int (*replay)(struct flux__run *run);
    bool (*ran)(struct flux__run *run, bool ok);
    void (*forget)(struct flux__plan *plan);
} flux__plan_call;

enum {                                    /* flux_device.backend */
    FLUX__CPU_BACKEND, FLUX__CUDA_BACKEND, FLUX__AMDGPU_BACKEND, FLUX__METAL_BACKEND, FLUX__BACKENDS
};

static FLUX__INLINE bool flux__same_device(flux_device a, flux_device b) {
    return a.backend == b.backend && (a.id == b.id || a.backend == FLUX__CPU_BACKEND);
}

/* hook: flux__backend_of, device/registry.h */
static const flux__backend *flux__backend_of(int index);     /* not NULL if below FLUX__BACKENDS */

/* Whether the back end of a device has this trait. */
static FLUX__INLINE bool flux__has_trait(flux_device d, unsigned trait) {
    return (flux__backend_of(d.backend)->traits & trait) != 0;
}

/* The names of components that flux_functional_with knows. */
static const char *const flux__cuda_parts[] = { "all", "driver", "compiler", "NVRTC", "NCCL",
    "cuBLAS", "cuDNN", NULL };
static const char *const flux__amd_parts[] = { "all", "driver", "compiler", "hip", "hiprtc", "lld",
    "device_libs", "RCCL", "NCCL", "rocblas", "rocsolver", "rocsparse", "rocrand", "rocfft",
    "hiptensor", "MIOpen", NULL };
static bool flux__in_list(const char *name, const char *const *list) {
    while (*list && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

FLUX__END_LEAN

#endif /* FLUX__BASE_BACKEND_H */
