#ifndef FLUX__BASE_ENDING_H
#define FLUX__BASE_ENDING_H
#include "platform.h"
#include "threads.h"
#include "object.h"
#include "backend.h"
#include "memory.h"
#include "scopes.h"

/* ---------------------------------------------------------------------- base/ending.h
   What is freed at the end of a thread and at the end of the program:
   flux__thread_free is the destructor of a thread's state (base/errors.h
   registers it), flux_shutdown frees what the process holds, and flux__at_exit
   calls flux_shutdown at exit, or when a shared library that contains this code
   is unloaded.

   Invariant: an object is released before the things that its release needs:
   first the objects that the thread's scopes own, newest first, then its plans,
   then its lists of spare nodes and of freed handles, then the state itself.
   flux_shutdown ends the calling thread's state, the worker threads and the
   trace file before it trims the buffer pools, and closes the GPU drivers last,
   since freeing device memory needs them. Calling it twice does no harm.
   flux__at_exit also deletes the thread-local key, as the destructor's code may
   be about to be unloaded; threads that still run keep their state. */

/* hook: flux__gpu_close, gpu/backend.h */

FLUX__BEGIN_COLD

/* Releases all that a thread owns, and its state. */
static void flux__thread_free(void *state) {
    flux__thread *t = (flux__thread *)state;
    if (!t) return;
    t->nscopes = 0;
    while (t->nowned > 0) flux_release(t->owned[--t->nowned]);
    if (t->plans) flux__plans_free(t->plans);
    while (t->spare) {
        flux_tensor *node = t->spare;
        t->spare = node->base;
        flux__free(node);
    }
    for (int i = 0; t->freed && i < FLUX__QUARANTINE; i++)
        flux__free(t->freed[i].object);
    flux__free(t->freed);
    flux__tls_set(NULL, NULL);
    flux__free(t->scratch);
    flux__free(t->owned);
    flux__free(t->scope);
    flux__free(t);
}

#if defined(FLUX_CUDA) || defined(FLUX_HIP)
static void flux__gpu_close(void);
#endif
/* hook: flux__trace_close, schedule/trace.h */
static void flux__trace_close(void);
/* hook: flux__profile_end, text/profile.h */
static void flux__profile_end(void);
FLUX_DEF void flux_shutdown(void) {
    flux__thread *t = (flux__thread *)flux__tls_get();
    if (t) flux__thread_free(t);
    flux__threads_stop();
    flux__trace_close();
    flux__profile_end();
    for (int b = 0; b < FLUX__BACKENDS; b++)
        for (int i = 0; i < FLUX__MAX_IDS; i++) {
            flux_device d = { b, i };
            flux__class_pool_lock(&flux__class_pools[b][i]);
            flux__class_pool_trim(d, &flux__class_pools[b][i]);
            flux__class_pool_unlock(&flux__class_pools[b][i]);
        }
#if defined(FLUX_CUDA) || defined(FLUX_HIP)
    flux__gpu_close();
#endif
}

/* Runs at exit, and when a shared library that contains this code is unloaded. */
static void flux__at_exit(void) {
    flux_shutdown();
    flux__tls_forget();
}

FLUX__END_COLD

#endif /* FLUX__BASE_ENDING_H */
