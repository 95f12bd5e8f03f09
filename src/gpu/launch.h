#ifndef FLUX__GPU_LAUNCH_H
#define FLUX__GPU_LAUNCH_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/memory.h"
#include "../schedule/kernel.h"
#include "../schedule/analysis.h"
#include "../schedule/dispatch.h"
#include "kernels.h"
#include "devices.h"
#include "copies.h"

/* ---------------------------------------------------------------------- gpu/launch.h
   Launching. A row of kernels, those of a plan that run on one device in
   succession, is launched kernel by kernel the first times (FLUX__GRAPH_EXEC_AFTER),
   then as one graph of the driver (flux__graph_exec). The graph's kernels, their
   order and their grids never change. Arguments may (a learning rate, a step
   count, a random key, an address): they are compared with the last ones, and a
   node whose arguments differ is updated before the launch. The pool gives a
   repeated step the same memory, so updates are few.

   Invariant: a row whose graph the driver refuses is launched kernel by kernel,
   now and from then on, with the same results. A row starts after all copies
   ahead to its operands (flux__gpu_args). If a launch fails, the pool gives its
   free memory back and the launch is tried once more. A graph belongs to its
   plan; one whose device was closed is dead but not freed.

   Rejected: capturing the stream, which makes the same graph but hands no nodes
   out and forbids other threads' calls meanwhile; arguments in device memory,
   which cost every step a copy and every kernel a dependent load. */

FLUX__BEGIN_LEAN

static void flux__graph_exec_drop(flux__gpu_kernel *gk);

enum {
    FLUX__GRAPH_EXEC_AFTER = 2,           /* runs of a row before it becomes a graph */
    FLUX__GRAPH_EXEC_LEAST = 3,           /* the fewest launches that are worth a graph */
    FLUX__GRAPH_EXEC_MOST = 1 << 16       /* updates before a graph is made anew, since ROCm takes
                                             new memory for each */
};

/* Writes the value of parameter p of kernel k in this run to `out`. */
static void flux__gpu_arg(const flux__run *r, const flux__kernel *k, const flux__gpu *g,
                          const flux__gpu_param *p, void *out) {
    const flux__value *v =
        p->kind == 'n' || p->kind == 'k' || p->kind == 't' ? &k->value[p->what] : NULL;
    switch (p->kind) {
    case 'p': memcpy(out, &r->ptr[p->what], sizeof(void *)); break;
    case 's': memcpy(out, &k->scratch_at, sizeof(void *)); break;
    case 'e': memcpy(out, &g->status, sizeof(void *)); break;
    case 'f': memcpy(out, &r->g->node[k->node]->arg.num, sizeof(double)); break;
    case 'n': flux__set_number(v->ctype, out, flux__number_value(r->g, v)); break;
    default: memcpy(out, &r->g->node[v->node]->arg.u[p->kind == 't'], 8);
    }
}

/* Encodes a kernel's map for this run, and marks the kernel as stale, if its operand's address is
   another than before. */
static bool flux__gpu_map(const flux__run *r, const flux__kernel *k, flux__gpu *g, int which) {
    flux__gpu_kernel *gk = (flux__gpu_kernel *)k->ready;
    flux__tensor_map *m = &gk->maps[which];
    const char *at = (const char *)(m->slot < 0 ? k->scratch_at : r->ptr[m->slot]) + m->offset;
    if (at == m->at) return true;
    m->at = NULL, gk->stale = true;
    if (!flux__gpu_ok(g, g->driver->map(m, at, flux__map_words(m)), "describing an operand"))
        return false;
    m->at = at;
    return true;
}

/* Finds a kernel's arguments for this run, marks it as stale if they have changed, and makes
   the stream wait for copies ahead to its operands. */
static bool flux__gpu_args(const flux__run *r, const flux__kernel *k, flux__gpu *g) {
    flux__gpu_kernel *gk = (flux__gpu_kernel *)k->ready;
    char *values = (char *)(gk->args + gk->nparam);
    for (int i = 0; i < gk->nparam; i++) {
        uint64_t now = 0;
        if (gk->param[i].kind == 'm') {
            gk->args[i] = flux__map_words(&gk->maps[gk->param[i].what]);
            if (!flux__gpu_map(r, k, g, gk->param[i].what)) return false;
            continue;
        }
        gk->args[i] = values + i * 8;
        flux__gpu_arg(r, k, g, &gk->param[i], &now);
        if (memcmp(gk->args[i], &now, 8) != 0) gk->stale = true;
        memcpy(gk->args[i], &now, 8);
        if (gk->param[i].kind == 'e') g->pending = true;
        if ((gk->param[i].kind == 'p' || gk->param[i].kind == 's') &&
            !flux__gpu_await(g, (const void *)(uintptr_t)now, 1))
            return false;
    }
    return true;
}

/* Launches of a row of n kernels: a kernel may have several. */
static int flux__row_launches(const flux__kernel *k, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += ((const flux__gpu_kernel *)k[i].ready)->launches;
    return count;
}

/* Frees the graph of the row that starts with `first`; there: the device is current. */
static void flux__graph_exec_free(flux__gpu_kernel *first, bool there) {
    flux__graph_exec *p = first->exec;
    if (!p->dead) flux__graph_exec_kill(p, there);
    flux__free(p->node);
    flux__free(p);
    first->exec = NULL;
}

/* Frees the graph of the row that starts with `first`, when its plan is freed. */
static void flux__graph_exec_drop(flux__gpu_kernel *first) {
    void *before;
    if (!first->exec) return;
    flux__gpu *g = first->exec->gpu;
    flux__hold();
    flux__gpu_lock(g);
    bool there = !first->exec->dead && flux__gpu_there(g, &before);
    flux__graph_exec_free(first, there);
    if (there) g->driver->leave(before);
    flux__gpu_unlock(g);
    flux__tell();
}

/* Makes the graph of a row of n kernels from their last arguments. False: the driver refused,
   and first->exec, if not NULL, is to be freed. */
static bool flux__graph_exec_make(flux__gpu *g, flux__kernel *k, int n) {
    flux__gpu_kernel *first = (flux__gpu_kernel *)k->ready;
    int launches = flux__row_launches(k, n), at = 0;
    flux__graph_exec *p = first->exec = (flux__graph_exec *)FLUX_MALLOC(sizeof *p);
    if (!p) return false;
    memset(p, 0, sizeof *p);
    p->gpu = g;
    p->next = g->execs;
    g->execs = p;
    p->node = (void **)FLUX_MALLOC((size_t)launches * sizeof *p->node);
    bool ok = p->node && g->driver->graph(&p->graph) == 0;
    for (int i = 0; i < n && ok; i++) {
        flux__gpu_kernel *gk = (flux__gpu_kernel *)k[i].ready;
        for (int l = 0; l < gk->launches && ok; l++, at++)
            ok = g->driver->graph_add(&p->node[at], p->graph, &p->node[at ? at - 1 : 0], at > 0,
                                      gk->step[l].fn->function, gk->step[l].grid,
                                      gk->step[l].threads, gk->step[l].shared, gk->args) == 0;
        gk->stale = false;
    }
    ok = ok && g->driver->graph_ready(&p->exec, p->graph) == 0;
    if (ok) g->counters.graphs++;
    return ok;
}

/* Updates the graph's nodes whose arguments have changed. */
static bool flux__graph_exec_update(flux__gpu *g, flux__graph_exec *p, flux__kernel *k, int n) {
    void **node = p->node;
    for (int i = 0; i < n; i++) {
        flux__gpu_kernel *gk = (flux__gpu_kernel *)k[i].ready;
        for (int l = 0; l < gk->launches && gk->stale; l++) {
            const flux__gpu_step *step = &gk->step[l];
            if (g->driver->graph_set(p->exec, node[l], step->fn->function, step->grid,
                                     step->threads, step->shared, gk->args) != 0)
                return false;
            g->counters.graph_updates++, p->told++;
        }
        gk->stale = false;
        node += gk->launches;
    }
    return true;
}

/* Launches the row as one graph. False: nothing was launched, and unless the device is lost
   now, the row is to be launched kernel by kernel. */
static bool flux__graph_exec_launch(flux__gpu *g, flux__kernel *k, int n) {
    flux__gpu_kernel *first = (flux__gpu_kernel *)k->ready;
    if (!g->replaying || first->runs < 0) return false;
    if (first->exec && (first->exec->dead || first->exec->told >= FLUX__GRAPH_EXEC_MOST))
        flux__graph_exec_free(first, !first->exec->dead);
    if (!first->exec &&
        (first->runs++ < FLUX__GRAPH_EXEC_AFTER ||
         flux__row_launches(k, n) < FLUX__GRAPH_EXEC_LEAST))
        return false;
    bool ready = (first->exec || flux__graph_exec_make(g, k, n)) &&
                 flux__graph_exec_update(g, first->exec, k, n);
    int code = ready ? g->driver->graph_launch(first->exec->exec, g->stream) : -1;
    if (code == 0) {
        g->counters.graph_launches++;
        g->counters.launches += flux__row_launches(k, n);
        return true;
    }
    if (ready && g->driver->lost(code)) return flux__gpu_ok(g, code, "launching a plan's kernels");
    if (first->exec) flux__graph_exec_free(first, true);
    first->runs = -1;
    flux__note(FLUX_LOG_DEBUG, "gpu.replay", false,
               "%s device %d: a plan's %d kernels can't be replayed as a graph: they are launched "
               "one by one", g->driver->name, g->id, n);
    return false;
}

/* Launch number l of a kernel. */
static int flux__gpu_start(flux__gpu *g, const flux__gpu_kernel *gk, int l) {
    return g->driver->launch(gk->step[l].fn->function, gk->step[l].grid, gk->step[l].threads,
                             gk->step[l].shared, g->stream, gk->args);
}

/* Launches one kernel. The driver may need memory for it (registers that threads spill): if a
   launch fails, the pool gives back what it doesn't use, and the launch is tried once more.
   NULL: it failed, and the device has been left. */
static flux__gpu *flux__gpu_launch(flux__gpu *g, const flux__kernel *k, void **before) {
    const flux__gpu_kernel *gk = (const flux__gpu_kernel *)k->ready;
    for (int l = 0; l < gk->launches; l++) {
        int code = flux__gpu_start(g, gk, l);
        if (code != 0 && !g->driver->lost(code)) {
            flux__gpu_leave(g, *before);  /* the pool's lock comes before the device's */
            flux_mem_trim(k->device);
            if (!(g = flux__gpu_enter(k->device.backend, k->device.id, before))) return NULL;
            code = flux__gpu_start(g, gk, l);
        }
        g->counters.launches++;
        if (flux__gpu_ok(g, code, "launching a kernel")) continue;
        flux__gpu_leave(g, *before);
        return NULL;
    }
    return g;
}

/* Runs a row of n kernels; returns how many of them were launched, fewer than n after an error. */
static int flux__gpu_run(flux__run *r, flux__kernel *k, int n) {
    void *before;
    int done = 0;
    bool ok = true;
    flux__gpu *g = flux__gpu_enter(k->device.backend, k->device.id, &before);
    if (!g) return 0;
    for (int i = 0; i < n && ok; i++) ok = flux__gpu_args(r, &k[i], g);
    if (ok && flux__graph_exec_launch(g, k, n)) done = n;
    while (ok && done < n && !g->lost && (g = flux__gpu_launch(g, &k[done], &before)) != NULL)
        done++;
    if (g) flux__gpu_leave(g, before);
    return done;
}

FLUX__END_LEAN

#endif /* FLUX__GPU_LAUNCH_H */
