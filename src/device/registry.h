#ifndef FLUX__DEVICE_REGISTRY_H
#define FLUX__DEVICE_REGISTRY_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/memory.h"
#include "../base/workers.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/key.h"
#include "../schedule/dispatch.h"
#include "../schedule/claims.h"
#include "../schedule/trace.h"
#include "../schedule/profile.h"
#include "../cpu/calls.h"
#include "../gpu/devices.h"
#include "../gpu/backend.h"

/* ---------------------------------------------------------------------- device/registry.h
   The registry of devices: which back ends there are, which of them work here,
   and the public queries of them. A back end is asked once per process whether
   it works; the answer stays, with its reason, because every fallback must be
   able to say why. The table flux__backends has the CPU, CUDA, AMDGPU and Metal
   in the order of the enum; a back end that is not part of this build has a row
   that says so.

   Invariant: nothing here changes a device, or which one is current for its
   driver (flux_default_device only says where new tensors are made). Nobody's
   function (a log or error handler) is called while flux__device_lock is held.
   The order in which fork takes the locks, flux__fork_locks, is here since it
   needs all of them; locks that are held while a driver is called are not
   waited for, as a driver may fork itself. */

FLUX__BEGIN_COLD

/* Lets a test replace a back end by its own; NULL restores the built-in one. */
FLUX__UNUSED static void flux__backend_set(int index, const flux__backend *b);

static flux__mutex flux__device_lock = FLUX__MUTEX_INIT;

#if !defined(FLUX_NO_THREADS) && !defined(_WIN32)
/* Takes or releases all locks around a fork. Locks that are held while a driver is called are not
   waited for, as a driver may fork itself; the child makes them anew. */
static void flux__fork_locks(int when) {
    flux__trace_fork(when);
    flux__fork_lock(&flux__profile_lock, when);
    flux__fork_lock(&flux__class_pool_locks[FLUX__CPU_BACKEND][0], when);
    flux__pool_fork(when);
    flux__fork_lock(&flux__tls_lock, when);
    flux__fork_lock(&flux__lock, when);
#ifdef FLUX__ATOMIC_LOCK
    flux__fork_lock(&flux__atomic_lock, when);
#endif
    if (when != FLUX__FORK_CHILD) return;
    flux__mutex_anew(&flux__class_pool_locks[1][0], (FLUX__BACKENDS - 1) * FLUX__MAX_IDS);
    flux__mutex_anew(&flux__device_lock, 1);
    flux__claims_fork();
#if defined(FLUX_CUDA) || defined(FLUX_HIP)
    flux__gpu_fork();
#endif
}
#endif

/* ---------------- the registry */

/* The answer to "does it work?" of a back end that is not part of the build. */
static bool flux__not_built(char *why, size_t n) {
    snprintf(why, n, "not part of this build");
    return false;
}
static int flux__count_none(void) { return 0; }

/* The components of each back end by name, so that a misspelt name is an error on every
   machine. */
static const char *const flux__parts_metal[] = { "all", "driver", "compiler", NULL };
static bool flux__metal_component(const char *name, bool *known) {
    return *known = flux__in_list(name, flux__parts_metal), false;
}
#if !defined(FLUX_CUDA)
static bool flux__cuda_component(const char *name, bool *known) {
    return *known = flux__in_list(name, flux__cuda_parts), false;
}
#endif
#if !defined(FLUX_HIP)
static bool flux__amd_component(const char *name, bool *known) {
    return *known = flux__in_list(name, flux__amd_parts), false;
}
#endif

/* Functions for the row of a back end that is not part of this build: they do nothing and fail. */
static void flux__no_name(int id, char *out, size_t n) { snprintf(out, n, "device %d", id); }
static void *flux__no_alloc(int id, size_t bytes) { return (void)id, (void)bytes, (void *)NULL; }
static void flux__no_free(int id, void *p, size_t bytes) { (void)id, (void)p, (void)bytes; }
static int flux__no_move(int id, void *dst, const void *src, size_t bytes) {
    return (void)id, (void)dst, (void)src, (void)bytes, -1;
}
static int flux__no_copy(int to, void *dst, int from, const void *src, size_t bytes) {
    return (void)from, flux__no_move(to, dst, src, bytes);
}
static int flux__no_wait(int id) { return (void)id, -1; }
static bool flux__no_ready(flux_device d, flux__plan *plan, flux__graph *g) {
    (void)plan, (void)g;
    return FLUX__REFUSE("%s is not part of this build", flux_device_backend(d));
}
static int flux__no_run(flux__run *r, flux__kernel *k, int n) {
    return (void)r, (void)k, (void)n, 0;
}
static void flux__no_drop(void *ready) { (void)ready; }

/* The row of a back end that is not part of this build. */
#define FLUX__ABSENT(name, component)                                                              \
    { name, 0, flux__not_built, flux__not_built, flux__count_none, flux__no_name, component,       \
      flux__no_alloc, flux__no_free, flux__no_move, flux__no_move, flux__no_copy, flux__no_wait,   \
      NULL, flux__no_ready, flux__no_run, flux__no_drop, NULL, NULL }
/* The table of back ends, in the order of the enum that begins with FLUX__CPU_BACKEND. */
static const flux__backend flux__backends[FLUX__BACKENDS] = {
    FLUX__CPU_ROW,
#if defined(FLUX_CUDA)
    FLUX__GPU_ROW(cuda, "CUDA"),
#else
    FLUX__ABSENT("CUDA", flux__cuda_component),
#endif
#if defined(FLUX_HIP)
    FLUX__GPU_ROW(hip, "AMDGPU"),
#else
    FLUX__ABSENT("AMDGPU", flux__amd_component),
#endif
    FLUX__ABSENT("Metal", flux__metal_component)
};
static const int flux__order[FLUX__BACKENDS] = { FLUX__CUDA_BACKEND, FLUX__AMDGPU_BACKEND,
                                                 FLUX__METAL_BACKEND, FLUX__CPU_BACKEND };
#define FLUX__BACKEND_NAMES "CUDA, AMDGPU, Metal and CPU"

/* What a back end answered when it was asked whether it works. */
typedef struct flux__probe {
    bool known, available, functional;
    int count;
    char why[320];                        /* "functional", or why not */
    char device[FLUX__MAX_IDS][112];      /* "CUDA device 0: NVIDIA H200"; empty until asked for */
} flux__probe;
static flux__probe flux__probes[FLUX__BACKENDS];
static const flux__backend *flux__replaced[FLUX__BACKENDS];

/* The table row of a back end: a test's own, if there is one. */
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

/* Appends to the reason the environment variables that hide devices from a driver, where they are
   set. */
static void flux__add_visibility(int index, char *why, size_t n) {
    static const char *const names[FLUX__BACKENDS][4] = {
        { NULL, NULL, NULL, NULL },
        { "CUDA_VISIBLE_DEVICES", NULL, NULL, NULL },
        { "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
          "GPU_DEVICE_ORDINAL" },
        { NULL, NULL, NULL, NULL }
    };
    for (int i = 0; i < 4 && names[index][i]; i++) {
        const char *value = getenv(names[index][i]);
        size_t used = strlen(why);
        if (value) snprintf(why + used, n - used, "; %s is \"%.40s\"", names[index][i], value);
        for (char *c = why + used; *c; c++)
            if ((unsigned char)*c < ' ') *c = '?';
    }
}

/* Asks a back end whether it is available and works, and how many devices it has. p->why gets the
   reason if it does not work. Called with flux__device_lock held. */
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
    else if (b->available != flux__not_built) flux__add_visibility(index, p->why, sizeof p->why);
    p->known = true;
}

/* What a back end answered; it is asked at the first call. Messages wait until the lock is
   released, since no handler may run while it is held. */
static const flux__probe *flux__probe_of(int index) {
    flux__hold();
    flux__mutex_lock(&flux__device_lock);
    if (!flux__probes[index].known) flux__find_out(index, &flux__probes[index]);
    flux__mutex_unlock(&flux__device_lock);
    flux__tell();
    return &flux__probes[index];
}

/* ---------------- names and what can be asked of them */

/* The number of the back end of that name, -1 if there is none. */
static int flux__backend_number(const char *name) {
    if (strcmp(name, "AMD") == 0) {
        flux__note(FLUX_LOG_INFO, "device.amd", true,
                   "the back end for AMD's GPUs is called AMDGPU; AMD is taken to mean it");
        return FLUX__AMDGPU_BACKEND;
    }
    for (int i = 0; i < FLUX__BACKENDS; i++)
        if (strcmp(name, flux__backends[i].name) == 0) return i;
    return -1;
}

/* The number of the back end that a call's argument names; -1 and an error if there is none. */
static int flux__backend_arg(const char *call, const char *name) {
    int b = name ? flux__backend_number(name) : -1;
    if (!name) flux__null(call, "backend", name);
    else if (b < 0)
        flux__fail("%s: unknown back end \"%.60s\"; there are " FLUX__BACKEND_NAMES, call, name);
    return b;
}

/* Whether d is a device that can be used here. */
static bool flux__device_is(flux_device d) {
    return d.backend >= 0 && d.backend < FLUX__BACKENDS && d.id >= 0 &&
           d.id < flux__probe_of(d.backend)->count;
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
    if (!component) return flux__null("functional_with", "component", component) != NULL;
    bool known = false, there = flux__backend_of(b)->component(component, &known);
    if (!known)
        flux__fail("functional_with: %s has no component \"%.60s\"", flux__backends[b].name,
                   component);
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
    flux__hold();
    flux__mutex_lock(&flux__device_lock);
    if (!*name) {
        char model[72] = "";
        flux__backend_of(d.backend)->device_name(d.id, model, sizeof model);
        snprintf(name, sizeof flux__probes[0].device[0], "%s device %d: %s",
                 flux__backends[d.backend].name, d.id, model);
    }
    flux__mutex_unlock(&flux__device_lock);
    flux__tell();
    return name;
}

FLUX_DEF int flux_device_id(flux_device d) { return d.id; }

FLUX_DEF const char *flux_device_backend(flux_device d) {
    return d.backend >= 0 && d.backend < FLUX__BACKENDS ? flux__backends[d.backend].name : "none";
}

FLUX_DEF bool flux_device_equal(flux_device a, flux_device b) { return flux__same_device(a, b); }

FLUX_DEF void flux_default_device(flux_device d) {
    if (flux__device_is(d)) flux__atomic_store32(&flux__home_at, d.backend * FLUX__MAX_IDS + d.id);
    else flux__fail("default_device: device {%d, %d} can't be used here", d.backend, d.id);
}

FLUX_DEF void flux_synchronise_device(flux_device d) {
    const int64_t failures = flux__failures();
    if (!flux__device_is(d))
        flux__fail("synchronise_device: device {%d, %d} can't be used here", d.backend, d.id);
    else if (flux__backend_of(d.backend)->wait(d.id) != 0 && !flux__failed_since(failures))
        flux__fail("synchronise_device: work on %s has failed", flux_device_name(d));
}

FLUX__END_COLD

#endif /* FLUX__DEVICE_REGISTRY_H */
