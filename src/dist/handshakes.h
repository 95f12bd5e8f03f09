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
#include "mpi.h"
#include "comm.h"

#ifdef FLUX_MPI
/* ---------------------------------------------------------------------- dist/handshakes.h
   What goes before a collective's data. A handshake (flux__handshake_start,
   flux__handshake_finish) compares what the ranks are about to call. It is an
   allreduce of a few numbers that does not block and is polled until the
   time-out: who is through it knows that all ranks have come with the same
   collective, and then flux__exchange sends the data. When a handshake fails,
   ranks tell each other how far they are, so that the error names who did not
   come, or who calls what else.

   Invariant: the numbers are maxima of a hash and of its negative, which agree if
   and only if all ranks gave one hash. A rank that gives up sends a report to
   all others at once; each looks for such reports at the end of its handshakes,
   before the data, since it would wait for ever for a rank that has given up.

   Between ranks on one machine the data go by blocking calls, which are faster;
   between machines, where a cable may be cut, by calls that are polled. */

FLUX__BEGIN_COLD

enum { FLUX__REPORT_TAG = 1 };
#define FLUX__GRACE 1.0                   /* seconds in which reports of other ranks are awaited */

typedef struct flux__handshake {
    flux__header header;
    int64_t v[2];                         /* hash, -hash */
    flux__mpi_handle request;
} flux__handshake;

/* A positive hash of a header. */
static int64_t flux__header_hash(const flux__header *h) {
    const int64_t word[] = { h->number, h->count, h->failed, h->on_gpu, h->kind, h->op, h->dtype,
                             h->root };
    uint64_t hash = 0;
    for (int i = 0; i < (int)(sizeof word / sizeof *word); i++) {
        hash = (hash ^ (uint64_t)word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return (int64_t)(hash >> 2) + 1;
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

/* Breaks the communicator: records the error and keeps it for the collectives that follow. */
static bool flux__comm_break(flux_comm *c, const char *why) {
    if (!c->broken) snprintf(c->why, sizeof c->why, "%s", why);
    c->broken = true;
    return FLUX__REFUSE("%s", why);
}

/* Begins the handshake of the collective h, whose number this sets. */
static bool flux__handshake_start(flux_comm *c, flux__handshake *s, const flux__header *h) {
    char why[300];
    if (c->broken) return FLUX__REFUSE("%s: an earlier collective has failed: %s",
                                       flux__collective_names[h->kind], c->why);
    s->header = *h;
    s->header.number = c->number++;
    s->v[0] = flux__header_hash(&s->header), s->v[1] = -s->v[0];
    if (flux__mpi_iallreduce(c->shake, s->v, 2, FLUX_I64, FLUX_MAX, &s->request, why, sizeof why))
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
static bool flux__handshake_differs(flux_comm *c, const flux__handshake *s) {
    char text[400], why[300];
    flux__header *all = (flux__header *)flux__zalloc((size_t)c->size * sizeof *all);
    if (!all) return false;
    all[c->rank] = s->header;
    int other = -1;
    if (flux__mpi_allgather(c->data, all, sizeof *all, why, sizeof why))
        for (int r = c->size - 1; r >= 0; r--)
            if (memcmp(&all[r], &s->header, sizeof *all) != 0) other = r;
    if (other < 0) snprintf(text, sizeof text, "%s", why);
    else {
        flux__text mine = flux__header_text(&s->header), theirs = flux__header_text(&all[other]);
        const bool same = strcmp(mine.s, theirs.s) == 0;
        snprintf(text, sizeof text,
                 "rank %d on %s calls %s (collective %lld)%s, where rank %d calls %s (collective "
                 "%lld): all ranks must record the same collectives in the same order",
                 other, c->hosts[other], theirs.s, (long long)all[other].number,
                 same ? " with other parameters" : "", c->rank, mine.s,
                 (long long)s->header.number);
    }
    flux__free(all);
    return flux__comm_break(c, text);
}

/* Waits until all ranks have come with the same collective. False: an error was told,
   and the communicator is broken. */
static bool flux__handshake_finish(flux_comm *c, flux__handshake *s) {
    char why[300];
    flux__report report;
    const int rc = flux__mpi_await(&s->request, c->timeout, why, sizeof why);
    if (rc > 0) return flux__comm_break(c, why);
    if (rc < 0) return flux__give_up(c, &s->header, false);
    if (s->v[0] != -s->v[1]) return flux__handshake_differs(c, s);
    const int from = flux__report_take(c, &report);
    return from < 0 || flux__gave_up(c, &s->header, from, &report);
}

/* The whole handshake of a collective at once. */
static bool flux__shake_hands(flux_comm *c, const flux__header *h) {
    flux__handshake s;
    return flux__handshake_start(c, &s, h) && flux__handshake_finish(c, &s);
}

/* ---------------- data */

/* An allreduce between machines: in pieces, each of which must come within the time-out. */
static bool flux__exchange_far(flux_comm *c, const flux__header *h, char *data) {
    const flux_dtype t = (flux_dtype)h->dtype;
    char why[300], text[600];
    for (int64_t at = 0, some; at < h->count; at += some) {
        flux__mpi_handle request;
        some = h->count - at < flux__mpi_most ? h->count - at : flux__mpi_most;
        int rc = flux__mpi_iallreduce(c->data, data + (size_t)at * flux__dtypes[t].size, some, t,
                                      (flux_agg)h->op, &request, why, sizeof why)
                     ? flux__mpi_await(&request, c->timeout, why, sizeof why) : 1;
        if (rc < 0) return flux__give_up(c, h, true);
        if (rc == 0) continue;
        snprintf(text, sizeof text, "%s, collective %lld: %s", flux__header_text(h).s,
                 (long long)h->number, why);
        return flux__comm_break(c, text);
    }
    return true;
}

/* Exchanges the data of a collective after its handshake. data: the elements of this rank's
   operands, in memory that MPI reaches, which become the result; of an allgather the place for
   all ranks' elements, this rank's being where they belong. The result of a reduction to one rank
   (reduce, reduce_scatter) is written to `out`. */
static bool flux__exchange(flux_comm *c, const flux__header *h, void *data, void *out) {
    char why[300] = "";
    const flux_dtype t = (flux_dtype)h->dtype;
    const flux_agg op = (flux_agg)h->op;
    bool ok = true;
    switch (h->kind) {
    case FLUX__ALLREDUCE:
        if (c->one_host) {
            ok = flux__mpi_allreduce(c->data, data, h->count, t, op, why, sizeof why);
            break;
        }
        return flux__exchange_far(c, h, (char *)data);
    case FLUX__REDUCE_TO:
        if (c->rank != h->root) memcpy(out, data, (size_t)h->count * flux__dtypes[t].size);
        ok = flux__mpi_reduce(c->data, data, out, h->count, t, op, h->root, why, sizeof why);
        break;
    case FLUX__BROADCAST_FROM:
        ok = flux__mpi_broadcast(c->data, data, h->count, t, h->root, why, sizeof why);
        break;
    case FLUX__ALLGATHER:
        ok = flux__mpi_allgather(c->data, data, (size_t)h->count * flux__dtypes[t].size, why,
                                 sizeof why);
        break;
    default:
        ok = flux__mpi_reduce_scatter(c->data, data, out, h->count / c->size, t, op, why,
                                      sizeof why);
    }
    if (ok) return true;
    char text[600];
    snprintf(text, sizeof text, "%s, collective %lld: %s", flux__header_text(h).s,
             (long long)h->number, why);
    return flux__comm_break(c, text);
}

FLUX__END_COLD
#endif /* FLUX_MPI */

#endif /* FLUX__DIST_HANDSHAKES_H */
