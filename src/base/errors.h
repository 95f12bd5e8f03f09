#ifndef FLUX__BASE_ERRORS_H
#define FLUX__BASE_ERRORS_H
#include "platform.h"
#include "threads.h"
#include "system.h"
#include "object.h"

/* ---------------------------------------------------------------------- base/errors.h
   Errors and messages. flux__self makes a thread's state on first use.
   flux__fail records an error of this thread and returns NULL; flux__note shows
   a warning or other message, by level and id. flux_on_error, flux_on_log and
   flux_silence are the user's side of both.

   Invariant: flux_error() returns the first error since flux_clear; a sentence
   that was reported already is only counted. A call decides whether it failed by
   flux__failures and flux__failed_since, never by errors that were pending
   before it. Between flux__hold and flux__tell no handler runs: a caller that
   holds a lock calls this pair, and messages are delivered at its end. Within
   the pair, and within flux__hide, errors after the first are dropped, since
   they only follow from it. A NULL handle is no new error while an error is
   pending, and an error otherwise (flux__null). Handlers are called without
   flux__lock held. flux__self is NULL only when memory has run out, and that
   error is pending once there is memory again. */

FLUX__BEGIN_LEAN

static flux__thread *flux__self(void);    /* this thread's state; NULL: memory has run out */

/* Records an error of this thread and reports it to the user, unless flux__hold is open. Returns
   NULL; FLUX__REFUSE is the same for functions that return false. */
static void *flux__fail(const char *format, ...) FLUX__PRINTF(1, 2);
#define FLUX__REFUSE(...) (flux__fail(__VA_ARGS__), false)
/* Between these two calls no handler of the user's is called, as is needed while a lock is held;
   at the end flux__tell delivers the messages that waited. Pairs may nest. */
static void flux__hold(void);
static void flux__tell(void);
/* Shows a message of this level, unless its id is silenced, or was shown and `once` is set. */
static void flux__note(flux_level level, const char *id, bool once, const char *format, ...)
    FLUX__PRINTF(4, 5);

/* ---------------- the thread's state and its errors */

typedef struct flux__settings {           /* of the process, guarded by flux__lock */
    flux_error_fn on_error;
    void *error_user;
    flux_log_fn on_log;
    void *log_user;
    int level;                            /* -1: not read from FLUX_LOG yet */
    int schedules;                        /* 1: FLUX_LOG asks for schedules */
    char ids[64][40];                     /* ids that are silenced, or shown once and were shown */
    bool silenced[64];                    /* of each id: silenced by flux_silence */
    int nids;
    int threads;                          /* threads that have had a number */
} flux__settings;
static flux__settings flux__set = { NULL, NULL, NULL, NULL, -1, 0, { { 0 } }, { 0 }, 0, 0 };
static flux__mutex flux__lock = FLUX__MUTEX_INIT;
static int flux__exit_known;              /* 1: handlers for exit and forks are registered */
static int flux__tf32;                    /* atomic: what flux_allow_tf32 was given last */

/* hook: flux__thread_free, base/ending.h */
static void flux__thread_free(void *state);

/* hook: flux__at_exit, base/ending.h */
static void flux__at_exit(void);

/* There was no memory for this thread's state; the error becomes pending once there is. */
static FLUX__THREAD_LOCAL bool flux__no_self;

/* Allocates this thread's state, zeroed but for its stack of scopes; NULL: out of memory. */
static FLUX__COLD flux__thread *flux__self_alloc(void) {
    flux__thread *t = (flux__thread *)FLUX_MALLOC(sizeof *t);
    if (!t) return NULL;
    memset(t, 0, sizeof *t);
    t->scope = (flux__scope *)FLUX_MALLOC(16 * sizeof *t->scope);
    if (t->scope && flux__tls_set(t, flux__thread_free)) return t;
    flux__free(t->scope);
    flux__free(t);
    return NULL;
}

/* Makes this thread's state, with its own scope open; the first call in the process also
   registers what is to run at exit and at forks. */
static FLUX__COLD flux__thread *flux__self_new(void) {
    flux__thread *t = flux__self_alloc();
    if (!t) {
        flux__no_self = true;
        return NULL;
    }
    t->error.set = flux__no_self;
    if (flux__no_self)
        snprintf(t->error.text, sizeof t->error.text,
                 "out of memory: %zu bytes for a thread's state", sizeof *t);
    flux__no_self = false;
    t->scope_capacity = 16;
    memset(t->scope, 0, sizeof *t->scope);
    t->nscopes = 1;
    flux__mutex_lock(&flux__lock);
    if (flux__set.threads < UINT16_MAX) t->number = (uint16_t)++flux__set.threads;
    if (!flux__exit_known) {
        flux__exit_known = 1;
        atexit(flux__at_exit);
        flux__on_forks();
    }
    flux__mutex_unlock(&flux__lock);
    return t;
}

static FLUX__INLINE flux__thread *flux__self(void) {
    flux__thread *t = (flux__thread *)flux__tls_get();
    return t ? t : flux__self_new();
}

/* Reports an error: to the user's handler or to stderr; ends the program if FLUX_ERROR=abort. */
static FLUX__COLD void flux__say_error(const char *text) {
    flux__mutex_lock(&flux__lock);
    flux_error_fn handler = flux__set.on_error;
    void *user = flux__set.error_user;
    flux__mutex_unlock(&flux__lock);
    if (handler) handler(text, user);
    else fprintf(stderr, "flux: %s\n", text);
    const char *mode = flux__env("FLUX_ERROR");
    if (mode && strcmp(mode, "abort") == 0) abort();
}

/* Counts the failure whose sentence is in e->now, and makes it pending. Returns whether it is to be
   said: not if quiet, nor if it was said since flux_clear. */
static bool flux__pend(flux__pending *e, bool quiet) {
    uint64_t hash = 14695981039346656037u;
    for (const char *p = e->now; *p; p++) hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    e->failures++;
    if (!e->set) e->first = e->failures, e->repeated = e->nsaid = 0;
    e->set = true;
    for (int i = 0; i < e->nsaid && i < 32; i++)
        if (e->said[i] == hash) return e->repeated++, false;
    if (quiet) return false;
    e->said[e->nsaid % 32] = hash;
    e->nsaid = e->nsaid < 63 ? e->nsaid + 1 : 32;
    return true;
}

/* The memory for the next error's sentence: text for the first since flux_clear, else more. */
static char *flux__sentence(flux__pending *e) { return e->now = e->set ? e->more : e->text; }

/* Puts "call: " before a sentence in `size` bytes, unless that begins with it; its end may be cut
   off. */
static void flux__name_caller(char *sentence, size_t size, const char *call) {
    const size_t n = strlen(call), length = strlen(sentence);
    if (n + 2 >= size || (strncmp(sentence, call, n) == 0 && sentence[n] == ':')) return;
    memmove(sentence + n + 2, sentence, length + n + 2 < size ? length + 1 : size - n - 2);
    memcpy(sentence, call, n);
    memcpy(sentence + n, ": ", 2);
    sentence[size - 1] = 0;
}

/* Makes this sentence the thread's error, unless it follows from one of the same call, and says it,
   unless it was said before; a lock that is held delays that. NULL, which a call can return. */
static FLUX__COLD void *flux__fail(const char *format, ...) {
    flux__thread *t = flux__self();
    if (!t) {
        fprintf(stderr, "flux: out of memory\n");
        return NULL;
    }
    /* Of the errors within one call only the first is recorded: the others follow from it. */
    const int64_t failures = t->error.failures;
    if ((t->held && failures != t->held_at) || (t->hidden && failures != t->hidden_at))
        return t->error.failures++, (void *)NULL;
    va_list args;
    va_start(args, format);
    char *text = flux__sentence(&t->error);
    int n = t->where ? t->where(t->place, text, sizeof t->error.text) : 0;
    vsnprintf(text + n, sizeof t->error.text - (size_t)n, format, args);
    va_end(args);
    if (t->hidden && t->hiding)
        flux__name_caller(text + n, sizeof t->error.text - (size_t)n, t->hiding);
    if (!flux__pend(&t->error, t->quiet)) return NULL;
    t->error.unsaid = t->held > 0;
    if (!t->held) flux__say_error(text);
    return NULL;
}

/* How a call finds out whether it failed: it did if flux__failed_since(f), where f is what
   flux__failures() returned as it began. Errors that were pending before don't count, nor do
   errors that were cleared meanwhile, as a user's function within the call may do. */
static int64_t flux__failures(void) {
    flux__thread *t = flux__self();
    return t ? t->error.failures : -1;
}
static bool flux__failed_since(int64_t failures) {
    flux__thread *t = flux__self();
    return !t || (t->error.set && t->error.failures != failures);
}

/* Takes back the errors since `failures` (from flux__failures), and copies the latest sentence of
   them to out, or `or_else` if there is none. Errors that were pending before stay so. */
static FLUX__COLD void flux__withdraw(int64_t failures, char *out, size_t n, const char *or_else) {
    flux__thread *t = flux__self();
    snprintf(out, n, "%s", t && flux__failed_since(failures) ? t->error.now : or_else);
    if (t && t->error.first > failures) flux_clear();
    if (t) t->held_at = t->hidden_at = t->error.failures;
}

static void flux__hold(void) {
    flux__thread *t = flux__self();
    if (t && t->held++ == 0) t->held_at = t->error.failures;
}

static void flux__tell(void) {
    flux__thread *t = flux__self();
    if (!t || --t->held > 0) return;
    if (t->later.waits) {
        t->later.waits = false;
        flux__note((flux_level)t->later.level, t->later.id, t->later.once, "%s", t->later.text);
    }
    if (t->error.set && t->error.unsaid) {
        t->error.unsaid = false;
        flux__say_error(t->error.now);
    }
}

FLUX_DEF const char *flux_error(void) {
    flux__thread *t = flux__self();
    return t ? (t->error.set ? t->error.text : "") : "out of memory";
}

FLUX_DEF bool flux_failed(void) {
    flux__thread *t = flux__self();
    return !t || t->error.set;
}

FLUX_DEF void flux_clear(void) {
    flux__thread *t = flux__self();
    if (!t) return;
    if (t->error.set && t->error.repeated)
        flux__note(FLUX_LOG_DEBUG, "error.repeated", false,
                   "%lld more calls failed for reasons that had been said",
                   (long long)t->error.repeated);
    t->error.set = t->error.unsaid = false;
    t->held_at = t->hidden_at = t->error.failures;
    t->error.text[0] = 0;
}

FLUX_DEF FLUX__COLD void flux_on_error(flux_error_fn handler, void *user) {
    flux__mutex_lock(&flux__lock);
    flux__set.on_error = handler;
    flux__set.error_user = user;
    flux__mutex_unlock(&flux__lock);
}

/* Whether a NULL handle needs no error of its own, since an error is pending: the call that
   failed returned it (NULL in, NULL out). Nothing else may depend on errors that were pending
   before a call, except that flux_each begins with none. */
static bool flux__null_explained(void) { return flux_failed(); }

/* Records the error that argument `arg` of `call` is NULL, if p is and no error is pending that
   explains it. Always returns NULL. */
static FLUX__COLD void *flux__null(const char *call, const char *arg, const void *p) {
    if (!p && !flux__null_explained()) flux__fail("%s: argument %s is NULL", call, arg);
    return NULL;
}

/* ---------------- messages that are not errors */

/* Reads FLUX_LOG: a level, "schedule", or both. The caller holds flux__lock. */
static FLUX__COLD void flux__read_level(void) {
    static const char *const names[] = { "error", "warn", "info", "debug" };
    const char *text = flux__env("FLUX_LOG");
    flux__set.level = FLUX_LOG_INFO;
    for (int i = 0; text && i < 4; i++)
        if (strstr(text, names[i])) flux__set.level = i;
    flux__set.schedules = text && strstr(text, "schedule");
}

/* Whether a message may be shown: it is not silenced, nor shown before if `once`. The caller
   holds flux__lock. */
static FLUX__COLD bool flux__may_show(const char *id, bool once) {
    for (int i = 0; i < flux__set.nids; i++)
        if (strcmp(flux__set.ids[i], id) == 0) return !once && !flux__set.silenced[i];
    if (once && flux__set.nids < 64) {
        snprintf(flux__set.ids[flux__set.nids], sizeof flux__set.ids[0], "%s", id);
        flux__set.silenced[flux__set.nids++] = false;
    }
    return true;
}

/* Writes one line to the log, if its level is asked for and `id` is not silenced; with `once`, only
   the first time that this id comes. */
static FLUX__COLD void flux__note(flux_level level, const char *id, bool once, const char *format,
                                  ...) {
    char text[1024];
    va_list args;
    flux__thread *t = (flux__thread *)flux__tls_get();
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (t && t->held) {
        if (t->later.waits) return;       /* only the first message under a lock is kept */
        t->later.waits = true, t->later.once = once, t->later.level = (int)level;
        snprintf(t->later.id, sizeof t->later.id, "%s", id);
        snprintf(t->later.text, sizeof t->later.text, "%.590s", text);
        return;
    }
    flux__mutex_lock(&flux__lock);
    if (flux__set.level < 0) flux__read_level();
    bool show = (int)level <= flux__set.level && flux__may_show(id, once);
    flux_log_fn handler = flux__set.on_log;
    void *user = flux__set.log_user;
    flux__mutex_unlock(&flux__lock);
    if (!show) return;
    if (handler) handler(level, id, text, user);
    else fprintf(stderr, "flux: %s%s\n", level == FLUX_LOG_WARN ? "warning: " : "", text);
}

FLUX_DEF FLUX__COLD void flux_log_level(flux_level most) {
    flux__mutex_lock(&flux__lock);
    if (flux__set.level < 0) flux__read_level();
    flux__set.level = (int)most;
    flux__mutex_unlock(&flux__lock);
}

FLUX_DEF FLUX__COLD void flux_on_log(flux_log_fn handler, void *user) {
    flux__mutex_lock(&flux__lock);
    flux__set.on_log = handler;
    flux__set.log_user = user;
    flux__mutex_unlock(&flux__lock);
}

FLUX_DEF FLUX__COLD void flux_silence(const char *id) {
    flux__mutex_lock(&flux__lock);
    if (!id) flux__set.nids = 0;
    int i = 0;
    while (i < flux__set.nids && strcmp(flux__set.ids[i], id) != 0) i++;
    /* in a full list the place of an id that was only shown */
    if (i == 64)
        for (i = 0; i < 64 && flux__set.silenced[i];) i++;
    if (id && i < 64) {
        snprintf(flux__set.ids[i], sizeof flux__set.ids[0], "%s", id);
        flux__set.silenced[i] = true;
        if (i == flux__set.nids) flux__set.nids++;
    }
    flux__mutex_unlock(&flux__lock);
    if (id && i == 64) flux__fail("silence: \"%.60s\" is one too many: 64 ids can be silenced", id);
}

static FLUX__COLD bool flux__log_schedules(void) {
    flux__mutex_lock(&flux__lock);
    if (flux__set.level < 0) flux__read_level();
    bool on = flux__set.schedules != 0;
    flux__mutex_unlock(&flux__lock);
    return on;
}

FLUX__END_LEAN

#endif /* FLUX__BASE_ERRORS_H */
