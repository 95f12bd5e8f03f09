#ifndef FLUX__BASE_WORKERS_H
#define FLUX__BASE_WORKERS_H
#include "platform.h"
#include "threads.h"
#include "object.h"
#include "system.h"
#include "errors.h"

/* ---------------------------------------------------------------------- base/workers.h
   The pool of worker threads, one per process. flux__parallel runs fn(ctx, i)
   for i from 0 to n - 1. It divides these indices into one contiguous share per
   thread; a thread takes the indices of its own share one by one and then those
   that the others have left. So a thread gets about the same part of one tensor
   after another, which its cache still has. Scratch memory, as packing needs it
   for a short time, is kept here to be used again, by thread.

   Invariant: which thread runs an index is chance, so the result of an index
   must not depend on its worker: work is divided by its size alone, and results
   are the same for any number of threads. The pool serves one caller at a time;
   a second thread, and a call from within a job, run their work themselves. The
   caller waits only for workers that joined the job: the gate counts them, and
   closes when no index is left. Workers spin for 50 us after a job, since a
   wake-up takes 20 us or more, and then sleep. Every 200 us a worker yields its
   processor between two jobs: if another program wants it, that program gets it
   while nobody waits for the worker, not in the middle of a job.

   Rejected: one queue of indices for all threads: two processors without a
   common cache took twice as long for a recurrent step. */

FLUX__BEGIN_LEAN

enum { FLUX__MAX_THREADS = 1024, FLUX__GATE_SHUT = 1 << 30 };

typedef struct flux__memory {             /* stands right before a block of scratch memory */
    struct flux__memory *next;            /* in the list of blocks that are not in use */
    size_t bytes;
    void *start;                          /* the address from FLUX_MALLOC */
    const void *user;                     /* the thread that used it last: its cache may have it */
} flux__memory;

typedef struct flux__pool_share {         /* a thread's share of a job, on its own cache line */
    int64_t next;                         /* the next index to run in the low FLUX__SHARE_BITS, and
                                             above them its job's number; if the current job is
                                             another, no index of the share has been taken yet */
    char line[56];
} flux__pool_share;
#define FLUX__SHARE_BITS 40

static struct flux__pool {
    int wanted;                           /* threads, the caller's included; 0: not yet decided */
    int busy;                             /* 1: a job runs, or the pool is being changed */
    int nworkers, stop;                   /* stop: the workers are to end */
    flux__os_thread *worker;
    void (*fn)(void *ctx, int worker, int64_t i);   /* the job: fn for i from 0 to n - 1 */
    void *ctx;
    int64_t n, job;                       /* job: its number, in the 63 - FLUX__SHARE_BITS bits that
                                             a share has for it */
    int nshares, most;                    /* shares of this job; how many are allocated */
    unsigned mode;                        /* the caller's floating-point mode, adopted by workers */
    flux__pool_share *share;
    char line1[64];                       /* so that gate and round have their own cache lines */
    int gate;                             /* workers in the job; + FLUX__GATE_SHUT: none may join */
    char line2[64];
    int round, sleepers;                  /* round: counts what workers are to notice; sleepers: how
                                             many workers wait on wake */
    flux__mutex lock;                     /* guards sleeping and waking */
    flux__cond wake;
    flux__mutex memory_lock;              /* guards the list memory */
    flux__memory *memory;                 /* scratch memory that is not in use */
} flux__pool = {0, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, {0}, FLUX__GATE_SHUT, {0}, 0, 0,
                FLUX__MUTEX_INIT, FLUX__COND_INIT, FLUX__MUTEX_INIT, NULL};

/* How many threads a job gets, the caller's included: as flux_threads or the environment variable
   FLUX_NUM_THREADS says, else as many as there are processors. */
static int flux__num_threads(void) {
    int n = flux__atomic_load32(&flux__pool.wanted);
    if (n == 0) {
        const char *s = flux__env("FLUX_NUM_THREADS");
        n = s ? atoi(s) : 0;
        if (s && n <= 0)
            flux__note(FLUX_LOG_WARN, "threads", true,
                       "FLUX_NUM_THREADS=%s is not a number above 0: ignored", s);
        if (n <= 0) n = flux__processors();
        if (n > FLUX__MAX_THREADS) n = FLUX__MAX_THREADS;
        flux__atomic_store32(&flux__pool.wanted, n);
    }
#ifdef FLUX_NO_THREADS
    n = 1;
#endif
    return n;
}

/* ---- scratch memory, as packing needs it for a short time, kept to be used again
   Any thread may give back a block that another took. A thread preferably gets a block that it used
   before, since another's might be in another processor's cache. */

static void flux__scratch_free(flux__memory *m) {
    FLUX__UNPOISON(m->start, m->bytes + sizeof *m + 64);
    flux__free(m->start);
}

/* At least so many bytes, at a multiple of 64: the smallest sufficient block that this thread
   used last, else the smallest of all, else new memory, for which one kept block is freed. NULL:
   out of memory, which is not recorded as an error. flux__scratch_done gives it back. */
static void *flux__scratch(size_t bytes) {
    flux__memory *m, **p, **best = NULL;
    const void *self = flux__self();
    char *start;
    flux__mutex_lock(&flux__pool.memory_lock);
    for (p = &flux__pool.memory; *p; p = &(*p)->next) {
        bool ours = (*p)->user == self,
             better = !best || (ours == ((*best)->user == self) ? (*p)->bytes < (*best)->bytes
                                                                : ours);
        if ((*p)->bytes >= bytes && better) best = p;
    }
    if (!best && flux__pool.memory) best = &flux__pool.memory;   /* too small: freed for a larger */
    m = best ? *best : NULL;
    if (m) *best = m->next, m->user = self;
    flux__mutex_unlock(&flux__pool.memory_lock);
    if (m && m->bytes >= bytes) {
        FLUX__UNPOISON(m + 1, bytes);
        return m + 1;
    }
    if (m) flux__scratch_free(m);
    start = bytes < SIZE_MAX / 2 ? (char *)FLUX_MALLOC(bytes + sizeof *m + 64) : NULL;
    if (!start) return NULL;
    m = (flux__memory *)(void *)(start + sizeof *m +
                                 (63 & (0 - ((uintptr_t)start + sizeof *m)))) - 1;
    m->start = start;
    m->bytes = bytes;
    m->user = self;
    FLUX__POISON((char *)(m + 1) + bytes, (size_t)(start + sizeof *m + 64 - (char *)(m + 1)));
    return m + 1;
}

static void flux__scratch_done(void *data) {       /* gives it back; NULL is fine */
    flux__memory *m;
    if (!data) return;
    m = (flux__memory *)data - 1;
    FLUX__POISON(data, m->bytes);
    flux__mutex_lock(&flux__pool.memory_lock);
    m->next = flux__pool.memory;
    flux__pool.memory = m;
    flux__mutex_unlock(&flux__pool.memory_lock);
}

/* ---- the workers */

/* Takes the next index of share `number` for the calling thread; false: the share is used up. */
static bool flux__pool_claim(int number, int64_t *i) {
    int64_t *next = &flux__pool.share[number].next, n = flux__pool.n,
            job = flux__pool.job << FLUX__SHARE_BITS, was;
    do {
        was = flux__atomic_load(next);
        *i = was >> FLUX__SHARE_BITS == flux__pool.job ? was - job
                                                       : n * number / flux__pool.nshares;
        if (*i >= n * (number + 1) / flux__pool.nshares) return false;
    } while (!flux__atomic_cas(next, was, job + *i + 1));
    return true;
}

/* What this thread has to do between indices, see flux__thread.between. */
static void flux__between(void) {
    const flux__thread *t = (const flux__thread *)flux__tls_get();
    if (t && t->between) t->between(t->between_of);
}

/* Runs indices until none is left: those of the worker's own share, then those of the next ones. */
static void flux__pool_work(int worker) {
    int k, shares = flux__pool.nshares;
    int64_t i;
    for (k = 0; k < shares; k++)
        while (flux__pool_claim((worker + k) % shares, &i)) {
            flux__pool.fn(flux__pool.ctx, worker, i);
            flux__between();
        }
}

/* The same by the calling thread alone. */
static void flux__work_alone(int64_t n, void (*fn)(void *ctx, int worker, int64_t i), void *ctx) {
    for (int64_t i = 0; i < n; i++) {
        fn(ctx, 0, i);
        flux__between();
    }
}

/* Waits, spinning for 50 us and then asleep, until the round is not `seen`, and returns it. */
static int flux__pool_wait(int seen) {
    double until = flux__now() + 50e-6;
    int round, i = 0;
    while ((round = flux__atomic_load32(&flux__pool.round)) == seen) {
        flux__relax();
        if (++i % 32 == 0 && flux__now() > until) break;
    }
    if (round != seen) return round;
    flux__mutex_lock(&flux__pool.lock);
    flux__atomic_add32(&flux__pool.sleepers, 1);
    while ((round = flux__atomic_load32(&flux__pool.round)) == seen)
        flux__cond_wait(&flux__pool.wake, &flux__pool.lock);
    flux__atomic_add32(&flux__pool.sleepers, -1);
    flux__mutex_unlock(&flux__pool.lock);
    return round;
}

/* A worker's thread: joins each job whose gate is open, until stop is set. */
static void flux__pool_main(void *arg) {
    int worker = (int)((flux__os_thread *)arg - flux__pool.worker) + 1, seen = 0, gate;
    double yielded = 0;
    unsigned mode;
    while (!flux__atomic_load32(&flux__pool.stop)) {
        gate = flux__atomic_load32(&flux__pool.gate);
        if (gate < FLUX__GATE_SHUT) {
            if (!flux__atomic_cas32(&flux__pool.gate, gate, gate + 1)) continue;
            seen = flux__atomic_load32(&flux__pool.round);   /* can't change during a job */
            mode = flux__float_mode();
            if ((mode ^ flux__pool.mode) & FLUX__ROUNDING)
                flux__set_float_mode((mode & ~(unsigned)FLUX__ROUNDING) |
                                     (flux__pool.mode & FLUX__ROUNDING));
            flux__pool_work(worker);
            flux__atomic_add32(&flux__pool.gate, -1);
            if (flux__now() > yielded + 200e-6) flux__thread_yield(), yielded = flux__now();
        }
        seen = flux__pool_wait(seen);
    }
}

/* Begins a new round, which spinning workers notice, and wakes n of the workers that sleep. */
static void flux__pool_tell(int64_t n) {
    int sleepers;
    flux__atomic_add32(&flux__pool.round, 1);
    if (flux__atomic_load32(&flux__pool.sleepers) == 0) return;
    flux__mutex_lock(&flux__pool.lock);
    sleepers = flux__atomic_load32(&flux__pool.sleepers);
    if (n >= sleepers) flux__cond_broadcast(&flux__pool.wake);
    else while (n-- > 0) flux__cond_signal(&flux__pool.wake);
    flux__mutex_unlock(&flux__pool.lock);
}

/* Ends all workers. The caller has set busy. */
static void flux__pool_stop(void) {
    int i;
    flux__atomic_store32(&flux__pool.stop, 1);
    flux__pool_tell(FLUX__MAX_THREADS);
    for (i = 0; i < flux__pool.nworkers; i++) flux__thread_join(&flux__pool.worker[i]);
    flux__atomic_store32(&flux__pool.stop, 0);
    flux__free(flux__pool.worker);
    flux__pool.worker = NULL;
    flux__pool.nworkers = 0;
}

/* Starts threads - 1 workers unless there are workers, and allocates the shares behind them, from
   a 64-byte boundary on. If the system grants fewer threads, it is no error. The caller has set
   busy. */
static void flux__pool_start(int threads) {
    int i;
    size_t shares = (size_t)threads * sizeof *flux__pool.share + 64;
    if (flux__pool.nworkers) return;
    flux__free(flux__pool.worker);   /* left from before a fork */
    flux__pool.worker = (flux__os_thread *)FLUX_MALLOC(
        (size_t)(threads - 1) * sizeof *flux__pool.worker + shares);
    if (!flux__pool.worker) return;
    memset(flux__pool.worker + (threads - 1), 0, shares);
    flux__pool.most = threads;
    flux__pool.share = (flux__pool_share *)(
        ((uintptr_t)(flux__pool.worker + (threads - 1)) + 63) / 64 * 64);
    for (i = 0; i < threads - 1; i++) {
        if (!flux__thread_start(&flux__pool.worker[i], flux__pool_main, &flux__pool.worker[i]))
            break;
        flux__pool.nworkers = i + 1;
    }
    if (i == 0) {
        flux__free(flux__pool.worker);
        flux__pool.worker = NULL;
    }
}

/* Runs fn(ctx, worker, i) for i from 0 to n - 1, spread over the threads, and returns when all
   are done. worker is below FLUX__MAX_THREADS, different for calls of fn that run at the same
   time in this job, and 0 where the caller runs everything itself. */
static void flux__parallel_workers(int64_t n, void (*fn)(void *ctx, int worker, int64_t i),
                                   void *ctx) {
    int threads = flux__num_threads(), spins = 0;
    if (n <= 1 || threads <= 1 || !flux__atomic_cas32(&flux__pool.busy, 0, 1)) {
        flux__work_alone(n, fn, ctx);
        return;
    }
    flux__pool_start(threads);
    if (!flux__pool.nworkers) {           /* the system started none */
        flux__work_alone(n, fn, ctx);
        flux__atomic_store32(&flux__pool.busy, 0);
        return;
    }
    flux__pool.fn = fn;
    flux__pool.ctx = ctx;
    flux__pool.n = n;
    flux__pool.mode = flux__float_mode();
    if (++flux__pool.job >> (63 - FLUX__SHARE_BITS)) {     /* numbers start again: forget all */
        memset(flux__pool.share, 0, (size_t)flux__pool.most * sizeof *flux__pool.share);
        flux__pool.job = 1;
    }
    flux__pool.nshares = n < flux__pool.most ? (int)n : flux__pool.most;
    flux__atomic_store32(&flux__pool.gate, 0);
    flux__pool_tell(n - 1);
    flux__pool_work(0);
    flux__atomic_add32(&flux__pool.gate, FLUX__GATE_SHUT);
    while (flux__atomic_load32(&flux__pool.gate) != FLUX__GATE_SHUT) {
        flux__relax();
        if (++spins % 256 == 0) flux__thread_yield();   /* perhaps to a worker that has none */
    }
    flux__atomic_store32(&flux__pool.busy, 0);
}

typedef struct flux__parallel_job {
    void (*fn)(void *ctx, int64_t i);
    void *ctx;
} flux__parallel_job;
/* flux__parallel_workers' fn for flux__parallel, whose fn takes no worker. */
static void flux__parallel_run(void *p, int worker, int64_t i) {
    flux__parallel_job *j = (flux__parallel_job *)p;
    (void)worker;
    j->fn(j->ctx, i);
}
/* Runs fn(ctx, i) for i from 0 to n - 1, spread over the threads, and returns when all are done. */
FLUX__UNUSED static void flux__parallel(int64_t n, void (*fn)(void *ctx, int64_t i), void *ctx) {
    flux__parallel_job j;
    j.fn = fn;
    j.ctx = ctx;
    flux__parallel_workers(n, flux__parallel_run, &j);
}

/* Waits until no job runs, and sets busy. */
static void flux__pool_take(void) {
    while (!flux__atomic_cas32(&flux__pool.busy, 0, 1)) flux__thread_yield();
}

/* Ends the workers and frees the scratch memory. The next job starts workers again. */
FLUX__UNUSED static void flux__threads_stop(void) {
    flux__memory *m;
    flux__pool_take();
    flux__pool_stop();
    flux__mutex_lock(&flux__pool.memory_lock);
    while ((m = flux__pool.memory) != NULL) {
        flux__pool.memory = m->next;
        flux__scratch_free(m);
    }
    flux__mutex_unlock(&flux__pool.memory_lock);
    flux__atomic_store32(&flux__pool.busy, 0);
}

#if !defined(FLUX_NO_THREADS) && !defined(_WIN32)
/* The pool's part of flux__fork_locks: the child has no workers and no job. */
static void flux__pool_fork(int when) {
    static const flux__cond wake = FLUX__COND_INIT;
    flux__fork_lock(&flux__pool.memory_lock, when);
    if (when != FLUX__FORK_CHILD) return;
    flux__mutex_anew(&flux__pool.lock, 1);
    memcpy(&flux__pool.wake, &wake, sizeof wake);
    flux__pool.busy = flux__pool.nworkers = flux__pool.stop = flux__pool.sleepers = 0;
    flux__pool.gate = FLUX__GATE_SHUT;
}
#endif

FLUX_DEF void flux_threads(int n) {
    if (n < 0) {
        flux__fail("threads: %d threads are not possible", n);
        return;
    }
    if (n == 0) n = flux__processors();
    if (n > FLUX__MAX_THREADS) n = FLUX__MAX_THREADS;
    flux__pool_take();
    flux__pool_stop();
    flux__atomic_store32(&flux__pool.wanted, n);
    flux__atomic_store32(&flux__pool.busy, 0);
}

FLUX__END_LEAN

#endif /* FLUX__BASE_WORKERS_H */
