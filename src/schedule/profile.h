#ifndef FLUX__SCHEDULE_PROFILE_H
#define FLUX__SCHEDULE_PROFILE_H
#include "../base/platform.h"
#include "../base/threads.h"
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../graph/nodes.h"
#include "../graph/attention.h"
#include "kernel.h"
#include "key.h"
#include "order.h"

/* ---------------------------------------------------------------------- schedule/profile.h
   Where the time goes: the origins of nodes, that is the layer whose call, or
   whose call's gradient, recorded them, and a sum for each origin and kind of
   kernel (flux_profile, FLUX_PROFILE). nn/model.h tells which layer is called;
   text/profile.h prints.

   Invariant: nodes carry an origin only while flux__profile_on is set, which is
   one atomic load for a layer's call and for a plan's run. An origin is a number
   from 1, which stays the same as long as the process runs: the origin of the
   layer around it, the field in which that layer holds it, and its type. Bit 31
   (FLUX__BACKWARD) says that the node is part of a gradient. A fused kernel
   belongs to the layer of its product, or else of what it stores first.

   Rejected: origins in the key of a plan, which would make a plan of its own for
   each layer of the same shape. */

FLUX__BEGIN_COLD

typedef struct flux__origin {
    uint32_t around;                      /* the origin of the layer around it, or 0 */
    char *field, *type;                   /* "layers.2", or "" in no layer; "Dense" */
} flux__origin;

typedef struct flux__profile_row {        /* what kernels of one origin and kind took */
    uint32_t origin;
    char what[96];                        /* the kind and its operations, without sizes */
    double seconds, most;                 /* in all, and the longest */
    int64_t count, madds, moved, stored;  /* multiply-adds and bytes of all; bytes of the largest
                                             result */
} flux__profile_row;

static flux__mutex flux__profile_lock = FLUX__MUTEX_INIT;
static int flux__profile_on, flux__profile_known;   /* known: FLUX_PROFILE has been asked for */
static struct {
    flux__origin *origin;
    int norigin, origin_capacity;
    flux__profile_row *row;
    int nrow, row_capacity;
    double evaluations;                   /* seconds of whole evaluations, kernels included */
    int64_t count;                        /* evaluations */
    bool at_end;                          /* FLUX_PROFILE: it is printed when the program ends */
} flux__profile;

/* Whether what runs is measured. */
static bool flux__profiling(void) {
    if (!flux__atomic_load32(&flux__profile_known)) {
        const char *asked = flux__env("FLUX_PROFILE");
        flux__mutex_lock(&flux__profile_lock);
        flux__profile.at_end = asked && *asked && strcmp(asked, "0") != 0;
        if (flux__profile.at_end) flux__atomic_store32(&flux__profile_on, 1);
        flux__atomic_store32(&flux__profile_known, 1);
        flux__mutex_unlock(&flux__profile_lock);
    }
    return flux__atomic_load32(&flux__profile_on) != 0;
}

/* The number of the origin `type` in the field `field` of the layer `around`; 0 where memory has
   run out. */
static uint32_t flux__origin_of(uint32_t around, const char *field, const char *type) {
    uint32_t found = 0;
    flux__hold();
    flux__mutex_lock(&flux__profile_lock);
    for (int i = 0; i < flux__profile.norigin && !found; i++) {
        const flux__origin *o = &flux__profile.origin[i];
        if (o->around == around && !strcmp(o->field, field) && !strcmp(o->type, type))
            found = (uint32_t)i + 1;
    }
    flux__origin *all = found ? NULL
                              : (flux__origin *)flux__grow(
                                    flux__profile.origin, &flux__profile.origin_capacity,
                                    flux__profile.norigin + 1, sizeof *all);
    if (all) {
        const size_t n = strlen(field) + 1, m = strlen(type) + 1;
        flux__profile.origin = all;
        all += flux__profile.norigin;
        all->around = around;
        all->field = (char *)flux__malloc(n + m);
        if (all->field) {
            all->type = all->field + n;
            memcpy(all->field, field, n);
            memcpy(all->type, type, m);
            found = (uint32_t)++flux__profile.norigin;
        }
    }
    flux__mutex_unlock(&flux__profile_lock);
    flux__tell();
    return found;
}

/* Writes an origin as "layers.2.layers.0 Dense backward"; nothing for 0. Returns the length. The
   lock is held by the caller, or nothing is recorded meanwhile. */
static size_t flux__origin_text(uint32_t origin, char *out, size_t n) {
    const flux__origin *way[FLUX_MAX_LEVELS], *last = NULL;
    int depth = 0;
    size_t used = 0;
    for (uint32_t at = origin & ~FLUX__BACKWARD;
         at && at <= (uint32_t)flux__profile.norigin && depth < FLUX_MAX_LEVELS;
         at = way[depth - 1]->around & ~FLUX__BACKWARD)
        way[depth++] = &flux__profile.origin[at - 1];
    if (depth) last = way[0];
    out[0] = 0;
#define FLUX__ORIGIN_PUT(...) \
    do if (used + 1 < n) used += (size_t)snprintf(out + used, n - used, __VA_ARGS__); while (0)
    while (depth-- > 0)
        if (*way[depth]->field) FLUX__ORIGIN_PUT("%s%s", used ? "." : "", way[depth]->field);
    if (last) FLUX__ORIGIN_PUT("%s%s", used ? " " : "", last->type);
    if (origin & FLUX__BACKWARD) FLUX__ORIGIN_PUT("%sbackward", used ? " " : "");
#undef FLUX__ORIGIN_PUT
    return used < n ? used : n - 1;
}

/* The origin of a kernel: that of its product or, where it has none, of what it stores first. */
static uint32_t flux__kernel_origin(const flux__kernel *k, const flux__graph *g) {
    return g->node[k->node >= 0 ? k->node : k->outs[0]]->origin;
}

/* The multiply-adds of a kernel: of products and of attention; those of other kernels are not
   counted. The gradient of attention has five products for the two of its forward pass. */
static int64_t flux__kernel_madds(const flux__kernel *k, const flux__graph *g) {
    if (k->node < 0) return 0;
    const flux_tensor *t = g->node[k->node];
    if (k->kind == FLUX__K_MATMUL) return flux__size(t) * k->mnk[2];
    if (t->op != FLUX__ATTEND) return 0;
    const flux_tensor *q = t->in[0];
    const int64_t d = q->dim[0], dv = t->in[2]->dim[0],
                  scores = q->dim[1] * t->in[1]->dim[1] * (q->ndim > 2 ? q->dim[2] : 1);
    return scores * (t->arg.i[2] & FLUX__ATTEND_BACK ? 3 * d + 2 * dv : d + dv);
}

/* Adds a kernel that took `seconds` to the row of its origin and kind. */
static void flux__profile_kernel(const flux__plan *plan, const flux__graph *g,
                                 const flux__kernel *k, double seconds) {
    flux__profile_row new_row, *row = NULL;
    memset(&new_row, 0, sizeof new_row);
    new_row.origin = flux__kernel_origin(k, g);
    flux__kernel_words(plan, g, k, FLUX__WORDS_KIND, new_row.what, sizeof new_row.what);
    char *colon = strchr(new_row.what, ':');
    if (colon && !colon[1]) *colon = 0;   /* no operations behind it */
    int64_t stored = 0;
    for (int i = 0; i < k->nouts; i++) stored += flux__out_bytes(g->node[k->outs[i]]);
    flux__mutex_lock(&flux__profile_lock);
    for (int i = 0; i < flux__profile.nrow && !row; i++)
        if (flux__profile.row[i].origin == new_row.origin &&
            !strcmp(flux__profile.row[i].what, new_row.what)) row = &flux__profile.row[i];
    if (!row) {
        row = (flux__profile_row *)flux__grow(flux__profile.row, &flux__profile.row_capacity,
                                              flux__profile.nrow + 1, sizeof *row);
        if (row) {
            flux__profile.row = row;
            row += flux__profile.nrow++;
            *row = new_row;
        }
    }
    if (row) {
        row->count++;
        row->seconds += seconds;
        if (seconds > row->most) row->most = seconds;
        row->madds += flux__kernel_madds(k, g);
        row->moved += flux__kernel_bytes(k, g);
        if (stored > row->stored) row->stored = stored;
    }
    flux__mutex_unlock(&flux__profile_lock);
}

static void flux__profile_evaluation(double seconds) {
    flux__mutex_lock(&flux__profile_lock);
    flux__profile.evaluations += seconds;
    flux__profile.count++;
    flux__mutex_unlock(&flux__profile_lock);
}

/* Forgets what was measured. Origins stay, since nodes may carry them. */
static void flux__profile_clear(void) {
    flux__mutex_lock(&flux__profile_lock);
    flux__profile.nrow = 0;
    flux__profile.evaluations = 0;
    flux__profile.count = 0;
    flux__mutex_unlock(&flux__profile_lock);
}

/* Frees all; at the program's end, when no node is evaluated any more. */
static void flux__profile_free(void) {
    flux__mutex_lock(&flux__profile_lock);
    for (int i = 0; i < flux__profile.norigin; i++) flux__free(flux__profile.origin[i].field);
    flux__free(flux__profile.origin);
    flux__free(flux__profile.row);
    memset(&flux__profile, 0, sizeof flux__profile);
    flux__atomic_store32(&flux__profile_on, 0);
    flux__atomic_store32(&flux__profile_known, 0);
    flux__mutex_unlock(&flux__profile_lock);
}

FLUX__END_COLD

#endif /* FLUX__SCHEDULE_PROFILE_H */
