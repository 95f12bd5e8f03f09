#ifndef FLUX__API_MEMORY_H
#define FLUX__API_MEMORY_H
#include "errors.h"

/* ------------------------------------------------------------------ memory
   A handle (tensor, layer, loader, state, gradients) belongs to the scope in which it was made and
   is freed when that scope closes, unless it has another owner. */

/* Opens a scope, which owns what is made from here on. */
FLUX_API void flux_scope_open(void);
/* Closes the innermost scope and frees what it owns; an error if no scope is open. The end of a
   block or iteration (see below) also closes scopes that were left open inside it. */
FLUX_API void flux_scope_close(void);
/* Adds an owner to a handle or NULL, returns it. */
FLUX_API void *flux_retain(const void *object);
/* Removes an owner; with the last one the object is freed. */
FLUX_API void flux_release(const void *object);
/* See flux_keep. */
FLUX_API void *flux_keep_object(const void *object);
/* See flux_carry. */
FLUX_API void *flux_carry_object(const void *old, const void *value);
/* Sets *field to value and counts owners: value gains one, the previous tensor loses one. For the
   state that a layer keeps in a field of its struct. */
FLUX_API void flux_assign(flux_tensor **field, flux_tensor *value);

#define flux_times(i, n) \
    /* flux_times (i, n) { ... }: a loop of n iterations, i from 0, of the type of n (evaluated
       once). Each iteration is a scope: what it makes is freed at its end. `break` leaves the
       loop, `continue` goes on to the next iteration; after an error there is no further
       iteration. It is flux_each for loops that do not go over a data set. In a plain `for`, what
       is made stays until the enclosing scope closes. A scope that has come to hold 1 GB in many
       tensors of the same kind is reported once, by the message "scope.memory": where it was
       opened, and what it holds most of. */ \
    FLUX__TIMES(i, n)
/* FLUX_SCOPE { ... }: what is made inside is freed at the end of the block.
   FLUX_NOGRAD { ... }: what is made inside records nothing for gradients, and layers are in test
   mode. It is no scope: its values may be used after it, and in a loop they pile up.
   FLUX_INFER { ... }: both, for inference.
   What FLUX_NOGRAD and FLUX_INFER compute on the CPU from the same weights again and again reads
   packed copies of them from the third call on, which flux_mem_stats counts.
   All three are blocks, not loops, although `break` and `continue` inside one leave only the block:
   a `for` around it goes on, and the message "scope.break" says so. To be able to leave the loop by
   `break`, use flux_times. `return` out of a block is fine with gcc, clang and C++; other compilers
   leave the cleanup to the enclosing scope. */
#define FLUX_SCOPE \
    /* A block at whose end what was made in it is freed. */ \
    FLUX__BLOCK(FLUX__CAT(flux__scope_, __LINE__), true, false)
#define FLUX_NOGRAD \
    /* A block that records nothing for gradients; layers in it are in test mode. */ \
    FLUX__BLOCK(FLUX__CAT(flux__nograd_, __LINE__), false, true)
#define FLUX_INFER \
    /* A block for inference: FLUX_NOGRAD and FLUX_SCOPE in one. */ \
    FLUX__BLOCK(FLUX__CAT(flux__infer_, __LINE__), true, true)
/* flux_keep(x) moves x (tensor, layer, ...) from the innermost scope to the enclosing one and
   returns it. In a loop, each iteration adds one more object to the enclosing scope.

   flux_carry(old, value) takes a tensor, layer, state or loader to the next iteration:
   h = flux_carry(h, flux_call(cell, x, h)). The value is owned by the scope around the innermost
   flux_times or flux_each or, without such a loop, by the scope around the innermost one. If `old`
   was itself carried there, it is freed at the end of this iteration, so that memory does not grow.
   `old` may be NULL; an `old` that was not carried, such as a start value, keeps its owner.
   A tensor, alone, in a tuple or in a layer, is computed first (on a GPU: queued) and is carried
   without what it was computed from, so that no gradient reaches into an earlier iteration: steps
   that one gradient goes through must stand in one iteration. A `value` of NULL is returned as
   NULL, and frees nothing. */

/* Threads of the program may make any calls at the same time. All threads share tensors, models,
   devices and settings; what two of them look at first at the same time is computed once, by one of
   them, while the other waits. Each thread has its own: objects that it changes (a model that it
   trains, a loader that it goes through), and pending errors. A tensor goes with the scope of the
   thread that made it: who shares it keeps that scope open, or holds it by flux_retain. */

/* Sets how many threads do CPU work from now on, the caller included; 0 means as many as there are
   processors. A process made by fork has only the thread that forked and starts its own workers
   when there is work; it may not use a GPU that its parent has opened (that is an error). */
FLUX_API void flux_threads(int n);
/* Frees everything that is still alive. It is called at exit and when a library that contains this
   code is unloaded; calling it twice does no harm. */
FLUX_API void flux_shutdown(void);

#endif /* FLUX__API_MEMORY_H */
