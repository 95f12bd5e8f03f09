#ifndef FLUX__SCHEDULE_CLAIMS_H
#define FLUX__SCHEDULE_CLAIMS_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/object.h"
#include "../base/errors.h"

/* ---------------------------------------------------------------------- schedule/claims.h
   Which thread computes which nodes. Threads may share tensors that are not
   computed yet, so an evaluation claims the unfinished nodes of its graph: it
   marks them with the number of its walk and puts that number on a list. A
   thread that meets another's claimed node gives its own walk up, waits until
   that claim ends, and walks again; by then the node has its value.

   Invariant: one lock guards the list, all walks over unfinished nodes, and the
   release of operands; it is held while a graph is collected, never while it is
   planned or run, so that threads compute side by side. A thread that waits
   claims nothing, so no two wait for each other. A claimed node changes by its
   claim's thread alone, and its buffer is shown to others when it is complete
   (flux__show_buffer). A mark whose walk is not on the list claims nothing. No
   handler is called while the lock is held.

   Rejected: one lock for whole evaluations, behind which threads that share
   nothing would wait for each other. */

FLUX__BEGIN_HOT

typedef struct flux__claim {              /* an evaluation that runs */
    uint32_t walk;                        /* the mark of the nodes that it computes */
    const flux__thread *thread;
    struct flux__claim *next;
} flux__claim;

static struct flux__claims {
    int locked;                           /* 1: a thread holds the lock */
    flux__claim *first;                   /* the list */
    uint32_t walks;                       /* the number of the last walk */
    int waiting, ended;                   /* threads that wait; claims that ended beside them */
    flux__mutex lock;                     /* guards sleeping and waking, nothing else */
    flux__cond wake;
} flux__claims = { 0, NULL, 0, 0, 0, FLUX__MUTEX_INIT, FLUX__COND_INIT };

/* Every evaluation takes the lock twice, for a short time: a mutex would cost more than twice as
   much, a fifth of the smallest evaluation. */
static FLUX__INLINE void flux__claims_take(void) {
    while (!flux__atomic_cas32(&flux__claims.locked, 0, 1)) flux__thread_yield();
}
static FLUX__INLINE void flux__claims_give(void) { flux__show_int(&flux__claims.locked, 0); }

/* The lock for work that may fail: what is to be said is said when it is given up. */
static void flux__claims_lock(void) {
    flux__hold();
    flux__claims_take();
}
static void flux__claims_unlock(void) {
    flux__claims_give();
    flux__tell();
}

/* A number that no walk had so far; never 0, which marks no walk. The lock is held. */
static uint32_t flux__new_walk(void) {
    if (++flux__claims.walks == 0) flux__claims.walks = 1;
    return flux__claims.walks;
}

/* Whether another thread computes the nodes that have this mark. The lock is held. */
static bool flux__claimed(uint32_t mark) {
    for (const flux__claim *c = flux__claims.first; c; c = c->next)
        if (c->walk == mark && c->thread != flux__self()) return true;
    return false;
}

/* Puts the walk of this thread on the list. The lock is held. */
static void flux__claim_begin(flux__claim *c, uint32_t walk) {
    c->walk = walk, c->thread = flux__self(), c->next = flux__claims.first;
    flux__claims.first = c;
}

/* Takes a claim off the list, where a child made by fork no longer has it, and wakes those that
   wait. */
static void flux__claim_end(const flux__claim *c) {
    flux__claims_take();
    flux__claim **at = &flux__claims.first;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    const bool waiting = flux__claims.waiting > 0;
    if (waiting) flux__atomic_add32(&flux__claims.ended, 1);
    flux__claims_give();
    if (!waiting) return;
    flux__mutex_lock(&flux__claims.lock);
    flux__cond_broadcast(&flux__claims.wake);
    flux__mutex_unlock(&flux__claims.lock);
}

/* Gives up the lock, waits until a claim ends, and takes the lock again. */
static void flux__claim_wait(void) {
    const int ended = flux__atomic_load32(&flux__claims.ended);
    flux__claims.waiting++;
    flux__claims_give();
    flux__mutex_lock(&flux__claims.lock);
    while (flux__atomic_load32(&flux__claims.ended) == ended)
        flux__cond_wait(&flux__claims.wake, &flux__claims.lock);
    flux__mutex_unlock(&flux__claims.lock);
    flux__claims_take();
    flux__claims.waiting--;
}

#if !defined(FLUX_NO_THREADS) && !defined(_WIN32)
/* The claims' part of flux__fork_locks, in the child: the threads that claimed are not there. */
static void flux__claims_fork(void) {
    static const flux__cond wake = FLUX__COND_INIT;
    flux__mutex_anew(&flux__claims.lock, 1);
    memcpy(&flux__claims.wake, &wake, sizeof wake);
    flux__claims.first = NULL, flux__claims.locked = flux__claims.waiting = 0;
}
#endif

FLUX__END_HOT

#endif /* FLUX__SCHEDULE_CLAIMS_H */
