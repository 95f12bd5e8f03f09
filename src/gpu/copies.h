#ifndef FLUX__GPU_COPIES_H
#define FLUX__GPU_COPIES_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/workers.h"
#include "kernels.h"
#include "devices.h"

/* ---------------------------------------------------------------------- gpu/copies.h
   Device memory and copies: allocation, uploads and downloads through pinned
   memory, copies within and between devices, and copies ahead, by which a
   loader's next batch is uploaded on a second stream while the device works on
   the present one.

   Invariant: a copy ahead starts when all that was queued before it is done,
   since its destination may have been in use there, and the main stream waits
   for it before it uses that memory again, for whatever purpose (flux__gpu_await
   compares addresses). Pinned memory is a ring of FLUX__SLOTS slots: a busy slot
   belongs to one thread, and a slot's event says when the device has done its
   copy; no thread waits for a slot while it holds one. Slots are filled and emptied
   by the pool's threads together, since one alone is slower than the bus. An upload
   returns when its copies are queued, a download when the data have arrived. Memory
   is freed only after both streams are drained. Indices that were out of range become an error
   at a download or wait (flux__gpu_check). */

FLUX__BEGIN_LEAN

static void *flux__gpu_alloc(int backend, int id, size_t bytes) {
    void *before, *p = NULL;
    flux__gpu *g = flux__gpu_enter(backend, id, &before);
    if (!g) return NULL;
    int code = g->driver->alloc(&p, bytes);
    if (code == 0) g->counters.allocations++;
    else p = NULL;
    /* 2 is out of memory in CUDA and HIP; the caller reports that */
    if (code != 0 && code != 2) flux__gpu_ok(g, code, "allocating");
    flux__gpu_leave(g, before);
    return p;
}

/* Waits, without the device lock, until both streams have done all that was queued. */
static int flux__gpu_drain(flux__gpu *g) {
    void *stream[2] = { g->stream, g->copies };
    unsigned comes = g->comes;
    int code = 0;
    g->counters.waits++;
    flux__gpu_unlock(g);
    flux__gpu_watch(g, NULL);
    for (int i = 0; i < 2 && code == 0; i++)
        if (stream[i]) code = g->driver->stream_wait(stream[i]);
    flux__gpu_lock(g);
    if (code == 0 && g->comes - comes < g->comes - g->came) g->came = comes;
    return code;
}

/* Gives the stream on which work is queued; with `set`, *stream is that from now on (NULL: our
   own), and all that was queued before is done. */
static int flux__gpu_stream(int backend, int id, void **stream, bool set) {
    void *before;
    flux__gpu *g = flux__gpu_enter(backend, id, &before);
    if (!g) return -1;
    bool ok = !set || flux__gpu_ok(g, flux__gpu_drain(g), "waiting for it");
    if (set && ok) g->stream = *stream ? *stream : g->own;
    *stream = g->stream;
    flux__gpu_leave(g, before);
    return ok ? 0 : -1;
}

/* Frees device memory; of a device that is closed or was opened before a fork, nothing. */
static void flux__gpu_free(int backend, int id, void *p) {
    void *before;
    flux__gpu *g = &flux__gpus[backend - FLUX__CUDA_BACKEND][id];
    flux__hold();
    flux__gpu_lock(g);
    if (g->open && flux__gpu_there(g, &before)) {
        flux__gpu_drain(g);               /* release need not wait for work that uses p */
        for (flux__gpu_guest *it = g->guests; it; it = it->next) it->trim(it);
        g->driver->release(p);
        g->driver->leave(before);
    }
    flux__gpu_unlock(g);
    flux__tell();
}

/* ---- copies ahead */

/* Makes the second stream and its events when they are first needed; if that fails, copies use
   the main stream. */
static bool flux__copies_open(flux__gpu *g) {
    if (g->copies || g->alone) return g->copies != NULL;
    bool ok = g->driver->stream(&g->copies) == 0;
    if (!ok) g->copies = NULL;
    ok = ok && g->driver->event(&g->reached) == 0;
    for (int i = 0; i < FLUX__COMING && ok; i++) ok = g->driver->event(&g->coming[i].event) == 0;
    if (!ok) flux__copies_close(g);
    g->alone = !ok;
    return ok;
}

/* The stream for an upload: the second one, after all that the main stream has queued so far,
   if the calling thread uploads ahead; else the main one. */
static void *flux__copies_begin(flux__gpu *g) {
    flux__thread *t = flux__self();
    bool apart = t && t->ahead && flux__copies_open(g) &&
                 g->driver->event_record(g->reached, g->stream) == 0 &&
                 g->driver->event_before(g->reached, g->copies) == 0;
    return apart ? g->copies : g->stream;
}

/* Makes the main stream wait for the copies ahead up to number `last`. */
static bool flux__copies_wait(flux__gpu *g, unsigned last) {
    if (!flux__gpu_ok(g, g->driver->event_before(g->coming[last % FLUX__COMING].event, g->stream),
                      "waiting for a copy"))
        return false;
    g->came = last + 1;
    return true;
}

/* Ends a copy ahead to `at`: records its event, so that flux__gpu_await finds it, even if only
   a part was queued. */
static bool flux__copies_end(flux__gpu *g, const void *at, size_t bytes) {
    bool ok = g->comes - g->came < FLUX__COMING || flux__copies_wait(g, g->came);
    unsigned i = g->comes % FLUX__COMING;
    ok = ok && flux__gpu_ok(g, g->driver->event_record(g->coming[i].event, g->copies),
                            "recording an event");
    if (ok) g->coming[i].at = at, g->coming[i].bytes = bytes, g->comes++;
    else g->driver->stream_wait(g->copies);              /* then none is under way */
    g->counters.ahead++;
    return ok;
}

/* Makes the main stream wait for copies ahead to this memory, if there are any, so that what it
   queues next may use it. */
static bool flux__gpu_await(flux__gpu *g, const void *p, size_t bytes) {
    uintptr_t from = (uintptr_t)p;
    for (unsigned i = g->comes; i != g->came; i--) {
        uintptr_t at = (uintptr_t)g->coming[(i - 1) % FLUX__COMING].at;
        if (from < at + g->coming[(i - 1) % FLUX__COMING].bytes && at < from + bytes)
            return flux__copies_wait(g, i - 1);
    }
    return true;
}

/* ---- copies */

/* Takes a slot whose last copy is done, waiting for that. Returns -1 after an error, or if all
   slots are busy and `wait` is false. */
static int flux__slot_take(flux__gpu *g, bool wait) {
    for (;;) {
        for (unsigned i = 0; i < FLUX__SLOTS; i++) {
            unsigned n = (g->turn + i) % FLUX__SLOTS;
            flux__slot *s = &g->slot[n];
            if (s->busy) continue;
            g->turn = n + 1;
            s->busy = true;
            if (!s->used || flux__gpu_sleep(g, s->event, "waiting for a copy"))
                return s->used = false, (int)n;
            s->busy = false;
            return -1;
        }
        if (!wait) return -1;
        flux__gpu_unlock(g);              /* other threads have all slots, for as long as a copy
                                             takes */
        flux__thread_yield();
        flux__gpu_lock(g);
    }
}

/* Records the event of a slot whose copy the driver was asked to queue, with answer `code`;
   after an error waits for the stream, so that the slot is free. */
static bool flux__slot_sent(flux__gpu *g, int n, int code, const char *what, void *stream) {
    flux__slot *s = &g->slot[n];
    bool ok = flux__gpu_ok(g, code, what);
    if (ok)
        s->used = ok = flux__gpu_ok(g, g->driver->event_record(s->event, stream),
                                    "recording an event");
    if (!ok) g->driver->stream_wait(stream);
    return ok;
}

/* Bytes of the chunk at `at` of a copy of so many bytes: a slot's, or what is left. */
static size_t flux__gpu_chunk(size_t bytes, size_t at) {
    size_t most = FLUX__SLOT_BYTES;
    return bytes - at < most ? bytes - at : most;
}

static void flux__copy_piece(const void *src, char *to, size_t at, size_t n) {
    memcpy(to, (const char *)src + at, n);
}

/* A slot's filling or emptying, in pieces of `each` bytes by several threads. */
typedef struct flux__piecework {
    flux__filler put;
    const void *ctx;
    char *to;
    size_t at, n, each;
} flux__piecework;
static void flux__piece(void *p, int64_t i) {
    const flux__piecework *w = (const flux__piecework *)p;
    const size_t from = (size_t)i * w->each, left = w->n - from;
    w->put(w->ctx, w->to + from, w->at + from, left < w->each ? left : w->each);
}

/* put(ctx, to, at, n) by several threads, each from a multiple of `unit` bytes on. */
static void flux__put_together(flux__filler put, const void *ctx, char *to, size_t at, size_t n,
                               size_t unit) {
    flux__piecework w = { put, ctx, to, at, n, (FLUX__SLOT_BYTES / 8 + unit - 1) / unit * unit };
    flux__parallel((int64_t)((n + w.each - 1) / w.each), flux__piece, &w);
}

/* Uploads n bytes through a slot: `put` writes those from `at` on into pinned memory, without
   the lock. */
static bool flux__slot_upload(flux__gpu *g, void *dst, flux__filler put, const void *ctx, size_t at,
                              size_t n, size_t unit, void *stream) {
    int i = flux__slot_take(g, true);
    if (i < 0) return false;
    flux__gpu_unlock(g);
    flux__put_together(put, ctx, (char *)g->slot[i].memory, at, n, unit);
    flux__gpu_lock(g);
    bool ok = flux__slot_sent(g, i, g->driver->up(dst, g->slot[i].memory, n, stream),
                              "copying to it", stream);
    g->slot[i].busy = false;
    return ok;
}

/* Uploads bytes that `put` makes, slot by slot; each slot begins at a multiple of `unit` bytes.
   0, or -1 after an error. */
static int flux__gpu_fill(int backend, int id, void *dst, size_t bytes, size_t unit,
                          flux__filler put, const void *ctx) {
    void *before;
    size_t most = FLUX__SLOT_BYTES / unit * unit;
    flux__gpu *g = flux__gpu_enter(backend, id, &before);
    if (!g) return -1;
    void *stream = flux__copies_begin(g);
    bool apart = stream == g->copies, ok = apart || flux__gpu_await(g, dst, bytes);
    for (size_t at = 0; at < bytes && ok; at += most)
        ok = flux__slot_upload(g, (char *)dst + at, put, ctx, at,
                               bytes - at < most ? bytes - at : most, unit, stream);
    if (apart) ok = flux__copies_end(g, dst, bytes) && ok;
    g->counters.uploads++, g->counters.bytes_up += (int64_t)bytes;
    flux__gpu_leave(g, before);
    return ok ? 0 : -1;
}

static int flux__gpu_upload(int backend, int id, void *dst, const void *src, size_t bytes) {
    return flux__gpu_fill(backend, id, dst, bytes, 1, flux__copy_piece, src);
}

/* Queues a download to a slot, which the caller then holds; -1 as flux__slot_take, with *ok
   false after an error. */
static int flux__slot_download(flux__gpu *g, const void *src, size_t n, bool wait, bool *ok) {
    int64_t failures = flux__failures();
    int i = flux__slot_take(g, wait);
    *ok = !flux__failed_since(failures);
    if (i < 0) return -1;
    *ok = flux__slot_sent(g, i, g->driver->down(g->slot[i].memory, src, n, g->stream),
                          "copying from it", g->stream);
    if (*ok) return i;
    g->slot[i].busy = false;
    return -1;
}

/* Waits for a slot's download, copies the data out if it succeeded, and gives the slot back. */
static bool flux__slot_read(flux__gpu *g, int i, void *dst, size_t n) {
    bool ok = flux__gpu_sleep(g, g->slot[i].event, "waiting for its results");
    if (ok) {
        flux__gpu_unlock(g);
        flux__put_together(flux__copy_piece, g->slot[i].memory, (char *)dst, 0, n, 1);
        flux__gpu_lock(g);
    }
    g->slot[i].used = !ok, g->slot[i].busy = false;
    return ok;
}

/* Downloads: some chunks are under way while the one before is copied out. While it holds a slot
   it takes another only if one is free, so two threads cannot wait for each other. */
static bool flux__gpu_read(flux__gpu *g, char *dst, const char *src, size_t bytes) {
    enum { MOST = FLUX__SLOTS / 2 };
    int held[MOST];
    unsigned first = 0, next = 0;         /* chunks copied out; chunks asked for */
    size_t at = 0, taken = 0;
    bool ok = flux__gpu_await(g, src, bytes);
    while ((ok && at < bytes) || first != next) {
        while (ok && at < bytes && next - first < MOST) {
            int i = flux__slot_download(g, src + at, flux__gpu_chunk(bytes, at), first == next,
                                        &ok);
            if (i < 0) break;
            held[next++ % MOST] = i, at += FLUX__SLOT_BYTES;
        }
        if (first == next) continue;
        ok = flux__slot_read(g, held[first++ % MOST], dst + taken, flux__gpu_chunk(bytes, taken)) &&
             ok;
        taken += FLUX__SLOT_BYTES;
    }
    return ok;
}

/* Reads the status words if a kernel may have written them; an index out of range that it met
   is an error now. */
static bool flux__gpu_check(flux__gpu *g) {
    int64_t status[FLUX__STATUS_WORDS];
    if (!g->pending) return true;
    g->pending = false;
    if (!flux__gpu_read(g, (char *)status, (const char *)g->status, sizeof status)) {
        g->pending = true;
        return false;
    }
    if (!status[0]) return true;
    flux__fail("%s: index %lld (number %lld) is not within dim %lld of size %lld",
               status[5] ? "scatter_add" : "gather", (long long)status[1], (long long)status[2],
               (long long)status[3], (long long)status[4]);
    memset(status, 0, sizeof status);
    flux__slot_upload(g, g->status, flux__copy_piece, status, 0, sizeof status, 1,
                      g->stream);
    return false;
}

static int flux__gpu_download(int backend, int id, void *dst, const void *src, size_t bytes) {
    void *before;
    flux__gpu *g = flux__gpu_enter(backend, id, &before);
    if (!g) return -1;
    bool ok = flux__gpu_read(g, (char *)dst, (const char *)src, bytes);
    g->counters.downloads++, g->counters.bytes_down += (int64_t)bytes;
    ok = ok && flux__gpu_check(g);
    flux__gpu_leave(g, before);
    return ok ? 0 : -1;
}

/* Copies within a device, or to another of the same driver. Then the copy runs on the
   destination's stream, which waits for the source's, and the source's waits for the copy. */
static int flux__gpu_copy(int backend, int to, void *dst, int from, const void *src, size_t bytes) {
    void *before, *event = NULL;
    flux__gpu *a = flux__gpu_enter(backend, from, &before), *b;
    if (!a) return -1;
    if (to == from) {
        bool ok = flux__gpu_await(a, dst, bytes) && flux__gpu_await(a, src, bytes) &&
                  flux__gpu_ok(a, a->driver->across(dst, src, bytes, a->stream), "copying");
        flux__gpu_leave(a, before);
        return ok ? 0 : -1;
    }
    void *done = NULL;
    bool ok = flux__gpu_await(a, src, bytes) &&
              flux__gpu_ok(a, a->driver->event(&event), "making an event") &&
              flux__gpu_ok(a, a->driver->event_record(event, a->stream), "recording an event");
    flux__gpu_leave(a, before);
    b = ok ? flux__gpu_enter(backend, to, &before) : NULL;
    if (b) {
        bool queued = flux__gpu_await(b, dst, bytes) &&
                      flux__gpu_ok(b, b->driver->event_before(event, b->stream),
                                   "waiting for the other device") &&
                      flux__gpu_ok(b, b->driver->peer(dst, to, src, from, bytes, b->stream),
                                   "copying from the other device");
        ok = queued && flux__gpu_ok(b, b->driver->event(&done), "making an event") &&
             flux__gpu_ok(b, b->driver->event_record(done, b->stream), "recording an event");
        /* without its event the source's stream cannot wait for the copy: the host does */
        if (queued && !ok) b->driver->stream_wait(b->stream);
        flux__gpu_leave(b, before);
    }
    ok = ok && b != NULL;
    if (event && (a = flux__gpu_enter(backend, from, &before)) != NULL) {
        bool waits = !ok || flux__gpu_ok(a, a->driver->event_before(done, a->stream),
                                         "waiting for the copy");
        if (!waits) a->driver->event_wait(done);
        ok = ok && waits;
        a->driver->event_free(event);
        flux__gpu_leave(a, before);
    } else ok = false;
    if (done && (b = flux__gpu_enter(backend, to, &before)) != NULL) {
        b->driver->event_free(done);
        flux__gpu_leave(b, before);
    }
    return ok ? 0 : -1;
}

/* Free and total bytes of an open device's memory; not 0 if it cannot say. */
static int flux__gpu_memory(int backend, int id, size_t *available, size_t *total) {
    void *before;
    flux__gpu *g = &flux__gpus[backend - FLUX__CUDA_BACKEND][id];
    int code = -1;
    flux__gpu_lock(g);
    if (g->open && !g->lost && flux__gpu_there(g, &before)) {
        code = g->driver->memory(available, total);
        g->driver->leave(before);
    }
    flux__gpu_unlock(g);
    return code;
}

/* Waits for all that was queued on the device, and reports bad indices. */
static int flux__gpu_wait(int backend, int id) {
    void *before;
    flux__gpu *g = flux__gpu_enter(backend, id, &before);
    if (!g) return -1;
    const int64_t failures = flux__failures();
    bool ok = flux__gpu_ok(g, flux__gpu_drain(g), "waiting") && flux__gpu_check(g) &&
              !flux__failed_since(failures);
    flux__gpu_leave(g, before);
    return ok ? 0 : -1;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_COPIES_H */
