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
   belongs to the innermost open scope (flux__own); flux_keep_object moves it to
   the scope outside, flux__succeed (flux_carry) to the next iteration of a loop.
   A composite operation records its temporaries between flux__hide and
   flux__reveal, so that only the graph refers to them and they can be fused
   away.

   Invariant: t->owned is one stack for all open scopes of a thread, oldest
   object first; a scope owns the part from its start to the next scope's start.
   Scope 0 is the program's (or, of other threads, the thread's) and never
   closes. An object that moves outwards is swapped, in each scope on the way,
   with the first object of that scope, whose start then moves past it. With
   FLUX__DEBUG the memory of a freed handle is not reused until FLUX__QUARANTINE
   others have been freed, so that using it is an error that names the scope
   (flux__gone). */

FLUX__BEGIN_HOT

static void *flux__own(void *object);     /* gives a new object (refs 1) to the innermost scope */

/* Whether a handle has been freed, which is an error. Without FLUX__DEBUG this may go unnoticed,
   since the memory of freed handles is reused at once and may hold another object by now. */
#define FLUX__GONE(call, h) \
    (((const flux__head *)(const void *)(h))->kind == FLUX__FREED && flux__gone(call, h))
static bool flux__gone(const char *call, const void *object);
/* Frees a handle's memory; with FLUX__DEBUG only later. */
static void flux__quarantine(void *object);

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
    case FLUX__BOX: ((flux__box *)(void *)h)->free((flux__box *)(void *)h); break;
    case FLUX__COMM: break;               /* flux_distributed_end ends it */
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

/* Pushes a new object on the stack t->owned and returns it. If memory runs out, it is released
   and the result is NULL. Whenever a very long stack grows,
   flux__scopes_look checks the scopes. */
static void *flux__own(void *object) {
    flux__thread *t = flux__self();
    if (!object) return NULL;
    if (!t || t->nowned == t->capacity) {
        void **owned = t ? (void **)flux__grow_more(t->owned, &t->capacity, t->nowned + 1,
                                                    sizeof *owned) : NULL;
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

/* Opens a scope. If memory runs out, none is opened: new objects go to the scope outside. */
static FLUX__INLINE void flux__scope_push(flux__thread *t, bool turn, const char *file, int line) {
    flux__scope *all = (flux__scope *)flux__grow(t->scope, &t->scope_capacity, t->nscopes + 1,
                                                 sizeof *all);
    if (!all) return;
    t->scope = all;
    flux__scope *s = &all[t->nscopes++];
    FLUX__ASSERT(s == all || s[-1].start <= t->nowned);
    s->start = t->nowned;
    s->line = line;
    s->file = file;
    s->turn = turn;
}

FLUX_DEF void flux_scope_open(void) {
    flux__thread *t = flux__self();
    if (t) flux__scope_push(t, false, NULL, 0);
}

/* Closes all scopes from number `depth` on, newest object first. Scope 0 never closes. */
static void flux__scope_close_to(flux__thread *t, int depth) {
    if (t->hidden > depth) t->hidden = 0, t->hiding = NULL;
    if (depth < 1 || t->nscopes <= depth) return;
    const flux__scope outer = t->closing, closing = t->scope[depth];
    FLUX__ASSERT(closing.start <= t->nowned);
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

/* The index of the object in t->owned, searched from i down to `start`; -1: it is not there. */
static int flux__owned_at(const flux__thread *t, const void *object, int i, int start) {
    while (i >= start && t->owned[i] != object) i--;
    return i < start ? -1 : i;
}

/* Moves the object at index i of t->owned to the scope just outside of scope `depth`. In each
   scope from its own to `depth` it changes places with the scope's first object, and the scope's
   start then moves past it. */
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
    if (i >= 0) flux__hand_out(t, i, t->nscopes - 1);     /* else a scope further out has it */
    return p;
}

/* The number of the innermost scope that is an iteration of flux_times or flux_each; of the
   innermost scope if there is none. */
static int flux__iteration_at(const flux__thread *t) {
    int k = t->nscopes - 1;
    while (k > 0 && !t->scope[k].turn) k--;
    return k > 0 ? k : t->nscopes - 1;
}

/* flux_carry's work: makes `value` outlive this iteration of a loop, owned by the scope around
   it. If `old` was carried there before, the two change places in t->owned, so that old is
   released at the end of this iteration; else value is moved out. */
static void *flux__succeed(flux__head *old, flux__head *value) {
    flux__thread *t = flux__self();
    int depth = t ? flux__iteration_at(t) : 0;
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

/* Opens the scope of one iteration of flux_times or flux_each. */
static flux__block flux__iteration_enter(const char *file, int line) {
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

/* Runs when the body of a block has been left. live is 2 if by its end or `continue`, and 1 if by
   `break`: that leaves the block only, and gets a warning, since a loop around it may
   have been meant. */
FLUX_DEF void flux__block_end(flux__block *b, const char *file, int line) {
    if (b->live == 1)
        flux__note(FLUX_LOG_WARN, "scope.break", true,
                   "%s:%d: break left this block only, a loop around it goes on; it leaves "
                   "flux_times, whose turns are scopes", file, line);
    flux__block_leave(b);
}

FLUX_DEF flux__iterations flux__times_start(int64_t n) {
    FLUX__ZEROED(flux__iterations, e);
    e.at = -1;
    e.n = n;
    e.failures = flux__failures();
    return e;
}

/* Ends the iteration before and begins the next; false: there is none, or break, or an error. */
FLUX_DEF bool flux__times_next(flux__iterations *e, const char *file, int line) {
    const bool left = e->inner != 0;      /* the body ended by break, which skips inner = 0 */
    flux__block_leave(&e->turn);
    if (left || flux__failed_since(e->failures) || e->at + 1 >= e->n) return false;
    e->at++;
    e->inner = 1;
    e->turn = flux__iteration_enter(file, line);
    return true;
}

FLUX_DEF void flux__times_leave(flux__iterations *e) { flux__block_leave(&e->turn); }

/* Nodes that the library records between these two calls keep no graph, as under FLUX_NOGRAD. */
static int flux__nograd_enter(void) {
    flux__thread *t = flux__self();
    return t ? t->nograd++ : 0;
}

static void flux__nograd_leave(int depth) {
    flux__thread *t = flux__self();
    if (t) t->nograd = depth;
}

/* A composite operation hides its temporaries:
   int s = flux__hide(); ...; return flux__reveal(s, y).
   They belong to a scope that flux__reveal closes, so that only the graph refers to them and they
   can be fused away; y goes to the scope outside. */
static int flux__hide(void) {
    flux__thread *t = flux__self();
    int depth = t ? t->nscopes : 0;
    if (t && !t->hidden) t->hidden = depth + 1, t->hidden_at = t->error.failures;
    flux_scope_open();
    return depth;
}

/* flux__hide for a call that others than its own checks may refuse: their errors begin with its
   name, too. */
static int flux__hide_in(const char *call) {
    flux__thread *t = flux__self();
    const int depth = flux__hide();
    if (t && t->hidden == depth + 1) t->hiding = call;
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

/* ---------------- handles that were freed
   The memory of a freed handle may belong to another tensor by now, or to none: freed nodes are
   reused at once, newest first, so the use of an old handle may go unnoticed. With FLUX__DEBUG a
   handle's memory is kept until FLUX__QUARANTINE others have been freed, in a ring of freed
   handles, each of which knows the scope whose end freed it. */

enum { FLUX__QUARANTINE = 1 << 12 };

/* Records the error that `call` was given a freed handle, with the scope that owned it if it is
   known. Always true. */
static FLUX__COLD bool flux__gone(const char *call, const void *object) {
    const flux__thread *t = flux__self();
    const flux__freed_handle *handle = NULL;
    for (int i = 0; t && t->freed && i < FLUX__QUARANTINE; i++)
        if (t->freed[i].object == object) handle = &t->freed[i];
    static const char *const whats[] = { "a tensor is", "a layer is", "a loader is", "a state is",
        "gradients are", "a communicator is", "a table or folder is" };
    static const char advice[] =
        "; flux_keep hands a value to the scope outside, flux_carry to the next iteration";
    const char *what = whats[handle ? handle->kind - FLUX__TENSOR : 0];
    if (handle && handle->file)
        flux__fail("%s: %s used after the scope that had it, opened at %s:%d, has closed%s", call,
                   what, handle->file, handle->line, advice);
    else
        flux__fail("%s: %s used after the scope that had it has closed, "
                   "or after the last owner's release%s", call, what, advice);
    return true;
}

/* Frees a handle's memory. With FLUX__DEBUG (and no address sanitizer) it is marked as freed and
   put in the ring of freed handles instead, and the oldest handle there is freed. */
static void flux__quarantine(void *object) {
    flux__thread *t = FLUX__DEBUG && !FLUX__ASAN ? flux__self() : NULL;
    if (t && !t->freed)
        t->freed = (flux__freed_handle *)FLUX_MALLOC(FLUX__QUARANTINE * sizeof *t->freed);
    if (!t || !t->freed) {
        flux__free(object);
        return;
    }
    if (t->nfreed == 0) memset(t->freed, 0, FLUX__QUARANTINE * sizeof *t->freed);
    flux__freed_handle *handle = &t->freed[t->nfreed++ % FLUX__QUARANTINE];
    flux__free(handle->object);
    handle->object = object;
    handle->file = t->closing.file;
    handle->line = t->closing.line;
    handle->kind = ((flux__head *)object)->kind;
    ((flux__head *)object)->kind = FLUX__FREED;
}

FLUX__END_HOT

#endif /* FLUX__BASE_SCOPES_H */
