#ifndef FLUX__NN_MOVES_H
#define FLUX__NN_MOVES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../device/registry.h"
#include "../device/preferences.h"
#include "../device/choosing.h"
#include "../data/orders.h"
#include "../data/loader.h"
#include "walk.h"
#include "map.h"
#include "adjust.h"

/* ---------------------------------------------------------------------- nn/moves.h
   Moves between devices: gpu, cpu, cu, roc and to, for tensors and for
   everything that holds tensors, and device_of. One function, flux__moved,
   moves a tensor: float64 becomes float32 on its way to a GPU, every other dtype
   stays, and a tensor that is on the device already is returned as it is.
   Models and states apply it to each of their tensors, so that tied tensors stay
   tied, and the move of a tensor is an operation with a gradient. A loader moves
   its batches, not its data.

   Invariant: a call that moves nothing returns the very object it was given.
   flux_gpu does not need a GPU: without one it logs the reason once and returns
   its argument. flux_to names a device and fails if that cannot be used. Step
   counts of an optimiser, which the host reads, stay where they are.

   Rejected: moving in place, which would change tensors that recorded graphs
   use. */

FLUX__BEGIN_COLD

/* The target of a move. any (gpu, cu, roc): a tensor on another device of the same back end stays
   there, but float64 becomes float32 also there. */
typedef struct flux__move_target { flux_device to; bool any; } flux__move_target;

/* Whether a tensor on device `at` needs no move. */
static bool flux__there(flux_device at, const flux__move_target *target) {
    return flux__same_device(at, target->to) || (target->any && at.backend == target->to.backend);
}

/* Whether a tensor of this dtype on device `at` becomes float32: float64 does when it moves from
   the CPU to a GPU and, under gpu, cu and roc, also if it is on a GPU already. */
static bool flux__narrows(int dtype, flux_device at, const flux__move_target *target) {
    return dtype == FLUX_F64 && target->to.backend != FLUX__CPU_BACKEND &&
           (target->any || at.backend == FLUX__CPU_BACKEND);
}

/* Moves one tensor, which is no tuple; returns x itself if nothing changes. */
static flux_tensor *flux__moved(flux_tensor *x, const flux__move_target *target) {
    bool narrows = flux__narrows(x->dtype, x->device, target), there = flux__there(x->device,
                                                                                   target);
    if (there && !narrows) return x;
    int h = flux__hide();
    flux_tensor *y = narrows ? flux_to_dtype(x, FLUX_F32) : x;
    return flux__reveal(h, !y || there ? y : flux__move(y, target->to));
}

/* Moves a tensor, or each tensor of a tuple. Returns x itself if none of them changes. */
static flux_tensor *flux__moved_any(flux_tensor *x, const flux__move_target *target) {
    if (x->op != FLUX__TUPLE) return flux__moved(x, target);
    int n = flux_num_items(x), h = flux__hide();
    flux_tensor **parts = (flux_tensor **)flux__malloc((size_t)n * sizeof *parts), *y = NULL;
    bool good = parts != NULL, same = true;
    for (int i = 0; good && i < n; i++) {
        parts[i] = flux__moved(flux_nth(x, i), target);
        good = parts[i] != NULL;
        same = same && good && parts[i] == flux_nth(x, i);
    }
    if (good) y = same ? x : flux_tuple_with(n, parts);
    flux__free(parts);
    if (y != x) return flux__reveal(h, y);
    flux__reveal(h, NULL);
    return x;
}

static flux_tensor *flux__moved_leaf(flux_tensor *x, const char *path, void *target) {
    (void)path;
    return flux__moved(x, (const flux__move_target *)target);
}

/* ---- the target of each call; false: the argument stays where it is */

/* The target of flux_gpu: the preferred back end, else the first GPU back end that works.
   If none works, logs why and returns false; if the preference is the CPU, that is the
   target, without a log. */
static bool flux__to_gpu(flux__move_target *target) {
    const char *want = flux__preference();
    int b = flux__choose(false, false), wanted = want ? flux__backend_number(want) : b;
    target->to.backend = b;
    target->to.id = flux__own_gpu(b);
    target->any = true;
    if (b == FLUX__CPU_BACKEND && wanted == FLUX__CPU_BACKEND && want) return true;
    if (b == FLUX__CPU_BACKEND) {
        char why[640];
        flux__why_no_gpu(why, sizeof why);
        flux__note(FLUX_LOG_INFO, "gpu.none", true, "gpu: all stays on the CPU: %s",
                   *why ? why : "compiled without -DFLUX_CUDA and -DFLUX_HIP");
        return false;
    }
    if (wanted >= 0 && wanted != b)
        flux__note(FLUX_LOG_WARN, "gpu.other", true,
                   "gpu: the preferred back end %s can't be used (%s): moving to %s",
                   flux__backends[wanted].name, flux__probe_of(wanted)->why,
                   flux__backends[b].name);
    return true;
}

/* The target of flux_cu and flux_roc: back end b; if it cannot be used, warns and returns false. */
static bool flux__to_named(flux__move_target *target, int b, const char *call) {
    char id[24];
    target->to.backend = b;
    target->to.id = flux__own_gpu(b);
    target->any = true;
    if (flux__probe_of(b)->functional) return true;
    snprintf(id, sizeof id, "%s.none", call);
    flux__note(FLUX_LOG_WARN, id, true,
               "%s: %s can't be used, so everything stays where it is (%s)", call,
               flux__backends[b].name, flux__probe_of(b)->why);
    return false;
}
static bool flux__to_cu(flux__move_target *target) {
    return flux__to_named(target, FLUX__CUDA_BACKEND, "cu");
}
static bool flux__to_roc(flux__move_target *target) {
    return flux__to_named(target, FLUX__AMDGPU_BACKEND, "roc");
}

static bool flux__to_cpu(flux__move_target *target) {
    memset(target, 0, sizeof *target);
    return true;
}

/* The target of flux_to: device d; false, with an error, if it cannot be used. */
static bool flux__to_device(flux__move_target *target, flux_device d) {
    target->to = d;
    target->any = false;
    if (d.backend == FLUX__CPU_BACKEND) target->to.id = 0;
    if (flux__device_is(target->to)) return true;
    bool named = d.backend >= 0 && d.backend < FLUX__BACKENDS;
    /* a call that finds no device says why, and gives {-1, 0} */
    if (d.backend == -1 && flux__null_explained()) return false;
    if (!named) flux__fail("to: there is no device {%d, %d}", d.backend, d.id);
    else if (flux__probe_of(d.backend)->functional)
        flux__fail("to: %s has no device %d: ids go from 0 to %d", flux__backends[d.backend].name,
                   d.id, flux__probe_of(d.backend)->count - 1);
    else
        flux__fail("to: %s can't be used: %s", flux__backends[d.backend].name,
                   flux__probe_of(d.backend)->why);
    return false;
}

/* ---- the four kinds of things that move */

static flux_layer *flux__travel_layer(flux_layer *m, const flux__move_target *target) {
    flux__move_target copy = *target;
    return flux__map_layer(flux__moved_leaf, &copy, m, true);
}

/* Moves a loader's batches, not its data, by a stage at its end. Returns the loader itself if its
   batches are on the target already, in the dtypes that they would get there. */
static flux_loader *flux__travel_loader(flux_loader *l, const flux__move_target *target) {
    bool right = flux__there(flux__loader_device(l), target),
         to_host = target->to.backend == FLUX__CPU_BACKEND;
    const flux__stage *last = l->stages ? &l->stage[l->stages - 1] : NULL;
    if (last && last->kind == FLUX__STAGE_MOVE)
        right = right && (to_host || !last->keep_f64 || !target->any);
    for (int i = 0; !last && i < l->arrays; i++)
        right = right && flux__there(l->array[i]->device, target) &&
                !flux__narrows(l->array[i]->dtype, l->array[i]->device, target);
    return right ? l : flux__loader_on(l, target->to, to_host);
}

/* look: move nothing, only find out whether something would move (moves). */
typedef struct flux__state_move {
    const flux__move_target *target;
    bool look, moves, failed;
} flux__state_move;

/* Moves the tensor in one slot of a state (flux__state_fields calls it). */
static void flux__travel_slot(flux_tensor **slot, const char *path, bool trained,
                              const flux_layer *owner, void *user) {
    flux__state_move *t = (flux__state_move *)user;
    flux_tensor *x = *slot;
    (void)path, (void)trained, (void)owner;
    if (t->failed || !flux__dtypes[x->dtype].real) return; /* int64 counts are read on the host */
    if (flux__there(x->device, t->target) && !flux__narrows(x->dtype, x->device, t->target)) return;
    t->moves = true;
    if (t->look) return;
    x = flux__moved(x, t->target);
    if (x) flux_assign(slot, x);
    else t->failed = true;
}

/* Moves a state: the first pass asks whether a tensor would move; if so, a copy's
   tensors are moved. */
static flux_state *flux__travel_state(flux_state *s, const flux__move_target *target) {
    flux__state_move t = { target, true, false, false };
    flux__state_fields(s, flux__travel_slot, &t);
    if (!t.moves) return s;
    int h = flux__hide();
    const int b = flux__nograd_enter();
    flux_state *copy = flux__state_copy(s);
    t.look = false;
    if (copy) flux__state_fields(copy, flux__travel_slot, &t);
    /* flux_update compares leaf.p's dtype with that of the parameter, which narrows when moved */
    for (int i = 0; copy && i < copy->nleaves; i++) {
        flux_tensor *p = copy->leaf[i].p;
        if (!t.failed && flux__narrows(p->dtype, p->device, target))
            flux_assign(&copy->leaf[i].p, flux_to_dtype(p, FLUX_F32));
        t.failed = t.failed || !copy->leaf[i].p;
    }
    flux__nograd_leave(b);
    return (flux_state *)flux__reveal_object(h, t.failed ? NULL : copy);
}

#define FLUX__DEFINE_MOVE(T, name, suffix, travel, find)                                           \
    FLUX_DEF T *(flux_##name##suffix)(T *x) {                                                      \
        flux__move_target target;                                                                  \
        if (!x) return (T *)flux__null(#name, "x", x);                                             \
        return find(&target) ? travel(x, &target) : x;                                             \
    }
#define FLUX__DEFINE_MOVES(T, suffix, to_suffix, travel)                                           \
    FLUX__DEFINE_MOVE(T, gpu, suffix, travel, flux__to_gpu)                                        \
    FLUX__DEFINE_MOVE(T, cpu, suffix, travel, flux__to_cpu)                                        \
    FLUX__DEFINE_MOVE(T, cu, suffix, travel, flux__to_cu)                                          \
    FLUX__DEFINE_MOVE(T, roc, suffix, travel, flux__to_roc)                                        \
    FLUX_DEF T *flux_to##to_suffix(flux_device d, T *x) {                                          \
        flux__move_target target;                                                                  \
        if (!x) return (T *)flux__null("to", "x", x);                                              \
        return flux__to_device(&target, d) ? travel(x, &target) : NULL;                            \
    }
FLUX__DEFINE_MOVES(flux_tensor, , _tensor, flux__moved_any)
FLUX__DEFINE_MOVES(flux_layer, _layer, _layer, flux__travel_layer)
FLUX__DEFINE_MOVES(flux_loader, _loader, _loader, flux__travel_loader)
FLUX__DEFINE_MOVES(flux_state, _state, _state, flux__travel_state)

/* ---- where something is */

/* The device of several tensors: that of the first, whose path is kept for the message if another
   tensor is elsewhere. failed: one is, or not all were met. */
typedef struct flux__placement {
    flux_device at;
    bool met, failed;
    char path[160];
} flux__placement;

/* Adds the device of one more tensor; the first one that differs is an error that names both. */
static void flux__placement_meet(flux__placement *p, flux_device at, const char *path) {
    if (!p->met) {
        p->at = at;
        p->met = true;
        snprintf(p->path, sizeof p->path, "%s", path);
    } else if (!p->failed && !flux__same_device(p->at, at)) {
        p->failed = true;
        flux__fail("device_of: on several devices: %s is on %s, %.150s on %s", p->path,
                   flux_device_name(p->at), path, flux_device_name(at));
    }
}

static flux_device flux__placement_of(const flux__placement *p) {
    flux_device none = { -1, 0 };
    return p->failed ? none : p->at;      /* {0, 0}, the CPU, if there is no tensor */
}

static void flux__placement_visit(flux_tensor *x, const char *path, bool trained, void *user) {
    (void)trained;
    flux__placement_meet((flux__placement *)user, x->device, path);
}

static void flux__placement_number(flux__placement *p, const flux_tensor *x, const char *what,
                                     int i) {
    char path[40];
    snprintf(path, sizeof path, "%s %d", what, i);
    flux__placement_meet(p, x->device, path);
}

static flux_device flux__nowhere(const void *x) {
    flux_device none = { -1, 0 };
    flux__null("device_of", "x", x);
    return none;
}

FLUX_DEF flux_device flux_device_of_tensor(const flux_tensor *x) {
    FLUX__ZEROED(flux__placement, p);
    if (!x || FLUX__GONE("device_of", x)) return flux__nowhere(x);
    if (x->op != FLUX__TUPLE) return x->device;
    for (int i = 0; i < x->nin; i++) flux__placement_number(&p, x->in[i], "tensor", i);
    return flux__placement_of(&p);
}

FLUX_DEF flux_device flux_device_of_layer(const flux_layer *m) {
    FLUX__ZEROED(flux__placement, p);
    if (!m) return flux__nowhere(m);
    if (!flux__visit("device_of", m, flux__placement_visit, &p)) p.failed = true;
    return flux__placement_of(&p);
}

FLUX_DEF flux_device flux_device_of_loader(const flux_loader *l) {
    FLUX__ZEROED(flux__placement, p);
    if (!l) return flux__nowhere(l);
    for (int i = 0; i < l->stages; i++)
        if (l->stage[i].kind == FLUX__STAGE_MOVE) return flux__loader_device(l);
    for (int i = 0; i < l->arrays; i++) flux__placement_number(&p, l->array[i], "array", i);
    return flux__placement_of(&p);
}

static void flux__placement_slot(flux_tensor **slot, const char *path, bool trained,
                                   const flux_layer *owner, void *user) {
    (void)trained, (void)owner;
    if (flux__dtypes[(*slot)->dtype].real)
        flux__placement_meet((flux__placement *)user, (*slot)->device, path);
}

FLUX_DEF flux_device flux_device_of_state(const flux_state *s) {
    FLUX__ZEROED(flux__placement, p);
    if (!s) return flux__nowhere(s);
    flux__state_fields((flux_state *)(intptr_t)s, flux__placement_slot, &p);
    return flux__placement_of(&p);
}

FLUX__END_COLD

#endif /* FLUX__NN_MOVES_H */
