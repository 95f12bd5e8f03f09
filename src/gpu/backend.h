#ifndef FLUX__GPU_BACKEND_H
#define FLUX__GPU_BACKEND_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/memory.h"
#include "kernels.h"
#include "devices.h"
#include "copies.h"
#include "launch.h"
#include "program.h"
#include "cache.h"
#include "compile.h"

/* ---------------------------------------------------------------------- gpu/backend.h
   What the registry asks of a GPU back end: available, functional, device
   names, components, closing; and FLUX__GPU_ROW, which makes the row of the
   back end's table for each driver.

   Invariant: a driver and its compiler are opened under flux__driver_lock, when
   they are first asked for. A back end is functional if it has a device and a
   compiler; a compiler that the cache knows to be unchanged counts without being
   opened, since opening takes time. No log or error handler runs under the lock
   (flux__hold). flux__gpu_close runs after all memory has been given back, and
   closes every open device. */

FLUX__BEGIN_LEAN

static bool flux__gpu_available(int backend, char *why, size_t n) {
    flux__mutex_lock(&flux__driver_lock);
    bool there = flux__driver_open(backend, why, n);
    flux__mutex_unlock(&flux__driver_lock);
    return there;
}

/* Whether an open driver has a device and a compiler, one that the cache knows or one that can
   be opened; `why` if not. */
static bool flux__gpu_works(const flux__driver *d, char *why, size_t n) {
    flux__gpu_info info;
    flux__cache_maker m;
    if (d->count() < 1) return snprintf(why, n, "no device"), false;
    char number[FLUX__GPU_NUMBER];
    int code = d->device(0, &info);
    if (code != 0)
        return snprintf(why, n, "device 0 can't be asked what it is: %s", d->error(code, number)),
            false;
    return (!*d->version() && flux__cache_made_by(d, info.arch, &m)) ||
           flux__cache_compiler(d, info.arch, why, n);
}

static bool flux__gpu_functional(int backend, char *why, size_t n) {
    flux__hold();
    flux__mutex_lock(&flux__driver_lock);
    bool works = flux__gpu_works(flux__driver_of(backend), why, n);
    flux__mutex_unlock(&flux__driver_lock);
    flux__tell();
    return works;
}

static void flux__gpu_name(int backend, int id, char *out, size_t n) {
    flux__gpu_info info;
    if (flux__driver_of(backend)->device(id, &info) == 0) snprintf(out, n, "%s", info.model);
    else snprintf(out, n, "device %d", id);
}

/* Whether a component of the back end is there; *known: whether it has one of this name. */
static bool flux__gpu_component(int backend, const char *name, bool *known) {
    const flux__driver *d = flux__driver_of(backend);
    char why[320];
    bool there = false;
    *known = flux__in_list(name, d->components);
    if (!*known) return false;
    flux__hold();
    flux__mutex_lock(&flux__driver_lock);
    if (!flux__driver_open(backend, why, sizeof why)) there = false;
    else if (strcmp(name, "driver") == 0) there = true;
    else if (strcmp(name, "all") == 0) there = flux__gpu_works(d, why, sizeof why);
    else there = strcmp(name, "compiler") == 0 ? d->compiler(why, sizeof why) : d->component(name);
    flux__mutex_unlock(&flux__driver_lock);
    flux__tell();
    return there;
}

/* Closes all devices, when their memory has been given back. */
static void flux__gpu_close(void) {
    for (int b = 0; b < 2; b++)
        for (int id = 0; id < FLUX__MAX_IDS; id++) {
            flux__gpu *g = &flux__gpus[b][id];
            flux__gpu_lock(g);
            if (g->open) flux__gpu_undo(g);
            flux__gpu_unlock(g);
        }
}

/* The calls of the back end's table for each driver, and its row. */
#define FLUX__GPU_CALLS(x, B)                                                                                                   \
static bool flux__##x##_available(char *why, size_t n) { return flux__gpu_available(B, why, n); }                               \
static bool flux__##x##_functional(char *why, size_t n) { return flux__gpu_functional(B, why, n); }                             \
static int flux__##x##_count(void) { return flux__driver_of(B)->count(); }                                                      \
static void flux__##x##_name(int id, char *out, size_t n) { flux__gpu_name(B, id, out, n); }                                    \
static bool flux__##x##_component(const char *name, bool *known) { return flux__gpu_component(B, name, known); }                \
static void *flux__##x##_alloc(int id, size_t bytes) { return flux__gpu_alloc(B, id, bytes); }                                  \
static void flux__##x##_free(int id, void *p, size_t bytes) { (void)bytes, flux__gpu_free(B, id, p); }                          \
static int flux__##x##_upload(int id, void *dst, const void *src, size_t n) { return flux__gpu_upload(B, id, dst, src, n); }    \
static int flux__##x##_download(int id, void *dst, const void *src, size_t n) { return flux__gpu_download(B, id, dst, src, n); }\
static int flux__##x##_copy(int to, void *dst, int from, const void *src, size_t n) { return flux__gpu_copy(B, to, dst, from, src, n); } \
static int flux__##x##_wait(int id) { return flux__gpu_wait(B, id); }                                                           \
static int flux__##x##_memory(int id, size_t *available, size_t *total) { return flux__gpu_memory(B, id, available, total); }         \
static int flux__##x##_fill(int id, void *dst, size_t n, size_t unit, flux__filler put, const void *ctx) {                           \
    return flux__gpu_fill(B, id, dst, n, unit, put, ctx);                                                                        \
}                                                                                                                                \
static int flux__##x##_stream(int id, void **stream, bool set) { return flux__gpu_stream(B, id, stream, set); }
#define FLUX__GPU_ROW(x, name) { name, FLUX__COMPILES | FLUX__READS_IMAGES,                                                    \
    flux__##x##_available, flux__##x##_functional, flux__##x##_count, flux__##x##_name,                                          \
    flux__##x##_component, flux__##x##_alloc, flux__##x##_free, flux__##x##_upload, flux__##x##_download, flux__##x##_copy,      \
    flux__##x##_wait, flux__##x##_memory, flux__gpu_ready, flux__gpu_run, flux__gpu_kernel_drop, flux__##x##_fill, flux__##x##_stream }
#if defined(FLUX_CUDA)
FLUX__GPU_CALLS(cuda, FLUX__CUDA_BACKEND)
#endif
#if defined(FLUX_HIP)
FLUX__GPU_CALLS(hip, FLUX__AMDGPU_BACKEND)
#endif

FLUX__END_LEAN

#endif /* FLUX__GPU_BACKEND_H */
