#ifndef FLUX__DIST_NCCL_H
#define FLUX__DIST_NCCL_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../gpu/kernels.h"
#include "../gpu/devices.h"
#include "../device/choosing.h"
#include "mpi.h"
#include "nccl_library.h"
#include "comm.h"
#include "handshakes.h"

#ifdef FLUX__WITH_NCCL
/* ---------------------------------------------------------------------- dist/nccl.h
   NCCL and RCCL as the engine of collectives of tensors on GPUs: each rank has
   one GPU, that of its number on its machine. MPI still brings the ranks
   together, carries the unique id and the handshakes, and does what NCCL does
   not: tensors of the host or of another GPU, and minimum and maximum of
   floating-point numbers, of which NCCL drops NaN.

   Invariant: collectives run on a stream of their own. It waits for an event
   that the device's stream has recorded behind the packing of the operands
   (flux__nccl_packed), and the device's stream waits for an event behind the collective, as soon
   as it is queued. So kernels between start and finish run beside it, and
   whatever the device's stream does later comes after it: memory may be freed
   and used again as if there were one stream. The host waits for no collective.
   Before it waits for the device, it watches those that are not done
   (flux__nccl_watch): after an error of NCCL's, or where this rank's operands have been ready for
   longer than the time-out, it aborts the communicator, or it would wait for ever. What was
   computed of that collective's result is worthless then. Errors of handshakes come before
   anything is queued, and lose nothing.

   Rejected: blocking communicators (the init and the first collective wait for
   other ranks without end), and ncclAvg (the graph's division fuses). */

FLUX__BEGIN_COLD

enum { FLUX__NCCL_TURNS = 16 };

/* A collective that was started, in a ring of the newest ones, or a graph of several. An event
   recorded again stands for more work. */
typedef struct flux__nccl_turn {
    void *packed, *done;                  /* events behind the packing of operands and behind it */
    bool queued;                          /* and may not be done */
    double since;                         /* when its operands were seen to be ready; 0: not yet */
    flux__header header;
} flux__nccl_turn;

/* A graph with collectives in it, see dist/replay.h. NCCL waits for its end before a communicator
   ends or is aborted. */
typedef struct flux__nccl_graph {
    struct flux__nccl_graph *next;
    void *graph, *exec;                   /* NULL: it has been destroyed */
} flux__nccl_graph;

/* A rank's part of NCCL's communicator. It is never freed, as its device lists it. */
struct flux__nccl {
    flux__gpu_guest guest;                /* first, since a guest's address is that of all of it */
    flux_comm *comm;
    flux_device device;
    flux__gpu *gpu;
    const flux__nccl_library *library;
    void *handle, *stream;                /* ncclComm_t, or NULL: ended */
    flux__nccl_turn turn[FLUX__NCCL_TURNS];
    unsigned taken;                       /* turns so far */
    const flux__thread *thread;           /* which queues collectives, and may call MPI */
    flux__nccl_graph *graphs;             /* those that have captured collectives */
};

static flux__mutex flux__nccl_lock = FLUX__MUTEX_INIT;      /* guards handle, turns, graphs */

/* ---------------- calls */

/* Whether a call has succeeded, when it is no longer in progress. */
static bool flux__nccl_ok(const flux__nccl *n, int code, const char *call, char *why, size_t size) {
    const flux__nccl_calls *nccl = &n->library->call;
    const double end = flux__now() + n->comm->timeout;
    while (code == FLUX__NCCL_IN_PROGRESS && flux__now() < end) {
        int state = 0;
        code = nccl->CommGetAsyncError(n->handle, &state);
        if (code == 0) code = state;
        if (code == FLUX__NCCL_IN_PROGRESS) flux__thread_yield();
    }
    if (code == FLUX__NCCL_IN_PROGRESS)
        snprintf(why, size, "nccl%s: not done within %g s", call, n->comm->timeout);
    else if (code) snprintf(why, size, "nccl%s: %.200s", call, nccl->GetErrorString(code));
    return code == 0;
}

/* Destroys the driver's graph; a launch that is under way still comes to its end. */
static void flux__nccl_graph_free(flux__nccl *n, flux__nccl_graph *it) {
    flux__nccl_graph **at = &n->graphs;
    while (*at && *at != it) at = &(*at)->next;
    if (*at) *at = it->next;
    n->gpu->driver->graph_free(it->graph, it->exec);
    it->graph = it->exec = NULL;
}

/* Aborts the communicator: what it has queued ends. The device is current. */
static void flux__nccl_abort(flux__nccl *n) {
    while (n->graphs) flux__nccl_graph_free(n, n->graphs);
    if (n->handle) n->library->call.CommAbort(n->handle);
    n->handle = NULL;
    for (int i = 0; i < FLUX__NCCL_TURNS; i++) n->turn[i].queued = false;
}

/* ---------------- watching */

enum { FLUX__NCCL_DONE, FLUX__NCCL_GOES_ON, FLUX__NCCL_LATE, FLUX__NCCL_FAILED };

/* The oldest collective that is not done; the others wait for it. NULL: all are done, or there is
   an error, which a wait will tell. */
static flux__nccl_turn *flux__nccl_oldest(flux__nccl *n) {
    for (unsigned i = 0; i < FLUX__NCCL_TURNS; i++) {
        flux__nccl_turn *t = &n->turn[(n->taken + i) % FLUX__NCCL_TURNS];
        if (!t->queued) continue;
        t->queued = n->gpu->driver->event_query(t->done) == FLUX__NOT_READY;
        if (t->queued) return t;
    }
    return NULL;
}

/* How the oldest collective goes that is not done; all are aborted if it has failed or is late. */
static int flux__nccl_look(flux__nccl *n, void *event, flux__header *h, char *why, size_t size) {
    const flux__driver *driver = n->gpu->driver;
    const double most = n->comm->broken ? FLUX__GRACE : n->comm->timeout;
    int state = 0;
    if (!n->handle || (event && driver->event_query(event) == 0)) return FLUX__NCCL_DONE;
    flux__nccl_turn *t = flux__nccl_oldest(n);
    if (!t) return FLUX__NCCL_DONE;
    if (t->since == 0 && driver->event_query(t->packed) == 0) t->since = flux__now();
    *h = t->header;
    const int code = n->library->call.CommGetAsyncError(n->handle, &state);
    const bool late = t->since != 0 && flux__now() - t->since > most,
               failed = code || (state && state != FLUX__NCCL_IN_PROGRESS);
    if (!late && !failed) return FLUX__NCCL_GOES_ON;
    snprintf(why, size, "%s, collective %lld: %s: %.200s; what was computed of it on this device "
             "is worthless", flux__header_text(h).s, (long long)h->number,
             n->library->name, failed ? n->library->call.GetErrorString(code ? code : state)
                                      : "not done in time");
    flux__nccl_abort(n);
    return failed ? FLUX__NCCL_FAILED : FLUX__NCCL_LATE;
}

/* A guest's watch, see flux__gpu_guest. */
static bool flux__nccl_watch(flux__gpu_guest *it, void *event) {
    flux__nccl *n = (flux__nccl *)it;
    FLUX__ZEROED(flux__header, h);
    char why[400];
    int state;
    do {
        flux__mutex_lock(&flux__nccl_lock);
        state = flux__nccl_look(n, event, &h, why, sizeof why);
        flux__mutex_unlock(&flux__nccl_lock);
        if (state == FLUX__NCCL_GOES_ON) flux__thread_yield();
    } while (state == FLUX__NCCL_GOES_ON);
    if (state == FLUX__NCCL_DONE) return true;
    if (flux__self() != n->thread) return FLUX__REFUSE("%s", why);  /* n->thread tells the others */
    if (n->comm->broken) return FLUX__REFUSE("%s", why);
    if (state == FLUX__NCCL_LATE) return flux__give_up(n->comm, &h, true);
    flux__report_send(n->comm, &h, true);
    return flux__comm_break(n->comm, why);
}

/* ---------------- joining */

/* A guest's trim: graphs have addresses of memory that may be given back, and NCCL may have
   registered it. */
static void flux__nccl_trim(flux__gpu_guest *it) {
    flux__nccl *n = (flux__nccl *)it;
    flux__mutex_lock(&flux__nccl_lock);
    while (n->graphs) flux__nccl_graph_free(n, n->graphs);
    flux__mutex_unlock(&flux__nccl_lock);
}

static void flux__nccl_leave_gpu(flux__gpu_guest *it) {
    flux__nccl *n = (flux__nccl *)it;
    const flux__driver *driver = n->gpu->driver;
    flux__mutex_lock(&flux__nccl_lock);
    flux__nccl_abort(n);
    for (int i = 0; i < FLUX__NCCL_TURNS; i++) {
        flux__nccl_turn *t = &n->turn[i];
        if (t->packed) driver->event_free(t->packed);
        if (t->done) driver->event_free(t->done);
        t->packed = t->done = NULL;
    }
    if (n->stream) driver->stream_free(n->stream);
    n->stream = NULL;
    flux__mutex_unlock(&flux__nccl_lock);
}

/* The back end of flux_gpu, if its GPUs can talk by NCCL or RCCL here; 0: they can't, and why is
   told. No driver is opened where there is no such library. */
static int flux__nccl_backend(char *why, size_t size) {
    char text[2][300] = { "", "" };
    bool there[2] = { false, false };
    flux__mutex_lock(&flux__driver_lock);
    for (int i = 0; i < 2; i++)
        there[i] = flux__driver_of(FLUX__CUDA_BACKEND + i) &&
                   flux__nccl_open(FLUX__CUDA_BACKEND + i, text[i], sizeof text[i]);
    flux__mutex_unlock(&flux__driver_lock);
    const int b = there[0] || there[1] ? flux__choose(false, false) : FLUX__CPU_BACKEND,
              i = b - FLUX__CUDA_BACKEND;
    if (i >= 0 && i < 2 && there[i]) return b;
    if (i >= 0 && i < 2 && *text[i]) snprintf(why, size, "%s", text[i]);
    else if (there[0] || there[1]) snprintf(why, size, "no GPU that %s can serve works here",
                                            flux__nccls[!there[0]].name);
    else snprintf(why, size, "%s%s%s", text[0], *text[0] && *text[1] ? "; " : "", text[1]);
    return 0;
}

/* The smallest and the largest of the ranks' numbers. */
static bool flux__nccl_agree(const flux_comm *c, int64_t mine, int64_t *least, int64_t *most,
                             char *why, size_t size) {
    int64_t v[2] = { mine, -mine };
    const bool ok = flux__mpi_allreduce(c->data, v, 2, FLUX_I64, FLUX_MAX, NULL, why, size);
    *most = v[0], *least = -v[1];
    return ok;
}

/* Makes this rank's part of the communicator, and what it needs on the device, which is current. */
static bool flux__nccl_make(flux__nccl *n, flux__nccl_id id, char *why, size_t size) {
    const flux__driver *driver = n->gpu->driver;
    const flux__nccl_calls *nccl = &n->library->call;
    const flux_comm *c = n->comm;
    flux__nccl_config config;
    int code = driver->stream(&n->stream);
    for (int i = 0; i < FLUX__NCCL_TURNS && code == 0; i++) {
        code = driver->event(&n->turn[i].packed);
        if (code == 0) code = driver->event(&n->turn[i].done);
    }
    if (!flux__gpu_ok(n->gpu, code, "making a stream and events")) {
        snprintf(why, size, "no stream for collectives could be made");
        return false;
    }
    memset((void *)&config, 0, sizeof config);           /* .blocking is 0 */
    config.size = sizeof config;
    config.magic = (unsigned)FLUX__NCCL_MAGIC, config.version = FLUX__NCCL_VERSION;
    if (nccl->CommInitRankConfig)
        return flux__nccl_ok(n, nccl->CommInitRankConfig(&n->handle, c->size, id, c->rank, &config),
                             "CommInitRankConfig", why, size);
    return flux__nccl_ok(n, nccl->CommInitRank(&n->handle, c->size, id, c->rank), "CommInitRank",
                         why, size);
}

/* This rank's part, on the GPU of its number. NULL: why is told. */
static flux__nccl *flux__nccl_new(flux_comm *c, int backend, flux__nccl_id id, char *why,
                                  size_t size) {
    void *before;
    flux__nccl *n = (flux__nccl *)flux__zalloc(sizeof *n);
    const flux_device d = { backend, flux__own_gpu(backend) };
    snprintf(why, size, "out of memory");
    if (!n) return NULL;
    n->comm = c, n->device = d;
    n->library = &flux__nccls[backend - FLUX__CUDA_BACKEND];
    n->guest.watch = flux__nccl_watch, n->guest.leave = flux__nccl_leave_gpu;
    n->guest.trim = flux__nccl_trim;
    snprintf(why, size, "the GPU can't be used");
    n->gpu = flux__gpu_enter(d.backend, d.id, &before);
    if (!n->gpu) return flux__free(n), (flux__nccl *)NULL;
    const bool ok = flux__nccl_make(n, id, why, size);
    if (ok) n->guest.next = n->gpu->guests, n->gpu->guests = &n->guest;
    else flux__nccl_leave_gpu(&n->guest);
    flux__gpu_leave(n->gpu, before);
    if (ok) return n;
    flux__free(n);
    return NULL;
}

/* The unique id that rank 0 makes; false on every rank if it can't, or why is told. */
static bool flux__nccl_share_id(const flux_comm *c, int backend, flux__nccl_id *id, char *why,
                                size_t size) {
    const flux__nccl_calls *nccl = &flux__nccls[backend - FLUX__CUDA_BACKEND].call;
    char made[sizeof *id + 4] = { 0 };
    const int code = c->rank == 0 ? nccl->GetUniqueId(id) : 0;
    memcpy(made, id, sizeof *id);
    memcpy(made + sizeof *id, &code, sizeof code);
    if (!flux__mpi_broadcast(c->data, made, (int64_t)sizeof made, FLUX_U8, 0, NULL, why, size))
        return false;
    int failed;
    memcpy(id, made, sizeof *id);
    memcpy(&failed, made + sizeof *id, sizeof failed);
    if (failed) snprintf(why, size, "ncclGetUniqueId: %.200s", nccl->GetErrorString(failed));
    return failed == 0;
}

/* Has the ranks' GPUs talk by NCCL or RCCL, if all ranks can. False: why is told; the ranks that
   could do not, either. */
static bool flux__nccl_join(flux_comm *c, char *why, size_t size) {
    int64_t least, most;
    flux__nccl_id id;
    const int backend = flux__nccl_backend(why, size);
    memset((void *)&id, 0, sizeof id);
    if (!flux__nccl_agree(c, backend, &least, &most, why, size)) return false;
    if (least != most || backend == 0) {
        if (backend) snprintf(why, size, "not all ranks have %s",
                              flux__nccls[backend - FLUX__CUDA_BACKEND].name);
        return false;
    }
    if (!flux__nccl_share_id(c, backend, &id, why, size)) return false;
    c->nccl = flux__nccl_new(c, backend, id, why, size);
    char text[300];
    if (!flux__nccl_agree(c, c->nccl != NULL, &least, &most, text, sizeof text)) least = 0;
    if (least) return true;
    if (c->nccl) snprintf(why, size, "another rank's %s did not start", c->nccl->library->name);
    flux__nccl_end(c, false);
    return false;
}

static const char *flux__nccl_name(const flux_comm *c) { return c->nccl->library->name; }

/* Leaves; in good order if all ranks do. */
static void flux__nccl_end(flux_comm *c, bool well) {
    flux__nccl *n = c->nccl;
    char why[300];
    void *before;
    c->nccl = NULL;
    if (!n || !n->handle || !flux__gpu_enter(n->device.backend, n->device.id, &before)) return;
    const flux__nccl_calls *nccl = &n->library->call;
    if (well && n->graphs) {              /* launches may be under way */
        flux__nccl_watch(&n->guest, NULL);
        n->gpu->driver->stream_wait(n->gpu->stream);
    }
    flux__mutex_lock(&flux__nccl_lock);
    while (n->graphs) flux__nccl_graph_free(n, n->graphs);
    well = well && (!nccl->CommFinalize || flux__nccl_ok(n, nccl->CommFinalize(n->handle),
                                                         "CommFinalize", why, sizeof why));
    if (well && nccl->CommDestroy(n->handle) == 0) n->handle = NULL;
    flux__mutex_unlock(&flux__nccl_lock);
    flux__nccl_leave_gpu(&n->guest);
    flux__gpu_leave(n->gpu, before);
}

/* ---------------- collectives */

/* Whether NCCL does a collective whose tensors are on the device d. All ranks say the same, or
   their handshakes differ. */
static bool flux__nccl_takes(const flux_comm *c, flux_device d, const flux__header *h) {
    const bool folds = h->kind == FLUX__ALLREDUCE || h->kind == FLUX__REDUCE_TO ||
                       h->kind == FLUX__REDUCE_SCATTER;
    return c->nccl && flux__same_device(d, c->nccl->device) &&
           !(folds && flux__dtypes[h->dtype].real && (h->op == FLUX_MIN || h->op == FLUX_MAX));
}

/* The number of a turn whose last collective is done, which the host waits for if so many others
   have been queued since; -1 on error. */
static int flux__nccl_take(flux__nccl *n, flux__gpu *g) {
    const int at = (int)(n->taken++ % FLUX__NCCL_TURNS);
    flux__nccl_turn *t = &n->turn[at];
    if (!t->done || (t->queued && g->driver->event_query(t->done) != 0 &&
                     !flux__gpu_sleep(g, t->done, "waiting for a collective"))) return -1;
    t->queued = false;
    return at;
}

/* Marks the point in the device's stream where a collective's operands are packed: the number of
   its turn, or -1 on error. */
static int flux__nccl_packed(flux__nccl *n) {
    void *before;
    flux__gpu *g = flux__gpu_enter(n->device.backend, n->device.id, &before);
    if (!g) return -1;
    const int at = flux__nccl_take(n, g);
    const bool ok = at >= 0 &&
                    flux__gpu_ok(g, g->driver->event_record(n->turn[at].packed, g->stream),
                                 "recording an event");
    flux__gpu_leave(g, before);
    return ok ? at : -1;
}

static int flux__nccl_type(int dtype) {
    static const int types[] = { FLUX__NCCL_FLOAT32, FLUX__NCCL_FLOAT64, FLUX__NCCL_FLOAT16,
                                 FLUX__NCCL_BFLOAT16, FLUX__NCCL_INT32, FLUX__NCCL_INT64,
                                 FLUX__NCCL_UINT8, FLUX__NCCL_UINT8 };
    return types[dtype];
}
/* Of bools a sum is "any", a product "all". */
static int flux__nccl_op(int dtype, int op) {
    if (op == FLUX_SUM) return dtype == FLUX_BOOL ? FLUX__NCCL_MAX : FLUX__NCCL_SUM;
    if (op == FLUX_PROD) return dtype == FLUX_BOOL ? FLUX__NCCL_MIN : FLUX__NCCL_PROD;
    return op == FLUX_MIN ? FLUX__NCCL_MIN : FLUX__NCCL_MAX;
}

/* Queues a collective: its operands lie at `in`, the result goes to `out`. in is out, but for a
   reduce_scatter, and for an allgather, where it is this rank's part of it. */
static int flux__nccl_call(const flux__nccl *n, const flux__header *h, const void *in, void *out) {
    const flux__nccl_calls *nccl = &n->library->call;
    const size_t count = (size_t)h->count;
    const int type = flux__nccl_type(h->dtype), op = flux__nccl_op(h->dtype, h->op);
    if (count == 0) return 0;
    switch (h->kind) {
    case FLUX__ALLREDUCE: return nccl->AllReduce(in, out, count, type, op, n->handle, n->stream);
    case FLUX__REDUCE_TO:
        return nccl->Reduce(in, out, count, type, op, h->root, n->handle, n->stream);
    case FLUX__BROADCAST_FROM:
        return nccl->Broadcast(in, out, count, type, h->root, n->handle, n->stream);
    case FLUX__ALLGATHER: return nccl->AllGather(in, out, count, type, n->handle, n->stream);
    default:
        return nccl->ReduceScatter(in, out, count / (size_t)n->comm->size, type, op, n->handle,
                                   n->stream);
    }
}

/* One of several collectives that are queued together. */
typedef struct flux__nccl_task {
    const flux__header *header;
    const void *in;
    void *out;
    int packed;                           /* of flux__nccl_packed; -1: captured */
} flux__nccl_task;

/* Queues the collectives of all tasks as one group; its stream waits for their operands. The
   device is current. */
static bool flux__nccl_group(flux__nccl *n, const flux__nccl_task *task, int count, char *why,
                             size_t size) {
    const flux__nccl_calls *nccl = &n->library->call;
    const flux__driver *driver = n->gpu->driver;
    static const char *const names[] = { "AllReduce", "Reduce", "Broadcast", "AllGather",
                                         "ReduceScatter" };
    snprintf(why, size, "the stream of collectives can't wait for the device's");
    for (int i = 0; i < count; i++)
        if (task[i].packed >= 0 &&
            driver->event_before(n->turn[task[i].packed].packed, n->stream) != 0) return false;
    bool ok = flux__nccl_ok(n, nccl->GroupStart(), "GroupStart", why, size);
    if (!ok) return false;
    for (int i = 0; i < count && ok; i++) {
        const int code = flux__nccl_call(n, task[i].header, task[i].in, task[i].out);
        if (code == FLUX__NCCL_IN_PROGRESS) continue;    /* the group's end waits */
        ok = flux__nccl_ok(n, code, names[task[i].header->kind], why, size);
    }
    const int end = nccl->GroupEnd();     /* in any case: the group would stay open */
    return ok && flux__nccl_ok(n, end, "GroupEnd", why, size);
}

/* What turn number `at` stands for is queued on the stream. */
static bool flux__nccl_queued(flux__nccl *n, int at, const flux__header *h, void *stream) {
    flux__nccl_turn *t = &n->turn[at];
    t->since = 0;
    t->header = *h;
    n->thread = flux__self();
    return t->queued = n->gpu->driver->event_record(t->done, stream) == 0;
}

/* The device's stream goes on when the collectives are done. */
static bool flux__nccl_order(flux__nccl *n, const flux__nccl_task *task, int count) {
    for (int i = 0; i < count; i++)
        if (!flux__nccl_queued(n, task[i].packed, task[i].header, n->stream)) return false;
    return n->gpu->driver->event_before(n->turn[task[count - 1].packed].done, n->gpu->stream) == 0;
}

/* Queues collectives that have been shaken hands on. False: an error was told, the communicator is
   broken, and NCCL's is aborted. */
static bool flux__nccl_run(flux_comm *c, const flux__nccl_task *task, int count) {
    flux__nccl *n = c->nccl;
    const flux__header *h = task[0].header;
    char why[300] = "the GPU can't be used", text[500];
    void *before;
    flux__gpu *g = flux__gpu_enter(n->device.backend, n->device.id, &before);
    bool ok = false;
    flux__mutex_lock(&flux__nccl_lock);
    if (g && !n->handle) snprintf(why, sizeof why, "an earlier collective was aborted");
    else if (g && flux__nccl_group(n, task, count, why, sizeof why)) {
        ok = flux__nccl_order(n, task, count);
        if (!ok) snprintf(why, sizeof why, "the device's stream can't wait for the collective");
    }
    flux__mutex_unlock(&flux__nccl_lock);
    if (g) flux__gpu_leave(g, before);
    if (ok) return true;
    snprintf(text, sizeof text, "%s, collective %lld: %s", flux__header_text(h).s,
             (long long)h->number, why);
    flux__report_send(c, h, true);
    return flux__comm_break(c, text);
}

/* After a failure: lets the collectives before it come to their end, and aborts the
   communicator. */
static void flux__nccl_drop(flux_comm *c) {
    flux__nccl *n = c->nccl;
    void *before;
    if (!n || !n->handle || !flux__gpu_enter(n->device.backend, n->device.id, &before)) return;
    flux__nccl_watch(&n->guest, NULL);
    flux__mutex_lock(&flux__nccl_lock);
    flux__nccl_abort(n);
    flux__mutex_unlock(&flux__nccl_lock);
    flux__gpu_leave(n->gpu, before);
}

FLUX__END_COLD
#endif /* FLUX__WITH_NCCL */

#endif /* FLUX__DIST_NCCL_H */
