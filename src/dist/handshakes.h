#ifndef FLUX__DIST_HANDSHAKES_H
#define FLUX__DIST_HANDSHAKES_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/text.h"
#include "../base/memory.h"
#include "mpi_library.h"
#include "nccl_library.h"
#include "mpi.h"
#include "window.h"
#include "comm.h"

#ifdef FLUX_MPI
/* ---------------------------------------------------------------------- dist/handshakes.h
   How a collective's data travel, and what goes before them. A handshake
   compares what the ranks are about to call. It is an allreduce of a few numbers
   that does not block and is polled until the time-out: who is through it knows
   that all ranks have come with the same collective, and sends the data. When a
   handshake fails, ranks tell each other how far they are, so that the error
   names who did not come, or who calls what else.

   Invariant: the numbers are maxima of a hash and of its negative, which agree if
   and only if all ranks gave one hash. A rank that gives up sends a report to
   all others at once; each looks for such reports at the end of its handshakes,
   before the data, since it would wait for ever for a rank that has given up.

   Between ranks on one machine the data go by calls that block, which are faster,
   as the processor copies them in any case. Between machines, where a network
   does, and a cable may be cut, they go by calls that are polled
   (flux__exchange_poll), while kernels run or, until the time-out, at the end. */

FLUX__BEGIN_COLD

enum { FLUX__REPORT_TAG = 1 };
#define FLUX__GRACE 1.0                   /* seconds in which reports of other ranks are awaited */

enum { FLUX__SHAKES, FLUX__MOVES, FLUX__ARRIVED };       /* stages of an exchange */

/* A collective from its handshake until its data have arrived. */
typedef struct flux__exchange {
    flux__header header;
    int stage;
    int64_t offer;                        /* of dist/replay.h: a hash, or 0 */
    int64_t v[4];                         /* hash, -hash, offer, -offer */
    flux__mpi_handle request;             /* of the handshake, then of a piece of the data */
    /* data: the elements of this rank's operands, in memory that MPI reaches, which become the
       result; of an allgather the place for all ranks' elements, this rank's being where they
       belong. NULL: MPI is not to send any. out: where the result of a reduction to one rank
       (reduce, reduce_scatter) goes. */
    void *data, *out;
    int64_t at;                           /* elements whose exchange has begun */
    double begun, arrived;                /* by flux__now */
} flux__exchange;

/* A positive hash of n words. */
static int64_t flux__words_hash(const int64_t *word, int n) {
    uint64_t hash = 0;
    for (int i = 0; i < n; i++) {
        hash = (hash ^ (uint64_t)word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return (int64_t)(hash >> 2) + 1;
}
static int64_t flux__header_hash(const flux__header *h) {
    const int64_t word[] = { h->number, h->count, h->failed, h->on_gpu, h->kind, h->op, h->dtype,
                             h->root };
    return flux__words_hash(word, (int)(sizeof word / sizeof *word));
}

/* "allreduce sum of 10 f32" */
static flux__text flux__header_text(const flux__header *h) {
    flux__text t;
    const bool folds = h->kind == FLUX__ALLREDUCE || h->kind == FLUX__REDUCE_TO ||
                       h->kind == FLUX__REDUCE_SCATTER;
    if (h->kind >= FLUX__BARRIER)
        snprintf(t.s, sizeof t.s, "%s%s", flux__collective_names[h->kind],
                 h->failed ? " after an error" : "");
    else
        snprintf(t.s, sizeof t.s, "%s%s%s of %lld %s%s", flux__collective_names[h->kind],
                 folds ? " " : "", folds ? flux__agg_names[h->op] : "", (long long)h->count,
                 flux__dtypes[h->dtype].name, h->on_gpu ? " on a GPU" : "");
    return t;
}

#ifdef FLUX__WITH_NCCL
/* hook: flux__nccl_drop, dist/nccl.h */
static void flux__nccl_drop(flux_comm *c);
#endif

/* Breaks the communicator: records the error and keeps it for the collectives that follow. What
   NCCL has under way is ended, or a look at a value might wait for ranks that do not come. */
static bool flux__comm_break(flux_comm *c, const char *why) {
    if (!c->broken) snprintf(c->why, sizeof c->why, "%s", why);
    c->broken = true;
    flux__fail("%s", why);
#ifdef FLUX__WITH_NCCL
    flux__nccl_drop(c);
#endif
    return false;
}

/* Begins the handshake of the collective h, whose number this sets. x is zeroed but for data, out,
   and offer. */
static bool flux__exchange_start(flux_comm *c, flux__exchange *x, const flux__header *h) {
    char why[300];
    if (c->broken) return FLUX__REFUSE("%s: an earlier collective has failed: %s",
                                       flux__collective_names[h->kind], c->why);
    x->header = *h;
    x->header.number = c->number++;
    x->v[0] = flux__header_hash(&x->header), x->v[1] = -x->v[0];
    x->v[2] = x->offer, x->v[3] = -x->offer;
    x->begun = flux__now();
    if (flux__mpi_allreduce(c->shake, x->v, 4, FLUX_I64, FLUX_MAX, &x->request, why, sizeof why))
        return true;
    return flux__comm_break(c, why);
}

/* Polls a request until it is done; 0, or -1 if the time-out passed (1: MPI has an error). */
static int flux__mpi_await(flux__mpi_handle *request, double seconds, char *why, size_t n) {
    bool done = false;
    double end = 0;
    for (int spin = 0; !done; spin++) {
        if (!flux__mpi_test(request, &done, why, n)) return 1;
        if (done || spin < 200) continue;
        flux__thread_yield();
        if (end == 0) end = flux__now() + seconds;
        else if (spin % 64 == 0 && flux__now() > end) return -1;
    }
    return 0;
}

/* ---------------- when a handshake fails */

/* What a rank reports to the others when it gives up. */
typedef struct flux__report {
    int64_t came;                         /* its collective */
    int64_t failed;                       /* 1: its own GPU has failed, and it waited for nobody */
} flux__report;

/* Takes a report of a rank that has given up, if one lies here: its rank, or -1. */
static int flux__report_take(flux_comm *c, flux__report *r) {
    char why[300];
    int from = -1;
    if (!flux__mpi_probe(c->side, FLUX__REPORT_TAG, &from, why, sizeof why) || from < 0) return -1;
    return flux__mpi_receive(c->side, r, sizeof *r, from, FLUX__REPORT_TAG, why, sizeof why) ? from
                                                                                             : -1;
}

/* Breaks the communicator, since rank `from` has given up. */
static bool flux__gave_up(flux_comm *c, const flux__header *h, int from, const flux__report *r) {
    char why[400];
    snprintf(why, sizeof why, "%s, collective %lld: rank %d on %s has given up at collective %lld, "
             "where %s", flux__header_text(h).s, (long long)h->number, from, c->hosts[from],
             (long long)r->came, r->failed ? "its own part has failed" :
             "it had waited longer than its time-out for this rank or another");
    return flux__comm_break(c, why);
}

/* Writes the ranks that did not report: "rank 2 on node7"; nobody: what is said if all did. */
static void flux__put_silent(const flux_comm *c, const bool *came, const char *nobody,
                             flux__sink *out) {
    int named = 0, more = 0;
    for (int r = 0; r < c->size; r++) {
        if (came[r]) continue;
        if (named == 8) more++;
        else flux__putf(out, "%srank %d on %s", named++ ? ", " : "", r, c->hosts[r]);
    }
    if (more) flux__putf(out, " and %d more", more);
    if (!named) flux__putf(out, "%s", nobody);
}

/* Tells the others that this rank gives up at the collective h. */
static bool flux__report_send(flux_comm *c, const flux__header *h, bool failed) {
    char why[300];
    /* MPI may send or fill them later than this call: they are never freed */
    flux__report *mine = (flux__report *)flux__zalloc(sizeof *mine);
    flux__mpi_handle *sent = (flux__mpi_handle *)flux__zalloc((size_t)c->size * sizeof *sent);
    if (!mine || !sent) return false;
    mine->came = h->number, mine->failed = failed;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            flux__mpi_isend(c->side, mine, sizeof *mine, r, FLUX__REPORT_TAG, &sent[r], why,
                            sizeof why);
    return true;
}

/* This rank has waited long enough for the others, or for their data: tells them, hears who else
   waits, and breaks the communicator with an error that names the rank whose part has failed, or
   those that do not answer. */
static bool flux__give_up(flux_comm *c, const flux__header *h, bool data) {
    const char *what = data ? "no data came from" : "there has not come",
        *nobody = data ? "any rank: all have come, and wait for it"
                       : "the other ranks, which did not go on: this one came too late";
    char text[400];
    flux__report theirs, failed = { 0, 0 };
    int by = -1;
    bool *came = (bool *)flux__zalloc((size_t)c->size);
    if (!came || !flux__report_send(c, h, false)) return flux__comm_break(c, "out of memory");
    came[c->rank] = true;
    for (double end = flux__now() + FLUX__GRACE; flux__now() < end; flux__thread_yield()) {
        const int from = flux__report_take(c, &theirs);
        if (from >= 0) came[from] = true;
        if (from >= 0 && theirs.failed) by = from, failed = theirs;
    }
    flux__sink out = flux__sink_to(text, sizeof text);
    flux__putf(&out, "%s, collective %lld: within %g s %s ", flux__header_text(h).s,
               (long long)h->number, c->timeout, what);
    flux__put_silent(c, came, nobody, &out);
    flux__putf(&out, "; all had passed collective %lld", (long long)h->number - 1);
    flux__sink_end(&out);
    flux__free(came);
    return by < 0 ? flux__comm_break(c, text) : flux__gave_up(c, h, by, &failed);
}

/* All ranks have come, but not with the same collective: compares what each of them calls. */
static bool flux__handshake_differs(flux_comm *c, const flux__exchange *x) {
    char text[400], why[300];
    flux__header *all = (flux__header *)flux__zalloc((size_t)c->size * sizeof *all);
    if (!all) return false;
    all[c->rank] = x->header;
    int other = -1;
    if (flux__mpi_allgather(c->data, all, sizeof *all, NULL, why, sizeof why))
        for (int r = c->size - 1; r >= 0; r--)
            if (memcmp(&all[r], &x->header, sizeof *all) != 0) other = r;
    if (other < 0) snprintf(text, sizeof text, "%s", why);
    else {
        flux__text mine = flux__header_text(&x->header), theirs = flux__header_text(&all[other]);
        const bool same = strcmp(mine.s, theirs.s) == 0;
        snprintf(text, sizeof text,
                 "rank %d on %s calls %s (collective %lld)%s, where rank %d calls %s (collective "
                 "%lld): all ranks must record the same collectives in the same order",
                 other, c->hosts[other], theirs.s, (long long)all[other].number,
                 same ? " with other parameters" : "", c->rank, mine.s,
                 (long long)x->header.number);
    }
    flux__free(all);
    return flux__comm_break(c, text);
}

/* Whether all ranks have come with the same collective, at the end of its handshake. False: an
   error was told, and the communicator is broken. */
static bool flux__handshake_agrees(flux_comm *c, const flux__exchange *x) {
    flux__report report;
    if (x->v[0] != -x->v[1]) return flux__handshake_differs(c, x);
    const int from = flux__report_take(c, &report);
    return from < 0 || flux__gave_up(c, &x->header, from, &report);
}

/* ---------------- data */

/* Has MPI exchange `count` elements of a collective, from number x->at on, or begin to, if there
   is a request. */
static bool flux__exchange_call(const flux_comm *c, const flux__exchange *x, int64_t count,
                                flux__mpi_handle *request, char *why, size_t n) {
    const flux__header *h = &x->header;
    const flux_dtype t = (flux_dtype)h->dtype;
    const flux_agg op = (flux_agg)h->op;
    const size_t size = flux__dtypes[t].size, offset = (size_t)x->at * size;
    char *data = (char *)x->data + offset;
    switch (h->kind) {
    case FLUX__ALLREDUCE:
        if (c->one_host && (size_t)count * size >= flux__mpi_window_from)
            return flux__mpi_window_reduce(&c->window, data, NULL, count, t, op, why, n);
        return flux__mpi_allreduce(c->data, data, count, t, op, request, why, n);
    case FLUX__REDUCE_TO:
        return flux__mpi_reduce(c->data, data, (char *)x->out + offset, count, t, op, h->root,
                                request, why, n);
    case FLUX__BROADCAST_FROM:
        return flux__mpi_broadcast(c->data, data, count, t, h->root, request, why, n);
    case FLUX__ALLGATHER:
        return flux__mpi_allgather(c->data, data, (size_t)count * size, request, why, n);
    default:
        if (c->one_host)
            return flux__mpi_window_reduce(&c->window, data, x->out, count, t, op, why, n);
        return flux__mpi_reduce_scatter(c->data, data, x->out, count / c->size, t, op, request, why,
                                        n);
    }
}

/* Breaks the communicator, since MPI has failed in the exchange of x. */
static bool flux__exchange_fails(flux_comm *c, const flux__exchange *x, const char *why) {
    char text[600];
    snprintf(text, sizeof text, "%s, collective %lld: %s", flux__header_text(&x->header).s,
             (long long)x->header.number, why);
    return flux__comm_break(c, text);
}

/* Begins the next piece of the data, or exchanges all of them at once: on one machine, and of a
   collective that can't be cut and is too large for one call. */
static bool flux__exchange_move(flux_comm *c, flux__exchange *x) {
    const flux__header *h = &x->header;
    const int64_t size = (int64_t)flux__dtypes[h->dtype].size,
        block = h->kind == FLUX__ALLGATHER ? h->count * size
              : h->kind == FLUX__REDUCE_SCATTER ? h->count / c->size : 0;
    const bool at_once = c->one_host || block > flux__mpi_most;
    int64_t some = h->count - x->at;
    char why[300];
    if (h->kind == FLUX__REDUCE_TO && x->at == 0 && c->rank != h->root)
        memcpy(x->out, x->data, (size_t)(h->count * size));
    if (!at_once && !block && some > flux__mpi_most) some = flux__mpi_most;
    const bool ok = flux__exchange_call(c, x, some, at_once ? NULL : &x->request, why, sizeof why);
    if (!ok) return flux__exchange_fails(c, x, why);
    x->at += some;
    if (at_once) x->stage = FLUX__ARRIVED;
    return true;
}

/* What follows when an exchange's request is done. False: an error was told. */
static bool flux__exchange_next(flux_comm *c, flux__exchange *x) {
    if (x->stage == FLUX__SHAKES && !flux__handshake_agrees(c, x)) return false;
    x->stage = x->data && x->at < x->header.count ? FLUX__MOVES : FLUX__ARRIVED;
    const bool ok = x->stage == FLUX__ARRIVED || flux__exchange_move(c, x);
    if (x->stage == FLUX__ARRIVED) x->arrived = flux__now();
    return ok;
}

/* Takes an exchange on as far as it goes without waiting. */
static void flux__exchange_poll(flux_comm *c, flux__exchange *x) {
    char why[300];
    bool done = true;
    while (x->stage != FLUX__ARRIVED && !c->broken && done)
        if (!flux__mpi_test(&x->request, &done, why, sizeof why)) flux__exchange_fails(c, x, why);
        else if (done) flux__exchange_next(c, x);
}

/* Waits for the handshake and for the data. False: an error was told, and the communicator is
   broken. */
static bool flux__exchange_finish(flux_comm *c, flux__exchange *x) {
    char why[300];
    while (x->stage != FLUX__ARRIVED) {
        if (c->broken) return false;      /* an earlier one has failed */
        const int rc = flux__mpi_await(&x->request, c->timeout, why, sizeof why);
        if (rc < 0) return flux__give_up(c, &x->header, x->stage == FLUX__MOVES);
        if (rc > 0) return flux__exchange_fails(c, x, why);
        if (!flux__exchange_next(c, x)) return false;
    }
    return true;
}

/* A collective here and now; data and out are those of flux__exchange. False: an error was told. */
static bool flux__collective_now(flux_comm *c, const flux__header *h, void *data, void *out) {
    FLUX__ZEROED(flux__exchange, x);
    x.data = data, x.out = out;
    return flux__exchange_start(c, &x, h) && flux__exchange_finish(c, &x);
}

FLUX__END_COLD
#endif /* FLUX_MPI */

#endif /* FLUX__DIST_HANDSHAKES_H */
