#ifndef FLUX__API_MEMORY_H
#define FLUX__API_MEMORY_H
#include "errors.h"

/* ------------------------------------------------------------------ memory */

FLUX_API void flux_scope_open(void);      /* what is made from here on belongs to this scope */
FLUX_API void flux_scope_close(void);     /* frees it; scopes left open inside are closed too */
FLUX_API void *flux_retain(const void *object);    /* one more owner: any handle; returns it. NULL is fine */
FLUX_API void flux_release(const void *object);    /* one owner less; the last one frees it */
FLUX_API void *flux_keep_object(const void *object);      /* see flux_keep */
FLUX_API void *flux_carry_object(const void *old, const void *value);      /* see flux_carry */
FLUX_API void flux_assign(flux_tensor **field, flux_tensor *value);  /* field = value, owners counted: for a layer's state */

/* flux_times (i, n) { ... }: n turns, i from 0, of n's type (evaluated once). Each turn is a scope: what it makes goes with it.
   `break` leaves the loop, `continue` the turn; no turn follows an error. As flux_each, for what is no data set.
   In a bare `for` what is made stays until the scope around it closes. One that has come to hold 1 GB in many tensors alike says
   so once: where it was opened, and what it holds most of (the message "scope.memory"). */
#define flux_times(i, n) FLUX__TIMES(i, n)
/* FLUX_SCOPE { ... }: what is made inside is freed at its end.
   FLUX_NOGRAD { ... }: what is recorded inside keeps no graph, and layers are in test mode. It is no scope: its values may be used
   after it, and in a loop they pile up.
   FLUX_INFER { ... }: both, for inference.
   All three are blocks, no loops: `break` and `continue` leave the block alone, and a `for` around it goes on, which the message
   "scope.break" says. It is flux_times that `break` leaves. `return` is fine with gcc, clang and C++ (elsewhere the scope outside cleans up). */
#define FLUX_SCOPE FLUX__BLOCK(FLUX__CAT(flux__scope_, __LINE__), true, false)
#define FLUX_NOGRAD FLUX__BLOCK(FLUX__CAT(flux__nograd_, __LINE__), false, true)
#define FLUX_INFER FLUX__BLOCK(FLUX__CAT(flux__infer_, __LINE__), true, true)
/* flux_keep(x): hands x (tensor, layer, ...) from the innermost scope to the one outside, and returns it. In a loop that is
   one more at each turn.
   flux_carry(old, value): takes a tensor, layer, state or loader to the next turn: h = flux_carry(h, flux_call(cell, x, h)).
   The value belongs to the scope around the innermost flux_times or flux_each, or, without such a loop, to the one around the
   innermost scope. What was carried there before as `old` goes at the end of this turn, so that nothing grows; `old` may be NULL,
   and one that was not carried, a start, stays its owner's. Of tensors, alone, in tuples or in layers, the value is computed
   (queued, on a GPU) and carried without what it came from: no gradient reaches into an earlier turn. Steps that a gradient is to
   go through belong in one turn. NULL is carried as NULL, and frees nothing. */

/* A program's own threads may call everything at once. What has been computed (flux_eval, any look), a model whose parameters
   are, a device and the settings are for all of them; what a thread has recorded and not computed yet, what it changes (a model
   that it trains, a loader that it goes through) and its errors are its own. */

/* Threads for CPU work from now on, yours included; 0: as many as processors. A forked child has none but the thread that
   forked, and starts its own when there is work; it may not use a GPU that the parent has opened (an error says so). */
FLUX_API void flux_threads(int n);
/* Frees everything that is still alive; called at exit, and when a library with this code is unloaded; harmless twice. */
FLUX_API void flux_shutdown(void);

#endif /* FLUX__API_MEMORY_H */
