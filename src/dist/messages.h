#ifndef FLUX__DIST_MESSAGES_H
#define FLUX__DIST_MESSAGES_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_add */
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../schedule/kernel.h"
#include "../schedule/claims.h"
#include "../schedule/dispatch.h"
#include "../schedule/trace.h"
#include "nccl_library.h"
#include "comm.h"
#include "handshakes.h"
#include "nccl.h"

/* ---------------------------------------------------------------------- dist/messages.h
   Collectives as the schedule runs them: flux__message_start packs the operands
   of a node one behind the other and begins the handshake;
   flux__message_finish waits until the data have been exchanged. Between machines
   they travel meanwhile: the thread that evaluates takes all messages on between
   the parts of kernels (flux__thread.between).

   Invariant: messages of a communicator are begun and finished in the order in
   which they were started, whichever the schedule asks for. The data lie in the node's own
   buffer if that is host memory or NCCL does it, else in a copy that is moved to the device when
   it is complete. After a start the operands are not read any more. Of NCCL's, a finish means
   that they are queued: the device waits for them, and the host does not. */

FLUX__BEGIN_COLD

enum { FLUX__CALL_COMM = 2, FLUX__CALL_KIND, FLUX__CALL_OP, FLUX__CALL_ROOT };

/* Drops the communicator's hold on the collective recorded last: it runs now, or it is part of a
   graph that is about to. */
static void flux__comm_forget(flux_comm *c) {
    flux_tensor *last = c->last;
    c->last = NULL;
    flux__claims_lock();
    if (last && flux__unedge(last)) flux__tensor_free(last);
    flux__claims_unlock();
}

#ifdef FLUX_MPI
/* The collective that a node stands for. */
static flux__header flux__header_of(const flux_tensor *t) {
    FLUX__ZEROED(flux__header, f);
    f.kind = (int32_t)t->arg.i[FLUX__CALL_KIND];
    f.op = (int32_t)t->arg.i[FLUX__CALL_OP];
    f.root = (int32_t)t->arg.i[FLUX__CALL_ROOT];
    f.dtype = t->dtype;
    for (int i = 0; i < (int)t->arg.i[1]; i++) f.count += flux__size(t->in[i]);
    return f;
}

/* A collective between its start and its finish. */
struct flux__message {
    flux__message *next;
    const flux__kernel *kernel;
    flux__exchange exchange;
    char *data, *host;                    /* operands and result in host memory, see
                                             flux__exchange */
    void *out;                            /* the node's buffer */
    size_t bytes;                         /* size of the node's buffer */
    flux_device device;                   /* where that lies */
    bool on_gpu;                          /* NCCL does it: data and host are of the device */
    int packed;                           /* see flux__nccl_packed */
    flux__buffer *buffer;                 /* of data, where that is not `out` */
    double waited;                        /* flux_comm.waited when it was started */
    bool done, ok;
};

static void flux__message_free(flux__message *m) {
    if (m->buffer) flux__buffer_release(m->buffer);
    flux__free(m);
}

/* Finds the memory of the operands and that of the result (m->host). They are one, the node's
   buffer, or on a device a copy in host memory; but a reduction to one rank needs two. What lies
   elsewhere is one block of the pool's: operands, result. */
static bool flux__message_place(flux__message *m, const flux__header *h, const flux_comm *c) {
    const size_t elements = (size_t)h->count * (h->kind == FLUX__ALLGATHER ? (size_t)c->size : 1),
                 bytes = elements * flux__dtypes[h->dtype].size;
    const bool scatters = h->kind == FLUX__REDUCE_SCATTER,
               there = m->device.backend != FLUX__CPU_BACKEND && !m->on_gpu,
               two = m->on_gpu ? scatters : scatters || h->kind == FLUX__REDUCE_TO;
    const flux_device cpu = { FLUX__CPU_BACKEND, 0 };
    const size_t operands = there || two ? (bytes + 63) / 64 * 64 : 0,
                 result = there && two ? (m->bytes + 63) / 64 * 64 : 0;
    m->data = m->host = (char *)m->out;
    if (operands + result == 0) return true;
    m->buffer = flux__buffer_new(m->on_gpu ? m->device : cpu, operands + result, NULL);
    if (!m->buffer) return false;
    char *p = (char *)m->buffer->ptr;
    if (there || two) m->data = p;
    if (there) m->host = two ? p + operands : p;
    return true;
}

/* Copies bytes of an operand to where they are packed. */
typedef bool flux__pack(void *ctx, void *to, const void *from, size_t bytes);

static bool flux__message_copy(void *ctx, void *to, const void *from, size_t bytes) {
    const flux__message *m = (const flux__message *)ctx;
    const flux_device cpu = { 0, 0 };
    return flux__move_bytes(m->on_gpu ? m->device : cpu, to, m->device, from, bytes) == 0;
}

/* Has the operands of a kernel packed one behind the other, but those that are there already; of a
   reduce_scatter the part of each rank, of all operands. */
static bool flux__message_pack(flux__run *run, const flux__kernel *k, char *to, flux__pack *copy,
                               void *ctx) {
    const flux_tensor *t = run->g->node[k->node];
    const size_t size = flux__dtypes[t->dtype].size;
    const int n = (int)t->arg.i[1], parts = t->arg.i[FLUX__CALL_KIND] == FLUX__REDUCE_SCATTER
        ? ((const flux_comm *)(intptr_t)t->arg.i[FLUX__CALL_COMM])->size : 1;
    for (int at = 0; at < n * parts; at++) {
        const int i = at % n;
        const size_t bytes = (size_t)(flux__size(t->in[i]) / parts) * size;
        const char *from = flux__operand_ptr(run, &k->operand[i]) + (size_t)(at / n) * bytes;
        if (from != to && !copy(ctx, to, from, bytes))
            return FLUX__REFUSE("%s: %zu bytes could not be copied from the device", k->call->name,
                                bytes);
        to += bytes;
    }
    return true;
}

/* Marks where the device's stream has packed the operands. */
static bool flux__message_packed(const flux_comm *c, flux__message *m) {
#ifdef FLUX__WITH_NCCL
    if (m->on_gpu) m->packed = flux__nccl_packed(c->nccl);
#endif
    (void)c;
    return m->packed >= 0;
}

/* Sets the floating-point mode that C begins with, and returns the one before. */
static unsigned flux__plain_mode(void) {
    const unsigned mode = flux__float_mode();
    flux__set_float_mode(mode & ~(unsigned)(FLUX__ROUNDING | FLUX__FLUSH));
    return mode;
}

/* Takes a communicator's messages on, as far as they go without waiting; at most every 20 us. The
   data of one must not overtake those of an earlier one, or ranks would begin them in different
   orders. MPI may add numbers here: not in the kernels' floating-point mode, or it would be chance
   whether a denormal sum becomes 0. */
static void flux__messages_poll(void *comm) {
    flux_comm *c = (flux_comm *)comm;
    const double now = flux__now();
    if (now < c->poll_at) return;
    const unsigned mode = flux__plain_mode();
    for (flux__message *m = c->first; m && !c->broken; m = m->next) {
        flux__exchange_poll(c, &m->exchange);
        if (m->exchange.stage == FLUX__SHAKES) break;
    }
    flux__set_float_mode(mode);
    c->poll_at = now + 20e-6;
}

/* Has this thread's kernels poll while there are messages between machines. */
static void flux__messages_between(flux_comm *c) {
    flux__thread *t = flux__self();
    if (!t || c->one_host || (!c->first && t->between_of != c)) return;
    t->between = c->first ? flux__messages_poll : NULL;
    t->between_of = c;
}

/* Begins a message's handshake, unless that is done. */
static bool flux__message_shake(flux_comm *c, flux__exchange *x, const flux__header *h) {
    if (!c->shaken) return flux__exchange_start(c, x, h);
    c->shaken = false;
    x->header = *h;
    x->header.number = c->number - 1;
    x->stage = FLUX__ARRIVED;             /* NCCL has its data */
    x->begun = x->arrived = flux__now();
    return true;
}

/* Packs a collective's operands into its message, begins the handshake about it, and puts it behind
   the communicator's others. -1: memory ran out, or the operands could not be packed. */
static int flux__message_start(flux__run *run, flux__kernel *k) {
    const flux_tensor *t = run->g->node[k->node];
    flux_comm *c = (flux_comm *)(intptr_t)t->arg.i[FLUX__CALL_COMM];
    flux__header h = flux__header_of(t);
    flux__message *m = (flux__message *)flux__zalloc(sizeof *m), **at = &c->first;
    if (!m) return -1;
    if (c->last == t) flux__comm_forget(c);
    m->kernel = k;
    m->device = t->device;
    m->waited = c->waited;
    m->out = run->ptr[run->plan->nleaf + k->node];
#ifdef FLUX__WITH_NCCL
    h.on_gpu = m->on_gpu = flux__nccl_takes(c, m->device, &h);
#endif
    m->bytes = (size_t)flux__size(t) * flux__dtypes[t->dtype].size;
    const size_t mine = h.kind == FLUX__ALLGATHER ? (size_t)c->rank * (size_t)h.count : 0;
    if (!flux__message_place(m, &h, c) ||
        !flux__message_pack(run, k, m->data + mine * flux__dtypes[t->dtype].size,
                            flux__message_copy, m) ||
        !flux__message_packed(c, m)) {
        flux__message_free(m);
        return -1;
    }
    if (!m->on_gpu) m->exchange.data = m->data, m->exchange.out = m->host;
    if (!flux__message_shake(c, &m->exchange, &h)) {
        flux__message_free(m);
        return -1;
    }
    while (*at) at = &(*at)->next;
    *at = m;
    flux__messages_between(c);
    return 0;
}

/* Writes to the trace how long a message took, and how much of that kernels hid: meanwhile this
   rank has waited for so many seconds, for it or for others. */
static void flux__message_trace(const flux__message *m, double waited) {
    const flux__exchange *x = &m->exchange;
    const double took = x->arrived - x->begun, hidden = took - waited;
    char words[160];
    snprintf(words, sizeof words, "%s: %lld us, hidden %lld us", flux__header_text(&x->header).s,
             (long long)(took * 1e6), (long long)(hidden > 0 ? hidden * 1e6 : 0));
    flux__trace_span("collective", words, x->begun, x->arrived, (int64_t)m->bytes, "", 0);
}

/* Waits until a message's data have been exchanged, and puts the result where it belongs; those of
   NCCL are only shaken hands on. */
static void flux__message_run(flux_comm *c, flux__message *m) {
    const flux_device cpu = { 0, 0 };
    const flux__header *h = &m->exchange.header;
    const double start = flux__now();
    m->done = true;
    const unsigned mode = flux__plain_mode();
    m->ok = flux__exchange_finish(c, &m->exchange);
    flux__set_float_mode(mode);
    c->waited += flux__now() - start;
    if (m->ok && flux__tracing()) flux__message_trace(m, c->waited - m->waited);
    if (!m->ok || m->on_gpu || m->device.backend == FLUX__CPU_BACKEND) return;
    m->ok = flux__move_bytes(m->device, m->out, cpu, m->host, m->bytes) == 0 ||
            FLUX__REFUSE("%s: %zu bytes could not be copied to the device",
                         flux__collective_names[h->kind], m->bytes);
}

#ifdef FLUX__WITH_NCCL
enum { FLUX__MESSAGES_MOST = 64 };        /* in a group */

/* Queues those of the messages from `first` to `last` that NCCL does, as groups. */
static void flux__messages_queue(flux_comm *c, flux__message *first, const flux__message *last) {
    flux__nccl_task task[FLUX__MESSAGES_MOST];
    for (flux__message *m = first, *end; m; m = end) {
        int n = 0;
        for (end = m; end && n < FLUX__MESSAGES_MOST; end = end == last ? NULL : end->next) {
            if (!end->on_gpu || !end->ok) continue;
            const flux__header *h = &end->exchange.header;
            const size_t mine = h->kind != FLUX__ALLGATHER ? 0
                : (size_t)c->rank * (size_t)h->count * flux__dtypes[h->dtype].size;
            task[n].header = h, task[n].packed = end->packed;
            task[n].in = end->data + mine, task[n++].out = end->out;
        }
        if (n == 0 || flux__nccl_run(c, task, n)) continue;
        for (flux__message *f = m; f != end; f = f == last ? NULL : f->next)
            if (f->on_gpu) f->ok = false;
    }
}
#endif

/* Runs the messages that are not done, up to `last`. */
static void flux__messages_run(flux_comm *c, const flux__message *last) {
    flux__message *first = c->first;
    while (first->done) first = first->next;
    for (flux__message *m = first; m; m = m == last ? NULL : m->next) flux__message_run(c, m);
#ifdef FLUX__WITH_NCCL
    if (c->nccl) flux__messages_queue(c, first, last);
#endif
}

static int flux__message_finish(flux__run *run, flux__kernel *k) {
    flux_comm *c = (flux_comm *)(intptr_t)run->g->node[k->node]->arg.i[FLUX__CALL_COMM];
    flux__message **at = &c->first, *m = c->first, *last;
    while (m && m->kernel != k) m = m->next;
    FLUX__ASSERT(m != NULL);
    /* those behind it that are to be finished now, too, go with it */
    for (last = m; last->next && last->next->kernel->read_at <= k->read_at;) last = last->next;
    if (!m->done) flux__messages_run(c, last);
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    flux__messages_between(c);
    if (!m->ok) {                         /* MPI may still write to it: it is never freed */
        flux__atomic_add(&run->buffer[k->node]->refs, 1);
        return -1;
    }
    flux__message_free(m);
    return 0;
}
#endif /* FLUX_MPI */

FLUX__END_COLD

#endif /* FLUX__DIST_MESSAGES_H */
