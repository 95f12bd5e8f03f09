#ifndef FLUX__GPU_DEVICES_H
#define FLUX__GPU_DEVICES_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/memory.h"
#include "../base/sinks.h"
#include "kernels.h"

/* ---------------------------------------------------------------------- gpu/devices.h
   Open devices (flux__gpu): their locks, opening and closing, and what each one
   holds: stream, pinned memory, compiled kernels, driver graphs. A call of the
   back end's table goes through flux__gpu_enter and flux__gpu_leave, which lock
   the device and make it current.

   Invariant: locks are taken in this order: a device's compile lock, so that no
   kernel is compiled twice; its device lock, which the calls of the table take;
   the driver lock, which guards opening drivers and compilers. No device lock is
   held while the host waits for a copy or a kernel (flux__gpu_sleep), fills or
   empties pinned memory, or compiles, so the device's state may have changed
   after these. A device that was lost, or was opened before a fork, refuses every
   call with an error. The device that was current for the thread is current again
   afterwards. A failed opening leaves nothing open, and the next call tries
   again. */

FLUX__BEGIN_LEAN

static flux__gpu flux__gpus[2][FLUX__MAX_IDS];       /* by back end (CUDA, AMDGPU) and device id */

static flux__mutex flux__gpu_locks[2][FLUX__MAX_IDS] = { FLUX__MAX_LOCKS, FLUX__MAX_LOCKS };
static flux__mutex flux__compile_locks[2][FLUX__MAX_IDS] = { FLUX__MAX_LOCKS, FLUX__MAX_LOCKS };
static flux__mutex flux__driver_lock = FLUX__MUTEX_INIT;

static flux__mutex *flux__gpu_lock_of(const flux__gpu *g) {
    return &flux__gpu_locks[0][0] + (g - &flux__gpus[0][0]);
}
static void flux__gpu_lock(const flux__gpu *g) { flux__mutex_lock(flux__gpu_lock_of(g)); }
static void flux__gpu_unlock(const flux__gpu *g) { flux__mutex_unlock(flux__gpu_lock_of(g)); }

#if !defined(FLUX_NO_THREADS) && !defined(_WIN32)
/* In a forked child: makes the locks anew. Devices that the parent opened are refused, see
   flux__gpu_forked. */
static void flux__gpu_fork(void) {
    flux__mutex_anew(&flux__gpu_locks[0][0], 2 * FLUX__MAX_IDS);
    flux__mutex_anew(&flux__compile_locks[0][0], 2 * FLUX__MAX_IDS);
    flux__mutex_anew(&flux__driver_lock, 1);
}
#endif

static const flux__driver *flux__driver_of(int backend) {
#if defined(FLUX_CUDA)
    if (backend == FLUX__CUDA_BACKEND) return &flux__cuda_driver;
#endif
#if defined(FLUX_HIP)
    if (backend == FLUX__AMDGPU_BACKEND) return &flux__hip_driver;
#endif
    return NULL;
}

/* Makes sure that our exit handler runs before the driver's. Exit handlers run in reverse order
   of registration, and drivers register theirs when they are opened and with the first context:
   ours is registered again after each of these, so that the driver is alive when we give its
   memory back. Our handler may run twice. */
static void flux__driver_outlasts(bool *known) {
    if (!*known) atexit(flux__at_exit);
    *known = true;
}

/* Opens a driver; the caller holds the driver lock. */
static bool flux__driver_open(int backend, char *why, size_t n) {
    static bool known[2];
    if (!flux__driver_of(backend)->open(why, n)) return false;
    flux__driver_outlasts(&known[backend - FLUX__CUDA_BACKEND]);
    return true;
}

/* Whether a driver's answer is good. If not, it is an error, which names the device, what was
   tried and the driver's sentence; a lost device is marked. */
static bool flux__gpu_ok(flux__gpu *g, int code, const char *what) {
    if (code == 0) return true;
    char number[FLUX__GPU_NUMBER];
    if (!g->lost && g->driver->lost(code)) g->lost = code;
    flux__fail("%s device %d: %s: %s%s", g->driver->name, g->id, what,
               g->driver->error(code, number),
               g->lost ? "; the device is lost to this process" : "");
    return false;
}

/* Whether this process is a child forked after the device had been opened. */
static bool flux__gpu_forked(const flux__gpu *g) { return g->process != flux__process_id(); }

/* Makes an open device current if that is possible; no error if not. */
static bool flux__gpu_there(const flux__gpu *g, void **before) {
    return !flux__gpu_forked(g) && g->driver->enter(g->id, before) == 0;
}

/* A row of launches as one graph of the driver, whose nodes run one after the other. A plan
   owns it and its device lists it: closing the device frees the driver's graph and marks this
   as dead, and the plan frees this. */
typedef struct flux__graph_exec {
    flux__gpu *gpu;
    bool dead;                            /* the device has been closed */
    void *graph, *exec, **node;
    int told;                             /* updates of nodes so far */
    struct flux__graph_exec *next;        /* in the device's list */
} flux__graph_exec;

/* Before the host waits for the event (NULL: all that was queued): waits for what others do on the
   device, as long as they may. False: an error was told. */
static bool flux__gpu_watch(const flux__gpu *g, void *event) {
    bool ok = true;
    for (flux__gpu_guest *it = g->guests; it; it = it->next) ok = it->watch(it, event) && ok;
    return ok;
}

/* Takes a graph off its device's list and marks it as dead. Its driver's graph is freed if the
   device is current (`there`), else it ends with the process. */
static void flux__graph_exec_kill(flux__graph_exec *p, bool there) {
    flux__graph_exec **at = &p->gpu->execs;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    /* a launch of it may be under way */
    if (there && p->exec) {
        flux__gpu_watch(p->gpu, NULL);
        p->gpu->driver->stream_wait(p->gpu->stream);
    }
    if (there) p->gpu->driver->graph_free(p->graph, p->exec);
    p->dead = true;
}

/* Gives back the stream of copies ahead and its events; the device is current. */
static void flux__copies_close(flux__gpu *g) {
    for (int i = 0; i < FLUX__COMING; i++) {
        if (g->coming[i].event) g->driver->event_free(g->coming[i].event);
        g->coming[i].event = NULL;
    }
    if (g->reached) g->driver->event_free(g->reached);
    if (g->copies) g->driver->stream_free(g->copies);
    g->reached = g->copies = NULL;
}

/* Closes a device: gives back all that it holds, and forgets it. What a lost device refuses
   ends with the process. */
static void flux__gpu_undo(flux__gpu *g) {
    void *before;
    bool there = flux__gpu_there(g, &before);
    for (flux__gpu_guest *it = g->guests; it && there; it = it->next) it->leave(it);
    if (there && g->stream) g->driver->stream_wait(g->stream);
    if (there && g->copies) g->driver->stream_wait(g->copies);
    while (g->execs) flux__graph_exec_kill(g->execs, there);
    for (int i = 0; i < FLUX__SLOTS && there; i++) {
        if (g->slot[i].memory) g->driver->unpin(g->slot[i].memory);
        if (g->slot[i].event) g->driver->event_free(g->slot[i].event);
    }
    if (there) flux__copies_close(g);
    if (there && g->status) g->driver->release(g->status);
    for (int i = 0; i < g->nmodule && there; i++) g->driver->unload(g->module[i]);
    if (there && g->own) g->driver->stream_free(g->own);
    if (there) g->driver->leave(before);
    if (!flux__gpu_forked(g)) g->driver->close(g->id);
    for (int i = 0; i < 256; i++)
        while (g->known[i]) {
            flux__gpu_fn *f = g->known[i];
            g->known[i] = f->next;
            flux__free(f);
        }
    flux__free(g->module);
    memset(g, 0, sizeof *g);
}

/* Whether products and attention may use warpgroups (gpu/gemm_wgmma.h): the chip has them, and the
   driver describes an operand, which takes a current context. FLUX_WGMMA=0 forbids it. */
static bool flux__gpu_has_tiles(const flux__gpu *g) {
    flux__tensor_map m;
    const char *set = flux__env("FLUX_WGMMA");
    memset(&m, 0, sizeof m);
    for (int d = 0; d < 3; d++) m.dim[d] = d < 2 ? 64 : 1, m.box[d] = m.dim[d];
    m.step[0] = 128, m.step[1] = 8192;
    return strcmp(g->info.arch, "sm_90") == 0 && !(set && strcmp(set, "0") == 0) &&
           g->driver->map(&m, g->status, flux__map_words(&m)) == 0;
}

/* Opens a device when it is first used: its stream, status words and pinned memory. The caller
   holds the device lock. False is an error, and leaves nothing open. */
static bool flux__gpu_open(flux__gpu *g, int backend, int id) {
    void *before;
    if (g->open) return true;
    g->driver = flux__driver_of(backend);
    g->id = id;
    g->process = flux__process_id();
    bool ok = flux__gpu_ok(g, g->driver->device(id, &g->info), "asking what it is");
    bool entered = ok && flux__gpu_ok(g, g->driver->enter(id, &before), "opening");
    if (entered) {
        static bool known[2];
        flux__mutex_lock(&flux__driver_lock);
        flux__driver_outlasts(&known[backend - FLUX__CUDA_BACKEND]);
        flux__mutex_unlock(&flux__driver_lock);
    }
    ok = entered && flux__gpu_ok(g, g->driver->stream(&g->own), "making a stream");
    g->stream = g->own;
    ok = ok &&
         flux__gpu_ok(g, g->driver->alloc(&g->status, FLUX__STATUS_WORDS * 8), "allocating");
    for (int i = 0; i < FLUX__SLOTS && ok; i++)
        ok = flux__gpu_ok(g, g->driver->pinned(&g->slot[i].memory, FLUX__SLOT_BYTES),
                          "pinning memory") &&
             flux__gpu_ok(g, g->driver->event(&g->slot[i].event), "making an event");
    if (ok) {                             /* zero status: no bad index was met */
        memset(g->slot[0].memory, 0, FLUX__STATUS_WORDS * 8);
        ok = flux__gpu_ok(g, g->driver->up(g->status, g->slot[0].memory, FLUX__STATUS_WORDS * 8,
                                           g->stream), "copying to it") &&
             flux__gpu_ok(g, g->driver->event_record(g->slot[0].event, g->stream),
                          "recording an event");
        g->slot[0].used = true;
        g->turn = 1;
    }
    g->tiled = ok && flux__gpu_has_tiles(g);
    if (entered) g->driver->leave(before);
    const char *exec = flux__env("FLUX_REPLAY");
    g->replaying = ok && g->driver->has_graphs() && !(exec && strcmp(exec, "0") == 0);
    if (!ok) flux__gpu_undo(g);           /* the next call tries again */
    return g->open = ok;
}

/* Begins a call: opens the device if need be, locks it and makes it current. NULL is an error,
   and nothing is locked; else flux__gpu_leave ends the call. */
static flux__gpu *flux__gpu_enter(int backend, int id, void **before) {
    flux__gpu *g = &flux__gpus[backend - FLUX__CUDA_BACKEND][id];
    flux__hold();
    flux__gpu_lock(g);
    bool ok = flux__gpu_open(g, backend, id);
    if (ok && g->lost) {
        char number[FLUX__GPU_NUMBER];
        flux__fail("%s device %d was lost: %s", g->driver->name, id,
                   g->driver->error(g->lost, number));
        ok = false;
    } else if (ok && flux__gpu_forked(g)) {
        flux__fail("%s device %d: this process was forked after the device had been opened, "
                   "and can't use it", g->driver->name, id);
        ok = false;
    }
    if (ok && flux__gpu_ok(g, g->driver->enter(id, before), "making it current")) return g;
    flux__gpu_unlock(g);
    flux__tell();
    return NULL;
}
static void flux__gpu_leave(flux__gpu *g, void *before) {
    g->driver->leave(before);
    flux__gpu_unlock(g);
    flux__tell();
}

/* Waits for an event without the device lock, so that the device's state may have changed
   afterwards. */
static bool flux__gpu_sleep(flux__gpu *g, void *event, const char *what) {
    g->counters.waits++;
    flux__gpu_unlock(g);
    const bool ok = flux__gpu_watch(g, event);
    int code = g->driver->event_wait(event);
    flux__gpu_lock(g);
    return flux__gpu_ok(g, code, what) && ok;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_DEVICES_H */
