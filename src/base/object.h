#ifndef FLUX__BASE_OBJECT_H
#define FLUX__BASE_OBJECT_H
#include "platform.h"
#include "threads.h" /* flux__atomic_load */

/* ---------------------------------------------------------------------- base/object.h
   The types that the rooms share: the head of every handle, buffers, tensors
   (nodes of the graph), scopes, and flux__thread, which holds all state that is
   not shared between threads. It also declares the error and allocation calls
   that base/errors.h and base/memory.h define.

   Invariant: every handle starts with a flux__head, which says what it is and
   counts its references. A reference is held by a scope, by the user
   (flux_retain), by another object, or by an edge of the graph. The lower half
   of refs counts all references and the upper half the edges among them, so one
   atomic step of FLUX__EDGE counts both; a tensor with edges only is hidden
   (flux__visible is false): nobody can look at it, and it may be fused away. A
   view's base is never a view itself. */

FLUX__LEAN

enum { FLUX__TENSOR = 0x7e01, FLUX__LAYER, FLUX__LOADER, FLUX__STATE, FLUX__GRADS, FLUX__FREED };

typedef struct flux__buffer {             /* memory on a device, shared by the tensors that lie in it */
    int64_t refs;
    flux_device device;
    size_t bytes;                         /* as asked for; the pool may have given more */
    size_t room;
    int cls;                              /* its size's class in the pool */
    void *ptr;
    bool borrowed;                        /* the user's own: never written, never freed */
    struct flux__buffer *before, *after;  /* among the device's live ones: an error of memory names the largest */
    int64_t dim[FLUX_MAX_DIMS];           /* of the tensor that it was made for, */
    int16_t ndim, dtype;                  /* ndim -1: no tensor's */
} flux__buffer;

struct flux_tensor {                      /* a node of the graph; with buf set, also its value */
    flux__head head;
    uint16_t op;
    uint8_t dtype, ndim, nin, flags;
    uint32_t mark, walk_mark;             /* the schedule's, and a gradient's: which walk saw it, */
    int32_t index, walk_index;            /* and under which number */
    flux_tensor **in, *slot[3];           /* operands: in points to slot, or to memory of its own */
    flux__buffer *buf;                    /* the value: elements in order, dim 0 fastest */
    flux_tensor *base;                    /* a view's: whose elements it shows (not itself a view), from .offset by .stride */
    flux_device device;                   /* so far is what walks over graphs look at: it lies together */
    int64_t dim[FLUX_MAX_DIMS];
    int64_t offset, stride[FLUX_MAX_DIMS];
    int64_t rel;                          /* FLUX__STRIDED, FLUX__SPREAD: where arg.i strides start, in the operand in order */
    union { double num; int64_t i[FLUX_MAX_DIMS]; uint64_t u[FLUX_MAX_DIMS]; } arg;   /* the operation's own parameters */
    intptr_t dense;                       /* a tensor, atomic: the elements in order in the host's memory, once flux_data asked for them */
};
enum {                                    /* flags of a tensor */
    FLUX__WEAK = 1, FLUX__SEED = 2,       /* a bare number; the 1 that a gradient starts from */
    FLUX__CONSUMED = 4, FLUX__FIXED = 8,  /* graph used up by flux_update; no graph kept */
    FLUX__WIDENED = 16                    /* half format that a formula takes as float32, see flux__widened */
};

typedef struct flux__pending {            /* what failed since flux_clear; .set: something did */
    char text[1024], more[1024], *now;    /* the first failure's sentence, the latest other one's, and which of these is the latest */
    bool set, unsaid;
    int64_t failures, first, repeated;    /* failures ever, which of them was the first, and how many said nothing new */
    uint64_t said[32];                    /* hashes of the sentences that were said */
    int nsaid;
} flux__pending;
typedef struct flux__unsaid { int level; bool waits, once; char id[40], text[600]; } flux__unsaid;    /* a message that waits */

typedef struct flux__watch flux__watch;

typedef struct flux__pair { const void *key; void *value; } flux__pair;
typedef struct flux__pairs { flux__pair *at; size_t room, count; } flux__pairs;   /* a table by address; room: 2^k */

typedef struct flux__scope {              /* an open one */
    int start;                            /* of its things in owned */
    int line;                             /* where it was opened; 0: nobody knows */
    const char *file;
    bool turn;                            /* of flux_times or flux_each */
} flux__scope;

typedef struct flux__grave { void *object; const char *file; int line, kind; } flux__grave;       /* what was freed, by whose end */

typedef struct flux__thread {             /* a thread's own state */
    int64_t products;                     /* multiply-adds of all matrix products recorded so far */
    flux__watch *watch;                   /* of a flux_summary under way, or NULL */
    flux__pending error;
    int (*where)(const void *place, char *out, size_t n);   /* writes what errors are to name first; or NULL */
    const void *place;
    void **owned;                         /* what the open scopes hold, oldest first */
    int nowned, room;
    flux__scope *scope;                   /* those that are open; the first is the program's, or the thread's life */
    int nscopes, scope_room;
    int nograd;                           /* depth of FLUX_NOGRAD */
    struct flux__training *training;      /* whose test mode flux_train and flux_withgradient overrule now */
    int as_one;                           /* depth of operations of ours that FLUX_EAGER computes as one, see flux__as_one */
    uint64_t seed, draws;                 /* random numbers: key, and how many tensors were drawn */
    uint32_t walk;                        /* the last mark given */
    bool ahead;                           /* what it copies to a device is for later: it goes beside the device's work */
    flux_tensor *spare;                   /* freed nodes, chained by base */
    int nspare;
    flux__grave *graves;                  /* FLUX__DEBUG: a ring of what was freed last */
    int64_t buried;
    flux__scope closing;                  /* the scope that closes now */
    struct flux__plans *plans;            /* schedules found before */
    void *scratch;                        /* memory of the kernels it runs */
    size_t scratch_bytes;
    bool look;                            /* memory has grown so much that its scopes are to be looked at */
    struct flux__progress *bar;           /* the innermost progress bar */
    int held;                             /* depth of flux__hold: messages wait */
    int64_t held_at;                      /* how many failures there had been then */
    int hidden;                           /* 0, or 1 more than the scopes around the outermost flux__hide */
    int64_t hidden_at;                    /* how many failures there had been then */
    bool quiet;                           /* its failures are taken back, and said when and where they count */
    flux__unsaid later;
} flux__thread;
/* hook: flux__threads_stop, base/workers.h */
static void flux__threads_stop(void);

#define FLUX__EDGE (((int64_t)1 << 32) + 1)   /* an edge in refs, which is a reference too */
#define FLUX__REFS(refs) ((int32_t)(refs))
/* Whether somebody other than the graph can look at a node, whatever other threads do with references of theirs. */
static FLUX__INLINE bool flux__visible(const flux_tensor *t) {
    const int64_t refs = flux__atomic_load(&t->head.refs);
    return FLUX__REFS(refs) > refs >> 32;
}

#endif /* FLUX__BASE_OBJECT_H */
