#ifndef FLUX__NN_STATE_H
#define FLUX__NN_STATE_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../graph/nodes.h"
#include "../graph/elementwise.h"
#include "../graph/views.h"
#include "../schedule/looking.h"
#include "walk.h"
#include "rules.h"

/* ---------------------------------------------------------------------- nn/state.h
   The state of an optimiser for one model. flux_setup walks the model. Each
   distinct trained tensor gets an entry (flux__trained_param, called a leaf), with the
   tensors that the rules keep for it; each field that holds a trained tensor is
   a place (flux__param_ref) and is known by its path.

   Invariant: a tied tensor has one leaf and one set of states, whether several
   fields hold it or one field holds a view of another field's tensor. Leaves and
   places stand in the order of the walk. Arrays indexed by leaf and rule, or by
   leaf and state, are flat, and the leaf is the slower index. All states have
   memory and values from the start, so that the second step records the same
   graph as the first, and updates can reuse that memory. With mixed precision,
   parameters of 16 bits have a float32 master copy, and a model with float16
   parameters has a loss scale. A float16 parameter without a master copy raises
   an eps below 1e-7 to 1e-7, as a smaller one would be 0.

   Several processes may keep a share of a state each (flux__own_share). Then the
   states of the rules behind the part Distributed, and master copies, are
   shares: vectors of one length on all ranks. */

FLUX__BEGIN_COLD

/* A place: a field of the model that holds a trained tensor. */
typedef struct flux__param_ref {
    char *path;                           /* "layers.0.weight"; owned by the state */
    flux_tensor **slot;                   /* the field's address, as of the last walk */
    const flux_layer *owner;              /* the layer whose field it is, as of the last walk */
    int leaf;                             /* index of the tensor's leaf */
    bool view;                            /* it holds a view of the leaf's tensor (a tied weight) */
    flux_tensor *next;                    /* during an update: the view that replaces it */
} flux__param_ref;

/* A leaf: a distinct trained tensor. Its states and step counts lie in arrays of flux_state. */
typedef struct flux__trained_param {
    int ref;                             /* the first place that holds it, whose path names it */
    flux_tensor *p;                       /* the parameter as of flux_setup or the last update */
    /* master: its float32 copy if it has 16 bits and precision is mixed, else NULL;
       master_seen: that copy as flux__state_fields last showed it */
    flux_tensor *master, *master_seen;
    flux_tensor *steps; /* step counts shown as a tensor; while set, it holds them */
    flux_tensor *now, *next, *next_master; /* during an update: the parameter and its successors */
    int owners;                           /* how many fields of the model hold it (not views) */
    bool frozen;                          /* a layer that holds it is frozen */
} flux__trained_param;

struct flux_state {
    flux__head head;
    int nrules, nrefs, nleaves, nstates; /* nstates: states of each leaf, over all rules */
    bool mixed, counts;                   /* mixed precision; some rule needs the step's number */
    int rank, ranks;                      /* which share is kept here, of how many; 1: all is */
    int cut, whole; /* the rule that cuts gradients into shares; states of a leaf that are whole */
    double scale;                         /* the loss scale; 0: the loss is not scaled */
    int64_t good, skipped; /* steps since the scale changed; steps that were skipped */
    flux_tensor *scaling; /* these three shown as a tensor; while set, it holds them */
    flux_tensor *scaled;  /* result of flux_scaled_loss, whose gradients must follow */
    flux_rule_part *rule; /* [nrules], with the hyper-parameters of the whole model */
    flux__param_ref *ref;                 /* [nrefs] */
    flux__trained_param *leaf;            /* [nleaves] */
    flux_rule_opts *o;                    /* [leaf][rule]: hyper-parameters of each leaf */
    int64_t *t, *t_next; /* [leaf][rule]: steps made, before and after this update */
    flux_tensor **s, **next;              /* [leaf][state], before and after this update */
    flux__step *step;                     /* [leaf] */
    flux__constants constants;
    flux_tensor **olds, **news; /* lists for flux__update_eval: replaced and new tensors */
    int *owners;                          /* beside olds: references that the commit releases */
    flux_tensor **pending; /* unevaluated running statistics, computed with the step */
    int npending, pending_room;
    char *path;                           /* buffer for the path of any of the states */
    size_t path_room;
};

/* Frees a state, also one that is only partly made. */
static void flux__state_free(flux_state *s) {
    for (int i = 0; s->leaf && i < s->nleaves; i++) {
        flux_release(s->leaf[i].p);
        flux_release(s->leaf[i].master);
        flux_release(s->leaf[i].master_seen);
        flux_release(s->leaf[i].steps);
    }
    flux_release(s->scaling);
    flux_release(s->scaled);
    for (int i = 0; s->s && i < s->nleaves * s->nstates; i++) flux_release(s->s[i]);
    for (int i = 0; s->ref && i < s->nrefs; i++)
        flux__free(s->ref[i].path);
    void *arrays[] = { s->rule, s->ref, s->leaf, s->o, s->t, s->t_next, s->s, s->next, s->step,
                       s->olds, s->news, s->owners, s->path, s->pending };
    for (int i = 0; i < (int)(sizeof arrays / sizeof *arrays); i++)
        flux__free(arrays[i]);
    flux__quarantine(s);
}

static const char *flux__leaf_path(const flux_state *s, int leaf) {
    return s->ref[s->leaf[leaf].ref].path;
}

/* ---------------- setup */

typedef struct flux__ref_search { flux_state *s; int capacity; bool ok; } flux__ref_search;

/* Walk callback of flux_setup: adds a place for each trained tensor. */
static void flux__ref_add(flux_tensor **slot, const char *path, bool trained,
                           const flux_layer *owner, void *user) {
    flux__ref_search *w = (flux__ref_search *)user;
    (void)owner;
    if (!trained || !w->ok) return;
    flux__param_ref *ref = (flux__param_ref *)flux__one_more(&w->s->ref, &w->capacity, w->s->nrefs,
                                                             sizeof *ref);
    char *copy = ref ? flux__copy_text(path) : NULL;
    w->ok = copy != NULL;
    if (!copy) return;
    if (strlen(path) + 64 > w->s->path_room) w->s->path_room = strlen(path) + 64;
    w->s->nrefs++;
    ref->path = copy;
    ref->slot = slot;
    ref->view = false;
    ref->next = NULL;
    ref->leaf = -1;
}

/* The tensor that is trained at place i: the place's own tensor or, if that is a view of a tensor
   that another place holds, the base of the view. `there` has the tensors of all places. */
static flux_tensor *flux__ref_tensor(const flux_state *s, flux__hashmap *there, int i) {
    flux_tensor *x = *s->ref[i].slot;
    bool tied = FLUX__IS_VIEW(x) && x->op != FLUX__DETACH &&
                flux__hashmap_find(there, x->base)->key;
    return tied ? x->base : x;
}

/* Gives each distinct tensor a leaf, in the order of the walk. The first pass takes the places that
   hold a tensor itself, so that one of these names the leaf; the second adds the views. */
static bool flux__find_leaves(flux_state *s) {
    FLUX__ZEROED(flux__hashmap, there);
    bool fresh = false, ok = true;
    for (int i = 0; i < s->nrefs && ok; i++)
        ok = flux__hashmap_at(&there, *s->ref[i].slot, &fresh) != NULL;
    s->leaf = (flux__trained_param *)flux__zalloc((size_t)s->nrefs * sizeof *s->leaf);
    ok = ok && s->leaf;
    for (int i = 0; i < s->nrefs && ok; i++) {
        flux_tensor *x = *s->ref[i].slot;
        flux__pair *pair = flux__hashmap_find(&there, x);
        if (flux__ref_tensor(s, &there, i) != x) continue;
        if (!pair->value) {
            s->leaf[s->nleaves].ref = i;
            s->leaf[s->nleaves].p = (flux_tensor *)flux_retain(x);
            pair->value = &s->leaf[s->nleaves++];
        }
        s->ref[i].leaf = (int)((flux__trained_param *)pair->value - s->leaf);
    }
    for (int i = 0; i < s->nrefs && ok; i++) {
        if (s->ref[i].leaf >= 0) continue;
        s->ref[i].view = true;
        s->ref[i].leaf =
            (int)((flux__trained_param *)flux__hashmap_find(&there,
                                                            (*s->ref[i].slot)->base)->value -
                  s->leaf);
    }
    flux__hashmap_free(&there);
    return ok;
}

/* The loss scale at first (2^15, which f16 can hold), at most, and how many steps double it. */
enum { FLUX__FIRST_SCALE = 1 << 15, FLUX__LAST_SCALE = 1 << 24, FLUX__SCALE_STEPS = 2000 };

static flux_dtype flux__state_dtype(const flux_tensor *p) {
    return p->dtype == FLUX_F64 ? FLUX_F64 : FLUX_F32;
}

/* How many of n elements a share has. */
static int64_t flux__share_size(const flux_state *s, int64_t n) {
    return (n + s->ranks - 1) / s->ranks;
}

/* This process's share of x: part `rank` of `ranks` of its elements in the order of memory. Behind
   the last element there are zeros, so that shares are alike. */
static flux_tensor *flux__own_share(const flux_state *s, flux_tensor *x) {
    if (s->ranks < 2) return x;
    const int64_t n = flux__size(x), each = flux__share_size(s, n),
                  from = s->rank * each < n ? s->rank * each : n,
                  to = from + each < n ? from + each : n;
    int h = flux__hide();
    x = flux_slice(flux_reshape_with(x, FLUX_SHAPE(n)), 0, from, to);
    if (x && to - from < each)
        x = flux_pad_by(x, 0, FLUX_SHAPE(0), FLUX_SHAPE(each - (to - from)));
    return flux__reveal(h, x);
}

/* The leaf of whose state this slot holds a share; -1: it holds a whole tensor. */
static int flux__shared_leaf(const flux_state *s, flux_tensor *const *slot) {
    const uintptr_t at = (uintptr_t)slot, first = (uintptr_t)s->s;
    if (s->ranks < 2) return -1;
    for (int i = 0; i < s->nleaves; i++)
        if (slot == &s->leaf[i].master) return i;
    if (at < first || at >= (uintptr_t)(s->s + s->nleaves * s->nstates)) return -1;
    const int k = (int)((at - first) / sizeof *slot);
    return k % s->nstates < s->whole ? -1 : k / s->nstates;
}

/* A state of the leaf with v in every element: p's shape or a share of it, on p's device. */
static flux_tensor *flux__state_full(const flux_state *s, flux_tensor *p, bool share, double v) {
    int h = flux__hide();
    flux_tensor *x = flux_full_with(share ? FLUX_SHAPE(flux__share_size(s, flux__size(p)))
                                           : flux__dims(p), v, flux__state_dtype(p));
    x = x ? flux__move(x, p->device) : NULL;
    return flux__reveal(h, x ? flux_copy(x) : NULL); /* a copy has memory that updates can reuse */
}

/* Rule r's hyper-parameters for a leaf. In float16 an eps below 1e-7 would be 0. */
static FLUX__O1 flux_rule_opts flux__opts_of(const flux_state *s, int leaf, int r) {
    flux_rule_opts o = s->o[leaf * s->nrules + r];
    if (s->leaf[leaf].p->dtype == FLUX_F16 && !s->mixed && o.eps > 0 && o.eps < 1e-7)
        o.eps = 1e-7;
    return o;
}

/* How many tensors a rule keeps for each parameter. */
static FLUX__O1 int flux__row_states(const flux__rule_row *row) {
    int n = 0;
    while (n < 3 && row->state[n].name) n++;
    return n;
}

/* Makes a leaf's states with their start values, its copy of the hyper-parameters and, with mixed
   precision, its master copy. */
static bool flux__start_leaf(flux_state *s, int leaf) {
    flux__trained_param *l = &s->leaf[leaf];
    flux_tensor **at = s->s + (size_t)leaf * (size_t)s->nstates;
    for (int r = 0; r < s->nrules; r++) {
        const flux__rule_row *row = &flux__rule_rows[s->rule[r].kind];
        s->o[leaf * s->nrules + r] = s->rule[r].o;
        flux_rule_opts o = flux__opts_of(s, leaf, r);
        for (int i = 0; i < 3 && row->state[i].name; i++, at++) {
            double start = row->state[i].start ? flux__hyper(&o, row->state[i].start) : 0;
            *at = (flux_tensor *)flux_retain(flux__state_full(s, l->p, r > s->cut, start));
            if (!*at) return false;
        }
    }
    if (!s->mixed || !flux__is_half(l->p->dtype)) return true;
    if (l->p->dtype == FLUX_F16) s->scale = FLUX__FIRST_SCALE;
    flux_tensor *p = flux__own_share(s, flux_detach(l->p));
    l->master = (flux_tensor *)flux_retain(flux_copy(flux_to_dtype(p, FLUX_F32)));
    return l->master != NULL;
}

/* Allocates the arrays of a state whose leaves and rules are known. olds, news and owners have room
   for a leaf's states, parameter and master. */
static bool flux__state_arrays(flux_state *s) {
    size_t leaves = (size_t)s->nleaves, rules = (size_t)s->nrules, states = (size_t)s->nstates;
    s->o = (flux_rule_opts *)flux__zalloc(leaves * rules * sizeof *s->o);
    s->t = (int64_t *)flux__zalloc(leaves * rules * sizeof *s->t);
    s->t_next = (int64_t *)flux__zalloc(leaves * rules * sizeof *s->t);
    s->s = (flux_tensor **)flux__zalloc(leaves * states * sizeof *s->s);
    s->next = (flux_tensor **)flux__zalloc(leaves * states * sizeof *s->next);
    s->step = (flux__step *)flux__zalloc(leaves * sizeof *s->step);
    s->olds = (flux_tensor **)flux__zalloc(leaves * (states + 2) * sizeof *s->olds);
    s->news = (flux_tensor **)flux__zalloc(leaves * (states + 2) * sizeof *s->news);
    s->owners = (int *)flux__zalloc(leaves * (states + 2) * sizeof *s->owners);
    s->path = (char *)flux__malloc(s->path_room);
    return s->o && s->t && s->t_next && s->s && s->next && s->step && s->olds && s->news &&
           s->owners && s->path;
}

/* Makes the states of all leaves and evaluates them and the parameters, so that the second step
   finds evaluated tensors just as the first one does. */
static bool flux__start_values(flux_state *s) {
    int n = 0, h = flux__hide();
    bool ok = true;
    for (int i = 0; i < s->nleaves && ok; i++) {
        ok = flux__start_leaf(s, i);
        s->olds[n++] = s->leaf[i].p;
        if (s->leaf[i].master) s->olds[n++] = s->leaf[i].master;
        for (int k = 0; k < s->nstates; k++) s->olds[n++] = s->s[i * s->nstates + k];
    }
    ok = ok && flux_eval_all(n, s->olds) == 0;
    flux__reveal_object(h, NULL);
    return ok;
}

/* Copies the rules into the state and counts their states. */
static bool flux__take_rules(flux_state *s, const flux_rule *rule) {
    if (!flux__is_rule("setup", rule)) return false;
    s->rule = (flux_rule_part *)flux__zalloc((size_t)rule->n * sizeof *s->rule);
    if (!s->rule) return false;
    s->mixed = rule->mixed;
    s->nrules = s->cut = rule->n;
    s->ranks = 1;
    for (int i = 0; i < rule->n; i++) {
        s->rule[i] = rule->part[i];
        if (s->rule[i].ranks > 1)
            s->rank = s->rule[i].rank, s->ranks = s->rule[i].ranks, s->cut = i,
            s->whole = s->nstates;
        s->counts |= flux__rule_rows[rule->part[i].kind].counts;
        s->nstates += flux__row_states(&flux__rule_rows[rule->part[i].kind]);
    }
    return true;
}

/* Makes the state of a rule for a model, owned by the innermost scope; NULL on an error. */
FLUX_DEF flux_state *flux_setup(flux_rule rule, flux_layer *model) {
    if (!model || FLUX__GONE("setup", model))
        return (flux_state *)flux__null("setup", "model", model);
    flux_state *s = (flux_state *)flux__handle_new(sizeof *s, FLUX__STATE);
    if (!s) return NULL;
    flux__ref_search w = { s, 0, true };
    bool ok = flux__take_rules(s, &rule) && flux__walk_all(model, flux__ref_add, NULL, &w) && w.ok;
    ok = ok && flux__find_leaves(s) && flux__state_arrays(s) && flux__start_values(s);
    if (!ok) {
        flux__state_free(s);
        return NULL;
    }
    if (!s->nleaves)
        flux__note(FLUX_LOG_WARN, "setup.empty", false,
                   "setup: this %s has no trainable parameters", model->type->name);
    return (flux_state *)flux__own(s);
}

FLUX_DEF flux_state *flux_setup_named(const char *rule, double eta, flux_layer *model) {
    FLUX__ZEROED(flux_rule_opts, o);      /* without marks: 0 is left out */
    o.eta = eta;
    flux_rule r = flux_rule_with(rule, o);
    return r.made ? flux_setup(r, model) : NULL;
}

FLUX__END_COLD

#endif /* FLUX__NN_STATE_H */
