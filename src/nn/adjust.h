#ifndef FLUX__NN_ADJUST_H
#define FLUX__NN_ADJUST_H
#include "../base/platform.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/text.h"
#include "../graph/leaves.h"
#include "fields.h"
#include "walk.h"
#include "rules.h"
#include "state.h"

/* ---------------------------------------------------------------------- nn/adjust.h
   Operations on an optimiser's state other than the step: changing
   hyper-parameters, for all parameters (flux_adjust) or for a part of the model
   (flux_adjust_part_with), printing it and reading that text, listing its tensors
   by path (flux__state_fields), and copying it.

   Invariant: only hyper-parameters that a rule of the state has can be set, and
   only within their ranges; those that are not given keep their values. A
   state's tensors have paths such as "layers.0.weight.m",
   "layers.0.weight.steps" (int64, one count for each rule),
   "layers.0.weight.master", and "loss_scale" (int64: the scale, the steps since
   it changed, the steps skipped). Like a layer's fields, these slots keep their
   addresses and may be given other tensors with flux_assign at any later time:
   the next update reads the numbers back (nn/update.h). Saving, loading and
   moving a state need nothing else. */

FLUX__BEGIN_COLD

static bool flux__some_rule_has(const flux_state *s, int h) {
    for (int r = 0; r < s->nrules; r++)
        if (flux__row_has(&flux__rule_rows[s->rule[r].kind], h)) return true;
    return false;
}

static size_t flux__rules_text(const flux_state *s, const flux_rule_opts *o, char *out, size_t n);

/* Whether the options can be applied to the state: every number that is given belongs to one of its
   rules and is in range. */
static bool flux__check_adjust(const flux_state *s, const char *call, const flux_rule_opts *o) {
    char text[200];
    bool couple = false;
    flux__rules_text(s, NULL, text, sizeof text);
    for (int r = 0; r < s->nrules; r++)
        couple |= flux__rule_rows[s->rule[r].kind].step == flux__step_adamw;
    for (int h = 1; h < FLUX__HYPERS; h++) {
        if (!flux__has_hyper(o, h)) continue;
        if (h >= FLUX__START || (h == FLUX__ETA && flux__some_rule_has(s, FLUX__STEPS)))
            return FLUX__REFUSE("%s: %s follows the schedule in %s", call, flux__hypers[h].name,
                                text);
        if (flux__some_rule_has(s, h)) {
            if (!flux__check_hyper(call, o, h)) return false;
        } else return FLUX__REFUSE("%s: there is no %s in %s", call, flux__hypers[h].name, text);
    }
    if (flux__given_switch(o->couple, o->marked) != FLUX_DEFAULT && !couple)
        return FLUX__REFUSE("%s: there is no couple in %s", call, text);
    if (flux__given_switch(o->centred, o->marked) != FLUX_DEFAULT)
        return FLUX__REFUSE("%s: centred can't be changed: it decides which states there are",
                            call);
    if (flux__given_switch(o->global, o->marked) != FLUX_DEFAULT)
        return FLUX__REFUSE("%s: global can't be changed: it decides which rule this is", call);
    return true;
}

/* Copies the options that are given, and that the rule of this kind has, into `to`. */
static void flux__adjust_one(flux_rule_opts *to, int kind, const flux_rule_opts *o) {
    const flux__rule_row *row = &flux__rule_rows[kind];
    for (int h = 1; h < FLUX__HYPERS; h++)
        if (flux__has_hyper(o, h) && flux__row_has(row, h))
            flux__hyper_set(to, h, flux__hyper(o, h));
    flux_switch couple = flux__given_switch(o->couple, o->marked);
    if (couple != FLUX_DEFAULT && row->step == flux__step_adamw) to->couple = couple;
}

static void flux__adjust_leaf(flux_state *s, int leaf, const flux_rule_opts *o) {
    for (int r = 0; r < s->nrules; r++)
        flux__adjust_one(&s->o[leaf * s->nrules + r], s->rule[r].kind, o);
}

FLUX_DEF int flux_adjust_with(flux_state *s, flux_rule_opts o) {
    if (!s) return flux__null("adjust", "state", s), -1;
    if (!flux__check_adjust(s, "adjust", &o)) return -1;
    for (int r = 0; r < s->nrules; r++) flux__adjust_one(&s->rule[r].o, s->rule[r].kind, &o);
    for (int i = 0; i < s->nleaves; i++) flux__adjust_leaf(s, i, &o);
    return 0;
}

typedef struct flux__adjusting {
    flux_state *s;
    const flux_rule_opts *o;
    bool found;
} flux__adjusting;

/* Walk callback of flux_adjust_part_with: adjusts the leaf that belongs to a field of the part,
   found by the field's address or else by the tensor that it holds. */
static void flux__adjust_slot(flux_tensor **slot, const char *path, bool trained,
                              const flux_layer *owner, void *user) {
    flux__adjusting *w = (flux__adjusting *)user;
    (void)path, (void)owner;
    for (int i = 0; i < w->s->nrefs && trained; i++) {
        const flux__param_ref *ref = &w->s->ref[i];
        if (ref->slot != slot && w->s->leaf[ref->leaf].p != *slot) continue;
        flux__adjust_leaf(w->s, ref->leaf, w->o);
        w->found = true;
        return;
    }
}

FLUX_DEF int flux_adjust_part_with(flux_state *s, flux_layer *part, flux_rule_opts o) {
    if (!s || !part) return flux__null("adjust_part", s ? "part" : "state", NULL), -1;
    if (!flux__check_adjust(s, "adjust_part", &o)) return -1;
    flux__adjusting w = { s, &o, false };
    if (!flux__walk_all(part, flux__adjust_slot, NULL, &w)) return -1;
    if (!w.found)
        flux__fail("adjust_part: no parameter of this %s belongs to the model of the state",
                   part->type->name);
    return w.found ? 0 : -1;
}

/* ---------------- a state as text, and as tensors */

/* Writes the locale's decimal point, which may be several bytes, to out; returns its length. */
static size_t flux__locale_point(char *out, size_t n) {
    char half[16];
    snprintf(half, sizeof half, "%.1f", 0.5);             /* "0", the decimal point, "5" */
    return (size_t)snprintf(out, n, "%.*s", (int)strlen(half) - 2, half + 1);
}

/* Puts v with the fewest digits that read back as v: 0.001, 1e-08, 50. The decimal point is a
   dot in any locale. */
static void flux__put_short(flux__sink *out, double v) {
    char text[48], point[16], *at;
    int least = fabs(v) >= 1 && fabs(v) < 1e6 ? (int)log10(fabs(v)) + 1 : 1;
    for (int digits = least; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    size_t n = flux__locale_point(point, sizeof point);
    if ((at = strstr(text, point)) != NULL) *at = '.', memmove(at + 1, at + n, strlen(at + n) + 1);
    flux__put(out, text);
}

/* Puts v rounded to four digits. */
static void flux__put_rounded(flux__sink *out, double v) {
    char text[48];
    snprintf(text, sizeof text, "%.3e", v);
    flux__put_short(out, strtod(text, NULL));
}

/* Reads the n characters (at most 40) of a number that flux__put_short has written. */
static bool flux__get_short(const char *text, size_t n, double *v) {
    char local[64], point[16], *end;
    const char *dot = (const char *)memchr(text, '.', n);
    int whole = (int)(dot ? dot - text : (ptrdiff_t)n);
    flux__locale_point(point, sizeof point);
    snprintf(local, sizeof local, "%.*s%s%.*s", whole, text, dot ? point : "",
             dot ? (int)n - whole - 1 : 0, dot ? dot + 1 : "");
    *v = strtod(local, &end);
    return end != local && *end == 0;
}

/* Whether hyper-parameters i and i + 1 of a rule are printed as a pair: beta=(0.9, 0.999). */
static bool flux__hyper_pair(const flux__rule_row *row, int i) {
    return i < 6 && strcmp(flux__hypers[row->has[i + 1].hyper].name,
                           flux__hypers[row->has[i].hyper].name) == 0;
}

/* Puts a rule with its hyper-parameters: Adam(0.001, beta=(0.9, 0.999), eps=1e-08) */
static void flux__put_rule(flux__sink *out, int kind, const flux_rule_opts *o) {
    const flux__rule_row *row = &flux__rule_rows[kind];
    flux__put(out, row->name);
    flux__put(out, "(");
    for (int i = 0; i < 7 && row->has[i].hyper; i++) {
        int h = row->has[i].hyper;
        bool pair = flux__hyper_pair(row, i);
        if (i) {
            flux__put(out, ", ");
            flux__put(out, flux__hypers[h].name);
            flux__put(out, pair ? "=(" : "=");
        }
        flux__put_short(out, flux__hyper(o, h));
        if (!pair) continue;
        flux__put(out, ", ");
        flux__put_short(out, flux__hyper(o, row->has[++i].hyper));
        flux__put(out, ")");
    }
    if (row->step == flux__step_rmsprop_centred) flux__put(out, ", centred=true");
    if (row->all == flux__clip_global) flux__put(out, ", global=true");
    if (row->step == flux__step_adamw && o->couple == FLUX_OFF) flux__put(out, ", couple=false");
    flux__put(out, ")");
}

/* Puts the rules of a state with the hyper-parameters o[0] ... o[nrules - 1] or, if o is NULL, with
   those of the whole model. */
static void flux__put_rules(flux__sink *out, const flux_state *s, const flux_rule_opts *o) {
    if (s->mixed) flux__put(out, "MixedPrecision(");
    if (s->nrules != 1) flux__put(out, "OptimiserChain(");
    for (int r = 0; r < s->nrules; r++) {
        if (r) flux__put(out, ", ");
        flux__put_rule(out, s->rule[r].kind, o ? &o[r] : &s->rule[r].o);
    }
    if (s->nrules != 1) flux__put(out, ")");
    if (s->mixed) flux__put(out, ")");
}

static size_t flux__rules_text(const flux_state *s, const flux_rule_opts *o, char *out, size_t n) {
    flux__sink sink = flux__sink_to(out, n);
    flux__put_rules(&sink, s, o);
    return flux__sink_end(&sink);
}

/* Files store the rules as the text that flux__put_rules writes. The functions below read it back
   and get the very same numbers, bit for bit. */

/* If the text continues with `word`, moves *p past it. */
static bool flux__skip_word(const char **p, const char *word) {
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return false;
    *p += n;
    return true;
}

/* Reads hyper-parameter h into o; false if there is no number or it is out of range. */
static bool flux__read_hyper(const char **p, int h, flux_rule_opts *o) {
    size_t n = strspn(*p, "0123456789.+-einf");
    double v;
    if (n > 40 || !flux__get_short(*p, n, &v) ||
        !(v >= flux__hypers[h].least && v <= flux__hypers[h].most))
        return false;
    flux__hyper_set(o, h, v);
    *p += n;
    return true;
}

/* Skips the name of hyper-parameter h; files of earlier versions call eps epsilon. */
static bool flux__skip_hyper(const char **p, int h) {
    return (h == FLUX__EPS && flux__skip_word(p, "epsilon")) ||
           flux__skip_word(p, flux__hypers[h].name);
}

/* Reads the text of one rule of this kind, as flux__put_rule writes it, into o. */
static bool flux__read_rule(const char **p, int kind, flux_rule_opts *o) {
    const flux__rule_row *row = &flux__rule_rows[kind];
    if (!flux__skip_word(p, row->name) || !flux__skip_word(p, "(")) return false;
    for (int i = 0; i < 7 && row->has[i].hyper; i++) {
        int h = row->has[i].hyper;
        bool pair = flux__hyper_pair(row, i);
        if (i && !(flux__skip_word(p, ", ") && flux__skip_hyper(p, h) &&
                   flux__skip_word(p, pair ? "=(" : "=")))
            return false;
        if (!flux__read_hyper(p, h, o)) return false;
        if (pair && !(flux__skip_word(p, ", ") && flux__read_hyper(p, row->has[++i].hyper, o) &&
                      flux__skip_word(p, ")")))
            return false;
    }
    if (row->step == flux__step_rmsprop_centred && !flux__skip_word(p, ", centred=true"))
        return false;
    if (row->all == flux__clip_global && !flux__skip_word(p, ", global=true")) return false;
    if (row->step == flux__step_adamw)
        o->couple = flux__skip_word(p, ", couple=false") ? FLUX_OFF
                    : o->couple == FLUX_OFF              ? FLUX_ON
                                                         : (flux_switch)o->couple;
    return flux__skip_word(p, ")");
}

/* Reads the text of a state's rules into o[0] ... o[nrules - 1]; false if the text is of other
   rules than those of s. */
static bool flux__read_rules(const char *p, const flux_state *s, flux_rule_opts *o) {
    if (s->mixed && !flux__skip_word(&p, "MixedPrecision(")) return false;
    if (s->nrules != 1 && !flux__skip_word(&p, "OptimiserChain(")) return false;
    for (int r = 0; r < s->nrules; r++) {
        o[r] = s->rule[r].o;
        if ((r && !flux__skip_word(&p, ", ")) || !flux__read_rule(&p, s->rule[r].kind, &o[r]))
            return false;
    }
    if (s->nrules != 1 && !flux__skip_word(&p, ")")) return false;
    return !(s->mixed && !flux__skip_word(&p, ")")) && *p == 0;
}

/* Whether a leaf's hyper-parameters differ from those of the whole model. */
static bool flux__leaf_differs(const flux_state *s, int leaf) {
    for (int r = 0; r < s->nrules; r++) {
        const flux_rule_opts *a = &s->o[leaf * s->nrules + r];
        const flux_rule_opts *b = &s->rule[r].o;
        for (int h = 1; h < FLUX__HYPERS; h++)
            if (flux__hyper(a, h) != flux__hyper(b, h)) return true;
        if (a->couple != b->couple) return true;
    }
    return false;
}

/* hook: flux_rate, nn/schedules.h */
/* The state as text: its rules, how many arrays and parameters it has, and a line for each leaf
   whose hyper-parameters differ. */
FLUX_DEF size_t flux_state_text(flux_state *s, char *out, size_t n) {
    flux__sink sink = flux__sink_to(out, n);
    int64_t numbers = 0;
    if (!s) return flux__null("print", "state", s), flux__sink_end(&sink);
    flux__put_rules(&sink, s, NULL);
    for (int i = 0; i < s->nleaves; i++) numbers += flux__size(s->leaf[i].p);
    flux__put(&sink, "  # of ");
    flux__put_integer(&sink, s->nleaves, true);
    flux__put(&sink, s->nleaves == 1 ? " array, " : " arrays, ");
    flux__put_integer(&sink, numbers, true);
    flux__put(&sink, " parameters");
    if (flux__some_rule_has(s, FLUX__STEPS)) {
        flux__put(&sink, ", eta ");
        flux__put_rounded(&sink, flux_rate(s));
        flux__put(&sink, " next");
    }
    for (int i = 0; i < s->nleaves; i++) {
        if (!flux__leaf_differs(s, i)) continue;
        flux__put(&sink, "\n  ");
        flux__put(&sink, flux__leaf_path(s, i));
        flux__put(&sink, ": ");
        flux__put_rules(&sink, s, &s->o[i * s->nrules]);
    }
    return flux__sink_end(&sink);
}

/* The number that follows the name of a rule's state in its path: 1 (not printed) for the first
   state of that name in the chain, 2 for the second, so that the paths are m, m2, ... */
static int flux__state_copy_number(const flux_state *s, int rule, const char *name) {
    int n = 1;
    for (int r = 0; r < rule; r++)
        for (int i = 0; i < 3 && flux__rule_rows[s->rule[r].kind].state[i].name; i++)
            if (strcmp(flux__rule_rows[s->rule[r].kind].state[i].name, name) == 0) n++;
    return n;
}

/* Calls f for the states of one leaf, of all rules, with their paths. */
static void flux__show_state(flux_state *s, int leaf, flux__field_fn f, void *user) {
    const char *path = flux__leaf_path(s, leaf);
    flux_tensor **at = &s->s[leaf * s->nstates];
    for (int r = 0; r < s->nrules; r++) {
        const flux__rule_row *row = &flux__rule_rows[s->rule[r].kind];
        for (int i = 0; i < 3 && row->state[i].name; i++, at++) {
            int number = flux__state_copy_number(s, r, row->state[i].name);
            if (number > 1)
                snprintf(s->path, s->path_room, "%s.%s%d", path, row->state[i].name, number);
            else snprintf(s->path, s->path_room, "%s.%s", path, row->state[i].name);
            f(at, s->path, false, NULL, user);
        }
    }
}

/* Calls f for every tensor of a state: "loss_scale" if the loss is scaled, then for each leaf its
   states, its master copy and, if a rule counts steps, its step counts. The head of this room gives
   the paths and what f may do with the slots. */
static void flux__state_fields(flux_state *s, flux__field_fn f, void *user) {
    if (s->scale > 0) {
        int64_t v[3] = { (int64_t)s->scale, s->good, s->skipped }, n = 3;
        int h = flux__hide();
        if (!s->scaling) flux_assign(&s->scaling, flux_from_with(v, FLUX_I64, flux__shape(&n, 1)));
        flux__reveal_object(h, NULL);
        if (s->scaling) f(&s->scaling, "loss_scale", false, NULL, user);
    }
    for (int i = 0; i < s->nleaves; i++) {
        flux__trained_param *l = &s->leaf[i];
        flux__show_state(s, i, f, user);
        if (l->master) {
            if (!l->master_seen) flux_assign(&l->master_seen, l->master);
            snprintf(s->path, s->path_room, "%s.master", flux__leaf_path(s, i));
            f(&l->master, s->path, false, NULL, user);
        }
        if (!s->counts) continue;
        int64_t n = s->nrules;
        int h = flux__hide();
        if (!l->steps)
            flux_assign(&l->steps,
                        flux_from_with(&s->t[i * s->nrules], FLUX_I64, flux__shape(&n, 1)));
        flux__reveal_object(h, NULL);
        snprintf(s->path, s->path_room, "%s.steps", flux__leaf_path(s, i));
        if (l->steps) f(&l->steps, s->path, false, NULL, user);
    }
}

/* Copies places and leaves of `from`, which share its tensors but not its paths. */
static bool flux__copy_leaves(flux_state *s, const flux_state *from) {
    s->ref = (flux__param_ref *)flux__zalloc((size_t)from->nrefs * sizeof *s->ref);
    s->leaf = (flux__trained_param *)flux__zalloc((size_t)from->nrefs * sizeof *s->leaf);
    if (!s->ref || !s->leaf) return false;
    for (int i = 0; i < from->nrefs; i++) {
        s->ref[i] = from->ref[i];
        s->ref[i].path = flux__copy_text(from->ref[i].path);
        s->nrefs = i + 1;
        if (!s->ref[i].path) return false;
    }
    for (int i = 0; i < from->nleaves; i++) {
        s->leaf[i] = from->leaf[i];
        flux_retain(s->leaf[i].p);
        flux_retain(s->leaf[i].master);
        flux_retain(s->leaf[i].master_seen);
        flux_retain(s->leaf[i].steps);
    }
    s->nleaves = from->nleaves;
    return true;
}

/* A copy of a state that shares its tensors; other tensors can then be put into the copy's slots.
   It is owned by the innermost scope. */
static flux_state *flux__state_copy(const flux_state *from) {
    flux_state *s = (flux_state *)flux__handle_new(sizeof *s, FLUX__STATE);
    if (!s) return NULL;
    s->nrules = from->nrules;
    s->nstates = from->nstates;
    s->mixed = from->mixed;
    s->rank = from->rank, s->ranks = from->ranks, s->cut = from->cut, s->whole = from->whole;
    s->counts = from->counts;
    s->scale = from->scale, s->good = from->good, s->skipped = from->skipped;
    s->scaling = (flux_tensor *)flux_retain(from->scaling);
    s->path_room = from->path_room;
    s->rule = (flux_rule_part *)flux__malloc((size_t)s->nrules * sizeof *s->rule);
    if (!s->rule || !flux__copy_leaves(s, from) || !flux__state_arrays(s)) {
        flux__state_free(s);
        return NULL;
    }
    int counts = s->nleaves * s->nrules;
    for (int r = 0; r < s->nrules; r++) s->rule[r] = from->rule[r];
    for (int i = 0; i < counts; i++) s->o[i] = from->o[i], s->t[i] = from->t[i];
    for (int i = 0; i < s->nleaves * s->nstates; i++)
        s->s[i] = (flux_tensor *)flux_retain(from->s[i]);
    return (flux_state *)flux__own(s);
}

FLUX__END_COLD

#endif /* FLUX__NN_ADJUST_H */
