#ifndef FLUX__NN_SCHEDULES_H
#define FLUX__NN_SCHEDULES_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "rules.h"
#include "update.h"

/* ---------------------------------------------------------------------- nn/schedules.h
   Schedules as values: making them, joining them, asking them, and putting them
   into a chain of rules. What a phase does in an update stands in nn/rules.h.

   Invariant: a schedule is a list of phases, and each but the last has steps
   after which it is over; a sequence of sequences is one list. The steps that
   flux_schedule_for gives are cut into phases only where another follows, so
   the last schedule of a chain never ends. */

FLUX__BEGIN_COLD

static flux_schedule flux__bad_schedule(void) {
    FLUX__ZEROED(flux_schedule, s);
    return s;
}

/* A schedule of one phase, over after `steps` if another follows. */
static flux_schedule flux__one_phase(const char *call, const char *name, double start,
                                     double finish, double decay, int64_t period,
                                     int64_t steps) {
    flux_schedule s = flux__bad_schedule();
    flux_rule_opts o = s.phase[0].o;
    const flux__rule_row *row = flux__rule_rows;
    while (strcmp(row->name, name) != 0) row++;
    s.phase[0].kind = (int)(row - flux__rule_rows);
    memset((void *)&o.marked, 1, sizeof o.marked);      /* in C++ a struct around a bool */
    o.start = start, o.finish = finish, o.decay = decay, o.period = (double)period;
    for (int i = 0; i < 7 && row->has[i].hyper; i++)
        if (!flux__check_hyper(call, &o, row->has[i].hyper)) return s;
    s.phase[0].o = o;
    s.n = 1;
    s.steps = steps;
    s.made = true;
    return s;
}

FLUX_DEF flux_schedule flux_schedule_constant(double rate) {
    if (!(rate >= 0 && rate <= DBL_MAX)) {
        flux__fail("schedule_constant: rate is %g, but must be 0 or more and finite", rate);
        return flux__bad_schedule();
    }
    return flux__one_phase("schedule_constant", "Constant", rate, 0, 0, 1, 0);
}
FLUX_DEF flux_schedule flux_schedule_step(double start, double decay, int64_t period) {
    return flux__one_phase("schedule_step", "Step", start, 0, decay, period, 0);
}
FLUX_DEF flux_schedule flux_schedule_exp(double start, double decay) {
    return flux__one_phase("schedule_exp", "Exp", start, 0, decay, 1, 0);
}
FLUX_DEF flux_schedule flux_schedule_restarts(double start, double finish, int64_t period) {
    return flux__one_phase("schedule_restarts", "CosAnneal", start, finish, 0, period, 0);
}
/* A schedule that goes from start to finish in so many steps. */
static flux_schedule flux__one_way(const char *call, const char *name, double start, double finish,
                                   int64_t steps) {
    if (steps >= 1) return flux__one_phase(call, name, start, finish, 0, steps, steps);
    flux__fail("%s: steps is %lld, but must be 1 or more", call, (long long)steps);
    return flux__bad_schedule();
}
FLUX_DEF flux_schedule flux_schedule_cosine(double start, double finish, int64_t steps) {
    return flux__one_way("schedule_cosine", "Cosine", start, finish, steps);
}
FLUX_DEF flux_schedule flux_schedule_linear(double start, double finish, int64_t steps) {
    return flux__one_way("schedule_linear", "Linear", start, finish, steps);
}
FLUX_DEF flux_schedule flux_schedule_of(flux_schedule_fn fn, void *user) {
    if (!fn) return flux__null("schedule_of", "fn", NULL), flux__bad_schedule();
    flux_schedule s = flux__one_phase("schedule_of", "Function", 0, 0, 0, 1, 0);
    s.phase[0].fn = fn;
    s.phase[0].user = user;
    return s;
}

FLUX_DEF flux_schedule flux_schedule_onecycle(int64_t steps, double most) {
    int64_t rise = steps / 4 + (steps % 4 > 0);
    flux_schedule s[2];
    if (steps < 2) {
        flux__fail("schedule_onecycle: %lld steps, but it takes 2 or more", (long long)steps);
        return flux__bad_schedule();
    }
    if (!(most >= 0 && most <= DBL_MAX)) {
        flux__fail("schedule_onecycle: most is %g, but must be 0 or more and finite", most);
        return flux__bad_schedule();
    }
    s[0] = flux_schedule_cosine(most / 25, most, rise);
    if (!s[0].made) return s[0];
    s[1] = flux_schedule_cosine(most, most / 1e5, steps - rise);
    return flux_schedule_sequence_with(2, s);
}

FLUX_DEF flux_schedule flux_schedule_for(int64_t steps, flux_schedule s) {
    if (!s.made) return s;
    if (steps < 1) {
        flux__fail("schedule_for: steps is %lld, but must be 1 or more", (long long)steps);
        return flux__bad_schedule();
    }
    s.steps = steps;
    return s;
}

/* Appends a schedule's phases; if another follows, its steps are cut into those of the phases. */
static bool flux__append_phases(flux_schedule *to, const flux_schedule *s, bool follows) {
    double left = (double)s->steps;
    for (int i = 0; i < s->n && (!follows || left > 0); i++) {
        if (to->n == FLUX_MAX_PHASES)
            return FLUX__REFUSE("schedule_sequence: a sequence has at most %d phases",
                                (int)FLUX_MAX_PHASES);
        flux_rule_part *phase = &to->phase[to->n++];
        *phase = s->phase[i];
        if (!follows) continue;
        if (phase->o.steps == 0 || phase->o.steps > left) phase->o.steps = left;
        left -= phase->o.steps;
    }
    return true;
}

FLUX_DEF flux_schedule flux_schedule_sequence_with(int n, const flux_schedule *s) {
    flux_schedule all = flux__bad_schedule();
    bool ends = n > 0 && s[n - 1].steps > 0;
    if (n < 1) flux__fail("schedule_sequence: of no schedule");
    for (int i = 0; i < n; i++) {
        if (!s[i].made) return flux__bad_schedule();
        if (i < n - 1 && s[i].steps == 0) {
            flux__fail("schedule_sequence: schedule %d has no end; flux_schedule_for gives it one",
                       i);
            return flux__bad_schedule();
        }
        if (!flux__append_phases(&all, &s[i], i < n - 1)) return flux__bad_schedule();
        all.steps += s[i].steps;
    }
    if (!ends) all.steps = 0;
    all.made = n > 0;
    return all;
}

/* The rate of step t by n phases; `other` if none of them sets it. */
static double flux__rate_at(int n, const flux_rule_part *phase, int64_t t, double other) {
    FLUX__ZEROED(flux__step, k);
    k.t = t;
    for (int i = 0; i < n; i++) {
        k.part = &phase[i];
        k.o = phase[i].o;
        flux__rule_rows[phase[i].kind].step(&k);
    }
    return k.paced ? k.eta : other;
}

FLUX_DEF double flux_schedule_at(flux_schedule s, int64_t t) {
    if (s.made && t >= 1) return flux__rate_at(s.n, s.phase, t, (double)NAN);
    if (s.made) flux__fail("schedule_at: t is %lld, but counts from 1", (long long)t);
    return (double)NAN;
}

/* The number of the one rule that has an eta, and no schedule yet; -1 with an error otherwise. */
static int flux__rule_to_schedule(const flux_rule *rule) {
    int at = -1, n = 0;
    bool phases = false;
    for (int i = 0; i < rule->n; i++) {
        const flux__rule_row *row = &flux__rule_rows[rule->part[i].kind];
        if (flux__row_has(row, FLUX__ETA)) at = i, n++;
        phases |= flux__is_phase(row);
    }
    if (n == 1 && !phases) return at;
    flux__fail(phases  ? "scheduled: this rule has a schedule already"
               : n > 1 ? "scheduled: several rules of this chain have an eta; schedule each of them"
                       : "scheduled: no rule of this chain has an eta");
    return -1;
}

FLUX_DEF flux_rule flux_scheduled(flux_rule rule, flux_schedule s) {
    if (!s.made || !flux__is_rule("scheduled", &rule)) return flux__bad_rule();
    int at = flux__rule_to_schedule(&rule);
    if (at < 0) return flux__bad_rule();
    if (rule.n + s.n > FLUX_MAX_RULES) {
        flux__fail("scheduled: a chain has at most %d rules and phases", (int)FLUX_MAX_RULES);
        return flux__bad_rule();
    }
    for (int i = rule.n - 1; i >= at; i--) rule.part[i + s.n] = rule.part[i];
    for (int i = 0; i < s.n; i++) rule.part[at + i] = s.phase[i];
    rule.n += s.n;
    const int64_t failures = flux__failures();
    rule.part[at + s.n].o.eta = flux_schedule_at(s, 1);
    return flux__failed_since(failures) ? flux__bad_rule() : rule;
}

/* The first rule of a state that has an eta; the number of rules if none has. */
static int flux__rated_rule(const flux_state *s) {
    int r = 0;
    while (r < s->nrules && !flux__row_has(&flux__rule_rows[s->rule[r].kind], FLUX__ETA)) r++;
    return r;
}

FLUX_DEF double flux_rate(flux_state *s) {
    int first = 0;
    int64_t t = 0;
    if (!s) return flux__null("rate", "state", s), (double)NAN;
    if (!flux__take_counts(s)) return (double)NAN;
    const int r = flux__rated_rule(s);
    if (r == s->nrules) return flux__fail("rate: no rule of this state has an eta"), (double)NAN;
    for (first = r; first > 0; first--)
        if (!flux__is_phase(&flux__rule_rows[s->rule[first - 1].kind])) break;
    for (int i = 0; i < s->nleaves && first < r; i++)
        if (s->t[i * s->nrules + first] > t) t = s->t[i * s->nrules + first];
    return flux__rate_at(r - first, &s->rule[first], t + 1, s->rule[r].o.eta);
}

FLUX__END_COLD

#endif /* FLUX__NN_SCHEDULES_H */
