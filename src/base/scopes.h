#ifndef FLUX__BASE_SCOPES_H
#define FLUX__BASE_SCOPES_H
#include "platform.h"
#include "threads.h" /* flux__atomic_add */
#include "object.h"
#include "errors.h"
#include "memory.h"

/* ---------------------------------------------------------------------- base/scopes.h
   Ownership: reference counts (flux_retain, flux_release), scopes, and the
   detection of handles that are used after their scope closed. A new object
   belongs to the innermost open scope (flux__own); flux_keep_object hands it to
   the scope outside, flux__succeed to the next turn of a loop. A composite
   operation records its temporaries between flux__hide and flux__reveal, so
   that only the graph refers to them and they can be fused away.

   Invariant: t->owned is one stack for all open scopes of a thread, oldest
   first; a scope owns the part from its start to the next scope's start. Number
   0 is the program's scope (or the thread's life) and never closes. What moves
   outwards is swapped to the boundary of each scope on the way, which then
   moves past it. With FLUX__DEBUG a freed handle is not reused until
   FLUX__GRAVES others have been freed, so its use is an error that names the
   scope (flux__gone). */

FLUX__LEAN

static void *flux__own(void *object);     /* gives a new object (refs 1) to the innermost scope; returns it */

/* Whether a handle has been freed, which is an error then. Where handles are used again at once, it may be another by now. */
#define FLUX__GONE(call, h) (((const flux__head *)(const void *)(h))->kind == FLUX__FREED && flux__gone(call, h))
static bool flux__gone(const char *call, const void *object);
static void flux__bury(void *object);     /* frees a handle's memory, or keeps it for a while to tell of its use */

FLUX__HOT

/* ---------------- ownership and scopes */

/* hook: flux__layer_free, nn/fields.h */
static void flux__layer_free(flux_layer *m);

/* hook: flux__loader_free, data/loader.h */
static void flux__loader_free(flux_loader *l);

/* hook: flux__state_free, nn/state.h */
static void flux__state_free(flux_state *s);

/* hook: flux__grads_free, graph/gradients.h */
static void flux__grads_free(flux_grads *g);

/* hook: flux__plans_free, schedule/plans.h */
static void flux__plans_free(struct flux__plans *plans);

/* hook: flux__tensor_free, graph/nodes.h */
static void flux__tensor_free(flux_tensor *t);
FLUX_DEF void *flux_retain(const void *object) {
    flux__head *h = (flux__head *)(intptr_t)object;
    if (FLUX__DEBUG && h && h->kind == FLUX__FREED) flux__gone("retain", h);
    if (h) flux__atomic_add(&h->refs, 1);
    return h;
}

FLUX_DEF void flux_release(const void *object) {
    flux__head *h = (flux__head *)(intptr_t)object;
    if (!h || flux__atomic_add(&h->refs, -1) > 0) return;
    switch (h->kind) {
    case FLUX__TENSOR: flux__tensor_free((flux_tensor *)h); break;
    case FLUX__LAYER: flux__layer_free((flux_layer *)h); break;
    case FLUX__LOADER: flux__loader_free((flux_loader *)h); break;
    case FLUX__STATE: flux__state_free((flux_state *)h); break;
    case FLUX__FREED: flux__gone("release", h); break;
    default: flux__grads_free((flux_grads *)h); break;
    }
}

FLUX_DEF void flux_assign(flux_tensor **field, flux_tensor *value) {
    flux_tensor *old = *field;
    *field = (flux_tensor *)flux_retain(value);
    flux_release(old);
}

/* hook: flux__scopes_look, schedule/looking.h */
static void flux__scopes_look(void);
static void *flux__own(void *object) {
    flux__thread *t = flux__self();
    if (!object || !t) return object;
    if (t->nowned == t->room) {
        void **owned = (void **)flux__grow_more(t->owned, &t->room, t->nowned + 1, sizeof *owned);
        if (!owned) {
            flux_release(object);
            return NULL;
        }
        t->owned = owned;
        if (t->nowned > flux__scope_most / 1024) flux__scopes_look();
    }
    t->owned[t->nowned++] = object;
    return object;
}

/* Out of memory: what follows then belongs to the scope outside. */
static FLUX__INLINE void flux__scope_push(flux__thread *t, bool turn, const char *file, int line) {
    flux__scope *all = (flux__scope *)flux__grow(t->scope, &t->scope_room, t->nscopes + 1, sizeof *all);
    if (!all) return;
    t->scope = all;
    flux__scope *s = &all[t->nscopes++];
    s->start = t->nowned;
    s->line = line;
    s->file = file;
    s->turn = turn;
}

FLUX_DEF void flux_scope_open(void) {
    flux__thread *t = flux__self();
    if (t) flux__scope_push(t, false, NULL, 0);
}

/* Closes the scopes from number `depth` on (the program's own is 0 and stays). */
static void flux__scope_close_to(flux__thread *t, int depth) {
    if (t->hidden > depth) t->hidden = 0;
    if (depth < 1 || t->nscopes <= depth) return;
    const flux__scope outer = t->closing, closing = t->scope[depth];
    if (FLUX__DEBUG) t->closing = closing;
    t->nscopes = depth;
    while (t->nowned > closing.start) flux_release(t->owned[--t->nowned]);
    if (FLUX__DEBUG) t->closing = outer;
}

FLUX_DEF void flux_scope_close(void) {
    flux__thread *t = flux__self();
    if (!t) return;
    if (t->nscopes <= 1) flux__fail("scope_close: no scope is open");
    else flux__scope_close_to(t, t->nscopes - 1);
}

/* Where among what is owned, from number i downwards to `start`, the object stands; -1: nowhere there. */
static int flux__owned_at(const flux__thread *t, const void *object, int i, int start) {
    while (i >= start && t->owned[i] != object) i--;
    return i < start ? -1 : i;
}

/* Hands what stands at number i to the scope outside of number `depth`: in each scope on the way to the boundary, which then
   moves past it. */
static void flux__hand_out(flux__thread *t, int i, int depth) {
    void *object = t->owned[i];
    int k = t->nscopes - 1;
    while (t->scope[k].start > i) k--;
    for (; k >= depth; k--) {
        int start = t->scope[k].start++;
        t->owned[i] = t->owned[start];
        t->owned[i = start] = object;
    }
}

FLUX_DEF void *flux_keep_object(const void *object) {
    flux__thread *t = flux__self();
    void *p = (void *)(intptr_t)object;
    if (p && FLUX__GONE("keep", p)) return NULL;
    if (!p || !t || t->nscopes <= 1) return p;
    int i = flux__owned_at(t, p, t->nowned - 1, t->scope[t->nscopes - 1].start);
    if (i >= 0) flux__hand_out(t, i, t->nscopes - 1);     /* else it belongs to a scope further out already */
    return p;
}

/* The number of the innermost turn of a loop; of the innermost scope where there is none. */
static int flux__turn_at(const flux__thread *t) {
    int k = t->nscopes - 1;
    while (k > 0 && !t->scope[k].turn) k--;
    return k > 0 ? k : t->nscopes - 1;
}

/* The value takes the place outside of this turn that `old` has there from flux_carry, and old the value's within, or else a
   place of its own. */
static void *flux__succeed(flux__head *old, flux__head *value) {
    flux__thread *t = flux__self();
    int depth = t ? flux__turn_at(t) : 0;
    if (depth < 1) return value;
    int start = t->scope[depth].start;
    int to = old && old->carried ? flux__owned_at(t, old, start - 1, 0) : -1;
    int from = flux__owned_at(t, value, t->nowned - 1, start);
    if (from < 0) {
        if (!flux__own(flux_retain(value))) return NULL;
        from = t->nowned - 1;
    }
    value->carried = 1;
    if (to < 0) flux__hand_out(t, from, depth);
    else t->owned[from] = old, t->owned[to] = value;
    return value;
}

static flux__block flux__turn_enter(const char *file, int line) {
    flux__thread *t = flux__self();
    flux__block b = { 1, t ? t->nscopes : 0, t ? t->nograd : 0 };
    if (t) flux__scope_push(t, true, file, line);
    return b;
}

FLUX_DEF flux__block flux__block_enter(bool scope, bool nograd, const char *file, int line) {
    flux__thread *t = flux__self();
    flux__block b = { 1, t && scope ? t->nscopes : 0, t ? t->nograd : 0 };
    if (t && scope) flux__scope_push(t, false, file, line);
    if (t) t->nograd += nograd;
    return b;
}

FLUX_DEF void flux__block_leave(flux__block *b) {
    flux__thread *t = flux__self();
    if (b->live && t) {
        flux__scope_close_to(t, b->depth);
        t->nograd = b->nograd;
    }
    b->live = 0;
}

/* The body has been left: at its end or by `continue`, or by `break`, which may have meant a loop around the block. */
FLUX_DEF void flux__block_end(flux__block *b, const char *file, int line) {
    if (b->live == 1)
        flux__note(FLUX_LOG_WARN, "scope.break", true, "%s:%d: break left this block only, a loop around it goes on; it leaves "
                   "flux_times, whose turns are scopes", file, line);
    flux__block_leave(b);
}

FLUX_DEF flux__turns flux__times_start(int64_t n) {
    flux__turns e;
    memset(&e, 0, sizeof e);
    e.at = -1;
    e.n = n;
    e.failures = flux__failures();
    return e;
}

FLUX_DEF bool flux__times_next(flux__turns *e, const char *file, int line) {
    const bool left = e->inner != 0;      /* by break */
    flux__block_leave(&e->turn);
    if (left || flux__failed_since(e->failures) || e->at + 1 >= e->n) return false;
    e->at++;
    e->inner = 1;
    e->turn = flux__turn_enter(file, line);
    return true;
}

FLUX_DEF void flux__times_leave(flux__turns *e) { flux__block_leave(&e->turn); }

/* Our own: what is recorded between these two keeps no graph. */
static int flux__nograd_enter(void) {
    flux__thread *t = flux__self();
    return t ? t->nograd++ : 0;
}

static void flux__nograd_leave(int depth) {
    flux__thread *t = flux__self();
    if (t) t->nograd = depth;
}

/* A composite operation hides its temporaries: int s = flux__hide(); ...; return flux__reveal(s, y). Nothing but the
   graph refers to them then, so that they can be fused away. */
static int flux__hide(void) {
    flux__thread *t = flux__self();
    int depth = t ? t->nscopes : 0;
    if (t && !t->hidden) t->hidden = depth + 1, t->hidden_at = t->error.failures;
    flux_scope_open();
    return depth;
}

static void *flux__reveal_object(int depth, void *object) {
    flux__thread *t = flux__self();
    if (!t) return object;
    flux_retain(object);
    flux__scope_close_to(t, depth);
    return flux__own(object);
}
#define flux__reveal(depth, y) ((flux_tensor *)flux__reveal_object(depth, y))

FLUX__COLD

/* ---------------- what was freed
   A handle that is used after its scope is another tensor's, or nobody's. Freed nodes are used again at once, newest first,
   so it takes luck to notice. With FLUX__DEBUG nothing is used again until as many others have been freed as there are graves,
   and a grave knows the scope. */

enum { FLUX__GRAVES = 1 << 12 };

static bool flux__gone(const char *call, const void *object) {
    const flux__thread *t = flux__self();
    const flux__grave *grave = NULL;
    for (int i = 0; t && t->graves && i < FLUX__GRAVES; i++)
        if (t->graves[i].object == object) grave = &t->graves[i];
    static const char *const whats[] = { "a tensor is", "a layer is", "a loader is", "a state is", "gradients are" };
    static const char advice[] = "; flux_keep hands a value to the scope outside, flux_carry to the next turn";
    const char *what = whats[grave ? grave->kind - FLUX__TENSOR : 0];
    if (grave && grave->file)
        flux__fail("%s: %s used after the scope that had it, opened at %s:%d, has closed%s", call, what, grave->file, grave->line, advice);
    else flux__fail("%s: %s used after the scope that had it has closed, or after the last owner's release%s", call, what, advice);
    return true;
}

FLUX__HOT

static void flux__bury(void *object) {
    flux__thread *t = FLUX__DEBUG && !FLUX__ASAN ? flux__self() : NULL;
    if (t && !t->graves) t->graves = (flux__grave *)FLUX_MALLOC(FLUX__GRAVES * sizeof *t->graves);
    if (!t || !t->graves) {
        FLUX_FREE(object);
        return;
    }
    if (t->buried == 0) memset(t->graves, 0, FLUX__GRAVES * sizeof *t->graves);
    flux__grave *grave = &t->graves[t->buried++ % FLUX__GRAVES];
    if (grave->object) FLUX_FREE(grave->object);
    grave->object = object;
    grave->file = t->closing.file;
    grave->line = t->closing.line;
    grave->kind = ((flux__head *)object)->kind;
    ((flux__head *)object)->kind = FLUX__FREED;
}

#endif /* FLUX__BASE_SCOPES_H */
