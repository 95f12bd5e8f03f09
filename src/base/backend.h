#ifndef FLUX__BASE_BACKEND_H
#define FLUX__BASE_BACKEND_H
#include "platform.h"

/* ---------------------------------------------------------------------- base/backend.h
   The interface of a back end: one table of calls, flux__backend. It says
   whether the back end is there (available) and works (functional), how many
   devices it has, and how to allocate, copy, wait, and run kernels. The CPU is
   entry 0 of the registry and needs no driver; every other back end is asked
   once per process (device/registry.h). The host memory of the CPU is allocated
   here too, in 64-byte lines (flux__cpu_alloc).

   Invariant: a call that takes a device id gets one from 0 to count() - 1, and
   only after functional() said true. Calls that return int give 0 when they are
   done; the caller words the error, since it knows what was being moved. A back
   end without ready, run and drop has memory that the host can reach, and the
   CPU back end runs its kernels.

   Rejected: a table per device (the tables would differ by a number only), and
   calls that open the driver on their own (a program that never asks for a GPU
   would pay for it). */

FLUX__LEAN

struct flux__plan;
struct flux__graph;
struct flux__run;
struct flux__kernel;

enum { FLUX__PIECE = 1 << 20 };           /* bytes that go to a device at a time */
typedef void (*flux__filler)(const void *ctx, char *to, size_t at, size_t n);    /* bytes at ... at + n - 1, both of whole units */

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
    int (*room)(int id, size_t *available, size_t *total);   /* bytes; NULL: nobody knows */
    bool (*ready)(int id, struct flux__plan *plan, struct flux__graph *g);    /* makes the plan's kernels there ready */
    int (*run)(struct flux__run *run, struct flux__kernel *k, int n);         /* n kernels in a row; gives how many it started */
    void (*drop)(void *ready);                               /* what ready() made of a kernel */
    int (*fill)(int id, void *dst, size_t bytes, size_t unit, flux__filler put, const void *ctx);   /* upload() of what put makes; may be NULL */
} flux__backend;

enum { FLUX__CPU_BACKEND, FLUX__CUDA_BACKEND, FLUX__AMDGPU_BACKEND, FLUX__METAL_BACKEND, FLUX__BACKENDS };   /* flux_device.backend */

static FLUX__INLINE bool flux__same_device(flux_device a, flux_device b) {
    return a.backend == b.backend && (a.id == b.id || a.backend == FLUX__CPU_BACKEND);
}

/* hook: flux__backend_of, device/registry.h */
static const flux__backend *flux__backend_of(int index);     /* never NULL for 0 <= index < FLUX__BACKENDS */

/* What may be asked for by name in flux_functional_with. */
static const char *const flux__cuda_parts[] = { "all", "driver", "compiler", "NVRTC", "NCCL", "cuBLAS", "cuDNN", NULL };
static const char *const flux__amd_parts[] = { "all", "driver", "compiler", "hip", "hiprtc", "lld", "device_libs", "RCCL", "NCCL",
    "rocblas", "rocsolver", "rocsparse", "rocrand", "rocfft", "hiptensor", "MIOpen", NULL };
static bool flux__in_list(const char *name, const char *const *list) {
    while (*list && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

/* Asks for pages of 2 MB where large memory covers them: fewer to find, and to fault in. Linux gives them to who asks. A matrix
   that the caches nearly hold is better off on small ones, which lie all over the place: its columns crowd less. */
static void flux__large_pages(char *p, size_t bytes) {
#if defined(__linux__)
    const uintptr_t page = (uintptr_t)2 << 20, from = ((uintptr_t)p + page - 1) & ~(page - 1), to = ((uintptr_t)p + bytes) & ~(page - 1);
    const int kept = errno;
    if (bytes >= 4 * page && to > from) madvise((void *)from, to - from, FLUX__HUGE_PAGES);
    errno = kept;                         /* an old system may not know them */
#else
    (void)p, (void)bytes;
#endif
}

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
    flux__large_pages(p, bytes);
    return p;
}

static void flux__cpu_free(int id, void *p, size_t bytes) {
    (void)id, (void)bytes;
    if (!p) return;
    char *base;
    memcpy(&base, (char *)p - sizeof(void *), sizeof(void *));
    FLUX_FREE(base);
}

#endif /* FLUX__BASE_BACKEND_H */
