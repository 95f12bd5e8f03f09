#ifndef FLUX__SCHEDULE_PLANS_H
#define FLUX__SCHEDULE_PLANS_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add */
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/memory.h"
#include "kernel.h"
#include "key.h"
#include "dispatch.h"
#include "order.h"
#include "trace.h"
#include "profile.h"

/* ---------------------------------------------------------------------- schedule/plans.h
   The cache of plans and the execution of a plan. Each thread keeps its plans
   in a hash table by key (flux__find_plan); flux__run_plan allocates, runs the
   kernels in order through the back ends, and gives the finished nodes their
   buffers.

   Invariant: all memory is found before the first kernel runs, so a failure of
   allocation leaves every tensor as it was. Buffers whose life ends are used
   again at once by later kernels of the plan, if device and size fit; kernels
   of one device share a piece of scratch memory. Consecutive kernels of one
   device are handed over as a row, which a GPU may launch as one. Of 512 plans or more,
   those not used for 256 look-ups are dropped.

   Rejected: copies of the weights for the case that a device fails in the
   middle of an in-place update: they would cost every step. The error says
   so. */

/* hook: flux_device_backend, device/registry.h */
/* hook: flux_synchronise_device, device/registry.h */

FLUX__BEGIN_HOT

static FLUX__COLD void flux__plans_free(flux__plans *plans) {
    for (int i = 0; i < FLUX__BUCKETS; i++)
        while (plans->bucket[i]) {
            flux__plan *plan = plans->bucket[i];
            plans->bucket[i] = plan->next;
            flux__plan_free(plan);
        }
    flux__graph_drop(&plans->kept);
    flux__free(plans);
}

/* Drops the plans whose last use lies `young` look-ups back or more. */
static FLUX__COLD void flux__plans_forget(flux__plans *plans, uint32_t young) {
    for (int i = 0; i < FLUX__BUCKETS; i++)
        for (flux__plan **at = &plans->bucket[i]; *at;) {
            flux__plan *plan = *at;
            if (plans->clock - plan->used < young) at = &plan->next;
            else {
                *at = plan->next;
                plans->count--;
                plans->bytes -= plan->bytes;
                flux__plan_free(plan);
            }
        }
}

/* Drops old plans, so that ever new shapes or graphs don't fill the memory: of 512 plans or more
   those that were not used for 256 look-ups; beyond FLUX__PLANS_MOST bytes the same, then younger
   and younger ones, and at last all of them, where one plan alone is that large. */
static FLUX__COLD void flux__plans_trim(flux__plans *plans) {
    if (plans->count >= 512) flux__plans_forget(plans, 256);
    for (uint32_t young = 256; plans->bytes > FLUX__PLANS_MOST && young; young /= 4)
        flux__plans_forget(plans, young);
    if (plans->bytes > FLUX__PLANS_MOST) flux__plans_forget(plans, 0);
}

/* The hash of a key of n words: a sum of products of two words each, none of which waits for
   another. The constants added to the second words are unevenly spaced; with even spacing many keys
   whose words have the same sums would get one hash. */
static uint64_t flux__key_hash(const int64_t *key, int n) {
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t hash = n % 2 ? (uint64_t)key[n - 1] * odd : 0, more = odd;
    for (int i = 0; i + 1 < n; i += 2, more += 0x3c6ef372fe94f82au)
        hash += ((uint64_t)key[i] + more) * ((uint64_t)key[i + 1] + (more ^ more >> 32 << 1));
    return (hash ^ hash >> 32) * odd;
}

/* Finds this thread's plan for the graph's key, or makes one and keeps it. NULL and an error if
   that fails. */
static flux__plan *flux__find_plan(flux__graph *g) {
    flux__thread *t = flux__self();
    if (!t->plans && !(t->plans = (flux__plans *)flux__zalloc(sizeof *t->plans))) return NULL;
    flux__plans *plans = t->plans;
    const uint64_t hash = flux__key_hash(g->key, g->nkey);
    flux__plan **bucket = &plans->bucket[hash >> 56];
    plans->clock++;
    for (flux__plan *plan = *bucket; plan; plan = plan->next)
        if (plan->hash == hash && plan->key_words == g->nkey &&
            memcmp(plan->key, g->key, (size_t)g->nkey * sizeof *g->key) == 0) {
            plan->used = plans->clock;
            return plan;
        }
    flux__plans_trim(plans);
    flux__plan *plan = flux__make_plan(g);
    if (!plan) return NULL;
    plan->hash = hash;
    plan->key = g->key;                   /* the plan takes the key over */
    plan->key_words = g->nkey;
    g->key = NULL, g->key_capacity = 0;
    plan->used = plans->clock;
    plan->next = *bucket;
    *bucket = plan;
    plans->count++;
    plan->bytes += (int64_t)g->nkey * 8 + (int64_t)plan->nnode * (int64_t)sizeof *plan->slot;
    plan->bytes += (int64_t)plan->nkernel * (int64_t)sizeof *plan->kernel;
    plans->bytes += plan->bytes;
    return plan;
}

/* ---------------- running a plan */

/* Runs one kernel and tells its time to the trace and the profile. It waits for the device, or the
   kernel's time would be counted as that of the next. */
static FLUX__COLD int flux__kernel_timed(flux__run *r, flux__kernel *k) {
    char words[400], device[64];
    double start = flux__now();
    int done = flux__kernels_run(r, k, 1);
    flux_device d = r->plan->slot[k->outs[0]].device;
    flux_synchronise_device(d);
    if (flux__profiling()) flux__profile_kernel(r->plan, r->g, k, flux__now() - start);
    if (!flux__tracing()) return done;
    size_t n = flux__origin_text(flux__kernel_origin(k, r->g), words, 100);
    if (n) n += (size_t)snprintf(words + n, sizeof words - n, ": ");
    flux__kernel_words(r->plan, r->g, k, FLUX__WORDS_SIZES, words + n, sizeof words - n);
    snprintf(device, sizeof device, "%s:%d", flux_device_backend(d), d.id);
    flux__trace_event("kernel", words, start, flux__kernel_bytes(k, r->g), device);
    return done;
}

/* Finishes the calls whose results kernel number `at` reads, and writes to the trace how long that
   took: the part of a call that no kernel hid. */
static FLUX__COLD bool flux__calls_await(flux__run *r, int at, bool trace) {
    double start = trace ? flux__now() : 0;
    bool ok = flux__calls_finish(r, at);
    if (trace) flux__trace_event("wait", "finish calls", start, 0, "");
    return ok;
}

/* Finds scratch memory for kernel number `at` and for all later kernels of its device. Kernels of
   one device run one after the other, so they share one buffer, as large as any of them needs. */
static bool flux__allocate_scratch(flux__run *r, int at) {
    flux__kernel *k = &r->plan->kernel[at];
    flux__buffer **scratch = r->buffer + r->plan->nnode * 2;      /* by kernel */
    size_t most = k->scratch;
    if (!k->scratch || scratch[at]) return true;
    for (int i = at + 1; i < r->plan->nkernel; i++)
        if (flux__same_device(r->plan->kernel[i].device, k->device) &&
            r->plan->kernel[i].scratch > most)
            most = r->plan->kernel[i].scratch;
    flux__buffer *b = flux__buffer_new(k->device, most, NULL);
    for (int i = at; i < r->plan->nkernel && b; i++) {
        flux__kernel *other = &r->plan->kernel[i];
        if (!other->scratch || !flux__same_device(other->device, k->device)) continue;
        if (i > at) flux__atomic_add(&b->refs, 1);
        scratch[i] = b;
        other->scratch_at = b->ptr;
    }
    return b != NULL;
}

/* The buffers given up within a plan, by size class: lists of the nodes that had them. */
typedef struct flux__spares {
    uint64_t some[FLUX__SIZES / 64 + 1];  /* a bit for each class: whether it has a list; the
                                             last word stays 0 */
    int first[FLUX__SIZES], *next;        /* first: by class, next: by node; number + 1 of a
                                             node, 0: end of the list */
} flux__spares;

static void flux__spare_give(flux__spares *spare, int node, int size_class) {
    uint64_t *some = &spare->some[size_class >> 6], bit = (uint64_t)1 << (size_class & 63);
    spare->next[node] = *some & bit ? spare->first[size_class] : 0;
    spare->first[size_class] = node + 1;
    *some |= bit;
}

/* A spare buffer for a node, of no more than twice its size, which is at most 12 classes up; NULL:
   none. A list may have buffers of several devices; since a plan runs on few, one of the right
   device is soon found. */
static flux__buffer *flux__spare_take(flux__run *r, flux__spares *spare, const flux__slot_info *s) {
    /* larger than any size class: no memory is that large */
    if (s->size_class >= FLUX__SIZES) return NULL;
    const uint64_t *some = &spare->some[s->size_class >> 6];
    uint64_t near = some[0] >> (s->size_class & 63) | some[1] << 1 << (63 - (s->size_class & 63));
    near &= 0x1fff;
    for (int c = s->size_class; near; c++, near >>= 1)
        for (int *at = &spare->first[c], n = 0; (near & 1) && *at && n < 64;
             at = &spare->next[*at - 1], n++) {
            flux__buffer *b = r->buffer[*at - 1];
            if (!flux__same_device(b->device, s->device) || b->capacity / 2 > (size_t)s->bytes)
                continue;
            *at = spare->next[*at - 1];
            flux__atomic_add(&b->refs, 1);
            if (!b->device.backend) FLUX__UNPOISON(b->ptr, (size_t)s->bytes);
            return b;
        }
    return NULL;
}

/* Finds a buffer for a node, unless it has one: a spare one or a new one. */
static bool flux__allocate_node(flux__run *r, flux__spares *spare, int node) {
    const flux__slot_info *s = &r->plan->slot[node];
    if (!r->buffer[node]) r->buffer[node] = flux__spare_take(r, spare, s);
    if (!r->buffer[node])
        r->buffer[node] = flux__buffer_new(s->device, (size_t)s->bytes, r->g->node[node]);
    return r->buffer[node] != NULL;
}

/* Gives every stored node a buffer: that of its donated leaf, a spare one of a node whose life has
   ended earlier in the plan, or a new one. All memory is found before the first kernel runs, so
   that a failure leaves everything as it was. */
static bool flux__allocate(flux__run *r) {
    flux__plan *plan = r->plan;
    flux__spares spare;
    bool ok = true;
    memset(spare.some, 0, sizeof spare.some);
    spare.next = (int *)(void *)(r->buffer + plan->nnode);
    for (int i = 0; i < plan->nleaf; i++) r->ptr[i] = r->g->leaf[i]->buf->ptr;
    for (int k = 0; k < plan->nkernel && ok; k++) {
        for (int n = 0; n < plan->kernel[k].nouts && ok; n++) {
            int i = plan->kernel[k].outs[n];
            flux__slot_info *s = &plan->slot[i];
            if (s->donated >= 0) {
                r->buffer[i] = r->g->leaf[s->donated]->buf;
                FLUX__ASSERT(r->buffer[i]->borrowed ||
                             r->buffer[i]->capacity >= (size_t)s->bytes);
                flux__atomic_add(&r->buffer[i]->refs, 1);
            } else if (s->inside >= 0) {
                ok = flux__allocate_node(r, &spare, s->inside);
                if (ok) r->ptr[plan->nleaf + i] = (char *)r->buffer[s->inside]->ptr + s->at;
                continue;
            } else if (!flux__allocate_node(r, &spare, i)) {
                ok = false;
                continue;
            }
            r->ptr[plan->nleaf + i] = r->buffer[i]->ptr;
        }
        for (int j = 0; j < plan->kernel[k].nfrees && ok; j++) {
            int i = plan->kernel[k].frees[j];
            if (plan->slot[i].donated < 0 && plan->slot[i].inside < 0)
                flux__spare_give(&spare, i, r->buffer[i]->size_class);
        }
    }
    return ok;
}

/* Drops the copies in other orders of weights whose memory the plan has written, or tried to.
   Nobody else refers to such a weight, so nobody makes one meanwhile; but another thread may drop
   all copies. */
static void flux__drop_kept(const flux__run *r) {
    for (int at = 0; at < r->plan->nout; at++) {
        const int i = r->plan->out[at];
        if (r->plan->slot[i].donated >= 0 && r->buffer[i] && flux__see_kept(&r->buffer[i]->kept))
            flux__kept_drop(r->buffer[i]);
    }
}

/* Gives the nodes that are kept their buffers, labelled with their shape and dtype. A leaf whose
   buffer a node took over loses it and is CONSUMED. The lock of a pool is held from one buffer to
   the next of the same pool. */
static void flux__settle_nodes(flux__run *r) {
    flux__plan *plan = r->plan;
    flux__graph *g = r->g;
    flux__class_pool *held = NULL;
    /* The label may still be that of a node whose life has ended. */
    for (int at = 0; at < plan->nout; at++) {
        const int i = plan->out[at];
        flux__buffer *b = plan->slot[i].keep ? r->buffer[i] : NULL;
        if (b && flux__buffer_labelled(b, g->node[i], (size_t)plan->slot[i].bytes)) continue;
        flux__class_pool *pool = b ? flux__class_pool_at(b->device) : held;
        if (pool != held && held) flux__class_pool_unlock(held);
        if (pool != held) flux__class_pool_lock(pool);
        held = pool;
        if (b) flux__buffer_label(b, g->node[i], (size_t)plan->slot[i].bytes);
    }
    if (held) flux__class_pool_unlock(held);
    for (int at = 0; at < plan->nout; at++) {
        const int i = plan->out[at];
        /* a handler that was called meanwhile may have had the node computed */
        if (!plan->slot[i].keep || !r->buffer[i] || g->node[i]->buf) continue;
        flux__show_buffer(&g->node[i]->buf, r->buffer[i]);
        r->buffer[i] = NULL;
        if (plan->slot[i].donated >= 0) {
            flux_tensor *old = g->leaf[plan->slot[i].donated];
            flux__buffer_release(old->buf);
            flux__show_buffer(&old->buf, NULL);
            old->flags |= FLUX__CONSUMED;
        }
    }
}

/* The first of the plan's calls; NULL: there is none. */
static const flux__plan_call *flux__plan_caller(const flux__plan *plan) {
    for (int k = 0; k < plan->nkernel && plan->ncall; k++)
        if (plan->kernel[k].call) return plan->kernel[k].call;
    return NULL;
}

/* Whether one of the kernels number k to `end` - 1, of which the last may have failed, has written
   into the memory of old weights. */
static bool flux__changes(const flux__plan *plan, int k, int end) {
    for (; k < end; k++)
        for (int o = 0; o < plan->kernel[k].nouts; o++)
            if (plan->slot[plan->kernel[k].outs[o]].donated >= 0) return true;
    return false;
}

/* Runs all kernels in order. A device may fail in the middle of an update; what has been written
   into the memory of old weights by then can't be taken back, since copies for that case would cost
   every step. The error then says that the update is half done. */
static bool flux__run_kernels(flux__run *r, bool timed) {
    const bool trace = timed && flux__tracing();
    flux__plan *plan = r->plan;
    const flux__plan_call *call = timed ? NULL : flux__plan_caller(plan);
    bool changed = false;
    flux__hold();
    const int whole = call && call->replay ? call->replay(r) : 0;
    bool ok = whole >= 0;
    for (int k = 0, n; k < plan->nkernel && whole == 0 && ok; k += n) {
        n = timed ? 1 : flux__kernel_row(plan, k);
        if (plan->kernel[k].waits && !flux__calls_await(r, k, trace)) {
            ok = false;
            break;
        }
        int done = timed ? flux__kernel_timed(r, &plan->kernel[k])
                         : flux__kernels_run(r, &plan->kernel[k], n);
        ok = done == n;
        const flux__backend *by = plan->kernel[k].by;
        if (!ok && by && by->traits & FLUX__STOPS_MIDWAY) done++;
        changed = changed || flux__changes(plan, k, k + done);
    }
    if (plan->ncall) ok = flux__calls_await(r, plan->nkernel, trace) && ok;
    if (call && call->replay && whole == 0) ok = call->ran(r, ok);
    flux__thread *t = flux__self();
    if (!ok && changed && t && t->error.unsaid) {
        size_t used = strlen(t->error.now);
        snprintf(t->error.now + used, sizeof t->error.text - used,
                 "; the update was half done: load the model from a file");
    }
    flux__tell();
    return ok;
}

/* Runs a plan for the graph g, which has its key: finds memory, runs the kernels, gives the nodes
   their buffers and releases all others. -1 and an error if it fails. */
static int flux__run_plan(flux__plan *plan, flux__graph *g) {
    flux__run r;
    void *few[256], **memory = few;       /* the arrays r.buffer and r.ptr of a small plan */
    size_t n = (size_t)(plan->nnode * 2 + plan->nkernel),
           all = n + (size_t)(plan->nleaf + plan->nnode);
    r.plan = plan, r.g = g;
    memset(r.held, 0, sizeof r.held);
    if (all > sizeof few / sizeof *few) memory = (void **)flux__zalloc(all * sizeof *memory);
    else memset(few, 0, all * sizeof *few);
    r.buffer = (flux__buffer **)(void *)memory;
    r.ptr = memory ? memory + n : NULL;
    bool ok = memory && flux__allocate(&r);
    for (int k = 0; k < plan->nkernel && ok; k++) ok = flux__allocate_scratch(&r, k);
    const bool trace = flux__tracing(), profile = flux__profiling();
    double start = trace || profile ? flux__now() : 0;
    ok = ok && flux__run_kernels(&r, trace || profile);
    if (trace) flux__trace_event("plan", "evaluate", start, 0, "");
    if (profile) flux__profile_evaluation(flux__now() - start);
    if (r.buffer) flux__drop_kept(&r);
    if (ok) flux__settle_nodes(&r);
    for (int i = 0; i < FLUX__HELD; i++) flux__buffer_release(r.held[i]);
    for (int i = plan->nkernel - 1; r.buffer && i >= 0; i--)
        flux__buffer_release(r.buffer[plan->nnode * 2 + i]);
    for (int at = plan->nout - 1; r.buffer && at >= 0; at--)
        if (r.buffer[plan->out[at]]) flux__buffer_release(r.buffer[plan->out[at]]);
    if (memory != few) flux__free(memory);
    return ok ? 0 : -1;
}

FLUX__END_HOT

#endif /* FLUX__SCHEDULE_PLANS_H */
