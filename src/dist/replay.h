#ifndef FLUX__DIST_REPLAY_H
#define FLUX__DIST_REPLAY_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../schedule/kernel.h"
#include "../schedule/dispatch.h"
#include "../gpu/kernels.h"
#include "../gpu/devices.h"
#include "../gpu/copies.h"
#include "../gpu/launch.h"
#include "nccl_library.h"
#include "comm.h"
#include "handshakes.h"
#include "nccl.h"
#include "messages.h"

/* ---------------------------------------------------------------------- dist/replay.h
   A whole plan with its collectives as one graph of the driver. Kernels are
   nodes, as in the graph of a row (gpu/launch.h); the collectives that are
   finished together, and the copies that pack operands, are captured on NCCL's
   stream and become nodes that hold a graph. Kernels that need no result do not
   wait for them, so they run beside each other as they do without a graph.

   Invariant: NCCL asks that an operation is captured on all ranks or on none, and
   that all launch the graph of one capture. So the handshake of a plan's first
   collective carries an offer: a hash of all the plan's collectives, of how they
   are grouped, and of the number of the collective behind which this rank's
   graph was made (0: it has none and would make one). If all ranks make one
   offer, that handshake stands for the whole plan, or they make the graph when
   the plan has run, and agree whether all could. If not, a graph is dropped, and
   the plan runs kernel by kernel, as before. A rank whose launch fails reports it
   as one whose collective fails.

   What was captured keeps its addresses: another address means another graph, and
   when memory is given back to the driver all graphs are dropped.

   Rejected: capturing all of a plan from its stream (its kernels would have no
   nodes, whose arguments may change), and an offer in a message of its own. */

#ifndef FLUX__WITH_NCCL
#define FLUX__REPLAY_CALLS NULL, NULL, NULL
#else
#define FLUX__REPLAY_CALLS flux__replay_run, flux__replay_ran, flux__replay_forget

FLUX__BEGIN_COLD

enum {
    FLUX__REPLAY_AFTER = 2,                /* runs of a plan before its ranks offer a graph */
    FLUX__REPLAY_TRIES = 8,                /* graphs of a plan that are made, if they do not last */
    FLUX__REPLAY_LASTS = 64                /* launches after which one has lasted */
};

/* What a plan has of it (flux__plan.replay). */
typedef struct flux__replay {
    flux__nccl_graph it;
    flux_comm *comm;
    flux__nccl *nccl;                     /* NULL: the plan can't be one graph */
    int64_t row;                          /* hash of the collectives and their groups */
    int64_t made_at;                      /* the communicator's number when the graph was made */
    int runs, tries, lasted, told;        /* lasted: launches of the graph; told: nodes updated */
    int launches;                         /* of the plan's kernels */
    bool wanted;                          /* all ranks make the graph when the plan has run */
    bool newest;                          /* the graph's kernels have the newest arguments */
    void **node, *packed;                 /* of the kernels' launches; of the event behind the
                                             packing of the first collectives' operands */
    const void **address;                 /* of operands and results of collectives */
    int naddress;
    flux__buffer **buffer;                /* by kernel: the operands of a reduce_scatter, or NULL */
} flux__replay;

/* ---------------- a plan's collectives */

/* The kernels of collectives from `from` on that are to be finished before kernel number `at`:
   returns the number behind the last of them, or `from` if there are none. */
static int flux__group_end(const flux__plan *plan, int from, int at) {
    int end = from;
    for (int i = from; i < at; i++)
        if (plan->kernel[i].call && !plan->kernel[i].idle && plan->kernel[i].read_at <= at)
            end = i + 1;
    return end;
}

static const flux_tensor *flux__call_node(const flux__run *r, int i) {
    return r->g->node[r->plan->kernel[i].node];
}

/* The communicator, if the plan can be one graph: all of it runs on NCCL's device. */
static flux_comm *flux__replay_comm(const flux__run *r) {
    flux_comm *c = NULL;
    int version = 0;
    for (int i = 0; i < r->plan->nkernel; i++) {
        const flux__kernel *k = &r->plan->kernel[i];
        if (k->idle) continue;
        if (k->call) {
            const flux_tensor *t = flux__call_node(r, i);
            flux_comm *its = (flux_comm *)(intptr_t)t->arg.i[FLUX__CALL_COMM];
            const flux__header h = flux__header_of(t);
            if ((c && its != c) || !flux__nccl_takes(its, t->device, &h)) return NULL;
            c = its;
        }
    }
    for (int i = 0; i < r->plan->nkernel && c; i++) {
        const flux__kernel *k = &r->plan->kernel[i];
        if (!k->idle && !k->call && !(k->by && flux__same_device(k->device, c->nccl->device)))
            return NULL;
    }
    const bool can = c && c->nccl->library->call.GetVersion(&version) == 0 && version >= 21100;
    return can ? c : NULL;
}

/* The hash of a plan's collectives and of how they are grouped. */
static int64_t flux__replay_row(const flux__run *r) {
    const flux__plan *plan = r->plan;
    int64_t hash = 1;
    for (int i = 0, from = 0; i <= plan->nkernel; i++) {
        const bool ends = i == plan->nkernel || plan->kernel[i].waits;
        const int end = ends ? flux__group_end(plan, from, i) : from;
        for (; from < end; from++) {
            if (!plan->kernel[from].call || plan->kernel[from].idle) continue;
            const flux__header h = flux__header_of(flux__call_node(r, from));
            const int64_t word[] = { hash, flux__header_hash(&h), from == end - 1 };
            hash = flux__words_hash(word, 3);
        }
    }
    return hash;
}

/* The plan's, made when it first runs. NULL: memory ran out. */
static flux__replay *flux__replay_of(flux__run *r) {
    flux__plan *plan = r->plan;
    flux__replay *w = (flux__replay *)plan->replay;
    if (w) return w;
    if (!(w = (flux__replay *)flux__zalloc(sizeof *w))) return NULL;
    plan->replay = w;
    w->comm = flux__replay_comm(r);
    if (!w->comm) return w;
    size_t addresses = 0;
    for (int i = 0; i < plan->nkernel; i++) {
        const flux__kernel *k = &plan->kernel[i];
        if (k->ready) w->launches += ((const flux__gpu_kernel *)k->ready)->launches;
        if (k->call) addresses += 1 + (size_t)k->noperand;
    }
    w->node = (void **)flux__zalloc((size_t)w->launches * sizeof *w->node);
    w->address = (const void **)flux__zalloc(addresses * sizeof *w->address);
    w->buffer = (flux__buffer **)flux__zalloc((size_t)plan->nkernel * sizeof *w->buffer);
    w->naddress = (int)addresses;
    w->row = flux__replay_row(r);
    if (w->node && w->address && w->buffer) w->nccl = w->comm->nccl;
    return w;
}

/* How many of the addresses of the collectives' operands and results are those kept; `keep`: they
   are kept from now on. */
static int flux__replay_addresses(flux__run *r, flux__replay *w, bool keep) {
    int at = 0, same = 0;
    for (int i = 0; i < r->plan->nkernel; i++) {
        const flux__kernel *k = &r->plan->kernel[i];
        for (int o = -1; k->call && o < k->noperand; o++, at++) {
            const void *p = o < 0 ? r->ptr[r->plan->nleaf + k->node]
                                  : k->operand[o].src < 0 ? NULL
                                                          : flux__operand_ptr(r, &k->operand[o]);
            same += w->address[at] == p;
            if (keep) w->address[at] = p;
        }
    }
    return same;
}

/* Destroys the graph, if there is one. */
static void flux__replay_drop(flux__replay *w, int nkernel) {
    void *before;
    flux__gpu *g = w->nccl->gpu;
    flux__hold();
    flux__gpu_lock(g);
    if (w->it.graph && flux__gpu_there(g, &before)) {
        flux__gpu_watch(g, NULL);         /* a launch of it may be under way */
        g->driver->stream_wait(g->stream);
        flux__mutex_lock(&flux__nccl_lock);
        if (w->it.graph) flux__nccl_graph_free(w->nccl, &w->it);
        flux__mutex_unlock(&flux__nccl_lock);
        g->driver->leave(before);
    }
    flux__gpu_unlock(g);
    flux__tell();
    for (int i = 0; i < nkernel; i++) {
        if (w->buffer[i]) flux__buffer_release(w->buffer[i]);
        w->buffer[i] = NULL;
    }
}

/* See flux__plan_call. */
static void flux__replay_forget(flux__plan *plan) {
    flux__replay *w = (flux__replay *)plan->replay;
    if (w->nccl) flux__replay_drop(w, plan->nkernel);
    flux__free(w->node);
    flux__free((void *)w->address);
    flux__free(w->buffer);
    flux__free(w);
    plan->replay = NULL;
}

/* ---------------- making the graph */

/* The nodes that the next node comes after. */
typedef struct flux__tail { void *node[4]; size_t n; } flux__tail;

static void flux__tail_add(flux__tail *t, void *node) {
    for (size_t i = 0; i < t->n; i++)
        if (t->node[i] == node) return;
    if (node) t->node[t->n++] = node;
}
static void flux__tail_set(flux__tail *t, void *node) { t->node[0] = node, t->n = 1; }

/* Adds what is captured, which this ends, as a node behind `after`. */
static bool flux__capture_end(const flux__replay *w, bool ok, const flux__tail *after,
                              void **node) {
    const flux__driver *driver = w->nccl->gpu->driver;
    void *graph = NULL;
    ok = driver->captured(w->nccl->stream, &graph) == 0 && ok;
    ok = ok && driver->graph_child(node, w->it.graph, after->node, after->n, graph) == 0;
    if (graph) driver->graph_free(graph, NULL);
    return ok;
}

typedef struct flux__captured_copy { const flux__nccl *nccl; int count; } flux__captured_copy;

/* Counts a copy of an operand (without NCCL's stream), or queues it. */
static bool flux__copy_captured(void *ctx, void *to, const void *from, size_t bytes) {
    flux__captured_copy *c = (flux__captured_copy *)ctx;
    c->count++;
    return !c->nccl || bytes == 0 ||
           c->nccl->gpu->driver->across(to, from, bytes, c->nccl->stream) == 0;
}

/* A collective's operands and its result: where they are, see flux__message_place. */
static flux__nccl_task flux__replay_task(const flux__run *r, const flux__replay *w, int i,
                                        flux__header *h, char **packed) {
    const flux__kernel *k = &r->plan->kernel[i];
    flux__nccl_task task;
    *h = flux__header_of(flux__call_node(r, i));
    const size_t size = flux__dtypes[h->dtype].size;
    task.header = h, task.packed = -1;
    task.out = r->ptr[r->plan->nleaf + k->node];
    *packed = w->buffer[i] ? (char *)w->buffer[i]->ptr : (char *)task.out;
    if (h->kind == FLUX__ALLGATHER) *packed += (size_t)w->comm->rank * (size_t)h->count * size;
    task.in = *packed;
    return task;
}

/* Adds the copies that pack the operands of collective number i. */
static bool flux__replay_pack(flux__run *r, const flux__replay *w, int i, flux__tail *main) {
    const flux__kernel *k = &r->plan->kernel[i];
    flux__captured_copy counted = { NULL, 0 }, queued = { w->nccl, 0 };
    flux__header h;
    char *to;
    void *node;
    flux__replay_task(r, w, i, &h, &to);
    flux__message_pack(r, k, to, flux__copy_captured, &counted);
    if (counted.count == 0) return true;
    if (w->nccl->gpu->driver->capture(w->nccl->stream) != 0) return false;
    const bool ok = flux__message_pack(r, k, to, flux__copy_captured, &queued);
    if (!flux__capture_end(w, ok, main, &node)) return false;
    flux__tail_set(main, node);
    return true;
}

/* Adds the collectives of kernels `from` to `end` - 1 as one group. begun: behind the packing of
   the last one's operands; side: the group before, which is replaced by this one. */
static bool flux__replay_group(const flux__run *r, flux__replay *w, int from, int end,
                              const flux__tail *begun, void **side) {
    flux__nccl_task task[FLUX__MESSAGES_MOST];
    flux__header header[FLUX__MESSAGES_MOST];
    flux__nccl *n = w->nccl;
    const flux__driver *driver = n->gpu->driver;
    flux__tail after = *begun;
    char why[300], *packed;
    int count = 0;
    for (int i = from; i < end; i++) {
        if (!r->plan->kernel[i].call || r->plan->kernel[i].idle) continue;
        if (count == FLUX__MESSAGES_MOST) return false;
        task[count] = flux__replay_task(r, w, i, &header[count], &packed);
        count++;
    }
    if (!*side && driver->graph_event(&w->packed, w->it.graph, begun->node, begun->n,
                                      n->turn[0].packed) != 0) return false;
    flux__tail_add(&after, *side ? *side : w->packed);
    if (driver->capture(n->stream) != 0) return false;
    const bool ok = flux__nccl_group(n, task, count, why, sizeof why);
    return flux__capture_end(w, ok, &after, side);
}

/* Adds a kernel's launches. */
static bool flux__replay_kernel(const flux__replay *w, const flux__kernel *k, int *at,
                               flux__tail *main) {
    const flux__gpu_kernel *gk = (const flux__gpu_kernel *)k->ready;
    for (int l = 0; l < gk->launches; l++, (*at)++) {
        const flux__gpu_step *step = &gk->step[l];
        if (w->nccl->gpu->driver->graph_add(&w->node[*at], w->it.graph, main->node, main->n,
                                            step->fn->function, step->grid, step->threads,
                                            step->shared, gk->args) != 0)
            return false;
        flux__tail_set(main, w->node[*at]);
    }
    return true;
}

/* Adds all of a plan, whose kernels have the arguments of the run that has just ended. */
static bool flux__replay_nodes(flux__run *r, flux__replay *w) {
    const flux__plan *plan = r->plan;
    flux__tail main = { { NULL }, 0 }, begun = main;
    void *side = NULL;
    bool ok = true;
    for (int i = 0, from = 0, at = 0; i <= plan->nkernel && ok; i++) {
        const bool last = i == plan->nkernel, ends = last || plan->kernel[i].waits;
        const int end = ends ? flux__group_end(plan, from, i) : from;
        ok = end == from || flux__replay_group(r, w, from, end, &begun, &side);
        if (ends) flux__tail_add(&main, side);
        from = end;
        if (!ok || last || plan->kernel[i].idle) continue;
        if (plan->kernel[i].call) ok = flux__replay_pack(r, w, i, &main), begun = main;
        else ok = flux__replay_kernel(w, &plan->kernel[i], &at, &main);
    }
    return ok;
}

/* Memory for the operands of collectives whose result is shorter. */
static bool flux__replay_buffers(flux__run *r, const flux__replay *w) {
    for (int i = 0; i < r->plan->nkernel; i++) {
        const flux__kernel *k = &r->plan->kernel[i];
        if (!k->call || k->idle) continue;
        const flux__header h = flux__header_of(flux__call_node(r, i));
        if (h.kind != FLUX__REDUCE_SCATTER) continue;
        w->buffer[i] = flux__buffer_new(k->device, (size_t)h.count * flux__dtypes[h.dtype].size,
                                        NULL);
        if (!w->buffer[i]) return false;
    }
    return true;
}

/* Makes the graph of a plan that has just run. */
static bool flux__replay_make(flux__run *r, flux__replay *w) {
    flux__nccl *n = w->nccl;
    void *before;
    flux__gpu *g;
    if (!flux__replay_buffers(r, w) ||
        !(g = flux__gpu_enter(n->device.backend, n->device.id, &before))) return false;
    flux__mutex_lock(&flux__nccl_lock);
    w->it.next = n->graphs, n->graphs = &w->it;
    w->it.graph = w->it.exec = NULL;
    const bool ok = n->handle && g->driver->graph(&w->it.graph) == 0 && flux__replay_nodes(r, w) &&
                    g->driver->graph_ready(&w->it.exec, w->it.graph) == 0;
    if (ok) g->counters.graphs++;
    else flux__nccl_graph_free(n, &w->it);
    flux__mutex_unlock(&flux__nccl_lock);
    flux__gpu_leave(g, before);
    flux__replay_addresses(r, w, true);
    w->newest = false, w->told = w->lasted = 0;
    return ok;
}

/* ---------------- running it */

/* Marks all kernels as having other arguments than a graph has. */
static void flux__replay_outdated(flux__run *r) {
    for (int i = 0; i < r->plan->nkernel; i++)
        if (r->plan->kernel[i].ready)
            ((flux__gpu_kernel *)r->plan->kernel[i].ready)->stale = true;
}

/* Gives the graph's kernels this run's arguments. The device is current. */
static bool flux__replay_update(flux__run *r, flux__replay *w, flux__gpu *g) {
    if (!w->newest) flux__replay_outdated(r);
    bool ok = true;
    for (int i = 0, at = 0; i < r->plan->nkernel && ok; i++) {
        const flux__kernel *k = &r->plan->kernel[i];
        flux__gpu_kernel *gk = (flux__gpu_kernel *)k->ready;
        if (!gk || k->idle) continue;
        ok = flux__gpu_args(r, k, g);
        for (int l = 0; l < gk->launches && ok; l++, at++) {
            const flux__gpu_step *step = &gk->step[l];
            if (!gk->stale) continue;
            ok = g->driver->graph_set(w->it.exec, w->node[at], step->fn->function, step->grid,
                                      step->threads, step->shared, gk->args) == 0;
            g->counters.graph_updates++, w->told++;
        }
        gk->stale = false;
    }
    for (int i = 0; i < w->naddress && ok; i++)
        ok = !w->address[i] || flux__gpu_await(g, w->address[i], 1);
    w->newest = ok;
    return ok;
}

/* Whether the graph can be launched in this run: with new arguments, where its addresses are. */
static bool flux__replay_ready(flux__run *r, flux__replay *w) {
    void *before;
    if (!w->it.exec || w->told >= FLUX__GRAPH_EXEC_MOST ||
        flux__replay_addresses(r, w, false) != w->naddress) return false;
    flux__gpu *g = flux__gpu_enter(w->nccl->device.backend, w->nccl->device.id, &before);
    if (!g) return false;
    flux__mutex_lock(&flux__nccl_lock);
    const bool ok = w->it.exec && flux__replay_update(r, w, g);
    flux__mutex_unlock(&flux__nccl_lock);
    flux__gpu_leave(g, before);
    return ok;
}

/* Launches the graph. False: it failed, and the communicator is broken. */
static bool flux__replay_launch(flux__replay *w, const flux__header *h) {
    flux__nccl *n = w->nccl;
    char text[500], number[FLUX__GPU_NUMBER];
    void *before;
    flux__gpu *g = flux__gpu_enter(n->device.backend, n->device.id, &before);
    int code = -1;
    const int at = g ? flux__nccl_take(n, g) : -1;
    flux__mutex_lock(&flux__nccl_lock);
    if (at >= 0 && n->handle && w->it.exec)
        code = g->driver->graph_event_set(w->it.exec, w->packed, n->turn[at].packed);
    if (code == 0) code = g->driver->graph_launch(w->it.exec, g->stream);
    if (code == 0 && !flux__nccl_queued(n, at, h, g->stream)) code = -1;
    if (code == 0) {
        g->counters.graph_launches++, w->lasted++;
        g->counters.launches += w->launches;
    }
    if (g && code > 0 && !g->lost && g->driver->lost(code)) g->lost = code;
    snprintf(text, sizeof text, "%s, collective %lld: launching the graph of it: %.200s",
             flux__header_text(h).s, (long long)h->number,
             code > 0 ? n->gpu->driver->error(code, number) : "the GPU can't be used");
    flux__mutex_unlock(&flux__nccl_lock);
    if (g) flux__gpu_leave(g, before);
    if (code == 0) return true;
    flux__report_send(w->comm, h, true);
    return flux__comm_break(w->comm, text);
}

/* What this rank offers: 0: nothing. */
static int64_t flux__replay_offer(flux__run *r, flux__replay *w) {
    const bool ready = flux__replay_ready(r, w);
    if (w->lasted == FLUX__REPLAY_LASTS) w->tries = 0;
    if (!ready && w->tries >= FLUX__REPLAY_TRIES) return 0;
    const int64_t word[] = { w->row, ready ? w->made_at : 0 };
    if (!ready) flux__replay_drop(w, r->plan->nkernel);
    return flux__words_hash(word, 2);
}

/* All collectives of the plan are done with: they are counted, and nothing need run them later. */
static void flux__replay_passed(flux__run *r, flux_comm *c) {
    for (int i = 0; i < r->plan->nkernel; i++)
        if (r->plan->kernel[i].call && c->last == flux__call_node(r, i)) flux__comm_forget(c);
    for (int i = 0; i < r->plan->nkernel; i++)
        c->number += r->plan->kernel[i].call && !r->plan->kernel[i].idle;
    c->number--;                          /* the first one, by its handshake */
}

/* See flux__plan_call: shakes hands for all collectives of the plan, if this rank has an offer, and
   launches the graph if all have that one. */
static int flux__replay_run(flux__run *r) {
    flux__replay *w = flux__replay_of(r);
    FLUX__ZEROED(flux__exchange, x);
    flux_comm *c = w ? w->comm : NULL;
    if (!w || !w->nccl || c->nccl != w->nccl || c->broken || c->first || !w->nccl->gpu->replaying)
        return 0;
    if (w->runs < FLUX__REPLAY_AFTER) return w->runs++, 0;
    if (!(x.offer = flux__replay_offer(r, w))) return 0;
    int first = 0;
    while (!r->plan->kernel[first].call || r->plan->kernel[first].idle) first++;
    const flux__header h = flux__header_of(flux__call_node(r, first));
    flux__header on_gpu = h;
    on_gpu.on_gpu = 1;
    if (!flux__exchange_start(c, &x, &on_gpu) || !flux__exchange_finish(c, &x)) return -1;
    const bool agreed = x.v[2] == -x.v[3];
    if (agreed && w->it.graph) {
        const bool ok = flux__replay_launch(w, &x.header);
        if (ok) flux__replay_passed(r, c);
        return ok ? 1 : -1;
    }
    c->shaken = true;
    w->wanted = agreed;
    if (!agreed) flux__replay_drop(w, r->plan->nkernel);
    if (w->newest) flux__replay_outdated(r);              /* for the graphs of its rows */
    w->newest = false;
    return 0;
}

/* See flux__plan_call: makes the graph, if all ranks are about to. */
static bool flux__replay_ran(flux__run *r, bool ok) {
    flux__replay *w = (flux__replay *)r->plan->replay;
    FLUX__ZEROED(flux__header, h);
    flux_comm *c = w ? w->comm : NULL;
    if (!c) return ok;
    c->shaken = false;
    if (!w->wanted || c->broken) return ok;
    uint8_t failed = !(ok && flux__replay_make(r, w));
    w->wanted = false;
    w->tries++;
    h.kind = FLUX__ALLREDUCE, h.op = FLUX_MAX, h.dtype = FLUX_U8, h.count = 1;
    if (!flux__collective_now(c, &h, &failed, NULL)) failed = 1, ok = false;
    w->made_at = c->number;
    if (!failed) return ok;
    w->tries = FLUX__REPLAY_TRIES;         /* on all ranks alike */
    flux__replay_drop(w, r->plan->nkernel);
    flux__note(FLUX_LOG_DEBUG, "distributed.replay", false,
               "distributed: a plan's collectives can't be replayed: they are called one by one");
    return ok;
}

FLUX__END_COLD
#endif /* FLUX__WITH_NCCL */

#endif /* FLUX__DIST_REPLAY_H */
