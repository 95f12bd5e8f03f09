#ifndef FLUX__NN_UPDATE_H
#define FLUX__NN_UPDATE_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/ranks.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/key.h"
#include "../schedule/profile.h"
#include "../schedule/looking.h"
#include "../schedule/update.h"
#include "../device/registry.h"
#include "walk.h"
#include "rules.h"
#include "state.h"
#include "variables.h"

/* ---------------------------------------------------------------------- nn/update.h
   The optimiser's step, flux_update: it walks the model to find the parameters,
   records the new parameters and states, evaluates them, and stores them in the
   model and the state. Scaled losses for float16 are here as well.

   Invariant: the new parameters and states of the whole model are one graph and
   are computed together (schedule/update.h), in the memory of the old ones where
   no other reference can observe it. Only then does a commit, which cannot fail,
   store them. Whatever fails before the commit leaves model and state as they
   were. The model must be that of flux_setup: the same paths, shapes and ties,
   on the device of its state. Tied fields get the one new tensor, and a field
   that held a view of the old tensor gets the same view of the new one. Running
   statistics that layers have recorded are computed in the same evaluation. A
   step whose scaled gradients are not finite is skipped and halves the loss
   scale; 2000 steps without one double it. */

FLUX__BEGIN_LEAN

/* The walk of flux_update over the model: `at` is the place expected next. */
typedef struct flux__ref_check { flux_state *s; int at; bool bad; } flux__ref_check;

/* Walk callback of flux_update. A trained tensor must stand at the path of the next place; its
   field is noted there, and whether its layer is frozen. Any other tensor that is not evaluated yet
   (a running statistic) goes into s->pending. */
static void flux__ref_meet(flux_tensor **slot, const char *path, bool trained,
                            const flux_layer *owner, void *user) {
    flux__ref_check *w = (flux__ref_check *)user;
    flux_state *s = w->s;
    int i = w->at;
    if (!trained && !flux__finished(flux__base(*slot))) {
        flux_tensor **one = (flux_tensor **)flux__one_more(&s->pending, &s->pending_room,
                                                           s->npending, sizeof *one);
        if (one) *one = *slot, s->npending++;
        else w->bad = true;
    }
    if (!trained || w->bad) return;
    if (i >= s->nrefs || strcmp(s->ref[i].path, path) != 0) {
        flux__fail(
            "update: this model has the parameter %.100s where the one of flux_setup had %.100s",
            path, i < s->nrefs ? s->ref[i].path : "no more");
        w->bad = true;
        return;
    }
    s->ref[i].slot = slot;
    s->ref[i].owner = owner;
    if (owner->frozen) s->leaf[s->ref[i].leaf].frozen = true;
    w->at++;
}

/* Whether an earlier place is this very field, because a shared layer stands in the model twice. */
static bool flux__ref_again(const flux_state *s, int ref) {
    for (int i = s->leaf[s->ref[ref].leaf].ref; i < ref; i++)
        if (s->ref[i].slot == s->ref[ref].slot) return true;
    return false;
}

/* Finds each leaf's present tensor and how many fields hold it, and checks that fields that were
   tied at flux_setup still hold that tensor or a view of it. */
static bool flux__check_ties(flux_state *s) {
    for (int i = 0; i < s->nleaves; i++) s->leaf[i].now = *s->ref[s->leaf[i].ref].slot;
    for (int i = 0; i < s->nrefs; i++) {
        flux__trained_param *l = &s->leaf[s->ref[i].leaf];
        flux_tensor *x = *s->ref[i].slot;
        if ((s->ref[i].view ? x->base : x) != l->now)
            return FLUX__REFUSE(
                "update: %.100s was tied to %.100s at flux_setup and is not any more",
                s->ref[i].path, s->ref[l->ref].path);
        if (!s->ref[i].view && !flux__ref_again(s, i)) l->owners++;
    }
    return true;
}

/* A tensor of the leaf's state, or NULL if it has none; its device is the state's. */
static flux_tensor *flux__state_sample(const flux_state *s, int leaf) {
    return s->leaf[leaf].master ? s->leaf[leaf].master
           : s->nstates         ? s->s[leaf * s->nstates]
                                : NULL;
}

/* A parameter that somebody has replaced since the last update must still fit its state. */
static FLUX__COLD bool flux__check_replaced(const flux_state *s, int leaf) {
    const flux__trained_param *l = &s->leaf[leaf];
    if (!flux__same_dims(l->p, l->now) || l->p->dtype != l->now->dtype)
        return FLUX__REFUSE("update: %.100s is %s, but was %s at flux_setup",
                            flux__leaf_path(s, leaf), flux__describe(l->now).s,
                            flux__describe(l->p).s);
    for (int i = 0; i < s->nleaves; i++)
        if (i != leaf && s->leaf[i].now == l->now)
            return FLUX__REFUSE("update: %.100s is tied to %.100s now, and was not at flux_setup",
                                flux__leaf_path(s, leaf), flux__leaf_path(s, i));
    return true;
}

/* Whether a leaf is on the device of its state; if not, an error. */
static bool flux__check_device(const flux_state *s, int leaf) {
    const flux_tensor *held = flux__state_sample(s, leaf), *now = s->leaf[leaf].now;
    char where[96];
    if (!held || flux__same_device(now->device, held->device)) return true;
    snprintf(where, sizeof where, "%s", flux_device_name(held->device));
    return FLUX__REFUSE(
        "update: %.100s is on %s, but its optimiser state on %s; move the state with flux_to",
        flux__leaf_path(s, leaf), flux_device_name(now->device), where);
}

/* Walks the model: fills in each place's field and each leaf's present tensor, and checks that it
   is the model of flux_setup. */
static bool flux__meet_model(flux_state *s, flux_layer *model) {
    flux__ref_check w = { s, 0, false };
    s->npending = 0;
    for (int i = 0; i < s->nleaves; i++) s->leaf[i].frozen = false, s->leaf[i].owners = 0;
    if (!flux__walk_all(model, flux__ref_meet, NULL, &w) || w.bad) return false;
    if (w.at < s->nrefs)
        return FLUX__REFUSE(
            "update: this model has no parameter %.100s, which the one of flux_setup had",
            s->ref[w.at].path);
    if (!flux__check_ties(s)) return false;
    for (int i = 0; i < s->nleaves; i++)
        if (!flux__check_device(s, i) ||
            (s->leaf[i].now != s->leaf[i].p && !flux__check_replaced(s, i)))
            return false;
    return true;
}

/* Reads scale, good and skipped back from s->scaling: flux__state_fields has shown that tensor, and
   a file may have been loaded into it since. Numbers out of range are clamped. */
static FLUX__COLD bool flux__take_scale(flux_state *s) {
    int64_t v[3];
    if (!s->scaling) return true;
    if (flux_read(s->scaling, v, sizeof v) != 0) return false;
    flux_assign(&s->scaling, NULL);
    for (int i = 0; i < 3; i++) v[i] = v[i] < (i == 0) ? i == 0 : v[i];
    if (v[0] > FLUX__LAST_SCALE) v[0] = FLUX__LAST_SCALE;
    const bool changed = s->scale != (double)v[0];
    s->scale = (double)v[0], s->good = v[1], s->skipped = v[2];
    if (s->scaled && changed)
        return FLUX__REFUSE(
            "update: another loss scale was loaded after flux_scaled_loss; record the loss again");
    return true;
}

/* Reads back the loss scale and the step counts of all leaves, where they were shown as tensors. */
static bool flux__take_counts(flux_state *s) {
    if (!flux__take_scale(s)) return false;
    for (int i = 0; i < s->nleaves; i++) {
        flux__trained_param *l = &s->leaf[i];
        int64_t *t = &s->t[i * s->nrules];
        if (!l->steps) continue;
        if (flux_read(l->steps, t, (size_t)s->nrules * sizeof *t) != 0) return false;
        flux_assign(&l->steps, NULL);
        for (int r = 0; r < s->nrules; r++)
            if (t[r] < 0) t[r] = 0;
    }
    return true;
}

/* ---------------- update: the step */

/* The gradient with respect to x, or NULL; index `guess` is tried first. */
static flux_tensor *flux__gradient_by(const flux_grads *g, const flux_tensor *x, int guess) {
    if (guess < g->n && g->of[guess] == x) return g->grad[guess];
    for (int i = 0; i < g->n; i++)
        if (g->of[i] == x) return g->grad[i];
    return NULL;
}

/* The master copy if there is one, else p: the parameter, or this rank's share of it, in the dtype
   of the states. After parameter or master were replaced, by loading say, the master counts only
   where the parameter is what it rounds to: a state may have been saved after its parameters were
   replaced. */
static flux_tensor *flux__full_precision(const flux__trained_param *l, flux_tensor *p) {
    const bool replaced = l->now != l->p || (l->master_seen && l->master_seen != l->master);
    if (!l->master) return p;
    if (!replaced) return l->master;
    flux_tensor *rounded = flux_to_dtype(l->master, (flux_dtype)l->now->dtype);
    return (flux_where)((flux_eq)(p, flux_to_dtype(rounded, (flux_dtype)p->dtype)), l->master, p);
}

/* Sets up the leaf's flux__step with its gradient d, unscaled through k->scale, and its parameter
   in the dtype of the states. If d is NULL, k->d stays NULL: no step is made. */
static bool flux__start_step(flux_state *s, int leaf, flux_tensor *d) {
    flux__trained_param *l = &s->leaf[leaf];
    flux__step *k = &s->step[leaf];
    memset((void *)k, 0, sizeof *k);
    k->shared = &s->constants;
    l->next = l->next_master = NULL;
    for (int i = 0; i < s->nstates; i++) s->next[leaf * s->nstates + i] = NULL;
    if (!d) return true;
    flux_dtype t = flux__state_dtype(l->now);
    k->d = flux_to_dtype(d, t);
    k->p = flux_to_dtype(l->now, t);
    /* the rules before that which cuts gradients into shares see whole parameters */
    if (k->p && s->ranks < 2) k->p = flux__full_precision(l, k->p);
    k->scale = s->scaled ? 1 / s->scale : 1;
    k->measured = s->scaled != NULL;
    return k->d && k->p;
}

/* The p-norm of n numbers that are 0 or more; divided by the largest, none of them overflows. */
static FLUX__COLD double flux__norm_of_norms(int n, const double *v, double p) {
    double most = 0, sum = 0;
    for (int i = 0; i < n; i++)
        if (v[i] > most || v[i] != v[i]) most = v[i];
    if (most == 0 || p > DBL_MAX || !(most - most == 0)) return most;
    for (int i = 0; i < n; i++) sum += pow(v[i] / most, p);
    return most * pow(sum, 1 / p);
}

/* Makes the norms of shares those of whole gradients, the same on all ranks. */
static FLUX__COLD bool flux__join_norms(flux_state *s) {
    const size_t n = (size_t)s->nleaves, ranks = (size_t)s->ranks;
    double *all = (double *)flux__zalloc((n * ranks + ranks) * sizeof *all), *one = all + n * ranks;
    if (!all) return false;
    for (size_t i = 0; i < n; i++)
        if (s->step[i].norm) all[(size_t)s->rank * n + i] = s->step[i].size;
    const bool ok = flux__ranks->gather(s->rule[s->cut].comm, s->nleaves, all);
    for (size_t i = 0; i < n && ok; i++) {
        for (size_t r = 0; r < ranks; r++) one[r] = all[r * n + i];
        if (s->step[i].norm)
            s->step[i].size = flux__norm_of_norms(s->ranks, one, s->step[i].o.p);
    }
    flux__free(all);
    return ok;
}

/* Evaluates the norms that flux__step_clipnorm, rule number r, has recorded, all together, into
   k->size. */
static FLUX__COLD bool flux__measure(flux_state *s, int r) {
    int n = 0;
    for (int i = 0; i < s->nleaves; i++)
        if (s->step[i].norm) s->news[n++] = s->step[i].norm;
    if (flux_eval_all(n, s->news) != 0) return false;
    for (int i = 0; i < s->nleaves; i++) {
        flux__step *k = &s->step[i];
        if (k->norm) k->size = flux_item(k->norm) * fabs(k->scale);
    }
    if (r > s->cut && !flux__join_norms(s)) return false;
    for (int i = 0; i < s->nleaves; i++) {
        const flux__step *k = &s->step[i];
        if (k->norm && !(k->size - k->size == 0))
            return FLUX__REFUSE("clipnorm: the gradient of %.100s has the %g-norm %g",
                                flux__leaf_path(s, i), (double)k->o.p, k->size);
    }
    return true;
}

/* Scales a gradient that has the norm `size`, alone or among others, down to omega. */
static FLUX__COLD void flux__clip_step(flux__step *k, double size) {
    if (!k->norm) return;
    if (size > k->o.omega) k->scale *= k->o.omega / size;
    k->measured = true;
    k->norm = NULL;
}

static FLUX__COLD bool flux__clip_norms(flux_state *s, int r) {
    if (!flux__measure(s, r)) return false;
    for (int i = 0; i < s->nleaves; i++) flux__clip_step(&s->step[i], s->step[i].size);
    return true;
}

/* The same by the norm of all gradients taken as one vector. */
static FLUX__COLD bool flux__clip_global(flux_state *s, int r) {
    int n = 0;
    if (!flux__measure(s, r)) return false;
    double *sizes = (double *)flux__malloc((size_t)s->nleaves * sizeof *sizes);
    if (!sizes) return false;
    for (int i = 0; i < s->nleaves; i++)
        if (s->step[i].norm) sizes[n++] = s->step[i].size;
    const double all = flux__norm_of_norms(n, sizes, s->rule[r].o.p);
    flux__free(sizes);
    for (int i = 0; i < s->nleaves; i++) flux__clip_step(&s->step[i], all);
    return true;
}

static bool flux__distribute(flux_state *s, int r) { return flux__ranks->distribute(s, r); }

/* Passes the gradients of all leaves through rule number r, whose first state has the index `at`
   among a leaf's states. */
static bool flux__apply_rule(flux_state *s, int r, int at) {
    const flux__rule_row *row = &flux__rule_rows[s->rule[r].kind];
    int64_t failures = flux__failures();
    for (int i = 0; i < s->nleaves; i++) {
        flux__step *k = &s->step[i];
        if (!k->d || !row->step) continue;
        k->o = flux__opts_of(s, i, r);
        k->part = &s->rule[r];
        if (flux__row_has(row, FLUX__ETA)) flux__take_pace(k);
        k->t = s->t[i * s->nrules + r] + 1;
        k->s = &s->s[i * s->nstates + at];
        k->next = &s->next[i * s->nstates + at];
        row->step(k);
        s->t_next[i * s->nrules + r] = k->t;
        if (flux__failed_since(failures)) return false;
    }
    return !row->all || row->all(s, r);
}

/* Records the new parameter, p - scale * d in p's dtype, and the new master copy
   if there is one; of both a share, where p is one. */
static bool flux__finish_step(flux_state *s, int leaf) {
    flux__trained_param *l = &s->leaf[leaf];
    flux__step *k = &s->step[leaf];
    if (!k->d) return true;
    flux_tensor *p = flux__scaled_sum(k, k->d, -k->scale, k->p);
    if (l->master) l->next_master = p;
    l->next = p ? flux_to_dtype(p, (flux_dtype)l->now->dtype) : NULL;
    return l->next != NULL;
}

/* For a place that holds a view of its leaf's tensor: records the same view of the new tensor. */
static bool flux__finish_view(flux_state *s, flux__param_ref *ref) {
    flux__trained_param *l = &s->leaf[ref->leaf];
    flux_tensor *x = *ref->slot;
    ref->next = NULL;
    if (!ref->view || !l->next) return true;
    flux_shape dims = flux__dims(x);
    ref->next = flux__as_strided(l->next, &dims, x->offset, x->stride, x->offset, x->stride,
                                 l->next);
    return ref->next != NULL;
}

/* Records the graph of the whole update: every leaf through every rule, then
   parameters and views. */
static bool flux__build_update(flux_state *s, const flux_grads *g) {
    memcpy(s->t_next, s->t, (size_t)(s->nleaves * s->nrules) * sizeof *s->t);
    s->constants.n = 0;
    for (int i = 0; i < s->nleaves; i++)
        if (!flux__start_step(s, i, s->leaf[i].frozen ? NULL
                                                      : flux__gradient_by(g, s->leaf[i].now, i)))
            return false;
    for (int r = 0, at = 0; r < s->nrules; r++) {
        if (!flux__apply_rule(s, r, at)) return false;
        at += flux__row_states(&flux__rule_rows[s->rule[r].kind]);
    }
    for (int i = 0; i < s->nleaves; i++)
        if (!flux__finish_step(s, i)) return false;
    if (s->ranks > 1 && !flux__ranks->join(s)) return false;
    for (int i = 0; i < s->nrefs; i++)
        if (!flux__finish_view(s, &s->ref[i])) return false;
    return true;
}

/* Adds a pair of tensors to olds and news, unless `fresh` is NULL; returns the new length. `owners`
   is the number of references to `old` that the commit releases. */
static int flux__list_new(flux_state *s, int n, flux_tensor *old, flux_tensor *fresh, int owners) {
    if (!fresh) return n;
    s->olds[n] = old;
    s->news[n] = (flux_tensor *)flux_retain(fresh);
    s->owners[n] = owners;
    return n + 1;
}

/* Lists all new parameters, masters and states beside the tensors that they replace; returns how
   many there are. A parameter is held by its fields and, if unchanged since, by leaf.p. */
static int flux__list_news(flux_state *s) {
    int n = 0;
    for (int i = 0; i < s->nleaves; i++) {
        flux__trained_param *l = &s->leaf[i];
        n = flux__list_new(s, n, l->now, l->next, l->owners + (l->now == l->p));
        if (l->next_master != l->next) n = flux__list_new(s, n, l->master, l->next_master, 1);
        for (int k = i * s->nstates; k < (i + 1) * s->nstates; k++)
            n = flux__list_new(s, n, s->s[k], s->next[k], 1);
    }
    return n;
}

/* Stores the new tensors in the model's fields and in the state; nothing here can fail. */
static void flux__commit(flux_state *s) {
    for (int i = 0; i < s->nrefs; i++) {
        flux__param_ref *ref = &s->ref[i];
        flux_tensor *fresh = ref->view ? ref->next : s->leaf[ref->leaf].next;
        if (fresh) flux_assign(ref->slot, fresh);
        if (fresh) flux__show_variable(ref->owner);
    }
    for (int i = 0; i < s->nleaves; i++) {
        flux__trained_param *l = &s->leaf[i];
        if (l->next) flux_assign(&l->p, l->next);
        if (l->next_master) flux_assign(&l->master, l->next_master);
        flux_assign(&l->master_seen, NULL);
    }
    for (int i = 0; i < s->nleaves * s->nstates; i++)
        if (s->next[i]) flux_assign(&s->s[i], s->next[i]);
    memcpy(s->t, s->t_next, (size_t)(s->nleaves * s->nrules) * sizeof *s->t);
}

/* Whether any leaf is not frozen. */
static bool flux__any_awake(const flux_state *s) {
    for (int i = 0; i < s->nleaves; i++)
        if (!s->leaf[i].frozen) return true;
    return false;
}

/* ---------------- update: gradients of a scaled loss */

/* The loss times the loss scale, in float32 or float64; the loss itself if the
   state has no scale. */
FLUX_DEF FLUX__COLD flux_tensor *flux_scaled_loss(flux_state *s, flux_tensor *loss) {
    if (!s || !loss) return (flux_tensor *)flux__null("scaled_loss", s ? "loss" : "state", NULL);
    if (!flux__check_operands("scaled_loss", 1, &loss)) return NULL;
    if (s->scale == 0) return loss;
    if (!flux__take_scale(s)) return NULL;
    int h = flux__hide();
    flux_tensor *y = flux_to_dtype(loss, loss->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32);
    y = y ? flux__elementwise(FLUX__OP_MUL, y, flux__number(s->scale), NULL) : NULL;
    if (y) flux_assign(&s->scaled, y);
    return flux__reveal(h, y);
}

FLUX_DEF FLUX__COLD double flux_loss_scale(flux_state *s) {
    if (!s) return flux__null("loss_scale", "state", s), (double)NAN;
    return !flux__take_scale(s) ? (double)NAN : s->scale > 0 ? s->scale : 1;
}

FLUX_DEF FLUX__COLD int64_t flux_skipped(flux_state *s) {
    if (!s) return flux__null("skipped", "state", s), -1;
    return flux__take_scale(s) ? s->skipped : -1;
}

/* Whether a gradient is not finite: 1 if one is, 0 if all are finite, -1 on an error. The gradients
   are evaluated together with one number, which is NaN if any of them has a NaN or infinity. */
static FLUX__COLD int flux__overflown(flux_state *s, const flux_grads *g) {
    int n = 0, h = flux__hide();
    int64_t failures = flux__failures();
    flux_tensor *sum = NULL;
    for (int i = 0; i < s->nleaves && !flux__failed_since(failures); i++) {
        flux_tensor *d = s->leaf[i].frozen ? NULL : flux__gradient_by(g, s->leaf[i].now, i);
        if (!d || !flux__size(d)) continue;
        flux_tensor *most = flux_to_dtype((flux_max)(flux_abs(d)), FLUX_F32),
                    *none = flux_sub(most, most);
        sum = sum ? flux_add(sum, none) : none;
        s->news[n++] = d;
    }
    if (sum) s->news[n++] = sum;
    bool ok = !flux__failed_since(failures) && flux_eval_all(n, s->news) == 0;
    double v = ok && sum ? flux_item(sum) : 0;
    flux__reveal_object(h, NULL);
    return !ok || flux__failed_since(failures) ? -1 : v != v;
}

/* Whether a gradient has overflown on any rank, where the gradients are exchanged; -1 on an error
   here or there. */
static int flux__agree(flux_state *s, int overflown) {
    for (int r = 0; r < s->nrules; r++) {
        flux_comm *c = s->rule[r].comm;
        uint8_t worst[2] = { overflown != 0, overflown < 0 };
        if (!c) continue;
        if (!flux__ranks->agree(c, 2, worst)) return -1;
        if (worst[1] && overflown >= 0)
            return flux__fail("update: another rank could not compute its gradients"), -1;
        overflown = worst[1] ? -1 : worst[0];
    }
    return overflown;
}

/* Counts a step that was made or skipped (overflown), and sets the scale of the next loss: half
   after a skipped step, double after FLUX__SCALE_STEPS good ones. */
static FLUX__COLD void flux__next_scale(flux_state *s, bool overflown) {
    if (overflown) s->skipped++, s->good = 0;
    else s->good++;
    if (overflown && s->scale > 1) s->scale /= 2;
    if (s->good < FLUX__SCALE_STEPS) return;
    s->good = 0;
    if (s->scale < (double)FLUX__LAST_SCALE) s->scale *= 2;
}

/* For a scaled loss: checks that g are the gradients of that loss and that they are
   finite. True if flux_update is to go on; if not, *rc is what it returns (0 for a skipped
   step, -1 on an error). */
static FLUX__COLD bool flux__check_scale(flux_state *s, const flux_grads *g, int *rc) {
    int bad = -1;
    if (s->scaled && g->loss != s->scaled)
        flux__fail("update: these gradients are not of the loss that flux_scaled_loss gave: scale "
                   "last, then take the gradient");
    else bad = flux__agree(s, flux__overflown(s, g));
    *rc = bad < 0 ? -1 : 0;
    if (bad > 0)
        flux__note(FLUX_LOG_DEBUG, "update.skipped", false,
                   "update: a gradient is not finite at the loss scale %g: no step", s->scale);
    if (bad > 0) flux__next_scale(s, true), flux_assign(&s->scaled, NULL);
    return bad == 0;
}

/* One step of the optimiser. The scope of temporaries is closed before the evaluation, so that
   intermediate results have no handle and can be fused away. */
FLUX_DEF int flux_update(flux_state *s, flux_layer *model, flux_grads *g) {
    int rc = 0;
    if (!s || !model || !g)
        return flux__null("update", !s ? "state" : !model ? "model" : "gradients", NULL), -1;
    if (FLUX__GONE("update", s) || FLUX__GONE("update", model) || FLUX__GONE("update", g))
        return -1;
    if (g->used)
        return flux__fail("update: these gradients were used up by an earlier flux_update; record "
                          "the loss again"),
               -1;
    if (!flux__take_counts(s) || !flux__meet_model(s, model)) return -1;
    if (s->scaled && !flux__check_scale(s, g, &rc)) return rc;
    int h = flux__hide();
    flux__thread *t = flux__self();
    const uint32_t origin = t->origin;
    if (flux__profiling()) t->origin = flux__origin_of(0, "", "update");
    bool ok = flux__build_update(s, g);
    t->origin = origin;
    int n = ok ? flux__list_news(s) : 0;
    if (ok && !n && flux__any_awake(s))
        flux__note(FLUX_LOG_WARN, "update.nothing", true,
                   "update: the loss depends on no parameter of this %s", model->type->name);
    for (int i = 0; i < s->nrefs && ok; i++) flux_retain(s->ref[i].next);
    flux__reveal_object(h, NULL);
    if (ok && n)
        ok = flux__update_eval(g, n, s->olds, s->news, s->owners, s->npending, s->pending) == 0;
    if (ok) flux__commit(s);
    if (ok && s->scaled) flux__next_scale(s, false);
    flux_assign(&s->scaled, NULL);
    for (int i = 0; i < n; i++) flux_release(s->news[i]);
    for (int i = 0; i < s->nrefs && n; i++) flux_release(s->ref[i].next);
    return ok ? 0 : -1;
}

FLUX__END_LEAN

#endif /* FLUX__NN_UPDATE_H */
