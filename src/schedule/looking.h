#ifndef FLUX__SCHEDULE_LOOKING_H
#define FLUX__SCHEDULE_LOOKING_H
#include "../base/platform.h"
#include "../base/threads.h" /* flux__atomic_cas_place, flux__atomic_load, flux__atomic_load32 */
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/text.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "kernel.h"
#include "claims.h"
#include "key.h"
#include "plans.h"

/* ---------------------------------------------------------------------- schedule/looking.h
   Looking at values: flux_eval computes, flux_data, flux_read, flux_item and
   flux_at give elements to the host, and FLUX_EAGER computes each operation at
   once. A graph of very many nodes is computed in parts. The report on scopes
   that hold very much memory is here as well (flux__scopes_look).

   Invariant: looking changes no value. flux_data gives contiguous elements in
   host memory: the tensor's own buffer, or for a strided view or a tensor on a
   device a copy that the tensor then keeps in dense (flux__look). A node that
   is stored stays a value as long as it lives; a node recorded under
   FLUX_NOGRAD releases its operands once it is computed (flux__cut_fixed). When
   memory passes 1 GiB, and each time it has grown by a sixteenth more, what the
   open scopes hold is counted by kind of tensor. A scope that holds more than
   1 GiB in many alike tensors is named in a warning: it is mostly a loop whose
   body is no scope. */

FLUX__BEGIN_HOT

FLUX_DEF FLUX__COLD flux_tensor *flux_random_state(void) {
    const flux__thread *t = flux__self();
    int64_t v[2], n = 2;
    if (!t) return NULL;
    memcpy(&v[0], &t->seed, sizeof *v), memcpy(&v[1], &t->draws, sizeof *v);
    return flux_from_with(v, FLUX_I64, flux__shape(&n, 1));
}

FLUX_DEF FLUX__COLD int flux_set_random_state(flux_tensor *state) {
    flux__thread *t = flux__self();
    int64_t v[2];
    if (!state || !t) return flux__null("set_random_state", "state", state), -1;
    flux__text text = flux__describe(state);
    if (state->op == FLUX__TUPLE || state->dtype != FLUX_I64 || state->ndim != 1 ||
        state->dim[0] != 2)
        return flux__fail("set_random_state: %s is not what flux_random_state gives, i64 2",
                          text.s), -1;
    if (flux_read(state, v, sizeof v) != 0) return -1;
    memcpy(&t->seed, &v[0], sizeof *v), memcpy(&t->draws, &v[1], sizeof *v);
    return 0;
}

/* ---------------- looking */

/* 0: the environment has not been read yet; 1: not eager; 2: eager */
static int flux__eager_known;
/* Whether FLUX_EAGER asks that each operation is computed at once. The environment is read once. */
static bool flux__eager(void) {
    if (!flux__atomic_load32(&flux__eager_known)) {
        const char *e = flux__env("FLUX_EAGER");
        flux__atomic_store32(&flux__eager_known, e && strcmp(e, "0") != 0 ? 2 : 1);
    }
    return flux__atomic_load32(&flux__eager_known) == 2;
}

/* Nodes recorded under FLUX_NOGRAD release their operands once they are computed. */
static void flux__cut_fixed(flux__graph *g) {
    int n = 0;
    for (int i = 0; i < g->nnode; i++)
        if ((g->node[i]->flags & FLUX__FIXED) && g->node[i]->buf)
            g->node[n++] = (flux_tensor *)flux_retain(g->node[i]);
    flux__claims_lock();
    for (int i = 0; i < n; i++) flux__cut(g->node[i]);
    flux__claims_unlock();
    for (int i = 0; i < n; i++) flux_release(g->node[i]);
}

/* ---------------- scopes that grow
   A loop whose body is no scope piles up the tensors that it makes. When memory has passed 1 GiB,
   and each time that it has grown by a sixteenth more, every open scope is searched and what it
   holds is counted by kind of tensor. A kind that piles up has many tensors; a few large ones are
   data. */

/* Tensors of one operation, dtype and shape: how many, and their bytes. */
typedef struct flux__heap { const flux_tensor *like; int64_t count, bytes; } flux__heap;
enum { FLUX__HEAPS = 512, FLUX__MANY = 8 };

typedef struct flux__scope_use {          /* what a scope holds (leak report) */
    flux__hashmap seen;                   /* tensors met in this scope or in one outside */
    const flux_tensor **todo;
    int ntodo, capacity;
    flux__heap heap[FLUX__HEAPS];
    int nheaps;
    bool ok;
} flux__scope_use;

static FLUX__COLD bool flux__same_kind(const flux_tensor *a, const flux_tensor *b) {
    return a->op == b->op && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

/* Adds tensor x to its heap. A buffer that several tensors share is divided evenly among them. */
static FLUX__COLD void flux__scope_use_count(flux__scope_use *h, const flux_tensor *x) {
    int i = 0;
    while (i < h->nheaps && !flux__same_kind(h->heap[i].like, x)) i++;
    if (i == FLUX__HEAPS) return;
    if (i == h->nheaps) h->heap[h->nheaps++].like = x;
    int64_t owners = x->buf ? flux__atomic_load(&x->buf->refs) : 1;
    int64_t bytes =
        x->buf && !x->buf->borrowed ? (int64_t)x->buf->capacity / (owners > 1 ? owners : 1) : 0;
    h->heap[i].bytes += bytes + (int64_t)sizeof *x;
    h->heap[i].count++;
}

/* Puts a tensor on the list of those to be counted, unless it was met before. */
static FLUX__COLD void flux__scope_use_meet(flux__scope_use *h, const flux_tensor *x) {
    bool fresh = false;
    if (!x || !h->ok) return;
    h->ok = flux__hashmap_at(&h->seen, x, &fresh) != NULL;
    const flux_tensor **todo = h->ok && fresh
                                   ? (const flux_tensor **)flux__grow((void *)h->todo, &h->capacity,
                                                                      h->ntodo + 1, sizeof *todo)
                                   : h->todo;
    if (!h->ok || !fresh) return;
    h->ok = todo != NULL;
    if (todo) h->todo = todo, h->todo[h->ntodo++] = x;
}

/* Counts what this scope holds and the scopes outside it do not: its tensors and all of the graph
   behind them. */
static FLUX__COLD void flux__scope_use_find(flux__scope_use *h, const flux__thread *t, int scope) {
    int end = scope + 1 < t->nscopes ? t->scope[scope + 1].start : t->nowned;
    h->nheaps = 0;
    memset(h->heap, 0, sizeof h->heap);
    for (int i = t->scope[scope].start; i < end; i++) {
        if (((flux__head *)t->owned[i])->kind == FLUX__TENSOR)
            flux__scope_use_meet(h, (const flux_tensor *)t->owned[i]);
        while (h->ntodo && h->ok) {
            const flux_tensor *x = h->todo[--h->ntodo];
            flux__scope_use_count(h, x);
            for (int k = 0; k < x->nin; k++) flux__scope_use_meet(h, x->in[k]);
            flux__scope_use_meet(h, x->base);
            flux__scope_use_meet(h, (flux_tensor *)flux__atomic_load_place(&x->dense));
        }
    }
}

static FLUX__COLD int flux__by_bytes(const void *a, const void *b) {
    int64_t x = ((const flux__heap *)a)->bytes, y = ((const flux__heap *)b)->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Warns if many alike tensors in a scope hold more than flux__scope_most bytes. The message names
   the scope and up to three kinds of tensors that hold the most. */
static FLUX__COLD void flux__scope_use_tell(flux__scope_use *h, const flux__thread *t, int scope) {
    const flux__scope *s = &t->scope[scope];
    char what[400], where[200] = "";
    int64_t sum = 0;
    flux__sink out = flux__sink_to(what, sizeof what);
    qsort(h->heap, (size_t)h->nheaps, sizeof *h->heap, flux__by_bytes);
    for (int i = 0, said = 0; i < h->nheaps; i++) {
        if (h->heap[i].count < FLUX__MANY) continue;
        sum += h->heap[i].bytes;
        if (said > 2 || (said > 0 && h->heap[i].bytes < sum / 20)) continue;
        said++;
        flux__putf(&out, "%s%lld x %s of %.80s (%s)", out.len ? ", " : "",
                   (long long)h->heap[i].count, flux__op_names[h->heap[i].like->op],
                   flux__describe(h->heap[i].like).s,
                   flux__bytes_text((double)h->heap[i].bytes).s);
    }
    flux__sink_end(&out);
    if (sum <= flux__scope_most) return;
    if (s->file) snprintf(where, sizeof where, "the scope opened at %.150s:%d", s->file, s->line);
    else
        snprintf(where, sizeof where, "%s",
                 s->turn ? "a turn of flux_train" : scope ? "a scope" : "the outermost scope");
    flux__note(FLUX_LOG_WARN, "scope.memory", true,
               "%s has come to hold %s and is still open; the most: %s. The turns of flux_times "
               "and flux_each free what they make, and flux_carry takes a value along%s",
               where, flux__bytes_text((double)sum).s, what,
               t->nograd ? "; FLUX_NOGRAD alone is no scope, FLUX_INFER is" : "");
}

/* The leak report: searches all open scopes of this thread, the outermost first, and warns of those
   that hold too much. */
static FLUX__COLD void flux__scopes_look(void) {
    flux__thread *t = flux__self();
    flux__scope_use *h = (flux__scope_use *)FLUX_MALLOC(sizeof *h);
    t->look = false;
    if (!h) return;
    memset(h, 0, sizeof *h);
    h->ok = true;
    for (int i = 0; i < t->nscopes && h->ok; i++) {
        flux__claims_lock();
        flux__scope_use_find(h, t, i);
        flux__claims_unlock();
        if (h->ok) flux__scope_use_tell(h, t, i);
    }
    flux__free(h->todo);
    flux__hashmap_free(&h->seen);
    flux__free(h);
}

/* Computes a graph as one plan: builds its key, finds or makes the plan, and runs it. -1 and an
   error if it fails. */
static int flux__compute(flux__graph *g) {
    flux__graph_key(g);
    flux__plan *plan = g->ok ? flux__find_plan(g) : NULL;
    if (!plan) return -1;
    int rc = flux__run_plan(plan, g);
    flux__plans *plans = flux__self()->plans;
    /* the plan may be so large that it is not kept */
    if (plans->bytes > FLUX__PLANS_MOST) flux__plans_trim(plans);
    if (rc != 0) return -1;
    if (!g->cut && (g->flags & FLUX__FIXED)) flux__cut_fixed(g);
    if (flux__self()->look) flux__scopes_look();
    return 0;
}

/* ---------------- large graphs
   A graph of very many nodes is computed in parts of nodes that follow each other, as if its
   program had looked at values on the way. The plan of a part stays in the processor's caches,
   where a plan of a million nodes takes gigabytes, and like parts, which a loop makes, share one
   plan. */

static int flux__part_nodes = 4096;       /* most nodes of a part; tests make it small */

/* For each node of a graph the number of the last node that reads it; of a root nnode, of a node
   that is read by none its own. NULL: out of memory. */
static int *flux__last_reads(const flux__graph *g) {
    int *last = (int *)flux__malloc((size_t)g->nnode * sizeof *last);
    for (int i = 0; last && i < g->nnode; i++) {
        const flux_tensor *t = g->node[i];
        flux__soon(g->node, i + FLUX__SOON, g->nnode);
        last[i] = g->flag[i] & FLUX__ROOT ? g->nnode : i;
        for (int k = 0, n = flux__reads(t); k < n; k++) {
            const flux_tensor *x = flux__base(t->in[k]);
            if (flux__in_graph(g, x) && last[x->index] < i) last[x->index] = i;
        }
    }
    return last;
}

/* Computes a graph in parts. The roots of a part are the nodes that a later part reads. Nodes of
   FLUX_NOGRAD, and what only they read, may be freed once their part is computed. */
static int flux__compute_parts(const flux__graph *g) {
    int *last = flux__last_reads(g), rc = last ? 0 : -1;
    for (int start = 0, end; start < g->nnode && rc == 0; start = end) {
        flux__graph part;
        end = g->nnode - start > flux__part_nodes ? start + flux__part_nodes : g->nnode;
        flux__graph_start(&part);         /* meets no other thread: all of g is claimed */
        for (int i = start; i < end && part.ok; i++)
            if (last[i] >= end) flux__graph_want(&part, g->node[i]);
        flux__graph_claim(&part);
        rc = part.ok ? flux__compute(&part) : -1;
        flux__graph_free(&part);
    }
    flux__free(last);
    return rc;
}

/* Computes a graph. An update's is one plan however large it is, as it overwrites the weights. -1
   and an error if it fails. */
static int flux__evaluate(flux__graph *g) {
    if (!g->ok) return -1;
    if (g->nnode == 0) return 0;
    return g->nnode > flux__part_nodes && !g->cut ? flux__compute_parts(g) : flux__compute(g);
}

/* Makes a tensor, or all tensors of a tuple, roots of the graph: those it is computed for. Tuples
   nest no more than FLUX_MAX_LEVELS deep; `seen` makes sure that each is entered once. */
static void flux__graph_root(flux__graph *g, flux_tensor *x, flux__hashmap *seen) {
    bool fresh = true;
    if (x->op == FLUX__TUPLE) {
        if (x->arg.i[0] > 1 && !flux__hashmap_at(seen, x, &fresh)) g->ok = false;
        for (int i = 0; i < x->nin && fresh && g->ok; i++) flux__graph_root(g, x->in[i], seen);
        return;
    }
    flux__graph_want(g, flux__base(x));
}

/* All tensors are computed as one graph, so what they share is computed once. If all have their
   values already, no graph is built. */
FLUX_DEF int flux_eval_all(int n, flux_tensor *const *xs) {
    flux__graph g;
    flux__hashmap seen = { NULL, 0, 0 };
    for (int i = 0; i < n; i++)
        if (!xs[i] || FLUX__GONE("eval", xs[i])) return flux__null("eval", "x", xs[i]), -1;
    bool work = false;
    for (int i = 0; i < n; i++)
        if (xs[i]->op == FLUX__TUPLE || !flux__finished(flux__base(xs[i])))
            work = true;
    if (!work) return 0;
    do {
        flux__hashmap_free(&seen);
        flux__graph_start(&g);
        for (int i = 0; i < n && g.ok; i++) flux__graph_root(&g, xs[i], &seen);
    } while (flux__graph_met(&g));
    flux__graph_claim(&g);
    int rc = flux__evaluate(&g);
    flux__hashmap_free(&seen);
    flux__graph_free(&g);
    return rc;
}

FLUX_DEF flux_tensor *flux_eval(flux_tensor *x) {
    if (!x) return (flux_tensor *)flux__null("eval", "x", x);
    return flux_eval_all(1, &x) == 0 ? x : NULL;
}

/* Whether x's elements are, or will be, where the host can read them without a copy. */
static bool flux__in_host_memory(const flux_tensor *x) {
    return x->device.backend == FLUX__CPU_BACKEND;
}

/* Makes a tensor that holds the elements of x contiguously in host memory, and keeps it in
   x->dense. If several threads do so at once, each makes one; the first to publish its copy wins,
   and others see it only when it is complete. */
static flux_tensor *flux__look(flux_tensor *x, bool in_order) {
    flux_device cpu = { 0, 0 };
    int h = flux__hide();
    flux_tensor *copy = in_order ? x : flux_copy(x);
    if (copy && !flux__in_host_memory(copy)) copy = flux__move(copy, cpu);
    if (copy && flux_eval(copy)) {
        flux__cut((flux_tensor *)flux_retain(copy));
        if (!flux__atomic_cas_place(&x->dense, 0, (intptr_t)copy)) flux_release(copy);
    }
    flux__thread *t = flux__self();
    if (t) flux__scope_close_to(t, h);
    return (flux_tensor *)flux__atomic_load_place(&x->dense);
}

FLUX_DEF const void *flux_data(flux_tensor *x) {
    int64_t offset, stride[FLUX_MAX_DIMS];
    if (!flux__check_operands("data", 1, &x)) return NULL;
    flux_shape s = flux__dims(x);
    flux_tensor *base = flux__layout(x, &offset, stride),
                *seen = (flux_tensor *)flux__atomic_load_place(&x->dense);
    bool in_order = flux__in_order(&s, stride);
    if (!(seen && !in_order) && !flux_eval(base)) return NULL;
    if (seen) return seen->buf->ptr;
    if (in_order && base->buf->device.backend == FLUX__CPU_BACKEND)
        return (const char *)base->buf->ptr +
               (FLUX__IS_VIEW(x) ? (size_t)x->offset * flux__dtypes[x->dtype].size : 0);
    seen = flux__look(x, in_order);
    return seen ? seen->buf->ptr : NULL;
}

FLUX_DEF int flux_read(flux_tensor *x, void *out, size_t bytes) {
    const void *p = flux__check_operands("read", 1, &x) ? flux_data(x) : NULL;
    if (!p) return -1;
    size_t have = (size_t)flux__size(x) * flux__dtypes[x->dtype].size;
    if (bytes != have || (!out && bytes)) {
        flux__text t = flux__describe(x);
        flux__fail("read: %s is %zu bytes, %zu were asked for", t.s, have, bytes);
        return -1;
    }
    if (bytes) memcpy(out, p, bytes);
    return 0;
}

/* Element i of x, counted in contiguous order, as a double; NaN and an error if it can't be
   computed. */
static double flux__number_at(flux_tensor *x, int64_t i) {
    const char *p = (const char *)flux_data(x);
    double out[1];
    if (!p) return (double)NAN;
    flux__load(FLUX__F64C, out, x->dtype, p + (size_t)i * flux__dtypes[x->dtype].size, 1, 1);
    return out[0];
}

FLUX_DEF double flux_item(flux_tensor *x) {
    if (!flux__check_operands("item", 1, &x)) return (double)NAN;
    if (flux__size(x) != 1) {
        flux__text t = flux__describe(x);
        flux__fail("item: %s is not one number; flux_at takes an index", t.s);
        return (double)NAN;
    }
    return flux__number_at(x, 0);
}

FLUX_DEF double flux_at_with(flux_tensor *x, flux_shape index) {
    if (!flux__check_operands("at", 1, &x)) return (double)NAN;
    int64_t at = 0, step = 1;
    flux__text t = flux__describe(x);
    if (index.ndim != x->ndim) {
        flux__fail("at: %d indices into %s", index.ndim, t.s);
        return (double)NAN;
    }
    for (int d = 0; d < x->ndim; d++) {
        if (index.dim[d] < 0 || index.dim[d] >= x->dim[d]) {
            flux__fail("at: index %lld is not within dim %d of %s", (long long)index.dim[d], d,
                       t.s);
            return (double)NAN;
        }
        at += index.dim[d] * step;
        step *= x->dim[d];
    }
    return flux__number_at(x, at);
}

FLUX__END_HOT

#endif /* FLUX__SCHEDULE_LOOKING_H */
