#ifndef FLUX__DATA_EPOCH_H
#define FLUX__DATA_EPOCH_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/ranks.h"
#include "../schedule/looking.h"
#include "orders.h"
#include "loader.h"
#include "batch.h"
#include "progress.h"

/* ---------------------------------------------------------------------- data/epoch.h
   An epoch under way, flux__epoch: the order drawn for it, the batch that is
   out, the one prepared ahead for a device, and the worker threads with their
   ring of batches. flux_each is built of flux__each_start, flux__each_next and
   flux__each_leave.

   Invariant: a run is held by a second loader object, its cursor, which the
   scope around the loop owns: where the compiler cannot clean up after return
   or break, that scope does. Batches come out in order. A slot of the ring
   belongs to the worker that claimed it until it is ready, which is set under
   the lock. An error while a batch is made becomes that batch's error and is
   pending only when its turn comes. An error since the loop began ends it, and
   no batch is handed out while one is pending. A process forked later has no
   workers and makes the remaining batches itself. */

FLUX__BEGIN_LEAN

/* Withdraws the thread's error and makes it the batch's: it counts when that batch's turn comes, if
   it comes. */
static void flux__made_fail(flux__made *m, int64_t failures) {
    flux__withdraw(failures, m->error, sizeof m->error, "dataloader: no batch was made");
}

/* Makes the batch's error the thread's pending error. */
static void flux__made_error(flux__made *m) {
    flux__thread *t = flux__self();
    if (!t) return;
    snprintf(flux__sentence(&t->error), sizeof t->error.text, "%s", m->error);
    if (flux__pend(&t->error, false)) flux__say_error(t->error.now);
}

static void flux__made_swap(flux__made *a, flux__made *b) {
    flux__made c = *a;
    *a = *b;
    *b = c;
}

/* What a worker thread does: it claims the next batch, makes its stages up to the first move into
   its slot of the ring, and marks it ready. It waits while the ring is full, and ends when all
   batches are claimed or the epoch stops. */
static void flux__epoch_worker(void *arg) {
    flux__epoch *r = (flux__epoch *)arg;
    flux_loader *l = r->loader;
    flux__thread *t = flux__self();
    if (t) t->quiet = true;
    flux__mutex_lock(&r->lock);
    while (!r->stop && r->claimed < l->batches) {
        if (r->claimed - r->taken >= r->depth) {
            flux__cond_wait(&r->changed, &r->lock);
            continue;
        }
        int64_t i = r->claimed++;
        /* no other thread touches the slot until it is ready */
        flux__made *m = &r->ring[i % r->depth];
        flux__mutex_unlock(&r->lock);
        flux__made_empty(m);
        int64_t failures = flux__failures();
        if (!flux__batch_make(l, r->order, r->key, i, true, false, m)) flux__made_fail(m, failures);
        flux__mutex_lock(&r->lock);
        m->ready = true;
        flux__cond_broadcast(&r->changed);
    }
    flux__mutex_unlock(&r->lock);
}

/* Starts the worker threads, as many as the system gives. With none, whoever asks for a batch makes
   it. */
static void flux__epoch_hire(flux__epoch *r) {
    static const flux__mutex lock = FLUX__MUTEX_INIT;
    static const flux__cond changed = FLUX__COND_INIT;
    int want = r->loader->workers;
    /* batches of an array on a device are gathered there, without workers */
    for (int k = 0; k < r->loader->arrays; k++)
        if (!flux__in_host_memory(r->loader->array[k])) want = 0;
    if (want > r->loader->batches) want = (int)r->loader->batches;
    if (want < 1) return;
    memcpy(&r->lock, &lock, sizeof lock);
    memcpy(&r->changed, &changed, sizeof changed);
    r->depth = 2 * want;
    r->forks = flux__forks;
    r->ring = (flux__made *)flux__zalloc((size_t)r->depth * sizeof *r->ring);
    r->thread = (flux__os_thread *)flux__zalloc((size_t)want * sizeof *r->thread);
    while (r->ring && r->thread && r->threads < want &&
           flux__thread_start(&r->thread[r->threads], flux__epoch_worker, r))
        r->threads++;
    if (r->ring && r->thread && r->threads < want)
        flux__note(FLUX_LOG_DEBUG, "data.workers", true,
                   "dataloader: %d of %d workers could be started", r->threads, want);
}

/* Begins an epoch with batch `first`: counts it, draws its key, makes its order, and starts the
   workers. The batches before are not made, and the others are what they would be after them. */
static flux__epoch *flux__epoch_new(flux_loader *l, int64_t first) {
    flux__epoch *r = (flux__epoch *)flux__zalloc(sizeof *r);
    if (!r) return NULL;
    r->loader = (flux_loader *)flux_retain(l);
    r->next = r->claimed = r->taken = first;
    int64_t epoch = l->epoch++;
    if (l->seeded) r->key = flux__scramble(l->seed + flux__scramble((uint64_t)epoch));
    else if (l->shuffle || l->set.get || l->stages) r->key = flux__draw_key();
    const bool ordered = l->shuffle || l->ranks > 1;
    if (ordered) r->order = flux__share_order(l, l->shuffle ? &r->key : NULL);
    if (!ordered || r->order) flux__epoch_hire(r);
    return r;
}

/* A process forked later has no workers and makes the batches itself. The ring, in which the
   workers may have been writing, is left as it is. */
static void flux__epoch_forked(flux__epoch *r) {
    if (r->forks == flux__forks) return;
    r->forks = flux__forks;
    r->threads = 0;
    r->ring = NULL;
}

/* Ends an epoch: stops the workers, waits for them, and frees all. */
static void flux__epoch_free(flux__epoch *r) {
    flux__epoch_forked(r);
    if (r->threads) {
        flux__mutex_lock(&r->lock);
        r->stop = true;
        flux__cond_broadcast(&r->changed);
        flux__mutex_unlock(&r->lock);
    }
    for (int i = 0; i < r->threads; i++) flux__thread_join(&r->thread[i]);
    for (int i = 0; r->ring && i < r->depth; i++) flux__made_free(&r->ring[i]);
    flux__made_free(&r->now);
    flux__made_free(&r->ahead);
    flux__bar_free(r->bar);
    flux__free(r->ring);
    flux__free(r->thread);
    flux__free(r->order);
    flux_release(r->loader);
    flux__free(r);
}

/* Takes batch i out of the ring. False: it is not ready yet and `wait` is false. */
static bool flux__ring_take(flux__epoch *r, int64_t i, bool wait, flux__made *out) {
    flux__made *m = &r->ring[i % r->depth];
    flux__mutex_lock(&r->lock);
    while (wait && !m->ready) flux__cond_wait(&r->changed, &r->lock);
    bool there = m->ready;
    if (there) {
        flux__made_swap(out, m);
        m->ready = false;
        r->taken = i + 1;
        flux__cond_broadcast(&r->changed);
    }
    flux__mutex_unlock(&r->lock);
    return there;
}

/* Makes batch i, with all its stages, in m, or takes it over from a worker and applies the
   remaining stages. m->error says why there is no batch. If a worker is not done and `wait` is
   false, m is not ready. */
static void flux__epoch_make(flux__epoch *r, int64_t i, bool wait, flux__made *m) {
    flux__thread *t = flux__self();
    bool good = true, was = t && t->quiet;
    int64_t failures = flux__failures();
    flux__made_empty(m);
    m->ready = false;
    flux__epoch_forked(r);
    /* by a worker, which applies the stages before the first move */
    const bool begun = r->threads != 0;
    if (begun && (!flux__ring_take(r, i, wait, m) || m->error[0])) return;
    if (t) t->quiet = true;
    if (!begun || m->stage < r->loader->stages)
        good = flux__batch_make(r->loader, r->order, r->key, i, false, begun, m);
    if (t) t->quiet = was;
    if (!good) flux__made_fail(m, failures);
    m->ready = true;
}

/* Puts the next batch into r->now. False: there is an error, which is pending now. */
static bool flux__epoch_next(flux__epoch *r) {
    if (r->ahead.ready) {
        flux__made_swap(&r->now, &r->ahead);
        r->ahead.ready = false;
    } else flux__epoch_make(r, r->next, true, &r->now);
    if (r->now.error[0]) {
        flux__made_error(&r->now);
        return false;
    }
    r->next++;
    return true;
}

/* Prepares the next batch, if batches are moved to a device: it is copied there while the device
   works on this one. */
static void flux__epoch_ahead(flux__epoch *r) {
    flux_loader *l = r->loader;
    bool moves = l->stages && flux__loader_device(l).backend != FLUX__CPU_BACKEND;
    flux__thread *t = flux__self();
    if (!moves || !t || r->next >= l->batches || flux__failed_since(r->failures)) return;
    t->ahead = true;
    flux__epoch_make(r, r->next, false, &r->ahead);
    t->ahead = false;
}

/* Makes the cursor, which has the epoch and its progress bar and is owned by the scope around the
   loop. */
static flux__each_state flux__each_begin(flux__each_args a, int64_t first) {
    FLUX__ZEROED(flux__each_state, e);
    flux_loader *cursor = (flux_loader *)flux__handle_new(sizeof *cursor, FLUX__LOADER);
    if (!cursor) return e;
    int64_t failures = flux__failures();
    cursor->run = flux__epoch_new(a.loader, first);
    if (cursor->run) cursor->run->failures = failures;
    if (cursor->run && a.progress && !flux__failed_since(failures))
        cursor->run->bar = flux__bar_new(a.progress, a.loader->batches);
    if (!cursor->run || flux__failed_since(failures)) flux_release(cursor);
    else e.run = flux__own(cursor);
    return e;
}

/* Begins the loop. While an error is pending no batch is handed out, not even the first. */
FLUX_DEF flux__each_state flux__each_start(flux__each_args a) {
    FLUX__ZEROED(flux__each_state, none);
    if (!a.loader || FLUX__GONE("each", a.loader))
        return flux__null("each", "loader", a.loader), none;
    return flux_failed() ? none : flux__each_begin(a, 0);
}

/* Hands the batch's items to the scope of the iteration. The array of items stays with the run. */
static bool flux__each_batch(flux__each_state *e, flux__epoch *r, const char *file, int line) {
    bool good = true;
    e->batch = flux__as_batch(&r->now);
    r->scope = flux__iteration_enter(file, line);
    for (int i = 0; i < r->now.count; i++)
        if (!flux__own(r->now.item[i])) good = false;
    r->now.count = 0;
    return good;
}

FLUX_DEF bool flux__each_next(flux__each_state *e, const char *file, int line) {
    flux_loader *cursor = (flux_loader *)e->run;
    if (!cursor) return false;
    flux__epoch *r = cursor->run;
    /* the last iteration was left by break */
    bool left = e->inner != 0;
    e->inner = 0;
    flux__block_leave(&r->scope);
    if (r->bar && r->next) flux__bar_step(r->bar, r->next, e->batch.size);
    if (left || flux__failed_since(r->failures) || r->next >= r->loader->batches ||
        !flux__epoch_next(r) || !flux__each_batch(e, r, file, line)) {
        flux__each_leave(e);
        return false;
    }
    if (r->loader->comm)
        flux__ranks->weigh(r->loader->comm, flux__batch_weight(r->loader, e->batch.index));
    flux__epoch_ahead(r);
    e->inner = 1;
    return true;
}

/* Removes an object from the scope that owns it, without releasing it. */
static void flux__disown(void *object) {
    flux__thread *t = flux__self();
    int i = t ? flux__owned_at(t, object, t->nowned - 1, 0) : -1;
    if (i < 0) return;
    memmove(t->owned + i, t->owned + i + 1, (size_t)(t->nowned - i - 1) * sizeof *t->owned);
    t->nowned--;
    for (int s = t->nscopes - 1; s > 0 && t->scope[s].start > i; s--) t->scope[s].start--;
}

FLUX_DEF void flux__each_leave(flux__each_state *e) {
    flux_loader *cursor = (flux_loader *)e->run;
    if (!cursor) return;
    e->run = NULL;
    flux__block_leave(&cursor->run->scope);
    if (cursor->run->loader->comm) flux__ranks->weigh(cursor->run->loader->comm, 1);
    if (cursor->run->bar) flux__bar_end(cursor->run->bar);
    flux__disown(cursor);
    flux_release(cursor);
}

FLUX__END_LEAN

#endif /* FLUX__DATA_EPOCH_H */
