/* MPICH's ranks spin while they wait for each other, and where there are more of them than processors one waits a whole turn of
   the scheduler for every message: three on two processors took fifty times as long. Loaded before the program, this has a rank let
   others on when UCX, MPICH's transport, has had nothing to do for some time. By tests/ranks.sh. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

unsigned ucp_worker_progress(void *worker) {
    static _Thread_local unsigned (*real)(void *);
    static _Thread_local int idle;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "ucp_worker_progress");
    const unsigned events = real(worker);
    idle = events ? 0 : idle + 1;
    if (idle > 4) sched_yield();
    return events;
}
